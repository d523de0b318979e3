"""The waits of a run over all of its processes: what a state carries from one to the next."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from feedmill.profiling.counting.records import CAUSES, STORAGE_PARTS
from feedmill.profiling.report import terms
from feedmill.profiling.report.wording import percent

# The counters of a state, by their flat names. None of them changes between two steps, apart from
# those of the GPU, which is measured later than the host.
_CAUSES = {f"wait_{name}": name for name in CAUSES}
# Those of objects: what is left of the wait for storage is that for files.
_STORAGE_PARTS = tuple(name for name in STORAGE_PARTS if name != "storage_local_ns")
_NAMES = (
    "batches", "torch_batches", "host_wait_ns", "data_wait_ns", *_CAUSES,
    *_STORAGE_PARTS, "wall_ns",
    "gpu_steps", "gpu_stall_ns", "gpu_copy_ns", "gpu_wall_ns",
)
_LEAST_SHARE = 0.01  # causes below this share of the wait are not listed


class RunTotals:
    """The counters of a run's earlier processes.

    Args:
        carried: now() of an earlier process; None: the run begins in this one.
        base: the counters of this process when it went on from there. They are not part of the
            run: a loader may go back to a state of its own.
    """

    def __init__(
        self, carried: Mapping[str, int] | None = None, base: Mapping[str, Any] | None = None
    ) -> None:
        self._carried = dict(carried or {})
        self._goes_on = carried is not None
        self._base = {name: (base or {}).get(name, 0) for name in _NAMES}

    def now(self, counters: Mapping[str, Any]) -> dict[str, int]:
        """The counters of the run as JSON values, without those that are 0.

        Args:
            counters: those of this process, by their flat names.
        """
        total = {"loads": self._carried.get("loads", 0)}
        if self._goes_on and counters.get("batches", 0) > self._base["batches"]:
            total["loads"] += 1  # not before the first step, so that a state equals the loaded one
        for name in _NAMES:
            # In the child of a fork the counters begin at 0 again.
            here = max(0, counters.get(name, 0) - self._base[name])
            total[name] = self._carried.get(name, 0) + here
        return {name: value for name, value in total.items() if value}

    def lines(self, counters: Mapping[str, Any]) -> list[str]:
        """Lines of report() about the whole run; none if it began in this process."""
        if not self._goes_on:
            return []
        total = {**dict.fromkeys((*_NAMES, "loads"), 0), **self.now(counters)}
        n_loads, wait_ns = max(1, total["loads"]), total["data_wait_ns"]
        rows = [(
            "whole run",
            f"{total['batches']:,} batches since the run began, which went on from a state "
            f"{n_loads} time{'s' if n_loads > 1 else ''}; {total['wall_ns'] / 1e9:.2f} s wall time",
        ), (
            "",
            f"waited {total['host_wait_ns'] / 1e9:.3f} s in next(), {wait_ns / 1e9:.3f} s of it "
            f"for data ({percent(min(1.0, wait_ns / max(1, total['wall_ns'])))} of the wall time)",
        )]
        path = "torch" if total["torch_batches"] == total["batches"] else "native"
        causes = [
            f"{terms.cause(_CAUSES[name], path).label} {total[name] / 1e9:.3f} s "
            f"({percent(total[name] / max(1, wait_ns))})"
            for name in sorted(_CAUSES, key=lambda name: -total[name])
            if total[name] > _LEAST_SHARE * wait_ns
        ]
        if causes:
            rows.append(("", ", ".join(causes)))
        rows += _storage_rows(total, wait_ns)
        if total["gpu_steps"]:
            rows.append((
                "",
                f"the GPU waited for batches for {total['gpu_stall_ns'] / 1e9:.3f} s of "
                f"{total['gpu_wall_ns'] / 1e9:.2f} s, {total['gpu_copy_ns'] / 1e9:.3f} s of it for "
                "copies",
            ))
        return [f"  {name:<10} {text}" for name, text in rows]


def _storage_rows(total: Mapping[str, int], wait_ns: int) -> list[tuple[str, str]]:
    """What reads of objects did while steps waited for them, if that is a part of the wait."""
    parts = {name: total[name] for name in _STORAGE_PARTS}
    of_objects_ns = sum(parts.values())
    if of_objects_ns <= _LEAST_SHARE * wait_ns:
        return []
    parts["storage_local_ns"] = max(0, total["wait_storage_ns"] - of_objects_ns)
    storage_ns = sum(parts.values())
    text = ", ".join(
        f"{terms.storage_part(name).label} {ns / 1e9:.3f} s ({percent(ns / storage_ns)})"
        for name, ns in sorted(parts.items(), key=lambda one: -one[1])
        if ns > _LEAST_SHARE * storage_ns
    )
    return [("", f"storage: {text}")]


def carried_on(saved: Any, counters: Mapping[str, Any]) -> RunTotals:
    """The totals of a run that goes on from now() of an earlier process, in a process that has
    these counters."""
    known = {
        name: value for name, value in (saved.items() if isinstance(saved, dict) else ())
        if name in (*_NAMES, "loads") and type(value) is int and 0 <= value < 1 << 62
    }
    return RunTotals(known, counters)
