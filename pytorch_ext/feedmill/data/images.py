"""A dataset of image files."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from torch.utils.data import Dataset

from feedmill.remote.sources import open_source


class ImageList(Dataset[Any]):
    """Image files, given as a list of paths, with targets: ``dataset[i]`` is ``(image, target)``.

        dataset = ImageList(paths, labels, transform=transform)

    An image is a PIL image in RGB, loaded as by torchvision's ImageFolder, or the result of
    ``transform``. feedmill.DataLoader reads, decodes and transforms these images natively, like
    those of ImageFolder. torch's DataLoader works as with any dataset.

    Args:
        paths: of the image files, str or os.PathLike; copied into a list. Names of objects that are
            read over the network, such as "s3://bucket/key.jpg" or "https://host/image.jpg", may
            stand for paths (see the page remote.md of the documentation). Names with other schemes
            are read by fsspec.
        targets: a list or array with one target for each path, of any type that torch collates.
            None (default): the image's index, for example to assign predictions to files.
        transform: called with the PIL image; None: not used.
        target_transform: called with the target; None: not used. It must be deterministic and draw
            no random number.

    Raises:
        ValueError: the numbers of paths and targets differ.
        TypeError: paths is a single path.

    The attributes paths, targets, transform and target_transform may be changed between epochs.
    """

    def __init__(
        self,
        paths: Iterable[str | os.PathLike[str]],
        targets: Sequence[Any] | None = None,
        transform: Callable[[Any], Any] | None = None,
        target_transform: Callable[[Any], Any] | None = None,
    ) -> None:
        if isinstance(paths, str | bytes | os.PathLike):
            raise TypeError(f"paths is the single path {paths!r}; it must be a list of paths")
        self.paths = [os.fsdecode(path) for path in paths]
        if targets is not None and len(targets) != len(self.paths):
            raise ValueError(f"there are {len(self.paths)} paths, but {len(targets)} targets")
        self.targets = targets
        self.transform = transform
        self.target_transform = target_transform

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        path, target = self.feedmill_item(index)
        with open_image(path) as file:
            image = file.convert("RGB")
        return image if self.transform is None else self.transform(image), target

    def feedmill_item(self, index: int) -> tuple[str, Any]:
        """The path of an image, and its target. feedmill's DataLoader calls this in place of
        ``dataset[index]``, to read the file itself."""
        path = self.paths[index]
        if self.targets is None:
            target = index if index >= 0 else index + len(self.paths)
        else:
            target = self.targets[index]
        return path, target if self.target_transform is None else self.target_transform(target)

    def feedmill_sources(self) -> list[str]:
        """The paths and names: feedmill asks for them to find out whether it reads over a
        network."""
        return self.paths

    def __repr__(self) -> str:
        return f"ImageList of {len(self.paths)} files, transform={self.transform!r}"


@contextmanager
def open_image(source: str | os.PathLike[str] | bytes) -> Iterator[Any]:
    """Opens a file, a remote object or an image's bytes as a PIL image, and closes it at the end of
    the block."""
    from PIL import Image

    with open_source(source) as file:
        with Image.open(file) as image:
            yield image
