"""Datasets that open images by torchcodec's decode_image() and decode_jpeg()."""

import random
from pathlib import Path

import feedmill
import opencv_images
import pytest
import torch
import torchcodec_datasets
from feedmill.planner import torchcodec_files
from helpers import equal_batches
from torchcodec_datasets import Decodes, DecodesJpegs, Files, decode_image, decode_jpeg
from torchvision.datasets import DatasetFolder, ImageFolder
from torchvision.transforms import v2

RANDOM = v2.Compose([
    v2.RandomResizedCrop(24, antialias=True), v2.RandomHorizontalFlip(), v2.ColorJitter(0.3, 0.3),
    v2.ToDtype(torch.float32, scale=True), v2.Normalize([0.5] * 3, [0.25] * 3),
])
CROPS = v2.Compose([v2.CenterCrop(18), v2.RandomVerticalFlip()])


def made_by(kind, dataset, **options):
    torch.manual_seed(1)
    random.seed(1)
    return list(kind(dataset, **{"batch_size": 7, **options}))


def compare(dataset, **options):
    for n_workers in (0, 2):
        options["num_workers"] = n_workers
        wanted = made_by(torch.utils.data.DataLoader, dataset, **options)
        loader = feedmill.DataLoader(dataset, **{"batch_size": 7, **options})
        assert loader.explain().startswith("native path"), loader.explain()
        assert all(map(equal_batches, made_by(feedmill.DataLoader, dataset, **options), wanted))
    made_by(feedmill.DataLoader, dataset, native="verify", **options)


@pytest.fixture
def paths(small_images):
    return [path for path, _ in ImageFolder(str(small_images)).samples]


@pytest.mark.parametrize("transform", [RANDOM, CROPS], ids=["colors", "bytes"])
def test_images_are_those_of_torchcodec(tmp_path, transform):
    """Also of files that torchcodec turns, or converts in its own way."""
    files = opencv_images.make_jpegs(tmp_path)
    others = opencv_images.make_others(tmp_path)
    jpegs = [path for name, path in files.items() if name not in ("cut", "bare", "one pixel")]
    compare(Decodes([*jpegs, *(others[f"PNG of {mode}"] for mode in ("RGB", "RGBA", "P"))] * 2,
                    transform), shuffle=True)
    compare(DecodesJpegs(jpegs * 2, transform), shuffle=True)
    for name in ("usual", "progressive", "grey", "upright", "CMYK", "turned", "no EXIF"):
        loader = feedmill.DataLoader(DecodesJpegs([files["usual"], files[name]], transform))
        list(loader)
        is_native = name in ("usual", "progressive", "grey", "upright")
        assert loader.stats().decode.fallback_samples == (not is_native), name


@pytest.mark.parametrize("kind", [ImageFolder, DatasetFolder])
@pytest.mark.parametrize("loader", [decode_image, decode_jpeg, lambda path: decode_image(path)])
def test_loaders_of_folders(small_images, kind, loader):
    extensions = {} if kind is ImageFolder else {"extensions": (".jpg",)}
    compare(kind(str(small_images), transform=RANDOM, loader=loader, **extensions))


@pytest.mark.parametrize("n_workers", [0, 2])
def test_errors_are_torchcodecs(paths, tmp_path, n_workers):
    for name, bad in {**opencv_images.make_unreadable(tmp_path),
                      "cut": opencv_images.make_jpegs(tmp_path)["cut"]}.items():
        errors = []
        for kind in (torch.utils.data.DataLoader, feedmill.DataLoader):
            with pytest.raises(Exception) as caught:
                made_by(kind, Decodes([*paths[:3], bad], CROPS), num_workers=n_workers)
            errors.append(type(caught.value))
        assert errors[0] is errors[1], name


def test_paths_of_pathlib(paths):
    dataset = Decodes(paths[:8], CROPS)
    dataset.paths = list(map(Path, paths[:8]))
    compare(dataset)
    dataset.paths = [path.encode() for path in paths[:8]]  # are taken for a file's content
    for kind in (torch.utils.data.DataLoader, feedmill.DataLoader):
        with pytest.raises(ValueError):
            made_by(kind, dataset)


# ---- left to torch -------------------------------------------------------------------------------


class Unchanged(Files):
    def __getitem__(self, index):
        return self.transform(decode_image(self.paths[index], mode="UNCHANGED")), 1


class Grey(Files):
    def __getitem__(self, index):
        return self.transform(decode_jpeg(self.paths[index], mode="GRAY")), 1


class Deep(Files):
    def __getitem__(self, index):
        return self.transform(decode_image(self.paths[index], output_dtype=torch.uint16)), 1


class Auto(Files):
    def __getitem__(self, index):
        return self.transform(decode_image(self.paths[index], output_dtype="auto")), 1


class OnDevice(Files):
    def __getitem__(self, index):
        return self.transform(decode_jpeg(self.paths[index], device="cpu")), 1


class Positional(Files):
    """Raises TypeError."""

    def __getitem__(self, index):
        return self.transform(decode_image(self.paths[index], "RGB")), 1


class OfList(Files):
    def __getitem__(self, index):
        return self.transform(decode_jpeg([self.paths[index]])[0]), 1


class OfBytes(Files):
    def __getitem__(self, index):
        with open(self.paths[index], "rb") as file:
            return self.transform(decode_jpeg(file.read())), 1


def assert_left_to_torch(dataset):
    made = []
    for kind in (torch.utils.data.DataLoader, feedmill.DataLoader):
        try:
            made.append(made_by(kind, dataset))
        except TypeError as error:
            made.append(str(error).splitlines()[0])
    text = feedmill.DataLoader(dataset, batch_size=7).explain()
    assert not text.startswith("native path")
    assert made[0] == made[1] if isinstance(made[0], str) else all(map(equal_batches, *made))
    return text


@pytest.mark.parametrize(
    "kind", [Unchanged, Grey, Deep, Auto, OnDevice, Positional, OfList, OfBytes]
)
def test_these_are_left_to_torch(paths, kind):
    assert_left_to_torch(kind(paths[:8], v2.CenterCrop(18)))


def _mirrored(data, mode):
    return torch.ops.torchcodec_ns.decode_jpeg.default(data, mode).flip(-1)


@pytest.mark.parametrize("name, other", [
    ("_decode_jpeg", _mirrored),
    ("_source_to_tensor", lambda source: torch.zeros(9, dtype=torch.uint8)),
    ("_detect_image_format", lambda data: "jpeg"),
    ("_normalize_mode", lambda mode: mode),
])
def test_replaced_functions(paths, monkeypatch, name, other):
    module = torchcodec_datasets.torchcodec.decoders._image_decoders
    monkeypatch.setattr(module, name, other)
    text = feedmill.DataLoader(Decodes(paths[:8], CROPS)).explain()
    assert not text.startswith("native path")


def test_replaced_decode_image(paths, monkeypatch):
    def decode_image(source):
        return decode_jpeg(source).flip(-1)

    monkeypatch.setattr(torchcodec_datasets, "decode_image", decode_image)
    monkeypatch.setattr(torchcodec_files.sys.modules[torchcodec_files._MODULE], "decode_image",
                        decode_image)
    assert_left_to_torch(Decodes(paths[:8], CROPS))


def test_decoders_that_differ(paths, monkeypatch, looked_at_anew):
    decoded = torchcodec_files._decoded
    monkeypatch.setattr(torchcodec_files, "_decoded", lambda data: decoded(data) ^ 1)
    text = feedmill.DataLoader(Decodes(paths, CROPS)).explain()
    assert not text.startswith("native path") and "differently than feedmill" in text


def test_most_files_are_no_jpegs(tmp_path):
    files = opencv_images.make_others(tmp_path)
    text = assert_left_to_torch(Decodes([files["PNG of RGB"]] * 4, CROPS))
    assert "only JPEGs" in text
