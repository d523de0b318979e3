"""Looks at calling frames: which function asks, and whether it uses what it gets."""

from __future__ import annotations

import dis
import sys
from types import CodeType, FrameType

_SKIPPED = {"CACHE", "NOP", "EXTENDED_ARG", "NOT_TAKEN", "PRECALL"}

# Whether the result of the call at (code, offset) is dropped. Code objects are kept alive by this.
_dropped: dict[tuple[CodeType, int], bool] = {}


def caller() -> CodeType:
    """The code of the function that called the caller of this function."""
    return sys._getframe(2).f_code


def drops_result(frame: FrameType) -> bool:
    """Whether a frame that is in a call calls a method load(), without arguments, and drops its
    result: its next instruction pops it. A call of another function, as of ``list.extend`` with
    ``map``, may keep what load() returns."""
    key = (frame.f_code, frame.f_lasti)
    known = _dropped.get(key)
    if known is None:
        known = _dropped[key] = _is_popped(*key)
    return known


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
