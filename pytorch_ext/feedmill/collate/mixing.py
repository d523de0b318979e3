"""timm's FastCollateMixup, whose MixUp of uint8 images is computed natively.

The object itself draws the numbers, makes the targets and all else. Only its method that mixes a
batch with one pair of parameters, mode="batch", is another one, if it is the known version of it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from feedmill import _native
from feedmill.planner import fingerprints

_MODULE = "timm.data.mixup"
_METHOD = "_mix_batch_collate"
_PLACE = f"{_MODULE}:FastCollateMixup.{_METHOD}"
# The version that takes tensors, up to timm 1.0.31.
_KNOWN = {_PLACE: frozenset({"8009c8cbf2c61968"})}
_MEANINGS = {"np": "numpy", "torch": "torch", "cutmix_bbox_and_lam": "*"}
# What the method calls, as it was when this module was imported.
_CALLED = [
    (torch.Tensor, name, getattr(torch.Tensor, name))
    for name in ("__add__", "__getitem__", "__iadd__", "__mul__", "__setitem__", "byte", "float")
] + [(torch, "round", torch.round)]


def with_native_mixing(collate_fn: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """A function that gives what a FastCollateMixup gives; another collate_fn as it is."""
    kind = getattr(sys.modules.get(_MODULE), "FastCollateMixup", None)
    if kind is None or type(collate_fn) is not kind or not _is_known(kind):
        return collate_fn
    return _NativeMixing(collate_fn, kind)


def _is_known(kind: type) -> bool:
    method = vars(kind).get(_METHOD)
    return fingerprints.is_known(method, _PLACE, _KNOWN, _MEANINGS)


class _NativeMixing:
    """Calls a FastCollateMixup through an object that has its attributes and another method.

    Args:
        collate_fn: the object.
        kind: its class.
    """

    def __init__(self, collate_fn: Any, kind: type) -> None:
        self._collate_fn = collate_fn
        self._kind = kind
        self._method = vars(kind)[_METHOD]
        # A subclass, so that the class's own __call__() finds its other methods.
        mix = self._mix

        class Mixing(kind):  # type: ignore[misc]
            def _mix_batch_collate(self, output: Any, batch: Any) -> Any:
                return mix(self, output, batch)

        self._mixing: Any = object.__new__(Mixing)

    def __call__(self, samples: Any) -> Any:
        if not self._is_unchanged() or not _are_images(samples):
            return self._collate_fn(samples)
        # Scripts switch it off by an attribute (mixup_enabled) between epochs.
        object.__setattr__(self._mixing, "__dict__", vars(self._collate_fn))
        return self._mixing(samples)

    def _is_unchanged(self) -> bool:
        return (
            vars(self._kind).get(_METHOD) is self._method
            and _METHOD not in vars(self._collate_fn)
            and all(getattr(owner, name) is value for owner, name, value in _CALLED)
        )

    def _mix(self, parameters: Any, output: torch.Tensor, batch: Sequence[Any]) -> Any:
        """As FastCollateMixup._mix_batch_collate()."""
        share, is_cutmix = parameters._params_per_batch()
        box: Any = None
        if is_cutmix:
            box, share = self._method.__globals__["cutmix_bbox_and_lam"](
                output.shape, share, ratio_minmax=parameters.cutmix_minmax,
                correct_lam=parameters.correct_lam,
            )
        images = [image for image, _ in batch]
        for i, (image, partner) in enumerate(zip(images, reversed(images))):
            if share == 1.0:
                output[i] += image
            elif is_cutmix:
                top, bottom, left, right = box
                mixed = image.clone()
                mixed[:, top:bottom, left:right] = partner[:, top:bottom, left:right]
                output[i] += mixed
            else:
                output[i] += _mixed(image, partner, share)
        return share


def _mixed(image: torch.Tensor, partner: torch.Tensor, share: Any) -> torch.Tensor:
    """(image.float() * share + partner.float() * (1 - share)).round().byte()"""
    mixed = torch.empty_like(image)
    if type(share) in (float, np.float64) and _native.mix_pixels(
        mixed.data_ptr(), image.data_ptr(), partner.data_ptr(), image.numel(), share, 1 - share
    ):
        return mixed
    values = image.float() * share + partner.float() * (1 - share)
    return torch.round(values, out=values).byte()


def _are_images(samples: Any) -> bool:
    """Whether the samples are pairs of contiguous uint8 images of one size and targets."""
    if not samples or any(type(sample) is not tuple or len(sample) != 2 for sample in samples):
        return False
    images = [image for image, _ in samples]
    if any(type(image) is not torch.Tensor for image in images):
        return False
    shape = images[0].shape
    return len(shape) == 3 and all(
        image.dtype is torch.uint8 and image.is_contiguous() and image.device.type == "cpu"
        and image.shape == shape
        for image in images
    )
