"""Sets the global generators of torch, random and NumPy for a while, and sets them back."""

from __future__ import annotations

import random
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

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
            self.note(batch, _global_states())
            handle.give_streams(0, streams_of(self.of_batch(batch)))
            self._requested = batch

    def interrupted(self) -> bool:
        """The batch is then made again, from the generators as they are at the next request."""
        return True

    def note_streams(self, batch: int, streams: bytes) -> None:
        """Sets the generators to what they are behind the batch. One from which another thread has
        drawn since the request stays as it is: its numbers must not be drawn again."""
        before, now = self.of_batch(batch), _global_states()
        super().note_streams(batch, streams)
        behind = self.of_batch(batch)
        _set_global_states((
            behind[0] if torch.equal(now[0], before[0]) else now[0],
            behind[1] if now[1] == before[1] else now[1],
            behind[2] if _is_same_numpy(now[2], before[2]) else now[2],
        ))


def _is_same_numpy(one: Any, other: Any) -> bool:
    if one["bit_generator"] != "MT19937" or other["bit_generator"] != "MT19937":
        return False
    mine, theirs = one["state"], other["state"]
    return (
        mine["pos"] == theirs["pos"]
        and one["has_gauss"] == other["has_gauss"]
        and np.array_equal(mine["key"], theirs["key"])
    )


def _global_states() -> States:
    return torch.get_rng_state(), random.getstate(), np.random.get_state(legacy=False)


def _set_global_states(states: States) -> None:
    torch.set_rng_state(states[0])
    random.setstate(states[1])
    # Skipped if the user has set another bit generator, which torch's workers can't seed either.
    if np.random.get_state(legacy=False)["bit_generator"] == states[2]["bit_generator"]:
        np.random.set_state(states[2])
