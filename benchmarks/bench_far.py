"""High-latency storage: a FUSE passthrough whose opens and reads each take a fixed time.

    python benchmarks/bench_far.py FOLDER [--ms 5] [--threads 2] [--rounds 3] [--reader auto] \\
        [--build build]

Mounts FOLDER twice with tests/support/slowfs, without and with the delay, and runs bench_pipeline
on both in turn. Prints both rates, their ratio, and how often each file was opened per epoch. Needs
/dev/fuse.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time


class Mount:
    """A context manager that mounts slowfs. After the block, `opens` holds the number of opens."""

    def __init__(self, tool: pathlib.Path, source: pathlib.Path, delay_ms: int) -> None:
        self.tool, self.source, self.delay_ms = tool, source, delay_ms

    def __enter__(self) -> Mount:
        self.temporary = tempfile.TemporaryDirectory(prefix="fm_far_")
        root = pathlib.Path(self.temporary.name)
        self.path, self.counts = root / "mnt", root / "counts.json"
        self.path.mkdir()
        command = [self.tool, "--source", self.source, "--mountpoint", self.path]
        command += ["--open-ms", self.delay_ms, "--read-ms", self.delay_ms, "--counts", self.counts]
        self.process = subprocess.Popen([str(part) for part in command])
        for _ in range(200):
            if self.path.is_mount():
                return self
            time.sleep(0.02)
        self.process.kill()
        raise SystemExit("slowfs did not mount: check that /dev/fuse exists")

    def __exit__(self, *_: object) -> None:
        self.process.terminate()  # slowfs unmounts on SIGTERM, even while files are open
        self.process.wait(10)
        self.opens = json.loads(self.counts.read_text())
        self.temporary.cleanup()


def run_pipeline(tool: pathlib.Path, folder: pathlib.Path, args) -> dict[str, float]:
    command = [tool, folder, "--threads", args.threads, "--epochs", 1, "--samples", 1]
    command += ["--reader", args.reader, "--json"]
    output = subprocess.run([str(p) for p in command], check=True, capture_output=True, text=True)
    lines = [json.loads(line) for line in output.stdout.splitlines()]
    return {**lines[0], "reader": lines[1]["reader"]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--ms", type=int, default=5, help="delay of each open and each read")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--reader", default="auto", choices=("auto", "uring", "pread"))
    parser.add_argument("--require", type=float, help="fail if the ratio is below this")
    parser.add_argument("--build", type=pathlib.Path, default=pathlib.Path("build"))
    args = parser.parse_args()
    slowfs = args.build / "tests" / "slowfs"
    pipeline = args.build / "benchmarks" / "bench_pipeline"
    for tool in (slowfs, pipeline):
        if not tool.exists():
            sys.exit(f"{tool} is missing: run `make test-c` first")
    rates: dict[int, list[float]] = {0: [], args.ms: []}
    with Mount(slowfs, args.folder, 0) as near, Mount(slowfs, args.folder, args.ms) as far:
        for round_number in range(args.rounds):
            for delay_ms, mount in ((0, near), (args.ms, far)):
                result = run_pipeline(pipeline, mount.path, args)
                if result["error_batches"]:
                    sys.exit("FAILED: batches with errors")
                rates[delay_ms].append(result["img_per_s"])
                reader = result["reader"]
    for delay_ms, values in rates.items():
        print(f"delay {delay_ms} ms: {statistics.median(values):.0f} img/s "
              f"({min(values):.0f}-{max(values):.0f}), {args.threads} threads, {reader}")
    ratio = statistics.median(rates[args.ms]) / statistics.median(rates[0])
    opens = far.opens["opens"]
    images = [n for path, n in opens.items()]
    print(f"ratio: {ratio:.2f} (median of {args.rounds} runs, in turn)")
    print(f"opens per file and epoch: {min(images) / args.rounds:.2f} to "
          f"{max(images) / args.rounds:.2f}, {len(images)} files")

    if set(images) != {args.rounds}:
        sys.exit("FAILED: each file must be opened once an epoch")
    if args.require and ratio < args.require:
        sys.exit(f"FAILED: the ratio is below {args.require}")


if __name__ == "__main__":
    main()
