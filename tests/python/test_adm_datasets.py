"""ADM's ImageDataset, as in guided-diffusion: its batches natively, and what is left to torch."""

import builtins
import random
import sys
from types import ModuleType

import feedmill
import numpy as np
import pytest
import torch
from helpers import equal_batches, module_of, outcomes_of, save_jpeg
from PIL import Image
from torch.utils.data import Dataset, IterableDataset, Subset, default_collate

SOURCE = '''
import random

from PIL import Image
import numpy as np
from torch.utils.data import Dataset


class ImageDataset(Dataset):
    def __init__(
        self, resolution, image_paths, classes=None, shard=0, num_shards=1, random_crop=False,
        random_flip=True,
    ):
        super().__init__()
        self.resolution = resolution
        self.local_images = image_paths[shard:][::num_shards]
        self.local_classes = None if classes is None else classes[shard:][::num_shards]
        self.random_crop = random_crop
        self.random_flip = random_flip

    def __len__(self):
        return len(self.local_images)

    def __getitem__(self, idx):
        path = self.local_images[idx]
        with open(path, "rb") as f:
            pil_image = Image.open(f)
            pil_image.load()
        pil_image = pil_image.convert("RGB")

        if self.random_crop:
            arr = random_crop_arr(pil_image, self.resolution)
        else:
            arr = center_crop_arr(pil_image, self.resolution)

        if self.random_flip and random.random() < 0.5:
            arr = arr[:, ::-1]

        arr = arr.astype(np.float32) / 127.5 - 1

        out_dict = {}
        if self.local_classes is not None:
            out_dict["y"] = np.array(self.local_classes[idx], dtype=np.int64)
        return np.transpose(arr, [2, 0, 1]), out_dict


def center_crop_arr(pil_image, image_size):
    # We are not on a new enough PIL to support the `reducing_gap`
    # argument, which uses BOX downsampling at powers of two first.
    while min(*pil_image.size) >= 2 * image_size:
        pil_image = pil_image.resize(
            tuple(x // 2 for x in pil_image.size), resample=Image.BOX
        )

    scale = image_size / min(*pil_image.size)
    pil_image = pil_image.resize(
        tuple(round(x * scale) for x in pil_image.size), resample=Image.BICUBIC
    )

    arr = np.array(pil_image)
    crop_y = (arr.shape[0] - image_size) // 2
    crop_x = (arr.shape[1] - image_size) // 2
    return arr[crop_y : crop_y + image_size, crop_x : crop_x + image_size]


def random_crop_arr(pil_image, image_size, min_crop_frac=0.8, max_crop_frac=1.0):
    return np.array(pil_image)[:image_size, :image_size]
'''
SIZE = 16
TORCHS = "torch's own path"
ADM = module_of(SOURCE)


@pytest.fixture(scope="module")
def paths(tmp_path_factory):
    root = tmp_path_factory.mktemp("adm")
    made = []
    for number in range(13):
        made.append(str(root / f"{number}.jpg"))
        save_jpeg(made[-1], 9 + 5 * number, 70 - 4 * number, seed=number)
    save_jpeg(root / "grey.jpg", 40, 50, mode="L")
    save_jpeg(root / "cmyk.jpg", 40, 50, mode="CMYK")
    save_jpeg(root / "turned.jpg", 40, 50, orientation=6)
    noise = np.random.default_rng(3).integers(0, 256, (33, 47, 4), np.uint8)
    Image.fromarray(noise).save(root / "alpha.png")
    Image.fromarray(noise[..., :3]).quantize(16).save(root / "palette.png")
    Image.fromarray(noise[..., :3]).save(root / "other.bmp")  # which Pillow decodes
    names = ("grey.jpg", "cmyk.jpg", "turned.jpg", "alpha.png", "palette.png", "other.bmp")
    return [*made, *(str(root / name) for name in names)]


def epochs_of(make, dataset, **options):
    torch.manual_seed(5)
    random.seed(6)
    loader = make(dataset, batch_size=4, shuffle=True, **options)
    return loader, [list(loader), list(loader), torch.rand(1), random.random()]


def compare(dataset, **options):
    for n_workers in (0, 2):
        _, wanted = epochs_of(torch.utils.data.DataLoader, dataset, num_workers=n_workers)
        for more in ({}, {"native": "verify"}):
            loader, found = epochs_of(
                feedmill.DataLoader, dataset, num_workers=n_workers, **more, **options
            )
            assert loader.stats().path == "native", loader.explain()
            assert equal_batches(found, wanted)
            for (one, _), (other, _) in zip(found[0], wanted[0]):
                assert one.stride() == other.stride()


def explained(dataset, **options):
    options = {"batch_size": 4, **options}
    return feedmill.DataLoader(dataset, **options).explain()


@pytest.mark.parametrize("flips", [False, True])
@pytest.mark.parametrize("of_classes", [None, list, np.array])
def test_batches_equal_torchs(paths, flips, of_classes):
    classes = None if of_classes is None else of_classes([number % 7 for number in range(len(paths))])
    compare(ADM.ImageDataset(SIZE, paths, classes, random_flip=flips))


@pytest.mark.parametrize("size", [1, 5, 40])
def test_other_sizes(paths, size):
    compare(ADM.ImageDataset(size, paths, shard=1, num_shards=2))


def test_an_index_out_of_range(paths):
    for n_workers in (0, 2):
        ours, theirs = (
            outcomes_of(make, Subset(ADM.ImageDataset(SIZE, paths), [1, 99]), n_workers)
            for make in (feedmill.DataLoader, torch.utils.data.DataLoader)
        )
        assert ours == theirs


def test_a_subset_and_a_subclass(paths):
    class Named(ADM.ImageDataset):
        name = "photographs"

    compare(Subset(Named(SIZE, paths), [3, 1, 17, 4, 4]))


def test_with_a_seed_of_the_loader(paths):
    dataset = ADM.ImageDataset(SIZE, paths, list(range(len(paths))))
    loader = feedmill.DataLoader(dataset, batch_size=4, seed=3, native="verify")
    batches = list(loader)
    assert loader.stats().path == "native"
    assert torch.cat([one["y"] for _, one in batches]).tolist() == list(range(len(paths)))


@pytest.mark.parametrize("n_workers", [0, 2])
def test_errors_are_the_datasets(paths, tmp_path, n_workers):
    broken = tmp_path / "broken.jpg"
    broken.write_bytes(b"no image")
    cut = tmp_path / "cut.jpg"
    with open(paths[7], "rb") as file:
        cut.write_bytes(file.read()[:400])
    for bad in (broken, cut, tmp_path / "missing.jpg", tmp_path):
        dataset = ADM.ImageDataset(SIZE, [paths[0], str(bad)], [5, 6])
        assert explained(dataset).startswith("native path")
        ours, theirs = (
            outcomes_of(make, dataset, n_workers)
            for make in (feedmill.DataLoader, torch.utils.data.DataLoader)
        )
        assert ours == theirs


# ---- blobfile ------------------------------------------------------------------------------------

CONTEXT = """
class Context:
    def BlobFile(self, path, mode="r"):
        return open(path, mode)
"""
FUNCTIONS = """
from blobfile._context import Context
default_context = Context()
def BlobFile(path, mode="r"):
    return default_context.BlobFile(path=path, mode=mode)
"""


@pytest.fixture
def blobfile(monkeypatch):
    """Stands for the package, whose functions are recognised by their places."""
    modules = {}
    for name, text in (("_context", CONTEXT), ("_ops", FUNCTIONS)):
        modules[name] = ModuleType(f"blobfile.{name}")
        monkeypatch.setitem(sys.modules, f"blobfile.{name}", modules[name])
        exec(text, vars(modules[name]))
    package = ModuleType("blobfile")
    package.BlobFile = modules["_ops"].BlobFile
    monkeypatch.setitem(sys.modules, "blobfile", package)
    return package


def of_blobfile(blobfile):
    module = module_of(SOURCE, 'open(path, "rb")', 'bf.BlobFile(path, "rb")')
    module.bf = blobfile
    return module


def test_files_that_blobfile_opens(blobfile, paths):
    compare(of_blobfile(blobfile).ImageDataset(SIZE, paths))


@pytest.mark.parametrize("path", [
    "gs://bucket/a.jpg", "https://a.example/b.jpg", "//host/a.jpg", " //host/a.jpg", "az:a.jpg",
    "//[/a.jpg"])
def test_other_places_of_blobfiles(blobfile, paths, path):
    dataset = of_blobfile(blobfile).ImageDataset(SIZE, [*paths, path])
    assert "no local file" in explained(dataset)


def test_a_replaced_blobfile(blobfile, paths, monkeypatch):
    module = of_blobfile(blobfile)
    dataset = module.ImageDataset(SIZE, paths)
    functions, kind = sys.modules["blobfile._ops"], sys.modules["blobfile._context"].Context
    replaced = lambda self, path, mode: open(paths[0], "rb")
    for owner, name, value in (
        (module, "bf", ModuleType("blobfile")), (blobfile, "BlobFile", open),
        (kind, "BlobFile", replaced), (functions, "default_context", ModuleType("other")),
        (functions.default_context, "BlobFile", replaced),
        (functions, "default_context", type("Context", (kind,), {})()),
    ):
        with monkeypatch.context() as changed:
            changed.setattr(owner, name, value)
            assert explained(dataset).startswith(TORCHS), name
    assert explained(dataset).startswith("native path")


# ---- left to torch -------------------------------------------------------------------------------


@pytest.mark.parametrize(("old", "new"), [
    ("/ 127.5 - 1", "/ 127.5 - 1.5"), ("/ 127.5 - 1", "/ 255"),
    ("random.random() < 0.5", "random.random() <= 0.5"),
    ("random.random() < 0.5", "0.5 > random.random()"),
    ("random.random() < 0.5", "random.random() < 0.4"),
    ("random.random() < 0.5", "np.random.random() < 0.5"),
    ("arr[:, ::-1]", "arr[::-1]"), ("arr[:, ::-1]", "arr[:, ::-1].copy() + 1"),
    ("dtype=np.int64", "dtype=np.int32"), ("[2, 0, 1]", "[2, 1, 0]"),
    ("astype(np.float32)", "astype(np.float64)"), ('"y"', '"z"'),
    ('.convert("RGB")', '.convert("L").convert("RGB")'),
    ("path = self.local_images[idx]", "path = self.local_images[idx - 1]"),
    ("pil_image.load()", "pil_image.draft('RGB', (8, 8))"),
    ("return np.transpose(arr, [2, 0, 1]), out_dict",
     "self.n = idx\n        return np.transpose(arr, [2, 0, 1]), out_dict"),
    ("arr.shape[0] - image_size) // 2", "arr.shape[0] - image_size) // 3"),
    ("resample=Image.BOX", "resample=Image.NEAREST"), ("round(x * scale)", "int(x * scale)"),
    ("return arr[crop_y : crop_y + image_size, crop_x : crop_x + image_size]",
     "return arr[crop_y : crop_y + image_size, crop_x : crop_x + image_size][::-1]"),
    ("return arr[crop_y : crop_y + image_size, crop_x : crop_x + image_size]",
     "return Image.fromarray(arr[crop_y : crop_y + image_size, crop_x : crop_x + image_size])"),
    ("class ImageDataset(Dataset):",
     "class ImageDataset(Dataset):\n    def __getattr__(self, name):\n        raise AttributeError\n"),
    ("class ImageDataset(Dataset):",
     "class ImageDataset(Dataset):\n    def __getitems__(self, indices):\n        return []\n"),
])  # fmt: skip
def test_look_alikes(paths, old, new):
    assert explained(module_of(SOURCE, old, new).ImageDataset(SIZE, paths)).startswith(TORCHS)


class Text(str):
    pass


class Number(int):
    def __int__(self):
        return 3

    __index__ = __int__


@pytest.mark.parametrize(("name", "value"), [
    ("random_crop", True), ("random_crop", None), ("random_crop", 0), ("random_flip", 1),
    ("random_flip", None), ("resolution", 16.0), ("resolution", 0), ("resolution", True),
    ("resolution", Number(16)), ("local_classes", [Number(4)] * 19),
    ("local_classes", dict.fromkeys(range(19), 1)), ("local_classes", np.array([None] * 19)),
    ("local_classes", [5]), ("local_classes", [*range(18), 2**70]),
    ("local_classes", [*range(18), "5"]), ("local_classes", np.zeros((19, 2), int)),
])  # fmt: skip
def test_other_attributes(paths, name, value):
    dataset = ADM.ImageDataset(SIZE, paths)
    setattr(dataset, name, value)
    assert explained(dataset).startswith(TORCHS)


def test_other_lists_of_paths(paths):
    dataset = ADM.ImageDataset(SIZE, paths)
    for images in (tuple(paths), np.array(paths), [*paths[:-1], Text(paths[-1])], [b"a.jpg"]):
        dataset.local_images = images
        assert explained(dataset).startswith(TORCHS)


def test_properties(paths):
    class Other(ADM.ImageDataset):
        @property
        def random_flip(self):
            return False

        @random_flip.setter
        def random_flip(self, value):
            pass

    class Streamed(ADM.ImageDataset, IterableDataset):
        def __iter__(self):
            return iter(())

    assert explained(Other(SIZE, paths)).startswith(TORCHS)
    assert explained(Streamed(SIZE, paths)).startswith(TORCHS)


def test_replaced_functions(paths, monkeypatch):
    module = module_of(SOURCE)
    dataset = module.ImageDataset(SIZE, paths)
    crop = module.center_crop_arr
    decorated = lambda image, size: crop(image, size) + 1
    decorated.__wrapped__, decorated.__name__ = crop, "center_crop_arr"
    for owner, name, value in (
        (module, "center_crop_arr", lambda image, size: np.zeros((size, size, 3), np.uint8)),
        (module, "center_crop_arr", decorated),
        (module, "random", random.Random(3)), (module, "Image", ModuleType("PIL.Image")),
        (module, "open", lambda path, mode: open(paths[0], mode)), (module, "np", torch),
        (builtins, "open", lambda *arguments, **options: open(paths[0], "rb")),
        (random, "random", lambda: 0.3), (np, "transpose", lambda array, axes: array),
        (np, "float32", np.float64), (np, "int64", np.int32), (np, "array", np.asarray),
        (Image, "open", lambda file: Image.new("RGB", (40, 40))),
        (module.ImageDataset, "__getitem__", lambda self, idx: (np.zeros((3, 4, 4)), {})),
    ):
        with monkeypatch.context() as changed:
            changed.setattr(owner, name, value, raising=False)
            text = explained(dataset)
        assert text.startswith(TORCHS), name
    assert explained(dataset).startswith("native path")


def test_where_the_arrays_are_collated_otherwise(paths, monkeypatch):
    dataset = ADM.ImageDataset(SIZE, paths)
    for options in (
        {"collate_fn": lambda samples: default_collate(samples)}, {"batch_size": None},
        {"dtype": torch.float16}, {"memory_format": torch.channels_last},
    ):
        assert explained(dataset, **options).startswith(TORCHS), options
    handlers = torch.utils.data._utils.collate.default_collate_fn_map
    monkeypatch.setitem(handlers, np.ndarray, lambda batch, **options: len(batch))
    assert explained(dataset).startswith(TORCHS)


class Outer(Dataset):
    def __init__(self, inner):
        self.inner = inner

    def __len__(self):
        return len(self.inner)

    def __getitem__(self, index):
        image, fields = self.inner[index]
        return image, fields, index


def test_within_another_dataset(paths):
    dataset = Outer(ADM.ImageDataset(SIZE, paths))
    loader, found = epochs_of(feedmill.DataLoader, dataset, num_workers=2)
    _, wanted = epochs_of(torch.utils.data.DataLoader, dataset, num_workers=2)
    assert loader.explain().startswith(TORCHS)
    assert equal_batches(found, wanted)


def test_it_says_why(paths):
    assert "random_crop is not False" in explained(ADM.ImageDataset(SIZE, paths, random_crop=True))
