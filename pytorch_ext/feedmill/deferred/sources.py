"""Where the pixels of deferred images come from: an encoded file, or an image in memory."""

from __future__ import annotations

import io
import sys
import threading
from collections.abc import Callable
from typing import Any

from PIL import Image, ImageFile, JpegImagePlugin

from feedmill._ops import native
from feedmill.deferred import counters
from feedmill.deferred.held import hold
from feedmill.deferred.orientations import UPRIGHT, Rect
from feedmill.deferred.parts import Part
from feedmill.system import locks

# The fourth byte of a decoded pixel in Pillow's memory.
FOURTH_DECODED = 255


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
        self.fourth_byte: int | None = FOURTH_DECODED
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
        try:
            hold(-self._n_held)
            if self._n_parts:
                _Habit.share += _Habit.WEIGHT * ((self._n_parts > 1) - _Habit.share)
        except (AttributeError, TypeError):  # the interpreter is shutting down: globals are None
            pass

    def render(self, part: Part) -> bytes | None:
        """The pixels of a part as RGB; None if feedmill does not decode the image."""
        result = self._render(part)
        return result if isinstance(result, bytes) else None

    def render_to(self, part: Part, address: int) -> bool:
        """Writes the pixels of a part to memory, as RGB; False if feedmill does not decode the
        image."""
        return self._render(part, address) is None

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

    def encoded(self, part: Part, is_trial: bool) -> tuple[Any, ...]:
        """The source of native.render() for a part that is the whole image: a file, or RGB pixels.

        Args:
            is_trial: not counted as a use of a part.
        """
        if is_trial and self.data and self.pixels is None:
            return (self.data,)
        source: tuple[Any, ...] = self._arguments(part)[0]
        return source

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
            return Image.Image()._new(core_of(self.pixels, size, self.fourth_byte))
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


def core_of(data: bytes, size: tuple[int, int], fourth_byte: int) -> Any:
    """A core with these pixels of three bytes."""
    pixels = bytearray([fourth_byte]) * (4 * size[0] * size[1])
    for channel in range(3):
        pixels[channel::4] = data[channel::3]
    return Image.frombytes("RGB", size, bytes(pixels), "raw", "RGBX").im
