"""Loads many small samples with feedmill.DataLoader as scripts do: with two loaders at once, early
breaks, caught errors, abandoned iterators and new loaders. Memory, threads and file descriptors
must not grow.

    python tests/soak/soak_dataloader.py [--samples N] [--seed N]
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import os
import random
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
import torchvision_cpu  # noqa: F401, I001  before anything else imports torchvision
from torchvision import transforms
from torchvision.datasets import ImageFolder

import feedmill

N_FILES = 240
N_DAMAGED = 8
ROUND_SAMPLES = 4_000
WARM_UP_ROUNDS = 10
# The memory that the allocators and the kernel may keep.
RSS_NOISE_KB = 32 << 10
HEAP_NOISE_BYTES = 1 << 20


def make_folder(root: Path) -> None:
    """Writes an image folder of 8 x 8 pixels per file, some of them truncated."""
    pixels = np.random.default_rng(1)
    for number in range(N_FILES):
        path = root / f"class{number % 3}" / f"{number:03}.jpg"
        path.parent.mkdir(exist_ok=True)
        Image.fromarray(pixels.integers(0, 256, (8, 8, 3), dtype=np.uint8)).save(path, "JPEG")
        if number < N_DAMAGED:
            path.write_bytes(path.read_bytes()[:300])


# ---- measuring -----------------------------------------------------------------------------------


class HeapInfo(ctypes.Structure):
    """glibc's struct mallinfo2."""

    _fields_ = [(name, ctypes.c_size_t) for name in (
        "arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks",
        "fordblks", "keepcost")]


@dataclass
class Measure:
    """The memory, threads and file descriptors of this process."""

    rss_kb: int
    heap_bytes: int
    python_blocks: int
    n_threads: int
    n_files: int

    @classmethod
    def take(cls) -> Measure:
        gc.collect()
        heap_info = ctypes.CDLL(None).mallinfo2
        heap_info.restype = HeapInfo
        heap = heap_info()
        with open("/proc/self/statm") as file:
            n_pages = int(file.read().split()[1])
        return cls(
            rss_kb=n_pages * os.sysconf("SC_PAGESIZE") // 1024,
            heap_bytes=heap.uordblks + heap.hblkhd,
            python_blocks=sys.getallocatedblocks(),
            n_threads=len(os.listdir("/proc/self/task")),
            n_files=len(os.listdir("/proc/self/fd")),
        )

    def __str__(self) -> str:
        return (f"{self.rss_kb} KiB resident, {self.heap_bytes} bytes allocated, "
                f"{self.python_blocks} blocks of Python's, {self.n_threads} threads, "
                f"{self.n_files} descriptors")

    def raised_to(self, other: Measure) -> Measure:
        return Measure(*map(max, vars(self).values(), vars(other).values()))

    def has_grown_since(self, before: Measure) -> bool:
        return (self.rss_kb > before.rss_kb + RSS_NOISE_KB
                or self.heap_bytes > before.heap_bytes + HEAP_NOISE_BYTES
                or self.n_threads > before.n_threads or self.n_files > before.n_files)


def settled(before: Measure | None) -> Measure:
    """Measures the process once ended threads are no longer listed."""
    now = Measure.take()
    for _ in range(2_000):
        if before is None or now.n_threads <= before.n_threads:
            break
        time.sleep(0.01)
        now = Measure.take()
    return now


# ---- the work ------------------------------------------------------------------------------------


class Player:
    """Two loaders of one dataset, and random use of them."""

    def __init__(self, root: Path, seed: int) -> None:
        self.random = random.Random(seed)
        transform = transforms.Compose([
            transforms.CenterCrop(8), transforms.RandomHorizontalFlip(), transforms.ToTensor()])
        self.dataset = ImageFolder(str(root), transform)
        self.n_samples = self.n_errors = self.n_broken = self.n_loaders = 0
        self.held: list[Any] = []

    def new_loader(self) -> feedmill.DataLoader:
        draw = self.random
        num_workers = draw.choice([0, 1, 2])
        self.n_loaders += 1
        return feedmill.DataLoader(
            self.dataset,
            batch_size=draw.randint(4, 64),
            shuffle=draw.random() < 0.7,
            num_workers=num_workers,
            persistent_workers=num_workers > 0 and draw.random() < 0.5,
            drop_last=draw.random() < 0.3,
            reader=draw.choice(["auto", "pread"]),
            on_error=draw.choice(["raise", "skip", "zero", "replace"]),
            native="require" if draw.random() < 0.5 else "auto",
        )

    def take(self, iterator: Iterator[Any]) -> bool:
        """Takes a batch or catches an error. Returns False at the end."""
        try:
            images, _ = next(iterator)
        except StopIteration:
            return False
        except OSError:  # raised by Pillow for a damaged file
            self.n_errors += 1
            return True
        assert images.shape[1:] == (3, 8, 8), images.shape
        self.n_samples += len(images)
        self.held.append(images)
        if len(self.held) > self.random.randint(0, 6):
            self.held.clear()
        return True

    def play_epochs(self, loaders: list[feedmill.DataLoader]) -> None:
        """Runs an epoch of both loaders in turns; one of them may end early."""
        iterators = [iter(loader) for loader in loaders]
        n_left = [self.random.choice([10**9, 10**9, self.random.randint(0, 5)]) for _ in loaders]
        self.n_broken += sum(n < 10**9 for n in n_left)
        alive = [True, True]
        while any(alive):
            for i in range(2):
                n_left[i] -= 1
                alive[i] = alive[i] and n_left[i] >= 0 and self.take(iterators[i])
        if self.random.random() < 0.1:
            cycle: list[Any] = [iterators]  # for the garbage collector to find
            cycle.append(cycle)

    def play_round(self) -> None:
        end = self.n_samples + ROUND_SAMPLES
        while self.n_samples < end:
            loaders = [self.new_loader(), self.new_loader()]
            for _ in range(self.random.randint(1, 6)):
                self.play_epochs(loaders)
        self.held.clear()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--samples", type=int, default=200_000)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    options = parser.parse_args()
    print(f"soak: {options.samples} samples of a DataLoader, seed {options.seed}", flush=True)
    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory() as folder:
        make_folder(Path(folder))
        return soak(Player(Path(folder), options.seed), options.samples)


def soak(player: Player, n_samples: int) -> int:
    before: Measure | None = None
    start, n_rounds = time.monotonic(), 0
    while player.n_samples < n_samples or n_rounds < WARM_UP_ROUNDS + 2:
        player.play_round()
        n_rounds += 1
        now = settled(before)
        if n_rounds <= WARM_UP_ROUNDS:
            before = now if before is None else before.raised_to(now)
        if n_rounds in (1, WARM_UP_ROUNDS) or n_rounds % 20 == 0:
            print(f"round {n_rounds}: {now}", flush=True)
        if before is not None and n_rounds > WARM_UP_ROUNDS and now.has_grown_since(before):
            print(f"grown since the warm-up: {now}, before {before}")
            return 1
    seconds = time.monotonic() - start
    print(f"at the end: {now}")
    print(f"{player.n_samples} samples in {seconds:.0f} s ({player.n_samples / seconds:.0f} a "
          f"second): {player.n_broken} epochs broken off, {player.n_errors} errors, "
          f"{player.n_loaders} loaders")
    return 0


if __name__ == "__main__":
    sys.exit(main())
