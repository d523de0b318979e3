"""Compares waits for batches with a custom collate_fn: torch's DataLoader and feedmill's.

    python benchmarks/bench_collate.py --data FOLDER [--rounds 7] [--batches 32,128,256]

Uses three collate functions of public scripts (MixUp and CutMix as in torchvision's reference
training, block masks as in I-JEPA, a dict as in Hugging Face's examples), with steps that sleep and
steps that compute, long enough for torch to keep up. In each round both loaders run in turn.
Before anything is timed, both give the same batches, bit for bit, for the same seeds.

Printed are medians over all rounds: of the time a step waits in next(), and of the wall time of a
round. A line ends in "ok" where the wait is at most the larger of 1.05 times torch's and torch's
plus 2 ms, and the wall time at most 1.02 times torch's; the exit status is 1 if one does not.

    python benchmarks/bench_collate.py --data FOLDER --as-worker [--rounds 5] [--batches 4,32,128]

measures instead what it saves that MixUp and CutMix, which are called in this process as in a
worker, have one thread there and ordinary memory: CPU and wall time per batch beside those of the
same code without one of these or both, in turn.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import itertools
import math
import pathlib
import resource
import statistics
import sys
import time

import torch
from torch.utils.data import DataLoader as TorchDataLoader
from torch.utils.data import Subset, default_collate

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests" / "support"))
import feedmill  # noqa: E402
from torchvision_cpu import torchvision  # noqa: E402, F401
from torchvision import transforms as T  # noqa: E402
from torchvision.datasets import ImageFolder  # noqa: E402
from torchvision.transforms import v2  # noqa: E402

N_CLASSES = 1000


def mix(samples):
    """MixUp and CutMix as in torchvision's references/classification/train.py."""
    return v2.RandomChoice(
        [v2.MixUp(alpha=0.2, num_classes=N_CLASSES), v2.CutMix(alpha=1.0, num_classes=N_CLASSES)]
    )(*default_collate(samples))


class MaskCollator:
    """Block masks over 14 x 14 patches, drawn for each batch as in I-JEPA: one context block and
    four targets, truncated to the shortest in the batch."""

    def __init__(self, size=14, n_targets=4):
        self.size, self.n_targets = size, n_targets

    def block(self, generator, scale, ratio):
        scale_drawn, ratio_drawn = torch.rand(2, generator=generator).tolist()
        area = self.size**2 * (scale[0] + scale_drawn * (scale[1] - scale[0]))
        aspect = ratio[0] + ratio_drawn * (ratio[1] - ratio[0])
        height = min(self.size - 1, max(1, round(math.sqrt(area * aspect))))
        width = min(self.size - 1, max(1, round(math.sqrt(area / aspect))))
        return height, width

    def mask(self, shape):
        top = int(torch.randint(0, self.size - shape[0], (1,)))
        left = int(torch.randint(0, self.size - shape[1], (1,)))
        mask = torch.zeros((self.size, self.size), dtype=torch.int32)
        mask[top : top + shape[0], left : left + shape[1]] = 1
        return torch.nonzero(mask.flatten()).squeeze()

    def __call__(self, samples):
        images, labels = default_collate(samples)
        generator = torch.Generator()
        generator.manual_seed(int(torch.randint(0, 2**31, (1,))))
        target = self.block(generator, (0.15, 0.2), (0.75, 1.5))
        context = self.block(generator, (0.85, 1.0), (1.0, 1.0))
        targets, contexts = [], []
        for _ in samples:
            targets.append([self.mask(target) for _ in range(self.n_targets)])
            contexts.append([self.mask(context)])
        short = min(len(one) for masks in contexts for one in masks)
        contexts = [[one[:short] for one in masks] for masks in contexts]
        return (images, labels), default_collate(contexts), default_collate(targets)


def dictionary(samples):
    """The collate_fn of Hugging Face's image classification examples."""
    pixel_values = torch.stack([image for image, _ in samples])
    labels = torch.tensor([label for _, label in samples])
    return {"pixel_values": pixel_values, "labels": labels}


COLLATES = {"mix": mix, "masks": MaskCollator(), "dict": dictionary}


def equal(one, other):
    if isinstance(one, torch.Tensor):
        return one.dtype == other.dtype and torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(equal(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(equal, one, other))
    return one == other


def check(folder, collate):
    """Checks that both loaders deliver the same batches. The transforms draw no random numbers, so
    that only the collate_fn draws from torch's generator."""
    dataset = ImageFolder(folder, T.Compose([T.Resize(256), T.CenterCrop(224), T.ToTensor()]))
    dataset = Subset(dataset, range(96))
    batches = []
    for kind in (feedmill.DataLoader, TorchDataLoader):
        torch.manual_seed(7)
        options = {"native": "require"} if kind is feedmill.DataLoader else {}
        batches.append(list(kind(dataset, 32, True, num_workers=2, collate_fn=collate, **options)))
    if not equal(*batches):
        sys.exit("the batches differ from torch's")


def compute(n):
    """A training step's work on the CPU, done only by the thread that requests the batches."""
    matrix = torch.ones(128, 128)
    for _ in range(n):
        torch.mm(matrix, matrix)


def calibrated(seconds):
    compute(100)
    begin = time.perf_counter()
    compute(1000)
    return max(1, int(1000 * seconds / (time.perf_counter() - begin)))


def run(loader, step, n_warm):
    """(waits of the steady steps in ms, wall time in s)."""
    waits, begin, iterator = [], time.perf_counter(), iter(loader)
    while True:
        asked = time.perf_counter()
        try:
            batch = next(iterator)
        except StopIteration:
            break
        waits.append(1000 * (time.perf_counter() - asked))
        step()
        del batch
    del iterator
    return waits[n_warm:], time.perf_counter() - begin


def measure(args, dataset, collate, batch_size, step):
    repeated = Subset(dataset, [i % len(dataset) for i in range(batch_size * args.steps)])
    options = {"num_workers": args.workers, "collate_fn": collate, "drop_last": True}
    kinds = {"torch": TorchDataLoader(repeated, batch_size, True, **options)}
    options["native"] = "require"
    kinds["feedmill"] = feedmill.DataLoader(repeated, batch_size, True, **options)
    waits = {name: [] for name in kinds}
    walls = {name: [] for name in kinds}
    for _ in range(args.rounds):
        for name, loader in kinds.items():
            found, wall = run(loader, step, n_warm=args.workers)
            waits[name] += found
            walls[name].append(wall)
    return waits, walls


# ---- as in a worker ------------------------------------------------------------------------------


def cpu_s():
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)


def milliseconds(dataset, batch_size, n_batches, workers):
    """(CPU time, wall time) per batch."""
    loader = feedmill.DataLoader(dataset, batch_size, True, num_workers=workers, collate_fn=mix,
                                 drop_last=True, native="require")
    began = cpu_s(), time.perf_counter()
    epochs = itertools.chain.from_iterable(itertools.repeat(loader))
    for batch in itertools.islice(epochs, n_batches):
        del batch
    del loader, epochs
    gc.collect()
    ended = cpu_s(), time.perf_counter()
    return tuple(1000 * (end - begin) / n_batches for begin, end in zip(began, ended))


def measure_as_worker(args, dataset):
    from feedmill.iterators import collating

    def nothing(*_):
        return contextlib.nullcontext()

    threads, memory = collating._Worker._with_its_threads, collating.unshared
    ways = {"now": (threads, memory), "more threads": (nothing, memory),
            "shared memory": (threads, nothing), "both": (nothing, nothing)}
    print(f"{args.workers} workers, {args.rounds} rounds; ms per batch are medians: CPU, wall")
    for batch_size in map(int, args.batches.split(",")):
        n_batches = max(10, 1200 // batch_size)
        found = {way: [] for way in ways}
        milliseconds(dataset, batch_size, 5, args.workers)
        for _ in range(args.rounds):
            for way, (of_threads, of_memory) in ways.items():
                collating._Worker._with_its_threads, collating.unshared = of_threads, of_memory
                found[way].append(milliseconds(dataset, batch_size, n_batches, args.workers))
        text = "; ".join(
            f"{way} {statistics.median(cpu for cpu, _ in times):.1f}, "
            f"{statistics.median(wall for _, wall in times):.1f}" for way, times in found.items()
        )
        print(f"batch {batch_size:3}: {text}", flush=True)
    return 0


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", required=True, help="an image folder")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--steps", type=int, default=8, help="batches per round")
    parser.add_argument("--batches", default="32,128,256")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--collates", default=",".join(COLLATES))
    parser.add_argument("--ms-per-image", type=float, default=3.5,
                        help="duration of a step, for each image of its batch")
    parser.add_argument("--as-worker", action="store_true",
                        help="what one thread and ordinary memory save")
    args = parser.parse_args()
    if not args.as_worker:
        torch.set_num_threads(1)
    transform = T.Compose([T.RandomResizedCrop(224), T.RandomHorizontalFlip(), T.ToTensor(),
                           T.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))])
    dataset = ImageFolder(args.data, transform)
    if args.as_worker:
        check(args.data, mix)
        return measure_as_worker(args, dataset)
    print(f"{args.workers} workers, {args.rounds} rounds of {args.steps} batches; ms are medians")
    print(f"{'collate':8}{'batch':>6} {'step':8}{'wait: torch':>12}{'feedmill':>10}"
          f"{'wall: torch':>13}{'feedmill':>10}{'ratio':>7}")
    all_ok = True
    for name in args.collates.split(","):
        check(args.data, COLLATES[name])
        for batch_size in map(int, args.batches.split(",")):
            seconds = args.ms_per_image * batch_size / 1000
            n = calibrated(seconds)
            steps = {"sleep": lambda: time.sleep(seconds), "compute": lambda: compute(n)}
            for kind, step in steps.items():
                waits, walls = measure(args, dataset, COLLATES[name], batch_size, step)
                theirs, ours = (statistics.median(waits[one]) for one in ("torch", "feedmill"))
                walls = {one: statistics.median(walls[one]) for one in walls}
                ratio = walls["feedmill"] / walls["torch"]
                ok = ours <= max(1.05 * theirs, theirs + 2) and ratio <= 1.02
                all_ok = all_ok and ok
                print(f"{name:8}{batch_size:6} {kind:8}{theirs:12.1f}{ours:10.1f}"
                      f"{walls['torch']:13.2f}{walls['feedmill']:10.2f}{ratio:7.2f}"
                      f"  {'ok' if ok else 'MISSED'}", flush=True)
    return 0 if all_ok else 1


if __name__ == "__main__":
    sys.exit(main())
