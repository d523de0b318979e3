"""Copies of the user's dataset with another transform, whose __getitem__ makes samples with the
native loader's draws."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from feedmill.planner.samples import BaseDataset


def copy_of(base_dataset: BaseDataset, transform: Callable[..., Any]) -> Any:
    """A shallow copy of a base dataset's dataset with another transform."""
    if base_dataset.with_transform is not None:
        return base_dataset.with_transform(transform, copy_with)
    return copy_with(base_dataset.dataset, transform)


def copy_with(dataset: Any, transform: Callable[..., Any]) -> Any:
    """A shallow copy of a dataset with another transform, in the attributes ``transform`` and
    ``transforms``."""
    kind = type(dataset)
    slots = [name for name in ("transform", "transforms") if hasattr(dataset, name)]
    # A property or other class attribute is overridden by an attribute of a subclass. That must not
    # be a function, which would become a method.
    names = {name: _NoMethod(transform) for name in slots if hasattr(kind, name)}
    copied: Any = object.__new__(type(kind.__name__, (kind,), names) if names else kind)
    for name in _slot_names(kind):
        if hasattr(dataset, name):
            object.__setattr__(copied, name, getattr(dataset, name))
    if hasattr(dataset, "__dict__"):
        vars(copied).update(vars(dataset))
    for name in slots:
        if name not in names:
            object.__setattr__(copied, name, transform)
    return copied


class _NoMethod:
    """A callable that, as a class attribute, does not become a method."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function

    def __call__(self, *arguments: Any) -> Any:
        return self._function(*arguments)


def _slot_names(kind: type) -> list[str]:
    names = []
    for owner in kind.__mro__:
        own = vars(owner).get("__slots__", ())
        names += [own] if isinstance(own, str) else list(own)
    return [name for name in names if name not in ("__dict__", "__weakref__")]
