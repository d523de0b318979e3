"""Damaged, missing and unsupported files: Pillow's result, or its error with index and path, when
the batch is requested."""

import errno
import os

import helpers
import pytest
import torch
from helpers import compose, native_loader, save_jpeg
from torchvision import transforms as T
from torchvision.datasets import ImageFolder

CROP = compose(T.RandomResizedCrop(8, scale=(0.01, 0.05)), T.RandomHorizontalFlip(), T.ToTensor())
BAD_INDEX = 5


def good_bytes(folder):
    return save_jpeg(folder / "whole.jpg", 64, 64, quality=95).read_bytes()


def make_bad(path, kind):
    data = good_bytes(path.parent.parent / "source")
    path.unlink()
    if kind == "cut_in_half":
        path.write_bytes(data[: len(data) // 2])
    elif kind == "cut_early":
        path.write_bytes(data[:700])
    elif kind == "no_eoi":
        path.write_bytes(data[:-2])
    elif kind == "cut_before_eoi":
        path.write_bytes(data[:-12])
    elif kind == "header_only":
        path.write_bytes(data[:30])
    elif kind == "two_bytes":
        path.write_bytes(data[:2])
    elif kind == "empty":
        path.write_bytes(b"")
    elif kind == "text":
        path.write_text("this is not an image\n" * 20)
    elif kind == "zeros":
        path.write_bytes(bytes(5000))
    elif kind == "directory":
        path.mkdir()
    elif kind == "unreadable_png":
        path.write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(100))
    elif kind == "dangling_link":
        path.symlink_to("nowhere.jpg")
    elif kind == "link_loop":
        path.symlink_to(path.name)
    else:
        assert kind == "missing"


KINDS = ["cut_in_half", "cut_early", "no_eoi", "cut_before_eoi", "header_only", "two_bytes", "empty",
         "text", "zeros", "directory", "unreadable_png", "dangling_link", "link_loop", "missing"]


@pytest.fixture
def folder(tmp_path):
    for i in range(12):
        save_jpeg(tmp_path / "data" / "c" / f"{i:02}.jpg", 40, 30, seed=i)
    return tmp_path / "data"


def dataset_with(folder, kind, index=BAD_INDEX):
    dataset = ImageFolder(str(folder), CROP)
    make_bad(folder / "c" / f"{index:02}.jpg", kind)
    return dataset


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("kind", KINDS)
def test_the_batch_fails_as_with_torch_and_the_next_one_is_delivered(folder, kind, num_workers):
    dataset = dataset_with(folder, kind)
    path = dataset.samples[BAD_INDEX][0]
    theirs = iter(torch.utils.data.DataLoader(dataset, batch_size=4))
    wanted = [helpers.take(theirs) for _ in range(4)]
    assert isinstance(wanted[1], tuple)
    for reader in ("pread", "auto"):
        loader = native_loader(dataset, batch_size=4, num_workers=num_workers, reader=reader)
        iterator = iter(loader)
        got = []
        for _ in range(4):
            try:
                got.append(next(iterator)[1].tolist())
            except StopIteration:
                got.append("end")
            except Exception as error:
                got.append(type(error))
                text = str(error)
                assert f"dataset index {BAD_INDEX}" in text and repr(path) in text
                if num_workers:
                    # The second batch belongs to the second worker.
                    assert text.startswith(f"Caught {type(error).__name__} in DataLoader worker "
                                           "process 1.\nOriginal Traceback")
        assert got == [one[0] if isinstance(one, tuple) else one for one in wanted]
        assert loader.stats().errors == 1


@pytest.mark.parametrize("kind", ["no_eoi", "cut_in_half"])
def test_truncated_files_load_if_pillow_is_told_to(folder, kind, monkeypatch):
    """With LOAD_TRUNCATED_IMAGES, truncated files are loaded through Pillow."""
    monkeypatch.setattr("PIL.ImageFile.LOAD_TRUNCATED_IMAGES", True)
    loader = native_loader(dataset_with(folder, kind), batch_size=4)
    for index, image in enumerate(torch.cat([images for images, _ in loader])):
        helpers.assert_same_image(image, helpers.reference(loader, index, 0), index)
    stats = loader.stats()
    assert (stats.decode.fallback_damaged, stats.decode.native_samples, stats.errors) == (1, 11, 0)


@pytest.mark.parametrize(
    "tail", [b"\0" * 3, b"\0" * 5000, b"\xff" * 9, b"trailing text", b"\xff\xd9", b"\xff\xd8\xff"]
)
def test_bytes_after_the_end_of_a_jpeg(folder, tail):
    dataset = ImageFolder(str(folder), CROP)
    for path, _ in dataset.samples[:4]:
        with open(path, "ab") as file:
            file.write(tail)
    loader = native_loader(dataset, batch_size=4)
    for index, image in enumerate(torch.cat([images for images, _ in loader])):
        helpers.assert_same_image(image, helpers.reference(loader, index, 0), index)


@pytest.mark.parametrize("kind", ["cut_in_half", "cut_before_eoi", "no_eoi", "text", "empty"])
def test_the_outcome_does_not_depend_on_the_crop(folder, kind):
    """Crops are small, so many of them do not need the damaged part."""
    dataset = dataset_with(folder, kind)
    dataset.samples = [dataset.samples[BAD_INDEX]] * 64
    loader = native_loader(dataset, batch_size=1, num_workers=2)
    outcomes = set()
    for _ in range(3):
        iterator = iter(loader)
        for _ in range(64):
            one = helpers.take(iterator)
            outcomes.add(one[0] if isinstance(one, tuple) else "good")
        assert helpers.take(iterator) == "end"
    assert len(outcomes) == 1


def test_the_first_bad_sample_of_a_batch_is_reported(folder):
    dataset = dataset_with(folder, "text", index=6)
    make_bad(folder / "c" / "04.jpg", "missing")
    for num_workers in (0, 1):
        iterator = iter(native_loader(dataset, batch_size=12, sampler=[0, 1, 6, 4, 5],
                                      num_workers=num_workers))
        kind, _ = helpers.take(iterator)
        assert kind.__name__ == "UnidentifiedImageError"


def test_a_bad_index_after_and_before_a_bad_file(folder):
    dataset = dataset_with(folder, "missing")
    for batch, wanted in [([1, BAD_INDEX, 99], FileNotFoundError), ([1, 99, BAD_INDEX], IndexError)]:
        iterator = iter(native_loader(dataset, batch_sampler=[batch, [2]]))
        assert helpers.take(iterator)[0] is wanted
        assert helpers.take(iterator) == [0]


def test_all_files_are_bad(folder):
    dataset = ImageFolder(str(folder), CROP)
    for index in range(12):
        make_bad(folder / "c" / f"{index:02}.jpg", "text" if index % 2 else "missing")
    loader = native_loader(dataset, batch_size=2, num_workers=2)
    for _ in range(2):
        iterator = iter(loader)
        kinds = [helpers.take(iterator) for _ in range(7)]
        assert [kind[0].__name__ for kind in kinds[:6]] == ["FileNotFoundError"] * 6
        assert kinds[6] == "end"
    assert loader.stats().errors == 12


def test_a_large_batch_fails_once(folder):
    """A batch that the native loader splits into parts fails once, as a whole."""
    dataset = dataset_with(folder, "text")
    batches = [[0], [1, 2, 3, 4, BAD_INDEX, 6, 7, BAD_INDEX, 8], [9, 10]]
    for num_workers in (0, 1):
        iterator = iter(native_loader(dataset, batch_sampler=batches, num_workers=num_workers))
        got = [helpers.take(iterator) for _ in range(4)]
        assert got[0] == [0] and got[2:] == [[0, 0], "end"]
        assert got[1][0].__name__ == "UnidentifiedImageError"


def test_a_file_that_vanishes_between_epochs(folder):
    dataset = ImageFolder(str(folder), CROP)
    loader = native_loader(dataset, batch_size=4)
    assert len(list(loader)) == 3
    os.unlink(dataset.samples[0][0])
    iterator = iter(loader)
    assert helpers.take(iterator)[0] is FileNotFoundError
    assert helpers.take(iterator) == [0] * 4


def test_fetch_and_draws_raise_pillows_errors(folder):
    dataset = dataset_with(folder, "cut_in_half")
    loader = native_loader(dataset, seed=1)
    with pytest.raises(OSError, match=f"dataset index {BAD_INDEX}"):
        loader.fetch(BAD_INDEX, 0)
    loader.fetch(BAD_INDEX + 1, 0)
    make_bad(folder / "c" / "07.jpg", "missing")
    with pytest.raises(FileNotFoundError):
        loader.draws(7, 0)


@pytest.mark.parametrize("num_workers", [0, 1])
@pytest.mark.parametrize("name", ["", "a\0b", "x" * 5000, "\ud800.jpg"])
def test_impossible_paths(folder, name, num_workers):
    dataset = ImageFolder(str(folder), CROP)
    dataset.samples[1] = (str(folder / name) if name else name, 3)
    kinds = []
    for kind in (native_loader, torch.utils.data.DataLoader):
        iterator = iter(kind(dataset, batch_size=4, num_workers=num_workers))
        kinds.append([helpers.take(iterator) for _ in range(4)])
    assert kinds[0][0][0] is kinds[1][0][0]
    assert kinds[0][1:] == kinds[1][1:]


def test_names_with_non_ascii_characters(folder):
    dataset = ImageFolder(str(folder), CROP)
    for index, name in enumerate(["ä ö.jpg", "\u732b.jpg", "\udcff.jpg", "a\nb.jpg"]):
        path = str(folder / "c" / name)
        os.rename(dataset.samples[index][0], path)
        dataset.samples[index] = (path.encode("utf8", "surrogateescape") if index == 1 else path, 7)
    loader = native_loader(dataset, batch_size=12)
    assert loader.stats().errors == 0 and len(list(loader)) == 1
    assert loader.stats().decode.native_samples == 12


# ---- samples for torch's path, and files that would block ----------------------------------------


@pytest.mark.parametrize("num_workers", [0, 1])
def test_long_paths_are_loaded(folder, num_workers):
    deep = folder / "c"
    for _ in range(5):
        deep /= "x" * 250
    path = save_jpeg(deep / "long.jpg", 40, 30)
    dataset = ImageFolder(str(folder), CROP)
    dataset.samples = [(str(path), 1), (os.fsencode(path), 2), (path, 3)]
    loader = native_loader(dataset, batch_size=3, num_workers=num_workers)
    (images, targets), = loader
    assert targets.tolist() == [1, 2, 3] and loader.stats().decode.native_samples == 3


@pytest.mark.parametrize("num_workers", [0, 1])
def test_samples_whose_path_is_a_file_descriptor(folder, num_workers):
    dataset = ImageFolder(str(folder), CROP)
    file = os.open(dataset.samples[0][0], os.O_RDONLY)  # open() closes it, so it can be used once
    dataset.samples[5] = (file, 0)
    iterator = iter(native_loader(dataset, batch_size=4, num_workers=num_workers))
    assert helpers.take(iterator) == [0] * 4
    with pytest.raises(RuntimeError, match=f"dataset index 5, file {file}, .*path must be str.*int"):
        next(iterator)
    assert helpers.take(iterator) == [0] * 4


def test_errors_name_samples_added_during_an_epoch(folder):
    dataset = ImageFolder(str(folder), CROP)
    iterator = iter(native_loader(dataset, sampler=[0, 12, 1]))
    dataset.samples.append(dataset.samples[3])
    assert helpers.take(iterator) == [0]
    with pytest.raises(RuntimeError, match="dataset index 12, .*had 12 samples"):
        next(iterator)
    assert helpers.take(iterator) == [0]


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("kind", ["fifo", "link_to_fifo", "device"])
def test_files_that_are_not_regular_are_not_opened(folder, kind, num_workers):
    dataset = ImageFolder(str(folder), CROP)
    path = folder / "c" / f"{BAD_INDEX:02}.jpg"
    path.unlink()
    if kind == "device":
        path.symlink_to("/dev/zero")
    elif kind == "fifo":
        os.mkfifo(path)
    else:
        os.mkfifo(folder / "fifo")
        path.symlink_to(folder / "fifo")
    loader = native_loader(dataset, batch_size=4, num_workers=num_workers, seed=1)
    iterator = iter(loader)
    assert helpers.take(iterator) == [0] * 4
    with pytest.raises(OSError, match="not a regular file .*dataset index 5") as caught:
        next(iterator)
    assert num_workers or (caught.value.errno, caught.value.filename) == (errno.EINVAL, str(path))
    assert helpers.take(iterator) == [0] * 4
    for call in (loader.draws, loader.fetch):
        with pytest.raises(OSError, match="not a regular file"):
            call(BAD_INDEX, 0)
