"""What an installation lacks: torch, NumPy or Ray can't be imported."""

from __future__ import annotations

import sys

# The packages that pip installs with feedmill, unless told not to, those that one of its commands
# needs, and what to ask pip for.
_NEEDED = {"torch": "'torch>=2.4'", "numpy": "numpy", "ray": "ray"}


def missing_package(error: ModuleNotFoundError) -> str:
    """Text: what to install after this error of an import. Empty if something else is
    missing."""
    if error.name not in _NEEDED:
        return ""
    return (
        f"feedmill needs {error.name}, which is not installed in this Python ({sys.executable}). "
        f"To install it: {sys.executable} -m pip install {_NEEDED[error.name]}"
    )
