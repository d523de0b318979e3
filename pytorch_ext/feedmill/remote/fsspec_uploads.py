"""Writes objects by fsspec, in stores that ``uploads`` can't write to."""

from __future__ import annotations

import errno
import io
import os
import secrets
import shutil
from contextlib import suppress
from typing import IO, Any

from feedmill.remote import by_fsspec
from feedmill.remote.names import shown

# Schemes of stores in which an object appears when its upload is complete, and not before. In other
# file systems a file may be seen while it is written.
_STORES = ("s3", "s3a", "gs", "gcs", "az", "abfs", "abfss", "hf")
# Of an object in these: larger ones are uploaded in parts of so many bytes. GCS needs a multiple of
# 256 KiB.
_PART_BYTES = 64 << 20
_PIECE_BYTES = 8 << 20


class Folder:
    """The files in a folder that fsspec writes to, as uploads.Prefix. Thread-safe.

    Args:
        name: of the folder, such as az://container/folder.

    Raises:
        ValueError: the name is not that of a folder, is that of a chain of file systems, or has a
            query or a fragment; or fsspec, or a package that it needs, is not installed.

    Methods raise FileNotFoundError, PermissionError or OSError, which have the file's name and the
    reason that fsspec gives, without secrets.
    """

    def __init__(self, name: str) -> None:
        scheme, _, place = name.partition("://")
        problem = ""
        if "::" in name:
            problem = "a chain of file systems can't be written to: name the last one alone"
        elif "?" in place or "#" in place:
            problem = (
                "a name with a query or a fragment can't be written to; credentials belong into "
                "fsspec's configuration"
            )
        elif not place.strip("/"):
            problem = f"name a folder, such as {scheme}://folder/pack"
        elif why := by_fsspec.why_unreadable(name):
            problem = f"it can't be written: {why}"
        if problem:
            raise ValueError(f"{shown(name)}: {problem}")
        self._name = name.rstrip("/")
        self._appears_complete = scheme.lower() in _STORES

    def make(self) -> None:
        """Makes the folder, if it is missing, in file systems that need folders."""
        def make() -> None:
            filesystem, path = by_fsspec.filesystem_of(self._name)
            filesystem.makedirs(path, exist_ok=True)

        if not self._appears_complete:  # in some stores this would make a bucket
            by_fsspec.called(self._name, make)

    def size(self, file: str) -> int | None:
        """A file's size in bytes; None: there is no such file."""
        name = self._of(file)
        try:
            n_bytes, _ = by_fsspec.size_and_etag(name)
        except FileNotFoundError:
            return None
        if n_bytes is None:
            raise OSError(errno.EIO, "fsspec does not say how large it is", shown(name))
        return n_bytes

    def names(self) -> list[str]:
        """Names of the files in the folder, without its own."""
        def forget() -> None:
            filesystem, path = by_fsspec.filesystem_of(self._name)
            filesystem.invalidate_cache(path)

        by_fsspec.called(self._name, forget)
        listed = by_fsspec.list_folder(self._name, is_deep=False)
        return [one.key for one in listed if not one.is_folder]

    def read(self, file: str) -> bytes:
        return by_fsspec.read(self._of(file))

    def write(self, file: str, data: bytes) -> None:
        self.upload(file, io.BytesIO(data))

    def upload(self, file: str, data: IO[bytes]) -> None:
        """Writes a file of any size, which appears when it is complete.

        Where a file is seen while it is written, it has the name FILE.RANDOM.partial until it is
        complete, which a process that is killed leaves behind. A file system that can't rename
        files copies it then; if the process is killed while it does, a part of the file may stay
        under its own name.
        """
        name, n_bytes = self._of(file), data.seek(0, io.SEEK_END)

        def upload() -> None:
            filesystem, path = by_fsspec.filesystem_of(name)
            if self._appears_complete:
                _put(filesystem, path, data, n_bytes, block_size=_PART_BYTES)
            else:
                _put_and_move(filesystem, path, data, n_bytes)

        by_fsspec.called(name, upload)

    def remove(self, file: str) -> None:
        def remove() -> None:
            filesystem, path = by_fsspec.filesystem_of(self._of(file))
            filesystem.rm_file(path)

        by_fsspec.called(self._of(file), remove)

    def _of(self, file: str) -> str:
        return f"{self._name}/{file}"


def _put(filesystem: Any, path: str, data: IO[bytes], n_bytes: int, **options: Any) -> None:
    data.seek(0)
    file = filesystem.open(path, "wb", **options)
    try:
        if hasattr(file, "finalize_on_close"):  # of gcsfs, in zonal buckets only
            raise OSError(
                errno.ENOTSUP,
                "objects of a zonal bucket are seen while they are written; pack into another "
                "bucket, or into a folder, and copy it",
            )
        shutil.copyfileobj(data, file, _PIECE_BYTES)
        file.close()
    except BaseException:
        _abandon(file)
        raise
    _check_size(filesystem, path, n_bytes)


def _abandon(file: Any) -> None:
    """Drops a file that is being written. In stores closing it would complete it, with what was
    written of it; fsspec's files do that also when they are deleted, unless they are closed."""
    try:
        file.closed = True
    except AttributeError:  # not a file of a store
        with suppress(Exception):
            file.close()
    else:
        with suppress(Exception):
            file.discard()
        with suppress(AttributeError, OSError):  # huggingface_hub keeps a copy until it is closed
            os.unlink(file.temp_file.name)


def _put_and_move(filesystem: Any, path: str, data: IO[bytes], n_bytes: int) -> None:
    temporary = f"{path}.{secrets.token_hex(8)}.partial"
    try:
        _put(filesystem, temporary, data, n_bytes)
        if by_fsspec.can_rename(filesystem):
            filesystem.mv(temporary, path)
            return
        _copy(filesystem, temporary, path, n_bytes)
    except BaseException:
        with suppress(Exception):
            filesystem.rm_file(temporary)
        raise
    with suppress(Exception):  # the file is there
        filesystem.rm_file(temporary)


def _copy(filesystem: Any, path: str, to: str, n_bytes: int) -> None:
    try:
        filesystem.cp_file(path, to)
        _check_size(filesystem, to, n_bytes)
    except BaseException:
        with suppress(Exception):
            filesystem.rm_file(to)
        raise


def _check_size(filesystem: Any, path: str, n_bytes: int) -> None:
    """Raises OSError if a file that was written is not complete."""
    real = by_fsspec.info_of(filesystem, path).get("size")
    if real != n_bytes:
        raise OSError(errno.EIO, f"{n_bytes} bytes were written, but it has {real}")
