"""Stats: what a DataLoader counted."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from feedmill.profiling.counting.records import (
    CAUSES,
    PHASES,
    SAMPLE_DTYPE,
    STEP_DTYPE,
    STORAGE_PARTS,
)
from feedmill.profiling.counting.sample_errors import SampleError
from feedmill.profiling.report import reporting
from feedmill.profiling.report.capacity import (
    Capacity,
    Rates,
    capacity_of,
    gpu_busy_s,
    rates_of,
    seconds_per_step,
)
from feedmill.profiling.report.stats_parts import (
    FLAT_NAMES,
    MOVED,
    PARTS,
    DecodeStats,
    DeferredStats,
    GPUStats,
    IOStats,
    MemoryStats,
    ProcessStats,
    WaitStats,
    counter_names,
    flat_gauges,
)
from feedmill.profiling.report.targets import Limits
from feedmill.profiling.report.verdict import ReportContext

KEPT_SLOW_SAMPLES = 16


class Percentiles(NamedTuple):
    """Percentiles over steps of a time in nanoseconds."""

    p50: int
    p90: int
    p99: int
    max: int


@dataclass(frozen=True)
class SlowSample:
    """A sample that took long to read, decode and transform. Times are nanoseconds.

    Attributes:
        path: the file, or the last 255 bytes of a longer path; "" for bytes from feedmill_item().
        index: index in the dataset.
        file_bytes: size of the encoded image.
        read_ns: from the start of the read to its last byte.
        decode_ns, transform_ns: CPU time.
        starved_ns: time in which its decode thread had no CPU to run on. Not part of cost_ns.
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
        """read_ns, decode_ns and transform_ns together."""
        return self.read_ns + self.decode_ns + self.transform_ns


@dataclass(frozen=True)
class Stats:
    """A snapshot of what a DataLoader did since it was created, on all paths together.

    ``later - earlier`` gives the interval between two snapshots: counters are subtracted; path,
    reasons, system, strings and sizes are those of the later one; steps, slow_samples and
    sample_errors are those that are not in the earlier one.

    The classes of the parts are in feedmill.profiling.report.stats_parts; help(stats.io) and the
    like explain their fields.

    Counts of samples are of native epochs only. On torch's path, and for a watched loader, only
    batches, epochs, the waits of the steps, and the GPU's stalls are known.

    Attributes:
        path: path of the latest iter(): "native"; "torch" (torch's own workers, or its own code in
            this process, did the work); "hybrid" (native="hybrid": native decoding, the transform
            in Python); "watched" (a loader of another library, see feedmill.watch()); "none"
            (nothing was iterated yet).
        reasons: why the path is "torch" or "hybrid", one sentence each.
        batches: batches returned by next().
        samples: samples in native batches.
        epochs: iterations started.
        errors: native batches that ended in an error.
        bad_samples: samples that could not be loaded, whatever on_error= did about them.
        waits: what the training loop waited for, and startup times: WaitStats.
        decode: what decode threads, Pillow, collate_fn and the hybrid path did: DecodeStats.
        deferred: Pillow images on torch's path whose decoding was put off: DeferredStats.
        io: reads and the cache: IOStats.
        gpu: stalls of the GPU, and copies to it: GPUStats.
        memory: batch buffers and allocations: MemoryStats.
        process: CPU use of the whole process, and CPU quotas: ProcessStats.
        slow_samples: the samples that took longest natively, at most 16, slowest first.
        sample_errors: the latest 1,000 bad samples, in the order of their batches: index, path,
            cause, and what on_error= put in their place.
        system: what the process and the host did, as feedmill.system.usage describes it:
            {"latest": ..., "total": ...}. None before the first measurement, which comes after a
            second or at the end of an epoch, and without a log (DataLoader(log=), FEEDMILL_LOG).
        steps: NumPy records, one for each step (each batch returned by next()), oldest first, the
            last 65,536. Times are nanoseconds. Fields:
            step, epoch: count from 0 in each native engine, and on torch's path.
            phase: records.FIRST (the loader's first step), BOUNDARY (the first step of a later
            epoch) or STEADY (all others).
            ready_batches: batches that were ready when the step asked. 0: the step had to wait.
            n_samples: samples in the batch. 0 if not known (torch's path).
            request_ns: time.monotonic_ns() at the request.
            host_wait_ns, data_wait_ns: as in WaitStats. overhead_ns: their difference.
            compute_ns: from the return of next() to the epoch's next request. 0 for the last step
            of an epoch that was left early.
            last_index: dataset index of the batch's last finished sample. The wait is attributed by
            what was happening to this sample.
            storage_ns, cpu_queue_decode_ns, cpu_queue_transform_ns, decode_ns, transform_ns,
            slot_wait_ns, h2d_ns, starved_ns, python_ns, unattributed_ns: the causes of the wait, as
            in WaitStats. They add up to data_wait_ns exactly.
            storage_connect_ns, storage_first_byte_ns, storage_transfer_ns, storage_retry_ns,
            storage_throttled_ns, storage_local_ns: the parts of storage_ns, as in WaitStats. They
            add up to storage_ns exactly.
            gpu_stall_ns, gpu_copy_ns: as stall_ns and copy_ns of GPUStats. Valid if gpu_known is 1;
            0 means that the step was not measured, or that the GPU has not reached it yet.
            before_collective_ns, collective_ns, n_collectives: from the return of next() to the
            step's first block of feedmill.collective(); time in these blocks; their number.
    """

    path: str = "none"
    reasons: tuple[str, ...] = ()
    batches: int = 0
    samples: int = 0
    epochs: int = 0
    errors: int = 0
    bad_samples: int = 0
    waits: WaitStats = field(default_factory=WaitStats)
    decode: DecodeStats = field(default_factory=DecodeStats)
    deferred: DeferredStats = field(default_factory=DeferredStats)
    io: IOStats = field(default_factory=IOStats)
    gpu: GPUStats = field(default_factory=GPUStats)
    memory: MemoryStats = field(default_factory=MemoryStats)
    process: ProcessStats = field(default_factory=ProcessStats)
    slow_samples: tuple[SlowSample, ...] = ()
    sample_errors: tuple[SampleError, ...] = ()
    system: dict[str, Any] | None = field(default=None, compare=False)
    steps: np.ndarray = field(default_factory=lambda: np.empty(0, STEP_DTYPE), compare=False)

    @classmethod
    def from_flat(cls, counters: Mapping[str, Any], **others: Any) -> Stats:
        """Stats of counters by their flat names, those of logs and JSON.

        Args:
            counters: values of FLAT_NAMES. What is missing is 0 or "".
            others: further fields of Stats by their own names, such as steps.
        """
        by_part: dict[str, dict[str, Any]] = {"": {}}
        for name, value in counters.items():
            part, own_name = FLAT_NAMES[name]
            by_part.setdefault(part, {})[own_name] = value
        top = by_part.pop("")
        parts: dict[str, Any] = {name: PARTS[name](**values) for name, values in by_part.items()}
        return cls(**top, **parts, **others)

    def flat(self) -> dict[str, int | str]:
        """All counters by their flat names, those of logs and JSON."""
        return {
            name: getattr(getattr(self, part) if part else self, own_name)
            for name, (part, own_name) in FLAT_NAMES.items()
        }

    def __sub__(self, earlier: Stats) -> Stats:
        if not isinstance(earlier, Stats):
            return NotImplemented
        changes: dict[str, Any] = {
            name: getattr(self, name) - getattr(earlier, name)
            for name in (*counter_names(Stats), *PARTS)
        }
        # Step numbers start again with each native engine; request times are unique.
        known = np.isin(self.steps["request_ns"], earlier.steps["request_ns"])
        slow = tuple(one for one in self.slow_samples if one not in earlier.slow_samples)
        n_bad = self.bad_samples - earlier.bad_samples  # only the latest of them are still kept
        return replace(
            self, steps=self.steps[~known], slow_samples=slow,
            sample_errors=self.sample_errors[-n_bad:] if n_bad > 0 else (), **changes,
        )

    if not TYPE_CHECKING:  # type checkers would allow any name

        def __getattr__(self, name: str) -> Any:
            if name in MOVED:
                raise AttributeError(f"Stats.{name} is now Stats.{MOVED[name]}")
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    @property
    def images_per_second(self) -> float:
        """Samples per second of native epochs: the speed of loader and training step together. 0 on
        torch's path, where samples are not counted."""
        wall_ns = self.waits.native_wall_ns
        return self.samples / (wall_ns / 1e9) if wall_ns else 0.0

    @property
    def data_wait_share(self) -> float:
        """Share of the wall time that the training loop waited for data, 0 to 1. Low is good."""
        waits = self.waits
        return min(1.0, waits.data_wait_ns / waits.wall_ns) if waits.wall_ns else 0.0

    @property
    def stall_share(self) -> float:
        """Share of the wall time lost to late data, 0 to 1: gpu.stall_share, or data_wait_share if
        no GPU was measured. Low is good."""
        share = self.gpu.stall_share
        return self.data_wait_share if share is None else share

    @property
    def au(self) -> float:
        """MLPerf Storage's accelerator utilization: 1 - stall_share. High is good."""
        return 1 - self.stall_share

    @property
    def steady_wait_share(self) -> float:
        """data_wait_share of the steady state: the steps after the first one of each epoch."""
        steps = self.steps_of("steady")
        if not len(steps):
            return 0.0
        return min(1.0, float(steps["data_wait_ns"].mean()) / 1e9 / seconds_per_step(steps))

    @property
    def steady_gpu_stall_share(self) -> float | None:
        """gpu.stall_share of the steady state. None if no GPU was measured in it."""
        steps = self.steps_of("steady")
        steps = steps[steps["gpu_known"] > 0]
        if not len(steps):
            return None
        return min(1.0, float(steps["gpu_stall_ns"].mean()) / 1e9 / seconds_per_step(steps))

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
        """Samples per second in the steady state of native epochs; 0 if there was none."""
        steps = self.steps_of("steady")
        steps = steps[steps["n_samples"] > 0]
        return float(steps["n_samples"].mean()) / seconds_per_step(steps) if len(steps) else 0.0

    @property
    def demand(self) -> float | None:
        """Samples per second that the training step could take from a loader that never makes it
        wait: samples divided by compute_ns of the steady state, or by the GPU's busy time if that
        is longer. None if not known, as on torch's path."""
        steps = self.steps_of("steady")
        steps = steps[(steps["n_samples"] > 0) & (steps["compute_ns"] > 0)]
        if not len(steps):
            return None
        step_s = max(float(steps["compute_ns"].mean()) / 1e9, gpu_busy_s(steps))
        return float(steps["n_samples"].mean()) / step_s

    @property
    def capacity(self) -> Capacity:
        """Samples per second that storage, decode threads and Python could each deliver."""
        return capacity_of(self)

    def rates(self, *, overlaps: bool = True) -> Rates | None:
        """The rates that the capacity model predicts from. Arguments and result: see rates_of()."""
        return rates_of(self, overlaps=overlaps)

    def steps_of(self, phase: str | None = "steady") -> np.ndarray:
        """The steps of a phase: "first", "boundary" or "steady"; all steps if phase is None."""
        if phase is None:
            return self.steps
        if phase not in PHASES:
            names = ", ".join(map(repr, PHASES))
            raise ValueError(f"phase is {phase!r}; it must be one of {names} or None")
        steps: np.ndarray = self.steps[self.steps["phase"] == PHASES.index(phase)]
        return steps

    def percentiles(self, name: str, phase: str | None = "steady") -> Percentiles:
        """Percentiles of one of the steps' times, in nanoseconds; zeros if there is no step.

        Args:
            name: a field of `steps`, such as "data_wait_ns", "host_wait_ns" or "compute_ns".
            phase: see steps_of().
        """
        values = self.steps_of(phase)[name]
        if name == "compute_ns":
            values = values[values > 0]  # 0: the epoch was left after this step
        if not len(values):
            return Percentiles(0, 0, 0, 0)
        return Percentiles(*map(int, np.percentile(values, [50, 90, 99, 100])))

    def waits_by_cause(self, phase: str | None = "steady") -> dict[str, int]:
        """Nanoseconds that the steps of a phase waited, by cause: see `steps`. They add up to the
        data_wait_ns of those steps.

        Args:
            phase: see steps_of().
        """
        steps = self.steps_of(phase)
        return {name: int(steps[name].sum()) for name in CAUSES}

    def storage_waits_by_part(self, phase: str | None = "steady") -> dict[str, int]:
        """Nanoseconds that the steps of a phase waited for storage, by what the reads did: see
        `steps`. They add up to the storage_ns of those steps.

        Args:
            phase: see steps_of().
        """
        steps = self.steps_of(phase)
        return {name: int(steps[name].sum()) for name in STORAGE_PARTS}

    @property
    def worker_busy_share(self) -> float:
        """Share of the native epochs' wall time that the decode threads worked, 0 to 1."""
        total = self.decode.n_threads * self.waits.native_wall_ns
        work_ns = self.decode.decode_ns + self.decode.transform_ns
        return min(1.0, work_ns / total) if total else 0.0

    def report(
        self,
        *,
        wait_ms: float = Limits.wait_ms,
        gpu: float = Limits.gpu,
        cpu: tuple[float, float] = Limits.cpu,
        around: ReportContext | None = None,
    ) -> str:
        """Readable text: the verdict (the bottleneck and what would remove it), targets met or
        missed, problems with their remedies, and the numbers behind them.

        Args:
            wait_ms: target: the mean wait for data is below this, in milliseconds a batch.
            gpu: target: the GPU is kept busy for more than this share of the time.
            cpu: target: this process uses a share of the usable CPUs in this range (low, high).
            around: what is known besides the counters. Default None: nothing.
        """
        return reporting.report(self, around or ReportContext(), Limits(wait_ms, gpu, cpu))


@dataclass
class PythonCounters:
    """Counters of the Python code of a loader, outside of its native engines, by flat names."""

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


_FLAT_GAUGES = flat_gauges()


def sum_counters(parts: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Adds up counters of several native engines and of torch's path, by flat names. Gauges and
    strings are those of the latest one that has any, which comes last. Unknown names are dropped.
    """
    total: dict[str, Any] = {}
    for part in parts:
        for name, value in part.items():
            if isinstance(value, str):
                total[name] = value or total.get(name, "")
            elif name in _FLAT_GAUGES:
                total[name] = value or total.get(name, 0)
            else:
                total[name] = total.get(name, 0) + value
    return {name: value for name, value in total.items() if name in FLAT_NAMES}


def slow_samples_of(handle: Any) -> list[SlowSample]:
    """The slow samples of a native engine (_native.Loader)."""
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
    """The slowest samples of several native engines, each index once, slowest first."""
    slowest: dict[int, SlowSample] = {}
    for part in parts:
        for one in part:
            if one.index not in slowest or slowest[one.index].cost_ns < one.cost_ns:
                slowest[one.index] = one
    return sorted(slowest.values(), key=lambda one: -one.cost_ns)[:KEPT_SLOW_SAMPLES]
