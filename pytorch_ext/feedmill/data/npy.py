"""NumPy's .npy files, read strictly: no pickles, and exactly the bytes that the header says."""

from __future__ import annotations

import ast
import mmap
import os
import struct
from typing import Any, NamedTuple

import numpy as np

_MAGIC = b"\x93NUMPY"
_KEYS = {"descr", "fortran_order", "shape"}
# NumPy's own limit for headers that it evaluates.
_MAX_HEADER_BYTES = 10000
# What a file begins with, up to its values.
MAX_START_BYTES = 12 + _MAX_HEADER_BYTES
_KINDS = "biufc"
# What O_DIRECT wants of addresses, offsets and lengths, on every file system in use.
_BLOCK_BYTES = 4096
# One read asks for no more; the kernel stops at 2**31 - 4096.
_MOST_BYTES = 1 << 30


class NpyError(ValueError):
    """A file is not what its name says. The text names it, and what is wrong."""


class Header(NamedTuple):
    """What a .npy file begins with.

    Attributes:
        n_bytes: of the header, behind which the values begin.
        dtype: of the values, a number's.
        fortran_order: the first index varies fastest.
        shape: of the array.
    """

    n_bytes: int
    dtype: np.dtype
    fortran_order: bool
    shape: tuple[int, ...]

    @property
    def data_bytes(self) -> int:
        n_values = 1
        for length in self.shape:
            n_values *= length
        return n_values * self.dtype.itemsize


def parse_header(start: bytes | memoryview, path: Any) -> Header:
    """The header at a file's start, of which at least MAX_START_BYTES are given, or all.

    Raises:
        NpyError: no such header, or one of an array of anything but numbers.
    """
    head = bytes(start[:MAX_START_BYTES])
    if head[:6] != _MAGIC or len(head) < 12:
        raise NpyError(f"{path}: not a .npy file")
    version = head[6]
    if version not in (1, 2, 3) or head[7] != 0:
        raise NpyError(f"{path}: .npy version {version}.{head[7]}; 1.0, 2.0 and 3.0 are known")
    begin = 10 if version == 1 else 12
    (n_bytes,) = struct.unpack("<H" if version == 1 else "<I", head[8:begin])
    if n_bytes > _MAX_HEADER_BYTES or begin + n_bytes > len(head):
        raise NpyError(f"{path}: its header of {n_bytes} bytes is cut short or too long")
    text = head[begin : begin + n_bytes].decode("utf-8" if version == 3 else "latin-1", "replace")
    try:
        fields = ast.literal_eval(text.strip())
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        fields = None
    if type(fields) is not dict or set(fields) != _KEYS:
        raise NpyError(f"{path}: its header is not that of a .npy file: {text.strip()[:100]!r}")
    return Header(begin + n_bytes, *_checked(fields, path))


def _checked(fields: dict[str, Any], path: Any) -> tuple[np.dtype, bool, tuple[int, ...]]:
    descr, fortran_order, shape = fields["descr"], fields["fortran_order"], fields["shape"]
    try:
        dtype = np.dtype(descr) if type(descr) is str else None
    except TypeError:
        dtype = None
    if dtype is None or dtype.kind not in _KINDS:
        raise NpyError(f"{path}: it holds {descr!r}; only arrays of numbers are read")
    if type(fortran_order) is not bool:
        raise NpyError(f"{path}: fortran_order is {fortran_order!r}")
    if type(shape) is not tuple or any(type(one) is not int or one < 0 for one in shape):
        raise NpyError(f"{path}: its shape is {shape!r}")
    return dtype, fortran_order, shape


def array_of(buffer: Any, n_bytes: int, path: Any) -> np.ndarray:
    """The array that lies in the first n_bytes of a buffer, which it then shares.

    Raises:
        NpyError: as parse_header(), or there are more or fewer values than the header says.
    """
    view = memoryview(buffer)[:n_bytes]
    header = parse_header(view, path)
    if n_bytes != header.n_bytes + header.data_bytes:
        raise NpyError(
            f"{path}: {n_bytes - header.n_bytes} bytes of values; an array of {header.shape} "
            f"{header.dtype} has {header.data_bytes}"
        )
    if not header.data_bytes:
        return np.empty(header.shape, header.dtype)
    values = np.frombuffer(view, header.dtype, offset=header.n_bytes)
    return values.reshape(header.shape, order="F" if header.fortran_order else "C")


def read_npy(path: str | os.PathLike[str], *, direct: bool = False) -> np.ndarray:
    """A whole .npy file, as ``np.load(path, allow_pickle=False)`` gives it.

    The file is read straight into the array's memory, without Python's lock.

    Args:
        path: of the file.
        direct: past the page cache (O_DIRECT): for sets that are larger than the memory, whose
            pages nobody will ask for before they are dropped, and which would only drive out
            others. Where the file system has no such thing, as without.

    Raises:
        NpyError: the file is no array of numbers, or is cut short.
        OSError: it can't be read.
    """
    file = _open(path, direct)
    try:
        n_bytes = os.fstat(file).st_size
        if n_bytes == 0:
            raise NpyError(f"{path}: the file is empty")
        # Anonymous pages: aligned for O_DIRECT, and given back when the last array of them goes.
        buffer = mmap.mmap(-1, -(-n_bytes // _BLOCK_BYTES) * _BLOCK_BYTES)
        _fill(file, buffer, n_bytes, path)
    finally:
        os.close(file)
    return array_of(buffer, n_bytes, path)


def _open(path: str | os.PathLike[str], direct: bool) -> int:
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK
    if direct:
        try:
            return os.open(path, flags | os.O_DIRECT)
        except OSError as error:
            if error.errno != 22:  # EINVAL: the file system does not know it
                raise
    return os.open(path, flags)


def _fill(file: int, buffer: mmap.mmap, n_bytes: int, path: Any) -> None:
    with memoryview(buffer) as view:
        done = 0
        while done < n_bytes:
            # Whole blocks, also at the end; a read there ends at the file's end by itself.
            with view[done : done + _MOST_BYTES] as part:
                n_read = os.preadv(file, [part], done)
            if n_read == 0:
                raise NpyError(f"{path}: it became shorter while it was read")
            done += n_read
