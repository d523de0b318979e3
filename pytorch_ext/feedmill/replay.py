"""Samples that the native decoder does not take, finished by Pillow with the same draws."""

from __future__ import annotations

import errno
import operator
import os
import stat
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

# (kind, top, left, height, width, flip), as _native.Loader.draws() gives them, for an image of
# width x height pixels.
Draws = Sequence[tuple[int, int, int, int, int, bool]]


def check_regular(path: Any) -> None:
    """Raises OSError for what is neither a file nor a directory: opening a pipe that nobody writes
    to would block for ever. What can't be looked at is left to open() to refuse."""
    try:
        mode = os.stat(path).st_mode
    except (OSError, ValueError, TypeError):
        return
    if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
        raise OSError(errno.EINVAL, "not a regular file", path)


class Replay:
    """Opens a file with the dataset's own loader and runs the user's own transform objects.

    Nothing here is derived from the plan: what comes out is what torchvision makes of the file,
    and what is raised is what Pillow raises. Only the random numbers are ours.

    Args:
        load: the dataset's ``loader``, path -> PIL image.
        transforms: the objects in the dataset's ``Compose``, of the kinds that
            ``recognise.recognise()`` takes.
    """

    def __init__(self, load: Callable[[Any], Any], transforms: Sequence[Any]) -> None:
        self._load = load
        self._transforms = tuple(transforms)

    def __eq__(self, other: object) -> bool:
        """Whether they run the same objects."""
        if not isinstance(other, Replay):
            return NotImplemented
        mine, theirs = ((one._load, *one._transforms) for one in (self, other))
        return len(mine) == len(theirs) and all(map(operator.is_, mine, theirs))

    def __call__(self, path: Any, draws_of: Callable[[int, int], Draws]) -> torch.Tensor:
        """The transformed image. ``draws_of(width, height)`` gives its draws."""
        # Imported by then: the dataset is torchvision's.
        from torchvision.transforms import functional

        check_regular(path)
        image = self._load(path)
        draws = iter(draws_of(*image.size))
        for transform in self._transforms:
            name = type(transform).__name__
            if name == "RandomResizedCrop":
                _, top, left, height, width, _ = next(draws)
                image = functional.resized_crop(
                    image,
                    top,
                    left,
                    height,
                    width,
                    transform.size,
                    transform.interpolation,
                    antialias=transform.antialias,
                )
            elif name == "RandomHorizontalFlip":
                image = functional.hflip(image) if next(draws)[5] else image
            else:
                if name in ("Resize", "CenterCrop"):
                    next(draws)  # no random numbers, but a place in the list
                image = transform(image)
        return image


def write_sample(image: torch.Tensor, out: memoryview, shape: Sequence[int], dtype: str) -> None:
    """Copies an image tensor to its place in a batch.

    Args:
        image: ``shape``, of type ``dtype``.
        out: writable bytes of exactly that size.
        shape: (3, height, width).
        dtype: "uint8" or "float32".

    Raises:
        RuntimeError: the image has another shape or type.
    """
    if tuple(image.shape) != tuple(shape) or image.dtype != getattr(torch, dtype):
        raise RuntimeError(
            f"the transform gave {tuple(image.shape)} of {image.dtype}; the batch holds "
            f"{tuple(shape)} of torch.{dtype}"
        )
    target = np.frombuffer(out, dtype=dtype).reshape(tuple(shape))
    np.copyto(target, image.numpy())


def name_sample(error: BaseException, index: int, path: Any) -> None:
    """Adds a sample's dataset index and path to the text of an exception, keeping its type."""
    where = f"dataset index {index}, file {path!r}"
    args = error.args
    if isinstance(error, OSError) and error.errno is not None and error.strerror:
        error.strerror = f"{error.strerror} [{where}]"  # part of str(error)
    elif len(args) == 1 and isinstance(args[0], str):
        error.args = (f"{args[0]} [{where}]",)
    elif hasattr(error, "add_note"):  # Python 3.11 on
        error.add_note(where)
