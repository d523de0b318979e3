"""What a GPU had nothing to do for, because a batch was late: by its own clock.

The host's wait is not the GPU's: while next() waits, the GPU works on what was queued before. Two
CUDA events a step on the consumer's stream tell: one recorded when next() is entered, one before
it returns. The first fires when the GPU has finished all that was queued before the request; the
second when that is so and next() has come back, with the batch on the device where there is a copy
to wait for. So they fire together where the GPU had work all the time, and otherwise the time
between them is that for which it stood still.

Events are asked whether they have fired, later, and never waited for. The environment's
FEEDMILL_GPU_STALLS=0 turns all of it off.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections import defaultdict, deque
from typing import Any

import numpy as np
import torch

from feedmill.profiling.counting import captures
from feedmill.profiling.counting.records import KEPT_STEPS
from feedmill.system.locks import if_free

SWITCH = "FEEDMILL_GPU_STALLS"
# Steps whose events have not fired yet. The host can't be further ahead: a stream takes about a
# thousand operations before it makes the host wait, and a step has several.
_MOST_PENDING = 512
# Events read at a request, so that one behind many does not take long.
_READ_AT_ONCE = 8

_DTYPE = np.dtype([
    ("begin_ns", "u8"), ("end_ns", "u8"), ("stall_ns", "u8"), ("copy_ns", "u8"),
])


class Mark:
    """A request that is being served, with its events."""

    __slots__ = (
        "asked", "begin_ns", "end_ns", "is_lost", "ready", "returned", "stream", "wall_ns",
    )

    def __init__(self, begin_ns: int, stream: Any, asked: Any) -> None:
        self.begin_ns = begin_ns
        self.end_ns = self.wall_ns = 0
        self.stream = stream
        self.asked = asked
        self.ready: Any = None  # None: no copy belongs to this step
        self.returned: Any = None
        self.is_lost = False  # a capture has begun since


class GpuStalls:
    """The stalls of one account's steps. None are counted while torch.cuda is not in use.

    They are those of one device: the current one, or that which request() is told. One thread at a
    time may iterate; others may read, and see the state of the latest request.

    No event is recorded or asked while any stream is being captured into a CUDA graph, which that
    would break; such steps are counted as skipped, and so are those of a consumer further ahead of
    its GPU than events are kept for. An error of CUDA's ends the counting and is left to the
    script, whose own next call gets it.

    FEEDMILL_GPU_STALLS is looked at here and at each begin_epoch().
    """

    def __init__(self) -> None:
        self._pending: deque[Mark] = deque()
        # By device, to which an event belongs for good.
        self._free: defaultdict[Any, list[Any]] = defaultdict(list)
        self._reading = threading.Lock()  # never waited for
        self._thread = 0  # that iterated last; no other one asks an event
        self._has_failed = False
        self._last_return_ns = 0  # 0: the epoch's first step is still to come
        self._times = np.zeros(0, _DTYPE)  # a circle once it is full
        self._n_measured = self._n_skipped = 0
        self._stall_ns = self._copy_ns = self._wall_ns = 0
        self._is_on = _is_asked_for()
        _alive.add(self)

    # ---- while the loader is iterated ------------------------------------------------------------

    def begin_epoch(self) -> None:
        self._last_return_ns = 0
        self._is_on = _is_asked_for()

    def request(self, begin_ns: int, device: Any = None) -> Mark | None:
        """next() is entered; None: this step is not measured.

        Args:
            begin_ns: the clock (time.monotonic_ns()), not behind the request of the step's record.
            device: whose current stream consumes the batch. Default None: the current one.
        """
        if not self._is_on or not torch.cuda.is_initialized() or self._has_failed:
            return None
        try:
            self._thread = threading.get_ident()
            with captures.lock:
                if captures.is_any_capturing(device):
                    self._n_skipped += 1
                    return None
                self._read(_READ_AT_ONCE)
                if len(self._pending) >= _MOST_PENDING:
                    self._n_skipped += 1
                    return None
                stream = torch.cuda.current_stream(device)
                return Mark(begin_ns, stream, self._recorded(stream))
        except Exception:
            self._fail()
            return None

    def ready(self, mark: Mark | None) -> None:
        """The batch is there, and its copy to the device is what next() still waits for."""
        if mark is not None:
            try:
                with captures.lock:
                    if captures.is_any_capturing(mark.stream.device):
                        mark.is_lost = True
                    else:
                        mark.ready = self._recorded(mark.stream)
            except Exception:
                self._fail()

    def returned(self, mark: Mark | None, return_ns: int) -> None:
        """next() is about to return a batch. Not called where it raises."""
        last_ns, self._last_return_ns = self._last_return_ns, return_ns
        if mark is None or self._has_failed:
            return
        try:
            with captures.lock:
                if mark.is_lost or captures.is_any_capturing(mark.stream.device):
                    self._drop(mark)
                    return
                mark.returned = self._recorded(mark.stream)
        except Exception:
            self._fail()
            return
        mark.end_ns = return_ns
        mark.wall_ns = return_ns - (last_ns or mark.begin_ns)
        self._pending.append(mark)

    def _drop(self, mark: Mark) -> None:
        """A capture has begun within the step. What was recorded may be recorded anew."""
        self._n_skipped += 1
        events = self._free[mark.stream.device]
        events += [event for event in (mark.asked, mark.ready) if event is not None]

    def _recorded(self, stream: Any) -> Any:
        try:
            event = self._free[stream.device].pop()
        except IndexError:
            event = torch.cuda.Event(enable_timing=True)
        event.record(stream)
        return event

    def _fail(self) -> None:
        self._has_failed = True
        self._n_skipped += 1

    # ---- reading ---------------------------------------------------------------------------------

    def poll(self) -> None:
        """Reads all events that have fired, on the thread that iterated last. Waits for nothing."""
        if not self._pending or self._has_failed or threading.get_ident() != self._thread:
            return
        try:
            with captures.lock:
                if torch.cuda.is_initialized() and not captures.is_any_capturing(None):
                    self._read(len(self._pending))
        except Exception:
            self._fail()

    def _read(self, most: int) -> None:
        if_free(self._reading, lambda: self._read_fired(most))

    def _read_fired(self, most: int) -> None:
        while most and self._pending and self._pending[0].returned.query():
            self._count(self._pending[0])
            self._pending.popleft()
            most -= 1

    def _count(self, mark: Mark) -> None:
        copy_ns = 0
        if mark.ready is None:
            stall_ns = _elapsed_ns(mark.asked, mark.returned)
        else:
            copy_ns = _elapsed_ns(mark.ready, mark.returned)
            stall_ns = _elapsed_ns(mark.asked, mark.ready) + copy_ns
            self._free[mark.stream.device].append(mark.ready)
        self._free[mark.stream.device] += [mark.asked, mark.returned]
        place = self._n_measured % KEPT_STEPS
        if place == len(self._times):
            self._times = np.resize(self._times, min(KEPT_STEPS, max(16, 2 * place)))
        self._times[place] = (mark.begin_ns, mark.end_ns, stall_ns, copy_ns)
        self._n_measured += 1
        self._stall_ns += stall_ns
        self._copy_ns += copy_ns
        self._wall_ns += mark.wall_ns

    def counters(self) -> dict[str, int]:
        """Values of the fields of Stats, by name."""
        self.poll()
        return {
            "gpu_steps": self._n_measured,
            "gpu_skipped": self._n_skipped,
            "gpu_stall_ns": self._stall_ns,
            "gpu_copy_ns": self._copy_ns,
            "gpu_wall_ns": self._wall_ns,
        }

    def fill(self, steps: np.ndarray) -> None:
        """Sets the GPU's fields of steps (STEP_DTYPE) that were measured, as far as it is kept."""
        self.poll()
        n = min(self._n_measured, len(self._times))
        if not n or not len(steps):
            return
        times = self._times[:n]
        order = np.argsort(steps["request_ns"], kind="stable")
        requests = steps["request_ns"][order]
        # The first step that was asked for within a request for a batch: a batch in several parts
        # has several, and the first one's wait is what the GPU waited for.
        at = np.searchsorted(requests, times["begin_ns"])
        found = at < len(steps)
        found[found] = requests[at[found]] <= times["end_ns"][found]
        places = order[at[found]]
        steps["gpu_stall_ns"][places] = times["stall_ns"][found]
        steps["gpu_copy_ns"][places] = times["copy_ns"][found]
        steps["gpu_known"][places] = 1

    def n_settled(self, steps: np.ndarray) -> int:
        """How many of the first of these steps have no event that is still to fire."""
        try:
            pending_ns = self._pending[0].begin_ns
        except IndexError:
            return len(steps)
        return int(np.argmax(np.append(steps["request_ns"] >= pending_ns, True)))

    def _forget(self) -> None:
        """In the child of a fork, where the parent's events must not even be destroyed."""
        _abandoned.append((self._pending, self._free))
        GpuStalls.__init__(self)


def _is_asked_for() -> bool:
    if os.environ.get(SWITCH) == "0":
        return False
    captures.notice_captures()
    return True


def _elapsed_ns(first: Any, second: Any) -> int:
    """Between two events that have fired. The clock's steps are half a microsecond."""
    elapsed_ns: int = round(first.elapsed_time(second) * 1e6)
    return max(0, elapsed_ns)


_alive: weakref.WeakSet[GpuStalls] = weakref.WeakSet()
_abandoned: list[Any] = []


def _forget_all() -> None:
    for stalls in list(_alive):
        stalls._forget()


os.register_at_fork(after_in_child=_forget_all)
