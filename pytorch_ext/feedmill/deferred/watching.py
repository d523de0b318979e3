"""Whether objects are still as they were when the planner read them."""

from __future__ import annotations

import enum
import functools
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from operator import is_
from types import (
    BuiltinFunctionType,
    CodeType,
    FunctionType,
    GetSetDescriptorType,
    MemberDescriptorType,
    MethodType,
    ModuleType,
)
from typing import Any

import torch

from feedmill.planner.untouched import DECIDING_METHODS

# Values that don't change, and modules, whose functions the planner checks by themselves.
_PLAIN = (type(None), bool, int, float, str, bytes, torch.dtype, BuiltinFunctionType, ModuleType)
_DICTS = (dict, OrderedDict)
# Packages whose functions are taken to stay as they are, once the planner has checked them.
_LIBRARIES = {"torch", "torchvision", "timm", "PIL", "numpy", "math", "random", "builtins"}
_DESCRIPTORS = (GetSetDescriptorType, MemberDescriptorType)
# What torch.nn.Module keeps in each object and does not use in a call without gradients.
_OF_MODULES = {
    "_parameters", "_buffers", "_non_persistent_buffers_set", "_backward_pre_hooks",
    "_backward_hooks", "_is_full_backward_hook", "_forward_hooks_with_kwargs",
    "_forward_hooks_always_called", "_forward_pre_hooks_with_kwargs", "_state_dict_hooks",
    "_state_dict_pre_hooks", "_load_state_dict_pre_hooks", "_load_state_dict_post_hooks",
}
_MAX_OBJECTS = 512
# Stands for a name or a cell's value that there is not.
_NOTHING = object()


class CantWatchError(Exception):
    """An object may change in a way that can't be seen."""


class Watch:
    """Remembers a transform and all that it refers to, so that a change is noticed. Keeps what it
    refers to alive, but not the transform.

    Args:
        root: an object whose attributes are plain values, tensors, functions, objects of a
            library's or the script's own classes, or lists, tuples and dicts of these; so are the
            global variables that functions of the script use.
        modules: of libraries, whose functions are watched, too.

    Raises:
        CantWatchError: it refers to something else.
    """

    def __init__(self, root: Any, modules: Iterable[ModuleType] = ()) -> None:
        self._attributes = getattr(root, "__dict__", None)  # of the root
        self._kind = type(root)
        # Objects with their class, and the names and values of their attributes.
        self._objects: list[tuple[Any, type, tuple[Any, ...], tuple[Any, ...]]] = []
        # Keys in order, and their values.
        self._dicts: list[tuple[Any, tuple[Any, ...], tuple[Any, ...]]] = []
        # Some names of classes and modules.
        self._names: list[tuple[Mapping[str, Any], tuple[str, ...], tuple[Any, ...]]] = []
        self._lists: list[tuple[list[Any], tuple[Any, ...]]] = []
        self._functions: list[tuple[FunctionType, tuple[Any, ...]]] = []
        self._tensors: list[tuple[torch.Tensor, int]] = []
        # The objects, but for the root, so that no other one gets an id.
        self._seen: dict[int, Any] = {id(root): None}
        if type(self._attributes) is not dict:
            raise CantWatchError(f"it is a {type(root).__name__}")
        own = self._attributes
        self._dicts.append((own, tuple(own), tuple(own.values())))
        self._add_attributes(root, own)
        for module in modules:
            functions = [name for name, one in vars(module).items() if type(one) is FunctionType]
            self._add_names(vars(module), functions)

    def is_unchanged(self, root: Any) -> bool:
        """Whether nothing has changed. Takes about ten microseconds.

        Args:
            root: the transform.
        """
        if type(root) is not self._kind or root.__dict__ is not self._attributes:
            return False
        for held, kind, names, values in self._objects:
            if type(held) is not kind or not _is_same(held.__dict__, names, values):
                return False
        for held, names, values in self._dicts:
            if not _is_same(held, names, values):
                return False
        for mapping, names, values in self._names:
            if not all(map(is_, [mapping.get(one, _NOTHING) for one in names], values)):
                return False
        for kept, items in self._lists:
            if len(kept) != len(items) or not all(map(is_, kept, items)):
                return False
        for function, parts in self._functions:
            if not all(map(is_, _parts_of(function), parts)):
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
        elif kind is FunctionType:
            self._add_function(value)
        elif kind is MethodType:
            self._add_all((value.__func__, value.__self__))
        elif kind is functools.partial:
            self._add_all((value.func, value.args, value.keywords))
        elif kind in (staticmethod, classmethod):
            self._add(value.__func__)
        elif kind is property:
            self._add_all((value.fget, value.fset, value.fdel))
        elif isinstance(value, type):
            self._add_class(value)
        else:
            self._add_object(value)

    def _add_all(self, values: Iterable[Any]) -> None:
        for one in values:
            self._add(one)

    def _add_names(self, mapping: Mapping[str, Any], names: Iterable[str]) -> None:
        names = tuple(names)
        self._names.append((mapping, names, tuple(mapping.get(one, _NOTHING) for one in names)))

    def _add_object(self, value: Any) -> None:
        own = getattr(value, "__dict__", None)
        if type(own) is not dict:
            raise CantWatchError(f"it refers to a {type(value).__name__}")
        self._objects.append((value, type(value), tuple(own), tuple(own.values())))
        self._add_attributes(value, own)

    def _add_attributes(self, value: Any, own: dict[str, Any]) -> None:
        is_module = isinstance(value, torch.nn.Module)
        self._add_all(
            one for name, one in own.items() if not (is_module and name in _OF_MODULES)
        )
        self._add(type(value))

    def _add_class(self, kind: type) -> None:
        for owner in kind.__mro__:
            if owner is object or owner is torch.nn.Module or (
                owner is not kind and id(owner) in self._seen
            ):
                continue
            self._seen[id(owner)] = owner
            if _is_librarys(owner.__module__):
                self._add_names(vars(owner), DECIDING_METHODS & vars(owner).keys())
                continue
            self._add_names(vars(owner), vars(owner))
            self._add_all(one for one in vars(owner).values() if type(one) not in _DESCRIPTORS)

    def _add_function(self, function: FunctionType) -> None:
        parts = _parts_of(function)
        self._functions.append((function, parts))
        if _is_librarys(function.__module__):
            return
        self._add_all(parts[1:])
        names = dict.fromkeys(_names_in(function.__code__))
        self._add_names(function.__globals__, names)
        self._add_all(function.__globals__.get(one) for one in names)


def _is_same(held: Any, names: tuple[Any, ...], values: tuple[Any, ...]) -> bool:
    """Whether a dict has these keys and values, the same objects in the same order."""
    if len(held) != len(names):
        return False
    return all(map(is_, held, names)) and all(map(is_, held.values(), values))


def _is_librarys(module: Any) -> bool:
    return type(module) is str and module.partition(".")[0] in _LIBRARIES


def _parts_of(function: FunctionType) -> tuple[Any, ...]:
    """What decides about a function's result: its code, and the rest."""
    cells = function.__closure__ or ()
    return function.__code__, function.__defaults__, function.__kwdefaults__, *map(_content, cells)


def _content(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # it is empty
        return None


def _names_in(code: CodeType) -> Iterable[str]:
    """The names of global variables and attributes in a function, and in those within it."""
    yield from code.co_names
    for one in code.co_consts:
        if type(one) is CodeType:
            yield from _names_in(one)
