"""Accounts: the counters and step records of a loader, and the sources of its log."""

from __future__ import annotations

import functools
import itertools
import os
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from feedmill.profiling.counting import collectives
from feedmill.profiling.counting.gpu_stalls import GpuStalls
from feedmill.profiling.counting.records import (
    BOUNDARY,
    FIRST,
    KEPT_STEPS,
    SAMPLE_DTYPE,
    STEADY,
    STEP_DTYPE,
)
from feedmill.system.host_metrics import Clock

_uids = itertools.count()


class Source:
    """A sequence of steps, and possibly samples, numbered from 0, that a log is written from.

    Attributes:
        uid: unique in this process.
        logged_steps, logged_samples: number of the first step, and sample, that is not yet in the
            log.
    """

    __slots__ = ("logged_samples", "logged_steps", "uid")

    def __init__(self) -> None:
        self.uid = next(_uids)
        self.logged_steps = 0
        self.logged_samples = 0

    @property
    def is_final(self) -> bool:
        """Whether the latest step's record is final. It is not until the next request sets its
        compute_ns, or the epoch ends."""
        raise NotImplementedError

    def unlogged_steps(self) -> np.ndarray:
        """A copy of the kept records (STEP_DTYPE) from number logged_steps on, in the order of
        their requests, without the GPU's fields."""
        raise NotImplementedError

    def unlogged_samples(self) -> tuple[int, np.ndarray]:
        """(number of the first record, the kept records (SAMPLE_DTYPE) from number logged_samples
        on)."""
        return self.logged_samples, np.empty(0, SAMPLE_DTYPE)


class Account:
    """Counters and step records of a loader.

    Attributes:
        gpu: the GPU stalls of these steps.
        on_end: called with counters(), steps() and slow_samples() when this object is deleted, to
            keep them. The garbage collector may call it at any point, so it must not wait for a
            lock.
        are_logged: True while a log is written from sources().
    """

    gpu: GpuStalls
    on_end: Callable[[dict[str, Any], np.ndarray, list[Any]], None] | None = None
    are_logged = False

    def counters(self) -> dict[str, Any]:
        """Counters by their flat names (see stats_parts.FLAT_NAMES)."""
        raise NotImplementedError

    def steps(self) -> np.ndarray:
        """Records of STEP_DTYPE, oldest first, at most KEPT_STEPS."""
        raise NotImplementedError

    def slow_samples(self) -> list[Any]:
        """The slowest samples (stats.SlowSample), slowest first."""
        return []

    def sources(self) -> list[Source]:
        """The sources from which a log is written."""
        raise NotImplementedError

    def forget(self) -> None:
        """Called in the child of a fork: starts counting from zero."""
        raise NotImplementedError

    def __del__(self) -> None:
        if self.on_end is not None:
            try:
                self.on_end(self.counters(), self.steps(), self.slow_samples())
            except Exception:  # incomplete object, or interpreter shutdown, when globals are None
                pass


class _Step(NamedTuple):
    """What is kept of a step, until its record is asked for: a tuple is made in a tenth of the
    time that a record takes.

    Attributes:
        compute_ns: of the last step of an epoch. 0: of another step, whose time ends with the next
            one's request.
        The others: as in STEP_DTYPE.
    """

    step: int
    epoch: int
    phase: int
    request_ns: int
    host_wait_ns: int
    decode_ns: int
    compute_ns: int


_step = functools.partial(tuple.__new__, _Step)  # without _Step's own __new__, a Python function


class StepCounters(Account, Source):
    """The account of an iterator that is only observed from outside: it has waits, but no samples.

    A copy, an unpickled object, and this object in the child of a fork start counting from zero.
    One thread at a time may add steps; other threads may read.
    """

    def __init__(self) -> None:
        Source.__init__(self)
        self.gpu = GpuStalls()
        self.clock = Clock()  # started by the first epoch
        self._pid = os.getpid()
        self._n_epochs = 0
        self._n_batches = 0
        self._host_wait_ns = self._decode_ns = 0
        self._wall_ns = 0
        self._last_return_ns = 0  # 0 before the epoch's first step
        self._steps: deque[_Step] = deque(maxlen=KEPT_STEPS)

    def __reduce__(self) -> tuple[type[StepCounters], tuple[()]]:
        return (type(self), ())

    def begin_epoch(self) -> int:
        """Starts an epoch. Returns its number, for add_step()."""
        if self._pid != os.getpid():
            self.forget()
        self.clock.start()
        self._n_epochs += 1
        self._last_return_ns = 0
        self.gpu.begin_epoch()
        return self._n_epochs - 1

    def add_step(
        self, epoch: int, request_ns: int, return_ns: int, decode_share: float = 0.0
    ) -> None:
        """Adds a step. Its wait is attributed to Python, except for decode_share, the share that
        was spent decoding."""
        wait_ns = return_ns - request_ns
        last_ns, n = self._last_return_ns, self._n_batches
        phase = STEADY if last_ns else BOUNDARY if n else FIRST
        decode_ns = int(decode_share * wait_ns) if decode_share else 0
        self._steps.append(_step((n, epoch, phase, request_ns, wait_ns, decode_ns, 0)))
        self._n_batches = n + 1
        self._host_wait_ns += wait_ns
        self._decode_ns += decode_ns
        self._wall_ns += return_ns - (last_ns or request_ns)
        self._last_return_ns = return_ns

    def end_epoch(self, request_ns: int) -> None:
        """Called when a request found the end of the epoch, which ends the last step."""
        if self._last_return_ns:
            last = self._steps[-1]
            self._steps[-1] = last._replace(compute_ns=request_ns - self._last_return_ns)
            self._last_return_ns = 0

    def _records(self, first: int = 0) -> np.ndarray:
        """The kept records from step number ``first`` on, oldest first, without the GPU's fields.
        """
        kept = self._steps.copy()  # a single call: another thread may be counting
        n = min(len(kept), kept[-1].step + 1 - first) if kept else 0
        records = np.zeros(max(n, 0), STEP_DTYPE)
        if n <= 0:
            return records
        newest = list(itertools.islice(reversed(kept), n))[::-1]
        for name, values in zip(_Step._fields, np.array(newest, np.int64).T, strict=True):
            records[name] = values
        records["data_wait_ns"] = records["host_wait_ns"]
        records["python_ns"] = records["host_wait_ns"] - records["decode_ns"]
        records["last_index"] = -1
        goes_on = np.append(records["phase"][1:] == STEADY, False)
        requests = np.append(records["request_ns"][1:], 0)
        ends = records["request_ns"] + records["host_wait_ns"]
        records["compute_ns"][goes_on] = (requests - ends)[goes_on]
        return records

    def counters(self) -> dict[str, Any]:
        # Read once: another thread may be counting.
        wait_ns, decode_ns = self._host_wait_ns, self._decode_ns
        return {
            "epochs": self._n_epochs,
            "batches": self._n_batches,
            "host_wait_ns": wait_ns,
            "data_wait_ns": wait_ns,
            "wait_decode_ns": decode_ns,
            "wait_python_ns": wait_ns - decode_ns,
            "wall_ns": self._wall_ns,
            **self.gpu.counters(),
        }

    def steps(self) -> np.ndarray:
        steps = self._records()
        self.gpu.fill(steps)
        collectives.fill(steps)
        return steps

    def sources(self) -> list[Source]:
        return [self]

    def forget(self) -> None:
        clock = self.clock  # start() restarts it in the child
        StepCounters.__init__(self)
        self.clock = clock

    @property
    def is_final(self) -> bool:
        return not self._last_return_ns

    def unlogged_steps(self) -> np.ndarray:
        return self._records(self.logged_steps)
