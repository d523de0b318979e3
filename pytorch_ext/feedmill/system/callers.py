"""Finds the line of the user's script in the call stack, below the libraries that it calls."""

from __future__ import annotations

import functools
import os
import sys
import sysconfig
from types import FrameType

# Libraries that make or iterate DataLoaders for a script. They are known by name, as after
# `pip install -e` their files are not in a package folder.
_LIBRARIES = frozenset({
    "accelerate", "composer", "fastai", "feedmill", "ignite", "lightning", "lightning_fabric",
    "pytorch_lightning", "timm", "torch", "torchdata", "torchvision", "transformers",
    "ultralytics",
})
_PACKAGE_FOLDERS = (f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}")


def caller_location() -> str:
    """Returns "file:line" of the innermost frame of the user's script. If no frame is a script's,
    as in an installed program, the innermost frame of the lowest _rank() is used."""
    frame, _ = _caller()
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"


def caller_stacklevel() -> int:
    """Returns the stacklevel with which the calling function makes warnings.warn() name the line of
    caller_location()."""
    _, level = _caller()
    return level


def _caller() -> tuple[FrameType, int]:
    """The chosen frame, and its stacklevel as seen by the caller of a public function above."""
    frames = [sys._getframe(2)]
    while (outer := frames[-1].f_back) is not None:
        frames.append(outer)
    ranks = [_rank(one) for one in frames]
    best = ranks.index(min(ranks))
    return frames[best], best + 1


def _rank(frame: FrameType) -> int:
    """Ranks a frame by whose code it runs: 0 a script, 1 an installed package (perhaps the user's
    own), 2 a library in _LIBRARIES, 3 the standard library or an installed command, 4 feedmill or
    torch."""
    package = str(frame.f_globals.get("__name__", "")).partition(".")[0]
    if package in ("feedmill", "torch"):
        return 4
    if package in _LIBRARIES:
        return 2
    file = frame.f_code.co_filename
    # Checked before the standard library, whose folder may contain the package folders.
    if any(folder in file for folder in _PACKAGE_FOLDERS) or file.startswith(_folders("purelib")):
        return 1
    return 3 if file.startswith(("<frozen", *_folders("stdlib", "platstdlib", "scripts"))) else 0


@functools.cache
def _folders(*names: str) -> tuple[str, ...]:
    found = {path for name in names if (path := sysconfig.get_path(name))}
    return tuple(os.path.join(folder, "") for folder in found)
