"""What a transform does to pixel values, from the conversion to a tensor on.

This is not reimplemented: the user's own objects are called once, on a "ramp", an image that holds
each of the 256 pixel values once in each channel. Their result is the plan's value table.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.utils.data import default_collate

from feedmill.planner.arguments import V2
from feedmill.planner.formats import TORCH_DTYPES, bytes_of
from feedmill.planner.known import TO_TENSOR, check_functions
from feedmill.planner.plan import ARRAY, RANDOM_CROP, TENSOR, FloatResize, Op, UnsupportedError
from feedmill.planner.untouched import type_name


@dataclass
class PixelValues:
    """The ramp, as the steps so far change it.

    Attributes:
        channels: of the images after the steps so far.
        ramp: the ramp after the steps so far; None: the images are still PIL images.
        failed: the conversion to a tensor, or a later step, failed. What follows it can't be
            checked.
        erases: RandomErasing was read. Then column 256 of the ramp is the value that it writes.
        noise: a RandomErasing that writes random numbers was read.
        erased: RandomErasing's values in the delivered type, for three channels; set by finish().
        resized: values of the pixels that a float resize gets, float32 (channels, 256); None: none
            was read.
        lit: as ``resized``, of those that Lighting gets.
        normalized: (mean, std) of the Normalize after a float resize or Lighting, each float32
            (channels,).
        gives: as Plan's.
        dtype, value_table, as_image: as Plan's; set by finish().
    """

    channels: int
    ramp: Any = None
    failed: bool = False
    erases: bool = False
    noise: bool = False
    erased: tuple[float, ...] = ()
    dtype: str = ""
    value_table: bytes | None = None
    as_image: bool = False
    resized: torch.Tensor | None = None
    lit: torch.Tensor | None = None
    normalized: tuple[torch.Tensor, torch.Tensor] | None = None
    gives: str = TENSOR

    def new_ramp(self, ops: Sequence[Op]) -> Any:
        """The ramp for the conversion to a tensor. UnsupportedError if a function that the
        transforms call was replaced; then ``failed`` is set, too.

        Args:
            ops: of the steps so far.
        """
        try:
            check_functions(any(op.kind >= RANDOM_CROP for op in ops))
        except UnsupportedError:
            self.failed = True
            raise
        return _ramp(self.channels)

    def read(self, transform: Any, name: str, module: str, ops: Sequence[Op]) -> None:
        """Reads a transform that changes pixel values only. UnsupportedError if it is not
        supported."""
        if name in TO_TENSOR and self.ramp is None:
            ramp = self.new_ramp(ops)
            scales = name in ("ToTensor", "MaybeToTensor")
            if scales and torch.get_default_dtype() is not torch.float32:
                self.failed = True
                raise UnsupportedError(
                    f"torch's default dtype is {torch.get_default_dtype()}; natively it must be "
                    f"torch.float32 for {name}"
                )
            self.gives = ARRAY if name == "ToNumpy" else TENSOR
            self.run(transform, ramp)
            return
        if self.failed:
            return
        if self.ramp is None:
            raise UnsupportedError(f"{name} comes before the conversion to a tensor; put it after")
        if name in ("PILToTensor", "ToTensor", "ToNumpy") and module != V2:
            raise UnsupportedError(f"{name} follows another conversion to a tensor; remove one")
        if name == "Normalize":
            _check_normalize(transform, self.ramp.dtype, self.channels)
        self.apply(transform, name)

    def apply(self, transform: Any, name: str) -> None:
        """Reads a call for a tensor that changes pixel values only. UnsupportedError if it is not
        supported."""
        if self.resized is None and self.lit is None:
            self.run(transform, self.ramp)
            return
        # What a resize of floats, or Lighting, makes of the pixels is not in the ramp.
        before = self.ramp
        self.run(transform, before)
        if name == "Normalize" and self.normalized is None:
            mean, std = (
                torch.as_tensor(getattr(transform, one), dtype=torch.float32).flatten()
                for one in ("mean", "std")
            )
            mean, std = mean.expand(self.channels), std.expand(self.channels)
            self.normalized = mean, std
            before = (before - mean[:, None, None]) / std[:, None, None]
        if before.dtype is not self.ramp.dtype or not torch.equal(before, self.ramp):
            what = "a resize of a float tensor" if self.lit is None else "Lighting"
            raise UnsupportedError(
                f"{name} follows {what}, after which natively only one Normalize may follow; put "
                "it before"
            )

    def resize_floats(self, name: str) -> None:
        """Reads a transform that resizes a tensor of other values than a PIL image's."""
        if self.ramp.dtype is not torch.float32 or self.erases:
            raise UnsupportedError(
                f"{name} follows a conversion to a tensor of {self.ramp.dtype}; natively it must "
                "be torch.float32, or torch.uint8 with the pixel values"
            )
        self.resized = self.ramp.as_subclass(torch.Tensor)[:, 0].clone()

    def light(self) -> None:
        """Reads a Lighting. UnsupportedError if it is not supported."""
        if self.ramp is None:
            raise UnsupportedError("Lighting comes before the conversion to a tensor; put it after")
        if self.resized is not None or self.lit is not None or self.erases:
            raise UnsupportedError(
                "Lighting follows a resize of a float tensor, RandomErasing or another Lighting, "
                "which is not supported natively"
            )
        if type(self.ramp) is not torch.Tensor or self.ramp.dtype is not torch.float32 or (
            self.channels != 3
        ):
            raise UnsupportedError(
                f"Lighting gets a {type_name(type(self.ramp))} of {self.ramp.dtype} with "
                f"{self.channels} channels; natively it must be a torch.Tensor of torch.float32 "
                "with 3"
            )
        self.lit = self.ramp[:, 0].clone()

    def run(self, transform: Any, ramp: Any) -> None:
        """Calls a transform on a ramp, and keeps the result. So the plan's values are exact."""
        try:
            with torch.no_grad():
                ramp = transform(ramp.clone() if isinstance(ramp, torch.Tensor) else ramp)
                self.ramp = torch.from_numpy(ramp.copy()) if self.gives == ARRAY else ramp
        except Exception as error:  # torch's path will raise it at the first sample
            self.failed = True
            raise UnsupportedError(f"the transform fails on an image: {error}") from None
        shape = (self.channels, 1, 256 + self.erases)
        if not isinstance(self.ramp, torch.Tensor) or tuple(self.ramp.shape) != shape:
            self.failed = True
            raise UnsupportedError(
                f"{type(transform).__name__} does not return an image tensor of {self.channels} "
                f"channel{'s' if self.channels > 1 else ''}, which the native path needs"
            )

    def is_unchanged(self) -> bool:
        """Whether images are uint8 tensors with the pixel values of the PIL images."""
        return _is_ramp(self.ramp.as_subclass(torch.Tensor))

    def erase(self, values: Sequence[float]) -> None:
        """Adds RandomErasing's values, one or one for each channel, as a column of the ramp.

        The assignment converts them to the image's type, and later steps change them like pixels.
        """
        column = self.ramp[..., :1].as_subclass(torch.Tensor).clone()
        column[...] = torch.tensor(values)[:, None, None]
        kind = type(self.ramp)
        self.ramp = torch.cat([self.ramp.as_subclass(torch.Tensor), column], -1).as_subclass(kind)
        self.erases = True

    def add_noise(self, as_image: bool) -> None:
        """Notes that RandomErasing writes numbers with the standard normal distribution.
        UnsupportedError if the image can't hold them as they are drawn.

        Args:
            as_image: the tensor may be a tv_tensors.Image.
        """
        is_plain = type(self.ramp) is torch.Tensor
        if not (is_plain or as_image) or self.ramp.dtype is not torch.float32:
            raise UnsupportedError(
                f"RandomErasing writes random numbers to a tensor of {self.ramp.dtype}, which is "
                "not supported natively; it must be a plain tensor of torch.float32"
            )
        self.noise = True

    def back_to_pil(self, transform: Any) -> None:
        """Reads a ToPILImage. UnsupportedError unless it restores the image that was converted to
        a tensor."""
        if self.resized is not None:
            raise UnsupportedError("ToPILImage follows a resize of a float tensor")
        try:
            image = transform(self.ramp)
            same = np.array_equal(np.asarray(image), np.asarray(_ramp(self.channels)))
        except Exception as error:  # torch's path will raise it at the first sample
            self.failed = True
            raise UnsupportedError(f"the transform fails on an image: {error}") from None
        if not same or image.mode != ("L" if self.channels == 1 else "RGB"):
            raise UnsupportedError(
                "ToPILImage is supported natively only if it returns the pixels that the image had "
                "before its conversion to a tensor"
            )
        self.ramp = None

    def finish(self) -> list[str]:
        """Makes the value table. Returns reasons against the native path."""
        ramp = self.ramp
        kind = type(ramp)
        self.as_image = kind is not torch.Tensor
        if self.as_image and kind is not getattr(
            sys.modules.get("torchvision.tv_tensors"), "Image", None
        ):
            return [
                f"the transform returns a {type_name(kind)}; natively it must be a torch.Tensor or "
                "a tv_tensors.Image"
            ]
        if ramp.dtype not in TORCH_DTYPES.values() or ramp.device.type != "cpu":
            return [
                f"the transform returns a tensor of {ramp.dtype} on {ramp.device}; natively it "
                f"must be on the CPU, and of {', '.join(map(str, TORCH_DTYPES.values()))}"
            ]
        if type(default_collate([ramp])) is not torch.Tensor:
            return [
                "torch's default_collate was changed: it does not return a plain tensor for the "
                "transform's result"
            ]
        return self._make_table(ramp.as_subclass(torch.Tensor))

    def _make_table(self, ramp: torch.Tensor) -> list[str]:
        # The native table always has three channels; grayscale images use the first.
        ramp = ramp.expand(3, -1, -1)
        reasons = []
        if self.resized is not None and ramp.dtype is not torch.float32:
            reasons.append(
                f"the transform resizes a float tensor and returns {ramp.dtype}; natively it must "
                "be torch.float32"
            )
        if self.erases:
            ramp, erased = ramp[..., :256], ramp[:, 0, 256]
            if not bool(torch.isfinite(erased).all()):
                reasons.append("RandomErasing's value is not finite in the tensor's type")
            self.erased = tuple(map(float, erased))
        if ramp.dtype is torch.uint8:
            self.dtype = "uint8"
            if not _is_ramp(ramp):
                reasons.append(
                    "the transform changes uint8 values, which is not supported natively; convert "
                    "them to a floating-point type before"
                )
            return reasons
        self.dtype = str(ramp.dtype).removeprefix("torch.")
        if not bool(torch.isfinite(ramp).all()):
            reasons.append("Normalize returns values that are not finite; check its std")
        if self.lit is not None:
            self.value_table = bytes_of(self.lit)
        elif self.resized is None:
            self.value_table = bytes_of(ramp)
        return reasons

    def float_resize(self, given: FloatResize) -> FloatResize:
        """Completes what equality.float_resize() returned by the values that are resized."""
        if self.resized is None:
            return given
        given = given._replace(values=bytes_of(self.resized.expand(3, -1)))
        if self.normalized is None:
            return given
        mean, std = (tuple(map(float, one.expand(3))) for one in self.normalized)
        return given._replace(mean=mean, std=std)


def _ramp(n_channels: int) -> Any:
    """A ramp: a PIL image, 256 pixels wide and 1 high, with each value once in each channel."""
    from PIL import Image

    values = np.arange(256, dtype=np.uint8)[None]
    return Image.fromarray(values if n_channels == 1 else np.stack([values] * 3, axis=2))


def _is_ramp(image: torch.Tensor) -> bool:
    """Whether a tensor of [channels, 1, 256] has the ramp's values."""
    values = torch.arange(256, dtype=torch.uint8)
    return image.dtype is torch.uint8 and torch.equal(image, values.expand_as(image))


def _check_normalize(transform: Any, dtype: torch.dtype, n_channels: int) -> None:
    if not dtype.is_floating_point:
        raise UnsupportedError(
            "Normalize needs float pixels; put ToTensor or ConvertImageDtype before it"
        )
    for what in ("mean", "std"):
        try:
            values = torch.as_tensor(getattr(transform, what))
        except (TypeError, ValueError, RuntimeError):
            raise UnsupportedError(f"Normalize's {what} is not a list of numbers") from None
        if values.requires_grad:
            raise UnsupportedError(f"Normalize's {what} requires a gradient; detach it")
        if values.ndim > 1 or values.numel() not in (1, n_channels):
            raise UnsupportedError(
                f"Normalize's {what} has shape {tuple(values.shape)}; it must be ({n_channels},)"
            )
