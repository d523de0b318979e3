"""The context of a report, besides the counters, at the current moment."""

from __future__ import annotations

from typing import Any

import torch

from feedmill.profiling.report.verdict import ReportContext
from feedmill.system import peer_processes
from feedmill.system.cpu_contention import on_same_cpus


def report_context_now(loader: Any = None) -> ReportContext:
    """Returns the context of a report.

    Args:
        loader: the loader whose options the report mentions. Only those of a torch DataLoader, or
            a subclass of it, are known.
    """
    options = ("pin_memory", "num_workers", "prefetch_factor", "persistent_workers")
    is_torchs = isinstance(loader, torch.utils.data.DataLoader)
    return ReportContext(
        peers=tuple(on_same_cpus(peer_processes.usable_cpus(), peer_processes.seen_peers())),
        uses_cuda=torch.cuda.is_initialized(),
        **{name: getattr(loader, name) for name in options if is_torchs},
    )
