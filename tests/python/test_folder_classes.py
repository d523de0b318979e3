"""Subclasses of torchvision's ImageFolder and DatasetFolder: which are native, and which take
torch's path."""

import feedmill
import pytest
import torch
from helpers import compose, equal_batches, native_loader, slow_but_for
from torchvision import transforms as T
from torchvision.datasets import DatasetFolder, EuroSAT, ImageFolder, ImageNet
from torchvision.datasets.folder import default_loader

HEAD = (T.Resize((8, 8)), T.PILToTensor())
LOG = []


def same_batches(dataset, loader):
    theirs = torch.utils.data.DataLoader(dataset, batch_size=8)
    n_batches = 0
    for mine, other in zip(loader, theirs, strict=True):
        assert type(mine) is type(other) and len(mine) == len(other)
        assert all(torch.equal(one, two) for one, two in zip(mine, other))
        n_batches += 1
    return n_batches


# ---- native --------------------------------------------------------------------------------------


class Plain(ImageFolder):
    pass


class FewerClasses(ImageFolder):
    def __init__(self, root, transform):
        super().__init__(root, transform)
        self.samples = self.samples[3:31]
        self.extra = "text"

    def find_classes(self, directory):
        classes, numbers = super().find_classes(directory)
        return classes[1:], {name: numbers[name] - 1 for name in classes[1:]}

    def __len__(self):
        return len(self.samples) - 1

    def helper(self):
        LOG.append("never called")


class Own(DatasetFolder):
    def __init__(self, root, transform):
        super().__init__(root, default_loader, (".jpg",), transform)


class PassedOn(ImageFolder):
    def __getitem__(self, index):
        """As it is."""
        return super().__getitem__(index)


class PassedOnTwice(PassedOn):
    def __getitem__(self, i: int):
        image, target = super().__getitem__(i)
        return image, target


class InPieces(ImageFolder):
    def __getitem__(self, index):
        sample = super().__getitem__(index)
        image = sample[0]
        pair: tuple = (image,) + sample[1:] if False else (image, sample[1])
        return pair


class Mixin:
    def helper(self):
        return 1


class WithMixin(Mixin, PassedOnTwice):
    pass


NATIVE = [Plain, FewerClasses, Own, PassedOn, PassedOnTwice, InPieces, WithMixin]


@pytest.mark.parametrize("kind", NATIVE)
def test_these_are_native(small_images, kind):
    dataset = kind(str(small_images), compose(*HEAD))
    loader = native_loader(dataset, batch_size=8)
    assert same_batches(dataset, loader) == -(-len(dataset) // 8)
    assert loader.stats().path == "native"
    assert kind.__name__ in loader.explain() and len(LOG) == 0
    subset = torch.utils.data.Subset(dataset, [5, 2, 2, 9])
    assert same_batches(subset, native_loader(subset, batch_size=8)) == 1
    list(feedmill.DataLoader(dataset, batch_size=8, native="verify"))


def test_torchvisions_subclasses(small_images, tmp_path):
    root = tmp_path / "imagenet"
    root.mkdir()
    (root / "train").symlink_to(small_images)
    classes = {f"class{i}": (f"name {i}",) for i in range(2)}
    torch.save((classes, ["class0"]), root / "meta.bin")
    dataset = ImageNet(str(root), "train", transform=compose(*HEAD))
    assert same_batches(dataset, native_loader(dataset, batch_size=8)) == 5
    (tmp_path / "eurosat").mkdir()
    (tmp_path / "eurosat" / "2750").symlink_to(small_images)
    dataset = EuroSAT(str(tmp_path), transform=compose(*HEAD))
    assert same_batches(dataset, native_loader(dataset, batch_size=8)) == 5
    dataset.split_folder = dataset.__getitem__ = None
    assert "its own __getitem__" in feedmill.DataLoader(dataset).explain()


# ---- other parts than image and target ------------------------------------------------------------


class WithIndex(ImageFolder):
    def __getitem__(self, index):
        img, target = super().__getitem__(index)
        return img, target, index


class IndexInPlace(ImageFolder):
    """As DINO's ReturnIndexDataset."""

    def __getitem__(self, idx):
        img, lab = super(IndexInPlace, self).__getitem__(idx)  # noqa: UP008
        return img, idx


class IndexFirst(ImageFolder):
    """As solo-learn's."""

    def __getitem__(self, index):
        data = super().__getitem__(index)
        return (index, *data)


class Added(IndexFirst):
    def __getitem__(self, index):
        return super().__getitem__(index) + (index,)


class ImageOnly(ImageFolder):
    def __getitem__(self, index):
        return super().__getitem__(index)[0]


class ImageAlone(ImageFolder):
    def __getitem__(self, index):
        image, _ = super().__getitem__(index)
        return (image,)


class Reversed(PassedOn):
    def __getitem__(self, index):
        image, target = super().__getitem__(index)
        return target, index, target, image


PARTS = [WithIndex, IndexInPlace, IndexFirst, Added, ImageOnly, ImageAlone, Reversed]
INDICES = {
    "all": {},
    "shuffled": {"sampler": [7, -1, 3, 3, 0, 39, -40]},
    "tensors": {"sampler": [torch.tensor(3), torch.tensor(5)]},
    "batches": {"batch_sampler": [[1, 2], [3], [4, 5, 6, 7, 8, 9, 10, 11, 12]], "batch_size": 1},
    "single": {"batch_size": None},
    "pinned": {"pin_memory": True},
}


@pytest.mark.parametrize("num_workers", slow_but_for([0], [0, 2]))
@pytest.mark.parametrize("indices", INDICES)
@pytest.mark.parametrize("kind", PARTS)
def test_other_parts_are_native(small_images, kind, indices, num_workers):
    if num_workers and indices not in ("all", "single"):
        pytest.skip("two of the forms with workers are enough")
    dataset = kind(str(small_images), compose(*HEAD))
    options = {"batch_size": 8, "num_workers": num_workers, **INDICES[indices]}
    ours = native_loader(dataset, **options)
    theirs = torch.utils.data.DataLoader(dataset, **options)
    for mine, other in zip(ours, theirs, strict=True):
        assert equal_batches(mine, other)
    assert ours.stats().path == "native"
    list(feedmill.DataLoader(dataset, native="verify", **options))


@pytest.mark.parametrize("kind", PARTS)
def test_other_parts_within_other_datasets(small_images, kind):
    dataset = kind(str(small_images), compose(*HEAD))
    both = torch.utils.data.ConcatDataset([dataset, torch.utils.data.Subset(dataset, [3, 1])])
    ours = native_loader(both, batch_size=7)
    for mine, other in zip(ours, torch.utils.data.DataLoader(both, batch_size=7), strict=True):
        assert equal_batches(mine, other)
    mixed = torch.utils.data.ConcatDataset([dataset, Plain(str(small_images), compose(*HEAD))])
    assert "samples of different parts" in feedmill.DataLoader(mixed).explain()


def test_a_collate_function_gets_other_parts(small_images):
    dataset = WithIndex(str(small_images), compose(*HEAD))
    loader = native_loader(dataset, batch_size=8, collate_fn=list)
    theirs = torch.utils.data.DataLoader(dataset, batch_size=8, collate_fn=list)
    assert all(map(equal_batches, loader, theirs))
    hybrid = feedmill.DataLoader(WithIndex(str(small_images), T.GaussianBlur(3)), native="hybrid")
    assert hybrid.explain().startswith("torch's own path")


def test_replaced_samples_have_their_own_index(small_images, tmp_path):
    dataset = WithIndex(str(small_images), compose(*HEAD))
    broken = tmp_path / "broken.jpg"
    broken.write_bytes(b"no image")
    dataset.samples[4] = str(broken), 1
    loader = native_loader(dataset, batch_size=40, on_error="replace")
    images, targets, indices = next(iter(loader))
    other = int(indices[4])
    assert other != 4 and torch.equal(images[4], dataset[other][0])
    assert int(targets[4]) == dataset[other][1]
    images, targets, indices = next(iter(native_loader(dataset, batch_size=40, on_error="skip")))
    assert len(images) == len(targets) == 39 and 4 not in indices.tolist()


# ---- left to torch -------------------------------------------------------------------------------


class Counts(ImageFolder):
    def __getitem__(self, index):
        LOG.append(index)
        return super().__getitem__(index)


class Turns(ImageFolder):
    def __getitem__(self, index):
        image, target = super().__getitem__(index)
        return image.flip(-1), target


class Another(ImageFolder):
    def __getitem__(self, index):
        return super().__getitem__(index + 1 - 1)


class Twice(ImageFolder):
    def __getitem__(self, index):
        super().__getitem__(0)
        return super().__getitem__(index)


class TwoImages(ImageFolder):
    def __getitem__(self, index):
        image, _ = super().__getitem__(index)
        return image, image


class NoImage(ImageFolder):
    def __getitem__(self, index):
        return super().__getitem__(index)[1]


class WithText(ImageFolder):
    def __getitem__(self, index):
        return (*super().__getitem__(index), "text")


class AsList(ImageFolder):
    def __getitem__(self, index):
        return [super().__getitem__(index)[0], index]


class OtherItem(ImageFolder):
    def __getitem__(self, index):
        return super().__getitem__(index)[index]


class OfAnother(ImageFolder):
    def __getitem__(self, index):
        return super(OfAnother, other_dataset).__getitem__(index)


class Negative(ImageFolder):
    def __getitem__(self, index):
        image, target = super().__getitem__(index)
        return image, -target


class Skipping(PassedOn):
    """Skips a class that does something."""

    def __getitem__(self, index):
        return super(PassedOn, self).__getitem__(index)


class OverTurns(Turns):
    def __getitem__(self, index):
        return super().__getitem__(index)


class TurnsBetween(Turns):
    def __getitem__(self, index):
        return super(ImageFolder, self).__getitem__(index)


class SamplesProperty(ImageFolder):
    @property
    def samples(self):
        LOG.append("read")
        return self.kept

    @samples.setter
    def samples(self, value):
        self.kept = value


class OwnGetAttr(ImageFolder):
    def __getattr__(self, name):
        raise AttributeError(name)


class OwnGetAttribute(ImageFolder):
    def __getattribute__(self, name):
        return super().__getattribute__(name)


class OwnLoader(ImageFolder):
    def loader(self, path):
        return default_loader(path)


class Batches(ImageFolder):
    def __getitems__(self, indices):
        return [self[index] for index in indices[::-1]]


class Restored(ImageFolder):
    def __setstate__(self, state):
        vars(self).update(state, samples=[])


class MixinItem:
    def __getitem__(self, index):
        return self.__class__.__mro__[2].__getitem__(self, index)


class WithMixinItem(MixinItem, ImageFolder):
    pass


class Index(ImageFolder):
    @property
    def __getitem__(self):
        return super().__getitem__


class BehindTransform:
    @property
    def transform(self):
        return HEAD[0]

    @transform.setter
    def transform(self, value):
        pass


class BehindState:
    def __getstate__(self):
        return {**vars(self), "samples": self.samples[::-1]}


class TransformBehind(ImageFolder, BehindTransform):
    pass


class StateBehind(ImageFolder, BehindState):
    pass


other_dataset = None
LEFT = [TwoImages, NoImage, WithText, AsList, OtherItem, OfAnother, Counts, Turns, Another, Twice, Negative, OverTurns, SamplesProperty, OwnGetAttr,
        OwnGetAttribute, OwnLoader, Batches, Restored, WithMixinItem, Index, TransformBehind,
        StateBehind]


@pytest.mark.parametrize("kind", LEFT)
def test_these_are_left_to_torch(small_images, kind):
    LOG.clear()
    dataset = kind(str(small_images), compose(*HEAD)) if kind is not OwnLoader else (
        OwnLoader.__new__(OwnLoader))
    text = feedmill.DataLoader(dataset).explain()
    assert text.startswith(f"torch's own path, because\n  - the dataset test_folder_classes.{kind.__name__} "
                           "is not supported natively: "), text
    assert LOG == [] or kind is SamplesProperty


def test_a_method_that_skips_its_parent(small_images):
    """super(PassedOn, self) skips PassedOn; super(ImageFolder, self) skips Turns."""
    for kind in (Skipping, TurnsBetween):
        dataset = kind(str(small_images), compose(*HEAD))
        assert same_batches(dataset, native_loader(dataset, batch_size=8)) == 5


def test_replaced_methods_of_a_parent(small_images, monkeypatch):
    dataset = PassedOn(str(small_images), compose(*HEAD))
    loader = feedmill.DataLoader(dataset)
    assert loader.explain().startswith("native path")
    with monkeypatch.context() as patch:
        patch.setattr(PassedOn, "__getitem__", lambda self, index: (index, index))
        assert "is not supported natively" in loader.explain()
    with monkeypatch.context() as patch:
        patch.setattr(DatasetFolder, "__getitem__", lambda self, index: (index, index))
        assert "__getitem__ was replaced" in loader.explain()
    with monkeypatch.context() as patch:
        patch.setitem(globals(), "super", lambda *_: dataset)
        assert "is not supported natively" in loader.explain()
    assert loader.explain().startswith("native path")
    dataset.transform = None
    assert "has no transform" in loader.explain()
