"""Taking a lock only if it is free now, in a way that no Ctrl-C leaves it taken."""

from __future__ import annotations

from collections.abc import Callable
from threading import Lock, RLock
from typing import Any


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
