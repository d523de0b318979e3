"""Images that a command gets by name, not by a folder: objects in stores and on web servers, packs
and tar files of them, and text files that list names."""

from __future__ import annotations

import os
from typing import Any, NamedTuple

from feedmill.packing.dataset import Pack
from feedmill.packing.index import INDEX_NAME
from feedmill.packing.shards import ShardDataset
from feedmill.packing.webdataset import WebDataset
from feedmill.planner.ranges import Range, range_of
from feedmill.remote.by_fsspec import read_or_why
from feedmill.remote.names import has_fsspec_names, has_names, is_name, shown, why_no_name
from feedmill.remote.process import shared
from feedmill.remote.settings import fsspec_threads

# What a command's description says of them.
HELP = (
    "the name of a pack or of tar files in an object store, on a web server or that fsspec reads, "
    "such as s3://bucket/pack/ or 's3://bucket/train-{000..146}.tar'; or a text file (*.txt) "
    "with the path or name of an image in each line"
)


class Images(NamedTuple):
    """Images to be read.

    Attributes:
        paths: of the files that have them, or the objects' names.
        parts: the byte range of each in its file; None: all are whole files.
        names: of the images, as messages show them.
    """

    paths: list[str]
    parts: list[Range | None] | None
    names: list[str]

    def readers(self) -> dict[str, Any]:
        """The native loader's arguments that read names. Raises ValueError: a setting is invalid,
        or the names can't be read."""
        first = next((path for path in self.paths if is_name(path)), "")
        if why := why_no_name(first):
            raise ValueError(f"{shown(first)} can't be read: {why}")
        found: dict[str, Any] = {"remote": shared() if has_names(self.paths) else None}
        if has_fsspec_names(self.paths):
            found.update(read=read_or_why, read_threads=fsspec_threads())
        return found

    def source(self, number: int) -> Any:
        """An image's path or name, or its bytes if it is part of a file. Raises OSError."""
        part = None if self.parts is None else self.parts[number]
        return self.paths[number] if part is None else part.read(self.paths[number])


def is_named(source: str) -> bool:
    """Whether a command's argument names images in one of these ways."""
    return "://" in source or (source.endswith(".txt") and os.path.isfile(source))


def read_named(source: str) -> Images:
    """Finds the images.

    Raises:
        OSError, ValueError: they can't be read.
    """
    if source.endswith(".txt") and "://" not in source:
        with open(source, encoding="utf-8", errors="surrogateescape") as file:
            paths = [line.strip() for line in file if line.strip()]
        return Images(paths, None, [str(shown(path)) for path in paths])
    name = str(shown(source))
    is_tar = name.endswith((".tar", "}")) or "::" in name
    return images_of(WebDataset(source) if is_tar else Pack(source))


def is_pack(folder: str | os.PathLike[str]) -> bool:
    return os.path.exists(os.path.join(folder, INDEX_NAME))


def images_of(dataset: ShardDataset) -> Images:
    """The images of a pack or of tar files. Raises PackError if a shard file was replaced, or
    OSError."""
    items = []
    for number in range(len(dataset)):
        item, _ = dataset.feedmill_item(number)
        if isinstance(item, Exception):
            raise item
        items.append(item)
    return Images([path for path, *_ in items], [range_of(item) for item in items],
                  [dataset.feedmill_name(number) for number in range(len(dataset))])
