"""Reads and checks arguments of transforms: sizes, ranges, filters and fill values."""

from __future__ import annotations

import inspect
import math
import sys
from collections.abc import Sequence
from typing import Any

from feedmill._internals import FUNCTIONAL, mode_of_number, v2_fills
from feedmill.planner.plan import FILTERS, MAX_SIZE_PX, UnsupportedError, unsupported_argument

V1, V2 = "torchvision.transforms.transforms", "torchvision.transforms.v2"
V1_AUTO = "torchvision.transforms.autoaugment"


def filter_of(transform: Any, name: str, module: str) -> int:
    """fm_filter of a transform's interpolation: an InterpolationMode, Pillow's number of a filter
    or, in v2, a mode's name. UnsupportedError for any other value."""
    takes_names = module == V2 and _takes_mode_names(type(transform))
    return filter_number(transform.interpolation, name, takes_names)


def filter_number(value: Any, name: str, takes_names: bool = False) -> int:
    """fm_filter of an interpolation; see filter_of().

    Args:
        name: of the transform's class.
        takes_names: whether it may be the name of a mode.
    """
    from PIL import Image

    functional = sys.modules[FUNCTIONAL]
    modes = functional.InterpolationMode
    mode = value
    if type(value) in (int, bool, getattr(Image, "Resampling", int)):
        mode = mode_of_number(value)
    elif type(value) is str and takes_names:
        mode = next((one for one in modes if one.value == value), None)
    # Pillow's number of the filter. Two of torchvision's modes mean Pillow's NEAREST.
    number = functional.pil_modes_mapping.get(mode) if type(mode) is modes else None
    if number not in FILTERS:
        raise unsupported_argument(name, "interpolation", value, "one of Pillow's filters")
    return FILTERS[number]


def _takes_mode_names(kind: type) -> bool:
    """Whether this torchvision takes interpolation="bilinear"; older ones do not."""
    return isinstance(inspect.signature(kind).parameters["interpolation"].default, str)


def is_size(value: Any) -> bool:
    return type(value) is int and 1 <= value <= MAX_SIZE_PX


def size_pair(size: Any, name: str) -> tuple[int, int]:
    """A transform's size as (height, width)."""
    if isinstance(size, Sequence) and len(size) == 2 and all(map(is_size, size)):
        return size[0], size[1]
    raise unsupported_argument(name, "size", size, f"two ints from 1 to {MAX_SIZE_PX}")


def is_number(value: Any) -> bool:
    return type(value) in (int, float) and math.isfinite(value)


def range_pair(values: Any, what: str) -> tuple[float, float]:
    """A range as (low, high). ``what`` names the argument in the reason."""
    good = isinstance(values, Sequence) and len(values) == 2 and all(map(is_number, values))
    if not good or not values[0] <= values[1]:
        raise UnsupportedError(f"{what} is {values!r}; it must be a pair (low, high) of numbers")
    return float(values[0]), float(values[1])


def probability(transform: Any, name: str) -> float:
    """A transform's p, clamped to 0 to 1."""
    p = transform.p
    if type(p) not in (int, float) or math.isnan(p):
        raise unsupported_argument(name, "p", p, "a number")
    return min(max(float(p), 0.0), 1.0)


def fill_of(transform: Any, name: str, module: str, n_channels: int) -> tuple[int, int, int]:
    """A transform's fill value for each channel, as torchvision passes it to Pillow."""
    fill = transform.fill
    if module == V2:
        known = v2_fills(transform)
        if type(known) is not dict or list(known) != ["others"]:
            raise unsupported_argument(name, "fill", fill, "the same for all types")
        fill = known["others"]
    values = [0 if fill is None else fill]
    if type(fill) in (list, tuple):
        values = list(fill)
        if n_channels == 1 and len(values) != 1:
            raise unsupported_argument(name, "fill", fill, "one number for images of one channel")
    if len(values) not in (1, 3) or not all(map(is_number, values)):
        raise unsupported_argument(name, "fill", fill, "one number or three")
    numbers = [int(value) for value in values] * (3 // len(values))
    if not all(0 <= value <= 255 for value in numbers):
        raise unsupported_argument(name, "fill", fill, "from 0 to 255")
    return numbers[0], numbers[1], numbers[2]
