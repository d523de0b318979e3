"""Counting the waits of torch's own iterators, which stay what they are otherwise."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter, _SingleProcessDataLoaderIter

from feedmill.counting import StepCounters


class TorchCounters(StepCounters):
    """Counters of the epochs that a feedmill.DataLoader leaves to torch."""

    def counters(self) -> dict[str, Any]:
        counted = super().counters()
        return {
            **counted,
            "torch_batches": counted["batches"],
            "torch_wait_ns": counted["data_wait_ns"],
            "torch_wall_ns": counted["wall_ns"],
        }


class _Counted:
    _counters: StepCounters
    _counted_epoch: int
    _goes_on: Callable[[Any], bool] | None

    def __next__(self) -> Any:
        request_ns = time.monotonic_ns()
        data = super().__next__()  # type: ignore[misc]
        self._counters.add_step(self._counted_epoch, request_ns, time.monotonic_ns())
        return data

    def _reset(self, loader: Any, first_iter: bool = False) -> None:
        """Persistent workers: the next epoch."""
        if self._goes_on is None or self._goes_on(loader):
            self._counted_epoch = self._counters.begin_epoch()
            super()._reset(loader, first_iter)  # type: ignore[misc]


class _CountedSingle(_Counted, _SingleProcessDataLoaderIter):
    pass


class _CountedMulti(_Counted, _MultiProcessingDataLoaderIter):
    pass


_COUNTED = {
    _SingleProcessDataLoaderIter: _CountedSingle,
    _MultiProcessingDataLoaderIter: _CountedMulti,
}


def count_steps(
    iterator: Any, counters: StepCounters, goes_on: Callable[[Any], bool] | None = None
) -> Any:
    """Has torch's iterator count its steps; returns it. Its behaviour stays as it is.

    Args:
        goes_on: called with the loader where persistent workers are to begin another epoch; False:
            the loader has taken another iterator. Default None: they always begin it.
    """
    counted = _COUNTED.get(type(iterator))
    if counted is not None:
        iterator._counters = counters
        iterator._counted_epoch = counters.begin_epoch()
        iterator._goes_on = goes_on
        iterator.__class__ = counted
    return iterator
