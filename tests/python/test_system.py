"""The log's samples of CPU, memory, storage and GPU use of the process and its host."""

import ctypes
import os
import time

import feedmill
import pytest
import torch
from feedmill._ops import native
from feedmill.profiling.log import recorder
from feedmill.system import nvml, proc_files
from feedmill.system.usage import System
from helpers import compose, native_loader
from torchvision import transforms as T

NUMBERS = {"clock_ns", "interval_ns", "process_cpu", "major_faults", "host_cpu", "read_bytes",
           "copied_bytes", "batches", "samples", "device_read_bytes", "usable_cpus", "rss_bytes",
           "swap_bytes"}


def work(seconds):
    end = time.process_time() + seconds
    while time.process_time() < end:
        pass


def files(monkeypatch, **texts):
    """Replaces the contents of /proc files: stat, io and status."""
    monkeypatch.setattr(
        proc_files, "text_or_empty", lambda path, errors="": texts.get(os.path.basename(path), "")
    )


# ---- single samples ------------------------------------------------------------------------------


def test_a_sample_of_this_process():
    sampler = System()
    assert sampler.latest is None
    counters = {"read_bytes": 100, "copied_bytes": 5, "batches": 2, "samples": 16, "epochs": 1}
    sampler.begin(counters)
    sampler.begin({})  # a second call has no effect
    before = time.monotonic_ns()
    work(0.2)
    sample = sampler.sample({name: 3 * value for name, value in counters.items()})
    assert set(sample) - {"page_cache_share"} <= NUMBERS
    assert before < sample["clock_ns"] <= time.monotonic_ns()
    assert sample["interval_ns"] >= 200e6
    used_s = sample["process_cpu"] * sample["interval_ns"] / 1e9
    assert 0.19 < used_s < 10
    assert 0 < sample["host_cpu"] <= 1
    assert 1e6 < sample["rss_bytes"] < 1e12 and sample["swap_bytes"] >= 0
    assert sample["usable_cpus"] == native.usable_cpus()
    assert [sample[name] for name in ("read_bytes", "copied_bytes", "batches", "samples")] == [
        200, 10, 4, 32
    ]
    assert sampler.latest["latest"] == sample


def test_latest_and_total_samples():
    sampler = System()
    sampler.begin({"batches": 1})
    samples = [sampler.sample({"batches": n}) for n in (2, 5, 7)]
    latest, total = sampler.latest["latest"], sampler.latest["total"]
    assert latest == samples[-1] and set(total) >= {"interval_ns", "process_cpu", "rss_bytes"}
    assert (latest["batches"], total["batches"]) == (2, 6)
    assert total["clock_ns"] == latest["clock_ns"]
    assert total["interval_ns"] == sum(one["interval_ns"] for one in samples)


def test_host_cpu(monkeypatch):
    sampler = System()
    files(monkeypatch, stat="cpu  100 0 50 800 50 0 0 0 77 0\ncpu0 1 2 3 4 5\n")
    sampler.begin({})
    files(monkeypatch, stat="cpu  160 10 80 870 60 10 5 5 99 9\n")
    # 120 of 200 ticks were busy. iowait does not count; guest time is part of user time.
    assert sampler.sample({})["host_cpu"] == 0.6
    assert "host_cpu" not in sampler.sample({})  # no tick has passed


def test_reads_from_storage(monkeypatch):
    sampler = System()
    files(monkeypatch, io="rchar: 5\nread_bytes: 1000\ncancelled_write_bytes: 3\n")
    sampler.begin({"read_bytes": 0})
    files(monkeypatch, io="read_bytes: 3000\n", status="VmRSS:\t  20 kB\nVmSwap:\t 3 kB\n")
    sample = sampler.sample({"read_bytes": 8000})
    assert (sample["device_read_bytes"], sample["page_cache_share"]) == (2000, 0.75)
    assert (sample["rss_bytes"], sample["swap_bytes"]) == (20480, 3072)
    files(monkeypatch, io="read_bytes: 90000\n")
    assert sampler.sample({"read_bytes": 9000})["page_cache_share"] == 0  # others read as well
    assert "page_cache_share" not in sampler.sample({"read_bytes": 9000})


def test_a_system_without_these_files(monkeypatch):
    files(monkeypatch)
    sampler = System()
    sampler.begin({})
    sample = sampler.sample({})
    absent = {"host_cpu", "device_read_bytes", "rss_bytes", "swap_bytes"}
    assert set(sample) == NUMBERS - absent


def test_files_that_are_not_there():
    for path in ("/proc/self/no such file", "/proc"):
        assert proc_files.text_or_empty(path) == ""
        with pytest.raises(OSError):
            proc_files.read_text(path)


def test_files_that_are_not_utf_8(tmp_path):
    (tmp_path / "mountinfo").write_bytes(b"caf\xe9 3\n")
    path = str(tmp_path / "mountinfo")
    assert proc_files.read_text(path) == "caf\ufffd 3\n"
    assert proc_files.text_or_empty(path, errors="strict") == ""


def test_parsing_of_numbers_by_name():
    text = ("nr_throttled 3\nMemTotal:  24 kB\nGroups:\t\nName:\tx\nSeccomp:\t2\n"
            "Active(anon): 7 kB\n")
    assert proc_files.numbers_by_name(text) == {"nr_throttled": 3, "MemTotal": 24, "Seccomp": 2}


# ---- samples of a loader -------------------------------------------------------------------------


def test_native_loader(numbered, tmp_path):
    loader = native_loader(numbered, batch_size=8, num_workers=2, log=str(tmp_path / "log"))
    assert loader.stats().system is None
    for _ in range(2):
        list(loader)
    stats = loader.stats()
    latest, total = stats.system["latest"], stats.system["total"]
    assert (latest["batches"], latest["samples"]) == (5, 40)
    assert (total["batches"], total["samples"], total["read_bytes"]) == (10, 80, stats.io.bytes)
    assert (stats - stats).system == stats.system  # a difference has the later sample


def test_torchs_path_and_watched_loaders(tmp_path):
    log = str(tmp_path / "log")
    for loader in (feedmill.DataLoader([1, 2, 3], log=log), feedmill.watch([1, 2, 3], log=log)):
        list(loader)
        assert loader.stats().system["latest"]["batches"] == 3


def test_samples_are_taken_every_interval(monkeypatch, tmp_path):
    monkeypatch.setattr(recorder, "INTERVAL_NS", 10_000_000)
    watched = feedmill.watch(range(10), log=str(tmp_path / "log"))
    assert watched.stats().system is None
    seen = set()
    for _ in watched:
        time.sleep(0.004)
        latest = watched.stats().system
        seen.add(latest and latest["latest"]["clock_ns"])
    assert len(seen - {None}) >= 2


LOADERS = {
    "native": lambda dataset: native_loader(dataset, batch_size=8),
    "torch": lambda dataset: feedmill.DataLoader(dataset, batch_size=8, native="off"),
    "hybrid": lambda dataset: feedmill.DataLoader(dataset, batch_size=8, native="hybrid"),
    "watched": lambda dataset: feedmill.watch([dataset[i] for i in range(5)]),
}


@pytest.mark.parametrize("kind", LOADERS)
def test_without_a_log_nothing_is_sampled(numbered, kind, monkeypatch, tmp_path):
    sampled = []

    class Counted(System):
        def begin(self, counters):
            sampled.append("begin")
            super().begin(counters)

        def sample(self, counters):
            sampled.append("sample")
            return super().sample(counters)

    monkeypatch.setattr(recorder, "System", Counted)
    monkeypatch.setattr(recorder, "INTERVAL_NS", 0)  # every step ends an interval
    monkeypatch.delenv("FEEDMILL_LOG", raising=False)
    if kind == "hybrid":
        numbered.transform = compose(T.Lambda(lambda image: image.copy()), T.PILToTensor(),
                                     T.Resize((8, 8)))
    loader = LOADERS[kind](numbered)
    for _ in range(2):
        list(loader)
    assert loader.stats().path == kind and loader.stats().system is None
    loader.report()
    assert sampled == []
    # A log that is set later starts the sampling.
    monkeypatch.setenv("FEEDMILL_LOG", str(tmp_path / "log"))
    list(loader)
    assert sampled[0] == "begin" and "sample" in sampled
    assert loader.stats().system["total"]["batches"] == 5


def test_a_forked_process_starts_its_own_samples(tmp_path):
    watched = feedmill.watch([1, 2], log=str(tmp_path / "log"))
    list(watched)
    read_end, write_end = os.pipe()
    if os.fork() == 0:
        before = watched.stats().system
        list(watched)
        total = watched.stats().system["total"]
        os.write(write_end, f"{before} {total['batches']} {total['process_cpu'] >= 0}".encode())
        os._exit(0)
    os.wait()
    assert os.read(read_end, 100) == b"None 2 True"


# ---- GPUs ----------------------------------------------------------------------------------------


class Driver:
    """A fake libnvidia-ml.so.1 with two GPUs, the second one without utilization rates."""

    def __init__(self, fails=""):
        self.fails = fails

    def __getattr__(self, name):
        def call(*arguments):
            return 999 if name == self.fails else getattr(self, f"_{name}")(*arguments)

        return call

    def _nvmlInit_v2(self):
        return 0

    def _nvmlDeviceGetCount_v2(self, count):
        count._obj.value = 2
        return 0

    def _nvmlDeviceGetHandleByIndex_v2(self, index, device):
        device._obj.value = 1000 + index
        return 0

    def _nvmlDeviceGetMemoryInfo(self, device, memory):
        memory._obj.used = 10 * device.value
        return 0

    def _nvmlDeviceGetUtilizationRates(self, device, rates):
        rates._obj.gpu = 73
        return 0 if device.value == 1000 else 3  # NVML_ERROR_NOT_SUPPORTED


@pytest.fixture
def visible(monkeypatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return lambda text: monkeypatch.setenv("CUDA_VISIBLE_DEVICES", text)


def test_gpus(visible):
    first = {"index": 0, "memory_bytes": 10000, "busy": 0.73}
    second = {"index": 1, "memory_bytes": 10010}
    assert nvml.Nvml(Driver()).read() == [first, second]
    for text, wanted in [("1", [second]), ("0, 1", [first, second]), ("GPU-5a", [first, second])]:
        visible(text)
        assert nvml.Nvml(Driver()).read() == wanted
    visible("0")
    assert nvml.Nvml(Driver("nvmlDeviceGetMemoryInfo")).read() == [{"index": 0, "busy": 0.73}]


@pytest.mark.parametrize("fails", ["nvmlInit_v2", "nvmlDeviceGetCount_v2"])
def test_a_driver_that_does_not_answer(fails, monkeypatch):
    monkeypatch.setattr(ctypes, "CDLL", lambda name: Driver(fails))
    monkeypatch.setattr(nvml, "_opened_by", 0)
    assert nvml.gpus() is None
    monkeypatch.setattr(nvml, "_opened_by", 0)


def test_gpus_of_a_training_on_gpus(visible, monkeypatch):
    opened = []
    monkeypatch.setattr(ctypes, "CDLL", lambda name: opened.append(name) or Driver())
    monkeypatch.setattr(nvml, "_opened_by", 0)
    sampler = System()
    sampler.begin({})
    assert "gpu" not in sampler.sample({}) and not opened  # this process uses no GPU
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    for _ in range(2):
        assert [one["index"] for one in sampler.sample({})["gpu"]] == [0, 1]
    assert opened == ["libnvidia-ml.so.1"]
    monkeypatch.setattr(nvml, "_opened_by", 0)
