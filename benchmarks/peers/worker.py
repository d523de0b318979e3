"""Runs one loader in a process of its own, on request: `python -m peers.worker PEER VARIANT JOB`.

JOB is a Job as JSON. Requests come one a line on stdin, each answered by one line of JSON on
stdout; what a loader prints itself goes to stderr.

    open        makes data in the loader's own format if needed: {"versions", "prepared", "note"}
    check FILE  compares its pixels with the reference in FILE (.npy), or makes that, if it is not
                there: {"difference"}, the mean absolute difference in grey levels of 255
    warm        an epoch that is not timed: {"mean", "std"} of its values for each channel
    epoch       an epoch: {"n", "wall_s", "cpu_s"}

CPU time is that of this process with all threads, and of its children. It counts from the end of
the request before, so that what a loader prepares between epochs is charged to it, too.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import json
import os
import pathlib
import resource
import sys
import time

import numpy as np

from .job import STD, Job


def process_seconds(pid: int) -> float:
    """CPU time of a running process, all its threads, in ns resolution (clock_getcpuclockid(3))."""
    return time.clock_gettime((~pid << 3) | 2)


def children(pid: int) -> list[int]:
    """All running descendants, from the lists that Linux keeps for each thread."""
    found = []
    for task in pathlib.Path(f"/proc/{pid}/task").iterdir():
        for child in map(int, (task / "children").read_text().split()):
            found += [child, *children(child)]
    return found


def cpu_seconds() -> float:
    """CPU time of this process, and of its children, those that run and those that have ended.

    If a thread or process ends during the count, the count is repeated.
    """
    for _ in range(100):
        try:
            running = sum(process_seconds(child) for child in children(os.getpid()))
        except OSError:
            continue
        ended = resource.getrusage(resource.RUSAGE_CHILDREN)
        return time.process_time() + ended.ru_utime + ended.ru_stime + running
    raise RuntimeError("can't read the CPU time of the child processes from /proc")


def check_batch(images, job: Job) -> np.ndarray:
    array = np.asarray(images)
    want = (3, job.size, job.size)
    if array.dtype != np.float32 or array.shape[1:] != want:
        raise RuntimeError(f"a batch is {array.dtype} {array.shape}, not float32 N x {want}")
    if not np.isfinite(array).all():
        raise RuntimeError("a batch has values that are not finite")
    return array


class Server:
    """Answers the requests for one loader."""

    def __init__(self, name: str, variant: str, job: Job) -> None:
        self.peer = importlib.import_module(f"peers.{name}")
        self.variant, self.job = variant, job
        self.epoch_batches = None
        self.cpu_before = 0.0

    def batches(self):
        if self.epoch_batches is None:
            self.epoch_batches = self.peer.open_epochs(self.job, self.variant)
        return self.epoch_batches()

    def open(self) -> dict:
        prepare, note = (getattr(self.peer, name, None) for name in ("prepare", "note"))
        return {
            "versions": {name: importlib.metadata.version(name) for name in self.peer.VERSIONS},
            "prepared": prepare(self.job, self.variant) if prepare else None,
            "note": note(self.job, self.variant) if note else "",
        }

    def check(self, reference: str) -> dict:
        epoch = self.peer.open_check(self.job, self.variant)
        images = np.concatenate([check_batch(batch, self.job).copy() for batch in epoch()])
        if not os.path.exists(reference):
            np.save(reference, images)
        want = np.load(reference)
        if images.shape != want.shape:
            raise RuntimeError(f"{len(images)} images came, {len(want)} were asked for")
        levels = 255 * np.array(STD, np.float32).reshape(3, 1, 1)
        return {"difference": float((np.abs(images - want) * levels).mean())}

    def warm(self) -> dict:
        sums, squares, n = np.zeros(3), np.zeros(3), 0
        for batch in self.batches():
            array = check_batch(batch, self.job)
            n += len(array)
            sums += array.sum(axis=(0, 2, 3), dtype=np.float64)
            squares += np.einsum("nchw,nchw->c", array, array, dtype=np.float64)
        if n != self.job.n_samples:
            raise RuntimeError(f"an epoch gave {n} images, {self.job.n_samples} were asked for")
        pixels = n * self.job.size**2
        mean = sums / pixels
        return {"mean": mean.tolist(), "std": np.sqrt(squares / pixels - mean**2).tolist()}

    def epoch(self) -> dict:
        wall, n = time.perf_counter(), 0
        for batch in self.batches():
            n += len(batch)
        wall = time.perf_counter() - wall
        if n != self.job.n_samples:
            raise RuntimeError(f"an epoch gave {n} images, {self.job.n_samples} were asked for")
        return {"n": n, "wall_s": wall, "cpu_s": cpu_seconds() - self.cpu_before}

    def answer(self, request: str, *arguments: str) -> dict:
        try:
            return getattr(self, request)(*arguments)
        except (Exception, SystemExit) as error:
            return {"error": f"{type(error).__name__}: {error}"}
        finally:
            self.cpu_before = cpu_seconds()


def main() -> None:
    # A loader's own prints must not mix with the answers.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    name, variant, job = sys.argv[1:]
    try:
        server = Server(name, variant, Job(**json.loads(job)))
    except Exception as error:
        print(json.dumps({"error": f"{type(error).__name__}: {error}"}), file=answers, flush=True)
        return
    print(json.dumps({}), file=answers, flush=True)
    if "torch" in sys.modules:
        # The loaders' own threads and processes are what is asked for.
        sys.modules["torch"].set_num_threads(1)
    for line in sys.stdin:
        print(json.dumps(server.answer(*line.rstrip("\n").split(" ", 1))), file=answers, flush=True)


if __name__ == "__main__":
    main()
