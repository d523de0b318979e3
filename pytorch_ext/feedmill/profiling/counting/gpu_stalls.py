"""Measures with CUDA events how long the GPU was idle because a batch was late.

The host's wait is not the GPU's: while next() waits, the GPU may still execute queued work. Two
events are recorded in each step on the stream that uses the batch: one when next() is entered, one
before it returns. The first completes when the GPU has finished the work queued before the request.
The second completes when, in addition, next() has returned and the batch's copy to the device, if
any, is done. If the GPU was busy all the time, both complete together; otherwise the time between
them is the stall.

Events are queried later, and never waited for. FEEDMILL_GPU_STALLS=0 in the environment turns the
measurement off.
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
from feedmill.system.locks import call_if_free

SWITCH = "FEEDMILL_GPU_STALLS"
# Most steps with incomplete events. The host is hardly ever further ahead: a stream blocks the host
# when about a thousand operations are queued, and a step has several.
_MAX_PENDING = 512
# Steps whose events are queried at one request, which limits the time that a request takes.
_MAX_QUERIED = 8

_DTYPE = np.dtype([
    ("begin_ns", "u8"), ("end_ns", "u8"), ("stall_ns", "u8"), ("copy_ns", "u8"),
])


class Mark:
    """One request for a batch, with its events.

    Attributes:
        begin_ns, end_ns: when next() was entered, and when it returned.
        wall_ns: from the previous return of next() to this one.
        stream: the stream that uses the batch.
        requested, ready, returned: events recorded when next() was entered, when the batch was
            ready on the host (None if this step has no copy), and before next() returned.
        is_lost: True if a graph capture has begun since the request.
    """

    __slots__ = (
        "begin_ns", "end_ns", "is_lost", "ready", "requested", "returned", "stream", "wall_ns",
    )

    def __init__(self, begin_ns: int, stream: Any, requested: Any) -> None:
        self.begin_ns = begin_ns
        self.end_ns = self.wall_ns = 0
        self.stream = stream
        self.requested = requested
        self.ready: Any = None
        self.returned: Any = None
        self.is_lost = False


class GpuStalls:
    """Measures the GPU stalls of one account's steps. Does nothing while torch.cuda is not in use.

    Measures one device: the one given to request(), or the current one. One thread at a time may
    iterate; other threads may read, and see the state as of the latest request.

    No event is recorded or queried while any stream is captured into a CUDA graph, as that would
    break the capture. Such steps count as skipped, and so do steps when too many events are
    incomplete. A CUDA error ends the measurement; it is not raised here, as the script's own next
    CUDA call reports it.

    FEEDMILL_GPU_STALLS is read by the constructor and by each begin_epoch().
    """

    def __init__(self) -> None:
        self._pending: deque[Mark] = deque()
        # Events that can be reused, by device: an event belongs to one device.
        self._free: defaultdict[Any, list[Any]] = defaultdict(list)
        self._reading = threading.Lock()  # only acquired without blocking
        self._thread = 0  # the thread that iterated last; only it queries events
        self._has_failed = False
        self._last_return_ns = 0  # 0 before the epoch's first step
        self._times = np.zeros(0, _DTYPE)  # a ring buffer once it has KEPT_STEPS records
        self._n_measured = self._n_skipped = 0
        self._stall_ns = self._copy_ns = self._wall_ns = 0
        self._is_on = _is_enabled()
        _alive.add(self)

    # ---- while the loader is iterated ------------------------------------------------------------

    def begin_epoch(self) -> None:
        self._last_return_ns = 0
        self._is_on = _is_enabled()

    def request(self, begin_ns: int, device: Any = None) -> Mark | None:
        """Called when next() is entered. Returns None if this step is not measured.

        Args:
            begin_ns: time.monotonic_ns(), not later than request_ns of the step's record.
            device: the device whose current stream uses the batch. Default None: the current one.
        """
        if not self._is_on or not torch.cuda.is_initialized() or self._has_failed:
            return None
        try:
            self._thread = threading.get_ident()
            with captures.lock:
                if captures.is_any_capturing(device):
                    self._n_skipped += 1
                    return None
                self._read(_MAX_QUERIED)
                if len(self._pending) >= _MAX_PENDING:
                    self._n_skipped += 1
                    return None
                stream = torch.cuda.current_stream(device)
                return Mark(begin_ns, stream, self._recorded(stream))
        except Exception:
            self._fail()
            return None

    def ready(self, mark: Mark | None) -> None:
        """Called when the batch is ready on the host and only its copy to the device is left."""
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
        """Called when next() is about to return a batch. Not called if it raises."""
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
        """Skips a step in which a capture has begun. Its events can be reused."""
        self._n_skipped += 1
        events = self._free[mark.stream.device]
        events += [event for event in (mark.requested, mark.ready) if event is not None]

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
        """Reads all completed events, if called on the thread that iterated last. Never waits."""
        if not self._pending or self._has_failed or threading.get_ident() != self._thread:
            return
        try:
            with captures.lock:
                if torch.cuda.is_initialized() and not captures.is_any_capturing(None):
                    self._read(len(self._pending))
        except Exception:
            self._fail()

    def _read(self, most: int) -> None:
        call_if_free(self._reading, lambda: self._read_completed(most))

    def _read_completed(self, most: int) -> None:
        while most and self._pending and self._pending[0].returned.query():
            self._count(self._pending[0])
            self._pending.popleft()
            most -= 1

    def _count(self, mark: Mark) -> None:
        copy_ns = 0
        if mark.ready is None:
            stall_ns = _elapsed_ns(mark.requested, mark.returned)
        else:
            copy_ns = _elapsed_ns(mark.ready, mark.returned)
            stall_ns = _elapsed_ns(mark.requested, mark.ready) + copy_ns
            self._free[mark.stream.device].append(mark.ready)
        self._free[mark.stream.device] += [mark.requested, mark.returned]
        place = self._n_measured % KEPT_STEPS
        if place == len(self._times):
            self._times = np.resize(self._times, min(KEPT_STEPS, max(16, 2 * place)))
        self._times[place] = (mark.begin_ns, mark.end_ns, stall_ns, copy_ns)
        self._n_measured += 1
        self._stall_ns += stall_ns
        self._copy_ns += copy_ns
        self._wall_ns += mark.wall_ns

    def counters(self) -> dict[str, int]:
        """Counters by their flat names (see stats_parts.FLAT_NAMES)."""
        self.poll()
        return {
            "gpu_steps": self._n_measured,
            "gpu_skipped": self._n_skipped,
            "gpu_stall_ns": self._stall_ns,
            "gpu_copy_ns": self._copy_ns,
            "gpu_wall_ns": self._wall_ns,
        }

    def fill(self, steps: np.ndarray) -> None:
        """Sets the GPU fields of step records (STEP_DTYPE) whose measurements are still kept."""
        self.poll()
        n = min(self._n_measured, len(self._times))
        if not n or not len(steps):
            return
        times = self._times[:n]
        order = np.argsort(steps["request_ns"], kind="stable")
        requests = steps["request_ns"][order]
        # Find the first step record within each request. A batch that is delivered in several parts
        # has several records; the GPU waited for the first one.
        at = np.searchsorted(requests, times["begin_ns"])
        found = at < len(steps)
        found[found] = requests[at[found]] <= times["end_ns"][found]
        places = order[at[found]]
        steps["gpu_stall_ns"][places] = times["stall_ns"][found]
        steps["gpu_copy_ns"][places] = times["copy_ns"][found]
        steps["gpu_known"][places] = 1

    def n_measured_steps(self, steps: np.ndarray) -> int:
        """The number of leading steps whose events have all been read."""
        try:
            pending_ns = self._pending[0].begin_ns
        except IndexError:
            return len(steps)
        return int(np.argmax(np.append(steps["request_ns"] >= pending_ns, True)))

    def _forget(self) -> None:
        """Called in the child of a fork. Keeps the parent's events alive, as they must not be
        destroyed in the child."""
        _abandoned.append((self._pending, self._free))
        GpuStalls.__init__(self)


def _is_enabled() -> bool:
    if os.environ.get(SWITCH) == "0":
        return False
    captures.notice_captures()
    return True


def _elapsed_ns(first: Any, second: Any) -> int:
    """Time between two completed events. CUDA's resolution is half a microsecond."""
    elapsed_ns: int = round(first.elapsed_time(second) * 1e6)
    return max(0, elapsed_ns)


_alive: weakref.WeakSet[GpuStalls] = weakref.WeakSet()
_abandoned: list[Any] = []


def _forget_all() -> None:
    for stalls in list(_alive):
        stalls._forget()


os.register_at_fork(after_in_child=_forget_all)
