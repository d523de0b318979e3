"""The memory of batches in a worker process."""

from __future__ import annotations

import mmap
import os
import threading
from multiprocessing.reduction import DupFd
from typing import Any

import torch

from feedmill import _internals
from feedmill.collate.blocks import shared_memory
from feedmill.handover.control import N_PLACES, NEVER, Control, Memory, make_control_memory
from feedmill.system.locks import renew_after_fork

# Slots up to this size are small; they may take half of the places.
SMALL_BYTES = 1 << 16
# A slot may be larger than what is put into it, by this factor.
_MAX_FACTOR = 2
# A free slot that was not used for this many times the number of slots is freed.
_MAX_AGE = 16


class Slot(Memory):
    """Memory for one tensor at a time.

    Attributes:
        place: index in the Control.
        serial: number of this slot, from 1; unique in this process.
        capacity: bytes of the memory.
        n_sent: tensors sent.
        used: number of the latest use, of all uses of slots.
    """

    def __init__(self, place: int, serial: int, n_bytes: int) -> None:
        self.place = place
        self.serial = serial
        self.capacity = -(-n_bytes // mmap.PAGESIZE) * mmap.PAGESIZE
        self.n_sent = 0
        self.used = 0
        fd = shared_memory(self.capacity)
        try:
            super().__init__(fd, n_bytes)
        finally:
            os.close(fd)


class Pool:
    """The slots of this process. Thread-safe.

    Args:
        max_slots: at most so many exist. Each takes a file descriptor here and in the main process.
    """

    def __init__(self, max_slots: int) -> None:
        self._max_slots = min(max_slots, N_PLACES)
        self._fd = make_control_memory()
        self._control = Control(self._fd)
        # Known to the main process as this worker's name.
        self._token = (os.getpid(), *_internals.id_of_fd(self._fd))
        self._is_known = False
        self._slots: list[Slot] = []
        self._places = list(range(self._max_slots))
        self._n_made = self._n_used = 0
        self._lock = threading.Lock()
        renew_after_fork(self, _lock=threading.Lock)

    def take(self, n_bytes: int) -> torch.UntypedStorage | None:
        """A storage of exactly ``n_bytes``, in use as long as somebody refers to it. Its content is
        undefined. None: there is no memory, or there are too many slots in use."""
        if n_bytes <= 0:
            return None
        with self._lock:
            free = self._free_slots()
            fits = [slot for slot in free if n_bytes <= slot.capacity <= _MAX_FACTOR * n_bytes
                    + mmap.PAGESIZE]
            best = min(fits, default=None, key=lambda one: (one.storage.nbytes() != n_bytes,
                                                            one.capacity))
            try:
                slot = self._make(n_bytes, free) if best is None else best
                if slot is None:
                    return None
                slot.set_size(n_bytes)
            except (OSError, RuntimeError):
                return None
            self._n_used += 1
            slot.used = self._n_used
            return slot.storage

    def message(self, storage: torch.UntypedStorage) -> tuple[Any, ...] | None:
        """What the main process needs to find a storage from take() (Sender.receive()); None for
        another storage. The caller must send it exactly once."""
        with self._lock:
            slot = next((one for one in self._slots if one.storage is storage), None)
            if slot is None:
                return None
            is_new = self._control.get_mapped(slot.place) != slot.serial
            fds = None
            if is_new:
                fds = DupFd(self._fd), DupFd(_internals.fd_of_storage(storage))
            slot.n_sent += 1
        return self._token, fds, slot.place, slot.serial, storage.nbytes()

    def memories(self) -> list[Memory]:
        """The slots, as they are now."""
        return list(self._slots)

    # ---- called with the lock held ---------------------------------------------------------------

    def _free_slots(self) -> list[Slot]:
        """The free slots, after those that can't be used again, or were not for long, are freed."""
        free = []
        for slot in list(self._slots):
            if not slot.is_idle() or self._control.get_received(slot.place) != slot.n_sent:
                continue
            released = self._control.get_released(slot.place)
            if released == NEVER or not slot.may_be_reused():
                self._drop(slot)
            elif released == slot.n_sent:
                if self._n_used - slot.used > _MAX_AGE * len(self._slots):
                    self._drop(slot)
                else:
                    free.append(slot)
        return free

    def _drop(self, slot: Slot) -> None:
        self._slots.remove(slot)
        self._control.set_mapped(slot.place, 0)
        self._places.append(slot.place)

    def _make(self, n_bytes: int, free: list[Slot]) -> Slot | None:
        is_small = n_bytes <= SMALL_BYTES
        if is_small:
            n_small = sum(one.capacity <= SMALL_BYTES for one in self._slots)
            if n_small >= self._max_slots // 2:
                return None
        if not self._places and free:
            self._drop(min(free, key=lambda one: one.used))
        if not self._places:
            return None
        place = self._places[0]
        slot = Slot(place, self._n_made + 1, n_bytes)
        self._n_made += 1
        for put in (self._control.set_mapped, self._control.set_received,
                    self._control.set_released):
            put(place, 0)
        self._places.remove(place)
        self._slots.append(slot)
        return slot
