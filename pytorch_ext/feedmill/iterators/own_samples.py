"""Has a dataset make the samples of a batch as torch's worker does, generators included."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from feedmill._internals import MapFetcher
from feedmill.iterators.global_generators import Held, drawing_from


def make_samples(dataset: Any, auto_collation: bool, indices: Any, held: Held) -> list[Any]:
    """The samples of a batch.

    Args:
        dataset: the DataLoader's.
        auto_collation: whether torch forms batches.
        indices: of the batch; without auto_collation a single index.
        held: the states of the generators before the batch, and afterwards those behind it, also
            if an error is raised.
    """
    fetcher = MapFetcher(dataset, auto_collation, _same, drop_last=False)
    with drawing_from(held.states, held):
        made = fetcher.fetch(indices)
    return made if auto_collation else [made]


def _same(samples: Any) -> Any:
    return samples


@contextmanager
def one_thread(is_worker: bool) -> Iterator[None]:
    """While active, torch computes with one thread, as in its worker processes."""
    before = torch.get_num_threads()
    if is_worker:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        if is_worker:
            torch.set_num_threads(before)
