"""Calls a collate_fn so that torch.stack() of all samples returns the native batch itself."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from feedmill.collate.samples import array_of, samples_of

# Targets of these types, and tuples, lists and dicts of them, have no user-defined methods.
_BUILTIN = (bool, int, float, str, bytes, type(None), torch.Tensor)


def is_builtin(target: Any) -> bool:
    """Whether a target has only built-in types, so that the proof of a function covers its use."""
    if type(target) in (tuple, list):
        return all(map(is_builtin, target))
    if type(target) is dict:
        return all(map(is_builtin, target.values()))
    return type(target) in _BUILTIN


class _StackMode(TorchFunctionMode):
    """While active, on this thread, the first torch.stack() of exactly these samples returns the
    batch.

    Attributes:
        was_used: whether that happened.
    """

    def __init__(self, samples: Sequence[torch.Tensor], images: torch.Tensor) -> None:
        super().__init__()
        self._samples = samples
        self._images = images
        self.was_used = False

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if func is torch.stack and not self.was_used and self._is_the_batch(*args, **kwargs):
            self.was_used = True
            return self._images
        return func(*args, **kwargs)

    def _is_the_batch(
        self, tensors: Any = None, dim: Any = 0, *, out: Any = None, **others: Any
    ) -> bool:
        return (
            out is None
            and not others
            and type(dim) is int
            and dim == 0
            and isinstance(tensors, (list, tuple))
            and len(tensors) == len(self._samples)
            and all(map(_is_same, tensors, self._samples))
        )


def _is_same(one: Any, other: Any) -> bool:
    return one is other


class SharingCollate:
    """Calls a proved collate_fn with the samples of native batches.

    The result may share the batch's memory. The function can't notice, as it changes nothing in
    place. If the result contains a sample beside the stack of all, the caller would see a change of
    one in the other. Then the function is called again, and the stack is a copy.

    Args:
        function: proved by ``proof.is_proved()``.
        auto_collation: whether it gets a list of samples; else a single sample.
    """

    def __init__(self, function: Callable[[Any], Any], auto_collation: bool) -> None:
        self._function = function
        self._auto_collation = auto_collation
        self._may_share = auto_collation

    def __call__(self, images: torch.Tensor, targets: Sequence[Any], as_image: bool) -> Any:
        """The function's result for a batch.

        Args:
            images: (n, channels, height, width), without other references.
            targets: n targets.
            as_image: whether samples are tv_tensors.Image.
        """
        if not self._may_share or not len(targets):
            return self._function(self._samples(images, targets, as_image))
        data, was_used, kept = self._shared(images, targets, as_image)
        if not was_used or kept() is None:
            return data
        self._may_share = False
        del data
        return self._function(self._samples(images, targets, as_image))

    def _shared(
        self, images: torch.Tensor, targets: Sequence[Any], as_image: bool
    ) -> tuple[Any, bool, Callable[[], Any]]:
        """(the result, whether the stack is the batch itself, a weak reference that is dead when no
        sample is left)."""
        array = array_of(images)
        samples = samples_of(images, as_image, array)
        mode = _StackMode(samples, images)
        pairs = list(zip(samples, targets))
        kept = weakref.ref(array)
        del array, samples
        with mode:
            data = self._function(pairs)
        was_used = mode.was_used
        del mode, pairs
        return data, was_used, kept

    def _samples(self, images: torch.Tensor, targets: Sequence[Any], as_image: bool) -> Any:
        if not len(targets):
            return []
        pairs = list(zip(samples_of(images, as_image), targets))
        return pairs if self._auto_collation else pairs[0]
