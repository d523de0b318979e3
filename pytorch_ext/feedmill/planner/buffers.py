"""Encoded images in memory that belongs to others, such as a table of pyarrow."""

from __future__ import annotations

from typing import Any, NamedTuple


class Buffer(NamedTuple):
    """Bytes that nobody changes while ``owner`` exists. The native loader reads them without a
    copy, and keeps the owner.

    Attributes:
        address: of the first byte.
        n_bytes: number of bytes, at least 1.
        owner: has the memory, and the buffer protocol.
        kind: tells a buffer from a Range.
    """

    address: int
    n_bytes: int
    owner: Any
    kind: str = "memory"

    def copied(self) -> bytes:
        return bytes(memoryview(self.owner))
