"""Files whose reads block until a test releases them."""

from __future__ import annotations

import contextlib
import os
import subprocess
import tempfile
import time
from pathlib import Path

import helpers


class HeldFiles:
    """A read-only mount of a folder in which the reads of one file block.

    It is made by the FUSE file system slowfs (tests/support). Skips the test if FUSE is not
    available.

    Args:
        source: the folder.
        mountpoint: where it is mounted; made if need be.
        name: the name of the file whose reads block until release().
        open_ms: how long each open() of any file takes.
    """

    def __init__(self, source: Path, mountpoint: Path, name: str, open_ms: int = 0) -> None:
        tool = os.environ.get("FEEDMILL_SLOWFS")
        if not tool or not os.access(tool, os.X_OK):
            helpers.skip("FEEDMILL_SLOWFS does not name the tool slowfs (tests/support)")
        if not os.access("/dev/fuse", os.R_OK | os.W_OK):
            helpers.skip("there is no FUSE here (/dev/fuse)")
        mountpoint.mkdir(exist_ok=True)
        self.path = mountpoint / name
        self._control = tempfile.TemporaryDirectory()
        self._rule = Path(self._control.name, f"read.{name}")
        self._rule.touch()
        self._process = subprocess.Popen(
            [tool, "--source", source, "--mountpoint", mountpoint, "--control", self._control.name,
             "--open-ms", str(open_ms)]
        )
        while not mountpoint.is_mount():
            if self._process.poll() is not None:
                self.close()
                helpers.skip("slowfs could not be mounted")
            time.sleep(0.002)

    def release(self) -> None:
        """Lets all reads continue, those that block now and later ones."""
        self._rule.unlink()

    def close(self) -> None:
        # Repeatedly, as libfuse misses a signal that arrives just before it begins to wait.
        while self._process.poll() is None:
            self._process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(1)
        self._control.cleanup()
