"""How far ahead of torch a sampler may be advanced without an effect that the script can see."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch.utils.data import (
    BatchSampler,
    DistributedSampler,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

_NO_DRAW_AFTER_FIRST = (
    SequentialSampler,
    DistributedSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)
_OWN_LENGTH = (*_NO_DRAW_AFTER_FIRST, RandomSampler, list, tuple, range)


def always(_n_pulled: int) -> bool:
    """A look-ahead rule: any number of batches may be pulled ahead."""
    return True


def never(_n_pulled: int) -> bool:
    """A look-ahead rule: each batch must be pulled when torch would pull it."""
    return False


def pull_ahead_rule(index_sampler: Any, n_skipped: int = 0) -> Callable[[int], bool]:
    """A function n -> bool: whether batch number n, from 1, may be pulled before its turn.
    ``n_skipped`` samples come before batch 0, in an epoch that goes on at a saved position.

    It may if that changes nothing that the script can see: the sampler is torch's own, of the exact
    type, and draws no random number from a generator of the script. Samplers draw when they are
    first advanced; RandomSampler draws again whenever a permutation is used up.
    """
    if is_accelerates_shard(index_sampler):
        # It returns some of the batches of the inner sampler, and draws no random number.
        return always if pull_ahead_rule(index_sampler.batch_sampler) is always else never
    sampler, batch_size = index_sampler, 1
    if type(index_sampler) is BatchSampler:
        sampler, batch_size = index_sampler.sampler, index_sampler.batch_size
    if type(sampler) in _NO_DRAW_AFTER_FIRST:
        return always
    if type(sampler) is not RandomSampler:
        return never
    if sampler.generator is None:
        return always  # a private generator, seeded at the first advance
    if sampler.replacement:
        return never  # draws from the script's generator again after every 32 indices
    n = len(sampler.data_source)
    n_drawn = sampler.num_samples

    def inside_a_permutation(n_pulled: int) -> bool:
        first = n_skipped + n_pulled * batch_size
        last = first + batch_size - 1
        return last < n_drawn and first % n != 0 and first // n == last // n

    return inside_a_permutation


def is_accelerates_shard(sampler: Any) -> bool:
    """Whether a sampler is Accelerate's BatchSamplerShard, which gives each rank other batches."""
    return _is_accelerates(sampler, "BatchSamplerShard")


def is_seedable(sampler: Any) -> bool:
    """Whether a sampler is Accelerate's SeedableRandomSampler, whose order follows from a seed and
    the epoch."""
    return _is_accelerates(sampler, "SeedableRandomSampler")


def _is_accelerates(sampler: Any, name: str) -> bool:
    kind = type(sampler)
    return (kind.__module__, kind.__qualname__) == ("accelerate.data_loader", name)


def largest_batch(index_sampler: Any, auto_collation: bool) -> int | None:
    """The largest number of samples that a batch can have; None: not known.

    Calls len() of torch's own samplers only: another's may raise an error or have side effects.
    """
    if not auto_collation:
        return 1
    batch_size = getattr(index_sampler, "batch_size", None)
    if type(batch_size) is not int or batch_size < 1:
        return None
    if type(index_sampler) is BatchSampler:
        sampler: Any = index_sampler.sampler
        if type(sampler) in _OWN_LENGTH:
            return max(1, min(batch_size, len(sampler)))
    return batch_size
