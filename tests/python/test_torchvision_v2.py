"""Other forms of torchvision's transforms (v2, Sequential, presets, nested) are native and exact."""

import copy

import feedmill
import helpers
import pytest
import torch
from helpers import MEAN, STD, compose, native_loader
from PIL import Image
from torch import nn
from torchvision import models, tv_tensors
from torchvision import transforms as T
from torchvision.datasets import ImageFolder
from torchvision.transforms import InterpolationMode, v2
from torchvision.transforms._presets import ImageClassification

BILINEAR = InterpolationMode.BILINEAR
TO_FLOAT = v2.ToDtype(torch.float32, scale=True)
BY_TYPE = {tv_tensors.Image: torch.float32, "others": None}

# Transforms without random numbers, compared with torch's path.
FIXED = {
    "image": v2.Compose([v2.Resize((24, 20)), v2.ToImage()]),
    "image_float": v2.Compose([v2.Resize((24, 20)), v2.ToImage(), TO_FLOAT]),
    "unscaled": v2.Compose([v2.Resize((24, 20)), v2.ToImage(), v2.ToDtype(torch.float32)]),
    "by_type": v2.Compose([v2.Resize(28), v2.CenterCrop(24), v2.ToImage(),
                           v2.ToDtype(BY_TYPE, scale=True), v2.Normalize(MEAN, STD)]),
    "pil_to_tensor": v2.Compose([v2.Resize([30]), v2.CenterCrop([20, 26]), v2.PILToTensor(), TO_FLOAT,
                                 v2.Normalize(MEAN, STD, inplace=True)]),
    "convert": v2.Compose([v2.Resize(22, max_size=50), v2.CenterCrop(30), v2.PILToTensor(),
                           v2.ConvertImageDtype(torch.float32), v2.Normalize([0.5], [0.25])]),
    "pure": v2.Compose([v2.Identity(), v2.Resize((9, 31)), v2.ToImage(), v2.ToPureTensor()]),
    "mixed": compose(v2.Resize((24, 20), antialias=True), T.ToTensor(), v2.Normalize(MEAN, STD)),
    "mixed_too": v2.Compose([T.Resize((24, 20)), v2.ToImage(), TO_FLOAT, T.Normalize(MEAN, STD)]),
    "sequential": nn.Sequential(T.Resize((24, 20)), nn.Identity(), v2.PILToTensor(),
                                T.ConvertImageDtype(torch.float32)),
    "nested": v2.Compose([compose(nn.Sequential(v2.CenterCrop(40)), T.Resize((8, 9))),
                          v2.Compose([v2.ToImage(), TO_FLOAT])]),
    "crop_of_tensor": compose(T.Resize(30), T.ToTensor(), T.CenterCrop((26, 70))),
    "crop_of_image": v2.Compose([v2.Resize(30), v2.ToImage(), v2.CenterCrop((26, 70)), TO_FLOAT,
                                 v2.Normalize(MEAN, STD)]),
    "preset": ImageClassification(crop_size=24, resize_size=28),
    "preset_padded": ImageClassification(crop_size=64, resize_size=28, mean=MEAN, std=STD),
    "crop_alone": v2.Compose([v2.CenterCrop((17, 70)), v2.ToImage()]),
}
RANDOM = {
    "train": v2.Compose([v2.RandomResizedCrop(24, antialias=True), v2.RandomHorizontalFlip(),
                         v2.ToImage(), TO_FLOAT, v2.Normalize(MEAN, STD)]),
    "pil_to_tensor": v2.Compose([v2.RandomResizedCrop((20, 12), scale=(0.5, 1), ratio=(1, 1),
                                                      interpolation=BILINEAR),
                                 v2.PILToTensor(), v2.RandomHorizontalFlip(0.9), TO_FLOAT]),
    "flip_of_image": v2.Compose([v2.Resize((20, 20)), v2.ToImage(), v2.RandomHorizontalFlip(),
                                 TO_FLOAT]),
    "mixed": compose(v2.RandomResizedCrop(16), T.RandomHorizontalFlip(), T.ToTensor(),
                     v2.RandomHorizontalFlip(0.3), T.Normalize(MEAN, STD)),
    "sequential": nn.Sequential(T.RandomResizedCrop(24), v2.RandomHorizontalFlip(), v2.PILToTensor()),
}


@pytest.mark.parametrize("batch_size", [16, None])
@pytest.mark.parametrize("name", FIXED)
def test_fixed_transforms_equal_torchs_path(small_images, name, batch_size):
    dataset = ImageFolder(str(small_images), FIXED[name])
    natively = list(native_loader(dataset, batch_size=batch_size))
    by_torch = list(torch.utils.data.DataLoader(dataset, batch_size=batch_size))
    assert len(natively) == len(by_torch)
    for number, (mine, theirs) in enumerate(zip(natively, by_torch)):
        assert type(mine) is type(theirs) and type(mine[0]) is type(theirs[0])
        assert mine[0].stride() == theirs[0].stride() or not theirs[0].is_contiguous()
        plain = [one.as_subclass(torch.Tensor) for one in (mine[0], theirs[0])]
        helpers.assert_same_image(*plain, f"batch {number}")
        assert type(mine[1]) is type(theirs[1])
        assert torch.equal(torch.as_tensor(mine[1]), torch.as_tensor(theirs[1]))


@pytest.mark.parametrize("name", RANDOM)
def test_random_transforms_verify(small_images, name):
    loader = feedmill.DataLoader(ImageFolder(str(small_images), RANDOM[name]), native="verify",
                                 batch_size=16, shuffle=True, num_workers=2)
    for _ in range(3):
        assert sum(len(images) for images, _ in loader) == 40
    assert loader.stats().decode.verified_samples == 120


def test_v2_draws_the_same_numbers_as_v1(small_images):
    """With the same seed, v1 and v2 have the same crop boxes and flips."""
    spellings = [
        compose(T.RandomResizedCrop(24), T.RandomHorizontalFlip(), T.PILToTensor()),
        v2.Compose([v2.RandomResizedCrop(24), v2.RandomHorizontalFlip(), v2.ToImage()]),
        nn.Sequential(v2.RandomResizedCrop(24), T.RandomHorizontalFlip(), v2.PILToTensor()),
    ]
    runs = [
        torch.cat([images for images, _ in native_loader(ImageFolder(str(small_images), one), seed=5)])
        for one in spellings
    ]
    assert torch.equal(runs[0], runs[1]) and torch.equal(runs[0], runs[2])


SPELLINGS = {
    "bilinear": (2, Image.BILINEAR, BILINEAR, "bilinear"),
    "bicubic": (3, Image.BICUBIC, InterpolationMode.BICUBIC, "bicubic"),
    "box": (4, Image.BOX, InterpolationMode.BOX, "box"),
    "hamming": (5, Image.HAMMING, InterpolationMode.HAMMING, "hamming"),
    "lanczos": (1, Image.LANCZOS, InterpolationMode.LANCZOS, "lanczos", True),
    "nearest": (0, Image.NEAREST, InterpolationMode.NEAREST, InterpolationMode.NEAREST_EXACT,
                "nearest", "nearest-exact", False),
}


@pytest.mark.parametrize("name", SPELLINGS)
def test_names_and_numbers_of_filters(small_images, name):
    for value in SPELLINGS[name]:
        if isinstance(value, str) and isinstance(v2.Resize(20, value).interpolation, str):
            continue  # a torchvision that does not know them by their names
        transforms = [
            v2.Compose([v2.Resize(20, value), v2.CenterCrop(24), v2.ToImage()]),
            v2.Compose([v2.RandomResizedCrop(24, interpolation=value), v2.ToImage()]),
        ]
        if not isinstance(value, str):
            transforms.append(ImageClassification(crop_size=24, resize_size=28, interpolation=value))
            transforms.append(compose(T.RandomResizedCrop(24, interpolation=value), T.ToTensor()))
        for transform in transforms:
            loader = feedmill.DataLoader(ImageFolder(str(small_images), transform), batch_size=16,
                                         native="verify")
            assert ((f" by {name}" in loader.explain()) == (name != "bilinear")), value
            assert sum(len(images) for images, _ in loader) == 40
            assert loader.stats().decode.verified_samples == 40


def test_presets_of_weights(small_images):
    """The transforms of torchvision's weights, with each kind of filter that they use."""
    by_filter = {}
    for model in models.list_models(module=models):
        for weights in models.get_model_weights(model):
            preset = weights.transforms()
            if type(preset) is ImageClassification:
                by_filter[preset.interpolation] = preset
    assert InterpolationMode.BICUBIC in by_filter and BILINEAR in by_filter
    for preset in by_filter.values():
        loader = feedmill.DataLoader(ImageFolder(str(small_images), preset), batch_size=16,
                                     native="verify")
        assert sum(len(images) for images, _ in loader) == 40
        assert loader.stats().decode.verified_samples == 40


@pytest.mark.parametrize("step", [v2.Resize, v2.ToImage, v2.Compose, v2.Normalize])
def test_patched_v2_classes(small_images, monkeypatch, step):
    name = "forward" if step is v2.Compose else "transform"
    if not hasattr(step, name):
        name = "_transform"  # in older versions of torchvision
    original = getattr(step, name)
    monkeypatch.setattr(step, name, lambda *args, **options: original(*args, **options))
    loader = feedmill.DataLoader(ImageFolder(str(small_images), FIXED["by_type"]))
    assert f"{step.__name__}.{name} was replaced" in loader.explain()


def test_patched_v2_functions(small_images, monkeypatch):
    original = v2.functional.resize
    monkeypatch.setattr(v2.functional, "resize", lambda *args, **options: original(*args, **options))
    loader = feedmill.DataLoader(ImageFolder(str(small_images), FIXED["image"]))
    assert "functional.resize was replaced" in loader.explain()


def test_a_deep_copy_of_a_transform_is_native(small_images):
    dataset = ImageFolder(str(small_images), copy.deepcopy(RANDOM["train"]))
    assert len(list(native_loader(dataset, batch_size=40))) == 1
