"""torchvision's to_tensor() and normalize() by native kernels, with torch's values.

Both functions are replaced in ``torchvision.transforms.functional``, where transforms look them up.
A call that is not answered here, as all outside of deferring threads, goes to torchvision.
"""

from __future__ import annotations

import functools
import math
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from PIL import Image, JpegImagePlugin

from feedmill import _internals
from feedmill._internals import FUNCTIONAL, script_as
from feedmill._ops import native
from feedmill.deferred import replacements
from feedmill.planner.untouched import is_original

PLAIN_IMAGES = (Image.Image, JpegImagePlugin.JpegImageFile)
# Limits of means and stds, far from where their arithmetic in float32 gets special.
_LARGEST, _SMALLEST = 1e30, 1e-30

_is_installed = False
# Whether an original function gives the same values as ours, once compared.
_compared: dict[Any, bool] = {}


def replace(is_deferring: Callable[[], bool]) -> None:
    """Adds the functions to those that are replaced (see replacements), once torchvision is
    imported, and if they are torchvision's own and give the same values as ours.

    Args:
        is_deferring: whether the calling thread is to use them.
    """
    global _is_installed
    module = sys.modules.get(FUNCTIONAL)
    if _is_installed or module is None:
        return
    _is_installed = True
    compare()
    for name, make in (("to_tensor", _make_to_tensor), ("normalize", _make_normalize)):
        original: Any = getattr(module, name, None)
        if is_original(original, FUNCTIONAL, name) and _compared.get(original):
            replacement: Any = functools.wraps(original)(make(original, is_deferring))
            script_as(replacement, original)
            replacements.add(module, name, original, replacement)


def compare() -> bool:
    """Compares the values of torchvision's functions with ours; returns whether it is imported."""
    module = sys.modules.get(FUNCTIONAL)
    for name, is_equal in (("to_tensor", _is_scaling_equal), ("normalize", is_normalizing_equal)):
        original: Any = getattr(module, name, None)
        if is_original(original, FUNCTIONAL, name) and original not in _compared:
            # One that is replaced already was compared.
            is_ours = hasattr(original, "feedmill_original")
            _compared[original] = not is_ours and is_equal_to(is_equal, original)
    return module is not None


def is_equal_to(is_equal: Callable[[Any], bool], original: Any) -> bool:
    """Whether a function is equal to ours, as is_equal() finds; not if that raises an error."""
    try:
        return is_equal(original)
    except Exception:  # of a torchvision that works in another way
        return False


# ---- to_tensor -----------------------------------------------------------------------------------


def _make_to_tensor(original: Any, is_deferring: Callable[[], bool]) -> Any:
    def to_tensor(pic: Any) -> Any:
        if not torch.compiler.is_compiling() and type(pic) in PLAIN_IMAGES and is_deferring():
            result = _scaled(pic)
            if result is not None:
                return result
        return original(pic)

    return to_tensor


def _scaled(image: Any) -> torch.Tensor | None:
    """The pixels of an RGB image, divided by 255; None if they are left to torchvision."""
    if image.mode != "RGB" or torch.get_default_dtype() is not torch.float32:
        return None
    width, height = image.size
    # An image with a side of one pixel gets other strides.
    if width < 2 or height < 2 or _internals.is_tracing() or not _has_pixels(image):
        return None
    # Pillow's method: an attribute of the image is not used by NumPy either.
    data = Image.Image.tobytes(image)
    if type(data) is not bytes or len(data) != 3 * width * height:
        return None
    return _scaled_bytes(data, width, height)


def _scaled_bytes(data: bytes, width: int, height: int) -> torch.Tensor | None:
    out = torch.empty((3, height, width), dtype=torch.float32, device="cpu")
    return out if native.scale_pixels(data, width * height, out.data_ptr()) else None


def _has_pixels(image: Any) -> bool:
    """Whether an image has pixels, decoded or deferred, so that getting them can't fail."""
    values = vars(image)
    core = values.get("_im", values.get("im"))
    if core is None or getattr(image, "tile", None) or "tobytes" in values:
        return False
    return hasattr(core, "size")


def _is_scaling_equal(original: Any) -> bool:
    values = np.arange(256, dtype=np.uint8)
    for width in (256, 131, 2):
        pixels = np.resize(np.stack([values, values[::-1], np.roll(values, 77)], -1), (7, width, 3))
        want, got = original(pixels), _scaled_bytes(pixels.tobytes(), width, 7)
        image = original(Image.fromarray(pixels))
        if got is None or not (are_same(want, got) and are_same(image, got)):
            return False
    every = np.repeat(values, 6).reshape(2, 256, 3)
    got = _scaled_bytes(every.tobytes(), 256, 2)
    return got is not None and are_same(original(every), got)


# ---- normalize -----------------------------------------------------------------------------------


def _make_normalize(original: Any, is_deferring: Callable[[], bool]) -> Any:
    def normalize(tensor: Any, mean: Any, std: Any, inplace: bool = False) -> Any:
        is_plain = not torch.compiler.is_compiling() and type(tensor) is torch.Tensor
        if is_plain and inplace is False and is_deferring():
            result = normalized(tensor, mean, std)
            if result is not None:
                return result
        return original(tensor, mean, std, inplace)

    return normalize


def normalized(tensor: torch.Tensor, mean: Any, std: Any) -> torch.Tensor | None:
    """None if the tensor is left to torchvision."""
    address = address_of(tensor, torch.float32)
    if address is None:
        return None
    n, height, width = tensor.shape
    means, stds = _values(mean, n, 0.0), _values(std, n, _SMALLEST)
    if means is None or stds is None:
        return None
    out = empty_as(tensor)
    if _is_interleaved(tensor):
        native.normalize_pixels(out.data_ptr(), address, height * width, means, stds)
    else:
        native.normalize(out.data_ptr(), address, height * width, means, stds)
    return out


def address_of(tensor: torch.Tensor, dtype: torch.dtype) -> int | None:
    """The address of the values of an ordinary image tensor in memory; None of other tensors."""
    if (
        tensor.dtype is not dtype
        or tensor.layout is not torch.strided
        or tensor.device.type != "cpu"
        or tensor.requires_grad
        or tensor.ndim != 3
        or tensor.is_neg()
        or tensor.is_nested
        or _internals.is_tracing()
    ):
        return None
    _, height, width = tensor.shape
    is_contiguous = tensor.stride() == (height * width, width, 1)
    if not (is_contiguous or _is_interleaved(tensor)) or not tensor.numel():
        return None
    try:
        return tensor.data_ptr()
    except RuntimeError:  # a tensor without memory
        return None


def _is_interleaved(tensor: torch.Tensor) -> bool:
    """Whether the three values of a pixel lie side by side. An image with a side of one pixel may
    have other strides."""
    n, height, width = tensor.shape
    return n == 3 and height > 1 and width > 1 and tensor.stride() == (1, 3 * width, 3)


def empty_as(tensor: torch.Tensor) -> torch.Tensor:
    """float32 with the shape and strides of a tensor that has an address_of()."""
    return torch.empty_strided(
        tensor.shape, tensor.stride(), dtype=torch.float32, device="cpu"
    )


def _values(values: Any, n: int, smallest: float) -> tuple[float, ...] | None:
    """n floats as a tuple; None if they are of other types, or special."""
    if type(values) not in (list, tuple) or len(values) != n:
        return None
    if not all(type(one) is float and smallest <= abs(one) <= _LARGEST for one in values):
        return None
    return tuple(values)


def is_normalizing_equal(original: Any) -> bool:
    generator = np.random.default_rng(5)
    values = generator.standard_normal((3, 37, 113)).astype(np.float32)
    flat = values.reshape(-1)
    bits = generator.integers(0, 1 << 32, flat.size // 2, dtype=np.uint32)
    flat[: bits.size] = bits.view(np.float32)  # all kinds of numbers
    flat[-5:] = math.nan, math.inf, -math.inf, -0.0, 1e-42
    tensor = torch.from_numpy(values)
    for mean, std in (
        ([0.485, 0.456, 0.406], [0.229, 0.224, 0.225]),
        ((0.0, 0.5, -1e20), (1.0, -3.0, 1e-20)),
    ):
        for one in (tensor, tensor.permute(1, 2, 0).contiguous().permute(2, 0, 1)):
            got = normalized(one, mean, std)
            if got is None or not are_same(original(one, mean, std), got):
                return False
    return True


def are_same(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two tensors have the same type, bits, shape and strides."""
    same = one.dtype is other.dtype and one.shape == other.shape
    same = same and one.stride() == other.stride()
    return same and one.numpy().tobytes() == other.numpy().tobytes()
