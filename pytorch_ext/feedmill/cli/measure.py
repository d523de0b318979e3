"""Measures, within seconds, the rates of storage, decoding, memory and copies to the GPU.

Every function has a time limit. A read that hangs in the kernel can exceed it.
"""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import math
import mmap
import os
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import numpy as np
import torch

from feedmill._ops import native
from feedmill.cli.value_table import imagenet_value_table
from feedmill.planner.plan import crop_and_flip
from feedmill.system import peer_processes
from feedmill.system.proc_files import device_read_bytes

# Numbers of files that are read at the same time. Few suit local storage, as Python's threads slow
# each other down; high-latency storage needs many.
_FEW, _MANY = 8, 32
_PROBED_FILES = 64  # files of a sample that are probed for pages in the page cache
# A read is cold if more than this share of the probed files, or of the bytes, came from storage.
_COLD_SHARE = 0.9
_CHUNK_BYTES = 1 << 20
_WARM_S = 0.4
_BATCH_SIZE = 4  # small, as a measurement ends with a whole batch
_MEMORY_BYTES = 256 << 20  # more than fits into CPU caches
_COPY_BYTES = 64 << 20
_ROUNDS = 5

_libc = ctypes.CDLL(None)


# ---- storage -------------------------------------------------------------------------------------


@dataclass
class Reading:
    """Result of reading a sample of files: half of them 8 at a time and half of them 32 at a time.
    The faster half counts.

    Attributes:
        n_files, n_bytes: number and size of the files that could be read.
        cold: bytes per second from storage; None if that could not be measured.
        why_not_cold: why it could not.
        cold_file_s: mean seconds per file, with cold_in_flight files in flight.
        cold_in_flight: number of files that were read at a time.
        warm: bytes per second from the page cache; None if nothing could be read.
        unreadable: path -> reason.
    """

    n_files: int = 0
    n_bytes: int = 0
    cold: float | None = None
    why_not_cold: str = ""
    cold_file_s: float | None = None
    cold_in_flight: int | None = None
    warm: float | None = None
    unreadable: dict[str, str] = field(default_factory=dict)


def read_rates(paths: Sequence[str], seconds: float) -> Reading:
    """Drops the files from the page cache, reads them once from storage, and then again from the
    page cache.

    Args:
        paths: the files.
        seconds: time limit of the dropping and, again, of the cold read. The warm read takes less
            than a second.
    """
    reading = Reading()
    deadline = time.monotonic() + seconds
    readable = []
    for path in paths:
        if _drop_from_page_cache(path, reading.unreadable):
            readable.append(path)
        if time.monotonic() > deadline:  # files that were just written are flushed first
            break
    if not readable:
        reading.why_not_cold = "no file can be read"
        return reading
    cached = [path for path in readable[:_PROBED_FILES] if _is_cached(path)]
    before = _device_bytes()
    whole = dict.fromkeys(readable, math.inf)
    first = _read_halves(whole, seconds, False, reading.unreadable)
    n_device = _device_bytes() - before
    sizes = {path: n for one in first for path, n, _ in one.reads}
    reading.n_files, reading.n_bytes = len(sizes), sum(sizes.values())
    if not reading.n_bytes:
        reading.why_not_cold = "the files are empty, or can't be read"
        return reading
    # Two signs of a cold read, either of which may be missing: mincore() reports all pages of other
    # users' files as resident, and not every file system counts device reads.
    n_probed = len(readable[:_PROBED_FILES])
    if len(cached) <= (1 - _COLD_SHARE) * n_probed or n_device >= _COLD_SHARE * reading.n_bytes:
        best = max(first, key=lambda one: one.rate)
        reading.cold, reading.cold_file_s = best.rate, best.mean_file_s
        reading.cold_in_flight = best.in_flight
    else:
        reading.why_not_cold = (
            f"{len(cached)} of {n_probed} files stay in memory although the kernel was asked to "
            "drop them: their file system is in memory, or other processes use them"
        )
    again = _read_halves(sizes, min(seconds, _WARM_S), True, reading.unreadable)
    reading.warm = max(one.rate for one in again) or None
    return reading


def _drop_from_page_cache(path: str, unreadable: dict[str, str]) -> bool:
    """Asks the kernel to drop a file from the page cache; False if it can't be opened."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        unreadable[path] = error.strerror or str(error)
        return False
    try:
        with contextlib.suppress(OSError):  # not supported by every file system
            os.fdatasync(file)  # dirty pages are not dropped
            os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(file)
    return True


def _is_cached(path: str) -> bool:
    """Whether a part of the file is in the page cache. True if that can't be determined."""
    try:
        with open(path, "rb") as file:
            # Writable, so that numpy gives its address; copy-on-write, so that nothing is written.
            pages = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
    except (OSError, ValueError) as error:  # ValueError: the file is empty
        return isinstance(error, OSError)
    view = np.frombuffer(pages, np.uint8)
    resident = np.zeros(-(-len(view) // mmap.PAGESIZE), np.uint8)
    address, length = ctypes.c_void_p(view.ctypes.data), ctypes.c_size_t(len(view))
    failed = _libc.mincore(address, length, ctypes.c_void_p(resident.ctypes.data))
    return bool(failed or (resident & 1).any())


def _device_bytes() -> int:
    """Bytes that this process has read from storage so far; 0 if that is not known."""
    return device_read_bytes() or 0


@dataclass
class _Read:
    """Result of reading files, ``in_flight`` of them at a time."""

    in_flight: int
    reads: list[tuple[str, int, float]] = field(default_factory=list)  # path, bytes, seconds
    wall_s: float = 0.0

    @property
    def rate(self) -> float:
        return sum(n for _, n, _ in self.reads) / self.wall_s

    @property
    def mean_file_s(self) -> float:
        return sum(seconds for _, _, seconds in self.reads) / len(self.reads)


def _read_halves(
    files: Mapping[str, float], seconds: float, again: bool, unreadable: dict[str, str]
) -> tuple[_Read, _Read]:
    """Reads one half of the files few at a time, then the other half many at a time.

    Args:
        files: path -> number of bytes after which to stop reading it.
        seconds: time limit.
        again: whether to start over with the first file until the time is up.
        unreadable: gets path -> reason for files that can't be read.
    """
    halves = []
    for in_flight, paths in zip((_FEW, _MANY), (list(files)[::2], list(files)[1::2])):
        turn = itertools.cycle(paths) if again else iter(paths)
        halves.append(_read_all(turn, files, in_flight, seconds / 2, unreadable))
    return halves[0], halves[1]


def _read_all(
    paths: Iterator[str],
    files: Mapping[str, float],
    in_flight: int,
    seconds: float,
    unreadable: dict[str, str],
) -> _Read:
    done = _Read(in_flight)
    ready = threading.Barrier(in_flight + 1)

    def work() -> None:
        buffer = bytearray(_CHUNK_BYTES)
        ready.wait()
        deadline = time.monotonic() + seconds
        for path in paths:  # one iterator, shared by all threads
            start = time.monotonic()
            if start > deadline:
                return
            try:
                n_bytes = _read_one(path, files[path], buffer, deadline)
                done.reads.append((path, n_bytes, time.monotonic() - start))
            except OSError as error:
                unreadable[path] = error.strerror or str(error)

    with ThreadPoolExecutor(in_flight) as pool:
        tasks = [pool.submit(work) for _ in range(in_flight)]
        ready.wait()
        began = time.monotonic()
        for one in tasks:
            one.result()
        done.wall_s = time.monotonic() - began
    return done


def _read_one(path: str, most: float, buffer: bytearray, deadline: float) -> int:
    """Reads a file to its end, until `most` bytes are read, or until the deadline. Returns how many
    bytes it has read."""
    total = 0
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        while n := os.readv(file, [buffer]):
            total += n
            if total >= most or time.monotonic() > deadline:
                break
    finally:
        os.close(file)
    return total


# ---- decoding ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Decoding:
    """Result of decoding and transforming files from the page cache.

    Attributes:
        threads: number of decode threads.
        samples: number of samples that were made.
        worker_s: CPU seconds of the decode threads per sample.
        process_s: CPU seconds of the whole process per sample, with reading.
    """

    threads: int
    samples: int
    worker_s: float
    process_s: float

    def rate(self, n_cpus: int) -> float:
        """Samples per second on n_cpus CPUs without other load.

        Computed from CPU time, so other processes that ran during the measurement hardly matter.
        """
        return min(self.threads / self.worker_s, n_cpus / self.process_s)


class _Run:
    """A native loader over a few files: crop at random, flip, batch."""

    def __init__(self, paths: Sequence[str], threads: int, size: int, dtype: str) -> None:
        self._paths = paths
        self._ahead = max(4, 2 * threads)
        self.rejected: dict[str, str] = {}
        table = imagenet_value_table(dtype)
        self.loader = native.Loader(
            ops=crop_and_flip(size),
            dtype=dtype,
            value_table=None if table is None else table.tobytes(),
            n_samples=len(paths),
            batch_size=_BATCH_SIZE,
            n_threads=threads,
            prefetch_batches=self._ahead,
        )

    def batches(self, rounds: int | None, deadline: float) -> Iterator[None]:
        """Decodes all files `rounds` times (None: without end), or until the deadline. Yields after
        each batch."""
        self.loader.start(0, 0)
        waiting, number, n = 0, 0, len(self._paths)
        last = None if rounds is None else rounds * n
        while time.monotonic() < deadline:
            while waiting < self._ahead and (last is None or number < last):
                end = number + _BATCH_SIZE if last is None else min(number + _BATCH_SIZE, last)
                indices = [index % n for index in range(number, end)]
                self.loader.submit(indices, [self._paths[index] for index in indices])
                number, waiting = end, waiting + 1
            if not waiting:
                break
            self._next()
            waiting -= 1
            yield

    def _next(self) -> None:
        while True:
            outcome, payload, _ = self.loader.next(-1)
            if outcome == native.OK:
                return
            if outcome != native.FALLBACK:
                raise RuntimeError(f"the loader failed: {payload}")
            index, *_, why = self.loader.fallback()
            path = self._paths[index]
            self.rejected[path] = why.removeprefix(f"sample {index} ({path}): ")
            self.loader.fallback_done(True)  # the pixels are not used


@contextlib.contextmanager
def _open_run(paths: Sequence[str], threads: int, size: int, dtype: str) -> Iterator[_Run]:
    run = _Run(paths, threads, size, dtype)
    peer_processes.begin(id(run), threads)
    try:
        yield run
    finally:
        peer_processes.end(id(run))
        run.loader.close()


def try_natively(
    paths: Sequence[str], threads: int, seconds: float, size: int, dtype: str
) -> tuple[list[str], dict[str, str]]:
    """Decodes each file once, until the time is up.

    Returns:
        The paths that were decoded natively, and path -> reason of those that need Pillow.
    """
    n_tried = 0
    with _open_run(paths, threads, size, dtype) as run:
        for _ in run.batches(1, time.monotonic() + seconds):
            n_tried += _BATCH_SIZE
    tried = paths[:n_tried]
    rejected = {path: run.rejected[path] for path in tried if path in run.rejected}
    return [path for path in tried if path not in rejected], rejected


def decode_rate(
    paths: Sequence[str], threads: int, seconds: float, size: int, dtype: str
) -> Decoding | None:
    """Decodes the files again and again.

    Args:
        paths: files that the native decoder supports; at least one.
        threads: number of decode threads.
        seconds: for how long.
        size: height and width of the delivered images.
        dtype: dtype of the batches: "uint8", "float32", "float16" or "bfloat16".

    Returns:
        None if no batch was finished in time.
    """
    with _open_run(paths, threads, size, dtype) as run:
        began = None
        # The first quarter of the time is not counted: buffers, caches and CPU clocks warm up.
        warm_ns = time.monotonic_ns() + int(seconds / 4 * 1e9)
        for _ in run.batches(None, time.monotonic() + seconds):
            if began is None and time.monotonic_ns() >= warm_ns:
                began = _counters(run)
        ended = _counters(run)
    samples, worker_ns, process_ns = (b - a for a, b in zip(began or (0, 0, 0), ended))
    if began is None or samples < 1 or worker_ns < 1:
        return None
    return Decoding(threads, samples, worker_ns / samples / 1e9, process_ns / samples / 1e9)


def _counters(run: _Run) -> tuple[int, int, int]:
    counters = run.loader.stats()
    return counters["native_samples"], counters["worker_cpu_ns"], time.process_time_ns()


# ---- memory and copies ---------------------------------------------------------------------------


def memory_rate(threads: int) -> float:
    """Memory bandwidth in bytes per second, reads and writes together: the best of a few copies.

    Computed from CPU time, so waiting for a CPU does not count. Memory traffic of other processes
    lowers the result.
    """

    def copy(part: tuple[np.ndarray, np.ndarray]) -> float:
        began = time.thread_time()
        np.copyto(*part)
        return 2 * part[0].nbytes / max(time.thread_time() - began, 1e-9)

    size = _MEMORY_BYTES // threads
    parts = [(np.ones(size, np.uint8), np.ones(size, np.uint8)) for _ in range(threads)]
    with ThreadPoolExecutor(threads) as pool:
        return max(sum(pool.map(copy, parts)) for _ in range(_ROUNDS))


def copy_rate() -> float | None:
    """Bytes per second from page-locked memory to the GPU; None without CUDA."""
    if not torch.cuda.is_available():
        return None
    host = torch.empty(_COPY_BYTES, dtype=torch.uint8, pin_memory=True)
    device = torch.empty_like(host, device="cuda")
    best = 0.0
    for _ in range(_ROUNDS):
        torch.cuda.synchronize()
        began = time.monotonic()
        device.copy_(host, non_blocking=True)
        torch.cuda.synchronize()
        best = max(best, _COPY_BYTES / (time.monotonic() - began))
    return best
