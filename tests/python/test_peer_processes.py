"""Other feedmill processes on this host, and the advice if there are too few CPUs for all of them."""

import gc
import os
import random
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace

import pytest
from feedmill._dispatch import paths
from feedmill._dispatch.paths import n_threads
from feedmill.cli import cli
from feedmill.profiling.watching.report_context import report_context_now
from feedmill.system import cpu_contention, peer_processes
from feedmill.system.peer_processes import PeerProcess
from helpers import changed, native_loader

OTHER = """
import os, sys
from feedmill.system import peer_processes
peer_processes.PARENT_FOLDERS = sys.argv[1:2]
{body}
print("", flush=True)
sys.stdin.readline()
"""


@pytest.fixture(autouse=True)
def _own_place(tmp_path, monkeypatch):
    """A directory of the test's own, and no running loaders in this process."""
    gc.collect()  # frees iterators of other tests
    monkeypatch.setattr(peer_processes, "_running", {})  # ignores those that are still referenced
    monkeypatch.setattr(peer_processes, "PARENT_FOLDERS", [str(tmp_path)])
    monkeypatch.setattr(peer_processes, "_file", -1)
    monkeypatch.setattr(peer_processes, "_path", "")
    yield
    if peer_processes._file >= 0:
        os.close(peer_processes._file)


@contextmanager
def process(body):
    """Another process, which runs the body and then waits until the with block ends."""
    words = [sys.executable, "-c", OTHER.format(body=body), *peer_processes.PARENT_FOLDERS]
    pipe = subprocess.PIPE
    with subprocess.Popen(words, stdin=pipe, stdout=pipe, text=True) as child:
        try:
            child.first_line = child.stdout.readline()
            assert child.first_line
            yield child
        finally:
            child.kill()


def files():
    return os.listdir(peer_processes._directory())


@pytest.mark.slow
def test_live_processes_are_found_and_ended_ones_are_not():
    with process("peer_processes.begin(1, 3); peer_processes.begin(2, 4)") as killed:
        with process("peer_processes.begin(1, 5); peer_processes.end(1)") as ending:
            found = {one.pid: one for one in peer_processes.others()}
            assert set(found) == {killed.pid, ending.pid}
            assert (found[killed.pid].n_threads, found[ending.pid].n_threads) == (7, 0)
            assert found[killed.pid].n_intra_op >= 1 and not found[killed.pid].on_gpu
            assert set(found[killed.pid].cpus) == peer_processes.usable_cpus()
            assert "peer_processes" in found[killed.pid].command
            ending.stdin.close()
            assert ending.wait(300) == 0
            assert len(files()) == 1  # it has removed its file
            killed.send_signal(signal.SIGKILL)
            killed.wait(300)
            assert len(files()) == 1
            assert peer_processes.others() == []
            assert files() == []  # the file of a killed process is removed by others


def test_a_forked_child_does_not_stand_for_its_dead_parent():
    """The child inherits the parent's open files, as torch's worker processes do."""
    with process("peer_processes.begin(1, 3)\nif os.fork() == 0: peer_processes.end(1)") as parent:
        assert [one.pid for one in peer_processes.others()] == [parent.pid]
        parent.kill()
        parent.wait(300)
        assert peer_processes.others() == []


def test_a_forked_child_is_a_process_of_its_own():
    peer_processes.begin(1, 2)
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        found = [one.pid for one in peer_processes.others()]
        peer_processes.begin(2, 5)
        os.write(writer, b"%d %d" % (found == [os.getppid()], peer_processes.this_process().n_threads))
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert os.read(reader, 100) == b"1 5"
    os.close(reader)
    os.close(writer)
    assert peer_processes.this_process().n_threads == 2
    peer_processes.end(1)


@pytest.mark.slow
def test_a_loader_counts_while_it_runs(numbered):
    def n_threads_from_outside():
        with process("(one,) = peer_processes.others(); print(one.pid, one.n_threads)") as child:
            pid, n_threads = child.first_line.split()
        assert int(pid) == os.getpid()
        return int(n_threads)

    loader = native_loader(numbered, batch_size=4, threads=3)
    iterator = iter(loader)
    next(iterator)
    assert n_threads_from_outside() == 3
    os.unlink(peer_processes._path)  # as a tool does that cleans /tmp
    other = iter(native_loader(numbered, batch_size=4, threads=2))
    next(other)
    assert n_threads_from_outside() == 5
    del iterator, other
    assert n_threads_from_outside() == 0


def test_affinity_sets_of_a_thousand_cpus(monkeypatch):
    monkeypatch.setattr(peer_processes, "usable_cpus", lambda: set(range(1, 2048)))
    monkeypatch.setattr(sys, "orig_argv", ["\N{SNOWMAN}" * 300])
    peer_processes.begin(1, 3)
    with process("(one,) = peer_processes.others(); print(one.n_threads, len(one.cpus))") as child:
        assert child.first_line == "3 2047\n"
    peer_processes.end(1)


def test_an_interrupt_leaves_no_lock_held(monkeypatch):
    """With a lock that stays held, the process could not be found any more."""
    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(peer_processes, "_write", lambda: None)
    old = signal.signal(signal.SIGALRM, interrupt)
    delays = random.Random(5)
    try:
        for number in range(4000):
            try:
                signal.setitimer(signal.ITIMER_REAL, delays.uniform(1e-6, 2e-5))
                while True:
                    peer_processes._publish()
            except KeyboardInterrupt:
                assert not peer_processes._writing.locked(), number
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, old)


@pytest.mark.slow
def test_listing_in_other_threads_during_registration():
    """A thread that closed the process's own file would release the process's lock."""
    stop = threading.Event()

    def look():
        while not stop.is_set():
            assert peer_processes.others() == []

    with ThreadPoolExecutor(2) as pool:
        looking = [pool.submit(look) for _ in range(2)]
        try:
            for _ in range(200):
                peer_processes.begin(1, 3)
                os.unlink(peer_processes._path)  # so that the next call registers again
                peer_processes.end(1)
        finally:
            stop.set()
        for one in looking:
            one.result()
    peer_processes.begin(1, 3)
    with process("print(len(peer_processes.others()))") as child:
        assert child.first_line == "1\n"
    peer_processes.end(1)


def test_many_threads_register_at_once():
    def work(number):
        for _ in range(50):
            peer_processes.begin(number, 1)
            peer_processes.end(number)
        peer_processes.begin(number, 1)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(files()) == 1
    with open(peer_processes._path, encoding="utf-8") as file:
        assert '"n_threads": 8' in file.read()
    for number in range(8):
        peer_processes.end(number)


def test_loaders_work_without_a_directory(tmp_path, monkeypatch, numbered):
    """A directory that others own or may use is refused. Loaders work without one."""
    (tmp_path / "open" / f"feedmill-{os.getuid()}").mkdir(parents=True, mode=0o755)
    (tmp_path / "link").mkdir()
    (tmp_path / "link" / f"feedmill-{os.getuid()}").symlink_to(tmp_path)
    places = [str(tmp_path / name) for name in ("open", "link", "missing")]
    monkeypatch.setattr(peer_processes, "PARENT_FOLDERS", places)
    assert sum(len(labels) for _, labels in native_loader(numbered, batch_size=4)) == 40
    assert peer_processes.others() == []
    good = tmp_path / "good"
    good.mkdir()
    monkeypatch.setattr(peer_processes, "PARENT_FOLDERS", [*places, str(good)])
    peer_processes.begin(1, 1)
    peer_processes.end(1)
    assert len(list(good.glob("*/*"))) == 1


def test_invalid_files_are_ignored():
    for name, text in (("1-a", "{"), ("2-b", '{"pid": 2}'), ("3-c", "")):
        with open(os.path.join(peer_processes._directory(), name), "w") as file:
            file.write(text)
    with process("peer_processes._register(); os.pwrite(peer_processes._file, b'[1]', 0)"):
        assert peer_processes.others() == []
    assert peer_processes.others() == [] and files() == []


# ---- how many decode threads there are by default ------------------------------------------------


@pytest.fixture
def eight_cpus(monkeypatch):
    monkeypatch.setattr(paths, "native", type("Native", (), {"usable_cpus": lambda: 8}))
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)


def test_default_threads_beside_live_processes(numbered, eight_cpus, monkeypatch, capsys):
    loader = native_loader(numbered)
    assert n_threads(loader) == 7
    with process("peer_processes.begin(1, 3)") as first:
        assert n_threads(loader) == 3  # 8 CPUs for two, less one
        explained = loader.explain()
        assert f"2 feedmill processes: this one and pids {first.pid})" in explained
        # A process that has just finished an epoch is expected to begin another one.
        with process("peer_processes.begin(1, 3); peer_processes.end(1)"):
            assert n_threads(loader) == 1
            monkeypatch.setattr(peer_processes, "_RECENT_S", -1.0)  # it has been idle for long
            assert n_threads(loader) == 3
        # torchrun's ranks count, whether they have registered yet or not.
        for ranks, wanted in (("1", 3), ("2", 3), ("4", 1)):
            monkeypatch.setenv("LOCAL_WORLD_SIZE", ranks)
            assert n_threads(loader) == wanted
        monkeypatch.delenv("LOCAL_WORLD_SIZE")
        first.send_signal(signal.SIGKILL)
        first.wait(300)
        assert n_threads(loader) == 7  # a killed process does not count
    capsys.readouterr()


@pytest.mark.filterwarnings("ignore:This DataLoader will create")
def test_given_numbers_of_threads_are_kept(numbered, eight_cpus):
    with process("peer_processes.begin(1, 3)"):
        assert n_threads(native_loader(numbered, threads=8)) == 8
        assert n_threads(native_loader(numbered, num_workers=8)) == 8
        assert n_threads(native_loader(numbered, num_workers=9)) == 8


def test_a_process_on_other_cpus_does_not_count(numbered, eight_cpus, monkeypatch):
    with process("peer_processes.usable_cpus = lambda: {7001}; peer_processes.begin(1, 3)"):
        assert len(peer_processes.others()) == 1
        assert n_threads(native_loader(numbered)) == 7


def test_loaders_of_one_process_do_not_count_each_other(numbered, eight_cpus):
    train, validation = native_loader(numbered), native_loader(numbered)
    iterators = [iter(train), iter(validation)]
    for iterator in iterators:
        next(iterator)
    assert train.stats().decode.n_threads == validation.stats().decode.n_threads == 7
    assert n_threads(train) == n_threads(validation) == 7


def test_each_epoch_counts_processes_again(numbered, eight_cpus):
    loader = native_loader(numbered, batch_size=8)
    with process("peer_processes.begin(1, 3)"):
        list(loader)
        assert loader.stats().decode.n_threads == 3
    list(loader)
    assert loader.stats().decode.n_threads == 7


# ---- reports and advice --------------------------------------------------------------------------

ME = PeerProcess(pid=10, command="", n_threads=4, n_intra_op=2, on_gpu=False, cpus=(0, 1, 2, 3))


def other(n_threads, *cpus, pid=11):
    return replace(ME, pid=pid, n_threads=n_threads, cpus=cpus or ME.cpus)


@pytest.mark.parametrize(
    ("others", "n_usable", "words"),
    [
        ([], 4, None),
        ([], 3, "4 decode threads share 3 usable CPUs: set threads= or num_workers to 3"),
        ([other(4)], 4,
         "8 decode threads of 2 feedmill processes (pids 10, 11) share 4 usable CPUs: set "
         "threads= or num_workers to 2 in each"),
        ([other(0)], 4, None),
        ([other(9, 4, 5)], 4, None),
        ([other(4, pid=11 + i) for i in range(9)], 4, "(pids 10, 11, 12, 13, ...)"),
        # Threads with a wider affinity set can run on its other CPUs.
        ([other(4, *range(8))], 4, None),
        ([other(5, *range(8))], 4,
         "9 decode threads of 2 feedmill processes (pids 10, 11) share 8 usable CPUs (0, 1, 2, 3, "
         "4, 5, 6, 7): set threads= or num_workers to 4 in each"),
        ([other(2, *range(8)), other(3, 4, 5, 6, pid=12)], 4, "9 decode threads of 3 "),
        ([other(4, *range(8))], 3, "8 decode threads of 2 "),  # the quota limits them, too
        # Threads with a narrower set can't run elsewhere.
        ([other(1, 0)], 4, "5 decode threads of 2 "),
        ([other(3, 0)], 4, "3 decode threads share 1 usable CPU (0): set "),
        # Partly overlapping sets count by their overlap.
        ([other(2, 3, 4)], 4, "6 decode threads of 2 "),
        ([other(1, 3, 4)], 4, None),
        ([other(3, 3, 4)], 4, "3 decode threads share 2 usable CPUs (3, 4): set "),
    ],
)
def test_decode_threads(others, n_usable, words):
    texts = cpu_contention.decode_thread_contention([ME, *others], ME.cpus, n_usable)
    assert len(texts) == (words is not None)
    assert words is None or texts[0].startswith(words) or words in texts[0]


def test_cpu_contention_of_a_process_without_decode_threads():
    assert not cpu_contention.decode_thread_contention([other(4)], ME.cpus, 4)
    assert cpu_contention.decode_thread_contention([other(5)], ME.cpus, 4)
    assert not cpu_contention.decode_thread_contention([other(5, 7)], ME.cpus, 4)
    assert not cpu_contention.decode_thread_contention([], ME.cpus, 4)


@pytest.mark.parametrize(("others", "n_threads"), [
    ([], 0), ([other(3)], 3), ([other(3, *range(8))], 2), ([other(3, 8)], 0),
    ([other(3, *range(8)), other(1, *range(8), pid=12)], 2), ([other(5, 0)], 5),
])
def test_threads_that_may_run_elsewhere_count_in_part(others, n_threads):
    assert cpu_contention.expected_threads(ME.cpus, others) == n_threads


@pytest.mark.parametrize(
    ("me", "n_usable", "n_free"),
    [
        (replace(ME, n_intra_op=8), 8, 4),
        (replace(ME, n_intra_op=4), 4, 1),
        (replace(ME, n_intra_op=4), 8, None),
        (replace(ME, n_intra_op=1), 4, None),
        (replace(ME, n_intra_op=8, on_gpu=True), 8, None),
        (replace(ME, n_intra_op=8, n_threads=0), 4, None),
    ],
)
def test_intra_op_threads(me, n_usable, n_free):
    texts = cpu_contention.intra_op_contention(me, n_usable)
    assert len(texts) == (n_free is not None)
    if texts:
        assert f"torch.set_num_threads({n_free}) or OMP_NUM_THREADS={n_free}" in texts[0]


@pytest.mark.slow
def test_the_report_names_the_setting_to_change(numbered, monkeypatch):
    loader = native_loader(numbered, batch_size=4, threads=1)  # any machine has one CPU
    list(loader)
    monkeypatch.setattr(paths, "native", type("Native", (), {"usable_cpus": lambda: 2}))
    assert "decode threads share" not in loader.report()
    with process("peer_processes.begin(1, 3)"):
        assert "diagnosis  4 decode threads of 2 feedmill processes" in loader.report()
    # Reported only if decode threads were measured to wait for a CPU.
    monkeypatch.setattr(peer_processes, "this_process", lambda: ME)
    stats = loader.stats()
    starved = changed(stats, starved_ns=stats.decode.worker_cpu_ns)
    assert "set_num_threads" in "".join(paths.contention(starved))
    assert "set_num_threads" not in "".join(paths.contention(changed(stats, starved_ns=0)))


@pytest.mark.slow
def test_processes_are_remembered(numbered):
    """Processes that decoded when an epoch began or ended are reported, even if they are gone."""
    loader = native_loader(numbered, batch_size=4)
    with process("peer_processes.begin(1, 3)") as other:
        list(loader)
        assert other.pid in {one.pid for one in peer_processes.seen_peers()}
    assert other.pid not in {one.pid for one in peer_processes.others()}
    met = {one.pid: one.n_threads for one in peer_processes.seen_peers()}
    assert met[other.pid] == 3
    assert other.pid in {one.pid for one in report_context_now(loader).peers}


def test_doctor_lists_processes(capsys):
    assert cli.main(["doctor"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert not any(line.startswith("  pid") for line in lines)
    assert lines[-1].startswith("no CPU contention: 0 decode threads of other processes on ")
    with process("peer_processes.begin(1, 1000)") as other:
        assert cli.main(["doctor"]) == 1
        text = capsys.readouterr().out
    assert f"pid {other.pid}" in text and "1000 decode threads now" in text
    assert "CPU contention: 1000 decode threads share" in text
    assert "set threads= or num_workers to" in text
