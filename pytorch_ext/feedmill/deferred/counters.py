"""Counts what became of images whose decoding was put off, and the time that they took.

Counters go to an account: the current thread's, if counted_in() gave it one, else the process's.
A worker process of a DataLoader counts in memory that it shares with the process that trains.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator, MutableSequence
from contextlib import contextmanager
from typing import Any

from feedmill.system import locks

# What an account counts. Times are nanoseconds.
#   images     files whose decoding was put off
#   ordinary   files that Pillow decoded at once, though decoding was to be put off
#   parts      parts of deferred images that feedmill rendered, and those below
#   whole      images that feedmill decoded as a whole
#   by_pillow  deferred images that Pillow had to decode after all
#   opencv     files that cv2.imread() and cv2.imdecode() got from feedmill's decoder
#   verified   samples that deferred="verify" found equal
#   transformed  images that went through a Compose in one native call
NAMES = (
    "images", "ordinary", "parts", "whole", "by_pillow", "opencv", "verified",
    "transformed", "ordinary_ns", "parts_ns", "whole_ns", "opencv_ns", "transformed_ns",
)
# Methods of Pillow's that made an ordinary image of a deferred one, by their names. The last one
# stands for all others.
ENDINGS = (
    "convert", "resize", "crop", "transpose", "copy", "load", "tobytes", "filter", "point",
    "transform", "rotate", "blend", "composite", "paste", "split", "merge", "histogram", "getbbox",
    "getpixel", "putalpha", "reduce", "save", "other",
)
N_VALUES = len(NAMES) + len(ENDINGS)
_PLACES = {name: place for place, name in enumerate(NAMES)}
_ENDING_PLACES = {name: len(NAMES) + place for place, name in enumerate(ENDINGS)}
# Other functions that ask for pixels, by the method that the script called.
_PUBLIC_NAMES = {"_crop": "crop", "__transformer": "transform", "_save": "save"}


class Counters:
    """An account. Thread-safe.

    Args:
        values: N_VALUES integers that are counted up. Default None: an own list of zeros.
    """

    def __init__(self, values: MutableSequence[int] | None = None) -> None:
        self._values = [0] * N_VALUES if values is None else values
        # A signal handler of the script may use images within the block.
        self._lock = threading.RLock()
        locks.renew_after_fork(self, _lock=threading.RLock)

    def add(self, name: str, n: int = 1) -> None:
        """Adds n to one of NAMES."""
        with self._lock:
            self._values[_PLACES[name]] += n

    def end(self, function: str) -> None:
        """Counts an image that became an ordinary one because this function asked for pixels."""
        name = _PUBLIC_NAMES.get(function, function)
        with self._lock:
            self._values[_ENDING_PLACES.get(name, N_VALUES - 1)] += 1

    def add_all(self, values: Iterable[int]) -> None:
        """Adds the values of another account, in the order of values()."""
        with self._lock:
            for place, value in enumerate(values):
                self._values[place] += value

    def values(self) -> list[int]:
        """The values of NAMES, then of ENDINGS."""
        with self._lock:
            return list(self._values)

    def __getitem__(self, name: str) -> int:
        return self._values[_PLACES[name]]


def as_stats(values: list[int]) -> dict[str, Any]:
    """The counters as Stats has them, by flat names."""
    named = {f"deferred_{name}": value for name, value in zip(NAMES, values, strict=False)}
    endings = dict(zip(ENDINGS, values[len(NAMES):], strict=True))
    often = sorted((name for name in ENDINGS if endings[name]), key=lambda one: -endings[one])
    text = ", ".join(f"{name} {endings[name]:,}" for name in often)
    return named | {"deferred_endings": text}


class _Threads(threading.local):
    account: Counters | None = None


_threads = _Threads()
_of_process = Counters()


def current() -> Counters:
    """The account that counts now."""
    return _threads.account or _of_process


@contextmanager
def counted_in(account: Counters) -> Iterator[None]:
    """Counts the current thread's images in an account."""
    before = _threads.account
    try:
        _threads.account = account
        yield
    finally:
        _threads.account = before


def count_all_in(account: Counters) -> None:
    """Counts the images of all threads of this process in an account, from now on."""
    global _of_process
    _of_process = account


@contextmanager
def timed(name: str) -> Iterator[None]:
    """Adds 1 to one of NAMES, and the time in the block to the one that ends in _ns."""
    began_ns = time.perf_counter_ns()
    try:
        yield
    finally:
        account = current()
        account.add(name)
        account.add(f"{name}_ns", time.perf_counter_ns() - began_ns)
