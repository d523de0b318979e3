"""Datasets of the user's own without feedmill_item: which are native by their source, and which take
torch's path."""

import copy
import functools
import linecache
import operator
import os
import pathlib
import random
import re

import feedmill
import numpy as np
import pytest
import torch
from feedmill.planner.arrangements import PAIR, as_returned, taken_apart
from feedmill.planner.attributes import NotUnderstood
from feedmill.planner.datasets import _DatasetReader
from feedmill.planner.image_calls import Convert
from feedmill.planner.looked_up import is_plain
from feedmill.planner.own_datasets import read_own
from helpers import compose, equal_batches, native_loader, slow_but_for
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image
from torch.utils.data import ConcatDataset, Dataset, Subset
from torchvision import transforms as T
from torchvision.datasets import (
    DTD,
    GTSRB,
    SUN397,
    FGVCAircraft,
    Flowers102,
    Food101,
    ImageFolder,
    RenderedSST2,
    StanfordCars,
)
from torchvision.datasets import folder as folder_module
from torchvision.datasets.folder import default_loader

try:
    import pandas
except ImportError:
    pandas = None  # methods that use it are not understood

HEAD = (T.Resize((8, 8)), T.PILToTensor())
LOG = []


def compare(dataset, **options):
    ours = native_loader(dataset, **options)
    theirs = torch.utils.data.DataLoader(dataset, **options)
    n_batches = 0
    for mine, other in zip(ours, theirs, strict=True):
        assert equal_batches(mine, other)
        n_batches += 1
    assert ours.stats().path == "native" and n_batches
    for _ in feedmill.DataLoader(dataset, **{**options, "native": "verify"}):
        pass


# ---- native --------------------------------------------------------------------------------------


class Files(Dataset):
    """As most people write it."""

    def __init__(self, folder, transform=None):
        self.paths = [path for path, _ in folder.samples]
        self.labels = [label for _, label in folder.samples]
        self.transform = transform

    def __len__(self):
        return len(self.paths)

    def __getitem__(self, idx):
        image = Image.open(self.paths[idx]).convert("RGB")
        if self.transform is not None:
            image = self.transform(image)
        return image, self.labels[idx]


class Named(Files):
    """Files in a folder by name, and arrays of numbers."""

    def __init__(self, folder, transform=None):
        super().__init__(folder, transform)
        self.root = os.path.dirname(os.path.dirname(self.paths[0]))
        self.names = np.array([os.path.relpath(path, self.root) for path in self.paths])
        self.numbers = np.arange(len(self.paths))
        self.loader = default_loader

    def __getitem__(self, index):
        path = os.path.join(self.root, self.names[index])
        sample = self.loader(path)
        if self.transform:
            sample = self.transform(sample)
        label = int(self.numbers[index])
        return {"no": 1}["no"] if False else sample, label, self.numbers[index], index, "text"


class Pairs(Files):
    def __init__(self, folder, transform=None):
        self.samples = folder.samples
        self.tf = transform
        self.targets = {i: torch.tensor([i, -i]) for i in range(len(folder.samples))}
        self.paths = folder.samples

    def __getitem__(self, i):
        path, label = self.samples[i]
        other = self.samples[i][1]
        x = self.tf(Image.open(path).convert("RGB"))
        return x, (label if False else other)


class Images(Files):
    def __getitem__(self, i):
        return self.transform(Image.open(self.paths[i]).convert("RGB"))


class Dicts(Files):
    def __getitem__(self, index):
        image = Image.open(self.paths[index]).convert("RGB")
        return {"image": self.transform(image), "label": self.labels[index], "name": "a"}


class BuiltDicts(Files):
    def __getitem__(self, index):
        opened = Image.open(self.paths[index]).convert("RGB")
        sample = dict(index=index, image=opened)  # noqa: C408
        sample["label"] = self.labels[index]
        sample["image"] = self.transform(sample["image"])
        return sample


class OtherIndex(Files):
    """As PyTorch-GAN's datasets."""

    def __getitem__(self, idx):
        image = Image.open(self.paths[idx % len(self.paths)]).convert("RGB")
        return self.transform(image), self.labels[idx % 3]


class InLists(Files):
    """Lists and dicts within each other."""

    def __getitem__(self, idx):
        image = self.transform(Image.open(self.paths[idx]).convert("RGB"))
        about = {"label": self.labels[idx], "of": ("all", len(self.paths))}
        about["path"] = self.paths[idx]
        return [[image, idx], about, (), (str(idx),)]


class InList(Files):
    def __getitem__(self, idx):
        image = Image.open(self.paths[idx]).convert("RGB")
        for transform in self.steps:
            image = transform(image)
        return [image, self.labels[idx]]

    def __init__(self, folder, transform):
        super().__init__(folder)
        self.steps = transform.transforms


class TransformedSubset(Dataset):
    """As it is often written for random_split."""

    def __init__(self, subset, transform=None):
        self.subset = subset
        self.transform = transform

    def __getitem__(self, index):
        x, y = self.subset[index]
        if self.transform:
            x = self.transform(x)
        return x, y

    def __len__(self):
        return len(self.subset)


class Selected(Dataset):
    """As torch's Subset."""

    def __init__(self, dataset, indices):
        self.dataset, self.indices = dataset, indices

    def __getitem__(self, index):
        return self.dataset[self.indices[index]]

    def __len__(self):
        return len(self.indices)


class Indexed(Dataset):
    def __init__(self, dataset):
        self.data = dataset

    def __getitem__(self, index):
        image, target = self.data[index]
        return index, image, target

    def __len__(self):
        return len(self.data)


class TwoSteps(TransformedSubset):
    def __init__(self, subset, *steps):
        self.first, self.second, self.subset = *steps, subset

    def __getitem__(self, index):
        image, _ = self.subset[index]
        if isinstance(image, Image.Image) and image.mode != "RGB":
            image = image.convert("RGB")
        return self.second(self.first(image.convert("RGB") if False else image))


class Passed:
    """Not even a torch Dataset."""

    def __init__(self, dataset):
        self.inner = dataset

    def __getitem__(self, index):
        return self.inner[index]

    def __len__(self):
        return len(self.inner)


def name_of(dataset, index):
    if isinstance(dataset, Files):
        return str(index)
    elif isinstance(dataset, ImageFolder):
        path = dataset.imgs[index][0]
        return os.path.relpath(path, dataset.root)
    return LOG.append(index)


class WithNames(Dataset):
    """As LightlyDataset: a function is called for each sample."""

    def __init__(self, folder):
        self.dataset, self.name_of = folder, name_of

    def __len__(self):
        return len(self.dataset)

    def __getitem__(self, index):
        name = self.name_of(self.dataset, index)
        sample, target = self.dataset.__getitem__(index)
        return sample, target, name


class Methods(Files):
    def path_of(self, i):
        return self.paths[i]

    def load(self, i):
        path = self.path_of(i)
        return Image.open(path).convert("RGB")

    def __getitem__(self, index):
        return self.transform(self.load(index)), self.path_of(index)


def label_of(path):
    name = path.split(os.path.sep)[-1]
    return re.search(r"^(.*)_(\d+)", "image_" + name).groups()[1]


class ByName(Files):
    """As accelerate's PetsDataset: the label is a part of the file's name."""

    def __init__(self, folder, transform=None):
        super().__init__(folder, transform)
        self.numbers = {label_of(path): n for n, path in enumerate(self.paths)}

    def __getitem__(self, index):
        path = self.paths[index]
        image = Image.open(path).convert("RGB")
        image = self.transform(image)
        label = label_of(path)
        if self.numbers is not None:
            label = self.numbers[label]
        return {"image": image, "label": label}


class Texts(Files):
    """Whatever else is done with a path."""

    def __init__(self, folder, transform=None):
        super().__init__(folder, transform)
        self.names = tuple(map(os.path.basename, self.paths))
        self.root = os.path.commonpath(self.paths)

    def __getitem__(self, index):
        path = self.paths[index]
        stem, extension = os.path.splitext(os.path.basename(path))
        folder = os.path.dirname(path)[-3:].upper()
        first, _, rest = self.names[index].partition(".")
        match = re.match(r"(\w*)(?:\.(\w+))?", self.names[index])
        number = int(str(index).strip() + "0")
        values = (stem[::-1], extension[1:], folder, first, rest.replace("j", "J"), number,
                  match.group(), match.group(2).lower(), path.endswith(".jpg"), stem.split("_")[-1],
                  path.removeprefix(self.root), path[0], path.rsplit("/", 1)[:1][0])
        return self.transform(Image.open("" + path).convert("RGB")), *values


class Formatted(Files):
    """Strings that are formatted."""

    def __init__(self, folder, transform=None):
        super().__init__(folder, transform)
        self.root = os.path.dirname(os.path.dirname(self.paths[0]))
        self.pairs = [(label, -label) for label in self.labels]
        self.boxes = np.arange(80, dtype=np.float64).reshape(40, 2)
        self.box_list = list(self.boxes.astype(np.float32))

    def __getitem__(self, index):
        if torch.is_tensor(index):
            index = index.item()
        label = self.labels[index]
        path = self.root + "/" + f"class{label}/{self.paths[index][-7:-4]}.jpg"
        texts = ("%s/%03d" % (self.root, label), "%d" % label, "%s-%s" % self.pairs[index],  # noqa: UP031
                 "{}/{:>4}.jpg".format(self.root, index), "{1}{0}{1}".format(label, index),  # noqa: UP032
                 f"{label:+05d} {index}", f"{path[-3:]:>9}", f"{self.nothing}{1.5}")
        boxes = torch.FloatTensor(self.boxes[index]), torch.FloatTensor(self.box_list[index])
        return self.transform(Image.open(path).convert("RGB")), torch.tensor(label), *boxes, *texts

    nothing = None


class ByPaths(Files):
    """With pathlib."""

    def __init__(self, folder, transform=None):
        super().__init__(folder, transform)
        self.paths = list(map(pathlib.Path, self.paths))
        self.root = self.paths[0].parent.parent
        self.names = [str(path.relative_to(self.root)) for path in self.paths]
        self.classes = {"class0": 0, "class1": 1}
        self.rows = [[name, [len(name) % 2 == 0, True]] for name in self.names]

    def load(self, index):
        return Image.open(self.paths[index]).convert("RGB")

    def __getitem__(self, index):
        image = self.load(index)
        name, bits = self.rows[index]
        path = self.root / self.names[index]
        label = self.classes[self.paths[index].parent.name]
        texts = (path.stem + path.suffix, str(path), f"{path.parent}", path.as_posix(), path.parts[-2],
                 str(self.root.joinpath(self.names[index])), str(path.with_suffix(".txt").relative_to(self.root)),
                 os.path.join(self.root, path.name), os.fspath(pathlib.Path(self.root, self.names[index])))
        if self.transform:
            return self.transform(image), label, name, torch.FloatTensor(bits), *texts
        return image, label


NATIVE = {
    "by_paths": lambda f, t: ByPaths(f(), t),
    "formatted": lambda f, t: Formatted(f(), t),
    "by_name": lambda f, t: ByName(f(), t),
    "texts": lambda f, t: Texts(f(), t),
    "with_names": lambda f, t: WithNames(f(t)),
    "with_names_of_own": lambda f, t: WithNames(Files(f(), t)),
    "methods": lambda f, t: Methods(f(), t),
    "files": lambda f, t: Files(f(), t),
    "names": lambda f, t: Named(f(), t),
    "pairs": lambda f, t: Pairs(f(), t),
    "images": lambda f, t: Images(f(), t),
    "dicts": lambda f, t: Dicts(f(), t),
    "built_dicts": lambda f, t: BuiltDicts(f(), t),
    "transformed": lambda f, t: TransformedSubset(f(), t),
    "transformed_subset": lambda f, t: TransformedSubset(Subset(Subset(f(), range(9)), [3, 1, 8]), t),
    "transformed_concat": lambda f, t: TransformedSubset(ConcatDataset([f(), Subset(f(), [1])]), t),
    "not_transformed": lambda f, t: TransformedSubset(Subset(f(t), [5, 2])),
    "selected": lambda f, t: Selected(f(t), [4, 4, 1]),
    "selected_array": lambda f, t: Selected(Subset(f(t), [4, 9, 1]), np.array([2, 0, -1])),
    "selected_twice": lambda f, t: Subset(Selected(Selected(f(t), [7, 3, 1]), (2, 1)), [0, 1, 1]),
    "selected_files": lambda f, t: Selected(Files(f(), t), [4, 4, 1]),
    "indexed": lambda f, t: Indexed(f(t)),
    "indexed_files": lambda f, t: Indexed(Selected(Files(f(), t), [2, 4])),
    "two_steps": lambda f, t: TwoSteps(f(), *t.transforms),
    "passed": lambda f, t: Passed(Passed(f(t))),
    "transformed_files": lambda f, t: TransformedSubset(Passed(f()), t),
    "other_index": lambda f, t: OtherIndex(f(), t),
    "in_lists": lambda f, t: InLists(f(), t),
    "in_list": lambda f, t: InList(f(), t),
    "concat": lambda f, t: ConcatDataset([Files(f(), t), f(t)]),
}


@pytest.mark.parametrize("name", NATIVE)
def test_these_are_native(small_images, name):
    def folder(transform=None):
        return ImageFolder(str(small_images), transform)

    dataset = NATIVE[name](folder, compose(*HEAD))
    compare(dataset, batch_size=8)
    compare(dataset, batch_size=None)
    compare(dataset, batch_size=3, sampler=[1, -1, 0, 1, 0])
    if name == "formatted":
        compare(dataset, batch_size=2, sampler=list(torch.arange(8).split(1)))
    if name in ("files", "images", "transformed_subset", "selected_array"):
        compare(dataset, batch_size=3, sampler=[1, torch.tensor(1), np.int64(0), np.array(2)])


def stacked(samples):
    """A function that can be called in a thread of this process."""
    return [torch.stack([one["image"] for one in samples]), [one["label"] for one in samples]]


def as_given(samples):
    LOG.append(len(samples))
    return samples


@pytest.mark.parametrize("n_workers", slow_but_for([0], [0, 2]))
@pytest.mark.parametrize(
    "name", ["files", "images", "dicts", "built_dicts", "indexed", "indexed_files", "two_steps",
             "in_lists", "in_list"]
)
def test_a_collate_fn_gets_the_datasets_own_samples(small_images, name, n_workers):
    def folder(transform=None):
        return ImageFolder(str(small_images), transform)

    dataset = NATIVE[name](folder, compose(*HEAD))
    functions = [as_given, stacked] if name in ("dicts", "built_dicts") else [as_given]
    for function in functions:
        compare(dataset, batch_size=3, num_workers=n_workers, collate_fn=function)
    compare(dataset, batch_size=None, num_workers=n_workers, collate_fn=type)
    compare(dataset, batch_size=None, num_workers=n_workers, collate_fn=lambda sample: [sample])


@pytest.mark.parametrize("name", ["files", "names", "transformed", "selected_array", "indexed"])
def test_random_transforms_verify(small_images, name):
    def folder(transform=None):
        return ImageFolder(str(small_images), transform)

    random = compose(T.RandomResizedCrop(9), T.RandomHorizontalFlip(), T.ColorJitter(0.4), T.ToTensor())
    dataset = NATIVE[name](folder, random)
    loader = feedmill.DataLoader(dataset, batch_size=8, native="verify", num_workers=1)
    for _ in range(2):
        assert sum(1 for _ in loader) == -(-len(dataset) // 8)
    assert loader.stats().path == "native"


def test_errors_are_the_datasets_own(small_images, tmp_path):
    dataset = Files(ImageFolder(str(small_images)), compose(*HEAD))
    dataset.labels = dataset.labels[:5]
    dataset.paths[2] = str(tmp_path / "missing.jpg")
    dataset.paths[3] = str(tmp_path / "broken.jpg")
    (tmp_path / "broken.jpg").write_bytes(b"no image")
    for index in (1, 2, 3, 5, 39, 40, -41, "x", None):
        raised = []
        for kind in (native_loader, torch.utils.data.DataLoader):
            try:
                next(iter(kind(dataset, sampler=[index])))
                raised.append(None)
            except Exception as error:
                raised.append((type(error), re.sub(r" \[dataset index.*?\]", "", str(error))))
        assert raised[0] == raised[1], index


def test_errors_of_texts_are_the_datasets_own(small_images):
    dataset = ByName(ImageFolder(str(small_images)), compose(*HEAD))
    folder = os.path.dirname(dataset.paths[0])
    dataset.paths[1] = os.path.join(folder, "unknown.jpg")  # KeyError
    dataset.paths[2] = folder  # AttributeError: there is no match
    del dataset.numbers[label_of(dataset.paths[3])]
    ours, theirs = native_loader(dataset), torch.utils.data.DataLoader(dataset)
    for at in (1, 2, 3):
        samplers = [[at]]
        found = []
        for kind in (type(ours), type(theirs)):
            with pytest.raises(Exception) as caught:
                next(iter(kind(dataset, batch_sampler=samplers)))
            found.append((caught.type, str(caught.value)))
        assert found[0] == found[1]


class Unused(Files):
    def __getitem__(self, idx):
        image = self.transform(Image.open(self.paths[idx]).convert("RGB"))
        _ = self.weights[idx]
        _, _ = self.pairs[idx]
        return image, 1


def test_what_is_looked_up_in_vain_may_raise(small_images):
    dataset = Unused(ImageFolder(str(small_images)), compose(*HEAD))
    dataset.weights, dataset.pairs = [1] * 6, [(i, i) for i in range(5)]
    compare(dataset, sampler=[0, 4])
    for index, kind in ((6, IndexError), (5, IndexError)):
        with pytest.raises(kind):
            next(iter(native_loader(dataset, sampler=[index])))
    dataset.pairs[2] = (1, 2, 3)
    with pytest.raises(ValueError, match="too many values to unpack"):
        next(iter(native_loader(dataset, sampler=[2])))


def test_changes_are_seen_at_the_next_epoch(small_images):
    dataset = Files(ImageFolder(str(small_images)), compose(*HEAD))
    loader = feedmill.DataLoader(dataset, batch_size=40)
    assert next(iter(loader))[1].tolist() == dataset.labels
    dataset.labels = list(range(40))
    assert next(iter(loader))[1].tolist() == dataset.labels
    dataset.paths = dataset.paths[::-1]
    assert torch.equal(next(iter(loader))[0][0], dataset[0][0])
    assert loader.stats().path == "native"


def test_torchvisions_other_datasets(small_images):
    folder = ImageFolder(str(small_images))
    paths, labels = zip(*folder.samples)
    for kind in (DTD, FGVCAircraft, Flowers102, Food101, SUN397, StanfordCars, GTSRB, RenderedSST2):
        dataset = kind.__new__(kind)
        dataset._image_files, dataset._labels = list(paths), list(labels)
        dataset._samples, dataset.loader = folder.samples, default_loader
        dataset.transform, dataset.target_transform = compose(*HEAD), None
        compare(dataset, batch_size=8, sampler=[3, 1, -1])
        dataset.target_transform = hash
        assert feedmill.DataLoader(dataset).explain().startswith("torch's own path")


# ---- random __getitem__ --------------------------------------------------------------------------

VALUES = ["self.labels[index]", "self.pairs[index][1]", "index", "int(self.numbers[index])",
          "self.rows[index]", "label", "path", "'text'", "self.rows[index][0]", "-index",
          "self.label_of(index)", "named(self, self.root, index)", "self.inner.__getitem__(index)[1]",
          "path.split('/')[-1]", "path.split('/')[9:]", "path.replace('/', label)", "path[-5:]", "path[:2] + path",
          "self.root + path", "path + label", "label + path", "re.search('_(.)', path).groups()[0]",
          "re.match('q', path).group()", "self.root.split(path)", "self.lettered[path[-5]]", "path.strip(index)",
          "os.path.splitext(path)[1]", "label.lower()", "self.paths[index].rpartition('.')[0].upper()",
          "str(label)[0]", "self.pairs[index][-1]", "f'{path}-{label}'", "f'{label:03d}'",
          "'%s' % label", "'%d %s' % (label, path)", "'%s-%s' % self.pairs[index]", "'{}'.format(path)",
          "'{1:>5}{0}'.format(label, index)", "torch.tensor(label)", "torch.tensor(label, dtype=torch.float)",
          "self.files[index]", "self.files[index].parent.name", "self.files[index].stem + path", "self.folder / path",
          "str(self.folder / self.names[index])", "self.files[index].with_suffix('.x')", "self.files[index] / label",
          "torch.FloatTensor(self.pairs[index])", "torch.LongTensor(self.pairs[index])", "self.folder.joinpath(path)", "pathlib.Path(path)", "pathlib.Path(label)", "self.files[index].parts[-1]",
          "os.fspath(self.files[index])", "path.parent", "self.frame.iloc[index, 1]", "self.frame.iloc[index]['name']", "self.frame.iloc[index].number",
          "self.frame.loc[index, 'name']", "self.frame['number'][index]", "self.frame.name.iloc[index]",
          "self.frame.at[index, 'number']", "self.frame.number.values[index]", "self.frame.name[index].upper()",
          "self.frame.iat[index, -1]", "self.frame.iloc[index][0]", "self.frame.iloc[index]", "self.frame.mixed[index]",
          "self.labels[self.numbers[index]]", "self.labels[self.pairs[index][0]]", "self.nothing"]
IMAGES = ["Image.open(path).convert('RGB')", "Image.open(self.paths[index]).convert('RGB')",
          "self.loader(path)", "self.load(index)", "self.inner.__getitem__(index)[0]",
          "self.inner[index][0]", "self.turn(image)", "self.cut(image)",
          "image.convert('RGB')", "self.cut(self.turn(image))", "image", "Image.open(path)",
          "self.inner[self.numbers[index]][0]", "self.nothing(image) if self.nothing else image",
          "self.cut(image)", "self.turn(image)", "views[0]"]
LINES = ["path = self.paths[index]", "path, label = self.samples[index]", "label = {v}",
         "image = {i}", "image = {i}", "image = {i}", "image, label = self.inner[index]",
         "image, label = self.inner[self.numbers[index]]", "label, path = self.pairs[index], path",
         "if self.nothing is None:\n    image = {i}", "if label is None:\n    label = {v}",
         "if isinstance(image, Image.Image):\n    image = {i}", "self.n = {v}", "label = {v}",
         "path = os.path.join(self.root, self.names[index])", "for f in [1]:\n    image = {i}",
         "for f in self.both:\n    image = f(image)", "try:\n    image = {i}\nfinally:\n    pass",
         "label = label or {v}", "assert label", "made = {'b': image, 'a': {v}}",
         "made['b'] = {v}", "made = dict(c={v}, b={i})", "made['d'] = {v}", "image = made['b']",
         "made[{v}] = {v}", "made = {label: {v}}", "made = {'b': {v}, 'b': image}",
         "views = [{i}, {i}]", "views.append({i})", "views += [{i}, {v}]", "a = {i}", "b = {i}",
         "views = [k(image) for k in self.both]", "views = list(map(lambda k: k(image), self.both))",
         "for k in self.both:\n    views.append(k(image))", "views.append(views)", "a = self.cut(a)",
         "views = [(k, {v}) for k in views]", "for k in views:\n    made['b'] = k", "views = [k for k in views]",
         "image = self.turn(image)", "views.extend((a, b))", "views = tuple(k(image) for k in (self.cut, self.turn))"]
RETURNS = ["image, label", "image", "(image,)", "image, {v}, {v}", "{v}, image", "image, label",
           "[image, label]", "(index, *self.inner[index])", "self.inner[index]", "{i}, {v}",
           "image, image", "label", "{'b': image, 'a': {v}}", "dict(a={v}, b={i})", "made", "made",
           "{'b': image, 'a': image}", "{'b': {'a': image}}", "(made, {v})", "{**made}",
           *("views", "views, label", "a, b, {v}", "{'a': a, 'b': b, 'c': {v}}", "[[b, a], {v}]", "{i}, {i}",
             "index, views", "[{i}, [{i}, {i}]], {v}", "{'a': views, 'c': [{v}]}", "(a, (b, {v}))") * 2]


METHODS = """
    def label_of(self, at):
        label = self.labels[at]
        return label

    def load(self, at):
        path = self.paths[at]
        return Image.open(path).convert("RGB")


def named(own, root, at):
    if isinstance(own, dict):
        return None
    return os.path.relpath(own.paths[at], root)
"""


@st.composite
def bodies(draw):
    def filled(line):
        return line.replace("{v}", draw(st.sampled_from(VALUES)), 1).replace(
            "{v}", draw(st.sampled_from(VALUES))).replace("{i}", draw(st.sampled_from(IMAGES)))

    lines = ["path = self.paths[index]", "label = self.labels[index]"]
    lines += draw(st.sampled_from([[], ["made = {}"], ["views = []"]]))
    lines += draw(st.sampled_from([[], ["image, _ = self.inner[index]"],
                                   ["image = Image.open(path).convert('RGB')"],
                                   ["image = Image.open(path)", "a, b = self.cut(image), self.turn(image)"]]))
    for _ in range(draw(st.integers(0, 4))):
        lines += filled(draw(st.sampled_from(LINES))).split("\n")
    return [*lines, "return " + filled(draw(st.sampled_from(RETURNS)))]


def test_random_methods_do_what_was_understood(small_images):
    understood = []

    @settings(max_examples=800, deadline=None, derandomize=True,
              suppress_health_check=list(HealthCheck))
    @given(bodies(), st.integers(-3, 11))
    def check(lines, index):
        understood.append(does_what_was_understood(small_images, lines, index))

    check()
    assert understood.count(1) > 10 and sum(one > 1 for one in understood) > 10


def does_what_was_understood(small_images, lines, index):
    """Compares what a method does with what was understood, which is how many images it makes."""
    name = "<random method>"
    text = "\n".join(["class Own:", "    def __getitem__(self, index):",
                      *("        " + line for line in lines), METHODS])
    linecache.cache[name] = (len(text), None, [line + "\n" for line in text.split("\n")], name)
    scope = {"Image": Image, "os": os, "re": re, "torch": torch, "pathlib": pathlib, "__name__": "random_methods"}
    exec(compile(text, name, "exec"), scope)
    own = scope["Own"]()
    own.inner = ImageFolder(str(small_images))
    own.samples = own.inner.samples[:9]
    own.paths = [path for path, _ in own.samples]
    own.root, own.names = os.path.split(own.paths[0])[0], np.array(list(map(os.path.basename, own.paths)))
    own.labels, own.numbers = [*range(4), None, *range(4)], np.arange(9)[::-1].copy()
    own.pairs, own.rows = [(i % 3, -i) for i in range(9)], torch.arange(18).reshape(9, 2)
    own.files, own.folder = list(map(pathlib.Path, own.paths)), pathlib.Path(own.root)
    own.lettered = {str(i): i for i in range(4)}
    if pandas is not None:
        own.frame = pandas.DataFrame({"name": own.names, "number": own.numbers, "mixed": own.labels})
    own.turn, own.cut, own.nothing = Logging(T.RandomHorizontalFlip(1.0)), Logging(T.CenterCrop(15)), None
    own.both, own.loader, own.n = [own.cut, own.turn], default_loader, 0
    try:
        read = read_own(own)
    except NotUnderstood:
        return 0
    before = dict(vars(own))
    outcomes = []
    for make in (lambda: own[index], lambda: by_source(read, index)):
        LOG.clear()
        try:
            outcomes.append((plain(make()), list(LOG)))
        except Exception as error:
            outcomes.append((type(error), str(error)))
    assert outcomes[0] == outcomes[1]
    assert vars(own).keys() == before.keys()
    assert all(value is before[key] for key, value in vars(own).items())
    return max(1, len(read.views))


class Logging:
    """A transform that notes in which order it is called."""

    def __init__(self, transform):
        self.transform = transform

    def __call__(self, image):
        LOG.append(id(self))
        return self.transform(image)


def by_source(read, index):
    """The sample as OwnDataset describes it."""
    load = read.load
    if read.inner is not None:
        node = _DatasetReader(True, True).read(read.inner, 0)
        read.set_inner(node)
        load = node.base_datasets[0].load
    path, rest = read.find(index)
    image = load(path)
    images = []
    for calls in read.views or [read.calls]:
        images.append(image)
        for call in calls:
            images[-1] = images[-1].convert(call.mode) if type(call) is Convert else call(images[-1])
    made = as_returned(read.arrangement, images if read.views else images[0], rest)
    apart = taken_apart(read.arrangement, made)
    rest = (rest,) if read.arrangement == PAIR else rest
    assert apart[1] == rest and plain(apart[0]) == plain(images if read.views else images[0])
    return made


def plain(sample):
    if isinstance(sample, (tuple, list)):
        return type(sample)(map(plain, sample))
    if isinstance(sample, dict):
        return type(sample), [(key, plain(value)) for key, value in sample.items()]
    if isinstance(sample, Image.Image):
        return sample.mode, sample.size, sample.tobytes()
    value = sample.tolist() if hasattr(sample, "tolist") else sample
    if type(value) is list:
        return type(sample), plain(value)
    return type(sample), "nan" if value != value else value


# ---- left to torch -------------------------------------------------------------------------------


class Counts(Files):
    def __getitem__(self, idx):
        self.n = idx
        return super().__getitem__(idx)


class Cached(Files):
    cache = {}

    def __getitem__(self, idx):
        if idx not in self.cache:
            self.cache[idx] = super().__getitem__(idx)
        return self.cache[idx]


class Odd(Files):
    def __getitem__(self, idx):
        image = Image.open(self.paths[idx]).convert("RGB")
        if self.labels[idx]:
            image = image.rotate(90)
        return self.transform(image), 0


class Grey(Files):
    def __getitem__(self, idx):
        return self.transform(Image.open(self.paths[idx]).convert("L")), 0


class OtherPath(Files):
    def __getitem__(self, idx):
        return self.transform(Image.open(self.paths[idx].format()).convert("RGB")), 0


class Keys(Files):
    def __init__(self, folder, transform):
        super().__init__(folder, transform)
        self.paths = dict(enumerate(self.paths))


class TwoFiles(Files):
    def __getitem__(self, idx):
        other = Image.open(self.paths[0]).convert("RGB")
        return self.transform(Image.open(self.paths[idx]).convert("RGB")), 0 if other else 1


class Tries(Files):
    def __getitem__(self, idx):
        try:
            return super().__getitem__(idx)
        except OSError:
            return super().__getitem__(0)


class GlobalTransform(Files):
    def __getitem__(self, idx):
        return to_tensor(Image.open(self.paths[idx]).convert("RGB")), 0


to_tensor = compose(*HEAD)


class Delegates(TransformedSubset):
    """hasattr(dataset, "__getitems__") is true, so torch calls the subset's."""

    def __getattr__(self, name):
        return getattr(vars(self)["subset"], name)


class Batches(Files):
    def __getitems__(self, indices):
        return [self[index] for index in indices[::-1]]


class Restored(Files):
    def __setstate__(self, state):
        vars(self).update(state, labels=[0] * 40)


class PathsProperty(Files):
    paths = property(lambda self: LOG.append(1) or self.kept, lambda self, value: setattr(self, "kept", value))


class OwnList(list):
    def __getitem__(self, index):
        LOG.append(index)
        return super().__getitem__(index)


class OwnLists(Files):
    def __init__(self, folder, transform):
        super().__init__(folder, transform)
        self.paths = OwnList(self.paths)


class Iterates(torch.utils.data.IterableDataset):
    def __init__(self, folder, transform):
        self.dataset = Files(folder, transform)

    def __iter__(self):
        return iter([self.dataset[0]])

    def __getitem__(self, index):
        return self.dataset[index]


class SubsetOfOwn(Subset):
    """Has torch's __getitems__, which torch calls in the place of __getitem__."""

    def __init__(self, folder, transform):
        super().__init__(ImageFolder(folder.root, transform), range(9))

    def __getitem__(self, index):
        return self.dataset[self.indices[index]]

    def __getitems__(self, indices):
        return [self[index] for index in indices]


def with_two_transforms(folder, transform):
    return TransformedSubset(ImageFolder(folder.root, T.Resize((9, 9))), transform)


def over_unknown(folder, transform):
    return TransformedSubset(Odd(folder, transform))


class CallsItself(Methods):
    def path_of(self, i):
        return self.path_of(i) if self.labels is not None else self.paths[i]


class CountsInMethod(Methods):
    def path_of(self, i):
        self.n = i
        return self.paths[i]


class LogsInMethod(Methods):
    def path_of(self, i):
        LOG.append(i)
        return self.paths[i]


class TwoFilesByMethods(Methods):
    def __getitem__(self, index):
        self.load(index)
        other = self.load(index)
        return self.transform(self.load(index)), other


class Text(str):
    def split(self, *args):
        LOG.append(args)
        return ["_1"]


class OwnTexts(ByName):
    def __init__(self, folder, transform=None):
        super().__init__(folder, transform)
        self.paths = [*self.paths[:-1], Text(self.paths[-1])]


class Key:
    def __hash__(self):
        return hash("a")

    def __eq__(self, other):
        LOG.append(other)
        return True


class OwnKeys(ByName):
    def __init__(self, folder, transform=None):
        super().__init__(folder, transform)
        self.numbers = {**self.numbers, Key(): 3}


class LogsLabels(ByName):
    def __getitem__(self, index):
        path = self.paths[index]
        LOG.append(path)
        return self.transform(Image.open(path).convert("RGB")), label_of(path)


class Draws(ByName):
    def label_of(self, path):
        return path.split("_")[random.randint(0, 1)]

    def __getitem__(self, index):
        path = self.paths[index]
        return self.transform(Image.open(path).convert("RGB")), self.label_of(path)


class ByText(Files):
    """Does what depends on a part of the name."""

    def __getitem__(self, index):
        path = self.paths[index]
        image = Image.open(path).convert("RGB")
        if path.endswith(".jpg"):
            image = self.transform(image)
        return image, 1


class Remembered(ByName):
    def __init__(self, folder, transform=None):
        super().__init__(folder, transform)
        self.label_of = functools.lru_cache(label_of)

    def __getitem__(self, index):
        path = self.paths[index]
        return self.transform(Image.open(path).convert("RGB")), self.label_of(path)


class ReplacedBy(ByName):
    def __getitem__(self, index):
        path = self.paths[index]
        name = re.sub("a", lambda match: LOG.append(match), path)
        return self.transform(Image.open(path).convert("RGB")), name


class RenamedPaths(Files):
    """Path.replace() renames a file."""

    def __init__(self, folder, transform=None):
        super().__init__(folder, transform)
        self.paths = list(map(pathlib.Path, self.paths))

    def __getitem__(self, index):
        path = self.paths[index]
        name = path.replace("a")
        return self.transform(Image.open(path).convert("RGB")), name


class Changed(Files):
    """list.pop() changes a list."""

    def __init__(self, folder, transform=None):
        super().__init__(folder, transform)
        self.rows = [[n, n] for n in range(len(self.paths))]

    def __getitem__(self, index):
        row = self.rows[index]
        number = row.pop()
        return self.transform(Image.open(self.paths[index]).convert("RGB")), number


class Formats(Files):
    """A format that may call methods of what it formats."""

    def __getitem__(self, index):
        path = self.paths[index]
        return self.transform(Image.open(path).convert("RGB")), "{0[0]}".format(path)  # noqa: UP030,UP032


class KeysByInt(Files):
    """The keys of a dict behind torch.is_tensor()."""

    def __init__(self, folder, transform=None):
        super().__init__(folder, transform)
        self.paths = dict(enumerate(self.paths))

    def __getitem__(self, index):
        if torch.is_tensor(index):
            index = index.tolist()
        return self.transform(Image.open(self.paths[index]).convert("RGB")), 1


class WrongFormat(Files):
    def __getitem__(self, index):
        path = self.paths[index]
        return self.transform(Image.open(path).convert("RGB")), "{".format(path)  # noqa: F521


class Represents(Files):
    def __getitem__(self, index):
        path = self.paths[index]
        return self.transform(Image.open(path).convert("RGB")), f"{path!r}"


class TellsAnotherClass(ImageFolder):
    @property
    def __class__(self):
        LOG.append("asked")
        return dict


def with_another_class(folder, transform):
    return WithNames(TellsAnotherClass(folder.root, transform))


def with_item_of_its_own(folder, transform):
    dataset = WithNames(ImageFolder(folder.root, transform))
    dataset.dataset.__getitem__ = lambda index: LOG.append(index)
    return dataset


def with_another_function(folder, transform):
    dataset = WithNames(ImageFolder(folder.root, transform))
    dataset.name_of = lambda dataset, index: LOG.append(index)
    return dataset


LEFT = [OwnTexts, OwnKeys, LogsLabels, Draws, ByText, Remembered, ReplacedBy, RenamedPaths, Changed,
        Formats, KeysByInt, WrongFormat, Represents, CallsItself, CountsInMethod, LogsInMethod, TwoFilesByMethods, with_another_class,
        with_item_of_its_own, with_another_function, Keys, Counts, Cached, Odd, Grey, OtherPath, TwoFiles, Tries,
        GlobalTransform, Delegates, Batches, Restored, PathsProperty, OwnLists, Iterates,
        SubsetOfOwn, with_two_transforms, over_unknown]


@pytest.mark.parametrize("make", LEFT)
def test_these_are_left_to_torch(small_images, make):
    dataset = make(ImageFolder(str(small_images)), compose(*HEAD))
    LOG.clear()
    text = feedmill.DataLoader(dataset).explain()
    assert text.startswith("torch's own path, because\n"), text
    assert LOG == [] or make is OwnLists


def test_replaced_functions(small_images, monkeypatch):
    dataset = Files(ImageFolder(str(small_images)), compose(*HEAD))
    loader = feedmill.DataLoader(dataset)
    assert loader.explain().startswith("native path")
    assert "Files" in loader.explain()
    with monkeypatch.context() as patch:
        patch.setattr(Image, "open", lambda path: Image.new("RGB", (9, 9)))
        assert "PIL.Image.open was replaced" in loader.explain()
    with monkeypatch.context() as patch:
        patch.setattr(Files, "__getitem__", lambda self, index: index)
        assert "is not supported natively (" in loader.explain()
    other = copy.copy(dataset)
    other.__getitems__ = None
    assert "methods of its own" in feedmill.DataLoader(other).explain()
    with monkeypatch.context() as patch:
        patch.setitem(globals(), "Image", type("Image", (), {"open": dataset.transform}))
        assert not loader.explain().startswith("native path")
    assert loader.explain().startswith("native path")


class Record:
    """A sample that notes each time that it is used."""

    def __init__(self, *values):
        self.values = values

    def __getitem__(self, at):
        LOG.append(at)
        return self.values[at]

    def __iter__(self):
        LOG.append("iter")
        return iter(self.values)

    def __fspath__(self):
        LOG.append("fspath")
        return self.values[0]


class Records(Files):
    def __init__(self, folder, transform):
        super().__init__(folder, transform)
        self.records = [Record(*sample) for sample in folder.samples]

    def __getitem__(self, idx):
        path, label = self.records[idx]
        return self.transform(Image.open(path).convert("RGB")), label


class RecordItems(Records):
    def __getitem__(self, idx):
        record = self.records[idx]
        return self.transform(Image.open(record[0]).convert("RGB")), record[1]


class RecordPaths(Records):
    def __getitem__(self, idx):
        return self.transform(Image.open(self.records[idx]).convert("RGB")), 1


class NestedRecords(Records):
    def __init__(self, folder, transform):
        super().__init__(folder, transform)
        self.records = [(one,) for one in self.records]

    def __getitem__(self, idx):
        record = self.records[idx][0]
        return self.transform(Image.open(record[0]).convert("RGB")), 1


class ObjectArray(Records):
    def __init__(self, folder, transform):
        super().__init__(folder, transform)
        records, self.records = self.records, np.empty(len(self.records), object)
        self.records[:] = records


class Dropped(Files):
    """Opens a second file, which may be missing, without a use for it."""

    def __getitem__(self, idx):
        mask = Image.open(self.paths[idx])  # noqa: F841
        return self.transform(Image.open(self.paths[idx]).convert("RGB")), 1


class OnlyTensors(Dataset):
    """Depends on what the inner dataset returns, which transforms although its attribute
    ``transform`` is None."""

    def __init__(self, folder, transform):
        self.inner = TransformedSubset(ImageFolder(folder.root, transform), None)
        self.extra = T.RandomHorizontalFlip(1)

    def __len__(self):
        return len(self.inner)

    def __getitem__(self, idx):
        x, y = self.inner[idx]
        if isinstance(x, torch.Tensor):
            x = self.extra(x)
        return x, y


class ManySteps(Files):
    def __getitem__(self, idx):
        path = self.paths[idx]
        path = os.path.join(path, path, path, path)
        path = os.path.join(path, path, path, path)
        path = os.path.join(path, path, path, path)
        path = os.path.join(path, path, path, path)
        return self.transform(Image.open(path).convert("RGB")), 1


def other_format(folder, transform):
    dataset = Files(folder, transform)
    dataset.paths = [path.replace(".jpg", ".bmp") for path in dataset.paths]
    return dataset


@pytest.mark.parametrize("make", [Records, RecordItems, RecordPaths, NestedRecords, ObjectArray,
                                  Dropped, OnlyTensors, ManySteps, other_format])
def test_these_are_left_to_torch_too(small_images, make):
    dataset = make(ImageFolder(str(small_images)), compose(*HEAD))
    LOG.clear()
    assert feedmill.DataLoader(dataset).explain().startswith("torch's own path, because\n")
    assert LOG == []


class ByDefaultLoader(Files):
    def __getitem__(self, idx):
        return self.transform(default_loader(self.paths[idx])), self.labels[idx]


def test_default_loader_calls_a_replaced_pil_loader(small_images, monkeypatch):
    dataset = ByDefaultLoader(ImageFolder(str(small_images)), compose(*HEAD))
    loader = feedmill.DataLoader(dataset)
    assert loader.explain().startswith("native path")
    monkeypatch.setattr(folder_module, "pil_loader", lambda path: Image.new("RGB", (9, 9)))
    assert loader.explain().startswith("torch's own path")


class Constants(Files):
    domain = 1

    def __getitem__(self, idx):
        return self.transform(Image.open(self.paths[idx]).convert("RGB")), self.domain


class Cut(Files):
    n, upper = -8, False

    def __getitem__(self, index):
        image = Image.open(self.paths[index]).convert("RGB")
        name = self.paths[index].upper() if self.upper else self.paths[index].lower()
        return self.transform(image), name[-1000:self.n], -1.5


def test_what_determines_the_samples(small_images):
    """Nothing else than the same objects in the same roles gives the same samples."""
    dataset = Cut(ImageFolder(str(small_images)), compose(*HEAD))
    before = read_own(dataset).determined_by
    assert all(map(operator.is_, before, read_own(dataset).determined_by))
    for name, value in [("upper", True), ("n", -7), ("paths", list(dataset.paths))]:
        dataset.__dict__[name], old = value, getattr(dataset, name)
        assert not all(map(operator.is_, before, read_own(dataset).determined_by)), name
        setattr(dataset, name, old)
    assert all(map(operator.is_, before, read_own(dataset).determined_by))


def test_elements_with_code_of_their_own():
    class Own:
        pass

    objects, record = np.array([Own()]), np.zeros(1, [("a", object)])[0]
    for container in ([objects], [(1, objects)], {1: objects}, [record], [[[Own()]]], [[[[[[1]]]]]], [(1, Own())], objects):
        assert not is_plain(container)
    for container in ([np.zeros(2)], [(1, np.ones(1), "a")], {1: np.int64(1)}, [[1, 2.0]], range(3)):
        assert is_plain(container)


def test_constants_that_change_between_epochs(small_images):
    dataset = Constants(ImageFolder(str(small_images)), compose(*HEAD))
    loader = native_loader(dataset, batch_size=8)
    for epoch, domain in enumerate((1, 2, 2, 1)):
        dataset.domain = domain
        assert {target for _, targets in loader for target in targets.tolist()} == {domain}
        assert loader.fetch(0, epoch)[1] == domain


class Patterns(Files):
    pattern, end = "(.)", 0

    def __getitem__(self, idx):
        name = os.path.basename(self.paths[idx])
        values = re.search(self.pattern, name).group(), name[: self.end], name[self.end]
        return self.transform(Image.open(self.paths[idx]).convert("RGB")), *values


def test_patterns_that_change_between_epochs(small_images):
    dataset = Patterns(ImageFolder(str(small_images)), compose(*HEAD))
    loader = native_loader(dataset, batch_size=8)
    for pattern, end in (("(.)", 1), ("..", 1), ("..", -1), ("(.)", 1)):
        dataset.pattern, dataset.end = pattern, end
        for mine, other in zip(loader, torch.utils.data.DataLoader(dataset, batch_size=8), strict=True):
            assert equal_batches(mine, other)
