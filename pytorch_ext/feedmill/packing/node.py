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
from feedmill.packing.targets import FolderTarget
from feedmill.packing.writer import Options, ShardJob, Tally, write_jobs

# Errors of a file system that may not come again, mostly of network file systems.
_TRANSIENT = {
    errno.EIO, errno.ESTALE, errno.ETIMEDOUT, errno.EAGAIN, errno.EINTR, errno.ECONNRESET,
    errno.ECONNREFUSED, errno.ENOTCONN, errno.EHOSTDOWN, errno.EHOSTUNREACH, errno.ENETUNREACH,
    errno.EREMOTEIO, errno.ENOMEM, errno.EMFILE, errno.ENFILE,
}

# How often a job looks whether it is to stop.
_CHECK_S = 0.5


@dataclass(frozen=True)
class Site:
    """What each node must see.

    Attributes:
        sources: absolute paths: the image folder, or a tar file of each folder with tar files.
        folder: absolute path of the pack's folder.
        marker: name of a file in the pack's folder, with a random name, which exists while the
            nodes work. A node that does not see it has another folder with the same path, or is
            to stop.
    """

    sources: Sequence[str]
    folder: str
    marker: str

    def problem(self) -> str:
        """What is missing on this machine. Empty if nothing is."""
        for path in self.sources:
            if not os.path.exists(path):
                return f"does not see the source {path}; mount it on all nodes"
        if not os.path.isdir(self.folder):
            return f"does not see the target folder {self.folder}; mount it on all nodes"
        if not self.is_open():
            return (f"has another folder as {self.folder} than the node that runs this command; "
                    "the target must be on a file system that all nodes share")
        if not os.access(self.folder, os.W_OK | os.X_OK):
            return f"may not write to the target folder {self.folder}"
        return ""

    def is_open(self) -> bool:
        """Whether the marker exists."""
        try:
            # NFS asks its server when a file is opened; stat() may answer from its cache.
            os.close(os.open(self._marker_path(), os.O_RDONLY | os.O_CLOEXEC))
        except (FileNotFoundError, NotADirectoryError):
            return False
        except OSError:
            pass  # such as a server that does not answer: not a reason to stop
        return True

    def close(self) -> None:
        """Removes the marker: all nodes stop after the sample at which they are."""
        with suppress(OSError):
            os.unlink(self._marker_path())

    def _marker_path(self) -> str:
        return os.path.join(self.folder, self.marker)


class _Stopped(Exception):
    """The marker is gone."""


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
    if problem := site.problem():
        return Result(None, problem, of_node=True)
    if job is None:
        return Result(None)
    checked_s = time.monotonic()

    def update(_: int) -> None:
        nonlocal checked_s
        if time.monotonic() - checked_s >= _CHECK_S:
            if not site.is_open():
                raise _Stopped
            checked_s = time.monotonic()

    try:
        return Result(write_jobs([job], FolderTarget(site.folder), options, update))
    except _Stopped:
        return Result(None, "the command that started it has ended")
    except PackError as error:
        return Result(None, str(error))
    except OSError as error:
        # The file system may have been unmounted while the job ran.
        if problem := site.problem():
            return Result(None, problem, of_node=True)
        return Result(None, str(error), may_retry=error.errno in _TRANSIENT)
