"""The epochs of a DataLoader: their numbers, and the keys of their random numbers."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.utils.data import DistributedSampler

from feedmill.planner.recognise import recognise
from feedmill.planner.samples import Source
from feedmill.planner.sampling import is_accelerates_shard

_MAX_KEPT = 1000  # epochs that draws() and fetch() know with seed=None
_WORD64, _WORD32 = (1 << 64) - 1, (1 << 32) - 1


@dataclass(frozen=True)
class Epoch:
    """An epoch.

    Attributes:
        key, word: of the native random numbers: 64 bits made of the seed, 32 bits of the epoch.
        source: the samples that ran.
    """

    key: int
    word: int
    source: Source


class Epochs:
    """The epochs that ran natively, by number.

    Attributes:
        next_number: of the next epoch, unless a sampler has an epoch number.
    """

    def __init__(self, next_number: int = 0) -> None:
        self.next_number = next_number
        self._kept: dict[int, Epoch] = {}

    def begin(self, loader: Any, source: Source, base_seed: int, n_under_seed: int) -> Epoch:
        """Begins an epoch on the native path.

        Args:
            loader: the DataLoader.
            source: the samples of this epoch.
            base_seed: the seed that this iter() drew, as torch does for its workers.
            n_under_seed: number of earlier epochs with this seed; persistent workers draw one seed
                for all of their epochs.
        """
        number = self.next_number
        seed = loader._feedmill_options().seed
        if seed is None:
            key, word = _mix_rank(loader, base_seed), n_under_seed
        else:
            of_sampler = sampler_epoch(loader)
            number = number if of_sampler is None else of_sampler
            key, word = _mix_rank(loader, seed), number & _WORD32
        self.next_number = number + 1
        epoch = Epoch(key, word, source)
        self._keep(number, epoch)
        return epoch

    def _keep(self, number: int, epoch: Epoch) -> None:
        latest = next(reversed(self._kept.values()), None)
        if latest is not None and latest.source.is_like(epoch.source):
            epoch = replace(epoch, source=latest.source)  # equal epochs share one source
        elif latest is not None and latest.source.arrays is not None:
            self._kept.clear()  # frees the arrays, which may be large
        self._kept.pop(number, None)
        self._kept[number] = epoch
        while len(self._kept) > _MAX_KEPT:
            del self._kept[next(iter(self._kept))]

    def find(self, loader: Any, number: int) -> Epoch:
        """The epoch of a number: one that ran, or with seed=int any other as it would run.

        Raises:
            ValueError: the number is not an int from 0; or seed is None, and the epoch did not run
                or is not kept any more.
            RuntimeError: the DataLoader can't run natively.
        """
        if type(number) is not int or not 0 <= number <= _WORD64:
            raise ValueError(f"epoch is {number!r}; it must be an int from 0")
        if number in self._kept:
            return self._kept[number]
        seed = loader._feedmill_options().seed
        if seed is None:
            raise ValueError(
                f"epoch {number} has not run or is no longer known (known: {_ranges(self._kept)}); "
                "with seed=None its random numbers can't be computed: pass seed= to the DataLoader"
            )
        support = recognise(loader)
        if support.source is None or support.path == "hybrid":
            raise RuntimeError(f"the native path can't be taken: {'; '.join(support.reasons)}")
        return Epoch(_mix_rank(loader, seed), number & _WORD32, support.source)


def samplers_of(loader: Any) -> list[Any]:
    """The DataLoader's samplers, without duplicates: its sampler, its batch sampler, and the
    sampler in the batch sampler."""
    inner = getattr(loader.batch_sampler, "sampler", None)
    found = {id(one): one for one in (loader.sampler, loader.batch_sampler, inner)}
    return [one for one in found.values() if one is not None]


def sampler_epoch(loader: Any) -> int | None:
    """The epoch's number, from a sampler's attribute ``epoch``; None: no sampler has one."""
    for sampler in samplers_of(loader):
        epoch = getattr(sampler, "epoch", None)
        if type(epoch) is int:
            return epoch
    return None


def rank_to_mix_in(loader: Any) -> int:
    """This process's rank, if each rank needs its own random numbers; 0 if the sampler gives each
    rank other samples."""
    distributed = torch.distributed
    if not distributed.is_available() or not distributed.is_initialized():
        return 0
    for sampler in samplers_of(loader):
        if isinstance(sampler, DistributedSampler) or is_accelerates_shard(sampler):
            return 0
    return distributed.get_rank()


def _mix_rank(loader: Any, key: int) -> int:
    rank = rank_to_mix_in(loader)
    return key & _WORD64 if rank == 0 else _mix64((key ^ _mix64(rank)) & _WORD64)


def _mix64(value: int) -> int:
    """A step of SplitMix64, which mixes all bits: consecutive values give unrelated results."""
    value = (value + 0x9E3779B97F4A7C15) & _WORD64
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _WORD64
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _WORD64
    return value ^ (value >> 31)


def _ranges(numbers: Iterable[int]) -> str:
    """Text such as "0 to 3, 7"; "none" if there are none."""
    ranges: list[list[int]] = []
    for number in sorted(numbers):
        if ranges and number == ranges[-1][1] + 1:
            ranges[-1][1] = number
        else:
            ranges.append([number, number])
    texts = [f"{first} to {last}" if first < last else str(first) for first, last in ranges]
    if len(texts) > 10:
        texts[5:-5] = ["..."]
    return ", ".join(texts) or "none"
