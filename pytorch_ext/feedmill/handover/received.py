"""Batches in the memory of worker processes, in the main process."""

from __future__ import annotations

import os
import sys
import threading
import weakref
from multiprocessing import process
from typing import Any

import torch

from feedmill import _internals
from feedmill.handover.control import NEVER, Control, Memory, retire_before_fork
from feedmill.system.locks import renew_after_fork

Token = tuple[int, ...]


class _Slot(Memory):
    """Attributes:
    serial: as the worker numbers it.
    n_received: tensors received.
    is_released: whether the worker knows that it may use the slot, or that it never may.
    """

    def __init__(self, fd: int, n_bytes: int, serial: int) -> None:
        super().__init__(fd, n_bytes)
        self.serial = serial
        self.n_received = 0
        self.is_released = False


class _Sender:
    """A worker process. Its tensors are received by one thread at a time, usually the same.

    Args:
        fd: descriptor of its Control.
    """

    def __init__(self, fd: int) -> None:
        self._control = Control(fd)
        self._slots: dict[int, _Slot] = {}
        self._lock = threading.RLock()
        renew_after_fork(self, _lock=threading.RLock)

    def receive(self, fd: int | None, place: int, serial: int, n_bytes: int) -> Any:
        """The storage at a place.

        Args:
            fd: descriptor of its memory; None: it has been mapped.
        """
        with self._lock:
            self._release()
            slot = self._slots.get(place)
            if slot is None or slot.serial != serial:
                if fd is None:
                    raise RuntimeError("a batch was received by another process than those before; "
                                       "set FEEDMILL_DEFERRED=0")
                slot = self._slots[place] = _Slot(fd, n_bytes, serial)
                self._control.set_mapped(place, serial)
            slot.set_size(n_bytes)
            slot.n_received += 1
            slot.is_released = False
            self._control.set_received(place, slot.n_received)
            return slot.storage

    def memories(self) -> list[Memory]:
        """The slots, as they are now."""
        return list(self._slots.values())

    def _release(self) -> None:
        """Gives back the slots that are not in use any more."""
        for place, slot in list(self._slots.items()):
            if self._control.get_mapped(place) != slot.serial:
                del self._slots[place]
            elif not slot.is_released and slot.is_idle():
                slot.is_released = True
                received = slot.n_received if slot.may_be_reused() else NEVER
                self._control.set_released(place, received)


_senders: dict[Token, _Sender] = {}
renew_after_fork(sys.modules[__name__], _senders=dict)


def _forget(token: Token) -> None:
    _senders.pop(token, None)


def _memories() -> list[Memory]:
    return [memory for sender in list(_senders.values()) for memory in sender.memories()]


retire_before_fork(_memories)


def _add_sender(token: Token, fd: int) -> _Sender:
    """Adds a worker process, until torch's iterator drops its Process object."""
    children: Any = getattr(process, "_children", ())
    sender = _senders[token] = _Sender(fd)
    for child in list(children):
        if child.pid == token[0]:
            weakref.finalize(child, _forget, token).atexit = False
    return sender


def receive(
    message: tuple[Any, ...],
    dtype: torch.dtype,
    offset: int,
    shape: tuple[int, ...],
    stride: tuple[int, ...],
) -> torch.Tensor:
    """Unpickles a tensor in a slot.

    Args:
        message: from ``slots.Pool.message()``.
        dtype, offset, shape, stride: of the tensor in its storage.
    """
    token, fds, place, serial, n_bytes = message
    sender, slot_fd = _senders.get(token), None
    detached: list[int] = []
    try:
        if fds is not None:
            detached.append(fds[0].detach())
            detached.append(fds[1].detach())
            slot_fd = detached[1]
            if sender is None:
                sender = _add_sender(token, detached[0])
        if sender is None:
            raise RuntimeError("a batch of an unknown worker process")
        storage = sender.receive(slot_fd, place, serial, n_bytes)
    finally:
        for fd in detached:
            os.close(fd)
    return _internals.rebuild_tensor(storage, dtype, offset, shape, stride)
