"""Images that are a part of a file, such as a member of a tar archive."""

from __future__ import annotations

import errno
import operator
import os
import stat
from typing import Any, NamedTuple

# Of a range's begin and size, as fm_sample has it: far above any file.
_MOST = 1 << 61
# Entries of a table of rows, as fm_jpeg_rows has it.
_MOST_ROWS = 64


class Range(NamedTuple):
    """A part of a file.

    Attributes:
        offset: where it begins.
        n_bytes: how many bytes it has, at least 1.
        verified: the image in it was decoded whole before, and found sane; see fm_sample.
        rows: of a verified JPEG (width, height, MCU's height, begin, begin, ...), where its rows of
            MCUs begin, as fm_jpeg_rows has it; None: not known.
    """

    offset: int
    n_bytes: int
    verified: bool = False
    rows: tuple[int, ...] | None = None

    def read(self, path: Any) -> bytes:
        """Its bytes. OSError names the file and the bytes where they are not all there."""
        # Opening a pipe that nobody writes to would block for ever.
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            if not stat.S_ISREG(os.fstat(file).st_mode):
                raise OSError(errno.EINVAL, "not a regular file", path)
            parts, at, end = [], self.offset, self.offset + self.n_bytes
            while at < end:
                part = os.pread(file, min(end - at, 1 << 30), at)
                if not part:
                    raise OSError(errno.EIO, f"it ends before {self} do", path)
                parts.append(part)
                at += len(part)
            return parts[0] if len(parts) == 1 else b"".join(parts)
        finally:
            os.close(file)

    def __str__(self) -> str:
        return f"bytes {self.offset} to {self.offset + self.n_bytes - 1}"


def range_of(parts: tuple[Any, ...]) -> Range | None:
    """What follows the path in ``(path, offset, bytes)``, which ``verified`` and ``rows`` may
    follow; None: there are no bytes. TypeError or ValueError where that is no range."""
    if not 3 <= len(parts) <= 5:
        raise TypeError(
            "a part of a file is (path, offset, bytes[, verified[, rows]]), not a tuple of "
            f"{len(parts)}"
        )
    offset, n_bytes = operator.index(parts[1]), operator.index(parts[2])
    if not 0 <= offset < _MOST or not 0 <= n_bytes < _MOST:
        raise ValueError(f"{n_bytes} bytes at offset {offset}: no file has such a part")
    verified = len(parts) > 3 and bool(parts[3])
    rows = _rows_of(parts[4]) if len(parts) > 4 else None
    return Range(offset, n_bytes, verified, rows) if n_bytes else None


def _rows_of(rows: Any) -> tuple[int, ...] | None:
    if rows is None:
        return None
    numbers = tuple(map(operator.index, rows))
    if not 4 <= len(numbers) <= 3 + _MOST_ROWS or min(numbers) < 0 or max(numbers) >= 1 << 32:
        raise ValueError(
            f"rows are width, height, MCU's height and 1 to {_MOST_ROWS} numbers of 32 bits"
        )
    return numbers
