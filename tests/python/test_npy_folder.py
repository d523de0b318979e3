"""feedmill.data.NpyFolder on the native path: raw .npy files, one per sample."""

import feedmill
import numpy as np
import pytest
import torch
from feedmill.data import NpyFolder
from feedmill.data.npy import NpyError
from torch.utils.data import ConcatDataset, Subset
from torch.utils.data import DataLoader as TorchDataLoader


def save_slices(root, n=6):
    slices = np.random.default_rng(1).normal(size=(n, 4, 5)).astype(np.float32)
    for i, one in enumerate(slices):
        np.save(root / f"{i}.npy", one)
    return slices


def native_npy(root, *arguments, transform=None, **options):
    return feedmill.DataLoader(NpyFolder(root, transform=transform), *arguments, native="require",
                               **options)


@pytest.mark.parametrize("dtype", ["?", "u1", "i2", "i8", "f2", "f4", "f8", "c16"])
@pytest.mark.parametrize("shape", [(), (5,), (3, 1, 7)])
def test_npy_folder_natively(tmp_path, dtype, shape):
    values = np.random.default_rng(3).normal(size=(10, *shape)) * 100
    for i, one in enumerate(values):
        np.save(tmp_path / f"{i}.npy", one.astype(dtype))
    for transform in (None, torch.from_numpy):
        if transform is None or shape:  # not for files of a single value, which give no array
            dataset = NpyFolder(tmp_path, transform=transform)
            wanted = list(TorchDataLoader(dataset, 4))
            for native in ("require", "verify"):
                ours = list(feedmill.DataLoader(dataset, 4, native=native, num_workers=2))
                for (got, labels), (images, targets) in zip(ours, wanted, strict=True):
                    assert got.dtype is images.dtype and torch.equal(got, images)
                    assert torch.equal(labels, targets)


def test_npy_files_that_differ_are_read_by_numpy(tmp_path):
    slices = save_slices(tmp_path)
    paths = sorted(tmp_path.rglob("*.npy"))
    np.save(paths[2], np.asfortranarray(slices[2]))
    loader = native_npy(tmp_path, 3, num_workers=1)
    assert torch.equal(torch.cat([one for one, _ in loader]), torch.from_numpy(slices))
    assert loader.stats().decode.fallback_samples == 1


@pytest.mark.parametrize("content, error, why", [
    (np.zeros((2, 2)), RuntimeError, "the array is torch.float64"),
    (b"", NpyError, "the file is empty"),
    (b"\x93NUMPY", NpyError, "not a .npy file"),
    (None, FileNotFoundError, "No such file"),
])
def test_errors_name_wrong_npy_files(tmp_path, content, error, why):
    slices = save_slices(tmp_path)
    path = sorted(tmp_path.rglob("*.npy"))[4]
    dataset = NpyFolder(tmp_path)
    path.unlink()
    if isinstance(content, bytes):
        path.write_bytes(content)
    elif content is not None:
        np.save(path, content)
    iterator = iter(feedmill.DataLoader(dataset, 2, native="require"))
    assert len([next(iterator), next(iterator)]) == 2
    with pytest.raises(error, match=why) as caught:
        next(iterator)
    assert str(path) in str(caught.value)
    loader = feedmill.DataLoader(dataset, 6, native="require", on_error="zero")
    (values, targets), = loader
    wanted = slices.copy()
    wanted[4] = 0
    assert torch.equal(values, torch.from_numpy(wanted)) and targets.tolist() == list(range(6))
    assert [one.index for one in loader.stats().sample_errors] == [4]


def test_a_truncated_npy_file_counts_as_damaged(tmp_path):
    save_slices(tmp_path)
    path = sorted(tmp_path.rglob("*.npy"))[1]
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(NpyError, match="bytes of values; its header says"):
        list(native_npy(tmp_path, 6))


def test_npy_folder_with_options(tmp_path):
    slices = torch.from_numpy(save_slices(tmp_path))
    for options in ({"cache": "ram:1MiB"}, {"reader": "pread"}, {"reader": "auto"}):
        loader = native_npy(tmp_path, 4, drop_last=True, **options)
        for _ in range(3):
            (values, targets), = loader
            assert torch.equal(values, slices[:4])
    loader = native_npy(tmp_path, 3, transform=torch.from_numpy, collate_fn=list)
    samples = [one for batch in loader for one in batch]
    assert all(torch.equal(one, slices[i]) for i, (one, _) in enumerate(samples))
    assert [target for _, target in samples] == list(range(6))
    loader = native_npy(tmp_path, batch_size=None, transform=torch.from_numpy)
    assert all(torch.equal(one, slices[i]) for i, (one, _) in enumerate(loader))
    both = ConcatDataset([NpyFolder(tmp_path), Subset(NpyFolder(tmp_path), [5, 1])])
    loader = feedmill.DataLoader(both, 8, native="require")
    (values, targets), = loader
    assert torch.equal(values, slices[[*range(6), 5, 1]])
    value, target = loader.fetch(6, 0)
    assert torch.equal(value, slices[5]) and target == 5


@pytest.mark.parametrize("array, options, why", [
    (np.asfortranarray(np.ones((3, 4))), {}, "in Fortran order"),
    (np.ones(3, ">f4"), {}, "holds >f4"),
    (np.ones((3, 0)), {}, "holds float64 \\(3, 0\\)"),
    (np.ones(3), {"direct": True}, "past the page cache"),
    (np.ones(3), {"transform": np.negative}, "a transform other than torch.from_numpy"),
    (None, {}, "first file"),
])
def test_npy_folders_that_take_torchs_path(tmp_path, array, options, why):
    path = tmp_path / "0.npy"
    if array is None:
        path.write_bytes(b"?")
    else:
        np.save(path, array)
    dataset = NpyFolder([path], **options)
    with pytest.raises(RuntimeError, match=why):
        feedmill.DataLoader(dataset, native="require")
