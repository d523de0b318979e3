"""How a DataLoader's worker processes are started."""

from __future__ import annotations

import multiprocessing
from typing import Any


def is_forked(loader: Any) -> bool:
    """Whether torch's worker processes would be forked, and so nothing be pickled."""
    context = loader.multiprocessing_context
    if context is None:
        # Not get_start_method() alone, which would settle the default for good.
        method = multiprocessing.get_start_method(allow_none=True)
        return (method or multiprocessing.get_all_start_methods()[0]) == "fork"
    return bool(context.get_start_method() == "fork")
