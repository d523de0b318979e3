"""Workloads of tutorials, compared with torch's DataLoader without workers, by CPU time.

    python benchmarks/bench_workloads.py [--seconds 4] [--rounds 3] [--data DIR] [CASE...]

First the batches of both loaders are compared; with random transforms, native="verify" checks them.
Then the loaders run in turn for some seconds. The result is the CPU time of the process per sample.
Prints a line of JSON for each case.

- cifar10: 50,000 random images in CIFAR-10's own files, loaded by torchvision's class; ToTensor and
  Normalize, batches of 128, shuffled.
- cifar10_augmented: with RandomCrop(32, padding=4), RandomHorizontalFlip and RandomRotation(15).
- tensors: a TensorDataset of 3 x 224 x 224 float32, batches of 64, shuffled; also against memcpy()
  of as many bytes, batch after batch in order.
- color_jitter, rand_augment (with --data, an image folder): the ResNet recipe (RandomResizedCrop,
  RandomHorizontalFlip, ToTensor, Normalize) with ColorJitter(0.4, 0.4, 0.4, 0.1), with RandAugment.
- moco, dino (with --data): several images of each file, by MoCo v2's and DINO's transforms: two of
  224 pixels; two of 224 and eight of 96.
- table, decode_image (with --data): a dataset as PyTorch's tutorial writes it, with a table of
  pandas; the recipe, of images that Pillow opens, and of tensors by decode_image() with v2's
  transforms.
"""

from __future__ import annotations

import argparse
import collections
import ctypes
import hashlib
import itertools
import json
import os
import pickle
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import feedmill
import numpy as np
import torch
from bench_hybrid import GaussianBlur, Solarization
from PIL import Image
from torch.utils.data import DataLoader, Dataset, TensorDataset

try:
    import torchvision  # noqa: F401
except RuntimeError:  # its compiled library does not match a CPU-only torch
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests" / "support"))
    import torchvision_cpu  # noqa: F401
from torchvision import transforms
from torchvision.datasets import CIFAR10, ImageFolder
from torchvision.io import decode_image
from torchvision.transforms import v2

_TESTS = Path(__file__).resolve().parent.parent / "tests"
_NORMALIZE = ((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616))
_TO_VALUES = (transforms.ToTensor(), transforms.Normalize(*_NORMALIZE))
_AUGMENTATIONS = (
    transforms.RandomCrop(32, padding=4),
    transforms.RandomHorizontalFlip(),
    transforms.RandomRotation(15),
)
_RECIPES = {
    "color_jitter": transforms.ColorJitter(0.4, 0.4, 0.4, 0.1),
    "rand_augment": transforms.RandAugment(),
}
_N_PER_FILE = 10000
_TENSOR_ROWS = 512


# ---- datasets ------------------------------------------------------------------------------------


def write_cifar(root: Path) -> type[CIFAR10]:
    """Writes random images in CIFAR-10's file format. Returns a subclass of CIFAR10 that has their
    checksums; load_cifar() turns its objects into CIFAR10's."""
    folder = root / CIFAR10.base_folder
    folder.mkdir()
    generator = np.random.default_rng(0)

    def write(name: str, value: Any) -> list[str]:
        content = pickle.dumps(value)
        (folder / name).write_bytes(content)
        return [name, hashlib.md5(content).hexdigest()]

    def images() -> dict[str, Any]:
        return {
            "data": generator.integers(0, 256, (_N_PER_FILE, 3072), dtype=np.uint8),
            "labels": generator.integers(0, 10, _N_PER_FILE).tolist(),
        }

    train = [write(f"data_batch_{number}", images()) for number in range(1, 6)]
    test = [write("test_batch", images())]
    name, md5 = write("batches.meta", {"label_names": [str(number) for number in range(10)]})
    lists = {"train_list": train, "test_list": test}
    meta = {"filename": name, "key": "label_names", "md5": md5}
    return type("Written", (CIFAR10,), {**lists, "meta": meta})


def load_cifar(root: Path, written: type[CIFAR10], steps: Iterable[Any]) -> CIFAR10:
    """The files, loaded as by CIFAR10(root, transform=Compose(steps))."""
    dataset = written(str(root), transform=transforms.Compose(list(steps)))
    dataset.__class__ = CIFAR10
    return dataset


# ---- several images of each file -----------------------------------------------------------------


class Views:
    def __init__(self, *views: Any) -> None:
        self.views = views

    def __call__(self, image: Any) -> list[torch.Tensor]:
        return [view(image) for view in self.views]


def view(size: int, scale: tuple[float, float], jitter: Any, *more: Any) -> Any:
    steps = [transforms.RandomApply([jitter], p=0.8), transforms.RandomGrayscale(p=0.2), *more]
    crop = transforms.RandomResizedCrop(size, scale)
    return transforms.Compose([crop, transforms.RandomHorizontalFlip(), *steps, *_TO_VALUES])


class Table(Dataset[Any]):
    """As in PyTorch's tutorial, but for the images."""

    def __init__(self, root: str, transform: Any) -> None:
        import pandas

        samples = ImageFolder(root).samples
        self.img_labels = pandas.DataFrame({
            "file": [os.path.relpath(path, root) for path, _ in samples],
            "label": [label for _, label in samples],
        })
        self.img_dir = root
        self.transform = transform
        self.target_transform = None

    def __len__(self) -> int:
        return len(self.img_labels)

    def load(self, path: str) -> Any:
        return Image.open(path).convert("RGB")

    def __getitem__(self, idx: int) -> Any:
        img_path = os.path.join(self.img_dir, self.img_labels.iloc[idx, 0])
        image = self.load(img_path)
        label = self.img_labels.iloc[idx, 1]
        if self.transform:
            image = self.transform(image)
        if self.target_transform:
            label = self.target_transform(label)
        return image, label


class TensorTable(Table):
    def load(self, path: str) -> Any:
        return decode_image(path, mode="RGB")


def moco() -> Views:
    jitter = transforms.ColorJitter(0.4, 0.4, 0.4, 0.1)
    return Views(*[view(224, (0.2, 1.0), jitter, GaussianBlur(0.5))] * 2)


def dino() -> Views:
    jitter = transforms.ColorJitter(0.4, 0.4, 0.2, 0.1)
    return Views(
        view(224, (0.4, 1.0), jitter, GaussianBlur(1.0)),
        view(224, (0.4, 1.0), jitter, GaussianBlur(0.1), Solarization(0.2)),
        *[view(96, (0.05, 0.4), jitter, GaussianBlur(0.5))] * 8,
    )


# ---- running -------------------------------------------------------------------------------------


def endless(loader: Any) -> Iterator[Any]:
    while True:
        yield from loader


def cpu_per_sample(batches: Iterator[Any], seconds: float) -> float:
    """CPU time of the whole process per sample, in seconds."""
    next(batches)
    n, cpu_s, end_s = 0, time.process_time(), time.monotonic() + seconds
    while time.monotonic() < end_s:
        n += len(next(batches)[-1])
    return (time.process_time() - cpu_s) / n


def compare(name: str, makers: dict[str, Callable[[], Any]], options: Any) -> dict[str, Any]:
    """The best of some rounds of each loader. The loaders run in turn."""
    best = dict.fromkeys(makers, float("inf"))
    for _ in range(options.rounds):
        for way, make in makers.items():
            best[way] = min(best[way], cpu_per_sample(make(), options.seconds))
    result = {"case": name}
    result.update({f"{way}_us": round(1e6 * value, 2) for way, value in best.items()})
    result["ratio"] = round(best["torch"] / best["feedmill"], 2)
    return result


def loaders(dataset: Any, batch_size: int, **options: Any) -> tuple[Any, Any]:
    """A loader of torch's and one of feedmill's."""
    ours = feedmill.DataLoader(dataset, batch_size, native="require", **options)
    return DataLoader(dataset, batch_size, **options), ours


def check(dataset: Any, batch_size: int) -> None:
    """Checks that both loaders deliver the same batches in the same order, bit for bit."""
    for batches in zip(*(islice_of(one) for one in loaders(dataset, batch_size)), strict=True):
        for ours, torchs in zip(*batches, strict=True):
            assert ours.dtype is torchs.dtype and torch.equal(ours, torchs)


def islice_of(loader: Any) -> Iterator[Any]:
    for number, batch in enumerate(loader):
        if number == 20:
            return
        yield batch


def run_cifar(options: argparse.Namespace) -> None:
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        written = write_cifar(root)
        plain = load_cifar(root, written, _TO_VALUES)
        check(plain, 128)
        report("cifar10", plain, 128, options)
        augmented = load_cifar(root, written, (*_AUGMENTATIONS, *_TO_VALUES))
        list(islice_of(feedmill.DataLoader(augmented, 128, native="verify")))
        report("cifar10_augmented", augmented, 128, options)


def run_photographs(options: argparse.Namespace) -> None:
    for name, augmentation in _RECIPES.items():
        steps = [transforms.RandomResizedCrop(224), transforms.RandomHorizontalFlip()]
        steps += [augmentation, *_TO_VALUES]
        dataset = ImageFolder(options.data, transforms.Compose(steps))
        list(islice_of(feedmill.DataLoader(dataset, 16, native="verify")))
        report(name, dataset, 64, options)


def run_views(options: argparse.Namespace) -> None:
    for name, make in (("moco", moco), ("dino", dino)):
        dataset = ImageFolder(options.data, make())
        few = itertools.islice(feedmill.DataLoader(dataset, 8, native="verify"), 5)
        collections.deque(few, maxlen=0)
        report(name, dataset, 32, options)


def run_tables(options: argparse.Namespace) -> None:
    sys.path.insert(0, str(_TESTS / "python"))
    import torchvision_io

    of_images = (transforms.RandomResizedCrop(224), transforms.RandomHorizontalFlip(), *_TO_VALUES)
    of_tensors = (
        v2.RandomResizedCrop(224, antialias=True), v2.RandomHorizontalFlip(),
        v2.ToDtype(torch.float32, scale=True), v2.Normalize(*_NORMALIZE),
    )
    datasets = {"table": Table(options.data, transforms.Compose(of_images))}
    if reason := torchvision_io.why_not():
        print(f"decode_image is left out: {reason}", file=sys.stderr)
    else:
        datasets["decode_image"] = TensorTable(options.data, v2.Compose(of_tensors))
    for name, dataset in datasets.items():
        list(islice_of(feedmill.DataLoader(dataset, 16, native="verify")))
        report(name, dataset, 64, options)


def report(name: str, dataset: Any, batch_size: int, options: argparse.Namespace) -> None:
    torchs, ours = loaders(dataset, batch_size, shuffle=True)
    makers = {"torch": lambda: endless(torchs), "feedmill": lambda: endless(ours)}
    print(json.dumps(compare(name, makers, options)), flush=True)


def run_tensors(options: argparse.Namespace) -> None:
    batch_size = 64
    rows = torch.rand(_TENSOR_ROWS, 3, 224, 224)
    dataset = TensorDataset(rows, torch.arange(_TENSOR_ROWS))
    check(dataset, batch_size)
    torchs, ours = loaders(dataset, batch_size, shuffle=True)

    def copies() -> Iterator[Any]:
        target = torch.empty(batch_size, 3, 224, 224)
        while True:
            for part in rows.split(batch_size):
                ctypes.memmove(target.data_ptr(), part.data_ptr(), part.nbytes)
                yield (target,)

    makers = {"torch": lambda: endless(torchs), "feedmill": lambda: endless(ours), "copy": copies}
    torch.set_num_threads(1)
    result = compare("tensors", makers, options)
    result["of_a_copy"] = round(result["copy_us"] / result["feedmill_us"], 2)
    print(json.dumps(result), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=4, help="duration of each run (default 4)")
    parser.add_argument("--rounds", type=int, default=3, help="take the best of them (default 3)")
    parser.add_argument("--data", help="an image folder, for the cases with photographs")
    parser.add_argument("cases", nargs="*", default=[],
                        choices=("cifar", "tensors", "photographs", "views", "tables", []))
    options = parser.parse_args()
    torch.set_num_threads(1)
    if not options.cases or "cifar" in options.cases:
        run_cifar(options)
    if not options.cases or "tensors" in options.cases:
        run_tensors(options)
    if options.data and (not options.cases or "photographs" in options.cases):
        run_photographs(options)
    if options.data and (not options.cases or "views" in options.cases):
        run_views(options)
    if options.data and (not options.cases or "tables" in options.cases):
        run_tables(options)


if __name__ == "__main__":
    main()
