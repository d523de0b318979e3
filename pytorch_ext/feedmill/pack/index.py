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
    28  u16      interval: MCUs from one restart marker to the next, which divides the MCUs of a row;
                 0: the image is stored as it was
    30  u16      flags; bit 0: transcoded, that is, a baseline JPEG with one scan of all components and
                 that interval, nothing between its parts; bit 1: its pixels, decoded by feedmill,
                 were compared with the source's; bits 2-3 and 4-5: pixels of an MCU from left to
                 right and from top to bottom, divided by 8, less 1; others 0

table of rows, u32 for each sample and entry
    entry k of a transcoded sample: bytes from the image's start to the first interval of the row
    k * n // rows_per_sample of its n rows of MCUs; what stands before entry 0 is the header. Entries
    rise. 0 for all others.

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

Nothing in it is trusted: Index.open() compares all tables with the file's size and with each other,
and check_shards() each record with its shard's real size. A sample's name is that of its file,
relative to the folder that was packed, or its key and extension in a WebDataset.
"""

from __future__ import annotations

import os
import zlib
from dataclasses import dataclass
from typing import Any

import numpy as np

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


class PackError(ValueError):
    """A pack, index or tar file is not what it should be. The text names it, and what is wrong."""
