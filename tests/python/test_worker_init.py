"""worker_init_fns of the user's own: which are proved only to seed random generators."""

import functools
import os
import random
import subprocess
import sys
import time
from pathlib import Path

import feedmill
import numpy as np
import pytest
import torch
from feedmill.planner.generators import is_of_numpy
from feedmill.planner.seeding import understood
from helpers import compose, native_loader, slow_but_for
from torch.utils.data import get_worker_info
from torchvision import transforms as T
from torchvision.datasets import ImageFolder

BASE = 17
CHANGED = 1


@pytest.fixture
def small_folder(small_images):
    return ImageFolder(str(small_images), compose(T.Resize((8, 8)), T.PILToTensor()))


# As in public codebases: PyTorch's notes, ultralytics, BasicSR, mmengine, hysts, webdataset's users.
def seed_worker(worker_id):
    worker_seed = torch.initial_seed() % 2**32
    np.random.seed(worker_seed)
    random.seed(worker_seed)


def of_basicsr(worker_id, num_workers, rank, seed):
    # Set the worker seed to num_workers * rank + worker_id + seed
    worker_seed = num_workers * rank + worker_id + seed
    np.random.seed(worker_seed)
    random.seed(worker_seed)


def of_mmengine(worker_id: int, num_workers: int, rank: int, seed: int,
                disable_subprocess_warning: bool = False) -> None:
    """Sets the seeds of a worker."""
    worker_seed = num_workers * rank + worker_id + seed
    np.random.seed(worker_seed)
    random.seed(worker_seed)
    torch.manual_seed(worker_seed)
    if disable_subprocess_warning and worker_id != 0:
        print("never")


def of_hysts(worker_id: int) -> None:
    np.random.seed(np.random.get_state()[1][0] + worker_id)


def by_info(worker_id):
    info = get_worker_info()
    if info is not None:
        random.seed(info.seed + info.num_workers * info.id)
        torch.manual_seed(int(torch.initial_seed()) + worker_id)


def with_constant(worker_id):
    torch.manual_seed(BASE + 2 * worker_id)
    torch.cuda.manual_seed_all(BASE)
    return None


def nested(seed):
    def init(worker_id):
        np.random.seed(seed=seed * 1000 + worker_id)

    return init


def of_nvidia(id):
    # Worker process should inherit its affinity from parent
    affinity = os.sched_getaffinity(0)
    print(f"Process {BASE} Worker {id} set affinity to: {affinity}")

    np.random.seed(seed=BASE + id)
    random.seed(BASE + id)


def only_prints(id):
    print("worker", id, 0.5, True, None, f"{id!r} of {BASE}")


SEEDING = {
    "torchs_notes": seed_worker,
    "basicsr": functools.partial(of_basicsr, num_workers=4, rank=3, seed=10),
    "mmengine": functools.partial(
        functools.partial(of_mmengine, num_workers=4, seed=7), rank=0,
        disable_subprocess_warning=False),
    "hysts": of_hysts,
    "nvidia": of_nvidia,
    "info": by_info,
    "constant": with_constant,
    "nested": nested(12),
    "lambda": lambda number: np.random.seed(number),
    "entropy": lambda number: random.seed(),
}


@pytest.mark.parametrize("name", SEEDING)
def test_functions_that_only_seed(small_folder, name):
    if name == "hysts" and np.lib.NumpyVersion(np.__version__) < "2.0.0":
        pytest.skip("NumPy 1 does not wrap around")
    if name == "lambda":
        assert not understood(SEEDING[name], 1 << 33)
    assert understood(SEEDING[name], 8)
    loader = native_loader(small_folder, batch_size=8, num_workers=2, worker_init_fn=SEEDING[name])
    others = torch.utils.data.DataLoader(small_folder, batch_size=8)
    for mine, other in zip(loader, others, strict=True):
        assert torch.equal(mine[0], other[0]) and torch.equal(mine[1], other[1])


def draws(samples):
    """A collate_fn that draws from all three generators."""
    return torch.rand(2), random.random(), np.random.rand(), len(samples)


@pytest.mark.parametrize("name", ["torchs_notes", "basicsr", "mmengine", "hysts", "nested", "nvidia"])
def test_a_collate_fn_draws_as_with_torch(small_folder, name):
    options = {"batch_size": 8, "num_workers": 2, "worker_init_fn": SEEDING[name],
               "collate_fn": draws}
    results = []
    for make in (native_loader, torch.utils.data.DataLoader):
        loader = make(small_folder, generator=torch.Generator().manual_seed(3), **options)
        results.append([repr(batch) for batch in loader])
    assert results[0] == results[1] and len(set(results[0])) > 1


@pytest.mark.parametrize("rng", ["auto", "feedmill"])
@pytest.mark.parametrize("is_random", slow_but_for([True], [False, True]))
@pytest.mark.parametrize("collate_fn", [None, draws, len], ids=["default", "draws", "proved"])
@pytest.mark.parametrize("function", [of_nvidia, only_prints])
def test_what_is_printed_once_for_each_worker(
    small_folder, capfd, function, collate_fn, is_random, rng
):
    crop = T.RandomCrop(8) if is_random else T.CenterCrop(8)
    small_folder.transform = compose(T.Resize((8, 8)), crop, T.PILToTensor())
    options = {"batch_size": 20, "num_workers": 2, "worker_init_fn": function,
               "collate_fn": collate_fn}
    printed = []
    for make in (torch.utils.data.DataLoader, functools.partial(native_loader, rng=rng)):
        loader = make(small_folder, **options)
        for _ in range(2):
            list(loader)
        printed.append(capfd.readouterr().out)
    for worker in (0, 0, 1, 1):
        function(worker)
    wanted = capfd.readouterr().out
    assert sorted(printed[1].splitlines()) == sorted(wanted.splitlines())
    # torch's two processes may write parts of their lines in turn.
    assert sorted(printed[0]) == sorted(wanted)


def test_hybrid_mode_is_not_for_what_prints(small_folder):
    small_folder.transform = T.Lambda(lambda image: T.ToTensor()(image.rotate(5).resize((8, 8))))
    for function, path in ((seed_worker, "hybrid"), (only_prints, "torch")):
        loader = feedmill.DataLoader(
            small_folder, 20, num_workers=1, native="hybrid", worker_init_fn=function
        )
        list(loader)
        assert loader.stats().path == path
    assert "worker_init_fn prints" in loader.explain()


# ---- left to torch -------------------------------------------------------------------------------

LOG = []


def does_nothing(worker_id):
    pass


def logs(worker_id):
    LOG.append(worker_id)
    np.random.seed(worker_id)


def changes_the_dataset(worker_id):
    info = get_worker_info()
    info.dataset.offset = worker_id
    np.random.seed(worker_id)


def reads_the_dataset(worker_id):
    np.random.seed(get_worker_info().dataset.seed)


def too_large(worker_id):
    np.random.seed(torch.initial_seed() + worker_id)


def perhaps_negative(worker_id):
    np.random.seed(worker_id - 1)


def seeds_python_with_numpys(worker_id):
    random.seed(np.random.get_state()[1][0])


def limits_threads(worker_id):
    np.random.seed(worker_id)
    torch.set_num_threads(1)


def sets_the_environment(worker_id):
    os.environ["FEEDMILL_TEST"] = "1"
    np.random.seed(worker_id)


def by_time(worker_id):
    np.random.seed(int(time.time()) + worker_id)


def by_worker(worker_id):
    if worker_id > 0:
        np.random.seed(worker_id)


def divides(worker_id):
    np.random.seed(100 // worker_id)


def without_rest(worker_id):
    np.random.seed(5 % worker_id)


def of_a_float(worker_id):
    torch.manual_seed(worker_id * 1.5)


def calls_another(worker_id):
    seed_worker(worker_id)


def huge(worker_id):
    random.seed(2 ** 2 ** 2 ** 2 ** 2 ** 2)


def seeds_its_own(worker_id, generator=random.Random(3)):  # noqa: B008
    generator.seed(worker_id)


def declares_global(worker_id):
    global CHANGED
    CHANGED = worker_id
    np.random.seed(3)


def yields(worker_id):
    np.random.seed(3)
    yield


def uses_the_result(worker_id):
    generator = torch.manual_seed(worker_id)
    if generator is None:
        np.random.seed(1)
    else:
        LOG.append(worker_id)


def asks_for_the_truth(worker_id):
    if torch.manual_seed(worker_id):
        np.random.seed(1)


def grows(worker_id):
    seed = worker_id * (worker_id - 1) * 3
    for _ in MANY:
        seed = seed * seed
    np.random.seed(seed % 7)


MANY = [0] * 40


class Touches:
    """Stands for one of torch's functions, by what it says."""

    def __call__(self, seed):
        LOG.append(seed)

    def __getattr__(self, name):
        LOG.append(name)
        raise RuntimeError(name)


class Pretends(Touches):
    feedmill_original = staticmethod(getattr(torch.manual_seed, "__wrapped__", torch.manual_seed))


def pretends(seed):
    LOG.append(seed)


pretends.feedmill_original = Pretends.feedmill_original
TOUCHES, PRETENDS = Touches(), Pretends()


def calls_an_object(worker_id):
    TOUCHES(worker_id)


def calls_a_pretender(worker_id):
    PRETENDS(worker_id)


def calls_a_pretending_function(worker_id):
    pretends(worker_id)


class Formatted:
    def __format__(self, spec):
        LOG.append(spec)
        return ""


FORMATTED = Formatted()


def prints_an_object(worker_id):
    print(f"{FORMATTED}")


def prints_its_process(worker_id):
    print(os.getpid())


def prints_elsewhere(worker_id):
    print(worker_id, file=sys.stderr)


def prints_its_seed_as_it_likes(worker_id):
    print(f"{worker_id:{worker_id}}")


def asks_for_another_process(worker_id):
    print(os.sched_getaffinity(1))


class Callable:
    def __call__(self, worker_id):
        np.random.seed(worker_id)


OTHER = [
    does_nothing, logs, changes_the_dataset, reads_the_dataset, too_large, perhaps_negative,
    seeds_python_with_numpys, limits_threads, sets_the_environment, by_time, by_worker, divides,
    uses_the_result, prints_an_object, prints_its_process, prints_elsewhere,
    prints_its_seed_as_it_likes, asks_for_another_process, asks_for_the_truth, grows, calls_an_object,
    calls_a_pretender,
    calls_a_pretending_function, without_rest, of_a_float, calls_another, huge, seeds_its_own, declares_global, yields,
    Callable(), functools.partial(of_basicsr, num_workers=4, rank=3),
    functools.partial(of_basicsr, num_workers=4, rank=3, seed=1 << 32),
    functools.partial(of_basicsr, num_workers=4, rank=3, seed=-20),
    functools.partial(of_basicsr, num_workers=4, rank=3, seed=1, more=2),
    functools.partial(of_basicsr, 1, num_workers=4, rank=3, seed=1),
    functools.partial(of_basicsr, num_workers=4, rank=abs, seed=1),
    functools.partial(seed_worker, worker_id=3), lambda number: np.random.seed(number, 3),
    lambda number: np.random.seed([number]), lambda number: random.seed(str(number)),
    lambda number: np.random.shuffle([number]), lambda number: None, random.seed,
]


@pytest.mark.parametrize("function", OTHER)
def test_these_are_left_to_torch(small_folder, function):
    LOG.clear()  # pytest looks at the objects above
    assert not understood(function, 4)
    loader = feedmill.DataLoader(small_folder, num_workers=4, worker_init_fn=function)
    assert "worker_init_fn is set" in loader.explain()
    assert LOG == []


def test_another_print(monkeypatch):
    """As DETR's, which prints in one process only."""
    monkeypatch.setattr("builtins.print", lambda *words: LOG.append(words))
    assert not understood(of_nvidia, 4)


@pytest.mark.parametrize("place", [(np.random, "seed"), (random, "seed"), (torch, "initial_seed")])
def test_replaced_functions(monkeypatch, place):
    LOG.clear()
    monkeypatch.setattr(*place, lambda *_: LOG.append(1))
    assert not understood(seed_worker, 4) and LOG == []


def test_a_function_of_numpy_under_another_name():
    other = np.random.ranf
    kept = other.__qualname__, other.__module__
    try:
        other.__qualname__, other.__module__ = "seed", "numpy.random"
    except (AttributeError, TypeError):
        pytest.skip("this NumPy's functions can't be renamed")
    try:
        assert not is_of_numpy(other, "seed") and is_of_numpy(np.random.seed, "seed")
    finally:
        other.__qualname__, other.__module__ = kept


@pytest.mark.parametrize("name", SEEDING)
def test_they_do_not_raise_in_any_worker(name):
    """What was proved of the ranges of seeds."""
    states = torch.get_rng_state(), random.getstate(), np.random.get_state()
    try:
        for number in (0, 1, 7):
            for seed in (0, (1 << 63) - 1 + number):
                torch.manual_seed(seed)
                if name != "info":
                    SEEDING[name](number)
    finally:
        torch.set_rng_state(states[0])
        random.setstate(states[1])
        np.random.set_state(states[2])


# ---- where workers are not forked ----------------------------------------------------------------


def a_local_function():
    def seeds(number):
        np.random.seed(number)

    return seeds


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
@pytest.mark.parametrize("function", [
    lambda number: np.random.seed(number), a_local_function(),
    functools.partial(lambda seed, number: np.random.seed(seed + number), 3),
])  # fmt: skip
def test_what_can_not_be_pickled_raises_as_with_torch(small_folder, method, function):
    options = {"num_workers": 1, "worker_init_fn": function}
    assert understood(function, 1)
    assert feedmill.DataLoader(
        small_folder, multiprocessing_context="fork", **options
    ).explain().startswith("native path")
    options["multiprocessing_context"] = method
    loader = feedmill.DataLoader(small_folder, **options)
    assert "worker_init_fn can't be pickled" in loader.explain()
    raised = []
    for one in (torch.utils.data.DataLoader(small_folder, **options), loader):
        with pytest.raises(Exception, match="pickle|local object") as caught:
            next(iter(one))
        raised.append((type(caught.value), str(caught.value).partition(" at 0x")[0]))
    assert raised[0] == raised[1]


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_what_can_be_pickled_is_native_however_workers_start(small_folder, method):
    for function in (seed_worker, functools.partial(of_basicsr, num_workers=1, rank=0, seed=3)):
        loader = feedmill.DataLoader(
            small_folder, num_workers=1, worker_init_fn=function, multiprocessing_context=method
        )
        assert loader.explain().startswith("native path")


def test_a_name_that_stands_for_another_function(small_folder, monkeypatch):
    monkeypatch.setitem(globals(), "seed_worker", lambda number: None)
    options = {"num_workers": 1, "multiprocessing_context": "spawn"}
    for function in (ORIGINAL, functools.partial(ORIGINAL)):
        loader = feedmill.DataLoader(small_folder, worker_init_fn=function, **options)
        assert "worker_init_fn can't be pickled" in loader.explain()


ORIGINAL = seed_worker


SCRIPT = """
import sys
sys.path.append(SUPPORT)
import torchvision_cpu
import multiprocessing, feedmill, numpy as np
from torchvision import transforms as T
from torchvision.datasets import ImageFolder

dataset = ImageFolder(ROOT, T.Compose([T.Resize((8, 8)), T.PILToTensor()]))
loader = feedmill.DataLoader(dataset, num_workers=1, worker_init_fn=lambda i: np.random.seed(i))
is_fork = multiprocessing.get_all_start_methods()[0] == "fork"
assert ("can't be pickled" in loader.explain()) is not is_fork
assert multiprocessing.get_start_method(allow_none=True) is None
multiprocessing.set_start_method("spawn")
assert "worker_init_fn can't be pickled" in loader.explain()
"""


@pytest.mark.slow
def test_the_default_start_method_is_asked_for_and_not_settled(small_folder, tmp_path):
    script = tmp_path / "script.py"
    support = str(Path(__file__).parents[1] / "support")
    script.write_text(f"SUPPORT, ROOT = {support!r}, {small_folder.root!r}\n{SCRIPT}")
    subprocess.run([sys.executable, script], check=True)
