"""Datasets that are read natively: image folders, Subset and ConcatDataset, and custom datasets."""

import os
from pathlib import Path

import feedmill
import helpers
import numpy as np
import pytest
import torch
from helpers import MEAN, STD, compose, native_loader
from PIL import Image
from torch.utils.data import ConcatDataset, Dataset, Subset, random_split
from torchvision import transforms as T
from torchvision.datasets import DatasetFolder, ImageFolder, VisionDataset
from torchvision.datasets.folder import default_loader
from torchvision.transforms import v2

FIXED = compose(T.Resize((8, 9)), T.ToTensor(), T.Normalize(MEAN, STD))
RANDOM = compose(T.RandomResizedCrop(8), T.RandomHorizontalFlip(), T.PILToTensor())


def same_as_torch(dataset, **options):
    """Compares the native batches of one epoch with those of torch's DataLoader."""
    options = {"batch_size": 7, **options}
    loader = native_loader(dataset, **options)
    torch.manual_seed(1)
    mine = list(loader)
    torch.manual_seed(1)
    theirs = list(torch.utils.data.DataLoader(dataset, **options))
    assert len(mine) == len(theirs) > 0
    for ours, other in zip(mine, theirs):
        helpers.assert_same_image(ours[0], other[0], "images")
        assert_same_targets(ours[1], other[1])
    assert loader.stats().path == "native"
    return loader


def assert_same_targets(ours, other):
    assert type(ours) is type(other)
    if isinstance(ours, dict):
        assert list(ours) == list(other)
        for name in ours:
            assert_same_targets(ours[name], other[name])
    elif isinstance(ours, torch.Tensor):
        assert ours.dtype == other.dtype and torch.equal(ours, other)
    else:
        assert ours == other


# ---- torch's and torchvision's -------------------------------------------------------------------


@pytest.fixture
def images(small_images):
    return ImageFolder(str(small_images), FIXED)


def test_dataset_folder(small_images):
    same_as_torch(DatasetFolder(str(small_images), default_loader, (".jpg",), FIXED), shuffle=True)


@pytest.mark.parametrize(
    "indices",
    [range(3, 30, 2), [5, -1, 5, 0], (1, 2), np.arange(9)[::-1], torch.tensor([4, 3, 39])],
    ids=["range", "list", "tuple", "numpy", "tensor"],
)
@pytest.mark.parametrize("num_workers", [0, 1])
def test_subset(images, indices, num_workers):
    same_as_torch(Subset(images, indices), shuffle=True, num_workers=num_workers)


def test_nested_subsets(images):
    same_as_torch(Subset(Subset(Subset(images, range(5, 40)), [30, 2, -1, 2]), [3, 0, 1, -4]))


def test_random_split(images):
    generator = torch.Generator().manual_seed(3)
    for part in random_split(images, [0.7, 0.3], generator):
        same_as_torch(part, shuffle=True)


def test_concat_dataset(images, small_images):
    other = ImageFolder(str(small_images), compose(T.Resize((8, 9)), compose(*FIXED.transforms[1:])))
    both = ConcatDataset([images, Subset(other, [9, 8]), ConcatDataset([other])])
    same_as_torch(both, shuffle=True)
    same_as_torch(Subset(both, [0, -1, 41, 40, 39]))
    same_as_torch(both, sampler=[-1, -82, 41])


@pytest.mark.parametrize("kind", [int, np.int64, np.uint8, torch.tensor, np.array])
def test_indices_of_several_types(images, kind):
    batches = [[kind(3), kind(0)], [kind(39)]]
    same_as_torch(images, batch_sampler=batches, batch_size=1)
    same_as_torch(Subset(images, list(range(40))), batch_sampler=batches, batch_size=1)


@pytest.mark.parametrize("num_workers", [0, 1])
@pytest.mark.parametrize(
    "make",
    [
        lambda images: (Subset(images, [0, 1, 99]), [[0, 2, 1], [0, 1]]),
        lambda images: (Subset(images, [0, 1]), [[0, 2], [1], [-3]]),
        lambda images: (Subset(Subset(images, [0, 99]), [0, 1]), [[1, 5], [5, 1], [0]]),
        lambda images: (ConcatDataset([images, images]), [[0, 80], [-81], [79]]),
        lambda images: (images, [["a"], [[1]], [None], [1.0], [0]]),
        lambda images: (Subset(images, [0]), [5, [[0]], [0]]),
    ],
    ids=["inner", "outer", "nested", "concat", "types", "lists"],
)
def test_bad_indices(images, make, num_workers):
    """The exception's type and text equal torch's, and the iterator continues as torch's does."""
    dataset, batches = make(images)
    options = {"batch_sampler": batches, "num_workers": num_workers}
    transcripts = []
    for loader in (native_loader(dataset, **options),
                   torch.utils.data.DataLoader(dataset, **options)):
        iterator = iter(loader)
        transcripts.append([helpers.take(iterator) for _ in range(len(batches) + 1)])
    assert transcripts[0] == transcripts[1]
    if num_workers == 0:
        assert transcripts[0][-1] == "end"


def test_changed_samples_and_transform_are_seen_by_the_next_epoch(images):
    subset = Subset(images, [0, 1])
    loader = native_loader(subset, batch_size=4)
    list(loader)
    subset.indices = [7, 6, 5]
    images.samples = images.samples[::-1]
    images.transform = compose(T.Resize((4, 4)), T.ToTensor())
    (got, _), = loader
    (wanted, _), = torch.utils.data.DataLoader(subset, batch_size=4)
    assert torch.equal(got, wanted)


def test_random_draws_follow_the_loaders_index(small_images):
    """A file that has several indices in a Subset gets different draws for each of them."""
    images = ImageFolder(str(small_images), RANDOM)
    subset = Subset(images, [6, 6, 6, 6])
    (batch, _), = native_loader(subset, batch_size=4, seed=3)
    assert len({image.numpy().tobytes() for image in batch}) > 1
    loader = native_loader(subset, batch_size=4, seed=3)
    for index in range(4):
        assert torch.equal(loader.fetch(index, 0)[0], batch[index])
        wanted = made_by_torchvision(loader, images, 6, index)
        helpers.assert_same_image(batch[index], wanted, index)


def made_by_torchvision(loader, images, file_index, index):
    """The file of `images[file_index]`, transformed by torchvision with the draws of `index`."""
    box, flip = (values for _, values in loader.draws(index, 0))
    image = images.loader(images.samples[file_index][0])
    image = T.functional.resized_crop(
        image, box["top"], box["left"], box["height"], box["width"], [8, 8]
    )
    return T.functional.pil_to_tensor(T.functional.hflip(image) if flip["flip"] else image)


# ---- custom datasets -----------------------------------------------------------------------------


class Files(Dataset):
    """A custom dataset of paths and labels with feedmill_item()."""

    def __init__(self, root, transform, as_bytes=False):
        self.paths = sorted(Path(root).glob("*/*.*"))
        self.transform = transform
        self.as_bytes = as_bytes

    def __len__(self):
        return len(self.paths)

    def __getitem__(self, index):
        image = Image.open(self.paths[index]).convert("RGB")
        return self.transform(image), self.label(index)

    def label(self, index):
        return {"name": self.paths[index].name, "number": float(index)}

    def feedmill_item(self, index):
        path = self.paths[index]
        return path.read_bytes() if self.as_bytes else path, self.label(index)


@pytest.mark.parametrize("as_bytes", [False, True])
@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_custom_dataset_with_feedmill_item(small_images, as_bytes, num_workers):
    dataset = Files(small_images, FIXED, as_bytes)
    same_as_torch(dataset, num_workers=num_workers, shuffle=True)
    same_as_torch(dataset, num_workers=num_workers, batch_size=None)
    same_as_torch(Subset(dataset, [3, 2, 1, -1]), num_workers=num_workers)
    dataset.transform = v2.Compose([*RANDOM.transforms])
    loader = feedmill.DataLoader(dataset, native="verify", batch_size=9, shuffle=True)
    list(loader)
    assert loader.stats().decode.verified_samples == 40


@pytest.mark.parametrize("as_bytes", [False, True])
def test_feedmill_item_with_files_of_all_kinds(tmp_path, as_bytes):
    """BMP, JPEG without Huffman tables, progressive, truncated: all have Pillow's pixels."""
    for i in range(6):
        helpers.save_jpeg(tmp_path / "a" / f"{i}.jpg", 30 + i, 40, seed=i)
    Image.fromarray(helpers.pixels(20, 30)).save(tmp_path / "a" / "x.jpg", "BMP")
    helpers.save_bare_jpeg(tmp_path / "a" / "y.jpg", 33, 44)
    helpers.save_jpeg(tmp_path / "a" / "z.jpg", 33, 44, progressive=True)
    dataset = Files(tmp_path, FIXED, as_bytes)
    loader = same_as_torch(dataset)
    assert loader.stats().decode.fallback_samples == 2
    (tmp_path / "a" / "2.jpg").write_bytes((tmp_path / "a" / "2.jpg").read_bytes()[:400])
    (tmp_path / "a" / "3.jpg").write_bytes(b"")
    iterator = iter(native_loader(dataset))
    seen = [outcome_of(iterator) for _ in range(9)]
    assert [one[0] for one in seen if isinstance(one, tuple)] == [
        OSError, Image.UnidentifiedImageError
    ]
    place = "bytes in memory" if as_bytes else "file PosixPath"
    assert "dataset index 2" in seen[2][1] and place in seen[2][1]


def outcome_of(iterator):
    try:
        return next(iterator)[1]
    except Exception as error:
        return type(error), str(error)


def test_feedmill_item_gets_the_samplers_indices(small_images):
    asked = []

    class Noting(Files):
        def feedmill_item(self, index):
            asked.append(index)
            return super().feedmill_item(index)

    loader = native_loader(Noting(small_images, FIXED), batch_sampler=[[3, -1], [np.int64(2)]])
    list(loader)
    assert asked == [3, -1, 2] and type(asked[2]) is np.int64


class Vision(VisionDataset):
    """A VisionDataset: with transform and target_transform, or with transforms."""

    def __init__(self, root, **options):
        super().__init__(root, **options)
        self.paths = sorted(str(path) for path in Path(root).glob("*/*.jpg"))

    def __len__(self):
        return len(self.paths)

    def __getitem__(self, index):
        path, target = self.feedmill_item(index)
        image = Image.open(path).convert("RGB")
        return self.transforms(image, target)

    def feedmill_item(self, index):
        return self.paths[index], index


def test_transform_and_transforms(small_images):
    same_as_torch(Vision(small_images, transform=FIXED))
    same_as_torch(Vision(small_images, transforms=v2.Compose([v2.Resize((8, 8)), v2.ToImage()])))
    dataset = Vision(small_images, transform=FIXED)
    loader = feedmill.DataLoader(dataset, native="verify", batch_size=8)
    assert sum(len(images) for images, _ in loader) == 40
    dataset.transform = RANDOM  # `transforms` still contains the former transform
    assert "does more than its attribute transform" in loader_of(dataset).explain()
    dataset.transforms = lambda image, target: (image, target)
    assert "both transform and transforms" in loader_of(dataset).explain()


def loader_of(dataset):
    return feedmill.DataLoader(dataset, batch_size=4)


class Outer(Dataset):
    """Forwards attribute access to another dataset, but returns other samples."""

    def __init__(self, inner):
        self.inner = inner

    def __getattr__(self, name):
        if name == "inner":
            raise AttributeError(name)
        return getattr(self.inner, name)

    def __len__(self):
        return len(self.inner)

    def __getitem__(self, index):
        image, target = self.inner[index]
        return -image, target


class OtherItems(Files):
    def __getitem__(self, index):
        return 0 * super().__getitem__(index)[0], 0


class Batched(Files):
    def __getitems__(self, indices):
        return [self[index] for index in reversed(indices)]


class Folder(ImageFolder):
    def feedmill_item(self, index):
        return self.samples[index]


def test_feedmill_item_in_wrappers_and_subclasses(small_images):
    root = str(small_images)
    assert "no subclasses" in loader_of(Outer(Files(root, FIXED))).explain()
    assert "overrides __getitem__" in loader_of(OtherItems(root, FIXED)).explain()
    assert "has __getitems__" in loader_of(Batched(root, FIXED)).explain()
    same_as_torch(Folder(root, FIXED))
    assert "target_transform" in loader_of(Folder(root, FIXED, lambda target: 7)).explain()
    dataset = Folder(root, FIXED, loader=lambda path: default_loader(path))
    assert "loader is not torchvision's" in loader_of(dataset).explain()


@pytest.mark.parametrize("num_workers", [0, 1])
def test_an_empty_dataset(images, num_workers):
    """An empty part of a random_split() gives no batch, as with torch."""
    for empty in (Subset(images, []), random_split(images, [40, 0])[1],
                  ConcatDataset([Subset(images, [])])):
        assert list(feedmill.DataLoader(empty, batch_size=2, num_workers=num_workers)) == []
        assert "is empty" in loader_of(empty).explain()


def test_fetch_uses_the_samples_of_its_epoch(images):
    loader = native_loader(images, batch_size=40)
    (first, _), = loader
    images.samples = images.samples[::-1]
    (second, _), = loader
    for number, batch in enumerate((first, second)):
        assert torch.equal(loader.fetch(3, number)[0], batch[3])


@pytest.mark.parametrize("kind", [bytearray, memoryview, lambda data: np.frombuffer(data, np.uint8)])
def test_feedmill_item_with_other_buffer_types(small_images, kind):
    class Kind(Files):
        def feedmill_item(self, index):
            path, label = super().feedmill_item(index)
            return kind(path.read_bytes()), label

        __getitem__ = Files.__getitem__

    same_as_torch(Kind(small_images, FIXED))


class Unsized(Files):
    __len__ = None


class Wrong(Files):
    def feedmill_item(self, index):
        return self.paths[(index + (index == 5)) % len(self)], self.label(index)


def test_reasons_for_not_using_feedmill_item(small_images, tmp_path):
    assert "no length" in feedmill.DataLoader(
        Unsized(small_images, FIXED), sampler=[1]
    ).explain()
    assert "no transform" in feedmill.DataLoader(Files(small_images, None)).explain()
    assert "Lambda" in feedmill.DataLoader(Files(small_images, T.Lambda(abs))).explain()
    os.mkdir(tmp_path / "empty")
    assert "is empty" in feedmill.DataLoader(Files(tmp_path, FIXED)).explain()


@pytest.mark.parametrize(
    ("item", "kind", "words"),
    [
        ((5, 0), RuntimeError, "must be str"),
        (("", 0), RuntimeError, "the path is empty"),
        (("x", 0, 0), TypeError, "feedmill_item returned a tuple .* must return a pair"),
        (("nowhere.jpg", 0), FileNotFoundError, "dataset index 0"),
        (KeyError("no such thing"), KeyError, "no such thing"),
        (StopIteration(), StopIteration, None),
    ],
)
def test_wrong_results_of_feedmill_item(small_images, item, kind, words):
    class Bad(Files):
        def feedmill_item(self, index):
            if index:
                return super().feedmill_item(index)
            if isinstance(item, Exception):
                raise item
            return item

    iterator = iter(native_loader(Bad(small_images, FIXED)))
    with pytest.raises(kind, match=words):
        next(iterator)
    assert next(iterator)[1]["number"].item() == 1.0
