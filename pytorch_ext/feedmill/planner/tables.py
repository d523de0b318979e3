"""What a dataset's ``__getitem__`` looks up by its index in a DataFrame or Series of pandas.

A lookup is done by pandas itself each time, as the dataset would do it. What is known beforehand is
only that it runs no code of the user's: the classes are pandas' own, and the elements plain values.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from feedmill.planner.attributes import NotUnderstood
from feedmill.planner.looked_up import ROW, TEXT, Value, are_plain
from feedmill.planner.untouched import is_original

_INDEXERS = ("iloc", "loc", "iat", "at")


class Table:
    """A DataFrame or Series of the user's, or what is read of it without the index: one of its
    columns, an indexer such as ``iloc``, or its values as an array.

    Attributes:
        root: the user's object.
        read: () -> what is read. It is read anew for each lookup, as the dataset does.
        steps: how, as text.
        indexer: the name of the indexer; "": none.
    """

    def __init__(
        self, root: Any, read: Callable[[], Any], steps: str = "", indexer: str = ""
    ) -> None:
        self.root = root
        self.read = read
        self.steps = steps
        self.indexer = indexer


def is_table(value: Any) -> bool:
    """Whether a value is a DataFrame or a Series of pandas, and not of a subclass."""
    return type(value) in _kinds()


def _kinds() -> tuple[type, ...]:
    pandas = sys.modules.get("pandas")
    found = (getattr(pandas, name, None) for name in ("DataFrame", "Series"))
    return tuple(one for one in found if isinstance(one, type))


def table_of(value: Any) -> Table:
    """A DataFrame or Series. NotUnderstood if its index may hold objects of the user's."""
    _check(value)
    return Table(value, lambda: value)


def _check(value: Any) -> None:
    pandas = sys.modules["pandas"]
    for kind, module in ((pandas.DataFrame, "frame"), (pandas.Series, "series")):
        get = f"{kind.__name__}.__getitem__"
        if not is_original(kind.__getitem__, f"pandas.core.{module}", get):
            raise NotUnderstood(f"pandas.{get} was replaced")
        for name in _INDEXERS:
            of_class = getattr(kind, name)
            getter = of_class.fget if type(of_class) is property else None
            if not is_original(getter, "pandas.core.indexing", f"IndexingMixin.{name}"):
                raise NotUnderstood(f"pandas.{kind.__name__}.{name} was replaced")
    if type(value.index) is not pandas.RangeIndex and not (
        type(value.index) is pandas.Index and _has_plain_elements(value.index)
    ):
        raise NotUnderstood("the index of its table holds neither numbers nor strings")


def _has_plain_elements(column: Any) -> bool:
    """Whether the elements of a Series or Index are numbers, strings or None."""
    pandas, dtype = sys.modules["pandas"], column.dtype
    if isinstance(dtype, np.dtype):
        if dtype.kind in "biuf":
            return True
        values = np.asarray(column)
        return bool(dtype.kind == "O") and are_plain(set(map(type, values)), values)
    return type(dtype) is pandas.StringDtype


def _are_texts(column: Any) -> bool:
    """Whether all elements of a Series, or array, are strings."""
    if isinstance(column.dtype, np.dtype):
        return column.dtype.kind == "O" and set(map(type, np.asarray(column))) == {str}
    return not column.hasnans


def part_of(table: Table, name: str) -> Table | None:
    """What ``table.name`` reads: an indexer, a column or the values; None: something else."""
    now = table.read()
    if not is_table(now):
        return None
    if name in _INDEXERS:
        return Table(table.root, lambda: getattr(table.read(), name), f"{table.steps}.{name}", name)
    if name == "values" and not hasattr(now, "columns") and isinstance(now.dtype, np.dtype):
        return Table(table.root, lambda: table.read().values, f"{table.steps}.values")
    if _has_column(now, name) and not hasattr(type(now), name):
        return Table(table.root, lambda: getattr(table.read(), name), f"{table.steps}.{name}")
    return None


def column_of(table: Table, name: Any) -> Table | None:
    """What ``table["name"]`` reads; None: no column."""
    now = table.read()
    if not is_table(now) or type(name) is not str or not _has_column(now, name):
        return None
    return Table(table.root, lambda: table.read()[name], f"{table.steps}[{name!r}]")


def _has_column(now: Any, name: str) -> bool:
    columns = list(getattr(now, "columns", ()))
    return are_plain(set(map(type, columns)), columns) and columns.count(name) == 1


class Lookup(NamedTuple):
    """A value that is looked up by the index; the parts are Value's."""

    of: Callable[[Any, Any], Any]
    sources: list[Value]
    kind: str | None
    how: str


def lookup(table: Table, at: Any, is_index: bool) -> Lookup:
    """``table[at]``.

    Args:
        at: a Value; or, for an indexer of a DataFrame, a Value and the number or name of a column.
        is_index: the Value, or that of the row, is the DataLoader's index itself.

    Raises:
        NotUnderstood: it may run code of the user's, or gives something else than an element or a
            row.
    """
    now = table.read()
    by_label = table.indexer in ("loc", "at") or (not table.indexer and is_table(now))
    if is_index and by_label and not _is_counted(getattr(now, "obj", now)):
        raise NotUnderstood("its indices are the labels of a table other than 0, 1, 2 and so on")
    if table.indexer:
        owner = now.obj
        if type(at) is Value:
            return _by_indexer(table, at, owner)
        is_pair = isinstance(at, list) and len(at) == 2 and type(at[0]) is Value
        if hasattr(owner, "columns") and is_pair:
            return _by_row_and_column(table, at[0], at[1], owner)
    elif type(at) is Value and not hasattr(now, "columns"):
        is_column = is_table(now) or (type(now) is np.ndarray and now.ndim == 1)
        if is_column and _has_plain_elements(now):
            return _element(table, at, TEXT if _are_texts(now) else None)
    raise NotUnderstood("it looks up something else in its table than an element or a row")


def _is_counted(rows: Any) -> bool:
    """Whether the labels of a table's rows are 0, 1, 2 and so on, in any order. The native loader
    needs indices that are ints and count the samples."""
    labels = np.asarray(rows.index)
    is_int = labels.dtype.kind in "iu"
    return is_int and bool(np.array_equal(np.sort(labels), np.arange(len(labels))))


def _by_indexer(table: Table, at: Value, owner: Any) -> Lookup:
    if hasattr(owner, "columns"):
        every = [owner.iloc[:, number] for number in range(owner.shape[1])]
        names = list(map(type, owner.columns))
        if table.indexer in ("iloc", "loc") and all(map(_has_plain_elements, every)):
            if are_plain(set(names), owner.columns):
                return _element(table, at, ROW)
    elif _has_plain_elements(owner):
        return _element(table, at, TEXT if _are_texts(owner) else None)
    raise NotUnderstood("its table holds other elements than numbers and strings")


def _by_row_and_column(table: Table, at: Value, column: Any, owner: Any) -> Lookup:
    if table.indexer in ("iloc", "iat"):
        is_good = type(column) is int and -owner.shape[1] <= column < owner.shape[1]
        values = owner.iloc[:, column] if is_good else None
    else:
        is_good = type(column) is str and _has_column(owner, column)
        values = owner[column] if is_good else None
    if values is None or not _has_plain_elements(values):
        raise NotUnderstood("it looks up something else in its table than a number or a string")
    return Lookup(
        lambda index, sample: table.read()[at.of(index, sample), column],
        [at], TEXT if _are_texts(values) else None, f"{table.steps}[, {column!r}]",
    )


def _element(table: Table, at: Value, kind: str | None) -> Lookup:
    return Lookup(
        lambda index, sample: table.read()[at.of(index, sample)], [at], kind, f"{table.steps}[]",
    )


def field_of_row(row: Value, name: Any, is_attribute: bool) -> Lookup:
    """``row["name"]``, ``row[0]`` or ``row.name`` of a row of a DataFrame.

    Raises:
        NotUnderstood: it is something else than an element.
    """
    columns = list(row.container.columns)
    if not is_attribute:
        if (type(name) is str and columns.count(name) == 1) or type(name) is int:
            return Lookup(
                lambda index, sample: row.of(index, sample)[name], [row], None, f"[{name!r}]"
            )
    elif columns.count(name) == 1 and not hasattr(sys.modules["pandas"].Series, name):
        return Lookup(
            lambda index, sample: getattr(row.of(index, sample), name), [row], None, f".{name}"
        )
    raise NotUnderstood(f"it reads {name!r}, which is no column of its table")


def lengths(values: Sequence[Any]) -> list[int]:
    """The numbers of rows of the tables among some values."""
    return [len(one) for one in values if is_table(one)]
