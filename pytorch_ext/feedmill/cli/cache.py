"""``feedmill cache DIR`` shows, checks and clears a disk cache, as ``cache="disk:DIR:SIZE"`` makes
it."""

from __future__ import annotations

import argparse
import os
import re
import sys
import time
from typing import Any

from feedmill._ops import native
from feedmill.cli.survey import bytes_text

_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}


def add_cache(commands: Any) -> None:
    """Adds the command to an argparse parser's subparsers."""
    cache = commands.add_parser(
        "cache",
        help="show, check or clear a disk cache",
        description=(
            "Shows what is in a disk cache, the folder of cache=\"disk:DIR:SIZE\": the number of "
            "entries, their bytes, the limit, and how old they are. Also while loaders use it."
        ),
    )
    cache.add_argument("dir", metavar="DIR", help="the cache's folder")
    cache.add_argument("--list", action="store_true", help="print each entry: bytes, age, name")
    cache.add_argument("--verify", action="store_true",
                       help="read all entries, and remove those that are damaged; the exit status "
                            "is 1 if there were any")
    cache.add_argument("--clear", action="store_true", help="remove all entries")
    cache.add_argument("--older-than", type=_seconds, metavar="AGE",
                       help="with --clear: only entries stored, or with :lru last used, longer ago "
                            "than, for example, 90m, 12h, 7d or 2w")
    cache.set_defaults(run=_cache)


def _seconds(text: str) -> float:
    found = re.fullmatch(rf"([0-9]+(?:\.[0-9]+)?)([{''.join(_SECONDS)}])", text)
    if found is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not a time such as 90m, 12h, 7d or 2w")
    return float(found[1]) * _SECONDS[found[2]]


class _Walk:
    """Visits the entries, and counts them."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.n = self.n_removed = self.removed_bytes = self.n_damaged = 0
        self.ages: list[float] = []
        self._arguments = arguments
        self._now = time.time()

    def visit(
        self, name: str, etag: str, offset: int, range_bytes: int, n_bytes: int, file_bytes: int,
        used_s: int, is_damaged: bool,
    ) -> bool:
        """Returns whether the entry is removed."""
        given = self._arguments
        age = max(0.0, self._now - used_s)
        self.n += 1
        self.n_damaged += is_damaged
        self.ages.append(age)
        if given.list:
            part = f" [{offset}:{offset + range_bytes}]" if range_bytes else ""
            shown = "(damaged)" if is_damaged else f"{name}{part}  {etag}".rstrip()
            print(f"{n_bytes:>12,}  {_age_text(age):>6}  {shown}")
        is_old = given.older_than is None or age > given.older_than
        is_removed = (given.clear and is_old) or (given.verify and is_damaged)
        self.n_removed += is_removed
        self.removed_bytes += file_bytes if is_removed else 0
        return is_removed


def _cache(arguments: argparse.Namespace, parser: argparse.ArgumentParser) -> int:
    if arguments.older_than is not None and not arguments.clear:
        parser.error("--older-than is for --clear")
    walk = _Walk(arguments)
    try:
        _, used_bytes, limit_bytes, lru = native.disk_cache_walk(
            os.path.abspath(arguments.dir), arguments.verify, walk.visit)
    except (OSError, ValueError) as error:
        print(f"feedmill cache: {error}", file=sys.stderr)
        return 1
    limit = bytes_text(limit_bytes) if limit_bytes else "not known"
    policy = "what was used longest ago makes room" if lru else "nothing is stored once it is full"
    print(f"{arguments.dir}: {walk.n:,} entries, {bytes_text(used_bytes)} of {limit} ({policy})")
    if walk.ages:
        ages = sorted(walk.ages)
        print(f"  {'last used' if lru else 'stored'} {_age_text(ages[0])} to "
              f"{_age_text(ages[-1])} ago, half of them within {_age_text(ages[len(ages) // 2])}")
    if arguments.verify or walk.n_damaged:
        print(f"  damaged: {walk.n_damaged:,}")
    if walk.n_removed or arguments.clear:
        print(f"  removed: {walk.n_removed:,} entries, {bytes_text(walk.removed_bytes)}")
    return 1 if arguments.verify and walk.n_damaged else 0


def _age_text(seconds: float) -> str:
    """Such as "12 h"."""
    for unit, n in (("d", 2 * 86400), ("h", 2 * 3600), ("m", 120)):
        if seconds >= n:
            return f"{seconds / _SECONDS[unit]:.0f} {'min' if unit == 'm' else unit}"
    return f"{seconds:.0f} s"
