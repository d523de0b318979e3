"""Index files that are mapped into memory, and views of their tables."""

from __future__ import annotations

import mmap
import os

import numpy as np


def map_file(path: str | os.PathLike[str], least_bytes: int) -> mmap.mmap | int:
    """Maps a file, read-only. Raises OSError if it can't be read.

    Returns:
        The mapped file; or its size if that is below ``least_bytes``, which is positive.
    """
    with open(path, "rb") as file:
        n_bytes = os.fstat(file.fileno()).st_size
        if n_bytes < least_bytes:
            return n_bytes
        return mmap.mmap(file.fileno(), n_bytes, access=mmap.ACCESS_READ)


def array_of(part: memoryview, dtype: np.dtype) -> np.ndarray:
    """A view of a buffer as an array; frombuffer() does not accept an empty buffer."""
    return np.frombuffer(part, dtype) if len(part) else np.empty(0, dtype)
