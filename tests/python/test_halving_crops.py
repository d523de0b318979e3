"""center_crop_arr() of ADM and DiT, which halves images before it resizes and crops them."""

import random

import feedmill
import numpy as np
import pytest
import torch
from helpers import compose, equal_batches
from PIL import Image
from torchvision import transforms
from torchvision.datasets import ImageFolder


def center_crop_arr(pil_image, image_size):
    """
    Center cropping implementation from ADM.
    """
    while min(*pil_image.size) >= 2 * image_size:
        pil_image = pil_image.resize(
            tuple(x // 2 for x in pil_image.size), resample=Image.BOX
        )

    scale = image_size / min(*pil_image.size)
    pil_image = pil_image.resize(
        tuple(round(x * scale) for x in pil_image.size), resample=Image.BICUBIC
    )

    arr = np.array(pil_image)
    crop_y = (arr.shape[0] - image_size) // 2
    crop_x = (arr.shape[1] - image_size) // 2
    return Image.fromarray(arr[crop_y: crop_y + image_size, crop_x: crop_x + image_size])


def transform_of(size, *others):
    return compose(
        transforms.Lambda(lambda pil_image: center_crop_arr(pil_image, size)),
        *others,
        transforms.ToTensor(),
        transforms.Normalize(mean=[0.5] * 3, std=[0.5] * 3, inplace=True),
    )


@pytest.fixture(scope="module")
def many_sizes(tmp_path_factory):
    """2000 images, most of them with small sides, some with long ones."""
    root = tmp_path_factory.mktemp("many")
    (root / "one").mkdir()
    drawn = random.Random(5)
    noise = np.random.default_rng(5).integers(0, 256, (420, 420, 3), np.uint8)
    for number in range(2000):
        most = drawn.choice((4, 40, 150, 400))
        height, width = drawn.randint(1, most), drawn.randint(1, most)
        Image.fromarray(noise[:height, :width]).save(root / "one" / f"{number:04}.jpg")
    return root


def loader_of(root, transform, **options):
    return feedmill.DataLoader(ImageFolder(str(root), transform), batch_size=8, **options)


@pytest.mark.parametrize(
    "size", [1, 9, *(pytest.param(one, marks=pytest.mark.slow) for one in (2, 32))]
)
def test_each_size_gives_the_functions_pixels(many_sizes, size):
    loader = loader_of(many_sizes, transform_of(size), native="verify")
    list(loader)
    decode = loader.stats().decode
    assert decode.verified_samples == decode.native_samples > 1990


def test_batches_equal_torchs(many_sizes):
    steps = transform_of(16, transforms.RandomHorizontalFlip())
    ours = loader_of(many_sizes, steps, num_workers=2, shuffle=True, rng="torch")
    assert ours.explain().startswith("native path")
    theirs = torch.utils.data.DataLoader(
        ImageFolder(str(many_sizes), steps), batch_size=8, num_workers=2, shuffle=True
    )
    epochs = []
    for loader in (ours, theirs):
        torch.manual_seed(3)
        epochs.append(list(loader))
    assert len(epochs[0]) == len(epochs[1]) == 250
    assert all(equal_batches(*pair) for pair in zip(*epochs))


@pytest.mark.slow
def test_before_another_resize(many_sizes):
    steps = transform_of(16, transforms.RandomHorizontalFlip(), transforms.Resize((9, 12)))
    loader = loader_of(many_sizes, steps, native="verify")
    list(loader)
    assert loader.stats().decode.verified_samples > 1990


def test_a_very_long_image_goes_through_pillow(tmp_path):
    (tmp_path / "one").mkdir()
    Image.new("RGB", (3000, 1), (9, 8, 7)).save(tmp_path / "one" / "0.jpg")
    loader = loader_of(tmp_path, transform_of(32), native="verify")
    images, _ = next(iter(loader))
    assert images.shape == (1, 3, 32, 32)
    assert loader.stats().decode.native_samples == 0


# ---- left to torch -------------------------------------------------------------------------------


def other_rounding():
    def center_crop_arr(pil_image, image_size):
        while min(*pil_image.size) >= 2 * image_size:
            pil_image = pil_image.resize(
                tuple(x // 2 for x in pil_image.size), resample=Image.BOX
            )
        scale = image_size / min(*pil_image.size)
        pil_image = pil_image.resize(
            tuple(int(x * scale) for x in pil_image.size), resample=Image.BICUBIC
        )
        arr = np.array(pil_image)
        crop_y = (arr.shape[0] - image_size) // 2
        crop_x = (arr.shape[1] - image_size) // 2
        return Image.fromarray(arr[crop_y: crop_y + image_size, crop_x: crop_x + image_size])

    return center_crop_arr


def other_filter():
    def center_crop_arr(pil_image, image_size):
        while min(*pil_image.size) >= 2 * image_size:
            pil_image = pil_image.resize(
                tuple(x // 2 for x in pil_image.size), resample=Image.HAMMING
            )
        scale = image_size / min(*pil_image.size)
        pil_image = pil_image.resize(
            tuple(round(x * scale) for x in pil_image.size), resample=Image.BICUBIC
        )
        arr = np.array(pil_image)
        crop_y = (arr.shape[0] - image_size) // 2
        crop_x = (arr.shape[1] - image_size) // 2
        return Image.fromarray(arr[crop_y: crop_y + image_size, crop_x: crop_x + image_size])

    return center_crop_arr


def by_name_only():
    def center_crop_arr(pil_image, image_size):
        return pil_image.resize((image_size, image_size))

    return center_crop_arr


def wrapped():
    def center_crop_arr(*arguments):
        return original(*arguments).rotate(9)

    original = globals()["center_crop_arr"]
    center_crop_arr.__wrapped__ = original
    center_crop_arr.__module__, center_crop_arr.__qualname__ = __name__, "center_crop_arr"
    return center_crop_arr


@pytest.mark.parametrize("make", [other_rounding, other_filter, by_name_only, wrapped])
def test_look_alikes(small_images, make):
    crop = make()
    steps = compose(transforms.Lambda(lambda image: crop(image, 9)), transforms.ToTensor())
    assert loader_of(small_images, steps).explain().startswith("torch's own path")


@pytest.mark.parametrize("size", [9.0, 0, -3, True, 70000, "9", None])
def test_other_sizes(small_images, size):
    assert loader_of(small_images, transform_of(size)).explain().startswith("torch's own path")


@pytest.mark.parametrize("place", [
    ("Image", transforms), ("np", torch), ("min", max), ("round", int), ("tuple", list)])
def test_replaced_globals(small_images, monkeypatch, place):
    assert loader_of(small_images, transform_of(9)).explain().startswith("native path")
    monkeypatch.setitem(globals(), *place)
    assert loader_of(small_images, transform_of(9)).explain().startswith("torch's own path")


def test_replaced_functions_of_libraries(small_images, monkeypatch):
    for owner, name, value in (
        (Image, "BOX", Image.NEAREST), (Image, "fromarray", lambda array: None),
        (np, "array", np.asarray), (Image.Image, "size", property(lambda image: (8, 8))),
        (Image.Image, "resize", lambda image, size, resample: image),
    ):
        with monkeypatch.context() as changed:
            changed.setattr(owner, name, value)
            text = loader_of(small_images, transform_of(9)).explain()
        assert text.startswith("torch's own path"), name
    assert loader_of(small_images, transform_of(9)).explain().startswith("native path")


def test_where_it_is_not_supported(small_images):
    crop = transforms.Lambda(lambda image: center_crop_arr(image, 9))
    at_random = lambda image: center_crop_arr(image, 9) if random.random() < 0.5 else image
    for steps in (
        (transforms.ToTensor(), crop),
        (transforms.Grayscale(1), crop, transforms.ToTensor()),
        (at_random, transforms.Resize((9, 9)), transforms.ToTensor()),
        (transforms.RandomApply([crop]), transforms.CenterCrop(9), transforms.ToTensor()),
    ):
        text = loader_of(small_images, compose(*steps)).explain()
        assert text.startswith("torch's own path"), steps
