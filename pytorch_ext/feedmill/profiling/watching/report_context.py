"""Collects the facts besides the counters that a report mentions."""

from __future__ import annotations

from typing import Any

import torch

from feedmill.profiling.report.verdict import ReportContext
from feedmill.system import peer_processes
from feedmill.system.cpu_contention import on_same_cpus


def report_context_now(loader: Any = None) -> ReportContext:
    """Returns the context of a report at this moment.

    Args:
        loader: the loader whose options the report mentions. Options are known only of torch's
            DataLoader and its subclasses.
    """
    options = ("pin_memory", "num_workers", "prefetch_factor", "persistent_workers")
    is_torchs = isinstance(loader, torch.utils.data.DataLoader)
    return ReportContext(
        peers=tuple(on_same_cpus(peer_processes.usable_cpus(), peer_processes.seen_peers())),
        uses_cuda=torch.cuda.is_initialized(),
        **{name: getattr(loader, name) for name in options if is_torchs},
    )
