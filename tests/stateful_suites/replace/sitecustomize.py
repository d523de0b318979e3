"""Puts feedmill's DataLoader in place of torchdata's StatefulDataLoader in every Python process.

Python imports this module when it starts, because its folder is on PYTHONPATH; the processes that
tests start have it, too.
"""

import sys
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import PathFinder

_MODULE = "torchdata.stateful_dataloader"


def _replace(module):
    import feedmill

    class StatefulDataLoader(feedmill.DataLoader):
        """Takes the one argument that torchdata's class has besides torch's. It says how often a
        worker sends its state, of which feedmill needs none."""

        def __init__(self, *args, snapshot_every_n_steps=1, **kwargs):
            super().__init__(*args, **kwargs)

    StatefulDataLoader.__module__ = "feedmill"
    module.StatefulDataLoader = StatefulDataLoader


class _ThenReplace(Loader):
    """Loads a module by its own loader, and replaces the class right after."""

    def __init__(self, own):
        self._own = own

    def create_module(self, spec):
        return self._own.create_module(spec)

    def exec_module(self, module):
        module.__spec__.loader = module.__loader__ = self._own
        self._own.exec_module(module)
        _replace(module)


class _Finder(MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name != _MODULE:
            return None
        sys.meta_path.remove(self)
        spec = PathFinder.find_spec(name, path, target)
        if spec is not None:
            spec.loader = _ThenReplace(spec.loader)
        return spec


sys.meta_path.insert(0, _Finder())
