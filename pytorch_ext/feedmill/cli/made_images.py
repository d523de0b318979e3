"""Generates images for the demo and for benchmarks."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np


def make_images(
    folder: Path,
    n_classes: int = 4,
    n_each: int = 64,
    update: Callable[[int], object] = lambda n_images: None,
) -> None:
    """Writes JPEGs with about the dimensions and file sizes of ImageNet's, in one folder per class.

    The images are the same each time. A folder that already has as many is not changed. Needs
    Pillow.

    Args:
        folder: gets the class folders.
        n_classes: number of classes.
        n_each: number of images per class.
        update: called with the number of images written since its last call.
    """
    from PIL import Image

    if len(list(folder.glob("*/*.jpg"))) == n_classes * n_each:
        return
    random = np.random.default_rng(7)
    for class_index in range(n_classes):
        of_class = folder / f"class_{class_index}"
        of_class.mkdir(parents=True, exist_ok=True)
        for i in range(n_each):
            width, height = int(random.integers(400, 600)), int(random.integers(300, 450))
            coarse = random.integers(0, 256, (6, 8, 3), dtype=np.uint8)
            fine = random.integers(0, 256, (height // 4, width // 4, 3), dtype=np.uint8)
            shapes = Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC)
            texture = Image.fromarray(fine).resize((width, height), Image.Resampling.BILINEAR)
            image = Image.blend(shapes, texture, 0.15 + 0.05 * class_index)
            image.save(of_class / f"{i:03d}.jpg", quality=92, subsampling=2 if i % 2 else 0)
            update(1)
