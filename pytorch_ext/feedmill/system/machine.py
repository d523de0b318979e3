"""Facts about this machine, read from the kernel's files. Nothing is measured.

The argument `root` is the folder that contains proc/ and sys/. Tests pass a folder of their own.
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

# Where cgroup controllers are mounted: (folder, controller). The controller is "" for version 2,
# which has all of them in one tree.
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


def _cgroup_folders(root: str, place: str, controller: str) -> Iterator[str]:
    """The folders of the process's cgroup and of its ancestors, whose limits apply as well."""
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
        cpus: how many CPU seconds per second the cgroup may use.
        version: the version of the cgroup that sets the limit, 1 or 2.
        throttled_s: seconds for which the cgroup's threads were throttled so far, summed over CPUs.
        n_throttled: the number of periods in which they were throttled.
    """

    cpus: float
    version: int
    throttled_s: float
    n_throttled: int


def cpu_quota(root: str = ROOT) -> Quota | None:
    """The lowest quota that applies to this process; None if there is none."""
    found = []
    for place, controller in _CPU_TREES:
        for directory in _cgroup_folders(root, place, controller):
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
    """Memory, in bytes.

    Attributes:
        total: memory of the machine.
        available: memory that can be allocated without swapping; the page cache is available.
        limit: the lowest limit of the cgroups; None if there is none below `total`.
        left: memory that can be allocated without exceeding `available` or a cgroup's limit.
    """

    total: int
    available: int
    limit: int | None
    left: int


def memory(root: str = ROOT) -> Memory:
    """The machine's memory and the part that the cgroups let this process use."""
    kilobytes = numbers_by_name(_text(root, "proc/meminfo"))
    total = 1024 * kilobytes.get("MemTotal", 0)
    left = available = 1024 * kilobytes.get("MemAvailable", 0)
    limits = []
    for place, controller in _MEMORY_TREES:
        names = ("memory.limit_in_bytes", "memory.usage_in_bytes") if controller else (
            "memory.max", "memory.current")
        for directory in _cgroup_folders(root, place, controller):
            limit, used = (_number(directory, name) for name in names)
            if limit is not None and 0 < limit < total:
                limits.append(limit)
                # The cgroup's page cache counts as used memory, but the kernel can drop it.
                fields = numbers_by_name(_text(directory, "memory.stat"))
                cached = fields.get("total_cache", fields.get("file", 0))
                left = min(left, max(0, limit - max(0, (used or 0) - cached)))
    return Memory(total, available, min(limits, default=None), left)


class Space(NamedTuple):
    """Bytes of a file system."""

    total: int
    free: int


def shared_memory(path: str = "/dev/shm") -> Space | None:
    """The file system through which torch's worker processes pass batches; None if there is
    none."""
    try:
        status = os.statvfs(path)
    except OSError:
        return None
    return Space(status.f_blocks * status.f_frsize, status.f_bavail * status.f_frsize)


def locked_memory() -> tuple[int | None, int | None]:
    """(soft, hard) limit of locked memory in bytes; None stands for no limit."""
    limits = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    soft, hard = (None if one == resource.RLIM_INFINITY else one for one in limits)
    return soft, hard


# ---- load ----------------------------------------------------------------------------------------


def load_note() -> str:
    """Returns a warning that rates measured now are too low if the load average exceeds the number
    of CPUs, else ""."""
    load, n_cpus = os.getloadavg()[0], os.cpu_count() or 1
    if load <= n_cpus:
        return ""
    return (f"this machine is busy (load average {load:.1f} on {n_cpus} CPUs): rates of storage "
            "and memory that are measured now are too low")


# ---- io_uring ------------------------------------------------------------------------------------


def why_no_uring(root: str = ROOT) -> list[str]:
    """Returns likely reasons why io_uring can't be used, each with how to allow it. Call this only
    after io_uring has failed, as a condition that it reports does not always prevent io_uring."""
    found = []
    disabled = _number(root, "proc/sys/kernel/io_uring_disabled")
    if disabled == 2:
        found.append("io_uring is disabled on this system (kernel.io_uring_disabled=2): enable it "
                     "with sysctl -w kernel.io_uring_disabled=0, as root on the host")
    elif disabled == 1:
        group = _number(root, "proc/sys/kernel/io_uring_group")
        remedy = "give this process CAP_SYS_ADMIN"
        if group not in (None, -1):
            remedy += f", or add its user to the group with id {group}"
        found.append("io_uring is restricted to privileged processes on this system "
                     f"(kernel.io_uring_disabled=1): {remedy}, or enable it for all with sysctl -w "
                     "kernel.io_uring_disabled=0, as root on the host")
    if numbers_by_name(_text(root, "proc/self/status")).get("Seccomp") == 2:
        found.append("this process runs under a seccomp filter, as in containers, and Docker's "
                     "default one forbids io_uring: start the container with docker run "
                     "--security-opt seccomp=FILE, where FILE is a profile that allows "
                     "io_uring_setup, io_uring_enter and io_uring_register")
    return found


# ---- file systems --------------------------------------------------------------------------------


class Mount(NamedTuple):
    """A mounted file system.

    Attributes:
        place: the mount point.
        kind: the type, such as ext4, nfs4 or fuse.x.
        source: the device, or the server and its path.
    """

    place: str
    kind: str
    source: str


# Types, or prefixes of types, of network file systems. What a FUSE file system does is not known;
# it is assumed to use a network.
_NETWORK_TYPES = (
    "nfs", "cifs", "smb", "ceph", "lustre", "glusterfs", "9p", "afs", "beegfs", "gpfs", "fuse",
)
_MEMORY_TYPES = ("tmpfs", "ramfs")


def is_high_latency(mount: Mount | None) -> bool:
    """Whether opens and reads may take a network round trip, so that many should be in flight."""
    return mount is not None and mount.kind.startswith(_NETWORK_TYPES)


def is_in_memory(mount: Mount | None) -> bool:
    """Whether the files are kept in memory, not on storage."""
    return mount is not None and mount.kind in _MEMORY_TYPES


def mount_of(path: str, root: str = ROOT) -> Mount | None:
    """The file system of a file or folder; None if /proc/self/mountinfo does not list it."""
    path = os.path.realpath(path)
    best = None
    for line in _text(root, "proc/self/mountinfo").splitlines():
        left, _, right = line.partition(" - ")
        place = _unescaped(left.split(" ")[4])
        below = path == place or path.startswith(place.rstrip("/") + "/")
        # Of several mounts at one place, the last one hides the others.
        if below and (best is None or len(place) >= len(best.place)):
            kind, source = right.split(" ")[:2]
            best = Mount(place, kind, _unescaped(source))
    return best


def _unescaped(text: str) -> str:
    """Undoes mountinfo's escapes, such as \\040 for a space."""
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), text)
