"""Batches on their way: indices from the sampler, looked up in the dataset."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch

from feedmill.iterators.pillow_fallback import check_regular
from feedmill.planner.arrays import Rows
from feedmill.planner.samples import Item, NotNative, Source

_INT64 = 1 << 63
# No result: a collate_fn may return None.
NOTHING = object()


class Batch:
    """A batch on its way: pulled from the sampler, not yet delivered."""

    __slots__ = (
        "data", "done", "error", "fail", "items", "labels", "last_part", "n_parts", "n_submitted",
        "number", "occurrences", "owners", "parts", "ready_ns", "replaced", "skipped",
    )

    def __init__(self, number: int) -> None:
        self.number = number
        # Ahead of its turn: set when the batch is finished, in whatever way.
        self.done = threading.Event()
        # The collate_fn's result, if it was called already; when; and the number of the batch's
        # last part in the native loader's epoch, -1: it has none.
        self.data: Any = NOTHING
        self.ready_ns = 0
        self.last_part = -1
        # The samples before the first index that the dataset does not take.
        self.items: Sequence[Item] = []
        # Raises what the dataset or torch raises behind those samples; None: nothing. It must not
        # refer to the iterator, which would then wait for the garbage collector.
        self.fail: Callable[[], Any] | None = None
        # What the caller gets in place of the batch.
        self.error: Any = None
        self.forget_submission()

    def forget_submission(self) -> None:
        # A batch larger than the native loader's goes there in several parts.
        self.n_submitted = 0
        self.n_parts = 0
        self.parts: list[Any] = []
        # Of each part, what owns its memory, where an allocator gave it; and its samples.
        self.owners: list[tuple[torch.Tensor, int]] = []
        # With a device: the targets of each part, there, as far as they are all ints.
        self.labels: list[torch.Tensor] = []
        # Of the submitted samples, where somebody counts them: uses of the index before.
        self.occurrences: list[int] = []
        # What on_error= made of samples that can't be loaded: by their place among the items, the
        # target of what stands there; and the places that hold nothing.
        self.replaced: dict[int, Any] = {}
        self.skipped: set[int] = set()

    def targets(self) -> list[Any]:
        """Those of the samples that the batch has."""
        targets = [item.target for item in self.items]
        for place, target in self.replaced.items():
            targets[place] = target
        if self.skipped:
            targets = [one for i, one in enumerate(targets) if i not in self.skipped]
        return targets

    def images(self) -> list[torch.Tensor]:
        """The parts, without what was skipped."""
        if not self.skipped:
            return self.parts
        images = self.parts[0] if len(self.parts) == 1 else torch.cat(self.parts)
        kept = [i for i in range(len(self.items)) if i not in self.skipped]
        return [images[kept]]


def resolve(batch: Batch, source: Source, dataset: Any, indices: Any, auto_collation: bool) -> None:
    """Looks the samples of a batch up, as the dataset would.

    Args:
        batch: gets its items, or what fails behind them.
        source: of the dataset.
        dataset: the DataLoader's.
        indices: what the sampler gave: with auto_collation of all samples, else of the only one.
        auto_collation: whether torch makes batches.
    """
    if not auto_collation:
        indices = [indices]
    gathered = source.gather(indices)
    if gathered is not None:
        batch.items = gathered
        return
    items: list[Item] = []
    batch.items = items
    try:
        asked = iter(indices)
    except TypeError:
        batch.fail = partial(iter, indices)
        return
    try:
        again = source.fill(items, asked)
    except Exception as error:  # of the batch's own iterator
        batch.fail = partial(_raise_held, [error.with_traceback(None)])
        return
    batch.items = source.together(items)
    if again is not None:
        batch.fail = partial(_fail_again, again, dataset)


def _raise_held(held: list[Exception]) -> None:
    """Raises an exception that no frame refers to: together they would be a cycle."""
    raise held.pop()


def _fail_again(again: Callable[[], Any], dataset: Any) -> None:
    """Raises what the look-up raises, or that only torch's path can load the sample."""
    refused = None
    try:
        again()
    except NotNative as error:
        refused = (error.index, error.path, str(error))
    if refused is not None:
        _refuse(dataset, *refused)
    raise RuntimeError("a sample could not be looked up at first, but could be later")


def _refuse(dataset: Any, index: Any, path: Any, why: str) -> None:
    """Raises what the dataset raises for the index, or that it is not for the native path."""
    if path is not None:
        check_regular(path)
    dataset[index]
    raise RuntimeError(
        f"dataset index {index!r}, file {repr(path)[:300]}, can be loaded on torch's path only: "
        f"{why}; use native='off'"
    )


def submit_items(
    handle: Any,
    items: Sequence[Item],
    may_have_data: bool = True,
    labels: list[int] | None = None,
) -> bool:
    """Submits a batch of samples to a native loader; False: it has no room now."""
    is_taken: bool
    if isinstance(items, Rows):
        is_taken = handle.submit_rows(items.indices, items.rows)
        return is_taken
    indices, paths = [item[0] for item in items], [item[1] for item in items]
    data = [item.data for item in items] if may_have_data else None
    is_taken = handle.submit(indices, paths, data, labels)
    return is_taken


def labels_of(items: Sequence[Item]) -> list[int] | None:
    """The targets, if they are ints that torch makes a tensor of int64 of; else None."""
    targets = [item.target for item in items]
    is_plain = all(type(one) is int and -_INT64 <= one < _INT64 for one in targets)
    return targets if is_plain else None
