"""Files whose reads wait until a test lets them go on."""

from __future__ import annotations

import os
import subprocess
import tempfile
import time
from pathlib import Path

import helpers


class HeldFiles:
    """A read-only view of a folder by the file system slowfs (tests/support), in which reads wait.

    Skips the test where there is no FUSE.

    Args:
        source: the folder.
        mountpoint: where it is seen; made if it is not there.
        name: of the file whose reads are held until release().
    """

    def __init__(self, source: Path, mountpoint: Path, name: str) -> None:
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
            [tool, "--source", source, "--mountpoint", mountpoint, "--control", self._control.name]
        )
        while not mountpoint.is_mount():
            if self._process.poll() is not None:
                self.close()
                helpers.skip("slowfs could not be mounted")
            time.sleep(0.002)

    def release(self) -> None:
        """All reads go on, now and from now on."""
        self._rule.unlink()

    def close(self) -> None:
        self._process.terminate()
        self._process.wait()
        self._control.cleanup()
