"""The iterator of native="hybrid": decodes images natively and calls a Python transform on each, in
threads of this process.

Order, seeds, warnings and errors are torch's; its base class handles the first three. The random
numbers of the transform differ, see feedmill.DataLoader.
"""

from __future__ import annotations

import io
import os
import queue
import threading
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from feedmill._internals import BaseDataLoaderIter
from feedmill._ops import native
from feedmill.engine.config import PREFETCH_IN_PROCESS
from feedmill.engine.devices import check_not_capturing, device_of, to_device
from feedmill.iterators.batches import NOTHING, Batch, resolve
from feedmill.iterators.collating import AHEAD_IN_THREAD, Collate, collate_place
from feedmill.iterators.pillow_fallback import check_regular, name_sample
from feedmill.iterators.pulling import Puller
from feedmill.iterators.receive import as_torch_raises, check_process, timed_out, unwrapped
from feedmill.planner.formats import formatting_collate
from feedmill.planner.plan import max_image_pixels
from feedmill.planner.progress import Progress
from feedmill.planner.samples import Item, Source
from feedmill.profiling.log.ranges import waiting
from feedmill.remote.sources import is_remote, read_object
from feedmill.system.locks import renew_after_fork

# The first bytes of a JPEG, by which Pillow recognises it.
_JPEG_PREFIX = b"\xff\xd8\xff"


def load_natively(item: Item) -> Any:
    """Loads a sample's image as the dataset's own loader does, ``info`` included. JPEGs are decoded
    natively if possible, all else by the dataset's loader."""
    if not item.base_dataset.is_image:
        return item.load()
    if item.data is None and item.base_dataset.has_feedmill_item and is_remote(item.path):
        fetched = read_object(item.path)
        image = _decoded(fetched) if fetched.startswith(_JPEG_PREFIX) else None
        return item.base_dataset.load(fetched) if image is None else image
    encoded = _encoded_jpeg(item)
    image = None if encoded is None else _decoded(encoded)
    return item.load() if image is None else image


def _encoded_jpeg(item: Item) -> bytes | None:
    """The bytes of a sample's JPEG; None if it has another format or the file can't be read."""
    if item.data is not None:
        encoded = item.source()
        return encoded if encoded.startswith(_JPEG_PREFIX) else None
    check_regular(item.path)
    try:
        with open(item.path, "rb") as file:
            if file.read(len(_JPEG_PREFIX)) != _JPEG_PREFIX:
                return None
            file.seek(0)
            return file.read()
    except OSError:
        return None


def _decoded(encoded: bytes) -> Any:
    """The result of ``Image.open(...).convert("RGB")``, decoded natively. None if the native
    decoder does not support the image, or its result may differ.

    Image.open() reads only the header, and fills ``info`` from it, which getexif() and
    ImageOps.exif_transpose() read. Decoding and converting a JPEG do not change ``info``.
    """
    from PIL import Image
    from PIL.JpegImagePlugin import JpegImageFile
    from PIL.MpoImagePlugin import MpoImageFile

    decoded = native.imread(encoded, False, max_image_pixels())
    if type(decoded) is not tuple:  # the reason why it is not supported
        return None
    pixels, height, width = decoded
    try:
        header = Image.open(io.BytesIO(encoded))
    except Exception:
        return None  # the dataset's loader will raise it again
    if type(header) not in (JpegImageFile, MpoImageFile) or header.size != (width, height):
        return None
    image = Image.new("RGB", header.size, None)  # None: memory is not initialized
    image.frombytes(pixels)
    image.info = header.info
    return image


class _Threads:
    """A pool of threads that run tasks in the order of submission, until stop()."""

    def __init__(self, n_threads: int) -> None:
        self._n_threads = n_threads
        self._tasks: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        begun = threading.Barrier(n_threads + 1)
        n_intra_op = torch.get_num_threads()
        for i in range(n_threads):
            # Daemons, so that the process does not wait for a running transform at its end.
            threading.Thread(
                target=_run_tasks, args=(self._tasks, begun), name=f"feedmill-{i}", daemon=True
            ).start()
        begun.wait()
        # Setting 1 in the new threads also changed the default for future threads: restore that.
        torch.set_num_threads(n_intra_op)

    def run(self, task: Callable[[], None]) -> None:
        self._tasks.put(task)

    def stop(self) -> None:
        for _ in range(self._n_threads):
            self._tasks.put(None)


def _run_tasks(
    tasks: queue.SimpleQueue[Callable[[], None] | None], begun: threading.Barrier
) -> None:
    # One intra-op thread, as in torch's workers. get_num_threads() makes the setting permanent for
    # this thread.
    torch.set_num_threads(1)
    torch.get_num_threads()
    begun.wait()
    while (task := tasks.get()) is not None:
        task()
        del task  # it would keep its batch alive until the next task


class _Work:
    """A batch that threads are working on. The threads refer to this object, not to the iterator.

    Args:
        batch: the batch, with its items.
        wrap: wraps an exception as torch reports it.
        collate: called by a thread with the complete samples; None: the consumer collates.

    Attributes:
        is_done: set when `samples` is complete and, with ``collate``, `data` or `error` is set.
        samples: (image, target) of each sample, or None.
        data: the result of ``collate``, or NOTHING.
        error: the error to raise for the batch; of several, that of the first sample.
        dropped: the result is not needed any more.
        decode_ns, transform_ns: thread time, summed over the samples.
        number: the batch's number in the epoch.
    """

    def __init__(
        self,
        batch: Batch,
        wrap: Callable[[Exception], Any],
        collate: Callable[[list[Any]], Any] | None,
    ) -> None:
        self.batch = batch
        self.number = batch.number
        self.is_done = threading.Event()
        self.samples: list[Any] = [None] * len(batch.items)
        self.data: Any = NOTHING
        self.error: Any = None
        self.dropped = False
        self.decode_ns = self.transform_ns = 0
        self._wrap = wrap
        self._collate = collate
        self._lock = threading.Lock()
        self._first_failed = len(batch.items)
        self._n_left = len(batch.items)

    def start(self, threads: _Threads) -> None:
        for i in range(len(self.samples)):
            threads.run(partial(self._run, i))
        if not self.samples:
            threads.run(self._finish)

    def _run(self, i: int) -> None:
        """Makes one sample. The thread that makes the last one finishes the batch."""
        item, error, sample = self.batch.items[i], None, None
        begin_ns = decoded_ns = time.monotonic_ns()
        if not self.dropped:
            try:
                image = load_natively(item)
                decoded_ns = time.monotonic_ns()
                for step in item.base_dataset.steps:
                    image = step.transform(image)
                sample = (image, item.target)
            except Exception as raised:
                name_sample(raised, item)
                error = self._wrap(raised)
        end_ns = time.monotonic_ns()
        with self._lock:
            self.samples[i] = sample
            if error is not None and i < self._first_failed:
                self._first_failed, self.error = i, error
            self.decode_ns += decoded_ns - begin_ns
            self.transform_ns += end_ns - decoded_ns
            self._n_left -= 1
            is_last = not self._n_left
        if is_last:
            self._finish()

    def _finish(self) -> None:
        try:
            if self.error is None and self.batch.fail is not None:
                self.batch.fail()
            elif self.error is None and self._collate is not None and not self.dropped:
                self.data = self._collate(self.samples)
        except Exception as raised:
            self.error = self._wrap(raised)
        finally:
            self.is_done.set()


class HybridDataLoaderIter(BaseDataLoaderIter):
    """Iterates once over the sampler; with persistent workers once more after each reset.

    Args:
        loader: the feedmill.DataLoader.
        source: the samples; their transforms are called as they are.
        n_threads: number of threads that decode and transform.
        is_default: whether the collate_fn is torch's own.
        on_reset: called with the loader when persistent workers are reset. Returns the source of
            the next epoch, or None if the loader has taken another iterator for it.
    """

    def __init__(
        self,
        loader: Any,
        source: Source,
        n_threads: int,
        is_default: bool,
        on_reset: Callable[[Any], Source | None],
    ) -> None:
        self._threads: _Threads | None = None
        self._waiting: deque[_Work] = deque()
        with loader._feedmill.progress.lent_by(loader):
            super().__init__(loader)
        if self._num_workers == 0 and self._timeout != 0:
            raise AssertionError("_SingleProcessDataLoaderIter requires timeout == 0")
        self._lock = threading.RLock()
        renew_after_fork(self, _lock=threading.RLock)
        self._pid = os.getpid()
        self._on_reset = on_reset
        self._is_default = is_default
        self._threads = _Threads(n_threads)
        self._depth = PREFETCH_IN_PROCESS
        if self._num_workers > 0:
            self._depth = loader.prefetch_factor * self._num_workers
            super()._reset(loader, first_iter=True)  # as torch: a second iter() of the sampler
        self._index_sampler = loader._feedmill.progress.index_sampler
        self._begin(loader, source)

    def _begin(self, loader: Any, source: Source) -> None:
        self._source = source
        function = formatting_collate(loader, self._is_default)
        # torch's own function and a proved one are called in the threads, ahead of the batch's
        # turn.
        place = collate_place(loader)
        self._is_collated_ahead = self._is_default or place == AHEAD_IN_THREAD
        self._collate = Collate(loader, self, function, as_worker=not self._is_collated_ahead)
        self._device = device_of(loader)
        state = loader._feedmill
        self._counters, self._hybrid_counters = state.torch_counters, state.python_counters
        self._recorder = state.recorder
        self._epoch = self._counters.begin_epoch()
        self._waiting.clear()
        self._progress: Progress = state.progress
        self._progress.begin(self._base_seed, 0)
        self._puller = Puller(
            self._sampler_iter, self._index_sampler, self._depth, self._waiting, self._progress
        )
        self._decode_share = 0.0
        if self._num_workers > 0:
            self._pull(self._depth, self._depth)

    def _reset(self, loader: Any, first_iter: bool = False) -> None:
        """Persistent workers: begins the next epoch, with dataset and transforms as of now."""
        with self._lock:
            source = self._on_reset(loader)
            self._drop()
            if source is None:  # another iterator has taken over
                self._puller.is_exhausted = True
                return
            with loader._feedmill.progress.begins_in(self):
                super()._reset(loader, first_iter)
            self._begin(loader, source)

    def _drop(self) -> None:
        for work in self._waiting:
            work.dropped = True
        self._waiting.clear()

    def __del__(self) -> None:
        self._drop()
        if self._threads is not None:
            self._threads.stop()

    # ---- submitting ------------------------------------------------------------------------------

    def _work_of(self, number: int, indices: Any) -> _Work:
        batch = Batch(number)
        resolve(batch, self._source, self._dataset, indices, self._auto_collation)
        wrap = partial(as_torch_raises, number=number, num_workers=self._num_workers)
        collate = partial(self._collate.ahead, number=number)
        # Without ``collate`` the thread that asks for the batch collates.
        return _Work(batch, wrap, collate if self._is_collated_ahead else None)

    def _pull(self, n_due: int, n_pulls: int) -> None:
        """See Puller.pull()."""
        self._puller.pull(n_due, n_pulls, self._work_of, self._submit)

    def _submit(self, work: _Work) -> None:
        assert self._threads is not None  # set by the constructor
        work.start(self._threads)

    # ---- returning -------------------------------------------------------------------------------

    def __next__(self) -> Any:
        with self._lock:
            request_ns = time.monotonic_ns()
            check_not_capturing(self._device)
            gpu = self._counters.gpu
            mark = gpu.request(request_ns, self._device)
            try:
                data = waiting(super().__next__)
            except StopIteration:
                self._counters.end_epoch(request_ns)
                self._recorder.end_epoch()
                raise
            if self._device is not None:
                gpu.ready(mark)
                data = to_device(data, self._device)
            return_ns = time.monotonic_ns()
            gpu.returned(mark, return_ns)
            self._counters.add_step(self._epoch, request_ns, return_ns, self._decode_share)
            self._recorder.tick(return_ns)
            return data

    def _next_data(self) -> Any:
        check_process(self._pid)
        if self._num_workers == 0:
            self._puller.pull_requested(self._work_of, self._submit)
        if not self._waiting:
            error = self._puller.take_error()
            if error is not None:
                raise error
            self._progress.ended()
            raise StopIteration
        work = self._waiting[0]
        if not work.is_done.wait(self._timeout if self._timeout > 0 else None):
            raise timed_out(self._timeout)
        self._waiting.popleft()
        self._progress.delivered(work.number)
        self._count(work)
        # torch's workers get another batch when one has arrived; without workers torch pulls at
        # the next request.
        if self._num_workers > 0:
            self._pull(self._depth, 1)
        else:
            self._pull(0, 0)
        return self._result(work)

    def _count(self, work: _Work) -> None:
        counters = self._hybrid_counters
        counters.hybrid_batches += 1
        counters.hybrid_samples += len(work.samples)
        counters.hybrid_decode_ns += work.decode_ns
        counters.hybrid_transform_ns += work.transform_ns
        total_ns = work.decode_ns + work.transform_ns
        self._decode_share = work.decode_ns / total_ns if total_ns else 0.0

    def _result(self, work: _Work) -> Any:
        if work.error is None and work.data is NOTHING:
            try:
                return self._collate.of_samples(work.samples, number=work.batch.number)
            except Exception as raised:
                work.error = as_torch_raises(raised, work.batch.number, self._num_workers)
        error, work.error = work.error, None
        if error is None:
            return work.data
        try:
            raise unwrapped(error)
        finally:
            # Breaks a reference cycle: the traceback holds this frame, and through it the iterator
            # with its threads.
            del error
