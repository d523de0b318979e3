"""Batches that worker processes hand over in reused shared memory: the same batches, sharing and
errors as with torch's way."""

import contextlib
import gc
import os
import subprocess
import sys
import threading
import time
from collections import OrderedDict, UserDict, namedtuple
from pathlib import Path

import numpy as np
import pytest
import torch
from cpus import needs_handover
from feedmill.handover import control, install_in_worker, received, sending, slots
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import multiprocessing
from torch.utils.data import DataLoader, Dataset, IterableDataset
from torch.utils.data._utils import worker

torch_loop = worker._worker_loop
pytestmark = needs_handover
METHODS = ("fork", *(pytest.param(name, marks=pytest.mark.slow) for name in ("spawn", "forkserver")))


def loop(*arguments):
    reason = install_in_worker(arguments[3])
    assert not reason, reason
    torch_loop(*arguments)


def loop_that_may_be_off(*arguments):
    install_in_worker(arguments[3])
    torch_loop(*arguments)


@contextlib.contextmanager
def handing_over(function=loop):
    worker._worker_loop = function
    try:
        yield
    finally:
        worker._worker_loop = torch_loop


def our_batches(loader):
    with handing_over():
        yield from loader


def batches(loader):
    """Ours, or torch's where there are too few file descriptors."""
    with handing_over(loop_that_may_be_off):
        yield from loader


class Images(Dataset):
    """(image number i, i); images of ``shape`` and ``dtype``."""

    def __init__(self, n=40, shape=(3, 40, 50), dtype=torch.float32):
        self.n, self.shape, self.dtype = n, shape, dtype

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        generator = torch.Generator().manual_seed(i)
        image = torch.randint(0, 255, self.shape, generator=generator)
        return image.to(self.dtype), i


def same(one, other):
    """Whether two batches are equal in types, values, strides, storages and sharing."""
    assert type(one) is type(other)
    if isinstance(one, torch.Tensor):
        assert (one.dtype, one.shape, one.stride()) == (other.dtype, other.shape, other.stride())
        assert one.storage_offset() == other.storage_offset()
        assert one.is_shared() == other.is_shared()
        assert one.untyped_storage().nbytes() == other.untyped_storage().nbytes()
        assert one.untyped_storage().resizable() == other.untyped_storage().resizable()
        assert one.requires_grad == other.requires_grad
        assert torch.equal(one, other)
    elif isinstance(one, np.ndarray):
        assert one.dtype == other.dtype and np.array_equal(one, other)
    elif isinstance(one, (dict, UserDict)):
        assert list(one) == list(other)
        for key in one:
            same(one[key], other[key])
    elif isinstance(one, (list, tuple)):
        assert len(one) == len(other)
        for first, second in zip(one, other):
            same(first, second)
    else:
        assert one == other


def slots_in_use():
    """(slots, released slots) of all worker processes that this process knows."""
    all_slots = [slot for sender in received._senders.values() for slot in sender.memories()]
    return len(all_slots), sum(slot.is_released for slot in all_slots)


def stacked(samples):
    images, labels = zip(*samples)
    return {"images": torch.stack(images), "labels": torch.tensor(labels)}


# ---- the same batches ----------------------------------------------------------------------------


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("collate", [None, stacked])
def test_batches_are_torchs(method, collate):
    options = {"batch_size": 4, "num_workers": 2, "collate_fn": collate,
               "multiprocessing_context": method}
    theirs = list(DataLoader(Images(), **options))
    ours = []
    for batch in our_batches(DataLoader(Images(), **options)):
        ours.append(batch)
        assert slots_in_use()[0]
    assert len(ours) == len(theirs) == 10
    for one, other in zip(ours, theirs):
        same(one, other)


@pytest.mark.parametrize("collate", [None, stacked])
def test_slots_are_reused(collate):
    loader = DataLoader(Images(200), batch_size=4, num_workers=1, collate_fn=collate)
    seen = set()
    for number, batch in enumerate(our_batches(loader)):
        images, labels = batch.values() if collate else batch
        assert labels.tolist() == list(range(4 * number, 4 * number + 4))
        assert torch.equal(images[3], Images()[4 * number + 3][0])
        seen.add(images.untyped_storage().data_ptr())
        assert slots_in_use()[0] <= 12
        del batch, images, labels
    assert len(seen) < 10


Pair = namedtuple("Pair", "first second")
LEAVES = {
    "float": lambda i: torch.full((5, 7), float(i)),
    "bytes": lambda i: torch.full((2, 3, 1000), i, dtype=torch.uint8),
    "scalar": lambda i: torch.tensor(i),
    "empty": lambda i: torch.empty(0, 3),
    "bool": lambda i: torch.tensor([i % 2 == 0]),
    "complex": lambda i: torch.tensor([1j * i]),
    "bfloat16": lambda i: torch.full((3, 3), float(i)).bfloat16(),
    "turned": lambda i: torch.arange(12.0).view(3, 4).t() + i,
    "nan": lambda i: torch.tensor([float("inf"), -0.0, float(i)]),
    "array": lambda i: np.full((3, 4), i, np.int16),
    "int": lambda i: i,
    "real": lambda i: i / 3,
    "text": lambda i: str(i),
}
structures = st.recursive(
    st.sampled_from(sorted(LEAVES)),
    lambda inner: st.one_of(
        st.lists(inner, min_size=1, max_size=3),
        st.tuples(inner, inner),
        st.builds(Pair, inner, inner),
        st.dictionaries(st.sampled_from("abc"), inner, min_size=1),
    ),
    max_leaves=6,
)


def filled(structure, i):
    if isinstance(structure, str):
        return LEAVES[structure](i)
    if isinstance(structure, Pair):
        return Pair(*(filled(one, i) for one in structure))
    if isinstance(structure, dict):
        return {key: filled(one, i) for key, one in structure.items()}
    return type(structure)(filled(one, i) for one in structure)


class Structured(Dataset):
    def __init__(self, structure):
        self.structure = structure

    def __len__(self):
        return 9

    def __getitem__(self, i):
        return filled(self.structure, i)


def as_is(samples):
    return samples


def wrapped(samples):
    return UserDict({"samples": OrderedDict(enumerate(samples)), "list": [samples[0], samples[-1]]})


@settings(max_examples=int(os.environ.get("FEEDMILL_STRUCTURES", "12")), deadline=None,
          suppress_health_check=list(HealthCheck))
@given(structures, st.sampled_from([None, as_is, wrapped]), st.sampled_from([None, 2]))
def test_structures(structure, collate, batch_size):
    options = {"num_workers": 1, "batch_size": batch_size, "collate_fn": collate}
    if batch_size is None and collate is wrapped:
        options["collate_fn"] = as_is
    theirs = list(DataLoader(Structured(structure), **options))
    ours = list(our_batches(DataLoader(Structured(structure), **options)))
    assert len(ours) == len(theirs)
    for one, other in zip(ours, theirs):
        same(one, other)


class Kinds(Dataset):
    """Tensors that are sent in torch's way, and some that are not."""

    def __init__(self):
        self.kept = torch.zeros(3000)
        self.shared = torch.zeros(3000).share_memory_()
        self.count = 0

    def __len__(self):
        return 6

    def __getitem__(self, i):
        whole = torch.arange(4000.0) + i
        self.kept[0] = self.shared[0] = i
        return [
            whole[:2000], whole[1000:3000],  # one storage
            (torch.arange(4000.0) + i)[10:20],  # a part of a storage
            self.kept, self.shared,
            torch.nn.Parameter(torch.full((3000,), float(i))),
            torch.full((3000,), float(i), requires_grad=True),
            torch.eye(30).to_sparse(),
            torch.arange(3000.0).expand(2, 3000),
            torch.view_as_complex(torch.ones(1500, 2)).conj(),
        ]


def test_kinds_of_tensors():
    options = {"batch_size": None, "num_workers": 1, "prefetch_factor": 1}
    theirs = DataLoader(Kinds(), **options)
    for one, other in zip(our_batches(DataLoader(Kinds(), **options)), theirs):
        assert one[0].untyped_storage().data_ptr() == one[1].untyped_storage().data_ptr()
        one[0][1500] = -7
        assert one[1][500] == -7
        for first, second in zip(one[2:], other[2:]):
            assert type(first) is type(second) and first.layout is second.layout
            assert first.requires_grad == second.requires_grad
            assert first.is_sparse or first.is_shared() == second.is_shared()
            if first.is_sparse:
                assert torch.equal(first.to_dense(), second.to_dense())
            else:
                assert first.untyped_storage().nbytes() == second.untyped_storage().nbytes()
                assert first.stride() == second.stride()


def test_a_tensor_kept_by_the_dataset_stays_shared_with_it():
    class Keeping(Dataset):
        def __init__(self):
            self.kept = {}

        def __len__(self):
            return 4

        def __getitem__(self, i):
            if i == 0:
                self.kept["tensor"] = torch.zeros(5000)
                self.kept["batch"] = {"in a dict": torch.zeros(5000)}
            if i == 3:
                self.kept["tensor"][0] = self.kept["batch"]["in a dict"][0] = 5
            if i in (1, 2):
                time.sleep(0.3)
            return (self.kept["tensor"], self.kept["batch"]) if i == 0 else (torch.zeros(1), {})

    loader = DataLoader(Keeping(), batch_size=None, num_workers=1)
    iterator = our_batches(loader)
    tensor, inner = next(iterator)
    assert len(list(iterator)) == 3
    assert tensor[0] == 5 and inner["in a dict"][0] == 5


# ---- a batch belongs to its user -----------------------------------------------------------------


@pytest.mark.parametrize("part", ["batch", "row", "storage", "typed", "array", "data"])
def test_what_is_held_stays(part):
    held = []
    for images, _ in our_batches(DataLoader(Images(80), batch_size=2, num_workers=2)):
        held.append({
            "batch": lambda: images,
            "row": lambda: images[1],
            "storage": lambda: images.untyped_storage(),
            "typed": lambda: images.storage(),
            "array": lambda: images.numpy(),
            "data": lambda: memoryview(images.numpy())[1:],
        }[part]())
    assert len(held) == 40
    for number, one in enumerate(held):
        if isinstance(one, torch.UntypedStorage):
            one = torch.empty(0).set_(one)
        elif part == "typed":
            one = torch.empty(0).set_(one)
        values = torch.as_tensor(np.asarray(one)).reshape(-1)[-6000:]
        assert torch.equal(values, Images()[2 * number + 1][0].reshape(-1)), number


def test_in_place_changes_and_sizes():
    for images, labels in our_batches(DataLoader(Images(60), batch_size=4, num_workers=2)):
        assert torch.equal(images[0], Images()[int(labels[0])][0])
        images.fill_(-1)
        labels.zero_()
        with pytest.raises(RuntimeError, match="not resizable"):
            images.resize_(10**6)
        images.resize_(4)
        assert images.share_memory_() is images


def test_variable_sizes():
    class Varying(Dataset):
        def __len__(self):
            return 120

        def __getitem__(self, i):
            return torch.full((1000 + 37 * (i * 7919 % 1000),), float(i))

    for number, one in enumerate(our_batches(DataLoader(Varying(), None, num_workers=2))):
        assert one.shape == (1000 + 37 * (number * 7919 % 1000),) and (one == number).all()
        assert one.untyped_storage().nbytes() == one.nbytes


def test_too_many_slots_are_torchs():
    # The slots of two workers are fewer than these batches.
    loader = DataLoader(Images(2 * 200), batch_size=2, num_workers=2)
    held = list(our_batches(loader))
    for number, (images, labels) in enumerate(held):
        assert labels.tolist() == [2 * number, 2 * number + 1]
        assert torch.equal(images[1], Images()[2 * number + 1][0])


def read_later(queue, results):
    batch = queue.get()
    results.put("have it")
    queue.get()
    results.put(float(batch.sum()))


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_a_batch_sent_to_another_process_stays(method):
    context = multiprocessing.get_context(method)
    queue, results = context.Queue(), context.Queue()
    reader = context.Process(target=read_later, args=(queue, results))
    reader.start()
    iterator = our_batches(DataLoader(Images(80), batch_size=4, num_workers=1))
    next(iterator)
    images, _ = next(iterator)
    expected = float(images.sum())
    queue.put(images)
    assert results.get(timeout=600) == "have it"
    del images
    for images, _ in iterator:
        images.fill_(-1)
    queue.put(None)
    assert results.get(timeout=600) == expected
    reader.join()


def test_a_batch_in_a_forked_child_stays():
    iterator = our_batches(DataLoader(Images(80), batch_size=4, num_workers=1))
    next(iterator)
    images, _ = next(iterator)
    expected = float(images.sum())
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.read(reading, 1)
        os._exit(float(images.sum()) != expected or bool(received._senders))
    del images
    for images, _ in iterator:
        images.fill_(-1)
    os.write(writing, b".")
    assert os.waitpid(child, 0)[1] == 0
    os.close(reading), os.close(writing)


def test_pickled_and_saved(tmp_path):
    for images, _ in our_batches(DataLoader(Images(8), batch_size=4, num_workers=1)):
        torch.save(images, tmp_path / "images.pt")
        assert torch.equal(torch.load(tmp_path / "images.pt"), images)


# ---- torch's errors and ends ---------------------------------------------------------------------


def test_errors_are_torchs():
    class Bad(Images):
        def __getitem__(self, i):
            image, label = super().__getitem__(i)
            return (image[:, : 5 + i % 3], label) if 8 <= i < 12 else (image, label)

    texts = []
    for batches in (iter, our_batches):
        iterator = batches(DataLoader(Bad(), batch_size=4, num_workers=1))
        with pytest.raises(RuntimeError) as error:
            list(iterator)
        texts.append(str(error.value).splitlines()[-1])
    assert texts[0] == texts[1]


KILLED = """
import signal, sys
sys.path[:0] = [{tests!r}]
from test_handover import *


class Dying(Images):
    # Not killed from outside: a worker that dies with the lock of torch's multiprocessing.Event
    # makes torch's iterator wait forever.
    def __getitem__(self, i):
        if i == 12:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().__getitem__(i)


try:
    with handing_over():
        iterator = iter(DataLoader(Dying(400), batch_size=4, num_workers=1))
        images, _ = next(iterator)
        assert received._senders
        next(iterator)  # asks for the batch of image 12
        iterator._workers[0].join()  # until then, torch may raise the pipe's error
        for _ in iterator:
            time.sleep(0.01)
except RuntimeError as error:
    print(str(error).split("(pid")[0])
try:
    del iterator, _
    gc.collect()
finally:
    print(torch.equal(images[0], Images()[0][0]), len(received._senders))
"""


@pytest.mark.slow
def test_a_killed_worker():
    done = run_script(KILLED)
    assert done.stdout == "DataLoader worker \nTrue 0\n", (done.stdout, done.stderr)


@pytest.mark.parametrize("persistent", [False, True])
def test_early_ends_and_further_epochs(persistent):
    loader = DataLoader(Images(60), batch_size=4, num_workers=2, persistent_workers=persistent)
    last = None
    for epoch in range(4):
        for number, (images, labels) in enumerate(our_batches(loader)):
            assert torch.equal(images[2], Images()[4 * number + 2][0])
            assert labels[2] == 4 * number + 2
            last = images
            if epoch % 2 == 0 and number == 3:
                break
    assert last is not None


def test_two_loaders_and_threads():
    first = DataLoader(Images(40), batch_size=4, num_workers=1)
    second = DataLoader(Images(40), batch_size=4, num_workers=1)
    for (one, _), (other, _) in zip(our_batches(first), our_batches(second)):
        assert torch.equal(one, other)
        one.zero_()
    failures = []

    def run():
        for number, (images, _) in enumerate(our_batches(DataLoader(Images(), 4, num_workers=1))):
            if not torch.equal(images[1], Images()[4 * number + 1][0]):
                failures.append(number)

    threads = [threading.Thread(target=run) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


class Endless(IterableDataset):
    def __iter__(self):
        for i in range(30):
            yield torch.full((3000,), float(i))


def test_iterable_datasets():
    loader = DataLoader(Endless(), batch_size=None, num_workers=1)
    assert [float(one[0]) for one in our_batches(loader)] == list(range(30))


def n_held():
    gc.collect()
    maps = Path("/proc/self/maps").read_text().splitlines()
    return len(os.listdir("/proc/self/fd")), sum("feedmill-batch" in line for line in maps)


def test_nothing_is_left():
    def run():
        for batch in our_batches(DataLoader(Images(), batch_size=4, num_workers=2)):
            del batch

    others = n_held()[1], set(received._senders)  # earlier tests'
    run()
    before = n_held()
    assert before[1] <= others[0]
    for _ in range(4):
        run()
    after = n_held()
    # torch's own iterators keep the ends of a pipe open for a while.
    assert after[0] <= before[0] + 2 and after[1] <= others[0]
    assert set(received._senders) <= others[1]


def test_strategy_file_system_is_left_alone():
    torch.multiprocessing.set_sharing_strategy("file_system")
    try:
        with handing_over(loop_that_may_be_off):
            for images, _ in DataLoader(Images(8), batch_size=4, num_workers=1):
                assert images.is_shared() and not received._senders
    finally:
        torch.multiprocessing.set_sharing_strategy("file_descriptor")


def use_file_system(_number):
    torch.multiprocessing.set_sharing_strategy("file_system")


def test_strategy_file_system_of_a_worker():
    loader = DataLoader(Images(20), batch_size=4, num_workers=1, worker_init_fn=use_file_system)
    for number, (images, _) in enumerate(our_batches(loader)):
        assert torch.equal(images[1], Images()[4 * number + 1][0])
        assert not received._senders


# ---- limits --------------------------------------------------------------------------------------

SMALL_SHM = """
import sys
sys.path[:0] = [{tests!r}]
import multiprocessing, torch
from test_handover import *
multiprocessing.set_start_method("fork")  # a fork server needs more file descriptors
total = 0
for images, labels in our_batches(DataLoader(Images(96, (3, 224, 224)), 8, num_workers=2)):
    assert images.is_shared()
    total += int(labels.sum())
assert total == 96 * 95 // 2
print("done")
"""


def run_script(text, *before):
    script = text.format(tests=str(Path(__file__).parent))
    return subprocess.run([*before, sys.executable, "-W", "ignore", "-c", script], timeout=300,
                          capture_output=True, text=True, check=False)


def test_a_tiny_dev_shm():
    mount = "mount -t tmpfs -o size=1m none /dev/shm"
    if subprocess.run(["unshare", "-rm", "sh", "-c", mount], capture_output=True, check=False,
                      timeout=30).returncode:
        pytest.skip("mounts are not permitted")
    done = run_script(SMALL_SHM, "unshare", "-rm", "sh", "-c", f'{mount} && exec "$@"', "sh")
    assert done.stdout == "done\n", done.stderr


@pytest.mark.parametrize("limit", [24, pytest.param(64, marks=pytest.mark.slow)])
def test_few_file_descriptors(limit):
    limited = f'ulimit -n {limit} && exec "$@"'
    done = run_script(SMALL_SHM.replace("our_batches", "batches"), "sh", "-c", limited, "sh")
    assert done.stdout == "done\n", done.stderr


def test_memory_that_cannot_be_had(monkeypatch):
    def refuse(_n_bytes):
        raise OSError("no memory")

    pool = slots.Pool(4)
    monkeypatch.setattr(slots, "shared_memory", refuse)
    assert pool.take(5000) is None
    monkeypatch.setattr(os, "memfd_create", refuse, raising=False)
    monkeypatch.setattr(control, "shared_memory", refuse)
    assert "no shared memory" in sending.install(multiprocessing.get_context().Queue())
    assert "unknown way" in sending.install(object())


# ---- slots ---------------------------------------------------------------------------------------


def test_a_pool():
    pool = slots.Pool(4)
    one = pool.take(5000)
    assert one.nbytes() == 5000 and one.is_shared()
    address = one.data_ptr()
    other = pool.take(5000)
    assert other.data_ptr() != address
    del one
    again = pool.take(4500)
    assert again.nbytes() == 4500 and len(pool.memories()) == 2
    assert pool.take(1 << 20) is not None  # dropped at once, and free
    assert pool.take(0) is None
    kept = [pool.take(1 << 20), pool.take(1 << 20)]
    assert None not in kept and pool.take(1 << 20) is None
    del other, again
    assert pool.take(1 << 20) is not None and len(pool.memories()) == 4


def test_slots_that_are_not_used_are_freed():
    pool = slots.Pool(8)
    held = [pool.take(90_000) for _ in range(5)]
    assert len(pool.memories()) == 5
    held.clear()
    for _ in range(200):
        pool.take(1_000_000)
    assert len(pool.memories()) == 1
