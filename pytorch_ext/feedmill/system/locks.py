"""Locks that stay usable after a KeyboardInterrupt and in the child of a fork.

An interrupt must not leave a lock held. The child of a fork has only the thread that forked, so a
lock that another thread held at the fork would stay locked in the child forever.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable
from threading import Lock, RLock
from typing import Any

_owners: weakref.WeakKeyDictionary[Any, dict[str, Callable[[], Any]]] = weakref.WeakKeyDictionary()


def renew_after_fork(owner: Any, **makers: Callable[[], Any]) -> None:
    """Replaces attributes of ``owner`` in the child of every later fork. Use it for locks, and for
    other state that the child must not share with its parent.

    A thread that forks while it holds such a lock finishes its ``with`` block with the old lock.

    Args:
        owner: an object, or a module for its globals. Only a weak reference to it is kept.
        makers: for each attribute, a function that returns its new value.
    """
    _owners[owner] = makers


def _renew() -> None:
    for owner, makers in list(_owners.items()):
        for name, make in makers.items():
            setattr(owner, name, make())


os.register_at_fork(after_in_child=_renew)


def call_if_free(lock: Lock | RLock, work: Callable[[], Any]) -> bool:
    """Calls ``work()`` with the lock held, unless the lock is held already. Never waits.

    The lock is free again afterwards, even if a KeyboardInterrupt comes in between. With a plain
    lock.acquire() and a ``try`` after it, an interrupt between the two would leave the lock held.

    Returns:
        Whether ``work()`` was called.
    """
    taken: list[bool] = []
    try:
        # extend(map()) runs in C: no interrupt comes between taking the lock and recording that.
        taken.extend(map(lock.acquire, (False,)))
        if taken[0]:
            work()
        return taken[0]
    finally:
        if taken and taken[0]:
            lock.release()
