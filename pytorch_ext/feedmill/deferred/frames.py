"""Looks at calling frames: which function asks, and whether it uses what it gets."""

from __future__ import annotations

import dis
import sys
from collections.abc import Iterable
from types import CodeType, FrameType

_SKIPPED = {"CACHE", "NOP", "EXTENDED_ARG", "NOT_TAKEN", "PRECALL"}

# Whether the result of the call at (id of the code, offset) is dropped, and the code, so that no
# other one gets its id.
_dropped: dict[tuple[int, int], tuple[bool, CodeType]] = {}


class Codes(dict[int, CodeType]):
    """Code objects by their ids, which they keep. Python computes the hash of a code object anew at
    each use, from its names and constants."""

    def __init__(self, codes: Iterable[CodeType | None] = ()) -> None:
        super().__init__()
        self.add(*codes)

    def add(self, *codes: CodeType | None) -> None:
        self.update((id(code), code) for code in codes if code is not None)


def caller() -> CodeType:
    """The code of the function that called the caller of this function."""
    return sys._getframe(2).f_code


def drops_result(frame: FrameType) -> bool:
    """Whether a frame that is in a call calls a method load(), without arguments, and drops its
    result: its next instruction pops it. A call of another function, as of ``list.extend`` with
    ``map``, may keep what load() returns."""
    code, offset = frame.f_code, frame.f_lasti
    known = _dropped.get((id(code), offset))
    if known is None:
        known = _dropped[id(code), offset] = _is_popped(code, offset), code
    return known[0]


def _is_popped(code: CodeType, offset: int) -> bool:
    instructions = [one for one in dis.get_instructions(code) if one.opname not in _SKIPPED]
    # The offset may be that of a cache after the instruction.
    at = sum(one.offset <= offset for one in instructions) - 1
    if not 0 < at < len(instructions) - 1 or instructions[at].arg != 0:
        return False
    if instructions[at + 1].opname != "POP_TOP":
        return False
    # An attribute is loaded right before it is called without arguments.
    return bool(instructions[at - 1].argval == "load")
