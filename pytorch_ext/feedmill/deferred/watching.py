"""Whether objects are still as they were when somebody read them."""

from __future__ import annotations

import enum
from collections import OrderedDict
from collections.abc import Callable, Iterable
from operator import is_
from typing import Any

import torch

from feedmill.planner.untouched import DECIDING_METHODS

# Values that don't change.
_PLAIN = (type(None), bool, int, float, str, bytes, torch.dtype)
_DICTS = (dict, OrderedDict)
# What torch.nn.Module keeps in each object and does not use in a call without gradients.
_OF_MODULES = {
    "_parameters", "_buffers", "_non_persistent_buffers_set", "_backward_pre_hooks",
    "_backward_hooks", "_is_full_backward_hook", "_forward_hooks_with_kwargs",
    "_forward_hooks_always_called", "_forward_pre_hooks_with_kwargs", "_state_dict_hooks",
    "_state_dict_pre_hooks", "_load_state_dict_pre_hooks", "_load_state_dict_post_hooks",
}
_MAX_OBJECTS = 256


class CantWatchError(Exception):
    """An object may change in a way that can't be seen."""


class Watch:
    """Remembers an object and all that it refers to, so that a change is noticed.

    Args:
        root: an object of a class that ``is_known()`` accepts. Its attributes are such objects,
            plain values, tensors, or lists, tuples and dicts of these.
        is_known: whether objects of a class are determined by their attributes, and the class by
            its methods.

    Raises:
        CantWatchError: it refers to something else.
    """

    def __init__(self, root: Any, is_known: Callable[[type], bool]) -> None:
        self._is_known = is_known
        # Objects, dicts and classes with the names and values that they have.
        self._objects: list[tuple[Any, tuple[Any, ...], tuple[Any, ...]]] = []
        self._dicts: list[tuple[Any, tuple[Any, ...], tuple[Any, ...]]] = []
        self._classes: list[tuple[type, tuple[str, ...], tuple[Any, ...]]] = []
        self._lists: list[tuple[list[Any], tuple[Any, ...]]] = []
        self._tensors: list[tuple[torch.Tensor, int]] = []
        self._seen: dict[int, Any] = {}
        self._add(root)

    def is_unchanged(self) -> bool:
        """Whether nothing has changed. Takes some microseconds."""
        for held, names, values in self._objects:
            if not _is_same(held.__dict__, names, values):
                return False
        for held, names, values in self._dicts:
            if not _is_same(held, names, values):
                return False
        for owner, names, values in self._classes:
            if not all(map(is_, map(vars(owner).get, names), values)):
                return False
        for kept, items in self._lists:
            if len(kept) != len(items) or not all(map(is_, kept, items)):
                return False
        return all(tensor._version == version for tensor, version in self._tensors)

    def _add(self, value: Any) -> None:
        kind = type(value)
        if kind in _PLAIN or isinstance(value, enum.Enum) or id(value) in self._seen:
            return
        if len(self._seen) == _MAX_OBJECTS:
            raise CantWatchError("it is made of too many objects")
        self._seen[id(value)] = value
        if kind is list:
            self._lists.append((value, tuple(value)))
            self._add_all(value)
        elif kind is tuple:
            self._add_all(value)
        elif kind in _DICTS:
            self._dicts.append((value, tuple(value), tuple(value.values())))
            self._add_all(value.values())
        elif kind is torch.Tensor:
            self._tensors.append((value, value._version))
        elif self._is_known(kind):
            self._add_object(value)
        else:
            raise CantWatchError(f"it refers to a {kind.__name__}")

    def _add_all(self, values: Iterable[Any]) -> None:
        for one in values:
            self._add(one)

    def _add_object(self, value: Any) -> None:
        own = value.__dict__
        names = tuple(own)
        self._objects.append((value, names, tuple(own.values())))
        self._add_all(one for name, one in own.items() if name not in _OF_MODULES)
        for owner in type(value).__mro__:
            if id(owner) in self._seen or owner is object or owner is torch.nn.Module:
                continue
            self._seen[id(owner)] = owner
            methods = tuple(DECIDING_METHODS & vars(owner).keys())
            if methods:
                self._classes.append((owner, methods, tuple(map(vars(owner).get, methods))))


def _is_same(held: Any, names: tuple[Any, ...], values: tuple[Any, ...]) -> bool:
    """Whether a dict has these keys and values, the same objects in the same order."""
    if len(held) != len(names):
        return False
    return all(map(is_, held, names)) and all(map(is_, held.values(), values))
