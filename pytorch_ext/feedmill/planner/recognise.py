"""Decides whether a DataLoader can run natively.

The check is strict: it accepts only exact types, and classes and objects that nobody has changed.
If torch's path might give other batches than the native code, torch's path is taken, and explain()
gives the reasons.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch.utils.data import default_collate, default_convert

from feedmill._internals import active_modes, why_collate_was_changed, why_not_this_torch
from feedmill.planner import equal_tensor_colors, pil_collates, seeding
from feedmill.planner.arrangements import PAIR, Fields, OpenFields, Tree
from feedmill.planner.datasets import read_dataset
from feedmill.planner.equality import reasons_against_formats, rejected_formats
from feedmill.planner.formats import TORCH_DTYPES, formatted
from feedmill.planner.plan import ARRAY, NO_TENSOR, PIL, TENSOR
from feedmill.planner.processes import is_forked
from feedmill.planner.samples import Support, unsupported
from feedmill.planner.timm_objects import is_fast_collate
from feedmill.planner.untouched import unreadable


def recognise(loader: Any) -> Support:
    """Which path can run a DataLoader, as its dataset, transforms and options are now.

    Draws no random number and changes nothing.
    """
    try:
        if reasons := why_not_this_torch():
            return unsupported(*reasons)
        return _recognise(loader)
    except Exception as error:  # if the dataset is broken, torch's path will raise the error
        return unsupported(unreadable("the DataLoader", error))


def _recognise(loader: Any) -> Support:
    hindrances = _worker_reasons(loader) + _mode_reasons(loader)
    reasons = _collate_reasons(loader) + hindrances
    options = loader._feedmill_options()
    support = read_dataset(loader.dataset)
    source = support.source
    of_samples = support.reasons if source is None else _uncollated(loader, source)
    reasons += of_samples
    if source is None or of_samples:
        if options.native == "hybrid" and seeding.prints(loader):
            hindrances.append("worker_init_fn prints, and native='hybrid' does not call it")
            reasons += hindrances[-1:]
        is_hybrid = options.native == "hybrid" and not hindrances
        return _hybrid(loader, reasons) if is_hybrid else unsupported(*reasons)
    reasons += source.why_not(loader, has_default_collate(loader))
    if reasons:
        return unsupported(*reasons)
    changes_images = options.dtype or options.memory_format is not torch.contiguous_format
    has_views = bool(getattr(source.plan, "more_views", ()))
    if changes_images and (has_views or isinstance(source.arrangement, (Fields, OpenFields, Tree))):
        return unsupported(
            "the dataset's samples hold dicts, lists or several images, to which dtype= and "
            "memory_format= are not applied; leave them out"
        )
    if changes_images and (gives_pil(source) or _stacks_arrays(loader, source)):
        what = "PIL images" if gives_pil(source) else "NumPy arrays"
        return unsupported(
            f"the samples are {what}, to which dtype= and memory_format= are not applied; leave "
            "them out"
        )
    given = options.dtype not in (None, TORCH_DTYPES.get(source.native_plan.dtype))
    if given and source.native_plan.keeps_floats:
        return unsupported(
            f"the transform resizes float tensors, which natively stay of torch.float32; leave out "
            f"dtype={options.dtype}"
        )
    n_threads = 1 if loader.num_workers > 0 else torch.get_num_threads()
    for view in source.native_plan.views:
        channels = (3,) if source.arrays is None else (3, 1)
        if reason := equal_tensor_colors.why_uneven(view.ops, n_threads, channels):
            return unsupported(reason)
    memory_format = options.memory_format
    if gives_pil(source):
        memory_format = pil_collates.memory_format_of(loader.collate_fn) or memory_format
    source.plan = formatted(source.native_plan, options.dtype, memory_format)
    if source.arrays is None and not source.copies:
        rejected = rejected_formats() | source.rejects
        source.plan = replace(
            source.native_plan,
            rejected_formats=rejected,
            decodes_scaled=options.decode == "scaled" and options.native != "verify",
        )
        source.notes = reasons_against_formats()
    return support


def _hybrid(loader: Any, reasons: list[str]) -> Support:
    """The samples for hybrid mode, which calls the transforms; ``reasons`` rule out the native
    path."""
    return Support(read_dataset(loader.dataset, calls_transforms=True).source, tuple(reasons))


def has_default_collate(loader: Any) -> bool:
    """Whether the DataLoader has torch's own collate function."""
    auto_collation = loader.batch_sampler is not None
    return loader.collate_fn is (default_collate if auto_collation else default_convert)


def stacks_natively(loader: Any, source: Any) -> bool:
    """Whether native batches are what the DataLoader's collate_fn makes, so that it need not be
    called: it is torch's own, or timm's fast_collate for uint8 images, or NVIDIA's for PIL images.

    Args:
        source: the samples; None: not those of a native loader.
    """
    if has_default_collate(loader):
        return True
    is_fit = (
        source is not None
        and source.arrangement == PAIR
        and source.arrays is None
        and not source.copies
        and source.native_plan.dtype == "uint8"
        and loader.batch_sampler is not None
    )
    if is_fit and gives_pil(source):
        return pil_collates.memory_format_of(loader.collate_fn) is not None
    return is_fit and is_fast_collate(loader.collate_fn)


def gives_pil(source: Any) -> bool:
    """Whether the samples are PIL images for the dataset, of which the collate_fn makes tensors."""
    return source is not None and getattr(source.plan, "gives", TENSOR) == PIL


def _uncollated(loader: Any, source: Any) -> Sequence[str]:
    """The reason if the samples are no tensors, and the collate_fn is not one that is known to make
    them."""
    gives = getattr(source.plan, "gives", TENSOR)
    if gives == TENSOR or (not has_default_collate(loader) and stacks_natively(loader, source)):
        return ()
    if gives == PIL:
        return (NO_TENSOR,)
    if _stacks_arrays(loader, source):
        changed = why_collate_was_changed(np.ndarray)
        return (changed,) if changed else ()
    return (
        "the samples hold NumPy arrays, which natively only torch's own collate_fn and timm's "
        "fast_collate make batches of",
    )


def _stacks_arrays(loader: Any, source: Any) -> bool:
    """Whether the samples are NumPy arrays of which torch's own collate_fn makes batches."""
    is_array = getattr(source.plan, "gives", TENSOR) == ARRAY
    return is_array and has_default_collate(loader) and loader.batch_sampler is not None


def _collate_reasons(loader: Any) -> list[str]:
    if not callable(loader.collate_fn):
        return ["collate_fn is not callable"]
    if not has_default_collate(loader):
        return []
    changed = why_collate_was_changed(torch.Tensor)
    return [changed] if changed else []


def _worker_reasons(loader: Any) -> list[str]:
    function = loader.worker_init_fn
    called = loader._feedmill_options().worker_init != "ignore"
    if function is None or loader.num_workers == 0 or not called:
        return []
    # On the native path only a collate_fn can draw from the generators; the iterator calls the
    # function before the collate_fn.
    if seeding.understood(function, loader.num_workers) is not None:
        if is_forked(loader) or _is_found_by_name(function):
            return []
        return [
            "worker_init_fn can't be pickled, which worker processes that are not forked need; "
            "make it a function of a module"
        ]
    return [
        "worker_init_fn is set, but the native path has no worker processes to call it in; if it "
        'is not needed there, pass worker_init="ignore"'
    ]


def _is_found_by_name(function: Any) -> bool:
    """Whether pickle, which stores a function's name alone, finds the function by it. Of a partial:
    its function; its arguments are plain values, see seeding."""
    while type(function) is functools.partial:
        function = function.func
    found: Any = sys.modules.get(function.__module__)
    for name in function.__qualname__.split("."):
        found = getattr(found, name, None)
    return found is function


def _mode_reasons(loader: Any) -> list[str]:
    """Modes see what the transforms and the collate function call, without workers and in forked
    ones, which inherit them."""
    if loader.num_workers > 0 and not is_forked(loader):
        return []
    return [
        f"a {kind} of torch is active, which does not see what the native code does; iterate "
        "outside of it"
        for kind in active_modes()
    ]
