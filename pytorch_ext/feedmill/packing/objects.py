"""The index and the tar files of a pack in an object store or on a web server."""

from __future__ import annotations

import io
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import quote

from feedmill.packing.index import HEADER, INDEX_NAME, Index, PackError
from feedmill.remote.names import in_chain, is_name, shown
from feedmill.remote.sources import read_first, read_object

_THREADS = 8
_PIECE_BYTES = 32 << 20
# Of the pieces in which a tar object is read; see ObjectFile.
_LEAST_BYTES, _MOST_BYTES = 64 << 10, 8 << 20


def is_store_name(name: str) -> bool:
    return name[:5].lower().startswith(("s3://", "gs://"))


def name_in(folder: str, file: str) -> str:
    """The name of a file in a folder of objects. A URL's query stands for all of them, as a
    signature of the folder does; its fragment is dropped."""
    if is_store_name(folder):
        return f"{folder.rstrip('/')}/{file}"
    if not is_name(folder):
        begin, link, end = in_chain(folder)
        path, mark, query = link.partition("?")
        slash = "" if path.endswith("/") else "/"
        return f"{begin}{path}{slash}{file}{mark}{query}{end}"
    path, mark, query = folder.partition("#")[0].partition("?")
    return f"{path.rstrip('/')}/{quote(file, errors='surrogateescape')}{mark}{query}"


def folder_of(name: str) -> str:
    """The name of the folder that an object is in."""
    if is_store_name(name):
        return name.rpartition("/")[0]
    if not is_name(name):
        begin, link, end = in_chain(name)
        path, mark, query = link.partition("?")
        return f"{begin}{path[: path.rindex('/') + 1]}{mark}{query}{end}"
    path, mark, query = name.partition("#")[0].partition("?")
    return f"{path.rpartition('/')[0]}{mark}{query}"


def last_part(name: str) -> str:
    """The last part of an object's name, without a query."""
    link = name if is_name(name) else in_chain(name)[1]
    return str(shown(link)).rpartition("/")[2] or "object"


def fetch_whole(name: str, least_bytes: int) -> bytes:
    """Reads an object of any size, in pieces at the same time, all of one version.

    Raises:
        PackError: it has fewer than ``least_bytes`` bytes.
        OSError, ValueError: as read_object().
    """
    try:
        head = read_first(name, 0, least_bytes)
    except OSError as error:
        if "ends before" not in str(error):
            raise
        raise PackError(f"{shown(name)}: it has fewer than {least_bytes} bytes") from None
    if head.object_bytes is None:
        return read_object(name)
    starts = range(least_bytes, head.object_bytes, _PIECE_BYTES)
    with ThreadPoolExecutor(_THREADS) as pool:
        pieces = pool.map(
            lambda at: read_object(name, at, min(_PIECE_BYTES, head.object_bytes - at)), starts
        )
        return b"".join([head.data, *pieces])


def _index_name(name: str) -> str:
    """The name of the index object of a pack that is given by its folder or its index."""
    path = name if is_name(name) else in_chain(name)[1]
    return name if str(shown(path)).endswith(".fmp") else name_in(name, INDEX_NAME)


def fetch_index(name: str) -> bytes:
    """Reads the index of a pack of objects."""
    try:
        return fetch_whole(_index_name(name), HEADER.itemsize)
    except FileNotFoundError as error:
        raise PackError(f"{shown(name)}: not a pack: there is no {INDEX_NAME} ({error})") from None


def open_fetched(name: str, data: bytes) -> tuple[Index, list[str]]:
    """The index of a pack of objects, whose bytes are ``data``, and the names of its shards."""
    at = _index_name(name)
    index, folder = Index(data, str(shown(at))), folder_of(at)
    return index, [name_in(folder, index.shard_name(k)) for k in range(index.n_shards)]


class ObjectFile(io.RawIOBase):
    """A tar object, opened for reading its headers one after the other.

    It is read in pieces: small ones at first and after members that are larger than a piece, which
    are skipped, and ever larger ones where one header follows soon after the other. All are of one
    version. Not thread-safe.

    Attributes:
        n_bytes: size of the object.
        etag: its ETag; "": the server has sent none, or a weak one.

    Raises:
        PackError: the server does not say how large the object is.
        OSError, ValueError: as read_object(); reading also raises OSError if the object that
            libcurl reads has changed.
    """

    def __init__(self, name: str) -> None:
        super().__init__()
        head = read_first(name, 0, 1)
        if head.object_bytes is None:
            raise PackError(f"{shown(name)}: the server does not say how large it is")
        self.name, self.n_bytes, self.etag = name, head.object_bytes, head.etag
        self._at = self._start = 0
        self._piece = b""
        self._size = _LEAST_BYTES

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self.n_bytes}[whence]
        self._at = base + offset
        return self._at

    def readinto(self, buffer: Any) -> int:
        data = self.read_at(len(buffer), self._at)
        buffer[: len(data)] = data
        self._at += len(data)
        return len(data)

    def read_at(self, n_bytes: int, offset: int) -> bytes:
        """Reads bytes at an offset, as os.pread(): fewer at the object's end."""
        n_bytes = max(0, min(n_bytes, self.n_bytes - offset))
        end = self._start + len(self._piece)
        if not self._start <= offset <= offset + n_bytes <= end:
            is_near = 0 <= offset - end + n_bytes <= self._size
            self._size = min(2 * self._size, _MOST_BYTES) if is_near else _LEAST_BYTES
            n_piece = min(max(n_bytes, self._size), self.n_bytes - offset)
            self._piece = read_object(self.name, offset, n_piece)
            self._start = offset
        return self._piece[offset - self._start :][:n_bytes]
