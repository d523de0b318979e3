"""feedmill.watch(): measures the waits for any loader."""

from __future__ import annotations

import copy
import functools
import os
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np

from feedmill.deferred import deferred_images
from feedmill.profiling.counting.accounts import StepCounters
from feedmill.profiling.log.ranges import waiting
from feedmill.profiling.log.recorder import Recorder
from feedmill.profiling.report.stats import Stats
from feedmill.profiling.watching.all_ranks import report_on_all_ranks
from feedmill.profiling.watching.report_context import report_context_now
from feedmill.system.callers import caller_location

# Special methods, which Python looks up on the type: the wrapper's type has those that the wrapped
# object has.
_FORWARDED = (
    "__next__", "__len__", "__length_hint__", "__bool__", "__getitem__", "__contains__",
    "__reversed__", "__enter__", "__exit__", "__call__",
)
_OWN = (
    "_feedmill_iterable", "_feedmill_counters", "_feedmill_log", "_feedmill_recorder",
    "_feedmill_epoch", "_feedmill_deferred", "_feedmill_is_begun",
)


def watch(
    iterable: Any, *, log: str | os.PathLike[str] | None = None, deferred: str = "off"
) -> Any:
    """Wraps a loader of any kind, and measures each step's wait.

        loader = feedmill.watch(loader)
        for batch in loader:
            ...
        print(loader.report())

    The wrapper yields the same items, and raises the same exceptions, as the wrapped object. len(),
    indexing, calls and all attributes (reading, setting and deleting) are forwarded to it, except
    for ``stats()``, which returns a feedmill.Stats with path "watched", and ``report()``, which
    returns its report. The wrapper keeps no items. isinstance() sees the wrapper's own type.

    A wait is the time inside next(); time in iter() is not counted. If an iterator is wrapped,
    iter() starts a new epoch, unless nothing was requested since the last one.

    Args:
        iterable: an iterable or iterator: a DataLoader, a DALI or FFCV loader, a generator, a list.
        log: file to which every step is appended, like feedmill.DataLoader's ``log``. Default None:
            the file that FEEDMILL_LOG in the environment names, unless the iterable is a
            feedmill.DataLoader, which writes its own lines there.
        deferred: "off" (default), so that the loader's own speed is measured; or "auto": images
            that the loader opens with Pillow inside of iter() and next() are deferred, see
            feedmill.deferred_images(), and in processes that iter() forks. Those that other threads
            of the loader open are not.

    Raises:
        TypeError: the object is neither iterable nor an iterator.
        ValueError: ``deferred`` is something else.
        OSError: at iter(), if the log can't be written to.

    One thread at a time may iterate; stats() and report() may be called from any thread. A copied
    or unpickled wrapper wraps a copy of the object, and starts counting from zero.
    """
    if deferred not in ("auto", "off"):
        raise ValueError(f"deferred is {deferred!r}; it must be 'auto' or 'off'")
    counters = StepCounters()
    recorder = Recorder(caller_location(), counters, counters.clock)
    recorder.path = "watched"
    recorder.heeds_environment = not hasattr(iterable, "_feedmill")
    return _wrapper(iterable, counters, log, recorder, None, deferred)


class _Watched:
    __slots__ = (*_OWN, "__weakref__")

    _feedmill_iterable: Any
    _feedmill_counters: StepCounters
    _feedmill_log: str | os.PathLike[str] | None
    _feedmill_recorder: Recorder
    _feedmill_epoch: int | None  # an iterator's epoch; None: it starts with the first step
    _feedmill_deferred: str
    _feedmill_is_begun: bool  # iter() of an iterator began an epoch, and next() was not called yet

    def __iter__(self) -> Any:
        with _deferring(self):
            iterator = iter(self._feedmill_iterable)
        if iterator is not self._feedmill_iterable:
            return _wrapper(
                iterator, self._feedmill_counters, self._feedmill_log, self._feedmill_recorder,
                _begin(self), self._feedmill_deferred,
            )
        # In comprehensions, Python 3.13 calls iter() of an iterator again.
        if not self._feedmill_is_begun:
            object.__setattr__(self, "_feedmill_epoch", _begin(self))
            object.__setattr__(self, "_feedmill_is_begun", True)
        return self

    def stats(self) -> Stats:
        """Counters of all iterations since watch() was called."""
        counters = self._feedmill_counters.counters()
        path = "watched" if counters["epochs"] else "none"
        counters |= self._feedmill_counters.clock.counters()
        return Stats.from_flat(
            counters | {"path": path},
            steps=self._feedmill_counters.steps(),
            system=self._feedmill_recorder.system,
        )

    def report(self, *, all_ranks: bool = False, **limits: Any) -> str:
        """stats() as readable text; the first line is the verdict.

        Args:
            all_ranks: as in feedmill.DataLoader.report().
            limits: the targets wait_ms, gpu and cpu; see feedmill.Stats.report().
        """

        def of_this_rank() -> tuple[str, str, np.ndarray]:
            stats, around = self.stats(), report_context_now(self._feedmill_iterable)
            return stats.report(around=around, **limits), stats.path, stats.steps

        return report_on_all_ranks(of_this_rank) if all_ranks else of_this_rank()[0]

    def __getattr__(self, name: str) -> Any:
        if name in _OWN:  # the wrapper is not initialized yet
            raise AttributeError(name)
        return getattr(self._feedmill_iterable, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._feedmill_iterable, name, value)

    def __delattr__(self, name: str) -> None:
        delattr(self._feedmill_iterable, name)

    def __dir__(self) -> list[str]:
        return sorted({*dir(self._feedmill_iterable), "stats", "report"})

    def __repr__(self) -> str:
        return f"feedmill.watch({self._feedmill_iterable!r})"

    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        return _watch_again, (
            self._feedmill_iterable, self._feedmill_log, self._feedmill_deferred
        )

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        copied = copy.deepcopy(self._feedmill_iterable, memo)
        return _watch_again(copied, self._feedmill_log, self._feedmill_deferred)


def _watch_again(iterable: Any, log: Any, deferred: str) -> Any:
    return watch(iterable, log=log, deferred=deferred)


def _deferring(self: _Watched) -> AbstractContextManager[None]:
    return deferred_images() if self._feedmill_deferred == "auto" else nullcontext()


def _begin(self: _Watched) -> int:
    """Starts an epoch; returns its number."""
    self._feedmill_recorder.begin(self._feedmill_log)
    return self._feedmill_counters.begin_epoch()


def _next(self: _Watched) -> Any:
    request_ns = time.monotonic_ns()
    object.__setattr__(self, "_feedmill_is_begun", False)
    gpu = self._feedmill_counters.gpu
    mark = gpu.request(request_ns)
    try:
        with _deferring(self):
            item = waiting(next, self._feedmill_iterable)
    except StopIteration:
        self._feedmill_counters.end_epoch(request_ns)
        self._feedmill_recorder.end_epoch()
        raise
    return_ns = time.monotonic_ns()
    epoch = self._feedmill_epoch
    if epoch is None:
        epoch = _begin(self)
        object.__setattr__(self, "_feedmill_epoch", epoch)
    gpu.returned(mark, return_ns)
    self._feedmill_counters.add_step(epoch, request_ns, return_ns)
    self._feedmill_recorder.tick(return_ns)
    return item


def _enter(self: _Watched) -> Any:
    entered = self._feedmill_iterable.__enter__()
    return self if entered is self._feedmill_iterable else entered


def _forward(name: str) -> Callable[..., Any]:
    def method(self: _Watched, *arguments: Any, **named: Any) -> Any:
        return getattr(self._feedmill_iterable, name)(*arguments, **named)

    return method


_OVERRIDDEN = {"__next__": _next, "__enter__": _enter}


@functools.cache
def _type_for(forwarded: tuple[str, ...]) -> type[_Watched]:
    methods = {name: _OVERRIDDEN.get(name) or _forward(name) for name in forwarded}
    return type("Watched", (_Watched,), {"__slots__": (), "__module__": __name__, **methods})


def _wrapper(
    iterable: Any,
    counters: StepCounters,
    log: str | os.PathLike[str] | None,
    recorder: Recorder,
    epoch: int | None,
    deferred: str,
) -> Any:
    kind = type(iterable)
    if not any(hasattr(kind, name) for name in ("__iter__", "__next__", "__getitem__")):
        raise TypeError(f"feedmill.watch() needs an iterable or iterator, not {kind.__name__!r}")
    watched = object.__new__(_type_for(tuple(name for name in _FORWARDED if hasattr(kind, name))))
    values = (iterable, counters, log, recorder, epoch, deferred, epoch is not None)
    for name, value in zip(_OWN, values, strict=True):
        object.__setattr__(watched, name, value)
    return watched
