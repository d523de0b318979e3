"""The parts of a report: verdict, targets and problems."""

from dataclasses import replace

import numpy as np
import pytest
from feedmill.profiling.counting.records import (
    BOUNDARY,
    CAUSES,
    FIRST,
    STEADY,
    STEP_DTYPE,
    STORAGE_PARTS,
)
from feedmill.profiling.report import checks
from feedmill.profiling.report.stats import SlowSample, Stats
from feedmill.profiling.report.verdict import OFF, ReportContext, main_cause, verdict
from feedmill.system.peer_processes import PeerProcess
from helpers import changed

S, MS = 10**9, 10**6
OTHER = PeerProcess(pid=4711, command="/usr/bin/python train.py --lr 0.1", n_threads=2, n_intra_op=1,
                  on_gpu=False, cpus=(0, 1))


def run(compute_ms=10, n=100, idle=False, **numbers):
    """Stats of a first step and n steady steps of 100 samples. Arguments named like causes, or like
    the parts of storage_ns, are milliseconds of each step's wait; other arguments are flat names of Stats."""
    steps = np.zeros(n + 1, STEP_DTYPE)
    steps["phase"], steps["phase"][0], steps["n_samples"] = STEADY, FIRST, 100
    steps["compute_ns"] = compute_ms * MS
    pieces = {name: numbers.pop(name) * MS for name in CAUSES if name in numbers}
    for name, value in pieces.items():
        steps[name] = value
    for name in STORAGE_PARTS:
        steps[name] = numbers.pop(name, 0) * MS
    wait_ns = sum(pieces.values())
    steps["data_wait_ns"] = wait_ns
    steps["host_wait_ns"], steps["overhead_ns"] = wait_ns + MS // 10, MS // 10
    step_ns = wait_ns + MS // 10 + compute_ms * MS
    usual = {
        "path": "native", "batches": n + 1, "samples": 100 * (n + 1), "epochs": 1,
        "native_samples": 100 * (n + 1), "n_threads": 2, "usable_cpus": 8, "reader": "uring",
        "read_files": 100 * (n + 1), "read_depth": 64, "n_slots": 6,
        "wall_ns": step_ns * (n + 1), "elapsed_ns": step_ns * (n + 1),
        "data_wait_ns": wait_ns * (n + 1), "host_wait_ns": (wait_ns + MS // 10) * (n + 1),
        "decode_ns": 3 * (MS if idle else step_ns // 2) * (n + 1),
        "transform_ns": (MS if idle else step_ns // 2) * (n + 1),
        "worker_cpu_ns": 4 * (MS if idle else step_ns // 2) * (n + 1),
        "process_cpu_ns": 4 * (MS if idle else step_ns // 2) * (n + 1),
        "host_busy_ns": 2 * step_ns * (n + 1),
    }
    usual |= {f"wait_{name}": value * (n + 1) for name, value in pieces.items()}
    slow = numbers.pop("slow_samples", ())
    return Stats.from_flat({**usual, **numbers}, steps=steps, slow_samples=slow)


VERDICTS = {
    "more threads": (
        run(cpu_queue_decode_ns=10),
        "decode-bound: 2 threads prepare 4,975 img/s, the step could take 10,000; 2 more threads "
        "(threads=4) would end the stall; faster storage would gain nothing; steps waited 50% of "
        "the time for data",
    ),
    "the last CPU": (
        run(cpu_queue_transform_ns=10, usable_cpus=3),
        "transform-bound: 2 threads prepare 4,975 img/s, the step could take 10,000; 1 more thread "
        "(threads=3) would give 7,463 img/s; beyond that all 3 CPUs that this process may use are "
        "busy: more CPUs or fewer or cheaper transforms help; faster storage would gain nothing",
    ),
    "all CPUs": (
        run(compute_ms=0, cpu_queue_decode_ns=20, usable_cpus=2),
        "decode-bound: 2 threads prepare 4,975 img/s, and the training loop requests batches back "
        "to back; all 2 CPUs that this process may use are busy: more CPUs or smaller files help",
    ),
    "some storage": (
        run(cpu_queue_decode_ns=7, storage_ns=3), "; faster storage would gain at most 18%;"
    ),
    "bursts": (
        run(cpu_queue_decode_ns=2, idle=True), "; on average they keep up, but batches come uneven"
    ),
    "storage": (
        run(storage_ns=30, read_ns=101 * 40 * 60 * MS, idle=True),
        "storage-bound: a file takes 24.0 ms to read, with 60 of up to 64 reads in flight "
        "(uring); 2 threads get 2,494 img/s, the step could take 10,000; the reader is "
        "saturated: a local copy of the files helps; without read delays it would be 9,901 "
        "img/s; more threads would gain nothing",
    ),
    "shallow": (
        run(storage_ns=30, read_ns=101 * 40 * 6 * MS, idle=True),
        "with 6 of up to 64 reads in flight (uring); 2 threads get 2,494 img/s, the step could "
        "take 10,000; a deeper prefetch (num_workers above 0",
    ),
    "first bytes, saturated": (
        run(storage_ns=30, storage_first_byte_ns=24, storage_transfer_ns=6,
            read_ns=101 * 40 * 60 * MS, idle=True),
        "; 80% of the wait for storage was waiting for the first byte; what helps: more requests "
        "in flight (a larger prefetch_factor, FEEDMILL_REMOTE_REQUESTS); a nearer store; cache=; "
        "without read delays",
    ),
    "first bytes, shallow": (
        run(storage_ns=30, storage_first_byte_ns=30, read_ns=101 * 40 * 6 * MS, idle=True),
        "; 100% of the wait for storage was waiting for the first byte; a deeper prefetch (",
    ),
    "throttled": (
        run(storage_ns=30, storage_throttled_ns=20, storage_retry_ns=10,
            read_ns=101 * 40 * 6 * MS, idle=True),
        "; 67% of the wait for storage was throttled by the server; what helps: fewer loaders on ",
    ),
    "slots": (run(slot_wait_ns=10), "buffer-bound: all 6 batch buffers were in use, because"),
    "copy": (run(h2d_ns=10), "copy-bound: "),
    "unknown": (run(unattributed_ns=10), "stalled, cause unknown: "),
    "Pillow": (
        run(python_ns=10, fallback_ns=S, fallback_samples=100, fallback_kind=100),
        "Pillow-bound: 100 of 10,100 samples went through Pillow, one by one, 10.0 ms each (100 of "
        "an unsupported variant); convert those files to standard JPEGs; steps waited ",
    ),
    "sampler": (run(python_ns=10), "Python-bound: indices came late"),
    "own threads": (
        run(starved_ns=10), "this process's other threads use the same 8 CPUs: if the training "
    ),
    "quota": (
        changed(run(starved_ns=10), starved_ns=S, throttled_ns=S, throttled_periods=1234),
        "CPU-starved: 2 threads had work but no CPU to run on for 20% of the time; a CPU quota "
        "of the cgroup stopped this process 1,234 times, 1.0 s summed over CPUs: raise the quota",
    ),
    "others": (
        run(starved_ns=10, host_busy_ns=14 * S), "; other processes used 4.9 of the 8 CPUs: stop "
    ),
    "no stall": (
        run(idle=True),
        "no stall: steps waited 0% of the time for data; 2 threads could prepare 50,000 img/s, "
        "and the step takes 10,000: threads=1 would be enough",
    ),
    "no stall beside a training on the CPU": (
        # The training keeps both CPUs busy.
        run(idle=True, usable_cpus=2, process_cpu_ns=2 * 101 * (10 * MS + MS // 10)),
        "no stall: steps waited 0% of the time for data; 2 threads could prepare 50,000 img/s, "
        "and the step takes 10,000: threads=1 would be enough",
    ),
    "a stall beside a training on the CPU": (
        run(decode_ns=2, idle=True, usable_cpus=2, process_cpu_ns=2 * 101 * (12 * MS + MS // 10)),
        "CPU-bound: the training step's own computation takes 83% of this process's CPU time; 2 "
        "threads could prepare 50,000 img/s with a CPU each, the step could take 10,000; more "
        "CPUs, or fewer torch threads (torch.set_num_threads()), help; steps waited 17%",
    ),
    "more threads than CPUs": (
        run(idle=True, n_threads=8, usable_cpus=2), "; 8 threads could prepare 50,000 img/s"
    ),
    "torch": (
        replace(run(python_ns=10), path="torch", reasons=("it is so",)),
        "fell back to torch: it is so. Steps waited 50% of the time for data from Python workers",
    ),
    "off": (
        replace(run(python_ns=10), path="torch", reasons=(OFF,)),
        "torch's own path, as native='off' was asked for; steps waited 50% of the time for data "
        "from Python workers; the loader makes 49.8 batches/s, the step could take 100.0",
    ),
    "nothing": (Stats(), "nothing to report: no batch was delivered yet"),
}


@pytest.mark.parametrize("name", VERDICTS)
def test_verdicts(name):
    stats, words = VERDICTS[name]
    first = stats.report().splitlines()[0]
    assert first == verdict(stats)
    assert words in first
    if not words.startswith((";", "with", "this")):
        assert first.startswith(words)


def test_other_processes_on_the_same_cpus_are_named():
    stats = changed(run(starved_ns=10), host_busy_ns=8 * S)
    around = ReportContext(peers=(OTHER, replace(OTHER, pid=4712, n_threads=1)))
    first = verdict(stats, around)
    assert (
        "; pid 4711 (python train.py --lr 0.1) ran 2 decode threads, pid 4712 (python train.py "
        "--lr 0.1) ran 1 decode thread on the same CPUs: give each process CPUs of its own"
    ) in first


def test_no_prefetch_if_the_sampler_can_not_be_called_ahead():
    first = verdict(run(decode_ns=10), ReportContext(looks_ahead=False))
    assert first.startswith("no prefetch: no batch is prepared while the step computes")


def test_a_deeper_prefetch_is_suggested():
    stats = run(storage_ns=30, read_ns=101 * 40 * 6 * MS, idle=True)
    first = verdict(stats, ReportContext(num_workers=2, prefetch_factor=3))
    assert "; a deeper prefetch (prefetch_factor=12) would keep more reads in flight" in first
    first = verdict(changed(stats, reader="uring+custom"))
    assert "more threads for fsspec (FEEDMILL_FSSPEC_THREADS) or a deeper prefetch (num_" in first
    assert "; more decode threads would gain nothing" in first


@pytest.mark.parametrize("n_epochs", [1, 3])
def test_a_slow_first_batch_is_called_start_up(n_epochs):
    stats = run()
    steps = stats.steps
    late = steps[: 10 * n_epochs : 10]
    late["phase"], late["decode_ns"], late["data_wait_ns"] = BOUNDARY, S, S
    late["phase"][0] = FIRST
    wall_ns = stats.waits.wall_ns + n_epochs * S
    stats = changed(stats, data_wait_ns=n_epochs * S, wall_ns=wall_ns)
    each = "the epoch, 1.00 s;" if n_epochs == 1 else "3 epochs, 1.00 s each;"
    assert verdict(stats).startswith(
        f"start-up: most of the wait for data was for the first batch of {each} the other "
        "steps waited 0% of the time"
    )


def test_the_steady_state_decides():
    stats = run(storage_ns=10)
    stats.steps["storage_ns"][0] = 0
    stats.steps["decode_ns"][0] = stats.steps["data_wait_ns"][0] = 5 * S
    stats = changed(stats, wait_decode_ns=5 * S)
    assert main_cause(stats) == "storage"
    assert stats.waits_by_cause("first")["decode_ns"] == 5 * S
    assert stats.waits_by_cause()["decode_ns"] == 0


# ---- targets -------------------------------------------------------------------------------------


def targets(stats, **limits):
    return [line.split(maxsplit=1) for line in stats.report(**limits).splitlines()[1:4]]


def test_targets():
    good = run(process_cpu_ns=int(0.7 * 8 * 1.0201e9), idle=True)
    assert [one[0] for one in targets(good)] == ["met"] * 3
    bad = run(decode_ns=10)
    words = targets(bad)
    assert [one[0] for one in words] == ["missed"] * 3
    assert words[0][1] == "wait for data 10.0 ms a batch (steady state); target: under 5 ms"
    assert "50%" in words[1][1] and "no GPU is in use; target: above 80%" in words[1][1]
    assert "25% of 8 CPUs" in words[2][1] and "(there are CPUs to spare)" in words[2][1]
    limits = {"wait_ms": 11, "gpu": 0.4, "cpu": (0.2, 0.5)}
    assert [one[0] for one in targets(bad, **limits)] == ["met"] * 3


def test_unknown_values_neither_meet_nor_miss_targets():
    assert "  unknown    CPU; target: 60-80%" in changed(run(), elapsed_ns=0).report()


@pytest.mark.parametrize("limits", [{"wait_ms": 0}, {"gpu": 80}, {"cpu": (0.8, 0.6)}])
def test_wrong_targets(limits):
    with pytest.raises(ValueError, match="wait_ms is "):
        run().report(**limits)


# ---- problems ------------------------------------------------------------------------------------

SLOW = SlowSample("train/huge.jpg", 7, 20_000_000, 5 * MS, 400 * MS, 10 * MS, 0)

PROBLEMS = {
    "slow_files": (run(slow_samples=(SLOW,), idle=True), {}, "1 file takes up to "),
    "pillow": (run(fallback_samples=3, fallback_ns=30 * MS), {}, "3 of 10,100 samples went"),
    "copied": (run(copied_batches=50), {}, "50 of 101 batches were copied to memory"),
    "pageable": (run(), {"uses_cuda": True, "pin_memory": False}, "batches are copied to the GPU"),
    "slow_collate": (run(collate_ns=S // 2), {}, "collate_fn takes 5.0 ms a batch"),
    "overhead": (changed(run(), host_wait_ns=S // 2), {}, "returning a ready batch takes 4.95 ms"),
    "slow_start": (
        run(first_batches=1, iter_ns=2 * S), {}, "an epoch's first batch comes 2.0 s after iter()"
    ),
    "small_prefetch": (
        run(decode_ns=2, idle=True), {}, "100% of the steps found no batch ready, though"
    ),
    "quota": (run(throttled_ns=S, throttled_periods=9), {}, "a CPU quota stopped this process 9"),
    "peer_processes": (
        run(decode_ns=10, host_busy_ns=14 * S), {"peers": (OTHER,)}, "other processes compute"
    ),
    "cpu_contention": (run(), {"decode_contention": "too many: fewer"}, "more decode threads want to run than"),
    "torch_threads": (
        run(starved_ns=10, process_cpu_ns=6 * S), {"intra_op_contention": "too many: fewer"},
        "torch's own threads share",
    ),
    "few_workers": (
        replace(run(python_ns=10), path="torch"), {"num_workers": 2}, "fewer workers than CPUs"
    ),
    "not_native": (
        replace(run(python_ns=10), path="torch", reasons=("a Lambda",)), {}, "feedmill's native"
    ),
}


@pytest.mark.parametrize("name", PROBLEMS)
def test_problems(name):
    stats, around, words = PROBLEMS[name]
    check = getattr(checks, name)
    found = check(stats, ReportContext(**around))
    assert check in checks.CHECKS and all(found)
    assert found.problem.startswith(words)
    report = stats.report(around=ReportContext(**around))
    for label, text in zip(("problem", "diagnosis", "remedy"), found):
        assert f"  {label:<10} {text}\n" in report


def test_parts_of_storage_have_rows():
    stats = run(storage_ns=30, storage_transfer_ns=24, storage_connect_ns=6, idle=True)
    rows = stats.report().split("  storage    ")[1].splitlines()
    assert rows[0] == "transferring 24.00 ms (80%), connecting 6.00 ms (20%)"
    assert rows[1].startswith(" " * 13 + "what helps: fewer bytes (")
    for local in (run(storage_ns=30, storage_local_ns=30), run(cpu_queue_decode_ns=10)):
        assert "  storage    " not in local.report()


def test_a_good_run_has_no_problem():
    assert checks.problems(run(idle=True), ReportContext(pin_memory=True, uses_cuda=True)) == []
    assert checks.problems(Stats(), ReportContext()) == []


def test_idle_decode_threads_are_not_a_problem():
    """Nor is a training that computes on the same CPUs, as long as batches are in time."""
    stats = run(idle=True, usable_cpus=2, process_cpu_ns=2 * 101 * (10 * MS + MS // 10))
    assert checks.problems(stats, ReportContext(intra_op_contention="too many: fewer")) == []


def test_slow_files_are_named_with_their_slowest_stage():
    found = checks.slow_files(run(slow_samples=(SLOW,) * 5, idle=True), ReportContext())
    assert found.problem.startswith("5 files take up to ")
    assert found.diagnosis.startswith(
        "train/huge.jpg (20.0 MB: read 5 ms, decode 400, transform 10); "
    )
    assert found.diagnosis.endswith("; stats().slow_samples has the others")


def test_uneven_waits():
    stats = run()
    stats.steps["decode_ns"][::20] = stats.steps["data_wait_ns"][::20] = 50 * MS
    assert checks.uneven(stats, ReportContext()).problem.startswith("waits are uneven: 1 in 100 is 50 ms")


@pytest.mark.parametrize(
    ("n_workers", "problem", "remedy"),
    [
        (0, "no worker prepares batches ahead", "num_workers=8"),
        (8, "there is a worker for every CPU, and steps still wait", "native path"),
        (9, "more workers than CPUs", "num_workers=8"),
    ],
)
def test_too_few_workers(n_workers, problem, remedy):
    stats = replace(run(python_ns=10), path="torch")
    found = checks.few_workers(stats, ReportContext(num_workers=n_workers))
    assert found.problem == problem and remedy in found.remedy


def test_workers_that_are_restarted_each_epoch():
    stats = replace(run(python_ns=10), path="torch")
    stats.steps["phase"][[20, 40]] = BOUNDARY
    stats.steps["data_wait_ns"][[20, 40]] = S
    found = checks.restarted_workers(stats, ReportContext(num_workers=2, persistent_workers=False))
    assert found.problem == "each epoch's first batch takes 1.00 s"
    assert checks.restarted_workers(stats, ReportContext(num_workers=2, persistent_workers=True)) is None
