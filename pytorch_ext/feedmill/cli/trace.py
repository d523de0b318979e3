"""``feedmill trace``: converts a log to a trace for https://ui.perfetto.dev or chrome://tracing.

The format is Chrome's trace event format: JSON objects with a phase "ph", times "ts" and "dur" in
microseconds, and a track "pid", "tid". Each loader is shown as a process, with these tracks:

- training loop: each step's wait, and the script's work until the next request. Within a wait, its
  causes are shown one after the other: the log has their durations, but not their times;
- batches ready: the number of ready batches at each request;
- GPU stall: how long the GPU was idle because a step's batch was late, if that was measured;
- from the "system" lines: CPU use of process and host, memory, reads from storage, GPUs.

If the log has samples, also:

- decode N: the samples of a decode thread. Within a sample, decoding, transforming and waiting for
  a CPU are shown one after the other, as only their durations are known;
- reads: the files being read, and their number;
- slot N: the states of a batch buffer: filling, ready, and borrowed by the consumer.

torch is not needed to read a log and to convert it.
"""

from __future__ import annotations

import argparse
import heapq
import itertools
import json
import os
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from feedmill.profiling.counting.records import PHASES, names_of
from feedmill.profiling.log.reader import Run, read_log

_NO_SLOT = _NO_WORKER = (1 << 32) - 1
# Number of batches that are searched for the batch of the next step. Batches that failed or were
# dropped have no step, and are skipped.
_MOST_SKIPPED = 1024
# Causes of a wait, in the order in which they occur.
_CAUSES = (
    "python", "storage", "slot_wait", "cpu_queue_decode", "cpu_queue_transform", "decode",
    "transform", "starved", "h2d", "unattributed",
)
_LOOP, _SLOT, _WORKER = range(3)  # kinds of tracks, in the order of display
_NAMES = ("training loop", "slot {}", "decode {}")

_Record = dict[str, Any]


# ---- the command ---------------------------------------------------------------------------------


def add_trace(commands: Any) -> None:
    """Adds the command to an argparse parser's subparsers."""
    trace = commands.add_parser(
        "trace",
        help="convert the log of a run to a trace for Perfetto",
        description=(
            "Converts LOG, a file that `feedmill run --log` or DataLoader(log=...) has written, to "
            "a trace. Open it at https://ui.perfetto.dev or chrome://tracing. If the log was "
            "written with --log-samples or log_samples=True, the trace also shows decode threads, "
            "files and batch slots."
        ),
    )
    trace.add_argument("log", metavar="LOG", help="the log of a run")
    trace.add_argument("-o", "--output", metavar="FILE",
                       help="where to write the trace (default: LOG with the suffix .trace.json)")
    trace.set_defaults(run=_trace)


def _trace(arguments: argparse.Namespace, parser: argparse.ArgumentParser) -> int:
    output = arguments.output or f"{os.path.splitext(arguments.log)[0]}.trace.json"
    try:
        has_samples = write_trace(arguments.log, output)
    except (OSError, ValueError) as error:
        parser.error(str(error))
    print(output)
    if not has_samples:
        print("The log has no samples, so the trace does not show decode threads, files and slots. "
              "Record them with --log-samples or DataLoader(log_samples=True).")
    return 0


def write_trace(log: str, output: str) -> bool:
    """Converts the file ``log`` to the file ``output``. Returns whether the log has samples.

    Raises:
        OSError: a file can't be read or written.
        ValueError: ``log`` is not a log.
    """
    runs = read_log(log, samples=True)
    with open(output, "w", encoding="utf-8") as file:
        file.write('{"displayTimeUnit":"ms","traceEvents":[\n')
        file.write(",\n".join(json.dumps(event) for event in trace_events(runs)))
        file.write("\n]}\n")
    return any(len(run.samples) for run in runs)


def trace_events(runs: Sequence[Run]) -> Iterator[_Record]:
    """The events of a trace.

    Args:
        runs: the runs of a log, with their samples; see read_log().
    """
    start_ns = _start_ns(runs)
    for number, run in enumerate(runs, 1):
        process = _Process(number, start_ns)
        yield process.named("process_name", 0, _title(run))
        yield from process.events(
            _as_dicts(run.steps, run.step_sources),
            _as_dicts(run.samples, run.sample_sources),
            run.system,
        )


def _title(run: Run) -> str:
    rank = "" if run.rank is None else f"rank {run.rank}: "
    place = os.path.basename(run.place or "loader")
    return f"feedmill {rank}{place} ({run.path}, pid {run.pid})"


def _start_ns(runs: Sequence[Run]) -> int:
    """The earliest time in the log, which is where the trace begins."""
    times = [int(run.steps["request_ns"].min()) for run in runs if len(run.steps)]
    times += [one["clock_ns"] - one["interval_ns"] for run in runs for one in run.system]
    for run in runs:
        for name in ("submitted_ns", "read_begin_ns"):
            known = run.samples[name][run.samples[name] > 0]
            times += [int(known.min())] if len(known) else []
    return min(times, default=0)


def _as_dicts(records: np.ndarray, sources: np.ndarray) -> list[_Record]:
    """Steps or samples as dicts, each with its source."""
    names = names_of(records.dtype)
    return [
        {"source": source, **dict(zip(names, row))}
        for source, row in zip(sources.tolist(), records.tolist(), strict=True)
    ]


def _grouped(records: Iterable[_Record], name: str) -> dict[Any, list[_Record]]:
    groups: dict[Any, list[_Record]] = defaultdict(list)
    for record in records:
        groups[record.get(name)].append(record)
    return groups


# ---- tracks --------------------------------------------------------------------------------------


class _Process:
    """The tracks of one loader."""

    def __init__(self, number: int, start_ns: int) -> None:
        self._pid = number
        self._start_ns = start_ns
        self._tracks: dict[tuple[int, int, int], int] = {}

    def events(
        self, steps: list[_Record], samples: list[_Record], system: list[_Record]
    ) -> Iterator[_Record]:
        for source, group in sorted(_grouped(steps, "source").items()):
            yield from self._loop(source, sorted(group, key=lambda step: step["request_ns"]))
        for source, group in sorted(_grouped(samples, "source").items()):
            yield from self._workers(source, group)
            returns = _returns([step for step in steps if step["source"] == source], group)
            yield from self._slots(source, group, returns)
        yield from self._reads(samples)
        yield from self._system(system)
        yield from self._track_names()

    # ---- events of a kind ------------------------------------------------------------------------

    def named(self, what: str, tid: int, name: str) -> _Record:
        return {"ph": "M", "name": what, "pid": self._pid, "tid": tid, "args": {"name": name}}

    def _us(self, ns: int) -> float:
        return ns / 1000

    def _span(self, tid: int, name: str, begin_ns: int, end_ns: int, **values: Any) -> _Record:
        return {
            "ph": "X", "name": name, "pid": self._pid, "tid": tid,
            "ts": self._us(begin_ns - self._start_ns), "dur": self._us(end_ns - begin_ns),
            "args": values,
        }

    def _counter(self, name: str, at_ns: int, value: float) -> _Record:
        return {
            "ph": "C", "name": name, "pid": self._pid, "tid": 0,
            "ts": self._us(at_ns - self._start_ns), "args": {"value": value},
        }

    def _track(self, kind: int, source: int, number: int = 0) -> int:
        return self._tracks.setdefault((kind, source, number), len(self._tracks) + 1)

    def _track_names(self) -> Iterator[_Record]:
        several = len({source for _, source, _ in self._tracks}) > 1
        for place, (kind, source, number) in enumerate(sorted(self._tracks)):
            tid = self._tracks[kind, source, number]
            name = _NAMES[kind].format(number) + (f" of {source}" if several else "")
            yield self.named("thread_name", tid, name)
            yield {"ph": "M", "name": "thread_sort_index", "pid": self._pid, "tid": tid,
                   "args": {"sort_index": place}}

    # ---- the consumer ----------------------------------------------------------------------------

    def _loop(self, source: int, steps: list[_Record]) -> Iterator[_Record]:
        tid = self._track(_LOOP, source)
        after = [step["request_ns"] for step in steps[1:]]
        for step, end_ns in itertools.zip_longest(steps, after):
            yield self._counter("batches ready", step["request_ns"], step["ready_batches"])
            if step["gpu_known"]:
                stall_ms = step["gpu_stall_ns"] / 1e6
                yield self._counter("GPU stall, ms", step["request_ns"], stall_ms)
            request_ns = step["request_ns"]
            return_ns = request_ns + step["host_wait_ns"]
            known = {name: step[name] for name in ("step", "epoch", "n_samples")}
            phase = PHASES[step["phase"]]
            yield self._span(tid, "wait", request_ns, return_ns, **known, phase=phase)
            yield from self._wait(tid, step, request_ns)
            if step["compute_ns"]:
                compute_ns = return_ns + step["compute_ns"]
                yield self._span(tid, "compute", return_ns, min(compute_ns, end_ns or compute_ns))

    def _wait(self, tid: int, step: _Record, begin_ns: int) -> Iterator[_Record]:
        parts = [(name, step[f"{name}_ns"]) for name in _CAUSES]
        parts.append(("overhead", step["overhead_ns"]))
        for name, part_ns in parts:
            if part_ns:
                yield self._span(tid, name, begin_ns, begin_ns + part_ns)
                begin_ns += part_ns

    # ---- samples ---------------------------------------------------------------------------------

    def _workers(self, source: int, samples: list[_Record]) -> Iterator[_Record]:
        for sample in samples:
            begin_ns, end_ns = sample["work_begin_ns"], sample["work_end_ns"]
            if sample["worker"] == _NO_WORKER or not begin_ns:
                continue
            tid = self._track(_WORKER, source, sample["worker"])
            names = ("batch", "file_bytes", "status")
            known = {name: sample[name] for name in names}
            yield self._span(tid, f"sample {sample['index']}", begin_ns, end_ns, **known)
            for name in ("decode", "transform", "starved"):
                part_ns = min(sample[f"{name}_ns"], end_ns - begin_ns)
                if part_ns:
                    yield self._span(tid, name, begin_ns, begin_ns + part_ns)
                    begin_ns += part_ns

    def _slots(
        self, source: int, samples: list[_Record], returns: dict[int, int]
    ) -> Iterator[_Record]:
        """
        Args:
            source, samples: the samples, and their source in the log.
            returns: batch number -> when the batch was delivered to the consumer.
        """
        batches = [one for one in _grouped(samples, "batch").values() if one[0]["slot"] != _NO_SLOT]
        for slot, in_slot in _grouped_batches(batches):
            tid = self._track(_SLOT, source, slot)
            for batch, after in itertools.zip_longest(in_slot, in_slot[1:]):
                number = batch[0]["batch"]
                ends = [("filling", max(sample["work_end_ns"] for sample in batch))]
                if number in returns:
                    ends.append(("ready", returns[number]))
                    if after and after[0]["released_ns"]:
                        ends.append(("borrowed", after[0]["released_ns"]))
                limit_ns = after[0]["slot_ns"] if after else max(end_ns for _, end_ns in ends)
                begin_ns = batch[0]["slot_ns"]
                for name, end_ns in ends:
                    end_ns = min(end_ns, limit_ns)
                    if end_ns > begin_ns:
                        yield self._span(tid, name, begin_ns, end_ns, batch=number)
                        begin_ns = end_ns

    def _reads(self, samples: list[_Record]) -> Iterator[_Record]:
        reads = sorted(
            (sample["read_begin_ns"], sample["read_end_ns"], sample["index"], sample["file_bytes"])
            for sample in samples
            if 0 < sample["read_begin_ns"] <= sample["read_end_ns"]
        )
        for lane, (begin_ns, end_ns, index, file_bytes) in _assign_lanes(reads):
            event = {"name": "read", "cat": "read", "id": f"{self._pid}.{lane}", "pid": self._pid,
                     "tid": 0}
            known = {"index": index, "file_bytes": file_bytes}
            begin_us, end_us = (self._us(ns - self._start_ns) for ns in (begin_ns, end_ns))
            yield {**event, "ph": "b", "ts": begin_us, "args": known}
            yield {**event, "ph": "e", "ts": end_us}
        changes = [(begin_ns, 1) for begin_ns, *_ in reads] + [(one[1], -1) for one in reads]
        n_open = 0
        for at_ns, change in sorted(changes):
            n_open += change
            yield self._counter("files in flight", at_ns, n_open)

    # ---- process and host ------------------------------------------------------------------------

    def _system(self, system: list[_Record]) -> Iterator[_Record]:
        for one in system:
            for name, value in _system_values(one):
                yield self._counter(name, one["clock_ns"] - one["interval_ns"], value)


def _system_values(one: _Record) -> Iterator[tuple[str, float]]:
    """The counters in a "system" line: (name, value over its interval)."""
    seconds = one["interval_ns"] / 1e9
    if seconds <= 0:
        return
    yield "CPUs used by the process", one["process_cpu"]
    if "host_cpu" in one:
        yield "CPU of the host, %", 100 * one["host_cpu"]
    if "rss_bytes" in one:
        yield "memory of the process, MB", one["rss_bytes"] / 1e6
    if "device_read_bytes" in one:
        yield "reads from storage, MB/s", one["device_read_bytes"] / seconds / 1e6
    for gpu in one.get("gpu", []):
        if "busy" in gpu:
            yield f"GPU {gpu['index']}, %", 100 * gpu["busy"]
        if "memory_bytes" in gpu:
            yield f"memory of GPU {gpu['index']}, MB", gpu["memory_bytes"] / 1e6


# ---- grouping ------------------------------------------------------------------------------------


def _returns(steps: list[_Record], samples: list[_Record]) -> dict[int, int]:
    """When each batch was delivered to the consumer, by batch number. Batch numbers include batches
    that failed or were dropped, step numbers do not: a step's batch is found by its last index and
    its size."""
    batches = sorted(_grouped(samples, "batch").items())
    found, place = {}, 0
    for step in sorted(steps, key=lambda one: one["step"]):
        for at in range(place, min(place + _MOST_SKIPPED, len(batches))):
            number, batch = batches[at]
            if (batch[0]["epoch"], len(batch)) == (step["epoch"], step["n_samples"]) and any(
                sample["index"] == step["last_index"] for sample in batch
            ):
                found[number] = step["request_ns"] + step["host_wait_ns"]
                place = at + 1
                break
    return found


def _grouped_batches(batches: list[list[_Record]]) -> list[tuple[int, list[list[_Record]]]]:
    """(slot, its batches in order) for each slot, sorted by slot."""
    slots: dict[int, list[list[_Record]]] = defaultdict(list)
    for batch in sorted(batches, key=lambda one: one[0]["slot_ns"]):
        slots[batch[0]["slot"]].append(batch)
    return sorted(slots.items())


def _assign_lanes(spans: Iterable[tuple[int, ...]]) -> Iterator[tuple[int, tuple[int, ...]]]:
    """Assigns spans (begin, end, ...), sorted by their begin, to the fewest lanes in which no two
    overlap. Yields (lane, span)."""
    free: list[int] = []
    ends: list[tuple[int, int]] = []
    n_lanes = 0
    for span in spans:
        while ends and ends[0][0] <= span[0]:
            heapq.heappush(free, heapq.heappop(ends)[1])
        if free:
            lane = heapq.heappop(free)
        else:
            lane, n_lanes = n_lanes, n_lanes + 1
        heapq.heappush(ends, (span[1], lane))
        yield lane, span
