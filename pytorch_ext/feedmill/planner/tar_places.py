"""Numbers for the images in tar files, by which the native loader finds an image's seek points
again when no dataset has given it an index."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable

_LEAST_BYTES = 1024  # of a member of a tar file, with its header
# The memory for seek points, by default, is enough for those of so many usual photographs, and of
# so many with the fewest points.
_USUAL_PLACES, _MOST_PLACES = 1 << 20, 1 << 22


class TarPlaces:
    """Numbers each part of the tar files by its order. An image has the number of the part in which
    it begins.

    Images that share a part share a number: the native loader compares the bytes, and keeps the
    seek points of the one that was decoded last. So parts are an eighth of an average image, or up
    to a half of it, if these would be too many.

    Args:
        paths: of the tar files.
        image_bytes: what an image takes on average.

    Attributes:
        n: of numbers; 1: images have none of their own.
    """

    def __init__(self, paths: Iterable[str], image_bytes: int) -> None:
        sizes = {}
        for path in dict.fromkeys(map(os.path.abspath, paths)):
            with contextlib.suppress(OSError, ValueError):
                sizes[path] = os.stat(path).st_size
        for divisor in (8, 4, 2):
            self._part_bytes = max(_LEAST_BYTES, image_bytes // divisor)
            n = sum(size // self._part_bytes + 1 for size in sizes.values())
            if n < _USUAL_PLACES:
                break
        self._begins: dict[str, int] = {}
        self.n = 1
        for path, size in sizes.items() if n < _MOST_PLACES else ():
            self._begins[path] = self.n - 1
            self.n += size // self._part_bytes + 1

    def number(self, path: str, offset: int) -> int:
        """The number of an image, 0 to ``n`` - 1.

        Args:
            path: of the tar file, absolute; "": it is in none.
            offset: of the image's first byte in it.
        """
        begin = self._begins.get(path, self.n)
        return min(begin + offset // self._part_bytes, self.n - 1)
