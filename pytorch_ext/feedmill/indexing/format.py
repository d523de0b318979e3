"""The index file of images in a bucket or a folder: for each its name, label, size and ETag.

It is one file of little-endian numbers, with these parts in this order and without gaps:

header, 128 bytes
    0   8 bytes  magic: 93 "FMINDX" 0A
    8   u32      version of the format: 1
    12  u32      bytes of this header: 128
    16  u64      n_samples
    24  u32      n_classes
    28  u32      0
    32  u64      bytes of the root
    40  u64      bytes of the classes' names
    48  u64      bytes of the entries
    56  u64      bytes of the whole file
    64  u32      CRC-32 of everything behind the header
    68  u32      CRC-32 of the header, computed with zeros here
    72  56 bytes 0

offsets, u64 for each sample and one more
    where the sample's entry begins; the last one is the end of the last entry
sizes, i64 for each sample
    bytes of the object or file; -1: not known
labels, i32 for each sample
    number of the sample's class
root
    begin of all names, such as "s3://bucket/train/"
classes
    the classes' names, each followed by a 0 byte
entries
    for each sample the rest of its name, a 0 byte, and its ETag without the quotes, or nothing

Texts are UTF-8, or the bytes of a file's name (surrogateescape). An index is untrusted input: all
tables are checked against the file's size and each other when it is opened.
"""

from __future__ import annotations

import os
import zlib
from functools import cached_property
from typing import Any, NoReturn

import numpy as np

from feedmill.packing.mapped import array_of, map_file

MAGIC = b"\x93FMINDX\n"
VERSION = 1
HEADER = np.dtype([
    ("magic", "S8"), ("version", "<u4"), ("header_bytes", "<u4"), ("n_samples", "<u8"),
    ("n_classes", "<u4"), ("zero", "<u4"), ("root_bytes", "<u8"), ("classes_bytes", "<u8"),
    ("entries_bytes", "<u8"), ("file_bytes", "<u8"), ("body_crc", "<u4"), ("crc", "<u4"),
    ("zeros", "V56"),
])
assert HEADER.itemsize == 128
CRC_AT = 68
OFFSET, SIZE, LABEL = np.dtype("<u8"), np.dtype("<i8"), np.dtype("<i4")
# A name is shorter than a path of Linux, an ETag than FM_ETAG_BYTES.
MAX_NAME_BYTES, MAX_ETAG_CHARS = 4095, 133


class IndexFileError(ValueError):
    """A file is not an index, or is damaged. The text names the file and the defect."""


def decoded(text: bytes) -> str:
    return text.decode("utf-8", "surrogateescape")


def encoded(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


class IndexFile:
    """A read-only index, in a mapped file or in memory. Thread-safe.

    Args:
        data: an object with a buffer that holds the bytes of an index file. It must not change.
        origin: name of the index in error messages, such as its path.
        known: the ``identity`` of an index that was opened before: if this is the same one, it is
            not checked again. None: it is checked completely.

    Raises:
        IndexFileError: data is not an index, is damaged, or is another one than ``known``.

    Attributes:
        n_samples: number of samples.
        n_bytes: size of the index.
        identity: tells it from other indexes.
        root: begin of all names.
        sizes: int64, one for each sample: bytes of the object; -1: not known.
        labels: int32, one for each sample: number of its class.
    """

    def __init__(self, data: Any, origin: str, known: int | None = None) -> None:
        self._origin = origin
        view = memoryview(data).cast("B")
        self.n_bytes = len(view)
        header = self._read_header(view)
        self.n_samples = n = int(header["n_samples"])
        self.n_classes = int(header["n_classes"])
        self.identity = int(header["body_crc"]) << 32 | int(header["crc"])
        sizes = [
            OFFSET.itemsize * (n + 1), SIZE.itemsize * n, LABEL.itemsize * n,
            int(header["root_bytes"]), int(header["classes_bytes"]), int(header["entries_bytes"]),
        ]
        if len(view) != HEADER.itemsize + sum(sizes) or int(header["file_bytes"]) != len(view):
            self._fail(f"the index is damaged: it has {len(view)} bytes, but its header says "
                       f"{int(header['file_bytes'])}, and its tables need "
                       f"{HEADER.itemsize + sum(sizes)}; write it again with `feedmill index`")
        starts = np.cumsum([HEADER.itemsize, *sizes]).tolist()
        parts = [view[a:b] for a, b in zip(starts, starts[1:])]
        self.offsets = array_of(parts[0], OFFSET)
        self.sizes, self.labels = array_of(parts[1], SIZE), array_of(parts[2], LABEL)
        self.root = decoded(bytes(parts[3]))
        self._classes, self._entries = parts[4], parts[5]
        if known is not None and known != self.identity:
            self._fail("the index was written again since the dataset was opened; make the dataset "
                       "again")
        if known is None:
            self._check(view, int(header["body_crc"]))

    @classmethod
    def open(cls, path: str | os.PathLike[str], known: int | None = None) -> IndexFile:
        """Maps an index file into memory. Raises IndexFileError, or OSError if it can't be read."""
        mapped = map_file(path, HEADER.itemsize)
        if isinstance(mapped, int):
            raise IndexFileError(
                f"{os.fspath(path)}: not an index of `feedmill index`: it has only {mapped} bytes"
            )
        return cls(mapped, os.fspath(path), known)

    def _fail(self, what: str) -> NoReturn:
        raise IndexFileError(f"{self._origin}: {what}")

    # ---- contents --------------------------------------------------------------------------------

    def entry(self, i: int) -> tuple[str, str]:
        """The name of sample i, from 0 to n_samples - 1, and its ETag with quotes, or ""."""
        offset = self.offsets.item
        name, zero, etag = bytes(self._entries[offset(i) : offset(i + 1)]).partition(b"\0")
        if not zero:
            self._fail(f"the index is damaged: the entry of sample {i} has no end")
        return self.root + decoded(name), f'"{etag.decode("ascii", "replace")}"' if etag else ""

    def label(self, i: int) -> int:
        return int(self.labels.item(i))

    @cached_property
    def classes(self) -> list[str]:
        return [decoded(one) for one in bytes(self._classes).split(b"\0")[:-1]]

    # ---- checks ----------------------------------------------------------------------------------

    def _read_header(self, view: memoryview) -> np.void:
        if len(view) < HEADER.itemsize or bytes(view[:8]) != MAGIC:
            self._fail("not an index of `feedmill index`")
        start = bytearray(view[: HEADER.itemsize])
        header: np.void = np.frombuffer(bytes(start), HEADER)[0]
        if header["version"] != VERSION or header["header_bytes"] != HEADER.itemsize:
            self._fail(f"the index has version {header['version']}; this feedmill reads version "
                       f"{VERSION}: write it again with `feedmill index`")
        start[CRC_AT : CRC_AT + 4] = bytes(4)
        if zlib.crc32(start) != header["crc"]:
            self._fail("the index's header is damaged; write it again with `feedmill index`")
        return header

    def _check(self, view: memoryview, crc: int) -> None:
        if zlib.crc32(view[HEADER.itemsize :]) != crc:
            self._fail("the index is damaged: its checksum is wrong; write it again with `feedmill "
                       "index`")
        offsets, labels = self.offsets, self.labels
        lengths = np.diff(offsets)  # wraps around where they decrease
        if (
            offsets[0] != 0
            or offsets[-1] != len(self._entries)
            or (self.n_samples and int(lengths.max()) > MAX_NAME_BYTES + 1 + MAX_ETAG_CHARS)
        ):
            self._fail("the index is damaged: its entries are not one after the other")
        if self.n_samples and not 0 <= int(labels.min()) <= int(labels.max()) < self.n_classes:
            self._fail("the index is damaged: it has labels of no class")
        if (len(self._classes) and self._classes[-1] != 0) or len(self.classes) != self.n_classes:
            self._fail(f"the index is damaged: it does not have the names of {self.n_classes} "
                       "classes")
