"""The samples of a DataLoader that could not be loaded."""

from __future__ import annotations

from collections import deque
from typing import Any, NamedTuple

# The errors that are kept to be looked at.
_KEPT = 1000


class SampleError(NamedTuple):
    """A sample that could not be loaded.

    Attributes:
        index: of the dataset. path: of its file, "" for bytes in memory.
        cause: the error's type and text.
        outcome: what the batch got: "raised", "replaced by index 12", "zeroed" or "skipped".
    """

    index: int
    path: str
    cause: str
    outcome: str


class SampleErrors:
    """The errors of a DataLoader, over all its epochs; the latest 1,000 are kept."""

    def __init__(self) -> None:
        self._kept: deque[SampleError] = deque(maxlen=_KEPT)

    def add(self, item: Any, cause: str, outcome: str) -> None:
        self._kept.append(SampleError(item.position, item.name, cause, outcome))

    def all(self) -> tuple[SampleError, ...]:
        return tuple(self._kept)
