"""Labels that a dataset computes of what it looks up: they are computed in the process that iterates,
with the values, types and errors of torch's workers."""

import linecache
from collections import namedtuple

import feedmill
import numpy as np
import pytest
import torch
from feedmill.planner.attributes import NotUnderstood
from feedmill.planner.own_datasets import read_own
from helpers import compose, equal_batches, outcomes_of
from PIL import Image
from torch.nn import functional
from torch.utils.data import Dataset
from torchvision import transforms as T
from torchvision.datasets import ImageFolder

CROPS = compose(T.RandomResizedCrop(12), T.RandomHorizontalFlip(), T.ToTensor())
CALLS = []


class Hostile:
    """Notes each use."""

    def __getattr__(self, name):
        CALLS.append(name)
        return lambda *_: 0

    def __sub__(self, other):
        CALLS.append("-")
        return 0

    def __eq__(self, other):
        CALLS.append("==")
        return True

    def __bool__(self):
        CALLS.append("bool")
        return True

    def __getitem__(self, at):
        CALLS.append("[]")
        return 0

    __hash__ = object.__hash__


class Keys(dict):
    def __getitem__(self, key):
        CALLS.append(key)
        return 0


class Inverse(list):
    """Holds what it does not hold."""

    def __contains__(self, one):
        CALLS.append("in")
        return one not in list(self)

    def __iter__(self):
        CALLS.append("iter")
        return super().__iter__()


Point = namedtuple("Point", "x y")


class Files(Dataset):
    def __init__(self, folder):
        self.samples = folder.samples
        self.paths = [path for path, _ in folder.samples]
        self.labels = [number % 5 for number, _ in enumerate(self.paths)]
        self.of_numpy = np.array(self.labels)
        self.of_torch = torch.tensor(self.labels)
        self.several = np.eye(5, dtype=np.float32)[self.labels]
        self.records = [
            {"path": path, "label": n, "box": [n, 2 * n, 3, 4], "more": {"id": str(n)}}
            for path, n in zip(self.paths, self.labels)
        ]
        self.numbers = {name: number for number, name in enumerate(folder.classes)}
        self.transform = CROPS
        self.folder = ImageFolder(folder.root)
        self.objects = [Hostile() for _ in self.paths]
        self.others = [Keys(one) for one in self.records]
        self.keys = [{Hostile(): 3} for _ in self.paths]
        self.odd = {1, 3}
        self.thing = Hostile()
        self.inverse = Inverse([1, 2])
        self.point = Point(1, 2)
        self.chosen = [1, 3]
        self.things = [Hostile()]
        self.pairs = [(n, n) for n in self.labels]
        self.of_gradients = torch.rand(len(self.paths), requires_grad=True)

    def __len__(self):
        return len(self.paths)


def made_of(folder, label, before=""):
    """A dataset with this label, and these lines before it."""
    lines = f"{before}image = Image.open(self.paths[i]).convert('RGB')\nreturn self.transform(image), {label}"
    text = "def __getitem__(self, i):\n" + "".join(f"    {one}\n" for one in lines.split("\n"))
    name = f"<computed {abs(hash(text))}>"
    linecache.cache[name] = len(text), None, text.splitlines(True), name
    scope = {"__name__": __name__, "Image": Image, "np": np, "torch": torch, "F": functional}
    exec(compile(text, name, "exec"), scope)
    kind = type("Made", (Files,), {"__module__": __name__, "__getitem__": scope["__getitem__"]})
    return kind(folder)


@pytest.fixture
def folder(small_images):
    return ImageFolder(str(small_images))


FORMS = (
    "self.labels[i] - 1", "int(self.labels[i]) * 2 + 1", "self.labels[i] / 2", "7 // (1 + self.labels[i])",
    "self.labels[i] % 2", "self.labels[i] + self.of_numpy[i]", "self.of_torch[i] - 1",
    "1 if '/b' in self.paths[i] else 0", "0 if self.labels[i] == 3 else self.labels[i]",
    "'even' if self.labels[i] % 2 == 0 else 'odd'", "self.labels[i] >= 2", "bool(self.labels[i])",
    "np.array(self.labels[i])", "np.array(self.labels[i], dtype=np.float32)", "np.int64(self.labels[i])",
    "np.array([self.labels[i], 3])", "torch.tensor([self.labels[i], self.of_numpy[i]])",
    "torch.tensor((self.labels[i], 0.5), dtype=torch.float64)", "torch.as_tensor(self.labels[i])",
    "torch.from_numpy(self.several[i])", "self.several[i].astype(np.float64)", "self.of_numpy[i].item()",
    "self.of_torch[i].float()", "torch.LongTensor([self.labels[i]])", "self.several[i].astype('float64')",
    "F.one_hot(torch.tensor(self.labels[i]), 5)", "F.one_hot(self.of_torch[i], 6).float()",
    "self.records[i]['label']", "self.records[i]['more']['id']", "torch.tensor(self.records[i]['box'])",
    "self.records[i]['box'][2] - self.records[i]['box'][0]", "round(self.labels[i] / 3, 2)",
    "abs(self.labels[i] - 3)", "self.numbers[self.paths[i].split('/')[-2]] + 1",
    "(self.labels[i] if self.labels[i] < 3 else 3) - 1", "self.labels[i] is not None",
    "1 if self.labels[i] in self.chosen else 0", "self.labels[i] in (1, 3)", "self.pairs[i] == (1, 1)",
    "self.pairs[i] + (1,)", "(1, 2) if self.labels[i] > 2 else (3, 4)",
)
STATEMENTS = (
    "n = self.labels[i]\nif n > 3:\n    n = 3\n",
    "n = self.labels[i]\nif n == 0:\n    n = 9\nelse:\n    n = n - 1\n",
    "if '/a' in self.paths[i]:\n    n = 0\nelse:\n    n = 1\n",
    "record = self.records[i]\nn = record['label']\nif record['path'] == self.paths[3]:\n    n = 7\n",
)


def compare(dataset, n_workers=0, is_native=True):
    found, wanted = (
        outcomes_of(make, dataset, n_workers)
        for make in (feedmill.DataLoader, torch.utils.data.DataLoader)
    )
    assert equal_batches(found, wanted)
    loader = feedmill.DataLoader(dataset, batch_size=3, num_workers=n_workers)
    assert not is_native or loader.explain().startswith("native path"), loader.explain()
    return wanted


@pytest.mark.parametrize("form", FORMS)
def test_labels_are_those_of_torch(folder, form):
    compare(made_of(folder, form))


@pytest.mark.parametrize("before", STATEMENTS)
def test_labels_that_depend_on_conditions(folder, before):
    compare(made_of(folder, "n", before))


def test_with_workers(folder):
    compare(made_of(folder, "self.labels[i] - 1"), 2)
    compare(made_of(folder, "n", STATEMENTS[0]), 2)


def test_paths_in_records(folder):
    dataset = made_of(folder, "record['label']", "record = self.records[i]\n")
    text = "def __getitem__(self, i):\n    record = self.records[i]\n" \
        "    return self.transform(Image.open(record['path']).convert('RGB')), record['label']\n"
    linecache.cache["<records>"] = len(text), None, text.splitlines(True), "<records>"
    scope = {"__name__": __name__, "Image": Image}
    exec(compile(text, "<records>", "exec"), scope)
    type(dataset).__getitem__ = scope["__getitem__"]
    compare(dataset)
    dataset.records[4].pop("label")
    dataset.records[8] = None
    assert sum(type(one) is tuple for one in compare(dataset)[0]) == 2


@pytest.mark.parametrize("form", [
    "7 // self.labels[i]", "self.labels[i] - self.paths[i]", "np.int64(self.paths[i])",
    "self.records[i]['none']", "self.labels[i].astype(np.float32)", "torch.from_numpy(self.labels[i])",
    "1 if self.several[i] == 1 else 0",
])
def test_errors_are_the_datasets_own(folder, form):
    """Those of some samples, or of all, with which torch's path is taken."""
    for n_workers in (0, 2):
        wanted = compare(made_of(folder, form), n_workers, is_native=form.startswith("7 //"))
        assert any(type(one) is tuple for one in wanted[0])


def test_changes_are_seen_at_the_next_epoch(folder):
    dataset = made_of(folder, "self.labels[i] - 1")
    loader = feedmill.DataLoader(dataset, batch_size=4)
    assert next(iter(loader))[1].tolist() == [-1, 0, 1, 2]
    dataset.labels = [7] * len(dataset)
    assert next(iter(loader))[1].tolist() == [6] * 4
    dataset = made_of(folder, "self.labels[i] in self.chosen")
    loader = feedmill.DataLoader(dataset, batch_size=4)
    assert next(iter(loader))[1].tolist() == [False, True, False, True]
    dataset.chosen.append(2)
    assert next(iter(loader))[1].tolist() == [False, True, True, True]


@pytest.mark.parametrize("label", [
    "self.objects[i] - 1", "self.objects[i] == 3", "1 if self.objects[i] else 0", "self.others[i]['label']",
    "self.keys[i]['label']", "1 if self.thing == self.labels[i] else 0", "self.labels[i] - self.thing",
    "self.folder[i][1] - 1", "1 if self.folder[i][1] else 0", "i - 1", "1 if i else 0", "i == 3",
    "self.labels[i] is 1", "1 if self.labels[i] in self.odd else 0", "np.array(self.objects[i])",
    "self.objects[i].item()", "self.labels[i].sort()", "np.array(self.labels[i], copy=False)",
    "self.labels[i] if self.labels[i] else self.objects", "torch.LongTensor(self.labels[i])",
    "self.labels[i] in self.inverse", "self.labels[i] == self.inverse", "self.labels[i] in self.things",
    "self.point if self.labels[i] else 0", "self.labels[i] == self.point",
    "self.labels[i] in (0, self.things)", "self.of_gradients[i]", "self.of_gradients[i] - 1",
    "image if self.labels[i] else 0", "self.labels[i] @ self.several[i]",
])
@pytest.mark.filterwarnings("ignore::SyntaxWarning")
def test_these_are_left_to_torch(folder, label):
    dataset = made_of(folder, label)
    if "LongTensor" in label:  # of a number it makes so many numbers, without values
        with pytest.raises(TypeError, match="a list or an array"):
            read_own(dataset).find(1)
        return
    CALLS.clear()
    with pytest.raises(NotUnderstood):
        read_own(dataset)
    assert not CALLS


@pytest.mark.parametrize("before", [
    "n = self.labels[i]\nif n > 3:\n    n = self.objects\n",
    "n = self.labels[i]\nif n > 3:\n    m = 3\n",
    "n = self.labels[i]\nif n > 3:\n    n = 3\n    self.thing.note(n)\n",
    "n = self.labels[i]\nif n > 3:\n    self.thing.last = n\n",
    "n = self.labels[i]\nif n > 3:\n    n = 3\nelse:\n    m = 3\n",
    "n = self.labels[i]\nif n > 3:\n    n = self.thing.note(n)\n",
    "n = self.labels[i]\nwhile n > 3:\n    n = 3\n",
    "n = self.labels[i]\nn -= 1\n",
])
def test_these_statements_are_left_to_torch(folder, before):
    CALLS.clear()
    with pytest.raises(NotUnderstood):
        read_own(made_of(folder, "n", before))
    assert not CALLS
