"""rng="torch" without workers: native batches draw from the process's own generators, when they are
requested, as those of torch's DataLoader do. Between two batches the script draws, too."""

import random
import signal
import threading

import feedmill
import numpy as np
import pytest
import torch
from feedmill.iterators import global_generators
from feedmill.planner import random_states
from test_rng_torch import (
    CROP,
    ONCE,
    PIPELINES,
    cut_mix_batch,
    damaged,
    fails_at_times,
    is_equal,
    mix_up,
    mixed,
)
from torch.utils.data import DataLoader, SubsetRandomSampler, WeightedRandomSampler
from torchvision import transforms as v1
from torchvision.datasets import ImageFolder
from torchvision.transforms import v2

__all__ = ["damaged", "mixed"]  # fixtures


def seed(number=11):
    torch.manual_seed(number)
    random.seed(number)
    np.random.seed(number)


def states():
    return torch.get_rng_state(), list(random.getstate()[1]), np.random.get_state()[1].tolist()


def run_of(kind, dataset, epochs=3, n_most=None, sampler=None, **options):
    """All batches of some epochs, or their errors, and the generators' states behind each."""
    seed()
    if sampler is not None:
        options["sampler"] = sampler(len(dataset))
    loader = kind(dataset, **options)
    found = []
    for _ in range(epochs):
        iterator = iter(loader)
        for number in range(n_most or 1 << 30):
            try:
                found.append(next(iterator))
            except StopIteration:
                break
            except Exception as error:
                found.append((type(error).__name__, str(error).split(" [")[0]))
            found.append(states())
            if number % 3 == 0:
                found.append([torch.randn(3), random.gauss(0, 1), np.random.rand(2).tolist()])
    return [*found, states()]


def check(dataset, native="require", **options):
    options = {"batch_size": 4, "shuffle": True, **options}
    if "sampler" in options:
        options["shuffle"] = None
    wanted = run_of(DataLoader, dataset, **options)
    got = run_of(feedmill.DataLoader, dataset, native=native, rng="torch", **options)
    assert len(wanted) == len(got)
    assert [n for n, pair in enumerate(zip(wanted, got)) if not is_equal(*pair)] == []
    return wanted


@pytest.mark.parametrize("module", [v1, v2], ids=["v1", "v2"])
@pytest.mark.parametrize("name", PIPELINES)
def test_pipelines(mixed, name, module):
    check(ImageFolder(mixed, PIPELINES[name](module)), epochs=2)


@pytest.mark.parametrize("name", ONCE)
def test_more_pipelines(mixed, name):
    check(ImageFolder(mixed, ONCE[name]))


def weighted(n):
    return WeightedRandomSampler([1.0 + i % 3 for i in range(n)], 19)


def some(n):
    return SubsetRandomSampler(range(3, n))


def with_generator(n):
    generator = torch.Generator().manual_seed(5)
    return torch.utils.data.RandomSampler(range(n), generator=generator)


@pytest.mark.parametrize("options", [
    {"shuffle": False, "batch_size": 5},
    {"batch_size": 7, "drop_last": True},
    {"batch_size": 64},
    {"batch_size": None},
    {"n_most": 3},
    {"sampler": weighted},
    {"sampler": some},
    {"sampler": with_generator},
    {"collate_fn": mix_up},
    {"collate_fn": cut_mix_batch},
    {"collate_fn": fails_at_times},
    {"threads": 1},
], ids=lambda one: " ".join(f"{k}={getattr(v, '__name__', v)}" for k, v in one.items()))
def test_options(mixed, options):
    dataset = ImageFolder(mixed, CROP)
    if "threads" not in options:
        check(dataset, **options)
        return
    wanted = run_of(DataLoader, dataset, batch_size=4)
    got = run_of(feedmill.DataLoader, dataset, batch_size=4, rng="torch", native="require", **options)
    assert all(map(is_equal, wanted, got))


def test_damaged_files(damaged):
    wanted = check(ImageFolder(damaged, CROP), batch_size=3)
    assert any(isinstance(one, tuple) and isinstance(one[0], str) for one in wanted)


def test_loaders_in_turn(mixed):
    """Two loaders of one process, whose batches draw from the same generators."""
    def of(kind, **options):
        seed()
        datasets = [ImageFolder(mixed, CROP), ImageFolder(mixed, PIPELINES["rand-augment"](v1))]
        loaders = [kind(one, batch_size=4, shuffle=True, **options) for one in datasets]
        batches = [one for pair in zip(*loaders) for one in pair]
        return [*batches, states()]

    assert is_equal(of(DataLoader), of(feedmill.DataLoader, native="require", rng="torch"))


def test_numbers_of_another_thread_are_not_drawn_again(mixed):
    """A thread that draws while a batch is made keeps its numbers."""
    import threading

    loader = feedmill.DataLoader(ImageFolder(mixed, CROP), batch_size=4, native="require")
    drawn, has_ended = [], threading.Event()

    def draw():
        while not has_ended.is_set():
            drawn.append(torch.rand(64))

    list(loader)  # the trial sets the generators, for a moment
    thread = threading.Thread(target=draw)
    thread.start()
    try:
        for _ in range(5):
            list(loader)
    finally:
        has_ended.set()
        thread.join()
    numbers = torch.cat(drawn)
    n, n_repeated = len(numbers), len(numbers) - len(torch.unique(numbers))
    # Of numbers of 24 bits some are equal by chance. A thread that draws at the very moment when
    # the generators are set repeats a few more.
    assert n_repeated - n**2 / 2**25 < n / 4


def test_errors_of_a_transform(mixed):
    transform = v1.Compose([v1.RandomHorizontalFlip(), v1.RandomCrop(32), v1.ToTensor()])
    check(ImageFolder(mixed, transform), batch_size=3, epochs=2)


@pytest.mark.parametrize("moment", ["set_if_same", "global_states"])
def test_an_interrupt_is_followed_by_the_same_batches(mixed, monkeypatch, moment):
    """After a Ctrl-C the batch is made again, from the generators as they are then."""
    seed()
    loader = feedmill.DataLoader(ImageFolder(mixed, CROP), batch_size=4, rng="torch",
                                 native="require")
    wanted = list(loader)
    seed()
    iterator = iter(loader)
    batches = [next(iterator)]
    before = states()
    original = getattr(global_generators, moment)

    def interrupted(*arguments):
        monkeypatch.setattr(global_generators, moment, original)
        signal.raise_signal(signal.SIGINT)
        return original(*arguments)

    assert threading.current_thread() is threading.main_thread()
    monkeypatch.setattr(global_generators, moment, interrupted)
    with pytest.raises(KeyboardInterrupt):
        next(iterator)
    torch.set_rng_state(before[0])
    batches += iterator
    assert is_equal(batches, wanted)


def test_verify(mixed):
    dataset = ImageFolder(mixed, PIPELINES["jitter"](v1))
    check(dataset, native="verify", epochs=1)


def test_resuming_within_an_epoch(mixed):
    """The order goes on; the generators are the script's to save, as with torch's path."""
    def loader():
        return feedmill.DataLoader(ImageFolder(mixed, CROP), batch_size=4, shuffle=True,
                                   rng="torch", native="require")

    seed()
    whole = loader()
    batches = iter(whole)
    for _ in range(3):
        next(batches)
    saved, generators = whole.state_dict(), torch.get_rng_state()
    wanted = list(batches)
    seed(99)
    resumed = loader()
    resumed.load_state_dict(saved)
    iterator = iter(resumed)
    torch.set_rng_state(generators)
    got = list(iterator)
    assert [labels.tolist() for _, labels in got] == [labels.tolist() for _, labels in wanted]
    assert is_equal(got, wanted)


def test_explain(mixed):
    text = feedmill.DataLoader(ImageFolder(mixed, CROP), rng="torch").explain()
    assert text.startswith("native path")
    assert "drawn from the process's own generators when a batch is requested" in text


class _Given:
    def give_streams(self, number, streams):
        assert number == 0
        self.streams = streams


@pytest.mark.parametrize("draws_from_numpy", [False, True])
def test_generators_are_set_only_where_the_batch_drew(mixed, monkeypatch, draws_from_numpy):
    """Another thread's numbers of a generator that the batch leaves alone can't be undone."""
    torch.manual_seed(3)
    generators = global_generators.ProcessGenerators(draws_from_numpy)
    before = random_states.global_states()
    generators.request(given := _Given(), 0)
    assert given.streams == random_states.streams_of(before)
    torch.rand(5)
    behind = random_states.streams_of(random_states.global_states())
    torch.set_rng_state(before[0])
    random.random()
    np.random.rand()
    wanted = random.getstate(), np.random.get_state()[2]
    for name in ("random", "numpy.random"):
        monkeypatch.setattr(f"{name}.{'setstate' if name == 'random' else 'set_state'}", None)
    generators.note_streams(0, behind)
    assert (random.getstate(), np.random.get_state()[2]) == wanted
    torch.manual_seed(3)
    torch.rand(5)
    assert torch.equal(random_states.global_states()[0], generators.of_batch(0)[0])
