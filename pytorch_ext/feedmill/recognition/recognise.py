"""Decides whether a DataLoader can run natively.

The check is strict: exact types, untouched classes, untouched instances. Whatever might give other
batches than the native code is left to torch, with a reason in plain words.
"""

from __future__ import annotations

import functools
import sys
from typing import Any

import torch
from torch.utils.data._utils import collate as torch_collate

from feedmill.recognition.datasets import read_dataset
from feedmill.recognition.formats import formatted
from feedmill.recognition.samples import Source

# Functions of libraries that do no more than seed random generators. Natively only a collate_fn may
# ask those, and the function is called before it.
_SEEDING = frozenset({
    ("transformers.trainer_utils", "seed_worker"),
    ("lightning.fabric.utilities.seed", "pl_worker_init_function"),
    ("lightning_fabric.utilities.seed", "pl_worker_init_function"),
    ("timm.data.loader", "_worker_init"),
})


def recognise(loader: Any) -> Source | list[str]:
    """The samples of a DataLoader and their plan, as dataset, transforms and options are now, or
    all reasons why it can't run natively.

    Draws no random number and changes nothing.
    """
    reasons = _collate_reasons(loader) + _worker_reasons(loader)
    source = read_dataset(loader.dataset)
    options = loader._feedmill_options()
    if isinstance(source, list) and options.native == "hybrid" and not _worker_reasons(loader):
        return _hybrid(loader, reasons + source)
    if isinstance(source, list):
        return reasons + source
    reasons += source.why_not(loader, has_default_collate(loader))
    if reasons:
        return reasons
    source.plan = formatted(source.plan, options.dtype, options.memory_format)
    return source


def _hybrid(loader: Any, reasons: list[str]) -> Source | list[str]:
    """The samples, with transforms that are called as they are."""
    source = read_dataset(loader.dataset, calls_transforms=True)
    if isinstance(source, list):
        return reasons
    source.reasons = reasons
    return source


def has_default_collate(loader: Any) -> bool:
    """Whether batches are put together by torch's own function."""
    auto_collation = loader.batch_sampler is not None
    return loader.collate_fn is (
        torch_collate.default_collate if auto_collation else torch_collate.default_convert
    )


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
    functions = torch_collate.default_collate_fn_map
    if functions.get(torch.Tensor) is not getattr(torch_collate, "collate_tensor_fn", None):
        return ["torch's default_collate was changed for tensors"]
    if any(isinstance((), kind) for kind in functions):
        return ["torch's default_collate was changed for tuples"]
    return []


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
