"""Counting the waits on torch's own path, whose iterators stay what they are otherwise."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter, _SingleProcessDataLoaderIter

from feedmill.stats import KEPT_STEPS, STEP_DTYPE


class TorchCounters:
    """What can be told from outside of torch's iterators: batches and the waits for them."""

    def __init__(self) -> None:
        self._n_epochs = 0
        self._n_batches = 0
        self._host_wait_ns = 0
        self._wall_ns = 0
        self._last_return_ns = 0  # 0: the epoch's first step is still to come
        self._steps = np.zeros(16, STEP_DTYPE)

    def begin_epoch(self) -> None:
        self._n_epochs += 1
        self._last_return_ns = 0

    def add_step(self, request_ns: int, return_ns: int) -> None:
        wait_ns = return_ns - request_ns
        if self._n_batches == len(self._steps) < KEPT_STEPS:
            self._steps = np.resize(self._steps, 2 * len(self._steps))
        self._steps[self._n_batches % len(self._steps)] = (
            self._n_batches,
            self._n_epochs - 1,
            0,
            request_ns,
            wait_ns,
            wait_ns,
        )
        self._n_batches += 1
        self._host_wait_ns += wait_ns
        self._wall_ns += return_ns - (self._last_return_ns or request_ns)
        self._last_return_ns = return_ns

    def counters(self) -> dict[str, int]:
        return {
            "epochs": self._n_epochs,
            "batches": self._n_batches,
            "host_wait_ns": self._host_wait_ns,
            "data_wait_ns": self._host_wait_ns,
            "wall_ns": self._wall_ns,
            "torch_batches": self._n_batches,
            "torch_wait_ns": self._host_wait_ns,
            "torch_wall_ns": self._wall_ns,
        }

    def steps(self) -> np.ndarray:
        # Read once: another thread may be counting.
        n, steps = self._n_batches, self._steps
        return np.roll(steps, -(n % len(steps))) if n > len(steps) else steps[:n].copy()


class _Counted:
    _counters: TorchCounters

    def __next__(self) -> Any:
        request_ns = time.monotonic_ns()
        data = super().__next__()  # type: ignore[misc]
        self._counters.add_step(request_ns, time.monotonic_ns())
        return data

    def _reset(self, loader: Any, first_iter: bool = False) -> None:
        """Persistent workers: the next epoch, natively if that is possible now."""
        plan = loader._plan_or_reasons()
        if not isinstance(plan, list):
            # DataLoader.__iter__() returns this attribute right after the reset.
            loader._iterator = loader._native_iterator(plan)
            return
        loader._path, loader._reasons = "torch", tuple(plan)
        self._counters.begin_epoch()
        super()._reset(loader, first_iter)  # type: ignore[misc]


class _CountedSingle(_Counted, _SingleProcessDataLoaderIter):
    pass


class _CountedMulti(_Counted, _MultiProcessingDataLoaderIter):
    pass


_COUNTED = {
    _SingleProcessDataLoaderIter: _CountedSingle,
    _MultiProcessingDataLoaderIter: _CountedMulti,
}


def count_steps(iterator: Any, counters: TorchCounters) -> Any:
    """Has torch's iterator count its steps; returns it. Its behaviour stays as it is, but for
    persistent workers, where every iter() decides anew which path to take."""
    counted = _COUNTED.get(type(iterator))
    if counted is not None:
        counters.begin_epoch()
        iterator._counters = counters
        iterator.__class__ = counted
    return iterator
