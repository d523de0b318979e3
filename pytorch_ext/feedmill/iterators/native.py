"""The iterator of a DataLoader on the native path.

torch's base class handles order, seeds, warnings and the profiler's range. ``pulling`` pulls
indices from the sampler. The native loader then reads, decodes and transforms each batch. The
batch's tensor is the memory of the native batch, without a copy.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from feedmill._internals import BaseDataLoaderIter
from feedmill._ops import native
from feedmill.collate.ahead import Ahead
from feedmill.collate.workers import CollateWorkers, WorkersError
from feedmill.engine.config import MAX_BATCH_SIZE, Config, allocate_pinned, torch_depth
from feedmill.engine.devices import Stage, check_not_capturing, device_of, to_device
from feedmill.engine.pool import EnginePool
from feedmill.engine.tensors import layout_of
from feedmill.iterators.bad_samples import BadSamplePolicy
from feedmill.iterators.batches import NOTHING, Batch, resolve
from feedmill.iterators.collating import (
    AHEAD_IN_PROCESSES,
    HERE,
    Collate,
    Finisher,
    collate_place,
    may_draw,
    worker_states,
)
from feedmill.iterators.generator_states import VirtualWorkers
from feedmill.iterators.global_generators import ProcessGenerators
from feedmill.iterators.own_samples import make_samples
from feedmill.iterators.pulling import Puller
from feedmill.iterators.receive import (
    Receiver,
    as_torch_raises,
    check_process,
    timed_out,
    unwrapped,
)
from feedmill.iterators.verify import Verifier
from feedmill.planner import seeding
from feedmill.planner.drawn_lookups import fail_with
from feedmill.planner.formats import memory_format_of
from feedmill.planner.progress import Progress
from feedmill.planner.samples import Source
from feedmill.planner.sampling import largest_batch
from feedmill.planner.torchs_draws import draws_from_numpy
from feedmill.profiling.log.ranges import waiting
from feedmill.remote.names import is_fsspec_name, is_name
from feedmill.remote.process import shared
from feedmill.remote.settings import fsspec_threads
from feedmill.system.callers import caller_stacklevel
from feedmill.system.locks import renew_after_fork

# How often a waiting consumer checks that the collating thread is still alive.
_WATCH_SECONDS = 5.0


class NativeDataLoaderIter(BaseDataLoaderIter):
    """Iterates once over the sampler; with persistent workers once more after each reset.

    Batches are torch's: ``[images, targets]``, with images (n, 3, height, width) of the plan's type
    and layout, and targets as torch's default_collate makes them; without automatic batching
    ``[image, target]``; with a collate_fn its result. The images belong to the caller.

    A sample's error names its dataset index and path, and is raised at its batch's turn: unwrapped
    with num_workers=0, else as torch's workers report it. The iterator then continues with the next
    batch. next() takes a lock: further threads wait.

    Args:
        loader: the feedmill.DataLoader.
        source: the samples, from ``recognise.recognise(loader).source``.
        config: of the native loader, from ``native_config()``.
        on_reset: called with the loader when persistent workers are reset. Returns the source and
            the config of the next epoch, or None if the loader has taken another iterator for it.
    """

    _source: Source
    _handle: Any = None
    _ahead: Ahead | None = None
    _workers_ahead: CollateWorkers | None = None
    _may_send = True  # no other thread may still send to the workers

    def __init__(
        self,
        loader: Any,
        source: Source,
        config: Config,
        on_reset: Callable[[Any], tuple[Source, Config] | None],
    ) -> None:
        # Saved before super().__init__() draws the base seed from it: collate workers need that
        # same seed.
        generator = torch.default_generator if loader.generator is None else loader.generator
        generator_state, global_state = generator.get_state(), torch.get_rng_state()
        with loader._feedmill.progress.lent_by(loader):
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
        renew_after_fork(self, _lock=threading.RLock)
        self._engines: EnginePool = loader._feedmill.engine_pool
        self._on_reset = on_reset
        self._virtual = self._virtual_workers(loader, source)
        progress: Progress = loader._feedmill.progress
        if progress.workers is not None and not progress.is_resumed:
            # Persistent workers go on with another epoch, for which torch draws no base seed.
            torch.set_rng_state(global_state)
            generator.set_state(generator_state)
        draws = self._virtual is not None and self._virtual.calls_collate
        self._collate = Collate(loader, self, source=source, as_worker=draws)
        self._place = HERE if self._virtual is not None else collate_place(loader, source)
        # A copy of the loader, with blocks of its own, may begin the next epoch of this iterator.
        self._shared_blocks = loader._feedmill.shared_blocks
        if self._virtual is None and self._place != AHEAD_IN_PROCESSES and seeding.prints(loader):
            worker_states(loader, int(self._base_seed))
        if self._place == AHEAD_IN_PROCESSES:
            self._workers_ahead = CollateWorkers(
                loader, source, generator_state, self._pin_memory, self._shared_blocks
            )
        self._n_epochs = 0
        # As in torch's iterator, later changes of the loader's attributes have no effect.
        self._torch_depth = torch_depth(loader)
        if self._num_workers > 0:
            # Empty: scripts, and torch's own tests, join the processes in this list of torch's.
            self._workers: list[Any] = []
            super()._reset(loader, first_iter=True)  # as torch: a second iter() of the sampler
        self._index_sampler = loader._feedmill.progress.index_sampler
        self._begin(loader, source, config)

    def _virtual_workers(self, loader: Any, source: Source) -> VirtualWorkers | None:
        """With rng="torch", the generators of torch's workers, or of this process without workers,
        if an epoch needs them."""
        if not loader._feedmill_draws_as_torch():
            return None
        is_random = bool(getattr(source.plan, "is_random", False))
        if self._num_workers == 0:
            if not is_random:
                return None
            plan = source.native_plan
            # What a dataset draws that catches errors is known only once it has caught one.
            return ProcessGenerators(plan.retries or draws_from_numpy(plan))
        loaded = loader._feedmill.progress.workers
        if loaded is not None:
            self._base_seed = loaded.base_seed
        collates = may_draw(loader, source)
        # Persistent workers keep them for an epoch with another transform.
        if not is_random and (collates or not loader.persistent_workers):
            return None
        base_seed = int(self._base_seed)
        states = worker_states(loader, base_seed) if loaded is None else loaded.states
        return VirtualWorkers(states, collates, base_seed)

    def _why_not_as_torch(self, loader: Any, source: Source, is_random: bool) -> str:
        """Persistent workers: why an epoch can't have the batches of torch's workers, which keep
        the dataset as it was at the first epoch; "" if it can, or need not."""
        is_of_torch = loader._feedmill_draws_as_torch()
        if is_random and is_of_torch is not (self._virtual is not None):
            return "rng=, or whether the transform is random, has changed since the first epoch"
        if self._virtual is not None and self._n_epochs and not source.is_like(self._source, True):
            return (
                "the dataset or its transform has changed since the first epoch, which torch's "
                "persistent workers would not notice"
            )
        return ""

    def _reset(self, loader: Any, first_iter: bool = False) -> None:
        """Persistent workers: begins the next epoch, with dataset and transforms as of now."""
        with self._lock:
            if self._virtual is not None and loader._feedmill.position.loaded is not None:
                self._give_back()  # another iterator begins with the loaded generators
                self._forget_rest()
            self._drain()
            following = self._on_reset(loader)
            self._give_back()
            if following is None:  # another iterator has taken over
                self._forget_rest()
                return
            with loader._feedmill.progress.begins_in(self):
                super()._reset(loader, first_iter)
            self._n_epochs += 1
            self._begin(loader, *following)

    def _forget_rest(self) -> None:
        self._waiting.clear()
        self._puller.is_exhausted = True

    def _begin(self, loader: Any, source: Source, config: Config) -> None:
        self._collate.check(source)
        is_random = bool(getattr(source.plan, "is_random", False))
        if why := self._why_not_as_torch(loader, source, is_random):
            if loader._feedmill_options().rng != "auto":
                raise RuntimeError(f"{why}; this needs a new DataLoader")
            warnings.warn(
                f"{why}: batches differ from those of torch.utils.data.DataLoader from here on",
                UserWarning, stacklevel=caller_stacklevel(),
            )
        # The generators that this epoch draws from, if it draws as torch's workers.
        self._streams = self._virtual if is_random else None
        if self._virtual is not None:
            self._virtual.begin_epoch()
        self._source = source
        self._plan = source.plan
        options = loader._feedmill_options()
        self._collate.memory_format = memory_format_of(source.native_plan)
        state = loader._feedmill
        self._progress: Progress = state.progress
        self._progress.virtual = self._streams if self._num_workers > 0 else None
        self._n_before = self._progress.n_batches
        self._base_seed, self._n_epochs = self._progress.begin(self._base_seed, self._n_epochs)
        epoch = state.epochs.begin(loader, source, self._base_seed, self._n_epochs)
        self._key, self._epoch_word = epoch.key, epoch.word
        self._counters = state.python_counters
        self._recorder = state.recorder
        self._gpu = self._engines.gpu
        self._gpu.begin_epoch()
        self._mark: Any = None
        self._device = device_of(loader)
        self._stage: Stage | None = None
        self._iter_began_ns = state.iter_began_ns
        self._iter_ns = 0
        self._verifier: Verifier | None = None
        if options.native == "verify":
            self._verifier = Verifier(state, source, epoch)
        self._waiting: deque[Batch] = deque()
        self._arrived: Batch | None = None  # complete, not yet returned to the caller
        self._receiver: Receiver | None = None
        self._puller = Puller(
            self._sampler_iter,
            self._index_sampler,
            config.prefetch_batches,
            self._waiting,
            self._progress,
        )
        self._interrupted = False
        self._is_starting = False  # the native loader's epoch is being started
        self._collate.on_device = config.device is not None
        self._config = replace(config, alloc=self._allocator(loader))
        self._may_split = options.native == "auto"
        self._may_differ = options.rng == "auto"
        self._bad_samples = BadSamplePolicy(
            loader, source, epoch.key, epoch.word, self._progress.n_bad
        )
        self._sample_errors = state.sample_errors
        self._size_known = largest_batch(self._index_sampler, self._auto_collation) is not None
        if self._workers_ahead is not None:
            self._workers_ahead.begin_epoch()
        # An epoch that goes on at a saved position knows after its first pull how often each index
        # was used before.
        # So does one whose paths may be names of remote objects.
        self._knows_names = None not in (source.names_remote, source.names_fsspec)
        if self._size_known and not self._progress.is_resumed and self._knows_names:
            self._open()
        if self._num_workers > 0:
            self._pull(self._torch_depth, self._torch_depth)

    def _allocator(self, loader: Any) -> Any:
        """The allocator for the native loader's batches; None: its own memory.

        A collate_fn's result is pinned afterwards, as in torch. Batches that the native loader
        copies to a device itself come from its own pinned memory.
        """
        if self._collate.on_device:
            return None
        if self._place == AHEAD_IN_PROCESSES:
            return self._shared_blocks.allocate
        if self._pin_memory or (self._device is not None and self._collate.is_default):
            return allocate_pinned if self._collate.stacks or self._place != HERE else None
        # Batches collated ahead stay alive beyond the native loader's own prefetched batches.
        return None if self._place == HERE else loader._feedmill.blocks.allocate

    # ---- the native loader -----------------------------------------------------------------------

    def _open(self) -> None:
        self._is_starting = True
        self._config, self._handle = self._acquire()
        self._iter_ns = time.monotonic_ns() - self._iter_began_ns
        self._start()
        self._is_starting = False

    def _acquire(self) -> tuple[Config, Any]:
        config = self._config
        while True:
            try:
                return self._engines.acquire(config, at_least=not self._size_known)
            except native.BudgetError:
                # A batch size that became known only after the first pull can't lead to torch's
                # path any more. Split the batches into parts that fit instead.
                if self._size_known or not self._may_split or config.batch_size == 1:
                    raise
            config = replace(config, batch_size=config.batch_size // 2)

    def _start(self) -> None:
        """Starts the native loader's epoch; drops undelivered batches of an earlier one."""
        is_ahead = self._place != HERE
        used = self._progress.uses()
        if self._streams is None:
            self._handle.start(self._key, self._epoch_word, is_ahead, used)
        else:
            start = partial(self._handle.start, self._key, self._epoch_word, is_ahead, used)
            self._streams.start(self._handle, start)
        self._drop_stage()
        if self._config.device is not None and self._device is not None:
            self._stage = Stage(self._handle, self._device)
        if self._verifier is not None:
            self._verifier.forget_uses(used)
        if not is_ahead:
            self._receiver = self._make_receiver()
            return
        if self._workers_ahead is not None:
            layout = layout_of(self._source.plan, self._handle.out_shape)
            self._workers_ahead.set_layout(layout)
        finisher = Finisher(
            self._collate, self._workers_ahead, self._source, self._num_workers, self._handle
        )
        engines, handle = self._engines, self._handle
        self._ahead = Ahead(
            self._make_receiver, finisher.finish, lambda: engines.release(handle)
        )

    def _make_receiver(self, on_wake: Callable[[], None] | None = None) -> Receiver:
        return Receiver(
            self._handle,
            self._config,
            self._source,
            key=self._key,
            epoch_word=self._epoch_word,
            num_workers=self._num_workers,
            timeout=self._timeout,
            bad_samples=self._bad_samples,
            sample_errors=self._sample_errors,
            verifier=self._verifier,
            stage=self._stage,
            gpu=self._gpu,
            on_wake=on_wake,
            virtual=self._streams,
            make_samples=partial(make_samples, self._dataset, self._auto_collation),
        )

    def _give_back(self) -> None:
        handle, self._handle = self._handle, None
        ahead, self._ahead = self._ahead, None
        self._receiver = None
        if handle is not None and handle.pid != os.getpid():
            return  # in the child of a fork: the native loader and its threads are the parent's
        if ahead is not None:
            self._may_send = ahead.stop()  # its thread releases the native loader
        elif handle is not None:
            self._engines.release(handle)
        # The workers may wait for batches, even if the native loader was never opened.
        if self._workers_ahead is not None and self._may_send:
            self._workers_ahead.end_epoch()
        if handle is not None:
            self._drop_stage()

    def _drop_stage(self) -> None:
        """Releases the output buffers on the device. The native loader's epoch must have ended:
        until then copies may write to that memory."""
        stage, self._stage = self._stage, None
        if stage is not None:
            stage.forget()

    def __del__(self) -> None:
        try:
            self._give_back()
            if self._workers_ahead is not None:
                self._workers_ahead.close()
        except Exception:  # the interpreter is shutting down
            pass

    # ---- pulling and submitting ------------------------------------------------------------------

    def _pull(self, n_due: int, n_pulls: int) -> None:
        """See Puller.pull()."""
        self._puller.pull(n_due, n_pulls, self._batch_of, self._submit)
        self._open_if_pulled()

    def _open_if_pulled(self) -> None:
        """Opens the native loader if that had to wait for the first batch, which may tell the batch
        size, or that paths are names of remote objects."""
        if self._handle is None and self._waiting:
            if not self._knows_names:
                self._config = _with_readers(self._config, self._waiting)
            if not self._size_known:
                longest = max(len(batch.items) for batch in self._waiting)
                self._config = replace(
                    self._config, batch_size=min(max(longest, 1), MAX_BATCH_SIZE)
                )
            self._open()
            for batch in self._waiting:
                self._submit(batch)

    def _batch_of(self, number: int, indices: Any) -> Batch:
        batch = Batch(number, self._n_before)
        if self._streams is not None:
            batch.indices = indices = list(indices) if isinstance(indices, Iterator) else indices
        self._resolve(batch, indices)
        return batch

    def _resolve(self, batch: Batch, indices: Any) -> None:
        lookup = partial(
            resolve, batch, self._source, self._dataset, indices, self._auto_collation
        )
        if self._streams is None or not self._source.native_plan.draws_files:
            lookup()
            return
        with self._streams.looking_up(batch.turn) as before:
            lookup()
        if batch.fail is not None:
            batch.fail = partial(fail_with, before, batch.items, batch.fail)

    def _look_up_again(self, virtual: VirtualWorkers) -> None:
        """After a batch failed, behind which its worker goes on with other random numbers than were
        taken for the batches that wait."""
        virtual.forget_lookups()
        for batch in self._waiting:
            batch.fail = None
            self._resolve(batch, batch.indices)

    def _submit(self, batch: Batch) -> None:
        """Hands a batch to the receiver, here or on the collating thread, for submission. Before
        the native loader is open, _open_if_pulled() will do it."""
        if self._handle is None:
            return
        if self._ahead is not None:
            self._ahead.put(batch)
        elif self._receiver is not None:
            self._receiver.unsubmitted.append(batch)
            self._receiver.submit()

    # ---- receiving and returning -----------------------------------------------------------------

    def _next_data(self) -> Any:
        with self._lock:
            try:
                check_not_capturing(self._device)
                self._mark = self._gpu.request(time.monotonic_ns(), self._device)
                self._begin_step()
                if self._interrupted:
                    self._recover()
                data = self._next_batch()
                if self._device is not None:
                    data = self._on_device(data, self._device)
                return_ns = time.monotonic_ns()
                assert self._arrived is not None  # set by _next_batch()
                self._recorder.tick(return_ns, len(self._arrived.items))
                self._gpu.returned(self._mark, return_ns)
                self._handle.step_return()
                self._note_delivered()
                return data
            except Exception:
                self._note_delivered()
                raise
            except BaseException:  # Ctrl-C, between any two bytecodes
                if self._streams is not None and self._streams.interrupted():
                    self._is_starting = True
                self._interrupted = True
                raise

    def _note_delivered(self) -> None:
        """Called when a batch is returned, or an error raised, which may be that of a batch."""
        batch = self._arrived
        if batch is not None:
            self._progress.delivered(batch.number, batch.n_bad)
            # Breaks a reference cycle: the traceback of the error holds the frame of _next_batch(),
            # and through it the iterator with its threads.
            batch.error = None
        self._arrived = None

    def _begin_step(self) -> None:
        if self._handle is not None:
            self._handle.step_request()
        if self._receiver is not None:
            self._receiver.mark = self._mark

    def _on_device(self, data: Any, device: torch.device) -> Any:
        """Moves a batch to the device, as far as it is not there yet."""
        if self._stage is None:
            self._gpu.ready(self._mark)
        data = to_device(data, device)
        if self._stage is not None:
            # The GPU may be out of memory now; the next request tries again.
            with contextlib.suppress(RuntimeError):
                self._stage.add_buffers()
        return data

    def _next_batch(self) -> Any:
        if self._arrived is None:
            self._arrive()
        batch = self._arrived
        assert batch is not None
        if batch.error is None:
            if batch.data is not NOTHING:
                return batch.data
            try:
                return self._collated(batch)
            except Exception as error:
                batch.error = as_torch_raises(error, batch.turn, self._num_workers)
        # Kept until _note_delivered(): an interrupt may come before the error is raised.
        raise unwrapped(batch.error)

    def _collated(self, batch: Batch) -> Any:
        virtual = self._streams
        if virtual is None or not virtual.calls_collate:
            return self._collate.batch(batch, self._source)
        worker = self._collate.worker(batch.turn)
        worker.go_on(virtual.of_batch(batch.turn))
        try:
            data = self._collate.batch(batch, self._source)
        except Exception:
            self._note_collated(virtual, batch, worker.states)
            raise
        self._note_collated(virtual, batch, worker.states)
        return data

    def _note_collated(self, virtual: VirtualWorkers, batch: Batch, states: Any) -> None:
        virtual.note(batch.turn, states)
        if not self._is_starting:  # it is given all workers' then
            virtual.give(self._handle, batch.turn)

    def _collate_own(self, batch: Batch) -> None:
        """Collates a batch that the dataset itself has made, before the native loader starts again:
        its worker draws for its next batch behind the collate_fn."""
        if batch.own is None or batch.error is not None:
            return
        try:
            batch.data = self._collated(batch)
        except Exception as error:
            batch.error = as_torch_raises(error, batch.turn, self._num_workers)
        batch.own = None

    def _goes_on_anyway(self) -> bool:
        """With rng="auto", when it is not known what torch's workers would draw next: says so once,
        and lets the epoch go on with the generators as they were before the batch."""
        if not self._may_differ:
            return False
        assert self._virtual is not None
        warnings.warn(
            f"{self._virtual.lost}, so that it is not known which random numbers torch would draw "
            "next: batches differ from those of torch.utils.data.DataLoader from here on",
            UserWarning, stacklevel=caller_stacklevel(),
        )
        self._virtual.lost = ""
        return True

    def _arrive(self) -> None:
        """Receives the next batch and moves it from _waiting to _arrived; refills the queue."""
        if self._virtual is not None and self._virtual.lost and not self._goes_on_anyway():
            raise RuntimeError(
                f"{self._virtual.lost}, so that it is not known which random numbers "
                "torch would draw next; begin another epoch, of a new DataLoader if the "
                "workers are persistent"
            )
        if self._num_workers == 0:
            was_open = self._handle is not None
            self._puller.pull_requested(self._batch_of, self._submit)
            self._open_if_pulled()
            if not was_open and self._handle is not None:
                self._begin_step()
            if self._streams is not None and self._waiting:
                self._streams.request(self._handle, self._waiting[0].turn)
        if not self._waiting:
            self._end()
        self._receive(self._waiting[0])  # if this raises, the batch stays for the next call
        if self._streams is not None:
            self._note_streams(self._streams, self._waiting[0])
            self._collate_own(self._waiting[0])
        self._arrived = self._waiting[0]
        self._waiting.popleft()
        if self._arrived.error is not None:
            self._arrived_with_error(self._arrived)
        if self._is_starting:  # see _note_streams()
            self._restart()
        if self._arrived.number == 0 and self._arrived.error is None:
            self._counters.iter_ns += self._iter_ns
        if self._receiver is not None:
            self._receiver.submit()
        # torch's workers get another batch when one has arrived; without workers torch pulls at
        # the next request.
        if self._num_workers > 0:
            self._pull(self._torch_depth, 1)
        else:
            self._pull(0, 0)

    def _arrived_with_error(self, batch: Batch) -> None:
        """Called when a batch has failed, before the next one is received. May set _is_starting."""

    def _note_streams(self, virtual: VirtualWorkers, batch: Batch) -> None:
        """With rng="torch": notes the generators of a batch's worker behind its samples."""
        assert self._receiver is not None
        failed = self._receiver.failed_streams
        if failed is None and batch.fail is not None and self._source.native_plan.draws_files:
            virtual.lost = "the lookup of a sample failed, for which random numbers were drawn"
            failed = b""
        if failed is None:
            virtual.note_streams(batch.turn, virtual.native_streams(self._handle, batch.turn))
            if batch.error is not None:  # the collate_fn is not called
                virtual.give(self._handle, batch.turn)
            return
        if failed:
            virtual.note_streams(batch.turn, failed)
        else:
            virtual.unknown = virtual.lost
        self._is_starting = True  # before the batch leaves _waiting, as a Ctrl-C may come

    def _restart(self) -> None:
        """Starts the native loader's epoch again, and submits all undelivered batches."""
        self._is_starting = True  # until all of it is done
        try:
            if self._streams is not None and self._source.native_plan.draws_files:
                self._look_up_again(self._streams)
            self._start()
            for batch in self._waiting:
                batch.forget_submission()
            assert self._receiver is not None
            self._receiver.recover(self._waiting)
        except Exception as error:
            if self._streams is not None:
                self._streams.lost = f"the native loader could not start again ({error})"
            raise
        self._is_starting = False

    def _drain(self) -> None:
        """With rng="torch" and persistent workers, when an epoch was left early: receives the
        batches for which torch's workers have indices by now, as these draw for all of them."""
        if self._streams is None or self._handle is None or self._streams.lost:
            return
        if self._interrupted:
            self._recover()
        if self._arrived is not None:
            self._note_delivered()
        n_sent = self._progress.n_batches + self._torch_depth
        self._streams.leave(self._progress.n_batches)
        while self._waiting and self._waiting[0].turn < n_sent and not self._streams.lost:
            self._receive(self._waiting[0])
            self._note_streams(self._streams, self._waiting[0])
            batch = self._waiting.popleft()
            if self._is_starting:
                self._collate_own(batch)
                self._restart()
            elif batch.error is None and self._streams.calls_collate:
                with contextlib.suppress(Exception):
                    self._collated(batch)
            assert self._receiver is not None
            self._receiver.submit()

    def _receive(self, batch: Batch) -> None:
        """Waits until a batch is complete or has failed."""
        if self._receiver is not None:
            self._receiver.receive(batch)
            return
        check_process(self._handle.pid)  # a forked child has no collating thread
        request_ns = time.monotonic_ns()
        n_ready = sum(one.done.is_set() for one in self._waiting)
        if self._workers_ahead is not None:
            n_ready = self._receive_from_workers(self._workers_ahead, batch, request_ns)
        else:
            self._await(batch)
        if batch.last_part >= 0:
            self._handle.step_ready(batch.last_part, batch.ready_ns, n_ready)

    def _receive_from_workers(
        self, workers: CollateWorkers, batch: Batch, request_ns: int
    ) -> int:
        """Waits for a batch from the collate workers.

        Returns the number of batches that were ready at the request: 1 for this one, else 0; the
        state of the other batches is not known here.
        """
        try:
            collated = waiting(workers.receive, batch.number)
        except WorkersError as error:
            raise RuntimeError(*error.args) from None
        except Exception as error:
            batch.error, batch.ready_ns = error.with_traceback(None), time.monotonic_ns()
            return 0
        batch.ready_ns = collated.end_ns
        if batch.error is None:
            batch.data = collated.data
            self._counters.collate_ahead_ns += collated.end_ns - collated.begin_ns
        return int(collated.end_ns <= request_ns)

    def _await(self, batch: Batch) -> None:
        """Waits until the collating thread has finished a batch."""
        timeout = self._timeout if self._timeout > 0 else None
        while not batch.done.is_set():
            n_before = self._handle.stats()["native_samples"] if timeout else 0
            if waiting(batch.done.wait, timeout or _WATCH_SECONDS):
                return
            if self._ahead is None or not self._ahead.is_alive:
                raise RuntimeError("feedmill's collating thread has ended; please report this")
            # The clock restarts when a batch's worth of samples is finished: see Receiver._wait().
            if timeout and self._handle.stats()["native_samples"] - n_before < (
                self._config.batch_size
            ):
                raise timed_out(self._timeout)

    def _end(self) -> None:
        error = self._puller.take_error()
        if self._handle is not None:
            self._give_back()
            self._recorder.end_epoch()
        if error is not None:
            raise error
        if not self._persistent_workers:
            self._progress.virtual = None
        self._progress.ended()
        raise StopIteration

    # ---- after Ctrl-C ----------------------------------------------------------------------------

    def _recover(self) -> None:
        """Restores a consistent state of the native loader and the waiting batches.

        An interrupt during a wait changed nothing. If one came between a native call and the
        bookkeeping of its result, the native epoch is restarted, and all undelivered batches are
        submitted again.
        """
        self._puller.note_pulled()
        if self._arrived is not None and self._waiting and self._waiting[0] is self._arrived:
            self._waiting.popleft()
        if self._ahead is not None:
            for batch in self._waiting:
                self._ahead.put(batch)  # ignores batches that it has already
        elif self._handle is not None:
            if self._is_starting or self._receiver is None or self._receiver.is_lost:
                self._restart()
            else:
                self._receiver.recover(self._waiting)
        self._is_starting = self._interrupted = False


def _with_readers(config: Config, batches: Iterable[Batch]) -> Config:
    """The config with what reads the names of remote objects in pulled batches."""
    paths = [item.path for batch in batches for item in batch.items]
    if config.remote is None and any(map(is_name, paths)):
        config = replace(config, remote=shared())
    if not config.fsspec_threads and any(map(is_fsspec_name, paths)):
        config = replace(config, fsspec_threads=fsspec_threads())
    return config
