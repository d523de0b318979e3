"""Whether classes, functions and objects are as their library made them.

The native path stands in for code of torch and torchvision; it may do so only as long as that code
is the one that was looked at, and nobody has put something else in its place.
"""

from __future__ import annotations

from types import FunctionType
from typing import Any

import torch

# What decides about an object's result. Other methods (__repr__, describe, ...) may be anybody's.
_METHODS = frozenset({
    "__call__", "forward", "transform", "_transform", "make_params", "_get_params", "get_params",
    "check_inputs", "_check_inputs", "_needs_transform_list", "_call_kernel", "__getitem__",
    "__getitems__", "__len__", "__iter__", "__getattribute__", "__getattr__",
})


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
    if any(value for key, value in vars(module).items() if key.endswith("_hooks")):
        return f"a {type(module).__name__} object has hooks"
    everywhere = vars(torch.nn.modules.module)
    if any(
        value
        for key, value in everywhere.items()
        if key.startswith("_global_") and key.endswith("_hooks")
    ):
        return "global hooks are registered for torch.nn modules"
    return ""


def type_name(kind: type) -> str:
    """Such as "torchvision.datasets.folder.ImageFolder"."""
    return f"{kind.__module__}.{kind.__qualname__}"
