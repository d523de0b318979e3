"""`feedmill sweep`: the model of a step's limits, what is measured for it, and its table."""

import json
import math

import helpers
import pytest
from feedmill import cli
from feedmill import sweep_model as model
from feedmill.sweep_model import NOT_KNOWN, Rates, given, measured
from hypothesis import given as drawn
from hypothesis import settings
from hypothesis import strategies as st

# ---- the model -----------------------------------------------------------------------------------

POSITIVE = st.floats(1e-3, 1e12)


def numbers(values=POSITIVE):
    """A number from any source, or an unknown one."""
    sources = st.sampled_from(model.SOURCES[:3])
    return st.just(NOT_KNOWN) | st.builds(model.Number, values, sources)


KNOWN = st.builds(model.Number, POSITIVE, st.sampled_from(model.SOURCES[:3]))
RATES = st.builds(
    Rates,
    sample_bytes=numbers(),
    delivered_bytes=numbers(),
    storage=numbers(),
    cpu=st.dictionaries(st.integers(1, 256), KNOWN, max_size=4),
    memory=numbers(),
    copy=numbers(),
    gpu_preprocessing=st.booleans(),
)


@settings(deadline=None, max_examples=300)
@drawn(RATES, st.integers(1, 4096), numbers(st.floats(1e-6, 1e4)),
       st.lists(st.integers(1, 300), min_size=2, max_size=6))
def test_properties(rates, batch_size, step_s, threads):
    rows = [
        model.cell(model.supplies(rates, n), batch_size, n, step_s) for n in sorted(threads)
    ]
    for row in rows:
        found = model.supplies(rates, row.threads)
        known = {stage: one.value for stage, one in found.items() if one.known}
        assert all(math.isfinite(value) and value > 0 for value in known.values())
        assert row.supply.value == min(known.values(), default=None)
        assert row.prepare_s.known == row.supply.known == bool(known)
        if step_s.known:
            known[model.GPU] = row.demand.value
        if row.binding is None:
            assert not set(known) - {model.GPU}
        else:
            assert known[row.binding] == min(known.values())
        assert row.utilization.known == (step_s.known and row.supply.known)
        if row.utilization.known:
            assert 0 <= row.utilization.value <= 1
            assert (row.utilization.value == 1) or row.binding != model.GPU
    for fewer, more in zip(rows, rows[1:]):
        if fewer.supply.known:
            assert fewer.supply.value <= more.supply.value
            assert fewer.prepare_s.value >= more.prepare_s.value
        if fewer.utilization.known:
            assert fewer.utilization.value <= more.utilization.value


@settings(deadline=None, max_examples=300)
@drawn(RATES, POSITIVE)
def test_threads_that_keep_up(rates, demand):
    """The answer keeps up, one thread less does not; where none do, the named stage is too slow."""
    enough = model.threads_that_keep_up(rates, demand)

    def limits(threads):
        found = model.supplies(rates, threads)
        return {stage: one.value for stage, one in found.items() if one.known}

    if enough.threads:
        assert min(limits(enough.threads).values()) >= demand
        assert enough.threads == 1 or limits(enough.threads - 1)[model.CPU] < demand
    elif enough.threads == 0:
        assert rates.gpu_preprocessing and min(limits(1).values(), default=demand) >= demand
    elif enough.stopped_by:
        assert limits(model.MOST_THREADS)[enough.stopped_by] < demand
    else:
        assert not rates.cpu


def test_a_measurement_counts_for_its_number_of_threads():
    cpu = {1: measured(100.0), 4: measured(300.0)}
    assert model.cpu_supply(cpu, 1) == measured(100.0)
    assert model.cpu_supply(cpu, 2) == (200.0, model.MODELLED)
    assert model.cpu_supply(cpu, 3) == (300.0, model.MODELLED)
    assert model.cpu_supply(cpu, 4) == measured(300.0)
    assert model.cpu_supply(cpu, 8) == (600.0, model.MODELLED)
    assert model.cpu_supply({}, 8) == NOT_KNOWN


def test_stages():
    rates = Rates(given(1e5), given(6e5), given(1e9), {1: given(1000.0)}, given(16e9), given(12e9))
    assert {stage: one.value for stage, one in model.supplies(rates, 2).items()} == {
        "storage": 1e4, "CPU": 2e3, "memory bandwidth": 1e4, "copy": 2e4
    }
    on_gpu = Rates(given(1e5), given(6e5), given(1e9), {1: given(1000.0)}, given(16e9),
                   given(12e9), gpu_preprocessing=True)
    assert {stage: one.value for stage, one in model.supplies(on_gpu, 2).items()} == {
        "storage": 1e4, "memory bandwidth": 4e4, "copy": 1.2e5
    }


def test_sources():
    assert model.worst(["measured", "given"]) == "given"
    assert model.worst(["given", "modelled", "measured"]) == "modelled"
    rates = Rates(measured(1e5), given(6e5), measured(1e9), {1: measured(1000.0)})
    row = model.cell(model.supplies(rates, 4), 64, 4, given(0.1))
    assert (row.binding, row.prepare_s.source, row.utilization) == ("GPU", "modelled",
                                                                    (1.0, "modelled"))
