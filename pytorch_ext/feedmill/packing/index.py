"""The index of a pack: where each sample lies in which shard, what it is, and what it is called.

One file, of little-endian numbers, in this order, with no gaps but those that are named:

header, 128 bytes
    0   8 bytes  magic: 93 "FMPACK" 0A
    8   u32      version of the format: 1
    12  u32      bytes of this header: 128
    16  u64      n_samples
    24  u32      n_shards
    28  u32      n_classes
    32  u32      rows_per_sample: entries a sample in the table of rows; 0: there is no such table
    36  u32      part: number of the first shard in the whole, 0 but in the index of a part
    40  u32      n_parts: number of shards of the whole; n_shards but in the index of a part
    44  u32      0
    48  16 bytes what it was made of: the digest of sources and options; zeros: not known
    64  u64      bytes of the string pool
    72  u64      bytes of the whole file
    80  u32      CRC-32 of the header, with zeros here
    84  44 bytes 0

records, 32 bytes for each sample, in the dataset's order
    0   u64      offset: of the image's first byte in its shard
    8   u32      bytes: of the image
    12  u32      shard: its number in the table of shards
    16  i32      label: number in the table of classes; -1: none
    20  u16 u16  width, height in pixels; 0 0: not known
    24  u32      name: where the sample's name begins, in bytes from its shard's names
    28  u16      interval: MCUs from one restart marker to the next, which divides the MCUs of a
                 row; 0: the image is stored as it was
    30  u16      flags; bit 0: transcoded, that is, a sequential Huffman-coded JPEG with one scan of
                 all components and that interval, and nothing between its parts; bit 1: its pixels,
                 decoded by feedmill, were compared with the source's; bits 2-3 and 4-5: pixels of
                 an MCU from left to right and from top to bottom, divided by 8, less 1; others 0

table of rows, u32 for each sample and entry
    entry k of a transcoded sample: bytes from the image's start to the first interval of the row
    k * n // rows_per_sample of its n rows of MCUs; what stands before entry 0 is the header.
    Entries rise. 0 for all others.

table of shards, 48 bytes for each
    0   u64      bytes of the shard's file
    8   u64      when it was last changed, in nanoseconds since 1970; 0: not noted
    16  u64      name: of its file, relative to the index's folder, where in the pool it begins
    24  u64      names: where in the pool the names of its samples begin
    32  u64      first: number of its first sample; a shard's samples lie one behind the other
    40  u64      n: how many they are

table of classes, u64 for each
    where in the pool the class's name begins

string pool
    names, each ending in a 0 byte; UTF-8, or whatever bytes a file's name has (os.fsdecode). The
    last byte of the pool is 0, so that no name leaves it.

Nothing in it is trusted: Index compares all tables with the file's size and with each other, and
shards.Shards each shard's real size with what is noted here, before anything of it is read. A
sample's name is that of its file, relative to the folder that was packed, or of its member in a tar
file.
"""

from __future__ import annotations

import mmap
import os
import zlib
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

INDEX_NAME = "index.fmp"
MAGIC = b"\x93FMPACK\n"
VERSION = 1
HEADER = np.dtype([
    ("magic", "S8"), ("version", "<u4"), ("header_bytes", "<u4"), ("n_samples", "<u8"),
    ("n_shards", "<u4"), ("n_classes", "<u4"), ("rows_per_sample", "<u4"), ("part", "<u4"),
    ("n_parts", "<u4"), ("zero", "<u4"), ("digest", "V16"), ("pool_bytes", "<u8"),
    ("file_bytes", "<u8"), ("crc", "<u4"), ("zeros", "V44"),
])
RECORD = np.dtype([
    ("offset", "<u8"), ("bytes", "<u4"), ("shard", "<u4"), ("label", "<i4"), ("width", "<u2"),
    ("height", "<u2"), ("name", "<u4"), ("interval", "<u2"), ("flags", "<u2"),
])
SHARD = np.dtype([
    ("bytes", "<u8"), ("changed_ns", "<u8"), ("name", "<u8"), ("names", "<u8"), ("first", "<u8"),
    ("n", "<u8"),
])
assert (HEADER.itemsize, RECORD.itemsize, SHARD.itemsize) == (128, 32, 48)

TRANSCODED, VERIFIED = 1, 2
_KNOWN_FLAGS = 0x3F
# Records are looked at in pieces, so that what is computed of them takes little memory.
_PIECE = 1 << 16
_LONGEST_NAME = 1 << 16
_MOST_ROWS = 1 << 10


class PackError(ValueError):
    """A pack, index or tar file is not what it should be. The text names it, and what is wrong."""


def _array(part: memoryview, dtype: np.dtype) -> np.ndarray:
    """An array that shares a part's bytes; NumPy takes no empty buffer."""
    return np.frombuffer(part, dtype) if len(part) else np.empty(0, dtype)


class Place(NamedTuple):
    """Where a sample lies, and what it is: a record's fields, see above."""

    shard: int
    offset: int
    bytes: int
    label: int
    width: int
    height: int
    interval: int
    flags: int

    @property
    def mcu_height(self) -> int:
        """Pixels from top to bottom; of a transcoded image."""
        return ((self.flags >> 4 & 3) + 1) * 8


class Index:
    """An index as it lies in a file or in memory; never written to.

    Args:
        data: the index, as it lies in a file, in anything that has a buffer, and that stays as it
            is. Arrays are views of it.
        origin: what errors call it, such as its path.

    Raises:
        PackError: it is no index, or contradicts itself.

    Attributes:
        n_samples, n_shards, part, n_parts, digest: of the header.
        n_bytes: of the index itself.
        records: of dtype RECORD, one for each sample.
        rows: (n_samples, rows_per_sample), unsigned; rows_of() checks what it takes from it.
        shards: of dtype SHARD.
    """

    def __init__(self, data: Any, origin: str) -> None:
        self._origin = origin
        view = memoryview(data).cast("B")
        self.n_bytes = len(view)
        header = self._read_header(view)
        self.n_samples, self.n_shards = int(header["n_samples"]), int(header["n_shards"])
        self.part, self.n_parts = int(header["part"]), int(header["n_parts"])
        self.digest = bytes(header["digest"].tobytes())
        n_rows, n_classes = int(header["rows_per_sample"]), int(header["n_classes"])
        if n_rows > _MOST_ROWS:
            self._fail(f"{n_rows} rows a sample; there are {_MOST_ROWS} at most")
        pool_bytes = int(header["pool_bytes"])
        sizes = [
            RECORD.itemsize * self.n_samples, 4 * n_rows * self.n_samples,
            SHARD.itemsize * self.n_shards, 8 * n_classes, pool_bytes,
        ]
        if len(view) != HEADER.itemsize + sum(sizes) or header["file_bytes"] != len(view):
            self._fail(f"it has {len(view)} bytes; its header speaks of "
                       f"{HEADER.itemsize + sum(sizes)} and {header['file_bytes']}")
        starts = np.cumsum([HEADER.itemsize, *sizes]).tolist()
        parts = [view[a:b] for a, b in zip(starts, starts[1:])]
        self.records = _array(parts[0], RECORD)
        self.rows = _array(parts[1], np.dtype("<u4")).reshape(self.n_samples, n_rows)
        self.shards = _array(parts[2], SHARD)
        self._class_names = _array(parts[3], np.dtype("<u8"))
        self.pool = parts[4]
        self._check_tables()
        self._check_records()

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> Index:
        """Maps the index in a file. Raises OSError besides."""
        with open(path, "rb") as file:
            n_bytes = os.fstat(file.fileno()).st_size
            if n_bytes < HEADER.itemsize:
                raise PackError(f"{os.fspath(path)}: {n_bytes} bytes are no index of a pack")
            mapped = mmap.mmap(file.fileno(), n_bytes, access=mmap.ACCESS_READ)
        return cls(mapped, os.fspath(path))

    def _fail(self, what: str) -> Any:
        raise PackError(f"{self._origin}: {what}")

    # ---- what is in it ---------------------------------------------------------------------------

    def place(self, i: int) -> Place:
        """Of a sample from 0 to n_samples - 1."""
        offset, n_bytes, shard, label, width, height, _, interval, flags = self.records[i].item()
        return Place(shard, offset, n_bytes, label, width, height, interval, flags)

    def name(self, i: int) -> str:
        record = self.records[i]
        return self._text(int(self.shards["names"][record["shard"]]) + int(record["name"]))

    def rows_of(self, i: int) -> tuple[int, ...]:
        """A sample's entries in the table of rows; () where it has none, or none that can be."""
        place = self.place(i)
        rows = tuple(self.rows[i].tolist())
        if not place.flags & TRANSCODED or not rows:
            return ()
        rises = all(a <= b for a, b in zip(rows, rows[1:]))
        return rows if rises and 0 < rows[0] and rows[-1] < place.bytes else ()

    def shard_name(self, shard: int) -> str:
        return self._text(int(self.shards["name"][shard]))

    @cached_property
    def classes(self) -> list[str]:
        return [self._text(int(at)) for at in self._class_names]

    def _text(self, at: int) -> str:
        piece = bytes(self.pool[at : at + 256])
        if 0 not in piece:
            piece = bytes(self.pool[at : at + _LONGEST_NAME])
        end = piece.find(0)
        if end < 0:
            self._fail(f"the name at {at} is longer than {_LONGEST_NAME} bytes")
        return os.fsdecode(piece[:end])

    # ---- checks ----------------------------------------------------------------------------------

    def _read_header(self, view: memoryview) -> np.void:
        if len(view) < HEADER.itemsize or bytes(view[:8]) != MAGIC:
            self._fail("no index of a pack")
        start = bytearray(view[: HEADER.itemsize])
        header: np.void = np.frombuffer(bytes(start), HEADER)[0]
        if header["version"] != VERSION or header["header_bytes"] != HEADER.itemsize:
            self._fail(f"an index of version {header['version']}; this feedmill reads {VERSION}")
        start[80:84] = bytes(4)
        if zlib.crc32(start) != header["crc"]:
            self._fail("its header is damaged")
        return header

    def _check_tables(self) -> None:
        shards, n_pool = self.shards, len(self.pool)
        if n_pool and self.pool[-1] != 0:
            self._fail("its last name has no end")
        ends = np.concatenate([[0], np.cumsum(shards["n"], dtype=np.uint64)])
        # A sum that overflows would have to come from a count that is too large itself.
        if (
            np.any(shards["n"] > self.n_samples)
            or int(ends[-1]) != self.n_samples
            or np.any(shards["first"] != ends[:-1])
        ):
            self._fail("its shards do not hold all samples, one behind the other")
        for names in (shards["name"], self._class_names):
            if np.any(names >= n_pool):
                self._fail("a name of a shard or class lies outside of the names")
        if np.any(shards["names"] > n_pool):
            self._fail("the names of a shard's samples lie outside of the names")
        if not self.n_shards <= self.n_parts or self.part > self.n_parts - self.n_shards:
            self._fail(f"it is part {self.part} of {self.n_parts}")
        for shard in range(self.n_shards):
            name = self.shard_name(shard)
            if not name or os.path.isabs(name) or ".." in name.split("/"):
                self._fail(f"{name!r} is not the name of a shard in its folder")

    def _check_records(self) -> None:
        for begin in range(0, self.n_samples, _PIECE):
            records = self.records[begin : begin + _PIECE]
            numbers = np.arange(begin, begin + len(records), dtype=np.uint64)
            # The last of those that begin there: the others are empty.
            shards = np.searchsorted(self.shards["first"], numbers, side="right") - 1
            wrong = records["shard"] != shards
            for bad in self._doubts(records, self.shards[shards]):
                wrong |= bad
            if wrong.any():
                i = int(np.argmax(wrong))
                self._fail(f"sample {begin + i} is damaged: {self.records[begin + i]}")

    def _doubts(self, records: np.ndarray, shards: np.ndarray) -> Any:
        """Arrays of bool: what can't be."""
        sizes, offsets, n_bytes = shards["bytes"], records["offset"], records["bytes"]
        yield offsets > sizes
        yield n_bytes > sizes - np.minimum(offsets, sizes)
        yield (records["label"] < -1) | (records["label"] >= len(self._class_names))
        n_pool = np.uint64(len(self.pool))
        yield records["name"] >= n_pool - np.minimum(shards["names"], n_pool)
        flags, interval = records["flags"], records["interval"].astype(np.int32)
        is_new = flags & TRANSCODED != 0
        yield flags & ~np.uint16(_KNOWN_FLAGS) != 0
        yield ~is_new & ((flags != 0) | (interval != 0))
        width, height = records["width"].astype(np.int32), records["height"]
        row_mcus = -(-width // (((flags >> 2 & 3) + 1) * 8).astype(np.int32))
        yield is_new & ((width == 0) | (height == 0) | (interval == 0) | (n_bytes == 0))
        yield is_new & (row_mcus % np.maximum(interval, 1) != 0)
