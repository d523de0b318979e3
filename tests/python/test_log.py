"""The log of steps, which has every step exactly once, whatever happens."""

import itertools
import json
import os
import pickle
import signal
import subprocess
import sys
import time
import warnings
from pathlib import Path

import feedmill
import helpers
import numpy as np
import pytest
import torch
from feedmill import watch
from feedmill.cli import cli
from feedmill.profiling.counting.accounts import StepCounters
from feedmill.profiling.counting.records import CAUSES, KEPT_STEPS, PHASES, SAMPLE_DTYPE, STEP_DTYPE
from feedmill.profiling.log import recorder as log
from feedmill.profiling.log.reader import read_log
from helpers import log_lines, native_loader

NAMES = STEP_DTYPE.names


@pytest.fixture(autouse=True)
def no_environment(monkeypatch):
    for name in ("FEEDMILL_LOG", "FEEDMILL_LOG_SAMPLES", "RANK"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def file(tmp_path):
    return tmp_path / "run.jsonl"


def rows(steps):
    return sorted(tuple(step[name] for name in NAMES) for step in steps)


def of_stats(stats):
    """The steps of stats() in the form of the log's lines."""
    return rows(
        dict(zip(NAMES, row), phase=PHASES[row[NAMES.index("phase")]])
        for row in stats.steps.tolist()
    )


def assert_complete(path, *loaders):
    """Deletes the loaders and expects each of their steps once in the log. Returns its lines."""
    wanted = sorted(itertools.chain(*(of_stats(loader.stats()) for loader in loaders)))
    for loader in loaders:
        recorder_of(loader).finish()
    for line in Path(path).read_text().splitlines():
        assert isinstance(json.loads(line), dict)
    records = log_lines(path)
    assert rows(records["step"]) == wanted
    assert "lost" not in records
    return records


def recorder_of(loader):
    inside = vars(loader).get("_feedmill") if hasattr(loader, "__dict__") else None
    return inside.recorder if inside else object.__getattribute__(loader, "_feedmill_recorder")


# ---- each step exactly once ----------------------------------------------------------------------


@pytest.mark.parametrize("options", [
    {}, {"num_workers": 2}, {"num_workers": 2, "persistent_workers": True, "seed": 5},
])
def test_two_epochs(numbered, file, options):
    loader = native_loader(numbered, batch_size=8, log=str(file), **options)
    for _ in range(2):
        list(loader)
    stats = loader.stats()
    records = assert_complete(file, loader)
    assert len(records["step"]) == 10
    for name in ("host_wait_ns", "data_wait_ns", *CAUSES):
        assert sum(step[name] for step in records["step"]) == getattr(stats.waits, name)
    # One at the end of each epoch.
    assert [(one["batches"], one["samples"]) for one in records["stats"]] == [(5, 40), (10, 80)]
    latest = records["stats"][-1]
    for name in ("path", "reader", "data_wait_ns", "read_bytes", "wall_ns", "n_threads", "cpu"):
        assert latest[name] == stats.flat()[name]
    assert [one["samples"] for one in records["system"]] == [40, 40]
    assert sum(one["read_bytes"] for one in records["system"]) == stats.io.bytes
    # On a busy machine all of a tiny image's time may be waiting for a CPU.
    assert all(one["index"] in range(40) and Path(one["path"]).exists()
               and one["decode_ns"] + one["transform_ns"] + one["starved_ns"] > 0
               for one in records["slow"])
    assert len(records["slow"]) == 2 * 16


def test_the_run_line(numbered, file, monkeypatch):
    monkeypatch.setenv("RANK", "3")
    loader = feedmill.DataLoader(numbered, batch_size=8, native="require", seed=7, log=file)
    begin, begin_ns = time.time(), time.monotonic_ns()
    list(loader)
    end, end_ns = time.time(), time.monotonic_ns()
    first = json.loads(file.read_text().splitlines()[0])
    stats = loader.stats()
    assert (first["type"], first["feedmill"]) == ("run", feedmill.__version__)
    assert (first["pid"], first["rank"], first["path"]) == (os.getpid(), 3, "native")
    assert first["place"].startswith(f"{__file__}:")
    assert (first["threads"], first["slots"], first["slot_bytes"]) == (
        stats.decode.n_threads, stats.memory.n_slots, stats.memory.slot_bytes
    )
    assert (first["reader"], first["reader_reason"], first["cpu"]) == (
        stats.io.reader, stats.io.reader_reason, stats.decode.simd
    )
    assert first["batch_size"] == 8 and first["settings"]["seed"] == 7
    assert begin <= first["time"] <= end and begin_ns <= first["clock_ns"] <= end_ns
    # A second line is written only when something has changed.
    list(loader)
    assert len(log_lines(file)["run"]) == 1
    loader.native = "off"
    list(loader)
    first, second = assert_complete(file, loader)["run"]
    assert (second["path"], second["reasons"]) == ("torch", ["native='off' was asked for"])
    assert second["loader"] == first["loader"]


@pytest.mark.parametrize("options", [{}, {"num_workers": 2, "persistent_workers": True}])
def test_epochs_that_are_ended_early(numbered, file, options):
    loader = native_loader(numbered, batch_size=8, log=file, **options)
    for n in (2, 1, 5, 3):
        for _ in zip(range(n), loader):
            pass
        list(zip(range(n), loader, loader))
    kept = iter(loader)
    next(kept)
    assert len(assert_complete(file, loader)["step"]) >= 2 + 1 + 5 + 3 + 1


def test_torchs_path(numbered, file):
    loader = feedmill.DataLoader(numbered, batch_size=8, native="off", log=file)
    for _ in range(2):
        for _ in loader:
            pass
    next(iter(loader))
    records = assert_complete(file, loader)
    assert [step["phase"] for step in records["step"]] == (
        ["first"] + ["steady"] * 4 + ["boundary"] + ["steady"] * 4 + ["boundary"]
    )
    assert {one["path"] for one in records["run"]} == {"torch"}
    assert all(step["data_wait_ns"] == step["python_ns"] > 0 for step in records["step"])


def test_the_path_changes_between_epochs(numbered, file):
    loader = feedmill.DataLoader(numbered, batch_size=8, num_workers=1, persistent_workers=True,
                                 log=file)
    for native in ("auto", "off", "auto", "off"):
        loader.native = native
        list(zip(range(3), loader))
        list(loader)
        if native == "auto":
            loader.threads = 2  # needs another native loader
    records = assert_complete(file, loader)
    assert len(records["step"]) == 4 * (3 + 5)
    assert len({step["source"] for step in records["step"]}) >= 3


@pytest.mark.parametrize("samples", [False, True])
def test_many_native_loaders(numbered, file, samples):
    loader = native_loader(numbered, batch_size=8, log=file, log_samples=samples)
    for threads in (1, 2, 3, 1, 2, 3):  # each change closes the former native loader
        loader.threads = threads
        list(zip(range(threads), loader, loader))
    records = assert_complete(file, loader)
    assert len(loader._feedmill.engine_pool._entries) < 6
    assert len(records["step"]) >= 2 * 2 * (1 + 2 + 3)
    if samples:
        assert len(records["sample"]) >= 8 * len(records["step"])


def test_a_watched_loader(file):
    watched = watch([1, 2, 3], log=file)
    for _ in range(2):
        list(watched)
    next(iter(watched))
    stats = watched.stats()
    records = assert_complete(file, watched)
    assert len(records["step"]) == 7 and records["run"][0]["path"] == "watched"
    assert records["run"][0]["place"].startswith(f"{__file__}:")
    assert records["stats"][-1]["batches"] == stats.batches == 7
    iterator = watch(iter(range(4)), log=file)
    next(iterator)
    list(iterator)
    recorder_of(iterator).finish()
    assert len(log_lines(file)["step"]) == 11


@pytest.mark.slow
def test_more_steps_than_are_kept(file):
    watched = watch(range(KEPT_STEPS + 5000), log=file)
    for _ in watched:
        pass
    recorder_of(watched).finish()
    records = log_lines(file)
    assert [step["step"] for step in records["step"]] == list(range(KEPT_STEPS + 5000))
    assert "lost" not in records


def test_overwritten_steps_are_counted_as_lost(file):
    counters = StepCounters()
    recorder = log.Recorder(None, counters)
    recorder.begin(file)
    epoch = counters.begin_epoch()
    for i in range(KEPT_STEPS + 10):  # nothing is written meanwhile
        counters.add_step(epoch, i, i + 1)
    recorder.finish()
    records = log_lines(file)
    assert len(records["step"]) == KEPT_STEPS
    assert [(one["steps"], one["samples"]) for one in records["lost"]] == [(10, 0)]


def test_the_log_grows_every_interval(file, monkeypatch):
    monkeypatch.setattr(log, "INTERVAL_NS", 20_000_000)
    watched = watch(range(30), log=file)
    seen = []
    for i in watched:
        time.sleep(0.005)
        if file.exists():
            seen.append(file.read_text().count('"type":"step"'))
    # The log grows during the epoch. The latest step is written after its compute time is known.
    assert len(set(seen)) >= 3 and 0 < seen[-1] < 30
    records = assert_complete(file, watched)
    assert len(records["system"]) >= 3
    assert sum(one["batches"] for one in records["system"]) == 30
    ends = [one["clock_ns"] for one in records["system"]]
    begins = [one["clock_ns"] - one["interval_ns"] for one in records["system"]]
    assert begins[1:] == ends[:-1]


def test_samples(numbered, file):
    loader = native_loader(numbered, batch_size=8, num_workers=2, log=file, log_samples=True)
    for _ in range(2):
        list(loader)
    loader.threads = 1
    list(loader)
    records = assert_complete(file, loader)
    samples = records["sample"]
    assert sorted(one["index"] for one in samples) == sorted(3 * list(range(40)))
    names = set(SAMPLE_DTYPE.names)
    assert all(names <= set(one) for one in samples)
    assert len({(one["source"], one["epoch"], one["index"]) for one in samples}) == 120
    assert {one["source"] for one in samples} == {step["source"] for step in records["step"]}


def test_the_option_log_is_changed_between_epochs(numbered, tmp_path):
    loader = native_loader(numbered, batch_size=8)
    list(loader)  # not logged
    names = []
    for name in ("a", "b", "a"):
        loader.log = tmp_path / name
        list(zip(range(3), loader))
        names.append(name)
    loader.log = None
    list(loader)
    recorder_of(loader).finish()
    assert [len(log_lines(tmp_path / name)["step"]) for name in ("a", "b")] == [6, 3]
    assert log_lines(tmp_path / "a")["stats"][0]["batches"] == 8


# ---- one file for several loaders and processes --------------------------------------------------


def test_two_loaders_write_one_file(numbered, file):
    train = native_loader(numbered, batch_size=8, log=file)
    evaluate = feedmill.DataLoader(list(range(6)), batch_size=2, log=file)
    for _ in range(3):
        list(train)
        list(evaluate)
    records = assert_complete(file, train, evaluate)
    # A loader that writes after another one writes its run line again.
    kinds = [(line["type"], line["loader"]) for line in map(json.loads, open(file))]
    owner = None
    for kind, loader in kinds:
        owner = loader if kind == "run" else owner
        assert owner == loader
    assert len({loader for _, loader in kinds}) == 2
    assert len(records["run"]) == 6


WRITERS = """
import os, time
from feedmill.profiling.log.recorder import Recorder
from feedmill.profiling.counting.accounts import StepCounters
is_child = os.fork() == 0
recorders = []
for _ in range(3):
    counters = StepCounters()
    recorders.append((counters, Recorder(None, counters), counters.begin_epoch()))
    recorders[-1][1].begin(sys.argv[1])
for i in range(4000):
    for counters, recorder, epoch in recorders:
        counters.add_step(epoch, i * 10, i * 10 + 1)
        recorder._due_ns = 0 if i % 10 == 0 else recorder._due_ns
        recorder.tick(time.monotonic_ns())
if not is_child:
    os.wait()
"""


@pytest.mark.slow
def test_processes_write_one_file(file):
    assert helpers.run_script(WRITERS, file) == ""
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    seen = [(one["loader"], one["step"]) for one in lines if one["type"] == "step"]
    assert len(seen) == len(set(seen)) == 2 * 3 * 4000


def test_placeholders_in_the_file_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for rank in ("2", None):
        if rank is None:
            monkeypatch.delenv("RANK")
        else:
            monkeypatch.setenv("RANK", rank)
        watched = watch([1], log="run-{rank}-{pid}.jsonl")
        list(watched)
        recorder_of(watched).finish()
        name = f"run-{rank or 0}-{os.getpid()}.jsonl"
        assert log_lines(name)["run"][0]["rank"] == (None if rank is None else 2)


def test_a_removed_file_is_created_again(file):
    watched = watch([1, 2], log=file)
    list(watched)
    file.unlink()
    list(watched)
    recorder_of(watched).finish()
    records = log_lines(file)
    assert len(records["step"]) == 2 and len(records["run"]) == 1


# ---- the end of processes and loaders ------------------------------------------------------------

END = """
import os
for how in ("exit", "error", "interrupt", "gone"):
    if os.fork() == 0:
        break
else:
    how = "last"
loader = feedmill.DataLoader([1, 2, 3, 4], log=os.path.join(sys.argv[1], how))
kept = iter(loader)
next(kept), next(kept)
sys.excepthook = lambda *error: None
if how == "error":
    raise KeyError
if how == "interrupt":
    raise KeyboardInterrupt
if how == "gone":
    del loader, kept
    os._exit(0)
if how == "last":
    for _ in range(4):
        os.wait()
"""


@pytest.mark.slow
def test_a_process_writes_its_log_before_it_exits(tmp_path):
    assert helpers.run_script(END, tmp_path) == ""
    names = {"exit", "error", "interrupt", "gone", "last"}
    assert {path.name for path in tmp_path.iterdir()} == names
    for name in names:
        records = log_lines(tmp_path / name)
        assert [step["step"] for step in records["step"]] == [0, 1], name
        assert [one["batches"] for one in records["stats"]] == [2]


def test_a_deleted_loader_writes_its_log(numbered, file):
    loader = native_loader(numbered, batch_size=8, log=file)
    iterator = iter(loader)
    next(iterator)
    del loader
    assert not file.exists() or not file.read_text()
    next(iterator)  # continues without its loader
    del iterator
    records = log_lines(file)
    assert len(records["step"]) == 2 and records["stats"][-1]["batches"] == 2


def test_an_interrupt_at_any_line_of_the_writer(file, monkeypatch):
    """An exception anywhere in the writing loses nothing and writes nothing twice."""
    watched = watch(range(40), log=file)
    recorder = recorder_of(watched)
    interrupted = 0

    def trace(frame, event, argument):
        nonlocal countdown, interrupted
        if frame.f_code.co_filename != log.__file__:
            return None
        if event == "line":
            countdown -= 1
            if countdown == 0:
                interrupted += 1
                raise KeyboardInterrupt
        return trace

    iterator = iter(watched)
    for i in range(40):
        next(iterator)
        recorder._due_ns, countdown = 0, 1 + 3 * i
        sys.settrace(trace)
        try:
            recorder.tick(time.monotonic_ns())
        except KeyboardInterrupt:
            pass
        finally:
            sys.settrace(None)
    assert interrupted > 20
    assert len(assert_complete(file, watched)["step"]) == 40


# ---- forks ---------------------------------------------------------------------------------------

FORKS = """
import os, multiprocessing
from torch.utils.data import DataLoader

def child(iterator, loader):
    next(iterator, None)  # a step of the parent's epoch is not logged
    list(loader)

loader = feedmill.DataLoader([1, 2, 3, 4, 5], log=sys.argv[1])
iterator = iter(loader)
next(iterator), next(iterator)
if os.fork() == 0:
    child(iterator, loader)
    sys.exit(0)
os.wait()
process = multiprocessing.get_context("fork").Process(target=child, args=(iterator, loader))
process.start()
process.join()
if os.fork() == 0:
    os._exit(0)
os.wait()
if os.fork() == 0:
    del iterator, loader
    sys.exit(0)
os.wait()
list(iterator)
"""


@pytest.mark.slow
@pytest.mark.parametrize("name", ["run.jsonl", "run-{pid}.jsonl"])
def test_forks(tmp_path, name):
    assert helpers.run_script(FORKS, tmp_path / name) == ""
    files = sorted(tmp_path.iterdir())
    assert len(files) == (1 if name == "run.jsonl" else 3)
    seen = {}
    for file in files:
        for step in log_lines(file)["step"]:
            seen.setdefault(step["loader"].partition("-")[0], []).append(step["step"])
    # The children's step 0 was in the parent's epoch, before they had a log.
    assert sorted(seen.values()) == [[0, 1, 2, 3, 4], [1, 2, 3, 4, 5], [1, 2, 3, 4, 5]]


def test_torchs_workers_write_nothing(file, monkeypatch):
    monkeypatch.setenv("FEEDMILL_LOG", str(file))

    class Nested(torch.utils.data.Dataset):
        def __len__(self):
            return 4

        def __getitem__(self, index):
            return sum(batch.sum() for batch in feedmill.DataLoader([1, 2]))

    loader = feedmill.DataLoader(Nested(), num_workers=2)
    assert len(list(loader)) == 4
    records = assert_complete(file, loader)
    assert {one["pid"] for one in records["run"]} == {os.getpid()}


def test_pickles_and_copies(file):
    loader = feedmill.DataLoader([1, 2], log=file)
    list(loader)
    again = pickle.loads(pickle.dumps(loader))
    assert again.log == file
    list(again)
    assert len({one["loader"] for one in assert_complete(file, loader, again)["run"]}) == 2
    watched = pickle.loads(pickle.dumps(watch([1, 2], log=file)))
    list(watched)
    recorder_of(watched).finish()
    assert len(log_lines(file)["step"]) == 6


# ---- files that can't be written -----------------------------------------------------------------


def test_an_unwritable_file(numbered, tmp_path, monkeypatch):
    for path in (tmp_path, tmp_path / "nowhere" / "run.jsonl"):
        loader = native_loader(numbered, batch_size=8, log=path)
        with pytest.raises(OSError, match="the log can't be written: ") as caught:
            iter(loader)
        assert caught.value.filename == str(path)
        with pytest.raises(OSError, match="the log can't be written: "):
            iter(watch([1], log=path))
    monkeypatch.setenv("FEEDMILL_LOG", str(tmp_path / "nowhere" / "b"))
    loader = native_loader(numbered, batch_size=8)
    with pytest.warns(RuntimeWarning, match="FEEDMILL_LOG: the log can't be written: No such"):
        assert len(list(loader)) == 5
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert len(list(loader)) == 5  # the warning comes only once


def test_a_full_disk(numbered):
    loader = native_loader(numbered, batch_size=8, log="/dev/full")
    with pytest.warns(RuntimeWarning, match="logging to /dev/full stops.*: No space") as caught:
        assert sum(helpers.targets_of(loader), []) == list(range(40))
    assert len(caught) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert len(list(loader)) == 5
    assert loader.stats().batches == 10


def test_a_short_write(file, monkeypatch):
    """The disk is full in the middle of a chunk, and has space again later."""
    write, sizes = os.write, iter([7, 100, 3])
    monkeypatch.setattr(os, "write", lambda fd, data: write(fd, data[: next(sizes, None)]))
    watched = watch([1, 2, 3], log=file)
    list(watched)
    monkeypatch.undo()
    assert_complete(file, watched)


def test_a_truncated_line(file):
    watched = watch([1, 2, 3], log=file)
    list(watched)
    recorder_of(watched).finish()
    text = file.read_bytes()
    file.write_bytes(text + text[: text.index(b"\n") // 2])
    assert [len(run.steps) for run in read_log(file)] == [3]
    # Another loader's first line follows the truncated one, and then lines of another program.
    (name,) = {line["loader"] for line in map(json.loads, text.splitlines())}
    other = text.replace(name.encode(), b"1-0")
    file.write_bytes(text + b'{"type": "st' + other + b'[1]\n{"type": 5}\n\xff\n{"type":"new"}\n\n')
    one, two = read_log(file)
    assert (one.pid, two.pid) == (os.getpid(), None)
    assert np.array_equal(one.steps, two.steps) and len(two.steps) == 3
    file.write_bytes(file.read_bytes() + other)
    one, two = read_log(file)
    assert (two.pid, two.place, len(two.steps)) == (os.getpid(), one.place, 6)


def test_a_log_continues_after_a_truncated_line(file):
    list(watch([1, 2, 3], log=file))
    file.write_bytes(file.read_bytes() + b'{"type":"step","lo')
    second = watch([1, 2], log=file)
    list(second)
    recorder_of(second).finish()
    one, two = read_log(file)
    assert (one.pid, two.pid, len(two.steps)) == (os.getpid(), os.getpid(), 2)


# ---- options -------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{"log": 5}, {"log": ""}, {"log_samples": 1}])
def test_bad_options(options):
    (name, value), = options.items()
    with pytest.raises(ValueError, match=f"^{name} is {value!r}; it must be "):
        feedmill.DataLoader([1], **options)


def test_the_environment_variables(numbered, tmp_path, monkeypatch):
    monkeypatch.setenv("FEEDMILL_LOG", str(tmp_path / "all"))
    own = native_loader(numbered, batch_size=8, log=tmp_path / "own")
    other = native_loader(numbered, batch_size=8)
    watched, twice = watch([1, 2]), watch(other)
    for loader in (own, other, watched, twice):
        list(loader)
    assert len(assert_complete(tmp_path / "own", own)["step"]) == 5
    assert len(assert_complete(tmp_path / "all", other, watched)["step"]) == 12
    assert "sample" not in log_lines(tmp_path / "all")
    assert other.stats().system is not None and twice.stats().system is None
    monkeypatch.setenv("FEEDMILL_LOG_SAMPLES", "1")
    list(other)
    recorder_of(other).finish()
    assert len(log_lines(tmp_path / "all")["sample"]) == 40


SCRIPT = """
from torch.utils.data import DataLoader
for _ in range(2):
    list(DataLoader([1, 2, 3], batch_size=2))
class Other(DataLoader):
    seed = 5
list(Other([1]))
"""


@pytest.mark.parametrize("watched", [pytest.param(False, marks=pytest.mark.slow), True])
def test_feedmill_run(tmp_path, watched, monkeypatch):
    (tmp_path / "train.py").write_text(SCRIPT)
    monkeypatch.setenv("PYTHONPATH", str(Path(feedmill.__file__).parents[1]))
    monkeypatch.setattr(signal, "signal", lambda *arguments: None)  # keeps this process's
    monkeypatch.chdir(tmp_path)
    started = []
    monkeypatch.setattr(os, "execvpe", lambda *arguments: started.append(arguments))
    cli.main(["run", "--quiet", *["--watch"] * watched, "--log", "run.jsonl", "train.py"])
    (_, command, environment), = started
    got = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600)
    assert (got.returncode, got.stdout, got.stderr) == (0, "", "")
    records = log_lines(tmp_path / "run.jsonl")
    assert len(records["step"]) == 5
    runs = {(Path(one["place"]).name, one["path"]) for one in records["run"]}
    path = "watched" if watched else "torch"
    assert runs == {("train.py:4", path), ("train.py:7", path)}


def test_feedmill_run_refuses_a_log_that_cannot_be_written(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("x.py").write_text("")
    for words, text in [
        (["--log", "nowhere/r"], "--log: nowhere/r can't be written: No such file"),
        (["--log", "nowhere/{pid}"], "--log: there is no folder "),
        (["--log-samples"], "--log-samples needs a log: name one with --log"),
    ]:
        with pytest.raises(SystemExit):
            cli.main(["run", *words, "x.py"])
        assert text in capsys.readouterr().err


def test_each_write_ends_with_a_whole_line(file, monkeypatch):
    """Lines of several processes do not mix, as each write() ends with a whole line."""
    write, written = os.write, []
    monkeypatch.setattr(os, "write", lambda fd, data: written.append(data) or write(fd, data))
    watched = watch(range(1000), log=file)
    list(watched)
    monkeypatch.undo()
    assert len(written) == 1 and written[0].endswith(b"\n")
    assert_complete(file, watched)



def test_unlogged_steps_are_found_by_number():
    counters = StepCounters()
    epoch = counters.begin_epoch()
    for i in range(KEPT_STEPS + 3):
        counters.add_step(epoch, i, i + 1)
    counters.logged_steps = KEPT_STEPS - 2
    assert counters.unlogged_steps()["step"].tolist() == list(range(KEPT_STEPS - 2, KEPT_STEPS + 3))
    assert not counters.is_final
    counters.end_epoch(KEPT_STEPS + 10)
    assert counters.is_final and counters.steps()["compute_ns"][-1] == 7
    assert np.all(np.diff(counters.unlogged_steps()["request_ns"].astype(np.int64)) == 1)
