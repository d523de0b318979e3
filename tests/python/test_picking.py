"""Values that a function of the user's own draws from a few: by random.randint() and choice(),
numpy.random.randint() and choice()."""

import random
from collections import Counter

import feedmill
import numpy as np
import pytest
import torch
from feedmill.planner.attributes import NotUnderstood
from feedmill.planner.drawing import Chance, PilCall
from feedmill.planner.evaluating import transforms_in
from feedmill.planner.generators import NUMPY, NUMPY_ROUNDED_ONCE, numpys_uniform, way_of
from feedmill.planner.image_calls import ImageState
from feedmill.planner.picking import NUMPYS_RAND, NUMPYS_RANDINT, PYTHONS_RANDRANGE, Choice
from helpers import compose, native_loader
from PIL import ImageFilter, ImageOps
from torchvision import transforms as T
from torchvision.datasets import ImageFolder
from torchvision.transforms import v2

RGB = ImageState(True, "RGB")
HEAD, TAIL = T.Resize((20, 24)), T.PILToTensor()
SOME = [T.RandomInvert(0.7), T.ColorJitter(0.3), ImageOps.equalize]
OF_V2 = (v2.RandomSolarize(99), v2.Compose([v2.RandomGrayscale(0.5), v2.RandomEqualize()]))


# ---- what is understood --------------------------------------------------------------------------


def coin(img):
    return ImageOps.invert(img) if random.randint(0, 1) == 1 else img


def numpys_coin(img):
    if np.random.randint(2):
        img = ImageOps.invert(img)
    return img


def coin_by_choice(img):
    return ImageOps.invert(img) if random.choice([True, False]) else img


def one_of_some(img):
    return random.choice(SOME)(img)


def one_of_some_by_numpy(img):
    transform = np.random.choice(OF_V2)
    return transform(img)


def one_of_some_by_weights(img):
    return np.random.choice(SOME, p=[0.2, 0.2, 0.6])(img)


def one_of_some_by_index(img):
    return SOME[random.randint(0, len(SOME) - 1)](img)


def percent(img):
    if np.random.randint(0, 100) < 30:
        img = SOME[0](img)
    return ImageOps.solarize(img, 99)


def cases(img):
    kind = random.randrange(4)
    if kind == 0:
        img = ImageOps.equalize(img)
    elif kind == 1:
        img = img.filter(ImageFilter.GaussianBlur(random.uniform(0.2, 1.2)))
    elif kind == 2:
        img = SOME[1](ImageOps.invert(img))
    return img


def some_radii(img):
    return img.filter(ImageFilter.GaussianBlur(radius=random.choice((0.5, 1, 2.5))))


def in_vain(img):
    random_number = np.random.randint(3, 40)  # noqa: F841
    return SOME[0](img)


def several(img):
    first = random.choice(SOME)
    if random.random() < 0.6:
        img = ImageOps.posterize(img, 4)
    img = first(img)
    if np.random.choice(3) == 1 and np.random.rand() < 0.5:
        img = ImageOps.invert(img)
    return img


BY_PICKS = {
    "coin": coin, "numpy's coin": numpys_coin, "coin by choice": coin_by_choice,
    "one of some": one_of_some, "by numpy": one_of_some_by_numpy,
    "by weights": one_of_some_by_weights, "by index": one_of_some_by_index, "percent": percent,
    "cases": cases, "some radii": some_radii, "in vain": in_vain, "several picks": several,
}


def understood(function):
    (choice,) = transforms_in(function, RGB)
    assert type(choice) is Choice
    return choice.children, choice.sums, choice.pick.way


def test_what_is_understood():
    inverted = (PilCall("RandomInvert"),)
    assert understood(coin) == (((), inverted), (1, 2), PYTHONS_RANDRANGE)
    assert understood(numpys_coin) == (((), inverted), (1, 2), NUMPYS_RANDINT)
    assert understood(coin_by_choice) == ((inverted, ()), (1, 2), PYTHONS_RANDRANGE)
    some = ((SOME[0],), (SOME[1],), (PilCall("RandomEqualize"),))
    for function in (one_of_some, one_of_some_by_index):
        assert understood(function) == (some, (1, 2, 3), PYTHONS_RANDRANGE)
    sums = np.cumsum([0.2, 0.2, 0.6])
    sums = tuple((sums / sums[-1]).tolist())
    assert understood(one_of_some_by_weights) == (some, sums, NUMPYS_RAND)
    choice, solarize = transforms_in(percent, RGB)
    assert choice.children == ((SOME[0],), ()) and choice.sums == (30, 100)
    assert solarize == PilCall("RandomSolarize", (99,))
    choice, jitter = transforms_in(in_vain, RGB)
    assert choice.children == ((),) and choice.sums == (37,) and jitter is SOME[0]
    choices = transforms_in(several, RGB)
    assert [len(one.children) for one in choices] == [3, 3]
    assert [type(one) for one in choices[0].children[1]] == [Chance, T.ColorJitter]


@pytest.mark.parametrize("name", BY_PICKS)
def test_pixels_with_own_numbers(small_images, name):
    dataset = ImageFolder(str(small_images), compose(HEAD, BY_PICKS[name], TAIL))
    loader = native_loader(dataset, batch_size=8, native="verify", seed=1)
    list(loader)
    assert loader.stats().decode.verified_samples == len(dataset)


@pytest.mark.slow
def test_how_often_each_is_chosen(small_images):
    dataset = ImageFolder(str(small_images), compose(HEAD, one_of_some_by_weights, TAIL))
    loader = native_loader(dataset, batch_size=8, seed=3)
    n = 3000
    counts = Counter(dict(loader.draws(number % len(dataset), number // len(dataset)))[
        "RandomChoice"]["child"] for number in range(n))
    for child, p in enumerate((0.2, 0.2, 0.6)):
        assert abs(counts[child] / n - p) < 4 * (p * (1 - p) / n) ** 0.5


# ---- what is left to torch -----------------------------------------------------------------------


class Sized:
    def __len__(self):
        return 2

    def __getitem__(self, index):
        return (ImageOps.invert, ImageOps.equalize)[index]

    def __call__(self, img):
        return ImageOps.invert(img)


class AsArray:
    def __getattr__(self, name):
        raise AttributeError(name)

    def __call__(self, img):
        return ImageOps.invert(img)


SIZED, AS_ARRAY = [Sized(), Sized()], [AsArray(), AsArray()]
MANY = [T.ColorJitter(0.1) for _ in range(17)]


def of_numpys_numbers(img):
    return ImageOps.invert(img) if np.random.choice([0, 1]) == 1 else img


def of_sized(img):
    return np.random.choice(SIZED)(img)


def of_arrays(img):
    return np.random.choice(AS_ARRAY)(img)


def of_many(img):
    return random.choice(MANY)(img)


def of_too_many_numbers(img):
    return ImageOps.invert(img) if random.randint(0, 1000) == 1 else img


def of_combinations(img):
    if random.randint(1, 100) == random.randint(1, 100):
        img = ImageOps.invert(img)
    return img


def several_at_once(img):
    return ImageOps.invert(img) if np.random.randint(0, 2, 3)[0] else img


def two_at_once(img):
    for transform in np.random.choice(SOME, 2):
        img = transform(img)
    return img


def as_a_list(img):
    return np.random.choice(SOME, size=1)[0](img)


def without_replacement(img):
    return np.random.choice(SOME, replace=False)(img)


def of_a_string(img):
    return ImageOps.invert(img) if random.choice("ab") == "a" else img


def with_wrong_weights(img):
    return np.random.choice(SOME, p=[0.2, 0.2, 0.2])(img)


def without_values(img):
    return ImageOps.invert(img) if random.randint(1, 0) else img


def normal(img):
    return ImageOps.invert(img) if np.random.normal() < 0.5 else img


class Applying:
    def apply(self, img):
        return ImageOps.invert(img)


APPLYING = [Applying(), Applying()]


def by_a_method(img):
    return random.choice(APPLYING).apply(img)


def radius_of_torch(img):
    return img.filter(ImageFilter.GaussianBlur(torch.rand(1)))


def double_of_torch(img):
    return ImageOps.invert(img) if torch.rand(1, dtype=torch.float64) < 0.5 else img


@pytest.mark.parametrize("function", [
    of_numpys_numbers, of_sized, of_arrays, of_many, of_too_many_numbers, of_combinations,
    several_at_once, two_at_once, as_a_list, without_replacement, of_a_string, with_wrong_weights,
    without_values, normal,
    by_a_method, radius_of_torch, double_of_torch,
])
def test_these_are_left_to_torch(function):
    states = random.getstate(), np.random.get_state()[1].tolist()
    with pytest.raises(NotUnderstood):
        transforms_in(function, RGB)
    assert states == (random.getstate(), np.random.get_state()[1].tolist())


@pytest.mark.parametrize(("owner", "name"), [
    (random._inst, "randrange"), (random._inst, "getrandbits"), (random.Random, "_randbelow"),
    (random.Random, "getrandbits"), (random, "randint"),
])
def test_replaced_functions(small_images, monkeypatch, owner, name):
    dataset = ImageFolder(str(small_images), compose(HEAD, coin, TAIL))
    loader = feedmill.DataLoader(dataset)
    assert loader.explain().startswith("native path")
    monkeypatch.setattr(owner, name, lambda *arguments: 1, raising=False)
    assert loader.explain().startswith("torch's own path")


def test_another_bit_generator(small_images):
    dataset = ImageFolder(str(small_images), compose(HEAD, numpys_coin, TAIL))
    before = np.random.get_bit_generator()
    np.random.set_bit_generator(np.random.PCG64(1))
    try:
        text = feedmill.DataLoader(dataset, num_workers=0, rng="torch").explain()
    finally:
        np.random.set_bit_generator(before)
    assert "RandomChoice with NumPy's bit generator PCG64" in text


# ---- NumPy's builds ------------------------------------------------------------------------------


class Fused(np.random.RandomState):
    """As NumPy is where its compiler makes one instruction of a product and a sum."""

    def uniform(self, low, high):
        from fractions import Fraction

        return float(Fraction(low) + Fraction(high - low) * Fraction(self.random_sample()))


class Other(np.random.RandomState):
    def uniform(self, low, high):
        share = self.random_sample()
        return low * (1 - share) + high * share


def test_how_numpy_rounds():
    assert numpys_uniform() in (NUMPY, NUMPY_ROUNDED_ONCE)
    assert way_of(Fused) == NUMPY_ROUNDED_ONCE
    assert way_of(Other) is None
