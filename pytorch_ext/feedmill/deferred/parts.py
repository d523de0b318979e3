"""Parts of an image, and what is done with them: one crop, one resize and two turns."""

from __future__ import annotations

from typing import Any, NamedTuple

from feedmill.deferred.orientations import COMPOSED, UPRIGHT, Rect, stored_rect, turned_size
from feedmill.deferred.resizing import Box


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
