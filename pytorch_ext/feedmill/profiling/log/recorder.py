"""Writes the log of a run. Each loader has a Recorder."""

from __future__ import annotations

import atexit
import contextlib
import itertools
import json
import multiprocessing
import multiprocessing.util
import os
import stat
import threading
import time
import warnings
import weakref
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import torch

from feedmill._ops import __version__
from feedmill.profiling.counting import collectives
from feedmill.profiling.counting.accounts import Account, Source
from feedmill.profiling.counting.records import PHASES, SAMPLE_DTYPE, STEP_DTYPE, names_of
from feedmill.profiling.report.stats import Stats, join_slow_samples, sum_counters
from feedmill.system.locks import call_if_free
from feedmill.system.usage import INTERVAL_NS, System

# The log is written after this many samples, or steps if samples are not counted, even if the
# interval is not over: after a quarter of the records that are kept.
_MAX_UNWRITTEN = 16384

_numbers = itertools.count()  # numbers the recorders of this process
_alive: weakref.WeakSet[Recorder] = weakref.WeakSet()
_warned: set[str] = set()


class Recorder:
    """Writes the log of one loader and its iterators, and measures the system for it.

    There is no writer thread: begin(), tick() and end_epoch() write on the thread that iterates.
    Without a log they only count. The remaining records are written when this object is deleted or
    the process ends.

    In the child of a fork, logging is off until begin() is called. The parent writes the records
    from before the fork.

    Args:
        place: "file:line" where the loader was created, or None.
        counted: objects whose counters() are summed to the loader's counters. Those that are an
            Account also supply the log's steps and samples.

    Attributes:
        path, reasons: as in Stats. Set by the loader.
        heeds_environment: whether FEEDMILL_LOG applies to this loader.
    """

    def __init__(self, place: str | None, *counted: Any) -> None:
        self.path = "none"
        self.reasons: tuple[str, ...] = ()
        self.heeds_environment = True
        self._place = place
        self._counted = counted
        self._accounts = [one for one in counted if isinstance(one, Account)]
        self._number = next(_numbers)
        self._system = System()
        self._due_ns = 0
        self._n_counted = 0
        self._n_due = _MAX_UNWRITTEN
        self._n_ended = 0  # _n_counted at the end of the latest epoch
        self._lock = threading.RLock()
        self._wanted: str | None = None  # the file's name before {pid} and {rank} are replaced
        self._file: _File | None = None
        self._facts: dict[str, Any] = {}
        self._written_run: dict[str, Any] | None = None
        self._source_numbers: dict[int, int] = {}
        _alive.add(self)

    @property
    def system(self) -> dict[str, Any] | None:
        """See System.latest. None without a log."""
        return self._system.latest

    # ---- called while the loader is iterated -----------------------------------------------------

    def begin(
        self, log: str | os.PathLike[str] | None, facts: Callable[[], dict[str, Any]] = dict
    ) -> None:
        """Called at the start of an epoch.

        Args:
            log: the file. None: the file that FEEDMILL_LOG in the environment names, if any.
            facts: called if there is a log; returns batch_size and settings for the "run" line.

        Raises:
            OSError: ``log`` can't be written to. For a file from the environment it is a warning.
        """
        with self._lock:
            if self._file is not None and self._n_counted != self._n_ended:
                self._end_epoch()  # the previous epoch was left early
            self._open(log)
            if self._file is None:
                return
            self._facts = facts()
            if not self._due_ns:
                self._system.begin(self._counters())
                self._due_ns = time.monotonic_ns() + INTERVAL_NS

    def tick(self, now_ns: int, n_samples: int = 1) -> None:
        """Called when a step is about to return.

        Args:
            now_ns: time.monotonic_ns().
            n_samples: samples in the batch; 0 if not known.
        """
        self._n_counted += n_samples or 1
        if self._file is None or (now_ns < self._due_ns and self._n_counted < self._n_due):
            return
        # If another thread that iterates over this loader is writing, skip this time.
        call_if_free(
            self._lock, lambda: self._write([self._sample()] if now_ns >= self._due_ns else [])
        )

    def end_epoch(self) -> None:
        """Called when an iterator is exhausted. Does nothing if there was no step since the last
        call."""
        with self._lock:
            if self._n_counted != self._n_ended:
                self._end_epoch()

    # ---- what is written -------------------------------------------------------------------------

    def _end_epoch(self) -> None:
        if self._file is not None:
            self._write([self._sample(), *self._slow(), self._totals()])
        self._n_ended = self._n_counted

    def _sample(self) -> dict[str, Any]:
        sample = self._system.sample(self._counters())
        self._due_ns = sample["clock_ns"] + INTERVAL_NS
        return {"type": "system", **sample}

    def _write(self, lines: Sequence[dict[str, Any]], *, is_last: bool = False) -> None:
        """Writes the steps and samples that are not logged yet, then `lines`. Called with the lock
        held."""
        self._n_due = self._n_counted + _MAX_UNWRITTEN
        if self._file is None:
            return
        try:
            self._file.flush()
            run, has_others = self._run(), self._file.has_others()
            chunk = self._records(is_last)
            chunk.lines += [self._line(line) for line in lines]
            if chunk.lines:
                if has_others or run != self._written_run:
                    now = {"time": time.time(), "clock_ns": time.monotonic_ns()}
                    chunk.lines.insert(0, self._line({**run, **now}))
                self._file.write(chunk)
                self._written_run = run
        except OSError as error:
            self._give_up(error)

    def _records(self, is_last: bool) -> _Chunk:
        chunk, n_lost = _Chunk(), {"steps": 0, "samples": 0}
        for account, source in self._sources():
            number = self._source_numbers.setdefault(source.uid, len(self._source_numbers))
            steps = source.unlogged_steps()
            if not (is_last or source.is_final):
                steps = steps[:-1]
            account.gpu.fill(steps)
            collectives.fill(steps)
            if not is_last:  # the GPU has not reached the other steps yet
                steps = steps[: account.gpu.n_measured_steps(steps)]
            first, samples = source.unlogged_samples()
            n_steps, n_samples = source.logged_steps, first + len(samples)
            if len(steps):
                n_steps = int(steps["step"][-1]) + 1
                n_lost["steps"] += int(steps["step"][0]) - source.logged_steps
            n_lost["samples"] += first - source.logged_samples
            chunk.lines += _as_lines("step", self._id, number, steps)
            chunk.lines += _as_lines("sample", self._id, number, samples)
            chunk.marks.append((source, n_steps, n_samples))
        if any(n_lost.values()):
            chunk.lines.append(self._line({"type": "lost", **n_lost}))
        return chunk

    @property
    def _id(self) -> str:
        return f"{os.getpid()}-{self._number}"

    def _line(self, values: dict[str, Any]) -> str:
        return json.dumps({"type": values["type"], "loader": self._id, **values})

    def _run(self) -> dict[str, Any]:
        counters = self._counters()
        return {
            "type": "run",
            "feedmill": __version__,
            "pid": os.getpid(),
            "rank": _rank(),
            "place": self._place,
            "path": self.path,
            "reasons": self.reasons,
            "threads": counters.get("n_threads", 0),
            "slots": counters.get("n_slots", 0),
            "slot_bytes": counters.get("slot_bytes", 0),
            **{name: counters.get(name, "") for name in ("reader", "reader_reason", "cpu")},
            **self._facts,
        }

    def _slow(self) -> list[dict[str, Any]]:
        found = join_slow_samples(one.slow_samples() for one in self._accounts)
        return [{"type": "slow", **asdict(one)} for one in found]

    def _totals(self) -> dict[str, Any]:
        counters = self._counters()
        return {"type": "stats", **Stats.from_flat(counters).flat(), "path": self.path}

    def _counters(self) -> dict[str, Any]:
        return sum_counters([one.counters() for one in self._counted])

    def _sources(self) -> list[tuple[Account, Source]]:
        return [(account, source) for account in self._accounts for source in account.sources()]

    # ---- the file --------------------------------------------------------------------------------

    def _open(self, log: str | os.PathLike[str] | None) -> None:
        wanted = None if log is None else os.fspath(log)
        if wanted is None and self.heeds_environment:
            wanted = os.environ.get("FEEDMILL_LOG") or None
        if torch.utils.data.get_worker_info() is not None:
            wanted = None  # a worker process of a loader, whose dataset iterates over another one
        if wanted == self._wanted:
            return
        if self._file is not None:
            self._write([], is_last=True)
        self._close()
        self._wanted = wanted
        if wanted is None:
            return
        path = os.path.abspath(expanded(wanted))
        try:
            self._file = _File(path)
        except OSError as error:
            self._wanted = None
            text = f"the log can't be written: {error.strerror}"
            if log is not None:
                raise OSError(error.errno, text, path) from None
            if path not in _warned:
                _warned.add(path)
                warnings.warn(f"FEEDMILL_LOG: {text}: {path}", RuntimeWarning, stacklevel=2)
            return
        _finish_at_exit()
        self._log_from_now_on()

    def _log_from_now_on(self) -> None:
        """Marks all earlier records as logged, as they do not belong to this log."""
        self._system, self._due_ns = System(), 0
        self._n_ended = self._n_counted
        self._n_due = self._n_counted + _MAX_UNWRITTEN
        for _, source in self._sources():
            steps, (first, samples) = source.unlogged_steps(), source.unlogged_samples()
            source.logged_samples = first + len(samples)
            if len(steps):
                source.logged_steps = int(steps["step"][-1]) + 1
        self._set_logged(True)

    def _set_logged(self, are_logged: bool) -> None:
        for account in self._accounts:
            account.are_logged = are_logged

    def _give_up(self, error: OSError) -> None:
        """Ends the log with a warning in place of an error, so that training continues. The file is
        not opened again."""
        assert self._file is not None
        path = self._file.path
        self._close()
        warnings.warn(
            f"logging to {path} stops, training continues: {error.strerror}",
            RuntimeWarning,
            stacklevel=2,
        )

    def _close(self) -> None:
        if self._file is not None:
            file, self._file = self._file, None
            file.close()
            self._written_run = None
            self._set_logged(False)

    def finish(self) -> None:
        """Writes the remaining records, and closes the file."""
        with self._lock:
            if self._file is not None and self._n_counted != self._n_ended:
                self._end_epoch()
            if self._file is not None:
                self._write([], is_last=True)
            self._close()
            self._wanted = None

    def __del__(self) -> None:
        try:
            self.finish()
        except Exception:  # incomplete object, interpreter shutdown, or warnings are errors
            pass

    def forget(self) -> None:
        """Called in the child of a fork."""
        self._lock = threading.RLock()  # another thread of the parent may have held it
        self._system = System()
        self._due_ns = 0
        self._wanted = None
        self._n_ended = self._n_counted
        self._close()
        for account in self._accounts:
            account.forget()


@dataclass
class _Chunk:
    """Lines for the file, and the sources' positions after they have been written.

    Attributes:
        lines: the lines.
        marks: (source, its new logged_steps, its new logged_samples).
        data: the lines as bytes, once writing has started.
        written: the result of each os.write() of data.
    """

    lines: list[str] = field(default_factory=list)
    marks: list[tuple[Source, int, int]] = field(default_factory=list)
    data: bytes = b""
    written: list[int] = field(default_factory=list)


class _File:
    """A file to which chunks of whole lines are appended."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._fd = self._opened()
        self._end = -1  # the file's size after the latest write
        self._chunk: _Chunk | None = None

    def _opened(self) -> int:
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        fd = os.open(self.path, flags, 0o666)
        with contextlib.suppress(OSError):  # it may be writable but not readable
            if _ends_in_partial_line(self.path, os.fstat(fd)):
                os.write(fd, b"\n")
        return fd

    def has_others(self) -> bool:
        """Whether another writer may have appended since this object's latest write. Opens a new
        file if the old one was removed."""
        status = os.fstat(self._fd)
        if status.st_nlink == 0:
            fd, self._fd = self._fd, self._opened()
            os.close(fd)
            return True
        return status.st_size != self._end

    def write(self, chunk: _Chunk) -> None:
        chunk.data = "".join(line + "\n" for line in chunk.lines).encode()
        self._chunk = chunk
        self.flush()

    def flush(self) -> None:
        """Writes the rest of the chunk. Continues one that a Ctrl-C has interrupted, without
        writing anything twice."""
        chunk = self._chunk
        if chunk is None:
            return
        while (n_written := sum(chunk.written)) < len(chunk.data):
            rest = chunk.data[n_written:]
            # One bytecode: a Ctrl-C can't come between the write and the record of its result.
            chunk.written.extend(map(os.write, (self._fd,), (rest,)))
        for source, n_steps, n_samples in chunk.marks:
            source.logged_steps, source.logged_samples = n_steps, n_samples
        self._chunk = None
        with contextlib.suppress(OSError):  # pipes can't seek
            self._end = os.lseek(self._fd, 0, os.SEEK_CUR)

    def close(self) -> None:
        os.close(self._fd)


def _ends_in_partial_line(path: str, status: os.stat_result) -> bool:
    """Whether a file does not end in a newline, because a writer was interrupted."""
    if not stat.S_ISREG(status.st_mode) or status.st_size == 0:
        return False
    with open(path, "rb") as file:
        file.seek(-1, os.SEEK_END)
        return file.read(1) != b"\n"


# ---- lines ---------------------------------------------------------------------------------------

_PHASE = names_of(STEP_DTYPE).index("phase")
# Formatting takes a third of the time of json.dumps().
_FORMATS = {
    name: ",".join(f'"{one}":' + ('"%s"' if one == "phase" else "%d") for one in names_of(dtype))
    for name, dtype in (("step", STEP_DTYPE), ("sample", SAMPLE_DTYPE))
}


def _as_lines(kind: str, loader: str, source: int, records: np.ndarray) -> list[str]:
    text = f'{{"type":"{kind}","loader":"{loader}","source":{source},{_FORMATS[kind]}}}'
    rows = records.tolist()
    if kind == "step":
        rows = [(*row[:_PHASE], PHASES[row[_PHASE]], *row[_PHASE + 1 :]) for row in rows]
    return [text % row for row in rows]


def records_samples(log: Any, log_samples: bool) -> bool:
    """Whether samples are recorded, by a DataLoader's options and the environment."""
    if log is not None:
        return log_samples
    wanted = log_samples or os.environ.get("FEEDMILL_LOG_SAMPLES", "0") not in ("", "0")
    return wanted and bool(os.environ.get("FEEDMILL_LOG"))


def _rank() -> int | None:
    """This process's rank in a distributed training."""
    distributed = torch.distributed
    if distributed.is_available() and distributed.is_initialized():
        return distributed.get_rank()
    text = os.environ.get("RANK", "")
    return int(text) if text.isdecimal() else None


def expanded(name: str) -> str:
    """A log's name with {pid} and {rank} replaced; the rank is 0 without distributed training."""
    return name.replace("{pid}", str(os.getpid())).replace("{rank}", str(_rank() or 0))


# ---- the end of the process ----------------------------------------------------------------------

_registered_pid = 0


def _finish_at_exit() -> None:
    global _registered_pid
    if _registered_pid == os.getpid():
        return
    _registered_pid = os.getpid()
    atexit.register(_finish_all)
    if multiprocessing.parent_process() is not None:
        # Forked children of multiprocessing exit without atexit's handlers.
        multiprocessing.util.Finalize(None, _finish_all, exitpriority=-1000)


def _finish_all() -> None:
    for recorder in list(_alive):
        with contextlib.suppress(Exception):
            recorder.finish()


def _forget_all() -> None:
    for recorder in list(_alive):
        recorder.forget()


os.register_at_fork(after_in_child=_forget_all)
