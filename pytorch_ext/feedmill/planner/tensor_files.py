"""torchvision's functions that decode an image file to a tensor, ``decode_image`` and
``read_image``, as a dataset's way to open files.

JPEGs of three components are decoded natively, if torchvision decodes them to the same pixels. All
other files are decoded by torchvision: it converts some of them in its own way, and leaves others
as they are by default.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
import torch

from feedmill._ops import native
from feedmill.planner.comparing import once, why_not
from feedmill.planner.equality import colored_jpegs
from feedmill.planner.file_loaders import GIVEN_TENSOR, FileLoader, is_jpeg
from feedmill.planner.untouched import is_original

_MODULE = "torchvision.io.image"
_NOTHING: Mapping[str, Any] = MappingProxyType({})
_FUNCTIONS = ("decode_image", "read_image")
UNCHANGED, _RGB = "UNCHANGED", "RGB"


class TensorLoader(FileLoader):
    """path -> uint8 tensor (channels, height, width).

    Attributes:
        mode: of torchvision's ImageReadMode, "UNCHANGED" or "RGB".
    """

    given = GIVEN_TENSOR
    rejects = native.FORMAT_PNG | native.FORMAT_WEBP | native.REJECT_NOT_RGB

    def __init__(self, name: str, mode: str) -> None:
        self._name = name
        self.mode = mode

    def __call__(self, path: Any) -> torch.Tensor:
        module = sys.modules[_MODULE]
        image: torch.Tensor = getattr(module, self._name)(path, module.ImageReadMode[self.mode])
        return image

    def __str__(self) -> str:
        return f"torchvision.io.{self._name}"

    def may_differ(self, paths: Sequence[str]) -> bool:
        return self.mode == UNCHANGED or not all(map(is_jpeg, paths))

    def why_no_path(self, path: Any) -> str:
        """It takes a path as a text in UTF-8."""
        try:
            str(path).encode()
        except UnicodeEncodeError:
            return "torchvision takes no path that is not UTF-8"
        return "torchvision takes no path of bytes" if isinstance(path, bytes) else ""

    def _why_not(self) -> str:
        return _why_not_jpegs()


_LOADERS = {
    (name, mode): TensorLoader(name, mode) for name in _FUNCTIONS for mode in (UNCHANGED, _RGB)
}


def is_function(function: Any) -> bool:
    """Whether a function is one of torchvision's that load files as tensors."""
    found = [getattr(sys.modules.get(_MODULE), name, None) for name in _FUNCTIONS]
    return function is not None and any(function is one for one in found)


def loader_of(function: Any, given: Mapping[str, Any] = _NOTHING) -> TensorLoader | None:
    """The loader of a call of a path; None: natively it can't be replaced.

    Args:
        given: the call's other arguments, ``mode`` and ``apply_exif_orientation``, by name.
    """
    name = getattr(function, "__name__", "")
    module = sys.modules.get(_MODULE)
    # Those that it calls, too.
    are_original = all(
        is_original(getattr(module, one, None), _MODULE, one) for one in (*_FUNCTIONS, "read_file")
    )
    if module is None or not is_function(function) or not are_original:
        return None
    if given.get("apply_exif_orientation", False) is not False:
        return None
    modes = module.ImageReadMode
    # Older versions take neither a path nor the name of a mode.
    if name == "decode_image" and "str" not in str(function.__annotations__.get("input")):
        return None
    mode = given.get("mode", modes.UNCHANGED)
    if type(mode) is str and name == "decode_image" and "upper" in function.__code__.co_names:
        mode = modes.__members__.get(mode.upper())
    return _LOADERS.get((name, mode.name)) if type(mode) is modes else None


def member_of_modes(owner: Any, name: str) -> Any:
    """``ImageReadMode.RGB``; None: another attribute, or one of something else."""
    modes = getattr(sys.modules.get(_MODULE), "ImageReadMode", None)
    return None if owner is not modes or modes is None else modes.__members__.get(name)


def _why_not_jpegs() -> str:
    def compare() -> str:
        version = getattr(sys.modules.get("torchvision"), "__version__", "?")
        return why_not("decodes JPEGs to tensors", _differing, f"torchvision {version}")

    return once("JPEGs as tensors", compare)


def _differing() -> list[str]:
    different = []
    for name, data in colored_jpegs():
        decoded = native.imread(data, False, 1 << 20)
        if type(decoded) is not tuple:
            continue
        pixels, height, width = decoded
        wanted = np.frombuffer(pixels, np.uint8).reshape(height, width, 3)
        encoded = torch.frombuffer(bytearray(data), dtype=torch.uint8)
        for mode in (UNCHANGED, _RGB):
            module = sys.modules[_MODULE]
            got = module.decode_image(encoded, module.ImageReadMode[mode])
            if not np.array_equal(got.permute(1, 2, 0).numpy(), wanted):
                different.append(f"{name}, {mode}")
    return different
