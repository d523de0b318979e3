"""The dataset of a pack."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from feedmill.packing.index import INDEX_NAME, Index, PackError
from feedmill.packing.shards import ShardDataset


class Pack(ShardDataset):
    """A pack that ``feedmill pack`` has made: ``dataset[i]`` is ``(image, label)``.

        dataset = feedmill.Pack("imagenet-pack/train", transform=transform)
        loader = feedmill.DataLoader(dataset, batch_size=256, shuffle=True)

    Samples, labels and order are those of torchvision's ImageFolder on the folder that was packed,
    and an image's pixels the same: a PIL image, RGB, and then what ``transform`` makes of it. The
    index is mapped: opening reads each record once, and holds none.

    Args:
        path: the pack's folder, or its index file.
        transform: called with the PIL image; None: nothing is.
        target_transform: called with the label; None: nothing is. It must give the same target
            whenever it is called, and draw no random number.

    Raises:
        PackError: a ValueError; no pack, one that was not joined yet, or a damaged index.
        OSError: it can't be read.

    Attributes classes, class_to_idx, samples, targets and imgs are as ImageFolder has them, but
    samples, targets and imgs are sequences that make their items when they are asked for, and
    samples have names relative to the folder. A label is -1 where a sample had none. It pickles as
    its path, and any thread may use it.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        transform: Callable[[Any], Any] | None = None,
        target_transform: Callable[[Any], Any] | None = None,
    ) -> None:
        self.root = os.path.abspath(os.fspath(path))
        super().__init__(*_open(self.root), transform, target_transform)

    def __getstate__(self) -> dict[str, Any]:
        """A copy in another process maps the index anew."""
        return {k: v for k, v in vars(self).items() if k not in ("_index", "_shards")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._set(*_open(self.root))

    def __repr__(self) -> str:
        return (
            f"Pack {self.root!r}, {len(self)} samples of {len(self.classes)} classes in "
            f"{self._index.n_shards} shards"
        )


def _open(path: str) -> tuple[Index, list[str]]:
    """The index of a pack, and the paths of its shards."""
    folder, file = (path, os.path.join(path, INDEX_NAME))
    if not os.path.isdir(path):
        folder, file = os.path.dirname(path), path
    elif not os.path.exists(file):
        parts = [name for name in os.listdir(path) if name.endswith(".fmp")]
        why = f"; `feedmill pack --join {path}` makes one of the shards there" if parts else ""
        raise PackError(f"{path}: no pack: there is no {INDEX_NAME}{why}")
    index = Index.open(file)
    return index, [os.path.join(folder, index.shard_name(k)) for k in range(index.n_shards)]
