"""The data of a report's charts, small enough to be embedded in the page.

All charts share the x-axis: the position of a step in its run, from 0. Steps are summed in bins of
equal size, one step per bin if there are few steps; the page merges bins into the columns that it
draws. Times are microseconds.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from feedmill.profiling.counting.records import CAUSES
from feedmill.profiling.log.reader import Run

_NS_PER_US = 1000


def timeline(run: Run, most_bins: int) -> dict[str, Any]:
    """The data of a run's charts, ready for JSON. Every list has one number per bin.

    Args:
        most_bins: at most this many bins, from 1. More steps are summed, several per bin.

    Returns:
        A dict: n_steps; bin_steps, the steps per bin (the last bin may have fewer); sums, by
        "compute_ns", "overhead_ns" and the causes that occurred; longest, the longest step's
        duration; begin_ms since the run's first request; ready (the sum of ready_batches) and
        least_ready; worst, the bin's step that waited longest; epochs, [position, epoch] of each
        epoch's first step; system, see _system().
    """
    if not len(run.steps):
        return {"n_steps": 0}
    steps = run.steps[np.argsort(run.steps["request_ns"], kind="stable")]
    size = -(-len(steps) // most_bins)
    starts = np.arange(0, len(steps), size)
    summed = ["compute_ns", "overhead_ns", *(name for name in CAUSES if steps[name].any())]
    duration = steps["host_wait_ns"] + steps["compute_ns"]
    begin = steps["request_ns"].astype(np.int64) - int(steps["request_ns"][0])
    return {
        "n_steps": len(steps),
        "bin_steps": size,
        "sums": {name: _us(np.add.reduceat(steps[name], starts)) for name in summed},
        "longest": _us(np.maximum.reduceat(duration, starts)),
        "begin_ms": (begin[starts] // 1_000_000).tolist(),
        "ready": np.add.reduceat(steps["ready_batches"].astype(np.int64), starts).tolist(),
        "least_ready": np.minimum.reduceat(steps["ready_batches"], starts).tolist(),
        "worst": _worst(steps, starts),
        "epochs": _epochs(steps),
        "system": _system(run, steps, most_bins),
    }


def _us(ns: np.ndarray) -> list[int]:
    microseconds: list[int] = ((ns + _NS_PER_US // 2) // _NS_PER_US).tolist()
    return microseconds


def _worst(steps: np.ndarray, starts: np.ndarray) -> dict[str, list[int]]:
    """The step of each bin that waited longest; the first of equal ones."""
    ends = np.append(starts[1:], len(steps))
    waits = steps["data_wait_ns"]
    at = np.array([a + int(np.argmax(waits[a:b])) for a, b in zip(starts, ends, strict=True)])
    worst = steps[at]
    pieces = np.stack([worst[name] for name in CAUSES])
    return {
        "position": at.tolist(),
        "step": worst["step"].tolist(),
        "epoch": worst["epoch"].tolist(),
        "phase": worst["phase"].tolist(),
        "wait": _us(worst["data_wait_ns"]),
        "cause": np.argmax(pieces, axis=0).tolist(),
        "cause_wait": _us(pieces.max(axis=0)),
        "index": worst["last_index"].tolist(),
    }


def _epochs(steps: np.ndarray) -> list[list[int]]:
    """[position, epoch] of each epoch's first step."""
    epochs = steps["epoch"].astype(np.int64)
    at = np.flatnonzero(np.diff(epochs, prepend=epochs[0] - 1))
    return [[int(position), int(epochs[position])] for position in at]


# ---- system samples ------------------------------------------------------------------------------


def _system(run: Run, steps: np.ndarray, most: int) -> dict[str, list[float | None]]:
    """Measurements of the process and host: "at", their x positions, and a list for each series.

    If there are more than `most`, adjacent ones are averaged.
    """
    lines = [line for line in run.system if _number(line.get("clock_ns")) is not None]
    if not lines:
        return {}
    clocks = np.array([line["clock_ns"] for line in lines], float)
    last = steps[-1]
    end = int(last["request_ns"]) + int(last["host_wait_ns"]) + int(last["compute_ns"])
    requests = np.append(steps["request_ns"].astype(float), end)
    size = -(-len(lines) // most)
    at = np.interp(clocks, requests, np.arange(len(requests)))
    series = {"at": _mean([float(value) for value in at], size)}
    for name, value in _SERIES.items():
        if name == "read" and run.path != "native":
            continue  # reads of torch's workers are not counted
        values = [value(line) for line in lines]
        if any(one is not None for one in values):
            series[name] = _mean(values, size)
    return series


def _number(value: Any) -> float | None:
    """The value if it is a finite number, else None."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None


def _rate(line: dict[str, Any], name: str) -> float | None:
    """A counter's rate of change in MB/s."""
    change, interval = _number(line.get(name)), _number(line.get("interval_ns"))
    return change / interval * 1e3 if change is not None and interval else None


def _scaled(line: dict[str, Any], name: str, scale: float) -> float | None:
    value = _number(line.get(name))
    return None if value is None else value * scale


def _process_share(line: dict[str, Any]) -> float | None:
    """The CPU use of the process, in percent of its usable CPUs."""
    used, usable = _number(line.get("process_cpu")), _number(line.get("usable_cpus"))
    return 100 * used / usable if used is not None and usable else None


def _gpu(line: dict[str, Any], name: str, scale: float) -> float | None:
    """The mean of a value over the GPUs, scaled."""
    gpus = line.get("gpu")
    if not isinstance(gpus, list):
        return None
    values = [_number(gpu.get(name)) for gpu in gpus if isinstance(gpu, dict)]
    known = [value for value in values if value is not None]
    return sum(known) / len(known) * scale if known else None


_SERIES: dict[str, Callable[[dict[str, Any]], float | None]] = {
    "process_share": _process_share,
    "host_cpu": lambda line: _scaled(line, "host_cpu", 100),
    "rss": lambda line: _scaled(line, "rss_bytes", 1e-6),
    "read": lambda line: _rate(line, "read_bytes"),
    "device_read": lambda line: _rate(line, "device_read_bytes"),
    "gpu_busy": lambda line: _gpu(line, "busy", 100),
    "gpu_memory": lambda line: _gpu(line, "memory_bytes", 1e-6),
}


def _mean(values: list[float | None], size: int) -> list[float | None]:
    parts = [values[i : i + size] for i in range(0, len(values), size)]
    known = [[value for value in part if value is not None] for part in parts]
    return [round(sum(part) / len(part), 3) if part else None for part in known]


def system_mean(run: Run, name: str) -> float | None:
    """The mean of a series over the run, weighted by the measurements' intervals."""
    total = weights = 0.0
    for line in run.system:
        value, weight = _SERIES[name](line), _number(line.get("interval_ns")) or 1.0
        if value is not None:
            total, weights = total + value * weight, weights + weight
    return total / weights if weights else None
