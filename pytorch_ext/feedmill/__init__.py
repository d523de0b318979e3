"""feedmill: a native data loader for PyTorch image training.

    from feedmill import DataLoader

takes the place of ``torch.utils.data.DataLoader``: same arguments, same batches, same order.
``feedmill.watch()`` counts the waits for any other loader.

The files of this folder are the loader: ``loader``, ``paths`` and ``iterator`` are the way in. What
it stands on is in rooms, whose ``__init__`` says which other ones they import:

- ``recognition``: what the native path can stand in for.
- ``data``: datasets that torch's own DataLoader takes as well, and ``imread``.
- ``pack``: datasets in tar shards, ``Pack`` and ``WebDataset``, and what makes packs.
- ``host``: facts about machine, process and neighbours.
- ``counting``, ``report``: what steps waited for, and what follows from it.
- ``log``, ``page``: a run written to a file, and that as a page.
- ``watching``: loaders that are somebody else's.
- ``commands``: the command ``feedmill``.

``_ops`` binds the extension module, and ``_internals`` has all private names of torch and
torchvision; any file may import these two.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from feedmill._ops import __version__

if TYPE_CHECKING:
    from feedmill.accelerated import keep_in_accelerate, prepare, skip_first_batches
    from feedmill.data.reading import imread
    from feedmill.loader import DataLoader
    from feedmill.log.scalars import log_scalars
    from feedmill.pack.dataset import Pack
    from feedmill.pack.webdataset import WebDataset
    from feedmill.report.stats import Stats
    from feedmill.verify import VerificationError
    from feedmill.watching.watched import watch

__all__ = [
    "DataLoader",
    "Pack",
    "Stats",
    "VerificationError",
    "WebDataset",
    "__version__",
    "imread",
    "keep_in_accelerate",
    "log_scalars",
    "prepare",
    "skip_first_batches",
    "watch",
]

# Imported when they are first asked for: with most of them comes torch, which the command line can
# do without, and which takes seconds.
_HOMES = {
    "DataLoader": "loader",
    "Pack": "pack.dataset",
    "Stats": "report.stats",
    "VerificationError": "verify",
    "WebDataset": "pack.webdataset",
    "imread": "data.reading",
    "keep_in_accelerate": "accelerated",
    "log_scalars": "log.scalars",
    "prepare": "accelerated",
    "skip_first_batches": "accelerated",
    "watch": "watching.watched",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'feedmill' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"feedmill.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
