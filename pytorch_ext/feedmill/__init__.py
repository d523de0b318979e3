"""feedmill: a native data loader for PyTorch image training.

    from feedmill import DataLoader

takes the place of ``torch.utils.data.DataLoader``: same arguments, same batches, same order.
``feedmill.watch()`` counts the waits for any other loader.

``loader`` defines the class. The rest is in subpackages; the docstring of each names the others
that it may import:

- ``_dispatch``: which path an iteration takes (native, hybrid or torch's), and the options.
- ``iterators``: the iterators of these paths, and how they finish what the engine leaves to Python.
- ``engine``: the native loaders behind one DataLoader: their configuration, memory and devices.
- ``collate``: a user's collate_fn, called ahead of its batch's turn.
- ``planner``: which datasets, transforms and samplers the native path supports.
- ``data``: datasets that torch's own DataLoader takes as well, and ``imread``.
- ``deferred``: Pillow images that are decoded only as far as somebody uses them.
- ``handover``: batches from worker processes through memory that is used again.
- ``remote``: names such as s3://bucket/key, and the credentials to read them.
- ``packing``: datasets in tar shards, ``Pack`` and ``WebDataset``, and the writer of packs.
- ``indexing``: ``Index``, the images of a bucket or a folder, listed once.
- ``profiling``: counters, stall attribution, reports, logs, and loaders that are not ours.
- ``system``: facts about the machine, this process and other processes, and fork-safe locks.
- ``integrations``: other libraries' own ways to build loaders.
- ``cli``: the command ``feedmill``.

``_ops`` binds the extension module, and ``_internals`` has all private names of torch and
torchvision; any file may import these two.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from feedmill._ops import __version__

if TYPE_CHECKING:
    from feedmill.data.reading import imread
    from feedmill.deferred import deferred_images
    from feedmill.indexing.dataset import Index
    from feedmill.integrations.accelerate import keep_in_accelerate, prepare, skip_first_batches
    from feedmill.iterators.verify import VerificationError
    from feedmill.loader import DataLoader
    from feedmill.packing.dataset import Pack
    from feedmill.packing.webdataset import WebDataset
    from feedmill.profiling.counting.collectives import collective
    from feedmill.profiling.log.scalars import log_scalars
    from feedmill.profiling.report.stats import Stats
    from feedmill.profiling.watching.watched import watch

__all__ = [
    "DataLoader",
    "Index",
    "Pack",
    "Stats",
    "VerificationError",
    "WebDataset",
    "__version__",
    "collective",
    "deferred_images",
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
    "Index": "indexing.dataset",
    "Pack": "packing.dataset",
    "Stats": "profiling.report.stats",
    "VerificationError": "iterators.verify",
    "WebDataset": "packing.webdataset",
    "collective": "profiling.counting.collectives",
    "deferred_images": "deferred",
    "imread": "data.reading",
    "keep_in_accelerate": "integrations.accelerate",
    "log_scalars": "profiling.log.scalars",
    "prepare": "integrations.accelerate",
    "skip_first_batches": "integrations.accelerate",
    "watch": "profiling.watching.watched",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'feedmill' has no attribute {name!r}")
    try:
        home = importlib.import_module(f"feedmill.{_HOMES[name]}")
    except ModuleNotFoundError as error:
        from feedmill.system.requirements import missing_package

        if text := missing_package(error):
            raise ModuleNotFoundError(text, name=error.name) from None
        raise
    value = getattr(home, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
