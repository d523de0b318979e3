"""The arrays of a dataset in memory, in the form that the native loader takes.

Nothing is copied beforehand: the native loader reads the dataset's own memory while an epoch runs.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch

# DLPack's (type code, bits).
DLPACK = {
    torch.bool: (6, 8),
    torch.uint8: (1, 8), torch.int8: (0, 8), torch.int16: (0, 16), torch.int32: (0, 32),
    torch.int64: (0, 64), torch.float16: (2, 16), torch.bfloat16: (4, 16),
    torch.float32: (2, 32), torch.float64: (2, 64),
    torch.complex64: (5, 64), torch.complex128: (5, 128),
}


class Spec(NamedTuple):
    """An array, as _native.Loader takes it: its memory, DLPack's type (code, bits) and the shape of
    a row."""

    address: int
    n_rows: int
    row_bytes: int
    stride_bytes: int
    code: int
    bits: int
    shape: tuple[int, ...]


@dataclass(frozen=True)
class Arrays:
    """The arrays of a dataset.

    Attributes:
        specs: one for each array.
        image: (height, width, channels, channel stride, row stride, pixel stride) of the images in
            the first array, strides in bytes; None: the array does not hold images.
        dtypes: of the arrays. Delivered images have the plan's dtype instead.
        owners: objects that own the memory. The native loader holds a reference to each while its
            threads may read the memory. Thus no other array can get the same address meanwhile.
    """

    specs: tuple[Spec, ...]
    image: tuple[int, int, int, int, int, int] | None
    dtypes: tuple[torch.dtype, ...]
    owners: tuple[Any, ...] = field(compare=False)


def torch_dtype(dtype: np.dtype) -> torch.dtype | None:
    """The torch dtype of a NumPy dtype; None: torch has none, or not with this byte order."""
    try:
        found = torch.from_numpy(np.empty(0, dtype)).dtype
    except (TypeError, ValueError):
        return None
    return found if found in DLPACK else None


def address_of(array: np.ndarray) -> int:
    address: int = array.__array_interface__["data"][0]
    return address
