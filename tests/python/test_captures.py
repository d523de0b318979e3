"""No CUDA event is recorded or queried while a CUDA graph is being captured.

The fake CUDA (tests/support/fake_cuda.py) refuses every event while a stream captures, as the real
one does.
"""

import os
import sys
import threading
import time
from pathlib import Path

import feedmill
import pytest
import torch
from feedmill.profiling.counting import captures
from feedmill.profiling.counting.gpu_stalls import GpuStalls
from helpers import compose, native_loader
from torchvision import transforms as T

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))
from fake_cuda import FakeCuda, FakeStream


@pytest.fixture
def cuda(monkeypatch):
    return FakeCuda(n_devices=2).install(monkeypatch)


def counts(stalls):
    counted = stalls.counters()
    return counted["gpu_steps"], counted["gpu_skipped"]


def step(stalls, within=lambda: None, before_ready=None):
    """Runs one step and calls `within` in the middle of it."""
    mark = stalls.request(time.monotonic_ns())
    if before_ready is not None:
        before_ready()
        stalls.ready(mark)
    within()
    stalls.returned(mark, time.monotonic_ns())


# ---- captures on several streams -----------------------------------------------------------------


def test_a_capture_on_another_stream_is_left_alone(cuda):
    stalls, graph, side = GpuStalls(), torch.cuda.CUDAGraph(cuda), FakeStream(cuda)
    step(stalls)
    with cuda.stream(side):
        graph.capture_begin()
    assert not torch.cuda.is_current_stream_capturing()
    step(stalls)
    assert counts(stalls) == (0, 1)  # nor is the first step's event asked
    with cuda.stream(side):
        graph.capture_end()
    step(stalls)
    assert counts(stalls) == (2, 1)


def test_a_capture_on_another_device_is_left_alone(cuda):
    stalls, graph = GpuStalls(), torch.cuda.CUDAGraph(cuda)
    with cuda.on_device(1):
        graph.capture_begin()
    step(stalls)
    assert counts(stalls) == (0, 1)
    graph.capture_end()
    step(stalls)
    assert counts(stalls) == (1, 1)


def test_a_capture_on_the_current_stream_outside_of_torch_is_left_alone(cuda):
    """torch.cuda.is_current_stream_capturing() shows such a capture."""
    stalls = GpuStalls()
    cuda.current_stream().is_capturing = True
    step(stalls)
    cuda.current_stream().is_capturing = False
    step(stalls)
    assert counts(stalls) == (1, 1)


@pytest.mark.parametrize("where", ["within", "before_ready"])
def test_a_capture_that_begins_within_a_step(cuda, where):
    stalls, graph = GpuStalls(), torch.cuda.CUDAGraph(cuda)
    side = FakeStream(cuda)

    def begin():
        with cuda.stream(side):
            graph.capture_begin()

    step(stalls, **{where: begin})
    assert counts(stalls) == (0, 1)
    graph.capture_end()
    for _ in range(5):
        step(stalls)
    assert counts(stalls) == (5, 1)
    assert cuda.n_events <= 3  # the events of the discarded step are reused


def test_a_capture_that_ends_within_a_step(cuda):
    stalls, graph = GpuStalls(), torch.cuda.CUDAGraph(cuda)
    graph.capture_begin()
    step(stalls, graph.capture_end)
    step(stalls)
    assert counts(stalls) == (1, 1)


@pytest.mark.parametrize("call", ["capture_begin", "capture_end"])
def test_a_failed_capture_counts_as_ended(cuda, call):
    stalls, graph = GpuStalls(), torch.cuda.CUDAGraph(cuda)
    graph.fails = {call}
    with pytest.raises(RuntimeError, match="CUDA error"):
        graph.capture_begin()
        graph.capture_end()
    step(stalls)
    assert counts(stalls) == (1, 0)


def test_a_graph_deleted_during_its_capture_counts_as_ended(cuda):
    stalls = GpuStalls()
    graph = torch.cuda.CUDAGraph(cuda)
    graph.capture_begin()
    del graph
    for stream in cuda.streams:
        stream.is_capturing = False
    step(stalls)
    assert counts(stalls) == (1, 0)


def test_subclasses_and_arguments(cuda):
    class Mine(torch.cuda.CUDAGraph):
        def capture_begin(self, **options):
            super().capture_begin(**options)

    stalls, graph = GpuStalls(), Mine(cuda)
    graph.capture_begin(pool=(1, 2), capture_error_mode="relaxed")
    step(stalls)
    graph.capture_end()
    assert counts(stalls) == (0, 1)


def test_cuda_graph_methods_are_wrapped_once(cuda):
    begin = torch.cuda.CUDAGraph.capture_begin
    GpuStalls()
    noticed = torch.cuda.CUDAGraph.capture_begin
    GpuStalls(), captures.notice_captures()
    assert begin is not noticed and torch.cuda.CUDAGraph.capture_begin is noticed


# ---- threads and forks ---------------------------------------------------------------------------


def test_captures_on_another_thread(cuda):
    """No capture begins between the check and the recording; the fake CUDA would raise an error."""
    stalls, side, is_over, errors = GpuStalls(), FakeStream(cuda), threading.Event(), []

    def capture():
        graph = torch.cuda.CUDAGraph(cuda)
        # In a stream of its own, as every thread's current stream is its own.
        graph._cuda = type("Cuda", (), {"current_stream": staticmethod(lambda: side)})
        try:
            while not is_over.is_set():
                graph.capture_begin()
                graph.capture_end()
        except BaseException as error:
            errors.append(error)

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    thread = threading.Thread(target=capture)
    thread.start()
    try:
        for _ in range(2000):
            step(stalls)
            stalls.poll()
    finally:
        is_over.set()
        thread.join()
        sys.setswitchinterval(before)
    assert not errors and not stalls._has_failed
    n_measured, n_skipped = counts(stalls)
    assert n_measured + n_skipped == 2000


def test_a_fork_during_a_capture(cuda):
    stalls, graph = GpuStalls(), torch.cuda.CUDAGraph(cuda)
    graph.capture_begin()
    held, go_on = threading.Event(), threading.Event()

    def hold():
        with captures.lock:
            held.set()
            go_on.wait()

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait()
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            for stream in cuda.streams:
                stream.is_capturing = False
            step(stalls)
            status = 0 if counts(stalls) == (1, 0) else 2
        finally:
            os._exit(status)
    go_on.set()
    thread.join()
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


# ---- loaders, and FEEDMILL_GPU_STALLS ------------------------------------------------------------

LOADERS = {
    "native": lambda dataset: native_loader(dataset, batch_size=8),
    "torch": lambda dataset: feedmill.DataLoader(dataset, batch_size=8, native="off"),
    "hybrid": lambda dataset: feedmill.DataLoader(with_lambda(dataset), batch_size=8,
                                                  native="hybrid"),
    "watched": lambda dataset: feedmill.watch([dataset[i] for i in range(5)]),
}


def with_lambda(dataset):
    steps = [T.Lambda(lambda image: image.copy()), T.PILToTensor(), T.Resize((8, 8))]
    dataset.transform = compose(*steps)
    return dataset


@pytest.mark.parametrize("kind", LOADERS)
def test_loaders_during_a_capture(cuda, numbered, kind):
    loader = LOADERS[kind](numbered)
    graph, side = torch.cuda.CUDAGraph(cuda), FakeStream(cuda)
    for k, _ in enumerate(loader):
        if k == 1:
            with cuda.stream(side):
                graph.capture_begin()
        if k == 3:
            graph.capture_end()
    stats = loader.stats()
    assert stats.path == kind
    assert (stats.gpu.steps, stats.gpu.skipped) == (3, 2)


@pytest.mark.parametrize("kind", LOADERS)
def test_feedmill_gpu_stalls_0_turns_measuring_off(cuda, numbered, kind, monkeypatch):
    monkeypatch.setenv("FEEDMILL_GPU_STALLS", "0")
    loader = LOADERS[kind](numbered)
    list(loader)
    stats = loader.stats()
    assert (stats.gpu.steps, stats.gpu.skipped, cuda.n_events) == (0, 0, 0)
    assert stats.gpu.stall_share is None and stats.path == kind
    assert "waited for batches" not in loader.report()
    monkeypatch.setenv("FEEDMILL_GPU_STALLS", "1")  # read again at each epoch
    list(loader)
    assert loader.stats().gpu.steps == 5


def test_if_turned_off_torchs_class_is_not_wrapped(cuda, monkeypatch):
    monkeypatch.setenv("FEEDMILL_GPU_STALLS", "0")
    begin = torch.cuda.CUDAGraph.capture_begin
    list(feedmill.watch([1, 2]))
    assert torch.cuda.CUDAGraph.capture_begin is begin
