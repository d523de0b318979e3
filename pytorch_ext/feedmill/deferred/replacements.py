"""Functions of other libraries that are replaced while somebody defers images.

They are put back in between: a function that a dataset has kept can only be pickled, for workers
that are spawned, while its module has the same one by its name.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterable, Iterator
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


def _exchange(replacements: Iterable[_Replacement], *, to_ours: bool) -> None:
    """Puts our functions in the place of the original ones, or the reverse, unless somebody else
    has replaced them. Without workers this is done twice for each batch, and so must be cheap."""
    modules = sys.modules
    for owner, name, original, ours in replacements:
        before, after = (original, ours) if to_ours else (ours, original)
        if isinstance(owner, str):
            owner = modules.get(owner)
        if isinstance(owner, dict):
            if owner.get(name) is before:
                owner[name] = after
        elif owner is not None and owner.__dict__.get(name) is before:
            setattr(owner, name, after)


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
            _exchange([one], to_ours=True)


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
            _exchange(_all, to_ours=True)


def _leave() -> None:
    global _n_users
    with _lock:
        _n_users -= 1
        if not _n_users:
            _exchange(_all, to_ours=False)
