"""Functions of other libraries that are replaced while somebody defers images.

They are put back in between: a function that a dataset has kept can only be pickled, for workers
that are spawned, while its module has the same one by its name.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from feedmill.system import locks


class _Replacement(NamedTuple):
    """One function: ``owner`` is a module, a class or a dict, ``name`` the attribute or key. A
    module may be given by its name: it may be imported later, and then have ours from another."""

    owner: Any
    name: Any
    original: Any
    ours: Any

    def exchange(self, before: Any, after: Any) -> None:
        """Puts one in the place of the other, unless somebody else has replaced that."""
        owner = sys.modules.get(self.owner) if isinstance(self.owner, str) else self.owner
        if isinstance(owner, dict):
            if owner.get(self.name) is before:
                owner[self.name] = after
        elif owner is not None and vars(owner).get(self.name) is before:
            setattr(owner, self.name, after)


_all: list[_Replacement] = []
_n_users = 0
# A signal handler of the script may enter a block of its own.
_lock = threading.RLock()
locks.renew_after_fork(sys.modules[__name__], _lock=threading.RLock)


def add(owner: Any, name: Any, original: Any, ours: Any) -> None:
    """Adds a function, which is replaced at once if somebody uses the others."""
    ours.feedmill_original = original  # the planner recognizes the original through ours
    one = _Replacement(owner, name, original, ours)
    with _lock:
        _all.append(one)
        if _n_users:
            one.exchange(original, ours)


@contextmanager
def in_use() -> Iterator[None]:
    """The functions are replaced within the block, in all threads. May be nested."""
    use()
    try:
        yield
    finally:
        _leave()


def use() -> None:
    """The functions are replaced to the end of the process."""
    global _n_users
    with _lock:
        _n_users += 1
        if _n_users == 1:
            for one in _all:
                one.exchange(one.original, one.ours)


def _leave() -> None:
    global _n_users
    with _lock:
        _n_users -= 1
        if not _n_users:
            for one in _all:
                one.exchange(one.ours, one.original)
