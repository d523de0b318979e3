"""The option on_error= for samples that can't be loaded, and how stats() lists them."""

from types import SimpleNamespace

import feedmill
import helpers
import pytest
import torch
from feedmill.iterators.bad_samples import _philox, pool_of, replacements
from helpers import compose, native_loader
from torch.utils.data import DistributedSampler, SubsetRandomSampler
from torchvision import transforms as T

BAD = (3, 7, 12)


@pytest.fixture
def spoilt(tmp_path):
    """A folder of twenty files, three of them no images. Targets are the indices."""
    for i in range(20):
        path = helpers.save_jpeg(tmp_path / "c" / f"{i:02}.jpg", 30 + i, 40, seed=i)
        if i in BAD:
            path.write_text("no image")
    return helpers.numbered_folder(tmp_path)


def epoch_of(dataset, **options):
    loader = native_loader(dataset, batch_size=4, seed=1, **options)
    return loader, list(loader)


def image_of(loader, index):
    return loader.fetch(index, 0)[0]


def test_zero_gives_a_black_image_with_the_samples_target(spoilt):
    loader, batches = epoch_of(spoilt, on_error="zero")
    targets = torch.cat([targets for _, targets in batches]).tolist()
    images = torch.cat([images for images, _ in batches])
    assert targets == list(range(20))
    for index, image in enumerate(images):
        if index in BAD:
            assert not image.any()
        else:
            assert torch.equal(image, image_of(loader, index))
    errors = loader.stats().sample_errors
    assert [one.index for one in errors] == list(BAD)
    assert all(one.outcome == "zeroed" for one in errors)
    assert errors[0].path.endswith("03.jpg") and "UnidentifiedImageError" in errors[0].cause
    assert loader.stats().errors == 0
    assert "3 samples could not be loaded, for example" in loader.report()


def test_replace_gives_another_sample_with_its_target(spoilt):
    loader, batches = epoch_of(spoilt, on_error="replace")
    targets = torch.cat([targets for _, targets in batches]).tolist()
    images = torch.cat([images for images, _ in batches])
    for index, (target, image) in enumerate(zip(targets, images)):
        assert (target == index) == (index not in BAD)
        assert target not in BAD
        assert torch.equal(image, image_of(loader, target))
    outcomes = [one.outcome for one in loader.stats().sample_errors]
    assert outcomes == [f"replaced by index {targets[index]}" for index in BAD]
    # Replacements do not depend on threads and batch size.
    again, batches = epoch_of(spoilt, on_error="replace", threads=1, num_workers=2)
    assert torch.cat([targets for _, targets in batches]).tolist() == targets
    other = native_loader(spoilt, batch_size=4, seed=2, on_error="replace")
    assert [t for _, some in other for t in some.tolist()] != targets


def test_replacements_repeat_their_random_draws(spoilt):
    spoilt.transform = compose(T.RandomResizedCrop(8), T.RandomHorizontalFlip(), T.ToTensor())
    runs = [torch.cat([images for images, _ in epoch_of(spoilt, on_error="replace")[1]])
            for _ in range(2)]
    assert torch.equal(*runs) and all(runs[0][index].any() for index in BAD)


def test_skip_makes_shorter_batches(spoilt):
    loader, batches = epoch_of(spoilt, on_error="skip", memory_format=torch.channels_last)
    assert [len(targets) for _, targets in batches] == [3, 3, 4, 3, 4]
    for images, targets in batches:
        assert len(images) == len(targets)
        assert images.is_contiguous(memory_format=torch.channels_last)
        for image, target in zip(images, targets.tolist()):
            assert target not in BAD and torch.equal(image, image_of(loader, target))
    # A batch of bad samples only is left out.
    few = native_loader(torch.utils.data.Subset(spoilt, BAD), batch_size=3, on_error="skip")
    with pytest.raises(helpers.Image.UnidentifiedImageError, match="nothing to put in its place"):
        list(few)


def test_raise_lists_bad_samples_and_continues(spoilt):
    loader = native_loader(spoilt, batch_size=4, seed=1)
    iterator = iter(loader)
    got = [helpers.take(iterator) for _ in range(5)]
    assert sum(isinstance(one, tuple) for one in got) == 3
    assert loader.stats().errors == 3
    assert {one.outcome for one in loader.stats().sample_errors} == {"raised"}


def test_max_errors_limits_replacements(spoilt):
    loader = native_loader(spoilt, batch_size=4, on_error="zero", max_errors=2)
    iterator = iter(loader)
    for _ in range(3):
        next(iterator)
    with pytest.raises(helpers.Image.UnidentifiedImageError, match="more than max_errors=2"):
        next(iterator)
    assert next(iterator)[1].tolist() == [16, 17, 18, 19]
    outcomes = [one.outcome for one in loader.stats().sample_errors]
    assert outcomes == ["zeroed", "zeroed", "raised"]
    before = loader.stats()
    with pytest.raises(helpers.Image.UnidentifiedImageError):
        list(loader)
    assert len((loader.stats() - before).sample_errors) == 3


def test_the_difference_of_two_stats_when_errors_were_discarded(spoilt):
    loader = native_loader(spoilt, batch_size=4, on_error="zero")
    errors = loader._feedmill.sample_errors
    item = SimpleNamespace(position=1, name="a")  # the same bad sample each time

    def add(n):
        before = loader.stats()
        for i in range(n):
            errors.add(item, f"cause {i}", "zeroed")
        return loader.stats() - before

    for n in (3, 0, 998, 5, 1000, 7, 0, 2500):
        changes = add(n)
        assert changes.bad_samples == n
        kept = [one.cause for one in changes.sample_errors]
        assert kept == [f"cause {i}" for i in range(max(0, n - 1000), n)]
    stats = loader.stats()
    assert (stats.bad_samples, len(stats.sample_errors)) == (4513, 1000)
    assert len((stats - stats).sample_errors) == 0
    list(loader)
    assert [one.index for one in (loader.stats() - stats).sample_errors] == list(BAD)
    assert "4,516 samples could not be loaded, for example" in loader.report()


def test_a_collate_fn_gets_the_remaining_samples(spoilt):
    loader = native_loader(spoilt, batch_size=4, on_error="skip", collate_fn=list)
    assert [len(batch) for batch in loader] == [3, 3, 4, 3, 4]


def test_refusals(spoilt):
    make = feedmill.DataLoader
    with pytest.raises(ValueError, match="on_error is 'ignore'; it must be one of 'raise'"):
        make(spoilt, on_error="ignore")
    with pytest.raises(ValueError, match="max_errors is -1"):
        make(spoilt, max_errors=-1)
    sampler = DistributedSampler(spoilt, 2, 0)
    with pytest.raises(ValueError, match="under a DistributedSampler.*use 'replace' or 'zero'"):
        make(spoilt, sampler=sampler, on_error="skip")
    with pytest.raises(ValueError, match="batch_size is None"):
        make(spoilt, batch_size=None, on_error="skip")
    with pytest.raises(ValueError, match="native='verify'"):
        make(spoilt, native="verify", on_error="zero")
    with pytest.raises(RuntimeError, match="on_error='zero', but the native path can't be taken"):
        make([1, 2, 3], on_error="zero")
    loader = make(spoilt, on_error="zero")
    assert "on_error='zero'" in loader.explain()
    loader.native = "off"
    with pytest.raises(RuntimeError, match="on_error='zero'"):
        iter(loader)


def test_replacements_come_from_this_ranks_epoch(spoilt):
    def pool(**options):
        return pool_of(native_loader(spoilt, batch_size=2, **options), len(spoilt))

    assert pool() == pool(shuffle=True) == range(20)
    assert pool(sampler=SubsetRandomSampler([4, 5])) == [4, 5]
    for rank in range(2):
        sampler = DistributedSampler(spoilt, 2, rank)
        sampler.set_epoch(3)
        assert pool(sampler=sampler) == list(sampler)
    assert pool(sampler=[1, 2, 3]) is None
    # With a custom sampler, replacements come from the batch.
    loader = native_loader(spoilt, batch_size=2, sampler=[3, 9, 1, 12], on_error="replace")
    assert [targets.tolist() for _, targets in loader] == [[9, 9], [1, 1]]


def test_philox():
    """Known results from the authors' implementation (Random123)."""
    assert _philox(0, (0, 0, 0, 0)) == (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)
    ones = (1 << 32) - 1
    assert _philox((1 << 64) - 1, (ones,) * 4) == (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)
    drawn = list(replacements(5, 1, 3, 0, range(1000)))
    assert drawn == list(replacements(5, 1, 3, 0, range(1000))) and len(set(drawn)) > 10
    assert all(0 <= one < 1000 and one != 3 for one in drawn)
