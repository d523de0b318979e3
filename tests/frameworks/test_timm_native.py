"""timm's dataset, transforms and collate_fn on the native path, compared with timm's own."""

import functools
import logging
import random
import shutil
import types

import feedmill
import frameworks
import numpy as np
import pytest
import torch
from feedmill.planner import fingerprints, timm_objects
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from PIL import Image
from torch.utils.data import DataLoader
from torchvision.transforms import functional

frameworks.need("timm")

import timm.data  # noqa: E402
import timm.data.dataset  # noqa: E402
import timm.data.loader  # noqa: E402
import timm.data.random_erasing  # noqa: E402
import timm.data.transforms  # noqa: E402
from timm.data.readers import reader_image_folder  # noqa: E402

MODES = [functional.InterpolationMode.BILINEAR, functional.InterpolationMode.BICUBIC]


@pytest.fixture(scope="module")
def folder(tmp_path_factory, images):
    """A folder with images of many kinds: JPEGs, PNGs, grey, palette, narrow and tiny ones."""
    root = tmp_path_factory.mktemp("mixed")
    shutil.copytree(images, root, dirs_exist_ok=True)
    generator = np.random.default_rng(3)
    for number, (mode, size) in enumerate([
        ("RGB", (3, 200)), ("RGB", (240, 2)), ("L", (60, 41)), ("P", (33, 70)), ("RGBA", (50, 50)),
        ("RGB", (1, 1)), ("CMYK", (44, 61)),
    ]):
        pixels = generator.integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)
        image = Image.fromarray(pixels).convert(mode)
        suffix = "jpg" if mode in ("L", "CMYK") else "png"
        image.save(root / f"class{number % 3}" / f"made{number}.{suffix}")
    return root


def made(folder, *, training=True, dataset=None, size=(24, 24), **options):
    """(timm's loader, the torch DataLoader in it) for a folder of images."""
    dataset = timm.data.create_dataset("", str(folder)) if dataset is None else dataset
    given = {"num_workers": 0, "device": torch.device("cpu"), "persistent_workers": False}
    loader = timm.data.create_loader(
        dataset, (3, *size), 4, is_training=training, **{**given, **options}
    )
    return loader, getattr(loader, "loader", loader)


def as_feedmill(inner, **options):
    """A feedmill.DataLoader with the arguments of a torch DataLoader."""
    return feedmill.DataLoader(
        inner.dataset, batch_sampler=inner.batch_sampler, collate_fn=inner.collate_fn,
        num_workers=inner.num_workers, worker_init_fn=inner.worker_init_fn,
        **{"native": "require", "seed": 5, **options},
    )


# ---- the versions --------------------------------------------------------------------------------


def test_the_installed_timm_is_known():
    """Each function is one of those listed. If not, compare it with the previous version, and add
    the hash that is printed here."""
    for place in timm_objects.KNOWN:
        module, _, name = place.partition(":")
        try:
            home = __import__(module, fromlist=["_"])
            function = functools.reduce(getattr, name.split("."), home)
        except (AttributeError, ModuleNotFoundError):  # not all versions have all of them
            continue
        found = fingerprints.fingerprint(function.__code__)
        assert fingerprints.is_known(
            function, place, timm_objects.KNOWN, timm_objects.MEANINGS
        ), f"{place} of timm {timm.__version__} is {found}"


# ---- transforms ----------------------------------------------------------------------------------

FILTERS = st.sampled_from(["random", "bilinear", "bicubic", "lanczos", "nearest", "hamming", "box"])


@settings(
    max_examples=16, deadline=None, derandomize=True, phases=[Phase.generate],
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    interpolation=FILTERS,
    train_crop_mode=st.sampled_from(["rrc", "rkrc"]),
    size=st.sampled_from([(24, 24), (20, 36)]),
    scale=st.sampled_from([None, (0.3, 1.0), (0.0001, 0.002)]),
    ratio=st.sampled_from([None, (0.5, 2.0), (0.02, 50.0)]),
    vflip=st.sampled_from([0.0, 0.5]),
    grayscale_prob=st.sampled_from([0.0, 0.5]),
    color_jitter=st.sampled_from([0.4, (0.2, 0.3, 0.4, 0.1), None]),
    color_jitter_prob=st.sampled_from([None, 0.5]),
    use_prefetcher=st.booleans(),
    re_prob=st.sampled_from([0.0, 0.7]),
    seed=st.integers(0, 1000),
)
def test_training_equals_timms_own_transforms(folder, seed, **options):
    """native="verify" makes each sample again with timm's objects, fed the native draws."""
    if options["train_crop_mode"] == "rkrc" and options["scale"] == (0.0001, 0.002):
        options["scale"] = None  # it would make images of gigabytes
    _, inner = made(folder, **options)
    loader = as_feedmill(inner, native="verify", seed=seed)
    epochs = iter(range(2))
    try:
        for epoch in epochs:
            loader.set_epoch(epoch)
            for _ in loader:
                pass
    except ValueError as error:  # timm itself can't resize a crop without pixels
        assert options["scale"] == (0.0001, 0.002) and "ero" in str(error) + "zero"
    assert loader.stats().decode.verified_samples > 0


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("options", [
    {}, {"crop_pct": 1.0}, {"no_aug": True}, {"interpolation": "bicubic"}, {"crop_mode": "squash"},
    {"use_prefetcher": False}, {"size": (24, 32)}, {"size": (32, 20), "interpolation": "lanczos"},
    {"crop_mode": "border"}, {"crop_mode": "border", "size": (40, 24), "crop_pct": 0.5},
])
def test_evaluation_equals_torchs_batches(folder, options, training):
    """Without random transforms, the batches that a script gets are equal bit for bit."""
    loader, inner = made(folder, training=training, **{**options, "no_aug": True})
    if options.get("crop_mode") == "border":  # would resize narrow images to no pixels
        reader = inner.dataset.reader
        reader.samples = [one for one in reader.samples if "made" not in one[0]]
        inner = DataLoader(inner.dataset, batch_size=4, collate_fn=inner.collate_fn)
    native = as_feedmill(inner)
    batches = []
    for one in (inner, native):
        if loader is not inner:  # timm's PrefetchLoader around it
            loader.loader = one
        torch.manual_seed(1)
        batches.append(list(one if loader is inner else loader))
    assert native.stats().path == "native"
    for wanted, got in zip(*batches, strict=True):
        assert type(wanted) is type(got)
        for one, other in zip(wanted, got, strict=True):
            assert one.dtype == other.dtype and one.stride() == other.stride()
            assert torch.equal(one, other)


def crop(size=(20, 28), **options):
    return timm.data.transforms.RandomResizedCropAndInterpolation(size, **options)


def compose(*parts):
    from torchvision import transforms

    to_tensor = getattr(timm.data.transforms, "MaybePILToTensor", transforms.PILToTensor)
    return transforms.Compose([*parts, to_tensor()])


def test_crop_and_interpolation_are_those_of_the_draws(folder):
    """Independently of feedmill's own comparison: the box and the filter of draws() give the
    sample, and both filters are drawn about equally often."""
    dataset = timm.data.ImageDataset(str(folder), transform=compose(crop(interpolation="random")))
    loader = feedmill.DataLoader(dataset, batch_size=None, native="require", seed=8)
    n_bicubic = n = 0
    for epoch in range(6):
        for index in range(len(dataset)):
            ((name, drawn),) = loader.draws(index, epoch)
            assert name == "RandomResizedCrop"
            mode = functional.InterpolationMode(drawn["interpolation"])
            assert mode in MODES
            n_bicubic += mode is MODES[1]
            n += 1
            image = Image.open(dataset.reader.samples[index][0]).convert("RGB")
            box = (drawn["top"], drawn["left"], drawn["height"], drawn["width"])
            wanted = functional.pil_to_tensor(
                functional.resized_crop(image, *box, (20, 28), mode)
            )
            assert torch.equal(loader.fetch(index, epoch)[0], wanted)
    assert abs(n_bicubic / n - 0.5) < 4 * (0.25 / n) ** 0.5


N_DRAWN = 800


def same_distribution(one, other):
    """Kolmogorov and Smirnov's test of two arrays of N_DRAWN values, at 0.1%."""
    grid = np.unique(np.concatenate([one, other]))
    one, other = (np.searchsorted(np.sort(values), grid, "right") for values in (one, other))
    return np.abs(one - other).max() / N_DRAWN < 1.95 * (2 / N_DRAWN) ** 0.5


def drawn(folder, *parts):
    """(an image, the native draws of the first part for it)."""
    path = next(folder.rglob("*.jpg"))
    dataset = timm.data.ImageDataset(str(folder), transform=compose(*parts))
    dataset.reader.samples = [(str(path), 0)] * N_DRAWN
    loader = feedmill.DataLoader(dataset, native="require", seed=2)
    random.seed(4)
    return Image.open(path), [loader.draws(i, 0)[0][1] for i in range(N_DRAWN)]


def test_crops_are_drawn_as_timm_draws_them(folder):
    """Shares of the area and aspect ratios have the same distribution."""
    image, ours = drawn(folder, crop(scale=(0.2, 0.9), ratio=(0.6, 1.5)))
    get = timm.data.transforms.RandomResizedCropAndInterpolation.get_params
    timms = np.array([get(image, (0.2, 0.9), (0.6, 1.5)) for _ in range(N_DRAWN)])
    ours = np.array([list(one.values()) for one in ours])
    for values in (lambda box: box[:, 2] * box[:, 3], lambda box: box[:, 3] / box[:, 2],
                   lambda box: box[:, 0], lambda box: box[:, 1]):
        assert same_distribution(values(timms), values(ours))


class Given:
    """The module random, with given results of uniform() and randint()."""

    def __init__(self, uniform, randint):
        self.uniform, self.randint = lambda *_: uniform.pop(0), lambda *_: randint.pop(0)

    def random(self):
        return 0.0


def test_erased_boxes_are_those_of_timm(folder):
    """timm's own RandomErasing, fed the drawn box, erases the same pixels; and boxes have the same
    distribution."""
    from torchvision import transforms

    erasing = timm.data.random_erasing.RandomErasing(
        0.6, 0.05, 0.5, min_aspect=0.4, max_aspect=1.8, device="cpu"
    )
    resize = transforms.Resize((60, 80))
    parts = [resize, transforms.ToTensor(), transforms.Normalize([0.2], [0.3])]
    dataset = timm.data.ImageDataset(
        str(folder), transform=transforms.Compose([*parts, erasing])
    )
    loader = feedmill.DataLoader(dataset, native="require", seed=3)
    plain = transforms.Compose(parts)
    timms_random = timm.data.random_erasing.random
    n_erased = 0
    for index in range(len(dataset)):
        box = loader.draws(index, 0)[1][1]
        wanted = plain(Image.open(dataset.reader.samples[index][0]).convert("RGB"))
        if box["applied"]:
            n_erased += 1
            sides = box["height"], box["width"]
            area = sides[0] * sides[1] / (60 * 80)
            given = Given([area, np.log(sides[0] / sides[1])], [box["top"], box["left"]])
            timm.data.random_erasing.random = given
            try:
                erasing(wanted)
            finally:
                timm.data.random_erasing.random = timms_random
        assert torch.equal(loader.fetch(index, 0)[0], wanted)
    assert 0 < n_erased < len(dataset)

    dataset.reader.samples = dataset.reader.samples[:1] * N_DRAWN
    erasing.probability = 1
    loader = feedmill.DataLoader(dataset, native="require", seed=3)
    boxes = [loader.draws(i, 0)[1][1] for i in range(N_DRAWN)]
    random.seed(1)
    timms = []
    for _ in boxes:
        image = torch.ones(1, 60, 80)
        rows, columns = (erasing(image)[0] == 0).nonzero(as_tuple=True)
        timms.append((rows.min(), rows.max() + 1, columns.min(), columns.max() + 1))
    timms = np.array(timms)
    ours = np.array([
        (one["top"], one["top"] + one["height"], one["left"], one["left"] + one["width"])
        for one in boxes
    ])
    for column in range(4):
        assert same_distribution(ours[:, column], timms[:, column])


def test_ranges_of_one_number_are_not_native(folder):
    from torchvision import transforms

    kinds = timm.data.transforms
    for one, text in (
        (kinds.RandomResizedCropAndInterpolation(24, ratio=(1.3, 1.3)), "ratio=(1.3, 1.3)"),
        (kinds.RandomResizedCropAndInterpolation(24, scale=(0.3, 0.3)), "scale=(0.3, 0.3)"),
        (kinds.ResizeKeepRatio((24, 24), 0.5, random_scale_prob=1, random_scale_range=(0.9, 0.9)),
         "random_scale_range=(0.9, 0.9)"),
    ):
        parts = [one, kinds.CenterCropOrPad((24, 24)), transforms.ToTensor()]
        dataset = timm.data.ImageDataset(str(folder), transform=transforms.Compose(parts))
        assert text in feedmill.DataLoader(dataset).explain()


def test_kept_ratios_are_drawn_as_timm_draws_them(folder):
    options = {"random_scale_prob": 0.6, "random_scale_range": (0.5, 1.0),
               "random_scale_area": True, "random_aspect_prob": 0.7,
               "random_aspect_range": (0.5, 1.6)}
    resize = timm.data.transforms.ResizeKeepRatio((240, 360), 0.25, **options)
    image, ours = drawn(folder, resize, timm.data.transforms.CenterCropOrPad((9, 9)))
    timms = [resize.get_params(image, (240, 360), 0.25, *options.values()) for _ in ours]
    for number, name in enumerate(("height", "width")):
        values = np.array([one[name] for one in ours]), np.array([one[number] for one in timms])
        assert same_distribution(*values)
    ratios = [[one["height"] / one["width"] for one in ours], [one[0] / one[1] for one in timms]]
    assert same_distribution(*map(np.array, ratios))


def test_fixed_lists_and_pillows_numbers_of_filters(folder):
    transform = crop()
    dataset = timm.data.ImageDataset(str(folder), transform=compose(transform))
    for interpolation, text in [
        (Image.Resampling.LANCZOS, "by lanczos"), ([MODES[1]], "by bicubic"),
        (tuple(MODES[::-1]), "by bicubic or bilinear"), ([MODES[1]] * 2, "by bicubic ->"),
    ]:
        transform.interpolation = interpolation
        loader = feedmill.DataLoader(dataset, native="verify", batch_size=4)
        assert text in f"{loader.explain()} ->"
        list(loader)
    transform.interpolation = MODES * 2
    reasons = feedmill.DataLoader(dataset).explain()
    assert "RandomResizedCropAndInterpolation with interpolation=" in reasons


# ---- collate_fn and loaders ----------------------------------------------------------------------


def to_numpy(folder):
    from torchvision import transforms

    return timm.data.ImageDataset(str(folder), transform=transforms.Compose(
        [transforms.Resize((24, 24)), timm.data.transforms.ToNumpy()]
    ))


@pytest.mark.parametrize("num_workers", [0, 2])
def test_fast_collate_of_arrays(folder, num_workers):
    """ToNumpy and fast_collate, as in timm before 1.0."""
    options = {"batch_size": 5, "collate_fn": timm.data.loader.fast_collate}
    dataset = to_numpy(folder)
    loader = feedmill.DataLoader(dataset, native="require", num_workers=num_workers, **options)
    assert "collate_fn need not be called" in loader.explain()
    for wanted, got in zip(DataLoader(dataset, **options), loader, strict=True):
        assert type(got) is tuple
        for one, other in zip(wanted, got, strict=True):
            assert one.dtype == other.dtype and torch.equal(one, other)
            assert one.stride() == other.stride()
    list(feedmill.DataLoader(dataset, native="verify", **options))


@pytest.mark.parametrize("num_workers", [0, 2])
def test_torchs_collate_fn_of_arrays(folder, num_workers):
    options = {"batch_size": 5, "num_workers": num_workers}
    dataset = to_numpy(folder)
    for native in ("require", "verify"):
        loader = feedmill.DataLoader(dataset, native=native, **options)
        for wanted, got in zip(DataLoader(dataset, **options), loader, strict=True):
            assert type(got) is type(wanted) is list
            for one, other in zip(wanted, got, strict=True):
                assert one.dtype == other.dtype and torch.equal(one, other)
                assert one.stride() == other.stride()
    for others in ({"collate_fn": lambda samples: samples}, {"batch_size": None}):
        text = feedmill.DataLoader(dataset, **options | others).explain()
        assert "the samples hold NumPy arrays" in text


@pytest.mark.parametrize("target", [True, 2.5, [0.0, 1.0], np.int64(3)])
def test_fast_collate_of_other_targets(folder, target):
    """fast_collate itself makes the batch of targets that are no ints, or raises its error."""
    dataset = timm.data.ImageDataset(str(folder), transform=compose(crop()))
    dataset.reader.samples = [(path, target) for path, _ in dataset.reader.samples]
    dataset.transform.transforms[0].scale = dataset.transform.transforms[0].ratio = (1, 1)
    options = {"batch_size": 5, "collate_fn": timm.data.loader.fast_collate}

    def targets(loader):
        try:
            return [batch[1] for batch in loader]
        except Exception as error:
            return [type(error), str(error)]

    native = targets(feedmill.DataLoader(dataset, native="require", **options))
    for one, other in zip(targets(DataLoader(dataset, **options)), native, strict=True):
        if isinstance(one, torch.Tensor):
            assert one.dtype == other.dtype and torch.equal(one, other)
        else:
            assert one == other


def test_fast_collate_of_floats_is_called(folder):
    """It converts them to uint8, which native batches do not."""
    _, inner = made(folder, training=False, use_prefetcher=False)
    options = {"batch_size": 5, "collate_fn": timm.data.loader.fast_collate}
    loader = feedmill.DataLoader(inner.dataset, native="require", **options)
    for wanted, got in zip(DataLoader(inner.dataset, **options), loader, strict=True):
        assert torch.equal(wanted[0], got[0]) and got[0].dtype is torch.uint8


# ---- images that can't be read -------------------------------------------------------------------


@pytest.fixture
def damaged(tmp_path, folder):
    """The folder with files that ImageDataset skips, at the beginning, the end and in a row."""
    root = tmp_path / "damaged"
    shutil.copytree(folder, root)
    files = sorted((root / "class1").iterdir())
    files[0].write_bytes(b"no image")
    files[1].write_bytes(b"")
    files[2].write_bytes(files[2].read_bytes()[:-9])
    (root / "class0" / "000.jpg").write_bytes(b"\xff\xd8\xff\xe0")
    (root / "class2" / "zzz.png").write_bytes(b"\x89PNG\r\n\x1a\n")
    return root


@pytest.mark.parametrize("num_workers", [0, 2])
def test_unreadable_images_are_replaced_as_by_timm(damaged, num_workers, caplog):
    _, inner = made(damaged, training=False, num_workers=0)
    dataset = inner.dataset
    dataset.reader.samples[10] = (str(damaged / "missing.jpg"), dataset.reader.samples[10][1])
    dataset.reader.samples[12] = (str(damaged), dataset.reader.samples[12][1])
    options = {"batch_size": 5, "collate_fn": inner.collate_fn}

    def epoch(loader):
        caplog.clear()
        try:
            batches = list(loader)
        except Exception as error:
            return type(error), []
        texts = [one.getMessage() for one in caplog.records if one.name.startswith("timm")]
        return batches, texts

    with caplog.at_level(logging.WARNING):
        wanted, warnings = epoch(DataLoader(dataset, **options))
        native = feedmill.DataLoader(
            dataset, native="require", num_workers=num_workers, **options
        )
        got, ours = epoch(native)
    if isinstance(wanted, list):
        assert native.stats().decode.fallback_samples >= 4
        for one, other in zip(wanted, got, strict=True):
            assert torch.equal(one[0], other[0]) and torch.equal(one[1], other[1])
        assert warnings and ours == warnings
        list(feedmill.DataLoader(dataset, native="verify", **options))
    else:  # timm before 1.0.31 does not skip images that are damaged further on
        assert got is wanted


class Around(torch.utils.data.Dataset):
    """A dataset of the user's own around timm's."""

    def __init__(self, inner, transform=None):
        self.inner, self.transform = inner, transform

    def __len__(self):
        return len(self.inner)

    def __getitem__(self, index):
        image, target = self.inner[index]
        if self.transform is not None:
            image = self.transform(image)
        return image, target


def test_a_dataset_around_timms_is_left_to_torch(folder):
    _, inner = made(folder, training=False)
    dataset = inner.dataset
    text = feedmill.DataLoader(Around(dataset)).explain()
    assert "ImageDataset within a dataset of your own is not supported natively" in text
    transform, dataset.transform = dataset.transform, None
    text = feedmill.DataLoader(Around(dataset, transform)).explain()
    assert "timm's ImageDataset returns the next image if one can't be read" in text
    dataset.transform = transform
    text = feedmill.DataLoader(dataset, native="hybrid").explain()
    assert text.startswith("native path")


def test_fetch_gives_the_target_of_the_next_image(folder, damaged):
    _, inner = made(folder, training=False)
    dataset = inner.dataset
    samples = dataset.reader.samples
    at = next(i for i, (one, two) in enumerate(zip(samples, samples[1:])) if one[1] != two[1])
    samples[at] = (str(damaged / "missing.jpg"), samples[at][1])
    loader = feedmill.DataLoader(dataset, native="require", collate_fn=inner.collate_fn)
    list(loader)
    try:
        wanted = dataset[at]
    except Exception as error:  # of a timm that does not skip this image
        with pytest.raises(type(error)):
            loader.fetch(at, 0)
        return
    image, target = loader.fetch(at, 0)
    assert target == wanted[1] == samples[at + 1][1]
    assert torch.equal(image, torch.as_tensor(wanted[0]))


def test_too_many_unreadable_images(damaged, folder):
    _, inner = made(folder, training=False)
    dataset = inner.dataset
    dataset.reader.samples = [(str(damaged / "missing.jpg"), 0)] * 60
    options = {"batch_size": 5, "collate_fn": inner.collate_fn}
    types_of_errors = []
    for make in (DataLoader, functools.partial(feedmill.DataLoader, native="require")):
        with pytest.raises(Exception) as raised:
            list(make(dataset, **options))
        types_of_errors.append(raised.type)
    assert types_of_errors[0] is types_of_errors[1]


# ---- what is not recognised ----------------------------------------------------------------------


class Counting(timm.data.transforms.RandomResizedCropAndInterpolation):
    def __call__(self, img):
        return super().__call__(img)


def replaced_code(monkeypatch, dataset):
    function = timm.data.transforms.RandomResizedCropAndInterpolation.__call__

    def other(self, img):
        return functional.resized_crop(img, 0, 0, 9, 9, self.size)

    monkeypatch.setattr(function, "__code__", other.__code__)


def replaced_global(monkeypatch, dataset):
    other = types.SimpleNamespace(**vars(functional))
    monkeypatch.setattr(timm.data.transforms, "F", other)


def replaced_builtin(monkeypatch, dataset):
    monkeypatch.setattr(timm.data.transforms, "isinstance", lambda *_: False, raising=False)


def replaced_params(monkeypatch, dataset):
    kind = timm.data.transforms.RandomResizedCropAndInterpolation
    monkeypatch.setattr(kind, "get_params", staticmethod(lambda *_: (0, 0, 5, 5)))


def own_params(monkeypatch, dataset):
    dataset.transform.transforms[0].get_params = lambda *_: (0, 0, 5, 5)


def subclass(monkeypatch, dataset):
    dataset.transform.transforms[0] = Counting((20, 28))


def replaced_dataset_method(monkeypatch, dataset):
    get = timm.data.ImageDataset.__getitem__
    monkeypatch.setattr(timm.data.ImageDataset, "__getitem__", lambda self, i: get(self, 0))


def subclassed_dataset(monkeypatch, dataset):
    dataset.__class__ = type("ImageDataset", (timm.data.ImageDataset,), {})


def subclassed_reader(monkeypatch, dataset):
    dataset.reader.__class__ = type(
        "ReaderImageFolder", (reader_image_folder.ReaderImageFolder,), {}
    )


def replaced_reader_method(monkeypatch, dataset):
    monkeypatch.setattr(
        reader_image_folder.ReaderImageFolder, "__getitem__", lambda self, i: (None, 0)
    )


def loads_bytes(monkeypatch, dataset):
    dataset.load_bytes = True


def loads_grey(monkeypatch, dataset):
    dataset.input_img_mode = "L"


def transforms_targets(monkeypatch, dataset):
    dataset.target_transform = str


def has_features(monkeypatch, dataset):
    dataset.additional_features = ["a"]


def opens_otherwise(monkeypatch, dataset):
    monkeypatch.setattr(
        timm.data.dataset, "Image", types.SimpleNamespace(**vars(timm.data.dataset.Image))
    )


@pytest.mark.parametrize("change", [
    replaced_code, replaced_global, replaced_builtin, replaced_params, own_params, subclass,
    replaced_dataset_method, subclassed_dataset, subclassed_reader, replaced_reader_method,
    loads_bytes, loads_grey, transforms_targets, has_features, opens_otherwise,
], ids=lambda change: change.__name__)
def test_changed_objects_are_not_native(folder, monkeypatch, change):
    dataset = timm.data.ImageDataset(str(folder), transform=compose(crop()))
    assert feedmill.DataLoader(dataset).explain().startswith("native path")
    change(monkeypatch, dataset)
    explanation = feedmill.DataLoader(dataset).explain()
    assert explanation.startswith("torch's own path")
    assert "could not be inspected" not in explanation


def test_a_changed_fast_collate_is_called(folder, monkeypatch):
    dataset = timm.data.ImageDataset(str(folder), transform=compose(crop()))

    def other(batch):
        return torch.zeros(2, dtype=torch.uint8), torch.zeros(2)

    for change in (lambda: monkeypatch.setattr(timm.data.loader, "fast_collate", other),
                   lambda: monkeypatch.setattr(timm.data.loader, "np", types)):
        with monkeypatch.context():
            change()
            loader = feedmill.DataLoader(
                dataset, native="require", collate_fn=timm.data.loader.fast_collate
            )
            assert "need not be called" not in loader.explain()
            monkeypatch.undo()
