"""What torch's samplers allow: how far ahead indices may be pulled without anybody noticing."""

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
    """Any number of batches may be pulled ahead."""
    return True


def never(_n_pulled: int) -> bool:
    """A batch is pulled when torch would pull it."""
    return False


def look_ahead_rule(index_sampler: Any) -> Callable[[int], bool]:
    """Whether batch number n (from 0, with n >= 1) may be pulled before its turn.

    It may where pulling it changes nothing that the script can see: torch's own sampler, exact
    type, and no random number drawn from a generator that the script holds. Samplers draw when
    they are first advanced; RandomSampler draws again whenever a permutation is used up.
    """
    if is_accelerates_shard(index_sampler):
        # It hands on, or leaves out, batches of the sampler inside, and draws nothing.
        return always if look_ahead_rule(index_sampler.batch_sampler) is always else never
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
        first = n_pulled * batch_size
        last = first + batch_size - 1
        return last < n_drawn and first % n != 0 and first // n == last // n

    return inside_a_permutation


def is_accelerates_shard(sampler: Any) -> bool:
    """Whether it is Accelerate's BatchSamplerShard: each process gets other batches."""
    kind = type(sampler)
    return (kind.__module__, kind.__qualname__) == ("accelerate.data_loader", "BatchSamplerShard")


def largest_batch(index_sampler: Any, auto_collation: bool) -> int | None:
    """The most samples that a batch can have, as far as that is known beforehand.

    Only torch's own samplers are asked for their length: another's may raise or change something.
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
