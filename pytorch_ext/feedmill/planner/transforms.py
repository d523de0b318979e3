"""Reads a transform of torchvision's into a plan, strictly.

Whatever might give other pixels than the native code is refused, with a reason in plain words:
others than those that ``known`` names, and what has no native counterpart.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch.utils.data import default_collate

from feedmill._internals import v2_log_ratio
from feedmill.planner import augmentations
from feedmill.planner.arguments import (
    V1,
    V2,
    filter_of,
    is_size,
    probability,
    range_pair,
    size_pair,
)
from feedmill.planner.augmentations import AUTOMATIC, HOLDERS
from feedmill.planner.equal_augmentations import why_not_ops
from feedmill.planner.equality import resize_order
from feedmill.planner.formats import TORCH_DTYPES, bytes_of
from feedmill.planner.known import (
    AUGMENTATIONS,
    GEOMETRY,
    PIXELS,
    TO_TENSOR,
    check_functions,
    flat,
    module_of,
)
from feedmill.planner.plan import (
    CENTER_CROP,
    MAX_OPS,
    MAX_SIZE_PX,
    OP_NAMES,
    PAD,
    RANDOM_CROP,
    RANDOM_HORIZONTAL_FLIP,
    RANDOM_RESIZED_CROP,
    RESIZE,
    Op,
    Plan,
    Refusal,
    leads_to_one_size,
    max_image_pixels,
)
from feedmill.planner.untouched import type_name, unreadable


@dataclass(frozen=True)
class Step:
    """One of the user's transform objects, and which of the plan's ops it stands for.

    Attributes:
        transform: the object itself.
        kinds: kinds of the ops, in order; empty where it works on pixel values.
        module: the module whose class it is: V1, V2, ...
        children: steps of the transforms that it holds, whose kinds are part of its own.
    """

    transform: Any
    kinds: tuple[int, ...]
    module: str
    children: tuple[Step, ...] = ()

    @property
    def name(self) -> str:
        return type(self.transform).__name__


@dataclass(frozen=True)
class TransformPlan:
    """What was read from a transform.

    Attributes:
        plan: for the native loader; None: there is none, or the transform will be called.
        steps: the transform's objects.
        reasons: all reasons why the transform can't be used; empty if it can.
    """

    plan: Plan | None
    steps: tuple[Step, ...] = ()
    reasons: tuple[str, ...] = ()


def read_transform(
    transform: Any, size: tuple[int, int] | None = None, channels: int = 3
) -> TransformPlan:
    """The plan of a transform as it is now, and its steps; or all reasons why there is none.

    Draws no random number and changes nothing.

    Args:
        size: (height, width) of all images, if they are alike.
        channels: of the images: 3, or 1 for grey ones.
    """
    if transform is None:
        reason = "the dataset has no transform; images would stay PIL images"
        return TransformPlan(None, reasons=(reason,))
    reading = _Reading(size, channels)
    try:
        for one in flat(transform):
            reading.take(one)
        reading.finish()
    except Refusal as refusal:
        reading.refuse(str(refusal))
    except Exception as error:
        reading.refuse(unreadable("the transform", error))
    order = reading.compare(channels)
    if reading.reasons:
        return TransformPlan(None, reasons=tuple(reading.reasons))
    plan = Plan(
        tuple(reading.ops),
        reading.dtype,
        reading.value_table,
        order,
        max_image_pixels(),
        reading.as_image,
    )
    return TransformPlan(plan, tuple(reading.steps))


# ---- reading -------------------------------------------------------------------------------------


@dataclass
class _Reading:
    """What was found so far, from the first transform on."""

    size: tuple[int, int] | None
    channels: int  # as the steps so far give them
    steps: list[Step] = field(default_factory=list)
    ops: list[Op] = field(default_factory=list)
    reasons: list[str] = field(default_factory=list)
    dtype: str = ""
    value_table: bytes | None = None
    as_image: bool = False
    # What the steps so far make of every pixel value; None: pixels are still those of a PIL image.
    ramp: Any = None
    tensor_error: bool = False
    n_resizes: int = 0
    # RandomErasing was taken: behind the ramp's pixels stands what it writes.
    erases: bool = False

    def refuse(self, reason: str) -> None:
        if reason not in self.reasons:
            self.reasons.append(reason)

    def take(self, transform: Any) -> None:
        """The next transform; one that is refused is noted, and reading goes on."""
        try:
            module = module_of(transform)
            name = type(transform).__name__
            if name == "Identity":
                return
            if name == "ImageClassification":
                self._take_preset(transform, module)
            elif self.erases and not (name in PIXELS or name in TO_TENSOR):
                raise Refusal(f"{name} follows RandomErasing")
            elif name == "RandomErasing":
                self._take_erasing(transform, module)
            elif name == "ToPILImage":
                self._take_to_pil(transform, module)
            elif name in GEOMETRY:
                self._take_geometry(transform, name, module)
            elif name in AUGMENTATIONS or name in AUTOMATIC:
                self._take_augmentation(transform, name, module)
            else:
                self._take_pixels(transform, name, module)
        except Refusal as refusal:
            self.refuse(str(refusal))
        except Exception as error:
            self.refuse(unreadable(f"the transform {type_name(type(transform))}", error))

    def _take_geometry(self, transform: Any, name: str, module: str) -> None:
        if self.ramp is not None or self.tensor_error:
            self._check_on_tensor(name, module)
        op = _op_of(transform, name, module)
        self._add_op(op)
        self.steps.append(Step(transform, (op.kind,), module))

    def _take_augmentation(self, transform: Any, name: str, module: str) -> None:
        ops, step = _read_augmentation(transform, self.channels)
        if self.ramp is not None or self.tensor_error:
            self._check_on_tensor(name, module)
            if name not in ("RandomVerticalFlip", "RandomCrop") or any(ops[0].values[:6]):
                raise Refusal(
                    f"{name} follows the conversion to a tensor, where torchvision computes "
                    "otherwise; put it before"
                )
        for op in ops:
            self._add_op(op)
        if name == "Grayscale":
            self.channels = int(ops[0].values[0])
        self.steps.append(step)

    def _take_erasing(self, transform: Any, module: str) -> None:
        if self.tensor_error:
            return
        if self.ramp is None:
            raise Refusal("RandomErasing stands before the conversion to a tensor")
        if type(self.ramp) is not torch.Tensor and module == V1:
            raise Refusal("torchvision.transforms.RandomErasing follows v2.ToImage; use v2's")
        op, values = augmentations.read_erasing(transform, self.channels)
        # What the assignment to a part of an image makes of the values.
        column = self.ramp[..., :1].as_subclass(torch.Tensor).clone()
        column[...] = torch.tensor(values)[:, None, None]
        kind = type(self.ramp)
        self.ramp = torch.cat([self.ramp.as_subclass(torch.Tensor), column], -1).as_subclass(kind)
        self.erases = True
        self._add_op(op)
        self.steps.append(Step(transform, (op.kind,), module))

    def _take_to_pil(self, transform: Any, module: str) -> None:
        if self.tensor_error:
            return
        if self.ramp is None:
            raise Refusal("ToPILImage gets a PIL image already")
        try:
            image = transform(self.ramp)
            same = np.array_equal(np.asarray(image), np.asarray(_ramp(self.channels)))
        except Exception as error:  # whatever it is, torch will raise it at the first sample
            self.tensor_error = True
            raise Refusal(f"the transform fails on an image: {error}") from None
        if not same or image.mode != ("L" if self.channels == 1 else "RGB"):
            raise Refusal("ToPILImage gives other pixels than the image had")
        self.ramp = None
        self.steps.append(Step(transform, (), module))

    def _check_on_tensor(self, name: str, module: str) -> None:
        if self.tensor_error:
            return
        if name in ("Resize", "RandomResizedCrop"):
            # torchvision resizes tensors by another kernel, with other pixels.
            raise Refusal(f"{name} follows the conversion to a tensor; put it before")
        if type(self.ramp) is not torch.Tensor and module == V1:
            raise Refusal(f"torchvision.transforms.{name} follows v2.ToImage; use v2.{name}")
        zeros = self.ramp[..., 0]
        if name == "CenterCrop" and bool(((zeros != 0) | torch.signbit(zeros)).any()):
            raise Refusal("CenterCrop follows Normalize, and pads small images with zeros then")

    def _add_op(self, op: Op) -> None:
        self.ops.append(op)
        self.n_resizes += op.kind in (RESIZE, RANDOM_RESIZED_CROP)

    def _take_preset(self, preset: Any, module: str) -> None:
        """torchvision's ImageClassification: Resize, CenterCrop, to float, Normalize in one."""
        if self.ramp is not None or self.tensor_error:
            raise Refusal("ImageClassification follows the conversion to a tensor")
        size, crop = preset.resize_size, preset.crop_size
        if not isinstance(crop, Sequence) or len(crop) not in (1, 2):
            raise Refusal(f"ImageClassification has crop_size={crop!r}")
        resize = _resize_op(size, None, filter_of(preset, "ImageClassification", V1))
        ramp = self._first_ramp()
        height, width = size_pair((crop[0], crop[-1]), "ImageClassification")
        self._add_op(resize)
        self._add_op(Op(CENTER_CROP, height, width))
        self.steps.append(Step(preset, (RESIZE, CENTER_CROP), module))
        # The object itself, told to leave the ramp's 256 x 1 pixels in place.
        pixels = copy.copy(preset)
        pixels.resize_size, pixels.crop_size = [1], [1, 256]
        self._run_on_ramp(pixels, ramp)

    def _take_pixels(self, transform: Any, name: str, module: str) -> None:
        if name in TO_TENSOR and self.ramp is None:
            ramp = self._first_ramp()
            if name == "ToTensor" and torch.get_default_dtype() is not torch.float32:
                self.tensor_error = True
                raise Refusal(f"torch's default dtype is {torch.get_default_dtype()}")
            self.steps.append(Step(transform, (), module))
            self._run_on_ramp(transform, ramp)
            return
        if self.tensor_error:
            return
        if self.ramp is None:
            raise Refusal(f"{name} stands before the conversion to a tensor")
        if name in ("PILToTensor", "ToTensor") and module == V1:
            raise Refusal(f"{name} follows another conversion to a tensor")
        if name == "Normalize":
            _check_normalize(transform, self.ramp.dtype, self.channels)
        self.steps.append(Step(transform, (), module))
        self._run_on_ramp(transform, self.ramp)

    def _first_ramp(self) -> Any:
        """The ramp for the conversion to a tensor. Without one, what follows can't be judged."""
        try:
            check_functions(any(op.kind >= RANDOM_CROP for op in self.ops))
        except Refusal:
            self.tensor_error = True
            raise
        return _ramp(self.channels)

    def _run_on_ramp(self, transform: Any, ramp: Any) -> None:
        """Exact by construction: the user's own object says what it makes of each pixel value."""
        try:
            with torch.no_grad():
                self.ramp = transform(ramp.clone() if isinstance(ramp, torch.Tensor) else ramp)
        except Exception as error:  # whatever it is, torch will raise it at the first sample
            self.tensor_error = True
            raise Refusal(f"the transform fails on an image: {error}") from None
        shape = (self.channels, 1, 256 + self.erases)
        if not isinstance(self.ramp, torch.Tensor) or tuple(self.ramp.shape) != shape:
            self.tensor_error = True
            raise Refusal(
                f"{type(transform).__name__} does not give an image tensor of {self.channels} "
                f"channel{'s' if self.channels > 1 else ''}"
            )

    def finish(self) -> None:
        """What can be told only when all transforms are known."""
        if self.n_resizes > 1:
            self.refuse("the transform resizes more than once")
        if self.size is not None:
            self._settle_sizes(*self.size)
        elif not leads_to_one_size(self.ops) and not self.reasons:
            self.refuse("the transform does not lead to one size for all images")
        if len(self.ops) > MAX_OPS:
            self.refuse(f"the transform has {len(self.ops)} steps; {MAX_OPS} at most")
        if self.ramp is not None and not self.tensor_error:
            self._finish_pixels(self.ramp)
        elif not self.reasons:
            self.refuse("the transform does not end in a tensor (ToTensor or PILToTensor)")

    def compare(self, channels: int) -> int:
        """Compares what is native with the installed Pillow; returns fm_resize_order.

        Args:
            channels: of the images.
        """
        for reason in why_not_ops(self.ops, channels):
            self.refuse(reason)
        order = 0
        for op in self.ops:
            if op.kind in (RESIZE, RANDOM_RESIZED_CROP):
                try:
                    order = resize_order(op.filter)
                except Refusal as refusal:
                    self.refuse(str(refusal))
        return order

    def _settle_sizes(self, height: int, width: int) -> None:
        """All images have this size: so has the result of every op."""
        for number, op in enumerate(self.ops):
            if op.kind == RESIZE and op.width == 0:
                height, width = _shorter_edge_resized(op, height, width)
                op = self.ops[number] = op._replace(height=height, width=width, max_size=0)
            later = [one.kind for one in self.ops[number + 1 :]]
            pads = op.kind == CENTER_CROP and (op.height > height or op.width > width)
            if pads and (RESIZE in later or RANDOM_RESIZED_CROP in later):
                self.refuse("CenterCrop pads the images before they are resized")
            if op.kind == RANDOM_CROP and not op.values[5]:
                left, top, right, bottom = op.values[:4]
                if op.height > height + top + bottom or op.width > width + left + right:
                    self.refuse("RandomCrop is larger than the images")
            if op.kind == PAD:
                width += int(op.values[0] + op.values[2])
                height += int(op.values[1] + op.values[3])
            elif op.kind in (RESIZE, CENTER_CROP, RANDOM_RESIZED_CROP, RANDOM_CROP):
                height, width = op.height, op.width
            if max(height, width) > MAX_SIZE_PX:
                self.refuse(f"{OP_NAMES[op.kind]} gives images of more than {MAX_SIZE_PX} pixels")

    def _finish_pixels(self, ramp: torch.Tensor) -> None:
        kind = type(ramp)
        self.as_image = kind is not torch.Tensor
        if self.as_image and kind is not getattr(
            sys.modules.get("torchvision.tv_tensors"), "Image", None
        ):
            self.refuse(f"the transform gives a {type_name(kind)}")
        elif ramp.dtype not in TORCH_DTYPES.values() or ramp.device.type != "cpu":
            self.refuse(
                f"the transform gives {ramp.dtype} on {ramp.device}; on the CPU, "
                f"{', '.join(map(str, TORCH_DTYPES.values()))} are native"
            )
        elif type(default_collate([ramp])) is not torch.Tensor:
            self.refuse("torch's default_collate gives something else than a plain tensor")
        else:
            self._make_table(ramp.as_subclass(torch.Tensor))

    def _make_table(self, ramp: torch.Tensor) -> None:
        # The native table has three channels; one channel's is the first.
        ramp = ramp.expand(3, -1, -1)
        if self.erases:
            ramp, erased = ramp[..., :256], ramp[:, 0, 256]
            if not bool(torch.isfinite(erased).all()):
                self.refuse("RandomErasing writes values that are not finite")
            self.ops[-1] = self.ops[-1]._replace(values=tuple(map(float, erased)))
        if ramp.dtype is torch.uint8:
            self.dtype = "uint8"
            if not torch.equal(ramp, torch.arange(256, dtype=torch.uint8).expand_as(ramp)):
                self.refuse("the transform changes uint8 values")
            return
        self.dtype = str(ramp.dtype).removeprefix("torch.")
        if not bool(torch.isfinite(ramp).all()):
            self.refuse("Normalize gives values that are not finite")
        self.value_table = bytes_of(ramp)


def _ramp(n_channels: int) -> Any:
    """A PIL image of 256 x 1 pixels that holds each value once in each channel."""
    from PIL import Image

    values = np.arange(256, dtype=np.uint8)[None]
    return Image.fromarray(values if n_channels == 1 else np.stack([values] * 3, axis=2))


# ---- augmentations -------------------------------------------------------------------------------


def _read_augmentation(
    transform: Any, n_channels: int, depth: int = 0
) -> tuple[list[Op], Step]:
    """The ops of an augmentation, with all that it holds, and the step that stands for them."""
    module = module_of(transform)
    name = type(transform).__name__
    if name not in HOLDERS:
        op = augmentations.read_op(transform, name, module, n_channels)
        return [op], Step(transform, (op.kind,), module)
    inner = transform.transforms
    if type(inner) is torch.nn.ModuleList:
        inner = list(inner)
    if type(inner) not in (list, tuple):
        raise Refusal(f"{name}.transforms is not a list")
    if depth == 8:
        raise Refusal("transforms are nested more than 8 deep")
    parts, steps = [], []
    for one in inner:
        ops, step = _read_child(one, name, n_channels, depth + 1)
        parts.append(ops)
        steps.append(step)
    ops = augmentations.read_holder(transform, name, module, parts)
    return ops, Step(transform, tuple(op.kind for op in ops), module, tuple(steps))


def _read_child(
    transform: Any, holder: str, n_channels: int, depth: int
) -> tuple[list[Op], Step]:
    """A transform that another one holds: a flip, an augmentation that leaves sizes alone, or a
    Compose of such ones."""
    parts = list(flat(transform))
    if len(parts) == 1 and parts[0] is transform:
        module, name = module_of(transform), type(transform).__name__
        if name == "Identity":
            ops = augmentations.group([])
            return ops, Step(transform, (ops[0].kind,), module)
        if name == "RandomHorizontalFlip":
            op = _op_of(transform, name, module)
            return [op], Step(transform, (op.kind,), module)
        if (name not in AUGMENTATIONS and name not in AUTOMATIC) or name == "Grayscale":
            raise Refusal(f"{name} within {holder} is not native")
        ops, step = _read_augmentation(transform, n_channels, depth)
        if ops[0].kind in (RANDOM_CROP, PAD):
            raise Refusal(f"{name} within {holder} is not native, as it changes sizes")
        return ops, step
    children = [_read_child(one, holder, n_channels, depth) for one in parts]
    ops = augmentations.group([op for ops, _ in children for op in ops])
    return ops, Step(transform, tuple(op.kind for op in ops), "", tuple(one for _, one in children))


# ---- geometry ------------------------------------------------------------------------------------


def _op_of(transform: Any, name: str, module: str) -> Op:
    if name == "RandomHorizontalFlip":
        return Op(RANDOM_HORIZONTAL_FLIP, p=probability(transform, name))
    if name == "CenterCrop":
        height, width = size_pair(transform.size, name)
        return Op(CENTER_CROP, height, width)
    if name == "Resize":
        resampling = filter_of(transform, name, module)
        return _resize_op(transform.size, transform.max_size, resampling)
    return _random_resized_crop_op(transform, module)


def _random_resized_crop_op(transform: Any, module: str) -> Op:
    height, width = size_pair(transform.size, "RandomResizedCrop")
    scale = range_pair(transform.scale, "RandomResizedCrop's scale")
    ratio = range_pair(transform.ratio, "RandomResizedCrop's ratio")
    # The native draws are made in float32, where these limits must be ordinary values.
    if scale[0] < 0 or scale[1] > 1e30 or ratio[0] < 1e-30 or ratio[1] > 1e30:
        raise Refusal(f"RandomResizedCrop has scale={scale} and ratio={ratio}")
    if module == V2 and not torch.equal(
        v2_log_ratio(transform), torch.log(torch.tensor(transform.ratio))
    ):
        raise Refusal("RandomResizedCrop's ratio was changed; v2 goes on with the earlier one")
    resampling = filter_of(transform, "RandomResizedCrop", module)
    return Op(RANDOM_RESIZED_CROP, height, width, 0, *scale, *ratio, filter=resampling)


def _resize_op(size: Any, max_size: Any, resampling: int) -> Op:
    if isinstance(size, Sequence) and len(size) == 2:
        if max_size is not None:
            raise Refusal("Resize has both a pair of sizes and max_size")
        height, width = size_pair(size, "Resize")
        return Op(RESIZE, height, width, filter=resampling)
    short = size[0] if isinstance(size, Sequence) and len(size) == 1 else size
    if not is_size(short) or (max_size is not None and not is_size(max_size)):
        raise Refusal(f"Resize has size={size!r} and max_size={max_size!r}")
    if max_size is not None and max_size <= short:
        raise Refusal(f"Resize has max_size={max_size}, not above size={short}")
    return Op(RESIZE, short, max_size=max_size or 0, filter=resampling)


def _shorter_edge_resized(op: Op, height: int, width: int) -> tuple[int, int]:
    """(height, width) of what a Resize to one size makes of an image, as torchvision rounds."""
    short, long = sorted((height, width))
    new_short, new_long = op.height, int(op.height * long / short)
    if op.max_size and new_long > op.max_size:
        new_short, new_long = int(op.max_size * new_short / new_long), op.max_size
    return (new_long, new_short) if height > width else (new_short, new_long)


def _check_normalize(transform: Any, dtype: torch.dtype, n_channels: int) -> None:
    if not dtype.is_floating_point:
        raise Refusal("Normalize needs float pixels; put ToTensor or ConvertImageDtype before it")
    for what in ("mean", "std"):
        try:
            values = torch.as_tensor(getattr(transform, what))
        except (TypeError, ValueError, RuntimeError):
            raise Refusal(f"Normalize's {what} is not a list of numbers") from None
        if values.requires_grad:
            raise Refusal(f"Normalize's {what} requires a gradient")
        if values.ndim > 1 or values.numel() not in (1, n_channels):
            raise Refusal(
                f"Normalize's {what} has shape {tuple(values.shape)}, not ({n_channels},)"
            )
