"""Reads a log, as this room describes it. Needs no torch."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from typing import Any


def read_log(path: str | os.PathLike[str]) -> dict[str, list[dict[str, Any]]]:
    """The records of a log by type, such as "run", "step" and "system", in the file's order.

    A line that is no JSON object with a type is left out: the last one of a process that was
    killed may be cut short, and so may one that met the end of a full disk.

    Raises:
        OSError: the file can't be read.
        ValueError: it is no log.
    """
    records: dict[str, list[dict[str, Any]]] = {}
    for record in _objects(path):
        kind = record.get("type")
        if isinstance(kind, str):
            records.setdefault(kind, []).append(record)
    if "run" not in records:
        raise ValueError(f"{os.fspath(path)}: no log of a run: it has no line of the type \"run\"")
    return records


def _objects(path: str | os.PathLike[str]) -> Iterator[dict[str, Any]]:
    with open(path, "rb") as file:
        for line in file:
            try:
                value = json.loads(line)
            except (ValueError, RecursionError):
                continue
            if isinstance(value, dict):
                yield value
