"""How far an epoch has come: which of its batches were delivered to the script.

Batches are pulled from the sampler ahead of their turn. A position counts those that were
delivered, or whose error was raised; it is kept for each pulled batch until that is delivered.
"""

from __future__ import annotations

import base64
import copy
import itertools
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
from torch.utils.data import BatchSampler, DistributedSampler

from feedmill.planner.orders import (
    Order,
    OrderError,
    counts_samples,
    innermost,
    is_stateful,
    repeats_nothing,
    stateful_sampler,
)


class Mark(NamedTuple):
    """A position after some batches.

    Attributes:
        n_batches, n_samples: delivered so far.
        total: sum of the samples' indices; None: not known.
        ends: the first and the last index; empty: there is none, or it is not known.
        sampler, iterator: state_dict() of the sampler, and of its iterator; None: it has none.
        n_bad: samples that on_error= applied to.
    """

    n_batches: int = 0
    n_samples: int = 0
    total: int | None = 0
    ends: tuple[int, ...] = ()
    sampler: Any = None
    iterator: Any = None
    n_bad: int = 0

    def after(self, indices: Any, is_batch: bool) -> Mark:
        """The position after one more batch or, if it is none, after one more index of any type."""
        n, total, ends = _summary(indices if is_batch or type(indices) is int else [indices])
        if total is None or self.total is None or n is None:
            return self._replace(
                n_batches=self.n_batches + 1, n_samples=self.n_samples + (n or 0), total=None,
                ends=(),
            )
        return self._replace(
            n_batches=self.n_batches + 1,
            n_samples=self.n_samples + n,
            total=self.total + total,
            ends=(*self.ends[:1], *ends)[:1] + ends[-1:] if ends else self.ends,
        )


def _summary(indices: Any) -> tuple[int | None, int | None, tuple[int, ...]]:
    """Number, sum and ends of a batch's indices; None for what is not known."""
    if type(indices) is int:
        return 1, indices, (indices, indices)
    if type(indices) not in (list, tuple):
        return None, None, ()
    if not indices:
        return 0, 0, ()
    try:
        total = sum(indices)
    except TypeError:
        return len(indices), None, ()
    if type(total) is not int:
        return len(indices), None, ()
    return len(indices), total, (int(indices[0]), int(indices[-1]))


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
        sampler: passed to torch's iterators in the place of the loader's index sampler.
        records: the iterator over ``sampler`` calls note(), as torch's own iterators don't.
        is_finished: the epoch has ended.
    """

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
        self.sampler = NotedSampler(self)
        self.records = records
        self.is_finished = False
        self.n_under_seed = 0
        self.base_seed: int | None = None
        self._gives_batches = loader._auto_collation or type(self.index_sampler) is BatchSampler
        self._saved, self._is_strict = saved, is_strict
        self._n_samples = n_samples
        self._stateful = stateful_sampler(self.index_sampler)
        self._iterator: Any = None
        self._has_state = self._stateful is not None
        self.order = Order(loader, self.index_sampler, saved and saved["order"])
        self._mark = Mark() if saved is None else _saved_mark(saved)
        self._pulled: dict[int, tuple[Mark, Any]] = {}
        self._latest, self._n_noted, self._n_delivered = self._mark, 0, 0
        # Of a sampler that is not advanced from the start: the uses of each index so far.
        self._uses: dict[int, int] = _decoded_uses(saved["uses"]) if saved else {}
        self._uses_before: bytes | None = None
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
    def n_bad(self) -> int:
        """Number of delivered samples that on_error= applied to."""
        return self._mark.n_bad

    # ---- called by the iterators -----------------------------------------------------------------

    @contextmanager
    def lent_by(self, loader: Any) -> Iterator[None]:
        """While torch's constructor makes an iterator for this epoch: makes it take its indices
        from here."""
        state = loader._feedmill
        state.lent_sampler = self.sampler
        try:
            yield
        finally:
            state.lent_sampler = None

    @contextmanager
    def begins_in(self, iterator: Any) -> Iterator[None]:
        """While an iterator is reset for this epoch: makes it take its indices from here."""
        iterator._index_sampler = self.sampler
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
        kept = None
        if self._has_state:
            mark = mark._replace(**self._sampler_states())
            kept = indices if self._n_samples else None
        self._latest = mark
        self._pulled[number] = mark, kept
        self._n_noted = number + 1

    def delivered(self, number: int, n_bad: int = 0) -> None:
        """Called when a batch was delivered, or its error raised. Counts the batches before it,
        too. ``n_bad``: samples of the batch that on_error= applied to."""
        while self._n_delivered <= number:
            mark, indices = self._pulled.pop(self._n_delivered, (self._mark, None))
            self._mark = mark._replace(n_bad=self._mark.n_bad + n_bad)
            for index in _flat([indices]) if indices is not None else ():
                index %= self._n_samples
                self._uses[index] = self._uses.get(index, 0) + 1
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
        if self._saved is None:
            self._note_initial_state()
            self.order.note_iter()
            self._iterator = iterator = iter(self.index_sampler)
            self._has_state = self._stateful is not None or is_stateful(iterator)
        else:
            later = _Later(self._remaining)
            iterator = itertools.chain(later, later)
        return _Noting(iterator, self) if self.records else iterator

    def _note_initial_state(self) -> None:
        if self._stateful is not None:
            state = copy.deepcopy(self._stateful.state_dict())
            self._mark = self._latest = self._mark._replace(sampler=state)

    def _sampler_states(self) -> dict[str, Any]:
        states = {}
        if self._stateful is not None:
            states["sampler"] = copy.deepcopy(self._stateful.state_dict())
        if is_stateful(self._iterator):
            states["iterator"] = copy.deepcopy(self._iterator.state_dict())
        return states

    def _remaining(self) -> Iterator[Any]:
        """The iterator over the batches' indices after the saved position."""
        mark = self._mark
        if (self._stateful is not None and mark.sampler is not None) or mark.iterator is not None:
            return self._from_states(mark)
        whole = self.order.again(self._skip)
        if type(self.index_sampler) is BatchSampler:
            again = BatchSampler(whole, self.index_sampler.batch_size, self.index_sampler.drop_last)
            return iter(again)
        return whole

    def _from_states(self, mark: Mark) -> Iterator[Any]:
        """Lets a sampler go on that saves its own position."""
        if self._stateful is not None:
            self._stateful.load_state_dict(copy.deepcopy(mark.sampler))
        iterator: Iterator[Any] = iter(self.index_sampler)
        self._iterator = iterator
        if mark.iterator is not None and is_stateful(iterator):
            self._iterator.load_state_dict(copy.deepcopy(mark.iterator))
        self._has_state = True
        if self._uses and self._n_samples:
            counts = np.zeros(self._n_samples, np.uint32)
            for index, n in self._uses.items():
                counts[index % self._n_samples] += n
            self._uses_before = counts.tobytes()
        return iterator

    def _skip(self, iterator: Iterator[Any]) -> bool:
        """Skips the delivered samples. False if there are none."""
        mark = self._mark
        n = mark.n_samples if self.counts_samples else mark.n_batches
        skipped = list(itertools.islice(iterator, n))
        if not self.counts_samples:
            skipped = _flat(skipped)
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
        is_of_rank = isinstance(innermost(self.index_sampler), DistributedSampler)
        position: dict[str, Any] = {
            "unit": "samples" if self.counts_samples else "batches",
            "batches": mark.n_batches,
            "samples": mark.n_samples,
            "indices": None if mark.total is None or is_of_rank else [mark.total, *mark.ends],
            "seed": self.base_seed,
            "n_under_seed": self.n_under_seed,
            "bad": mark.n_bad,
            "order": self.order.values(),
            "uses": _encoded_uses(self._uses),
        }
        if mark.sampler is not None:
            position["sampler"] = copy.deepcopy(mark.sampler)
        if mark.iterator is not None:
            position["sampler_iter"] = copy.deepcopy(mark.iterator)
        return position


def _saved_mark(saved: dict[str, Any]) -> Mark:
    indices = saved["indices"]
    return Mark(
        saved["batches"],
        saved["samples"],
        None if indices is None else indices[0],
        () if indices is None else tuple(indices[1:]),
        saved.get("sampler"),
        saved.get("sampler_iter"),
        saved["bad"],
    )


def _flat(batches: list[Any]) -> list[Any]:
    flat: list[Any] = []
    for batch in batches:
        if type(batch) in (list, tuple):
            flat.extend(batch)
        else:
            flat.append(batch)
    return flat


def _counts(indices: list[Any], n_samples: int) -> bytes | None:
    """The number of times that each index occurs; None if none does."""
    if not indices:
        return None
    try:
        numbers = np.fromiter(indices, np.int64, len(indices))
        if numbers.min() < 0:
            numbers %= n_samples
    except (TypeError, ValueError):
        return None
    return np.bincount(numbers, minlength=n_samples).astype(np.uint32).tobytes()


def _encoded_uses(uses: dict[int, int]) -> str:
    """Indices with their number of uses, as text; "" if there are none."""
    if not uses:
        return ""
    counts = np.zeros(max(uses) + 1, np.uint32)
    for index, n in uses.items():
        counts[index] = n
    packed = zlib.compress(counts.astype(np.uint8 if counts.max() < 256 else np.uint32).tobytes())
    return f"{1 if counts.max() < 256 else 4}:{base64.b64encode(packed).decode()}"


def _decoded_uses(text: str) -> dict[int, int]:
    if not text:
        return {}
    width, _, packed = text.partition(":")
    kind = np.uint8 if width == "1" else np.uint32
    counts = np.frombuffer(zlib.decompress(base64.b64decode(packed)), kind)
    return {int(index): int(counts[index]) for index in np.flatnonzero(counts)}


class NotedSampler:
    """In the place of a loader's index sampler while an iterator of torch's is made: notes what the
    order depends on, and begins at the saved position."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self.was_used = False

    def __iter__(self) -> Iterator[Any]:
        self.was_used = True
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
