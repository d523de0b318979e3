"""feedmill.DataLoader on torch's path, with torch's options for how batches reach the main process:
the batches equal torch's, and do not change while they are held."""

import os
import subprocess
import sys
import time
import warnings
from pathlib import Path

import conftest  # noqa: F401  makes torchvision importable in spawned workers
import feedmill
import helpers
import numpy as np
import pytest
import torch
from cpus import needs_handover
from feedmill.deferred import patches
from PIL import Image
from torch.utils.data import DataLoader as TorchDataLoader
from torch.utils.data import Dataset, Subset
from torchvision import transforms, tv_tensors

pytestmark = [
    needs_handover,
    pytest.mark.skipif(bool(patches.why_not()), reason=patches.why_not()),
]


class Photos(Dataset):
    """(image as ``how`` makes it, index)."""

    def __init__(self, paths, how="tensor"):
        self.paths, self.how = [str(one) for one in paths], how
        self.crop = transforms.RandomResizedCrop(80)
        self.chain = transforms.Compose([
            self.crop, transforms.RandomHorizontalFlip(), transforms.ToTensor(),
            transforms.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
        ])

    def __len__(self):
        return len(self.paths)

    def __getitem__(self, index):
        with Image.open(self.paths[index]) as file:
            image = file.convert("RGB")
        return getattr(self, self.how)(image), index

    def tensor(self, image):
        return self.chain(image)

    def views(self, image):
        return [self.chain(image) for _ in range(3)]

    def array(self, image):
        return np.array(self.crop(image))

    def of_array(self, image):
        return torch.from_numpy(np.array(self.crop(image)).transpose(2, 0, 1))

    def named(self, image):
        return {"pixels": self.chain(image), "size": image.size}

    def tv_tensor(self, image):
        return tv_tensors.Image(self.crop(image))


HOW = [name for name in vars(Photos) if not name.startswith("_")]


class Slow(Photos):
    def __getitem__(self, index):
        if index == 5:
            time.sleep(4)
        return super().__getitem__(index)


@pytest.fixture(scope="module")
def paths(tmp_path_factory):
    return helpers.save_jpegs(tmp_path_factory.mktemp("photos"), 24, 160, 120)


def flat(value):
    if isinstance(value, dict):
        return [leaf for one in value.values() for leaf in flat(one)]
    return [leaf for one in value for leaf in flat(one)] if isinstance(value, list) else [value]


def assert_same(one, other):
    assert type(one) is type(other)
    pairs = list(zip(flat(one), flat(other), strict=True))
    for ours, theirs in pairs:
        assert type(ours) is type(theirs) and ours.dtype is theirs.dtype
        assert ours.stride() == theirs.stride() and torch.equal(ours, theirs)
        assert ours.is_shared() == theirs.is_shared() and ours.is_pinned() == theirs.is_pinned()
        assert ours.untyped_storage().nbytes() == theirs.untyped_storage().nbytes()


def epochs(kind, dataset, n=1, **options):
    torch.manual_seed(5)
    options = {"batch_size": 4, "num_workers": 2, **options}
    loader = kind(dataset, **options)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        batches = [batch for _ in range(n) for batch in loader]
    texts = {str(one.message) for one in seen if "pin" in str(one.message)}
    return loader, batches, texts


def check(dataset, **options):
    _, wanted, texts = epochs(TorchDataLoader, dataset, **options)
    loader, got, own_texts = epochs(feedmill.DataLoader, dataset, **options)
    assert len(got) == len(wanted) > 0 and own_texts == texts
    for one, other in zip(got, wanted, strict=True):
        assert_same(one, other)
    assert loader.stats().path == "torch" and loader.stats().deferred.images
    return got


@pytest.mark.parametrize("how", helpers.slow_but_for(["tensor", "views"], HOW))
def test_batches_that_are_kept(paths, how):
    # All batches of three epochs, in new worker processes and in the same ones.
    check(Photos(paths, how), n=3, shuffle=True)
    check(Photos(paths, how), n=3, persistent_workers=True, drop_last=True, batch_size=5)


@pytest.mark.parametrize("how", ["tensor", "views", "array"])
@pytest.mark.parametrize("persistent", [False, True])
def test_pinned_batches(paths, how, persistent):
    # Without a GPU torch warns, and does not pin; its thread receives the batches all the same.
    check(Photos(paths, how), n=2, pin_memory=True, persistent_workers=persistent)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_workers_that_are_not_forked(paths, method):
    check(Photos(paths, "views"), multiprocessing_context=method)


@pytest.mark.parametrize("options", [
    {"prefetch_factor": 1}, {"prefetch_factor": 7}, {"timeout": 100}, {"batch_size": 30},
    {"batch_size": 1}, {"num_workers": 5},
])
def test_options(paths, options):
    check(Photos(paths), **options)


@pytest.mark.slow
@pytest.mark.parametrize("pin", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_timeout_is_torchs(paths, pin):
    texts = []
    for kind in (TorchDataLoader, feedmill.DataLoader):
        with pytest.raises(RuntimeError, match="timed out") as caught:
            epochs(kind, Slow(paths), num_workers=1, timeout=1, pin_memory=pin)
        texts.append(str(caught.value))
    assert texts[0] == texts[1]


def test_subsets(paths):
    check(Subset(Photos(paths), list(range(20, 3, -1))))


def test_changes_in_place_stay_with_the_batch(paths):
    torch.manual_seed(5)
    held = []
    for images, labels in feedmill.DataLoader(Photos(paths * 4), batch_size=4, num_workers=2):
        images.fill_(float(labels[0]))
        held.append((images[1:], int(labels[0])))
    assert len(held) == 24
    for images, number in held:
        assert (images == number).all()


SCRIPT = """
import sys
sys.path[:0] = {path!r}
from test_deferred_handover import *
loader = feedmill.DataLoader(Photos({paths!r} * 4), batch_size=8, num_workers=2)
held = [batch for _ in range(2) for batch in loader]
assert loader.stats().deferred.images == 2 * 4 * {n}
print(sum(int(labels.sum()) for _, labels in held), all(one.is_shared() for one, _ in held))
"""


@pytest.mark.slow
def test_a_tiny_dev_shm(paths):
    mount = "mount -t tmpfs -o size=1m none /dev/shm"
    command = ["unshare", "-rm", "sh", "-c", f'{mount} && exec "$@"', "sh"]
    if subprocess.run([*command, "true"], capture_output=True, check=False).returncode:
        pytest.skip("mounts are not permitted")
    path = [str(Path(__file__).parent), *sys.path]
    script = SCRIPT.format(path=path, paths=[str(one) for one in paths], n=len(paths))
    done = subprocess.run([*command, sys.executable, "-W", "ignore", "-c", script], timeout=300,
                          capture_output=True, text=True, check=False, env=dict(os.environ))
    assert done.stdout == f"{2 * 96 * 95 // 2} True\n", done.stderr
