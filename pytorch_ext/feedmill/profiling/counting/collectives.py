"""The times in which this process communicates with the other ranks, as its script marks them."""

from __future__ import annotations

import itertools
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from feedmill.profiling.counting.records import KEPT_STEPS

# (begin, end) of the latest blocks on the monotonic clock, oldest first.
_blocks: deque[tuple[int, int]] = deque(maxlen=KEPT_STEPS)
_thread = threading.local()  # .depth: the number of blocks that this thread is in


@contextmanager
def collective() -> Iterator[None]:
    """Marks where a training step communicates with the other ranks, for the report on stragglers.

        for images, targets in loader:
            loss = criterion(model(images), targets)
            with feedmill.collective():
                loss.backward()          # DistributedDataParallel exchanges gradients in here
            optimizer.step()

    A rank waits in a collective operation until the last rank has begun it. With these marks, the
    time that a rank's own training loop took is known apart from this wait, so that a report on all
    ranks (``loader.report(all_ranks=True)``, ``feedmill report run.*.jsonl``) finds a rank whose
    loop is slow. Without them it compares waits for batches only.

    All ranks must have the marks, at the same places. A step without a mark, such as one below
    ``no_sync()``, counts with the next step that has one. The fewer other things a block does, the
    better: what is slow inside of it is not found.

    The marks belong to the steps of all loaders of this process. They are ignored while CUDA is in
    use: the host is ahead of the GPU then, and its clock does not show where the GPU waits.
    """
    depth = getattr(_thread, "depth", 0)
    _thread.depth = depth + 1
    begin_ns = time.monotonic_ns()
    try:
        yield
    finally:
        _thread.depth = depth
        if not depth and not _is_cuda_in_use():
            _blocks.append((begin_ns, time.monotonic_ns()))


def _is_cuda_in_use() -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and torch.cuda.is_initialized()


def fill(steps: np.ndarray) -> None:
    """Sets the fields of step records (STEP_DTYPE) for the blocks that are still kept. A block
    belongs to the step in which it began."""
    if not len(steps) or not _blocks:
        return
    oldest_ns = int(steps["request_ns"].min())
    kept = itertools.takewhile(lambda one: one[0] >= oldest_ns, reversed(_blocks.copy()))
    blocks = np.array(list(kept), np.int64).reshape(-1, 2)[::-1]
    order = np.argsort(steps["request_ns"], kind="stable")
    requests = steps["request_ns"][order].astype(np.int64)
    returns = requests + steps["host_wait_ns"][order].astype(np.int64)
    ends = returns + steps["compute_ns"][order].astype(np.int64)
    at = np.searchsorted(requests, blocks[:, 0], "right") - 1
    # A block after an epoch's last step belongs to none.
    is_inside = (blocks[:, 0] >= returns[at]) & (blocks[:, 1] <= ends[at])
    at, blocks = at[is_inside], blocks[is_inside]
    for name in ("before_collective_ns", "collective_ns", "n_collectives"):
        steps[name][order[at]] = 0
    np.add.at(steps["collective_ns"], order[at], (blocks[:, 1] - blocks[:, 0]).astype(np.uint64))
    np.add.at(steps["n_collectives"], order[at], np.uint64(1))
    first, where = np.unique(at, return_index=True)  # blocks are in the order of their begin
    steps["before_collective_ns"][order[first]] = blocks[where, 0] - returns[first]
