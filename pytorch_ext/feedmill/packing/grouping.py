"""Groups the members of WebDataset tar files into samples, and expands path patterns."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from feedmill.packing.index import PackError
from feedmill.packing.objects import ObjectFile
from feedmill.packing.tars import Member, members, read_at
from feedmill.remote.names import shown
from feedmill.remote.sources import is_remote, why_unreadable

# Suffixes of images, as in torchvision's ImageFolder.
IMAGE_SUFFIXES = ("jpg", "jpeg", "png", "ppm", "bmp", "pgm", "tif", "tiff", "webp")
_MAX_CLASSES = 1 << 24
_MAX_LABEL_BYTES = 20


@dataclass
class Group:
    """The members of one sample.

    Attributes:
        key: the name that the members share, up to the first dot after the last slash.
        image: the member that is an image; None if there is none.
        label: the number in the member ``KEY.cls``; -1 if there is none.
        members: all members, in order.
    """

    key: str
    image: Member | None = None
    label: int = -1
    members: list[Member] = field(default_factory=list)


def groups(file: int | ObjectFile, n_bytes: int, path: str) -> Iterator[Group]:
    """The samples of a tar file, grouped as by the package webdataset: consecutive members with the
    same key form a sample.

    Args:
        file, n_bytes, path: as for members().

    Raises:
        PackError: as members(); or a sample has two members with the same extension, two images, or
            a .cls that is not a label.
    """
    group: Group | None = None
    seen: set[str] = set()
    for member in members(file, n_bytes, path):
        key, extension = split_name(member.name)
        if not key or re.match(r"__[^/]*__($|/)", member.name):
            continue
        if group is None or key != group.key:
            if group is not None:
                yield group
            group, seen = Group(key), set()
        if extension in seen:
            raise PackError(f"{path}: sample {key!r} has two members with the extension "
                            f"{extension!r}")
        seen.add(extension)
        group.members.append(member)
        if extension in IMAGE_SUFFIXES:
            if group.image is not None:
                raise PackError(f"{path}: sample {key!r} has two images, {group.image.name!r} and "
                                f"{member.name!r}")
            group.image = member
        elif extension == "cls":
            group.label = _label(file, member, path)
    if group is not None:
        yield group


def split_name(name: str) -> tuple[str, str]:
    """Splits a member's name into (key, extension in lower case); ("", "") if it has no key."""
    match = re.match(r"^((?:.*/|)[^.]+)[.]([^/]*)$", name)
    return (match[1], match[2].lower()) if match else ("", "")


def _label(file: int | ObjectFile, member: Member, path: str) -> int:
    text = read_at(file, min(member.bytes, _MAX_LABEL_BYTES), member.offset).strip()
    if not text.isdigit() or member.bytes > _MAX_LABEL_BYTES or int(text) >= _MAX_CLASSES:
        raise PackError(
            f"{path}: {member.name!r} holds {text!r}; a label must be an integer from 0 to "
            f"{_MAX_CLASSES - 1}"
        )
    return int(text)


# ---- patterns of paths ---------------------------------------------------------------------------


def expand(urls: str | os.PathLike[str] | Iterable[str | os.PathLike[str]]) -> list[str]:
    """Expands urls to paths or names of objects, like the package webdataset: "a-{000..127}.tar",
    "{train,val}.tar", several of these with "::" between them, or a list of these.

    Raises:
        ValueError: a url is a pipe or a network address that feedmill can't read, or has invalid
            braces.
    """
    if isinstance(urls, str | os.PathLike):
        urls = os.fspath(urls).split("::")
    paths = [path for url in urls for path in _expand_braces(os.fspath(url))]
    for i, path in enumerate(paths):
        scheme = re.match(r"([a-z][a-z0-9+]*):", path)
        is_file = scheme is not None and scheme[1] == "file" and "::" not in path
        if not is_file and is_remote(path):
            if why := why_unreadable(path):
                raise ValueError(f"{shown(path)!r} can't be read: {why}")
            continue
        if scheme and not is_file:
            raise ValueError(f"{shown(path)!r}: only local paths, s3://, gs://, http://, https:// "
                             f"and names that fsspec reads are supported, not {scheme[1]}:")
        if scheme:
            paths[i] = path.removeprefix("file:").removeprefix("//")
    if not paths:
        raise ValueError("urls name no tar file")
    return paths


def _expand_braces(text: str) -> Iterator[str]:
    """Expands lists and ranges in braces; the first braces change slowest."""
    begin = text.find("{")
    if begin < 0:
        yield text
        return
    items, end = _split_braces(text, begin)
    for item in items:
        for middle in _expand_braces(item):
            for rest in _expand_braces(text[end:]):
                yield text[:begin] + middle + rest


def _split_braces(text: str, begin: int) -> tuple[list[str], int]:
    """The items in the braces that open at ``begin``, of a list or a range; and the position after
    the closing brace."""
    depth, items, start = 0, [], begin + 1
    for at in range(begin, len(text)):
        depth += (text[at] == "{") - (text[at] == "}")
        if (text[at] == "," and depth == 1) or depth == 0:
            items.append(text[start:at])
            start = at + 1
        if depth == 0:
            break
    items = items if len(items) > 1 else _range(items[0] if items else "") or []
    if depth or not items:
        raise ValueError(f"{text[begin:start]!r} in {text!r} must be a range, {{000..127}}, or a "
                         "list, {a,b}")
    return items, start


def _range(inner: str) -> list[str] | None:
    match = re.fullmatch(r"(\d+)\.\.(\d+)(?:\.\.(\d+))?", inner)
    if match is None:
        return None
    first, last, step = int(match[1]), int(match[2]), int(match[3] or 1) or 1
    is_padded = any(len(one) > 1 and one[0] == "0" for one in match.groups()[:2])
    width = max(len(match[1]), len(match[2])) if is_padded else 0
    numbers = range(first, last + 1, step) if first <= last else range(first, last - 1, -step)
    return [f"{number:0{width}}" for number in numbers]
