"""Image tensors in the memory of a native batch."""

from __future__ import annotations

import sys
from typing import NamedTuple

import numpy as np
import torch

from feedmill.planner.formats import TORCH_DTYPES


class Layout(NamedTuple):
    """The memory layout of images in a batch.

    Attributes:
        dtype: "uint8", "float32", "float16" or "bfloat16".
        order: "nchw" or "nhwc".
        shape: (channels, height, width).
        as_image: whether samples are tv_tensors.Image.
    """

    dtype: str
    order: str
    shape: tuple[int, int, int]
    as_image: bool


def images_of(data: torch.Tensor, n: int, layout: Layout) -> torch.Tensor:
    """A view (n, channels, height, width) of the images at the beginning of ``data``."""
    dtype = TORCH_DTYPES[layout.dtype]
    channels, height, width = layout.shape
    values = data[: n * channels * height * width * dtype.itemsize].view(dtype)
    if layout.order == "nhwc":
        return values.view(n, height, width, channels).permute(0, 3, 1, 2)
    return values.view(n, channels, height, width)


def array_of(images: torch.Tensor) -> np.ndarray:
    """The same memory as a NumPy array, with int16 in place of bfloat16, which NumPy lacks."""
    return (images.view(torch.int16) if images.dtype is torch.bfloat16 else images).numpy()


def samples_of(
    images: torch.Tensor, as_image: bool, array: np.ndarray | None = None
) -> list[torch.Tensor]:
    """The images of a batch, (channels, height, width) each, in the batch's memory but each with a
    storage of its own.

    With an ordinary view as sample, torch.save() would write the storage of the whole batch.

    Args:
        images: (n, channels, height, width).
        as_image: whether to return tv_tensors.Image.
        array: array_of(images). The samples' storages keep it alive.
    """
    if array is None:
        array = array_of(images)
    samples = list(map(torch.from_numpy, array))
    if images.dtype is torch.bfloat16:
        samples = [one.view(torch.bfloat16) for one in samples]
    if as_image:
        samples = list(map(sys.modules["torchvision.tv_tensors"].Image, samples))
    return samples
