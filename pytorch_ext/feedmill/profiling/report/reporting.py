"""Writes the report: the verdict, targets, problems, and the numbers behind them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from feedmill.profiling.report import terms
from feedmill.profiling.report.capacity import seconds_per_step
from feedmill.profiling.report.checks import problems
from feedmill.profiling.report.targets import Limits, Target, targets
from feedmill.profiling.report.verdict import ReportContext, verdict
from feedmill.profiling.report.wording import decode_threads, fallback_causes, percent

if TYPE_CHECKING:
    from feedmill.profiling.report.stats import Stats

_NAME_WIDTH = 10
_LEAST_SHARE = 0.01  # causes below this share of the wait are not listed


def report(stats: Stats, context: ReportContext, limits: Limits) -> str:
    """The report as text of several lines; the first line is the verdict."""
    rows = [_target_row(one) for one in targets(stats, context, limits)]
    for one in problems(stats, context):
        rows += [("problem", one.problem), ("diagnosis", one.diagnosis), ("remedy", one.remedy)]
    rows += _table(stats)
    return "\n".join(
        [verdict(stats, context), *(f"  {name:<{_NAME_WIDTH}} {text}" for name, text in rows)]
    )


def _target_row(one: Target) -> tuple[str, str]:
    state = "unknown" if one.is_met is None else "met" if one.is_met else "missed"
    why = f" ({one.why})" if one.why else ""
    return state, f"{f'{one.name} {one.value}'.rstrip()}; target: {one.goal}{why}"


# ---- the table -----------------------------------------------------------------------------------


def _table(stats: Stats) -> list[tuple[str, str]]:
    rows = [("path", stats.path)]
    rows += [("", reason) for reason in stats.reasons[1:]]  # the verdict has the first one
    rows += [
        ("delivered", _delivered(stats)),
        ("wall time", f"{stats.waits.wall_ns / 1e9:.2f} s"),
        ("waited", f"{stats.waits.host_wait_ns / 1e9:.3f} s in next(), "
                   f"{stats.waits.data_wait_ns / 1e9:.3f} s of it for data "
                   f"({percent(stats.data_wait_share)} of the wall time)"),
        *_waits(stats),
        *_gpu_row(stats),
    ]
    if _n_native_batches(stats):
        rows += _native_rows(stats)
    if stats.decode.hybrid_samples:
        rows.append(("hybrid", _hybrid(stats)))
    rows += _deferred_rows(stats)
    if stats.waits.first_batches:
        rows.append(("start", _start(stats)))
    if stats.decode.collate_ns:
        text = f"{stats.decode.collate_ns / 1e9:.3f} s in collate_fn, while the step waited"
        rows.append(("collate", text))
    if stats.decode.collate_ahead_ns:
        ahead_s = stats.decode.collate_ahead_ns / 1e9
        text = f"{ahead_s:.3f} s in collate_fn, before the batch was requested"
        rows.append(("collate", text))
    if stats.decode.verified_samples:
        rows.append(("verified", f"{stats.decode.verified_samples:,} samples, all equal"))
    if stats.errors:
        rows.append(("errors", f"{stats.errors} batches"))
    return rows


def _waits(stats: Stats) -> list[tuple[str, str]]:
    steps = stats.steps_of("steady")
    if not len(steps):
        return []
    wait = stats.percentiles("data_wait_ns")
    rows = [
        ("step", f"{1e3 * seconds_per_step(steps):.1f} ms in the steady state; wait for data p50 "
                 f"{wait.p50 / 1e6:.1f}, p90 {wait.p90 / 1e6:.1f}, p99 {wait.p99 / 1e6:.1f}, "
                 f"max {wait.max / 1e6:.1f} ms"),
    ]
    waits = stats.waits_by_cause()
    total_ns = sum(waits.values())
    path = "hybrid" if stats.decode.hybrid_batches == stats.waits.torch_batches > 0 else "torch"
    if _n_native_batches(stats):
        path = "native"
    causes = [
        f"{terms.cause(name, path).label} {ns / len(steps) / 1e6:.2f} ms ({percent(ns / total_ns)})"
        for name, ns in sorted(waits.items(), key=lambda one: -one[1])
        if ns > _LEAST_SHARE * total_ns
    ]
    if causes:
        rows.append(("causes", ", ".join(causes)))
    return [*rows, *_storage_rows(stats, total_ns)]


def _storage_rows(stats: Stats, total_ns: int) -> list[tuple[str, str]]:
    """What reads of objects did while steps waited for them, if that is a part of total_ns."""
    parts = stats.storage_waits_by_part()
    if sum(parts.values()) - parts["storage_local_ns"] <= _LEAST_SHARE * total_ns:
        return []
    n_steps, storage_ns = len(stats.steps_of("steady")), sum(parts.values())
    names = sorted((name for name in parts if parts[name] > _LEAST_SHARE * storage_ns),
                   key=lambda name: -parts[name])
    text = ", ".join(
        f"{terms.storage_part(name).label} {parts[name] / n_steps / 1e6:.2f} ms "
        f"({percent(parts[name] / storage_ns)})"
        for name in names
    )
    return [("storage", text), ("", f"what helps: {terms.storage_part(names[0]).remedy}")]


def _gpu_row(stats: Stats) -> list[tuple[str, str]]:
    gpu = stats.gpu
    if not gpu.steps + gpu.skipped:
        return []
    late_ns = gpu.stall_ns - gpu.copy_ns
    skipped = f", {gpu.skipped:,} not measured" if gpu.skipped else ""
    return [("GPU", f"waited for batches for {gpu.stall_ns / 1e9:.3f} s of "
                    f"{gpu.wall_ns / 1e9:.2f} s ({percent(gpu.stall_share or 0.0)}): "
                    f"{late_ns / 1e9:.3f} s for late data, {gpu.copy_ns / 1e9:.3f} s for copies to "
                    f"the GPU; {gpu.steps:,} steps measured{skipped}")]


def _native_rows(stats: Stats) -> list[tuple[str, str]]:
    decode, io = stats.decode, stats.io
    causes = fallback_causes(stats)
    cpu = f" ({decode.simd})" if decode.simd else ""
    return [
        ("decoded", f"{decode.native_samples:,} natively, "
                    f"{decode.fallback_samples:,} through Pillow"
                    + (f" ({causes}; {decode.fallback_s:.2f} s)" if causes else "")),
        ("threads", f"{decode_threads(decode.n_threads)}{cpu}: decoding {decode.decode_s:.2f} s, "
                    f"transforming {decode.transform_s:.2f} s, waiting for a CPU "
                    f"{decode.starved_ns / 1e9:.2f} s; CPU time "
                    f"{decode.worker_cpu_ns / 1e9:.2f} s"),
        ("reader", f"{io.reader} ({io.reader_reason}): {io.files:,} files, "
                   f"{io.bytes / 1e6:,.1f} MB, "
                   f"{io.read_ns / max(1, io.files) / 1e6:.2f} ms a file"),
        *_network_row(stats),
        *_cache_row(stats),
        *_device_row(stats),
        *_bad_row(stats),
        ("buffers", f"{stats.memory.n_slots} batch buffers of "
                    f"{stats.memory.slot_bytes / 1e6:.1f} MB; {stats.memory.copied_batches} "
                    "batches copied to memory of their own"),
    ]


def _network_row(stats: Stats) -> list[tuple[str, str]]:
    io = stats.io
    if not io.http_requests:
        return []
    return [("network", f"{io.http_requests:,} requests ({io.http_retries:,} after a failure, "
                        f"{io.http_refused:,} refused as too many, {io.http_hedged:,} sent again "
                        f"for a late answer), {io.http_bytes / 1e6:,.1f} MB "
                        f"fetched; {io.bytes / 1e6:,.1f} MB were decoded, with those of files")]


def _bad_row(stats: Stats) -> list[tuple[str, str]]:
    if not stats.sample_errors:
        return []
    first = stats.sample_errors[0]
    name = first.path or f"index {first.index}"
    return [("bad", f"{stats.bad_samples:,} samples could not be loaded, for example {name} "
                    f"({first.outcome})")]


def _hybrid(stats: Stats) -> str:
    decode_ns, transform_ns = stats.decode.hybrid_decode_ns, stats.decode.hybrid_transform_ns
    share = transform_ns / max(1, decode_ns + transform_ns)
    return (
        f"{stats.decode.hybrid_samples:,} samples: the threads spent {decode_ns / 1e9:.2f} s on "
        f"reading and decoding, {transform_ns / 1e9:.2f} s ({percent(share)}) on the transform"
    )


def _deferred_rows(stats: Stats) -> list[tuple[str, str]]:
    one = stats.deferred
    if not one.images + one.ordinary + one.opencv:
        return []
    rows = []
    if one.opencv:
        rows.append(("opencv", f"{one.opencv:,} images of cv2.imread() and cv2.imdecode() decoded "
                               f"by feedmill in {one.opencv_ns / 1e9:.2f} s"))
    if not one.images + one.ordinary:
        return rows
    rows.append(("deferred", f"{one.images:,} images: {one.parts:,} parts in "
                         f"{one.parts_ns / 1e9:.2f} s, {one.whole:,} decoded as a whole in "
                         f"{one.whole_ns / 1e9:.2f} s; {one.ordinary:,} ordinary images in "
                         f"{one.ordinary_ns / 1e9:.2f} s"))
    if one.transformed:
        rows.append(("", f"{one.transformed:,} times a Compose ran in one native call, in "
                         f"{one.transformed_ns / 1e9:.2f} s"))
    if one.by_pillow:
        rows.append(("", f"{one.by_pillow:,} deferred images were decoded by Pillow after all"))
    if one.endings:
        rows.append(("", f"ordinary images were needed for: {one.endings}"))
    if one.verified:
        rows.append(("verified", f"{one.verified:,} samples, all equal without deferred images"))
    return rows


def _cache_row(stats: Stats) -> list[tuple[str, str]]:
    io = stats.io
    rows = []
    if io.cache_hits + io.cache_misses:
        rows.append(("cache", f"{io.cache_files:,} files in {io.cache_bytes / 1e6:,.1f} MB; "
                              f"hit rate {percent(io.cache_hit_rate)}"))
    if io.seek_samples:
        rows.append(("seek points", f"{io.seek_samples:,} samples were decoded with those of "
                                    f"{io.seek_images:,} images, in {io.seek_bytes / 1e6:,.1f} MB"))
    if n_objects := io.disk_hits + io.disk_misses:
        lost = [f"{n:,} {why}" for n, why in ((io.disk_refused, "found no place"),
                                              (io.disk_failed, "could not be written")) if n]
        rows.append(("disk cache", "; ".join([
            f"{io.disk_entries:,} objects in {io.disk_bytes / 1e6:,.1f} MB",
            f"hit rate {percent(io.disk_hits / n_objects)}", *lost])))
    return rows


def _device_row(stats: Stats) -> list[tuple[str, str]]:
    gpu = stats.gpu
    if not gpu.h2d_batches:
        return []
    return [("to the GPU", f"{gpu.h2d_batches:,} batches, {gpu.h2d_bytes / 1e6:,.1f} MB, from "
                           f"{gpu.pinned_bytes / 1e6:,.1f} MB of pinned buffers")]


def _n_native_batches(stats: Stats) -> int:
    return 0 if stats.path == "watched" else stats.batches - stats.waits.torch_batches


def _start(stats: Stats) -> str:
    n = stats.waits.first_batches
    return (
        f"first batch {stats.waits.first_batch_s:.3f} s after iter()"
        + (f", mean of {n} epochs" if n > 1 else "")
        + f"; {stats.waits.iter_ns / n / 1e9:.3f} s of it before the first index; "
        f"opening the native engine took {stats.waits.open_ns / 1e9:.3f} s"
    )


def _delivered(stats: Stats) -> str:
    decode = stats.decode
    n_native = _n_native_batches(stats)
    epochs = f"{stats.epochs} epoch{'s' if stats.epochs > 1 else ''}"
    if stats.path == "watched":
        return f"{stats.batches:,} batches, {epochs}"
    parts = []
    if n_native:
        rate = "" if stats.waits.torch_batches else f" ({stats.images_per_second:,.0f} images/s)"
        parts.append(f"{stats.samples:,} samples in {n_native:,} batches natively{rate}")
    if decode.hybrid_batches:
        n_hybrid = decode.hybrid_samples
        parts.append(f"{n_hybrid:,} samples in {decode.hybrid_batches:,} hybrid batches")
    if n_torch := stats.waits.torch_batches - decode.hybrid_batches:
        parts.append(f"{n_torch:,} batches on torch's path")
    return ", ".join([*(parts or ["nothing"]), epochs])
