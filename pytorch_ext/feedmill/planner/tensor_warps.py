"""Reads affine transforms of uint8 tensors: RandomRotation, RandomAffine, and those among the
automatic augmentations.

torchvision samples tensors in float32, at points of a grid that it computes by a product of
matrices. ``equal_tensor_warps`` finds out how the installed torch rounds there.
"""

from __future__ import annotations

from typing import Any

from feedmill._internals import v2_fills
from feedmill.planner.arguments import V2, is_number
from feedmill.planner.plan import (
    FILTER_NAMES,
    KINDS,
    WITHOUT_FILL,
    Op,
    unsupported_argument,
)
from feedmill.planner.steps import Step

AUTOMATIC = tuple(KINDS[name] for name in ("TrivialAugmentWide", "RandAugment", "AutoAugment"))
KINDS_OF_WARPS = (KINDS["RandomRotation"], KINDS["RandomAffine"], *AUTOMATIC)
# The largest image for which the grid is compared, in pixels.
_MOST_PX = 2**22
_LEAST_SCALE, _MOST_SHEAR = 1e-3, 89.0  # as fm_op


def on_tensors(step: Step, op: Op) -> Op:
    """The op of an affine transform, or automatic augmentation, of tensors; without its arithmetic.

    Raises:
        UnsupportedError: torchvision refuses an argument on tensors, or it is not supported.
    """
    name, transform = step.name, step.transform
    mode = getattr(transform.interpolation, "value", transform.interpolation)
    if FILTER_NAMES[op.filter] not in ("nearest", "bilinear") or mode == "nearest-exact":
        raise unsupported_argument(
            name, "interpolation", transform.interpolation,
            "nearest or bilinear, as torchvision refuses others for tensors",
        )
    fill = v2_fills(transform)["others"] if step.module == V2 else transform.fill
    values = fill if type(fill) in (list, tuple) else [0 if fill is None else fill]
    if not all(is_number(value) and value == int(value) for value in values):
        raise unsupported_argument(name, "fill", fill, "integers for tensors")
    if name == "RandomAffine":
        _check_affine(transform, op)
    return op._replace(sampling=WITHOUT_FILL if fill is None else 0)


def _check_affine(transform: Any, op: Op) -> None:
    """Raises UnsupportedError if coordinates might be too large for float32."""
    if op.values[5] and op.scale_low < _LEAST_SCALE:
        raise unsupported_argument(
            "RandomAffine", "scale", transform.scale, f"{_LEAST_SCALE:g} or more for tensors"
        )
    if max(map(abs, op.values[7:11])) > _MOST_SHEAR:
        raise unsupported_argument(
            "RandomAffine", "shear", transform.shear,
            f"from -{_MOST_SHEAR:g} to {_MOST_SHEAR:g} degrees for tensors",
        )


def why_not_size(op: Op, name: str, size: tuple[int, int] | None) -> str:
    """The reason against the (height, width) of an image that is transformed; "" if there is none.

    Args:
        size: None: not known.
    """
    if not op.arithmetic or op.kind not in KINDS_OF_WARPS:
        return ""
    if size is not None and size[0] * size[1] <= _MOST_PX:
        return ""
    return (
        f"{name} transforms a tensor whose size is not known, or above {_MOST_PX:,} pixels, which "
        "is not supported natively, as torch's rounding depends on the size; put it behind a crop "
        "or resize to a smaller size"
    )
