"""What a worker process and the main process tell each other about slots, in shared memory."""

from __future__ import annotations

import mmap
import os
import sys
import weakref
from collections.abc import Callable
from typing import Any

import torch

from feedmill import _internals
from feedmill.collate.blocks import shared_memory

_WORDS_OF_PLACE = 4
N_PLACES = 128
_N_BYTES = 8 * _WORDS_OF_PLACE * N_PLACES
NEVER = -1


def _words(offset: int) -> Any:
    def get(self: Control, place: int) -> int:
        return int(self._words[_WORDS_OF_PLACE * place + offset])

    def put(self: Control, place: int, value: int) -> None:
        self._words[_WORDS_OF_PLACE * place + offset] = value

    return get, put


class Control:
    """Four numbers for each place of a slot. Each is written by one process at a time.

    - mapped: serial number of the slot at this place that the main process has mapped. The worker
      sets 0 when it has given the slot up, and the main process unmaps it.
    - received: how many tensors in the slot the main process has received.
    - released: what ``received`` was when the main process saw that no tensor was left. The slot is
      free if that is the number of tensors sent. NEVER: the slot must not be reused.

    Args:
        fd: descriptor of the memory; stays the caller's.
    """

    def __init__(self, fd: int) -> None:
        self._memory = mmap.mmap(fd, _N_BYTES)
        self._words = memoryview(self._memory).cast("q")

    get_mapped, set_mapped = _words(0)
    get_received, set_received = _words(1)
    get_released, set_released = _words(2)


def make_control_memory() -> int:
    """The file descriptor of memory for a Control."""
    return shared_memory(_N_BYTES)


class Memory:
    """A storage over shared memory, which is reused when nothing but this object refers to it.

    Attributes:
        storage: as torch maps it from a file descriptor.
        retired: never to be reused, as another process may have it.
    """

    def __init__(self, fd: int, n_bytes: int) -> None:
        self.storage = _internals.make_shared_storage(fd, n_bytes)
        self.retired = False
        self._key = _internals.id_of_fd(fd)
        self._address = self.storage.data_ptr()

    def set_size(self, n_bytes: int) -> None:
        """Replaces the storage by one of another size over the same memory."""
        if self.storage.nbytes() != n_bytes:
            fd = _internals.fd_of_storage(self.storage)
            self.storage = _internals.make_shared_storage(fd, n_bytes)
            self._address = self.storage.data_ptr()

    def is_idle(self) -> bool:
        """Whether no tensor and nobody else refers to the storage."""
        return _references(self) == _IDLE

    def may_be_reused(self) -> bool:
        """Whether an idle storage is as it was made, and known to no other process."""
        storage = self.storage
        return not (
            self.retired
            or _internals.was_sent(self._key)
            or weakref.getweakrefcount(storage)
            or vars(storage)
            or storage.data_ptr() != self._address
        )


def _references(memory: Any) -> tuple[int, int]:
    """Counts references to a storage: by tensors, and to its Python object."""
    return _internals.n_owners(memory.storage), sys.getrefcount(memory.storage)


class _Probe:
    def __init__(self) -> None:
        self.storage = torch.UntypedStorage(1)


_IDLE = _references(_Probe()) if _internals.can_share_storages() else (0, 0)


def retire_before_fork(memories: Callable[[], list[Memory]]) -> None:
    """Retires memory that is in use when this process forks: the child has the tensors, too.

    Args:
        memories: returns those of this process.
    """

    def retire() -> None:
        for memory in memories():
            if not memory.is_idle():
                memory.retired = True

    os.register_at_fork(before=retire)
