"""EfficientNet's crops, as ResNeSt has them."""

import math
import random

import feedmill
import numpy as np
import pytest
import torch
from helpers import compose, equal_batches, module_of, native_loader, save_jpeg
from PIL import Image
from test_torch_draws import check
from torchvision import transforms as T
from torchvision.datasets import ImageFolder

SOURCE = '''
import math
import random

from torchvision.transforms import Resize, InterpolationMode


class ERandomCrop:
    def __init__(self, imgsize, min_covered=0.1, aspect_ratio_range=(3./4, 4./3),
                 area_range=(0.1, 1.0), max_attempts=10):
        self.imgsize = imgsize
        self.min_covered = min_covered
        self.aspect_ratio_range = aspect_ratio_range
        self.area_range = area_range
        self.max_attempts = max_attempts
        self._fallback = ECenterCrop(imgsize)
        self.resize_method = Resize((imgsize, imgsize),
                                    interpolation=InterpolationMode.BILINEAR)

    def __call__(self, img):
        original_width, original_height = img.size
        min_area = self.area_range[0] * (original_width * original_height)
        max_area = self.area_range[1] * (original_width * original_height)

        for _ in range(self.max_attempts):
            aspect_ratio = random.uniform(*self.aspect_ratio_range)
            height = int(round(math.sqrt(min_area / aspect_ratio)))
            max_height = int(round(math.sqrt(max_area / aspect_ratio)))

            if max_height * aspect_ratio > original_width:
                max_height = (original_width + 0.5 - 1e-7) / aspect_ratio
                max_height = int(max_height)
                if max_height * aspect_ratio > original_width:
                    max_height -= 1

            if max_height > original_height:
                max_height = original_height

            if height >= max_height:
                height = max_height

            height = int(round(random.uniform(height, max_height)))
            width = int(round(height * aspect_ratio))
            area = width * height

            if area < min_area or area > max_area:
                continue
            if width > original_width or height > original_height:
                continue
            if area < self.min_covered * (original_width * original_height):
                continue
            if width == original_width and height == original_height:
                return self._fallback(img)

            x = random.randint(0, original_width - width)
            y = random.randint(0, original_height - height)
            img = img.crop((x, y, x + width, y + height))
            return self.resize_method(img)

        return self._fallback(img)


class ECenterCrop:
    """Crop the given PIL Image and resize it to desired size."""
    def __init__(self, imgsize):
        self.imgsize = imgsize
        self.resize_method = Resize((imgsize, imgsize),
                                    interpolation=InterpolationMode.BILINEAR)

    def __call__(self, img):
        image_width, image_height = img.size
        image_short = min(image_width, image_height)

        crop_size = float(self.imgsize) / (self.imgsize + 32) * image_short

        crop_height, crop_width = crop_size, crop_size
        crop_top = int(round((image_height - crop_height) / 2.))
        crop_left = int(round((image_width - crop_width) / 2.))
        img = img.crop((crop_left, crop_top, crop_left + crop_width, crop_top + crop_height))
        return self.resize_method(img)
'''
CROPS = module_of(SOURCE)
TORCHS = "torch's own path"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Images of many sizes, from 3 x 3 pixels on, some of them grey, one that Pillow decodes."""
    root = tmp_path_factory.mktemp("efficient")
    drawn = random.Random(5)
    noise = np.random.default_rng(5).integers(0, 256, (300, 300, 3), np.uint8)
    for number in range(600):
        most = drawn.choice((5, 40, 150, 290))
        height, width = drawn.randint(3, most), drawn.randint(3, most)
        image = Image.fromarray(noise[:height, :width])
        image = image.convert("L") if number % 9 == 0 else image
        (root / "one").mkdir(exist_ok=True)
        image.save(root / "one" / f"{number:04}.jpg")
    Image.fromarray(noise[:60, :50]).save(root / "one" / "other.bmp")
    return str(root)


def loader_of(folder, *steps, **options):
    return feedmill.DataLoader(ImageFolder(folder, compose(*steps)), batch_size=8, **options)


def epochs_of(make, folder, *steps, **options):
    torch.manual_seed(5)
    random.seed(6)
    dataset = ImageFolder(folder, compose(*steps))
    loader = make(dataset, batch_size=8, shuffle=True, **options)
    return loader, [list(loader), list(loader), torch.rand(1), random.random()]


def compare(folder, *steps):
    for n_workers in (0, 2):
        _, wanted = epochs_of(torch.utils.data.DataLoader, folder, *steps, num_workers=n_workers)
        for more in ({}, {"native": "verify"}):
            loader, found = epochs_of(
                feedmill.DataLoader, folder, *steps, num_workers=n_workers, **more
            )
            assert loader.stats().path == "native", loader.explain()
            assert equal_batches(found, wanted)


def test_batches_equal_torchs(folder):
    steps = CROPS.ERandomCrop(24), T.RandomHorizontalFlip(), T.ColorJitter(0.4), T.ToTensor()
    compare(folder, *steps)
    compare(folder, CROPS.ECenterCrop(24), T.ToTensor())


@pytest.mark.parametrize("arguments", [
    {"aspect_ratio_range": (0.2, 4)}, {"area_range": [0.9, 1]}, {"min_covered": 0.7},
    {"max_attempts": 1}, {"max_attempts": 0}, {"aspect_ratio_range": (1, 1), "area_range": (1, 1)},
    {"area_range": (1e-6, 3.0), "min_covered": 1e-6},
])  # fmt: skip
def test_other_arguments(folder, arguments):
    compare(folder, CROPS.ERandomCrop(9, **arguments), T.PILToTensor())


@pytest.mark.parametrize("arguments", [
    {}, {"aspect_ratio_range": (0.3, 3.0), "area_range": (0.05, 1.2)}, {"min_covered": 0.5}])
def test_draws_are_pythons(arguments):
    check(T.Compose([CROPS.ERandomCrop(12, **arguments), T.RandomHorizontalFlip(), T.ToTensor()]))


def test_other_filters(folder):
    crop = CROPS.ERandomCrop(24)
    crop.resize_method = T.Resize([24, 24], T.InterpolationMode.BICUBIC)
    crop._fallback.resize_method = crop.resize_method
    compare(folder, crop, T.ToTensor())


def test_before_another_resize(folder):
    compare(folder, T.RandomApply([CROPS.ERandomCrop(24)], 0.5), T.Resize((9, 12)), T.ToTensor())


@pytest.mark.parametrize("kind", ["ERandomCrop", "ECenterCrop"])
def test_with_a_seed_of_the_loader(folder, kind):
    loader = loader_of(folder, getattr(CROPS, kind)(24), T.ToTensor(), seed=4, native="verify")
    list(loader)
    decode = loader.stats().decode
    assert decode.native_samples == 600 and decode.verified_samples == 601
    if kind == "ECenterCrop":
        text = loader_of(folder, CROPS.ECenterCrop(24), T.ToTensor()).explain()
        assert "draws no random numbers" in text


def test_crops_of_the_loaders_seed_are_distributed_alike(folder, tmp_path):
    save_jpeg(tmp_path / "a" / "0.jpg", 300, 200)
    dataset = ImageFolder(str(tmp_path), compose(CROPS.ERandomCrop(24), T.ToTensor()))
    loader = native_loader(dataset, seed=3)
    drawn = [loader.draws(0, epoch)[0][1] for epoch in range(1500)]
    boxes = []
    image = Image.new("RGB", (300, 200))
    image.crop = lambda box: boxes.append(box) or Image.new("RGB", (2, 2))
    random.seed(2)
    for _ in range(1500):
        CROPS.ERandomCrop(24)(image)
    wanted = np.array([(y, x, down - y, right - x) for x, y, right, down in boxes], float)
    names = ("top", "left", "height", "width")
    found = np.array([[one[name] for name in names] for one in drawn], float)
    spread = wanted.std(0) / math.sqrt(len(wanted))
    assert (abs(found.mean(0) - wanted.mean(0)) < 6 * spread).all()


def test_an_image_without_a_crop_is_left_to_pillow(tmp_path):
    save_jpeg(tmp_path / "a" / "0.jpg", 1, 1)
    loader, found = epochs_of(feedmill.DataLoader, str(tmp_path), CROPS.ECenterCrop(9), T.ToTensor())
    _, wanted = epochs_of(
        torch.utils.data.DataLoader, str(tmp_path), CROPS.ECenterCrop(9), T.ToTensor()
    )
    assert loader.stats().decode.native_samples == 0
    assert equal_batches(found, wanted)


# ---- left to torch -------------------------------------------------------------------------------


@pytest.mark.parametrize(("old", "new"), [
    ("+ 0.5 - 1e-7", "+ 0.5"), ("height >= max_height", "height > max_height"),
    ("area > max_area", "area >= max_area"), ("max_height -= 1", "max_height -= 2"),
    ("round(random.uniform(height, max_height))", "random.uniform(height, max_height)"),
    ("random.randint(0, original_width - width)", "random.randrange(original_width - width + 1)"),
    ("x = random.randint(0, original_width - width)\n            y",
     "y = random.randint(0, original_height - height)\n            x"),
    ("self.imgsize + 32)", "self.imgsize + 31)"), ("image_height - crop_height) / 2.",
     "image_height - crop_height) // 2."),
    ("crop_left + crop_width, crop_top", "crop_left + int(crop_width), crop_top"),
    ("image_short = min", "image_short = max"), ("for _ in range", "for self.n in range"),
])  # fmt: skip
def test_look_alikes(folder, old, new):
    text = loader_of(folder, module_of(SOURCE, old, new).ERandomCrop(9), T.ToTensor()).explain()
    assert text.startswith(TORCHS)


class Number(float):
    def __mul__(self, other):
        return 3.0


@pytest.mark.parametrize(("name", "value"), [
    ("max_attempts", 2000), ("max_attempts", True), ("max_attempts", 3.0), ("min_covered", 0),
    ("min_covered", "0.1"), ("min_covered", Number(0.1)), ("area_range", (0.1, 0.5, 0.9)),
    ("area_range", (0.0, 1)), ("area_range", (1, 0.5)), ("area_range", (0.1, math.inf)),
    ("aspect_ratio_range", torch.tensor([0.75, 1.5])), ("aspect_ratio_range", (math.nan, 1)),
    ("aspect_ratio_range", (-1, 1)), ("_fallback", T.CenterCrop(9)), ("_fallback", None),
    ("_fallback", CROPS.ECenterCrop(8)), ("_fallback", CROPS.ERandomCrop(9)),
    ("resize_method", T.Resize(9)), ("resize_method", T.Resize((9, 8))),
    ("resize_method", T.Resize((9, 9), T.InterpolationMode.NEAREST)),
    ("resize_method", T.CenterCrop((9, 9))), ("resize_method", lambda image: image),
])  # fmt: skip
def test_other_attributes(folder, name, value):
    crop = CROPS.ERandomCrop(9)
    assert loader_of(folder, crop, T.ToTensor()).explain().startswith("native path")
    setattr(crop, name, value)
    assert loader_of(folder, crop, T.ToTensor()).explain().startswith(TORCHS)


@pytest.mark.parametrize("size", [0, 9.0, True, 70000, "9"])
def test_other_sizes(folder, size):
    crop = CROPS.ECenterCrop(9)
    crop.imgsize = size
    assert loader_of(folder, crop, T.ToTensor()).explain().startswith(TORCHS)


def test_other_places(folder):
    for steps in (
        (T.ToTensor(), CROPS.ECenterCrop(9)), (T.ToTensor(), CROPS.ERandomCrop(9)),
    ):
        assert loader_of(folder, *steps).explain().startswith(TORCHS)


def test_replaced_functions(folder, monkeypatch):
    module = module_of(SOURCE)
    steps = module.ERandomCrop(9), T.ToTensor()
    for owner, name, value in (
        (random, "uniform", lambda low, high: low), (random, "randint", lambda low, high: low),
        (math, "sqrt", lambda value: value), (module, "round", math.floor), (module, "min", max),
        (module, "random", random.Random(3)), (module, "math", np),
        (Image.Image, "size", property(lambda image: (8, 8))),
        (Image.Image, "crop", lambda image, box: image),
        (module.ECenterCrop, "__call__", lambda self, img: img),
        (module.ERandomCrop, "imgsize", property(lambda self: 9)),
        (module.ERandomCrop, "max_attempts", property(lambda self: 9, lambda self, value: None)),
    ):
        with monkeypatch.context() as changed:
            changed.setattr(owner, name, value, raising=False)
            text = loader_of(folder, *steps).explain()
        is_read = (owner, name) != (module.ERandomCrop, "imgsize")  # which __call__ does not
        assert text.startswith(TORCHS if is_read else "native path"), name
    assert loader_of(folder, *steps).explain().startswith("native path")
