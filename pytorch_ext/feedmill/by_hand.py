"""Samples made by the user's own objects with our random draws.

The native decoder does not take every file; what it leaves is made here, and native="verify" checks
here what it made. Nothing is derived from the plan: what comes out is what torchvision makes of the
file, and what is raised is what Pillow raises. Only the random numbers are ours.
"""

from __future__ import annotations

import copy
import errno
import os
import stat
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch

from feedmill.recognition.formats import INTEGERS, TORCH_DTYPES
from feedmill.recognition.plan import RANDOM_HORIZONTAL_FLIP, RANDOM_RESIZED_CROP, Plan
from feedmill.recognition.samples import Item
from feedmill.recognition.transforms import V1, Step

# (kind, top, left, height, width, flip), as _native.Loader.draws() gives them, for an image of
# width x height pixels.
Draw = tuple[int, int, int, int, int, bool]
DrawsOf = Callable[[int, int], Sequence[Draw]]


def draws_from(handle: Any, key: int, epoch_word: int, index: int, occurrence: int) -> DrawsOf:
    """A sample's draws as the native loader computes them."""

    def draws_of(width: int, height: int) -> Any:
        return handle.draws(key, epoch_word, index, occurrence, width, height)

    return draws_of


def check_regular(path: Any) -> None:
    """Raises OSError for what is neither a file nor a directory: opening a pipe that nobody writes
    to would block for ever. What can't be looked at is left to open() to refuse."""
    if isinstance(path, int):
        return  # a file descriptor, to os.stat()
    try:
        mode = os.stat(path).st_mode
    except (OSError, ValueError, TypeError):
        return
    if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
        raise OSError(errno.EINVAL, "not a regular file", path)


def replay(item: Item, draws_of: DrawsOf) -> torch.Tensor:
    """The transformed image of a sample; ``draws_of(width, height)`` gives its draws.

    torch's global random state is left as it was.
    """
    if item.data is None:
        check_regular(item.path)
    return run_steps(item.leaf.steps, item.load(), draws_of)


def run_steps(steps: Sequence[Step], image: Any, draws_of: DrawsOf) -> Any:
    """What the transforms make of a PIL image; see replay()."""
    for _, image in each_step(steps, image, draws_of):
        pass
    return image


def each_step(
    steps: Sequence[Step], image: Any, draws_of: DrawsOf
) -> Iterator[tuple[Step, Any]]:
    """Runs the transforms one by one; yields each and what came out of it."""
    draws = iter(draws_of(*image.size))
    for step in steps:
        transform = _with_draws(step, [next(draws) for _ in step.kinds])
        with torch.random.fork_rng(devices=()):  # a flip asks for a number whatever it is told
            image = transform(image)
        yield step, image


def _with_draws(step: Step, draws: Sequence[Draw]) -> Any:
    """The transform itself, or a copy of it for which these are the numbers that come up."""
    if step.kinds == (RANDOM_HORIZONTAL_FLIP,):
        twin = copy.copy(step.transform)
        twin.p = 1.0 if draws[0][5] else 0.0
        return twin
    if step.kinds == (RANDOM_RESIZED_CROP,):
        twin = copy.copy(step.transform)
        _, top, left, height, width, _ = draws[0]
        if step.module == V1:
            twin.get_params = lambda *_: (top, left, height, width)
        else:
            box = {"top": top, "left": left, "height": height, "width": width}
            name = "make_params" if hasattr(twin, "make_params") else "_get_params"
            setattr(twin, name, lambda *_: box)
        return twin
    return step.transform


def write_sample(
    image: torch.Tensor, out: memoryview, shape: Sequence[int], plan: Plan
) -> None:
    """Copies an image tensor to its place in a batch.

    Args:
        image: ``shape``, of the plan's type.
        out: writable bytes of exactly that size.
        shape: (3, height, width).
        plan: tells the batch's type and layout.

    Raises:
        RuntimeError: the image has another shape or type.
    """
    dtype = TORCH_DTYPES[plan.dtype]
    if tuple(image.shape) != tuple(shape) or image.dtype is not dtype:
        raise RuntimeError(
            f"the transform gave {tuple(image.shape)} of {image.dtype}; the batch holds "
            f"{tuple(shape)} of {dtype}"
        )
    channels, height, width = shape
    bits = INTEGERS[dtype.itemsize]
    target = np.frombuffer(out, dtype=str(bits).removeprefix("torch."))
    if plan.layout == "nhwc":
        target = target.reshape(height, width, channels).transpose(2, 0, 1)
    else:
        target = target.reshape(channels, height, width)
    np.copyto(target, image.as_subclass(torch.Tensor).view(bits).numpy())


def name_sample(error: BaseException, item: Item) -> None:
    """Adds a sample's dataset index and path to the text of an exception, keeping its type."""
    args = error.args
    if isinstance(error, OSError) and error.errno is not None and error.strerror:
        error.strerror = f"{error.strerror} [{item}]"  # part of str(error)
    elif len(args) == 1 and isinstance(args[0], str):
        error.args = (f"{args[0]} [{item}]",)
    elif hasattr(error, "add_note"):  # Python 3.11 on
        error.add_note(str(item))
