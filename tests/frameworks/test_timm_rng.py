"""rng="torch" with timm's transforms, which draw from Python's ``random``: the draws, and whole
batches, equal those of timm's own code in torch's DataLoader."""

import sys

import feedmill
import frameworks
import pytest

frameworks.need("timm")

import timm.data  # noqa: E402
import timm.data.random_erasing  # noqa: E402
import timm.data.transforms  # noqa: E402
from test_rng_torch import check as check_loader  # noqa: E402
from test_rng_torch import few_cpus, mixed  # noqa: E402, F401  fixtures
from test_timm_versions import version  # noqa: E402, F401  a fixture
from test_torch_draws import check as check_draws  # noqa: E402
from torchvision import transforms as v1  # noqa: E402
from torchvision.datasets import ImageFolder  # noqa: E402

TAIL = v1.ToTensor()


def kind_of(module, name):
    """A class of the timm that is imported now, which may be an older version."""
    __import__(module)
    return getattr(sys.modules[module], name)


def crop(size=24, **options):
    return kind_of("timm.data.transforms", "RandomResizedCropAndInterpolation")(size, **options)


def erasing(*args, **options):
    return kind_of("timm.data.random_erasing", "RandomErasing")(*args, device="cpu", **options)


CROPS = {
    "one filter": {"interpolation": "bicubic"},
    "random filter": {"interpolation": "random"},
    "narrow": {"scale": (0.9, 1.0), "ratio": (0.2, 5.0)},
    "tall": {"scale": (0.5, 1.5), "ratio": (0.1, 0.3), "interpolation": "random"},
}


@pytest.mark.parametrize("name", CROPS)
def test_draws_of_the_crop(name):
    check_draws(v1.Compose([crop(**CROPS[name]), v1.RandomHorizontalFlip(), TAIL]))


@pytest.mark.parametrize("name", CROPS)
def test_draws_of_older_versions(version, name):  # noqa: F811
    check_draws(v1.Compose([crop(**CROPS[name]), v1.RandomHorizontalFlip(), TAIL,
                            erasing(0.6, max_count=3)]))


def test_a_list_of_filters_draws_even_if_it_has_one():
    for filters in ([v1.InterpolationMode.BICUBIC], [v1.InterpolationMode.BILINEAR] * 2):
        one = crop()
        one.interpolation = filters
        check_draws(v1.Compose([one, v1.RandomHorizontalFlip(), TAIL]))


@pytest.mark.parametrize("options", [
    {"interpolation": "random"},
    {"longest": 0.3, "random_scale_prob": 0.5},
    {"random_scale_prob": 0.8, "random_scale_area": True, "random_aspect_prob": 0.7,
     "interpolation": "random"},
    {"random_aspect_prob": 1.0, "random_aspect_range": (0.5, 2.0)},
], ids=str)
def test_draws_of_resize_keep_ratio(options):
    check_draws(v1.Compose([
        timm.data.transforms.ResizeKeepRatio(24, **options),
        timm.data.transforms.CenterCropOrPad(24), v1.RandomHorizontalFlip(), TAIL,
    ]))


@pytest.mark.parametrize("options", [
    {}, {"min_count": 3}, {"max_count": 4}, {"min_count": 2, "max_count": 3},
    {"min_area": 0.3, "max_area": 0.9, "min_aspect": 0.1},
], ids=str)
def test_draws_of_erasing(options):
    check_draws(v1.Compose([crop(), TAIL, erasing(0.7, **options)]))


PIPELINES = {
    "crop": lambda: [crop(interpolation="random"), v1.RandomHorizontalFlip(),
                     v1.ColorJitter(0.4, 0.4, 0.4), TAIL],
    "erasing": lambda: [crop(), v1.RandomApply([v1.RandomInvert()], 0.4), TAIL,
                        erasing(0.6, max_count=2)],
    "ratio": lambda: [timm.data.transforms.ResizeKeepRatio(
        20, random_scale_prob=0.5, random_aspect_prob=0.5), v1.RandomCrop(20, pad_if_needed=True),
        TAIL],
}


@pytest.mark.parametrize("name", PIPELINES)
@pytest.mark.parametrize("n_workers", [1, 3])
def test_loaders(mixed, name, n_workers):  # noqa: F811
    check_loader(ImageFolder(mixed, v1.Compose(PIPELINES[name]())), num_workers=n_workers,
                 epochs=3, persistent_workers=n_workers == 1)


@pytest.mark.parametrize("transform", [
    timm.data.create_transform(24, is_training=True, no_aug=False, auto_augment=None,
                               color_jitter=0.4, re_prob=0.5, re_mode="const"),
    timm.data.create_transform(24, is_training=True, scale=(0.08, 1), vflip=0.3, hflip=0.5,
                               color_jitter=None, auto_augment=None, interpolation="bicubic"),
], ids=["jitter and erasing", "flips"])
def test_timms_own_transforms(mixed, transform):  # noqa: F811
    erases = transform.transforms[-1]
    if type(erases).__name__ == "RandomErasing":
        erases.device = "cpu"
    check_loader(ImageFolder(mixed, transform), num_workers=2)


@pytest.mark.parametrize("more", [
    [v1.ToTensor(), erasing(0.5, mode="pixel")],
    [timm.data.auto_augment.rand_augment_transform("rand-m9-mstd0.5-inc1", {}), v1.ToTensor()],
], ids=["noise", "rand augment"])
def test_others_take_torchs_path(mixed, more):  # noqa: F811
    dataset = ImageFolder(mixed, v1.Compose([crop(), *more]))
    text = feedmill.DataLoader(dataset, num_workers=2, rng="torch").explain()
    assert text.startswith("torch's own path") and "as the original does" in text
    check_loader(dataset, native="auto", num_workers=2, epochs=1)
