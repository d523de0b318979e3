"""The patches in Pillow that put decoding off, and where they take effect.

These places are patched for good:

- ``Image.Image.im``, the core of an image, which may be a DeferredCore. Pillow's own methods that
  a DeferredCore can answer get it as it is; everybody else gets a core with pixels.
- ``JpegImageFile.load()``, which decodes the file: it puts that off, if it may.
- ``Image.Image.tobytes()``, through which NumPy gets pixels: it takes them without a core in
  between.

Functions of Pillow, torchvision and OpenCV are replaced only while somebody defers images: see
``replacements``, and ``functions``, ``tensors`` and ``opencv``, which have ours.
"""

from __future__ import annotations

import functools
import io
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import CodeType
from typing import Any

from PIL import Image, ImageFile, JpegImagePlugin

from feedmill._ops import native
from feedmill.deferred import (
    composed,
    counters,
    functions,
    opencv,
    replacements,
    tensors,
    tensors_of_bytes,
)
from feedmill.deferred.core import LOADS, DeferredCore
from feedmill.deferred.filters import filter_of
from feedmill.deferred.frames import Codes, caller
from feedmill.deferred.held import may_hold_more
from feedmill.deferred.parts import Part
from feedmill.deferred.resizing import ResizingCore
from feedmill.deferred.sources import Source
from feedmill.deferred.switch import is_deferring, note_use, switch_everywhere, switched
from feedmill.planner.equality import why_not_jpegs
from feedmill.planner.untouched import is_original

_JpegFile = JpegImagePlugin.JpegImageFile
_MODES = ("RGB", "L", "CMYK")
# Files with more bytes are left to Pillow, which reads only what it needs.
_MAX_FILE_BYTES = 1 << 28
# Pillow before 11 has no `_im`: the core is the plain attribute `im`.
_HAS_PROPERTY = "im" in vars(Image.Image)
_SLOT = "_im" if _HAS_PROPERTY else "im"
# What the core of a closed image is.
_CoreError: Any = getattr(Image, "DeferredError", ())

_Core = type(Image.core.new("L", (1, 1)))  # type: ignore[attr-defined]

# Methods of Pillow that use the core only by calling those methods of it which DeferredCore has.
_METHODS = tuple(
    getattr(Image.Image, name)
    for name in ("copy", "crop", "resize", "convert", "transpose", "load", "thumbnail")
)
_RESIZE = getattr(Image.Image.resize, "__code__", None)
_DEFERRING = Codes(getattr(method, "__code__", None) for method in _METHODS)
# The functions that are patched or relied on, with the module that they must be from.
_ORIGINALS = (
    *((method, "PIL.Image") for method in (*_METHODS, Image.Image.tobytes)),
    (_JpegFile.load, "PIL.ImageFile"),
)


_is_patched = False


def why_not() -> str:
    """The reason why decoding can't be put off in this process; "" if it can."""
    return _why_not_this_pillow() or ("" if _is_patched else _why_replaced())


def _why_not_this_pillow() -> str:
    with switched(False):  # Pillow must decode by itself to be compared with
        reason = why_not_jpegs()
    if not reason and filter_of(Image.Resampling.BILINEAR) is None:
        reason = "this Pillow resizes to other pixels than feedmill"
    return reason


def _why_replaced() -> str:
    """Text if somebody else replaced a function that is patched or relied on."""
    for function, module in _ORIGINALS:
        owner, _, name = function.__qualname__.rpartition(".")
        now = getattr(getattr(sys.modules[module], owner, None), name, None)
        if not is_original(function, module, function.__qualname__) or now is not function:
            return f"{module}.{function.__qualname__}() has been replaced"
    return "" if _is_core_attribute_original() else "PIL.Image.Image.im has been replaced"


def _is_core_attribute_original() -> bool:
    now = vars(Image.Image).get("im")
    if not _HAS_PROPERTY:
        return now is None
    methods = (getattr(now, "fget", None), getattr(now, "fset", None))
    return type(now) is property and all(
        is_original(method, "PIL.Image", "Image.im") for method in methods
    )


# ---- switching -----------------------------------------------------------------------------------


@contextmanager
def deferring(on: bool = True) -> Iterator[None]:
    """Puts decoding off in this thread, or with on=False does not. May be nested."""
    _patch()
    with replacements.in_use(), switched(on):
        yield


def defer_everywhere() -> None:
    """Puts decoding off in all threads of this process, to its end. For worker processes."""
    _patch()
    composed.read_again()
    replacements.use()
    switch_everywhere()


def _patch() -> None:
    """Installs the patches at the first call.

    They stay for good: a deferred image needs them as long as it lives, and any thread may derive
    another one from it. They change nothing for other images.
    """
    global _is_patched
    # Tried each time, as a script may import these libraries later.
    opencv.replace(is_deferring)
    functions.replace_in_torchvision()
    tensors.replace(is_deferring)
    tensors_of_bytes.replace(is_deferring)
    composed.replace(is_deferring, _defer)
    if _is_patched:
        return
    functions.replace_in_pillow()
    Image.Image.im = _CORE  # type: ignore[method-assign, assignment]
    Image.Image.tobytes = _tobytes  # type: ignore[method-assign]
    _JpegFile.load = _load  # type: ignore[method-assign]
    _is_patched = True


# ---- the core ------------------------------------------------------------------------------------


def _make_real(image: Image.Image, asked_by: CodeType) -> Any:
    """Gives a deferred image its pixels; returns the core."""
    values = vars(image)
    core = values.get(_SLOT)
    if type(core) is DeferredCore:
        values[_SLOT] = core = core.real(asked_by.co_name)
    return core


def _takes_deferred() -> bool:
    """Whether the function that asks the caller of this one for a core takes a DeferredCore."""
    frame = sys._getframe(2)
    return id(frame.f_code) in _DEFERRING or functions.takes_core(frame)


def _get_core(image: Image.Image) -> Any:
    core: Any = image._im
    if type(core) is DeferredCore:
        note_use()
        if not core.is_real and _takes_deferred():
            return core
        core = _make_real(image, caller())
    elif type(core) is _Core:
        if core.mode == "RGB" and is_deferring() and caller() is _RESIZE:
            return ResizingCore(core)
    elif isinstance(core, _CoreError):
        raise core.ex
    assert core is not None
    return core


def _set_core(image: Image.Image, core: Any) -> None:
    image._im = core


class _CoreAttribute:
    """``Image.im`` of Pillow before 11."""

    def __get__(self, image: Any, kind: type | None = None) -> Any:
        if image is None:
            return self
        try:
            core = vars(image)["im"]
        except KeyError:
            name = type(image).__name__
            raise AttributeError(f"'{name}' object has no attribute 'im'") from None
        if type(core) is DeferredCore:
            note_use()
            if core.is_real or not _takes_deferred():
                return _make_real(image, caller())
        return core

    def __set__(self, image: Any, core: Any) -> None:
        vars(image)["im"] = core

    def __delete__(self, image: Any) -> None:
        del vars(image)["im"]


_CORE = property(_get_core, _set_core) if _HAS_PROPERTY else _CoreAttribute()


# ---- files ---------------------------------------------------------------------------------------


def _load(self: Any) -> Any:
    if not is_deferring() or type(self) is not _JpegFile or vars(self)[_SLOT] is not None:
        return ImageFile.ImageFile.load(self)
    _defer(self)
    if vars(self)[_SLOT] is not None:
        return ImageFile.ImageFile.load(self)
    with counters.timed("ordinary"):
        return ImageFile.ImageFile.load(self)


LOADS.add(*(one.__code__ for one in (Image.Image.load, ImageFile.ImageFile.load, _load)))


def _defer(image: Any) -> None:
    """Reads an opened file and puts its decoding off, if feedmill decodes it to Pillow's pixels."""
    if not _is_whole(image):
        return
    data = _read(image.fp) if may_hold_more() else None
    found = _source_of(data, image) if data else None
    if data is None or found is None:
        return  # ImageFile.load() reads it again from its beginning
    source, end = found
    counters.current().add("images")
    core = DeferredCore(source, Part((0, 0, *image.size)), image.mode)
    # What ImageFile.load() leaves behind.
    image.map = None
    image.tile = []
    image.readonly = 0
    setattr(image, _SLOT, core)
    image.load_end()
    if image._exclusive_fp and image._close_exclusive_fp_after_loading:
        image.fp.close()
    else:
        # Pillow reads blocks up to the one with the image's end, which other data may follow.
        block_bytes = image.decodermaxblock
        image.fp.seek(min(len(data), -(-end // block_bytes) * block_bytes))
    image.fp = None


def _is_whole(image: Any) -> bool:
    """Whether a file is to be decoded as a whole, at its full size, by Pillow's own decoder."""
    if image.fp is None or len(image.tile) != 1 or image.mode not in _MODES:
        return False
    # A draft at full size changes nothing, unless it asks for grey.
    is_drafted = bool(image.decoderconfig)
    if is_drafted and (image.decoderconfig != (1, 0) or image.layers != _LAYERS[image.mode]):
        return False
    name, extents, offset, arguments = image.tile[0][:4]
    if name != "jpeg" or offset != 0 or extents is None or tuple(extents) != (0, 0, *image.size):
        return False
    if type(arguments) is not tuple or not arguments or arguments[0] not in _RAW_MODES[image.mode]:
        return False
    if hasattr(image, "_ended") or "transparency" in image.info:
        return False
    return _decodes_by_itself(image)


_DECODER = Image.core.jpeg_decoder  # type: ignore[attr-defined]
_READING = {
    name: getattr(_JpegFile, name, None) for name in ("load_prepare", "load_read", "load_end")
}


def _decodes_by_itself(image: Any) -> bool:
    """Whether the decoder and the methods with which an image is decoded are Pillow's."""
    if "jpeg" in Image.DECODERS or Image.core.jpeg_decoder is not _DECODER:  # type: ignore[attr-defined]
        return False
    return all(
        getattr(getattr(image, name, None), "__func__", None) is method
        for name, method in _READING.items()
    )


_LAYERS = {"RGB": 3, "L": 1, "CMYK": 4}
# The raw modes of tiles whose pixels are those of the file, by the image's mode.
_RAW_MODES = {"RGB": ("RGB",), "L": ("L",), "CMYK": ("CMYK", "CMYK;I")}


def _read(file: Any) -> bytes | None:
    """All bytes of a file. None leaves reading to Pillow, whose error is the right one."""
    try:
        n_bytes = 0
        if type(file) is io.BufferedReader and type(file.raw) is io.FileIO:
            n_bytes = os.fstat(file.fileno()).st_size
        file.seek(0)
        # It allocates as many bytes as it is told to read, though there may be fewer.
        data = file.read(min(n_bytes or _MAX_FILE_BYTES, _MAX_FILE_BYTES) + 1)
    except Exception:  # of any file object
        return None
    return data if type(data) is bytes and len(data) <= _MAX_FILE_BYTES else None


def _source_of(data: bytes, image: Any) -> tuple[Source, int] | None:
    """The source, and where the JPEG ends in the data; None if feedmill does not decode it."""
    header = native.image_header(data)
    if not isinstance(header, tuple) or header[:3] != (native.FORMAT_JPEG, *image.size):
        return None
    if header[4] != _LAYERS[image.mode]:
        return None  # the file has been replaced since it was opened
    source = Source(data, image.mode, *image.size)
    # The damage of a progressive image is only found by decoding it, and Pillow finds it now.
    is_progressive = header[3]
    return None if is_progressive and not source.decode_whole() else (source, header[5])


# ---- pixels for NumPy ----------------------------------------------------------------------------

_pillow_tobytes = Image.Image.tobytes


@functools.wraps(_pillow_tobytes)
def _tobytes(self: Any, encoder_name: str = "raw", *args: Any) -> bytes:
    if encoder_name == "raw" and not args:
        self.load()
        core = vars(self)[_SLOT]
        if type(core) is DeferredCore and (core.mode, core.size) == (self.mode, self.size):
            data = core.packed_bytes()
            if data is not None:
                return data
    return _pillow_tobytes(self, encoder_name, *args)
