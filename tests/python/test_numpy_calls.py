"""Transforms of the user's own that compute with NumPy: which are native, with torch's batches, and
which are left to torch."""

import linecache
import random

import feedmill
import numpy as np
import pytest
import torch
from helpers import cifar_in_memory, compose, equal_batches, save_jpeg
from PIL import Image, ImageFilter, ImageOps
from torchvision import transforms as T
from torchvision.datasets import ImageFolder

MEAN, STD = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]
CROP = (T.RandomResizedCrop(12), T.RandomHorizontalFlip())
LOG = []


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    root = tmp_path_factory.mktemp("numpy")
    for number in range(11):
        save_jpeg(root / "class" / f"{number}.jpg", 20 + number, 40 - number, seed=number)
    every = np.stack([np.roll(np.arange(256, dtype=np.uint8), n).reshape(16, 16) for n in range(3)], 2)
    Image.fromarray(every).save(root / "class" / "all.png")
    Image.fromarray(every).save(root / "class" / "all.bmp")  # which Pillow decodes
    Image.fromarray(every[..., 0]).save(root / "class" / "grey.png")
    return str(root)


class Normalize:
    """As pytorch_image_classification's, with its ToTensor."""

    def __init__(self, mean: np.ndarray, std: np.ndarray):
        self.mean = np.array(mean)
        self.std = np.array(std)

    def __call__(self, image):
        image = np.asarray(image).astype(np.float32) / 255.
        image = (image - self.mean) / self.std
        return image


class ToTensor:
    def __call__(self, data):
        if isinstance(data, tuple):
            return tuple([self._to_tensor(image) for image in data])
        else:
            return self._to_tensor(data)

    @staticmethod
    def _to_tensor(data):
        if len(data.shape) == 3:
            return torch.from_numpy(data.transpose(2, 0, 1).astype(np.float32))
        else:
            return torch.from_numpy(data[None, :, :].astype(np.float32))


class Values:
    """A transform whose code is given."""

    mean = np.array(MEAN)
    std = np.array(STD, np.float32)
    row = np.array([MEAN])
    column = np.array(MEAN)[:, None, None]
    one = np.array(0.5)
    wide = np.ones((12, 12, 3))
    line = np.ones((12, 1))
    objects = np.array(MEAN, object)
    masked = np.ma.array(MEAN)
    number = 0.3
    crop = T.RandomCrop(12)

    @property
    def computed(self):
        LOG.append(1)
        return self.mean


def made_of(lines, kind=Values, **scope):
    name = f"<numpy of {abs(hash(lines))}>"
    body = "".join(f"        {one}\n" for one in lines.split("\n"))
    text = f"class Made(Values):\n    def __call__(self, image):\n{body}"
    linecache.cache[name] = len(text), None, text.splitlines(True), name
    scope = {**globals(), "__name__": "made", "Values": kind, **scope}
    exec(compile(text, name, "exec"), scope)
    return scope["Made"]()


def epochs_of(make, dataset, **options):
    torch.manual_seed(5)
    loader = make(dataset, batch_size=4, shuffle=True, **options)
    return loader, [list(loader), list(loader), torch.rand(1)]


def compare(folder, *steps):
    compare_datasets(ImageFolder(folder, compose(*CROP, *steps)))


def compare_datasets(dataset):
    for n_workers in (0, 2):
        _, wanted = epochs_of(torch.utils.data.DataLoader, dataset, num_workers=n_workers)
        for more in ({}, {"native": "verify"}):
            loader, found = epochs_of(feedmill.DataLoader, dataset, num_workers=n_workers, **more)
            assert loader.stats().path == "native", loader.explain()
            assert equal_batches(found, wanted)


def explained(folder, *steps):
    return feedmill.DataLoader(ImageFolder(folder, compose(*CROP, *steps)), batch_size=4).explain()


def test_as_in_public_code(folder):
    compare(folder, Normalize(MEAN, STD), ToTensor())
    compare(folder, Normalize(np.float32(MEAN), np.float32(STD)), ToTensor())


TO = "return torch.from_numpy(image.transpose(2, 0, 1)).float()"
NATIVE = (
    f"image = np.array(image)\n{TO}",
    f"image = np.array(image, dtype=np.float32) / 127.5 - 1\n{TO}",
    f"image = np.asarray(image, np.float32)\nimage /= 255\nimage -= self.mean\nimage /= self.std\n{TO}",
    f"image = np.array(image, 'float64')\nimage *= 2\nimage += self.one\n{TO}",
    f"image = (np.array(image) - self.row) * self.number\n{TO}",
    f"image = 1 - np.asarray(image) / 255\n{TO}",
    f"image = (self.mean - np.asarray(image) / 255) * -2.5\n{TO}",
    "image = np.asarray(image).transpose((2, 0, 1)) / 255\nimage = (image - self.column) / 0.5\n"
    "return torch.from_numpy(image.copy()).float()",
    "image = np.transpose(np.array(image), (2, 0, 1))\nimage = np.ascontiguousarray(image)\n"
    "return torch.tensor(image) / 255",
    "return torch.as_tensor(np.array(image).astype('float32').transpose([2, 0, 1])).div_(255).sub(1)",
    "image = np.array(image).astype(float)\nif image.ndim == 3:\n"
    "    image = image.transpose(2, 0, 1)\nif isinstance(image, np.ndarray):\n    pass\n"
    "return torch.from_numpy(image).float()",
    f"image = np.array(image) + 7\n{TO}",  # which wraps
    f"image = np.array(image)\nimage *= 2\n{TO}",
)


@pytest.mark.parametrize("lines", NATIVE)
def test_arithmetic(folder, lines):
    if "isinstance" in lines:
        lines = lines.replace("if isinstance(image, np.ndarray):\n    pass\n", "")
    compare(folder, made_of(lines))


def test_images_in_memory():
    dataset = cifar_in_memory(37)
    steps = T.RandomCrop(32, 4), T.RandomHorizontalFlip(), Normalize(MEAN, STD), ToTensor()
    dataset.transform = compose(*steps)
    _, wanted = epochs_of(torch.utils.data.DataLoader, dataset, num_workers=2)
    loader, found = epochs_of(feedmill.DataLoader, dataset, num_workers=2)
    assert loader.stats().path == "native", loader.explain()
    assert equal_batches(found, wanted)


def test_transforms_before_and_behind(folder):
    compare(
        folder, T.ColorJitter(0.3), made_of("return np.asarray(image).transpose(2, 0, 1)"),
        T.Lambda(lambda image: torch.from_numpy(image.copy())),
        T.ConvertImageDtype(torch.float32), T.Normalize(MEAN, STD), T.RandomErasing(),
    )
    pair = made_of(f"if isinstance(image, np.ndarray):\n    image = image / 255\n{TO}")
    compare(folder, T.Lambda(lambda image: np.asarray(image)), pair)
    tensor = made_of(f"if isinstance(image, np.ndarray):\n    image = image / 255\n{TO}")
    assert explained(folder, tensor).startswith("torch's own path")


def test_a_transform_as_it_is_later(folder):
    """What it computes with may change between epochs."""
    transform = Normalize(MEAN, STD)
    dataset = ImageFolder(folder, compose(*CROP, transform, ToTensor()))
    found = []
    for make in (torch.utils.data.DataLoader, feedmill.DataLoader):
        transform.mean = np.array(MEAN)
        torch.manual_seed(3)
        loader = make(dataset, batch_size=4, num_workers=1)
        found.append([list(loader)])
        transform.mean += 1
        found[-1].append(list(loader))
    assert loader.stats().path == "native" and equal_batches(*found)


A = "image = np.array(image)"
LEFT = (
    # Other values than one for each channel.
    f"{A} * self.wide\n{TO}", f"{A} * self.line\n{TO}", f"{A} * self.column\n{TO}",
    f"{A}.transpose(2, 0, 1) * self.mean\nreturn torch.from_numpy(image)",
    f"{A} * self.objects\n{TO}", f"{A} * self.masked\n{TO}", f"{A} * self.computed\n{TO}",
    f"{A} * [1, 2, 3]\n{TO}", f"{A} * image\n{TO}", f"{A}\nimage = image - image\n{TO}",
    # Other functions, methods and operators.
    f"{A}\nimage = np.exp(image)\n{TO}", f"{A} ** 2\n{TO}", f"255 / {A[8:]}\n{TO}",
    f"{A}\nimage = image.clip(3, 9)\n{TO}", f"{A}[:, ::-1]\n{TO}", f"{A} // 2\n{TO}",
    f"{A}.astype(np.float32).astype(np.uint8)\n{TO}", f"{A}.astype(np.int32)\n{TO}",
    f"{A}.astype(np.float16)\n{TO}", f"{A}.astype(np.float32, 'F')\n{TO}",
    f"image = np.array(image, copy=False)\n{TO}", f"image = np.array(image, ndmin=4)\n{TO}",
    f"{A}\nimage[0] = 3\n{TO}", f"{A}\nimage = image.T\n{TO}", f"{A} - image.mean()\n{TO}",
    f"{A}\nif image.shape[0] > 3:\n    image = image + 1\n{TO}",
    f"{A}\nif image.size > 3:\n    image = image + 1\n{TO}",
    f"{A}.reshape(-1)\n{TO}", f"{A}\nimage = np.random.permutation(image)\n{TO}",
    f"{A}\nfor one in image:\n    pass\n{TO}", f"image = np.frombuffer(image)\n{TO}",
    # Other shapes.
    f"{A}\nreturn torch.from_numpy(image)", f"{A}\nreturn image", f"{A}\nreturn image.shape",
    f"{A}\nreturn torch.from_numpy(image.transpose(1, 0, 2)).float()",
    f"{A}\nreturn torch.from_numpy(image.transpose(2, 1, 0)).float()",
    f"{A}\nreturn torch.from_numpy(image.transpose()).float()",
    f"{A}.transpose(2, 0, 1)\n{TO}", f"{A}\nreturn torch.from_numpy(image.transpose(True * 2, 0, 1))",
    f"{A}\nreturn torch.tensor(image.transpose(2, 0, 1), dtype=torch.float32)",
    f"{A}\nreturn torch.from_numpy(image.transpose(2, 0, 1))",  # images as they are, uint8
    # Errors of each image.
    f"image = np.asarray(image)\nimage /= 255\n{TO}", f"image = np.asarray(image)\nimage *= 2\n{TO}",
    f"{A} + 300\n{TO}", f"{A} / 0\n{TO}", f"{A} * 1e300 * 1e300\n{TO}", f"{A}\nimage /= 255\n{TO}",
    # PIL images again, or tensors.
    f"{A}\nimage = Image.fromarray(image)\nreturn torch.from_numpy(np.array(image))",
    "return torch.from_numpy(image)", "image = torch.from_numpy(np.array(image))\nreturn np.array(image)",
    f"{A}\nimage = np.array(image)\n{TO}", f"other = np.array(image)\n{A}\n{TO}",
    f"{A}\nimage = T.functional.hflip(image)\n{TO}",
)
UINT8 = "return torch.from_numpy(image.transpose(2, 0, 1))"


@pytest.mark.parametrize("lines", LEFT)
def test_what_is_left_to_torch(folder, lines):
    text = explained(folder, made_of(lines))
    if lines.endswith(UINT8) and lines.startswith(f"{A}\nreturn"):
        assert text.startswith("native path")  # the pixels as they are
    else:
        assert text.startswith("torch's own path"), text
    assert not LOG


def test_several_images_of_one(folder):
    both = (
        "one = np.array(self.crop(image)) / 255\none = torch.from_numpy(one.transpose(2, 0, 1)).float()\n"
        "other = np.asarray(self.crop(image)).transpose(2, 0, 1)\n{}\n"
        "return [one, torch.from_numpy(other.copy()) / 2]"
    )
    for lines in ("pass", "other = other * 3", "if other.ndim == 3:\n    other = other * 2"):
        compare_datasets(ImageFolder(folder, made_of(both.format(lines))))
    for lines in (
        "if one.ndim == 3:\n    other = other * 2", "if image.ndim == 3:\n    other = other * 2",
        "if len(image.shape) == 3:\n    other = other * 2", "one = one.transpose(2, 0, 1)",
        "if isinstance(image, np.ndarray):\n    other = other * 2",
    ):
        dataset = ImageFolder(folder, made_of(both.format(lines)))
        text = feedmill.DataLoader(dataset, batch_size=4).explain()
        assert text.startswith("torch's own path"), lines


def test_transforms_that_get_an_array(folder):
    array = made_of("return np.asarray(image)")
    for other in (T.ToTensor(), T.RandomHorizontalFlip(), T.ToPILImage(), T.Normalize(MEAN, STD)):
        assert "NumPy array" in explained(folder, array, other, ToTensor())
    assert "returns a NumPy array" in explained(folder, array)
    for function in (
        lambda image: ImageOps.invert(image), lambda image: T.functional.hflip(image),
        lambda image: image.filter(ImageFilter.GaussianBlur(1)), lambda image: image * 2.0 / image,
        lambda image: image.convert("RGB"), lambda image: image.add(1), lambda image: image.float(),
        lambda image: ImageOps.invert(image) if random.random() < 0.5 else image,
    ):
        text = explained(folder, array, T.Lambda(function), ToTensor())
        assert text.startswith("torch's own path"), text
    sometimes = T.RandomApply([T.Lambda(lambda image: np.asarray(image))])
    assert explained(folder, sometimes, ToTensor()).startswith("torch's own path")
    grey = explained(folder, T.Grayscale(), Normalize(MEAN, STD), ToTensor())
    assert grey.startswith("torch's own path")
    assert explained(folder, T.ToTensor(), array, ToTensor()).startswith("torch's own path")


def other(*_, **__):
    LOG.append(1)


@pytest.mark.parametrize("place", [
    (np, "asarray"), (np, "float32"), (torch, "from_numpy"), (Image.Image, "__array_interface__"),
])
def test_replaced_functions(folder, monkeypatch, place):
    steps = Normalize(MEAN, STD), ToTensor()
    assert explained(folder, *steps).startswith("native path")
    with monkeypatch.context() as changed:
        changed.setattr(*place, other if place[0] is not Image.Image else property(other))
        assert explained(folder, *steps).startswith("torch's own path")
    assert not LOG


def test_subclasses_of_arrays(folder):
    class Own(np.ndarray):
        def __rsub__(self, other):
            LOG.append(1)
            return other

    transform = Normalize(MEAN, STD)
    transform.mean = transform.mean.view(Own)
    assert explained(folder, transform, ToTensor()).startswith("torch's own path")
    transform.mean = np.float64(0.5)
    assert explained(folder, transform, ToTensor()).startswith("torch's own path")
    assert not LOG


def test_static_methods(folder):
    class Static(ToTensor):
        @staticmethod
        def _to_tensor(data):
            LOG.append(1)
            return torch.zeros(3, 12, 12)

    assert explained(folder, Normalize(MEAN, STD), Static()).startswith("torch's own path")
    hidden = ToTensor()
    hidden._to_tensor = other
    assert explained(folder, Normalize(MEAN, STD), hidden).startswith("torch's own path")
    assert not LOG
