"""Opens a file, a remote object or an image's bytes alike."""

from __future__ import annotations

import io
import os
from typing import Any

from feedmill.remote import by_fsspec
from feedmill.remote.names import is_fsspec_name, is_name, shown, why_no_name
from feedmill.remote.process import Head, fetch, fetch_first


def is_remote(path: Any) -> bool:
    """Whether a path names a remote object, which libcurl or fsspec reads."""
    return is_name(path) or is_fsspec_name(path)


def why_unreadable(path: Any) -> str:
    """Why an image's path can't be read, by its scheme; "" if it can, or is a file's path."""
    return by_fsspec.why_unreadable(path) if is_fsspec_name(path) else why_no_name(path)


def read_object(name: str, offset: int = 0, n_bytes: int = 0) -> bytes:
    """Reads a remote object, or n_bytes of it (0: all). Blocks.

    Raises:
        OSError: it can't be read.
        ValueError: libcurl, fsspec or a package that it needs is not installed, or a setting is
            invalid.
    """
    return (fetch if is_name(name) else by_fsspec.read)(name, offset, n_bytes)


def read_first(name: str, offset: int, n_bytes: int) -> Head:
    """As read_object(), for the first range of an object of which others will be read. What libcurl
    reads must then be of the same version; fsspec can't tell versions apart."""
    if is_name(name):
        return fetch_first(name, offset, n_bytes)
    size, etag = by_fsspec.size_and_etag(name)
    return Head(by_fsspec.read(name, offset, n_bytes), etag, size)


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
        if why := why_unreadable(source):
            raise ValueError(f"{shown(source)!r} can't be read: {why}")
        if is_remote(source):
            return io.BytesIO(read_object(source))
    return open(source, "rb")
