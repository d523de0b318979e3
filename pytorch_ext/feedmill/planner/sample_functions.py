"""Functions of a script that are called with a sample of a pipeline of webdataset, or with one of
its fields: whether all that they do is understood.

Their source is read, which ``sources`` proves to be that of the running code.
"""

from __future__ import annotations

import ast
import builtins
from collections.abc import Callable, Sequence
from types import CellType, FunctionType
from typing import Any, NamedTuple

from feedmill.planner.sources import Definition, definition_of, is_bound_once

_PURE = frozenset({"bool", "float", "int", "len", "str"})
_GENERATORS = 0x20 | 0x80 | 0x100 | 0x200  # code flags: generators and coroutines
_STARS = 0x04 | 0x08  # code flags: *args and **kwargs


def is_identity(function: Any) -> bool:
    """Whether a function of the script returns its argument and does nothing else."""
    return isinstance(_returned(function), ast.Name)


def is_pure(function: Any) -> bool:
    """Whether a function's result is proved to follow from its argument alone, and nothing else to
    happen: int() and the like, or a function that returns items of its argument."""
    if type(function) is type:
        return any(function is getattr(builtins, name) for name in _PURE)
    returned = _returned(function)
    return returned is not None and all(
        _is_pure_part(one, function) for one in ast.walk(returned)
        if not isinstance(one, ast.expr_context | ast.unaryop)
    )


def _is_pure_part(node: ast.AST, function: FunctionType) -> bool:
    if isinstance(node, ast.Call):
        is_plain = len(node.args) == 1 and not node.keywords
        return is_plain and isinstance(node.func, ast.Name) and node.func.id in _PURE
    if isinstance(node, ast.Name):
        return node.id in function.__code__.co_varnames or (
            node.id in _PURE and node.id not in function.__globals__
        )
    if isinstance(node, ast.UnaryOp):
        return isinstance(node.op, ast.USub) and isinstance(node.operand, ast.Constant)
    return isinstance(node, ast.Subscript | ast.Constant)


def _is_plain(function: Any) -> bool:
    """Whether a value is a function with Python's own built-in names."""
    is_function = type(function) is FunctionType and not hasattr(function, "__wrapped__")
    return is_function and function.__builtins__ is vars(builtins)


def _returned(function: Any) -> ast.expr | None:
    """What a function of the script returns, which has one argument and does nothing else; None:
    it does, or that is not proved."""
    if not _is_plain(function):
        return None
    code = function.__code__
    has_one = (code.co_argcount, code.co_kwonlyargcount, code.co_nlocals) == (1, 0, 1)
    if not has_one or function.__closure__ or function.__defaults__:
        return None
    definition = definition_of(function)
    if definition is None or not isinstance(definition.body[-1], ast.Return):
        return None
    rest = definition.body[:-1]
    is_plain = not rest or (len(rest) == 1 and isinstance(rest[0], ast.Expr) and (
        isinstance(rest[0].value, ast.Constant)
    ))
    return definition.body[-1].value if is_plain else None


# ---- functions of a sample -----------------------------------------------------------------------


class Mapped(NamedTuple):
    """What a function makes of a sample: a tuple of its fields.

    Attributes:
        function: of the script.
        parts: of the tuple: the image's field, and None for what is computed from other fields.
        image: which of them is the image.
        names: of the variables that hold the image's transforms, in the order in which these are
            called.
        transforms: their values.
    """

    function: FunctionType
    parts: Sequence[Any]
    image: int
    names: tuple[str, ...]
    transforms: tuple[Any, ...]

    def with_transforms(self, first: Any, others: Any) -> FunctionType:
        """The function with other values of these variables."""
        function: Any = self.function
        code = function.__code__
        values = {name: others if i else first for i, name in enumerate(self.names)}
        arguments = code.co_varnames[: code.co_argcount]
        defaults = function.__defaults__ or ()
        of_defaults = arguments[len(arguments) - len(defaults) :]
        return FunctionType(
            code,
            {**function.__globals__, **values},
            function.__name__,
            tuple(values.get(name, one) for name, one in zip(of_defaults, defaults)),
            tuple(
                CellType(values[name]) if name in values else cell
                for name, cell in zip(code.co_freevars, function.__closure__ or ())
            ),
        )


def mapped_by(function: Any, part_of: Callable[[Any], Any]) -> Mapped | None:
    """What a function of the script makes of a sample; None: it is not understood to make a tuple
    of an image, which passes from one transform to the next, and of values that follow from the
    other fields alone.

    Args:
        part_of: called with None, returns the number of the sample's parts, or None if it is a
            dict; with a key the field, whose ``is_image`` says whether it is the image, or None.
    """
    if not _is_plain(function):
        return None
    code = function.__code__
    n_defaults = len(function.__defaults__ or ())
    is_plain = not code.co_flags & (_GENERATORS | _STARS) and not code.co_kwonlyargcount
    definition = definition_of(function) if is_plain else None
    if definition is None or code.co_argcount != 1 + n_defaults:
        return None
    try:
        return _SampleReader(function, definition, part_of).read()
    except _NotUnderstood:
        return None


class _NotUnderstood(Exception):
    pass


class _Image:
    """The image. ``field`` is where it comes from, ``n_calls`` how many transforms it passed."""

    def __init__(self, field: Any, n_calls: int = 0) -> None:
        self.field, self.n_calls = field, n_calls


# Stand for the sample, and for a value that follows from its other fields.
_SAMPLE, _VALUE = object(), object()


class _SampleReader:
    """Reads a function of a sample; see mapped_by()."""

    def __init__(
        self, function: FunctionType, definition: Definition, part_of: Callable[[Any], Any]
    ) -> None:
        self._function = function
        self._definition = definition
        self._part_of = part_of
        arguments = function.__code__.co_varnames[: function.__code__.co_argcount]
        self._defaults = dict(zip(arguments[1:], function.__defaults__ or ()))
        self._held: dict[str, Any] = {arguments[0]: _SAMPLE}
        self._names: list[str] = []
        self._transforms: list[Any] = []

    def read(self) -> Mapped:
        *statements, last = self._definition.body
        for statement in statements:
            self._do(statement)
        if not isinstance(last, ast.Return) or not isinstance(last.value, ast.Tuple):
            raise _NotUnderstood
        parts = [self._value(one) for one in last.value.elts]
        images = [i for i, one in enumerate(parts) if type(one) is _Image]
        # Each transform is called once, and for the image that is returned.
        if len(images) != 1 or any(one is _SAMPLE for one in parts):
            raise _NotUnderstood
        image = parts[images[0]]
        if image.n_calls != len(self._names) or len({*self._names}) < len(self._names):
            raise _NotUnderstood
        fields = [one.field if type(one) is _Image else None for one in parts]
        return Mapped(
            self._function, fields, images[0], tuple(self._names), tuple(self._transforms)
        )

    def _do(self, statement: ast.stmt) -> None:
        if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
            return
        if not isinstance(statement, ast.Assign) or len(statement.targets) != 1:
            raise _NotUnderstood
        target = statement.targets[0]
        if isinstance(target, ast.Name):
            self._assign(target, self._value(statement.value))
            return
        if not isinstance(target, ast.Tuple | ast.List):
            raise _NotUnderstood
        values = self._values(statement.value)
        if len(values) != len(target.elts):
            raise _NotUnderstood
        for one, value in zip(target.elts, values):
            self._assign(one, value)

    def _assign(self, target: ast.expr, value: Any) -> None:
        if not isinstance(target, ast.Name) or target.id in self._defaults or (
            target.id not in self._function.__code__.co_varnames
        ):
            raise _NotUnderstood
        self._held[target.id] = value

    def _values(self, node: ast.expr) -> list[Any]:
        """The values of a tuple, or of a sample that is one."""
        if isinstance(node, ast.Tuple):
            return [self._value(one) for one in node.elts]
        n = self._part_of(None)
        if n is None or self._value(node) is not _SAMPLE:
            raise _NotUnderstood
        return [self._field(place) for place in range(n)]

    def _field(self, key: Any) -> Any:
        field = self._part_of(key)
        if field is None:
            raise _NotUnderstood
        return _Image(field) if field.is_image else _VALUE

    def _value(self, node: ast.expr) -> Any:
        if isinstance(node, ast.Name) and node.id in self._held:
            return self._held[node.id]
        if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
            held = self._value(node.value)
            if held is _SAMPLE:
                return self._field(node.slice.value)
            if held is _VALUE:
                return _VALUE
        if isinstance(node, ast.Constant):
            return _VALUE
        if isinstance(node, ast.Call) and len(node.args) == 1 and not node.keywords:
            return self._call(node.func, node.args[0])
        raise _NotUnderstood

    def _call(self, function: ast.expr, argument: ast.expr) -> Any:
        value = self._value(argument)
        if not isinstance(function, ast.Name) or function.id in self._held:
            raise _NotUnderstood
        called = self._variable(function.id)
        if value is _VALUE and is_pure(called):
            return _VALUE
        if type(value) is not _Image or value.n_calls != len(self._names):
            raise _NotUnderstood
        self._names.append(function.id)
        self._transforms.append(called)
        return _Image(value.field, value.n_calls + 1)

    def _variable(self, name: str) -> Any:
        """The value of an argument with a default, of a variable of a function around this one, of
        a global one, or of a built-in function."""
        if name in self._defaults:
            return self._defaults[name]
        code = self._function.__code__
        if name in code.co_varnames:
            raise _NotUnderstood
        if name in code.co_freevars:
            if not is_bound_once(self._definition, name):
                raise _NotUnderstood
            try:
                cells = dict(zip(code.co_freevars, self._function.__closure__ or ()))
                return cells[name].cell_contents
            except ValueError:  # it is not assigned yet
                raise _NotUnderstood from None
        return self._function.__globals__.get(name, vars(builtins).get(name))
