"""Warnings about random numbers (seed= without effect, equal epochs), and that the path of a random
transform does not change between epochs."""

import warnings

import feedmill
import helpers
import pytest
import torch
from helpers import compose
from PIL import Image
from torch.utils.data import DistributedSampler
from torchvision import transforms as T
from torchvision.datasets import ImageFolder

CROP = (T.RandomResizedCrop(8), T.RandomHorizontalFlip(), T.PILToTensor())


def warnings_of(loader, n_epochs=1):
    """The warnings of some epochs, as (text, file)."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        # torch warns of more workers than usable CPUs.
        warnings.filterwarnings("ignore", "This DataLoader will create")
        # Python 3.12 warns of forks beside threads.
        warnings.filterwarnings("ignore", "This process .* is multi-threaded", DeprecationWarning)
        for _ in range(n_epochs):
            list(loader)
    assert all(one.category is UserWarning for one in caught)
    return [(str(one.message), one.filename) for one in caught]


# ---- seed= without effect ------------------------------------------------------------------------


@pytest.mark.parametrize(("native", "words"), [
    ("auto", "takes torch's own path"), ("off", "takes torch's own path"),
    ("hybrid", "native='hybrid' calls the transform"),
])
def test_a_seed_without_effect(small_images, native, words):
    dataset = ImageFolder(str(small_images), lambda image: T.PILToTensor()(image.resize((8, 8))))
    loader = feedmill.DataLoader(dataset, batch_size=40, seed=5, native=native)
    (text, file), = warnings_of(loader, 3)
    assert text.startswith("seed=5 has no effect: ") and words in text and file == __file__
    assert "seed=5 has no effect" in loader.explain()
    for other in ({"seed": None, "native": native}, {"seed": 5, "native": "auto"}):
        dataset.transform = dataset.transform if other["seed"] is None else compose(*CROP)
        assert warnings_of(feedmill.DataLoader(dataset, batch_size=40, **other), 2) == []


@pytest.mark.parametrize("persistent", [False, True])
def test_a_changed_transform_that_ends_the_native_path(small_images, persistent):
    dataset = ImageFolder(str(small_images), compose(*CROP))
    loader = feedmill.DataLoader(dataset, batch_size=40, seed=5, num_workers=1,
                                 persistent_workers=persistent)
    assert warnings_of(loader) == []
    dataset.transform.transforms.insert(0, T.Lambda(Image.Image.copy))
    (text, file), = warnings_of(loader, 2)
    assert text.startswith("seed=5 has no effect") and file == __file__
    assert loader.stats().path == "torch"


# ---- the path does not change --------------------------------------------------------------------


@pytest.fixture
def for_pillow(tmp_path):
    """A folder of 70 images that are not decoded natively, although they are named like JPEGs."""
    (tmp_path / "c").mkdir()
    for i in range(70):
        path = tmp_path / "c" / f"{i:02}.jpg"
        Image.fromarray(helpers.pixels(12, 10, seed=i)).save(path, "BMP")
    return tmp_path


@pytest.mark.parametrize("seed", [None, 3])
@pytest.mark.parametrize("persistent", [False, True])
def test_the_path_of_a_random_transform_does_not_change(for_pillow, seed, persistent):
    dataset = helpers.numbered_folder(for_pillow, compose(*CROP))
    options = {"batch_size": 10, "num_workers": 2, "seed": seed, "persistent_workers": persistent,
               "rng": "feedmill"}
    loader = feedmill.DataLoader(dataset, **options)
    wanted = feedmill.DataLoader(dataset, native="require", **options)
    assert warnings_of(loader) == [] and loader.stats().path == "native"
    (text, file), = warnings_of(loader, 2)
    assert "70 of 70 samples of the latest native epoch went through Pillow" in text
    assert "native='off'" in text and file == __file__ and loader.stats().path == "native"
    assert "70 of 70 samples" in loader.explain() and loader.explain().startswith("native path")
    if seed is not None:
        epochs = [torch.cat([images for images, _ in wanted]) for _ in range(4)]
        assert torch.equal(torch.cat([images for images, _ in loader]), epochs[3])


def test_the_path_of_a_fixed_transform_may_change(for_pillow):
    dataset = helpers.numbered_folder(for_pillow)  # Resize and PILToTensor
    loader = feedmill.DataLoader(dataset, batch_size=10, num_workers=2)
    for path in ("native", "torch", "torch"):
        assert warnings_of(loader) == [] and loader.stats().path == path


@pytest.mark.parametrize("persistent", [False, True])
def test_the_path_may_change_where_the_random_numbers_are_torchs(for_pillow, persistent):
    dataset = helpers.numbered_folder(for_pillow, compose(*CROP))
    options = {"batch_size": 10, "num_workers": 2, "persistent_workers": persistent}
    epochs = []
    for kind in (torch.utils.data.DataLoader, feedmill.DataLoader):
        torch.manual_seed(3)
        loader = kind(dataset, **options)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that native="off" may be faster
            epochs.append([torch.cat([images for images, _ in loader]) for _ in range(3)])
    # Persistent workers of torch's path would be seeded anew.
    assert loader.stats().path == ("native" if persistent else "torch")
    assert all(map(torch.equal, *epochs))


# ---- equal epochs --------------------------------------------------------------------------------


def distributed(small_images, *steps, **options):
    dataset = ImageFolder(str(small_images), compose(*(steps or CROP)))
    sampler = DistributedSampler(dataset, num_replicas=2, rank=0)
    options = {"batch_size": 10, "sampler": sampler, "seed": 1, **options}
    return feedmill.DataLoader(dataset, **options), sampler


@pytest.mark.parametrize("options", [
    {}, {"num_workers": 2}, {"num_workers": 1, "persistent_workers": True},
])
def test_a_warning_if_the_samplers_epoch_does_not_change(small_images, options):
    loader, sampler = distributed(small_images, **options)
    sampler.set_epoch(7)
    assert warnings_of(loader) == []
    (text, file), = warnings_of(loader, 3)
    assert "epoch is 7 again" in text and "call sampler.set_epoch(epoch)" in text
    assert file == __file__
    assert "set_epoch()" in loader.explain()


def test_no_warning_if_the_samplers_epoch_changes(small_images):
    loader, sampler = distributed(small_images)
    for epoch in range(3):
        (sampler if epoch % 2 else loader).set_epoch(epoch)
        assert warnings_of(loader) == []


def test_no_warning_after_looking_at_a_single_batch(small_images):
    loader, _ = distributed(small_images)
    for _ in range(2):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            next(iter(loader))
    assert warnings_of(loader) == []


def test_no_warning_if_equal_epochs_are_intended(small_images):
    """Validation without random transforms, and draws that follow torch's seed."""
    for steps, options in (((T.Resize((8, 8)), T.PILToTensor()), {}), ((), {"seed": None}),
                           ((), {"sampler": None, "shuffle": True})):
        loader, _ = distributed(small_images, *steps, **options)
        assert warnings_of(loader, 3) == []
