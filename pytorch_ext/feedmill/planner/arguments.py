"""What transforms were made with: sizes, ranges, filters and fills, checked."""

from __future__ import annotations

import inspect
import math
import sys
from collections.abc import Sequence
from typing import Any

from feedmill._internals import FUNCTIONAL, mode_of_number, v2_fills
from feedmill.planner.plan import FILTERS, MAX_SIZE_PX, Refusal

V1, V2 = "torchvision.transforms.transforms", "torchvision.transforms.v2"
V1_AUTO = "torchvision.transforms.autoaugment"


def filter_of(transform: Any, name: str, module: str) -> int:
    """fm_filter of a transform's interpolation, which is a mode, Pillow's number of one or, in v2,
    its name; Refusal for what torchvision does not take."""
    from PIL import Image

    value = transform.interpolation
    functional = sys.modules[FUNCTIONAL]
    modes = functional.InterpolationMode
    mode = value
    if type(value) in (int, bool, getattr(Image, "Resampling", int)):
        mode = mode_of_number(value)
    elif type(value) is str and module == V2 and _takes_mode_names(type(transform)):
        mode = next((one for one in modes if one.value == value), None)
    # What Pillow is told: torchvision has two modes for its nearest one.
    number = functional.pil_modes_mapping.get(mode) if type(mode) is modes else None
    if number not in FILTERS:
        raise Refusal(f"{name} has interpolation={value!r}, which is none of Pillow's filters")
    return FILTERS[number]


def _takes_mode_names(kind: type) -> bool:
    """Whether this torchvision takes interpolation="bilinear"; older ones do not."""
    return isinstance(inspect.signature(kind).parameters["interpolation"].default, str)


def is_size(value: Any) -> bool:
    return type(value) is int and 1 <= value <= MAX_SIZE_PX


def size_pair(size: Any, name: str) -> tuple[int, int]:
    """(height, width)"""
    if isinstance(size, Sequence) and len(size) == 2 and all(map(is_size, size)):
        return size[0], size[1]
    raise Refusal(f"{name} has size={size!r}; sizes are ints from 1 to {MAX_SIZE_PX}")


def is_number(value: Any) -> bool:
    return type(value) in (int, float) and math.isfinite(value)


def range_pair(values: Any, what: str) -> tuple[float, float]:
    """(low, high), in this order."""
    good = isinstance(values, Sequence) and len(values) == 2 and all(map(is_number, values))
    if not good or not values[0] <= values[1]:
        raise Refusal(f"{what} is {values!r}, not a pair (low, high)")
    return float(values[0]), float(values[1])


def probability(transform: Any, name: str) -> float:
    """A transform's p, cut off to 0 to 1."""
    p = transform.p
    if type(p) not in (int, float) or math.isnan(p):
        raise Refusal(f"{name} has p={p!r}")
    return min(max(float(p), 0.0), 1.0)


def fill_of(transform: Any, name: str, module: str, n_channels: int) -> tuple[int, int, int]:
    """A transform's fill as Pillow gets it, for each channel."""
    fill = transform.fill
    if module == V2:
        known = v2_fills(transform)
        if type(known) is not dict or list(known) != ["others"]:
            raise Refusal(f"{name} has fill={fill!r}, one for each type")
        fill = known["others"]
    values = [0 if fill is None else fill]
    if type(fill) in (list, tuple):
        values = list(fill)
        if n_channels == 1 and len(values) != 1:
            raise Refusal(f"{name} has fill={fill!r} for images of one channel")
    if len(values) not in (1, 3) or not all(map(is_number, values)):
        raise Refusal(f"{name} has fill={fill!r}; natively it is one number or three")
    numbers = [int(value) for value in values] * (3 // len(values))
    if not all(0 <= value <= 255 for value in numbers):
        raise Refusal(f"{name} has fill={fill!r}; natively it is from 0 to 255")
    return numbers[0], numbers[1], numbers[2]
