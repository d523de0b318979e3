"""The code in worker processes that call a collate_fn. They are torch's workers, and get their
samples from the native loader of the main process."""

from __future__ import annotations

import mmap
import os
import time
import weakref
from collections.abc import Callable, Sequence
from multiprocessing import reduction
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.utils.data import get_worker_info

from feedmill._internals import pin_memory, reduce_tensor
from feedmill.collate.samples import Layout, array_of, images_of, samples_of
from feedmill.planner.formats import batch_laid_out

# How often a waiting worker checks that the main process still exists. An end of file on the
# connection does not suffice: other forked processes may hold it open.
_WATCH_SECONDS = 5.0


class Part(NamedTuple):
    """A native batch, or a part of a batch that was split.

    Attributes:
        block: number of the memory block that contains it.
        block_bytes: size of the block.
        is_new: the worker has not mapped the block yet; its descriptor follows the message.
        offset: of the first image in the block, in bytes.
        n: number of images.
    """

    block: int
    block_bytes: int
    is_new: bool
    offset: int
    n: int


class Message(NamedTuple):
    """A batch for a worker.

    Attributes:
        epoch, number: of the batch; the number counts from 0 in each epoch.
        parts: the memory of its images; None: the batch failed in the main process, and the worker
            has nothing to do.
        kept: places of the images that belong to the batch; None: all.
        targets: one per sample.
    """

    epoch: int
    number: int
    parts: tuple[Part, ...] | None
    kept: tuple[int, ...] | None
    targets: Sequence[Any]


class Collated:
    """A worker's answer.

    Attributes:
        number: of the batch in its epoch.
        data: the collate_fn's result; None for a batch that failed in the main process.
        begin_ns, end_ns: of the call, on the monotonic clock, which all processes share.
        alive: (epoch, number) of the batches whose samples the worker still refers to, because the
            result contains them or the function keeps them. The memory of all others can be reused.
    """

    def __init__(
        self, number: int, data: Any, begin_ns: int, end_ns: int, alive: list[tuple[int, int]]
    ) -> None:
        self.number = number
        self.data = data
        self.begin_ns = begin_ns
        self.end_ns = end_ns
        self.alive = alive

    def pin_memory(self, *_device: Any) -> Collated:
        """Called by torch's pinning thread."""
        data = pin_memory(self.data, None)
        return Collated(self.number, data, self.begin_ns, self.end_ns, self.alive)


class WorkerCollate:
    """The collate_fn of the worker processes: gets (epoch, number) of a batch, waits for its
    samples, and calls the user's function.

    Args:
        function: the user's collate_fn.
        auto_collation: whether it gets a list of samples; else a single sample.
        memory_format: of the DataLoader.
        connections: the workers' ends of the connections, by worker.
        others: the main process's ends, which forked workers close.
    """

    def __init__(
        self,
        function: Callable[[Any], Any],
        auto_collation: bool,
        memory_format: torch.memory_format,
        connections: list[Any],
        others: list[Any],
    ) -> None:
        self._function = function
        self._auto_collation = auto_collation
        self._memory_format = memory_format
        self._connections = connections
        self._others = others
        self._mine: Connection | None = None
        self._ended_epoch = -1
        self._layout: Layout | None = None
        self._blocks: dict[int, mmap.mmap] = {}
        self._samples = _Samples()

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_others": []}  # only forked workers inherit them

    def __call__(self, which: tuple[int, int]) -> Collated | None:
        message = self._receive(*which)
        if message is None:
            return None
        begin_ns, data = time.monotonic_ns(), None
        if message.parts is not None:
            data = batch_laid_out(self._collate(message), self._memory_format)
        end_ns = time.monotonic_ns()
        return Collated(message.number, data, begin_ns, end_ns, self._samples.alive())

    def _collate(self, message: Message) -> Any:
        if not message.parts or not len(message.targets):
            return self._function([])
        assert self._layout is not None
        images = [images_of(self._bytes_of(part), part.n, self._layout) for part in message.parts]
        batch = images[0] if len(images) == 1 else torch.cat(images)
        del images
        if message.kept is not None:
            batch = batch[list(message.kept)]
        is_copy = len(message.parts) > 1 or message.kept is not None
        if is_copy:
            batch = batch_laid_out(batch, self._memory_format)
        array = array_of(batch)
        samples = samples_of(batch, self._layout.as_image, array)
        if not is_copy:
            self._samples.note((message.epoch, message.number), array)
        del batch, array
        pairs = list(zip(samples, message.targets))
        del samples
        if self._auto_collation:
            return self._function(pairs)
        return self._function(pairs[0])

    def _bytes_of(self, part: Part) -> torch.Tensor:
        data = np.frombuffer(self._blocks[part.block], np.uint8)
        return torch.from_numpy(data)[part.offset :]

    # ---- messages --------------------------------------------------------------------------------

    def _receive(self, epoch: int, number: int) -> Message | None:
        """Waits for a batch; None: its epoch, or the main process, has ended."""
        if self._mine is None:
            self._begin()
        while self._ended_epoch < epoch:
            message = self._next_message()
            if message is None:
                return None
            if isinstance(message, Layout):
                self._layout = message
            elif isinstance(message, int):
                self._ended_epoch = message
            elif message.epoch == epoch:
                if message.number != number:
                    raise RuntimeError(
                        f"feedmill sent batch {message.number} to a collate worker that waits for "
                        f"{number}; please report this"
                    )
                assert isinstance(message, Message)
                return message
        return None

    def _begin(self) -> None:
        info = get_worker_info()
        assert info is not None
        self._mine = self._connections[info.id]
        for one in (*self._connections, *self._others):
            if one is not self._mine:
                one.close()
        self._connections, self._others = [], []
        self._parent = os.getppid()
        # Samples in results are sent as references to memory that the main process has, too.
        reduction.ForkingPickler.register(torch.Tensor, self._samples.reduce)

    def _next_message(self) -> Any:
        assert self._mine is not None
        try:
            while not self._mine.poll(_WATCH_SECONDS):
                if os.getppid() != self._parent:
                    return None
            message = self._mine.recv()
            if isinstance(message, Message):
                self._map_new(message.parts or ())
            return message
        except (EOFError, ConnectionResetError):
            return None

    def _map_new(self, parts: Sequence[Part]) -> None:
        assert self._mine is not None
        for part in parts:
            if not part.is_new:
                continue
            fd = reduction.recv_handle(self._mine)
            try:
                if any(len(one) != part.block_bytes for one in self._blocks.values()):
                    self._blocks.clear()  # the size of batches has changed
                self._blocks[part.block] = mmap.mmap(fd, part.block_bytes)
            finally:
                os.close(fd)


class _Samples:
    """The batches whose samples this process still refers to, with their addresses."""

    def __init__(self) -> None:
        # (epoch, number) of a batch -> (first address, end address, weak reference that removes
        # it).
        self._alive: dict[tuple[int, int], tuple[int, int, Any]] = {}

    def note(self, which: tuple[int, int], array: np.ndarray) -> None:
        """Adds a batch, whose samples all refer to ``array`` in its block."""
        alive = self._alive

        def forget(_array: Any) -> None:
            alive.pop(which, None)

        alive[which] = (*_bounds(array), weakref.ref(array, forget))

    def alive(self) -> list[tuple[int, int]]:
        """(epoch, number) of the batches whose samples are still referred to."""
        return list(self._alive)

    def reduce(self, tensor: torch.Tensor) -> Any:
        """Pickles a tensor for the main process; one in a batch's memory as a reference to that."""
        is_dense = type(tensor) is torch.Tensor and tensor.layout is torch.strided
        if is_dense and tensor.device.type == "cpu" and not tensor.requires_grad and tensor.numel():
            storage = tensor.untyped_storage()
            address = storage.data_ptr()
            for which, (low, high, _) in list(self._alive.items()):
                if low <= address and address + storage.nbytes() <= high:
                    return rebuild_sample, (
                        which, address - low, storage.nbytes(), tensor.dtype,
                        tensor.storage_offset(), tuple(tensor.shape), tensor.stride(),
                    )
        return reduce_tensor(tensor)


def _bounds(array: np.ndarray) -> tuple[int, int]:
    """The first and the end address of an array, which must be dense, in any order of axes."""
    low = int(array.ctypes.data)
    return low, low + array.nbytes


# ---- in the main process -------------------------------------------------------------------------

# Finds the bytes of a batch by (epoch, number); set by ``workers``. A global, as torch's iterator
# unpickles results without any context; epoch numbers are therefore unique in the process.
find_bytes: Callable[[tuple[int, int]], torch.Tensor] | None = None


def rebuild_sample(
    which: tuple[int, int],
    offset: int,
    n_bytes: int,
    dtype: torch.dtype,
    storage_offset: int,
    shape: tuple[int, ...],
    stride: tuple[int, ...],
) -> torch.Tensor:
    """Unpickles a tensor in the memory of a batch. Its storage covers only its own bytes."""
    assert find_bytes is not None
    data = find_bytes(which)[offset : offset + n_bytes]
    values = torch.from_numpy(data.numpy()).view(dtype)
    return values.as_strided(shape, stride, storage_offset)
