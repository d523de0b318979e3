"""Builds index files, of one shard or joined from several indices, and writes them atomically."""

from __future__ import annotations

import os
import re
import secrets
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import IO

import numpy as np

from feedmill.packing.index import HEADER, MAGIC, RECORD, SHARD, VERSION, Index, PackError

NO_DIGEST = bytes(16)
# A record has 32 bits for the offset of its name.
_MAX_NAME_BYTES = (1 << 32) - 1
_TEMPORARY = re.compile(
    r"(shard-\d{6,}\.(tar|fmp)|index\.fmp|nodes)(\.([0-9a-f]{16}\.)?partial){1,2}"
)


@dataclass
class Sample:
    """A sample for build(): its name, and the fields of its record, which ``index`` describes.

    Attributes:
        rows: its restart index, one offset per entry; empty if it has none.
    """

    name: str
    offset: int
    bytes: int
    label: int
    width: int = 0
    height: int = 0
    interval: int = 0
    flags: int = 0
    rows: Sequence[int] = ()


@dataclass
class Shard:
    """A shard's file for build(): its name relative to the index's folder, its size and its
    modification time."""

    name: str
    bytes: int
    changed_ns: int = 0


def build(
    shard: Shard,
    samples: Sequence[Sample],
    classes: Sequence[str],
    *,
    rows_per_sample: int = 0,
    part: int = 0,
    n_parts: int = 1,
    digest: bytes = NO_DIGEST,
) -> bytes:
    """The index of one shard.

    Args:
        classes: names of the classes of the whole pack, by label.
        part, n_parts: the shard's number in the pack, and the number of shards in the pack.
        digest: 16 bytes that identify the source and the options.

    Raises:
        PackError: the shard has too many samples, or a sample is too large.
    """
    encoded = [os.fsencode(sample.name) + b"\0" for sample in samples]
    starts = np.cumsum([0, *map(len, encoded)], dtype=np.int64)
    if starts[-1] > _MAX_NAME_BYTES:
        raise PackError(f"{shard.name}: the names of its samples are larger than 4 GiB")
    rows = np.zeros((len(samples), rows_per_sample), "<u4")
    try:
        records = np.array([_record(*pair) for pair in zip(samples, starts.tolist())], RECORD)
        for i, one in enumerate(samples):
            if len(one.rows):
                rows[i] = one.rows
    except OverflowError:
        raise PackError(f"{shard.name}: a sample is 4 GiB or larger") from None
    head = Names([*classes, shard.name])
    table = np.zeros(1, SHARD)
    table[0] = (
        shard.bytes, shard.changed_ns, head.starts[-1], len(head.text), 0, len(samples)
    )
    pool = head.text + b"".join(encoded)
    return _assemble(records, rows, table, head.starts[:-1], pool, part, n_parts, digest)


def _record(one: Sample, name_offset: int) -> tuple[int, ...]:
    # A width or height that does not fit 16 bits, which no JPEG has, is stored as "not known".
    known = one.width < 1 << 16 and one.height < 1 << 16
    width, height = (one.width, one.height) if known else (0, 0)
    return (
        one.offset, one.bytes, 0, one.label, width, height, name_offset, one.interval, one.flags
    )


def join(indices: Sequence[Index]) -> bytes:
    """Joins indices into one index of all their shards, in order. They must have the same number of
    rows per sample, and the classes of each must be a prefix of the longest list of classes.

    Raises:
        PackError: there are no indices, or they can't be joined.
    """
    if not indices:
        raise PackError("there is no index to join")
    first = indices[0]
    classes = max((one.classes for one in indices), key=len)
    for one in indices:
        fits = one.classes == classes[: len(one.classes)]
        if not fits or one.rows.shape[1] != first.rows.shape[1]:
            raise PackError("indices with different classes or rows per sample can't be joined")
    names = [one.shard_name(k) for one in indices for k in range(one.n_shards)]
    head = Names([*classes, *names])
    records, tables, pools = [], [], []
    n_shards, n_samples, n_pool = 0, 0, len(head.text)
    for one in indices:
        moved = one.records.copy()
        moved["shard"] += n_shards
        table = one.shards.copy()
        table["name"] = head.starts[len(classes) + n_shards :][: len(table)]
        table["names"] += n_pool
        table["first"] += n_samples
        records.append(moved)
        tables.append(table)
        pools.append(one.pool)
        n_shards, n_samples, n_pool = (
            n_shards + len(table), n_samples + len(moved), n_pool + len(one.pool)
        )
    return _assemble(
        np.concatenate(records), np.concatenate([one.rows for one in indices]),
        np.concatenate(tables), head.starts[: len(classes)], b"".join([head.text, *pools]),
        0, n_shards, first.digest,
    )


class Names:
    """Names as a string pool, ``text``, with the offset of each name in it, ``starts``."""

    def __init__(self, names: Sequence[str]) -> None:
        encoded = [os.fsencode(name) + b"\0" for name in names]
        self.text = b"".join(encoded)
        self.starts = np.cumsum([0, *map(len, encoded)], dtype=np.uint64)[:-1]


def _assemble(
    records: np.ndarray, rows: np.ndarray, shards: np.ndarray, classes: np.ndarray, pool: bytes,
    part: int, n_parts: int, digest: bytes,
) -> bytes:
    tables = [
        records.tobytes(), np.ascontiguousarray(rows).tobytes(), shards.tobytes(),
        classes.astype("<u8").tobytes(), pool,
    ]
    header = np.zeros(1, HEADER)
    values = {
        "magic": MAGIC, "version": VERSION, "header_bytes": HEADER.itemsize,
        "n_samples": len(records), "n_shards": len(shards), "n_classes": len(classes),
        "rows_per_sample": rows.shape[1], "part": part, "n_parts": n_parts,
        "digest": np.void(digest), "pool_bytes": len(pool),
        "file_bytes": HEADER.itemsize + sum(map(len, tables)),
    }
    for name, value in values.items():
        header[name] = value
    header["crc"] = zlib.crc32(header.tobytes())
    return b"".join([header.tobytes(), *tables])


def write_file(path: str, data: bytes) -> None:
    """Writes a file atomically: it is complete or does not exist, also if several processes write
    the same path at once. Raises OSError, which names a path."""
    with new_file(path) as file:
        file.write(data)


@contextmanager
def new_file(path: str) -> Iterator[IO[bytes]]:
    """Opens a temporary file for writing. At the end of the block the file is synced and renamed to
    ``path``; if the block raises, it is removed.

    The temporary file has a random name. So a process that was given up for lost, but still writes,
    can't change the file of the process that does its work again: each renames a file of its own.

    Raises:
        OSError: the file can't be written. The error names a path.
    """
    temporary = temporary_path(path)
    try:
        with open(temporary, "wb", buffering=1 << 20) as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException as error:
        with suppress(OSError):
            os.unlink(temporary)
        if isinstance(error, OSError) and error.filename is None and error.errno is not None:
            error.filename = path  # a write that failed does not know its file
        raise


def temporary_path(path: str) -> str:
    """A name that no other process uses, for a file that will be renamed to ``path``."""
    return f"{path}.{secrets.token_hex(8)}.partial"


def is_temporary(name: str) -> bool:
    """Whether a file in the folder of a pack is a temporary one: of new_file(), of
    feedmill.remote.fsspec_uploads, or what tells the nodes of a cluster to go on."""
    return _TEMPORARY.fullmatch(name) is not None
