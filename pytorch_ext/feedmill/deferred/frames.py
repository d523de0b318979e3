"""Looks at calling frames: which function asks, and whether it uses what it gets."""

from __future__ import annotations

import dis
import sys
from types import CodeType, FrameType

_SKIPPED = {"CACHE", "NOP", "EXTENDED_ARG", "NOT_TAKEN"}

# Whether the result of the call at (code, offset) is dropped. Code objects are kept alive by this.
_dropped: dict[tuple[CodeType, int], bool] = {}


def caller() -> CodeType:
    """The code of the function that called the caller of this function."""
    return sys._getframe(2).f_code


def drops_result(frame: FrameType) -> bool:
    """Whether a frame that is in a call drops the call's result: its next instruction pops it."""
    key = (frame.f_code, frame.f_lasti)
    known = _dropped.get(key)
    if known is None:
        known = _dropped[key] = _is_popped(*key)
    return known


def _is_popped(code: CodeType, offset: int) -> bool:
    following = (one for one in dis.get_instructions(code) if one.offset > offset)
    after = next((one.opname for one in following if one.opname not in _SKIPPED), "")
    return after == "POP_TOP"
