"""Suggests a configuration of the loader for a machine and a folder, with reasons."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

from feedmill.cli.survey import bytes_text

# The batch size is not known; this is a common one.
BATCH_SIZE = 64
_MIN_PREFETCH, _MAX_PREFETCH = 2, 16  # torch's default; more than 16 wastes memory
# Suggested number of prefetched files, as a multiple of the mean number of reads in flight.
_PREFETCH_MARGIN = 2
# Share of the available memory that the page cache is assumed to get.
_CACHE_SHARE = 0.8
# Batches of worker processes do not fit into a smaller /dev/shm, such as the 64 MB of Docker.
SMALL_SHM_BYTES = 1 << 30


class Suggestion(NamedTuple):
    """A setting (or another fact, such as the page cache), its value, and the reason."""

    setting: str
    value: str
    why: str


@dataclass(frozen=True)
class Findings:
    """The facts on which suggestions are based.

    Attributes:
        n_usable: number of CPUs that this process may use, by affinity and quota.
        n_taken: number of decode threads that other processes run on the same CPUs.
        n_processes: number of training processes that share this host: LOCAL_WORLD_SIZE, or one
            per GPU.
        has_gpu: whether CUDA works.
        reader: the reader that "auto" selects. reader_reason: why.
        is_high_latency: whether the folder's file system may need network round trips.
        memory_left: bytes of memory that can still be allocated.
        shm_bytes: size of /dev/shm; 0 if there is none.
        data_bytes: size of all files; None if not all were listed.
        sample_bytes: mean size of a file.
        decode_rate: samples per second on all usable CPUs; None if not known.
        cold_rate: bytes per second from storage; None if not known.
        cold_file_s: mean seconds per file at that rate; None if not known.
    """

    n_usable: int
    n_taken: int
    n_processes: int
    has_gpu: bool
    reader: str
    reader_reason: str
    is_high_latency: bool
    memory_left: int
    shm_bytes: int
    data_bytes: int | None
    sample_bytes: float
    decode_rate: float | None
    cold_rate: float | None
    cold_file_s: float | None


def suggest(found: Findings) -> list[Suggestion]:
    """Returns settings in the order of DataLoader's arguments, then other facts."""
    workers = _workers(found)
    suggestions = [workers, _prefetch(found, int(workers.value)), _pinning(found), _reader(found),
                   _cache(found)]
    if limit := _limit(found):
        suggestions.append(limit)
    if found.shm_bytes < SMALL_SHM_BYTES:
        suggestions.append(Suggestion(
            "/dev/shm", "1 GB or more",
            f"it has {bytes_text(found.shm_bytes)}, and the workers of torch's own path pass their "
            "batches through it (in Docker: docker run --shm-size=8g); the native path does not "
            "use it",
        ))
    return suggestions


def _workers(found: Findings) -> Suggestion:
    free = max(1, found.n_usable - found.n_taken)
    n = max(1, free // found.n_processes)
    why = f"one decode thread for each of the {found.n_usable} usable CPUs"
    if found.n_taken:
        why += f", less the {found.n_taken} decode threads of other processes there"
    if found.n_processes > 1:
        why += f", shared by {found.n_processes} training processes"
    if not found.has_gpu:
        why += "; use fewer if the training computes on the CPU"
    return Suggestion("num_workers", str(n), why)


def _prefetch(found: Findings, n_workers: int) -> Suggestion:
    if found.cold_file_s is None or found.decode_rate is None:
        return Suggestion("prefetch_factor", str(_MIN_PREFETCH),
                          "torch's default, as the time to read a file from storage is not known")
    rate = found.decode_rate / found.n_processes
    n_in_flight = rate * found.cold_file_s
    factor = math.ceil(_PREFETCH_MARGIN * n_in_flight / (BATCH_SIZE * n_workers))
    factor = min(_MAX_PREFETCH, max(_MIN_PREFETCH, factor))
    why = (
        f"{rate:,.0f} images/s at {1e3 * found.cold_file_s:.1f} ms per file from storage need "
        f"{max(1, round(n_in_flight)):,} reads in flight; {n_workers} x {factor} batches of "
        f"{BATCH_SIZE} prefetch {n_workers * factor * BATCH_SIZE:,} files"
    )
    return Suggestion("prefetch_factor", str(factor), why)


def _pinning(found: Findings) -> Suggestion:
    if found.has_gpu:
        return Suggestion("pin_memory", "True",
                          "batches in page-locked memory are copied to the GPU while it computes")
    return Suggestion("pin_memory", "False", "there is no GPU to copy to")


def _reader(found: Findings) -> Suggestion:
    if found.reader == "uring":
        return Suggestion("reader", '"auto"', f"selects io_uring: {found.reader_reason}")
    why = f"selects {found.reader}: {found.reader_reason}"
    if found.is_high_latency:
        why += ("; these files are on high-latency storage, where io_uring keeps many more reads "
                "in flight: allow it if you can")
    return Suggestion("reader", '"auto"', why)


def _cache(found: Findings) -> Suggestion:
    left = f"the {bytes_text(found.memory_left)} of available memory"
    if found.data_bytes is None:
        return Suggestion("page cache", "not known", "not all files were listed, so their size "
                          f"can't be compared with {left}")
    if found.data_bytes <= _CACHE_SHARE * found.memory_left:
        return Suggestion(
            "page cache", "holds all",
            f"{bytes_text(found.data_bytes)} of files fit into {left}: from the second epoch on, "
            "the speed of storage does not matter",
        )
    return Suggestion(
        "page cache", "holds a part",
        f"{bytes_text(found.data_bytes)} of files do not fit into {left}: every epoch reads from "
        "storage",
    )


def _limit(found: Findings) -> Suggestion | None:
    """Which of storage and decoding is slower; None if a rate is not known."""
    if found.cold_rate is None or found.decode_rate is None or not found.sample_bytes:
        return None
    cold = found.cold_rate / found.sample_bytes
    rates = (f"storage delivers {cold:,.0f} images/s that are not in the page cache, all usable "
             f"CPUs decode {found.decode_rate:,.0f}")
    if cold < found.decode_rate:
        return Suggestion("first limit", "storage", f"{rates}; more threads do not help while "
                          "files come from storage")
    return Suggestion("first limit", "CPU", f"{rates}; faster storage does not help")
