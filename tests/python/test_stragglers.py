"""The report on all ranks: which rank held the others back, at which steps, and by which cause.

Made steps have exact times. The runs with gloo delay one rank by far more than a busy machine does,
and are asked only who was late and why.
"""

import contextlib
import html
import os
import shutil
import subprocess
import sys
from pathlib import Path

import feedmill
import held_files
import helpers
import numpy as np
import pytest
import torch.distributed as dist
from feedmill.cli.cli import main
from feedmill.profiling.counting import collectives
from feedmill.profiling.counting.records import BOUNDARY, CAUSES, FIRST, STEADY, STEP_DTYPE
from feedmill.profiling.log.reader import read_log
from feedmill.profiling.page.rank_logs import groups_of_ranks, stragglers_of
from feedmill.profiling.report.straggler_text import straggler_lines
from feedmill.profiling.report.stragglers import (
    GPU,
    LOOP,
    MARKS,
    WAITS,
    basis_of,
    compare,
    own_times,
)
from feedmill.profiling.watching import all_ranks

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))
import write_log
from write_log import run_line, step_lines

HERE = Path(__file__).parent
MS = 1_000_000


class Rank:
    """Makes the step records of a rank. Times are in ms."""

    def __init__(self, clock=0):
        self.clock, self.rows = clock, []  # hosts' clocks differ

    def step(self, *, start=None, before=5.0, after=3.0, overhead=0.125, **causes):
        """Appends a step up to its collective operation; done() ends it. Returns when it is there.

        start: begins an epoch with this phase.
        """
        row = np.zeros(1, STEP_DTYPE)
        row["step"] = len(self.rows)
        row["phase"] = STEADY if start is None else start
        row["request_ns"] = self.clock * MS
        for name, ms in causes.items():
            row[name] = ms * MS
            row["data_wait_ns"] += row[name]
        row["overhead_ns"] = overhead * MS
        row["host_wait_ns"] = row["data_wait_ns"] + row["overhead_ns"]
        row["before_collective_ns"] = before * MS
        self.rows.append(row)
        self.after = after
        return self.clock + sum(causes.values()) + overhead + before

    def done(self, at, end, marked=True):
        """Ends the step. Its collective operation took from `at` to `end`, on this rank's clock."""
        row = self.rows[-1]
        before = int(row["before_collective_ns"][0])
        row["compute_ns"] = before + round((end - at + self.after) * MS)
        row["collective_ns"], row["n_collectives"] = round((end - at) * MS), 1
        if not marked:
            row["before_collective_ns"] = row["collective_ns"] = row["n_collectives"] = 0
        self.clock = end + self.after

    @property
    def steps(self):
        return np.concatenate(self.rows)


def training(n_ranks, n_steps, slow=lambda rank, step: {}, epoch_steps=10, marked=True, noise=0):
    """The steps of ranks that train together; slow() gives what a step of a rank takes longer.

    Returns ({rank: steps}, the time in ms that it took).
    """
    random = np.random.default_rng(0)
    ranks = [Rank(clock=1000.0 * (7919 * rank % 31)) for rank in range(n_ranks)]
    offsets = [rank.clock for rank in ranks]
    for at in range(n_steps):
        start = None if at % epoch_steps else BOUNDARY if at else FIRST
        there = []
        for number, rank in enumerate(ranks):
            values = {"storage_ns": 2.0, "decode_ns": 1.0, "overhead": 0.125,
                      "before": 5.0, "after": 3.0}
            values = {name: ms + noise * random.random() for name, ms in values.items()}
            for name, ms in slow(number, at).items():
                values[name] = values.get(name, 0) + ms
            there.append(rank.step(start=start, **values))
        # All leave the collective operation when the last one has come, by the true time.
        end = max(one - offset for one, offset in zip(there, offsets)) + 0.5
        for one, rank, offset in zip(there, ranks, offsets):
            rank.done(one, end + offset, marked)
    return {at: rank.steps for at, rank in enumerate(ranks)}, end


def found_in(steps):
    basis = basis_of(list(steps.values()))
    return compare({rank: own_times(one, basis) for rank, one in steps.items()}, basis)


CAUSE_OF = {**{name: name for name in CAUSES}, "cpu_queue_decode_ns": "decode_ns",
            "cpu_queue_transform_ns": "transform_ns", "before": LOOP, "after": LOOP,
            "overhead": "overhead_ns"}


# ---- made steps ----------------------------------------------------------------------------------


@pytest.mark.parametrize("what", CAUSE_OF)
@pytest.mark.parametrize("n_ranks", [2, 3, 4, 8])
def test_the_added_time_is_the_slow_ranks(n_ranks, what):
    guilty, at = n_ranks - 2, {13, 14, 27}

    def slow(rank, step):
        return {what: 250.0} if rank == guilty and step in at else {}

    steps, took = training(n_ranks, 40, slow)
    _, usual = training(n_ranks, 40)
    found = found_in(steps)
    assert found.basis == MARKS and found.n_steps == 40
    assert found.ns == round((took - usual) * MS) == 750 * MS
    held = found.held[guilty]
    assert held.ns == held.parts[CAUSE_OF[what]] == 750 * MS
    late = {step + 1 for step in at} if what == "after" else at  # until the next step meets
    assert held.steps == [(step // 10, step % 10, 250 * MS) for step in sorted(late)]


@pytest.mark.parametrize("what", [*CAUSES, "overhead"])
def test_waits_are_compared_without_marks(what):
    steps, _ = training(4, 40, lambda rank, step: {what: 90.0} if rank == 3 else {}, marked=False)
    found = found_in(steps)
    assert found.basis == WAITS
    assert found.ns == found.held[3].parts[CAUSE_OF[what]] == 40 * 90 * MS


@pytest.mark.parametrize("what", ["before", "after"])
def test_a_slow_loop_is_not_known_without_marks(what):
    steps, took = training(2, 40, lambda rank, step: {what: 90.0} if rank == 0 else {},
                           marked=False)
    assert found_in(steps).ns == 0
    lines = straggler_lines(found_in(steps), round(took * MS))
    assert lines[0].startswith("no straggler") and "feedmill.collective()" in "\n".join(lines)


@pytest.mark.parametrize("what", helpers.slow_but_for(
    ["storage_ns", "after"], ["storage_ns", "cpu_queue_decode_ns", "before", "after"]
))
def test_95_percent_beside_noise(what):
    """Every part of every step varies by 4 ms; one rank is 40 ms slower in a third of the steps."""
    for n_ranks in (2, 4, 8):
        def slow(rank, step):
            return {what: 40.0} if rank == 1 and step % 3 == 1 else {}

        steps, took = training(n_ranks, 300, slow, noise=4.0)
        _, usual = training(n_ranks, 300, noise=4.0)
        added = (took - usual) * MS
        others = sum(found_in(training(n_ranks, 300, noise=4.0)[0]).held[rank].ns
                     for rank in range(n_ranks))
        found = found_in(steps)
        assert found.held[1].parts[CAUSE_OF[what]] >= 0.95 * added
        # What is left is what ranks without a slow one wait for each other.
        assert found.ns - found.held[1].parts[CAUSE_OF[what]] <= others
        assert sum(one.ns for one in found.held.values()) == found.ns
        assert all(sum(one.parts.values()) == one.ns for one in found.held.values())


def test_two_slow_ranks_of_four():
    """The later of two counts, and by its whole delay: the reference is a rank that is not slow."""
    def slow(rank, step):
        return {1: {"storage_ns": 100.0}, 2: {"before": 101.0 if step % 2 else 99.0}}.get(rank, {})

    found = found_in(training(4, 20, slow)[0])
    assert found.held[1].parts == {**dict.fromkeys(found.held[1].parts, 0), "storage_ns": 990 * MS
                                   + 10 * MS}
    assert found.held[2].parts[LOOP] == 10 * 101 * MS


def test_all_equally_slow_is_no_straggler():
    found = found_in(training(4, 20, lambda rank, step: {"storage_ns": 100.0})[0])
    assert found.ns == 0 and found.n_steps == 20


def test_steps_without_a_mark_count_with_the_next():
    """Gradients are exchanged at every fourth step. The ranks take their waits at others of them."""
    steps = {}
    for number in range(2):
        rank = Rank()
        for at in range(16):
            start = None if at % 8 else BOUNDARY if at else FIRST
            wait = 30.0 if at % 4 == number else 0.0  # not later, as all have one
            there = rank.step(start=start, storage_ns=wait + 7.0 * (number == 1 and at == 6))
            rank.done(there, there + 0.5, marked=at % 4 == 3)
            if at % 4 != 3:
                rank.rows[-1]["compute_ns"] -= MS // 2
        steps[number] = rank.steps
    found = found_in(steps)
    assert found.basis == MARKS and found.n_steps == 4
    assert found.ns == found.held[1].parts["storage_ns"] == 7 * MS
    assert found.held[1].steps == [(0, 7, 7 * MS)]


def test_the_gpus_stalls_count_where_they_are_measured():
    """Rank 0 waits for storage on the host while its GPU is busy; rank 1's copies are late."""
    steps, _ = training(2, 20, lambda rank, step: {"storage_ns": 90.0} if rank == 0 else {})
    for rank, one in steps.items():
        one["gpu_known"] = 1
        one["gpu_stall_ns"] = [0, 50 * MS][rank]
        one["gpu_copy_ns"] = [0, 40 * MS][rank]
    steps[0]["gpu_known"][5] = 0
    found = found_in(steps)
    assert found.basis == GPU and found.n_steps == 19
    assert found.ns == found.held[1].ns == 19 * 50 * MS
    assert found.held[1].parts["h2d_ns"] == 19 * 40 * MS


def test_uneven_ranks():
    """A rank without more samples, under Join, is not compared any more."""
    steps, _ = training(3, 20, lambda rank, step: {"storage_ns": 50.0} if rank == 0 else {})
    steps[1] = np.delete(steps[1], [8, 9, 18, 19])  # 8 of 10 steps of each epoch
    steps[1]["step"] = np.arange(16)
    steps[2] = np.delete(steps[2], [9, 19])
    steps[2]["step"] = np.arange(18)
    found = found_in(steps)
    assert found.n_steps == 18 and found.held[0].ns == 18 * 50 * MS


def test_missing_steps_are_left_out():
    steps, _ = training(2, 20, lambda rank, step: {"decode_ns": 50.0} if step == 15 and rank else {})
    steps[0] = np.delete(steps[0], [0, 1, 12])  # also the start of the first epoch
    found = found_in(steps)
    # Epochs are counted from the first one that both have.
    assert found.n_steps == 9


def test_numbers_of_any_size():
    steps, _ = training(2, 3, lambda rank, step: {"decode_ns": 4e9 / 3} if rank else {})
    found = found_in(steps)
    assert found.held[1].ns == found.ns == sum(found.held[1].parts.values())
    empty = np.zeros(0, STEP_DTYPE)
    found = found_in({0: empty, 1: empty})
    assert found.n_steps == found.ns == 0
    assert straggler_lines(found, 0)[0].startswith("stragglers are not known")
    assert found_in({0: steps[0], 1: empty}).n_steps == 0


# ---- logs ----------------------------------------------------------------------------------------


def logs_of(steps, tmp_path, **meta):
    return [
        write_log.write(tmp_path / f"run.{rank}.jsonl",
                        run_line(rank=rank, pid=100 + rank, **meta), step_lines(one))
        for rank, one in steps.items()
    ]


def test_the_command_compares_logs(tmp_path, capsys):
    def slow(rank, step):
        return {"storage_ns": 100.0} if rank == 2 and 12 <= step < 17 else {}

    logs = logs_of(training(4, 40, slow)[0], tmp_path)
    assert main(["report", *map(str, logs)]) == 0
    out = capsys.readouterr().out
    lines = out.splitlines()
    assert lines[0] == "all ranks, train.py:31:"
    assert lines[1].startswith(
        "straggler: rank 2 held the others back by 0.50 s (52% of the time), 100% of it for storage;"
    )
    assert "rank 2     last at 5 steps, by 0.50 s (100% of all delays): storage 0.50 s" in out
    assert "longest: 0.10 s at epoch 1 step 2 (storage)" in out
    assert "at epoch 1 steps 2-6\n" in out
    assert out.count("pid 10") == 4  # each rank's own report follows
    page = tmp_path / "run.html"
    assert main(["report", *map(str, logs), "--html", str(page)]) == 0
    assert html.escape(lines[1]) in page.read_text()


def test_one_rank_and_other_loaders_are_not_compared(tmp_path, capsys):
    steps, _ = training(2, 20)
    (log, other) = logs_of(steps, tmp_path)
    assert main(["report", str(log)]) == 0 and "all ranks" not in capsys.readouterr().out
    other = write_log.write(other, run_line(rank=1, place="train.py:99"), step_lines(steps[1]))
    assert main(["report", str(log), str(other)]) == 0
    assert "all ranks" not in capsys.readouterr().out
    plain = write_log.write(tmp_path / "plain.jsonl", run_line(), step_lines(steps[1]))
    assert main(["report", str(log), str(plain)]) == 0
    assert "all ranks" not in capsys.readouterr().out


def test_a_restarted_training_is_compared_again(tmp_path):
    before, _ = training(2, 20)
    after, _ = training(2, 10, lambda rank, step: {"decode_ns": 50.0} if rank else {})
    logs = [
        write_log.write(tmp_path / f"{rank}.jsonl",
                        run_line(rank=rank, pid=1 + rank), step_lines(before[rank]),
                        run_line(rank=rank, pid=11 + rank), step_lines(after[rank]))
        for rank in range(2)
    ]
    groups = groups_of_ranks([run for log in logs for run in read_log(log)])
    first, second = map(stragglers_of, groups)
    assert (first.n_steps, first.ns) == (20, 0)
    assert (second.n_steps, second.held[1].parts["decode_ns"]) == (10, 500 * MS)


def test_logs_of_older_versions_and_missing_ranks(tmp_path, capsys):
    steps, _ = training(4, 20, lambda rank, step: {"decode_ns": 50.0} if rank == 3 else {})
    del steps[1]
    for path in (logs := logs_of(steps, tmp_path)):
        lines = [line.replace('"n_collectives"', '"x"') for line in path.read_text().splitlines()]
        path.write_text("\n".join([*lines, '{"type": "lost", "steps": 3}']))
    assert main(["report", *map(str, logs)]) == 0
    out = capsys.readouterr().out
    assert "straggler: rank 3" in out and "the logs of ranks 1" in out and "9 steps" in out


def test_ranks_that_delay_each_other_in_turn():
    found = found_in(training(2, 20, lambda rank, step: {"decode_ns": 50.0 * (rank == step % 2)})[0])
    assert straggler_lines(found, 10**9)[0].startswith("no single straggler: ranks held each other")


# ---- marks ---------------------------------------------------------------------------------------


@pytest.fixture
def clock(monkeypatch):
    """The time in the marks' module, settable."""
    class Clock:
        now = 0

        def monotonic_ns(self):
            return self.now

    monkeypatch.setattr(collectives, "time", clock := Clock())
    monkeypatch.setattr(collectives, "_blocks", type(collectives._blocks)(maxlen=100))
    return clock


def block(clock, begin, end):
    clock.now = begin
    with feedmill.collective():
        with feedmill.collective():  # the outer one counts
            clock.now = end - 1
        clock.now = end


def test_marks_belong_to_the_step_in_which_they_began(clock):
    steps = np.zeros(3, STEP_DTYPE)
    steps["request_ns"], steps["host_wait_ns"] = [1000, 2000, 3000], 100
    steps["compute_ns"] = [900, 900, 500]
    for begin, end in [(10, 20), (1300, 1400), (1500, 1550), (2050, 2090), (2900, 3000),
                       (2950, 3050), (3200, 3300), (3700, 3800)]:
        block(clock, begin, end)
    steps["n_collectives"] = 7  # is replaced
    collectives.fill(steps[::-1])
    assert steps["n_collectives"].tolist() == [2, 1, 1]
    assert steps["collective_ns"].tolist() == [150, 100, 100]
    assert steps["before_collective_ns"].tolist() == [200, 800, 100]


def test_a_mark_counts_when_its_block_raises(clock):
    with pytest.raises(ZeroDivisionError), feedmill.collective():
        raise ZeroDivisionError
    assert len(collectives._blocks) == 1
    block(clock, 5, 6)
    assert len(collectives._blocks) == 2


def test_no_marks_while_cuda_is_in_use(clock, monkeypatch):
    monkeypatch.setattr(collectives, "_is_cuda_in_use", lambda: True)
    block(clock, 5, 6)
    assert not collectives._blocks


# ---- real ranks ----------------------------------------------------------------------------------


def stacks_of_children(pid):
    """What the threads of a process's children do, where gdb is installed: after Python's end,
    faulthandler can't tell."""
    if not shutil.which("gdb"):
        return "no gdb"
    tasks = Path(f"/proc/{pid}/task").glob("*/children")
    children = [child for task in tasks for child in task.read_text().split()]
    return "\n".join(
        subprocess.run(["gdb", "-batch", "-ex", "thread apply all backtrace", "-p", child],
                       capture_output=True, text=True).stdout
        for child in children
    )


def torchrun(n, script, *arguments):
    outside = {"RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"}
    environment = {name: value for name, value in os.environ.items() if name not in outside}
    paths = [str(Path(feedmill.__file__).parents[1]), str(HERE)]
    environment |= {"PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1"}
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", n]
    process = subprocess.Popen(
        [str(word) for word in (*launch, script, *arguments)], env=environment, text=True,
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )
    try:
        out, _ = process.communicate(timeout=600)
    except subprocess.TimeoutExpired:
        stacks = stacks_of_children(process.pid)
        process.terminate()  # torchrun then ends its processes
        pytest.fail(f"the processes hang; so far: {process.communicate(timeout=600)}\n{stacks}")
    assert process.returncode == 0, out


@pytest.mark.slow
@pytest.mark.parametrize("n, what, slow_rank", [
    (2, "storage", 1), (2, "decode", 0), (4, "loop", 2),
])
def test_a_slow_rank_is_named_with_its_cause(tmp_path, n, what, slow_rank):
    fast, slow = tmp_path / "fast", tmp_path / "slow"
    size = 6000 if what == "decode" else 16
    for i in range(16 * n):
        helpers.save_jpeg(fast / f"{i % 2}" / f"{i}.jpg", 16, 16, seed=i)
    helpers.save_jpeg(slow / "0" / "0.jpg", size, size)
    for i in range(1, 16 * n):
        (slow / f"{i % 2}").mkdir(exist_ok=True)
        os.link(slow / "0" / "0.jpg", slow / f"{i % 2}" / f"{i}.jpg")
    with contextlib.ExitStack() as stack:
        if what == "storage":
            mount = tmp_path / "mount"
            held = held_files.HeldFiles(slow, mount, "none.jpg", open_ms=3000)
            stack.callback(held.close)
            slow = mount
        torchrun(n, HERE / "slow_rank.py", fast, slow, what, slow_rank, tmp_path)
    texts = {(tmp_path / f"report.{rank}").read_text() for rank in range(n)}
    assert len(texts) == 1  # all ranks get the same text
    (text,) = texts
    label = {"storage": "storage", "loop": "the training loop"}.get(what, "")
    assert text.startswith(f"straggler: rank {slow_rank} held the others back by"), text
    assert f"of it for {label}" in text.splitlines()[0]
    assert all(f"\nrank {rank}: " in text for rank in range(n))

    runs = [run for rank in range(n) for run in read_log(tmp_path / f"run.{rank}.jsonl")]
    (ranks,) = groups_of_ranks(runs)
    found = stragglers_of(ranks)
    assert found.basis == MARKS and found.n_steps == 16 and sorted(ranks) == list(range(n))
    held = found.held[slow_rank]
    assert held.ns > 0.5 * found.ns
    # On a busy machine, decoding also waits for a CPU, and so does reading.
    causes, least = {"storage": (["storage_ns"], 0.8), "loop": ([LOOP], 0.8),
                     "decode": (["decode_ns", "transform_ns", "starved_ns"], 0.5)}[what]
    assert sum(held.parts[name] for name in causes) > least * held.ns


def test_all_ranks_needs_a_process_group(numbered):
    loader = helpers.native_loader(numbered, batch_size=8)
    for watched in (loader, feedmill.watch([1, 2])):
        with pytest.raises(RuntimeError, match="needs torch.distributed's default process group"):
            watched.report(all_ranks=True)


@pytest.fixture
def alone(tmp_path):
    """A process group of this process alone."""
    dist.init_process_group("gloo", store=dist.FileStore(str(tmp_path / "store"), 1), rank=0,
                            world_size=1)
    yield
    dist.destroy_process_group()


def test_all_ranks_of_one(alone, numbered):
    loader = helpers.native_loader(numbered, batch_size=8)
    own = loader.report().splitlines()[0]
    expected = "stragglers are not known: no step of at least two ranks can be compared"
    assert loader.report(all_ranks=True).splitlines()[::2] == [expected, f"rank 0: {own}"]
    watched = feedmill.watch([1, 2])
    assert list(watched) == [1, 2]
    assert watched.report(all_ranks=True, wait_ms=3).splitlines()[0] == expected


def test_a_rank_that_fails_is_named(alone, numbered):
    """It must take part, or the other ranks would wait for it."""
    loader = helpers.native_loader(numbered, batch_size=8)
    with pytest.raises(RuntimeError, match="rank 0: ValueError: .*gpu 7 and"):
        loader.report(all_ranks=True, gpu=7)


def test_epochs_are_aligned_at_their_ends_where_records_are_gone(monkeypatch):
    """Ranks keep the latest steps only; one of them made more steps before."""
    steps, _ = training(2, 40, lambda rank, step: {"decode_ns": 50.0} if rank and step > 33 else {})
    steps[0] = steps[0][12:]  # its first whole epoch is the third of the other rank
    sent = []

    def gathered(value):
        sent.append(value)
        return answers[len(sent) - 1]

    monkeypatch.setattr(all_ranks, "_gathered", gathered)
    monkeypatch.setattr(all_ranks, "KEPT_STEPS", 28)
    monkeypatch.setattr(all_ranks.dist, "is_initialized", lambda: True)
    monkeypatch.setattr(all_ranks.dist, "get_world_size", lambda: 2)
    of_each = []
    for rank in range(2):
        sent.clear()
        answers = [[{"error": "", "verdict": "v", "path": "native", "is_full": True,
                     "basis": steps[0][-1:].tobytes()}], []]
        with contextlib.suppress(ValueError):  # max() of no ranks
            all_ranks.report_on_all_ranks(lambda: ("v", "native", steps[rank]))
        of_each.append(list(sent))
    answers, sent = list(zip(*of_each)), []
    answers = [list(one) for one in answers]
    text = all_ranks.report_on_all_ranks(lambda: ("v", "native", steps[0]))
    assert "straggler: rank 1 held" in text and "2 ranks, 20 steps" in text
