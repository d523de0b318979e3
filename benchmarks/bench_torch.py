"""Compares feedmill with torch's DataLoader: same dataset object, transforms and batches.

    python benchmarks/bench_torch.py [--data FOLDER] [--train] [--workers 2] [--rounds 3]
                                     [--json FILE]

First compares every image of the folder with torchvision's operations on PIL images, bit for bit.
Then times epochs of both loaders in turn, so that other load affects both. --train trains a small
network on the batches; otherwise they are dropped. FOLDER is an ImageFolder; without it,
photograph-like JPEGs are generated in run-data/made. The folder's list is repeated to at least
--samples samples per epoch. Fails if an image went through Pillow, or if a pixel differs.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import resource
import statistics
import sys
import time

import torch

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests" / "support"))
import feedmill  # noqa: E402
from torchvision_cpu import torchvision  # noqa: E402
from feedmill.cli.made_images import make_images  # noqa: E402

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def make_dataset(folder: pathlib.Path, n_samples: int):
    """An ImageFolder, its list repeated to n_samples, with the usual training transform."""
    T = torchvision.transforms
    transform = T.Compose(
        [
            T.RandomResizedCrop(224),
            T.RandomHorizontalFlip(),
            T.ToTensor(),
            T.Normalize(MEAN, STD),
        ]
    )
    dataset = torchvision.datasets.ImageFolder(str(folder), transform)
    unique = len(dataset.samples)
    repeats = max(1, -(-n_samples // unique))
    dataset.samples = dataset.samples * repeats
    dataset.imgs, dataset.targets = dataset.samples, dataset.targets * repeats
    return dataset, unique


def expected_image(path: str, draws) -> torch.Tensor:
    """The image that torchvision makes from a file with the given random numbers."""
    F = torchvision.transforms.functional
    image = torchvision.datasets.folder.default_loader(path)
    for name, draw in draws:
        if name == "RandomResizedCrop":
            box = (draw["top"], draw["left"], draw["height"], draw["width"])
            image = F.resized_crop(image, *box, [224, 224])
        elif name == "RandomHorizontalFlip" and draw["flip"]:
            image = F.hflip(image)
    return F.normalize(F.to_tensor(image), MEAN, STD)


def check_pixels(dataset, unique: int, workers: int) -> None:
    """Compares every image of an epoch with torchvision's; exits at the first difference."""
    subset = list(range(unique))
    loader = feedmill.DataLoader(
        dataset, batch_size=50, sampler=subset, num_workers=workers, native="require",
        rng="feedmill",
    )
    position = 0
    for images, labels in loader:
        for image, label in zip(images, labels):
            path, target = dataset.samples[position]
            want = expected_image(path, loader.draws(position, 0))
            if int(label) != target or not torch.equal(image, want):
                sys.exit(f"FAILED: image {position} ({path}) differs from torchvision's")
            position += 1
    stats = loader.stats()
    if position != unique:
        sys.exit(f"FAILED: {position} images delivered, {unique} asked for")
    print(
        f"pixels: all {unique} images equal torchvision's bit for bit (float32), "
        f"{stats.decode.native_samples} decoded natively, "
        f"{stats.decode.fallback_samples} through Pillow"
    )


class Trainer:
    """A small network, the same for every loader, or no training at all."""

    def __init__(self, train: bool, n_classes: int) -> None:
        self.train = train
        torch.manual_seed(0)
        self.model = torch.nn.Sequential(
            torch.nn.Conv2d(3, 16, 8, stride=8),
            torch.nn.ReLU(),
            torch.nn.AvgPool2d(7),
            torch.nn.Flatten(),
            torch.nn.Linear(16 * 16, n_classes),
        )
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01)
        self.last_loss = float("nan")

    def step(self, images: torch.Tensor, labels: torch.Tensor) -> None:
        if not self.train:
            return
        loss = torch.nn.functional.cross_entropy(self.model(images), labels)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.last_loss = loss.item()


def cpu_seconds() -> float:
    """CPU time of this process and of its children that have ended."""
    usages = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(u.ru_utime + u.ru_stime for u in usages)


def run_epoch(loader, trainer: Trainer) -> dict[str, float]:
    wall, cpu = time.perf_counter(), cpu_seconds()
    n = 0
    for images, labels in loader:
        trainer.step(images, labels)
        n += len(images)
    # Freeing the iterator joins torch's workers, so that their CPU time counts.
    return {"n": n, "wall_s": time.perf_counter() - wall, "cpu_s": cpu_seconds() - cpu}


def summarize(results: list[dict[str, float]]) -> dict[str, float]:
    wall = sorted(r["n"] / r["wall_s"] for r in results)
    cpu = sorted(r["n"] / r["cpu_s"] for r in results)
    return {
        "img_per_s": statistics.median(wall),
        "img_per_s_min": wall[0],
        "img_per_s_max": wall[-1],
        "img_per_cpu_s": statistics.median(cpu),
        "img_per_cpu_s_min": cpu[0],
        "img_per_cpu_s_max": cpu[-1],
    }


def show_progress(text: str) -> None:
    if sys.stderr.isatty():
        print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data", type=pathlib.Path, help="an ImageFolder; default: made images")
    parser.add_argument("--train", action="store_true", help="train a small network")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=3, help="epochs timed per loader")
    parser.add_argument("--samples", type=int, default=4000, help="least samples in an epoch")
    parser.add_argument("--make-only", action="store_true", help="make images and stop")
    parser.add_argument("--require", type=float, help="fail if a ratio is below this")
    parser.add_argument("--skip-check", action="store_true", help="do not compare pixels first")
    parser.add_argument("--json", type=pathlib.Path, help="write the figures there")
    args = parser.parse_args()
    folder = args.data
    if folder is None:
        folder = ROOT / "run-data" / "made"
        print(f"images: making a set in {folder.relative_to(ROOT)}")
        make_images(folder)
    if args.make_only:
        return
    dataset, unique = make_dataset(folder, args.samples)
    print(f"images: {unique} files, repeated to {len(dataset)} samples an epoch")
    if not args.skip_check:
        check_pixels(dataset, unique, args.workers)

    common = dict(batch_size=args.batch_size, shuffle=True, num_workers=args.workers)
    loaders = {
        "torch DataLoader": torch.utils.data.DataLoader(dataset, **common),
        "feedmill": feedmill.DataLoader(dataset, native="require", **common),
    }
    trainers = {name: Trainer(args.train, len(dataset.classes)) for name in loaders}
    results: dict[str, list[dict[str, float]]] = {name: [] for name in loaders}
    for round_number in range(args.rounds):
        for name, loader in loaders.items():
            show_progress(f"round {round_number + 1} of {args.rounds}: {name}")
            results[name].append(run_epoch(loader, trainers[name]))
    show_progress("")

    figures = {name: summarize(r) for name, r in results.items()}
    what = "training" if args.train else "loading only"
    print(f"\n{what}, batch {args.batch_size}, {args.workers} workers, median of {args.rounds}:")
    print(f"{'':20}{'img/s':>8}{'(min-max)':>16}{'img/CPU-s':>12}{'(min-max)':>16}")
    for name, f in figures.items():
        wall = f"{f['img_per_s_min']:.0f}-{f['img_per_s_max']:.0f}"
        cpu = f"{f['img_per_cpu_s_min']:.0f}-{f['img_per_cpu_s_max']:.0f}"
        print(f"{name:20}{f['img_per_s']:8.0f}{wall:>16}{f['img_per_cpu_s']:12.0f}{cpu:>16}")
    ours, theirs = figures["feedmill"], figures["torch DataLoader"]
    ratio_wall = ours["img_per_s"] / theirs["img_per_s"]
    ratio_cpu = ours["img_per_cpu_s"] / theirs["img_per_cpu_s"]
    print(f"{'ratio':20}{ratio_wall:8.2f}{'':>16}{ratio_cpu:12.2f}\n")
    if args.train:
        print(f"last loss: {({k: round(t.last_loss, 3) for k, t in trainers.items()})}\n")
    print(loaders["feedmill"].report())
    if args.json:
        figures["ratio"] = {"img_per_s": ratio_wall, "img_per_cpu_s": ratio_cpu}
        args.json.write_text(json.dumps(figures, indent=2) + "\n")
    stats = loaders["feedmill"].stats()
    if stats.path != "native" or stats.decode.fallback_samples:
        sys.exit("FAILED: not all samples took the native path: "
                 f"{stats.decode.fallback_samples} through "
                 f"Pillow, path {stats.path}")

    if args.require and min(ratio_wall, ratio_cpu) < args.require:
        sys.exit(f"FAILED: a ratio is below {args.require}")


if __name__ == "__main__":
    main()
