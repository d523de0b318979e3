"""decode="scaled" beside exact decoding: how much the pixels differ, and how fast it is.

    python benchmarks/bench_scaled.py [FOLDER] [--crops 1000] [--rounds 5] [--samples 640]
    python benchmarks/bench_scaled.py FOLDER --train [--seeds 5] [--epochs 6]

FOLDER is an ImageFolder of JPEGs; without it, photograph-like images are generated. First the
differences: crops of RandomResizedCrop to 56, 112 and 224 pixels, the same ones with both settings,
of the photographs as they are and of large ones made of them (2-12 MP). PSNR in dB and SSIM (Wang
et al., 2004: Gaussian window of 11 pixels, mean of the three channels) of the crops that were
decoded at a reduced size. Then the rates on the large ones: RandomResizedCrop(224), flip,
normalize, float32, batches of 64; an epoch with each setting in turn. Writes nothing.

--train compares what a network learns instead: it gets crops of 400 of the photographs, resized to
64 pixels, and learns which photograph each is from. One training with each setting for each
seed, which is the same for both: the same weights to begin with, the same crops in the same order.
The accuracy is that on other crops, which are decoded exactly.
"""

from __future__ import annotations

import argparse
import pathlib
import resource
import statistics
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "tests" / "support")]

import feedmill  # noqa: E402
import numpy as np  # noqa: E402
import torch  # noqa: E402
from torchvision_cpu import torchvision  # noqa: E402
from feedmill.cli.made_images import make_images  # noqa: E402
from peers.images import class_folder  # noqa: E402
from torch.utils.data import RandomSampler  # noqa: E402

transforms = torchvision.transforms
SIZES = (56, 112, 224)
N_PHOTOGRAPHS = 400
WINDOW = np.exp(-((np.arange(11) - 5) ** 2) / (2 * 1.5**2))
WINDOW /= WINDOW.sum()


def blurred(image: np.ndarray) -> np.ndarray:
    """Weighted means of all windows that are within the image."""
    for axis in (1, 2):
        image = np.apply_along_axis(np.convolve, axis, image, WINDOW, "valid")
    return image


def ssim(one: np.ndarray, other: np.ndarray) -> float:
    one, other = one.astype(np.float64), other.astype(np.float64)
    mean, mean_other = blurred(one), blurred(other)
    variance = blurred(one * one) - mean**2
    variance_other = blurred(other * other) - mean_other**2
    covariance = blurred(one * other) - mean * mean_other
    c1, c2 = (0.01 * 255) ** 2, (0.03 * 255) ** 2
    values = (2 * mean * mean_other + c1) * (2 * covariance + c2)
    values /= (mean**2 + mean_other**2 + c1) * (variance + variance_other + c2)
    return float(values.mean())


def psnr(one: np.ndarray, other: np.ndarray) -> float:
    error = np.mean((one.astype(np.float64) - other) ** 2)
    return float("inf") if error == 0 else 10 * np.log10(255**2 / error)


def loader_of(folder: pathlib.Path, steps: list, n: int, decode: str, **options):
    dataset = torchvision.datasets.ImageFolder(str(folder), transforms.Compose(steps))
    sampler = RandomSampler(dataset, replacement=True, num_samples=n)
    return feedmill.DataLoader(
        dataset, 64, sampler=sampler, native="require", seed=5, decode=decode, **options
    )


def compare(folder: pathlib.Path, size: int, n_crops: int) -> None:
    steps = [transforms.RandomResizedCrop(size), transforms.PILToTensor()]
    images = []
    for decode in ("exact", "scaled"):
        torch.manual_seed(3)
        loader = loader_of(folder, steps, n_crops, decode)
        images.append(np.concatenate([batch.numpy() for batch, _ in loader]))
    pairs = [(a, b) for a, b in zip(*images, strict=True) if not np.array_equal(a, b)]
    text = f"{folder.name:>24} to {size:3}: {len(pairs):5} of {n_crops} crops reduced"
    if pairs:
        signal = sorted(psnr(*pair) for pair in pairs)
        likeness = sorted(ssim(*pair) for pair in pairs)
        low = len(pairs) // 20
        text += (
            f"; PSNR median {statistics.median(signal):.1f} dB, 5 % below {signal[low]:.1f}; "
            f"SSIM median {statistics.median(likeness):.4f}, 5 % below {likeness[low]:.4f}"
        )
    print(text, flush=True)


def epoch(loader) -> tuple[float, float]:
    """Images per second and per CPU-second of an epoch."""
    before, start_s = resource.getrusage(resource.RUSAGE_SELF), time.perf_counter()
    n = sum(len(images) for images, _ in loader)
    wall_s = time.perf_counter() - start_s
    after = resource.getrusage(resource.RUSAGE_SELF)
    return n / wall_s, n / (after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)


def measure(folder: pathlib.Path, n_samples: int, n_rounds: int) -> None:
    steps = [
        transforms.RandomResizedCrop(224),
        transforms.RandomHorizontalFlip(),
        transforms.ToTensor(),
        transforms.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
    ]
    loaders = {
        decode: loader_of(folder, steps, n_samples, decode, num_workers=2)
        for decode in ("exact", "scaled")
    }
    rates: dict[str, list[tuple[float, float]]] = {decode: [] for decode in loaders}
    for number in range(n_rounds + 1):
        for decode, loader in loaders.items():
            rate = epoch(loader)
            if number:  # the first epoch warms up
                rates[decode].append(rate)
    for i, what in enumerate(("img/s", "img per CPU-second")):
        exact, scaled = ([rate[i] for rate in rates[decode]] for decode in ("exact", "scaled"))
        ratio = statistics.median(b / a for a, b in zip(exact, scaled, strict=True))
        print(f"{what}: exact {statistics.median(exact):.1f}, scaled "
              f"{statistics.median(scaled):.1f}, ratio {ratio:.2f}")


class Block(torch.nn.Module):
    """Two convolutions around which the input is added, as in ResNet (He et al., 2015)."""

    def __init__(self, n_in: int, n_out: int, stride: int) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(
            torch.nn.Conv2d(n_in, n_out, 3, stride, 1, bias=False), torch.nn.BatchNorm2d(n_out),
            torch.nn.ReLU(), torch.nn.Conv2d(n_out, n_out, 3, 1, 1, bias=False),
            torch.nn.BatchNorm2d(n_out),
        )
        self.short = torch.nn.Conv2d(n_in, n_out, 1, stride, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.layers(x) + self.short(x))


def training(folder: pathlib.Path, decode: str, seed: int, n_epochs: int) -> float:
    """Trains a network with this setting; returns its accuracy on other crops."""
    crop = transforms.RandomResizedCrop(64, scale=(0.2, 1.0))
    normalize = transforms.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
    steps = [crop, transforms.RandomHorizontalFlip(), transforms.ToTensor(), normalize]

    def crops(n: int, decode: str, seed: int):
        dataset = torchvision.datasets.ImageFolder(str(folder), transforms.Compose(steps))
        files = dataset.samples[:: max(1, len(dataset) // N_PHOTOGRAPHS)][:N_PHOTOGRAPHS]
        dataset.samples = [(path, number) for number, (path, _) in enumerate(files)]
        generator = torch.Generator().manual_seed(seed)
        sampler = RandomSampler(dataset, True, n * N_PHOTOGRAPHS, generator)
        return feedmill.DataLoader(dataset, 64, sampler=sampler, num_workers=2, native="require",
                                   seed=seed, decode=decode)

    torch.manual_seed(seed)
    network = torch.nn.Sequential(
        Block(3, 32, 2), Block(32, 64, 2), Block(64, 128, 2), Block(128, 256, 2),
        torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), torch.nn.Linear(256, N_PHOTOGRAPHS),
    )
    loader, steps_of_epoch = crops(12, decode, seed), -(-12 * N_PHOTOGRAPHS // 64)
    optimizer = torch.optim.SGD(network.parameters(), 0.1, momentum=0.9, weight_decay=5e-4)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.2, n_epochs * steps_of_epoch)
    for _ in range(n_epochs):
        for images, targets in loader:
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(network(images), targets).backward()
            optimizer.step()
            schedule.step()
    network.eval()
    right = n = 0
    with torch.no_grad():
        for images, targets in crops(20, "exact", seed + 1000):
            right += int((network(images).argmax(1) == targets).sum())
            n += len(targets)
    return right / n


def compare_training(folder: pathlib.Path, n_seeds: int, n_epochs: int) -> None:
    differences = []
    for seed in range(n_seeds):
        exact, scaled = (training(folder, one, seed, n_epochs) for one in ("exact", "scaled"))
        differences.append(scaled - exact)
        print(f"seed {seed}: accuracy with exact {exact:.2%}, scaled {scaled:.2%}", flush=True)
    mean = statistics.mean(differences)
    error = statistics.stdev(differences) / n_seeds**0.5 if n_seeds > 1 else float("nan")
    print(f"scaled - exact: {100 * mean:+.2f} points, standard error {100 * error:.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", nargs="?", type=pathlib.Path)
    parser.add_argument("--crops", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--samples", type=int, default=640)
    parser.add_argument("--large-files", type=int, default=80)
    parser.add_argument("--train", action="store_true")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--scratch", type=pathlib.Path, default=pathlib.Path("run-data"))
    args = parser.parse_args()
    args.scratch.mkdir(exist_ok=True)
    folder = args.folder or make_images(args.scratch / "made")
    if args.train:
        compare_training(folder, args.seeds, args.epochs)
        return

    def show(text: str) -> None:
        pass

    large = class_folder("large", folder.resolve(), args.scratch, args.large_files, show)
    for one in (folder, large):
        for size in SIZES:
            compare(one, size, args.crops)
    measure(large, args.samples, args.rounds)


if __name__ == "__main__":
    main()
