"""Native batches as torch tensors, without copies."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch.utils.dlpack import from_dlpack

from feedmill.collate.samples import Layout, images_of
from feedmill.engine.config import Config
from feedmill.planner.arrays import Arrays


def tensors_of(payload: Any, n: int, config: Config, handle: Any) -> Any:
    """The images of a native batch or, if the samples are arrays or have several views, the list of
    their tensors. They share the batch's memory.

    Args:
        payload: from the native loader: DLPack capsules if the memory is its own, else the tensor
        of
            bytes that contains the batch.
        n: number of samples; the memory may have space for more.
        config: of the native loader.
        handle: the native loader.
    """
    is_capsule = config.alloc is None and config.device is None
    if config.arrays is not None:
        if is_capsule:
            return [from_dlpack(capsule) for capsule in payload]
        return _arrays_of(payload, n, config, config.arrays, handle)
    if config.plan.more_views:
        if is_capsule:
            return [from_dlpack(capsule) for capsule in payload]
        places = zip(handle.offsets, config.plan.views, handle.view_shapes)
        return [images_of(payload[at:], n, layout_of(*view)) for at, *view in places]
    if is_capsule:
        return from_dlpack(payload)
    return images_of(payload, n, layout_of(config.plan, handle.out_shape))


def layout_of(plan: Any, shape: tuple[int, int, int]) -> Layout:
    """The memory layout of a plan's images in a batch; shape is (channels, height, width)."""
    return Layout(plan.dtype, plan.layout, shape, plan.as_image)


def _arrays_of(
    data: torch.Tensor, n: int, config: Config, arrays: Arrays, handle: Any
) -> list[torch.Tensor]:
    """One tensor per array, each at its offset in the batch."""
    tensors = []
    for number, offset in enumerate(handle.offsets):
        if number == 0 and arrays.image is not None:
            tensors.append(images_of(data[offset:], n, layout_of(config.plan, handle.out_shape)))
            continue
        dtype, shape = arrays.dtypes[number], arrays.specs[number].shape
        n_bytes = n * math.prod(shape) * dtype.itemsize
        tensors.append(data[offset : offset + n_bytes].view(dtype).view(n, *shape))
    return tensors
