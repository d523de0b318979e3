"""Recognises EfficientNet's crops as ResNeSt has them, in the classes ``ERandomCrop`` and
``ECenterCrop``: they crop an image and resize it to a square. The random one draws from Python's
generator, until a crop fits.

The source of ``__call__`` must be one of these; see ``fingerprints`` for what is ignored. It loops
over what is drawn and the image's size, so that it is not evaluated.
"""

from __future__ import annotations

import ast
import builtins
import functools
import math
import random
from dataclasses import dataclass
from types import BuiltinFunctionType, FunctionType
from typing import Any

from feedmill.planner import fingerprints
from feedmill.planner.attributes import NotUnderstood, attribute, of_class
from feedmill.planner.generators import drawing_function
from feedmill.planner.plan import KINDS, MAX_SIZE_PX, Op
from feedmill.planner.untouched import is_original

_RANDOM = """
def __call__(self, img):
    original_width, original_height = img.size
    min_area = self.area_range[0] * (original_width * original_height)
    max_area = self.area_range[1] * (original_width * original_height)

    for _ in range(self.max_attempts):
        aspect_ratio = random.uniform(*self.aspect_ratio_range)
        height = int(round(math.sqrt(min_area / aspect_ratio)))
        max_height = int(round(math.sqrt(max_area / aspect_ratio)))

        if max_height * aspect_ratio > original_width:
            max_height = (original_width + 0.5 - 1e-7) / aspect_ratio
            max_height = int(max_height)
            if max_height * aspect_ratio > original_width:
                max_height -= 1

        if max_height > original_height:
            max_height = original_height

        if height >= max_height:
            height = max_height

        height = int(round(random.uniform(height, max_height)))
        width = int(round(height * aspect_ratio))
        area = width * height

        if area < min_area or area > max_area:
            continue
        if width > original_width or height > original_height:
            continue
        if area < self.min_covered * (original_width * original_height):
            continue
        if width == original_width and height == original_height:
            return self._fallback(img)

        x = random.randint(0, original_width - width)
        y = random.randint(0, original_height - height)
        img = img.crop((x, y, x + width, y + height))
        return self.resize_method(img)

    return self._fallback(img)
"""
_CENTRAL = """
def __call__(self, img):
    image_width, image_height = img.size
    image_short = min(image_width, image_height)

    crop_size = float(self.imgsize) / (self.imgsize + 32) * image_short

    crop_height, crop_width = crop_size, crop_size
    crop_top = int(round((image_height - crop_height) / 2.))
    crop_left = int(round((image_width - crop_width) / 2.))
    img = img.crop((crop_left, crop_top, crop_left + crop_width, crop_top + crop_height))
    return self.resize_method(img)
"""
_MEANINGS = {"math": "math", "random": "random"}
_BUILTINS = {"float": float, "int": int, "min": min, "range": range, "round": round}
_MOST_ATTEMPTS = 1000  # as in fm_op
# As value 0 of a RandomResizedCrop, see fm_op.
_IS_RANDOM, _IS_CENTRAL = 3.0, 4.0


@dataclass(frozen=True)
class EfficientCrop:
    """An object of such a class, in the place of a transform.

    Attributes:
        transform: the object.
        size: of the result's sides.
        resizes: the transforms that resize crops: its own, and that of its central crop.
        values: of the op.
        area, ratio: the limits of random crops; (1, 1) of the central one.
    """

    transform: Any
    size: int
    resizes: tuple[Any, ...]
    values: tuple[float, ...]
    area: tuple[float, float] = (1.0, 1.0)
    ratio: tuple[float, float] = (1.0, 1.0)

    def op(self, resampling: int) -> Op:
        """The op, with an fm_filter."""
        return Op(
            KINDS["RandomResizedCrop"], self.size, self.size, 0, *self.area, *self.ratio,
            filter=resampling, values=self.values,
        )

    def of_box(self, image: Any, top: int, left: int, height: int, width: int) -> Any:
        """What the object returns for an image if it draws this box."""
        return self.resizes[0](image.crop((left, top, left + width, top + height)))


@functools.lru_cache(maxsize=2)
def _hash(source: str) -> str:
    return fingerprints.hash_of(ast.parse(source).body[0])


def efficient_crop_of(transform: Any) -> EfficientCrop | None:
    """None: it is something else, or does something else than the native code. Runs none of its
    code. ``resizes`` remain to be checked."""
    method = of_class(type(transform), "__call__")
    if type(type(transform)) is not type or type(method) is not FunctionType:
        return None
    try:
        if _has_source(method, _CENTRAL):
            return _central_crop(transform)
        return _random_crop(transform) if _has_source(method, _RANDOM) else None
    except NotUnderstood:
        return None


def _has_source(method: FunctionType, source: str) -> bool:
    place = f"{method.__module__}:{method.__qualname__}"
    if not fingerprints.is_known(method, place, {place: frozenset({_hash(source)})}, _MEANINGS):
        return False
    are_builtins = getattr(method, "__builtins__", None) is vars(builtins) and all(
        vars(builtins).get(name) is value for name, value in _BUILTINS.items()
    )
    return are_builtins and _BUILTINS.keys().isdisjoint(method.__globals__) and _are_original()


def _are_original() -> bool:
    """Whether the functions of Python and Pillow that the classes call are their own."""
    from PIL import Image

    size = vars(Image.Image).get("size")
    return (
        all(drawing_function(getattr(random, name)) == f"random.{name}"
            for name in ("uniform", "randint"))
        and type(math.sqrt) is BuiltinFunctionType
        and math.sqrt.__name__ == "sqrt"
        and type(size) is property
        and is_original(size.fget, "PIL.Image", "Image.size")
    )


def _central_crop(transform: Any) -> EfficientCrop:
    size = attribute(transform, "imgsize")
    if type(size) is not int or not 1 <= size <= MAX_SIZE_PX:
        raise NotUnderstood("its size is none that the native code takes")
    return EfficientCrop(
        transform, size, (attribute(transform, "resize_method"),), (_IS_CENTRAL, 0.0)
    )


def _random_crop(transform: Any) -> EfficientCrop:
    fallback = efficient_crop_of(attribute(transform, "_fallback"))
    if fallback is None or fallback.values[0] != _IS_CENTRAL:
        raise NotUnderstood("its central crop is another")
    attempts = attribute(transform, "max_attempts")
    if type(attempts) is not int or not 0 <= attempts <= _MOST_ATTEMPTS:
        raise NotUnderstood("its max_attempts are no int")
    (covered,) = _numbers([attribute(transform, "min_covered")], 1)
    values = _IS_RANDOM, 0.0, 0.0, covered, float(attempts)
    area = _numbers(attribute(transform, "area_range"), 2)
    ratio = _numbers(attribute(transform, "aspect_ratio_range"), 2)
    resizes = attribute(transform, "resize_method"), *fallback.resizes
    return EfficientCrop(transform, fallback.size, resizes, values, area, ratio)  # type: ignore[arg-type]


def _numbers(values: Any, n: int) -> tuple[float, ...]:
    """Numbers that float64 holds, in order, and above 0. Raises NotUnderstood for others."""
    if type(values) not in (list, tuple) or len(values) != n:
        raise NotUnderstood("its ranges are no pairs")
    if not all(type(one) in (int, float) and 1e-6 <= one <= 1e6 for one in values):
        raise NotUnderstood("its ranges have other numbers than from 1e-6 to 1e6")
    if sorted(values) != list(values):
        raise NotUnderstood("its ranges end before they begin")
    return tuple(map(float, values))
