"""Pixels that are not decoded yet, in the place of Pillow's own memory of an image.

Pillow's methods crop(), resize(), convert(), transpose() and copy() check their arguments, call
the method of the same name of the image's core (``Image.im``), and wrap the core that it returns.
A DeferredCore has these methods and returns another DeferredCore: what is to be done is noted as
one crop, one resize and two turns. Everything else that is asked for comes from the real core,
which is then rendered: decoded and resized by feedmill, only as far as it is needed.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

from PIL import Image

from feedmill.deferred import counters, mapping
from feedmill.deferred.filters import filter_of
from feedmill.deferred.frames import Codes, drops_result
from feedmill.deferred.operations import Operations, gray_bytes
from feedmill.deferred.orientations import OF_TRANSPOSE, UPRIGHT
from feedmill.deferred.parts import Part, Resize
from feedmill.deferred.resizing import (
    box_within,
    boxes_are_exact,
    exported,
    is_part_of_size,
    is_size,
)
from feedmill.deferred.sources import FOURTH_DECODED, MadeSource, Source, core_of

# Larger results are made at once: if there is no memory for one, Pillow's error comes from the
# call that asked for it.
_MAX_DEFERRED_PX = 1 << 26
_BANDS = {"RGB": 3, "L": 1, "CMYK": 4}
# The fourth byte of a pixel in Pillow's memory, as a resize other than the nearest pixel's leaves
# it.
_FOURTH_RESIZED = 0
_NEAREST = int(Image.Resampling.NEAREST)

# ``load()`` of Pillow's classes and of ours, which return what the call inside returned.
LOADS = Codes()


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
        while frame is not None and id(frame.f_code) in LOADS:
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
        return FOURTH_DECODED if source is None else source.fourth_byte

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
        return source.kept(self._part) is not None or (
            self._shows_all_of(source) and source.pixels is not None
        )

    def _shows_all_of(self, source: Source) -> bool:
        """Whether this is the source's whole image, as it is."""
        return self._part == ((0, 0, source.width, source.height), UPRIGHT, None)

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

    def maker(self, pixels: bytes, fourth_byte: int | None) -> Callable[[], Any] | None:
        """A function that makes Pillow's core of this RGB image with these pixels; None if their
        fourth bytes are not known. It takes no lock, and does not need this object.

        Args:
            fourth_byte: the attribute of that name, as it was when the pixels were asked for.
        """
        source, size = self._source, self.size
        if fourth_byte is not None:
            return lambda: core_of(pixels, size, fourth_byte)
        return source.remake if source is not None and self._shows_all_of(source) else None

    def of_made(
        self, make: Callable[[], bytes], fourth_byte: int, mode: str = "RGB", **known: Any
    ) -> DeferredCore:
        """An image of the same size whose pixels are made when they are first needed."""
        return _whole(MadeSource(mode, self.size, fourth_byte, make, **known))

    @property
    def made(self) -> MadeSource | None:
        """The image whose whole is shown, if it is a MadeSource."""
        source = self._source
        return source if isinstance(source, MadeSource) and self._shows_all_of(source) else None

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

    def write_rgb(self, address: int) -> bool:
        """Writes the pixels of an RGB image to memory; False if feedmill does not decode it."""
        source = self._source
        if source is None or self.mode != "RGB" or self._real is not None:
            return False
        return source.render_to(self._part, address)

    def encoded(self, *, is_trial: bool) -> tuple[Any, ...] | None:
        """The image as (bytes of a file,), or as (RGB pixels, width, height) where these are made
        already, or have to be; None if there is a core with pixels, or feedmill does not decode the
        image.

        Args:
            is_trial: it is used a second time for the same result.
        """
        source = self._source
        if source is None or self._real is not None:
            return None
        if self._shows_all_of(source):
            return source.encoded(self._part, is_trial)
        pixels = self.pixels()
        return None if pixels is None else (pixels, *self.size)

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
            return None if data is None else core_of(data, self.size, fourth_byte)
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


def _turned(image: Image.Image, orientation: int) -> Image.Image:
    for method, one in OF_TRANSPOSE.items():
        if one == orientation:
            return image.transpose(Image.Transpose(method))
    return image
