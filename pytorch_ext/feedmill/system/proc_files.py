"""Reads small files of /proc and /sys. No other file of the package opens them."""

from __future__ import annotations

import contextlib
import re


def read_text(path: str, errors: str = "replace") -> str:
    """A file's whole text.

    Args:
        path: of the file.
        errors: what is done with bytes that are not UTF-8, as for open().

    Raises:
        OSError: the file does not exist or can't be read.
        UnicodeDecodeError: it is not UTF-8, and errors is "strict".
    """
    with open(path, encoding="utf-8", errors=errors) as file:
        return file.read()


def text_or_empty(path: str, errors: str = "replace") -> str:
    """Like read_text(), but returns "" instead of raising."""
    with contextlib.suppress(OSError, UnicodeDecodeError):
        return read_text(path, errors)
    return ""


def numbers_by_name(text: str) -> dict[str, int]:
    """The numbers of lines such as "nr_throttled 3" or "MemTotal:  24 kB", by name. Lines without a
    number are left out."""
    pairs = re.findall(r"^(\w+):?\s+(\d+)", text, re.MULTILINE)
    return {name: int(value) for name, value in pairs}


def device_read_bytes() -> int | None:
    """Bytes that the kernel has read from storage for this process; None if not known."""
    return numbers_by_name(text_or_empty("/proc/self/io")).get("read_bytes")
