"""What rng="torch" costs: native epochs with torch's random numbers beside those with feedmill's.

    python benchmarks/bench_rng.py --data IMAGEFOLDER [--rounds 7] [--samples 1600] [CASE...]

First the batches with rng="torch" are compared with those of torch's DataLoader, bit for bit. Then
epochs of both run in turn, each in a loader that has run one epoch before, with batches of 64, two
decode threads, and 2 and 8 workers, of which only the generators exist. Prints a line of JSON for
each case and number of workers: microseconds of CPU time and of wall time per image with
rng="feedmill", and the medians of the rounds' ratios, above 1 if rng="torch" takes less.

- recipe: RandomResizedCrop(224), RandomHorizontalFlip, ToTensor, Normalize.
- rand_augment: with RandAugment.
- small: RandomResizedCrop(32), ToTensor, whose draws weigh most.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests" / "support"))
import feedmill
from torchvision_cpu import torchvision
from torch.utils.data import DataLoader, Subset

T = torchvision.transforms
_TO_VALUES = (T.ToTensor(), T.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)))
CASES = {
    "recipe": T.Compose([T.RandomResizedCrop(224), T.RandomHorizontalFlip(), *_TO_VALUES]),
    "rand_augment": T.Compose([
        T.RandomResizedCrop(224), T.RandomHorizontalFlip(), T.RandAugment(), *_TO_VALUES,
    ]),
    "small": T.Compose([T.RandomResizedCrop(32), T.ToTensor()]),
}
_BATCH = 64
_N_CHECKED = 256


def loader(kind: type, dataset: Any, n_workers: int, **options: Any) -> Any:
    return kind(dataset, _BATCH, shuffle=True, num_workers=n_workers, **options)


def native(dataset: Any, n_workers: int, rng: str) -> feedmill.DataLoader[Any]:
    return loader(feedmill.DataLoader, dataset, n_workers, rng=rng, threads=2, native="require")


def check(dataset: Any, n_workers: int) -> None:
    some = Subset(dataset, range(min(_N_CHECKED, len(dataset))))
    torch.manual_seed(1)
    wanted = list(loader(DataLoader, some, n_workers))
    torch.manual_seed(1)
    for batch, expected in zip(native(some, n_workers, "torch"), wanted, strict=True):
        if not all(map(torch.equal, batch, expected)):
            sys.exit("batches with rng='torch' differ from those of torch's DataLoader")


def epoch(of: Any) -> tuple[float, float]:
    """CPU time and wall time in seconds."""
    cpu_s, wall_s = time.process_time(), time.monotonic()
    for _ in of:
        pass
    return time.process_time() - cpu_s, time.monotonic() - wall_s


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--data", required=True, help="a folder of classes with JPEGs")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--samples", type=int, default=1600, help="images of an epoch")
    parser.add_argument("cases", nargs="*", metavar="CASE", help=", ".join(CASES))
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    for name in arguments.cases or CASES:
        images = torchvision.datasets.ImageFolder(arguments.data, CASES[name])
        dataset = Subset(images, [i % len(images) for i in range(arguments.samples)])
        for n_workers in (2, 8):
            check(dataset, n_workers)
            kinds = {rng: native(dataset, n_workers, rng) for rng in ("feedmill", "torch")}
            for one in kinds.values():
                epoch(one)
            times: dict[str, list[tuple[float, float]]] = {rng: [] for rng in kinds}
            for number in range(arguments.rounds):
                for rng in sorted(kinds, reverse=bool(number % 2)):
                    times[rng].append(epoch(kinds[rng]))
            pairs = list(zip(times["feedmill"], times["torch"], strict=True))
            per_image = 1e6 / len(dataset)
            print(json.dumps({
                "case": name,
                "workers": n_workers,
                "cpu_us": round(statistics.median(a[0] for a, _ in pairs) * per_image),
                "wall_us": round(statistics.median(a[1] for a, _ in pairs) * per_image),
                "cpu_ratio": round(statistics.median(a[0] / b[0] for a, b in pairs), 3),
                "wall_ratio": round(statistics.median(a[1] / b[1] for a, b in pairs), 3),
            }), flush=True)


if __name__ == "__main__":
    main()
