"""native="verify" finds samples that differ from the dataset's own, and says where they differ."""

import collections
import threading

import helpers
import numpy as np
import pytest
import torch
from feedmill import VerificationError
from helpers import MEAN, STD, compose, native_loader
from test_datasets import FIXED, Files, Wrong
from torchvision import transforms as T
from torchvision.datasets import ImageFolder


def verifying(dataset, **options):
    return native_loader(dataset, **{"native": "verify", "batch_size": 8, **options})


def first_error(loader):
    """The first VerificationError of an epoch, and how many batches came without one."""
    iterator, n_good, first = iter(loader), 0, None
    while True:
        try:
            next(iterator)
            n_good += 1
        except VerificationError as error:
            first = first or error
        except StopIteration:
            return first, n_good


@pytest.mark.parametrize("num_workers", [0, 2])
def test_equal_samples_pass(small_images, num_workers):
    steps = (T.RandomResizedCrop(20), T.RandomHorizontalFlip(), T.ToTensor(), T.Normalize(MEAN, STD))
    dataset = ImageFolder(str(small_images), compose(*steps))
    loader = verifying(dataset, num_workers=num_workers, sampler=[3, 3, 5, 3, 5, 0] * 4)
    torch.manual_seed(1)
    plain = list(native_loader(dataset, batch_size=8, num_workers=num_workers,
                               sampler=[3, 3, 5, 3, 5, 0] * 4))
    state = torch.get_rng_state()
    torch.manual_seed(1)
    verified = list(loader)
    assert torch.equal(torch.get_rng_state(), state)
    for mine, other in zip(plain, verified):
        assert torch.equal(mine[0], other[0])
    assert loader.stats().decode.verified_samples == 24
    assert "24 samples, all equal" in loader.report()
    assert "made a second time" in loader.explain()


def test_a_transform_that_is_changed_in_the_middle(small_images):
    dataset = ImageFolder(str(small_images), compose(T.Resize((8, 8)), T.ToTensor(),
                                                     T.Normalize(MEAN, list(STD))))
    iterator = iter(verifying(dataset))
    next(iterator)
    dataset.transform.transforms[2].std[1] = 0.5
    with pytest.raises(VerificationError, match="index 8, .*Normalize: .* of 192 values") as caught:
        next(iterator)
    assert caught.value.index == 8 and caught.value.op == "ToTensor -> Normalize"
    dataset.transform.transforms[2].std[1] = STD[1]
    next(iterator)


@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_changed_size_of_a_transform(small_images, num_workers):
    dataset = ImageFolder(str(small_images), compose(T.Resize((30, 30)), T.RandomHorizontalFlip(),
                                                     T.CenterCrop((10, 12)), T.PILToTensor()))
    loader = verifying(dataset, num_workers=num_workers)
    iterator = iter(loader)
    dataset.transform.transforms[0].size = (31, 30)
    with pytest.raises(VerificationError, match=r"First at Resize: \(3, 30, 30\) of") as caught:
        next(iterator)
    assert (caught.value.index, caught.value.op) == (0, "Resize")
    dataset.transform.transforms[0].size = (30, 30)
    dataset.transform.transforms[2].size = (10, 13)
    error, n_good = first_error(loader)
    assert error is None and n_good == 5
    iterator = iter(loader)
    dataset.transform.transforms[2].size = (12, 10)
    with pytest.raises(VerificationError, match=r"CenterCrop: \(3, 10, 13\) of .*\(3, 12, 10\)"):
        next(iterator)


def test_feedmill_item_names_another_file(small_images):
    error, n_good = first_error(verifying(Wrong(small_images, FIXED)))
    assert (error.index, error.op, n_good) == (5, "dataset", 4)
    assert "feedmill_item names another image" in str(error)


class OtherTarget(Files):
    def feedmill_item(self, index):
        path, target = super().feedmill_item(index)
        return path, {**target, "number": 7.0}


class Twice(Files):
    feedmill_item = Files.feedmill_item

    def __getitem__(self, index):
        self.transform(helpers.Image.open(self.paths[index]).convert("RGB"))
        return super().__getitem__(index)


class Listed(Files):
    feedmill_item = Files.feedmill_item

    def __getitem__(self, index):
        return list(super().__getitem__(index))


class Named(Files):
    Sample = collections.namedtuple("Sample", "image target")
    feedmill_item = Files.feedmill_item

    def __getitem__(self, index):
        return self.Sample(*super().__getitem__(index))


def test_feedmill_item_returns_another_target_or_type(small_images):
    error, n_good = first_error(verifying(OtherTarget(small_images, FIXED)))
    assert (error.op, n_good) == ("target", 0) and "'number': 7.0" in str(error)
    error, _ = first_error(verifying(Twice(small_images, FIXED)))
    assert error.op == "dataset" and "2 times" in str(error)
    error, _ = first_error(verifying(Named(small_images, FIXED)))
    assert "gives a Sample" in str(error)
    assert first_error(verifying(Listed(small_images, FIXED))) == (None, 5)


class Frozen(Files):
    """A dataset that refuses changes of its attributes, and can't be copied or pickled."""

    __slots__ = ("_steps", "files")
    as_bytes = False

    def __init__(self, root, transform):
        object.__setattr__(self, "_steps", transform)
        object.__setattr__(self, "files", Files(root, transform))

    transform = property(lambda self: self._steps)
    paths = property(lambda self: self.files.paths)

    def __setattr__(self, name, value):
        raise AttributeError(name)

    def __getstate__(self):
        raise TypeError("no copies")

    def label(self, index):
        return TARGETS[index % len(TARGETS)]


NAN = float("nan")
TARGETS = [
    (NAN, torch.tensor([NAN, 1.0]), np.array([NAN, 2.0], np.float32), {"a": [1, NAN]}, "text"),
]


def test_datasets_and_targets_of_all_kinds(small_images):
    assert first_error(verifying(Frozen(small_images, FIXED), collate_fn=list)) == (None, 5)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (np.zeros(3000), np.eye(3000)[1500]), ([0.1], [0.1 + 1e-16 * 2]), ((1, 2), (1.0, 2.0)),
        (np.float32(1), np.float64(1)), (np.zeros(1), np.zeros((1, 1))), (1, True),
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}), (torch.zeros(2), torch.zeros(2).double()),
    ],
)
def test_different_targets(small_images, one, other):
    class Other(Files):
        def label(self, index):
            return one

        def feedmill_item(self, index):
            return self.paths[index], other

        __getitem__ = Files.__getitem__

    error, _ = first_error(verifying(Other(small_images, FIXED), collate_fn=list))
    assert error.op == "target"


def test_verify_needs_the_native_path(small_images):
    with pytest.raises(RuntimeError, match="native='verify', but .*\n.*no transform"):
        verifying(ImageFolder(str(small_images)))


# ---- other threads' random generators ------------------------------------------------------------


@pytest.mark.parametrize("native", ["require", "verify"])
def test_other_threads_may_draw_while_a_fallback_sample_is_made(tmp_path, native, monkeypatch):
    """Random numbers that another thread draws from torch's generator are not repeated or lost."""
    for i in range(6):
        helpers.save_jpeg(tmp_path / "a" / f"{i}.jpg", 20, 20, seed=i)
    helpers.Image.fromarray(helpers.pixels(20, 15)).save(tmp_path / "a" / "3.jpg", "BMP")
    flip = T.RandomHorizontalFlip()
    dataset = helpers.numbered_folder(tmp_path, compose(T.Resize((8, 8)), flip, T.ToTensor()))
    mine, drawn = torch.get_rng_state, []
    original = type(flip).forward

    def forward(self, image):  # another thread draws during the transform
        thread = threading.Thread(target=lambda: drawn.append(torch.rand(1).item()))
        thread.start()
        thread.join()
        return original(self, image)

    loader = native_loader(dataset, batch_size=6, native=native)
    iterator = iter(loader)
    torch.manual_seed(3)
    monkeypatch.setattr(type(flip), "forward", forward)
    next(iterator)
    assert drawn
    after = mine()
    torch.manual_seed(3)
    assert drawn == [torch.rand(1).item() for _ in drawn]
    assert torch.equal(after, mine())
