"""The base class of Pack and WebDataset: a dataset of samples in tar shards, with an index."""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import numpy as np

from feedmill.packing.folder_attributes import FolderAttributes, number_of
from feedmill.packing.index import TRANSCODED, Index, PackError, Place
from feedmill.planner.files import load_rgb
from feedmill.remote import by_fsspec
from feedmill.remote.names import is_fsspec_name, is_name, shown
from feedmill.remote.sources import read_first, read_object
from feedmill.system.locks import renew_after_fork

# Most files that stay open. Opening another one closes the least recently used one.
_MAX_OPEN = 64
# Shards whose sizes fsspec is asked for at a time.
_THREADS = 16


class CachedFile:
    """An open file. It is closed when the last reference to this object is gone, so a thread may
    still read it after Shards has dropped it."""

    def __init__(self, path: str, n_bytes: int) -> None:
        self.descriptor = -1
        self.descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        _check_size(path, os.fstat(self.descriptor).st_size, n_bytes)

    def __del__(self) -> None:
        if self.descriptor >= 0:
            try:
                os.close(self.descriptor)
            except (AttributeError, TypeError):  # the interpreter is shutting down
                pass


def _check_size(path: str, n_bytes: int, n_indexed: int) -> None:
    """Raises PackError if a shard is larger than when it was indexed. A smaller one is accepted, as
    the samples in the part that is left can be read."""
    if n_bytes > n_indexed:
        raise PackError(
            f"{path}: it was replaced after it was indexed: it has {n_bytes} bytes, not {n_indexed}"
        )


class Shards:
    """The shards of an index, files or objects. Thread-safe. The child of a fork may use the
    same descriptors, as reads do not use the file position.

    Args:
        paths: of the shards, by their numbers in the index.
        sizes: of the files when they were indexed.
    """

    def __init__(self, paths: Sequence[str], sizes: Sequence[int]) -> None:
        self.paths = paths
        self._sizes = sizes
        self._open: OrderedDict[int, CachedFile] = OrderedDict()
        self._lock = threading.Lock()
        # torch forks its workers while another thread may hold the lock.
        renew_after_fork(self, _lock=threading.Lock)
        self._checked: set[int] = set()
        self._by_fsspec = {i for i, path in enumerate(paths) if is_fsspec_name(path)}
        self._remote = {i for i, path in enumerate(paths) if is_name(path)} | self._by_fsspec
        self._are_asked = False

    def check(self, shard: int) -> None:
        """Checks, at the first call for a shard, that the file exists and was not replaced. Raises
        OSError, or PackError if it was replaced. Objects are not asked for: what reads them will
        tell, except of those that fsspec reads, of which the first call checks all."""
        if shard in self._checked or (shard in self._remote and shard not in self._by_fsspec):
            return
        if shard not in self._by_fsspec:
            self._check_now(shard)
            return
        with self._lock:
            if not self._are_asked:
                # A request for one shard after the other would delay an epoch of many.
                with ThreadPoolExecutor(_THREADS) as pool:
                    list(pool.map(self._try_check, sorted(self._by_fsspec)))
                self._are_asked = True
        if shard not in self._checked:
            self._check_now(shard)

    def _try_check(self, shard: int) -> None:
        with suppress(PackError, OSError, ValueError):
            self._check_now(shard)

    def _check_now(self, shard: int) -> None:
        path = self.paths[shard]
        if shard in self._by_fsspec:
            n_bytes, _ = by_fsspec.size_and_etag(path)
        else:
            n_bytes = os.stat(path).st_size
        if n_bytes is not None:
            _check_size(str(shown(path)), n_bytes, self._sizes[shard])
        self._checked.add(shard)

    def read(self, shard: int, offset: int, n_bytes: int) -> bytes:
        """Reads bytes of a shard; fewer if the shard is truncated. Raises OSError, or PackError if
        the shard was replaced by a larger file. A range of an object is complete or an error."""
        if shard in self._remote:
            return self._fetch(shard, offset, n_bytes)
        file = self._file(shard)
        data = more = os.pread(file.descriptor, n_bytes, offset)
        while more and len(data) < n_bytes:
            more = os.pread(file.descriptor, n_bytes - len(data), offset + len(data))
            data += more
        return data

    def _fetch(self, shard: int, offset: int, n_bytes: int) -> bytes:
        name = self.paths[shard]
        if not n_bytes:
            return b""
        if shard in self._checked:
            return read_object(name, offset, n_bytes)
        head = read_first(name, offset, n_bytes)
        if head.object_bytes is not None:
            _check_size(str(shown(name)), head.object_bytes, self._sizes[shard])
        self._checked.add(shard)
        return head.data

    def _file(self, shard: int) -> CachedFile:
        with self._lock:
            file = self._open.get(shard)
            if file is not None:
                self._open.move_to_end(shard)
                return file
        file = CachedFile(self.paths[shard], self._sizes[shard])
        with self._lock:
            self._open[shard] = file
            if len(self._open) > _MAX_OPEN:
                self._open.popitem(last=False)
        return file


class ShardDataset(FolderAttributes):
    """A map-style dataset of samples in shards: ``dataset[i]`` is ``(image, label)``.

    Args:
        index: of the samples.
        paths: of the index's shards.
        transform, target_transform: as in torchvision's datasets.
    """

    def __init__(
        self,
        index: Index,
        paths: Sequence[str],
        transform: Callable[[Any], Any] | None,
        target_transform: Callable[[Any], Any] | None,
    ) -> None:
        self.transform, self.target_transform = transform, target_transform
        self._set(index, paths)

    def _set(self, index: Index, paths: Sequence[str]) -> None:
        self._index = index
        self._shards = Shards(paths, index.shards["bytes"].tolist())

    def __len__(self) -> int:
        return self._index.n_samples

    def __getitem__(self, i: int) -> tuple[Any, Any]:
        try:
            image = load_rgb(self.encoded(i))
        except PackError:
            raise
        except Exception as error:
            raise PackError(f"{self.feedmill_name(i)}: {error}") from error
        target = self._target(self.place(i))
        return image if self.transform is None else self.transform(image), target

    def encoded(self, i: int) -> bytes:
        """The encoded image, as stored in its shard.

        Raises:
            IndexError: there is no such sample.
            PackError: the shard is missing, truncated or was replaced; the text names the shard and
                the sample.
        """
        place = self.place(i)
        try:
            data = self._shards.read(place.shard, place.offset, place.bytes)
        except (PackError, OSError) as error:
            raise PackError(f"{self.feedmill_name(i)}: {error}") from None
        if len(data) < place.bytes:
            raise PackError(f"{self.feedmill_name(i)}: the shard is truncated: {len(data)} of the "
                            f"sample's {place.bytes} bytes are left")
        return data

    def feedmill_item(self, i: int) -> tuple[tuple[Any, ...] | PackError, Any]:
        """Returns the image's byte range, and the target. feedmill's DataLoader calls this in place
        of ``dataset[i]``.

        If the shard is missing or was replaced, a PackError that names the shard and the sample is
        returned in place of the range, and the DataLoader's ``on_error`` applies.

        Raises:
            IndexError: there is no such sample.
        """
        number = number_of(i, len(self))
        place = self._index.place(number)
        try:
            self._shards.check(place.shard)
        except (PackError, OSError) as error:
            return PackError(f"{self.feedmill_name(i)}: {error}"), self._target(place)
        # A transcoded image is known to be valid, as the transcoder has decoded all of it.
        rows = self._index.restart_index_of(number)
        size = (place.width, place.height, place.mcu_height)
        part = (self._shards.paths[place.shard], place.offset, place.bytes,
                place.flags & TRANSCODED != 0, (*size, *rows) if rows else None)
        return part, self._target(place)

    def feedmill_name(self, i: int) -> str:
        """A sample's name in error messages: its name in the index, and its shard's path."""
        number = number_of(i, len(self))
        shard = self._index.place(number).shard
        return f"{self._index.name(number)!r} in {shown(self._shards.paths[shard])}"

    def _target(self, place: Place) -> Any:
        return place.label if self.target_transform is None else self.target_transform(place.label)

    # ---- records of samples ----------------------------------------------------------------------

    def place(self, i: int) -> Place:
        """A sample's record in the index."""
        return self._index.place(number_of(i, len(self)))

    def feedmill_sources(self) -> list[str]:
        """The paths of the shards, or the names of those that are objects: feedmill asks for them
        to find out whether it reads over a network."""
        return list(self._shards.paths)

    def shard_path(self, shard: int) -> str:
        return self._shards.paths[shard]

    def restart_index_of(self, i: int) -> tuple[int, ...]:
        """See Index.restart_index_of()."""
        return self._index.restart_index_of(number_of(i, len(self)))

    # ---- ImageFolder's attributes ----------------------------------------------------------------

    @property
    def classes(self) -> list[str]:
        """The names of the classes, by label."""
        return self._index.classes

    def _name(self, i: int) -> str:
        return self._index.name(i)

    def _label(self, i: int) -> int:
        return int(self._index.records["label"][i])

    def _labels(self) -> np.ndarray:
        return self._index.records["label"]
