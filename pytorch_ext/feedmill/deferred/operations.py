"""Operations on deferred images: which ones feedmill computes bit for bit as the installed Pillow,
and the methods of Pillow's core that do them.

The fourth byte of an RGB pixel in Pillow's memory goes through some operations, too. All pixels of
a deferred image have the same one. An operation after which they would not is left to Pillow.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from PIL import Image, ImageFilter

from feedmill._ops import native
from feedmill.deferred.switch import switched

# A DeferredCore, whose module imports this one.
_Core = Any

# The fourth byte after Image.new("RGB", size, 0), after a conversion from grey, and after point().
FOURTH_NEW, FOURTH_OF_GRAY, FOURTH_OF_POINT = 0, 255, 0
# Larger radii are left to Pillow, whose time does not depend on them.
_MAX_RADIUS = 5
# Larger factors than anybody uses overflow a float.
_MAX_FACTOR = 1e30


def _operate(kind: int, pixels: bytes, size: tuple[int, int], *arguments: Any) -> bytes | None:
    result = native.operate(kind, pixels, *size, *arguments)
    return result if isinstance(result, bytes) else None


def _made(kind: int, pixels: bytes, size: tuple[int, int]) -> bytes:
    result = native.operate(kind, pixels, *size)
    if isinstance(result, bytes):
        return result
    raise MemoryError(result)


def gray_bytes(pixels: bytes, size: tuple[int, int]) -> bytes:
    """RGB pixels as gray values, one byte each."""
    return _made(native.OPERATION_GRAY_BYTES, pixels, size)


class Operations:
    """The methods of Pillow's core that are operations, for DeferredCore."""

    __slots__ = ()

    def gray(self: _Core) -> _Core | None:
        """As ImagingCore.convert("L") of an RGB image, or None."""
        pixels = self.pixels() if is_equal("gray") else None
        if pixels is None:
            return None
        size = self.size

        def make() -> bytes:
            return _made(native.OPERATION_GRAY, pixels, size)

        return self.of_made(make, FOURTH_OF_GRAY, "L", gray_of=pixels)

    def point(self: _Core, lut: Any, mode: Any) -> Any:
        """As ImagingCore.point()."""
        table = _table_of(lut) if mode is None and self.mode == "RGB" else None
        pixels = self.pixels() if table is not None and is_equal("point") else None
        if pixels is not None:
            changed = _operate(native.OPERATION_POINT, pixels, self.size, table)
            if changed is not None:
                return self.of_pixels(changed, FOURTH_OF_POINT)
        return self.real("point").point(lut, mode)

    def filter(self: _Core, *arguments: Any) -> Any:
        """As ImagingCore.filter(): size, divisor, offset, kernel."""
        # The filter leaves the border's fourth bytes as they are and sets the others to 0.
        is_known = arguments == ImageFilter.SMOOTH.filterargs and self.mode == "RGB"
        if is_known and self.fourth_byte == 0 and is_equal("smooth"):
            pixels = self.pixels()
            smooth = pixels and _operate(native.OPERATION_SMOOTH, pixels, self.size)
            if smooth:
                return self.of_pixels(smooth, 0)
        return self.real("filter").filter(*arguments)

    def gaussian_blur(self: _Core, radius: Any, n_passes: int = 3) -> Any:
        """As ImagingCore.gaussian_blur()."""
        blurred = _blurred(self, native.OPERATION_GAUSSIAN_BLUR, radius, n_passes)
        return blurred or self.real("filter").gaussian_blur(radius, n_passes)

    def box_blur(self: _Core, radius: Any, n_passes: int = 1) -> Any:
        """As ImagingCore.box_blur()."""
        blurred = _blurred(self, native.OPERATION_BOX_BLUR, radius, n_passes)
        return blurred or self.real("filter").box_blur(radius, n_passes)

    def histogram(self: _Core, *arguments: Any) -> Any:
        """As ImagingCore.histogram()."""
        wanted = not arguments and self.mode == "RGB" and is_equal("histogram")
        pixels = self.pixels() if wanted else None
        return native.histogram(pixels) if pixels else self.real("histogram").histogram(*arguments)


def _table_of(lut: Any) -> bytes | None:
    """A table for point() as bytes; None if Pillow has to look at it."""
    if type(lut) is not list or len(lut) != 768:
        return None
    table = native.table_bytes(lut)
    if table is not None:
        return table
    try:
        return bytes(lut)
    except (TypeError, ValueError):  # of other types, or numbers that Pillow clips
        return None


def _blurred(core: _Core, kind: int, radius: Any, n_passes: Any) -> _Core | None:
    if core.mode != "RGB" or type(radius) is not tuple or len(radius) != 2:
        return None
    if type(n_passes) is not int or not 1 <= n_passes <= 3:
        return None
    if not all(type(one) in (int, float) and 0 <= one <= _MAX_RADIUS for one in radius):
        return None
    fourth_byte, pixels = core.fourth_byte, core.pixels() if is_equal("blur") else None
    if pixels is None or fourth_byte is None:
        return None
    blurred = _operate(kind, pixels, core.size, None, 0, 0.0, *radius, n_passes)
    return None if blurred is None else core.of_pixels(blurred, fourth_byte)


# ---- functions of Pillow and torchvision ---------------------------------------------------------


def blended(base: _Core, core: _Core, factor: Any) -> _Core | None:
    """As Image.core.blend(), or None if that has to do it."""
    if (base.mode, core.mode) != ("RGB", "RGB") or base.size != core.size:
        return None
    if type(factor) not in (int, float) or not -_MAX_FACTOR < factor < _MAX_FACTOR:
        return None
    fourth_bytes, made = (base.fourth_byte, core.fourth_byte), base.made
    pixels = core.pixels() if is_equal("blend") else None
    if pixels is None or base.is_real:
        return None
    size = core.size
    if made is not None and made.value is not None:
        kind, other = native.OPERATION_BLEND_VALUE, None
    elif made is not None and made.gray_of is pixels:
        kind, other = native.OPERATION_BLEND_GRAY, None
    else:
        kind, other = native.OPERATION_BLEND, base.pixels()
        if other is None:
            return None
    value = 0 if made is None or made.value is None else made.value
    result = _operate(kind, pixels, size, other, value, factor)
    fourth_byte = _blended_byte(*fourth_bytes, factor)
    return None if result is None or fourth_byte is None else core.of_pixels(result, fourth_byte)


def _blended_byte(base: int | None, value: int | None, factor: float) -> int | None:
    if base is None or value is None:
        return None
    if base == value:
        return base
    one = _operate(
        native.OPERATION_BLEND_VALUE, bytes((value,)) * 3, (1, 1), None, base, factor
    )
    return None if one is None else one[0]


def of_one_value(core: _Core, value: int, fourth_byte: int) -> _Core:
    """An RGB image of the core's size, all of whose bytes are equal."""
    width, height = core.size

    def make() -> bytes:
        return bytes((value,)) * int(3 * width * height)

    return core.of_made(make, fourth_byte, value=value)


def gray_mean(core: _Core) -> int | None:
    """``int(ImageStat.Stat(image.convert("L")).mean[0] + 0.5)``, or None."""
    pixels = core.pixels() if core.mode == "RGB" and is_equal("gray") else None
    total = None if pixels is None else native.gray_sum(pixels)
    return int(total / (core.size[0] * core.size[1]) + 0.5) if isinstance(total, int) else None


def hue_shifted(core: _Core, factor: Any) -> _Core | None:
    """As torchvision's adjust_hue(), or None."""
    if core.mode != "RGB" or type(factor) is not float or not -0.5 <= factor <= 0.5:
        return None
    pixels = core.pixels() if is_equal("hue") else None
    if pixels is None:
        return None
    shift = int(factor * 255) & 255
    shifted = _operate(native.OPERATION_HUE, pixels, core.size, None, shift)
    return None if shifted is None else core.of_pixels(shifted, 0)


def grayscale(core: _Core) -> _Core | None:
    """As torchvision's to_grayscale() with three channels, or None."""
    gray = core.gray() if core.mode == "RGB" else None
    source = None if gray is None else gray.made
    if source is None:
        return None
    source.decode_whole()
    assert source.pixels is not None
    return core.of_pixels(source.pixels, 255)


# ---- self-test -----------------------------------------------------------------------------------


@functools.cache
def is_equal(name: str) -> bool:
    """Whether an operation gives the same as the installed Pillow, on images of noise."""
    noise = np.random.default_rng(5).integers(0, 256, (2, 41, 67, 3), np.uint8)
    try:
        with switched(False):  # Pillow must work by itself to be compared with
            decoded, other = (Image.fromarray(one) for one in noise)
            resized = decoded.resize((60, 37), Image.Resampling.BILINEAR)
            return _TESTS[name](resized, decoded, other)
    except Exception:  # of an unknown version of Pillow
        return False


def compare() -> None:
    """Makes all comparisons, which later calls need not make."""
    for name in _TESTS:
        is_equal(name)


def _shows(image: Image.Image, pixels: bytes | None, fourth_byte: int) -> bool:
    fourth_bytes = set(image.tobytes("raw", "RGBX")[3::4])
    return image.mode == "RGB" and image.tobytes() == pixels and fourth_bytes == {fourth_byte}


def shows_operation(
    image: Image.Image, kind: int, of: Image.Image, fourth_byte: int, *arguments: Any
) -> bool:
    return _shows(image, _operate(kind, of.tobytes(), of.size, *arguments), fourth_byte)


def _test_blend(resized: Image.Image, decoded: Image.Image, other: Image.Image) -> bool:
    def same(base: Image.Image, image: Image.Image, fourth_bytes: tuple[int, int]) -> bool:
        return all(
            shows_operation(Image.blend(base, image, factor), native.OPERATION_BLEND, image,
                            _blended_byte(*fourth_bytes, factor) or 0, base.tobytes(), 0, factor)
            for factor in (0.0, 0.3, 1, 1.7, -0.6, 3.9)
        )

    value = Image.new("RGB", resized.size, 0)
    grey = Image.new("L", resized.size, 99).convert("RGB")
    gray = resized.convert("L").convert("RGB")
    return (
        same(decoded, other, (255, 255))
        and same(value, resized, (FOURTH_NEW, 0))
        and same(grey, resized, (FOURTH_OF_GRAY, 0))
        and same(gray, resized, (FOURTH_OF_GRAY, 0))
        and shows_operation(Image.blend(grey, resized, 1.4), native.OPERATION_BLEND_VALUE, resized,
                            _blended_byte(FOURTH_OF_GRAY, 0, 1.4) or 0, None, 99, 1.4)
        and shows_operation(Image.blend(gray, resized, 0.4), native.OPERATION_BLEND_GRAY, resized,
                            _blended_byte(FOURTH_OF_GRAY, 0, 0.4) or 0, None, 0, 0.4)
    )


def _test_gray(resized: Image.Image, decoded: Image.Image, other: Image.Image) -> bool:
    grey = decoded.convert("L")
    return (
        shows_operation(grey.convert("RGB"), native.OPERATION_GRAY, decoded, FOURTH_OF_GRAY)
        and gray_bytes(decoded.tobytes(), decoded.size) == grey.tobytes()
        and native.gray_sum(decoded.tobytes()) == sum(grey.tobytes())
    )


def _test_smooth(resized: Image.Image, decoded: Image.Image, other: Image.Image) -> bool:
    return all(
        shows_operation(one.filter(ImageFilter.SMOOTH), native.OPERATION_SMOOTH, one, 0)
        for one in (resized, resized.crop((0, 0, 2, 9)))
    )


def _test_point(resized: Image.Image, decoded: Image.Image, other: Image.Image) -> bool:
    tables: Sequence[list[int]] = (
        [255 - i for i in range(256)] * 3,
        [i if i < 128 else 255 - i for i in range(256)] * 3,
        [i & 0xF0 for i in range(256)] * 3,
        [(i * i + 7) // 3 % 256 for i in range(768)],
    )
    return all(
        shows_operation(one.point(table), native.OPERATION_POINT, one, FOURTH_OF_POINT,
                        bytes(table))
        for table in tables
        for one in (resized, decoded)
    )


def _test_blur(resized: Image.Image, decoded: Image.Image, other: Image.Image) -> bool:
    radii = (0.0, 0.1, 0.4, 0.83, 1.3, 1.99, 2.7, 4.2, 5.0)
    pairs = [(one, one) for one in radii] + [(1.2, 0.0), (0.0, 2.2), (3.1, 0.7)]
    blurs = (
        (ImageFilter.GaussianBlur, native.OPERATION_GAUSSIAN_BLUR, 3),
        (ImageFilter.BoxBlur, native.OPERATION_BOX_BLUR, 1),
    )
    images = ((resized, 0), (decoded, 255), (resized.crop((3, 3, 5, 4)), 0))
    return all(
        shows_operation(image.filter(blur(pair)), kind, image, fourth_byte, None, 0, 0.0, *pair,
                        n_passes)
        for blur, kind, n_passes in blurs
        for pair in pairs
        for image, fourth_byte in images
    )


def _test_histogram(resized: Image.Image, decoded: Image.Image, other: Image.Image) -> bool:
    return native.histogram(decoded.tobytes()) == decoded.histogram()


def _test_hue(resized: Image.Image, decoded: Image.Image, other: Image.Image) -> bool:
    # All differences of channels and all orders of them.
    levels = np.arange(0, 256, 5, dtype=np.uint8)
    colors = np.stack(np.meshgrid(levels, levels, levels), -1).reshape(-1, len(levels), 3)
    for image in (Image.fromarray(colors), resized):
        for shift in (0, 51, 200):
            hue, *others = image.convert("HSV").split()
            moved = Image.fromarray(np.asarray(hue) + np.uint8(shift))
            wanted = Image.merge("HSV", (moved, *others)).convert("RGB")
            if not shows_operation(wanted, native.OPERATION_HUE, image, 0, None, shift):
                return False
    return True


_TESTS: dict[str, Callable[[Image.Image, Image.Image, Image.Image], bool]] = {
    "blend": _test_blend,
    "gray": _test_gray,
    "smooth": _test_smooth,
    "point": _test_point,
    "blur": _test_blur,
    "histogram": _test_histogram,
    "hue": _test_hue,
}
