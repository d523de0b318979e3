"""Values that a user's function draws, each of a few: by random.randint(), randrange() and
choice(), numpy.random.randint() and choice().

The function is evaluated once for each of the values. What it does with them becomes a Choice.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import FunctionType, MethodType
from typing import Any

import numpy as np
import torch

from feedmill._internals import MODULE
from feedmill.planner.attributes import ABSENT, NotUnderstood, attributes_of, mro_of, of_class
from feedmill.planner.untouched import is_original

# How the number of a value is drawn, as value 32 of a RandomChoice, see fm_op.
PYTHONS_RANDRANGE, NUMPYS_RANDINT, NUMPYS_RAND = 1, 2, 3
# More take too long to evaluate.
MOST_VALUES = 128


@dataclass(frozen=True, eq=False)
class Pick:
    """A value that was drawn.

    Attributes:
        values: from which.
        sums: for each, the sum of its weight and those before it.
        way: how it is drawn.
    """

    values: Sequence[Any]
    sums: tuple[float, ...]
    way: int

    def is_drawn_like(self, other: Pick) -> bool:
        return (self.sums, self.way) == (other.sums, other.way)


@dataclass(frozen=True)
class Choice:
    """Transforms that the user's function applies, by a Pick.

    Attributes:
        children: transforms, of which one entry is applied.
        sums: for each, the sum of its weight and those before it.
        pick: None: not known to the last bit, as the function draws random numbers in another order
            than that in which it applies the transforms.
    """

    children: tuple[tuple[Any, ...], ...]
    sums: tuple[float, ...]
    pick: Pick | None

    def child_of(self, number: int) -> tuple[Any, ...]:
        """The transforms that are applied if the Pick's value has this number."""
        assert self.pick is not None
        at = self.pick.sums[number]
        return next(child for child, most in zip(self.children, self.sums) if at <= most)


def pick_of(
    name: str, arguments: Sequence[Any], keywords: Mapping[str, Any]
) -> Pick | None:
    """The Pick of a function call; None: it is another one, or one with other arguments.

    Args:
        name: of the function, see drawing_function().
    """
    if name not in _ARGUMENTS:
        return None
    names = _ARGUMENTS[name]
    given = {**dict(zip(names, arguments)), **keywords}
    if len(given) != len(arguments) + len(keywords) or not given.keys() <= set(names):
        return None
    if name == "random.choice":
        return _of_few(given.get("seq"), PYTHONS_RANDRANGE)
    if name == "numpy.choice":
        is_one = given.get("size") is None and given.get("replace", True) is True
        return _of_numpys_choice(given.get("a"), given.get("p")) if is_one else None
    first, second = given.get(names[0]), given.get(names[1])
    if second is None and name != "random.randint":
        first, second = 0, first
    if type(first) is not int or type(second) is not int:
        return None
    end = second + 1 if name == "random.randint" else second
    if max(abs(first), abs(end)) > _MAX_INT or end - first > MOST_VALUES:
        return None
    way = NUMPYS_RANDINT if name == "numpy.randint" else PYTHONS_RANDRANGE
    return _of_few([*range(first, end)], way)


_ARGUMENTS = {
    "random.randint": ("a", "b"),
    "random.randrange": ("start", "stop"),
    "random.choice": ("seq",),
    "numpy.randint": ("low", "high"),
    "numpy.choice": ("a", "size", "replace", "p"),
}
_MAX_INT = 1 << 31


def _of_few(values: Any, way: int) -> Pick | None:
    if type(values) not in (list, tuple) or not 1 <= len(values) <= MOST_VALUES:
        return None
    return Pick(values, tuple(float(i + 1) for i in range(len(values))), way)


def _of_numpys_choice(values: Any, weights: Any) -> Pick | None:
    if type(values) is int and 1 <= values <= MOST_VALUES:
        values = [*range(values)]
    elif type(values) not in (list, tuple) or not all(map(_is_object, values)):
        return None  # NumPy makes values of its own types of them
    if weights is None:
        return _of_few(values, NUMPYS_RANDINT)
    if type(weights) not in (list, tuple) or len(weights) != len(values):
        return None
    if not all(type(one) in (int, float) and one >= 0 for one in weights):
        return None
    if not math.isclose(math.fsum(weights), 1, rel_tol=0, abs_tol=1e-9):
        return None  # most likely it raises an error
    sums = np.array(weights, np.float64).cumsum()
    sums /= sums[-1]
    return Pick(values, tuple(sums.tolist()), NUMPYS_RAND)


def _is_object(value: Any) -> bool:
    """Whether an array of NumPy holds this value itself, and no values that are made of it."""
    kind = type(value)
    if kind in (FunctionType, MethodType):
        return True
    known = (object, torch.nn.Module)
    if not all(one in known or one.__flags__ & _IS_PYTHONS for one in mro_of(kind)):
        return False
    own = of_class(kind, "__getattr__")
    if own is not ABSENT and not is_original(own, MODULE, "Module.__getattr__"):
        return False
    try:
        attributes = attributes_of(value)
    except NotUnderstood:
        return False
    return not any(name in attributes or of_class(kind, name) is not ABSENT for name in _OF_ARRAYS)


_IS_PYTHONS = 1 << 9  # Py_TPFLAGS_HEAPTYPE
_OF_ARRAYS = (
    "__len__", "__getitem__", "__iter__", "__array__", "__array_interface__", "__array_struct__",
    "__buffer__", "__int__", "__float__", "__index__", "__complex__",
)
