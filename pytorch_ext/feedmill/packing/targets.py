"""Where the files of a new pack go: a folder, a prefix of a bucket, or a folder that fsspec writes
to."""

from __future__ import annotations

import os
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import IO

from feedmill.packing.building import is_temporary, new_file, write_file
from feedmill.packing.index import Index
from feedmill.packing.objects import is_store_name
from feedmill.remote import by_fsspec, uploads
from feedmill.remote.fsspec_uploads import Folder
from feedmill.remote.names import is_fsspec_name, shown
from feedmill.remote.settings import Settings


class Target(ABC):
    """The files of a pack, by their names without a folder. Processes on several machines may write
    into the same target at once. Methods raise OSError, which names the file.

    Args:
        name: of the folder, or of the prefix.

    Attributes:
        check_s: seconds after which has() may be called again: in stores it is a request.
    """

    check_s = 5.0

    def __init__(self, name: str) -> None:
        self.name = name

    def __str__(self) -> str:
        return str(shown(self.name))

    @abstractmethod
    def make(self) -> None:
        """Makes the folder, if it does not exist."""

    @abstractmethod
    def why_unusable(self, marker: str) -> str:
        """Why this machine can't write a pack here, with the machine as the subject; "" if it can,
        or if a store does not answer, which raises OSError.

        Args:
            marker: name of a file that another machine has written into the target.
        """

    @abstractmethod
    def has(self, name: str) -> bool:
        """Whether there is a file of that name now, also if another machine has removed it. True if
        that can't be found out."""

    @abstractmethod
    def path(self, name: str) -> str:
        """A file's name with the folder or prefix, as messages show it."""

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

    def clean(self) -> None:
        """Removes the temporary files that killed processes have left. A process that still writes
        one of them can't finish it."""
        for name in self.names():
            if is_temporary(name):
                self.remove(name)


def is_folder(name: str) -> bool:
    """Whether the target of that name is a folder of this machine."""
    return not (is_store_name(name) or is_fsspec_name(name))


def target_of(name: str, settings: Settings | None = None) -> Target:
    """The target of that name, a folder or a name such as s3://bucket/prefix or az://container/folder.

    Args:
        settings: of requests to s3:// and gs://; None: those of this process.

    Raises:
        ValueError: the name is not that of a folder; or credentials, or a package that is needed,
            are missing.
    """
    return FolderTarget(name) if is_folder(name) else StoreTarget(name, settings)


class FolderTarget(Target):
    check_s = 0.5

    def make(self) -> None:
        os.makedirs(self.name, exist_ok=True)

    def why_unusable(self, marker: str) -> str:
        if not os.path.isdir(self.name):
            return f"does not see the target folder {self.name}; mount it on all nodes"
        if not self.has(marker):
            return (f"has another folder as {self.name} than the node that runs this command; "
                    "the target must be on a file system that all nodes share")
        if not os.access(self.name, os.W_OK | os.X_OK):
            return f"may not write to the target folder {self.name}"
        return ""

    def has(self, name: str) -> bool:
        try:
            # NFS asks its server when a file is opened; stat() may answer from its cache.
            os.close(os.open(self.path(name), os.O_RDONLY | os.O_CLOEXEC))
        except (FileNotFoundError, NotADirectoryError):
            return False
        except OSError:
            pass  # such as a server that does not answer
        return True

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


class StoreTarget(Target):
    """A new file is written to the folder for temporary files (TMPDIR), uploaded when it is
    complete, and removed there."""

    def __init__(self, name: str, settings: Settings | None = None) -> None:
        super().__init__(name.rstrip("/"))
        self._prefix: uploads.Prefix | Folder
        if is_fsspec_name(name) or _is_for_gcsfs(name):
            self._prefix = Folder(name)
        else:
            self._prefix = uploads.Prefix(self.name, settings)

    def make(self) -> None:
        if isinstance(self._prefix, Folder):
            self._prefix.make()

    def why_unusable(self, marker: str) -> str:
        try:
            if self._prefix.size(marker) is not None:
                return ""
        except PermissionError as error:
            return f"can't use the target: {error}"
        return (f"does not see in {self} what the node that runs this command has written there; "
                "its settings must name the same store")

    def has(self, name: str) -> bool:
        try:
            return self._prefix.size(name) is not None
        except OSError:
            return True

    def path(self, name: str) -> str:
        return str(shown(f"{self.name}/{name}"))

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


def _is_for_gcsfs(name: str) -> bool:
    """Whether this is a gs:// name for which there is a login of Google and no HMAC key, and gcsfs,
    which can use the login, is installed."""
    is_gs = name[:5].lower() == "gs://"
    return is_gs and uploads.has_gs_login() and not by_fsspec.why_unreadable(name)
