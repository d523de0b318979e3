"""The virtual workers, whose generators are those that torch's worker processes would have."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from feedmill.planner.drawn_lookups import looking_up_with
from feedmill.planner.random_states import States, streams_of, with_python, with_streams

# States, and the fm_streams with which they go on, if there is one.
State = tuple[States, bytes | None]


def states_of(states: States, streams: bytes | None) -> States:
    return states if streams is None else with_streams(states, streams)


class VirtualWorkers:
    """The generators that torch's worker processes would have, for rng="torch".

    Batch number k of an epoch belongs to worker k modulo their number.

    Args:
        initial: the states with which the workers begin.
        calls_collate: the collate_fn may draw, and is called with the worker's generators; a worker
            draws for its next batch only then.
        base_seed: that of the workers.

    Attributes:
        calls_collate, base_seed: as given.
        waits: a worker draws for a batch only once it was given its generators for it.
        lost: why the epoch can't go on; "": it can.
        unknown: why the states behind the latest batch are not known; "": they are.
        seeded: the states as torch seeds the workers, once they were needed.
        saved: the latest state of each worker that a loader's state_dict() held, and its values.
    """

    def __init__(self, initial: list[States], calls_collate: bool, base_seed: int = 0) -> None:
        # Of each worker, behind the batches that have arrived. Most of these are never needed, and
        # to convert an fm_streams takes longer than to copy it.
        self._now: list[State] = [(states, None) for states in initial]
        # The latest batch whose worker's states were noted, and these states before it: the batch
        # may have been noted and not delivered.
        self._latest: tuple[int, State] = -1, self._now[0]
        self._when_left: list[State] | None = None
        self.calls_collate = self.waits = calls_collate
        self.base_seed = base_seed
        self.lost = self.unknown = ""
        self.seeded: list[States] | None = None
        self.saved: dict[int, tuple[State, dict[str, Any]]] = {}
        # If samples are looked up by random numbers: of each worker the batch that was looked up
        # last, and the states of Python's generator before it and behind it; and those behind the
        # batches whose states were not noted yet.
        self._looked_up: dict[int, tuple[int, Any, Any]] = {}
        self._behind: dict[int, Any] = {}

    def begin_epoch(self) -> None:
        """Called before the first batch of an epoch."""
        self._latest = -1, self._now[0]
        self._when_left = None
        self.forget_lookups()

    def forget_lookups(self) -> None:
        """Called before all batches whose states were not noted are looked up again."""
        self._looked_up.clear()
        self._behind.clear()

    @contextmanager
    def looking_up(self, batch: int) -> Iterator[Any]:
        """While active, the samples of a batch are looked up with the random numbers of its worker.
        Batches come in order; one may come again after an interrupt. Returns the state before."""
        number = batch % len(self._now)
        latest, before, behind = self._looked_up.get(number, (-1, None, None))
        if latest != batch:
            before = self.of_batch(batch)[1] if latest < 0 else behind
        generator = random.Random()
        generator.setstate(before)
        with looking_up_with(generator):
            yield before
        state = generator.getstate()
        self._behind[batch] = state
        self._looked_up[number] = batch, before, state

    def leave(self, n_batches: int) -> None:
        """Called when an epoch was left early, after the delivery of so many batches, before others
        are noted that torch's workers have drawn for."""
        self._when_left = self.before(n_batches)

    def before(self, batch: int) -> list[State]:
        """The states of all workers behind the batches before this one, which were delivered."""
        if self._when_left is not None:
            return self._when_left
        found = list(self._now)
        latest, earlier = self._latest
        if latest >= batch:
            found[latest % len(found)] = earlier
        return found

    def start(self, handle: Any, start: Callable[[bytes], None]) -> None:
        """Starts a native loader's epoch by start(streams of all workers)."""
        streams = [streams_of(states_of(*one)) for one in self._now]
        start(b"".join(streams))
        for number, one in enumerate(streams if self.calls_collate else ()):
            handle.give_streams(number, one)

    def request(self, handle: Any, batch: int) -> None:
        """Called when a batch is requested, which has been submitted. May be called again."""

    def interrupted(self) -> bool:
        """Called when a KeyboardInterrupt or another BaseException ends a request. Returns whether
        the native loader's epoch must be started again."""
        if self.calls_collate:
            self.lost = "the iteration was interrupted"
        return False

    def choose(self, handle: Any, batch: int, is_first_part: bool) -> None:
        """Called before a batch, or a part of it, is submitted."""
        handle.choose_worker(batch % len(self._now), self.waits and is_first_part)

    def of_batch(self, batch: int) -> States:
        """The states of a batch's worker before the batch."""
        return states_of(*self._now[batch % len(self._now)])

    def note(self, batch: int, states: States) -> None:
        """Called with the states of a batch's worker behind the batch."""
        self._note(batch, (states, None))

    def note_streams(self, batch: int, streams: bytes) -> None:
        """As note(), with an fm_streams."""
        self._note(batch, (self._now[batch % len(self._now)][0], streams))

    def _note(self, batch: int, state: State) -> None:
        # A batch is noted again after an interrupt, and after its collate_fn.
        number = batch % len(self._now)
        if self._latest[0] != batch:
            self._latest = batch, self._now[number]
        self._now[number] = state
        for earlier in [one for one in self._behind if one < batch]:
            del self._behind[earlier]

    def native_streams(self, handle: Any, batch: int) -> bytes:
        """The fm_streams of a batch's worker behind the batch's samples, once they are delivered.
        """
        streams: bytes = handle.streams(batch % len(self._now))
        behind = self._behind.get(batch)
        return streams if behind is None else with_python(streams, behind)

    def give(self, handle: Any, batch: int) -> None:
        """With ``calls_collate``: lets a batch's worker draw for its next batch."""
        if self.calls_collate:
            handle.give_streams(batch % len(self._now), streams_of(self.of_batch(batch)))
