"""Sends the tensors of a worker process's batches in slots."""

from __future__ import annotations

import os
import platform
import resource
import sys
import threading
import weakref
from collections import UserDict
from collections.abc import Callable
from multiprocessing import queues, reduction
from typing import Any

import torch
from torch.utils.data import get_worker_info

from feedmill import _internals
from feedmill._ops import native
from feedmill.handover.control import retire_before_fork
from feedmill.handover.placing import IndexQueue, Placing, make_fetcher
from feedmill.handover.received import receive
from feedmill.handover.slots import SMALL_BYTES, Pool

# Of the process's limit of file descriptors, slots use up to this share, and at most so many.
_SHARE_OF_FDS = 1 / 16
_MAX_SLOTS = 64
_MIN_SLOTS = 4
# If a batch has more tensors, its small ones are sent in torch's way.
_MAX_SMALL_TENSORS = 16
_MAX_NOTED = 4096
_MAX_DEPTH = 8
# malloc() keeps so many bytes of freed memory, so that tensors of the next batch need no new pages.
_KEPT_BYTES = 1 << 27


# Of this process, if it is a worker that copies samples early.
_placing: Placing | None = None


def why_not() -> str:
    """The reason why worker processes like this one send batches in torch's way; "" if they use
    memory that is reused. A worker may find another reason in itself."""
    if platform.machine() not in ("x86_64", "AMD64"):
        return f"reused memory needs an x86-64 CPU's order of stores, not {platform.machine()}'s"
    if not _internals.can_share_storages():
        return f"torch {torch.__version__} shares storages in another way"
    if not _internals.uses_descriptors():
        return "the sharing strategy is file_system"
    if _n_slots() < _MIN_SLOTS:
        return f"the limit of file descriptors is {resource.getrlimit(resource.RLIMIT_NOFILE)[0]}"
    return ""


def _n_slots() -> int:
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limit == resource.RLIM_INFINITY:
        return _MAX_SLOTS
    return min(_MAX_SLOTS, int(limit * _SHARE_OF_FDS))


def install(results: Any, places_samples: bool = False) -> str:
    """See ``install_in_worker()``."""
    native.keep_freed_memory(_KEPT_BYTES)
    if why := why_not():
        return why
    if not isinstance(results, queues.Queue) or not hasattr(results, "_thread"):
        return "torch's workers send their batches in an unknown way"
    try:
        os.close(os.memfd_create("feedmill-batch"))
        _Sending(results, _n_slots(), places_samples)
    except (AttributeError, OSError, RuntimeError) as error:
        return f"no shared memory: {error}"
    return ""


class _Sending:
    """Replaces, in this process, how tensors are collated and pickled for the main process.

    Args:
        results: the queue of batches.
        n_slots: at most so many exist.
        places_samples: see install_in_worker().
    """

    def __init__(self, results: Any, n_slots: int, places_samples: bool) -> None:
        self._pool = Pool(n_slots)
        self._results = results
        # Tensors to which only a batch refers, by id().
        self._movable: dict[int, weakref.ref[torch.Tensor]] = {}
        self._counts = _Counts()
        self._put = results.put
        results.put = self.put
        is_torchs = _internals.is_collate_untouched()
        _internals.replace_tensor_collate(self._make_collate)
        self._placing: Placing | None = None
        if places_samples and is_torchs:
            self._placing = _start_placing(self._pool)
        reduction.ForkingPickler.register(torch.Tensor, self._reduce)
        retire_before_fork(self._pool.memories)

    # ---- collating -------------------------------------------------------------------------------

    def _make_collate(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """A function that collates tensors as ``original`` does, if possible into a slot."""

        def collate_tensor_fn(batch: Any, *, collate_fn_map: Any = None) -> Any:
            stacked = self._stacked(batch)
            if stacked is not None:
                return stacked
            return original(batch, collate_fn_map=collate_fn_map)

        return collate_tensor_fn

    def _stacked(self, batch: Any) -> torch.Tensor | None:
        """The tensors stacked in a slot; None if that is left to torch."""
        if type(batch) not in (list, tuple) or not batch or get_worker_info() is None:
            return None
        placed = self._placing.end(batch) if self._placing else None
        if placed is not None:
            return placed
        batch = _as_plain(batch)
        first = batch[0]
        if not (_is_plain(first) and _internals.uses_descriptors()):
            return None
        shape, dtype = first.shape, first.dtype
        if not all(_is_plain(one) and one.shape == shape and one.dtype is dtype for one in batch):
            return None
        storage = self._pool.take(len(batch) * first.numel() * first.element_size())
        if storage is None:
            return None
        out = torch.empty(0, dtype=dtype)
        out.set_(storage, 0, (len(batch), *shape))  # type: ignore[call-overload]
        return torch.stack(batch, 0, out=out)

    # ---- sending ---------------------------------------------------------------------------------

    def put(self, item: Any, *arguments: Any, **options: Any) -> None:
        """As Queue.put(), which the worker calls with (number of the batch, batch)."""
        if type(item) is tuple and len(item) == 2:
            self._note_movable(item)
        self._put(item, *arguments, **options)

    def _note_movable(self, item: tuple[Any, Any]) -> None:
        tensors = _owned_tensors(item, self._counts)
        if len(tensors) > _MAX_SMALL_TENSORS:
            tensors = [one for one in tensors if one.nbytes > SMALL_BYTES]
        if len(self._movable) > _MAX_NOTED:  # of batches that could not be pickled
            self._movable.clear()
        self._movable.update((id(one), weakref.ref(one)) for one in tensors)

    def _reduce(self, tensor: torch.Tensor) -> Any:
        """Pickles a tensor."""
        # A queue pickles in a thread of its own, which pickles nothing else.
        if threading.current_thread() is self._results._thread:
            reduced = self._reduce_to_slot(tensor)
            if reduced is not None:
                return reduced
        return _internals.reduce_tensor(tensor)

    def _reduce_to_slot(self, tensor: torch.Tensor) -> Any:
        """None if the tensor is to be sent in torch's way."""
        if not (_is_plain(tensor) and _internals.uses_descriptors()):
            return None
        storage = tensor.untyped_storage()
        try:
            message = self._pool.message(storage)
            is_owned = _n_references(storage) == self._counts.of_storage
            if message is None and is_owned and self._is_movable(tensor):
                copy = self._pool.take(storage.nbytes())
                if copy is not None:
                    copy.copy_(storage, non_blocking=False)
                    message = self._pool.message(copy)
        except OSError:  # no file descriptor is left; torch's error is the right one
            return None
        if message is None:
            return None
        place = tensor.storage_offset(), tuple(tensor.shape), tensor.stride()
        return receive, (message, tensor.dtype, *place)

    def _is_movable(self, tensor: torch.Tensor) -> bool:
        """Whether nobody would see that the other process gets a copy of a tensor, which is the
        only one in its storage."""
        reference = self._movable.pop(id(tensor), None)
        return reference is not None and reference() is tensor and not tensor.is_shared()


def _start_placing(pool: Pool) -> Placing:
    global _placing
    _placing = Placing(pool, _is_plain)
    _internals.set_map_fetcher(make_fetcher(_placing.place))
    return _placing


def placing_queue(indices: Any) -> Any:
    """See ``handover.placing_queue()``."""
    return IndexQueue(indices, _placing.begin) if _placing else indices


def _as_plain(batch: Any) -> Any:
    """torchvision's images, masks and videos as tensors, if torch stacks them to a tensor; other
    batches as they are."""
    module, kind = sys.modules.get("torchvision.tv_tensors"), type(batch[0])
    if kind is torch.Tensor or module is None or not getattr(batch[0], "ndim", 0):
        return batch
    if kind not in (getattr(module, name, None) for name in ("Image", "Mask", "Video")):
        return batch
    # set_return_type() changes that.
    probe = batch[0].new(1)
    if type(probe) is not torch.Tensor or type(torch.stack([batch[0][:0]])) is not torch.Tensor:
        return batch
    return [one.as_subclass(torch.Tensor) if type(one) is kind else one for one in batch]


def _is_plain(tensor: Any) -> bool:
    """Whether pickling a tensor means sharing its storage, and nothing else."""
    return (
        type(tensor) is torch.Tensor
        and tensor.layout is torch.strided
        and tensor.device.type == "cpu"
        and not tensor.requires_grad
        and not tensor.is_quantized
        and not tensor.is_nested
        and not tensor.is_conj()
        and not tensor.is_neg()
        and not any(getattr(tensor, "names", ()))
    )


# ---- who refers to a batch -----------------------------------------------------------------------


def _n_references(storage: torch.UntypedStorage) -> tuple[int, int]:
    """Counts references to a storage: by tensors, and to its Python object."""
    return _internals.n_owners(storage), sys.getrefcount(storage)


def _parts(container: Any) -> list[Any]:
    """What a container of a known type holds."""
    if type(container) is dict:
        return list(container.values())
    if isinstance(container, UserDict):
        return [vars(container).get("data")]
    return list(container) if type(container) is list or isinstance(container, tuple) else []


def _walk(value: Any, enter: Callable[[Any, int, int], bool], depth: int = 0) -> None:
    """Calls enter(value, number of references to it, depth) for a value and, if that returned True,
    for what it holds."""
    if enter(value, sys.getrefcount(value), depth):
        parts = _parts(value)
        for number in range(len(parts)):
            _walk(parts[number], enter, depth + 1)


class _Counts:
    """How many references _walk() finds to a batch, to what it holds, and to the storage of a
    tensor, if each has one owner."""

    def __init__(self) -> None:
        self.of_depth: list[int] = []
        data = [[torch.zeros(1)]]
        self.put((0, data))
        tensor = torch.zeros(1)
        storage = tensor.untyped_storage()
        self.of_storage = _n_references(storage)

    def put(self, item: Any) -> None:
        """Called as torch's worker calls Queue.put()."""
        self._note(item)

    def _note(self, item: Any) -> None:
        _walk(item[1], self._enter)

    def _enter(self, _value: Any, count: int, _depth: int) -> bool:
        self.of_depth.append(count)
        return True

    def is_owned(self, count: int, depth: int) -> bool:
        """Whether ``count`` references to a value at this depth are those of one owner."""
        return count <= self.of_depth[min(depth, 1)]


def _owned_tensors(item: tuple[Any, Any], counts: _Counts) -> list[torch.Tensor]:
    """The tensors in (number, batch) to which only the batch refers."""
    found = []

    def enter(value: Any, count: int, depth: int) -> bool:
        if depth > _MAX_DEPTH or not counts.is_owned(count, depth):
            return False
        if type(value) is torch.Tensor:
            found.append(value)
        return True

    _walk(item[1], enter)
    return found
