"""Recognises functions of libraries by a hash of their source code.

A hash stands for what a function computes in any version of its library: comments, docstrings,
annotations and layout do not count. The source must be that of the running code, and each global
name that the code uses must still mean what it meant to the library. A function of a version that
is not listed, or one that somebody changed, is not recognised.
"""

from __future__ import annotations

import ast
import builtins
import dis
import functools
import hashlib
import linecache
import sys
from collections.abc import Iterator, Mapping
from types import CodeType, FunctionType
from typing import Any

from feedmill.planner.untouched import is_original

# Parts of a definition that do not change what it computes.
_IGNORED = frozenset({
    "annotation", "ctx", "decorator_list", "kind", "returns", "type_comment", "type_params",
})


def is_known(
    function: Any,
    place: str,
    known: Mapping[str, frozenset[str]],
    meanings: Mapping[str, str],
) -> bool:
    """Whether a function is one of a library's known versions of it.

    Args:
        place: where the library defines it, such as "timm.data.loader:fast_collate".
        known: the hashes of each function's versions, by place.
        meanings: what global names stand for: a module such as "math", a place, or "*": anything.
            A place that ``known`` lists must have a known function, too. Other names that the code
            uses must be built-in ones.
    """
    function = getattr(function, "__func__", function)  # of a static method
    module, _, name = place.partition(":")
    if not is_original(function, module, name) or not _holds_class_only(function):
        return False
    if fingerprint(function.__code__) not in known.get(place, frozenset()):
        return False
    if not _has_own_defaults(function):
        return False
    return all(
        _means(function, one, known, meanings) for one in _globals_of(function.__code__)
    )


def _holds_class_only(function: FunctionType) -> bool:
    """Whether a function has no variables of others, but for the class that super() needs."""
    cells = function.__closure__ or ()
    if not cells:
        return True
    owner: Any = sys.modules.get(function.__module__)
    for name in function.__qualname__.split(".")[:-1]:
        owner = getattr(owner, "__dict__", {}).get(name)
    is_class = function.__code__.co_freevars == ("__class__",) and isinstance(owner, type)
    return is_class and cells[0].cell_contents is owner


def has_known_body(
    function: FunctionType, bodies: frozenset[str], meanings: Mapping[str, str]
) -> bool:
    """Whether a function that scripts copy from each other has one of the bodies with these hashes,
    wherever it is defined. Its name, arguments and defaults do not count.

    Args:
        meanings: as is_known()'s.
    """
    if function.__closure__ or body_fingerprint(function.__code__) not in bodies:
        return False
    return all(_means(function, one, {}, meanings) for one in _globals_of(function.__code__))


def _means(
    function: FunctionType,
    name: str,
    known: Mapping[str, frozenset[str]],
    meanings: Mapping[str, str],
) -> bool:
    """Whether a global name in a function stands for what it should."""
    if name not in function.__globals__:
        return hasattr(builtins, name)
    meaning = meanings.get(name, "")
    value = function.__globals__[name]
    module, _, inner = meaning.partition(":")
    if meaning == "*":
        return True
    if not inner:
        return bool(meaning) and value is sys.modules.get(module)
    if meaning in known and value is not function:
        return is_known(value, meaning, known, meanings)
    return value is getattr(sys.modules.get(module), inner, None)


@functools.lru_cache(maxsize=1024)
def _globals_of(code: CodeType) -> frozenset[str]:
    """The global and built-in names that code uses."""
    names = {
        one.argval for one in dis.get_instructions(code)
        if one.opname in ("LOAD_GLOBAL", "LOAD_NAME")
    }
    inner = [_globals_of(one) for one in code.co_consts if isinstance(one, CodeType)]
    return frozenset(names).union(*inner)


# ---- the source ----------------------------------------------------------------------------------


def fingerprint(code: CodeType) -> str:
    """The hash of a function's source; "" if the source is not available or is not the code's."""
    definition = _definition(code)
    return "" if definition is None else hash_of(definition)


def body_fingerprint(code: CodeType) -> str:
    """As fingerprint(), of the statements within the function only."""
    definition = _definition(code)
    return "" if definition is None else _hash_of_body(definition)


@functools.lru_cache(maxsize=1024)
def hash_of(definition: ast.AST) -> str:
    """The hash of a definition in a syntax tree."""
    return _hash(canonical(definition))


@functools.lru_cache(maxsize=1024)
def _hash_of_body(definition: ast.FunctionDef) -> str:
    starts = 1 if _starts_with_docstring(definition) else 0
    return _hash(canonical(definition.body[starts:]))


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _definition(code: CodeType) -> ast.FunctionDef | None:
    """The definition that a file has for a function; None: it has none, or its code is another,
    since the file changed after the import, or somebody changed the function."""
    return _definition_in(code.co_filename, code)


# Equal code may come from several files.
@functools.lru_cache(maxsize=1024)
def _definition_in(path: str, code: CodeType) -> ast.FunctionDef | None:
    definitions, codes = _read_file(path)
    return definitions.get((code.co_name, code.co_firstlineno)) if code in codes else None


@functools.lru_cache(maxsize=16)
def _read_file(
    path: str,
) -> tuple[dict[tuple[str, int], ast.FunctionDef], frozenset[CodeType]]:
    """The definitions of functions in a Python file, by name and first line, and the code of all
    functions in it. The whole file is compiled, as code depends on what its file imports."""
    try:
        text = "".join(linecache.getlines(path))
        tree = ast.parse(text)
        compiled = compile(text, path, "exec", dont_inherit=True)
    except (SyntaxError, ValueError):
        return {}, frozenset()
    definitions: dict[tuple[str, int], ast.FunctionDef] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            first = min([node.lineno, *(one.lineno for one in node.decorator_list)])
            definitions.setdefault((node.name, first), node)
    return definitions, frozenset(_codes_in(compiled))


def _codes_in(code: CodeType) -> Iterator[CodeType]:
    for const in code.co_consts:
        if isinstance(const, CodeType):
            yield const
            yield from _codes_in(const)


def canonical(node: Any) -> str:
    """The text of a syntax tree that is hashed: the same for each version of Python."""
    if isinstance(node, list):
        return f"[{','.join(map(canonical, node))}]"
    if not isinstance(node, ast.AST):
        return f"{type(node).__name__}:{node!r}"
    fields = []
    for name, value in ast.iter_fields(node):
        if name == "body" and isinstance(node, ast.FunctionDef) and _starts_with_docstring(node):
            value = value[1:]
        if name not in _IGNORED and value is not None and value != []:
            fields.append(f"{name}={canonical(value)}")
    return f"{type(node).__name__}({','.join(fields)})"


def _starts_with_docstring(definition: ast.FunctionDef) -> bool:
    return ast.get_docstring(definition, clean=False) is not None


def _has_own_defaults(function: FunctionType) -> bool:
    """Whether literal defaults of arguments are those of the definition."""
    definition = _definition(function.__code__)
    if definition is None:
        return False
    arguments = definition.args
    held = list(function.__defaults__ or ())
    by_name = dict(function.__kwdefaults__ or {})
    named = {
        one.arg: node for one, node in zip(arguments.kwonlyargs, arguments.kw_defaults)
        if node is not None
    }
    if len(arguments.defaults) != len(held) or named.keys() != by_name.keys():
        return False
    written = [*arguments.defaults, *named.values()]
    for node, value in zip(written, [*held, *(by_name[name] for name in named)]):
        try:
            same = repr(ast.literal_eval(node)) == repr(value)
        except ValueError:
            same = True  # an expression, such as torch.float32
        if not same:
            return False
    return True
