"""Scalars of a loader for TensorBoard, or anything else with an add_scalar()."""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from typing import Any

import numpy as np

from feedmill.profiling.counting.records import CAUSES


@dataclass(frozen=True)
class _Seen:
    """What was known at a loader's latest call."""

    wall_ns: int = 0
    data_wait_ns: int = 0
    samples: int = 0
    native_wall_ns: int = 0
    gpu_stall_ns: int = 0
    gpu_wall_ns: int = 0
    request_ns: int = 0


_seen: weakref.WeakKeyDictionary[Any, _Seen] = weakref.WeakKeyDictionary()


def log_scalars(writer: Any, loader: Any, global_step: int, prefix: str = "feedmill") -> None:
    """Writes what a loader's steps waited for since the latest call for it, or since its start.

        writer = torch.utils.tensorboard.SummaryWriter()
        ...
        if step % 100 == 0:
            feedmill.log_scalars(writer, loader, step)

    Nothing is written where there was no step. The scalars:

    - au: accelerator utilization, 1 less the share of the time for which the GPU waited for a batch
      or, where no GPU is in use, that steps waited for data.
    - stall: that share.
    - gpu_stall_ms: mean of the steps that the GPU's clock measured, where there are any.
    - wait_p50_ms, wait_p99_ms: of the steps' waits for data.
    - images_per_second: natively. On torch's path, and of a watched loader, samples are not
      counted.
    - wait_ms/<cause>: mean of a step, for each cause in ``Stats.steps``.

    Args:
        writer: anything with add_scalar(tag, value, global_step), such as TensorBoard's
            SummaryWriter.
        loader: a feedmill.DataLoader, or what feedmill.watch() gives.
        global_step: the training step that the scalars belong to.
        prefix: of the tags: "feedmill/au".
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
        native_wall_ns=stats.waits.wall_ns - stats.waits.torch_wall_ns,
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
    return scalars
