"""The dataset of a pack."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from feedmill.packing.index import INDEX_NAME, Index, PackError
from feedmill.packing.objects import fetch_index, open_fetched
from feedmill.packing.shards import ShardDataset
from feedmill.remote.names import shown
from feedmill.remote.sources import is_remote


class Pack(ShardDataset):
    """A pack made by ``feedmill pack``: ``dataset[i]`` is ``(image, label)``.

        dataset = feedmill.Pack("imagenet-pack/train", transform=transform)
        loader = feedmill.DataLoader(dataset, batch_size=256, shuffle=True)

    Samples, labels, order and pixels are those of torchvision's ImageFolder on the folder that was
    packed. An image is a PIL image in RGB, or the result of ``transform``. The index is mapped into
    memory and checked once, when the pack is opened.

    Args:
        path: the pack's folder, or its index file; or the name of either in an object store or on a
            web server, or one that fsspec reads, such as "s3://bucket/pack/" (see the page
            remote.md of the documentation).
        transform: called with the PIL image; None: not used.
        target_transform: called with the label; None: not used. It must be deterministic and draw
            no random number.

    Raises:
        PackError: a ValueError; path is not a pack, its shards were not joined yet, or its index is
            damaged.
        OSError: the index can't be read.
        ValueError: a name of a kind that is not supported, or an invalid setting.

    The attributes classes, class_to_idx, samples, targets and imgs are as in ImageFolder, except
    that samples, targets and imgs are sequences that make their items on access, and that names are
    relative to the folder. The label of a sample without one is -1. The dataset is pickled as its
    path, or, if that names objects, with its index, which is then read from there only once. It is
    thread-safe.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        transform: Callable[[Any], Any] | None = None,
        target_transform: Callable[[Any], Any] | None = None,
    ) -> None:
        given = os.fspath(path)
        is_file = not is_remote(given)
        self.root = os.path.abspath(given) if is_file else given
        self._data = None if is_file else fetch_index(given)
        super().__init__(*self._open(), transform, target_transform)

    def _open(self) -> tuple[Index, list[str]]:
        return _open(self.root) if self._data is None else open_fetched(self.root, self._data)

    def __getstate__(self) -> dict[str, Any]:
        """Leaves out the index of a folder; the copy maps the file again."""
        return {k: v for k, v in vars(self).items() if k not in ("_index", "_shards")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update({"_data": None, **state})
        self._set(*self._open())

    def __repr__(self) -> str:
        return (
            f"Pack {shown(self.root)!r}, {len(self)} samples of {len(self.classes)} classes in "
            f"{self._index.n_shards} shards"
        )


def _open(path: str) -> tuple[Index, list[str]]:
    """Opens the index of a pack. Returns it and the paths of the shards."""
    folder, file = (path, os.path.join(path, INDEX_NAME))
    if not os.path.isdir(path):
        folder, file = os.path.dirname(path), path
    elif not os.path.exists(file):
        parts = [name for name in os.listdir(path) if name.endswith(".fmp")]
        why = f"; run `feedmill pack --join {path}` to join its shards" if parts else ""
        raise PackError(f"{path}: not a pack: there is no {INDEX_NAME}{why}")
    index = Index.open(file)
    return index, [os.path.join(folder, index.shard_name(k)) for k in range(index.n_shards)]
