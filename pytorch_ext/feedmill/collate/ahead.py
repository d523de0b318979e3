"""The thread that receives native batches ahead of their turn and has them collated."""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

# How long stop() waits for the thread, which can't end while it is inside a collate_fn.
_STOP_SECONDS = 5.0


class Receiver(Protocol):
    """The part of ``iterators.receive.Receiver`` that is used here."""

    handle: Any
    unsubmitted: deque[Any]

    def submit(self) -> None: ...
    def receive(self, batch: Any) -> None: ...


class Ahead:
    """Receives the batches of one epoch in order and finishes each, on a thread of its own.

    The thread holds no reference to this object, so that dropping the iterator ends it.

    Args:
        make_receiver: called with ``on_wake``, a function to call whenever the native loader was
            woken; returns the receiver. The thread alone then calls the receiver's methods.
        finish: called by the thread with each batch that was received or has failed. It must not
            raise.
        release: called by the thread at its end, to release the native loader.
    """

    def __init__(
        self,
        make_receiver: Callable[[Callable[[], None]], Receiver],
        finish: Callable[[Any], None],
        release: Callable[[], None],
    ) -> None:
        inbox: deque[Any] = deque()
        stopped = threading.Event()
        queue: deque[Any] = deque()
        n_seen = 0

        def on_wake() -> None:
            nonlocal n_seen
            if stopped.is_set():
                raise _StoppedError
            while inbox:
                batch = inbox.popleft()
                if batch.number < n_seen:
                    continue  # put() again after an interrupt
                n_seen = batch.number + 1
                queue.append(batch)
                receiver.unsubmitted.append(batch)
            receiver.submit()

        receiver = make_receiver(on_wake)
        self._inbox = inbox
        self._stopped = stopped
        self._handle = receiver.handle
        self._thread = threading.Thread(
            target=_run, args=(receiver, queue, on_wake, finish, release), name="feedmill-collate",
            daemon=True,
        )
        self._thread.start()

    def put(self, batch: Any) -> None:
        """Appends a batch whose samples were looked up; ignored if it was appended before.
        Thread-safe; does not block."""
        self._inbox.append(batch)
        self._handle.wake()

    @property
    def is_alive(self) -> bool:
        """Whether the thread runs, so that appended batches will be finished."""
        return self._thread.is_alive()

    def stop(self) -> bool:
        """Ends the thread and drops unfinished batches.

        May be called repeatedly, and by the garbage collector on any thread, this one included.

        Returns:
            False if the thread is still inside a collate_fn; it ends when that returns.
        """
        self._stopped.set()
        with contextlib.suppress(ValueError):  # the native loader is closed already
            self._handle.wake()
        if threading.current_thread() is not self._thread:
            self._thread.join(_STOP_SECONDS)
        return not self._thread.is_alive()


class _StoppedError(Exception):
    """Raised on the thread, in any wait, to end it."""


def _run(
    receiver: Receiver,
    queue: deque[Any],
    on_wake: Callable[[], None],
    finish: Callable[[Any], None],
    release: Callable[[], None],
) -> None:
    try:
        while True:
            try:
                on_wake()
                if not queue:
                    receiver.handle.next_ahead()  # the queue is empty: waits for wake()
                    continue
                receiver.receive(queue[0])
            except _StoppedError:
                raise
            except Exception as error:  # of the native loader, such as MemoryError
                if not queue:
                    raise
                queue[0].error = error.with_traceback(None)
            finish(queue.popleft())
    except _StoppedError:
        pass
    finally:
        release()
