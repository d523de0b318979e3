"""Seek points of the images of webdataset's pipelines: an image is found again by its place in the
tar files, and batches equal those of torch's DataLoader also where the files change."""

import tarfile
from pathlib import Path

import feedmill
import helpers
import pytest
import torch
from feedmill.planner.tar_places import TarPlaces
from torch.utils.data import DataLoader
from torchvision import transforms

pytest.importorskip("webdataset")

from stream_outcomes import check
from webdataset_files import add, dataset


def _write_photos(root, sizes):
    """Tar files of so many JPEGs in which rows can be skipped, and their labels."""
    paths, number = [], 0
    for k, size in enumerate(sizes):
        paths.append(str(root / f"p-{k}.tar"))
        with tarfile.open(paths[-1], "w") as tar:
            for _ in range(size):
                helpers.save_jpeg(root / "x.jpg", 260 + 9 * number, 200 + number, seed=number)
                add(tar, f"{number}.jpg", (root / "x.jpg").read_bytes())
                add(tar, f"{number}.cls", b"%d" % number)
                number += 1
    return paths


SMALL_CROP = transforms.Compose([
    transforms.RandomResizedCrop(32, scale=(0.05, 1.0)), transforms.ToTensor(),
])


def test_seek_points(tmp_path):
    paths = _write_photos(tmp_path, (3, 4, 3))

    def make():
        return dataset(paths, shardshuffle=5, seed=1).shuffle(4, seed=2).decode("pil").map_dict(
            jpg=SMALL_CROP)

    check(make, (0, 0, 0), num_workers=2, batch_size=3)
    loader = feedmill.DataLoader(make(), num_workers=2, batch_size=3, native="require")
    for _ in range(3):
        assert sum(len(one["cls"]) for one in loader) == 10
    stats = loader.stats()
    if stats.decode.simd == "scalar":  # there, libjpeg decodes all by itself
        return
    assert stats.io.seek_images == 10
    assert stats.io.seek_samples == 20


def test_seek_points_of_files_that_change(tmp_path):
    """The same place has another image, or the files are longer than before."""
    paths = _write_photos(tmp_path, (3, 4))
    (tmp_path / "others").mkdir()
    others = _write_photos(tmp_path / "others", (9, 8))

    def epochs(kind):
        for path, other in zip(paths, contents):
            Path(path).write_bytes(other[0])
        options = {"native": "require"} if kind is feedmill.DataLoader else {}
        loader = kind(dataset(paths).decode("pil").to_tuple("jpg", "cls").map_tuple(SMALL_CROP),
                      num_workers=1, batch_size=3, **options)
        torch.manual_seed(4)
        found = list(loader)
        for path, other in zip(paths, contents):
            Path(path).write_bytes(other[1])
        return found + list(loader)

    contents = [(Path(one).read_bytes(), Path(other).read_bytes())
                for one, other in zip(paths, others)]
    got, wanted = epochs(feedmill.DataLoader), epochs(DataLoader)
    assert len(got) == len(wanted) == 3 + 6
    assert all(helpers.equal_batches(*pair) for pair in zip(got, wanted))


def test_numbers_of_places(tmp_path):
    """Each image has a number of its own, unless two are in one part of a tar file."""
    (tmp_path / "a").write_bytes(bytes(9000))
    (tmp_path / "b").write_bytes(bytes(5000))
    paths = [str(tmp_path / one) for one in ("a", "b", "a", "missing", "\0")]
    places = TarPlaces(paths, 16000)
    numbers = [places.number(paths[0], at) for at in (0, 1999, 2000, 8999)]
    numbers += [places.number(paths[1], at) for at in (0, 4999, 10**9)]
    assert numbers == [0, 0, 1, 4, 5, 7, 8]
    assert places.n == 9 and places.number("", 0) == places.number(paths[3], 5) == 8
    assert TarPlaces(paths, 0).number(paths[0], 1024) == 1
    none = TarPlaces([], 10)
    assert none.n == 1 and none.number("x", 7) == 0


def test_places_of_many_images(tmp_path):
    """Parts become larger if there would be too many, and then images have no number."""
    path = str(tmp_path / "a")
    with open(path, "wb") as file:
        for n_bytes, wanted in ((1 << 28, 9), (1 << 33, 4), (1 << 35, 2), (1 << 38, 0)):
            file.truncate(n_bytes)
            assert TarPlaces([path], 1 << 16).number(path, 9 << 13) == wanted
