"""ImageOps' functions that replace each byte by another one, on deferred images."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
from PIL import Image, ImageOps

from feedmill._ops import native
from feedmill.deferred.operations import FOURTH_OF_POINT, shows_operation
from feedmill.deferred.switch import switched

# A DeferredCore, whose module imports operations.
_Core = Any

# The functions, by name.
ORIGINALS: dict[str, Any] = {
    name: getattr(ImageOps, name)
    for name in ("autocontrast", "equalize", "invert", "posterize", "solarize")
}


def changed(name: str, core: _Core, arguments: tuple[Any, ...]) -> _Core | None:
    """The core of an RGB image after one of ImageOps' functions; None if Pillow has to do it.

    Args:
        arguments: of the function, after the image.
    """
    known = _operation_of(name, arguments)
    pixels = core.pixels() if known is not None and is_equal() else None
    if known is None or pixels is None:
        return None
    (kind, table), (width, height) = known, core.size
    result = native.operate(kind, pixels, width, height, table)
    return core.of_pixels(result, FOURTH_OF_POINT) if isinstance(result, bytes) else None


def _operation_of(name: str, arguments: tuple[Any, ...]) -> tuple[int, bytes | None] | None:
    """The operation and its table; None if Pillow has to look at the arguments."""
    types = [type(one) for one in arguments]
    if name == "autocontrast" and not types:
        return native.OPERATION_AUTOCONTRAST, None
    if name == "equalize" and not types:
        return native.OPERATION_EQUALIZE, None
    if name == "invert" and not types:
        return native.OPERATION_POINT, _solarizing(0)
    if name == "solarize" and types in ([], [int], [float]):
        return native.OPERATION_POINT, _solarizing(*arguments)
    if name == "posterize" and types == [int] and 1 <= arguments[0] <= 8:
        return native.OPERATION_POINT, _posterizing(arguments[0])
    return None


@functools.lru_cache(256)
def _solarizing(threshold: float = 128) -> bytes:
    return bytes(i if i < threshold else 255 - i for i in range(256)) * 3


@functools.cache
def _posterizing(bits: int) -> bytes:
    return bytes(i & ~(2 ** (8 - bits) - 1) for i in range(256)) * 3


def wrapped(core_of: Callable[[Any], Any]) -> dict[str, Any]:
    """Functions that replace ImageOps', by name.

    Args:
        core_of: gives the DeferredCore of an RGB image, or None.
    """
    return {name: _wrapped(name, original, core_of) for name, original in ORIGINALS.items()}


def _wrapped(name: str, original: Any, core_of: Callable[[Any], Any]) -> Any:
    @functools.wraps(original)
    def function(*args: Any, **kwargs: Any) -> Any:
        core = core_of(args[0]) if args and not kwargs else None
        result = None if core is None else changed(name, core, args[1:])
        return original(*args, **kwargs) if result is None else args[0]._new(result)

    return function


# ---- self-test -----------------------------------------------------------------------------------


@functools.cache
def is_equal() -> bool:
    """Whether the installed Pillow's functions give the same."""
    noise = np.random.default_rng(7).integers(0, 256, (31, 43, 3), np.uint8)
    narrow, one = noise % (90, 3, 200) + (60, 4, 50), noise * (1, 0, 1)
    images = [Image.fromarray(pixels.astype(np.uint8)) for pixels in (noise, narrow, one)]
    images += [images[1].resize((33, 20), Image.Resampling.BICUBIC), images[1].crop((3, 3, 6, 5))]
    cases: list[tuple[str, tuple[Any, ...]]] = [
        *((name, ()) for name in ("autocontrast", "equalize", "invert", "solarize")),
        *(("solarize", (threshold,)) for threshold in (0, 77, 110.5, 256)),
        *(("posterize", (bits,)) for bits in (1, 4, 8)),
    ]
    try:
        with switched(False):  # Pillow must work by itself to be compared with
            return all(_is_same(image, *case) for image in images for case in cases)
    except Exception:  # of an unknown version of Pillow
        return False


def _is_same(image: Image.Image, name: str, arguments: tuple[Any, ...]) -> bool:
    wanted, known = ORIGINALS[name](image, *arguments), _operation_of(name, arguments)
    if known is None:
        return False
    return shows_operation(wanted, known[0], image, FOURTH_OF_POINT, known[1])
