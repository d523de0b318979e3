"""A dataset of windows of a file of tokens."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset

_DTYPES = ("uint16", "uint32")


class Tokens(Dataset[Any]):
    """Windows of a file of tokens, for next-token prediction: ``dataset[i]`` is ``(x, y)``.

        dataset = Tokens("train.bin", "uint16", block=1024)

    With t the tokens of the file and s the stride, x = t[i*s : i*s + block], and y the same one
    token later: t[i*s + 1 : i*s + block + 1]. The file is mapped, not loaded.

    Args:
        path: of a file that holds nothing but tokens, in this machine's byte order.
        dtype: "uint16" or "uint32", or numpy's types of these.
        block: tokens in x and in y, from 1.
        stride: tokens from a window's start to the next one's, from 1. Default 1: windows at every
            token, as those are that scripts draw at random; ``stride=block`` has each token in x
            once an epoch.

    x and y are torch.int64 (block,), the caller's own. ``len()`` is the number of whole windows.

    Raises:
        ValueError: another dtype, block or stride; the file has no whole number of tokens, or not
            enough of them for one window.
        OSError: it can't be read.

    Attributes:
        tokens: the mapped file, not writable.
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
                f"{self.path} has {len(self.tokens)} tokens; a window of {block} and the token "
                f"behind it need {block + 1}"
            )

    def __len__(self) -> int:
        return (len(self.tokens) - self.block - 1) // self.stride + 1

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        n = len(self)
        if not -n <= index < n:
            raise IndexError(f"index {index} is outside of {n} windows")
        start = int(index % n) * self.stride
        x, y = self.tokens[start : start + self.block], self.tokens[start + 1 :][: self.block]
        return torch.from_numpy(x.astype(np.int64)), torch.from_numpy(y.astype(np.int64))

    def __getstate__(self) -> dict[str, Any]:
        """A copy in another process maps the file anew: no token is sent."""
        return {name: value for name, value in vars(self).items() if name != "tokens"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self.tokens = _map(self.path, self.dtype)

    def __repr__(self) -> str:
        return f"Tokens {self.path!r}, {len(self)} windows of {self.block} {self.dtype}"


def _map(path: str, dtype: str) -> np.ndarray:
    n_bytes, item_bytes = os.stat(path).st_size, np.dtype(dtype).itemsize
    if n_bytes % item_bytes:
        raise ValueError(f"{path} has {n_bytes} bytes, which is no whole number of {dtype} tokens")
    if n_bytes == 0:
        return np.empty(0, dtype)
    return np.memmap(path, dtype, "r").view(np.ndarray)
