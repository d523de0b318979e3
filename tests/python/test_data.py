"""feedmill.data: datasets for torch's DataLoader and ours, and imread."""

import pickle
import threading

import feedmill
import helpers
import numpy as np
import pytest
import torch
from feedmill._ops import native
from feedmill.data import ImageList, NpyFile, NpyFolder, Tokens, imread
from feedmill.data.npy import NpyError, parse_header, read_npy
from helpers import MEAN, STD, compose, native_loader
from PIL import Image, ImageOps
from torch.utils.data import DataLoader as TorchDataLoader
from torch.utils.data import Subset
from torchvision import transforms as T
from torchvision.datasets import ImageFolder

FIXED = compose(T.Resize((8, 9)), T.ToTensor(), T.Normalize(MEAN, STD))


@pytest.fixture
def files(small_images):
    return sorted(small_images.rglob("*.jpg"))


def labels_of(files):
    return [int(path.parent.name[-1]) for path in files]


# ---- ImageList -----------------------------------------------------------------------------------


def test_image_list_equals_an_image_folder(small_images):
    folder = ImageFolder(str(small_images), FIXED)
    paths, targets = zip(*folder.samples)
    mine = ImageList(paths, targets, FIXED)
    assert len(mine) == len(folder) == 40
    plain = ImageList(paths, targets)
    for i in (0, 7, -1):
        image, target = mine[i]
        assert torch.equal(image, folder[i][0]) and target == folder[i][1]
        picture, _ = plain[i]
        assert picture.mode == "RGB"
        assert np.array_equal(picture, folder.loader(paths[i]))
    with pytest.raises(IndexError):
        mine[40]


@pytest.mark.parametrize("targets", [None, "list", "array", "tensor", "floats"])
def test_image_list_runs_natively(files, targets):
    labels = labels_of(files)
    made = {None: None, "list": labels, "array": np.array(labels), "tensor": torch.tensor(labels),
            "floats": [i / 2 for i in labels]}
    dataset = ImageList(files, made[targets], FIXED)
    loader = native_loader(dataset, batch_size=7, shuffle=True)
    torch.manual_seed(1)
    mine = list(loader)
    torch.manual_seed(1)
    theirs = list(TorchDataLoader(dataset, batch_size=7, shuffle=True))
    assert len(mine) == len(theirs) == 6
    for ours, other in zip(mine, theirs):
        helpers.assert_same_image(ours[0], other[0], "images")
        assert ours[1].dtype == other[1].dtype and torch.equal(ours[1], other[1])


def test_image_list_without_targets_has_the_indices(files):
    loader = native_loader(ImageList(files, transform=FIXED), batch_size=16)
    assert torch.cat([targets for _, targets in loader]).tolist() == list(range(40))
    assert ImageList(files)[-1][1] == 39


def test_image_list_with_a_target_transform_runs_natively(files):
    dataset = ImageList(files, labels_of(files), FIXED, target_transform=lambda label: 10 - label)
    mine = list(native_loader(dataset, batch_size=16))
    theirs = list(TorchDataLoader(dataset, batch_size=16))
    assert [batch[1].tolist() for batch in mine] == [batch[1].tolist() for batch in theirs]


def test_image_list_pickles_and_works_with_torchs_workers(files):
    dataset = ImageList(files, labels_of(files), FIXED)
    duplicate = pickle.loads(pickle.dumps(dataset))
    assert duplicate.paths == dataset.paths == [str(path) for path in files]
    loader = TorchDataLoader(duplicate, batch_size=20, num_workers=2)
    assert [batch[0].shape for batch in loader] == [(20, 3, 8, 9)] * 2
    assert "40 files" in repr(duplicate)


def test_image_list_refuses_wrong_arguments(files):
    with pytest.raises(TypeError, match="single path"):
        ImageList(str(files[0]))
    with pytest.raises(ValueError, match="40 paths, but 39 targets"):
        ImageList(files, [0] * 39)


def test_image_list_subclass_that_overrides_getitem_needs_feedmill_item(files):
    class Mine(ImageList):
        def __getitem__(self, index):
            image, target = super().__getitem__(index)
            return image * 2, target

    loader = feedmill.DataLoader(Mine(files, transform=FIXED))
    assert "overrides __getitem__" in loader.explain()


# ---- imread --------------------------------------------------------------------------------------


@pytest.mark.parametrize("orientation", [None, *range(10)])
@pytest.mark.parametrize("options", [{}, {"mode": "L"}, {"progressive": True}, {"subsampling": 0}])
def test_imread_applies_the_orientation_and_returns_bgr(tmp_path, orientation, options):
    path = helpers.save_jpeg(tmp_path / "a.jpg", 37, 22, orientation=orientation, **options)
    with Image.open(path) as image:
        rgb = np.array(image.convert("RGB"))
        upright = np.array(ImageOps.exif_transpose(image).convert("RGB"))
    bgr = imread(path)
    assert bgr.dtype == np.uint8 and bgr.flags.c_contiguous and bgr.flags.writeable
    assert np.array_equal(bgr, upright[:, :, ::-1])
    assert np.array_equal(imread(str(path), "rgb"), rgb)
    assert np.array_equal(imread(path.read_bytes()), bgr)
    bgr[:] = 0


@pytest.mark.parametrize("mode, name", [("RGB", "png"), ("RGBA", "png"), ("L", "bmp"),
                                        ("CMYK", "jpg"), ("P", "gif")])
def test_imread_leaves_other_formats_to_pillow(tmp_path, mode, name):
    path = tmp_path / f"a.{name}"
    Image.fromarray(helpers.pixels(20, 10)).convert(mode).save(path)
    with Image.open(path) as image:
        wanted = np.array(image.convert("RGB"))
    assert np.array_equal(imread(path, "rgb"), wanted)
    assert np.array_equal(imread(path), wanted[:, :, ::-1])


def test_imread_raises_pillows_errors(tmp_path, files):
    with pytest.raises(FileNotFoundError, match="nowhere.jpg"):
        imread(tmp_path / "nowhere.jpg")
    (tmp_path / "text.jpg").write_text("no image")
    with pytest.raises(OSError, match="cannot identify"):
        imread(tmp_path / "text.jpg")
    (tmp_path / "cut.jpg").write_bytes(files[0].read_bytes()[:-200])
    with pytest.raises(OSError, match="truncated"):
        imread(tmp_path / "cut.jpg")
    with pytest.raises(ValueError, match="mode is 'grey'; it must be one of 'bgr', 'rgb'"):
        imread(files[0], "grey")


def test_imread_in_several_threads(files):
    wanted = [imread(path) for path in files]
    wrong = []

    def read_all():
        wrong.extend(path for path, image in zip(files, wanted)
                     if not np.array_equal(imread(path), image))

    threads = [threading.Thread(target=read_all) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_feedmill_imread_is_feedmill_data_imread():
    assert feedmill.imread is imread


# ---- .npy files ----------------------------------------------------------------------------------

ARRAYS = {
    "float32": np.arange(24, dtype=np.float32).reshape(2, 3, 4),
    "float64_fortran": np.asfortranarray(np.arange(12.0).reshape(3, 4)),
    "uint8": np.arange(200, dtype=np.uint8),
    "int16_big_endian": np.arange(5, dtype=">i2"),
    "complex": np.array([[1 + 2j]]),
    "bool": np.array([True, False]),
    "scalar": np.float32(3),
    "empty": np.empty((0, 4), np.float32),
}


@pytest.mark.parametrize("direct", [False, True])
@pytest.mark.parametrize("name", ARRAYS)
def test_read_npy_equals_numpy(tmp_path, name, direct):
    path = tmp_path / "a.npy"
    np.save(path, ARRAYS[name])
    wanted = np.load(path, allow_pickle=False)
    got = read_npy(path, direct=direct)
    assert got.dtype == wanted.dtype and got.shape == wanted.shape
    assert np.array_equal(got, wanted) and got.flags.writeable
    assert got.flags.f_contiguous == wanted.flags.f_contiguous


def test_read_npy_of_some_megabytes(tmp_path):
    array = np.random.default_rng(0).normal(size=(3, 700, 601)).astype(np.float32)
    np.save(tmp_path / "a.npy", array)
    for direct in (False, True):
        assert np.array_equal(read_npy(tmp_path / "a.npy", direct=direct), array)


def npy_bytes(header, data=b"", version=1):
    return b"\x93NUMPY" + bytes([version, 0]) + len(header).to_bytes(2, "little") + header + data


GOOD = b"{'descr': '<f4', 'fortran_order': False, 'shape': (2,), }"


@pytest.mark.parametrize("data, why", [
    (b"", "empty"),
    (b"no array at all", "not a .npy file"),
    (npy_bytes(GOOD, b"1234567"), "7 bytes of values"),
    (npy_bytes(GOOD, b"123456789"), "9 bytes of values"),
    (npy_bytes(GOOD, b"12345678", version=9), "version 9.0"),
    (npy_bytes(GOOD, b"12345678")[:40], "reading array header, expected"),
    (npy_bytes(GOOD.replace(b"'<f4'", b"'|O'"), b"12345678"), "only arrays of numbers"),
    (npy_bytes(GOOD.replace(b"'<f4'", b"'<U2'"), b"12345678"), "only arrays of numbers"),
    (npy_bytes(GOOD.replace(b"'<f4'", b"[('a', '<f4')]"), b"12345678"), "only arrays of numbers"),
    (npy_bytes(GOOD.replace(b"(2,)", b"(-2,)"), b"12345678"), "its shape is"),
    (npy_bytes(GOOD.replace(b"(2,)", b"2"), b"12345678"), "shape is not valid"),
    (npy_bytes(GOOD.replace(b"(2,)", b"(10**9,)"), b"12345678"), "damaged .npy header"),
    (npy_bytes(GOOD.replace(b"False", b"0"), b"12345678"), "fortran_order is not a valid bool"),
    (npy_bytes(GOOD.replace(b"'shape'", b"'form'"), b"12345678"), "the correct keys"),
    (npy_bytes(b"__import__('os')", b"12345678"), "damaged .npy header"),
    (npy_bytes(b"(" * 5000), "damaged .npy header"),
])
def test_npy_headers_are_read_strictly(tmp_path, data, why):
    path = tmp_path / "a.npy"
    path.write_bytes(data)
    with pytest.raises(NpyError, match=f"a.npy: .*{why}"):
        read_npy(path)
    assert parse_header(npy_bytes(GOOD), "x").shape == (2,)


def test_npy_headers_are_parsed_again_where_threads_confuse_the_parser(monkeypatch):
    """As in CPython's issue 106905."""
    read, n_calls = np.lib.format.read_array_header_1_0, []

    def confused(stream):
        n_calls.append(stream.tell())
        result = read(stream)
        if len(n_calls) < 4:
            raise SystemError("AST constructor recursion depth mismatch (before=45, after=41)")
        return result

    monkeypatch.setattr(np.lib.format, "read_array_header_1_0", confused)
    assert parse_header(npy_bytes(GOOD), "x").shape == (2,)
    assert len(n_calls) == 4 and len(set(n_calls)) == 1
    monkeypatch.setattr(np.lib.format, "read_array_header_1_0", lambda stream: 1 / 0)
    with pytest.raises(NpyError, match="damaged"):
        parse_header(npy_bytes(GOOD), "x")


def save_slices(root, n=6):
    random = np.random.default_rng(1)
    slices = [random.normal(size=(4, 5)).astype(np.float32) for _ in range(n)]
    for i, one in enumerate(slices):
        path = root / f"case{i % 2}" / f"{i}.npy"
        path.parent.mkdir(exist_ok=True)
        np.save(path, one)
    return [slices[i] for i in (0, 2, 4, 1, 3, 5)]


@pytest.mark.parametrize("loader", [TorchDataLoader, feedmill.DataLoader])
@pytest.mark.parametrize("workers", [0, 2])
def test_npy_folder(tmp_path, loader, workers):
    slices = save_slices(tmp_path)
    dataset = NpyFolder(tmp_path, transform=torch.from_numpy)
    batches = list(loader(dataset, batch_size=3, num_workers=workers))
    assert torch.equal(torch.cat([images for images, _ in batches]), torch.tensor(np.array(slices)))
    assert torch.cat([targets for _, targets in batches]).tolist() == list(range(6))


def test_npy_folder_of_paths_and_targets(tmp_path):
    slices = save_slices(tmp_path)
    paths = sorted(tmp_path.rglob("*.npy"))
    dataset = pickle.loads(pickle.dumps(NpyFolder(paths, [5, 4, 3, 2, 1, 0], direct=True)))
    array, target = dataset[-1]
    assert np.array_equal(array, slices[5]) and target == 0
    with pytest.raises(ValueError, match="6 files, but 2 targets"):
        NpyFolder(paths, [1, 2])
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match="no .npy file in"):
        NpyFolder(tmp_path / "empty")
    with pytest.raises(FileNotFoundError):
        NpyFolder(tmp_path / "nowhere")


@pytest.mark.parametrize("loader", [TorchDataLoader, feedmill.DataLoader])
@pytest.mark.parametrize("workers", [0, 2])
def test_npy_file(tmp_path, loader, workers):
    array = np.random.default_rng(2).normal(size=(10, 3, 4))
    np.save(tmp_path / "a.npy", array)
    dataset = NpyFile(tmp_path / "a.npy", np.arange(10) * 2)
    batches = list(loader(dataset, batch_size=4, num_workers=workers))
    assert torch.equal(torch.cat([rows for rows, _ in batches]), torch.from_numpy(array))
    assert torch.cat([targets for _, targets in batches]).tolist() == list(range(0, 20, 2))
    row, _ = dataset[3]
    row[:] = 0
    assert np.array_equal(dataset[3][0], array[3])


def test_npy_file_is_pickled_as_its_path(tmp_path):
    np.save(tmp_path / "a.npy", np.zeros((1000, 100)))
    dataset = NpyFile(tmp_path / "a.npy")
    sent = pickle.dumps(dataset)
    assert len(sent) < 1000
    assert np.array_equal(pickle.loads(sent)[999][0], np.zeros(100))
    assert dataset[-1][1] == 999


@pytest.mark.parametrize("array, why", [
    (np.asfortranarray(np.ones((3, 4))), "no contiguous rows"),
    (np.float32(1), "no contiguous rows"),
])
def test_npy_file_refuses_unsupported_arrays(tmp_path, array, why):
    np.save(tmp_path / "a.npy", array)
    with pytest.raises(ValueError, match=why):
        NpyFile(tmp_path / "a.npy")


def test_npy_file_refuses_damaged_files(tmp_path):
    np.save(tmp_path / "a.npy", np.ones((3, 4)))
    with open(tmp_path / "a.npy", "ab") as file:
        file.write(b"x")
    with pytest.raises(NpyError, match="225 bytes"):
        NpyFile(tmp_path / "a.npy")
    np.save(tmp_path / "b.npy", np.ones((3, 4)))
    with pytest.raises(ValueError, match="3 rows, but there are 2 targets"):
        NpyFile(tmp_path / "b.npy", [1, 2])


# ---- tokens --------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["uint16", np.uint32])
@pytest.mark.parametrize("stride", [1, 3, 8])
@pytest.mark.parametrize("n", [9, 16, 17, 50])
def test_tokens(tmp_path, dtype, stride, n):
    tokens = np.random.default_rng(n).integers(0, 65536, n).astype(dtype)
    tokens.tofile(tmp_path / "t.bin")
    dataset = Tokens(tmp_path / "t.bin", dtype, block=8, stride=stride)
    starts = [i for i in range(0, n, stride) if i + 8 + 1 <= n]
    assert len(dataset) == len(starts)
    for i, start in enumerate(starts):
        x, y = dataset[i]
        assert x.dtype == y.dtype == torch.int64
        assert x.tolist() == tokens[start : start + 8].tolist()
        assert y.tolist() == tokens[start + 1 : start + 9].tolist()
    assert torch.equal(dataset[-1][0], dataset[len(starts) - 1][0])
    for index in (len(starts), -len(starts) - 1):
        with pytest.raises(IndexError):
            dataset[index]


@pytest.mark.parametrize("loader", [TorchDataLoader, feedmill.DataLoader])
@pytest.mark.parametrize("workers", [0, 2])
def test_tokens_in_loaders(tmp_path, loader, workers):
    np.arange(100, dtype=np.uint16).tofile(tmp_path / "t.bin")
    dataset = pickle.loads(pickle.dumps(Tokens(tmp_path / "t.bin", block=10, stride=10)))
    x, y = next(iter(loader(dataset, batch_size=9, num_workers=workers)))
    assert torch.equal(x, torch.arange(90).reshape(9, 10)) and torch.equal(y, x + 1)


def test_tokens_refuses_wrong_arguments(tmp_path):
    np.arange(10, dtype=np.uint16).tofile(tmp_path / "t.bin")
    for options, why in (({"dtype": "int16"}, "dtype is 'int16'"), ({"block": 0}, "block is 0"),
                         ({"block": 10}, "has 10 tokens; .* needs at least 11"),
                         ({"stride": 1.5}, "stride is 1.5")):
        with pytest.raises(ValueError, match=why):
            Tokens(tmp_path / "t.bin", **options)
    (tmp_path / "t.bin").write_bytes(b"123")
    with pytest.raises(ValueError, match="not a whole number of uint16"):
        Tokens(tmp_path / "t.bin")


# ---- .npy files on the native path ---------------------------------------------------------------


def same_natively(dataset, **options):
    """Compares one native epoch with one of torch's DataLoader, bit for bit."""
    torch.manual_seed(1)
    theirs = list(TorchDataLoader(dataset, **options))
    torch.manual_seed(1)
    loader = native_loader(dataset, **options)
    mine = list(loader)
    assert len(mine) == len(theirs) > 0 and loader.stats().path == "native"
    for ours, other in zip(mine, theirs):
        assert type(ours) is type(other) and len(ours) == len(other) == 2
        for one, wanted in zip(ours, other):
            assert one.dtype is wanted.dtype and one.stride() == wanted.stride()
            assert torch.equal(one, wanted)


@pytest.mark.parametrize("dtype", ["u1", "i2", "i4", "i8", "f2", "f4", "f8", "c8", "?"])
@pytest.mark.parametrize("shape", [(23,), (23, 1), (23, 3, 4), (1, 5), (23, 1, 2, 1)])
def test_npy_file_natively(tmp_path, dtype, shape):
    array = np.random.default_rng(0).integers(0, 2, shape).astype(dtype)
    np.save(tmp_path / "a.npy", array)
    same_natively(NpyFile(tmp_path / "a.npy"), batch_size=4, shuffle=True)


@pytest.mark.parametrize("kind", ["list", "array", "tensor"])
def test_npy_file_natively_with_targets(tmp_path, kind):
    np.save(tmp_path / "a.npy", np.random.default_rng(0).normal(size=(23, 5)))
    targets = np.arange(23) * 3 - 7
    targets = {"list": targets.tolist(), "tensor": torch.from_numpy(targets)}.get(kind, targets)
    dataset = NpyFile(tmp_path / "a.npy", targets, torch.from_numpy)
    same_natively(dataset, batch_size=4, shuffle=True, num_workers=2)
    same_natively(Subset(dataset, [5, -1, 5, 0]), batch_size=3)
    loader = feedmill.DataLoader(dataset, batch_size=4, native="verify")
    assert len(list(loader)) == 6 and loader.stats().decode.verified_samples == 23
    assert "NpyFile" in loader.explain()


@pytest.mark.parametrize("change, why", [
    ({"transform": np.sum}, "has a transform"), ({"targets": [1.5] * 4}, "targets must be 64-bit"),
    ({"targets": np.zeros(4, np.int32)}, "targets must be 64-bit"), ({}, "holds >f4"),
])
def test_npy_file_takes_torchs_path(tmp_path, change, why):
    np.save(tmp_path / "a.npy", np.ones((4, 2), "f4" if change else ">f4"))
    assert why in feedmill.DataLoader(NpyFile(tmp_path / "a.npy", **change)).explain()


def test_npy_file_epochs_share_a_native_loader(tmp_path):
    np.save(tmp_path / "a.npy", np.ones((8, 2)))
    loader = native_loader(NpyFile(tmp_path / "a.npy"), batch_size=2)
    for _ in range(3):
        list(loader)
    assert loader.stats().epochs == 3


@pytest.mark.parametrize("mode, name, feature", [
    ("RGB", "png", "PNG"), ("RGBA", "png", "PNG"), ("P", "png", "PNG"), ("RGB", "webp", "WebP"),
])
def test_imread_and_the_loader_decode_the_same_formats(tmp_path, mode, name, feature):
    path = tmp_path / f"a.{name}"
    Image.fromarray(helpers.pixels(20, 10)).convert(mode).save(path)
    taken = native.imread(path, False, 1000)
    assert (type(taken) is tuple) == (feature in native.formats())
    assert type(native.imread(path, True, 1000)) is str  # native BGR is for JPEGs only
    with Image.open(path) as image:
        assert np.array_equal(imread(path, "rgb"), np.array(image.convert("RGB")))
