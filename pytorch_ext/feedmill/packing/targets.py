"""Where the files of a new pack go: a folder, or a prefix of a bucket."""

from __future__ import annotations

import os
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import IO

from feedmill.packing.building import new_file, remove_temporary_files, write_file
from feedmill.packing.index import Index
from feedmill.packing.objects import is_store_name
from feedmill.remote.uploads import Prefix


class Target(ABC):
    """The files of a pack, by their names without a folder. Processes on several machines may write
    into the same target at once. Methods raise OSError, which names the file.

    Args:
        name: of the folder, or of the prefix.
    """

    def __init__(self, name: str) -> None:
        self.name = name

    def __str__(self) -> str:
        return self.name

    @abstractmethod
    def path(self, name: str) -> str:
        """A file's name with the folder or prefix."""

    @abstractmethod
    def size(self, name: str) -> int | None:
        """A file's size in bytes; None: there is no such file."""

    @abstractmethod
    def names(self) -> list[str]:
        """The names of all files."""

    @abstractmethod
    def index(self, name: str) -> Index:
        """Reads an index. Raises PackError if it is none."""

    @abstractmethod
    @contextmanager
    def new_file(self, name: str) -> Iterator[IO[bytes]]:
        """Opens a file for writing. It appears, complete, at the end of the block; or not at all if
        the block raises."""

    @abstractmethod
    def write(self, name: str, data: bytes) -> None:
        """Writes a file, which appears when it is complete."""

    @abstractmethod
    def remove(self, name: str) -> None:
        """Removes a file, where that is possible."""

    @abstractmethod
    def sync(self) -> None:
        """Returns when what appeared would survive the machine's failure."""

    @abstractmethod
    def clean(self) -> None:
        """Removes what processes that were killed have left."""


def target_of(name: str) -> Target:
    """The target of that name, an existing folder or a name such as s3://bucket/prefix.

    Raises:
        ValueError: credentials, or a package that is needed, are missing.
    """
    return StoreTarget(name) if is_store_name(name) else FolderTarget(name)


class FolderTarget(Target):
    def path(self, name: str) -> str:
        return os.path.join(self.name, name)

    def size(self, name: str) -> int | None:
        try:
            return os.stat(self.path(name)).st_size
        except FileNotFoundError:
            return None

    def names(self) -> list[str]:
        return os.listdir(self.name)

    def index(self, name: str) -> Index:
        return Index.open(self.path(name))

    @contextmanager
    def new_file(self, name: str) -> Iterator[IO[bytes]]:
        with new_file(self.path(name)) as file:
            yield file

    def write(self, name: str, data: bytes) -> None:
        write_file(self.path(name), data)

    def remove(self, name: str) -> None:
        with suppress(OSError):
            os.unlink(self.path(name))

    def sync(self) -> None:
        descriptor = os.open(self.name, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def clean(self) -> None:
        remove_temporary_files(self.name)


class StoreTarget(Target):
    """A new file is written to the folder for temporary files (TMPDIR), uploaded when it is
    complete, and removed there."""

    def __init__(self, name: str) -> None:
        super().__init__(name.rstrip("/"))
        self._prefix = Prefix(self.name)

    def path(self, name: str) -> str:
        return f"{self.name}/{name}"

    def size(self, name: str) -> int | None:
        return self._prefix.size(name)

    def names(self) -> list[str]:
        return self._prefix.names()

    def index(self, name: str) -> Index:
        return Index(self._prefix.read(name), self.path(name))

    @contextmanager
    def new_file(self, name: str) -> Iterator[IO[bytes]]:
        with tempfile.TemporaryFile(prefix="feedmill-", buffering=1 << 20) as file:
            yield file
            file.seek(0)
            self._prefix.upload(name, file)

    def write(self, name: str, data: bytes) -> None:
        self._prefix.write(name, data)

    def remove(self, name: str) -> None:
        with suppress(OSError):
            self._prefix.remove(name)

    def sync(self) -> None:
        pass  # stores answer when an object is safe

    def clean(self) -> None:
        pass  # an upload that was broken off is no object
