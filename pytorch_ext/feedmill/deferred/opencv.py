"""cv2.imread() and cv2.imdecode() of JPEGs by feedmill's decoder, with OpenCV's own pixels.

OpenCV is never imported here: its functions are replaced if a script has imported it, and call
the original ones for whatever is not a JPEG, or is not decoded to the same pixels. Which flags give
the same pixels is found at the first call with each, on made images.
"""

from __future__ import annotations

import functools
import os
import struct
import sys
import time
import types
from collections.abc import Callable
from typing import Any

import numpy as np

from feedmill._ops import native
from feedmill.deferred import counters, replacements
from feedmill.planner import equality

# OpenCV's flags: unchanged; color; the same without orientation; as R G B; the same without
# orientation.
_UNCHANGED, _COLOR, _COLOR_RGB, _IGNORE_ORIENTATION = -1, 1, 256, 128
_IS_BGR = {
    _UNCHANGED: True,
    _COLOR: True,
    _COLOR | _IGNORE_ORIENTATION: True,
    _COLOR_RGB: False,
    _COLOR_RGB | _IGNORE_ORIENTATION: False,
}
_MAX_FILE_BYTES = 1 << 28
# OpenCV refuses images with more pixels, and others if the environment sets such limits.
_MAX_PIXELS, _LIMITS = 1 << 30, "OPENCV_IO_MAX_IMAGE_"
# Of smaller files, OpenCV is as fast.
_MIN_FILE_BYTES = 8192
_START = b"\xff\xd8\xff"

# By flags, whether made images are decoded to OpenCV's pixels.
_exact: dict[int, bool] = {}
_originals: dict[str, Any] = {}


def replace(is_active: Callable[[], bool]) -> None:
    """Adds the functions of an imported OpenCV to those that are replaced (see replacements), once.
    Ours call the original ones where is_active() is false."""
    if _originals:
        return
    module = sys.modules.get("cv2")
    found = {name: getattr(module, name, None) for name in ("imread", "imdecode")}
    if any(name.startswith(_LIMITS) for name in os.environ):
        return
    if any(type(one) is not types.BuiltinFunctionType for one in found.values()):
        return  # not imported completely, or somebody else has replaced them
    _originals.update(found)
    for name, make in (("imread", _imread_of), ("imdecode", _imdecode_of)):
        replacements.add(module, name, found[name], make(found[name], is_active))


def _imread_of(original: Any, is_active: Callable[[], bool]) -> Any:
    @functools.wraps(original)
    def imread(*arguments: Any, **named: Any) -> Any:
        if is_active():
            flags = _flags_of(arguments, named)
            if flags is not None and type(arguments[0]) is str:
                pixels = _decoded(_read(arguments[0]), flags)
                if pixels is not None:
                    return pixels
        return original(*arguments, **named)

    return imread


def _imdecode_of(original: Any, is_active: Callable[[], bool]) -> Any:
    @functools.wraps(original)
    def imdecode(*arguments: Any, **named: Any) -> Any:
        if named or len(arguments) == 2:
            flags = _flags_of(arguments, named)
            buffer: Any = arguments[0] if arguments else None
            # is_active() last, as asking it counts as a use of deferring.
            if flags is not None and _is_file(buffer) and is_active():
                pixels = _decoded(buffer.tobytes(), flags)
                if pixels is not None:
                    return pixels
        return original(*arguments, **named)

    return imdecode


def _flags_of(arguments: tuple[Any, ...], named: dict[str, Any]) -> int | None:
    """The flags of a call (first[, flags]); None for other calls."""
    if len(arguments) == 2 and not named:
        flags = arguments[1]
    elif len(arguments) == 1:
        flags = named.get("flags", _COLOR) if len(named) == ("flags" in named) else None
    else:
        return None
    return flags if type(flags) is int and flags in _IS_BGR else None


def _is_file(buffer: Any) -> bool:
    return (
        type(buffer) is np.ndarray
        and buffer.dtype == np.uint8
        and buffer.ndim == 1
        and _MIN_FILE_BYTES <= buffer.size < _MAX_FILE_BYTES
        and bytes(buffer[:3]) == _START
    )


def _read(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            if file.read(3) != _START:
                return b""
            return _START + file.read(_MAX_FILE_BYTES)
    except (OSError, ValueError):
        return b""  # OpenCV's warning is the right one


# ---- decoding ------------------------------------------------------------------------------------


def _decoded(data: bytes, flags: int) -> Any:
    """An array as OpenCV returns it; None if that can't be given."""
    if not _MIN_FILE_BYTES <= len(data) < _MAX_FILE_BYTES or not _is_exact(flags):
        return None
    began_ns = time.perf_counter_ns()
    pixels = _pixels(data, flags)
    if pixels is not None:
        account = counters.current()
        account.add("opencv")
        account.add("opencv_ns", time.perf_counter_ns() - began_ns)
    return pixels


def _pixels(data: bytes, flags: int) -> Any:
    header = native.image_header(data)
    if not isinstance(header, tuple) or header[0] != native.FORMAT_JPEG:
        return None
    width, height, n_components = header[1], header[2], header[4]
    if width * height > _MAX_PIXELS:
        return None
    if n_components != 3 and (n_components != 1 or flags == _UNCHANGED):
        return None
    is_turned = flags != _UNCHANGED and not flags & _IGNORE_ORIENTATION
    if is_turned and not is_surely_upright(data):
        return None
    pixels = np.empty((height, width, 3), np.uint8)
    address = pixels.__array_interface__["data"][0]
    refused = native.render_at((data,), (0, 0, width, height), address, _IS_BGR[flags])
    return None if refused else pixels


def is_surely_upright(data: bytes) -> bool:
    """Whether a JPEG has no EXIF tags, or well-formed ones with the usual orientation or none."""
    found = _exif_of(data)
    return found is not None and all(_says_upright(tags) for tags in found)


def _exif_of(data: bytes) -> list[bytes] | None:
    """The EXIF segments before the first scan, from their TIFF header on; None if the segments
    can't be told apart, if there are several, or if another one may be taken for one."""
    found: list[bytes] = []
    at = 2
    while at + 4 <= len(data) and data[at] == 0xFF:
        marker, size = data[at + 1], int.from_bytes(data[at + 2 : at + 4], "big")
        if marker == _SCAN:
            return found if len(found) < 2 else None
        if not _FRAMES <= marker < _FILL or marker in _BARE or size < 2:
            return None
        if marker == _APP1 and data.startswith(b"Exif\0\0", at + 4):
            found.append(data[at + 10 : at + 2 + size])
        elif marker == _APP1 and data[at + 12 : at + 14] in _TIFF:
            return None  # OpenCV 4 does not look at the name of EXIF's segment
        at += 2 + size
    return None


# Markers: the first of a header; a fill byte; of a scan; of EXIF tags; those without a size.
_FRAMES, _FILL, _SCAN, _APP1 = 0xC0, 0xFF, 0xDA, 0xE1
_BARE = range(0xD0, 0xDA)
_TIFF = (b"*\0", b"\0*")  # in the TIFF header, in either byte order


def _says_upright(tags: bytes) -> bool:
    order = {b"II*\0": "<", b"MM\0*": ">"}.get(tags[:4])
    if order is None:
        return False
    try:
        (offset,) = struct.unpack_from(order + "I", tags, 4)
        (n_entries,) = struct.unpack_from(order + "H", tags, offset)
        entries = [
            struct.unpack_from(order + "HHIHH", tags, offset + 2 + 12 * i) for i in range(n_entries)
        ]
    except (struct.error, OverflowError):
        return False
    return all(entry[0] != _ORIENTATION or entry[1:4] == (3, 1, 1) for entry in entries)


_ORIENTATION = 0x0112


# ---- the self-test -------------------------------------------------------------------------------


def _is_exact(flags: int) -> bool:
    """Whether OpenCV decodes made images to the same pixels, with these flags."""
    if flags not in _exact:
        _exact[flags] = not equality.why_not_jpegs() and all(
            _is_same(data, flags) for data in equality.made_jpegs()
        )
    return _exact[flags]


def _is_same(data: bytes, flags: int) -> bool:
    got = _pixels(data, flags)
    if got is None:
        return True
    wanted = _originals["imdecode"](np.frombuffer(data, np.uint8), flags)
    return (
        type(wanted) is np.ndarray
        and wanted.dtype == got.dtype
        and wanted.shape == got.shape
        and wanted.strides == got.strides
        and wanted.flags.owndata == got.flags.owndata
        and bool((wanted == got).all())
    )
