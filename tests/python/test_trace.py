"""The command `feedmill trace`, ranges in torch.profiler, and scalars for TensorBoard."""

import itertools
import json
import subprocess
import sys
from collections import Counter, defaultdict

import feedmill
import helpers
import pytest
import torch
from feedmill.cli import cli
from feedmill.cli.trace import _assign_lanes, trace_events, write_trace
from feedmill.profiling.log import ranges
from feedmill.profiling.log.reader import Run, read_log
from helpers import native_loader

_EPSILON_US = 0.0005  # times are nanoseconds, written as microseconds


@pytest.fixture(autouse=True)
def no_environment(monkeypatch):
    monkeypatch.delenv("FEEDMILL_LOG", raising=False)


def trace_of(path, output):
    write_trace(path, output)
    return check(json.loads(output.read_text()))


def check(trace):
    """Checks that a trace is valid in Chrome's format. Returns its events."""
    events = trace["traceEvents"]
    names = defaultdict(set)
    for event in events:
        assert event["ph"] in "MXCbe" and isinstance(event["name"], str)
        assert type(event["pid"]) is int and type(event["tid"]) is int
        if event["ph"] == "M":
            names[event["name"]].add((event["pid"], event["tid"]))
            continue
        assert isinstance(event["ts"], float) and event["ts"] >= 0
        if event["ph"] == "C":
            (value,) = event["args"].values()
            assert value >= 0
    assert {pid for pid, _ in names["process_name"]} == {event["pid"] for event in events}
    spans = [event for event in events if event["ph"] == "X"]
    assert names["thread_name"] == {(event["pid"], event["tid"]) for event in spans}
    check_nesting(spans)
    check_pairs([event for event in events if event["ph"] in "be"])
    return events


def check_nesting(spans):
    """Checks that spans of a track are nested or do not overlap."""
    tracks = defaultdict(list)
    for span in spans:
        assert isinstance(span["dur"], float) and span["dur"] >= 0
        tracks[span["pid"], span["tid"]].append((span["ts"], -span["dur"]))
    for track in tracks.values():
        open_ends = []
        for begin, minus in sorted(track):
            end = begin - minus
            while open_ends and open_ends[-1] <= begin + _EPSILON_US:
                open_ends.pop()
            assert not open_ends or end <= open_ends[-1] + _EPSILON_US
            open_ends.append(end)


def check_pairs(events):
    """Checks that events with an id begin and end in turns."""
    tracks = defaultdict(list)
    for event in events:
        tracks[event["cat"], event["id"]].append(event)
    for track in tracks.values():
        track.sort(key=lambda event: event["ts"])
        assert [event["ph"] for event in track] == ["b", "e"] * (len(track) // 2)


def named(events, what):
    return {(event["pid"], event["tid"]): event["args"]["name"]
            for event in events if event["ph"] == "M" and event["name"] == what}


def spans_of(events, track):
    """The spans of the tracks with this name."""
    tracks = {one for one, name in named(events, "thread_name").items() if name.startswith(track)}
    return [event for event in events
            if event["ph"] == "X" and (event["pid"], event["tid"]) in tracks]


def logged(path, loader):
    loader._feedmill.recorder.finish()
    (run,) = read_log(path, samples=True)
    return run


# ---- contents of a trace -------------------------------------------------------------------------


@pytest.fixture
def traced(numbered, tmp_path):
    """The run of a log, and the trace's events, of two epochs, one of which was ended early."""
    path = tmp_path / "run.jsonl"
    loader = native_loader(numbered, batch_size=8, num_workers=2, log=path, log_samples=True)
    list(zip(range(3), loader))
    list(loader)
    run = logged(path, loader)
    return run, trace_of(path, tmp_path / "trace.json")


def test_the_training_loop(traced):
    run, events = traced
    spans = spans_of(events, "training loop")
    names = Counter(span["name"] for span in spans)
    assert names["wait"] == len(run.steps) == 8
    for name in ("storage", "decode", "overhead", "compute"):
        total_us = sum(span["dur"] for span in spans if span["name"] == name)
        field = f"{name}_ns"
        assert total_us == pytest.approx(run.steps[field].sum() / 1000)
    waits = [span for span in spans if span["name"] == "wait"]
    waited_us = run.steps["host_wait_ns"].sum() / 1000
    assert sum(span["dur"] for span in waits) == pytest.approx(waited_us)
    assert [span["args"]["phase"] for span in waits].count("first") == 1


def test_the_decode_threads(traced):
    run, events = traced
    assert {name for name in named(events, "thread_name").values() if "decode" in name} == {
        f"decode {worker}" for worker in run.samples["worker"]
    }
    spans = spans_of(events, "decode ")
    samples = [span for span in spans if span["name"].startswith("sample ")]
    assert sorted(int(span["name"].split()[1]) for span in samples) == sorted(run.samples["index"])
    for name in ("decode", "transform"):
        total_us = sum(span["dur"] for span in spans if span["name"] == name)
        assert total_us == pytest.approx(run.samples[f"{name}_ns"].sum() / 1000)


def test_the_slots(traced):
    run, events = traced
    spans = spans_of(events, "slot ")
    names = Counter(span["name"] for span in spans)
    batches = set(run.samples["batch"])
    assert names["filling"] == len(batches)
    # Each delivered batch has a span in which it was ready.
    assert names["ready"] == len(run.steps) == 8
    assert set(names) <= {"filling", "ready", "borrowed"}


def test_the_reads(traced):
    run, events = traced
    begins = [event for event in events if event["ph"] == "b"]
    assert sorted(event["args"]["index"] for event in begins) == sorted(run.samples["index"])
    flight = [event["args"]["value"] for event in events
              if event["ph"] == "C" and event["name"] == "files in flight"]
    assert flight[-1] == 0 and max(flight) == len({event["id"] for event in begins})


def test_the_counters(traced):
    _, events = traced
    names = {event["name"] for event in events if event["ph"] == "C"}
    assert {"batches ready", "files in flight", "CPUs used by the process", "CPU of the host, %",
            "memory of the process, MB", "reads from storage, MB/s"} >= names
    assert {"batches ready", "CPUs used by the process"} <= names
    (name,) = named(events, "process_name").values()
    assert "(native, pid " in name


def test_slots_of_borrowed_batches(numbered, tmp_path):
    path = tmp_path / "run.jsonl"
    loader = native_loader(numbered, batch_size=4, sampler=10 * list(range(40)), log=path,
                           log_samples=True)
    for _ in loader:
        pass
    logged(path, loader)
    spans = spans_of(trace_of(path, tmp_path / "t"), "slot ")
    borrowed = [span for span in spans if span["name"] == "borrowed"]
    # All batches whose slot was used again.
    n_slots = len({(span["pid"], span["tid"]) for span in spans})
    assert len(borrowed) == 100 - n_slots > 0


def test_damaged_samples_and_pillow(numbered, tmp_path):
    bad = tmp_path / "bad.jpg"
    bad.write_bytes(b"no image")
    bmp = tmp_path / "bmp.jpg"
    helpers.Image.fromarray(helpers.pixels(20, 20)).save(bmp, "BMP")
    numbered.samples[9] = (str(bad), 9)
    numbered.samples[20] = (str(bmp), 20)
    path = tmp_path / "run.jsonl"
    loader = native_loader(numbered, batch_size=4, num_workers=2, log=path, log_samples=True)
    iterator = iter(loader)
    got = [helpers.take(iterator) for _ in range(11)]
    assert got.count("end") == 1 and sum(isinstance(one, tuple) for one in got) == 1
    assert len(logged(path, loader).steps) == 9
    events = trace_of(path, tmp_path / "t")
    assert Counter(span["name"] for span in spans_of(events, "slot "))["ready"] >= 8


def test_a_log_without_samples(tmp_path):
    path = tmp_path / "run.jsonl"
    loaders = [feedmill.DataLoader([1, 2, 3], log=path), feedmill.DataLoader([1, 2], log=path)]
    for loader in loaders * 2:
        list(loader)
    for loader in loaders:
        loader._feedmill.recorder.finish()
    events = trace_of(path, tmp_path / "trace.json")
    assert set(named(events, "thread_name").values()) == {"training loop"}
    assert {event["pid"] for event in events} == {1, 2}
    spans = spans_of(events, "training loop")
    assert Counter(span["name"] for span in spans)["python"] == 10


def test_concurrent_loops_have_tracks_of_their_own(numbered, tmp_path):
    path = tmp_path / "run.jsonl"
    loader = native_loader(numbered, batch_size=8, num_workers=1, log=path, log_samples=True)
    list(zip(loader, loader))
    logged(path, loader)
    events = trace_of(path, tmp_path / "trace.json")
    loops = {name for name in named(events, "thread_name").values() if "loop" in name}
    assert loops == {"training loop of 0", "training loop of 1"}


def test_gpus(tmp_path):
    gpu = {"index": 3, "memory_bytes": 5_000_000, "busy": 0.25}
    one = {"type": "system", "clock_ns": 2 * 10**9, "interval_ns": 10**9,
           "process_cpu": 1.5, "device_read_bytes": 7_000_000, "gpu": [gpu]}
    run = Run({"pid": 1, "rank": 2, "path": "native", "place": "/a/b:3"}, system=[one])
    events = list(trace_events([run]))
    assert {event["name"]: event["args"]["value"] for event in events if event["ph"] == "C"} == {
        "CPUs used by the process": 1.5, "reads from storage, MB/s": 7.0, "GPU 3, %": 25.0,
        "memory of GPU 3, MB": 5.0,
    }
    assert named(events, "process_name") == {(1, 0): "feedmill rank 2: b:3 (native, pid 1)"}


def test_overlapping_spans_get_different_tracks():
    spans = [(0, 5), (1, 3), (2, 9), (3, 4), (5, 5), (5, 7), (8, 9)]
    lanes = list(_assign_lanes(spans))
    assert [span for _, span in lanes] == spans
    for (one, a), (other, b) in itertools.combinations(lanes, 2):
        assert one != other or a[1] <= b[0]
    assert max(lane for lane, _ in lanes) == 2


# ---- the command ---------------------------------------------------------------------------------


def test_the_command(tmp_path, capsys):
    path = tmp_path / "run.jsonl"
    list(watched := feedmill.watch([1, 2], log=path))
    object.__getattribute__(watched, "_feedmill_recorder").finish()
    assert cli.main(["trace", str(path)]) == 0
    out = capsys.readouterr().out.splitlines()
    assert out[0] == str(tmp_path / "run.trace.json") and "no samples" in out[1]
    check(json.loads((tmp_path / "run.trace.json").read_text()))
    assert cli.main(["trace", str(path), "-o", str(tmp_path / "other")]) == 0
    check(json.loads((tmp_path / "other").read_text()))
    for words, text in [(["nowhere"], "No such file"), ([cli.__file__], "not the log of a run")]:
        with pytest.raises(SystemExit) as end:
            cli.main(["trace", *words])
        assert end.value.code == 2 and text in capsys.readouterr().err


def test_the_command_does_not_import_torch():
    code = "import sys, feedmill.cli.trace; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=600).returncode == 0


# ---- torch.profiler ------------------------------------------------------------------------------


def waits(loader):
    """How often the loader's wait is a range in a profile of one epoch."""
    activities = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=activities) as profile:
        n = sum(1 for _ in loader)
    return n, {one.key: one.count for one in profile.key_averages()}.get(ranges.WAIT, 0)


def test_ranges_of_the_profiler(numbered):
    assert waits(native_loader(numbered, batch_size=8, num_workers=2)) == (5, 5)
    # Here the last request, which finds the end of the epoch, has a range, too.
    assert waits(feedmill.DataLoader(numbered, batch_size=8, native="off")) == (5, 6)
    assert waits(feedmill.watch([1, 2, 3])) == (3, 4)


def test_without_a_profiler_there_is_no_range(numbered, monkeypatch):
    def no_range(name):
        raise AssertionError(name)

    monkeypatch.setattr(ranges, "record_function", no_range)
    assert len(list(native_loader(numbered, batch_size=8))) == 5
    assert ranges.waiting(divmod, 7, 2) == (3, 1)


# ---- TensorBoard ---------------------------------------------------------------------------------


class Writer(dict):
    def add_scalar(self, tag, value, global_step):
        assert type(value) is float
        self[tag, global_step] = value


def test_scalars(numbered):
    for loader in (native_loader(numbered, batch_size=8), feedmill.watch([1, 2, 3])):
        writer = Writer()
        feedmill.log_scalars(writer, loader, 1)
        assert not writer
        list(loader)
        feedmill.log_scalars(writer, loader, 2)
        feedmill.log_scalars(writer, loader, 3)  # no step since the last call
        assert {step for _, step in writer} == {2}
        stats = loader.stats()
        value = {tag.removeprefix("feedmill/"): value for (tag, _), value in writer.items()}
        assert value["stall"] == pytest.approx(stats.data_wait_share)
        assert value["au"] == pytest.approx(1 - value["stall"])
        assert 0 <= value["wait_p50_ms"] <= value["wait_p99_ms"]
        causes = [one for tag, one in value.items() if tag.startswith("wait_ms/")]
        mean_ms = stats.waits.data_wait_ns / 1e6 / stats.batches
        assert sum(causes) == pytest.approx(mean_ms) and len(causes) == 10
        assert ("images_per_second" in value) == (stats.path == "native")


def test_scalars_of_an_interval():
    writer, watched = Writer(), feedmill.watch([1, 2, 3])
    counters = object.__getattribute__(watched, "_feedmill_counters")
    epoch, now = counters.begin_epoch(), 10**12
    for n_steps, wait_ms in ((4, 10), (5, 30)):
        for _ in range(n_steps):
            counters.add_step(epoch, now, now + wait_ms * 10**6)
            now += 40 * 10**6
        feedmill.log_scalars(writer, watched, n_steps, prefix="train")
    assert writer["train/wait_p50_ms", 4] == 10 and writer["train/wait_p99_ms", 5] == 30
    assert writer["train/wait_ms/python", 5] == 30
    # From the fourth step's batch to the ninth's: 5 x 40 ms, and another 20 ms of waiting.
    assert writer["train/stall", 5] == pytest.approx(150 / 220)


