"""Counters of one DataLoader, and the report that reads them for a person."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np

from feedmill.records import STEP_DTYPE

# Fields that describe a native loader rather than count what it did: the latest one's count.
_GAUGES = frozenset({"n_threads", "n_slots", "slot_bytes", "read_depth"})

# The reason of a DataLoader that was told not to run natively.
OFF = "native='off' was asked for"

# A wait for data under this share of the time is no stall worth a sentence.
_NO_STALL = 0.02


@dataclass(frozen=True)
class Stats:
    """A snapshot of what a DataLoader did since it was made, natively and on torch's path together.

    A later snapshot minus an earlier one gives the interval: counters are subtracted, descriptions
    (path, reasons, reader, cpu, the sizes from n_threads on) are the later one's, and steps those
    that came after the earlier one. Times are nanoseconds of the wall clock unless said otherwise.

    Attributes:
        path: "native", "torch" (torch's own workers or process did the work: only `batches`,
            `epochs` and the times of the steps are counted), "watched" (the same of a loader that
            is somebody else's) or "none" (nothing was iterated yet). That of the latest iter().
        reasons: why the path is "torch", one sentence each.
        batches, samples: handed to the consumer.
        epochs: iterations started.
        native_samples: decoded and transformed natively. High is good.
        fallback_samples: finished by Pillow, one after the other, on the consumer's thread. Every
            one of them costs several times a native one.
        fallback_format: ... because the bytes are not a JPEG.
        fallback_kind: ... because of a JPEG kind that is not decoded natively (CMYK, 12 bit).
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
        decode_ns, transform_ns: wall time in the decoder and in resize, flip, normalize and store,
            summed over the decode threads.
        starved_ns: the part of decode_ns and transform_ns in which the decode thread had no core:
            other threads and processes, or a quota. High: more threads would not help.
        worker_cpu_ns: CPU time of the decode threads, at work or not.
        worker_idle_ns: time of the decode threads without work, also between epochs. High: there
            are threads to spare, or files come late.
        wait_idle_ns: the part of it while a step waited for data. High: files come late. Low
            beside n_threads * data_wait_ns: the decode threads are the bottleneck.
        fallback_ns: time spent in Pillow for `fallback_samples`, all of it in the consumer's way.
        collate_ns: time in a collate_fn of the script's own on native batches, on the consumer's
            thread. High: it is worth making faster, or doing on the GPU.
        verified_samples: samples that native="verify" found to be the same.
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
            that belong to epochs on torch's path.
        first_batches: native epochs whose first batch was delivered.
        iter_ns: of those, the time in iter() before the native epoch began: looking at dataset and
            transforms, making the sampler's iterator, opening a native loader where none is idle.
        first_batch_ns: of those, the time from there until the first batch was ready. At best it
            is the work on one batch divided by the decode threads; more where the sampler takes
            its time (a permutation of many indices), or files come late.
        open_ns: time that opening native loaders took, at most once an epoch.
        threads_created, allocations, allocated_bytes: by native loaders, since they were opened.
            They stand still from the second epoch on.
        n_threads: decode threads. n_slots, slot_bytes: batch buffers. read_depth: files that may
            be in flight.
        reader: "uring", "pread", or "" before anything ran; reader_reason: why that one.
        cpu: instructions that the pixels' code uses: "scalar", "sse41", "avx2" or "avx512".
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
            From storage_ns on they add up to data_wait_ns exactly.
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
    copied_batches: int = 0
    copied_bytes: int = 0
    copy_ns: int = 0
    read_files: int = 0
    read_opens: int = 0
    read_bytes: int = 0
    read_ns: int = 0
    decode_ns: int = 0
    transform_ns: int = 0
    starved_ns: int = 0
    worker_cpu_ns: int = 0
    worker_idle_ns: int = 0
    wait_idle_ns: int = 0
    fallback_ns: int = 0
    collate_ns: int = 0
    verified_samples: int = 0
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
    first_batches: int = 0
    iter_ns: int = 0
    first_batch_ns: int = 0
    open_ns: int = 0
    threads_created: int = 0
    allocations: int = 0
    allocated_bytes: int = 0
    n_threads: int = 0
    n_slots: int = 0
    slot_bytes: int = 0
    read_depth: int = 0
    reader: str = ""
    reader_reason: str = ""
    cpu: str = ""
    steps: np.ndarray = field(default_factory=lambda: np.empty(0, STEP_DTYPE), compare=False)

    def __sub__(self, earlier: Stats) -> Stats:
        if not isinstance(earlier, Stats):
            return NotImplemented
        changes: dict[str, Any] = {
            name: getattr(self, name) - getattr(earlier, name) for name in _COUNTERS
        }
        # Records move and go with their native loaders; the time of the request names a step.
        known = np.isin(self.steps["request_ns"], earlier.steps["request_ns"])
        return replace(self, steps=self.steps[~known], **changes)

    @property
    def images_per_second(self) -> float:
        """Samples per second of the native part of wall_ns: the speed of loader and consumer
        together. On torch's path samples are not counted."""
        return self.samples / (self._native_wall_ns / 1e9) if self._native_wall_ns else 0.0

    @property
    def _native_wall_ns(self) -> int:
        return self.wall_ns - self.torch_wall_ns

    @property
    def _native_wait_ns(self) -> int:
        return self.data_wait_ns - self.torch_wait_ns

    @property
    def pillow_count(self) -> int:
        """Samples that took the slow path through Pillow."""
        return self.fallback_samples

    @property
    def data_wait_share(self) -> float:
        """Share of the wall time that the consumer waited for data, 0 to 1. Low is good."""
        return min(1.0, self.data_wait_ns / self.wall_ns) if self.wall_ns else 0.0

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
    def worker_busy_share(self) -> float:
        """Share of the native part of wall_ns that the decode threads worked, 0 to 1."""
        total = self.n_threads * self._native_wall_ns
        return min(1.0, (self.decode_ns + self.transform_ns) / total) if total else 0.0

    @property
    def wait_busy_share(self) -> float:
        """Share of the decode threads that worked while native steps waited for data, 0 to 1."""
        total = self.n_threads * self._native_wait_ns
        return max(0.0, 1 - self.wait_idle_ns / total) if total else 0.0

    def report(self) -> str:
        """Text for a person: one sentence of verdict, then the numbers behind it."""
        return "\n".join([verdict(self), *_table(self)])


@dataclass
class PythonCounters:
    """What is counted on the consumer's thread, beside the native loaders' own counters."""

    collate_ns: int = 0
    verified_samples: int = 0
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


# ---- the verdict ---------------------------------------------------------------------------------


def verdict(stats: Stats) -> str:
    """The first line of the report."""
    if stats.path == "torch":
        if stats.reasons == (OFF,):
            return f"torch's own path, as {OFF}; {_waited(stats)}"
        why = stats.reasons[0] if stats.reasons else "the reason is not known"
        return f"fell back to torch: {why}. {_waited(stats)}"
    if not stats.batches:
        return "nothing to report: no batch was delivered yet"
    if stats.path == "watched" and stats.data_wait_share < _NO_STALL:
        return f"no stall: {_waited(stats)}"
    if stats.data_wait_share < _NO_STALL:
        return (
            f"no stall: steps waited {_percent(stats.data_wait_share)} of the time for data; the "
            f"decode threads were busy {_percent(stats.worker_busy_share)} of it"
        )
    if _start_share(stats) > 0.5:
        return (
            f"start-up: most of the wait for data was for the first batch of an epoch; "
            f"{_waited(stats)}"
        )
    if stats.path == "watched":
        return (
            f"stalled: {_waited(stats)}, {stats.data_wait_ns / 1e9:.2f} of "
            f"{stats.wall_ns / 1e9:.2f} s; why can't be told from outside of this loader"
        )
    return f"{_bottleneck(stats)}; {_waited(stats)}"


def _bottleneck(stats: Stats) -> str:
    busy_ns = stats.decode_ns + stats.transform_ns
    if 2 * stats.fallback_ns > stats._native_wait_ns:
        return (
            f"Pillow-bound: {stats.fallback_samples} of {stats.samples} samples went through "
            f"Pillow, one by one ({_causes(stats)}); convert those files to ordinary JPEGs"
        )
    busy = _percent(stats.wait_busy_share)
    if stats.wait_busy_share >= 0.6:
        if stats.worker_cpu_ns < 0.7 * busy_ns:
            return (
                f"CPU-starved: the {stats.n_threads} decode threads had work but got only "
                f"{_percent(stats.worker_cpu_ns / busy_ns)} of a core each; give the process more "
                "cores, or fewer threads elsewhere"
            )
        stage = "decode" if stats.decode_ns >= stats.transform_ns else "transform"
        return (
            f"{stage}-bound: {busy} of the {stats.n_threads} decode threads worked while steps "
            f"waited (decode is {_percent(stats.decode_ns / busy_ns)} of their work); more cores "
            "or smaller files help"
        )
    latency_ms = stats.read_ns / max(1, stats.read_files) / 1e6
    files = (
        f"a file took {latency_ms:.1f} ms to read, with up to {stats.read_depth} in flight "
        f"({stats.reader})"
    )
    if stats.wait_busy_share < 0.4:
        return (
            f"storage-bound: only {busy} of the decode threads had work while steps waited; {files}"
        )
    return f"mixed: {busy} of the decode threads had work while steps waited; {files}"


def _start_share(stats: Stats) -> float:
    """Share of the wait that fell on the first step of each epoch."""
    steps = stats.steps
    total = int(steps["data_wait_ns"].sum()) if len(steps) else 0
    if not total or not stats.epochs:
        return 0.0
    first = np.concatenate([[True], steps["epoch"][1:] != steps["epoch"][:-1]])
    # Where an epoch is one batch, its first step says nothing about the start.
    if 2 * int(first.sum()) > len(steps):
        return 0.0
    return int(steps["data_wait_ns"][first].sum()) / total


def _waited(stats: Stats) -> str:
    text = f"steps waited {_percent(stats.data_wait_share)} of the time for data"
    # Where torch's path had a part, share and rate would be of different epochs.
    if stats.samples and not stats.torch_batches:
        text += f", at {stats.images_per_second:,.0f} images/s"
    return text


def _causes(stats: Stats) -> str:
    names = ("format", "kind", "damaged", "read", "limit")
    counts = {name: getattr(stats, f"fallback_{name}") for name in names}
    return ", ".join(f"{name} {count}" for name, count in counts.items() if count)


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %" if share >= 0.1 or share == 0 else f"{100 * share:.1f} %"


# ---- the table -----------------------------------------------------------------------------------


def _table(stats: Stats) -> list[str]:
    rows = [("path", stats.path)]
    rows += [("", reason) for reason in stats.reasons[1:]]  # the verdict has the first one
    rows += [
        ("delivered", _delivered(stats)),
        ("wall time", f"{stats.wall_ns / 1e9:.2f} s"),
        ("waited", f"{stats.host_wait_ns / 1e9:.3f} s in next(), {stats.data_wait_ns / 1e9:.3f} s "
                   "of it for data"),
    ]
    if _n_native_batches(stats):
        pillow = f"{stats.fallback_samples:,} through Pillow"
        causes = _causes(stats)
        cpu = f" ({stats.cpu})" if stats.cpu else ""
        rows += [
            ("decoded", f"{stats.native_samples:,} natively, " + pillow
                        + (f" ({causes}; {stats.fallback_s:.2f} s)" if causes else "")),
            ("threads", f"{stats.n_threads} decoding{cpu}: decode {stats.decode_s:.2f} core-s, "
                        f"transform {stats.transform_s:.2f}, CPU time "
                        f"{stats.worker_cpu_ns / 1e9:.2f} s"),
            ("reader", f"{stats.reader} ({stats.reader_reason}): {stats.read_files:,} files, "
                       f"{stats.read_bytes / 1e6:,.1f} MB, "
                       f"{stats.read_ns / max(1, stats.read_files) / 1e6:.2f} ms a file"),
            ("slots", f"{stats.n_slots} of {stats.slot_bytes / 1e6:.1f} MB; "
                      f"{stats.copied_batches} batches copied out"),
        ]
    if stats.first_batches:
        rows.append(("start", _start(stats)))
    if stats.collate_ns:
        rows.append(("collate", f"{stats.collate_ns / 1e9:.3f} s in collate_fn, in the step's way"))
    if stats.verified_samples:
        rows.append(("verified", f"{stats.verified_samples:,} samples, all the same"))
    if stats.errors:
        rows.append(("errors", f"{stats.errors} batches"))
    return [f"  {name:<10} {text}" for name, text in rows]


def _n_native_batches(stats: Stats) -> int:
    return 0 if stats.path == "watched" else stats.batches - stats.torch_batches


def _start(stats: Stats) -> str:
    n = stats.first_batches
    return (
        f"first batch {stats.first_batch_s:.3f} s after iter()"
        + (f", mean of {n} epochs" if n > 1 else "")
        + f"; {stats.iter_ns / n / 1e9:.3f} s of it before the first index; "
        f"opening took {stats.open_ns / 1e9:.3f} s"
    )


def _delivered(stats: Stats) -> str:
    n_native = _n_native_batches(stats)
    if stats.path == "watched":
        return f"{stats.batches:,} batches, {stats.epochs} epochs"
    parts = [f"{stats.samples:,} samples in {n_native:,} batches natively"] if n_native else []
    if stats.torch_batches:
        parts.append(f"{stats.torch_batches:,} batches on torch's path")
    return ", ".join([*(parts or ["nothing"]), f"{stats.epochs} epochs"])
