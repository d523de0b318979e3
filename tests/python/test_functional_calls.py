"""Flips and rotations by torchvision's functions, in transforms of the user's own."""

import random
import sys

import feedmill
import numpy as np
import pytest
import torch
from helpers import compose, equal_batches, save_jpeg
from PIL import Image, ImageFilter, ImageOps
from torchvision import transforms as T
from torchvision.datasets import ImageFolder
from torchvision.transforms import functional as F1
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional as F2


class RandomRotate:
    """As lightly's."""

    def __init__(self, prob=0.5, angle=90):
        self.prob = prob
        self.angle = angle

    def __call__(self, image):
        prob = np.random.random_sample()
        if prob < self.prob:
            image = F2.rotate(image, self.angle)
        return image


class GaussianBlur:
    """As lightly's, which also takes tensors."""

    def __init__(self, *, prob=0.5, sigmas=(0.2, 2)):
        self.prob = prob
        self.sigmas = sigmas

    def __call__(self, sample):
        prob = np.random.random_sample()
        sample_pil: Image.Image
        if isinstance(sample, torch.Tensor):
            is_input_tensor = True
            sample_pil = F2.to_pil_image(sample)
        else:
            is_input_tensor = False
            sample_pil = sample
        if prob < self.prob:
            sigma = np.random.uniform(self.sigmas[0], self.sigmas[1])
            sample_pil = sample_pil.filter(ImageFilter.GaussianBlur(radius=sigma))
        return F2.to_tensor(sample_pil) if is_input_tensor else sample_pil


def solarized(image):
    """As lightly's RandomSolarization."""
    prob = np.random.random_sample()
    if prob < 0.6:
        return ImageOps.solarize(image, threshold=99)
    return image


class MyRotationTransform:
    """As in torchvision's documentation of functional transforms."""

    def __init__(self, angles):
        self.angles = angles

    def __call__(self, x):
        angle = random.choice(self.angles)
        return F1.rotate(x, angle)


def flips_of_v1(image):
    if random.random() > 0.5:
        image = F1.hflip(image)
    if random.random() > 0.5:
        image = F1.vflip(image)
    return image


def flips_of_v2(image):
    if torch.rand(1) < 0.3:
        image = F2.hflip(image)
    if torch.rand(1) < 0.6:
        image = F2.vertical_flip(image)
    return image


def always(image):
    return F2.rotate(F1.vflip(F2.horizontal_flip(image)), 33.5)


def nothing_before_it_draws(image):
    """What follows draws the numbers that torch's loader draws there."""
    return F1.rotate(image, angle=-7)


END = (T.CenterCrop(20), T.ToTensor())
TRANSFORMS = {
    "lightly": compose(T.RandomResizedCrop(24), RandomRotate(), RandomRotate(0.0, 45),
                       RandomRotate(1.0, 30), GaussianBlur(prob=0.7), solarized, *END),
    "documentation": compose(T.Resize((30, 30)), MyRotationTransform([-30, -15, 0, 15, 30, 90]),
                             T.RandomHorizontalFlip(), *END),
    "flips": compose(T.RandomResizedCrop(24), flips_of_v1, flips_of_v2, *END),
    "always": v2.Compose([v2.RandomCrop(22), always, v2.RandomRotation(9), *END]),
    "gray": compose(T.Grayscale(), nothing_before_it_draws, T.RandomVerticalFlip(), flips_of_v1,
                    *END),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """JPEGs of many sizes, and BMP files, which Pillow decodes."""
    root = tmp_path_factory.mktemp("calls")
    for i in range(20):
        path = root / "a" / f"{i:02}.jpg"
        save_jpeg(path, 24 + 5 * i, 33 + 29 * i % 90, seed=i, mode="RGB")
        if i % 5 == 4:
            Image.open(path).save(path.with_suffix(".bmp"))
            path.unlink()
    return root


def batches(kind, dataset, **options):
    torch.manual_seed(5)
    random.seed(6)
    np.random.seed(7)
    loader = kind(dataset, batch_size=4, shuffle=True, **options)
    return [batch for _ in range(3) for batch in loader]


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("name", TRANSFORMS)
def test_batches_equal_torchs(folder, name, num_workers):
    dataset = ImageFolder(str(folder), TRANSFORMS[name])
    options = {"num_workers": num_workers}
    natively = batches(feedmill.DataLoader, dataset, native="require", **options)
    assert equal_batches(natively, batches(torch.utils.data.DataLoader, dataset, **options))


@pytest.mark.parametrize("name", TRANSFORMS)
def test_our_own_draws_verify(folder, name):
    dataset = ImageFolder(str(folder), TRANSFORMS[name])
    loader = feedmill.DataLoader(dataset, native="verify", batch_size=4, seed=3)
    for _ in range(3):
        assert sum(len(images) for images, _ in loader) == len(dataset)
    assert loader.stats().decode.verified_samples == 3 * len(dataset)


def test_probabilities_of_0_and_1(folder):
    dataset = ImageFolder(str(folder), compose(T.Resize((20, 20)), RandomRotate(0.0), T.PILToTensor()))
    plain = ImageFolder(str(folder), compose(T.Resize((20, 20)), T.PILToTensor()))
    options = {"batch_size": 20, "native": "require"}
    never, as_it_is = (next(iter(feedmill.DataLoader(one, **options)))[0] for one in (dataset, plain))
    assert torch.equal(never, as_it_is)
    dataset.transform.transforms[1].prob = 1.0
    turned = next(iter(feedmill.DataLoader(dataset, **options)))[0]
    assert torch.equal(turned, torch.rot90(as_it_is, 1, (2, 3)))


def expanded(image):
    return F1.rotate(image, 20, expand=True)


def rotated_by_a_drawn_angle(image):
    return F1.rotate(image, random.uniform(-5, 5))


def of_another_name(image):
    return F1.rotate(image, center=[3, 4])


def brighter(image):
    return F1.adjust_brightness(image, 1.5)


@pytest.mark.parametrize("function", [
    expanded, rotated_by_a_drawn_angle, brighter, of_another_name,
])
def test_other_calls_are_left_to_torch(folder, function):
    dataset = ImageFolder(str(folder), compose(function, *END))
    assert feedmill.DataLoader(dataset).explain().startswith("torch's own path")


def test_functions_of_tensors_are_left_to_torch(folder):
    dataset = ImageFolder(str(folder), compose(T.CenterCrop(20), T.ToTensor(), always))
    text = feedmill.DataLoader(dataset).explain()
    assert "a function of Pillow or torchvision" in text


@pytest.mark.parametrize(("module", "name", "function"), [
    (F1, "rotate", MyRotationTransform([3, 4])),
    (F1, "vflip", flips_of_v1),
    (F2, "rotate", RandomRotate()),
    (sys.modules["torchvision.transforms._functional_pil"], "rotate", RandomRotate()),
])
def test_replaced_functions(folder, monkeypatch, module, name, function):
    dataset = ImageFolder(str(folder), compose(function, *END))
    assert feedmill.DataLoader(dataset).explain().startswith("native path")
    original = getattr(module, name)
    monkeypatch.setattr(module, name, lambda *arguments, **options: original(*arguments, **options))
    assert feedmill.DataLoader(dataset).explain().startswith("torch's own path")
