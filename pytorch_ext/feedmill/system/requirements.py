"""What an installation lacks: torch or NumPy can't be imported."""

from __future__ import annotations

import sys

# The packages that pip installs with feedmill, unless told not to, and what to ask pip for.
_NEEDED = {"torch": "'torch>=2.4'", "numpy": "numpy"}


def missing_package(error: ModuleNotFoundError) -> str:
    """Text: what to install after this error of an import. Empty if neither torch nor NumPy is
    what is missing."""
    if error.name not in _NEEDED:
        return ""
    return (
        f"feedmill needs {error.name}, which is not installed in this Python ({sys.executable}). "
        f"To install it: {sys.executable} -m pip install {_NEEDED[error.name]}"
    )
