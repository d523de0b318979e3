"""Collate functions that make a batch of PIL images, as NVIDIA's fast_collate."""

import functools
import importlib.util
import inspect

import feedmill
import numpy as np
import pytest
import torch
from feedmill.planner import pil_collates
from helpers import Views, pixels, save_jpeg, slow_but_for
from nvidia_collates import fast_collate, format_first, without_format
from PIL import Image
from torch.utils.data import DataLoader
from torchvision import transforms as T
from torchvision.datasets import ImageFolder

LAYOUTS = [torch.contiguous_format, torch.channels_last]
SIZE = 24


class Owner:
    collate_fn = staticmethod(without_format)


FORMAT = ".contiguous(\n        memory_format=memory_format\n    )"
CONVERSION = "        nump_array = np.asarray(img, dtype=np.uint8)\n"


def variant(tmp_path, *changes):
    """format_first() with other lines, in a file of its own."""
    source = inspect.getsource(format_first)
    for old, new in changes:
        assert source.count(old) == 1
        source = source.replace(old, new)
    path = tmp_path / f"variant_{len(list(tmp_path.iterdir()))}.py"
    path.write_text(f"import numpy as np\nimport torch\n\n\n{source}")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.format_first


def upside_down(memory_format, batch):
    """Not fast_collate: it turns the images."""
    return format_first(memory_format, [(image.rotate(180), target) for image, target in batch])


def bound_in_branches(is_last):
    """As in apex's main()."""
    if is_last:
        memory_format = torch.channels_last
    else:
        memory_format = torch.contiguous_format
    return lambda b: fast_collate(b, memory_format)


def bound_later():
    memory_format = torch.contiguous_format
    collate_fn = lambda b: fast_collate(b, memory_format)
    memory_format = torch.channels_last
    return collate_fn


def bound_by_its_own_statement():
    memory_format = torch.contiguous_format
    memory_format = (
        lambda b: fast_collate(b, memory_format),
    )
    return memory_format[0]


def named(batch):
    collated = fast_collate(batch, torch.channels_last)
    return collated


@pytest.fixture
def folder(tmp_path):
    """JPEGs of many sizes, and one image that Pillow decodes."""
    for i in range(10):
        save_jpeg(tmp_path / "ab"[i % 2] / f"{i}.jpg", 30 + 3 * i, 60 - 2 * i, seed=i)
    Image.fromarray(pixels(40, 30)).save(tmp_path / "b" / "p.bmp")
    return tmp_path


TRAINING = T.Compose([
    T.RandomResizedCrop(SIZE), T.RandomHorizontalFlip(), T.ColorJitter(0.3, 0.3, 0.3, 0.1),
])
TESTING = T.Compose([T.Resize(32), T.CenterCrop((SIZE, SIZE + 8))])


def batches_of(kind, dataset, collate_fn, **options):
    torch.manual_seed(3)
    loader = kind(dataset, 4, shuffle=True, collate_fn=collate_fn, **options)
    return [batch for _ in range(2) for batch in loader]


def check(dataset, collate_fn, **options):
    want = batches_of(DataLoader, dataset, collate_fn, **options)
    got = batches_of(feedmill.DataLoader, dataset, collate_fn, native="require", **options)
    assert len(want) == len(got)
    for (images, targets), batch in zip(want, got):
        assert type(batch) is type((images, targets))
        assert type(batch[0]) is torch.Tensor
        assert batch[0].stride() == images.stride()
        assert torch.equal(batch[0], images)
        assert batch[1].dtype is torch.int64
        assert torch.equal(batch[1], targets)


def reasons_of(dataset, collate_fn, **options):
    return feedmill.DataLoader(dataset, 4, collate_fn=collate_fn, **options).explain()


@pytest.mark.parametrize("num_workers", slow_but_for([0], [0, 2]))
@pytest.mark.parametrize("transform", [TRAINING, TESTING], ids=["training", "testing"])
@pytest.mark.parametrize("collate_fn", [
    *(functools.partial(format_first, layout) for layout in LAYOUTS),
    *map(bound_in_branches, (False, True)),
    without_format, Owner.collate_fn, named, lambda b: without_format(b),
], ids=["partial", "partial-last", "lambda", "lambda-last", "plain", "static", "named", "call"])
def test_batches_are_torchs(folder, collate_fn, transform, num_workers):
    check(ImageFolder(folder, transform), collate_fn, num_workers=num_workers)


COPIES = {"none": "nump_array", "method": "nump_array.copy()", "array": "np.array(nump_array)"}


@pytest.mark.parametrize("has_format", [False, True])
@pytest.mark.parametrize("has_tensor", [False, True])
@pytest.mark.parametrize("copies", COPIES.values(), ids=COPIES)
def test_every_known_body(folder, tmp_path_factory, copies, has_tensor, has_format):
    changes = [("nump_array.copy()", copies)]
    if has_tensor:
        changes.append((CONVERSION, f"{CONVERSION}        tens = torch.from_numpy(nump_array)\n"))
    if not has_format:
        changes.append((FORMAT, ""))
    function = variant(tmp_path_factory.mktemp("variants"), *changes)
    layout = torch.channels_last if has_format else torch.contiguous_format
    collate_fn = functools.partial(function, torch.channels_last)
    assert pil_collates.memory_format_of(collate_fn) is layout
    check(ImageFolder(folder, TESTING), collate_fn)


@pytest.mark.parametrize(("old", "new"), [
    (CONVERSION, CONVERSION.rstrip() + "[::-1]\n"),
    ("dtype=torch.int64", "dtype=torch.int32"), ("(len(imgs), 3, h, w)", "(len(imgs), 3, w, h)"),
    ("return tensor, targets", "return targets, tensor"), ("img[0] for", "img[-1] for"),
])
def test_changed_bodies_are_not_known(tmp_path, old, new):
    collate_fn = functools.partial(variant(tmp_path, (old, new)), LAYOUTS[0])
    assert pil_collates.memory_format_of(collate_fn) is None


def test_samples_are_verified(folder):
    loader = feedmill.DataLoader(
        ImageFolder(folder, TRAINING), 4, collate_fn=without_format, native="verify"
    )
    assert sum(len(images) for images, _ in loader) == 11
    assert loader.stats().decode.verified_samples == 11


def test_from_a_tensor_back_to_an_image(folder):
    transform = T.Compose([T.Resize((SIZE, SIZE)), T.ToTensor(), T.ToPILImage()])
    check(ImageFolder(folder, transform), without_format)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_targets_of_other_types(folder, num_workers):
    """They become int64 as torch.tensor() makes them, or raise its error."""
    dataset = ImageFolder(folder, TESTING)
    paths = [path for path, _ in dataset.samples]
    for target in (0.7, True, np.int32(5)):
        dataset.samples = [(path, target) for path in paths]
        check(dataset, without_format, num_workers=num_workers)
    for target in ("no number", np.float32(1.5)):
        dataset.samples = [(path, target) for path in paths]
        for kind in (DataLoader, feedmill.DataLoader):
            with pytest.raises((TypeError, ValueError), match="dimensions 'str'|as an integer"):
                batches_of(kind, dataset, without_format, num_workers=num_workers)


@pytest.mark.parametrize("collate_fn", [
    None, list, functools.partial(upside_down, LAYOUTS[0]),
    functools.partial(format_first, torch.preserve_format), lambda b: upside_down(LAYOUTS[0], b),
    bound_later(), bound_by_its_own_statement(), lambda b: without_format(b + b),
    lambda b: without_format(b)[0], lambda b: b and without_format(b), lambda b: without_format,
    lambda *b: without_format(*b), lambda b: fast_collate(b), lambda b, c: without_format(b),
    lambda b: fast_collate(LAYOUTS[0], b),
], ids=range(15))
def test_other_functions_are_left_to_torch(folder, collate_fn):
    assert "does not end in a tensor" in reasons_of(ImageFolder(folder, TESTING), collate_fn)


def test_other_images_are_left_to_torch(folder):
    gray = T.Compose([*TESTING.transforms, T.Grayscale(1)])
    assert "does not end in a tensor" in reasons_of(ImageFolder(folder, gray), without_format)
    any_size = ImageFolder(folder, T.Resize(32))
    assert "does not lead to one size" in reasons_of(any_size, without_format)
    for options in ({"dtype": torch.float16}, {"memory_format": torch.channels_last}):
        dataset = ImageFolder(folder, TESTING)
        assert "the samples are PIL images" in reasons_of(dataset, without_format, **options)
    both = ImageFolder(folder, Views(TESTING, TRAINING))
    assert "does not end in a tensor" in reasons_of(both, without_format)


@pytest.mark.parametrize("name", ["asarray", "rollaxis"])
def test_replaced_functions_are_called(folder, monkeypatch, name):
    dataset = ImageFolder(folder, TESTING)
    assert pil_collates.memory_format_of(without_format) is torch.contiguous_format
    original = getattr(np, name)
    monkeypatch.setattr(np, name, lambda *args, **kwargs: original(*args, **kwargs))
    assert pil_collates.memory_format_of(without_format) is None
    assert "does not end in a tensor" in reasons_of(dataset, without_format)


def test_other_globals_are_followed(folder, monkeypatch):
    class Turned:
        def __getattr__(self, name):
            return getattr(np, name)

    monkeypatch.setitem(without_format.__globals__, "np", Turned())
    assert pil_collates.memory_format_of(without_format) is None


def test_hybrid_still_calls_any_function(folder):
    """PIL images that only the user's own collate_fn can collate."""
    dataset = ImageFolder(folder, TESTING)
    collate_fn = functools.partial(upside_down, LAYOUTS[0])
    want = list(DataLoader(dataset, 4, collate_fn=collate_fn))
    loader = feedmill.DataLoader(dataset, 4, collate_fn=collate_fn, native="hybrid")
    for (images, targets), batch in zip(want, loader, strict=True):
        assert torch.equal(batch[0], images)
        assert torch.equal(batch[1], targets)
    assert loader.stats().path == "hybrid"
