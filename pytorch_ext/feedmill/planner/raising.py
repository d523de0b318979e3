"""Datasets that raise an error of their own for some files: for images that are not RGB, as
``if image.mode != "RGB": raise ValueError(path)``, and for paths at which there is no file.

``item_evaluating`` evaluates what they do with the other files. For these the dataset itself makes
the whole batch, and so raises its error, see ``retries``.
"""

from __future__ import annotations

import ast
from types import FunctionType
from typing import Any

from feedmill.planner.files import open_only_rgb, open_rgb
from feedmill.planner.looked_up import Value
from feedmill.planner.opened_files import Opened
from feedmill.planner.retries import RetryEvaluator
from feedmill.planner.untouched import is_original


class RaisingEvaluator(RetryEvaluator):
    """Evaluates conditions under which nothing is done but to raise an error, as being false."""

    def __init__(self, method: FunctionType) -> None:
        super().__init__(method)
        self._existing: list[Value] = []  # paths

    def _execute(self, statement: ast.stmt) -> None:
        if not self._may_raise(statement):
            super()._execute(statement)

    def _may_raise(self, statement: ast.stmt) -> bool:
        """Executes ``if image.mode != "RGB": raise ...``, the same as an assertion, or
        ``if not os.path.exists(path): raise ...``. False: it is another statement."""
        if isinstance(statement, ast.Assert):
            is_one = self._is_rgb(statement, statement.test, "==")
            if is_one and statement.msg is not None:
                self._check(statement.msg)
        elif isinstance(statement, ast.If) and isinstance(statement.body[-1], ast.Raise):
            test = statement.test
            is_one = not statement.orelse and (
                self._is_rgb(statement, test, "!=") or self._is_missing(test)
            )
            if is_one:
                self._check_all(statement.body)
        else:
            return False
        if is_one:
            self._executed.add(id(statement))
            self.retries = True
        return is_one

    def _is_rgb(self, statement: ast.stmt, test: ast.expr, operator: str) -> bool:
        """Whether a condition compares the mode of an opened image, which is RGB from here on."""
        name = ast.unparse(test).partition(".")[0]
        opened = self._names.get(name)
        if type(opened) is not Opened or ast.unparse(test) != f"{name}.mode {operator} 'RGB'":
            return False
        if opened.load is not open_rgb or opened.loaded_by is not None:
            return False
        self._names[name] = self._loaded_lazily(statement, opened, open_only_rgb)
        return True

    def _is_missing(self, test: ast.expr) -> bool:
        """Whether a condition is ``not os.path.exists(path)``."""
        if not isinstance(test, ast.UnaryOp) or not isinstance(test.op, ast.Not):
            return False
        call = test.operand
        if not isinstance(call, ast.Call) or len(call.args) != 1 or call.keywords:
            return False
        if not isinstance(call.func, ast.Attribute) or not self._tests_files(call.func):
            return False
        path = self._value(call.args[0])
        if type(path) is not Value:
            return False
        self._existing.append(path)
        return True

    def _tests_files(self, called: ast.Attribute) -> bool:
        function: Any = self._value(called)
        return any(is_original(function, "genericpath", one) for one in ("exists", "isfile"))

    def _check_files(self, node: ast.AST) -> None:
        super()._check_files(node)
        for path in self._existing:
            if not any(path.is_same(one) for one in self.paths):
                raise self._error(node, "it raises an error for a file that it does not open")
