"""Counters of this process, its cgroup and the CPUs that it may run on."""

from __future__ import annotations

import contextlib
import os
import resource
from collections.abc import Iterator
from pathlib import PurePosixPath
from time import monotonic_ns

from feedmill._ops import native
from feedmill.system import peer_processes
from feedmill.system.proc_files import device_read_bytes, read_text

_TICK_NS = 10**9 // os.sysconf("SC_CLK_TCK")
_BUSY_COLUMNS = (0, 1, 2, 5, 6, 7)  # user, nice, system, irq, softirq, stolen by the hypervisor


class Clock:
    """Counters of the whole process since start().

    A pickled copy, and this object in the child of a fork, count as not started.
    """

    def __init__(self) -> None:
        self._pid = 0
        self._begin: dict[str, int] = {}

    def __reduce__(self) -> tuple[type[Clock], tuple[()]]:
        return (Clock, ())

    def start(self) -> None:
        """Starts counting. Later calls have no effect."""
        if self._pid != os.getpid():
            self._begin, self._pid = _read(), os.getpid()

    def counters(self) -> dict[str, int]:
        """The fields of Stats from elapsed_ns on, and usable_cpus. Empty before start()."""
        if self._pid != os.getpid():
            return {}
        now = _read()
        # A counter falls if the process moves to another cgroup, or if a child process ends without
        # being waited for.
        passed = {name: max(0, now[name] - self._begin[name]) for name in now}
        return {**passed, "usable_cpus": native.usable_cpus()}


def _read() -> dict[str, int]:
    throttled_periods, throttled_ns = _throttled()
    return {
        "elapsed_ns": monotonic_ns(),
        "process_cpu_ns": process_cpu_ns(),
        "host_busy_ns": _host_busy_ns(),
        "throttled_periods": throttled_periods,
        "throttled_ns": throttled_ns,
        "device_read_bytes": device_read_bytes() or 0,
    }


def process_cpu_ns() -> int:
    """CPU time of this process, of its live children (torch's workers) and of its children that
    have ended and were waited for."""
    usage = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    own_ns = int(1e9 * sum(one.ru_utime + one.ru_stime for one in usage))
    return own_ns + sum(map(_cpu_ns_of, _children()))


def _children() -> set[str]:
    children: set[str] = set()
    with contextlib.suppress(OSError):
        for task in os.listdir("/proc/self/task"):
            # The thread may have ended, and some kernels have no such file.
            with contextlib.suppress(OSError):
                children.update(read_text(f"/proc/self/task/{task}/children").split())
    return children


def _cpu_ns_of(pid: str) -> int:
    with contextlib.suppress(OSError, ValueError, IndexError):
        columns = read_text(f"/proc/{pid}/stat").rpartition(")")[2].split()
        return (int(columns[11]) + int(columns[12])) * _TICK_NS
    return 0


def _host_busy_ns() -> int:
    """Busy time of the CPUs that this process may run on, summed over all processes."""
    wanted = {f"cpu{number}" for number in peer_processes.usable_cpus()}
    ticks = 0
    with contextlib.suppress(OSError, ValueError, IndexError):
        for line in read_text("/proc/stat").splitlines():
            name, *columns = line.split()
            if name in wanted:
                ticks += sum(int(columns[i]) for i in _BUSY_COLUMNS)
    return ticks * _TICK_NS


def _throttled() -> tuple[int, int]:
    """Returns (number of periods in which a CPU quota throttled this process, nanoseconds for which
    it was throttled), of its cgroup or the ancestor cgroup that was throttled longest."""
    found = [(0, 0)]
    for path in _cpu_stat_files():
        with contextlib.suppress(OSError, ValueError):
            values = dict(line.split() for line in read_text(path).splitlines())
            n_ns = int(values.get("throttled_time", 0))  # version 1
            n_ns = n_ns or 1000 * int(values.get("throttled_usec", 0))
            found.append((int(values.get("nr_throttled", 0)), n_ns))
    return max(found, key=lambda one: one[1])


def _cpu_stat_files() -> Iterator[str]:
    """Possible paths of cpu.stat for the process's cgroup and its ancestors. In a container only
    some of them exist."""
    with contextlib.suppress(OSError, ValueError):
        for line in read_text("/proc/self/cgroup").splitlines():
            _, controllers, path = line.split(":", 2)
            if controllers == "":
                roots = ["/sys/fs/cgroup", "/sys/fs/cgroup/unified"]
            elif "cpu" in controllers.split(","):
                roots = [f"/sys/fs/cgroup/{name}" for name in {controllers, "cpu"}]
            else:
                continue
            group = PurePosixPath(path)
            for one in (group, *group.parents):
                yield from (f"{root}{str(one).rstrip('/')}/cpu.stat" for root in roots)
