"""States of the random generators of torch, Python and NumPy: those of this process, and in the
form that the native code takes."""

from __future__ import annotations

import operator
import random
import struct
from collections.abc import Callable
from typing import Any, NamedTuple

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
_OF_PYTHON = struct.Struct(f"<{_N_WORDS + 1}I")
# Where the generators of Python and NumPy begin in fm_streams.
_PYTHON_AT = _KEPT.size + _GENERATOR_BYTES
_NUMPY_AT = _PYTHON_AT + _GENERATOR_BYTES


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
        _OF_PYTHON.pack(*of_python),
        _stream_of_numpy(states[2]),
        _ARE_KEPT.pack(has_torch_normal != 0, python_normal is not None),
    ))


def _stream_of_numpy(state: Any) -> bytes:
    if state["bit_generator"] != "MT19937":
        return bytes(4 * _N_WORDS) + struct.pack("<I", _N_WORDS)  # nothing may draw from it
    held = state["state"]
    words: bytes = held["key"].astype(np.uint32).tobytes()
    return words + struct.pack("<I", held["pos"])


def with_streams(states: States, streams: bytes, before: bytes | None = None) -> States:
    """States whose generators go on with an fm_streams. What else they hold, such as a normally
    distributed number that NumPy keeps, stays.

    Args:
        states: what they hold otherwise.
        streams: the fm_streams.
        before: streams_of(states), if known. The states of Python's and NumPy's generators that
            are equal in both are then the same objects.
    """
    of_torch = _with_stream_of_torch(states[0], streams)
    of_python, of_numpy = states[1:]
    if before is None or not _is_same_python(before, streams):
        of_python = _with_stream_of_python(of_python, streams)
    if before is None or not _is_same_part(before, streams, _NUMPY_AT):
        of_numpy = _with_stream_of_numpy(of_numpy, streams)
    return of_torch, of_python, of_numpy


def _is_same_part(one: bytes, other: bytes, begin: int) -> bool:
    """Whether the generators that begin at a byte of two fm_streams are equal."""
    end = begin + _GENERATOR_BYTES
    return one[begin:end] == other[begin:end]


def _is_same_python(one: bytes, other: bytes) -> bool:
    def kept(streams: bytes) -> tuple[float, int]:
        return _KEPT.unpack_from(streams)[1], _are_kept(streams)[1]

    return kept(one) == kept(other) and _is_same_part(one, other, _PYTHON_AT)


def _are_kept(streams: bytes) -> tuple[int, int]:
    """Whether torch and Python keep a normally distributed number."""
    return _ARE_KEPT.unpack_from(streams, _NUMPY_AT + _GENERATOR_BYTES)


def _words_at(streams: bytes, begin: int) -> Any:
    """A generator's words, and which one is next."""
    return np.frombuffer(streams, np.uint32, _N_WORDS + 1, begin)


def _with_stream_of_torch(state: Any, streams: bytes) -> Any:
    of_torch = _words_at(streams, _KEPT.size)
    raw = bytearray(state.numpy().tobytes())
    seed, _, is_seeded, first = _HEADER.unpack_from(raw)
    following = int(of_torch[_N_WORDS])
    torch_words = of_torch[:_N_WORDS].astype(np.uint64).tobytes()
    # Between being seeded and its first number, torch's generator has 0 as its next word, though it
    # is to make new words first. Kept, so that states of generators that drew nothing are equal.
    is_new = first == 0 and torch_words == raw[_HEADER.size : _AFTER_WORDS]
    _HEADER.pack_into(raw, 0, seed, _N_WORDS + 1 - following, is_seeded, 0 if is_new else following)
    raw[_HEADER.size : _AFTER_WORDS] = torch_words
    x, _, rho, _ = _NORMALS.unpack_from(raw, _AFTER_WORDS)
    normal = _KEPT.unpack_from(streams)[0]
    _NORMALS.pack_into(raw, _AFTER_WORDS, x, normal, rho, _are_kept(streams)[0])
    return torch.frombuffer(raw, dtype=torch.uint8)


def _with_stream_of_python(state: Any, streams: bytes) -> Any:
    normal = _KEPT.unpack_from(streams)[1] if _are_kept(streams)[1] else None
    return state[0], _OF_PYTHON.unpack_from(streams, _PYTHON_AT), normal


def _with_stream_of_numpy(state: Any, streams: bytes) -> Any:
    if state["bit_generator"] != "MT19937":
        return state
    words = _words_at(streams, _NUMPY_AT)
    return {**state, "state": {"key": words[:_N_WORDS].copy(), "pos": int(words[_N_WORDS])}}


def with_python(streams: bytes, state: Any) -> bytes:
    """An fm_streams with another state of Python's generator, random.getstate()."""
    return streams[:_PYTHON_AT] + _OF_PYTHON.pack(*state[1]) + streams[_NUMPY_AT:]


def seeded_states(seed: int) -> States:
    """States that a seed gives."""
    generator = torch.Generator()
    generator.manual_seed(seed)
    numpy_generator = np.random.RandomState(seed % (1 << 32))
    return (
        generator.get_state(), random.Random(seed).getstate(),
        numpy_generator.get_state(legacy=False),
    )


# ---- this process's generators -------------------------------------------------------------------


class _Global(NamedTuple):
    """One of the three global generators: its state, and whether two states are the same."""

    get: Callable[[], Any]
    set: Callable[[Any], None]
    is_same: Callable[[Any, Any], bool]


def set_if_same(before: States, behind: States) -> None:
    """Sets the generators of this process to ``behind``: each that still is as in ``before`` and
    differs there.

    A generator from which another thread has drawn meanwhile stays as it is: its numbers must not
    be drawn again. What is left is the time between comparing a generator's state and setting it,
    some microseconds: what another thread draws then is drawn once more, as no generator has a call
    that does both.
    """
    for generator, one, other in zip(_GLOBAL, before, behind):
        if one is other:
            continue
        if not generator.is_same(one, other) and generator.is_same(generator.get(), one):
            generator.set(other)


def are_same_states(one: States, other: States) -> bool:
    """Whether the generators go on alike."""
    return all(
        generator.is_same(*states) or states[0] is states[1]
        for generator, *states in zip(_GLOBAL, one, other)
    )


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


def global_states(numpy_state: Any = None) -> States:
    """The states of this process's generators.

    Args:
        numpy_state: taken for NumPy's, which is not read then.
    """
    of_torch, of_python, of_numpy = _GLOBAL
    return of_torch.get(), of_python.get(), of_numpy.get() if numpy_state is None else numpy_state


def set_global_states(states: States) -> None:
    """Sets this process's generators."""
    for generator, state in zip(_GLOBAL, states):
        generator.set(state)
