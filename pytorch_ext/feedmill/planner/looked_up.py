"""Values that a dataset's ``__getitem__`` looks up by its index, or makes of such values: of
Python's own types, by functions and methods of Python that do nothing else.
"""

from __future__ import annotations

import itertools
import os
import pathlib
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import torch

CONSTANTS = (int, float, str, bool, type(None), pathlib.PosixPath)
# Types of elements whose methods, called by their index, iterator or conversion, are Python's,
# NumPy's or torch's own.
_PLAIN = (*CONSTANTS, bytes, np.str_, torch.Tensor)
_ROWS = (list, tuple)
_MAX_LEVELS = 4  # of lists within lists

# Kinds of values: a string, several strings, the result of a regular expression, a path of pathlib,
# and a row of a DataFrame. A value may turn out to be None or another object. The methods below
# fail for it, as the dataset's calls do.
TEXT, TEXTS, MATCH, PATH, ROW = "text", "texts", "match", "path", "row"

# torch's older way to make tensors of lists. Of a number they make one with so many elements.
_TENSORS = (torch.FloatTensor, torch.LongTensor)

# Functions of values, and the kind of their result if all arguments are strings or paths.
_FUNCTIONS: tuple[tuple[Any, str | None], ...] = (
    (int, None), (float, None), (str, TEXT), (pathlib.Path, PATH), (os.fspath, TEXT),
    (os.path.join, TEXT), (os.path.relpath, TEXT),
    (os.path.basename, TEXT), (os.path.dirname, TEXT), (os.path.splitext, TEXTS),
    *((kind, None) for kind in _TENSORS),
)
_SEARCHES = (re.search, re.match, re.fullmatch)  # of (pattern, text)
# Methods of strings, and the kind of their result.
_METHODS: dict[str, str | None] = {
    **dict.fromkeys(("split", "rsplit", "partition", "rpartition"), TEXTS),
    **dict.fromkeys((
        "strip", "lstrip", "rstrip", "lower", "upper", "replace", "removeprefix", "removesuffix",
    ), TEXT),
    **dict.fromkeys(("startswith", "endswith", "find", "rfind"), None),
}
# Methods and attributes of paths, and the kind of their result.
_PATH_METHODS: dict[str, str | None] = {
    "as_posix": TEXT,
    **dict.fromkeys(("joinpath", "with_suffix", "with_name", "relative_to"), PATH),
}
_PATH_PARTS: dict[str, str | None] = {
    **dict.fromkeys(("name", "stem", "suffix"), TEXT), "parent": PATH, "parts": TEXTS,
}
_MATCH_METHODS: dict[str, str | None] = {"group": TEXT, "groups": TEXTS}


class Value:
    """A value that depends on the index: ``of(index, sample)``, where ``sample`` is the inner
    dataset's (path, target).

    Attributes:
        sources: the Values of which it is made.
        container: that is looked up for it, or a constant; None: none.
        kind: TEXT, TEXTS, MATCH, PATH or ROW; None: not known.
        how: what is done with the sources, for text().
        is_constant: it is the container, whatever the index.
        n_steps: in which it is made.
    """

    def __init__(
        self,
        of: Callable[[Any, Any], Any],
        sources: Sequence[Value] = (),
        container: Any = None,
        kind: str | None = None,
        how: str = "",
    ) -> None:
        self.of = of
        self.sources = sources
        self.container = container
        self.kind = kind
        self.how = how
        self.is_constant = False
        self.n_steps: int = 1 + sum(one.n_steps for one in sources)

    def all(self) -> list[Value]:
        """This value, and all of which it is made."""
        return [self, *(one for source in self.sources for one in source.all())]

    def is_same(self, other: Value) -> bool:
        """Whether both are looked up and made in the same way of the same objects."""
        mine, theirs = self.all(), other.all()
        return self.text() == other.text() and all(
            one.container is another.container for one, another in zip(mine, theirs, strict=True)
        )

    def text(self) -> str:
        """How it is made of containers and constants: two values with the same text and the same
        containers, in order, are equal."""
        return f"{self.how}({', '.join(one.text() for one in self.sources)})"


def constant(value: Any) -> Value:
    kinds: dict[type, str] = {str: TEXT, pathlib.PosixPath: PATH}
    kind = kinds.get(type(value))
    made = Value(lambda index, sample: value, (), the_object(value), kind, repr(value))
    made.is_constant = True
    return made


# By type and repr().
_OBJECTS: dict[tuple[type, str], Any] = {}


def the_object(value: Any) -> Any:
    """The same object for equal constants, as what determines a dataset is compared by identity."""
    return _OBJECTS.setdefault((type(value), repr(value)), value)


def unpacked(value: Value, number: int, n: int) -> Callable[[Any, Any], Any]:
    """Item ``number`` of a value that is unpacked to ``n`` variables."""

    def of(index: Any, sample: Any) -> Any:
        parts = tuple(value.of(index, sample))
        if len(parts) != n:
            raise ValueError(f"{len(parts)} values to unpack, expected {n}")
        return parts[number]

    return of


def kind_of_item(owner: Value) -> str | None:
    """The kind of an item of a value."""
    return TEXT if owner.kind in (TEXT, TEXTS) else None


def kind_of_elements(container: Any) -> str | None:
    """The kind of the elements of a list, tuple or dict."""
    if type(container) not in (*_ROWS, dict):
        return None
    elements = container.values() if type(container) is dict else container
    kinds = set(map(type, elements))
    return TEXT if kinds == {str} else PATH if kinds == {pathlib.PosixPath} else None


def has_plain_keys(container: Any) -> bool:
    """Whether a lookup in a container, which compares the keys of a dict, calls no code of the
    user's."""
    return type(container) is not dict or set(map(type, container)) <= set(CONSTANTS)


def is_plain(container: Any) -> bool:
    """Whether the elements of a container, and those of lists and dicts in it, are plain values, so
    that using them calls no code of the user's."""
    kind = type(container)
    if kind is np.ndarray:
        return not container.dtype.hasobject
    if kind not in (*_ROWS, dict):
        return True
    elements: Any = container.values() if kind is dict else container
    for _ in range(_MAX_LEVELS):
        if not are_plain(set(map(type, elements)) - {*_ROWS, dict}, elements):
            return False
        dicts = [one for one in elements if type(one) is dict]
        if not set(map(type, itertools.chain.from_iterable(dicts))) <= set(CONSTANTS):
            return False  # see has_plain_keys()
        rows = [one for one in elements if type(one) in _ROWS]
        if not rows and not dicts:
            return True
        parts = itertools.chain(rows, map(dict.values, dicts))
        elements = list(itertools.chain.from_iterable(parts))
    return False


def are_plain(kinds: set[type], *containers: Iterable[Any]) -> bool:
    """Whether the elements, of these types, of some containers are plain values."""
    if not all(one in _PLAIN or one.__module__ == "numpy" for one in kinds):
        return False
    arrays = {one for one in kinds if issubclass(one, (np.ndarray, np.void))}
    if not arrays:
        return True
    elements = itertools.chain.from_iterable(containers)
    return not any(type(one) in arrays and one.dtype.hasobject for one in elements)


# ---- calls: (function, kind of its result); None: another call -----------------------------------


def function_of(function: Any, values: Sequence[Value]) -> tuple[Any, str | None] | None:
    """A call of a function of values and constants."""
    if any(function is one for one in _SEARCHES):
        are_texts = all(one.kind == TEXT for one in values)
        return (function, MATCH) if len(values) == 2 and are_texts else None
    are_paths = all(one.kind in (TEXT, PATH) for one in values)
    kind = next((kind for one, kind in _FUNCTIONS if function is one), "")
    if kind == "" or (kind == PATH and not are_paths):
        return None
    if any(function is one for one in _TENSORS):
        return (_of_lists(function), None) if len(values) == 1 else None
    return function, kind if are_paths or function is str else None


def _of_lists(function: Any) -> Any:
    def made(value: Any) -> Any:
        is_array = type(value) in (np.ndarray, torch.Tensor) and value.ndim > 0
        if type(value) not in _ROWS and not is_array:
            raise TypeError("a list or an array was expected")
        return function(value)

    made.__qualname__ = repr(function)
    return made


def formatted_of(parts: Sequence[tuple[str, Value, str]]) -> Callable[[Any, Any], str]:
    """An f-string: of each part its text before, a value, and the value's format."""

    def of(index: Any, sample: Any) -> str:
        return "".join(
            f"{text}{format(value.of(index, sample), spec)}" for text, value, spec in parts
        )

    return of


def method_of(name: str, owner: Value, values: Sequence[Value]) -> tuple[Any, str | None] | None:
    """A call of a method of a value. The function takes the value before the arguments."""
    if owner.kind == TEXT and name in _METHODS:
        if all(one.kind == TEXT or one.is_constant for one in values):
            return getattr(str, name), _METHODS[name]
    if owner.kind == PATH and name in _PATH_METHODS:
        if all(one.kind in (TEXT, PATH) for one in values):
            return getattr(pathlib.Path, name), _PATH_METHODS[name]
    if owner.kind == MATCH and name in _MATCH_METHODS:
        # group(1, 2) is a tuple; groups(default) may hold something else than strings.
        if len(values) <= (name == "group") and all(one.is_constant for one in values):
            return getattr(re.Match, name), _MATCH_METHODS[name]
    return None


def part_of_path(path: Value, name: str) -> Value | None:
    """``path.name``; None: something else than a path, or than its name or folder."""
    if path.kind != PATH or name not in _PATH_PARTS:
        return None

    def of(index: Any, sample: Any) -> Any:
        value = path.of(index, sample)
        if type(value) is not pathlib.PosixPath:
            raise TypeError("a path was expected")
        return getattr(value, name)

    return Value(of, [path], None, _PATH_PARTS[name], f".{name}")


def joined_path(one: Any, other: Any) -> Value | None:
    """``path / name``; None: one of both is no path, or no string."""
    values = [constant(each) if type(each) in (str, pathlib.PosixPath) else each
              for each in (one, other)]
    if not all(type(each) is Value and each.kind in (TEXT, PATH) for each in values):
        return None
    left, right = values
    if PATH not in (left.kind, right.kind):
        return None

    def of(index: Any, sample: Any) -> Any:
        parts = left.of(index, sample), right.of(index, sample)
        if not {type(part) for part in parts} <= {str, pathlib.PosixPath}:
            raise TypeError("a path and a string were expected")
        return parts[0] / parts[1]

    return Value(of, values, None, PATH, "/")


def sum_of(one: Any, other: Any) -> Value | None:
    """Two strings, one after the other; None: one of both is none."""
    values = [constant(value) if type(value) is str else value for value in (one, other)]
    if not all(type(value) is Value and value.kind == TEXT for value in values):
        return None
    left, right = values
    return Value(
        lambda index, sample: _joined(left.of(index, sample), right.of(index, sample)),
        values, None, TEXT, "+",
    )


def _joined(one: Any, other: Any) -> str:
    if type(one) is not str or type(other) is not str:
        raise TypeError("a string was expected")
    return one + other
