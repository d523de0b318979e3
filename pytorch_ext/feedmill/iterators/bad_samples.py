"""The bad-sample policy: what on_error= and max_errors= do with samples that can't be loaded.

A sample is bad if neither the native decoder nor Pillow yields an image: its file is missing,
unreadable or damaged, or a transform raises. An index that the dataset itself rejects is not a bad
sample; that error is always raised.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from torch.utils.data import (
    BatchSampler,
    DistributedSampler,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
)

from feedmill.iterators.batches import Batch
from feedmill.planner.epochs import samplers_of
from feedmill.planner.samples import Item, Source
from feedmill.planner.sampling import is_accelerates_shard

POLICIES = ("raise", "replace", "zero", "skip")
# Default of max_errors=, per epoch.
MAX_ERRORS = 100
# Number of replacements tried for one bad sample.
_TRIES = 16
# Values in the counter of the random draws that no sample of an epoch has: an operation that is no
# transform, and an occurrence that no index reaches. So a replacement has draws of its own.
_OP = 255
OCCURRENCE = 0xFFFFFF
_WORD32 = (1 << 32) - 1


def refusal(loader: Any) -> str | None:
    """Why on_error= does not go with the loader's other arguments; None: it does."""
    options = loader._feedmill_options()
    if options.on_error == "raise":
        return None
    if options.native == "verify":
        return f"on_error={options.on_error!r}, but native='verify' compares every sample"
    if options.on_error != "skip":
        return None
    for sampler in samplers_of(loader):
        if isinstance(sampler, DistributedSampler) or is_accelerates_shard(sampler):
            return (
                f"on_error='skip' makes batches of one rank shorter, under a "
                f"{type(sampler).__name__}, whose ranks must stay in step; use 'replace' or 'zero'"
            )
    if not loader._auto_collation:
        return "on_error='skip' makes batches shorter, and batch_size is None; use 'replace'"
    return None


class BadSamplePolicy:
    """Applies on_error= to the bad samples of one epoch.

    Args:
        loader: the feedmill.DataLoader.
        source: its samples.
        key, epoch_word: key of the epoch's random draws.
        n_bad: number of bad samples before the saved position at which the epoch goes on.
    """

    def __init__(
        self, loader: Any, source: Source, key: int, epoch_word: int, n_bad: int = 0
    ) -> None:
        options = loader._feedmill_options()
        self._policy, self._max_errors = options.on_error, options.max_errors
        self._source, self._key, self._epoch_word = source, key, epoch_word
        self._n_bad = n_bad
        self._pool = pool_of(loader, source.n_samples) if self._policy == "replace" else None

    def apply(
        self,
        batch: Batch,
        place: int,
        occurrence: int,
        out: bytearray,
        write: Callable[[Item, int, bytearray], Any],
    ) -> str:
        """Applies the policy to a bad sample.

        Args:
            batch: the sample's batch.
            place: the sample's place in the batch.
            occurrence: how often its index came before in the epoch.
            out: the sample's bytes in the batch.
            write: (item, occurrence, out): makes a sample, writes it to ``out`` and returns its
                target.

        Returns:
            The action taken, such as "zeroed", or "" if the error must be raised.
        """
        self._n_bad += 1
        batch.n_bad += 1
        if self._policy == "raise" or self._n_bad > self._max_errors:
            return ""
        if self._policy == "replace":
            return self._replace(
                batch, place, occurrence, lambda item: write(item, OCCURRENCE, out)
            )
        if self._policy == "skip" and len(batch.skipped) + 1 == len(batch.items):
            return ""  # the batch would be empty
        out[:] = bytes(len(out))
        if self._policy == "zero":
            return "zeroed"
        batch.skipped.add(place)
        return "skipped"

    def _replace(
        self,
        batch: Batch,
        place: int,
        occurrence: int,
        write: Callable[[Item], Any],
    ) -> str:
        """Writes another sample of the epoch: the first of the drawn indices that can be loaded."""
        index = batch.items[place].position
        pool = self._pool or [item.position for item in batch.items]
        for other in replacements(self._key, self._epoch_word, index, occurrence, pool):
            try:
                target = write(self._source.item(other))
            except Exception:
                continue
            batch.replaced[place] = target
            return f"replaced by index {other}"
        return ""

    def note(self) -> str:
        """Why the policy could not be applied to the latest sample; appended to its error."""
        if self._policy == "raise":
            return ""
        if self._n_bad > self._max_errors:
            return f"; more than max_errors={self._max_errors} samples of this epoch"
        return f"; on_error={self._policy!r} found nothing to put in its place"


# ---- replacements --------------------------------------------------------------------------------


def replacements(
    key: int, epoch_word: int, index: int, occurrence: int, pool: Sequence[int]
) -> Iterator[int]:
    """Yields indices from ``pool`` to try in place of ``index``. They depend on the arguments
    alone."""
    for attempt in range(_TRIES):
        words = _philox(key, (
            _OP << 24 | attempt,
            index & _WORD32,
            (index >> 32) << 24 | occurrence & OCCURRENCE,
            epoch_word,
        ))
        other = pool[(words[0] << 32 | words[1]) * len(pool) >> 64]
        if other != index:
            yield other


def _philox(key: int, counter: Sequence[int]) -> tuple[int, int, int, int]:
    """Philox4x32-10, the same as in loader/base/rng.h."""
    a, b, c, d = counter
    key0, key1 = key & _WORD32, key >> 32 & _WORD32
    for _ in range(10):
        first, second = 0xD2511F53 * a, 0xCD9E8D57 * c
        a, b, c, d = (
            second >> 32 ^ b ^ key0, second & _WORD32, first >> 32 ^ d ^ key1, first & _WORD32
        )
        key0, key1 = key0 + 0x9E3779B9 & _WORD32, key1 + 0xBB67AE85 & _WORD32
    return a, b, c, d


def pool_of(loader: Any, n_samples: int) -> Sequence[int] | None:
    """The indices of this rank's epoch; None if they can't be read without changing the sampler's
    state."""
    sampler = loader.sampler
    if loader.batch_sampler is not None:
        if type(loader.batch_sampler) is not BatchSampler:
            return None
        sampler = loader.batch_sampler.sampler
    kind = type(sampler)
    if kind is SequentialSampler and len(sampler) == n_samples:
        return range(n_samples)
    if kind is RandomSampler and not sampler.replacement and len(sampler) == n_samples:
        return range(n_samples)
    if kind is SubsetRandomSampler:
        return [int(index) for index in sampler.indices]
    if kind is DistributedSampler:  # iterating it draws from no shared generator
        return list(sampler)
    return None
