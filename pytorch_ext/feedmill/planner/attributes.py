"""Reads attributes of the user's objects and classes as Python does, but without running code of
anyone but Python and torch."""

from __future__ import annotations

from collections.abc import Mapping
from types import FunctionType, GetSetDescriptorType, MethodType, ModuleType
from typing import Any

from feedmill._internals import MODULE, MODULE_VALUES
from feedmill.planner.untouched import is_original

# Types whose values have the truth and the equality that Python's own types give them.
PLAIN = (type(None), bool, int, float, str)
_COLLECTIONS = (list, tuple, dict)


class NotUnderstood(Exception):
    """A function does something else than to pass an image on. The text says what, and where."""


ABSENT = object()
mro_of = type.__dict__["__mro__"].__get__
dict_of = type.__dict__["__dict__"].__get__


def of_class(kind: type, name: str) -> Any:
    """A class's attribute before any descriptor is applied; ABSENT if there is none."""
    for owner in mro_of(kind):
        if name in dict_of(owner):
            return dict_of(owner)[name]
    return ABSENT


def _defines(kind: type, name: str) -> bool:
    return of_class(kind, name) is not ABSENT


def attributes_of(instance: Any) -> Mapping[str, Any]:
    """An object's own attributes."""
    kind = type(instance)
    own = of_class(kind, "__dict__")
    if own is ABSENT:
        return {}
    if type(own) is not GetSetDescriptorType:
        raise NotUnderstood(f"{kind.__qualname__} defines __dict__")
    values = object.__getattribute__(instance, "__dict__")
    if type(values) is not dict:
        raise NotUnderstood(f"the attributes of {kind.__qualname__} are not a dict")
    return values


def attribute(instance: Any, name: str) -> Any:
    """The value of ``instance.name``, if reading it runs no code of anyone but Python and torch."""
    kind = type(instance)
    if kind is ModuleType:
        if name in vars(instance):
            return vars(instance)[name]
        raise NotUnderstood(f"the module {instance.__name__} has no {name}")
    if of_class(kind, "__getattribute__") is not object.__getattribute__:
        raise NotUnderstood(f"{kind.__qualname__} defines __getattribute__")
    in_class = of_class(kind, name)
    descriptor = type(in_class)
    if _defines(descriptor, "__set__") or _defines(descriptor, "__delete__"):
        raise NotUnderstood(f"{kind.__qualname__}.{name} is a property")
    own = attributes_of(instance)
    if name in own:
        return own[name]
    if in_class is not ABSENT:
        if descriptor is FunctionType:
            return MethodType(in_class, instance)
        if descriptor is staticmethod and type(in_class.__func__) is FunctionType:
            return in_class.__func__
        if _defines(descriptor, "__get__"):
            raise NotUnderstood(f"{kind.__qualname__}.{name} is a {descriptor.__name__}")
        return in_class
    return _of_module(instance, name, own)


def _of_module(instance: Any, name: str, own: Mapping[str, Any]) -> Any:
    """The value of an attribute that torch.nn.Module.__getattr__ finds, such as a submodule."""
    get = of_class(type(instance), "__getattr__")
    if not is_original(get, MODULE, "Module.__getattr__"):
        raise NotUnderstood(f"{type(instance).__qualname__} has no attribute {name} of its own")
    for kept in MODULE_VALUES:
        values = own.get(kept, {})
        if name in values:
            return values[name]
    raise NotUnderstood(f"{type(instance).__qualname__} has no attribute {name}")


def truth(value: Any) -> bool:
    """bool(value), if that calls no code of the value's class."""
    if type(value) in PLAIN or type(value) in _COLLECTIONS:
        return bool(value)
    kind = type(value)
    if not _defines(kind, "__bool__") and not _defines(kind, "__len__"):
        return True
    raise NotUnderstood(f"it tests the truth of a {kind.__qualname__}")
