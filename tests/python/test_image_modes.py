"""Datasets that open images with Pillow and convert them to RGB in other ways than at once, or not
at all."""

import os

import feedmill
import pytest
import torch
from helpers import compose, equal_batches, native_loader, save_jpeg
from PIL import Image
from torch.utils.data import Dataset
from torchvision import transforms as T
from torchvision.datasets import ImageFolder

HEAD = (T.RandomResizedCrop(16), T.RandomHorizontalFlip(), T.ToTensor())


class Files(Dataset):
    """Does not convert."""

    def __init__(self, paths, *steps):
        self.paths = [str(path) for path in paths]
        self.transform = compose(*steps)

    def __len__(self):
        return len(self.paths)

    def __getitem__(self, idx):
        return self.transform(Image.open(self.paths[idx]))


class Named(Files):
    def __getitem__(self, idx):
        path = self.paths[idx]
        image = Image.open(path)
        image = self.transform(image)
        return {"image": image, "name": os.path.basename(path)}


class IfNeeded(Files):
    def __getitem__(self, idx):
        image = Image.open(self.paths[idx])
        if image.mode != "RGB":
            image = image.convert("RGB")
        return self.transform(image)


class Conditional(Files):
    def __getitem__(self, idx):
        image = Image.open(self.paths[idx])
        image = image.convert("RGB") if image.mode != "RGB" else image
        return self.transform(image)


class Reversed(Files):
    def __getitem__(self, idx):
        im = Image.open(self.paths[idx])
        im = im if im.mode == "RGB" else im.convert("RGB")
        return self.transform(im)


def to_rgb(image):
    return image.convert("RGB")


class Converts(Files):
    """By its transform."""

    def __init__(self, paths, *steps):
        super().__init__(paths, T.Lambda(to_rgb), *steps)


class IfNeededWithin(Files):
    def __init__(self, paths, *steps):
        super().__init__(paths, T.Lambda(lambda x: x if x.mode == "RGB" else x.convert("RGB")), *steps)


CONVERTING = [IfNeeded, Conditional, Reversed, Converts, IfNeededWithin]


@pytest.fixture
def paths(small_images):
    return [path for path, _ in ImageFolder(str(small_images)).samples]


@pytest.fixture
def others(tmp_path):
    """Files of each mode, and of RGB in other formats."""
    made = []
    for number, (name, mode) in enumerate((
        ("grey.jpg", "L"), ("cmyk.jpg", "CMYK"), ("grey.png", "L"), ("alpha.png", "RGBA"),
        ("palette.png", "P"), ("bits.png", "1"), ("grey_alpha.png", "LA"), ("color.png", "RGB"),
        ("color.webp", "RGB"), ("alpha.webp", "RGBA"), ("palette.gif", "P"), ("color.bmp", "RGB"),
    )):
        save_jpeg(tmp_path / "any.jpg", 30, 25, seed=number)
        with Image.open(tmp_path / "any.jpg") as image:
            image.convert(mode).save(tmp_path / name)
        made.append(str(tmp_path / name))
    return made


def hidden(paths, others):
    """80 files, of which the look at some of them, at every fifth, does not find these others."""
    files = [*paths, *paths]
    for number, path in enumerate(others):
        files[5 * number + 1 + number % 4] = path
    return files


def compare(dataset, n_workers=0, **options):
    options = {"batch_size": 5, "shuffle": True, "num_workers": n_workers, **options}
    batches = []
    for kind in (feedmill.DataLoader, torch.utils.data.DataLoader):
        torch.manual_seed(2)
        loader = kind(dataset, **options)
        batches.append(list(loader))
        assert kind is torch.utils.data.DataLoader or loader.stats().path == "native"
    assert all(map(equal_batches, *batches)) and len(batches[0]) == len(batches[1]) > 0
    for _ in feedmill.DataLoader(dataset, **{**options, "native": "verify"}):
        pass


@pytest.mark.parametrize("kind", [Files, Named, *CONVERTING])
def test_these_are_native(paths, kind):
    compare(kind(paths, *HEAD))
    compare(kind(paths, *HEAD), n_workers=2)


@pytest.mark.parametrize("kind", CONVERTING)
def test_all_modes_are_converted(paths, others, kind):
    compare(kind([*paths[:20], *others], *HEAD))


def test_images_that_are_not_converted_keep_their_mode(paths, others):
    """Grayscale makes one channel of each mode, so that the batches fit together; Pillow makes other
    values of CMYK and palettes when they were RGB before."""
    grey = [path for path in others if "palette" not in path and "bits" not in path]
    compare(Files(hidden(paths, grey), T.Resize((20, 20)), T.Grayscale(), T.ToTensor()), batch_size=3)
    colored = [path for path in others if "color" in path]
    compare(Files([*paths[:20], *colored], *HEAD))


def test_the_error_of_unequal_images(paths, others):
    dataset = Files(hidden(paths, others[:1]), *HEAD)
    for kind in (torch.utils.data.DataLoader, native_loader):
        with pytest.raises(RuntimeError):
            list(kind(dataset, batch_size=40))


@pytest.mark.parametrize("number", range(7))
def test_folders_of_another_mode_are_torchs(others, number):
    dataset = Files([others[number]] * 4, T.Resize((8, 8)), T.PILToTensor())
    if others[number].endswith("jpg"):
        assert "is an image of mode" in feedmill.DataLoader(dataset).explain()
    loader = feedmill.DataLoader(dataset, batch_size=2)
    assert loader.explain().startswith("torch's own path")
    assert all(map(equal_batches, loader, torch.utils.data.DataLoader(dataset, batch_size=2)))


def test_where_images_of_different_shapes_would_be_no_error(paths, others):
    dataset = Files(paths, *HEAD)
    for options in ({"batch_size": 1}, {"batch_size": None}, {"batch_size": 2, "collate_fn": list}):
        text = feedmill.DataLoader(dataset, **options).explain()
        assert text.startswith("torch's own path") and "their shapes may differ" in text
        assert feedmill.DataLoader(IfNeeded(paths, *HEAD), **options).explain().startswith("native path")
    mixed = Files(hidden(paths, others[:1]), T.Resize((8, 8)), T.ToTensor())
    loaders = feedmill.DataLoader(mixed), torch.utils.data.DataLoader(mixed)
    assert all(map(equal_batches, *loaders))


class OtherMode(Files):
    def __getitem__(self, idx):
        image = Image.open(self.paths[idx])
        if image.mode != "L":
            image = image.convert("RGB")
        return self.transform(image)


class Otherwise(Files):
    def __getitem__(self, idx):
        image = Image.open(self.paths[idx])
        if image.mode != "RGB":
            image = image.convert("RGB")
        else:
            image = self.transform(image)
        return self.transform(image)


class Twice(Files):
    def __getitem__(self, idx):
        image = Image.open(self.paths[idx])
        return self.transform(image), self.transform(image)


def late(paths, *steps):
    return Files(paths, T.Resize((8, 8)), T.Lambda(to_rgb), *steps)


def by_mode(paths, *steps):
    return Files(paths, T.Lambda(lambda x: x.convert("RGB") if x.mode == "L" else x), *steps)


@pytest.mark.parametrize("make", [OtherMode, Otherwise, Twice, late, by_mode])
def test_these_are_left_to_torch(paths, make):
    text = feedmill.DataLoader(make(paths, *HEAD)).explain()
    assert text.startswith("torch's own path")
