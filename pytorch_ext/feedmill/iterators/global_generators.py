"""Sets the global generators of torch, random and NumPy for a while, and sets them back."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from feedmill.iterators.generator_states import VirtualWorkers
from feedmill.planner.random_states import (
    States,
    global_states,
    set_global_states,
    set_if_same,
    streams_of,
    with_streams,
)
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
        kept = global_states()
        try:
            set_global_states(states)
            yield held
        finally:
            held.states = global_states()
            set_global_states(kept)


class ProcessGenerators(VirtualWorkers):
    """This process's own generators, for rng="torch" with num_workers=0.

    As in torch, the samples of a batch draw from them when the batch is requested, and what the
    script draws between two batches counts. Files are read ahead, but not decoded.

    Args:
        draws_from_numpy: whether samples may draw from NumPy's generator. If not, its state is that
            of the beginning throughout: to read it takes longer than to read the other two.
    """

    def __init__(self, draws_from_numpy: bool) -> None:
        states = global_states()
        super().__init__([states], calls_collate=False)
        self.waits = True
        self._numpy = None if draws_from_numpy else states[2]
        self._requested = -1  # number of the batch that has the generators
        self._given = b""  # the fm_streams that it began with

    def start(self, handle: Any, start: Callable[[bytes], None]) -> None:
        self._requested = -1
        start(streams_of(self.of_batch(0)))

    def request(self, handle: Any, batch: int) -> None:
        """Lets the batch draw from the generators as they are now, unless it may already."""
        if self._requested != batch:
            with _generators:
                states = global_states(self._numpy)
            self.note(batch, states)
            self._given = streams_of(states)
            handle.give_streams(0, self._given)
            self._requested = batch

    def interrupted(self) -> bool:
        """The batch is then made again, from the generators as they are at the next request."""
        return True

    def note_streams(self, batch: int, streams: bytes) -> None:
        """Sets the generators to what they are behind the batch; see set_if_same()."""
        before = self.of_batch(batch)
        behind = with_streams(before, streams, self._given)
        self.note(batch, behind)
        with _generators:
            set_if_same(before, behind)
