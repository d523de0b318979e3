"""Applies timm's automatic augmentations and RandomErasing with given draws: timm's own code runs,
with other results of its random numbers."""

from __future__ import annotations

import copy
import functools
import math
import sys
from collections.abc import Iterator, Sequence
from types import FunctionType
from typing import Any

import torch

from feedmill._ops import native
from feedmill.iterators.torch_pixels import PixelDraw
from feedmill.planner.plan import FILTER_NAMES, FILTERS
from feedmill.planner.timm_augment import GEOMETRIC, OPERATIONS, SIGNED, filters_of, name_of
from feedmill.planner.timm_hashes import AUGMENT
from feedmill.planner.timm_objects import ERASING


def _steps(values: Sequence[float]) -> Iterator[tuple[str, float, float]]:
    """An fm_draw's values as (operation, signed magnitude, filter or radius)."""
    for what, level, detail in zip(values[::3], values[1::3], values[2::3]):
        yield OPERATIONS[int(what)], level, detail


def in_words(values: Sequence[float]) -> tuple[tuple[str, float, Any], ...]:
    """The draws as DataLoader.draws() gives them: operation, magnitude, and the filter's name, the
    radius of GaussianBlurRand or None."""
    done: list[tuple[str, float, Any]] = []
    for name, level, detail in _steps(values):
        more: Any = FILTER_NAMES[int(detail)] if name in GEOMETRIC else None
        done.append((name, level, detail if name == "GaussianBlurRand" else more))
    return tuple(done)


class _Given:
    """The module random, with given results."""

    def __init__(self, randoms: list[float], uniforms: list[float], level: float, chosen: Any):
        self._randoms, self._uniforms = randoms, uniforms
        self._level, self._chosen = level, chosen

    def random(self) -> float:
        return self._randoms.pop(0)

    def uniform(self, _low: float, _high: float) -> float:
        return self._uniforms.pop(0)

    def gauss(self, _mean: float, _deviation: float) -> float:
        return self._level

    def choice(self, _choices: Any) -> Any:
        return self._chosen


def augmented(transform: Any, image: Any, values: Sequence[float]) -> Any:
    """Applies the drawn operations of a RandAugment or AutoAugment to a PIL image."""
    if type(transform).__name__ == "RandAugment":
        ops = list(transform.ops)
    else:
        ops = [op for one in transform.policy for op in one]
    for name, level, detail in _steps(values):
        image = _apply(_op_of(ops, name, abs(level)), image, level, detail)
    return image


def _op_of(ops: Sequence[Any], name: str, level: float) -> Any:
    """The AugmentOp with this name which may have drawn this magnitude. Those with the same name
    differ in the magnitude at most."""
    for op in ops:
        most = getattr(op, "magnitude_max", None) or 10.0
        is_random = op.magnitude_std > 0
        if name_of(op) == name and (is_random or max(0.0, min(op.magnitude, most)) == level):
            return op
    raise RuntimeError(f"timm's transform has no operation {name} of magnitude {level}")


def _apply(op: Any, image: Any, level: float, detail: float) -> Any:
    """Calls an AugmentOp whose module sees other random numbers."""
    randoms = [0.0] if op.prob < 1 else []  # it is applied
    name = name_of(op)
    if name in SIGNED:
        randoms.append(1.0 if str(level).startswith("-") else 0.0)
    uniforms = [abs(level)] if op.magnitude_std == float("inf") else []
    chosen = None
    if name == "GaussianBlurRand":
        uniforms.append(detail)
    elif name in GEOMETRIC:
        chosen = next(one for one in filters_of(op) if FILTERS[int(one)] == int(detail))
    given = _module_with(AUGMENT, random=_Given(randoms, uniforms, abs(level), chosen))
    with_draws = copy.copy(op)
    with_draws.aug_fn = given[op.aug_fn.__name__]
    if isinstance(op.level_fn, functools.partial):
        level_fn = op.level_fn
        with_draws.level_fn = functools.partial(given[level_fn.func.__name__], **level_fn.keywords)
    elif op.level_fn is not None:
        with_draws.level_fn = given[op.level_fn.__name__]
    call = FunctionType(type(op).__call__.__code__, given)
    return call(with_draws, image)


def _module_with(module: str, **replaced: Any) -> dict[str, Any]:
    """The names of a module of timm, whose functions use these values in place of its own."""
    names = dict(vars(sys.modules[module]))
    for name, function in list(names.items()):
        if isinstance(function, FunctionType) and function.__module__ == module:
            made = FunctionType(function.__code__, names, name, function.__defaults__)
            names[name] = made
    names.update(replaced)
    return names


# ---- RandomErasing -------------------------------------------------------------------------------

# Where an fm_draw's values hold random colors: three numbers for each box.
_COLORS = 16
Box = tuple[int, int, int, int]  # top, left, height, width


def boxes_of(draw: Any) -> list[Box]:
    """All boxes of a RandomErasing's draw."""
    _, top, left, height, width, flip, values = draw
    if len(values) > _COLORS:
        values = values[: 2 * ((len(values) - _COLORS) // 3)]
    boxes = [(top, left, height, width)] if flip else []
    for corner, size in zip(values[2::2], values[3::2]):
        boxes.append((*divmod(int(corner), 65536), *divmod(int(size), 65536)))
    return boxes


def noise_seed_of(draw: Any) -> int:
    """The seed of the random numbers that a RandomErasing writes."""
    values = draw[6]
    return int(values[0]) | int(values[1]) << 32 if values else 0


class _GivenBox:
    """The module random, with results that lead to one box."""

    def __init__(self, box: Box, height: int, width: int) -> None:
        top, left, rows, columns = box
        self._corner = [top, left]
        self._uniforms = [rows * columns / (height * width), math.log(rows / columns)]

    def random(self) -> float:
        return 0.0  # it is applied

    def uniform(self, _low: float, _high: float) -> float:
        return self._uniforms.pop(0)

    def randint(self, _low: int, _high: int) -> int:
        return self._corner.pop(0)


class _GivenNoise:
    """The module torch, whose normal_() gives random colors in turn or, without any, the random
    numbers of a seed."""

    def __init__(self, seed: int, colors: Sequence[float]) -> None:
        self._seed = seed
        self._n_made = 0
        self._colors = [colors[i : i + 3] for i in range(0, len(colors), 3)]

    def empty(self, shape: Sequence[int], *, dtype: Any, device: Any) -> Any:
        return _Unfilled(self, torch.empty(shape, dtype=dtype, device=device))

    def zeros(self, shape: Sequence[int], *, dtype: Any, device: Any) -> Any:
        return torch.zeros(shape, dtype=dtype, device=device)

    def next_box(self, number: int) -> None:
        """Called before a box is written."""
        self._box = number

    def fill(self, tensor: Any) -> Any:
        if self._colors:
            color = torch.tensor(self._colors[self._box][: tensor.numel()])
            return tensor.copy_(color.view(tensor.shape))
        numbers = native.noise(self._seed, self._n_made, tensor.numel())
        self._n_made += tensor.numel()
        given = torch.frombuffer(bytearray(numbers), dtype=torch.float32)
        return tensor.copy_(given.view(tensor.shape))


class _TorchNoise(_GivenNoise):
    """The module torch, whose normal_() draws from a generator with this state."""

    def __init__(self, state: torch.Tensor) -> None:
        super().__init__(0, ())
        self._generator = torch.Generator()
        self._generator.set_state(state)

    def fill(self, tensor: Any) -> Any:
        return tensor.normal_(generator=self._generator)


class _Unfilled:
    """A tensor, as far as timm's code fills it."""

    def __init__(self, noise: _GivenNoise, tensor: Any) -> None:
        self._noise, self._tensor = noise, tensor

    def normal_(self) -> Any:
        return self._noise.fill(self._tensor)


def noise_of(draw: Any, shape: Sequence[int]) -> torch.Tensor:
    """The random numbers of this shape that torchvision's RandomErasing writes."""
    numbers = torch.empty(shape)
    if not numbers.numel():
        return numbers
    is_torchs = isinstance(draw, PixelDraw)
    noise = _TorchNoise(draw.state) if is_torchs else _GivenNoise(noise_seed_of(draw), ())
    return noise.fill(numbers)  # type: ignore[no-any-return]


def erased(transform: Any, image: Any, draw: Any) -> Any:
    """Applies a RandomErasing to an image tensor (channels, height, width): timm's own code writes
    each box."""
    noise = _GivenNoise(noise_seed_of(draw), draw[6][_COLORS:])
    if isinstance(draw, PixelDraw) and transform.per_pixel:
        noise = _TorchNoise(draw.state)
    once = copy.copy(transform)
    once.min_count = once.max_count = 1
    for number, box in enumerate(boxes_of(draw)):
        noise.next_box(number)
        if not box[2] or not box[3]:
            continue  # it has no pixels
        given = _module_with(ERASING, random=_GivenBox(box, *image.shape[1:]), torch=noise)
        erase = FunctionType(type(transform)._erase.__code__, given)
        erase(once, image, *image.shape, image.dtype)
    return image
