"""The iterator of a DataLoader on the native path.

Order, seeds, warnings and the profiler's range are torch's: the base class does them. Indices are
pulled when torch would pull them, or earlier where nobody can tell (``sampling``); each batch is
then read, decoded and transformed natively, and its tensor is the native batch's memory.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch._utils import ExceptionWrapper
from torch.utils.data.dataloader import _BaseDataLoaderIter

from feedmill._ops import native
from feedmill.batches import Batch, labels_of, resolve, submit_items
from feedmill.by_hand import as_pixels, draws_from, name_sample, replay, write_sample
from feedmill.collating import Collate
from feedmill.configs import MAX_BATCH_SIZE, Config, allocate_pinned, torch_depth
from feedmill.devices import Stage, check_not_capturing, device_of, to_device
from feedmill.handles import Handles
from feedmill.log.ranges import waiting
from feedmill.on_error import StandIns
from feedmill.recognition.formats import as_planned
from feedmill.recognition.plain import PlainPlan
from feedmill.recognition.samples import Item, Source
from feedmill.recognition.sampling import largest_batch, look_ahead_rule, never
from feedmill.tensors import tensors_of
from feedmill.verify import VerificationError, Verifier


class NativeDataLoaderIter(_BaseDataLoaderIter):
    """Iterates once over the sampler; with persistent workers once more after each reset.

    A batch is what torch delivers: ``[images, targets]``, images (n, 3, height, width) of the
    plan's type and layout, targets as torch's default_collate makes them; without automatic
    batching ``[image, target]``; with a collate_fn what that makes of the samples. The images
    belong to the caller for as long as he holds them.

    Errors: those of a sample carry its dataset index and path and come at their batch's turn, raw
    with num_workers=0, else as torch's workers report them; the iterator goes on with the batch
    after. One thread at a time; others wait.

    Args:
        loader: the feedmill.DataLoader.
        source: as ``recognise.recognise(loader)`` gives it.
        config: as native_config() gives it.
        goes_on: called with the loader where persistent workers are to begin another epoch: what
            runs in it, and its config; None: the loader has taken another iterator.
    """

    _handle: Any = None

    def __init__(
        self,
        loader: Any,
        source: Source,
        config: Config,
        goes_on: Callable[[Any], tuple[Source, Config] | None],
    ) -> None:
        super().__init__(loader)
        if self._num_workers == 0 and self._timeout != 0:
            raise AssertionError("_SingleProcessDataLoaderIter requires timeout == 0")
        if self._num_workers < 0:
            raise AssertionError(
                "num_workers must be greater than 0 for MultiProcessingDataLoaderIter"
            )
        if self._num_workers > 0 and loader.prefetch_factor <= 0:
            raise AssertionError(
                "prefetch_factor must be greater than 0 for MultiProcessingDataLoaderIter"
            )
        self._lock = threading.RLock()
        self._handles: Handles = loader._feedmill.handles
        self._goes_on = goes_on
        self._collate = Collate(loader, self)
        self._n_epochs = 0
        # As torch's iterator, this one keeps to the loader's numbers of now.
        self._torch_depth = torch_depth(loader)
        if self._num_workers > 0:
            # Scripts, and torch's own tests, join the processes of an iterator that they drop.
            self._workers: list[Any] = []
            super()._reset(loader, first_iter=True)  # torch's workers iterate the sampler twice
        self._begin(loader, source, config)

    def _reset(self, loader: Any, first_iter: bool = False) -> None:
        """Persistent workers: the next epoch, with the dataset and transforms as they are now."""
        with self._lock:
            going_on = self._goes_on(loader)
            self._give_back()
            if going_on is None:  # this one has ended
                self._waiting.clear()
                self._exhausted = True
                return
            super()._reset(loader, first_iter)
            self._n_epochs += 1
            self._begin(loader, *going_on)

    def _begin(self, loader: Any, source: Source, config: Config) -> None:
        self._source = source
        self._plan = source.plan
        self._collate.memory_format = loader.memory_format
        inside = loader._feedmill
        epoch = inside.epochs.begin(loader, source, self._base_seed, self._n_epochs)
        self._key, self._epoch_word = epoch.key, epoch.word
        self._counters = inside.python_counters
        self._recorder = inside.recorder
        self._gpu = self._handles.gpu
        self._gpu.begin_epoch()
        self._mark: Any = None
        self._device = device_of(loader)
        self._stage: Stage | None = None
        self._iter_began_ns = inside.iter_began_ns
        self._iter_ns = 0
        self._verifier: Verifier | None = None
        if loader.native == "verify":
            self._verifier = Verifier(inside, source, epoch)
        self._waiting: deque[Batch] = deque()
        self._arrived: Batch | None = None  # complete, but not yet with the caller
        self._unsubmitted: deque[Batch] = deque()  # the part of it that did not fit in yet
        self._n_pulled = 0
        self._exhausted = False
        self._pull_error: Exception | None = None
        self._pending_fallback = False
        self._interrupted = False
        # Set around native calls whose outcome would be unknown if a Ctrl-C came right after them.
        self._unsure = False
        # (number, indices) of a batch from when the sampler gave it until it is in line. Both ends
        # are single steps of the interpreter, so that no Ctrl-C comes in between. As torch, this
        # asks the sampler's iterator for nothing but its next(), even behind its end.
        self._numbered_sampler = enumerate(map(next, itertools.repeat(self._sampler_iter)))
        self._pulled: list[tuple[int, Any]] = []
        self._may_pull_ahead = look_ahead_rule(self._index_sampler)
        self._n_owed = 0  # pulls that torch would have made, and this iterator has not yet
        self._depth = config.prefetch_batches
        # What a collate_fn makes of the images is pinned afterwards, as torch does it. What the
        # native loader copies to the device by itself comes from its own pinned memory.
        self._collate.on_device = config.device is not None
        pins = self._pin_memory or self._device is not None
        if not self._collate.is_default or self._collate.on_device:
            pins = False
        self._config = replace(config, alloc=allocate_pinned if pins else None)
        self._may_split = loader.native == "auto"
        self._stand_ins = StandIns(loader, source, epoch.key, epoch.word)
        self._sample_errors = inside.sample_errors
        self._size_known = largest_batch(self._index_sampler, self._auto_collation) is not None
        if self._size_known:
            self._open()
        if self._num_workers > 0:
            self._pull_and_submit(self._torch_depth, self._torch_depth)

    # ---- the native loader -----------------------------------------------------------------------

    def _open(self) -> None:
        self._unsure = True
        self._config, self._handle = self._acquire()
        self._iter_ns = time.monotonic_ns() - self._iter_began_ns
        self._start()
        self._unsure = False

    def _acquire(self) -> tuple[Config, Any]:
        config = self._config
        while True:
            try:
                return self._handles.acquire(config, at_least=not self._size_known)
            except native.BudgetError:
                # The size is known only now, too late for torch's path: then in parts.
                if self._size_known or not self._may_split or config.batch_size == 1:
                    raise
            config = replace(config, batch_size=config.batch_size // 2)

    def _start(self) -> None:
        self._handle.start(self._key, self._epoch_word)
        self._forget_offers()
        if self._config.device is not None:
            self._stage = Stage(self._handle, self._device)
        if self._verifier is not None:
            self._verifier.forget_uses()
        self._n_received = 0
        self._n_before = self._n_finished()

    def _n_finished(self) -> int:
        counters = self._handle.stats()
        return counters["batches"] + counters["errors"]

    def _give_back(self) -> None:
        handle, self._handle = self._handle, None
        if handle is not None:
            self._handles.release(handle)
            self._forget_offers()

    def _forget_offers(self) -> None:
        """Behind the end of the native loader's epoch: copies may run into them until then."""
        stage, self._stage = self._stage, None
        if stage is not None:
            stage.forget()

    def __del__(self) -> None:
        try:
            self._give_back()
        except Exception:  # the interpreter is going down: nothing is left to do it with
            pass

    # ---- batches going in ------------------------------------------------------------------------

    def _pull_and_submit(self, n_due: int, n_pulls: int) -> None:
        """Pulls indices until as many batches are on their way as there should be.

        Args:
            n_due: so many would torch have on their way now; its sampler is pulled for them
                whatever that changes, and an error of it is raised.
            n_pulls: so often would torch pull now. It counts where pulls can be told.
        """
        self._n_owed += n_pulls
        try:
            while self._wants_more(n_due):
                if not self._pulled:
                    self._pulled.extend(itertools.islice(self._numbered_sampler, 1))
                if self._pulled:
                    batch = self._batch_of(*self._pulled[0])
                    self._unsubmitted.append(batch)
                    self._waiting.append(batch)
                    self._note_pulled()
                    if self._handle is not None:
                        self._submit()
                else:
                    self._exhausted = True
                self._n_owed -= 1
        except Exception as error:
            self._n_owed = 0
            if self._may_pull_ahead is never or len(self._waiting) < n_due:
                raise
            # Ahead of torch: it comes when the batches before it are delivered.
            self._pull_error = error
            self._exhausted = True
        if self._handle is None and self._waiting:
            longest = max(len(batch.items) for batch in self._waiting)
            self._config = replace(
                self._config, batch_size=min(max(longest, 1), MAX_BATCH_SIZE)
            )
            self._open()
            self._submit()

    def _note_pulled(self) -> None:
        """The batch that was pulled is in line, if it is."""
        if self._pulled and self._waiting and self._waiting[-1].number == self._pulled[0][0]:
            self._n_pulled = self._waiting[-1].number + 1
            self._pulled.clear()

    def _wants_more(self, n_due: int) -> bool:
        if self._may_pull_ahead is never:
            return self._n_owed > 0
        if self._exhausted:
            return False
        n_waiting = len(self._waiting)
        if n_waiting < n_due:
            return True
        if n_waiting >= self._depth:
            return False
        return self._n_pulled > 0 and self._may_pull_ahead(self._n_pulled)

    def _batch_of(self, number: int, indices: Any) -> Batch:
        batch = Batch(number)
        resolve(batch, self._source, self._dataset, indices, self._auto_collation)
        return batch

    def _submit(self) -> None:
        """Hands over what the native loader takes, oldest batch first."""
        capacity = self._config.batch_size
        while self._unsubmitted:
            batch = self._unsubmitted[0]
            while batch.n_submitted < len(batch.items):
                items = batch.items[batch.n_submitted : batch.n_submitted + capacity]
                self._unsure = True
                labels = labels_of(items) if self._takes_labels else None
                taken = submit_items(self._handle, items, self._source.gives_bytes, labels)
                if taken:
                    batch.n_submitted += len(items)
                    batch.n_parts += 1
                    if self._verifier is not None:
                        self._verifier.count_uses(batch, items)
                self._unsure = False
                if not taken:
                    return
            self._unsubmitted.popleft()

    # ---- batches coming out ----------------------------------------------------------------------

    def _next_data(self) -> Any:
        with self._lock:
            try:
                check_not_capturing(self._device)
                self._mark = self._gpu.request(time.monotonic_ns(), self._device)
                if self._handle is not None:
                    self._handle.step_request()
                if self._interrupted:
                    self._recover()
                data = self._next_batch()
                if self._device is not None:
                    data = self._on_device(data)
                return_ns = time.monotonic_ns()
                self._recorder.tick(return_ns, len(self._arrived.items))
                self._gpu.returned(self._mark, return_ns)
                self._handle.step_return()
                self._arrived = None
                return data
            except Exception:
                self._arrived = None
                raise
            except BaseException:  # Ctrl-C may have come between any two steps
                self._interrupted = True
                raise

    def _on_device(self, data: Any) -> Any:
        """The batch with everything in it on the device."""
        if self._stage is None:
            self._gpu.ready(self._mark)
        data = to_device(data, self._device)
        if self._stage is not None:
            with contextlib.suppress(RuntimeError):  # memory may be there for the next request
                self._stage.offer()
        return data

    def _next_batch(self) -> Any:
        if self._arrived is None:
            self._arrive()
        batch = self._arrived
        assert batch is not None
        if batch.error is None:
            try:
                if self._verifier is not None:
                    self._verifier.verify(self._handle, batch)
                if self._source.arrays is not None:
                    return self._collate.arrays(batch, self._plan.as_image)
                images = batch.images()
                if isinstance(self._plan, PlainPlan):
                    images = [self._plan.values_of(one) for one in images]
                return self._collate(
                    images, batch.targets(), batch.number, self._plan.as_image,
                    is_pinned=not batch.skipped,
                    labels=() if batch.skipped or batch.replaced else batch.labels,
                )
            except Exception as error:
                batch.error = self._as_torch_raises(error, batch)
        error, batch.error = batch.error, None
        try:
            raise _unwrapped(error)
        finally:
            # The traceback holds this frame: with the error in it, both, and the iterator with
            # its threads, would stay until the garbage collector runs.
            del error

    def _arrive(self) -> None:
        """Takes the batch whose turn it is out of the line."""
        if self._num_workers == 0:
            was_open = self._handle is not None
            self._pull_and_submit(1, int(not self._waiting and self._n_owed <= 0))
            if not was_open and self._handle is not None:
                self._handle.step_request()
        if not self._waiting:
            self._end()
        self._receive(self._waiting[0])  # where this raises, it stays for the following call
        self._arrived = self._waiting[0]
        self._waiting.popleft()
        if self._arrived.number == 0 and self._arrived.error is None:
            self._counters.iter_ns += self._iter_ns
        self._submit()
        # torch's workers get the next batch when one has arrived; in process it comes later.
        if self._num_workers > 0:
            self._pull_and_submit(self._torch_depth, 1)
        else:
            self._pull_and_submit(0, 0)

    def _end(self) -> None:
        error, self._pull_error = self._pull_error, None
        if self._handle is not None:
            self._give_back()
            self._recorder.end_epoch()
        if error is not None:
            raise error
        raise StopIteration

    def _receive(self, batch: Batch) -> None:
        """Waits for all parts of a batch, or for its error."""
        while True:
            if len(batch.parts) < batch.n_parts:
                part = self._receive_part(batch)
                self._n_received += 1
                batch.parts.append(part)
            elif batch.error is not None and batch.n_submitted < len(batch.items):
                batch.n_submitted = len(batch.items)  # the rest is not needed
            elif batch.n_submitted < len(batch.items):
                self._submit()
            else:
                break
        if batch.error is None and batch.fail is not None:
            batch.error = self._failure_of(batch)

    def _receive_part(self, batch: Batch) -> Any:
        """The images, or of arrays the tensors, of the native batch whose turn it is; None:
        batch.error is set."""
        while True:
            if not self._pending_fallback:
                outcome, payload, n = self._wait()
                if outcome == native.OK:
                    if self._stage is not None:
                        payload = self._taken(batch, n)
                    return tensors_of(payload, n, self._config, self._handle)
                if outcome != native.FALLBACK:
                    if batch.error is None:
                        batch.error = self._as_torch_raises(RuntimeError(payload), batch)
                    return None
                self._pending_fallback = True
            if batch.error is None:
                batch.error = self._finish_sample(batch)
            self._pending_fallback = False
            self._handle.fallback_done(batch.error is None)

    def _taken(self, batch: Batch, n: int) -> torch.Tensor:
        """What the native loader has copied to the device, as bytes; it is part of the batch."""
        assert self._stage is not None
        self._gpu.ready(self._mark)
        images, labels = self._stage.take()
        if self._takes_labels and labels_of(batch.items) is not None:
            batch.labels.append(labels[:n])
        return images

    @property
    def _takes_labels(self) -> bool:
        return self._config.device is not None and self._source.arrays is None

    def _wait(self) -> tuple[int, Any, int]:
        timeout_ns = int(self._timeout * 1e9) if self._timeout > 0 else -1
        while True:
            if self._stage is not None:
                self._stage.offer()
            n_before = self._n_samples_finished() if timeout_ns > 0 else 0
            outcome = waiting(self._handle.next, timeout_ns)
            if outcome[0] == native.END or (outcome[0] == native.AGAIN and timeout_ns < 0):
                raise RuntimeError("feedmill lost a batch; please report this")
            if outcome[0] != native.AGAIN:
                return outcome
            # torch's clock starts anew when a batch arrives, of whichever worker. Batches do not
            # arrive here before their turn, but are finished one sample after the other.
            if self._n_samples_finished() - n_before < self._config.batch_size:
                raise RuntimeError(f"DataLoader timed out after {self._timeout} seconds")

    def _n_samples_finished(self) -> int:
        return self._handle.stats()["native_samples"]

    def _finish_sample(self, batch: Batch) -> Any:
        """Has Pillow finish the sample that the native decoder does not take: None, or the error.

        No frame on the way here keeps the error in a variable, see _next_batch().
        """
        _, occurrence, position, _, _, out, _ = self._handle.fallback()
        # The position is that in the part of the batch that the native loader has.
        place = len(batch.parts) * self._config.batch_size + position
        item = batch.items[place]
        try:
            self._write_by_hand(item, occurrence, out)
        except Exception as error:
            cause = f"{type(error).__name__}: {error}"
            outcome = self._stand_ins.put(batch, place, occurrence, out, self._write_by_hand)
            self._sample_errors.add(item, cause, outcome or "raised")
            if outcome:
                return None
            name_sample(error, item, self._stand_ins.note())
            return self._as_torch_raises(error, batch)
        return None

    def _write_by_hand(self, item: Item, occurrence: int, out: memoryview) -> None:
        """Makes a sample with the user's own objects, at its place in the batch."""
        draws_of = draws_from(self._handle, self._key, self._epoch_word, item.position, occurrence)
        image, plan = as_planned(replay(item, draws_of), self._plan), self._plan
        if self._config.device is not None and self._handle.converts:
            image = as_pixels(image, plan)
            plan = replace(plan, dtype="uint8", layout="nhwc", value_table=None)
        write_sample(image, out, self._handle.out_shape, plan)

    def _failure_of(self, batch: Batch) -> Any:
        """What torch raises for the index behind the batch's good samples."""
        try:
            batch.fail()
        except Exception as error:
            return self._as_torch_raises(error, batch)
        raise AssertionError("a batch that must fail did not")

    def _as_torch_raises(self, error: Exception, batch: Batch) -> Any:
        if self._num_workers == 0 or isinstance(error, VerificationError):
            return error
        worker = batch.number % self._num_workers
        return ExceptionWrapper(
            (type(error), error, error.__traceback__),
            where=f"in DataLoader worker process {worker}",
        )

    # ---- after Ctrl-C ----------------------------------------------------------------------------

    def _recover(self) -> None:
        """Brings the native loader and the list of waiting batches together again.

        An interrupt inside the wait changed nothing. One that came between a native call and the
        note of it did: then the epoch goes on from the batches that were not delivered, submitted
        anew.
        """
        self._note_pulled()
        if self._handle is not None:
            if self._arrived is not None and self._waiting and self._waiting[0] is self._arrived:
                self._waiting.popleft()
            is_lost = self._stage is not None and not self._stage.is_consistent
            if self._unsure or is_lost or self._n_finished() - self._n_before != self._n_received:
                self._unsure = True  # until all of this is done
                self._start()
                for batch in self._waiting:
                    batch.forget_submission()
            self._pending_fallback = self._is_fallback_pending()
        self._unsubmitted = deque(
            batch for batch in self._waiting if batch.n_submitted < len(batch.items)
        )
        self._unsure = self._interrupted = False
        if self._handle is not None:
            self._submit()

    def _is_fallback_pending(self) -> bool:
        try:
            self._handle.fallback()
        except RuntimeError:
            return False
        return True


def _unwrapped(error: Any) -> Exception:
    """What torch's wrapper raises, without the frames in which it holds its own exception."""
    if isinstance(error, ExceptionWrapper):
        try:
            error.reraise()
        except Exception as raised:
            return raised.with_traceback(None)
    return error
