"""Recognises collate functions that make a batch of PIL images as NVIDIA's fast_collate does.

The function is in apex's example and in NVIDIA's DeepLearningExamples, from where many scripts have
copied it. It is known by the hash of its body. A function that only calls it is evaluated from its
source, as ``evaluating`` does it for transforms.
"""

from __future__ import annotations

import ast
import functools
from dataclasses import dataclass
from types import FunctionType
from typing import Any

import numpy as np
import torch

from feedmill.planner import fingerprints
from feedmill.planner.attributes import NotUnderstood
from feedmill.planner.evaluating import Evaluator

# Hashes of its versions' bodies, which differ in how they copy a sample: of those that make
# contiguous batches, and of those that make them in the memory format that they get.
_CONTIGUOUS = frozenset({
    "593aeee484daa013", "4f7ec81891581fe2", "0fc35b04aee67f2c", "e5b401d972642786",
    "8509311c5f77b6f6", "7053d0e163692b0b",
})
_IN_GIVEN_FORMAT = frozenset({
    "eae97945ad963529", "506bd629ebaea490", "43e3a0d53ad80a37", "466e073d9e7098bb",
    "5b37a3cdff34d18c", "244ca04417afb6da",
})
_MEANINGS = {"np": "numpy", "torch": "torch"}
# What it calls, as it was when this module was imported.
_CALLED = [
    (module, name, getattr(module, name))
    for module, names in (
        (np, ("array", "asarray", "expand_dims", "rollaxis", "uint8")),
        (torch, ("from_numpy", "int64", "tensor", "uint8", "zeros")),
    )
    for name in names
]
_FORMATS = (torch.contiguous_format, torch.channels_last)


class _Batch:
    """Stands for the list of samples."""


@dataclass(frozen=True)
class _Collated:
    """Stands for (images, targets) of the batch.

    Attributes:
        memory_format: of the images.
    """

    memory_format: torch.memory_format


def memory_format_of(collate_fn: Any) -> torch.memory_format | None:
    """The memory format of the batches that a collate_fn makes: of PIL images in RGB, of one size,
    (images as uint8, targets as int64). None: it is another function. Calls nothing."""
    first: list[Any] = []
    while type(collate_fn) is functools.partial and not collate_fn.keywords:
        first = [*collate_fn.args, *first]
        collate_fn = collate_fn.func
    if type(collate_fn) is not FunctionType:
        return None
    try:
        arguments = [*first, _Batch()]
        result = _collated(collate_fn, arguments)
        if result is None:
            result = _Evaluator(collate_fn, None).result(arguments)
    except NotUnderstood:
        return None
    return result.memory_format if type(result) is _Collated else None


def _collated(function: FunctionType, arguments: list[Any]) -> _Collated | None:
    """What a call of fast_collate returns; None if the function is another one. Raises
    NotUnderstood."""
    has_format = fingerprints.has_known_body(function, _IN_GIVEN_FORMAT, _MEANINGS)
    if not has_format and not fingerprints.has_known_body(function, _CONTIGUOUS, _MEANINGS):
        return None
    if any(getattr(module, name, None) is not value for module, name, value in _CALLED):
        raise NotUnderstood("a function that it calls was replaced")
    code = function.__code__
    names = code.co_varnames[: code.co_argcount]
    defaults = function.__defaults__ or ()
    values = dict(zip(names[len(names) - len(defaults) :], defaults)) | dict(zip(names, arguments))
    if len(arguments) > len(names) or code.co_kwonlyargcount or values.keys() != set(names):
        raise NotUnderstood("it is called with other arguments")
    if type(values.pop("batch", None)) is not _Batch or values.keys() - {"memory_format"}:
        raise NotUnderstood("it is called with other arguments")
    memory_format = values["memory_format"] if has_format else torch.contiguous_format
    if not any(memory_format is one for one in _FORMATS):
        raise NotUnderstood("it is called with another memory format")
    return _Collated(memory_format)


class _Evaluator(Evaluator):
    """Evaluates a function of a batch once."""

    def _call(self, node: ast.Call) -> Any:
        function = self._value(node.func)
        arguments = [self._value(one) for one in node.args]
        if type(function) is FunctionType and not node.keywords:
            result = _collated(function, arguments)
            if result is not None:
                return result
        raise self._error(node, "it calls something else than fast_collate")

    def _concrete(self, node: ast.expr) -> Any:
        value = super()._concrete(node)
        if type(value) in (_Batch, _Collated):
            raise self._error(node, "it uses the batch in another way than to pass it on")
        return value

    def _compare(self, node: ast.Compare) -> Any:
        for one in (node.left, node.comparators[0]):
            self._concrete(one)
        return super()._compare(node)

    def _attribute(self, node: ast.Attribute) -> Any:
        self._concrete(node.value)
        return super()._attribute(node)
