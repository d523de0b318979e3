"""Puts feedmill's DataLoader in place of torch's in every Python process that imports torch.

Python imports this module when it starts, because its folder is on PYTHONPATH. The environment
and so the replacement reach the processes that tests start, too: spawned ones, fork servers and
``python -c``. Forked ones have it from their parent.
"""

import sys
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import PathFinder


def _replace() -> None:
    # feedmill binds torch's class while it is imported, so it comes first.
    import feedmill
    import torch.utils.data

    torch.utils.data.DataLoader = feedmill.DataLoader
    torch.utils.data.dataloader.DataLoader = feedmill.DataLoader


class _ThenReplace(Loader):
    """Loads a module by its own loader, and replaces the class right after."""

    def __init__(self, own):
        self._own = own

    def create_module(self, spec):
        return self._own.create_module(spec)

    def exec_module(self, module):
        module.__spec__.loader = module.__loader__ = self._own
        self._own.exec_module(module)
        _replace()


class _TorchFinder(MetaPathFinder):
    """Finds torch as always, once. Processes that never import it cost nothing."""

    def find_spec(self, name, path=None, target=None):
        if name != "torch":
            return None
        sys.meta_path.remove(self)
        spec = PathFinder.find_spec(name, path, target)
        if spec is not None:
            spec.loader = _ThenReplace(spec.loader)
        return spec


sys.meta_path.insert(0, _TorchFinder())
