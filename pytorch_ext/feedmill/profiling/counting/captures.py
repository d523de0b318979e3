"""Detects that a CUDA graph is being captured, on any stream and thread of this process.

During a capture CUDA refuses unrelated calls: querying an event fails, recording one on the default
stream fails, and the capture fails with them. torch reports captures of the current stream only.
Therefore torch.cuda.CUDAGraph, which torch.cuda.graph() and all other captures with torch use, is
patched to register here the beginning and end of each capture.
"""

from __future__ import annotations

import functools
import sys
import threading
import weakref
from typing import Any

import torch

from feedmill.system.locks import renew_after_fork

# Hold this lock during calls in which no capture may begin. It is re-entrant, as a signal handler
# may iterate over a loader.
lock = threading.RLock()
_capturing: weakref.WeakSet[Any] = weakref.WeakSet()
renew_after_fork(sys.modules[__name__], lock=threading.RLock, _capturing=weakref.WeakSet)


def is_capturing(device: Any) -> bool:
    """Whether a device's current stream is being captured. CUDA must be initialized.

    Args:
        device: a torch.device. None: the current device.
    """
    if device is None or device.index == torch.cuda.current_device():
        return torch.cuda.is_current_stream_capturing()
    with torch.cuda.device(device):
        return torch.cuda.is_current_stream_capturing()


def is_any_capturing(device: Any) -> bool:
    """Whether the device's current stream is being captured, or any stream by a CUDAGraph whose
    capture began after notice_captures(). CUDA must be initialized, and `lock` held."""
    return bool(_capturing) or is_capturing(device)


def notice_captures(graph: type | None = None) -> None:
    """Patches a CUDAGraph class to register its captures. Further calls do nothing.

    Args:
        graph: the class to patch. Default None: torch.cuda.CUDAGraph.
    """
    kind: Any = torch.cuda.CUDAGraph if graph is None else graph
    if getattr(kind.capture_begin, "_feedmill_notices", False):
        return
    begin, end = kind.capture_begin, kind.capture_end

    @functools.wraps(begin)
    def capture_begin(self: Any, *args: Any, **kwargs: Any) -> Any:
        with lock:
            _capturing.add(self)
        try:
            return begin(self, *args, **kwargs)
        except BaseException:
            _capturing.discard(self)
            raise

    @functools.wraps(end)
    def capture_end(self: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return end(self, *args, **kwargs)
        finally:
            _capturing.discard(self)  # also after a failed capture

    capture_begin._feedmill_notices = True  # type: ignore[attr-defined]
    kind.capture_begin, kind.capture_end = capture_begin, capture_end

