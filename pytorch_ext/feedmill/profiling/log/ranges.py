"""Ranges for torch.profiler, around the waits for batches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from torch.autograd.profiler import record_function

from feedmill._internals import is_profiling

WAIT = "feedmill: wait"

_T = TypeVar("_T")


def waiting(call: Callable[..., _T], *arguments: Any) -> _T:
    """The call's result; in a profile it is a range of its own."""
    if not is_profiling():  # a range would cost a microsecond
        return call(*arguments)
    with record_function(WAIT):
        return call(*arguments)
