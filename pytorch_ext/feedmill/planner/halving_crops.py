"""Recognises calls of ``center_crop_arr()``, the central crop of ADM that DiT and SiT use: it
halves the image several times before it resizes and crops it. ADM's own returns an array.

The function's source must be this one; see ``fingerprints`` for what is ignored. Code that loops
until an image is small enough is not evaluated.
"""

from __future__ import annotations

import ast
import builtins
import functools
from dataclasses import dataclass
from types import BuiltinFunctionType, FunctionType
from typing import Any

import numpy as np

from feedmill.planner import fingerprints
from feedmill.planner.plan import MAX_SIZE_PX
from feedmill.planner.untouched import is_original

_SOURCE = """
def center_crop_arr(pil_image, image_size):
    while min(*pil_image.size) >= 2 * image_size:
        pil_image = pil_image.resize(
            tuple(x // 2 for x in pil_image.size), resample=Image.BOX
        )

    scale = image_size / min(*pil_image.size)
    pil_image = pil_image.resize(
        tuple(round(x * scale) for x in pil_image.size), resample=Image.BICUBIC
    )

    arr = np.array(pil_image)
    crop_y = (arr.shape[0] - image_size) // 2
    crop_x = (arr.shape[1] - image_size) // 2
    return {result}
"""
_CROPPED = "arr[crop_y: crop_y + image_size, crop_x: crop_x + image_size]"
_MEANINGS = {"Image": "PIL.Image", "np": "numpy"}
_BUILTINS = {"min": min, "round": round, "tuple": tuple}
_FILTERS = {"BOX": 4, "BICUBIC": 3}
# The properties of Pillow images that it reads.
_PROPERTIES = ("__array_interface__", "size")


@dataclass(frozen=True)
class HalvingCrop:
    """A call of the user's function for an image, in the place of a transform.

    Attributes:
        size: of the result's sides.
        makes_array: the function returns an array; the call nevertheless returns an image.
    """

    function: FunctionType
    size: int
    makes_array: bool = False

    def __call__(self, image: Any) -> Any:
        from PIL import Image

        cropped = self.function(image, self.size)
        return Image.fromarray(cropped) if self.makes_array else cropped


@functools.lru_cache(maxsize=2)
def _hash(makes_array: bool) -> str:
    result = _CROPPED if makes_array else f"Image.fromarray({_CROPPED})"
    return fingerprints.hash_of(ast.parse(_SOURCE.format(result=result)).body[0])


def halving_crop_of(
    function: FunctionType, size: Any, makes_array: bool = False
) -> HalvingCrop | None:
    """A call of the function with an image and a size; None: it is another function, or another
    size than the native code takes. Runs none of its code.

    Args:
        makes_array: it must return an array, else an image.
    """
    if type(size) is not int or not 1 <= size <= MAX_SIZE_PX:
        return None
    place = f"{function.__module__}:{function.__qualname__}"
    known = {place: frozenset({_hash(makes_array)})}
    if not fingerprints.is_known(function, place, known, _MEANINGS):
        return None
    are_builtins = getattr(function, "__builtins__", None) is vars(builtins) and all(
        vars(builtins).get(name) is value for name, value in _BUILTINS.items()
    )
    if not are_builtins or not _BUILTINS.keys().isdisjoint(function.__globals__):
        return None
    return HalvingCrop(function, size, makes_array) if _are_libraries_original() else None


def _are_libraries_original() -> bool:
    from PIL import Image

    properties = [vars(Image.Image).get(name) for name in _PROPERTIES]
    return (
        type(np.array) is BuiltinFunctionType
        and np.array.__module__ == "numpy"
        and np.array.__name__ == "array"
        and [vars(Image).get(name) for name in _FILTERS] == list(_FILTERS.values())
        and is_original(Image.fromarray, "PIL.Image", "fromarray")
        and all(
            type(one) is property and is_original(one.fget, "PIL.Image", f"Image.{name}")
            for name, one in zip(_PROPERTIES, properties)
        )
    )
