"""What limits a training step: rates of the stages, and what follows from them. Pure functions.

Data goes through the stages one after another, all of them at work at the same time, so that the
slowest one sets the rate: preparing a batch takes its samples divided by the smallest supply. Rates
here are samples (or bytes) a second, times seconds. Each number knows where it comes from.
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
PREPARING = "preparing"  # all of them together, where its time was given as a whole

# How often reading moves a byte through memory: into the page cache, out of it, into the buffer.
# Decoding then reads it and writes what is delivered; the copy to the GPU reads what it copies.
READ_MOVES = 3

# Where the search for enough threads ends.
MOST_THREADS = 65536


class Number(NamedTuple):
    """A value and one of SOURCES; no value where it is unknown."""

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
    """The source of a number that is computed from others: the least certain of theirs."""
    return SOURCES[max(map(SOURCES.index, sources))]


@dataclass(frozen=True)
class Rates:
    """What is known of the machine and the data.

    Attributes:
        sample_bytes: an encoded sample, as it is stored.
        delivered_bytes: the same sample in its batch.
        storage: bytes a second that storage gives.
        cpu: samples a second by the number of threads that prepare them; other numbers follow.
        memory: bytes a second, those read and those written together.
        copy: bytes a second from the host to the GPU.
        gpu_preprocessing: the GPU decodes and transforms: there is no CPU stage, and the encoded
            bytes are what is copied.
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
        batch_size, threads: which one; 0 threads where their number does not matter.
        step_s: the GPU's time for the batch; unknown where none was given.
        prepare_s: time to prepare a batch, by the smallest known supply.
        demand, supply: samples a second that the step takes, and that preparing gives.
        binding: the stage with the smallest supply, GPU included; None where no supply is known.
        utilization: share of the time that the GPU computes: step / max(step, prepare).
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
    """What a sample brings over the bus to the GPU."""
    return rates.sample_bytes if rates.gpu_preprocessing else rates.delivered_bytes


def memory_moves(rates: Rates) -> Number:
    """Bytes that a sample moves through memory. Always a model: caches keep some of it."""
    stored, copied = rates.sample_bytes.value, copied_bytes(rates).value
    if stored is None or copied is None:
        return NOT_KNOWN
    total = READ_MOVES * stored + copied
    if not rates.gpu_preprocessing:
        total += stored + copied  # what is copied is what is delivered
    return Number(total, MODELLED)


def cpu_supply(cpu: Mapping[int, Number], threads: int) -> Number:
    """Samples a second with that many threads.

    As known for that number. Else as many times the rate per thread of the next lower known one
    (or of the lowest), as on a machine with a CPU for every thread, but not more than the next
    higher known one gives. More threads never give less: where a measurement says so, it was
    disturbed.
    """
    rates = _values(cpu)
    if not rates:
        return NOT_KNOWN
    return Number(_cpu_rate(rates, threads), cpu[threads].source if threads in rates else MODELLED)


def _cpu_rate(rates: Mapping[int, float], threads: int) -> float:
    known = sorted(rates)
    base = known[max(0, bisect.bisect_right(known, threads) - 1)]
    # The best of each known number and those below it.
    most = dict(zip(known, itertools.accumulate((rates[n] for n in known), max)))
    if threads in rates:
        return most[threads]
    value = threads * rates[base] / base
    if base < threads:
        value = max(value, most[base])
    higher = next((most[n] for n in known if n > threads), value)
    return min(value, higher)


def _values(numbers: Mapping[_Key, Number]) -> dict[_Key, float]:
    """Those that are known."""
    return {key: one.value for key, one in numbers.items() if one.value is not None}


def supplies(rates: Rates, threads: int) -> dict[str, Number]:
    """Samples a second by stage, in the order of the data's way."""
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
    """One row.

    Args:
        found: samples a second by stage, without the GPU's.
        step_s: the GPU's time for a batch, in seconds.
    """
    known = _values(found)
    binding = slowest = min(known, key=lambda stage: known[stage], default=None)
    supply = prepare_s = demand = utilization = NOT_KNOWN
    if step_s.value is not None:
        demand = Number(batch_size / step_s.value, step_s.source)
    if slowest:
        # That another stage is slower than the CPU is no surer than the CPU's rate.
        sources = [found[stage].source for stage in (slowest, CPU) if stage in known]
        rate = known[slowest]
        supply = Number(rate, worst(sources))
        prepare_s = Number(batch_size / rate, supply.source)
        if demand.value is not None:
            share = min(1.0, rate / demand.value)
            utilization = Number(share, worst([step_s.source, prepare_s.source]))
            binding = GPU if demand.value <= rate else slowest
    return Cell(batch_size, threads, step_s, prepare_s, demand, supply, binding, utilization)


class Enough(NamedTuple):
    """How many threads keep up; None where none do, and the stage that stops them."""

    threads: int | None
    stopped_by: str | None


def threads_that_keep_up(rates: Rates, demand: float) -> Enough:
    """The smallest number of threads that gives `demand` samples a second.

    Stages with an unknown supply stop nothing. Without a CPU stage 0 threads do. Where the CPU's
    supply is unknown itself, both fields are None.
    """
    others = {
        stage: supply
        for stage, supply in _values(supplies(rates, 1)).items()
        if stage != CPU and supply < demand
    }
    if others:
        return Enough(None, min(others, key=lambda stage: others[stage]))
    if rates.gpu_preprocessing:
        return Enough(0, None)
    cpu = _values(rates.cpu)
    if not cpu:
        return Enough(None, None)
    numbers = range(1, MOST_THREADS + 1)
    place = bisect.bisect_left(numbers, demand, key=lambda threads: _cpu_rate(cpu, threads))
    return Enough(numbers[place], None) if place < len(numbers) else Enough(None, CPU)
