"""What a report says beside the counters, as it is now."""

from __future__ import annotations

from typing import Any

import torch

from feedmill.host import neighbours
from feedmill.host.crowding import on_same_cpus
from feedmill.report.verdict import Around


def around_now(loader: Any = None) -> Around:
    """What a report says beside the counters.

    Args:
        loader: whose options are named; anything but torch's DataLoader has none.
    """
    options = ("pin_memory", "num_workers", "prefetch_factor", "persistent_workers")
    is_torchs = isinstance(loader, torch.utils.data.DataLoader)
    return Around(
        neighbours=tuple(on_same_cpus(neighbours.usable_cpus(), neighbours.met())),
        uses_cuda=torch.cuda.is_initialized(),
        **{name: getattr(loader, name) for name in options if is_torchs},
    )
