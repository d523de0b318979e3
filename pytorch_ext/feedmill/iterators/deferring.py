"""Deferred images (feedmill.deferred) in the datasets of torch's iterators, and batches that reach
this process through reused memory (feedmill.handover).

Worker processes put the decoding of all images off that they open: see worker_loop.py. Without
workers, it is put off while a batch is made, in the thread that makes it, and not between two
batches.
"""

from __future__ import annotations

import functools
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.sharedctypes import RawArray
from typing import Any

from feedmill import _internals, deferred
from feedmill._ops import native
from feedmill.deferred import counters, switch
from feedmill.deferred.counters import N_VALUES, Counters
from feedmill.handover import sending
from feedmill.iterators.verify_deferred import VerifyingFetcher
from feedmill.system.locks import renew_after_fork

# Iterators that are being made, in all threads. While there are any, torch's main function of
# workers is replaced.
_n_making = 0
_lock = threading.Lock()
renew_after_fork(sys.modules[__name__], _lock=threading.Lock)


def why_not() -> str:
    """The reason why images can't be deferred on torch's path; "" if they can, or if the script has
    not imported Pillow or OpenCV yet."""
    if deferred.is_switched_off():
        return deferred.why_not()
    if _internals.worker_loop is None:
        return "feedmill does not know how this torch starts its workers"
    return deferred.why_not() if deferred.is_needed() else ""


def why_sent_by_torch() -> str:
    """The reason why workers send batches as torch's do; "" if they use reused memory."""
    return sending.why_not()


def is_possible() -> bool:
    """Whether feedmill knows how this torch starts its workers, and nobody switched it off."""
    return _internals.worker_loop is not None and not deferred.is_switched_off()


# Putting decoding off for the time of a batch takes about a tenth of a millisecond. After so many
# batches in which no patched function had anything to do, it is done for each _TRIED_EVERY-th only,
# until one has.
_MAX_UNUSED = 4
_TRIED_EVERY = 16


class _Trials:
    """Decides for which batches of a DataLoader without workers decoding is put off, over all of
    its iterators. Not thread-safe: with several threads it may decide for a few more or less."""

    def __init__(self) -> None:
        self._n_unused = 0  # batches in a row for which it was in vain
        self._n_since_tried = 0

    def is_due(self) -> bool:
        """Whether it is put off for the next batch. Called once a batch."""
        if self._n_unused < _MAX_UNUSED:
            return True
        self._n_since_tried = (self._n_since_tried + 1) % _TRIED_EVERY
        return self._n_since_tried == 0

    def note(self, was_used: bool) -> None:
        """Notes whether a batch had a use of it."""
        self._n_unused = 0 if was_used else self._n_unused + 1


class DeferredCounters:
    """The counters of a DataLoader's deferred images, over all of its iterators. Thread-safe."""

    def __init__(self) -> None:
        self.trials = _Trials()
        self.own = Counters()  # without workers, and of iterators that have ended
        self._workers: list[Any] = []

    def for_workers(self, n: int) -> list[Any]:
        """Memory for the counters of n worker processes, which may be passed to them."""
        arrays = [RawArray("q", N_VALUES) for _ in range(n)]
        self._workers += arrays
        return arrays

    def end(self, arrays: list[Any]) -> None:
        """Called when the iterator of these workers has ended."""
        for array in arrays:
            self._workers.remove(array)
            self.own.add_all(array)

    def counters(self) -> dict[str, Any]:
        """The counters by the flat names of Stats."""
        accounts = [self.own.values(), *map(list, list(self._workers))]
        return counters.as_stats([sum(values) for values in zip(*accounts, strict=True)])


def make_deferring(
    make_iterator: Callable[[], Any],
    dataset: Any,
    n_workers: int,
    account: DeferredCounters,
    verifies: bool,
) -> Any:
    """Makes an iterator of torch whose dataset gets deferred images, where that can be, and whose
    workers hand their batches over in reused memory. is_possible() must be true.

    Args:
        make_iterator: makes and returns the iterator, and starts its worker processes. May make
            other iterators meanwhile, as samplers do.
        dataset: the iterator's.
        n_workers: number of these.
        account: counts the images.
        verifies: whether each sample is made a second time without deferred images.

    Raises:
        OSError: there is no memory for the counters.
    """
    if n_workers == 0:
        if deferred.is_needed() and not deferred.why_not():
            from feedmill.deferred import composed

            composed.read_again()
        iterator = make_iterator()
        if isinstance(iterator, _internals.SingleProcessIter):
            fetcher = _internals.fetcher_of(iterator)
            if verifies and type(fetcher) is _internals.MapFetcher:
                fetcher.__class__ = VerifyingFetcher
            trials = None if verifies else account.trials
            _internals.set_fetcher(iterator, _Fetcher(fetcher, account.own, trials))
        return iterator
    from feedmill.iterators.worker_loop import WorkerLoop

    if deferred.is_needed():
        deferred.compare_before_fork()
    arrays = account.for_workers(n_workers)
    try:
        with _workers_run(WorkerLoop(dataset, arrays, verifies)):
            iterator = make_iterator()
    except BaseException:
        account.end(arrays)
        raise
    weakref.finalize(iterator, account.end, arrays).atexit = False
    return iterator


@contextmanager
def _workers_run(loop: Any) -> Iterator[None]:
    """Gives a WorkerLoop to the worker processes that this thread starts. May be nested."""
    from feedmill.iterators.worker_loop import CHOOSER, making

    _count_making(1, CHOOSER)
    making.loops.append(loop)
    try:
        yield
    finally:
        making.loops.remove(loop)
        _count_making(-1, CHOOSER)


def _count_making(n: int, chooser: Any) -> None:
    global _n_making
    with _lock:
        _n_making += n
        # An iterator looks the function up for each worker.
        _internals.set_worker_loop(chooser if _n_making else _internals.worker_loop)


class _Fetcher:
    """Wraps the object of torch that makes batches in this process.

    Args:
        fetcher: the object.
        account: counts the images.
        trials: decides for which batches decoding is put off. None: for all.
    """

    def __init__(self, fetcher: Any, account: Counters, trials: _Trials | None) -> None:
        self._fetcher, self._account, self._trials = fetcher, account, trials

    def fetch(self, index: Any) -> Any:
        """As the wrapped object's."""
        trials = self._trials
        is_due = trials is None or trials.is_due()
        if not is_due or not deferred.is_needed() or deferred.why_not():
            return self._fetcher.fetch(index)
        switch.was_asked()
        data = self._fetch_deferred(index)
        if trials is not None:
            trials.note(switch.was_asked())
        return data

    def _fetch_deferred(self, index: Any) -> Any:
        from feedmill.deferred import patches

        blocks: list[Any] = [patches.deferring(), counters.counted_in(self._account)]

        def enter() -> None:
            for block in blocks:
                block.__enter__()

        def leave() -> None:
            for block in reversed(blocks):
                block.__exit__(None, None, None)

        # An interrupt at any point can't leave the block open.
        return native.call_between(enter, functools.partial(self._fetcher.fetch, index), leave)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._fetcher, name)
