"""Transforms that resize tensors in float32, as torchvision's v1 does and torch's interpolate() of
float32 tensors, give torch's values, bit for bit."""

import os
import platform
import subprocess
import sys
from pathlib import Path

import feedmill
import numpy as np
import pytest
import torch
from feedmill.planner import comparing, equality
from feedmill.planner.formats import bytes_of
from feedmill.planner.plan import RESIZE, TORCHS_FLOAT_RESIZE, FloatResize, Op
from helpers import (
    MEAN,
    STD,
    Views,
    cifar_in_memory,
    compose,
    equal_batches,
    native_loader,
    pixels,
    save_jpeg,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from torchvision import transforms as T
from torchvision.datasets import ImageFolder
from torchvision.transforms import InterpolationMode, v2

V1_FLOAT = (T.ConvertImageDtype(torch.float32), T.Normalize(MEAN, STD))
V2_FLOAT = (v2.ToImage(), v2.ToDtype(torch.float32, scale=True))
NORMALIZE = T.Normalize(MEAN, STD)
FIXED = {
    "bytes": compose(T.PILToTensor(), T.Resize((17, 40))),
    "bytes_evaluation": compose(T.PILToTensor(), T.Resize(36), T.CenterCrop(32), *V1_FLOAT),
    "bytes_padded": compose(T.PILToTensor(), T.Resize(24), T.CenterCrop((60, 20)), *V1_FLOAT),
    "bytes_gray": compose(T.Grayscale(), T.PILToTensor(), T.Resize((21, 22))),
    "floats": compose(T.ToTensor(), T.Resize((17, 40))),
    "normalized_after": compose(T.ToTensor(), T.Resize((40, 17)), NORMALIZE),
    "normalized_before": compose(T.ToTensor(), NORMALIZE, T.Resize((40, 17))),
    "normalized_twice": compose(T.ToTensor(), NORMALIZE, T.Resize((19, 23)), NORMALIZE),
    "evaluation": compose(T.ToTensor(), T.Resize(36), T.CenterCrop(32), NORMALIZE),
    "padded": compose(T.ToTensor(), T.Resize(24), T.CenterCrop((60, 20)), NORMALIZE),
    "crop_before": compose(T.ToTensor(), T.CenterCrop(20), T.Resize((30, 31)), NORMALIZE),
    "not_resized": compose(T.CenterCrop(21), T.ToTensor(), T.Resize((21, 21)), NORMALIZE),
    "v2": v2.Compose([*V2_FLOAT, v2.Resize((19, 23)), v2.Normalize(MEAN, STD)]),
    "v2_pure": v2.Compose([*V2_FLOAT, v2.ToPureTensor(), v2.Resize(30), v2.CenterCrop(30)]),
    "unscaled": v2.Compose([v2.ToImage(), v2.ToDtype(torch.float32), v2.Resize((19, 23))]),
    "one_row": compose(T.ToTensor(), T.Resize((1, 2))),
    "enlarged": compose(T.ToTensor(), T.Resize((200, 190)), NORMALIZE),
}
RANDOM = {
    "bytes": compose(T.PILToTensor(), T.RandomResizedCrop(24), T.RandomHorizontalFlip(), *V1_FLOAT,
                     T.RandomErasing(0.5)),
    "bytes_flipped_before": compose(T.RandomVerticalFlip(), T.PILToTensor(), T.RandomHorizontalFlip(),
                                    T.RandomResizedCrop((20, 33), (0.3, 1))),
    "bytes_colors_before": compose(T.ColorJitter(0.4, 0.4), T.PILToTensor(), T.Resize((20, 33))),
    "floats": compose(T.ToTensor(), T.RandomResizedCrop(24), T.RandomHorizontalFlip(), NORMALIZE),
    "flips": compose(T.RandomHorizontalFlip(), T.ToTensor(), T.Resize(30), T.RandomCrop(24),
                     T.RandomHorizontalFlip(), NORMALIZE, T.RandomErasing(0.5, value=0.25)),
    "erased_before_normalize": compose(T.ToTensor(), T.Resize((24, 24)),
                                       T.RandomErasing(0.9, value=(0.1, 0.2, 0.3)), NORMALIZE),
    "tiny_crops": compose(T.ToTensor(), T.RandomResizedCrop((9, 21), (1e-5, 2e-2), (0.02, 50))),
    "v2": v2.Compose([*V2_FLOAT, v2.RandomResizedCrop(24), v2.RandomHorizontalFlip(),
                      v2.Normalize(MEAN, STD)]),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """JPEGs of many sizes, some of them gray, and a file that Pillow decodes."""
    root = tmp_path_factory.mktemp("floats")
    sizes = [(1, 1), (1, 9), (9, 1), (2, 3), (7, 5), (17, 33), (17, 40), (36, 36), (31, 30), (63, 64),
             (150, 100), (40, 230), (210, 24), (99, 98)]
    for i, size in enumerate(sizes):
        save_jpeg(root / "a" / f"{i:02}.jpg", *size, seed=i, mode="L" if i % 5 == 4 else "RGB")
    Image.fromarray(pixels(50, 61)).save(root / "a" / "99.bmp")
    return root


def batches(kind, dataset, epochs=1, **options):
    torch.manual_seed(5)
    loader = kind(dataset, batch_size=4, **options)
    return [batch for _ in range(epochs) for batch in loader]


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("name", FIXED)
def test_fixed_transforms_equal_torchs_path(folder, name, layout):
    dataset = ImageFolder(str(folder), FIXED[name])
    loader = native_loader(dataset)
    assert f"resized as in torch {torch.__version__}" in loader.explain()
    natively = batches(native_loader, dataset, memory_format=layout)
    assert all(images.is_contiguous(memory_format=layout) for images, _ in natively)
    assert equal_batches(natively, batches(torch.utils.data.DataLoader, dataset))


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("name", RANDOM)
def test_random_transforms_equal_torchs_path(folder, name, num_workers):
    dataset = ImageFolder(str(folder), RANDOM[name])
    options = {"epochs": 3, "shuffle": True, "num_workers": num_workers}
    natively = batches(feedmill.DataLoader, dataset, native="require", **options)
    assert equal_batches(natively, batches(torch.utils.data.DataLoader, dataset, **options))


@pytest.mark.parametrize("name", RANDOM)
def test_random_transforms_verify_with_our_own_draws(folder, name):
    dataset = ImageFolder(str(folder), RANDOM[name])
    loader = native_loader(dataset, native="verify", batch_size=4)
    for _ in range(3):
        assert sum(len(images) for images, _ in loader) == len(dataset)
    assert loader.stats().decode.verified_samples == 3 * len(dataset)


# Those that there are for this kind of processor.
TIERS = ["scalar", "neon"] if platform.machine() == "aarch64" else ["scalar", "sse41", "avx2", "avx512"]


@pytest.mark.parametrize("tier", TIERS)
def test_every_tier(folder, monkeypatch, tier):
    monkeypatch.setenv("FEEDMILL_CPU", tier)
    for name in ("bytes_evaluation", "padded", "enlarged"):
        dataset = ImageFolder(str(folder), FIXED[name])
        wanted = batches(torch.utils.data.DataLoader, dataset)
        assert equal_batches(batches(native_loader, dataset), wanted)


SIDES = st.integers(1, 8) | st.integers(1, 90) | st.integers(1, 700)


@settings(deadline=None, max_examples=150)
@given(width=SIDES, height=SIDES, new_width=SIDES.filter(lambda side: side > 1),
       new_height=SIDES, channels=st.sampled_from([1, 3]), seed=st.integers(0, 2**32 - 1))
def test_any_sizes(width, height, new_width, new_height, channels, seed):
    random = np.random.default_rng(seed)
    values = random.integers(0, 256, (height, width, channels), dtype=np.uint8)
    table = torch.from_numpy(random.normal(size=(3, 256)).astype(np.float32))
    given = equality.float_resize()._replace(values=bytes_of(table))
    op = Op(RESIZE, new_height, new_width)
    run = comparing.Run([op], values, 1, TORCHS_FLOAT_RESIZE, given)
    try:
        _, got = next(run.results())
        got = torch.from_numpy(got.copy()).permute(2, 0, 1)
    finally:
        run.close()
    image = torch.stack([table[c][torch.from_numpy(values[..., c]).long()] for c in range(channels)])
    wanted = T.functional.resize(image, [new_height, new_width], antialias=True)
    assert torch.equal(got, wanted)


def test_images_in_memory():
    dataset = cifar_in_memory(30)
    crop = T.RandomResizedCrop(40), T.RandomHorizontalFlip()
    for steps in (
        (T.PILToTensor(), T.Resize(20)), (T.PILToTensor(), *crop), (T.ToTensor(), T.Resize(20)),
        (T.ToTensor(), *crop, NORMALIZE, T.RandomErasing(0.5)),
    ):
        dataset.transform = compose(*steps)
        natively = batches(feedmill.DataLoader, dataset, native="require", shuffle=True)
        assert equal_batches(natively, batches(torch.utils.data.DataLoader, dataset, shuffle=True))


def test_views_of_floats_and_of_pillows_images(folder):
    """Each view has its own kind of resize."""
    views = Views(compose(T.ToTensor(), T.Resize((12, 13)), NORMALIZE),
                  compose(T.Resize((12, 13)), T.ToTensor(), NORMALIZE))
    dataset = ImageFolder(str(folder), views)
    natively = batches(native_loader, dataset)
    assert equal_batches(natively, batches(torch.utils.data.DataLoader, dataset))
    assert not torch.equal(*natively[1][0])


CAPABILITIES = ["default", "avx2", "avx512"]


@pytest.mark.slow
@pytest.mark.parametrize("capability", CAPABILITIES)
def test_other_builds_of_torchs_kernels(capability):
    """torch's kernels are compiled several times; which of them run can be chosen at its start."""
    script = ("import pytest, sys; sys.exit(pytest.main(['-q', '-p', 'no:cacheprovider', '-k', "
              f"'equal_torchs_path or any_sizes', {str(Path(__file__))!r}]))")
    environment = {**os.environ, "ATEN_CPU_CAPABILITY": capability}
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True,
                          text=True, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-1000:]


# ---- not native ----------------------------------------------------------------------------------


def assert_left_to_torch(folder, words, *steps, **options):
    dataset = ImageFolder(str(folder), compose(*steps))
    text = feedmill.DataLoader(dataset, **options).explain()
    assert text.startswith("torch's own path, because\n") and words in text, text
    if not options:
        ours = batches(feedmill.DataLoader, dataset)
        assert equal_batches(ours, batches(torch.utils.data.DataLoader, dataset))


@pytest.mark.parametrize(("steps", "words"), [
    ((T.PILToTensor(), T.Resize((8, 9), InterpolationMode.BICUBIC)), "by bilinear only"),
    ((T.ToTensor(), T.Resize((8, 1))), "one pixel wide"),
    ((T.PILToTensor(), T.Resize(1), T.CenterCrop(1)), "one pixel wide"),
    ((T.ToTensor(), T.Resize((8, 9), antialias=False)), "antialias=False"),
    ((v2.ToImage(), v2.ToDtype(torch.float16, scale=True), v2.Resize((8, 9))), "torch.float16"),
    ((T.ToTensor(), T.Resize((8, 9)), NORMALIZE, NORMALIZE), "only one Normalize"),
    ((T.ToTensor(), T.Resize((8, 9)), T.Lambda(lambda image: image * 2 - 1)), "only one Normalize"),
    ((T.ToTensor(), T.Resize((8, 9)), T.ConvertImageDtype(torch.float16)), "torch.float16"),
    ((T.ToTensor(), T.Resize((8, 9)), T.ToPILImage(), T.ToTensor()), "ToPILImage"),
    ((T.Grayscale(), T.ToTensor(), T.Resize((8, 9))), "crop and flip horizontally"),
    ((T.ColorJitter(0.1), T.ToTensor(), T.Resize((8, 9))), "crop and flip horizontally"),
    ((T.ToTensor(), T.Resize((8, 9)), T.RandomVerticalFlip()), "crop and flip horizontally"),
    ((T.ToTensor(), T.RandomErasing(), T.Resize((8, 9))), "follows RandomErasing"),
])
def test_other_float_resizes(small_images, steps, words):
    assert_left_to_torch(small_images, words, *steps)


def test_another_dtype_is_not_native(small_images):
    assert_left_to_torch(small_images, "leave out dtype=torch.float16", T.ToTensor(), T.Resize((8, 9)),
                         dtype=torch.float16)


def test_a_torch_that_resizes_floats_otherwise(small_images, monkeypatch, looked_at_anew):
    original = torch.nn.functional.interpolate

    def other(*args, **kwargs):
        return original(*args, **kwargs).nextafter(torch.tensor(2.0))

    monkeypatch.setattr(torch.nn.functional, "interpolate", other)
    dataset = ImageFolder(str(small_images), compose(T.ToTensor(), T.Resize((9, 8))))
    words = f"the installed torch {torch.__version__} resizes float32 tensors by bilinear differently"
    assert words in feedmill.DataLoader(dataset).explain()


@pytest.mark.usefixtures("looked_at_anew")
def test_a_replaced_resize_is_noticed(small_images, monkeypatch):
    from torchvision.transforms import _functional_tensor

    original = _functional_tensor.resize
    monkeypatch.setattr(_functional_tensor, "resize", lambda *args, **kwargs: original(*args, **kwargs))
    dataset = ImageFolder(str(small_images), compose(T.ToTensor(), T.Resize((9, 8))))
    text = feedmill.DataLoader(dataset).explain()
    assert text.startswith("torch's own path") and "resize" in text


def test_the_ways_of_rounding_differ_on_the_test_images():
    """Otherwise the comparison could not tell them apart."""
    right = equality.float_resize().run_taps
    others = {0, 1, 4, 8, 16} - {right}
    assert all(equality._floats_resized_otherwise(run_taps) for run_taps in others)


@pytest.mark.parametrize(("given", "words"), [
    (FloatResize(65), "run_taps is 65"),
    (FloatResize(-1), "run_taps is -1"),
    (FloatResize(4, b"short"), "5 bytes of values"),
])
def test_wrong_arguments_are_refused(given, words):
    image = pixels(8, 8)
    with pytest.raises(ValueError, match=words):
        comparing.Run([Op(RESIZE, 4, 4)], image, 1, TORCHS_FLOAT_RESIZE, given)


def test_only_bilinear():
    for kind in range(1, 6):
        with pytest.raises(ValueError, match="needs the filter bilinear"):
            comparing.Run([Op(RESIZE, 4, 4, filter=kind)], pixels(8, 8), 1, TORCHS_FLOAT_RESIZE,
                          FloatResize(4))
