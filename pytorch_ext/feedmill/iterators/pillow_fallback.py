"""The Pillow fallback: the user's own objects make samples with the native loader's random draws.

Used for files that the native decoder does not support, and by native="verify" to check native
samples. The user's transforms run themselves, with given random numbers: nothing here depends on
the native plan. Results are torchvision's, errors Pillow's.
"""

from __future__ import annotations

import copy
import errno
import functools
import math
import os
import stat
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch.overrides import TorchFunctionMode

from feedmill._internals import augment, call_under, params_method
from feedmill.iterators import timm_replay
from feedmill.iterators.dataset_copies import copy_of
from feedmill.planner.arguments import V2, filter_number
from feedmill.planner.drawing import PilCall
from feedmill.planner.efficient_crops import EfficientCrop
from feedmill.planner.formats import INTEGERS, TORCH_DTYPES, as_planned
from feedmill.planner.lighting import Lighting
from feedmill.planner.plan import (
    AUGMENTATIONS,
    CONTAINERS,
    KINDS,
    OP_NAMES,
    RANDOM_APPLY,
    RESIZE_KEEP_RATIO,
    RESIZES,
    Plan,
)
from feedmill.planner.raw_files import RawPlan
from feedmill.planner.samples import BaseDataset, Item, size_of
from feedmill.planner.steps import Step
from feedmill.planner.timm_hashes import AUGMENT
from feedmill.planner.timm_objects import ERASING

# (kind, top, left, height, width, flip, values), from _native.Loader.draws().
Draw = tuple[int, int, int, int, int, bool, tuple[float, ...]]
# (width, height) of an image in pixels, and the number of the view -> its draws.
DrawsOf = Callable[..., Sequence[Draw]]


def draws_from(handle: Any, key: int, epoch_word: int, index: int, occurrence: int) -> DrawsOf:
    """A function that returns a sample's draws as the native loader computes them."""

    def draws_of(width: int, height: int, view: int = 0) -> Any:
        return handle.draws(key, epoch_word, index, occurrence, width, height, view)

    return draws_of


def check_regular(path: Any) -> None:
    """Raises OSError if a path is neither a regular file nor a directory: open() of a pipe without
    a writer would block forever. A path that os.stat() rejects is left to open()."""
    if isinstance(path, int):
        return  # os.stat() takes it for a file descriptor
    try:
        mode = os.stat(path).st_mode
    except (OSError, ValueError, TypeError):
        return
    if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
        raise OSError(errno.EINVAL, "not a regular file", path)


def check_files(item: Item) -> None:
    """As check_regular(), for the files of a sample."""
    for one in item.files() if item.data is None else ():
        check_regular(one.path)


def load_and_transform(item: Item, draws_of: DrawsOf) -> Any:
    """Loads a sample with Pillow and applies its transforms with the given draws: a tensor, or the
    list of its views.

    Thread-safe: does not use torch's global generator, from which other threads may draw.
    """
    check_files(item)
    plan = item.base_dataset.plan
    if isinstance(plan, RawPlan):
        return plan.bytes_of(item.load())
    return transformed(item.base_dataset, item.load(), draws_of)


def transformed(
    base_dataset: BaseDataset, image: Any, draws_of: DrawsOf, view: int | None = None
) -> Any:
    """What a dataset's transform makes of a loaded image with the given draws: see
    load_and_transform().

    Args:
        image: if each view is made of a file of its own: their list; but with ``view`` that one.
        view: make this one of several views alone.
    """
    views = base_dataset.views
    if not views:
        return run_steps(base_dataset.steps, image, draws_of)
    if view is not None:
        return run_steps(views[view], image, functools.partial(draws_of, view=view))
    images = image if base_dataset.n_files > 1 else [image] * len(views)
    return [transformed(base_dataset, one, draws_of, number) for number, one in enumerate(images)]


def make_sample(item: Item, draws_of: DrawsOf) -> tuple[Any, Any]:
    """A sample's (image, target), as load_and_transform(). A dataset that makes its samples itself
    may give those of another sample instead."""
    if not item.base_dataset.makes_samples:
        return load_and_transform(item, draws_of), item.target
    check_regular(item.path)
    base_dataset = item.base_dataset
    dataset = copy_of(base_dataset, lambda image: transformed(base_dataset, image, draws_of))
    image, target = dataset[item.index]
    return image, target


def run_steps(steps: Sequence[Step], image: Any, draws_of: DrawsOf) -> Any:
    """Applies transforms to a PIL image or tensor; see load_and_transform()."""
    result = image
    for _, result in each_step(steps, image, draws_of):  # noqa: B007
        pass
    return result


def each_step(
    steps: Sequence[Step], image: Any, draws_of: DrawsOf
) -> Iterator[tuple[Step, Any]]:
    """Applies transforms one by one; yields (transform, its result)."""
    draws = list(draws_of(*size_of(image)))
    for step in steps:
        n_ops = len(step.kinds)
        # A transform with p=0 or p=1 still draws a number: keep that off the global generator.
        work = functools.partial(_run_step, step, image, draws[:n_ops])
        image = call_under(_PrivateDraws(), work)
        del draws[:n_ops]
        yield step, image


class _PrivateDraws(TorchFunctionMode):
    """While active, torch's functions draw from a private generator, on this thread only.

    Saving and restoring the global generator's state instead would undo the draws that other
    threads, such as the training loop's, make in between.
    """

    def __init__(self) -> None:
        super().__init__()
        self._generator = torch.Generator()

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if getattr(func, "__name__", "") in _DRAWING and kwargs.get("generator") is None:
            kwargs = {**kwargs, "generator": self._generator}
        return func(*args, **kwargs)


# torch's functions and methods that draw random numbers and have an argument generator=.
_DRAWING = frozenset(
    {"bernoulli", "bernoulli_", "cauchy_", "exponential_", "geometric_", "log_normal_",
     "multinomial", "normal", "normal_", "rand", "randint", "randn", "random_", "randperm",
     "uniform_"}
)


def _run_step(step: Step, image: Any, draws: Sequence[Draw]) -> Any:
    kind = step.kinds[0] if step.kinds else 0
    if kind in CONTAINERS:
        return _run_children(step, image, draws)
    if kind in _AUTOMATIC:
        return _augment(step, image, draws[0])
    if step.module == AUGMENT:
        return timm_replay.augmented(step.transform, image, draws[0][6])
    if step.module == ERASING:
        return timm_replay.erased(step.transform, image, draws[0])
    if isinstance(step.transform, Lighting):
        return step.transform.with_numbers(image, draws[0][6])
    if isinstance(step.transform, EfficientCrop):
        return step.transform.of_box(image, *draws[0][1:5])
    if isinstance(step.transform, PilCall):
        return step.transform(image, draws[0][6])
    result = _with_draws(step, image, draws)(image)
    # timm's ToNumpy
    return torch.from_numpy(result.copy()) if isinstance(result, np.ndarray) else result


# ---- transforms that contain others --------------------------------------------------------------


def _run_children(step: Step, image: Any, draws: Sequence[Draw]) -> Any:
    """Applies a RandomApply, RandomChoice or RandomOrder by calling its children as drawn."""
    kind, *_, applied, values = draws[0]
    calls = []
    at = 1
    for child in step.children:
        calls.append((child, draws[at : at + len(child.kinds)]))
        at += len(child.kinds)
    if kind != RANDOM_APPLY:
        calls = [calls[int(number)] for number in values]
    elif not applied:
        calls = []
    for child, child_draws in calls:
        image = _run_step(child, image, child_draws)
    return image


# ---- automatic augmentations ---------------------------------------------------------------------

_AUTOMATIC = tuple(KINDS[name] for name in ("TrivialAugmentWide", "RandAugment", "AutoAugment"))


def _augment(step: Step, image: Any, draw: Draw) -> Any:
    """Applies an automatic augmentation: calls its function for a single operation with each of the
    drawn ones, since the transform itself would draw."""
    transform, values = step.transform, draw[6]
    for operation, magnitude in zip(values[::2], values[1::2]):
        name = AUGMENTATIONS[int(operation)]
        image = augment(transform, step.module == V2, image, name, magnitude)
    return image


# ---- transforms with given draws -----------------------------------------------------------------

_WITH_PROBABILITY = frozenset(
    KINDS[name]
    for name in (
        "RandomHorizontalFlip", "RandomVerticalFlip", "RandomGrayscale", "RandomInvert",
        "RandomPosterize", "RandomSolarize", "RandomAutocontrast", "RandomEqualize",
        "RandomAdjustSharpness", "RandomErasing",
    )
)


def _with_draws(step: Step, image: Any, draws: Sequence[Draw]) -> Any:
    """A copy of the transform that uses the given draws; the transform itself if it draws
    nothing."""
    if len(draws) != 1:
        return step.transform
    params = _params(step, image, draws[0])
    kind, *_, values = draws[0]
    if params is None and draws[0][0] not in _WITH_PROBABILITY:
        return step.transform
    with_draws = copy.copy(step.transform)
    if draws[0][0] in _WITH_PROBABILITY:
        with_draws.p = 1.0 if draws[0][5] else 0.0
    if params is not None and step.module == V2:
        setattr(with_draws, params_method(with_draws), lambda *_: params)
    elif params is not None:
        with_draws.get_params = lambda *_, **__: tuple(params.values())
        if len(params) == 1:
            with_draws.get_params = lambda *_: params["angle"]
        if kind == RESIZE_KEEP_RATIO:
            with_draws.get_params = lambda *_: list(params.values())
        if kind in RESIZES and values:
            with_draws.interpolation = _filter_of(step.transform, int(values[0]))
    return with_draws


def _filter_of(transform: Any, number: int) -> Any:
    """The one of a timm transform's interpolations that is fm_filter ``number``."""
    name = type(transform).__name__
    return next(one for one in transform.interpolation if filter_number(one, name) == number)


def _params(step: Step, image: Any, draw: Draw) -> dict[str, Any] | None:
    """The result of v2's make_params(), in the order of v1's get_params(); None if the transform
    has no parameters, or fails on this image."""
    kind, top, left, height, width, flip, values = draw
    name = OP_NAMES[kind]
    box = {"top": top, "left": left, "height": height, "width": width}
    if name == "RandomResizedCrop":
        return box
    if name == "ResizeKeepRatio":
        return {"height": height, "width": width}
    if name == "RandomCrop":
        if not width:
            return None  # the image is too small: the transform itself raises
        if step.module != V2:
            return box
        drawn = getattr(step.transform, params_method(step.transform))([image])
        return {**drawn, **box}
    if name == "ColorJitter":
        return _jitter_params(step.transform, values)
    if name == "RandomRotation":
        return {"angle": values[0]}
    if name == "RandomAffine":
        return {"angle": values[0], "translate": (int(values[1]), int(values[2])),
                "scale": values[3], "shear": values[4:6]}
    if name == "RandomErasing" and flip:
        value = step.transform.value
        box = {"i": top, "j": left, "h": height, "w": width}
        if value is None or isinstance(value, str):
            return {**box, "v": timm_replay.noise_of(draw, (image.shape[-3], height, width))}
        listed = [float(one) for one in (value if isinstance(value, (list, tuple)) else [value])]
        return {**box, "v": torch.tensor(listed)[:, None, None]}
    return None


def _jitter_params(transform: Any, values: Sequence[float]) -> dict[str, Any]:
    params: dict[str, Any] = {"fn_idx": torch.tensor([int(number) for number in values[:4]])}
    for name, factor in zip(("brightness", "contrast", "saturation", "hue"), values[4:]):
        params[f"{name}_factor"] = None if getattr(transform, name) is None else factor
    return params


def write_views(
    images: Sequence[Any], out: bytearray, shapes: Sequence[Sequence[int]], plan: Plan
) -> None:
    """Writes the views of a sample to its bytes in a batch, one after the other.

    Args:
        images: as the user's transforms made them.
        out: see write_sample().
        shapes: (channels, height, width) of each view.
        plan: of all views.

    Raises:
        RuntimeError: an image has another shape or type.
    """
    at = 0
    places = memoryview(out)
    for image, view, shape in zip(images, plan.views, shapes, strict=True):
        n_bytes = math.prod(shape) * TORCH_DTYPES[view.dtype].itemsize
        write_sample(as_planned(image, view), places[at : at + n_bytes], shape, view)
        at += n_bytes


def write_sample(
    image: torch.Tensor, out: bytearray | memoryview, shape: Sequence[int], plan: Plan
) -> None:
    """Writes an image tensor to its bytes in a batch.

    Args:
        image: (channels, height, width), of the plan's type.
        out: writable bytes, of exactly the image's size.
        shape: (channels, height, width).
        plan: gives the batch's type and layout.

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


def as_pixels(image: torch.Tensor, plan: Plan) -> torch.Tensor:
    """Inverts the plan's value table: the torch.uint8 pixels (channels, height, width) that it maps
    to this image, bit for bit. If several pixel values map to the same value, any of them.

    Raises:
        RuntimeError: the image has a value that is not in the table, or another shape or type.
    """
    bits = INTEGERS[TORCH_DTYPES[plan.dtype].itemsize]
    tables = torch.frombuffer(bytearray(plan.value_table or b""), dtype=bits).view(3, 256)
    values = image.as_subclass(torch.Tensor)
    if values.dtype is not TORCH_DTYPES[plan.dtype] or len(values) != 3:
        raise RuntimeError(f"the transform gave {tuple(values.shape)} of {values.dtype}")
    channels = []
    for table, channel in zip(tables, values.contiguous().view(bits)):
        ordered, pixels = torch.sort(table)
        at = torch.searchsorted(ordered, channel).clamp_(max=255)
        if not torch.equal(ordered[at], channel):
            raise RuntimeError("the transform gave values that no pixel has")
        channels.append(pixels[at].to(torch.uint8))
    return torch.stack(channels)


def name_sample(error: BaseException, item: Item, note: str = "") -> None:
    """Adds a sample's dataset index and path, and a note, to an exception's text. Its type
    stays."""
    args = error.args
    named = f"{item}{note}"
    if isinstance(error, OSError) and error.errno is not None and error.strerror:
        error.strerror = f"{error.strerror} [{named}]"  # part of str(error)
    elif len(args) == 1 and isinstance(args[0], str):
        error.args = (f"{args[0]} [{named}]",)
    elif hasattr(error, "add_note"):  # Python 3.11 on
        error.add_note(named)
