"""Recognises functions that replaced a library's function but only forward their calls to it.

An example is ultralytics' wrapper of PIL.Image.open(): it calls Pillow's function and, if Pillow
does not know the file, registers a plugin and calls it again. Comparing results for some files
would prove nothing, as a wrapper may treat files by name, size or EXIF data. Its source does prove
it: if the wrapper either raises or returns the original's result for its own, unchanged arguments,
every file that it opens gives the same image.
"""

from __future__ import annotations

import ast
import functools
import inspect
import textwrap
from collections.abc import Callable, Iterator, Sequence
from types import CodeType, FunctionType
from typing import Any

_MAX_WRAPPERS = 8
# Syntax that a wrapper may not contain: nested functions, other ways to bind names or to return.
_UNSUPPORTED = (
    ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda, ast.ListComp, ast.SetComp,
    ast.DictComp, ast.GeneratorExp, ast.Yield, ast.YieldFrom, ast.Await, ast.NamedExpr,
    ast.Nonlocal, ast.Match,
)


def forwards_to(function: Any, is_wanted: Callable[[Any], bool]) -> bool:
    """Whether a function is a wanted one, or forwards every call to one, directly or through up to
    _MAX_WRAPPERS other wrappers.

    Side effects of a wrapper, such as logging or registering a plugin, do not matter.
    """
    for _ in range(_MAX_WRAPPERS):
        if is_wanted(function):
            return True
        if not isinstance(function, FunctionType):
            return False
        name = _target_of(function.__code__)
        if name is None:
            return False
        function = _value_of(function, name)
    return False


def _value_of(function: FunctionType, name: str) -> Any:
    """The value of a free or global name in a function; None: the name is not bound."""
    if name in function.__code__.co_freevars:
        cell = (function.__closure__ or ())[function.__code__.co_freevars.index(name)]
        try:
            return cell.cell_contents
        except ValueError:  # the cell is empty
            return None
    return function.__globals__.get(name)


@functools.lru_cache(maxsize=64)
def _target_of(code: CodeType) -> str | None:
    """The name of the function to which a wrapper forwards every call; None: it is not such a
    wrapper, or its source is not available."""
    try:
        text = textwrap.dedent(inspect.getsource(code))
        body = ast.parse(text).body
    except (OSError, TypeError, SyntaxError, ValueError):
        return None
    if len(body) != 1 or not isinstance(body[0], ast.FunctionDef):
        return None
    definition = body[0]
    if not _is_source_of(definition, code):
        return None
    return _forwarded_to(definition)


def _is_source_of(definition: ast.FunctionDef, code: CodeType) -> bool:
    """Whether a source belongs to the running code. The file may have changed since the import."""
    definition.decorator_list.clear()
    outer = ast.parse(f"def outer({', '.join(code.co_freevars)}): pass")
    assert isinstance(outer.body[0], ast.FunctionDef)
    outer.body[0].body = [definition]
    compiled: CodeType | None = compile(ast.fix_missing_locations(outer), "", "exec")
    for name in ("outer", definition.name):
        consts = () if compiled is None else compiled.co_consts
        compiled = next((one for one in consts if _is_code_of(one, name)), None)
    if compiled is None:
        return False
    # A docstring is the first constant; it is skipped, as its indentation may differ.
    first = 0 if ast.get_docstring(definition) is None else 1
    return compiled.co_consts[first:] == code.co_consts[first:] and all(
        getattr(compiled, what) == getattr(code, what)
        for what in ("co_code", "co_names", "co_varnames", "co_freevars")
    )


def _is_code_of(value: Any, name: str) -> bool:
    return isinstance(value, CodeType) and value.co_name == name


def _forwarded_to(definition: ast.FunctionDef) -> str | None:
    """The name of the function to which a definition forwards every call: each ``return`` calls it
    with the definition's own, unchanged arguments. None: there is none."""
    arguments = definition.args
    named = [*arguments.posonlyargs, *arguments.args]
    if arguments.kwonlyargs or arguments.defaults or not (arguments.vararg and arguments.kwarg):
        return None
    own = [one.arg for one in named] + [arguments.vararg.arg, arguments.kwarg.arg]
    nodes = [node for statement in definition.body for node in ast.walk(statement)]
    if any(isinstance(node, _UNSUPPORTED) for node in nodes) or not _ends(definition.body):
        return None
    calls = [node.value for node in nodes if isinstance(node, ast.Return)]
    names = {_called(call, own) for call in calls}
    name = names.pop() if len(names) == 1 else None
    # The arguments must not be used elsewhere, and nothing may assign to them or to the function.
    uses = [node.id for node in nodes if isinstance(node, ast.Name) and node.id in own]
    bound = set(_bound(nodes))
    if name is None or len(uses) != len(own) * len(calls) or bound & {name, *own}:
        return None
    return name


def _called(call: ast.expr | None, own: Sequence[str]) -> str | None:
    """The name in ``name(first, ..., *rest, **options)`` of exactly a function's own arguments."""
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name):
        return None
    *named, rest, options = own
    wanted = ast.parse(f"{call.func.id}({', '.join([*named, '*' + rest, '**' + options])})").body[0]
    assert isinstance(wanted, ast.Expr)
    return call.func.id if ast.dump(call) == ast.dump(wanted.value) else None


def _bound(nodes: Sequence[ast.AST]) -> Iterator[str]:
    """The names that statements bind."""
    for node in nodes:
        if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
            yield node.id
        elif isinstance(node, ast.alias):
            yield (node.asname or node.name).partition(".")[0]
        elif isinstance(node, ast.ExceptHandler) and node.name:
            yield node.name


def _ends(body: Sequence[ast.stmt]) -> bool:
    """Whether control can't reach the end of the statements: all branches return or raise."""
    last = body[-1] if body else None
    if isinstance(last, ast.Return | ast.Raise):
        return True
    if isinstance(last, ast.If):
        return _ends(last.body) and _ends(last.orelse)
    if isinstance(last, ast.Try):
        tried = _ends(last.body) or _ends(last.orelse)
        return _ends(last.finalbody) or (
            tried and all(_ends(handler.body) for handler in last.handlers)
        )
    return False
