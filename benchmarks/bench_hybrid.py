"""Compares native="hybrid" with torch's DataLoader, with transforms that only Python can run.

    python benchmarks/bench_hybrid.py --data FOLDER [--workers 0,1,2] [--rounds 5] [--samples 400]
                                      [--json FILE] [CASE...]

First compares the batches of both, bit for bit and with the same random numbers: with one thread
and without worker processes, both call the transform in the same order. Then times epochs of both
in turn, for each number of workers. Prints, for each case and number of workers, the median wall
time and CPU time per sample (of this process and its workers), and the median of the rounds' own
ratios. FOLDER is an ImageFolder.

- light: RandomResizedCrop(224), RandomHorizontalFlip, ToTensor, Normalize.
- numpy: operations on an array, as in albumentations: crop, flip, brightness, noise, normalization.
- dino: two crops of 224 pixels and six of 96, each with ColorJitter, RandomGrayscale, GaussianBlur
  or solarization on PIL images.

The classes count their calls: what only calls these transforms would run natively.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageFilter, ImageOps

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests" / "support"))
import feedmill
from torchvision_cpu import torchvision

T = torchvision.transforms
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
BATCH = 32


# ---- transforms ----------------------------------------------------------------------------------


class Light:
    def __init__(self) -> None:
        self.steps = T.Compose([
            T.RandomResizedCrop(224), T.RandomHorizontalFlip(), T.ToTensor(),
            T.Normalize(MEAN, STD),
        ])
        self.n_calls = 0

    def __call__(self, image: Image.Image) -> Any:
        self.n_calls += 1
        return self.steps(image)


class Numpy:
    """Draws from numpy's global generator, as older versions of albumentations do."""

    size = 224

    def __call__(self, image: Image.Image) -> torch.Tensor:
        scale = 256 / min(image.size)
        if scale > 1:
            image = image.resize([round(scale * side) + 1 for side in image.size])
        array = np.asarray(image)
        top = np.random.randint(0, array.shape[0] - self.size + 1)
        left = np.random.randint(0, array.shape[1] - self.size + 1)
        array = array[top : top + self.size, left : left + self.size]
        if np.random.random() < 0.5:
            array = array[:, ::-1]
        factor, shift = np.random.uniform(0.8, 1.2), np.random.uniform(-20, 20)
        table = np.clip(np.arange(256) * factor + shift, 0, 255).astype(np.uint8)
        values = table[array].astype(np.float32)
        values += np.random.normal(0, 5, values.shape).astype(np.float32)
        values -= np.array(MEAN, np.float32) * 255
        values /= np.array(STD, np.float32) * 255
        return torch.from_numpy(np.ascontiguousarray(values.transpose(2, 0, 1)))


class GaussianBlur:
    """As in DINO: Pillow's blur, with a radius drawn from the module random."""

    def __init__(self, p: float) -> None:
        self.p = p

    def __call__(self, image: Image.Image) -> Image.Image:
        if random.random() > self.p:
            return image
        return image.filter(ImageFilter.GaussianBlur(radius=random.uniform(0.1, 2.0)))


class Solarization:
    def __init__(self, p: float) -> None:
        self.p = p

    def __call__(self, image: Image.Image) -> Image.Image:
        return ImageOps.solarize(image) if random.random() < self.p else image


class Dino:
    """DINO's DataAugmentationDINO, with six local crops."""

    def __init__(self) -> None:
        jitter = [
            T.RandomHorizontalFlip(),
            T.RandomApply([T.ColorJitter(0.4, 0.4, 0.2, 0.1)], p=0.8),
            T.RandomGrayscale(0.2),
        ]
        to_values = [T.ToTensor(), T.Normalize(MEAN, STD)]

        def crop(size: int, scale: tuple[float, float], *more: Any) -> Any:
            resized = T.RandomResizedCrop(size, scale, interpolation=Image.Resampling.BICUBIC)
            return T.Compose([resized, *jitter, *more, *to_values])

        self.crops = [
            crop(224, (0.4, 1.0), GaussianBlur(1.0)),
            crop(224, (0.4, 1.0), GaussianBlur(0.1), Solarization(0.2)),
            *[crop(96, (0.05, 0.4), GaussianBlur(0.5))] * 6,
        ]
        self.n_calls = 0

    def __call__(self, image: Image.Image) -> list[torch.Tensor]:
        self.n_calls += 1
        return [one(image) for one in self.crops]


CASES: dict[str, Callable[[], Any]] = {"light": Light, "numpy": Numpy, "dino": Dino}


# ---- running -------------------------------------------------------------------------------------


def dataset_of(folder: str, transform: Any, n_samples: int) -> Any:
    """An ImageFolder whose list is repeated or truncated to n_samples."""
    dataset = torchvision.datasets.ImageFolder(folder, transform)
    repeats = -(-n_samples // len(dataset.samples))
    dataset.samples = (dataset.samples * repeats)[:n_samples]
    dataset.imgs, dataset.targets = dataset.samples, [target for _, target in dataset.samples]
    return dataset


def values_of(batch: Any) -> list[torch.Tensor]:
    if isinstance(batch, torch.Tensor):
        return [batch]
    return [one for part in batch for one in values_of(part)]


def check(dataset: Any) -> None:
    """Checks that both loaders deliver the same batches, bit for bit."""
    def batches(loader: Any) -> Any:
        torch.manual_seed(1)
        random.seed(2)
        np.random.seed(3)
        yield from loader

    subset = torch.utils.data.Subset(dataset, range(0, len(dataset), 4))
    ours = feedmill.DataLoader(subset, 8, native="hybrid", threads=1)
    pairs = zip(batches(ours), list(batches(torch.utils.data.DataLoader(subset, 8))), strict=True)
    for mine, theirs in pairs:
        for one, other in zip(values_of(mine), values_of(theirs), strict=True):
            if one.dtype != other.dtype or not torch.equal(one, other):
                sys.exit("FAILED: batches differ from torch's")
    if ours.stats().path != "hybrid":
        sys.exit(f"FAILED: not the hybrid path: {ours.explain()}")


def cpu_ticks(pid: int) -> int:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])


class Timed:
    """A loader with persistent workers that times one epoch per call."""

    def __init__(self, loader: Any) -> None:
        self._loader = loader
        self._pids = [os.getpid()]
        self.epoch()  # starts the persistent workers
        workers = getattr(loader._iterator, "_workers", [])
        self._pids += [one.pid for one in workers]

    def epoch(self) -> tuple[float, float]:
        """Runs an epoch; returns (wall seconds, CPU seconds)."""
        ticks, begin_s = sum(map(cpu_ticks, self._pids)), time.monotonic()
        for _ in self._loader:
            pass
        wall_s = time.monotonic() - begin_s
        ticks = sum(map(cpu_ticks, self._pids)) - ticks
        return wall_s, ticks / os.sysconf("SC_CLK_TCK")


def measure(name: str, dataset: Any, n_workers: int, n_rounds: int) -> dict[str, Any]:
    options: dict[str, Any] = {
        "shuffle": True, "num_workers": n_workers, "persistent_workers": n_workers > 0
    }
    ways = {
        "torch": Timed(torch.utils.data.DataLoader(dataset, BATCH, **options)),
        "hybrid": Timed(feedmill.DataLoader(dataset, BATCH, native="hybrid", **options)),
    }
    runs: dict[str, list[tuple[float, float]]] = {way: [] for way in ways}
    for _ in range(n_rounds):
        for way, timed in ways.items():
            runs[way].append(timed.epoch())
    result: dict[str, Any] = {"case": name, "workers": n_workers}
    for i, kind in enumerate(("wall", "cpu")):
        seconds = {way: [run[i] for run in runs[way]] for way in ways}
        for way in ways:
            result[f"{way}_{kind}_ms"] = 1e3 * statistics.median(seconds[way]) / len(dataset)
        ratios = [a / b for a, b in zip(seconds["torch"], seconds["hybrid"])]
        result[f"{kind}_ratio"] = statistics.median(ratios)
        result[f"{kind}_ratios"] = [min(ratios), max(ratios)]
    return result


def as_text(result: dict[str, Any]) -> str:
    def rounded(kind: str) -> str:
        low, high = result[f"{kind}_ratios"]
        return f"{result[f'{kind}_ratio']:.2f} ({low:.2f}-{high:.2f})"

    return (
        f"| {result['case']} | {result['workers']} | {result['torch_wall_ms']:.2f} | "
        f"{result['hybrid_wall_ms']:.2f} | {rounded('wall')} | {result['torch_cpu_ms']:.2f} | "
        f"{result['hybrid_cpu_ms']:.2f} | {rounded('cpu')} |"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", required=True, help="an ImageFolder")
    parser.add_argument("--workers", default="0,1,2",
                        help="numbers of workers (default 0,1,2)")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--samples", type=int, default=400, help="samples per epoch (default 400)")
    parser.add_argument("--json", help="write all results to this file")
    parser.add_argument("cases", nargs="*", metavar="CASE", help=", ".join(CASES))
    options = parser.parse_args()
    names = options.cases or list(CASES)
    if unknown := set(names) - set(CASES):
        parser.error(f"there is no case {', '.join(sorted(unknown))}")
    print("| case | workers | torch, ms per sample | hybrid | torch / hybrid | "
          "torch, CPU ms per sample | hybrid | torch / hybrid |")
    print("|---|---:|---:|---:|---:|---:|---:|---:|")
    results = []
    for name in names:
        dataset = dataset_of(options.data, CASES[name](), options.samples)
        check(dataset)
        for n_workers in map(int, options.workers.split(",")):
            results.append(measure(name, dataset, n_workers, options.rounds))
            print(as_text(results[-1]), flush=True)
    if options.json:
        Path(options.json).write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
