"""deferred="verify": makes every sample a second time without deferred images, and compares."""

from __future__ import annotations

import random
import sys
from typing import Any

import torch

from feedmill import _internals
from feedmill.deferred import counters, is_needed
from feedmill.iterators.verify import VerificationError, is_same


class VerifyingFetcher(_internals.MapFetcher):  # type: ignore[misc]
    """Makes the batches of a map-style dataset, in the place of torch's.

    Each batch's samples are made twice, with the global generators of random, NumPy and torch in
    the same state. VerificationError if a sample or an exception differs in anything.
    """

    def fetch(self, possibly_batched_index: Any) -> Any:
        """As torch's."""
        if not is_needed():
            return super().fetch(possibly_batched_index)
        from feedmill.deferred.switch import off_everywhere

        index = possibly_batched_index
        collate_fn: Any = self.collate_fn
        generators = _generators()
        got = self._samples(index)
        after = _generators()
        with off_everywhere():
            _restore(generators)
            wanted = self._samples(index)
            if not is_same(got, wanted):
                self._raise_difference(index, generators, got, wanted)
        if not is_same(after, _generators()):
            raise VerificationError(f"indices {index}: other random numbers are drawn with "
                                    "deferred images", -1, "deferred")
        if isinstance(got, _Raised):
            raise got.error
        counters.current().add("verified", len(got) if self.auto_collation else 1)
        return collate_fn(got)

    def _samples(self, index: Any) -> Any:
        """The samples of a batch, before they are collated, or what was raised."""
        collate_fn: Any = self.collate_fn
        self.collate_fn: Any = _unchanged
        try:
            return super().fetch(index)
        except Exception as error:  # the dataset's own
            return _Raised(error)
        finally:
            self.collate_fn = collate_fn

    def _raise_difference(self, index: Any, generators: Any, got: Any, wanted: Any) -> None:
        """Raises VerificationError. Called while images are not deferred."""
        _restore(generators)
        if not is_same(wanted, self._samples(index)):
            raise VerificationError(
                f"indices {index}: deferred='verify' can't compare these samples: the dataset "
                "makes them differently each time, though the generators of random, NumPy and "
                "torch are restored", -1, "deferred",
            )
        where, at = f"indices {index}", -1
        if isinstance(got, list) and isinstance(wanted, list) and len(got) == len(wanted):
            same = [is_same(*pair) for pair in zip(got, wanted, strict=True)]
            where = f"index {index[same.index(False)]}"
            at = index[same.index(False)] if type(index[0]) is int else -1
        texts = [
            repr(one.error) if isinstance(one, _Raised) else "a sample" for one in (got, wanted)
        ]
        detail = f": {texts[0]} instead of {texts[1]}" if texts != ["a sample"] * 2 else ""
        raise VerificationError(
            f"{where}: the dataset's result differs with deferred images{detail}. Set "
            "deferred='off', and please report this", at, "deferred",
        )


class _Raised:
    """What a dataset raised, compared by type and arguments."""

    def __init__(self, error: Exception) -> None:
        self.error = error

    def __eq__(self, other: Any) -> bool:
        return isinstance(other, _Raised) and (
            type(self.error), repr(self.error)) == (type(other.error), repr(other.error))

    __hash__ = None  # type: ignore[assignment]


def _unchanged(samples: Any) -> Any:
    return samples


def _generators() -> tuple[Any, ...]:
    numpy = sys.modules.get("numpy")
    return random.getstate(), torch.get_rng_state(), numpy and numpy.random.get_state()


def _restore(states: tuple[Any, ...]) -> None:
    of_random, of_torch, of_numpy = states
    random.setstate(of_random)
    torch.set_rng_state(of_torch)
    if of_numpy is not None:
        sys.modules["numpy"].random.set_state(of_numpy)
