"""Finds the classes of what was listed, as torchvision's ImageFolder does, or by a table."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from feedmill.indexing.building import Contents, Entry

# As torchvision's IMG_EXTENSIONS.
EXTENSIONS = (
    ".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp",
)
# Numbers as labels are also the numbers of classes, of which as many are listed.
_MAX_LABEL = 10_000_000
_NUMBER = re.compile(r"\d{1,8}", re.ASCII)

Listed = Iterable[tuple[str, list[Entry]]]


class Found(NamedTuple):
    """An index's contents, and what was left out.

    Attributes:
        contents: of the index.
        n_others: objects in class folders without an image's extension.
        n_outside: images in no class folder; with a table of labels, images that it does not name.
    """

    contents: Contents
    n_others: int
    n_outside: int


def is_image(key: str) -> bool:
    return key.lower().endswith(EXTENSIONS)


def by_folders(root: str, listed: Listed, allow_empty: bool) -> Found:
    """The images of each class folder, in ImageFolder's order.

    Args:
        root: begin of all names.
        listed: what list_all() or list_folder() yields.
        allow_empty: a class may have no image.

    Raises:
        FileNotFoundError: there is nothing, no class folder, or a class without an image.
    """
    by_class: dict[str, list[Entry]] = {}
    n_others = n_outside = n_listed = 0
    for name, entries in listed:
        n_listed += len(entries)
        images = [one for one in entries if is_image(one.key)]
        if name:
            images.sort(key=lambda one: one.key.rpartition("/")[::2])
            by_class[name] = images
            # Consoles of S3 mark folders by empty objects.
            n_others += sum(not one.key.endswith("/") for one in entries) - len(images)
        else:
            n_outside += len(images)
    if not n_listed:
        raise FileNotFoundError(f"{root}: there is nothing; check the name and its case")
    if not by_class:
        raise FileNotFoundError(
            f"{root}: there are {n_outside:,} images, but no class folders: images must have names "
            f"such as {root}CLASS/IMAGE.jpg. Or give their labels in a table: --csv FILE"
        )
    classes = sorted(by_class)
    empty = [name for name in classes if not by_class[name]]
    if len(empty) == len(classes):
        raise FileNotFoundError(
            f"{root}: there are {len(classes):,} folders, but no images in them; images end in "
            f"{', '.join(EXTENSIONS)}"
        )
    if empty and not allow_empty:
        raise FileNotFoundError(
            f"{root}: there is no image in the class folders {_some_names(empty)}; "
            "remove them, or pass --allow-empty to keep them as classes"
        )
    labels = np.repeat(np.arange(len(classes)), [len(by_class[name]) for name in classes])
    entries = [one for name in classes for one in by_class[name]]
    return Found(Contents(root, classes, entries, labels), n_others, n_outside)


def by_table(
    root: str, listed: Listed | None, keys: Sequence[str], labels: Sequence[str], table: str
) -> Found:
    """The images that a table names, in its order.

    Args:
        root: begin of all names.
        listed: as by_folders(); None: what is there is not known, and the table is believed.
        keys: of the images, relative to the root, or whole names.
        labels: numbers, which are used as they are, or names of classes, which are sorted.
        table: name of the table, for messages.

    Raises:
        FileNotFoundError: there are no such objects.
        ValueError: the table is empty, or its labels are not valid.
    """
    if not keys:
        raise ValueError(f"{table}: the table has no rows")
    short = [key[len(root):] if key.startswith(root) else key for key in keys]
    classes, numbers = _classes_of(labels, table)
    if listed is None:
        return Found(Contents(root, classes, [Entry(key) for key in short], numbers), 0, 0)
    there = {one.key: one for _, entries in listed for one in entries}
    missing = [key for key in short if key not in there]
    if missing:
        raise FileNotFoundError(
            f"{table}: {len(missing):,} of {len(keys):,} keys are not in {root}: "
            f"{_some_names(missing)}. Keys are relative to {root}, or whole names"
        )
    entries = [there[key] for key in short]
    n_outside = sum(map(is_image, there.keys() - set(short)))
    return Found(Contents(root, classes, entries, numbers), 0, n_outside)


def _classes_of(labels: Sequence[str], table: str) -> tuple[list[str], np.ndarray]:
    """Names of the classes, and the labels as their numbers."""
    if all(_NUMBER.fullmatch(one) for one in labels):
        numbers = np.array([int(one) for one in labels])
        if numbers.max() > _MAX_LABEL:
            raise ValueError(
                f"{table}: the label {numbers.max()} is above {_MAX_LABEL:,}: labels are numbers "
                "of classes from 0, or names of classes"
            )
        return [str(one) for one in range(int(numbers.max()) + 1)], numbers
    if "" in labels:
        raise ValueError(f"{table}: row {labels.index('') + 1} has no label")
    classes = sorted(set(labels))
    number_of = {name: number for number, name in enumerate(classes)}
    return classes, np.array([number_of[one] for one in labels])


def _some_names(names: Sequence[str]) -> str:
    """The first names in words, such as "'a', 'b', 'c', ... (12 in all)"."""
    first = ", ".join(map(repr, names[:3]))
    return first + (f", ... ({len(names):,} in all)" if len(names) > 3 else "")
