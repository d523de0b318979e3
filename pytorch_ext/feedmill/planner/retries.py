"""Datasets that catch the error of an image that can't be loaded, and take another sample in its
place, as BEiT's: ``item_evaluating`` evaluates what they do when nothing fails.

When something fails, the dataset itself makes the whole batch, with the generators of the worker
that would make it. So any handler is allowed that leaves the dataset, and all other objects, as
they are: in a worker process it would change the worker's own copies of them.
"""

from __future__ import annotations

import ast
import builtins
import logging
import os.path
import traceback
import warnings
from collections.abc import Sequence
from types import FunctionType, MethodType
from typing import Any

import numpy as np
import torch

from feedmill.planner.attributes import attributes_of, of_class
from feedmill.planner.evaluating import Returned
from feedmill.planner.generators import drawing_function
from feedmill.planner.image_calls import ImageValue
from feedmill.planner.looked_up import CONSTANTS, Value, is_plain
from feedmill.planner.opencv_calls import OpenCvEvaluator
from feedmill.planner.opened_files import Opened
from feedmill.planner.untouched import is_original

_MOST_ROUNDS = 8  # of a loop in which nothing fails
_CONTAINERS = (list, tuple, dict, np.ndarray)
# What a handler may call: these change nothing.
_FUNCTIONS = (
    print, len, str, repr, int, float, bool, min, max, abs, round, range,
    torch.randint, torch.zeros, torch.ones, np.zeros, np.ones, warnings.warn,
    os.path.basename, traceback.print_exc,
)
_LOGGING = ("debug", "info", "warning", "error", "exception", "critical")
_METHODS_OF_TEXTS = ("format", "join")
# The statements of a handler that have no expression.
_EMPTY = (ast.Pass, ast.Continue, ast.Break)
_LOOPS = (ast.For, ast.AsyncFor, ast.While)


def _has_try(loop: ast.While | ast.For) -> bool:
    return any(isinstance(one, ast.Try) for one in loop.body)


class _Broken(Exception):
    """Ends the evaluation of a loop at a ``break``."""


class RetryEvaluator(OpenCvEvaluator):
    """Evaluates ``try`` statements around what loads an image, and loops around these.

    Attributes:
        retries: what is raised when a sample is looked up or loaded may be caught.
    """

    def __init__(self, method: FunctionType) -> None:
        super().__init__(method)
        self.retries = False
        self._whole: Any = None  # the dataset
        self._breaks: list[ast.Break] = []  # of the loops that are evaluated
        self._executed: set[int] = set()  # ids of statements
        self._evaluated: list[tuple[Any, Any, dict[str, Any]]] = []  # functions

    def result(self, arguments: Sequence[Any], may_end: bool = False) -> Any:
        result = super().result(arguments, may_end)
        self._evaluated.append((self._function, self._definition, self._names))
        return result

    def _execute(self, statement: ast.stmt) -> None:
        self._executed.add(id(statement))
        if isinstance(statement, ast.Try):
            self._try(statement)
        elif isinstance(statement, ast.While) and _has_try(statement):
            self._repeat(statement)
        elif isinstance(statement, ast.For) and _has_try(statement):
            self._try_several_times(statement)
        elif isinstance(statement, ast.Break) and any(statement is one for one in self._breaks):
            raise _Broken
        else:
            super()._execute(statement)

    # ---- loops -----------------------------------------------------------------------------------

    def _repeat(self, statement: ast.While) -> None:
        """``while True: try: ...; break; except ...``"""
        self._begin_loop(statement)
        for _ in range(_MOST_ROUNDS):
            if not self._truth(statement.test):
                return
            try:
                for one in statement.body:
                    self._execute(one)
            except _Broken:
                return
        raise self._error(statement, "it loops until something happens")

    def _try_several_times(self, statement: ast.For) -> None:
        """``for _ in range(10): try: ...; break; except ...``, in which nothing fails."""
        self._begin_loop(statement)
        call = statement.iter
        if not isinstance(call, ast.Call) or call.keywords or len(call.args) != 1:
            raise self._error(statement, "it loops over something else than range(number)")
        number = self._value(call.args[0])
        if self._value(call.func) is not range or type(number) is not int or number < 1:
            raise self._error(statement, "it loops over something else than range(number)")
        self._assign(statement.target, 0)
        try:
            for one in statement.body:
                self._execute(one)
        except _Broken:
            return
        raise self._error(statement, "it loads an image several times")

    def _begin_loop(self, statement: ast.While | ast.For) -> None:
        inside = [one for part in statement.body for one in ast.walk(part)]
        if statement.orelse or any(isinstance(one, _LOOPS) for one in inside):
            raise self._error(statement, "it has a loop within a loop, or one with else")
        self._breaks += [one for one in inside if isinstance(one, ast.Break)]

    # ---- try -------------------------------------------------------------------------------------

    def _try(self, statement: ast.Try) -> None:
        """Executes a ``try`` in which nothing is raised."""
        if statement.finalbody:
            raise self._error(statement, "it has a try statement with finally")
        n_before, ended = self._n_loaded(), None
        try:
            for one in statement.body:
                self._execute(one)
        except (_Broken, Returned) as error:
            ended = error.with_traceback(None)
        if self._n_loaded() == n_before:
            raise self._error(statement, "it catches errors of something else than an image file")
        self.retries = True
        kept = self._result
        for handler in statement.handlers:
            self._check_handler(handler)
        self._result = kept
        if ended is not None:
            raise ended
        for one in statement.orelse:
            self._execute(one)

    def _n_loaded(self) -> int:
        """How many files were opened and samples taken so far."""
        return len(self._opened) + len(self.paths) + (self.inner is not None)

    def _check_handler(self, handler: ast.ExceptHandler) -> None:
        kinds = handler.type
        listed = kinds.elts if isinstance(kinds, ast.Tuple) else [] if kinds is None else [kinds]
        for one in listed:
            kind = self._value(one)
            if type(kind) is not type or not issubclass(kind, BaseException):
                raise self._error(one, "it catches something else than Python's or Pillow's errors")
        self._check_all(handler.body)

    def _check_all(self, statements: list[ast.stmt]) -> None:
        for one in statements:
            self._check_statement(one)

    def _check_statement(self, statement: ast.stmt) -> None:
        """Raises NotUnderstood if a statement of a handler may change something else than the
        function's own variables."""
        if isinstance(statement, ast.Assign | ast.AugAssign):
            targets = (
                statement.targets if isinstance(statement, ast.Assign) else [statement.target]
            )
            if not all(isinstance(one, ast.Name) for one in targets):
                raise self._error(statement, "it changes an object when an image can't be loaded")
            is_in_place = isinstance(statement, ast.AugAssign)
            if is_in_place and not self._is_of_new_values(targets[0]):
                raise self._error(statement, "it may change an object in place, as a += [b] does")
            self._check(statement.value)
        elif isinstance(statement, ast.Expr):
            self._check(statement.value)
        elif isinstance(statement, ast.Return) and statement.value is not None:
            self._check(statement.value)
        elif isinstance(statement, ast.If):
            self._check(statement.test)
            self._check_all([*statement.body, *statement.orelse])
        elif isinstance(statement, ast.Raise) and statement.cause is None:
            if statement.exc is not None:
                self._check_raised(statement.exc)
        elif not isinstance(statement, (*_EMPTY, ast.Return)):
            raise self._error(statement, "it does more when an image can't be loaded")

    def _is_of_new_values(self, variable: ast.expr) -> bool:
        """Whether no other object can hold what a variable of the function does: it is a number,
        text or result of an operator wherever it is assigned, or the index."""
        if not isinstance(variable, ast.Name):
            return False
        code, name = self._function.__code__, variable.id
        is_item = self._function is of_class(type(self._whole), "__getitem__")
        if name in code.co_varnames[: code.co_argcount] and not (
            is_item and name == code.co_varnames[1]
        ):
            return False
        nodes = list(ast.walk(self._definition.node))
        new = {
            id(target)
            for one in nodes
            if isinstance(one, ast.Assign) and isinstance(one.value, _OF_NEW_VALUES)
            for target in one.targets
        } | {id(one.target) for one in nodes if isinstance(one, ast.AugAssign)}
        return all(
            id(one) in new
            for one in nodes
            if isinstance(one, ast.Name) and one.id == name and not isinstance(one.ctx, ast.Load)
        ) and not any(isinstance(one, ast.ExceptHandler) and one.name == name for one in nodes)

    def _check_raised(self, node: ast.expr) -> None:
        """The same for what a handler raises: ``error``, ``ValueError`` or ``ValueError(text)``."""
        if not isinstance(node, ast.Name) or node.id in self._function.__code__.co_varnames:
            self._check(node)
        elif not self._changes_nothing(node):
            raise self._error(node, "it raises another object than an error of Python's")

    def _check(self, node: ast.expr) -> None:
        """Raises NotUnderstood if an expression of a handler may call code that changes
        something."""
        if isinstance(node, ast.Call):
            self._check_call(node)
        elif isinstance(node, ast.Name | ast.Attribute):
            if not self._is_harmless(node):
                raise self._error(node, "it uses an object when an image can't be loaded")
        elif isinstance(node, ast.Subscript):
            if not self._is_dataset(node.value):
                self._check(node.value)
            self._check(node.slice)
        elif isinstance(node, ast.FormattedValue):
            self._check(node.value)
            if node.format_spec is not None:
                self._check(node.format_spec)
        elif isinstance(node, _OF_PARTS):
            for one in ast.iter_child_nodes(node):
                if isinstance(one, ast.expr):
                    self._check(one)
        elif not isinstance(node, ast.Constant):
            raise self._error(node, "it does more when an image can't be loaded")

    def _check_call(self, node: ast.Call) -> None:
        if any(isinstance(one, ast.Starred) for one in node.args) or any(
            one.arg is None for one in node.keywords
        ):
            raise self._error(node, "it calls something with a list of arguments")
        if not self._is_length(node):
            for one in (*node.args, *(one.value for one in node.keywords)):
                self._check(one)
            if not self._changes_nothing(node.func):
                raise self._error(node, "it calls a function when an image can't be loaded")

    def _is_length(self, node: ast.Call) -> bool:
        """Whether a call is ``len(self)`` or ``self.__len__()``, of a method that is evaluated
        here."""
        called, given = node.func, [*node.args, *node.keywords]
        if isinstance(called, ast.Attribute):
            is_one = called.attr == "__len__" and not given and self._is_whole(called.value)
            is_one = is_one and "__len__" not in attributes_of(self._whole)
        else:
            is_one = len(node.args) == len(given) == 1 and self._is_whole(node.args[0])
            is_one = is_one and self._value(called) is len
        method = of_class(type(self._whole), "__len__")
        if not is_one or type(method) is not FunctionType:
            return False
        self._within(method, [self._whole])
        return True

    def _changes_nothing(self, called: ast.expr) -> bool:
        """Whether what a handler calls is known to change nothing but random generators."""
        if isinstance(called, ast.Attribute):
            owner, name = called.value, called.attr
            if name == "__getitem__" and self._is_whole(owner):
                return True
            if name == "convert" and isinstance(owner, ast.Name):
                return type(self._names.get(owner.id)) in (ImageValue, Opened)
            if isinstance(owner, ast.Constant):
                return type(owner.value) is str and name in _METHODS_OF_TEXTS
        function = self._value(called)
        if any(function is one for one in _FUNCTIONS) or drawing_function(function):
            return True
        if type(function) is MethodType and type(function.__self__) is logging.Logger:
            name = function.__name__
            return is_original(function.__func__, "logging", f"Logger.{name}") and name in _LOGGING
        if type(function) is FunctionType:
            name = function.__name__
            of_logging = name in _LOGGING and is_original(function, "logging", name)
            return of_logging or is_original(function, "PIL.Image", "new")
        is_error = type(function) is type and issubclass(function, Exception)
        return is_error and vars(builtins).get(function.__name__) is function

    # ---- what is only executed when something fails ----------------------------------------------

    def check_rest(self) -> None:
        """Raises NotUnderstood if the functions have statements that were not executed, but may be
        after an error was caught, and that may change something: as ``if image is None: ...``."""
        outer = self._function, self._definition, self._names
        for evaluated in self._evaluated[:]:
            self._function, self._definition, self._names = evaluated
            self._check_rest_of(self._definition.body)
        self._function, self._definition, self._names = outer

    def _check_rest_of(self, statements: Sequence[ast.stmt]) -> None:
        for one in statements:
            if id(one) not in self._executed:
                self._check_statement(one)
                continue
            for part in ast.iter_child_nodes(one):
                if isinstance(part, ast.expr):
                    self._check_rest_of_expression(part)
            is_fixed = isinstance(one, ast.If) and self._is_fixed(one.test)
            for branch in (getattr(one, "body", []), getattr(one, "orelse", [])):
                if not is_fixed or any(id(inner) in self._executed for inner in branch):
                    self._check_rest_of(branch)

    def _check_rest_of_expression(self, node: ast.expr) -> None:
        """The same for the parts of an expression that are evaluated on a condition."""
        for one in ast.walk(node):
            if isinstance(one, ast.IfExp) and not self._is_fixed(one.test):
                parts = [one.body, one.orelse]
            elif isinstance(one, ast.BoolOp) and not self._is_fixed(one.values[0]):
                parts = one.values[1:]
            else:
                parts = []
            for part in parts:
                if not isinstance(part, ast.Name):
                    self._check(part)

    def _is_fixed(self, test: ast.expr) -> bool:
        """Whether a condition is the same after an error: it depends on no variable of the function
        but the dataset."""
        code = self._function.__code__
        names = {one.id for one in ast.walk(test) if isinstance(one, ast.Name)}
        return all(
            name not in code.co_varnames or self._names.get(name) is self._whole for name in names
        )

    # ---- names -----------------------------------------------------------------------------------

    def _is_whole(self, node: ast.expr) -> bool:
        """Whether an expression is the dataset."""
        if not isinstance(node, ast.Name) or self._whole is None:
            return False
        return self._names.get(node.id) is self._whole

    def _is_dataset(self, node: ast.expr) -> bool:
        """Whether an expression is the dataset, or the one within it."""
        if self._is_whole(node):
            return True
        is_named = isinstance(node, ast.Attribute) and self._is_whole(node.value)
        return is_named and self.inner is not None and self._value(node) is self.inner

    def _is_harmless(self, node: ast.Name | ast.Attribute) -> bool:
        """Whether a variable or attribute holds a value of Python's own."""
        if isinstance(node, ast.Name) and node.id not in self._names:
            code = self._function.__code__
            if node.id in code.co_varnames:
                return True  # the handler, or another one, assigns it
        value = self._value(node)
        if type(value) is Value:
            return value.container is None or is_plain(value.container)
        if type(value) in _CONTAINERS:
            # A transform may change a tensor in place.
            return is_plain(value) and not _holds_tensors(value)
        return type(value) in (*CONSTANTS, torch.dtype)


def _holds_tensors(container: Any) -> bool:
    if type(container) is np.ndarray:
        return False
    elements = container.values() if type(container) is dict else container
    return any(
        isinstance(one, torch.Tensor) or (type(one) in _CONTAINERS and _holds_tensors(one))
        for one in elements
    )


# Expressions whose value is a number, a text or a new object.
_OF_NEW_VALUES = (ast.Constant, ast.JoinedStr, ast.BinOp)
# Expressions that do nothing but to use the values of their parts.
_OF_PARTS = (
    ast.JoinedStr, ast.BinOp, ast.UnaryOp, ast.BoolOp, ast.Compare, ast.IfExp, ast.Tuple, ast.List,
    ast.Slice,
)
