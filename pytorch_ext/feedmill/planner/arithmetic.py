"""Arithmetic of image tensors with numbers, in functions of the user's own that ``evaluating``
evaluates: ``x * 2 - 1``, ``x.float().div(255)``, ``torch.clamp(x, 0, 1)``.

Each element of the result depends on one element of the image only, and torch computes it in the
same way wherever the element stands. So ``pixel_values`` may do it with a table of all pixel
values. Functions of which that is not certain, such as exp() and pow(), are left out.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import BuiltinFunctionType, FunctionType, MethodDescriptorType
from typing import Any

import torch

from feedmill._internals import TENSOR_MODULE, TORCH_FUNCTIONS
from feedmill.planner.attributes import of_class
from feedmill.planner.plan import UnsupportedError

# Methods of a tensor with one number, with limits, and without arguments.
_WITH_NUMBER = frozenset({"add", "sub", "mul", "div", "add_", "sub_", "mul_", "div_"})
_WITH_LIMITS = frozenset({"clamp", "clamp_"})
_WITHOUT = frozenset({"float", "half", "bfloat16", "double", "clone", "contiguous"})
_FLOATS = (torch.float32, torch.float16, torch.bfloat16, torch.float64)
_OPERATORS: Mapping[type[ast.operator], str] = {
    ast.Add: "add", ast.Sub: "sub", ast.Mult: "mul", ast.Div: "truediv",
}
# Operators whose methods torch writes in Python, or knows by another name.
_IN_PYTHON = "__rsub__"
_NAMES = {"__itruediv__": "__idiv__", "__truediv__": "__div__"}


@dataclass(frozen=True)
class TensorCall:
    """A method of an image tensor that the user's function calls, in the place of a transform.

    Attributes:
        name: of the method.
        arguments, keywords: numbers, or a type.
    """

    name: str
    arguments: tuple[Any, ...] = ()
    keywords: tuple[tuple[str, Any], ...] = ()

    def __call__(self, image: torch.Tensor) -> Any:
        return getattr(image, self.name)(*self.arguments, **dict(self.keywords))

    def check(self, kind: type) -> None:
        """Raises UnsupportedError if the method of this class of tensors is not torch's own."""
        method = of_class(kind, self.name)
        if self.name == _IN_PYTHON:
            is_own = (
                type(method) is FunctionType
                and method.__name__ == self.name
                and method.__globals__.get("__name__") == TENSOR_MODULE
                and method.__code__ is _RSUB_CODE
                and _wrapped_code(method) == _RSUB_WRAPPED
            )
        else:
            is_own = (
                type(method) is MethodDescriptorType
                and method.__name__ in (self.name, _NAMES.get(self.name))
                and method.__objclass__ is torch.Tensor.__mro__[1]
            )
        if not is_own:
            raise UnsupportedError(f"{kind.__name__}.{self.name} was replaced")


def _wrapped_code(method: Any) -> Any:
    """The code of the function that a wrapper of torch calls."""
    return getattr(getattr(method, "__wrapped__", None), "__code__", None)


# torch writes this method in Python, and wraps it.
_RSUB_CODE = getattr(torch.Tensor.__rsub__, "__code__", None)
_RSUB_WRAPPED = _wrapped_code(torch.Tensor.__rsub__)


def operator_call(
    operation: ast.operator, is_left: bool, number: Any, in_place: bool = False
) -> TensorCall | None:
    """The method that an operator between an image and a number calls; None: not supported.

    Args:
        is_left: the image is on the operator's left side.
        in_place: the operator assigns, as ``*=``.
    """
    name = _OPERATORS.get(type(operation))
    if name is None or not _is_number(number):
        return None
    if is_left:
        return TensorCall(f"__{'i' if in_place else ''}{name}__", (number,))
    return None if name == "truediv" else TensorCall(f"__r{name}__", (number,))


def method_call(
    name: str, arguments: Sequence[Any], keywords: Mapping[str, Any]
) -> TensorCall | None:
    """A call of an image's method; None: not supported."""
    call = TensorCall(name, tuple(arguments), tuple(keywords.items()))
    if name in _WITH_NUMBER:
        is_fit = len(arguments) == 1 and not keywords and _is_number(arguments[0])
    elif name in _WITH_LIMITS:
        limits = [*arguments, *keywords.values()]
        is_fit = (
            1 <= len(limits) <= 2
            and keywords.keys() <= {"min", "max"}
            and all(map(_is_number, limits))
        )
    elif name == "expand":
        # The number of channels: no effect on images that have so many.
        is_fit = not keywords and len(arguments) == 3 and list(arguments[1:]) == [-1, -1]
        is_fit = is_fit and all(type(one) is int for one in arguments)
    elif name == "to":
        # What becomes of a value that an integer can't hold depends on the CPU's instructions.
        is_fit = (
            len(arguments) == 1
            and not keywords
            and type(arguments[0]) is torch.dtype
            and arguments[0] in _FLOATS
        )
    else:
        is_fit = name in _WITHOUT and not arguments and not keywords
    return call if is_fit else None


def function_call(
    function: Any, arguments: Sequence[Any], keywords: Mapping[str, Any]
) -> TensorCall | None:
    """A call of one of torch's functions with arguments after the image; None: not supported."""
    if type(function) is not BuiltinFunctionType:
        return None
    name = function.__name__
    if function.__qualname__ != f"{TORCH_FUNCTIONS}.{name}":
        return None
    is_method = name in _WITH_NUMBER or name in _WITH_LIMITS
    return method_call(name, arguments, keywords) if is_method else None


def _is_number(value: Any) -> bool:
    return type(value) in (int, float)
