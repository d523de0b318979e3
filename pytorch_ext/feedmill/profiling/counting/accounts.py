"""Counting steps from outside of an iterator: batches, and the waits for them."""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Callable
from typing import Any

import numpy as np

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
    """Steps, and perhaps samples, that are numbered from 0: what a log is filled from.

    Attributes:
        uid: no other one of this process has it.
        logged_steps, logged_samples: those with smaller numbers are in the log.
    """

    __slots__ = ("logged_samples", "logged_steps", "uid")

    def __init__(self) -> None:
        self.uid = next(_uids)
        self.logged_steps = 0
        self.logged_samples = 0

    @property
    def is_final(self) -> bool:
        """Whether the latest step stays as it is: its compute_ns comes with the next request."""
        raise NotImplementedError

    def unlogged_steps(self) -> np.ndarray:
        """Records of STEP_DTYPE from number logged_steps on, as far as they are kept, in the order
        of their requests and without what the GPU says of them. They may be changed."""
        raise NotImplementedError

    def unlogged_samples(self) -> tuple[int, np.ndarray]:
        """Records of SAMPLE_DTYPE from number logged_samples on, as far as they are kept, and the
        number of the first one."""
        return self.logged_samples, np.empty(0, SAMPLE_DTYPE)


class Account:
    """Counters and steps of something, for whoever wants to know them when it is gone.

    Attributes:
        gpu: what the GPU waited for in those steps, as far as there is one.
    """

    gpu: GpuStalls
    # Called with counters(), steps() and slow_samples() when this object goes, perhaps by the
    # garbage collector in the middle of anything: it must wait for no lock.
    on_end: Callable[[dict[str, Any], np.ndarray, list[Any]], None] | None = None
    are_logged = False  # a log takes from sources() all there is

    def counters(self) -> dict[str, Any]:
        """Values of the fields of Stats, by name."""
        raise NotImplementedError

    def steps(self) -> np.ndarray:
        """Records of STEP_DTYPE, oldest first, at most KEPT_STEPS."""
        raise NotImplementedError

    def slow_samples(self) -> list[Any]:
        """stats.SlowSample, the slowest first."""
        return []

    def sources(self) -> list[Source]:
        """What a log is filled from."""
        raise NotImplementedError

    def forget(self) -> None:
        """In the child of a fork: what the parent counted is none of the child's."""
        raise NotImplementedError

    def __del__(self) -> None:
        if self.on_end is not None:
            with contextlib.suppress(Exception):  # half made, or the interpreter is going down
                self.on_end(self.counters(), self.steps(), self.slow_samples())


class StepCounters(Account, Source):
    """What can be told of an iterator that somebody else made.

    Pickles and copies as a new one, and is one in the child of a fork. One thread at a time may
    count; others may read.
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
        self._last_return_ns = 0  # 0: the epoch's first step is still to come
        self._steps = np.zeros(16, STEP_DTYPE)

    def __reduce__(self) -> tuple[type[StepCounters], tuple[()]]:
        return (type(self), ())

    def begin_epoch(self) -> int:
        """Returns the epoch's number, which its steps pass to add_step()."""
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
        """Whatever made the batch, it was Python's: all of the wait is that cause's, but for a
        share that is known to have been decoding."""
        wait_ns = return_ns - request_ns
        phase = STEADY if self._last_return_ns else BOUNDARY if self._n_batches else FIRST
        if self._n_batches == len(self._steps) < KEPT_STEPS:
            self._steps = np.resize(self._steps, 2 * len(self._steps))
        if phase == STEADY:
            self._at(self._n_batches - 1)["compute_ns"] = request_ns - self._last_return_ns
        step = self._at(self._n_batches)
        step[:] = 0
        step["step"], step["epoch"], step["phase"] = self._n_batches, epoch, phase
        step["request_ns"], step["last_index"] = request_ns, -1
        decode_ns = int(decode_share * wait_ns)
        step["host_wait_ns"] = step["data_wait_ns"] = wait_ns
        step["decode_ns"], step["python_ns"] = decode_ns, wait_ns - decode_ns
        self._n_batches += 1
        self._host_wait_ns += wait_ns
        self._decode_ns += decode_ns
        self._wall_ns += return_ns - (self._last_return_ns or request_ns)
        self._last_return_ns = return_ns

    def end_epoch(self, request_ns: int) -> None:
        """The request found no more batch; so far the latest step's work went."""
        if self._last_return_ns:
            self._at(self._n_batches - 1)["compute_ns"] = request_ns - self._last_return_ns
            self._last_return_ns = 0

    def _at(self, number: int) -> np.ndarray:
        """The record of a step, as an array of one that can be written to."""
        place = number % len(self._steps)
        return self._steps[place : place + 1]

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
        # Read once: another thread may be counting.
        n, steps = self._n_batches, self._steps
        steps = np.roll(steps, -(n % len(steps))) if n > len(steps) else steps[:n].copy()
        self.gpu.fill(steps)
        return steps

    def sources(self) -> list[Source]:
        return [self]

    def forget(self) -> None:
        clock = self.clock  # it starts anew by itself
        StepCounters.__init__(self)
        self.clock = clock

    @property
    def is_final(self) -> bool:
        return not self._last_return_ns

    def unlogged_steps(self) -> np.ndarray:
        n, steps = self._n_batches, self._steps
        oldest = max(self.logged_steps, n - len(steps))
        return steps[np.arange(oldest, n) % len(steps)]
