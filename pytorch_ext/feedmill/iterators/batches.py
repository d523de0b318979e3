"""Batches in flight: their state, and the lookup of their samples in the dataset."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch

from feedmill.iterators.pillow_fallback import check_regular
from feedmill.planner.array_samples import Rows
from feedmill.planner.samples import Item, NotNative, Source
from feedmill.remote.names import shown

_INT64 = 1 << 63
# Marks a missing result, since a collate_fn may return None.
NOTHING = object()


class Batch:
    """A batch in flight: its indices were pulled from the sampler, it is not yet delivered.

    Attributes:
        number: counts the batches of this iterator, from 0.
        turn: counts them from the epoch's begin, also if the iterator goes on at a saved position.
            Decides which of torch's workers would make the batch.
        indices: from the sampler, if the samples may have to be looked up again.
        items: its samples, up to the first index that the dataset rejects.
        fail: raises the error of that index; None: no index was rejected. It must not refer to the
            iterator: that cycle would keep it alive until the garbage collector runs.
        error: what is raised in place of the batch; None: nothing.
        done: if the batch is collated ahead of its turn, set when that is finished or has failed.
        data: the collate_fn's result if it was called ahead of the batch's turn, else NOTHING.
        ready_ns: when ``data`` was ready, on the monotonic clock.
        last_part: number of the batch's last part in the native loader's epoch; -1: it has none.
        n_submitted, n_parts: samples submitted so far, and in how many native batches. A batch that
            is larger than the native loader's batch size is split into parts.
        parts: the images, or lists of arrays' tensors or of views, of each part received so far.
        owners: of each part whose memory an allocator gave: (the tensor that owns the memory,
            number of samples).
        labels: with a device: the targets of each part on the device, if all are ints.
        occurrences: of each submitted sample, how often its index came before in the epoch; filled
            for native="verify".
        replaced: on_error="replace": place in the batch -> target of the replacement.
        skipped: on_error="skip": places in the batch without a sample.
        own: the samples as the dataset itself made them, if one can't be loaded natively and the
            dataset catches its error; None: they are native.
        n_bad: number of samples that could not be loaded.
        failed: place of the sample whose error is raised in the place of the batch; -1: none.
    """

    __slots__ = (
        "data", "done", "error", "fail", "failed", "indices", "items", "labels", "last_part",
        "n_bad", "n_parts", "n_submitted", "number", "occurrences", "own", "owners", "parts",
        "ready_ns", "replaced", "skipped", "turn",
    )

    def __init__(self, number: int, n_before: int = 0) -> None:
        self.number = number
        self.turn = n_before + number
        self.done = threading.Event()
        self.data: Any = NOTHING
        self.ready_ns = 0
        self.last_part = -1
        self.indices: Any = None
        self.items: Sequence[Item] = []
        self.fail: Callable[[], Any] | None = None
        self.error: Any = None
        self.forget_submission()

    def forget_submission(self) -> None:
        """Resets the batch to the state before it was submitted to a native loader."""
        self.n_submitted = 0
        self.n_parts = 0
        self.parts: list[Any] = []
        self.owners: list[tuple[torch.Tensor, int]] = []
        self.labels: list[torch.Tensor] = []
        self.occurrences: list[int] = []
        self.replaced: dict[int, Any] = {}
        self.skipped: set[int] = set()
        self.own: list[Any] | None = None
        self.n_bad = 0
        self.failed = -1

    def targets(self) -> list[Any]:
        """The targets of the samples in the batch, replacements included."""
        targets = [item.target for item in self.items]
        for place, target in self.replaced.items():
            targets[place] = target
        if self.skipped:
            targets = [one for i, one in enumerate(targets) if i not in self.skipped]
        return targets

    def images(self, view: int | None = None) -> list[torch.Tensor]:
        """The images of the batch in parts, without skipped samples.

        Args:
            view: which, if the samples have several.
        """
        parts = self.parts if view is None else [part[view] for part in self.parts]
        if not self.skipped:
            return parts
        images = parts[0] if len(parts) == 1 else torch.cat(parts)
        kept = [i for i in range(len(self.items)) if i not in self.skipped]
        return [images[kept]]


def resolve(batch: Batch, source: Source, dataset: Any, indices: Any, auto_collation: bool) -> None:
    """Looks up the samples of a batch as the dataset would.

    Args:
        batch: its ``items`` and, if an index is rejected, ``fail`` are set.
        source: the samples of the dataset.
        dataset: the DataLoader's.
        indices: from the sampler: with auto_collation a batch's indices, else a single index.
        auto_collation: whether torch forms batches.
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
    except Exception as error:  # raised by the iterator over the batch's indices
        batch.fail = partial(_raise_held, [error.with_traceback(None)])
        return
    batch.items = source.together(items)
    if again is not None:
        batch.fail = partial(_fail_again, again, dataset)


def _raise_held(held: list[Exception]) -> None:
    """Raises an exception without keeping it in a frame, which would form a reference cycle."""
    raise held.pop()


def _fail_again(again: Callable[[], Any], dataset: Any) -> None:
    """Repeats a failed lookup, to raise its error, or that only torch's path can load the
    sample."""
    refused = None
    try:
        again()
    except NotNative as error:
        refused = (error.index, error.path, str(error))
    if refused is not None:
        _refuse(dataset, *refused)
    raise RuntimeError("the lookup of a sample failed once and succeeded when it was repeated")


def _refuse(dataset: Any, index: Any, path: Any, why: str) -> None:
    """Raises the dataset's own error for an index or, if there is none, that the sample can be
    loaded on torch's path only."""
    if path is not None:
        check_regular(path)
    dataset[index]
    raise RuntimeError(
        f"dataset index {index!r}, file {repr(shown(path))[:300]}, can be loaded on torch's path "
        f"only: {why}; use native='off'"
    )


def submit_items(
    handle: Any,
    items: Sequence[Item],
    may_have_data: bool = True,
    labels: list[int] | None = None,
) -> bool:
    """Submits a batch of samples to a native loader; False: its queue is full now.

    Args:
        handle: the native loader.
        items: the samples.
        may_have_data: some samples may be encoded images or parts of files, not whole files.
        labels: targets to copy to the device; None: none.
    """
    is_accepted: bool
    if not isinstance(items, Rows) and items and items[0].paths:
        if labels is not None:
            labels = [one for item, one in zip(items, labels) for _ in item.paths]
        items = [one for item in items for one in item.files()]
    if isinstance(items, Rows):
        is_accepted = handle.submit_rows(items.indices, items.rows)
        return is_accepted
    indices, paths = [item[0] for item in items], [item[1] for item in items]
    data = [item.data for item in items] if may_have_data else None
    is_accepted = handle.submit(indices, paths, data, labels)
    return is_accepted


def labels_of(items: Sequence[Item]) -> list[int] | None:
    """The targets if all are ints that fit in int64; else None."""
    targets = [item.target for item in items]
    are_int64 = all(type(one) is int and -_INT64 <= one < _INT64 for one in targets)
    return targets if are_int64 else None
