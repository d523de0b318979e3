"""Samples of transforms of the user's own that draw random numbers: the native pixels are those of
the user's code for the same numbers, and the numbers have the distribution of the user's."""

import random
from collections import Counter

import feedmill
import numpy as np
import pytest
from helpers import compose, native_loader, save_jpeg
from PIL import Image, ImageFilter, ImageOps
from torchvision import transforms as T
from torchvision.datasets import ImageFolder
from torchvision.transforms import v2

HEAD, TAIL = T.Resize((20, 24)), T.PILToTensor()
N_EPOCHS = 12


class Blur:
    def __init__(self, p, low, high):
        self.p, self.low, self.high = p, low, high

    def __call__(self, img):
        if random.random() <= self.p:
            return img.filter(ImageFilter.GaussianBlur(random.uniform(self.low, self.high)))
        return img


class BlurFirst:
    """Draws the radius before it is known to be needed, as a product and a sum."""

    def __init__(self, p, low, high):
        self.p, self.low, self.width = p, low, high - low

    def __call__(self, img):
        radius = random.random() * self.width + self.low
        blur = ImageFilter.GaussianBlur(radius=radius)
        return img if self.p < random.random() else img.filter(blur)


class NumpyBlur:
    def __init__(self, p, low, high):
        self.p, self.low, self.high = p, low, high

    def __call__(self, img):
        if not np.random.random() < self.p:
            return img
        return img.filter(ImageFilter.GaussianBlur(np.random.uniform(self.low, self.high)))


class Sometimes:
    """Applies transforms with a probability, each again with one."""

    def __init__(self, p, *transforms):
        self.p, self.transforms = p, transforms

    def __call__(self, img):
        if random.random() > self.p:
            return img
        for one in self.transforms:
            if random.random() < self.p:
                img = one(img)
        return img


class Functions:
    def __call__(self, img):
        if random.random() < 0.5:
            img = ImageOps.solarize(img, 99.5)
        img = ImageOps.autocontrast(img) if 0.5 > random.random() else img
        if random.random() >= 0.5:
            img = ImageOps.posterize(ImageOps.equalize(img), 4)
        return ImageOps.invert(img)


# ---- the same numbers ----------------------------------------------------------------------------


def replay(transform, draws, image):
    """The result of the user's own object, which draws what the native path drew."""
    p = getattr(transform, "p", 0.5)
    applied = [one["applied"] for kind, one in draws if kind == "RandomApply"]
    radii = [one["radius"] for _, one in draws if "radius" in one]
    # A number that is below p or not.
    numbers = [p / 2 if one else (1 + p) / 2 for one in applied]
    if isinstance(transform, BlurFirst):
        share = (radii[0] - transform.low) / transform.width if applied[0] else 0.5
        numbers = [share, *numbers]
    if isinstance(transform, Functions):  # whose last condition is true of large numbers
        numbers[2] = 1 - numbers[2]
    if isinstance(transform, Sometimes) and not applied[0]:
        numbers = numbers[:1]
    left, left_radii = iter(numbers), iter(radii)
    with pytest.MonkeyPatch.context() as patch:
        for owner, name in ((random, "random"), (np.random, "random")):
            patch.setattr(owner, name, lambda: next(left))
        for owner in (random, np.random):
            patch.setattr(owner, "uniform", lambda low, high: next(left_radii))
        result = transform(image)
    assert next(left, None) is None  # all were drawn
    return result


@pytest.mark.parametrize("transform", [
    Blur(0.5, 0.1, 2), Blur(0.7, 10, 0), Blur(1, 3, 3), Blur(0, 1, 2), BlurFirst(0.4, 0.1, 2),
    NumpyBlur(0.6, 0, 10), Functions(), Sometimes(0.8, ImageOps.invert, ImageOps.equalize),
], ids=lambda one: type(one).__name__)
@pytest.mark.parametrize("gray", [False, True])
def test_pixels_are_those_of_the_users_object(tmp_path, transform, gray):
    for number in range(12):
        path = tmp_path / "c" / f"{number}.jpg"
        save_jpeg(path, 20 + 5 * number, 60 - 4 * number, number, "L" if gray else "RGB")
    dataset = ImageFolder(str(tmp_path), compose(transform, HEAD, TAIL))
    loader = native_loader(dataset, batch_size=4, seed=5)
    seen = []
    for epoch in range(2):
        images = [image for batch, _ in loader for image in batch]
        seen += [(image, epoch, index) for index, image in enumerate(images)]
    n_applied = Counter()
    for image, epoch, index in seen:
        draws = [one for one in loader.draws(index, epoch) if one[0] != "Resize"]
        source = Image.open(dataset.samples[index][0]).convert("RGB")
        wanted = TAIL(HEAD(replay(transform, draws, source)))
        assert np.array_equal(image, wanted), (index, draws)
        n_applied[draws[0][1].get("applied", True)] += 1
    if 0 < getattr(transform, "p", 0.5) < 1:
        assert min(n_applied[False], n_applied[True]) > 0


def test_pixels_behind_and_within_other_transforms(small_images):
    """The same pixels with all that may be around them, compared step by step."""
    own = [Blur(0.5, 0.1, 2), Sometimes(0.7, ImageOps.invert, Blur(0.5, 1, 3)), Functions()]
    chains = [
        [v2.RandomResizedCrop(18), *own, T.RandomHorizontalFlip(), TAIL],
        [T.RandomOrder([*own, T.ColorJitter(0.4, 0.4, 0.4, 0.1)]), HEAD, T.ToTensor()],
        [v2.RandomChoice([T.Compose(own), T.RandomRotation(20)]), HEAD, v2.ToImage()],
        [T.RandomApply(own, 0.6), T.CenterCrop(25), T.Grayscale(1), TAIL],
        [HEAD, T.Grayscale(1), Functions(), Sometimes(0.5, ImageOps.solarize), TAIL],
        [HEAD, TAIL, T.ToPILImage(), *own, T.ToTensor(), T.RandomErasing(0.5)],
        [T.Lambda(own[0]), own[1].__call__, lambda image: own[2](image), HEAD, TAIL],
        [Sometimes(0.9, T.TrivialAugmentWide(), T.Compose([T.Grayscale(3), own[0]])), HEAD, TAIL],
    ]
    for chain in chains:
        dataset = ImageFolder(str(small_images), compose(*chain))
        loader = feedmill.DataLoader(dataset, batch_size=8, native="verify", seed=2)
        list(loader)
        counts = loader.stats().decode
        assert (counts.verified_samples, counts.fallback_samples) == (len(dataset), 0)


def test_images_that_are_too_wide_go_through_pillow(tmp_path):
    for number, (width, height) in enumerate([(8192, 9), (8193, 9), (9, 8200), (30, 20)]):
        save_jpeg(tmp_path / "c" / f"{number}.jpg", width, height, number)
    dataset = ImageFolder(str(tmp_path), compose(Blur(1, 0.5, 9), HEAD, TAIL))
    loader = feedmill.DataLoader(dataset, batch_size=2, native="verify")
    list(loader)
    counts = loader.stats().decode
    assert (counts.native_samples, counts.fallback_samples) == (3, 1)


# ---- distributions -------------------------------------------------------------------------------


def drawn(small_images, *transforms):
    """The draws of all samples and epochs, without those of Resize."""
    dataset = ImageFolder(str(small_images), compose(HEAD, *transforms, TAIL))
    loader = native_loader(dataset, batch_size=8, seed=3)
    return [[draw for draw in loader.draws(index, epoch) if draw[0] != "Resize"]
            for epoch in range(N_EPOCHS) for index in range(len(dataset))]


def assert_share(found, p):
    found = np.asarray(found)
    assert abs(found.mean() - p) <= 4 * (p * (1 - p) / len(found)) ** 0.5


@pytest.mark.parametrize("kind", [Blur, BlurFirst, NumpyBlur])
@pytest.mark.parametrize(("p", "low", "high"), [
    (0.5, 5, 0), *(pytest.param(*one, marks=pytest.mark.slow)
                   for one in [(0.1, 0.1, 2), (1, 0, 10), (0, 1, 2)]),
])
def test_chances_and_radii(small_images, kind, p, low, high):
    draws = drawn(small_images, kind(p, low, high))
    assert_share([apply["applied"] for (_, apply), *_ in draws], p)
    radii = np.array([inner[0][1]["radius"] for (_, apply), *inner in draws if apply["applied"]])
    if p == 0:
        return
    shares = np.sort((radii - low) / (high - low))
    assert shares[0] >= 0 and shares[-1] <= 1
    # Kolmogorov and Smirnov's distance; this one is exceeded once in 1000 times.
    n = len(shares)
    steps = np.arange(n + 1) / n
    distance = max(np.abs(shares - steps[1:]).max(), np.abs(shares - steps[:-1]).max())
    assert distance < 1.95 / n**0.5


def test_conditions_are_independent(small_images):
    draws = drawn(small_images, Blur(0.5, 0, 1), Functions(), Blur(0.3, 0, 1))
    applied = np.array([[one["applied"] for kind, one in sample if kind == "RandomApply"]
                        for sample in draws], float)
    assert applied.shape == (len(draws), 5)
    for column, p in enumerate((0.5, 0.5, 0.5, 0.5, 0.3)):
        assert_share(applied[:, column], p)
    correlations = np.corrcoef(applied.T)[np.triu_indices(5, 1)]
    assert np.abs(correlations).max() < 4 / len(draws) ** 0.5


def test_conditions_within_conditions(small_images):
    draws = drawn(small_images, Sometimes(0.6, ImageOps.invert, ImageOps.solarize))
    outer = [sample[0][1]["applied"] for sample in draws]
    assert_share(outer, 0.6)
    inner = [[one["applied"] for kind, one in sample[1:] if kind == "RandomApply"]
             for sample in draws if sample[0][1]["applied"]]
    for column in range(2):
        assert_share([one[column] for one in inner], 0.6)
    assert_share([one == [True, True] for one in inner], 0.36)
