"""Whether more threads want to run than there are CPUs, and which setting to change."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from feedmill.system.peer_processes import Neighbour

_NAMED_PIDS, _NAMED_CPUS = 4, 8


def on_same_cpus(cpus: Iterable[int], processes: Iterable[Neighbour]) -> list[Neighbour]:
    """Those of the processes that decode now, and may do so on one of the CPUs."""
    wanted = set(cpus)
    return [one for one in processes if one.n_threads and wanted & set(one.cpus)]


def threads_expected(cpus: Iterable[int], processes: Iterable[Neighbour]) -> int:
    """Decode threads that are to be expected on the CPUs: of a process that may also run elsewhere
    the share that its CPUs have in common with these, rounded up altogether."""
    wanted = set(cpus)
    return math.ceil(sum(
        one.n_threads * len(wanted & set(one.cpus)) / len(one.cpus)
        for one in on_same_cpus(wanted, processes)
    ))


def n_usable_of(cpus: Iterable[int], mine: Iterable[int], n_usable: int) -> int:
    """How many of some CPUs can be used: all, or as many as the caller's quota lets be used.

    Args:
        cpus: those.
        mine: that the caller may run on.
        n_usable: how many of them it may use, by affinity and quota. The quota is taken to be that
            of the others, too, which may well be in the same container.
    """
    n, n_mine = len(set(cpus)), len(set(mine))
    return min(n, n_usable) if n_usable < n_mine else n


def decode_crowding(
    processes: Sequence[Neighbour], mine: Iterable[int], n_usable: int
) -> list[str]:
    """Text, if there are decode threads for which there is no CPU; else an empty list.

    Looked at is each set of CPUs that the caller or one of the processes may run on, and all
    together of those that meet the caller's: the threads that can't leave the set need a CPU of it
    each. What is said is of the set that is crowded most, among those that hold one of the
    caller's CPUs.

    Args:
        processes: those that decode, wherever; the caller among them, if it does.
        mine, n_usable: as of n_usable_of().
    """
    mine = frozenset(mine)
    near = on_same_cpus(mine, processes)
    sets = {mine, mine.union(*(one.cpus for one in near)), *(frozenset(one.cpus) for one in near)}

    def crowding(cpus: frozenset[int]) -> float:
        n_threads = sum(one.n_threads for one in _inside(cpus, processes))
        return n_threads / n_usable_of(cpus, mine, n_usable)

    cpus = min(sets, key=lambda one: (-crowding(one), one != mine, len(one), sorted(one)))
    if crowding(cpus) <= 1:
        return []
    where = "" if cpus == mine else f" ({_named(sorted(cpus), _NAMED_CPUS)})"
    return [_decode_text(_inside(cpus, processes), n_usable_of(cpus, mine, n_usable), where)]


def _inside(cpus: frozenset[int], processes: Iterable[Neighbour]) -> list[Neighbour]:
    """Those that decode, and can't do so elsewhere."""
    return [one for one in processes if one.n_threads and cpus.issuperset(one.cpus)]


def _decode_text(processes: Sequence[Neighbour], n_usable: int, where: str) -> str:
    n_threads = sum(one.n_threads for one in processes)
    n_each = max(1, n_usable // len(processes))
    who, each = "", ""
    if len(processes) > 1:
        pids = _named([one.pid for one in processes], _NAMED_PIDS)
        who = f" of {len(processes)} feedmill processes (pids {pids})"
        each = " in each, or give each CPUs of its own (taskset)"
    return (
        f"{n_threads} decode threads{who} share {_cpus(n_usable)}{where}: set threads= or "
        f"num_workers to {n_each}{each}"
    )


def _named(numbers: Sequence[int], most: int) -> str:
    return ", ".join([*map(str, numbers[:most]), *["..."] * (len(numbers) > most)])


def intra_op_crowding(process: Neighbour, n_usable: int) -> list[str]:
    """The same of torch's intra-op threads beside a process's own decode threads.

    Both work at the same time only where the training computes on the CPU: with a GPU the pool is
    mostly idle, and nothing is said.

    Args:
        n_usable: CPUs that the process may use, by affinity and quota.
    """
    n_free = max(1, n_usable - process.n_threads)
    if process.on_gpu or not process.n_threads or process.n_intra_op <= n_free:
        return []
    return [
        f"{process.n_threads} decode threads and torch's {process.n_intra_op} intra-op threads "
        f"share {_cpus(n_usable)}: where the training computes on the CPU, try "
        f"torch.set_num_threads({n_free}) or OMP_NUM_THREADS={n_free}"
    ]


def _cpus(n: int) -> str:
    return f"{n} usable CPU{'s' if n > 1 else ''}"
