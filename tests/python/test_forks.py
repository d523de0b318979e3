"""A forked child, in which the other threads of the parent do not exist. It must not wait for a
lock that one of them held, and must not touch the parent's resources."""

import ast
import gc
import io
import pickle
import random
import tarfile
import threading
from pathlib import Path

import feedmill
import feedmill.iterators.global_generators
import pytest
import torch
from feedmill.collate.blocks import BlockPool
from feedmill.profiling.counting import captures
from feedmill.profiling.watching import tally
from feedmill.system import locks
from helpers import compose, in_child, native_loader, save_jpeg
from torchvision import transforms as T

# Every lock of the package, and how a child process gets one that is not held.
KNOWN = {
    # Renewed by locks.renew_after_fork().
    ("integrations/accelerate.py", "self._lock"),
    ("handover/slots.py", "self._lock"), ("handover/received.py", "self._lock"),
    ("collate/blocks.py", "self._lock"), ("iterators/global_generators.py", "_generators"),
    ("profiling/counting/captures.py", "lock"), ("iterators/hybrid.py", "HybridDataLoaderIter._lock"),
    ("iterators/native.py", "self._lock"), ("packing/shards.py", "self._lock"),
    ("deferred/counters.py", "self._lock"), ("iterators/deferring.py", "_lock"),
    ("deferred/held.py", "_lock"), ("deferred/replacements.py", "_lock"),
    ("deferred/composed.py", "_drawing"),
    ("remote/process.py", "self.lock"),
    # Replaced by the owner's own hook, or at the owner's first use in the child.
    ("engine/pool.py", "self._diagnosing"), ("engine/pool.py", "self._lock"),
    ("profiling/log/recorder.py", "self._lock"), ("profiling/watching/tally.py", "_lock"),
    ("system/peer_processes.py", "_writing"), ("profiling/counting/gpu_stalls.py", "self._reading"),
    # Used only with threads that the child does not have.
    ("iterators/hybrid.py", "_Work._lock"), ("iterators/collating.py", "self._counting"),
    # Used only with the parent's Remote, in whose place the child makes its own.
    ("remote/process.py", "self._lock"),
}


class Held:
    """A with block during which another thread holds the given locks."""

    def __init__(self, *held):
        self._locks = held
        self._taken, self._go_on = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._hold)

    def _hold(self):
        for one in self._locks:
            one.acquire()
        self._taken.set()
        self._go_on.wait()
        for one in self._locks:
            one.release()

    def __enter__(self):
        self._thread.start()
        self._taken.wait()

    def __exit__(self, *_):
        self._go_on.set()
        self._thread.join()


# ---- the locks of the package --------------------------------------------------------------------


def locks_in(path):
    """The names to which a module assigns a new threading lock; with the class if several classes
    have that name."""
    tree = ast.parse(path.read_text())
    found = []

    def visit(node, owner):
        if isinstance(node, ast.ClassDef):
            owner = node.name
        if isinstance(node, ast.Assign | ast.AnnAssign) and isinstance(node.value, ast.Call):
            called = ast.unparse(node.value.func)
            if called in ("threading.Lock", "threading.RLock", "threading.Condition"):
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                found.extend((owner, ast.unparse(one)) for one in targets)
        for child in ast.iter_child_nodes(node):
            visit(child, owner)

    visit(tree, "")
    for owner, name in found:
        same = {other for other, theirs in found if theirs == name}
        yield name if len(same) == 1 else f"{owner}.{name.removeprefix('self.')}"


def test_every_lock_of_the_package_is_listed():
    root = Path(feedmill.__file__).parent
    found = {
        (str(path.relative_to(root)), name)
        for path in root.rglob("*.py") for name in locks_in(path)
    }
    assert found == KNOWN, "what becomes of a new lock in the child of a fork? Say so in KNOWN"


# ---- locks that another thread holds -------------------------------------------------------------


class Owner:
    def __init__(self):
        self.lock, self.items = threading.Lock(), [1]
        locks.renew_after_fork(self, lock=threading.Lock, items=list)


def test_locks_and_values_are_renewed_in_a_child():
    owner = Owner()
    lock = owner.lock

    def child():
        assert owner.lock is not lock and owner.lock.acquire(timeout=0)
        assert owner.items == []

    with Held(owner.lock):
        assert in_child(child) == 0
    assert owner.lock is lock and owner.items == [1]


def test_renew_after_fork_does_not_keep_owners_alive():
    n_before = len(locks._owners)
    owner = Owner()
    assert len(locks._owners) == n_before + 1
    del owner
    assert len(locks._owners) == n_before


def test_a_lock_that_the_forking_thread_holds():
    owner = Owner()
    with owner.lock:
        assert in_child(lambda: owner.lock.acquire(timeout=0)) == 0
    assert owner.lock.acquire(timeout=0)


@pytest.fixture
def shards(tmp_path):
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w") as tar:
        for i in range(6):
            image = save_jpeg(tmp_path / "image.jpg", 20, 20, seed=i).read_bytes()
            for suffix, content in (("jpg", image), ("cls", str(i).encode())):
                info = tarfile.TarInfo(f"{i}.{suffix}")
                info.size = len(content)
                tar.addfile(info, io.BytesIO(content))
    (tmp_path / "a.tar").write_bytes(data.getvalue())
    return feedmill.WebDataset(str(tmp_path / "a.tar"), transform=T.PILToTensor())


def test_shards_in_a_child(shards):
    wanted = [shards[i][0] for i in range(6)]

    def child():
        assert all(torch.equal(shards[i][0], wanted[i]) for i in range(6))

    with Held(shards._shards._lock):
        assert in_child(child) == 0
    assert torch.equal(pickle.loads(pickle.dumps(shards))[3][0], wanted[3])


def test_shards_in_torchs_workers(shards):
    with Held(shards._shards._lock):
        loader = torch.utils.data.DataLoader(shards, batch_size=3, num_workers=2)
        assert sum(len(labels) for _, labels in loader) == 6


LOADERS = {
    "native": {"native": "require"},
    "torch": {"native": "off"},
    "hybrid": {"native": "hybrid"},
    "collate": {"native": "require", "collate_fn": lambda samples: samples},
}


def loader_of(kind, dataset, **options):
    if kind == "hybrid":
        dataset.transform = compose(T.Lambda(lambda image: image.copy()), T.PILToTensor(),
                                    T.Resize((8, 8)))
    return feedmill.DataLoader(dataset, **{"batch_size": 8, **LOADERS[kind], **options})


@pytest.mark.parametrize("kind", LOADERS)
def test_loaders_in_a_child(numbered, kind, tmp_path):
    """A child uses a loader while the parent's threads hold every lock of it."""
    loader = loader_of(kind, numbered, num_workers=2, log=str(tmp_path / "log"))
    iterator = iter(loader)
    next(iterator)
    assert loader.stats().path == ("native" if kind == "collate" else kind)
    inside = loader._feedmill
    held = [
        inside.engine_pool._lock, inside.engine_pool._diagnosing, inside.recorder._lock, tally._lock,
        feedmill.iterators.global_generators._generators, captures.lock, inside.blocks._lock,
        inside.shared_blocks._lock,
    ]
    if kind != "torch":
        held.append(iterator._lock)

    def child():
        assert len(list(loader)) == 5
        loader.stats(), loader.report()
        if kind != "torch":
            with pytest.raises(RuntimeError, match="process"):
                next(iterator)

    with Held(*held):
        assert in_child(child) == 0
    assert len(list(iterator)) == 4


# ---- resources of the parent ---------------------------------------------------------------------


def targets(samples):
    return [target for _, target in samples]


def shuffled(samples):
    """Draws random numbers, so it is called in worker processes."""
    random.random()
    return targets(samples)


@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize("collate", [targets, shuffled])
def test_a_child_that_drops_the_iterator_stops_nothing(numbered, collate, persistent):
    """The parent's collating thread and workers continue."""
    loader = native_loader(numbered, batch_size=4, num_workers=2, collate_fn=collate,
                           persistent_workers=persistent)
    wanted = list(loader)
    iterator = iter(loader)
    got = [next(iterator)]
    assert (iterator._workers_ahead is None) == (collate is targets)

    def child():
        nonlocal iterator, loader
        loader._iterator = None
        iterator.__del__()
        del iterator, loader
        gc.collect()

    assert in_child(child) == 0
    got += iterator
    assert got == wanted and len(got) == 10
    assert list(loader) == wanted


def test_memory_of_batches_is_not_shared_with_a_child():
    """The parent may reuse a free block of shared memory, so the child takes others."""
    pool = BlockPool(shared=True)
    _, owner = pool.allocate(4096)
    owner.fill_(7)
    del owner

    def child():
        _, mine = pool.allocate(4096)
        mine.fill_(9)

    assert in_child(child) == 0
    _, owner = pool.allocate(4096)
    assert pool.n_blocks == 1 and owner.unique().tolist() == [7]
