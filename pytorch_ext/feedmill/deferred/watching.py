"""Whether objects are still as they were when the planner read them."""

from __future__ import annotations

import dis
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

# Values that don't change.
_PLAIN = (type(None), bool, int, float, str, bytes, torch.dtype, BuiltinFunctionType)
_DICTS = (dict, OrderedDict)
# Types of which a subclass may hold more than its items.
_ITEMS = (list, tuple, dict, set, frozenset, str, bytes, int, float)
# Packages whose functions are taken to stay as they are, but for those that are asked for.
_LIBRARIES = {"torch", "torchvision", "timm", "PIL", "numpy", "math", "random", "builtins"}
_DESCRIPTORS = (GetSetDescriptorType, MemberDescriptorType)
# What torch.nn.Module keeps in each object and does not use in a call without gradients.
_OF_MODULES = {
    "_non_persistent_buffers_set", "_backward_pre_hooks", "_backward_hooks",
    "_is_full_backward_hook", "_forward_hooks_with_kwargs", "_forward_hooks_always_called",
    "_forward_pre_hooks_with_kwargs", "_state_dict_hooks", "_state_dict_pre_hooks",
    "_load_state_dict_pre_hooks", "_load_state_dict_post_hooks",
}
_MAX_OBJECTS = 512
_MAX_DEPTH = 40
_MAX_TENSOR_VALUES = 64


class CantWatchError(Exception):
    """An object may change in a way that can't be seen."""


class Watch:
    """Remembers a transform and all that it refers to, so that a change is noticed. Keeps what it
    refers to alive, but not the transform.

    Args:
        root: an object whose attributes are plain values, small tensors, functions, objects of a
            library's or the script's own classes, or lists, tuples and dicts of these; so are the
            global variables that functions of the script use. Nothing refers to the root.
        names: names of modules and classes that are watched, too: pairs of their dicts and names.

    Raises:
        CantWatchError: it refers to something else.
    """

    def __init__(
        self, root: Any, names: Iterable[tuple[Mapping[str, Any], Iterable[str]]] = ()
    ) -> None:
        self._kind = type(root)
        # Objects with their class, and the names and values of their attributes.
        self._objects: list[tuple[Any, type, tuple[Any, ...], tuple[Any, ...]]] = []
        # Keys in order, and their values.
        self._dicts: list[tuple[Any, tuple[Any, ...], tuple[Any, ...]]] = []
        # Classes with their bases; some names of classes and modules, and their values.
        self._classes: list[tuple[type, tuple[type, ...]]] = []
        self._names: list[tuple[Mapping[str, Any], tuple[str, ...], tuple[Any, ...]]] = []
        self._lists: list[tuple[list[Any], tuple[Any, ...]]] = []
        self._functions: list[tuple[FunctionType, tuple[Any, ...]]] = []
        self._tensors: list[tuple[torch.Tensor, Any]] = []
        # The objects, but for the root, so that no other one gets an id.
        self._seen: dict[int, Any] = {}
        self._root_id, self._depth = id(root), 0
        self._attributes = own = _attributes_of(root)
        self._dicts.append((own, tuple(own), tuple(own.values())))
        self._add_attributes(root, own)
        for mapping, some in names:
            self._add_names(mapping, some)

    def is_unchanged(self, root: Any) -> bool:
        """Whether nothing has changed. Takes some tens of microseconds.

        Args:
            root: the transform.
        """
        if type(root) is not self._kind or _attributes_of(root) is not self._attributes:
            return False
        for held, kind, names, values in self._objects:
            if type(held) is not kind or not _is_same(_attributes_of(held), names, values):
                return False
        for held, names, values in self._dicts:
            if not _is_same(held, names, values):
                return False
        for one, bases in self._classes:
            if one.__mro__ is not bases:
                return False
        for mapping, names, values in self._names:
            if not all(map(is_, map(mapping.get, names), values)):
                return False
        for kept, items in self._lists:
            if len(kept) != len(items) or not all(map(is_, kept, items)):
                return False
        for function, parts in self._functions:
            if not all(map(is_, _parts_of(function), parts)):
                return False
        return all(_values_of(tensor) == values for tensor, values in self._tensors)

    # ---- reading ---------------------------------------------------------------------------------

    def _add(self, value: Any) -> None:
        kind = type(value)
        if kind in _PLAIN or id(value) in self._seen:
            return
        if id(value) == self._root_id:
            raise CantWatchError("it refers to itself")
        if len(self._seen) == _MAX_OBJECTS or self._depth == _MAX_DEPTH:
            raise CantWatchError("it is made of too many objects")
        self._seen[id(value)] = value
        self._depth += 1
        self._add_new(value, kind)
        self._depth -= 1

    def _add_new(self, value: Any, kind: type) -> None:
        if kind is list:
            self._lists.append((value, tuple(value)))
            self._add_all(value)
        elif kind is tuple:
            self._add_all(value)
        elif kind in _DICTS:
            self._dicts.append((value, tuple(value), tuple(value.values())))
            self._add_all(value.values())
        elif issubclass(kind, torch.Tensor):
            self._tensors.append((value, _values_of(value)))
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
        elif issubclass(kind, type):
            self._add_class(value)
        elif issubclass(kind, ModuleType | enum.Enum):
            # The attributes of others may change.
            if not _is_librarys(value.__name__ if kind is ModuleType else kind.__module__):
                raise CantWatchError(f"it refers to {value!r}")
        elif issubclass(kind, _ITEMS):
            raise CantWatchError(f"it refers to a {kind.__name__}")
        else:
            self._add_object(value)

    def _add_all(self, values: Iterable[Any]) -> None:
        for one in values:
            self._add(one)

    def _add_names(self, mapping: Mapping[str, Any], names: Iterable[str]) -> None:
        names = tuple(names)
        self._names.append((mapping, names, tuple(map(mapping.get, names))))

    def _add_object(self, value: Any) -> None:
        own = _attributes_of(value)
        self._objects.append((value, type(value), tuple(own), tuple(own.values())))
        self._add_attributes(value, own)

    def _add_attributes(self, value: Any, own: dict[str, Any]) -> None:
        is_module = issubclass(type(value), torch.nn.Module)
        self._add_all(
            one for name, one in own.items() if not (is_module and name in _OF_MODULES)
        )
        self._add(type(value))

    def _add_class(self, kind: type) -> None:
        self._classes.append((kind, kind.__mro__))
        for owner in kind.__mro__:
            if owner is object or owner is torch.nn.Module or (
                owner is not kind and id(owner) in self._seen
            ):
                continue
            self._seen[id(owner)] = owner
            if _is_librarys(owner.__module__):
                self._add_names(vars(owner), DECIDING_METHODS | functions_in(vars(owner)))
                continue
            # All names, as a new one may hide that of a base.
            self._dicts.append((vars(owner), tuple(vars(owner)), tuple(vars(owner).values())))
            self._add_all(one for one in vars(owner).values() if type(one) not in _DESCRIPTORS)

    def _add_function(self, function: FunctionType) -> None:
        parts = _parts_of(function)
        self._functions.append((function, parts))
        if _is_librarys(function.__module__):
            return
        self._add_all(parts[1:])
        self._add(vars(function))
        names = dict.fromkeys(_globals_of(function.__code__))
        self._add_names(function.__globals__, names)
        self._add_all(function.__globals__.get(one) for one in names)


def functions_in(names: Mapping[str, Any]) -> set[str]:
    """The names of the functions and classes of a module or class."""
    return {name for name, one in names.items() if callable(one) and not name.startswith("__")}


def _attributes_of(value: Any) -> dict[str, Any]:
    """An object's own dict, without a call of its class's functions."""
    try:
        own = object.__getattribute__(value, "__dict__")
    except AttributeError:
        raise CantWatchError(f"it refers to a {type(value).__name__}") from None
    if type(own) is not dict:
        raise CantWatchError(f"it refers to a {type(value).__name__}")
    return own


def _is_same(held: Any, names: tuple[Any, ...], values: tuple[Any, ...]) -> bool:
    """Whether a dict has these keys and values, the same objects in the same order."""
    if len(held) != len(names):
        return False
    return all(map(is_, held, names)) and all(map(is_, held.values(), values))


def _is_librarys(module: Any) -> bool:
    return type(module) is str and module.partition(".")[0] in _LIBRARIES


def _values_of(tensor: torch.Tensor) -> Any:
    """A small tensor's values, and what else decides about a result."""
    if type(tensor) is not torch.Tensor or tensor.device.type != "cpu" or (
        tensor.numel() > _MAX_TENSOR_VALUES
    ):
        raise CantWatchError(f"it refers to a {type(tensor).__name__} of {tensor.numel()} values")
    return tensor.tolist(), tensor.dtype, tensor.shape, tensor.requires_grad


def _parts_of(function: FunctionType) -> tuple[Any, ...]:
    """What decides about a function's result: its code, and the rest."""
    cells = function.__closure__ or ()
    return function.__code__, function.__defaults__, function.__kwdefaults__, *map(_content, cells)


def _content(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # it is empty
        return None


def _globals_of(code: CodeType) -> Iterable[str]:
    """The names of global variables in a function, and in those within it."""
    for one in dis.get_instructions(code):
        if one.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
            yield str(one.argval)
        elif one.opname == "IMPORT_NAME" and not _is_librarys(one.argval):
            raise CantWatchError(f"it imports {one.argval}")
    for constant in code.co_consts:
        if type(constant) is CodeType:
            yield from _globals_of(constant)
