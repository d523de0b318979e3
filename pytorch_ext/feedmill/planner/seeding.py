"""Recognises a worker_init_fn that only seeds random generators, and may print.

Libraries' functions are known by name. A function of the user's own is evaluated from its source,
as ``evaluating`` does it for transforms, with an unknown worker: all that it may do is to compute
seeds and to pass them to random.seed(), numpy.random.seed() or torch.manual_seed(), and to print
texts, numbers and the CPUs that it may use. Seeds are followed as ranges of numbers, so that it is
known that none of these calls raises.
"""

from __future__ import annotations

import ast
import builtins
import functools
import operator
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from types import BuiltinFunctionType, FunctionType, MethodType
from typing import Any

import numpy as np
from torch.utils.data import get_worker_info

from feedmill._internals import without_dynamo_guard
from feedmill.planner.attributes import NotUnderstood
from feedmill.planner.evaluating import Evaluator
from feedmill.planner.generators import is_of_numpy, is_of_python
from feedmill.planner.untouched import is_original

_LIBRARIES = frozenset({
    ("transformers.trainer_utils", "seed_worker"),
    ("lightning.fabric.utilities.seed", "pl_worker_init_function"),
    ("lightning_fabric.utilities.seed", "pl_worker_init_function"),
    ("timm.data.loader", "_worker_init"),
})
# torch's functions that seed its generators.
_TORCH = (
    ("torch.random", "manual_seed"), ("torch.cuda.random", "manual_seed"),
    ("torch.cuda.random", "manual_seed_all"),
)
# A worker's seed is torch's base seed, which has 63 bits, plus its number.
_MAX_SEED = (1 << 63) + (1 << 20)
_MAX_NUMPY = (1 << 32) - 1
_MAX_TORCH = (1 << 64) - 1
_MAX_VALUE = 1 << 128
# What seeds: of Python, in C, and of Cython.
_FUNCTIONS = (
    FunctionType, MethodType, BuiltinFunctionType, type(np.random.seed), type(np.random.get_state)
)


@dataclass(frozen=True)
class Span:
    """An unknown int from ``low`` to ``high``.

    Attributes:
        is_word: it is a numpy.uint32, which wraps around.
    """

    low: int
    high: int
    is_word: bool = False


class _Sentinel:
    """Stands for an object with known attributes or items."""


_STATE, _KEYS, _INFO, _GENERATOR = _Sentinel(), _Sentinel(), _Sentinel(), _Sentinel()
_TEXT, _AFFINITY = _Sentinel(), _Sentinel()


@dataclass(frozen=True)
class WorkerInit:
    """What a worker_init_fn does, if nothing else.

    Attributes:
        prints: it prints, and so must be called for each worker.
    """

    prints: bool


def understood(function: Any, n_workers: int) -> WorkerInit | None:
    """What a worker_init_fn does; None if it may do something else than to seed random generators
    and to print. Calls nothing."""
    keywords: dict[str, Any] = {}
    first: list[Any] = []
    while type(function) is functools.partial:
        if any(map(callable, (*function.args, *function.keywords.values()))):
            return None
        first = [*function.args, *first]
        keywords = {**function.keywords, **keywords}
        function = function.func
    if any(function is getattr(sys.modules.get(module), name, None) for module, name in _LIBRARIES):
        return WorkerInit(prints=False)
    if type(function) is not FunctionType:
        return None
    try:
        return _SeedEvaluator(function, n_workers, keywords).understood(first)
    except NotUnderstood:
        return None


def prints(loader: Any) -> bool:
    """Whether a native DataLoader's worker_init_fn prints, and so must be called for each
    worker."""
    function = loader.worker_init_fn
    is_called = loader.num_workers > 0 and loader._feedmill_options().worker_init != "ignore"
    if function is None or not is_called:
        return False
    init = understood(function, loader.num_workers)
    return init is not None and init.prints


class _SeedEvaluator(Evaluator):
    """Evaluates a worker_init_fn once."""

    def __init__(self, function: FunctionType, n_workers: int, keywords: dict[str, Any]) -> None:
        super().__init__(function, None)
        self._n_workers = n_workers
        self._keywords = keywords
        self._is_torch_seeded = False
        self._n_seeded = 0
        self._n_printed = 0

    def understood(self, first: Sequence[Any]) -> WorkerInit | None:
        worker = Span(0, self._n_workers - 1)
        self.result([*first, worker], may_end=True)
        if not self._n_seeded and not self._n_printed:
            return None
        return WorkerInit(prints=self._n_printed > 0)

    def _bind(self, values: Sequence[Any]) -> None:
        arguments = self._definition.node.args
        n_given = max(len(values) - len(arguments.posonlyargs), 0)
        by_name = [one.arg for one in (*arguments.args[n_given:], *arguments.kwonlyargs)]
        if not self._keywords.keys() <= set(by_name):
            raise self._error(self._definition.node, "it is called with unknown arguments")
        self._names.update(self._keywords)
        super()._bind(values)
        self._names.update(self._keywords)

    def _execute(self, statement: ast.stmt) -> None:
        if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
            self._value(statement.value)
            return
        super()._execute(statement)

    def _seed(
        self, node: ast.Call, function: Any, arguments: list[Any], keywords: dict[str, Any]
    ) -> Any:
        """A call that seeds a generator. Returns what stands for its result."""
        values = [*arguments, *keywords.values()]
        if len(values) > 1 or not keywords.keys() <= {"seed"}:
            raise self._error(node, "it seeds with several values")
        result: Any = None
        seed = values[0] if values else None
        if type(seed) is int:
            seed = Span(seed, seed)
        if any(_is_of_torch(function, *place) for place in _TORCH):
            is_fit = type(seed) is Span and -(1 << 63) <= seed.low and seed.high <= _MAX_TORCH
            self._is_torch_seeded = True
            result = _GENERATOR if len(values) == 1 else None
        elif is_of_python(function, "seed"):
            is_fit = seed is None or (type(seed) is Span and not seed.is_word)
            is_fit = is_fit and not keywords
        elif is_of_numpy(function, "seed"):
            is_fit = seed is None or (
                type(seed) is Span and 0 <= seed.low and seed.high <= _MAX_NUMPY
            )
        else:
            raise self._error(node, "it calls something else than to seed a generator")
        if not is_fit:
            raise self._error(node, "its seed may be out of range")
        self._n_seeded += 1
        return result

    # ---- values ----------------------------------------------------------------------------------

    def _value(self, node: ast.expr) -> Any:
        if not isinstance(node, ast.JoinedStr):
            return super()._value(node)
        for one in node.values:
            if isinstance(one, ast.FormattedValue):
                if one.format_spec is not None:
                    raise self._error(node, "it formats a text in an unknown way")
                self._check_printed(node, self._value(one.value))
        return _TEXT

    def _check_printed(self, node: ast.AST, value: Any) -> None:
        """Raises NotUnderstood unless a value's text is the same in this process as in a worker."""
        if type(value) in (str, int, float, bool, type(None), Span):
            return
        if value is not _TEXT and value is not _AFFINITY:
            raise self._error(node, "it prints something else than texts and numbers")

    def _call(self, node: ast.Call) -> Any:
        function = self._value(node.func)
        # Of other objects, even to ask for an attribute may run code.
        if type(function) not in _FUNCTIONS and function is not int:
            raise self._error(node, "it calls something else than to seed a generator")
        arguments, keywords = self._arguments(node, node.args)
        if not keywords and not arguments:
            if _is_of_torch(function, "torch.random", "initial_seed"):
                return Span(0, _MAX_TORCH if self._is_torch_seeded else _MAX_SEED)
            if is_of_numpy(function, "get_state"):
                return _STATE
            if function is get_worker_info:
                return _INFO
        if type(function) is BuiltinFunctionType and function is builtins.print and not keywords:
            for one in arguments:
                self._check_printed(node, one)
            self._n_printed += 1
            return None
        if function is _GET_AFFINITY and not keywords and len(arguments) == 1:
            (one,) = arguments
            if type(one) is int and one == 0:
                return _AFFINITY
        if function is int and not keywords and len(arguments) == 1:
            (one,) = arguments
            if type(one) is Span:
                return Span(one.low, one.high)
            if type(one) is int:
                return one
        return self._seed(node, function, arguments, keywords)

    def _attribute(self, node: ast.Attribute) -> Any:
        owner = self._value(node.value)
        if type(owner) is Span or type(owner) is _Sentinel:
            known = {
                "id": Span(0, self._n_workers - 1), "num_workers": self._n_workers,
                "seed": Span(0, _MAX_SEED),
            }
            if owner is _INFO and node.attr in known:
                return known[node.attr]
            raise self._error(node, f"it reads {node.attr}")
        return super()._attribute(node)

    def _element(self, node: ast.Subscript) -> Any:
        owner, at = self._value(node.value), self._value(node.slice)
        if owner is _STATE and at == 1 and type(at) is int:
            return _KEYS
        if owner is _KEYS and type(at) is int and 0 <= at < 624:
            return Span(0, _MAX_NUMPY, is_word=True)
        return super()._element(node)

    def _concrete(self, node: ast.expr) -> Any:
        value = super()._concrete(node)
        if value is _GENERATOR:
            raise self._error(node, "it uses a generator")
        return value

    def _decide(self, node: ast.expr, value: Any) -> bool:
        if type(value) is Span or type(value) is _Sentinel:
            raise self._error(node, "what it does depends on the worker")
        return super()._decide(node, value)

    def _computed_of(self, node: ast.BinOp, one: Any, other: Any) -> Any:
        kinds = {type(one), type(other)}
        if not kinds <= {int, Span}:
            raise self._error(node, "it computes with something else than ints")
        if kinds == {int}:
            return self._constant(node, one, other)
        return self._span(node, *(Span(v, v) if type(v) is int else v for v in (one, other)))

    def _constant(self, node: ast.BinOp, one: int, other: int) -> int:
        operation = _OF_INTS.get(type(node.op))
        is_small = abs(one) <= 1 << 64 and abs(other) <= (64 if operation is pow else 1 << 64)
        if operation is None or not is_small or (operation is pow and other < 0):
            raise self._error(node, "it computes a seed in an unknown way")
        try:
            return int(operation(one, other))
        except (ZeroDivisionError, ValueError):
            raise self._error(node, "it computes a seed in an unknown way") from None

    def _span(self, node: ast.BinOp, one: Span, other: Span) -> Span:
        if one.is_word or other.is_word:
            # NumPy 2 wraps around, NumPy 1 makes a larger int of it.
            number = other if one.is_word else one
            is_sum = isinstance(node.op, ast.Add) and one.is_word is not other.is_word
            if is_sum and 0 <= number.low <= number.high <= _MAX_NUMPY and _has_numpy_2():
                return Span(0, _MAX_NUMPY, is_word=True)
        elif isinstance(node.op, ast.Mod) and other.low > 0:
            return Span(0, other.high - 1)
        elif type(node.op) in _MONOTONOUS:
            operation = _OF_INTS[type(node.op)]
            ends = [operation(a, b) for a in (one.low, one.high) for b in (other.low, other.high)]
            if max(map(abs, ends)) <= _MAX_VALUE:
                return Span(min(ends), max(ends))
        raise self._error(node, "it computes a seed in an unknown way")


# None on systems without it. A worker process may use the same CPUs as this one.
_GET_AFFINITY = getattr(os, "sched_getaffinity", None)
_OF_INTS: dict[type[ast.operator], Any] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Mod: operator.mod,
    ast.FloorDiv: operator.floordiv, ast.Pow: pow,
}
# Their extremes lie at those of the operands.
_MONOTONOUS = (ast.Add, ast.Sub, ast.Mult)


def _is_of_torch(function: Any, module: str, name: str) -> bool:
    """Whether a function is one of torch's. Nothing that says to stand for one is believed."""
    inner = without_dynamo_guard(function) if type(function) is FunctionType else None
    return (
        type(inner) is FunctionType
        and "feedmill_original" not in vars(inner)
        and is_original(inner, module, name)
    )


def _has_numpy_2() -> bool:
    return int(np.__version__.partition(".")[0]) >= 2
