"""Pixels that are not decoded yet, in the place of Pillow's own memory of an image.

Pillow's methods crop(), resize(), convert(), transpose() and copy() check their arguments, call
the method of the same name of the image's core (``Image.im``), and wrap the core that it returns.
A DeferredCore has these methods and returns another DeferredCore: what is to be done is noted as
one crop, one resize and two turns. Everything else that is asked for comes from the real core,
which is then rendered: decoded and resized by feedmill, only as far as it is needed.
"""

from __future__ import annotations

import io
import sys
import threading
from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any, NamedTuple

from PIL import Image, ImageFile, JpegImagePlugin

from feedmill._ops import native
from feedmill.deferred import counters, mapping
from feedmill.deferred.filters import filter_of
from feedmill.deferred.frames import drops_result
from feedmill.deferred.held import hold
from feedmill.deferred.operations import Operations, gray_bytes
from feedmill.deferred.orientations import (
    COMPOSED,
    OF_TRANSPOSE,
    UPRIGHT,
    Rect,
    stored_rect,
    turned_size,
)
from feedmill.deferred.resizing import (
    Box,
    box_within,
    boxes_are_exact,
    exported,
    is_part_of_size,
    is_size,
)
from feedmill.system import locks

# Larger results are made at once: if there is no memory for one, Pillow's error comes from the
# call that asked for it.
_MAX_DEFERRED_PX = 1 << 26
_BANDS = {"RGB": 3, "L": 1, "CMYK": 4}
# The fourth byte of a pixel in Pillow's memory: as decoded, and as a resize other than the nearest
# pixel's leaves it.
_FOURTH_DECODED, _FOURTH_RESIZED = 255, 0
_NEAREST = int(Image.Resampling.NEAREST)

# ``load()`` of Pillow's classes and of ours, which return what the call inside returned.
LOADS: set[CodeType] = set()


def _make_locks() -> tuple[Any, ...]:
    return tuple(threading.RLock() for _ in range(64))


_locks = _make_locks()
locks.renew_after_fork(sys.modules[__name__], _locks=_make_locks)


class _Habit:
    """Whether images are used for several parts, as far as the latest ones tell."""

    # Share of the latest images that gave more than one part, and the weight of one more.
    share = 0.0
    WEIGHT = 0.1


class Source:
    """An encoded image, or one in memory.

    Attributes:
        data: the file's bytes; b"" of an image in memory.
        mode, width, height: as Pillow gives them.
        pixels: the whole image as RGB, or None.
        fourth_byte: of each pixel in Pillow's memory, once the image is RGB. None: pixels have
            different ones.
        remake: makes Pillow's core of the whole image if fourth_byte is None. Takes no lock.
    """

    __slots__ = (
        "_latest", "_n_held", "_n_parts", "_pixels", "data", "fourth_byte", "height", "mode",
        "remake", "width",
    )

    def __init__(self, data: bytes, mode: str, width: int, height: int) -> None:
        self._n_held = 0
        self.data, self.mode, self.width, self.height = data, mode, width, height
        self._hold(len(data))
        self._pixels: bytes | None = None
        self.fourth_byte: int | None = _FOURTH_DECODED
        self.remake: Callable[[], Any] | None = None
        self._n_parts = 0
        self._latest: tuple[Part, bytes] | None = None  # the part that an operation used

    @classmethod
    def of_pixels(
        cls, pixels: bytes, mode: str, size: tuple[int, int], fourth_byte: int | None
    ) -> Source:
        """An image in memory: RGB pixels, three equal bytes each if the mode is "L"."""
        source = cls(b"", mode, *size)
        source.pixels, source.fourth_byte = pixels, fourth_byte
        return source

    @property
    def pixels(self) -> bytes | None:
        """The whole image as RGB, or None."""
        return self._pixels

    @pixels.setter
    def pixels(self, pixels: bytes) -> None:
        self._pixels = pixels
        self._hold(len(self.data) + len(pixels))

    def _hold(self, n_bytes: int) -> None:
        """Called when the image holds another number of bytes."""
        added = n_bytes - self._n_held
        self._n_held = n_bytes
        hold(added)

    @property
    def lock(self) -> Any:
        """Held while pixels are made. Shared with other sources, none of which is needed for that.
        """
        return _locks[id(self) // 64 % len(_locks)]

    def __del__(self) -> None:
        hold(-self._n_held)
        if self._n_parts:
            _Habit.share += _Habit.WEIGHT * ((self._n_parts > 1) - _Habit.share)

    def render(self, part: Part) -> bytes | None:
        """The pixels of a part as RGB; None if feedmill does not decode the image."""
        result = self._render(part)
        return result if isinstance(result, bytes) else None

    def pixels_of(self, part: Part) -> bytes | None:
        """As render(), and keeps the result for other uses of the same part."""
        with self.lock:
            result = self.render(part)
            if result is not None and result is not self.pixels:
                self._latest = part, result
        return result

    def kept(self, part: Part) -> bytes | None:
        """The pixels of a part, if pixels_of() kept them."""
        latest = self._latest
        return latest[1] if latest is not None and latest[0] == part else None

    def render_into(self, part: Part, capsule: object, fourth_byte: int) -> bool:
        """Renders a part into Pillow's memory (native.render()); False if feedmill does not decode
        the image."""
        return self._render(part, capsule, fourth_byte) is None

    def _render(self, part: Part, *target: Any) -> bytes | str | None:
        """As native.render()."""
        source, box, orientation, resize = self._arguments(part)
        is_upright = resize is None and orientation == UPRIGHT
        if is_upright and (0, 0, *source[1:]) == box and not target:
            pixels: bytes = source[0]
            return pixels
        if not self.data:
            return native.render(source, box, orientation, resize, *target)
        is_whole = is_upright and len(source) == 1 and box[2:] == (self.width, self.height)
        with counters.timed("whole" if is_whole else "parts"):
            return native.render(source, box, orientation, resize, *target)

    def _arguments(self, part: Part) -> tuple[Any, Rect, int, Any]:
        """Arguments for native.render(). From an image's second part on, the image is decoded as a
        whole, once; from the first part on if most of the latest images gave several parts."""
        with self.lock:
            kept, size = self.kept(part), part.size
            if kept is not None:
                return (kept, *size), (0, 0, *size), UPRIGHT, None
            is_file = bool(self.data)
            self._n_parts += is_file
            if self.pixels is None and not (is_file and self._n_parts <= 1 and _Habit.share <= 0.5):
                self.decode_whole()
            pixels = self.pixels
        source = (self.data,) if pixels is None else (pixels, self.width, self.height)
        return source, part.box, part.orientation, part.resize.arguments() if part.resize else None

    def decode_whole(self) -> bool:
        """Decodes the whole image to ``pixels``; False if feedmill does not decode it."""
        with counters.timed("whole"):
            whole = native.render((self.data,), (0, 0, self.width, self.height), UPRIGHT, None)
        if not isinstance(whole, bytes):
            return False
        self.pixels = whole
        return True

    def opened(self) -> Image.Image:
        """The image, decoded by Pillow at once."""
        if self.remake is not None:
            return Image.Image()._new(self.remake())
        if not self.data:
            self.decode_whole()
            assert self.pixels is not None
            size = self.width, self.height
            if self.mode == "L":
                return Image.frombytes("L", size, self.pixels[::3])
            assert self.fourth_byte is not None
            return Image.Image()._new(_core_of(self.pixels, size, self.fourth_byte))
        image = JpegImagePlugin.JpegImageFile(io.BytesIO(self.data))
        ImageFile.ImageFile.load(image)
        return image


class MadeSource(Source):
    """An image in memory whose pixels are made when they are first needed.

    Attributes:
        value: of all bytes, or None.
        gray_of: the RGB pixels that this shows in gray, or None.
    """

    __slots__ = ("_make", "gray_of", "value")

    def __init__(
        self,
        mode: str,
        size: tuple[int, int],
        fourth_byte: int,
        make: Callable[[], bytes],
        value: int | None = None,
        gray_of: bytes | None = None,
    ) -> None:
        super().__init__(b"", mode, *size)
        self.fourth_byte, self._make = fourth_byte, make
        self.value, self.gray_of = value, gray_of

    def decode_whole(self) -> bool:
        """Makes the pixels."""
        with self.lock:
            if self.pixels is None:
                self.pixels = self._make()
        return True


class Resize(NamedTuple):
    """A resize, the part of its result that is kept, and how that is turned.

    Attributes:
        width, height: of the resized image.
        kind: fm_filter.
        number: the same as Pillow's Image.Resampling.
        order: fm_resize_order.
        fourth_byte: of each pixel of the result in Pillow's memory; None as of a Source.
        window: the part that is kept, in pixels of the resized image.
        orientation: how it is turned.
        part: of the image that is resized; None: all of it.
    """

    width: int
    height: int
    kind: int
    number: int
    order: int
    fourth_byte: int | None
    window: Rect
    orientation: int = UPRIGHT
    part: Box | None = None

    def arguments(self) -> tuple[Any, ...]:
        """As native.render() takes them."""
        size = self.width, self.height
        known = (*size, self.kind, self.order, self.window, self.orientation)
        return known if self.part is None else (*known, self.part)


class Part(NamedTuple):
    """A part of a source, turned, and what is done with it then.

    Attributes:
        box: in pixels of the stored image.
        orientation: how the box is turned.
        resize: what follows, or None.
    """

    box: Rect
    orientation: int = UPRIGHT
    resize: Resize | None = None

    @property
    def size(self) -> tuple[int, int]:
        """Width and height of the result."""
        resize = self.resize
        if resize is None:
            return turned_size(self.orientation, *self.box[2:])
        return turned_size(resize.orientation, *resize.window[2:])

    def cropped(self, rect: Rect) -> Part:
        """A part of this, which must lie within."""
        resize = self.resize
        if resize is None:
            left, top, width, height = self.box
            x, y, n_columns, n_rows = stored_rect(self.orientation, rect, width, height)
            return self._replace(box=(left + x, top + y, n_columns, n_rows))
        left, top, width, height = resize.window
        x, y, n_columns, n_rows = stored_rect(resize.orientation, rect, width, height)
        return self._replace(resize=resize._replace(window=(left + x, top + y, n_columns, n_rows)))

    def turned(self, orientation: int) -> Part:
        """This, turned."""
        resize = self.resize
        if resize is None:
            return self._replace(orientation=COMPOSED[self.orientation][orientation])
        composed = COMPOSED[resize.orientation][orientation]
        return self._replace(resize=resize._replace(orientation=composed))


class PixelAccess:
    """Returned by load() to a caller that drops the result. Decodes the image if the result is used
    after all."""

    def __init__(self, core: DeferredCore, readonly: int) -> None:
        self._core, self._readonly = core, readonly

    def _real(self) -> Any:
        return self._core.real("load").pixel_access(self._readonly)

    def __getitem__(self, xy: Any) -> Any:
        return self._real()[xy]

    def __setitem__(self, xy: Any, value: Any) -> None:
        self._real()[xy] = value

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real(), name)


class DeferredCore(Operations):
    """Stands in for Pillow's ImagingCore until somebody needs pixels. Thread-safe.

    Attributes:
        mode, size, bands, readonly: as the real core has them.
    """

    __slots__ = ("_part", "_real", "_source", "bands", "mode", "readonly", "size")

    def __init__(self, source: Source, part: Part, mode: str) -> None:
        self._source: Source | None = source  # None once there are pixels
        self._part, self.mode = part, mode
        self._real: Any = None
        self.size = part.size
        self.bands = _BANDS[mode]
        self.readonly = 0

    # ---- what is put off -------------------------------------------------------------------------

    def copy(self) -> Any:
        """As ImagingCore.copy()."""
        return self._derived(self._part) or self.real("copy").copy()

    def crop(self, box: tuple[int, int, int, int]) -> Any:
        """As ImagingCore.crop(): left, top, right, bottom."""
        known = self._known()
        if known is not None:
            return known.crop(box)
        left, top, right, bottom = box
        inside = 0 <= left < right <= self.size[0] and 0 <= top < bottom <= self.size[1]
        if not inside or self.mode == "CMYK":
            return mapping.cropped(self, box) or self.real("crop").crop(box)
        part = self._part.cropped((left, top, right - left, bottom - top))
        return self._derived(part) or self.real("crop").crop(box)

    def transpose(self, method: Any) -> Any:
        """As ImagingCore.transpose()."""
        known = self._known()
        if known is not None:
            return known.transpose(method)
        orientation = OF_TRANSPOSE.get(method) if isinstance(method, int) else None
        if orientation is None or self.mode == "CMYK":
            return self.real("transpose").transpose(method)
        derived = self._derived(self._part.turned(orientation))
        return derived or self.real("transpose").transpose(method)

    def resize(self, size: Any, resample: Any, box: Any) -> Any:
        """As ImagingCore.resize(), which crops a part that has the wanted size already."""
        if is_part_of_size(box, self.size, size):
            return self.crop(box)
        known = self._known()
        if known is None and self._part.resize is not None:
            known = self.flattened()
        if known is not None:
            return known.resize(size, resample, box)
        resize = self._resize_of(size, resample, box)
        derived = resize and self._derived(self._part._replace(resize=resize))
        return derived or self.real("resize").resize(size, resample, box)

    def convert(self, mode: str, *arguments: Any) -> Any:
        """As ImagingCore.convert()."""
        derived = mode == "RGB" and self._derived(self._part, mode)
        if mode == "L" and self.mode == "RGB":
            derived = self.gray()
        return derived or self.real("convert").convert(mode, *arguments)

    def pixel_access(self, readonly: int) -> Any:
        """As ImagingCore.pixel_access(), whose result load() returns."""
        frame: FrameType | None = sys._getframe(1)
        while frame is not None and frame.f_code in LOADS:
            if drops_result(frame):
                return PixelAccess(self, readonly)
            frame = frame.f_back
        if frame is not None and drops_result(frame):
            return PixelAccess(self, readonly)
        return self.real("load").pixel_access(readonly)

    def _derived(self, part: Part, mode: str | None = None) -> DeferredCore | None:
        """Another part of the same source; None if this has its pixels already, which may differ
        from the source's."""
        source = self._source
        if self._real is not None or source is None:
            return None
        return DeferredCore(source, part, mode or self.mode)

    def _resize_of(self, size: Any, resample: Any, box: Any) -> Resize | None:
        """None if the resize has to be done at once."""
        if self._part.resize is not None or self.mode == "CMYK":
            return None
        if not is_size(size) or size[0] * size[1] > _MAX_DEFERRED_PX:
            return None
        if type(box) not in (tuple, list):
            return None
        width, height = size
        found = filter_of(resample)
        if found is None:
            return None
        part = None
        if tuple(box) != (0, 0, *self.size):
            part = box_within(box, self.size, size)
            if part is None or not boxes_are_exact(int(resample)):
                return None
        kind, order = found
        # A grey image's pixels get a fourth byte when it is converted.
        is_mixed = self.mode == "RGB" and resample != _NEAREST
        fourth_byte = _FOURTH_RESIZED if is_mixed else self.fourth_byte
        window = (0, 0, width, height)
        return Resize(
            width, height, kind, int(resample), order, fourth_byte, window, part=part
        )

    # ---- pixels ----------------------------------------------------------------------------------

    @property
    def fourth_byte(self) -> int | None:
        """The fourth byte of each pixel in Pillow's memory; of an RGB image without a core. None:
        pixels have different ones."""
        resize, source = self._part.resize, self._source
        if resize is not None:
            return resize.fourth_byte
        return _FOURTH_DECODED if source is None else source.fourth_byte

    def pixels(self) -> bytes | None:
        """The pixels of an RGB or grey image as RGB, which are kept; None if there is a core with
        pixels, which may differ, or feedmill does not decode the image."""
        source = self._source
        if source is None or self._real is not None or self.mode == "CMYK":
            return None
        return source.pixels_of(self._part)

    @property
    def has_pixels(self) -> bool:
        """Whether pixels() has nothing to render."""
        source = self._source
        if source is None or self._real is not None:
            return False
        is_whole = self._part == ((0, 0, source.width, source.height), UPRIGHT, None)
        return source.kept(self._part) is not None or (is_whole and source.pixels is not None)

    def flattened(self) -> DeferredCore | None:
        """The same pixels as an image in memory."""
        fourth_byte = self.fourth_byte
        pixels = None if fourth_byte is None else self.pixels()
        return None if pixels is None else self.of_pixels(pixels, fourth_byte, self.mode)

    def _known(self) -> DeferredCore | None:
        """The same pixels as an image in memory, if they are kept."""
        source = self._source
        pixels = None if source is None or self._real is not None else source.kept(self._part)
        fourth_byte = self.fourth_byte
        if pixels is None or fourth_byte is None:
            return None
        return self.of_pixels(pixels, fourth_byte, self.mode)

    def of_pixels(
        self,
        pixels: bytes,
        fourth_byte: int | None,
        mode: str = "RGB",
        size: tuple[int, int] | None = None,
        remake: Callable[[], Any] | None = None,
    ) -> DeferredCore:
        """An image with these pixels, of the same size unless there is another one; `remake` as of
        a Source."""
        source = Source.of_pixels(pixels, mode, size or self.size, fourth_byte)
        source.remake = remake
        return _whole(source)

    def maker(self, pixels: bytes) -> Callable[[], Any] | None:
        """A function that makes Pillow's core of this RGB image with these pixels; None if their
        fourth bytes are not known. It takes no lock, and does not need this object."""
        fourth_byte, source, size = self.fourth_byte, self._source, self.size
        if fourth_byte is not None:
            return lambda: _core_of(pixels, size, fourth_byte)
        is_whole = self._part == ((0, 0, *size), UPRIGHT, None)
        return source.remake if source is not None and is_whole else None

    def of_made(
        self, make: Callable[[], bytes], fourth_byte: int, mode: str = "RGB", **known: Any
    ) -> DeferredCore:
        """An image of the same size whose pixels are made when they are first needed."""
        return _whole(MadeSource(mode, self.size, fourth_byte, make, **known))

    @property
    def made(self) -> MadeSource | None:
        """The image whose whole is shown, if it is a MadeSource."""
        source, part = self._source, self._part
        is_whole = part == ((0, 0, *self.size), UPRIGHT, None)
        return source if isinstance(source, MadeSource) and is_whole else None

    @property
    def is_real(self) -> bool:
        """Whether there are pixels already."""
        return self._real is not None

    def real(self, asked_by: str = "other") -> Any:
        """Pillow's core, with pixels; always the same one.

        Args:
            asked_by: name of the function that needs it, for the counters.
        """
        source = self._source
        if source is not None:
            with source.lock:
                if self._real is None:
                    counters.current().end(asked_by)
                    self._real = self._render(source)
                    self._source = None
        return self._real

    def rgb_bytes(self) -> bytes | None:
        """The pixels of an RGB image as Pillow's tobytes() gives them, without making the core;
        None if feedmill does not decode the image."""
        source = self._source
        if source is None or self.mode != "RGB" or self._real is not None:
            return None
        return source.render(self._part)

    def packed_bytes(self) -> bytes | None:
        """As rgb_bytes(), of a grey image, too."""
        source = self._source
        if source is None or self.mode != "L" or self._real is not None:
            return self.rgb_bytes()
        return self._gray_bytes(source)

    def _gray_bytes(self, source: Source) -> bytes | None:
        made = self.made
        if made is not None and made.gray_of is not None:
            return gray_bytes(made.gray_of, self.size)
        data = source.render(self._part)
        return None if data is None else data[::3]

    def __getattr__(self, name: str) -> Any:
        return getattr(self.real(name), name)

    def _render(self, source: Source) -> Any:
        if self.mode == "RGB":
            core = self._render_rgb(source)
            if core is not None:
                return core
            if self.fourth_byte is None:
                return self._made_by_pillow(source)
        elif self.mode == "L":
            data = self._gray_bytes(source)
            if data is not None:
                return Image.frombytes("L", self.size, data).im
        counters.current().add("by_pillow")
        return self._made_by_pillow(source)

    def _render_rgb(self, source: Source) -> Any:
        """A core with the pixels; None if feedmill does not decode the image."""
        fourth_byte = self.fourth_byte
        if fourth_byte is None:
            return None
        core = Image.core.new("RGB", self.size)  # type: ignore[attr-defined]
        capsule = exported(core)
        if capsule is None:
            data = source.render(self._part)
            return None if data is None else _core_of(data, self.size, fourth_byte)
        return core if source.render_into(self._part, capsule, fourth_byte) else None

    def _made_by_pillow(self, source: Source) -> Any:
        """The same steps by Pillow alone; errors are Pillow's."""
        part, image = self._part, source.opened()
        if image.mode != self.mode:
            image = image.convert(self.mode)
        left, top, width, height = part.box
        image = _turned(image.crop((left, top, left + width, top + height)), part.orientation)
        if part.resize is not None:
            resize = part.resize
            image = image.resize(
                (resize.width, resize.height), Image.Resampling(resize.number), box=resize.part
            )
            left, top, width, height = resize.window
            image = _turned(image.crop((left, top, left + width, top + height)), resize.orientation)
        return image.im


def _whole(source: Source) -> DeferredCore:
    return DeferredCore(source, Part((0, 0, source.width, source.height)), source.mode)


def _core_of(data: bytes, size: tuple[int, int], fourth_byte: int) -> Any:
    """A core with these pixels of three bytes."""
    pixels = bytearray([fourth_byte]) * (4 * size[0] * size[1])
    for channel in range(3):
        pixels[channel::4] = data[channel::3]
    return Image.frombytes("RGB", size, bytes(pixels), "raw", "RGBX").im


def _turned(image: Image.Image, orientation: int) -> Image.Image:
    for method, one in OF_TRANSPOSE.items():
        if one == orientation:
            return image.transpose(Image.Transpose(method))
    return image
