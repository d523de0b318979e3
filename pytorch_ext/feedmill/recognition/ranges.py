"""Images that are a part of a file, such as a member of a tar archive."""

from __future__ import annotations

import errno
import operator
import os
import stat
from typing import Any, NamedTuple

# Of a range's begin and size, as fm_sample has it: far above any file.
_MOST = 1 << 61


class Range(NamedTuple):
    """A part of a file.

    Attributes:
        offset: where it begins.
        n_bytes: how many bytes it has, at least 1.
        verified: the image in it was decoded whole before, and found sane; see fm_sample.
    """

    offset: int
    n_bytes: int
    verified: bool = False

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
    """What follows the path in ``(path, offset, bytes)`` or ``(path, offset, bytes, verified)``;
    None: there are no bytes. TypeError or ValueError where that is no range."""
    if len(parts) not in (3, 4):
        raise TypeError(
            f"a part of a file is (path, offset, bytes) or (path, offset, bytes, verified), not a "
            f"tuple of {len(parts)}"
        )
    offset, n_bytes = operator.index(parts[1]), operator.index(parts[2])
    if not 0 <= offset < _MOST or not 0 <= n_bytes < _MOST:
        raise ValueError(f"{n_bytes} bytes at offset {offset}: no file has such a part")
    return Range(offset, n_bytes, len(parts) == 4 and bool(parts[3])) if n_bytes else None
