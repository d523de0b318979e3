"""Writes index files."""

from __future__ import annotations

import os
import zlib
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from feedmill.indexing.format import (
    CRC_AT,
    HEADER,
    LABEL,
    MAGIC,
    MAX_ETAG_CHARS,
    MAX_NAME_BYTES,
    OFFSET,
    SIZE,
    VERSION,
    encoded,
)


class Entry(NamedTuple):
    """An object or a file.

    Attributes:
        key: the rest of its name, behind the root.
        size: in bytes; -1: not known.
        etag: without quotes; "": none.
    """

    key: str
    size: int = -1
    etag: str = ""


class Contents(NamedTuple):
    """What an index is made of.

    Attributes:
        root: begin of all names, such as "s3://bucket/train/".
        classes: their names, by label.
        entries: the samples, in the dataset's order.
        labels: of the samples.
    """

    root: str
    classes: Sequence[str]
    entries: Sequence[Entry]
    labels: Sequence[int] | np.ndarray


def build(contents: Contents) -> list[bytes]:
    """The parts of an index file, in order.

    Raises:
        ValueError: a name is too long, or has a 0 byte.
    """
    root = encoded(contents.root)
    entries = [_entry_bytes(one, MAX_NAME_BYTES - len(root)) for one in contents.entries]
    offsets = np.zeros(len(entries) + 1, OFFSET)
    np.cumsum(np.fromiter(map(len, entries), OFFSET, len(entries)), out=offsets[1:])
    sizes = np.fromiter((one.size for one in contents.entries), SIZE, len(entries))
    labels = np.asarray(contents.labels, LABEL)
    if len(labels) != len(entries):
        raise ValueError(f"there are {len(entries)} entries, but {len(labels)} labels")
    classes = b"".join(_text(name, "class") + b"\0" for name in contents.classes)
    body = [offsets.tobytes(), sizes.tobytes(), labels.tobytes(), root, classes, b"".join(entries)]
    return [_header(body, len(entries), len(contents.classes)), *body]


def _entry_bytes(entry: Entry, most_bytes: int) -> bytes:
    key = _text(entry.key, "name")
    if len(key) > most_bytes:
        raise ValueError(f"the name {entry.key!r} is longer than {most_bytes} bytes")
    # An ETag that can't be sent back is of no use.
    etag = entry.etag if len(entry.etag) <= MAX_ETAG_CHARS and entry.etag.isascii() else ""
    return key + b"\0" + (etag.encode() if etag.isprintable() and '"' not in etag else b"")


def _text(text: str, what: str) -> bytes:
    if "\0" in text:
        raise ValueError(f"the {what} {text!r} has a 0 byte")
    return encoded(text)


def _header(body: Sequence[bytes], n_samples: int, n_classes: int) -> bytes:
    crc = 0
    for part in body:
        crc = zlib.crc32(part, crc)
    header: Any = np.zeros((), HEADER)
    header["magic"], header["version"], header["header_bytes"] = MAGIC, VERSION, HEADER.itemsize
    header["n_samples"], header["n_classes"] = n_samples, n_classes
    header["root_bytes"], header["classes_bytes"], header["entries_bytes"] = map(len, body[3:])
    header["file_bytes"] = HEADER.itemsize + sum(map(len, body))
    header["body_crc"] = crc
    data = bytearray(header.tobytes())
    data[CRC_AT : CRC_AT + 4] = zlib.crc32(data).to_bytes(4, "little")
    return bytes(data)


def write(contents: Contents, path: str | os.PathLike[str]) -> int:
    """Writes an index file, which takes the place of an earlier one at once: whoever opens the path
    sees one of both, complete.

    Returns:
        The size of the file in bytes.

    Raises:
        OSError: it can't be written. An earlier file stays.
        ValueError: as build().
    """
    parts = build(contents)
    temporary = f"{os.fspath(path)}.{os.getpid()}.tmp"
    try:
        with open(temporary, "wb") as file:
            file.writelines(parts)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        if os.path.exists(temporary):
            os.unlink(temporary)
        raise
    return sum(map(len, parts))
