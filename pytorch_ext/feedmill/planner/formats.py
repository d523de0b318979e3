"""Type and layout of delivered images: what DataLoader's dtype= and memory_format= ask for.

Natively they are part of the plan. On torch's path, and where the user's own objects make a sample,
they are applied here, so that a script gets the same tensors either way.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from feedmill.planner.plan import Plan

TORCH_DTYPES = {
    "uint8": torch.uint8,
    "float32": torch.float32,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
}
# To look at values as bits, by their size: numpy has no bfloat16.
INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32}
# What dtype= may be, besides None.
IMAGE_DTYPES = (torch.float32, torch.float16, torch.bfloat16)
MEMORY_FORMATS = (torch.contiguous_format, torch.channels_last)


# ---- natively ------------------------------------------------------------------------------------


def formatted(plan: Plan, dtype: torch.dtype | None, memory_format: torch.memory_format) -> Plan:
    """The plan of a transform with a DataLoader's options applied to it."""
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


def bytes_of(values: torch.Tensor) -> bytes:
    """A tensor's values in C order."""
    return values.contiguous().view(torch.uint8).numpy().tobytes()


def as_planned(image: Any, plan: Plan) -> Any:
    """What the user's own transform gave for a sample, in the type that is delivered. Anything but
    a tensor of the transform's type stays as it is, to be found different."""
    given = TORCH_DTYPES.get(plan.transform_dtype)
    if isinstance(image, torch.Tensor) and image.dtype is given:
        return image.to(TORCH_DTYPES[plan.dtype])
    return image


def laid_out(image: torch.Tensor, memory_format: torch.memory_format) -> torch.Tensor:
    """A sample's image (3, height, width) with the strides that it has in a batch of that format.
    Subclasses of Tensor stay what they are."""
    return image[None].contiguous(memory_format=memory_format)[0].as_subclass(type(image))


# ---- on torch's path -----------------------------------------------------------------------------


def batch_laid_out(data: Any, memory_format: torch.memory_format) -> Any:
    """What a collate_fn gave, with its images in that format: itself or, of a tuple or list, its
    first element, if that is a tensor of four dimensions."""
    if memory_format is torch.contiguous_format:
        return data
    if isinstance(data, torch.Tensor):
        return data.contiguous(memory_format=memory_format) if data.ndim == 4 else data
    if isinstance(data, (tuple, list)) and data and isinstance(data[0], torch.Tensor):
        return _with_first(data, batch_laid_out(data[0], memory_format))
    return data


def _with_first(sequence: Sequence[Any], first: Any) -> Any:
    """The same tuple, namedtuple or list with another first element."""
    if isinstance(sequence, list):
        values = copy.copy(sequence)
        values[0] = first
        return values
    kind = type(sequence)
    make = tuple if kind is tuple else getattr(kind, "_make", None)
    if make is None:
        raise TypeError(f"{_EXPECTED}; a {kind.__name__} can't be made anew with another image")
    return make([first, *sequence[1:]])


@dataclass(frozen=True)
class FormattingCollate:
    """A DataLoader's collate_fn on torch's path, in whose workers it runs.

    Attributes:
        collate_fn: the DataLoader's.
        is_default: it is torch's own.
        auto_collation: it gets a list of samples; else one sample, or a batch made by the dataset.
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
            return image  # what becomes of it is laid out
        return laid_out(image, self.memory_format)


def formatting_collate(loader: Any, is_default: bool) -> Callable[[Any], Any]:
    """A DataLoader's collate_fn, with its dtype and memory_format applied to the samples if it has
    such."""
    options = loader._feedmill_options()
    dtype, memory_format = options.dtype, options.memory_format
    collate_fn: Callable[[Any], Any] = loader.collate_fn
    if dtype is None and memory_format is torch.contiguous_format:
        return collate_fn
    return FormattingCollate(collate_fn, is_default, loader._auto_collation, dtype, memory_format)


_EXPECTED = (
    "dtype= and memory_format= need samples that are, or as a tuple or list begin with, an image "
    "tensor: (channels, height, width) of uint8 or a floating-point type"
)
