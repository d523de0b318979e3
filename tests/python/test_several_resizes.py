"""Transforms that resize more than once, and that crop or resize some images only."""

import random

import feedmill
import helpers
import numpy as np
import pytest
import torch
from feedmill.planner.equality import resize_order
from feedmill.planner.plan import FILTER_NAMES, TORCHS_FLOAT_RESIZE
from helpers import MEAN, STD, cifar_in_memory, compose
from test_augment import check
from test_tensor_resize import resize_in_floats
from torch.utils.data import DataLoader
from torchvision import transforms as T
from torchvision.datasets import ImageFolder
from torchvision.transforms import InterpolationMode as Mode
from torchvision.transforms import v2

MODULES = pytest.mark.parametrize("module", [T, v2], ids=["v1", "v2"])


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    """A folder of 24 JPEGs, 20 to 140 pixels wide and high; some grey."""
    root = tmp_path_factory.mktemp("several")
    sides = np.random.default_rng(4)
    for i in range(24):
        width, height = (int(side) for side in sides.integers(20, 141, 2))
        mode = "L" if i % 6 == 0 else "RGB"
        helpers.save_jpeg(root / "ab"[i % 2] / f"{i:03}.jpg", width, height, seed=i, mode=mode)
    return root


def chains(module):
    m, floats = module, (module.ToTensor() if module is T else T.ToTensor(), T.Normalize(MEAN, STD))
    crop = m.RandomResizedCrop(24, scale=(0.2, 1.0))
    return {
        "resize_then_crop": (m.Resize(40), m.RandomResizedCrop(24), m.RandomHorizontalFlip(), *floats),
        "filters": (m.Resize(40, Mode.BICUBIC), m.RandomHorizontalFlip(), m.CenterCrop(33),
                    m.Resize((20, 31), Mode.NEAREST), m.ColorJitter(0.3), m.Resize(16, Mode.LANCZOS),
                    m.RandomCrop(16), *floats),
        "three": (m.RandomResizedCrop(50), m.Resize(30, max_size=40), m.Resize((9, 64)), T.PILToTensor()),
        "padded": (m.Resize(20), m.Pad(3, padding_mode="reflect"), m.Resize((30, 20)), *floats),
        "grey": (m.Resize(30), m.Grayscale(), m.Resize((13, 12)), T.ToTensor()),
        "apply": (m.RandomApply([crop], p=0.7), m.Resize((20, 28)), m.RandomHorizontalFlip(), *floats),
        "apply_crop": (m.Resize((30, 34)), m.RandomApply([m.RandomCrop((30, 34), padding=4)]), *floats),
        "apply_first": (m.RandomApply([m.CenterCrop(28), m.ColorJitter(0.4)]), m.RandomCrop(19), *floats),
        "choice": (m.RandomChoice([m.Resize((24, 24)), crop,
                                   T.Compose([m.Resize(30), m.RandomVerticalFlip(), m.CenterCrop(24)])]),
                   m.RandomAutocontrast(), *floats),
        "order": (m.RandomOrder([m.Resize((24, 24)), m.RandomRotation(20), m.RandomHorizontalFlip(),
                                 m.Pad(2)]), m.CenterCrop(26), *floats),
        "nested": (m.Resize(50), m.RandomApply([m.RandomChoice([crop, m.CenterCrop((40, 9))]),
                                                m.RandomApply([m.Resize(11)])]),
                   m.RandomResizedCrop((21, 20), interpolation=Mode.BICUBIC), *floats),
    }


@MODULES
@pytest.mark.parametrize("name", chains(T))
def test_pixels_are_torchvisions(images, module, name):
    check(images, *chains(module)[name])


class Lambda:
    """As StarGAN v2's dataset has: a crop of some images only."""

    def __init__(self, crop, p):
        self.crop, self.p = crop, p

    def __call__(self, image):
        return self.crop(image) if random.random() < self.p else image


def of_stargan():
    crop = T.RandomResizedCrop(32, scale=[0.8, 1.0], ratio=[0.9, 1.1])
    return (T.Lambda(lambda image: crop(image) if random.random() < 0.5 else image),
            T.Resize([32, 32]), T.RandomHorizontalFlip(), T.ToTensor())


def epochs(kind, dataset, **options):
    torch.manual_seed(8)
    random.seed(8)
    loader = kind(dataset, batch_size=5, shuffle=True, num_workers=2, **options)
    if kind is feedmill.DataLoader:
        assert loader.explain().startswith("native path"), loader.explain()
    return [batch for _ in range(3) for batch in loader]


@MODULES
@pytest.mark.parametrize("name", [*chains(T), "class", "of_stargan"])
def test_random_numbers_are_torchs(images, module, name):
    steps = {"class": (Lambda(T.RandomResizedCrop(20), 0.4), T.Resize((31, 20)), T.ToTensor()),
             "of_stargan": of_stargan(), **chains(module)}[name]
    dataset = ImageFolder(str(images), compose(*steps))
    wanted = epochs(DataLoader, dataset)
    for (image, label), (other, other_label) in zip(
        epochs(feedmill.DataLoader, dataset, rng="torch"), wanted, strict=True
    ):
        assert torch.equal(image, other) and torch.equal(label, other_label)


@pytest.mark.parametrize("steps", [
    (v2.ToImage(), v2.Resize(40), v2.RandomResizedCrop(24), v2.RandomHorizontalFlip()),
    (v2.ToImage(), v2.Resize((40, 30), Mode.BICUBIC), v2.CenterCrop(28), v2.Resize((9, 16))),
])
def test_of_tensors(images, steps):
    if resize_order(FILTER_NAMES.index("bilinear"), of_tensors=True) != TORCHS_FLOAT_RESIZE:
        check(images, *steps)
        return
    # torch resizes them in float32 on this CPU.
    text = feedmill.DataLoader(ImageFolder(str(images), compose(*steps))).explain()
    assert text.startswith("torch's own path") and "and resizes more than once" in text, text


@MODULES
def test_of_arrays(module):
    dataset = cifar_in_memory(30)
    m = module
    for steps in (
        (m.Resize(40), m.RandomResizedCrop(28), T.ToTensor()),
        (m.RandomApply([m.RandomCrop(32, padding=4)]), m.Resize(20), T.ToTensor()),
        (m.RandomChoice([m.RandomCrop(24), m.Resize(24)]), m.RandomVerticalFlip(), T.ToTensor()),
    ):
        dataset.transform = compose(*steps)
        wanted = epochs(DataLoader, dataset)
        for (image, _), (other, _) in zip(epochs(feedmill.DataLoader, dataset, rng="torch"), wanted,
                                          strict=True):
            assert torch.equal(image, other)
    dataset.transform = compose(m.RandomApply([m.Resize(20)]), m.RandomCrop(9), T.ToTensor())
    text = feedmill.DataLoader(dataset, batch_size=5).explain()
    assert "RandomCrop gets images whose size is random" in text


@pytest.mark.parametrize(("steps", "words"), [
    ((v2.Resize(30), v2.ToImage(), v2.Resize((8, 9))), "resizes both a PIL image and a tensor"),
    ((T.Resize(30), T.ToTensor(), T.Resize((8, 9), antialias=True)), "a PIL image and a tensor"),
    ((T.ToTensor(), T.Resize(20, antialias=True), T.Resize((8, 9), antialias=True)),
     "resizes a tensor in float32, and resizes more than once"),
    ((T.RandomApply([T.Resize((8, 8))]), T.ToTensor()), "does not lead to one size"),
    ((T.RandomChoice([T.Resize((8, 8)), T.CenterCrop(9)]), T.ToTensor()), "one size"),
    ((T.Resize((8, 8)), T.RandomOrder([T.Pad(1), T.CenterCrop(8)]), T.ToTensor()), "one size"),
    ((v2.ToImage(), v2.RandomApply([v2.Resize((8, 8))]), v2.CenterCrop(8)), "put it before"),
])
def test_what_is_left_to_torch(images, steps, words):
    text = feedmill.DataLoader(ImageFolder(str(images), compose(*steps))).explain()
    assert text.startswith("torch's own path, because\n  - ") and words in text, text


def test_a_torchvision_that_resizes_bytes_in_floats(images, monkeypatch, looked_at_anew):
    resize_in_floats(monkeypatch)
    steps = v2.ToImage(), v2.Resize((20, 30)), v2.Resize((8, 9))
    text = feedmill.DataLoader(ImageFolder(str(images), compose(*steps))).explain()
    assert "resizes a tensor in float32, and resizes more than once" in text
