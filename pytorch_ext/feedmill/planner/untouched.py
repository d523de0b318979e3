"""Checks that classes, functions and objects are as their library made them.

The native path replaces code of torch and torchvision. It may do so only if nobody has changed or
replaced that code.
"""

from __future__ import annotations

from types import FunctionType
from typing import Any

import torch

from feedmill._internals import (
    METHODS,
    MissingNameError,
    are_hooks_global,
    has_hooks,
    torchvision_version,
)

# Methods that determine an object's result. Others (__repr__, describe, ...) may be replaced.
DECIDING_METHODS = METHODS | {
    "__call__", "forward", "transform", "make_params", "get_params", "check_inputs", "__getitem__",
    "__getitems__", "__len__", "__iter__", "__getattribute__", "__getattr__",
}


def is_original(function: Any, module: str, qualname: str) -> bool:
    """Whether a function is the one that its library defines as ``module.qualname``, or ours in the
    place of it."""
    function = getattr(function, "feedmill_original", function)
    return (
        isinstance(function, FunctionType)
        and function.__module__ == module
        and function.__qualname__ == qualname
        and not hasattr(function, "__wrapped__")
        and function.__globals__.get("__name__") == module
    )


def replaced_methods(kind: type, library: str) -> list[str]:
    """Names of a class's methods, including inherited ones, that are not the library's own.

    Args:
        kind: a class of the library.
        library: the library's top-level package. Base classes from other libraries, and
            torch.nn.Module, are not checked.
    """
    names = []
    for owner in kind.__mro__:
        if owner.__module__.partition(".")[0] != library or owner is torch.nn.Module:
            continue
        for name in DECIDING_METHODS & vars(owner).keys():
            function = vars(owner)[name]
            function = getattr(function, "__func__", function)  # of a static or class method
            function = getattr(function, "feedmill_original", function)
            # Some classes of v2 share methods with the v1 class of the same name.
            if not (
                isinstance(function, FunctionType)
                and function.__module__.partition(".")[0] == library
                and function.__module__ == function.__globals__.get("__name__")
                and function.__qualname__.rpartition(".")[2] == name
                and not hasattr(function, "__wrapped__")
            ):
                names.append(name)
    return sorted(names)


def shadowing_attributes(instance: Any) -> list[str]:
    """Names of the instance's attributes that hide an attribute or method of its class."""
    of_class = set(dir(type(instance)))
    return sorted(
        name
        for name in vars(instance)
        if name in of_class or (name.startswith("__") and name.endswith("__"))
    )


def hooks_of(module: torch.nn.Module) -> str:
    """The reason against a torch module with hooks; "" if it has none."""
    if has_hooks(module):
        return f"a {type(module).__name__} object has hooks; the native path does not call them"
    if are_hooks_global():
        return "global hooks of torch.nn modules are registered; the native path does not call them"
    return ""


def unreadable(what: str, error: Exception) -> str:
    """The reason against an object whose inspection failed. The cause may be a version of
    torchvision that feedmill does not know, so the reason names the version.

    Args:
        what: the object in words.
    """
    if isinstance(error, MissingNameError):
        return str(error)
    version = torchvision_version()
    with_it = f" with torchvision {version}" if version else ""
    return f"{what} could not be inspected{with_it}: {type(error).__name__}: {error}"


def type_name(kind: type) -> str:
    """A type's full name, such as "torchvision.datasets.folder.ImageFolder"."""
    return f"{kind.__module__}.{kind.__qualname__}"
