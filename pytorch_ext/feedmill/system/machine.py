"""Facts about this machine, read from the kernel's files. No measurements.

`root` is where /proc and /sys are found; tests put files of their own there.
"""

from __future__ import annotations

import os
import re
import resource
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from feedmill.system.proc_files import numbers_by_name, text_or_empty

ROOT = "/"

# Where the controllers' trees are mounted: (place, name of the controller; "" for all, in v2).
_CPU_TREES = (
    ("sys/fs/cgroup", ""),
    ("sys/fs/cgroup/unified", ""),
    ("sys/fs/cgroup/cpu", "cpu"),
    ("sys/fs/cgroup/cpu,cpuacct", "cpu"),
)
_MEMORY_TREES = (
    ("sys/fs/cgroup", ""),
    ("sys/fs/cgroup/unified", ""),
    ("sys/fs/cgroup/memory", "memory"),
)


def _text(*parts: str) -> str:
    """The text of a file whose path is joined from parts, without the white space around it; "" if
    it does not exist, can't be read or is not UTF-8."""
    return text_or_empty(os.path.join(*parts), errors="strict").strip()


def _number(*parts: str) -> int | None:
    text = _text(*parts)
    return int(text) if re.fullmatch(r"-?\d+", text) else None


# ---- cgroups -------------------------------------------------------------------------------------


def _groups(root: str, place: str, controller: str) -> Iterator[str]:
    """The process's directory in a tree and those above it, whose limits hold below them."""
    for line in _text(root, "proc/self/cgroup").splitlines():
        _, names, group = line.split(":", 2)
        if controller in names.split(","):
            while True:
                yield os.path.join(root, place, group.strip("/"))
                if not group.strip("/"):
                    return
                group = os.path.dirname(group)


class Quota(NamedTuple):
    """A limit of CPU time.

    Attributes:
        cpus: CPU seconds a second that the cgroup may use.
        version: of the cgroup that sets it, 1 or 2.
        throttled_s: how long its threads were kept from running so far, summed over CPUs.
        n_throttled: periods in which that happened.
    """

    cpus: float
    version: int
    throttled_s: float
    n_throttled: int


def cpu_quota(root: str = ROOT) -> Quota | None:
    """The lowest quota that holds for this process; None without any."""
    found = []
    for place, controller in _CPU_TREES:
        for directory in _groups(root, place, controller):
            cpus = _quota_v1(directory) if controller else _quota_v2(directory)
            if cpus:
                counts = numbers_by_name(_text(directory, "cpu.stat"))
                throttled_s = (
                    counts.get("throttled_time", 0) / 1e9 + counts.get("throttled_usec", 0) / 1e6
                )
                version = 1 if controller else 2
                found.append(Quota(cpus, version, throttled_s, counts.get("nr_throttled", 0)))
    return min(found, default=None)


def _quota_v1(directory: str) -> float | None:
    quota = _number(directory, "cpu.cfs_quota_us") or 0
    period = _number(directory, "cpu.cfs_period_us") or 0
    return quota / period if quota > 0 and period > 0 else None


def _quota_v2(directory: str) -> float | None:
    words = _text(directory, "cpu.max").split()
    if len(words) != 2 or not all(word.isdecimal() for word in words):
        return None  # "max": no limit
    quota, period = map(int, words)
    return quota / period if quota and period else None


# ---- memory --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Memory:
    """Bytes of memory.

    Attributes:
        total: what the machine has.
        available: what can be had without swapping, page cache included.
        limit: what the cgroup allows; None without a limit below total.
        left: what can be had under both: at most `available`.
    """

    total: int
    available: int
    limit: int | None
    left: int


def memory(root: str = ROOT) -> Memory:
    """The machine's memory, and what the cgroups leave of it."""
    kilobytes = numbers_by_name(_text(root, "proc/meminfo"))
    total = 1024 * kilobytes.get("MemTotal", 0)
    left = available = 1024 * kilobytes.get("MemAvailable", 0)
    limits = []
    for place, controller in _MEMORY_TREES:
        names = ("memory.limit_in_bytes", "memory.usage_in_bytes") if controller else (
            "memory.max", "memory.current")
        for directory in _groups(root, place, controller):
            limit, used = (_number(directory, name) for name in names)
            if limit is not None and 0 < limit < total:
                limits.append(limit)
                # What a cgroup's files hold in the page cache counts as used, and can be dropped.
                fields = numbers_by_name(_text(directory, "memory.stat"))
                cached = fields.get("total_cache", fields.get("file", 0))
                left = min(left, max(0, limit - max(0, (used or 0) - cached)))
    return Memory(total, available, min(limits, default=None), left)


class Space(NamedTuple):
    """Bytes of a file system."""

    total: int
    free: int


def shared_memory(path: str = "/dev/shm") -> Space | None:
    """What torch's worker processes hand batches over in; None where there is no such place."""
    try:
        status = os.statvfs(path)
    except OSError:
        return None
    return Space(status.f_blocks * status.f_frsize, status.f_bavail * status.f_frsize)


def locked_memory() -> tuple[int | None, int | None]:
    """(soft, hard) limit of locked memory in bytes, None: without limit."""
    limits = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    soft, hard = (None if one == resource.RLIM_INFINITY else one for one in limits)
    return soft, hard


# ---- load ----------------------------------------------------------------------------------------


def load_note() -> str:
    """Text, if this machine's CPUs have more to do than they can: measured rates suffer from it."""
    load, n_cpus = os.getloadavg()[0], os.cpu_count() or 1
    if load <= n_cpus:
        return ""
    return (f"this machine is busy (load average {load:.1f} on {n_cpus} CPUs): measured rates of "
            "storage and memory are lower than they could be")


# ---- io_uring ------------------------------------------------------------------------------------


def why_no_uring(root: str = ROOT) -> list[str]:
    """What forbids io_uring here, and how to allow it; for a loader that could not have it."""
    found = []
    disabled = _number(root, "proc/sys/kernel/io_uring_disabled")
    if disabled == 2:
        found.append("kernel.io_uring_disabled is 2, for nobody: sysctl -w "
                     "kernel.io_uring_disabled=0 allows it (as root, on the host)")
    elif disabled == 1:
        group = _number(root, "proc/sys/kernel/io_uring_group")
        members = "processes with CAP_SYS_ADMIN only" if group in (None, -1) else (
            f"processes with CAP_SYS_ADMIN or of the group {group} only")
        found.append(f"kernel.io_uring_disabled is 1, for {members}")
    if numbers_by_name(_text(root, "proc/self/status")).get("Seccomp") == 2:
        found.append("a seccomp filter is at work, as in containers, and Docker's default one "
                     "forbids io_uring: docker run --security-opt seccomp=FILE with a profile "
                     "that allows io_uring_setup, io_uring_enter and io_uring_register")
    return found


# ---- file systems --------------------------------------------------------------------------------


class Mount(NamedTuple):
    """Where a file system is mounted: its kind (ext4, nfs4, fuse.x, ...) and its source."""

    place: str
    kind: str
    source: str


# Kinds whose files come over a network, as far as the name says so; FUSE may do anything.
_REMOTE = ("nfs", "cifs", "smb", "ceph", "lustre", "glusterfs", "9p", "afs", "beegfs", "gpfs",
           "fuse")
_IN_MEMORY = ("tmpfs", "ramfs")


def is_far(mount: Mount | None) -> bool:
    """Whether an open or a read may take a round trip, so that many should be under way."""
    return mount is not None and mount.kind.startswith(_REMOTE)


def is_in_memory(mount: Mount | None) -> bool:
    return mount is not None and mount.kind in _IN_MEMORY


def mount_of(path: str, root: str = ROOT) -> Mount | None:
    """The mount that a file or folder is on; None where /proc does not tell."""
    path = os.path.realpath(path)
    best = None
    for line in _text(root, "proc/self/mountinfo").splitlines():
        left, _, right = line.partition(" - ")
        place = _unescaped(left.split(" ")[4])
        below = path == place or path.startswith(place.rstrip("/") + "/")
        # Of several mounts at one place, the last one is seen.
        if below and (best is None or len(place) >= len(best.place)):
            kind, source = right.split(" ")[:2]
            best = Mount(place, kind, _unescaped(source))
    return best


def _unescaped(text: str) -> str:
    """mountinfo writes a space as \\040."""
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), text)
