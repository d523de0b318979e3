#!/usr/bin/env python3
"""Runs a command under conditions that containers and clusters impose.

    tests/wheel/conditions.py [no-uring] [no-shm] [read-only-home] -- COMMAND...

no-uring: a seccomp filter answers io_uring's system calls with EPERM, as Docker's does.
no-shm: /dev has no shm. read-only-home: $HOME is an empty folder on a read-only mount. The latter
two need root; what is mounted is seen by the command alone.
"""

from __future__ import annotations

import ctypes
import os
import struct
import subprocess
import sys
import tempfile

libc = ctypes.CDLL(None, use_errno=True)

# From <linux/sched.h>, <linux/prctl.h>, <linux/seccomp.h>, <linux/bpf_common.h>.
CLONE_NEWNS = 0x20000
PR_SET_NO_NEW_PRIVS, PR_SET_SECCOMP, SECCOMP_MODE_FILTER = 38, 22, 2
LOAD_WORD, JUMP_IF_AT_LEAST, RETURN = 0x20, 0x35, 0x06
ALLOW, REFUSE = 0x7FFF0000, 0x00050001  # the latter with EPERM
URING_SETUP, URING_REGISTER = 425, 427  # with URING_ENTER between them; the same on all machines


def check(result: int, what: str) -> None:
    if result:
        number = ctypes.get_errno()
        sys.exit(f"conditions: {what} failed: {os.strerror(number)}")


def forbid_uring() -> None:
    steps = [
        (LOAD_WORD, 0, 0, 0),  # the number of the system call
        (JUMP_IF_AT_LEAST, 0, 2, URING_SETUP),  # below: allow
        (JUMP_IF_AT_LEAST, 1, 0, URING_REGISTER + 1),  # above: allow
        (RETURN, 0, 0, REFUSE),
        (RETURN, 0, 0, ALLOW),
    ]
    code = ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", *step) for step in steps))
    program = struct.pack("@HP", len(steps), ctypes.addressof(code))
    check(libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "PR_SET_NO_NEW_PRIVS")
    check(libc.prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, program, 0, 0), "PR_SET_SECCOMP")


def mount(*words: str) -> None:
    subprocess.run(["mount", *words], check=True)


def own_mounts() -> None:
    check(libc.unshare(CLONE_NEWNS), "unshare")
    # In a chroot "/" may not be a mount; check_wheel.py has made a namespace there already.
    subprocess.run(["mount", "--make-rprivate", "/"], check=False, stderr=subprocess.DEVNULL)


def remove_shm() -> None:
    """/dev becomes a folder with what programs need of it, without shm."""
    # Nothing may remove what is in this folder after an error: it is the machine's /dev.
    kept = tempfile.mkdtemp(prefix="dev-")
    mount("--rbind", "/dev", kept)
    mount("-t", "tmpfs", "none", "/dev")
    for name in ("null", "zero", "full", "random", "urandom", "tty"):
        open(f"/dev/{name}", "w").close()
        mount("--bind", f"{kept}/{name}", f"/dev/{name}")
    os.symlink("/proc/self/fd", "/dev/fd")
    subprocess.run(["umount", "--recursive", "--lazy", kept], check=True)
    os.rmdir(kept)
    assert not os.path.exists("/dev/shm")


def protect_home(home: str) -> None:
    mount("-t", "tmpfs", "-o", "ro", "none", home)
    os.environ["HOME"] = home
    for name in ("XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME"):
        os.environ.pop(name, None)


def main() -> int:
    try:
        at = sys.argv.index("--")
    except ValueError:
        sys.exit(__doc__.strip())
    wanted, command = set(sys.argv[1:at]), sys.argv[at + 1:]
    if unknown := wanted - {"no-uring", "no-shm", "read-only-home"}:
        sys.exit(f"conditions: unknown: {' '.join(sorted(unknown))}")
    home = tempfile.mkdtemp(prefix="home-")
    try:
        if wanted & {"no-shm", "read-only-home"}:
            own_mounts()
        if "no-shm" in wanted:
            remove_shm()
        if "read-only-home" in wanted:
            protect_home(home)
        # Only the command has the filter.
        refuse = forbid_uring if "no-uring" in wanted else None
        return subprocess.run(command, check=False, preexec_fn=refuse).returncode
    finally:
        if os.path.ismount(home):
            subprocess.run(["umount", home], check=True)
        os.rmdir(home)


if __name__ == "__main__":
    sys.exit(main())
