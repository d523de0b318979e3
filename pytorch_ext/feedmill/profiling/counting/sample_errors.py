"""The samples of a DataLoader that could not be loaded."""

from __future__ import annotations

import itertools
from collections import deque
from typing import Any, NamedTuple

_MAX_KEPT = 1000


class SampleError(NamedTuple):
    """A sample that could not be loaded.

    Attributes:
        index: index in the dataset.
        path: the sample's file. "" for bytes in memory.
        cause: the error's type and text.
        outcome: what happened in its place: "raised", "replaced by index 12", "zeroed" or
            "skipped".
    """

    index: int  # type: ignore[assignment]  # also a method of tuples
    path: str
    cause: str
    outcome: str


class SampleErrors:
    """The sample errors of a DataLoader over all its epochs. Keeps the latest 1,000. One thread at
    a time may add; other threads may read."""

    def __init__(self) -> None:
        self._numbers = itertools.count()
        self._kept: deque[tuple[int, SampleError]] = deque(maxlen=_MAX_KEPT)

    def add(self, item: Any, cause: str, outcome: str) -> None:
        error = SampleError(item.position, item.name, cause, outcome)
        self._kept.append((next(self._numbers), error))

    def all(self) -> tuple[int, tuple[SampleError, ...]]:
        """A consistent snapshot: (number of all errors, the kept errors)."""
        kept = tuple(self._kept)
        n_errors = kept[-1][0] + 1 if kept else 0
        return n_errors, tuple(error for _, error in kept)
