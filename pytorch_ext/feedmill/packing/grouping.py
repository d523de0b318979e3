"""Samples in WebDataset tar files: which ones, and what belongs together in them."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from feedmill.packing.index import PackError
from feedmill.packing.tars import Member, members

# What torchvision's ImageFolder takes for an image.
IMAGE_SUFFIXES = ("jpg", "jpeg", "png", "ppm", "bmp", "pgm", "tif", "tiff", "webp")
_MOST_CLASSES = 1 << 24
_LONGEST_LABEL = 20


@dataclass
class Group:
    """The members of a sample, in their order.

    Attributes:
        key: the name up to the first dot behind the last slash.
        image: the one that is an image; None: none is.
        label: of its .cls; -1: it has none.
        members: all of them.
    """

    key: str
    image: Member | None = None
    label: int = -1
    members: list[Member] = field(default_factory=list)


def groups(file: int, n_bytes: int, path: str) -> Iterator[Group]:
    """The samples of a tar file, as the package webdataset groups its members: those of one key
    that follow each other.

    Args:
        file, n_bytes, path: as members().

    Raises:
        PackError: as members(); two members of a sample have one extension, two are images, or a
            .cls holds no label.
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
            raise PackError(f"{path}: sample {key!r} has two members {extension!r}")
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
    """Key and extension of a member, the latter in lower case; "" and "": it has none."""
    match = re.match(r"^((?:.*/|)[^.]+)[.]([^/]*)$", name)
    return (match[1], match[2].lower()) if match else ("", "")


def _label(file: int, member: Member, path: str) -> int:
    text = os.pread(file, min(member.bytes, _LONGEST_LABEL), member.offset).strip()
    if not text.isdigit() or member.bytes > _LONGEST_LABEL or int(text) >= _MOST_CLASSES:
        raise PackError(
            f"{path}: {member.name!r} holds {text!r}, which is no label: a whole number from 0, "
            f"below {_MOST_CLASSES}"
        )
    return int(text)


# ---- which tar files -----------------------------------------------------------------------------


def expand(urls: str | os.PathLike[str] | Iterable[str | os.PathLike[str]]) -> list[str]:
    """The paths that urls name, as the package webdataset expands them: "a-{000..127}.tar",
    "{train,val}.tar", several of them with "::" between, or a list of such.

    Raises:
        ValueError: a pipe or an address on the network, or braces that name nothing.
    """
    if isinstance(urls, str | os.PathLike):
        urls = os.fspath(urls).split("::")
    paths = [path for url in urls for path in _expand_braces(os.fspath(url))]
    for i, path in enumerate(paths):
        scheme = re.match(r"([a-z][a-z0-9+]*):", path)
        if scheme and scheme[1] != "file":
            raise ValueError(f"{path!r}: only tar files on local paths are read, not {scheme[1]}:")
        if scheme:
            paths[i] = path.removeprefix("file:").removeprefix("//")
    if not paths:
        raise ValueError("urls name no tar file")
    return paths


def _expand_braces(text: str) -> Iterator[str]:
    """Alternatives and ranges in braces, the first ones change slowest."""
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
    """What stands between the brace at ``begin``, commas and the brace that closes it, or a range's
    numbers; and where the text goes on."""
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
        raise ValueError(f"{text[begin:start]!r} in {text!r} is neither a range, {{000..127}}, nor "
                         "a list, {a,b}")
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
