"""Reads objects whose names libcurl can't read, such as hf:// or az://, by fsspec.

This is the one file that imports fsspec, and only once such a name occurs. ``fsspec_uploads``
writes by its functions. Options and credentials are those of fsspec's own configuration. No message
has a secret of a name.
"""

from __future__ import annotations

import errno
import functools
import os
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

from feedmill.remote.names import SCHEMES, shown, without_secrets

# The packages that fsspec needs for schemes, by the begin of their names.
_PACKAGES = {
    "abfs": "adlfs", "adl": "adlfs", "az": "adlfs", "gcs": "gcsfs", "hdfs": "pyarrow",
    "hf": "huggingface_hub", "oci": "ocifs", "oss": "ossfs", "s3": "s3fs", "sftp": "paramiko",
    "smb": "smbprotocol", "ssh": "paramiko", "webdav": "webdav4", "http": "aiohttp",
}
# How an error is marked that the native code hands on, and the exceptions that are kept.
_MARK = "fsspec: "
_ERRNOS = {
    "FileNotFoundError": errno.ENOENT, "PermissionError": errno.EACCES,
    "IsADirectoryError": errno.EISDIR, "TimeoutError": errno.ETIMEDOUT,
}
_MOST_CHARS = 300
_Result = TypeVar("_Result")


class Listed(NamedTuple):
    """An object or a folder in a listing.

    Attributes:
        key: the rest of its name, behind the listed folder's.
        n_bytes: of an object; -1: not known.
        is_folder: it is a folder.
    """

    key: str
    n_bytes: int
    is_folder: bool


def schemes_of(name: str) -> str:
    """The schemes of a name, as in "memory://" or "simplecache::s3://"."""
    links = name.split("::")
    ends = [link.partition("://") for link in links]
    return "::".join(scheme + separator for scheme, separator, _ in ends if separator or scheme)


@functools.cache
def _why_no_scheme(scheme: str) -> str:
    package = next((_PACKAGES[one] for one in _PACKAGES if scheme.startswith(one)), "")
    more = f" {package}" if package else ""
    try:
        import fsspec
    except ImportError:
        return (
            f"feedmill reads {', '.join(SCHEMES)} itself, and {scheme}:// by fsspec, which is not "
            f"installed: pip install fsspec{more}"
        )
    try:
        fsspec.get_filesystem_class(scheme)
    except ImportError as error:
        return (
            f"fsspec reads {scheme}:// with a package that is not installed"
            f"{f': pip install {package}' if package else ''} ({error})"
        )
    except ValueError:
        return (
            f"{scheme}:// is not supported: feedmill reads {', '.join(SCHEMES)} itself, and the "
            f"others by fsspec, which does not know {scheme}://"
        )
    return ""


def why_unreadable(name: str) -> str:
    """Why fsspec can't read names like this one; "" if it can. Imports what it needs for them."""
    for link in name.split("::"):
        scheme, separator, _ = link.partition("://")
        if (separator or link.isidentifier()) and (why := _why_no_scheme(scheme)):
            _why_no_scheme.cache_clear()  # it may be installed, or registered, later
            return why
    return ""


def read(name: str, offset: int = 0, n_bytes: int = 0) -> bytes:
    """Reads an object, or n_bytes of it (0: all). Blocks. Thread-safe.

    Raises:
        ValueError: fsspec, or a package that it needs, is not installed.
        FileNotFoundError, PermissionError, TimeoutError, OSError: it can't be read.
    """
    data = called(name, lambda: _read(name, offset, n_bytes))
    if n_bytes and len(data) < n_bytes:
        raise OSError(errno.EIO, "the object ends before the range does", shown(name))
    return data


def size_and_etag(name: str) -> tuple[int | None, str]:
    """The bytes of an object as they are now, None: not known; and its strong ETag with quotes, "":
    none. Blocks. Raises as read()."""
    info = called(name, lambda: _info(name))
    size, etag = info.get("size"), info.get("ETag") or info.get("etag")
    plain = etag.strip('"') if isinstance(etag, str) and not etag.startswith("W/") else ""
    return size if isinstance(size, int) else None, f'"{plain}"' if plain else ""


def list_folder(name: str, is_deep: bool) -> list[Listed]:
    """Lists what is directly in a folder, or all objects below it.

    Args:
        name: of the folder. Its path must be the last thing in it, as names begin with it.
        is_deep: list the objects of its folders, too, and no folders.

    Raises:
        ValueError: as read(); or the name is not that of a folder, or an object in it has a name
            that fsspec can't read.
        OSError: as read().
    """
    base, infos = called(name, lambda: _list(name, is_deep))
    found = []
    for info in infos:
        path, kind = str(info["name"]), info.get("type")
        if not path.startswith(base):
            raise ValueError(f"{shown(name)!r} is not a folder, or is listed with other names")
        key, size = path[len(base) :].strip("/"), info.get("size")
        if "::" in key:
            raise ValueError(f"{shown(name)}: fsspec can't read the name {key!r}, as it has '::'")
        if is_deep and kind == "link to a directory":
            raise ValueError(
                f"{shown(name)}: {key!r} is a link to a folder; only those at the top are followed"
            )
        if key and kind is not None:
            found.append(Listed(key, size if isinstance(size, int) else -1, kind != "file"))
    return found


def called(name: str, function: Callable[[], _Result]) -> _Result:
    """What a function that calls the file system of a name returns. Raises as read(), whatever the
    function raises."""
    if (unreadable := _unreadable_error(name)) is not None:
        raise unreadable
    try:
        return function()
    except Exception as error:  # of the file system's package, which has its own exceptions
        why = _described(name, error)
    # Outside of the except block: the original exception may have secrets.
    raise _error(name, why)


def read_or_why(name: str, offset: int, n_bytes: int) -> bytes | str:
    """read() for the native loader: returns a text for read_error() instead of raising."""
    try:
        return read(name, offset, n_bytes)
    except OSError as error:
        return str(error.strerror)
    except ValueError as error:
        return str(error)


def read_error(name: str, why: str) -> Exception:
    """The exception of read() for a text of read_or_why(), to which the native code may have
    prepended the sample."""
    # Without the sample's number and name, which the caller adds in Python's form.
    why = why.partition(f"{shown(name)}): ")[2] or why
    return _unreadable_error(name) or _error(name, why)


def _unreadable_error(name: str) -> ValueError | None:
    why = why_unreadable(name)
    return ValueError(f"{shown(name)!r} can't be read: {why}") if why else None


def _error(name: str, why: str) -> OSError:
    kind = why.removeprefix(_MARK).partition(":")[0]
    return OSError(_ERRNOS.get(kind, errno.EIO), why, shown(name))


def filesystem_of(name: str) -> tuple[Any, str]:
    """The file system of a name, and the name's path in it. To be called within called()."""
    from fsspec.core import url_to_fs

    filesystem, path = url_to_fs(name)
    return filesystem, str(path)


def info_of(filesystem: Any, path: str) -> dict[str, Any]:
    """What a file system says about an object as it is now."""
    # An earlier listing may be of an earlier version of the object.
    filesystem.invalidate_cache(filesystem._parent(path))
    return dict(filesystem.info(path))


def can_rename(filesystem: Any) -> bool:
    """Whether it moves a file in a way of its own, which file systems do by renaming it, and not by
    copying and removing it."""
    from fsspec import AbstractFileSystem

    return type(filesystem).mv is not AbstractFileSystem.mv


def _read(name: str, offset: int, n_bytes: int) -> bytes:
    if os.path.exists(name):  # the file x in the folder hf: may be called hf://x
        with open(name, "rb") as file:
            file.seek(offset)
            return file.read(n_bytes or -1)
    filesystem, path = filesystem_of(name)
    if not n_bytes:
        return bytes(filesystem.cat_file(path))
    return bytes(filesystem.cat_file(path, start=offset, end=offset + n_bytes))


def _info(name: str) -> dict[str, Any]:
    return info_of(*filesystem_of(name))


def _list(name: str, is_deep: bool) -> tuple[str, list[dict[str, Any]]]:
    """The begin of the paths in a folder, and what fsspec says about each, where the type is
    "file", "directory", "link to a directory" or None."""
    filesystem, path = filesystem_of(name)
    base = path.rstrip("/") + "/" if path else ""
    if not is_deep:
        infos = filesystem.ls(path, detail=True)
    elif _finds_by_itself(filesystem):
        infos = filesystem.find(path, detail=True).values()
    else:
        infos = _walk(filesystem, path)
    return base, [{**info, "type": _type_of(filesystem, info)} for info in infos]


def _walk(filesystem: Any, path: str) -> list[dict[str, Any]]:
    """All below a folder but folders. fsspec's find() leaves out folders that it fails to list."""
    found, folders = [], [path]
    while folders:
        folder = folders.pop()
        for info in filesystem.ls(folder, detail=True):
            inside = info["name"].rstrip("/")
            if info.get("type") != "directory":
                found.append(info)
            elif inside != folder.rstrip("/"):  # some stores list a folder in itself
                folders.append(inside)
    return found


def _finds_by_itself(filesystem: Any) -> bool:
    """Whether it lists what is below a folder in its own way, rather than folder by folder."""
    from fsspec import AbstractFileSystem
    from fsspec.asyn import AsyncFileSystem

    kind = type(filesystem)
    if isinstance(filesystem, AsyncFileSystem):
        return kind._find is not AsyncFileSystem._find
    return kind.find is not AbstractFileSystem.find


def _type_of(filesystem: Any, info: dict[str, Any]) -> str | None:
    """Links, which some file systems list with types of their own, have that of their target."""
    kind, path = info.get("type"), info["name"]
    if kind in ("file", "directory"):
        return str(kind)
    if filesystem.isdir(path):
        return "link to a directory"
    return "file" if filesystem.isfile(path) else None


def _described(name: str, error: Exception) -> str:
    """An exception in words, marked, as one that is raised in its place is called."""
    kinds = (one.__name__ for one in type(error).__mro__ if one.__name__ in _ERRNOS)
    own = type(error).__name__
    kind = next(kinds, own)
    text = _text_of(error)
    if kind != own:
        text = f"{own}: {text}"
    text = " ".join(without_secrets(text, name).split())
    return f"{_MARK}{kind}: {text[:_MOST_CHARS]}"


def _text_of(error: Any) -> str:
    strerror = getattr(error, "strerror", None)
    text = str(strerror if isinstance(strerror, str) and strerror else error)
    if not text and isinstance(error, NotImplementedError):
        return "the file system can't do this"
    return text
