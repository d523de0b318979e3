"""The classes of photographs: as they are, 4:2:0, and large ones, both made of the first."""

from __future__ import annotations

import hashlib
import pathlib
import shutil
from collections.abc import Callable

import numpy as np
from PIL import Image

QUALITY = 90
LARGE_MEGAPIXELS = (2, 12)

CLASSES = {
    "photos": "the photographs as they are",
    "420": f"the same photographs transcoded to 4:2:0, quality {QUALITY}",
    "large": f"{LARGE_MEGAPIXELS[0]}-{LARGE_MEGAPIXELS[1]} MP, 4:2:0, quality {QUALITY}: "
    "photographs enlarged (bicubic) to random sizes",
}


def list_images(folder: pathlib.Path) -> list[pathlib.Path]:
    return sorted(p for p in folder.rglob("*") if p.suffix.lower() in (".jpg", ".jpeg"))


def enlarge(image: Image.Image, rng: np.random.Generator) -> Image.Image:
    """Enlarges an image to a random number of pixels, with the same aspect ratio."""
    scale = (rng.uniform(*LARGE_MEGAPIXELS) * 1e6 / (image.width * image.height)) ** 0.5
    size = (round(image.width * scale), round(image.height * scale))
    return image.resize(size, Image.Resampling.BICUBIC)


def make_folder(source: pathlib.Path, target: pathlib.Path, files: list[pathlib.Path],
                change: Callable[[Image.Image], Image.Image], show: Callable[[str], None]) -> None:
    """Encodes each file again as 4:2:0. The folder appears only when it is complete."""
    unfinished = target.with_name(target.name + ".unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    for i, path in enumerate(files):
        show(f"making {target.name}: {i + 1} of {len(files)}")
        out = unfinished / path.relative_to(source).with_suffix(".jpg")
        out.parent.mkdir(parents=True, exist_ok=True)
        with Image.open(path) as image:
            change(image.convert("RGB")).save(out, quality=QUALITY, subsampling="4:2:0")
    unfinished.rename(target)


def class_folder(name: str, source: pathlib.Path, scratch: pathlib.Path, n_large: int,
                 show: Callable[[str], None]) -> pathlib.Path:
    """The folder of a class, made under `scratch` unless it is there."""
    if name == "photos":
        return source
    files = list_images(source)
    if name == "large":
        files = files[:: max(1, len(files) // n_large)][:n_large]
    key = hashlib.sha256("\n".join(map(str, files)).encode()).hexdigest()[:12]
    target = scratch / f"{name}-{key}"
    if not target.exists():
        rng = np.random.default_rng(11)
        change = (lambda image: enlarge(image, rng)) if name == "large" else lambda image: image
        make_folder(source, target, files, change, show)
    return target
