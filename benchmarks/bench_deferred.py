"""Compares Pillow alone with deferred images: in one thread, or in a DataLoader's workers.

    python benchmarks/bench_deferred.py --data FOLDER [--rounds 7] [--samples 400] [CASE...]
    python benchmarks/bench_deferred.py --data FOLDER --workers 2 [--samples 1600] [CASE...]

First compares the results of both, bit for bit and with the same random numbers. Then times both
in turn, and prints for each case a line of JSON: microseconds of CPU time per image, and the
medians of the rounds' ratios by CPU time and by wall time. FOLDER holds JPEGs at any depth.

With --workers, torch's DataLoader is compared with feedmill's on torch's path: epochs of batches
of 64 from that many worker processes. CPU time is that of all processes, and the start of the
workers is part of it.

- crop: RandomResizedCrop(224), RandomHorizontalFlip, as a PIL image, whose pixels are then used.
- train: the same with ToTensor and Normalize; torchvision's preset.
- eval: Resize(256), CenterCrop(224), ToTensor, Normalize.
- bytes: the train case from encoded bytes, loaded and turned upright as Hugging Face's datasets do.
- timm: RandomResizedCrop(224) by bicubic, flip, ColorJitter(0.4), ToTensor, Normalize.
- simclr: two views: crop, flip, ColorJitter, grayscale, GaussianBlur, ToTensor.
- dino: two RandomResizedCrop(224) and eight of 96, with ColorJitter, grayscale, blur and solarize.
- views: two RandomResizedCrop(224) and eight RandomResizedCrop(96) of each image, with ToTensor.
- array: numpy.asarray() of the whole image.
- numpy: the same, cropped to 224 x 224 and flipped in NumPy, as a tensor.
"""

from __future__ import annotations

import argparse
import functools
import io
import json
import random
import resource
import statistics
import sys
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageFilter, ImageOps

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests" / "support"))
import feedmill
from torchvision_cpu import torchvision

T = torchvision.transforms
_NORMALIZE = T.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
_GLOBAL, _LOCAL = T.RandomResizedCrop(224), T.RandomResizedCrop(96)
_FLIP, _TO_TENSOR = T.RandomHorizontalFlip(), T.ToTensor()
_BATCH = 64


class _Blur:
    """Pillow's GaussianBlur with a random radius, as DINO's script has it."""

    def __init__(self, p: float) -> None:
        self.p = p

    def __call__(self, image: Image.Image) -> Image.Image:
        do_it = random.random() <= self.p
        if not do_it:
            return image
        return image.filter(ImageFilter.GaussianBlur(radius=random.uniform(0.1, 2.0)))


class _Solarize:
    """As DINO's script has it."""

    def __call__(self, image: Image.Image) -> Image.Image:
        if random.random() < 0.2:
            return ImageOps.solarize(image)
        return image


def _colors(strength: float) -> list[Any]:
    jitter = T.ColorJitter(0.8 * strength, 0.8 * strength, 0.4 * strength, 0.2 * strength)
    return [_FLIP, T.RandomApply([jitter], 0.8), T.RandomGrayscale(0.2)]


class _Views:
    def __init__(self, *transforms: Callable[[Image.Image], Any]) -> None:
        self.transforms = transforms

    def __call__(self, image: Image.Image) -> list[Any]:
        return [transform(image) for transform in self.transforms]


def _upright(image: Image.Image) -> Image.Image:
    image.load()
    return ImageOps.exif_transpose(image).convert("RGB")


def _numpy(image: Image.Image) -> torch.Tensor:
    pixels = np.asarray(image)
    top, left = (int(torch.randint(max(1, n - 224), ())) for n in pixels.shape[:2])
    part = np.pad(pixels, ((0, 224), (0, 224), (0, 0)))[top : top + 224, left : left + 224]
    return torch.from_numpy(np.ascontiguousarray(part[:, ::-1].transpose(2, 0, 1)))


_TRAIN = [_GLOBAL, _FLIP, _TO_TENSOR, _NORMALIZE]
_SIMCLR = T.Compose([_GLOBAL, *_colors(1.0), _Blur(0.5), _TO_TENSOR])
_DINO = [
    T.Compose([_GLOBAL, *_colors(0.5), _Blur(1.0), _TO_TENSOR, _NORMALIZE]),
    T.Compose([_GLOBAL, *_colors(0.5), _Blur(0.1), _Solarize(), _TO_TENSOR, _NORMALIZE]),
    *[T.Compose([_LOCAL, *_colors(0.5), _Blur(0.5), _TO_TENSOR, _NORMALIZE])] * 8,
]
CASES: dict[str, Callable[[Image.Image], Any]] = {
    "crop": T.Compose([_GLOBAL, _FLIP, np.asarray]),
    "train": T.Compose(_TRAIN),
    "eval": T.Compose([T.Resize(256), T.CenterCrop(224), _TO_TENSOR, _NORMALIZE]),
    "bytes": T.Compose([_upright, *_TRAIN]),
    "timm": T.Compose([
        T.RandomResizedCrop(224, interpolation=T.InterpolationMode.BICUBIC), _FLIP,
        T.ColorJitter(0.4, 0.4, 0.4), _TO_TENSOR, _NORMALIZE,
    ]),
    "simclr": _Views(_SIMCLR, _SIMCLR),
    "dino": _Views(*_DINO),
    "views": _Views(*[T.Compose([_GLOBAL, _TO_TENSOR])] * 2,
                    *[T.Compose([_LOCAL, _TO_TENSOR])] * 8),
    "array": np.asarray,
    "numpy": _numpy,
}
# Batches need samples of one size; PIL images are not collated.
LOADER_CASES = [name for name in CASES if name not in ("crop", "array", "views")]


class Photos(torch.utils.data.Dataset):
    """Opens files with Pillow, as torchvision's ImageFolder does."""

    def __init__(self, paths: list[Path], transform: Callable[[Image.Image], Any]) -> None:
        self.paths, self.transform = paths, transform

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> Any:
        return _sample(self.paths[index], self.transform)


def _sample(path: Path, transform: Callable[[Image.Image], Any]) -> Any:
    """One sample, as torchvision's ImageFolder makes it."""
    if transform is CASES["bytes"]:
        return transform(Image.open(io.BytesIO(path.read_bytes())))
    with open(path, "rb") as file:
        return transform(Image.open(file).convert("RGB"))


def _seed() -> None:
    torch.manual_seed(1)
    random.seed(1)


def _cpu_s() -> float:
    """CPU time of this process and of children that have ended."""
    used = [resource.getrusage(one) for one in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)


def _run_loader(
    paths: list[Path], transform: Callable[[Image.Image], Any], deferred: bool, n_workers: int
) -> tuple[float, float]:
    """CPU time and wall time in seconds of an epoch."""
    kind = feedmill.DataLoader if deferred else torch.utils.data.DataLoader
    _seed()
    loader = kind(Photos(paths, transform), batch_size=_BATCH, num_workers=n_workers)
    cpu_s, wall_s = _cpu_s(), time.monotonic()
    iterator = iter(loader)
    for _ in iterator:
        pass
    wall_s = time.monotonic() - wall_s
    del iterator  # ends the workers
    return _cpu_s() - cpu_s, wall_s


def _check_loader(
    paths: list[Path], transform: Callable[[Image.Image], Any], n_workers: int
) -> None:
    epochs = []
    for kind in (torch.utils.data.DataLoader, feedmill.DataLoader):
        _seed()
        loader = kind(Photos(paths, transform), batch_size=_BATCH, num_workers=n_workers)
        epochs.append(list(loader))
    for wanted, got in zip(*epochs, strict=True):
        pairs = zip(wanted, got, strict=True) if isinstance(wanted, list) else [(wanted, got)]
        if not all(torch.equal(a, b) for a, b in pairs):
            sys.exit("the batches differ")


def _run(
    paths: list[Path], transform: Callable[[Image.Image], Any], deferred: bool
) -> tuple[float, float]:
    """CPU time and wall time in seconds."""
    _seed()
    cpu_s, wall_s = time.process_time(), time.monotonic()
    with feedmill.deferred_images() if deferred else nullcontext():
        for path in paths:
            _sample(path, transform)
    return time.process_time() - cpu_s, time.monotonic() - wall_s


def _check(paths: list[Path], transform: Callable[[Image.Image], Any]) -> None:
    results = []
    for deferred in (False, True):
        _seed()
        with feedmill.deferred_images() if deferred else nullcontext():
            results.append([_sample(path, transform) for path in paths])
    for path, wanted, got in zip(paths, *results, strict=True):
        pairs = zip(wanted, got, strict=True) if isinstance(wanted, list) else [(wanted, got)]
        if not all(np.array_equal(np.asarray(a), np.asarray(b)) for a, b in pairs):
            sys.exit(f"{path}: the results differ")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--data", type=Path, required=True, help="a folder of JPEGs")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--samples", type=int, default=400, help="images of a round")
    parser.add_argument("cases", nargs="*", metavar="CASE")
    parser.add_argument("--workers", type=int, default=0, help="worker processes of a DataLoader")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    found = sorted(p for p in arguments.data.rglob("*") if p.suffix.lower() in (".jpg", ".jpeg"))
    if not found:
        parser.error(f"{arguments.data}: no JPEGs")
    paths = (found * -(-arguments.samples // len(found)))[: arguments.samples]
    run: Any = _run
    if arguments.workers:
        run = functools.partial(_run_loader, n_workers=arguments.workers)
    for name in arguments.cases or (LOADER_CASES if arguments.workers else CASES):
        transform = CASES[name]
        if arguments.workers:
            _check_loader(paths[:100], transform, arguments.workers)
        else:
            _check(paths[:100], transform)
        times: dict[bool, list[tuple[float, float]]] = {False: [], True: []}
        for number in range(arguments.rounds):
            for deferred in (False, True) if number % 2 else (True, False):
                times[deferred].append(run(paths, transform, deferred))
        pairs = list(zip(times[False], times[True], strict=True))
        print(json.dumps({
            "case": name,
            "pillow_us": round(statistics.median(a[0] for a in times[False]) / len(paths) * 1e6),
            "deferred_us": round(statistics.median(b[0] for b in times[True]) / len(paths) * 1e6),
            "cpu_ratio": round(statistics.median(a[0] / b[0] for a, b in pairs), 2),
            "wall_ratio": round(statistics.median(a[1] / b[1] for a, b in pairs), 2),
        }), flush=True)


if __name__ == "__main__":
    main()
