"""Decides whether a DataLoader can run natively.

The check is strict: exact types, untouched classes, untouched instances. Whatever might give other
batches than the native code is left to torch, with a reason in plain words.
"""

from __future__ import annotations

import functools
import sys
from dataclasses import replace
from typing import Any

import torch
from torch.utils.data import default_collate, default_convert

from feedmill._internals import why_collate_was_changed, why_not_this_torch
from feedmill.planner.datasets import read_dataset
from feedmill.planner.equality import reasons_against_formats, rejected_formats
from feedmill.planner.formats import formatted
from feedmill.planner.samples import Support, unsupported
from feedmill.planner.untouched import unreadable

# Functions of libraries that do no more than seed random generators. Natively only a collate_fn may
# ask those, and the function is called before it.
_SEEDING = frozenset({
    ("transformers.trainer_utils", "seed_worker"),
    ("lightning.fabric.utilities.seed", "pl_worker_init_function"),
    ("lightning_fabric.utilities.seed", "pl_worker_init_function"),
    ("timm.data.loader", "_worker_init"),
})


def recognise(loader: Any) -> Support:
    """Which path can run a DataLoader, as its dataset, transforms and options are now.

    Draws no random number and changes nothing.
    """
    try:
        if reasons := why_not_this_torch():
            return unsupported(*reasons)
        return _recognise(loader)
    except Exception as error:  # torch's path raises what is wrong with the dataset itself
        return unsupported(unreadable("the DataLoader", error))


def _recognise(loader: Any) -> Support:
    reasons = _collate_reasons(loader) + _worker_reasons(loader)
    options = loader._feedmill_options()
    support = read_dataset(loader.dataset)
    source = support.source
    if source is None:
        reasons += support.reasons
        is_hybrid = options.native == "hybrid" and not _worker_reasons(loader)
        return _hybrid(loader, reasons) if is_hybrid else unsupported(*reasons)
    reasons += source.why_not(loader, has_default_collate(loader))
    if reasons:
        return unsupported(*reasons)
    source.plan = formatted(source.native_plan, options.dtype, options.memory_format)
    if source.arrays is None and not source.copies:
        source.plan = replace(source.native_plan, rejected_formats=rejected_formats())
        source.notes = reasons_against_formats()
    return support


def _hybrid(loader: Any, reasons: list[str]) -> Support:
    """The samples for hybrid mode, which calls the transforms; ``reasons`` rule out the native
    path."""
    return Support(read_dataset(loader.dataset, calls_transforms=True).source, tuple(reasons))


def has_default_collate(loader: Any) -> bool:
    """Whether batches are put together by torch's own function."""
    auto_collation = loader.batch_sampler is not None
    return loader.collate_fn is (default_collate if auto_collation else default_convert)


def only_seeds(function: Any) -> bool:
    """Whether a worker_init_fn is known to do no more than seed random generators."""
    while isinstance(function, functools.partial):
        if any(map(callable, (*function.args, *function.keywords.values()))):
            return False
        function = function.func
    return any(
        function is getattr(sys.modules.get(module), name, None) for module, name in _SEEDING
    )


def _collate_reasons(loader: Any) -> list[str]:
    if not callable(loader.collate_fn):
        return ["collate_fn can't be called"]
    if not has_default_collate(loader):
        return []
    changed = why_collate_was_changed(torch.Tensor)
    return [changed] if changed else []


def _worker_reasons(loader: Any) -> list[str]:
    function = loader.worker_init_fn
    called = loader._feedmill_options().worker_init != "ignore"
    if function is None or loader.num_workers == 0 or not called:
        return []
    if only_seeds(function):
        return []
    return [
        "worker_init_fn is given, and there are no Python workers natively; if its work is not "
        'needed there, say worker_init="ignore"'
    ]
