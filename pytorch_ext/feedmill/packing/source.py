"""Lists the samples to be packed: those of an image folder, or of WebDataset tar files."""

from __future__ import annotations

import glob
import hashlib
import os
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from feedmill.packing.grouping import IMAGE_SUFFIXES, Group, expand, groups
from feedmill.packing.index import PackError
from feedmill.packing.objects import ObjectFile, fetch_index, open_fetched
from feedmill.packing.tars import BLOCK, Member, padded
from feedmill.remote.names import shown
from feedmill.remote.sources import is_remote, read_object

_SUFFIXES = tuple(f".{suffix}" for suffix in IMAGE_SUFFIXES)


class FileRange(NamedTuple):
    """A byte range of a file."""

    path: str
    offset: int
    n_bytes: int

    def read(self) -> bytes:
        """Reads the bytes. Raises OSError, which names the file, and PackError if the file was
        truncated."""
        if is_remote(self.path):
            return read_object(self.path, self.offset, self.n_bytes) if self.n_bytes else b""
        with open(self.path, "rb", buffering=0) as file:
            try:
                data = os.pread(file.fileno(), self.n_bytes, self.offset)
                while len(data) < self.n_bytes:
                    n_left = self.n_bytes - len(data)
                    more = os.pread(file.fileno(), n_left, self.offset + len(data))
                    if not more:
                        raise PackError(f"{self.path}: the file was truncated while it was packed")
                    data += more
            except OSError as error:
                error.filename = self.path  # os.pread() knows only a descriptor
                raise
        return data


class Part(NamedTuple):
    """A member of the new shard: its name, and its bytes or the range of a source file that has
    them."""

    name: str
    content: bytes | FileRange

    @property
    def bytes(self) -> int:
        return len(self.content) if isinstance(self.content, bytes) else self.content.n_bytes


class SourceSample(NamedTuple):
    """A sample to be packed.

    Attributes:
        name: in the index.
        label: number of its class; -1: none.
        parts: the sample's members in the shard, in order.
        image: index of the image in ``parts``.
    """

    name: str
    label: int
    parts: tuple[Part, ...]
    image: int

    @property
    def image_bytes(self) -> int:
        return self.parts[self.image].bytes

    @property
    def tar_bytes(self) -> int:
        """Size of the sample in a tar file if its image is not transcoded."""
        return sum(BLOCK + padded(part.bytes) for part in self.parts)


@dataclass
class Source:
    """The samples to be packed, in order.

    Attributes:
        classes: names of their classes, by label.
        paths: absolute paths of the image folder, or of the tar files; names of tar objects.
    """

    samples: Sequence[SourceSample]
    classes: list[str]
    paths: list[str]

    def digest(self) -> bytes:
        """32 bytes that identify the source: a hash of names, sizes and labels."""
        total = hashlib.sha256("\0".join(self.classes).encode("utf-8", "surrogateescape"))
        for name, label, parts, image in self.samples:
            sizes = [(part.name, part.bytes) for part in parts]
            total.update(repr((name, label, sizes, image)).encode("utf-8", "surrogateescape"))
        return total.digest()


def read_source(source: str) -> Source:
    """Lists the samples of an image folder, of a folder of tar files, of the tar files and
    objects that expand() finds, or of the shards of a pack whose name is given.

    Raises:
        PackError: there are no images, a class has no images, or a tar file is damaged.
        OSError: a file or folder can't be read.
    """
    name = str(shown(source))
    if is_remote(source) and "::" not in name and not name.endswith((".tar", "}")):
        return _read_tars(open_fetched(source, fetch_index(source))[1])
    if not os.path.isdir(source):
        return _read_tars(expand(source))
    tars = sorted(glob.glob(os.path.join(glob.escape(source), "*.tar")))
    return _read_tars(tars) if tars else _read_folder(source)


# ---- an image folder -----------------------------------------------------------------------------


class FolderSamples(Sequence[SourceSample]):
    """The samples of an image folder, created on access to save memory. A pickled range of them has
    about the size of their names.

    Args:
        root: absolute path of the folder.

    Attributes:
        names: paths of the files, relative to the folder.
    """

    def __init__(self, root: str) -> None:
        self._root = root
        self.names: list[str] = []
        self._labels, self._sizes = array("l"), array("Q")
        # Sample's number -> key, where another file in the folder already has _key(stem).
        self._keys: dict[int, str] = {}

    def append(self, name: str, label: int, n_bytes: int, key: str) -> None:
        if key != _key(os.path.splitext(name)[0]):
            self._keys[len(self.names)] = key
        self.names.append(name)
        self._labels.append(label)
        self._sizes.append(n_bytes)

    def __len__(self) -> int:
        return len(self.names)

    def __getitem__(self, i: Any) -> Any:
        """The sample at a position, or FolderSamples of a range of positions (without a step)."""
        if isinstance(i, slice):
            return self._range(*i.indices(len(self))[:2])
        name, label = self.names[i], self._labels[i]
        stem, suffix = os.path.splitext(name)
        key, extension = self._keys.get(i) or _key(stem), suffix[1:].lower()
        image = FileRange(os.path.join(self._root, name), 0, self._sizes[i])
        parts = (
            Part(f"{key}.{'jpg' if extension == 'jpeg' else extension}", image),
            Part(f"{key}.cls", str(label).encode()),
        )
        return SourceSample(name, label, parts, 0)

    def _range(self, first: int, end: int) -> FolderSamples:
        some = FolderSamples(self._root)
        some.names = self.names[first:end]
        some._labels, some._sizes = self._labels[first:end], self._sizes[first:end]
        some._keys = {i - first: self._keys[i] for i in range(first, end) if i in self._keys}
        return some


def _read_folder(root: str) -> Source:
    """The samples of torchvision's ImageFolder, in its order."""
    classes = sorted(entry.name for entry in os.scandir(root) if entry.is_dir())
    if not classes:
        raise PackError(f"{root}: the folder has neither a folder for each class nor tar files")
    samples = FolderSamples(os.path.abspath(root))
    for label, name in enumerate(classes):
        n_before = len(samples)
        for folder, _, files in sorted(os.walk(os.path.join(root, name), followlinks=True)):
            _add_images(samples, root, folder, files, label)
        if len(samples) == n_before:
            raise PackError(f"{os.path.join(root, name)}: the class has no images, which "
                            "ImageFolder does not allow; remove the folder")
    return Source(samples, classes, [os.path.abspath(root)])


def _add_images(
    samples: FolderSamples, root: str, folder: str, files: Sequence[str], label: int
) -> None:
    keys: set[str] = set()
    for file in sorted(files):
        if not file.lower().endswith(_SUFFIXES):
            continue
        path = os.path.join(folder, file)
        name = os.path.relpath(path, root)
        key = _key(os.path.splitext(name)[0])
        if key in keys:  # another file differs only in its suffix
            key = _key(name)
        while key in keys:
            key += "_"
        keys.add(key)
        samples.append(name, label, os.stat(path).st_size, key)


def _key(stem: str) -> str:
    """A file's WebDataset key. Dots are escaped, as a key must not have one after its last slash.
    """
    folder, slash, last = stem.rpartition("/")
    return folder + slash + last.replace("%", "%25").replace(".", "%2E")


# ---- tar files -----------------------------------------------------------------------------------


def _read_tars(paths: Sequence[str]) -> Source:
    samples: list[SourceSample] = []
    n_classes = 0
    paths = [path if is_remote(path) else os.path.abspath(path) for path in paths]
    for path in paths:
        for group in _groups_of(path):
            if group.image is None:
                raise PackError(f"{shown(path)}: sample {group.key!r} has no image")
            samples.append(_tar_sample(path, group.members, group.image, group.label))
            n_classes = max(n_classes, group.label + 1)
    if not samples:
        more = ", ..." if len(paths) > 1 else ""
        raise PackError(f"there is no image in {shown(paths[0])}{more}")
    return Source(samples, [str(label) for label in range(n_classes)], paths)


def _groups_of(path: str) -> Iterator[Group]:
    """The samples of a tar file or object."""
    if is_remote(path):
        file = ObjectFile(path)
        yield from groups(file, file.n_bytes, str(shown(path)))
        return
    with open(path, "rb", buffering=0) as opened:
        yield from groups(opened.fileno(), os.fstat(opened.fileno()).st_size, path)


def _tar_sample(path: str, members: list[Member], image: Member, label: int) -> SourceSample:
    parts = tuple(Part(one.name, FileRange(path, one.offset, one.bytes)) for one in members)
    return SourceSample(image.name, label, parts, members.index(image))
