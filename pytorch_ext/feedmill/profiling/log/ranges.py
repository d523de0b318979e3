"""Shows the waits for batches as ranges in torch.profiler's traces."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from torch.autograd.profiler import record_function

from feedmill._internals import is_profiling

WAIT = "feedmill: wait"

_T = TypeVar("_T")


def waiting(call: Callable[..., _T], *arguments: Any) -> _T:
    """Returns call(*arguments). While torch.profiler is active, the call is a range named WAIT."""
    if not is_profiling():  # saves the microsecond that a range costs
        return call(*arguments)
    with record_function(WAIT):
        return call(*arguments)
