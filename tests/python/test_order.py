"""The order of samples equals torch's for the same seeds, like all else that a script can see."""

import itertools

import feedmill
import helpers
import pytest
import torch
from feedmill.iterators.pulling import Puller
from helpers import native_loader, slow_but_for, take, targets_of
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch.utils.data import (
    DistributedSampler,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)
from torchvision import transforms

N = 40


def torch_loader(**options):
    """torch's DataLoader over the indices themselves, whose batches are the expected targets."""
    return torch.utils.data.DataLoader(range(N), **options)


def torch_order(loader):
    return [batch.tolist() for batch in loader]


def both(numbered, **options):
    return native_loader(numbered, **options), torch_loader(**options)


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("persistent", [False, True])
def test_order_with_workers_in_every_epoch(numbered, shuffle, persistent):
    ours, theirs = both(numbered, batch_size=3, shuffle=shuffle, num_workers=2,
                        persistent_workers=persistent)
    torch.manual_seed(7)
    wanted = [torch_order(theirs) for _ in range(3)]
    after = torch.get_rng_state()
    torch.manual_seed(7)
    assert [targets_of(ours) for _ in range(3)] == wanted
    assert torch.equal(torch.get_rng_state(), after)


def test_order_without_workers(numbered):
    ours, theirs = both(numbered, batch_size=3, shuffle=True)
    torch.manual_seed(7)
    wanted = torch_order(theirs)
    torch.manual_seed(7)
    assert targets_of(ours) == wanted


@pytest.mark.parametrize("num_workers", [0, 2])
def test_order_with_a_generator_in_every_epoch(numbered, num_workers):
    orders = []
    for build in (native_loader, lambda _, **options: torch_loader(**options)):
        generator = torch.Generator().manual_seed(3)
        loader = build(numbered, batch_size=4, shuffle=True, generator=generator,
                       num_workers=num_workers)
        read = targets_of if loader.dataset is numbered else torch_order
        orders.append(([read(loader) for _ in range(3)], generator.get_state().tolist()))
    assert orders[0] == orders[1]


SAMPLERS = {
    "sequential": lambda g: SequentialSampler(range(N)),
    "random": lambda g: RandomSampler(range(N), generator=g),
    "random_part": lambda g: RandomSampler(range(N), num_samples=17, generator=g),
    "random_several": lambda g: RandomSampler(range(N), num_samples=130, generator=g),
    "random_global": lambda g: RandomSampler(range(N)),
    "replacement": lambda g: RandomSampler(range(N), True, 100, generator=g),
    "replacement_global": lambda g: RandomSampler(range(N), True, 100),
    "subset": lambda g: SubsetRandomSampler(range(5, 30), generator=g),
    "weighted": lambda g: WeightedRandomSampler([1.0] * 20 + [5.0] * 20, 60, generator=g),
    "distributed": lambda g: DistributedSampler(range(N), num_replicas=3, rank=1),
    "list": lambda g: [3, 1, 4, 1, 5],
    "iterable": lambda g: tuple(reversed(range(N))),
}


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("batch_size", slow_but_for([7], [1, 7]))
@pytest.mark.parametrize("name", SAMPLERS)
def test_samplers_and_generator_states_at_every_step(numbered, name, batch_size, num_workers):
    """After each batch, all random generators have the state that they have with torch."""
    runs = []
    for ours in (True, False):
        torch.manual_seed(1)
        generator = torch.Generator().manual_seed(2)
        options = {"sampler": SAMPLERS[name](generator), "batch_size": batch_size,
                   "num_workers": num_workers}
        loader = native_loader(numbered, **options) if ours else torch_loader(**options)
        seen = []
        for epoch in range(2):
            for batch in loader:
                targets = batch[1] if ours else batch
                states = (torch.get_rng_state(), generator.get_state())
                seen.append((targets.tolist(), [hash(s.numpy().tobytes()) for s in states]))
                if epoch == 0 and len(seen) == 3:
                    break  # compares the state after an early end, too
        seen.append(hash(generator.get_state().numpy().tobytes()))
        runs.append(seen)
    assert runs[0] == runs[1]


class Logged:
    """A custom sampler, which records the calls of its methods."""

    def __init__(self, items):
        self.items, self.log = items, []

    def __iter__(self):
        self.log.append("iter")
        return self._run()

    def _run(self):
        for item in self.items:
            self.log.append(item)
            yield item
        self.log.append("end")

    def __len__(self):
        return len(self.items)


@pytest.mark.parametrize("batched", [False, True])
@pytest.mark.parametrize("num_workers", [0, 1, 2])
def test_a_custom_sampler_is_called_as_torch_calls_it(numbered, num_workers, batched):
    runs = []
    for ours in (True, False):
        items = [[1, 2], [3], [4, 5, 6], [7, 8], [9]] * 2 if batched else list(range(23))
        sampler = Logged(items)
        options = {"num_workers": num_workers}
        options |= {"batch_sampler": sampler} if batched else {"sampler": sampler, "batch_size": 2}
        loader = native_loader(numbered, **options) if ours else torch_loader(**options)
        iterator = iter(loader)
        sampler.log.append("iterated")
        for batch in iterator:
            sampler.log.append((batch[1] if ours else batch).tolist())
        runs.append(sampler.log)
    assert runs[0] == runs[1]


class Unasked(Logged):
    """A custom sampler whose len() must not be called."""

    def __len__(self):
        raise NotImplementedError("no length")


@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_custom_samplers_length_is_not_used(numbered, num_workers):
    loader = native_loader(numbered, batch_size=4, sampler=Unasked(range(6)),
                           num_workers=num_workers)
    assert targets_of(loader) == [[0, 1, 2, 3], [4, 5]]


def test_set_epoch_reaches_the_sampler_once(numbered):
    class Counting(Logged):
        def set_epoch(self, epoch):
            self.log.append(epoch)

    sampler = Counting(range(4))
    native_loader(numbered, sampler=sampler).set_epoch(3)
    assert sampler.log == [3]


# torch's iterator then also raises in its __del__().
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("name, value", [("num_workers", -1), ("prefetch_factor", 0)])
def test_wrong_numbers_that_are_set_after_the_constructor(numbered, name, value):
    texts = []
    for build in (native_loader, torch.utils.data.DataLoader):
        loader = build(numbered, num_workers=1)
        setattr(loader, name, value)
        with pytest.raises(AssertionError) as caught:
            iter(loader)
        texts.append(str(caught.value))
    assert texts[0] == texts[1] or texts[1] == ""  # older versions of torch have no text


class Resuming:
    """An iterator with only next(), which ends or raises where told to, and then continues."""

    def __init__(self, items):
        self.items, self.log = iter(items), []

    def __next__(self):
        item = next(self.items, "end")
        self.log.append(item)
        if item == "end":
            raise StopIteration
        if item == "error":
            raise KeyError(item)
        return [item]


@pytest.mark.parametrize("num_workers", [0, 1, 2])
@pytest.mark.parametrize("items", [[1, 2], [1, "end", 2, "end", 3, 4, 5, 6, 7, 8, "end", 9],
                                   [1, 2, 3, 4, 5, "error", 6, 7, 8, 9, "error", 10, 11]])
@pytest.mark.parametrize("path", ["native", "hybrid"])
def test_a_custom_iterator_is_called_after_its_end(small_images, path, num_workers, items):
    # A lambda that calls an unknown method takes the hybrid path.
    steps = [transforms.Resize((8, 8)), transforms.PILToTensor()]
    transform = helpers.compose(*steps, *([lambda image: image.flip(-1)] if path == "hybrid" else []))
    dataset = helpers.numbered_folder(small_images, transform)
    native = "require" if path == "native" else "hybrid"
    runs = []
    for ours in (True, False):
        pulls = Resuming(items)
        sampler = type("Sampler", (), {"__iter__": lambda self, pulls=pulls: pulls})()
        options = {"batch_sampler": sampler, "num_workers": num_workers}
        if ours:
            loader = feedmill.DataLoader(dataset, native=native, **options)
        else:
            loader = torch_loader(**options)
        iterator = iter(loader)
        assert not ours or loader.stats().path == path
        for _ in range(15):
            try:
                batch = next(iterator)
                pulls.log.append((batch[1] if ours else batch).tolist())
            except (KeyError, StopIteration) as error:
                pulls.log.append(repr(error))
        runs.append(pulls.log)
    assert runs[0] == runs[1]


def test_persistent_workers_keep_their_first_settings(numbered):
    """As in torch, the settings of the first iter() stay, although the loader's attributes change."""
    runs = []
    for ours in (True, False):
        sampler = Logged([[i] for i in range(9)])
        options = {"batch_sampler": sampler, "num_workers": 1, "persistent_workers": True}
        loader = native_loader(numbered, **options) if ours else torch_loader(**options)
        for name, value in [("num_workers", 2), ("prefetch_factor", 4), ("prefetch_factor", None)]:
            iterator = iter(loader)
            sampler.log.append("iterated")
            sampler.log += [(batch[1] if ours else batch).tolist() for batch in iterator]
            setattr(loader, name, value)
        runs.append(sampler.log)
    assert runs[0] == runs[1]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_an_error_of_the_sampler(numbered, num_workers):
    def failing():
        yield from [[1], [2], [3], [4], [5]]
        raise KeyError("no more")

    runs = []
    for ours in (True, False):
        class Sampler:
            def __iter__(self):
                return failing()

        options = {"batch_sampler": Sampler(), "num_workers": num_workers}
        loader = native_loader(numbered, **options) if ours else torch_loader(**options)
        iterator, seen = iter(loader), []
        for _ in range(9):
            try:
                batch = next(iterator)
                seen.append((batch[1] if ours else batch).tolist())
            except (KeyError, StopIteration) as error:
                seen.append(repr(error))  # not the error itself, see helpers.take()
        runs.append(seen)
    assert runs[0] == runs[1]


@settings(max_examples=40, deadline=None,
          suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    n=st.integers(1, N),
    batch_size=st.integers(1, 50),
    num_workers=st.integers(0, 2),
    drop_last=st.booleans(),
    shuffle=st.booleans(),
)
def test_each_index_once(numbered, n, batch_size, num_workers, drop_last, shuffle):
    samples = numbered.samples
    numbered.samples = samples[:n]
    try:
        loader = native_loader(numbered, batch_size=batch_size, shuffle=shuffle,
                               num_workers=num_workers, drop_last=drop_last)
        got = targets_of(loader)
    finally:
        numbered.samples = samples
    n_full, rest = divmod(n, batch_size)
    wanted_sizes = [batch_size] * n_full + [rest] * (rest > 0 and not drop_last)
    assert [len(batch) for batch in got] == wanted_sizes
    flat = sum(got, [])
    assert len(set(flat)) == len(flat) and set(flat) <= set(range(n))
    if not shuffle:
        assert flat == list(range(len(flat)))


# ---- indices and structure of batches ------------------------------------------------------------


def same_structure(mine, other):
    assert type(mine) is type(other)
    if isinstance(mine, torch.Tensor):
        assert mine.dtype == other.dtype and torch.equal(mine, other)
    elif isinstance(mine, (list, tuple)):
        assert len(mine) == len(other)
        for one, two in zip(mine, other):
            same_structure(one, two)
    elif isinstance(mine, dict):
        assert list(mine) == list(other)
        for key in mine:
            same_structure(mine[key], other[key])
    else:
        assert mine == other


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("batch_size", [None, 1, 6])
@pytest.mark.parametrize(
    "target", [int, float, str, lambda i: (i, str(i)), lambda i: {"a": i, "b": [i, 2.0]},
               lambda i: torch.tensor([i, i]), lambda i: i % 2 == 0]
)
def test_targets_of_any_type(numbered, target, batch_size, num_workers):
    numbered.samples = [(path, target(i)) for path, i in numbered.samples]
    ours = native_loader(numbered, batch_size=batch_size, num_workers=num_workers)
    theirs = torch.utils.data.DataLoader(numbered, batch_size=batch_size)
    for mine, other in zip(ours, theirs):
        same_structure(mine, other)


def test_targets_that_do_not_collate(numbered):
    numbered.samples = [(path, [0] * i) for path, i in numbered.samples]
    for num_workers in (0, 2):
        runs = []
        for kind in (native_loader, torch.utils.data.DataLoader):
            iterator = iter(kind(numbered, batch_size=20, num_workers=num_workers))
            runs.append(take(iterator))
        assert runs[0] == runs[1]
        assert runs[0][0] is RuntimeError


def test_batch_sampler_with_large_and_varying_batches(numbered):
    batches = [[0], list(range(30)), [5, 6], list(range(40)) * 3, [1, 1, 1], [39]]
    for num_workers in (0, 1):
        loader = native_loader(numbered, batch_sampler=batches, num_workers=num_workers)
        for _ in range(2):
            got = list(loader)
            assert [targets.tolist() for _, targets in got] == batches
            assert [len(images) for images, _ in got] == [len(batch) for batch in batches]
            for images, targets in got:
                wanted = torch.stack([numbered[i][0] for i in targets])
                assert torch.equal(images, wanted)


@pytest.mark.parametrize("kind", [int, torch.tensor, lambda i: i - N, __import__("numpy").int32])
def test_indices_of_other_types(numbered, kind):
    loader = native_loader(numbered, batch_size=5, sampler=[kind(i) for i in range(20)])
    assert sum(targets_of(loader), []) == list(range(20))


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("bad", [40, -41, "x", 2.5, None, slice(0, 2)])
def test_indices_that_the_dataset_refuses(numbered, bad, num_workers):
    batches = [[0, 1], [2, bad, 3], [4], [bad]]
    runs = []
    for kind in (native_loader, torch.utils.data.DataLoader):
        iterator = iter(kind(numbered, batch_sampler=batches, num_workers=num_workers))
        runs.append([take(iterator) for _ in range(5)])
    assert runs[0] == runs[1]


@pytest.mark.parametrize("batches", [[[0], [], [1]], [[0], 5, [1]]])
def test_batches_that_are_not_lists_of_indices(numbered, batches):
    for num_workers in (0, 1):
        runs = []
        for kind in (native_loader, torch.utils.data.DataLoader):
            iterator = iter(kind(numbered, batch_sampler=batches, num_workers=num_workers))
            runs.append([take(iterator) for _ in range(4)])
        assert runs[0] == runs[1]
        assert runs[0][0] == [0] and runs[0][2:] == [[1], "end"]


class Interrupt(BaseException):
    """Stands for KeyboardInterrupt."""


@pytest.mark.parametrize("where", ["_batch_of", "note_pulled", "_arrive"])
def test_an_interrupt_loses_no_indices(numbered, monkeypatch, where):
    """The interrupt comes after the sampler's next(), before or after the batch is queued."""
    iterator = iter(native_loader(numbered, batch_size=4, sampler=list(range(N))))
    kind = Puller if where == "note_pulled" else type(iterator)
    original, calls = getattr(kind, where), itertools.count()

    def interrupted(self, *arguments):
        if next(calls) % 2 == 0:
            raise Interrupt
        return original(self, *arguments)

    monkeypatch.setattr(kind, where, interrupted)
    got, n_interrupts = [], 0
    while "end" not in got:
        try:
            got.append(take(iterator))
        except Interrupt:
            n_interrupts += 1
    assert n_interrupts >= N // 4
    assert got == [*(list(range(i, i + 4)) for i in range(0, N, 4)), "end"]
