"""Ranges for torch.profiler, around the waits for batches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch.autograd.profiler import record_function

WAIT = "feedmill: wait"

_T = TypeVar("_T")
# Whether a profiler is at work in this thread. Without one, a range would cost a microsecond.
_is_profiling: Callable[[], bool] = torch.autograd._profiler_enabled


def waiting(call: Callable[..., _T], *arguments: Any) -> _T:
    """The call's result; in a profile it is a range of its own."""
    if not _is_profiling():
        return call(*arguments)
    with record_function(WAIT):
        return call(*arguments)
