"""The feedmill processes of this user on this host, and the decode threads that each runs now.

Each process that decodes keeps a small file in a directory of the user's, under a lock that the
kernel drops when the process ends, however that happens. A file that nobody locks is garbage, and
whoever meets it removes it. Nothing here fails a loader: where no such directory can be had, every
process sees itself alone.
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

from feedmill.system.locks import if_free

# The first one that lets us is taken. Fixed names: TMPDIR and XDG_RUNTIME_DIR differ between the
# jobs and log-ins of one user.
PLACES = ["/tmp", "/var/tmp", "/dev/shm"]

_FILE_BYTES = 4096  # written at once, so that nobody reads half of it
_COMMAND_CHARACTERS = 200
# A training that rests for less, to validate or to write a checkpoint, will come back for its CPUs;
# one that rests for longer may be a notebook that somebody has left open.
_REST_S = 600.0


@dataclass(frozen=True)
class Neighbour:
    """A process as it describes itself.

    Attributes:
        pid: in its own namespace of processes.
        command: its command line, cut short.
        n_threads: decode threads at work in epochs that run now.
        n_intra_op: threads of torch's intra-op pool.
        on_gpu: it has begun to use CUDA, so that the pool is mostly idle.
        cpus: those that it may run on.
        changed_s: the clock (time.monotonic()) when n_threads became what it is.
    """

    pid: int
    command: str
    n_threads: int
    n_intra_op: int
    on_gpu: bool
    cpus: tuple[int, ...]
    changed_s: float = 0.0


def myself() -> Neighbour:
    """This process."""
    return Neighbour(
        pid=os.getpid(),
        command=" ".join(sys.orig_argv)[:_COMMAND_CHARACTERS],
        n_threads=sum(list(_running.values())) if _pid == os.getpid() else 0,
        n_intra_op=torch.get_num_threads(),
        on_gpu=torch.cuda.is_initialized(),
        cpus=tuple(sorted(usable_cpus())),
        changed_s=time.monotonic(),
    )


def usable_cpus() -> set[int]:
    """CPUs in the affinity of any thread of this process: OMP_PROC_BIND pins the main thread."""
    cpus: set[int] = set()
    with contextlib.suppress(OSError):
        for task in os.listdir("/proc/self/task"):
            with contextlib.suppress(OSError):  # it has ended meanwhile
                cpus |= os.sched_getaffinity(int(task))
    return cpus or os.sched_getaffinity(0)


# ---- what this process runs ----------------------------------------------------------------------

_running: dict[int, int] = {}  # decode threads by the id of their native loader
_pid = os.getpid()
_file = -1
_path = ""
_writing = threading.Lock()  # never waited for
_changed = False


def begin(key: int, n_threads: int) -> None:
    """Decode threads go to work. May be called from any thread.

    Args:
        key: names them at end().
        n_threads: how many.
    """
    _forget_after_fork()
    _running[key] = n_threads
    _publish()
    _meet()


def end(key: int) -> None:
    """They rest. The garbage collector may call this in the middle of anything: nothing waits."""
    _forget_after_fork()
    if _running.pop(key, None) is not None:
        _publish()
        _meet()


def _forget_after_fork() -> None:
    global _pid, _file, _path, _writing
    if _pid == os.getpid():
        return
    # The lock and the name are the parent's; closing this copy changes neither.
    with contextlib.suppress(OSError):
        os.close(_file)
    _running.clear()
    _met.clear()
    _pid, _file, _path, _writing = os.getpid(), -1, "", threading.Lock()


def _publish() -> None:
    """Whoever writes already, further up in this thread or in another one, writes once more."""
    global _changed
    _changed = True
    while _changed and if_free(_writing, _try_to_write):
        pass


def _try_to_write() -> None:
    global _changed
    _changed = False
    with contextlib.suppress(Exception):
        _write()


def _write() -> None:
    # Somebody who tidies up /tmp may have removed it.
    if _file < 0 or os.fstat(_file).st_nlink == 0:
        _register()
    me = myself()
    # As a mask, which for a thousand CPUs still leaves room for the rest.
    mask = sum(1 << cpu for cpu in me.cpus)
    text = json.dumps({**asdict(me), "cpus": f"{mask:x}"})
    os.pwrite(_file, text.encode().ljust(_FILE_BYTES), 0)


def _register() -> None:
    global _file, _path
    directory, before = _directory(), _file
    name = f"{os.getpid()}-{os.urandom(8).hex()}"
    hidden = os.path.join(directory, f".{name}")
    file = os.open(hidden, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        # A lock of the process, not of the open file: a child of a fork does not keep it alive.
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        path = os.path.join(directory, name)
        _file = file  # for other threads, which may find it from here on
        os.rename(hidden, path)  # seen by others only now that it is locked
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
    """The user's own; OSError if there is none."""
    for place in PLACES:
        path = os.path.join(place, f"feedmill-{os.getuid()}")
        with contextlib.suppress(OSError):
            with contextlib.suppress(FileExistsError):
                os.mkdir(path, 0o700)
            status = os.lstat(path)
            # Somebody else may have been there first.
            private = status.st_uid == os.getuid() and not status.st_mode & 0o077
            if stat.S_ISDIR(status.st_mode) and private and os.access(path, os.W_OK | os.X_OK):
                return path
    raise OSError(f"none of {', '.join(PLACES)} can hold a directory of feedmill's")


# ---- what the others run -------------------------------------------------------------------------

_met: dict[int, Neighbour] = {}  # by pid, as they were seen last


def met() -> list[Neighbour]:
    """Other processes that ran decode threads when epochs of this one began or ended, or do so
    now, by process number. Some may have ended."""
    _meet()
    return sorted(_met.values(), key=lambda one: one.pid)


def _meet() -> None:
    _met.update((one.pid, one) for one in others() if one.n_threads)


def others() -> list[Neighbour]:
    """All other live processes that have decoded, by process number."""
    found: list[Neighbour] = []
    with contextlib.suppress(OSError):
        directory = _directory()
        for name in os.listdir(directory):
            if not name.startswith("."):
                found += _read(os.path.join(directory, name))
    return sorted(found, key=lambda one: one.pid)


def sharers() -> list[Neighbour]:
    """Those of the others that share a CPU with this process, and decode or did so lately."""
    cpus, since_s = usable_cpus(), time.monotonic() - _REST_S
    return [
        one
        for one in others()
        if cpus & set(one.cpus) and (one.n_threads or one.changed_s > since_s)
    ]


def _read(path: str) -> Iterator[Neighbour]:
    """What a file says, if its process lives."""
    with contextlib.suppress(OSError, ValueError, TypeError, KeyError):
        if _is_own(path):
            return
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            if _is_locked(file):
                values = json.loads(os.pread(file, _FILE_BYTES, 0))
                mask = int(values["cpus"], 16)
                values["cpus"] = tuple(i for i in range(mask.bit_length()) if mask >> i & 1)
                yield Neighbour(**{one.name: values[one.name] for one in fields(Neighbour)})
            else:
                os.unlink(path)
        finally:
            os.close(file)


def _is_own(path: str) -> bool:
    """Opening and closing our own would drop our lock. It may have been renamed by now, in another
    thread that is about to say so: the file itself is compared."""
    file = _file
    if file < 0 or _pid != os.getpid():
        return False
    return os.path.samestat(os.stat(path), os.fstat(file))


def _is_locked(file: int) -> bool:
    try:
        fcntl.lockf(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):  # EAGAIN or EACCES, as the file system likes
        return True
    return False
