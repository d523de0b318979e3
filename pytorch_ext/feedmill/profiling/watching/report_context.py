"""What a report says beside the counters, as it is now."""

from __future__ import annotations

from typing import Any

import torch

from feedmill.profiling.report.verdict import ReportContext
from feedmill.system import peer_processes
from feedmill.system.cpu_contention import on_same_cpus


def report_context_now(loader: Any = None) -> ReportContext:
    """What a report says beside the counters.

    Args:
        loader: whose options are named; anything but torch's DataLoader has none.
    """
    options = ("pin_memory", "num_workers", "prefetch_factor", "persistent_workers")
    is_torchs = isinstance(loader, torch.utils.data.DataLoader)
    return ReportContext(
        neighbours=tuple(on_same_cpus(peer_processes.usable_cpus(), peer_processes.met())),
        uses_cuda=torch.cuda.is_initialized(),
        **{name: getattr(loader, name) for name in options if is_torchs},
    )
