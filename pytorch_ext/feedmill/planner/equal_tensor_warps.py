"""Finds out how the installed torch rounds in affine transforms of uint8 tensors, and checks that
torchvision's results are the native code's; see ``comparing``.

torchvision computes where each pixel comes from by a product of matrices (``bmm``), which adds
three products for each coordinate. A library of the CPU's vendor may do it, so that it may depend
on the CPU and on the image's size whether a product is rounded before it is added. ``grid_sample``
is torch's own; there it depends on the instructions that torch's build uses on the CPU.
"""

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
    FILTER_NAMES,
    FUSED_GRID,
    FUSED_SAMPLES,
    KINDS,
    OP_NAMES,
    TENSOR_V1,
    WITHOUT_FILL,
    Op,
    UnsupportedError,
    with_sizes,
)
from feedmill.planner.tensor_warps import AUTOMATIC, KINDS_OF_WARPS

_FILL = (9, 120, 230)
# (height, width) of the image on which native results are compared.
_SIZE = 59, 67
# Comparisons of each part, and of a grid, each with other sampled parameters.
_N_TRIALS = 4


class _Part(NamedTuple):
    """An affine transform that is compared by itself.

    Attributes:
        name: "RandomRotation" or "RandomAffine".
        arithmetic: fm_arithmetic of the native op.
        filter: fm_filter of it.
        has_fill: whether it has a fill.
        channels: of the image, 3 or 1.
    """

    name: str
    arithmetic: int
    filter: int
    has_fill: bool
    channels: int


def settled(ops: Sequence[Op], size: tuple[int, int] | None) -> list[Op]:
    """The ops with the rounding that the installed torch has in affine transforms.

    Args:
        size: (height, width) of the image that the first op gets; None: not known.

    Raises:
        UnsupportedError: it has none that there is natively.
    """
    found = []
    for op, size_before in with_sizes(ops, size):
        if _is_warp(op) and size_before is not None:
            rounding = _rounding_of_grid(*size_before) | _rounding_of_samples()
            op = op._replace(sampling=op.sampling & WITHOUT_FILL | rounding)
        found.append(op)
    return found


def why_not_ops(ops: Sequence[Op], channels: int) -> list[str]:
    """Compares the affine transforms of tensors with the installed torchvision's.

    Args:
        channels: of the image that the first op gets, 3 or 1.

    Returns:
        A reason for each that gives other values.
    """
    parts = dict.fromkeys(_parts_of(ops, channels))
    reasons = [once(part, partial(_why_not_part, part)) for part in parts]
    return [reason for reason in reasons if reason]


def _is_warp(op: Op) -> bool:
    return op.kind in KINDS_OF_WARPS and op.arithmetic != 0


# ---- torch's rounding ----------------------------------------------------------------------------


def _rounding_of_grid(height: int, width: int) -> int:
    """FUSED_GRID or 0: how torch computes the grid for images of this size."""
    return _known(("grid", height, width), f"computes the grid for {height} x {width} pixels",
                  (0, FUSED_GRID), partial(_grid_differs, height, width))


def _rounding_of_samples() -> int:
    """FUSED_SAMPLES or 0: how torch's grid_sample() rounds."""
    return _known("grid_sample", "samples tensors at a grid", (0, FUSED_SAMPLES), _samples_differ)


def _known(key: Any, does: str, choices: Sequence[int], differs: Callable[[int], list[str]]) -> int:
    """The first choice with which nothing differs. Raises UnsupportedError if there is none."""

    def find() -> int | str:
        reason = ""
        for choice in choices:
            reason = why_not(does, partial(differs, choice), f"torch {torch.__version__}")
            if not reason:
                return choice
        return reason

    found: int | str = once(key, find)
    if isinstance(found, str):
        raise UnsupportedError(found)
    return found


def _thetas(height: int, width: int) -> Iterator[torch.Tensor]:
    """Matrices as torchvision makes them for images of this size, of any rotation and scale."""
    for trial in range(_N_TRIALS):
        angle, scale = 0.3 + 1.7 * trial, 0.6 + 0.31 * trial
        turn = scale * np.array([[np.cos(angle), np.sin(angle)], [-np.sin(angle), np.cos(angle)]])
        moved = np.array([[0.13 * width], [-0.21 * height]]) * (trial - 1.3)
        theta = torch.tensor(np.hstack([turn, moved]), dtype=torch.float32).reshape(1, 2, 3)
        yield theta.transpose(1, 2) / torch.tensor([0.5 * width, 0.5 * height])


def _grid_differs(height: int, width: int, rounding: int) -> list[str]:
    base = torch.empty(1, height, width, 3)
    base[..., 0].copy_(torch.linspace((1 - width) * 0.5, (width - 1) * 0.5, width))
    base[..., 1].copy_(torch.linspace((1 - height) * 0.5, (height - 1) * 0.5, height)[:, None])
    base[..., 2].fill_(1)
    x = np.arange(width, dtype=np.float32) + np.float32((1 - width) * 0.5)
    y = (np.arange(height, dtype=np.float32) + np.float32((1 - height) * 0.5))[:, None]
    different = []
    for theta in _thetas(height, width):
        grid = base.view(1, height * width, 3).bmm(theta).view(height, width, 2).numpy()
        for i, factors in enumerate(theta[0].T.numpy()):
            first = x * factors[0]
            added = _add_product(first, y, factors[1], rounding != 0)
            if not np.array_equal(grid[..., i], added + factors[2]):
                different.append("xy"[i])
    return list(dict.fromkeys(different))


def _samples_differ(rounding: int) -> list[str]:
    is_fused = rounding != 0
    image = made(23, 17).astype(np.float32)
    points = (made(41, 37, 2).astype(np.float32) - 127.3) / 97.1  # some are outside the image
    tensor = torch.from_numpy(image).permute(2, 0, 1)[None]
    grid = torch.from_numpy(points)[None]
    different = []
    for mode, sample in (("bilinear", _bilinear), ("nearest", _nearest)):
        for layout in (torch.contiguous_format, torch.channels_last):
            result = torch.nn.functional.grid_sample(
                tensor.contiguous(memory_format=layout), grid, mode=mode, align_corners=False
            )
            wanted = sample(image, points, is_fused)
            if not np.array_equal(result[0].permute(1, 2, 0).numpy(), wanted):
                different.append(mode)
    return list(dict.fromkeys(different))


# ---- the native code's sampling, for floats ------------------------------------------------------


def _add_product(base: Any, a: Any, b: Any, is_fused: bool) -> np.ndarray:
    """base + a * b of float32 values: rounded once (``is_fused``), or with a rounded product."""
    if not is_fused:
        total: np.ndarray = base + a * b
        return total
    product = np.multiply(a, b, dtype=np.float64)  # exact
    other = np.broadcast_to(np.asarray(base, np.float64), np.broadcast(base, product).shape)
    # The sum in float64, rounded to odd by its error (Knuth's TwoSum), so that rounding it again to
    # float32 gives the exact sum's rounding.
    rough = product + other
    part = rough - product
    error = (product - (rough - part)) + (other - part)
    is_even = (rough.view(np.int64) & 1) == 0
    toward = np.where(error > 0, np.inf, -np.inf)
    exact = np.where((error != 0) & is_even, np.nextafter(rough, toward), rough)
    result: np.ndarray = exact.astype(np.float32)
    return result


def _places(points: np.ndarray, image: np.ndarray, is_fused: bool) -> list[np.ndarray]:
    """The points' columns and rows."""
    height, width = image.shape[:2]
    halves = np.float32(width) / 2, np.float32(height) / 2
    return [
        _add_product(np.float32(-0.5), points[..., i] + np.float32(1), half, is_fused)
        for i, half in enumerate(halves)
    ]


def _pixels_at(image: np.ndarray, column: np.ndarray, row: np.ndarray) -> np.ndarray:
    """The pixels at these places; 0 outside the image."""
    height, width = image.shape[:2]
    inside = (column >= 0) & (column < width) & (row >= 0) & (row < height)
    at = np.clip(row, 0, height - 1).astype(int), np.clip(column, 0, width - 1).astype(int)
    pixels: np.ndarray = np.where(inside[..., None], image[at], np.float32(0))
    return pixels


def _nearest(image: np.ndarray, points: np.ndarray, is_fused: bool) -> np.ndarray:
    return _pixels_at(image, *map(np.rint, _places(points, image, is_fused)))


def _bilinear(image: np.ndarray, points: np.ndarray, is_fused: bool) -> np.ndarray:
    column, row = _places(points, image, is_fused)
    left, top = np.floor(column), np.floor(row)
    weights_x = (np.float32(1) - (column - left), column - left)
    weights_y = (np.float32(1) - (row - top), row - top)
    total: Any = np.float32(0)
    for down, across in itertools.product((0, 1), (0, 1)):
        weight = (weights_y[down] * weights_x[across])[..., None]
        pixels = _pixels_at(image, left + across, top + down)
        total = _add_product(total, pixels, weight, is_fused)
    result: np.ndarray = total
    return result


# ---- transforms ----------------------------------------------------------------------------------


def _parts_of(ops: Sequence[Op], channels: int) -> Iterator[_Part]:
    for op in ops:
        if _is_warp(op):
            names = ("RandomRotation", "RandomAffine")
            for name in names if op.kind in AUTOMATIC else (OP_NAMES[op.kind],):
                has_fill = not op.sampling & WITHOUT_FILL
                yield _Part(name, op.arithmetic, op.filter, has_fill, channels)
        if op.kind == KINDS["Grayscale"]:
            channels = int(op.values[0])


def _why_not_part(part: _Part) -> str:
    kind = {3: "RGB", 1: "grayscale"}[part.channels]
    by = FILTER_NAMES[part.filter]
    return why_not(
        f"with torchvision {torchvision_version()} applies {part.name} by {by} to uint8 tensors",
        lambda: [] if all(_are_equal(part)) else [kind],
        f"torch {torch.__version__}",
    )


def _op_of(part: _Part) -> Op:
    if part.name == "RandomRotation":
        op = Op(KINDS[part.name], values=(-170, 170, 0, 0, 0, *_FILL))
    else:
        values = (-20, 20, 1, 0.2, 0.2, 1, 4, -15, 15, -10, 10, 0, 0, 0, *_FILL)
        op = Op(KINDS[part.name], scale_low=0.7, scale_high=1.4, values=values)
    sampling = 0 if part.has_fill else WITHOUT_FILL
    op = op._replace(filter=part.filter, arithmetic=part.arithmetic, sampling=sampling)
    return settled([op], _SIZE)[0]


def _applied(part: _Part, image: torch.Tensor, values: Sequence[float]) -> torch.Tensor:
    """torchvision's result for given parameters."""
    functional = sys.modules[
        FUNCTIONAL if part.arithmetic == TENSOR_V1 else "torchvision.transforms.v2.functional"
    ]
    mode = sys.modules[FUNCTIONAL].InterpolationMode(FILTER_NAMES[part.filter])
    fill = [float(one) for one in _FILL[: part.channels]] if part.has_fill else None
    if part.name == "RandomRotation":
        turned: torch.Tensor = functional.rotate(image, values[0], interpolation=mode, fill=fill)
        return turned
    moved: torch.Tensor = functional.affine(
        image, angle=values[0], translate=[int(values[1]), int(values[2])], scale=values[3],
        shear=list(values[4:6]), interpolation=mode, fill=fill,
    )
    return moved


def _are_equal(part: _Part) -> Iterator[bool]:
    height, width = _SIZE
    image = made(width, height, part.channels)
    tensor = torch.from_numpy(image).permute(2, 0, 1)
    run = Run([_op_of(part)], image, _N_TRIALS)
    try:
        for draws, got in itertools.islice(run.results(), _N_TRIALS):
            # In the memory format of converted PIL images, and in torch's contiguous one.
            for one in (tensor, tensor.contiguous()):
                result = _applied(part, one, draws[0][6])
                yield np.array_equal(result.permute(1, 2, 0).numpy(), got)
    finally:
        run.close()
