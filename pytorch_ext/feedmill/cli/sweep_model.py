"""A model of what limits a training step, from the rates of the stages. Pure functions.

All stages work at the same time, on different samples, so the slowest one sets the rate: the time
to prepare a batch is its number of samples divided by the lowest rate ("supply"). Rates are samples
or bytes per second, and times are seconds. Each number carries its source.
"""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar

_Key = TypeVar("_Key", int, str)

MEASURED, GIVEN, MODELLED, UNKNOWN = SOURCES = ("measured", "given", "modelled", "unknown")

STORAGE, CPU, MEMORY, COPY, GPU = "storage", "CPU", "memory bandwidth", "copy", "GPU"
PREPARING = "preparing"  # all stages before the GPU, if their time was given as a whole

# Memory accesses per byte of a file: a write to the page cache, a read from there, and a write to a
# buffer. Decoding then reads the buffer and writes the pixels, which the copy to the GPU reads.
READ_MOVES = 3

# The most threads that threads_that_keep_up() considers.
MOST_THREADS = 65536


class Number(NamedTuple):
    """A value and its source, one of SOURCES. The value is None if it is unknown."""

    value: float | None
    source: str

    @property
    def known(self) -> bool:
        return self.value is not None


NOT_KNOWN = Number(None, UNKNOWN)


def measured(value: float | None) -> Number:
    return NOT_KNOWN if value is None else Number(value, MEASURED)


def given(value: float | None) -> Number:
    return NOT_KNOWN if value is None else Number(value, GIVEN)


def worst(sources: Iterable[str]) -> str:
    """The source of a number that is computed from others: the least certain of their sources."""
    return SOURCES[max(map(SOURCES.index, sources))]


@dataclass(frozen=True)
class Rates:
    """Rates of the machine, and sizes of the data.

    Attributes:
        sample_bytes: size of an encoded sample in storage.
        delivered_bytes: size of the same sample in the batch.
        storage: bytes per second from storage.
        cpu: samples per second, by number of decode threads. See cpu_supply() for other numbers.
        memory: bytes per second, reads and writes together.
        copy: bytes per second from the host to the GPU.
        gpu_preprocessing: True if the GPU decodes and transforms. There is no CPU stage then, and
            encoded bytes are copied to the GPU.
    """

    sample_bytes: Number = NOT_KNOWN
    delivered_bytes: Number = NOT_KNOWN
    storage: Number = NOT_KNOWN
    cpu: Mapping[int, Number] = field(default_factory=dict)
    memory: Number = NOT_KNOWN
    copy: Number = NOT_KNOWN
    gpu_preprocessing: bool = False


@dataclass(frozen=True)
class Cell:
    """One row of the table: a batch size and a number of threads.

    Attributes:
        batch_size: images per batch.
        threads: number of decode threads; 0 if it does not matter.
        step_s: the GPU's time per batch; unknown if none was given.
        prepare_s: time to prepare a batch, from the lowest known supply.
        demand, supply: samples per second that the GPU consumes, and that preparing delivers.
        binding: the bottleneck: the stage with the lowest rate, the GPU included. None if no
            supply is known.
        utilization: share of the time in which the GPU computes: step / max(step, prepare).
    """

    batch_size: int
    threads: int
    step_s: Number
    prepare_s: Number
    demand: Number
    supply: Number
    binding: str | None
    utilization: Number


# ---- supplies ------------------------------------------------------------------------------------


def copied_bytes(rates: Rates) -> Number:
    """Bytes per sample that are copied to the GPU."""
    return rates.sample_bytes if rates.gpu_preprocessing else rates.delivered_bytes


def memory_moves(rates: Rates) -> Number:
    """Bytes of memory traffic per sample. Always modelled, as CPU caches absorb some of it."""
    stored, copied = rates.sample_bytes.value, copied_bytes(rates).value
    if stored is None or copied is None:
        return NOT_KNOWN
    total = READ_MOVES * stored + copied
    if not rates.gpu_preprocessing:
        total += stored + copied  # decoding reads the one and writes the other
    return Number(total, MODELLED)


def cpu_supply(cpu: Mapping[int, Number], threads: int) -> Number:
    """Samples per second with that many threads.

    If the rate of that number is not known, it is modelled: the rate per thread of the next lower
    known number (or of the lowest) times the number of threads, as on a machine with a CPU for
    each thread, but at most the rate of the next higher known number. Rates never fall with more
    threads; a lower measurement is attributed to other load on the machine.
    """
    rates = _values(cpu)
    if not rates:
        return NOT_KNOWN
    return Number(_cpu_rate(rates, threads), cpu[threads].source if threads in rates else MODELLED)


def _cpu_rate(rates: Mapping[int, float], threads: int) -> float:
    known = sorted(rates)
    base = known[max(0, bisect.bisect_right(known, threads) - 1)]
    # For each known number, the best rate of it and the lower ones.
    most = dict(zip(known, itertools.accumulate((rates[n] for n in known), max)))
    if threads in rates:
        return most[threads]
    value = threads * rates[base] / base
    if base < threads:
        value = max(value, most[base])
    higher = next((most[n] for n in known if n > threads), value)
    return min(value, higher)


def _values(numbers: Mapping[_Key, Number]) -> dict[_Key, float]:
    """The values of the numbers that are known, by their keys."""
    return {key: one.value for key, one in numbers.items() if one.value is not None}


def supplies(rates: Rates, threads: int) -> dict[str, Number]:
    """Samples per second by stage, in the order in which data passes them."""
    found = {STORAGE: _per_sample(rates.storage, rates.sample_bytes)}
    if not rates.gpu_preprocessing:
        found[CPU] = cpu_supply(rates.cpu, threads)
    found[MEMORY] = _per_sample(rates.memory, memory_moves(rates))
    found[COPY] = _per_sample(rates.copy, copied_bytes(rates))
    return found


def _per_sample(rate: Number, size: Number) -> Number:
    if rate.value is None or size.value is None:
        return NOT_KNOWN
    return Number(rate.value / size.value, worst([rate.source, size.source]))


# ---- the table -----------------------------------------------------------------------------------


def cell(found: Mapping[str, Number], batch_size: int, threads: int, step_s: Number) -> Cell:
    """One row of the table.

    Args:
        found: samples per second by stage, without the GPU.
        batch_size: images per batch.
        threads: number of decode threads.
        step_s: the GPU's time per batch, in seconds.
    """
    known = _values(found)
    binding = slowest = min(known, key=lambda stage: known[stage], default=None)
    supply = prepare_s = demand = utilization = NOT_KNOWN
    if step_s.value is not None:
        demand = Number(batch_size / step_s.value, step_s.source)
    if slowest:
        # If the CPU's rate is uncertain, it is also uncertain which stage is the slowest.
        sources = [found[stage].source for stage in (slowest, CPU) if stage in known]
        rate = known[slowest]
        supply = Number(rate, worst(sources))
        prepare_s = Number(batch_size / rate, supply.source)
        if demand.value is not None:
            share = min(1.0, rate / demand.value)
            utilization = Number(share, worst([step_s.source, prepare_s.source]))
            binding = GPU if demand.value <= rate else slowest
    return Cell(batch_size, threads, step_s, prepare_s, demand, supply, binding, utilization)


class ThreadsNeeded(NamedTuple):
    """The number of threads that keep up with the GPU, or None, and the stage that prevents it."""

    threads: int | None
    stopped_by: str | None


def threads_that_keep_up(rates: Rates, demand: float) -> ThreadsNeeded:
    """The smallest number of threads that deliver `demand` samples per second.

    Stages with an unknown supply are ignored. Without a CPU stage the number is 0. If the CPU's
    supply is unknown, both fields are None.
    """
    others = {
        stage: supply
        for stage, supply in _values(supplies(rates, 1)).items()
        if stage != CPU and supply < demand
    }
    if others:
        return ThreadsNeeded(None, min(others, key=lambda stage: others[stage]))
    if rates.gpu_preprocessing:
        return ThreadsNeeded(0, None)
    cpu = _values(rates.cpu)
    if not cpu:
        return ThreadsNeeded(None, None)
    numbers = range(1, MOST_THREADS + 1)
    place = bisect.bisect_left(numbers, demand, key=lambda threads: _cpu_rate(cpu, threads))
    return ThreadsNeeded(numbers[place], None) if place < len(numbers) else ThreadsNeeded(None, CPU)
