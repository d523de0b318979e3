"""The option device= with the real CUDA plug-in on a stub of the CUDA runtime that reports misuse.

The tests run in child processes, as a process loads the plug-in only once."""

import os

import helpers
import pytest

SETUP = """
import gc, os, pathlib, types
sys.path.insert(0, str(pathlib.Path(conftest.__file__).parents[1] / "support"))
from stub_gpu import StubGpu
from torchvision import transforms as T
gpu = StubGpu(types.SimpleNamespace(setattr=setattr))
folder = sys.argv[1]
TO_FLOAT = (T.ToTensor(), T.Normalize(helpers.MEAN, helpers.STD))

def dataset_of(*steps):
    return helpers.numbered_folder(folder, helpers.compose(*steps))

def sums_of(dataset, **options):
    loader = helpers.native_loader(dataset, **options)
    return [(gpu.sum(images), gpu.sum(targets)) for images, targets in loader]

def check_end():
    gc.collect()
    gpu.finish()
    gpu.calls.check_leaks()
    assert gpu.complaints() == "", gpu.complaints()
    print("fine")
"""

SAME_BATCHES = """
dataset = dataset_of(T.RandomResizedCrop(12), T.RandomHorizontalFlip(), *TO_FLOAT)
for options in ({}, {"dtype": torch.bfloat16}, {"memory_format": torch.channels_last}):
    options |= {"batch_size": 8, "num_workers": 2, "seed": 3}
    wanted = sums_of(dataset, **options)
    loader, got = helpers.native_loader(dataset, device="cuda", **options), []
    for images, targets in loader:
        gpu.spin(300_000)
        got.append((gpu.consume(images), gpu.consume(targets)))
        del images, targets  # at once, while the kernels still use them
    gpu.finish()
    assert [(a.value, b.value) for a, b in got] == wanted, options
    assert loader.stats().gpu.h2d_batches == 5
    del loader
check_end()
"""

FILES = """
from test_several_files import Pix2Pix
dataset = Pix2Pix.__new__(Pix2Pix)
dataset.files_A = [path for path, _ in helpers.numbered_folder(folder).samples]
dataset.files_B = dataset.files_A[:15]
dataset.first, dataset.second = (helpers.compose(T.RandomCrop(8), *TO_FLOAT) for _ in range(2))
options = {"batch_size": 8, "seed": 3}
wanted = [[gpu.sum(batch[name]) for name in "AB"]
          for batch in helpers.native_loader(dataset, **options)]
loader, got = helpers.native_loader(dataset, device="cuda", **options), []
for batch in loader:
    gpu.spin(300_000)
    got.append([gpu.consume(batch[name]) for name in "AB"])
    assert batch["A_paths"] == dataset.files_A[8 * len(got) - 8 : 8 * len(got)]
    del batch
gpu.finish()
assert [[one.value for one in sums] for sums in got] == wanted
assert loader.stats().gpu.h2d_batches == 5
del loader
check_end()
"""

ARRAYS = """
import numpy as np
from feedmill.data import NpyFolder
root = pathlib.Path(folder).parent / "npy"
root.mkdir()
for i in range(20):
    np.save(root / f"{i:02}.npy", np.full((3, 5), i, np.float64))
wanted = sums_of(NpyFolder(root), batch_size=8)
got = []
for images, targets in helpers.native_loader(NpyFolder(root), batch_size=8, device="cuda"):
    assert images.shape[1:] == (3, 5) and images.dtype is torch.float64
    got.append((gpu.consume(images), gpu.consume(targets)))
    del images, targets
gpu.finish()
assert [(a.value, b.value) for a, b in got] == wanted
check_end()
"""

VIEWS = """
crops = [helpers.compose(T.RandomResizedCrop(size), *TO_FLOAT) for size in (12, 8)]
dataset = helpers.numbered_folder(folder, helpers.Views(*crops))
options = {"batch_size": 7, "num_workers": 2, "seed": 3}
wanted = [[gpu.sum(one) for one in (*views, targets)]
          for views, targets in helpers.native_loader(dataset, **options)]
loader, got = helpers.native_loader(dataset, device="cuda", **options), []
for views, targets in loader:
    gpu.spin(300_000)
    got.append([gpu.consume(one) for one in (*views, targets)])
    assert [one.shape[-1] for one in views] == [12, 8]
    del views, targets
gpu.finish()
assert [[one.value for one in batch] for batch in got] == wanted
assert loader.stats().gpu.h2d_batches == 6
del loader
check_end()
"""

LEFT_EARLY = """
dataset = dataset_of(T.Resize((8, 8)), T.PILToTensor())
loader = helpers.native_loader(dataset, batch_size=4, device="cuda:1")
gpu.cuda.device = 1
for n in range(12):
    iterator = iter(loader)
    for _ in range(n % 4):
        images, _ = next(iterator)
        gpu.spin(200_000)
        gpu.consume(images)
    del iterator
images = None
for _ in zip(loader, loader):
    pass
del loader, _
check_end()
"""

CAPTURED = """
dataset = dataset_of(T.Resize((8, 8)), T.PILToTensor())
iterator = iter(helpers.native_loader(dataset, batch_size=8, device="cuda"))
first = next(iterator)[1].tolist()
stream = gpu.cuda.current_stream()
stream.is_capturing = True
gpu.calls.capture(stream.cuda_stream, 1)
try:
    next(iterator)
except RuntimeError as error:
    assert "while a CUDA graph is being captured" in str(error)
else:
    raise AssertionError("a batch came while a graph was being captured")
gpu.calls.capture(stream.cuda_stream, 0)
stream.is_capturing = False
rest = [targets for _, targets in iterator]
gpu.finish()
assert [one.tolist() for one in rest] == [list(range(i, i + 8)) for i in range(8, 40, 8)]
del iterator, rest
check_end()
"""

# Makes some of the runtime's calls fail, one at a time. Each must raise an error that names the
# call, without a hang.
FAILURES = """
dataset = dataset_of(T.Resize((8, 8)), *TO_FLOAT)
seen, n = set(), 0
while True:
    n += 13
    gpu.calls.reset(2, 0)
    gpu.__init__(types.SimpleNamespace(setattr=setattr), 0)
    gpu.calls.fail_at(n)
    error, n_batches = None, 0
    try:
        for _ in helpers.native_loader(dataset, batch_size=16, threads=1, device="cuda"):
            n_batches += 1
    except (RuntimeError, MemoryError) as raised:
        error = str(raised)
    failed = gpu.calls.failed()
    if not failed:
        assert error is None and n_batches == 3
        break
    gpu.calls.fail_at(0)
    name = failed.decode()
    seen.add(name)
    assert error is None or name in error, (name, error)
    _ = None
    gc.collect()
assert len(seen) > 4, seen
print("fine")
"""


@pytest.fixture
def plug_in():
    """The environment of a process in which the plug-in uses the stub runtime."""
    path = os.environ.get("FEEDMILL_STUB_CUDA")
    if not path:
        helpers.skip("FEEDMILL_STUB_CUDA does not name the plug-in on the stub CUDA runtime")
    return {**os.environ, "FEEDMILL_CUDA_LIBRARY": path}


@pytest.mark.slow
def test_device_on_the_stub_runtime(plug_in, small_images):
    script = SETUP + SAME_BATCHES + VIEWS + FILES + ARRAYS + LEFT_EARLY + CAPTURED + FAILURES
    assert helpers.run_script(script, small_images, env=plug_in) == 7 * "fine\n"
