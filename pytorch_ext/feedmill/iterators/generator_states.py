"""States of torch's and Python's random generators, in the form that the native code takes, and the
virtual workers whose generators they are."""

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
# word is next (ATen's CPUGeneratorImplStateLegacy). The words follow, as uint64.
_HEADER = struct.Struct("<QiiQ")
_STREAM_BYTES = 4 * (_N_WORDS + 1)


def stream_of_torch(state: Any) -> bytes:
    """torch's state as an fm_mt19937 (feedmill/streams.h)."""
    raw = state.numpy().tobytes()
    _, left, _, following = _HEADER.unpack_from(raw)
    words = np.frombuffer(raw, np.uint64, _N_WORDS, _HEADER.size).astype(np.uint32)
    return words.tobytes() + struct.pack("<I", _N_WORDS if left == 1 else following)


def stream_of_python(state: Any) -> bytes:
    """The state of Python's ``random`` as an fm_mt19937."""
    return np.array(state[1], np.uint32).tobytes()


def streams_of(states: States) -> bytes:
    """States as an fm_streams."""
    return stream_of_torch(states[0]) + stream_of_python(states[1])


def with_streams(states: States, streams: bytes) -> States:
    """States whose generators go on with an fm_streams. What else they hold, such as a second
    normally distributed number that was made with the first one, stays."""
    words = np.frombuffer(streams, np.uint32)
    of_torch, of_python = words[: _N_WORDS + 1], words[_N_WORDS + 1 :]
    raw = bytearray(states[0].numpy().tobytes())
    seed, _, is_seeded, first = _HEADER.unpack_from(raw)
    following = int(of_torch[_N_WORDS])
    end = _HEADER.size + 8 * _N_WORDS
    torch_words = of_torch[:_N_WORDS].astype(np.uint64).tobytes()
    # Between being seeded and its first number, torch's generator has 0 as its next word, though it
    # is to make new words first. Kept, so that states of generators that drew nothing are equal.
    is_new = first == 0 and torch_words == raw[_HEADER.size : end]
    _HEADER.pack_into(raw, 0, seed, _N_WORDS + 1 - following, is_seeded, 0 if is_new else following)
    raw[_HEADER.size : end] = torch_words
    version, _, second = states[1]
    return (
        torch.frombuffer(raw, dtype=torch.uint8).clone(),
        (version, tuple(of_python.tolist()), second),
        states[2],
    )


class VirtualWorkers:
    """The generators that torch's worker processes would have, for rng="torch".

    Batch number k of an epoch belongs to worker k modulo their number.

    Args:
        initial: the states with which the workers begin.
        calls_collate: the collate_fn may draw, and is called with the worker's generators; a worker
            draws for its next batch only then.

    Attributes:
        calls_collate: as given.
        waits: a worker draws for a batch only once it was given its generators for it.
        lost: why the generators' states are not known any more; "": they are.
    """

    def __init__(self, initial: list[States], calls_collate: bool) -> None:
        # Of each worker, behind the batches that were delivered: states, and the fm_streams with
        # which they go on, if the native code has drawn since. Most of these are never needed, and
        # to convert them takes longer than to copy them.
        self._now: list[tuple[States, bytes | None]] = [(states, None) for states in initial]
        self.calls_collate = self.waits = calls_collate
        self.lost = ""

    def start(self, handle: Any, start: Callable[[bytes], None]) -> None:
        """Starts a native loader's epoch by start(streams of all workers)."""
        streams = [streams_of(self.of_batch(number)) for number in range(len(self._now))]
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
        states, streams = self._now[batch % len(self._now)]
        return states if streams is None else with_streams(states, streams)

    def note(self, batch: int, states: States) -> None:
        """Called with the states of a batch's worker behind the batch."""
        self._now[batch % len(self._now)] = states, None

    def note_streams(self, batch: int, streams: bytes) -> None:
        """As note(), with an fm_streams. NumPy's generator stays as it is."""
        number = batch % len(self._now)
        self._now[number] = self._now[number][0], streams

    def native_streams(self, handle: Any, batch: int) -> bytes:
        """The fm_streams of a batch's worker behind the batch's samples, once they are delivered.
        """
        streams: bytes = handle.streams(batch % len(self._now))
        return streams

    def give(self, handle: Any, batch: int) -> None:
        """With ``calls_collate``: lets a batch's worker draw for its next batch."""
        if self.calls_collate:
            handle.give_streams(batch % len(self._now), streams_of(self.of_batch(batch)))
