"""A run that goes on with another number of ranks: the ranks together get what they would have got
from an unbroken one. The ranks are simulated in one process."""

import itertools
import json
import math
import random
import warnings

import feedmill
import helpers
import pytest
import torch
from test_resume import RANDOM, loader_of, samples, through_json
from torch.utils.data import BatchSampler, DistributedSampler, Subset, TensorDataset


@pytest.fixture(scope="module")
def folder(small_images):
    return helpers.numbered_folder(small_images, helpers.compose(*RANDOM))


def ranks_of(dataset, n_ranks, epoch=0, shuffle=True, drop_last=False, **options):
    """A loader for each rank."""
    loaders = []
    for rank in range(n_ranks):
        sampler = DistributedSampler(
            dataset, n_ranks, rank, shuffle=shuffle, seed=3, drop_last=drop_last
        )
        sampler.set_epoch(epoch)
        loaders.append(loader_of(dataset, sampler=sampler, **{"seed": 5, **options}))
    return loaders


def steps_of(loaders, n_steps=None):
    """(the samples of each step, for each rank; the state of all ranks after them)."""
    got, states = [], []
    for loader in loaders:
        iterator = iter(loader)
        got.append([samples([one]) for one in itertools.islice(iterator, n_steps)])
        states.append(through_json(loader.state_dict()))
        assert states[-1].pop("run") or not got[-1]
        assert len(json.dumps(states[-1])) < 1000
        if n_steps is None:
            assert next(iterator, None) is None
    assert len({len(one) for one in got}) == 1  # no rank waits for another one
    if n_steps is not None:
        assert all(state == states[0] for state in states)
    return [list(step) for step in zip(*got)], states[0]


def order_of(dataset, epoch, shuffle):
    """All samples of an epoch, in the order that the ranks share."""
    (loader,) = ranks_of(dataset, 1, epoch, shuffle)
    return samples(loader)


def dealt(steps):
    """The samples of each step, in the order that they had before they were dealt to ranks."""
    return [
        [one for row in itertools.zip_longest(*step) for one in row if one is not None]
        for step in steps
    ]


def flat(steps):
    return [one for step in dealt(steps) for one in step]


@pytest.mark.parametrize("native, path", [("require", "native"), ("off", "torch")])
@pytest.mark.filterwarnings("ignore:seed=5 has no effect")
def test_8_2_5_8(folder, native, path):
    """37 samples: 16 by 8 ranks, 4 by 2, 10 by 5, and 7 and one to pad the end by 8."""
    dataset = Subset(folder, range(37))
    order = [target for target, _ in order_of(dataset, 2, True)]
    got, state = [], {}
    for n_ranks, n_steps in ((8, 1), (2, 1), (5, 1), (8, None)):
        loaders = ranks_of(dataset, n_ranks, 2, batch_size=2, native=native)
        for loader in loaders:
            loader.load_state_dict(state)
        steps, state = steps_of(loaders, n_steps)
        assert {loader.stats().path for loader in loaders} == {path}
        got += [target for target, _ in flat(steps)]
        if n_steps:
            assert state["position"]["ranks"] == {"ranks": n_ranks, "used": len(got)}
    assert got == [*order, order[0]]


@pytest.mark.parametrize(
    "first", [0, *(pytest.param(one, marks=pytest.mark.slow) for one in range(20, 120, 20))]
)
def test_random_plans(folder, first):
    """Order, pixels and draws are those of an unbroken run; the end is padded or dropped as by the
    sampler of the ranks that get there."""
    rows = TensorDataset(torch.arange(61 * 12.0).reshape(61, 3, 2, 2), torch.arange(61))
    for number in range(first, first + 20):
        picks = random.Random(number)
        n = picks.randrange(1, 41)
        dataset = Subset(picks.choice([folder, rows]), range(n))
        shuffle, drops, epoch = picks.random() < 0.8, picks.random() < 0.4, picks.randrange(3)
        order = order_of(dataset, epoch, shuffle)
        used, state = 0, {}
        for part in range(picks.randrange(1, 5)):
            n_ranks = picks.randrange(1, 9)
            options = {
                "batch_size": picks.choice([1, 1, 2, 3]), "num_workers": picks.choice([0, 0, 1]),
                "threads": 1, "reader": picks.choice(["auto", "pread"]),
            }
            loaders = ranks_of(dataset, n_ranks, epoch, shuffle, drops, **options)
            for loader in loaders:
                loader.load_state_dict(state)
            left = n - used
            n_each = left // n_ranks if drops else -(-left // n_ranks)
            is_last = part == 3 or picks.random() < 0.2
            n_steps = None if is_last else picks.randrange(4)
            if n_steps is not None and n_steps * options["batch_size"] >= n_each:
                is_last, n_steps = True, None
            steps, state = steps_of(loaders, n_steps)
            got = flat(steps)
            n_each = n_each if is_last else n_steps * options["batch_size"]
            padded = order[used:] + list(itertools.islice(itertools.cycle(order), 8))
            assert got == padded[: n_each * n_ranks], (number, part)
            used += len(got)
            if is_last:
                assert state["position"] is None
                break


@pytest.mark.parametrize("plan", helpers.slow_but_for([(1, 8, 2)], [(8, 2, 4), (1, 8, 2), (2, 4, 8, 1)]))
def test_global_batches_of_one_size_stay(folder, plan):
    """The batch of all ranks together, step by step, over two epochs."""
    for n, epoch in itertools.product((40, 37), (0, 4)):
        dataset = Subset(folder, range(n))
        whole, _ = steps_of(ranks_of(dataset, plan[0], epoch, batch_size=8 // plan[0]))
        wanted = [set(itertools.chain(*step)) for step in whole]
        got, state = [], {}
        for number, n_ranks in enumerate(plan):
            loaders = ranks_of(dataset, n_ranks, epoch, batch_size=8 // n_ranks)
            for loader in loaders:
                loader.load_state_dict(state)
            steps, state = steps_of(loaders, 1 if number < len(plan) - 1 else None)
            got += [set(itertools.chain(*step)) for step in steps]
        assert got[:-1] == wanted[:-1]
        # How many samples pad the last one depends on the number of ranks.
        assert len(got) == len(wanted) and set().union(*got) == set().union(*wanted)


def test_the_epochs_after_it(folder):
    """A state between two epochs fits any number of ranks, and the next epoch is whole."""
    _, state = steps_of(ranks_of(folder, 8, 0), None)
    assert state["position"] is None
    for n_ranks in (1, 3):
        loaders = ranks_of(folder, n_ranks, 1)
        for loader in loaders:
            loader.load_state_dict(state)
        steps, _ = steps_of(loaders)
        order = order_of(folder, 1, True)
        assert flat(steps)[:40] == order
    _, state = steps_of(ranks_of(folder, 8, 0), 1)
    loaders = ranks_of(folder, 3, 0)
    for loader in loaders:
        loader.load_state_dict(state)
        assert len(loader) == math.ceil(math.ceil(40 / 3) / 4)
        list(loader)
        loader.sampler.set_epoch(1)
    steps, _ = steps_of(loaders)
    assert flat(steps)[:40] == order_of(folder, 1, True)


def test_what_was_dropped_stays_dropped(folder):
    """The ranks that end an epoch decide what they drop; fewer ranks do not begin it again."""
    dataset = Subset(folder, range(39))
    loaders = ranks_of(dataset, 8, drop_last=True, batch_size=2)
    _, state = steps_of(loaders, 2)
    assert state["position"]["is_all"] and state["position"]["ranks"]["used"] == 32
    for loader in ranks_of(dataset, 2, drop_last=True):
        loader.load_state_dict(state)
        assert list(loader) == []


class Own(DistributedSampler):
    """A sampler whose way to deal is not known."""

    def __iter__(self):
        return iter(range(self.rank * 4, self.rank * 4 + 4))


def test_what_can_not_be_dealt_again_is_refused(folder):
    def state_of(loader):
        next(iter(loader))
        return through_json(loader.state_dict())

    def own(kind, n_ranks, **changes):
        sampler = kind(folder, n_ranks, 0)
        vars(sampler).update(changes)
        return loader_of(folder, sampler=sampler, seed=5, batch_size=2)

    state = state_of(own(Own, 8))
    assert "ranks" not in state["position"]
    with pytest.raises(ValueError, match=r"Own\(.*\) of 8 ranks, whose number must stay"):
        own(Own, 2).load_state_dict(state)
    again = own(Own, 8)
    again.load_state_dict(state)
    assert [target for target, _ in samples(again)] == [2, 3]

    changed = state_of(own(DistributedSampler, 8, num_samples=6, total_size=48))
    with pytest.raises(ValueError, match="order: .*of 8 ranks"):
        own(DistributedSampler, 2).load_state_dict(changed)
    with pytest.raises(ValueError, match="order: .*of 8 ranks"):
        own(DistributedSampler, 8).load_state_dict(changed)

    # Each rank has a torch seed of its own.
    state = state_of(ranks_of(folder, 8, seed=None)[0])
    other = ranks_of(folder, 2, seed=None)[0]
    with pytest.raises(ValueError, match="random numbers: it had 8 ranks, and has 2 now; without"):
        other.load_state_dict(state)
    other.load_state_dict(state, strict=False)
    assert len(samples(other)) == 4
    ranks_of(folder, 8, seed=None)[0].load_state_dict(state)
    plain = loader_of(folder, shuffle=True, seed=5)
    state = state_of(ranks_of(folder, 8)[0])
    with pytest.raises(ValueError, match="order: it came from DistributedSampler"):
        plain.load_state_dict(state)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        plain.load_state_dict(state, strict=False)
        assert len(samples(plain)) == 36


def test_other_batches(folder):
    """Without batches, and with a BatchSampler of torch that the script made."""
    def made(kind, n_ranks, rank):
        sampler = DistributedSampler(folder, n_ranks, rank)
        if kind == "none":
            return loader_of(folder, sampler=sampler, batch_size=None, seed=1)
        return feedmill.DataLoader(
            folder, batch_sampler=BatchSampler(sampler, 2, False), native="require", seed=1
        )

    order = samples(made("none", 1, 0))
    for one, other in itertools.product(("none", "own"), repeat=2):
        steps, state = steps_of([made(one, 4, rank) for rank in range(4)], 3)
        got = flat(steps)
        loaders = [made(other, 3, rank) for rank in range(3)]
        for loader in loaders:
            loader.load_state_dict(state)
        steps, _ = steps_of(loaders)
        assert (got + flat(steps))[:40] == order


@pytest.mark.slow
def test_as_many_ranks_as_before_get_what_they_would_have_got(folder):
    for n, drops in itertools.product((3, 37, 40), (False, True)):
        dataset = Subset(folder, range(n))
        whole, _ = steps_of(ranks_of(dataset, 6, 1, drop_last=drops, batch_size=2))
        for n_steps in range(len(whole)):
            _, state = steps_of(ranks_of(dataset, 6, 1, drop_last=drops, batch_size=2), n_steps)
            loaders = ranks_of(dataset, 6, 0, drop_last=drops, batch_size=2)
            for loader in loaders:
                loader.load_state_dict(state)
            assert steps_of(loaders)[0] == whole[n_steps:]
