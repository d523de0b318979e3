"""Collects the statistics of all loaders of this process, by the script's line that created them.

``feedmill run`` adds the loaders; the reports are printed when the process ends. Loaders are not
kept alive.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import multiprocessing
import multiprocessing.util
import os
import sys
import threading
import weakref
from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import asdict
from typing import Any, NamedTuple

import numpy as np
import torch

from feedmill._ops import __version__
from feedmill.profiling.counting.accounts import Account
from feedmill.profiling.counting.records import KEPT_STEPS, STEP_DTYPE
from feedmill.profiling.report.stats import SlowSample, Stats, join_slow_samples, sum_counters
from feedmill.profiling.report.verdict import verdict
from feedmill.profiling.watching.report_context import report_context_now
from feedmill.system.host_metrics import Clock

_MAX_REASONS = 8  # different reasons that a group keeps
_MERGE_AT = 16  # a group merges its ended accounts at this number, as each may take megabytes
_MAX_DATA = 8  # groups of a line, by what its loaders load; further loaders share one group
_OTHER_DATA = "others"

_Part = tuple[dict[str, Any], np.ndarray, list[SlowSample]]


class _Key(NamedTuple):
    """What the loaders of a group have in common: the line that created them, their path, and what
    they load."""

    place: str
    path: str
    data: str


class _Group:
    """The accounts of the loaders with one key."""

    def __init__(self) -> None:
        self._alive: weakref.WeakSet[Account] = weakref.WeakSet()
        # Finalizers append to it, which may run at any point: no lock is taken.
        self._ended: deque[_Part] = deque()
        self._reasons: dict[str, None] = {}
        self._clock = Clock()
        self._clock.start()

    def add(self, account: Account, reasons: Iterable[str]) -> None:
        if account not in self._alive:
            account.on_end = self._end
            self._alive.add(account)
        for reason in reasons:
            if len(self._reasons) < _MAX_REASONS:
                self._reasons[reason] = None
        if len(self._ended) >= _MERGE_AT:
            ended = [self._ended.popleft() for _ in range(len(self._ended))]
            self._ended.append(_joined(ended))

    def _end(self, *part: Any) -> None:
        self._ended.append(part)

    def stats(self, path: str) -> Stats:
        alive = [
            (account.counters(), account.steps(), account.slow_samples())
            for account in list(self._alive)
        ]
        counters, steps, slow = _joined([*self._ended, *alive])
        reasons = tuple(self._reasons) if path == "torch" else ()
        counters |= self._clock.counters()
        return Stats.from_flat(
            counters | {"path": path}, reasons=reasons, steps=steps, slow_samples=tuple(slow)
        )


def _joined(parts: list[_Part]) -> _Part:
    """Merges the records of several accounts. Epoch numbers continue from one to the next."""
    n_epochs, joined = 0, [np.empty(0, STEP_DTYPE)]
    for _, steps, _ in parts:
        steps = steps.copy()
        steps["epoch"] += n_epochs
        n_epochs = int(steps["epoch"].max()) + 1 if len(steps) else n_epochs
        joined.append(steps)
    return (
        sum_counters(counters for counters, _, _ in parts),
        np.concatenate(joined)[-KEPT_STEPS:],
        join_slow_samples(slow for _, _, slow in parts),
    )


_lock = threading.RLock()
_groups: dict[_Key, _Group] = {}
_n_created: Counter[str] = Counter()
_registered_pid = 0


def count_created(place: str) -> None:
    """Counts a loader that was created at `place`, "file:line" in the script."""
    with _lock:
        _n_created[place] += 1


def add(
    place: str, path: str, account: Account, reasons: Iterable[str] = (), data: str = ""
) -> None:
    """Adds an account to a line's report. May be called again for the same account.

    Args:
        place: "file:line" where the loader was created.
        path: the path that the account counts, as in Stats.
        account: the account.
        reasons: why torch's path was taken.
        data: what the loader loads, in a few words. A library may create the loaders for training
            and validation during one line of the script; `data` tells them apart, so that each gets
            a report.
    """
    if torch.utils.data.get_worker_info() is not None:
        return  # a loader inside another loader's worker process
    with _lock:
        _report_at_exit()
        key = _Key(place, path, data)
        if key not in _groups and sum(one[:2] == key[:2] for one in _groups) >= _MAX_DATA:
            key = _Key(place, path, _OTHER_DATA)
        _groups.setdefault(key, _Group()).add(account, reasons)


# ---- the end of the process ----------------------------------------------------------------------


def _report_at_exit() -> None:
    global _registered_pid
    if _registered_pid == os.getpid():
        return
    _registered_pid = os.getpid()
    atexit.register(_report, _registered_pid)
    if multiprocessing.parent_process() is not None:
        # Forked children of multiprocessing exit without atexit's handlers.
        multiprocessing.util.Finalize(None, _report, args=(_registered_pid,), exitpriority=-1000)


def _forget() -> None:
    """Called in the child of a fork, which reports only its own loaders."""
    global _lock
    _lock = threading.RLock()  # another thread of the parent may have held it
    _groups.clear()
    _n_created.clear()


os.register_at_fork(after_in_child=_forget)


def _report(pid: int) -> None:
    """Writes the reports. Errors are suppressed, as they would change the exit status."""
    with contextlib.suppress(Exception):
        if pid != os.getpid():
            return
        with _lock:
            groups = [(key, group.stats(key.path)) for key, group in _groups.items()]
            _groups.clear()
        groups = [(key, stats) for key, stats in groups if stats.batches]
        file = os.environ.get("FEEDMILL_RUN_REPORT")
        if file:
            try:
                _append(file, "".join(_as_json(*one) for one in groups))
                return
            except OSError as error:
                _print(f"feedmill: the report can't be written to {file}: {error.strerror}\n")
        if "FEEDMILL_RUN_QUIET" not in os.environ:
            n_data = Counter(place for place, _ in {(key.place, key.data) for key, _ in groups})
            _print("".join(
                _as_text(key, stats, names_data=n_data[key.place] > 1) for key, stats in groups
            ))


def _as_text(key: _Key, stats: Stats, names_data: bool) -> str:
    who, data = _who(), f" ({key.data})" if names_data else ""
    lines = stats.report(around=report_context_now()).splitlines()
    lines[0] = f"feedmill{f' [{who}]' if who else ''}: {key.place}{data}: {lines[0]}"
    if _n_created[key.place] > 1:
        lines.append(f"  {'loaders':<10} {_n_created[key.place]:,} created at this line")
    return "\n".join(lines) + "\n"


def _as_json(key: _Key, stats: Stats) -> str:
    known = {
        "feedmill": __version__,
        "pid": os.getpid(),
        "rank": os.environ.get("RANK"),
        "place": key.place,
        "data": key.data,
        "loaders": _n_created[key.place],
        "verdict": verdict(stats, report_context_now()),
        "data_wait_share": stats.data_wait_share,
        **stats.flat(),
        "reasons": stats.reasons,
        "slow_samples": [asdict(one) for one in stats.slow_samples],
        "sample_errors": stats.sample_errors,
        "system": stats.system,
    }
    return json.dumps(known) + "\n"


def _who() -> str:
    if "RANK" in os.environ:
        return f"rank {os.environ['RANK']}"
    is_child = multiprocessing.parent_process() is not None
    return multiprocessing.current_process().name if is_child else ""


def _append(file: str, text: str) -> None:
    """Appends with one write if possible, as other processes may write to the file, too."""
    if not text:
        return
    handle = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)
    try:
        _write_all(handle, text)
    finally:
        os.close(handle)


def _print(text: str) -> None:
    """Writes to the process's original stderr, bypassing Python's buffer: text that can't be
    written would be flushed again at exit, and change the exit status."""
    stream = sys.__stderr__
    if not text or stream is None or stream.closed:
        return
    stream.flush()
    _write_all(stream.fileno(), text)


def _write_all(handle: int, text: str) -> None:
    data = text.encode(errors="backslashreplace")
    while data:
        data = data[os.write(handle, data) :]
