"""The report: the verdict, targets, problems, and the numbers behind them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from feedmill.profiling.report import terms
from feedmill.profiling.report.capacity import seconds_a_step
from feedmill.profiling.report.checks import problems
from feedmill.profiling.report.targets import Limits, Target, targets
from feedmill.profiling.report.verdict import ReportContext, verdict
from feedmill.profiling.report.wording import fallback_causes, percent

if TYPE_CHECKING:
    from feedmill.profiling.report.stats import Stats

_NAME_WIDTH = 10
_LEAST_SHARE = 0.01  # of a wait, for its cause to be listed


def report(stats: Stats, around: ReportContext, limits: Limits) -> str:
    """Text of several lines; the first one is the verdict."""
    rows = [_target_row(one) for one in targets(stats, around, limits)]
    for one in problems(stats, around):
        rows += [("problem", one.problem), ("diagnosis", one.diagnosis), ("remedy", one.remedy)]
    rows += _table(stats)
    return "\n".join(
        [verdict(stats, around), *(f"  {name:<{_NAME_WIDTH}} {text}" for name, text in rows)]
    )


def _target_row(one: Target) -> tuple[str, str]:
    state = "not known" if one.is_met is None else "met" if one.is_met else "missed"
    why = f" ({one.why})" if one.why else ""
    return state, f"{f'{one.name} {one.value}'.rstrip()}; target: {one.goal}{why}"


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
        *_gpu_row(stats),
    ]
    if _n_native_batches(stats):
        rows += _native_rows(stats)
    if stats.hybrid_samples:
        rows.append(("hybrid", _hybrid(stats)))
    if stats.first_batches:
        rows.append(("start", _start(stats)))
    if stats.collate_ns:
        rows.append(("collate", f"{stats.collate_ns / 1e9:.3f} s in collate_fn, in the step's way"))
    if stats.collate_ahead_ns:
        text = f"{stats.collate_ahead_ns / 1e9:.3f} s in collate_fn, ahead of the batch's turn"
        rows.append(("collate", text))
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
    path = "hybrid" if stats.hybrid_batches == stats.torch_batches > 0 else "torch"
    if _n_native_batches(stats):
        path = "native"
    causes = [
        f"{terms.cause(name, path).label} {ns / len(steps) / 1e6:.2f} ms ({percent(ns / total_ns)})"
        for name, ns in sorted(waits.items(), key=lambda one: -one[1])
        if ns > _LEAST_SHARE * total_ns
    ]
    return [*rows, ("causes", ", ".join(causes))] if causes else rows


def _gpu_row(stats: Stats) -> list[tuple[str, str]]:
    if not stats.gpu_steps + stats.gpu_skipped:
        return []
    late_ns = stats.gpu_stall_ns - stats.gpu_copy_ns
    skipped = f", {stats.gpu_skipped:,} not" if stats.gpu_skipped else ""
    return [("GPU", f"stood still for {stats.gpu_stall_ns / 1e9:.3f} s of "
                    f"{stats.gpu_wall_ns / 1e9:.2f} s ({percent(stats.gpu_stall_share or 0.0)}) "
                    f"for want of a batch: {late_ns / 1e9:.3f} s of it data that came late, "
                    f"{stats.gpu_copy_ns / 1e9:.3f} s copies to the GPU; {stats.gpu_steps:,} steps "
                    f"measured{skipped}")]


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
        *_cache_row(stats),
        *_device_row(stats),
        *_bad_row(stats),
        ("slots", f"{stats.n_slots} of {stats.slot_bytes / 1e6:.1f} MB; "
                  f"{stats.copied_batches} batches copied out"),
    ]


def _bad_row(stats: Stats) -> list[tuple[str, str]]:
    if not stats.sample_errors:
        return []
    first = stats.sample_errors[0]
    name = first.path or f"index {first.index}"
    return [("bad", f"{stats.bad_samples:,} samples could not be loaded, such as {name} "
                    f"({first.outcome})")]


def _hybrid(stats: Stats) -> str:
    decode_ns, transform_ns = stats.hybrid_decode_ns, stats.hybrid_transform_ns
    share = transform_ns / max(1, decode_ns + transform_ns)
    return (
        f"{stats.hybrid_samples:,} samples: the threads passed {decode_ns / 1e9:.2f} s in reading "
        f"and decoding, {transform_ns / 1e9:.2f} s ({percent(share)}) in the transform"
    )


def _cache_row(stats: Stats) -> list[tuple[str, str]]:
    if not stats.cache_hits + stats.cache_misses:
        return []
    return [("cache", f"{stats.cache_files:,} files in {stats.cache_bytes / 1e6:,.1f} MB; "
                      f"{percent(stats.cache_hit_rate)} of all files came from it")]


def _device_row(stats: Stats) -> list[tuple[str, str]]:
    if not stats.h2d_batches:
        return []
    return [("to the GPU", f"{stats.h2d_batches:,} batches, {stats.h2d_bytes / 1e6:,.1f} MB, from "
                           f"{stats.pinned_bytes / 1e6:,.1f} MB of pinned slots")]


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
    if stats.hybrid_batches:
        parts.append(f"{stats.hybrid_samples:,} samples in {stats.hybrid_batches:,} hybrid batches")
    if n_torch := stats.torch_batches - stats.hybrid_batches:
        parts.append(f"{n_torch:,} batches on torch's path")
    return ", ".join([*(parts or ["nothing"]), epochs])
