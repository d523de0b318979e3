"""Stacks samples in ordinary memory where a collate_fn is called as in a worker process of torch.

There get_worker_info() returns the worker's information, as the function may ask for it. torch's
default_collate takes that for a worker process, and stacks tensors in new shared memory, to pass
them to the main process without a copy. In the main process that only costs time.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils.data import get_worker_info

from feedmill import _internals


@contextmanager
def unshared() -> Iterator[None]:
    """While active, default_collate stacks tensors of this process in ordinary memory, unless the
    user has changed how it stacks tensors. The results are equal otherwise."""
    handlers = _internals.collate_handlers()
    original = handlers.get(torch.Tensor)
    if original is None or original is not _internals.collate_tensor:
        yield
        return
    stack = _stacking(original, os.getpid())
    handlers[torch.Tensor] = stack
    try:
        yield
    finally:
        if handlers.get(torch.Tensor) is stack:
            handlers[torch.Tensor] = original


def _stacking(original: Callable[..., Any], process: int) -> Callable[..., Any]:
    """The function that stacks tensors in ordinary memory in this process, and leaves all else to
    torch's, also in processes that are forked while it is used."""

    def stack(batch: Any, *, collate_fn_map: Any = None) -> Any:
        first = batch[0]
        if get_worker_info() is None or os.getpid() != process or not _is_plain(first):
            return original(batch, collate_fn_map=collate_fn_map)
        return torch.stack(batch, 0, out=first.new_empty((len(batch), *first.size())))

    stack.feedmill_original = original  # type: ignore[attr-defined]
    return stack


def _is_plain(tensor: torch.Tensor) -> bool:
    image = getattr(sys.modules.get("torchvision.tv_tensors"), "Image", torch.Tensor)
    return (
        type(tensor) in (torch.Tensor, image)
        and tensor.layout is torch.strided
        and not tensor.is_nested
        and tensor.device.type == "cpu"
    )
