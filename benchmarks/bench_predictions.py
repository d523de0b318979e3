"""Checks the report's predictions: predicts from one run's counters, then measures each change.

    python benchmarks/bench_predictions.py [--data FOLDER] [--step-ms 10] [--rounds 5]

Runs a training with one decode thread over FOLDER (an ImageFolder; default: made images), from the
local disk and through a slow file system (tests/support/slowfs), and predicts from its Stats the
time per batch after some changes. The predictions are written to results/predictions.json. Only
then each change is made, --rounds times in turn with the others; results/predictions.md compares
the median of its runs with the prediction. Exits with 1 if a prediction is off by more than
--require (0.1: 10%).

The changes:

- 2 threads: one more decode thread, from the local disk.
- free storage: from the slow file system to the same file system without its delay, with the files
  in the page cache. (The local disk would also free the CPU time that FUSE takes.)
- free decode: as many files of the same size on the same storage, each with an image of 16 x 16
  pixels after comments that fill the file. Batches have that image size, too, so that decoding and
  transforming take almost no time. Once on the slow storage, which remains the limit, and once on
  the local disk, where the training loop becomes the limit.
- no loader: loader.replay(), which leaves only the step.

"again" is the first baseline, run in turn with the changes: it shows how much the machine has
changed since the predictions were made. "others" is the largest share of the cores that other
processes had in a run. With more than a few percent, the errors mean little; such runs are repeated
for --patience seconds. Needs /dev/fuse and slowfs (`make test-c`).
"""

from __future__ import annotations

import argparse
import contextlib
import io
import itertools
import json
import os
import pathlib
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass, replace
from typing import Any

import feedmill
from bench_far import Mount
from bench_torch import ROOT, make_dataset, torchvision
from feedmill._ops import native
from feedmill.cli.made_images import make_images
from feedmill.profiling.report.capacity import Rates, predict, rates_of
from PIL import Image

BATCH = 64
WARM_BATCHES = 12  # uses up the prefetched batches
TINY = 16  # width and height of an image whose decoding takes almost no time
BASELINE_RUNS = 3
QUIET = 0.05  # the share of the cores that other processes may have
MOST_COMMENT = 65533  # bytes in one segment of a JPEG, after its length


# ---- runs ----------------------------------------------------------------------------------------


class Cores:
    """Measures the share of the cores that processes other than this one and its mounts had."""

    def __init__(self, pids: list[int]) -> None:
        self._pids = pids
        self._begin = self._now()

    def _now(self) -> tuple[float, float, float]:
        """In seconds: the clock, busy time of all cores, own CPU time with that of the mounts."""
        ticks = os.sysconf("SC_CLK_TCK")
        user, nice, system, _, _, irq, soft, steal = map(
            int, pathlib.Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]
        )
        ours = 0
        for pid in ["self", *self._pids]:
            fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            ours += int(fields[11]) + int(fields[12])
        busy = user + nice + system + irq + soft + steal
        return time.monotonic(), busy / ticks, ours / ticks

    def others(self) -> float:
        """Share of the machine's cores that other processes had since the start."""
        wall, busy, ours = (now - then for now, then in zip(self._now(), self._begin))
        return max(0.0, busy - ours) / wall / os.cpu_count()


class Situation:
    """A loader and its measurements.

    Args:
        mounts: the file systems that it reads from.
    """

    def __init__(self, dataset: Any, threads: int = 1, mounts: tuple[Mount, ...] = ()) -> None:
        self.loader = feedmill.DataLoader(
            dataset, batch_size=BATCH, shuffle=True, native="require", threads=threads, seed=0
        )
        self.pids = [mount.process.pid for mount in mounts]
        self.batch_s: list[float] = []
        self.others: list[float] = []

    def batches(self) -> Any:
        """The iterable of an epoch's batches."""
        return self.loader

    def run(self, seconds: float, step_s: float) -> feedmill.Stats:
        """Runs once and records the time per batch. Returns the counters of the measured time."""
        stream = itertools.chain.from_iterable(itertools.repeat(self.batches()))
        for _ in itertools.islice(stream, WARM_BATCHES):
            time.sleep(step_s)
        before, cores = self.loader.stats(), Cores(self.pids)
        n, begin = 0, time.perf_counter()
        while (passed := time.perf_counter() - begin) < seconds:
            next(stream)
            n += 1
            if step_s:
                time.sleep(step_s)
        self.batch_s.append(passed / n)
        self.others.append(cores.others())
        return self.loader.stats() - before

    def forget(self) -> None:
        """Removes the latest run's results."""
        self.batch_s.pop()
        self.others.pop()

    def forget_all(self) -> None:
        self.batch_s.clear()
        self.others.clear()


class Replayed(Situation):
    """A loader that replays ready batches, so that only the step takes time."""

    def batches(self) -> Any:
        return self.loader.replay(2)


@dataclass
class Runs:
    """The settings of a run.

    Attributes:
        seconds: the duration of each run, after its warm-up.
        step_s: the time that a step sleeps.
        patience_s: the remaining time for repeating runs that other processes disturbed.
    """

    seconds: float
    step_s: float
    patience_s: float

    def measure(self, situation: Situation) -> feedmill.Stats:
        """Repeats the run until others had at most QUIET of the cores, or patience_s is used up."""
        while True:
            stats = situation.run(self.seconds, self.step_s)
            if situation.others[-1] <= QUIET or self.patience_s <= 0:
                return stats
            self.patience_s -= self.seconds
            situation.forget()


def dataset_of(folder: pathlib.Path, n_samples: int, side: int = 224) -> Any:
    dataset, _ = make_dataset(folder, n_samples)
    dataset.transform.transforms[0] = torchvision.transforms.RandomResizedCrop(side)
    return dataset


# ---- files whose decoding takes no time ----------------------------------------------------------


def tiny_jpeg(n_bytes: int) -> bytes:
    """A JPEG of TINY x TINY pixels, filled up to n_bytes if it is smaller."""
    buffer = io.BytesIO()
    Image.new("RGB", (TINY, TINY), (90, 120, 150)).save(buffer, "JPEG")
    bare = buffer.getvalue()
    parts, n_left = [bare[:2]], n_bytes - len(bare)  # after the marker that begins a file
    while n_left >= 4:
        n_comment = min(n_left - 4, MOST_COMMENT)
        parts.append(b"\xff\xfe" + (n_comment + 2).to_bytes(2, "big") + bytes(n_comment))
        n_left -= n_comment + 4
    return b"".join([*parts, bare[2:]])


def make_tiny(source: pathlib.Path, target: pathlib.Path) -> None:
    """Writes a tiny JPEG of the same name and size for each file of an ImageFolder."""
    for path in sorted(source.glob("*/*")):
        copy = target / path.relative_to(source)
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes(tiny_jpeg(path.stat().st_size))


# ---- the experiment ------------------------------------------------------------------------------


def milliseconds(seconds: float) -> str:
    return f"{1e3 * seconds:.2f} ms"


def slow_ms(sample_s: float) -> int:
    """The delay of each open and each read with which storage is three times as slow as decoding,
    given the 64 reads that io_uring has in flight."""
    return max(1, round(1e3 * 3 * sample_s * 64 / 2))


def run_all(args: argparse.Namespace, stack: contextlib.ExitStack) -> list[dict[str, Any]]:
    """Runs baselines, writes predictions, runs the experiments. Returns the rows of the table."""
    runs = Runs(args.seconds, args.step_ms / 1e3, args.patience)

    def baseline(folder: pathlib.Path, *mounts: Mount) -> tuple[Situation, Rates]:
        """A situation with the median of a few runs as its only result, and its rates."""
        situation = Situation(dataset_of(folder, args.samples), mounts=mounts)
        situation.run(1, runs.step_s)  # warms the page cache
        situation.forget()
        tries = []
        for _ in range(BASELINE_RUNS):
            stats = runs.measure(situation)
            tries.append((situation.batch_s[-1], situation.others[-1], stats))
        batch_s, others, stats = sorted(tries, key=lambda one: one[0])[BASELINE_RUNS // 2]
        situation.batch_s.append(batch_s)
        rates = rates_of(stats)
        print(f"baseline: {milliseconds(batch_s)} a batch, by the model "
              f"{milliseconds(predict(rates))}; others had {others:.1%}; {rates}", flush=True)
        return situation, rates

    def slow(folder: pathlib.Path, delay: int) -> Mount:
        return stack.enter_context(Mount(args.slowfs, folder, delay))

    near, near_rates = baseline(args.data)
    delay = slow_ms(near_rates.work_s / near_rates.batch_samples)
    far, at_once = slow(args.data, delay), slow(args.data, 0)
    far_situation, far_rates = baseline(far.path, far)
    tiny = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="fm_tiny_")))
    make_tiny(args.data, tiny)
    far_tiny = slow(tiny, delay)

    def row(
        name: str, situation: Situation, base: Situation, predicted_s: float
    ) -> dict[str, Any]:
        return {"name": name, "situation": situation, "predicted_s": predicted_s,
                "before_s": base.batch_s[-1]}

    free = {"decode_s": 0.0, "transform_s": 0.0}
    rows = [
        row("1 -> 2 threads", Situation(near.loader.dataset, 2), near,
            predict(replace(near_rates, n_threads=2))),
        row(f"free storage (before: {delay} ms an open and a read)",
            Situation(dataset_of(at_once.path, args.samples), mounts=(at_once,)), far_situation,
            predict(replace(far_rates, storage_rate=None))),
        row(f"free decode ({delay} ms an open and a read)",
            Situation(dataset_of(far_tiny.path, args.samples, TINY), mounts=(far_tiny,)),
            far_situation, predict(replace(far_rates, **free))),
        row("free decode (local disk)", Situation(dataset_of(tiny, args.samples, TINY)), near,
            predict(replace(near_rates, **free))),
        row("no loader", Replayed(near.loader.dataset), near,
            near_rates.compute_s),
    ]
    control = row("again", near, near, near.batch_s[-1])
    write_predictions(args.results / "predictions.json", rows)
    situations = {id(one["situation"]): one["situation"] for one in rows}.values()
    for one in situations:
        one.forget_all()
    for number in range(args.rounds):
        for one in situations:
            runs.measure(one)
        print(f"round {number + 1} of {args.rounds}", flush=True)
    return [*rows, control]


def write_predictions(file: pathlib.Path, rows: list[dict[str, Any]]) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    told = {"written": time.strftime("%Y-%m-%d %H:%M:%S"),
            "seconds_per_batch": {one["name"]: one["predicted_s"] for one in rows}}
    file.write_text(json.dumps(told, indent=1) + "\n")
    print(f"predictions written to {file}", flush=True)


def table(rows: list[dict[str, Any]], predictions: dict[str, float]) -> tuple[str, float]:
    """The table, and the largest error of the predictions in the file."""
    lines = [
        "| change | before | predicted | measured (min-max) | error | others |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    worst = 0.0
    for one in rows:
        times = one["situation"].batch_s
        measured_s = statistics.median(times)
        predicted_s = predictions.get(one["name"], one["predicted_s"])
        error = predicted_s / measured_s - 1
        if one["name"] in predictions:
            worst = max(worst, abs(error))
        lines.append(
            f"| {one['name']} | {milliseconds(one['before_s'])} | {milliseconds(predicted_s)} | "
            f"{milliseconds(measured_s)} ({1e3 * min(times):.2f}-{1e3 * max(times):.2f}) | "
            f"{100 * error:+.1f}% | {100 * max(one['situation'].others):.0f}% |"
        )
    return "\n".join(lines) + "\n", worst


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data", type=pathlib.Path, help="an ImageFolder; default: made images")
    parser.add_argument("--step-ms", type=float, default=10, help="time that a step sleeps")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=4, help="of each run, after its warm-up")
    parser.add_argument("--patience", type=float, default=40,
                        help="seconds for repeating runs that other processes disturbed")
    parser.add_argument("--samples", type=int, default=20000, help="least samples in an epoch")
    parser.add_argument("--require", type=float, default=0.1)
    parser.add_argument("--results", type=pathlib.Path, default=ROOT / "benchmarks" / "results")
    parser.add_argument("--slowfs", type=pathlib.Path,
                        default=os.environ.get("FEEDMILL_SLOWFS", ROOT / "build/tests/slowfs"))
    args = parser.parse_args()
    if not args.slowfs.exists():
        sys.exit(f"{args.slowfs} is missing: run `make test-c` first")
    if args.data is None:
        args.data = ROOT / "run-data" / "made"
        make_images(args.data)
    load = os.getloadavg()[0]
    with contextlib.ExitStack() as stack:
        rows = run_all(args, stack)
    written = json.loads((args.results / "predictions.json").read_text())
    text, worst = table(rows, written["seconds_per_batch"])
    head = (
        f"The report's predictions of the time per batch of {BATCH}, compared with measurements. "
        f"Step {args.step_ms:g} ms, {native.usable_cpus()} cores, load before {load:.2f}; "
        f"predicted at {written['written']}, before the experiments ran; median of {args.rounds} "
        "runs in turn. See bench_predictions.py.\n\n"
    )
    (args.results / "predictions.md").write_text(head + text)
    print(head + text, end="")
    if worst > args.require:
        sys.exit(f"FAILED: a prediction is off by {100 * worst:.1f}%")


if __name__ == "__main__":
    main()
