"""The option ``cache``: encoded files in memory, for the life of a DataLoader."""

from __future__ import annotations

import os
import re
from typing import Any

from feedmill._ops import native

_UNITS = {"B": 1, **{f"{letter}{binary}B": (1024 if binary else 1000) ** (power + 1)
                     for power, letter in enumerate("KMGT") for binary in ("", "i")}}
_CACHE = re.compile(rf"ram:([0-9]+(?:\.[0-9]+)?) ?({'|'.join(_UNITS)})")
FORM = "None or a text such as 'ram:8GiB', with one of " + ", ".join(_UNITS)


def budget_bytes(cache: Any) -> int | None:
    """Parses a value of ``cache`` into bytes, at least 1; None: the value is invalid."""
    found = _CACHE.fullmatch(cache) if type(cache) is str else None
    if found is None:
        return None
    number, unit = found.groups()
    return int(float(number) * _UNITS[unit]) or None


class KeptCache:
    """The cache of one DataLoader. Made at its first use, and again after a fork (a child can't use
    its parent's) or when the option has changed."""

    def __init__(self) -> None:
        self._key: tuple[Any, int] | None = None
        self._cache: Any = None

    def of(self, cache: str | None) -> Any:
        """The ``_native.Cache`` for a value of the option; None if that is None.

        Raises:
            ValueError: the size exceeds the memory that the process may use.
        """
        key = (cache, os.getpid())
        if self._key != key:
            self._cache = native.Cache(budget_bytes(cache) or 0) if cache is not None else None
            self._key = key
        return self._cache
