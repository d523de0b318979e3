"""Datasets of arrays in .npy files: one file for each sample, or one for all."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from torch.utils.data import Dataset

from feedmill.data.npy import MAX_START_BYTES, Header, NpyError, parse_header, read_npy


class NpyFolder(Dataset[Any]):
    """Arrays, each in a .npy file of its own: ``dataset[i]`` is ``(array, target)``.

        dataset = NpyFolder("/data/slices", transform=torch.from_numpy)

    Arrays are those of ``np.load(path, allow_pickle=False)``, and the caller's own. Headers are
    read strictly: only arrays of numbers, with exactly the bytes that they announce.

    feedmill.DataLoader reads them natively, where all have the first one's type and shape and the
    transform is None or ``torch.from_numpy``; with other transforms, and direct=True, in threads of
    this process if told native="hybrid".

    Args:
        paths: a folder, whose .npy files at any depth are taken in the order of their paths; or the
            paths themselves, copied into a list.
        targets: one for each file; None (the default): its index.
        transform: called with the array; None: nothing is.
        direct: files are read past the page cache (O_DIRECT), as ``read_npy`` describes.

    Raises:
        ValueError: no .npy file in the folder, or the numbers of files and targets differ. At
            ``dataset[i]`` feedmill.data.npy.NpyError, a ValueError, for a file that is damaged.
        OSError: the folder, or at ``dataset[i]`` the file, can't be read.
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
        """The first file's header, as it is and read; what all files like it begin with."""
        with open(self.paths[0], "rb") as file:
            start = file.read(MAX_START_BYTES)
        header = parse_header(start, self.paths[0])
        return start[: header.n_bytes], header

    def _load(self, path: str) -> np.ndarray:
        return read_npy(path, direct=self.direct)

    def __repr__(self) -> str:
        return f"NpyFolder of {len(self.paths)} files, transform={self.transform!r}"


class NpyFile(Dataset[Any]):
    """The rows of one .npy file, which is mapped, not loaded: ``dataset[i]`` is ``(row, target)``.

        dataset = NpyFile("/data/images.npy", np.load("/data/labels.npy"))

    The file may be larger than the memory; only pages that are asked for are read. A row is a copy,
    the caller's own.

    Args:
        path: of a .npy file of at least one dimension, in C order.
        targets: one for each row; None (the default): its index.
        transform: called with the row, an array; None: nothing is.

    Raises:
        ValueError: the file has no rows in C order, is damaged (feedmill.data.npy.NpyError), or the
            numbers of rows and targets differ.
        OSError: it can't be read.

    Attributes:
        array: the mapped file, not writable.
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
        """A copy in another process maps the file anew: no value is sent."""
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
    os.stat(folder)  # what can't be read is said by its own error, not by "no files"
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
            f"{path}: it has {n_bytes} bytes; an array of {header.shape} {header.dtype} has "
            f"{header.n_bytes + header.data_bytes}"
        )
    if not header.shape or (header.fortran_order and len(header.shape) > 1):
        raise ValueError(f"{path}: an array of {header.shape} has no rows that lie in one piece; "
                         "save it with np.ascontiguousarray()")
    if not header.data_bytes:
        return np.empty(header.shape, header.dtype)
    return np.memmap(path, header.dtype, "r", header.n_bytes, header.shape).view(np.ndarray)
