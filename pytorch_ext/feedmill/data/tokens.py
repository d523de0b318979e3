"""A dataset of windows of a token file."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset

_DTYPES = ("uint16", "uint32")


class Tokens(Dataset[Any]):
    """Windows of a token file, for next-token prediction: ``dataset[i]`` is ``(x, y)``.

        dataset = Tokens("train.bin", "uint16", block=1024)

    With t the file's tokens and s the stride, x is t[i*s : i*s + block], and y is the same window
    one token later, t[i*s + 1 : i*s + block + 1]. The file is mapped into memory, not loaded.

    Args:
        path: of a file that holds only tokens, in this machine's byte order.
        dtype: "uint16" or "uint32", or NumPy's types of these names.
        block: tokens in x and in y, from 1.
        stride: distance of the starts of consecutive windows, from 1. Default 1: a window at every
            token, for scripts that draw windows at random. With ``stride=block``, each token is in
            x once per epoch.

    x and y are torch.int64 (block,); the caller owns them. ``len()`` counts the whole windows.

    Raises:
        ValueError: dtype, block or stride is not supported; the file's size is not a whole number
            of tokens; or it has too few tokens for one window.
        OSError: the file can't be read.

    Attributes:
        tokens: the mapped tokens, read-only.
    """

    def __init__(
        self, path: str | os.PathLike[str], dtype: Any = "uint16", block: int = 1024,
        stride: int = 1,
    ) -> None:
        self.path = os.fspath(path)
        self.dtype = np.dtype(dtype).name
        if self.dtype not in _DTYPES:
            raise ValueError(f"dtype is {dtype!r}; it must be one of 'uint16', 'uint32'")
        for name, value in (("block", block), ("stride", stride)):
            if type(value) is not int or value < 1:
                raise ValueError(f"{name} is {value!r}; it must be an int from 1")
        self.block, self.stride = block, stride
        self.tokens = _map(self.path, self.dtype)
        if len(self.tokens) <= block:
            raise ValueError(
                f"{self.path} has {len(self.tokens)} tokens; block={block} needs at least "
                f"{block + 1}"
            )

    def __len__(self) -> int:
        return (len(self.tokens) - self.block - 1) // self.stride + 1

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        n = len(self)
        if not -n <= index < n:
            raise IndexError(f"index {index} is out of range for {n} windows")
        start = int(index % n) * self.stride
        x, y = self.tokens[start : start + self.block], self.tokens[start + 1 :][: self.block]
        return torch.from_numpy(x.astype(np.int64)), torch.from_numpy(y.astype(np.int64))

    def __getstate__(self) -> dict[str, Any]:
        """Leaves out the tokens; the copy maps the file again."""
        return {name: value for name, value in vars(self).items() if name != "tokens"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self.tokens = _map(self.path, self.dtype)

    def __repr__(self) -> str:
        return f"Tokens {self.path!r}, {len(self)} windows of {self.block} {self.dtype}"


def _map(path: str, dtype: str) -> np.ndarray:
    n_bytes, item_bytes = os.stat(path).st_size, np.dtype(dtype).itemsize
    if n_bytes % item_bytes:
        raise ValueError(
            f"{path} has {n_bytes} bytes, which is not a whole number of {dtype} tokens"
        )
    if n_bytes == 0:
        return np.empty(0, dtype)
    return np.memmap(path, dtype, "r").view(np.ndarray)
