"""Detects that more threads want to run than there are CPUs, and says which setting to change."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from feedmill.system.peer_processes import PeerProcess

_MAX_NAMED_PIDS, _MAX_NAMED_CPUS = 4, 8


def on_same_cpus(cpus: Iterable[int], processes: Iterable[PeerProcess]) -> list[PeerProcess]:
    """The processes that decode now and may run on at least one of the CPUs."""
    wanted = set(cpus)
    return [one for one in processes if one.n_threads and wanted & set(one.cpus)]


def expected_threads(cpus: Iterable[int], processes: Iterable[PeerProcess]) -> int:
    """The number of decode threads to expect on the CPUs.

    The threads of a process that may also run on other CPUs are scaled by the share of its CPUs
    that are among ``cpus``. The sum is rounded up.
    """
    wanted = set(cpus)
    return math.ceil(sum(
        one.n_threads * len(wanted & set(one.cpus)) / len(one.cpus)
        for one in on_same_cpus(wanted, processes)
    ))


def n_usable_of(cpus: Iterable[int], mine: Iterable[int], n_usable: int) -> int:
    """How many of the CPUs can be used at once under the caller's CPU quota.

    The quota is assumed to hold for other processes as well, as they may be in the same container.

    Args:
        cpus: a set of CPUs.
        mine: the CPUs that the caller may run on.
        n_usable: how many CPUs the caller may use, by affinity and quota.
    """
    n, n_mine = len(set(cpus)), len(set(mine))
    return min(n, n_usable) if n_usable < n_mine else n


def decode_thread_contention(
    processes: Sequence[PeerProcess], mine: Iterable[int], n_usable: int
) -> list[str]:
    """One text if more decode threads than CPUs compete; else an empty list.

    Several sets of CPUs are examined: the caller's, that of each process which shares a CPU with
    the caller, and the union of all these. A set is oversubscribed if more threads than it has
    usable CPUs can't run outside of it. The text describes the set with the most threads per usable
    CPU.

    Args:
        processes: all processes that decode, including the caller if it does.
        mine, n_usable: see n_usable_of().
    """
    mine = frozenset(mine)
    near = on_same_cpus(mine, processes)
    sets = {mine, mine.union(*(one.cpus for one in near)), *(frozenset(one.cpus) for one in near)}

    def threads_per_cpu(cpus: frozenset[int]) -> float:
        n_threads = sum(one.n_threads for one in _confined_to(cpus, processes))
        return n_threads / n_usable_of(cpus, mine, n_usable)

    cpus = min(sets, key=lambda one: (-threads_per_cpu(one), one != mine, len(one), sorted(one)))
    if threads_per_cpu(cpus) <= 1:
        return []
    where = "" if cpus == mine else f" ({_named(sorted(cpus), _MAX_NAMED_CPUS)})"
    return [_decode_text(_confined_to(cpus, processes), n_usable_of(cpus, mine, n_usable), where)]


def _confined_to(cpus: frozenset[int], processes: Iterable[PeerProcess]) -> list[PeerProcess]:
    """The processes that decode and can't run on any other CPU."""
    return [one for one in processes if one.n_threads and cpus.issuperset(one.cpus)]


def _decode_text(processes: Sequence[PeerProcess], n_usable: int, where: str) -> str:
    n_threads = sum(one.n_threads for one in processes)
    n_each = max(1, n_usable // len(processes))
    who, each = "", ""
    if len(processes) > 1:
        pids = _named([one.pid for one in processes], _MAX_NAMED_PIDS)
        who = f" of {len(processes)} feedmill processes (pids {pids})"
        each = " in each, or give each CPUs of its own (taskset)"
    return (
        f"{n_threads} decode threads{who} share {_cpus(n_usable)}{where}: set threads= or "
        f"num_workers to {n_each}{each}"
    )


def _named(numbers: Sequence[int], most: int) -> str:
    return ", ".join([*map(str, numbers[:most]), *["..."] * (len(numbers) > most)])


def intra_op_contention(process: PeerProcess, n_usable: int) -> list[str]:
    """One text if torch's intra-op threads compete with the decode threads of the same process;
    else an empty list.

    They compete only if the training computes on the CPU. With a GPU the intra-op threads are
    mostly idle, so the list is empty.

    Args:
        process: the process.
        n_usable: the number of CPUs that it may use, by affinity and quota.
    """
    n_free = max(1, n_usable - process.n_threads)
    if process.on_gpu or not process.n_threads or process.n_intra_op <= n_free:
        return []
    return [
        f"{process.n_threads} decode threads and torch's {process.n_intra_op} intra-op threads "
        f"share {_cpus(n_usable)}: if the training computes on the CPU, try "
        f"torch.set_num_threads({n_free}) or OMP_NUM_THREADS={n_free}"
    ]


def _cpus(n: int) -> str:
    return f"{n} usable CPU{'s' if n > 1 else ''}"
