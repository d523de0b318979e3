"""The samples of a dataset in memory, single and in the batches that the native loader takes."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch

from feedmill._internals import version_of, why_collate_was_changed
from feedmill._ops import native
from feedmill.planner.array_datasets import ArrayNode
from feedmill.planner.arrays import Arrays
from feedmill.planner.samples import Item, NotNative, Source


class ArrayItem(Item):
    """A sample in an array: ``index`` is its row, ``path`` is empty."""

    __slots__ = ()

    def load(self) -> Any:
        return self.base_dataset.load(self.index)

    def size(self) -> tuple[int, int]:
        size: tuple[int, int] = self.load().size
        return size

    def __str__(self) -> str:
        return f"dataset index {self.position}, row {self.index} of an array in memory"


class Rows(Sequence[ArrayItem]):
    """The samples of a batch.

    Attributes:
        indices: the samples' indices in the DataLoader's dataset, as bytes of int64 values.
        rows: the samples' rows in the arrays, likewise; None: equal to the indices.
    """

    __slots__ = ("_versions", "indices", "rows", "source")

    def __init__(self, source: ArraySource, indices: bytes) -> None:
        self.source = source
        self.indices = indices
        self.rows = source.rows_of(indices)
        self._versions = source.versions()

    def __len__(self) -> int:
        return len(self.indices) // 8

    def __getitem__(self, which: Any) -> Any:
        if isinstance(which, slice):
            return Rows(self.source, np.frombuffer(self.indices, np.int64)[which].tobytes())
        return next(iter(self[which : which + 1]))

    def __iter__(self) -> Iterator[ArrayItem]:
        numbers = self.indices if self.rows is None else self.rows
        for index, row in zip(np.frombuffer(self.indices, np.int64).tolist(), as_numbers(numbers)):
            yield self.source.array_item(index, row)

    def changed(self) -> list[torch.Tensor] | None:
        """The batch as the dataset would return it now, if a tensor was changed in place since this
        object was made; None: no tensor was, by torch's version counters."""
        if self._versions == self.source.versions():
            return None
        rows = torch.tensor(as_numbers(self.indices if self.rows is None else self.rows))
        return [tensor[rows] for tensor in self.source.tensors]


def as_numbers(data: bytes) -> list[int]:
    """int64 values, given as bytes, as a list."""
    numbers: list[int] = np.frombuffer(data, np.int64).tolist()
    return numbers


class ArraySource(Source):
    """The samples of a dataset in memory, as the dataset was when iter() was called. Their values
    are read when a batch is made; see Rows.changed() for values that change."""

    arrays: Arrays

    def __init__(self, dataset: Any, node: ArrayNode) -> None:
        self.n_samples = len(dataset)
        self.plan = node.base_dataset.plan
        self.kind = node.kind
        self.gives_bytes = False
        self.arrays = node.arrays
        self.copies = node.arrays.image is None
        self.tensors = node.tensors
        self._node = node

    def why_not(self, loader: Any, is_default: bool) -> list[str]:
        if not self.copies:
            changed = why_collate_was_changed(int) if is_default else ""
            return [changed] if changed else []
        reasons = []
        if not is_default or not loader._auto_collation:
            what = "batch_size=None" if is_default else "a collate_fn"
            reasons.append(
                f"with {what}, torch's samples are views of the dataset's own memory, but native "
                "samples are copies; use batch_size and the default collate_fn"
            )
        options = loader._feedmill_options()
        if options.dtype is not None or options.memory_format is not torch.contiguous_format:
            reasons.append(
                "dtype= and memory_format= are options for images; this dataset's samples are not "
                "images"
            )
        return reasons

    def sample(self, item: Any) -> Any:
        return item.load()

    def is_like(self, other: Source, in_any_format: bool = False) -> bool:
        if type(other) is not ArraySource:
            return False
        mine, theirs = self._node, other._node
        return (
            self._has_plan_of(other, in_any_format)
            and self.arrays == other.arrays
            and mine.base_dataset.dataset is theirs.base_dataset.dataset
            and _equal(mine.rows, theirs.rows)
        )

    def versions(self) -> tuple[int, ...] | None:
        """torch's version counters of the tensors, which count changes in place; None if a tensor
        has none."""
        if any(map(torch.is_inference, self.tensors)):
            return None
        return tuple(map(version_of, self.tensors))

    def rows_of(self, indices: bytes) -> bytes | None:
        rows = self._node.rows
        return None if rows is None else rows[np.frombuffer(indices, np.int64)].tobytes()

    def gather(self, indices: Any) -> Rows | None:
        """The batch of a list or tuple of valid ints; None for any other indices."""
        if type(indices) not in (list, tuple):
            return None
        data = native.indices(indices, self.n_samples)
        return None if data is None else Rows(self, data)

    def fill(self, items: list[Any], indices: Iterable[Any]) -> Callable[[], Any] | None:
        for index in indices:
            try:
                items.append(self.item(index))
            except Exception:
                return partial(self.item, index)
        return None

    def item(self, index: Any) -> ArrayItem:
        position = _position(index)
        if not -self.n_samples <= position < self.n_samples:
            raise NotNative(index, None, f"the dataset has {self.n_samples} samples")
        position %= self.n_samples
        rows = self._node.rows
        return self.array_item(position, position if rows is None else int(rows[position]))

    def array_item(self, position: int, row: int) -> ArrayItem:
        targets = self._node.targets
        target = None if targets is None else int(targets[row])
        return ArrayItem(position, "", b"", target, self._node.base_dataset, row)

    def together(self, items: list[Any]) -> Rows:
        """The batch of samples that item() or fill() looked up."""
        return Rows(self, np.array([item.position for item in items], np.int64).tobytes())


def _equal(one: np.ndarray | None, other: np.ndarray | None) -> bool:
    if one is None or other is None:
        return one is other
    return np.array_equal(one, other)


def _position(index: Any) -> int:
    """An index as an int. NotNative for types that lists and arrays do not treat as one index."""
    if type(index) is int:
        return index
    if type(index) is bool or bool(getattr(index, "ndim", 0)):
        raise NotNative(index, None, f"the index is a {type(index).__name__}; it must be an int")
    try:
        return operator.index(index)
    except (TypeError, ValueError, RuntimeError) as error:
        raise NotNative(index, None, f"the index is not an integer ({error})") from None
