"""Puts the indices of a pack's shards together."""

from __future__ import annotations

import os
import re
from contextlib import suppress

from feedmill.packing.building import join, write_file
from feedmill.packing.index import INDEX_NAME, Index, PackError
from feedmill.packing.writer import part_path, shard_name

_MOST_NAMED = 5


def join_shards(folder: str) -> Index:
    """Writes the one index of all shards in a folder, and removes theirs.

    Raises:
        PackError: shards are missing, were made with different options or of different sources, or
            have another size than when they were written. OSError: a file can't be read.
    """
    numbers = sorted(
        int(match[1]) for name in os.listdir(folder)
        if (match := re.fullmatch(r"shard-(\d{6,})\.fmp", name))
    )
    if not numbers:
        raise PackError(f"{folder}: there are no shards to be put together")
    indices = [Index.open(part_path(folder, number)) for number in numbers]
    _check(folder, numbers, indices)
    path = os.path.join(folder, INDEX_NAME)
    data = join(indices)
    index = Index(data, path)
    write_file(path, data)
    for number in numbers:
        with suppress(OSError):
            os.unlink(part_path(folder, number))
    return index


def _check(folder: str, numbers: list[int], indices: list[Index]) -> None:
    for number, index in zip(numbers, indices):
        path = part_path(folder, number)
        if (index.part, index.n_shards) != (number, 1):
            raise PackError(f"{path}: the index of another shard")
        if (index.digest, index.n_parts) != (indices[0].digest, indices[0].n_parts):
            raise PackError(
                f"{path}: made of another source or with other options than "
                f"{shard_name(numbers[0])}"
            )
        shard, n_bytes = os.path.join(folder, shard_name(number)), int(index.shards["bytes"][0])
        real = os.stat(shard).st_size if os.path.exists(shard) else 0
        if index.shard_name(0) != shard_name(number) or real != n_bytes:
            raise PackError(f"{shard}: it has {real} bytes; it was written with {n_bytes}")
    missing = sorted(set(range(indices[0].n_parts)) - set(numbers))
    if missing:
        some = ", ".join(map(shard_name, missing[:_MOST_NAMED]))
        raise PackError(
            f"{folder}: {len(missing)} of {indices[0].n_parts} shards are missing: {some}"
            f"{', ...' if len(missing) > _MOST_NAMED else ''}; has every part been packed?"
        )
