"""Lists what fsspec reads, in the same form as ``listing`` lists buckets."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

from feedmill.indexing.building import Entry
from feedmill.indexing.threads import parallel
from feedmill.remote import by_fsspec
from feedmill.remote.names import in_chain, may_have_secret, shown

# Folders that are listed at a time.
_THREADS = 16


def root_of(source: str) -> str:
    """The begin of all names in a folder that fsspec reads.

    Raises:
        ValueError: names do not begin with the folder's, or it has what may be a secret, which an
            index would keep.
    """
    if in_chain(source)[2]:
        raise ValueError(
            f"{shown(source)}: the folder must be the last link of a chain to be indexed, such as "
            "simplecache::az://container/images"
        )
    if may_have_secret(in_chain(source)[1]):
        raise ValueError(
            f"{shown(source)}: a name with a user, password, query or fragment can't be indexed, "
            "as an index would keep what may be a secret: use fsspec's configuration"
        )
    return source if source.endswith("/") else source + "/"


def list_store(root: str, update: Callable[[int], Any]) -> Iterator[tuple[str, list[Entry]]]:
    """Lists all objects below a folder: the folders at its top first, then each of them, in
    threads.

    Args:
        root: as root_of() returns it.
        update: called with the number of objects that were listed since the last call.

    Yields:
        For each folder, in any order, its name and its objects, whose keys begin behind the root.
        Then "" and the objects that are in no folder.

    Raises:
        OSError: a folder can't be listed.
        ValueError: fsspec can't read such names, or root is not a folder.
    """
    top = by_fsspec.list_folder(root, is_deep=False)

    def work(folder: str, stopped: threading.Event) -> tuple[str, list[Entry]]:
        found = by_fsspec.list_folder(root + folder + "/", is_deep=True)
        objects = [one for one in found if not one.is_folder]
        return folder, [Entry(f"{folder}/{one.key}", one.n_bytes) for one in objects]

    folders = [one.key for one in top if one.is_folder]
    for folder, entries in parallel(work, folders, lambda: None, _THREADS):
        update(len(entries))
        yield folder, entries
    objects = [Entry(one.key, one.n_bytes) for one in top if not one.is_folder]
    update(len(objects))
    yield "", objects
