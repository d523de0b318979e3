"""Image tensors in the memory of a native batch, and samples made of them."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch

from feedmill.planner.arrangements import PAIR, as_returned
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


class ArrangedCollate:
    """Calls a collate_fn with samples as the dataset returns them, given pairs of the image and the
    other parts.

    Args:
        function: the collate_fn.
        arrangement: of the samples, as BaseDataset's.
        auto_collation: whether it gets a list of samples; else a single sample.
    """

    def __init__(
        self, function: Callable[[Any], Any], arrangement: Any, auto_collation: bool
    ) -> None:
        self._function = function
        self._arrangement = arrangement
        self._auto_collation = auto_collation

    def __call__(self, pairs: Any) -> Any:
        if not self._auto_collation:
            return self._function(as_returned(self._arrangement, *pairs))
        return self._function([as_returned(self._arrangement, *pair) for pair in pairs])


def collate_function(loader: Any, source: Any) -> Callable[[Any], Any]:
    """The function that makes a DataLoader's batches of pairs of image and other parts: its
    collate_fn, wrapped if the source's samples are no pairs. source None: they are."""
    function: Callable[[Any], Any] = loader.collate_fn
    if source is None or source.arrangement == PAIR:
        return function
    return ArrangedCollate(function, source.arrangement, loader.batch_sampler is not None)
