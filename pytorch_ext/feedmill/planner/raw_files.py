"""Raw files, which hold a sample's values unencoded: .npy files of one type and shape."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from feedmill.planner.arrays import torch_dtype
from feedmill.planner.plan import Plan, UnsupportedError
from feedmill.planner.samples import BaseDataset, BaseNode, Item, Source


@dataclass(frozen=True)
class RawPlan(Plan):
    """The plan of raw files, which are copied unchanged. The native loader delivers a batch as
    uint8 (n, 1, 1, body_bytes); values_of() gives it its type and shape.

    Attributes:
        header: the bytes with which each file must begin.
        body_bytes: size of the values, which follow the header.
        values_dtype, shape: of one sample's values.
    """

    header: bytes = b""
    body_bytes: int = 0
    values_dtype: torch.dtype = torch.uint8
    shape: tuple[int, ...] = ()

    def describe(self) -> str:
        return f"none: files are copied unchanged, {str(self.values_dtype)[6:]} {self.shape}"

    def values_of(self, delivered: torch.Tensor) -> torch.Tensor:
        """The values of a delivered batch, (n, *shape), in the same memory."""
        return delivered.view(len(delivered), -1).view(self.values_dtype).view(-1, *self.shape)

    def bytes_of(self, array: np.ndarray) -> torch.Tensor:
        """An array in the form of a delivered sample: uint8 (1, 1, body_bytes).

        Raises:
            RuntimeError: the array has another type or shape than the first file's.
        """
        values = torch.as_tensor(array)
        if tuple(values.shape) != self.shape or values.dtype is not self.values_dtype:
            raise RuntimeError(
                f"the array is {values.dtype} {tuple(values.shape)}, but the first file's is "
                f"{self.values_dtype} {self.shape}; all arrays must have the same type and shape"
            )
        return values.contiguous().view(-1).view(torch.uint8).view(1, 1, -1)


class RawSource(Source):
    """The samples of raw files."""

    copies = True

    def why_not(self, loader: Any, is_default: bool) -> list[str]:
        reasons = []
        gives_tensors = all(
            base.dataset.transform is torch.from_numpy for base in self._node.base_datasets
        )
        if not (is_default and loader._auto_collation) and not gives_tensors:
            reasons.append(
                "with batch_size=None or a collate_fn, the NpyFolder's samples are NumPy arrays, "
                "but native samples are tensors; pass transform=torch.from_numpy"
            )
        options = loader._feedmill_options()
        if options.dtype is not None or options.memory_format is not torch.contiguous_format:
            reasons.append(
                "dtype= and memory_format= are options for images; an NpyFolder's samples are not "
                "images"
            )
        return reasons

    def sample(self, item: Item) -> Any:
        return torch.as_tensor(item.load()), item.target


def npy_folder_node(dataset: Any) -> BaseNode:
    """The node of a feedmill.data.NpyFolder. All files are assumed to be like the first one.
    UnsupportedError if the first one can't be copied unchanged."""
    if dataset.transform is not None and dataset.transform is not torch.from_numpy:
        raise UnsupportedError(
            "the NpyFolder has a transform other than torch.from_numpy, which is not supported "
            'natively; with native="hybrid" it is called in threads'
        )
    if dataset.direct:
        raise UnsupportedError(
            "the NpyFolder reads past the page cache (direct=True), which is not supported "
            'natively; use direct=False or native="hybrid"'
        )
    try:
        start, header = dataset._first_header()
    except (OSError, ValueError, IndexError) as error:
        raise UnsupportedError(f"the NpyFolder's first file can't be read: {error}") from None
    dtype = torch_dtype(header.dtype)
    if dtype is None or not header.data_bytes or (header.fortran_order and len(header.shape) > 1):
        order = " in Fortran order" if header.fortran_order else ""
        raise UnsupportedError(
            f"the NpyFolder's first file holds {header.dtype} {header.shape}{order}; natively an "
            "array must not be empty, be in C order, and of a type that torch has"
        )
    plan = RawPlan(
        (), "uint8", None, 0, 1, header=start, body_bytes=header.data_bytes,
        values_dtype=dtype, shape=header.shape,
    )
    base = BaseDataset(
        dataset, dataset._find, dataset._load, False, "transform", plan, (), is_image=False
    )
    return BaseNode(base, "NpyFolder")
