"""Finds out what a user's function, or an object with ``__call__`` or ``forward``, does with an
image: which transforms it applies, in which order.

The function's source is evaluated, with the values that its arguments, attributes, globals and
closure have now, and with an unknown image. It is understood only if all that it does is to pass
the image from one transform to the next, and to return the last result: no other calls, no
assignments to attributes, no property, nothing that depends on the image's pixels. Names mean
nothing: the same values are read in the same way as Python does.

``sources`` proves that a source belongs to a function.
"""

from __future__ import annotations

import ast
import inspect
import operator
import os
from collections.abc import Sequence
from functools import partial
from types import (
    FunctionType,
    MethodType,
    ModuleType,
)
from typing import Any

import torch

from feedmill._internals import COMPILED, MODULE, MODULE_CALL, MODULE_CALLS, MODULE_VALUES
from feedmill.planner.arithmetic import TensorCall, operator_call
from feedmill.planner.attributes import (
    PLAIN,
    NotUnderstood,
    attribute,
    attributes_of,
    of_class,
    truth,
)
from feedmill.planner.drawing import (
    TURNED,
    Ambiguous,
    Bernoulli,
    Chance,
    Condition,
    Draw,
    Events,
    Outcomes,
    PilCall,
    Undecided,
    chance_of,
    computed,
    follow_branches,
    in_order,
)
from feedmill.planner.image_calls import (
    STAND_INS,
    ArrayShape,
    ImageCalls,
    ImageState,
    ImageValue,
)
from feedmill.planner.numpy_calls import ArrayCall, operator_of_array
from feedmill.planner.picking import Choice, Pick
from feedmill.planner.sources import (
    Definition,
    definition_of,
    is_bound_once,
    is_global_fixed,
)
from feedmill.planner.untouched import hooks_of, is_original

_SPECIAL_CODE = (
    inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR
    | inspect.CO_ITERABLE_COROUTINE
)
_COMPARISONS: dict[type[ast.cmpop], str] = {
    ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">=",
}
_NUMBERS = (int, float)
_ARITHMETIC: dict[type[ast.operator], Any] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv,
}


# Limit of the evaluations of a function.
_MAX_PATHS = 256
_MAX_DEPTH = 8


def is_own(transform: Any) -> bool:
    """Whether a transform is a function, or an object whose class is neither torch's nor
    torchvision's nor Python's own."""
    if type(transform) in (FunctionType, MethodType):
        return True
    if type(transform) is partial:
        return is_own(transform.func)
    module = getattr(type(transform), "__module__", None)
    return type(module) is str and module.partition(".")[0] not in (
        "torch", "torchvision", "builtins", "functools", "PIL"
    )


def transforms_in(transform: Any, state: ImageState | None) -> list[Any]:
    """The transforms that a function or object applies to its image, in order, among them PilCalls,
    Chances and Choices. Calls nothing.

    Args:
        transform: a function, a bound method or an object with ``__call__``.
        state: of the image before; None: unknown.

    Raises:
        NotUnderstood: it does something else, or is not proved to do only this.
    """
    function, bound = called(transform)
    paths: list[Events] = []

    def evaluate(outcomes: Outcomes) -> list[Any]:
        if len(paths) == _MAX_PATHS:
            raise Ambiguous("it depends on too many random numbers")
        evaluator = Evaluator(function, state, outcomes)
        found = evaluator.run(bound)
        paths.append(evaluator.events())
        return found

    try:
        found = in_order(follow_branches(evaluate), paths)
    except Ambiguous as error:
        raise NotUnderstood(str(error)) from None
    if not any(map(_is_random, found)) and any(
        type(one) in (Draw, Pick) for events in paths for one, _ in events
    ):
        found.append(Chance(1.0, ()))  # stands for numbers that have no effect
    return found


def _is_random(transform: Any) -> bool:
    """Whether a random number has an effect on a transform."""
    is_drawn = type(transform) is PilCall and transform.draw is not None
    return is_drawn or type(transform) in (Chance, Choice)


def called(transform: Any) -> tuple[FunctionType, list[Any]]:
    """The function that a call of an object runs, and the arguments before the image. Raises
    NotUnderstood."""
    if type(transform) is FunctionType:
        return transform, []
    if type(transform) is MethodType:
        if type(transform.__func__) is FunctionType:
            return transform.__func__, [transform.__self__]
        raise NotUnderstood("it is a method without source")
    if type(transform) is partial:
        if transform.keywords:
            raise NotUnderstood("its arguments are given by name")
        function, bound = called(transform.func)
        return function, [*bound, *transform.args]
    kind = type(transform)
    call = of_class(kind, "__call__")
    if isinstance(transform, torch.nn.Module) and is_original(call, *MODULE_CALL):
        if hooks := hooks_of(transform):
            raise NotUnderstood(hooks)
        _check_module(transform)
        return _called_forward(attribute(transform, "forward"))
    if type(call) is FunctionType:
        return call, [transform]
    raise NotUnderstood("its __call__ has no source in Python")


def _check_module(module: torch.nn.Module) -> None:
    """Checks that a call of a torch module calls only its forward()."""
    for name in MODULE_CALLS:
        method = attribute(module, name)
        if type(method) is not MethodType or not is_original(
            method.__func__, MODULE, f"Module.{name}"
        ):
            raise NotUnderstood(f"torch.nn.Module.{name} was replaced")
    if attributes_of(module).get(COMPILED) is not None:
        raise NotUnderstood("the module was compiled")


def _called_forward(forward: Any) -> tuple[FunctionType, list[Any]]:
    if type(forward) in (FunctionType, MethodType):
        return called(forward)
    raise NotUnderstood("its forward is not a method with source")


# ---- evaluation ----------------------------------------------------------------------------------


def _does_nothing(statement: ast.stmt) -> bool:
    """Whether a statement is a docstring, a variable's type without a value, or ``pass``."""
    if isinstance(statement, ast.AnnAssign):
        return statement.value is None and isinstance(statement.target, ast.Name)
    is_text = isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
    return is_text or isinstance(statement, ast.Pass)


class Returned(Exception):
    """Ends the evaluation at a ``return``."""


class Evaluator(ImageCalls):
    """Evaluates one function once.

    Args:
        function: the function.
        state: of the image before the function.
        outcomes: of the first Conditions and Picks; None: there must be none.
    """

    def __init__(
        self,
        function: FunctionType,
        state: ImageState | None,
        outcomes: Sequence[int] | None = None,
    ) -> None:
        self._begin(function)
        self._state = state
        self._calls: list[Any] = []
        self._events: list[Any] = []
        self._outcomes = outcomes
        self._decided: list[Condition | Pick] = []
        self._result: Any = None
        self._n_steps = 0
        self._depth = 0  # of functions within the first one

    def _begin(self, function: FunctionType) -> None:
        definition = definition_of(function)
        if definition is None:
            raise NotUnderstood("its source is not available, or was changed after its import")
        if function.__code__.co_flags & _SPECIAL_CODE:
            raise NotUnderstood("it is a generator or a coroutine")
        self._function = function
        self._definition: Definition = definition
        self._names: dict[str, Any] = {}

    def run(self, bound: Sequence[Any]) -> list[Any]:
        """The transforms that the function applies.

        Args:
            bound: the arguments before the image.
        """
        result = self.result([*bound, ImageValue(0)])
        if type(result) is not ImageValue or result.n_calls != len(self._calls):
            raise self._error(
                self._definition.node, "it does not return the image after all its transforms"
            )
        return self._calls

    def events(self) -> Events:
        """What run() has found, in order."""
        outcomes = list(zip(self._decided, self._outcomes or ()))
        return [
            (one, next((outcome for decided, outcome in outcomes if decided is one), None))
            for one in self._events
        ]

    def result(self, arguments: Sequence[Any], may_end: bool = False) -> Any:
        """What the function returns for these arguments.

        Args:
            may_end: it may end without a ``return``.
        """
        node: ast.AST = self._definition.node
        for one in ast.walk(node):
            if isinstance(one, ast.Global | ast.Nonlocal):
                raise self._error(one, "it assigns to a variable outside of it")
        self._bind(arguments)
        try:
            for statement in self._definition.body:
                self._execute(statement)
            if may_end:
                return None
            raise self._error(node, "it may return nothing")
        except Returned:
            return self._result

    def _error(self, node: ast.AST, text: str) -> NotUnderstood:
        line = getattr(node, "lineno", self._function.__code__.co_firstlineno)
        file = os.path.basename(self._function.__code__.co_filename)
        return NotUnderstood(f"{text} ({file}, line {line})")

    def _bind(self, values: Sequence[Any]) -> None:
        arguments = self._definition.node.args
        named = [one.arg for one in (*arguments.posonlyargs, *arguments.args)]
        defaults = self._function.__defaults__ or ()
        of_keywords = self._function.__kwdefaults__ or {}
        if len(values) > len(named) and arguments.vararg is None:
            raise self._error(self._definition.node, "it takes fewer arguments")
        if len(defaults) > len(named):
            raise self._error(self._definition.node, "its defaults were replaced")
        self._names.update(zip(named[len(named) - len(defaults) :], defaults))
        for one in arguments.kwonlyargs:
            if one.arg in of_keywords:
                self._names[one.arg] = of_keywords[one.arg]
        self._names.update(zip(named, values))
        if arguments.vararg is not None:
            self._names[arguments.vararg.arg] = tuple(values[len(named) :])
        if arguments.kwarg is not None:
            self._names[arguments.kwarg.arg] = {}
        wanted = [*named, *(one.arg for one in arguments.kwonlyargs)]
        if any(name not in self._names for name in wanted):
            raise self._error(self._definition.node, "it takes more arguments than the image")

    def _within(self, function: FunctionType, arguments: Sequence[Any]) -> Any:
        """What a function returns that is called within this one."""
        outer = self._function, self._definition, self._names
        self._depth += 1
        if self._depth > _MAX_DEPTH:
            raise NotUnderstood("its functions call each other too deeply")
        try:
            self._begin(function)
            return self.result(arguments)
        finally:
            self._function, self._definition, self._names = outer
            self._depth -= 1

    # ---- statements ------------------------------------------------------------------------------

    def _execute(self, statement: ast.stmt) -> None:
        self._n_steps += 1
        if self._n_steps > 1000:
            raise self._error(statement, "it is too long")
        if isinstance(statement, ast.Return):
            self._result = None if statement.value is None else self._value(statement.value)
            raise Returned
        if isinstance(statement, ast.Assign):
            value = self._value(statement.value)
            for target in statement.targets:
                self._assign(target, value)
        elif isinstance(statement, ast.AnnAssign) and statement.value is not None:
            self._assign(statement.target, self._value(statement.value))
        elif isinstance(statement, ast.AugAssign):
            self._assign_in_place(statement)
        elif self._converts_to_rgb(statement, self._following(statement)):
            pass
        elif isinstance(statement, ast.If):
            is_true = self._truth(statement.test)
            for one in statement.body if is_true else statement.orelse:
                self._execute(one)
        elif isinstance(statement, ast.For) and not statement.orelse:
            for value in self._items(statement.iter):
                self._assign(statement.target, value)
                for one in statement.body:
                    self._execute(one)
        elif not _does_nothing(statement):
            raise self._error(statement, "it does more than to pass the image on")

    def _following(self, statement: ast.stmt) -> ast.stmt | None:
        """The statement behind one of the function's own; None: there is none."""
        body = list(self._definition.body)
        pairs = zip(body, body[1:])
        return next((after for one, after in pairs if one is statement), None)

    def _assign(self, target: ast.expr, value: Any) -> None:
        if not isinstance(target, ast.Name):
            raise self._error(target, "it assigns to something else than a variable")
        self._names[target.id] = value

    def _assign_in_place(self, statement: ast.AugAssign) -> None:
        """``image *= number``"""
        target = statement.target
        if isinstance(target, ast.Name):
            image, number = self._names.get(target.id), self._value(statement.value)
            if type(image) is ImageValue:
                call = self._operator(statement.op, image, True, number, in_place=True)
                if call is not None:
                    self._names[target.id] = self._add(statement, image, call)
                    return
        raise self._error(statement, "it does more than to pass the image on")

    def _items(self, node: ast.expr) -> list[Any]:
        """The values over which a loop goes: those of a list, tuple or container of modules."""
        value = self._concrete(node)
        if type(value) in (torch.nn.ModuleList, torch.nn.Sequential):
            value = list(attributes_of(value)[MODULE_VALUES[-1]].values())
        if type(value) not in (list, tuple):
            raise self._error(node, "it loops over something else than a list")
        return list(value)

    # ---- expressions -----------------------------------------------------------------------------

    def _concrete(self, node: ast.expr) -> Any:
        """The value of an expression that does not hold the image."""
        value = self._value(node)
        if type(value) is ImageValue:
            raise self._error(node, "it uses the image in another way than to transform it")
        return value

    def _value(self, node: ast.expr) -> Any:
        if isinstance(node, ast.Constant):
            return node.value
        if isinstance(node, ast.Name):
            return self._variable(node)
        if isinstance(node, ast.Attribute):
            return self._attribute(node)
        if isinstance(node, ast.Call):
            return self._call(node)
        if isinstance(node, ast.IfExp):
            if (converted := self._converted_to_rgb(node)) is not None:
                return converted
            is_true = self._truth(node.test)
            return self._value(node.body if is_true else node.orelse)
        if isinstance(node, ast.BoolOp):
            return self._and_or(node)
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            return not self._truth(node.operand)
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            value = self._value(node.operand)
            if type(value) in (int, float):
                return -value
        if isinstance(node, ast.Compare) and len(node.ops) == 1:
            return self._compare(node)
        if isinstance(node, ast.BinOp):
            return self._arithmetic(node)
        if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Load):
            return self._element(node)
        raise self._error(node, "it does more than to pass the image on")

    def _element(self, node: ast.Subscript) -> Any:
        """An item of a list or tuple."""
        owner, at = self._value(node.value), self._value(node.slice)
        if type(owner) in (list, tuple) and type(at) is int and -len(owner) <= at < len(owner):
            return owner[at]
        raise self._error(node, "it looks up an item of something else than a list")

    def _truth(self, node: ast.expr) -> bool:
        return self._decide(node, self._concrete(node))

    def _decide(self, node: ast.expr, value: Any) -> bool:
        """The truth of a value, which may be a condition on a random number."""
        if type(value) is not Condition:
            if type(value) in STAND_INS:
                raise self._error(node, "it tests the truth of a random number or filter")
            return truth(value)
        return bool(self._outcome(node, value))

    def _outcome(self, node: ast.AST, question: Condition | Pick) -> int:
        if self._outcomes is None:
            raise self._error(node, "it draws random numbers")
        if question not in self._decided:
            if len(self._decided) == len(self._outcomes):
                raise Undecided(question, len(self._calls))
            self._decided.append(question)
        return self._outcomes[self._decided.index(question)]

    def _picked(self, node: ast.AST, pick: Pick) -> Any:
        self._events.append(pick)
        return pick.values[self._outcome(node, pick)]

    def _arithmetic(self, node: ast.BinOp) -> Any:
        return self._computed_of(node, self._value(node.left), self._value(node.right))

    def _computed_of(self, node: ast.BinOp, one: Any, other: Any) -> Any:
        """Sums and products of an image tensor or a random number, and a number."""
        if (type(one) is ImageValue) is not (type(other) is ImageValue):
            is_left = type(one) is ImageValue
            image, number = (one, other) if is_left else (other, one)
            if (call := self._operator(node.op, image, is_left, number)) is not None:
                return self._add(node, image, call)
            raise self._error(node, "it computes with the image in an unknown way")
        operation = _ARITHMETIC.get(type(node.op))
        drawn = [value for value in (one, other) if type(value) is Draw]
        is_known = all(type(value) in (int, float, Draw) for value in (one, other))
        if operation is None or not is_known or len(drawn) > 1:
            raise self._error(node, "it does more than to pass the image on")
        if type(node.op) is ast.Div and type(other) is Draw:
            raise self._error(node, "it divides by a random number")
        try:
            if not drawn:
                return operation(one, other)
            self._use(node, drawn[0])
            return computed(operation, one, other)
        except (ZeroDivisionError, OverflowError):
            raise self._error(node, "it computes no finite number") from None

    def _operator(
        self,
        operation: ast.operator,
        image: ImageValue,
        is_left: bool,
        number: Any,
        in_place: bool = False,
    ) -> TensorCall | ArrayCall | None:
        """What an operator between an image and a number does; None: not supported."""
        read = operator_of_array if self._is_array(image) else operator_call
        return read(operation, is_left, number, in_place)

    def _variable(self, node: ast.Name) -> Any:
        name, function = node.id, self._function
        code = function.__code__
        if name in self._names:
            return self._names[name]
        if name in code.co_varnames or name in code.co_cellvars:
            raise self._error(node, f"{name} is not assigned yet")
        if name in code.co_freevars:
            cell = (function.__closure__ or ())[code.co_freevars.index(name)]
            if not is_bound_once(self._definition, name):
                raise self._error(node, f"{name}, a variable around it, may be assigned again")
            try:
                return cell.cell_contents
            except ValueError:
                raise self._error(node, f"{name} is not assigned yet") from None
        if name.startswith("__"):
            raise self._error(node, f"it reads {name}")
        for scope in (function.__globals__, getattr(function, "__builtins__", None)):
            if type(scope) is not dict:
                raise self._error(node, "its global variables are not a dict")
            if name in scope:
                value = scope[name]
                # A module may be imported again.
                if type(value) is ModuleType or is_global_fixed(self._definition, name):
                    return value
                raise self._error(node, f"{name}, a global variable, may be assigned again")
        raise self._error(node, f"{name} is not defined")

    def _attribute(self, node: ast.Attribute) -> Any:
        owner = self._value(node.value)
        if type(owner) is ImageValue:
            if node.attr == "mode" and not self._calls and self._state and self._state.is_pil:
                return self._state.mode
            if node.attr in ("shape", "ndim") and self._is_array(owner):
                return ArrayShape() if node.attr == "shape" else 3
            raise self._error(node, f"it reads the image's {node.attr}")
        if node.attr.startswith("__") or type(owner) in STAND_INS:
            raise self._error(node, f"it reads {node.attr}")
        try:
            return attribute(owner, node.attr)
        except NotUnderstood as error:
            raise self._error(node, str(error)) from None

    def _and_or(self, node: ast.BoolOp) -> Any:
        stops_at = isinstance(node.op, ast.Or)
        value = None
        for one in node.values:
            value = self._concrete(one)
            if self._decide(one, value) is stops_at:
                break
        return value

    def _compare(self, node: ast.Compare) -> Any:
        one, other = self._value(node.left), self._value(node.comparators[0])
        operation = node.ops[0]
        if isinstance(operation, ast.Lt | ast.LtE | ast.Gt | ast.GtE):
            less, greater = (one, other)
            if isinstance(operation, ast.Gt | ast.GtE):
                less, greater = (other, one)
            if type(less) in _NUMBERS and type(greater) in _NUMBERS:
                is_strict = isinstance(operation, ast.Lt | ast.Gt)
                return bool(less < greater if is_strict else less <= greater)
            p = chance_of(less, greater)
            if p is None:
                raise self._error(node, "it compares something else than a random number")
            for value in (one, other):
                self._use(node, value)
            return self._condition(p, one, other, _COMPARISONS[type(operation)])
        if type(one) is Bernoulli and isinstance(operation, ast.Eq | ast.NotEq):
            return self._compared(node, one, other, isinstance(operation, ast.Eq))
        if isinstance(operation, ast.Is | ast.IsNot):
            if (type(one) in STAND_INS and other is not None) or type(other) in STAND_INS:
                raise self._error(node, "it asks whether a random number is another object")
            # Whether equal constants are the same object depends on the compiler.
            if type(one) is type(other) and type(one) not in (type(None), bool):
                raise self._error(node, "it asks whether two values are the same object")
            return (one is other) is isinstance(operation, ast.Is)
        if type(one) in PLAIN and type(other) in PLAIN:
            if isinstance(operation, ast.Eq | ast.NotEq):
                return bool(one == other) is isinstance(operation, ast.Eq)
        raise self._error(node, "it compares other values than numbers and strings")

    def _compared(self, node: ast.Compare, one: Bernoulli, other: Any, is_equal: bool) -> Condition:
        """``torch.bernoulli(...) == 0``"""
        if type(other) is not int or other not in (0, 1):
            raise self._error(node, "it compares torch.bernoulli() with another number than 0 or 1")
        is_less = (other == 1) is is_equal
        p = chance_of(one.draw, one.p) if is_less else chance_of(one.p, one.draw)
        if p is None:
            raise self._error(node, "it compares something else than a random number")
        self._use(node, one.draw)
        return self._condition(p, one.draw, one.p, "<" if is_less else ">=")

    def _condition(self, p: float, one: Any, other: Any, comparison: str) -> Condition:
        draw, limit = (one, other) if type(one) is Draw else (other, one)
        if draw is other:
            comparison = TURNED[comparison]
        if draw.is_tensor:
            limit = torch.tensor(limit, dtype=torch.float32).item()  # as torch compares
        condition = Condition(p, draw, comparison, limit)
        self._events.append(condition)
        return condition
