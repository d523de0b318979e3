"""Translates a torchvision transform into a plan for the native loader.

A transform is supported only if the native code is sure to give the same pixels. ``known`` has the
supported classes. Arguments without a native counterpart are not supported, either. explain() gives
the reasons. ``steps`` translates a single transform object, ``pixel_values`` the conversion to a
tensor and what follows it.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch

from feedmill.planner import (
    equal_tensor_colors,
    equal_tensor_warps,
    tensor_colors,
    timm_objects,
)
from feedmill.planner.arguments import (
    V1,
    V2,
    filter_of,
    size_pair,
)
from feedmill.planner.arithmetic import TensorCall
from feedmill.planner.augmentations import AUTOMATIC, read_erasing, read_erasing_of_timm
from feedmill.planner.drawing import STEPS, Chance, PilCall
from feedmill.planner.efficient_crops import EfficientCrop
from feedmill.planner.equal_augmentations import why_not_ops
from feedmill.planner.equality import float_resize, resize_order
from feedmill.planner.file_loaders import (
    GIVEN_ANY,
    GIVEN_ARRAY,
    GIVEN_REVERSED,
    GIVEN_RGB,
    GIVEN_TENSOR,
)
from feedmill.planner.halving_crops import HalvingCrop
from feedmill.planner.image_calls import Convert, ImageState
from feedmill.planner.known import (
    AUGMENTATIONS,
    GEOMETRY,
    PIXELS,
    TO_TENSOR,
    check_resize_of_tensors,
    flatten,
    module_of,
)
from feedmill.planner.lighting import Lighting, with_normalize
from feedmill.planner.numpy_calls import FROM_NUMPY, TO_ARRAY, ArrayCall, ArrayCalls, why_not
from feedmill.planner.picking import Choice
from feedmill.planner.pixel_values import PixelValues
from feedmill.planner.plan import (
    ARRAY,
    CENTER_CROP,
    FILTER_NAMES,
    KINDS,
    LIGHTING,
    MAX_OPS,
    MAX_SIZE_PX,
    NO_TENSOR,
    OP_NAMES,
    PIL,
    RANDOM_CROP,
    RANDOM_HORIZONTAL_FLIP,
    RANDOM_RESIZED_CROP,
    RESIZE,
    RESIZE_KEEP_RATIO,
    RESIZES,
    TORCHS_FLOAT_RESIZE,
    FloatResize,
    Op,
    Plan,
    UnsupportedError,
    final_size,
    max_image_pixels,
    second_filter_of,
    size_after,
    unsupported_argument,
    with_sizes,
)
from feedmill.planner.steps import Step, augmentation_ops, call_ops, geometry_op, resize_op
from feedmill.planner.untouched import type_name, unreadable
from feedmill.planner.views import MAX_VIEW_OPS, views_in

# What may make a PIL image or a tensor of an array.
_OF_ARRAYS = ("ToPILImage", "ToTensor", "ToImage")


@dataclass(frozen=True)
class TransformPlan:
    """The result of read_transform().

    Attributes:
        plan: for the native loader; None: not supported, or hybrid mode will call the transform.
        steps: the transform's objects.
        views: those of each image, if the transform makes several; `steps` is empty then.
        converts: it first converts images of any mode to RGB. The steps are to be given the
            converted image.
        reasons: all reasons why the transform is not supported; empty if it is.
    """

    plan: Plan | None
    steps: tuple[Step, ...] = ()
    reasons: tuple[str, ...] = ()
    views: tuple[tuple[Step, ...], ...] = ()
    converts: bool = False


def converts_first(transforms: Sequence[Any]) -> bool:
    """Whether transforms, applied in order, first convert a PIL image of any mode to RGB."""
    try:
        return bool(transforms) and next(flatten(transforms[0]), None) == Convert("RGB")
    except Exception:  # read_transforms() gives the reason
        return False


def read_transform(
    transform: Any,
    size: tuple[int, int] | None = None,
    channels: int = 3,
    given: str = GIVEN_RGB,
) -> TransformPlan:
    """Translates a transform, as it is now, into a plan.

    Draws no random number and changes nothing.

    Args:
        size: (height, width), if all images have the same size.
        channels: of the images: 3, or 1 for grayscale.
        given: GIVEN_RGB: PIL images of mode RGB, or L with one channel; GIVEN_ANY: PIL images, of
            which the native code gets those of mode RGB; GIVEN_TENSOR: uint8 tensors (channels,
            height, width) in the memory format of PILToTensor's; GIVEN_ARRAY: uint8 arrays (height,
            width, channels); GIVEN_REVERSED: the same, a view with the channels in reverse order.
    """
    if transform is None and given in (GIVEN_TENSOR, GIVEN_ARRAY, GIVEN_REVERSED):
        return read_transforms([], size, channels, given)
    if transform is None:
        reason = (
            "the dataset has no transform, so its samples are PIL images; add one that ends in "
            "ToTensor or PILToTensor"
        )
        return TransformPlan(None, reasons=(reason,))
    return read_transforms([transform], size, channels, given)


def read_transforms(
    transforms: Sequence[Any],
    size: tuple[int, int] | None = None,
    channels: int = 3,
    given: str = GIVEN_RGB,
) -> TransformPlan:
    """As read_transform(), for several transforms that are applied in order."""
    if len(transforms) == 1 and (views := views_in(transforms[0])) is not None:
        return read_views(views, size, channels, given)
    reader = _TransformReader(size, PixelValues(channels))
    try:
        reader.begin(given)
        for transform in transforms:
            for one in flatten(transform, state_of=reader.image_state):
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
        reader.pixels.dtype,
        reader.pixels.value_table,
        order,
        max_image_pixels(),
        reader.pixels.as_image,
        reader.pixels.gives,
        float_resize=reader.float_resize,
    )
    return TransformPlan(plan, tuple(reader.steps), converts=reader.converts)


def read_views(
    views: Sequence[Sequence[Any]],
    size: tuple[int, int] | None = None,
    channels: int = 3,
    given: str = GIVEN_RGB,
) -> TransformPlan:
    """As read_transforms(), for the transforms of each of several views: a plan for all of them."""
    read = [read_transforms(transforms, size, channels, given) for transforms in views]
    reasons = list(dict.fromkeys(reason for one in read for reason in one.reasons))
    if any(one.views for one in read):
        reasons.append("a view of a sample is itself a list of images")
    plans = [one.plan for one in read if one.plan is not None]
    kinds = {(plan.dtype, plan.as_image) for plan in plans}
    if len(kinds) > 1:
        reasons.append("the views of a sample have different types")
    if any(plan.gives == ARRAY for plan in plans):
        reasons.append("the views of a sample are NumPy arrays")
    if any(plan.gives == PIL for plan in plans):
        reasons.append(NO_TENSOR)
    if sum(len(plan.ops) for plan in plans) > MAX_VIEW_OPS:
        reasons.append(f"the views have more than {MAX_VIEW_OPS} steps, the native limit")
    if len({one.converts for one in read}) > 1:
        reasons.append("only some of the views of a sample are converted to RGB")
    if given in (GIVEN_ARRAY, GIVEN_REVERSED):
        reasons.append("the views of a sample are made of a NumPy array, which all of them share")
    if given == GIVEN_TENSOR and any(_is_in_place(step) for one in read for step in one.steps):
        reasons.append("a view of a sample may change the loaded tensor, which all views share")
    if reasons:
        return TransformPlan(None, reasons=tuple(reasons))
    plan = replace(plans[0], more_views=tuple(plans[1:]))
    steps = tuple(one.steps for one in read)
    return TransformPlan(plan, views=steps, converts=read[0].converts)


def _is_in_place(step: Step) -> bool:
    """Whether a transform may change the tensor that it is given."""
    transform = step.transform
    if isinstance(transform, TensorCall):
        name = transform.name
        return name.startswith("__i") or (name.endswith("_") and not name.startswith("__"))
    is_erasing = step.module == timm_objects.ERASING
    return is_erasing or bool(getattr(transform, "inplace", False)) or any(
        map(_is_in_place, step.children)
    )


# ---- reading -------------------------------------------------------------------------------------


@dataclass
class _TransformReader:
    """Reads transforms in order, and collects the ops of the plan and the reasons against it.

    Attributes:
        size: (height, width) of all images; None: they may differ.
        pixels: the pixel values after the steps so far.
        resizes_images: whether a step so far resizes a PIL image.
        resizes_tensors: whether one resizes a tensor.
        resizes_floats: whether it does so in float32.
        is_of_any_mode: the PIL images may be of any mode.
        converts: as TransformPlan's.
        array_calls: what made a NumPy array of the image, and changed it, so far; empty: it is
            none.
        given: as read_transform()'s.
        is_of_array: v2.ToImage made the tensor of an array, in another memory format than of a PIL
            image.
    """

    size: tuple[int, int] | None
    pixels: PixelValues
    steps: list[Step] = field(default_factory=list)
    ops: list[Op] = field(default_factory=list)
    reasons: list[str] = field(default_factory=list)
    resizes_images: bool = False
    resizes_tensors: bool = False
    resizes_floats: bool = False
    float_resize: FloatResize | None = None  # set by compare()
    is_of_any_mode: bool = False
    converts: bool = False
    array_calls: list[ArrayCall] = field(default_factory=list)
    given: str = GIVEN_RGB
    is_of_array: bool = False

    def add_reason(self, reason: str) -> None:
        if reason not in self.reasons:
            self.reasons.append(reason)

    def begin(self, given: str) -> None:
        """Before the first transform: sets what it is given, as read_transform()'s argument."""
        from torchvision.transforms import PILToTensor

        self.given, self.is_of_any_mode = given, given == GIVEN_ANY
        if given in (GIVEN_ARRAY, GIVEN_REVERSED):  # as if np.array() had made it
            self.array_calls.append(_ARRAY_OF_IMAGE)
        if given == GIVEN_TENSOR:  # as if PILToTensor had made it
            self.pixels.read(PILToTensor(), "PILToTensor", V1, self.ops)

    def read(self, transform: Any) -> None:
        """Reads the next transform. If it is not supported, adds the reason."""
        try:
            if self.pixels.noise and type(transform).__name__ != "ToPureTensor":
                raise UnsupportedError(
                    "RandomErasing writes random numbers, and another transform follows it; "
                    "natively it must be the last one then"
                )
            if type(transform) is ArrayCall:
                self._read_array(transform)
                return
            if self.array_calls == [_ARRAY_OF_IMAGE] and self._converts_array(transform):
                return
            if self.array_calls:
                raise UnsupportedError(
                    f"{type_name(type(transform))} gets a NumPy array, which is not supported "
                    "natively; make a tensor of it by torch.from_numpy() before"
                )
            if type(transform) is Convert and self.is_of_any_mode:
                self._read_conversion(transform)
                return
            if type(transform) is Convert and self._is_no_op(transform):
                return
            if type(transform) in STEPS:
                self._read_call(transform)
                return
            if type(transform) is TensorCall:
                self._read_arithmetic(transform)
                return
            if type(transform) is Lighting:
                self._read_lighting(transform)
                return
            module = module_of(transform)
            name = type(transform).__name__
            if name == "Identity":
                return
            if name == "ImageClassification":
                self._read_preset(transform, module)
            elif self.pixels.lit is not None and name not in (*PIXELS, "RandomErasing"):
                raise UnsupportedError(
                    f"{name} follows Lighting, which is not supported natively; put it before "
                    "Lighting"
                )
            elif self.pixels.erases and not (name in PIXELS or name in TO_TENSOR):
                raise UnsupportedError(
                    f"{name} follows RandomErasing, which is not supported natively; put it before "
                    "RandomErasing"
                )
            elif self.pixels.gives == ARRAY:
                raise UnsupportedError(f"{name} follows ToNumpy, which must be the last transform")
            elif name == "RandomErasing":
                self._read_erasing(transform, module)
            elif name == "ToPILImage":
                self._read_to_pil(transform, module)
            elif name in GEOMETRY:
                self._read_geometry(transform, name, module)
            elif name in AUGMENTATIONS or name in AUTOMATIC:
                self._read_augmentation(transform, name, module)
            else:
                self.pixels.read(transform, name, module, self.ops)
                self.steps.append(Step(transform, (), module))
        except UnsupportedError as error:
            self.add_reason(str(error))
        except Exception as error:
            self.add_reason(unreadable(f"the transform {type_name(type(transform))}", error))

    def _converts_array(self, transform: Any) -> bool:
        """Reads a transform that makes a PIL image or a tensor of an array that is not computed
        with. False: it is another one."""
        name, module = type(transform).__name__, ""
        if self.given in (GIVEN_ARRAY, GIVEN_REVERSED) and name in _OF_ARRAYS:
            module = module_of(transform)
        is_known = module in (V1, V2)
        if not is_known or (self.given == GIVEN_REVERSED and name != "ToPILImage"):
            return False
        self.array_calls.clear()
        self.given = GIVEN_RGB
        array = np.array(self.pixels.new_ramp(self.ops))
        if name == "ToPILImage":
            self.pixels.ramp = array
            self.pixels.back_to_pil(transform)
        else:
            self.pixels.read(transform, name, module, self.ops)
            if self.pixels.failed or not torch.equal(transform(array), self.pixels.ramp):
                raise UnsupportedError(f"{name} makes another tensor of an array than of an image")
            self.is_of_array = name == "ToImage"
        self.steps.append(Step(transform, (), module))
        return True

    def image_state(self) -> ImageState | None:
        """What is known of an image after the transforms read so far."""
        if self.pixels.failed or self.reasons:
            return None
        if self.is_of_any_mode and self.pixels.ramp is None:
            return None
        is_pil = self.pixels.ramp is None
        if self.array_calls:
            return ImageState(False, "RGB", is_array=True)
        return ImageState(is_pil, "L" if self.pixels.channels == 1 else "RGB")

    def _read_conversion(self, convert: Convert) -> None:
        """Reads a conversion of images of any mode."""
        if self.steps or convert.mode != "RGB":
            raise UnsupportedError(
                f"it converts images, whatever their mode, to {convert.mode} after other "
                'transforms; natively it must be the first step, .convert("RGB")'
            )
        self.is_of_any_mode, self.converts = False, True

    def _is_no_op(self, convert: Convert) -> bool:
        """Whether a conversion leaves a PIL image's pixels as they are."""
        state = self.image_state()
        return state is None or (state.is_pil and state.mode == convert.mode)

    def _read_geometry(self, transform: Any, name: str, module: str) -> None:
        if self.pixels.ramp is not None or self.pixels.failed:
            self._check_on_tensor(name, module)
        op = geometry_op(transform, name, module, self.pixels.channels)
        if self.pixels.ramp is not None and not self.pixels.failed and op.kind in RESIZES:
            self._check_resize_of_tensor(transform, name, op)
            self.resizes_tensors = True
            self.resizes_floats |= module == V1 or not self.pixels.is_unchanged()
            if not self.pixels.is_unchanged():
                self.pixels.resize_floats(name)
        self._add_op(op)
        self.steps.append(Step(transform, (op.kind,), module))

    def _read_augmentation(self, transform: Any, name: str, module: str) -> None:
        ops, step = augmentation_ops(transform, self.pixels.channels)
        if self.pixels.ramp is not None or self.pixels.failed:
            self._check_on_tensor(name, module)
        if self.pixels.ramp is not None and not self.pixels.failed:
            ops = self._ops_on_tensor(step, ops)
        for op in ops:
            self._add_op(op)
        if name == "Grayscale":
            self.pixels.channels = int(ops[0].values[0])
            if self.pixels.ramp is not None:
                self.pixels.ramp = tensor_colors.with_channels(
                    self.pixels.ramp, self.pixels.channels
                )
        self.steps.append(step)

    def _ops_on_tensor(self, step: Step, ops: list[Op]) -> list[Op]:
        """The ops of an augmentation that follows the conversion to a tensor."""
        if step.kinds == (RANDOM_CROP,) and not any(ops[0].values[:6]):
            return ops
        ops = tensor_colors.read(step, ops, self.pixels.ramp, self.pixels.channels)
        if any(op.arithmetic for op in ops) and not self.pixels.is_unchanged():
            raise UnsupportedError(
                f"{step.name} follows a conversion of the pixel values, which is not supported "
                "natively; put it before, where the tensor is still of torch.uint8"
            )
        return ops

    def _read_call(self, call: PilCall | Chance | Choice | HalvingCrop | EfficientCrop) -> None:
        if self.pixels.failed:
            return
        if self.pixels.ramp is not None:
            raise UnsupportedError(
                "a function of Pillow or torchvision, or a transform under a condition on a random "
                "number, follows the conversion to a tensor"
            )
        ops, step = call_ops(call, self.pixels.channels)
        for op in ops:
            self._add_op(op)
        self.steps.append(step)

    def _read_arithmetic(self, call: TensorCall) -> None:
        if self.pixels.failed:
            return
        if self.pixels.ramp is None:
            raise UnsupportedError(
                f"{call.name}() of the image comes before the conversion to a tensor"
            )
        call.check(type(self.pixels.ramp))
        self.pixels.apply(call, f"{call.name}()")
        self.steps.append(Step(call, (), ""))

    def _read_array(self, call: ArrayCall) -> None:
        """Reads a call that makes an array of a PIL image, changes it, or makes a tensor of it."""
        if self.pixels.failed:
            return
        if call.kind != TO_ARRAY and not self.array_calls:
            raise UnsupportedError(f"{call.kind} gets something else than an array of an image")
        is_rgb = not self.is_of_any_mode and self.pixels.channels == 3
        if call.kind == TO_ARRAY and (
            self.array_calls or self.pixels.ramp is not None or not is_rgb
        ):
            raise UnsupportedError(f"{call.kind} gets something else than a PIL image in RGB")
        if self.given == GIVEN_REVERSED:
            raise UnsupportedError(
                f"{call.kind} gets an array whose channels are in reverse order, of which torch "
                "makes no tensor; call .copy() or np.ascontiguousarray() when it is loaded"
            )
        self.array_calls.append(call)
        if call.kind != FROM_NUMPY:
            return
        calls = ArrayCalls(tuple(self.array_calls))
        if why := why_not(calls.calls):
            raise UnsupportedError(f"the transform is not supported natively, as {why}")
        self.array_calls.clear()
        with np.errstate(all="ignore"):
            self.pixels.run(calls, self.pixels.new_ramp(self.ops))
        self.steps.append(Step(calls, (), ""))

    def _read_lighting(self, lighting: Lighting) -> None:
        if self.pixels.failed:
            return
        self.pixels.light()
        self._add_op(lighting.op())
        self.steps.append(Step(lighting, (LIGHTING,), ""))

    def _read_erasing(self, transform: Any, module: str) -> None:
        if self.pixels.failed:
            return
        if self.pixels.ramp is None:
            raise UnsupportedError(
                "RandomErasing comes before the conversion to a tensor; put it after"
            )
        if type(self.pixels.ramp) is not torch.Tensor and module == V1:
            raise UnsupportedError(
                "torchvision.transforms.RandomErasing follows v2.ToImage, which is not supported "
                "natively; use v2.RandomErasing"
            )
        if module == timm_objects.ERASING:
            op, values = read_erasing_of_timm(transform), [0.0]
        else:
            op, values = read_erasing(transform, module, self.pixels.channels)
        if op.values and op.values[3]:
            timm_objects.check_noise()
            self.pixels.add_noise(as_image=module == V2)
        else:
            self.pixels.erase(values)
        self._add_op(op)
        self.steps.append(Step(transform, (op.kind,), module))

    def _read_to_pil(self, transform: Any, module: str) -> None:
        if self.pixels.failed:
            return
        if self.pixels.ramp is None:
            raise UnsupportedError("ToPILImage gets a PIL image already; remove it")
        self.pixels.back_to_pil(transform)
        self.steps.append(Step(transform, (), module))

    def _check_on_tensor(self, name: str, module: str) -> None:
        if self.pixels.failed:
            return
        is_resize = name in ("Resize", "RandomResizedCrop")
        if is_resize and module == V1:
            check_resize_of_tensors()
        is_same = is_resize or name in ("CenterCrop", "RandomHorizontalFlip")
        if name in GEOMETRY and not is_same:
            raise UnsupportedError(
                f"{name} follows the conversion to a tensor, which is not supported natively, as "
                "tensors are resized and padded by other code than PIL images; put it before the "
                "conversion"
            )
        if type(self.pixels.ramp) is not torch.Tensor and module == V1:
            raise UnsupportedError(
                f"torchvision.transforms.{name} follows v2.ToImage, which is not supported "
                f"natively; use v2.{name}"
            )
        zeros = self.pixels.ramp[..., 0]
        if name == "CenterCrop" and bool(((zeros != 0) | torch.signbit(zeros)).any()):
            raise UnsupportedError(
                "CenterCrop follows Normalize, which is not supported natively, as it pads small "
                "images with zeros, which are not black then; put it before Normalize"
            )

    def _check_resize_of_tensor(self, transform: Any, name: str, op: Op) -> None:
        if transform.antialias is not True:
            raise unsupported_argument(name, "antialias", transform.antialias, "True for tensors")
        in_floats = type(transform).__module__ == V1 or not self.pixels.is_unchanged()
        if in_floats and FILTER_NAMES[op.filter] != "bilinear":
            raise UnsupportedError(
                f"{name} by {FILTER_NAMES[op.filter]} resizes a tensor in float32, which natively "
                "is done by bilinear only; put it before the conversion to a tensor"
            )
        if in_floats and (op.width or op.height) == 1:
            # Then torch 2.13 copies the first row's value to all rows.
            raise UnsupportedError(
                f"{name} makes images one pixel wide of a tensor, in float32; natively it must "
                "make them wider"
            )
        if FILTER_NAMES[op.filter] not in ("bilinear", "bicubic", "lanczos"):
            raise UnsupportedError(
                f"{name} by {FILTER_NAMES[op.filter]} follows the conversion to a tensor, which is "
                "not supported natively; put it before the conversion"
            )

    def _add_op(self, op: Op) -> None:
        self.ops.append(op)
        if op.kind in RESIZES and self.pixels.ramp is None:
            self.resizes_images = True

    def _read_preset(self, preset: Any, module: str) -> None:
        """Reads torchvision's ImageClassification, which is Resize, CenterCrop, conversion to float
        and Normalize in one object."""
        if self.pixels.ramp is not None or self.pixels.failed:
            raise UnsupportedError(
                "ImageClassification follows a conversion to a tensor, which is not supported "
                "natively; remove the conversion"
            )
        size, crop = preset.resize_size, preset.crop_size
        if not isinstance(crop, Sequence) or len(crop) not in (1, 2):
            raise unsupported_argument(
                "ImageClassification", "crop_size", crop, "a list of one or two ints"
            )
        resize = resize_op(size, None, filter_of(preset, "ImageClassification", V1))
        ramp = self.pixels.new_ramp(self.ops)
        height, width = size_pair((crop[0], crop[-1]), "ImageClassification")
        self._add_op(resize)
        self._add_op(Op(CENTER_CROP, height, width))
        self.steps.append(Step(preset, (RESIZE, CENTER_CROP), module))
        # A copy of the user's object, whose resize and crop leave the ramp as it is.
        same_size = copy.copy(preset)
        same_size.resize_size, same_size.crop_size = [1], [1, 256]
        self.pixels.run(same_size, ramp)

    def finish(self) -> None:
        """Checks that concern the transform as a whole; makes the value table."""
        if self.array_calls:
            self.add_reason(
                "the transform returns a NumPy array; natively it must make a tensor of it, by "
                "torch.from_numpy()"
            )
        if self.is_of_array and not all(map(_takes_any_memory_format, self.ops)):
            self.add_reason(
                "the transform changes colors or shapes of the tensor that v2.ToImage makes of an "
                "array, which natively is done for those of PIL images; call ToPILImage before"
            )
        if self.resizes_images and self.resizes_tensors:
            self.add_reason(
                "the transform resizes both a PIL image and a tensor; natively it may resize one "
                "of them, as other code is used for each"
            )
        self._complete_resizes()
        if self.size is not None:
            self._check_sizes(*self.size)
        if final_size(self.ops, self.size) is None and not self.reasons:
            self.add_reason(
                "the transform does not lead to one size for all images; end it with CenterCrop, "
                "RandomCrop, RandomResizedCrop or Resize to a (height, width)"
            )
        if self.pixels.resized is not None and any(map(_is_after_the_resize, self.ops)):
            self.add_reason(
                "the transform resizes a float tensor; natively it may otherwise only crop and "
                "flip horizontally, but for RandomErasing"
            )
        if reason := tensor_colors.why_not_sizes(self.ops, self.size):
            self.add_reason(reason)
        if len(self.ops) > MAX_OPS:
            self.add_reason(
                f"the transform has {len(self.ops)} steps; the native limit is {MAX_OPS}"
            )
        if self.pixels.ramp is not None and not self.pixels.failed:
            for reason in self.pixels.finish():
                self.add_reason(reason)
            if self.pixels.lit is not None and self.pixels.normalized is not None:
                number = next(i for i, op in enumerate(self.ops) if op.kind == LIGHTING)
                mean, std = (one.tolist() for one in self.pixels.normalized)
                self.ops[number] = with_normalize(self.ops[number], mean, std)
            if self.pixels.erased:
                values = (*self.pixels.erased, *self.ops[-1].values[3:])
                self.ops[-1] = self.ops[-1]._replace(values=values)
        elif self.pixels.channels == 3 and not self.reasons:
            self._finish_pil()
        elif not self.reasons:
            self.add_reason(NO_TENSOR)

    def _finish_pil(self) -> None:
        """For a transform that ends in a PIL image, of which a collate_fn may make a tensor."""
        try:
            self.pixels.new_ramp(self.ops)
        except UnsupportedError as error:
            self.add_reason(str(error))
        self.pixels.gives, self.pixels.dtype = PIL, "uint8"

    def compare(self, channels: int) -> int:
        """Compares the results of the native ops with those of the installed libraries.

        Args:
            channels: of the images before the transform.

        Returns:
            fm_resize_order of the installed libraries; 0 if the transform does not resize.
        """
        try:
            self.ops = equal_tensor_colors.settled(self.ops)
            self.ops = equal_tensor_warps.settled(self.ops, self.size)
        except UnsupportedError as error:
            self.add_reason(str(error))
        for compared in (
            why_not_ops, equal_tensor_colors.why_not_ops, equal_tensor_warps.why_not_ops
        ):
            for reason in compared(self.ops, channels):
                self.add_reason(reason)
        resizes = [op for op in self.ops if op.kind in RESIZES]
        if not resizes:
            return 0
        filters = {one for op in resizes for one in (op.filter, *second_filter_of(op))}
        try:
            orders = {TORCHS_FLOAT_RESIZE} if self.resizes_floats else {
                resize_order(one, self.resizes_tensors) for one in sorted(filters)
            }
            if TORCHS_FLOAT_RESIZE in orders:
                if len(resizes) > 1:
                    raise UnsupportedError(
                        "the transform resizes a tensor in float32, and resizes more than once; "
                        "natively it may resize once then"
                    )
                self.float_resize = self.pixels.float_resize(float_resize())
        except UnsupportedError as error:
            self.add_reason(str(error))
            return 0
        if len(orders) > 1:
            self.add_reason("Pillow resizes by these filters in different orders")
        return max(orders)

    def _complete_resizes(self) -> None:
        """Gives a Resize of the shorter edge both sizes where it always gets images of one size."""
        for number, (op, size) in enumerate(with_sizes(tuple(self.ops), self.size)):
            after = size_after(op, size)
            if op.kind == RESIZE and op.width == 0 and after is not None:
                self.ops[number] = op._replace(height=after[0], width=after[1], max_size=0)

    def _check_sizes(self, height: int, width: int) -> None:
        """For images that all have this size: checks the ops that depend on the size of the image
        that they get."""
        for number, (op, size) in enumerate(with_sizes(tuple(self.ops), (height, width))):
            if op.kind == RESIZE_KEEP_RATIO:
                return self.add_reason(
                    "ResizeKeepRatio is supported natively for image files only"
                )
            if size is None:
                return self.add_reason(
                    f"{OP_NAMES[op.kind]} gets images whose size is random, which is supported "
                    "natively for image files only"
                )
            after = size_after(op, size)
            later = [one.kind for one in self.ops[number + 1 :]]
            pads = op.kind == CENTER_CROP and (op.height > size[0] or op.width > size[1])
            if pads and (RESIZE in later or RANDOM_RESIZED_CROP in later):
                self.add_reason(
                    "CenterCrop pads images that are resized later, which is not supported "
                    "natively; use Pad instead"
                )
            if op.kind == RANDOM_CROP and not op.values[5]:
                left, top, right, bottom = op.values[:4]
                if op.height > size[0] + top + bottom or op.width > size[1] + left + right:
                    self.add_reason(
                        "RandomCrop is larger than the images; pass padding= or pad_if_needed=True"
                    )
            if max(after or size) > MAX_SIZE_PX:
                self.add_reason(
                    f"{OP_NAMES[op.kind]} returns images wider or higher than {MAX_SIZE_PX} "
                    "pixels, the native limit"
                )


_ARRAY_OF_IMAGE = ArrayCall(TO_ARRAY, None, "array")


def _takes_any_memory_format(op: Op) -> bool:
    """Whether an op is compared for tensors in each memory format, or only moves their values."""
    return op.kind in RESIZES or not _is_after_the_resize(op)


def _is_after_the_resize(op: Op) -> bool:
    """Whether an op is applied to an image of bytes, after the native resize."""
    if op.kind == RANDOM_CROP:
        return any(op.values[:6])
    return op.kind not in (
        RESIZE, RANDOM_RESIZED_CROP, CENTER_CROP, RANDOM_HORIZONTAL_FLIP, KINDS["RandomErasing"]
    )
