"""A progress bar for commands that take a while."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from typing import Any

_FORMAT = "{l_bar}{bar}| {n_fmt}/{total_fmt} [{elapsed}<{remaining}, {rate_fmt}]"


@contextlib.contextmanager
def progress(total: int | None, unit: str = "img") -> Iterator[Callable[[int], Any]]:
    """Shows a progress bar on stderr, and removes it at the end. Shows nothing without a terminal
    or without tqdm.

    Args:
        total: number of items to process; None if not known.
        unit: name of an item.

    Yields:
        A function to be called with the number of items finished since its last call.
    """
    if sys.stderr.isatty():
        with contextlib.suppress(ImportError):
            from tqdm import tqdm

            form = {"bar_format": _FORMAT} if total is not None else {}
            with tqdm(total=total, unit=unit, leave=False, **form) as bar:
                yield bar.update
            return
    yield lambda n: None
