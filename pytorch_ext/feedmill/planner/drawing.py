"""Random numbers, and functions of Pillow, in functions of the user's own that ``evaluating``
evaluates.

The functions' random numbers are replaced by the native path's, which have the same distribution:
``random.random()``, ``random.uniform(a, b)`` and NumPy's equivalents of both, and sums and products
of these with numbers. What a function does under a condition on such a number becomes a Chance,
what it does with Pillow a PilCall.
"""

from __future__ import annotations

import math
import operator
import random
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import BuiltinFunctionType, FunctionType, MethodType
from typing import Any

import numpy as np

from feedmill.planner.untouched import is_original


@dataclass(frozen=True)
class PilCall:
    """A function of Pillow that the user's function applies to an image, in the place of a
    transform.

    Attributes:
        name: of the op, which is always applied: a key of ``plan.KINDS``.
        values: of the op.
        draw: the radius of RandomBlur, if it is drawn.
    """

    name: str
    values: tuple[float, ...] = ()
    draw: Draw | None = field(default=None, compare=False, repr=False)

    def __call__(self, image: Any, drawn: Sequence[float]) -> Any:
        """Applies it to a PIL image.

        Args:
            drawn: the op's random numbers.
        """
        from PIL import ImageFilter, ImageOps

        if self.name == "RandomBlur":
            return image.filter(ImageFilter.GaussianBlur(drawn[0]))
        function = getattr(ImageOps, _FUNCTIONS_OF_OPS[self.name])
        return function(image, *(_as_given(self.name, value) for value in self.values))


@dataclass(frozen=True)
class Chance:
    """Transforms that the user's function applies with a probability.

    Attributes:
        condition: under which they are applied; None: not known to the last bit, or the function
            draws random numbers in another order than that in which it applies the transforms.
        is_negated: they are applied if the condition is false.
    """

    p: float
    transforms: tuple[Any, ...]
    condition: Condition | None = field(default=None, compare=False, repr=False)
    is_negated: bool = field(default=False, compare=False, repr=False)


def _as_given(name: str, value: float) -> float:
    return int(value) if name == "RandomPosterize" else value


# ---- random numbers ------------------------------------------------------------------------------


class Draw:
    """A number that is drawn between two others, with equal probability everywhere. Each may be
    used once: two uses would depend on each other.

    Args:
        formula: (offset, factor), if Python computes offset + factor * random.random(), to the last
            bit; None: it computes something else.
        source: the Draw of which this one was computed; None: it is itself the result of a call.
        is_numpys: whether NumPy's generator draws it: the formula is one of numpy.random.rand().

    Raises:
        OverflowError: the numbers, or the distance between them, are not finite.
    """

    def __init__(
        self,
        low: float,
        high: float,
        formula: tuple[float, float] | None = None,
        source: Draw | None = None,
        is_numpys: bool = False,
    ) -> None:
        self.formula = formula
        self.is_numpys = is_numpys
        self.source: Draw = self if source is None else source
        self.low, self.high = float(low), float(high)
        if not math.isfinite(self.high - self.low):
            raise OverflowError("the limits of a random number are not finite")
        self.is_used = False


class Condition:
    """A condition on a Draw, which is true with probability p: the number compares with a limit.

    Attributes:
        comparison: "<", "<=", ">" or ">=".
    """

    def __init__(self, p: float, draw: Draw, comparison: str, limit: float) -> None:
        self.p = p
        self.draw = draw
        self.comparison = comparison
        self.limit = limit

    def numbers(self, is_negated: bool = False) -> tuple[float, ...] | None:
        """What values 1 to 5 of a RandomApply are; see fm_op. None: not known to the last bit."""
        if self.draw.formula is None or float(self.limit) != self.limit:
            return None
        comparison = NEGATED[self.comparison] if is_negated else self.comparison
        number = COMPARISONS.index(comparison) + 1.0
        return number, float(self.limit), *self.draw.formula, float(self.draw.is_numpys)


# By fm_comparison, from 1 on.
COMPARISONS = ("<", "<=", ">", ">=")
NEGATED = {"<": ">=", "<=": ">", ">": "<=", ">=": "<"}
TURNED = {"<": ">", "<=": ">=", ">": "<", ">=": "<="}


class Undecided(Exception):
    """The evaluation needs to know whether a Condition is true."""

    def __init__(self, condition: Condition) -> None:
        super().__init__(condition)
        self.condition = condition


def draw_of(function: Any, arguments: Sequence[Any]) -> Draw | None:
    """The result of a function call that draws a number; None: it is another call. Raises
    OverflowError as Draw."""
    if is_of_python(function, "random"):
        return None if arguments else Draw(0, 1, (0.0, 1.0))
    if is_of_numpy(function, "rand", "random", "random_sample"):
        return None if arguments else Draw(0, 1, (0.0, 1.0), is_numpys=True)
    # How numpy.random.uniform() rounds depends on the compiler that NumPy was made with.
    is_python = is_of_python(function, "uniform")
    if is_python or is_of_numpy(function, "uniform"):
        if len(arguments) == 2 and all(type(one) in (int, float) for one in arguments):
            low, high = arguments
            return Draw(low, high, (float(low), float(high - low)) if is_python else None)
    return None


def computed(
    operation: Callable[[Any, Any], float], one: Draw | float, other: Draw | float
) -> Draw:
    """A sum, difference, product or quotient of a random number and a number, as a function of
    the module operator.

    Raises:
        ZeroDivisionError, OverflowError: as Draw, or of the operation.
    """
    is_left = isinstance(one, Draw)
    draw = one if isinstance(one, Draw) else other
    assert isinstance(draw, Draw)
    low, high = (
        operation(*((limit, other) if is_left else (one, limit)))
        for limit in (draw.low, draw.high)
    )
    formula = None
    if draw.formula is not None:
        number = other if is_left else one
        formula = _formula_of(operation, is_left, float(number), *draw.formula)  # type: ignore[arg-type]
    return Draw(low, high, formula, draw.source, draw.is_numpys)


def _formula_of(
    operation: Callable[[Any, Any], float],
    is_left: bool,
    number: float,
    offset: float,
    factor: float,
) -> tuple[float, float] | None:
    """As Draw.formula, where the same rounding gives the same results."""
    if offset != 0:
        return None
    if operation is operator.add:
        return number, factor
    if operation is operator.sub:
        return (-number, factor) if is_left else (number, -factor)
    if operation is operator.mul and factor == 1:
        return 0.0, number
    return None


def is_of_python(function: Any, name: str) -> bool:
    """Whether a function is the one of Python's module random."""
    owner = getattr(function, "__self__", None)
    if type(owner) is not random.Random or owner is not getattr(random, "_inst", None):
        return False
    if name == "random":
        # It is written in C.
        return type(function) is BuiltinFunctionType and function.__name__ == name
    # uniform() calls the generator's own random().
    is_own = "random" in vars(owner) or "random" in vars(random.Random)
    return (
        type(function) is MethodType
        and not is_own
        and is_original(function.__func__, "random", f"Random.{name}")
    )


# In NumPy 1.24 and newer a function around the generator, not a method of it.
_NUMPYS_SEED = np.random.seed


def is_of_numpy(function: Any, *names: str) -> bool:
    """Whether a function is one of NumPy's global generator."""
    kind = np.random.RandomState
    if function is _NUMPYS_SEED and type(function) is type(vars(kind).get("seed")):
        return "seed" in names
    if type(function) not in (BuiltinFunctionType, MethodType):
        return False
    owner = function.__self__
    if type(owner) is not kind or owner is not np.random.mtrand._rand:
        return False
    # What type of method it is depends on the compiler that NumPy was made with.
    made = getattr(function, "__func__", vars(kind).get(function.__name__))
    return function.__name__ in names and made is vars(kind).get(function.__name__)


def chance_of(less: Draw | float, greater: Draw | float) -> float | None:
    """The probability that one number is less than another, if one of them is drawn.

    None: neither or both are drawn, or the native path would not draw with this probability."""
    if isinstance(less, Draw):
        draw, limit = less, greater
    elif isinstance(greater, Draw):
        draw, limit = greater, less
    else:
        return None
    if isinstance(limit, Draw) or type(limit) not in (int, float) or abs(limit) > _MAX_LIMIT:
        return None
    # There must be so many numbers between that they may be taken for a continuum.
    low, high = sorted((draw.low, draw.high))
    if not high - low > _LEAST_WIDTH * max(abs(low), abs(high), 1e-200):
        return None
    below = min(max((limit - low) / (high - low), 0.0), 1.0)
    # The native path draws in float32.
    if below not in (0.0, 1.0) and not _LEAST_CHANCE <= below <= 1 - _LEAST_CHANCE:
        return None
    return below if draw is less else 1.0 - below


_MAX_LIMIT = 1e200
_LEAST_WIDTH = 1e-6
_LEAST_CHANCE = 1e-5


# ---- branches ------------------------------------------------------------------------------------

_MAX_CONDITIONS = 4


class Ambiguous(Exception):
    """Which transforms are applied is not a matter of a Chance."""


def follow_branches(
    evaluate: Callable[[tuple[bool, ...]], Sequence[Any]], outcomes: tuple[bool, ...] = ()
) -> list[Any]:
    """The transforms that a function applies, if conditions on drawn numbers decide about some.

    Args:
        evaluate: returns the transforms for these outcomes of the first conditions. Raises
            Undecided at the next one.

    Raises:
        Ambiguous: the transforms under a condition do not only come on top of the others, or there
            are too many conditions.
    """
    try:
        return list(evaluate(outcomes))
    except Undecided as found:
        condition = found.condition
    p, is_negated = condition.p, False
    if len(outcomes) == _MAX_CONDITIONS:
        raise Ambiguous("it depends on too many random numbers")
    with_it = follow_branches(evaluate, (*outcomes, True))
    without = follow_branches(evaluate, (*outcomes, False))
    if len(with_it) < len(without):
        with_it, without, p, is_negated = without, with_it, 1.0 - p, True
    n = _n_equal(with_it, without)
    n_after = _n_equal(with_it[n:][::-1], without[n:][::-1])
    if n + n_after != len(without):
        raise Ambiguous("a random number decides which of several transforms it applies")
    end = len(with_it) - n_after
    applied = tuple(with_it[n:end])
    middle = [Chance(p, applied, condition, is_negated)] if applied else []
    return [*with_it[:n], *middle, *with_it[end:]]


def _n_equal(some: Sequence[Any], others: Sequence[Any]) -> int:
    n = 0
    while n < min(len(some), len(others)) and _are_equal(some[n], others[n]):
        n += 1
    return n


def _are_equal(one: Any, other: Any) -> bool:
    if type(one) is Chance and type(other) is Chance:
        pairs = zip(one.transforms, other.transforms)
        return (
            one.p == other.p
            and len(one.transforms) == len(other.transforms)
            and all(_are_equal(*pair) for pair in pairs)
        )
    return one is other or (type(one) is PilCall and one == other)


# ---- order ---------------------------------------------------------------------------------------

# What a function has done in one evaluation, in order: the Draws of its calls, Conditions with
# their outcome, None if nothing depends on it, and transforms.
Events = Sequence[tuple[Any, bool | None]]


def in_order(transforms: Sequence[Any], paths: Sequence[Events]) -> list[Any]:
    """The transforms of follow_branches(). If any of the evaluations shows that the function draws
    its random numbers in another order than that in which the transforms need them, or that it
    draws others, these have no condition and no formula.

    Args:
        paths: the events of each evaluation.
    """
    if all(_is_in_order(transforms, events) for events in paths):
        return list(transforms)
    return [_without_order(one) for one in transforms]


def _without_order(transform: Any) -> Any:
    if type(transform) is Chance:
        return Chance(transform.p, tuple(map(_without_order, transform.transforms)))
    if type(transform) is PilCall and transform.draw is not None:
        low, high = transform.values
        return PilCall(transform.name, transform.values, Draw(low, high))
    return transform


def _is_in_order(transforms: Sequence[Any], events: Events) -> bool:
    remaining = _uses(events)
    return remaining is not None and _follow(transforms, remaining) and not remaining


def _uses(events: Events) -> list[tuple[Any, bool | None]] | None:
    """The events without Draws; None if one is not used up by the next event."""
    found: list[tuple[Any, bool | None]] = []
    drawn: Any = None
    for what, outcome in events:
        if type(what) is Draw:
            if drawn is not None:
                return None
            drawn = what
            continue
        draw = what.draw if type(what) in (Condition, PilCall) else None
        if drawn is not (None if draw is None else draw.source):
            return None
        drawn = None
        found.append((what, outcome))
    return None if drawn is not None else found


def _follow(transforms: Sequence[Any], remaining: list[tuple[Any, bool | None]]) -> bool:
    """Takes the events away that the transforms lead to; False if these are others."""
    for one in transforms:
        if not remaining:
            return False
        what, outcome = remaining.pop(0)
        if type(one) is not Chance:
            if not _are_same(one, what):
                return False
            continue
        if type(what) is not Condition or one.condition is None or outcome is None:
            return False
        if what.numbers() is None or what.numbers() != one.condition.numbers():
            return False
        if outcome is not one.is_negated and not _follow(one.transforms, remaining):
            return False
    return True


def _are_same(one: Any, other: Any) -> bool:
    if type(one) is PilCall and type(other) is PilCall and one.draw is not None:
        return one == other and other.draw is not None and (
            (one.draw.formula, one.draw.is_numpys) == (other.draw.formula, other.draw.is_numpys)
        )
    return _are_equal(one, other)


# ---- Pillow --------------------------------------------------------------------------------------

# Functions of ImageOps that are ops, with the number of arguments that they may have after the
# image, and the defaults.
_OPS: dict[str, tuple[str, tuple[float, ...]]] = {
    "autocontrast": ("RandomAutocontrast", ()),
    "equalize": ("RandomEqualize", ()),
    "invert": ("RandomInvert", ()),
    "solarize": ("RandomSolarize", (128,)),
}
_FUNCTIONS_OF_OPS = {op: name for name, (op, _) in _OPS.items()} | {"RandomPosterize": "posterize"}
# As in fm_op.
_MAX_RADIUS = 10.0
_MAX_VALUE = 1e9


def call_of(function: Any, arguments: Sequence[Any]) -> PilCall | None:
    """A call of one of ImageOps' functions with arguments after the image; None: it is another."""
    if type(function) is not FunctionType:
        return None
    name = function.__name__
    if not is_original(function, "PIL.ImageOps", name):
        return None
    if name == "posterize" and len(arguments) == 1 and type(arguments[0]) is int:
        return PilCall("RandomPosterize", tuple(arguments)) if 1 <= arguments[0] <= 8 else None
    if name not in _OPS:
        return None
    op, defaults = _OPS[name]
    is_allowed = all(type(one) in (int, float) and abs(one) <= _MAX_VALUE for one in arguments)
    if len(arguments) > len(defaults) or not is_allowed:
        return None
    return PilCall(op, (*arguments, *defaults[len(arguments) :]))


def is_blur(kind: Any) -> bool:
    """Whether a class is Pillow's GaussianBlur."""
    filters = sys.modules.get("PIL.ImageFilter")
    if kind is not getattr(filters, "GaussianBlur", Chance) or "__new__" in vars(kind):
        return False
    return all(
        is_original(vars(kind).get(name), "PIL.ImageFilter", f"GaussianBlur.{name}")
        for name in ("__init__", "filter")
    )


def blur_of(radius: Any) -> PilCall | None:
    """A GaussianBlur with this radius; None: it is not supported."""
    draw = radius if isinstance(radius, Draw) else None
    limits = (radius, radius) if draw is None else (draw.low, draw.high)
    if all(type(one) in (int, float) and 0 <= one <= _MAX_RADIUS for one in limits):
        return PilCall("RandomBlur", (float(limits[0]), float(limits[1])), draw)
    return None
