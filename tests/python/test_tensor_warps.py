"""Affine transforms and automatic augmentations of uint8 tensors give torchvision's values, bit for
bit."""

import itertools
import math
import os
import platform
import random
import subprocess
import sys
from fractions import Fraction

import feedmill
import numpy as np
import pytest
import torch
from feedmill.planner import comparing, equal_tensor_colors, equal_tensor_warps
from feedmill.planner.plan import (
    FUSED_GRID,
    FUSED_SAMPLES,
    KINDS,
    TENSOR_V1,
    TENSOR_V2,
    WITHOUT_FILL,
    Op,
    UnsupportedError,
)
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
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from torchvision import transforms as T
from torchvision.datasets import ImageFolder
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional as F2

F1 = T.functional
BILINEAR, NEAREST = 0, 5  # fm_filter
MODES = {BILINEAR: T.InterpolationMode.BILINEAR, NEAREST: T.InterpolationMode.NEAREST}
LINEARLY = T.InterpolationMode.BILINEAR
FLOAT = (v2.ToDtype(torch.float32, scale=True), v2.Normalize(MEAN, STD))
TRANSFORMS = {
    "training": v2.Compose([
        v2.ToImage(), v2.CenterCrop(40), v2.RandomHorizontalFlip(), v2.RandAugment(), *FLOAT]),
    "training_bilinear": v2.Compose([
        v2.PILToTensor(), v2.CenterCrop((32, 40)),
        v2.TrivialAugmentWide(interpolation=LINEARLY, fill=(10, 200, 30)), *FLOAT]),
    "policies": v2.Compose([
        v2.ToImage(), v2.CenterCrop(33), v2.AutoAugment(interpolation=LINEARLY, fill=7), *FLOAT]),
    "of_v1": compose(
        T.PILToTensor(), T.RandomCrop(24), T.RandAugment(interpolation=LINEARLY),
        T.TrivialAugmentWide(fill=[1.0, 2.0, 250.0]), T.AutoAugment(T.AutoAugmentPolicy.CIFAR10),
        T.ConvertImageDtype(torch.float32), T.Normalize(MEAN, STD)),
    "rotation": v2.Compose([
        v2.ToImage(), v2.CenterCrop((23, 31)), v2.RandomRotation(170),
        v2.RandomRotation((-90, 300), LINEARLY, fill=9)]),
    "rotation_of_v1": compose(
        T.CenterCrop(30), T.PILToTensor(), T.RandomRotation(170, center=(3, 29.5)),
        T.RandomApply([T.RandomRotation((-90, 300), LINEARLY, fill=(3, 4, 5))], 0.7)),
    "affine": v2.Compose([
        v2.PILToTensor(), v2.CenterCrop((30, 22)), v2.RandomAffine(15, (0.1, 0.3), (0.5, 1.5), 20),
        v2.RandomAffine(90, shear=(-8, 8, -30, 10), interpolation=LINEARLY, fill=200,
                        center=(0, 7))]),
    "affine_of_v1": compose(
        T.PILToTensor(), T.CenterCrop(25),
        T.RandomAffine(15, (0.1, 0.3), (0.5, 1.5), 20, LINEARLY, [9.0, 8.0, 7.0]),
        T.RandomChoice([T.RandomAffine(45), T.RandomVerticalFlip()])),
    "gray": v2.Compose([
        v2.ToImage(), v2.CenterCrop(28), v2.Grayscale(), v2.RandomAffine(30, interpolation=LINEARLY),
        v2.RandAugment(interpolation=LINEARLY, fill=[31]), FLOAT[0]]),
    "without_fill": v2.Compose([
        v2.ToImage(), v2.CenterCrop(28), v2.RandomRotation(40, LINEARLY, fill=None),
        v2.RandomAffine(40, (0.3, 0.3), fill=None)]),
}


def is_rounding_known(*sizes):
    """Whether torch's library for products of matrices rounds in one of the native ways here."""
    op = Op(KINDS["RandomAffine"], arithmetic=TENSOR_V1)
    try:
        for size in sizes:
            equal_tensor_warps.settled([op], size)
    except UnsupportedError:
        return False
    return True


needs_known_rounding = pytest.mark.skipif(
    not is_rounding_known((40, 40), (32, 40), (24, 24)),
    reason="torch's library for products of matrices rounds otherwise on this CPU",
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """JPEGs of many sizes, some of them gray, and BMP files, which Pillow decodes."""
    root = tmp_path_factory.mktemp("warps")
    for i in range(24):
        mode = "L" if i % 6 == 5 else "RGB"
        path = root / "a" / f"{i:02}.jpg"
        save_jpeg(path, 24 + 5 * i, 33 + 29 * i % 90, seed=i, mode=mode)
        if i % 6 == 4:
            Image.open(path).save(path.with_suffix(".bmp"))
            path.unlink()
    return root


def batches(kind, dataset, epochs=1, **options):
    torch.manual_seed(5)
    random.seed(5)  # from which v1's RandomChoice draws
    loader = kind(dataset, batch_size=4, shuffle=True, **options)
    return [batch for _ in range(epochs) for batch in loader]


@needs_known_rounding
@pytest.mark.parametrize("num_workers", slow_but_for([2], [0, 2]))
@pytest.mark.parametrize("name", TRANSFORMS)
def test_batches_equal_torchs(folder, name, num_workers):
    dataset = ImageFolder(str(folder), TRANSFORMS[name])
    options = {"epochs": 3, "num_workers": num_workers}
    natively = batches(feedmill.DataLoader, dataset, native="require", **options)
    assert equal_batches(natively, batches(torch.utils.data.DataLoader, dataset, **options))


@needs_known_rounding
@pytest.mark.parametrize("name", TRANSFORMS)
def test_our_own_draws_verify(folder, name):
    dataset = ImageFolder(str(folder), TRANSFORMS[name])
    loader = native_loader(dataset, native="verify", batch_size=4, seed=3)
    for _ in range(3):
        assert sum(len(images) for images, _ in loader) == len(dataset)
    assert loader.stats().decode.verified_samples == 3 * len(dataset)


# Those that there are for this kind of processor.
TIERS = ["scalar", "neon"] if platform.machine() == "aarch64" else ["scalar", "sse41", "avx2", "avx512"]


@needs_known_rounding
@pytest.mark.parametrize("tier", TIERS)
def test_every_tier(folder, monkeypatch, tier):
    monkeypatch.setenv("FEEDMILL_CPU", tier)
    for name in ("of_v1", "affine", "gray"):
        dataset = ImageFolder(str(folder), TRANSFORMS[name])
        wanted = batches(torch.utils.data.DataLoader, dataset)
        natively = batches(feedmill.DataLoader, dataset, native="require")
        assert equal_batches(natively, wanted)


@needs_known_rounding
def test_images_in_memory():
    dataset = cifar_in_memory(30)
    dataset.transform = v2.Compose([v2.ToImage(), v2.RandAugment(), v2.RandomRotation(30)])
    natively = batches(feedmill.DataLoader, dataset, native="require")
    assert equal_batches(natively, batches(torch.utils.data.DataLoader, dataset))


# ---- every part ----------------------------------------------------------------------------------

FILL = (9, 120, 230)


def arithmetics():
    (op,) = equal_tensor_colors.settled([Op(KINDS["RandomGrayscale"], arithmetic=TENSOR_V2)])
    return [(F1, TENSOR_V1), (F2, op.arithmetic)]


def affine_op(filter_number, has_fill, center, degrees=(-170, 170)):
    values = (*degrees, 1, 0.3, 0.3, 1, 4, -25, 25, -30, 30, *center, *FILL)
    return Op(KINDS["RandomAffine"], scale_low=0.3, scale_high=3.0, values=values,
              filter=filter_number, sampling=0 if has_fill else WITHOUT_FILL)


def rotation_op(filter_number, has_fill, center, degrees=(-400, 400)):
    return Op(KINDS["RandomRotation"], values=(*degrees, *center, *FILL), filter=filter_number,
              sampling=0 if has_fill else WITHOUT_FILL)


def check_part(op, image, n=4):
    """Compares an op with torchvision's functions for an image of (height, width, channels)."""
    height, width, channels = image.shape
    at, name = (2, "rotate") if op.kind == KINDS["RandomRotation"] else (11, "affine")
    options = {
        "interpolation": MODES[op.filter],
        "center": list(op.values[at + 1:at + 3]) if op.values[at] else None,
        "fill": None if op.sampling & WITHOUT_FILL else [float(one) for one in FILL[:channels]],
    }
    tensor = torch.from_numpy(image).permute(2, 0, 1)
    for F, arithmetic in arithmetics():
        settled = equal_tensor_warps.settled([op._replace(arithmetic=arithmetic)], (height, width))
        run = comparing.Run(settled, image, n)
        for draws, got in itertools.islice(run.results(), n):
            values = draws[0][6]
            given = {"angle": values[0]}
            if name == "affine":
                given.update(translate=[int(one) for one in values[1:3]], scale=values[3],
                             shear=list(values[4:6]))
            for one in (tensor, tensor.contiguous()):
                wanted = getattr(F, name)(one, **given, **options)
                assert np.array_equal(wanted.permute(1, 2, 0).numpy(), got), (F, given, options)
        run.close()


SIDES = st.integers(1, 8) | st.integers(1, 90) | st.just(224)


@settings(deadline=None, max_examples=100)
@given(make=st.sampled_from([affine_op, rotation_op]), filter_number=st.sampled_from(sorted(MODES)),
       has_fill=st.booleans(), width=SIDES, height=SIDES, channels=st.sampled_from([3, 3, 1]),
       center=st.just((0, 0, 0)) | st.tuples(st.just(1), st.floats(-300, 300), st.integers(-99, 99)),
       seed=st.integers(0, 2**32 - 1))
def test_any_image(make, filter_number, has_fill, width, height, channels, center, seed):
    if not is_rounding_known((height, width)):
        return
    shape = (height, width, channels)
    image = np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)
    check_part(make(filter_number, has_fill, center), image)


def check_examples():
    for seed in range(10):
        generator = np.random.default_rng(seed)
        shape = (*generator.integers(1, 150, 2), 1 if seed % 4 == 3 else 3)
        image = generator.integers(0, 256, shape, dtype=np.uint8)
        for make, filter_number in itertools.product((affine_op, rotation_op), MODES):
            check_part(make(filter_number, seed % 2 == 0, (0, 0, 0)), image)


@needs_known_rounding
@pytest.mark.skipif(platform.machine() != "x86_64", reason="they are names of x86-64's")
@pytest.mark.slow
@pytest.mark.parametrize("capability", ["default", "avx2", "avx512"])
def test_torchs_code_for_each_kind_of_cpu(capability):
    text = (
        "import conftest, torch, test_tensor_warps as t; "
        "[(torch.set_num_threads(n), t.check_examples()) for n in (1, 2)]; "
        "has_fma = torch.backends.cpu.get_cpu_capability() != 'DEFAULT'; "
        "assert t.equal_tensor_warps._rounding_of_samples() == (t.FUSED_SAMPLES if has_fma else 0)"
    )
    environment = {**os.environ, "ATEN_CPU_CAPABILITY": capability}
    subprocess.run([sys.executable, "-c", text], check=True, timeout=3600, env=environment,
                   cwd=os.path.dirname(__file__))


@needs_known_rounding
@pytest.mark.parametrize("degrees", [0, 90, 180, 270, -90, 360, 450, -1080])
@pytest.mark.parametrize("shape", [(24, 24, 3), (24, 25, 3), (1, 1, 1)])
def test_quarter_turns(degrees, shape):
    """v2 only copies pixels there, v1 samples."""
    image = np.random.default_rng(3).integers(0, 256, shape, dtype=np.uint8)
    for filter_number, has_fill in itertools.product(MODES, (True, False)):
        check_part(rotation_op(filter_number, has_fill, (0, 0, 0), (degrees, degrees)), image, n=1)


@needs_known_rounding
def test_points_far_outside():
    image = np.random.default_rng(4).integers(0, 256, (30, 20, 3), dtype=np.uint8)
    for filter_number, has_fill in itertools.product(MODES, (True, False)):
        op = affine_op(filter_number, has_fill, (1, 1e9, -1e9))
        check_part(op._replace(scale_low=1e-3, scale_high=1e-3), image)
        values = [*op.values]
        values[7:11] = 89, 89, -89, 89
        check_part(op._replace(values=tuple(values)), image)


# ---- every rounding ------------------------------------------------------------------------------


def rounded_by(image, matrix, op):
    """What an op must give, by the rules as numpy computes them."""
    height, width, channels = image.shape
    theta = np.array(matrix, np.float32).reshape(2, 3)
    theta /= np.array([[0.5 * width], [0.5 * height]], np.float32)
    x = np.arange(width, dtype=np.float32) + np.float32((1 - width) / 2)
    y = (np.arange(height, dtype=np.float32) + np.float32((1 - height) / 2))[:, None]
    grid = [equal_tensor_warps._add_product(x * a, y, b, bool(op.sampling & FUSED_GRID)) + c
            for a, b, c in theta]
    with_mask = np.dstack([image, np.ones((height, width))]).astype(np.float32)
    sample = (equal_tensor_warps._bilinear if op.filter == BILINEAR else
              equal_tensor_warps._nearest)
    sampled = sample(with_mask, np.dstack(grid), bool(op.sampling & FUSED_SAMPLES))
    values, mask = sampled[..., :-1], sampled[..., -1:]
    fill = np.array(FILL[:channels], np.float32)
    if op.sampling & WITHOUT_FILL:
        result = values
    elif op.filter == NEAREST:
        result = np.where(mask < 0.5, fill, values)
    elif op.arithmetic == TENSOR_V1:
        result = values * mask + (np.float32(1) - mask) * fill
    else:
        result = (values - fill) * mask + fill
    return np.rint(result).astype(np.uint8)


ROUNDINGS = (0, FUSED_GRID, FUSED_SAMPLES, FUSED_GRID | FUSED_SAMPLES)


def results_of(op, image, n=12):
    """Sampled (matrix, result) pairs."""
    height, width = image.shape[:2]
    functional = F1 if op.arithmetic == TENSOR_V1 else sys.modules[F2.affine_image.__module__]
    run = comparing.Run([op], image, n)
    for draws, got in itertools.islice(run.results(), n):
        values = draws[0][6]
        yield functional._get_inverse_affine_matrix(
            [0.0, 0.0], values[0], [*values[1:3]], values[3], [*values[4:6]]), got.copy()
    run.close()


@pytest.mark.parametrize("tier", TIERS)
@pytest.mark.parametrize("sampling", ROUNDINGS)
def test_every_rounding(monkeypatch, tier, sampling):
    """Also those that torch has on other CPUs."""
    monkeypatch.setenv("FEEDMILL_CPU", tier)
    for filter_number, has_fill, channels in itertools.product(MODES, (True, False), (3, 1)):
        image = comparing.made(75, 61, channels)
        for _, arithmetic in arithmetics():
            op = affine_op(filter_number, has_fill, (0, 0, 0))
            op = op._replace(arithmetic=arithmetic, sampling=op.sampling | sampling)
            for matrix, got in results_of(op, image):
                assert np.array_equal(rounded_by(image, matrix, op), got)


def test_the_roundings_differ_on_a_test_image():
    """Otherwise a test of one would pass with another."""
    image = np.random.default_rng(6).integers(0, 256, (224, 224, 3), dtype=np.uint8)
    op = affine_op(BILINEAR, True, (0, 0, 0))._replace(arithmetic=TENSOR_V1)
    results = [[got for _, got in results_of(op._replace(sampling=one), image)]
               for one in ROUNDINGS]
    for one, other in itertools.combinations(results, 2):
        assert not all(map(np.array_equal, one, other))


@settings(deadline=None)
@given(st.lists(st.tuples(*[st.floats(-1e6, 1e6, width=32)] * 3), min_size=1, max_size=20))
def test_products_added_with_one_rounding(numbers):
    """_add_product(), by fractions."""
    base, a, b = (np.array(one, np.float32) for one in zip(*numbers))
    got = equal_tensor_warps._add_product(base, a, b, True)
    for c, x, y, result in zip(base, a, b, got):
        exact = Fraction(float(c)) + Fraction(float(x)) * Fraction(float(y))
        distance = abs(Fraction(float(result)) - exact)
        for neighbor in np.nextafter(result, np.float32([-np.inf, np.inf])):
            assert distance <= abs(Fraction(float(neighbor)) - exact)


# ---- not native ----------------------------------------------------------------------------------


def assert_left_to_torch(folder, words, *steps):
    text = explained(folder, *steps)
    assert text.startswith("torch's own path, because\n") and words in text, text


CROP = v2.CenterCrop(24)
SIZE_UNKNOWN = "whose size is not known"


@pytest.mark.parametrize(("steps", "words"), [
    ((v2.ToImage(), v2.RandomRotation(20), CROP), SIZE_UNKNOWN),
    ((v2.ToImage(), v2.RandAugment(), CROP), "RandAugment changes the contrast"),
    ((v2.ToImage(), v2.CenterCrop((2048, 2049)), v2.RandomAffine(3)), "above 4,194,304 pixels"),
    ((v2.ToImage(), CROP, FLOAT[0], v2.RandomRotation(20)), "follows a conversion of the pixel"),
    ((v2.ToImage(), CROP, T.RandAugment()), "follows v2.ToImage"),
    ((v2.ToImage(), CROP, T.RandomAffine(3)), "follows v2.ToImage"),
    ((v2.ToImage(), CROP, v2.RandomRotation(9, T.InterpolationMode.BICUBIC)), "refuses others"),
    ((v2.ToImage(), CROP, v2.RandomRotation(9, T.InterpolationMode.NEAREST_EXACT)),
     "refuses others"),
    ((v2.ToImage(), CROP, v2.RandAugment(fill=0.5)), "integers for tensors"),
    ((v2.ToImage(), CROP, v2.RandomAffine(9, scale=(1e-4, 1))), "0.001 or more for tensors"),
    ((v2.ToImage(), CROP, v2.RandomAffine(9, shear=(-89.5, 3))), "from -89 to 89 degrees"),
    ((v2.ToImage(), CROP, v2.RandomRotation(9, expand=True)), "expand=True"),
])
def test_other_transforms_of_tensors(small_images, steps, words):
    assert_left_to_torch(small_images, words, *steps)


def modules_of(version):
    tensor = "torchvision.transforms._functional_tensor"
    return sys.modules[tensor if version == 1 else "torchvision.transforms.v2.functional._geometry"]


@needs_known_rounding
@pytest.mark.parametrize(("module", "name", "steps"), [
    (F2, "affine", (v2.ToImage(), CROP, v2.RandomAffine(4))),
    (F2, "rotate", (v2.ToImage(), CROP, v2.RandAugment())),
    (modules_of(2), "_affine_grid", (v2.ToImage(), CROP, v2.RandomRotation(4))),
    (modules_of(2), "grid_sample", (v2.ToImage(), CROP, v2.RandomRotation(4))),
    (F1, "rotate", (CROP, T.PILToTensor(), T.RandomRotation(4))),
    (modules_of(1), "_apply_grid_transform", (CROP, T.PILToTensor(), T.TrivialAugmentWide())),
    (modules_of(1), "grid_sample", (CROP, T.PILToTensor(), T.RandomAffine(4))),
])
def test_replaced_functions(small_images, monkeypatch, module, name, steps):
    assert explained(small_images, *steps).startswith("native path")
    original = getattr(module, name)
    monkeypatch.setattr(module, name, lambda *arguments, **options: original(*arguments, **options))
    assert f"{name} was replaced" in explained(small_images, *steps)


@needs_known_rounding
@pytest.mark.parametrize("kind", [torch.Tensor, sys.modules["torchvision.tv_tensors"].Image])
def test_replaced_kernels(small_images, monkeypatch, kind):
    utils = sys.modules["torchvision.transforms.v2.functional._utils"]
    monkeypatch.setitem(utils._KERNEL_REGISTRY[F2.rotate], kind, lambda image, **options: image)
    steps = (v2.ToImage(), CROP, v2.RandomRotation(30))
    assert_left_to_torch(small_images, "rotate's kernel for tensors was replaced", *steps)


@needs_known_rounding
def test_other_precisions_of_torch(small_images):
    """torch computes the grid by a product of matrices."""
    steps = (v2.ToImage(), CROP, v2.RandomRotation(30))
    with torch.autocast("cpu"):
        assert "needs full float32 precision" in explained(small_images, *steps)
    torch.set_float32_matmul_precision("medium")
    try:
        assert "needs full float32 precision" in explained(small_images, *steps)
    finally:
        torch.set_float32_matmul_precision("highest")
    assert explained(small_images, *steps).startswith("native path")


@needs_known_rounding
def test_a_torchvision_that_computes_otherwise(small_images, monkeypatch, looked_at_anew):
    monkeypatch.setattr(math, "tan", lambda x: x)
    words = "applies RandomAffine by nearest to uint8 tensors differently than feedmill does"
    assert_left_to_torch(small_images, words, v2.ToImage(), CROP, v2.RandomAffine(3, shear=4))


@pytest.mark.parametrize(("name", "words"), [
    ("_grid_differs", "computes the grid for 24 x 24 pixels differently than feedmill does"),
    ("_samples_differ", "samples tensors at a grid differently than feedmill does"),
])
def test_a_torch_that_rounds_otherwise(small_images, monkeypatch, looked_at_anew, name, words):
    monkeypatch.setattr(equal_tensor_warps, name, lambda *arguments: ["x"])
    assert_left_to_torch(small_images, words, v2.ToImage(), CROP, v2.RandomAffine(3))


def test_torchs_rounding_is_told_apart():
    """Each check refuses the other rounding."""
    for differs, one in ((equal_tensor_warps._samples_differ, FUSED_SAMPLES),
                         (lambda which: equal_tensor_warps._grid_differs(30, 40, which),
                          FUSED_GRID)):
        assert differs(0) or differs(one)
