"""pin_memory=True. Without an accelerator, ordinary memory stands for page-locked memory."""

import gc
import weakref

import helpers
import numpy as np
import pytest
import torch
from feedmill.iterators import collating
from feedmill.iterators import native as module
from helpers import compose, native_loader
from torchvision import transforms as T


@pytest.fixture
def pinned(monkeypatch):
    """Makes torch pin without an accelerator. Returns two lists: the slots allocated so far, as
    (address, weak reference to the memory), and the tensors passed to torch's own pinning."""
    allocations = []

    def allocate(n_bytes):
        memory = np.full(n_bytes + 64, 255, np.uint8)
        start = -memory.ctypes.data % 64
        owner = torch.from_numpy(memory)[start : start + n_bytes]
        allocations.append((owner.data_ptr(), weakref.ref(memory)))
        return owner.data_ptr(), owner

    monkeypatch.setattr(module, "allocate_pinned", allocate)
    original = module.BaseDataLoaderIter.__init__

    def init(self, loader):
        original(self, loader)
        self._pin_memory, self._pin_memory_device = loader.pin_memory, None

    monkeypatch.setattr(module.BaseDataLoaderIter, "__init__", init)
    pins = []
    monkeypatch.setattr(collating, "pin_memory",
                        lambda data, device=None: pins.append(data) or data)
    return allocations, pins


pytestmark = pytest.mark.filterwarnings("ignore:'pin_memory' argument is set as true")


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("steps", [(T.PILToTensor(),), (T.ToTensor(),)])
def test_batches_and_memory(pinned, small_images, num_workers, steps):
    allocations, pins = pinned
    dataset = helpers.numbered_folder(small_images, compose(T.Resize((8, 8)), *steps))
    loader = native_loader(dataset, batch_size=16, num_workers=num_workers, pin_memory=True)
    wanted = torch.stack([dataset[i][0] for i in range(40)])
    batches = list(loader)
    assert torch.equal(torch.cat([images for images, _ in batches]), wanted)
    assert [len(images) for images, _ in batches] == [16, 16, 8]
    # Each batch of images is the memory of a slot, without a copy; targets are pinned by torch.
    addresses = {address for address, memory in allocations if memory() is not None}
    assert all(images.data_ptr() in addresses for images, _ in batches)
    assert [data.tolist() for data in pins] == [targets.tolist() for _, targets in batches]
    stats = loader.stats()
    assert stats.memory.copied_batches == 0
    assert len(allocations) == stats.memory.n_slots + 3
    del batches, loader
    gc.collect()
    assert not any(memory() is not None for _, memory in allocations)


def test_without_batching(pinned, numbered):
    loader = native_loader(numbered, batch_size=None, pin_memory=True)
    for index, (image, target) in enumerate(loader):
        assert torch.equal(image, numbered[index][0]) and target == index
    assert index == 39


def test_a_batch_in_parts_is_pinned_as_a_whole(pinned, numbered):
    _, pins = pinned
    batches = [[0], [1, 2, 3]]
    loader = native_loader(numbered, batch_sampler=batches, pin_memory=True)
    (_, _), (images, _) = list(loader)
    assert torch.equal(images, torch.stack([numbered[i][0] for i in (1, 2, 3)]))
    assert any(data is images for data in pins)


def test_an_allocator_that_fails(pinned, numbered, monkeypatch):
    loader = native_loader(numbered, batch_size=4, pin_memory=True, num_workers=1)
    monkeypatch.setattr(module, "allocate_pinned", lambda n_bytes: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        iter(loader)
    calls = []

    def one_fails(n_bytes):
        calls.append(n_bytes)
        if len(calls) == 22:  # the fourth batch's; the first 18 are the slots at open
            raise MemoryError("no pinned memory left")
        owner = torch.empty(n_bytes, dtype=torch.uint8)
        return owner.data_ptr(), owner

    monkeypatch.setattr(module, "allocate_pinned", one_fails)
    got = []
    loaded = iter(loader)
    for _ in range(12):
        got.append(helpers.take(loaded))
    errors = [one for one in got if isinstance(one, tuple)]
    assert errors == [(MemoryError, "no pinned memory left")]
    assert [one for one in got if isinstance(one, list)] == [
        list(range(i, i + 4)) for i in range(0, 40, 4)
    ]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no accelerator")
def test_with_an_accelerator(numbered):
    for images, targets in native_loader(numbered, batch_size=8, pin_memory=True):
        assert images.is_pinned() and targets.is_pinned()
        assert torch.equal(images.to("cuda", non_blocking=True).cpu(), images)
