"""The thread that receives native batches, and has them collated, ahead of their turn."""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

# A thread that is inside of a collate_fn ends when that returns; nobody waits for it longer.
_STOP_SECONDS = 5.0


class Receiver(Protocol):
    """What is used here of ``receiving.Receiver``."""

    handle: Any
    unsubmitted: deque[Any]

    def submit(self) -> None: ...
    def receive(self, batch: Any) -> None: ...


class Ahead:
    """Receives the batches of one epoch in order, on a thread of its own, and has each finished.

    The thread does not refer to this object, so that the iterator that holds it can be dropped.

    Args:
        make_receiver: called with what is to be called whenever the native loader was woken;
            returns the receiver, all of whose methods are then called by the thread.
        finish: called by the thread with each batch that was received, or has an error. It must
            not raise.
        release: called by the thread when it ends: the native loader is not used any more.
    """

    def __init__(
        self,
        make_receiver: Callable[[Callable[[], None]], Receiver],
        finish: Callable[[Any], None],
        release: Callable[[], None],
    ) -> None:
        inbox: deque[Any] = deque()
        stopped = threading.Event()
        line: deque[Any] = deque()
        n_seen = 0

        def on_wake() -> None:
            nonlocal n_seen
            if stopped.is_set():
                raise _StoppedError
            while inbox:
                batch = inbox.popleft()
                if batch.number < n_seen:
                    continue  # put in again, after an interrupt
                n_seen = batch.number + 1
                line.append(batch)
                receiver.unsubmitted.append(batch)
            receiver.submit()

        receiver = make_receiver(on_wake)
        self._inbox = inbox
        self._stopped = stopped
        self._handle = receiver.handle
        self._thread = threading.Thread(
            target=_run, args=(receiver, line, on_wake, finish, release), name="feedmill-collate",
            daemon=True,
        )
        self._thread.start()

    def put(self, batch: Any) -> None:
        """Appends a batch whose samples are known; one that was put in before is ignored. Any
        thread; does not wait."""
        self._inbox.append(batch)
        self._handle.wake()

    @property
    def is_alive(self) -> bool:
        """Whether batches that were put in can still be finished."""
        return self._thread.is_alive()

    def stop(self) -> bool:
        """Ends the thread; batches that are not finished are dropped. May be called again, and by
        the garbage collector on any thread, also on that one. False: it is still inside of a
        collate_fn, and ends behind that."""
        self._stopped.set()
        with contextlib.suppress(ValueError):  # the native loader is closed already
            self._handle.wake()
        if threading.current_thread() is not self._thread:
            self._thread.join(_STOP_SECONDS)
        return not self._thread.is_alive()


class _StoppedError(Exception):
    """Ends the thread, from wherever it waits."""


def _run(
    receiver: Receiver,
    line: deque[Any],
    on_wake: Callable[[], None],
    finish: Callable[[Any], None],
    release: Callable[[], None],
) -> None:
    try:
        while True:
            try:
                on_wake()
                if not line:
                    receiver.handle.next_ahead()  # nothing is submitted: returns when woken
                    continue
                receiver.receive(line[0])
            except _StoppedError:
                raise
            except Exception as error:  # the native loader's own, such as a lack of memory
                if not line:
                    raise
                line[0].error = error.with_traceback(None)
            finish(line.popleft())
    except _StoppedError:
        pass
    finally:
        release()
