"""Measures the waits of torch's own iterators.

Their behaviour stays the same, but for one thing: after an error in a worker, their workers end as
soon as nothing refers to the iterator any longer (_break_cycle).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol

from feedmill._internals import (
    BaseDataLoaderIter,
    ExceptionWrapper,
    MultiProcessingIter,
    SingleProcessIter,
    n_delivered,
)
from feedmill.profiling.counting.accounts import StepCounters
from feedmill.profiling.log.ranges import waiting
from feedmill.profiling.log.recorder import Recorder

_RERAISE_CODE = getattr(getattr(ExceptionWrapper, "reraise", None), "__code__", None)


class TorchCounters(StepCounters):
    """The account of a feedmill.DataLoader's epochs on torch's path.

    Args:
        images: has the counters of deferred images. Default None: nobody counts them.
    """

    def __init__(self, images: Any = None) -> None:
        super().__init__()
        self._images = images

    def counters(self) -> dict[str, Any]:
        counted = super().counters()
        of_images = self._images.counters() if self._images is not None else {}
        return {
            **counted,
            **of_images,
            "torch_batches": counted["batches"],
            "torch_wait_ns": counted["data_wait_ns"],
            "torch_wall_ns": counted["wall_ns"],
        }


class Delivery(Protocol):
    """Moves an iterator's batches to a device. check() is called before each request, and raises if
    batches can't be moved now."""

    device: Any

    def check(self) -> None: ...
    def move(self, data: Any) -> Any: ...


class Progress(Protocol):
    """Knows how far an epoch has come; see planner.progress."""

    order: Any

    def begins_in(self, iterator: Any) -> AbstractContextManager[None]: ...
    def delivered_all_before(self, n: int) -> None: ...
    def ended(self) -> None: ...


def _break_cycle(error: BaseException) -> None:
    """Clears the frame of torch's ExceptionWrapper.reraise() in an error's traceback.

    The frame has the exception in a local variable, and the exception's traceback refers to the
    frame and to the iterator. This reference cycle would keep the iterator and its workers until
    the garbage collector runs. The collector closes the queues first, so that the workers are not
    told to end, and torch waits 5 s for each of them.
    """
    traceback = error.__traceback__
    while traceback is not None:
        if traceback.tb_frame.f_code is _RERAISE_CODE:
            traceback.tb_frame.clear()
        traceback = traceback.tb_next


class _Counted:
    _counters: StepCounters
    _counted_epoch: int
    _recorder: Recorder | None
    _on_reset: Callable[[Any], bool] | None
    _delivery: Delivery | None
    _progress: Progress | None = None

    def __next__(self) -> Any:
        request_ns = time.monotonic_ns()
        gpu, delivery = self._counters.gpu, self._delivery
        if delivery is not None:
            delivery.check()
        mark = gpu.request(request_ns, delivery and delivery.device)
        try:
            data = waiting(super().__next__)  # type: ignore[misc]
        except StopIteration:
            self._counters.end_epoch(request_ns)
            if self._recorder is not None:
                self._recorder.end_epoch()
            if self._progress is not None:
                self._progress.ended()
            raise
        except Exception as error:
            self._note_delivered()
            _break_cycle(error)
            raise
        self._note_delivered()
        if delivery is not None:
            gpu.ready(mark)
            data = delivery.move(data)
        return_ns = time.monotonic_ns()
        gpu.returned(mark, return_ns)
        self._counters.add_step(self._counted_epoch, request_ns, return_ns)
        if self._recorder is not None:
            self._recorder.tick(return_ns)
        return data

    def _note_delivered(self) -> None:
        """Called when a batch was returned, or an error raised, which may be that of a batch."""
        if self._progress is not None:
            self._progress.delivered_all_before(n_delivered(self))

    def _reset(self, loader: Any, first_iter: bool = False) -> None:
        """Called by torch for the next epoch of persistent workers."""
        if self._on_reset is None or self._on_reset(loader):
            self._counted_epoch = self._counters.begin_epoch()
            noted = nullcontext() if self._progress is None else self._progress.begins_in(self)
            with noted:
                super()._reset(loader, first_iter)  # type: ignore[misc]


class _CountedSingle(_Counted, SingleProcessIter):
    pass


class _CountedMulti(_Counted, MultiProcessingIter):
    pass


_COUNTED: dict[type, type] = {
    SingleProcessIter: _CountedSingle,
    MultiProcessingIter: _CountedMulti,
}


def _counted_kind(kind: type) -> type | None:
    """Returns the measuring subclass of an iterator's class. None if the class already measures, or
    is not derived from torch's."""
    if kind in _COUNTED:
        return _COUNTED[kind]
    is_ours = issubclass(kind, _Counted) or kind.__module__.partition(".")[0] == "feedmill"
    if is_ours or not issubclass(kind, BaseDataLoaderIter):
        return None
    names = {"__module__": kind.__module__, "__qualname__": kind.__qualname__}
    return _COUNTED.setdefault(kind, type(kind.__name__, (_Counted, kind), names))


def is_countable(iterator: Any) -> bool:
    """Whether count_steps() would make this iterator measure its steps."""
    return _counted_kind(type(iterator)) is not None


def count_steps(
    iterator: Any,
    counters: StepCounters,
    on_reset: Callable[[Any], bool] | None = None,
    recorder: Recorder | None = None,
    delivery: Delivery | None = None,
) -> Any:
    """Makes torch's iterator, or one of a derived class, measure its steps, by changing its class.
    Other iterators are left alone.

    Args:
        counters: the account that gets the steps.
        on_reset: called with the loader when persistent workers are about to start another epoch;
            returns False if the loader has taken another iterator. Default None: always start it.
        recorder: writes the steps to a log. Default None: there is no log.
        delivery: moves the batches to a device. Default None: they are not moved.

    Returns:
        The iterator.
    """
    counted = _counted_kind(type(iterator))
    if counted is not None:
        iterator._counters = counters
        iterator._counted_epoch = counters.begin_epoch()
        iterator._on_reset = on_reset
        iterator._recorder = recorder
        iterator._delivery = delivery
        iterator.__class__ = counted
    return iterator
