"""Whether classes, functions and objects are as their library made them.

The native path stands in for code of torch and torchvision; it may do so only as long as that code
is the one that was looked at, and nobody has put something else in its place.
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

# What decides about an object's result. Other methods (__repr__, describe, ...) may be anybody's.
_METHODS = METHODS | {
    "__call__", "forward", "transform", "make_params", "get_params", "check_inputs", "__getitem__",
    "__getitems__", "__len__", "__iter__", "__getattribute__", "__getattr__",
}


def is_original(function: Any, module: str, qualname: str) -> bool:
    """Whether a function is the one that the library defines under that name."""
    return (
        isinstance(function, FunctionType)
        and function.__module__ == module
        and function.__qualname__ == qualname
        and not hasattr(function, "__wrapped__")
        and function.__globals__.get("__name__") == module
    )


def replaced_methods(kind: type, library: str) -> list[str]:
    """Names of a class's methods, inherited ones included, that are not the library's own.

    Args:
        kind: a class of the library.
        library: first part of the library's module names. Classes of other libraries among the
            base classes are not looked at, nor is torch.nn.Module.
    """
    names = []
    for owner in kind.__mro__:
        if owner.__module__.partition(".")[0] != library or owner is torch.nn.Module:
            continue
        for name in _METHODS & vars(owner).keys():
            function = vars(owner)[name]
            function = getattr(function, "__func__", function)  # of a static or class method
            # v2 transforms take some methods over from the v1 class of the same name.
            if not (
                isinstance(function, FunctionType)
                and function.__module__.partition(".")[0] == library
                and function.__module__ == function.__globals__.get("__name__")
                and function.__qualname__.rpartition(".")[2] == name
                and not hasattr(function, "__wrapped__")
            ):
                names.append(name)
    return sorted(names)


def shadows(instance: Any) -> list[str]:
    """Names of the instance's own attributes that hide something of its class."""
    of_class = set(dir(type(instance)))
    return sorted(
        name
        for name in vars(instance)
        if name in of_class or (name.startswith("__") and name.endswith("__"))
    )


def hooks_of(module: torch.nn.Module) -> str:
    """Text: which hooks run around a torch module; "" if there are none."""
    if has_hooks(module):
        return f"a {type(module).__name__} object has hooks"
    if are_hooks_global():
        return "global hooks are registered for torch.nn modules"
    return ""


def unreadable(what: str, error: Exception) -> str:
    """The reason against something that could not be looked at, as a version of torchvision that
    feedmill does not know may have changed it."""
    if isinstance(error, MissingNameError):
        return str(error)
    version = torchvision_version()
    with_it = f" with torchvision {version}" if version else ""
    return f"{what} could not be looked at{with_it}: {type(error).__name__}: {error}"


def type_name(kind: type) -> str:
    """Such as "torchvision.datasets.folder.ImageFolder"."""
    return f"{kind.__module__}.{kind.__qualname__}"
