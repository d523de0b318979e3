"""Receives the batches of an epoch from the native loader, and has Pillow decode the samples that
it does not support."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch

from feedmill._internals import ExceptionWrapper
from feedmill._ops import native
from feedmill.engine.config import Config
from feedmill.engine.devices import Stage
from feedmill.engine.tensors import tensors_of
from feedmill.iterators.bad_samples import BadSamplePolicy
from feedmill.iterators.batches import Batch, labels_of, submit_items
from feedmill.iterators.generator_states import VirtualWorkers
from feedmill.iterators.global_generators import Held, drawing_from
from feedmill.iterators.own_samples import one_thread
from feedmill.iterators.pillow_fallback import (
    DrawsOf,
    as_pixels,
    check_regular,
    draws_from,
    make_sample,
    name_sample,
    transformed,
    write_sample,
    write_views,
)
from feedmill.iterators.torch_pixels import with_pixels
from feedmill.iterators.verify import VerificationError, Verifier
from feedmill.planner.files import open_file_rgb, open_rgb
from feedmill.planner.formats import as_planned
from feedmill.planner.left_out import LeftOut
from feedmill.planner.random_states import seeded_states, streams_of
from feedmill.planner.samples import Item, Source
from feedmill.profiling.counting.gpu_stalls import GpuStalls
from feedmill.profiling.counting.sample_errors import SampleErrors
from feedmill.profiling.log.ranges import waiting
from feedmill.remote import by_fsspec
from feedmill.remote.names import is_fsspec_name, is_name, read_error


class Receiver:
    """Submits the batches of one epoch to a native loader and receives them in order.

    Pillow decodes the samples that the native decoder does not support, on the receiving thread.
    Not thread-safe: all methods are called by one thread, the consumer's or, if batches are
    collated ahead of their turn, the thread of ``collate.ahead.Ahead``.

    Args:
        handle: the native loader, whose epoch has been started.
        config: the config that it was opened with.
        source: the samples.
        key, epoch_word: key of the epoch's random draws.
        num_workers: the DataLoader's; decides whether errors are wrapped.
        timeout: the DataLoader's, in seconds; 0: none.
        bad_samples: the policy of on_error= for samples that can't be loaded.
        sample_errors: records those samples.
        verifier: checks each batch for native="verify"; None: no check.
        stage: copies batches to a device; None: they stay on the CPU.
        gpu: with a stage: measures how long the GPU waits.
        on_wake: if the epoch was started with ``ahead``: called when the native loader was woken;
            see fm_loader_wake().
        virtual: with rng="torch", the generators of torch's workers, which the epoch was started
            with.
        make_samples: (indices, held): has the dataset make a batch, see own_samples.

    Attributes:
        unsubmitted: pulled batches that the native loader has not accepted completely.
        n_received: number of batches received from the native loader; parts of split batches count
            one each.
        mark: mark of the waiting step, for ``gpu``.
        in_submit: set during a native call and the bookkeeping of its result, which a Ctrl-C may
            separate.
        failed_streams: with ``virtual``: set if a sample can't be made, to its worker's generators
            before that sample. torch's worker leaves out the rest of the batch, so that the native
            loader has drawn too much: its epoch must be started again. So it must if the dataset
            has made the batch; then these are the generators behind it.
    """

    def __init__(
        self,
        handle: Any,
        config: Config,
        source: Source,
        *,
        key: int,
        epoch_word: int,
        num_workers: int,
        timeout: float,
        bad_samples: BadSamplePolicy,
        sample_errors: SampleErrors,
        verifier: Verifier | None,
        stage: Stage | None = None,
        gpu: GpuStalls | None = None,
        on_wake: Callable[[], None] | None = None,
        virtual: VirtualWorkers | None = None,
        make_samples: Callable[[Any, Held], list[Any]],
    ) -> None:
        self.handle = handle
        self.config = config
        self.stage = stage
        self.unsubmitted: deque[Batch] = deque()
        self.n_received = 0
        self.mark: Any = None
        self.in_submit = False
        self._source = source
        self._plan: Any = source.plan
        self._key, self._epoch_word = key, epoch_word
        self._num_workers = num_workers
        self._timeout = timeout
        self._bad_samples = bad_samples
        self._sample_errors = sample_errors
        self._verifier = verifier
        self._gpu = gpu
        self._on_wake = on_wake
        self._virtual = virtual
        self._make_samples = make_samples
        self.failed_streams: bytes | None = None
        self._drew = False  # for the pending fallback
        self._copies_labels = config.device is not None and source.arrays is None
        self._pending_fallback = False
        self._n_before = self._n_finished()

    def _n_finished(self) -> int:
        counters = self.handle.stats()
        return int(counters["batches"] + counters["errors"])

    # ---- submitting ------------------------------------------------------------------------------

    def submit(self) -> None:
        """Submits batches, oldest first, until the native loader's queue is full."""
        capacity = self.config.batch_size
        while self.unsubmitted:
            batch = self.unsubmitted[0]
            while batch.n_submitted < len(batch.items):
                items = batch.items[batch.n_submitted : batch.n_submitted + capacity]
                if self._virtual is not None:
                    self._virtual.choose(self.handle, batch.turn, batch.n_parts == 0)
                self.in_submit = True
                labels = labels_of(items) if self._copies_labels else None
                accepted = submit_items(self.handle, items, self._source.gives_bytes, labels)
                if accepted:
                    batch.n_submitted += len(items)
                    batch.n_parts += 1
                    if self._verifier is not None:
                        self._verifier.count_uses(batch, list(items))
                self.in_submit = False
                if not accepted:
                    return
            self.unsubmitted.popleft()

    # ---- receiving -------------------------------------------------------------------------------

    def receive(self, batch: Batch) -> None:
        """Waits until all parts of a batch have arrived, or its error. May be called again after an
        interrupt."""
        while self.failed_streams is None:
            if len(batch.parts) < batch.n_parts:
                part = self._receive_part(batch)
                batch.last_part = self.n_received
                self.n_received += 1
                batch.parts.append(part)
            elif batch.error is not None and batch.n_submitted < len(batch.items):
                batch.n_submitted = len(batch.items)  # the batch has failed: skip its other parts
            elif batch.n_submitted < len(batch.items):
                self.submit()
            else:
                break
        if batch.error is None and batch.fail is not None and batch.own is None:
            batch.error = self._failure_of(batch)
        is_native = batch.error is None and batch.own is None
        if is_native and self._verifier is not None and batch.items:
            try:
                self._verifier.verify(self.handle, batch, self._virtual)
            except Exception as error:
                batch.error = as_torch_raises(error, batch.turn, self._num_workers)

    def _receive_part(self, batch: Batch) -> Any:
        """Waits for the next native batch. Returns its images, or its list of tensors if the
        samples are arrays or have several views; None if it failed, with batch.error set."""
        while True:
            if not self._pending_fallback:
                outcome, payload, n = self._wait()
                if outcome == native.OK:
                    if self.stage is not None:
                        payload = self._take_from_stage(batch, n)
                    elif self.config.alloc is not None:
                        batch.owners.append((payload, n))
                    return tensors_of(payload, n, self.config, self.handle)
                if outcome != native.FALLBACK:
                    if self._virtual is not None:
                        self._virtual.lost = payload or "a sample failed"
                        self.failed_streams = b""
                    if batch.error is None:
                        error = RuntimeError(payload)
                        batch.failed = 0
                        batch.error = as_torch_raises(error, batch.turn, self._num_workers)
                    return None
                self._pending_fallback = True
            if batch.error is None:
                batch.error = self._finish_sample(batch)
            if self.failed_streams is not None:
                return None  # the dataset itself has made the batch
            if batch.error is not None and self._virtual is not None:
                self.failed_streams = (
                    self._streams_behind_error(self._virtual, batch) if self._drew
                    else self.handle.fallback_streams()
                )
                return None
            self._pending_fallback = False
            self.handle.fallback_done(batch.error is None)

    def _streams_behind_error(self, virtual: VirtualWorkers, batch: Batch) -> bytes:
        """The generators of the batch's worker after a transform raised an error. How far it had
        drawn is found out by the dataset, which makes the batch's samples as torch's worker does.
        """
        with drawing_from(virtual.of_batch(batch.turn)) as held:
            try:
                for item in batch.items:
                    item.own_sample()
                virtual.lost = "a transform raised an error only once"
            except Exception:  # torch's worker raises it as well
                pass
        return b"" if virtual.lost else streams_of(held.states)

    def _take_from_stage(self, batch: Batch, n: int) -> torch.Tensor:
        """The images that the native loader has copied to the device, as bytes. Their targets are
        added to batch.labels."""
        assert self.stage is not None
        if self._gpu is not None:
            self._gpu.ready(self.mark)
        images, labels = self.stage.take()
        if self._copies_labels and labels_of(batch.items) is not None:
            batch.labels.append(labels[:n])
        return images

    def _wait(self) -> tuple[int, Any, int]:
        if self._on_wake is not None:
            return self._wait_ahead(self._on_wake)
        timeout_ns = int(self._timeout * 1e9) if self._timeout > 0 else -1
        while True:
            if self.stage is not None:
                self.stage.add_buffers()
            n_before = self._n_samples_finished() if timeout_ns > 0 else 0
            outcome: tuple[int, Any, int] = waiting(self.handle.next, timeout_ns)
            if outcome[0] == native.END or (outcome[0] == native.AGAIN and timeout_ns < 0):
                raise RuntimeError("feedmill lost a batch; please report this")
            if outcome[0] != native.AGAIN:
                return outcome
            # torch restarts its clock when any worker delivers a batch. Here batches arrive in
            # order only, so the clock restarts when a batch's worth of samples was finished.
            n_finished = self._n_samples_finished() - n_before  # or files of samples
            if n_finished < self.config.batch_size * self.config.plan.n_files:
                raise timed_out(self._timeout)

    def _wait_ahead(self, on_wake: Callable[[], None]) -> tuple[int, Any, int]:
        while True:
            on_wake()
            outcome: tuple[int, Any, int] = self.handle.next_ahead()
            if outcome[0] != native.AGAIN:
                return outcome

    def _n_samples_finished(self) -> int:
        return int(self.handle.stats()["native_samples"])

    def _finish_sample(self, batch: Batch) -> Any:
        """Decodes the pending unsupported sample with Pillow. Returns None, or the error to raise.

        No caller's frame may keep the error in a local variable: see unwrapped().
        """
        self._drew = False
        _, occurrence, position, cause_code, _, out, why = self.handle.fallback()
        # `position` counts within the native loader's part of the batch.
        n_files = self.config.plan.n_files
        place = len(batch.parts) * self.config.batch_size + position // n_files
        item, view = batch.items[place], position % n_files
        try:
            if cause_code == native.ERR_READ:
                self._raise_unread(item.path, why)
            target = self._write_with_pillow(item, occurrence, out, view)
            if target is not item.target:
                batch.replaced[place] = target
        except LeftOut as error:
            return self._left_out(error, batch, item, place)
        except Exception as error:
            # The dataset may convert some images only. The others fail behind the first draws.
            self._drew |= item.base_dataset.load in (open_rgb, open_file_rgb)
            if self._plan.retries and self._virtual is not None:
                cause = f"{type(error).__name__}: {error}"
                self._sample_errors.add(item.of_view(view), cause, "left to the dataset")
                return self._own_batch(batch)
            item = item.of_view(view)
            if n_files > 1 and (own := self._own_error(batch, place)) is not None:
                if str(own) != str(error):
                    item = batch.items[place]  # it is of another file, or of none
                error = own
            cause = f"{type(error).__name__}: {error}"
            outcome = self._bad_samples.apply(
                batch, place, occurrence, out, self._write_with_pillow
            )
            self._sample_errors.add(item, cause, outcome or "raised")
            if outcome:
                return None
            name_sample(error, item, self._bad_samples.note())
            batch.failed = place
            return as_torch_raises(error, batch.turn, self._num_workers)
        return None

    def _left_out(self, error: LeftOut, batch: Batch, item: Item, place: int) -> Any:
        """Calls the handler that leaves out a sample. Returns the LeftOut, or what is raised."""
        error.place = place
        try:
            error.handle()
        except Exception as raised:  # such as a warning, if these are errors
            return as_torch_raises(raised, batch.turn, self._num_workers)
        self._sample_errors.add(item, str(error), "left out by the pipeline's handler")
        return error

    def _own_error(self, batch: Batch, place: int) -> Exception | None:
        """What the dataset raises for a sample of several files, of which it may open all before it
        transforms the first one; None: nothing."""
        self._drew = True  # how far it has drawn depends on that, too
        states, first = seeded_states(0), place
        if self._virtual is not None:
            states, first = self._virtual.of_batch(batch.turn), 0
        with drawing_from(states):
            try:
                for item in batch.items[first : place + 1]:
                    item.own_sample()
            except Exception as error:
                error.__context__ = None
                return error
        return None

    def _own_batch(self, batch: Batch) -> Any:
        """Has the dataset make a batch, as torch's worker does. Returns None, or the error."""
        assert self._virtual is not None
        held = Held(self._virtual.of_batch(batch.turn))
        try:
            with one_thread(self._num_workers > 0):
                batch.own = self._make_samples(batch.indices, held)
        except Exception as error:
            self.failed_streams = streams_of(held.states)
            return as_torch_raises(error, batch.turn, self._num_workers)
        self.failed_streams = streams_of(held.states)
        return None

    def _raise_unread(self, path: Any, why: str) -> None:
        """Raises the error of a remote object, which a second request would find as slowly. Returns
        if the path is that of a file, or was taken for one."""
        if self.config.remote is not None and is_name(path):
            raise read_error(path, why)
        if self.config.fsspec_threads and is_fsspec_name(path):
            raise by_fsspec.read_error(path, why)

    def _write_with_pillow(
        self, item: Item, occurrence: int, out: bytearray, view: int = 0
    ) -> Any:
        """Makes a sample with Pillow and the user's own transform, and writes it to its bytes in
        the batch. Returns its target.

        Args:
            view: if the sample has several files: make only the view of this one.
        """
        draws_of = draws_from(self.handle, self._key, self._epoch_word, item.position, occurrence)
        if self._virtual is not None:
            draws_of = self._draw_as_worker
        if item.paths:
            self._write_file(item, draws_of, out, view)
            return item.target
        image, target = make_sample(item, draws_of)
        if self._plan.more_views:
            write_views(image, out, self.handle.view_shapes, self._plan)
            return target
        image, plan = as_planned(image, self._plan), self._plan
        if self.config.device is not None and self.handle.converts:
            image = as_pixels(image, plan)
            plan = replace(plan, dtype="uint8", layout="nhwc", value_table=None)
        write_sample(image, out, self.handle.out_shape, plan)
        return target

    def _write_file(self, item: Item, draws_of: DrawsOf, out: bytearray, view: int) -> None:
        file, plan = item.of_view(view), self._plan.views[view]
        check_regular(file.path)
        image = transformed(item.base_dataset, file.load(), draws_of, view)
        write_sample(as_planned(image, plan), out, self.handle.view_shapes[view], plan)

    def _draw_as_worker(self, width: int, height: int, view: int = 0) -> Any:
        self._drew = True
        draws = self.handle.fallback_draws(width, height, view)
        streams = self.handle.fallback_streams()
        # The views of other files were drawn for before.
        for earlier in range(view if self.config.plan.n_files == 1 else 0):
            _, streams = self.handle.draws_torch(streams, width, height, earlier)
        return with_pixels(self.handle, draws, streams, width, height, view)

    def _failure_of(self, batch: Batch) -> Any:
        """The exception for the batch's first index that could not be looked up."""
        assert batch.fail is not None
        if self._virtual is not None and batch.indices is not None and not self._plan.draws_files:
            return self._own_batch(batch)
        try:
            batch.fail()
        except Exception as error:
            return as_torch_raises(error, batch.turn, self._num_workers)
        raise AssertionError("Batch.fail() did not raise")

    # ---- after Ctrl-C ----------------------------------------------------------------------------

    @property
    def is_lost(self) -> bool:
        """Whether an interrupt came between a native call and the bookkeeping of its result, so
        that the epoch must be restarted. An interrupt during a wait changes nothing."""
        return (
            self.in_submit
            or (self.stage is not None and not self.stage.is_consistent)
            or self._n_finished() - self._n_before != self.n_received
        )

    def recover(self, waiting_batches: Sequence[Batch]) -> None:
        """After an interrupt: restores this object's state from the native loader's, and
        submits."""
        self._pending_fallback = self._is_fallback_pending()
        self.unsubmitted = deque(
            batch for batch in waiting_batches if batch.n_submitted < len(batch.items)
        )
        self.in_submit = False
        self.submit()

    def _is_fallback_pending(self) -> bool:
        try:
            self.handle.fallback()
        except RuntimeError:
            return False
        return True


def check_process(pid: int) -> None:
    """Raises RuntimeError in a forked child; ``pid`` is the process that made the iterator."""
    if pid != os.getpid():
        raise RuntimeError(
            "this iterator belongs to another process: it was made before a fork, and its threads "
            "do not exist here; call iter() on the DataLoader again"
        )


def timed_out(timeout: float) -> RuntimeError:
    """torch's error for a batch that does not arrive within timeout= seconds."""
    return RuntimeError(f"DataLoader timed out after {timeout} seconds")


def as_torch_raises(error: Exception, number: int, num_workers: int) -> Any:
    """An exception of batch ``number`` as torch reports it.

    Returns the exception itself with num_workers=0, else torch's ExceptionWrapper around it, which
    names the worker process that would have made the batch.
    """
    if num_workers == 0 or isinstance(error, VerificationError):
        return error
    worker = number % num_workers
    return ExceptionWrapper(
        (type(error), error, error.__traceback__), where=f"in DataLoader worker process {worker}"
    )


def unwrapped(error: Any) -> Exception:
    """The exception to raise for an error, without torch's wrapper.

    The traceback of ExceptionWrapper.reraise() is removed: its frame refers to the exception, and
    the cycle would keep all of that alive until the garbage collector runs.
    """
    if isinstance(error, ExceptionWrapper):
        try:
            error.reraise()
        except Exception as raised:
            return raised.with_traceback(None)
    assert isinstance(error, Exception)
    return error
