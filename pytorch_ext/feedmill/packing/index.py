"""The index of a pack: for each sample its shard, its byte range there, its label, size and name.

It is one file of little-endian numbers, with these parts in this order and without gaps:

header, 128 bytes
    0   8 bytes  magic: 93 "FMPACK" 0A
    8   u32      version of the format: 1
    12  u32      bytes of this header: 128
    16  u64      n_samples
    24  u32      n_shards
    28  u32      n_classes
    32  u32      rows_per_sample: entries per sample in the table of restart indices; 0: no table
    36  u32      part: in the index of a single shard, its number in the pack; else 0
    40  u32      n_parts: number of shards in the pack; equals n_shards unless this is the index of
                 a single shard
    44  u32      0
    48  16 bytes digest of the source and the options of which the pack was made; zeros: not known
    64  u64      bytes of the string pool
    72  u64      bytes of the whole file
    80  u32      CRC-32 of the header, computed with zeros here
    84  44 bytes 0

records, 32 bytes for each sample, in the dataset's order
    0   u64      offset: of the image's first byte in its shard
    8   u32      bytes: of the image
    12  u32      shard: its number in the table of shards
    16  i32      label: number in the table of classes; -1: none
    20  u16 u16  width, height in pixels; 0 0: not known
    24  u32      name: offset of the sample's name from the start of its shard's names
    28  u16      interval: restart interval in MCUs, which divides the MCUs of a row; 0: the image
                 is stored unchanged
    30  u16      flags; bit 0: transcoded, that is, a sequential Huffman-coded JPEG with one scan of
                 all components, that restart interval, and no bytes between its parts; bit 1: its
                 pixels, decoded by feedmill, were compared with the source's; bits 2-3 and 4-5:
                 width and height of an MCU in pixels, divided by 8, minus 1; others 0

table of restart indices, u32 for each sample and entry
    entry k of a transcoded sample: offset in the image of the first restart interval of row
    k * n // rows_per_sample of its n rows of MCUs. The bytes before entry 0 are the JPEG's header.
    Entries do not decrease. All entries of a sample that was not transcoded are 0.

table of shards, 48 bytes for each
    0   u64      bytes of the shard's file
    8   u64      modification time of the file, in nanoseconds since 1970; 0: not known
    16  u64      name: offset in the string pool of the file's name, relative to the index's folder
    24  u64      names: offset in the string pool of the names of its samples
    32  u64      first: number of its first sample; the samples of a shard are consecutive
    40  u64      n: number of its samples

table of classes, u64 for each
    offset in the string pool of the class's name

string pool
    names, each followed by a 0 byte; UTF-8, or the bytes of a file's name (os.fsdecode). The last
    byte of the pool is 0, so every name ends within it.

An index is untrusted input. Index checks all tables against the file's size and each other, and
shards.Shards checks each shard's size before it reads the shard. A sample's name is the path of its
file, relative to the folder that was packed, or the name of its member in a tar file.
"""

from __future__ import annotations

import os
import zlib
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from feedmill.packing.mapped import array_of, map_file

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
# Records are checked in chunks, to limit the memory for temporary arrays.
_CHUNK = 1 << 16
_MAX_NAME_BYTES = 1 << 16
_MAX_ROWS = 1 << 10


class PackError(ValueError):
    """A pack, index or tar file is damaged or not of the expected kind. The text names the file and
    the defect."""


class Place(NamedTuple):
    """The record of a sample. The file's docstring describes the fields."""

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
        """Height of an MCU in pixels. Only for transcoded images."""
        return ((self.flags >> 4 & 3) + 1) * 8


class Index:
    """A read-only index, in a mapped file or in memory.

    Args:
        data: an object with a buffer that holds the bytes of an index file. It must not change;
            the arrays are views of it.
        origin: name of the index in error messages, such as its path.

    Raises:
        PackError: data is not an index, or is damaged.

    Attributes:
        n_samples, n_shards, part, n_parts, digest: of the header.
        n_bytes: size of the index.
        records: of dtype RECORD, one for each sample.
        rows: (n_samples, rows_per_sample), uint32: the restart indices. They are not checked yet;
            restart_index_of() returns checked ones.
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
        if n_rows > _MAX_ROWS:
            self._fail(f"the index has {n_rows} rows per sample; the limit is {_MAX_ROWS}")
        pool_bytes = int(header["pool_bytes"])
        sizes = [
            RECORD.itemsize * self.n_samples, 4 * n_rows * self.n_samples,
            SHARD.itemsize * self.n_shards, 8 * n_classes, pool_bytes,
        ]
        if len(view) != HEADER.itemsize + sum(sizes) or header["file_bytes"] != len(view):
            self._fail(f"the index has {len(view)} bytes, but its tables need "
                       f"{HEADER.itemsize + sum(sizes)} and its header says "
                       f"{header['file_bytes']}")
        starts = np.cumsum([HEADER.itemsize, *sizes]).tolist()
        parts = [view[a:b] for a, b in zip(starts, starts[1:])]
        self.records = array_of(parts[0], RECORD)
        self.rows = array_of(parts[1], np.dtype("<u4")).reshape(self.n_samples, n_rows)
        self.shards = array_of(parts[2], SHARD)
        self._class_names = array_of(parts[3], np.dtype("<u8"))
        self.pool = parts[4]
        self._check_tables()
        self._check_records()

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> Index:
        """Maps an index file into memory. Raises PackError, or OSError if it can't be read."""
        mapped = map_file(path, HEADER.itemsize)
        if isinstance(mapped, int):
            raise PackError(
                f"{os.fspath(path)}: not the index of a pack: it has only {mapped} bytes"
            )
        return cls(mapped, os.fspath(path))

    def _fail(self, what: str) -> Any:
        raise PackError(f"{self._origin}: {what}")

    # ---- contents --------------------------------------------------------------------------------

    def place(self, i: int) -> Place:
        """The record of sample i, from 0 to n_samples - 1."""
        offset, n_bytes, shard, label, width, height, _, interval, flags = self.records[i].item()
        return Place(shard, offset, n_bytes, label, width, height, interval, flags)

    def name(self, i: int) -> str:
        record = self.records[i]
        return self._text(int(self.shards["names"][record["shard"]]) + int(record["name"]))

    def restart_index_of(self, i: int) -> tuple[int, ...]:
        """A sample's restart index; () if it has none, or an invalid one."""
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
            piece = bytes(self.pool[at : at + _MAX_NAME_BYTES])
        end = piece.find(0)
        if end < 0:
            self._fail(f"the name at offset {at} is longer than {_MAX_NAME_BYTES} bytes")
        return os.fsdecode(piece[:end])

    # ---- checks ----------------------------------------------------------------------------------

    def _read_header(self, view: memoryview) -> np.void:
        if len(view) < HEADER.itemsize or bytes(view[:8]) != MAGIC:
            self._fail("not the index of a pack")
        start = bytearray(view[: HEADER.itemsize])
        header: np.void = np.frombuffer(bytes(start), HEADER)[0]
        if header["version"] != VERSION or header["header_bytes"] != HEADER.itemsize:
            self._fail(f"the index has version {header['version']}; this feedmill reads version "
                       f"{VERSION}")
        start[80:84] = bytes(4)
        if zlib.crc32(start) != header["crc"]:
            self._fail("the index's header is damaged")
        return header

    def _check_tables(self) -> None:
        shards, n_pool = self.shards, len(self.pool)
        if n_pool and self.pool[-1] != 0:
            self._fail("the index's last name is not terminated")
        ends = np.concatenate([[0], np.cumsum(shards["n"], dtype=np.uint64)])
        # The sum may overflow, but then a single count is larger than n_samples.
        if (
            np.any(shards["n"] > self.n_samples)
            or int(ends[-1]) != self.n_samples
            or np.any(shards["first"] != ends[:-1])
        ):
            self._fail("the index's table of shards does not cover all samples in order")
        for names in (shards["name"], self._class_names):
            if np.any(names >= n_pool):
                self._fail("the name of a shard or class is outside of the index's string pool")
        if np.any(shards["names"] > n_pool):
            self._fail("the names of a shard's samples are outside of the index's string pool")
        if not self.n_shards <= self.n_parts or self.part > self.n_parts - self.n_shards:
            self._fail(f"the index is part {self.part} of {self.n_parts}, which is impossible")
        for shard in range(self.n_shards):
            name = self.shard_name(shard)
            if not name or os.path.isabs(name) or ".." in name.split("/"):
                self._fail(f"the shard's name {name!r} is not a path within the index's folder")

    def _check_records(self) -> None:
        for begin in range(0, self.n_samples, _CHUNK):
            records = self.records[begin : begin + _CHUNK]
            numbers = np.arange(begin, begin + len(records), dtype=np.uint64)
            # If several shards begin at a sample, only the last one is not empty.
            shards = np.searchsorted(self.shards["first"], numbers, side="right") - 1
            wrong = records["shard"] != shards
            for bad in self._invalid(records, self.shards[shards]):
                wrong |= bad
            if wrong.any():
                i = int(np.argmax(wrong))
                self._fail(f"the record of sample {begin + i} is damaged: "
                           f"{self.records[begin + i]}")

    def _invalid(self, records: np.ndarray, shards: np.ndarray) -> Any:
        """Yields a bool array for each check: the records that fail it."""
        sizes, offsets, n_bytes = shards["bytes"], records["offset"], records["bytes"]
        yield offsets > sizes
        yield n_bytes > sizes - np.minimum(offsets, sizes)
        yield (records["label"] < -1) | (records["label"] >= len(self._class_names))
        n_pool = np.uint64(len(self.pool))
        yield records["name"] >= n_pool - np.minimum(shards["names"], n_pool)
        flags, interval = records["flags"], records["interval"].astype(np.int32)
        is_transcoded = flags & TRANSCODED != 0
        yield flags & ~np.uint16(_KNOWN_FLAGS) != 0
        yield ~is_transcoded & ((flags != 0) | (interval != 0))
        width, height = records["width"].astype(np.int32), records["height"]
        row_mcus = -(-width // (((flags >> 2 & 3) + 1) * 8).astype(np.int32))
        yield is_transcoded & ((width == 0) | (height == 0) | (interval == 0) | (n_bytes == 0))
        yield is_transcoded & (row_mcus % np.maximum(interval, 1) != 0)
