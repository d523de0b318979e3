"""Reads augmentations of uint8 tensors: of colors, flips, affine transforms (by ``tensor_warps``),
and containers of these.

torchvision computes colors of tensors in float32, so that they differ from those of PIL images in
single values. ``equal_tensor_colors`` compares the native results with the installed torchvision's.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import torch

from feedmill import _internals
from feedmill._internals import FUNCTIONAL
from feedmill.planner import tensor_warps
from feedmill.planner.arguments import V1, V1_AUTO, V2
from feedmill.planner.drawing import STEPS
from feedmill.planner.image_calls import Convert
from feedmill.planner.known import check_torchvision
from feedmill.planner.plan import (
    CONTAINERS,
    KINDS,
    OP_NAMES,
    TENSOR_V1,
    TENSOR_V2,
    Op,
    UnsupportedError,
    unsupported_argument,
    with_sizes,
)
from feedmill.planner.steps import Step
from feedmill.planner.untouched import is_original

_OF_AUTOMATIC = (
    "affine", "rotate", "adjust_brightness", "adjust_saturation", "adjust_contrast",
    "adjust_sharpness", "posterize", "solarize", "autocontrast", "equalize", "invert",
)
# Kinds that change tensors' values, and the functions that they call in
# torchvision.transforms.functional and torchvision.transforms.v2.functional.
_FUNCTIONS = {
    KINDS["Grayscale"]: ("rgb_to_grayscale",),
    KINDS["RandomGrayscale"]: ("rgb_to_grayscale",),
    KINDS["ColorJitter"]: (
        "adjust_brightness", "adjust_contrast", "adjust_saturation", "adjust_hue"
    ),
    KINDS["RandomInvert"]: ("invert",),
    KINDS["RandomPosterize"]: ("posterize",),
    KINDS["RandomSolarize"]: ("solarize",),
    KINDS["RandomAutocontrast"]: ("autocontrast",),
    KINDS["RandomEqualize"]: ("equalize",),
    KINDS["RandomAdjustSharpness"]: ("adjust_sharpness",),
    KINDS["RandomRotation"]: ("rotate",),
    KINDS["RandomAffine"]: ("affine",),
    **dict.fromkeys(tensor_warps.AUTOMATIC, _OF_AUTOMATIC),
}
_WARPS = ("affine", "rotate")
_FLIPS = (KINDS["RandomHorizontalFlip"], KINDS["RandomVerticalFlip"])
# torch's mean of an image is a float32 sum, in an order that depends on the CPU. It is exact, and
# so independent of the order, if it stays below 2^24.
_MOST_SUMMED_PX = 2**24 // 255
# Bits in the mask of a ColorJitter.
_CONTRAST, _HUE = 1 << 1, 1 << 3


def read(step: Step, ops: Sequence[Op], image: Any, n_channels: int) -> list[Op]:
    """The ops of an augmentation that follows the conversion to a tensor.

    Args:
        ops: those of PIL images.
        image: a tensor of the type that the step gets.

    Raises:
        UnsupportedError: it is not supported on tensors, or a function that it calls was replaced.
    """
    for name in () if type(image) is torch.Tensor else _names_of_v1(step):
        raise UnsupportedError(
            f"torchvision.transforms.{name} follows v2.ToImage, which is not supported natively; "
            f"use v2.{name}"
        )
    found = _on_tensors(step, ops, n_channels)
    for op in found:
        if op.arithmetic:
            _check_functions(_FUNCTIONS[op.kind], op.arithmetic == TENSOR_V2)
            _check_precision(op)
    return found


def with_channels(image: Any, n_channels: int) -> Any:
    """A tensor like the image, with another number of equal channels."""
    kind = type(image)
    return image.as_subclass(torch.Tensor)[:1].expand(n_channels, -1, -1).as_subclass(kind)


def why_not_sizes(ops: Sequence[Op], size: tuple[int, int] | None) -> str:
    """The reason against the size of an image that an op on tensors gets; "" if there is none.

    Args:
        size: (height, width) before the first op; None: not known.
    """
    for op, size_before in with_sizes(ops, size):
        name = OP_NAMES[op.kind]
        if op.arithmetic and changes_contrast(op):
            if size_before is None or size_before[0] * size_before[1] > _MOST_SUMMED_PX:
                return (
                    f"{name} changes the contrast of a tensor that may have more than "
                    f"{_MOST_SUMMED_PX:,} pixels, which is not supported natively, as torch's mean "
                    "of these is not exact; put it behind a crop or resize to a smaller size"
                )
        if reason := tensor_warps.why_not_size(op, name, size_before):
            return reason
    return ""


def changes_contrast(op: Op) -> bool:
    """Whether an op may change the contrast of an image."""
    if op.kind == KINDS["ColorJitter"]:
        return bool(int(op.values[8]) & _CONTRAST)
    return op.kind in tensor_warps.AUTOMATIC


def _names_of_v1(step: Step) -> list[str]:
    """Those of the step and of those in it that are of torchvision.transforms."""
    names = [step.name] if step.module in (V1, V1_AUTO) else []
    return names + [name for child in step.children for name in _names_of_v1(child)]


def _on_tensors(step: Step, ops: Sequence[Op], n_channels: int) -> list[Op]:
    op = ops[0]
    if op.kind in CONTAINERS and type(step.transform) not in (Convert, *STEPS):
        found, at = [op], 1
        for child in step.children:
            end = at + len(child.kinds)
            found += _on_tensors(child, ops[at:end], n_channels)
            at = end
        return found
    if op.kind in _FLIPS:
        return list(ops)
    if op.kind not in _FUNCTIONS or step.module not in (V1, V1_AUTO, V2):
        raise UnsupportedError(
            f"{step.name} follows the conversion to a tensor, which is not supported natively, as "
            "torchvision computes other pixels for tensors; put it before the conversion"
        )
    _check_arguments(step, op, n_channels)
    if op.kind in tensor_warps.KINDS_OF_WARPS:
        op = tensor_warps.on_tensors(step, op)
    return [_rounded(op)._replace(arithmetic=TENSOR_V2 if step.module == V2 else TENSOR_V1)]


def _check_arguments(step: Step, op: Op, n_channels: int) -> None:
    if step.name == "Grayscale" and step.module == V1 and n_channels == 1 and op.values[0] == 3:
        # torchvision's does not add the channels.
        raise unsupported_argument(step.name, "num_output_channels", 3, "1 for grayscale tensors")
    if step.name == "RandomSolarize" and not 0 <= op.values[0] <= 255:
        raise unsupported_argument(
            step.name, "threshold", op.values[0], "from 0 to 255 for tensors"
        )
    if step.name == "RandomAdjustSharpness" and op.values[0] < 0:
        raise unsupported_argument(
            step.name, "sharpness_factor", op.values[0], "0 or more for tensors"
        )


def _check_precision(op: Op) -> None:
    """Raises UnsupportedError if torch is set to compute with another precision than float32."""
    name = OP_NAMES[op.kind]
    if torch.get_default_dtype() is not torch.float32:
        raise UnsupportedError(
            f"torch's default dtype is {torch.get_default_dtype()}; natively it must be "
            f"torch.float32 for {name} of tensors"
        )
    functions = _FUNCTIONS[op.kind]
    used = ["conv"] if "adjust_sharpness" in functions else []
    shifts_hue = name == "ColorJitter" and int(op.values[8]) & _HUE  # v1 by an einsum()
    if not set(_WARPS).isdisjoint(functions) or (shifts_hue and op.arithmetic == TENSOR_V1):
        used.append("matmul")
    for what in used:
        if torch.is_autocast_enabled("cpu") or not _is_full_precision(what):
            raise UnsupportedError(
                f"{name} of tensors needs full float32 precision natively; leave torch.autocast, "
                f"and set torch.backends.mkldnn.{what}.fp32_precision to 'ieee'"
            )


def _is_full_precision(what: str) -> bool:
    """Whether torch computes convolutions ("conv") or products of matrices ("matmul") of float32
    on CPUs in float32. There it may be allowed to use bfloat16."""
    if what == "matmul" and torch.get_float32_matmul_precision() != "highest":
        return False
    settings = getattr(torch.backends.mkldnn, what, None)  # older versions have none
    return getattr(settings, "fp32_precision", "ieee") in ("none", "ieee")


def _rounded(op: Op) -> Op:
    """The op with the threshold that torch compares pixels with, a float32."""
    if op.kind != KINDS["RandomSolarize"]:
        return op
    return op._replace(values=(float(torch.tensor(op.values[0], dtype=torch.float32)),))


# ---- replaced functions --------------------------------------------------------------------------


def _check_functions(names: Sequence[str], is_v2: bool) -> None:
    """Raises UnsupportedError if a function that torchvision calls for tensors was replaced.

    Args:
        names: of the functions in torchvision.transforms.functional, or in that of v2.
    """
    warps = not set(_WARPS).isdisjoint(names)
    if warps:
        for module in (_internals.FUNCTIONAL_TENSOR, _internals.V2_GEOMETRY):
            sampler = getattr(sys.modules.get(module), "grid_sample", None)
            if module in sys.modules and not is_original(sampler, *_internals.GRID_SAMPLE):
                raise UnsupportedError(f"{module}.grid_sample was replaced")
    if not is_v2:
        helpers = _internals.V1_COLOR_HELPERS + (_internals.V1_WARP_HELPERS if warps else ())
        check_torchvision({FUNCTIONAL: names, _internals.FUNCTIONAL_TENSOR: (*names, *helpers)})
        return
    functional = "torchvision.transforms.v2.functional"
    check_torchvision({functional: names, **_internals.V2_COLOR_HELPERS})
    if warps:
        check_torchvision({_internals.V2_GEOMETRY: _internals.V2_WARP_HELPERS})
    kernels = _internals.v2_kernels(sys.modules.get(_internals.V2_KERNELS))
    image_type: Any = getattr(sys.modules.get("torchvision.tv_tensors"), "Image", None)
    for name in names:
        home = _internals.V2_GEOMETRY if name in _WARPS else _internals.V2_COLOR
        by_type = kernels.get(getattr(sys.modules[functional], name), {})
        kernel = by_type.get(torch.Tensor)
        if not is_original(kernel, home, f"{name}_image") or not (
            _internals.is_v2_wrapper(by_type.get(image_type), kernel)
        ):
            raise UnsupportedError(f"{functional}.{name}'s kernel for tensors was replaced")
