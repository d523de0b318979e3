"""Arithmetic of NumPy with images, in transforms of the user's own that ``evaluating`` evaluates:
``np.asarray(image).astype(np.float32) / 255``, ``(image - mean) / std``,
``torch.from_numpy(image.transpose(2, 0, 1))``.

Each element of the result depends on one element of the image and its channel only. NumPy rounds
sums, products and quotients as IEEE 754 says, wherever the element stands. So ``pixel_values`` may
do it with a table of all pixel values.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import BuiltinFunctionType, FunctionType
from typing import Any

import numpy as np
import torch

from feedmill.planner.untouched import is_original

_ARRAYS = (np.array, np.asarray)
_TENSORS = (torch.from_numpy, torch.as_tensor, torch.tensor)
_OPERATORS: Mapping[type[ast.operator], tuple[str, Any, Any]] = {
    ast.Add: ("+", operator.add, operator.iadd),
    ast.Sub: ("-", operator.sub, operator.isub),
    ast.Mult: ("*", operator.mul, operator.imul),
    ast.Div: ("/", operator.truediv, operator.itruediv),
}
_FLOATS = (np.float32, np.float64, float, "float32", "float64")
_TO_CHANNELS_FIRST = (2, 0, 1)
# What an ArrayCall does.
TO_ARRAY, COMPUTE, TYPE, CHANNELS_FIRST, COPY, FROM_NUMPY = (
    "np.array", "arithmetic", "astype", "transpose", "copy", "torch.from_numpy",
)


@dataclass(frozen=True)
class ArrayCall:
    """A call of NumPy's, or of torch.from_numpy(), that the user's function makes for an image.

    Attributes:
        kind: one of the names above.
        dtype: for TO_ARRAY and TYPE; None: as it is.
        sign: of the arithmetic: "+", "-", "*" or "/"; of TO_ARRAY the function's name.
        is_left, in_place: the image is on its left side; it is assigned as by ``-=``.
        number: on its other side: a number, or the bytes, type and shape of an array.
    """

    kind: str
    dtype: str | None = None
    sign: str = ""
    is_left: bool = True
    in_place: bool = False
    number: Any = None

    def __call__(self, image: Any) -> Any:
        if self.kind == TO_ARRAY:
            return (np.asarray if self.sign == "asarray" else np.array)(image, dtype=self.dtype)
        if self.kind == TYPE:
            return image.astype(self.dtype)
        if self.kind == CHANNELS_FIRST:
            return image.transpose(_TO_CHANNELS_FIRST)
        if self.kind == COPY:
            return image.copy()
        if self.kind == FROM_NUMPY:
            return torch.from_numpy(image.copy())
        _, compute, compute_in_place = next(
            one for one in _OPERATORS.values() if one[0] == self.sign
        )
        number = self.number
        if type(number) is tuple:
            data, dtype, shape = number
            number = np.frombuffer(data, dtype).reshape(shape)
        if self.in_place:
            return compute_in_place(image, number)
        return compute(image, number) if self.is_left else compute(number, image)


@dataclass(frozen=True)
class ArrayCalls:
    """The calls that make a tensor of a PIL image, in the place of a transform."""

    calls: tuple[ArrayCall, ...]

    def __call__(self, image: Any) -> Any:
        for call in self.calls:
            image = call(image)
        return image


def are_channels_first(calls: Sequence[ArrayCall]) -> bool:
    return any(one.kind == CHANNELS_FIRST for one in calls)


def why_not(calls: Sequence[ArrayCall]) -> str:
    """Why the calls that make a tensor can't be replaced by a table of pixel values; "" if they
    can."""
    is_first = False
    for call in calls:
        if call.kind == CHANNELS_FIRST and is_first:
            return "it transposes an array twice"
        is_first |= call.kind == CHANNELS_FIRST
        if type(call.number) is tuple and not _is_of_channels(call.number[2], is_first):
            return "it computes with an array that has other values than one for each channel"
    if not is_first:
        return "it makes a tensor whose first dimension is not that of the channels"
    return ""


def _is_of_channels(shape: Sequence[int], is_first: bool) -> bool:
    """Whether an array of this shape has one value, or one for each of three channels."""
    sizes = [*[1] * (3 - len(shape)), *shape]
    at = 0 if is_first else 2
    return len(sizes) == 3 and sizes.pop(at) in (1, 3) and sizes == [1, 1]


# ---- what the user's function calls --------------------------------------------------------------


def array_of_image(
    function: Any, arguments: Sequence[Any], keywords: Mapping[str, Any]
) -> ArrayCall | None:
    """``np.asarray(image)``, given the arguments after the image; None: another call."""
    if not any(function is one for one in _ARRAYS) or not _is_of_numpy(function):
        return None
    given = [*arguments, *keywords.values()]
    if len(given) > 1 or not keywords.keys() <= {"dtype"}:
        return None
    if given and (dtype := _float_of(given[0])) is None:
        return None
    if not _is_pillow_original():
        return None
    return ArrayCall(TO_ARRAY, dtype if given else None, function.__name__)


def is_known(function: Any) -> bool:
    """Whether one of the functions below may know a function."""
    known = (*_ARRAYS, *_TENSORS, np.ascontiguousarray, np.transpose)
    return any(function is one for one in known)


def _is_of_numpy(function: Any) -> bool:
    return (
        type(function) is BuiltinFunctionType
        and function.__module__ == "numpy"
        and function.__name__ in ("array", "asarray", "ascontiguousarray")
    )


def _is_pillow_original() -> bool:
    """Whether Pillow's images become arrays by its own code."""
    from PIL import Image

    interface = vars(Image.Image).get("__array_interface__")
    names = ("__array__", "__array_struct__", "__buffer__", "__arrow_c_array__", "__len__")
    return (
        type(interface) is property
        and is_original(interface.fget, "PIL.Image", "Image.__array_interface__")
        and not any(
            name in vars(Image.Image)
            and not is_original(vars(Image.Image)[name], "PIL.Image", f"Image.{name}")
            for name in names
        )
    )


def _float_of(dtype: Any) -> str | None:
    known = type(dtype) in (type, str) and any(dtype is one or dtype == one for one in _FLOATS)
    return np.dtype(dtype).name if known else None


def function_of_array(
    function: Any, arguments: Sequence[Any], keywords: Mapping[str, Any]
) -> ArrayCall | None:
    """A function of an array, given the arguments after it; None: another call."""
    if keywords:
        return None
    if any(function is one for one in _TENSORS) and _is_of_torch(function):
        return None if arguments else ArrayCall(FROM_NUMPY)
    if function is np.ascontiguousarray and _is_of_numpy(function):
        return None if arguments else ArrayCall(COPY)
    if function is np.transpose and _is_numpys_transpose(function):
        return method_of_array("transpose", arguments, {}) if len(arguments) == 1 else None
    return None


def _is_of_torch(function: Any) -> bool:
    names = ("from_numpy", "as_tensor", "tensor")
    return type(function) is BuiltinFunctionType and function.__name__ in names


def _is_numpys_transpose(function: Any) -> bool:
    """Whether a function is NumPy's, which NumPy wraps."""
    inner = getattr(function, "__wrapped__", None)
    return (
        type(inner) is FunctionType
        and (function.__module__, function.__name__, inner.__name__)
        == ("numpy", "transpose", "transpose")
        and inner.__globals__.get("__name__") in _OF_TRANSPOSE
    )


_OF_TRANSPOSE = ("numpy._core.fromnumeric", "numpy.core.fromnumeric")


def method_of_array(
    name: str, arguments: Sequence[Any], keywords: Mapping[str, Any]
) -> ArrayCall | None:
    """A method of an array; None: it is not supported."""
    if name == "astype":
        given = [*arguments, *keywords.values()]
        is_fit = len(given) == 1 and keywords.keys() <= {"dtype"}
        dtype = _float_of(given[0]) if is_fit else None
        return None if dtype is None else ArrayCall(TYPE, dtype)
    if keywords:
        return None
    if name == "transpose":
        axes = arguments[0] if len(arguments) == 1 else arguments
        is_fit = isinstance(axes, list | tuple) and tuple(axes) == _TO_CHANNELS_FIRST
        are_ints = is_fit and all(type(one) is int for one in axes)
        return ArrayCall(CHANNELS_FIRST) if are_ints else None
    return ArrayCall(COPY) if name == "copy" and not arguments else None


def operator_of_array(
    operation: ast.operator, is_left: bool, number: Any, in_place: bool = False
) -> ArrayCall | None:
    """An operator between an array and a number, or an array of one number for each channel; None:
    it is not supported."""
    if type(operation) not in _OPERATORS or (type(operation) is ast.Div and not is_left):
        return None
    sign = _OPERATORS[type(operation)][0]
    if type(number) is np.ndarray:
        if number.ndim > 3 or number.size > 3 or number.dtype not in (np.float32, np.float64):
            return None
        number = number.tobytes(), number.dtype.name, number.shape
    elif type(number) not in (int, float):
        return None
    return ArrayCall(COMPUTE, None, sign, is_left, in_place, number)
