"""torch.stack() of all samples of a native batch, in order, without a copy: it is that batch."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from feedmill.collate.samples import array_of, samples_of

# Targets of these types, and tuples, lists and dicts of such, have no methods of a script's own.
_PLAIN = (bool, int, float, str, bytes, type(None), torch.Tensor)


def is_plain(target: Any) -> bool:
    """Whether what a proved function does with a target is known, too."""
    if type(target) in (tuple, list):
        return all(map(is_plain, target))
    if type(target) is dict:
        return all(map(is_plain, target.values()))
    return type(target) in _PLAIN


class _StackMode(TorchFunctionMode):
    """Within it, on this thread, the first stack of just these samples is the batch itself.

    Attributes:
        was_used: it was asked for.
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


class ThreadCollate:
    """Calls a proved collate_fn with the samples of native batches.

    The result may be the memory of the batch itself. As the function works on nothing in place, it
    can't tell; and where a sample is part of the result beside the stack of all, so that the caller
    would see one change with the other, the function is called again, and the stack is a copy.

    Args:
        function: proved by ``proof.is_proved()``.
        auto_collation: it gets a list of samples; else one sample.
    """

    def __init__(self, function: Callable[[Any], Any], auto_collation: bool) -> None:
        self._function = function
        self._auto_collation = auto_collation
        self._may_share = auto_collation

    def __call__(self, images: torch.Tensor, targets: Sequence[Any], as_image: bool) -> Any:
        """What the function makes of a batch.

        Args:
            images: (n, channels, height, width); nobody else refers to them.
            targets: n of them.
            as_image: samples are tv_tensors.Image.
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
        """(the result, whether the stack is the batch, what is not None while a sample lives)."""
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
