"""Older versions of timm, as public training scripts require them, on the native path: each sample
is compared with what that version's own code makes of the same draws."""

import importlib
import math
import os
import sys
import types
from pathlib import Path

import feedmill
import numpy as np
import pytest
import torch
from frameworks import verify
from PIL import Image
from torchvision import transforms
from torchvision.datasets import ImageFolder

FOLDER = Path(__file__).parents[2] / "build" / "timm"  # .ci/setup-frameworks makes it
VERSIONS = ("0.3.2", "0.4.12", "0.5.4")
HPARAMS = {"translate_const": 14, "img_mean": (124, 116, 104)}
MODULES = ("timm", "timm.data")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    root = tmp_path_factory.mktemp("augmented")
    generator = np.random.default_rng(8)
    for number in range(40):
        size = tuple(map(int, generator.integers(20, 70, 2)))
        pixels = generator.integers(0, 256, (5, 6, 3), dtype=np.uint8)
        path = root / f"class{number % 2}" / f"{number:03}.jpg"
        path.parent.mkdir(exist_ok=True)
        Image.fromarray(pixels).resize(size, Image.Resampling.BICUBIC).save(path, quality=92)
    return root


@pytest.fixture(params=VERSIONS)
def version(request, monkeypatch):
    """Makes ``import timm.data.auto_augment`` that of an older version. The packages are empty:
    their own __init__ imports models, which need an older torch, too."""
    root = FOLDER / request.param
    if not (root / "timm").is_dir():
        if os.environ.get("FEEDMILL_NO_SKIP") == "1":
            pytest.fail(f"{root} is missing")
        pytest.skip(f"timm {request.param} is not in {root}; .ci/setup-frameworks installs it")
    kept = {name: one for name, one in sys.modules.items() if name.partition(".")[0] == "timm"}
    for name in kept:
        del sys.modules[name]
    for name in MODULES:
        module = types.ModuleType(name)
        module.__path__ = [str(root / name.replace(".", "/"))]
        sys.modules[name] = module
    yield request.param
    for name in [name for name in sys.modules if name.partition(".")[0] == "timm"]:
        del sys.modules[name]
    sys.modules.update(kept)


def augment_module():
    return importlib.import_module("timm.data.auto_augment")


def erasing(*args, **options):
    kind = importlib.import_module("timm.data.random_erasing").RandomErasing
    return kind(*args, device="cpu", **options)


def automatic(config, **hparams):
    module = augment_module()
    rand = config.startswith("rand")
    make = module.rand_augment_transform if rand else module.auto_augment_transform
    return make(config, {**HPARAMS, **hparams})


def compose(transform, *more):
    return transforms.Compose([
        transforms.RandomResizedCrop((36, 44), interpolation=3), transform, transforms.ToTensor(),
        transforms.Normalize((0.5, 0.4, 0.3), (0.2, 0.3, 0.2)), *more,
    ])


def explained(folder, transform, *more):
    return feedmill.DataLoader(ImageFolder(folder, compose(transform, *more))).explain()


@pytest.mark.parametrize("config, mode, count", [
    ("rand-m9-mstd0.5-inc1", "pixel", 1), ("rand-m9-mstd0.5", "rand", 3), ("v0", "const", 2),
    ("original-mstd0.5", "pixel", 2),
])
def test_samples_equal_those_of_the_version(version, folder, config, mode, count):
    transform = compose(automatic(config), erasing(0.5, mode=mode, max_count=count))
    verify(ImageFolder(folder, transform), 120)


def test_uniform_magnitudes(version, folder):
    """random.gauss() with an infinite deviation, as in the oldest, gives no magnitude."""
    transform = automatic("rand-m7", magnitude_std=math.inf)
    if version == "0.3.2":
        assert "AugmentOp with magnitude_std=inf" in explained(folder, transform)
    else:
        verify(ImageFolder(folder, compose(transform)), 100)


def test_magnitudes_above_ten(version, folder):
    """timm 0.5 doubles the amount of SolarizeAdd at 20, where the newest stops at 128."""
    transform = automatic("rand-m20", magnitude_max=20)
    if version == "0.5.4":
        assert "AugmentOp with magnitude_max=20.0" in explained(folder, transform)
        ops = augment_module().rand_augment_ops(20, {**HPARAMS, "magnitude_max": 20},
                                                ["Solarize", "Rotate", "SolarizeIncreasing"])
        transform = augment_module().RandAugment(ops, 2)
    verify(ImageFolder(folder, compose(transform)), 100)  # older ones know no magnitude_max


CHANGES = {
    "level": lambda module, transform: setattr(module, denominator(module), 20.0),
    "negation": lambda module, transform: setattr(module, "_randomly_negate", lambda v: v),
    "call": lambda module, transform: setattr(module.AugmentOp, "__call__", lambda op, x: x),
    "function": lambda module, transform: setattr(transform.ops[3], "aug_fn", module.invert),
    "own function": lambda module, transform: setattr(transform.ops[0], "aug_fn", lambda x, **_: x),
    "own level": lambda module, transform: setattr(transform.ops[3], "level_fn", lambda *_: (3,)),
    "maximum": lambda module, transform: setattr(transform.ops[0], "magnitude_max", 20),
    "more": lambda module, transform: setattr(transform.ops[0], "more", 1),
    "name": lambda module, transform: setattr(transform.ops[0], "name", "Invert"),
}


def denominator(module):
    return "_LEVEL_DENOM" if hasattr(module, "_LEVEL_DENOM") else "_MAX_LEVEL"


@pytest.mark.parametrize("change", CHANGES)
def test_changes_are_noticed(version, folder, change):
    transform = automatic("rand-m9-mstd0.5-inc1")
    assert explained(folder, transform).startswith("native path")
    CHANGES[change](augment_module(), transform)
    assert explained(folder, transform).startswith("torch's own path")


# ---- ImageDataset with a parser ------------------------------------------------------------------


def image_dataset(folder, transform):
    try:
        module = importlib.import_module("timm.data.dataset")
        return module.ImageDataset(str(folder), transform=transform)
    except (ImportError, AttributeError) as error:
        pytest.skip(f"this version has none, or it does not work with this torch: {error}")


PLAIN = transforms.Compose([transforms.Resize((20, 24)), transforms.ToTensor()])


def test_image_dataset_with_a_parser(version, folder):
    dataset = image_dataset(folder, PLAIN)
    batches = [
        list(kind(dataset, batch_size=7, **options))
        for kind, options in ((torch.utils.data.DataLoader, {}),
                              (feedmill.DataLoader, {"native": "require"}))
    ]
    for (images, targets), (others, wanted) in zip(*batches, strict=True):
        assert torch.equal(images, others) and torch.equal(targets, wanted)
    verify(image_dataset(folder, compose(automatic("rand-m9-mstd0.5-inc1"))), 40)


DATASET_CHANGES = {
    "bytes": lambda dataset: setattr(dataset, "load_bytes", True),
    "parser": lambda dataset: setattr(dataset, "parser", list(dataset.parser.samples)),
    "reader": lambda dataset: setattr(dataset, "reader", dataset.parser),
    "renamed": lambda dataset: dataset.__dict__.update(reader=dataset.__dict__.pop("parser")),
    "getitem": lambda dataset: setattr(type(dataset), "__getitem__", lambda *_: None),
    "parser's getitem": lambda dataset: setattr(type(dataset.parser), "__getitem__", lambda *_: 0),
    "hidden": lambda dataset: setattr(dataset.parser, "__len__", lambda: 3),
    "missing target": lambda dataset: dataset.parser.samples.append((dataset.parser[0][0], None)),
}


@pytest.mark.parametrize("change", DATASET_CHANGES)
def test_changed_image_datasets_are_noticed(version, folder, change):
    dataset = image_dataset(folder, PLAIN)
    assert feedmill.DataLoader(dataset).explain().startswith("native path")
    DATASET_CHANGES[change](dataset)
    text = feedmill.DataLoader(dataset).explain()
    if change == "missing target" and version != "0.4.12":
        assert text.startswith("native path"), text
    else:
        assert text.startswith("torch's own path"), text
