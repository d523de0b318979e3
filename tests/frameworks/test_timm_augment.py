"""timm's RandAugment and AutoAugment on the native path, compared with timm's own."""

import collections
import math
import random

import feedmill
import frameworks
import numpy as np
import pytest
import torch
from frameworks import ZERO_BITS, verify
from PIL import Image, ImageEnhance, ImageFilter, ImageOps
from torchvision import transforms

frameworks.need("timm")

import timm.data  # noqa: E402
from feedmill.iterators import timm_replay  # noqa: E402
from feedmill.planner import timm_augment, timm_hashes  # noqa: E402
from timm.data import auto_augment as aa  # noqa: E402

HPARAMS = {"translate_const": 14, "img_mean": (124, 116, 104)}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Small smooth images of many sizes."""
    root = tmp_path_factory.mktemp("augmented")
    generator = np.random.default_rng(8)
    for number in range(100):
        size = tuple(map(int, generator.integers(9, 70, 2)))
        pixels = generator.integers(0, 256, (5, 6, 3), dtype=np.uint8)
        path = root / f"class{number % 2}" / f"{number:03}.jpg"
        path.parent.mkdir(exist_ok=True)
        Image.fromarray(pixels).resize(size, Image.Resampling.BICUBIC).save(path, quality=92)
    return root


def automatic(config, **hparams):
    """The transform that timm makes of a --aa argument."""
    make = aa.rand_augment_transform if config.startswith("rand") else aa.auto_augment_transform
    return make(config, {**HPARAMS, **hparams})


def dataset_of(folder, transform, *more):
    parts = [transforms.Resize((36, 44)), transform, *more, transforms.PILToTensor()]
    return timm.data.ImageDataset(str(folder), transform=transforms.Compose(parts))


def why_not(folder, transform):
    return feedmill.DataLoader(dataset_of(folder, transform)).explain()


# ---- pixels --------------------------------------------------------------------------------------


@pytest.mark.parametrize("config", ["rand-m9-mstd0.5-mmax9-inc1", "original-mstd0.5"])
def test_ten_thousand_samples_equal_timms(folder, config):
    verify(dataset_of(folder, automatic(config)), 10000)


@pytest.mark.parametrize("config", [
    "rand", "rand-m0-inc1", "rand-m3-n1-p1.0", "rand-m7-n5-mstd1", "rand-m9-mstd101-inc1",
    "rand-m9-mstd0.5-inc1", "rand-m14", "rand-m9-n4-p0.9-tweights-inc1", "rand-m8-mstd1-n3-t3aw",
    "3a", "rand-m10-mstd101-t3a-p1", "originalr", "originalr-mstd3", "v0", "v0r", "3a-mstd0.5",
    "rand-m9-n0", "rand-m5-p0.0",
])
@pytest.mark.parametrize("filters", [None, Image.Resampling.NEAREST])
def test_other_arguments(folder, config, filters):
    hparams = {} if filters is None else {"interpolation": filters}
    verify(dataset_of(folder, automatic(config, **hparams)), 200)


def test_every_operation_by_itself(folder):
    for name in aa.NAME_TO_OP:
        std = 0.5 if "Posterize" in name else 3
        hparams = {**HPARAMS, "magnitude_std": std, "translate_pct": 0.8}
        ops = aa.rand_augment_ops(6, 1.0, hparams, [name])
        verify(dataset_of(folder, aa.RandAugment(ops, 2)), 100)


def test_other_lists_and_numbers(folder):
    """A list with one operation twice, filters as a list, and unusual numbers."""
    hparams = {**HPARAMS, "interpolation": [2, Image.Resampling.NEAREST], "translate_pct": 10,
               "translate_const": 65535, "magnitude_max": 100}
    names = ["ShearX", "ShearX", "TranslateX", "TranslateYRel", "Rotate", "TranslateY", "ShearY"]
    verify(dataset_of(folder, aa.RandAugment(aa.rand_augment_ops(77.5, 0.9, hparams, names), 3)),
           500)


def test_within_other_transforms(folder):
    inner = transforms.RandomApply([automatic("rand-m6-mstd1-n3")], p=0.7)
    verify(dataset_of(folder, inner, transforms.RandomHorizontalFlip(), automatic("3a")), 400)


def test_each_operation_is_called_with_timms_arguments(folder):
    """Independently of the comparison's code: timm's functions with the arguments that its level
    functions give."""
    n_compared = collections.Counter()
    transform = automatic("rand-m8-mstd1-n1-p1.0-inc1")
    dataset = dataset_of(folder, transform)
    loader = feedmill.DataLoader(dataset, native="require", seed=4)
    by_name = {op.name: op for op in transform.ops}
    negate = aa._randomly_negate
    for epoch in range(4):
        for index in range(len(dataset)):
            ((name, level, detail),) = loader.draws(index, epoch)[1][1]["done"]
            op = by_name[name]
            aa._randomly_negate = lambda value, sign=level: math.copysign(1, sign) * value
            try:
                arguments = op.level_fn(abs(level), op.hparams) if op.level_fn else ()
            finally:
                aa._randomly_negate = negate
            if name.startswith("Posterize") and arguments[0] < 1:
                continue
            resample = getattr(Image.Resampling, (detail or "bicubic").upper())
            image = Image.open(dataset.reader.samples[index][0]).convert("RGB")
            image = dataset.transform.transforms[0](image)
            options = {"fillcolor": HPARAMS["img_mean"], "resample": resample}
            wanted = aa.NAME_TO_OP[name](image, *arguments, **options)
            got = loader.fetch(index, epoch)[0]
            assert torch.equal(got, transforms.functional.pil_to_tensor(wanted))
            n_compared[name] += 1
    assert len(n_compared) == len(by_name)


def test_posterizing_to_no_bits_is_left_to_pillow(folder):
    ops = aa.rand_augment_ops(10, 1.0, HPARAMS, ["PosterizeIncreasing"])
    dataset = dataset_of(folder, aa.RandAugment(ops, 1))
    native = feedmill.DataLoader(dataset, 5, native="require", seed=1)

    def first(loader):
        try:
            return next(iter(loader))[0]
        except ValueError as error:
            return type(error), ZERO_BITS in str(error)

    results = first(torch.utils.data.DataLoader(dataset, 5)), first(native)
    if isinstance(results[0], torch.Tensor):
        assert torch.equal(*results)
        assert native.stats().decode.fallback_samples == 5
    else:
        assert results[0] == results[1] == (ValueError, True)


# ---- draws ---------------------------------------------------------------------------------------

N_DRAWN = 6000


def drawn_natively(folder, transform):
    """What is done with N_DRAWN images: tuples of (operation, magnitude, filter or radius)."""
    loader = feedmill.DataLoader(dataset_of(folder, transform), native="require", seed=12)
    ran, _ = feedmill.loader._find(loader, 0, 0)
    source = ran.source
    pool = loader._feedmill.engine_pool
    with pool.diagnostic(source.native_plan, source.n_samples, source.arrays) as handle:
        places = [(epoch, index) for epoch in range(N_DRAWN // 100) for index in range(100)]
        draws = [handle.draws(ran.key, epoch, index, 0, 50, 40, 0) for epoch, index in places]
    return [timm_replay.in_words(one[1][6]) for one in draws]


def drawn_by_timm(transform):
    """What timm does: tuples of (operation, magnitude, arguments, filter)."""
    done, level = [], [None]

    def watch(op):
        level_fn = op.level_fn

        def of_level(magnitude, hparams):
            level[0] = magnitude
            return level_fn(magnitude, hparams)

        def apply(image, *arguments, resample, **_):
            if isinstance(resample, tuple):
                resample = aa._interpolation({"resample": resample})
            done[-1].append((op.name, level[0] if level_fn else None, arguments, resample))
            return image

        op.level_fn = of_level if level_fn else None
        op.aug_fn = apply

    ops = getattr(transform, "ops", None) or [op for one in transform.policy for op in one]
    for op in ops:
        watch(op)
    random.seed(3)
    np.random.seed(3)
    for _ in range(N_DRAWN):
        done.append([])
        transform("image")
    return done


def as_often(ours, timms):
    """Each result is equally frequent, within 5 standard deviations."""
    ours, timms = collections.Counter(ours), collections.Counter(timms)
    for one in ours.keys() | timms.keys():
        assert abs(ours[one] - timms[one]) < 5 * (ours[one] + timms[one]) ** 0.5, one


def same_distribution(one, other):
    """Kolmogorov and Smirnov's test of two arrays, at 0.01%."""
    grid = np.unique(np.concatenate([one, other]))
    shares = [np.searchsorted(np.sort(a), grid, "right") / len(a) for a in (one, other)]
    limit = 2.23 * (1 / len(one) + 1 / len(other)) ** 0.5
    return np.abs(shares[0] - shares[1]).max() < limit


@pytest.mark.parametrize("config", [
    "rand-m9-mstd0.5-inc1", "rand-m6-mstd2-n3-p0.8", "rand-m9-mstd101-n1", "rand-m8-n3-p1.0",
    "rand-m9-mstd0.5-n3-tweights-inc1-p1", "rand-m9-n4-t3aw-mstd1-p0.7", "rand-m12-mmax14-mstd1",
])
def test_rand_augment_is_drawn_as_timm_draws_it(folder, config):
    ours = drawn_natively(folder, automatic(config))
    timms = drawn_by_timm(automatic(config))
    as_often(map(len, ours), map(len, timms))
    for at in range(3):
        as_often([one[at][0] for one in ours if len(one) > at],
                 [one[at][0] for one in timms if len(one) > at])
    if "-t" in config:  # without replacement
        assert all(len({name for name, *_ in one}) == len(one) for one in ours)
    else:
        as_often([(one[0][0], one[1][0]) for one in ours if len(one) == 2],
                 [(one[0][0], one[1][0]) for one in timms if len(one) == 2])
    flat = [one for some in ours for one in some]
    flat_timm = [one for some in timms for one in some]
    levels = [abs(level) for name, level, _ in flat if aa.LEVEL_TO_ARG[name]]
    levels_of_timm = [one[1] for one in flat_timm if one[1] is not None]
    assert same_distribution(np.array(levels), np.array(levels_of_timm))
    rotated = np.array([3 * level for name, level, _ in flat if name == "Rotate"])
    by_timm = np.array([one[2][0] for one in flat_timm if one[0] == "Rotate"])
    assert same_distribution(rotated, by_timm)
    brighter = np.array([1 + 0.09 * level for name, level, _ in flat if name[:7] == "ColorIn"])
    by_timm = np.array([one[2][0] for one in flat_timm if one[0] == "ColorIncreasing"])
    if len(by_timm):
        assert same_distribution(np.maximum(0.1, brighter), by_timm)
    as_often([(name, detail) for name, _, detail in flat if name in timm_augment.GEOMETRIC],
             [(one[0], one[3].name.lower()) for one in flat_timm
              if one[0] in timm_augment.GEOMETRIC])


@pytest.mark.parametrize("policy", ["v0", "v0r", "original", "originalr", "3a"])
def test_auto_augment_is_drawn_as_timm_draws_it(folder, policy):
    """The policies in the native code are timm's."""
    ours = drawn_natively(folder, automatic(policy))
    transform = automatic(policy)
    magnitudes = collections.defaultdict(set)
    for one in transform.policy:
        for op in one:
            magnitudes[op.name].add(op.magnitude)
    timms = drawn_by_timm(transform)
    # Those without a level function have magnitudes, too, which timm does not use.
    named = [tuple((name, abs(level) if aa.LEVEL_TO_ARG[name] else None) for name, level, _ in one)
             for one in ours]
    as_often(named, [tuple(step[:2] for step in one) for one in timms])
    assert all(abs(level) in magnitudes[name] for one in ours for name, level, _ in one)


def test_radii_are_drawn_as_timm_draws_them(folder, monkeypatch):
    ours = drawn_natively(folder, automatic("3a-mstd2"))
    radii = []
    drawn_by = random.Random(3)
    for _ in range(N_DRAWN // 3):
        factor = min(max(drawn_by.gauss(10, 2), 0), 10) / 10
        radii.append(drawn_by.uniform(0.1, 2 * factor))
    ours = [detail for one in ours for name, _, detail in one if name == "GaussianBlurRand"]
    assert same_distribution(np.array(ours), np.array(radii))


# ---- what is not native --------------------------------------------------------------------------


def change(owner, name, value=None):
    """A change of an attribute, for the test's duration, by another function or a value."""
    def apply(monkeypatch, _transform):
        old = getattr(owner, name, None)
        new = (lambda *a, **k: old(*a, **k)) if value is None else value
        monkeypatch.setattr(owner, name, new, raising=False)
    return apply


def change_op(name, value, number=3):
    def apply(_monkeypatch, transform):
        setattr(transform.ops[number], name, value)
    return apply


def change_key(dictionary, key, value):
    def apply(_monkeypatch, transform):
        for op in transform.ops:
            getattr(op, dictionary)[key] = value
    return apply


def change_transform(name, value):
    def apply(_monkeypatch, transform):
        setattr(transform, name, value(transform) if callable(value) else value)
    return apply


class OtherOp(aa.AugmentOp):
    pass


CHANGES = {
    "apply": change(aa.AugmentOp, "__call__"),
    "call": change(aa.RandAugment, "__call__"),
    "length of an op": change(aa.AugmentOp, "__len__", lambda op: 2),
    "array of an op": change(aa.AugmentOp, "__array__"),
    "attributes of an op": change(aa.AugmentOp, "__getattr__"),
    "check": change(aa, "_check_args_tf"),
    "filter": change(aa, "_interpolation"),
    "negate": change(aa, "_randomly_negate"),
    "levels": change(aa, "_solarize_level_to_arg"),
    "denominator": change(aa, "_LEVEL_DENOM", 20.0),
    "Pillow's version": change(aa, "_PIL_VER", (5, 1)),
    "module random": change(aa, "random", np.random),
    "module np": change(aa, "np", math),
    "module Image": change(aa, "Image", ImageOps),
    "built-in name": change(aa, "min", max),
    "random.random": change(random, "random"),
    "random.gauss": change(random, "gauss"),
    "random.choice": change(random, "choice"),
    "random.uniform": change(random, "uniform"),
    "random's bits": change(random._inst, "_randbelow", lambda n: 0),
    "numpy.random.choice": change(np.random, "choice"),
    "Contrast": change(ImageEnhance, "Contrast"),
    "Contrast's degenerate": change(ImageEnhance.Contrast, "__init__"),
    "Color": change(ImageEnhance.Color, "enhance"),
    "enhance": change(ImageEnhance._Enhance, "enhance"),
    "blur": change(ImageFilter, "GaussianBlur"),
    "equalize": change(ImageOps, "equalize"),
    "transform": change(Image.Image, "transform"),
    "point": change(Image.Image, "point"),
    "own aug_fn": change_op("aug_fn", lambda image, *_, **__: image),
    "other aug_fn": change_op("aug_fn", aa.shear_x),
    "own level_fn": change_op("level_fn", lambda level, _: (level,)),
    "other level_fn": change_op("level_fn", aa._shear_level_to_arg),
    "no level_fn": change_op("level_fn", None),
    "name": change_op("name", "ShearX"),
    "unknown name": change_op("name", "Cutout"),
    "prob of one": change_op("prob", 0.4),
    "magnitude of one": change_op("magnitude", 3),
    "std of one": change_op("magnitude_std", 3),
    "maximum of one": change_op("magnitude_max", 3),
    "negative prob": change_op("prob", -1),
    "NaN": change_op("magnitude", math.nan),
    "attribute": change_op("more", 1),
    "hidden method": change_op("__call__", lambda image: image),
    "large maximum": change_op("magnitude_max", 101),
    "no dict": change_op("hparams", collections.OrderedDict(HPARAMS)),
    "hparams": change_key("hparams", "translate_pct", -0.1),
    "large share": change_key("hparams", "translate_pct", 11),
    "fill": change_key("kwargs", "fillcolor", 128),
    "list of a fill": change_key("kwargs", "fillcolor", [1, 2, 3]),
    "large fill": change_key("kwargs", "fillcolor", (1, 2, 256)),
    "lanczos": change_key("kwargs", "resample", Image.Resampling.LANCZOS),
    "three filters": change_key("kwargs", "resample", (0, 2, 3)),
    "no filter": change_key("kwargs", "resample", ()),
    "more keywords": change_key("kwargs", "fill", 1),
    "layers": change_transform("num_layers", 6),
    "true": change_transform("num_layers", True),
    "no operations": change_transform("ops", lambda transform: []),
    "tuple of operations": change_transform("ops", lambda transform: tuple(transform.ops)),
    "no AugmentOp": change_transform("ops", lambda transform: [*transform.ops, ImageOps.invert]),
    "subclass": change_transform("ops", lambda transform: [OtherOp("Invert", hparams=HPARAMS)]),
    "weights": change_transform("choice_weights", lambda transform: np.full(15, 1 / 14)),
    "negative weights": change_transform("choice_weights", lambda _: np.array([-1 / 13] * 15)),
    "list of weights": change_transform("choice_weights", lambda transform: [1 / 15] * 15),
    "few weights": change_transform("choice_weights", lambda _: np.array([1.0] + [0] * 14)),
}


@pytest.mark.parametrize("name", CHANGES)
def test_changes_are_noticed(folder, monkeypatch, name):
    transform = automatic("rand-m7-mstd0.5-inc1")
    assert why_not(folder, transform).startswith("native path")
    with monkeypatch.context() as patch:
        CHANGES[name](patch, transform)
        text = why_not(folder, transform)
        assert text.startswith("torch's own path"), text
    transform = automatic("rand-m7-mstd0.5-inc1")
    assert why_not(folder, transform).startswith("native path")


def test_changed_tables(folder, monkeypatch):
    """The objects hold timm's functions: tables count when an object is made."""
    made = automatic("rand-m7")
    changes = [(aa.LEVEL_TO_ARG, "Rotate", aa._shear_level_to_arg),
               (aa.NAME_TO_OP, "Rotate", lambda image, *_, **__: image),
               (aa.NAME_TO_OP, "Rotate", aa.invert)]
    for table, key, value in changes:
        with monkeypatch.context() as patch:
            patch.setitem(table, key, value)
            assert why_not(folder, made).startswith("native path")
            assert "torch's own path" in why_not(folder, automatic("rand-m7"))
    shorter = aa.RandAugment(aa.rand_augment_ops(5, 0.5, HPARAMS, ["Rotate", "Invert"]), 2)
    verify(dataset_of(folder, shorter), 100)


def test_changed_policies(folder):
    for change_policy in (
        lambda policy: policy.reverse(), lambda policy: policy.pop(),
        lambda policy: setattr(policy[0][0], "prob", 0.5), lambda policy: policy[0].reverse(),
        lambda policy: setattr(policy[1][0], "magnitude", 6),
    ):
        transform = automatic("original-mstd0.5")
        change_policy(transform.policy)
        assert "its policy is none of v0, v0r, original, originalr, 3a" in why_not(folder, transform)
    transform = automatic("v0")
    transform.policy[0] = tuple(transform.policy[0])
    assert "not a list of lists" in why_not(folder, transform)


def test_partials(folder):
    transform = automatic("3a")
    op = transform.policy[1][0]
    for keywords in ({}, {"min_val": 0.5}, {"min_val": 0.4, "max_val": 1.0},
                     {"min_val": 0.5, "max_val": 1.0, "clamp": False}):
        op.level_fn = type(op.level_fn)(aa._minmax_level_to_arg, **keywords)
        assert "Desaturate has another level_fn" in why_not(folder, transform)


def test_other_transforms_and_images(folder):
    grey = transforms.Compose([transforms.Grayscale(1), automatic("rand-m7")])
    assert "grayscale images is not supported" in why_not(folder, grey)
    mixed = aa.augment_and_mix_transform("augmix-m3", dict(HPARAMS))
    assert "AugMixAugment is not supported natively" in why_not(folder, mixed)
    late = transforms.Compose([transforms.PILToTensor(), automatic("rand-m7")])
    dataset = timm.data.ImageDataset(str(folder), transform=late)
    assert "RandAugment follows the conversion" in feedmill.DataLoader(dataset).explain()


def test_the_names_and_hashes_are_complete():
    assert tuple(aa.NAME_TO_OP) == timm_augment.OPERATIONS
    for name, (function, level, keywords) in timm_augment._LEVELS.items():
        assert aa.NAME_TO_OP[name].__name__ == function
        found = aa.LEVEL_TO_ARG[name]
        assert getattr(found, "keywords", {}) == keywords
        found = getattr(found, "func", found)
        assert getattr(found, "__name__", "") == level
        for one in filter(None, (function, level)):
            assert f"{timm_hashes.AUGMENT}:{one}" in timm_hashes.HASHES


# ---- timm's loaders ------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [
    {"auto_augment": "rand-m7-mstd0.5-inc1"},
    {"auto_augment": "rand-m7-mstd0.5-inc1", "interpolation": "bicubic"},
    {"auto_augment": "rand-m7-mstd0.5-inc1", "use_prefetcher": False},
    {"auto_augment": "rand-m7-mstd0.5-inc1", "use_prefetcher": False, "re_prob": 0.4},
    {"auto_augment": "original-mstd0.5", "color_jitter_prob": 0.3, "train_crop_mode": "rkrc"},
    {"auto_augment": "originalr", "mean": (0.5, 0.4, 0.3), "interpolation": "bilinear"},
    {"auto_augment": "v0r-mstd0.5", "vflip": 0.5, "grayscale_prob": 0.2},
    {"auto_augment": "3a", "color_jitter": 0.3},
])
def test_the_transforms_of_create_loader(folder, options):
    dataset = timm.data.create_dataset("", str(folder))
    outer = timm.data.create_loader(
        dataset, (3, 32, 32), 10, is_training=True, num_workers=0, persistent_workers=False,
        device=torch.device("cpu"), **options,
    )
    inner = getattr(outer, "loader", outer)
    loader = feedmill.DataLoader(
        dataset, 10, shuffle=True, collate_fn=inner.collate_fn, native="verify"
    )
    for _ in range(3):
        assert sum(len(targets) for _, targets in loader) == len(dataset)
    assert loader.stats().decode.verified_samples == 3 * len(dataset)


def test_words_of_the_draws():
    number = timm_augment.OPERATIONS.index
    values = (number("Rotate"), -2.5, 1.0, number("Invert"), 3.0, 0.0,
              number("GaussianBlurRand"), 9.0, 1.25)
    assert timm_replay.in_words(values) == (
        ("Rotate", -2.5, "bicubic"), ("Invert", 3.0, None), ("GaussianBlurRand", 9.0, 1.25)
    )
