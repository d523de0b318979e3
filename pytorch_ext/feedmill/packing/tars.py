"""Locates the members of tar files with Python's tarfile; makes headers for new tar files."""

from __future__ import annotations

import os
import tarfile
from collections.abc import Iterator
from contextlib import nullcontext
from typing import IO, Any, NamedTuple

from feedmill.packing.index import PackError
from feedmill.packing.objects import ObjectFile

BLOCK = 512
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


def members(file: int | ObjectFile, n_bytes: int, path: str) -> Iterator[Member]:
    """The regular files of an uncompressed tar file, in order.

    tarfile accepts damage that would lose samples: it takes a damaged header after the first
    member for the end of the file, and does not check that a member's bytes are in the file. Both
    raise PackError here.

    Args:
        file: descriptor of the open file, or an object; its file position changes.
        n_bytes: size of the file.
        path: name of the file in error messages.

    Raises:
        PackError: it is not a tar file, is compressed, damaged or truncated, or has a sparse file.
        OSError: the file can't be read.
    """
    if n_bytes == 0:
        return
    with _stream_of(file) as stream:
        tar = _open(stream, path)
        while (info := _next(tar, path)) is not None:
            # tarfile would keep all members in memory.
            tar.members = []  # type: ignore[attr-defined]
            if info.issparse():
                raise PackError(f"{path}: {info.name} is a sparse file, which is not supported")
            # A link, device or folder may have a size in its header, but no bytes follow it.
            has_bytes = info.isreg() or info.type not in tarfile.SUPPORTED_TYPES
            if has_bytes and info.size < 0:
                raise PackError(f"{path}: damaged tar header at byte {info.offset}: negative size")
            if has_bytes and info.size > n_bytes - info.offset_data:
                raise PackError(
                    f"{path}: the tar file is truncated: {info.name} has {info.size} bytes at byte "
                    f"{info.offset_data} of {n_bytes}"
                )
            if info.isreg():
                yield Member(info.name, info.offset_data, info.size)
            if tar.offset >= n_bytes:
                return  # the last member's padding may be missing, which tarfile does not accept
        # tarfile stops at a block of zeros, the end of a tar file, and at a damaged header.
        if any(read_at(file, BLOCK, tar.offset)):
            raise PackError(f"{path}: damaged tar header at byte {tar.offset}")


def read_at(file: int | ObjectFile, n_bytes: int, offset: int) -> bytes:
    """As os.pread()."""
    if isinstance(file, ObjectFile):
        return file.read_at(n_bytes, offset)
    return os.pread(file, n_bytes, offset)


def _stream_of(file: int | ObjectFile) -> Any:
    return nullcontext(file) if isinstance(file, ObjectFile) else open(file, "rb", closefd=False)


def _open(stream: IO[bytes], path: str) -> tarfile.TarFile:
    stream.seek(0)
    try:
        return tarfile.TarFile(fileobj=stream, encoding="utf-8", errors="surrogateescape")
    except OSError:
        raise
    except Exception as error:
        stream.seek(0)
        raise PackError(f"{path}: {_why_not_tar(stream.read(BLOCK))} at byte 0: {error}") from None


def _next(tar: tarfile.TarFile, path: str) -> tarfile.TarInfo | None:
    at = tar.offset
    try:
        return tar.next()
    except OSError:
        raise
    except Exception as error:  # damaged numbers and names raise many types, like ValueError
        raise PackError(f"{path}: damaged tar header at byte {at}: {error}") from None


def _why_not_tar(start: bytes) -> str:
    for magic, kind in _COMPRESSED.items():
        if start.startswith(magic):
            return f"compressed by {kind}; decompress it, as samples need random access;"
    return "not a tar file" if len(start) == BLOCK else "the tar file is truncated"
