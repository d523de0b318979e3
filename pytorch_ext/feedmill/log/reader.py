"""Reads the log of a run: JSON lines that say what each step waited for.

Each line is an object with a "type": "run" (who wrote what follows; again when something in it
changes), "step", "system", "slow", "stats", "lost". A line belongs to the run whose "loader" it
names, else to the latest "run" line. Lines of other types, and fields that are not known, are
skipped, and so are lines that were cut short because a process was killed or a disk was full.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from feedmill.counting.records import PHASES, STEP_DTYPE

_RANGES = {name: np.iinfo(STEP_DTYPE[name]) for name in STEP_DTYPE.names}
_PHASE_NUMBERS = {name: number for number, name in enumerate(PHASES)}
# How much of a line that is no log's an error shows.
_SHOWN_CHARACTERS = 60


class LogError(ValueError):
    """A file that is not the log of a run; the text names file, line and reason."""


@dataclass
class Run:
    """What one process logged of one loader.

    Attributes:
        pid, rank, place: whose it is: the process, its rank in a distributed training or None, and
            the "file:line" of the script that made the loader or None.
        meta: the "run" line; where there are several, each field's latest value.
        steps: all steps in the order of the log, STEP_DTYPE.
        system: the "system" lines as they are.
        slow: the samples that took longest to read and to work on, the slowest first, each once.
        stats: the latest "stats" line, totals since the start; None if no epoch ended.
        n_lost: steps that are not in the log, as they were overwritten before they were written.
    """

    pid: int | None
    rank: int | None
    place: str | None
    meta: dict[str, Any]
    steps: np.ndarray = field(default_factory=lambda: np.empty(0, STEP_DTYPE))
    system: list[dict[str, Any]] = field(default_factory=list)
    slow: list[dict[str, Any]] = field(default_factory=list)
    stats: dict[str, Any] | None = None
    n_lost: int = 0


def read_log(path: str | os.PathLike[str]) -> list[Run]:
    """The runs of a log, in the order of their first lines; at least one.

    Raises:
        LogError: the file is not a log.
        OSError: it can't be read.
    """
    runs: dict[Any, Run] = {}
    rows: dict[Any, list[tuple[int, ...]]] = {}
    latest = None
    for where, line in _lines(path):
        kind = line["type"]
        if kind == "run":
            latest = _key(line)
            if latest in runs:
                runs[latest].meta.update(line)
            else:
                runs[latest], rows[latest] = _run(line), []
        elif kind in ("step", "system", "slow", "stats", "lost"):
            key = _key(line) if "loader" in line else latest
            if key not in runs:
                raise LogError(f'{where}: a line of type "{kind}" before its line of type "run"')
            if kind == "step":
                rows[key].append(_row(line, where))
            else:
                _add(runs[key], kind, line)
    if not runs:
        raise LogError(f'{path}: not the log of a run: no line of type "run"')
    for key, run in runs.items():
        run.steps = np.array(rows[key], STEP_DTYPE)
        run.slow = _slowest(run.slow)
    return list(runs.values())


def _lines(path: str | os.PathLike[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Each line's place, as "file:number", and content."""
    is_log = False
    with open(path, "rb") as file:
        for number, text in enumerate(file, 1):
            where = f"{os.fspath(path)}:{number}"
            if not text.strip():
                continue
            try:
                line = json.loads(text)
            except (ValueError, RecursionError) as error:
                if is_log:
                    continue
                shown = text.decode(errors="replace").strip()[:_SHOWN_CHARACTERS]
                raise LogError(
                    f"{where}: not the log of a run: no JSON ({error}): {shown!r}"
                ) from None
            if not isinstance(line, dict) or not isinstance(line.get("type"), str):
                raise LogError(f'{where}: not the log of a run: no JSON object with a "type"')
            is_log = is_log or line["type"] == "run"
            yield where, line


def _key(line: Mapping[str, Any]) -> str:
    """What tells the runs of a log apart."""
    names = ("loader",) if "loader" in line else ("pid", "rank", "place")
    return repr([line.get(name) for name in names])


def _run(line: dict[str, Any]) -> Run:
    pid, rank, place = line.get("pid"), line.get("rank"), line.get("place")
    return Run(
        pid if isinstance(pid, int) else None,
        rank if isinstance(rank, int) else None,
        place if isinstance(place, str) else None,
        meta=line,
    )


def _row(line: Mapping[str, Any], where: str) -> tuple[int, ...]:
    """A step's values in the order of STEP_DTYPE; 0 for a field that the line lacks."""
    values = dict(line)
    if "phase" in values:
        if values["phase"] not in PHASES:
            raise LogError(
                f"{where}: phase is {values['phase']!r}, must be one of {', '.join(PHASES)}"
            )
        values["phase"] = _PHASE_NUMBERS[values["phase"]]
    row = []
    for name, limits in _RANGES.items():
        value = values.get(name, 0)
        if type(value) is not int or not limits.min <= value <= limits.max:
            raise LogError(
                f"{where}: {name} is {value!r}, must be a whole number from {limits.min} to "
                f"{limits.max}"
            )
        row.append(value)
    return tuple(row)


def _add(run: Run, kind: str, line: dict[str, Any]) -> None:
    if kind == "system":
        run.system.append(line)
    elif kind == "slow":
        run.slow.append(line)
    elif kind == "stats":
        run.stats = line
    elif isinstance(line.get("steps"), int):
        run.n_lost += line["steps"]


def duration_ns(slow: Mapping[str, Any]) -> int:
    """What a slow sample took: reading and working on it, without starvation."""
    values = (slow.get(name) for name in ("read_ns", "decode_ns", "transform_ns"))
    return sum(value for value in values if isinstance(value, int))


def _slowest(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Each epoch's end names the slowest samples since the start again: keeps each one's worst."""
    worst: dict[tuple[str, str], dict[str, Any]] = {}
    for line in sorted(lines, key=duration_ns):
        worst[str(line.get("path")), str(line.get("index"))] = line
    return sorted(worst.values(), key=duration_ns, reverse=True)
