"""The calls that a user's function makes with an image, as ``evaluating`` evaluates them: those of
transforms, methods of the image, arithmetic, and calls that draw random numbers."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import dataclass
from types import BuiltinFunctionType, FunctionType
from typing import Any

import numpy as np
import torch

from feedmill.planner import numpy_calls
from feedmill.planner.arithmetic import function_call, method_call
from feedmill.planner.attributes import NotUnderstood
from feedmill.planner.drawing import (
    Bernoulli,
    Condition,
    Draw,
    PilCall,
    blur_of,
    call_of,
    draw_of,
    is_blur,
)
from feedmill.planner.generators import drawing_function
from feedmill.planner.halving_crops import halving_crop_of
from feedmill.planner.numpy_calls import ArrayCall
from feedmill.planner.picking import Pick, pick_of

_MAX_CALLS = 64
# What stands for objects of other classes during the evaluation.
STAND_INS = (Draw, Condition, PilCall, Bernoulli)
_TENSOR = torch.tensor  # another one is a script's replacement
_LISTS = (list, tuple)


@dataclass(frozen=True)
class Convert:
    """A call of the image's method ``convert(mode)``, in the place of a transform."""

    mode: str


@dataclass(frozen=True)
class ImageState:
    """What is known of an image before a function gets it.

    Attributes:
        is_pil: it is a PIL image, else a tensor or array.
        mode: of the PIL image.
        is_array: it is a NumPy array of a PIL image in RGB.
    """

    is_pil: bool
    mode: str
    is_array: bool = False


@dataclass(frozen=True)
class ImageValue:
    """The image after ``n_calls`` of the calls so far.

    Attributes:
        view: if several images are made, the number of this one.
        file: if several files are opened, the number of the one that it is made of.
    """

    n_calls: int
    view: int = 0
    file: int = 0


def _is_kind(state: ImageState, kind: Any) -> bool | None:
    """Whether an image is an instance of a class; None: not known."""
    from PIL import Image

    if kind is torch.Tensor:
        return not state.is_pil and not state.is_array
    if kind is Image.Image:
        return state.is_pil
    if kind is tuple or kind is list:
        return False
    return state.is_array if kind is np.ndarray else None


class ArrayShape:
    """The shape of an array of an image, which has three dimensions."""


def _second_argument(node: ast.Call, function: FunctionType) -> ast.expr | None:
    """The second argument of a call with two, which may be given by name; None: it is another call.
    """
    if len(node.args) == 2 and not node.keywords:
        return node.args[1]
    if len(node.args) == 1 and len(node.keywords) == 1:
        code, keyword = function.__code__, node.keywords[0]
        if keyword.arg in code.co_varnames[1 : min(2, code.co_argcount)]:
            return keyword.value
    return None


class ImageCalls:
    """Evaluates calls. An Evaluator evaluates the rest.

    Attributes:
        _calls: the transforms that were called so far, and what stands in the place of one.
        _events: these, and the Draws, Conditions and Picks between them.
        _state: of the image before the function.
    """

    _calls: list[Any]
    _events: list[Any]
    _state: ImageState | None
    _names: dict[str, Any]

    def _value(self, node: ast.expr) -> Any:
        raise NotImplementedError

    def _error(self, node: ast.AST, text: str) -> NotUnderstood:
        raise NotImplementedError

    def _picked(self, node: ast.AST, pick: Pick) -> Any:
        raise NotImplementedError

    def _use(self, node: ast.AST, value: Any) -> Any:
        """A value that is used up if it was drawn."""
        if type(value) is Draw:
            if value.is_used:
                raise self._error(node, "it uses a random number twice")
            value.is_used = True
        return value

    def _call(self, node: ast.Call) -> Any:
        is_plain = len(node.args) == 1 and not node.keywords
        if isinstance(node.func, ast.Attribute):
            n_events = len(self._events)
            owner = self._value(node.func.value)
            if type(owner) is ImageValue:
                return self._method(node, node.func.attr, owner)
            if type(owner) is Draw and owner.is_tensor and node.func.attr == "item":
                if not node.args and not node.keywords:
                    return self._use(node, owner).item()
            if len(self._events) > n_events:
                raise self._error(node, "it calls a method of what it draws")
        function = self._value(node.func)
        if type(function) in STAND_INS:
            raise self._error(node, "it calls a random number or filter")
        if (drawn := self._drawn(node, function)) is not None:
            return drawn
        if function is isinstance and len(node.args) == 2 and not node.keywords:
            return self._is_instance(node)
        if function is len and is_plain:
            values = self._value(node.args[0])
            if type(values) in _LISTS or type(values) is ArrayShape:
                return 3 if type(values) is ArrayShape else len(values)
        if numpy_calls.is_known(function):
            return self._called_with_array(node, function)
        if function is float and is_plain:
            return self._as_float(node)
        if (computed := self._computed(node, function)) is not None:
            return computed
        image = self._only_argument(node)
        if type(image) is ImageValue and (call := call_of(function, ())) is not None:
            return self._add(node, image, call)
        if type(image) is not ImageValue or type(function) in (type, BuiltinFunctionType):
            raise self._error(node, "it calls something else than a transform of the image")
        return self._add(node, image, function)

    def _as_float(self, node: ast.Call) -> Draw:
        """``float(number)`` of a drawn one."""
        drawn = self._value(node.args[0])
        if type(drawn) is not Draw:
            raise self._error(node, "it calls float() of something else than a random number")
        return self._use(node, drawn).item() if drawn.is_tensor else drawn

    def _called_with_array(self, node: ast.Call, function: Any) -> Any:
        """``np.asarray(image)``, ``torch.from_numpy(image)``"""
        values, keywords = self._arguments(node, node.args, True)
        if values and type(values[0]) is ImageValue:
            read = numpy_calls.array_of_image
            if self._is_array(values[0]):
                read = numpy_calls.function_of_array
            if (call := read(function, values[1:], keywords)) is not None:
                return self._add(node, values[0], call)
        raise self._error(node, "it calls something else than a transform of the image")

    def _calls_for(self, image: ImageValue) -> list[Any]:
        """The calls that have made an image of the one that the function gets."""
        return self._calls[: image.n_calls]

    def _is_array(self, image: ImageValue) -> bool:
        """Whether an image is a NumPy array."""
        calls = self._calls_for(image)
        if not calls:
            return self._state is not None and self._state.is_array
        last = calls[-1]
        return type(last) is ArrayCall and last.kind != numpy_calls.FROM_NUMPY

    def _only_argument(self, node: ast.Call) -> Any:
        """The one argument of a call, which may be passed on as ``(*args, **kwargs)``."""
        by_name = [one.arg or self._value(one.value) for one in node.keywords]
        if len(node.args) == 1 and all(type(one) is dict and not one for one in by_name):
            given = node.args[0]
            if not isinstance(given, ast.Starred):
                return self._value(given)
            values = self._value(given.value)
            if type(values) is tuple and len(values) == 1:
                return values[0]
        raise self._error(node, "it calls something else than a transform of the image")

    def _add(self, node: ast.AST, image: ImageValue, transform: Any) -> Any:
        if image.n_calls != len(self._calls):
            raise self._error(node, "it uses an image twice")
        if len(self._calls) == _MAX_CALLS:
            raise self._error(node, f"it calls more than {_MAX_CALLS} transforms")
        self._calls.append(transform)
        self._events.append(transform)
        return ImageValue(len(self._calls))

    def _method(self, node: ast.Call, name: str, image: ImageValue) -> Any:
        if self._is_array(image):
            array_call = numpy_calls.method_of_array(name, *self._arguments(node, node.args, True))
            if array_call is None:
                raise self._error(node, f"it calls {name}() of an array")
            return self._add(node, image, array_call)
        arguments, keywords = self._arguments(node, node.args)
        if (call := method_call(name, arguments, keywords)) is not None:
            return self._add(node, image, call)
        given = arguments[0] if len(arguments) == 1 and not keywords else None
        if name == "filter" and type(given) is PilCall:
            # Equal calls are other objects.
            is_drawn = given.values[0] != given.values[-1]
            if is_drawn and any(one is given for one in self._calls):
                raise self._error(node, "it uses a random number twice")
            return self._add(node, image, given)
        if name != "convert" or type(given) is not str:
            raise self._error(node, f"it calls the image's {name}()")
        return self._add(node, image, Convert(given))

    def _computed(self, node: ast.Call, function: Any) -> Any:
        """The result of one of torch's functions of the image and numbers; None: it is another
        call."""
        if type(function) is not BuiltinFunctionType or len(node.args) + len(node.keywords) < 2:
            return None
        if not node.args or type(image := self._value(node.args[0])) is not ImageValue:
            return None
        call = function_call(function, *self._arguments(node, node.args[1:]))
        return None if call is None else self._add(node, image, call)

    def _arguments(
        self, node: ast.Call, positional: Sequence[ast.expr], may_be_lists: bool = False
    ) -> tuple[list[Any], dict[str, Any]]:
        """The values of a call's arguments, positional ones and by name.

        Args:
            may_be_lists: positional ones may be written as lists.
        """
        if any(isinstance(one, ast.Starred) for one in positional):
            raise self._error(node, "it calls something with a list of arguments")
        if any(one.arg is None for one in node.keywords):
            raise self._error(node, "it calls something with a dict of arguments")
        values = [(self._listed if may_be_lists else self._value)(one) for one in positional]
        return values, {one.arg or "": self._value(one.value) for one in node.keywords}

    def _drawn(self, node: ast.Call, function: Any) -> Any:
        """The result of a call that draws a random number, of a call of GaussianBlur, or of one of
        ImageOps' functions or a HalvingCrop's with arguments after the image; None: it is another
        call."""
        if is_blur(function):
            names = [one.arg for one in node.keywords]
            if len(node.args) + len(names) > 1 or names not in ([], ["radius"]):
                raise self._error(node, "it calls GaussianBlur in an unknown way")
            values = [*node.args, *(one.value for one in node.keywords)]
            radius = self._use(node, self._value(values[0])) if values else 2
            if type(radius) is Draw and radius.is_tensor:
                raise self._error(node, "the radius of its GaussianBlur is a tensor")
            blur = blur_of(radius)
            if blur is None:
                raise self._error(node, "the radius of its GaussianBlur is not from 0 to 10")
            return blur
        if type(function) is FunctionType and (second := _second_argument(node, function)):
            image, argument = self._value(node.args[0]), self._value(second)
            if type(image) is not ImageValue:
                return None
            call = call_of(function, (argument,)) or halving_crop_of(function, argument)
            return None if call is None else self._add(node, image, call)
        name = drawing_function(function)
        if not name:
            return None
        if name == "torch.bernoulli":
            return self._bernoulli(node)
        if any(one.arg is None for one in node.keywords):
            raise self._error(node, "it calls something with a dict of arguments")
        arguments = self._unpacked(node)
        keywords = {one.arg or "": self._listed(one.value) for one in node.keywords}
        if (pick := pick_of(name, arguments, keywords)) is not None:
            return self._picked(node, pick)
        try:
            drawn = draw_of(name, arguments, keywords)
        except OverflowError:
            raise self._error(node, "it draws no finite number") from None
        if drawn is None:
            raise self._error(node, "it draws a random number in an unknown way")
        self._events.append(drawn)
        return drawn

    def _bernoulli(self, node: ast.Call) -> Bernoulli:
        """``torch.bernoulli(torch.tensor(p))``"""
        inner = node.args[0] if len(node.args) == 1 and not node.keywords else None
        is_tensor = isinstance(inner, ast.Call) and self._value(inner.func) is _TENSOR
        if isinstance(inner, ast.Call) and is_tensor:
            arguments, keywords = self._arguments(inner, inner.args)
            is_float = len(arguments) == 1 and not keywords and type(arguments[0]) is float
            # It is a tensor of the default type.
            is_known = is_float and torch.get_default_dtype() is torch.float32
            if is_known and 0 <= arguments[0] <= 1:
                drawn = Bernoulli(arguments[0])
                self._events.append(drawn.draw)
                return drawn
        raise self._error(node, "it calls torch.bernoulli() in an unknown way")

    def _unpacked(self, node: ast.Call) -> list[Any]:
        """The values of a call's positional arguments, among them those of ``*list``."""
        values: list[Any] = []
        for one in node.args:
            if isinstance(one, ast.Starred):
                of_list = self._value(one.value)
                if type(of_list) not in (list, tuple):
                    raise self._error(node, "it calls something with unknown arguments")
                values += of_list
            else:
                values.append(self._listed(one))
        return values

    def _listed(self, node: ast.expr) -> Any:
        """The value of an argument, which may be written as a list."""
        if isinstance(node, ast.List | ast.Tuple):
            return [self._value(one) for one in node.elts]
        return self._value(node)

    def _is_instance(self, node: ast.Call) -> bool:
        """``isinstance(image, kind)`` for classes of images, or a tuple of such."""
        image, kinds = self._value(node.args[0]), node.args[1]
        written = kinds.elts if isinstance(kinds, ast.Tuple) else [kinds]
        named = [self._value(one) for one in written]
        if type(image) is ImageValue and self._is_unchanged() and self._state is not None:
            found = [_is_kind(self._state, one) for one in named]
            if None not in found:
                return any(found)
        raise self._error(node, "it tests types")

    def _converted_to_rgb(self, node: ast.IfExp) -> Any:
        """The value of ``image.convert("RGB") if image.mode != "RGB" else image``, also where the
        mode is not known: in every case the image is converted to RGB. None: it is another
        expression, or the mode is known."""
        test = node.test
        if self._state is not None or self._calls or not isinstance(test, ast.Compare):
            return None
        if len(test.ops) != 1 or not isinstance(test.ops[0], ast.Eq | ast.NotEq):
            return None
        left, right = test.left, test.comparators[0]
        if not isinstance(left, ast.Attribute) or left.attr != "mode":
            return None
        if not isinstance(left.value, ast.Name):
            return None
        if not isinstance(right, ast.Constant) or right.value != "RGB":
            return None
        if type(self._value(left.value)) is not ImageValue or self._calls:
            return None
        is_not = isinstance(test.ops[0], ast.NotEq)
        converting, other = (node.body, node.orelse) if is_not else (node.orelse, node.body)
        if type(self._value(other)) is ImageValue and not self._calls:
            converted = self._value(converting)
            if type(converted) is ImageValue and self._calls == [Convert("RGB")]:
                return converted
        raise self._error(node, "it does something else for images that are RGB than for others")

    def _converts_to_rgb(self, statement: ast.stmt, following: ast.stmt | None) -> bool:
        """Executes ``if image.mode != "RGB": image = image.convert("RGB")`` where the mode is not
        known, or the same with ``return image.convert("RGB")`` before ``return image``. False: it
        is another statement.

        Args:
            following: the next statement; None: there is none.
        """
        if self._state is not None or self._calls or not isinstance(statement, ast.If):
            return False
        test = statement.test
        if len(statement.body) != 1 or statement.orelse or not isinstance(test, ast.Compare):
            return False
        if len(test.ops) != 1 or not isinstance(test.ops[0], ast.NotEq):
            return False
        if not isinstance(test.comparators[0], ast.Constant | ast.Name | ast.Attribute):
            return False
        name = ast.unparse(test.left).removesuffix(".mode")
        mode = ast.unparse(test.comparators[0])
        if ast.unparse(test.left) != f"{name}.mode" or not name.isidentifier():
            return False
        converted = f"{name}.convert({mode})"
        body = ast.unparse(statement.body[0])
        is_returned = body == f"return {converted}" and following is not None
        if is_returned and following is not None:
            is_returned = ast.unparse(following) == f"return {name}"
        if not is_returned and body != f"{name} = {converted}":
            return False
        image = self._value(ast.Name(name, ast.Load()))
        wanted = self._value(test.comparators[0])
        if type(image) is not ImageValue or type(wanted) is not str or wanted != "RGB":
            return False
        self._names[name] = self._add(statement, image, Convert("RGB"))
        return True

    def _is_unchanged(self) -> bool:
        """Whether the image is still as the function got it."""
        return all(type(one) is Convert for one in self._calls)
