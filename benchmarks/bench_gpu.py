"""Measures feedmill with a GPU: how well loading overlaps with training, and the error of stalls.

    python benchmarks/bench_gpu.py [--data FOLDER] [--batch-size 128] [--workers 8] [--steps 150]
                                   [--threads 1,2,4,8,16] [--only overlap,threads,training]

Needs an NVIDIA GPU and a CUDA build of torch, and exits with 77 without them. DALI is measured if
it is installed. FOLDER is an ImageFolder of JPEGs; without it, photograph-like images are
generated. First compares the batches on the GPU with those on the CPU, bit for bit. Then measures:

- threads: img/s from the folder with 1, 2, ... decode threads, without a training step.
- overlap: steps of fixed work on the GPU, twice as long as the loader needs for a batch, with the
  loader and with ready batches (loader.replay()): the cost of a loader that is fast enough.
- training: ResNet-50 (bfloat16 autocast, channels_last, SGD) with each loader: img/s, how busy the
  GPU was (by NVML), the stall per step by the GPU's clock, and the sum of stalls compared with the
  time that ready batches save: they should be equal within 3% of the time.

Writes gpu.md to benchmarks/results. --rehearse runs everything on the CPU with small sizes and
writes nothing; it tests the program and measures nothing.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import datetime
import os
import pathlib
import platform
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests" / "support"))
import bench_torch  # noqa: E402
import feedmill  # noqa: E402
from torchvision_cpu import torchvision  # noqa: E402
from feedmill.cli.made_images import make_images  # noqa: E402
from feedmill.engine import devices  # noqa: E402
from feedmill.system import nvml  # noqa: E402

NO_GPU = 77
# Goals: the share that a fast enough loader may add to a step, and the largest error of the stalls.
OVERLAP_GOAL, STALL_GOAL = 0.02, 0.03
WARM_UP = 8


@dataclasses.dataclass
class Setting:
    """The settings of all measurements. `device` is "cpu" in a rehearsal."""

    dataset: Any
    batch_size: int
    workers: int
    steps: int
    threads: list[int]
    device: str
    network: Callable[[], torch.nn.Module]

    @property
    def is_gpu(self) -> bool:
        return self.device == "cuda"

    def synchronize(self) -> None:
        if self.is_gpu:
            torch.cuda.synchronize()

    def feedmill(self, **options: Any) -> feedmill.DataLoader:
        values = {"batch_size": self.batch_size, "shuffle": True, "num_workers": self.workers,
                  "native": "require", "drop_last": True, "device": self.device, **options}
        return feedmill.DataLoader(self.dataset, **values)


def endless(loader: Iterable[Any]) -> Iterator[Any]:
    while True:
        yield from loader


# ---- the batches ---------------------------------------------------------------------------------


def check(setting: Setting) -> str:
    """Compares the first batches on the device with those on the CPU, bit for bit."""
    n = 4
    for dtype in (None, torch.float16, torch.bfloat16):
        for memory_format in (torch.contiguous_format, torch.channels_last):
            options = {"seed": 3, "shuffle": False, "dtype": dtype, "memory_format": memory_format}
            loaders = setting.feedmill(**options), setting.feedmill(**options, device="cpu")
            for _, got, wanted in zip(range(n), *loaders):
                for one, other in zip(got, wanted, strict=True):
                    if one.stride() != other.stride() or not torch.equal(one.cpu(), other):
                        raise SystemExit(f"batches on the GPU differ from the CPU's: {options}")
    return f"{6 * n} batches on the GPU equal the CPU's: float32, float16, bfloat16, both layouts"


# ---- threads -------------------------------------------------------------------------------------


def rate_of(setting: Setting, loader: Iterable[Any]) -> float:
    """img/s of a loader without a training step."""
    batches = endless(loader)
    for _ in range(3):
        next(batches)
    setting.synchronize()
    begin = time.perf_counter()
    for _ in range(setting.steps):
        images, targets = next(batches)
        if images.device.type != setting.device:
            images.to(setting.device, non_blocking=True)
            targets.to(setting.device, non_blocking=True)
    setting.synchronize()
    return setting.steps * setting.batch_size / (time.perf_counter() - begin)


def measure_threads(setting: Setting) -> list[str]:
    rows = ["| threads | feedmill, img/s | torch DataLoader, img/s | ratio |", "|---|---|---|---|"]
    for n in setting.threads:
        ours = rate_of(setting, setting.feedmill(num_workers=n, threads=n))
        torchs = rate_of(setting, torch_loader(setting, n))
        rows.append(f"| {n} | {ours:,.0f} | {torchs:,.0f} | {ours / torchs:.2f} |")
        show(rows[-1])
    note = f"Usable CPUs: {len(os.sched_getaffinity(0))}; threads beyond them share those."
    return ["## Images a second from the folder to the device", "", *rows, "", note]


def torch_loader(setting: Setting, workers: int) -> torch.utils.data.DataLoader:
    return torch.utils.data.DataLoader(
        setting.dataset, batch_size=setting.batch_size, shuffle=True, num_workers=workers,
        pin_memory=setting.is_gpu, drop_last=True, persistent_workers=workers > 0,
    )


# ---- overlap -------------------------------------------------------------------------------------


def timed(setting: Setting, batches: Iterable[Any], step: Callable[[Any], None]) -> float:
    """The seconds that setting.steps steps take, after some steps to warm up."""
    iterator = endless(batches)
    for _ in range(WARM_UP):
        step(next(iterator))
    setting.synchronize()
    begin = time.perf_counter()
    for _ in range(setting.steps):
        step(next(iterator))
    setting.synchronize()
    return time.perf_counter() - begin


def work_of(setting: Setting, seconds: float) -> Callable[[Any], None]:
    """A step that keeps the device busy for this time and ignores the batch."""
    size = 2048 if setting.is_gpu else 64
    matrix = torch.randn(size, size, device=setting.device) / size
    n_each = 4
    setting.synchronize()

    def run(n: int) -> None:
        value = matrix
        for _ in range(n):
            value = value @ matrix

    run(n_each)
    setting.synchronize()
    begin = time.perf_counter()
    run(16 * n_each)
    setting.synchronize()
    one = (time.perf_counter() - begin) / (16 * n_each)
    n = max(1, round(seconds / one))
    return lambda batch: run(n)


def measure_overlap(setting: Setting) -> list[str]:
    fastest = rate_of(setting, setting.feedmill())
    step = work_of(setting, 2 * setting.batch_size / fastest)
    rows = ["| batches | with the loader, ms a step | ready ones, ms a step | more by | goal |",
            "|---|---|---|---|---|"]
    for name, options in (("device=", {}), ("pinned, copied by the script", {"device": "cpu",
                                                                             "pin_memory": True})):
        loader = setting.feedmill(**options)

        def copying(batch: Any) -> None:
            for tensor in batch:
                tensor.to(setting.device, non_blocking=True)
            step(batch)

        ratios, full_ms, ready_ms = [], 0.0, 0.0
        for _ in range(3):
            full = timed(setting, loader, copying)
            ready = timed(setting, loader.replay(8), copying)
            ratios.append(full / ready - 1)
            full_ms, ready_ms = (1e3 * seconds / setting.steps for seconds in (full, ready))
        more = statistics.median(ratios)
        state = "met" if more <= OVERLAP_GOAL else "missed"
        rows.append(f"| {name} | {full_ms:.2f} | {ready_ms:.2f} | {100 * more:.1f}% | at most "
                    f"{100 * OVERLAP_GOAL:.0f}%: {state} |")
        show(rows[-1])
    return ["## What a loader costs that is fast enough", "",
            "Steps of fixed work on the GPU, twice as long as the loader needs for a batch.", "",
            *rows]


# ---- training ------------------------------------------------------------------------------------


class Training:
    """Trains a network; a call does one step with a batch."""

    def __init__(self, setting: Setting) -> None:
        self._device = setting.device
        self._network = setting.network().to(setting.device, memory_format=torch.channels_last)
        self._optimizer = torch.optim.SGD(self._network.parameters(), lr=0.01, momentum=0.9)

    def __call__(self, batch: Any) -> None:
        images, targets = (one.to(self._device, non_blocking=True) for one in batch)
        images = images.contiguous(memory_format=torch.channels_last)
        with torch.autocast(self._device, torch.bfloat16):
            output = self._network(images)
            loss = torch.nn.functional.cross_entropy(output, targets.long())
        self._optimizer.zero_grad(set_to_none=True)
        loss.backward()
        self._optimizer.step()


def tiny() -> torch.nn.Module:
    """A network for a rehearsal."""
    layers = (torch.nn.Conv2d(3, 4, 16, stride=16), torch.nn.Flatten(), torch.nn.LazyLinear(1000))
    network = torch.nn.Sequential(*layers)
    network(torch.zeros(1, 3, 224, 224))
    return network


@contextlib.contextmanager
def gpu_load() -> Iterator[list[float]]:
    """Within the block, appends the GPU's load by NVML to a list, five times a second."""
    values: list[float] = []
    done = threading.Event()

    def sample() -> None:
        while not done.wait(0.2):
            values.extend(gpu["busy"] for gpu in nvml.gpus() or [] if "busy" in gpu)

    thread = threading.Thread(target=sample, daemon=True)
    thread.start()
    try:
        yield values
    finally:
        done.set()
        thread.join()


def train(setting: Setting, name: str, loader: Any) -> str:
    """Trains with a loader. Returns a row of the table."""
    step = Training(setting)
    iterator = endless(loader)
    for _ in range(WARM_UP):
        step(next(iterator))
    setting.synchronize()
    ready = [next(iterator) for _ in range(8)]
    setting.synchronize()
    before = loader.stats()
    begin = time.perf_counter()
    with gpu_load() as load:
        for _ in range(setting.steps):
            step(next(iterator))
        setting.synchronize()
        full = time.perf_counter() - begin
    stats = loader.stats() - before
    replayed = timed(setting, ready, step)
    rate = setting.steps * setting.batch_size / full
    busy = f"{100 * statistics.mean(load):.0f}%" if load else "not known"
    cells = [name, f"{rate:,.0f}", busy]
    if stats.gpu.steps:
        stall = stats.gpu.stall_ns / 1e9
        off = abs(stall - (full - replayed)) / full
        state = "met" if off <= STALL_GOAL else "missed"
        cells += [f"{1e3 * stall / stats.gpu.steps:.2f} ms", f"{100 * stats.au:.1f}%",
                  f"{stall:.2f} s and {full - replayed:.2f} s: {100 * off:.1f}% of {full:.1f} s "
                  f"({state})"]
    else:
        cells += ["not measured"] * 3
    row = f"| {' | '.join(cells)} |"
    show(row)
    return row


def measure_training(setting: Setting) -> list[str]:
    rows = ["| loader | img/s | GPU busy (NVML) | stall a step | AU | sum of stalls, and what "
            "ready batches gain |", "|---|---|---|---|---|---|"]
    rows.append(train(setting, "feedmill, device=", setting.feedmill()))
    pinned = setting.feedmill(device="cpu", pin_memory=setting.is_gpu)
    rows.append(train(setting, "feedmill, pinned", pinned))
    torchs = feedmill.watch(torch_loader(setting, setting.workers))
    rows.append(train(setting, "torch DataLoader", torchs))
    for variant in ("cpu", "mixed") if setting.is_gpu else ():
        try:
            dali = feedmill.watch(dali_loader(setting, variant))
        except ImportError:
            rows.append(f"| DALI, {variant} | not installed | | | | |")
            continue
        rows.append(train(setting, f"DALI, {variant}", dali))
    goal = f"The last column should differ by at most {100 * STALL_GOAL:.0f}% of the time."
    return ["## Training ResNet-50", "", *rows, "", goal]


def dali_loader(setting: Setting, variant: str) -> Iterable[Any]:
    """DALI's loader: all on the CPU, or ("mixed") most of the decoding and all later stages on the
    GPU."""
    from nvidia.dali import fn, pipeline_def, types
    from nvidia.dali.plugin.pytorch import DALIClassificationIterator, LastBatchPolicy

    paths, labels = zip(*setting.dataset.samples)

    @pipeline_def(batch_size=setting.batch_size, num_threads=setting.workers, device_id=0, seed=1)
    def pipeline():
        files, targets = fn.readers.file(
            files=list(paths), labels=list(labels), random_shuffle=True, name="files")
        images = fn.decoders.image_random_crop(
            files, device="mixed" if variant == "mixed" else "cpu", output_type=types.RGB,
            random_area=(0.08, 1.0), random_aspect_ratio=(3 / 4, 4 / 3))
        images = fn.resize(images, size=(224, 224), interp_type=types.INTERP_LINEAR, antialias=True)
        return fn.crop_mirror_normalize(
            images.gpu(), mirror=fn.random.coin_flip(), dtype=types.FLOAT, output_layout="CHW",
            mean=[255 * value for value in bench_torch.MEAN],
            std=[255 * value for value in bench_torch.STD]), targets.gpu()

    loader = DALIClassificationIterator(
        pipeline(), reader_name="files", auto_reset=True, last_batch_policy=LastBatchPolicy.DROP)

    class Pairs:
        def __iter__(self) -> Iterator[Any]:
            for batch in loader:
                yield batch[0]["data"], batch[0]["label"].squeeze(-1)

    return Pairs()


# ---- the program ---------------------------------------------------------------------------------


def show(text: str) -> None:
    print(text, flush=True)


def about(setting: Setting, folder: pathlib.Path, n_unique: int) -> list[str]:
    gpu = torch.cuda.get_device_properties(0)
    visible = len(os.sched_getaffinity(0))
    refusal = devices.stage_refusal(setting.feedmill())
    how = "the loader's own copies" if refusal is None else f"copies by torch, as {refusal}"
    return [
        "# feedmill beside a GPU", "",
        f"{datetime.date.today()}, `{' '.join(['bench_gpu.py', *sys.argv[1:]])}`. {gpu.name}, "
        f"{gpu.total_memory / 2**30:.0f} GiB, CUDA {torch.version.cuda}; {platform.processor()}, "
        f"{visible} usable CPUs, Linux {platform.release()}; torch {torch.__version__}, feedmill "
        f"{feedmill.__version__}; {how}.", "",
        f"{n_unique} images of {folder.name}, RandomResizedCrop(224), flip, normalize, float32; "
        f"batches of {setting.batch_size}, {setting.workers} workers, {setting.steps} steps.",
    ]


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=pathlib.Path, help="an ImageFolder of JPEGs")
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--workers", type=int, default=min(8, len(os.sched_getaffinity(0))))
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--threads", default="1,2,4,8,16")
    parser.add_argument("--only", default="threads,overlap,training")
    parser.add_argument("--output", type=pathlib.Path, default=ROOT / "benchmarks/results/gpu.md")
    parser.add_argument("--rehearse", action="store_true", help="run with small sizes on the CPU")
    arguments = parser.parse_args()
    if arguments.rehearse:
        arguments.batch_size, arguments.workers, arguments.steps = 4, 2, 3
        arguments.threads = "1,2"
    return arguments


PARTS = {"threads": measure_threads, "overlap": measure_overlap, "training": measure_training}


def main() -> int:
    arguments = parse()
    if not torch.cuda.is_available() and not arguments.rehearse:
        show(f"skipped: this benchmark needs a GPU, and torch {torch.__version__} finds none; "
             "--rehearse tries the program itself on the CPU")
        return NO_GPU
    folder = arguments.data or ROOT / "run-data" / "made"
    if arguments.data is None:
        make_images(folder)
    n_samples = arguments.batch_size * max(32, arguments.steps // 4)
    dataset, n_unique = bench_torch.make_dataset(folder, n_samples)
    network = tiny if arguments.rehearse else torchvision.models.resnet50
    setting = Setting(
        dataset, arguments.batch_size, arguments.workers, arguments.steps,
        list(map(int, arguments.threads.split(","))),
        "cpu" if arguments.rehearse else "cuda", network,
    )
    lines = [] if arguments.rehearse else about(setting, folder, n_unique)
    lines += ["", f"Checked: {check(setting)}.", ""]
    show("\n".join(lines))
    for name in arguments.only.split(","):
        lines += [*PARTS[name](setting), ""]
    if not arguments.rehearse:
        arguments.output.parent.mkdir(parents=True, exist_ok=True)
        arguments.output.write_text("\n".join(lines))
        show(f"wrote {arguments.output}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
