"""An epoch whose order is shared among ranks, and that goes on with another number of them.

A DistributedSampler deals one order to its ranks: rank r of n gets every n-th index, from number r
on. After k samples of each rank the first k * n indices are used, and the rest can be dealt to any
number of ranks.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Iterator
from typing import Any

from torch.utils.data import DistributedSampler

from feedmill.planner.untouched import is_original


class Ranks:
    """This rank's share of the rest of an epoch. Iterating gives its indices.

    Args:
        sampler: as is_shared() knows it.
        saved: place() of any rank, at which the epoch goes on. None: at its start.
        n_samples: samples of each rank before that.
    """

    def __init__(
        self, sampler: Any, saved: dict[str, int] | None = None, n_samples: int = 0
    ) -> None:
        self._sampler = sampler
        self._n_ranks: int = sampler.num_replicas
        self._drops: bool = sampler.drop_last
        self._n_order: int = len(sampler.dataset)
        self._n_before = n_samples
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

    def __iter__(self) -> Iterator[int]:
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
