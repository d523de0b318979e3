"""``loader.replay(n)``: ready batches used over and over, and what a loader costs beside them."""

from __future__ import annotations

import copy
import itertools
import math
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from feedmill.profiling.counting.records import STEADY

# A difference below this share of a step, or of twice its standard error, is noise.
_NOISE_SHARE = 0.01
_NOISE_ERRORS = 2.0


class Replay:
    """The first n batches of an epoch, kept, and yielded in turn for as many steps as asked for.

    len() and all attributes but those that begin with an underscore are the loader's, so that a
    script takes it in the loader's place. The batches come from a copy of the loader, at the first
    iter(): the loader's own counters, its epoch number and its running iterators stay as they are.
    Random numbers are drawn as for any epoch, and an IterableDataset goes on behind them.

    Each step gets the batch in fresh lists, dicts and tuples, and a shallow copy of any other
    object that has attributes, which a script may change. The tensors in it are the same ones
    each time: what is changed in place stays changed. Tensors are where the loader leaves them,
    in pinned memory with pin_memory=True, so that their copy to a GPU is part of the step.

    An epoch with fewer batches is kept whole. The steps are counted apart from the loader's.

    Args:
        loader: a feedmill.DataLoader.
        n: batches to keep, from 1.
        steps: how many an iteration has, from 1. Default None: len() of the loader, at each iter().

    Raises:
        ValueError: n or steps is out of range.
        TypeError: at iter() and len(), where steps is None and the loader has no length.
        RuntimeError: at iter(), where steps are to be made and the loader gives no batch.

    What the loader raises for a batch comes at iter(), too; nothing is kept then.
    """

    def __init__(self, loader: Any, n: int, steps: int | None = None) -> None:
        for name, value in (("n", n), ("steps", 1 if steps is None else steps)):
            if type(value) is not int or value < 1:
                raise ValueError(f"{name} is {value!r}; it must be an int from 1")
        self._loader = loader
        self._n = n
        self._steps = steps
        self._batches: list[Any] | None = None

    def __len__(self) -> int:
        return len(self._loader) if self._steps is None else self._steps

    def __iter__(self) -> Iterator[Any]:
        n_steps = len(self)
        if self._batches is None and n_steps:
            self._batches = _first_batches(self._loader, self._n)
        if n_steps and not self._batches:
            raise RuntimeError(
                f"the loader gave no batch, so that there is none for {n_steps} steps"
            )
        return _replayed(self._batches or [], n_steps, self._loader._feedmill.replay_counters)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return getattr(self._loader, name)


def _first_batches(loader: Any, n: int) -> list[Any]:
    copied = copy.copy(loader)
    copied._iterator = None  # persistent workers' iterator stays the loader's alone
    return list(itertools.islice(copied, n))


def _replayed(batches: list[Any], n_steps: int, counters: Any) -> Iterator[Any]:
    epoch = counters.begin_epoch()
    for number in range(n_steps):
        request_ns = time.monotonic_ns()
        batch = _fresh(batches[number % len(batches)])
        counters.add_step(epoch, request_ns, time.monotonic_ns())
        yield batch


def _fresh(value: Any) -> Any:
    """A batch as a script may change it, around the same tensors."""
    if type(value) is list:
        return [_fresh(one) for one in value]
    if type(value) is dict:
        return {key: _fresh(one) for key, one in value.items()}
    if isinstance(value, tuple):
        parts = map(_fresh, value)
        return type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)
    if isinstance(value, torch.Tensor) or not hasattr(value, "__dict__"):
        return value
    return copy.copy(value)


# ---- what the loader costs -----------------------------------------------------------------------


@dataclass(frozen=True)
class _Loop:
    """Steps of one loop, but for the first one of each epoch: times in milliseconds.

    Attributes:
        n: their number.
        wait, compute: inside of next(), and from there to the following next(): means.
        wait_error, compute_error: standard errors of those.
    """

    n: int
    wait: float
    compute: float
    wait_error: float
    compute_error: float

    @property
    def step(self) -> float:
        return self.wait + self.compute


def _loop_of(steps: np.ndarray) -> _Loop | None:
    """None: there are fewer than two such steps. The last one of a loop counts only where it is
    known how long it took."""
    steady = steps[(steps["phase"] == STEADY) & (steps["compute_ns"] > 0)]
    if len(steady) < 2:
        return None
    waits, computes = steady["host_wait_ns"] / 1e6, steady["compute_ns"] / 1e6
    root = math.sqrt(len(steady))
    return _Loop(
        len(steady),
        float(waits.mean()),
        float(computes.mean()),
        float(waits.std(ddof=1)) / root,
        float(computes.std(ddof=1)) / root,
    )


def costs(steps: np.ndarray, replayed: np.ndarray) -> list[str]:
    """Lines of report(): what the loader costs, against a replay of ready batches.

    Args:
        steps: records.STEP_DTYPE, of the loader.
        replayed: ... of its replay(). None of them: there are no lines.
    """
    alone = _loop_of(replayed)
    if alone is None:
        return []
    with_loader = _loop_of(steps)
    if with_loader is None:
        rows = [("replay", f"{_ms(alone.step)} a step; the loader itself has made too few steps "
                           "to be compared")]
    else:
        rows = [
            ("cost", _sentence(with_loader, alone)),
            ("replay", f"{_ms(alone.step)} a step ({_parts(alone)}), {alone.n:,} steps; with the "
                       f"loader {_ms(with_loader.step)} ({_parts(with_loader)}), "
                       f"{with_loader.n:,} steps"),
        ]
    return [f"  {name:<10} {text}" for name, text in rows]


def _sentence(loop: _Loop, alone: _Loop) -> str:
    wait, compute = loop.wait - alone.wait, loop.compute - alone.compute
    wait_noise = _noise(loop.step, loop.wait_error, alone.wait_error)
    compute_noise = _noise(loop.step, loop.compute_error, alone.compute_error)
    if compute < -compute_noise:
        return (
            f"what the loader costs can't be told: the step itself took {_ms(-compute)} less than "
            "in replay, so the two loops did not do the same work under the same conditions"
        )
    interference = compute if compute > compute_noise else 0.0
    waiting = wait if wait > wait_noise else 0.0
    if not waiting and not interference:
        return (
            "the loader costs nothing that can be told from noise: "
            f"{_ms(loop.step)} a step with it, {_ms(alone.step)} with ready batches"
        )
    reasons = []
    if waiting:
        reasons.append(f"{_ms(waiting)} of waiting for batches")
    if interference:
        reasons.append(
            f"{_ms(interference)} of interference, by which the step itself takes longer while "
            "batches are made on the same cores"
        )
    total = waiting + interference
    return (
        f"the loader costs {_ms(total)} of a step's {_ms(loop.step)} ({100 * total / loop.step:.0f}"
        f" %): {', and '.join(reasons)}"
    )


def _noise(step: float, *errors: float) -> float:
    return max(_NOISE_SHARE * step, _NOISE_ERRORS * math.hypot(*errors))


def _parts(loop: _Loop) -> str:
    return f"{loop.wait:.2f} waiting, {loop.compute:.2f} computing"


def _ms(value: float) -> str:
    return f"{value:.2f} ms"
