"""Lists local folders, in the same form as ``listing`` lists buckets."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any

from feedmill.indexing.building import Entry


def list_folder(root: str, update: Callable[[int], Any]) -> Iterator[tuple[str, list[Entry]]]:
    """Lists all files below a folder; symbolic links are followed.

    Args:
        root: the folder, with a "/" at its end.
        update: called with the number of files that were listed since the last call.

    Yields:
        For each folder in it, its name and its files, whose keys are relative to the root. Then ""
        and the files that are in no folder.

    Raises:
        OSError: a folder can't be read.
    """
    top = []
    with os.scandir(root) as entries:
        found = sorted(entries, key=lambda one: one.name)
    for one in found:
        if one.is_dir():
            yield one.name, _files_below(root, one.name, update)
        elif one.is_file():
            top.append(Entry(one.name, one.stat().st_size))
    update(len(top))
    yield "", top


def _files_below(root: str, name: str, update: Callable[[int], Any]) -> list[Entry]:
    def fail(error: OSError) -> None:
        raise error

    files = []
    for folder, _, names in os.walk(root + name, onerror=fail, followlinks=True):
        paths = [os.path.join(folder, one) for one in names]
        # A link that leads nowhere is an error of its sample, as in ImageFolder.
        files += [
            Entry(path[len(root):], os.stat(path).st_size if os.path.exists(path) else -1)
            for path in paths
        ]
        update(len(paths))
    return files
