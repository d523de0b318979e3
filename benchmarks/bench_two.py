"""Two trainings on one host: their total rate, compared with that of one alone on the same cores.

    python benchmarks/bench_two.py [--data FOLDER] [--cpus 2] [--step-ms 0] [--rounds 5]

Two processes, each with its own loader of FOLDER (an ImageFolder; default: generated images), run
on the same --cpus cores. Each round runs, in turn: one process alone with a decode thread per core,
while the other one is idle; both at once with the number of threads that feedmill chooses; both at
once with a thread per core each. Prints the rates, which shares of the decode threads' work and of
the waits they waited for a CPU, and each process's report. Exits with 1 if both together are slower
than --require times the one, if a process does not see the other one, or if under CPU contention a
report does not name the other process.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import pathlib
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

HERE = pathlib.Path(__file__).resolve()
BATCH = 64
WARM_S = 1.5  # until the epoch has begun and the prefetched batches are used up


# ---- the training process ------------------------------------------------------------------------


def endless(loader: Any) -> Iterator[Any]:
    return itertools.chain.from_iterable(itertools.repeat(loader))


def train_until(stream: Iterator[Any], end_s: float, step_s: float) -> tuple[int, float]:
    """Runs steps until time.monotonic() reaches end_s. Returns (number of images, end time)."""
    n_images = 0
    while (now_s := time.monotonic()) < end_s:
        n_images += len(next(stream)[0])
        if step_s:
            time.sleep(step_s)
    return n_images, now_s


def measure(dataset: Any, order: dict[str, Any], step_s: float) -> tuple[dict[str, Any], Any]:
    """Runs once. Returns the results and the iterator, which must live until these are printed."""
    import feedmill
    from feedmill.system import peer_processes

    loader = feedmill.DataLoader(
        dataset, batch_size=BATCH, shuffle=True, native="require", threads=order["threads"], seed=0,
    )
    stream = endless(loader)
    _, begin_s = train_until(stream, order["begin_s"], step_s)
    before = loader.stats()
    n_images, end_s = train_until(stream, order["end_s"], step_s)
    stats = loader.stats() - before
    results = {
        "images_per_s": n_images / (end_s - begin_s),
        "n_threads": stats.decode.n_threads,
        "starved": stats.decode.starved_share,
        "wait_starved": stats.waits.starved_ns / max(1, stats.waits.data_wait_ns),
        "wait": stats.data_wait_share,
        "others": {one.pid: one.n_threads for one in peer_processes.others()},
        "report": loader.report(),
    }
    return results, stream


def be_a_training(args: argparse.Namespace) -> None:
    """The worker process. Each line on stdin is an order in JSON: runs it, prints the results, and
    keeps the iterator until the next line comes."""
    import feedmill
    from bench_torch import make_dataset

    dataset, _ = make_dataset(args.data, args.samples)
    # From here on, other feedmill processes see this one as a training that has begun.
    next(iter(feedmill.DataLoader(dataset, batch_size=BATCH, native="require")))
    print(json.dumps({"pid": os.getpid()}), flush=True)
    for line in sys.stdin:
        results, stream = measure(dataset, json.loads(line), args.step_ms / 1e3)
        print(json.dumps(results), flush=True)
        sys.stdin.readline()
        del stream


# ---- the benchmark -------------------------------------------------------------------------------


class Training:
    """A worker process, as seen by the benchmark."""

    def __init__(self, args: argparse.Namespace) -> None:
        words = [sys.executable, HERE, "--training", "--data", args.data]
        words += ["--samples", args.samples, "--step-ms", args.step_ms]
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(
            [str(word) for word in words], stdin=pipe, stdout=pipe, text=True
        )

    def tell(self, text: str) -> None:
        self.process.stdin.write(text + "\n")
        self.process.stdin.flush()

    def answer(self) -> dict[str, Any]:
        line = self.process.stdout.readline()
        if not line:
            sys.exit("FAILED: a training process has ended; its output is above")
        return json.loads(line)


def run(trainings: list[Training], threads: int | None, seconds: float) -> list[dict[str, Any]]:
    """Makes the workers train at the same time. Returns the results of each."""
    begin_s = time.monotonic() + WARM_S
    order = json.dumps({"threads": threads, "begin_s": begin_s, "end_s": begin_s + seconds})
    for one in trainings:
        one.tell(order)
    results = [one.answer() for one in trainings]
    for one in trainings:
        one.tell("")
    return results


def median_range(values: list[float]) -> str:
    return f"{statistics.median(values):7.0f} images/s ({min(values):.0f}-{max(values):.0f})"


def failed_checks(
    results: list[dict[str, Any]], pids: list[int], has_contention: bool
) -> list[str]:
    """The failed checks of a run of both processes."""
    found = []
    for one, own, other in zip(results, pids, reversed(pids)):
        if not one["others"].get(str(other)):
            found.append(f"pid {own} does not see that pid {other} decodes")
        if has_contention and str(other) not in one["report"]:
            found.append(f"the report of pid {own} does not name pid {other}")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data", type=pathlib.Path, help="an ImageFolder; default: made images")
    parser.add_argument("--cpus", type=int, default=2, help="number of cores that both share")
    parser.add_argument("--step-ms", type=float, default=0, help="time that a step sleeps")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=4, help="of each run, after its warm-up")
    parser.add_argument("--samples", type=int, default=4000, help="least samples in an epoch")
    parser.add_argument("--require", type=float, default=0.95)
    parser.add_argument("--training", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.training:
        be_a_training(args)
        return
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: args.cpus])
    n_cpus = len(os.sched_getaffinity(0))
    if args.data is None:
        from bench_torch import ROOT
        from feedmill.cli.made_images import make_images

        args.data = ROOT / "run-data" / "made"
        make_images(args.data)
    print(f"{n_cpus} cores, load before {os.getloadavg()[0]:.2f}, step {args.step_ms:g} ms")
    trainings = [Training(args), Training(args)]
    pids = [one.answer()["pid"] for one in trainings]
    alone: list[float] = []
    pairs: dict[str, list[list[dict[str, Any]]]] = {"automatic": [], "a thread per core each": []}
    wrong: list[str] = []
    for number in range(args.rounds):
        alone += [one["images_per_s"] for one in run([trainings[number % 2]], n_cpus, args.seconds)]
        for (name, runs), threads in zip(pairs.items(), (None, n_cpus)):
            runs.append(run(trainings, threads, args.seconds))
            wrong += [f"{name}: {text}" for text in failed_checks(runs[-1], pids, bool(threads))]
    for one in trainings:
        one.process.stdin.close()
        one.process.wait(60)
    print(f"{'one alone, a thread per core':<36} {median_range(alone)}")
    for name, runs in pairs.items():
        together = [sum(one["images_per_s"] for one in results) for results in runs]
        ratio = statistics.median(together) / statistics.median(alone)
        print(f"{'two, ' + name:<36} {median_range(together)}  {ratio:.2f} of one alone")
        if ratio < args.require:
            wrong.append(f"{name}: {ratio:.3f} of one alone, not {args.require}")
        for number, pid in enumerate(pids):
            print(f"    pid {pid}: {describe([results[number] for results in runs])}")
    for pid, one in zip(pids, pairs["a thread per core each"][-1]):
        print(f"\nreport of pid {pid}, a thread per core each, last run:\n{one['report']}")
    if wrong:
        sys.exit("\n".join(["FAILED:", *dict.fromkeys(wrong)]))


def describe(results: list[dict[str, Any]]) -> str:
    def share(name: str) -> str:
        return f"{100 * statistics.median(one[name] for one in results):.1f}%"

    threads = sorted({one["n_threads"] for one in results})
    return (
        f"{'/'.join(map(str, threads))} decode threads, waiting for a CPU {share('starved')} of "
        f"the time that they had work; steps waited {share('wait')} of the time, "
        f"{share('wait_starved')} of that for a CPU"
    )


if __name__ == "__main__":
    main()
