"""What the process and the host did while a loader was iterated: CPU, memory, reads, GPU.

There is no thread for it: whoever counts steps asks, at the end of one, whether an interval is
over. So nothing is sampled while a step runs, and an interval is as long as its last step makes it.
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
# Counters of the loader that go into a sample, as the difference over the interval.
_COUNTED = ("read_bytes", "copied_bytes", "batches", "samples")


@dataclass(frozen=True)
class _Reading:
    """What only grows, as of one moment."""

    clock_ns: int
    cpu_ns: int
    host_ticks: tuple[int, int] | None  # busy, all
    major_faults: int
    device_read_bytes: int | None
    counted: Mapping[str, int]


class System:
    """Samples of this process and its host. One thread at a time.

    A sample is a dict, in which what this system does not tell is left out:

    - clock_ns: the clock (time.monotonic_ns()) at its end. interval_ns: how long it is.
    - process_cpu: CPU time of this process, all threads, and of its child processes, in cores: 2.0
      is two cores' worth.
    - host_cpu: share of the host's cores that were busy, with whatever, 0 to 1; in a container,
      too, of the host's.
    - usable_cpus: that the process may use, by affinity and quota.
    - rss_bytes, swap_bytes: of this process, in memory and swapped out.
    - major_faults: page faults of this process that had to wait for storage.
    - device_read_bytes: that storage gave to this process. read_bytes: that the loader read.
    - page_cache_share: 1 - device_read_bytes / read_bytes, at least 0: the share of what the loader
      read that was in memory already; left out where it read nothing. All reads of the process are
      in device_read_bytes (checkpoints, programs, other loaders), and what the kernel reads ahead:
      then the share is too low. Some network and FUSE file systems do not count: then it is 1.
    - copied_bytes: copied because the consumer held many batches.
    - batches, samples: handed to the consumer; torch's path does not count samples.
    - gpu: where the process uses CUDA, for each GPU that it may use what ``nvml`` says.

    Attributes:
        latest: {"latest": the latest sample, "total": one over the whole time since begin()};
            None before the first.
    """

    def __init__(self) -> None:
        self.latest: dict[str, Any] | None = None
        self._first: _Reading | None = None
        self._last: _Reading | None = None

    def begin(self, counters: Mapping[str, int]) -> None:
        """The first interval begins, if none has yet."""
        if self._first is None:
            self._first = self._last = _read(counters)

    def sample(self, counters: Mapping[str, int]) -> dict[str, Any]:
        """Ends an interval, and begins the next one; returns its sample.

        Args:
            counters: of the loader, since its start.
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
        if total > 0:  # the kernel counts in steps of 10 ms or so
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
    """What has a value at any moment."""
    status = proc_files.numbers_by_name(proc_files.text_or_empty("/proc/self/status"))
    state = {"usable_cpus": native.usable_cpus()}
    for name, field in (("rss_bytes", "VmRSS"), ("swap_bytes", "VmSwap")):
        if field in status:
            state[name] = 1024 * status[field]
    gpus = _gpus()
    return state if gpus is None else {**state, "gpu": gpus}


def _gpus() -> list[dict[str, Any]] | None:
    torch = sys.modules.get("torch")
    # Without CUDA in this process the GPUs' state is none of its own, and asking takes time.
    if torch is None or not torch.cuda.is_initialized():
        return None
    return nvml.gpus()


def _host_ticks() -> tuple[int, int] | None:
    """Of all cores together: busy, all. None if they can't be known."""
    # cpu user nice system idle iowait irq softirq steal; time of guests is part of user and nice.
    words = proc_files.text_or_empty("/proc/stat").partition("\n")[0].split()[1:9]
    if len(words) < 5:
        return None
    ticks = list(map(int, words))
    return sum(ticks) - ticks[3] - ticks[4], sum(ticks)
