"""Locks beside interrupts, which must not leave one taken, and forks, whose child must not find one
that a thread holds which it does not have."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable
from threading import Lock, RLock
from typing import Any

_owners: weakref.WeakKeyDictionary[Any, dict[str, Callable[[], Any]]] = weakref.WeakKeyDictionary()


def renew_after_fork(owner: Any, **makers: Callable[[], Any]) -> None:
    """In the child of a fork attributes get new values: locks that are free, and what else must not
    be the parent's there. Where a thread forks that holds such a lock itself, the ``with`` block
    that it is in goes on with the old one.

    Args:
        owner: an object, or a module for its global names. It is not kept alive.
        makers: attributes, and what makes their new values.
    """
    _owners[owner] = makers


def _renew() -> None:
    for owner, makers in list(_owners.items()):
        for name, make in makers.items():
            setattr(owner, name, make())


os.register_at_fork(after_in_child=_renew)


def if_free(lock: Lock | RLock, work: Callable[[], Any]) -> bool:
    """Calls ``work()`` under a lock, if that is free now; whether it was.

    An interrupt, wherever it comes, leaves the lock free: between the end of a lock.acquire() and a
    ``try`` behind it, one would leave it taken for good.
    """
    taken: list[bool] = []
    try:
        # A single step of the interpreter: no interrupt comes between the lock and its note.
        taken.extend(map(lock.acquire, (False,)))
        if taken[0]:
            work()
        return taken[0]
    finally:
        if taken and taken[0]:
            lock.release()
