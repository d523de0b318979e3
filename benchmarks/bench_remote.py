"""Objects in a store that is 20 ms away: feedmill beside local files and beside other loaders.

    python benchmarks/bench_remote.py [--data FOLDER] [--ms 20] [--rounds 3] [--samples 2048] \\
        [--only NAME ...]

Serves FOLDER, an ImageFolder of JPEGs, its feedmill pack and tar files of it as a bucket of
object_server, whose answers begin so many milliseconds after their requests. Each loader makes
epochs of RandomResizedCrop, flip and Normalize, in turn. All loaders run on one core, feedmill with
one decode thread, and the server on another one, so that it takes nothing from them. With torch's
DataLoader it takes many workers to hide the distance: the table shows several numbers of them.

First the pixels of each loader are compared with torchvision's. Writes results/remote.md. The
loaders are installed into environments of their own under build/peers-venv.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import os
import pathlib
import subprocess
import time

from bench_peers import (
    BENCHMARKS,
    REFERENCE,
    ROOT,
    Contestant,
    Entry,
    machine,
    make_images,
    measure,
    show,
)
from peers import feedmill as feedmill_peer
from peers import report
from peers.job import Job
from peers.process import Failed
from peers.tars import make_tars

WORKERS = ("4", "16")
LIBRARIES = (("s3torchconnector", "s3torchconnector"), ("obstore", "obstore"),
             ("LitData, raw objects", "litdata"), ("webdataset, tar files", "webdataset"))
# What clients of S3 ask for; the server looks at no signature.
ENVIRONMENT = (("AWS_ACCESS_KEY_ID", "bench"), ("AWS_SECRET_ACCESS_KEY", "bench"),
               ("AWS_REGION", "us-east-1"), ("AWS_DEFAULT_REGION", "us-east-1"),
               ("AWS_EC2_METADATA_DISABLED", "true"), ("no_proxy", "127.0.0.1"))


def contestants(endpoint: str) -> list[Contestant]:
    environment = (*ENVIRONMENT, ("AWS_ENDPOINT_URL", endpoint))

    def row(name: str, peer: str, variant: str, job: str = "train", note: str = "") -> Contestant:
        return Contestant(name, peer, variant, job, environment, note)

    return [
        row(REFERENCE, "torch", "pil", note="local files"),
        row("feedmill", "objects", "images"),
        row("feedmill, local files", "objects", "files"),
        *[row(f"{name}, {n} workers", peer, n) for name, peer in LIBRARIES for n in WORKERS],
        row("feedmill", "objects", "pack", "pack"),
        row("feedmill, local pack", "objects", "local-pack", "pack"),
    ]


class RemoteEntry(Entry):
    """A contestant on one core, whose pixels must equal torchvision's."""

    def command(self) -> list[str]:
        return ["taskset", "-c", str(cores()[0]), *super().command()]

    def check(self, reference: pathlib.Path) -> None:
        difference = self.process.ask(f"check {reference}")["difference"]
        if difference != 0:
            raise Failed(f"its pixels differ from torchvision's by {difference:.2f} levels")
        self.row.pixels = "equal, bit for bit"


def cores() -> list[int]:
    return sorted(os.sched_getaffinity(0))


@contextlib.contextmanager
def serve(folder: pathlib.Path, delay_ms: int):
    """Runs object_server; yields its URL."""
    program = ROOT / "build" / "benchmarks" / "object_server"
    if not program.exists():
        raise SystemExit(f"{program} is missing: run `make test-c` first")
    command = ["taskset", "-c", str(cores()[1]), program, folder, "--ms", str(delay_ms)]
    with subprocess.Popen([str(part) for part in command], stdin=subprocess.PIPE,
                          stdout=subprocess.PIPE, text=True) as server:
        yield f"http://127.0.0.1:{int(server.stdout.readline())}"
        server.stdin.close()  # it ends


def make_bucket(job: Job) -> pathlib.Path:
    """The folder that is served: images, pack, and tars."""
    bucket = pathlib.Path(job.scratch) / "bucket"
    tars = bucket / "tars"
    tars.mkdir(parents=True, exist_ok=True)
    make_tars(job, tars)
    for name, target in (("images", job.folder), ("pack", feedmill_peer.pack(job)[0])):
        (bucket / name).unlink(missing_ok=True)
        (bucket / name).symlink_to(target, target_is_directory=True)
    return bucket


def document(args: argparse.Namespace, job: Job, load: float, seconds: float,
             entries: list[Entry]) -> str:
    rows = [entry.row for entry in entries]
    versions = {key: v for entry in entries for key, v in entry.versions.items()}
    n_bytes = sum(os.path.getsize(path) for path, _ in job.files()) / len(job.files())
    facts = [
        ("command", f"`bench_remote.py {'--data FOLDER ' if args.data else ''}--ms {args.ms} "
                    f"--rounds {args.rounds} --samples {job.n_samples}`"),
        ("date", datetime.date.today().isoformat()),
        ("machine", machine(load, seconds)),
        ("objects", f"{len(job.files())} of {n_bytes / 1000:,.0f} KB on average, {args.ms} ms from "
                    "a request to its answer, over HTTP on the loopback interface"),
        ("epoch", f"{job.n_samples} samples, batches of {job.batch_size}; all loaders on one core, "
                  "the server on another"),
        ("figures", "median (least-most) of the rounds; ratios: feedmill's rate by that of the "
                    "row, in each round, and the median of these"),
        ("versions", ", ".join(f"{key} {v}" for key, v in sorted(versions.items()))),
    ]
    parts = [f"# feedmill and other loaders, from a store that is {args.ms} ms away",
             "\n".join(f"- {name}: {value}" for name, value in facts),
             "## One object for each image\n\n" + report.table(rows, "train"),
             "## Packs\n\n" + report.table(rows, "pack")]
    return "\n\n".join(parts) + "\n"


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data", type=pathlib.Path, help="an ImageFolder; default: made images")
    parser.add_argument("--ms", type=int, default=20, help="from a request to its answer")
    parser.add_argument("--rounds", type=int, default=3, help="epochs timed per loader")
    parser.add_argument("--samples", type=int, default=2048, help="least samples in an epoch")
    parser.add_argument("--only", nargs="+", metavar="NAME",
                        help="loaders whose names contain one of these words, and torch's")
    parser.add_argument("--timeout", type=float, default=1800, help="seconds for one answer")
    parser.add_argument("--out", type=pathlib.Path, default=BENCHMARKS / "results" / "remote.md")
    args = parser.parse_args()
    if args.rounds < 1 or args.samples < 1 or args.ms < 0:
        parser.error("--rounds and --samples must be at least 1, --ms at least 0")
    if len(cores()) < 2:
        parser.error("this needs two cores: one for the loaders and one for the server")
    return args


def run(job: Job, args: argparse.Namespace, logs: pathlib.Path) -> list[Entry]:
    with serve(make_bucket(job), args.ms) as endpoint:
        entries: list[Entry] = [
            RemoteEntry(one, job, logs) for one in contestants(endpoint)
            if not args.only or one.name == REFERENCE
            or any(word.lower() in one.name.lower() for word in args.only)]
        try:
            measure(entries, args)
        finally:
            for entry in entries:
                entry.close()
    show("")
    return entries


def main() -> None:
    args = parse()
    scratch = ROOT / "run-data" / "remote"
    logs = scratch / "logs"
    logs.mkdir(parents=True, exist_ok=True)
    folder = args.data or ROOT / "run-data" / "made"
    if args.data is None:
        make_images(folder)
    job = Job(str(folder.resolve()), str(scratch),
              -(-args.samples // Job.batch_size) * Job.batch_size, workers=1)
    start, load = time.monotonic(), os.getloadavg()[0]
    entries = run(job, args, logs)
    text = document(args, job, load, time.monotonic() - start, entries)
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text(text)
    print(f"\n{text}")


if __name__ == "__main__":
    main()
