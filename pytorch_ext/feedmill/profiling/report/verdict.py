"""The verdict, a report's first sentence: what steps waited for, and what would end it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from feedmill.profiling.counting.records import CAUSES, STEADY, STORAGE_PARTS
from feedmill.profiling.report import terms
from feedmill.profiling.report.capacity import (
    CPUS,
    STORAGE,
    Rates,
    parts,
    predict,
    seconds_per_step,
    threads_needed,
)
from feedmill.profiling.report.wording import (
    batch_rate,
    cpus,
    duration,
    fallback_causes,
    more_threads,
    percent,
    process_names,
    threads,
)

if TYPE_CHECKING:
    from feedmill.profiling.report.stats import Stats
    from feedmill.system.peer_processes import PeerProcess

# The reason for torch's path of a DataLoader with native="off".
OFF = "native='off' was asked for"

# A wait for data below this share of the time is not a stall, and a smaller gain is not a gain.
NO_STALL = 0.02
# A training loop that computes for less than this share of a step requests batches back to back.
_BACK_TO_BACK = 0.05
# Waits for first batches are ignored below this share of the wall time.
_SHORT_STARTUP = 0.05
# The verdict is about startup if first batches caused more than this share of all waits ...
_MOSTLY_STARTUP = 0.5
# ... and the other steps waited for less than this share of the time.
_STEADY_STALL = 0.1
# Other processes are the cause of CPU starvation if they use more than this share of the CPUs, and
# a CPU quota is if it stopped the process for more than this share of the time.
_USED_BY_OTHERS = 0.1
_THROTTLED = 0.05
# The reader is saturated if more than this share of the possible reads was in flight on average.
_SATURATED = 0.7
_LARGER_PREFETCH = 4  # suggested factor


@dataclass(frozen=True)
class ReportContext:
    """Facts besides the counters that a report mentions.

    Attributes:
        peers: other feedmill processes that decoded on the same CPUs.
        decode_contention: what feedmill.system.cpu_contention says of the decode threads, as
            "problem: remedy". "" if there is no contention.
        intra_op_contention: the same for torch's intra-op threads.
        uses_cuda: CUDA is in use in this process.
        pin_memory, num_workers, prefetch_factor, persistent_workers: the DataLoader's arguments.
            None if not known.
        looks_ahead: batches are prepared while the step computes. False if the sampler may be
            advanced only at next().
        gpu_busy: share of the time that the GPUs were busy, by NVML. None if not known, as for the
            following two.
        cpu_share: share of the usable CPUs' time that this process and its children used. Used only
            if Stats has no such counters.
        host_share: share of the host's CPU time that was busy. Used as cpu_share.
    """

    peers: tuple[PeerProcess, ...] = ()
    decode_contention: str = ""
    intra_op_contention: str = ""
    uses_cuda: bool = False
    pin_memory: bool | None = None
    num_workers: int | None = None
    prefetch_factor: int | None = None
    persistent_workers: bool | None = None
    looks_ahead: bool = True
    gpu_busy: float | None = None
    cpu_share: float | None = None
    host_share: float | None = None


def verdict(stats: Stats, context: ReportContext | None = None) -> str:
    """One sentence: the bottleneck, what would remove it, and how long steps waited."""
    context = context or ReportContext()
    if stats.path == "torch":
        return _torch(stats, context)
    if not stats.batches:
        return "nothing to report: no batch was delivered yet"
    at_start = startup_share(stats)
    if stats.stall_share < NO_STALL:
        return f"no stall: {_waited(stats)}{_spare(stats, context)}"
    if stats.steady_stall_share < NO_STALL and at_start * stats.stall_share < _SHORT_STARTUP:
        return (
            f"no stall: {_waited(stats)}, most of it for the first batch of an epoch"
            f"{_spare(stats, context)}"
        )
    if at_start > _MOSTLY_STARTUP and stats.steady_stall_share < _STEADY_STALL:
        return _start(stats)
    if stats.path == "watched":
        return (
            f"stalled: {_waited(stats)}; the cause is not visible from outside of this loader; "
            f"{_rates_text(stats)}"
        )
    if stats.path == "hybrid":
        return f"{_hybrid(stats)}; {_waited(stats)}"
    return f"{_bottleneck(stats, context)}; {_waited(stats)}"


def startup_share(stats: Stats) -> float:
    """Share of the wait for data that the first step of each epoch caused. 0 if most steps are
    first steps."""
    steps = stats.steps
    total_ns = int(steps["data_wait_ns"].sum())
    steady = steps["phase"] == STEADY
    if not total_ns or 2 * int(steady.sum()) < len(steps):
        return 0.0
    return int(steps["data_wait_ns"][~steady].sum()) / total_ns


def main_cause(stats: Stats) -> str:
    """What steps waited for longest: "decode", "transform", "storage", "starved", "slots", "copy",
    "python" or "unknown"."""
    if 2 * stats.gpu.copy_ns > stats.gpu.stall_ns:
        return "copy"
    waits = _waits(stats)
    decode = waits["decode_ns"] + waits["cpu_queue_decode_ns"]
    transform = waits["transform_ns"] + waits["cpu_queue_transform_ns"]
    groups = {
        # Decode threads do both, so both causes count for the larger one.
        "decode" if decode >= transform else "transform": decode + transform,
        "storage": waits["storage_ns"],
        "starved": waits["starved_ns"],
        "slots": waits["slot_wait_ns"],
        "copy": waits["h2d_ns"],
        "python": waits["python_ns"],
        "unknown": waits["unattributed_ns"],
    }
    return max(groups, key=lambda name: groups[name])


def _waits(stats: Stats) -> dict[str, int]:
    """Waits by cause in the native steps of the steady state, or in all if there are none."""
    steps = _native_steps(stats)
    if len(steps):
        return {name: int(steps[name].sum()) for name in CAUSES}
    return {name: getattr(stats.waits, name) for name in CAUSES}


def _native_steps(stats: Stats) -> np.ndarray:
    """The native steps of the steady state; all native steps if it has none."""
    steps = stats.steps[stats.steps["n_samples"] > 0]
    steady = steps[steps["phase"] == STEADY]
    return steady if len(steady) else steps


def _waited(stats: Stats) -> str:
    text = f"steps waited {percent(stats.data_wait_share)} of the time for data"
    gpu = stats.gpu.stall_share
    return text if gpu is None else f"{text}, the GPU {percent(gpu)}"


# ---- no stall, or only at the start --------------------------------------------------------------


def _spare(stats: Stats, context: ReportContext) -> str:
    rates = stats.rates(overlaps=context.looks_ahead)
    if rates is None or not stats.demand or not rates.work_s:
        return ""
    text = f"; {_could_prepare(rates)}, and the step takes {stats.demand:,.0f}"
    needed = threads_needed(rates)
    if needed is not None and needed < rates.n_threads:
        text += f": threads={needed} would be enough"
    return text


def _could_prepare(rates: Rates) -> str:
    """The rate that decode threads and storage could reach if the training step left them the
    CPUs."""
    n_at_once = min(rates.n_threads, rates.usable_cpus)
    prepare_s = max(rates.work_s / n_at_once, parts(rates)[STORAGE])
    rate = rates.batch_samples / prepare_s
    return f"{threads(rates.n_threads)} could prepare {rate:,.0f} img/s"


def _start(stats: Stats) -> str:
    steps = stats.steps
    first = steps[steps["phase"] != STEADY]
    mean_s = float(first["data_wait_ns"].mean()) / 1e9
    many = f"{len(first)} epochs" if len(first) > 1 else "the epoch"
    text = (
        f"start-up: most of the wait for data was for the first batch of {many}, "
        f"{duration(mean_s)}{' each' if len(first) > 1 else ''}; the other steps waited "
        f"{percent(stats.steady_wait_share)} of the time"
    )
    if stats.path != "native":
        return text
    if stats.waits.iter_ns > stats.waits.first_batch_ns:
        return (
            f"{text}; most of the start-up time was spent in iter(), before the first index: see "
            "'start' below"
        )
    return f"{text}; longer epochs, or more threads for a faster first batch, reduce that share"


def _hybrid(stats: Stats) -> str:
    total_ns = stats.decode.hybrid_decode_ns + stats.decode.hybrid_transform_ns
    if 2 * stats.decode.hybrid_transform_ns < total_ns:
        return "decode-bound: the hybrid path's threads mostly decode; more threads would help"
    share = stats.decode.hybrid_transform_ns / total_ns if total_ns else 0.0
    return (
        f"transform-bound: {percent(share)} of the threads' time was spent in the transform, which "
        "is Python code; a cheaper transform helps, or one that runs natively (see explain()); "
        "more threads help only while it releases the GIL; torch's workers (native='auto') do not "
        "share a GIL and may be faster"
    )


# ---- native path ---------------------------------------------------------------------------------


def _bottleneck(stats: Stats, context: ReportContext) -> str:
    cause = main_cause(stats)
    rates = stats.rates(overlaps=context.looks_ahead)
    if cause == "python":
        return _python(stats)
    if cause == "slots":
        return (
            f"buffer-bound: all {stats.memory.n_slots} batch buffers were in use, because the "
            "training loop keeps references to old batches; release them (del images after the "
            "step, clone() what is kept), or raise prefetch_factor"
        )
    if cause == "copy":
        return (
            "copy-bound: steps waited for batches to be copied to the GPU; pin_memory=True, uint8 "
            "or 16-bit images (dtype=), or smaller images make the copy faster"
        )
    if cause == "unknown" or rates is None:
        return "stalled, cause unknown: nothing that the loader measures explains the wait"
    if not context.looks_ahead and rates.compute_s > _BACK_TO_BACK * _step_s(stats):
        return (
            "no prefetch: no batch is prepared while the step computes, because with num_workers=0 "
            "a sampler that is not torch's own is advanced only at next(); num_workers=2 lets the "
            "loader advance it earlier, as torch does for its workers"
        )
    if cause == "starved":
        return _starved(stats, rates, context)
    if cause == "storage":
        return _storage(stats, rates, context)
    return _work(stats, rates, cause)


def _step_s(stats: Stats) -> float:
    steps = _native_steps(stats)
    return seconds_per_step(steps) if len(steps) else 0.0


def _supply_and_demand(stats: Stats, rates: Rates, verb: str) -> str:
    rate = stats.steady_images_per_second or stats.images_per_second
    text = f"{threads(rates.n_threads)} {verb} {rate:,.0f} img/s, "
    if not stats.demand or rates.compute_s < _BACK_TO_BACK * _step_s(stats):
        return text + "and the training loop requests batches back to back"
    return text + f"the step could take {stats.demand:,.0f}"


def _work(stats: Stats, rates: Rates, stage: str) -> str:
    if _training_takes_the_cpus(rates):
        share = rates.other_cpu_s / (rates.other_cpu_s + rates.work_s)
        return (
            f"CPU-bound: the training step's own computation takes {percent(share)} of this "
            f"process's CPU time; {_could_prepare(rates)} with a CPU each, the step could take "
            f"{stats.demand or 0:,.0f}; more CPUs, or fewer torch threads "
            "(torch.set_num_threads()), help"
        )
    verb = "prepares" if rates.n_threads == 1 else "prepare"
    text = f"{stage}-bound: {_supply_and_demand(stats, rates, verb)}; {_more_threads(rates, stage)}"
    return f"{text}; {_faster_storage(stats)}"


def _training_takes_the_cpus(rates: Rates) -> bool:
    """Whether the decode threads would keep up if the training step did not use their CPUs."""
    needed = threads_needed(rates)
    keeps_up = needed is not None and needed <= min(rates.n_threads, rates.usable_cpus)
    return keeps_up and parts(rates)[CPUS] > rates.loop_s and rates.other_cpu_s > rates.work_s


def _more_threads(rates: Rates, stage: str) -> str:
    cheaper = "smaller files" if stage == "decode" else "fewer or cheaper transforms"
    now_s, needed = predict(rates), threads_needed(rates)
    if needed is not None and needed <= rates.n_threads and parts(rates)[CPUS] <= rates.loop_s:
        return (
            "on average they keep up, but batches come unevenly: a larger prefetch_factor evens "
            "that out"
        )
    most = min(needed or rates.usable_cpus, rates.usable_cpus)
    more = most - rates.n_threads
    then_s = predict(replace(rates, n_threads=max(most, rates.n_threads)))
    if more > 0 and then_s <= rates.loop_s * (1 + NO_STALL):
        return f"{more_threads(more)} (threads={most}) would end the stall"
    beyond = (
        f"all {cpus(rates.usable_cpus)} that this process may use are busy: more CPUs or "
        f"{cheaper} help"
    )
    if more <= 0 or now_s / then_s - 1 < NO_STALL:
        return beyond
    rate = rates.batch_samples / then_s
    return (
        f"{more_threads(more)} (threads={most}) would give {rate:,.0f} img/s; beyond that {beyond}"
    )


def _faster_storage(stats: Stats) -> str:
    """The most that faster storage could gain: no waits for files, and no other waits instead."""
    steps = _native_steps(stats)
    share = float(steps["storage_ns"].mean()) / 1e9 / _step_s(stats)
    gain = share / max(1e-9, 1 - share)
    if gain < NO_STALL:
        return "faster storage would gain nothing"
    return f"faster storage would gain at most {percent(gain)}"


def _storage(stats: Stats, rates: Rates, context: ReportContext) -> str:
    n_in_flight = stats.io.read_ns / max(1, stats.waits.native_wall_ns)
    latency_ms = stats.io.read_ns / max(1, stats.io.files) / 1e6
    text = (
        f"storage-bound: a file takes {latency_ms:.1f} ms to read, with {n_in_flight:.0f} of up to "
        f"{stats.io.read_depth} reads in flight ({stats.io.reader}); "
        f"{_supply_and_demand(stats, rates, 'gets' if rates.n_threads == 1 else 'get')}"
    )
    by_fsspec = "custom" in stats.io.reader
    part, share = _main_storage_part(stats)
    is_shallow = n_in_flight < _SATURATED * stats.io.read_depth
    if part != "storage_local_ns":
        text += f"; {percent(share)} of the wait for storage was {terms.storage_part(part).label}"
    if is_shallow and part in ("storage_local_ns", "storage_first_byte_ns"):
        factor = _LARGER_PREFETCH * (context.prefetch_factor or 2)
        arguments = (
            f"prefetch_factor={factor}" if context.num_workers
            else "num_workers above 0, and prefetch_factor"
        )
        threads_or = "more threads for fsspec (FEEDMILL_FSSPEC_THREADS) or " if by_fsspec else ""
        text += f"; {threads_or}a deeper prefetch ({arguments}) would keep more reads in flight"
    elif part == "storage_local_ns":
        text += "; the reader is saturated: a local copy of the files helps"
    else:
        text += f"; what helps: {terms.storage_part(part).remedy}"
    rate = rates.batch_samples / predict(replace(rates, storage_rate=None))
    return (
        f"{text}; without read delays it would be {rate:,.0f} img/s; more "
        f"{'decode ' if by_fsspec else ''}threads would gain nothing"
    )


def _main_storage_part(stats: Stats) -> tuple[str, float]:
    """The largest of records.STORAGE_PARTS, and its share of the wait for storage. Logs of older
    versions have no parts: then it is "storage_local_ns"."""
    steps = _native_steps(stats)
    parts = {name: int(steps[name].sum()) for name in STORAGE_PARTS}
    total_ns = sum(parts.values())
    if not total_ns:
        return "storage_local_ns", 1.0
    main = max(parts, key=lambda name: parts[name])
    return main, parts[main] / total_ns


def _starved(stats: Stats, rates: Rates, context: ReportContext) -> str:
    text = (
        f"CPU-starved: {threads(rates.n_threads)} had work but no CPU to run on for "
        f"{percent(stats.decode.starved_share)} of the time; "
    )
    process = stats.process
    elapsed_ns = max(1, process.elapsed_ns)
    others = cpus_of_others(stats)
    if process.throttled_ns > _THROTTLED * elapsed_ns:
        return text + (
            f"a CPU quota of the cgroup stopped this process {process.throttled_periods:,} times, "
            f"{process.throttled_ns / 1e9:.1f} s summed over CPUs: raise the quota, or use fewer "
            "threads"
        )
    if context.peers:
        return text + (
            f"{process_names(context.peers)} on the same CPUs: give each process CPUs of its "
            "own (taskset), or fewer threads"
        )
    if others > _USED_BY_OTHERS * rates.usable_cpus:
        return text + (
            f"other processes used {others:.1f} of the {cpus(rates.usable_cpus)}: stop them, or "
            "give this process CPUs of its own"
        )
    return text + (
        f"this process's other threads use the same {cpus(rates.usable_cpus)}: if the training "
        "step computes on the CPU, leave room for it (torch.set_num_threads(), or fewer decode "
        "threads)"
    )


def cpus_of_others(stats: Stats) -> float:
    """CPUs that other processes used on average, of those that this process may use."""
    process = stats.process
    return max(0, process.host_busy_ns - process.cpu_ns) / max(1, process.elapsed_ns)


def _python(stats: Stats) -> str:
    if 2 * stats.decode.fallback_ns > stats.waits.python_ns:
        each_ms = stats.decode.fallback_ns / max(1, stats.decode.fallback_samples) / 1e6
        return (
            f"Pillow-bound: {stats.decode.fallback_samples:,} of {stats.samples:,} samples went "
            f"through Pillow, one by one, {each_ms:.1f} ms each ({fallback_causes(stats)}); "
            "convert those files to standard JPEGs"
        )
    return (
        "Python-bound: indices came late: the sampler or the dataset's feedmill_item(), which run "
        "on the training loop's thread, are slow; make them faster, or prefetch further ahead "
        "(num_workers above 0 and a larger prefetch_factor)"
    )


# ---- torch's path, and watched loaders -----------------------------------------------------------


def _torch(stats: Stats, context: ReportContext) -> str:
    if stats.reasons == (OFF,):
        text = f"torch's own path, as {OFF}; {_waited(stats)}"
    else:
        why = stats.reasons[0] if stats.reasons else "the reason is not known"
        text = f"fell back to torch: {why}. {_waited(stats)[0].upper()}{_waited(stats)[1:]}"
    if not stats.batches or stats.stall_share < NO_STALL:
        return text
    if startup_share(stats) > _MOSTLY_STARTUP:
        return f"{text}, most of it for the first batch of each epoch"
    if context.num_workers == 0:
        text += ": no batch is prepared while the step computes (num_workers=0)"
        return f"{text}; {_rates_text(stats)}"
    return f"{text} from Python workers; {_rates_text(stats)}"


def _rates_text(stats: Stats) -> str:
    """Supply and demand of a loader whose internals are not measured."""
    step_s, compute_s = _any_step_s(stats)
    if not step_s:
        return "there are too few steps to say more"
    rate = f"the loader makes {batch_rate(1 / step_s)}"
    if compute_s < _BACK_TO_BACK * step_s:
        return f"{rate}, and the training loop requests batches back to back"
    return f"{rate}, the step could take {1 / compute_s:,.1f}"


def _any_step_s(stats: Stats) -> tuple[float, float]:
    """(seconds a step, seconds of it that it computes) in the steady state."""
    steps = stats.steps_of("steady")
    if not len(steps):
        return 0.0, 0.0
    step_s = seconds_per_step(steps)
    return step_s, step_s - float(steps["host_wait_ns"].mean()) / 1e9
