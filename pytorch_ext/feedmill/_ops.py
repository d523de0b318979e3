"""Binds the extension module; no other file imports it.

``native`` is the module that ``_native.pyi`` describes.
"""

from __future__ import annotations

import importlib
import platform
import sys
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from feedmill import _native as native

__all__ = ["__version__", "native"]


def _likely_causes() -> str:
    """What usually stands behind a failed import, most likely first."""
    here = Path(__file__).parent
    found = sorted(path.name for path in here.glob("_native*"))
    binaries = [name for name in found if not name.endswith(".pyi")]
    machine = f"{platform.system()} {platform.machine()}, Python {platform.python_version()}"
    causes = []
    if binaries:
        causes += [
            f"{binaries[0]} needs a shared library that is missing here (libjpeg-turbo, "
            f"liburing, libstdc++): `ldd {here / binaries[0]}` names it",
            f"it was built for another system than this one ({machine})",
        ]
    else:
        causes += [
            f"the package is used from its sources, where nothing is built ({here} holds no "
            "_native.abi3.so): run `pip install .` in the repository, and import it from "
            "another folder than the repository's pytorch_ext",
            f"the installed wheel is not for this system ({machine}); Linux is needed",
        ]
    if "t" in getattr(sys, "abiflags", ""):
        causes.append("this is a free-threaded Python; the extension needs an ordinary one")
    return "".join(f"\n  - {cause}" for cause in causes)


def _load() -> ModuleType:
    try:
        return importlib.import_module("feedmill._native")
    except ImportError as error:
        raise ImportError(
            f"feedmill's extension module can't be loaded ({error}). Likely causes:"
            f"{_likely_causes()}",
            name="feedmill._native",
        ) from error


if not TYPE_CHECKING:
    native = _load()
__version__: str = native.version()
