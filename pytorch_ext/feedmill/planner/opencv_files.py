"""OpenCV's functions that decode an image file, and what makes an RGB array or PIL image of it, as
a dataset's way to open files.

JPEGs in color or grayscale that are not turned by their metadata are decoded natively, if OpenCV
decodes them to the same pixels. All other files are loaded by OpenCV. It is never imported here.
"""

from __future__ import annotations

import os
import pathlib
import sys
from collections.abc import Callable, Sequence
from types import BuiltinFunctionType
from typing import Any

import numpy as np

from feedmill._ops import native
from feedmill.planner.comparing import once, why_not
from feedmill.planner.equality import differing_jpegs
from feedmill.planner.file_loaders import (
    GIVEN_ARRAY,
    GIVEN_REVERSED,
    GIVEN_RGB,
    FileLoader,
    NoImageError,
)
from feedmill.planner.untouched import is_original

# IMREAD_COLOR, IMREAD_COLOR_RGB, and both with IMREAD_IGNORE_ORIENTATION: whether the channels are
# B, G, R.
IS_BGR = {1: True, 129: True, 256: False, 384: False}
COLOR = 1
BGR_TO_RGB = 4  # COLOR_BGR2RGB and COLOR_RGB2BGR
_LIMITS = "OPENCV_IO_MAX_IMAGE_"  # the environment's limits of images' sizes

# How a file is decoded.
IMREAD, IMREAD_STR, FROM_FILE, FROM_BUFFER = (
    "imread", "imread of str()", "imdecode of np.fromfile", "imdecode of np.frombuffer",
)
# What is done with the array.
CVT_COLOR, REVERSE, COPY, CONTIGUOUS, FROM_ARRAY = (
    "cvtColor", "[:, :, ::-1]", "copy", "np.ascontiguousarray", "Image.fromarray",
)


def function(name: str) -> Any:
    """OpenCV's own function of a name; None: it is not imported, or the function was replaced."""
    found = getattr(sys.modules.get("cv2"), name, None)
    original = getattr(found, "feedmill_original", found)
    is_own = (
        type(original) is BuiltinFunctionType
        and original.__name__ == name
        and original.__self__ is None
        and original.__module__ is None
    )
    return original if is_own else None


def is_function(called: Any, name: str) -> bool:
    """Whether an object is OpenCV's function of a name."""
    own = function(name)
    return own is not None and (called is own or getattr(called, "feedmill_original", None) is own)


def is_numpys(called: Any, name: str) -> bool:
    """Whether an object is NumPy's built-in function of a name."""
    return (
        called is getattr(np, name)
        and type(called) is BuiltinFunctionType
        and called.__name__ == name
        and called.__module__ == "numpy"
    )


def is_fromarray(called: Any) -> bool:
    """Whether an object is Pillow's function Image.fromarray()."""
    from PIL import Image

    return called is Image.fromarray and is_original(called, "PIL.Image", "fromarray")


class OpenCvLoader(FileLoader):
    """path -> RGB array or PIL image.

    Args:
        how: IMREAD, IMREAD_STR, FROM_FILE or FROM_BUFFER.
        flags: OpenCV's.
        steps: done with the array, in order.
    """

    rejects = native.REJECT_NOT_UPRIGHT_JPEG
    turns = True

    def __init__(self, how: str, flags: int, steps: Sequence[str]) -> None:
        self._how = how
        self._flags = flags
        self._steps = steps
        self.given = GIVEN_RGB if FROM_ARRAY in steps else GIVEN_ARRAY
        if is_reversed(steps):
            self.given = GIVEN_REVERSED

    def __call__(self, path: Any) -> Any:
        pixels = self._decode(path)
        if pixels is None:
            raise NoImageError
        for step in self._steps:
            pixels = _done(step, pixels)
        return pixels

    def __str__(self) -> str:
        return "cv2.imread" if self._how in (IMREAD, IMREAD_STR) else "cv2.imdecode"

    def may_differ(self, paths: Sequence[str]) -> bool:
        return False  # flags with IMREAD_COLOR always make three channels of 8 bits

    def why_no_path(self, path: Any) -> str:
        if self._how == IMREAD_STR and type(path) not in (str, np.str_, pathlib.PosixPath):
            return f"str() of a {type(path).__name__} is no path"
        if isinstance(path, str) or self._how != IMREAD:
            return ""
        kind = bytes if isinstance(path, bytes) else os.PathLike
        return "" if _takes(kind) else f"OpenCV takes no path that is a {type(path).__name__}"

    def _decode(self, path: Any) -> Any:
        cv2: Any = sys.modules["cv2"]
        if self._how == IMREAD:
            return cv2.imread(path, self._flags)
        if self._how == IMREAD_STR:
            return cv2.imread(str(path), self._flags)
        if self._how == FROM_FILE:
            return cv2.imdecode(np.fromfile(path, np.uint8), self._flags)
        with open(path, "rb") as file:
            return cv2.imdecode(np.frombuffer(file.read(), np.uint8), self._flags)

    def _why_not(self) -> str:
        def compare() -> str:
            version = getattr(sys.modules.get("cv2"), "__version__", "?")
            return why_not("decodes JPEGs", lambda: _differing(self._flags), f"OpenCV {version}")

        return _why_limited() or once(("JPEGs by OpenCV", self._flags), compare)


def _why_limited() -> str:
    if not any(name.startswith(_LIMITS) for name in os.environ):
        return ""
    return f"environment variables limit the images that OpenCV decodes ({_LIMITS}...)"


def is_reversed(steps: Sequence[str]) -> bool:
    """Whether the steps give a view with a negative stride, of which torch makes no tensor."""
    return bool(steps) and steps[-1] == REVERSE


def _done(step: str, pixels: Any) -> Any:
    if step == CVT_COLOR:
        return sys.modules["cv2"].cvtColor(pixels, BGR_TO_RGB)
    if step == REVERSE:
        return pixels[:, :, ::-1]
    if step == COPY:
        return pixels.copy()
    if step == CONTIGUOUS:
        return np.ascontiguousarray(pixels)
    from PIL import Image

    return Image.fromarray(pixels)


_loaders: dict[tuple[Any, ...], OpenCvLoader] = {}


def loader_of(how: str, flags: int, steps: Sequence[str]) -> OpenCvLoader:
    """The loader of these calls."""
    key = how, flags, tuple(steps)
    return _loaders.setdefault(key, OpenCvLoader(*key))


def _takes(kind: type) -> bool:
    """Whether OpenCV takes such paths."""
    path: Any = b"a.jpg" if kind is bytes else pathlib.Path("a.jpg")

    def tries() -> bool:
        try:
            sys.modules["cv2"].haveImageReader(path)
        except Exception:  # OpenCV's own type
            return False
        return True

    return once(("path of OpenCV", kind), tries)


def _differing(flags: int) -> list[str]:
    decode: Callable[..., Any] | None = function("imdecode")
    convert: Callable[..., Any] | None = function("cvtColor")
    if decode is None or convert is None:
        return ["none was decoded, as its functions were replaced"]

    def decoded(data: bytes) -> Any:
        pixels = decode(np.frombuffer(data, np.uint8), flags)
        return convert(pixels, BGR_TO_RGB) if IS_BGR[flags] and pixels is not None else pixels

    return differing_jpegs(decoded)
