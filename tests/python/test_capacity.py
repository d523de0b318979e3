"""The model that predicts a step's time."""

from dataclasses import replace

import numpy as np
import pytest
from feedmill.profiling.counting.records import FIRST, STEADY, STEP_DTYPE
from feedmill.profiling.report.capacity import (
    CPUS,
    LOOP,
    STORAGE,
    THREADS,
    Rates,
    parts,
    predict,
    threads_needed,
)
from feedmill.profiling.report.stats import Stats

# Batches of 100: 100 ms of decoding and 50 of transforming, against a step of 50 ms.
RATES = Rates(batch_samples=100, n_threads=2, usable_cpus=8, decode_s=1e-3, transform_s=0.5e-3,
              compute_s=0.045, overhead_s=0.005)


@pytest.mark.parametrize(
    ("change", "seconds"),
    [
        ({}, 0.075),
        ({"n_threads": 1}, 0.15),
        ({"n_threads": 3}, 0.05),
        ({"n_threads": 100}, 0.05),  # the loop itself
        ({"decode_s": 0}, 0.05),
        ({"decode_s": 0, "n_threads": 1}, 0.05),
        ({"transform_s": 0, "n_threads": 1}, 0.1),
        ({"storage_rate": None}, 0.075),
        ({"storage_rate": 500}, 0.2),
        ({"storage_rate": 500, "n_threads": 8}, 0.2),
        # Two CPUs for two decode threads and a training of one thread.
        ({"usable_cpus": 2, "other_cpu_s": 0.05}, 0.1),
        ({"usable_cpus": 2, "n_threads": 8}, 0.075),
        ({"python_s": 0.06}, 0.11),
        # Nothing is prepared while the step computes.
        ({"overlaps": False}, 0.125),
        ({"overlaps": False, "decode_s": 0, "transform_s": 0}, 0.05),
    ],
)
def test_predictions(change, seconds):
    assert predict(replace(RATES, **change)) == pytest.approx(seconds)


def test_the_limiting_stage():
    seconds = parts(replace(RATES, storage_rate=1000, other_cpu_s=0.01))
    assert list(seconds) == [LOOP, THREADS, CPUS, STORAGE]
    assert list(seconds.values()) == pytest.approx([0.05, 0.075, 0.02, 0.1])


@pytest.mark.parametrize(
    ("compute_s", "needed"), [(0.145, 1), (0.144, 2), (0.045, 3), (0.0449, 4), (10, 1)]
)
def test_threads_needed(compute_s, needed):
    rates = replace(RATES, compute_s=compute_s)
    assert threads_needed(rates) == needed
    assert predict(replace(rates, n_threads=needed)) == pytest.approx(rates.loop_s)
    assert needed == 1 or predict(replace(rates, n_threads=needed - 1)) > rates.loop_s


def test_no_number_of_threads_suffices_for_steps_that_take_no_time():
    assert threads_needed(replace(RATES, compute_s=0, overhead_s=0)) is None


def steps_of(n, **values):
    steps = np.zeros(n, STEP_DTYPE)
    steps["phase"], steps["n_samples"] = STEADY, 100
    for name, value in values.items():
        steps[name] = value
    return steps


def test_rates_measured_from_a_run():
    """Ignores the first step, and the last one, whose compute time is not known."""
    steps = steps_of(11, compute_ns=40_000_000, data_wait_ns=50_000_000, host_wait_ns=60_000_000,
                     overhead_ns=10_000_000, storage_ns=30_000_000, decode_ns=20_000_000)
    steps["phase"][0], steps["compute_ns"][0], steps["compute_ns"][-1] = FIRST, 10**12, 0
    counters = {
        "path": "native", "batches": 11, "samples": 1100, "native_samples": 1100, "n_threads": 2,
        "usable_cpus": 4, "decode_ns": 6 * 10**9, "transform_ns": 2 * 10**9,
        "starved_ns": 2 * 10**9, "fallback_ns": 11 * 10**6, "elapsed_ns": 10 * 10**9,
        "process_cpu_ns": 9 * 10**9, "worker_cpu_ns": 6 * 10**9,
    }
    stats = Stats.from_flat(counters, steps=steps)
    rates = stats.rates()
    assert (rates.batch_samples, rates.n_threads, rates.usable_cpus) == (100, 2, 4)
    assert rates.decode_s == pytest.approx(4.5 / 1100)
    assert rates.transform_s == pytest.approx(1.5 / 1100)
    assert (rates.compute_s, rates.overhead_s) == pytest.approx((0.04, 0.01))
    assert rates.python_s == pytest.approx(0.001)
    assert rates.other_cpu_s == pytest.approx(0.3 * 0.1)
    assert rates.storage_rate == pytest.approx(1000)
    assert stats.rates(overlaps=False) == replace(rates, overlaps=False)
    assert stats.capacity.storage == pytest.approx(1000)
    assert stats.capacity.cpu == pytest.approx(2 * 1100 / 6)
    assert stats.capacity.python == pytest.approx(100 / 0.011)
    assert stats.demand == pytest.approx(2500)
    assert stats.steady_images_per_second == pytest.approx(1000)
    assert stats.steady_wait_share == pytest.approx(0.5)
    assert stats.steady_au == pytest.approx(0.5)


def test_storage_that_is_not_the_limit_has_no_rate():
    steps = steps_of(9, compute_ns=10**7, data_wait_ns=10**7, host_wait_ns=10**7, decode_ns=10**7)
    counters = {
        "path": "native", "batches": 9, "native_samples": 900, "decode_ns": 10**9, "n_threads": 1,
    }
    stats = Stats.from_flat(counters, steps=steps)
    assert stats.rates().storage_rate is None and stats.capacity.storage is None


@pytest.mark.parametrize("steps", [steps_of(0), steps_of(4, n_samples=0)])
def test_steps_of_other_paths_give_no_rates(steps):
    stats = Stats(path="torch", batches=len(steps), steps=steps)
    assert stats.rates() is None and stats.demand is None
    assert set(vars(stats.capacity).values()) == {None}
