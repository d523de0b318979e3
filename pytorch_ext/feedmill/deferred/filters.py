"""Which of Pillow's filters feedmill computes bit for bit."""

from __future__ import annotations

from typing import Any

from feedmill.deferred.switch import switched
from feedmill.planner.equality import resize_order
from feedmill.planner.plan import FILTERS, UnsupportedError

# By Pillow's number: (fm_filter, fm_resize_order), or None.
_found: dict[int, tuple[int, int] | None] = {}


def filter_of(resample: Any) -> tuple[int, int] | None:
    """fm_filter and fm_resize_order that give the pixels of the installed Pillow's filter.

    None for a filter that feedmill does not compute, or whose pixels differ.
    """
    if not isinstance(resample, int) or resample not in FILTERS:
        return None
    number = int(resample)
    if number not in _found:
        try:
            with switched(False):  # Pillow must resize by itself to be compared with
                _found[number] = FILTERS[number], resize_order(FILTERS[number])
        except UnsupportedError:
            _found[number] = None
    return _found[number]
