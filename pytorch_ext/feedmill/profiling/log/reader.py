"""Reads the log of a run. Needs no torch. The format is described in feedmill.profiling.log.

A line without "loader" belongs to the latest "run" line. Unknown types and fields are skipped.
After the first "run" line, a line that is not a JSON object with a type is skipped as well: lines
are truncated if a process is killed or the disk is full.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np

from feedmill.profiling.counting.records import PHASES, SAMPLE_DTYPE, STEP_DTYPE, names_of

_DTYPES = {"step": STEP_DTYPE, "sample": SAMPLE_DTYPE}
_T = TypeVar("_T")
_Limits = tuple[int, int]  # smallest and largest value


def _limits_of(dtype: np.dtype) -> _Limits:
    info = np.iinfo(dtype)
    return int(info.min), int(info.max)


_LIMITS = {
    kind: {name: _limits_of(dtype[name]) for name in names_of(dtype)}
    for kind, dtype in _DTYPES.items()
}
_SOURCE_LIMITS = _limits_of(np.dtype(np.int64))
_PHASE_NUMBERS = {name: number for number, name in enumerate(PHASES)}
# Characters of an invalid line that an error message shows.
_SHOWN_CHARACTERS = 60


class LogError(ValueError):
    """The file is not the log of a run. The message names the file, the line and the reason."""


@dataclass
class Run:
    """What one process logged about one loader.

    Attributes:
        meta: the "run" line. If there are several, the latest value of each field.
        steps: all steps in the order of the log, STEP_DTYPE.
        samples: all samples, SAMPLE_DTYPE. Empty if they were not requested.
        step_sources, sample_sources: "source" of each step and sample.
        system: the "system" lines, unchanged.
        slow: "slow" lines of the slowest samples, each sample once, slowest first.
        stats: the latest "stats" line, totals since the start. None if no epoch ended.
        n_lost: steps that are missing because they were overwritten before they were logged.
    """

    meta: dict[str, Any] = field(default_factory=dict)
    steps: np.ndarray = field(default_factory=lambda: np.empty(0, STEP_DTYPE))
    samples: np.ndarray = field(default_factory=lambda: np.empty(0, SAMPLE_DTYPE))
    step_sources: np.ndarray = field(default_factory=lambda: np.empty(0, np.int64))
    sample_sources: np.ndarray = field(default_factory=lambda: np.empty(0, np.int64))
    system: list[dict[str, Any]] = field(default_factory=list)
    slow: list[dict[str, Any]] = field(default_factory=list)
    stats: dict[str, Any] | None = None
    n_lost: int = 0

    @property
    def pid(self) -> int | None:
        """The process id."""
        return self._known("pid", int)

    @property
    def rank(self) -> int | None:
        """The process's rank in a distributed training."""
        return self._known("rank", int)

    @property
    def place(self) -> str | None:
        """"file:line" of the script where the loader was created."""
        return self._known("place", str)

    @property
    def path(self) -> str:
        """"native", "torch" or "watched", as in Stats."""
        return self._known("path", str) or "native"

    def _known(self, name: str, kind: type[_T]) -> _T | None:
        value = self.meta.get(name)
        return value if isinstance(value, kind) else None


@dataclass
class _Rows:
    """Rows of one type of line, and their "source" values."""

    values: list[tuple[int, ...]] = field(default_factory=list)
    sources: list[int] = field(default_factory=list)


def read_log(path: str | os.PathLike[str], *, samples: bool = False) -> list[Run]:
    """Returns the runs of a log, at least one, in the order of their first lines.

    Args:
        samples: also read the samples, which may be most of a log.

    Raises:
        LogError: the file is not a log.
        OSError: the file can't be read.
    """
    wanted = ("step", "sample") if samples else ("step",)
    runs: dict[Any, Run] = {}
    rows: dict[Any, dict[str, _Rows]] = {}
    key: str | None
    latest: str | None = None
    for where, line in _lines(path):
        kind = line["type"]
        if kind not in ("run", *wanted, "system", "slow", "stats", "lost"):
            continue
        if kind == "run":
            latest = key = _key(line)
        else:
            key = _key(line) if "loader" in line else latest
        if latest is None:
            raise LogError(f'{where}: a line of type "{kind}" before its line of type "run"')
        if key not in runs:  # a truncated "run" line is skipped
            runs[key], rows[key] = Run(), {one: _Rows() for one in wanted}
        if kind in wanted:
            rows[key][kind].values.append(_row(kind, line, where))
            rows[key][kind].sources.append(_int_field("source", line, _SOURCE_LIMITS, where))
        else:
            _add(runs[key], kind, line)
    if not runs:
        raise LogError(f'{os.fspath(path)}: not the log of a run: no line of type "run"')
    for key, run in runs.items():
        run.steps, run.step_sources = _arrays("step", rows[key])
        run.samples, run.sample_sources = _arrays("sample", rows[key])
        run.slow = _slowest(run.slow)
    return list(runs.values())


def _arrays(kind: str, rows: Mapping[str, _Rows]) -> tuple[np.ndarray, np.ndarray]:
    found = rows.get(kind, _Rows())
    return np.array(found.values, _DTYPES[kind]), np.array(found.sources, np.int64)


def _lines(path: str | os.PathLike[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yields ("file:line number", object) of each valid line."""
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
                    f"{where}: not the log of a run: invalid JSON ({error}): {shown!r}"
                ) from None
            if not isinstance(line, dict) or not isinstance(line.get("type"), str):
                if is_log:
                    continue
                raise LogError(f'{where}: not the log of a run: no JSON object with a "type"')
            is_log = is_log or line["type"] == "run"
            yield where, line


def _key(line: Mapping[str, Any]) -> str:
    """The key by which a line's run is identified."""
    names = ("loader",) if "loader" in line else ("pid", "rank", "place")
    return repr([line.get(name) for name in names])


def _row(kind: str, line: Mapping[str, Any], where: str) -> tuple[int, ...]:
    """A step's or sample's values in the order of the dtype's fields; 0 for missing ones."""
    values = dict(line)
    if kind == "step" and "phase" in values:
        if values["phase"] not in PHASES:
            raise LogError(
                f"{where}: phase is {values['phase']!r}; it must be one of {', '.join(PHASES)}"
            )
        values["phase"] = _PHASE_NUMBERS[values["phase"]]
    return tuple(_int_field(name, values, limits, where) for name, limits in _LIMITS[kind].items())


def _int_field(name: str, values: Mapping[str, Any], limits: _Limits, where: str) -> int:
    value = values.get(name, 0)
    if type(value) is not int or not limits[0] <= value <= limits[1]:
        raise LogError(
            f"{where}: {name} is {value!r}; it must be an int from {limits[0]} to {limits[1]}"
        )
    return value


def _add(run: Run, kind: str, line: dict[str, Any]) -> None:
    if kind == "run":
        run.meta.update(line)
    elif kind == "system":
        run.system.append(line)
    elif kind == "slow":
        run.slow.append(line)
    elif kind == "stats":
        run.stats = line
    elif isinstance(line.get("steps"), int):
        run.n_lost += line["steps"]


def duration_ns(slow: Mapping[str, Any]) -> int:
    """Time to read, decode and transform a slow sample, without waits for a CPU."""
    values = (slow.get(name) for name in ("read_ns", "decode_ns", "transform_ns"))
    return sum(value for value in values if isinstance(value, int))


def _slowest(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Each sample's slowest line, slowest first. Every epoch's end lists the slow samples again."""
    worst: dict[tuple[str, str], dict[str, Any]] = {}
    for line in sorted(lines, key=duration_ns):
        worst[str(line.get("path")), str(line.get("index"))] = line
    return sorted(worst.values(), key=duration_ns, reverse=True)
