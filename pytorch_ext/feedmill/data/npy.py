"""Reads .npy files of numbers without the GIL. Files with pickled objects, and files that do not
have exactly as many bytes as their header says, are refused."""

from __future__ import annotations

import io
import mmap
import os
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.lib import format as npy_format

# NumPy's own limit for the size of a header.
_MAX_HEADER_BYTES = 10000
# Largest number of bytes before the values.
MAX_START_BYTES = 12 + _MAX_HEADER_BYTES
# How often a header is parsed.
_MAX_TRIES = 8
# Kinds of numeric dtypes: bool, signed and unsigned integers, floats, complex.
_KINDS = "biufc"
# Alignment of addresses, offsets and lengths that is sufficient for O_DIRECT on all file systems.
_BLOCK_BYTES = 4096
# Limit of one read; the kernel's own is 2**31 - 4096.
_MAX_READ_BYTES = 1 << 30


class NpyError(ValueError):
    """A file is not a .npy file of numbers, or is damaged. The message names the file and the
    defect."""


class Header(NamedTuple):
    """The header of a .npy file.

    Attributes:
        n_bytes: size of the header; the values follow it.
        dtype: of the values, a numeric type.
        fortran_order: the values are in Fortran order: the first index varies fastest.
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
    """Parses the header in the first bytes of a file.

    Args:
        start: at least the first MAX_START_BYTES bytes, or the whole file.
        path: name of the file in error messages.

    Raises:
        NpyError: it is not the header of a .npy file with an array of numbers.
    """
    stream = io.BytesIO(start[:MAX_START_BYTES])
    try:
        version = npy_format.read_magic(stream)
    except ValueError as error:
        raise NpyError(f"{path}: not a .npy file: {error}") from None
    if version not in ((1, 0), (2, 0), (3, 0)):
        raise NpyError(f"{path}: .npy version {version[0]}.{version[1]}; supported are 1.0, 2.0 "
                       "and 3.0")
    # Version 3.0 differs from 2.0 in the encoding of field names, which arrays of numbers lack.
    is_first = version == (1, 0)
    read = npy_format.read_array_header_1_0 if is_first else npy_format.read_array_header_2_0
    try:
        shape, fortran_order, dtype = _parsed(read, stream)
    except Exception as error:  # damaged text raises many types, such as tokenize.TokenError
        raise NpyError(f"{path}: damaged .npy header: {error}") from None
    if dtype.kind not in _KINDS:
        raise NpyError(f"{path}: it holds {dtype}; only arrays of numbers are supported")
    if any(length < 0 for length in shape):
        raise NpyError(f"{path}: damaged .npy header: its shape is {shape}")
    return Header(stream.tell(), dtype, fortran_order, shape)


def _parsed(read: Callable[[io.BytesIO], Any], stream: io.BytesIO) -> Any:
    """The result of one of NumPy's functions, which use Python's parser.

    Before Python 3.11.5 that raises SystemError now and then where several threads use it, as the
    depth of its recursion is counted for all of them together (CPython's issue 106905).
    """
    at = stream.tell()
    for _ in range(_MAX_TRIES - 1):
        try:
            return read(stream)
        except SystemError:
            stream.seek(at)
    return read(stream)


def array_of(buffer: Any, n_bytes: int, path: Any) -> np.ndarray:
    """Returns the array in the first n_bytes of a buffer, which hold a .npy file. The array shares
    the buffer's memory.

    Raises:
        NpyError: as parse_header(); or there are more or fewer values than the header says.
    """
    view = memoryview(buffer)[:n_bytes]
    header = parse_header(view, path)
    if n_bytes != header.n_bytes + header.data_bytes:
        raise NpyError(
            f"{path}: it has {n_bytes - header.n_bytes} bytes of values; its header says "
            f"{header.shape} {header.dtype}, which takes {header.data_bytes}"
        )
    if not header.data_bytes:
        return np.empty(header.shape, header.dtype)
    values = np.frombuffer(view, header.dtype, offset=header.n_bytes)
    return values.reshape(header.shape, order="F" if header.fortran_order else "C")


def read_npy(path: str | os.PathLike[str], *, direct: bool = False) -> np.ndarray:
    """Reads a .npy file, like ``np.load(path, allow_pickle=False)``.

    The file is read straight into the array's memory, without the GIL.

    Args:
        path: of the file.
        direct: read past the page cache (O_DIRECT). This is for datasets larger than the memory,
            whose pages would be evicted before their next use and would evict others. Ignored if
            the file system does not support it.

    Raises:
        NpyError: the file is not a .npy file of numbers, or is damaged.
        OSError: the file can't be read.
    """
    file = _open(path, direct)
    try:
        n_bytes = os.fstat(file).st_size
        if n_bytes == 0:
            raise NpyError(f"{path}: the file is empty")
        # Anonymous pages are aligned for O_DIRECT, and freed with the last array that uses them.
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
            if error.errno != 22:  # EINVAL: the file system does not support O_DIRECT
                raise
    return os.open(path, flags)


def _fill(file: int, buffer: mmap.mmap, n_bytes: int, path: Any) -> None:
    with memoryview(buffer) as view:
        done = 0
        while done < n_bytes:
            # O_DIRECT needs whole blocks, so the last read asks for bytes beyond the file's end.
            with view[done : done + _MAX_READ_BYTES] as part:
                n_read = os.preadv(file, [part], done)
            if n_read == 0:
                raise NpyError(f"{path}: the file was truncated while it was read")
            done += n_read
