"""Translates a torchvision transform into a plan for the native loader.

A transform is supported only if the native code is sure to give the same pixels. ``known`` has the
supported classes. Arguments without a native counterpart are not supported, either. explain() gives
the reasons.

What a transform does to pixel values, from the conversion to a tensor on, is not reimplemented: the
user's own objects are called once, on a "ramp", an image that holds each of the 256 pixel values
once in each channel. Their result is the plan's value table.
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
from feedmill.planner.augmentations import AUTOMATIC, RANDOM_CONTAINERS
from feedmill.planner.equal_augmentations import why_not_ops
from feedmill.planner.equality import resize_order
from feedmill.planner.formats import TORCH_DTYPES, bytes_of
from feedmill.planner.known import (
    AUGMENTATIONS,
    GEOMETRY,
    PIXELS,
    TO_TENSOR,
    check_functions,
    flatten,
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
    UnsupportedError,
    leads_to_one_size,
    max_image_pixels,
    unsupported_argument,
)
from feedmill.planner.untouched import type_name, unreadable


@dataclass(frozen=True)
class Step:
    """One of the user's transform objects, and the ops of the plan that it became.

    Attributes:
        transform: the object itself.
        kinds: the ops' kinds, in order; empty if the object changes pixel values only.
        module: the module that defines the object's class: V1, V2, ...
        children: steps of the transforms in a container; their kinds are part of the container's.
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
    """The result of read_transform().

    Attributes:
        plan: for the native loader; None: not supported, or hybrid mode will call the transform.
        steps: the transform's objects.
        reasons: all reasons why the transform is not supported; empty if it is.
    """

    plan: Plan | None
    steps: tuple[Step, ...] = ()
    reasons: tuple[str, ...] = ()


def read_transform(
    transform: Any, size: tuple[int, int] | None = None, channels: int = 3
) -> TransformPlan:
    """Translates a transform, as it is now, into a plan.

    Draws no random number and changes nothing.

    Args:
        size: (height, width), if all images have the same size.
        channels: of the images: 3, or 1 for grayscale.
    """
    if transform is None:
        reason = (
            "the dataset has no transform, so its samples are PIL images; add one that ends in "
            "ToTensor or PILToTensor"
        )
        return TransformPlan(None, reasons=(reason,))
    reader = _TransformReader(size, channels)
    try:
        for one in flatten(transform):
            reader.read(one)
        reader.finish()
    except UnsupportedError as error:
        reader.add_reason(str(error))
    except Exception as error:
        reader.add_reason(unreadable("the transform", error))
    order = reader.compare(channels)
    if reader.reasons:
        return TransformPlan(None, reasons=tuple(reader.reasons))
    plan = Plan(
        tuple(reader.ops),
        reader.dtype,
        reader.value_table,
        order,
        max_image_pixels(),
        reader.as_image,
    )
    return TransformPlan(plan, tuple(reader.steps))


# ---- reading -------------------------------------------------------------------------------------


@dataclass
class _TransformReader:
    """Reads transforms in order, and collects the ops of the plan and the reasons against it.

    Attributes:
        size: (height, width) of all images; None: they may differ.
        channels: of the images after the steps so far.
        dtype, value_table, as_image: as Plan's.
        ramp: the ramp after the steps so far; None: no step has converted images to tensors yet.
        tensor_error: the conversion to a tensor, or a later step, failed. What follows it can't be
            checked.
        n_resizes: steps so far that resize.
        erases: RandomErasing was read. Then column 256 of the ramp is the value that it writes.
    """

    size: tuple[int, int] | None
    channels: int
    steps: list[Step] = field(default_factory=list)
    ops: list[Op] = field(default_factory=list)
    reasons: list[str] = field(default_factory=list)
    dtype: str = ""
    value_table: bytes | None = None
    as_image: bool = False
    ramp: Any = None
    tensor_error: bool = False
    n_resizes: int = 0
    erases: bool = False

    def add_reason(self, reason: str) -> None:
        if reason not in self.reasons:
            self.reasons.append(reason)

    def read(self, transform: Any) -> None:
        """Reads the next transform. If it is not supported, adds the reason."""
        try:
            module = module_of(transform)
            name = type(transform).__name__
            if name == "Identity":
                return
            if name == "ImageClassification":
                self._read_preset(transform, module)
            elif self.erases and not (name in PIXELS or name in TO_TENSOR):
                raise UnsupportedError(
                    f"{name} follows RandomErasing, which is not supported natively; put it before "
                    "RandomErasing"
                )
            elif name == "RandomErasing":
                self._read_erasing(transform, module)
            elif name == "ToPILImage":
                self._read_to_pil(transform, module)
            elif name in GEOMETRY:
                self._read_geometry(transform, name, module)
            elif name in AUGMENTATIONS or name in AUTOMATIC:
                self._read_augmentation(transform, name, module)
            else:
                self._read_pixels(transform, name, module)
        except UnsupportedError as error:
            self.add_reason(str(error))
        except Exception as error:
            self.add_reason(unreadable(f"the transform {type_name(type(transform))}", error))

    def _read_geometry(self, transform: Any, name: str, module: str) -> None:
        if self.ramp is not None or self.tensor_error:
            self._check_on_tensor(name, module)
        op = _op_of(transform, name, module)
        self._add_op(op)
        self.steps.append(Step(transform, (op.kind,), module))

    def _read_augmentation(self, transform: Any, name: str, module: str) -> None:
        ops, step = _augmentation_ops(transform, self.channels)
        if self.ramp is not None or self.tensor_error:
            self._check_on_tensor(name, module)
            if name not in ("RandomVerticalFlip", "RandomCrop") or any(ops[0].values[:6]):
                raise UnsupportedError(
                    f"{name} follows the conversion to a tensor, which is not supported natively, "
                    "as torchvision computes other pixels for tensors; put it before the conversion"
                )
        for op in ops:
            self._add_op(op)
        if name == "Grayscale":
            self.channels = int(ops[0].values[0])
        self.steps.append(step)

    def _read_erasing(self, transform: Any, module: str) -> None:
        if self.tensor_error:
            return
        if self.ramp is None:
            raise UnsupportedError(
                "RandomErasing comes before the conversion to a tensor; put it after"
            )
        if type(self.ramp) is not torch.Tensor and module == V1:
            raise UnsupportedError(
                "torchvision.transforms.RandomErasing follows v2.ToImage, which is not supported "
                "natively; use v2.RandomErasing"
            )
        op, values = augmentations.read_erasing(transform, self.channels)
        # Assigning the values to a column of the ramp converts them to the image's type.
        column = self.ramp[..., :1].as_subclass(torch.Tensor).clone()
        column[...] = torch.tensor(values)[:, None, None]
        kind = type(self.ramp)
        self.ramp = torch.cat([self.ramp.as_subclass(torch.Tensor), column], -1).as_subclass(kind)
        self.erases = True
        self._add_op(op)
        self.steps.append(Step(transform, (op.kind,), module))

    def _read_to_pil(self, transform: Any, module: str) -> None:
        if self.tensor_error:
            return
        if self.ramp is None:
            raise UnsupportedError("ToPILImage gets a PIL image already; remove it")
        try:
            image = transform(self.ramp)
            same = np.array_equal(np.asarray(image), np.asarray(_ramp(self.channels)))
        except Exception as error:  # torch's path will raise it at the first sample
            self.tensor_error = True
            raise UnsupportedError(f"the transform fails on an image: {error}") from None
        if not same or image.mode != ("L" if self.channels == 1 else "RGB"):
            raise UnsupportedError(
                "ToPILImage is supported natively only if it returns the pixels that the image had "
                "before its conversion to a tensor"
            )
        self.ramp = None
        self.steps.append(Step(transform, (), module))

    def _check_on_tensor(self, name: str, module: str) -> None:
        if self.tensor_error:
            return
        if name in ("Resize", "RandomResizedCrop"):
            raise UnsupportedError(
                f"{name} follows the conversion to a tensor, which is not supported natively, as "
                "torchvision resizes tensors with another kernel than PIL images; put it before "
                "the conversion"
            )
        if type(self.ramp) is not torch.Tensor and module == V1:
            raise UnsupportedError(
                f"torchvision.transforms.{name} follows v2.ToImage, which is not supported "
                f"natively; use v2.{name}"
            )
        zeros = self.ramp[..., 0]
        if name == "CenterCrop" and bool(((zeros != 0) | torch.signbit(zeros)).any()):
            raise UnsupportedError(
                "CenterCrop follows Normalize, which is not supported natively, as it pads small "
                "images with zeros, which are not black then; put it before Normalize"
            )

    def _add_op(self, op: Op) -> None:
        self.ops.append(op)
        self.n_resizes += op.kind in (RESIZE, RANDOM_RESIZED_CROP)

    def _read_preset(self, preset: Any, module: str) -> None:
        """Reads torchvision's ImageClassification, which is Resize, CenterCrop, conversion to float
        and Normalize in one object."""
        if self.ramp is not None or self.tensor_error:
            raise UnsupportedError(
                "ImageClassification follows a conversion to a tensor, which is not supported "
                "natively; remove the conversion"
            )
        size, crop = preset.resize_size, preset.crop_size
        if not isinstance(crop, Sequence) or len(crop) not in (1, 2):
            raise unsupported_argument(
                "ImageClassification", "crop_size", crop, "a list of one or two ints"
            )
        resize = _resize_op(size, None, filter_of(preset, "ImageClassification", V1))
        ramp = self._first_ramp()
        height, width = size_pair((crop[0], crop[-1]), "ImageClassification")
        self._add_op(resize)
        self._add_op(Op(CENTER_CROP, height, width))
        self.steps.append(Step(preset, (RESIZE, CENTER_CROP), module))
        # A copy of the user's object, whose resize and crop leave the ramp as it is.
        pixels = copy.copy(preset)
        pixels.resize_size, pixels.crop_size = [1], [1, 256]
        self._run_on_ramp(pixels, ramp)

    def _read_pixels(self, transform: Any, name: str, module: str) -> None:
        if name in TO_TENSOR and self.ramp is None:
            ramp = self._first_ramp()
            if name == "ToTensor" and torch.get_default_dtype() is not torch.float32:
                self.tensor_error = True
                raise UnsupportedError(
                    f"torch's default dtype is {torch.get_default_dtype()}; natively it must be "
                    "torch.float32 for ToTensor"
                )
            self.steps.append(Step(transform, (), module))
            self._run_on_ramp(transform, ramp)
            return
        if self.tensor_error:
            return
        if self.ramp is None:
            raise UnsupportedError(f"{name} comes before the conversion to a tensor; put it after")
        if name in ("PILToTensor", "ToTensor") and module == V1:
            raise UnsupportedError(f"{name} follows another conversion to a tensor; remove one")
        if name == "Normalize":
            _check_normalize(transform, self.ramp.dtype, self.channels)
        self.steps.append(Step(transform, (), module))
        self._run_on_ramp(transform, self.ramp)

    def _first_ramp(self) -> Any:
        """The ramp for the conversion to a tensor. UnsupportedError if a function that the
        transforms call was replaced; then ``tensor_error`` is set, too."""
        try:
            check_functions(any(op.kind >= RANDOM_CROP for op in self.ops))
        except UnsupportedError:
            self.tensor_error = True
            raise
        return _ramp(self.channels)

    def _run_on_ramp(self, transform: Any, ramp: Any) -> None:
        """Calls a transform on a ramp, and keeps the result. So the plan's values are exact."""
        try:
            with torch.no_grad():
                self.ramp = transform(ramp.clone() if isinstance(ramp, torch.Tensor) else ramp)
        except Exception as error:  # torch's path will raise it at the first sample
            self.tensor_error = True
            raise UnsupportedError(f"the transform fails on an image: {error}") from None
        shape = (self.channels, 1, 256 + self.erases)
        if not isinstance(self.ramp, torch.Tensor) or tuple(self.ramp.shape) != shape:
            self.tensor_error = True
            raise UnsupportedError(
                f"{type(transform).__name__} does not return an image tensor of {self.channels} "
                f"channel{'s' if self.channels > 1 else ''}, which the native path needs"
            )

    def finish(self) -> None:
        """Checks that concern the transform as a whole; makes the value table."""
        if self.n_resizes > 1:
            self.add_reason("the transform resizes more than once; natively it may do so once")
        if self.size is not None:
            self._settle_sizes(*self.size)
        elif not leads_to_one_size(self.ops) and not self.reasons:
            self.add_reason(
                "the transform does not lead to one size for all images; end it with CenterCrop, "
                "RandomCrop, RandomResizedCrop or Resize to a (height, width)"
            )
        if len(self.ops) > MAX_OPS:
            self.add_reason(
                f"the transform has {len(self.ops)} steps; the native limit is {MAX_OPS}"
            )
        if self.ramp is not None and not self.tensor_error:
            self._finish_pixels(self.ramp)
        elif not self.reasons:
            self.add_reason(
                "the transform does not end in a tensor; add ToTensor or PILToTensor"
            )

    def compare(self, channels: int) -> int:
        """Compares the results of the native ops with those of the installed Pillow.

        Args:
            channels: of the images before the transform.

        Returns:
            fm_resize_order of the installed Pillow; 0 if the transform does not resize.
        """
        for reason in why_not_ops(self.ops, channels):
            self.add_reason(reason)
        order = 0
        for op in self.ops:
            if op.kind in (RESIZE, RANDOM_RESIZED_CROP):
                try:
                    order = resize_order(op.filter)
                except UnsupportedError as error:
                    self.add_reason(str(error))
        return order

    def _settle_sizes(self, height: int, width: int) -> None:
        """For images that all have this size: determines the size after each op, and completes and
        checks the ops that depend on it."""
        for number, op in enumerate(self.ops):
            if op.kind == RESIZE and op.width == 0:
                height, width = _shorter_edge_resized(op, height, width)
                op = self.ops[number] = op._replace(height=height, width=width, max_size=0)
            later = [one.kind for one in self.ops[number + 1 :]]
            pads = op.kind == CENTER_CROP and (op.height > height or op.width > width)
            if pads and (RESIZE in later or RANDOM_RESIZED_CROP in later):
                self.add_reason(
                    "CenterCrop pads images that are resized later, which is not supported "
                    "natively; use Pad instead"
                )
            if op.kind == RANDOM_CROP and not op.values[5]:
                left, top, right, bottom = op.values[:4]
                if op.height > height + top + bottom or op.width > width + left + right:
                    self.add_reason(
                        "RandomCrop is larger than the images; pass padding= or pad_if_needed=True"
                    )
            if op.kind == PAD:
                width += int(op.values[0] + op.values[2])
                height += int(op.values[1] + op.values[3])
            elif op.kind in (RESIZE, CENTER_CROP, RANDOM_RESIZED_CROP, RANDOM_CROP):
                height, width = op.height, op.width
            if max(height, width) > MAX_SIZE_PX:
                self.add_reason(
                    f"{OP_NAMES[op.kind]} returns images wider or higher than {MAX_SIZE_PX} "
                    "pixels, the native limit"
                )

    def _finish_pixels(self, ramp: torch.Tensor) -> None:
        kind = type(ramp)
        self.as_image = kind is not torch.Tensor
        if self.as_image and kind is not getattr(
            sys.modules.get("torchvision.tv_tensors"), "Image", None
        ):
            self.add_reason(
                f"the transform returns a {type_name(kind)}; natively it must be a torch.Tensor or "
                "a tv_tensors.Image"
            )
        elif ramp.dtype not in TORCH_DTYPES.values() or ramp.device.type != "cpu":
            self.add_reason(
                f"the transform returns a tensor of {ramp.dtype} on {ramp.device}; natively it "
                f"must be on the CPU, and of {', '.join(map(str, TORCH_DTYPES.values()))}"
            )
        elif type(default_collate([ramp])) is not torch.Tensor:
            self.add_reason(
                "torch's default_collate was changed: it does not return a plain tensor for the "
                "transform's result"
            )
        else:
            self._make_table(ramp.as_subclass(torch.Tensor))

    def _make_table(self, ramp: torch.Tensor) -> None:
        # The native table always has three channels; grayscale images use the first.
        ramp = ramp.expand(3, -1, -1)
        if self.erases:
            ramp, erased = ramp[..., :256], ramp[:, 0, 256]
            if not bool(torch.isfinite(erased).all()):
                self.add_reason("RandomErasing's value is not finite in the tensor's type")
            self.ops[-1] = self.ops[-1]._replace(values=tuple(map(float, erased)))
        if ramp.dtype is torch.uint8:
            self.dtype = "uint8"
            if not torch.equal(ramp, torch.arange(256, dtype=torch.uint8).expand_as(ramp)):
                self.add_reason(
                    "the transform changes uint8 values, which is not supported natively; convert "
                    "them to a floating-point type before"
                )
            return
        self.dtype = str(ramp.dtype).removeprefix("torch.")
        if not bool(torch.isfinite(ramp).all()):
            self.add_reason("Normalize returns values that are not finite; check its std")
        self.value_table = bytes_of(ramp)


def _ramp(n_channels: int) -> Any:
    """A ramp: a PIL image, 256 pixels wide and 1 high, with each value once in each channel."""
    from PIL import Image

    values = np.arange(256, dtype=np.uint8)[None]
    return Image.fromarray(values if n_channels == 1 else np.stack([values] * 3, axis=2))


# ---- augmentations -------------------------------------------------------------------------------


def _augmentation_ops(
    transform: Any, n_channels: int, depth: int = 0
) -> tuple[list[Op], Step]:
    """The ops of an augmentation, including those of the transforms in it, and its step."""
    module = module_of(transform)
    name = type(transform).__name__
    if name not in RANDOM_CONTAINERS:
        op = augmentations.read_op(transform, name, module, n_channels)
        return [op], Step(transform, (op.kind,), module)
    inner = transform.transforms
    if type(inner) is torch.nn.ModuleList:
        inner = list(inner)
    if type(inner) not in (list, tuple):
        raise UnsupportedError(f"{name}.transforms is not a list or tuple")
    if depth == 8:
        raise UnsupportedError("transforms are nested more than 8 levels deep, the native limit")
    parts, steps = [], []
    for one in inner:
        ops, step = _read_child(one, name, n_channels, depth + 1)
        parts.append(ops)
        steps.append(step)
    ops = augmentations.read_container(transform, name, parts)
    return ops, Step(transform, tuple(op.kind for op in ops), module, tuple(steps))


def _read_child(
    transform: Any, container: str, n_channels: int, depth: int
) -> tuple[list[Op], Step]:
    """A transform in a RandomApply, RandomChoice or RandomOrder: a flip, an augmentation that does
    not change the size, or a Compose of these."""
    parts = list(flatten(transform))
    if len(parts) == 1 and parts[0] is transform:
        module, name = module_of(transform), type(transform).__name__
        if name == "Identity":
            ops = augmentations.group([])
            return ops, Step(transform, (ops[0].kind,), module)
        if name == "RandomHorizontalFlip":
            op = _op_of(transform, name, module)
            return [op], Step(transform, (op.kind,), module)
        if (name not in AUGMENTATIONS and name not in AUTOMATIC) or name == "Grayscale":
            raise UnsupportedError(f"{name} within {container} is not supported natively")
        ops, step = _augmentation_ops(transform, n_channels, depth)
        if ops[0].kind in (RANDOM_CROP, PAD):
            raise UnsupportedError(
                f"{name} within {container} is not supported natively, as it changes sizes"
            )
        return ops, step
    children = [_read_child(one, container, n_channels, depth) for one in parts]
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
    # The native code samples the crop in float32, where these limits must be normal numbers.
    if scale[0] < 0 or scale[1] > 1e30:
        raise unsupported_argument("RandomResizedCrop", "scale", scale, "from 0 to 1e30")
    if ratio[0] < 1e-30 or ratio[1] > 1e30:
        raise unsupported_argument("RandomResizedCrop", "ratio", ratio, "from 1e-30 to 1e30")
    if module == V2 and not torch.equal(
        v2_log_ratio(transform), torch.log(torch.tensor(transform.ratio))
    ):
        raise UnsupportedError(
            "RandomResizedCrop's attribute ratio was changed after its construction, which v2 "
            "ignores; make a new RandomResizedCrop"
        )
    resampling = filter_of(transform, "RandomResizedCrop", module)
    return Op(RANDOM_RESIZED_CROP, height, width, 0, *scale, *ratio, filter=resampling)


def _resize_op(size: Any, max_size: Any, resampling: int) -> Op:
    if isinstance(size, Sequence) and len(size) == 2:
        if max_size is not None:
            raise UnsupportedError("Resize has a pair of sizes and max_size; pass only one of them")
        height, width = size_pair(size, "Resize")
        return Op(RESIZE, height, width, filter=resampling)
    short = size[0] if isinstance(size, Sequence) and len(size) == 1 else size
    if not is_size(short) or (max_size is not None and not is_size(max_size)):
        raise UnsupportedError(
            f"Resize with size={size!r} and max_size={max_size!r} is not supported natively; both "
            f"must be ints from 1 to {MAX_SIZE_PX}"
        )
    if max_size is not None and max_size <= short:
        raise unsupported_argument("Resize", "max_size", max_size, f"larger than size={short}")
    return Op(RESIZE, short, max_size=max_size or 0, filter=resampling)


def _shorter_edge_resized(op: Op, height: int, width: int) -> tuple[int, int]:
    """(height, width) after a Resize of the shorter edge, rounded like torchvision does."""
    short, long = sorted((height, width))
    new_short, new_long = op.height, int(op.height * long / short)
    if op.max_size and new_long > op.max_size:
        new_short, new_long = int(op.max_size * new_short / new_long), op.max_size
    return (new_long, new_short) if height > width else (new_short, new_long)


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
