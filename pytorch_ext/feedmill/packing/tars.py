"""Reads the headers of tar files, to locate their members; makes headers for new tar files.

POSIX, GNU and old tar files are read like Python's tarfile does, with the long names and sizes of
GNU and PAX. Every number is checked; a damaged or truncated file raises PackError.
"""

from __future__ import annotations

import os
import tarfile
from collections.abc import Iterator
from typing import NamedTuple

from feedmill.packing.index import PackError

BLOCK = 512
# Limit of long names and PAX records.
_MAX_BODY_BYTES = 1 << 20
_LONG_NAME, _LONG_LINK, _PAX, _PAX_OLD, _PAX_ALL = b"L", b"K", b"x", b"X", b"g"
_SPARSE = b"S"
_COMPRESSED = {b"\x1f\x8b": "gzip", b"BZ": "bzip2", b"\xfd7": "xz", b"\x28\xb5": "zstd"}


class Member(NamedTuple):
    """A regular file in a tar file: its name, and the offset and number of its bytes."""

    name: str
    offset: int
    bytes: int


def padded(n_bytes: int) -> int:
    """The size of a member's bytes in a tar file: a multiple of BLOCK."""
    return -(-n_bytes // BLOCK) * BLOCK


def header_of(name: str, n_bytes: int) -> bytes:
    """The header of a member. It depends only on the arguments: modes, owners and times are fixed.
    """
    info = tarfile.TarInfo(name)
    info.size, info.mode = n_bytes, 0o644
    return info.tobuf(tarfile.GNU_FORMAT, "utf-8", "surrogateescape")


def members(file: int, n_bytes: int, path: str) -> Iterator[Member]:
    """The regular files of a tar file, in order.

    Args:
        file: descriptor of the open file; the file position is not used.
        n_bytes: size of the file.
        path: name of the file in error messages.

    Raises:
        PackError: it is not a tar file, is compressed, damaged or truncated.
    """
    reader = _HeaderReader(file, n_bytes, path)
    while (member := reader.next()) is not None:
        yield member


class _HeaderReader:
    """Reads one header after the other. ``_long``, a GNU long name, and ``_pax``, PAX records,
    belong to the next member; ``_pax_all`` to all members that follow."""

    def __init__(self, file: int, n_bytes: int, path: str) -> None:
        self._file, self._n_bytes, self._path = file, n_bytes, path
        self._at = 0
        self._long: str | None = None
        self._pax: dict[str, str] = {}
        self._pax_all: dict[str, str] = {}

    def _fail(self, what: str) -> PackError:
        return PackError(f"{self._path}: {what} at byte {self._at}")

    def next(self) -> Member | None:
        while True:
            header = self._header()
            if header is None:
                if self._long is not None or self._pax:
                    raise self._fail("the tar file ends after a long name, without its member")
                return None
            kind = header[156:157]
            if kind == _LONG_NAME:
                self._long = os.fsdecode(self._body(header).split(b"\0", 1)[0])
            elif kind in (_PAX, _PAX_OLD):
                self._pax = self._records(self._body(header))
            elif kind == _PAX_ALL:
                self._pax_all |= self._records(self._body(header))
            elif kind == _LONG_LINK:
                self._body(header)
            elif (member := self._member(header, kind)) is not None:
                return member

    def _header(self) -> bytes | None:
        """The next header; None at the end of the file, or at a block of zeros."""
        if self._at == self._n_bytes:
            return None
        header = os.pread(self._file, BLOCK, self._at)
        if len(header) != BLOCK:
            raise self._fail("the tar file is truncated")
        if not any(header):
            return None
        if not _is_header(header):
            raise self._fail(_why_not_tar(header) if self._at == 0 else "damaged tar header")
        return header

    def _number(self, field: bytes) -> int:
        """A number in a header: octal digits, or a binary number if the first bit is set."""
        if field[0] & 0x80:
            if field[0] != 0x80:
                raise self._fail("negative number in a tar header")
            return int.from_bytes(field[1:], "big")
        text = field.split(b"\0", 1)[0].strip()
        if not text:
            return 0
        if text.strip(b"01234567"):
            raise self._fail("invalid number in a tar header")
        return int(text, 8)

    def _body(self, header: bytes) -> bytes:
        """Reads the bytes of a long name or of PAX records, which follow its header, and advances
        to the next header."""
        n_bytes = self._number(header[124:136])
        if n_bytes > _MAX_BODY_BYTES:
            raise self._fail(f"a name of {n_bytes} bytes; the limit is {_MAX_BODY_BYTES}")
        body = os.pread(self._file, n_bytes, self._at + BLOCK)
        if len(body) != n_bytes:
            raise self._fail("the tar file is truncated")
        self._at += BLOCK + padded(n_bytes)
        return body

    def _records(self, body: bytes) -> dict[str, str]:
        """Parses PAX records: "length key=value" and a newline; the length is that of all of it."""
        records = {}
        while body.strip(b"\0"):
            length, _, _ = body.partition(b" ")
            if not length.isdigit() or not 5 <= int(length) <= len(body):
                raise self._fail("damaged PAX records")
            record, body = body[: int(length)], body[int(length) :]
            key, equals, value = record[len(length) + 1 :].partition(b"=")
            if not equals or value[-1:] != b"\n":
                raise self._fail("damaged PAX records")
            records[os.fsdecode(key)] = os.fsdecode(value[:-1])
        return records

    def _member(self, header: bytes, kind: bytes) -> Member | None:
        """The member of a header; None: it is not a regular file. Advances to the next header."""
        pax = self._pax_all | self._pax
        name, n_bytes = self._name(header, pax), self._number(header[124:136])
        if "size" in pax:
            if not pax["size"].isdecimal():
                raise self._fail("invalid number in PAX records")
            n_bytes = int(pax["size"])
        is_regular = kind in (b"0", b"\0", b"7") and not name.endswith("/")
        if kind == _SPARSE or any(key.startswith("GNU.sparse.") for key in pax):
            raise self._fail(f"{name} is a sparse file, which is not supported")
        # The header of a link, device or folder may have a size, but no bytes follow.
        if kind in (b"1", b"2", b"3", b"4", b"5", b"6"):
            n_bytes = 0
        offset = self._at + BLOCK
        if n_bytes > self._n_bytes - offset:
            raise self._fail(f"the tar file is truncated: {name} has {n_bytes} bytes")
        # The last member's padding may be missing.
        self._at = min(offset + padded(n_bytes), self._n_bytes)
        self._long, self._pax = None, {}
        return Member(name, offset, n_bytes) if is_regular else None

    def _name(self, header: bytes, pax: dict[str, str]) -> str:
        if "path" in pax:
            return pax["path"]
        if self._long is not None:
            return self._long
        name = header[:100].split(b"\0", 1)[0]
        if header[257:263] == b"ustar\0" and (prefix := header[345:500].split(b"\0", 1)[0]):
            name = prefix + b"/" + name
        return os.fsdecode(name)


def _is_header(header: bytes) -> bool:
    """Whether a header's checksum is right. It is computed as if its own bytes were spaces."""
    noted = header[148:156].strip(b" \0")
    if noted.strip(b"01234567"):
        return False
    total, unsigned = int(noted or b"0", 8), sum(header) - sum(header[148:156]) + 8 * 32
    # Some writers compute the checksum with signed bytes.
    return total == unsigned or total == unsigned - 256 * sum(
        byte > 127 for byte in header[:148] + header[156:]
    )


def _why_not_tar(start: bytes) -> str:
    for magic, kind in _COMPRESSED.items():
        if start.startswith(magic):
            return f"compressed by {kind}; decompress it, as samples need random access"
    return "not a tar file"
