"""Random draws: their distributions equal torchvision's, and they depend on seed, epoch, index and
repetition alone."""

import helpers
import numpy as np
import pytest
import torch
from feedmill._ops import native
from feedmill.planner.plan import (
    CENTER_CROP,
    RANDOM_HORIZONTAL_FLIP,
    RANDOM_RESIZED_CROP,
    Op,
)
from helpers import assert_same_image, compose, native_loader
from PIL import Image
from torch.utils.data import DistributedSampler, WeightedRandomSampler
from torchvision import transforms as T

CROP = compose(T.RandomResizedCrop(16), T.RandomHorizontalFlip(), T.PILToTensor())
N_DRAWS = 4000


@pytest.fixture
def dataset(small_images):
    return helpers.numbered_folder(small_images, CROP)


def images_of(loader):
    """All images of an epoch by index, and the targets in order."""
    batches = list(loader)
    targets = torch.cat([targets for _, targets in batches])
    return torch.cat([images for images, _ in batches]), targets


# ---- distributions -------------------------------------------------------------------------------


def native_crops(width, height, scale, ratio):
    crop = Op(RANDOM_RESIZED_CROP, 8, 8, 0, *scale, *ratio)
    loader = native.Loader(ops=[crop, Op(RANDOM_HORIZONTAL_FLIP, p=0.3)], dtype="uint8",
                           n_samples=N_DRAWS, batch_size=1, n_threads=1)
    draws = [loader.draws(99, 0, index, 0, width, height) for index in range(N_DRAWS)]
    loader.close()
    boxes = np.array([one[0][1:5] for one in draws], float)
    return boxes, np.array([one[1][5] for one in draws])


def torchvision_crops(width, height, scale, ratio):
    torch.manual_seed(99)
    image = Image.new("RGB", (width, height))
    crops = [T.RandomResizedCrop.get_params(image, scale, ratio) for _ in range(N_DRAWS)]
    return np.array(crops, float)


def ks_distance(one, two):
    """The Kolmogorov-Smirnov statistic: the largest distance of two distribution functions."""
    values = np.union1d(one, two)
    rank = lambda data: np.searchsorted(np.sort(data), values, side="right") / len(data)
    return np.abs(rank(one) - rank(two)).max()


@pytest.mark.parametrize(
    ("width", "height", "scale", "ratio"),
    [
        (500, 375, (0.08, 1.0), (3 / 4, 4 / 3)),
        (64, 64, (0.5, 0.6), (0.5, 2.0)),
        (300, 20, (0.08, 1.0), (3 / 4, 4 / 3)),  # often ten failed tries: the central crop
        (7, 9, (0.08, 1.0), (3 / 4, 4 / 3)),
        (1, 1, (0.08, 1.0), (3 / 4, 4 / 3)),
        (100, 100, (0.3, 0.3), (1.0, 1.0)),
    ],
)
def test_crops_have_torchvisions_distribution(width, height, scale, ratio):
    ours, flips = native_crops(width, height, scale, ratio)
    theirs = torchvision_crops(width, height, scale, ratio)
    # 1.95 sqrt(2 / n) is the critical value for 0.1%; the seeds are fixed.
    limit = 1.95 * np.sqrt(2 / N_DRAWS)
    for column, name in enumerate(("top", "left", "height", "width")):
        assert ks_distance(ours[:, column], theirs[:, column]) < limit, name
    for what in (lambda b: b[:, 2] * b[:, 3], lambda b: b[:, 3] / b[:, 2], lambda b: b[:, 0] + b[:, 1]):
        assert ks_distance(what(ours), what(theirs)) < limit
    assert abs(flips.mean() - 0.3) < 4 * np.sqrt(0.21 / N_DRAWS)
    if width > 8 and height > 8 and scale != (0.3, 0.3):
        # Flip and crop use independent random numbers.
        assert abs(np.corrcoef(flips, ours[:, 3])[0, 1]) < 4 / np.sqrt(N_DRAWS)


def test_adjacent_seeds_epochs_and_indices_are_uncorrelated():
    loader = native.Loader(ops=[Op(RANDOM_HORIZONTAL_FLIP, p=0.5), Op(CENTER_CROP, 8, 8)],
                           dtype="uint8", n_samples=64, batch_size=1, n_threads=1)
    flips = np.array([[[loader.draws(seed, epoch, index, 0, 9, 9)[0][5] for index in range(64)]
                       for epoch in range(8)] for seed in range(8)], float)
    loader.close()
    flips -= 0.5
    n = flips.size
    for axis in range(3):
        for shift in (1, 2, 3):
            correlation = 4 * (flips * np.roll(flips, shift, axis)).mean()
            assert abs(correlation) < 4 / np.sqrt(n)


# ---- what the draws depend on --------------------------------------------------------------------


def test_seed_none_follows_torchs_seed(dataset):
    runs = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        loader = native_loader(dataset, batch_size=8, num_workers=2)
        runs.append([images_of(loader)[0] for _ in range(2)])
    assert torch.equal(runs[0][0], runs[1][0]) and torch.equal(runs[0][1], runs[1][1])
    assert not torch.equal(runs[0][0], runs[0][1])
    assert not torch.equal(runs[0][0], runs[2][0])


def test_persistent_workers_have_new_draws_in_every_epoch(dataset):
    loader = native_loader(dataset, batch_size=8, num_workers=1, persistent_workers=True)
    first, second = images_of(loader)[0], images_of(loader)[0]
    assert not torch.equal(first, second)
    for epoch, images in enumerate((first, second)):
        assert_same_image(images[3], helpers.reference(loader, 3, epoch), f"epoch {epoch}")


def test_an_int_seed_alone_decides_the_draws(dataset):
    """The order, the batch size, torch's seed and the first epoch do not matter."""
    loader = native_loader(dataset, seed=5, batch_size=8)
    epochs = [images_of(loader)[0] for _ in range(3)]
    other = native_loader(dataset, seed=5, batch_size=3, shuffle=True, num_workers=2)
    other.set_epoch(1)
    for epoch in (1, 2):
        images, targets = images_of(other)
        assert torch.equal(images[targets.argsort()], epochs[epoch])
    assert not torch.equal(epochs[0], epochs[1])
    assert not torch.equal(images_of(native_loader(dataset, seed=6, batch_size=8))[0], epochs[0])
    # Draws of epochs that have not run are known, too.
    assert_same_image(other.fetch(7, 0)[0], epochs[0][7], "fetch")


@pytest.mark.parametrize("seed", [0, -1, 2**64 - 1, 2**70 + 3])
def test_any_int_is_a_seed(dataset, seed):
    loader = native_loader(dataset, seed=seed, batch_size=8)
    assert torch.equal(images_of(loader)[0][2], loader.fetch(2, 0)[0])


def test_the_samplers_epoch_changes_the_draws(dataset):
    sampler = DistributedSampler(dataset, num_replicas=2, rank=0, shuffle=False)
    loader = native_loader(dataset, seed=1, sampler=sampler, batch_size=4)
    sampler.set_epoch(4)
    first = images_of(loader)[0]
    again = images_of(loader)[0]
    assert torch.equal(first, again)  # set_epoch() was not called; as with torch
    loader.set_epoch(9)
    assert sampler.epoch == 9
    assert torch.equal(images_of(loader)[0][1], loader.fetch(2, 9)[0])
    assert torch.equal(first[1], loader.fetch(2, 4)[0])
    assert "sampler's `epoch`" in loader.explain()


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_repeated_index_gets_other_crops(dataset, num_workers):
    sampler = WeightedRandomSampler([1.0] + [1e-9] * 39, 30, generator=torch.Generator())
    loader = native_loader(dataset, sampler=sampler, batch_size=7, num_workers=num_workers)
    images, targets = images_of(loader)
    assert (targets == 0).sum() > 20
    uses = {}
    for image, target in zip(images, targets.tolist()):
        occurrence = uses.setdefault(target, 0)
        uses[target] += 1
        assert_same_image(image, helpers.reference(loader, target, 0, occurrence), "reference")
        assert_same_image(image, loader.fetch(target, 0, occurrence)[0], "fetch")
    zeros = images[targets == 0]
    assert len({image.numpy().tobytes() for image in zeros}) > len(zeros) * 0.9


def test_the_rank_is_mixed_in_without_a_distributed_sampler(dataset, monkeypatch):
    keys = []
    for rank in range(3):
        monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
        monkeypatch.setattr(torch.distributed, "get_rank", lambda rank=rank: rank)
        monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 3)
        loader = native_loader(dataset, seed=1, batch_size=8)
        keys.append(images_of(loader)[0])
        assert ("is mixed in" in loader.explain()) == (rank > 0)
        assert torch.equal(loader.fetch(5, 0)[0], keys[-1][5])
        sampler = DistributedSampler(dataset, 3, rank)
        assert "mixed in" not in native_loader(dataset, seed=1, sampler=sampler).explain()
    assert not torch.equal(keys[0], keys[1]) and not torch.equal(keys[1], keys[2])


# ---- diagnostics ---------------------------------------------------------------------------------


def test_draws_name_the_transforms(small_images):
    transform = compose(T.RandomHorizontalFlip(1.0), T.Resize(20), T.CenterCrop(16), T.ToTensor())
    loader = native_loader(helpers.numbered_folder(small_images, transform), seed=0)
    assert loader.draws(0, 0) == [  # 20 x 60 pixels
        ("RandomHorizontalFlip", {"flip": True}),
        ("Resize", {"height": 60, "width": 20}),
        ("CenterCrop", {"top": 22, "left": 2, "height": 16, "width": 16}),
    ]
    assert loader.draws(-40, 0) == loader.draws(0, 0)


def test_without_a_seed_draws_of_future_epochs_raise(dataset):
    loader = native_loader(dataset, batch_size=8)
    for call in (loader.draws, loader.fetch):
        with pytest.raises(ValueError, match="epoch 0 has not run .*none.*seed"):
            call(0, 0)
    next(iter(loader))
    loader.draws(0, 0)
    with pytest.raises(ValueError, match=r"epoch 1 has not run .*known: 0\)"):
        loader.draws(0, 1)


@pytest.mark.parametrize("arguments", [(40, 0), (-41, 0), ("a", 0), (0, -1), (0, 0, -1), (0, 0, 1.0)])
def test_bad_arguments(dataset, arguments):
    loader = native_loader(dataset, seed=1)
    for call in (loader.draws, loader.fetch):
        with pytest.raises(ValueError, match="must be an int|the dataset has"):
            call(*arguments)
    with pytest.raises(ValueError, match="must be an int"):
        loader.set_epoch(-1)


def test_fetch_uses_the_epochs_own_transform(dataset):
    """The transform changes between epochs, as for progressive resizing."""
    loader = native_loader(dataset, seed=1, batch_size=40)
    first = images_of(loader)[0]
    dataset.transform = compose(T.RandomResizedCrop(24), T.ToTensor())
    second = images_of(loader)[0]
    assert first.shape[1:] == (3, 16, 16) and second.shape[1:] == (3, 24, 24)
    assert_same_image(loader.fetch(3, 0)[0], first[3], "epoch 0")
    assert_same_image(loader.fetch(3, 1)[0], second[3], "epoch 1")
    assert len(loader.draws(3, 0)) == 2 and len(loader.draws(3, 1)) == 1


def test_the_error_lists_the_epochs_that_ran(dataset):
    loader = native_loader(dataset, batch_size=8)
    for number in (7, 8, 3, 9):
        loader.set_epoch(number)
        next(iter(loader))
    with pytest.raises(ValueError, match=r"epoch 0 has not run .*known: 3, 7 to 9\)"):
        loader.draws(0, 0)
    for number in (3, 7, 8, 9):
        loader.draws(0, number)


@pytest.mark.slow
def test_a_thousand_epochs_are_remembered_and_share_equal_plans(dataset):
    loader = native_loader(dataset, batch_size=8)
    for _ in range(1010):
        iter(loader)
    assert len(loader._feedmill.epochs._kept) == 1000
    assert len({id(epoch.source) for epoch in loader._feedmill.epochs._kept.values()}) == 1
    with pytest.raises(ValueError, match=r"epoch 9 .*known: 10 to 1009\)"):
        loader.draws(0, 9)
