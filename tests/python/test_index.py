"""Indexes of local folders: the dataset is as torchvision's ImageFolder, and the command's tables."""

import os
import pickle
import shutil

import conftest  # noqa: F401  makes torchvision importable in spawned workers
import feedmill
import helpers
import numpy as np
import pytest
import torch
from feedmill.cli import cli
from helpers import compose
from torch.utils.data import DataLoader as TorchDataLoader
from torch.utils.data import Subset, WeightedRandomSampler
from torchvision import transforms as T
from torchvision.datasets import ImageFolder

FIXED = compose(T.Resize((8, 9)), T.ToTensor())
RANDOM = compose(T.RandomResizedCrop(16), T.RandomHorizontalFlip(), T.ColorJitter(0.3), T.ToTensor())


def negative(label):
    return -label


def augmented(image):
    """RANDOM, pickled by a name in this module, which makes torchvision importable."""
    return RANDOM(image)


@pytest.fixture(scope="module")
def tree(tmp_path_factory):
    """A folder in which ImageFolder finds 21 images of 3 classes, and other files."""
    root = tmp_path_factory.mktemp("tree") / "data"
    names = [f"c{i % 2}/{i:02}.jpg" for i in range(12)]
    names += ["c1/deep/er/a.JPG", "c1/deep/b.jpg", "c1/deep.jpg", "c1/deep-x/c.jpg", "B/z.jpg"]
    names += ["B/ä b+%41.jpg", "B/Z.jpg", "B/é/1.jpg", "B/e/2.jpg"]
    for i, name in enumerate(names):
        helpers.save_jpeg(root / name, 20 + i, 40 - i, seed=i)
    (root / "c1" / "notes.txt").write_text("no image")
    helpers.save_jpeg(root / "in-no-class.jpg", 20, 20)
    os.symlink(root / "c0" / "00.jpg", root / "B" / "link.jpg")
    return root


@pytest.fixture(scope="module")
def path(tree, tmp_path_factory):
    """The tree's index."""
    path = tmp_path_factory.mktemp("index") / "a.index"
    assert cli.main(["index", str(tree), "-o", str(path)]) == 0
    return path


def batches_of(loader, seed=0):
    torch.manual_seed(seed)
    return [(images.clone(), labels.clone()) for images, labels in loader]


def equal(one, other):
    return len(one) == len(other) and all(
        torch.equal(a, b) and torch.equal(c, d) for (a, c), (b, d) in zip(one, other))


# ---- parity with ImageFolder ---------------------------------------------------------------------


def test_attributes_are_imagefolders(tree, path):
    folder, index = ImageFolder(str(tree)), feedmill.Index(path)
    assert len(index) == len(folder) == 22
    assert index.classes == folder.classes and index.class_to_idx == folder.class_to_idx
    assert list(index.samples) == folder.samples and list(index.imgs) == folder.imgs
    assert list(index.targets) == folder.targets and index.targets == folder.targets
    assert index.samples[3] == folder.samples[3] and index.samples[-2:] == folder.samples[-2:]
    assert index.root == str(tree) == str(folder.root)
    assert index.transform is None and index.target_transform is None
    assert np.array_equal(np.bincount(index.targets), np.bincount(folder.targets))
    assert index.sizes.tolist() == [os.path.getsize(one) for one, _ in folder.samples]
    assert not any(index.etags) and not index.is_remote
    assert "22 images of 3 classes" in repr(index) and str(path) in repr(index)


def test_samples_are_imagefolders(tree, path):
    folder, index = ImageFolder(str(tree)), feedmill.Index(path)
    for i in (0, 5, -1, np.int64(7)):
        (got, label), (want, want_label) = index[i], folder[i]
        assert label == want_label and type(label) is int
        assert got.mode == want.mode and got.tobytes() == want.tobytes()
    for i in (22, -23):
        with pytest.raises(IndexError, match=f"index {i} is out of range for 22 samples"):
            index[i]
    index = feedmill.Index(path, FIXED, negative)
    folder = ImageFolder(str(tree), FIXED, negative)
    assert torch.equal(index[21][0], folder[21][0]) and index[21][1] == folder[21][1] < 0


@pytest.mark.parametrize("options", [
    {"native": "require"}, {"native": "require", "num_workers": 2}, {"native": "off"},
    {"native": "off", "num_workers": 2}, {"native": "hybrid"}, {"native": "verify"},
    {"native": "require", "cache": "ram:8MiB"},
])
def test_batches_are_torchs(tree, path, options):
    """With torch's random numbers, shuffled, augmented, in two epochs."""
    n_workers = options.get("num_workers", 0)
    if options["native"] == "hybrid":  # its draws are not torch's
        transform = FIXED
    else:
        transform = RANDOM
    theirs = TorchDataLoader(ImageFolder(str(tree), transform, negative), batch_size=5, shuffle=True,
                             num_workers=n_workers)
    ours = feedmill.DataLoader(feedmill.Index(path, transform, negative), batch_size=5, shuffle=True,
                               **options)
    if options["native"] == "require":
        assert ours.explain().startswith("native path") and "network" not in ours.explain()
    for seed in range(2):
        assert equal(batches_of(ours, seed), batches_of(theirs, seed))


def test_samplers_and_subsets(tree, path):
    folder, index = ImageFolder(str(tree), FIXED), feedmill.Index(path, FIXED)
    for wrap in (lambda one: Subset(one, [3, 1, 20]), lambda one: one + one):
        got = feedmill.DataLoader(wrap(index), batch_size=4, native="require")
        assert equal(batches_of(got), batches_of(TorchDataLoader(wrap(folder), batch_size=4)))
    weights = 1 / np.bincount(index.targets)[np.asarray(index.targets)]
    sampler = WeightedRandomSampler(weights, 30)
    got = feedmill.DataLoader(index, batch_size=4, sampler=sampler, native="require")
    assert equal(batches_of(got), batches_of(TorchDataLoader(folder, 4, sampler=sampler)))


@pytest.mark.slow
@pytest.mark.parametrize("loader", [TorchDataLoader, feedmill.DataLoader])
def test_spawned_workers(tree, path, loader):
    index = feedmill.Index(path, augmented, negative)
    options = {"native": "off"} if loader is feedmill.DataLoader else {}
    got = loader(index, batch_size=5, num_workers=2, multiprocessing_context="spawn", **options)
    want = TorchDataLoader(ImageFolder(str(tree), augmented, negative), batch_size=5, num_workers=2)
    assert equal(batches_of(got), batches_of(want))


def test_copies_are_small_and_equal(path):
    index = feedmill.Index(path, FIXED, negative)
    index.note = "of a user"
    copy = pickle.loads(pickle.dumps(index))
    assert copy.note == "of a user" and list(copy.samples) == list(index.samples)
    assert torch.equal(copy[4][0], index[4][0]) and copy[4][1] == index[4][1]


def test_resuming(path):
    def make():
        torch.manual_seed(3)
        return feedmill.DataLoader(feedmill.Index(path, RANDOM), batch_size=4, shuffle=True,
                                   native="require", num_workers=2)

    whole = [images.clone() for images, _ in make()]
    loader = make()
    batches = iter(loader)
    next(batches)
    state = loader.state_dict()
    other = make()
    other.load_state_dict(state)
    assert torch.equal(next(iter(other))[0], whole[1])


def test_missing_files(tree, tmp_path):
    root = tmp_path / "copy"
    shutil.copytree(tree, root)
    assert cli.main(["index", str(root), "-o", str(tmp_path / "a.index")]) == 0
    index = feedmill.Index(tmp_path / "a.index", FIXED)
    os.remove(index.samples[9][0])
    for options in ({"native": "require"}, {"native": "off"}):
        with pytest.raises(FileNotFoundError) as caught:
            list(feedmill.DataLoader(index, batch_size=4, **options))
        assert index.samples[9][0] in str(caught.value)
    loader = feedmill.DataLoader(index, batch_size=4, on_error="skip", native="require")
    assert sum(len(labels) for _, labels in loader) == len(index) - 1


# ---- the command ---------------------------------------------------------------------------------


def run(capsys, *arguments):
    """(exit status, stdout, stderr) of `feedmill index`."""
    status = cli.main(["index", *map(str, arguments)])
    return status, *capsys.readouterr()


def test_what_it_says(tree, tmp_path, capsys):
    status, said, errors = run(capsys, tree, "-o", tmp_path / "a.index")
    assert status == 0 and not errors
    assert f"a.index: 22 images of 3 classes in {tree}/, " in said and " kB; the index has" in said
    assert "1 objects in class folders without an image's extension" in said
    assert "left out: 1 images that are in no class folder" in said


def test_relative_names(tree, tmp_path, monkeypatch):
    monkeypatch.chdir(tree.parent)
    assert cli.main(["index", "data/", "-o", "../a.index"]) == 0
    index = feedmill.Index("../a.index")
    monkeypatch.chdir(tmp_path)
    assert os.path.isabs(index.path) and index[0][0].size and pickle.loads(pickle.dumps(index))
    os.remove(index.path)


def test_empty_classes(tmp_path, capsys):
    helpers.save_jpeg(tmp_path / "in" / "full" / "a.jpg", 20, 20)
    (tmp_path / "in" / "empty").mkdir()
    out = tmp_path / "a.index"
    status, _, errors = run(capsys, tmp_path / "in", "-o", out)
    assert status == 1 and "class folders 'empty'" in errors and not out.exists()
    assert run(capsys, tmp_path / "in", "-o", out, "--allow-empty")[0] == 0
    folder = ImageFolder(str(tmp_path / "in"), allow_empty=True)
    index = feedmill.Index(out)
    assert index.classes == folder.classes and list(index.samples) == folder.samples


def test_refused_folders(tmp_path, capsys):
    out = ["-o", tmp_path / "a.index"]
    (tmp_path / "in").mkdir()
    assert "there is nothing" in run(capsys, tmp_path / "in", *out)[2]
    helpers.save_jpeg(tmp_path / "in" / "a.jpg", 20, 20)
    assert "1 images, but no class folders" in run(capsys, tmp_path / "in", *out)[2]
    status, _, errors = run(capsys, tmp_path / "in", "-o", tmp_path / "no" / "a.index")
    assert status == 1 and f"{tmp_path / 'no'}: No such file" in errors
    (tmp_path / "in" / "cat").mkdir()
    (tmp_path / "in" / "cat" / "a.txt").write_text("")
    assert "1 folders, but no images in them" in run(capsys, tmp_path / "in", *out)[2]
    for source, why in ((tmp_path / "gone", "No such file"), (tmp_path / "in" / "a.jpg", "Not a dir"),
                        ("feedmilltest://x/y", "feedmilltest:// is not supported")):
        status, _, errors = run(capsys, source, *out)
        assert status == 1 and str(source) in errors and why in errors
    assert sorted(os.listdir(tmp_path)) == ["in"]


def test_refused_options(tree, tmp_path, capsys):
    out = ["-o", tmp_path / "a.index"]
    for arguments, why in (
        ((tree, *out, "--no-list"), "--no-list needs a table"),
        ((tree, *out, "--csv", "x", "--allow-empty"), "for class folders"),
        ((tree, *out, "--csv", "x", "--parquet", "y"), "not allowed with"),
        ((tree, *out, "--columns", "a"), "pair of columns"),
        (("https://user:secret@host/a", *out), "web servers have no listing"),
    ):
        with pytest.raises(SystemExit) as caught:
            run(capsys, *arguments)
        errors = capsys.readouterr().err
        assert caught.value.code == 2 and why in errors and "secret" not in errors


# ---- tables --------------------------------------------------------------------------------------


def table(tmp_path, text, name="labels.csv"):
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    return path


def test_tables_of_class_names(tree, tmp_path, capsys):
    labels = table(tmp_path, "\ufefflabel,size,key\r\nzebra,1,c1/01.jpg\r\ncat,2,B/ä b+%41.jpg\r\n"
                             f"\r\nzebra,3,{tree}/c1/03.jpg\r\n\"a, b\",4,in-no-class.jpg\r\n")
    status, said, _ = run(capsys, tree, "-o", tmp_path / "a.index", "--csv", labels)
    assert status == 0 and "4 images of 3 classes" in said
    assert "left out: 19 images that the table does not name" in said
    index = feedmill.Index(tmp_path / "a.index", FIXED)
    assert index.classes == ["a, b", "cat", "zebra"]
    names = ["c1/01.jpg", "B/ä b+%41.jpg", "c1/03.jpg", "in-no-class.jpg"]
    assert list(index.samples) == list(zip([f"{tree}/{one}" for one in names], [2, 1, 2, 0]))
    assert index.sizes.tolist() == [os.path.getsize(tree / one) for one in names]
    assert len(batches_of(feedmill.DataLoader(index, native="require"))) == 4


def test_tables_of_numbers(tree, tmp_path, capsys):
    labels = table(tmp_path, "path,y\nc1/01.jpg,3\nc0/00.jpg,0\n")
    out = tmp_path / "a.index"
    assert run(capsys, tree, "-o", out, "--csv", labels, "--columns", "path,y")[0] == 0
    index = feedmill.Index(out)
    assert index.classes == ["0", "1", "2", "3"] and list(index.targets) == [3, 0]
    assert run(capsys, tree, "-o", out, "--csv", labels, "--columns", "path,y", "--no-list")[0] == 0
    believed = feedmill.Index(out)
    assert list(believed.samples) == list(index.samples) and believed.sizes.tolist() == [-1, -1]


@pytest.mark.parametrize("text, why", [
    ("", "no column 'key'"), ("a,label\n", "no column 'key'; the columns are 'a', 'label'"),
    ("key,label\n", "the table has no rows"), ("key,label\nx\n", "line 2 has 1 values"),
    ("key,label\nc1/01.jpg,\n", "row 1 has no label"),
    ("key,label\nc1/01.jpg,99999999\n", "the label 99999999 is above"),
    ("key,label\nc1/01.jpg,1\nc9/gone.jpg,0\n", "1 of 2 keys are not in"),
])
def test_refused_tables(tree, tmp_path, capsys, text, why):
    labels = table(tmp_path, text)
    status, _, errors = run(capsys, tree, "-o", tmp_path / "a.index", "--csv", labels)
    assert status == 1 and why in errors and str(labels) in errors
    assert not (tmp_path / "a.index").exists()


def test_parquet(tree, tmp_path, capsys):
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    path, out = tmp_path / "labels.parquet", tmp_path / "a.index"
    keys = ["c1/01.jpg", "c0/00.jpg"]
    for labels, classes, numbers in (([1, 0], ["0", "1"], [1, 0]),
                                     (["b", "c"], ["b", "c"], [0, 1])):
        parquet.write_table(pyarrow.table({"key": keys, "more": [1.5, 2], "label": labels}), path)
        assert run(capsys, tree, "-o", out, "--parquet", path)[0] == 0
        index = feedmill.Index(out)
        assert index.classes == classes and list(index.targets) == numbers
        assert [one for one, _ in index.samples] == [f"{tree}/{key}" for key in keys]
    for columns, why in ({"key": keys, "label": ["a", None]}, "row 2 has no 'label'"), (
            {"key": keys}, "no column 'label'"):
        parquet.write_table(pyarrow.table(columns), path)
        status, _, errors = run(capsys, tree, "-o", out, "--parquet", path)
        assert status == 1 and why in errors
    path.write_text("key,label\n")
    status, _, errors = run(capsys, tree, "-o", out, "--parquet", path)
    assert status == 1 and str(path) in errors


def test_parquet_without_pyarrow(tree, tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "pyarrow.parquet", None)
    status, _, errors = run(capsys, tree, "-o", tmp_path / "a.index", "--parquet", "x.parquet")
    assert status == 1 and "pip install pyarrow" in errors
