"""Joins the indices of a pack's shards into one."""

from __future__ import annotations

import os
import re
from contextlib import suppress

from feedmill.packing.building import join, remove_temporary_files, write_file
from feedmill.packing.index import INDEX_NAME, Index, PackError
from feedmill.packing.writer import part_path, shard_name

_MAX_NAMED = 5  # missing shards that an error names


def join_shards(folder: str) -> Index:
    """Writes one index for all shards in a folder, and removes the shards' own indices and what
    killed processes left behind.

    Raises:
        PackError: shards are missing, were made with different options or of different sources, or
            have another size than when they were written.
        OSError: a file can't be read or written.
    """
    numbers = sorted(
        int(match[1]) for name in os.listdir(folder)
        if (match := re.fullmatch(r"shard-(\d{6,})\.fmp", name))
    )
    if not numbers:
        raise PackError(f"{folder}: there are no shards to join; pack into this folder first")
    indices = [Index.open(part_path(folder, number)) for number in numbers]
    _check(folder, numbers, indices)
    path = os.path.join(folder, INDEX_NAME)
    data = join(indices)
    index = Index(data, path)
    write_file(path, data)
    for number in numbers:
        with suppress(OSError):
            os.unlink(part_path(folder, number))
    remove_temporary_files(folder)
    return index


def _check(folder: str, numbers: list[int], indices: list[Index]) -> None:
    for number, index in zip(numbers, indices):
        path = part_path(folder, number)
        if (index.part, index.n_shards) != (number, 1):
            raise PackError(f"{path}: this is the index of another shard; pack the shard again")
        if (index.digest, index.n_parts) != (indices[0].digest, indices[0].n_parts):
            raise PackError(
                f"{path}: the shard was made of another source or with other options than "
                f"{shard_name(numbers[0])}"
            )
        shard, n_bytes = os.path.join(folder, shard_name(number)), int(index.shards["bytes"][0])
        real = os.stat(shard).st_size if os.path.exists(shard) else 0
        if index.shard_name(0) != shard_name(number) or real != n_bytes:
            raise PackError(f"{shard}: it has {real} bytes, but {n_bytes} were written; pack the "
                            "shard again")
    missing = sorted(set(range(indices[0].n_parts)) - set(numbers))
    if missing:
        some = ", ".join(map(shard_name, missing[:_MAX_NAMED]))
        raise PackError(
            f"{folder}: {len(missing)} of {indices[0].n_parts} shards are missing: {some}"
            f"{', ...' if len(missing) > _MAX_NAMED else ''}; has every part been packed?"
        )
