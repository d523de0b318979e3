"""Images that are a byte range of a file, such as a member of a tar archive, or one version of a
remote object."""

from __future__ import annotations

import errno
import operator
import os
import stat
from typing import Any, NamedTuple

from feedmill.remote.names import is_name
from feedmill.remote.process import fetch
from feedmill.remote.sources import is_remote, read_object

# Limit of a range's offset and size, as in fm_sample; far above the size of any file.
_MAX_BYTES = 1 << 61
# Limit of the entries of a restart index, as in fm_jpeg_rows.
_MAX_ROWS = 64
# As FM_ETAG_BYTES, without the terminating 0.
_MAX_ETAG_CHARS = 135


class Range(NamedTuple):
    """A byte range of a file.

    Attributes:
        offset: of the first byte.
        n_bytes: number of bytes, at least 1.
        verified: the whole image was decoded before, without an error; see fm_sample.
        rows: restart index of a verified JPEG: (width, height, height of an MCU, offset, ...), with
            the offsets of its rows of MCUs, as in fm_jpeg_rows; None: not known.
    """

    offset: int
    n_bytes: int
    verified: bool = False
    rows: tuple[int, ...] | None = None

    def read(self, path: Any) -> bytes:
        """Reads the bytes from the file or the remote object ``path``.

        Raises:
            OSError: the file can't be read, or ends before the range does.
        """
        if is_remote(path):
            return read_object(path, self.offset, self.n_bytes)
        # O_NONBLOCK: open() would block on a named pipe without a writer.
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            if not stat.S_ISREG(os.fstat(file).st_mode):
                raise OSError(errno.EINVAL, "not a regular file", path)
            parts, at, end = [], self.offset, self.offset + self.n_bytes
            while at < end:
                part = os.pread(file, min(end - at, 1 << 30), at)
                if not part:
                    raise OSError(errno.EIO, f"the file ends before {self}", path)
                parts.append(part)
                at += len(part)
            return parts[0] if len(parts) == 1 else b"".join(parts)
        finally:
            os.close(file)

    def __str__(self) -> str:
        return f"bytes {self.offset} to {self.offset + self.n_bytes - 1}"


class Version(NamedTuple):
    """A whole remote object, of which only one version is read.

    Attributes:
        etag: of that version, with its quotes.
    """

    etag: str

    def read(self, path: Any) -> bytes:
        """Reads the remote object ``path``. Raises OSError if it can't be read, or has changed."""
        return fetch(path, etag=self.etag)


def version_of(parts: tuple[Any, ...]) -> Version | None:
    """The version in ``(name, etag)``; None: any version.

    Raises:
        TypeError, ValueError: the tuple is not such a version.
    """
    name, etag = parts
    if not is_name(name) or not isinstance(etag, str):
        raise TypeError(
            "a tuple of two values must be (name of a remote object, ETag), not "
            f"({type(name).__name__}, {type(etag).__name__})"
        )
    if not etag or etag.startswith("W/"):
        return None
    is_etag = len(etag) > 2 and etag[0] == etag[-1] == '"' and etag.isascii() and etag.isprintable()
    if not is_etag or len(etag) > _MAX_ETAG_CHARS:
        raise ValueError(
            f"{etag[:200]!r} is not an ETag: these are in double quotes, and have at most "
            f"{_MAX_ETAG_CHARS} characters"
        )
    return Version(etag)


def range_of(parts: tuple[Any, ...]) -> Range | None:
    """The range in ``(path, offset, bytes[, verified[, rows]])``; None: it has no bytes.

    Raises:
        TypeError, ValueError: the tuple is not such a range.
    """
    if not 3 <= len(parts) <= 5:
        raise TypeError(
            "a byte range of a file must be (path, offset, bytes[, verified[, rows]]), not a tuple "
            f"of {len(parts)} values"
        )
    offset, n_bytes = operator.index(parts[1]), operator.index(parts[2])
    if not 0 <= offset < _MAX_BYTES or not 0 <= n_bytes < _MAX_BYTES:
        raise ValueError(f"{n_bytes} bytes at offset {offset} are not a byte range of a file")
    verified = len(parts) > 3 and bool(parts[3])
    rows = _rows_of(parts[4]) if len(parts) > 4 else None
    return Range(offset, n_bytes, verified, rows) if n_bytes else None


def _rows_of(rows: Any) -> tuple[int, ...] | None:
    if rows is None:
        return None
    numbers = tuple(map(operator.index, rows))
    if not 4 <= len(numbers) <= 3 + _MAX_ROWS or min(numbers) < 0 or max(numbers) >= 1 << 32:
        raise ValueError(
            "rows must be the image's width and height, the height of an MCU, and 1 to "
            f"{_MAX_ROWS} offsets, all of them unsigned 32-bit ints"
        )
    return numbers
