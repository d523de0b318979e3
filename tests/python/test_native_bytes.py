"""Images that are already in memory, given to the native loader as bytes objects."""

import gc
import os
import sys
from pathlib import Path

import pytest
import torch
from feedmill._ops import native
from feedmill.planner.plan import RANDOM_RESIZED_CROP, Op
from helpers import save_jpeg

N_FILES = 12
RANDOM_CROP = Op(RANDOM_RESIZED_CROP, 24, 32, 0, 0.08, 1.0, 0.75, 4 / 3)


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    root = tmp_path_factory.mktemp("bytes")
    return [str(save_jpeg(root / f"{i}.jpg", 40 + 7 * i, 90 - 5 * i, seed=i))
            for i in range(N_FILES)]


@pytest.fixture
def loader():
    loader = open_loader()
    yield loader
    loader.close()


def open_loader(**options):
    return native.Loader(**{"ops": [RANDOM_CROP], "dtype": "uint8", "n_samples": N_FILES,
                            "batch_size": 4, "n_threads": 2, "prefetch_batches": 3, **options})


def read(path):
    """A file's content as a new bytes object."""
    return Path(path).read_bytes()


def take(loader):
    """A copy of the next batch's images."""
    outcome, capsule, n = loader.next(-1)
    assert outcome == native.OK, capsule
    images = torch.from_dlpack(capsule).clone()
    assert images.shape == (n, 3, 24, 32)
    return images


def from_files(loader, files, indices):
    loader.start(7, 0)
    assert loader.submit(indices, [files[i] for i in indices])
    return take(loader)


def counts(objects):
    return [sys.getrefcount(one) for one in objects]


# ---- pixels --------------------------------------------------------------------------------------


def test_images_equal_those_of_the_files(loader, files):
    wanted = from_files(loader, files, [3, 1, 3, 0])
    read_before = loader.stats()["read_files"]
    loader.start(7, 0)
    one = read(files[3])
    assert loader.submit([3, 1, 3, 0], ["", os.fsencode("a name"), Path("b"), ""],
                         [one, read(files[1]), one, read(files[0])])
    assert torch.equal(take(loader), wanted)
    assert loader.stats()["read_files"] == read_before
    loader.start(7, 0)
    assert loader.submit([3, 1, 3, 0], ["", files[1], Path(files[3]), "x"],
                         data=(one, None, None, read(files[0])))
    assert torch.equal(take(loader), wanted)
    assert loader.stats()["read_files"] == read_before + 2


def test_the_loader_keeps_bytes_without_other_references(files):
    loader = open_loader(prefetch_batches=40, n_threads=1)
    wanted = from_files(loader, files, [0, 1, 2, 3])
    loader.start(7, 0)
    assert loader.submit(range(4), [""] * 4, [read(path) for path in files[:4]])
    for _ in range(39):
        assert loader.submit([0], [""], [read(files[0])])
    gc.collect()
    others = [b"\xff" * os.path.getsize(files[i % 4]) for i in range(200)]
    assert torch.equal(take(loader), wanted)
    for _ in range(39):
        # Only for the memory: each image has another random crop.
        take(loader)
    del others
    loader.close()


# ---- references ----------------------------------------------------------------------------------


def test_references_are_released_with_the_batch(loader, files):
    images = [read(path) for path in files[:8]]
    before = counts(images)
    loader.start(7, 0)
    assert loader.submit(range(4), [""] * 4, images[:4])
    assert loader.submit(range(4, 8), [""] * 4, images[4:])
    assert loader.n_pending == 2
    assert counts(images) == [n + 1 for n in before]
    batch = take(loader)
    assert loader.n_pending == 1
    assert counts(images) == before[:4] + [n + 1 for n in before[4:]]
    take(loader)
    loader.finish()
    assert loader.next(-1)[0] == native.END
    assert counts(images) == before
    assert batch.shape[0] == 4


@pytest.mark.parametrize("end", ["stop", "start", "close", "del"])
def test_references_are_released_at_the_end_of_the_epoch(files, end):
    images = [read(path) for path in files]
    before = counts(images)
    for n_taken in range(3):
        loader = open_loader()
        loader.start(7, 0)
        for at in range(0, N_FILES, 4):
            assert loader.submit(range(at, at + 4), [""] * 4, images[at : at + 4])
        for _ in range(n_taken):
            take(loader)
        assert counts(images)[4 * n_taken :] == [n + 1 for n in before[4 * n_taken :]]
        if end == "start":
            loader.start(8, 0)
            assert loader.n_pending == 0
        elif end == "del":
            del loader
        else:
            getattr(loader, end)()
        assert counts(images) == before
        if end in ("stop", "start"):
            assert from_files(loader, files, [0, 1]).shape[0] == 2
            loader.close()


def test_a_refused_batch_keeps_no_references(loader, files):
    images = [read(path) for path in files[:4]]
    before = counts(images)
    names = [""] * 4
    with pytest.raises(native.Error):  # no epoch is running
        loader.submit(range(4), names, images)
    loader.start(7, 0)
    with pytest.raises(ValueError, match="4 indices but 3 elements of data"):
        loader.submit(range(4), names, images[:3])
    with pytest.raises(ValueError, match="4 indices but 3 paths"):
        loader.submit(range(4), names[:3], images)
    with pytest.raises(TypeError, match=r"data\[3\] is <class 'bytearray'>; it must be bytes or"):
        loader.submit(range(4), names, [*images[:3], bytearray(images[3])])
    with pytest.raises(TypeError, match=r"data\[0\] is <class 'int'>"):
        loader.submit(range(4), names, b"1234")
    with pytest.raises(ValueError, match="outside the dataset"):
        loader.submit([0, 1, 2, N_FILES], names, images)
    with pytest.raises(ValueError, match="path of index 1 is empty"):
        loader.submit(range(4), names, [images[0], None, None, None])
    assert counts(images) == before
    for _ in range(3):
        assert loader.submit([0], [files[0]])
    assert not loader.submit(range(4), names, images)
    assert loader.n_pending == 3
    assert counts(images) == before


def test_a_destructor_may_call_the_loader(loader, files):
    seen = []

    class Image(bytes):
        def __del__(self):
            loader.stop()
            seen.append(loader.n_pending)

    loader.start(7, 0)
    for i in range(3):
        assert loader.submit([i], [""], [Image(read(files[i]))])
    take(loader)
    gc.collect()
    assert seen == [0, 0, 0]
    assert from_files(loader, files, [5]).shape[0] == 1


# ---- data that is not a JPEG ---------------------------------------------------------------------


def test_fallbacks_have_name_and_output(loader, files):
    images = [read(files[0]), bytes(bytearray(b"no image")), b"", read(files[3])[:-2]]
    before = counts(images[:2])
    loader.start(7, 0)
    assert loader.submit(range(4), ["", "", "a/näme", "cut"], images)
    causes = [(1, "", native.ERR_FORMAT), (2, "a/näme", native.ERR_FORMAT),
              (3, "cut", native.ERR_DAMAGED)]
    for position, name, cause in causes:
        assert loader.next(-1)[0] == native.FALLBACK
        found = loader.fallback()
        assert found[0] == position and found[2:5] == (position, cause, name)
        assert found[6].startswith(f"sample {position} ({name or 'in memory'}): ")
        found[5][:] = bytes([position]) * len(found[5])
        loader.fallback_done(True)
        assert counts(images[:2]) == [n + 1 for n in before]
        assert loader.n_pending == 1
    batch = take(loader)
    assert [int(image.max()) for image in batch[1:]] == [1, 2, 3]
    assert counts(images[:2]) == before and loader.n_pending == 0


def test_references_are_released_after_an_error(loader, files):
    images = [bytes(bytearray(b"no image")), read(files[1])]
    before = counts(images)
    loader.start(7, 0)
    for i in range(2):
        assert loader.submit([0], [""], images[i : i + 1])
    assert loader.next(-1)[0] == native.FALLBACK
    loader.fallback_done(False)
    assert counts(images) == [n + 1 for n in before]
    outcome, message, _ = loader.next(-1)
    assert outcome == native.ERR_FORMAT and "sample 0 (in memory): " in message
    assert counts(images) == [before[0], before[1] + 1]
    take(loader)
    assert counts(images) == before


def test_images_that_are_too_large_are_not_decoded(files):
    images = [read(path) for path in files[:2]]
    loader = open_loader(max_file_bytes=max(map(len, images)) - 1)
    loader.start(7, 0)
    assert loader.submit([0, 1], ["", ""], images)
    assert loader.next(-1)[0] == native.FALLBACK
    assert loader.fallback()[3] == native.ERR_LIMIT
    loader.close()


# ---- errors and attributes of the loader ---------------------------------------------------------


def test_a_budget_that_is_too_small_has_its_own_error():
    with pytest.raises(native.BudgetError, match="memory_budget of 1000 bytes is too small"):
        open_loader(memory_budget_bytes=1000)
    assert issubclass(native.BudgetError, ValueError)
    with pytest.raises(ValueError) as caught:
        open_loader(batch_size=0)
    assert caught.type is ValueError


def test_n_pending_is_read_only(loader):
    assert loader.n_pending == 0
    with pytest.raises(AttributeError):
        loader.n_pending = 1
    loader.close()
    assert loader.n_pending == 0


def test_memory_of_another_owner(loader, files):
    owners = [bytearray(read(path)) for path in files[:4]]
    arrays = [torch.frombuffer(one, dtype=torch.uint8) for one in owners]
    buffers = [(one.data_ptr(), len(one), one, "memory") for one in arrays]
    wanted = from_files(loader, files, [0, 1, 2, 3])
    loader.start(7, 0)
    before = counts(arrays)
    assert loader.submit(range(4), [""] * 4, buffers)
    assert torch.equal(take(loader), wanted)
    loader.finish()
    assert loader.next(-1)[0] == native.END
    assert counts(arrays) == before
    for bad in ((0, 9, b"", "memory"), (9, 0, b"", "memory"), (b"", 9, b"", "memory")):
        loader.start(7, 0)
        with pytest.raises((TypeError, ValueError)):
            loader.submit([0], [""], [bad])
