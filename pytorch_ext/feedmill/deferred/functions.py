"""What replaces functions of Pillow and torchvision while somebody defers images, so that they use
operations on deferred images. They change nothing for other images."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any

from PIL import Image, ImageEnhance, ImageFilter, ImageOps

from feedmill._internals import FUNCTIONAL_PIL, V2_KERNELS, v2_kernels
from feedmill.deferred import mapping, operations, replacements, tables
from feedmill.deferred.core import DeferredCore
from feedmill.deferred.frames import Codes
from feedmill.planner.untouched import is_original

_SLOT = "_im" if "im" in vars(Image.Image) else "im"


def core_of(image: Any) -> DeferredCore | None:
    """The core of a loaded RGB image, if it is deferred."""
    if not isinstance(image, Image.Image):
        return None
    core = vars(image).get(_SLOT)
    if type(core) is not DeferredCore or core.is_real or (core.mode, image.mode) != ("RGB", "RGB"):
        return None
    return core


def _new_image(core: DeferredCore) -> Image.Image:
    """As Image.new() makes it."""
    return Image.Image()._new(core)  # type: ignore[arg-type]


# ---- methods that call the core ------------------------------------------------------------------

_FILTERS = (ImageFilter.GaussianBlur, ImageFilter.BoxBlur, ImageFilter.SMOOTH)

# Methods of Image that get a DeferredCore under a condition on their arguments.
_CONDITIONS: dict[CodeType | None, Callable[[FrameType], bool]] = {
    getattr(Image.Image.filter, "__code__", None):
        lambda frame: type(frame.f_locals["filter"]) in _FILTERS,
    getattr(Image.Image.histogram, "__code__", None):
        lambda frame: frame.f_locals["mask"] is None,
    getattr(Image.Image.point, "__code__", None): lambda frame: True,
}
_CONDITIONAL = Codes(_CONDITIONS)

# Functions that are patched or relied on, with the module that they must be from.
_ORIGINALS: tuple[tuple[Any, str], ...] = (
    (Image.blend, "PIL.Image"),
    *((getattr(Image.Image, name), "PIL.Image")
      for name in ("filter", "histogram", "point", "transform")),
    *((one.__init__, "PIL.ImageEnhance")
      for one in (ImageEnhance.Brightness, ImageEnhance.Contrast)),
    *((one.filter, "PIL.ImageFilter") for one in _FILTERS),
    *((one, "PIL.ImageOps") for one in (ImageOps.expand, *tables.ORIGINALS.values())),
)


@functools.cache
def why_not() -> str:
    """The reason why operations are left to Pillow; "" if they need not be."""
    for function, module in _ORIGINALS:
        if not is_original(function, module, function.__qualname__):
            return f"{module}.{function.__qualname__}() has been replaced"
    return ""


def takes_core(frame: FrameType) -> bool:
    """Whether a function that asks for an image's core calls only operations of it."""
    code = frame.f_code
    return id(code) in _CONDITIONAL and not why_not() and _CONDITIONS[code](frame)


# ---- Pillow --------------------------------------------------------------------------------------

_pillow_blend = Image.blend
_brightness = ImageEnhance.Brightness.__init__
_contrast = ImageEnhance.Contrast.__init__


@functools.wraps(_pillow_blend)
def _blend(im1: Any, im2: Any, alpha: Any) -> Any:
    base, core = core_of(im1), core_of(im2)
    if base is not None and core is not None:
        blended = operations.blended(base, core, alpha)
        if blended is not None:
            return im1._new(blended)
    return _pillow_blend(im1, im2, alpha)


@functools.wraps(_brightness)
def _init_brightness(self: Any, image: Any) -> None:
    core = core_of(image)
    if core is None or not operations.is_equal("blend"):
        _brightness(self, image)
        return
    self.image = image
    self.degenerate = _new_image(operations.of_one_value(core, 0, operations.FOURTH_NEW))


@functools.wraps(_contrast)
def _init_contrast(self: Any, image: Any) -> None:
    core = core_of(image)
    mean = None if core is None else operations.gray_mean(core)
    if core is None or mean is None or not operations.is_equal("blend"):
        _contrast(self, image)
        return
    self.image = image
    gray = operations.of_one_value(core, mean, operations.FOURTH_OF_GRAY)
    self.degenerate = _new_image(gray)


_pillow_transform = Image.Image.transform


@functools.wraps(_pillow_transform)
def _transform(self: Any, *args: Any, **kwargs: Any) -> Any:
    core = core_of(self)
    result = None if core is None else mapping.transformed(core, args, kwargs)
    return _pillow_transform(self, *args, **kwargs) if result is None else self._new(result)


_pillow_expand = ImageOps.expand


@functools.wraps(_pillow_expand)
def _expand(*args: Any, **kwargs: Any) -> Any:
    core = core_of(args[0]) if args else None
    # Newer versions keep the transparency and the palette.
    if core is not None and (args[0].palette or "transparency" in args[0].info):
        core = None
    result = None if core is None else mapping.expanded(core, args[1:], kwargs)
    return _pillow_expand(*args, **kwargs) if result is None else _new_image(result)


@functools.cache
def replace_in_pillow() -> None:
    """Adds Pillow's functions to those that are replaced (see replacements), once."""
    if why_not():
        return
    replacements.add(Image, "blend", _pillow_blend, _blend)
    replacements.add(Image.Image, "transform", _pillow_transform, _transform)
    replacements.add(ImageOps, "expand", _pillow_expand, _expand)
    for name, function in tables.wrapped(core_of).items():
        replacements.add(ImageOps, name, tables.ORIGINALS[name], function)
    replacements.add(ImageEnhance.Brightness, "__init__", _brightness, _init_brightness)
    replacements.add(ImageEnhance.Contrast, "__init__", _contrast, _init_contrast)


# ---- torchvision ---------------------------------------------------------------------------------

# Patched functions, by the original.
_replaced: dict[Any, Any] = {}
# What was found when torchvision was patched last.
_seen: tuple[Any, Any] = None, None


def _adjusting_hue(original: Any) -> Any:
    @functools.wraps(original)
    def adjust_hue(img: Any, hue_factor: Any) -> Any:
        core = core_of(img)
        shifted = None if core is None else operations.hue_shifted(core, hue_factor)
        return original(img, hue_factor) if shifted is None else _new_image(shifted)

    return adjust_hue


def _making_grayscale(original: Any) -> Any:
    @functools.wraps(original)
    def to_grayscale(img: Any, num_output_channels: Any) -> Any:
        core = core_of(img) if num_output_channels == 3 else None
        gray = None if core is None else operations.grayscale(core)
        return original(img, num_output_channels) if gray is None else _new_image(gray)

    return to_grayscale


_WRAPPERS = {"adjust_hue": _adjusting_hue, "to_grayscale": _making_grayscale}


def replace_in_torchvision() -> None:
    """As replace_in_pillow(), if torchvision has been imported. Cheap if nothing has been imported
    since the last call."""
    global _seen
    now = sys.modules.get(FUNCTIONAL_PIL), sys.modules.get(V2_KERNELS)
    if now == _seen or why_not():
        return
    _seen = now
    functional, registry = now
    for name, wrapper in _WRAPPERS.items():
        function = getattr(functional, name, None)
        if is_original(function, FUNCTIONAL_PIL, name):
            if function not in _replaced and function not in _replaced.values():
                _replaced[function] = wrapper(function)
                replacements.add(functional, name, function, _replaced[function])
    # v2 keeps the functions for images of each class.
    for kernels in v2_kernels(registry).values():
        kernel = kernels.get(Image.Image)
        if kernel in _replaced:
            replacements.add(kernels, Image.Image, kernel, _replaced[kernel])
