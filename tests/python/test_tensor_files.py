"""Datasets that load files as tensors, by torchvision's decode_image() and read_image()."""

import os
import random
import shutil
import sys
import traceback
from pathlib import Path

import feedmill
import pytest
import torch
import torchvision_io
from feedmill.planner import tensor_files
from helpers import equal_batches, native_loader, save_jpeg, slow_but_for
from PIL import Image
from torch.utils.data import Dataset
from torchvision import io, transforms
from torchvision.datasets import DatasetFolder, ImageFolder
from torchvision.io import ImageReadMode, decode_image, read_image
from torchvision.transforms import v2

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))

import make_png

torchvision_io.need()
# Before torchvision 0.20 decode_image() takes no path.
takes_paths = "str" in str(decode_image.__annotations__.get("input"))

RANDOM = v2.Compose([
    v2.RandomResizedCrop(24, antialias=True), v2.RandomHorizontalFlip(), v2.ColorJitter(0.3, 0.3),
    v2.ToDtype(torch.float32, scale=True), v2.Normalize([0.5] * 3, [0.25] * 3),
])
V1 = transforms.Compose([
    transforms.Resize((20, 24), antialias=True), transforms.RandomCrop(16),
    transforms.ConvertImageDtype(torch.float32),
])
BYTES = v2.Compose([v2.CenterCrop(18), v2.RandomVerticalFlip()])


class Files(Dataset):
    def __init__(self, paths, transform=RANDOM, target_transform=None):
        self.paths = [str(path) for path in paths]
        self.labels = list(range(len(self.paths)))
        self.transform = transform
        self.target_transform = target_transform

    def __len__(self):
        return len(self.paths)

    def __getitem__(self, idx):
        image = read_image(self.paths[idx], ImageReadMode.RGB)
        label = self.labels[idx]
        if self.transform:
            image = self.transform(image)
        if self.target_transform:
            label = self.target_transform(label)
        return image, label


class Unchanged(Files):
    def __getitem__(self, idx):
        image = io.read_image(self.paths[idx])
        return {"image": self.transform(image), "label": self.labels[idx]}


class ByKeyword(Files):
    def __getitem__(self, idx):
        image = io.read_image(path=self.paths[idx], mode=ImageReadMode.RGB, apply_exif_orientation=False)
        return self.transform(image)


class Decodes(Files):
    """As PyTorch's tutorial."""

    def __getitem__(self, idx):
        image = decode_image(self.paths[idx], mode="RGB")
        if isinstance(image, torch.Tensor):
            image = self.transform(image)
        return image, self.labels[idx]


KINDS = [Files, Unchanged, ByKeyword, *([Decodes] if takes_paths else [])]


@pytest.fixture
def paths(small_images):
    return [path for path, _ in ImageFolder(str(small_images)).samples]


def compare(dataset, **options):
    options = {"batch_size": 8, "shuffle": True, **options}
    ours, theirs = native_loader(dataset, **options), torch.utils.data.DataLoader(dataset, **options)
    for n_workers in (0, 2):
        loaders = []
        for loader in (ours, theirs):
            torch.manual_seed(n_workers)
            loader = type(loader)(dataset, num_workers=n_workers, **options)
            loaders.append(list(loader))
        assert all(map(equal_batches, *loaders)) and len(loaders[0]) == len(loaders[1]) > 0
        if options["batch_size"]:
            images = [batch[0] if type(batch) is list else batch for batch in loaders[0]]
            others = [batch[0] if type(batch) is list else batch for batch in loaders[1]]
            if isinstance(images[0], torch.Tensor):
                assert [one.stride() for one in images] == [one.stride() for one in others]
    for _ in feedmill.DataLoader(dataset, **{**options, "native": "verify"}):
        pass
    return ours


@pytest.mark.parametrize("transform", slow_but_for([RANDOM], [RANDOM, V1, BYTES]),
                         ids=["v2", "v1", "bytes"])
@pytest.mark.parametrize("kind", KINDS)
def test_these_are_native(paths, kind, transform):
    dataset = kind(paths, transform)
    compare(dataset)
    if kind is not Unchanged:
        compare(dataset, batch_size=None, sampler=[3, -1, 3], shuffle=None)


@pytest.mark.parametrize("kind", [ImageFolder, DatasetFolder])
def test_loaders_of_folders(small_images, kind):
    extensions = {} if kind is ImageFolder else {"extensions": (".jpg",)}
    loaders = [read_image, *([decode_image] if takes_paths else [])]
    for loader in loaders:
        compare(kind(str(small_images), transform=RANDOM, loader=loader, **extensions))


def test_images_without_a_transform(tmp_path):
    paths = [tmp_path / f"{i}.jpg" for i in range(4)]
    for number, path in enumerate(paths):
        save_jpeg(path, 30, 20, seed=number)
    dataset = Files(paths, None)
    for mine, other in zip(feedmill.DataLoader(dataset, batch_size=2),
                           torch.utils.data.DataLoader(dataset, batch_size=2), strict=True):
        assert equal_batches(mine, other)


def test_other_kinds_of_files_are_torchvisions(paths, tmp_path):
    """Grayscale and CMYK JPEGs, and PNGs with alpha, which torchvision converts in its own way."""
    others = [tmp_path / name for name in ("grey.jpg", "cmyk.jpg", "alpha.png", "grey.png", "p.png")]
    for path, mode in zip(others, ("L", "CMYK", "RGBA", "LA", "P")):
        with Image.open(paths[0]) as image:
            image.resize((40, 30)).convert("RGB").convert(mode).save(path)
    shutil.copy(paths[0], tmp_path / "turned.jpg")
    dataset = Files([*paths[:8], *others, tmp_path / "turned.jpg"])
    loader = compare(dataset, batch_size=3)
    list(loader)
    assert loader.stats().decode.fallback_samples >= len(others)


def test_images_that_stay_grey(paths, tmp_path):
    """Are no batches of three channels; where a look at some files tells, torch makes the others."""
    files = []
    for number in range(6):
        save_jpeg(tmp_path / f"{number}.jpg", 30, 30, seed=number, mode="L")
        files.append(tmp_path / f"{number}.jpg")
    dataset = Unchanged(files, BYTES)
    loader = feedmill.DataLoader(dataset, batch_size=2)
    text = loader.explain()
    assert not text.startswith("native path") and "mode L" in text and "mode='RGB'" in text
    assert next(iter(loader))["image"].shape == (2, 1, 18, 18)
    compare(Files(files))
    # One that the look does not meet is an error, as in torch's batch of unequal images.
    mixed = Unchanged([*(paths[:18] * 2), *files[:1]], BYTES)
    for kind in (torch.utils.data.DataLoader, native_loader):
        with pytest.raises(RuntimeError):
            list(kind(mixed, batch_size=37))


@pytest.mark.parametrize("n_workers", [0, 2])
def test_errors_are_torchvisions(paths, tmp_path, n_workers):
    broken, empty = tmp_path / "broken.jpg", tmp_path / "empty.jpg"
    with open(paths[0], "rb") as file:
        broken.write_bytes(file.read()[:-300])
    empty.touch()
    for bad in (broken, empty, tmp_path / "missing.jpg"):
        texts = []
        for kind in (torch.utils.data.DataLoader, native_loader):
            with pytest.raises(RuntimeError) as caught:
                list(kind(Files([*paths[:3], bad]), batch_size=4, num_workers=n_workers))
            texts.append(str(caught.value).splitlines())
            traceback.clear_frames(caught.tb)  # see helpers.take()
        wanted = texts[0][-1] if n_workers else texts[0][0]
        assert any(wanted in line for line in texts[1]), texts


# ---- left to torch -------------------------------------------------------------------------------


class Grey(Files):
    def __getitem__(self, idx):
        return self.transform(read_image(self.paths[idx], ImageReadMode.GRAY)), 1


class Turned(Files):
    def __getitem__(self, idx):
        return self.transform(read_image(self.paths[idx], apply_exif_orientation=True)), 1


class Wrong(Files):
    """Raises TypeError."""

    def __getitem__(self, idx):
        try_this = read_image(self.paths[idx], ImageReadMode.RGB, False, None)
        return self.transform(try_this), 1


class WrongName(Files):
    def __getitem__(self, idx):
        return self.transform(read_image(input=self.paths[idx])), 1


class Scaled(Files):
    def __getitem__(self, idx):
        return self.transform(read_image(self.paths[idx]).float().div(255)), 1


class Bytes(Files):
    def __getitem__(self, idx):
        return self.transform(decode_image(io.read_file(self.paths[idx]))), 1


@pytest.mark.parametrize("kind", [Wrong, WrongName])
def test_wrong_calls(paths, kind):
    loader = feedmill.DataLoader(kind(paths, BYTES))
    assert not loader.explain().startswith("native path")
    with pytest.raises(TypeError):
        list(loader)


@pytest.mark.parametrize("kind", [Grey, Turned, Scaled, Bytes])
def test_these_are_left_to_torch(paths, kind):
    dataset = kind(paths, BYTES)
    loader = feedmill.DataLoader(dataset, batch_size=4)
    assert not loader.explain().startswith("native path")
    torch.manual_seed(1)
    mine = list(loader)
    torch.manual_seed(1)
    assert all(map(equal_batches, mine, torch.utils.data.DataLoader(dataset, batch_size=4)))


def test_most_files_are_no_jpegs(paths, tmp_path):
    for number, path in enumerate(paths[:4]):
        with Image.open(path) as image:
            image.save(tmp_path / f"{number}.png")
    text = feedmill.DataLoader(Files(sorted(tmp_path.glob("*.png")), BYTES)).explain()
    assert not text.startswith("native path") and "only JPEGs" in text


def test_replaced_functions(paths, monkeypatch):
    original = io.image.read_image

    def read(path, mode=ImageReadMode.UNCHANGED):
        return original(path, mode)

    for name in ("read_file", "decode_image"):  # which it calls
        with monkeypatch.context() as patches:
            patches.setattr(io.image, name, read)
            assert not feedmill.DataLoader(Files(paths, BYTES)).explain().startswith("native path")
    monkeypatch.setattr(io.image, "read_image", read)
    monkeypatch.setitem(globals(), "read_image", read)
    assert not feedmill.DataLoader(Files(paths, BYTES)).explain().startswith("native path")


def test_files_that_may_be_of_other_types(paths, tmp_path):
    """A PNG of 16 bits gives a tensor of uint16, which alone in a batch is no error."""
    deep = tmp_path / "deep.png"
    deep.write_bytes(make_png.make(random.Random(1), 20, 20, 2, 16))
    mixed = Files([*paths[:7], deep], v2.CenterCrop(18))
    for options in ({"batch_size": 1}, {"batch_size": None}, {"batch_size": 4, "collate_fn": list}):
        loader = feedmill.DataLoader(mixed, **options)
        assert not loader.explain().startswith("native path")
        assert "uint16" in str([images.dtype for images, _ in feedmill.DataLoader(mixed)])
        assert feedmill.DataLoader(Files(paths, BYTES), **options).explain().startswith("native path")
    scaled = v2.Compose([BYTES, v2.ToDtype(torch.float32, scale=True)])
    compare(Files([*paths[:7], deep], scaled))


def test_names_that_torchvision_does_not_take(paths, tmp_path):
    other = os.fsdecode(os.fsencode(tmp_path) + b"/\xff.jpg")
    shutil.copy(paths[0], other)
    for name in (other, os.fsencode(paths[0])):
        dataset = Files(paths[:3], BYTES)
        dataset.paths.append(name)
        for kind in (torch.utils.data.DataLoader, native_loader):
            with pytest.raises(RuntimeError):
                list(kind(dataset, batch_size=4))


def test_decoders_that_differ(paths, monkeypatch, looked_at_anew):
    original = torch.ops.image.decode_image
    monkeypatch.setattr(torch.ops.image, "decode_image", lambda *given: original(*given) ^ 1)
    text = feedmill.DataLoader(Files(paths, BYTES)).explain()
    assert not text.startswith("native path") and "differently than feedmill" in text


def test_equal_calls_are_one_loader():
    as_rgb = {"mode": ImageReadMode.RGB}
    one = tensor_files.loader_of(read_image, as_rgb)
    assert one is tensor_files.loader_of(read_image, as_rgb) is not None
    assert one is not tensor_files.loader_of(read_image)
    for other in ({"mode": "RGB"}, {"mode": None}, {"mode": ImageReadMode.GRAY},
                  {**as_rgb, "apply_exif_orientation": True}):
        assert tensor_files.loader_of(read_image, other) is None
    assert tensor_files.loader_of(decode_image, {"mode": "no mode"}) is None
    assert tensor_files.loader_of(os.path.join) is None
