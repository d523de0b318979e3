"""Datasets of arrays in .npy files: one file per sample, or one file for all samples."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from torch.utils.data import Dataset

from feedmill.data.npy import MAX_START_BYTES, Header, NpyError, parse_header, read_npy


class NpyFolder(Dataset[Any]):
    """Arrays in .npy files, one file per sample: ``dataset[i]`` is ``(array, target)``.

        dataset = NpyFolder("/data/slices", transform=torch.from_numpy)

    Arrays are as from ``np.load(path, allow_pickle=False)``; the caller owns them. A file must hold
    numbers, and exactly as many bytes as its header says.

    feedmill.DataLoader reads the files natively if all have the first one's type and shape, and the
    transform is None or ``torch.from_numpy``. With other transforms or direct=True, it reads them
    in threads of this process if native="hybrid", else on torch's path.

    Args:
        paths: a folder, whose .npy files at any depth are used, sorted by path; or a list of paths.
        targets: one for each file; None (default): the file's index.
        transform: called with the array; None: not used.
        direct: read files past the page cache (O_DIRECT), as ``read_npy`` describes.

    Raises:
        ValueError: the folder has no .npy file, or the numbers of files and targets differ.
            ``dataset[i]`` raises feedmill.data.npy.NpyError, a ValueError, for a damaged file.
        OSError: the folder can't be read; or, from ``dataset[i]``, the file.
    """

    def __init__(
        self,
        paths: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
        targets: Sequence[Any] | None = None,
        transform: Callable[[Any], Any] | None = None,
        *,
        direct: bool = False,
    ) -> None:
        if isinstance(paths, str | os.PathLike):
            self.paths = _npy_files(paths)
        else:
            self.paths = [os.fsdecode(path) for path in paths]
        if targets is not None and len(targets) != len(self.paths):
            raise ValueError(f"there are {len(self.paths)} files, but {len(targets)} targets")
        self.targets = targets
        self.transform = transform
        self.direct = direct

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        path, target = self._find(index)
        array = self._load(path)
        return array if self.transform is None else self.transform(array), target

    def _find(self, index: int) -> tuple[str, Any]:
        return self.paths[index], _target(self.targets, index, len(self.paths))

    def _first_header(self) -> tuple[bytes, Header]:
        """The first file's header, as bytes and parsed. Files of the same type and shape begin with
        the same bytes."""
        with open(self.paths[0], "rb") as file:
            start = file.read(MAX_START_BYTES)
        header = parse_header(start, self.paths[0])
        return start[: header.n_bytes], header

    def _load(self, path: str) -> np.ndarray:
        return read_npy(path, direct=self.direct)

    def __repr__(self) -> str:
        return f"NpyFolder of {len(self.paths)} files, transform={self.transform!r}"


class NpyFile(Dataset[Any]):
    """The rows of an array in a .npy file: ``dataset[i]`` is ``(row, target)``.

        dataset = NpyFile("/data/images.npy", np.load("/data/labels.npy"))

    The file is mapped into memory, so it may be larger than the memory, and only the pages that are
    used are read. A row is a copy; the caller owns it.

    Args:
        path: of a .npy file with an array of at least one dimension, in C order.
        targets: one for each row; None (default): the row's index.
        transform: called with the row, a NumPy array; None: not used.

    Raises:
        ValueError: the array is not in C order or has no dimension, the file is damaged
            (feedmill.data.npy.NpyError), or the numbers of rows and targets differ.
        OSError: the file can't be read.

    Attributes:
        array: the mapped array, read-only.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        targets: Sequence[Any] | None = None,
        transform: Callable[[Any], Any] | None = None,
    ) -> None:
        self.path = os.fspath(path)
        self.array = _map(self.path)
        if targets is not None and len(targets) != len(self.array):
            raise ValueError(f"{path} has {len(self.array)} rows, but there are {len(targets)} "
                             "targets")
        self.targets = targets
        self.transform = transform

    def __len__(self) -> int:
        return len(self.array)

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        row = np.array(self.array[index])
        target = _target(self.targets, index, len(self.array))
        return row if self.transform is None else self.transform(row), target

    def __getstate__(self) -> dict[str, Any]:
        """Leaves out the array; the copy maps the file again."""
        return {name: value for name, value in vars(self).items() if name != "array"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self.array = _map(self.path)

    def __repr__(self) -> str:
        return f"NpyFile {self.path!r}, {self.array.shape} {self.array.dtype}"


def _target(targets: Sequence[Any] | None, index: int, n: int) -> Any:
    if targets is None:
        return index if index >= 0 else index + n
    return targets[index]


def _npy_files(folder: str | os.PathLike[str]) -> list[str]:
    os.stat(folder)  # raises OSError if the folder does not exist; rglob() would find no files
    paths = sorted(str(path) for path in Path(folder).rglob("*.npy"))
    if not paths:
        raise ValueError(f"no .npy file in {os.fspath(folder)!r}")
    return paths


def _map(path: str) -> np.ndarray:
    with open(path, "rb") as file:
        header = parse_header(file.read(MAX_START_BYTES), path)
        n_bytes = os.fstat(file.fileno()).st_size
    if n_bytes != header.n_bytes + header.data_bytes:
        raise NpyError(
            f"{path}: the file has {n_bytes} bytes; its header says {header.shape} {header.dtype}, "
            f"which takes {header.n_bytes + header.data_bytes}"
        )
    if not header.shape or (header.fortran_order and len(header.shape) > 1):
        raise ValueError(f"{path}: the array of shape {header.shape} has no contiguous rows; save "
                         "an array in C order, such as np.ascontiguousarray() returns")
    if not header.data_bytes:
        return np.empty(header.shape, header.dtype)
    return np.memmap(path, header.dtype, "r", header.n_bytes, header.shape).view(np.ndarray)
