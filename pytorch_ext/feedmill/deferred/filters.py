"""Which of Pillow's filters feedmill computes bit for bit, tried on the installed Pillow."""

from __future__ import annotations

from typing import Any

from feedmill._ops import native
from feedmill.planner.comparing import made
from feedmill.planner.plan import FILTERS, likely_resize_order

_ORDERS = (0, 1, 2)
# Crops of a narrow, high image. The orders in which Pillow may run its two passes
# (fm_resize_order) give different pixels for several of them.
_WIDTH, _HEIGHT = 48, 230
_CROPS = (
    (0, 0, 48, 230), (3, 5, 40, 60), (1, 2, 9, 180), (7, 9, 3, 220), (0, 100, 48, 13),
    (20, 40, 2, 190), (11, 0, 30, 31), (5, 17, 1, 200), (2, 3, 21, 130), (8, 60, 36, 36),
)  # fmt: skip
_SIZES = ((20, 16), (7, 90), (64, 40))

# By Pillow's number: (fm_filter, fm_resize_order), or None.
_found: dict[int, tuple[int, int] | None] = {}


def filter_of(resample: Any) -> tuple[int, int] | None:
    """fm_filter and fm_resize_order that give the pixels of Pillow's filter, None for a filter that
    feedmill does not compute."""
    if not isinstance(resample, int) or resample not in FILTERS:
        return None
    number = int(resample)
    if number not in _found:
        _found[number] = _try(number)
    return _found[number]


def _try(number: int) -> tuple[int, int] | None:
    first = likely_resize_order()
    for order in (first, *(one for one in _ORDERS if one != first)):
        if _equals(number, order):
            return FILTERS[number], order
    return None


def _equals(number: int, order: int) -> bool:
    from PIL import Image

    pixels = made(_WIDTH, _HEIGHT)
    image = Image.fromarray(pixels)
    source = (pixels.tobytes(), _WIDTH, _HEIGHT)
    for left, top, width, height in _CROPS:
        crop = image.crop((left, top, left + width, top + height))
        for size in _SIZES:
            resize = (*size, FILTERS[number], order, (0, 0, *size), 1)
            got = native.render(source, (left, top, width, height), 1, resize)
            if got != crop.resize(size, Image.Resampling(number)).tobytes():
                return False
    return True
