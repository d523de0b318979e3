"""feedmill and DLIO's torch loader in dlio_benchmark: how many accelerators each one can feed.

    python benchmarks/bench_dlio.py [--data FOLDER] [--workers 2] [--seconds 15] [--ranks 1] \\
        [--only WORKLOAD ...] [--dlio SOURCE]

Runs the workloads in dlio/workload with each loader in turn. DLIO does not compute: it sleeps for a
step's computation time, and its accelerator utilization (AU) is the share of this time. N
accelerators on one host take N batches in one accelerator's time for a step. They are simulated by
--ranks processes (MPI ranks), each of which takes its batches N / ranks times as fast as one
accelerator. So N need not be a whole number, and may be below 1. Several runs search the largest N
of each loader at which the AU is still 85%. First compares feedmill's images with torchvision's.

Beside DLIO's AU stands feedmill's own: 1 - wait / duration, summed over the same steps. With
several ranks, a step's wait is that of the rank that waited longest, as all meet at a barrier.

FOLDER is an ImageFolder of JPEGs. resnet50_jpeg reads them as they are. retinanet_jpeg reads files
of exactly 322,957 bytes, which are made of four photographs each: 1024x768, 4:2:0. Links repeat the
files to the length of the run. Writes results/dlio.md. dlio_benchmark and an MPI are installed into
an environment of their own under build/peers-venv.
"""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import hashlib
import io
import json
import math
import os
import pathlib
import shutil
import subprocess
import time
from collections.abc import Generator

import numpy as np
from bench_peers import BENCHMARKS, ROOT, SUPPORT, machine, make_images, show
from peers import install
from peers.images import list_images
from PIL import Image

PLUGIN = BENCHMARKS / "dlio"
LEAST_AU = 0.85
AIM = 0.86  # the AU that the search aims at, to end above the least
LEAST_RUNS, MOST_RUNS = 3, 6  # of one search
LEAST_STEPS = 20
# The first steps are not counted: they use up what was prepared during the first one's wait.
EXCLUDED_STEPS = 4
FIRST_RATE = 200  # samples per second, before any is measured
RETINANET_BYTES = 322_957
NOTES = f"""\
DLIO's torch loader decodes each file in full with Pillow and then delivers an array of random
numbers in its place; it does not resize. feedmill delivers the images: crops of 224 pixels, as
ResNet-50 is trained on, or whole images, resized. Each rank has as many worker processes or decode
threads, and as many batches ahead, with either loader. DLIO's reader formats the list of all files
for a debug message with each sample; it runs without that here.

The first {EXCLUDED_STEPS} steps are not counted. DLIO counts all time but its own sleep as lost,
also the time in which its loop frees the last batch or has no CPU to run on. feedmill counts as a
wait only what passes before a batch is ready; for DLIO's torch loader, all time inside next().
Differences are in points."""
# Makes each sample twice, also by torchvision and Pillow, and compares.
CHECK = """\
import sys
import feedmill, feedmill_loader
from feedmill.data import ImageList
name, *files = sys.argv[1:]
dataset = ImageList(files, transform=getattr(feedmill_loader, name).transform)
for _ in feedmill.DataLoader(dataset, 16, num_workers=2, seed=1, native="verify"):
    pass
"""
N_CHECKED = 64  # files


@dataclasses.dataclass(frozen=True)
class Workload:
    """What of dlio/workload/NAME.yaml this program has to know, and the loaders to compare.

    computation_s: of an accelerator's step.
    """

    name: str
    batch_size: int
    computation_s: float
    loaders: tuple[str, ...]

    def accelerators(self, samples_per_s: float) -> float:
        """How many accelerators take so many samples per second."""
        return samples_per_s * self.computation_s / self.batch_size


@dataclasses.dataclass(frozen=True)
class Loader:
    """A data loader and, where it needs one, a reader: classes of dlio/feedmill_loader.py."""

    name: str
    classname: str
    reader: str = ""


LOADERS = {
    "torch": Loader("DLIO's torch loader", "WatchedTorch", "Reader"),
    "whole224": Loader("feedmill, whole images to 224x224", "Whole224"),
    "crops224": Loader("feedmill, RandomResizedCrop(224)", "Crops224"),
    "whole800": Loader("feedmill, whole images to 800x800", "Whole800"),
}
WORKLOADS = {w.name: w for w in (
    Workload("resnet50_jpeg", 400, 0.224, ("torch", "whole224", "crops224")),
    Workload("retinanet_jpeg", 24, 0.04755, ("torch", "whole800")),
)}


class Failed(Exception):
    """A run of DLIO that ended with an error; the text says where to look."""


@dataclasses.dataclass(frozen=True)
class Result:
    """A run. AUs are shares, 0 to 1.

    accelerators: how many were simulated; infinite: a step's computation takes no time.
    n_steps: those that are counted.
    dlio_au: by DLIO. wait_au, next_au: by feedmill, from the waits for data and from all time
        inside next().
    """

    accelerators: float
    n_steps: int
    samples_per_s: float
    dlio_au: float
    wait_au: float
    next_au: float

    @property
    def is_fed(self) -> bool:
        return self.dlio_au >= LEAST_AU

    @property
    def wait_difference(self) -> float:
        """Of wait_au to dlio_au, in points."""
        return 100 * (self.wait_au - self.dlio_au)

    @property
    def next_difference(self) -> float:
        """Of next_au to dlio_au, in points."""
        return 100 * (self.next_au - self.dlio_au)


# ---- data ----------------------------------------------------------------------------------------


def mosaic(files: list[pathlib.Path]) -> Image.Image:
    """Four photographs side by side, 1024x768."""
    whole = Image.new("RGB", (1024, 768))
    for number, path in enumerate(files):
        with Image.open(path) as image:
            part = image.convert("RGB").resize((512, 384), Image.Resampling.BICUBIC)
        whole.paste(part, (number % 2 * 512, number // 2 * 384))
    return whole


def encode(image: Image.Image, n_bytes: int) -> bytes:
    """A JPEG of exactly so many bytes: of the best quality that fits, filled up with comments."""
    for quality in range(98, 0, -1):
        file = io.BytesIO()
        image.save(file, "JPEG", quality=quality, subsampling="4:2:0")
        missing = n_bytes - len(file.getvalue())
        if missing == 0 or missing >= 4:  # a comment has a header of four bytes
            break
    comments = b""
    while missing:
        # No remainder may be too short for a comment of its own.
        length = missing if missing <= 65_000 else min(65_000, missing - 4)
        comments += b"\xff\xfe" + (length - 2).to_bytes(2, "big") + bytes(length - 4)
        missing -= length
    data = file.getvalue()
    return data[:2] + comments + data[2:]


def make_retinanet(source: list[pathlib.Path], folder: pathlib.Path) -> list[pathlib.Path]:
    """Files of RETINANET_BYTES, one for each of the source's photographs, at most 200."""
    sources = source[:200]
    files = [folder / f"{number:03}.jpeg" for number in range(len(sources))]
    folder.mkdir(parents=True, exist_ok=True)
    for number, file in enumerate(files):
        if not file.exists():
            show(f"making files of {RETINANET_BYTES} bytes: {number + 1} of {len(files)}")
            parts = [source[(number + i * len(source) // 4) % len(source)] for i in range(4)]
            unfinished = file.with_suffix(".unfinished")
            unfinished.write_bytes(encode(mosaic(parts), RETINANET_BYTES))
            unfinished.rename(file)
    return files


class Dataset:
    """A folder as DLIO wants it: links to the files, which repeat them as often as necessary."""

    def __init__(self, files: list[pathlib.Path], folder: pathlib.Path) -> None:
        self.files, self.folder, self.n_links = files, folder, 0
        shutil.rmtree(folder, ignore_errors=True)
        for part in ("train", "valid"):
            (folder / part).mkdir(parents=True)

    def grow(self, n_links: int) -> None:
        for number in range(self.n_links, n_links):
            link = self.folder / "train" / f"img_{number:08}.jpeg"
            link.symlink_to(self.files[number % len(self.files)].resolve())
        self.n_links = max(self.n_links, n_links)


# ---- runs ----------------------------------------------------------------------------------------


class DLIO:
    """Runs a workload with a loader."""

    def __init__(self, python: str, args: argparse.Namespace, workload: Workload,
                 dataset: Dataset) -> None:
        self.args, self.workload, self.dataset = args, workload, dataset
        self.programs = pathlib.Path(python).parent
        path = os.pathsep.join(map(str, (PLUGIN, SUPPORT)))
        self.environment = {**os.environ, "PYTHONPATH": path}
        self.logs = ROOT / "run-data" / "dlio" / "logs"
        self.logs.mkdir(parents=True, exist_ok=True)

    def command(self, loader: Loader, computation_s: float, n_files: int,
                out: pathlib.Path) -> list[str]:
        settings = {
            "dataset.data_folder": self.dataset.folder,
            "dataset.num_files_train": n_files,
            "train.computation_time": computation_s,
            "reader.read_threads": self.args.workers,
            "reader.data_loader_classname": f"feedmill_loader.{loader.classname}",
            "reader.data_loader_sampler": "index",
            "output.folder": out,
            "output.metric.exclude_start_steps": EXCLUDED_STEPS,
        }
        if loader.reader:
            settings["reader.reader_classname"] = f"feedmill_loader.{loader.reader}"
        start = [] if self.args.ranks == 1 else [self.programs / "mpiexec", "-n", self.args.ranks]
        command = [*start, self.programs / "dlio_benchmark", "--config-dir", PLUGIN,
                   f"workload={self.workload.name}", f"hydra.run.dir={out}"]
        command += [f"++workload.{name}={value}" for name, value in settings.items()]
        return list(map(str, command))

    def call(self, what: str, log: pathlib.Path, command: list[str]) -> None:
        with log.open("w") as file:
            status = subprocess.run(command, stdout=file, stderr=file, check=False,
                                    env=self.environment).returncode
        if status:
            raise Failed(f"{what}: status {status}, see {log}")

    def check(self, loader: Loader) -> None:
        """Compares feedmill's pixels with those of torchvision. Raises Failed."""
        files = self.dataset.files
        some = files[:: max(1, len(files) // N_CHECKED)][:N_CHECKED]
        self.call(f"pixels of {loader.name}", self.logs / f"check-{loader.classname}.log",
                  [str(self.programs / "python"), "-c", CHECK, loader.classname, *map(str, some)])

    def run(self, loader: Loader, accelerators: float, samples_per_s: float) -> Result:
        """A run of about --seconds, if the loader can deliver so many samples per second. Raises
        Failed."""
        args, workload = self.args, self.workload
        computation_s = workload.computation_s * args.ranks / accelerators
        step_s = max(computation_s, workload.batch_size * args.ranks / samples_per_s)
        n_steps = max(LEAST_STEPS, math.ceil(args.seconds / step_s)) + EXCLUDED_STEPS
        n_files = n_steps * workload.batch_size * args.ranks
        self.dataset.grow(n_files)
        out = self.logs / f"{workload.name}-{loader.classname}"
        shutil.rmtree(out, ignore_errors=True)
        self.call(f"{workload.name} with {loader.name}", out.with_suffix(".log"),
                  self.command(loader, computation_s, n_files, out))
        return self.read(out, accelerators)

    def read(self, out: pathlib.Path, accelerators: float) -> Result:
        """The result, from the files that DLIO and the loader wrote."""
        summary = json.loads((out / "summary.json").read_text())
        ranks = [json.loads((out / f"{rank}_feedmill.json").read_text())
                 for rank in range(self.args.ranks)]

        def steps(kind: str) -> np.ndarray:
            """A time of each rank and step; the files have all steps but the first."""
            return np.array([rank[kind][EXCLUDED_STEPS - 1 :] for rank in ranks])

        durations_ns = steps("step_ns")
        run_ns = durations_ns.sum() / len(ranks)

        def au(kind: str) -> float:
            return 1 - steps(kind).max(axis=0).sum() / run_ns

        return Result(
            accelerators, durations_ns.shape[1],
            durations_ns.size * self.workload.batch_size / (run_ns / 1e9),
            summary["metric"]["train_au_mean_percentage"] / 100,
            au("data_wait_ns"), au("host_wait_ns"),
        )


def search(workload: Workload) -> Generator[float, Result, None]:
    """Yields numbers of accelerators to try, and is sent the results: an infinite number, for the
    loader's own speed; numbers that come closer to the largest that it can feed; half of that."""
    free = yield math.inf
    number = workload.accelerators(free.samples_per_s) / AIM
    is_fed = False
    for n_runs in range(1, MOST_RUNS + 1):
        result = yield number
        # Where the loader is the limit, its rate is constant: the AU falls as 1 / number.
        number *= result.dlio_au / AIM
        is_fed |= result.is_fed
        if is_fed and n_runs >= LEAST_RUNS:
            break
    yield number / 2


def measure(dlio: DLIO) -> dict[Loader, list[Result]]:
    """All runs of a workload, one of each loader in turn. First compares feedmill's pixels."""
    loaders = [LOADERS[name] for name in dlio.workload.loaders]
    for loader in loaders:
        if loader is not LOADERS["torch"]:
            show(f"checking {loader.name}")
            dlio.check(loader)
    results: dict[Loader, list[Result]] = {loader: [] for loader in loaders}
    searches = {loader: search(dlio.workload) for loader in loaders}
    numbers = {loader: next(searches[loader]) for loader in loaders}
    while numbers:
        for loader, number in list(numbers.items()):
            show(f"{dlio.workload.name}, {loader.name}: {number:.2f} accelerators")
            rate = results[loader][0].samples_per_s if results[loader] else FIRST_RATE
            result = dlio.run(loader, number, rate)
            results[loader].append(result)
            try:
                numbers[loader] = searches[loader].send(result)
            except StopIteration:
                del numbers[loader]
    show("")
    return results


# ---- results -------------------------------------------------------------------------------------


def limit(results: list[Result]) -> float:
    """The largest number of accelerators that was fed, of those that the search came to."""
    fed = [r.accelerators for r in results[1:-1] if r.is_fed]
    return max(fed, default=math.nan)


def summary(results: dict[Loader, list[Result]]) -> str:
    lines = ["| loader | accelerators at an AU of 85% | ratio to DLIO's torch loader | samples/s, "
             "computation time 0 | largest difference of AUs, from waits | from time in next() |",
             "|---|---:|---:|---:|---:|---:|"]
    reference = limit(results[LOADERS["torch"]])
    for loader, runs in results.items():
        lines.append(f"| {loader.name} | {limit(runs):.2f} | {limit(runs) / reference:.2f} | "
                     f"{runs[0].samples_per_s:,.0f} | "
                     f"{max(abs(r.wait_difference) for r in runs[1:]):.2f} | "
                     f"{max(abs(r.next_difference) for r in runs[1:]):.2f} |")
    return "\n".join(lines)


def all_runs(results: dict[Loader, list[Result]]) -> str:
    lines = ["| loader | accelerators | steps | samples/s | AU by DLIO | AU by feedmill, from "
             "waits for data | difference | from time in next() | difference |",
             "|---|---:|---:|---:|---:|---:|---:|---:|---:|"]
    for loader, runs in results.items():
        for r in sorted(runs[1:], key=lambda r: r.accelerators):
            lines.append(
                f"| {loader.name} | {r.accelerators:.2f} | {r.n_steps} | {r.samples_per_s:,.0f} | "
                f"{r.dlio_au:.2%} | {r.wait_au:.2%} | {r.wait_difference:+.2f} | "
                f"{r.next_au:.2%} | {r.next_difference:+.2f} |")
    return "\n".join(lines)


def dlio_version(python: str) -> str:
    """The version of dlio_benchmark, with its commit if it was installed from one."""
    code = ("import importlib.metadata as m, json; d = m.distribution('dlio_benchmark'); "
            "url = json.loads(d.read_text('direct_url.json') or '{}'); "
            "print(d.version, url.get('vcs_info', {}).get('commit_id', '')[:12])")
    return subprocess.run([python, "-c", code], check=True, capture_output=True,
                          text=True).stdout.strip()


def document(facts: dict[str, str],
             measured: dict[Workload, dict[Loader, list[Result]]]) -> str:
    """The whole Markdown file."""
    parts = ["# DLIO: accelerators that feedmill and DLIO's torch loader can feed",
             "\n".join(f"- {name}: {value}" for name, value in facts.items()), NOTES]
    for workload, results in measured.items():
        parts += [f"## {workload.name}",
                  f"Batches of {workload.batch_size}; one accelerator takes "
                  f"{1000 * workload.computation_s:g} ms for a step, that is "
                  f"{workload.batch_size / workload.computation_s:,.0f} samples per second.",
                  summary(results), all_runs(results)]
    return "\n\n".join(parts) + "\n"


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data", type=pathlib.Path, help="an ImageFolder; default: made images")
    parser.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)),
                        help="decode threads or worker processes of each rank (default: the CPUs)")
    parser.add_argument("--seconds", type=float, default=15, help="duration of a run (default 15)")
    parser.add_argument("--ranks", type=int, default=1, help="MPI ranks (default 1)")
    parser.add_argument("--only", nargs="+", choices=list(WORKLOADS), default=list(WORKLOADS),
                        metavar="WORKLOAD", help=f"of {', '.join(WORKLOADS)}")
    parser.add_argument("--dlio", metavar="SOURCE",
                        help="what pip installs dlio_benchmark from (default: its repository)")
    parser.add_argument("--out", type=pathlib.Path, default=BENCHMARKS / "results")
    args = parser.parse_args()
    if args.workers < 1 or args.ranks < 1 or args.seconds <= 0:
        parser.error("--workers and --ranks must be at least 1, --seconds more than 0")
    return args


def main() -> None:
    args = parse()
    start, load = time.monotonic(), os.getloadavg()[0]
    recipe = install.dlio(args.dlio) if args.dlio else None
    try:
        python = install.install("dlio", ROOT / "build" / "peers-venv", show, recipe)
    except install.Unavailable as error:
        raise SystemExit(f"dlio_benchmark: {error}") from None
    scratch = ROOT / "run-data" / "dlio"
    folder = args.data or ROOT / "run-data" / "made"
    if not args.data:
        make_images(folder)
    photographs = list_images(folder)
    if not photographs:
        raise SystemExit(f"{folder} has no JPEG files")
    measured = {}
    for name in args.only:
        files = photographs
        if name == "retinanet_jpeg":
            key = hashlib.sha256("\n".join(map(str, photographs)).encode()).hexdigest()[:12]
            files = make_retinanet(photographs, scratch / f"retinanet-{key}")
        dataset = Dataset(files, scratch / name)
        try:
            measured[WORKLOADS[name]] = measure(DLIO(python, args, WORKLOADS[name], dataset))
        except Failed as error:
            raise SystemExit(str(error)) from None
    data = "--data FOLDER " if args.data else ""
    facts = {
        "command": f"`bench_dlio.py {data}--workers {args.workers} --seconds {args.seconds:g} "
                   f"--ranks {args.ranks}`",
        "date": datetime.date.today().isoformat(),
        "machine": machine(load, time.monotonic() - start),
        "images": f"{len(photographs)} {'photographs' if args.data else 'made images'}, page cache "
                  "warm",
        "dlio_benchmark": dlio_version(python),
    }
    text = document(facts, measured)
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / "dlio.md").write_text(text)
    print(text)


if __name__ == "__main__":
    main()
