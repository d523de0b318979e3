"""report(all_ranks=True): one report on all ranks of a distributed training."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch.distributed as dist

from feedmill.profiling.counting.records import KEPT_STEPS, STEP_DTYPE
from feedmill.profiling.report.straggler_text import straggler_lines
from feedmill.profiling.report.stragglers import (
    PARTS,
    OwnTimes,
    basis_of,
    compare,
    own_times,
)

# Memory for the own times of all ranks, which each rank holds. It limits how many of the latest
# steps are compared.
_MAX_BYTES = 256 << 20
_MAX_STEPS = 16384


def report_on_all_ranks(report: Callable[[], tuple[str, str, np.ndarray]]) -> str:
    """The report on the ranks of the default process group. All of them must call this, as it is
    a collective operation, and all get the same text.

    Args:
        report: returns this rank's report, its path and its steps (STEP_DTYPE).

    Raises:
        RuntimeError: there is no process group, or the report of a rank failed; on all ranks.
    """
    if not (dist.is_available() and dist.is_initialized()):
        raise RuntimeError(
            "report(all_ranks=True) needs torch.distributed's default process group, as a script "
            "under torchrun has it after torch.distributed.init_process_group(); each rank must "
            "call it before destroy_process_group()"
        )
    # A rank that failed before the collective operation would leave the others waiting in it.
    error: Exception | None = None
    text, path, steps = "", "none", np.empty(0, STEP_DTYPE)
    try:
        text, path, steps = report()
    except Exception as failure:
        error = failure
    known = _gathered({
        "error": "" if error is None else f"{type(error).__name__}: {error}",
        "verdict": text.partition("\n")[0],
        "path": path,
        "is_full": len(steps) >= KEPT_STEPS,
        "basis": _samples_for_basis(steps),
    })
    failed = [f"rank {rank}: {one['error']}" for rank, one in enumerate(known) if one["error"]]
    if failed:
        raise RuntimeError(f"report(all_ranks=True) failed; {'; '.join(failed)}") from error
    basis = basis_of([_from_bytes(one["basis"], STEP_DTYPE) for one in known])
    n_most = min(_MAX_STEPS, _MAX_BYTES // (len(known) * 8 * (len(PARTS) + 1)))
    own = own_times(steps, basis)
    latest = steps[np.argsort(steps["request_ns"], kind="stable")][-n_most:]
    times = _gathered({
        "keys": own.keys[-n_most:].tobytes(),
        "parts": own.parts[-n_most:].tobytes(),
        "n_epochs": int(own.keys[-1] >> 32) + 1 if len(own.keys) else 0,
        "total_ns": int(latest["host_wait_ns"].sum() + latest["compute_ns"].sum()),
    })
    # Records of the first epochs may be gone on some ranks only.
    aligns_ends = any(one["is_full"] for one in known)
    n_epochs = max(one["n_epochs"] for one in times)
    ranks = {}
    for rank, one in enumerate(times):
        keys = np.frombuffer(one["keys"], np.int64)
        if aligns_ends:
            keys = keys + (n_epochs - one["n_epochs"] << 32)
        ranks[rank] = OwnTimes(
            keys, np.frombuffer(one["parts"], np.int64).reshape(-1, len(PARTS))
        )
    lines = straggler_lines(
        compare(ranks, basis),
        max(one["total_ns"] for one in times),
        {rank: one["path"] for rank, one in enumerate(known)},
    )
    return "\n".join([*lines, *(f"rank {at}: {one['verdict']}" for at, one in enumerate(known))])


def _gathered(value: dict[str, Any]) -> list[dict[str, Any]]:
    """The values of all ranks, in their order. With NCCL, torch sends them from the current GPU."""
    values: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(values, value)
    return values


def _samples_for_basis(steps: np.ndarray) -> bytes:
    """One step that has what any of these steps has, which is all that basis_of() looks at."""
    one = np.zeros(min(1, len(steps)), STEP_DTYPE)
    for name in ("gpu_known", "n_collectives") if len(steps) else ():
        one[name] = steps[name].max()
    return one.tobytes()


def _from_bytes(data: bytes, dtype: np.dtype) -> np.ndarray:
    return np.frombuffer(data, dtype)
