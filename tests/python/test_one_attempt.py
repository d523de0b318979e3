"""RandomResizedCrop classes that draw in one attempt, as MAE's."""
# ruff: noqa: RUF046

import math

import feedmill
import numpy as np
import pytest
import torch
import torchvision.transforms.functional as F
from feedmill._ops import native
from feedmill.planner.plan import RANDOM_RESIZED_CROP, Op
from helpers import compose
from PIL import Image
from torchvision import transforms
from torchvision.datasets import ImageFolder

N_DRAWS = 4000


class RandomResizedCrop(transforms.RandomResizedCrop):
    """
    RandomResizedCrop for matching TF/TPU implementation: no for-loop is used.
    """
    @staticmethod
    def get_params(img, scale, ratio):
        width, height = F.get_image_size(img)
        area = height * width

        target_area = area * torch.empty(1).uniform_(scale[0], scale[1]).item()
        log_ratio = torch.log(torch.tensor(ratio))
        aspect_ratio = torch.exp(
            torch.empty(1).uniform_(log_ratio[0], log_ratio[1])
        ).item()

        w = int(round(math.sqrt(target_area * aspect_ratio)))
        h = int(round(math.sqrt(target_area / aspect_ratio)))

        w = min(w, width)
        h = min(h, height)

        i = torch.randint(0, height - h + 1, size=(1,)).item()
        j = torch.randint(0, width - w + 1, size=(1,)).item()

        return i, j, h, w


Mae = RandomResizedCrop


def with_size():
    class RandomResizedCrop(transforms.RandomResizedCrop):
        @staticmethod
        def get_params(img: Image.Image, scale: list[float], ratio: list[float]):
            """By the size."""
            width, height = img.size
            area = height * width
            target_area = area * torch.empty(1).uniform_(scale[0], scale[1]).item()
            log_ratio = torch.log(torch.tensor(ratio))
            aspect_ratio = torch.exp(torch.empty(1).uniform_(log_ratio[0], log_ratio[1])).item()
            w = int(round(math.sqrt(target_area * aspect_ratio)))
            h = int(round(math.sqrt(target_area / aspect_ratio)))
            w = min(w, width)
            h = min(h, height)
            i = torch.randint(0, height - h + 1, size=(1,)).item()
            j = torch.randint(0, width - w + 1, size=(1,)).item()
            return i, j, h, w

    return RandomResizedCrop


@pytest.mark.parametrize("make", [lambda: Mae, with_size])
def test_it_is_native_with_the_same_draws(small_images, make):
    crop = make()(9, scale=(0.08, 3), interpolation=transforms.InterpolationMode.BICUBIC)
    steps = (crop, transforms.RandomHorizontalFlip(), transforms.PILToTensor())
    dataset = ImageFolder(str(small_images), compose(*steps))
    loader = feedmill.DataLoader(dataset, batch_size=8, native="verify")
    for _ in range(5):
        list(loader)
    decode = loader.stats().decode
    assert decode.verified_samples == decode.native_samples == 5 * len(dataset)


def ks_distance(one, two):
    """The Kolmogorov-Smirnov statistic."""
    values = np.union1d(one, two)
    rank = lambda data: np.searchsorted(np.sort(data), values, side="right") / len(data)
    return np.abs(rank(one) - rank(two)).max()


@pytest.mark.parametrize(
    ("width", "height", "scale", "ratio"),
    [
        (500, 375, (0.2, 1.0), (3 / 4, 4 / 3)),
        (300, 20, (0.2, 1.0), (3 / 4, 4 / 3)),  # mostly limited by the height
        (50, 60, (0.5, 4.0), (0.5, 2.0)),  # the whole image, often
        (1, 1, (0.2, 1.0), (3 / 4, 4 / 3)),
    ],
)
def test_its_crops_have_the_classs_distribution(width, height, scale, ratio):
    op = Op(RANDOM_RESIZED_CROP, 8, 8, 0, *scale, *ratio, values=(2.0, 0.0))
    loader = native.Loader(ops=[op], dtype="uint8", n_samples=N_DRAWS, batch_size=1,
                           n_threads=1)
    draws = [loader.draws(7, 0, index, 0, width, height) for index in range(N_DRAWS)]
    loader.close()
    ours = np.array([one[0][1:5] for one in draws], float)
    torch.manual_seed(7)
    image = Image.new("RGB", (width, height))
    theirs = np.array([Mae.get_params(image, scale, ratio) for _ in range(N_DRAWS)], float)
    limit = 1.95 * np.sqrt(2 / N_DRAWS)
    for column, name in enumerate(("top", "left", "height", "width")):
        assert ks_distance(ours[:, column], theirs[:, column]) < limit, name
    assert ks_distance(ours[:, 2] * ours[:, 3], theirs[:, 2] * theirs[:, 3]) < limit
    assert ks_distance(ours[:, 0] + ours[:, 1], theirs[:, 0] + theirs[:, 1]) < limit


# ---- left to torch -------------------------------------------------------------------------------


def other_method():
    class RandomResizedCrop(transforms.RandomResizedCrop):
        get_params = staticmethod(Mae.get_params)

        def forward(self, img):
            return super().forward(img).rotate(3)

    return RandomResizedCrop


def other_name():
    class Crop(transforms.RandomResizedCrop):
        get_params = staticmethod(Mae.get_params)

    return Crop


def other_parent():
    class RandomResizedCrop(Mae):
        get_params = staticmethod(Mae.get_params)

    return RandomResizedCrop


def other_code():
    class RandomResizedCrop(transforms.RandomResizedCrop):
        @staticmethod
        def get_params(img, scale, ratio):
            width, height = img.size
            return 0, 0, height // 2, width // 2

    return RandomResizedCrop


def not_static():
    class RandomResizedCrop(transforms.RandomResizedCrop):
        def get_params(self, scale, ratio):
            return Mae.get_params(self, scale, ratio)

    return RandomResizedCrop


@pytest.mark.parametrize("make", [other_method, other_name, other_parent, other_code, not_static])
def test_these_are_left_to_torch(small_images, make):
    steps = compose(make()(9), transforms.PILToTensor())
    text = feedmill.DataLoader(ImageFolder(str(small_images), steps)).explain()
    assert text.startswith("torch's own path")


@pytest.mark.parametrize("place", [
    ("F", transforms), ("math", np), ("min", max), ("round", math.floor), ("int", float)])
def test_replaced_globals(small_images, monkeypatch, place):
    dataset = ImageFolder(str(small_images), compose(Mae(9), transforms.PILToTensor()))
    assert feedmill.DataLoader(dataset).explain().startswith("native path")
    monkeypatch.setitem(globals(), *place)
    assert feedmill.DataLoader(dataset).explain().startswith("torch's own path")


def test_replaced_functions(small_images, monkeypatch):
    dataset = ImageFolder(str(small_images), compose(Mae(9), transforms.PILToTensor()))
    with monkeypatch.context() as changed:
        changed.setattr(F, "get_image_size", lambda img: (5, 5))
        assert feedmill.DataLoader(dataset).explain().startswith("torch's own path")
    with monkeypatch.context() as changed:
        changed.setattr(Mae, "get_params", staticmethod(lambda *_: (0, 0, 3, 3)))
        assert feedmill.DataLoader(dataset).explain().startswith("torch's own path")
    own = Mae(9)
    own.get_params = lambda *_: (0, 0, 3, 3)
    dataset = ImageFolder(str(small_images), compose(own, transforms.PILToTensor()))
    assert feedmill.DataLoader(dataset).explain().startswith("torch's own path")
