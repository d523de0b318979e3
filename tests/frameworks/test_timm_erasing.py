"""timm's RandomErasing with random numbers and several boxes on the native path."""

import random
import statistics

import feedmill
import frameworks
import helpers
import numpy as np
import pytest
import torch
from torchvision import transforms
from torchvision.datasets import ImageFolder

frameworks.need("timm")

import timm.data.random_erasing  # noqa: E402
from feedmill._ops import native  # noqa: E402
from timm.data.random_erasing import RandomErasing  # noqa: E402

SIZE = (40, 50)
PARTS = (transforms.Resize(SIZE), transforms.ToTensor(), transforms.Normalize(0.4, 0.3))
LIMIT = 1.95  # Kolmogorov and Smirnov's, at 0.1%


def folder_of(images, *erasing, parts=PARTS):
    return ImageFolder(str(images), transforms.Compose([*parts, *erasing]))


def erasing(**options):
    return RandomErasing(**{"probability": 0.7, "device": "cpu", "mode": "pixel", **options})


@pytest.mark.parametrize("options", [
    {}, {"mode": "rand"}, {"max_count": 4}, {"mode": "const", "max_count": 8},
    {"mode": "rand", "min_count": 3, "max_count": 3}, {"min_area": 0.3, "max_area": 1.0},
    {"min_aspect": 0.05, "probability": 1}, {"probability": 0},
    {"min_area": 0.0, "max_area": 0.0005, "probability": 1},
])
@pytest.mark.parametrize("loader_options", [
    {}, {"memory_format": torch.channels_last}, {"dtype": torch.float16},
    {"dtype": torch.bfloat16, "memory_format": torch.channels_last},
])
def test_samples_equal_timms(images, options, loader_options):
    dataset = folder_of(images, erasing(**options))
    loader = feedmill.DataLoader(dataset, 6, native="verify", seed=4, **loader_options)
    for epoch in range(2):
        loader.set_epoch(epoch)
        for batch, _ in loader:
            assert batch.dtype is loader_options.get("dtype", torch.float32)
    assert loader.stats().decode.verified_samples == 2 * len(dataset)


def test_greyscale_images_behind_augmentations(images):
    parts = (transforms.Resize(SIZE), transforms.RandomRotation(20), transforms.Grayscale(),
             transforms.ToTensor())
    list(feedmill.DataLoader(folder_of(images, erasing(), parts=parts), 6, native="verify", seed=1))


# ---- the random numbers --------------------------------------------------------------------------


def philox(seed, block):
    """Philox4x32-10: the four words of a block."""
    key = [seed & 0xFFFFFFFF, seed >> 32]
    words = [block & 0xFFFFFFFF, block >> 32, 0, 0]
    for _ in range(10):
        one, other = 0xD2511F53 * words[0], 0xCD9E8D57 * words[2]
        words = [(other >> 32) ^ words[1] ^ key[0], other & 0xFFFFFFFF,
                 (one >> 32) ^ words[3] ^ key[1], one & 0xFFFFFFFF]
        key = [(key[0] + 0x9E3779B9) & 0xFFFFFFFF, (key[1] + 0xBB67AE85) & 0xFFFFFFFF]
    return words


def numbers(seed, n):
    return np.frombuffer(native.noise(seed, 0, n), np.float32)


@pytest.mark.parametrize("seed", [0, 1, 2**32, 2**64 - 1, 0x123456789ABCDEF0])
def test_noise_is_what_the_documentation_says(seed):
    """Python's own normal quantile, of the same algorithm, nearly always rounds to the same."""
    quantile = statistics.NormalDist().inv_cdf
    words = [word for block in range(500) for word in philox(seed, block)]
    wanted = np.array([quantile((word + 0.5) / 2**32) for word in words])
    got = numbers(seed, 2000)
    np.testing.assert_allclose(got, wanted, rtol=2e-7)
    assert (got == wanted.astype(np.float32)).mean() > 0.99
    assert native.noise(seed, 3, 5) == got[3:8].tobytes()


def test_noise_is_distributed_like_torchs():
    """Moments, the distribution function, and no correlation of neighbours."""
    n = 200_000
    ours = np.concatenate([numbers(seed, n // 4) for seed in range(4)]).astype(float)
    generator = torch.Generator().manual_seed(1)
    torchs = torch.empty(n).normal_(generator=generator).numpy()
    grid = np.linspace(-4, 4, 4001)
    shares = [np.searchsorted(np.sort(values), grid) / n for values in (ours, torchs)]
    exact = np.array(list(map(statistics.NormalDist().cdf, grid)))
    assert np.abs(shares[0] - shares[1]).max() < LIMIT * (2 / n) ** 0.5
    assert np.abs(shares[0] - exact).max() < LIMIT / n**0.5
    for power, wanted, deviation in ((1, 0, 1), (2, 1, 2**0.5), (4, 3, 96**0.5)):
        assert abs((ours**power).mean() - wanted) < 4 * deviation / n**0.5
    for distance in (1, 2, 3, 4, 50):
        assert abs((ours[distance:] * ours[:-distance]).mean()) < 4 / n**0.5


def test_samples_have_their_own_noise(images):
    """By draws(): each sample and epoch has its seed; the boxes hold its numbers in order."""
    dataset = folder_of(images, erasing(probability=1, max_count=3))
    loader = feedmill.DataLoader(dataset, native="require", seed=9)
    plain = folder_of(images)
    seeds, counts = set(), []
    for epoch in range(2):
        for index in range(len(dataset)):
            drawn = loader.draws(index, epoch)[-1][1]
            seeds.add(drawn["noise_seed"])
            counts.append(len(drawn["boxes"]))
            wanted, at = plain[index][0], 0
            for top, left, height, width in drawn["boxes"]:
                n = 3 * height * width
                noise = np.frombuffer(native.noise(drawn["noise_seed"], at, n), np.float32)
                at += n
                wanted[:, top : top + height, left : left + width] = torch.from_numpy(
                    noise.reshape(3, height, width).copy()
                )
            assert torch.equal(loader.fetch(index, epoch)[0], wanted)
    assert len(seeds) == 2 * len(dataset) and set(counts) == {1, 2, 3}


def test_several_boxes_have_the_sizes_of_timms(images):
    """The share of the image that is erased, and the number of boxes, for 300 samples."""
    n = 300
    dataset = folder_of(images, erasing(probability=0.6, mode="const", max_count=5))
    dataset.samples = dataset.samples[:1] * n
    loader = feedmill.DataLoader(dataset, native="require", seed=3)
    drawn = [loader.draws(i, 0)[-1][1] for i in range(n)]
    ours = np.array([sum(box[2] * box[3] for box in one["boxes"]) for one in drawn])
    random.seed(1)
    timms, sizes = [], []

    class Image:  # of which only the boxes that are written count
        def __setitem__(self, places, _):
            sizes.append((places[1].stop - places[1].start) * (places[2].stop - places[2].start))

    for _ in range(n):
        sizes.clear()
        dataset.transform.transforms[-1]._erase(Image(), 3, *SIZE, torch.float32)
        timms.append(sum(sizes))
    timms = np.array(timms)
    grid = np.unique(np.concatenate([ours, timms]))
    shares = [np.searchsorted(np.sort(values), grid, "right") / n for values in (ours, timms)]
    assert np.abs(shares[0] - shares[1]).max() < LIMIT * (2 / n) ** 0.5


# ---- what is not native --------------------------------------------------------------------------


def with_attributes(**attributes):
    one = erasing()
    vars(one).update(attributes)
    return one


class Other(RandomErasing):
    pass


@pytest.mark.parametrize("steps, text", [
    ([erasing(max_count=9)], "RandomErasing with min_count, max_count=(1, 9)"),
    ([erasing(min_count=3, max_count=2)], "min_count, max_count=(3, 2)"),
    ([with_attributes(min_count=0)], "min_count, max_count=(0, 1)"),
    ([with_attributes(max_count=True)], "min_count, max_count=(1, True)"),
    ([with_attributes(max_count=2.0)], "min_count, max_count=(1, 2.0)"),
    ([with_attributes(per_pixel=1)], "RandomErasing with mode="),
    ([with_attributes(rand_color="yes")], "RandomErasing with mode="),
    ([erasing(device="cuda")], "RandomErasing with device='cuda'"),
    ([erasing(), transforms.Normalize(0.5, 0.5)], "another transform follows it"),
    ([erasing(), lambda x: x * 2], "another transform follows it"),
    ([erasing(), transforms.RandomVerticalFlip()], "another transform follows it"),
    ([erasing(), erasing(mode="const")], "another transform follows it"),
    ([erasing(mode="const"), erasing()], "RandomErasing follows RandomErasing"),
    ([transforms.ConvertImageDtype(torch.float16), erasing()], "to a tensor of torch.float16"),
    ([with_attributes(_erase=lambda *_: None)], "its own _erase"),
    ([Other(device="cpu")], "Other is not supported natively"),
])
def test_other_ways_to_erase_are_not_native(images, steps, text):
    explained = feedmill.DataLoader(folder_of(images, *steps)).explain()
    assert explained.startswith("torch's own path") and text in explained, explained


def test_noise_in_bytes_is_not_native(images):
    parts = (transforms.Resize(SIZE), transforms.PILToTensor())
    explained = feedmill.DataLoader(folder_of(images, erasing(), parts=parts)).explain()
    assert "to a tensor of torch.uint8" in explained


@pytest.mark.parametrize("owner, name", [
    (torch.Tensor, "normal_"), (torch, "empty"), (random, "randint"), (random, "uniform"),
    (RandomErasing, "_erase"), (RandomErasing, "__call__"),
    (timm.data.random_erasing, "_get_pixels"), (timm.data.random_erasing, "torch"),
    (timm.data.random_erasing, "random"), (timm.data.random_erasing, "math"),
])
def test_changed_functions_are_noticed(images, monkeypatch, owner, name):
    dataset = folder_of(images, erasing())
    assert feedmill.DataLoader(dataset, seed=1).explain().startswith("native path")
    original = getattr(owner, name)
    with monkeypatch.context() as patch:
        patch.setattr(owner, name, lambda *a, **k: original(*a, **k), raising=False)
        assert feedmill.DataLoader(dataset, seed=1).explain().startswith("torch's own path")


def test_batches_of_the_fallback(tmp_path):
    """A file that the native decoder refuses is made by timm's own code with the same draws."""
    for number in range(4):
        helpers.save_jpeg(tmp_path / "a" / f"{number}.jpg", 60, 50, seed=number)
    from PIL import Image

    Image.new("RGB", (60, 50), (9, 200, 30)).save(tmp_path / "a" / "4.bmp")
    dataset = folder_of(tmp_path, erasing(probability=1))
    loader = feedmill.DataLoader(dataset, 5, native="verify", seed=1)
    ((batch, _),) = loader
    assert loader.stats().decode.fallback_samples == 1
    assert torch.equal(batch[4], loader.fetch(4, 0)[0])
