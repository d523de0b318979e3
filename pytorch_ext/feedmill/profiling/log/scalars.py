"""Writes a loader's scalars to TensorBoard, or to any writer with add_scalar()."""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from typing import Any

import numpy as np

from feedmill.profiling.counting.records import CAUSES, STORAGE_PARTS


@dataclass(frozen=True)
class _Seen:
    """A loader's counters at the latest call of log_scalars()."""

    wall_ns: int = 0
    data_wait_ns: int = 0
    samples: int = 0
    native_wall_ns: int = 0
    gpu_stall_ns: int = 0
    gpu_wall_ns: int = 0
    request_ns: int = 0


_seen: weakref.WeakKeyDictionary[Any, _Seen] = weakref.WeakKeyDictionary()


def log_scalars(writer: Any, loader: Any, global_step: int, prefix: str = "feedmill") -> None:
    """Writes scalars about a loader's steps since the latest call for this loader.

        writer = torch.utils.tensorboard.SummaryWriter()
        ...
        if step % 100 == 0:
            feedmill.log_scalars(writer, loader, step)

    Writes nothing if there was no step since that call. The scalars:

    - stall: share of the time that the GPU waited for a batch or, if no GPU is in use, that steps
      waited for data.
    - au: accelerator utilization, 1 - stall.
    - gpu_stall_ms: mean GPU stall of the measured steps, if there are any.
    - wait_p50_ms, wait_p99_ms: percentiles of the steps' waits for data.
    - images_per_second: for native epochs only. On torch's path, and for a watched loader, samples
      are not counted.
    - wait_ms/<cause>: mean per step, for each cause in ``Stats.steps``.

    Args:
        writer: an object with add_scalar(tag, value, global_step), such as TensorBoard's
            SummaryWriter.
        loader: a feedmill.DataLoader, or the result of feedmill.watch().
        global_step: the training step at which the scalars are shown.
        prefix: prefix of the tags, as in "feedmill/au".
    """
    stats = loader.stats()
    seen = _seen.get(loader, _Seen())
    steps = stats.steps[stats.steps["request_ns"] > seen.request_ns]
    if not len(steps):
        return
    now = _Seen(
        wall_ns=stats.waits.wall_ns,
        data_wait_ns=stats.waits.data_wait_ns,
        samples=stats.samples,
        native_wall_ns=stats.waits.native_wall_ns,
        gpu_stall_ns=stats.gpu.stall_ns,
        gpu_wall_ns=stats.gpu.wall_ns,
        request_ns=int(steps["request_ns"].max()),
    )
    _seen[loader] = now
    for name, value in _scalars(seen, now, steps).items():
        writer.add_scalar(f"{prefix}/{name}", value, global_step)


def _scalars(seen: _Seen, now: _Seen, steps: np.ndarray) -> dict[str, float]:
    wall_ns = now.wall_ns - seen.wall_ns
    native_wall_ns = now.native_wall_ns - seen.native_wall_ns
    stall_ns = now.data_wait_ns - seen.data_wait_ns
    if now.gpu_wall_ns > seen.gpu_wall_ns:
        wall_ns = now.gpu_wall_ns - seen.gpu_wall_ns
        stall_ns = now.gpu_stall_ns - seen.gpu_stall_ns
    stall = min(1.0, stall_ns / wall_ns) if wall_ns > 0 else 0.0
    p50_ns, p99_ns = np.percentile(steps["data_wait_ns"], (50, 99))
    scalars = {
        "au": 1 - stall,
        "stall": stall,
        "wait_p50_ms": float(p50_ns) / 1e6,
        "wait_p99_ms": float(p99_ns) / 1e6,
    }
    if now.samples > seen.samples and native_wall_ns > 0:
        scalars["images_per_second"] = (now.samples - seen.samples) / (native_wall_ns / 1e9)
    measured = steps["gpu_stall_ns"][steps["gpu_known"] > 0]
    if len(measured):
        scalars["gpu_stall_ms"] = float(measured.mean()) / 1e6
    for name in CAUSES:
        mean_ns = float(steps[name].mean())
        scalars[f"wait_ms/{name.removesuffix('_ns')}"] = mean_ns / 1e6
    if any(steps[name].any() for name in STORAGE_PARTS if name != "storage_local_ns"):
        for name in STORAGE_PARTS:
            part = name.removeprefix("storage_").removesuffix("_ns")
            scalars[f"storage_wait_ms/{part}"] = float(steps[name].mean()) / 1e6
    return scalars
