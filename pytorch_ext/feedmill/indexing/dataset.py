"""The dataset of an index."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from feedmill.indexing.format import IndexFile
from feedmill.packing.folder_attributes import Column, FolderAttributes, number_of
from feedmill.planner.files import load_rgb
from feedmill.remote.process import fetch
from feedmill.remote.sources import is_remote


class Index(FolderAttributes):
    """Images in a bucket or a folder, listed by ``feedmill index``: ``dataset[i]`` is
    ``(image, label)``.

        dataset = feedmill.Index("train.index", transform=transform)
        loader = feedmill.DataLoader(dataset, batch_size=256, shuffle=True)

    Samples, labels, order and pixels are those of torchvision's ImageFolder on the same tree of
    files, if the index was made from class folders. An image is a PIL image in RGB, or the result
    of ``transform``. The index is mapped into memory, so that a million images are opened in a
    fraction of a second, and processes share them.

    An object that has changed since it was listed is an error that names it; ``on_error`` applies.
    Then run ``feedmill index`` again. Files, and objects without an ETag, are read as they are.

    Args:
        path: of the index file.
        transform: called with the PIL image; None: not used.
        target_transform: called with the label; None: not used. It must be deterministic and draw
            no random number.

    Raises:
        IndexFileError: a ValueError; the file is not an index, or is damaged.
        OSError: it can't be read.

    The attributes classes, class_to_idx, samples, targets, imgs and root are as in ImageFolder,
    except that samples, targets and imgs are sequences that make their items on access. The dataset
    is pickled as the index's path, and is thread-safe.

    Attributes:
        path: of the index file, absolute.
        root: where the images are, such as "s3://bucket/train".
        is_remote: they are not files.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        transform: Callable[[Any], Any] | None = None,
        target_transform: Callable[[Any], Any] | None = None,
    ) -> None:
        self.path = os.path.abspath(os.fspath(path))
        self.transform, self.target_transform = transform, target_transform
        self._set(IndexFile.open(self.path))

    def _set(self, file: IndexFile) -> None:
        self._file = file
        self._identity = file.identity
        self.root = file.root.rstrip("/") or file.root
        self.is_remote = is_remote(file.root)

    def __getstate__(self) -> dict[str, Any]:
        """Leaves out the index; the copy maps the file again."""
        return {name: value for name, value in vars(self).items() if name != "_file"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._set(IndexFile.open(self.path, self._identity))

    def __len__(self) -> int:
        return self._file.n_samples

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        source, target = self.feedmill_item(index)
        is_version = isinstance(source, tuple)
        image = self.loader(fetch(source[0], etag=source[1]) if is_version else source)
        return image if self.transform is None else self.transform(image), target

    def feedmill_item(self, index: int) -> tuple[str | tuple[str, str], Any]:
        """The name of an image, with its ETag if it has one, and the target. feedmill's DataLoader
        calls this in place of ``dataset[index]``, to read the image itself.

        Raises:
            IndexError: there is no such sample.
        """
        number = number_of(index, len(self))
        name, etag = self._file.entry(number)
        label = self._file.label(number)
        target = label if self.target_transform is None else self.target_transform(label)
        return (name, etag) if etag else name, target

    def feedmill_sources(self) -> list[str]:
        """Where the images are: feedmill asks for it to find out whether it reads over a
        network."""
        return [self.root]

    # ---- ImageFolder's attributes ----------------------------------------------------------------

    @property
    def loader(self) -> Callable[[Any], Any]:
        """Loads an image by its name as ImageFolder's default loader: a PIL image in RGB."""
        return load_rgb

    @property
    def classes(self) -> list[str]:
        """The names of the classes, by label."""
        return self._file.classes

    def _name(self, i: int) -> str:
        return self._file.entry(i)[0]

    def _label(self, i: int) -> int:
        return self._file.label(i)

    def _labels(self) -> np.ndarray:
        return self._file.labels

    # ---- more ------------------------------------------------------------------------------------

    @property
    def sizes(self) -> np.ndarray:
        """int64 (n,), read-only: the bytes of each image when it was listed; -1: not known."""
        return self._file.sizes

    @property
    def etags(self) -> Sequence[str]:
        """The ETags of all samples, with their quotes; "": none."""
        return Column(len(self), lambda i: self._file.entry(i)[1])

    def __repr__(self) -> str:
        return (
            f"Index {self.path!r}, {len(self):,} images of {len(self.classes):,} classes in "
            f"{self.root}"
        )
