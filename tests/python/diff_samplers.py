"""Samplers for diff_worlds: torch's, and some that record every call in a transcript."""

import itertools
import random

import numpy as np
import torch
from torch.utils.data import (
    BatchSampler,
    DistributedSampler,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)


class _Transcript(list):
    n_runs = 0

    def begin(self):
        self.clear()
        self.n_runs += 1


# The current transcript. It is not an attribute of samplers, as these are pickled and copied.
transcript = _Transcript()


class SamplerError(Exception):
    """Raised by a script's own sampler."""


def _value(item):
    """The item that a script describes: itself, or an object made from (kind, value), if repr()
    would not show it in full."""
    if type(item) is not tuple:
        return item
    kind, value = item
    if kind == "fail":
        raise SamplerError(value)
    makers = {
        "list": lambda: [_value(one) for one in value],
        "tuple": lambda: tuple(_value(one) for one in value),
        "array": lambda: np.array(value, np.int64),
        "int32": lambda: np.int32(value),
        "tensor": lambda: torch.tensor(value, dtype=torch.int64),
        "slice": lambda: slice(0, value),
    }
    return makers[kind]()


class _BarePulls:
    """An iterator that records every next(), also those after its end."""

    def __init__(self, items, draws):
        self._items, self._draws = items, draws

    def __next__(self):
        item = next(self._items, "end")
        transcript.append(("pull", repr(item)))
        if item == "end":
            raise StopIteration
        if self._draws:
            transcript.append(("drawn", torch.rand(1).item(), random.random(), np.random.rand()))
        return _value(item)


class _Pulls(_BarePulls):
    def __iter__(self):
        transcript.append(("sampler's iterator", "iter"))
        return self


def _generated(items, draws):
    """The same as a generator; it also records when it is closed."""
    run = transcript.n_runs
    try:
        yield from _Pulls(items, draws)
    finally:
        if run == transcript.n_runs:  # it may be left over from an earlier script
            transcript.append(("sampler's generator", "closed"))


class Logged:
    """A script's own sampler, which records every call in the transcript.

    Args:
        items: what it yields, see _value().
        style: "iterator"; "generator"; "eager": all items are made before iter() returns; "bare":
            an iterator with only next(); "broken": iter() raises.
        draws: whether each next() draws from the global random generators.
        endless: whether it starts over at its end.
    """

    def __init__(self, items, style="iterator", draws=False, endless=False):
        self.items, self.style, self.draws, self.endless = items, style, draws, endless

    def __iter__(self):
        transcript.append(("sampler", "iter"))
        items = itertools.cycle(self.items) if self.endless else iter(self.items)
        if self.style == "broken":
            raise SamplerError("iter")
        if self.style == "eager":
            return iter(list(_Pulls(iter(self.items), self.draws)))
        kinds = {"generator": _generated, "iterator": _Pulls, "bare": _BarePulls}
        return kinds[self.style](items, self.draws)

    def set_epoch(self, epoch):
        transcript.append(("sampler", "set_epoch", epoch))
        self.epoch = epoch


class LoggedSized(Logged):
    """A Logged with a length, which may be wrong. If it is None, len() raises."""

    def __init__(self, items, length, **options):
        super().__init__(items, **options)
        self.length = length

    def __len__(self):
        transcript.append(("sampler", "len"))
        if self.length is None:
            raise NotImplementedError("no length")
        return self.length


class LoggedBatchSampler(BatchSampler):
    """A subclass of BatchSampler, which torch's iterators treat like any other sampler."""

    def __iter__(self):
        for batch in super().__iter__():
            transcript.append(("batch sampler", repr(batch)))
            yield batch


SAMPLERS = {
    "sequential": lambda dataset, generator: SequentialSampler(dataset),
    "random": lambda dataset, generator, **options: RandomSampler(
        dataset, generator=generator, **options
    ),
    "subset": lambda dataset, generator, indices: SubsetRandomSampler(indices, generator),
    "weighted": lambda dataset, generator, weights, **options: WeightedRandomSampler(
        weights, generator=generator, **options
    ),
    "distributed": lambda dataset, generator, **options: DistributedSampler(dataset, **options),
    "list": lambda dataset, generator, items: [_value(item) for item in items],
    "once": lambda dataset, generator, items: iter([_value(item) for item in items]),
    "logged": lambda dataset, generator, **options: Logged(**options),
    "sized": lambda dataset, generator, **options: LoggedSized(**options),
    "batches": lambda dataset, generator, inner, batch_size, drop_last: BatchSampler(
        make_sampler(inner, dataset, generator), batch_size, drop_last
    ),
    "own_batches": lambda dataset, generator, inner, batch_size, drop_last: LoggedBatchSampler(
        make_sampler(inner, dataset, generator), batch_size, drop_last
    ),
}


def make_sampler(spec, dataset, generator):
    """The sampler of a script; None for None.

    Args:
        spec: (key of SAMPLERS, its options). The option {"own": seed} gives it a generator of its
            own, {"own": "loader"} the loader's; without it there is none.
        dataset: the dataset whose indices it yields.
        generator: the loader's.
    """
    if spec is None:
        return None
    kind, options = spec
    options = dict(options)
    own = options.pop("own", None)
    if own is not None and own != "loader":
        generator = torch.Generator().manual_seed(own)
    if kind not in ("batches", "own_batches") and own is None:
        generator = None
    return SAMPLERS[kind](dataset, generator, **options)
