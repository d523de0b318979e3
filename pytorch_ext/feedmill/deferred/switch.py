"""Whether decoding is put off: in the current thread, and in the process."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager


class _Threads(threading.local):
    """Attributes:
    deferring: whether decoding is put off in the current thread; None: as in the whole process.
    was_asked: see was_asked().
    """

    deferring: bool | None = None
    was_asked = False


_threads = _Threads()
_everywhere = False


def is_deferring() -> bool:
    """Whether decoding is put off in this thread. Asked by patched functions before they do
    something else than the original ones."""
    _threads.was_asked = True
    on = _threads.deferring
    return _everywhere if on is None else on


def was_asked() -> bool:
    """Whether a patched function has had something to do in this thread since the last call of
    this."""
    asked, _threads.was_asked = _threads.was_asked, False
    return asked


def note_use() -> None:
    """Counts as a call of is_deferring(): somebody uses a deferred image."""
    _threads.was_asked = True


@contextmanager
def switched(on: bool) -> Iterator[None]:
    """Puts decoding off in this thread, or does not, as in a self-test. May be nested."""
    before = _threads.deferring
    try:
        _threads.deferring = on
        yield
    finally:
        _threads.deferring = before


@contextmanager
def off_everywhere() -> Iterator[None]:
    """Puts nothing off in the block: not in this thread, nor in threads without a setting of their
    own, such as those that a dataset starts in a worker process."""
    global _everywhere
    before = _everywhere
    try:
        _everywhere = False
        with switched(False):
            yield
    finally:
        _everywhere = before


def switch_everywhere() -> None:
    """Puts decoding off in all threads of this process, to its end."""
    global _everywhere
    _everywhere = True
