"""Resizes by feedmill's kernels: of parts given as boxes, and of images that have pixels already,
as those of PNG and WebP files, which Pillow decodes.
"""

from __future__ import annotations

import struct
from typing import Any

from PIL import Image

from feedmill._ops import native
from feedmill.deferred.filters import filter_of
from feedmill.deferred.orientations import UPRIGHT

Box = tuple[float, float, float, float]  # left, top, right, bottom

_NEAREST = int(Image.Resampling.NEAREST)
_MAX_SIDE = 65535
# By Pillow's number of the filter: whether boxes give Pillow's pixels.
_exact: dict[int, bool] = {}
# Below this many pixels of source and result together, Pillow is as fast.
_LEAST_PX = 1 << 12


def is_size(size: Any) -> bool:
    """Whether a size can be passed on as it is: two ints within feedmill's limits."""
    return (
        type(size) is tuple
        and [type(one) for one in size] == [int, int]
        and 0 < size[0] <= _MAX_SIDE
        and 0 < size[1] <= _MAX_SIDE
    )


def as_floats(box: Any) -> Box | None:
    """A box as Pillow's C code gets it, rounded to floats; None if it does not accept it."""
    try:
        left, top, right, bottom = struct.unpack("4f", struct.pack("4f", *box))
    except (struct.error, OverflowError, TypeError):
        return None
    return left, top, right, bottom


def box_within(box: Any, size: tuple[int, int], wanted: tuple[int, int]) -> Box | None:
    """A part of an image of this size that feedmill can resize to the wanted size.

    None for a box that is empty or not within the image, or one that Pillow may only crop.
    """
    part = as_floats(box) if type(box) in (tuple, list) else None
    if part is None:
        return None
    left, top, right, bottom = part
    if not (0 <= left < right <= size[0] and 0 <= top < bottom <= size[1]):
        return None
    width, height = right - left, bottom - top
    if abs(width - wanted[0]) < 0.25 and abs(height - wanted[1]) < 0.25:
        return None
    # Floats that are rounded so that the box seems to have no pixels.
    return part if width > 1e-3 and height > 1e-3 else None


def is_part_of_size(box: Any, size: tuple[int, int], wanted: Any) -> bool:
    """Whether a box is a part of an image of this size, in whole pixels, with the wanted size."""
    if type(box) is not tuple or [type(one) for one in box] != [int] * 4 or not is_size(wanted):
        return False
    left, top, right, bottom = box
    is_within = 0 <= left < right <= size[0] and 0 <= top < bottom <= size[1]
    return bool(is_within and (right - left, bottom - top) == wanted)


def boxes_are_exact(number: int) -> bool:
    """Whether resize(box=...) by a filter, which filter_of() knows, gives the installed Pillow's
    pixels. Compares them at the first call."""
    if number not in _exact:
        _exact[number] = number != _NEAREST and not any(_differs(number, *one) for one in _TRIED)
    return _exact[number]


# Parts of an image of _TRIED_SIZE, and sizes: enlarged and reduced, at the edges and within, on
# bounds of pixels and between them, with more and with fewer rows than columns.
_TRIED_SIZE = (48, 150)
_TRIED: tuple[tuple[Box, tuple[int, int]], ...] = (
    ((0.0, 0.0, 48.0, 150.0), (20, 16)),
    ((0.4, 0.7, 47.9, 149.2), (20, 16)),
    ((10.0, 20.0, 30.0, 40.0), (33, 31)),
    ((10.25, 20.5, 11.1, 149.0), (9, 140)),
    ((3.3, 4.4, 40.1, 50.7), (7, 60)),
    ((0.0, 100.1, 48.0, 150.0), (48, 12)),
    ((30.1, 0.0, 48.0, 150.0), (5, 150)),
    ((1.5, 2.5, 46.5, 147.5), (160, 3)),
)


def _differs(number: int, box: Box, size: tuple[int, int]) -> bool:
    found = filter_of(number)
    width, height = _TRIED_SIZE
    data = bytes(7 * i * i * i // 11 % 256 for i in range(3 * width * height))
    if found is None:
        return True
    resize = (*size, *found, (0, 0, *size), UPRIGHT, box)
    got = native.render((data, width, height), (0, 0, width, height), UPRIGHT, resize)
    image = Image.frombytes("RGB", (width, height), data)
    resized = Image.new("RGB", size)
    resized.im = image.im.resize(size, number, box)
    wanted = resized.tobytes("raw", "RGBX")
    if not isinstance(got, bytes) or any(got[i::3] != wanted[i::4] for i in range(3)):
        return True
    return wanted[3::4] != bytes(size[0] * size[1])


# ---- images with pixels --------------------------------------------------------------------------


def exported(core: Any) -> object:
    """The memory of an RGB core as native.render() takes it; None if this Pillow does not export
    it, or has it in several blocks, or with gaps between its rows."""
    if Image.core.get_alignment() != 1:  # type: ignore[attr-defined]
        return None
    try:
        return core.__arrow_c_array__()
    except (AttributeError, ValueError):
        return None


class ResizingCore:
    """Stands in for an RGB core that Image.resize() is about to resize."""

    __slots__ = ("_core",)

    def __init__(self, core: Any) -> None:
        self._core = core

    def resize(self, size: Any, resample: Any, box: Any) -> Any:
        """As ImagingCore.resize()."""
        return _resized(self._core, size, resample, box) or self._core.resize(size, resample, box)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._core, name)


def _resized(core: Any, size: Any, resample: Any, box: Any) -> Any:
    """A resized core; None if feedmill can't give Pillow's."""
    if not is_size(size) or resample == _NEAREST:
        return None
    width, height = core.size
    found = filter_of(resample)
    if found is None or width * height + size[0] * size[1] < _LEAST_PX:
        return None
    part = box_within(box, core.size, size)
    if part is None or not boxes_are_exact(int(resample)):
        return None
    source = exported(core)
    if source is None:
        return None
    result = Image.core.new("RGB", size)  # type: ignore[attr-defined]
    target = exported(result)
    resize = (*size, *found, (0, 0, *size), UPRIGHT, part)
    if target is None or native.render(
        (source, width, height), (0, 0, width, height), UPRIGHT, resize, target, 0
    ):
        return None
    return result
