"""The main function of torch's worker processes: defers images, and hands batches over cheaply.

A worker that was not forked imports this module before others of feedmill, and so torch before
them. Under ``feedmill run``, importing torch imports feedmill's modules in turn, which must not
find one of them half imported: this module imports them in its functions.
"""

from __future__ import annotations

import inspect
import threading
from typing import Any

import torch  # noqa: F401


class _Making(threading.local):
    """The main functions for the workers of the iterators that this thread is making; those of the
    innermost one are last."""

    def __init__(self) -> None:
        self.loops: list[WorkerLoop] = []


making = _Making()


class _Chooser:
    """In the place of torch's main function of workers, while any thread makes an iterator of ours.
    A process runs what is meant for workers of the thread that started it."""

    def __call__(self, *args: Any, **kwargs: Any) -> None:
        _chosen()(*args, **kwargs)

    def __reduce__(self) -> tuple[Any, ...]:
        return _unchanged, (_chosen(),)


CHOOSER = _Chooser()


def _chosen() -> Any:
    return making.loops[-1] if making.loops else _torchs_loop


def _unchanged(loop: Any) -> Any:
    return loop


def _torchs_loop(*args: Any, **kwargs: Any) -> None:
    from feedmill import _internals

    _internals.set_worker_loop(_internals.worker_loop)  # if this process was forked
    _internals.worker_loop(*args, **kwargs)


class WorkerLoop:
    """The main function of a worker process, in the place of torch's.

    Args:
        dataset: the iterator's. While an iterator is made, its sampler may make others, which get
            torch's main function.
        arrays: memory for each worker's counters.
        verifies: whether each sample is made a second time without deferred images.
    """

    def __init__(self, dataset: Any, arrays: list[Any], verifies: bool) -> None:
        self._dataset, self._arrays, self._verifies = dataset, arrays, verifies

    def __call__(self, *args: Any, **kwargs: Any) -> None:
        from feedmill import _internals

        making.loops.clear()  # if this process was forked
        call = inspect.signature(_internals.worker_loop).bind(*args, **kwargs)
        # A process that is not forked unpickles one dataset for both.
        is_ours = call.arguments["dataset"] is self._dataset
        if is_ours and call.arguments["num_workers"] == len(self._arrays):
            self._run(call)
        else:
            _torchs_loop(*args, **kwargs)

    def _run(self, call: inspect.BoundArguments) -> None:
        from feedmill import _internals, deferred
        from feedmill.deferred import counters
        from feedmill.handover import install_in_worker, placing_queue

        _internals.set_worker_loop(_internals.worker_loop)  # if this process was forked
        counters.count_all_in(counters.Counters(self._arrays[call.arguments["worker_id"]]))
        if self._verifies:
            from feedmill.iterators.verify_deferred import VerifyingFetcher

            _internals.set_map_fetcher(VerifyingFetcher)
        install_in_worker(call.arguments["data_queue"], places_samples=not self._verifies)
        call.arguments["index_queue"] = placing_queue(call.arguments["index_queue"])
        if deferred.is_needed():
            _defer_everywhere()
        else:
            call.arguments["index_queue"] = _IndexQueue(call.arguments["index_queue"])
        _internals.worker_loop(*call.args, **call.kwargs)


def _defer_everywhere() -> None:
    from feedmill import deferred

    if deferred.why_not():
        return
    from feedmill.deferred import patches

    patches.defer_everywhere()


class _IndexQueue:
    """Wraps the queue from which a worker process gets the indices of its batches. Images are
    deferred from the first batch on before which the dataset has imported Pillow."""

    def __init__(self, queue: Any) -> None:
        self._queue = queue
        self._waits = True

    def get(self, *args: Any, **kwargs: Any) -> Any:
        """As the queue's."""
        from feedmill import deferred

        if self._waits and deferred.is_needed():
            self._waits = False
            _defer_everywhere()
        return self._queue.get(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._queue, name)
