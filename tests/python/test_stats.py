"""Counters and the report."""

import dataclasses
import threading
import time

import feedmill
import helpers
import numpy as np
import pytest
from feedmill.records import CAUSES, STEP_DTYPE
from feedmill.stats import sum_counters, verdict
from feedmill.paths import n_threads
from helpers import compose, native_loader
from torchvision import transforms as T


def test_nothing_ran_yet(numbered):
    loader = native_loader(numbered)
    stats = loader.stats()
    assert isinstance(stats, feedmill.Stats)
    assert (stats.path, stats.batches, len(stats.steps)) == ("none", 0, 0)
    assert loader.report().startswith("nothing to report")


@pytest.mark.parametrize("num_workers", [0, 2])
def test_the_numbers_of_two_epochs(numbered, num_workers):
    loader = native_loader(numbered, batch_size=8, num_workers=num_workers, shuffle=True)
    begin = time.monotonic_ns()
    for _ in range(2):
        for _ in loader:
            time.sleep(0.001)
    end = time.monotonic_ns()
    stats = loader.stats()
    assert stats.path == "native" and stats.reasons == ()
    assert (stats.epochs, stats.batches, stats.samples) == (2, 10, 80)
    assert (stats.native_samples, stats.fallback_samples, stats.errors) == (80, 0, 0)
    assert (stats.read_files, stats.read_opens) == (80, 80)
    assert stats.read_bytes > 80 * 500
    assert stats.reader in ("uring", "pread") and stats.reader_reason
    assert stats.n_threads == n_threads(loader)
    assert 0 < stats.decode_ns and 0 < stats.transform_ns and 0 < stats.worker_cpu_ns
    assert stats.data_wait_ns <= stats.host_wait_ns <= stats.wall_ns <= end - begin
    assert 0 <= stats.data_wait_share <= 1
    assert stats.first_batches == 2 and 0 < stats.open_ns < stats.iter_ns
    assert 0 < stats.first_batch_ns and stats.iter_ns + stats.first_batch_ns <= end - begin
    assert stats.first_batch_s == pytest.approx((stats.iter_ns + stats.first_batch_ns) / 2e9)
    assert "first batch " in loader.report() and ", mean of 2 epochs; " in loader.report()
    assert stats.images_per_second == pytest.approx(80 / (stats.wall_ns / 1e9))


def test_steps(numbered):
    loader = native_loader(numbered, batch_size=8, num_workers=2)
    for _ in range(3):
        for _ in loader:
            time.sleep(0.005)
    stats = loader.stats()
    steps = stats.steps
    assert steps.dtype == STEP_DTYPE
    assert steps["phase"].tolist() == [0] + [2] * 4 + ([1] + [2] * 4) * 2
    assert (sum(steps[name] for name in CAUSES) == steps["data_wait_ns"]).all()
    assert sum(getattr(stats, f"wait_{name}") for name in CAUSES) == stats.data_wait_ns
    assert steps["step"].tolist() == list(range(15))
    assert steps["epoch"].tolist() == [0] * 5 + [1] * 5 + [2] * 5
    assert (np.diff(steps["request_ns"].astype(np.int64)) > 5e6 * 0.9).all()
    assert (steps["data_wait_ns"] <= steps["host_wait_ns"]).all()
    assert int(steps["data_wait_ns"].sum()) == stats.data_wait_ns
    assert int(steps["host_wait_ns"].sum()) == stats.host_wait_ns
    assert (steps["ready_batches"] <= 5).all()
    assert steps["ready_batches"].max() > 0  # the consumer is slow


def test_several_native_loaders_are_summed(numbered):
    loader = native_loader(numbered, batch_size=8, num_workers=1)
    assert len(list(zip(loader, loader))) == 5
    stats = loader.stats()
    assert (stats.epochs, stats.batches, stats.samples) == (2, 10, 80)
    assert len(stats.steps) == 10
    loader.threads = 2  # another native loader
    list(loader)
    stats = loader.stats()
    assert (stats.epochs, stats.batches, stats.n_threads, len(stats.steps)) == (3, 15, 2, 15)


def test_every_counter_is_a_field(numbered):
    loader = native_loader(numbered, batch_size=8)
    list(loader)
    names = {field.name for field in dataclasses.fields(feedmill.Stats)}
    counters = loader._feedmill.handles._entries[0].handle.stats()
    assert set(counters) <= names
    for name in names:
        assert name in feedmill.Stats.__doc__, name


def test_torchs_path(numbered):
    numbered.transform = compose(T.Resize((8, 8)), T.Lambda(lambda image: image), T.ToTensor())
    loader = feedmill.DataLoader(numbered, batch_size=8)
    for _ in range(2):
        list(loader)
    stats = loader.stats()
    assert (stats.path, stats.epochs, stats.batches) == ("torch", 2, 10)
    assert 0 < stats.host_wait_ns <= stats.wall_ns
    assert stats.steps["epoch"].tolist() == [0] * 5 + [1] * 5
    assert "Lambda" in loader.report().splitlines()[0]


def test_torchs_path_keeps_the_latest_steps():
    loader = feedmill.DataLoader(range(70000), batch_size=1)
    for _ in loader:
        pass
    steps = loader.stats().steps
    assert len(steps) == 65536
    assert steps["step"].tolist() == list(range(70000 - 65536, 70000))


# ---- the verdict ---------------------------------------------------------------------------------

S = 10**9
BASE = {"path": "native", "batches": 100, "samples": 6400, "epochs": 1, "native_samples": 6400,
        "n_threads": 4, "wall_ns": 10 * S, "worker_cpu_ns": 36 * S, "reader": "uring",
        "read_files": 6400, "read_ns": 64 * S, "read_depth": 64}


@pytest.mark.parametrize(
    ("numbers", "words"),
    [
        ({"data_wait_ns": S // 20, "decode_ns": 10 * S}, "no stall: steps waited 0.5 %"),
        ({"data_wait_ns": 8 * S, "decode_ns": 30 * S, "transform_ns": 8 * S}, "decode-bound: 100 % of the 4"),
        ({"data_wait_ns": 8 * S, "decode_ns": 8 * S, "transform_ns": 30 * S}, "transform-bound: "),
        ({"data_wait_ns": 8 * S, "decode_ns": 30 * S, "transform_ns": 8 * S, "worker_cpu_ns": 15 * S},
         "CPU-starved: the 4 decode threads had work but got only 39 % of a core"),
        ({"data_wait_ns": 8 * S, "decode_ns": 5 * S, "wait_idle_ns": 28 * S}, "storage-bound: only 12 % "
         "of the decode threads had work while steps waited; a file took 10.0 ms to read, with up to "
         "64 in flight (uring)"),
        ({"data_wait_ns": 8 * S, "decode_ns": 24 * S, "wait_idle_ns": 16 * S}, "mixed: 50 % "),
        ({"data_wait_ns": 8 * S, "fallback_ns": 7 * S, "fallback_samples": 70, "fallback_kind": 70},
         "Pillow-bound: 70 of 6400 samples went through Pillow, one by one (kind 70)"),
        ({"path": "torch", "reasons": ("it is so",)}, "fell back to torch: it is so"),
        ({"batches": 0}, "nothing to report"),
    ],
)
def test_verdicts(numbers, words):
    stats = feedmill.Stats(**{**BASE, **numbers})
    first = stats.report().splitlines()[0]
    assert first == verdict(stats)
    assert first.startswith(words)


def test_a_late_first_batch_is_no_bottleneck():
    steps = np.zeros(10, STEP_DTYPE)
    steps["data_wait_ns"][0] = S
    stats = feedmill.Stats(**{**BASE, "data_wait_ns": S, "steps": steps})
    assert verdict(stats).startswith("start-up: ")


def test_sums():
    one = {"samples": 3, "n_threads": 4, "reader": "pread", "unheard_of": 1}
    two = {"samples": 4, "n_threads": 2, "reader": "uring"}
    assert sum_counters([{}, one, two]) == {"samples": 7, "n_threads": 4, "reader": "uring"}


def test_the_report_names_what_went_through_pillow(tmp_path):
    helpers.save_jpeg(tmp_path / "c" / "a.jpg", 30, 30, mode="CMYK")
    helpers.save_jpeg(tmp_path / "c" / "b.jpg", 30, 30)
    loader = native_loader(helpers.numbered_folder(tmp_path), batch_size=2)
    list(loader)
    assert "1 natively, 1 through Pillow (kind 1" in loader.report()


# ---- both paths, threads, differences ------------------------------------------------------------


def test_both_paths_are_summed(numbered):
    loader = feedmill.DataLoader(numbered, batch_size=8)
    native = numbered.transform
    list(loader)
    numbered.transform = compose(T.Lambda(lambda image: image), *native.transforms)
    list(loader)
    stats = loader.stats()
    assert (stats.path, stats.epochs, stats.batches, stats.torch_batches) == ("torch", 2, 10, 5)
    assert (stats.samples, len(stats.steps)) == (40, 10)
    assert (np.diff(stats.steps["request_ns"].astype(np.int64)) > 0).all()
    assert 0 < stats.torch_wait_ns < stats.data_wait_ns
    assert 0 < stats.torch_wall_ns < stats.wall_ns
    assert stats.images_per_second == pytest.approx(40e9 / (stats.wall_ns - stats.torch_wall_ns))
    numbered.transform = native
    list(loader)
    later = loader.stats()
    assert (later.path, later.epochs, later.batches, later.torch_batches) == ("native", 3, 15, 5)
    assert later.samples == 80 and "images/s" not in later.report()
    assert "80 samples in 10 batches natively, 5 batches on torch's path" in later.report()


def test_native_off_is_counted(numbered):
    loader = feedmill.DataLoader(numbered, batch_size=8, native="off")
    list(loader)
    stats = loader.stats()
    assert (stats.path, stats.epochs, stats.batches) == ("torch", 1, 5)
    assert stats.data_wait_share > 0.5
    assert loader.report().startswith("torch's own path, as native='off' was asked for; steps ")
    assert "fell back" not in loader.report()


def test_counters_never_go_back(numbered):
    """While iterators come and go and native loaders are closed, another thread reads them."""
    loader = native_loader(numbered, batch_size=8, num_workers=1)
    seen, failures, done = [], [], threading.Event()

    def read():
        while not done.is_set():
            try:
                stats = loader.stats()
                seen.append((stats.batches, stats.epochs, stats.threads_created))
            except Exception as error:
                failures.append(error)
            time.sleep(0.001)  # numpy gives up the GIL so often that others hardly ever get it

    thread = threading.Thread(target=read)
    thread.start()
    try:
        for i in range(60):
            loader.threads = 1 + i // 5 % 2
            next(iter(loader))
    finally:
        done.set()
        thread.join()
    assert not failures and len(seen) > 10
    for column in zip(*seen):
        assert list(column) == sorted(column)
    assert loader.stats().epochs == 60 and len(loader._feedmill.handles._entries) < 5


def test_the_difference_of_two_snapshots(numbered):
    loader = native_loader(numbered, batch_size=8)
    list(loader)
    earlier = loader.stats()
    loader.threads = 2  # another native loader, whose steps count from 0 again
    list(loader)
    later = loader.stats()
    interval = later - earlier
    assert (interval.batches, interval.samples, interval.epochs) == (5, 40, 1)
    assert interval.wall_ns == later.wall_ns - earlier.wall_ns
    assert interval.steps.tobytes() == later.steps[5:].tobytes()
    for name in ("path", "reasons", "reader", "cpu", "n_threads", "slot_bytes", "read_depth"):
        assert getattr(interval, name) == getattr(later, name)
    assert interval.report().splitlines()[1:]
    with pytest.raises(TypeError):
        later - 1
