"""Reads keys and labels from CSV and Parquet files."""

from __future__ import annotations

import csv
import importlib
import sys
from collections.abc import Sequence


def read_csv(path: str, columns: tuple[str, str]) -> tuple[list[str], list[str]]:
    """Keys and labels in a CSV file in UTF-8, whose first line names the columns.

    Args:
        columns: names of the columns of keys and labels.

    Raises:
        ValueError: it has no such columns, or a row is too short.
        OSError: it can't be read.
    """
    keys, labels = [], []
    with open(path, newline="", encoding="utf-8-sig") as file:
        rows = csv.reader(file)
        try:
            header = next(rows, [])
            key, label = (_place_of(name, header, path) for name in columns)
            for row in rows:
                if not row:
                    continue
                if len(row) <= max(key, label):
                    raise ValueError(
                        f"{path}: line {rows.line_num} has {len(row)} values; the first line names "
                        f"{len(header)} columns"
                    )
                keys.append(row[key])
                labels.append(row[label])
        except (csv.Error, UnicodeDecodeError) as error:
            raise ValueError(f"{path}: line {rows.line_num}: {error}") from None
    return keys, labels


def read_parquet(path: str, columns: tuple[str, str]) -> tuple[list[str], list[str]]:
    """Keys and labels in a Parquet file. Raises as read_csv(), and ModuleNotFoundError with what to
    install if pyarrow is missing."""
    try:
        parquet = importlib.import_module("pyarrow.parquet")
    except ModuleNotFoundError:
        raise ModuleNotFoundError(
            "Parquet files are read with pyarrow, which is not installed in this Python "
            f"({sys.executable}). To install it: {sys.executable} -m pip install pyarrow; or write "
            "the table as a CSV file", name="pyarrow",
        ) from None
    with open(path, "rb") as source:
        try:
            file = parquet.ParquetFile(source)
            for name in columns:
                _place_of(name, file.schema_arrow.names, path)
            table = file.read(columns=list(dict.fromkeys(columns)))
        except importlib.import_module("pyarrow").ArrowInvalid as error:
            raise ValueError(f"{path}: {error}") from None
    keys, labels = (table.column(name).to_pylist() for name in columns)
    for name, values in zip(columns, (keys, labels)):
        if None in values:
            raise ValueError(f"{path}: row {values.index(None) + 1} has no {name!r}")
    return [str(one) for one in keys], [str(one) for one in labels]


def _place_of(name: str, header: Sequence[str], path: str) -> int:
    if name in header:
        return list(header).index(name)
    raise ValueError(
        f"{path}: there is no column {name!r}; the columns are {', '.join(map(repr, header))}: "
        "name two of them with --columns KEY,LABEL"
    )
