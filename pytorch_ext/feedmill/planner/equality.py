"""Checks that the installed Pillow decodes and resizes to the native code's pixels, and that the
installed torch resizes tensors to them; see ``comparing``."""

from __future__ import annotations

import io
import itertools
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import torch

from feedmill._internals import FUNCTIONAL_TENSOR, mode_of_number
from feedmill._ops import native
from feedmill.planner.comparing import Run, made, once, why_not
from feedmill.planner.formats import bytes_of
from feedmill.planner.plan import (
    FILTER_NAMES,
    FILTERS,
    RANDOM_RESIZED_CROP,
    TORCHS_FLOAT_RESIZE,
    TORCHS_RESIZE,
    FloatResize,
    Op,
    UnsupportedError,
    likely_resize_order,
)

# ---- decoding ------------------------------------------------------------------------------------

# Names in native.formats() -> fm_format.
_BITS = {"JPEG": native.FORMAT_JPEG, "PNG": native.FORMAT_PNG, "WebP": native.FORMAT_WEBP}
_MAX_PIXELS = 1 << 20
# Limit of the test images that a reason names.
_MAX_NAMED = 4


def why_not_jpegs() -> str:
    """The reason why JPEGs can't be decoded natively; "" if they can."""
    return once("JPEG", lambda: why_not("decodes JPEGs", lambda: _differing(_jpegs())))


def rejected_formats() -> int:
    """Formats whose images must go through Pillow, as fm_config.rejected_formats."""
    rejected = sum(bit for name, bit in _BITS.items() if name not in native_formats())
    return rejected | native.FORMAT_JPEG if why_not_jpegs() else rejected


def reasons_against_formats() -> list[str]:
    """Reasons why images of formats that this build can decode go through Pillow."""
    built = native.formats().split(", ")
    reasons = [why_not_format(name) for name in built if name != "JPEG"]
    return [reason for reason in reasons if reason]


def why_not_format(name: str) -> str:
    """The reason why images of a format, "PNG" or "WebP", go through Pillow; "" if this build
    decodes them natively."""
    if name not in native.formats().split(", "):
        return f"this build of feedmill has no decoder of {name} images"
    makers = {"PNG": _pngs, "WebP": _webps}
    return once(name, lambda: why_not(f"decodes {name} images", lambda: _differing(makers[name]())))


def native_formats() -> list[str]:
    """The formats that a native loader decodes. There is no native loader without JPEG."""
    return ["JPEG", *(name for name in ("PNG", "WebP") if not why_not_format(name))]


def _differing(files: Iterable[tuple[str, bytes]]) -> list[str]:
    """The names of the files (name, bytes) that Pillow decodes to other pixels. Files that the
    native decoder rejects do not count: they go through Pillow anyway."""
    from PIL import Image

    different = []
    for name, data in files:
        decoded = native.imread(data, False, _MAX_PIXELS)
        if type(decoded) is not tuple:
            continue
        pixels, height, width = decoded
        wanted = np.asarray(Image.open(io.BytesIO(data)).convert("RGB"))
        if wanted.shape != (height, width, 3) or wanted.tobytes() != pixels:
            different.append(name)
    return different[:_MAX_NAMED]


def _saved(image: Any, kind: str, **options: Any) -> bytes:
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def _jpegs() -> Iterator[tuple[str, bytes]]:
    """JPEGs of each chroma subsampling; progressive; grayscale; CMYK."""
    from PIL import Image

    color = Image.fromarray(made(35, 37))
    whole = Image.fromarray(made(32, 32))  # in whole MCUs of each sampling below
    for number, name in enumerate(("4:4:4", "4:2:2", "4:2:0")):
        yield name, _saved(color, "JPEG", quality=75, subsampling=number)
    yield "4:2:0, coarse", _saved(color, "JPEG", quality=12, subsampling=2)
    yield "4:2:0, progressive", _saved(color, "JPEG", subsampling=2, progressive=True)
    yield "4:4:4, progressive", _saved(color, "JPEG", subsampling=0, progressive=True)
    yield "grey", _saved(Image.fromarray(made(35, 37, 1)[..., 0]), "JPEG")
    yield "CMYK", _saved(Image.fromarray(made(35, 37, 4), "CMYK"), "JPEG", quality=85)
    # Pillow can't write other subsamplings. But changing the luma factors in the header keeps the
    # number and order of blocks valid: two become vertical, four become a row or a column.
    two, four = (_saved(whole, "JPEG", subsampling=number) for number in (1, 2))
    yield "4:4:0", _with_luma(two, 0x12)
    yield "4:1:1", _with_luma(four, 0x41)
    yield "1x4", _with_luma(four, 0x14)


def _with_luma(data: bytes, factors: int) -> bytes:
    """Changes the sampling factors of a baseline JPEG's first component."""
    at = data.index(b"\xff\xc0\0\x11") + 11
    return data[:at] + bytes([factors]) + data[at + 1 :]


def colored_jpegs() -> list[tuple[str, bytes]]:
    """(name, file) of the JPEGs with three components."""
    return [(name, data) for name, data in _jpegs() if name not in ("grey", "CMYK")]


def differing_jpegs(decode: Callable[[bytes], np.ndarray | None]) -> list[str]:
    """The names of made JPEGs, in color or grayscale, of which decode() makes another array
    (height, width, 3) than the native decoder."""
    different = []
    for name, data in _jpegs():
        decoded = native.imread(data, False, _MAX_PIXELS)
        if name == "CMYK" or type(decoded) is not tuple:
            continue
        pixels, height, width = decoded
        got = decode(data)
        wanted = np.frombuffer(pixels, np.uint8).reshape(height, width, 3)
        if got is None or got.dtype != np.uint8 or not np.array_equal(got, wanted):
            different.append(name)
    return different[:_MAX_NAMED]


def made_jpegs() -> list[bytes]:
    """The JPEGs that are compared with Pillow, for comparing with other decoders."""
    return [data for _, data in _jpegs()]


def _pngs() -> Iterator[tuple[str, bytes]]:
    from PIL import Image

    color = Image.fromarray(made(21, 19, 4))
    for mode in ("RGB", "RGBA", "L", "LA", "1"):
        yield mode, _saved(color.convert(mode), "PNG")
    palette = color.convert("RGB").quantize(16)
    yield "P", _saved(palette, "PNG")
    yield "P, transparent", _saved(palette, "PNG", transparency=3)


def _webps() -> Iterator[tuple[str, bytes]]:
    # Otherwise Pillow would import all of its plugins to find this one.
    from PIL import Image, WebPImagePlugin  # noqa: F401

    color = Image.fromarray(made(37, 35, 4))
    yield "lossy", _saved(color.convert("RGB"), "WEBP", quality=60, method=0)
    yield "lossless", _saved(color.convert("RGB"), "WEBP", lossless=True, quality=0, method=0)
    yield "lossy, transparent", _saved(color, "WEBP", quality=60, method=0)


# ---- resizing ------------------------------------------------------------------------------------

_ORDERS = (0, 1, 2)
# Crops of many shapes from a narrow, high image, resized to one size. The orders in which Pillow
# may run its two passes (fm_resize_order) give different pixels for several of these crops.
_CROPPED = (48, 230)
_SIZE = (20, 16)
_N_CROPS = 48
_CROP = Op(
    RANDOM_RESIZED_CROP, _SIZE[1], _SIZE[0], scale_low=0.002, scale_high=0.06, ratio_low=0.004,
    ratio_high=30.0,
)


def resize_order(kind: int, of_tensors: bool = False) -> int:
    """fm_resize_order with which the native resize gives the installed Pillow's pixels.

    Args:
        kind: fm_filter.
        of_tensors: those of the installed torch and torchvision's v2 instead, for uint8 tensors;
            TORCHS_FLOAT_RESIZE if they do it in float32.

    Raises:
        UnsupportedError: no order does.
    """
    find = _try_torchs_resize if of_tensors else _find_order
    order: int | str = once(("resize", kind, of_tensors), lambda: find(kind))
    if isinstance(order, str):
        raise UnsupportedError(order)
    return order


# torchvision's modules whose resize() of tensors is compared if they are imported.
_RESIZING = (FUNCTIONAL_TENSOR, "torchvision.transforms.v2.functional")


def float_resize() -> FloatResize:
    """How torch resizes float32 tensors by bilinear, without its ``values``.

    Raises:
        UnsupportedError: natively it can't be done so.
    """
    key = "resize of floats", *(name in sys.modules for name in _RESIZING)
    found: FloatResize | str = once(key, _find_float_resize)
    if isinstance(found, str):
        raise UnsupportedError(found)
    return found


def _find_float_resize() -> FloatResize | str:
    is_default = torch.backends.cpu.get_cpu_capability() == "DEFAULT"
    likely = (1, 4) if is_default else (4, 8, 16)
    reason = ""
    for run_taps in dict.fromkeys((*likely, 0, 1, 2, 4, 8, 16, 32)):
        reason = why_not(
            "resizes float32 tensors by bilinear",
            lambda run_taps=run_taps: _floats_resized_otherwise(run_taps),  # type: ignore[misc]
            f"torch {torch.__version__}",
        )
        if not reason:
            return FloatResize(run_taps)
    return reason


def _floats_resized_otherwise(run_taps: int) -> list[str]:
    """As _resized_otherwise(), for float32 tensors of a high image and of a wide one."""
    values = torch.arange(256, dtype=torch.float32).div(255).expand(3, 256)
    given = FloatResize(run_taps, bytes_of(values))
    op = _CROP._replace(filter=FILTER_NAMES.index("bilinear"))
    different = []
    for pixels in (made(*_CROPPED), made(*_CROPPED[::-1])):
        run = Run([op], pixels, _N_CROPS, TORCHS_FLOAT_RESIZE, given)
        try:
            for draws, got in itertools.islice(run.results(), _N_CROPS):
                _, top, left, height, width, *_ = draws[0]
                crop = torch.from_numpy(pixels[top : top + height, left : left + width])
                wanted = _floats_by_torch(crop.permute(2, 0, 1).float().div(255))
                if not all(np.array_equal(got, one) for one in wanted):
                    different.append(f"{width} x {height}")
        finally:
            run.close()
    return different[:_MAX_NAMED]


def _floats_by_torch(image: torch.Tensor) -> list[np.ndarray]:
    """By torch and by the imported versions of torchvision's resize, in two memory formats."""
    size = [_SIZE[1], _SIZE[0]]
    v1, v2 = map(sys.modules.get, _RESIZING)
    results = []
    for one in (image, image.contiguous()):
        results.append(
            torch.nn.functional.interpolate(
                one[None], size=size, mode="bilinear", align_corners=False, antialias=True
            )[0]
        )
        if v1 is not None:
            results.append(v1.resize(one, size, "bilinear", antialias=True))
        if v2 is not None:
            results.append(v2.resize(one, size, antialias=True))
    return [result.permute(1, 2, 0).numpy() for result in results]


def _find_order(kind: int) -> int | str:
    what = f"resizes by {FILTER_NAMES[kind]}"
    first = likely_resize_order()
    reason = ""
    for order in (first, *(one for one in _ORDERS if one != first)):
        reason = why_not(what, lambda order=order: _resized_otherwise(kind, order, _by_pillow))  # type: ignore[misc]
        if not reason:
            return order
    return reason


def _try_torchs_resize(kind: int) -> int | str:
    reason = why_not(
        f"resizes uint8 tensors by {FILTER_NAMES[kind]}",
        lambda: _resized_otherwise(kind, TORCHS_RESIZE, _by_torch),
        f"torch {torch.__version__}",
    )
    if reason and FILTER_NAMES[kind] == "bilinear" and not _bytes_resized_otherwise(kind):
        return TORCHS_FLOAT_RESIZE
    return reason or TORCHS_RESIZE


def _bytes_resized_otherwise(kind: int) -> bool:
    """Whether torchvision does not resize uint8 tensors in float32, as it does without AVX2."""
    try:
        found = float_resize()
        return bool(_resized_otherwise(kind, TORCHS_FLOAT_RESIZE, _by_torch, found))
    except Exception:  # the reason against the other way says that it can't be compared
        return True


def _by_pillow(crop: np.ndarray, number: int) -> list[np.ndarray]:
    from PIL import Image

    return [np.asarray(Image.fromarray(crop).resize(_SIZE, number))]


def _by_torch(crop: np.ndarray, number: int) -> list[np.ndarray]:
    """In the memory format of converted PIL images, and in torch's contiguous one."""
    resize = sys.modules["torchvision.transforms.v2.functional"].resize
    mode = mode_of_number(number)
    interleaved = torch.from_numpy(crop).permute(2, 0, 1)
    images = [
        resize(image, [_SIZE[1], _SIZE[0]], interpolation=mode, antialias=True)
        for image in (interleaved, interleaved.contiguous())
    ]
    return [image.permute(1, 2, 0).numpy() for image in images]


def _resized_otherwise(
    kind: int,
    order: int,
    resize: Callable[[np.ndarray, int], list[np.ndarray]],
    in_floats: FloatResize | None = None,
) -> list[str]:
    """Compares with one order; returns the sizes of the crops that are resized differently.

    Args:
        resize: returns the results for an image of [height, width, 3] and Pillow's number of the
            filter, which should be equal.
    """
    number = next(one for one, filter_ in FILTERS.items() if filter_ == kind)
    pixels = made(*_CROPPED)
    different = []
    run = Run([_CROP._replace(filter=kind)], pixels, _N_CROPS, order, in_floats)
    try:
        for draws, got in itertools.islice(run.results(), _N_CROPS):
            _, top, left, height, width, *_ = draws[0]
            crop = pixels[top : top + height, left : left + width]
            if not all(np.array_equal(got, wanted) for wanted in resize(crop, number)):
                different.append(f"{width} x {height}")
    finally:
        run.close()
    return different[:_MAX_NAMED]
