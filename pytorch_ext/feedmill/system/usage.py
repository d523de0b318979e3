"""Samples of the process and the host while a loader is iterated: CPU, memory, reads, GPUs.

There is no sampling thread: the code that counts steps takes a sample when a step returns
INTERVAL_NS or more after the latest sample. A long step therefore makes a long interval.
"""

from __future__ import annotations

import resource
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from feedmill._ops import native
from feedmill.system import host_metrics, nvml, proc_files

INTERVAL_NS = 1_000_000_000
# Counters of the loader whose increase over the interval goes into a sample.
_COUNTED = ("read_bytes", "copied_bytes", "batches", "samples")


@dataclass(frozen=True)
class _Reading:
    """The values of all counters at one moment."""

    clock_ns: int
    cpu_ns: int
    host_ticks: tuple[int, int] | None  # (busy, total) clock ticks of all CPUs
    major_faults: int
    device_read_bytes: int | None
    counted: Mapping[str, int]


class System:
    """Takes samples of this process and its host. Not thread-safe.

    A sample is a dict. Values that this system does not provide are left out:

    - clock_ns: time.monotonic_ns() at the end of the interval. interval_ns: its length.
    - process_cpu: CPU time of this process (all threads) and its child processes, in CPUs: 2.0 is
      as much as two busy CPUs.
    - host_cpu: share of the host's CPU time in which any process ran, 0 to 1. In a container it
      includes all CPUs and processes of the host.
    - usable_cpus: the number that the process may use, by affinity and quota.
    - rss_bytes, swap_bytes: memory of this process, resident and swapped out.
    - major_faults: page faults of this process that waited for storage.
    - device_read_bytes: what this process read from storage. read_bytes: what the loader read.
    - page_cache_share: 1 - device_read_bytes / read_bytes, at least 0: the share of the loader's
      reads that the page cache served; left out if the loader read nothing. device_read_bytes
      includes other reads of the process (checkpoints, programs, other loaders) and the kernel's
      readahead, which make the share too low. Reads from some network and FUSE file systems are
      not counted in it; the share is 1 then.
    - copied_bytes: bytes that the loader copied because the consumer held many batches.
    - batches, samples: delivered to the consumer; torch's path does not count samples.
    - gpu: if the process uses CUDA, what ``nvml`` reports for each GPU that it may use.

    Attributes:
        latest: {"latest": the latest sample, "total": a sample over the time since begin()};
            None before the first sample.
    """

    def __init__(self) -> None:
        self.latest: dict[str, Any] | None = None
        self._first: _Reading | None = None
        self._last: _Reading | None = None

    def begin(self, counters: Mapping[str, int]) -> None:
        """Begins the first interval. Later calls have no effect."""
        if self._first is None:
            self._first = self._last = _read(counters)

    def sample(self, counters: Mapping[str, int]) -> dict[str, Any]:
        """Ends the interval, begins the next one, and returns the sample of the ended one.

        Args:
            counters: the loader's counters since its start.
        """
        self.begin(counters)
        assert self._first is not None and self._last is not None
        now, state = _read(counters), _state()
        latest = {**_between(self._last, now), **state}
        self._last = now
        self.latest = {"latest": latest, "total": {**_between(self._first, now), **state}}
        return latest


def _between(before: _Reading, now: _Reading) -> dict[str, Any]:
    interval_ns = now.clock_ns - before.clock_ns
    sample: dict[str, Any] = {
        "clock_ns": now.clock_ns,
        "interval_ns": interval_ns,
        "process_cpu": round(max(0, now.cpu_ns - before.cpu_ns) / max(1, interval_ns), 4),
        "major_faults": now.major_faults - before.major_faults,
    }
    if now.host_ticks and before.host_ticks:
        busy, total = (a - b for a, b in zip(now.host_ticks, before.host_ticks))
        if total > 0:  # 0 in an interval shorter than a tick, which is about 10 ms
            sample["host_cpu"] = round(min(1.0, max(0.0, busy / total)), 4)
    sample |= {name: now.counted[name] - before.counted[name] for name in _COUNTED}
    if now.device_read_bytes is not None and before.device_read_bytes is not None:
        device = now.device_read_bytes - before.device_read_bytes
        sample["device_read_bytes"] = device
        if sample["read_bytes"]:
            sample["page_cache_share"] = round(max(0.0, 1 - device / sample["read_bytes"]), 4)
    return sample


def _read(counters: Mapping[str, int]) -> _Reading:
    return _Reading(
        clock_ns=time.monotonic_ns(),
        cpu_ns=host_metrics.process_cpu_ns(),
        host_ticks=_host_ticks(),
        major_faults=resource.getrusage(resource.RUSAGE_SELF).ru_majflt,
        device_read_bytes=proc_files.device_read_bytes(),
        counted={name: counters.get(name, 0) for name in _COUNTED},
    )


def _state() -> dict[str, Any]:
    """The values that are not counters: CPUs, memory and GPUs at this moment."""
    status = proc_files.numbers_by_name(proc_files.text_or_empty("/proc/self/status"))
    state = {"usable_cpus": native.usable_cpus()}
    for name, field in (("rss_bytes", "VmRSS"), ("swap_bytes", "VmSwap")):
        if field in status:
            state[name] = 1024 * status[field]
    gpus = _gpus()
    return state if gpus is None else {**state, "gpu": gpus}


def _gpus() -> list[dict[str, Any]] | None:
    torch = sys.modules.get("torch")
    # A process that does not use CUDA puts no load on the GPUs, and a call of NVML takes time.
    if torch is None or not torch.cuda.is_initialized():
        return None
    return nvml.gpus()


def _host_ticks() -> tuple[int, int] | None:
    """(busy, total) ticks of all CPUs together; None if /proc/stat does not have them."""
    # cpu user nice system idle iowait irq softirq steal guest ...; user and nice include guests.
    words = proc_files.text_or_empty("/proc/stat").partition("\n")[0].split()[1:9]
    if len(words) < 5:
        return None
    ticks = list(map(int, words))
    return sum(ticks) - ticks[3] - ticks[4], sum(ticks)
