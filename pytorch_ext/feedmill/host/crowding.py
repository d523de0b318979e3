"""Whether more threads want to run than there are CPUs, and which setting to change."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from feedmill.host.neighbours import Neighbour


def on_same_cpus(cpus: Iterable[int], processes: Iterable[Neighbour]) -> list[Neighbour]:
    """Those of the processes that decode now, and may do so on one of the CPUs."""
    wanted = set(cpus)
    return [one for one in processes if one.n_threads and wanted & set(one.cpus)]


def decode_crowding(processes: Sequence[Neighbour], n_usable: int) -> list[str]:
    """Text, if there are decode threads for which there is no CPU; else an empty list.

    Args:
        processes: those that decode, all on the same CPUs.
        n_usable: how many CPUs they may use, by affinity and quota.
    """
    n_threads = sum(one.n_threads for one in processes)
    if n_threads <= n_usable:
        return []
    n_each = max(1, n_usable // len(processes))
    if len(processes) == 1:
        who, each = "", ""
    else:
        pids = ", ".join(str(one.pid) for one in processes[:4])
        more = ", ..." if len(processes) > 4 else ""
        who = f" of {len(processes)} feedmill processes (pids {pids}{more})"
        each = " in each, or give each CPUs of its own (taskset)"
    return [
        f"{n_threads} decode threads{who} share {_cpus(n_usable)}: set threads= or num_workers "
        f"to {n_each}{each}"
    ]


def intra_op_crowding(process: Neighbour, n_usable: int) -> list[str]:
    """The same of torch's intra-op threads beside a process's own decode threads.

    Both work at the same time only where the training computes on the CPU: with a GPU the pool is
    mostly idle, and nothing is said.
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
