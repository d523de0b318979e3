"""Runs listings at the same time."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any


def parallel(
    work: Callable[[Any, threading.Event], Any],
    items: Sequence[Any],
    waiting: Callable[[], Any],
    n_threads: int,
) -> Iterator[Any]:
    """Results of work(item, stopped) for all items, as they come. Calls ``waiting`` now and then.

    The threads are daemons, so that Ctrl-C does not wait for a server. ``stopped`` is set when
    the results are not wanted any more.
    """
    todo: queue.SimpleQueue[Any] = queue.SimpleQueue()
    done: queue.SimpleQueue[tuple[Any, BaseException | None]] = queue.SimpleQueue()
    stopped = threading.Event()

    def run() -> None:
        while not stopped.is_set():
            try:
                item = todo.get_nowait()
            except queue.Empty:
                return
            try:
                done.put((work(item, stopped), None))
            except BaseException as error:
                done.put((None, error))

    for item in items:
        todo.put(item)
    for number in range(min(n_threads, len(items))):
        threading.Thread(target=run, name=f"fm-listing-{number}", daemon=True).start()
    try:
        n_left = len(items)
        while n_left:
            waiting()
            try:
                result, error = done.get(timeout=0.2)
            except queue.Empty:
                continue
            n_left -= 1
            if error is not None:
                raise error
            yield result
        waiting()
    finally:
        stopped.set()
