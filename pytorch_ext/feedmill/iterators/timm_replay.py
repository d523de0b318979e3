"""Applies timm's automatic augmentations with given draws: timm's own code runs, with other results
of its random numbers."""

from __future__ import annotations

import copy
import functools
import sys
from collections.abc import Iterator, Sequence
from types import FunctionType
from typing import Any

from feedmill.planner.plan import FILTER_NAMES, FILTERS
from feedmill.planner.timm_augment import GEOMETRIC, OPERATIONS, SIGNED, filters_of
from feedmill.planner.timm_hashes import AUGMENT


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
        most = op.magnitude_max or 10.0
        if op.name == name and (op.magnitude_std > 0 or max(0.0, min(op.magnitude, most)) == level):
            return op
    raise RuntimeError(f"timm's transform has no operation {name} of magnitude {level}")


def _apply(op: Any, image: Any, level: float, detail: float) -> Any:
    """Calls an AugmentOp whose module sees other random numbers."""
    randoms = [0.0] if op.prob < 1 else []  # it is applied
    if op.name in SIGNED:
        randoms.append(1.0 if str(level).startswith("-") else 0.0)
    uniforms = [abs(level)] if op.magnitude_std == float("inf") else []
    chosen = None
    if op.name == "GaussianBlurRand":
        uniforms.append(detail)
    elif op.name in GEOMETRIC:
        chosen = next(one for one in filters_of(op) if FILTERS[int(one)] == int(detail))
    given = _with_random(_Given(randoms, uniforms, abs(level), chosen))
    with_draws = copy.copy(op)
    with_draws.aug_fn = given[op.aug_fn.__name__]
    if isinstance(op.level_fn, functools.partial):
        level_fn = op.level_fn
        with_draws.level_fn = functools.partial(given[level_fn.func.__name__], **level_fn.keywords)
    elif op.level_fn is not None:
        with_draws.level_fn = given[op.level_fn.__name__]
    call = FunctionType(type(op).__call__.__code__, given)
    return call(with_draws, image)


def _with_random(random: Any) -> dict[str, Any]:
    """The names of timm's module, whose functions use this in place of the module random."""
    names = dict(vars(sys.modules[AUGMENT]))
    for name, function in list(names.items()):
        if isinstance(function, FunctionType) and function.__module__ == AUGMENT:
            made = FunctionType(function.__code__, names, name, function.__defaults__)
            names[name] = made
    names["random"] = random
    return names
