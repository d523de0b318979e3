"""The feedmill processes of this user on this host, and the decode threads that each runs now.

Each process that decodes keeps a small locked file in a directory of the user's. The kernel drops
the lock when the process ends, even if it is killed. The next process that finds a file without a
lock removes it. Errors are suppressed, so that they never make a loader fail: if the directory
can't be created, a process sees no other processes.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import json
import os
import stat
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields

import torch

from feedmill.system.locks import call_if_free

# The directory is created in the first of these folders that allows it. They are fixed, as TMPDIR
# and XDG_RUNTIME_DIR may differ between jobs and logins of one user.
PARENT_FOLDERS = ["/tmp", "/var/tmp", "/dev/shm"]

_FILE_BYTES = 4096  # written by one call, so that no process reads a partial file
_COMMAND_CHARACTERS = 200
# A process that stopped decoding less than this many seconds ago is expected to continue, after a
# validation or a checkpoint. After a longer pause it may be a notebook that was left open.
_RECENT_S = 600.0


@dataclass(frozen=True)
class PeerProcess:
    """A feedmill process, as it describes itself.

    Attributes:
        pid: its process id, in its own PID namespace.
        command: its command line, truncated.
        n_threads: decode threads of the epochs that run now.
        n_intra_op: threads of torch's intra-op pool.
        on_gpu: True if it has initialized CUDA; the intra-op pool is mostly idle then.
        cpus: the CPUs that it may run on.
        changed_s: time.monotonic() when n_threads was last written.
    """

    pid: int
    command: str
    n_threads: int
    n_intra_op: int
    on_gpu: bool
    cpus: tuple[int, ...]
    changed_s: float = 0.0


def this_process() -> PeerProcess:
    """This process."""
    return PeerProcess(
        pid=os.getpid(),
        command=" ".join(sys.orig_argv)[:_COMMAND_CHARACTERS],
        n_threads=sum(list(_running.values())) if _pid == os.getpid() else 0,
        n_intra_op=torch.get_num_threads(),
        on_gpu=torch.cuda.is_initialized(),
        cpus=tuple(sorted(usable_cpus())),
        changed_s=time.monotonic(),
    )


def usable_cpus() -> set[int]:
    """The CPUs in the affinity of any thread of this process. The main thread's affinity may be
    smaller, as OMP_PROC_BIND pins that thread."""
    cpus: set[int] = set()
    with contextlib.suppress(OSError):
        for task in os.listdir("/proc/self/task"):
            with contextlib.suppress(OSError):  # the thread has ended since listdir()
                cpus |= os.sched_getaffinity(int(task))
    return cpus or os.sched_getaffinity(0)


# ---- what this process runs ----------------------------------------------------------------------

_running: dict[int, int] = {}  # decode threads by the id of their native loader
_pid = os.getpid()
_file = -1
_path = ""
_writing = threading.Lock()  # only acquired without blocking
_changed = False


def begin(key: int, n_threads: int) -> None:
    """Publishes that decode threads have started. May be called from any thread.

    Args:
        key: identifies these threads; end() gets the same key.
        n_threads: their number.
    """
    _forget_after_fork()
    _running[key] = n_threads
    _publish()
    _note_peers()


def end(key: int) -> None:
    """Publishes that the decode threads with this key have stopped. Never blocks, as the garbage
    collector may call it at any point."""
    _forget_after_fork()
    if _running.pop(key, None) is not None:
        _publish()
        _note_peers()


def _forget_after_fork() -> None:
    global _pid, _file, _path, _writing
    if _pid == os.getpid():
        return
    # The file and its lock belong to the parent and outlive the child's descriptor.
    with contextlib.suppress(OSError):
        os.close(_file)
    _running.clear()
    _seen.clear()
    _pid, _file, _path, _writing = os.getpid(), -1, "", threading.Lock()


def _publish() -> None:
    """Writes this process's file. If a write is already in progress, in another thread or in an
    outer frame of this thread, that writer writes the file once more."""
    global _changed
    _changed = True
    while _changed and call_if_free(_writing, _try_to_write):
        pass


def _try_to_write() -> None:
    global _changed
    _changed = False
    with contextlib.suppress(Exception):
        _write()


def _write() -> None:
    # A tool that cleans /tmp may have removed the file.
    if _file < 0 or os.fstat(_file).st_nlink == 0:
        _register()
    me = this_process()
    # CPUs are a hexadecimal mask, so that the text fits into the file even for thousands of CPUs.
    mask = sum(1 << cpu for cpu in me.cpus)
    text = json.dumps({**asdict(me), "cpus": f"{mask:x}"})
    os.pwrite(_file, text.encode().ljust(_FILE_BYTES), 0)


def _register() -> None:
    global _file, _path
    directory, before = _directory(), _file
    name = f"{os.getpid()}-{os.urandom(8).hex()}"
    hidden = os.path.join(directory, f".{name}")  # a name that others() skips
    file = os.open(hidden, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        # A POSIX lock belongs to the process, so the child of a fork does not keep it.
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        path = os.path.join(directory, name)
        _file = file  # set before the rename, so that other threads recognize the file as our own
        os.rename(hidden, path)  # visible to others only after it has been locked
    except OSError:
        _file = before
        os.unlink(hidden)
        os.close(file)
        raise
    if before >= 0:
        os.close(before)
    _path = path


@atexit.register
def _leave() -> None:
    if _file >= 0 and _pid == os.getpid():
        with contextlib.suppress(OSError):
            os.unlink(_path)


def _directory() -> str:
    """The user's directory, created if it does not exist. Raises OSError if none of PARENT_FOLDERS
    allows that."""
    for place in PARENT_FOLDERS:
        path = os.path.join(place, f"feedmill-{os.getuid()}")
        with contextlib.suppress(OSError):
            with contextlib.suppress(FileExistsError):
                os.mkdir(path, 0o700)
            status = os.lstat(path)
            # Another user may have made a directory of this name.
            private = status.st_uid == os.getuid() and not status.st_mode & 0o077
            if stat.S_ISDIR(status.st_mode) and private and os.access(path, os.W_OK | os.X_OK):
                return path
    folders = ", ".join(PARENT_FOLDERS)
    raise OSError(f"no directory for feedmill's files can be made in any of {folders}")


# ---- what other processes run --------------------------------------------------------------------

_seen: dict[int, PeerProcess] = {}  # by pid, the latest state of each


def seen_peers() -> list[PeerProcess]:
    """The other processes that decode now, or decoded when an epoch of this process began or ended,
    in order of their pids. Some may have ended."""
    _note_peers()
    return sorted(_seen.values(), key=lambda one: one.pid)


def _note_peers() -> None:
    _seen.update((one.pid, one) for one in others() if one.n_threads)


def others() -> list[PeerProcess]:
    """All other live processes that have decoded, in order of their pids."""
    found: list[PeerProcess] = []
    with contextlib.suppress(OSError):
        directory = _directory()
        for name in os.listdir(directory):
            if not name.startswith("."):
                found += _read(os.path.join(directory, name))
    return sorted(found, key=lambda one: one.pid)


def recent_peers() -> list[PeerProcess]:
    """The other processes that share a CPU with this one and decode now, or did so in the last
    10 minutes."""
    cpus, since_s = usable_cpus(), time.monotonic() - _RECENT_S
    return [
        one
        for one in others()
        if cpus & set(one.cpus) and (one.n_threads or one.changed_s > since_s)
    ]


def _read(path: str) -> Iterator[PeerProcess]:
    """Yields the process that a file describes if it is alive, else removes the file."""
    with contextlib.suppress(OSError, ValueError, TypeError, KeyError):
        if _is_own(path):
            return
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            if _is_locked_by_another(file):
                values = json.loads(os.pread(file, _FILE_BYTES, 0))
                mask = int(values["cpus"], 16)
                values["cpus"] = tuple(i for i in range(mask.bit_length()) if mask >> i & 1)
                yield PeerProcess(**{one.name: values[one.name] for one in fields(PeerProcess)})
            else:
                os.unlink(path)
        finally:
            os.close(file)


def _is_own(path: str) -> bool:
    """Whether a file is this process's own. That one must not be opened, as closing any descriptor
    of it would drop this process's POSIX lock. Inodes are compared, as another thread may have
    renamed the file but not set _path yet."""
    file = _file
    if file < 0 or _pid != os.getpid():
        return False
    return os.path.samestat(os.stat(path), os.fstat(file))


def _is_locked_by_another(file: int) -> bool:
    try:
        fcntl.lockf(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):  # EAGAIN or EACCES, depending on the file system
        return True
    return False
