"""Finds the source of a function, with a proof that it is the source of the code that runs.

The file is compiled again. One of the compiled functions must equal the running code: its bytecode,
constants and names. A file that was edited since its import, a function whose code was replaced,
and code without a file have no source here.
"""

from __future__ import annotations

import ast
import functools
import linecache
import sys
from collections.abc import Iterator, Sequence
from types import CodeType, FunctionType
from typing import NamedTuple

Function = ast.FunctionDef | ast.Lambda
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)


class Definition(NamedTuple):
    """A function in the syntax tree of its file.

    Attributes:
        node: the function.
        enclosing: the functions around it, the innermost first.
        module: the whole file.
    """

    node: Function
    enclosing: tuple[ast.AST, ...]
    module: ast.Module

    @property
    def body(self) -> Sequence[ast.stmt]:
        if isinstance(self.node, ast.FunctionDef):
            return self.node.body
        return [ast.copy_location(ast.Return(self.node.body), self.node.body)]


def definition_of(function: FunctionType) -> Definition | None:
    """The source of a function's code; None: it is not available, or not proved to be the code's.
    Decorators have no effect on the code of a function, so they are part of no proof."""
    code = function.__code__
    key = code, code.co_filename
    if key not in _found:
        if len(_found) >= 512:
            _found.clear()
        _found[key] = _find(function)
    return _found[key]


@functools.lru_cache(maxsize=512)  # walks the functions around, which may be a whole script
def is_bound_once(definition: Definition, name: str) -> bool:
    """Whether a free variable of the function keeps its value: it is an argument of an enclosing
    function or assigned in a single statement that is in no loop; or all statements that assign it
    are in no loop and before the function's own definition, such as the branches of an ``if``."""
    for around in definition.enclosing:
        nodes = list(ast.walk(around))
        if any(isinstance(node, ast.Nonlocal) and name in node.names for node in nodes):
            return False
        bindings = list(_bindings(around, name))
        if bindings:
            return bindings == [False] or (
                not any(bindings) and _is_bound_before(definition, around, name)
            )
    return False


def _is_bound_before(definition: Definition, around: ast.AST, name: str) -> bool:
    """Whether all that binds a name in a function is on lines before the inner function's, or
    before the statement that a lambda is a part of, which may bind the name."""
    bound = [node for node in ast.walk(around) if _binds(node, name)]
    ends = [getattr(node, "end_lineno", None) or sys.maxsize for node in bound]
    begin = _statement_of(definition.node, around).lineno
    return all(end < begin for end in ends)


def _statement_of(node: Function, around: ast.AST) -> ast.stmt | Function:
    """The innermost statement of a function that an inner one is, or is a part of."""
    if isinstance(node, ast.FunctionDef):
        return node
    pending: list[tuple[ast.AST, ast.stmt | Function]] = [(around, node)]
    while pending:
        one, statement = pending.pop()
        if one is node:
            return statement
        inner = one if isinstance(one, ast.stmt) else statement
        pending += [(child, inner) for child in ast.iter_child_nodes(one)]
    return node


def is_global_fixed(definition: Definition, name: str) -> bool:
    """Whether a global variable has one value, also in worker processes that import the file again:
    no function of the file assigns to it, and the file binds it at most once, in no loop and under
    no condition."""
    key = definition.module, name
    if key not in _fixed:
        if len(_fixed) >= 512:
            _fixed.clear()
        _fixed[key] = _is_global_fixed(*key)
    return _fixed[key]


def _is_global_fixed(module: ast.Module, name: str) -> bool:
    nodes = ast.walk(module)
    if any(isinstance(node, ast.Global) and name in node.names for node in nodes):
        return False
    return list(_bindings(module, name)) in ([], [False])


def _bindings(scope: ast.AST, name: str) -> Iterator[bool]:
    """For each place where a function or a file itself binds a name: whether it is in a loop, or,
    in a file, in a conditional statement."""
    repeated: tuple[type[ast.AST], ...] = (ast.For, ast.AsyncFor, ast.While)
    if isinstance(scope, ast.Module):
        repeated += (ast.If, ast.Try, ast.Match)
    arguments = getattr(scope, "args", None)
    for node in ast.walk(arguments) if arguments is not None else ():
        if isinstance(node, ast.arg) and node.arg == name:
            yield False
    body = getattr(scope, "body", [])
    pending = [(node, False) for node in (body if isinstance(body, list) else [body])]
    while pending:
        node, in_loop = pending.pop()
        if _binds(node, name):
            yield in_loop
        if isinstance(node, (*_FUNCTIONS, ast.ClassDef)):
            continue  # a scope of its own
        loops = in_loop or isinstance(node, repeated)
        pending += [(child, loops) for child in ast.iter_child_nodes(node)]


def _binds(node: ast.AST, name: str) -> bool:
    if isinstance(node, ast.Name):
        return node.id == name and not isinstance(node.ctx, ast.Load)
    if isinstance(node, ast.alias):
        return name in ("*", (node.asname or node.name).partition(".")[0])
    # Functions, classes, exception handlers; and the patterns of a match statement.
    return name in (getattr(node, "name", None), getattr(node, "rest", None))


# ---- files ---------------------------------------------------------------------------------------


class _File(NamedTuple):
    """A parsed file: its functions' code and nodes, by name and first line; and all of it."""

    codes: dict[tuple[str, int], list[CodeType]]
    nodes: dict[tuple[str, int], list[tuple[Function, tuple[ast.AST, ...]]]]
    module: ast.Module


# By code and file.
_found: dict[tuple[CodeType, str], Definition | None] = {}
# By file and name of a global variable.
_fixed: dict[tuple[ast.Module, str], bool] = {}


def _find(function: FunctionType) -> Definition | None:
    code = function.__code__
    try:
        linecache.checkcache(code.co_filename)
        lines = linecache.getlines(code.co_filename, function.__globals__)
        file = _parsed("".join(lines), code.co_filename)
    except (OSError, TypeError, SyntaxError, ValueError, RecursionError):
        return None
    key = code.co_name, code.co_firstlineno
    if not any(one == code for one in file.codes.get(key, ())):
        return None
    found = file.nodes.get(key, [])
    if len(found) > 1:
        # The innermost that holds all instructions; a function around it holds them, too. The code
        # of the function around has instructions that make the inner one.
        found = sorted((one for one in found if _covers(one[0], code)), key=lambda one: len(one[1]))
    return Definition(*found[-1], file.module) if found else None


@functools.lru_cache(maxsize=4)
def _parsed(text: str, filename: str) -> _File:
    tree = ast.parse(text, filename)
    file = _File({}, {}, tree)
    pending = [compile(text, filename, "exec", dont_inherit=True)]
    while pending:
        code = pending.pop()
        file.codes.setdefault((code.co_name, code.co_firstlineno), []).append(code)
        pending += [one for one in code.co_consts if isinstance(one, CodeType)]
    _add_nodes(tree, (), file)
    return file


def _add_nodes(node: ast.AST, enclosing: tuple[ast.AST, ...], file: _File) -> None:
    if isinstance(node, ast.FunctionDef | ast.Lambda):
        name, line = "<lambda>", node.lineno
        if isinstance(node, ast.FunctionDef):
            name = node.name
            line = min([line, *(one.lineno for one in node.decorator_list)])
        file.nodes.setdefault((name, line), []).append((node, enclosing))
    if isinstance(node, _FUNCTIONS):
        enclosing = (node, *enclosing)
    for child in ast.iter_child_nodes(node):
        _add_nodes(child, enclosing, file)


def _covers(node: Function, code: CodeType) -> bool:
    """Whether all instructions of the code are within the function's body; for several functions on
    one line. False before Python 3.11, whose instructions have no columns."""
    positions = getattr(code, "co_positions", None)
    body = node.body if isinstance(node.body, ast.AST) else node.body[0]
    if positions is None or not isinstance(node, ast.Lambda):
        return False
    begin = body.lineno, body.col_offset
    end = body.end_lineno or 0, body.end_col_offset or 0
    n_inside = 0
    for line, end_line, column, end_column in positions():
        if None in (line, end_line, column, end_column) or column == end_column == 0:
            continue  # an instruction without a place in the source
        if (line, column) < begin or (end_line, end_column) > end:
            return False
        n_inside += 1
    return n_inside > 0
