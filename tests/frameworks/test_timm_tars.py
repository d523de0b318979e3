"""timm's readers of tar files on the native path, compared with timm's own objects."""

import io
import logging
import random
import tarfile
from pathlib import Path

import feedmill
import frameworks
import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader, Subset
from torchvision import transforms

frameworks.need("timm")

import timm.data  # noqa: E402
import timm.data.loader  # noqa: E402
from timm.data.readers.reader_image_in_tar import ReaderImageInTar  # noqa: E402
from timm.data.readers.reader_image_tar import ReaderImageTar  # noqa: E402

COLLATE = {"batch_size": 4, "collate_fn": timm.data.loader.fast_collate}


def encoded(mode, size, form, seed):
    pixels = np.random.default_rng(seed).integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).convert(mode).save(file, form)
    return file.getvalue()


def members():
    """(name, bytes) of images of many kinds, and of files that are no images."""
    found = [
        (f"class{i % 3}/{i:02}.jpg", encoded("RGB", (24 + i, 60 - i), "JPEG", i)) for i in range(12)
    ]
    found += [
        ("class0/grey.jpg", encoded("L", (30, 41), "JPEG", 1)),
        ("class1/palette.png", encoded("P", (33, 50), "PNG", 2)),
        ("class2/cmyk.jpg", encoded("CMYK", (44, 31), "JPEG", 3)),
        ("class2/more.PNG", encoded("RGBA", (40, 36), "PNG", 4)),
        ("class1/words.txt", b"no image"),
    ]
    return found


DAMAGED = [
    ("class0/05a.jpg", b"no image"), ("class1/05b.jpg", b""),
    ("class1/05c.jpg", encoded("RGB", (30, 30), "JPEG", 7)[:-200]),
    ("class2/zz.png", b"\x89PNG\r\n\x1a\n"),
]


def write_tar(path, files, form=tarfile.PAX_FORMAT):
    with tarfile.open(path, "w", format=form) as tar:
        for name, data in files:
            member = tarfile.TarInfo(name)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    return path


def of_class(number, files):
    return [one for one in files if one[0].startswith(f"class{number}/")]


def single(root, files):
    return ReaderImageInTar(str(write_tar(root / "all.tar", files)))


def uncached(root, files):
    return ReaderImageInTar(str(write_tar(root / "all.tar", files)), cache_tarfiles=False)


def several(root, files):
    for number in range(3):
        write_tar(root / f"class{number}.tar", of_class(number, files), tarfile.GNU_FORMAT)
    return ReaderImageInTar(str(root))


def nested(root, files):
    inner = [
        (f"class{number}.tar", write_tar(root / "inner", of_class(number, files)).read_bytes())
        for number in range(3)
    ]
    (root / "inner").unlink()
    return ReaderImageInTar(str(write_tar(root / "outer.tar", inner)))


def older(root, files):
    return ReaderImageTar(str(write_tar(root / "all.tar", files)))


READERS = [single, uncached, several, nested, older]
EVALUATION = [transforms.Resize((24, 28)), timm.data.transforms.MaybePILToTensor()]
TRAINING = [
    timm.data.transforms.RandomResizedCropAndInterpolation((24, 28), interpolation="random"),
    transforms.RandomHorizontalFlip(), timm.data.transforms.MaybePILToTensor(),
]


def dataset_of(reader, parts=EVALUATION):
    return timm.data.ImageDataset("", reader=reader, transform=transforms.Compose(parts))


def handles(reader):
    """The tar files that a reader keeps open."""
    if isinstance(reader, ReaderImageTar):
        return [reader.tarfile]
    states = [reader.tar_state] if reader.root_is_tar else list(reader.tar_state.values())
    states += [child for state in states for child in state.children.values()]
    return [state.tf for state in states]


def assert_equal(batches, others):
    for one, other in zip(batches, others, strict=True):
        assert type(one) is type(other)
        for wanted, got in zip(one, other, strict=True):
            assert wanted.dtype == got.dtype and wanted.stride() == got.stride()
            assert torch.equal(wanted, got)


def outcome(make, dataset, caplog, **options):
    """(all batches or the error, timm's warnings) of an epoch."""
    caplog.clear()
    try:
        batches = list(make(dataset, **options))
    except Exception as error:
        batches = type(error), str(error).partition("\n")[0]
    return batches, [one.getMessage() for one in caplog.records if one.name.startswith("timm")]


def assert_same(wanted, got):
    """Whether an epoch's batches are equal; if not, its error must be. feedmill's names the sample
    as well."""
    if isinstance(wanted, list):
        assert_equal(wanted, got)
        return True
    assert got[0] is wanted[0] and got[1].startswith(wanted[1])
    return False


@pytest.mark.parametrize("make", READERS)
def test_batches_equal_torchs(tmp_path, make):
    dataset = dataset_of(make(tmp_path, members()))
    wanted = [list(DataLoader(dataset_of(dataset.reader), **COLLATE))]
    wanted += [list(DataLoader(dataset, batch_size=3))]
    reader = dataset.reader = make(tmp_path, members())
    for options, batches in zip((COLLATE, {"batch_size": 3}), wanted, strict=True):
        for num_workers in (0, 2):
            loader = feedmill.DataLoader(
                dataset, native="require", num_workers=num_workers, **options
            )
            assert "ImageDataset of tar files" in loader.explain()
            assert_equal(batches, loader)
            assert loader.stats().decode.native_samples >= 12
    # feedmill leaves the reader's own files alone, which processes and threads must not share.
    assert handles(reader) == [None] * len(handles(reader))
    dataset[0], dataset[len(dataset) - 1]
    assert_equal(wanted[1], feedmill.DataLoader(dataset, native="require", batch_size=3))


@pytest.mark.parametrize("make", READERS)
def test_random_transforms(tmp_path, make):
    """native="verify" makes each sample again with timm's objects, fed the native draws."""
    frameworks.verify(dataset_of(make(tmp_path, members()), TRAINING), 40)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_torchs_random_numbers(tmp_path, num_workers):
    dataset = dataset_of(nested(tmp_path, members()), TRAINING)
    batches = []
    for make, options in ((DataLoader, {}),
                          (feedmill.DataLoader, {"native": "require", "rng": "torch"})):
        random.seed(3)
        np.random.seed(3)
        torch.manual_seed(3)
        loader = make(dataset, shuffle=True, num_workers=num_workers, **COLLATE, **options)
        batches.append(list(loader))
    assert_equal(*batches)


def test_subsets_and_negative_indices(tmp_path):
    dataset = Subset(dataset_of(several(tmp_path, members())), [3, -1, 0, -16])
    loader = feedmill.DataLoader(dataset, native="require", **COLLATE)
    assert_equal(DataLoader(dataset, **COLLATE), loader)


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("make", READERS)
def test_damaged_members_are_replaced_as_by_timm(tmp_path, make, num_workers, caplog):
    dataset = dataset_of(make(tmp_path, members() + DAMAGED))
    with caplog.at_level(logging.WARNING):
        wanted = outcome(DataLoader, dataset_of(make(tmp_path, members() + DAMAGED)), caplog,
                         **COLLATE)
        got = outcome(feedmill.DataLoader, dataset, caplog, native="require",
                      num_workers=num_workers, **COLLATE)
    assert wanted[1] == got[1]
    if assert_same(wanted[0], got[0]):
        list(feedmill.DataLoader(dataset, native="verify", **COLLATE))


def spoil_header(path):
    path.write_bytes(b"x" * 512 + path.read_bytes()[512:])


def shorten(path):
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


@pytest.mark.parametrize("spoil", [spoil_header, shorten, lambda path: path.unlink()])
@pytest.mark.parametrize("make", READERS)
def test_damaged_tar_files(tmp_path, make, spoil, caplog):
    """After the reader was made: torch and feedmill raise the same error, or skip alike."""
    dataset = dataset_of(make(tmp_path, members()))
    spoil(sorted(tmp_path.glob("*.tar"))[0])
    with caplog.at_level(logging.WARNING):
        wanted = outcome(DataLoader, dataset, caplog, **COLLATE)
        forget_files(dataset.reader)
        # With a seed no sample is tried beforehand, to find out what the transform draws.
        got = outcome(feedmill.DataLoader, dataset, caplog, native="require", seed=1, **COLLATE)
    assert wanted[1] == got[1]
    assert_same(wanted[0], got[0])


def forget_files(reader):
    """Makes a reader forget the tar files that it opened."""
    if isinstance(reader, ReaderImageTar):
        reader.tarfile = None
        return
    for state in [reader.tar_state] if reader.root_is_tar else reader.tar_state.values():
        state.reset()
        for child in state.children.values():
            child.reset()


def test_members_in_several_pieces(tmp_path):
    """A sparse member is read by tarfile itself."""
    data = encoded("RGB", (40, 40), "BMP", 3)
    path = tmp_path / "all.tar"
    write_tar(path, [*members(), ("class0/hole.jpg", data)])
    dataset = dataset_of(ReaderImageInTar(str(path)))
    (member,) = [row[0] for row in dataset.reader.samples if row[0].name.endswith("hole.jpg")]
    member.sparse = [(0, len(data) // 2), (len(data) // 2, len(data) - len(data) // 2)]
    loader = feedmill.DataLoader(dataset, native="require", **COLLATE)
    assert_equal(DataLoader(dataset, **COLLATE), loader)


# ---- what is not recognised ----------------------------------------------------------------------


class Counting(ReaderImageInTar):
    pass


def subclassed(monkeypatch, dataset):
    dataset.reader.__class__ = Counting


def replaced_method(monkeypatch, dataset):
    get = ReaderImageInTar.__getitem__
    monkeypatch.setattr(ReaderImageInTar, "__getitem__", lambda self, index: get(self, 0))


def replaced_tarfile(monkeypatch, dataset):
    monkeypatch.setattr(tarfile.TarFile, "extractfile", lambda *_: io.BytesIO())


def replaced_open(monkeypatch, dataset):
    monkeypatch.setattr(tarfile, "open", lambda *_: None)


def own_method(monkeypatch, dataset):
    dataset.reader.__len__ = lambda: 3


def samples_of_another_type(monkeypatch, dataset):
    dataset.reader.samples = list(dataset.reader.samples)


def fewer_targets(monkeypatch, dataset):
    dataset.reader.targets = dataset.reader.targets[1:]


def another_open_file(monkeypatch, dataset):
    path = write_tar(Path(dataset.reader.root).with_name("other.tar"), members()[3:])
    dataset.reader.tar_state.tf = tarfile.open(path)


def closed_file(monkeypatch, dataset):
    dataset[0]
    dataset.reader.tar_state.tf.close()


def remote_root(monkeypatch, dataset):
    dataset.reader.root = "s3://bucket/all.tar"


@pytest.mark.parametrize("change", [
    subclassed, replaced_method, replaced_tarfile, replaced_open, own_method,
    samples_of_another_type, fewer_targets, another_open_file, closed_file, remote_root,
], ids=lambda change: change.__name__)
def test_changed_readers_are_not_native(tmp_path, monkeypatch, change):
    dataset = dataset_of(single(tmp_path, members()))
    assert feedmill.DataLoader(dataset).explain().startswith("native path")
    change(monkeypatch, dataset)
    explanation = feedmill.DataLoader(dataset).explain()
    assert explanation.startswith("torch's own path")
    assert "could not be inspected" not in explanation


def test_tar_files_of_the_same_name(tmp_path):
    """timm keeps one of them open for both."""
    inner = [write_tar(tmp_path / "inner", of_class(n, members())).read_bytes() for n in range(2)]
    (tmp_path / "inner").unlink()
    path = write_tar(tmp_path / "outer.tar", [("class0.tar", one) for one in inner])
    dataset = dataset_of(ReaderImageInTar(str(path)))
    assert "have the same name" in feedmill.DataLoader(dataset).explain()
