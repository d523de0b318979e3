"""loader.replay(n), which repeats ready batches, and the lines about it in report()."""

import collections
import copy
import pickle

import feedmill
import numpy as np
import pytest
import torch
from feedmill.iterators import replay as recycle
from feedmill.profiling.counting.records import FIRST, STEADY, STEP_DTYPE
from helpers import compose, native_loader, threads, threads_left
from torch.utils.data import IterableDataset
from torchvision import transforms as T


def a_loader(dataset, path, **options):
    return feedmill.DataLoader(dataset, **{"native": path, "batch_size": 8, **options})


@pytest.fixture(params=["require", "off"])
def path(request):
    return request.param


# ---- the batches ---------------------------------------------------------------------------------


def test_replay_repeats_the_first_batches_in_order(numbered, path):
    for num_workers in (0, 1):
        loader = a_loader(numbered, path, num_workers=num_workers)
        wanted = [(images.clone(), labels.tolist()) for images, labels in loader]
        replayed = loader.replay(2)
        assert len(replayed) == 5
        for _ in range(2):
            got = list(replayed)
            assert [labels.tolist() for _, labels in got] == [wanted[k % 2][1] for k in range(5)]
            assert all(torch.equal(got[k][0], wanted[k % 2][0]) for k in range(5))
        assert got[0][0].data_ptr() == got[2][0].data_ptr() != got[1][0].data_ptr()


def test_more_batches_than_an_epoch_has(numbered, path):
    got = list(a_loader(numbered, path).replay(50, steps=7))
    firsts = [labels[0].item() for _, labels in got]
    assert firsts == [0, 8, 16, 24, 32, 0, 8]


def test_a_number_of_steps(numbered, path):
    replayed = a_loader(numbered, path).replay(1, steps=3)
    assert len(replayed) == 3
    assert [labels[0].item() for _, labels in replayed] == [0, 0, 0]


def test_an_empty_loader(numbered, path):
    loader = a_loader(numbered, path, sampler=[])
    assert len(loader.replay(2)) == 0 and list(loader.replay(2)) == []
    with pytest.raises(RuntimeError, match="yielded no batch to replay for 4 steps"):
        iter(loader.replay(2, steps=4))


def test_any_collate_fn(numbered, path):
    calls = []

    def collate(samples):
        calls.append(len(samples))
        return {"images": torch.stack([image for image, _ in samples]), "n": [len(samples)]}

    got = list(a_loader(numbered, path, collate_fn=collate).replay(2))
    # No batch is made that is not kept; without workers, torch prepares none ahead either.
    assert calls == [8, 8]
    assert [one["n"] for one in got] == [[8]] * 5
    assert torch.equal(got[0]["images"], got[4]["images"])


class Stream(IterableDataset):
    def __iter__(self):
        return iter(range(6))


def test_a_loader_without_length():
    class Endless(torch.utils.data.Sampler):
        def __iter__(self):
            while True:
                yield [0, 1]

    loader = feedmill.DataLoader([5, 6], batch_sampler=Endless())
    with pytest.raises(TypeError, match="has no len"):
        iter(loader.replay(2))
    assert [one.tolist() for one in loader.replay(2, steps=3)] == [[5, 6]] * 3
    assert [one.tolist() for one in feedmill.DataLoader(Stream()).replay(2, steps=3)] \
        == [[0], [1], [0]]


def test_changes_to_a_batchs_list_do_not_last(numbered, path):
    for batch in a_loader(numbered, path).replay(1):
        assert len(batch) == 2
        batch[0] = None
        batch.append(1)


Pair = collections.namedtuple("Pair", "x y")


class Encoding(collections.UserDict):
    pass


def test_each_step_gets_new_containers_with_the_same_tensors():
    x = torch.zeros(2)
    batch = {"pair": Pair([x], (x, [1])), "mine": Encoding(x=x), "array": np.zeros(2), "text": "a"}
    fresh = recycle._fresh(batch)
    assert fresh is not batch and type(fresh["pair"]) is Pair
    assert fresh["pair"].x is not batch["pair"].x and fresh["pair"].x[0] is x
    assert fresh["pair"].y[1] is not batch["pair"].y[1] and fresh["pair"].y[1] == [1]
    fresh["mine"]["x"] = None
    assert batch["mine"]["x"] is x
    assert fresh["array"] is batch["array"] and fresh["text"] == "a"
    assert recycle._fresh(x) is x


def test_in_place_changes_of_tensors_last(numbered, path):
    """This is the documented behaviour."""
    totals = []
    for images, _ in a_loader(numbered, path).replay(1):
        totals.append(int(images.long().sum()))
        images.zero_()
    assert totals[0] > 0 and totals[1:] == [0] * 4


@pytest.mark.parametrize(
    ("arguments", "message"),
    [((0,), "n is 0"), ((1.0,), "n is 1.0"), ((True,), "n is True"), ((1, 0), "steps is 0"),
     ((1, "2"), "steps is '2'")],
)
def test_numbers_out_of_range(numbered, arguments, message):
    with pytest.raises(ValueError, match=f"{message}; it must be an int from 1"):
        native_loader(numbered).replay(*arguments)


def test_an_error_is_raised_and_no_batch_is_kept(numbered, path):
    samples = numbered.samples
    numbered.samples = [("missing.jpg", 0), *samples[1:]]
    replayed = a_loader(numbered, path).replay(2)
    for _ in range(2):
        with pytest.raises(FileNotFoundError):
            iter(replayed)
    numbered.samples = samples
    assert len(list(replayed)) == 5


# ---- the loader itself ---------------------------------------------------------------------------


def test_a_replay_has_the_loaders_attributes(numbered):
    loader = native_loader(numbered, batch_size=8)
    replayed = loader.replay(2)
    assert replayed.dataset is numbered and replayed.batch_size == 8
    assert replayed.sampler is loader.sampler
    list(replayed)
    assert replayed.stats().batches == 0
    assert replayed.report() == loader.report()
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        replayed.nothing
    assert len(list(copy.copy(replayed))) == len(list(pickle.loads(pickle.dumps(replayed)))) == 5


def test_replay_does_not_change_the_loader(numbered, path):
    loader = a_loader(numbered, path, num_workers=1, persistent_workers=True, seed=3)
    iterator = iter(loader)
    first = next(iterator)[1].tolist()
    number = loader._feedmill.epochs.next_number
    assert [labels[0].item() for _, labels in loader.replay(2)] == [0, 8, 0, 8, 0]
    assert first == list(range(8)) and next(iterator)[1].tolist() == list(range(8, 16))
    assert loader._iterator is iterator
    stats = loader.stats()
    assert (stats.epochs, stats.batches) == (1, 2)
    assert loader._feedmill.epochs.next_number == number


def test_no_decode_thread_is_left(numbered):
    before = threads()
    replayed = native_loader(numbered, batch_size=8, threads=5).replay(2)
    iterator = iter(replayed)
    next(iterator)
    assert not threads_left(before)
    assert len(list(iterator)) == 4  # the batches outlive the iterator that made them


# ---- counters and report -------------------------------------------------------------------------


def test_steps_of_a_replay_are_counted_separately(numbered, path):
    loader = a_loader(numbered, path)
    for _ in range(2):
        list(loader)
    assert "replay" not in loader.report()
    replayed = loader.replay(2)
    for _ in range(3):
        list(replayed)
    stats = loader.stats()
    assert (stats.epochs, stats.batches, len(stats.steps)) == (2, 10, 10)
    counters = loader._feedmill.replay_counters
    assert (counters.counters()["epochs"], counters.counters()["batches"]) == (3, 15)
    rows = [line.split()[0] for line in loader.report().splitlines()]
    assert rows.count("cost") == rows.count("replay") == 1


def test_a_replay_without_steps_of_the_loader(numbered):
    loader = native_loader(numbered, batch_size=8)
    list(loader.replay(2))
    assert "the loader itself has made too few steps to be compared" in loader.report()


def steps_of(waits_ms, computes_ms):
    """Steps of one epoch with a slow first step, and a last one whose compute time is not known."""
    steps = np.zeros(len(waits_ms) + 2, STEP_DTYPE)
    steps["phase"] = STEADY
    steps["phase"][0] = FIRST
    steps["host_wait_ns"][0] = steps["compute_ns"][0] = 10**10
    steps["host_wait_ns"][1:-1] = np.array(waits_ms) * 1e6
    steps["compute_ns"][1:-1] = np.array(computes_ms) * 1e6
    steps["host_wait_ns"][-1] = 10**10
    return steps


ALONE = steps_of([0.01] * 50, [12] * 50)


@pytest.mark.parametrize(
    ("waits", "computes", "words"),
    [
        ([5.01] * 50, [15] * 50,
         "the loader costs 8.00 ms of a step's 20.01 ms (40%): 5.00 ms of waiting for batches, "
         "and 3.00 ms of interference, by which the step itself takes longer while batches are "
         "made on the same cores"),
        ([5.01] * 50, [12] * 50,
         "the loader costs 5.00 ms of a step's 17.01 ms (29%): 5.00 ms of waiting for batches"),
        ([0.01] * 50, [16] * 50, "(25%): 4.00 ms of interference"),
        ([0.02] * 50, [12.05] * 50,
         "the loader costs nothing that can be told from noise: 12.07 ms a step with it, 12.01 ms"),
        ([0.01] * 50, [4, 21] * 25, "nothing that can be told from noise: 12.51 ms"),
        ([9.01] * 50, [6] * 50,
         "can't be told: the step itself took 6.00 ms less than in replay, so the two loops did "
         "not do the same work"),
    ],
)
def test_what_the_loader_costs(waits, computes, words):
    cost, row = recycle.costs(steps_of(waits, computes), ALONE)
    assert cost.startswith("  cost       ") and words in cost
    assert row.startswith(
        "  replay     12.01 ms a step (0.01 waiting, 12.00 computing), 50 steps; with the loader "
    )


def test_too_few_steps():
    few = steps_of([1], [1])
    assert recycle.costs(ALONE, few) == recycle.costs(ALONE, few[:0]) == []
    (row,) = recycle.costs(few, ALONE)
    assert row.startswith("  replay     12.01 ms a step; the loader itself has made too few steps")


def test_replay_on_torchs_path(numbered):
    numbered.transform = compose(T.Resize((8, 8)), T.Lambda(lambda image: image.copy()), T.ToTensor())
    loader = feedmill.DataLoader(numbered, batch_size=8)
    assert [len(labels) for _, labels in loader.replay(3)] == [8] * 5
    assert loader.stats().path == "none"
