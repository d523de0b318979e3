"""state_dict() and load_state_dict() of a DataLoader: an epoch that goes on equals an unbroken one.
"""

import copy
import gc
import itertools
import json
import os
import pickle
import random
import signal
import subprocess
import sys
import warnings
import weakref
import zlib

import feedmill
import helpers
import numpy as np
import pytest
import torch
from feedmill.planner.orders import OrderError
from torch.utils.data import (
    BatchSampler,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    Subset,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
)
from torchvision import transforms as T

RANDOM = [T.RandomResizedCrop(8), T.RandomHorizontalFlip(), T.ToTensor()]


@pytest.fixture(scope="module")
def folder(small_images):
    """An ImageFolder with random transforms, whose targets are the indices."""
    return helpers.numbered_folder(small_images, helpers.compose(*RANDOM))


def loader_of(dataset, **options):
    return helpers.native_loader(dataset, **{"batch_size": 4, **options})


def samples(batches):
    """(target, checksum of the pixels) of each sample."""
    found = []
    for images, targets in batches:
        pixels = images if images.dim() == 4 else images[None]
        targets = [targets] if not isinstance(targets, torch.Tensor) else targets.reshape(-1)
        found += [
            (int(target), zlib.crc32(image.contiguous().numpy().tobytes()))
            for image, target in zip(pixels, targets)
        ]
    return found


def through_json(state):
    """The state as another process gets it; checks its size."""
    text = json.dumps(state)
    return json.loads(text)


def stopped(loader, n):
    """(the first n batches of an epoch, the state after them, twice the same)."""
    iterator = iter(loader)
    taken = list(itertools.islice(iterator, n))
    state = loader.state_dict()
    assert state == loader.state_dict()
    return taken, through_json(state), iterator


def resumed(loader, state, **options):
    loader.load_state_dict(state, **options)
    assert loader.state_dict() == state
    return loader


# ---- the position --------------------------------------------------------------------------------

CHANGES = [{}, {"num_workers": 2}, {"threads": 3}, {"batch_size": 3}, {"batch_size": 7, "num_workers": 1}]


@pytest.mark.parametrize("first", [{}, {"num_workers": 2}, {"num_workers": 2, "persistent_workers": True}])
@pytest.mark.parametrize("change", CHANGES)
def test_the_rest_is_that_of_an_unbroken_run(folder, first, change):
    for n in (0, 1, 4, 9, 10):
        loader = loader_of(folder, shuffle=True, **first)
        taken, state, iterator = stopped(loader, n)
        whole = samples([*taken, *iterator])
        assert len(json.dumps(state)) < 1000
        torch.manual_seed(n)
        generator = torch.get_rng_state()
        again = resumed(loader_of(folder, shuffle=True, **change), state)
        assert len(again) == -(-40 // again.batch_size)
        assert samples(again) == whole[4 * n :]
        if n:
            assert torch.equal(generator, torch.get_rng_state())
        assert len(samples(again)) == 40  # the next epoch is whole


@pytest.mark.parametrize("native", helpers.slow_but_for(["hybrid"], ["off", "hybrid"]))
@pytest.mark.parametrize("n_workers", [0, 2])
def test_the_other_paths_keep_the_order(small_images, native, n_workers):
    steps = [T.Resize((8, 8)), T.ToTensor()]
    if native == "hybrid":
        steps.append(T.Lambda(lambda image: image.flip(-1)))
    dataset = helpers.numbered_folder(small_images, T.Compose(steps))
    for n in (0, 1, 3, 10):
        loader = loader_of(dataset, shuffle=True, native=native, num_workers=n_workers)
        taken, state, iterator = stopped(loader, n)
        whole = samples([*taken, *iterator])
        assert loader.stats().path == {"off": "torch"}.get(native, native)
        for other in (0, 1, 2):
            again = loader_of(dataset, shuffle=True, native=native, num_workers=other, batch_size=5)
            assert samples(resumed(again, state)) == whole[4 * n :]


@pytest.mark.parametrize("native", ["off", "require"])
def test_a_state_between_iter_and_next_keeps_the_order(folder, native):
    taken, state, iterator = stopped(loader_of(folder, shuffle=True, native=native), 3)
    targets = [target for target, _ in samples([*taken, *iterator])]
    for _ in range(3):
        loader = resumed(loader_of(folder, shuffle=True, native=native), state)
        iterator = iter(loader)
        assert through_json(loader.state_dict()) == state
        state = through_json(loader.state_dict())
    assert [target for target, _ in samples(iterator)] == targets[12:]


@pytest.mark.parametrize("native", ["off", "require"])
def test_a_new_order_that_is_not_drawn_yet(folder, native):
    """After iter() without workers, torch's generator is drawn from at the first next()."""
    torch.manual_seed(5)
    loader = loader_of(folder, shuffle=True, native=native)
    iterator = iter(loader)
    state, generator = through_json(loader.state_dict()), torch.get_rng_state()
    wanted = [target for target, _ in samples(itertools.islice(iterator, 1))]
    after_one = torch.get_rng_state()
    wanted += [target for target, _ in samples(iterator)]
    for n_workers in (0, 1):
        torch.set_rng_state(generator)
        again = resumed(loader_of(folder, shuffle=True, native=native, num_workers=n_workers), state)
        iterator = iter(again)
        first = [target for target, _ in samples(itertools.islice(iterator, 1))]
        if native == "require":
            assert torch.equal(torch.get_rng_state(), after_one)
        assert first + [target for target, _ in samples(iterator)] == wanted


def test_between_epochs(folder):
    generator = torch.Generator()
    generator.manual_seed(3)
    loader = loader_of(folder, shuffle=True, generator=generator, seed=9)
    fresh = through_json(loader.state_dict())
    epochs, states = [], []
    for _ in range(3):
        epochs.append(samples(loader))
        states.append(through_json(loader.state_dict()))
    for n, state in enumerate([fresh, *states[:2]]):
        assert state["position"] is None and state["epoch"] == n
        other = torch.Generator()
        again = resumed(loader_of(folder, shuffle=True, generator=other, seed=9), state)
        assert [samples(again) for _ in range(3 - n)] == epochs[n:]


@pytest.mark.parametrize("options", [{}, {"num_workers": 2}, {"num_workers": 2, "persistent_workers": True}])
def test_the_epochs_after_the_resumed_one(folder, options):
    def made():
        generator = torch.Generator()
        generator.manual_seed(1)
        return loader_of(folder, shuffle=True, generator=generator, **options)

    loader = made()
    first = samples(loader)
    taken, state, iterator = stopped(loader, 4)
    second = samples([*taken, *iterator])
    third = samples(loader)
    assert len({tuple(first), tuple(second), tuple(third)}) == 3
    again = resumed(made(), state)
    assert [samples(again), samples(again)] == [second[16:], third]


def test_load_applies_at_the_next_iter_and_may_be_taken_back(folder):
    loader = loader_of(folder, shuffle=True)
    _, state, iterator = stopped(loader, 2)
    rest = samples(iterator)
    other = loader_of(folder, shuffle=True)
    running = iter(other)
    next(running)
    other.load_state_dict(state)
    assert len(list(running)) == 9  # goes on as it was
    assert samples(other) == rest
    other.load_state_dict(state)
    other.load_state_dict({})
    assert len(samples(other)) == 40


def test_break_and_the_last_batch(folder):
    loader = loader_of(folder)
    for n, _ in enumerate(loader):
        if n == 2:
            break
    state = loader.state_dict()
    assert state["position"]["batches"] == 3
    assert len(list(resumed(loader_of(folder), state))) == 7
    assert len(list(loader)) == 10  # a break does not resume by itself
    taken, state, _ = stopped(loader, 10)
    again = resumed(loader_of(folder), state)
    assert list(again) == [] and len(list(again)) == 10


def test_lightning_expects_the_next_epoch_after_the_last_batch(folder):
    """It ends an epoch without asking for its end."""
    def made():
        return loader_of(folder, shuffle=True, generator=generator(), seed=1)

    loader = made()
    _, state, _ = stopped(loader, 10)
    second = samples(loader)
    code = compile("loader.load_state_dict(state)", "", "exec")
    again = made()
    exec(code, {
        "__name__": "lightning.pytorch.utilities.combined_loader", "loader": again, "state": state
    })
    assert samples(again) == second
    assert samples(resumed(made(), state)) == []


def test_copies_of_a_loader_keep_a_loaded_state(folder):
    loader = loader_of(folder)
    _, state, iterator = stopped(loader, 6)
    rest = samples(iterator)
    loader.load_state_dict(state)
    for other in (copy.copy(loader), pickle.loads(pickle.dumps(loader))):
        assert samples(other) == rest
    assert samples(loader) == rest


def waits_of(stats):
    """The counters of a state's "run", from stats()."""
    flat = stats.flat()
    names = [name for name in flat if name.startswith("wait_")]
    names += ["batches", "torch_batches", "host_wait_ns", "data_wait_ns", "wall_ns"]
    return {name: flat[name] for name in names if flat[name]}


@pytest.mark.parametrize("native", ["require", "off"])
def test_a_report_covers_the_run(folder, native):
    sums = {}
    state = {}
    for n in range(4):
        loader = loader_of(folder, native=native, num_workers=n % 2)
        loader.load_state_dict(state)
        list(itertools.islice(loader, 2))
        for name, value in waits_of(loader.stats()).items():
            sums[name] = sums.get(name, 0) + value
        state = through_json(loader.state_dict())
        assert len(json.dumps(state)) < 1000
        assert state["run"] == {**({"loads": n} if n else {}), **sums}
        causes = sum(value for name, value in sums.items() if name.startswith("wait_"))
        assert causes == state["run"]["data_wait_ns"]
        report = loader.report()
        assert ("whole run" in report) == (n > 0)
        if n:
            assert f"{2 * n + 2} batches since the run began" in report
            assert f"from a state {n} time" in report
            assert loader.stats().batches == 2


def test_a_loader_that_goes_back_counts_what_it_did_since(folder):
    loader = loader_of(folder)
    _, state, iterator = stopped(loader, 3)
    assert len(list(iterator)) == 7
    assert loader.state_dict()["run"]["batches"] == 10
    loader.load_state_dict(state)
    assert len(list(loader)) == 7
    assert loader.state_dict()["run"]["batches"] == 10 and loader.stats().batches == 17
    loader.load_state_dict({**state, "run": {"batches": "no number", "others": 1}})
    assert len(list(loader)) == 7  # no reason to refuse it
    state.pop("run")
    loader.load_state_dict(state)
    assert len(list(loader)) == 7


def test_the_counters_of_many_causes_are_small():
    from feedmill.profiling.report import run_totals

    counters = {name: 10**12 + i for i, name in enumerate(run_totals._NAMES)}
    now = run_totals.RunTotals().now(counters)
    assert now == counters and len(json.dumps(now)) < 1000
    again = run_totals.carried_on(now, {"batches": 5})
    assert again.now({"batches": 7}) == {**counters, "batches": 10**12 + 2, "loads": 1}
    assert again.now({}) == counters  # after a fork
    assert "the GPU waited" in "\n".join(again.lines({}))


# ---- samplers ------------------------------------------------------------------------------------


class Custom:
    """A sampler of a script's own, which draws when its iterator is made."""

    def __init__(self, n, generator=None):
        self.n, self.generator = n, generator

    def __iter__(self):
        return iter(torch.randperm(self.n, generator=self.generator).tolist())

    def __len__(self):
        return self.n


class Batches:
    """A batch sampler of a script's own, with batches of several sizes."""

    def __init__(self, n):
        self.sampler = Custom(n)

    def __iter__(self):
        order = list(self.sampler)
        while order:
            size = min(len(order), 2 + order[0] % 3)
            yield order[:size]
            order = order[size:]


class Stateful:
    """A sampler that saves its own position."""

    def __init__(self, n):
        self.n, self.begin, self.at = n, 0, 0

    def __iter__(self):
        begin, self.begin = self.begin, 0
        for i in range(begin, self.n):
            self.at = i + 1
            yield i * 7 % 20  # each index twice

    def __len__(self):
        return self.n

    def state_dict(self):
        return {"at": self.at}

    def load_state_dict(self, state):
        self.begin = self.at = state["at"]


def generator(seed=4):
    made = torch.Generator()
    made.manual_seed(seed)
    return made


SAMPLERS = {
    "sequential": lambda n: SequentialSampler(range(n)),
    "random": lambda n: RandomSampler(range(n)),
    "random, generator": lambda n: RandomSampler(range(n), generator=generator()),
    "random, replacement": lambda n: RandomSampler(range(n), replacement=True, num_samples=70),
    "random, both": lambda n: RandomSampler(range(n), True, 70, generator()),
    "random, many": lambda n: RandomSampler(range(n), num_samples=90),
    "random, many, generator": lambda n: RandomSampler(range(n), False, 90, generator()),
    "subset": lambda n: SubsetRandomSampler([*range(5, 35), 7, 7, 7]),
    "subset, generator": lambda n: SubsetRandomSampler(range(5, 35), generator()),
    "weighted": lambda n: WeightedRandomSampler([1.0, 5.0] * (n // 2), 50),
    "weighted, generator": lambda n: WeightedRandomSampler([1.0, 5.0], 50, True, generator()),
    "distributed": lambda n: DistributedSampler(range(n), num_replicas=3, rank=2, seed=2),
    "list": lambda n: [*range(0, n, 2), 3, 3, 3, -1, -1, 39],
    "range": lambda n: range(n - 1, 2, -2),
    "custom": lambda n: Custom(n),
    "custom, generator": lambda n: Custom(n, generator()),
    "stateful": lambda n: Stateful(n),
}


@pytest.mark.parametrize("n_workers", helpers.slow_but_for([2], [0, 2]))
@pytest.mark.parametrize("kind", SAMPLERS)
@pytest.mark.parametrize("batch_size", [4, None])
def test_samplers(folder, kind, n_workers, batch_size):
    """The order, and the draws of indices that occur several times."""
    picks = random.Random(kind)

    def made(workers):
        return loader_of(
            folder, sampler=SAMPLERS[kind](40), batch_size=batch_size, num_workers=workers, seed=1
        )

    for _ in range(3):
        loader = made(n_workers)
        n = picks.randrange(len(loader))
        taken, state, iterator = stopped(loader, n)
        n_taken = len(samples(taken))
        rest = samples(iterator)
        torch.manual_seed(n + 100)
        again = resumed(made(picks.choice([0, 1, 2])), state)
        assert samples(again) == rest, (n, n_taken)
        has_generator = kind not in (
            "sequential", "random", "random, replacement", "random, many", "distributed", "list",
            "range", "stateful",
        )
        assert len(json.dumps(state)) < 1000 + 4 * 4400 * has_generator


@pytest.mark.parametrize("n_workers", [0, 2])
@pytest.mark.parametrize("native", ["require", "off"])
def test_batch_samplers(folder, n_workers, native):
    def made(workers):
        return feedmill.DataLoader(
            folder, batch_sampler=Batches(40), num_workers=workers, native=native, seed=1
        )

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        loader = made(n_workers)
        taken, state, iterator = stopped(loader, 5)
        rest = [target for target, _ in samples(iterator)]
        again = resumed(made(2 - n_workers), state)
        assert [target for target, _ in samples(again)] == rest
        with pytest.raises(ValueError, match="other order"):
            loader_of(folder, native=native).load_state_dict(state)


def test_drop_last_and_a_batch_sampler_of_torch(folder):
    loader = loader_of(folder, batch_size=6, drop_last=True, shuffle=True)
    taken, state, iterator = stopped(loader, 2)
    rest = samples(iterator)
    assert len(rest) == 24
    sampler = BatchSampler(RandomSampler(range(40)), 6, True)
    assert samples(resumed(helpers.native_loader(folder, batch_sampler=sampler), state)) == rest


def test_an_epoch_of_a_distributed_sampler(folder):
    def made():
        sampler = DistributedSampler(range(40), num_replicas=2, rank=1)
        return sampler, loader_of(folder, sampler=sampler, seed=3)

    sampler, loader = made()
    sampler.set_epoch(6)
    taken, state, iterator = stopped(loader, 2)
    rest = samples(iterator)
    for epoch in (0, 6):
        sampler, again = made()
        sampler.set_epoch(epoch)
        assert samples(resumed(again, state)) == rest
    # A state is the same for all ranks.
    other = DistributedSampler(range(40), num_replicas=2, rank=0)
    other.set_epoch(6)
    wanted = samples(loader_of(folder, sampler=other, seed=3))[8:]
    assert samples(resumed(loader_of(folder, sampler=other, seed=3), state)) == wanted


class OwnState(Stateful):
    """A sampler whose methods mean something else than torchdata's."""

    def state_dict(self, iteration):
        raise AssertionError("never called without an argument")


class Counting(Stateful):
    def __init__(self, n):
        super().__init__(n)
        self.n_asked = 0

    def state_dict(self):
        self.n_asked += 1
        return super().state_dict()


class ByEpoch(Stateful):
    """A sampler whose state holds no position."""

    def __iter__(self):
        yield from torch.randperm(self.n, generator=generator(self.at)).tolist()

    def state_dict(self):
        return {"at": 3}


@pytest.mark.parametrize("native", ["require", "off"])
def test_states_of_samplers_are_asked_for_once(folder, native):
    sampler = Counting(40)
    loader = loader_of(folder, sampler=sampler, native=native, seed=1)
    assert len(list(loader)) == len(list(loader)) == 10
    assert sampler.n_asked == 2
    loader = loader_of(folder, sampler=OwnState(40), native=native, seed=1)
    taken, rest = [], iter(loader)
    taken.append(next(rest))
    with pytest.warns(UserWarning, match="OwnState.state_dict.. failed"):
        state = loader.state_dict()
    assert state["position"] is None and len(samples([*taken, *rest])) == 40


def test_a_state_without_a_position(folder):
    def made():
        sampler = ByEpoch(40)
        sampler.at = 3
        return loader_of(folder, sampler=sampler, seed=1)

    _, state, iterator = stopped(made(), 5)
    rest = samples(iterator)
    assert len(rest) == 20 and samples(resumed(made(), state)) == rest


class Arrays:
    """A batch sampler that gives arrays or tensors, with indices that occur twice."""

    def __init__(self, kind):
        self.kind = kind

    def __iter__(self):
        for i in range(12):
            yield self.kind([i * 3 % 40, i * 5 % 40, i * 3 % 40, -1])

    def __len__(self):
        return 12


@pytest.mark.parametrize("kind", [np.array, torch.tensor, list])
@pytest.mark.parametrize("base", [object, Stateful])
def test_batches_that_are_arrays(folder, kind, base):
    made = type("Made", (Arrays, base), {"state_dict": lambda self: {}, "load_state_dict": lambda *_: None}
                if base is Stateful else {})

    def loader():
        return feedmill.DataLoader(folder, batch_sampler=made(kind), native="require", seed=3)

    taken, state, iterator = stopped(loader(), 5)
    rest = samples(iterator)
    assert len(rest) == 28 and samples(resumed(loader(), state)) == rest


def test_batches_of_anything(small_images):
    """What torch's path takes as indices, this path takes, too."""
    class Rows(torch.utils.data.Dataset):
        def __getitem__(self, index):
            return torch.as_tensor(index).sum()

    for batch in ([np.arange(2), np.arange(3)], [torch.arange(2), torch.arange(3)], [(1, 2), (3,)]):
        loader = feedmill.DataLoader(Rows(), batch_sampler=[batch, batch])
        assert [one.tolist() for one in loader] == [[sum(map(int, one)) for one in batch]] * 2


@pytest.mark.parametrize("native", ["require", "off"])
@pytest.mark.parametrize("is_broken", [False, True])
def test_an_epoch_leaves_no_cycle(numbered, native, is_broken):
    """Datasets and samplers are freed with the last reference, as with torch."""
    closed = []

    class Closing:
        def __iter__(self):
            try:
                yield from range(40)
            finally:
                closed.append(1)

    dataset = copy.copy(numbered)
    loader = feedmill.DataLoader(dataset, batch_size=4, sampler=Closing(), native=native)
    gone = weakref.ref(dataset)
    gc.collect()
    gc.disable()
    try:
        for _ in loader:
            if is_broken:
                break
        del _
        assert closed == [1]
        del loader, dataset
        assert gone() is None
    finally:
        gc.enable()


def test_a_sampler_that_is_set_to_the_next_epoch_early(folder):
    def made():
        sampler = DistributedSampler(range(40), num_replicas=2, rank=1)
        return sampler, loader_of(folder, sampler=sampler, seed=3)

    sampler, loader = made()
    sampler.set_epoch(4)
    iterator = iter(loader)
    samples([next(iterator), next(iterator)])
    sampler.set_epoch(5)
    state = through_json(loader.state_dict())
    rest = samples(iterator)
    assert samples(resumed(made()[1], state)) == rest


def test_indices_beyond_the_dataset(folder):
    def made():
        return loader_of(folder, sampler=[1, 2, 3, 1, 1, 400, 1, 2, 1, 2, 3, 4], batch_size=3)

    loader = made()
    iterator = iter(loader)
    next(iterator)
    with pytest.raises(IndexError):
        next(iterator)
    state = through_json(loader.state_dict())
    rest = samples(iterator)
    assert len(rest) == 6
    assert [one for one, _ in samples(resumed(made(), state))] == [one for one, _ in rest]


# ---- random plans --------------------------------------------------------------------------------


@pytest.mark.slow
def test_random_plans(folder):
    """Runs that are stopped several times, and go on with other options each time."""
    picks = random.Random(7)
    for _ in range(40):
        kind = picks.choice(sorted(SAMPLERS))
        seed = picks.choice([None, 5])
        torch.manual_seed(picks.randrange(1000))
        changed = [picks.choice([1, 3, 4, 6, 16]) for _ in range(8)]
        loader = loader_of(folder, sampler=SAMPLERS[kind](40), seed=seed, batch_size=changed[0])
        iterator = iter(loader)
        got = samples(itertools.islice(iterator, picks.randrange(4)))
        state = through_json(loader.state_dict())
        wanted = got + samples(iterator)
        for batch_size in changed[1:]:
            if state["position"] is None:
                break  # the epoch has ended
            loader = loader_of(
                folder, sampler=SAMPLERS[kind](40), seed=seed, batch_size=batch_size,
                num_workers=picks.randrange(3), threads=picks.randrange(1, 5),
                reader=picks.choice(["auto", "pread"]),
            )
            iterator = iter(resumed(loader, state))
            got += samples(itertools.islice(iterator, picks.randrange(4)))
            state = through_json(loader.state_dict())
        got += samples(iterator)
        assert got == wanted, (kind, seed, changed)


# ---- errors, policies and options ----------------------------------------------------------------


@pytest.mark.parametrize("native", ["require", "off"])
@pytest.mark.parametrize("n_workers", [0, 2])
def test_after_an_error(tmp_path, native, n_workers):
    for i in range(12):
        helpers.save_jpeg(tmp_path / "a" / f"{i:02}.jpg", 20, 20, seed=i)
    (tmp_path / "a" / "04.jpg").write_bytes(b"no image")
    dataset = helpers.numbered_folder(tmp_path, helpers.compose(*RANDOM))
    loader = loader_of(dataset, batch_size=2, native=native, num_workers=n_workers)
    iterator, got = iter(loader), []
    for _ in range(2):
        got.append(next(iterator))
    with pytest.raises(Exception, match="04.jpg|cannot identify"):
        next(iterator)
    state = through_json(loader.state_dict())
    assert state["position"]["samples"] == 6
    again = resumed(loader_of(dataset, batch_size=2, native=native), state)
    targets = [target for target, _ in samples(again)]
    assert targets == [target for target, _ in samples(iterator)] == list(range(6, 12))


@pytest.mark.parametrize("policy", ["skip", "replace", "zero"])
def test_policies(tmp_path, policy):
    for i in range(20):
        helpers.save_jpeg(tmp_path / "a" / f"{i:02}.jpg", 20, 20, seed=i)
    for i in (1, 4, 9):
        (tmp_path / "a" / f"{i:02}.jpg").write_bytes(b"no image")
    dataset = helpers.numbered_folder(tmp_path, helpers.compose(*RANDOM))

    def made(**options):
        return loader_of(dataset, on_error=policy, seed=2, **options)

    taken, state, iterator = stopped(made(), 2)
    assert state["position"]["samples"] == 8 and state["position"]["bad"] == 2
    rest = samples(iterator)
    assert samples(resumed(made(num_workers=2), state)) == rest
    with pytest.raises(Exception, match="max_errors"):
        list(resumed(made(max_errors=2), state))


def _collate(batch):
    return torch.stack([image for image, _ in batch]), torch.tensor([one for _, one in batch])


def _impure_collate(batch):
    _impure_collate.calls = getattr(_impure_collate, "calls", 0) + 1
    return _collate(batch)


@pytest.mark.parametrize("options", [
    {"native": "verify"}, {"pin_memory": True}, {"device": "cpu"}, {"dtype": torch.float16},
    {"memory_format": torch.channels_last}, {"collate_fn": _collate},
    {"collate_fn": _collate, "num_workers": 2}, {"collate_fn": _impure_collate, "num_workers": 2},
    {"reader": "pread"}, {"cache": "ram:1MiB"}, {"prefetch_factor": 5, "num_workers": 1},
])
@pytest.mark.filterwarnings("ignore:'pin_memory'")
def test_options(folder, options):
    sampler = WeightedRandomSampler([1.0] * 40, 60)
    taken, state, iterator = stopped(loader_of(folder, sampler=sampler, **options), 6)
    rest = samples(iterator)
    assert samples(resumed(loader_of(folder, sampler=sampler, **options), state)) == rest


def test_data_in_memory_and_subsets(folder, tmp_path):
    rows = torch.arange(40 * 3 * 4 * 4, dtype=torch.float32).reshape(40, 3, 4, 4)
    arrays = TensorDataset(rows, torch.arange(40))
    for dataset in (arrays, Subset(folder, range(3, 33)), Subset(arrays, range(30))):
        for n in (0, 3):
            taken, state, iterator = stopped(loader_of(dataset, shuffle=True), n)
            rest = samples(iterator)
            assert samples(resumed(loader_of(dataset, shuffle=True, batch_size=5), state)) == rest


def test_packs(small_images, tmp_path):
    from feedmill.cli.cli import main

    assert main(["pack", str(small_images), str(tmp_path / "pack")]) in (0, None)
    dataset = feedmill.Pack(tmp_path / "pack", helpers.compose(*RANDOM))
    taken, state, iterator = stopped(loader_of(dataset, shuffle=True), 4)
    rest = samples(iterator)
    assert samples(resumed(loader_of(dataset, shuffle=True, threads=3), state)) == rest


# ---- what is refused -----------------------------------------------------------------------------


def test_other_data_transforms_and_orders_are_refused(folder, small_images):
    _, state, iterator = stopped(loader_of(folder, shuffle=True, seed=1), 3)
    rest = samples(iterator)
    other = helpers.numbered_folder(small_images, helpers.compose(T.CenterCrop(8), T.ToTensor()))
    renamed = copy.copy(folder)
    renamed.samples = [(path, target + 1) for path, target in folder.samples]
    for made, match in [
        (loader_of(Subset(folder, range(39)), shuffle=True, seed=1), "dataset: it had 40"),
        (loader_of(Subset(folder, range(40)), shuffle=True, seed=1), "dataset: its kind"),
        (loader_of(other, shuffle=True, seed=1), "transforms"),
        (loader_of(renamed, shuffle=True, seed=1), "name or target"),
        (loader_of(folder, shuffle=True, seed=2), "seed was 1"),
        (loader_of(folder, seed=1), "order: it came from RandomSampler"),
        (loader_of(folder, shuffle=True, native="off"), "path 'torch'"),
        (loader_of(folder, shuffle=True, seed=1, dtype=torch.float16), "transforms"),
    ]:
        with pytest.raises(ValueError, match=match):
            made.load_state_dict(state)
        assert made.state_dict()["position"] is None
        made.load_state_dict(state, strict=False)
        assert len(samples(made)) in (27, 28)
    assert samples(resumed(loader_of(folder, shuffle=True, seed=1), state)) == rest
    for wrong in (None, [], {"a": 1}, {**state, "feedmill": 99}):
        with pytest.raises(ValueError, match="not a state|version"):
            loader_of(folder).load_state_dict(wrong)


@pytest.mark.parametrize("n_workers", [0, 2])
def test_another_list_of_indices_is_refused_at_the_first_batch(folder, n_workers):
    one, other = list(range(40)), [*range(10), *range(20, 40), *range(10, 20)]
    _, state, _ = stopped(loader_of(folder, sampler=one), 4)
    loader = resumed(loader_of(folder, sampler=other, num_workers=n_workers), state)
    with pytest.raises(OrderError, match="order of the samples is not that"):
        iterator = iter(loader)
        next(iterator)
    if n_workers == 0:
        with pytest.raises(OrderError):  # not an empty epoch
            next(iterator)
    again = resumed(loader_of(folder, sampler=other), state, strict=False)
    assert [target for target, _ in samples(again)] == other[16:]


class Numbers(IterableDataset):
    def __iter__(self):
        return iter(range(10))


def test_iterable_datasets_say_that_they_are_not_resumed():
    loader = feedmill.DataLoader(Numbers(), batch_size=2)
    next(iter(loader))
    with pytest.warns(UserWarning, match="Numbers is an IterableDataset"):
        state = through_json(loader.state_dict())
    assert state["position"] is None
    again = feedmill.DataLoader(Numbers(), batch_size=2)
    with pytest.warns(UserWarning, match="begins at its start"):
        again.load_state_dict(state)
    assert len(list(again)) == 5


def test_no_file_is_opened_to_get_there(small_images, monkeypatch):
    dataset = helpers.numbered_folder(small_images, helpers.compose(*RANDOM))
    _, state, iterator = stopped(loader_of(dataset, shuffle=True), 9)
    rest = samples(iterator)
    loader = resumed(loader_of(dataset, shuffle=True), state)
    assert samples(loader) == rest
    assert loader.stats().samples == 4  # of 40


class Drawing(torch.utils.data.Dataset):
    """Draws its samples from torch's global generator, whose state is its own."""

    def __getitem__(self, index):
        return torch.randint(1000, ()), index

    def __len__(self):
        return 12

    def state_dict(self):
        return {"generator": torch.get_rng_state().tolist()}

    def load_state_dict(self, state):
        torch.set_rng_state(torch.tensor(state["generator"], dtype=torch.uint8))


def test_a_dataset_that_restores_torchs_generator():
    def loader():
        return feedmill.DataLoader(Drawing(), batch_size=3, sampler=Custom(12), num_workers=0)

    whole = loader()
    torch.manual_seed(1)
    iterator = iter(whole)
    next(iterator)
    state = through_json(whole.state_dict())
    rest = [[one.tolist() for one in batch] for batch in iterator]
    torch.manual_seed(2)
    again = loader()
    again.load_state_dict(state)
    assert [[one.tolist() for one in batch] for batch in again] == rest


def test_a_dataset_that_restores_torchs_generator_between_epochs():
    """The next epoch's order and samples are those of a run that went on."""

    def loader():
        return feedmill.DataLoader(Drawing(), batch_size=3, shuffle=True, num_workers=0)

    def epoch(one):
        return [[values.tolist() for values in batch] for batch in one]

    whole = loader()
    torch.manual_seed(1)
    epoch(whole)
    state = through_json(whole.state_dict())
    following = [epoch(whole), epoch(whole)]
    torch.manual_seed(2)
    again = loader()
    again.load_state_dict(state)
    assert [epoch(again), epoch(again)] == following


# ---- killed processes ----------------------------------------------------------------------------

_TRAINING = """
import json, os, sys, zlib
sys.path.insert(0, {tests!r})
import conftest, helpers
import feedmill, torch
from test_resume import RANDOM, loader_of, samples

kind, folder, record, options = sys.argv[1], sys.argv[2], sys.argv[3], json.loads(sys.argv[4])
if kind == "files":
    dataset = helpers.numbered_folder(folder, helpers.compose(*RANDOM))
elif kind == "pack":
    dataset = feedmill.Pack(folder, helpers.compose(*RANDOM))
else:
    dataset = torch.utils.data.TensorDataset(
        torch.arange(40 * 48.).reshape(40, 3, 4, 4), torch.arange(40)
    )
generator = torch.Generator()
generator.manual_seed(11)
loader = loader_of(dataset, shuffle=True, generator=generator, seed=1, **options)
done = []
if os.path.exists(record):
    with open(record) as file:
        done, state = json.load(file)
    loader.load_state_dict(state)
while loader.state_dict()["epoch"] < 2:
    for batch in loader:
        done += samples([batch])
        with open(record + ".new", "w") as file:
            json.dump([done, loader.state_dict()], file)
        os.replace(record + ".new", record)
        print(len(done), flush=True)
        sys.stdin.readline()
"""


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["files", "pack", "memory"])
def test_a_killed_process(small_images, tmp_path, kind):
    """SIGKILL at random steps, over threads, readers and batch sizes: 7 kills for each kind."""
    from feedmill.cli.cli import main

    folder = small_images
    if kind == "pack":
        folder = tmp_path / "pack"
        main(["pack", str(small_images), str(folder)])
    picks = random.Random(kind)
    script = _TRAINING.format(tests=os.path.dirname(os.path.abspath(__file__)))
    records = []
    for kills in (0, 7):
        record = tmp_path / f"record{kills}"
        for run in range(kills + 1):
            options = {"threads": 1 + run % 4, "reader": ["auto", "pread"][run % 2],
                       "num_workers": run % 3}
            process = subprocess.Popen(
                [sys.executable, "-c", script, kind, folder, record, json.dumps(options)],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            )
            left = picks.randrange(1, 3) if run < kills else 1000
            for _ in process.stdout:
                left -= 1
                if not left:
                    process.send_signal(signal.SIGKILL)
                    break
                process.stdin.write("\n")
                process.stdin.flush()
            process.stdin.close()
            process.stdout.close()
            status = process.wait()
            assert status == (-signal.SIGKILL if run < kills else 0)
        records.append(json.loads(record.read_text())[0])
    assert len(records[0]) == 80 and records[0] == records[1]

