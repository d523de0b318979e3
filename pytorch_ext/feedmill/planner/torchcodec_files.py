"""torchcodec's functions that decode an image file to a tensor, ``decode_image`` and
``decode_jpeg``, as a dataset's way to open files.

JPEGs in color or grayscale that are not turned by their metadata are decoded natively, if
torchcodec decodes them to the same pixels. All other files are decoded by torchcodec.
"""

from __future__ import annotations

import pathlib
import sys
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
import torch

from feedmill._ops import native
from feedmill.planner.comparing import once, why_not
from feedmill.planner.equality import differing_jpegs
from feedmill.planner.file_loaders import GIVEN_TENSOR, FileLoader, is_jpeg
from feedmill.planner.fingerprints import is_known

_MODULE = "torchcodec.decoders._image_decoders"
_OPS = "torchcodec._core.ops"
_NOTHING: Mapping[str, Any] = MappingProxyType({})
_FUNCTIONS = ("decode_image", "decode_jpeg")
# Names of the arguments; only the first one may be positional.
ARGUMENTS = ("source", "mode", "output_dtype")

# By name, of torchcodec 0.17.
_HASHES = {
    "decode_image": {"72c3b50f327d0433"},
    "decode_jpeg": {"3356dc4494244b5d"},
    "_source_to_tensor": {"a7286a12870dbd05"},
    "_normalize_mode": {"dc6371439e629bf0"},
    "_validate_output_dtype": {"505513e78ffc584b"},
    "_decode_to_mode": {"1741405f788a9912"},
    "_to_output_dtype": {"9685e475d495cc23"},
    "_detect_image_format": {"3621dd1f9edd4d9f"},
}
_KNOWN = {f"{_MODULE}:{name}": frozenset(hashes) for name, hashes in _HASHES.items()}
# What the global names in these functions stand for. Those of other formats and modes do not
# matter: such images are decoded by torchcodec.
_MEANINGS = {
    **{name: f"{_MODULE}:{name}" for name in (*_HASHES, "ImageReadMode")},
    "torch": "torch", "warnings": "warnings", "Path": "pathlib:Path",
    "_decode_jpeg": f"{_OPS}:decode_jpeg",
    **dict.fromkeys((
        "_JPEG_NATIVE_OUTPUT_MODES", "_append_opaque_alpha", "_rgb_to_gray",
        "_decode_jpegs_cuda_with_mode", "decode_png", "decode_webp", "decode_gif", "decode_avif",
        "decode_heic",
    ), "*"),
}


class TorchcodecLoader(FileLoader):
    """path -> uint8 tensor (3, height, width), for the mode "RGB"."""

    given = GIVEN_TENSOR
    rejects = native.REJECT_NOT_UPRIGHT_JPEG
    turns = True

    def __init__(self, name: str) -> None:
        self._name = name

    def __call__(self, path: Any) -> torch.Tensor:
        image: torch.Tensor = getattr(sys.modules[_MODULE], self._name)(path)
        return image

    def __str__(self) -> str:
        return f"torchcodec.decoders.{self._name}"

    def may_differ(self, paths: Sequence[str]) -> bool:
        """Files of other formats may hold several images."""
        return self._name == "decode_image" and not all(map(is_jpeg, paths))

    def why_no_path(self, path: Any) -> str:
        if isinstance(path, (str, pathlib.Path)):
            return ""
        return f"torchcodec takes no path that is a {type(path).__name__}"

    def _why_not(self) -> str:
        def compare() -> str:
            version = getattr(sys.modules.get("torchcodec"), "__version__", "?")
            return why_not(
                "decodes JPEGs", lambda: differing_jpegs(_decoded), f"torchcodec {version}"
            )

        return once("JPEGs by torchcodec", compare)


_LOADERS = {name: TorchcodecLoader(name) for name in _FUNCTIONS}


def is_function(function: Any) -> bool:
    """Whether a function is one of torchcodec's that load files as tensors."""
    found = [getattr(sys.modules.get(_MODULE), name, None) for name in _FUNCTIONS]
    return function is not None and any(function is one for one in found)


def loader_of(function: Any, given: Mapping[str, Any] = _NOTHING) -> TorchcodecLoader | None:
    """The loader of a call of a path; None: natively it can't be replaced.

    Args:
        given: the call's other arguments, ``mode`` and ``output_dtype``, by name.
    """
    if not is_function(function):
        return None
    name = function.__name__
    mode, dtype = given.get("mode", "RGB"), given.get("output_dtype", torch.uint8)
    is_rgb = type(mode) is str and mode.upper() == "RGB" and dtype is torch.uint8
    if not is_rgb or not is_known(function, f"{_MODULE}:{name}", _KNOWN, _MEANINGS):
        return None
    return _LOADERS[name]


def _decoded(data: bytes) -> np.ndarray:
    image: torch.Tensor = sys.modules[_MODULE].decode_jpeg(data)
    return image.permute(1, 2, 0).numpy()
