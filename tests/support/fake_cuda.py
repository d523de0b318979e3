"""A fake torch.cuda, with streams and events on a clock, for tests without a GPU.

FakeCuda has the parts of torch.cuda that feedmill uses. A stream is a queue whose end time is
always known: work begins when the work before it has ended, and not before it is queued. An event
fires when the work that was queued before it has ended. Every call that synchronizes is an error.

    cuda = FakeCuda(clock)
    cuda.install(monkeypatch)
    cuda.launch(3_000_000)      # 3 ms of work on the current stream

The clock is a function that returns nanoseconds: time.monotonic_ns, or a test's own function.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import contextmanager
from typing import Any

import torch


class FakeStream:
    """A queue of work. busy: (begin, end) of each kernel, in order, without copies."""

    def __init__(self, cuda: FakeCuda, device: int = 0) -> None:
        self._cuda = cuda
        self.device = torch.device("cuda", device)
        self.cuda_stream = cuda.next_handle()
        cuda.streams.append(self)
        self.end_ns = 0
        self.is_capturing = False
        self.busy: list[tuple[int, int]] = []

    def run(self, duration_ns: int) -> int:
        """Queues work; returns when it ends."""
        begin_ns = max(self.end_ns, self._cuda.clock())
        self.end_ns = begin_ns + duration_ns
        return self.end_ns

    def launch(self, duration_ns: int) -> None:
        end_ns = self.run(duration_ns)
        self.busy.append((end_ns - duration_ns, end_ns))

    def wait_until(self, end_ns: int) -> None:
        """Makes later work wait for another stream's work, which ends at end_ns."""
        self.end_ns = max(self.end_ns, end_ns)

    def wait_event(self, event: FakeEvent) -> None:
        self.wait_until(event.fires_ns)

    def synchronize(self) -> None:
        raise AssertionError("a stream was synchronised")


class FakeEvent:
    """A fake torch.cuda.Event."""

    def __init__(self, cuda: FakeCuda, enable_timing: bool = False) -> None:
        self._cuda = cuda
        self._has_timing = enable_timing
        self._device: torch.device | None = None  # the device of the first record()
        self.fires_ns = 0
        cuda.n_events += 1

    def record(self, stream: FakeStream | None = None) -> None:
        stream = stream or self._cuda.current_stream()
        self._cuda.check("record")
        self._cuda.check_no_capture("an event was recorded")
        self._device = self._device or stream.device
        assert self._device == stream.device, "an event belongs to the device of its first record()"
        self.fires_ns = max(stream.end_ns, self._cuda.clock())

    def query(self) -> bool:
        self._cuda.check("query")
        self._cuda.check_no_capture("an event was asked")
        return bool(self.fires_ns) and self._cuda.clock() >= self.fires_ns

    def elapsed_time(self, end: FakeEvent) -> float:
        self._cuda.check("elapsed_time")
        self._cuda.check_no_capture("an event was asked")
        assert self._has_timing and end._has_timing and self.query() and end.query()
        assert self._device == end._device
        # CUDA's resolution is half a microsecond, and the result a 32-bit float.
        ms = round((end.fires_ns - self.fires_ns) / 500) * 0.0005
        return torch.tensor(ms, dtype=torch.float32).item()

    def synchronize(self) -> None:
        raise AssertionError("an event was synchronised")


class FakeGraph:
    """A fake torch.cuda.CUDAGraph, which captures the current stream. fails: names of calls that
    raise an error."""

    def __init__(self, cuda: FakeCuda) -> None:
        self._cuda = cuda
        self._stream: FakeStream | None = None
        self.fails: set[str] = set()

    def capture_begin(self, pool: Any = None, capture_error_mode: str = "global") -> None:
        if "capture_begin" in self.fails:
            raise RuntimeError("CUDA error: no capture")
        self._stream = self._cuda.current_stream()
        self._stream.is_capturing = True

    def capture_end(self) -> None:
        stream, self._stream = self._stream, None
        if stream is not None:
            stream.is_capturing = False
        if "capture_end" in self.fails:
            raise RuntimeError("CUDA error: the capture was invalidated")


class FakeCuda:
    """A fake torch.cuda with n_devices devices.

    Attributes:
        is_in_use: the result of torch.cuda.is_initialized().
        fails: names of calls ("record", "query", "elapsed_time", "current_stream") that raise.
        n_events: number of events that were made.
    """

    def __init__(self, clock: Callable[[], int] = time.monotonic_ns, n_devices: int = 1) -> None:
        self.clock = clock
        self.is_in_use = True
        self.fails: set[str] = set()
        self.n_events = 0
        self.device = 0
        self._n_handles = 0
        self.streams: list[FakeStream] = []  # all streams, in order of creation
        self.current = [FakeStream(self, i) for i in range(n_devices)]

    def next_handle(self) -> int:
        self._n_handles += 1
        return self._n_handles - 1  # 0 is a default stream's handle

    def check(self, name: str) -> None:
        if name in self.fails:
            raise RuntimeError(f"CUDA error: {name} failed")

    def check_no_capture(self, what: str) -> None:
        """Raises an error if any stream captures: CUDA then refuses most calls on all streams."""
        assert not any(one.is_capturing for one in self.streams), f"{what} during a capture"

    def index_of(self, device: Any) -> int:
        if device is None:
            return self.device
        if isinstance(device, int):
            return device
        index = torch.device(device).index
        return self.device if index is None else index

    def current_stream(self, device: Any = None) -> FakeStream:
        self.check("current_stream")
        return self.current[self.index_of(device)]

    def launch(self, duration_ns: int) -> None:
        """Launches a kernel on the current stream."""
        self.current_stream().launch(duration_ns)

    @contextmanager
    def stream(self, stream: FakeStream):
        """torch.cuda.stream()."""
        index = self.index_of(stream.device)
        before, self.current[index] = self.current[index], stream
        try:
            yield
        finally:
            self.current[index] = before

    @contextmanager
    def on_device(self, device: Any):
        """torch.cuda.device()."""
        before, self.device = self.device, self.index_of(device)
        try:
            yield
        finally:
            self.device = before

    def install(self, monkeypatch: Any) -> FakeCuda:
        def refuse(*_arguments: Any) -> None:
            raise AssertionError("the device was synchronised")

        replaced = {
            "is_initialized": lambda: self.is_in_use,
            "is_available": lambda: True,
            "device_count": lambda: len(self.current),
            "current_device": lambda: self.device,
            "current_stream": self.current_stream,
            "is_current_stream_capturing": lambda: self.current_stream().is_capturing,
            "stream": self.stream,
            "device": self.on_device,
            "synchronize": refuse,
            "Event": lambda enable_timing=False: FakeEvent(self, enable_timing),
            "CUDAGraph": type("CUDAGraph", (FakeGraph,), {}),  # a new class, as feedmill changes it
        }
        for name, value in replaced.items():
            monkeypatch.setattr(torch.cuda, name, value)
        monkeypatch.setattr(torch.version, "cuda", "13.0")
        return self
