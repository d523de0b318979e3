"""Worker processes that call a collate_fn with native samples, ahead of the turn of their batch."""

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
from feedmill.collate.samples import Layout

# Epochs have numbers of their own in this process, over all loaders.
_epochs = itertools.count()
_all: weakref.WeakSet[CollateWorkers] = weakref.WeakSet()
_of_parents: list[Any] = []  # in the child of a fork: torch's iterators of processes above


# How errors of torch's iterator itself begin; after the first, and some of the second kind, it can
# be asked again.
_GAVE_UP = ("DataLoader timed out", "DataLoader worker (pid", "Pin memory thread exited")


class WorkersError(RuntimeError):
    """An error that is not a batch's."""


class _Numbers(Dataset[Any]):
    """Gives a worker what the main process asked it for: (epoch, number) of a batch."""

    def __getitem__(self, which: Any) -> Any:
        return which


class _Sampler:
    """All batches of an epoch, in order, and any number of them: torch's iterator asks for as many
    as it would prefetch, and they wait in the workers for the native loader."""

    def __init__(self) -> None:
        self.epoch = -1

    def __iter__(self) -> Iterator[tuple[int, int]]:
        epoch = self.epoch
        return ((epoch, number) for number in itertools.count())


class _WorkerInit:
    """The worker_init_fn, which has get_worker_info() tell of the script's dataset."""

    def __init__(self, dataset: Any, function: Callable[[int], Any] | None) -> None:
        self._dataset = dataset
        self._function = function

    def __call__(self, number: int) -> None:
        # The object refuses to be changed by its attributes.
        object.__setattr__(get_worker_info(), "dataset", self._dataset)
        if self._function is not None:
            self._function(number)


class _Loader(TorchDataLoader[Any]):
    """The DataLoader of the worker processes. `feedmill run` may have replaced these two of torch's
    in the meantime, to count what the script makes."""

    __init__ = init_loader
    _get_iterator = get_iterator

    def check_worker_number_rationality(self) -> None:
        """The script's own DataLoader has warned of too many workers already."""


class CollateWorkers:
    """torch's own worker processes, with the seeds that torch's path would give them.

    The consumer's thread calls begin_epoch(), receive(), end_epoch() and close(), another one
    send(); between begin_epoch() and end_epoch() both may run at once.

    Args:
        loader: the feedmill.DataLoader.
        generator_state: of the generator from which torch draws the workers' seed, before it did.
        pin_memory: batches are pinned, by a thread of torch's.
        pool: of shared memory, in which the native loader makes its batches.
    """

    def __init__(
        self,
        loader: Any,
        generator_state: torch.Tensor,
        pin_memory: bool,
        pool: BlockPool,
    ) -> None:
        self._pool = pool
        self._n_workers: int = loader.num_workers
        self._pipes = [multiprocessing.get_context().Pipe() for _ in range(self._n_workers)]
        self._known: list[set[int]] = [set() for _ in self._pipes]
        # Batches whose memory a worker, or a result that is on its way, may refer to.
        self._in_flight: dict[tuple[int, int], list[torch.Tensor]] = {}
        self._offsets: dict[tuple[int, int], int] = {}
        self._sampler = _Sampler()
        self._epoch = -1
        generator = torch.Generator()
        generator.set_state(generator_state)
        feedmill_options = loader._feedmill_options()
        function = WorkerCollate(
            loader.collate_fn,
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
            timeout=loader.timeout,
            worker_init_fn=_WorkerInit(loader.dataset, seeds),
            multiprocessing_context=loader.multiprocessing_context,
            generator=generator,
            prefetch_factor=loader.prefetch_factor,
            persistent_workers=loader.persistent_workers,
            pin_memory_device=loader.pin_memory_device,
            **options,
        )
        self._iterator: Any = None
        self._early: Collated | None = None  # received before its turn, behind one that was lost
        self._pid = os.getpid()
        _all.add(self)
        in_worker.find_bytes = _find_bytes

    def begin_epoch(self) -> None:
        """Starts the workers, or has them go on with another epoch."""
        self._early = None
        self._epoch = self._sampler.epoch = next(_epochs)
        self._iterator = iter(self._loader)
        for _, theirs in self._pipes:
            theirs.close()

    def set_layout(self, layout: Layout) -> None:
        """Tells the workers how images lie in the batches that follow."""
        for ours, _ in self._pipes:
            ours.send(layout)

    def send(
        self,
        number: int,
        parts: Sequence[tuple[torch.Tensor, int, int]] | None,
        kept: Sequence[int] | None,
        targets: Sequence[Any],
    ) -> None:
        """Gives a batch to the worker whose turn it is. Blocks while that has more waiting than the
        connection holds.

        Args:
            number: of the batch in this epoch; each is sent, in order.
            parts: (the owner of the memory, which the pool allocated; offset of the first image in
                it; images). None: the batch has failed; the worker is told to go on.
            kept: places of the images that belong to the batch; None: all.
            targets: one a sample.
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
        """A batch, collated; its data is None if it was sent as failed.

        Raises:
            WorkersError: torch's iterator has given up, or runs out of time; no batch is taken.
            Exception: what the collate_fn raised, as torch's workers report it.
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
            raise WorkersError(f"the thread that gives batches to the collate workers ended before "
                               f"batch {number}; please report this")
        self._forget_released(collated)
        if collated.number != number:
            self._early = collated
            raise RuntimeError(f"batch {number} of the epoch was lost in an interrupt (Ctrl-C)")
        return collated

    def _forget_released(self, collated: Collated) -> None:
        """Lets go of the batches that the worker, which had them before this one, has let go of."""
        latest, worker = (self._epoch, collated.number), collated.number % self._n_workers
        for which in list(self._in_flight):
            if which <= latest and which[1] % self._n_workers == worker and (
                which not in collated.alive
            ):
                self._in_flight.pop(which, None)
                self._offsets.pop(which, None)

    def end_epoch(self) -> None:
        """Has workers that wait for a batch of this epoch give up."""
        if self._epoch < 0 or self._pid != os.getpid():
            return
        for ours, _ in self._pipes:
            with contextlib.suppress(OSError, ValueError):
                ours.send(self._epoch)

    def close(self) -> None:
        """Ends the workers; not in the child of a fork, whose parent has them."""
        if self._pid != os.getpid():
            _of_parents.append(self._iterator)  # which would end them when it goes
            return
        self.end_epoch()
        self._iterator = self._loader = None
        for ours, _ in self._pipes:
            ours.close()

    def find_bytes(self, which: tuple[int, int]) -> torch.Tensor | None:
        """The memory of a batch, from its first image on; None: it is another loader's."""
        owners = self._in_flight.get(which)
        return None if owners is None else owners[0][self._offsets[which] :]


def _find_bytes(which: tuple[int, int]) -> torch.Tensor:
    for workers in list(_all):
        if (data := workers.find_bytes(which)) is not None:
            return data
    raise RuntimeError(f"the memory of collated batch {which} is gone; please report this")
