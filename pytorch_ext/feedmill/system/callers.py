"""Which line of the user's script is running, apart from the libraries that it calls."""

from __future__ import annotations

import functools
import os
import sys
import sysconfig
from types import FrameType

# Libraries that make or iterate DataLoaders for a script, also where they are not installed in a
# folder of packages, as after `pip install -e`.
_LIBRARIES = frozenset({
    "accelerate", "composer", "fastai", "feedmill", "ignite", "lightning", "lightning_fabric",
    "pytorch_lightning", "timm", "torch", "torchdata", "torchvision", "transformers",
    "ultralytics",
})
_PACKAGE_FOLDERS = (f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}")


def place_of_caller() -> str:
    """"file:line" of the innermost frame of the user's script; of a program that is installed
    itself the best there is, see _rank()."""
    frame, _ = _caller()
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"


def level_of_caller() -> int:
    """The stacklevel that has warnings.warn(), called where this function is, name that line."""
    _, level = _caller()
    return level


def _caller() -> tuple[FrameType, int]:
    """The frame, and its stacklevel for the function that called one of those above."""
    frames = [sys._getframe(2)]
    while (outer := frames[-1].f_back) is not None:
        frames.append(outer)
    ranks = [_rank(one) for one in frames]
    best = ranks.index(min(ranks))
    return frames[best], best + 1


def _rank(frame: FrameType) -> int:
    """Whose code it is: 0 the script's, 1 that of an installed package, which may be the user's,
    2 that of a library which makes loaders, 3 Python's own or a command's, 4 feedmill's."""
    package = str(frame.f_globals.get("__name__", "")).partition(".")[0]
    if package in ("feedmill", "torch"):
        return 4
    if package in _LIBRARIES:
        return 2
    file = frame.f_code.co_filename
    # Folders of packages may lie in that of the standard library.
    if any(folder in file for folder in _PACKAGE_FOLDERS) or file.startswith(_folders("purelib")):
        return 1
    return 3 if file.startswith(("<frozen", *_folders("stdlib", "platstdlib", "scripts"))) else 0


@functools.cache
def _folders(*names: str) -> tuple[str, ...]:
    found = {path for name in names if (path := sysconfig.get_path(name))}
    return tuple(os.path.join(folder, "") for folder in found)
