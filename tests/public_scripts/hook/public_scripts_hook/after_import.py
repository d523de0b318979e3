"""Calls functions right after modules were imported."""

from __future__ import annotations

import importlib.abc
import sys
import types
from collections.abc import Callable
from typing import Any


def call_after_import(name: str, function: Callable[[types.ModuleType], None]) -> None:
    """Calls ``function`` with the module of that name, right after its code has run."""
    sys.meta_path.insert(0, _After(name, function))


class _After(importlib.abc.MetaPathFinder):
    """Finds a module with the other finders, and calls a function after its import."""

    def __init__(self, name: str, function: Callable[[types.ModuleType], None]) -> None:
        self._name = name
        self._function = function
        self._is_finding = False

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name != self._name or self._is_finding:
            return None
        self._is_finding = True
        try:
            specs = (finder.find_spec(name, path, target) for finder in list(sys.meta_path))
            spec = next((one for one in specs if one is not None), None)
        finally:
            self._is_finding = False
        if spec is not None and spec.loader is not None:
            _call_after(spec.loader, self._function)
        return spec


def _call_after(loader: Any, function: Callable[[types.ModuleType], None]) -> None:
    execute = loader.exec_module

    def exec_module(module: types.ModuleType) -> None:
        execute(module)
        function(module)

    loader.exec_module = exec_module
