"""The dataset of WebDataset tar files, in which members with the same key form a sample."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

from feedmill.packing.building import NO_DIGEST, Sample, Shard, build, join, write_file
from feedmill.packing.grouping import IMAGE_SUFFIXES, expand, groups
from feedmill.packing.index import Index, PackError
from feedmill.packing.objects import ObjectFile, last_part
from feedmill.packing.shards import ShardDataset
from feedmill.remote.names import shown
from feedmill.remote.sources import is_remote

_KINDS = ", ".join(IMAGE_SUFFIXES)
_THREADS = 8


# ---- the index of a tar file ---------------------------------------------------------------------


def index_tar(path: str) -> Index:
    """Returns the index of a tar file's images, or of those in a tar object, from the cache if it
    is there.

    Indices are cached in the user's cache folder ($XDG_CACHE_HOME/feedmill/tars, else
    ~/.cache/feedmill/tars), with the tar file's size and modification time. If either has changed,
    the tar file is indexed again. Of an object the size and the ETag are kept; one without a
    strong ETag is indexed each time. A cache that can't be written is ignored. DALI's .idx files
    are not used: checking them would take as many reads as indexing.

    Raises:
        PackError: the file is not a tar file or is damaged, or a sample has no image.
        OSError: the file can't be read.
    """
    if is_remote(path):
        return _index_object(path)
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        status = os.fstat(file)
        shard = Shard(os.path.basename(path), status.st_size, max(0, status.st_mtime_ns))
        cached = _cache_path(os.fsencode(os.path.realpath(path)))
        index = _from_cache(cached, shard, NO_DIGEST)
        if index is not None:
            return index
        data = _make_index(file, shard, path, NO_DIGEST)
    finally:
        os.close(file)
    _keep(cached, data)
    return Index(data, path)


def _index_object(name: str) -> Index:
    file, text = ObjectFile(name), str(shown(name))
    shard = Shard(last_part(name), file.n_bytes)
    digest = hashlib.sha256(file.etag.encode()).digest()[: len(NO_DIGEST)]
    cached = _cache_path(os.fsencode(name))
    index = _from_cache(cached, shard, digest) if file.etag else None
    if index is not None:
        return index
    data = _make_index(file, shard, text, digest)
    if file.etag:
        _keep(cached, data)
    return Index(data, text)


def _from_cache(cached: str, shard: Shard, digest: bytes) -> Index | None:
    """The index in the cache if it is of this shard."""
    with suppress(OSError, PackError):
        index = Index.open(cached)
        if index.n_shards == 1 and index.digest == digest:
            one = index.shards[0]
            if (int(one["bytes"]), int(one["changed_ns"])) == (shard.bytes, shard.changed_ns):
                return index
    return None


def _keep(cached: str, data: bytes) -> None:
    with suppress(OSError):
        os.makedirs(os.path.dirname(cached), exist_ok=True)
        write_file(cached, data)


def _make_index(file: int | ObjectFile, shard: Shard, path: str, digest: bytes) -> bytes:
    samples, n_classes = [], 0
    for group in groups(file, shard.bytes, path):
        if group.image is None:
            raise PackError(f"{path}: sample {group.key!r} has no image ({_KINDS})")
        image = group.image
        samples.append(Sample(image.name, image.offset, image.bytes, group.label))
        n_classes = max(n_classes, group.label + 1)
    return build(shard, samples, [str(label) for label in range(n_classes)], digest=digest)


def _cache_path(name: bytes) -> str:
    root = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    key = hashlib.sha256(name).hexdigest()[:32]
    return os.path.join(root, "feedmill", "tars", f"{key}.fmp")


# ---- the dataset ---------------------------------------------------------------------------------


class WebDataset(ShardDataset):
    """Plain WebDataset tar files, map-style: ``dataset[i]`` is ``(image, label)``.

        dataset = feedmill.WebDataset("shards/train-{000000..000146}.tar", transform=transform)
        loader = feedmill.DataLoader(dataset, batch_size=256, shuffle=True)

    Each tar file is indexed once, by reading its headers (see index_tar()). The index gives random
    access to every sample, so shuffling is exact. Samples have the order of ``urls`` and, within a
    url, of the tar file. An image is a PIL image in RGB, or the result of ``transform``.

    Args:
        urls: paths of tar files, or names of tar objects such as "s3://bucket/train-{000..146}.tar"
            (see the page remote.md of the documentation): a pattern with braces, several with "::"
            between them, or a list.
        transform: called with the PIL image; None: not used.
        target_transform: called with the label; None: not used. It must be deterministic and draw
            no random number.

    A sample has one image (jpg, jpeg, png, ppm, bmp, pgm, tif, tiff or webp). Its label is the
    number in its member cls; -1 if it has none. Other members are ignored.

    Raises:
        PackError: a ValueError; a file is not a tar file, is compressed, damaged or truncated, or a
            sample has no image, more than one, or a cls that is not a label.
        ValueError: urls name no file, or one that feedmill can't read.
        OSError: a file can't be read.

    The attributes classes (the numbers as text), class_to_idx, samples, targets and imgs are as in
    ImageFolder; the last three are sequences that make their items on access. The dataset is
    pickled with its index, which has 32 bytes and a name for each sample. It is thread-safe.
    """

    def __init__(
        self,
        urls: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
        transform: Callable[[Any], Any] | None = None,
        target_transform: Callable[[Any], Any] | None = None,
    ) -> None:
        self.paths = [path if is_remote(path) else os.path.abspath(path) for path in expand(urls)]
        with ThreadPoolExecutor(_THREADS) as pool:
            indices = list(pool.map(index_tar, self.paths))
        self._data = join(indices)
        super().__init__(
            Index(self._data, f"the index of {shown(self.paths[0])}, ..."), self.paths, transform,
            target_transform,
        )

    def __getstate__(self) -> dict[str, Any]:
        return {k: v for k, v in vars(self).items() if k not in ("_index", "_shards")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._set(Index(self._data, f"the index of {shown(self.paths[0])}, ..."), self.paths)

    def __repr__(self) -> str:
        return f"WebDataset of {len(self)} samples in {len(self.paths)} tar files"
