"""States of the random generators of torch, Python and NumPy, in the form that the native code
takes, and the virtual workers whose generators they are."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

# States of torch's, Python's and NumPy's generators: torch.get_rng_state(), random.getstate(),
# numpy.random.get_state(legacy=False).
States = tuple[Any, Any, Any]

_N_WORDS = 624
# The beginning of torch's state: the seed, how many words are left, whether it is seeded, and which
# word is next (ATen's CPUGeneratorImplStateLegacy). The words follow, as uint64, and then the
# normally distributed number that is kept, as the second of three, and whether there is one.
_HEADER = struct.Struct("<QiiQ")
_NORMALS = struct.Struct("<dddi")
_AFTER_WORDS = _HEADER.size + 8 * _N_WORDS
# fm_streams: numbers that torch and Python keep, the generators, whether there are such numbers.
_GENERATOR_BYTES = 4 * (_N_WORDS + 1)
_KEPT = struct.Struct("<dd")
_ARE_KEPT = struct.Struct("<HH")


def packed_torch(state: Any) -> bytes:
    """torch's state in half of its bytes: its words have 32 bits."""
    raw = state.numpy().tobytes()
    end = _HEADER.size + 8 * _N_WORDS
    words = np.frombuffer(raw, np.uint64, _N_WORDS, _HEADER.size).astype(np.uint32)
    packed: bytes = raw[: _HEADER.size] + words.tobytes() + raw[end:]
    return packed


def unpacked_torch(packed: bytes) -> Any:
    """The state of packed_torch()."""
    end = _HEADER.size + 4 * _N_WORDS
    words = np.frombuffer(packed, np.uint32, _N_WORDS, _HEADER.size).astype(np.uint64)
    raw = packed[: _HEADER.size] + words.tobytes() + packed[end:]
    return torch.frombuffer(bytearray(raw), dtype=torch.uint8)


def streams_of(states: States) -> bytes:
    """States as an fm_streams (feedmill/streams.h)."""
    raw = states[0].numpy().tobytes()
    _, left, _, following = _HEADER.unpack_from(raw)
    of_torch = np.frombuffer(raw, np.uint64, _N_WORDS, _HEADER.size).astype(np.uint32).tobytes()
    _, torch_normal, _, has_torch_normal = _NORMALS.unpack_from(raw, _AFTER_WORDS)
    _, of_python, python_normal = states[1]
    return b"".join((
        _KEPT.pack(torch_normal if has_torch_normal else 0.0, python_normal or 0.0),
        of_torch, struct.pack("<I", _N_WORDS if left == 1 else following),
        np.array(of_python, np.uint32).tobytes(),
        _stream_of_numpy(states[2]),
        _ARE_KEPT.pack(has_torch_normal != 0, python_normal is not None),
    ))


def _stream_of_numpy(state: Any) -> bytes:
    if state["bit_generator"] != "MT19937":
        return bytes(4 * _N_WORDS) + struct.pack("<I", _N_WORDS)  # nothing may draw from it
    held = state["state"]
    words: bytes = held["key"].astype(np.uint32).tobytes()
    return words + struct.pack("<I", held["pos"])


def with_streams(states: States, streams: bytes) -> States:
    """States whose generators go on with an fm_streams. What else they hold, such as a normally
    distributed number that NumPy keeps, stays."""
    torch_normal, python_normal = _KEPT.unpack_from(streams)
    has_torch_normal, has_python_normal = _ARE_KEPT.unpack_from(
        streams, _KEPT.size + 3 * _GENERATOR_BYTES
    )
    words = np.frombuffer(streams, np.uint32, 3 * (_N_WORDS + 1), _KEPT.size)
    of_torch, of_python, of_numpy = words.reshape(3, _N_WORDS + 1)
    raw = bytearray(states[0].numpy().tobytes())
    seed, _, is_seeded, first = _HEADER.unpack_from(raw)
    following = int(of_torch[_N_WORDS])
    torch_words = of_torch[:_N_WORDS].astype(np.uint64).tobytes()
    # Between being seeded and its first number, torch's generator has 0 as its next word, though it
    # is to make new words first. Kept, so that states of generators that drew nothing are equal.
    is_new = first == 0 and torch_words == raw[_HEADER.size : _AFTER_WORDS]
    _HEADER.pack_into(raw, 0, seed, _N_WORDS + 1 - following, is_seeded, 0 if is_new else following)
    raw[_HEADER.size : _AFTER_WORDS] = torch_words
    x, _, rho, _ = _NORMALS.unpack_from(raw, _AFTER_WORDS)
    _NORMALS.pack_into(raw, _AFTER_WORDS, x, torch_normal, rho, has_torch_normal)
    version, _, _ = states[1]
    return (
        torch.frombuffer(raw, dtype=torch.uint8).clone(),
        (version, tuple(of_python.tolist()), python_normal if has_python_normal else None),
        _with_stream_of_numpy(states[2], of_numpy),
    )


def _with_stream_of_numpy(state: Any, words: Any) -> Any:
    if state["bit_generator"] != "MT19937":
        return state
    return {**state, "state": {"key": words[:_N_WORDS].copy(), "pos": int(words[_N_WORDS])}}


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

    def begin_epoch(self) -> None:
        """Called before the first batch of an epoch."""
        self._latest = -1, self._now[0]
        self._when_left = None

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

    def native_streams(self, handle: Any, batch: int) -> bytes:
        """The fm_streams of a batch's worker behind the batch's samples, once they are delivered.
        """
        streams: bytes = handle.streams(batch % len(self._now))
        return streams

    def give(self, handle: Any, batch: int) -> None:
        """With ``calls_collate``: lets a batch's worker draw for its next batch."""
        if self.calls_collate:
            handle.give_streams(batch % len(self._now), streams_of(self.of_batch(batch)))
