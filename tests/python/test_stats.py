"""The counters and steps of stats(), and the numbers in report()."""

import copy
import dataclasses
import itertools
import pickle
import threading
import time

import feedmill
import helpers
import numpy as np
import pytest
from feedmill._dispatch.paths import n_threads
from feedmill.profiling.counting import accounts
from feedmill.profiling.counting.records import BOUNDARY, CAUSES, FIRST, STEADY, STEP_DTYPE
from feedmill.profiling.report.stats import SlowSample, join_slow_samples, sum_counters
from feedmill.profiling.report.stats_parts import FLAT_NAMES, MOVED, PARTS
from feedmill.system import host_metrics
from helpers import compose, native_loader
from torchvision import transforms as T


def train(loader, n_epochs, step_s):
    for _ in range(n_epochs):
        for _ in loader:
            time.sleep(step_s)


def test_stats_before_the_first_epoch(numbered):
    loader = native_loader(numbered)
    stats = loader.stats()
    assert isinstance(stats, feedmill.Stats)
    assert (stats.path, stats.batches, len(stats.steps)) == ("none", 0, 0)
    assert loader.report().startswith("nothing to report")


@pytest.mark.parametrize("num_workers", [0, 2])
def test_stats_of_two_epochs(numbered, num_workers):
    loader = native_loader(numbered, batch_size=8, num_workers=num_workers, shuffle=True)
    begin = time.monotonic_ns()
    train(loader, 2, 0.001)
    end = time.monotonic_ns()
    stats = loader.stats()
    assert stats.path == "native" and stats.reasons == ()
    assert (stats.epochs, stats.batches, stats.samples) == (2, 10, 80)
    assert (stats.decode.native_samples, stats.decode.fallback_samples, stats.errors) == (80, 0, 0)
    assert (stats.io.files, stats.io.opens) == (80, 80)
    assert stats.io.bytes > 80 * 500
    assert stats.io.reader in ("uring", "pread") and stats.io.reader_reason
    assert stats.decode.n_threads == n_threads(loader)
    assert min(stats.decode.decode_ns, stats.decode.transform_ns, stats.decode.worker_cpu_ns) > 0
    waits = stats.waits
    assert waits.data_wait_ns <= waits.host_wait_ns <= waits.wall_ns <= end - begin
    assert 0 <= stats.data_wait_share <= 1
    assert waits.first_batches == 2 and 0 < waits.open_ns < waits.iter_ns
    assert 0 < waits.first_batch_ns and waits.iter_ns + waits.first_batch_ns <= end - begin
    assert waits.first_batch_s == pytest.approx((waits.iter_ns + waits.first_batch_ns) / 2e9)
    assert "first batch " in loader.report() and ", mean of 2 epochs; " in loader.report()
    assert stats.images_per_second == pytest.approx(80 / (waits.wall_ns / 1e9))


def test_records_of_steps(numbered):
    loader = native_loader(numbered, batch_size=8, num_workers=2)
    for epoch in range(1, 4):
        for _ in loader:
            time.sleep(0.005)
            # After the consumer's pause, the rest of the epoch is ready.
            while loader.stats().decode.native_samples < 40 * epoch:
                time.sleep(0.001)
    stats = loader.stats()
    steps = stats.steps
    assert steps.dtype == STEP_DTYPE
    assert steps["phase"].tolist() == [0] + [2] * 4 + ([1] + [2] * 4) * 2
    assert sum(getattr(stats.waits, name) for name in CAUSES) == stats.waits.data_wait_ns
    assert steps["step"].tolist() == list(range(15))
    assert steps["epoch"].tolist() == [0] * 5 + [1] * 5 + [2] * 5
    assert (np.diff(steps["request_ns"].astype(np.int64)) > 5e6 * 0.9).all()
    assert (steps["data_wait_ns"] <= steps["host_wait_ns"]).all()
    assert int(steps["data_wait_ns"].sum()) == stats.waits.data_wait_ns
    assert int(steps["host_wait_ns"].sum()) == stats.waits.host_wait_ns
    assert (steps["ready_batches"] <= 5).all()
    assert steps["ready_batches"].tolist()[1:5] == [4, 3, 2, 1]


def test_stats_of_several_native_loaders_are_summed(numbered):
    loader = native_loader(numbered, batch_size=8, num_workers=1)
    assert len(list(zip(loader, loader))) == 5
    stats = loader.stats()
    assert (stats.epochs, stats.batches, stats.samples) == (2, 10, 80)
    assert len(stats.steps) == 10
    loader.threads = 2  # another native loader
    list(loader)
    stats = loader.stats()
    assert (stats.epochs, stats.batches, stats.decode.n_threads, len(stats.steps)) == (3, 15, 2, 15)


def test_every_counter_is_a_field(numbered):
    loader = native_loader(numbered, batch_size=8)
    list(loader)
    counters = loader._feedmill.engine_pool._entries[0].handle.stats()
    assert set(counters) <= set(FLAT_NAMES)
    assert set(loader.stats().flat()) == set(FLAT_NAMES)


def test_every_field_is_documented_and_has_a_flat_name():
    places = set(FLAT_NAMES.values())
    assert len(places) == len(FLAT_NAMES)
    for part, kind in {"": feedmill.Stats, **PARTS}.items():
        for field in dataclasses.fields(kind):
            assert f"{field.name}" in kind.__doc__, field.name
            assert not part or (part, field.name) in places


def test_flat_names_convert_both_ways(numbered):
    loader = native_loader(numbered, batch_size=8)
    list(loader)
    stats = loader.stats()
    assert feedmill.Stats.from_flat(stats.flat(), slow_samples=stats.slow_samples) == stats
    assert stats.flat()["read_files"] == stats.io.files == 40
    assert (stats.flat()["epochs"], stats.flat()["cpu"]) == (1, stats.decode.simd)


def test_former_attributes_name_the_new_place():
    stats = feedmill.Stats()
    with pytest.raises(AttributeError, match=r"^Stats\.read_files is now Stats\.io\.files$"):
        stats.read_files
    for name, place in MOVED.items():
        with pytest.raises(AttributeError, match=f"^Stats.{name} is now Stats.{place}$"):
            getattr(stats, name)
        part, field = place.split(".")
        assert hasattr(getattr(stats, part), field)
    with pytest.raises(AttributeError, match="'Stats' object has no attribute 'nonsense'"):
        stats.nonsense
    assert pickle.loads(pickle.dumps(stats)) == copy.deepcopy(stats) == stats


def test_torchs_path(numbered):
    numbered.transform = compose(T.Resize((8, 8)), T.Lambda(lambda image: image.copy()), T.ToTensor())
    loader = feedmill.DataLoader(numbered, batch_size=8)
    for _ in range(2):
        list(loader)
    stats = loader.stats()
    assert (stats.path, stats.epochs, stats.batches) == ("torch", 2, 10)
    assert 0 < stats.waits.host_wait_ns <= stats.waits.wall_ns
    assert stats.steps["epoch"].tolist() == [0] * 5 + [1] * 5
    assert "Lambda" in loader.report().splitlines()[0]


@pytest.mark.slow
def test_torchs_path_keeps_the_latest_steps():
    loader = feedmill.DataLoader(range(70000), batch_size=1)
    for _ in loader:
        pass
    steps = loader.stats().steps
    assert len(steps) == 65536
    assert steps["step"].tolist() == list(range(70000 - 65536, 70000))


# ---- sums, other paths, threads, differences -----------------------------------------------------


def test_counters_are_summed():
    one = {"samples": 3, "n_threads": 4, "reader": "pread", "unheard_of": 1}
    two = {"samples": 4, "n_threads": 2, "reader": "uring"}
    assert sum_counters([{}, one, two]) == {"samples": 7, "n_threads": 2, "reader": "uring"}


def test_the_report_counts_samples_that_went_through_pillow(tmp_path):
    helpers.save_bare_jpeg(tmp_path / "c" / "a.jpg", 30, 30)
    helpers.save_jpeg(tmp_path / "c" / "b.jpg", 30, 30)
    loader = native_loader(helpers.numbered_folder(tmp_path), batch_size=2)
    list(loader)
    assert "1 natively, 1 through Pillow (1 of an unsupported variant" in loader.report()


def test_stats_of_both_paths_are_summed(numbered):
    loader = feedmill.DataLoader(numbered, batch_size=8)
    native = numbered.transform
    list(loader)
    numbered.transform = compose(T.Lambda(lambda image: image.copy()), *native.transforms)
    list(loader)
    stats = loader.stats()
    waits = stats.waits
    assert (stats.path, stats.epochs, stats.batches, waits.torch_batches) == ("torch", 2, 10, 5)
    assert (stats.samples, len(stats.steps)) == (40, 10)
    assert (np.diff(stats.steps["request_ns"].astype(np.int64)) > 0).all()
    assert 0 < waits.torch_wait_ns < waits.data_wait_ns
    assert 0 < waits.torch_wall_ns < waits.wall_ns
    assert stats.images_per_second == pytest.approx(40e9 / (waits.wall_ns - waits.torch_wall_ns))
    numbered.transform = native
    list(loader)
    later = loader.stats()
    assert (later.path, later.epochs, later.batches) == ("native", 3, 15)
    assert later.waits.torch_batches == 5
    assert later.samples == 80 and "images/s" not in later.report()
    assert "80 samples in 10 batches natively, 5 batches on torch's path" in later.report()


def test_stats_with_native_off(numbered):
    loader = feedmill.DataLoader(numbered, batch_size=8, native="off")
    list(loader)
    stats = loader.stats()
    assert (stats.path, stats.epochs, stats.batches) == ("torch", 1, 5)
    assert 0 < stats.waits.data_wait_ns == stats.waits.host_wait_ns <= stats.waits.wall_ns
    assert loader.report().startswith("torch's own path, as native='off' was asked for; steps ")
    assert "fell back" not in loader.report()


def test_counters_never_decrease(numbered):
    """Another thread reads them while iterators are made and native loaders are closed."""
    loader = native_loader(numbered, batch_size=8, num_workers=1)
    seen, failures, done = [], [], threading.Event()

    def read():
        while not done.is_set():
            try:
                stats = loader.stats()
                seen.append((stats.batches, stats.epochs, stats.decode.threads_created))
            except Exception as error:
                failures.append(error)
            time.sleep(0.001)  # lets other threads have the GIL, which NumPy releases only briefly

    thread = threading.Thread(target=read)
    thread.start()
    try:
        for i in itertools.count():  # epochs that are over
            if i >= 60 and (len(seen) > 10 or failures):
                break
            loader.threads = 1 + i // 5 % 2
            next(iter(loader))
    finally:
        done.set()
        thread.join()
    assert not failures
    for column in zip(*seen):
        assert list(column) == sorted(column)
    assert loader.stats().epochs == i and len(loader._feedmill.engine_pool._entries) < 5


def test_the_difference_of_two_snapshots(numbered):
    loader = native_loader(numbered, batch_size=8)
    list(loader)
    earlier = loader.stats()
    loader.threads = 2  # makes another native loader, whose steps begin at 0
    list(loader)
    later = loader.stats()
    interval = later - earlier
    assert (interval.batches, interval.samples, interval.epochs) == (5, 40, 1)
    assert interval.waits.wall_ns == later.waits.wall_ns - earlier.waits.wall_ns
    assert interval.steps.tobytes() == later.steps[5:].tobytes()
    assert (interval.path, interval.reasons) == (later.path, later.reasons)
    for name in ("reader", "cpu", "n_threads", "slot_bytes", "read_depth"):
        assert interval.flat()[name] == later.flat()[name]
    assert interval.report().splitlines()[1:]
    with pytest.raises(TypeError):
        later - 1


# ---- steps, slow samples, the process ------------------------------------------------------------


def test_percentiles_and_waits_by_phase(numbered):
    loader = native_loader(numbered, batch_size=4, num_workers=2)
    train(loader, 2, 0.001)
    stats = loader.stats()
    assert [len(stats.steps_of(phase)) for phase in ("first", "boundary", "steady", None)] == [
        1, 1, 18, 20
    ]
    host = stats.percentiles("host_wait_ns", None)
    assert 0 < host.p50 <= host.p90 <= host.p99 <= host.max == stats.steps["host_wait_ns"].max()
    assert 10**6 <= stats.percentiles("compute_ns").p50
    for phase in ("first", "boundary", "steady", None):
        waits = stats.waits_by_cause(phase)
        assert tuple(waits) == CAUSES
        assert sum(waits.values()) == stats.steps_of(phase)["data_wait_ns"].sum()
    assert stats.waits_by_cause(None) == {name: getattr(stats.waits, name) for name in CAUSES}
    assert 0 <= stats.au <= 1 and stats.au == 1 - stats.data_wait_share
    assert 0 < stats.demand <= 4000 * 1.001  # a step sleeps for at least a millisecond
    assert stats.steady_images_per_second < stats.demand
    assert stats.percentiles("data_wait_ns", "first").max == stats.steps["data_wait_ns"][0]
    with pytest.raises(ValueError, match="phase is 'last'; it must be one of 'first', 'boundary'"):
        stats.steps_of("last")


def test_slow_samples(tmp_path):
    for i in range(30):
        helpers.save_jpeg(tmp_path / "c" / f"{i:02}.jpg", 20, 20, seed=i)
    slow = helpers.save_jpeg(tmp_path / "c" / "slow.jpg", 1200, 1000)
    # A small image takes longer where its thread loses the CPU; hardly so ten times.
    for _ in range(10):
        loader = native_loader(helpers.numbered_folder(tmp_path), batch_size=31)
        list(loader)
        first = loader.stats().slow_samples
        costs = [one.cost_ns for one in first]
        assert len({one.index for one in first}) == 16 and costs == sorted(costs, reverse=True)
        slowest = max(first, key=lambda one: one.decode_ns)
        if slowest.index == 30:
            break
    assert (slowest.path, slowest.index, slowest.file_bytes) == (str(slow), 30, slow.stat().st_size)
    assert 0 < slowest.decode_ns and 0 < slowest.read_ns
    # They are kept after their native loader is closed, and merged with later ones.
    loader.threads = 2
    list(loader)
    loader.threads = 3
    list(loader)
    stats = loader.stats()
    by_index = {one.index: one.cost_ns for one in stats.slow_samples}
    assert len(by_index) == 16
    # A sample's cost is the highest of all epochs. A sample of the first epoch is missing only if
    # the 16 that are kept cost no less.
    least_ns = min(by_index.values())
    assert all(one.cost_ns <= by_index.get(one.index, least_ns) for one in first)
    assert (stats - stats).slow_samples == ()


def test_slow_samples_are_merged_by_index():
    def one(index, cost_ns):
        return SlowSample("", index, 1, cost_ns, 0, 0, 0)

    joined = join_slow_samples([[one(1, 5), one(2, 9)], [one(1, 7), one(3, 1)]])
    assert [(got.index, got.cost_ns) for got in joined] == [(2, 9), (1, 7), (3, 1)]
    assert len(join_slow_samples([[one(i, i) for i in range(40)]])) == 16


@pytest.mark.parametrize("native", ["require", "off"])
def test_numbers_about_the_process(numbered, native):
    loader = feedmill.DataLoader(numbered, batch_size=8, native=native)
    assert loader.stats().process.elapsed_ns == 0
    begin, cpu = time.monotonic_ns(), time.process_time_ns()
    list(loader)
    while time.process_time_ns() - cpu < 3 * 10**7:
        pass
    first, end = loader.stats().process, time.monotonic_ns()
    assert 0 < first.elapsed_ns <= end - begin
    assert 2 * 10**7 <= first.cpu_ns
    assert 1 <= first.usable_cpus and 0 <= first.throttled_periods <= first.elapsed_ns
    later = loader.stats().process
    assert later.elapsed_ns > first.elapsed_ns
    assert (later - first).elapsed_ns == later.elapsed_ns - first.elapsed_ns
    assert (later - first).usable_cpus == later.usable_cpus


@pytest.mark.parametrize("kept", [4, 100])
def test_steps_counted_from_outside(monkeypatch, kept):
    """Three epochs: one left early, one of a single step, and one that has not ended."""
    monkeypatch.setattr(accounts, "KEPT_STEPS", kept)
    counters = accounts.StepCounters()
    wanted, now = [], 1000
    for epoch, (n, ends) in enumerate([(3, False), (1, True), (4, False)]):
        assert counters.begin_epoch() == epoch
        for i in range(n):
            phase = STEADY if i else BOUNDARY if epoch else FIRST
            request, wait, share = now, 10 + len(wanted), 0.5 * (i % 2)
            now += wait + 7 + i
            compute = 7 + i if i + 1 < n or ends else 0
            decode = int(share * wait)
            wanted.append((len(wanted), epoch, phase, request, wait, compute, decode))
            counters.add_step(epoch, request, request + wait, share)
            assert not counters.is_final
        if ends:
            counters.end_epoch(now)
            assert counters.is_final
    steps = counters.steps()
    names = ("step", "epoch", "phase", "request_ns", "host_wait_ns", "compute_ns", "decode_ns")
    assert [tuple(int(step[name]) for name in names) for step in steps] == wanted[-kept:]
    assert (steps["data_wait_ns"] == steps["host_wait_ns"]).all()
    assert (steps["python_ns"] + steps["decode_ns"] == steps["data_wait_ns"]).all()
    assert (steps["last_index"] == -1).all()
    assert counters.counters()["host_wait_ns"] == sum(step[4] for step in wanted)
    for first in range(9):
        counters.logged_steps = first
        unlogged = counters.unlogged_steps()
        assert unlogged["step"].tolist() == [s[0] for s in wanted[-kept:] if s[0] >= first]


CGROUPS = """
12:cpuset:/
3:cpu,cpuacct:/docker/abc
0::/user.slice/job
"""


def test_throttling_is_read_from_both_cgroup_versions(monkeypatch):
    files = {
        "/proc/self/cgroup": CGROUPS.strip(),
        "/sys/fs/cgroup/cpu,cpuacct/cpu.stat": "nr_periods 9\nnr_throttled 4\nthrottled_time 7000",
        "/sys/fs/cgroup/user.slice/job/cpu.stat": "usage_usec 5\nnr_throttled 2\nthrottled_usec 6",
        "/sys/fs/cgroup/user.slice/cpu.stat": "usage_usec 5\n",
    }

    def text(path):
        if path not in files:
            raise FileNotFoundError(path)
        return files[path]

    monkeypatch.setattr(host_metrics, "read_text", text)
    assert host_metrics._throttled() == (4, 7000)
    del files["/sys/fs/cgroup/cpu,cpuacct/cpu.stat"]
    assert host_metrics._throttled() == (2, 6000)
    files.clear()
    assert host_metrics._throttled() == (0, 0)
