"""An epoch whose order is shared among ranks, and that goes on with another number of them.

A DistributedSampler deals one order to its ranks: rank r of n gets every n-th index, from number r
on. After k samples of each rank the first k * n indices are used, and the rest can be dealt to any
number of ranks. Accelerate's BatchSamplerShard deals the batches of one BatchSampler instead: after
k steps the batches of these steps are used, and the rest of the order can be formed into batches
and dealt to any number of ranks. A single process has no shard, but the BatchSampler itself.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Iterator
from typing import Any

from torch.utils.data import BatchSampler, DistributedSampler

from feedmill.planner.orders import innermost
from feedmill.planner.sampling import is_accelerates_shard
from feedmill.planner.untouched import is_original


class Ranks:
    """This rank's share of the rest of an epoch, as a DistributedSampler deals it.

    Args:
        sampler: as is_shared() knows it.
        saved: place() of any rank, at which the epoch goes on. None: at its start.
        n_samples: samples of each rank before that.

    Attributes:
        is_dealt_again: the sampler itself would not go on at that place, as the number of ranks
            was another one: deal() gives the rest.
    """

    def __init__(
        self, sampler: Any, saved: dict[str, int] | None = None, n_samples: int = 0
    ) -> None:
        self._sampler = sampler
        self._n_ranks: int = sampler.num_replicas
        self._drops: bool = sampler.drop_last
        self._n_order: int = len(sampler.dataset)
        if saved is not None and saved["used"] == n_samples * self._n_ranks:
            saved = None  # the sampler itself goes on there
        self.is_dealt_again = saved is not None
        self._n_before = n_samples if self.is_dealt_again else 0
        self._begin = 0
        if saved is not None:
            self._begin = min(saved["used"], self._n_order)
            if self._drops and self._n_order - self._begin < saved["ranks"]:
                self._begin = self._n_order  # the ranks of that time dropped what was left

    def place(self, n_samples: int) -> dict[str, int]:
        """The place after this number of samples of each rank, the same for all ranks."""
        used = self._begin + (n_samples - self._n_before) * self._n_ranks
        return {"ranks": self._n_ranks, "used": min(used, self._n_order)}

    def n_left(self, n_samples: int) -> int:
        """Number of indices that this rank still gets, after this number of samples."""
        n_rest = self._n_order - self._begin
        of_rank = n_rest // self._n_ranks if self._drops else -(-n_rest // self._n_ranks)
        return of_rank - (n_samples - self._n_before)

    def deal(self, _: Any = None) -> Iterator[int]:
        """Makes the iterator over the rank's indices from the place on."""
        # The sampler of a single rank, which neither pads nor drops.
        single = copy.copy(self._sampler)
        single.num_replicas, single.rank = 1, 0
        single.num_samples = single.total_size = self._n_order
        whole: list[int] = [*iter(single)]
        rest = whole[self._begin :]
        n_beyond = len(rest) % self._n_ranks
        if n_beyond and self._drops:
            del rest[-n_beyond:]
        elif n_beyond:
            # As the sampler pads: with the first indices of the epoch.
            rest += itertools.islice(itertools.cycle(whole), self._n_ranks - n_beyond)
        return iter(rest[self._sampler.rank :: self._n_ranks])


class BatchRanks:
    """This rank's share of the rest of an epoch, as Accelerate's BatchSamplerShard deals it.

    Args:
        shard: as dealt_batches() knows it.
        saved: place() of any rank, at which the epoch goes on. None: at its start.
        n_batches: batches of each rank before that.

    Attributes:
        is_dealt_again: as that of Ranks.
    """

    def __init__(
        self, shard: Any, saved: dict[str, int] | None = None, n_batches: int = 0
    ) -> None:
        self._shard = shard
        batches = shard.batch_sampler
        self._n_ranks: int = shard.num_processes
        self._batch_size: int = batches.batch_size
        self._drops: bool = batches.drop_last
        self._n_order: int = len(batches.sampler)
        self._n_of_step = self._batch_size * (1 if shard.split_batches else self._n_ranks)
        if saved is not None and saved["used"] == min(n_batches * self._n_of_step, self._n_order):
            saved = None  # the shard itself goes on there
        self.is_dealt_again = saved is not None
        self._n_before = n_batches if self.is_dealt_again else 0
        self._begin = 0
        if saved is not None:
            self._begin = min(saved["used"], self._n_order)
            if self._drops and self._n_order - self._begin < saved.get("step", 0):
                self._begin = self._n_order  # the ranks of that time dropped what was left

    def place(self, n_batches: int) -> dict[str, int]:
        """The place after this number of batches of each rank, the same for all ranks."""
        used = self._begin + (n_batches - self._n_before) * self._n_of_step
        return {
            "ranks": self._n_ranks, "used": min(used, self._n_order), "step": self._n_of_step
        }

    def n_left(self, n_batches: int) -> int:
        """Number of batches that this rank still gets, after this number of batches."""
        n_rest = self._n_order - self._begin
        return len(self._shard_of(range(n_rest))) - (n_batches - self._n_before)

    def deal(self, order: Any) -> Iterator[list[int]]:
        """Makes the iterator over the rank's batches from the place on.

        Args:
            order: the sampler that gives the single indices of the whole epoch.
        """
        whole = list(order)
        rest = whole[self._begin :]
        n_beyond = len(rest) % self._n_of_step
        if n_beyond and self._shard.even_batches and not self._drops:
            # As the shard pads: with the first indices of the epoch.
            rest += itertools.islice(itertools.cycle(whole), self._n_of_step - n_beyond)
        return iter(self._shard_of(rest))

    def _shard_of(self, indices: Any) -> Any:
        """A shard like the given one, of the batches of some indices."""
        shard = copy.copy(self._shard)
        shard.batch_sampler = BatchSampler(indices, self._batch_size, self._drops)
        return shard


def ranks_of(
    index_sampler: Any, saved: dict[str, int] | None, n_samples: int, n_batches: int
) -> Ranks | BatchRanks | None:
    """This rank's share of an epoch; None: it has all of it, or it is not known how it is dealt.

    Args:
        saved: place() of any rank, at which the epoch goes on. None: at its start.
        n_samples, n_batches: of each rank before that.
    """
    if dealt_batches(index_sampler) is not None:
        return BatchRanks(index_sampler, saved, n_batches)
    sampler = index_sampler.sampler if type(index_sampler) is BatchSampler else index_sampler
    return Ranks(sampler, saved, n_samples) if is_shared(sampler) else None


def n_ranks_of(index_sampler: Any) -> int | None:
    """The number of ranks that an order is dealt to; None: the sampler has no such number."""
    if is_accelerates_shard(index_sampler):
        return int(index_sampler.num_processes)
    sampler = index_sampler.sampler if type(index_sampler) is BatchSampler else index_sampler
    n_ranks = getattr(sampler, "num_replicas", None)
    if n_ranks is None and type(index_sampler) is BatchSampler:
        return 1
    return n_ranks if type(n_ranks) is int else None


def rank_of(index_sampler: Any) -> int | None:
    """The number of this rank, from 0; None: the sampler has no such number."""
    if is_accelerates_shard(index_sampler):
        return int(index_sampler.process_index)
    rank = getattr(innermost(index_sampler), "rank", None)
    return rank if type(rank) is int else None


def dealt_batches(index_sampler: Any) -> BatchSampler | None:
    """The BatchSampler whose batches Accelerate deals to ranks, if it is torch's own, of the exact
    type, and its order is not dealt to ranks already."""
    if not is_accelerates_shard(index_sampler):
        return None
    batches = index_sampler.batch_sampler
    if type(batches) is not BatchSampler or isinstance(batches.sampler, DistributedSampler):
        return None
    try:
        return batches if len(batches.sampler) >= 0 else None  # type: ignore[arg-type]
    except Exception:  # a sampler need not have a length
        return None


def as_counted_here(position: dict[str, Any], index_sampler: Any) -> dict[str, Any]:
    """A saved position as an epoch with this index sampler counts it: Accelerate has torch's
    BatchSampler in a single process, which counts samples, and shards in several, which count
    batches."""
    place = position.get("ranks")
    if dealt_batches(index_sampler) is not None:
        if position.get("unit") == "samples" and place is None:
            place = {"ranks": 1, "used": position["samples"]}
            return {**position, "unit": "batches", "indices": None, "ranks": place}
    elif type(index_sampler) is BatchSampler and position.get("unit") == "batches" and place:
        n_samples, n_order = place["used"], len(index_sampler.sampler)  # type: ignore[arg-type]
        if index_sampler.drop_last and n_order - n_samples < place["step"]:
            n_samples = n_order  # the ranks of that time dropped what was left
        counted = {
            **position, "unit": "samples", "indices": None, "samples": n_samples,
            "batches": -(-n_samples // index_sampler.batch_size),
        }
        del counted["ranks"]
        return counted
    return position


def _deals_as_known() -> bool:
    """Whether nobody has replaced the methods that deal an order to ranks."""
    return all(
        is_original(
            vars(DistributedSampler).get(name),
            "torch.utils.data.distributed",
            f"DistributedSampler.{name}",
        )
        for name in ("__iter__", "__len__", "__init__")
    )


def is_shared(sampler: Any) -> bool:
    """Whether it is known how a sampler deals its order to the ranks: it is torch's own
    DistributedSampler, of the exact type, and the script has changed no number in it."""
    if type(sampler) is not DistributedSampler or not _deals_as_known():
        return False
    try:
        dataset: Any = sampler.dataset
        n, n_ranks, drops = len(dataset), sampler.num_replicas, sampler.drop_last
        of_rank = n // n_ranks if drops else -(-n // n_ranks)
        wanted = (of_rank, of_rank * n_ranks)
        return n > 0 and (sampler.num_samples, sampler.total_size) == wanted
    except Exception:  # the dataset need not have a length any more
        return False
