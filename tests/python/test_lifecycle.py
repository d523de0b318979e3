"""Threads, memory, forks, signals, and the interpreter's exit."""

import gc
import json
import os
import signal

import helpers
import pytest
import torch
from held_files import HeldFiles
from helpers import (
    compose,
    in_child,
    native_loader,
    run_script,
    start_script,
    targets_of,
    threads,
    threads_left,
)
from torchvision import transforms as T


def epoch_images(loader):
    return torch.cat([images for images, _ in loader])


# ---- threads and memory --------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{}, {"num_workers": 2}, {"num_workers": 2, "persistent_workers": True}])
@pytest.mark.parametrize("reader", ["pread", "auto"])
def test_the_second_epoch_creates_no_thread_and_allocates_nothing(numbered, options, reader):
    loader = native_loader(numbered, batch_size=4, shuffle=True, reader=reader, **options)
    for _ in loader:
        pass
    first, before = loader.stats(), threads()
    for _ in range(3):
        for _ in loader:
            assert threads() <= before
    last = loader.stats()
    assert last.decode.threads_created == first.decode.threads_created > 0
    assert last.memory.allocations == first.memory.allocations > 0, (first, last)
    assert last.memory.allocated_bytes == first.memory.allocated_bytes
    assert (last.epochs, last.samples, last.memory.copied_batches) == (4, 160, 0)


def test_threads_and_files_end_with_the_loader(numbered):
    list(native_loader(numbered, batch_size=8))  # starts what the process keeps
    gc.collect()
    before, files = threads(), len(os.listdir("/proc/self/fd"))
    for _ in range(5):
        loader = native_loader(numbered, batch_size=8, num_workers=2)
        iterator = iter(loader)
        batch = next(iterator)
        list(loader)
        del loader, iterator
        assert not threads_left(before)
        assert len(os.listdir("/proc/self/fd")) == files
    assert batch[0].shape == (8, 3, 8, 8)


def test_held_batches_do_not_change(numbered):
    """More batches are held than there are slots. None changes, and each is writable."""
    loader = native_loader(numbered, batch_size=1, num_workers=2, prefetch_factor=1)
    wanted = torch.stack([numbered[i][0] for i in range(40)])
    held = [images for _ in range(3) for images, _ in loader]
    assert torch.equal(torch.cat(held), wanted.repeat(3, 1, 1, 1))
    assert len({images.data_ptr() for images in held}) == 120
    held[7] += 1
    held[8].fill_(9)
    assert torch.equal(torch.cat(held[9:40]), wanted[9:])
    assert loader.stats().memory.copied_batches > 0
    del loader
    gc.collect()
    assert torch.equal(torch.cat(held[40:]), wanted.repeat(2, 1, 1, 1))


def test_views_keep_a_batch(numbered):
    loader = native_loader(numbered, batch_size=2, num_workers=2)
    views = [images[1, 0].numpy() for images, _ in loader]
    wanted = [numbered[i][0][0].numpy() for i in range(1, 40, 2)]
    assert all((view == other).all() for view, other in zip(views, wanted))


def test_the_threads_of_a_dropped_iterator_are_reused(numbered):
    loader = native_loader(numbered, batch_size=4, num_workers=2)
    for i, _ in enumerate(loader):
        if i == 2:
            break
    created = loader.stats().decode.threads_created
    for _ in range(5):
        next(iter(loader))
        helpers.take(iter(loader))
    assert sorted(sum(targets_of(loader), [])) == list(range(40))
    assert loader.stats().decode.threads_created == created


def test_threads_are_reused_after_an_error(small_images, tmp_path):
    dataset = helpers.numbered_folder(small_images)
    (tmp_path / "text.jpg").write_text("text")
    dataset.samples[2] = (str(tmp_path / "text.jpg"), 2)
    gc.disable()
    try:
        for num_workers in (0, 2):
            loader = native_loader(dataset, batch_size=4, num_workers=num_workers)
            created = set()
            for _ in range(4):
                try:
                    next(iter(loader))
                except OSError:
                    pass
                created.add(loader.stats().decode.threads_created)
            assert len(created) == 1
    finally:
        gc.enable()


# ---- iterators side by side ----------------------------------------------------------------------


@pytest.mark.parametrize("num_workers", [0, 2])
def test_two_iterators_at_once(numbered, num_workers):
    loader = native_loader(numbered, batch_size=8, num_workers=num_workers)
    pairs = list(zip(loader, loader))
    assert [(one[1].tolist(), two[1].tolist()) for one, two in pairs] == [
        (list(range(i, i + 8)),) * 2 for i in range(0, 40, 8)
    ]
    nested = [(one[1][0].item(), two[1][0].item()) for one in loader for two in loader]
    assert nested == [(i, j) for i in range(0, 40, 8) for j in range(0, 40, 8)]


def test_two_loaders_at_once(numbered):
    one = native_loader(numbered, batch_size=8, num_workers=1)
    two = native_loader(numbered, batch_size=5, num_workers=2)
    for _ in range(3):
        first, second = iter(one), iter(two)
        got = [[], []]
        for _ in range(8):
            got[0].append(helpers.take(first))
            got[1].append(helpers.take(second))
        assert sum(got[1], []) == list(range(40)) == sum(got[0][:5], [])
        assert got[0][5:] == ["end"] * 3


def test_persistent_workers_keep_the_iterator(numbered):
    loader = native_loader(numbered, batch_size=8, num_workers=1, persistent_workers=True)
    first = iter(loader)
    next(first)
    assert iter(loader) is first
    assert [batch[1][0].item() for batch in first] == [0, 8, 16, 24, 32]
    assert helpers.take(first) == "end"
    # If the transform is no longer recognised, torch's path is taken at once.
    numbered.transform = compose(T.Lambda(lambda image: image.copy()), *numbered.transform.transforms)
    loader.native = "auto"
    assert sum(targets_of(loader), []) == list(range(40))
    assert loader.stats().path == "torch"


def test_the_iterator_outlives_its_loader(numbered):
    iterator = iter(native_loader(numbered, batch_size=8))
    gc.collect()
    assert [batch[1][0].item() for batch in iterator] == [0, 8, 16, 24, 32]


def test_changes_between_epochs_take_effect(numbered):
    loader = native_loader(numbered, batch_size=10, num_workers=1)
    assert next(iter(loader))[0].shape == (10, 3, 8, 8)
    numbered.transform = compose(T.Resize((5, 6)), T.ToTensor())
    images, _ = next(iter(loader))
    assert images.shape == (10, 3, 5, 6) and images.dtype == torch.float32
    numbered.samples = numbered.samples[::-1][:15]
    assert targets_of(loader) == [list(range(39, 29, -1)), list(range(29, 24, -1))]


def test_other_threads_may_iterate(numbered):
    import threading

    loader = native_loader(numbered, batch_size=1, num_workers=2)
    iterator, got = iter(loader), []

    def run():
        for batch in iterator:
            got.append(batch[1].item())

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(got) == list(range(40))


# ---- forks ---------------------------------------------------------------------------------------


def test_loader_and_iterator_in_a_forked_child(numbered):
    loader = native_loader(numbered, batch_size=8, num_workers=2, seed=1)
    wanted = epoch_images(loader)
    iterator = iter(loader)
    held = next(iterator)

    def child():
        assert torch.equal(held[0], wanted[:8])
        assert torch.equal(epoch_images(loader), wanted)
        assert loader.stats().epochs == 1
        with pytest.raises(RuntimeError, match="process"):
            next(iterator)

    assert in_child(child) == 0
    assert sum((batch[1].tolist() for batch in iterator), []) == list(range(8, 40))
    assert torch.equal(epoch_images(loader), wanted)


def test_torchs_workers_beside_a_native_loader(numbered):
    loader = native_loader(numbered, batch_size=8, num_workers=2)
    iterator = iter(loader)
    next(iterator)
    theirs = torch.utils.data.DataLoader(numbered, batch_size=8, num_workers=2)
    assert [batch[1].tolist() for batch in theirs] == targets_of(loader)
    assert len(list(iterator)) == 4


def test_inside_torchs_workers(numbered):
    """A dataset that uses a native loader runs in torch's worker processes."""
    loader = native_loader(numbered, batch_size=8)
    list(loader)

    class Batches(torch.utils.data.Dataset):
        def __len__(self):
            return 2

        def __getitem__(self, index):
            return epoch_images(loader)

    for images in torch.utils.data.DataLoader(Batches(), batch_size=None, num_workers=2):
        assert images.shape == (40, 3, 8, 8)


# ---- waits ---------------------------------------------------------------------------------------


@pytest.fixture
def held(tmp_path):
    """An image, in the third batch of these tests, whose reads block until released."""
    helpers.save_jpeg(tmp_path / "source" / "held.jpg", 30, 30)
    files = HeldFiles(tmp_path / "source", tmp_path / "mounted", "held.jpg")
    yield files
    files.close()


@pytest.mark.parametrize("reader", ["pread", "auto"])
def test_timeout(numbered, held, reader):
    numbered.samples[9] = (str(held.path), 9)
    loader = native_loader(numbered, batch_size=4, num_workers=2, timeout=0.2, reader=reader)
    iterator, got, batches = iter(loader), [], []
    while not got or got[-1] != "end":
        got.append(helpers.take(iterator))
        batches = [one for one in got if isinstance(one, list)]
        # On a busy machine other batches may be late as well.
        if len(batches) == 2 and isinstance(got[-1], tuple):
            held.release()
        assert len(got) < 1000
    timeouts = {one for one in got if isinstance(one, tuple)}
    assert timeouts == {(RuntimeError, "DataLoader timed out after 0.2 seconds")}
    assert batches == [list(range(i, i + 4)) for i in range(0, 40, 4)]


# Prints on which thread a wait for a batch begins, from the third batch on.
WAITS = """
import threading
from feedmill.iterators import receive as module

wait, n_waits, third = module.waiting, 0, threading.Event()

def announced(call, *arguments):
    global n_waits
    n_waits += 1
    if n_waits == 3:
        print("waits", flush=True)
        third.set()
    return wait(call, *arguments)

module.waiting = announced
"""

INTERRUPTED = """
dataset = helpers.numbered_folder(sys.argv[1])
dataset.samples[9] = (sys.argv[2], 9)
loader = helpers.native_loader(dataset, batch_size=4, num_workers=int(sys.argv[3]), reader=sys.argv[4])
iterator = iter(loader)
print(next(iterator)[1].tolist(), next(iterator)[1].tolist(), flush=True)
try:
    next(iterator)
    print("not interrupted", flush=True)
except KeyboardInterrupt:
    print("interrupted", flush=True)
print([batch[1].tolist() for batch in iterator])
"""


@pytest.mark.parametrize(("num_workers", "reader"), [
    (0, "auto"), pytest.param(2, "pread", marks=pytest.mark.slow),
])
def test_ctrl_c_in_a_wait(small_images, held, num_workers, reader):
    process = start_script(WAITS + INTERRUPTED, small_images, held.path, num_workers, reader)
    assert process.stdout.readline() == "[0, 1, 2, 3] [4, 5, 6, 7]\n"
    assert process.stdout.readline() == "waits\n"
    process.send_signal(signal.SIGINT)
    assert process.stdout.readline() == "interrupted\n"
    held.release()
    out, errors = process.communicate(timeout=600)
    assert errors == "" and process.returncode == 0
    assert out == f"{[list(range(i, i + 4)) for i in range(8, 40, 4)]}\n"


@pytest.mark.parametrize("num_workers", [0, 2])
def test_interrupts_at_any_moment(tmp_path, num_workers):
    """Targets stay with their pixels, and batches in order, wherever an interrupt happens."""
    for i in range(60):
        path = tmp_path / "c" / f"{i:02}.jpg"
        path.parent.mkdir(exist_ok=True)
        helpers.Image.new("RGB", (16, 16), (4 * i, 4 * i, 4 * i)).save(path, quality=100)
        if i % 10 == 7:
            helpers.Image.new("RGB", (16, 16), (4 * i, 4 * i, 4 * i)).save(path, "BMP")
    dataset = helpers.numbered_folder(tmp_path)
    loader = native_loader(dataset, batch_size=2, num_workers=num_workers, threads=2)

    class Interrupt(BaseException):
        pass

    def on_alarm(*_):
        raise Interrupt

    old = signal.signal(signal.SIGALRM, on_alarm)
    n_interrupts = n_batches = 0
    # The timer follows the measured time of a batch, so this works on machines of any speed.
    most_s = 1e-3
    random = torch.Generator().manual_seed(1)
    try:
        for _ in range(40):
            iterator, last, done = iter(loader), -1, False
            while not done:
                batch = None
                try:
                    try:
                        delay_s = most_s * torch.rand((), generator=random).item()
                        signal.setitimer(signal.ITIMER_REAL, max(1e-6, delay_s))
                        batch = next(iterator)
                    except StopIteration:
                        done = True
                    signal.setitimer(signal.ITIMER_REAL, 0)
                except Interrupt:  # also raised in the handler above; the timer fires once
                    n_interrupts += 1
                    most_s *= 1.3
                if batch is None:
                    continue
                n_batches += 1
                most_s *= 0.9
                images, targets = batch
                assert targets[0] > last
                last = targets[-1].item()
                grey = images.float().mean((1, 2, 3)) / 4
                assert torch.allclose(grey, targets.float(), atol=0.6), (grey, targets)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, old)
    # About two interrupts for five batches, as 0.9 ** 5 * 1.3 ** 2 is 1.
    assert n_batches > 100 and n_interrupts > 50


# ---- the interpreter's exit ----------------------------------------------------------------------

ENDS = {
    "live_iterator": "iterator = iter(loader); next(iterator)",
    "unused_iterator": "iterator = iter(loader)",
    "exhausted": "batches = list(loader)",
    "batches_alive": "held = [batch for batch, _ in zip(loader, range(3))]",
    "in_a_cycle": "iterator = iter(loader); next(iterator); cycle = [iterator]; cycle.append(cycle)",
    "in_a_generator": "gen = (batch for batch in loader); next(gen)",
    "exception": "import atexit; iterator = iter(loader); atexit.register(lambda: next(iterator))",
    "sys_exit": "iterator = iter(loader); next(iterator); sys.exit(0)",
    "fork": "import os; it = iter(loader); pid = os.fork(); next(iter(loader)); pid and os.wait()",
}


# Imports once, then forks a process for each case; the child runs to the end of the script.
RUN_ENDS = """
import json, os
dataset = helpers.numbered_folder(sys.argv[1])
failed = []
for name, text in json.loads(sys.argv[2]).items():
    pid = os.fork()
    if pid == 0:
        loader = helpers.native_loader(dataset, batch_size=4, num_workers=int(sys.argv[3]))
        failed = None
        exec(text)
        break
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if status:
        failed.append((name, status))
if failed is not None:
    print(failed)
"""


@pytest.mark.slow
@pytest.mark.parametrize("num_workers", [0, 2])
def test_the_interpreter_exits_at_any_point(small_images, num_workers):
    assert run_script(RUN_ENDS, small_images, json.dumps(ENDS), num_workers) == "[]\n"


@pytest.mark.slow
@pytest.mark.parametrize("where", ["main", "daemon"])
@pytest.mark.parametrize("reader", [pytest.param("pread", marks=pytest.mark.slow), "auto"])
def test_the_interpreter_exits_during_a_read(small_images, held, where, reader):
    # torch aborts if a daemon thread is inside torch at exit; this one waits in feedmill.
    text = """
dataset = helpers.numbered_folder(sys.argv[1])
dataset.samples[9] = (sys.argv[2], 9)
loader = helpers.native_loader(dataset, batch_size=4, num_workers=2, reader=sys.argv[4])
iterator = iter(loader)
if sys.argv[3] == "daemon":
    threading.Thread(target=lambda: list(iterator), daemon=True).start()
    third.wait()
else:
    next(iterator)
    print("waits")
"""
    assert run_script(WAITS + text, small_images, held.path, where, reader) == "waits\n"


@pytest.mark.slow
def test_the_interpreter_exits_during_a_decode(small_images, tmp_path):
    """If decoding is finished before the exit, this tests nothing; on most machines it is not."""
    path = tmp_path / "large.jpg"
    helpers.Image.fromarray(helpers.pixels(3000, 3000)).save(path, quality=95, subsampling=0)
    text = """
dataset = helpers.numbered_folder(sys.argv[1])
dataset.samples[9] = (sys.argv[2], 9)
iterator = iter(helpers.native_loader(dataset, batch_size=4, num_workers=2))
next(iterator)
"""
    assert run_script(text, small_images, path) == ""
