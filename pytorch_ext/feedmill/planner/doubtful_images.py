"""Which images of tar files are worth to be decoded by the pipeline before the native loader tries
to, as they may be no images: those whose first and last bytes are not those of a whole JPEG, PNG or
WebP file."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from feedmill.planner.ranges import Range
from feedmill.planner.sample_streams import Picture
from feedmill.planner.streams import Member

_WEBP_BYTES = 12
# By the first bytes of a file its last ones.
_ENDS = {b"\xff\xd8\xff": b"\xff\xd9", b"\x89PNG\r\n\x1a\n": b"IEND\xaeB`\x82"}
_MOST_IN_VAIN = 8


class Doubts:
    """Tries images that may be none, until too many of those are images.

    To leave out an image later takes longer: batches that were decoded ahead are decoded again. But
    if all JPEGs have more bytes behind their end, for example, no doubt helps.

    Args:
        fields: keys of images, of which a sample's first one is used.
    """

    def __init__(self, fields: Sequence[str]) -> None:
        self._fields = fields
        self._left = _MOST_IN_VAIN

    def check(self, own: Any, picture: Picture) -> None:
        """Raises what ``own[picture]`` raises for an image that may be none."""
        if self._left <= 0:
            return
        found = [picture.sample[one] for one in self._fields if one in picture.sample]
        if not found or type(found[0]) is not Member or _is_whole(*found[0]):
            return
        left, self._left = self._left, _MOST_IN_VAIN
        own[picture]
        self._left = left - 1


def _is_whole(path: str, place: Range) -> bool:
    def read(offset: int, n_bytes: int) -> bytes:
        part: Any = Range(place.offset + offset, n_bytes).read(path)
        return bytes(part)

    if place.n_bytes < _WEBP_BYTES:
        return False
    begin = read(0, _WEBP_BYTES)
    for first, last in _ENDS.items():
        if begin.startswith(first):
            return read(place.n_bytes - len(last), len(last)) == last
    n_bytes = int.from_bytes(begin[4:8], "little") + 8
    return begin[:4] == b"RIFF" and begin[8:] == b"WEBP" and n_bytes <= place.n_bytes
