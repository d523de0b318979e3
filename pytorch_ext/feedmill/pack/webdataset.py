"""WebDatasets: tar files whose members form samples by their names."""

from __future__ import annotations

import hashlib
import os
import re
import secrets
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from feedmill.pack.building import Sample, Shard, build, join
from feedmill.pack.index import Index, PackError
from feedmill.pack.shards import ShardDataset
from feedmill.pack.tars import Member, members

# What torchvision's ImageFolder takes for an image.
IMAGE_SUFFIXES = ("jpg", "jpeg", "png", "ppm", "bmp", "pgm", "tif", "tiff", "webp")
_KINDS = ", ".join(IMAGE_SUFFIXES)
_MOST_CLASSES = 1 << 24
_LONGEST_LABEL = 20
_THREADS = 8


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


# ---- the index of a tar file ---------------------------------------------------------------------


def index_tar(path: str) -> Index:
    """The index of a tar file's images: the one that was kept, or made anew and kept.

    It is kept in the user's cache folder ($XDG_CACHE_HOME/feedmill/tars, else ~/.cache/...), with
    the file's size and time of change, and made anew when these are others. Where it can't be
    written, it is not kept. DALI's .idx files are not needed, and not looked at: whatever they say
    would have to be checked by reading the same headers.

    Raises:
        PackError: no tar file, or a damaged one; a sample without an image. OSError: can't be read.
    """
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        about = os.fstat(file)
        kept = _cache_path(path)
        with suppress(OSError, PackError):
            index = Index.open(kept)
            shard = index.shards[0] if index.n_shards == 1 else None
            if shard is not None and (int(shard["bytes"]), int(shard["changed_ns"])) == (
                about.st_size, about.st_mtime_ns
            ):
                return index
        data = _make_index(file, about, path)
    finally:
        os.close(file)
    with suppress(OSError):
        write_file(kept, data)
    return Index(data, path)


def _make_index(file: int, about: os.stat_result, path: str) -> bytes:
    samples, n_classes = [], 0
    for group in groups(file, about.st_size, path):
        if group.image is None:
            raise PackError(f"{path}: sample {group.key!r} has no image ({_KINDS})")
        image = group.image
        samples.append(Sample(image.name, image.offset, image.bytes, group.label))
        n_classes = max(n_classes, group.label + 1)
    shard = Shard(os.path.basename(path), about.st_size, about.st_mtime_ns)
    return build(shard, samples, [str(label) for label in range(n_classes)])


def _cache_path(path: str) -> str:
    root = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    name = hashlib.sha256(os.fsencode(os.path.realpath(path))).hexdigest()[:32]
    return os.path.join(root, "feedmill", "tars", f"{name}.fmp")


def write_file(path: str, data: bytes) -> None:
    """Writes a file that is there as a whole or not at all. Raises OSError."""
    os.makedirs(os.path.dirname(path), exist_ok=True)
    temporary = f"{path}.{os.getpid()}-{secrets.token_hex(4)}.partial"
    try:
        with open(temporary, "xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(temporary)
        raise


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
            paths[i] = path.removeprefix("file:").replace("//", "/", 1)
    if not paths:
        raise ValueError("urls name no tar file")
    return paths


def _expand_braces(text: str) -> Iterator[str]:
    """Alternatives and ranges in braces, the innermost first."""
    match = re.search(r"\{([^{}]*)\}", text)
    if match is None:
        yield text
        return
    before, inner, after = text[: match.start()], match[1], text[match.end() :]
    items = _range(inner) or (inner.split(",") if "," in inner else None)
    if items is None:
        raise ValueError(
            f"{{{inner}}} in {text!r} is neither a range, {{000..127}}, nor a list, {{a,b}}"
        )
    for item in items:
        yield from _expand_braces(before + item + after)


def _range(inner: str) -> list[str] | None:
    match = re.fullmatch(r"(\d+)\.\.(\d+)(?:\.\.(\d+))?", inner)
    if match is None:
        return None
    first, last, step = int(match[1]), int(match[2]), int(match[3] or 1) or 1
    is_padded = any(len(one) > 1 and one[0] == "0" for one in match.groups()[:2])
    width = max(len(match[1]), len(match[2])) if is_padded else 0
    numbers = range(first, last + 1, step) if first <= last else range(first, last - 1, -step)
    return [f"{number:0{width}}" for number in numbers]


# ---- the dataset ---------------------------------------------------------------------------------


class WebDataset(ShardDataset):
    """Plain WebDataset tar files, map-style: ``dataset[i]`` is ``(image, label)``.

        dataset = feedmill.WebDataset("shards/train-{000000..000146}.tar", transform=transform)
        loader = feedmill.DataLoader(dataset, batch_size=256, shuffle=True)

    Each tar file is indexed once, by reading its headers (see index_tar()); from then on every
    sample can be read at once, and shuffling is exact. Samples stand in the order of ``urls`` and,
    in each, of the tar file. An image is a PIL image, RGB, and then what ``transform`` makes of it.

    Args:
        urls: paths of tar files; a pattern with braces, several with "::" between, or a list.
        transform: called with the PIL image; None: nothing is.
        target_transform: called with the label; None: nothing is. It must give the same target
            whenever it is called, and draw no random number.

    A sample has one image (jpg, jpeg, png, ppm, bmp, pgm, tif, tiff or webp), and its label is the
    number in its member cls; -1 without one. Other members are not looked at.

    Raises:
        PackError: a ValueError; a file is no tar file, compressed, damaged or cut short, a sample
            has no image or more than one, or a cls that is no number.
        ValueError: urls that name nothing, or no local paths.
        OSError: a file can't be read.

    Attributes classes (the numbers as text), class_to_idx, samples, targets and imgs are as
    ImageFolder has them, the last three as sequences that make their items when they are asked for.
    It pickles with its index, 32 bytes and a name for each sample; any thread may use it.
    """

    def __init__(
        self,
        urls: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
        transform: Callable[[Any], Any] | None = None,
        target_transform: Callable[[Any], Any] | None = None,
    ) -> None:
        self.paths = [os.path.abspath(path) for path in expand(urls)]
        with ThreadPoolExecutor(_THREADS) as pool:
            indices = list(pool.map(index_tar, self.paths))
        self._data = join(indices)
        super().__init__(
            Index(self._data, f"the index of {self.paths[0]}, ..."), self.paths, transform,
            target_transform,
        )

    def __getstate__(self) -> dict[str, Any]:
        return {k: v for k, v in vars(self).items() if k not in ("_index", "_shards")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._set(Index(self._data, f"the index of {self.paths[0]}, ..."), self.paths)

    def __repr__(self) -> str:
        return f"WebDataset of {len(self)} samples in {len(self.paths)} tar files"
