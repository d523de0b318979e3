"""The report: the verdict, targets, problems, and the numbers behind them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from feedmill.report.capacity import seconds_a_step
from feedmill.report.checks import problems
from feedmill.report.verdict import Around, verdict
from feedmill.report.wording import CAUSE_WORDS, cpus, fallback_causes, percent

if TYPE_CHECKING:
    from feedmill.report.stats import Stats

_NAME_WIDTH = 10
_LEAST_SHARE = 0.01  # of a wait, for its cause to be listed


@dataclass(frozen=True)
class Limits:
    """Targets; as of Stats.report(). ValueError for numbers that are none."""

    wait_ms: float
    gpu: float
    cpu: tuple[float, float]

    def __post_init__(self) -> None:
        low, high = self.cpu
        if not (self.wait_ms > 0 and 0 <= self.gpu <= 1 and 0 <= low <= high <= 1):
            raise ValueError(
                f"wait_ms is {self.wait_ms!r}, gpu {self.gpu!r} and cpu {self.cpu!r}; they must be "
                "a number above 0, a share from 0 to 1, and two such shares in order"
            )


def report(stats: Stats, around: Around, limits: Limits) -> str:
    """Text of several lines; the first one is the verdict."""
    rows = [*_targets(stats, around, limits)]
    for one in problems(stats, around):
        rows += [("problem", one.problem), ("diagnosis", one.diagnosis), ("remedy", one.remedy)]
    rows += _table(stats)
    return "\n".join(
        [verdict(stats, around), *(f"  {name:<{_NAME_WIDTH}} {text}" for name, text in rows)]
    )


# ---- targets -------------------------------------------------------------------------------------


def _targets(stats: Stats, around: Around, limits: Limits) -> list[tuple[str, str]]:
    if not stats.batches:
        return []
    return [_wait(stats, limits), _gpu(stats, around, limits), _cpu(stats, limits)]


def _wait(stats: Stats, limits: Limits) -> tuple[str, str]:
    steps = stats.steps_of("steady")
    when = "steady state"
    if not len(steps):
        steps, when = stats.steps, "too few steps for a steady state"
    wait_ms = float(steps["data_wait_ns"].mean()) / 1e6 if len(steps) else 0.0
    return (
        _met(wait_ms < limits.wait_ms),
        f"wait for data {wait_ms:.1f} ms a batch ({when}); target: under {limits.wait_ms:g} ms",
    )


def _gpu(stats: Stats, around: Around, limits: Limits) -> tuple[str, str]:
    steady = len(stats.steps_of("steady")) > 0
    au = stats.steady_au if steady else stats.au
    gpu = "how busy the GPU itself is, is not known" if around.uses_cuda else "no GPU is in use"
    return (
        _met(au > limits.gpu),
        f"accelerator utilization (AU) {percent(au)}: the share of time without a wait for data, "
        f"as {gpu}; target: above {percent(limits.gpu)}",
    )


def _cpu(stats: Stats, limits: Limits) -> tuple[str, str]:
    low, high = limits.cpu
    target = f"target: {percent(low)[:-2]}-{percent(high)}"
    if not stats.elapsed_ns or not stats.usable_cpus:
        return "not known", f"CPU; {target} of the usable CPUs"
    share = stats.process_cpu_ns / stats.elapsed_ns / stats.usable_cpus
    side = "" if share <= high else " (the CPUs are the limit)"
    if share < low:
        side = " (there are CPUs to spare)" if _busy(stats) < high else " (others have the rest)"
    return (
        _met(low <= share <= high),
        f"CPU {percent(share)} of {cpus(stats.usable_cpus)} by this process and its workers; "
        f"{target}{side}",
    )


def _busy(stats: Stats) -> float:
    return stats.host_busy_ns / stats.elapsed_ns / stats.usable_cpus


def _met(is_met: bool) -> str:
    return "met" if is_met else "missed"


# ---- the table -----------------------------------------------------------------------------------


def _table(stats: Stats) -> list[tuple[str, str]]:
    rows = [("path", stats.path)]
    rows += [("", reason) for reason in stats.reasons[1:]]  # the verdict has the first one
    rows += [
        ("delivered", _delivered(stats)),
        ("wall time", f"{stats.wall_ns / 1e9:.2f} s"),
        ("waited", f"{stats.host_wait_ns / 1e9:.3f} s in next(), {stats.data_wait_ns / 1e9:.3f} s "
                   f"of it for data ({percent(stats.data_wait_share)} of the wall time)"),
        *_waits(stats),
    ]
    if _n_native_batches(stats):
        rows += _native_rows(stats)
    if stats.first_batches:
        rows.append(("start", _start(stats)))
    if stats.collate_ns:
        rows.append(("collate", f"{stats.collate_ns / 1e9:.3f} s in collate_fn, in the step's way"))
    if stats.verified_samples:
        rows.append(("verified", f"{stats.verified_samples:,} samples, all the same"))
    if stats.errors:
        rows.append(("errors", f"{stats.errors} batches"))
    return rows


def _waits(stats: Stats) -> list[tuple[str, str]]:
    steps = stats.steps_of("steady")
    if not len(steps):
        return []
    wait = stats.percentiles("data_wait_ns")
    rows = [
        ("a step", f"{1e3 * seconds_a_step(steps):.1f} ms in the steady state; its wait p50 "
                   f"{wait.p50 / 1e6:.1f}, p90 {wait.p90 / 1e6:.1f}, p99 {wait.p99 / 1e6:.1f}, "
                   f"max {wait.max / 1e6:.1f} ms"),
    ]
    waits = stats.waits()
    total_ns = sum(waits.values())
    words = CAUSE_WORDS
    if not _n_native_batches(stats):
        words = {**words, "python_ns": "Python workers"}
    causes = [
        f"{words[name]} {ns / len(steps) / 1e6:.2f} ms ({percent(ns / total_ns)})"
        for name, ns in sorted(waits.items(), key=lambda one: -one[1])
        if ns > _LEAST_SHARE * total_ns
    ]
    return [*rows, ("waits for", ", ".join(causes))] if causes else rows


def _native_rows(stats: Stats) -> list[tuple[str, str]]:
    causes = fallback_causes(stats)
    cpu = f" ({stats.cpu})" if stats.cpu else ""
    return [
        ("decoded", f"{stats.native_samples:,} natively, {stats.fallback_samples:,} through Pillow"
                    + (f" ({causes}; {stats.fallback_s:.2f} s)" if causes else "")),
        ("threads", f"{stats.n_threads} decoding{cpu}: decode {stats.decode_s:.2f} core-s, "
                    f"transform {stats.transform_s:.2f}, CPU time "
                    f"{stats.worker_cpu_ns / 1e9:.2f} s; "
                    f"{stats.starved_ns / 1e9:.2f} s with work and no core"),
        ("reader", f"{stats.reader} ({stats.reader_reason}): {stats.read_files:,} files, "
                   f"{stats.read_bytes / 1e6:,.1f} MB, "
                   f"{stats.read_ns / max(1, stats.read_files) / 1e6:.2f} ms a file"),
        ("slots", f"{stats.n_slots} of {stats.slot_bytes / 1e6:.1f} MB; "
                  f"{stats.copied_batches} batches copied out"),
    ]


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
    epochs = f"{stats.epochs} epoch{'s' if stats.epochs > 1 else ''}"
    if stats.path == "watched":
        return f"{stats.batches:,} batches, {epochs}"
    parts = []
    if n_native:
        rate = "" if stats.torch_batches else f" ({stats.images_per_second:,.0f} images/s)"
        parts.append(f"{stats.samples:,} samples in {n_native:,} batches natively{rate}")
    if stats.torch_batches:
        parts.append(f"{stats.torch_batches:,} batches on torch's path")
    return ", ".join([*(parts or ["nothing"]), epochs])
