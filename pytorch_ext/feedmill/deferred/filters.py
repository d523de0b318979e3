"""Which of Pillow's filters feedmill computes bit for bit."""

from __future__ import annotations

import threading
from typing import Any

from feedmill.planner.equality import resize_order
from feedmill.planner.plan import FILTERS, UnsupportedError

# By Pillow's number: (fm_filter, fm_resize_order), or None.
_found: dict[int, tuple[int, int] | None] = {}


class _Threads(threading.local):
    """Whether the current thread compares with Pillow, which must then resize by itself."""

    comparing = False


_threads = _Threads()


def filter_of(resample: Any) -> tuple[int, int] | None:
    """fm_filter and fm_resize_order that give the pixels of the installed Pillow's filter.

    None for a filter that feedmill does not compute, or whose pixels differ.
    """
    if not isinstance(resample, int) or resample not in FILTERS or _threads.comparing:
        return None
    number = int(resample)
    if number not in _found:
        _threads.comparing = True
        try:
            _found[number] = FILTERS[number], resize_order(FILTERS[number])
        except UnsupportedError:
            _found[number] = None
        finally:
            _threads.comparing = False
    return _found[number]
