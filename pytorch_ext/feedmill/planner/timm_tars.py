"""timm's readers of tar files: where in these files they find images.

A reader holds the headers of all members that are images, so each image is a byte range of a tar
file on disk, also if it is a member of a tar file within another one.
"""

from __future__ import annotations

import io
import operator
import os
import tarfile
from collections.abc import Callable
from typing import Any

import numpy as np

from feedmill.planner.plan import UnsupportedError
from feedmill.planner.untouched import is_original, type_name
from feedmill.remote.sources import is_remote

# The methods of Python's module tarfile between a member's header and its bytes, by class.
_METHODS = {
    "TarFile": ("open", "taropen", "__init__", "next", "_check", "extractfile"),
    "TarInfo": ("isreg", "issparse", "fromtarfile", "frombuf"),
    "ExFileObject": ("__init__",),
    "_FileInFile": ("__init__", "seekable", "tell", "seek", "read", "readinto"),
}
_PLAIN_TYPES = (tarfile.REGTYPE, tarfile.AREGTYPE, tarfile.CONTTYPE)
_MAX_BYTES = 1 << 60


class TarSamples:
    """The samples of an ImageDataset whose reader is a ReaderImageInTar or a ReaderImageTar of a
    known version.

    Args:
        dataset: the ImageDataset.

    Attributes:
        determined_by: see BaseDataset.identity().

    Raises:
        UnsupportedError: the reader's attributes are not as timm makes them, or a function of
            Python's module tarfile was replaced.
    """

    def __init__(self, dataset: Any) -> None:
        check_tarfile()
        reader = dataset.reader
        if type(reader.root) is not str or is_remote(reader.root):
            raise UnsupportedError("natively, the root of a reader of tar files must be a path")
        self._dataset = dataset
        self._reader = reader
        self._samples = reader.samples
        self._opens: dict[tuple[str, int], bool] = {}
        self._is_single = type(reader).__name__ == "ReaderImageTar"
        (_check_single if self._is_single else _check_nested)(reader)
        targets = self._samples if self._is_single else reader.targets
        self.determined_by = (reader, self._samples, targets)

    def some_names(self, probed: Callable[[int], slice]) -> list[str]:
        """Names of some members."""
        return [str(row[0].name) for row in self._samples[probed(len(self._samples))]]

    def find(self, index: Any) -> tuple[Any, Any]:
        """An index's byte range (path, offset, bytes) and target. In place of the range an OSError,
        if only the dataset's own code knows what it reads. Raises as the reader does."""
        if self._is_single:
            member, target = self._samples[index]
            return self._range_of(self._reader.root, None, member), target
        member, name, child = self._samples[index]
        target = self._reader.targets[index]
        path = os.path.join(self._reader.root, name) if name else self._reader.root
        if self._reader.cache_tarfiles:
            state = self._reader.tar_state
            state = state if self._reader.root_is_tar else state[name]
            if child is not None:
                state.children[child.name]  # raises as the reader does
        return self._range_of(path, child, member), target

    def with_transform(self, transform: Any, copy_with: Any) -> Any:
        """As BaseDataset's with_transform."""
        copied = copy_with(self._dataset, transform)
        copied.reader = self._reader_with_own_files()
        return copied

    def with_own_files(self) -> Any:
        """As BaseDataset's with_own_files."""
        copied = object.__new__(type(self._dataset))
        vars(copied).update(vars(self._dataset), reader=self._reader_with_own_files())
        return copied

    def _reader_with_own_files(self) -> Any:
        reader = object.__new__(type(self._reader))
        vars(reader).update(vars(self._reader))
        if self._is_single:
            reader.tarfile = None
        else:
            reader.cache_tarfiles = False
        return reader

    def _range_of(self, path: str, child: Any, member: Any) -> Any:
        if not _is_plain(member) or not (child is None or _is_plain(child)):
            return OSError(f"{path} has a member that is not one piece of the file")
        offset = member.offset_data
        if child is not None:
            if offset + member.size > child.size:
                return OSError(f"{path} has a tar file within it that ends too early")
            offset += child.offset_data
        if not self._is_opened(path, child):
            return OSError(f"{path} can't be opened as a tar file")
        return path, offset, member.size

    def _is_opened(self, path: str, child: Any) -> bool:
        """Whether tarfile opens a tar file, or the one within it. That depends on its first header,
        whichever member is read."""
        key = path, -1 if child is None else child.offset_data
        if key not in self._opens:
            self._opens[key] = _can_open(path, child)
        return self._opens[key]


def _can_open(path: str, child: Any) -> bool:
    try:
        with tarfile.open(path, "r:") as outer:
            if child is not None:
                with tarfile.open(fileobj=outer.extractfile(child), mode="r:"):
                    pass
    except Exception:
        return False
    return True


def _is_plain(member: Any) -> bool:
    """Whether a header is that of a member whose bytes lie together."""
    return (
        type(member) is tarfile.TarInfo
        and member.type in _PLAIN_TYPES
        and getattr(member, "sparse", None) is None
        and type(member.offset_data) is type(member.size) is int
        and 0 <= member.offset_data < _MAX_BYTES
        and 0 <= member.size < _MAX_BYTES
    )


def check_tarfile() -> None:
    """Raises UnsupportedError if a function of Python's module tarfile that reads was replaced."""
    for kind, names in _METHODS.items():
        methods = vars(getattr(tarfile, kind, object))
        for name in names:
            function = methods.get(name)
            function = getattr(function, "__func__", function)  # of a class method
            if not is_original(function, "tarfile", f"{kind}.{name}"):
                raise UnsupportedError(f"tarfile.{kind}.{name} was replaced")
    if (
        getattr(tarfile.open, "__func__", None) is not vars(tarfile.TarFile)["open"].__func__
        or tarfile.TarFile.fileobject is not tarfile.ExFileObject
        or tarfile.TarFile.tarinfo is not tarfile.TarInfo
        or getattr(tarfile, "bltn_open", None) is not io.open
    ):
        raise UnsupportedError("a function or class of Python's module tarfile was replaced")


def _check_single(reader: Any) -> None:
    """Checks the attributes of a ReaderImageTar."""
    if type(reader.samples) is not list or not reader.samples:
        raise UnsupportedError(_not_as_made(reader, "samples"))
    if not _is_handle(reader.tarfile, reader.root, None):
        raise UnsupportedError(_not_as_made(reader, "tarfile"))


def _check_nested(reader: Any) -> None:
    """Checks the attributes of a ReaderImageInTar."""
    samples, targets = reader.samples, reader.targets
    if type(samples) is not np.ndarray or samples.dtype != object or samples.shape[1:] != (3,):
        raise UnsupportedError(_not_as_made(reader, "samples"))
    if type(targets) is not np.ndarray or targets.shape != samples.shape[:1] or not len(samples):
        raise UnsupportedError(_not_as_made(reader, "targets"))
    if type(reader.cache_tarfiles) is not bool or type(reader.root_is_tar) is not bool:
        raise UnsupportedError(_not_as_made(reader, "cache_tarfiles"))
    if not reader.cache_tarfiles:
        return
    states = {"": reader.tar_state} if reader.root_is_tar else reader.tar_state
    if type(states) is not dict:
        raise UnsupportedError(_not_as_made(reader, "tar_state"))
    for name, state in states.items():
        path = os.path.join(reader.root, name) if name else reader.root
        opened = [(state.tf, None), *((one.tf, one.ti) for one in state.children.values())]
        if not all(_is_handle(tar, path, child) for tar, child in opened):
            raise UnsupportedError(_not_as_made(reader, "tar_state"))
    # The reader keeps tar files within a tar file open by their names alone.
    if any(state.children for state in states.values()):
        children = {id(one): (name, one.name) for _, name, one in samples if one is not None}
        if len(set(children.values())) < len(children):
            raise UnsupportedError("several tar files within a tar file have the same name")


def _is_handle(tar: Any, path: str, child: Any) -> bool:
    """Whether an open tar file that a reader keeps is what the reader opens; None: none yet."""
    if tar is None:
        return True
    if type(tar) is not tarfile.TarFile or getattr(tar, "closed", True):
        return False
    is_shadowed = {"extractfile", "fileobject", "_check"} & vars(tar).keys()
    if tar.name != os.path.abspath(path) or is_shadowed:
        return False
    if child is None:
        return type(tar.fileobj) is io.BufferedReader
    if type(tar.fileobj) is not tarfile.ExFileObject:
        return False
    place = operator.attrgetter("offset", "size")(tar.fileobj.raw)
    return bool(place == (child.offset_data, child.size))


def _not_as_made(reader: Any, name: str) -> str:
    return (
        f"natively, the attribute {name} of {type_name(type(reader))} must be as timm makes it"
    )
