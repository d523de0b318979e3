"""Transforms that change colors of uint8 tensors give torchvision's values, which are not those of
PIL images, bit for bit."""

import os
import platform
import random
import subprocess
import sys

import feedmill
import numpy as np
import pytest
import torch
from feedmill.planner import comparing, equal_tensor_colors
from feedmill.planner.plan import KINDS, TENSOR_V1, TENSOR_V2, TENSOR_V2_FUSED, Op
from helpers import (
    MEAN,
    STD,
    cifar_in_memory,
    compose,
    equal_batches,
    explained,
    native_loader,
    save_jpeg,
    slow_but_for,
)
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torchvision import transforms as T
from torchvision.datasets import ImageFolder
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional as F2

F1 = T.functional
FLOAT = (v2.ToDtype(torch.float32, scale=True), v2.Normalize(MEAN, STD))
JITTER = (0.4, 0.4, 0.4, 0.1)
TRANSFORMS = {
    "training": v2.Compose([
        v2.ToImage(), v2.RandomResizedCrop(40, antialias=True), v2.RandomHorizontalFlip(),
        v2.ColorJitter(*JITTER), v2.RandomGrayscale(0.2), *FLOAT]),
    "of_v1": compose(
        T.RandomResizedCrop(40), T.PILToTensor(), T.RandomHorizontalFlip(),
        T.RandomApply([T.ColorJitter(*JITTER)], 0.8), T.RandomGrayscale(0.2),
        T.ConvertImageDtype(torch.float32), T.Normalize(MEAN, STD)),
    "plain_tensors": v2.Compose([
        v2.PILToTensor(), v2.CenterCrop(31), v2.RandomOrder([
            v2.ColorJitter(0.9, 0.9, 0.9, 0.5), v2.RandomVerticalFlip(), v2.RandomGrayscale(0.5)])]),
    "v2_after_v1": compose(
        T.PILToTensor(), v2.RandomChoice([v2.ColorJitter(hue=0.5), T.ColorJitter(hue=0.5),
                                          v2.Grayscale(3)]), v2.CenterCrop((20, 33))),
    "to_gray": v2.Compose([
        v2.ToImage(), v2.CenterCrop(28), v2.Grayscale(), v2.ColorJitter(*JITTER), FLOAT[0]]),
    "to_gray_of_v1": compose(T.CenterCrop(28), T.PILToTensor(), T.Grayscale(), T.ColorJitter(*JITTER)),
    "from_gray": v2.Compose([
        v2.Grayscale(), v2.CenterCrop(28), v2.ToImage(), v2.RandomGrayscale(0.5), v2.Grayscale(3),
        v2.ColorJitter(*JITTER)]),
    "tables": v2.Compose([
        v2.ToImage(), v2.CenterCrop(26), v2.RandomInvert(), v2.RandomPosterize(4),
        v2.RandomSolarize(128), v2.RandomAutocontrast(), v2.RandomEqualize(),
        v2.RandomAdjustSharpness(2), *FLOAT]),
    "tables_of_v1": compose(
        T.CenterCrop(26), T.PILToTensor(), T.RandomInvert(), T.RandomPosterize(5),
        T.RandomSolarize(99.5), T.RandomAutocontrast(), T.RandomEqualize(),
        T.RandomChoice([T.RandomAdjustSharpness(0.3, 1.0), T.RandomAdjustSharpness(2.7)])),
    "before_the_crop": v2.Compose([
        v2.ToImage(), v2.ColorJitter(0.4, 0, 0.9, 0.2), v2.RandomCrop(24), *FLOAT]),
    "before_the_resize": v2.Compose([
        v2.CenterCrop(48), v2.ToImage(), v2.ColorJitter(*JITTER), v2.RandomResizedCrop(24)]),
}
PLATFORM_RESIZES = platform.machine() == "aarch64" or (
    torch.backends.cpu.get_cpu_capability() != "DEFAULT"
)
NAMES = [name for name in TRANSFORMS if PLATFORM_RESIZES or name not in (
    "training", "before_the_resize")]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """JPEGs of many sizes, some of them gray."""
    root = tmp_path_factory.mktemp("colors")
    for i in range(24):
        mode = "L" if i % 6 == 5 else "RGB"
        save_jpeg(root / "a" / f"{i:02}.jpg", 24 + 5 * i, 33 + 29 * i % 90, seed=i, mode=mode)
    return root


def batches(kind, dataset, epochs=1, **options):
    torch.manual_seed(5)
    random.seed(5)  # from which v1's RandomChoice draws
    loader = kind(dataset, batch_size=4, shuffle=True, **options)
    return [batch for _ in range(epochs) for batch in loader]


@pytest.mark.parametrize("num_workers", slow_but_for([0], [0, 2]))
@pytest.mark.parametrize("name", NAMES)
def test_batches_equal_torchs(folder, name, num_workers):
    dataset = ImageFolder(str(folder), TRANSFORMS[name])
    options = {"epochs": 3, "num_workers": num_workers}
    natively = batches(feedmill.DataLoader, dataset, native="require", **options)
    assert equal_batches(natively, batches(torch.utils.data.DataLoader, dataset, **options))


@pytest.mark.parametrize("name", NAMES)
def test_our_own_draws_verify(folder, name):
    dataset = ImageFolder(str(folder), TRANSFORMS[name])
    loader = native_loader(dataset, native="verify", batch_size=4, seed=3)
    for _ in range(3):
        assert sum(len(images) for images, _ in loader) == len(dataset)
    assert loader.stats().decode.verified_samples == 3 * len(dataset)


# Those that there are for this kind of processor.
TIERS = ["scalar", "neon"] if platform.machine() == "aarch64" else ["scalar", "sse41", "avx2", "avx512"]


@pytest.mark.parametrize("tier", TIERS)
def test_every_tier(folder, monkeypatch, tier):
    monkeypatch.setenv("FEEDMILL_CPU", tier)
    for name in ("of_v1", "plain_tensors", "to_gray"):
        dataset = ImageFolder(str(folder), TRANSFORMS[name])
        wanted = batches(torch.utils.data.DataLoader, dataset)
        natively = batches(feedmill.DataLoader, dataset, native="require")
        assert equal_batches(natively, wanted)


def test_images_in_memory():
    dataset = cifar_in_memory(30)
    dataset.transform = v2.Compose([v2.ToImage(), v2.ColorJitter(*JITTER), v2.RandomGrayscale(0.3)])
    natively = batches(feedmill.DataLoader, dataset, native="require")
    assert equal_batches(natively, batches(torch.utils.data.DataLoader, dataset))


# ---- every part ----------------------------------------------------------------------------------


def jitter(which, factor):
    values = [0.0] * 8
    values[2 * which:2 * which + 2] = [factor] * 2
    return Op(KINDS["ColorJitter"], values=(*values, 1 << which))


def bits_of(factor):
    return 1 + int(factor * 3) % 8


PARTS = {
    "grayscale": (lambda factor: Op(KINDS["RandomGrayscale"], p=1.0),
                  lambda F, image, factor: F.rgb_to_grayscale(image, image.shape[0])),
    "brightness": (lambda factor: jitter(0, factor),
                   lambda F, image, factor: F.adjust_brightness(image, factor)),
    "contrast": (lambda factor: jitter(1, factor),
                 lambda F, image, factor: F.adjust_contrast(image, factor)),
    "saturation": (lambda factor: jitter(2, factor),
                   lambda F, image, factor: F.adjust_saturation(image, factor)),
    "hue": (lambda factor: jitter(3, factor % 1 - 0.5),
            lambda F, image, factor: F.adjust_hue(image, factor % 1 - 0.5)),
    "invert": (lambda factor: Op(KINDS["RandomInvert"], p=1.0),
               lambda F, image, factor: F.invert(image)),
    "posterize": (lambda factor: Op(KINDS["RandomPosterize"], p=1.0, values=(bits_of(factor),)),
                  lambda F, image, factor: F.posterize(image, bits_of(factor))),
    "solarize": (lambda factor: Op(KINDS["RandomSolarize"], p=1.0, values=(factor * 50 % 255,)),
                 lambda F, image, factor: F.solarize(image, factor * 50 % 255)),
    "autocontrast": (lambda factor: Op(KINDS["RandomAutocontrast"], p=1.0),
                     lambda F, image, factor: F.autocontrast(image)),
    "equalize": (lambda factor: Op(KINDS["RandomEqualize"], p=1.0),
                 lambda F, image, factor: F.equalize(image)),
    "sharpness": (lambda factor: Op(KINDS["RandomAdjustSharpness"], p=1.0, values=(factor,)),
                  lambda F, image, factor: F.adjust_sharpness(image, factor)),
}


def arithmetics():
    (op,) = equal_tensor_colors.settled([Op(KINDS["RandomGrayscale"], arithmetic=TENSOR_V2)])
    return [(F1, TENSOR_V1), (F2, op.arithmetic)]


def check_part(name, values, factor, n_layouts=3):
    """Compares a part with torchvision's functions for an image of (height, width, channels), in
    several memory layouts."""
    op, function = PARTS[name]
    factor = float(np.float32(factor))  # as torchvision draws them
    interleaved = torch.from_numpy(values).permute(2, 0, 1)
    height, width = values.shape[:2]
    within = torch.zeros(values.shape[2], height + 2, width + 3, dtype=torch.uint8)
    within[:, 1:-1, 1:-2] = interleaved
    for F, arithmetic in arithmetics():
        got = comparing.natively([op(factor)._replace(arithmetic=arithmetic)], values)
        layouts = interleaved.contiguous(), interleaved, within[:, 1:-1, 1:-2]
        for image in layouts[:n_layouts]:
            wanted = function(F, image, factor)
            assert np.array_equal(wanted.permute(1, 2, 0).numpy(), got), (name, F.__name__, factor)


def is_even(height, width, channels, n_threads=None):
    """Whether torch rounds alike in all values of an image whose contrast it changes."""
    (jitter_op,) = equal_tensor_colors.settled(
        [jitter(1, 0.5)._replace(arithmetic=TENSOR_V2)])
    ops = [Op(KINDS["RandomCrop"], height, width, values=(0.0,) * 6), jitter_op]
    threads = n_threads or torch.get_num_threads()
    return not equal_tensor_colors.why_uneven(ops, threads, (channels,))


SIDES = st.integers(1, 8) | st.integers(1, 90) | st.just(224)


@settings(deadline=None, max_examples=150)
@given(name=st.sampled_from(sorted(PARTS)), width=SIDES, height=SIDES,
       channels=st.sampled_from([3, 3, 1]), low=st.integers(0, 255), range_=st.integers(1, 256),
       factor=st.sampled_from([0, 1, 0.5, 2, 1e-6, 1000]) | st.floats(0, 3),
       seed=st.integers(0, 2**32 - 1))
def test_any_image(name, width, height, channels, low, range_, factor, seed):
    high = min(256, low + range_)
    shape = (height, width, channels)
    assume(name != "contrast" or is_even(height, width, channels))
    check_part(name, np.random.default_rng(seed).integers(low, high, shape, dtype=np.uint8), factor)


@pytest.mark.parametrize("n_threads", [1, 2, 5])
def test_sizes_in_whose_values_torch_rounds_alike(n_threads):
    """Where they are found to be even, contrasts equal torch's, for factors with which the rounding
    matters."""
    before = torch.get_num_threads()
    torch.set_num_threads(n_threads)
    try:
        if n_threads == 1:
            assert is_even(224, 224, 3)
        n_even = 0
        for height, width in [(15, 1), (4, 4), (5, 7), (33, 31), (224, 224), (227, 227), (250, 250)]:
            if is_even(height, width, 3, n_threads):
                n_even += 1
                for seed in range(4):
                    values = np.random.default_rng(seed).integers(0, 241, (height, width, 3))
                    check_part("contrast", values.astype(np.uint8), 1e-6)
        assert n_even >= 1
    finally:
        torch.set_num_threads(before)


def test_uneven_sizes_are_left_to_torch(small_images, monkeypatch):
    def explanation_of(size, **options):
        transform = v2.Compose([
            v2.ToImage(), v2.Resize(size, antialias=True), v2.ColorJitter(contrast=0.5),
        ])
        dataset = ImageFolder(str(small_images), transform)
        return feedmill.DataLoader(dataset, **options).explain()

    asked = []

    def is_even(n_values, n_threads):
        asked.append((n_values, n_threads))
        return n_values != 3 * 20 * 30

    monkeypatch.setattr(equal_tensor_colors, "_is_even", is_even)
    monkeypatch.setattr(equal_tensor_colors, "once", lambda key, compute: compute())
    assert explanation_of((20, 24), num_workers=2).startswith("native path")
    text = explanation_of((20, 30), num_workers=2)
    assert "20 x 30 pixels, in some values of which torch" in text and "one thread" in text
    assert asked[-1] == (1800, 1)
    explanation_of((20, 30))
    assert asked[-1] == (1800, torch.get_num_threads())


def all_colors():
    """Images that have, together, all colors."""
    for blue in range(0, 256, 4):
        planes = np.mgrid[:256, :256, blue:blue + 4].reshape(3, -1).astype(np.uint8)
        yield np.ascontiguousarray(planes.T.reshape(512, 512, 3))


ALL_COLORS = ("grayscale", "saturation", "hue")


def check_all_colors():
    factors = np.random.default_rng(4).uniform(0, 2, 64)
    for name in ALL_COLORS:
        for values, factor in zip(all_colors(), factors):
            check_part(name, values, factor, n_layouts=1)


@pytest.mark.slow
def test_all_colors():
    check_all_colors()


@pytest.mark.slow
@pytest.mark.skipif(platform.machine() != "x86_64", reason="they are names of x86-64's")
@pytest.mark.parametrize("capability", ["default", "avx2", "avx512"])
def test_all_colors_with_torchs_code_for_each_kind_of_cpu(capability):
    run_with_capability(capability, "check_all_colors()")


def check_examples():
    for seed in range(12):
        generator = np.random.default_rng(seed)
        shape = (*generator.integers(3, 70, 2), 1 if seed % 4 == 3 else 3)
        image = generator.integers(0, 256, shape, dtype=np.uint8)
        for name in PARTS:
            check_part(name, image, generator.uniform(0, 2))


@pytest.mark.skipif(platform.machine() != "x86_64", reason="they are names of x86-64's")
@pytest.mark.slow
@pytest.mark.parametrize("capability", ["default", "avx2", "avx512"])
def test_torchs_code_for_each_kind_of_cpu(capability):
    """torch adds products with one rounding or two, depending on the CPU."""
    run_with_capability(capability, "check_examples()")


def run_with_capability(capability, call):
    text = (
        f"import conftest, test_tensor_colors as t; t.{call}; import torch; "
        "has_fma = torch.backends.cpu.get_cpu_capability() != 'DEFAULT'; "
        "assert t.arithmetics()[1][1] == (t.TENSOR_V2_FUSED if has_fma else t.TENSOR_V2)"
    )
    environment = {**os.environ, "ATEN_CPU_CAPABILITY": capability}
    subprocess.run([sys.executable, "-c", text], check=True, timeout=3600, env=environment,
                   cwd=os.path.dirname(__file__))


def test_the_two_roundings_differ_on_the_test_images():
    """Otherwise a test of one would pass with the other."""
    for op in (jitter(2, 0.3), jitter(2, 1.9)):
        images = [comparing.natively([op._replace(arithmetic=one)], next(all_colors()))
                  for one in (TENSOR_V2, TENSOR_V2_FUSED)]
        assert not np.array_equal(*images)


# ---- not native ----------------------------------------------------------------------------------


def assert_left_to_torch(folder, words, *steps):
    text = explained(folder, *steps)
    assert text.startswith("torch's own path, because\n") and words in text, text
    dataset = ImageFolder(str(folder), compose(*steps))
    ours = batches(feedmill.DataLoader, dataset)
    assert equal_batches(ours, batches(torch.utils.data.DataLoader, dataset))


CROP = v2.CenterCrop(24)


@pytest.mark.parametrize(("steps", "words"), [
    ((T.ToTensor(), CROP, v2.ColorJitter(0.4)), "ColorJitter follows a conversion of the pixel values"),
    ((v2.ToImage(), CROP, FLOAT[0], v2.RandomApply([v2.RandomGrayscale()])),
     "RandomApply follows a conversion of the pixel values"),
    ((v2.ToImage(), CROP, T.RandomGrayscale()), "follows v2.ToImage"),
    ((v2.ToImage(), CROP, v2.RandomApply([T.RandomGrayscale()])), "follows v2.ToImage"),
    ((v2.ToImage(), v2.ColorJitter(0.4, 0.4), CROP), "the contrast of a tensor"),
    ((v2.Resize((257, 257)), v2.ToImage(), v2.ColorJitter(0.4, 0.4)), "the contrast of a tensor"),
    ((v2.ToImage(), CROP, v2.RandomSolarize(-1)), "from 0 to 255 for tensors"),
    ((T.Grayscale(), CROP, T.PILToTensor(), T.Grayscale(3)), "num_output_channels=3"),
])
def test_other_transforms_of_tensors(small_images, steps, words):
    assert_left_to_torch(small_images, words, *steps)


def test_the_largest_image_whose_contrast_is_changed(small_images):
    white = [v2.ColorJitter(brightness=(300, 300)), v2.ColorJitter(0, 0.9)]
    dataset = ImageFolder(str(small_images), compose(v2.Resize((256, 257)), v2.ToImage(), *white))
    natively = batches(feedmill.DataLoader, dataset, native="require")
    assert equal_batches(natively, batches(torch.utils.data.DataLoader, dataset))


@pytest.mark.parametrize(("module", "name", "steps"), [
    (F2, "adjust_contrast", (v2.ToImage(), CROP, v2.ColorJitter(contrast=0.3))),
    (F1, "adjust_contrast", (CROP, T.PILToTensor(), T.ColorJitter(contrast=0.3))),
    (sys.modules["torchvision.transforms._functional_tensor"], "_blend",
     (CROP, T.PILToTensor(), T.ColorJitter(contrast=0.3))),
    (sys.modules["torchvision.transforms.v2.functional._color"], "_rgb_to_grayscale_image",
     (v2.ToImage(), CROP, v2.RandomApply([v2.RandomGrayscale()]))),
])
def test_replaced_functions(small_images, monkeypatch, module, name, steps):
    assert explained(small_images, *steps).startswith("native path")
    original = getattr(module, name)
    monkeypatch.setattr(module, name, lambda *arguments, **options: original(*arguments, **options))
    assert f"{name} was replaced" in explained(small_images, *steps)


@pytest.mark.parametrize("kind", [torch.Tensor, sys.modules["torchvision.tv_tensors"].Image])
def test_replaced_kernels(small_images, monkeypatch, kind):
    utils = sys.modules["torchvision.transforms.v2.functional._utils"]
    kernels = utils._KERNEL_REGISTRY[F2.adjust_hue]
    monkeypatch.setitem(kernels, kind, lambda image, hue_factor: image)
    steps = (v2.ToImage(), CROP, v2.ColorJitter(hue=0.3))
    assert_left_to_torch(small_images, "adjust_hue's kernel for tensors was replaced", *steps)


@pytest.mark.parametrize("steps", [
    (v2.ToImage(), CROP, v2.RandomAdjustSharpness(2)),
    (CROP, T.PILToTensor(), T.ColorJitter(hue=0.2)),
])
def test_other_precisions_of_torch(small_images, steps):
    """torch computes the convolution and the product of matrices by which these are made."""
    with torch.autocast("cpu"):
        assert "needs full float32 precision" in explained(small_images, *steps)
    assert explained(small_images, *steps).startswith("native path")


def test_a_lower_precision_of_products_of_matrices(small_images):
    torch.set_float32_matmul_precision("medium")
    try:
        of_v1 = (CROP, T.PILToTensor(), T.ColorJitter(hue=0.2))
        assert "needs full float32 precision" in explained(small_images, *of_v1)
        of_v2 = (v2.ToImage(), CROP, v2.ColorJitter(hue=0.2), v2.RandomAdjustSharpness(2))
        assert explained(small_images, *of_v2).startswith("native path")
    finally:
        torch.set_float32_matmul_precision("highest")


def test_another_default_dtype(small_images):
    """torch computes in it what it computes of integers and numbers of Python."""
    steps = (v2.ToImage(), CROP, v2.ColorJitter(0.3))
    torch.set_default_dtype(torch.float64)
    try:
        assert "default dtype is torch.float64" in explained(small_images, *steps)
    finally:
        torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize("threshold", [127.99999999, 128, 128.0000001, 128.00001, 0.0, 255])
@pytest.mark.parametrize("module", [T, v2])
def test_thresholds_are_rounded(module, threshold):
    """torch compares the pixels as float32."""
    dataset = cifar_in_memory(4)
    dataset.data[:] = np.arange(4 * 32 * 32 * 3).reshape(dataset.data.shape).astype(np.uint8)
    dataset.transform = compose(T.PILToTensor(), module.RandomSolarize(threshold, p=1.0))
    natively = batches(feedmill.DataLoader, dataset, native="require")
    assert equal_batches(natively, batches(torch.utils.data.DataLoader, dataset))


def test_a_torchvision_that_computes_otherwise(small_images, monkeypatch, looked_at_anew):
    color = sys.modules["torchvision.transforms.v2.functional._color"]
    monkeypatch.setattr(color, "_max_value", lambda dtype: 254)
    words = "applies brightness to uint8 tensors differently than feedmill does"
    assert_left_to_torch(small_images, words, v2.ToImage(), CROP, v2.ColorJitter(0.3))
    assert explained(small_images, v2.ToImage(), CROP, v2.RandomGrayscale()).startswith("native")


def test_a_torch_that_adds_otherwise(small_images, monkeypatch, looked_at_anew):
    """As if only some of the values were added with one rounding."""
    fused, rounded = ([equal_tensor_colors._added_otherwise(one)] for one in (True, False))
    assert [] in (*fused, *rounded)
    monkeypatch.setattr(equal_tensor_colors, "_added_otherwise", lambda is_fused: ["7 values"])
    words = "adds products to tensors differently than feedmill does"
    assert_left_to_torch(small_images, words, v2.ToImage(), CROP, v2.RandomGrayscale())
    steps = (CROP, T.PILToTensor(), T.RandomGrayscale())
    assert explained(small_images, *steps).startswith("native path")
