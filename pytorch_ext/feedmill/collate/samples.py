"""The memory of a native batch as tensors of images."""

from __future__ import annotations

import sys
from typing import NamedTuple

import numpy as np
import torch

from feedmill.planner.formats import TORCH_DTYPES


class Layout(NamedTuple):
    """How images lie in a batch.

    Attributes:
        dtype: "uint8", "float32", "float16" or "bfloat16".
        order: "nchw" or "nhwc".
        shape: (channels, height, width).
        as_image: samples are tv_tensors.Image.
    """

    dtype: str
    order: str
    shape: tuple[int, int, int]
    as_image: bool


def images_of(data: torch.Tensor, n: int, layout: Layout) -> torch.Tensor:
    """Images (n, channels, height, width) from the first bytes of ``data``, which is no copy."""
    dtype = TORCH_DTYPES[layout.dtype]
    channels, height, width = layout.shape
    values = data[: n * channels * height * width * dtype.itemsize].view(dtype)
    if layout.order == "nhwc":
        return values.view(n, height, width, channels).permute(0, 3, 1, 2)
    return values.view(n, channels, height, width)


def array_of(images: torch.Tensor) -> np.ndarray:
    """The same memory as numpy's array, with int16 in place of bfloat16, which numpy lacks."""
    return (images.view(torch.int16) if images.dtype is torch.bfloat16 else images).numpy()


def samples_of(
    images: torch.Tensor, as_image: bool, array: np.ndarray | None = None
) -> list[torch.Tensor]:
    """The images of a batch, (channels, height, width) each: their memory is the batch's, their
    storage their own.

    A plain view would take the whole batch along wherever its storage goes, to a file by
    torch.save() for instance.

    Args:
        array: array_of(images). Each sample's storage refers to it, for as long as it exists.
    """
    if array is None:
        array = array_of(images)
    samples = list(map(torch.from_numpy, array))
    if images.dtype is torch.bfloat16:
        samples = [one.view(torch.bfloat16) for one in samples]
    if as_image:
        samples = list(map(sys.modules["torchvision.tv_tensors"].Image, samples))
    return samples
