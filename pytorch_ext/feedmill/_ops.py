"""Imports the extension module; no other file does. ``_native.pyi`` describes it.
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
    """Text: the likely causes of a failed import, the most likely first."""
    here = Path(__file__).parent
    found = sorted(path.name for path in here.glob("_native*"))
    binaries = [name for name in found if not name.endswith(".pyi")]
    machine = f"{platform.system()} {platform.machine()}, Python {platform.python_version()}"
    causes = []
    if binaries:
        causes += [
            f"{binaries[0]} needs a shared library that is missing (libjpeg-turbo, liburing, "
            f"libstdc++): `ldd {here / binaries[0]}` names it",
            f"it was built for a different system than this one ({machine})",
        ]
    else:
        causes += [
            f"the package is imported from its source folder, which is not built ({here} has no "
            "_native.abi3.so): run `pip install .` in the repository, and import it from "
            "outside of the repository's pytorch_ext",
            f"the installed wheel is for a different system than this one ({machine}); Linux is "
            "required",
        ]
    if "t" in getattr(sys, "abiflags", ""):
        causes.append("this is a free-threaded Python, which the extension does not support")
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
