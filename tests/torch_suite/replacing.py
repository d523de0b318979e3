"""Changes a module right after it was imported, in every Python process of a test: sitecustomize.py
calls this, and so do the processes that tests start."""

import sys
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import PathFinder


def call_after_import(name, function):
    """Calls function(module) when the module of that name was imported. Processes that never import
    it pay nothing."""
    sys.meta_path.insert(0, _Finder(name, function))


class _ThenCall(Loader):
    """Loads a module by its own loader, and calls the function right after."""

    def __init__(self, own, function):
        self._own, self._function = own, function

    def create_module(self, spec):
        return self._own.create_module(spec)

    def exec_module(self, module):
        module.__spec__.loader = module.__loader__ = self._own
        self._own.exec_module(module)
        self._function(module)


class _Finder(MetaPathFinder):
    """Finds the module as always, once."""

    def __init__(self, name, function):
        self._name, self._function = name, function

    def find_spec(self, name, path=None, target=None):
        if name != self._name:
            return None
        sys.meta_path.remove(self)
        spec = PathFinder.find_spec(name, path, target)
        if spec is not None:
            spec.loader = _ThenCall(spec.loader, self._function)
        return spec
