"""The option ``cache``: encoded files in memory, for the life of a DataLoader, and objects of
stores in a folder of a local disk."""

from __future__ import annotations

import os
import re
from typing import Any, NamedTuple

from feedmill._ops import native

_UNITS = {"B": 1, **{f"{letter}{binary}B": (1024 if binary else 1000) ** (power + 1)
                     for power, letter in enumerate("KMGT") for binary in ("", "i")}}
_SIZE = rf"[0-9]+(?:\.[0-9]+)? ?(?:{'|'.join(_UNITS)})"
_RAM = re.compile(rf"ram:({_SIZE})")
_DISK = re.compile(rf"disk:(/.*?):({_SIZE})((?::(?:lru|first-come|check))*)")
FORM = ("None or a text such as 'ram:8GiB', 'disk:/path:200GiB', with :lru or :first-come and "
        ":check behind it, or 'ram:8GiB+disk:/path:200GiB'; the units are " + ", ".join(_UNITS))


class Disk(NamedTuple):
    """A cache on disk, as the arguments of ``_native.DiskCache``.

    Attributes:
        lru: what was used longest ago makes room; False: nothing more is stored.
        check: servers are asked whether objects have changed.
    """

    path: str
    limit_bytes: int
    lru: bool = False
    check: bool = False


class Caches(NamedTuple):
    """What a value of ``cache`` asks for; each may be None."""

    ram_bytes: int | None
    disk: Disk | None


def parse(cache: Any) -> Caches | None:
    """Parses a value of ``cache`` other than None; None: it is invalid."""
    if type(cache) is not str:
        return None
    ram, plus, disk = cache.partition("+") if cache.startswith("ram:") else ("", "+", cache)
    ram_bytes = budget_bytes(ram) if ram else None
    found = _disk(disk) if plus else None
    if (ram and not ram_bytes) or (plus and not found):
        return None
    return Caches(ram_bytes, found)


def budget_bytes(cache: Any) -> int | None:
    """Parses "ram:SIZE" into bytes, at least 1; None: the value is invalid."""
    found = _RAM.fullmatch(cache) if type(cache) is str else None
    return None if found is None else _bytes(found[1])


def _disk(text: str) -> Disk | None:
    found = _DISK.fullmatch(text)
    if found is None:
        return None
    options = found[3].split(":")[1:]
    limit_bytes = _bytes(found[2])
    is_ambiguous = len(set(options)) < len(options) or {"lru", "first-come"} <= set(options)
    if limit_bytes is None or is_ambiguous or "\0" in found[1] or "+ram:" in text:
        return None
    return Disk(found[1], limit_bytes, "lru" in options, "check" in options)


def _bytes(size: str) -> int | None:
    number = size.rstrip("KMGTiB ")
    n_bytes = int(float(number) * _UNITS[size[len(number):].strip()])
    return n_bytes if 0 < n_bytes < 1 << 63 else None


class KeptCache:
    """The caches of one DataLoader. Each is made at its first use, and again after a fork (a child
    can't use its parent's) or when the option has changed."""

    def __init__(self) -> None:
        self._key: tuple[Any, int] | None = None
        self._ram: Any = None
        self._disk: Any = None

    def of(self, cache: str | None) -> Any:
        """The ``_native.Cache`` for a value of the option; None if it has none.

        Raises:
            ValueError: the size exceeds the memory that the process may use.
        """
        wanted = self._wanted(cache)
        if wanted.ram_bytes is not None and self._ram is None:
            self._ram = native.Cache(wanted.ram_bytes)
        return self._ram

    def disk_of(self, cache: str | None) -> Any:
        """The ``_native.DiskCache`` for a value of the option; None if it has none.

        Raises:
            ValueError: the path is none of a cache.
            OSError: the folder can't be used.
        """
        wanted = self._wanted(cache)
        if wanted.disk is not None and self._disk is None:
            self._disk = native.DiskCache(*wanted.disk)
        return self._disk

    def _wanted(self, cache: str | None) -> Caches:
        key = (cache, os.getpid())
        if self._key != key:
            self._key, self._ram, self._disk = key, None, None
        return parse(cache) or Caches(None, None)
