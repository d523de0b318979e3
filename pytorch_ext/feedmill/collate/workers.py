"""Worker processes that call a collate_fn with native samples ahead of their batch's turn."""

from __future__ import annotations

import contextlib
import itertools
import os
import weakref
from collections.abc import Callable, Iterator, Sequence
from multiprocessing import reduction
from typing import Any

import torch
from torch import multiprocessing
from torch.utils.data import DataLoader as TorchDataLoader
from torch.utils.data import Dataset, get_worker_info

from feedmill._internals import get_iterator, init_loader
from feedmill.collate import in_worker
from feedmill.collate.blocks import BlockPool
from feedmill.collate.in_worker import Collated, Message, Part, WorkerCollate
from feedmill.collate.samples import Layout, collate_function

# Epoch numbers, unique in this process over all loaders.
_epochs = itertools.count()
_all: weakref.WeakSet[CollateWorkers] = weakref.WeakSet()
# In a forked child: the parent's torch iterators, kept alive as their end would end the workers.
_of_parents: list[Any] = []


# How errors of torch's iterator itself begin. After a timeout, and after some failures of a worker,
# the iterator can be used again.
_GAVE_UP = ("DataLoader timed out", "DataLoader worker (pid", "Pin memory thread exited")


class WorkersError(RuntimeError):
    """An error of the workers, not of a batch."""


class _Numbers(Dataset[Any]):
    """A dataset whose samples are their own indices: (epoch, number) of a batch."""

    def __getitem__(self, which: Any) -> Any:
        return which


class _Sampler:
    """Yields (epoch, number) of batches without end. torch's iterator pulls as many as it
    prefetches; the workers then wait until the native loader has made these batches."""

    def __init__(self) -> None:
        self.epoch = -1

    def __iter__(self) -> Iterator[tuple[int, int]]:
        epoch = self.epoch
        return ((epoch, number) for number in itertools.count())


class _WorkerInit:
    """The worker_init_fn; sets the user's dataset in get_worker_info() before it calls theirs."""

    def __init__(self, dataset: Any, function: Callable[[int], Any] | None) -> None:
        self._dataset = dataset
        self._function = function

    def __call__(self, number: int) -> None:
        # WorkerInfo.__setattr__() raises.
        object.__setattr__(get_worker_info(), "dataset", self._dataset)
        if self._function is not None:
            self._function(number)


class _Loader(TorchDataLoader[Any]):
    """The DataLoader of the worker processes. Uses torch's original methods, which `feedmill run`
    may have replaced to count the script's loaders."""

    __init__ = init_loader
    _get_iterator = get_iterator

    def check_worker_number_rationality(self) -> None:
        """No warning: the user's DataLoader has already warned of too many workers."""


class CollateWorkers:
    """torch's worker processes, with the seeds that they have on torch's path.

    The consumer's thread calls begin_epoch(), receive(), end_epoch() and close(). Another thread
    may call send() at the same time, between begin_epoch() and end_epoch().

    Args:
        loader: the feedmill.DataLoader.
        source: the samples.
        generator_state: state of the loader's generator before torch drew the base seed from it.
        pin_memory: whether torch's pinning thread pins the batches.
        pool: the shared memory in which the native loader makes its batches.
    """

    def __init__(
        self,
        loader: Any,
        source: Any,
        generator_state: torch.Tensor,
        pin_memory: bool,
        pool: BlockPool,
    ) -> None:
        self._pool = pool
        self._n_workers: int = loader.num_workers
        self._pipes = [multiprocessing.get_context().Pipe() for _ in range(self._n_workers)]
        self._known: list[set[int]] = [set() for _ in self._pipes]
        # Batches whose memory a worker, or a result in flight, may refer to.
        self._in_flight: dict[tuple[int, int], list[torch.Tensor]] = {}
        self._offsets: dict[tuple[int, int], int] = {}
        self._sampler = _Sampler()
        self._epoch = -1
        generator = torch.Generator()
        generator.set_state(generator_state)
        feedmill_options = loader._feedmill_options()
        function = WorkerCollate(
            collate_function(loader, source),
            loader._auto_collation,
            feedmill_options.memory_format,
            [theirs for _, theirs in self._pipes],
            [ours for ours, _ in self._pipes],
        )
        seeds = loader.worker_init_fn if feedmill_options.worker_init != "ignore" else None
        options: dict[str, Any] = {"in_order": True} if hasattr(loader, "in_order") else {}
        self._loader: Any = _Loader(
            _Numbers(),
            batch_size=None,
            sampler=self._sampler,
            num_workers=self._n_workers,
            collate_fn=function,
            pin_memory=pin_memory,
            worker_init_fn=_WorkerInit(loader.dataset, seeds),
            multiprocessing_context=loader.multiprocessing_context,
            generator=generator,
            prefetch_factor=loader.prefetch_factor,
            persistent_workers=loader.persistent_workers,
            pin_memory_device=loader.pin_memory_device,
            **options,
        )
        # torch's iterators take any number that the attribute was set to.
        self._loader.timeout = loader.timeout
        self._iterator: Any = None
        self._early: Collated | None = None  # received in place of a lost batch
        self._pid = os.getpid()
        _all.add(self)
        in_worker.find_bytes = _find_bytes

    def begin_epoch(self) -> None:
        """Starts the workers or, if they are persistent, their next epoch."""
        self._early = None
        self._epoch = self._sampler.epoch = next(_epochs)
        self._iterator = iter(self._loader)
        for _, theirs in self._pipes:
            theirs.close()

    def set_layout(self, layout: Layout) -> None:
        """Sends the layout of the following batches to all workers."""
        for ours, _ in self._pipes:
            ours.send(layout)

    def send(
        self,
        number: int,
        parts: Sequence[tuple[torch.Tensor, int, int]] | None,
        kept: Sequence[int] | None,
        targets: Sequence[Any],
    ) -> None:
        """Sends a batch to its worker. Blocks while the connection's buffer is full.

        Args:
            number: of the batch in this epoch; all batches must be sent, in order.
            parts: (owner of the memory, from the pool; offset of the first image in bytes; number
                of images). None: the batch has failed, and the worker skips it.
            kept: places of the images that belong to the batch; None: all.
            targets: one per sample.
        """
        worker = number % self._n_workers
        ours, which = self._pipes[worker][0], (self._epoch, number)
        described, fds = None, []
        if parts is not None:
            self._in_flight[which] = [owner for owner, _, _ in parts]
            self._offsets[which] = parts[0][1] if parts else 0
            described = []
            for owner, offset, n in parts:
                block = self._pool.block_of(owner)
                n_bytes, is_new = len(block.memory), block.number not in self._known[worker]
                if is_new:
                    self._known[worker].add(block.number)
                    fds.append(block.fd)
                described.append(Part(block.number, n_bytes, is_new, offset, n))
        ours.send(Message(
            self._epoch, number, None if described is None else tuple(described),
            None if kept is None else tuple(kept), targets,
        ))
        for fd in fds:
            reduction.send_handle(ours, fd, None)

    def receive(self, number: int) -> Collated:
        """Waits for a collated batch; its data is None if it was sent as failed.

        Raises:
            WorkersError: torch's iterator timed out or failed; the batch is not consumed.
            Exception: the collate_fn's error, as torch's workers report it.
        """
        collated, self._early = self._early, None
        if collated is None:
            try:
                collated = next(self._iterator)
            except RuntimeError as error:
                if str(error).startswith(_GAVE_UP):
                    raise WorkersError(*error.args) from None
                raise
        if collated is None:
            raise WorkersError(f"feedmill's thread that sends batches to the collate workers ended "
                               f"before batch {number}; please report this")
        self._forget_released(collated)
        if collated.number != number:
            self._early = collated
            raise RuntimeError(f"batch {number} of the epoch was lost in an interrupt (Ctrl-C)")
        return collated

    def _forget_released(self, collated: Collated) -> None:
        """Releases this and earlier batches of the same worker to which it no longer refers."""
        latest, worker = (self._epoch, collated.number), collated.number % self._n_workers
        for which in list(self._in_flight):
            if which <= latest and which[1] % self._n_workers == worker and (
                which not in collated.alive
            ):
                self._in_flight.pop(which, None)
                self._offsets.pop(which, None)

    def end_epoch(self) -> None:
        """Tells workers that wait for a batch that the epoch has ended."""
        if self._epoch < 0 or self._pid != os.getpid():
            return
        for ours, _ in self._pipes:
            with contextlib.suppress(OSError, ValueError):
                ours.send(self._epoch)

    def close(self) -> None:
        """Ends the workers; not in a forked child, as they are the parent's."""
        if self._pid != os.getpid():
            _of_parents.append(self._iterator)  # its destructor would end them
            return
        self.end_epoch()
        self._iterator = self._loader = None
        for ours, _ in self._pipes:
            ours.close()

    def find_bytes(self, which: tuple[int, int]) -> torch.Tensor | None:
        """The memory of a batch from its first image on; None if it is not one of this object's."""
        owners = self._in_flight.get(which)
        return None if owners is None else owners[0][self._offsets[which] :]


def _find_bytes(which: tuple[int, int]) -> torch.Tensor:
    for workers in list(_all):
        if (data := workers.find_bytes(which)) is not None:
            return data
    raise RuntimeError(f"the memory of collated batch {which} is gone; please report this")
