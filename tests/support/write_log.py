"""Writes logs of runs for tests of log readers: logs of a real loader, or generated ones.

    write_log.py FOLDER LOG [--epochs N] [--batch-size N] [--threads N] [--step-ms MS] [--rank N]

iterates over the images below FOLDER with feedmill's loader, sleeps for a step's time after each
batch, and logs the steps.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import sys
import threading
import time
from pathlib import Path

import numpy as np
from feedmill.profiling.counting.records import CAUSES, PHASES, SAMPLE_DTYPE, STEP_DTYPE


def run_line(**fields):
    line = {"type": "run", "feedmill": "0.1.0", "pid": 4711, "rank": None, "place": "train.py:31",
            "path": "native", "time": 1790000000.5, "clock_ns": 0, "threads": 2, "batch_size": 32,
            "slots": 6, "slot_bytes": 19_267_584, "reader": "uring",
            "reader_reason": "io_uring works here", "cpu": "avx2", "settings": {}}
    return line | fields


def step_lines(steps):
    """The lines of steps, from a structured array."""
    for step in steps:
        line = {name: int(step[name]) for name in STEP_DTYPE.names}
        yield {"type": "step"} | line | {"phase": PHASES[line["phase"]]}


def stats_line(stats):
    return {"type": "stats"} | stats.flat()


def slow_lines(stats):
    return [{"type": "slow"} | dataclasses.asdict(one) for one in stats.slow_samples]


def write(path, *lines):
    """Writes lines, each a dict or an iterable of dicts; returns the path."""
    with open(path, "w", encoding="utf-8") as file:
        for one in lines:
            for line in [one] if isinstance(one, dict) else one:
                file.write(json.dumps(line) + "\n")
    return Path(path)


# ---- generated logs ------------------------------------------------------------------------------


def made_up_steps(n_steps, epoch_steps=200, wait_ms=3.0, cause="cpu_queue_decode_ns", seed=0):
    """Steps that compute for 20 ms and wait for about `wait_ms`, most of it for one cause; each
    epoch's first one waits for 40 ms for storage."""
    random = np.random.default_rng(seed)
    steps = np.zeros(n_steps, STEP_DTYPE)
    number = np.arange(n_steps)
    steps["step"], steps["epoch"] = number, number // epoch_steps
    steps["phase"] = np.where(number % epoch_steps, 2, np.where(number, 1, 0))
    steps["n_samples"] = 32
    steps["last_index"] = random.integers(0, 100_000, n_steps)
    waits = (random.gamma(1.0, wait_ms * 1e6, n_steps)).astype(np.uint64)
    waits[random.random(n_steps) < 0.4] = 0
    steps[cause] = waits * 7 // 10
    steps["decode_ns"] += waits - steps[cause]
    starts = number % epoch_steps == 0
    steps["storage_ns"][starts] = 40_000_000
    for name in CAUSES:
        steps["data_wait_ns"] += steps[name]
    steps["overhead_ns"] = 80_000
    steps["host_wait_ns"] = steps["data_wait_ns"] + steps["overhead_ns"]
    steps["compute_ns"] = random.normal(20e6, 0.4e6, n_steps).astype(np.uint64)
    steps["ready_batches"] = np.where(steps["data_wait_ns"] > 0, 0, random.integers(1, 5, n_steps))
    duration = steps["host_wait_ns"] + steps["compute_ns"]
    steps["request_ns"] = 10**12 + np.cumsum(duration) - duration
    return steps


def made_up_system(steps, gpu=False):
    """A sample a second beside such steps."""
    clock, end = int(steps["request_ns"][0]), int(steps["request_ns"][-1])
    at = 0
    while (clock := clock + 10**9) <= end:
        at += 1
        line = {"type": "system", "clock_ns": clock, "interval_ns": 10**9,
                "process_cpu": 1.5 + 0.3 * np.sin(at / 9), "host_cpu": 0.8 + 0.1 * np.sin(at / 7),
                "usable_cpus": 2, "rss_bytes": 9 * 10**8 + at * 10**5, "major_faults": 0,
                "swap_bytes": 0, "device_read_bytes": 10**7 if at < 20 else 0,
                "read_bytes": 1.6e8, "copied_bytes": 0, "batches": 43, "samples": 43 * 32}
        if gpu:
            line["gpu"] = [{"memory_bytes": 11 * 10**9, "busy": 0.86 + 0.05 * np.sin(at / 5)}]
        yield line


def slow_line(path, index=7, read_ms=40.0, decode_ms=9.0):
    return {"type": "slow", "path": path, "index": index, "file_bytes": 2_400_000,
            "read_ns": int(read_ms * 1e6), "decode_ns": int(decode_ms * 1e6),
            "transform_ns": 1_200_000, "starved_ns": 300_000}


# ---- logs of a real loader -----------------------------------------------------------------------


class _Sampler(threading.Thread):
    """What the system did, every interval."""

    def __init__(self, loader, interval_s):
        super().__init__(daemon=True)
        self.loader, self.interval_s, self.done = loader, interval_s, threading.Event()
        self.lines, self.before = [], self.now()

    def now(self):
        user, system = os.times()[:2]
        with open("/proc/stat") as file:
            ticks = [int(word) for word in file.readline().split()[1:9]]
        with open("/proc/self/io") as file:
            read = dict(line.split(": ") for line in file.read().splitlines())
        stats = self.loader.stats()
        return {"clock": time.monotonic_ns(), "cpu": user + system, "all": sum(ticks),
                "idle": ticks[3] + ticks[4], "device": int(read["read_bytes"]),
                "read": stats.io.bytes, "batches": stats.batches, "samples": stats.samples}

    def run(self):
        while not self.done.wait(self.interval_s):
            self.sample()
        self.sample()

    def sample(self):
        now = self.now()
        change = {name: now[name] - self.before[name] for name in now}
        self.before = now
        with open("/proc/self/statm") as file:
            rss = int(file.read().split()[1]) * os.sysconf("SC_PAGESIZE")
        self.lines.append({
            "type": "system", "clock_ns": now["clock"], "interval_ns": change["clock"],
            "process_cpu": change["cpu"] / (change["clock"] / 1e9),
            "host_cpu": 1 - change["idle"] / max(1, change["all"]),
            "usable_cpus": len(os.sched_getaffinity(0)), "rss_bytes": rss,
            "device_read_bytes": change["device"], "read_bytes": change["read"],
            "batches": change["batches"], "samples": change["samples"],
        })


def _main():
    sys.path.insert(0, str(Path(__file__).parents[1] / "python"))
    import conftest  # noqa: F401  a torchvision that can be imported
    import feedmill
    from torchvision import transforms
    from torchvision.datasets import ImageFolder

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder")
    parser.add_argument("log")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--step-ms", type=float, default=0.0)
    parser.add_argument("--rank", type=int)
    parser.add_argument("--native", default="require")
    arguments = parser.parse_args()
    steps = [transforms.RandomResizedCrop(224), transforms.RandomHorizontalFlip(),
             transforms.ToTensor()]
    dataset = ImageFolder(arguments.folder, transforms.Compose(steps))
    loader = feedmill.DataLoader(dataset, batch_size=arguments.batch_size, shuffle=True,
                                 num_workers=arguments.threads, native=arguments.native)
    sampler = _Sampler(loader, 0.25)
    sampler.start()
    begun = time.time(), time.monotonic_ns()
    for _ in range(arguments.epochs):
        for _ in loader:
            time.sleep(arguments.step_ms / 1e3)
    sampler.done.set()
    sampler.join()
    stats = loader.stats()
    run = run_line(pid=os.getpid(), rank=arguments.rank, place=f"{Path(__file__).name}:1",
                   path=stats.path, time=begun[0], clock_ns=begun[1],
                   threads=stats.decode.n_threads,
                   batch_size=arguments.batch_size, slots=stats.memory.n_slots,
                   slot_bytes=stats.memory.slot_bytes, reader=stats.io.reader,
                   reader_reason=stats.io.reader_reason, cpu=stats.decode.simd)
    write(arguments.log, run, step_lines(stats.steps), sampler.lines, _slow_lines(loader),
          stats_line(stats))


def _slow_lines(loader):
    """The slowest samples of the native loader that stands behind it."""
    names = ("index", "file_bytes", "decode_ns", "transform_ns", "starved_ns")
    for entry in loader._feedmill.engine_pool._entries:
        for path, record in entry.handle.slow_samples():
            sample = np.frombuffer(record, SAMPLE_DTYPE)[0]
            line = {name: int(sample[name]) for name in names}
            read_ns = int(sample["read_end_ns"]) - int(sample["read_begin_ns"])
            yield {"type": "slow", "path": path, "read_ns": read_ns} | line


if __name__ == "__main__":
    _main()
