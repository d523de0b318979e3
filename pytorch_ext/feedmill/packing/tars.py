"""Tar files: where their members lie, without reading those; and what is written into new ones.

Read are POSIX, GNU and old tar files, with GNU's and PAX's long names and sizes, as Python's
tarfile reads them. Every number is checked; a file that is damaged or cut short raises PackError.
"""

from __future__ import annotations

import os
import tarfile
from collections.abc import Iterator
from typing import NamedTuple

from feedmill.packing.index import PackError

BLOCK = 512
# Names and PAX records of more bytes are no names.
_LONGEST_HEADER = 1 << 20
_LONG_NAME, _LONG_LINK, _PAX, _PAX_OLD, _PAX_ALL = b"L", b"K", b"x", b"X", b"g"
_SPARSE = b"S"
_COMPRESSED = {b"\x1f\x8b": "gzip", b"BZ": "bzip2", b"\xfd7": "xz", b"\x28\xb5": "zstd"}


class Member(NamedTuple):
    """A regular file in a tar file: its name, where its bytes begin, and how many they are."""

    name: str
    offset: int
    bytes: int


def padded(n_bytes: int) -> int:
    """What so many bytes take in a tar file."""
    return -(-n_bytes // BLOCK) * BLOCK


def header_of(name: str, n_bytes: int) -> bytes:
    """What stands in front of a member; it depends on these two only."""
    info = tarfile.TarInfo(name)
    info.size, info.mode = n_bytes, 0o644
    return info.tobuf(tarfile.GNU_FORMAT, "utf-8", "surrogateescape")


def members(file: int, n_bytes: int, path: str) -> Iterator[Member]:
    """The regular files of a tar file, in their order.

    Args:
        file: descriptor of the open file; it is read at positions, its own position stays.
        n_bytes: of the file.
        path: what errors call it.

    Raises:
        PackError: it is no tar file, compressed, damaged or cut short.
    """
    reading = _HeaderReader(file, n_bytes, path)
    while (member := reading.next()) is not None:
        yield member


class _HeaderReader:
    """A walk over the headers. ``_long`` and ``_pax`` are what belongs to the next member."""

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
                    raise self._fail("the tar file ends behind a long name")
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
        """The next one; None at the end: behind the last member, or at a block of zeros."""
        if self._at == self._n_bytes:
            return None
        header = os.pread(self._file, BLOCK, self._at)
        if len(header) != BLOCK:
            raise self._fail("the tar file is cut short")
        if not any(header):
            return None
        if not _is_header(header):
            raise self._fail(_no_header(header) if self._at == 0 else "damaged tar header")
        return header

    def _number(self, field: bytes) -> int:
        """Octal digits, or with its first bit set, a binary number of the other bits."""
        if field[0] & 0x80:
            if field[0] != 0x80:
                raise self._fail("negative number in a tar header")
            return int.from_bytes(field[1:], "big")
        text = field.split(b"\0", 1)[0].strip()
        if not text:
            return 0
        if text.strip(b"01234567"):
            raise self._fail("no number in a tar header")
        return int(text, 8)

    def _body(self, header: bytes) -> bytes:
        """The bytes behind the header of a long name or of PAX records; goes behind them."""
        n_bytes = self._number(header[124:136])
        if n_bytes > _LONGEST_HEADER:
            raise self._fail(f"a name of {n_bytes} bytes")
        body = os.pread(self._file, n_bytes, self._at + BLOCK)
        if len(body) != n_bytes:
            raise self._fail("the tar file is cut short")
        self._at += BLOCK + padded(n_bytes)
        return body

    def _records(self, body: bytes) -> dict[str, str]:
        """PAX records: "length key=value" and a line's end, the length of all of it."""
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
        """The member of a header, and goes behind it; None: it is no regular file."""
        pax = self._pax_all | self._pax
        name, n_bytes = self._name(header, pax), self._number(header[124:136])
        if "size" in pax:
            if not pax["size"].isdecimal():
                raise self._fail("no number in PAX records")
            n_bytes = int(pax["size"])
        is_regular = kind in (b"0", b"\0", b"7") and not name.endswith("/")
        if kind == _SPARSE or any(key.startswith("GNU.sparse.") for key in pax):
            raise self._fail(f"{name} is a sparse file; those are not read")
        # Of links, devices and folders a header may name a size, but nothing follows it.
        if kind in (b"1", b"2", b"3", b"4", b"5", b"6"):
            n_bytes = 0
        offset = self._at + BLOCK
        if n_bytes > self._n_bytes - offset:
            raise self._fail(f"the tar file is cut short: {name} has {n_bytes} bytes")
        # The padding of the last member may be missing.
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
    """By its checksum, which counts itself as blanks."""
    noted = header[148:156].strip(b" \0")
    if noted.strip(b"01234567"):
        return False
    total, unsigned = int(noted or b"0", 8), sum(header) - sum(header[148:156]) + 8 * 32
    # Some writers have added signed bytes.
    return total == unsigned or total == unsigned - 256 * sum(
        byte > 127 for byte in header[:148] + header[156:]
    )


def _no_header(start: bytes) -> str:
    for magic, kind in _COMPRESSED.items():
        if start.startswith(magic):
            return f"no tar file, but compressed by {kind}; unpack it: samples are read anywhere"
    return "no tar file"
