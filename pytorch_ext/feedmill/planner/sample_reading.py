"""Reads the source of a function of a sample: which of its fields it returns or keeps, by which
functions its image passes, and that all else follows from its other fields alone.
"""

from __future__ import annotations

import ast
import builtins
import io
import json
from _io import BytesIO
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import BuiltinFunctionType, FunctionType
from typing import Any

import torch

from feedmill.planner.sources import Definition, is_bound_once, is_global_fixed

# Types, and methods of plain values, that compute their result from their arguments alone, and make
# a plain value of one.
PURE_TYPES = (bool, float, int, str)
_METHODS = frozenset({
    "decode", "endswith", "get", "lower", "lstrip", "replace", "rstrip", "split", "startswith",
    "strip", "upper",
})
# Python's own, should a script replace them in builtins.
_ALL, _ANY, _DICT, _LEN = all, any, dict, len
_PLAIN_TYPES = (bool, int, float, str, type(None))


class NotUnderstoodError(Exception):
    """What a function does is not understood."""


# Image.n_calls of an encoded image: its bytes, these in a BytesIO, and opened by Pillow.
_ENCODED, _IN_FILE, _OPENED = -3, -2, -1


class Image:
    """The image. ``field`` is where it comes from, ``n_calls`` how many transforms it passed."""

    def __init__(self, field: Any, n_calls: int = 0) -> None:
        self.field, self.n_calls = field, n_calls


class Fields:
    """A dict: the sample, or one that is made of it.

    Attributes:
        made: values by key that the function set.
        gone: keys of the sample's other fields that it removed.
        has_rest: it holds the sample's other fields, too.
    """

    def __init__(self, made: dict[str, Any], gone: set[str], has_rest: bool) -> None:
        self.made, self.gone, self.has_rest = made, gone, has_rest

    def copy(self) -> Fields:
        return Fields(dict(self.made), set(self.gone), self.has_rest)

    def set(self, key: Any, value: Any) -> None:
        if type(key) is not str or not (value is VALUE or value is OPAQUE or type(value) is Image):
            raise NotUnderstoodError
        self.made[key] = value
        self.gone.discard(key)

    def remove(self, key: Any) -> None:
        if type(key) is not str:
            raise NotUnderstoodError
        self.made.pop(key, None)
        if self.has_rest:
            self.gone.add(key)


# Stand for a sample that is a tuple; for a value that follows from the other fields, of a plain
# type; for one whose type is not known, such as an unpickled object; and for the keys of a sample.
SAMPLE, VALUE, OPAQUE, _KEYS = object(), object(), object(), object()


class SampleReader:
    """Evaluates a function's source without values.

    Args:
        function: of a script.
        definition: its proved source.
        argument: what it is called with: Fields, SAMPLE, VALUE or OPAQUE.
        part_of: called with the key of a field of the sample, returns its field, whose
            ``is_image`` says whether it is the image, ``is_encoded`` whether that is not decoded
            yet, and ``is_plain`` whether it is of a plain type; None: it is not known. Called with
            None, returns the number of a tuple's parts.
        is_pure: whether a function of the script only computes its result from its argument, and
            is called with that, and whether it is of a plain type. None: none is.

    Attributes:
        names: of the variables that hold the image's transforms, in the order of their calls.
        transforms: their values.
        opening: names of the variables by which the image is opened, such as "io".
        n_opened: how often an image is opened.
    """

    def __init__(
        self, function: FunctionType, definition: Definition, argument: Any,
        part_of: Callable[[Any], Any], is_pure: Callable[[Any, bool], bool] | None = None,
    ) -> None:
        self._is_pure = is_pure
        self._function = function
        self._definition = definition
        self._part_of = part_of
        arguments = function.__code__.co_varnames[: function.__code__.co_argcount]
        self._defaults = dict(zip(arguments[1:], function.__defaults__ or ()))
        self._held: dict[str, Any] = {arguments[0]: argument}
        self.names: list[str] = []
        self.transforms: list[Any] = []
        self.opening: set[str] = set()
        self.n_opened = 0

    def returned(self) -> Any:
        """The value of a function without branches; a tuple's as a list."""
        *statements, last = self._definition.body
        for statement in statements:
            self._do(statement)
        if not isinstance(last, ast.Return) or last.value is None:
            raise NotUnderstoodError
        if isinstance(last.value, ast.Tuple):
            return [self.value(one) for one in last.value.elts]
        return self.value(last.value)

    def follows(self, body: Any = None) -> None:
        """Raises NotUnderstoodError if a function, which may have branches, can return something
        else than values that follow from the sample's other fields."""
        for statement in self._definition.body if body is None else body:
            if isinstance(statement, ast.Return):
                if statement.value is not None:
                    self._known(statement.value)
            elif isinstance(statement, ast.If):
                self._known(statement.test)
                before = dict(self._held)
                self.follows(statement.body)
                first, self._held = self._held, before
                self.follows(statement.orelse)
                second = self._held
                self._held = {key: one for key, one in first.items() if second.get(key) is one}
            else:
                self._do(statement)

    # ---- statements ------------------------------------------------------------------------------

    def _do(self, statement: ast.stmt) -> None:
        if isinstance(statement, ast.Expr):
            self.value(statement.value)
        elif isinstance(statement, ast.Assert):
            self._known(statement.test)
            if statement.msg is not None:
                self._known(statement.msg)
        elif isinstance(statement, ast.Delete):
            for one in statement.targets:
                fields, key = self._place(one)
                fields.remove(key)
        elif isinstance(statement, ast.Assign) and len(statement.targets) == 1:
            self._assign_to(statement.targets[0], statement.value)
        else:
            raise NotUnderstoodError

    def _assign_to(self, target: ast.expr, node: ast.expr) -> None:
        if not isinstance(target, ast.Tuple | ast.List):
            self._assign(target, self.value(node))
            return
        values = self._values(node)
        if len(values) != len(target.elts):
            raise NotUnderstoodError
        for one, value in zip(target.elts, values):
            self._assign(one, value)

    def _assign(self, target: ast.expr, value: Any) -> None:
        if isinstance(target, ast.Subscript):
            fields, key = self._place(target)
            fields.set(key, value)
            return
        if not isinstance(target, ast.Name) or target.id in self._defaults or (
            target.id not in self._function.__code__.co_varnames
        ):
            raise NotUnderstoodError
        self._held[target.id] = value

    def _place(self, node: ast.expr) -> tuple[Fields, Any]:
        """The dict and the key of an item that is set or deleted."""
        if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
            held = self.value(node.value)
            if type(held) is Fields:
                return held, node.slice.value
        raise NotUnderstoodError

    def _values(self, node: ast.expr) -> list[Any]:
        """The values of a tuple, or of a sample that is one."""
        if isinstance(node, ast.Tuple):
            return [self.value(one) for one in node.elts]
        n = self._part_of(None)
        if n is None or self.value(node) is not SAMPLE:
            raise NotUnderstoodError
        return [self._field(place) for place in range(n)]

    # ---- values ----------------------------------------------------------------------------------

    def _field(self, key: Any) -> Any:
        field = self._part_of(key)
        if field is None:
            raise NotUnderstoodError
        if field.is_image:
            return Image(field, _ENCODED if field.is_encoded else 0)
        return VALUE if field.is_plain else OPAQUE

    def _field_of(self, fields: Fields, key: Any) -> Any:
        if type(key) is not str:
            raise NotUnderstoodError
        if key in fields.made:
            return fields.made[key]
        if not fields.has_rest or key in fields.gone:
            raise NotUnderstoodError
        return self._field(key)

    def value(self, node: ast.expr) -> Any:
        """What an expression stands for."""
        if isinstance(node, ast.Constant):
            return VALUE
        if isinstance(node, ast.Name):
            return self._name(node.id)
        if isinstance(node, ast.Subscript):
            return self._item(node)
        if isinstance(node, ast.Dict):
            return self._dict(node)
        if isinstance(node, ast.Call):
            return self._call(node)
        if isinstance(node, ast.Compare):
            self._compare(node)
        elif isinstance(node, ast.JoinedStr):
            for one in node.values:
                self._known(one.value if isinstance(one, ast.FormattedValue) else one)
                if isinstance(one, ast.FormattedValue) and one.format_spec is not None:
                    self._known(one.format_spec)
        else:
            for one in self._operands(node):
                self._known(one)
        return VALUE

    @staticmethod
    def _operands(node: ast.expr) -> list[ast.expr]:
        if isinstance(node, ast.BinOp):
            return [node.left, node.right]
        if isinstance(node, ast.UnaryOp):
            return [node.operand]
        if isinstance(node, ast.BoolOp):
            return node.values
        if isinstance(node, ast.IfExp):
            return [node.test, node.body, node.orelse]
        if isinstance(node, ast.Tuple | ast.List):
            return node.elts
        raise NotUnderstoodError

    def _known(self, node: ast.expr) -> None:
        """Raises NotUnderstoodError if an expression is no VALUE."""
        if self.value(node) is not VALUE:
            raise NotUnderstoodError

    def _name(self, name: str) -> Any:
        if name in self._held:
            return self._held[name]
        value = self._variable(name)
        is_own = name in self._defaults or name in self._function.__code__.co_freevars
        is_fixed = is_own or is_global_fixed(self._definition, name)
        items = value if type(value) is tuple else (value,)
        if not is_fixed or any(type(one) not in _PLAIN_TYPES for one in items):
            raise NotUnderstoodError
        return VALUE

    def _item(self, node: ast.Subscript) -> Any:
        held = self.value(node.value)
        if isinstance(node.slice, ast.Constant):
            if type(held) is Fields:
                return self._field_of(held, node.slice.value)
            if held is SAMPLE:
                return self._field(node.slice.value)
            if held is OPAQUE:
                return OPAQUE
        if held is not VALUE:
            raise NotUnderstoodError
        if isinstance(node.slice, ast.Slice):
            for one in (node.slice.lower, node.slice.upper, node.slice.step):
                if one is not None:
                    self._known(one)
        else:
            self._known(node.slice)
        return VALUE

    def _dict(self, node: ast.Dict) -> Fields:
        made = Fields({}, set(), False)
        for key, value in zip(node.keys, node.values):
            if key is None:
                self._include(made, self.value(value))
            elif isinstance(key, ast.Constant):
                made.set(key.value, self.value(value))
            else:
                raise NotUnderstoodError
        return made

    @staticmethod
    def _include(made: Fields, other: Any) -> None:
        """Adds the items of another dict, as in {**other}."""
        if type(other) is not Fields or (other.has_rest and (made.made or made.has_rest)):
            raise NotUnderstoodError
        made.has_rest = made.has_rest or other.has_rest
        made.gone |= other.gone
        for key, value in other.made.items():
            made.set(key, value)

    def _compare(self, node: ast.Compare) -> None:
        self._known(node.left)
        for operator, right in zip(node.ops, node.comparators):
            value = self.value(right)
            is_sample = value is _KEYS or type(value) is Fields
            if value is not VALUE and not (is_sample and isinstance(operator, ast.In | ast.NotIn)):
                raise NotUnderstoodError

    # ---- calls -----------------------------------------------------------------------------------

    def _call(self, node: ast.Call) -> Any:
        if isinstance(node.func, ast.Attribute):
            return self._call_of_attribute(node, node.func)
        if not isinstance(node.func, ast.Name) or node.func.id in self._held:
            raise NotUnderstoodError
        name, called = node.func.id, self._variable(node.func.id)
        if called is _DICT:
            return self._call_of_dict(node)
        if len(node.args) != 1 or node.keywords:
            raise NotUnderstoodError
        argument = node.args[0]
        if (called is _ANY or called is _ALL) and isinstance(argument, ast.GeneratorExp):
            with self._within(argument):
                self._known(argument.elt)
            return VALUE
        value = self.value(argument)
        if called is BytesIO:
            return self._step(value, _ENCODED, name)
        is_pure = any(called is one for one in PURE_TYPES)
        if (value is VALUE and (is_pure or called is _LEN)) or (value is OPAQUE and is_pure):
            return VALUE
        is_value = value is VALUE or value is OPAQUE
        if is_value and self._is_pure is not None and self._is_pure(called, value is VALUE):
            return OPAQUE
        if type(value) is not Image or value.n_calls != len(self.names):
            raise NotUnderstoodError
        self.names.append(name)
        self.transforms.append(called)
        return Image(value.field, value.n_calls + 1)

    @contextmanager
    def _within(self, node: ast.GeneratorExp) -> Iterator[None]:
        """Where the variable of a generator expression is known."""
        first = node.generators[0]
        if len(node.generators) > 1 or first.is_async or not isinstance(first.target, ast.Name):
            raise NotUnderstoodError
        self._known(first.iter)
        held = self._held
        self._held = {**held, first.target.id: VALUE}
        for one in first.ifs:
            self._known(one)
        yield
        self._held = held

    def _call_of_dict(self, node: ast.Call) -> Fields:
        made = Fields({}, set(), False)
        for argument in node.args[:1]:
            self._include(made, self.value(argument))
        for one in node.keywords:
            if one.arg is None:
                self._include(made, self.value(one.value))
            else:
                made.set(one.arg, self.value(one.value))
        if len(node.args) > 1:
            raise NotUnderstoodError
        return made

    def _call_of_attribute(self, node: ast.Call, function: ast.Attribute) -> Any:
        if isinstance(function.value, ast.Name) and function.value.id not in self._held:
            return self._call_of_module(node, function.value.id, function.attr)
        held = self.value(function.value)
        if node.keywords:
            raise NotUnderstoodError
        for one in node.args:
            self._known(one)
        if type(held) is Image and held.n_calls in (_OPENED, 0) and function.attr == "convert":
            return self._converted(held, node.args)
        if type(held) is Fields:
            return self._call_of_sample(held, function.attr, node.args)
        if held is not VALUE or function.attr not in _METHODS:
            raise NotUnderstoodError
        return VALUE

    @staticmethod
    def _converted(image: Image, arguments: list[ast.expr]) -> Image:
        """An image that was converted to RGB; one that was opened is decoded then."""
        modes = [one.value for one in arguments if isinstance(one, ast.Constant)]
        if modes != ["RGB"] or len(arguments) > 1:
            raise NotUnderstoodError
        return Image(image.field)

    def _step(self, value: Any, expected: int, name: str) -> Image:
        """An encoded image behind the next step to its pixels, which a variable's value does."""
        if type(value) is not Image or value.n_calls != expected:
            raise NotUnderstoodError
        self.opening.add(name)
        return Image(value.field, expected + 1)

    def _call_of_sample(self, fields: Fields, name: str, arguments: list[ast.expr]) -> Any:
        """A method of a dict. Its arguments are known values."""
        if name == "copy" and not arguments:
            return fields.copy()
        if name == "keys" and not arguments:
            return _KEYS
        is_key = 1 <= len(arguments) <= 2 and isinstance(arguments[0], ast.Constant)
        if not is_key or name not in ("get", "pop"):
            raise NotUnderstoodError
        key: Any = arguments[0].value  # type: ignore[attr-defined]
        value = self._field_of(fields, key)
        if name == "pop":
            fields.remove(key)
        # Without the image there would be another value.
        if type(value) is Image and (name == "get" or len(arguments) == 2):
            raise NotUnderstoodError
        return value

    def _call_of_module(self, node: ast.Call, module: str, name: str) -> Any:
        """torch.tensor(), also with a dtype, and json.loads(); io.BytesIO() and Pillow's open()."""
        found = self._variable(module)
        if len(node.args) != 1:
            raise NotUnderstoodError
        value = self.value(node.args[0])
        if found is io and name == "BytesIO" and io.BytesIO is BytesIO and not node.keywords:
            return self._step(value, _ENCODED, module)
        if name == "open" and not node.keywords and _is_pillow(found):
            self.n_opened += 1
            return self._step(value, _IN_FILE, module)
        if value is not VALUE:
            raise NotUnderstoodError
        if found is json and name == "loads" and not node.keywords:
            return VALUE  # that it is json's own is checked with webdataset's decoders
        if found is not torch or name != "tensor" or type(torch.tensor) is not BuiltinFunctionType:
            raise NotUnderstoodError
        for one in node.keywords:
            is_of_torch = isinstance(one.value, ast.Attribute) and (
                isinstance(one.value.value, ast.Name)
                and one.value.value.id not in self._held
                and self._variable(one.value.value.id) is torch
            )
            if one.arg != "dtype" or not is_of_torch:
                raise NotUnderstoodError
        return OPAQUE

    def _variable(self, name: str) -> Any:
        """The value of an argument with a default, of a variable of a function around this one, of
        a global one, or of a built-in function."""
        if name in self._defaults:
            return self._defaults[name]
        code = self._function.__code__
        if name in code.co_varnames:
            raise NotUnderstoodError
        if name in code.co_freevars:
            if not is_bound_once(self._definition, name):
                raise NotUnderstoodError
            try:
                cells = dict(zip(code.co_freevars, self._function.__closure__ or ()))
                return cells[name].cell_contents
            except ValueError:  # it is not assigned yet
                raise NotUnderstoodError from None
        return self._function.__globals__.get(name, vars(builtins).get(name))


def _is_pillow(module: Any) -> bool:
    from PIL import Image as pillow

    return module is pillow
