"""Copies each sample of a batch to the batch's memory as soon as the dataset has made it.

torch stacks the samples of a batch when the last one is made: by then the first ones have left the
CPU's caches, and each has its own memory. A tensor that is copied at once can be freed at once, and
its memory serves the next sample.

A tensor or array is copied early only if nobody but its sample refers to it, and nobody but the
caller refers to the sample, so that nobody could change or see it before it is stacked; and only
if torch's default_collate() stacks it. In the sample, the copy takes its place.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch.utils.data import default_collate

from feedmill import _internals
from feedmill._ops import native
from feedmill.handover.slots import Pool

# Smaller tensors are left to torch.
_LEAST_BYTES = 1 << 14
_MAX_DEPTH = 4
_MAX_PLACES = 32


class _Place:
    """One tensor of each sample of a batch.

    Attributes:
        whole: all of the batch's, stacked.
        n: how many samples are in it.
    """

    __slots__ = ("address", "dtype", "n", "row_bytes", "shape", "whole")

    def __init__(self, whole: torch.Tensor) -> None:
        self.whole, self.n = whole, 0
        self.dtype, self.shape = whole.dtype, whole.shape[1:]
        self.address, self.row_bytes = whole.data_ptr(), whole[0].nbytes

    def holds(self, number: int, tensor: Any) -> bool:
        """Whether a tensor is that of sample ``number``, in its place."""
        return (
            type(tensor) is torch.Tensor
            and tensor.data_ptr() == self.address + number * self.row_bytes
            and tensor.dtype is self.dtype
            and tensor.shape == self.shape
            and tensor.is_contiguous()
        )


class Placing:
    """The memory of the batch that a worker process is making. For one thread.

    Args:
        pool: where the memory is from.
        is_plain: whether pickling a tensor means sharing its storage, and nothing else.

    To be made when the functions of default_collate are those that are used later.
    """

    def __init__(self, pool: Pool, is_plain: Callable[[Any], bool]) -> None:
        self._pool, self._is_plain = pool, is_plain
        self._handlers = dict(_internals.collate_handlers())
        self._n_samples = self._number = self._next = 0
        self._places: list[_Place] = []
        # What the counts of references are to a sample, to what it holds, and to a storage, if each
        # has one owner. Known after a sample that is made as by a dataset.
        self._counts: list[Any] = [0, 0, (0, 0)]
        self._is_counting = True
        native.passed_items(_Probe(), self.place)(0)
        self._is_counting = False

    def begin(self, n_samples: int) -> None:
        """Tells that a batch of so many samples comes next; 0: it is left to torch."""
        may = _internals.collate_handlers() == self._handlers and _internals.uses_descriptors()
        self._n_samples, self._number = n_samples if may else 0, -1
        self._places.clear()

    def end(self, batch: Any) -> torch.Tensor | None:
        """The stacked tensors of a batch, if each was copied early."""
        for at, place in enumerate(self._places):
            is_full = place.n == len(batch) == len(place.whole)
            if is_full and all(place.holds(*one) for one in enumerate(batch)):
                return self._places.pop(at).whole
        return None

    def place(self, sample: Any) -> Any:
        """A sample of the dataset, or an equal one whose tensors are in the batch's memory. To be
        called by ``native.passed_items()``, as references are counted."""
        self._number, self._next = self._number + 1, 0
        if self._number >= self._n_samples and not self._is_counting:
            return sample
        try:
            return self._placed(sample, 0)
        except Exception:  # of a value that torch may collate or refuse
            return sample

    def _placed(self, value: Any, depth: int) -> Any:
        count, kind = sys.getrefcount(value), type(value)
        if self._is_counting:
            self._counts[min(depth, 1)] = count
        elif count > self._counts[min(depth, 1)] or depth > _MAX_DEPTH:
            return value
        if kind is torch.Tensor:
            row = self._row(value) if self._is_alone(value) else None
            return value if row is None else row
        if kind is np.ndarray:
            row = self._row(torch.as_tensor(value)) if _is_own_array(value) else None
            return value if row is None else row.numpy()
        if kind is dict:
            keys = list(value)
            if all(type(key) is str for key in keys):
                parts = [self._placed(value[keys[i]], depth + 1) for i in range(len(keys))]
                return dict(zip(keys, parts, strict=True))
        elif kind is tuple or kind is list:
            return kind([self._placed(value[i], depth + 1) for i in range(len(value))])
        return value

    def _is_alone(self, tensor: torch.Tensor) -> bool:
        """Whether nothing but its Python object refers to a tensor's memory."""
        if tensor.nbytes < _LEAST_BYTES or not self._is_plain(tensor):
            return False
        storage = tensor.untyped_storage()
        counts = _internals.n_owners(storage), sys.getrefcount(storage)
        if self._is_counting:
            self._counts[2] = counts
        # A storage that torch has not allocated, as of from_numpy(), has an owner of its own.
        return (
            counts == self._counts[2]
            and _internals.n_uses(tensor) == 1
            and storage.resizable()
            and not storage.is_shared()
            and not weakref.getweakrefcount(tensor)
            and not weakref.getweakrefcount(storage)
        )

    def _row(self, tensor: torch.Tensor) -> torch.Tensor | None:
        """A copy of the tensor in the next place of the batch's memory; None if there is none."""
        if self._is_counting or self._next >= _MAX_PLACES:
            return None
        number, at = self._number, self._next
        self._next += 1
        if number == 0 and at == len(self._places):
            whole = self._new(tensor)
            if whole is not None:
                self._places.append(_Place(whole))
        if at >= len(self._places):
            return None
        place = self._places[at]
        if place.n != number or (tensor.dtype, tensor.shape) != (place.dtype, place.shape):
            return None
        row = place.whole[number]
        row.copy_(tensor)
        place.n += 1
        return row

    def _new(self, tensor: torch.Tensor) -> torch.Tensor | None:
        storage = self._pool.take(self._n_samples * tensor.nbytes)
        if storage is None:
            return None
        whole = torch.empty(0, dtype=tensor.dtype, device="cpu")
        whole.set_(storage, 0, (self._n_samples, *tensor.shape))  # type: ignore[call-overload]
        return whole


def _is_own_array(array: np.ndarray[Any, Any]) -> bool:
    """Whether an array's memory is its own, and torch takes it as it is."""
    flags = array.flags
    return bool(
        array.nbytes >= _LEAST_BYTES
        and array.base is None
        and flags.owndata and flags.writeable and flags.c_contiguous
        and array.dtype.isnative
        and array.dtype.kind in "biuf"
        and array.ndim
        and not weakref.getweakrefcount(array)
    )


class _Probe:
    """A dataset whose samples have one owner."""

    def __getitem__(self, _index: int) -> Any:
        return (torch.zeros(_LEAST_BYTES),)


class IndexQueue:
    """Wraps the queue from which a worker process gets the indices of its batches.

    Args:
        queue: torch's.
        begin: called with the number of samples of each batch, 0 if that is unknown.
    """

    def __init__(self, queue: Any, begin: Callable[[int], None]) -> None:
        self._queue, self._begin = queue, begin

    def get(self, *args: Any, **kwargs: Any) -> Any:
        """As the queue's."""
        item = self._queue.get(*args, **kwargs)
        is_batch = type(item) is tuple and len(item) == 2 and type(item[1]) in (list, tuple)
        self._begin(len(item[1]) if is_batch else 0)
        return item

    def __getattr__(self, name: str) -> Any:
        return getattr(self._queue, name)


def make_fetcher(place: Callable[[Any], Any]) -> Any:
    """The class of torch's objects that make the batches of map-style datasets, with samples that
    go through place() if torch's default_collate() collates them."""

    class Fetcher(_internals.MapFetcher):  # type: ignore[misc]
        def __init__(self, dataset: Any, auto_collation: Any, collate_fn: Any, *rest: Any) -> None:
            if auto_collation and collate_fn is default_collate:
                dataset = _placed_items(dataset, place)
            super().__init__(dataset, auto_collation, collate_fn, *rest)

    return Fetcher


def _placed_items(dataset: Any, place: Callable[[Any], Any]) -> Any:
    """An object whose items are a dataset's, passed through place()."""

    class Items:
        __getitem__ = native.passed_items(dataset, place)

        def __getattr__(self, name: str) -> Any:
            return getattr(dataset, name)

    return Items()
