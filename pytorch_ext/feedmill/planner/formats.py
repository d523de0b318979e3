"""Type and layout of delivered images: the DataLoader's options dtype= and memory_format=.

On the native path they are part of the plan. On torch's path, and for samples that the user's own
objects make, they are applied here, so that a script gets the same tensors on both paths.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from feedmill.planner.plan import ARRAY, PIL, Plan

TORCH_DTYPES = {
    "uint8": torch.uint8,
    "float32": torch.float32,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
}
# Integer types by size, to view values as bits: NumPy has no bfloat16.
INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32}
# The values of dtype=, besides None.
IMAGE_DTYPES = (torch.float32, torch.float16, torch.bfloat16)
MEMORY_FORMATS = (torch.contiguous_format, torch.channels_last)


# ---- on the native path --------------------------------------------------------------------------


def formatted(plan: Plan, dtype: torch.dtype | None, memory_format: torch.memory_format) -> Plan:
    """Applies the DataLoader's options to the plan of its transform."""
    layout = "nhwc" if memory_format is torch.channels_last else "nchw"
    given = TORCH_DTYPES[plan.dtype]
    if dtype is None or dtype is given:
        return replace(plan, layout=layout)
    if plan.value_table is None:
        values = torch.arange(256, dtype=given).expand(3, 256)
    else:
        values = torch.frombuffer(bytearray(plan.value_table), dtype=given)
    return replace(
        plan,
        dtype=str(dtype).removeprefix("torch."),
        value_table=bytes_of(values.to(dtype)),
        transform_dtype=plan.dtype,
        layout=layout,
    )


def memory_format_of(plan: Plan) -> torch.memory_format:
    """The memory format of the batches that a plan makes."""
    return torch.channels_last if plan.layout == "nhwc" else torch.contiguous_format


def bytes_of(values: torch.Tensor) -> bytes:
    """A tensor's values as bytes, in C order."""
    return values.contiguous().view(torch.uint8).numpy().tobytes()


def as_planned(image: Any, plan: Plan) -> Any:
    """Converts the result of the user's transform to the type that is delivered. Anything but a
    tensor of the plan's transform_dtype, or what the plan gives instead, is returned unchanged;
    comparisons will then fail."""
    if plan.gives == ARRAY and isinstance(image, np.ndarray):
        return torch.from_numpy(image)
    if plan.gives == PIL and getattr(image, "mode", "") == "RGB":
        return torch.from_numpy(np.array(image)).permute(2, 0, 1).contiguous()
    given = TORCH_DTYPES.get(plan.transform_dtype)
    if isinstance(image, torch.Tensor) and image.dtype is given:
        return image.to(TORCH_DTYPES[plan.dtype])
    return image


def laid_out(image: torch.Tensor, memory_format: torch.memory_format) -> torch.Tensor:
    """A sample's image (3, height, width) with the strides that it has in a batch of that memory
    format. Keeps subclasses of Tensor."""
    return image[None].contiguous(memory_format=memory_format)[0].as_subclass(type(image))


# ---- on torch's path -----------------------------------------------------------------------------


def batch_laid_out(data: Any, memory_format: torch.memory_format) -> Any:
    """A batch from a collate_fn, with its images in a memory format. The images are the batch
    itself or the first element of a tuple or list, if that is a tensor of four dimensions."""
    if memory_format is torch.contiguous_format:
        return data
    if isinstance(data, torch.Tensor):
        return data.contiguous(memory_format=memory_format) if data.ndim == 4 else data
    if isinstance(data, (tuple, list)) and data and isinstance(data[0], torch.Tensor):
        return _with_first(data, batch_laid_out(data[0], memory_format))
    return data


def _with_first(sequence: Sequence[Any], first: Any) -> Any:
    """A copy of a tuple, namedtuple or list with another first element."""
    if isinstance(sequence, list):
        values = copy.copy(sequence)
        values[0] = first
        return values
    kind = type(sequence)
    make = tuple if kind is tuple else getattr(kind, "_make", None)
    if make is None:
        raise TypeError(f"{_EXPECTED}; a {kind.__name__} can't be copied with another image")
    return make([first, *sequence[1:]])


@dataclass(frozen=True)
class FormattingCollate:
    """Wraps a DataLoader's collate_fn on torch's path, and applies dtype= and memory_format=. Torch
    sends it to its workers, so it must be picklable.

    Attributes:
        collate_fn: the DataLoader's.
        is_default: collate_fn is torch's own.
        auto_collation: collate_fn gets a list of samples; else one sample, or a batch that the
            dataset made.
        dtype, memory_format: the DataLoader's options.
    """

    collate_fn: Callable[[Any], Any]
    is_default: bool
    auto_collation: bool
    dtype: torch.dtype | None
    memory_format: torch.memory_format

    def __call__(self, data: Any) -> Any:
        data = [self._sample(one) for one in data] if self.auto_collation else self._sample(data)
        return batch_laid_out(self.collate_fn(data), self.memory_format)

    def _sample(self, sample: Any) -> Any:
        if isinstance(sample, torch.Tensor):
            return self._image(sample)
        if isinstance(sample, (tuple, list)) and sample and isinstance(sample[0], torch.Tensor):
            return _with_first(sample, self._image(sample[0]))
        raise TypeError(f"{_EXPECTED}, not a {type(sample).__name__}")

    def _image(self, image: torch.Tensor) -> torch.Tensor:
        is_batch = image.ndim == 4 and not self.auto_collation
        if not (image.ndim == 3 or is_batch) or not (
            image.is_floating_point() or image.dtype is torch.uint8
        ):
            raise TypeError(f"{_EXPECTED}, not {tuple(image.shape)} of {image.dtype}")
        if self.dtype is not None:
            image = image.to(self.dtype)
        if (self.is_default and self.auto_collation) or is_batch:
            return image  # __call__() lays out the batch
        return laid_out(image, self.memory_format)


def formatting_collate(loader: Any, is_default: bool) -> Callable[[Any], Any]:
    """A DataLoader's collate_fn, wrapped if the DataLoader has dtype= or memory_format=."""
    options = loader._feedmill_options()
    dtype, memory_format = options.dtype, options.memory_format
    collate_fn: Callable[[Any], Any] = loader.collate_fn
    if dtype is None and memory_format is torch.contiguous_format:
        return collate_fn
    return FormattingCollate(collate_fn, is_default, loader._auto_collation, dtype, memory_format)


_EXPECTED = (
    "with dtype= or memory_format=, a sample must be an image tensor, or a tuple or list that "
    "begins with one: (channels, height, width), uint8 or a floating-point type"
)
