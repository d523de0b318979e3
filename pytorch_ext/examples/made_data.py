"""Generates the data of --smoke, so that the examples run without any."""

import hashlib
import pickle
from pathlib import Path

import numpy as np
from PIL import Image


def make_cifar10(root, n_each=64):
    """Writes noise in the format of CIFAR-10's Python files, and makes torchvision expect the
    checksums of these files in place of the published ones."""
    from torchvision.datasets import CIFAR10

    random = np.random.default_rng(0)
    folder = Path(root) / CIFAR10.base_folder
    folder.mkdir(parents=True, exist_ok=True)

    def write(name, value):
        data = pickle.dumps(value)
        (folder / name).write_bytes(data)
        return [name, hashlib.md5(data).hexdigest()]

    def write_batch(name):
        images = random.integers(0, 256, (n_each, 3 * 32 * 32), dtype=np.uint8)
        return write(name, {"data": images, "labels": [i % 10 for i in range(n_each)]})

    CIFAR10.train_list = [write_batch(name) for name, _ in CIFAR10.train_list]
    CIFAR10.test_list = [write_batch(name) for name, _ in CIFAR10.test_list]
    name, md5 = write("batches.meta", {"label_names": [f"class{i}" for i in range(10)]})
    CIFAR10.meta = {**CIFAR10.meta, "filename": name, "md5": md5}


def make_photos(root, n=64):
    """Writes JPEGs of noise, in one folder for each of two classes."""
    random = np.random.default_rng(0)
    for i in range(n):
        folder = Path(root) / f"class{i % 2}"
        folder.mkdir(parents=True, exist_ok=True)
        small = random.integers(0, 256, (12, 16, 3), dtype=np.uint8)
        Image.fromarray(small).resize((80 + i, 60)).save(folder / f"{i:03}.jpg")
