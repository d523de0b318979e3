"""Opens a file, a remote object or an image's bytes alike."""

from __future__ import annotations

import io
import os
from typing import Any

from feedmill.remote.names import is_name, shown, why_no_name
from feedmill.remote.process import fetch


def open_source(source: str | os.PathLike[str] | bytes) -> Any:
    """Opens a path, a remote object's name or an image's bytes for reading, as open(path, "rb").

    Raises:
        OSError: it can't be read.
        ValueError: a name of a kind that is not supported.
    """
    if type(source) is bytes:
        return io.BytesIO(source)
    # Few paths have "://" in them: the others need no further check.
    if isinstance(source, str) and "://" in source:
        if why := why_no_name(source):
            raise ValueError(f"{shown(source)!r} can't be read: {why}")
        if is_name(source):
            return io.BytesIO(fetch(source))
    return open(source, "rb")
