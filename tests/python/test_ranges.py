"""feedmill_item() that returns a part of a file, (path, offset, bytes), in place of a path."""

import io
import os
import pickle

import helpers
import numpy as np
import pytest
import torch
from feedmill.planner.ranges import Range
from helpers import compose, native_loader
from PIL import Image
from torch.utils.data import Subset
from torchvision import transforms as T

N = 30
N_SHARDS = 3


class Packed:
    """A dataset of images stored one after the other in a few files, with gaps."""

    def __init__(self, root, transform, verified=()):
        self.root, self.transform, self.verified = root, transform, verified
        self.parts = []
        shards = [bytearray(b"a header") for _ in range(N_SHARDS)]
        for i in range(N):
            options = {"restart_marker_blocks": 4} if i % 2 else {}
            # One in five goes through Pillow.
            save = helpers.save_jpeg if i % 5 else helpers.save_bare_jpeg
            data = save(root / "one.jpg", 50 + i, 90 - i, seed=i, **options if i % 5 else {})
            data = data.read_bytes()
            shard = shards[i % N_SHARDS]
            self.parts.append((str(root / f"{i % N_SHARDS}.tar"), len(shard), len(data)))
            shard += data + b"between"
        for i, shard in enumerate(shards):
            (root / f"{i}.tar").write_bytes(shard)

    def __len__(self):
        return N

    def feedmill_item(self, index):
        path, offset, n_bytes = self.parts[index]
        return (path, offset, np.int64(n_bytes), *self.verified), index

    def __getitem__(self, index):
        (path, offset, n_bytes, *_), target = self.feedmill_item(index)
        with open(path, "rb") as file:
            file.seek(offset)
            image = Image.open(io.BytesIO(file.read(n_bytes))).convert("RGB")
        return self.transform(image), target


FIXED = compose(T.Resize((24, 32)), T.PILToTensor())
RANDOM = compose(T.RandomResizedCrop(24), T.RandomHorizontalFlip(), T.ToTensor())


@pytest.fixture
def packed(tmp_path):
    return Packed(tmp_path, FIXED)


def images_of(loader):
    found = {}
    for images, targets in loader:
        found.update(zip(targets.tolist(), images))
    return found


@pytest.mark.parametrize("reader", ["uring", "pread"])
@pytest.mark.parametrize("verified", [(), (True,), (False,)])
def test_images_equal_the_datasets(tmp_path, monkeypatch, reader, verified):
    if reader == "uring":
        helpers.need_uring()
    monkeypatch.setenv("FEEDMILL_READER", reader)
    dataset = Packed(tmp_path, FIXED, verified)
    loader = native_loader(dataset, batch_size=7, shuffle=True, num_workers=2)
    for _ in range(3):
        found = images_of(loader)
        assert sorted(found) == list(range(N))
        for index, image in found.items():
            helpers.assert_same_image(image, dataset[index][0], index)
    stats = loader.stats()
    assert stats.decode.fallback_samples == 3 * N / 5
    assert stats.io.files == 3 * N
    if reader == "uring":
        assert stats.io.opens == N_SHARDS


def restart_index_of(data, width, height, n_entries):
    """The restart index of a 4:4:4 JPEG with one restart interval per row of blocks."""
    begins = [data.index(b"\xff\xda") + 14]
    for i in range(begins[0], len(data) - 1):
        if data[i] == 0xFF and 0xD0 <= data[i + 1] <= 0xD7:
            begins.append(np.uint32(i + 2))
    assert len(begins) == -(-height // 8)
    return (width, height, 8, *(begins[k * len(begins) // n_entries] for k in range(n_entries)))


@pytest.mark.parametrize("reader", ["uring", "pread"])
def test_bytes_below_the_crop_are_not_read(tmp_path, monkeypatch, reader):
    if reader == "uring":
        helpers.need_uring()
    monkeypatch.setenv("FEEDMILL_READER", reader)
    dataset = Packed(tmp_path, RANDOM, (True,))
    shard = bytearray()
    for i in range(N):
        path = helpers.save_jpeg(tmp_path / "one.jpg", 64, 200, seed=i, subsampling=0,
                                 restart_marker_rows=1)
        data = path.read_bytes()
        rows = restart_index_of(data, 64, 200, 8) if i % 3 else None
        dataset.parts[i] = (str(tmp_path / "rows.tar"), len(shard), len(data), True, rows)
        shard += data
    (tmp_path / "rows.tar").write_bytes(shard)
    dataset.feedmill_item = None
    dataset.__class__ = type("WithRows", (Packed,), {
        "feedmill_item": lambda self, index: (self.parts[index], index),
        "__getitem__": Packed.__getitem__,
    })
    del dataset.feedmill_item
    loader = native_loader(dataset, batch_size=8, native="verify", shuffle=True)
    for _ in range(2):
        assert sum(len(targets) for _, targets in loader) == N
    stats = loader.stats()
    assert stats.decode.fallback_samples == 0
    assert stats.io.bytes < 2 * len(shard) * 0.95


@pytest.mark.parametrize("verified", [(), (True,)])
def test_every_sample_is_verified(tmp_path, verified):
    dataset = Packed(tmp_path, RANDOM, verified)
    for _ in native_loader(dataset, batch_size=8, native="verify", shuffle=True):
        pass


def test_subsets_caches_and_single_samples(packed):
    loader = native_loader(Subset(packed, range(0, N, 2)), batch_size=4, cache="ram:8MiB", seed=3)
    for _ in range(2):
        found = images_of(loader)
        for index, image in found.items():
            helpers.assert_same_image(image, packed[index][0], index)
    assert loader.stats().io.cache_hits == loader.stats().io.cache_files == N / 2 - N / 10
    helpers.assert_same_image(loader.fetch(3, 0)[0], packed[6][0], 6)
    assert loader.draws(3, 0)


def test_hybrid(packed):
    packed.transform = compose(T.Lambda(lambda image: T.functional.pil_to_tensor(image)[:, :5, :5]))
    wanted = {i: packed[i][0] for i in range(N)}
    loader = native_loader(packed, batch_size=4, native="hybrid")
    found = images_of(loader)
    assert all(torch.equal(found[i], wanted[i]) for i in range(N))


def test_errors_name_file_and_bytes(packed):
    path, offset, n_bytes = packed.parts[4]
    size = os.path.getsize(path)
    packed.parts[4] = (path, size - 10, 20)
    packed.parts[7] = (packed.parts[7][0], offset + 5, n_bytes)
    packed.parts[11] = (path + "x", 0, 20)
    packed.parts[12] = (packed.parts[12][0], 0, 0)
    loader = native_loader(packed, batch_size=1, on_error="zero")
    found = images_of(loader)
    assert [i for i, image in found.items() if not image.any()] == [4, 7, 11, 12]
    causes = {one.index: (one.path, one.cause) for one in loader.stats().sample_errors}
    assert causes[4][0] == path
    assert f"ends before bytes {size - 10} to {size + 9}" in causes[4][1]
    assert "UnidentifiedImageError" in causes[7][1]
    assert "No such file" in causes[11][1]
    assert "UnidentifiedImageError" in causes[12][1]
    raising = native_loader(Subset(packed, [4, 5]), batch_size=1)
    iterator = iter(raising)
    with pytest.raises(OSError, match=f"ends before bytes {size - 10} to {size + 9}") as raised:
        next(iterator)
    assert "0.tar" in str(raised.value) or "1.tar" in str(raised.value)
    assert next(iterator)[1].tolist() == [5]


@pytest.mark.parametrize("part, error", [
    (("a", 1), TypeError), (("a", 1, 2, True, None, 3), TypeError), (("a", "1", 2), TypeError),
    (("a", 1, 2, True, 3), TypeError), (("a", 1, 2, True, (8, 8, 8)), ValueError),
    (("a", 1, 2, True, (8, 8, 8, -1)), ValueError), (("a", 1, 2, True, (1,) * 68), ValueError),
    (("a", 1.5, 2), TypeError), (("a", -1, 2), ValueError), (("a", 1, -2), ValueError),
    (("a", 1 << 61, 2), ValueError), (("a", 1, 1 << 64), ValueError), ((), TypeError),
])
def test_wrong_parts_are_refused(packed, part, error):
    packed.feedmill_item = None
    packed.__class__ = type("Wrong", (Packed,), {
        "feedmill_item": lambda self, index: (part, index),
        "__getitem__": Packed.__getitem__,
    })
    del packed.feedmill_item
    with pytest.raises(error, match="feedmill_item for index 0"):
        next(iter(native_loader(packed, batch_size=2)))


@pytest.mark.parametrize("n_items", [2, 3])
def test_a_slice_is_not_taken_for_a_part(packed, n_items):
    """For a slice, feedmill_item() may return something like a part. The error is __getitem__()'s."""
    class Sliced(Packed):
        def feedmill_item(self, index):
            if isinstance(index, slice):
                return [("path", 0)] * n_items
            return super().feedmill_item(index)

        def __getitem__(self, index):
            if isinstance(index, slice):
                raise LookupError("one at a time")
            return super().__getitem__(index)

    packed.__class__ = Sliced
    loader = native_loader(packed, batch_sampler=[[slice(0, n_items)]])
    with pytest.raises(LookupError, match="one at a time"):
        next(iter(loader))


class Missing(LookupError):
    """An exception that copy() can't copy."""

    def __init__(self, what, why):
        super().__init__(f"{what} {why}")


@pytest.mark.parametrize("error", [LookupError("no such image"), Missing("no such", "image")])
@pytest.mark.parametrize("options", [{}, {"cache": "ram:8MiB"}, {"native": "hybrid"}])
def test_an_error_in_place_of_a_part(packed, options, error):
    class WithoutOne(Packed):
        def feedmill_item(self, index):
            part, target = super().feedmill_item(index)
            return (error, target) if index == 3 else (part, target)

        def __getitem__(self, index):
            return super().__getitem__(index)

    packed.__class__ = WithoutOne
    loader = native_loader(packed, batch_size=1, on_error="raise", **options)
    for _ in range(2):
        iterator = iter(loader)
        assert [next(iterator)[1].item() for _ in range(3)] == [0, 1, 2]
        with pytest.raises(LookupError, match="no such image") as raised:
            next(iterator)
        assert "dataset index 3" in str(raised.value)
        assert next(iterator)[1].tolist() == [4]
    if "native" in options:
        return
    loader = native_loader(packed, batch_size=8, on_error="zero", **options)
    for _ in range(2):
        found = images_of(loader)
        assert [i for i, image in found.items() if not image.any()] == [3]
    with pytest.raises(LookupError):
        loader.draws(3, 0)


def test_a_range_reads_its_part_of_a_file(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(bytes(range(100)))
    part = Range(10, 20)
    assert part.read(path) == bytes(range(10, 30))
    assert pickle.loads(pickle.dumps(part)) == part
    with pytest.raises(OSError, match="ends before bytes 90 to 100"):
        Range(90, 11).read(path)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match="not a regular file"):
        part.read(tmp_path / "pipe")
    assert not [name for name in os.listdir("/proc/self/fd")
                if os.path.realpath(f"/proc/self/fd/{name}") == str(path)]
