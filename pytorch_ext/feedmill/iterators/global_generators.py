"""Sets the global generators of torch, random and NumPy for a while, and sets them back."""

from __future__ import annotations

import operator
import random
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import torch

from feedmill.iterators.generator_states import States, VirtualWorkers, streams_of
from feedmill.system.locks import renew_after_fork

# Guards the global generators of torch, random and numpy, whose state all threads share.
_generators = threading.RLock()
renew_after_fork(sys.modules[__name__], _generators=threading.RLock)


class Held:
    """States of the global generators."""

    def __init__(self, states: States) -> None:
        self.states = states


@contextmanager
def drawing_from(states: States, held: Held | None = None) -> Iterator[Held]:
    """While active, the global generators have states of their own, which begin with these. One
    thread at a time; other threads that draw meanwhile draw from them, too.

    Returns:
        ``held``, or a new object, which holds the states when this has ended.
    """
    held = Held(states) if held is None else held
    with _generators:
        kept = _global_states()
        try:
            _set_global_states(states)
            yield held
        finally:
            held.states = _global_states()
            _set_global_states(kept)


def seeded_states(seed: int) -> States:
    """States that a seed gives."""
    generator = torch.Generator()
    generator.manual_seed(seed)
    numpy_generator = np.random.RandomState(seed % (1 << 32))
    return (
        generator.get_state(), random.Random(seed).getstate(),
        numpy_generator.get_state(legacy=False),
    )


class _Global(NamedTuple):
    """One of the three global generators: its state, and whether two states are the same."""

    get: Callable[[], Any]
    set: Callable[[Any], None]
    is_same: Callable[[Any, Any], bool]


class ProcessGenerators(VirtualWorkers):
    """This process's own generators, for rng="torch" with num_workers=0.

    As in torch, the samples of a batch draw from them when the batch is requested, and what the
    script draws between two batches counts. Files are read ahead, but not decoded.
    """

    def __init__(self) -> None:
        super().__init__([_global_states()], calls_collate=False)
        self.waits = True
        self._requested = -1  # number of the batch that has the generators

    def start(self, handle: Any, start: Callable[[bytes], None]) -> None:
        self._requested = -1
        start(streams_of(self.of_batch(0)))

    def request(self, handle: Any, batch: int) -> None:
        """Lets the batch draw from the generators as they are now, unless it may already."""
        if self._requested != batch:
            with _generators:
                self.note(batch, _global_states())
            handle.give_streams(0, streams_of(self.of_batch(batch)))
            self._requested = batch

    def interrupted(self) -> bool:
        """The batch is then made again, from the generators as they are at the next request."""
        return True

    def note_streams(self, batch: int, streams: bytes) -> None:
        """Sets the generators to what they are behind the batch.

        A generator from which another thread has drawn since the request stays as it is: its
        numbers must not be drawn again. One from which the batch drew nothing is not set either.
        What is left is the time between comparing a generator's state and setting it, some
        microseconds: what another thread draws then is drawn once more, as no generator has a call
        that does both.
        """
        before = self.of_batch(batch)
        super().note_streams(batch, streams)
        behind = self.of_batch(batch)
        with _generators:
            for generator, *states in zip(_GLOBAL, before, behind):
                _set_if_same(generator, *states)


def _set_if_same(generator: _Global, before: Any, behind: Any) -> None:
    """Sets a generator to a state if it still has the one before it, and they differ."""
    if not generator.is_same(before, behind) and generator.is_same(generator.get(), before):
        generator.set(behind)


def _is_same_numpy(one: Any, other: Any) -> bool:
    if one["bit_generator"] != "MT19937" or other["bit_generator"] != "MT19937":
        return False
    mine, theirs = one["state"], other["state"]
    return (
        mine["pos"] == theirs["pos"]
        and one["has_gauss"] == other["has_gauss"]
        and np.array_equal(mine["key"], theirs["key"])
    )


def _numpy_state() -> Any:
    return np.random.get_state(legacy=False)


def _set_numpy_state(state: Any) -> None:
    # Skipped if the user has set another bit generator, which torch's workers can't seed either.
    if _bit_generator() == state["bit_generator"]:
        np.random.set_state(state)


def _bit_generator() -> str:
    """The name of NumPy's bit generator."""
    get = getattr(np.random, "get_bit_generator", None)  # from NumPy 1.24 on; far faster
    return str(_numpy_state()["bit_generator"]) if get is None else type(get()).__name__


_GLOBAL = (
    _Global(torch.get_rng_state, torch.set_rng_state, torch.equal),
    _Global(random.getstate, random.setstate, operator.eq),
    _Global(_numpy_state, _set_numpy_state, _is_same_numpy),
)


def _global_states() -> States:
    of_torch, of_python, of_numpy = (one.get() for one in _GLOBAL)
    return of_torch, of_python, of_numpy


def _set_global_states(states: States) -> None:
    for generator, state in zip(_GLOBAL, states):
        generator.set(state)
