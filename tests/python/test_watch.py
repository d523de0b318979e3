"""feedmill.watch(), which passes on items and errors unchanged and counts the waits."""

import collections.abc
import copy
import gc
import pickle
import threading
import time
import weakref

import feedmill
import numpy as np
import pytest
import torch
from feedmill.profiling.counting.accounts import StepCounters
from feedmill.profiling.counting.records import KEPT_STEPS, STEP_DTYPE
from torch.utils.data import DataLoader, TensorDataset


def numbers(n=10, **options):
    return DataLoader(TensorDataset(torch.arange(n)), **options)


def values(loader):
    return [batch[0].tolist() for batch in loader]


def slow(n, wait_s=0.02):
    for i in range(n):
        time.sleep(wait_s)
        yield i


@pytest.mark.parametrize("iterable", [[1, 2, 3], (4, 5), "abc", range(3), {"a": 1}, [], {7}])
def test_containers(iterable):
    watched = feedmill.watch(iterable)
    for _ in range(2):
        assert list(watched) == list(iterable)
    assert len(watched) == len(iterable)
    assert bool(watched) == bool(iterable)
    assert not hasattr(watched, "__next__")
    with pytest.raises(TypeError, match="is not an iterator"):
        next(watched)
    stats = watched.stats()
    assert (stats.epochs, stats.batches) == (2, 2 * len(iterable))


def test_sequences_with_getitem_only():
    class Old:
        def __getitem__(self, index):
            if index == 3:
                raise IndexError
            return 10 * index

    watched = feedmill.watch(Old())
    assert list(watched) == [0, 10, 20] and watched[2] == 20
    with pytest.raises(TypeError, match="has no len"):
        len(watched)


@pytest.mark.parametrize("bad", [5, None, object()])
def test_objects_that_are_not_iterable(bad):
    with pytest.raises(TypeError, match=f"iterable or iterator, not '{type(bad).__name__}'"):
        feedmill.watch(bad)


def test_generators():
    def generate():
        received = yield 1
        yield received
        return "value"

    watched = feedmill.watch(generate())
    assert iter(watched) is watched and isinstance(watched, collections.abc.Generator) is False
    assert bool(watched) and not hasattr(watched, "__len__")
    with pytest.raises(TypeError, match="has no len"):
        len(watched)
    assert next(watched) == 1
    assert watched.send("sent") == "sent"  # the generator's method; not counted
    with pytest.raises(StopIteration) as end:
        next(watched)
    assert end.value.value == "value"
    assert watched.stats().batches == 1
    with pytest.raises(StopIteration):
        next(watched)


def test_next_without_iter_is_an_epoch():
    watched = feedmill.watch(iter([1, 2]))
    assert (next(watched), next(watched)) == (1, 2)
    assert next(watched, "end") == "end"
    assert watched.stats().epochs == 1
    assert watched.stats().steps["epoch"].tolist() == [0, 0]


def test_exceptions_pass_unchanged():
    error = KeyError("bad sample")

    class Fails:
        def __iter__(self):
            yield 1
            raise error

    watched = feedmill.watch(Fails())
    iterator = iter(watched)
    assert next(iterator) == 1
    with pytest.raises(KeyError) as caught:
        next(iterator)
    assert caught.value is error and error.__context__ is None
    assert next(iterator, "end") == "end"
    assert watched.stats().batches == 1

    class FailsAtOnce:
        def __iter__(self):
            raise OSError("no such loader")

    watched = feedmill.watch(FailsAtOnce())
    with pytest.raises(OSError, match="no such loader"):
        iter(watched)
    assert watched.stats().epochs == 0


def test_break_nested_and_parallel():
    watched = feedmill.watch([1, 2, 3])
    for item in watched:
        if item == 2:
            break
    assert [(a, b) for a in watched for b in watched] == [(a, b) for a in (1, 2, 3)
                                                          for b in (1, 2, 3)]
    assert list(zip(watched, watched)) == [(1, 1), (2, 2), (3, 3)]
    stats = watched.stats()
    assert (stats.epochs, stats.batches) == (1 + 4 + 2, 2 + 12 + 6)
    assert stats.steps["epoch"].tolist()[-6:] == [5, 6] * 3
    assert stats.waits.data_wait_ns <= stats.waits.wall_ns


def test_iter_of_an_iterator():
    """Counts one epoch until something is requested."""
    watched = feedmill.watch([1, 2, 3])
    assert list(iter(iter(watched))) == [1, 2, 3]
    assert watched.stats().epochs == 1
    iterator = feedmill.watch(iter([1, 2, 3]))
    for n_epochs, item in enumerate([1, 2, 3], 1):
        assert next(iter(iter(iterator))) == item
        assert iterator.stats().epochs == n_epochs
    assert list(iterator) == list(iterator) == []
    assert iterator.stats().epochs == 5


def test_waits():
    watched = feedmill.watch(slow(5))
    begin = time.monotonic_ns()
    for _ in watched:
        time.sleep(0.001)
    end = time.monotonic_ns()
    stats = watched.stats()
    assert stats.path == "watched" and stats.reasons == ()
    assert stats.steps.dtype == STEP_DTYPE
    assert (stats.steps["host_wait_ns"] >= 20e6).all()
    assert stats.waits.data_wait_ns == int(stats.steps["data_wait_ns"].sum())
    assert stats.waits.data_wait_ns == stats.waits.host_wait_ns
    assert stats.waits.data_wait_ns <= stats.waits.wall_ns <= end - begin
    assert np.all(np.diff(stats.steps["request_ns"].astype(np.int64)) >= 20e6)
    earlier = stats
    assert (watched.stats() - earlier).batches == 0


def report_of(*steps):
    """The report's first line for steps of (epoch, wait, compute time after it), in ms."""
    watched = feedmill.watch([])
    now, counters = 10**12, watched._feedmill_counters
    for epoch, wait_ms, work_ms in steps:
        if epoch == counters.counters()["epochs"]:
            counters.begin_epoch()
        counters.add_step(epoch, now, now + wait_ms * 10**6)
        now += (wait_ms + work_ms) * 10**6
    return watched.report().splitlines()


def test_reports():
    assert report_of() == ["nothing to report: no batch was delivered yet", *report_of()[1:]]
    lines = report_of(*[(0, 0, 10)] * 5)
    assert lines[0] == "no stall: steps waited 0% of the time for data"
    assert "  delivered  5 batches, 1 epoch" in lines and "  path       watched" in lines
    assert not any("natively" in line or "torch" in line for line in lines)
    assert report_of((0, 90, 10), *[(0, 0, 10)] * 9)[0] == (
        "start-up: most of the wait for data was for the first batch of the epoch, 90.0 ms; "
        "the other steps waited 0% of the time"
    )
    lines = report_of(*[(0, 10, 10)] * 4)
    assert lines[0] == (
        "stalled: steps waited 57% of the time for data; the cause is not visible from outside "
        "of this loader; the loader makes 50.0 batches/s, the step could take 100.0"
    )
    assert "  causes     Python workers 10.00 ms (100%)" in lines
    assert lines[1:3] == [
        "  missed     wait for data 10.0 ms a batch (steady state); target: under 5 ms",
        "  missed     accelerator utilization (AU) 50%: the share of time without a wait for "
        "data; no GPU is in use; target: above 80%",
    ]


def test_torch_loader_with_workers():
    loader = numbers(20, batch_size=4, num_workers=2, persistent_workers=True)
    watched = feedmill.watch(loader)
    assert len(watched) == 5
    wanted = [list(range(i, i + 4)) for i in range(0, 20, 4)]
    assert values(watched) == wanted and values(watched) == wanted
    assert watched._iterator is loader._iterator
    assert watched.stats().steps["epoch"].tolist() == [0] * 5 + [1] * 5
    iterator = iter(watched)
    assert len(iterator) == 5  # the len() of torch's iterator
    assert "  path       watched" in watched.report().splitlines()
    stats = watched.stats()
    process = stats.process
    assert 0 < process.cpu_ns and 0 < process.elapsed_ns and process.usable_cpus >= 1


def test_attributes_are_delegated():
    loader = numbers(8, batch_size=2)
    watched = feedmill.watch(loader)
    assert watched.dataset is loader.dataset and watched.batch_size == 2
    assert watched.sampler is loader.sampler
    watched.tag = 5
    assert loader.tag == 5 and "tag" in dir(watched)
    del watched.tag
    with pytest.raises(AttributeError, match="'DataLoader' object has no attribute 'tag'"):
        watched.tag
    with pytest.raises(ValueError, match="batch_size attribute should not be set"):
        watched.batch_size = 3
    assert repr(loader) in repr(watched)


def test_special_methods():
    class Loader(list):
        def __call__(self, x):
            return x + 1

        def __enter__(self):
            return self

        def __exit__(self, *error):
            self.clear()

    watched = feedmill.watch(Loader([1, 2]))
    assert watched(4) == 5 and 2 in watched and watched[1] == 2
    assert list(reversed(watched)) == [2, 1]
    with watched as entered:
        assert entered is watched
        assert list(entered) == [1, 2]
    assert len(watched) == 0 and watched.stats().batches == 2


def test_no_item_is_kept_alive():
    class Item:
        pass

    watched = feedmill.watch(Item() for _ in range(3))
    gc.disable()
    try:
        for item in watched:
            gone = weakref.ref(item)
            del item
            assert gone() is None
        loader = numbers()
        gone = weakref.ref(loader)
        watched = feedmill.watch(loader)
        iterator = iter(watched)
        del loader, watched
        assert gone() is None  # only the iterator lives on, as without watch()
        assert len(list(iterator)) == 10
    finally:
        gc.enable()


def test_pickle_and_copy():
    watched = feedmill.watch(numbers(6, batch_size=2))
    values(watched)
    for again in (pickle.loads(pickle.dumps(watched)), copy.deepcopy(watched), copy.copy(watched)):
        assert again.stats().batches == 0
        assert values(again) == [[0, 1], [2, 3], [4, 5]]
        assert again.stats().batches == 3
    assert copy.copy(watched).dataset is watched.dataset is not copy.deepcopy(watched).dataset
    assert watched.stats().batches == 3
    with pytest.raises(NotImplementedError):
        pickle.dumps(iter(watched))  # raises, as for torch's iterators


def test_reading_while_another_thread_counts():
    watched = feedmill.watch(range(3000))
    thread = threading.Thread(target=lambda: list(watched))
    thread.start()
    while thread.is_alive():
        stats = watched.stats()
        assert stats.steps["step"].tolist() == list(range(len(stats.steps)))
    thread.join()
    assert watched.stats().batches == 3000


@pytest.mark.slow
def test_only_the_latest_steps_are_kept():
    counters = StepCounters()
    epoch = counters.begin_epoch()
    for i in range(KEPT_STEPS + 10):
        counters.add_step(epoch, i, i + 1)
    steps = counters.steps()
    assert len(steps) == KEPT_STEPS
    assert (steps["step"][0], steps["step"][-1]) == (10, KEPT_STEPS + 9)
    assert counters.counters()["batches"] == KEPT_STEPS + 10
