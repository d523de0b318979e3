"""Fixtures of the Python tests."""

import gc
import multiprocessing
import os
import signal
import sys

import pytest

# Threads of OpenMP that wait for work spin by default, which takes the CPU from other tests.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # before torch is imported

import torch

# A shell that starts the tests in the background makes them, and their child processes, ignore
# SIGINT, which some tests send. With a handler here, child processes start with the default action.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# With fewer than two usable CPUs, torch warns if a loader has two workers. Tests compare what child
# processes write to stderr, so the warning is turned off there.
os.environ["PYTHONWARNINGS"] = ",".join(
    filter(None, [os.environ.get("PYTHONWARNINGS"), "ignore:This DataLoader will create"])
)

# A torchvision whose compiled library does not match a CPU-only torch can't be imported, as two
# operators are missing. Once they are defined, its Python part works.
try:
    import torchvision
except RuntimeError:
    for _name in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
        del sys.modules[_name]
    _operators = torch.library.Library("torchvision", "DEF")
    for _name in ("nms", "qnms"):
        _operators.define(f"{_name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    import torchvision  # noqa: F401

import feedmill
import helpers
import torch_iterators  # noqa: F401  ends iterators that tests leave behind
from feedmill.engine.pool import EnginePool
from feedmill.planner import comparing
from feedmill.profiling.counting.records import native_steps
from feedmill.system import peer_processes

# Python 3.14 starts processes in another way by default, which needs everything to be picklable.
# Tests of the other ways ask for them.
multiprocessing.set_start_method("fork", force=True)


def pytest_collection_finish():
    """Leaves out what exists before the first test, hundreds of thousands of objects, when the
    garbage collector runs. In forked workers it would also copy the pages of all of them."""
    gc.collect()
    gc.freeze()


@pytest.fixture
def looked_at_anew():
    """Native results are compared again with the installed libraries', in the test and after it."""
    comparing.forget()
    yield
    comparing.forget()


@pytest.fixture(scope="session")
def small_images(tmp_path_factory):
    """The folder of forty JPEGs, 20 to 60 pixels wide and high, in two classes."""
    root = tmp_path_factory.mktemp("small")
    for i in range(40):
        width, height = 20 + i, 60 - i
        helpers.save_jpeg(root / f"class{i % 2}" / f"{i:03}.jpg", width, height, seed=i)
    return root


@pytest.fixture(scope="session", autouse=True)
def no_peer_processes(tmp_path_factory):
    """The default number of threads depends on how many other processes use feedmill, and so on
    tests that run at the same time."""
    peer_processes.PARENT_FOLDERS = [str(tmp_path_factory.mktemp("peers"))]


@pytest.fixture
def numbered(small_images):
    """An ImageFolder of these images, 8 x 8 uint8, whose targets are the indices."""
    return helpers.numbered_folder(small_images)


@pytest.fixture
def uring():
    """Skips the test if io_uring is not available."""
    helpers.need_uring()


@pytest.fixture(autouse=True)
def exact_pieces(monkeypatch):
    """Checks in every test that the causes of each step's wait add up to it, to the nanosecond: at
    the end of each epoch, however it ends, and in each stats()."""
    release, stats, wrong = EnginePool.release, feedmill.DataLoader.stats, []

    def look(steps, counters):
        wrong.extend(helpers.inexact_pieces(steps, counters))

    def checked_release(self, handle):
        if handle.pid == os.getpid():
            look(native_steps(handle), handle.stats())
        release(self, handle)

    def checked_stats(self):
        got = stats(self)
        look(got.steps, got.flat())
        return got

    monkeypatch.setattr(EnginePool, "release", checked_release)
    monkeypatch.setattr(feedmill.DataLoader, "stats", checked_stats)
    yield
    assert not wrong, wrong[0]


@pytest.fixture(autouse=True)
def no_mode_left_behind():
    """Checks after every test that no torch function mode is left active on this thread.
    torch.manual_seed() would not have its effect under one of feedmill's."""
    yield
    left = []
    while torch._C._len_torch_function_stack():
        left.append(torch._C._pop_torch_function_stack())
    assert not left
