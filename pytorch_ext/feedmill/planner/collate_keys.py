"""Finds out which keys of its samples, which are dicts, a collate_fn reads.

The proof reads the function's source: its argument may only be looped over and counted, and each
sample may only be subscripted by a key that is known.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Iterator
from types import FunctionType
from typing import Any

from feedmill.planner.attributes import NotUnderstood
from feedmill.planner.evaluating import Evaluator

# Built-in functions that see variables without naming them.
_REFLECTING = frozenset({
    "__import__", "compile", "dir", "eval", "exec", "globals", "locals", "vars",
})
# Statements that may bind a variable whose name is no ast.Name, or one outside of the function.
_OTHER_BINDINGS = (
    ast.Global, ast.Nonlocal, ast.Import, ast.ImportFrom, ast.ExceptHandler, ast.Match,
)


def keys_read(function: Callable[..., Any]) -> set[str]:
    """The keys that a collate_fn may read of its samples. Calls nothing.

    Raises:
        NotUnderstood: they are not known, or the samples are used in another way.
    """
    if type(function) is not FunctionType:
        raise NotUnderstood("it is no function with source")
    reader = _KeyReader(function, None)
    return reader.keys()


class _KeyReader(Evaluator):
    def keys(self) -> set[str]:
        node = self._definition.node
        arguments = node.args
        named = [*arguments.posonlyargs, *arguments.args]
        if not named or arguments.vararg or arguments.kwarg:
            raise self._error(node, "it has no argument for the samples")
        inner = [one for part in self._definition.body for one in ast.walk(part)]
        for one in inner:
            if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda):
                raise self._error(one, "it contains a function")
            if isinstance(one, _OTHER_BINDINGS):
                raise self._error(one, "it does more than to collate the samples")
            if isinstance(one, ast.Name) and one.id in _REFLECTING:
                raise self._error(one, f"it calls {one.id}()")
        samples = named[0].arg
        bound = _bound_names(arguments, inner)
        loops = list(_loops_over(inner, samples))
        allowed = {id(items) for _, items in loops}
        # Only the samples may be counted: the length of one of them depends on its image.
        allowed.update(
            id(one.args[0]) for one in inner
            if isinstance(one, ast.Call) and isinstance(one.func, ast.Name)
            and len(one.args) == 1 and isinstance(one.args[0], ast.Name)
            and one.args[0].id == samples and one.func.id == "len" and "len" not in bound
            and self._value(one.func) is len
        )
        targets = {id(target) for target, _ in loops}
        names = {target.id for target, _ in loops}
        if samples in names:
            raise self._error(node, f"it assigns to {samples}")
        read: set[str] = set()
        for one in inner:
            if isinstance(one, ast.Subscript) and isinstance(one.value, ast.Name):
                if one.value.id in names and isinstance(one.ctx, ast.Load):
                    read.add(self._key(one, bound))
                    allowed.add(id(one.value))
        for one in inner:
            if not isinstance(one, ast.Name) or one.id not in (samples, *names):
                continue
            if id(one) not in (allowed if isinstance(one.ctx, ast.Load) else targets):
                raise self._error(one, f"it uses {one.id} in another way than to read known keys")
            if one.id == samples and not isinstance(one.ctx, ast.Load):
                raise self._error(one, f"it assigns to {one.id}")
        return read

    def _key(self, node: ast.Subscript, bound: set[str]) -> str:
        for one in ast.walk(node.slice):
            if isinstance(one, ast.Name) and one.id in bound:
                raise self._error(node, f"it reads a key that depends on the variable {one.id}")
        key = self._value(node.slice)
        if type(key) is not str:
            raise self._error(node, "it reads a key that is no string")
        return key


def _bound_names(arguments: ast.arguments, nodes: Iterable[ast.AST]) -> set[str]:
    """The names of a function's arguments and of all variables that it assigns anywhere. Those of
    comprehensions are not among its code's names before Python 3.12, so that they would be taken
    for global variables."""
    names = {
        one.arg for one in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)
    }
    names.update(
        one.id for one in nodes
        if isinstance(one, ast.Name) and not isinstance(one.ctx, ast.Load)
    )
    return names


def _loops_over(nodes: Iterable[ast.AST], samples: str) -> Iterator[tuple[ast.Name, ast.Name]]:
    """The (variable, items) of each loop, and each part of a comprehension, over all samples."""
    for one in nodes:
        if isinstance(one, ast.For | ast.comprehension) and isinstance(one.iter, ast.Name):
            if isinstance(one.target, ast.Name) and one.iter.id == samples:
                yield one.target, one.iter
