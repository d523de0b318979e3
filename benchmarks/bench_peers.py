"""Compares feedmill with other loaders: the same job on the same folder, in turn.

    python benchmarks/bench_peers.py [--data FOLDER] [--classes photos,420,large] [--rounds 3]
                                     [--samples 4032] [--workers 2] [--only NAME ...]

The job: RandomResizedCrop(224), bilinear and antialiased, horizontal flip, normalize, float32,
batches of 64. FOLDER is an ImageFolder of JPEGs; without it, photograph-like images are
generated. Each loader is installed into a virtual environment of its own, and runs in a process of
its own that is stopped while another one is measured. Loaders that can't be installed or do not run
are left out, and the table says why.

First checks the output: feedmill's must equal torchvision's bit for bit, on every file. For
decode="scaled" and the other loaders, shape and type must be right, and the pixels of a job without
random draws and an epoch's mean and deviation must be near torchvision's. Then come a warm-up epoch
and the rounds, in which each loader has one epoch: A B C A B C. Writes peers-CLASS.md and .svg to
benchmarks/results.
"""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import json
import os
import pathlib
import platform
import sys
import textwrap
import time

BENCHMARKS = pathlib.Path(__file__).resolve().parent
ROOT = BENCHMARKS.parent
SUPPORT = ROOT / "tests" / "support"
sys.path.insert(0, str(SUPPORT))

from feedmill.cli.made_images import make_images  # noqa: E402
from peers import images, install, report  # noqa: E402
from peers.job import Job  # noqa: E402
from peers.process import Failed, Process  # noqa: E402

# The largest allowed mean difference from torchvision's pixels, in grey levels of 255, if the whole
# image is resized to 224x224. Other resize filters differ by a few, swapped colours or a shifted
# crop by more.
MOST_DIFFERENCE = 12
LIMIT_PROGRAM = ROOT / "build" / "benchmarks" / "bench_jpeg_limit"


@dataclasses.dataclass(frozen=True)
class Contestant:
    """A row of the table: a module of peers/ (or "limit", the C program) and its options."""

    name: str
    peer: str
    variant: str = "-"
    job: str = "train"
    environment: tuple[tuple[str, str], ...] = ()
    note: str = ""


FIRST = "a new loader for each epoch, and the time to open it"
LATER = "from the second epoch on"
REFERENCE = "torch DataLoader, torchvision on PIL images"
CONTESTANTS = (
    Contestant(REFERENCE, "torch", "pil"),
    Contestant("feedmill", "feedmill", note=LATER),
    Contestant("feedmill, first epoch", "feedmill", "first", note=FIRST),
    Contestant("feedmill, FEEDMILL_CPU=sse41", "feedmill",
               environment=(("FEEDMILL_CPU", "sse41"),)),
    Contestant("feedmill, FEEDMILL_CPU=scalar", "feedmill",
               environment=(("FEEDMILL_CPU", "scalar"),)),
    Contestant("feedmill, from a pack", "feedmill", "pack"),
    Contestant('feedmill, decode="scaled"', "feedmill", "scaled"),
    Contestant("torch DataLoader, v2 on tensors", "torch", "v2"),
    Contestant("torch DataLoader, OpenCV", "opencv", note="not antialiased"),
    Contestant("DALI on the CPU, crop decode", "dali", "crop"),
    Contestant("DALI on the CPU, full decode", "dali", "full"),
    Contestant("TurboLoader", "turboloader", note="from a tar file"),
    Contestant("FFCV, JPEG", "ffcv", "jpeg", note="encoded anew, 4:2:0, quality 90"),
    Contestant("FFCV, raw", "ffcv", "raw", note="pixels, longer side at most 400"),
    Contestant("SPDL", "spdl"),
    Contestant("libjpeg-turbo alone, full decode", "limit", "full", note="from memory, no resize"),
    Contestant("libjpeg-turbo alone, crop decode", "limit", "crop", note="from memory, no resize"),
    Contestant(REFERENCE, "torch", "pil", job="eval"),
    Contestant("feedmill", "feedmill", job="eval", note=LATER),
    Contestant("feedmill, first epoch", "feedmill", "first", job="eval",
               note=FIRST),
)


def show(text: str) -> None:
    """A line of progress: replaced by the next one on a terminal."""
    if sys.stderr.isatty():
        print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True)
    elif text:
        print(text, file=sys.stderr, flush=True)


class Entry:
    """A contestant in the run for one class of photographs: its process and its results."""

    def __init__(self, contestant: Contestant, job: Job, logs: pathlib.Path) -> None:
        self.contestant, self.job = contestant, job
        self.row = report.Row(contestant.name, contestant.job, contestant.peer == "limit",
                              note=contestant.note)
        self.versions: dict[str, str] = {}
        self.statistics: dict[str, list[float]] = {}
        self.process: Process | None = None
        self.log = logs / f"{contestant.job}-{contestant.name.replace(' ', '-')}.log"

    def command(self) -> list[str]:
        if self.contestant.peer == "limit":
            if not LIMIT_PROGRAM.exists():
                raise Failed("bench_jpeg_limit is not built: run make bench-peers")
            files = self.job.scratch_file("list", self.job.files())
            files.write_text("".join(f"{path}\n" for path, _ in self.job.files()))
            return [str(LIMIT_PROGRAM), str(files), "--serve", "--mode", self.contestant.variant,
                    "--threads", str(self.job.workers), "--samples", str(self.job.n_samples)]
        python = install.install(self.contestant.peer, ROOT / "build" / "peers-venv", show)
        return [python, "-m", "peers.worker", self.contestant.peer, self.contestant.variant,
                json.dumps(dataclasses.asdict(self.job))]

    def attempt(self, what: str, step) -> None:
        """Runs a step, unless an earlier one has failed."""
        if self.row.failed:
            return
        show(f"{what}: {self.contestant.name}")
        try:
            step()
        except (Failed, install.Unavailable) as error:
            # A cell of a table is one line, and not a long one.
            text = " ".join(str(error).split()).replace("|", "/")
            self.row.failed = textwrap.shorten(text, 200, placeholder=" ...")
            self.row.epochs = []
            show("")
            print(f"{self.contestant.name}: left out: {error}")
            self.close()

    def start(self, timeout_s: float) -> None:
        path = [str(SUPPORT), *filter(None, [os.environ.get("PYTHONPATH")])]
        path = [os.path.abspath(p) for p in os.pathsep.join(path).split(os.pathsep)]
        environment = dict(self.contestant.environment)
        environment["PYTHONPATH"] = os.pathsep.join(path)
        self.process = Process(self.command(), self.log, BENCHMARKS, environment, timeout_s)
        opened = self.process.ask("open")
        self.versions = opened["versions"]
        self.add_note(opened.get("note"))
        if opened.get("prepared"):
            made = opened["prepared"]
            self.add_note(f"made its file in {made['seconds']:.1f} s, "
                          f"{made['bytes'] / 1e6:,.0f} MB")

    def add_note(self, text: str | None) -> None:
        self.row.note = "; ".join(filter(None, [self.row.note, text]))

    def check(self, reference: pathlib.Path) -> None:
        if self.row.is_limit:
            return
        difference = self.process.ask(f"check {reference}")["difference"]
        exact = self.contestant.peer == "feedmill" and self.contestant.variant != "scaled"
        if exact and difference != 0:
            raise Failed("the pixels of the deterministic job differ from torchvision's")
        if difference > MOST_DIFFERENCE:
            raise Failed(f"it does another job: its pixels differ by {difference:.1f} levels")
        if self.contestant.name == REFERENCE:
            self.row.pixels = "the reference"
        elif exact:
            self.row.pixels = f"equal, bit for bit, all {len(self.job.files())} files"
        else:
            self.row.pixels = f"differ by {difference:.2f} levels of 255"

    def warm(self, reference: Entry) -> None:
        self.statistics = self.process.ask("warm")
        if self.row.is_limit or not reference.statistics:
            return
        # The crops are random, so means differ less with more of them.
        most = 0.1 + 2 / self.job.n_samples**0.5
        for name in ("mean", "std"):
            for ours, theirs in zip(self.statistics[name], reference.statistics[name]):
                if abs(ours - theirs) > most:
                    raise Failed(f"it does another job: an epoch's {name} is {ours:.3f}, "
                                 f"torchvision's {theirs:.3f}")

    def epoch(self) -> None:
        self.row.epochs.append(self.process.ask("epoch"))

    def close(self) -> None:
        if self.process:
            self.process.close()
        self.process = None


def run_class(jobs: dict[str, Job], args: argparse.Namespace) -> list[Entry]:
    """All contestants on one folder: start, check, warm up, then the rounds."""
    logs = pathlib.Path(jobs["train"].scratch) / "logs"
    logs.mkdir(parents=True, exist_ok=True)
    entries = [Entry(c, jobs[c.job], logs) for c in CONTESTANTS
               if not args.only or c.name == REFERENCE
               or any(word.lower() in c.name.lower() for word in args.only)]
    try:
        measure(entries, args)
    finally:
        for entry in entries:
            entry.close()
    show("")
    return entries


def measure(entries: list[Entry], args: argparse.Namespace) -> None:
    reference = {entry.job.kind: entry for entry in entries if entry.contestant.name == REFERENCE}
    pixels = entries[0].job.scratch_file("reference.npy", entries[0].job.checked())
    pixels.unlink(missing_ok=True)
    for entry in entries:
        entry.attempt("starting", lambda e=entry: e.start(args.timeout))
    for entry in entries:
        entry.attempt("checking", lambda e=entry: e.check(pixels))
    for entry in entries:
        entry.attempt("warming up", lambda e=entry: e.warm(reference[e.job.kind]))
    for number in range(args.rounds):
        for entry in entries:
            entry.attempt(f"round {number + 1} of {args.rounds}", entry.epoch)


def cpu_model() -> str:
    for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.machine()


def machine(load: float, seconds: float) -> str:
    """What a run of so many seconds was measured on, with the load average before it."""
    return (f"{cpu_model()}, {len(os.sched_getaffinity(0))} CPUs, {platform.system()} "
            f"{platform.release()}, Python {platform.python_version()}; load average {load:.2f} at "
            f"the start; the run took {seconds / 60:.0f} min")


def describe(args: argparse.Namespace, name: str, job: Job, load: float, seconds: float,
             entries: list[Entry]) -> list[tuple[str, str]]:
    """The facts about the run for the top of the results page."""
    n_files = len(job.files())
    size = sum(os.path.getsize(path) for path, _ in job.files()) / n_files / 1000
    versions = {key: v for entry in entries for key, v in entry.versions.items()}
    samples = f"--samples {job.n_samples}"
    if name == "large":
        samples = f"--large-files {args.large_files} --large-samples {job.n_samples}"
    data = "--data FOLDER " if args.data else ""
    return [
        ("command", f"`bench_peers.py {data}--classes {name} --rounds {args.rounds} {samples} "
                    f"--workers {job.workers}`"),
        ("date", datetime.date.today().isoformat()),
        ("machine", machine(load, seconds)),
        ("images", f"{n_files} files of {size:,.0f} KB on average, page cache warm: "
                   f"{images.CLASSES[name]}{'' if args.data else ' (made images)'}"),
        ("epoch", f"{job.n_samples} samples, batches of {job.batch_size}, {job.workers} threads or "
                  f"worker processes; {args.rounds} rounds, one epoch of each loader in turn"),
        ("figures", "median (least-most) of the rounds; ratios: feedmill's rate by that of the "
                    "row, in each round, and the median of these"),
        ("versions", ", ".join(f"{key} {v}" for key, v in sorted(versions.items()))),
    ]


def write_results(args: argparse.Namespace, name: str, facts, entries: list[Entry]) -> None:
    rows = [entry.row for entry in entries]
    title = f"feedmill beside other loaders: {images.CLASSES[name]}"
    args.out.mkdir(parents=True, exist_ok=True)
    stem = f"peers-{name}"
    (args.out / f"{stem}.svg").write_text(report.plot(rows, title))
    text = report.document(title, f"{stem}.svg", facts, rows)
    (args.out / f"{stem}.md").write_text(text)
    print(f"\n{text}")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data", type=pathlib.Path, help="an ImageFolder; default: made images")
    parser.add_argument("--classes", default="photos", help=f"of {','.join(images.CLASSES)}")
    parser.add_argument("--rounds", type=int, default=3, help="epochs timed per loader")
    parser.add_argument("--samples", type=int, default=4032, help="least samples in an epoch")
    parser.add_argument("--large-samples", type=int, default=640,
                        help="least samples in an epoch of large photographs")
    parser.add_argument("--large-files", type=int, default=80, help="large photographs to make")
    parser.add_argument("--workers", type=int, default=2, help="threads or worker processes")
    parser.add_argument("--only", nargs="+", metavar="NAME",
                        help="loaders whose names contain one of these words, and torch's")
    parser.add_argument("--timeout", type=float, default=1800, help="seconds for one answer")
    parser.add_argument("--out", type=pathlib.Path, default=BENCHMARKS / "results")
    args = parser.parse_args()
    args.classes = args.classes.split(",")
    for name in args.classes:
        if name not in images.CLASSES:
            parser.error(f"--classes: {name!r} is none of {', '.join(images.CLASSES)}")
    if args.rounds < 1 or args.samples < 1 or args.workers < 1:
        parser.error("--rounds, --samples and --workers must be at least 1")
    return args


def main() -> None:
    args = parse()
    scratch = ROOT / "run-data" / "peers"
    folder = args.data
    if folder is None:
        folder = ROOT / "run-data" / "made"
        make_images(folder)
    for name in args.classes:
        start, load = time.monotonic(), os.getloadavg()[0]
        images_of = images.class_folder(name, folder.resolve(), scratch, args.large_files, show)
        least = args.large_samples if name == "large" else args.samples
        batch = Job.batch_size
        train = Job(str(images_of), str(scratch / "formats"), -(-least // batch) * batch,
                    workers=args.workers)
        jobs = {"train": train, "eval": dataclasses.replace(train, kind="eval")}
        entries = run_class(jobs, args)
        facts = describe(args, name, train, load, time.monotonic() - start, entries)
        write_results(args, name, facts, entries)


if __name__ == "__main__":
    main()
