"""``loader.replay(n)``: repeats ready batches, and computes what a loader costs against that."""

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

# A difference below this share of a step, or below this many standard errors, is noise.
_NOISE_SHARE = 0.01
_NOISE_ERRORS = 2.0


class Replay:
    """Keeps the first n batches of an epoch, and yields them in turn for any number of steps.

    Can be used in place of the loader: len() and all attributes are the loader's, except names that
    begin with an underscore. The batches are loaded at the first iter(), by a copy of the loader,
    so that the loader's counters, epoch number and running iterators do not change. That draws
    random numbers as any epoch does, and advances an IterableDataset.

    Each step yields the batch in new lists, dicts and tuples, with shallow copies of other objects
    that have attributes, so that a script may change them. The tensors are the same ones each time:
    changes in place persist. Tensors stay where the loader puts them (in pinned memory with
    pin_memory=True), so that copying them to a GPU is part of the step.

    If the epoch has fewer than n batches, all are kept. Steps are counted separately from the
    loader's.

    Args:
        loader: a feedmill.DataLoader.
        n: number of batches to keep, from 1.
        steps: steps per iteration, from 1. Default None: len() of the loader, at each iter().

    Raises:
        ValueError: n or steps is out of range.
        TypeError: at iter() and len(), if steps is None and the loader has no length.
        RuntimeError: at iter(), if the loader yields no batch.

    An error of the loader is raised at iter(); no batches are kept then.
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
                f"the loader yielded no batch to replay for {n_steps} steps"
            )
        return _replayed(self._batches or [], n_steps, self._loader._feedmill.replay_counters)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return getattr(self._loader, name)


def _first_batches(loader: Any, n: int) -> list[Any]:
    copied = copy.copy(loader)
    copied._iterator = None  # do not share the iterator of persistent workers
    return list(itertools.islice(copied, n))


def _replayed(batches: list[Any], n_steps: int, counters: Any) -> Iterator[Any]:
    epoch = counters.begin_epoch()
    for number in range(n_steps):
        request_ns = time.monotonic_ns()
        batch = _fresh(batches[number % len(batches)])
        counters.add_step(epoch, request_ns, time.monotonic_ns())
        yield batch


def _fresh(value: Any) -> Any:
    """Copies a batch, except its tensors."""
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
    """Mean times of a loop's steps in milliseconds, without the first step of each epoch.

    Attributes:
        n: number of steps.
        wait: mean time inside next().
        compute: mean time between a return of next() and the following call.
        wait_error, compute_error: standard errors of the means.
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
    """Summarizes step records; None if there are fewer than two steps. The last step of a loop
    counts only if its compute time is known."""
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
    """Lines of report(): what the loader costs, compared with a replay of ready batches.

    Args:
        steps: step records (records.STEP_DTYPE) of the loader.
        replayed: step records of its replay(). If there are none, no lines are returned.
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
        f"the loader costs {_ms(total)} of a step's {_ms(loop.step)} "
        f"({100 * total / loop.step:.0f}%): {', and '.join(reasons)}"
    )


def _noise(step: float, *errors: float) -> float:
    return max(_NOISE_SHARE * step, _NOISE_ERRORS * math.hypot(*errors))


def _parts(loop: _Loop) -> str:
    return f"{loop.wait:.2f} waiting, {loop.compute:.2f} computing"


def _ms(value: float) -> str:
    return f"{value:.2f} ms"
