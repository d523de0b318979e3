"""Datasets that look up paths and labels in tables of pandas."""

import os

import feedmill
import numpy as np
import pytest
import torch
from helpers import compose, equal_batches, native_loader
from PIL import Image
from torch.utils.data import Dataset
from torchvision import transforms as T
from torchvision.datasets import ImageFolder

pandas = pytest.importorskip("pandas")

HEAD = compose(T.Resize((8, 8)), T.PILToTensor())


class Table(Dataset):
    """As PyTorch's tutorial writes it, but for what opens the file."""

    def __init__(self, root, frame, transform=HEAD, target_transform=None):
        self.root = str(root)
        self.frame = frame
        self.files, self.labels = frame["file"], frame["label"]
        self.transform = transform
        self.target_transform = target_transform

    def __len__(self):
        return len(self.frame)

    def __getitem__(self, idx):
        path = os.path.join(self.root, self.frame.iloc[idx, 0])
        image = Image.open(path).convert("RGB")
        label = self.frame.iloc[idx, 1]
        if self.transform:
            image = self.transform(image)
        if self.target_transform:
            label = self.target_transform(label)
        return image, label


class OfTensors(Table):
    """Takes an index that is a tensor, as torch's other tutorial does."""

    def __getitem__(self, idx):
        if torch.is_tensor(idx):
            idx = idx.tolist()
        image = Image.open(os.path.join(self.root, self.frame.iloc[idx, 0])).convert("RGB")
        return {"image": self.transform(image), "label": self.frame.iloc[idx, 1]}


class Rows(Table):
    def __getitem__(self, idx):
        row = self.frame.iloc[idx]
        image = Image.open(os.path.join(self.root, row["file"])).convert("RGB")
        return self.transform(image), row.label, row["weight"]


class Columns(Table):
    def __getitem__(self, i):
        name = self.frame.file[i]
        image = Image.open(f"{self.root}/{name}").convert("RGB")
        number = torch.tensor(self.labels.iloc[i], dtype=torch.long)
        return self.transform(image), number, self.frame["weight"].values[i]


class ByLabel(Table):
    def __getitem__(self, i):
        image = Image.open(self.root + "/" + self.frame.loc[i, "file"]).convert("RGB")
        return self.transform(image), int(self.frame.at[i, "label"]), self.files.loc[i]


@pytest.fixture
def frame(small_images):
    paths = [os.path.relpath(path, small_images) for path, _ in ImageFolder(str(small_images)).samples]
    return pandas.DataFrame({"file": paths, "label": np.arange(len(paths)), "weight": 0.5})


def compare(dataset, **options):
    ours, theirs = native_loader(dataset, **options), torch.utils.data.DataLoader(dataset, **options)
    for mine, other in zip(ours, theirs, strict=True):
        assert equal_batches(mine, other)
    assert ours.stats().path == "native" and ours.stats().samples
    for _ in feedmill.DataLoader(dataset, **{**options, "native": "verify"}):
        pass


KINDS = [Table, OfTensors, Rows, Columns, ByLabel]


@pytest.mark.parametrize("kind", KINDS)
def test_these_are_native(small_images, frame, kind):
    dataset = kind(small_images, frame)
    compare(dataset, batch_size=8)
    compare(dataset, batch_size=None)
    if kind is not Columns:
        compare(dataset, batch_size=3, sampler=[5, 1, 0, 5])
    if kind is OfTensors:
        compare(dataset, batch_size=3, sampler=[1, torch.tensor(1), np.int64(0)])


@pytest.mark.parametrize("kind", KINDS)
def test_other_indices_of_tables(small_images, frame, kind):
    shuffled = frame.sample(frac=1, random_state=3)
    compare(kind(small_images, shuffled[:20].reset_index(drop=True)), batch_size=8)
    compare(kind(small_images, frame.astype({"file": object, "label": np.uint8})), batch_size=8)
    if kind in (Table, OfTensors, Rows):
        compare(kind(small_images, shuffled), batch_size=8)
        compare(kind(small_images, frame.set_index("file", drop=False)), batch_size=8)


def test_indices_that_are_labels(small_images, frame):
    """They may be strings, or numbers that are no positions."""
    named = frame.set_index(pandas.Index([f"row{i}" for i in range(40)]))
    later = frame.set_index(pandas.Index(range(100, 140)))
    for other, sampler in ((named, ["row3", "row1"]), (later, [103, 101])):
        dataset = ByLabel(small_images, other)
        loader = feedmill.DataLoader(dataset, batch_size=2, sampler=sampler)
        assert "labels of a table" in loader.explain()
        assert all(map(equal_batches, loader, torch.utils.data.DataLoader(dataset, 2, sampler=sampler)))
        at = Columns(small_images, other)
        assert "labels of a table" in feedmill.DataLoader(at, sampler=sampler).explain()
        assert len(list(native_loader(Rows(small_images, other), batch_size=2))) == 20
    compare(ByLabel(small_images, frame.sample(frac=1, random_state=1)), batch_size=8)


def test_errors_are_the_datasets_own(small_images, frame):
    short = Table(small_images, frame[:5])
    short.__class__ = type("Longer", (Table,), {"__len__": lambda self: 8})
    texts = []
    for kind in (torch.utils.data.DataLoader, native_loader):
        with pytest.raises(IndexError) as caught:
            list(kind(short, batch_size=8))
        texts.append(str(caught.value))
    assert texts[0] == texts[1]


def test_another_table_is_seen_at_the_next_epoch(small_images, frame):
    dataset = Table(small_images, frame)
    loader = native_loader(dataset, batch_size=8)
    assert torch.cat([labels for _, labels in loader]).tolist() == list(range(40))
    frame["label"] = frame["label"] * 2
    assert torch.cat([labels for _, labels in loader]).tolist() == list(range(0, 80, 2))
    dataset.frame = frame[:9].assign(label=7)
    loader = native_loader(dataset, batch_size=8)
    assert torch.cat([labels for _, labels in loader]).tolist() == [7] * 9


# ---- left to torch -------------------------------------------------------------------------------


class Own(pandas.DataFrame):
    """May do anything."""

    @property
    def _constructor(self):
        return Own


class Element:
    pass


class Landmarks(Table):
    def __getitem__(self, idx):
        image = Image.open(os.path.join(self.root, self.frame.iloc[idx, 0])).convert("RGB")
        return self.transform(image), np.array(self.frame.iloc[idx, 1:])


class Writes(Table):
    def __getitem__(self, idx):
        image = Image.open(os.path.join(self.root, self.frame.iloc[idx, 0])).convert("RGB")
        self.frame.loc[idx, "label"] = 3
        return self.transform(image), self.frame.iloc[idx, 1]


class Method(Rows):
    """``row.name`` is the row's name in the index, whatever the column."""

    def __getitem__(self, idx):
        row = self.frame.rename(columns={"label": "name"}).iloc[idx]
        return self.transform(Image.open(os.path.join(self.root, row.file)).convert("RGB")), row.name


def twice(frame):
    return pandas.concat([frame, frame[["file"]]], axis=1)


LEFT = {
    "a subclass": lambda root, frame: Rows(root, Own(frame)),
    "own objects": lambda root, frame: Rows(root, frame.assign(label=[Element() for _ in range(40)])),
    "dates": lambda root, frame: Rows(root, frame.assign(weight=pandas.Timestamp("2020-01-01"))),
    "an index of two levels": lambda root, frame: Table(root, frame.set_index(["file", "label"], drop=False)),
    "an index of objects": lambda root, frame: Table(root, frame.set_index(pandas.Index([Element() for _ in range(40)]))),
    "landmarks": Landmarks,
    "assignment": Writes,
    "a method": Method,
}


@pytest.mark.parametrize("name", LEFT)
def test_these_are_left_to_torch(small_images, frame, name):
    dataset = LEFT[name](small_images, frame)
    assert feedmill.DataLoader(dataset, batch_size=4).explain().startswith("torch's own path")


def test_columns_of_one_name(small_images, frame):
    class Named(Table):
        def __getitem__(self, idx):
            image = Image.open(self.root + "/" + self.frame.loc[idx, "file"]).convert("RGB")
            return self.transform(image), 1

    both = Table(small_images, frame)
    both.frame = twice(frame)
    both.__class__ = Named
    assert not feedmill.DataLoader(both).explain().startswith("native path")


def test_replaced_indexers(small_images, frame, monkeypatch):
    of_frames = pandas.DataFrame.iloc
    monkeypatch.setattr(pandas.DataFrame, "iloc", property(lambda self: of_frames.fget(self)))
    text = feedmill.DataLoader(Table(small_images, frame)).explain()
    assert text.startswith("torch's own path") and "pandas.DataFrame.iloc was replaced" in text


def test_a_replaced_lookup(small_images, frame, monkeypatch):
    get = pandas.Series.__getitem__
    monkeypatch.setattr(pandas.Series, "__getitem__", lambda self, key: get(self, key))
    text = feedmill.DataLoader(Columns(small_images, frame)).explain()
    assert text.startswith("torch's own path") and "pandas.Series.__getitem__ was replaced" in text
