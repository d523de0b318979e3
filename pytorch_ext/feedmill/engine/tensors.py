"""A native batch's memory as torch's tensors."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch.utils.dlpack import from_dlpack

from feedmill.collate.samples import Layout, images_of
from feedmill.engine.config import Config
from feedmill.planner.arrays import Arrays


def tensors_of(payload: Any, n: int, config: Config, handle: Any) -> Any:
    """The images of a batch, or of arrays the list of its tensors; none is a copy.

    Args:
        payload: what the native loader of ``config``, ``handle``, gave: DLPack capsules where the
            memory is its own, else the tensor of bytes that the batch lies in.
        n: samples in it, those that lead.
    """
    is_capsule = config.alloc is None and config.device is None
    if config.arrays is not None:
        if is_capsule:
            return [from_dlpack(capsule) for capsule in payload]
        return _arrays_of(payload, n, config, config.arrays, handle)
    if is_capsule:
        return from_dlpack(payload)
    return images_of(payload, n, layout_of(config.plan, handle.out_shape))


def layout_of(plan: Any, shape: tuple[int, int, int]) -> Layout:
    """How images of a plan lie in a batch."""
    return Layout(plan.dtype, plan.layout, shape, plan.as_image)


def _arrays_of(
    data: torch.Tensor, n: int, config: Config, arrays: Arrays, handle: Any
) -> list[torch.Tensor]:
    """A tensor per array, each from its offset on."""
    tensors = []
    for number, offset in enumerate(handle.offsets):
        if number == 0 and arrays.image is not None:
            tensors.append(images_of(data[offset:], n, layout_of(config.plan, handle.out_shape)))
            continue
        dtype, shape = arrays.dtypes[number], arrays.specs[number].shape
        n_bytes = n * math.prod(shape) * dtype.itemsize
        tensors.append(data[offset : offset + n_bytes].view(dtype).view(n, *shape))
    return tensors
