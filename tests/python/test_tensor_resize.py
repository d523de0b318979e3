"""Transforms that resize uint8 tensors give torch's pixels, which are not Pillow's, bit for bit."""

import platform

import feedmill
import numpy as np
import pytest
import torch
from feedmill.planner import comparing, equality
from feedmill.planner.plan import FILTER_NAMES, RESIZE, TORCHS_RESIZE, Op
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

BILINEAR, BICUBIC, LANCZOS = (InterpolationMode(name) for name in ("bilinear", "bicubic", "lanczos"))


def resizes_tensors_by(mode):
    """Whether this torchvision can; older ones do not by Lanczos's filter."""
    try:
        v2.functional.resize(torch.zeros(3, 4, 4, dtype=torch.uint8), [2, 2], mode)
    except Exception:
        return False
    return True


MODES = [mode for mode in (BILINEAR, BICUBIC, LANCZOS) if resizes_tensors_by(mode)]
needs_bytes = pytest.mark.skipif(
    torch.backends.cpu.get_cpu_capability() == "DEFAULT" and platform.machine() == "x86_64",
    reason="on this CPU torchvision resizes tensors in float32",
)
FLOAT = (v2.ToDtype(torch.float32, scale=True), v2.Normalize(MEAN, STD))
FIXED = {
    "image": v2.Compose([v2.ToImage(), v2.Resize((17, 40))]),
    "image_float": v2.Compose([v2.ToImage(), v2.Resize((40, 17)), v2.ToPureTensor(), *FLOAT]),
    "evaluation": v2.Compose([v2.PILToTensor(), v2.Resize(36), v2.CenterCrop(32), *FLOAT]),
    "of_v1_tensors": compose(T.PILToTensor(), v2.Resize([33], max_size=70), v2.CenterCrop((20, 31)),
                             T.ConvertImageDtype(torch.float32), T.Normalize(MEAN, STD)),
    "crop_before": v2.Compose([v2.ToImage(), v2.CenterCrop(20), v2.Resize((30, 31)), *FLOAT]),
    "pillows_crop_before": v2.Compose([v2.CenterCrop((50, 9)), v2.ToImage(), v2.Resize((13, 12))]),
    "padded": v2.Compose([v2.ToImage(), v2.Resize(24), v2.CenterCrop((60, 20)), *FLOAT]),
    "gray": v2.Compose([v2.Grayscale(), v2.ToImage(), v2.Resize((21, 22)), FLOAT[0]]),
    "one_pixel": v2.Compose([v2.ToImage(), v2.Resize((1, 1))]),
    "enlarged": v2.Compose([v2.ToImage(), v2.Resize((200, 190))]),
    **{mode.value: v2.Compose([v2.ToImage(), v2.Resize((19, 23), mode)]) for mode in MODES},
}
RANDOM = {
    "training": v2.Compose([v2.ToImage(), v2.RandomResizedCrop(24, antialias=True),
                            v2.RandomHorizontalFlip(), *FLOAT]),
    "bicubic": v2.Compose([v2.PILToTensor(), v2.RandomHorizontalFlip(),
                           v2.RandomResizedCrop((20, 33), (0.3, 1), interpolation=BICUBIC)]),
    "tiny_crops": compose(T.PILToTensor(), v2.RandomResizedCrop((9, 21), (1e-5, 2e-2), (0.02, 50)),
                          T.RandomVerticalFlip()),
    "flip_of_image": v2.Compose([v2.RandomHorizontalFlip(), v2.ToImage(), v2.Resize(30),
                                 v2.RandomCrop(24), *FLOAT]),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """JPEGs of many sizes, some of them gray, and a file that Pillow decodes."""
    root = tmp_path_factory.mktemp("tensors")
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


@needs_bytes
@pytest.mark.parametrize("name", FIXED)
def test_fixed_transforms_equal_torchs_path(folder, name):
    dataset = ImageFolder(str(folder), FIXED[name])
    loader = native_loader(dataset)
    assert f"resized as in torch {torch.__version__}" in loader.explain()
    assert equal_batches(batches(native_loader, dataset), batches(torch.utils.data.DataLoader, dataset))


@needs_bytes
@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("name", RANDOM)
def test_random_transforms_equal_torchs_path(folder, name, num_workers):
    dataset = ImageFolder(str(folder), RANDOM[name])
    options = {"epochs": 3, "shuffle": True, "num_workers": num_workers}
    natively = batches(feedmill.DataLoader, dataset, native="require", **options)
    assert equal_batches(natively, batches(torch.utils.data.DataLoader, dataset, **options))


@needs_bytes
@pytest.mark.parametrize("name", RANDOM)
def test_random_transforms_verify_with_our_own_draws(folder, name):
    dataset = ImageFolder(str(folder), RANDOM[name])
    loader = native_loader(dataset, native="verify", batch_size=4)
    for _ in range(3):
        assert sum(len(images) for images, _ in loader) == len(dataset)
    assert loader.stats().decode.verified_samples == 3 * len(dataset)


# Those that there are for this kind of processor.
TIERS = ["scalar", "neon"] if platform.machine() == "aarch64" else ["scalar", "sse41", "avx2", "avx512"]


@needs_bytes
@pytest.mark.parametrize("tier", TIERS)
def test_every_tier(folder, monkeypatch, tier):
    monkeypatch.setenv("FEEDMILL_CPU", tier)
    for name in ("image", "evaluation", "bicubic"):
        dataset = ImageFolder(str(folder), FIXED[name])
        wanted = batches(torch.utils.data.DataLoader, dataset)
        assert equal_batches(batches(native_loader, dataset), wanted)


SIDES = st.integers(1, 8) | st.integers(1, 90) | st.integers(1, 700)


@needs_bytes
@settings(deadline=None, max_examples=150)
@given(width=SIDES, height=SIDES, new_width=SIDES, new_height=SIDES, mode=st.sampled_from(MODES),
       channels=st.sampled_from([1, 3]), seed=st.integers(0, 2**32 - 1))
def test_any_sizes(width, height, new_width, new_height, mode, channels, seed):
    values = np.random.default_rng(seed).integers(0, 256, (height, width, channels), dtype=np.uint8)
    op = Op(RESIZE, new_height, new_width, filter=FILTER_NAMES.index(mode.value))
    got = torch.from_numpy(comparing.natively([op], values, TORCHS_RESIZE)).permute(2, 0, 1)
    images = [torch.from_numpy(values).permute(2, 0, 1)]
    if (new_height, new_width) != (1, 1):  # there torch 2.13 fails for contiguous images
        images.append(images[0].contiguous())
    for image in images:
        assert torch.equal(got, v2.functional.resize(image, [new_height, new_width], mode))


@needs_bytes
def test_images_in_memory():
    dataset = cifar_in_memory(30)
    for steps in ((v2.Resize(20),), (v2.RandomResizedCrop(40), v2.RandomHorizontalFlip(), *FLOAT)):
        dataset.transform = v2.Compose([v2.ToImage(), *steps])
        natively = batches(feedmill.DataLoader, dataset, native="require", shuffle=True)
        assert equal_batches(natively, batches(torch.utils.data.DataLoader, dataset, shuffle=True))


@needs_bytes
def test_views_of_tensors_and_of_pillows_images(folder):
    """Each view has its own kind of resize."""
    views = Views(v2.Compose([v2.ToImage(), v2.Resize((12, 13))]),
                  v2.Compose([v2.Resize((12, 13)), v2.ToImage()]))
    dataset = ImageFolder(str(folder), views)
    natively = batches(native_loader, dataset)
    assert equal_batches(natively, batches(torch.utils.data.DataLoader, dataset))
    assert not torch.equal(*natively[1][0])


# ---- not native ----------------------------------------------------------------------------------


def assert_left_to_torch(folder, words, *steps):
    dataset = ImageFolder(str(folder), compose(*steps))
    text = feedmill.DataLoader(dataset).explain()
    assert text.startswith("torch's own path, because\n") and words in text, text
    ours = batches(feedmill.DataLoader, dataset)
    assert equal_batches(ours, batches(torch.utils.data.DataLoader, dataset))


@pytest.mark.parametrize(("steps", "words"), [
    ((v2.ToImage(), v2.Resize((8, 9), antialias=False)), "antialias=False"),
    ((v2.ToImage(), v2.RandomResizedCrop(8, antialias=None)), "antialias=None"),
    ((v2.ToImage(), v2.Resize((8, 9), InterpolationMode.NEAREST)), "Resize by nearest follows"),
    ((v2.Resize(30), v2.ToImage(), v2.Resize((8, 9))), "resizes both a PIL image and a tensor"),
])
def test_other_resizes_of_tensors(small_images, steps, words):
    assert_left_to_torch(small_images, words, *steps)


def resize_in_floats(monkeypatch):
    """As torchvision does without AVX2: in float32, which rounds some pixels otherwise."""
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "DEFAULT")


@pytest.mark.parametrize("name", ["image", "evaluation", "padded"])
def test_a_torchvision_that_resizes_bytes_in_floats(folder, monkeypatch, looked_at_anew, name):
    resize_in_floats(monkeypatch)
    dataset = ImageFolder(str(folder), FIXED[name])
    wanted = batches(torch.utils.data.DataLoader, dataset)
    assert equal_batches(batches(native_loader, dataset), wanted)


def test_a_torch_that_resizes_tensors_otherwise(small_images, monkeypatch, looked_at_anew):
    resize_in_floats(monkeypatch)
    monkeypatch.setattr(equality, "_bytes_resized_otherwise", lambda kind: True)
    words = f"the installed torch {torch.__version__} resizes uint8 tensors by bilinear differently"
    assert_left_to_torch(small_images, words, v2.ToImage(), v2.Resize((9, 8)))
    pillows = ImageFolder(str(small_images), compose(v2.Resize((9, 8)), v2.ToImage()))
    assert feedmill.DataLoader(pillows).explain().startswith("native path")


def test_a_comparison_that_fails(small_images, monkeypatch, looked_at_anew):
    monkeypatch.setattr(equality, "mode_of_number", lambda number: None)
    dataset = ImageFolder(str(small_images), compose(v2.ToImage(), v2.Resize((9, 8))))
    text = feedmill.DataLoader(dataset).explain()
    assert f"could not check that torch {torch.__version__} resizes uint8 tensors by bilinear" in text
