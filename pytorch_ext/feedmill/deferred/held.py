"""How many bytes deferred images hold.

A small part of an image, such as a thumbnail that a dataset keeps, holds the bytes of the whole
file, where Pillow would keep only the part. When all of them hold too much, further images are
left to Pillow. Not counted is the image before a transform by the nearest pixel, which its result
keeps.
"""

from __future__ import annotations

import sys
import threading

from feedmill.system import locks

_MAX_BYTES = 1 << 29

_n_bytes = 0
# A garbage collection within the block may end other images.
_lock = threading.RLock()
locks.renew_after_fork(sys.modules[__name__], _lock=threading.RLock)


def hold(n_bytes: int) -> None:
    """Adds to the bytes that are held by this process; a negative number: they are released."""
    global _n_bytes
    with _lock:
        _n_bytes += n_bytes


def may_hold_more() -> bool:
    """Whether further images may be deferred."""
    return _n_bytes < _MAX_BYTES
