"""A progress bar for commands that take a while."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from typing import Any

_FORMAT = "{l_bar}{bar}| {n_fmt}/{total_fmt} [{elapsed}<{remaining}, {rate_fmt}]"


@contextlib.contextmanager
def progress(total: int | None, unit: str = "img") -> Iterator[Callable[[int], Any]]:
    """A bar on stderr, where that is a terminal and tqdm is installed; gone at the end.

    Yields a function to be called with the number of things that are done. ``total`` None: how many
    there are is not known.
    """
    if sys.stderr.isatty():
        with contextlib.suppress(ImportError):
            from tqdm import tqdm

            form = {"bar_format": _FORMAT} if total is not None else {}
            with tqdm(total=total, unit=unit, leave=False, **form) as bar:
                yield bar.update
            return
    yield lambda n: None
