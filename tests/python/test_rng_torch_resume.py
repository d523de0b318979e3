"""rng="torch" with workers: an epoch that goes on at a saved position, in a loader with other
generators, makes the batches that torch's own DataLoader makes without a stop."""

import base64
import itertools
import json
import os
import random
import subprocess
import sys

import feedmill
import numpy as np
import pytest
import torch
from feedmill.iterators.generator_states import VirtualWorkers
from helpers import cifar_in_memory
from test_drawing import DinoSolarization, MocoBlur
from test_rng_torch import (
    CROP,
    PIPELINES,
    Twice,
    cut_mix_batch,
    damaged,
    fails_at_times,
    few_cpus,
    is_equal,
    mix_up,
    mixed,
    moco,
    seed_torch,
    seed_worker,
)
from test_rng_torch_calling_process import seed, states
from torch.utils.data import DataLoader, DistributedSampler, SubsetRandomSampler
from torchvision import transforms as v1
from torchvision.datasets import ImageFolder
from torchvision.transforms import v2

__all__ = ["damaged", "few_cpus", "mixed"]  # fixtures


TRANSFORMS = {
    "crop": CROP,
    "rand-augment": PIPELINES["rand-augment"](v1),
    "erasing": PIPELINES["erasing"](v2),
    "own": v1.Compose([MocoBlur(), DinoSolarization(0.4), CROP]),  # from Python's generator
}


def subset(n):
    return SubsetRandomSampler(range(3, n))


def distributed(n, n_ranks=2, rank=1):
    return DistributedSampler(range(n), n_ranks, rank)


def named(options):
    """The options as a test's name."""
    return " ".join(f"{k}={getattr(v, '__name__', v)}" for k, v in options.items()) or "plain"


def through_json(state):
    """The state as another process gets it."""
    return json.loads(json.dumps(state))


def collected(iterator, n=None):
    """The next n batches, or all, and their errors."""
    found = []
    while n is None or len(found) < n:
        try:
            found.append(next(iterator))
        except StopIteration:
            break
        except Exception as error:
            lines = str(error).rstrip().split("\n")
            found.append((type(error).__name__, lines[0], lines[-1].split(" [")[0]))
    return found


class Run:
    """A script that iterates over a loader.

    Args:
        sampler: makes the sampler from the dataset's length.
    """

    def __init__(self, kind, dataset, sampler=None, generator=None, **options):
        if sampler is not None:
            options["sampler"] = sampler(len(dataset))
        if generator is not None:
            options["generator"] = torch.Generator().manual_seed(generator)
        self.loader = kind(dataset, **options)

    def begin(self, epoch):
        if hasattr(self.loader.sampler, "set_epoch"):
            self.loader.sampler.set_epoch(epoch)
        return iter(self.loader)

    def epochs(self, first, last):
        """The batches of some epochs, and the generators' states behind each of them."""
        found = []
        for epoch in range(first, last):
            found.append((collected(self.begin(epoch)), states()))
        return found


def unbroken(dataset, n_epochs, **options):
    seed()
    return Run(DataLoader, dataset, **options).epochs(0, n_epochs)


def states_of_script():
    return torch.get_rng_state(), random.getstate(), np.random.get_state()


def set_states(saved):
    torch.set_rng_state(saved[0])
    random.setstate(saved[1])
    np.random.set_state(saved[2])


def stopped(dataset, epoch, n, **options):
    """A run that stops after n batches of an epoch: these batches, its loader's state, and that of
    the script's generators."""
    seed()
    run = Run(feedmill.DataLoader, dataset, rng="torch", native="require", **options)
    run.epochs(0, epoch)
    iterator = run.begin(epoch)
    taken = collected(iterator, n)
    state = run.loader.state_dict()
    assert state == run.loader.state_dict()
    return taken, through_json(state), states_of_script()


def check(dataset, positions, n_epochs=2, epoch=0, **options):
    options = {"batch_size": 4, "shuffle": True, **options}
    if "sampler" in options:
        options["shuffle"] = None
    wanted = unbroken(dataset, n_epochs, **options)
    of_epoch, behind = wanted[epoch]
    for position in positions:
        n = min(position, len(of_epoch)) if position >= 0 else len(of_epoch) + 1 + position
        taken, state, of_script = stopped(dataset, epoch, n, **options)
        assert is_equal(taken, of_epoch[:n])
        assert len(state["workers"]["generators"]) == options["num_workers"]
        seed(n + 99)
        run = Run(feedmill.DataLoader, dataset, rng="torch", native="require",
                  **{**options, **({"generator": 77} if "generator" in options else {})})
        run.loader.load_state_dict(state)
        set_states(of_script)
        iterator = run.begin(epoch)
        rest = collected(iterator)
        del iterator
        assert is_equal(rest, of_epoch[n:]), f"position {n}"
        assert is_equal(states(), behind)
        assert is_equal(run.epochs(epoch + 1, n_epochs), wanted[epoch + 1 :])
    return of_epoch


# ---- positions -----------------------------------------------------------------------------------

POSITIONS = (0, 1, 3, -2, -1)  # the last ones: before the last batch, and behind it


@pytest.mark.slow
@pytest.mark.parametrize("name", TRANSFORMS)
def test_transforms(mixed, name):
    check(ImageFolder(mixed, TRANSFORMS[name]), POSITIONS, num_workers=3)


@pytest.mark.slow
@pytest.mark.parametrize("name", PIPELINES)
def test_all_transforms(mixed, name):
    check(ImageFolder(mixed, PIPELINES[name](v2)), POSITIONS, num_workers=8)


@pytest.mark.parametrize("function, n_workers", [
    (mix_up, 1), (mix_up, 8), (cut_mix_batch, 3), (fails_at_times, 2)])
def test_collate_fns_that_draw(mixed, function, n_workers):
    check(ImageFolder(mixed, CROP), POSITIONS, num_workers=n_workers, collate_fn=function)


@pytest.mark.parametrize("options", [
    {"num_workers": 2},
    {"num_workers": 3, "batch_size": 3, "persistent_workers": True},
    {"num_workers": 2, "collate_fn": mix_up},
], ids=named)
def test_damaged_files(damaged, options):
    batches = check(ImageFolder(damaged, CROP), (1, 2, 4, 6), **options)
    assert sum(isinstance(one, tuple) for one in batches) >= 4


def test_views_and_images_in_memory(mixed):
    check(ImageFolder(mixed, Twice(moco(), moco(16))), (1, 3), num_workers=3)
    images = cifar_in_memory(70)
    images.transform = PIPELINES["padded-crop"](v1)
    check(images, (1, 3), num_workers=3, batch_size=9)


@pytest.mark.slow
@pytest.mark.parametrize("options", [
    {"num_workers": 2, "generator": 21},
    {"num_workers": 2, "sampler": subset},
    {"num_workers": 2, "sampler": distributed, "batch_size": 2},
    {"num_workers": 2, "batch_size": None},
    {"num_workers": 3, "prefetch_factor": 1, "drop_last": True, "shuffle": False},
    {"num_workers": 2, "batch_size": 64},
    {"num_workers": 2, "worker_init_fn": seed_worker},
    {"num_workers": 2, "worker_init_fn": seed_torch, "collate_fn": mix_up},
], ids=named)
@pytest.mark.parametrize("persistent", [False, True])
def test_arguments(mixed, options, persistent):
    dataset = ImageFolder(mixed, CROP)
    for epoch, position in ((0, 2), (1, 1)):
        check(dataset, [position], n_epochs=3, epoch=epoch, persistent_workers=persistent, **options)


@pytest.mark.parametrize("persistent", [False, True])
def test_ends_of_epochs(mixed, persistent):
    for epoch, position in ((0, 0), (0, -1), (1, 0), (1, -1)):
        check(ImageFolder(mixed, CROP), [position], n_epochs=3, epoch=epoch, num_workers=2,
              persistent_workers=persistent)


def test_batches_that_are_split(mixed):
    """A batch that is larger than the native loader's is made in parts."""
    batches = [*([n, n + 1] for n in range(0, 20, 2)), list(range(13)), [1], [2, 2, 3, 4, 5], [7]]
    options = {"batch_size": 1, "shuffle": None, "batch_sampler": batches, "num_workers": 2}
    check(ImageFolder(mixed, CROP), (3, 9, 10, 11, 13), **options)


# ---- epochs --------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{}, {"generator": 21}, {"collate_fn": mix_up}], ids=named)
@pytest.mark.parametrize("n_epochs", [0, 1, 2])
def test_between_epochs_of_persistent_workers(mixed, options, n_epochs):
    """torch's persistent workers are not seeded again, and draw no base seed."""
    dataset = ImageFolder(mixed, CROP)
    options = {"batch_size": 4, "shuffle": True, "num_workers": 3, "persistent_workers": True,
               **options}
    wanted = unbroken(dataset, 3, **options)
    seed()
    run = Run(feedmill.DataLoader, dataset, rng="torch", **options)
    run.epochs(0, n_epochs)
    state = through_json(run.loader.state_dict())
    assert state["position"] is None and ("workers" in state) is (n_epochs > 0)
    of_script = states_of_script()
    seed(5)
    run = Run(feedmill.DataLoader, dataset, rng="torch", **options)
    run.loader.load_state_dict(state)
    set_states(of_script)
    assert is_equal(run.epochs(n_epochs, 3), wanted[n_epochs:])


@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize("function", [None, mix_up])
def test_the_resumed_epoch_is_left_early(mixed, persistent, function):
    """torch's persistent workers draw for the batches for which they have indices by then."""
    dataset = ImageFolder(mixed, CROP)
    options = {"batch_size": 2, "shuffle": True, "num_workers": 2, "collate_fn": function,
               "persistent_workers": persistent}
    seed()
    run = Run(DataLoader, dataset, **options)
    iterator = run.begin(0)
    wanted = collected(iterator, 5)
    del iterator
    wanted += run.epochs(1, 3)
    taken, state, of_script = stopped(dataset, 0, 3, **options)
    seed(5)
    run = Run(feedmill.DataLoader, dataset, rng="torch", **options)
    run.loader.load_state_dict(state)
    set_states(of_script)
    iterator = run.begin(0)
    taken += collected(iterator, 2)
    del iterator
    assert is_equal([*taken, *run.epochs(1, 3)], wanted)


def test_a_run_that_stops_often(damaged):
    """A process for each batch."""
    dataset = ImageFolder(damaged, CROP)
    options = {"batch_size": 3, "shuffle": True, "num_workers": 3, "collate_fn": mix_up}
    [(wanted, behind)] = unbroken(dataset, 1, **options)
    taken, state, of_script = stopped(dataset, 0, 0, **options)
    for number in range(len(wanted)):
        seed(number)
        loader = feedmill.DataLoader(dataset, rng="torch", **options)
        loader.load_state_dict(state)
        set_states(of_script)
        taken += collected(iter(loader), 1)
        state, of_script = through_json(loader.state_dict()), states_of_script()
    assert is_equal(taken, wanted) and is_equal(states(), behind)


def test_a_loader_with_running_workers_goes_back(mixed):
    dataset = ImageFolder(mixed, CROP)
    options = {"batch_size": 4, "shuffle": True, "num_workers": 2, "persistent_workers": True}
    wanted = unbroken(dataset, 2, **options)
    seed()
    run = Run(feedmill.DataLoader, dataset, rng="torch", **options)
    first = run.loader.state_dict(), states_of_script()
    iterator = run.begin(0)
    collected(iterator, 2)
    saved = through_json(run.loader.state_dict()), states_of_script()
    collected(iterator, 2)
    for (state, of_script), n in ((saved, 2), (first, 0), (saved, 2)):
        run.loader.load_state_dict(state)
        set_states(of_script)
        again = run.begin(0)
        assert collected(iterator) == []  # the earlier iterator has ended
        assert is_equal(collected(again), wanted[0][0][n:])
        assert is_equal(run.epochs(1, 2), wanted[1:])
        iterator = again


def test_verify(mixed):
    dataset = ImageFolder(mixed, CROP)
    options = {"batch_size": 4, "num_workers": 3}
    [(wanted, _)] = unbroken(dataset, 1, **options)
    _, state, _ = stopped(dataset, 0, 2, **options)
    loader = feedmill.DataLoader(dataset, rng="torch", native="verify", **options)
    loader.load_state_dict(state)
    assert is_equal(collected(iter(loader)), wanted[2:])
    assert loader.stats().decode.verified_samples == len(dataset) - 8


# ---- interrupts and errors -----------------------------------------------------------------------


@pytest.mark.parametrize("method", ["note", "note_streams", "of_batch", "give"])
@pytest.mark.parametrize("is_after", [False, True])
@pytest.mark.parametrize("function", [None, mix_up])
def test_ctrl_c(mixed, monkeypatch, method, is_after, function):
    """The state counts what next() has returned, wherever the interrupt comes."""
    dataset = ImageFolder(mixed, CROP)
    options = {"batch_size": 4, "shuffle": True, "num_workers": 2, "collate_fn": function}
    [(wanted, _)] = unbroken(dataset, 1, **options)
    seed()
    loader = feedmill.DataLoader(dataset, rng="torch", **options)
    iterator = iter(loader)
    taken = collected(iterator, 3)
    original = getattr(VirtualWorkers, method)

    def interrupted(self, *arguments):
        monkeypatch.undo()
        if is_after:
            original(self, *arguments)
        raise KeyboardInterrupt

    monkeypatch.setattr(VirtualWorkers, method, interrupted)
    try:
        taken += collected(iterator, 1)
    except KeyboardInterrupt:
        pass
    monkeypatch.undo()
    state, of_script = through_json(loader.state_dict()), states_of_script()
    assert state["position"]["batches"] == len(taken)
    seed(5)
    loader = feedmill.DataLoader(dataset, rng="torch", **options)
    loader.load_state_dict(state)
    set_states(of_script)
    assert is_equal([*taken, *collected(iter(loader))], wanted)


def test_between_epochs_workers_may_be_others(mixed):
    dataset = ImageFolder(mixed, CROP)
    options = {"batch_size": 4, "persistent_workers": True}
    loader = feedmill.DataLoader(dataset, num_workers=2, **options)
    list(loader)
    other = feedmill.DataLoader(dataset, num_workers=3, **options)
    other.load_state_dict(loader.state_dict())
    assert len(list(other)) == len(loader)


def test_after_errors_of_a_transform(mixed):
    transform = v1.Compose([v1.RandomHorizontalFlip(), v1.RandomCrop(32), v1.ToTensor()])
    of_epoch = check(ImageFolder(mixed, transform), range(12), num_workers=2, batch_size=2)
    assert sum(isinstance(one, tuple) for one in of_epoch) >= 2


# ---- what a state is, and what it is refused for -------------------------------------------------


def test_a_state_is_small_and_plain_data(mixed, tmp_path):
    options = {"batch_size": 1, "shuffle": True, "num_workers": 16}
    for name, n_bytes in (("crop", 3_600), ("own", 7_200)):
        _, state, _ = stopped(ImageFolder(mixed, TRANSFORMS[name]), 0, 20, **options)
        assert len(json.dumps(state)) < 2_000 + 16 * n_bytes
        torch.save(state, tmp_path / "state.pt")
        assert torch.load(tmp_path / "state.pt", weights_only=True) == state


SCRIPT = """
import sys
sys.path.insert(0, {tests!r})
import conftest
import feedmill, torch
from test_rng_torch_resume import TRANSFORMS, mix_up
from torchvision.datasets import ImageFolder

folder, state, rest = sys.argv[1:]
loader = feedmill.DataLoader(ImageFolder(folder, TRANSFORMS["own"]), batch_size=4, shuffle=True,
                             num_workers=3, collate_fn=mix_up, rng="torch", native="require")
loader.load_state_dict(torch.load(state, weights_only=True))
torch.save([*loader], rest)
"""


@pytest.mark.slow
def test_another_process(mixed, tmp_path):
    options = {"batch_size": 4, "shuffle": True, "num_workers": 3, "collate_fn": mix_up}
    dataset = ImageFolder(mixed, TRANSFORMS["own"])
    [(wanted, _)] = unbroken(dataset, 1, **options)
    _, state, _ = stopped(dataset, 0, 3, **options)
    torch.save(state, tmp_path / "state.pt")
    script = SCRIPT.format(tests=os.path.dirname(os.path.abspath(__file__)))
    subprocess.run([sys.executable, "-W", "ignore", "-c", script, mixed, tmp_path / "state.pt",
                    tmp_path / "rest.pt"], check=True)
    assert is_equal(torch.load(tmp_path / "rest.pt", weights_only=True), wanted[3:])


@pytest.mark.parametrize("change, text", [
    ({"num_workers": 2}, "num_workers=3, and would go on with 2"),
    ({"num_workers": 0}, "num_workers=3, and would go on with 0"),
    ({"batch_size": 2}, "batch_size=4, and would go on with 2"),
    ({"sampler": lambda n: distributed(n, 3)}, "ranks=2, and would go on with 3"),
    ({"sampler": lambda n: distributed(n, rank=0)}, "rank=1, and would go on with 0"),
])
def test_other_workers_are_refused(mixed, change, text):
    dataset = ImageFolder(mixed, CROP)
    options = {"batch_size": 4, "num_workers": 3, "sampler": distributed}
    _, state, _ = stopped(dataset, 0, 2, **{**options, "shuffle": None})
    loader = Run(feedmill.DataLoader, dataset, rng="torch", **{**options, **change}).loader
    with pytest.raises(ValueError, match=f"other random numbers: the epoch ran with {text}"):
        loader.load_state_dict(state)
    loader.load_state_dict(state, strict=False)
    with pytest.warns(UserWarning, match=f"draws other random numbers .* {text}"):
        iterator = iter(loader)
    assert len(collected(iterator)) > 0


def test_insisting_keeps_the_order(mixed):
    dataset = ImageFolder(mixed, CROP)
    options = {"batch_size": 4, "shuffle": True}
    [(wanted, _)] = unbroken(dataset, 1, num_workers=3, **options)
    _, state, _ = stopped(dataset, 0, 2, num_workers=3, **options)
    loader = feedmill.DataLoader(dataset, rng="torch", num_workers=2, **options)
    loader.load_state_dict(state, strict=False)
    with pytest.warns(UserWarning, match="draws other random numbers"):
        rest = [*loader]
    assert is_equal([labels for _, labels in rest], [labels for _, labels in wanted[2:]])
    assert not is_equal(rest, wanted[2:])


def test_workers_where_there_were_none(mixed):
    dataset = ImageFolder(mixed, CROP)
    loader = feedmill.DataLoader(dataset, batch_size=4, rng="torch")
    next(iter(loader))
    state = through_json(loader.state_dict())
    assert "workers" not in state
    loader = feedmill.DataLoader(dataset, batch_size=4, rng="torch", num_workers=2)
    with pytest.raises(ValueError, match="num_workers=0, and would go on with 2"):
        loader.load_state_dict(state)


def test_other_paths_and_random_numbers_are_refused(mixed):
    dataset = ImageFolder(mixed, CROP)
    options = {"batch_size": 4, "num_workers": 2}
    _, state, _ = stopped(dataset, 0, 2, **options)
    with pytest.raises(ValueError, match="would go on with rng='feedmill'"):
        feedmill.DataLoader(dataset, rng="feedmill", **options).load_state_dict(state)
    with pytest.raises(ValueError, match="would go on on the path 'torch'"):
        feedmill.DataLoader(dataset, rng="torch", native="off", **options).load_state_dict(state)
    loader = feedmill.DataLoader(dataset, rng="feedmill", **options)
    next(iter(loader))
    other = feedmill.DataLoader(dataset, rng="torch", **options)
    with pytest.raises(ValueError, match="would go on with rng='torch'"):
        other.load_state_dict(loader.state_dict())
    other.load_state_dict(loader.state_dict(), strict=False)
    with pytest.warns(UserWarning, match="the state holds no generators of torch's workers"):
        assert len([*other]) == len(loader) - 1


def test_from_torchs_path_the_order_goes_on(mixed):
    dataset = ImageFolder(mixed, CROP)
    options = {"batch_size": 4, "num_workers": 2, "rng": "torch"}
    loader = feedmill.DataLoader(dataset, native="off", **options)
    next(iter(loader))
    other = feedmill.DataLoader(dataset, native="require", **options)
    other.load_state_dict(loader.state_dict())
    with pytest.warns(UserWarning, match="the state holds no generators of torch's workers"):
        assert len([*other]) == len(loader) - 1


def damaged_states(state):
    def with_workers(**values):
        return {**state, "workers": {**state["workers"], **values}}

    first, *others = state["workers"]["generators"]
    for values in (
        {"generators": others}, {"generators": None}, {"num_workers": True}, {"base_seed": "1"},
        {"batch_size": 1.5}, {"rank": -1}, {"generators": [{**first, "torch": "AAAA"}, *others]},
        {"generators": [{**first, "torch": first["torch"][:-8]}, *others]},
        {"generators": [{"python": [first["torch"], None]}, *others]},
        {"generators": [{"python": [first["python"][0], "2"]}, *others]},
        {"generators": [{"numpy": [first["numpy"][0], 625, 0, 0.0]}, *others]},
        {"generators": [{"numpy": [first["numpy"][0], -1, 0, 0.0]}, *others]},
        {"generators": [{"numpy": [first["python"][0], 1, 0, 0.0]}, *others]},
        {"generators": [None, *others]},
    ):
        yield with_workers(**values)
    yield {**state, "workers": [1]}
    # A word behind the last one is the next.
    of_torch, of_python = changed(first["torch"], 16, 70_000), changed(first["python"][0], 2496, 70_000)
    yield with_workers(generators=[{**first, "torch": of_torch}, *others])
    yield with_workers(generators=[{**first, "python": [of_python, None]}, *others])


def changed(text, place, value):
    raw = bytearray(base64.b64decode(text))
    raw[place : place + 4] = value.to_bytes(4, "little")
    return base64.b64encode(raw).decode()


def test_damaged_states(mixed):
    dataset = ImageFolder(mixed, CROP)
    options = {"batch_size": 4, "num_workers": 2, "collate_fn": mix_up}
    _, state, _ = stopped(dataset, 0, 2, **options)
    for strict, one in itertools.product((True, False), damaged_states(state)):
        loader = feedmill.DataLoader(dataset, rng="torch", **options)
        with pytest.raises(ValueError, match="the state is damaged"):
            loader.load_state_dict(one, strict=strict)


# ---- random scripts ------------------------------------------------------------------------------


@pytest.mark.parametrize("number", range(4))
def test_random_arguments(mixed, damaged, number):
    check_random(mixed, damaged, number)


@pytest.mark.slow
@pytest.mark.parametrize("number", range(4, 150))
def test_more_random_arguments(mixed, damaged, number):
    check_random(mixed, damaged, number)


def check_random(mixed, damaged, number):
    choose = random.Random(number)
    persistent = choose.random() < 0.5
    options = {
        "num_workers": choose.choice((1, 2, 3, 5)),
        "batch_size": choose.choice((1, 2, 3, 7, 40)),
        "prefetch_factor": choose.choice((None, 1, 3)),
        "persistent_workers": persistent,
        "drop_last": choose.random() < 0.3,
        "collate_fn": choose.choice((None, None, mix_up, fails_at_times)),
        "worker_init_fn": choose.choice((None, None, seed_torch)),
    }
    if choose.random() < 0.3:
        options["generator"] = choose.randrange(99)
    transform = choose.choice(list(PIPELINES.values()))(v1 if number % 2 else v2)
    dataset = ImageFolder(damaged if number % 3 else mixed, transform)
    n_batches = len(dataset) // options["batch_size"]
    position = choose.randint(0, n_batches)
    check(dataset, [position], n_epochs=3, epoch=choose.choice((0, 0, 1, 2)), **options)
