"""A configuration of the loader for a machine and a folder, each setting with its reason."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

from feedmill.cli.survey import bytes_text

# Where no batch size is known, one that is common.
BATCH_SIZE = 64
_LEAST_PREFETCH, _MOST_PREFETCH = 2, 16  # torch's default, and more than that is memory wasted
_AHEAD = 2  # times as many files are asked for as are under way on average
# Share of the free memory that the page cache may be counted on for.
_CACHE_SHARE = 0.8
# Batches of worker processes do not fit into a smaller /dev/shm, such as the 64 MB of Docker.
SMALL_SHM_BYTES = 1 << 30


class Suggestion(NamedTuple):
    """A setting (or what is to be known beside the settings), its value, and why."""

    setting: str
    value: str
    why: str


@dataclass(frozen=True)
class Findings:
    """What a suggestion needs to know.

    Attributes:
        n_usable: CPUs by affinity and quota.
        n_taken: decode threads of other processes on the same CPUs.
        n_processes: training processes that share this host: LOCAL_WORLD_SIZE, or one a GPU.
        has_gpu: CUDA works.
        reader: what "auto" gives, and reader_reason why.
        is_high_latency: the folder's file system may need round trips.
        memory_left: bytes that can still be had.
        shm_bytes: size of /dev/shm, 0 where there is none.
        data_bytes: all files together; None where they were not all seen.
        sample_bytes: the mean file.
        decode_rate: samples a second on all usable CPUs; None where not known.
        cold_rate: bytes a second from storage; None where not known.
        cold_file_s: seconds that a file took then; None where not known.
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
    """The settings, in the order of a DataLoader's arguments."""
    workers = _workers(found)
    suggestions = [workers, _prefetch(found, int(workers.value)), _pinning(found), _reader(found),
                   _cache(found)]
    if limit := _limit(found):
        suggestions.append(limit)
    if found.shm_bytes < SMALL_SHM_BYTES:
        suggestions.append(Suggestion(
            "/dev/shm", "1 GB or more",
            f"it has {bytes_text(found.shm_bytes)}, and workers of torch's own path hand their "
            "batches over in it (docker run --shm-size=8g); natively nothing needs it",
        ))
    return suggestions


def _workers(found: Findings) -> Suggestion:
    free = max(1, found.n_usable - found.n_taken)
    n = max(1, free // found.n_processes)
    why = f"a decode thread for each of the {found.n_usable} usable CPUs"
    if found.n_taken:
        why += f", less the {found.n_taken} decode threads that run there already"
    if found.n_processes > 1:
        why += f", shared by {found.n_processes} training processes"
    if not found.has_gpu:
        why += "; fewer, where the training computes on the CPU"
    return Suggestion("num_workers", str(n), why)


def _prefetch(found: Findings, n_workers: int) -> Suggestion:
    if found.cold_file_s is None or found.decode_rate is None:
        return Suggestion("prefetch_factor", str(_LEAST_PREFETCH),
                          "torch's default; how long a file takes from storage is not known")
    rate = found.decode_rate / found.n_processes
    n_under_way = rate * found.cold_file_s
    factor = math.ceil(_AHEAD * n_under_way / (BATCH_SIZE * n_workers))
    factor = min(_MOST_PREFETCH, max(_LEAST_PREFETCH, factor))
    why = (
        f"at {rate:,.0f} images/s and {1e3 * found.cold_file_s:.1f} ms a file from storage "
        f"{max(1, round(n_under_way)):,} files are being read at a time; {n_workers} x {factor} "
        f"batches of {BATCH_SIZE} ask for {n_workers * factor * BATCH_SIZE:,}"
    )
    return Suggestion("prefetch_factor", str(factor), why)


def _pinning(found: Findings) -> Suggestion:
    if found.has_gpu:
        return Suggestion("pin_memory", "True",
                          "page-locked batches are copied to the GPU beside the computation")
    return Suggestion("pin_memory", "False", "there is no GPU to copy to")


def _reader(found: Findings) -> Suggestion:
    if found.reader == "uring":
        return Suggestion("reader", '"auto"', f"io_uring is taken: {found.reader_reason}")
    why = f"{found.reader} is taken: {found.reader_reason}"
    if found.is_high_latency:
        why += ("; these files are on a file system with round trips, where io_uring keeps many "
                "more of them under way: allow it, if you can")
    return Suggestion("reader", '"auto"', why)


def _cache(found: Findings) -> Suggestion:
    left = f"{bytes_text(found.memory_left)} of memory that are left"
    if found.data_bytes is None:
        return Suggestion("page cache", "not known", f"not all files were seen; {left}")
    if found.data_bytes <= _CACHE_SHARE * found.memory_left:
        return Suggestion(
            "page cache", "holds all",
            f"{bytes_text(found.data_bytes)} of files fit into the {left}: from the second epoch "
            "on storage does not matter",
        )
    return Suggestion(
        "page cache", "holds a part",
        f"{bytes_text(found.data_bytes)} of files do not fit into the {left}: every epoch reads "
        "from storage",
    )


def _limit(found: Findings) -> Suggestion | None:
    """Which one is slower, storage or decoding."""
    if found.cold_rate is None or found.decode_rate is None or not found.sample_bytes:
        return None
    cold = found.cold_rate / found.sample_bytes
    rates = (f"storage gives {cold:,.0f} images/s cold, all usable CPUs decode "
             f"{found.decode_rate:,.0f}")
    if cold < found.decode_rate:
        return Suggestion("first limit", "storage", f"{rates}; more threads would gain nothing "
                          "where files are not in memory")
    return Suggestion("first limit", "CPU", f"{rates}; faster storage would gain nothing")
