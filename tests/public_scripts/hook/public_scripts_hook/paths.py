"""What path a DataLoader of feedmill's took."""

from __future__ import annotations

import sys
from typing import Any


def path_of(loader: Any) -> dict[str, Any]:
    """Says which path a loader took.

    Returns:
        "path" ("native", "deferred", "torch" or what is wrong), "reasons", "counters" and
        "asks_for_own_draws" (whether the script or the command asks for feedmill's own random
        numbers, with seed= or rng="feedmill"); nothing without feedmill.
    """
    if "feedmill.loader" not in sys.modules:
        return {}
    kind = sys.modules["feedmill.loader"].DataLoader
    if not isinstance(loader, kind):
        return {"path": "not feedmill's"}
    try:
        stats = kind.stats(loader)
    except Exception as error:
        return {"path": f"unknown: {type(error).__name__}: {error}"}
    flat = stats.flat()
    counters = (
        "native_samples", "fallback_samples", "verified_samples", "torch_batches",
        "deferred_images", "deferred_ordinary", "deferred_parts", "deferred_whole",
        "deferred_opencv", "deferred_endings",
    )
    options = kind._feedmill_options(loader)
    is_deferred = stats.path == "torch" and stats.deferred.images + stats.deferred.opencv > 0
    return {
        "path": "deferred" if is_deferred else stats.path,
        "reasons": list(stats.reasons),
        "counters": {name: flat.get(name) for name in counters},
        "asks_for_own_draws": options.seed is not None or options.rng == "feedmill",
    }
