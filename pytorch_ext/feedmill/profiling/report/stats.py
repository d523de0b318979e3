"""Counters of one DataLoader."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, NamedTuple

import numpy as np

from feedmill.profiling.counting.records import CAUSES, PHASES, SAMPLE_DTYPE, STEP_DTYPE
from feedmill.profiling.counting.sample_errors import SampleError
from feedmill.profiling.report import reporting
from feedmill.profiling.report.capacity import (
    Capacity,
    Rates,
    capacity_of,
    gpu_busy_s,
    rates_of,
    seconds_a_step,
)
from feedmill.profiling.report.targets import Limits
from feedmill.profiling.report.verdict import ReportContext

# Fields that describe a native loader or this process rather than count what it did: the latest
# one's count.
_GAUGES = frozenset({
    "n_threads", "n_slots", "slot_bytes", "pinned_bytes", "read_depth", "usable_cpus",
    "cache_files", "cache_bytes",
})

KEPT_SLOW_SAMPLES = 16


class Percentiles(NamedTuple):
    """Of a time in nanoseconds, over steps."""

    p50: int
    p90: int
    p99: int
    max: int


@dataclass(frozen=True)
class SlowSample:
    """A sample that took long to read, decode and transform.

    Attributes:
        path: its file, or the end of a path above 255 bytes; "" for bytes from feedmill_item().
        index: in the dataset.
        file_bytes: of the encoded image.
        read_ns: from the start of the read to its last byte.
        decode_ns, transform_ns: CPU time.
        starved_ns: time without a core meanwhile, which is no part of cost_ns.
    """

    path: str
    index: int
    file_bytes: int
    read_ns: int
    decode_ns: int
    transform_ns: int
    starved_ns: int

    @property
    def cost_ns(self) -> int:
        """Reading and working on it together."""
        return self.read_ns + self.decode_ns + self.transform_ns


@dataclass(frozen=True)
class Stats:
    """A snapshot of what a DataLoader did since it was made, natively and on torch's path together.

    A later snapshot minus an earlier one gives the interval: counters are subtracted, descriptions
    (path, reasons, reader, cpu, the sizes from n_threads on) are the later one's, and steps and
    slow samples those that the earlier one did not have. Times are nanoseconds of the wall clock
    unless said otherwise.

    Attributes:
        path: "native", "torch" (torch's own workers or process did the work: only `batches`,
            `epochs` and the times of the steps are counted), "watched" (the same of a loader that
            is somebody else's), "hybrid" (native="hybrid" called the transforms; counted as on
            torch's path, and in the counters that begin so) or "none" (nothing was iterated yet).
            That of the latest iter().
        reasons: why the path is "torch" or "hybrid", one sentence each.
        batches, samples: handed to the consumer.
        epochs: iterations started.
        native_samples: decoded and transformed natively. High is good.
        fallback_samples: finished by Pillow, one after the other, on the consumer's thread. Every
            one of them costs several times a native one.
        fallback_format: ... because the format is not decoded natively.
        fallback_kind: ... because of a kind of its format that is not decoded natively.
        fallback_damaged: ... because the file is damaged; Pillow took it all the same.
        fallback_read: ... because the file could not be read natively.
        fallback_limit: ... because of its size, or a geometry that only Pillow computes.
        errors: batches that ended in an error.
        copied_batches, copied_bytes, copy_ns: batches copied out because the consumer held many
            batches at once. High means that it holds on to batches; each costs a memcpy.
        read_files, read_opens, read_bytes: what the reader did.
        read_ns: sum over files of the time from the start of the read to its last byte. With many
            files in flight it is far above the wall time; read_ns / read_files is the latency of a
            file, waits for a CPU included.
        cache_hits, cache_misses: with cache=, files that were in memory, and those that had to be
            read; cache_hit_rate has the share.
        decode_ns, transform_ns: wall time in the decoder and in resize, flip, normalize and store,
            summed over the decode threads.
        starved_ns: time in which a decode thread worked on a sample and had no core: other threads
            and processes, or a quota. High: more threads would not help.
        worker_cpu_ns: CPU time of the decode threads, at work or not.
        worker_idle_ns: time of the decode threads without work, also between epochs. High: there
            are threads to spare, or files come late.
        fallback_ns: time spent in Pillow for `fallback_samples`, all of it in the consumer's way.
        collate_ns: time in a collate_fn of the script's own on native batches, on the consumer's
            thread. High: it is worth making faster, or doing on the GPU.
        collate_ahead_ns: the same with num_workers > 0: ahead of the batch's turn, in a thread or
            in worker processes. What a step still waits for it is part of wait_python_ns.
        verified_samples: samples that native="verify" found to be the same.
        hybrid_batches, hybrid_samples: of native="hybrid", which are no native ones.
        hybrid_decode_ns, hybrid_transform_ns: time that its threads passed in reading and decoding,
            and in the transform, waits for Python's lock included.
        host_wait_ns: time inside next().
        data_wait_ns: the part of it before the batch was ready: the stall. The rest is overhead.
            On torch's path, and of a watched loader, all of host_wait_ns.
        wait_storage_ns: the part of data_wait_ns that files were waited for; see `steps` for this
            and the following ones, which together are data_wait_ns exactly.
        wait_cpu_queue_decode_ns, wait_cpu_queue_transform_ns, wait_decode_ns, wait_transform_ns,
        wait_slot_wait_ns, wait_h2d_ns, wait_starved_ns, wait_python_ns, wait_unattributed_ns: the
            parts with other causes.
        wall_ns: from the first request of each epoch to its last return, summed: consumer's work
            included.
        torch_batches, torch_wait_ns, torch_wall_ns: the parts of batches, data_wait_ns and wall_ns
            that belong to epochs on torch's path, or hybrid ones.
        gpu_steps: steps that the GPU's clock measured, which it does wherever torch.cuda is in use,
            on each path; of the current device, or that of the DataLoader.
        gpu_stall_ns: of those, the time for which the GPU had nothing to do, as next() had not
            returned and what was queued before it was done. Far below host_wait_ns: the host waits
            while the GPU works. Work in other streams is not seen.
        gpu_copy_ns: the part of it that the batch's copy to the device took; the rest is data that
            came late.
        gpu_wall_ns: the part of wall_ns that belongs to those steps.
        gpu_skipped: steps that were not measured, as a CUDA graph was being captured, or the host
            was hundreds of steps ahead. With FEEDMILL_GPU_STALLS=0 in the environment no step is
            measured, and none counted here.
        first_batches: native epochs whose first batch was delivered.
        iter_ns: of those, the time in iter() before the native epoch began: looking at dataset and
            transforms, making the sampler's iterator, opening a native loader where none is idle.
        first_batch_ns: of those, the time from there until the first batch was ready. At best it
            is the work on one batch divided by the decode threads; more where the sampler takes
            its time (a permutation of many indices), or files come late.
        open_ns: time that opening native loaders took, at most once an epoch.
        elapsed_ns: since the first iter(). The following five are of that time, and of the whole
            process with all of its loaders and everything else that it does.
        process_cpu_ns: CPU time of this process, all threads, and of its child processes.
        host_busy_ns: time that the CPUs which this process may use were busy, for whomever. Far
            above process_cpu_ns: others compute there, too.
        throttled_periods, throttled_ns: how often, and how long altogether, a CPU quota stopped
            this process's cgroup (on each CPU; they are summed). High: raise the quota.
        device_read_bytes: what block devices delivered to this process. Far below read_bytes: the
            files came from the page cache (or from a network, whose bytes are not in it).
        h2d_batches, h2d_bytes: with device=, what native loaders copied to the GPU by themselves.
        threads_created, allocations, allocated_bytes: by native loaders, since they were opened.
            They stand still from the second epoch on.
        n_threads: decode threads. n_slots, slot_bytes: batch buffers; pinned_bytes: of those, for
            copies to the GPU. read_depth: files that may
            be in flight. cache_files, cache_bytes: files in the cache, and the memory that it
            takes. usable_cpus: CPUs that the process may use, by affinity and quota.
        reader: "uring", "pread", or "" before anything ran; reader_reason: why that one.
        cpu: instructions that the pixels' code uses: "scalar", "sse41", "avx2" or "avx512".
        slow_samples: of native loaders, at most 16, the slowest first.
        bad_samples: samples that could not be loaded, with whatever on_error= did about them.
        sample_errors: these samples, the latest 1,000, in the order of their batches: their index,
            path and cause, and what on_error= put in their place.
        system: what the process and the host did, {"latest": ..., "total": ...} of the samples that
            feedmill.system.usage describes; None before the first, which comes after a second or at
            the end of an epoch, and where no log was asked for (DataLoader(log=), FEEDMILL_LOG).
        steps: numpy records, one a step, oldest first (the last 65,536), with these fields:
            step, epoch: both count from 0 in each native loader and on torch's path.
            phase: records.FIRST (the loader's first step), BOUNDARY (the first of a later epoch)
            or STEADY.
            ready_batches: batches that were ready when the step asked; 0 means that it had to wait.
            n_samples: in the batch; 0 where it is not known (torch's path).
            request_ns: the clock (time.monotonic_ns()) at the request.
            host_wait_ns, data_wait_ns: as above. overhead_ns: the difference.
            compute_ns: from the return to the epoch's next request; 0 for its last step if nothing
            more was asked for.
            last_index: the index that was finished last, whose way says what was waited for.
            storage_ns: its file was being read, or in the reader's queue.
            cpu_queue_decode_ns, cpu_queue_transform_ns: it had its bytes, and the decode threads
            were decoding (transforming) others.
            decode_ns, transform_ns: it was decoded, transformed.
            slot_wait_ns: all batch slots were in use.
            h2d_ns: its batch was being copied to the GPU.
            starved_ns: a decode thread had something to do, and no core.
            python_ns: the sampler, Pillow, or on torch's path its workers.
            unattributed_ns: none of these.
            From storage_ns to here they add up to data_wait_ns exactly.
            gpu_stall_ns, gpu_copy_ns: as above, where gpu_known is 1; 0: not measured, or the GPU
            has not come so far yet.
    """

    path: str = "none"
    reasons: tuple[str, ...] = ()
    batches: int = 0
    samples: int = 0
    epochs: int = 0
    native_samples: int = 0
    fallback_samples: int = 0
    fallback_format: int = 0
    fallback_kind: int = 0
    fallback_damaged: int = 0
    fallback_read: int = 0
    fallback_limit: int = 0
    errors: int = 0
    bad_samples: int = 0
    copied_batches: int = 0
    copied_bytes: int = 0
    copy_ns: int = 0
    read_files: int = 0
    read_opens: int = 0
    read_bytes: int = 0
    read_ns: int = 0
    cache_hits: int = 0
    cache_misses: int = 0
    decode_ns: int = 0
    transform_ns: int = 0
    starved_ns: int = 0
    worker_cpu_ns: int = 0
    worker_idle_ns: int = 0
    fallback_ns: int = 0
    collate_ns: int = 0
    collate_ahead_ns: int = 0
    verified_samples: int = 0
    hybrid_batches: int = 0
    hybrid_samples: int = 0
    hybrid_decode_ns: int = 0
    hybrid_transform_ns: int = 0
    host_wait_ns: int = 0
    data_wait_ns: int = 0
    wait_storage_ns: int = 0
    wait_cpu_queue_decode_ns: int = 0
    wait_cpu_queue_transform_ns: int = 0
    wait_decode_ns: int = 0
    wait_transform_ns: int = 0
    wait_slot_wait_ns: int = 0
    wait_h2d_ns: int = 0
    wait_starved_ns: int = 0
    wait_python_ns: int = 0
    wait_unattributed_ns: int = 0
    wall_ns: int = 0
    torch_batches: int = 0
    torch_wait_ns: int = 0
    torch_wall_ns: int = 0
    gpu_steps: int = 0
    gpu_stall_ns: int = 0
    gpu_copy_ns: int = 0
    gpu_wall_ns: int = 0
    gpu_skipped: int = 0
    first_batches: int = 0
    iter_ns: int = 0
    first_batch_ns: int = 0
    open_ns: int = 0
    elapsed_ns: int = 0
    process_cpu_ns: int = 0
    host_busy_ns: int = 0
    throttled_periods: int = 0
    throttled_ns: int = 0
    device_read_bytes: int = 0
    h2d_batches: int = 0
    h2d_bytes: int = 0
    threads_created: int = 0
    allocations: int = 0
    allocated_bytes: int = 0
    n_threads: int = 0
    n_slots: int = 0
    slot_bytes: int = 0
    pinned_bytes: int = 0
    read_depth: int = 0
    cache_files: int = 0
    cache_bytes: int = 0
    usable_cpus: int = 0
    reader: str = ""
    reader_reason: str = ""
    cpu: str = ""
    slow_samples: tuple[SlowSample, ...] = ()
    sample_errors: tuple[SampleError, ...] = ()
    system: dict[str, Any] | None = field(default=None, compare=False)
    steps: np.ndarray = field(default_factory=lambda: np.empty(0, STEP_DTYPE), compare=False)

    def __sub__(self, earlier: Stats) -> Stats:
        if not isinstance(earlier, Stats):
            return NotImplemented
        changes: dict[str, Any] = {
            name: getattr(self, name) - getattr(earlier, name) for name in _COUNTERS
        }
        # Records move and go with their native loaders; the time of the request names a step.
        known = np.isin(self.steps["request_ns"], earlier.steps["request_ns"])
        slow = tuple(one for one in self.slow_samples if one not in earlier.slow_samples)
        n_bad = self.bad_samples - earlier.bad_samples  # of which the latest are still kept
        return replace(
            self, steps=self.steps[~known], slow_samples=slow,
            sample_errors=self.sample_errors[-n_bad:] if n_bad > 0 else (), **changes,
        )

    @property
    def images_per_second(self) -> float:
        """Samples per second of the native part of wall_ns: the speed of loader and consumer
        together. On torch's path samples are not counted."""
        return self.samples / (self._native_wall_ns / 1e9) if self._native_wall_ns else 0.0

    @property
    def _native_wall_ns(self) -> int:
        return self.wall_ns - self.torch_wall_ns

    @property
    def pillow_count(self) -> int:
        """Samples that took the slow path through Pillow."""
        return self.fallback_samples

    @property
    def cache_hit_rate(self) -> float:
        """Share of the files that came from the cache, 0 to 1; of an epoch behind the first, the
        share that fits. 0 where there is no cache."""
        n_files = self.cache_hits + self.cache_misses
        return self.cache_hits / n_files if n_files else 0.0

    @property
    def data_wait_share(self) -> float:
        """Share of the wall time that the consumer waited for data, 0 to 1. Low is good."""
        return min(1.0, self.data_wait_ns / self.wall_ns) if self.wall_ns else 0.0

    @property
    def gpu_stall_share(self) -> float | None:
        """Share of the wall time for which the GPU stood still for want of a batch, 0 to 1. Low is
        good. None: no GPU was measured."""
        if not self.gpu_steps:
            return None
        return min(1.0, self.gpu_stall_ns / self.gpu_wall_ns) if self.gpu_wall_ns else 0.0

    @property
    def stall_share(self) -> float:
        """The stall: gpu_stall_share, or data_wait_share where no GPU was measured."""
        share = self.gpu_stall_share
        return self.data_wait_share if share is None else share

    @property
    def au(self) -> float:
        """MLPerf Storage's accelerator utilization: 1 - stall_share. High is good."""
        return 1 - self.stall_share

    @property
    def steady_wait_share(self) -> float:
        """data_wait_share of the steady state: of its steps, from each request to the next."""
        steps = self.steps_of("steady")
        if not len(steps):
            return 0.0
        return min(1.0, float(steps["data_wait_ns"].mean()) / 1e9 / seconds_a_step(steps))

    @property
    def steady_gpu_stall_share(self) -> float | None:
        """gpu_stall_share of the steady state. None: no GPU was measured in it."""
        steps = self.steps_of("steady")
        steps = steps[steps["gpu_known"] > 0]
        if not len(steps):
            return None
        return min(1.0, float(steps["gpu_stall_ns"].mean()) / 1e9 / seconds_a_step(steps))

    @property
    def steady_stall_share(self) -> float:
        """stall_share of the steady state."""
        share = self.steady_gpu_stall_share
        return self.steady_wait_share if share is None else share

    @property
    def steady_au(self) -> float:
        """au of the steady state."""
        return 1 - self.steady_stall_share

    @property
    def steady_images_per_second(self) -> float:
        """Samples per second of the steady state of native epochs; 0 where there was none."""
        steps = self.steps_of("steady")
        steps = steps[steps["n_samples"] > 0]
        return float(steps["n_samples"].mean()) / seconds_a_step(steps) if len(steps) else 0.0

    @property
    def demand(self) -> float | None:
        """Samples per second that the training step could take from a loader that never lets it
        wait: samples over compute_ns of the steady state, or over the time that the GPU was not
        kept waiting, if that is more. None: not known, as for torch's path."""
        steps = self.steps_of("steady")
        steps = steps[(steps["n_samples"] > 0) & (steps["compute_ns"] > 0)]
        if not len(steps):
            return None
        step_s = max(float(steps["compute_ns"].mean()) / 1e9, gpu_busy_s(steps))
        return float(steps["n_samples"].mean()) / step_s

    @property
    def capacity(self) -> Capacity:
        """Samples per second that storage, decode threads and Python could deliver each."""
        return capacity_of(self)

    def rates(self, *, overlaps: bool = True) -> Rates | None:
        """What capacity_of() predicts from; arguments and result as of rates_of()."""
        return rates_of(self, overlaps=overlaps)

    def steps_of(self, phase: str | None = "steady") -> np.ndarray:
        """The steps of a phase: "first", "boundary" or "steady"; None: all."""
        if phase is None:
            return self.steps
        if phase not in PHASES:
            names = ", ".join(map(repr, PHASES))
            raise ValueError(f"phase is {phase!r}; it must be one of {names} or None")
        steps: np.ndarray = self.steps[self.steps["phase"] == PHASES.index(phase)]
        return steps

    def percentiles(self, name: str, phase: str | None = "steady") -> Percentiles:
        """Of a time of the steps, such as "data_wait_ns", "host_wait_ns" or "compute_ns"; zeros
        where there is no step.

        Args:
            name: a field of `steps` that is a time.
            phase: as of steps_of().
        """
        values = self.steps_of(phase)[name]
        if name == "compute_ns":
            values = values[values > 0]  # 0: nothing was asked for behind the step
        if not len(values):
            return Percentiles(0, 0, 0, 0)
        return Percentiles(*map(int, np.percentile(values, [50, 90, 99, 100])))

    def waits(self, phase: str | None = "steady") -> dict[str, int]:
        """Nanoseconds by cause, as the fields of `steps` from storage_ns on; arguments as of
        steps_of(). Together they are the data_wait_ns of those steps."""
        steps = self.steps_of(phase)
        return {name: int(steps[name].sum()) for name in CAUSES}

    @property
    def decode_s(self) -> float:
        """Core-seconds in the decoder."""
        return self.decode_ns / 1e9

    @property
    def transform_s(self) -> float:
        """Core-seconds in resize, flip, normalize and store."""
        return self.transform_ns / 1e9

    @property
    def read_s(self) -> float:
        """Seconds that reads were under way, summed over files."""
        return self.read_ns / 1e9

    @property
    def fallback_s(self) -> float:
        """Seconds in Pillow, on the consumer's thread."""
        return self.fallback_ns / 1e9

    @property
    def first_batch_s(self) -> float:
        """Seconds from iter() until the first batch was ready, mean of the native epochs."""
        return (self.iter_ns + self.first_batch_ns) / 1e9 / max(1, self.first_batches)

    @property
    def starved_share(self) -> float:
        """Share of the time in which decode threads had work that they had no core, 0 to 1."""
        total = self.starved_ns + self.worker_cpu_ns
        return self.starved_ns / total if total else 0.0

    @property
    def worker_busy_share(self) -> float:
        """Share of the native part of wall_ns that the decode threads worked, 0 to 1."""
        total = self.n_threads * self._native_wall_ns
        return min(1.0, (self.decode_ns + self.transform_ns) / total) if total else 0.0

    def report(
        self,
        *,
        wait_ms: float = Limits.wait_ms,
        gpu: float = Limits.gpu,
        cpu: tuple[float, float] = Limits.cpu,
        around: ReportContext | None = None,
    ) -> str:
        """Text for a person: a sentence that says what to do, targets met or missed, problems with
        their remedies, and the numbers behind all that.

        Args:
            wait_ms: target: mean wait for data, milliseconds a batch, below this.
            gpu: target: share of the time that the GPU is kept busy, above this.
            cpu: target: share of the usable CPUs that this process uses, from ... to ...
            around: what is known beside the counters. Default None: nothing.
        """
        return reporting.report(self, around or ReportContext(), Limits(wait_ms, gpu, cpu))


@dataclass
class PythonCounters:
    """What is counted on the consumer's thread, beside the native loaders' own counters."""

    collate_ns: int = 0
    collate_ahead_ns: int = 0
    verified_samples: int = 0
    hybrid_batches: int = 0
    hybrid_samples: int = 0
    hybrid_decode_ns: int = 0
    hybrid_transform_ns: int = 0
    iter_ns: int = 0

    def counters(self) -> dict[str, int]:
        return dict(vars(self))


_COUNTERS = [one.name for one in fields(Stats) if one.type == "int" and one.name not in _GAUGES]


def sum_counters(parts: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """One dict from those of several native loaders and of torch's path, the latest last."""
    total: dict[str, Any] = {}
    for part in parts:
        for name, value in part.items():
            if isinstance(value, str):
                total[name] = value
            elif name in _GAUGES:
                total[name] = value or total.get(name, 0)
            else:
                total[name] = total.get(name, 0) + value
    known = {one.name for one in fields(Stats)}
    return {name: value for name, value in total.items() if name in known}


def slow_samples_of(handle: Any) -> list[SlowSample]:
    """Those of a native loader (_native.Loader)."""
    found = []
    for path, data in handle.slow_samples():
        record = np.frombuffer(data, SAMPLE_DTYPE)[0]
        read_ns = int(record["read_end_ns"]) - int(record["read_begin_ns"])
        names = ("index", "file_bytes", "decode_ns", "transform_ns", "starved_ns")
        found.append(
            SlowSample(path=path, read_ns=read_ns, **{name: int(record[name]) for name in names})
        )
    return found


def join_slow_samples(parts: Iterable[Iterable[SlowSample]]) -> list[SlowSample]:
    """The slowest of several native loaders, each index once, the slowest first."""
    slowest: dict[int, SlowSample] = {}
    for part in parts:
        for one in part:
            if one.index not in slowest or slowest[one.index].cost_ns < one.cost_ns:
                slowest[one.index] = one
    return sorted(slowest.values(), key=lambda one: -one.cost_ns)[:KEPT_SLOW_SAMPLES]
