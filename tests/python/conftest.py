"""Fixtures of the Python tests."""

import os
import signal
import sys

import pytest
import torch

# A shell that starts the tests in the background has Ctrl-C ignored, by all their processes as
# well; those in here are sent it. With a handler here they begin with the system's default.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# On a machine, or within an affinity, of fewer CPUs than that, torch warns of two workers. What
# processes write to stderr is compared, so those that the tests start must not.
os.environ["PYTHONWARNINGS"] = ",".join(
    filter(None, [os.environ.get("PYTHONWARNINGS"), "ignore:This DataLoader will create"])
)

# A torchvision whose own library does not fit a CPU-only torch can't be imported, for want of two
# operators; with them its Python part works. Where its library fits, they exist already.
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
from feedmill.engine.pool import EnginePool
from feedmill.profiling.counting.records import native_steps


@pytest.fixture(scope="session")
def small_images(tmp_path_factory):
    """Forty JPEGs of 20 to 60 pixels in two classes; their folder."""
    root = tmp_path_factory.mktemp("small")
    for i in range(40):
        width, height = 20 + i, 60 - i
        helpers.save_jpeg(root / f"class{i % 2}" / f"{i:03}.jpg", width, height, seed=i)
    return root


@pytest.fixture
def numbered(small_images):
    """An ImageFolder of those, whose targets are the indices; images 8 x 8 uint8."""
    return helpers.numbered_folder(small_images)


@pytest.fixture
def uring():
    """Skips where io_uring can't be had."""
    helpers.need_uring()


@pytest.fixture(autouse=True)
def exact_pieces(monkeypatch):
    """In every test: the causes of each step's wait are that wait, to the nanosecond. Looked at
    where an epoch ends, however it does, and in all stats()."""
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
    """After every test: no mode of ours hears of the calls of torch's functions on this thread, in
    which torch.manual_seed() would have no effect on them."""
    yield
    left = []
    while torch._C._len_torch_function_stack():
        left.append(torch._C._pop_torch_function_stack())
    assert not left
