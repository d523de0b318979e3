"""The problems that a report lists, each with a diagnosis and a remedy."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from feedmill.profiling.counting.records import STEADY
from feedmill.profiling.report.capacity import LOOP, parts
from feedmill.profiling.report.verdict import NO_STALL, ReportContext, cpus_of_others, main_cause
from feedmill.profiling.report.wording import cpus, fallback_causes, percent, process_names

if TYPE_CHECKING:
    from feedmill.profiling.report.stats import SlowSample, Stats


class Problem(NamedTuple):
    """A problem, its cause, and what to do about it, as texts."""

    problem: str
    diagnosis: str
    remedy: str


# A sample is slow if it costs more than this many times the mean, and more than this time.
_SLOW_FACTOR = 10
_SLOW_NS = 20_000_000
_NAMED_SLOW = 3
# Copies, collate_fn, overhead and startup are problems above this share of the time.
_SHARE = 0.02
# Fewer steps than this are too few for percentiles and shares of steps.
_FEW_STEPS = 20
# Waits are uneven if the 99th percentile is more than this many times the median, and more than
# this time.
_UNEVEN_FACTOR = 5
_UNEVEN_NS = 10_000_000
# A first batch that takes longer than this is slow.
_SLOW_START_S = 1.0
# The prefetch is too small if more than this share of the steps find no batch ready although the
# loader could deliver this many times the demand.
_OFTEN_EMPTY = 0.25
_SPARE = 1.2
# A CPU quota is a problem if it stopped the process for more than this share of the time.
_THROTTLED = 0.05
# All CPUs are busy above this share of their time.
_BUSY = 0.9
# Other processes are a problem if they used more than this share of the CPUs.
_USED_BY_OTHERS = 0.1


def problems(stats: Stats, context: ReportContext) -> list[Problem]:
    """All problems found, in the order of CHECKS."""
    if not stats.batches:
        return []
    found = (check(stats, context) for check in CHECKS)
    return [one for one in found if one is not None]


# ---- files ---------------------------------------------------------------------------------------


def slow_files(stats: Stats, context: ReportContext) -> Problem | None:
    n_others = stats.decode.native_samples - len(stats.slow_samples)
    if not stats.slow_samples or n_others < len(stats.slow_samples):
        return None
    total_ns = stats.io.read_ns + stats.decode.decode_ns + stats.decode.transform_ns
    rest_ns = max(1, total_ns - sum(one.cost_ns + one.starved_ns for one in stats.slow_samples))
    mean_ns = rest_ns / n_others
    slow = [
        one
        for one in stats.slow_samples
        if one.cost_ns > max(_SLOW_FACTOR * mean_ns, _SLOW_NS)
    ]
    if not slow:
        return None
    n = len(slow)
    many = f"{n} files take" if n > 1 else "1 file takes"
    named = "; ".join(_name_slow(one) for one in slow[:_NAMED_SLOW])
    return Problem(
        f"{many} up to {slow[0].cost_ns / mean_ns:,.0f} times the mean of {mean_ns / 1e6:.1f} ms",
        named + ("; stats().slow_samples has the others" if n > _NAMED_SLOW else ""),
        "a batch waits for its slowest file: make these files smaller, or remove them",
    )


def _name_slow(one: SlowSample) -> str:
    return (
        f"{one.path or f'index {one.index}'} ({one.file_bytes / 1e6:.1f} MB: read "
        f"{one.read_ns / 1e6:.0f} ms, decode {one.decode_ns / 1e6:.0f}, transform "
        f"{one.transform_ns / 1e6:.0f})"
    )


def pillow(stats: Stats, context: ReportContext) -> Problem | None:
    if not stats.decode.fallback_samples:
        return None
    each_ms = stats.decode.fallback_ns / stats.decode.fallback_samples / 1e6
    return Problem(
        f"{stats.decode.fallback_samples:,} of {stats.samples:,} samples went through Pillow",
        f"the native decoder does not support them ({fallback_causes(stats)}); {each_ms:.1f} ms "
        "each, one by one, while the training loop waits",
        "convert those files to standard JPEGs",
    )


# ---- the training loop ---------------------------------------------------------------------------


def copied(stats: Stats, context: ReportContext) -> Problem | None:
    if stats.memory.copied_batches <= _SHARE * stats.batches:
        return None
    copy_ms = stats.memory.copy_ns / stats.memory.copied_batches / 1e6
    return Problem(
        f"{stats.memory.copied_batches:,} of {stats.batches:,} batches were copied to memory of "
        "their own",
        "the training loop keeps references to many batches at once; each copy takes "
        f"{copy_ms:.1f} ms",
        "release batches after their step, or raise prefetch_factor",
    )


def pageable(stats: Stats, context: ReportContext) -> Problem | None:
    if not context.uses_cuda or context.pin_memory is not False:
        return None
    return Problem(
        "batches are copied to the GPU from pageable memory",
        "CUDA is in use and pin_memory is False: each copy is slower and blocks the training loop",
        "set pin_memory=True, and call .to(device, non_blocking=True) in the training loop",
    )


def slow_collate(stats: Stats, context: ReportContext) -> Problem | None:
    share = stats.decode.collate_ns / max(1, stats.waits.wall_ns)
    if share <= _SHARE:
        return None
    n = max(1, stats.batches - stats.waits.torch_batches)
    return Problem(
        f"collate_fn takes {stats.decode.collate_ns / n / 1e6:.1f} ms a batch",
        f"it runs on the training loop's thread, {percent(share)} of the time",
        "make it faster, or do its work on the GPU",
    )


def overhead(stats: Stats, context: ReportContext) -> Problem | None:
    waits = stats.waits
    over_ns = waits.host_wait_ns - waits.data_wait_ns - stats.decode.collate_ns
    over_ns -= stats.memory.copy_ns
    n = stats.batches - waits.torch_batches
    if n <= 0 or stats.path == "watched" or over_ns <= _SHARE * waits.native_wall_ns:
        return None
    busy = stats.process.host_busy_ns / max(1, stats.process.elapsed_ns * stats.process.usable_cpus)
    return Problem(
        f"returning a ready batch takes {over_ns / n / 1e6:.2f} ms",
        f"{percent(over_ns / waits.native_wall_ns)} of the time is spent in next() after the batch "
        "is ready: Python code, and waiting for the GIL or a CPU",
        "fewer threads, or more CPUs: all of them are busy" if busy > _BUSY else
        "larger batches; fewer other Python threads",
    )


# ---- the loader ----------------------------------------------------------------------------------


def slow_start(stats: Stats, context: ReportContext) -> Problem | None:
    waits, first_s = stats.waits, stats.waits.first_batch_s
    if first_s <= _SLOW_START_S or first_s * waits.first_batches * 1e9 <= _SHARE * waits.wall_ns:
        return None
    n = max(1, waits.first_batches)
    if waits.iter_ns > waits.first_batch_ns:
        return Problem(
            f"an epoch's first batch comes {first_s:.1f} s after iter()",
            f"{waits.iter_ns / n / 1e9:.1f} s of it pass before the first index: inspecting the "
            "dataset, starting the sampler; opening the native engine took "
            f"{waits.open_ns / 1e9:.1f} s in total",
            "fewer, longer epochs; a sampler that starts faster",
        )
    return Problem(
        f"an epoch's first batch comes {first_s:.1f} s after iter()",
        f"{waits.first_batch_ns / n / 1e9:.1f} s of it are spent reading and decoding that "
        "batch, which was not prefetched",
        "more threads or faster storage; smaller batches; fewer, longer epochs",
    )


def small_prefetch(stats: Stats, context: ReportContext) -> Problem | None:
    if not context.looks_ahead or main_cause(stats) not in ("decode", "transform", "storage"):
        return None
    steps = stats.steps[(stats.steps["phase"] == STEADY) & (stats.steps["n_samples"] > 0)]
    rates = stats.rates()
    if len(steps) < _FEW_STEPS or rates is None or stats.steady_stall_share < NO_STALL:
        return None
    seconds = parts(rates)
    prepare_s = max(value for name, value in seconds.items() if name != LOOP)
    empty = float((steps["ready_batches"] == 0).mean())
    if empty < _OFTEN_EMPTY or prepare_s * _SPARE > rates.loop_s:
        return None
    return Problem(
        f"{percent(empty)} of the steps found no batch ready, though the loader is fast enough",
        f"a batch takes {prepare_s * 1e3:.1f} ms to prepare and a step {rates.loop_s * 1e3:.1f} "
        "ms: too few batches are prefetched",
        "set num_workers above 0 and a larger prefetch_factor",
    )


def uneven(stats: Stats, context: ReportContext) -> Problem | None:
    wait = stats.percentiles("data_wait_ns")
    if len(stats.steps_of("steady")) < _FEW_STEPS:
        return None
    if wait.p99 <= _UNEVEN_NS or wait.p99 <= _UNEVEN_FACTOR * wait.p50:
        return None
    return Problem(
        f"waits are uneven: 1 in 100 is {wait.p99 / 1e6:.0f} ms or more, the median is "
        f"{wait.p50 / 1e6:.1f} ms",
        "some batches take much longer to prepare than others",
        "a larger prefetch_factor evens them out" if stats.path != "watched" else
        "prefetch more batches",
    )


# ---- the machine ---------------------------------------------------------------------------------


def quota(stats: Stats, context: ReportContext) -> Problem | None:
    process = stats.process
    if process.throttled_ns <= _THROTTLED * process.elapsed_ns or not process.throttled_periods:
        return None
    return Problem(
        f"a CPU quota stopped this process {process.throttled_periods:,} times",
        f"its cgroup was stopped for {process.throttled_ns / 1e9:.1f} s, summed over CPUs, of "
        f"{process.elapsed_ns / 1e9:.1f} s",
        "raise the quota (cpu.max, or the container's CPU limit), or use fewer threads",
    )


def peer_processes(stats: Stats, context: ReportContext) -> Problem | None:
    others = cpus_of_others(stats)
    if stats.path == "native" and main_cause(stats) == "starved":
        return None  # the verdict mentions it
    if stats.stall_share < NO_STALL or others <= _USED_BY_OTHERS * stats.process.usable_cpus:
        return None
    names = f": {process_names(context.peers)}" if context.peers else ""
    return Problem(
        "other processes compute on the same CPUs",
        f"they used {others:.1f} of {cpus(stats.process.usable_cpus)}{names}",
        "give each process CPUs of its own (taskset), or stop them",
    )


def cpu_contention(stats: Stats, context: ReportContext) -> Problem | None:
    diagnosis, _, remedy = context.decode_contention.partition(": ")
    if not remedy:
        return None
    return Problem("more decode threads want to run than there are CPUs", diagnosis, remedy)


def torch_threads(stats: Stats, context: ReportContext) -> Problem | None:
    # Idle intra-op threads are no problem.
    other_ns = stats.process.cpu_ns - stats.decode.worker_cpu_ns
    diagnosis, _, remedy = context.intra_op_contention.partition(": ")
    if stats.stall_share < NO_STALL or not remedy or 2 * other_ns < stats.process.elapsed_ns:
        return None
    return Problem("torch's own threads share the decode threads' CPUs", diagnosis, remedy)


# ---- torch's path --------------------------------------------------------------------------------


def few_workers(stats: Stats, context: ReportContext) -> Problem | None:
    n_workers, n_cpus = context.num_workers, stats.process.usable_cpus
    if stats.path not in ("torch", "watched") or n_workers is None or not n_cpus:
        return None
    if stats.steady_stall_share < NO_STALL:
        return None
    has = f"num_workers={n_workers}, and this process may use {cpus(n_cpus)}"
    if n_workers > n_cpus:
        return Problem("more workers than CPUs", has, f"set num_workers={n_cpus}")
    if n_workers == n_cpus:
        return Problem(
            "there is a worker for every CPU, and steps still wait",
            has,
            "cheaper transforms, smaller files, more CPUs, or feedmill's native path",
        )
    return Problem(
        "no worker prepares batches ahead" if n_workers == 0 else "fewer workers than CPUs",
        has,
        f"set num_workers={n_cpus}",
    )


def restarted_workers(stats: Stats, context: ReportContext) -> Problem | None:
    if not context.num_workers or context.persistent_workers is not False:
        return None
    steps = stats.steps_of("boundary")
    if stats.path not in ("torch", "watched") or not len(steps):
        return None
    wait_ns = int(steps["data_wait_ns"].sum())
    if wait_ns <= _SHARE * stats.waits.wall_ns:
        return None
    return Problem(
        f"each epoch's first batch takes {wait_ns / len(steps) / 1e9:.2f} s",
        f"{context.num_workers} worker processes are started again for each epoch",
        "set persistent_workers=True",
    )


def not_native(stats: Stats, context: ReportContext) -> Problem | None:
    if stats.path != "torch" or stats.steady_stall_share < NO_STALL or len(stats.reasons) < 1:
        return None
    if stats.reasons[0].startswith("native="):
        return Problem(
            "feedmill's native path is turned off",
            stats.reasons[0],
            'use native="auto", the default; explain() then says whether the native path is taken',
        )
    return Problem(
        "feedmill's native path, which needs no workers, is not taken",
        "; ".join(stats.reasons),
        "remove these reasons; explain() then says whether the native path is taken",
    )


CHECKS: tuple[Callable[[Stats, ReportContext], Problem | None], ...] = (
    slow_files,
    pillow,
    quota,
    peer_processes,
    cpu_contention,
    torch_threads,
    few_workers,
    restarted_workers,
    not_native,
    pageable,
    copied,
    slow_collate,
    overhead,
    slow_start,
    small_prefetch,
    uneven,
)
