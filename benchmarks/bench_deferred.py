"""Compares Pillow alone with Pillow in feedmill.deferred_images(), on one thread.

    python benchmarks/bench_deferred.py --data FOLDER [--rounds 7] [--samples 400] [CASE...]

First compares the results of both, bit for bit and with the same random numbers. Then times both
in turn, and prints for each case a line of JSON: microseconds of CPU time per image, and the
medians of the rounds' ratios by CPU time and by wall time. FOLDER holds JPEGs at any depth.

- crop: RandomResizedCrop(224), RandomHorizontalFlip, as a PIL image, whose pixels are then used.
- train: the same with ToTensor and Normalize.
- eval: Resize(256), CenterCrop(224), ToTensor, Normalize.
- views: two RandomResizedCrop(224) and eight RandomResizedCrop(96) of each image, with ToTensor.
- array: numpy.asarray() of the whole image.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests" / "support"))
import feedmill
from torchvision_cpu import torchvision

T = torchvision.transforms
_NORMALIZE = T.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
_GLOBAL, _LOCAL = T.RandomResizedCrop(224), T.RandomResizedCrop(96)
_TO_TENSOR = T.ToTensor()


def _views(image: Image.Image) -> list[torch.Tensor]:
    return [_TO_TENSOR(crop(image)) for crop in [_GLOBAL] * 2 + [_LOCAL] * 8]


CASES: dict[str, Callable[[Image.Image], Any]] = {
    "crop": T.Compose([_GLOBAL, T.RandomHorizontalFlip(), np.asarray]),
    "train": T.Compose([_GLOBAL, T.RandomHorizontalFlip(), _TO_TENSOR, _NORMALIZE]),
    "eval": T.Compose([T.Resize(256), T.CenterCrop(224), _TO_TENSOR, _NORMALIZE]),
    "views": _views,
    "array": np.asarray,
}


def _sample(path: Path, transform: Callable[[Image.Image], Any]) -> Any:
    """One sample, as torchvision's ImageFolder makes it."""
    with open(path, "rb") as file:
        return transform(Image.open(file).convert("RGB"))


def _run(
    paths: list[Path], transform: Callable[[Image.Image], Any], deferred: bool
) -> tuple[float, float]:
    """CPU time and wall time in seconds."""
    torch.manual_seed(1)
    cpu_s, wall_s = time.process_time(), time.monotonic()
    with feedmill.deferred_images() if deferred else nullcontext():
        for path in paths:
            _sample(path, transform)
    return time.process_time() - cpu_s, time.monotonic() - wall_s


def _check(paths: list[Path], transform: Callable[[Image.Image], Any]) -> None:
    results = []
    for deferred in (False, True):
        torch.manual_seed(1)
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
    parser.add_argument("cases", nargs="*", default=list(CASES), metavar="CASE")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    found = sorted(p for p in arguments.data.rglob("*") if p.suffix.lower() in (".jpg", ".jpeg"))
    if not found:
        parser.error(f"{arguments.data}: no JPEGs")
    paths = (found * -(-arguments.samples // len(found)))[: arguments.samples]
    for name in arguments.cases:
        transform = CASES[name]
        _check(paths[:100], transform)
        times: dict[bool, list[tuple[float, float]]] = {False: [], True: []}
        for number in range(arguments.rounds):
            for deferred in (False, True) if number % 2 else (True, False):
                times[deferred].append(_run(paths, transform, deferred))
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
