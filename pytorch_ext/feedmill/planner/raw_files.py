"""Files that hold a sample's values as they are: .npy files of one type and shape."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from feedmill.planner.arrays import torch_dtype
from feedmill.planner.plan import Plan, Refusal
from feedmill.planner.samples import Item, Leaf, LeafNode, Source


@dataclass(frozen=True)
class PlainPlan(Plan):
    """The plan of files that are copied. What the native loader delivers are their bytes, uint8
    (n, 1, 1, body_bytes).

    Attributes:
        header: what each file begins with.
        body_bytes: of the values behind it.
        values_dtype, shape: of the values.
    """

    header: bytes = b""
    body_bytes: int = 0
    values_dtype: torch.dtype = torch.uint8
    shape: tuple[int, ...] = ()

    def describe(self) -> str:
        return f"none: files are copied, {str(self.values_dtype)[6:]} {self.shape}"

    def values_of(self, delivered: torch.Tensor) -> torch.Tensor:
        """The values of a batch, (n, *shape), in the same memory."""
        return delivered.view(len(delivered), -1).view(self.values_dtype).view(-1, *self.shape)

    def bytes_of(self, array: np.ndarray) -> torch.Tensor:
        """An array as it is delivered; RuntimeError where it is not like the others."""
        values = torch.as_tensor(array)
        if tuple(values.shape) != self.shape or values.dtype is not self.values_dtype:
            raise RuntimeError(
                f"the array is {values.dtype} {tuple(values.shape)}, the first one "
                f"{self.values_dtype} {self.shape}; a batch holds arrays that are alike"
            )
        return values.contiguous().view(-1).view(torch.uint8).view(1, 1, -1)


class PlainSource(Source):
    """The samples of files whose values are copied."""

    copies = True

    def why_not(self, loader: Any, is_default: bool) -> list[str]:
        reasons = []
        converted = all(leaf.dataset.transform is torch.from_numpy for leaf in self._node.leaves)
        if not (is_default and loader._auto_collation) and not converted:
            reasons.append("with batch_size=None or a collate_fn samples are NumPy's arrays, "
                           "unless transform=torch.from_numpy")
        options = loader._feedmill_options()
        if options.dtype is not None or options.memory_format is not torch.contiguous_format:
            reasons.append("dtype= and memory_format= are for images, not for an NpyFolder")
        return reasons

    def sample(self, item: Item) -> Any:
        return torch.as_tensor(item.load()), item.target


def npy_folder_node(dataset: Any) -> LeafNode:
    """That of a feedmill.data.NpyFolder whose files are like the first one; Refusal where that one
    is not delivered as it lies."""
    if dataset.transform is not None and dataset.transform is not torch.from_numpy:
        raise Refusal("the NpyFolder has a transform other than torch.from_numpy, which is Python's"
                      '; with native="hybrid" it is called in threads')
    if dataset.direct:
        raise Refusal("the NpyFolder reads past the page cache (direct=True)")
    try:
        start, header = dataset._first_header()
    except (OSError, ValueError, IndexError) as error:
        raise Refusal(f"the NpyFolder's first file: {error}") from None
    dtype = torch_dtype(header.dtype)
    if dtype is None or not header.data_bytes or (header.fortran_order and len(header.shape) > 1):
        order = " in Fortran's order" if header.fortran_order else ""
        raise Refusal(f"the NpyFolder's first file holds {header.dtype} {header.shape}{order}")
    plan = PlainPlan(
        (), "uint8", None, 0, 1, header=start, body_bytes=header.data_bytes,
        values_dtype=dtype, shape=header.shape,
    )
    leaf = Leaf(
        dataset, dataset._find, dataset._load, False, "transform", plan, (), is_image=False
    )
    return LeafNode(leaf, "NpyFolder")
