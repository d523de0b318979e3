"""Writes the log of a run: the Recorder of each loader."""

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
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import torch

from feedmill._ops import __version__
from feedmill.profiling.counting.accounts import Account, Source
from feedmill.profiling.counting.records import PHASES, SAMPLE_DTYPE, STEP_DTYPE, names_of
from feedmill.profiling.report.stats import Stats, join_slow_samples, sum_counters
from feedmill.system.locks import if_free
from feedmill.system.usage import INTERVAL_NS, System

# Samples, or steps where those are not counted, after which the log is filled before the interval
# is over: a quarter of what is kept of either.
_AT_MOST = 16384

_numbers = itertools.count()  # of the recorders of this process
_alive: weakref.WeakSet[Recorder] = weakref.WeakSet()
_warned: set[str] = set()


class Recorder:
    """What a loader and its iterators have written to the log; samples the system for it.

    Does nothing of its own accord: begin(), tick() and end_epoch() do it, on the thread that
    iterates; and nothing at all, but for counting, without a log. What is left is written when
    nobody refers to this any more, or the process ends.

    In the child of a fork it is as if begin() had not been called: what the parent counted is the
    parent's to write.

    Args:
        place: "file:line" where the loader was made, or None.
        counted: whose counters() together are the loader's. Those that are an Account fill the log.

    Attributes:
        path, reasons: as in Stats; whoever knows them sets them.
        heeds_environment: whether FEEDMILL_LOG is for this loader.
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
        self._n_due = _AT_MOST
        self._n_ended = 0  # _n_counted at the end of the latest epoch
        self._lock = threading.RLock()
        self._wanted: str | None = None  # the file's name, as it was asked for
        self._file: _File | None = None
        self._facts: dict[str, Any] = {}
        self._written_run: dict[str, Any] | None = None
        self._source_numbers: dict[int, int] = {}
        _alive.add(self)

    @property
    def system(self) -> dict[str, Any] | None:
        """As System.latest; None where no log was asked for."""
        return self._system.latest

    # ---- called while the loader is iterated -----------------------------------------------------

    def begin(self, log: str | os.PathLike[str] | None, **facts: Any) -> None:
        """An epoch begins.

        Args:
            log: the file; None: what the environment's FEEDMILL_LOG says.
            facts: batch_size and settings of the "run" line.

        Raises:
            OSError: ``log`` can't be written to. A file from the environment is warned of.
        """
        with self._lock:
            if self._file is not None and self._n_counted != self._n_ended:
                self._end_epoch()  # of one that was left before its end
            self._open(log)
            self._facts = facts
            if self._file is not None and not self._due_ns:
                self._system.begin(self._counters())
                self._due_ns = time.monotonic_ns() + INTERVAL_NS

    def tick(self, now_ns: int, n_samples: int = 1) -> None:
        """A step is about to return.

        Args:
            now_ns: the clock.
            n_samples: in its batch, if that is known.
        """
        self._n_counted += n_samples or 1
        if self._file is None or (now_ns < self._due_ns and self._n_counted < self._n_due):
            return
        # Another thread that iterates over the same loader is at it: that will do.
        if_free(
            self._lock, lambda: self._write([self._sample()] if now_ns >= self._due_ns else [])
        )

    def end_epoch(self) -> None:
        """An iterator has come to its end. Without a step since the last one's it is no epoch."""
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
        """Locked. Steps and samples that are not in the log yet, then these lines."""
        self._n_due = self._n_counted + _AT_MOST
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
            if not is_last:  # what the GPU says of the others comes later
                steps = steps[: account.gpu.n_settled(steps)]
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
        _arm()
        self._log_from_now_on()

    def _log_from_now_on(self) -> None:
        """What was counted before belongs to no log, or to another one."""
        self._system, self._due_ns = System(), 0
        self._n_ended = self._n_counted
        self._n_due = self._n_counted + _AT_MOST
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
        """Training is worth more than its log. It is not tried again under that name."""
        assert self._file is not None
        path = self._file.path
        self._close()
        warnings.warn(
            f"the log ends here, as {path} can't be written: {error.strerror}",
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
        """Writes what is left, and closes the file."""
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
        except Exception:  # half made, the interpreter is going down, or a warning is an error
            pass

    def forget(self) -> None:
        """In the child of a fork. Another thread of the parent may have held the lock."""
        self._lock = threading.RLock()
        self._system = System()
        self._due_ns = 0
        self._wanted = None
        self._n_ended = self._n_counted
        self._close()
        for account in self._accounts:
            account.forget()


@dataclass
class _Chunk:
    """Lines for the file, and what is in the log once they are.

    Attributes:
        marks: (source, its logged_steps, its logged_samples).
        data: the lines, once they are to be written. written: how many bytes of it have been, as
            os.write() said each time.
    """

    lines: list[str] = field(default_factory=list)
    marks: list[tuple[Source, int, int]] = field(default_factory=list)
    data: bytes = b""
    written: list[int] = field(default_factory=list)


class _File:
    """A file at whose end whole lines are written, each chunk at once."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._fd = self._opened()
        self._end = -1  # where it ended when this one had written
        self._chunk: _Chunk | None = None

    def _opened(self) -> int:
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        fd = os.open(self.path, flags, 0o666)
        with contextlib.suppress(OSError):  # it may be ours to write, and not to read
            if _ends_in_a_line(self.path, os.fstat(fd)):
                os.write(fd, b"\n")
        return fd

    def has_others(self) -> bool:
        """Whether what comes next may not be behind what this one wrote. A file that was removed
        is made anew."""
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
        """Goes on with a chunk in whose middle a Ctrl-C came: nothing of it is written twice."""
        chunk = self._chunk
        if chunk is None:
            return
        while (n_written := sum(chunk.written)) < len(chunk.data):
            rest = chunk.data[n_written:]
            # A single step of the interpreter: no Ctrl-C comes between the write and its note.
            chunk.written.extend(map(os.write, (self._fd,), (rest,)))
        for source, n_steps, n_samples in chunk.marks:
            source.logged_steps, source.logged_samples = n_steps, n_samples
        self._chunk = None
        with contextlib.suppress(OSError):  # a pipe has no position
            self._end = os.lseek(self._fd, 0, os.SEEK_CUR)

    def close(self) -> None:
        os.close(self._fd)


def _ends_in_a_line(path: str, status: os.stat_result) -> bool:
    """Whether who wrote a file last was cut off within a line."""
    if not stat.S_ISREG(status.st_mode) or status.st_size == 0:
        return False
    with open(path, "rb") as file:
        file.seek(-1, os.SEEK_END)
        return file.read(1) != b"\n"


# ---- lines ---------------------------------------------------------------------------------------

_PHASE = names_of(STEP_DTYPE).index("phase")
# A third of the time that json.dumps() takes.
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
    """Whether samples are to be recorded, by these options of a DataLoader and the environment."""
    if log is not None:
        return log_samples
    wanted = log_samples or os.environ.get("FEEDMILL_LOG_SAMPLES", "0") not in ("", "0")
    return wanted and bool(os.environ.get("FEEDMILL_LOG"))


def _rank() -> int | None:
    """This process's number in a distributed training."""
    distributed = torch.distributed
    if distributed.is_available() and distributed.is_initialized():
        return distributed.get_rank()
    text = os.environ.get("RANK", "")
    return int(text) if text.isdecimal() else None


def expanded(name: str) -> str:
    """A log's name with {pid} and {rank} replaced; the rank is 0 where there is none."""
    return name.replace("{pid}", str(os.getpid())).replace("{rank}", str(_rank() or 0))


# ---- the end of the process ----------------------------------------------------------------------

_armed_pid = 0


def _arm() -> None:
    global _armed_pid
    if _armed_pid == os.getpid():
        return
    _armed_pid = os.getpid()
    atexit.register(_finish_all)
    if multiprocessing.parent_process() is not None:
        # Forked children of multiprocessing leave without atexit.
        multiprocessing.util.Finalize(None, _finish_all, exitpriority=-1000)


def _finish_all() -> None:
    for recorder in list(_alive):
        with contextlib.suppress(Exception):
            recorder.finish()


def _forget_all() -> None:
    for recorder in list(_alive):
        recorder.forget()


os.register_at_fork(after_in_child=_forget_all)
