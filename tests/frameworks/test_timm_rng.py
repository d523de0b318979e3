"""rng="torch" with timm's transforms, which draw from Python's ``random`` and from NumPy: the draws,
and whole batches, equal those of timm's own code in torch's DataLoader."""

import random
import sys
import tarfile

import feedmill
import frameworks
import numpy as np
import pytest
import torch
from feedmill.planner import torchs_draws

frameworks.need("timm")

import timm.data  # noqa: E402
import timm.data.random_erasing  # noqa: E402
import timm.data.transforms  # noqa: E402
from PIL import Image  # noqa: E402
from test_rng_torch import check as check_loader  # noqa: E402
from test_rng_torch import damaged, few_cpus, mixed  # noqa: E402, F401  fixtures
from test_rng_torch_erasing import check_another_layout  # noqa: E402
from test_timm_augment import automatic  # noqa: E402
from test_timm_versions import automatic as automatic_of_version  # noqa: E402
from test_timm_versions import version  # noqa: E402, F401  a fixture
from test_torch_draws import check as check_drawn  # noqa: E402
from torchvision import transforms as v1  # noqa: E402
from torchvision.datasets import ImageFolder  # noqa: E402

TAIL = v1.ToTensor()


def check_draws(transform, n_rounds=100):
    check_drawn(transform, n_rounds, frameworks.ZERO_BITS)


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
    {"min_area": 0.3, "max_area": 0.9, "min_aspect": 0.1}, {"mode": "rand"},
    {"mode": "rand", "max_count": 8, "min_area": 0.0},
    {"mode": "rand", "min_count": 2, "max_count": 3, "max_area": 0.9},
], ids=str)
def test_draws_of_erasing(options):
    check_draws(v1.Compose([crop(), TAIL, erasing(0.7, **options)]))


AUGMENTS = [
    "rand", "rand-m0-inc1", "rand-m3-n1-p1.0", "rand-m7-n5-mstd1", "rand-m9-mstd101-inc1",
    "rand-m9-mstd0.5-inc1", "rand-m14", "rand-m9-n4-p0.9-tweights-inc1", "rand-m8-mstd1-n3-t3aw",
    "rand-m7-n5-tweights-mstd0.3", "3a", "rand-m10-mstd101-t3a-p1", "original", "originalr",
    "originalr-mstd3", "v0", "v0r-mstd0.5", "3a-mstd0.5", "rand-m9-n0", "rand-m5-p0.0",
    "rand-m9-n0-tweights",
]


def sized(*steps):
    return v1.Compose([v1.Resize((20, 24)), *steps, v1.RandomHorizontalFlip(), TAIL])


@pytest.mark.parametrize("config", AUGMENTS)
@pytest.mark.parametrize("filters", [None, Image.Resampling.NEAREST])
def test_draws_of_automatic_augmentations(config, filters):
    hparams = {} if filters is None else {"interpolation": filters}
    check_draws(sized(automatic(config, **hparams)), 150)


@pytest.mark.parametrize("filters", [
    (Image.Resampling.BICUBIC,), [Image.Resampling.BILINEAR] * 2,
    [Image.Resampling.BICUBIC, Image.Resampling.BILINEAR],
], ids=len)
def test_lists_of_filters_draw_even_if_they_have_one(filters):
    check_draws(sized(automatic("rand-m9-p1-mstd0.5", interpolation=filters)))
    check_draws(sized(automatic("v0", interpolation=filters)))


def test_several_augmentations_share_the_number_that_gauss_keeps():
    check_draws(sized(automatic("rand-m9-mstd0.5-n1"), automatic("v0-mstd1"),
                      automatic("rand-m9-mstd0.5-n3-p0.6")), 200)


def test_operations_with_any_weights():
    generator = np.random.default_rng(3)
    for n in (1, 2, 5):
        one = automatic(f"rand-m6-n{n}-p1")
        weights = generator.random(len(one.ops)) ** 6
        weights[3:5] = 0
        one.choice_weights = weights / weights.sum()
        check_draws(sized(one), 200)


def test_operations_that_are_listed_twice():
    one = automatic("rand-m6-n3")
    one.ops = one.ops[:5] + one.ops[2:9]
    check_draws(sized(one), 200)


@pytest.mark.parametrize("config", ["rand-m9-mstd0.5-inc1", "rand-m9-mstd0.5-tweights", "original"])
def test_automatic_augmentations_of_older_versions(version, config):  # noqa: F811
    check_draws(sized(automatic_of_version(config)))


PIPELINES = {
    "rand augment": lambda: [crop(), v1.RandomHorizontalFlip(), automatic("rand-m9-mstd0.5-mmax9-inc1"),
                             TAIL, erasing(0.5)],
    "weights": lambda: [crop(), automatic("rand-m9-mstd0.5-mmax9-n3-tweights"), TAIL],
    "auto augment": lambda: [crop(interpolation="random"), automatic("original"), TAIL],
    "three": lambda: [crop(), automatic("rand-m5-mstd0.5"), automatic("original"),
                      automatic("rand-m6-n1-mstd0.3-mmax8"), TAIL],
    "3a": lambda: [crop(), automatic("3a"), v1.ColorJitter(0.3), TAIL],
    "crop": lambda: [crop(interpolation="random"), v1.RandomHorizontalFlip(),
                     v1.ColorJitter(0.4, 0.4, 0.4), TAIL],
    "erasing": lambda: [crop(), v1.RandomApply([v1.RandomInvert()], 0.4), TAIL,
                        erasing(0.6, max_count=2)],
    "colors": lambda: [crop(), TAIL, v1.Normalize((0.5, 0.4, 0.3), (0.2, 0.3, 0.2)),
                       erasing(0.7, mode="rand", max_count=3)],
    "ratio": lambda: [timm.data.transforms.ResizeKeepRatio(
        20, random_scale_prob=0.5, random_aspect_prob=0.5), v1.RandomCrop(20, pad_if_needed=True),
        TAIL],
}


@pytest.mark.parametrize("name", PIPELINES)
@pytest.mark.parametrize("n_workers", [0, 1, 3])
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


def mix_up_by_numpy(samples):
    """Draws from all three generators, numbers that these keep included."""
    images, labels = torch.utils.data.default_collate(samples)
    share = np.random.beta(0.8, 0.8) + random.gauss(0, 0.1) + np.random.randn()
    return images * share + images.flip(0) * torch.randn(1), labels


@pytest.mark.parametrize("n_workers", [0, 2])
def test_a_collate_fn_that_draws(mixed, n_workers):  # noqa: F811
    check_loader(ImageFolder(mixed, v1.Compose(PIPELINES["rand augment"]())), epochs=2,
                 num_workers=n_workers, collate_fn=mix_up_by_numpy)


def test_another_bit_generator_of_numpy(mixed):  # noqa: F811
    dataset = ImageFolder(mixed, v1.Compose(PIPELINES["rand augment"]()))
    loader = feedmill.DataLoader(dataset, rng="torch")
    assert loader.explain().startswith("native path")
    kept = np.random.get_bit_generator()
    np.random.set_bit_generator(np.random.PCG64(3))
    try:
        assert "RandAugment with NumPy's bit generator PCG64" in loader.explain()
    finally:
        np.random.set_bit_generator(kept)


def test_too_many_operations(mixed):  # noqa: F811
    one = automatic("rand-m6-n3")
    one.ops = one.ops * 2
    text = feedmill.DataLoader(ImageFolder(mixed, sized(one)), rng="torch").explain()
    assert text.startswith("torch's own path") and "of more than 27 operations" in text


def test_another_normal_takes_torchs_path(mixed, monkeypatch):  # noqa: F811
    """As with ATEN_CPU_CAPABILITY=default, and on other kinds of CPUs."""
    dataset = ImageFolder(mixed, v1.Compose([crop(), v1.ToTensor(), erasing(0.5, mode="pixel")]))
    original = torchs_draws.native.noise_torch
    monkeypatch.setattr(
        torchs_draws.native, "noise_torch", lambda streams, n: original(streams, n)[:-1] + b"!"
    )
    torchs_draws.is_as_torch.cache_clear()
    text = feedmill.DataLoader(dataset, num_workers=2).explain()
    monkeypatch.undo()
    torchs_draws.is_as_torch.cache_clear()
    assert text.startswith("torch's own path") and "computes other last bits" in text


needs_same_normal = pytest.mark.skipif(
    not torchs_draws.is_as_torch(), reason="torch's normal_() differs on this CPU"
)


@needs_same_normal
@pytest.mark.parametrize("num_workers", [0, 1, 3, 8])
@pytest.mark.parametrize("options", [
    {}, {"max_count": 4, "probability": 1}, {"min_area": 0.0005, "max_area": 0.02, "max_count": 2},
], ids=["one", "several", "small"])
def test_random_pixels(mixed, num_workers, options):  # noqa: F811
    parts = [crop(), v1.RandomHorizontalFlip(), v1.ToTensor(), v1.Normalize([0.5] * 3, [0.2] * 3)]
    steps = [*parts, erasing(options.get("probability", 0.6), mode="pixel",
                             **{name: one for name, one in options.items() if name[0] == "m"})]
    check_loader(ImageFolder(mixed, v1.Compose(steps)), num_workers=num_workers, epochs=3)


@needs_same_normal
@pytest.mark.parametrize("mode", ["pixel", "rand"])
def test_random_numbers_in_one_channel(mixed, mode):  # noqa: F811
    steps = [v1.Grayscale(), crop(), v1.ToTensor(), erasing(0.7, mode=mode, max_count=3)]
    check_draws(v1.Compose(steps))
    check_loader(ImageFolder(mixed, v1.Compose(steps)), num_workers=2)


@needs_same_normal
@pytest.mark.parametrize("num_workers", [0, 3])
def test_random_pixels_and_damaged_files(damaged, num_workers):  # noqa: F811
    steps = [crop(), v1.ToTensor(), erasing(0.9, mode="pixel", max_count=2)]
    dataset = ImageFolder(damaged, v1.Compose(steps))
    check_loader(dataset, num_workers=num_workers, epochs=3)


@needs_same_normal
def test_random_pixels_are_verified(mixed):  # noqa: F811
    steps = [crop(), v1.ToTensor(), erasing(0.9, mode="pixel")]
    dataset = ImageFolder(mixed, v1.Compose(steps))
    check_loader(dataset, num_workers=2, native="verify", epochs=1)


@needs_same_normal
def test_random_pixels_in_another_layout(mixed):  # noqa: F811
    steps = [crop(), v1.ToTensor(), erasing(0.9, mode="pixel", max_count=3)]
    check_another_layout(ImageFolder(mixed, v1.Compose(steps)))


@pytest.mark.parametrize("tar", [False, True])
@pytest.mark.parametrize("use_prefetcher", [True, False])
def test_timms_loader_gives_the_same_batches(images, tmp_path, use_prefetcher, tar):
    """create_loader() as timm's train.py calls it: a PrefetchLoader normalizes and erases what the
    native loader makes in the place of torch's."""
    root = tmp_path / "images.tar" if tar else images
    if tar:
        with tarfile.open(root, "w") as file:
            file.add(images, "")
    loader = timm.data.create_loader(
        timm.data.create_dataset("", str(root)), 24, 4, is_training=True, num_workers=2,
        re_prob=0.5, re_mode="pixel", auto_augment="rand-m5-inc1", use_prefetcher=use_prefetcher,
        device=torch.device("cpu"), persistent_workers=False,
    )
    inner = getattr(loader, "loader", loader)
    options = {
        "batch_size": 4, "shuffle": True, "drop_last": True, "collate_fn": inner.collate_fn,
        "num_workers": 2, "worker_init_fn": inner.worker_init_fn,
    }
    epochs = []
    for make, more in ((torch.utils.data.DataLoader, {}),
                       (feedmill.DataLoader, {"native": "require", "rng": "torch"})):
        random.seed(3)
        np.random.seed(3)
        torch.manual_seed(3)
        one = make(inner.dataset, **options, **more)
        if use_prefetcher:
            loader.loader = one
        epochs.append(list(loader if use_prefetcher else one))
    assert one.stats().path == "native"
    for wanted, got in zip(*epochs, strict=True):
        for tensor, other in zip(wanted, got, strict=True):
            assert tensor.dtype == other.dtype and torch.equal(tensor, other)
