"""Whether a CUDA graph is being captured, on whichever stream and thread of this process.

While one is, CUDA refuses calls that have nothing to do with it: asking an event fails, and so does
recording one in the default stream, and the capture fails with it. torch tells about the current
stream alone; so torch.cuda.CUDAGraph, which stands behind torch.cuda.graph() and all else that
captures with torch, is made to note here when it begins and when it ends.
"""

from __future__ import annotations

import functools
import sys
import threading
import weakref
from typing import Any

import torch

from feedmill.system.locks import renew_after_fork

# Held while calls are made that no capture may begin within; re-entrant, for signal handlers.
lock = threading.RLock()
_underway: weakref.WeakSet[Any] = weakref.WeakSet()
renew_after_fork(sys.modules[__name__], lock=threading.RLock, _underway=weakref.WeakSet)


def is_capturing(device: Any) -> bool:
    """Whether a device's current stream is being captured. CUDA is in use.

    Args:
        device: a torch.device; None: the current one.
    """
    if device is None or device.index == torch.cuda.current_device():
        return torch.cuda.is_current_stream_capturing()
    with torch.cuda.device(device):
        return torch.cuda.is_current_stream_capturing()


def is_any_capturing(device: Any) -> bool:
    """Whether any stream is being captured: that of a device, or one that a CUDAGraph has begun to
    capture since notice_captures(). CUDA is in use, and the lock held."""
    return bool(_underway) or is_capturing(device)


def notice_captures(graph: type | None = None) -> None:
    """From now on captures are noticed. Costs nothing to call again.

    Args:
        graph: the class that captures. Default None: torch.cuda.CUDAGraph.
    """
    kind: Any = torch.cuda.CUDAGraph if graph is None else graph
    if getattr(kind.capture_begin, "_feedmill_notices", False):
        return
    begin, end = kind.capture_begin, kind.capture_end

    @functools.wraps(begin)
    def capture_begin(self: Any, *args: Any, **kwargs: Any) -> Any:
        with lock:
            _underway.add(self)
        try:
            return begin(self, *args, **kwargs)
        except BaseException:
            _underway.discard(self)
            raise

    @functools.wraps(end)
    def capture_end(self: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return end(self, *args, **kwargs)
        finally:
            _underway.discard(self)  # a capture that failed has ended as well

    capture_begin._feedmill_notices = True  # type: ignore[attr-defined]
    kind.capture_begin, kind.capture_end = capture_begin, capture_end

