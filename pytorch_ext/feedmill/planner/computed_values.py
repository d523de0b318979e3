"""Values that a dataset's ``__getitem__`` computes of what it looks up: ``self.labels[index] - 1``,
``1 if "dog" in path else 0``, ``np.array(label)``, ``torch.tensor([x, y])``.

They are computed by Python, NumPy and torch themselves when a sample is looked up.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch.nn.functional import one_hot

from feedmill.planner.looked_up import CONSTANTS, Value, constant
from feedmill.planner.view_calls import MadeList

_OPERATORS: dict[type[ast.AST], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul,
    ast.Div: operator.truediv, ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod,
    ast.Eq: operator.eq, ast.NotEq: operator.ne, ast.Lt: operator.lt, ast.LtE: operator.le,
    ast.Gt: operator.gt, ast.GtE: operator.ge, ast.Is: operator.is_, ast.IsNot: operator.is_not,
    ast.In: lambda one, other: one in other, ast.NotIn: lambda one, other: one not in other,
}
# Functions that make new objects of Python's, NumPy's and torch's own objects.
_FUNCTIONS = (
    bool, abs, round, np.array, np.asarray, np.int64, np.int32, np.float32, np.float64,
    torch.tensor, torch.as_tensor, torch.from_numpy, one_hot, torch.FloatTensor, torch.LongTensor,
)
_OF_LISTS = (torch.FloatTensor, torch.LongTensor)  # of a number they make so many numbers
_HAVE_DTYPE = (np.array, np.asarray, torch.tensor, torch.as_tensor)
# Methods of such objects that change nothing.
_METHODS = (
    "astype", "item", "tolist", "copy", "clone", "long", "float", "int", "squeeze", "unsqueeze",
)


class Sample(list[Any]):
    """The values of a tuple that ``__getitem__`` makes."""


def is_plain_value(value: Any) -> bool:
    """Whether a value is one of Python's, NumPy's or torch's own objects, whatever the index: it is
    looked up in a container of such, a constant, or made of such values."""
    if type(value) is not Value:
        return False
    if value.is_constant or value.container is not None:
        return True
    return bool(value.sources) and all(map(is_plain_value, value.sources))


def as_value(given: Any) -> Value | None:
    """A value, or one of a constant, a dtype, or a list or tuple; None: something else.

    Args:
        given: a list or tuple that ``__getitem__`` makes stands for its values; one that is looked
            up is used as it is.
    """
    if type(given) is Value:
        return given
    if type(given) in CONSTANTS:
        return constant(given)
    if type(given) is torch.dtype or (type(given) is type and issubclass(given, np.generic)):
        made = Value(lambda index, sample: given, (), given, None, repr(given))
        made.is_constant = True
        return made
    if type(given) in (list, tuple):
        # An object of the script's. _made() checks its elements.
        made = Value(lambda index, sample: given, (), given, None, type(given).__name__)
        made.is_constant = True
        return made
    if type(given) not in (Sample, MadeList):
        return None  # also subclasses, which may have operators of their own
    parts = [as_value(one) for one in given]
    known = [one for one in parts if one is not None]
    if len(known) != len(parts) or not known:
        return None
    kind = tuple if type(given) is Sample else list
    return Value(
        lambda index, sample: kind(one.of(index, sample) for one in known),
        known, None, None, kind.__name__,
    )


Made = tuple[Callable[[Any, Any], Any], list[Value], str]


def _plain_values(given: Sequence[Any]) -> list[Value] | None:
    """The arguments as values, of which one at least depends on the index."""
    values = [as_value(one) for one in given]
    known = [one for one in values if one is not None and is_plain_value(one)]
    is_any_looked_up = any(not one.is_constant for one in known)
    return known if len(known) == len(values) and is_any_looked_up else None


def result_of_operator(kind: ast.AST, one: Any, other: Any) -> Made | None:
    """What an operator or a comparison makes of two values; None: it is not known."""
    values = _plain_values([one, other])
    if values is None or type(kind) not in _OPERATORS:
        return None
    # Whether equal numbers are one object depends on the interpreter.
    if isinstance(kind, ast.Is | ast.IsNot) and not any(each is None for each in (one, other)):
        return None
    operate, (left, right) = _OPERATORS[type(kind)], values
    return (
        lambda index, sample: operate(left.of(index, sample), right.of(index, sample)),
        values, type(kind).__name__,
    )


def is_computing(function: Any) -> bool:
    """Whether a function is one of those whose results are computed."""
    return any(function is one for one in _FUNCTIONS)


def result_of_function(
    function: Any, given: Sequence[Any], keywords: dict[str, Any]
) -> Made | None:
    """What a function that is_computing() makes of values; None: they are no such values."""
    names = list(keywords)
    if names not in ([], ["dtype"]) or (names and not any(function is one for one in _HAVE_DTYPE)):
        return None
    values = _plain_values([*given, *keywords.values()])
    if values is None or not 1 <= len(given) <= 2:
        return None
    if any(function is one for one in _OF_LISTS) and not isinstance(given[0], list | tuple):
        return None

    def of(index: Any, sample: Any) -> Any:
        made = [one.of(index, sample) for one in values]
        n = len(given)
        return function(*made[:n], **dict(zip(names, made[n:])))

    return of, values, f"{function!r}{names}"


def result_of_method(name: str, owner: Value, given: Sequence[Any]) -> Made | None:
    """What a method of a value makes; None: another method, or not of such a value."""
    values = _plain_values([owner, *given])
    if name not in _METHODS or values is None:
        return None

    def of(index: Any, sample: Any) -> Any:
        held, *arguments = (one.of(index, sample) for one in values)
        return getattr(held, name)(*arguments)

    return of, values, f".{name}"


def result_of_choice(test: Any, one: Any, other: Any) -> Made | None:
    """The value of ``one if test else other``; None: a part of it is something else."""
    first, second = as_value(one), as_value(other)
    if first is None or second is None:
        return None
    if not all(map(is_plain_value, (test, first, second))):  # such as a number that is drawn
        return None
    return (
        lambda index, sample: (first if test.of(index, sample) else second).of(index, sample),
        [test, first, second], "if",
    )
