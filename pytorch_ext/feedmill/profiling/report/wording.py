"""Formats numbers, counts and names for the texts of reports."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from feedmill.profiling.report.stats import Stats
    from feedmill.system.peer_processes import PeerProcess

_COMMAND_CHARACTERS = 50
_MAX_NAMED = 2  # processes


def percent(share: float) -> str:
    """A share as a percentage; below 10% with one decimal."""
    if 0 < share < 0.0005:
        return "under 0.1%"
    return f"{100 * share:.0f}%" if share >= 0.1 or share == 0 else f"{100 * share:.1f}%"


def duration(seconds: float) -> str:
    return f"{seconds:.2f} s" if seconds >= 0.1 else f"{1e3 * seconds:.1f} ms"


def cpus(n: int) -> str:
    return f"{n} CPU{'s' if n > 1 else ''}"


def usable_cpus(n: int) -> str:
    return f"{n} usable CPU{'s' if n > 1 else ''}"


def threads(n: int) -> str:
    return f"{n} thread{'s' if n > 1 else ''}"


def decode_threads(n: int) -> str:
    return f"{n} decode thread{'s' if n > 1 else ''}"


def more_threads(n: int) -> str:
    return f"{n} more thread{'s' if n > 1 else ''}"


def batch_rate(rate: float) -> str:
    return f"{rate:,.1f} batches/s"


def process_names(processes: Sequence[PeerProcess]) -> str:
    """Such as "pid 12 (python train.py) ran 2 decode threads"."""
    texts = [
        f"pid {one.pid} ({_short(one.command)}) ran {decode_threads(one.n_threads)}"
        for one in processes[:_MAX_NAMED]
    ]
    if len(processes) > _MAX_NAMED:
        n_threads = sum(one.n_threads for one in processes[_MAX_NAMED:])
        n_more = len(processes) - _MAX_NAMED
        texts.append(f"{n_more} more feedmill process{'es' if n_more > 1 else ''} ran {n_threads}")
    return ", ".join(texts)


def _short(command: str) -> str:
    """A command line without the program's folder, on one line, truncated."""
    words = command.split()
    text = " ".join([words[0].rpartition("/")[2], *words[1:]]) if words else "?"
    return text if len(text) <= _COMMAND_CHARACTERS else f"{text[:_COMMAND_CHARACTERS]}..."


def fallback_causes(stats: Stats) -> str:
    """Why samples went through Pillow, such as "3 of an unsupported variant, 1 damaged"."""
    decode = stats.decode
    counts = {
        "of an unsupported format": decode.fallback_format,
        "of an unsupported variant": decode.fallback_kind,
        "damaged": decode.fallback_damaged,
        "not readable natively": decode.fallback_read,
        "over a native limit": decode.fallback_limit,
    }
    return ", ".join(f"{count:,} {cause}" for cause, count in counts.items() if count)
