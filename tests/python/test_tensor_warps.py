"""Affine transforms and automatic augmentations of uint8 tensors give torchvision's values, bit for
bit."""

import itertools
import math
import os
import platform
import random
import subprocess
import sys

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
)
from helpers import MEAN, STD, cifar_in_memory, compose, equal_batches, native_loader, save_jpeg
from hypothesis import given, settings
from hypothesis import strategies as st
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
        v2.PILToTensor(), v2.CenterCrop((31, 40)),
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


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """JPEGs of many sizes, some of them gray."""
    root = tmp_path_factory.mktemp("warps")
    for i in range(24):
        mode = "L" if i % 6 == 5 else "RGB"
        save_jpeg(root / "a" / f"{i:02}.jpg", 24 + 5 * i, 33 + 29 * i % 90, seed=i, mode=mode)
    return root


def batches(kind, dataset, epochs=1, **options):
    torch.manual_seed(5)
    random.seed(5)  # from which v1's RandomChoice draws
    loader = kind(dataset, batch_size=4, shuffle=True, **options)
    return [batch for _ in range(epochs) for batch in loader]


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("name", TRANSFORMS)
def test_batches_equal_torchs(folder, name, num_workers):
    dataset = ImageFolder(str(folder), TRANSFORMS[name])
    options = {"epochs": 3, "num_workers": num_workers}
    natively = batches(feedmill.DataLoader, dataset, native="require", **options)
    assert equal_batches(natively, batches(torch.utils.data.DataLoader, dataset, **options))


@pytest.mark.parametrize("name", TRANSFORMS)
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
    for name in ("of_v1", "affine", "gray"):
        dataset = ImageFolder(str(folder), TRANSFORMS[name])
        wanted = batches(torch.utils.data.DataLoader, dataset)
        natively = batches(feedmill.DataLoader, dataset, native="require")
        assert equal_batches(natively, wanted)


def test_images_in_memory():
    dataset = cifar_in_memory(30)
    dataset.transform = v2.Compose([v2.ToImage(), v2.RandAugment(), v2.RandomRotation(30)])
    natively = batches(feedmill.DataLoader, dataset, native="require")
    assert equal_batches(natively, batches(torch.utils.data.DataLoader, dataset))
