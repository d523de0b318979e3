"""Recognises RandomResizedCrop classes that draw a crop in one attempt, and limit it to the image,
as MAE's does.

They are subclasses of torchvision's that define nothing but ``get_params``. Its source must be this
one, with any of the calls that return the image's size; see ``fingerprints`` for what is ignored.
"""

from __future__ import annotations

import ast
import functools
import sys
from types import FunctionType
from typing import Any

from feedmill._internals import FUNCTIONAL
from feedmill.planner import fingerprints
from feedmill.planner.arguments import V1
from feedmill.planner.attributes import dict_of, mro_of
from feedmill.planner.untouched import is_original

NAME = "RandomResizedCrop"
_SIZES = (
    "width, height = F.get_image_size(img)",
    "width, height = F._get_image_size(img)",
    "width, height = img.size",
    "_, height, width = F.get_dimensions(img)",
)
_SOURCE = """
def get_params(img, scale, ratio):
    {size}
    area = height * width

    target_area = area * torch.empty(1).uniform_(scale[0], scale[1]).item()
    log_ratio = torch.log(torch.tensor(ratio))
    aspect_ratio = torch.exp(
        torch.empty(1).uniform_(log_ratio[0], log_ratio[1])
    ).item()

    w = int(round(math.sqrt(target_area * aspect_ratio)))
    h = int(round(math.sqrt(target_area / aspect_ratio)))

    w = min(w, width)
    h = min(h, height)

    i = torch.randint(0, height - h + 1, size=(1,)).item()
    j = torch.randint(0, width - w + 1, size=(1,)).item()

    return i, j, h, w
"""
_MEANINGS = {"F": FUNCTIONAL, "math": "math", "torch": "torch"}
# What a class body holds without being asked to.
_OF_CLASSES = frozenset({
    "__module__", "__qualname__", "__doc__", "__firstlineno__", "__static_attributes__",
})


@functools.lru_cache(maxsize=1)
def _hashes() -> frozenset[str]:
    definitions = (ast.parse(_SOURCE.format(size=size)).body[0] for size in _SIZES)
    return frozenset(map(fingerprints.hash_of, definitions))


def is_one_attempt(kind: type) -> bool:
    """Whether a class is such a RandomResizedCrop. Runs none of its code."""
    parents = mro_of(kind)[1:2]
    if parents != (getattr(sys.modules.get(V1), NAME, None),) or kind.__name__ != NAME:
        return False
    own = dict_of(kind)
    method = own.get("get_params")
    if type(kind) is not type or own.keys() - _OF_CLASSES != {"get_params"}:
        return False
    if type(method) is not staticmethod or type(method.__func__) is not FunctionType:
        return False
    function = method.__func__
    place = f"{function.__module__}:{function.__qualname__}"
    return fingerprints.is_known(
        function, place, {place: _hashes()}, _MEANINGS
    ) and _are_sizes_original(function)


def _are_sizes_original(function: Any) -> bool:
    """Whether the functions that return an image's size are torchvision's."""
    functional = vars(sys.modules[FUNCTIONAL])
    names = {"get_image_size", "_get_image_size", "get_dimensions"}.intersection(
        function.__code__.co_names
    )
    return all(
        any(is_original(functional.get(name), FUNCTIONAL, one) for one in (name, name.lstrip("_")))
        for name in names
    )
