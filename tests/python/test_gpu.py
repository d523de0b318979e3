"""Tests that need a real GPU: pytest -m gpu. test_device and test_gpu_stalls have the tests that
run without one."""

import contextlib
import gc
import time

import feedmill
import helpers
import pytest
import torch
from feedmill._ops import native
from feedmill.engine import devices
from feedmill.iterators import native as module
from helpers import assert_same_image, compose, native_loader
from torch.utils.data import TensorDataset
from torchvision import transforms as T

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no GPU to use"),
]

N_BATCHES, BATCH_SIZE = 1000, 8
TO_FLOAT = (T.ToTensor(), T.Normalize(helpers.MEAN, helpers.STD))


@pytest.fixture(params=["stage", "torch"])
def copies(request, monkeypatch):
    """Has batches copied to the GPU by the native loader, or by torch."""
    if request.param == "torch":
        monkeypatch.setattr(devices, "stage_refusal", lambda loader: "a test asked for torch")
    else:
        try:
            native.device_count("cuda")
        except native.Error as error:
            helpers.skip(f"the native loader can't copy to a GPU: {error}")
    return request.param


@pytest.fixture(params=["default", "side"])
def stream(request):
    """The consumer's stream, which is the current one while the test runs."""
    if request.param == "default":
        yield torch.cuda.current_stream()
        return
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        yield side
    side.synchronize()


def weighted(image):
    """A checksum that any wrong, missing or misplaced byte changes."""
    values = image.reshape(-1).to(torch.int64)
    return (values * torch.arange(1, len(values) + 1, device=image.device)).sum()


def checksums(dataset, indices):
    """The checksums of batches, computed from the samples on the CPU."""
    images = [dataset[i][0] for i in range(len(dataset))]
    batches = [indices[i : i + BATCH_SIZE] for i in range(0, len(indices), BATCH_SIZE)]
    return [int(weighted(torch.stack([images[i] for i in batch]))) for batch in batches]


def many_indices(dataset):
    generator = torch.Generator().manual_seed(3)
    return torch.randint(len(dataset), (N_BATCHES * BATCH_SIZE,), generator=generator).tolist()


def long_kernel(number):
    """Keeps the GPU busy, so that later work is queued and the host runs ahead."""
    if number % 10 == 0:
        torch.cuda._sleep(20_000_000)


# ---- pinned batches on the CPU -------------------------------------------------------------------


def test_pinned_batches_may_be_dropped_during_a_copy(stream, numbered):
    indices = many_indices(numbered)
    loader = native_loader(numbered, batch_size=BATCH_SIZE, sampler=indices, pin_memory=True,
                           num_workers=2)
    sums = []
    for number, (x, _) in enumerate(loader):
        assert x.is_pinned()
        long_kernel(number)
        y = x.to("cuda", non_blocking=True)
        del x
        sums.append(weighted(y))
    assert torch.stack(sums).tolist() == checksums(numbered, indices)
    assert loader.stats().memory.copied_batches == 0


# ---- batches on the GPU --------------------------------------------------------------------------


@pytest.mark.parametrize("options", [
    {}, {"dtype": torch.float16}, {"dtype": torch.bfloat16, "memory_format": torch.channels_last},
    {"memory_format": torch.channels_last},
])
def test_batches_equal_those_on_the_cpu(copies, small_images, options):
    steps = (T.RandomResizedCrop(37), T.RandomHorizontalFlip(), *TO_FLOAT)
    dataset = helpers.numbered_folder(small_images, compose(*steps))
    options = {"batch_size": 16, "num_workers": 2, "seed": 3, **options}
    loader = native_loader(dataset, device="cuda", **options)
    for one, other in zip(loader, native_loader(dataset, **options), strict=True):
        assert all(tensor.is_cuda for tensor in one)
        assert one[0].stride() == other[0].stride() and one[1].tolist() == other[1].tolist()
        assert_same_image(one[0].cpu(), other[0], "batch")
    assert bool(loader.stats().gpu.h2d_batches) == (copies == "stage")


def test_arrays(copies):
    dataset = TensorDataset(torch.randn(50, 3, 5), torch.arange(50))
    for one, other in zip(native_loader(dataset, batch_size=8, device="cuda"),
                          native_loader(dataset, batch_size=8), strict=True):
        for got, wanted in zip(one, other, strict=True):
            assert got.is_cuda and torch.equal(got.cpu(), wanted)


def test_batches_may_be_dropped_at_any_time(copies, stream, numbered):
    """No memory is reused while a kernel or a copy uses it, whenever a batch is dropped."""
    indices = many_indices(numbered)
    loader = native_loader(numbered, batch_size=BATCH_SIZE, sampler=indices, device="cuda",
                           num_workers=2)
    sums, held = [], []
    for number, (y, targets) in enumerate(loader):
        long_kernel(number)
        sums.append(weighted(y))
        held.append(targets)
        if number % 3:
            del y, targets
            # The allocator reuses the memory, in the stream's order.
            torch.full((BATCH_SIZE, 3, 8, 8), 255, dtype=torch.uint8, device="cuda")
    assert torch.stack(sums).tolist() == checksums(numbered, indices)
    assert torch.cat(held).tolist() == indices


def test_streams_may_change_from_step_to_step(copies, numbered):
    indices = many_indices(numbered)[: 200 * BATCH_SIZE]
    iterator = iter(native_loader(numbered, batch_size=BATCH_SIZE, sampler=indices, device="cuda"))
    streams = [torch.cuda.default_stream(), *(torch.cuda.Stream() for _ in range(3))]
    sums = []
    for number in range(200):
        with torch.cuda.stream(streams[number % len(streams)]):
            long_kernel(number)
            y, _ = next(iterator)
            sums.append(weighted(y))
            del y
    torch.cuda.synchronize()
    assert [int(one) for one in sums] == checksums(numbered, indices)


def test_an_epoch_ended_early_with_copies_in_flight(copies, numbered):
    first = torch.stack([numbered[i][0] for i in range(8)])
    for number in range(50):
        long_kernel(number)
        iterator = iter(native_loader(numbered, batch_size=8, device="cuda", num_workers=1))
        images, _ = next(iterator)
        del iterator
        assert torch.equal(images.cpu(), first)


def test_no_memory_is_left(copies, numbered):
    loader = native_loader(numbered, batch_size=8, device="cuda")
    list(loader)
    gc.collect()
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    for _ in range(3):
        list(loader)
        next(iter(loader))
    gc.collect()
    torch.cuda.synchronize()
    assert torch.cuda.memory_allocated() == before


def test_several_gpus(copies, numbered):
    n_devices = torch.cuda.device_count()
    if n_devices < 2:
        helpers.skip("there is one GPU")
    loaders = [native_loader(numbered, batch_size=8, device=f"cuda:{i}") for i in range(n_devices)]
    for batches in zip(*loaders, strict=True):
        for i, (images, targets) in enumerate(batches):
            assert images.device == targets.device == torch.device("cuda", i)
            assert torch.equal(images.cpu(), batches[0][0].cpu())


def test_a_wrong_device_number():
    with pytest.raises(RuntimeError, match="there is only cuda:0"):
        feedmill.DataLoader([1], device="cuda:99")


@pytest.mark.parametrize("native_path", [True, False])
def test_next_raises_while_a_cuda_graph_is_captured(copies, numbered, native_path):
    path = "require" if native_path else "off"
    loader = feedmill.DataLoader(numbered, batch_size=8, device="cuda", native=path)
    iterator = iter(loader)
    got = [next(iterator)[1].tolist()]
    x = torch.ones(4, device="cuda")
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = x + 1
        with pytest.raises(RuntimeError, match="while a CUDA graph is being captured"):
            next(iterator)
    graph.replay()
    assert y.tolist() == [2, 2, 2, 2]
    got += [targets.tolist() for _, targets in iterator]
    assert got == [list(range(i, i + 8)) for i in range(0, 40, 8)]


# ---- GPU stalls ----------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{}, {"pin_memory": True}, {"device": "cuda"},
                                     {"native": "off", "device": "cuda"}, {"native": "off"}])
def test_every_step_is_measured(numbered, options):
    torch.zeros(1, device="cuda")
    loader = feedmill.DataLoader(numbered, batch_size=8, **options)
    begin_ns = time.monotonic_ns()
    for _ in range(3):
        for images, _ in loader:
            torch.cuda._sleep(1_000_000)
    torch.cuda.synchronize()
    elapsed_ns = time.monotonic_ns() - begin_ns
    stats = loader.stats()
    assert (stats.gpu.steps, stats.gpu.skipped) == (15, 0)
    assert stats.steps["gpu_known"].all()
    assert 0 <= stats.gpu.copy_ns <= stats.gpu.stall_ns
    # Times on one stream do not overlap; the events' clock has steps of half a microsecond.
    assert stats.gpu.stall_ns <= 1.01 * elapsed_ns


def test_watching_does_not_break_a_capture():
    torch.zeros(1, device="cuda")
    watched = feedmill.watch(range(100))
    iterator = iter(watched)
    for _ in range(3):
        next(iterator)
    x = torch.ones(4, device="cuda")
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = x + 1
        next(iterator)
        y = y * next(iterator)
    graph.replay()
    assert y.tolist() == [8, 8, 8, 8]
    next(iterator)
    torch.cuda.synchronize()
    assert (watched.stats().gpu.steps, watched.stats().gpu.skipped) == (4, 2)


def test_memory_of_slots_is_pinned_once(monkeypatch, numbered):
    allocated, allocate = [], module.allocate_pinned

    def counted(n_bytes):
        address, owner = allocate(n_bytes)
        allocated.append(address)
        return address, owner

    monkeypatch.setattr(module, "allocate_pinned", counted)
    loader = native_loader(numbered, batch_size=8, pin_memory=True)
    for _ in range(20):
        for images, _ in loader:
            with contextlib.suppress(RuntimeError):
                images.to("cuda", non_blocking=True)
    # torch's caching allocator gives the same blocks again.
    assert len(set(allocated)) <= 4 * loader.stats().memory.n_slots
