"""Joins the indices of a pack's shards into one."""

from __future__ import annotations

import re

from feedmill.packing.building import join
from feedmill.packing.index import INDEX_NAME, Index, PackError
from feedmill.packing.targets import Target
from feedmill.packing.writer import part_name, shard_name

_MAX_NAMED = 5  # missing shards that an error names


def join_shards(target: Target) -> Index:
    """Writes one index for all shards of a target, and removes the shards' own indices and what
    killed processes left behind.

    Raises:
        PackError: shards are missing, were made with different options or of different sources, or
            have another size than when they were written.
        OSError: a file can't be read or written.
    """
    numbers = sorted(
        int(match[1]) for name in target.names()
        if (match := re.fullmatch(r"shard-(\d{6,})\.fmp", name))
    )
    if not numbers:
        raise PackError(f"{target}: there are no shards to join; pack into it first")
    indices = [target.index(part_name(number)) for number in numbers]
    _check(target, numbers, indices)
    data = join(indices)
    index = Index(data, target.path(INDEX_NAME))
    target.write(INDEX_NAME, data)
    for number in numbers:
        target.remove(part_name(number))
    target.clean()
    return index


def _check(target: Target, numbers: list[int], indices: list[Index]) -> None:
    for number, index in zip(numbers, indices):
        path = target.path(part_name(number))
        if (index.part, index.n_shards) != (number, 1):
            raise PackError(f"{path}: this is the index of another shard; pack the shard again")
        if (index.digest, index.n_parts) != (indices[0].digest, indices[0].n_parts):
            raise PackError(
                f"{path}: the shard was made of another source or with other options than "
                f"{shard_name(numbers[0])}"
            )
        shard, n_bytes = target.path(shard_name(number)), int(index.shards["bytes"][0])
        real = target.size(shard_name(number)) or 0
        if index.shard_name(0) != shard_name(number) or real != n_bytes:
            raise PackError(f"{shard}: it has {real} bytes, but {n_bytes} were written; pack the "
                            "shard again")
    missing = sorted(set(range(indices[0].n_parts)) - set(numbers))
    if missing:
        some = ", ".join(map(shard_name, missing[:_MAX_NAMED]))
        raise PackError(
            f"{target}: {len(missing)} of {indices[0].n_parts} shards are missing: {some}"
            f"{', ...' if len(missing) > _MAX_NAMED else ''}; has every part been packed?"
        )
