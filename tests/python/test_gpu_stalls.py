"""The measurement of GPU stalls, with simulated GPUs of known idle time and loaders on a fake GPU."""

import copy
import gc
import os
import pickle
import random
import sys
import threading
import time
from pathlib import Path

import feedmill
import helpers
import numpy as np
import pytest
import torch
from feedmill.cli.trace import trace_events
from feedmill.profiling.counting import gpu_stalls
from feedmill.profiling.counting.accounts import StepCounters
from feedmill.profiling.counting.gpu_stalls import GpuStalls
from feedmill.profiling.log.reader import read_log
from feedmill.profiling.page.html_report import page
from feedmill.profiling.page.run_stats import report_of, stats_of
from helpers import compose, log_lines, native_loader
from torchvision import transforms as T

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))
from fake_cuda import FakeCuda, FakeStream

MS = 1_000_000


class Clock:
    """A clock in nanoseconds that the test advances."""

    def __init__(self):
        self.now = 10**9
        self._lock = threading.Lock()

    def __call__(self):
        return self.now

    def sleep(self, ns):
        with self._lock:
            self.now += int(ns)


@pytest.fixture
def cuda(monkeypatch):
    """A fake GPU whose time the test advances with cuda.clock.sleep()."""
    return FakeCuda(Clock()).install(monkeypatch)


# ---- arithmetic ----------------------------------------------------------------------------------


class Training:
    """A training loop on a simulated GPU.

    Each step: a request; the batch comes after some wait; perhaps a copy of it in another stream,
    for which the consumer's stream waits; kernels, each launched by the host; perhaps the host
    waits for the GPU, as loss.item() does.
    """

    def __init__(self, monkeypatch, seed, n_steps, gap_us):
        self.random = random.Random(seed)
        self.n_steps, self.gap_us = n_steps, gap_us
        self.has_copies = self.random.random() < 0.5
        self.sync_share = self.random.choice([0, 0, 0.1, 1])
        self.wait_ms = self.random.choice([0, 0.5, 3, 10])
        self.monkeypatch = monkeypatch

    def run(self, waits):
        """Returns (the stalls, [(request, when the batch could be used)], stream, seconds)."""
        clock = Clock()
        cuda = FakeCuda(clock).install(self.monkeypatch)
        stream, copies, stalls = cuda.current_stream(), FakeStream(cuda), GpuStalls()
        rng, windows, begin = random.Random(7), [], clock.now
        for _ in range(self.n_steps):
            request = clock.now
            mark = stalls.request(clock.now)
            clock.sleep(rng.expovariate(1) * self.wait_ms * MS * waits)
            if self.has_copies:
                copied = copies.run(int(rng.uniform(0, 2) * MS * waits))
                stalls.ready(mark)
                stream.wait_until(copied)
            clock.sleep(1000)
            stalls.returned(mark, clock.now)
            windows.append((request, max(clock.now, copies.end_ns)))
            clock.sleep(rng.uniform(0, self.gap_us) * 1000)
            for _ in range(rng.randrange(1, 5)):
                cuda.launch(int(rng.uniform(0.5, 3) * MS))
                clock.sleep(rng.uniform(2, 8) * 1000)
            if rng.random() < self.sync_share:
                clock.now = max(clock.now, stream.end_ns)
        clock.now = max(clock.now, stream.end_ns)
        return stalls, windows, stream, clock.now - begin


def idle_within(windows, busy):
    """The part of the windows in which no kernel ran: the GPU's idle time that late batches caused.
    Windows may overlap: a copy may continue after the next request."""
    points = sorted({point for span in [*windows, *busy] for point in span})
    idle = 0
    for low, high in zip(points, points[1:]):
        is_waiting = any(begin <= low and high <= end for begin, end in windows)
        if is_waiting and not any(begin <= low and high <= end for begin, end in busy):
            idle += high - low
    return idle


@pytest.mark.parametrize("seed", range(40))
def test_the_sum_of_stalls_is_the_idle_time(monkeypatch, seed):
    training = Training(monkeypatch, seed, n_steps=60, gap_us=500)
    stalls, windows, stream, _ = training.run(waits=1)
    counted = stalls.counters()
    assert counted["gpu_steps"] == 60 and counted["gpu_skipped"] == 0
    # Each of two or three events is rounded to half a microsecond.
    assert abs(counted["gpu_stall_ns"] - idle_within(windows, stream.busy)) <= 60 * 1500
    assert counted["gpu_copy_ns"] <= counted["gpu_stall_ns"]
    assert training.has_copies or counted["gpu_copy_ns"] == 0


@pytest.mark.parametrize("seed", range(40))
def test_the_sum_of_stalls_is_what_ready_batches_would_save(monkeypatch, seed):
    """The sum of stalls is the time that the loop would save if batches were always ready."""
    training = Training(monkeypatch, seed, n_steps=100, gap_us=20)
    stalls, _, _, full_ns = training.run(waits=1)
    _, _, _, replay_ns = training.run(waits=0)
    assert abs(stalls.counters()["gpu_stall_ns"] - (full_ns - replay_ns)) < 0.03 * full_ns


def test_stalls_are_divided_into_late_data_and_copies(monkeypatch):
    clock = Clock()
    cuda = FakeCuda(clock).install(monkeypatch)
    stream, stalls = cuda.current_stream(), GpuStalls()

    def step(work_ms, wait_ms, copy_ms):
        cuda.launch(int(work_ms * MS))
        mark = stalls.request(clock.now)
        clock.sleep(wait_ms * MS)
        stalls.ready(mark)
        stream.wait_until(clock.now + int(copy_ms * MS))
        stalls.returned(mark, clock.now)
        clock.now = max(clock.now, stream.end_ns)
        before = stalls._stall_ns, stalls._copy_ns
        counted = stalls.counters()
        now = counted["gpu_stall_ns"], counted["gpu_copy_ns"]
        return [(now[0] - before[0]) / MS, (now[1] - before[1]) / MS]

    assert step(0, 5, 2) == [7, 2]  # idle since the request
    assert step(4, 5, 2) == [3, 2]  # 1 ms of late data, then the copy
    assert step(6, 5, 2) == [1, 1]  # the data was in time, the copy was late
    assert step(8, 5, 2) == [0, 0]
    assert step(2, 0, 0) == [0, 0]


def test_steps_get_their_own_measurements(monkeypatch):
    clock = Clock()
    FakeCuda(clock).install(monkeypatch)
    counters = StepCounters()
    for epoch in range(2):
        assert counters.begin_epoch() == epoch
        for k in range(3):
            request = clock.now
            mark = counters.gpu.request(request) if k != 1 else None
            clock.sleep((k + 1) * MS)
            counters.gpu.returned(mark, clock.now)
            counters.add_step(epoch, request, clock.now)
            clock.sleep(5 * MS)
    steps = counters.steps()
    assert steps["gpu_known"].tolist() == [1, 0, 1] * 2
    assert steps["gpu_stall_ns"].tolist() == [MS, 0, 3 * MS] * 2
    counted = counters.counters()
    assert (counted["gpu_steps"], counted["gpu_stall_ns"]) == (4, 8 * MS)
    # In each epoch, 1 ms before the first return, and 8 ms between the second return and the third.
    assert counted["gpu_wall_ns"] == 2 * (1 + 8) * MS


def test_a_batch_in_parts_has_one_measurement(monkeypatch):
    clock = Clock()
    FakeCuda(clock).install(monkeypatch)
    stalls = GpuStalls()
    mark = stalls.request(clock.now)
    clock.sleep(4 * MS)
    stalls.returned(mark, clock.now)
    steps = np.zeros(4, gpu_stalls_dtype())
    steps["request_ns"] = [clock.now + 1, clock.now - 9, clock.now - 3 * MS, clock.now - 9 * MS]
    stalls.fill(steps)
    assert steps["gpu_known"].tolist() == [0, 0, 1, 0]


def gpu_stalls_dtype():
    return StepCounters().steps().dtype


def test_only_the_latest_measurements_are_kept(monkeypatch):
    monkeypatch.setattr(gpu_stalls, "KEPT_STEPS", 64)
    clock = Clock()
    FakeCuda(clock).install(monkeypatch)
    stalls, requests = GpuStalls(), []
    for k in range(200):
        requests.append(clock.now)
        mark = stalls.request(clock.now)
        clock.sleep(1000 * (k + 1))
        stalls.returned(mark, clock.now)
        clock.sleep(1000)
    assert stalls.counters()["gpu_steps"] == 200
    assert stalls.counters()["gpu_stall_ns"] == 1000 * sum(range(1, 201))
    steps = np.zeros(200, gpu_stalls_dtype())
    steps["request_ns"] = requests
    stalls.fill(steps)
    assert steps["gpu_known"].tolist() == [0] * 136 + [1] * 64
    assert steps["gpu_stall_ns"][136:].tolist() == [1000 * (k + 1) for k in range(136, 200)]


# ---- limits and errors ---------------------------------------------------------------------------


def test_without_cuda_no_event_is_made(cuda):
    cuda.is_in_use = False
    cuda.fails = {"record", "query", "current_stream"}
    counters = StepCounters()
    list(feedmill.watch([1, 2]))
    assert counters.gpu.request(1) is None
    assert cuda.n_events == 0
    assert counters.counters()["gpu_steps"] == counters.counters()["gpu_skipped"] == 0


def test_pending_measurements_are_bounded_and_events_reused(cuda):
    stalls = GpuStalls()
    stream = cuda.current_stream()
    stream.end_ns = cuda.clock() + 1  # a GPU that never finishes
    for _ in range(2000):
        stalls.returned(stalls.request(cuda.clock()), cuda.clock())
    counted = stalls.counters()
    assert counted["gpu_steps"] == 0 and counted["gpu_skipped"] == 2000 - len(stalls._pending)
    assert cuda.n_events <= 2 * len(stalls._pending) <= 1100
    for mark in stalls._pending:
        mark.requested.fires_ns = mark.returned.fires_ns = 1
    stream.end_ns = 0
    n_events, n_before = cuda.n_events, len(stalls._pending)
    for _ in range(3000):
        stalls.returned(stalls.request(cuda.clock()), cuda.clock())
    assert cuda.n_events <= n_events + 4
    assert stalls.counters()["gpu_steps"] == n_before + 3000


def test_the_current_device_may_change(monkeypatch):
    cuda = FakeCuda(Clock(), n_devices=2).install(monkeypatch)
    stalls = GpuStalls()
    for k in range(20):
        cuda.device = k % 2
        device = torch.device("cuda", k % 3 % 2) if k % 3 else None
        mark = stalls.request(cuda.clock(), device)
        stalls.ready(mark)
        stalls.returned(mark, cuda.clock())
    assert (stalls.counters()["gpu_steps"], stalls.counters()["gpu_skipped"]) == (20, 0)
    assert cuda.n_events <= 12


def test_a_captured_stream_is_left_alone(cuda):
    stalls = GpuStalls()
    stalls.returned(stalls.request(cuda.clock()), cuda.clock())
    cuda.current_stream().is_capturing = True
    assert stalls.request(cuda.clock()) is None
    assert stalls.counters()["gpu_skipped"] == 1  # and no event was queried
    cuda.current_stream().is_capturing = False
    assert stalls.counters()["gpu_steps"] == 1


@pytest.mark.parametrize("call", ["record", "query", "elapsed_time", "current_stream"])
def test_errors_of_cuda_are_left_to_the_script(cuda, call):
    watched = feedmill.watch(range(5))
    iterator = iter(watched)
    got = [next(iterator), next(iterator)]
    cuda.fails = {call}
    assert [*got, *iterator] == list(range(5))
    assert watched.stats().batches == 5
    assert watched.stats().gpu.skipped >= 1 or call in ("query", "elapsed_time")


def test_only_the_iterating_thread_queries_events(cuda):
    watched = feedmill.watch(range(3))
    cuda.launch(MS)
    list(watched)
    cuda.clock.sleep(MS)
    seen = []
    thread = threading.Thread(target=lambda: seen.append(watched.stats().gpu.steps))
    thread.start()
    thread.join()
    assert seen == [0] and watched.stats().gpu.steps == 3


def test_a_forked_process_starts_with_empty_counters(cuda):
    watched = feedmill.watch(range(4))
    iterator = iter(watched)
    next(iterator)
    stream = cuda.current_stream()
    stream.end_ns = cuda.clock() + 1
    next(iterator)
    pid = os.fork()
    if pid == 0:
        cuda.fails = {"record", "query", "elapsed_time"}  # the parent's events can't be used
        cuda.is_in_use = False
        status = 1
        try:
            gc.collect()
            is_ok = list(iterator) == [2, 3] and watched.stats().gpu.steps == 0
            status = 0 if is_ok and not watched._feedmill_counters.gpu._pending else 1
        finally:
            os._exit(status)
    assert os.waitpid(pid, 0)[1] == 0
    assert list(iterator) == [2, 3]


def test_copied_counters_start_at_zero(cuda):
    counters = StepCounters()
    counters.begin_epoch()
    counters.gpu.returned(counters.gpu.request(1), 2)
    for one in (pickle.loads(pickle.dumps(counters)), copy.copy(counters)):
        assert one.counters()["gpu_steps"] == 0


# ---- loaders -------------------------------------------------------------------------------------


def loader_of(kind, dataset, clock, options):
    """A loader on the named path. On all paths but the native one, a sample takes 2 ms of the
    clock's time, which pass in its transform."""
    if kind == "native":
        return native_loader(dataset, **options)
    steps = [T.Lambda(lambda image: clock.sleep(2 * MS) or image), *dataset.transform.transforms]
    dataset.transform = compose(*steps)
    if kind == "watched":
        return feedmill.watch(torch.utils.data.DataLoader(dataset, **options))
    return feedmill.DataLoader(dataset, native="hybrid" if kind == "hybrid" else "auto", **options)


@pytest.mark.parametrize("kind", ["native", "torch", "hybrid", "watched"])
def test_loaders_measure_stalls(cuda, numbered, kind, monkeypatch):
    loader = loader_of(kind, numbered, cuda.clock, {"batch_size": 8})
    if kind in ("torch", "watched"):  # everything runs on one thread, with one clock
        monkeypatch.setattr(time, "monotonic_ns", cuda.clock)
    begin_ns = time.monotonic_ns()
    for _ in range(2):
        for _ in loader:
            cuda.launch(3 * MS)
    end_ns = time.monotonic_ns()
    if kind == "native":
        assert loader.stats().gpu.steps == 1  # the other steps' events wait for 3 ms of GPU work
    cuda.clock.sleep(30 * MS)
    stats = loader.stats()
    steps = stats.steps
    assert stats.path == kind
    assert (stats.gpu.steps, stats.gpu.skipped) == (10, 0)
    assert steps["gpu_known"].tolist() == [1] * 10
    assert int(steps["gpu_stall_ns"].sum()) == stats.gpu.stall_ns
    assert stats.gpu.copy_ns == 0
    share = min(1, stats.gpu.stall_ns / stats.gpu.wall_ns)
    assert stats.gpu.stall_share == pytest.approx(share)
    assert stats.au == 1 - stats.gpu.stall_share
    assert 0 < stats.gpu.wall_ns <= end_ns - begin_ns
    if kind == "native":  # batches take no time on the fake clock
        assert stats.gpu.stall_ns == 0
    elif kind == "hybrid":  # threads prepare batches ahead, at unknown times
        assert stats.gpu.stall_ns <= 80 * 2 * MS
    else:  # 16 ms per batch; from the second one on, the GPU has work for 3 of them
        assert (stats.gpu.stall_ns, stats.gpu.wall_ns) == ((16 + 9 * 13) * MS, 10 * 16 * MS)
        assert ", the GPU 83%" in loader.report()
    text = loader.report()
    assert "  GPU        waited for batches for " in text and "10 steps measured" in text
    assert "the share of time in which the GPU did not wait for a batch; target: above 80%" in text
    later = loader.stats() - stats
    assert later.gpu.steps == 0 and later.gpu.stall_share is None and later.au == 1 - 0.0


def test_a_busy_gpu_has_no_stall(cuda, monkeypatch):
    """The host waits for every batch while the GPU always has work."""
    monkeypatch.setattr(time, "monotonic_ns", cuda.clock)

    def batches():
        for k in range(6):
            cuda.clock.sleep(5 * MS)
            yield k

    watched = feedmill.watch(batches())
    cuda.launch(10**12)
    list(watched)
    cuda.clock.sleep(10**12)
    stats = watched.stats()
    assert stats.data_wait_share == 1 and stats.au == 1
    assert stats.report().splitlines()[0] == (
        "no stall: steps waited 100% of the time for data, the GPU 0%"
    )


def test_cuda_initialized_after_the_loader(cuda, numbered):
    cuda.is_in_use = False
    loader = native_loader(numbered, batch_size=8)
    for k, _ in enumerate(loader):
        cuda.is_in_use = k >= 1
    stats = loader.stats()
    assert stats.gpu.steps == 3 and stats.steps["gpu_known"].tolist() == [0, 0, 1, 1, 1]


def test_errors_are_not_counted_as_steps(cuda, tmp_path):
    helpers.save_jpeg(tmp_path / "c" / "a.jpg", 20, 20)
    (tmp_path / "c" / "b.jpg").write_bytes(b"no image")
    helpers.save_jpeg(tmp_path / "c" / "c.jpg", 20, 20)
    iterator = iter(native_loader(helpers.numbered_folder(tmp_path), batch_size=1))
    got = [helpers.take(iterator) for _ in range(4)]
    assert got[0] == [0] and got[2:] == [[2], "end"]
    loader_stats = iterator._engines.gpu.counters()
    assert loader_stats["gpu_steps"] == 2


def test_concurrent_iterators(cuda, numbered):
    loader = native_loader(numbered, batch_size=8)
    for _ in zip(loader, loader):
        cuda.launch(MS)
    cuda.clock.sleep(10 * MS)
    stats = loader.stats()
    assert stats.gpu.steps == 10 and stats.steps["gpu_known"].tolist() == [1] * 10


# ---- logs ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["native", "torch"])
def test_logs_have_stalls_once_they_are_known(cuda, numbered, kind, tmp_path):
    file = tmp_path / "run.jsonl"
    loader = loader_of(kind, numbered, cuda.clock, {"batch_size": 4})
    loader.log = str(file)
    for _ in loader:
        cuda.launch(60 * 10**9)
    assert len(log_lines(file).get("step", [])) < 10  # the GPU has not reached these steps
    cuda.clock.sleep(3600 * 10**9)
    for _ in loader:
        cuda.launch(MS // 10)
        cuda.clock.sleep(MS)
    stats = loader.stats()
    loader._feedmill.recorder.finish()
    lines = log_lines(file)["step"]
    assert [line["step"] for line in lines] == list(range(20))
    assert all(line["gpu_known"] for line in lines[:19])
    assert sum(line["gpu_stall_ns"] for line in lines) == stats.gpu.stall_ns
    (run,) = read_log(file)
    assert stats_of(run).gpu.steps == stats.gpu.steps and run.steps["gpu_known"].sum() >= 19
    assert "waited for batches" in report_of(run)
    values = [event["args"]["value"] for event in trace_events([run])
              if event["name"] == "GPU stall, ms"]
    assert len(values) >= 19 and min(values) >= 0
    html = page([run], "title")
    assert "How long the GPU waited for batches" in html and "late data" in html


def test_logs_without_a_gpu(numbered, tmp_path):
    loader = native_loader(numbered, batch_size=4, log=str(tmp_path / "run.jsonl"))
    list(loader)
    loader._feedmill.recorder.finish()
    (run,) = read_log(tmp_path / "run.jsonl")
    assert not run.steps["gpu_known"].any() and len(run.steps) == 10
    assert "waited for batches" not in report_of(run) + page([run], "title")
    assert "; no GPU is in use" in loader.report()


class Writer(dict):
    def add_scalar(self, tag, value, global_step):
        self[tag] = value


def test_scalars(cuda, numbered):
    loader, writer = native_loader(numbered, batch_size=8), Writer()
    for _ in loader:
        cuda.launch(MS)
    cuda.clock.sleep(5 * MS)
    feedmill.log_scalars(writer, loader, 1)
    stats = loader.stats()
    assert writer["feedmill/au"] == pytest.approx(stats.au)
    assert writer["feedmill/gpu_stall_ms"] == pytest.approx(stats.gpu.stall_ns / 5e6)
