"""Samples that a pipeline of webdataset leaves out, as a stage's ``handler=`` catches their errors.

Whether an image can be decoded is known only once the native loader has tried to, and by then
samples behind it were taken, and batches made of them. So the samples of the batches in flight are
kept, and these batches are made again without the one that is left out.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any, NamedTuple

Stage = Callable[[Any], Any]
Handler = Callable[[Exception], Any]


class LeftOut(Exception):
    """Raised in the place of the call of a handler that leaves out a sample.

    Args:
        handler: to be called with the error, once the sample is left out.
        error: what the handler's stage has caught.

    Attributes:
        place: of the sample in its batch.
    """

    def __init__(self, handler: Handler, error: Exception) -> None:
        super().__init__(f"{type(error).__name__}: {error}")
        self.handler, self.error = handler, error
        self.place = -1

    def handle(self) -> None:
        self.handler(self.error)


def raises(handler: Handler) -> Handler:
    """A handler that raises LeftOut in the place of calling another one."""

    def raise_left_out(error: Exception) -> Any:
        raise LeftOut(handler, error)

    return raise_left_out


class Checked:
    """In the place of a stage whose handler leaves out samples: runs it for one sample at a time,
    and if that fails, finds out by the pipeline's own stages what fails first, which may be the
    image.

    Args:
        stage: for samples without images, whose handler raises LeftOut.
        own: ``own[picture]`` runs the pipeline's stages from the decoder up to this one, likewise.
        picture_of: of a sample as the stage gets it; None: its images were decoded.
        doubts: tells which images to try by these stages first; None: none.
    """

    def __init__(
        self, stage: Stage, own: Any, picture_of: Callable[[Any], Any], doubts: Any = None
    ) -> None:
        self._stage, self._own, self._picture_of = stage, own, picture_of
        self._doubts = doubts

    def __call__(self, samples: Iterable[Any]) -> Iterator[Any]:
        for sample in samples:
            picture = self._picture_of(sample)
            try:
                if self._doubts is not None:
                    self._doubts.check(self._own, picture)
                made = next(self._stage(iter([sample])))
            except Exception as error:
                self._leave_out(picture, error)
                continue
            yield made

    def _leave_out(self, picture: Any, error: Exception) -> None:
        """Calls the handler of the first stage that fails, or raises the error."""
        try:
            if picture is not None:
                self._own[picture]
            raise error
        except LeftOut as left_out:
            left_out.handle()


# ---- runs that can be repeated -------------------------------------------------------------------

_ROUND_ENDED, _OVER = object(), object()


def with_ends(samples: Iterable[Any]) -> Iterator[Any]:
    """The last stage of a Replayed's pipeline: marks where a run through all stages ends."""
    yield from samples
    yield _ROUND_ENDED


class _Failed(NamedTuple):
    """The pipeline raised an error in the place of its next sample."""

    error: Exception


class Mark(NamedTuple):
    """Where a batch begins.

    Attributes:
        event: number of its first event.
        n: what had been yielded before.
        n_in_round: the same, since the latest run through all stages began.
    """

    event: int
    n: int
    n_in_round: int


class Replayed:
    """The samples of a pipeline, or their lists, from some of which on it can begin again.

    Args:
        events: runs the pipeline, with with_ends(). Lazily, as all of this.
        collect: makes the lists, a streams.Collect; None: yields samples.
        most: yields so many; -1: all.
    """

    def __init__(self, events: Iterator[Any], collect: Any, most: int) -> None:
        self._source = events
        self._collect = collect
        self._most = most
        self._events: list[Any] = []  # kept, from number _first on
        self._first = self._at = self._round_begin = 0
        self._n = self._n_in_round = 0
        self._yielding = self._yield()

    def __iter__(self) -> Replayed:
        return self

    def __next__(self) -> Any:
        return next(self._yielding)

    def mark(self) -> Mark:
        """Where begins what will be yielded next, with the samples that lists leave out before."""
        event = self._at - (0 if self._collect is None else len(self._collect.ahead))
        return Mark(event, self._n, 0 if event == self._round_begin else self._n_in_round)

    def forget(self, mark: Mark) -> None:
        """Called when begin_again() will not be called for what is before a mark."""
        del self._events[: mark.event - self._first]
        self._first = mark.event

    def begin_again(
        self, mark: Mark, is_left_out: Callable[[Any], bool], only_ahead: bool = False
    ) -> None:
        """Goes back to a mark, and leaves out a sample behind it.

        Args:
            is_left_out: which it is.
            only_ahead: take no more than the sample that webdataset makes ahead of a list.
        """
        at = mark.event - self._first
        while self._events[at] is _ROUND_ENDED or not is_left_out(self._events[at]):
            at += 1
        del self._events[at]
        self._at, self._n, self._n_in_round = mark
        self._round_begin = mark.event if mark.n_in_round == 0 else -1
        if self._collect is not None:
            self._collect.forget()
        self._yielding = self._yield()
        if only_ahead:
            with contextlib.suppress(Exception):
                self._collect.ahead += islice(self._round(), 1)

    def _yield(self) -> Iterator[Any]:
        while self._n != self._most:
            found = self._round()
            for one in found if self._collect is None else self._collect(found):
                self._n += 1
                self._n_in_round += 1
                yield one
                if self._n == self._most:
                    return
            if self._n_in_round == 0:  # as a pipeline that is repeated
                return
            self._n_in_round = 0

    def _round(self) -> Iterator[Any]:
        """The samples up to the end of a run through all stages."""
        while (event := self._next_event()) is not _ROUND_ENDED and event is not _OVER:
            yield event
        self._round_begin = self._at

    def _next_event(self) -> Any:
        if self._at == self._first + len(self._events):
            try:
                event = next(self._source, _OVER)
            except Exception as error:
                event = _Failed(error)
            if event is _OVER:
                return event
            self._events.append(event)
        event = self._events[self._at - self._first]
        self._at += 1
        if type(event) is _Failed:
            raise event.error
        return event
