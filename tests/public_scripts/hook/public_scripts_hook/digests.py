"""Digests of batches of any type."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any


def digests(batch: Any) -> dict[str, str]:
    """Digests of a batch: of everything; of what is no image (integers, texts, and so labels); and
    its layout, which is types, keys, shapes and dtypes."""
    everything, labels = hashlib.sha256(), hashlib.sha256()
    layout = _visit(batch, everything, labels)
    return {
        "all": everything.hexdigest()[:16],
        "labels": labels.hexdigest()[:16],
        "layout": layout,
    }


def _visit(value: Any, everything: Any, labels: Any) -> str:
    import numpy
    import torch
    from PIL import Image

    def leaf(data: bytes, is_label: bool, text: str) -> str:
        for one in (everything, labels) if is_label else (everything,):
            one.update(f"{text}:{len(data)}:".encode())
            one.update(data)
        return text

    if isinstance(value, torch.Tensor):
        kind = type(value).__name__ if type(value) is not torch.Tensor else ""
        text = f"{kind}{str(value.dtype).removeprefix('torch.')}{list(value.shape)}"
        data = value.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
        is_label = not value.is_floating_point() and value.dim() < 3
        return leaf(data.numpy().tobytes(), is_label, text)
    if isinstance(value, numpy.ndarray):
        is_label = value.dtype.kind != "f" and value.ndim < 3
        return leaf(value.tobytes(), is_label, f"numpy {value.dtype}{list(value.shape)}")
    if isinstance(value, Image.Image):
        return leaf(value.tobytes(), False, f"{value.mode}{list(value.size)}")
    if isinstance(value, str | bytes | int | float | bool | numpy.generic | type(None)):
        return leaf(repr(value).encode(), True, type(value).__name__)
    if isinstance(value, Mapping):
        parts = [f"{key}: {_visit(one, everything, labels)}" for key, one in value.items()]
        return f"{type(value).__name__}({', '.join(parts)})"
    if isinstance(value, list | tuple | set | frozenset):
        parts = [_visit(one, everything, labels) for one in value]
        if len(set(parts)) == 1 and len(parts) > 2:
            parts = [f"{len(parts)} x {parts[0]}"]
        return f"{type(value).__name__}({', '.join(parts)})"
    if hasattr(value, "__dict__"):
        return f"{type(value).__name__} {_visit(vars(value), everything, labels)}"
    return leaf(repr(value).encode(), True, type(value).__name__)
