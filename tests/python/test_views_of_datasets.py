"""Datasets that make several images of each that they open: which are native by their source, with
what torch's path gives, random numbers included, and which are left to torch."""

import linecache
import pickle
import random

import conftest  # noqa: F401  makes torchvision importable in spawned workers
import feedmill
import numpy as np
import pytest
import torch
import torchvision_io
from feedmill import VerificationError
from feedmill.planner.attributes import NotUnderstood
from feedmill.planner.own_datasets import read_own
from helpers import compose, equal_batches, native_loader, save_jpeg, skip, slow_but_for
from PIL import Image
from torch.utils.data import ConcatDataset, Dataset, Subset
from torchvision import transforms as T
from torchvision.datasets import ImageFolder
from torchvision.io import ImageReadMode, read_image
from torchvision.transforms import v2

TO_TENSOR = compose(T.ToTensor(), T.Normalize((0.4, 0.5, 0.6), (0.2, 0.3, 0.2)))
LARGE = compose(
    T.RandomResizedCrop(16, scale=(0.2, 1)), T.RandomHorizontalFlip(),
    T.RandomApply([T.ColorJitter(0.4, 0.4, 0.2, 0.1)], p=0.8), TO_TENSOR,
)
SMALL = compose(T.RandomResizedCrop(8, scale=(0.1, 0.4)), T.RandomGrayscale(0.3), TO_TENSOR)
LOG = []


@pytest.fixture
def folder(small_images):
    return ImageFolder(str(small_images))


def compare(dataset, path="native", **options):
    """Compares batches with those of torch's DataLoader after the same seeds."""
    options = {"batch_size": 7, "shuffle": True, **options}
    batches = []
    for kind in (torch.utils.data.DataLoader, feedmill.DataLoader):
        torch.manual_seed(2)
        random.seed(3)
        np.random.seed(4)
        loader = kind(dataset, **options)
        epochs = [list(loader), list(loader)]
        batches.append((epochs, torch.rand(2), random.random(), np.random.rand()))
    assert loader.stats().path == path
    assert equal_batches(*batches) and batches[0][0][0]
    if path == "native":
        for seed in ({"seed": 1}, {}):
            loader = feedmill.DataLoader(dataset, **{**options, **seed, "native": "verify"})
            assert list(loader)
            n_whole = 7 * (len(dataset) // 7)
            n_verified = n_whole if options.get("drop_last") else len(dataset)
            assert loader.stats().decode.verified_samples == n_verified


# ---- as in public code ---------------------------------------------------------------------------


class MultiCropDataset(ImageFolder):
    """SwAV's."""

    def __init__(self, root, return_index=False):
        super().__init__(root)
        self.return_index = return_index
        self.trans = [LARGE] * 2 + [SMALL] * 3

    def __getitem__(self, index):
        path, _ = self.samples[index]
        image = self.loader(path)
        multi_crops = list(map(lambda trans: trans(image), self.trans))  # noqa: C417
        if self.return_index:
            return index, multi_crops
        return multi_crops


class Files(Dataset):
    def __init__(self, folder, first=LARGE, second=SMALL):
        self.files = [path for path, _ in folder.samples]
        self.labels = [label for _, label in folder.samples]
        self.first, self.second = first, second

    def __len__(self):
        return len(self.files)


class SuperResolution(Files):
    """PyTorch-GAN's for SRGAN and ESRGAN."""

    def __init__(self, folder):
        low = compose(T.Resize((8, 8), Image.BICUBIC), TO_TENSOR)
        super().__init__(folder, low, compose(T.Resize((32, 32), Image.BICUBIC), TO_TENSOR))

    def __getitem__(self, index):
        img = Image.open(self.files[index % len(self.files)])
        img_lr = self.first(img)
        img_hr = self.second(img)

        return {"lr": img_lr, "hr": img_hr}


class Pair(Files):
    """As CIFAR10Pair of many repositories, of files."""

    def __getitem__(self, index):
        img = Image.open(self.files[index]).convert("RGB")
        if self.first is not None:
            pos_1 = self.first(img)
            pos_2 = self.first(img)
        return pos_1, pos_2, self.labels[index]


class OnlyPair(Files):
    def __getitem__(self, index):
        image = Image.open(self.files[index]).convert("RGB")
        return self.first(image), self.second(image)


class QueryAndKey(Files):
    def __getitem__(self, index):
        with open(self.files[index], "rb") as f:
            sample = Image.open(f).convert("RGB")
        q = self.first(sample)
        k = self.second(sample)
        return [q, k], self.labels[index]


class NViews(Files):
    n_views = 3

    def __getitem__(self, index):
        image = Image.open(self.files[index]).convert("RGB")
        images = [self.first(image) for _ in range(self.n_views)]
        return images, {"label": self.labels[index], "path": self.files[index]}


class Appends(Files):
    def __getitem__(self, index):
        with Image.open(self.files[index]) as image:
            crops = []
            for transform in (self.first, self.second):
                crops.append(transform(image))
            crops += [self.second(image)]
        return tuple(crops) if self.labels else None


class Nested(Files):
    """Everything in everything."""

    def __getitem__(self, index):
        image = Image.open(self.files[index]).convert("RGB")
        views = tuple(one(image) for one in [self.first, self.second, self.second])
        made = {"a": views[2], "b": {"c": [views[0], str(index)], "d": (index, self.labels[index])}}
        made["e"] = [[views[1]], ["text"], []]
        return made


class LastFirst(Files):
    """The order of the calls decides about random numbers, not that of the results."""

    def __getitem__(self, index):
        image = Image.open(self.files[index]).convert("RGB")
        second = self.second(image)
        first = self.first(image)
        return self.labels[index], first, second


class TwoSteps(Files):
    """Goes on with both images, without random numbers."""

    def __init__(self, folder):
        super().__init__(folder, compose(*LARGE.transforms[:2]), compose(*SMALL.transforms[:2]))
        self.to_tensor = compose(TO_TENSOR, T.Lambda(lambda x: x * 2 - 1))

    def __getitem__(self, index):
        image = Image.open(self.files[index]).convert("RGB")
        first, second = self.first(image), self.second(image)
        first = self.to_tensor(first)
        return first, self.to_tensor(second)


class Around(Files):
    def __init__(self, dataset):
        self.dataset, self.transform = dataset, LARGE

    def __len__(self):
        return len(self.dataset)

    def __getitem__(self, index):
        x, y = self.dataset[index]
        x = x.convert("RGB")
        return (self.transform(x), self.transform(x)), y


class ByMethods(Files):
    def load(self, index):
        return Image.open(self.files[index]).convert("RGB")

    def twice(self, image):
        return [self.first(image), self.first(image)]

    def __getitem__(self, index):
        views = self.views_of(index)
        views.append(self.labels[index])
        return views

    def views_of(self, index):
        image = self.load(index)
        return [self.first(image), self.second(image)]


class Imports(Files):
    def __getitem__(self, index):
        from PIL import Image

        img = Image.open(self.files[index]).convert("RGB")
        return self.first(img), self.first(img)


class ConvertsTwice(Files):
    def __getitem__(self, index):
        image = Image.open(self.files[index])
        return self.first(image.convert("RGB")), self.second(image.convert("RGB"))


class ByNumberAndName(Files):
    """Transforms in lists and dicts."""

    def __init__(self, folder, split="train"):
        super().__init__(folder)
        self.transforms = [SMALL, LARGE]
        self.of_splits = {"train": compose(T.RandomCrop(9, pad_if_needed=True), TO_TENSOR), "val": TO_TENSOR}
        self.split = split

    def __getitem__(self, index):
        image = Image.open(self.files[index]).convert("RGB")
        large = self.transforms[-1](image)
        return {"small": self.transforms[0](image), "large": large}, self.of_splits[self.split](image)


class WithIndex(Dataset):
    """The pair of another dataset, in a tuple."""

    def __init__(self, inner):
        self.inner = inner

    def __len__(self):
        return len(self.inner)

    def __getitem__(self, index):
        return index, self.inner[index]


def two_views(image):
    return [LARGE(image), SMALL(image)]


class OfTransform(Files):
    """The transform makes the images."""

    def __getitem__(self, index):
        views = self.first(Image.open(self.files[index]).convert("RGB"))
        return [{"views": views}, self.labels[index]]


class TwoCropFolder(ImageFolder):
    """As many copies of torchvision's __getitem__."""

    def __getitem__(self, index):
        index = int(index)
        path, target = self.samples[index]
        sample = self.loader(path)
        if isinstance(self.transform, list):
            q, k = self.transform[0](sample), self.transform[1](sample)
        elif self.transform is not None:
            q = self.transform(sample)
            k = self.transform(sample)
        if self.target_transform is not None:
            target = self.target_transform(target)
        return [q, k], target, index


class OpensTwice(Files):
    def __getitem__(self, index):
        path = self.files[index]
        img_q = Image.open(path).convert("RGB")
        with open(path, "rb") as f:
            img_k = Image.open(f).convert("RGB")
        return self.first(img_q), self.first(img_k)


class OpensTwiceAlike(Files):
    def __getitem__(self, index):
        img_q = Image.open(self.files[index]).convert("RGB")
        img_q = self.first(img_q)
        img_k = Image.open(self.files[index]).convert("RGB")
        return {"q": img_q, "k": self.second(img_k)}


class WithLabels(Files):
    def __getitem__(self, index):
        image = Image.open(self.files[index]).convert("RGB")
        samples = []
        for _ in range(2):
            samples.append(self.first(image))
        return [(crop, self.labels[index]) for crop in samples]


class RawToo(Files):
    """A view of 8 bits beside one that is no different in type."""

    def __init__(self, folder):
        super().__init__(folder, compose(T.RandomCrop(9, pad_if_needed=True), T.PILToTensor()),
                         compose(T.Resize(9), T.CenterCrop(7), T.PILToTensor()))

    __getitem__ = OnlyPair.__getitem__


NATIVE = {
    "swav": lambda f: MultiCropDataset(f.root),
    "swav_index": lambda f: MultiCropDataset(f.root, True),
    "srgan": SuperResolution,
    "pair": Pair,
    "only_pair": OnlyPair,
    "query_and_key": QueryAndKey,
    "n_views": NViews,
    "appends": Appends,
    "nested": Nested,
    "last_first": LastFirst,
    "two_steps": TwoSteps,
    "around": lambda f: Around(Subset(f, [3, 1, 1, 9])),
    "around_own": lambda f: Around(ConcatDataset([f, f])),
    "by_methods": ByMethods,
    "converts_twice": ConvertsTwice,
    "imports": Imports,
    "raw_too": RawToo,
    "two_crop_folder": lambda f: TwoCropFolder(f.root, LARGE),
    "two_crop_folder_list": lambda f: TwoCropFolder(f.root, [SMALL, LARGE]),
    "opens_twice_alike": OpensTwiceAlike,
    "with_labels": WithLabels,
    "by_number_and_name": ByNumberAndName,
    "with_index": lambda f: WithIndex(ImageFolder(f.root, two_views)),
    "of_transform": lambda f: OfTransform(f, two_views),
    "subset": lambda f: Subset(Pair(f), [9, 3, 9, 30]),
    "concat": lambda f: ConcatDataset([Pair(f), Pair(f)]),
}
AS_IS = ("srgan", "appends")
QUICK = (
    "swav", "srgan", "pair", "only_pair", "n_views", "nested", "last_first", "two_steps", "around",
    "by_methods", "raw_too", "subset",
)


@pytest.mark.parametrize("n_workers", [0, pytest.param(2, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", slow_but_for(QUICK, NATIVE))
def test_these_are_native(folder, name, n_workers):
    dataset = NATIVE[name](folder)
    assert "views of one decode" in str(feedmill.DataLoader(dataset, batch_size=4).explain())
    compare(dataset, num_workers=n_workers)
    # Images that are not converted may have different types, see test_image_modes.py.
    compare(dataset, "torch" if name in AS_IS else "native", batch_size=None, num_workers=n_workers)


def test_one_decode_for_all(folder):
    dataset = Pair(folder, LARGE)
    loader = native_loader(dataset, batch_size=40, seed=5)
    [[one, other, targets]] = list(loader)
    assert sum(torch.equal(*pair) for pair in zip(one, other)) < 3
    assert loader.draws(3, 0) == loader.draws(3, 0, view=0) != loader.draws(3, 0, view=1)
    for index in (0, 17, 39):
        images, target = loader.fetch(index, 0)
        assert equal_batches(images, [one[index], other[index]])
        assert target == (int(targets[index]),)
    counters = loader.stats().flat()
    assert counters["read_files"] == counters["native_samples"] == 40


@pytest.mark.parametrize("options", slow_but_for([{"drop_last": True}], [
    {"num_workers": 1, "persistent_workers": True}, {"drop_last": True}, {"batch_size": 1},
    {"num_workers": 2, "multiprocessing_context": "spawn"},
]))
def test_other_options(folder, options):
    compare(Nested(folder), **options)
    compare(pickle.loads(pickle.dumps(MultiCropDataset(folder.root, True))), **options)


def test_resuming(folder):
    dataset, options = Nested(folder), {"batch_size": 4, "shuffle": True, "num_workers": 2}
    torch.manual_seed(1)
    wanted = list(torch.utils.data.DataLoader(dataset, **options))
    torch.manual_seed(1)
    loader = feedmill.DataLoader(dataset, **options)
    iterator = iter(loader)
    for _ in range(3):
        next(iterator)
    state = loader.state_dict()
    other = feedmill.DataLoader(dataset, **options)
    other.load_state_dict(state)
    assert equal_batches(list(other), wanted[3:])
    assert other.stats().path == "native"


# ---- files ---------------------------------------------------------------------------------------


def files_of(tmp_path, *others):
    """Datasets of six images, and of these others in between."""
    paths = []
    for number in range(6):
        paths.append(save_jpeg(tmp_path / "a" / f"{number}.jpg", 30 + number, 40, seed=number))
    paths[3:3] = others
    made = Files.__new__(Files)
    made.samples = [(str(path), number) for number, path in enumerate(paths)]
    return made


@pytest.mark.parametrize("kind", slow_but_for([SuperResolution], [Pair, QueryAndKey, SuperResolution, Appends]))
def test_damaged_files(tmp_path, kind):
    bad = save_jpeg(tmp_path / "bad.jpg", 50, 50)
    bad.write_bytes(bad.read_bytes()[:400])
    text = tmp_path / "text.jpg"
    text.write_text("no image")
    for other in (bad, text, tmp_path / "missing.jpg"):
        dataset = kind(files_of(tmp_path, other))
        for n_workers in (0, 2):
            raised = []
            for make in (torch.utils.data.DataLoader, feedmill.DataLoader):
                torch.manual_seed(3)
                iterator = iter(make(dataset, batch_size=3, num_workers=n_workers))
                first = next(iterator)
                with pytest.raises(OSError) as caught:
                    next(iterator)
                raised.append((first, caught.type, torch.rand(1)))
            assert equal_batches(*raised)
        loader = native_loader(dataset, batch_size=7, on_error="skip")
        [skipped] = list(loader)
        for policy in ("zero", "replace"):
            [made] = list(native_loader(dataset, batch_size=7, on_error=policy))
            for one, other_one in zip(images_in(made), images_in(skipped), strict=True):
                assert len(one) == 7 and len(other_one) == 6
                assert one[3].any() == (policy == "replace") and one[4].any()


def images_in(batch):
    if isinstance(batch, torch.Tensor):
        return [batch] if batch.ndim == 4 else []
    return [one for part in (batch.values() if isinstance(batch, dict) else batch)
            for one in images_in(part)]


@pytest.mark.slow
def test_files_that_pillow_decodes(tmp_path):
    pixels = np.arange(32 * 40 * 4, dtype=np.uint8).reshape(32, 40, 4)
    Image.fromarray(pixels[..., :3]).save(tmp_path / "7.bmp")
    Image.fromarray(pixels, "CMYK").save(tmp_path / "8.jpg")
    for kind in (Pair, Nested, QueryAndKey):
        dataset = kind(files_of(tmp_path, tmp_path / "7.bmp", tmp_path / "8.jpg"))
        compare(dataset, batch_size=3)
        compare(dataset, batch_size=3, num_workers=2)


def test_images_of_other_modes(tmp_path, folder):
    """As for one image, see test_image_modes.py: some of the files are looked at beforehand."""
    grey = save_jpeg(tmp_path / "grey.jpg", 40, 30, mode="L")
    dataset = SuperResolution(folder)
    dataset.files[0] = str(grey)
    assert "is an image of mode L" in feedmill.DataLoader(dataset, batch_size=4).explain()
    dataset.files[0], dataset.files[1] = dataset.files[1], str(grey)
    loader = feedmill.DataLoader(dataset, batch_size=4)
    assert loader.explain().startswith("native path")
    for make in (torch.utils.data.DataLoader, feedmill.DataLoader):
        with pytest.raises(RuntimeError):
            list(make(dataset, batch_size=4))
    text = feedmill.DataLoader(dataset, batch_size=1).explain()
    assert text.startswith("torch's own path") and "shapes or types may differ" in text
    # Pillow makes both images grey, and torch's collate_fn stacks them.
    to_grey = compose(T.Resize((9, 9)), T.Grayscale(), T.ToTensor())
    dataset.first, dataset.second = to_grey, compose(T.RandomCrop(8, pad_if_needed=True), to_grey)
    compare(dataset, batch_size=3)


class ToRGB(OnlyPair):
    def __getitem__(self, index):
        image = Image.open(self.files[index])
        return self.first(image), self.second(image)


def to_rgb(image):
    return image.convert("RGB")


@pytest.mark.slow
def test_transforms_that_convert(tmp_path, folder):
    grey = save_jpeg(tmp_path / "grey.jpg", 40, 30, mode="L")
    converting = [compose(T.Lambda(to_rgb), one) for one in (LARGE, SMALL)]
    dataset = ToRGB(folder, *converting)
    dataset.files[0] = str(grey)
    compare(dataset)
    compare(dataset, batch_size=None)
    dataset = ToRGB(folder, converting[0], SMALL)
    text = feedmill.DataLoader(dataset, batch_size=4).explain()
    assert text.startswith("torch's own path")
    assert "only some of the views of a sample are converted to RGB" in text


# ---- tensors -------------------------------------------------------------------------------------


RESIZE = v2.Compose([v2.RandomResizedCrop(9, antialias=True), v2.ToDtype(torch.float32, scale=True)])


class Tensors(Files):
    def __getitem__(self, index):
        image = read_image(self.files[index], ImageReadMode.RGB)
        return self.first(image), self.second(image)


def times_two(image):
    image *= 2
    return image


def test_tensors(folder):
    if reason := torchvision_io.why_not():
        skip(reason)
    compare(Tensors(folder, RESIZE, RESIZE))
    erasing = v2.RandomErasing(1.0, value=3, inplace=True)
    bytes_of = v2.CenterCrop(20)
    compare(Tensors(folder, bytes_of, v2.Compose([bytes_of, v2.RandomHorizontalFlip()])))
    for first in (
        v2.Compose([erasing, bytes_of]), v2.Compose([T.Lambda(times_two), bytes_of]),
        v2.Compose([v2.RandomApply([erasing]), bytes_of]),
    ):
        dataset = Tensors(folder, first, bytes_of)
        assert feedmill.DataLoader(dataset, batch_size=4).explain().startswith("torch's own path")
        compare(dataset, "torch")


# ---- what is left to torch -----------------------------------------------------------------------


@pytest.mark.slow
def test_options_that_need_one_image(folder):
    for dataset in (Pair(folder), Nested(folder), MultiCropDataset(folder.root)):
        for options, reason in (
            ({"collate_fn": list}, "torch's own collate_fn"),
            ({"dtype": torch.float16}, "to which dtype= and memory_format="),
            ({"memory_format": torch.channels_last}, "to which dtype= and memory_format="),
        ):
            text = feedmill.DataLoader(dataset, batch_size=4, **options).explain()
            assert text.startswith("torch's own path") and reason in text
        compare(dataset, "torch", collate_fn=list)


def test_a_conversion_to_another_mode(folder):
    """is left to torch by what its transforms are made into."""
    dataset = made_of(folder, "return a, b, self.first(image.convert('L'))")
    dataset.first = dataset.second = compose(T.CenterCrop(9), T.ToTensor())
    compare(dataset, "torch")


@pytest.mark.parametrize(("second", "reason"), [
    (compose(T.RandomCrop(9), T.PILToTensor()), "different types"),
    (compose(T.Lambda(lambda image: image.rotate(3)), SMALL), "rotate"),
    (compose(T.Resize(9), TO_TENSOR), "one size"),
    (T.RandomCrop(9), "does not end in a tensor"),
])
def test_views_that_are_not_supported(folder, second, reason):
    text = feedmill.DataLoader(OnlyPair(folder, LARGE, second), batch_size=4).explain()
    assert text.startswith("torch's own path") and reason in text, text


def test_several_views_of_several(folder):
    class Two:
        def __call__(self, image):
            return [LARGE(image), SMALL(image)]

    text = feedmill.DataLoader(OnlyPair(folder, Two(), LARGE), batch_size=4).explain()
    assert text.startswith("torch's own path") and "is itself a list of images" in text
    compare(OnlyPair(folder, Two(), LARGE), "torch")


def test_a_dataset_around_one_with_several_images(folder):
    for make in (Around, lambda inner: Passes(inner)):
        text = feedmill.DataLoader(make(OnlyPair(folder)), batch_size=4).explain()
        assert text.startswith("torch's own path"), text


class Passes(Dataset):
    def __init__(self, inner):
        self.inner = inner

    def __len__(self):
        return len(self.inner)

    def __getitem__(self, index):
        return self.inner[index]


HEAD = '''image = Image.open(self.files[index]).convert("RGB")
a, b = self.first(image), self.second(image)
'''
HOSTILE = (
    "return a, b, a",
    "return [a, a], b",
    "return a, image",
    "return a, b, image",
    "return a, self.labels[index]",
    "return a",
    "c = self.first(image)\nreturn a, b",
    "self.first(image)\nreturn a, b",
    "return a, self.second(a)",
    "return self.second(a), a, b",
    "a = self.second(a)\nreturn a, b",  # draws for the first image again
    "image = image.rotate(3)\nreturn a, b, self.first(image)",
    "image.putpixel((1, 1), 3)\nreturn a, b, self.first(image)",
    "image.thumbnail((9, 9))\nreturn a, b, self.first(image)",
    "image.paste(0)\nreturn a, b",
    "c = self.first(image.copy())\nreturn a, b, c",
    "c = self.first(Image.open(self.files[0]).convert('RGB'))\nreturn a, b, c",
    "Image.open(self.files[index])\nreturn a, b",
    "c = Image.open(self.files[index])\nreturn a, b",
    "c = open(self.files[index], 'rb')\nreturn a, b",
    "c = self.first(Image.open(self.files[index % 40]).convert('RGB'))\nreturn a, b, c",
    "c = self.first(Image.open(self.own_files[index]).convert('RGB'))\nreturn a, b, c",
    "return (a, b) if self.labels[index] else (b, a)",
    "return (a, b) if random.random() < 0.5 else (b, a)",
    "if self.labels[index]:\n    a, b = b, a\nreturn a, b",
    "if a is b:\n    return b, a\nreturn a, b",
    "if a.mean() > 0:\n    return b, a\nreturn a, b",
    "views = [a]\nviews.insert(0, b)\nreturn views",
    "views = [a, b]\nviews.reverse()\nreturn views",
    "views = [a, b]\nviews.append(views)\nreturn views",
    "views = [a, b]\nviews[0] = b\nreturn views",
    "views = [a, b]\nfor one in views:\n    views.append(one)\nreturn views",
    "views = [a]\nfor one in views:\n    views.append(b)\nreturn views",
    "views = [a, b]\nfor one in views:\n    one = self.first(one)\nreturn views",
    "views = [a, b]\nfor k in range(60):\n    views += views\nreturn views",
    "made = {'a': a, 'b': b}\nmade['c'] = made\nreturn made",
    "made = {'a': a, 'b': b}\nmade.update(c=1)\nreturn made",
    "made = {'a': a, 'b': b}\nmade.pop('a')\nreturn made",
    "made = {'a': a}\nmade['a'] = b\nreturn made",
    "made = {self.labels[index]: a, 2: b}\nreturn made",
    "return map(lambda one: one(image), self.both)",
    "return (one(image) for one in self.both)",
    "return list(map(lambda one, two=self.first: two(image), self.both))",
    "return list(map(self.first, [image, image]))",
    "return list(map(lambda one: a, self.both))",
    "return list(map(lambda one: LOG.append(1) or one(image), self.both))",
    "return [one(image) for one in self.own]",
    "return [one(image) for one in self.both if one]",
    "return [one(image) for one in self.both for _ in range(2)]",
    "return sorted([a, b], key=id)",
    "return {a, b}",
    "return torch.stack([a, b])",
    "return a + b",
    "return [a, b] * 2",
    "return a, b, LOG.append(1)",
    "self.kept = a\nreturn a, b",
    "LOG.append(a)\nreturn a, b",
    "self.both.append(self.first)\nreturn a, b",
    "from os import path as LARGE\nreturn a, b",
    "import random\nreturn a, b",
    "return a, b, T.ToTensor()(image)",
    "return a, b, LARGE(image)",
    "return a, b, self.by_name['none'](image)",
    "return a, b, self.by_name[0](image)",
    "return a, b, self.by_key['large'](image)",
    "return a, b, self.deep[0][0](image)",
    "return a, b, self.both[2](image)",
    "return a, b, self.both[True](image)",
    "return a, b, self.both[self.labels[index]](image)",
    "return a, b, np.array(image)",
    "return a, b, image.size",
    "return a, *self.labels[index], b",
    "return [*[a, b]]",
    "return [self.first(image) for _ in range(17)]",
    "return [self.first(image) for _ in range(self.labels[index])]",
    "yield a\nyield b",
    "del image\nreturn a, b",
    "try:\n    c = self.first(image)\nfinally:\n    pass\nreturn a, b, c",
    "while True:\n    return a, b",
    "global LOG\nreturn a, b",
    "def inner():\n    return a\nreturn inner(), b",
    "with torch.no_grad():\n    return a, b",
)


class Fewer(list):
    def __iter__(self):
        return iter(self[:1])


class Key:
    def __hash__(self):
        return hash("large")

    def __eq__(self, other):
        LOG.append(other)
        return True


def made_of(folder, lines, head=HEAD, **scope):
    name = f"<dataset of {abs(hash(head + lines))}>"
    body = "".join(f"        {one}\n" for one in (head + lines).split("\n"))
    text = f"class Made(Files):\n    def __getitem__(self, index):\n{body}"
    linecache.cache[name] = len(text), None, text.splitlines(True), name
    scope = {"__name__": "made", **globals(), **scope}
    exec(compile(text, name, "exec"), scope)
    dataset = scope["Made"](folder)
    dataset.both, dataset.own = [LARGE, SMALL], Fewer([LARGE, SMALL])
    dataset.own_files = list(dataset.files)
    dataset.by_name = {"large": T.RandomCrop(9)}
    dataset.by_key, dataset.deep = {Key(): 1}, [[T.RandomCrop(9)]]
    dataset.by_key["large"] = T.RandomCrop(9)
    return dataset


@pytest.mark.parametrize("lines", HOSTILE)
def test_these_are_left_to_torch(folder, lines):
    dataset = made_of(folder, lines)
    LOG.clear()
    with pytest.raises(NotUnderstood):
        read_own(dataset)
    text = feedmill.DataLoader(dataset, batch_size=4).explain()
    assert text.startswith("torch's own path"), text
    assert LOG == []


def test_the_head_of_these_is_understood(folder):
    assert len(read_own(made_of(folder, "return a, b")).views) == 2


def test_files_that_are_opened_in_two_ways(folder):
    """The errors of damaged files name the path or not."""
    with pytest.raises(NotUnderstood, match="more than one file"):
        read_own(OpensTwice(folder))


def test_opened_images(folder):
    head = "image = Image.open(self.files[index])\n"
    for lines in (
        "return self.first(image), self.second(image.convert('RGB'))",
        "return self.first(image.convert('RGB')), self.second(image)",
        "with image:\n    a = self.first(image)\nreturn a, self.second(image)",
        "with image:\n    pass\nreturn self.first(image), self.second(image)",
        "a = self.first(image)\nimage.close()\nreturn a, self.second(image)",
        "a = self.first(image)\nimage.seek(0)\nreturn a, self.second(image)",
        "a = self.first(image)\nimage.draft('L', (3, 3))\nreturn a, self.second(image)",
    ):
        with pytest.raises(NotUnderstood):
            read_own(made_of(folder, lines, head))


@pytest.mark.parametrize("name", ["list", "map", "tuple", "range", "len"])
def test_functions_of_the_same_name(folder, name):
    lines = {
        "list": "return list(map(lambda one: one(image), self.both))",
        "map": "return list(map(lambda one: one(image), self.both))",
        "tuple": "return tuple([self.first(image), self.second(image)])",
        "range": "return [self.first(image) for _ in range(2)]",
        "len": "image = Image.open(self.files[index % len(self.files)]).convert('RGB')\n"
               "return self.first(image), self.second(image)",
    }[name]
    head = "" if name == "len" else HEAD.split("\n")[0] + "\n"
    assert len(read_own(made_of(folder, lines, head)).views) == 2
    with pytest.raises(NotUnderstood):
        read_own(made_of(folder, lines, head, **{name: lambda *values: [values]}))


class WithPath(ImageFolder):
    """One image, read as in torchvision's __getitem__."""

    def __getitem__(self, index):
        path, target = self.samples[index]
        sample = self.loader(path)
        if self.transform is not None:
            sample = self.transform(sample)
        if self.target_transform is not None:
            target = self.target_transform(target)
        return sample, target, path


@pytest.mark.parametrize("n_workers", slow_but_for([0], [0, 2]))
def test_folders_that_return_the_path(folder, n_workers):
    for options in ({}, {"batch_size": None}, {"collate_fn": list}):
        compare(WithPath(folder.root, LARGE), num_workers=n_workers, **options)
    dataset = WithPath(folder.root, LARGE, target_transform=[7, 8].__getitem__)
    assert feedmill.DataLoader(dataset).explain().startswith("torch's own path")
    compare(dataset, "torch", num_workers=n_workers)


class Override(MultiCropDataset):
    """Subclasses of folders are read like other datasets."""

    def __getitem__(self, index):
        path, _ = self.samples[index]
        LOG.append(path)
        image = self.loader(path)
        return self.trans[0](image), self.trans[1](image)


class LoaderOfItsOwn(MultiCropDataset):
    loader = property(lambda self: LOG.append(1), lambda self, value: None)


def test_subclasses_of_folders(folder):
    for kind in (Override, LoaderOfItsOwn):
        dataset = kind(folder.root)
        LOG.clear()
        assert feedmill.DataLoader(dataset).explain().startswith("torch's own path")
        assert not LOG
    dataset = MultiCropDataset(folder.root)
    dataset.loader = lambda path: Image.open(path).rotate(3)
    assert feedmill.DataLoader(dataset).explain().startswith("torch's own path")
    assert feedmill.DataLoader(dataset, native="hybrid").explain().startswith("torch's own path")


# ---- changes -------------------------------------------------------------------------------------


def test_changes_during_an_epoch_are_found(folder):
    for change, text in (
        (lambda dataset: dataset.trans.pop(), "gives a list"),
        (lambda dataset: dataset.trans.append(LARGE), "gives a list"),
        (lambda dataset: dataset.trans.__setitem__(4, to_rgb), "called its transform 4 times"),
        (lambda dataset: dataset.trans.reverse(), "in view 1"),
        (lambda dataset: setattr(dataset, "return_index", True), "gives a tuple"),
    ):
        dataset = MultiCropDataset(folder.root)
        loader = native_loader(dataset, batch_size=8, native="verify")
        iterator = iter(loader)
        next(iterator)
        next(iterator)
        change(dataset)
        with pytest.raises(VerificationError, match=text):
            list(iterator)


def test_changes_are_seen_at_the_next_epoch(folder):
    dataset = MultiCropDataset(folder.root)
    loader = native_loader(dataset, batch_size=8)
    assert len(next(iter(loader))) == 5
    dataset.trans = dataset.trans[1:4]
    assert [one.shape[-1] for one in next(iter(loader))] == [16, 8, 8]
    dataset.return_index = True
    assert next(iter(loader))[0].tolist() == list(range(8))
