"""Datasets that raise an error of their own for images that are not RGB, or for missing files, as
many scripts have them: natively they raise it, too, and have the other batches of torch's workers."""

import linecache
import os
import os.path as osp
from functools import partial

import conftest  # noqa: F401  makes torchvision importable in spawned workers
import feedmill
import numpy as np
import pytest
import torch
from feedmill.planner.attributes import NotUnderstood
from feedmill.planner.own_datasets import read_own
from helpers import compose, equal_batches, outcomes_of, save_jpeg
from PIL import Image
from torch.utils.data import Dataset
from torchvision import transforms as T

CROPS = compose(T.RandomResizedCrop(12), T.RandomHorizontalFlip(), T.ToTensor())
STILL = compose(T.Resize((12, 10)), T.ToTensor(), T.Normalize([0.5] * 3, [0.2] * 3))


@pytest.fixture(scope="module")
def paths(tmp_path_factory):
    """Images in RGB, and five files that are not: gray, CMYK, with alpha, with a palette, missing."""
    root = tmp_path_factory.mktemp("raising")
    files = [str(save_jpeg(root / f"{n:03}.jpg", 20 + n, 60 - n, seed=n)) for n in range(24)]
    pixels = np.arange(32 * 40 * 4, dtype=np.uint8).reshape(32, 40, 4)
    Image.fromarray(pixels[..., 0]).save(files[4])
    Image.fromarray(pixels, "CMYK").save(files[8])
    for number, image in (
        (9, Image.fromarray(pixels)),
        (10, Image.fromarray(pixels[..., :3])),
        (15, Image.fromarray(pixels[..., 0]).convert("P")),
    ):
        files[number] = str(root / f"{number}.png")
        image.save(files[number])
    os.remove(files[20])
    return files


class Files(Dataset):
    def __init__(self, paths, transform=CROPS):
        self.paths = list(paths)
        self.labels = [number % 3 for number, _ in enumerate(paths)]
        self.transform = transform
        self.bad = []

    def __len__(self):
        return len(self.paths)


class OnlyRGB(Files):
    def __getitem__(self, item):
        img = Image.open(self.paths[item])
        if img.mode != "RGB":
            raise ValueError(f"image: {self.paths[item]} isn't RGB mode.")
        label = self.labels[item]

        if self.transform is not None:
            img = self.transform(img)

        return img, label


class Exists(Files):
    def __getitem__(self, item):
        path = self.paths[item]
        if not os.path.isfile(path):
            raise FileNotFoundError(path)
        return self.transform(Image.open(path).convert("RGB")), self.labels[item]


ASSERTS = """\
with Image.open(self.paths[index]) as image:
    assert image.mode == "RGB", f"{self.paths[index]} is not RGB"
    return self.transform(image), self.labels[index]"""


def read_image(img_path):
    got_img = False
    if not osp.exists(img_path):
        raise OSError(f"{img_path} does not exist")
    while not got_img:
        try:
            img = Image.open(img_path).convert("RGB")
            got_img = True
        except OSError:
            print("Will redo.")
    return img


class ReadImage(Files):
    """As in several projects about persons' images; the transform is called by a method."""

    def __getitem__(self, item):
        image = self.several(self.transform, 1, read_image(self.paths[item]))
        return {"img": image, "pid": self.labels[item], "impath": self.paths[item]}

    def several(self, transform, n, image):
        made = []
        for _ in range(n):
            made.append(transform(image))
        if len(made) == 1:
            made = made[0]
        return made


@pytest.mark.parametrize("n_workers", [0, 2])
@pytest.mark.parametrize("transform", [CROPS, STILL], ids=["random", "still"])
@pytest.mark.parametrize("kind", [OnlyRGB, Exists, ReadImage, "asserts"])
def test_batches_and_errors_are_those_of_torch(paths, kind, transform, n_workers):
    # pytest changes the assertions of this file.
    make = partial(made_of, lines=ASSERTS) if kind == "asserts" else kind
    dataset = make(paths, transform=transform)
    loader = feedmill.DataLoader(dataset, batch_size=3, num_workers=n_workers)
    assert loader.explain().startswith("native"), loader.explain()
    found, wanted = (
        outcomes_of(make, dataset, n_workers)
        for make in (feedmill.DataLoader, torch.utils.data.DataLoader)
    )
    assert equal_batches(found, wanted)
    assert any(type(one) is tuple for one in wanted[0])


@pytest.mark.parametrize("n_workers", [0, 2])
@pytest.mark.parametrize("name", ["000.jpg", "000.png"])
def test_a_damaged_image_fails_where_the_dataset_reads_it(tmp_path, name, n_workers):
    """An image in RGB, which is not converted, is read by its transform, behind the draws."""
    paths = [str(save_jpeg(tmp_path / f"{n}.jpg", 40, 60, seed=n)) for n in range(6)]
    paths[1] = str(tmp_path / name)
    pixels = np.random.default_rng(3).integers(0, 255, (40, 60, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(paths[1])
    os.truncate(paths[1], os.path.getsize(paths[1]) // 2)
    lines = (
        "image = Image.open(self.paths[index])",
        "if image.mode != 'RGB':\n    image = image.convert('RGB')",
        RETURN,
    )
    dataset = made_of(paths, "\n".join(lines))
    assert feedmill.DataLoader(dataset, batch_size=3).explain().startswith("native")
    found, wanted = (
        outcomes_of(make, dataset, n_workers)
        for make in (feedmill.DataLoader, torch.utils.data.DataLoader)
    )
    assert equal_batches(found, wanted)
    assert wanted[0][0][0] == "OSError"


def test_only_batches_with_such_files_are_made_by_the_dataset(paths):
    loader = feedmill.DataLoader(OnlyRGB(paths[:8]), batch_size=2, num_workers=2)
    iterator = iter(loader)
    for number in range(4):
        if number == 2:
            with pytest.raises(ValueError, match="isn't RGB mode"):
                next(iterator)
        else:
            next(iterator)
    assert loader.stats().samples == 6
    assert [one.path for one in loader.stats().sample_errors] == [paths[4]]


# ---- what is left to torch -----------------------------------------------------------------------

OPEN = "image = Image.open(self.paths[index])\n"
RETURN = "return self.transform(image), self.labels[index]"
RAISE = "raise ValueError(self.paths[index])\n"
OTHERS = (
    # More is done than to raise.
    OPEN + 'if image.mode != "RGB":\n    self.bad.append(index)\n    ' + RAISE + RETURN,
    OPEN + 'if image.mode != "RGB":\n    self.labels[index] = 3\n    ' + RAISE + RETURN,
    OPEN + 'if image.mode != "RGB":\n    raise hostile(index)\n' + RETURN,
    OPEN + 'if image.mode != "RGB":\n    raise ValueError(hostile(index))\n' + RETURN,
    OPEN + 'assert image.mode == "RGB", hostile(index)\n' + RETURN,
    OPEN + 'if image.mode != "RGB":\n    ' + RAISE + "else:\n    hostile(index)\n" + RETURN,
    # Other conditions.
    OPEN + 'if image.mode != "L":\n    ' + RAISE + RETURN,
    OPEN + 'if image.mode == "RGB":\n    ' + RAISE + RETURN,
    OPEN + 'if image.mode not in ("RGB", "L"):\n    ' + RAISE + RETURN,
    OPEN + 'if image.mode != "RGB" and index:\n    ' + RAISE + RETURN,
    OPEN + 'if image.size != "RGB":\n    ' + RAISE + RETURN,
    OPEN + 'if image.mode != "RGB":\n    return None\n' + RETURN,
    'if not os.path.exists(self.paths[index + 1]):\n    ' + RAISE + OPEN + RETURN,
    'if not os.path.exists(self.paths[0]):\n    ' + RAISE + OPEN + RETURN,
    'if os.path.exists(self.paths[index]):\n    ' + RAISE + OPEN + RETURN,
    'if not os.path.islink(self.paths[index]):\n    ' + RAISE + OPEN + RETURN,
    'if not hostile(self.paths[index]):\n    ' + RAISE + OPEN + RETURN,
)
CALLS = []


def hostile(value):
    CALLS.append(value)
    return ValueError(value)


def made_of(paths, lines, transform=CROPS):
    """A dataset whose __getitem__ has these lines."""
    text = "\n    ".join(["def __getitem__(self, index):", *lines.splitlines()]) + "\n"
    name = f"<test_raising {abs(hash(lines))}>"
    linecache.cache[name] = len(text), None, text.splitlines(True), name
    scope = {"__name__": __name__, "Image": Image, "os": os, "hostile": hostile}
    exec(compile(text, name, "exec"), scope)
    kind = type("Made", (Files,), {"__module__": __name__, "__getitem__": scope["__getitem__"]})
    return kind(paths, transform)


def test_how_they_are_made(paths):
    assert read_own(made_of(paths, OPEN + 'if image.mode != "RGB":\n    ' + RAISE + RETURN)).retries


@pytest.mark.parametrize("lines", OTHERS)
def test_these_are_left_to_torch(paths, lines):
    with pytest.raises(NotUnderstood):
        read_own(made_of(paths, lines))
    assert not CALLS


def test_a_replaced_function(paths, monkeypatch):
    monkeypatch.setattr(os.path, "exists", lambda path: hostile(path))
    lines = "if not os.path.exists(self.paths[index]):\n    " + RAISE + OPEN + RETURN
    with pytest.raises(NotUnderstood):
        read_own(made_of(paths, lines))
    assert not CALLS


def test_options_that_need_torchs_workers(paths):
    text = feedmill.DataLoader(OnlyRGB(paths), batch_size=3, num_workers=2, seed=3).explain()
    assert text.startswith("torch's own path") and "leave out seed=" in text, text
