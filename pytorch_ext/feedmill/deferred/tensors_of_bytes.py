"""torchvision's steps from images to tensors of bytes and on to floats, by native kernels:
pil_to_tensor(), with ToImage of v2, and convert_image_dtype() and to_dtype(scale=True).

Tensors that are made of Pillow images keep the values of a pixel side by side: strides are torch's.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from PIL import Image

from feedmill import _internals
from feedmill._internals import (
    FUNCTIONAL,
    TENSOR_HELPERS,
    V2_KERNELS,
    V2_MISC,
    V2_TYPES,
    script_as,
    v2_kernels,
)
from feedmill._ops import native
from feedmill.deferred import replacements, tensors
from feedmill.deferred.core import DeferredCore
from feedmill.planner.untouched import is_original

_SLOT = "_im" if "im" in vars(Image.Image) else "im"
# As torch gets it from Python: the product of a byte and this number is rounded to float32.
_FACTOR = 1.0 / 255

# Whether an original function gives the same values as ours, once compared.
_compared: dict[Any, bool] = {}
_replaced: set[tuple[str, Any]] = set()
# Methods of images that torchvision and NumPy call.
_OF_IMAGE = frozenset({"tobytes", "load", "getbands", "__array_interface__"})
# _helpers(), at the first comparison of each.
_compared_helpers: list[Any] = [None] * (len(TENSOR_HELPERS) + len(_OF_IMAGE))
# The modules when functions were added last.
_seen: list[Any] = []

_Make = Callable[[Any, Callable[[], bool]], Any]


def replace(is_deferring: Callable[[], bool]) -> None:
    """Adds the functions to those that are replaced (see replacements), once their modules are
    imported, and if they are torchvision's own and give the same values as ours. Cheap if nothing
    has been imported since the last call."""
    global _seen
    now = [sys.modules.get(name) for name in (FUNCTIONAL, V2_MISC, V2_TYPES)]
    functional = now[0]
    if functional is None or now == _seen:
        return
    _seen = now
    compare()
    for name, (_, make) in _V1.items():
        original = getattr(functional, name, None)
        if not _is_usable(original, FUNCTIONAL, name):
            continue
        ours = _ours(original, make, is_deferring)
        _add(functional, name, original, ours)
        if name == "pil_to_tensor":  # v2 has the same function in its own modules
            for module in (V2_TYPES, V2_MISC, V2_TYPES.rpartition(".")[0]):
                _add(module, name, original, ours)
    _replace_kernels(is_deferring)


def _replace_kernels(is_deferring: Callable[[], bool]) -> None:
    """Replaces v2's kernels for tensors and for images of tv_tensors."""
    kernels = v2_kernels(sys.modules.get(V2_KERNELS))
    module = sys.modules.get(V2_MISC)
    image_type: Any = getattr(sys.modules.get("torchvision.tv_tensors"), "Image", None)
    for name, (kernel_name, _, make) in _V2.items():
        by_type = kernels.get(getattr(module, name, None), {})
        kernel = by_type.get(torch.Tensor)
        if not _is_usable(kernel, V2_MISC, kernel_name):
            continue
        ours = _ours(kernel, make, is_deferring)
        _add(by_type, torch.Tensor, kernel, ours)
        wrapper = by_type.get(image_type)
        if _internals.is_v2_wrapper(wrapper, kernel):
            _add(by_type, image_type, wrapper, _wrapping(wrapper, kernel, image_type, is_deferring))


def _add(owner: Any, name: Any, original: Any, ours: Any) -> None:
    key = (owner if isinstance(owner, str) else getattr(owner, "__name__", str(id(owner))), name)
    if key not in _replaced:
        _replaced.add(key)
        replacements.add(owner, name, original, ours)


def _ours(original: Any, make: _Make, is_deferring: Callable[[], bool]) -> Any:
    ours = functools.wraps(original)(make(original, is_deferring))
    script_as(ours, original)
    return ours


def _is_usable(original: Any, module: str, name: str) -> bool:
    return is_original(original, module, name) and _compared.get(original, False)


def _helpers() -> list[Any]:
    """What the replaced functions call."""
    found = [vars(sys.modules.get(module, object)).get(name) for module, name in TENSOR_HELPERS]
    found += map(vars(Image.Image).get, _OF_IMAGE)
    return [_without_ours(one) for one in found]


def _without_ours(function: Any) -> Any:
    """What a function of this package was put in the place of; another function as it is."""
    own = getattr(function, "feedmill_original", function)
    module = getattr(own, "__globals__", {}).get("__name__", "")
    return getattr(own, "__wrapped__", own) if module.startswith("feedmill.") else own


def _are_helpers_own() -> bool:
    """Whether what the functions call is what it was when their values were compared."""
    now = _helpers()
    # A module that was not imported then does not count.
    return all(was is None or was is one for was, one in zip(_compared_helpers, now, strict=True))


def compare() -> None:
    """Compares the values of torchvision's functions with ours."""
    global _compared_helpers
    _compared_helpers = [
        was if was is not None else now
        for was, now in zip(_compared_helpers, _helpers(), strict=True)
    ]
    functional, misc = sys.modules.get(FUNCTIONAL), sys.modules.get(V2_MISC)
    for name, (is_equal, _) in _V1.items():
        _compare(getattr(functional, name, None), FUNCTIONAL, name, is_equal)
    for kernel_name, is_equal, _ in _V2.values():
        _compare(getattr(misc, kernel_name, None), V2_MISC, kernel_name, is_equal)


def _compare(original: Any, module: str, name: str, is_equal: Callable[[Any], bool]) -> None:
    if is_original(original, module, name) and original not in _compared:
        # One that is replaced already was compared.
        is_ours = hasattr(original, "feedmill_original")
        _compared[original] = not is_ours and tensors.is_equal_to(is_equal, original)


# ---- pil_to_tensor -------------------------------------------------------------------------------


def _make_pil_to_tensor(original: Any, is_deferring: Callable[[], bool]) -> Any:
    def pil_to_tensor(pic: Any) -> Any:
        is_plain = not torch.compiler.is_compiling() and type(pic) in tensors.PLAIN_IMAGES
        if is_plain and is_deferring():
            core = vars(pic).get(_SLOT)
            is_known = type(core) is DeferredCore and (core.mode, core.size) == ("RGB", pic.size)
            is_known = is_known and _OF_IMAGE.isdisjoint(vars(pic)) and _are_helpers_own()
            if is_known and pic.mode == "RGB":
                result = _tensor_of(core)
                if result is not None:
                    return result
        return original(pic)

    return pil_to_tensor


def _tensor_of(core: DeferredCore) -> torch.Tensor | None:
    """A deferred image's pixels, without a copy in between; None if they are left to torchvision.
    """
    if _internals.is_tracing():
        return None
    width, height = core.size
    pixels = np.empty((height, width, 3), np.uint8)
    if not core.write_rgb(pixels.ctypes.data):
        return None
    return torch.as_tensor(pixels).view(height, width, 3).permute((2, 0, 1))


def _is_pil_equal(original: Any) -> bool:
    pixels = _pixels_of_test()
    image = Image.fromarray(pixels)
    got = torch.as_tensor(pixels).view(pixels.shape).permute((2, 0, 1))
    return tensors.are_same(original(image), got)


# ---- bytes to floats -----------------------------------------------------------------------------


def _make_convert_image_dtype(original: Any, is_deferring: Callable[[], bool]) -> Any:
    def convert_image_dtype(image: Any, dtype: Any = torch.float) -> Any:
        is_plain = not torch.compiler.is_compiling() and type(image) is torch.Tensor
        if dtype is torch.float32 and is_plain and is_deferring():
            result = _floats_of(image, 1.0, 255.0) if _are_helpers_own() else None
            if result is not None:
                return result
        return original(image, dtype)

    return convert_image_dtype


def _make_to_dtype(original: Any, is_deferring: Callable[[], bool]) -> Any:
    def to_dtype_image(image: Any, dtype: Any = torch.float, scale: bool = False) -> Any:
        is_plain = not torch.compiler.is_compiling() and type(image) is torch.Tensor
        if scale is True and dtype is torch.float32 and is_plain and is_deferring():
            result = _floats_of(image, _FACTOR, 1.0) if _are_helpers_own() else None
            if result is not None:
                return result
        return original(image, dtype, scale)

    return to_dtype_image


def _floats_of(image: torch.Tensor, factor: float, divisor: float) -> torch.Tensor | None:
    """None if the tensor is left to torchvision."""
    address = tensors.address_of(image, torch.uint8)
    if address is None:
        return None
    n, height, width = image.shape
    if n != 3 or height < 2 or width < 2:  # one value per dimension may get other strides
        return None
    out = tensors.empty_as(image)
    native.scale_bytes(out.data_ptr(), address, out.numel(), (factor, divisor))
    return out


def _is_conversion_equal(original: Any, *, factor: float, divisor: float, **options: Any) -> bool:
    image = torch.from_numpy(_pixels_of_test()).permute(2, 0, 1)
    for one in (image, image.contiguous()):
        got = _floats_of(one, factor, divisor)
        if got is None or not tensors.are_same(original(one, torch.float32, **options), got):
            return False
    return True


def _pixels_of_test() -> np.ndarray[Any, Any]:
    """Each value in each channel."""
    values = np.arange(256, dtype=np.uint8)
    return np.resize(np.stack([values, values[::-1], np.roll(values, 77)], -1), (7, 131, 3))


# ---- normalize of v2 -----------------------------------------------------------------------------


def _make_normalize(original: Any, is_deferring: Callable[[], bool]) -> Any:
    def normalize_image(image: Any, mean: Any, std: Any, inplace: bool = False) -> Any:
        is_plain = not torch.compiler.is_compiling() and type(image) is torch.Tensor
        if inplace is False and is_plain and is_deferring():
            result = tensors.normalized(image, mean, std)
            if result is not None:
                return result
        return original(image, mean, std, inplace)

    return normalize_image


def _wrapping(
    wrapper: Any, kernel: Any, image_type: Any, is_deferring: Callable[[], bool]
) -> Any:
    """In the place of torchvision's function that calls the kernel of tensors for tv_tensors.Image
    and makes its result one."""
    make = next(make for name, _, make in _V2.values() if name == kernel.__name__)
    ours = make(kernel, is_deferring)

    @functools.wraps(wrapper)
    def of_image(inpt: Any, *args: Any, **kwargs: Any) -> Any:
        if type(inpt) is not image_type or torch.compiler.is_compiling() or not is_deferring():
            return wrapper(inpt, *args, **kwargs)
        output = ours(inpt.as_subclass(torch.Tensor), *args, **kwargs)
        return sys.modules["torchvision.tv_tensors"].wrap(output, like=inpt)

    return of_image


_V1: dict[str, tuple[Callable[[Any], bool], _Make]] = {
    "pil_to_tensor": (_is_pil_equal, _make_pil_to_tensor),
    "convert_image_dtype": (
        functools.partial(_is_conversion_equal, factor=1.0, divisor=255.0),
        _make_convert_image_dtype,
    ),
}
# By the function, its kernel of tensors.
_V2: dict[str, tuple[str, Callable[[Any], bool], _Make]] = {
    "to_dtype": (
        "to_dtype_image",
        functools.partial(_is_conversion_equal, factor=_FACTOR, divisor=1.0, scale=True),
        _make_to_dtype,
    ),
    "normalize": ("normalize_image", tensors.is_normalizing_equal, _make_normalize),
}
