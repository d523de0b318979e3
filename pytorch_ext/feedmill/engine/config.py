"""What the native loader behind a DataLoader is opened with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from feedmill.engine.devices import device_of, stage_config
from feedmill.planner.arrays import Arrays
from feedmill.planner.plan import Plan
from feedmill.planner.samples import Source
from feedmill.planner.sampling import largest_batch, look_ahead_rule, never
from feedmill.profiling.log.recorder import records_samples

# Batches ahead with num_workers=0, where torch has no number for it.
PREFETCH_IN_PROCESS = 4
# Samples ahead at least, however small the batches: so many reads keep far storage busy.
_AHEAD_SAMPLES = 64
MAX_BATCH_SIZE = 65536
# Records of samples for a log, at least; it is filled when a quarter of them are new.
_SAMPLE_RECORDS = 65536
_MAX_SAMPLE_RECORDS = 1 << 24


@dataclass(frozen=True)
class Config:
    """What a native loader is opened with. Equal configs can share one, one after the other."""

    plan: Plan
    n_samples: int
    batch_size: int
    n_threads: int
    prefetch_batches: int
    memory_budget: int | None = None
    reader: str = "auto"
    alloc: Any = None
    sample_records: int = 0
    cache: Any = None
    arrays: Arrays | None = None
    device: tuple[str, int, bool] | None = None


def allocate_pinned(n_bytes: int) -> tuple[int, torch.Tensor]:
    """Memory of a batch slot for pin_memory=True: (address, the tensor that owns it).

    It comes from torch's caching host allocator, which alone keeps memory that an asynchronous
    copy still reads from being used again.
    """
    owner = torch.empty(n_bytes, dtype=torch.uint8, pin_memory=True)
    return owner.data_ptr(), owner


def native_config(loader: Any, source: Source, n_threads: int) -> Config:
    """What an iterator over ``loader`` opens its native loader with. Where batches may have any
    size, batch_size is 1 until the first ones were pulled."""
    size = largest_batch(loader._index_sampler, loader._auto_collation)
    depth = _depth(loader, size)
    options = loader._feedmill_options()
    return Config(
        plan=source.native_plan,
        n_samples=source.n_samples,
        batch_size=min(size or 1, MAX_BATCH_SIZE),
        n_threads=n_threads,
        prefetch_batches=depth,
        memory_budget=options.memory_budget,
        reader=options.reader,
        sample_records=_sample_records(loader, depth * (size or 1)),
        cache=loader._feedmill.cache.of(options.cache),
        arrays=source.arrays,
        device=stage_config(loader, device_of(loader)),
    )


def torch_depth(loader: Any) -> int:
    """Batches that torch's workers would have on their way. Where it refuses to start them, as for
    prefetch_factor=None, some number."""
    return (loader.prefetch_factor or 1) * loader.num_workers if loader.num_workers > 0 else 1


def _depth(loader: Any, size: int | None) -> int:
    """Batches on their way: as torch's, or more where nobody can tell and batches are tiny."""
    depth = torch_depth(loader)
    if look_ahead_rule(loader._index_sampler) is never:
        return depth
    if loader.num_workers == 0:
        depth = PREFETCH_IN_PROCESS
    return depth if size is None else max(depth, -(-_AHEAD_SAMPLES // size))


def _sample_records(loader: Any, n_ahead: int) -> int:
    """So many that those of the samples ahead do not overwrite what the log still lacks."""
    options = loader._feedmill_options()
    if not records_samples(options.log, options.log_samples):
        return 0
    return min(_SAMPLE_RECORDS + 2 * n_ahead, _MAX_SAMPLE_RECORDS)
