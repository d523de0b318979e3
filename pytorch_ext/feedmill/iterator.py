"""The iterator of a DataLoader on the native path.

Order, seeds, warnings and the profiler's range are torch's: the base class does them. Indices are
pulled when torch would pull them, or earlier where nobody can tell (``sampling``); each batch is
then read, decoded and transformed natively, and its tensor is the native batch's memory.
"""

from __future__ import annotations

import itertools
import operator
import os
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch._utils import ExceptionWrapper
from torch.utils.data._utils import pin_memory as torch_pin_memory
from torch.utils.data._utils.collate import default_collate, default_convert
from torch.utils.data.dataloader import _BaseDataLoaderIter

from feedmill._ops import native
from feedmill.handles import Config, Handles, is_budget_refusal
from feedmill.recognise import Plan
from feedmill.replay import Replay, check_regular, name_sample, write_sample
from feedmill.sampling import largest_batch, look_ahead_rule, never

# Batches ahead with num_workers=0, where torch has no number for it.
_AHEAD_IN_PROCESS = 4
# Samples ahead at least, however small the batches: so many reads keep far storage busy.
_AHEAD_SAMPLES = 64
_MAX_BATCH_SIZE = 65536
_MAX_PATH_BYTES = 4095
_DTYPES = {"uint8": torch.uint8, "float32": torch.float32}


def allocate_pinned(n_bytes: int) -> tuple[int, torch.Tensor]:
    """Memory of a batch slot for pin_memory=True: (address, the tensor that owns it).

    It comes from torch's caching host allocator, which alone keeps memory that an asynchronous
    copy still reads from being used again.
    """
    owner = torch.empty(n_bytes, dtype=torch.uint8, pin_memory=True)
    return owner.data_ptr(), owner


def native_config(loader: Any, plan: Plan) -> Config:
    """What an iterator over ``loader`` opens its native loader with. Where batches may have any
    size, batch_size is 1 until the first ones were pulled."""
    size = largest_batch(loader._index_sampler, loader._auto_collation)
    return Config(
        plan=plan,
        n_samples=len(loader.dataset.samples),
        batch_size=min(size or 1, _MAX_BATCH_SIZE),
        n_threads=loader._n_threads(),
        prefetch_batches=_depth(loader, size),
        memory_budget=loader.memory_budget,
        reader=loader.reader,
    )


def _torch_depth(loader: Any) -> int:
    """Batches that torch's workers would have on their way."""
    return loader.prefetch_factor * loader.num_workers if loader.num_workers > 0 else 1


def _depth(loader: Any, size: int | None) -> int:
    """Batches on their way: as torch's, or more where nobody can tell and batches are tiny."""
    depth = _torch_depth(loader)
    if look_ahead_rule(loader._index_sampler) is never:
        return depth
    if loader.num_workers == 0:
        depth = _AHEAD_IN_PROCESS
    return depth if size is None else max(depth, -(-_AHEAD_SAMPLES // size))


class _Batch:
    """A batch on its way: pulled from the sampler, not yet delivered."""

    __slots__ = (
        "error", "fail", "indices", "n_parts", "n_submitted", "number", "parts", "paths", "targets"
    )

    def __init__(self, number: int) -> None:
        self.number = number
        # The samples before the first index that the dataset does not take.
        self.indices: list[int] = []
        self.paths: list[Any] = []
        self.targets: list[Any] = []
        # Raises what the dataset or torch raises behind those samples; None: nothing. It must not
        # refer to the iterator, which would then wait for the garbage collector.
        self.fail: Callable[[], Any] | None = None
        # What the caller gets in place of the batch.
        self.error: Any = None
        self.forget_submission()

    def forget_submission(self) -> None:
        # A batch larger than the native loader's goes there in several parts.
        self.n_submitted = 0
        self.n_parts = 0
        self.parts: list[torch.Tensor] = []


class NativeDataLoaderIter(_BaseDataLoaderIter):
    """Iterates once over the sampler; with persistent workers once more after each reset.

    A batch is what torch delivers: ``[images, targets]``, images (n, 3, height, width) of uint8 or
    float32, targets as torch's default_collate makes them; without automatic batching
    ``[image, target]``. The images belong to the caller for as long as he holds them.

    Errors: those of a sample carry its dataset index and path and come at their batch's turn, raw
    with num_workers=0, else as torch's workers report them; the iterator goes on with the batch
    after. One thread at a time; others wait.

    Args:
        loader: the feedmill.DataLoader.
        plan: as ``recognise.recognise(loader)`` gives it.
    """

    _handle: Any = None

    def __init__(self, loader: Any, plan: Plan) -> None:
        super().__init__(loader)
        if self._num_workers == 0 and self._timeout != 0:
            raise AssertionError("_SingleProcessDataLoaderIter requires timeout == 0")
        if self._num_workers > 0 and loader.prefetch_factor <= 0:
            raise AssertionError(
                "prefetch_factor must be greater than 0 for MultiProcessingDataLoaderIter"
            )
        self._lock = threading.RLock()
        self._handles: Handles = loader._handles
        self._n_epochs = 0
        if self._num_workers > 0:
            super()._reset(loader, first_iter=True)  # torch's workers iterate the sampler twice
        self._begin(loader, plan)

    def _reset(self, loader: Any, first_iter: bool = False) -> None:
        """Persistent workers: the next epoch, with the dataset and transforms as they are now."""
        plan = loader._plan_or_reasons()
        with self._lock:
            self._give_back()
            if isinstance(plan, list):
                # This one has ended. DataLoader.__iter__() returns the attribute after the reset.
                self._waiting.clear()
                self._exhausted = True
                loader._iterator = loader._torch_iterator(plan)
                return
            super()._reset(loader, first_iter)
            self._n_epochs += 1
            self._begin(loader, plan)

    def _begin(self, loader: Any, plan: Plan) -> None:
        dataset = self._dataset
        self._plan = plan
        self._samples = dataset.samples
        self._n_samples = len(dataset.samples)
        self._replay = Replay(dataset.loader, dataset.transform.transforms)
        self._key, self._epoch_word = loader._begin_epoch(plan, self._base_seed, self._n_epochs)
        self._waiting: deque[_Batch] = deque()
        self._unsubmitted: deque[_Batch] = deque()  # the part of it that did not fit in yet
        self._n_pulled = 0
        self._exhausted = False
        self._pull_error: Exception | None = None
        self._pending_fallback = False
        self._interrupted = False
        # Set around native calls whose outcome would be unknown if a Ctrl-C came right after them.
        self._unsure = False
        # (number, indices) of a batch from when the sampler gave it until it is in line. Both ends
        # are single steps of the interpreter, so that no Ctrl-C comes in between.
        self._numbered_sampler = enumerate(self._sampler_iter)
        self._pulled: list[tuple[int, Any]] = []
        self._may_pull_ahead = look_ahead_rule(self._index_sampler)
        self._torch_depth, config = _torch_depth(loader), native_config(loader, plan)
        self._depth = config.prefetch_batches
        self._config = replace(config, alloc=allocate_pinned if self._pin_memory else None)
        self._may_split = loader.native == "auto"
        self._size_known = largest_batch(self._index_sampler, self._auto_collation) is not None
        if self._size_known:
            self._open()
        if self._num_workers > 0:
            self._pull_and_submit(self._torch_depth)

    # ---- the native loader -----------------------------------------------------------------------

    def _open(self) -> None:
        self._unsure = True
        self._config, self._handle = self._acquire()
        self._start()
        self._unsure = False

    def _acquire(self) -> tuple[Config, Any]:
        config = self._config
        while True:
            try:
                return self._handles.acquire(config, at_least=not self._size_known)
            except ValueError as error:
                # The size is known only now, too late for torch's path: then in parts.
                if self._size_known or not self._may_split or config.batch_size == 1:
                    raise
                if not is_budget_refusal(error):
                    raise
            config = replace(config, batch_size=config.batch_size // 2)

    def _start(self) -> None:
        self._handle.start(self._key, self._epoch_word)
        self._n_received = 0
        self._n_before = self._n_finished()

    def _n_finished(self) -> int:
        counters = self._handle.stats()
        return counters["batches"] + counters["errors"]

    def _give_back(self) -> None:
        handle, self._handle = self._handle, None
        if handle is not None:
            self._handles.release(handle)

    def __del__(self) -> None:
        try:
            self._give_back()
        except Exception:  # the interpreter is going down: nothing is left to do it with
            pass

    # ---- batches going in ------------------------------------------------------------------------

    def _pull_and_submit(self, n_due: int) -> None:
        """Pulls indices until as many batches are on their way as there should be.

        Args:
            n_due: so many would torch have on their way now; its sampler is pulled for them
                whatever that changes, and an error of it is raised.
        """
        try:
            while not self._exhausted and self._wants_more(n_due):
                if not self._pulled:
                    self._pulled.extend(itertools.islice(self._numbered_sampler, 1))
                if not self._pulled:
                    self._exhausted = True
                    break
                batch = self._resolve(*self._pulled[0])
                self._unsubmitted.append(batch)
                self._waiting.append(batch)
                self._note_pulled()
                if self._handle is not None:
                    self._submit()
        except Exception as error:
            if len(self._waiting) < n_due:
                raise
            # Ahead of torch: it comes when the batches before it are delivered.
            self._pull_error = error
            self._exhausted = True
        if self._handle is None and self._waiting:
            longest = max(len(batch.indices) for batch in self._waiting)
            self._config = replace(
                self._config, batch_size=min(max(longest, 1), _MAX_BATCH_SIZE)
            )
            self._open()
            self._submit()

    def _note_pulled(self) -> None:
        """The batch that was pulled is in line, if it is."""
        if self._pulled and self._waiting and self._waiting[-1].number == self._pulled[0][0]:
            self._n_pulled = self._waiting[-1].number + 1
            self._pulled.clear()

    def _wants_more(self, n_due: int) -> bool:
        n_waiting = len(self._waiting)
        if n_waiting < n_due:
            return True
        if n_waiting >= self._depth:
            return False
        return self._n_pulled > 0 and self._may_pull_ahead(self._n_pulled)

    def _resolve(self, number: int, indices: Any) -> _Batch:
        """Looks the samples of a batch up, as the dataset would."""
        batch = _Batch(number)
        if not self._auto_collation:
            self._resolve_one(batch, indices)
            return batch
        try:
            each = iter(indices)
        except TypeError:
            batch.fail = partial(iter, indices)
            return batch
        for index in each:
            if not self._resolve_one(batch, index):
                return batch
        if not batch.indices:
            batch.fail = partial(default_collate, [])
        return batch

    def _resolve_one(self, batch: _Batch, index: Any) -> bool:
        try:
            path, target = self._samples[index]
            position = index if type(index) is int else operator.index(index)
            if position < 0:
                position += len(self._samples)
            why = _why_no_path(path)
            if not 0 <= position < self._n_samples:
                why = f"the dataset had {self._n_samples} samples when iter() was called"
        except Exception as error:
            path, why = None, f"the index is not usable ({error})"
        if why:
            batch.fail = partial(_refuse, self._dataset, index, path, why)
            return False
        batch.indices.append(position)
        batch.paths.append(path)
        batch.targets.append(target)
        return True

    def _submit(self) -> None:
        """Hands over what the native loader takes, oldest batch first."""
        capacity = self._config.batch_size
        while self._unsubmitted:
            batch = self._unsubmitted[0]
            while batch.n_submitted < len(batch.indices):
                part = slice(batch.n_submitted, batch.n_submitted + capacity)
                paths = batch.paths[part]
                self._unsure = True
                taken = self._handle.submit(batch.indices[part], paths)
                if taken:
                    batch.n_submitted += len(paths)
                    batch.n_parts += 1
                self._unsure = False
                if not taken:
                    return
            self._unsubmitted.popleft()

    # ---- batches coming out ----------------------------------------------------------------------

    def _next_data(self) -> Any:
        with self._lock:
            try:
                if self._handle is not None:
                    self._handle.step_request()
                if self._interrupted:
                    self._recover()
                data = self._next_batch()
                self._handle.step_return()
                return data
            except Exception:
                raise
            except BaseException:  # Ctrl-C may have come between any two steps
                self._interrupted = True
                raise

    def _next_batch(self) -> Any:
        if self._num_workers == 0:
            was_open = self._handle is not None
            self._pull_and_submit(1)
            if not was_open and self._handle is not None:
                self._handle.step_request()
        if not self._waiting:
            self._end()
        batch = self._waiting[0]
        self._receive(batch)  # where this raises, the batch stays for the following call
        self._waiting.popleft()
        self._submit()
        # torch's workers get the next batch when one has arrived; in process it comes later.
        self._pull_and_submit(self._torch_depth if self._num_workers > 0 else 0)
        if batch.error is None:
            try:
                return self._collate(batch)
            except Exception as error:
                batch.error = self._as_torch_raises(error, batch)
        error, batch.error = batch.error, None
        try:
            raise _unwrapped(error)
        finally:
            # The traceback holds this frame: with the error in it, both, and the iterator with
            # its threads, would stay until the garbage collector runs.
            del error

    def _end(self) -> None:
        error, self._pull_error = self._pull_error, None
        self._give_back()
        if error is not None:
            raise error
        raise StopIteration

    def _receive(self, batch: _Batch) -> None:
        """Waits for all parts of a batch, or for its error."""
        while True:
            if len(batch.parts) < batch.n_parts:
                part = self._receive_part(batch)
                self._n_received += 1
                batch.parts.append(part)
            elif batch.error is not None and batch.n_submitted < len(batch.indices):
                batch.n_submitted = len(batch.indices)  # the rest is not needed
            elif batch.n_submitted < len(batch.indices):
                self._submit()
            else:
                break
        if batch.error is None and batch.fail is not None:
            batch.error = self._failure_of(batch)

    def _receive_part(self, batch: _Batch) -> torch.Tensor | None:
        """The images of the native batch whose turn it is; None: batch.error is set."""
        while True:
            if not self._pending_fallback:
                outcome, payload, n = self._wait()
                if outcome == native.OK:
                    return self._as_tensor(payload, n)
                if outcome != native.FALLBACK:
                    if batch.error is None:
                        batch.error = self._as_torch_raises(RuntimeError(payload), batch)
                    return None
                self._pending_fallback = True
            if batch.error is None:
                batch.error = self._finish_sample(batch)
            self._pending_fallback = False
            self._handle.fallback_done(batch.error is None)

    def _wait(self) -> tuple[int, Any, int]:
        timeout_ns = int(self._timeout * 1e9) if self._timeout > 0 else -1
        while True:
            n_before = self._n_samples_finished() if timeout_ns > 0 else 0
            outcome = self._handle.next(timeout_ns)
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

    def _finish_sample(self, batch: _Batch) -> Any:
        """Has Pillow finish the sample that the native decoder does not take: None, or the error.

        No frame on the way here keeps the error in a variable, see _next_batch().
        """
        index, occurrence, _, _, path, out, _ = self._handle.fallback()

        def draws_of(width: int, height: int) -> Any:
            return self._handle.draws(
                self._key, self._epoch_word, index, occurrence, width, height
            )

        try:
            path = self._samples[index][0]  # as the dataset would pass it, not decoded anew
            image = self._replay(path, draws_of)
            write_sample(image, out, self._handle.out_shape, self._plan.dtype)
        except Exception as error:
            name_sample(error, index, path)
            return self._as_torch_raises(error, batch)
        return None

    def _failure_of(self, batch: _Batch) -> Any:
        """What torch raises for the index behind the batch's good samples."""
        try:
            batch.fail()
        except Exception as error:
            return self._as_torch_raises(error, batch)
        raise AssertionError("a batch that must fail did not")

    def _as_torch_raises(self, error: Exception, batch: _Batch) -> Any:
        if self._num_workers == 0:
            return error
        worker = batch.number % self._num_workers
        return ExceptionWrapper(
            (type(error), error, error.__traceback__),
            where=f"in DataLoader worker process {worker}",
        )

    # ---- tensors ---------------------------------------------------------------------------------

    def _as_tensor(self, payload: Any, n: int) -> torch.Tensor:
        if self._config.alloc is None:
            return torch.from_dlpack(payload)
        dtype = _DTYPES[self._plan.dtype]
        shape = (n, *self._handle.out_shape)
        n_bytes = n * dtype.itemsize * shape[1] * shape[2] * shape[3]
        return payload[:n_bytes].view(dtype).view(shape)

    def _collate(self, batch: _Batch) -> Any:
        parts = batch.parts
        images = parts[0] if len(parts) == 1 else torch.cat(parts)
        if not self._auto_collation:
            data = default_convert((images[0], batch.targets[0]))
        else:
            data = [images, default_collate(tuple(batch.targets))]  # as zip() gives them to torch
        if not self._pin_memory:
            return data
        # The images are pinned already, unless they were put together from parts.
        pinned = [torch_pin_memory.pin_memory(one, self._pin_memory_device) for one in data[1:]]
        if len(parts) > 1:
            data[0] = torch_pin_memory.pin_memory(data[0], self._pin_memory_device)
        return [data[0], *pinned]

    # ---- after Ctrl-C ----------------------------------------------------------------------------

    def _recover(self) -> None:
        """Brings the native loader and the list of waiting batches together again.

        An interrupt inside the wait changed nothing. One that came between a native call and the
        note of it did: then the epoch goes on from the batches that were not delivered, submitted
        anew.
        """
        self._note_pulled()
        if self._handle is not None:
            if self._unsure or self._n_finished() - self._n_before != self._n_received:
                self._unsure = True  # until all of this is done
                self._start()
                for batch in self._waiting:
                    batch.forget_submission()
            self._pending_fallback = self._is_fallback_pending()
        self._unsubmitted = deque(
            batch for batch in self._waiting if batch.n_submitted < len(batch.indices)
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


def _refuse(dataset: Any, index: Any, path: Any, why: str) -> None:
    """Raises what the dataset raises for the index, or that it is not for the native path."""
    check_regular(path)
    dataset[index]
    raise RuntimeError(
        f"dataset index {index!r}, file {path!r}, can be loaded on torch's path only: {why}; "
        "use native='off'"
    )


def _why_no_path(path: Any) -> str:
    """Why the native loader can't take a path; "" if it can."""
    if type(path) is not str:
        if not isinstance(path, (str, bytes, os.PathLike)):
            return f"a path must be str, bytes or os.PathLike, not {type(path).__name__}"
        path = os.fsdecode(path)
    if not path or "\0" in path:
        return "no file has such a path"
    try:
        n_bytes = len(path) if path.isascii() else len(os.fsencode(path))
    except UnicodeEncodeError:
        return "the path can't be encoded for the file system"
    return f"the path has more than {_MAX_PATH_BYTES} bytes" if n_bytes > _MAX_PATH_BYTES else ""
