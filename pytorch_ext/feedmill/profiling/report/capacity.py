"""Predicts how long a training step would take with more threads, faster storage or free decoding,
from measured rates. Pure functions.

A batch is prepared while the previous step computes, so a step takes as long as the slowest of four
concurrent parts: the training loop, the decode threads, the CPUs as a whole, and the storage.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from feedmill.profiling.counting.records import STEADY

if TYPE_CHECKING:
    from feedmill.profiling.report.stats import Stats

# Storage is the limit if it caused more than the first share of the waits, and steps waited for
# more than the second share of the time.
_MOST_OF_WAIT = 0.5
_WORTH_MENTION = 0.02

# The parts that can limit a step: the keys of parts().
LOOP, THREADS, CPUS, STORAGE = "loop", "threads", "CPUs", "storage"


@dataclass(frozen=True)
class Rates:
    """The inputs of the model.

    Attributes:
        batch_samples: mean samples per batch.
        n_threads: decode threads.
        usable_cpus: CPUs that the process may use, by affinity and quota.
        decode_s, transform_s: CPU seconds per sample.
        storage_rate: samples per second that the storage delivers. None if storage was not the
            limit, so that its rate is not known.
        compute_s: seconds per batch that the training step computes, on the host or on the GPU,
            whichever is longer.
        overhead_s: median seconds per batch in next() after the batch is ready.
        python_s: seconds per batch that the training loop's thread works in next() before the
            batch is ready (Pillow).
        other_cpu_s: CPU seconds per batch that this process needs outside of the decode threads:
            a training step that computes on the CPU, reading, Python.
        overlaps: batches are prepared while the step computes. False if indices are taken from the
            sampler only at next().
    """

    batch_samples: float
    n_threads: int
    usable_cpus: int
    decode_s: float
    transform_s: float
    storage_rate: float | None = None
    compute_s: float = 0.0
    overhead_s: float = 0.0
    python_s: float = 0.0
    other_cpu_s: float = 0.0
    overlaps: bool = True

    @property
    def loop_s(self) -> float:
        """Seconds per batch on the training loop's thread: the shortest possible step."""
        return self.compute_s + self.overhead_s + self.python_s

    @property
    def work_s(self) -> float:
        """CPU seconds per batch in the decode threads."""
        return self.batch_samples * (self.decode_s + self.transform_s)


@dataclass(frozen=True)
class Capacity:
    """Samples per second that each stage could deliver if it were the only one. None if not known.

    Attributes:
        storage: reading. Known only if storage was the limit.
        cpu: the decode threads, if each has a CPU.
        python: the training loop's thread inside next(): returning the batch, collate_fn, Pillow.
    """

    storage: float | None
    cpu: float | None
    python: float | None


def parts(rates: Rates) -> dict[str, float]:
    """Seconds per batch of each part that may limit a step: LOOP, THREADS, CPUS, STORAGE."""
    storage_rate = rates.storage_rate
    return {
        LOOP: rates.loop_s,
        THREADS: rates.work_s / rates.n_threads,
        # Surplus threads, and a training step that computes on the CPU, share the same CPUs.
        CPUS: (rates.work_s + rates.other_cpu_s) / rates.usable_cpus,
        STORAGE: 0.0 if storage_rate is None else rates.batch_samples / storage_rate,
    }


def predict(rates: Rates) -> float:
    """Predicted seconds per batch. Change the rates for a what-if: replace(rates, n_threads=8),
    storage_rate=None (instant reads), or decode_s=0.0."""
    seconds = parts(rates)
    if rates.overlaps:
        return max(seconds.values())
    return seconds[LOOP] + max(seconds[THREADS], seconds[STORAGE])


def threads_needed(rates: Rates) -> int | None:
    """Decode threads needed to prepare a batch in the time of the training loop. None if the loop
    takes no time, so that no number is enough. predict() tells whether CPUs and storage keep up."""
    if rates.loop_s <= 0:
        return None
    return max(1, math.ceil(rates.work_s / rates.loop_s - 1e-9))


def rates_of(stats: Stats, *, overlaps: bool = True) -> Rates | None:
    """The rates of a native loader's steady state, or of all steps if it had none. None if nothing
    was decoded natively.

    Args:
        overlaps: see Rates.
    """
    steps = stats.steps[stats.steps["n_samples"] > 0]
    if (steps["phase"] == STEADY).any():
        steps = steps[steps["phase"] == STEADY]
    work_ns = stats.decode.decode_ns + stats.decode.transform_ns
    if not len(steps) or not work_ns or not stats.decode.native_samples:
        return None
    # CPU time per sample, split by the stages' wall times: those include waits for a CPU.
    sample_s = stats.decode.worker_cpu_ns / stats.decode.native_samples / 1e9
    step_s = seconds_per_step(steps)
    other_cpu_ns = max(0, stats.process.cpu_ns - stats.decode.worker_cpu_ns)
    other_cpus = other_cpu_ns / max(1, stats.process.elapsed_ns)
    n_batches = max(1, stats.batches - stats.waits.torch_batches)
    # Median, not mean: single long waits for a CPU are not the loop's own work.
    overhead_s = float(np.median(steps["overhead_ns"])) / 1e9
    python_s = stats.decode.fallback_ns / n_batches / 1e9
    return Rates(
        batch_samples=float(steps["n_samples"].mean()),
        n_threads=max(1, stats.decode.n_threads),
        usable_cpus=max(1, stats.process.usable_cpus),
        decode_s=sample_s * stats.decode.decode_ns / work_ns,
        transform_s=sample_s * stats.decode.transform_ns / work_ns,
        storage_rate=_storage_rate(steps),
        compute_s=max(_mean_compute_ns(steps) / 1e9, gpu_busy_s(steps) - overhead_s - python_s),
        overhead_s=overhead_s,
        python_s=python_s,
        other_cpu_s=other_cpus * step_s,
        overlaps=overlaps,
    )


def capacity_of(stats: Stats) -> Capacity:
    """The capacity of each stage of a native loader."""
    rates = rates_of(stats)
    if rates is None:
        return Capacity(None, None, None)
    own_s = rates.overhead_s + rates.python_s
    return Capacity(
        storage=rates.storage_rate,
        cpu=rates.batch_samples * rates.n_threads / rates.work_s if rates.work_s else None,
        python=rates.batch_samples / own_s if own_s else None,
    )


def seconds_per_step(steps: np.ndarray) -> float:
    """Mean seconds from one request to the next."""
    return (float(steps["host_wait_ns"].mean()) + _mean_compute_ns(steps)) / 1e9


def gpu_busy_s(steps: np.ndarray) -> float:
    """Mean seconds per step in which the GPU did not wait for a batch: the shortest step that the
    GPU allows. 0 if not known."""
    steps = steps[steps["gpu_known"] > 0]
    if not len(steps):
        return 0.0
    return max(0.0, seconds_per_step(steps) - float(steps["gpu_stall_ns"].mean()) / 1e9)


def _mean_compute_ns(steps: np.ndarray) -> float:
    """Mean over the steps whose compute time is known: not the last step of an unfinished epoch."""
    known = steps["compute_ns"][steps["compute_ns"] > 0]
    return float(known.mean()) if len(known) else 0.0


def _storage_rate(steps: np.ndarray) -> float | None:
    wait_ns, storage_ns = int(steps["data_wait_ns"].sum()), int(steps["storage_ns"].sum())
    step_s = seconds_per_step(steps)
    stalled = wait_ns > _WORTH_MENTION * step_s * 1e9 * len(steps)
    if not stalled or storage_ns <= _MOST_OF_WAIT * wait_ns:
        return None
    return float(steps["n_samples"].mean()) / step_s
