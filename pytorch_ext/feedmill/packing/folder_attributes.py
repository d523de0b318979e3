"""The attributes of torchvision's ImageFolder, for datasets with an index."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Sequence
from typing import Any, overload

import numpy as np
from torch.utils.data import Dataset


class Column(Sequence[Any]):
    """A read-only sequence with one value for each sample, computed on access.

    Args:
        n: number of samples.
        value: returns the value of a sample, given its number.
        array: returns all values, for np.asarray(). None: np.asarray() calls ``value`` for each.
    """

    def __init__(
        self, n: int, value: Callable[[int], Any], array: Callable[[], np.ndarray] | None = None
    ) -> None:
        self._n, self._value, self._array = n, value, array

    def __len__(self) -> int:
        return self._n

    @overload
    def __getitem__(self, index: int) -> Any: ...
    @overload
    def __getitem__(self, index: slice) -> list[Any]: ...
    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self._value(i) for i in range(*index.indices(self._n))]
        return self._value(number_of(index, self._n))

    def __iter__(self) -> Iterator[Any]:
        return map(self._value, range(self._n))

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        values = np.array(list(self)) if self._array is None else self._array()
        return np.array(values, dtype)

    def __eq__(self, other: Any) -> Any:
        if not isinstance(other, list | Column):
            return NotImplemented
        return len(other) == self._n and all(a == b for a, b in zip(self, other))

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        some = ", ".join(map(repr, self[:3]))
        return f"[{some}{', ...' if self._n > 3 else ''}]  # {self._n}"


def number_of(index: Any, n: int) -> int:
    """An index of any integer type as an int from 0 to n - 1. Raises IndexError."""
    number = operator.index(index)
    if not -n <= number < n:
        raise IndexError(f"index {index} is out of range for {n} samples")
    return number % n


class FolderAttributes(Dataset[Any]):
    """A dataset with ImageFolder's attributes. Subclasses define its length, ``classes``, and
    _name(), _label() and _labels()."""

    @property
    def classes(self) -> list[str]:
        """The names of the classes, by label."""
        raise NotImplementedError

    def __len__(self) -> int:
        raise NotImplementedError

    def _name(self, i: int) -> str:
        """The name of sample i, from 0 to len(self) - 1."""
        raise NotImplementedError

    def _label(self, i: int) -> int:
        raise NotImplementedError

    def _labels(self) -> np.ndarray:
        """The labels of all samples, integers of any type."""
        raise NotImplementedError

    @property
    def class_to_idx(self) -> dict[str, int]:
        return {name: label for label, name in enumerate(self.classes)}

    @property
    def targets(self) -> Sequence[int]:
        """The labels of all samples, before target_transform. np.asarray() converts them fast."""
        return Column(len(self), self._label, lambda: self._labels().astype(np.int64))

    @property
    def samples(self) -> Sequence[tuple[str, int]]:
        """(name, label) of all samples. In tar shards a name is the file's path relative to the
        folder that was packed, or the name of the member of a tar file."""
        return Column(len(self), lambda i: (self._name(i), self._label(i)))

    @property
    def imgs(self) -> Sequence[tuple[str, int]]:
        """The same as ``samples``, as in ImageFolder."""
        return self.samples
