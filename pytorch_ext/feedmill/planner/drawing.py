"""Random numbers, and functions of Pillow, in functions of the user's own that ``evaluating``
evaluates.

The functions' random numbers are replaced by the native path's, which have the same distribution:
``random.random()``, ``random.uniform(a, b)``, NumPy's equivalents of both and ``torch.rand(1)``,
and sums and products of these with numbers. What a function does under a condition on such a number
becomes a Chance, what it does with Pillow a PilCall. ``picking`` has the values that are drawn from
a few.
"""

from __future__ import annotations

import math
import operator
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import FunctionType
from typing import Any

import torch

from feedmill._internals import FUNCTIONAL, V2_GEOMETRY
from feedmill.planner.efficient_crops import EfficientCrop
from feedmill.planner.generators import (
    NUMPY,
    NUMPY_ROUNDED_ONCE,
    PYTHON,
    TORCH,
    TORCH_TENSOR,
    numpys_uniform,
)
from feedmill.planner.halving_crops import HalvingCrop
from feedmill.planner.picking import Choice, Pick
from feedmill.planner.untouched import is_original


@dataclass(frozen=True)
class PilCall:
    """A function of Pillow, or of torchvision.transforms.functional, that the user's function
    applies to a PIL image, in the place of a transform.

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
        if self.name in _OF_TORCHVISION:
            functional = sys.modules[FUNCTIONAL]
            return getattr(functional, _OF_TORCHVISION[self.name])(image, *self.values)
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
        formula: (offset, factor), if it is offset + factor * random.random(), to the last bit;
            None: it is something else.
        source: the Draw of which this one was computed; None: it is itself the result of a call.
        generator: PYTHON or another of ``generators``, in place of random.random(). With
            TORCH_TENSOR the formula is computed in float32.
        is_tensor: it is a tensor of one float32 number.

    Raises:
        OverflowError: the numbers, or the distance between them, are not finite.
    """

    def __init__(
        self,
        low: float,
        high: float,
        formula: tuple[float, float] | None = None,
        source: Draw | None = None,
        generator: int = PYTHON,
        is_tensor: bool = False,
    ) -> None:
        self.formula = formula
        self.generator = generator
        self.is_tensor = is_tensor
        self.source: Draw = self if source is None else source
        self.low, self.high = float(low), float(high)
        if not math.isfinite(self.high - self.low):
            raise OverflowError("the limits of a random number are not finite")
        self.is_used = False


    def item(self) -> Draw:
        """The number in a tensor."""
        return Draw(self.low, self.high, self.formula, self.source, self.generator)


class Bernoulli:
    """The result of torch.bernoulli(): a tensor that is 1 if a number is less than p.

    Args:
        p: a probability, which torch compares in float32.
    """

    def __init__(self, p: float) -> None:
        self.p = p
        self.draw = Draw(0, 1, (0.0, 1.0), generator=TORCH, is_tensor=True)


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
        return number, float(self.limit), *self.draw.formula, float(self.draw.generator)


# By fm_comparison, from 1 on.
COMPARISONS = ("<", "<=", ">", ">=")
NEGATED = {"<": ">=", "<=": ">", ">": "<=", ">=": "<"}
TURNED = {"<": ">", "<=": ">=", ">": "<", ">=": "<="}


class Undecided(Exception):
    """The evaluation needs to know whether a Condition is true, or which value a Pick has.

    Args:
        n_calls: that the function has made before.
    """

    def __init__(self, question: Condition | Pick, n_calls: int) -> None:
        super().__init__(question)
        self.question = question
        self.n_calls = n_calls


def draw_of(
    name: str, arguments: Sequence[Any], keywords: Mapping[str, Any]
) -> Draw | None:
    """The result of a function call that draws a number; None: it is another call. Raises
    OverflowError as Draw.

    Args:
        name: of the function, see drawing_function().
    """
    if name in ("random.random", "numpy.rand", "numpy.random", "numpy.random_sample"):
        generator = PYTHON if name == "random.random" else NUMPY
        return None if arguments or keywords else Draw(0, 1, (0.0, 1.0), generator=generator)
    if name == "torch.rand":
        # Without keywords, it is a tensor of the default type.
        is_one = not keywords and list(arguments) in ([1], [[1]], [(1,)])
        if not is_one or torch.get_default_dtype() is not torch.float32:
            return None
        return Draw(0, 1, (0.0, 1.0), generator=TORCH, is_tensor=True)
    if name not in _LIMITS:
        return None
    limits = _LIMITS[name]
    given = {**dict(zip(limits, arguments)), **keywords}
    if len(given) != len(arguments) + len(keywords) or not given.keys() <= limits.keys():
        return None
    low, high = (limits | given).values()
    if type(low) not in (int, float) or type(high) not in (int, float):
        return None
    if name == "random.uniform":
        return Draw(low, high, (float(low), float(high - low)))
    way = numpys_uniform()
    if way is None:
        return Draw(low, high)
    return Draw(low, high, (float(low), float(high) - float(low)), generator=way)


# The arguments of functions that draw between two limits, and their defaults.
_LIMITS: dict[str, dict[str, Any]] = {
    "random.uniform": {"a": None, "b": None},
    "numpy.uniform": {"low": 0.0, "high": 1.0},
}


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
    # torch computes with float32 numbers as long as they are tensors, Python in double.
    number = other if is_left else one
    assert not isinstance(number, Draw)
    is_mixed = draw.generator == TORCH_TENSOR and not draw.is_tensor
    is_large = draw.is_tensor and abs(number) > _MAX_OF_TENSORS
    if draw.formula is not None and not is_mixed and not is_large:
        formula = _formula_of(operation, is_left, float(number), *draw.formula)
    # Of a formula without an offset: so far there is only one product, and no sum.
    generator = NUMPY if draw.generator == NUMPY_ROUNDED_ONCE else draw.generator
    generator = TORCH_TENSOR if draw.is_tensor else generator
    return Draw(low, high, formula, draw.source, generator, draw.is_tensor)


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
_MAX_OF_TENSORS = 1e6  # with larger ints, or products, float32 rounds in other ways
_LEAST_WIDTH = 1e-6
_LEAST_CHANCE = 1e-5


# ---- branches ------------------------------------------------------------------------------------

_MAX_CONDITIONS = 4
_MAX_CHILDREN = 16  # as FM_MAX_CHILDREN


class Ambiguous(Exception):
    """Which transforms are applied is not a matter of a Chance or Choice."""


# Of the first Conditions and Picks: whether each is true, or the number of its value.
Outcomes = tuple[int, ...]


def follow_branches(
    evaluate: Callable[[Outcomes], Sequence[Any]], outcomes: Outcomes = ()
) -> list[Any]:
    """The transforms that a function applies, if drawn numbers decide about some.

    Args:
        evaluate: returns the transforms for these outcomes. Raises Undecided at the next Condition
            or Pick.

    Raises:
        Ambiguous: the transforms under a condition do not only come on top of the others, or there
            are too many conditions.
    """
    try:
        return list(evaluate(outcomes))
    except Undecided as found:
        question, n_before = found.question, found.n_calls
    if len(outcomes) == _MAX_CONDITIONS:
        raise Ambiguous("it depends on too many random numbers")
    if type(question) is Pick:
        numbers = range(len(question.values))
        branches = [follow_branches(evaluate, (*outcomes, one)) for one in numbers]
        return _joined(branches, question, n_before)
    assert isinstance(question, Condition)
    condition, p, is_negated = question, question.p, False
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


def _joined(branches: Sequence[list[Any]], pick: Pick, n_before: int) -> list[Any]:
    """The transforms that a function applies, from those for each value of a Pick, of which
    n_before are applied before it is drawn."""
    first = branches[0]
    rests = [branch[n_before:][::-1] for branch in branches]
    n_after = min(_n_equal(rests[0], rest) for rest in rests)
    children: list[tuple[Any, ...]] = []
    sums: list[float] = []
    for branch, most in zip(branches, pick.sums):
        if _n_equal(first, branch[:n_before]) < n_before:
            raise Ambiguous("a random number decides about the transforms before it")
        child = tuple(branch[n_before : len(branch) - n_after])
        if children and _are_all_equal(children[-1], child):
            sums[-1] = most
        else:
            children.append(child)
            sums.append(most)
    if len(children) > _MAX_CHILDREN:
        raise Ambiguous("a random number decides which of too many transforms it applies")
    choice = Choice(tuple(children), tuple(sums), pick)
    return [*first[:n_before], choice, *first[len(first) - n_after :]]


def _are_all_equal(some: Sequence[Any], others: Sequence[Any]) -> bool:
    return len(some) == len(others) == _n_equal(some, others)


def _n_equal(some: Sequence[Any], others: Sequence[Any]) -> int:
    n = 0
    while n < min(len(some), len(others)) and _are_equal(some[n], others[n]):
        n += 1
    return n


def _are_equal(one: Any, other: Any) -> bool:
    if type(one) is Chance and type(other) is Chance:
        return one.p == other.p and _are_all_equal(one.transforms, other.transforms)
    if type(one) is Choice and type(other) is Choice:
        return (
            one.sums == other.sums
            and one.pick is not None
            and other.pick is not None
            and one.pick.is_drawn_like(other.pick)
            and all(map(_are_all_equal, one.children, other.children))
        )
    return one is other or (type(one) is PilCall and one == other)


# ---- order ---------------------------------------------------------------------------------------

# What a function has done in one evaluation, in order: the Draws of its calls, Conditions and Picks
# with their outcome, None if nothing depends on it, and transforms.
Events = Sequence[tuple[Any, int | None]]


def in_order(transforms: Sequence[Any], paths: Sequence[Events]) -> list[Any]:
    """The transforms of follow_branches(). If any of the evaluations shows that the function draws
    its random numbers in another order than that in which the transforms need them, or that it
    draws others, these have no condition, no Pick and no formula.

    Args:
        paths: the events of each evaluation.
    """
    if all(_is_in_order(transforms, events) for events in paths):
        return list(transforms)
    return [_without_order(one) for one in transforms]


def _without_order(transform: Any) -> Any:
    if type(transform) is Chance:
        return Chance(transform.p, tuple(map(_without_order, transform.transforms)))
    if type(transform) is Choice:
        children = (tuple(map(_without_order, child)) for child in transform.children)
        return Choice(tuple(children), transform.sums, None)
    if type(transform) is PilCall and transform.draw is not None:
        low, high = transform.values
        return PilCall(transform.name, transform.values, Draw(low, high))
    return transform


def _is_in_order(transforms: Sequence[Any], events: Events) -> bool:
    remaining = _uses(events)
    return remaining is not None and _follow(transforms, remaining) and not remaining


def _uses(events: Events) -> list[tuple[Any, int | None]] | None:
    """The events without Draws; None if one is not used up by the next event."""
    found: list[tuple[Any, int | None]] = []
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


def _follow(transforms: Sequence[Any], remaining: list[tuple[Any, int | None]]) -> bool:
    """Takes the events away that the transforms lead to; False if these are others."""
    for one in transforms:
        if not remaining:
            return False
        what, outcome = remaining.pop(0)
        if type(one) is Choice:
            if type(what) is not Pick or one.pick is None or outcome is None:
                return False
            child = one.child_of(outcome) if what.is_drawn_like(one.pick) else None
            if child is None or not _follow(child, remaining):
                return False
            continue
        if type(one) is not Chance:
            if not _are_same(one, what):
                return False
            continue
        if type(what) is not Condition or one.condition is None or outcome is None:
            return False
        if what.numbers() is None or what.numbers() != one.condition.numbers():
            return False
        if bool(outcome) is not one.is_negated and not _follow(one.transforms, remaining):
            return False
    return True


def _are_same(one: Any, other: Any) -> bool:
    if type(one) is PilCall and type(other) is PilCall and one.draw is not None:
        return one == other and other.draw is not None and (
            (one.draw.formula, one.draw.generator) == (other.draw.formula, other.draw.generator)
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
# torchvision's functions by the op's name, and the other names that some have in v2.
_OF_TORCHVISION = {
    "RandomHorizontalFlip": "hflip", "RandomVerticalFlip": "vflip", "RandomRotation": "rotate",
}
_NAMES_IN_V2 = {"horizontal_flip": "hflip", "vertical_flip": "vflip"}
# As in fm_op.
_MAX_RADIUS = 10.0
_MAX_VALUE = 1e9


# What stands in the place of a transform.
STEPS = (PilCall, Chance, Choice, HalvingCrop, EfficientCrop)


def call_of(function: Any, arguments: Sequence[Any]) -> PilCall | None:
    """A call of one of ImageOps' functions, or a flip or rotation by one of torchvision's, with
    arguments after the image; None: it is another."""
    if type(function) is not FunctionType:
        return None
    name = function.__name__
    if any(is_original(function, module, name) for module in (FUNCTIONAL, V2_GEOMETRY)):
        return _torchvisions_call(name, arguments)
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


def _torchvisions_call(name: str, arguments: Sequence[Any]) -> PilCall | None:
    name = _NAMES_IN_V2.get(name, name)
    ops = [op for op, function in _OF_TORCHVISION.items() if function == name]
    are_numbers = all(type(one) in (int, float) and abs(one) <= _MAX_VALUE for one in arguments)
    if not ops or not are_numbers or len(arguments) != (name == "rotate"):
        return None
    return PilCall(ops[0], tuple(arguments))


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
