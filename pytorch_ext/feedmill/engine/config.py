"""The configuration of a DataLoader's native loader."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

import torch

from feedmill.engine.devices import device_of, stage_config
from feedmill.planner.arrays import Arrays
from feedmill.planner.plan import Plan
from feedmill.planner.samples import Source
from feedmill.planner.sampling import largest_batch, never, pull_ahead_rule
from feedmill.profiling.log.recorder import records_samples
from feedmill.remote.process import shared
from feedmill.remote.settings import fsspec_threads

# Batches to prefetch with num_workers=0, for which torch defines no number.
PREFETCH_IN_PROCESS = 4
# Minimum of samples to prefetch, however small the batches: enough parallel reads to hide the
# latency of high-latency storage.
_AHEAD_SAMPLES = 64
MAX_BATCH_SIZE = 65536
# Minimum of sample records for a log, which is written when a quarter of them are new.
_SAMPLE_RECORDS = 65536
_MAX_SAMPLE_RECORDS = 1 << 24


@dataclass(frozen=True)
class Config:
    """The arguments that open a native loader. Iterators with equal configs can use the same native
    loader, one after the other.

    Attributes:
        alloc: allocator for the memory of batches; None: the native loader's own memory.
        sample_records: number of sample records to keep for the log.
        cache: the ``_native.Cache``, or None.
        disk_cache: the ``_native.DiskCache`` of what ``remote`` reads, or None.
        remote: the ``_native.Remote`` that reads names such as s3://bucket/key, or None.
        fsspec_threads: how many threads read names by fsspec; 0: there are none such.
        arrays: samples in memory, in place of files.
        device: (kind, index, whether the GPU converts bytes to floats); None: CPU.
    """

    plan: Plan
    n_samples: int
    batch_size: int
    n_threads: int
    prefetch_batches: int
    memory_budget: int | None = None
    seek_index: int | str | os.PathLike[str] | None = None
    reader: str = "auto"
    alloc: Any = None
    sample_records: int = 0
    cache: Any = None
    disk_cache: Any = None
    remote: Any = None
    fsspec_threads: int = 0
    arrays: Arrays | None = None
    device: tuple[str, int, bool] | None = None


def allocate_pinned(n_bytes: int) -> tuple[int, torch.Tensor]:
    """Allocates a batch's memory for pin_memory=True: (address, the tensor that owns it).

    Uses torch's caching host allocator: only that does not reuse memory which an asynchronous copy
    still reads.
    """
    owner = torch.empty(n_bytes, dtype=torch.uint8, pin_memory=True)
    return owner.data_ptr(), owner


def native_config(loader: Any, source: Source, n_threads: int) -> Config:
    """The config of an iterator's native loader. If the batch size is not known before the first
    batches were pulled, batch_size is 1."""
    size = largest_batch(loader._index_sampler, loader._auto_collation)
    depth = _depth(loader, size)
    options = loader._feedmill_options()
    return Config(
        plan=source.native_plan,
        n_samples=source.n_places,
        batch_size=min(size or 1, MAX_BATCH_SIZE),
        n_threads=n_threads,
        prefetch_batches=depth,
        memory_budget=options.memory_budget,
        # Seek points are found again by a sample's index, or its place in tar files.
        seek_index=options.seek_index if source.has_indices or source.n_places > 1 else 0,
        reader=options.reader,
        sample_records=_sample_records(loader, depth * (size or 1)),
        cache=loader._feedmill.cache.of(options.cache),
        disk_cache=None if source.names_remote is False else loader._feedmill.cache.disk_of(
            options.cache),
        remote=shared() if source.names_remote else None,
        fsspec_threads=fsspec_threads() if source.names_fsspec else 0,
        arrays=source.arrays,
        device=stage_config(loader, device_of(loader)),
    )


def torch_depth(loader: Any) -> int:
    """Number of batches that torch's workers would have in flight. prefetch_factor=None counts as
    1; torch refuses to start workers with that."""
    return (loader.prefetch_factor or 1) * loader.num_workers if loader.num_workers > 0 else 1


def _depth(loader: Any, size: int | None) -> int:
    """Number of batches to prefetch: torch's number, or more if the script can't notice and batches
    are small."""
    depth = torch_depth(loader)
    if pull_ahead_rule(loader._index_sampler) is never:
        return depth
    if loader.num_workers == 0:
        depth = PREFETCH_IN_PROCESS
    return depth if size is None else max(depth, -(-_AHEAD_SAMPLES // size))


def _sample_records(loader: Any, n_ahead: int) -> int:
    """Number of sample records, so that prefetched samples do not overwrite unlogged records."""
    options = loader._feedmill_options()
    if not records_samples(options.log, options.log_samples):
        return 0
    return min(_SAMPLE_RECORDS + 2 * n_ahead, _MAX_SAMPLE_RECORDS)
