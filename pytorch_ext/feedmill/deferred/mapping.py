"""Geometric transforms of deferred images: Image.transform() and what uses it, and crops beyond the
image.

The nearest filter copies the fourth byte of pixels, too, and the fill may have another one. Such a
result keeps its RGB pixels, and Pillow makes its core if somebody needs it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
from PIL import Image, ImageColor, ImageOps

from feedmill._ops import native
from feedmill.deferred.operations import Operations
from feedmill.deferred.resizing import is_size
from feedmill.deferred.switch import switched
from feedmill.planner.plan import FILTERS

# A DeferredCore, whose module imports this one.
_Core = Any

_pillow_transform = Image.Image.transform
_pillow_expand = ImageOps.expand

# The fourth byte of the fill: of a color of three values, and of others.
_FOURTH_OF_COLOR, _FOURTH_OF_OTHERS = 255, 0
_MAX_RESULT_PX = 1 << 26
_NEAREST = int(Image.Resampling.NEAREST)
_AFFINE, _EXTENT = int(Image.Transform.AFFINE), int(Image.Transform.EXTENT)
_PERSPECTIVE = int(Image.Transform.PERSPECTIVE)

Coefficients = tuple[float, float, float, float, float, float, float, float]


def transformed(core: _Core, arguments: tuple[Any, ...], named: dict[str, Any]) -> _Core | None:
    """The core after Image.transform() with these arguments, or None if that has to do it."""
    try:
        size, method, data, resample, color = _named(*arguments, **named)
    except TypeError:
        return None
    if type(resample) not in (int, Image.Resampling) or resample not in (0, 2, 3):
        return None
    found = _fill_of(color)
    if found is None or not is_size(size) or size[0] * size[1] > _MAX_RESULT_PX:
        return None
    mapping = _mapping_of(method, data, size)
    if mapping is None or not is_equal():
        return None

    def remake(real: Any) -> Any:
        image: Any = Image.Image()._new(real)
        return _pillow_transform(image, *arguments, **named).im

    return _mapped(core, size, mapping, int(resample), found, remake)


def _named(
    size: Any, method: Any, data: Any = None, resample: Any = _NEAREST, fill: Any = 1,
    fillcolor: Any = None,
) -> tuple[Any, Any, Any, Any, Any]:
    return size, method, data, resample, fillcolor


def cropped(core: _Core, box: tuple[int, int, int, int]) -> _Core | None:
    """As ImagingCore.crop() of a box that is not within the image, or None."""
    left, top, right, bottom = box
    size = right - left, bottom - top
    if core.mode not in ("RGB", "L") or not is_size(size) or size[0] * size[1] > _MAX_RESULT_PX:
        return None
    inner = max(left, 0), max(top, 0), min(right, core.size[0]), min(bottom, core.size[1])
    if inner[0] >= inner[2] or inner[1] >= inner[3] or core.is_real or not is_equal():
        return None
    if core.has_pixels:
        inner = 0, 0, *core.size
    x, y = left - inner[0], top - inner[1]
    place = x, y, x + size[0], y + size[1]

    def remake(real: Any) -> Any:
        return real.crop(place)

    part = core.crop(inner)
    if not isinstance(part, Operations):
        return None  # another thread has made Pillow's core meanwhile
    return _mapped(part, size, _moving(x, y), _NEAREST, ((0, 0, 0), 0), remake)


def expanded(core: _Core, arguments: tuple[Any, ...], named: dict[str, Any]) -> _Core | None:
    """The core after ImageOps.expand() with these arguments, or None if that has to do it."""
    try:
        border, color = _border_and_fill(*arguments, **named)
    except TypeError:
        return None
    sides, fill = _sides_of(border), _fill_of(color)
    if sides is None or fill is None or not is_equal():
        return None
    left, top, right, bottom = sides
    size = left + core.size[0] + right, top + core.size[1] + bottom
    if not is_size(size) or size[0] * size[1] > _MAX_RESULT_PX:
        return None

    def remake(real: Any) -> Any:
        return _pillow_expand(Image.Image()._new(real), *arguments, **named).im

    return _mapped(core, size, _moving(-left, -top), _NEAREST, fill, remake)


def _border_and_fill(border: Any = 0, fill: Any = 0) -> tuple[Any, Any]:
    return border, fill


def _sides_of(border: Any) -> tuple[int, int, int, int] | None:
    """Left, top, right and bottom of a border; None if Pillow has to look at it."""
    sides = border if type(border) is tuple else (border, border)
    if len(sides) not in (2, 4) or not all(type(one) is int for one in sides):
        return None
    if not all(0 <= one < 1 << 16 for one in sides):
        return None
    left, top, right, bottom = sides * (4 // len(sides))
    return left, top, right, bottom


def _moving(x: int, y: int) -> tuple[int, Coefficients]:
    """The mapping of a result's pixel (0, 0) to the pixel (x, y), without scaling."""
    return native.MAPPING_AFFINE, (1.0, 0.0, float(x), 0.0, 1.0, float(y), 0.0, 0.0)


def _fill_of(color: Any) -> tuple[tuple[int, int, int], int] | None:
    """The fill and its fourth byte; None if Pillow has to look at the color."""
    if color is None:
        return (0, 0, 0), _FOURTH_OF_OTHERS
    if type(color) is str:
        try:
            color = ImageColor.getcolor(color, "RGB")
        except ValueError:
            return None
    if type(color) is int and 0 <= color < 1 << 24:
        return (color & 255, color >> 8 & 255, color >> 16), _FOURTH_OF_OTHERS
    if type(color) is not tuple or [type(one) for one in color] != [int] * 3:
        return None
    if not all(0 <= one <= 255 for one in color):
        return None
    return color, _FOURTH_OF_COLOR


def _mapping_of(
    method: Any, data: Any, size: tuple[int, int]
) -> tuple[int, Coefficients] | None:
    """The kind of mapping and its coefficients; None if Pillow has to look at the data."""
    if type(method) not in (int, Image.Transform) or type(data) not in (tuple, list):
        return None
    n = {_AFFINE: 6, _EXTENT: 4, _PERSPECTIVE: 8}.get(int(method), 0)
    if len(data) < n or not n or (method == _EXTENT and len(data) != n):
        return None
    numbers = data[:n]
    if not all(isinstance(one, int | float) for one in numbers):
        return None
    try:
        if method == _EXTENT:
            x0, y0, x1, y1 = numbers
            numbers = (x1 - x0) / size[0], 0, x0, 0, (y1 - y0) / size[1], y0
        a, b, c, d, e, f, *others = map(float, numbers)
    except OverflowError:
        return None
    g, h = others or (0.0, 0.0)
    kind = native.MAPPING_PERSPECTIVE if method == _PERSPECTIVE else native.MAPPING_AFFINE
    return kind, (a, b, c, d, e, f, g, h)


def _mapped(
    core: _Core,
    size: tuple[int, int],
    mapping: tuple[int, Coefficients],
    resample: int,
    fill: tuple[tuple[int, int, int], int],
    remake: Callable[[Any], Any],
) -> _Core | None:
    """The mapped core, or None if Pillow has to make it.

    Args:
        fill: the color, and its fourth byte.
        remake: makes Pillow's core of the result from Pillow's core before.
    """
    inside, pixels = core.fourth_byte, core.pixels()
    if pixels is None:
        return None
    is_mixed = resample == _NEAREST and inside != fill[1] and core.mode == "RGB"
    make_before = core.maker(pixels, inside) if is_mixed else None
    if is_mixed and make_before is None:
        return None
    result = native.map_pixels(
        mapping[0], pixels, core.size, size, mapping[1], FILTERS[resample], fill[0]
    )
    if not isinstance(result, bytes):
        return None
    if make_before is None:
        # A grey image's pixels get a fourth byte when it is converted.
        return core.of_pixels(result, fill[1] if core.mode == "RGB" else inside, core.mode, size)
    make = make_before
    return core.of_pixels(result, None, core.mode, size, lambda: remake(make()))


# ---- self-test -----------------------------------------------------------------------------------


@functools.cache
def is_equal() -> bool:
    """Whether transforms give the same as the installed Pillow, on images of noise."""
    noise = np.random.default_rng(6).integers(0, 256, (41, 67, 3), np.uint8)
    try:
        with switched(False):  # Pillow must work by itself to be compared with
            decoded = Image.fromarray(noise)
            resized = decoded.resize((50, 60), Image.Resampling.BILINEAR)
            return _crops_are_equal(resized) and _borders_are_equal(resized) and all(
                _is_same(image, size, method, data, resample, color)
                for image, size, color in (
                    (decoded, (67, 41), (9, 200, 77)),
                    (resized, (50, 60), None),
                    (resized, (61, 33), 0x123456),
                )
                for method, data in _TRIED
                for resample in (0, 2, 3)
            )
    except Exception:  # of an unknown version of Pillow
        return False


_TRIED: tuple[tuple[int, tuple[float, ...]], ...] = (
    (_AFFINE, (0.9563, 0.2924, -11.5, -0.2924, 0.9563, 14.25)),
    (_AFFINE, (1, 0.3, 0, 0, 1, 0)),
    (_AFFINE, (1, 0, 0, 0.1, 1, 0)),
    (_AFFINE, (1, 0, 13, 0, 1, -7)),
    (_AFFINE, (1.3, 0, -3.5, 0, -0.7, 60.2)),
    (_EXTENT, (-3.5, 4, 50, 90.25)),
    (_PERSPECTIVE, (1.05, 0.1, -10, 0.05, 1.1, -12, 0.0014, -0.0013)),
    (_PERSPECTIVE, (1, 0, 0.5, 0, 1, 0.5, 0, 0)),
)


def _is_same(
    image: Image.Image, size: tuple[int, int], method: int, data: Any, resample: int, color: Any
) -> bool:
    wanted = _pillow_transform(
        image, size, Image.Transform(method), data, resample, fillcolor=color
    )
    mapping, fill = _mapping_of(method, data, size), _fill_of(color)
    if mapping is None or fill is None:
        return False
    got = native.map_pixels(
        mapping[0], image.tobytes(), image.size, size, mapping[1], FILTERS[resample], fill[0]
    )
    fourth_bytes = set(wanted.tobytes("raw", "RGBX")[3::4])
    inside = set(image.tobytes("raw", "RGBX")[3::4]) if resample == _NEAREST else set()
    return got == wanted.tobytes() and fourth_bytes <= {fill[1], *inside}


def _crops_are_equal(image: Image.Image) -> bool:
    for box in ((-3, -4, 40, 60), (20, 30, 120, 140), (-5, 3, 90, 20), (100, 100, 130, 120)):
        left, top, right, bottom = box
        size = right - left, bottom - top
        if _moved(image, size, left, top, (0, 0, 0)) != image.crop(box).tobytes():
            return False
    return True


def _borders_are_equal(image: Image.Image) -> bool:
    inside = set(image.tobytes("raw", "RGBX")[3::4])
    for border in (0, 3, (2, 5), (1, 2, 3, 4)):
        for color in (0, 0x654321, (5, 6, 7)):
            sides, fill = _sides_of(border), _fill_of(color)
            if sides is None or fill is None:
                return False
            size = image.width + sides[0] + sides[2], image.height + sides[1] + sides[3]
            wanted = _pillow_expand(image, border, color)
            fourth_bytes = set(wanted.tobytes("raw", "RGBX")[3::4])
            got = _moved(image, size, -sides[0], -sides[1], fill[0])
            if got != wanted.tobytes() or not fourth_bytes <= {fill[1], *inside}:
                return False
    return True


def _moved(
    image: Image.Image, size: tuple[int, int], x: int, y: int, fill: tuple[int, int, int]
) -> bytes | str:
    kind, coefficients = _moving(x, y)
    nearest = FILTERS[_NEAREST]
    return native.map_pixels(
        kind, image.tobytes(), image.size, size, coefficients, nearest, fill
    )
