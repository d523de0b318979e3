"""Computes the Stats, the verdict and the report of a run from its log."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import numpy as np

from feedmill.profiling.counting.records import CAUSES, STORAGE_PARTS
from feedmill.profiling.log.reader import Run
from feedmill.profiling.page.timeline import system_mean
from feedmill.profiling.report import terms
from feedmill.profiling.report.stats import KEPT_SLOW_SAMPLES, SlowSample, Stats
from feedmill.profiling.report.targets import Limits, Target, targets
from feedmill.profiling.report.verdict import NO_STALL, ReportContext, verdict
from feedmill.profiling.report.wording import percent

# Types of dataclass fields by their annotations, which are strings.
_KINDS: dict[str, type] = {"int": int, "str": str}


def stats_of(run: Run) -> Stats:
    """The totals at the latest end of an epoch; if no epoch ended, those of the logged steps."""
    if run.stats is None:
        values = _from_steps(run)
    else:
        known = Stats(path=run.path).flat()
        values = {name: value for name, value in run.stats.items()
                  if name in known and type(value) is type(known[name])}
        values.setdefault("path", run.path)
    reasons = run.meta.get("reasons")
    return Stats.from_flat(
        values,
        reasons=tuple(map(str, reasons)) if isinstance(reasons, list) else (),
        slow_samples=_slow_samples(run),
        steps=run.steps,
    )


def _slow_samples(run: Run) -> tuple[SlowSample, ...]:
    kinds = {one.name: _KINDS[str(one.type)] for one in fields(SlowSample)}
    lines: list[dict[str, Any]] = [{name: line.get(name) for name in kinds} for line in run.slow]
    whole = [
        line for line in lines if all(type(line[name]) is kind for name, kind in kinds.items())
    ]
    return tuple(SlowSample(**line) for line in whole[:KEPT_SLOW_SAMPLES])


def report_context_of(run: Run) -> ReportContext:
    """The report's context, from the log's "system" lines."""
    means = {name: system_mean(run, name) for name in ("gpu_busy", "process_share", "host_cpu")}
    gpu, cpu, host = (None if mean is None else mean / 100 for mean in means.values())
    return ReportContext(uses_cuda=gpu is not None, gpu_busy=gpu, cpu_share=cpu, host_share=host)


def targets_of(run: Run) -> list[Target]:
    """The targets, and how this run meets them."""
    return targets(stats_of(run), report_context_of(run), Limits())


def verdict_of(run: Run) -> str:
    """The verdict: a report's first sentence."""
    if run.stats is None and len(run.steps):
        return _unfinished(run)
    return verdict(stats_of(run), report_context_of(run))


def report_of(run: Run) -> str:
    """The report as text."""
    if run.stats is None and len(run.steps):
        return "\n".join([_unfinished(run), *_wait_lines(run)])
    return stats_of(run).report(around=report_context_of(run))


def run_name(run: Run) -> str:
    """A name for a run: its rank, the line of its script, and its process."""
    parts = [f"rank {run.rank}" if run.rank is not None else "", run.place or "",
             f"pid {run.pid}" if run.pid is not None else ""]
    return ", ".join(part for part in parts if part) or "run"


def after_stats(run: Run) -> int:
    """Number of steps after the latest totals, which belong to an epoch that did not end."""
    batches = run.stats.get("batches") if run.stats else None
    return max(0, len(run.steps) - batches) if isinstance(batches, int) else 0


def loop_ns(steps: np.ndarray) -> int:
    """Total time of the steps: waits, overhead and compute."""
    return int(steps["host_wait_ns"].sum()) + int(steps["compute_ns"].sum())


def wait_parts(run: Run) -> list[tuple[str, int]]:
    """The causes that steps waited for, with nanoseconds, the largest first."""
    totals = [(name, int(run.steps[name].sum())) for name in CAUSES]
    return sorted(((name, ns) for name, ns in totals if ns), key=lambda part: -part[1])


def _from_steps(run: Run) -> dict[str, Any]:
    """The counters, by flat names, of a run that was killed in its first epoch."""
    steps, meta, path = run.steps, run.meta, run.path
    if not len(steps):
        return {"path": "none"}
    values: dict[str, Any] = {
        "path": path,
        "batches": len(steps),
        "samples": int(steps["n_samples"].sum()),
        "epochs": len(_epochs(steps)),
        "host_wait_ns": int(steps["host_wait_ns"].sum()),
        "data_wait_ns": int(steps["data_wait_ns"].sum()),
        "wall_ns": sum(_wall_ns(part) for part in _epochs(steps)),
    }
    values |= {f"wait_{name}": int(steps[name].sum()) for name in CAUSES}
    values |= {name: int(steps[name].sum()) for name in STORAGE_PARTS}
    measured = steps[steps["gpu_known"] > 0]
    values |= {
        "gpu_steps": len(measured),
        "gpu_stall_ns": int(measured["gpu_stall_ns"].sum()),
        "gpu_copy_ns": int(measured["gpu_copy_ns"].sum()),
        "gpu_wall_ns": loop_ns(measured),
    }
    if path != "native":
        values["torch_batches"] = values["batches"]
        values["torch_wait_ns"] = values["data_wait_ns"]
        values["torch_wall_ns"] = values["wall_ns"]
    for field, name, kind in (
        ("n_threads", "threads", int), ("n_slots", "slots", int), ("slot_bytes", "slot_bytes", int),
        ("reader", "reader", str), ("reader_reason", "reader_reason", str), ("cpu", "cpu", str),
    ):
        if isinstance(meta.get(name), kind):
            values[field] = meta[name]
    return values


def _epochs(steps: np.ndarray) -> list[np.ndarray]:
    return np.split(steps, np.flatnonzero(np.diff(steps["epoch"].astype(np.int64))) + 1)


def _wall_ns(epoch: np.ndarray) -> int:
    """Time from an epoch's first request to its last return."""
    last = epoch[-1]
    return max(0, int(last["request_ns"]) + int(last["host_wait_ns"]) - int(epoch[0]["request_ns"]))


def _unfinished(run: Run) -> str:
    """A verdict from the steps alone, as the decode threads' counters are logged only at the end of
    an epoch."""
    total_ns, waits = loop_ns(run.steps), wait_parts(run)
    waited_ns = sum(ns for _, ns in waits)
    share = waited_ns / total_ns if total_ns else 0.0
    waited = f"steps waited {percent(share)} of the time for data"
    if share < NO_STALL:
        return f"no stall so far (no epoch has ended): {waited}"
    name, ns = waits[0]
    term = terms.cause(name, run.path)
    text = (
        f"stalled (no epoch has ended): {waited}, mainly ({percent(ns / waited_ns)} of the wait) "
        f"for: {term.label}"
    )
    return f"{text}; what helps: {term.remedy}" if term.remedy else text


def _wait_lines(run: Run) -> list[str]:
    total_ns = loop_ns(run.steps)
    rows = [
        ("delivered", f"{len(run.steps):,} batches, {len(_epochs(run.steps))} epochs started"),
        ("wall time", f"{total_ns / 1e9:.2f} s in steps"),
    ]
    for name, ns in wait_parts(run):
        label = terms.cause(name, run.path).label
        rows.append(("waited", f"{ns / 1e9:.3f} s, {percent(ns / total_ns)}, for: {label}"))
    return [f"  {name:<10} {text}" for name, text in rows]
