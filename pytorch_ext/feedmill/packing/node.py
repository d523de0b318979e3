"""What a node of a cluster does for a pack: checks that it sees the files, and writes one shard."""

from __future__ import annotations

import errno
import os
import pickle
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import NamedTuple

from feedmill._ops import __version__, native
from feedmill.packing.index import PackError
from feedmill.packing.targets import Target, target_of
from feedmill.packing.writer import Options, ShardJob, Tally, write_jobs
from feedmill.remote.settings import Settings

# Errors of a file system that may not come again, mostly of network file systems and stores.
_TRANSIENT = {
    errno.EIO, errno.ESTALE, errno.ETIMEDOUT, errno.EAGAIN, errno.EINTR, errno.ECONNRESET,
    errno.ECONNREFUSED, errno.ENOTCONN, errno.EHOSTDOWN, errno.EHOSTUNREACH, errno.ENETUNREACH,
    errno.EREMOTEIO, errno.ENOMEM, errno.EMFILE, errno.ENFILE,
}


@dataclass(frozen=True)
class Site:
    """What each node must see.

    Attributes:
        sources: absolute paths: the image folder, or a tar file of each folder with tar files.
        target: the pack's folder, as an absolute path, or its name in a store.
        settings: of requests to the store.
        marker: name of a file in the target, with a random name, which exists while the nodes work.
            A node that does not see it has another folder with the same path, or is to stop.
    """

    sources: Sequence[str]
    target: str
    settings: Settings
    marker: str

    def problem(self) -> str:
        """What is missing on this machine. Empty if nothing is. Raises OSError: a store does not
        answer."""
        for path in self.sources:
            if not os.path.exists(path):
                return f"does not see the source {path}; mount it on all nodes"
        try:
            target = self.open()
        except ValueError as error:
            return f"can't use the target: {error}"
        return target.why_unusable(self.marker)

    def open(self) -> Target:
        """Raises ValueError as target_of()."""
        return target_of(self.target, self.settings)


class _Stopped(Exception):
    """The marker is gone: the command that started the job has ended."""


class Result(NamedTuple):
    """What became of a job.

    Attributes:
        tally: None if it failed, or if there was nothing to write.
        error: why it failed; empty if it did not.
        of_node: the error is a property of the node; its text has the node as the subject.
        may_retry: the job may succeed if it is tried again.
    """

    tally: Tally | None
    error: str = ""
    of_node: bool = False
    may_retry: bool = False


def version() -> str:
    """What must be the same on all nodes for the same bytes."""
    return f"feedmill {__version__} with libjpeg {native.jpeg_version()}"


def payload_of(site: Site, job: ShardJob | None, options: Options) -> bytes:
    """The argument of run()."""
    return pickle.dumps((site, job, options))


def run(wanted_version: str, payload: bytes) -> Result:
    """Checks this node, and writes the shard of a job, if there is one.

    Args:
        wanted_version: version() where the job was made.
        payload: of payload_of().
    """
    if version() != wanted_version:
        return Result(None, f"has {version()}, but this command runs with {wanted_version}; "
                            "install the same on all nodes", of_node=True)
    site, job, options = pickle.loads(payload)
    try:
        if problem := site.problem():
            return Result(None, problem, of_node=True)
        return Result(None) if job is None else _write(job, site.open(), site.marker, options)
    except _Stopped:
        return Result(None, "the command that started it has ended")
    except PackError as error:
        return Result(None, str(error))
    except OSError as error:
        if job is None:
            return Result(None, f"can't reach the target: {error}", of_node=True)
        # The file system may have been unmounted while the job ran.
        with suppress(OSError):
            if problem := site.problem():
                return Result(None, problem, of_node=True)
        return Result(None, str(error), may_retry=error.errno in _TRANSIENT)


def _write(job: ShardJob, target: Target, marker: str, options: Options) -> Result:
    checked_s = time.monotonic()

    def update(_: int) -> None:
        nonlocal checked_s
        if time.monotonic() - checked_s >= target.check_s:
            if not target.has(marker):
                raise _Stopped
            checked_s = time.monotonic()

    return Result(write_jobs([job], target, options, update))
