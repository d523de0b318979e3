"""Checks that the installed torch and torchvision change the colors of uint8 tensors to the native
code's values; see ``comparing``."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch

from feedmill._internals import FUNCTIONAL, torchvision_version
from feedmill.planner.comparing import Run, made, once, why_not
from feedmill.planner.plan import (
    KINDS,
    OP_NAMES,
    TENSOR_V1,
    TENSOR_V2,
    TENSOR_V2_FUSED,
    Op,
    UnsupportedError,
    with_sizes,
)
from feedmill.planner.tensor_colors import changes_contrast
from feedmill.planner.tensor_warps import AUTOMATIC, KINDS_OF_WARPS

# What the automatic augmentations do beside affine transforms.
_OF_AUTOMATIC = (
    "brightness", "contrast", "saturation", "RandomAdjustSharpness", "RandomPosterize",
    "RandomSolarize", "RandomAutocontrast", "RandomEqualize", "RandomInvert",
)
_COLORS = ("brightness", "contrast", "saturation", "hue")
# Comparisons of each part, each with other sampled parameters.
_N_TRIALS = 4
# As many numbers are added at a time: fewer than a vector of the CPU has, more, and other numbers.
_LENGTHS = (*range(1, 40), 1000)
_N_ADDED = 4096
_FACTORS = (0.587, 0.114, -0.3, 0.7123)


class _Part(NamedTuple):
    """A torchvision transform, or a part of one, that is compared by itself.

    Attributes:
        name: a transform's class, or a property that ColorJitter changes.
        arithmetic: fm_arithmetic of the native op.
        channels: of the image, 3 or 1.
    """

    name: str
    arithmetic: int
    channels: int


def settled(ops: Sequence[Op]) -> list[Op]:
    """The ops with the arithmetic of v2 that the installed torch has.

    Raises:
        UnsupportedError: it has neither of the two that there are natively.
    """
    return [
        op._replace(arithmetic=_arithmetic_of_v2()) if op.arithmetic == TENSOR_V2 else op
        for op in ops
    ]


def why_not_ops(ops: Sequence[Op], channels: int) -> list[str]:
    """Compares the ops on tensors with the installed torchvision.

    Args:
        ops: settled ones.
        channels: of the image that the first op gets, 3 or 1.

    Returns:
        A reason for each part that gives other values.
    """
    parts = dict.fromkeys(_parts_of(ops, channels))
    reasons = [once(part, partial(_why_not_part, part)) for part in parts]
    return [reason for reason in reasons if reason]


def why_uneven(ops: Sequence[Op], n_threads: int, all_channels: Sequence[int] = (3,)) -> str:
    """The reason against ops of v2 that change contrasts, if torch rounds otherwise in some values
    of the image than in others; "" if it does not.

    They add one number, the image's mean, to all values. torch's code for what is left behind the
    last vector of values may round products that it does not round before, and each thread has
    such values behind its part of the image.

    Args:
        ops: settled ones.
        n_threads: with which torch applies them.
        all_channels: numbers of channels that the image may have before the first op.
    """
    for channels in all_channels:
        for op, size in with_sizes(ops, None):
            if op.kind == KINDS["Grayscale"]:
                channels = int(op.values[0])
            is_of_v2 = op.arithmetic in (TENSOR_V2, TENSOR_V2_FUSED)
            if not is_of_v2 or not changes_contrast(op) or size is None:
                continue
            n_values = channels * size[0] * size[1]
            key = "values added to", n_values, n_threads
            if not once(key, partial(_is_even, n_values, n_threads)):
                threads, need = f"{n_threads} threads", "another size, or num_workers > 0"
                if n_threads == 1:
                    threads, need = "one thread", "another size"
                return (
                    f"{OP_NAMES[op.kind]} changes the contrast of a tensor of {size[0]} x "
                    f"{size[1]} pixels, in some values of which torch {torch.__version__}, with "
                    f"{threads}, rounds otherwise than in others; natively this needs {need}"
                )
    return ""


def _is_even(n_values: int, n_threads: int) -> bool:
    """Whether torch adds the product of two numbers to so many values by one rule."""
    # The sum differs by whether the product is rounded.
    base, mean, factor = 0.000133, 140.0, 1 - 1e-6
    before = torch.get_num_threads()
    torch.set_num_threads(n_threads)
    try:
        values = torch.full((1, 1, n_values), base, dtype=torch.float32)
        values.add_(torch.full((1, 1, 1), mean, dtype=torch.float32), alpha=factor)
    finally:
        torch.set_num_threads(before)
    return bool((values == values[0, 0, 0]).all())


# ---- torch's additions ---------------------------------------------------------------------------


def _arithmetic_of_v2() -> int:
    found: int | str = once("additions of products", _find_arithmetic)
    if isinstance(found, str):
        raise UnsupportedError(found)
    return found


def _find_arithmetic() -> int | str:
    """fm_arithmetic by which torch adds products to tensors; the reason against both."""
    reason = ""
    for arithmetic in (TENSOR_V2_FUSED, TENSOR_V2):
        is_fused = arithmetic == TENSOR_V2_FUSED
        reason = why_not(
            "adds products to tensors",
            lambda is_fused=is_fused: _added_otherwise(is_fused),  # type: ignore[misc]
            f"torch {torch.__version__}",
        )
        if not reason:
            return arithmetic
    return reason


def _added_otherwise(is_fused: bool) -> list[str]:
    """The numbers of values to which torch adds products otherwise, with one rounding
    (``is_fused``) or with two."""
    at = np.arange(_N_ADDED)
    bases = (at * 7919 % 256).astype(np.float32) * np.float32(0.2989)
    values = (at * 2531 % 8191 % 256).astype(np.uint8)
    different = []
    for length, factor in itertools.product((*_LENGTHS, _N_ADDED), _FACTORS):
        base, value = bases[:length], values[:length]
        if is_fused:  # the sum of these products is exact in float64
            product = value.astype(np.float64) * float(np.float32(factor))
            wanted = base.astype(np.float64) + product
        else:
            wanted = base + value.astype(np.float32) * np.float32(factor)
        results = [torch.from_numpy(base.copy()) for _ in range(2)]
        results.append(torch.empty(length, 3)[:, 1].copy_(results[0]))  # with gaps in memory
        others = [torch.from_numpy(value), torch.from_numpy(value.astype(np.float32))]
        for result, other in zip(results, (*others, others[1])):
            result.add_(other, alpha=factor)
            if not np.array_equal(result.numpy(), wanted.astype(np.float32)):
                different.append(f"{length} values")
    return list(dict.fromkeys(different))[:4]


# ---- transforms ----------------------------------------------------------------------------------


def _parts_of(ops: Sequence[Op], channels: int) -> Iterator[_Part]:
    for op in ops:
        if op.arithmetic:
            for name in _names_of(op):
                yield _Part(name, op.arithmetic, channels)
        if op.kind == KINDS["Grayscale"]:
            channels = int(op.values[0])


def _names_of(op: Op) -> Sequence[str]:
    name = OP_NAMES[op.kind]
    if name == "ColorJitter":
        return [color for i, color in enumerate(_COLORS) if int(op.values[8]) & 1 << i]
    if op.kind in AUTOMATIC:
        return _OF_AUTOMATIC
    if op.kind in KINDS_OF_WARPS:
        return ()  # equal_tensor_warps compares them
    return ("RandomGrayscale" if name == "Grayscale" else name,)


# Each part as (functional module, tensor, sampled parameters) -> tensor.
_FUNCTIONS: dict[str, Callable[[Any, torch.Tensor, Sequence[float]], torch.Tensor]] = {
    "RandomGrayscale": lambda F, image, values: F.rgb_to_grayscale(image, image.shape[0]),
    "RandomInvert": lambda F, image, values: F.invert(image),
    "RandomPosterize": lambda F, image, values: F.posterize(image, 3),
    "RandomSolarize": lambda F, image, values: F.solarize(image, 100.0),
    "RandomAutocontrast": lambda F, image, values: F.autocontrast(image),
    "RandomEqualize": lambda F, image, values: F.equalize(image),
    "RandomAdjustSharpness": lambda F, image, values: F.adjust_sharpness(image, 1.8),
    "brightness": lambda F, image, values: F.adjust_brightness(image, values[4]),
    "contrast": lambda F, image, values: F.adjust_contrast(image, values[5]),
    "saturation": lambda F, image, values: F.adjust_saturation(image, values[6]),
    "hue": lambda F, image, values: F.adjust_hue(image, values[7]),
}
_VALUES = {"RandomPosterize": (3.0,), "RandomSolarize": (100.0,), "RandomAdjustSharpness": (1.8,)}


def _op_of(part: _Part) -> Op:
    """The op of a part, with random parameters if the part has any."""
    if part.name in _COLORS:
        limits = [(0.2, 2.3)] * 3 + [(-0.5, 0.5)]
        given = [limits[i] if color == part.name else (0.0, 0.0) for i, color in enumerate(_COLORS)]
        values = (*(limit for pair in given for limit in pair), 1 << _COLORS.index(part.name))
        return Op(KINDS["ColorJitter"], values=values, arithmetic=part.arithmetic)
    values = _VALUES.get(part.name, ())
    return Op(KINDS[part.name], p=1.0, values=values, arithmetic=part.arithmetic)


def _why_not_part(part: _Part) -> str:
    kind = {3: "RGB", 1: "grayscale"}[part.channels]
    return why_not(
        f"with torchvision {torchvision_version()} applies {part.name} to uint8 tensors",
        lambda: [] if all(_are_equal(part)) else [kind],
        f"torch {torch.__version__}",
    )


def _are_equal(part: _Part) -> Iterator[bool]:
    # Without the darkest and brightest values, which RandomAutocontrast changes.
    image = (made(67, 59, part.channels) * 0.7 + 25).astype(np.uint8)
    is_v1 = part.arithmetic == TENSOR_V1
    functional = sys.modules[FUNCTIONAL if is_v1 else "torchvision.transforms.v2.functional"]
    interleaved = torch.from_numpy(image).permute(2, 0, 1)
    run = Run([_op_of(part)], image, _N_TRIALS)
    try:
        for draws, got in itertools.islice(run.results(), _N_TRIALS):
            # In the memory format of converted PIL images, and in torch's contiguous one.
            for tensor in (interleaved, interleaved.contiguous()):
                result = _FUNCTIONS[part.name](functional, tensor, draws[0][6])
                yield np.array_equal(result.permute(1, 2, 0).numpy(), got)
    finally:
        run.close()
