"""How far an epoch has come: which of its batches were delivered to the script.

Batches are pulled from the sampler ahead of their turn. A position counts those that were
delivered, or whose error was raised; it is kept for each pulled batch until that is delivered.
"""

from __future__ import annotations

import copy
import functools
import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple, SupportsIndex

import numpy as np
import torch
from torch.utils.data import BatchSampler, DistributedSampler

from feedmill.planner.epochs import sampler_epoch
from feedmill.planner.orders import (
    Order,
    OrderError,
    counts_samples,
    innermost,
    load_copy,
    repeats_nothing,
    stateful_sampler,
)
from feedmill.planner.ranks import ranks_of


class Mark(NamedTuple):
    """A position after some batches.

    Attributes:
        n_batches, n_samples: delivered so far.
        total: sum of the samples' indices; None: not known.
        ends: the first and the last index; empty: there is none, or it is not known.
    """

    n_batches: int = 0
    n_samples: int = 0
    total: int | None = 0
    ends: tuple[int, ...] = ()

    def after(self, indices: Any, is_batch: bool) -> Mark:
        """The position after one more batch or, if it is none, after one more index of any type."""
        n_batches, n_samples, total_before, ends_before = self
        n, total, ends = _summary(indices if is_batch or type(indices) is int else [indices])
        if total is None or total_before is None or n is None:
            return Mark(n_batches + 1, n_samples + (n or 0), None)
        if ends:
            ends = (ends_before[0], ends[1]) if ends_before else ends
        else:
            ends = ends_before
        return Mark(n_batches + 1, n_samples + n, total_before + total, ends)


def _summary(indices: Any) -> tuple[int | None, int | None, tuple[int, ...]]:
    """Number, sum and ends (first and last) of a batch's indices; None for what is not known. Runs
    no code of the indices' classes, apart from that of NumPy and torch."""
    kind = type(indices)
    if kind is int:
        return 1, indices, (indices, indices)
    if kind in (np.ndarray, torch.Tensor) and indices.ndim == 1:
        indices = indices.tolist()
    elif kind is not list and kind is not tuple:
        return None, None, ()
    if not indices:
        return 0, 0, ()
    first, last = indices[0], indices[-1]
    if type(first) is not int or type(last) is not int:
        return len(indices), None, ()
    try:
        total = sum(indices)
    except Exception:
        total = None
    if type(total) is not int:
        return len(indices), None, ()
    return len(indices), total, (first, last)


class Progress:
    """The progress of one epoch.

    Args:
        loader: the DataLoader.
        number: of the epoch, as state.epochs.next_number before it begins.
        saved: position() of an earlier process, at which the epoch begins. None: at its start.
        is_strict: raise OrderError if the sampler's indices are not those of ``saved``.
        n_samples: length of the dataset, if its samples draw random numbers natively, so that it
            matters how often an index was used before; else 0.

    Attributes:
        sampler_epoch: what set_epoch() was called with, as the epoch began.
        refusal: why the epoch can't be resumed; "": it can.
        was_used: an iterator of torch's takes its indices from here.
        records: the iterator over ``sampler`` calls note(), as torch's own iterators don't.
        is_finished: the epoch has ended.
        workers: with rng="torch", the saved generators of torch's workers with which the iterator
            begins; None: those of new workers.
        virtual: with rng="torch", the generators of torch's workers; None: the epoch has none.
    """

    workers: Any = None
    virtual: Any = None

    def __init__(
        self,
        loader: Any,
        number: int,
        saved: dict[str, Any] | None = None,
        *,
        is_strict: bool = True,
        n_samples: int = 0,
        records: bool = False,
    ) -> None:
        self.number = number
        self.index_sampler = loader._index_sampler
        self.counts_samples = counts_samples(self.index_sampler, loader._auto_collation)
        self.sampler_epoch = sampler_epoch(loader)
        self.refusal = ""
        self.was_used = False
        self.records = records
        self.is_finished = False
        self.n_under_seed = 0
        self.base_seed: int | None = None
        self._gives_batches = loader._auto_collation or type(self.index_sampler) is BatchSampler
        self._saved, self._is_strict = saved, is_strict
        self._n_samples = n_samples
        self._stateful = stateful_sampler(self.index_sampler)
        # Of _stateful, as the epoch began.
        self._sampler_state: Any = None if saved is None else saved.get("sampler")
        self.order = Order(loader, self.index_sampler, saved and saved["order"])
        self._mark = Mark() if saved is None else _saved_mark(saved)
        self._pulled: dict[int, Mark] = {}
        self._latest, self._n_noted, self._n_delivered = self._mark, 0, 0
        self._n_bad = 0 if saved is None else saved["bad"]
        self._uses_before: bytes | None = None
        place = None if saved is None else saved.get("ranks")
        self._ranks = ranks_of(
            self.index_sampler, place, self._mark.n_samples, self._mark.n_batches
        )
        if saved is not None:
            self.base_seed, self.n_under_seed = saved["seed"], saved["n_under_seed"]

    @property
    def is_resumed(self) -> bool:
        """Whether the epoch goes on at a saved position."""
        return self._saved is not None

    @property
    def n_samples(self) -> int:
        """Number of samples delivered so far."""
        return self._mark.n_samples

    @property
    def n_left(self) -> int:
        """Number of indices after the delivered ones, of a sampler that gives single indices; else
        of batches."""
        if self._ranks is not None:
            return self._ranks.n_left(self._n_units)
        return len(innermost(self.index_sampler)) - self._n_units

    @property
    def _n_units(self) -> int:
        return self._mark.n_samples if self.counts_samples else self._mark.n_batches

    @property
    def n_batches(self) -> int:
        """Number of batches delivered so far."""
        return self._mark.n_batches

    @property
    def n_bad(self) -> int:
        """Number of delivered samples that on_error= applied to."""
        return self._n_bad

    # ---- called by the iterators -----------------------------------------------------------------

    @contextmanager
    def lent_by(self, loader: Any) -> Iterator[None]:
        """While torch's constructor makes an iterator for this epoch: makes it take its indices
        from here."""
        state = loader._feedmill
        state.lent_sampler = NotedSampler(self)
        try:
            yield
        finally:
            state.lent_sampler = None

    @contextmanager
    def begins_in(self, iterator: Any) -> Iterator[None]:
        """While an iterator is reset for this epoch: makes it take its indices from here."""
        iterator._index_sampler = NotedSampler(self)
        try:
            yield
        finally:
            iterator._index_sampler = self.index_sampler

    def begin(self, base_seed: int, n_under_seed: int) -> tuple[int, int]:
        """Called when the epoch begins, with the seed that was drawn for it and the number of
        earlier epochs under that seed. Returns those that count."""
        if self.base_seed is None:
            self.base_seed, self.n_under_seed = base_seed, n_under_seed
        return self.base_seed, self.n_under_seed

    def note(self, number: int, indices: Any) -> None:
        """Called when a batch was pulled. ``number`` counts from 0 at the position at which this
        iterator began. May be called again for the same batch."""
        if number < self._n_noted:
            return
        mark = self._latest.after(indices, self._gives_batches)
        self._pulled[number] = mark
        self._latest, self._n_noted = mark, number + 1

    def delivered(self, number: int, n_bad: int = 0) -> None:
        """Called when a batch was delivered, or its error raised. Counts the batches before it,
        too. ``n_bad``: samples of the batch that on_error= applied to."""
        while self._n_delivered <= number:
            self._mark = self._pulled.pop(self._n_delivered, self._mark)
            self._n_bad += n_bad
            self._n_delivered += 1

    def delivered_all_before(self, n: int) -> None:
        """Called when the first n batches of this iterator were delivered."""
        if n > 0:
            self.delivered(n - 1)

    def ended(self) -> None:
        """Called when the sampler's end was reported to the script."""
        self.is_finished = True

    def uses(self) -> bytes | None:
        """How often each index was used before this iterator's first batch, as a uint32 for each
        sample; None: never. The first batch must have been pulled."""
        return self._uses_before

    # ---- the sampler -----------------------------------------------------------------------------

    def iterate(self) -> Iterator[Any]:
        """Makes the iterator over the batches' indices that torch's iterator pulls from."""
        self.was_used = True
        iterator: Iterator[Any]
        if self._saved is None:
            self._note_sampler_state()
            self.order.note_iter()
            iterator = iter(self.index_sampler)
        else:
            later = _Later(self._remaining)
            iterator = itertools.chain(later, later)
        return _Noting(iterator, self) if self.records else iterator

    def _note_sampler_state(self) -> None:
        """Notes the state that a sampler has as the epoch begins: once, as some are large."""
        if self._stateful is None:
            return
        try:
            self._sampler_state = copy.deepcopy(self._stateful.state_dict())
        except Exception as error:  # it may be meant for something else
            self.refusal = f"{type(self._stateful).__qualname__}.state_dict() failed: {error!r}"

    def _remaining(self) -> Iterator[Any]:
        """The iterator over the batches' indices after the saved position."""
        load = None
        if self._stateful is not None and self._saved is not None:
            load = functools.partial(load_copy, self._stateful, self._sampler_state)
        if self._ranks is not None and self._ranks.is_dealt_again:
            # No rank gets an index twice but to pad the end, so that none needs to be counted.
            whole = self.order.again(lambda _: False, load, self._ranks.deal)
        else:
            whole = self.order.again(self._skip, load)
        if type(self.index_sampler) is BatchSampler:
            again = BatchSampler(whole, self.index_sampler.batch_size, self.index_sampler.drop_last)
            return iter(again)
        return whole

    def _skip(self, iterator: Iterator[Any]) -> bool:
        """Skips the delivered samples. False if there are none."""
        mark = self._mark
        n = mark.n_samples if self.counts_samples else mark.n_batches
        skipped = list(itertools.islice(iterator, n))
        if not self.counts_samples:
            skipped = _flat(skipped, self._n_samples > 0)
        if self._is_strict:
            self._check(skipped, mark)
        if self._n_samples and not repeats_nothing(self.index_sampler):
            self._uses_before = _counts(skipped, self._n_samples)
        return n > 0

    def _check(self, skipped: list[Any], mark: Mark) -> None:
        if mark.total is None:
            return
        n, total, ends = _summary(skipped)
        if (n, total, ends) != (mark.n_samples, mark.total, mark.ends):
            raise OrderError(
                f"the order of the samples is not that of the saved state: its first "
                f"{mark.n_samples:,} indices ended with {mark.ends[-1:]}, and "
                f"{type(self.index_sampler).__name__} gives others now; restore its seed, epoch "
                "and generators, or insist with load_state_dict(state, strict=False)"
            )

    # ---- the state -------------------------------------------------------------------------------

    def position(self) -> dict[str, Any]:
        """The position as JSON values, from which a Progress in another process goes on."""
        mark = self._mark
        # One rank's state is often loaded by all ranks.
        is_of_rank = self._ranks is not None or isinstance(
            innermost(self.index_sampler), DistributedSampler
        )
        position: dict[str, Any] = {
            "unit": "samples" if self.counts_samples else "batches",
            "batches": mark.n_batches,
            "samples": mark.n_samples,
            "indices": None if mark.total is None or is_of_rank else [mark.total, *mark.ends],
            "seed": self.base_seed,
            "n_under_seed": self.n_under_seed,
            "bad": self._n_bad,
            "order": self.order.values(),
        }
        if self._ranks is not None:
            position["ranks"] = self._ranks.place(self._n_units)
        if self._stateful is not None:
            position["sampler"] = copy.deepcopy(self._sampler_state)
        return position


def _saved_mark(saved: dict[str, Any]) -> Mark:
    indices = saved["indices"]
    return Mark(
        saved["batches"],
        saved["samples"],
        None if indices is None else indices[0],
        () if indices is None else tuple(indices[1:]),
    )


def _flat(batches: list[Any], is_counted: bool) -> list[Any]:
    """The indices of batches. Raises OrderError if ``is_counted``, as equal ones must be found, and
    one is no int."""
    flat: list[Any] = []
    for batch in batches:
        if type(batch) in (list, tuple):
            flat.extend(batch)
        elif type(batch) in (np.ndarray, torch.Tensor):
            flat.extend(batch.reshape(-1).tolist())
        elif isinstance(batch, SupportsIndex) or not is_counted:
            flat.append(batch)
        else:
            raise OrderError(f"the indices of a {type(batch).__qualname__} can't be counted")
    return flat


def _counts(indices: list[Any], n_samples: int) -> bytes | None:
    """The number of times that each index of the dataset occurs; None if none does."""
    try:
        numbers = np.fromiter(indices, np.int64, len(indices))
    except (TypeError, ValueError, OverflowError) as error:
        raise OrderError(f"the indices of the sampler can't be counted: {error}") from None
    numbers = numbers[(-n_samples <= numbers) & (numbers < n_samples)]
    if not len(numbers):
        return None
    return np.bincount(numbers % n_samples, minlength=n_samples).astype(np.uint32).tobytes()


class NotedSampler:
    """In the place of a loader's index sampler while an iterator of torch's is made: notes what the
    order depends on, and begins at the saved position."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress

    def __iter__(self) -> Iterator[Any]:
        return self._progress.iterate()

    def __len__(self) -> int:
        return len(self._progress.index_sampler)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._progress.index_sampler, name)


class _Later:
    """An iterator that is made by a function at the first request. chain(later, later) gives its
    values: the first pass over this object makes it, the second one is over the iterator itself.
    If the function raises, the next request calls it again.

    A Python function between the sampler and its caller would lose indices at a Ctrl-C.
    """

    def __init__(self, make: Callable[[], Iterator[Any]]) -> None:
        self._make = make
        self._made: Iterator[Any] | None = None

    def __iter__(self) -> Iterator[Any]:
        return self if self._made is None else self._made

    def __next__(self) -> Any:
        if self._made is None:
            self._made = self._make()
        raise StopIteration


class _Noting:
    """An iterator over a sampler for torch's own iterators, which notes each batch that they
    pull."""

    def __init__(self, iterator: Iterator[Any], progress: Progress) -> None:
        self._iterator, self._progress = iterator, progress
        self._n = 0

    def __iter__(self) -> _Noting:
        return self

    def __next__(self) -> Any:
        self._progress.order.note_draw()
        indices = next(self._iterator)
        self._progress.note(self._n, indices)
        self._n += 1
        return indices

    @property
    def n_pulled(self) -> int:
        return self._n
