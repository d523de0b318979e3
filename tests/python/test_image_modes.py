"""Datasets that open images with Pillow and convert them to RGB in other ways than at once, or not
at all."""

import os
import re
from functools import partial

import feedmill
import pytest
import torch
from helpers import compose, equal_batches, native_loader, save_jpeg
from PIL import Image, JpegImagePlugin
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


class Within(Files):
    """All is done before the file is closed."""

    def __getitem__(self, idx):
        with Image.open(self.paths[idx]) as image:
            return self.transform(image)


class ConvertsByName(Files):
    def __getitem__(self, idx):
        with Image.open(self.paths[idx]) as image:
            image = image.convert(mode="RGB")
        return self.transform(image)


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


def to_mode(mode, image):
    if image.mode != mode:
        return image.convert(mode)
    return image


class WithArgument(Files):
    """As in a well-known implementation of diffusion models."""

    def __init__(self, paths, *steps):
        super().__init__(paths, T.Lambda(partial(to_mode, "RGB")), *steps)


class Jpegs:
    """A method of which an argument is bound."""

    def to_mode(self, mode, image):
        if image.mode != mode:
            image = image.convert(mode)
        return image


class WithMethod(Files):
    def __init__(self, paths, *steps):
        super().__init__(paths, partial(Jpegs().to_mode, "RGB"), *steps)


CONVERTING = [
    ConvertsByName, IfNeeded, Conditional, Reversed, Converts, IfNeededWithin, WithArgument, WithMethod,
]


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
    for seed in ({}, {"seed": 1}):
        for _ in feedmill.DataLoader(dataset, **{**options, **seed, "native": "verify"}):
            pass


@pytest.mark.parametrize("kind", [Files, Within, Named, *CONVERTING])
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


def turned_if_grey(image):
    if image.mode != "RGB":
        return image.convert("RGB")
    return image.rotate(90)


def only_named(image):
    if image.mode != "RGB":
        return image.convert("L")
    return image


def more_before(image):
    if image.mode != "RGB":
        image = image.rotate(90)
        return image.convert("RGB")
    return image


def also_others(image):
    if image.mode != "RGB":
        return image.convert("RGB")
    else:
        return image.rotate(90)


class Mode(str):
    """Equals no other text."""

    def __eq__(self, other):
        return False


@pytest.mark.parametrize("function", [
    turned_if_grey, only_named, more_before, also_others, partial(to_mode, "L"),
    partial(to_mode, Mode("RGB")), partial(to_mode, mode="RGB"), partial(to_mode, "RGB", "RGB"),
    partial(Image.Image.convert, mode="RGB"), partial(len),
])
def test_other_conversions_are_left_to_torch(paths, function):
    text = feedmill.DataLoader(Files(paths, T.Lambda(function), *HEAD), batch_size=5).explain()
    assert text.startswith("torch's own path"), text


def test_where_images_of_different_shapes_would_be_no_error(paths, others):
    dataset = Files(paths, *HEAD)
    for options in ({"batch_size": 1}, {"batch_size": None}, {"batch_size": 2, "collate_fn": list}):
        text = feedmill.DataLoader(dataset, **options).explain()
        assert text.startswith("torch's own path") and "shapes or types may differ" in text
        assert feedmill.DataLoader(IfNeeded(paths, *HEAD), **options).explain().startswith("native path")
    mixed = Files(hidden(paths, others[:1]), T.Resize((8, 8)), T.ToTensor())
    loaders = feedmill.DataLoader(mixed), torch.utils.data.DataLoader(mixed)
    assert all(map(equal_batches, *loaders))


# ---- a folder's own loader -----------------------------------------------------------------------


def pil_loader(path):
    """torchvision's, as it is often copied."""
    with open(path, "rb") as f:
        img = Image.open(f)
        return img.convert("RGB")


def newer_loader(path: str) -> Image.Image:
    with open(path, "rb") as f, Image.open(f) as img:
        return img.convert("RGB")


def nested_loader(path):
    with open(path, "rb") as f:
        with Image.open(f) as img:
            return img.convert("RGB")


def named_loader(path):
    with Image.open(path) as image:
        image = image.convert("RGB")
    return image


def if_needed(path):
    image = Image.open(path)
    if image.mode != "RGB":
        image = image.convert("RGB")
    return image


def accimage_loader(path):
    import accimage

    return accimage.Image(path)


def default_loader(path):
    from torchvision import get_image_backend

    if get_image_backend() == "accimage":
        return accimage_loader(path)
    else:
        return pil_loader(path)


LOADERS = [pil_loader, newer_loader, nested_loader, named_loader, if_needed, default_loader,
           lambda path: Image.open(path).convert("RGB")]


class Loads(Files):
    def __init__(self, paths, loader, *steps):
        super().__init__(paths, *steps)
        self.loader = loader

    def __getitem__(self, idx):
        return self.transform(self.loader(self.paths[idx])), 3


@pytest.mark.parametrize("loader", LOADERS)
def test_loaders_of_folders(small_images, paths, others, loader, tmp_path):
    compare(ImageFolder(str(small_images), compose(*HEAD), loader=loader))
    compare(Loads([*paths[:20], *others], loader, *HEAD))
    broken = tmp_path / "broken.jpg"
    with open(paths[0], "rb") as file:
        broken.write_bytes(file.read()[:-100])
    text = tmp_path / "text.jpg"
    text.write_text("no image")
    for bad in (broken, text, tmp_path / "missing.jpg", tmp_path):
        errors = []
        for kind in (torch.utils.data.DataLoader, native_loader):
            with pytest.raises(OSError) as caught:
                list(kind(Loads([*paths[:3], bad], loader, *HEAD), batch_size=4))
            message = re.sub(r" \[dataset index.*?\]| at 0x\w*", "", str(caught.value))
            errors.append((caught.type, message))
        assert errors[0] == errors[1]


def test_loaders_that_do_not_convert(small_images, paths):
    compare(ImageFolder(str(small_images), compose(*HEAD), loader=Image.open))
    compare(ImageFolder(str(small_images), compose(*HEAD), loader=lambda path: Image.open(path)))
    compare(ImageFolder(str(small_images), compose(T.Lambda(to_rgb), *HEAD), loader=Image.open))


def test_loaders_in_hybrid_mode(small_images, tmp_path):
    """The transform gets an image of its file's mode."""
    modes = []

    def transform(image):
        modes.append(image.mode)
        return T.functional.to_tensor(image.convert("L").resize((8, 8)))

    for number, mode in enumerate(("L", "RGB", "CMYK")):
        save_jpeg(tmp_path / "a" / f"{number}.jpg", 30, 30, seed=number, mode=mode)
    dataset = ImageFolder(str(tmp_path), transform, loader=lambda path: Image.open(path))
    batches = []
    for loader in (feedmill.DataLoader(dataset, native="hybrid"), torch.utils.data.DataLoader(dataset)):
        modes.clear()
        batches.append(list(loader))
        assert sorted(modes) == ["CMYK", "L", "RGB"]
    assert all(map(equal_batches, *batches))


def closes_early(path):
    with open(path, "rb") as f:
        img = Image.open(f)
    return img.convert("RGB")


def closes_image(path):
    with Image.open(path) as img:
        pass
    return img.convert("RGB")


def returns_closed(path):
    with open(path, "rb") as f:
        return Image.open(f)


def converts_closed(path):
    return returns_closed(path).convert("RGB")


def by_opener(path):
    with open(path, "rb", opener=lambda name, flags: os.open(name + ".other", flags)) as f:
        return Image.open(f).convert("RGB")


def opens_nothing(path):
    with open() as f:
        return Image.open(f).convert("RGB")


def closes_if_rgb(path):
    """Reads the pixels of images that are RGB too late."""
    with Image.open(path) as im:
        if im.mode != "RGB":
            im = im.convert("RGB")
    return im


def returns_from_within(path):
    with open(path, "rb") as f:
        im = Image.open(f)
        return im.convert("RGB") if im.mode != "RGB" else im


def opens_closed(path):
    with open(path, "rb") as f:
        pass
    return Image.open(f).convert("RGB")


def enters_twice(path):
    with open(path, "rb") as f:
        with f:
            pass
        return Image.open(f).convert("RGB")


def opens_another(path):
    with open(path, "rb") as f, open(path, "rb"):
        return Image.open(f).convert("RGB")


def other_path(path):
    return Image.open(os.path.join("/", path)).convert("RGB")


def as_text(path):
    with open(path) as f:
        return Image.open(f.buffer).convert("RGB")


def reads_more(path):
    with open(path, "rb") as f:
        f.seek(0)
        return Image.open(f).convert("RGB")


def resizes(path):
    return T.functional.hflip(Image.open(path).convert("RGB"))


@pytest.mark.parametrize("loader", [closes_early, closes_image, returns_closed, converts_closed, by_opener,
                                    closes_if_rgb, returns_from_within, opens_closed, enters_twice,
                                    opens_another, opens_nothing, other_path, as_text, reads_more, resizes])
def test_loaders_that_are_left_to_torch(small_images, loader):
    text = feedmill.DataLoader(ImageFolder(str(small_images), compose(*HEAD), loader=loader)).explain()
    assert text.startswith("torch's own path") and "the dataset's loader is not" in text
    text = feedmill.DataLoader(Loads(["a.jpg"], loader, *HEAD)).explain()
    assert text.startswith("torch's own path")


def test_a_replaced_open(small_images, monkeypatch):
    original = open

    def opens(*given, **by_name):
        return original(*given, **by_name)

    dataset = ImageFolder(str(small_images), compose(*HEAD), loader=pil_loader)
    monkeypatch.setattr("builtins.open", opens)
    assert feedmill.DataLoader(dataset).explain().startswith("torch's own path")
    monkeypatch.setattr("io.open", opens)
    assert feedmill.DataLoader(dataset).explain().startswith("torch's own path")


def test_changed_classes_of_pillow(small_images, monkeypatch):
    dataset = ImageFolder(str(small_images), compose(*HEAD), loader=named_loader)
    enter = Image.Image.__enter__
    with monkeypatch.context() as patches:
        patches.setattr(Image.Image, "__enter__", lambda self: enter(self))
        assert "__enter__ was replaced" in feedmill.DataLoader(dataset).explain()
    convert = Image.Image.convert
    monkeypatch.setattr(JpegImagePlugin.JpegImageFile, "convert", lambda *given: convert(*given), raising=False)
    assert "class of JPEG images was changed" in feedmill.DataLoader(dataset).explain()


# ---- left to torch -------------------------------------------------------------------------------


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


class TransformsBehind(Files):
    """The first transform may return an image that has not read its pixels."""

    def __init__(self, paths, *steps):
        super().__init__(paths, *steps)
        self.first = T.RandomHorizontalFlip()

    def __getitem__(self, idx):
        with Image.open(self.paths[idx]) as image:
            image = self.first(image)
        return self.transform(image)


class Twice(Files):
    def __getitem__(self, idx):
        image = Image.open(self.paths[idx])
        return self.transform(image), self.transform(image)


def late(paths, *steps):
    return Files(paths, T.Resize((8, 8)), T.Lambda(to_rgb), *steps)


def by_mode(paths, *steps):
    return Files(paths, T.Lambda(lambda x: x.convert("RGB") if x.mode == "L" else x), *steps)


@pytest.mark.parametrize("make", [OtherMode, Otherwise, TransformsBehind, Twice, late, by_mode])
def test_these_are_left_to_torch(paths, make):
    text = feedmill.DataLoader(make(paths, *HEAD)).explain()
    assert text.startswith("torch's own path")
