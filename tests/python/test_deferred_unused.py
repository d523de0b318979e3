"""Without workers, decoding is seldom put off for batches that have no use of it."""

import contextlib

import feedmill
import helpers
import pytest
import torch
from feedmill.deferred import patches
from PIL import Image
from torch.utils.data import DataLoader as TorchDataLoader
from torch.utils.data import Dataset
from torchvision import transforms

pytestmark = pytest.mark.skipif(bool(patches.why_not()), reason=patches.why_not())
N_WITHOUT = 40


class LateImages(Dataset):
    """Begins with samples that open no images."""

    def __init__(self, paths):
        self.paths = [str(one) for one in paths]
        self.transform = transforms.Compose([transforms.Resize(24), transforms.ToTensor()])

    def __len__(self):
        return N_WITHOUT + len(self.paths)

    def __getitem__(self, index):
        if index < N_WITHOUT:
            return torch.full((3, 24, 24), float(index))
        with Image.open(self.paths[index - N_WITHOUT]) as file:
            return self.transform(file.convert("RGB"))


@pytest.fixture(scope="module")
def paths(tmp_path_factory):
    return helpers.save_jpegs(tmp_path_factory.mktemp("photos"), 40, 60, 48)


@pytest.fixture
def n_deferring(monkeypatch):
    """The number of blocks in which decoding was put off."""
    calls = []
    real = patches.deferring

    @contextlib.contextmanager
    def counted(*arguments):
        calls.append(arguments)
        with real(*arguments):
            yield

    monkeypatch.setattr(patches, "deferring", counted)
    return calls


def test_batches_without_images_are_made_by_torch_alone(paths, n_deferring):
    dataset = LateImages(paths)
    list(feedmill.DataLoader(torch.utils.data.Subset(dataset, range(N_WITHOUT)), native="off"))
    assert 0 < len(n_deferring) < N_WITHOUT // 4


def test_short_epochs_do_not_try_again(paths, n_deferring):
    subset = torch.utils.data.Subset(LateImages(paths), range(2))
    loader = feedmill.DataLoader(subset, native="off")
    for _ in range(N_WITHOUT // 2):
        list(loader)
    assert 0 < len(n_deferring) < N_WITHOUT // 4


def test_images_that_come_later_are_deferred(paths):
    dataset = LateImages(paths)
    loader = feedmill.DataLoader(dataset, native="off")
    batches = list(loader)
    for got, wanted in zip(batches, TorchDataLoader(dataset), strict=True):
        assert torch.equal(got, wanted)
    assert len(paths) - 16 < loader.stats().deferred.images <= len(paths)


def test_each_batch_with_images_is_deferred(paths, n_deferring):
    dataset = torch.utils.data.Subset(LateImages(paths), range(N_WITHOUT, N_WITHOUT + len(paths)))
    loader = feedmill.DataLoader(dataset, native="off")
    list(loader)
    assert loader.stats().deferred.images == len(paths) == len(n_deferring)


def test_each_batch_whose_images_are_only_resized_is_deferred(paths, n_deferring, tmp_path):
    """Files that Pillow decodes: feedmill still resizes them."""
    files = [tmp_path / f"{i}.bmp" for i in range(20)]
    for one in files:
        Image.new("RGB", (60, 48), (5, 6, 7)).save(one)
    dataset = torch.utils.data.Subset(LateImages(files), range(N_WITHOUT, N_WITHOUT + len(files)))
    list(feedmill.DataLoader(dataset, native="off"))
    assert len(n_deferring) == len(files)


def test_verify_tries_each_batch(paths, n_deferring):
    dataset = torch.utils.data.Subset(LateImages(paths), range(N_WITHOUT))
    list(feedmill.DataLoader(dataset, native="off", deferred="verify"))
    assert len(n_deferring) >= N_WITHOUT
