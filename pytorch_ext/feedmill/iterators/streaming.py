"""The iterator of a DataLoader whose dataset is a pipeline of webdataset or an IterableDataset of
Hugging Face, on the native path.

The dataset runs in this process, once for each of torch's workers, as it would run there, but
yields samples whose images were not decoded; see ``planner.streams``. Batches come in the order in
which torch's workers deliver them: each worker's next one in turn, without those that have ended.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

import torch

from feedmill._internals import make_worker_info, set_worker_info
from feedmill.engine.config import Config
from feedmill.iterators.batches import Batch
from feedmill.iterators.generator_states import VirtualWorkers
from feedmill.iterators.native import NativeDataLoaderIter
from feedmill.planner.failing_stages import taken_from
from feedmill.planner.left_out import LeftOut, Mark, Replayed
from feedmill.planner.sample_streams import Run, SampleStream
from feedmill.planner.samples import Item


class Part(NamedTuple):
    """What a worker makes a batch of.

    Attributes:
        turn: of the batch. Turns of workers that have ended are left out.
        items: its samples, up to the first one that the pipeline could not yield.
        fail: raises the error of that one; None: there is none.
        is_left_out: torch's worker makes these samples in vain, before those of its next batch, as
            there are too few for a batch.
        before: samples that it makes in vain before this batch's.
        mark: where in the worker's pipeline these samples begin, if some may be left out.
        is_ahead: the pipeline took its samples ahead of the batch before.
        failed: the Picture of the sample for which a stage failed, whose transforms may have drawn.
        states: for SampleStream.note_state(): behind each item, and behind the batch. Empty: there
            are none.
    """

    turn: int
    items: list[Item]
    fail: Callable[[], Any] | None = None
    is_left_out: bool = False
    before: list[Item] | None = None
    mark: Mark | None = None
    is_ahead: bool = False
    failed: Any = None
    states: Sequence[Any] = ()


class StreamBatch(Batch):
    """A batch in flight.

    Attributes:
        part: what it is made of.
        states: see Part.
        n_made: of the samples from the Part's mark on, so many were made before, in vain.
    """

    __slots__ = ("n_made", "part", "states")

    def __init__(self, number: int, part: Part) -> None:
        super().__init__(number)
        self.n_made = 0
        self.take(part)

    def take(self, part: Part) -> None:
        """Makes the batch of another Part."""
        self.part, self.states = part, part.states
        self.turn, self.items, self.fail = part.turn, part.items, part.fail
        if self.n_made and (part.is_left_out or part.fail is not None):
            self.items = part.items[self.n_made :]

    def part_before(self) -> Part:
        """The samples that are to be made in vain before the batch's."""
        before = self.part.before or []
        # The same list as before, by which _make_in_vain() knows it.
        before = before[self.n_made :] if self.n_made else before
        return Part(self.turn, before, None, True, None, self.part.mark)

    @property
    def is_left_out(self) -> bool:
        return self.part.is_left_out

    @property
    def is_before(self) -> bool:
        """Whether another batch in flight has the Part that these samples come before."""
        return self.number < 0 and not self.part.is_ahead


class Streams:
    """Yields the Parts of an epoch.

    Args:
        loader: the DataLoader.
        source: its samples.
        base_seed: of the workers.
        earlier: those of the epoch before, if the workers are persistent.

    Attributes:
        stages: of each worker's pipeline.
        left_turns_out: it was the turn of a worker that has no more samples.
        last_states: states() at the end of the epoch; empty: it did not come.
    """

    def __init__(
        self, loader: Any, source: SampleStream, base_seed: int, earlier: Streams | None
    ) -> None:
        self._source = source
        # None: a single sample, or the batch that the pipeline makes.
        self._batch_size = loader.batch_size if loader.batch_sampler is not None else None
        self._drops_last = loader.drop_last
        n = loader.num_workers
        self._infos = [
            make_worker_info(id=i, num_workers=n, seed=base_seed + i, dataset=loader.dataset)
            for i in range(n)
        ] or [None]
        before: list[list[Any]] = [[] for _ in self._infos] if earlier is None else earlier.stages
        self.stages: list[list[Any]] = [
            source.stages(info is not None, one) for info, one in zip(self._infos, before)
        ]
        self._runs: list[Run | None] = [None] * len(self._infos)
        self._has_ended = [False] * len(self._infos)
        self._was_interrupted = False
        self._turn = 0
        self.left_turns_out = False
        self.last_states: list[Any] = []

    def __iter__(self) -> Streams:
        return self

    def __next__(self) -> Part:
        self._check_interrupted()
        while not all(self._has_ended):
            turn, self._turn = self._turn, self._turn + 1
            if not self._has_ended[turn % len(self._infos)]:
                part = self._pull(turn)
                if part is not None:
                    return part
            self.left_turns_out = True
        raise StopIteration

    def _check_interrupted(self) -> None:
        if self._was_interrupted:
            raise RuntimeError(
                "the iteration was interrupted while the pipeline ran, which can't go on; begin "
                "another epoch"
            )

    def end(self, turn: int) -> None:
        """Called when a batch failed in the pipeline: its worker has no more samples."""
        self._has_ended[turn % len(self._infos)] = True

    def ahead(self) -> list[Part]:
        """Called when the epoch is left: the samples that torch's workers make beyond the batches
        that were pulled."""
        return [
            self.ahead_of(number)
            for number, run in enumerate(self._runs)
            if run is not None and run.collect.ahead and not self._has_ended[number]
        ]

    def ahead_of(self, turn: int) -> Part:
        """The samples that a turn's worker has taken ahead."""
        run = self._runs[turn % len(self._infos)]
        assert run is not None
        mark = _mark_of(run)
        return Part(turn, self._made_in_vain(run.collect.ahead), None, True, None, mark, True)

    # ---- samples that are left out ---------------------------------------------------------------

    def forget(self, mark: Mark | None, turn: int) -> None:
        """Called when no batch of a turn's worker is in flight that begins before a mark."""
        run = self._runs[turn % len(self._infos)]
        if mark is not None and run is not None and isinstance(run.samples, Replayed):
            run.samples.forget(mark)

    def leave_out(self, part: Part, item: Item) -> Part | None:
        """Takes back what was pulled from a worker's pipeline from a Part on, and leaves out a
        sample of it.

        Returns:
            What takes the place of a Part whose samples were taken ahead. Else None: again() yields
            the worker's batches from the Part on.
        """
        self._check_interrupted()
        number = part.turn % len(self._infos)
        run = self._runs[number]
        assert run is not None and isinstance(run.samples, Replayed) and part.mark is not None
        self._has_ended[number] = part.is_ahead and self._has_ended[number]
        with self._running(self._infos[number]):
            run.samples.begin_again(
                part.mark, partial(self._source.is_of_item, item), part.is_ahead
            )
        return self.ahead_of(part.turn) if part.is_ahead else None

    def again(self, turn: int) -> Part:
        """The Part of a turn after leave_out(), which may be an empty one."""
        self._check_interrupted()
        part = None if self._has_ended[turn % len(self._infos)] else self._pull(turn)
        if part is None or part.is_left_out:
            self.left_turns_out = True  # the worker has no batch where it had one
        return Part(turn, [], None, True) if part is None else part

    # ----------------------------------------------------------------------------------------------
    def states(self) -> list[Any]:
        """Without workers, the state of the dataset that is run; empty: it has none."""
        run = self._runs[0]
        state = None
        if self._infos[0] is None and run is not None:
            state = self._source.state_of(run)
        return [] if state is None else [state]

    def is_of(self, turn: int, other: int) -> bool:
        """Whether the batches of two turns are of one worker."""
        return (turn - other) % len(self._infos) == 0

    def _pull(self, turn: int) -> Part | None:
        """The worker's next batch; None: it has none."""
        number = turn % len(self._infos)
        run = self._runs[number]
        if run is None:
            run = self._runs[number] = self._source.run(self.stages[number])
        mark = _mark_of(run)
        part = self._pulled(run, turn)
        return part if part is None or part.is_ahead else part._replace(mark=mark)

    def _pulled(self, run: Run, turn: int) -> Part | None:
        number = turn % len(self._infos)
        size = 1 if self._batch_size is None else self._batch_size
        before: list[Item] = []
        items: list[Item] = []
        states: list[Any] = []
        n = 0
        try:
            while n < size:
                sample = self._next(run, self._infos[number])
                before += self._made_in_vain(run.collect.left)
                items += self._items_of(sample)
                states += self.states()
                n += 1
        except StopIteration:
            self.end(turn)
            if run.collect.ahead:
                return self.ahead_of(turn)
            if in_vain := self._made_in_vain(run.collect.left):
                return Part(turn, in_vain, None, True)
            if n == 0:
                self.last_states = self.states()
                return None
            self.last_states = self.states()
            is_short = self._drops_last and n < size
            return Part(turn, items, None, is_short, states=[*states, *self.last_states])
        except Exception as error:
            self.end(turn)
            in_vain = self._made_in_vain(run.collect.left) + self._made_in_vain(run.collect.begun)
            failed = taken_from(error)
            states += self.states()
            return Part(
                turn, in_vain or items, partial(_raise, [error]), failed=failed, states=states
            )
        return Part(turn, items, None, False, before, states=states)

    def _items_of(self, sample: Any) -> list[Item]:
        return list(map(self._source.item_of, sample if self._source.collates else [sample]))

    def _made_in_vain(self, samples: list[Any]) -> list[Item]:
        """The items of a Collect's samples, which are then forgotten there."""
        items = list(map(self._source.item_of, samples))
        samples.clear()
        return items

    def _next(self, run: Run, info: Any) -> Any:
        """The next of a worker's samples, or list of samples; StopIteration: there is none."""
        with self._running(info):
            return next(run.samples)

    @contextmanager
    def _running(self, info: Any) -> Iterator[None]:
        """While a worker's pipeline runs, which can't go on if an interrupt comes."""
        before = set_worker_info(info)
        self._was_interrupted = True
        try:
            yield
        except Exception:
            self._was_interrupted = False
            raise
        finally:
            set_worker_info(before)
        self._was_interrupted = False


def _mark_of(run: Run) -> Mark | None:
    return run.samples.mark() if isinstance(run.samples, Replayed) else None


def _raise(held: list[Exception]) -> None:
    """Raises an exception without keeping it in a frame, which would form a reference cycle."""
    raise held.pop()


def _has_failed(batch: Batch) -> bool:
    """Whether a sample of a batch could not be made. Else its error is that of the collate_fn, with
    which torch's worker goes on."""
    return batch.fail is not None or batch.failed >= 0


class StreamDataLoaderIter(NativeDataLoaderIter):
    """As NativeDataLoaderIter, for a StreamSource."""

    _parts: Streams | None = None

    def _begin(self, loader: Any, source: Any, config: Config) -> None:
        self._parts = Streams(loader, source, int(self._base_seed), self._parts)
        self._sampler_iter: Any = self._parts
        if source.collates:
            # Its batches are native batches.
            self._auto_collation = True
        super()._begin(loader, source, config)

    def _batch_of(self, number: int, indices: Any) -> Batch:
        part: Part = indices
        assert self._parts is not None
        waiting: Any = self._waiting
        marks = (one.part.mark for one in waiting if self._parts.is_of(one.turn, part.turn))
        self._parts.forget(next(marks, part.mark), part.turn)
        batch = StreamBatch(number, part)
        if part.before:
            self._make_in_vain(batch.part_before())
        return batch

    def _make_in_vain(self, part: Part) -> None:
        # An interrupt may come, and the batch behind it be asked for again.
        if self._waiting and self._waiting[-1].items is part.items:
            return
        batch = StreamBatch(-1, part)
        self._waiting.append(batch)
        self._submit(batch)

    def _drain(self) -> None:
        if self._streams is not None and self._handle is not None and self._parts is not None:
            super()._drain()
            # Only now: if batches were made again, other samples were taken ahead.
            for part in self._parts.ahead():
                self._make_in_vain(part)
            super()._drain()
            if self._parts.left_turns_out:
                self._streams.lost = (
                    "an epoch was left in which some workers had no more samples, so that how many "
                    "batches the others made depends on timing"
                )

    def _note_streams(self, virtual: VirtualWorkers, batch: Batch) -> None:
        assert self._receiver is not None
        is_of_image = self._receiver.failed_streams is not None
        super()._note_streams(virtual, batch)
        part: Part = batch.part  # type: ignore[attr-defined]
        if part.failed is not None and self._num_workers == 0 and not is_of_image:
            # What the sample's transforms draw before it fails, this process has drawn.
            with contextlib.suppress(Exception):
                self._source.base_datasets[0].dataset[part.failed]

    # ---- samples that are left out ---------------------------------------------------------------

    def _receive(self, batch: Batch) -> None:
        super()._receive(batch)
        while type(self._waiting[0].error) is LeftOut:
            self._leave_out()
            super()._receive(self._waiting[0])

    def _leave_out(self) -> None:
        """Leaves out the sample of the oldest batch that a handler is to leave out, and makes all
        later batches of its worker again."""
        failed: Any = self._waiting[0]
        parts = self._parts
        assert parts is not None
        self._is_starting = True
        ahead = parts.leave_out(failed.part, failed.items[failed.error.place])
        failed.error, failed.failed = None, -1
        kept: list[Any] = []
        waiting: list[Any] = list(self._waiting)
        for batch in waiting:
            if ahead is not None and batch is failed:
                batch.take(ahead)
            elif ahead is None and parts.is_of(batch.turn, failed.turn):
                if batch.is_before:
                    continue
                if batch is failed:
                    batch.n_made = max(batch.n_made, len(batch.part.before or ()))
                batch.take(parts.again(batch.turn))
                before = batch.part_before()
                if before.items:
                    kept.append(StreamBatch(-1, before))
            kept.append(batch)
        self._waiting.clear()
        self._waiting.extend(kept)
        self._restart()
        if self._streams is not None and self._num_workers == 0:
            self._streams.request(self._handle, self._waiting[0].turn)

    # ----------------------------------------------------------------------------------------------

    def _next_batch(self) -> Any:
        self._forget_left_out()
        return super()._next_batch()

    def _arrive(self) -> None:
        while self._arrived is None:
            super()._arrive()
            self._forget_left_out()

    def _pull(self, n_due: int, n_pulls: int) -> None:
        if self._arrived is None or self._arrived.number >= 0:
            super()._pull(n_due, n_pulls)
        # Else samples arrived that are made in vain: torch's worker still makes the same batch.

    def _note_delivered(self) -> None:
        batch: Any = self._arrived
        if batch is not None and batch.states:
            self._note_state(batch.states[batch.failed])
        super()._note_delivered()

    def _end(self) -> None:
        for state in () if self._parts is None else self._parts.last_states:
            self._note_state(state)
        super()._end()

    def _note_state(self, state: Any) -> None:
        source: Any = self._source
        source.note_state(state)

    def _forget_left_out(self) -> None:
        batch: Any = self._arrived
        if batch is not None and batch.is_left_out and not _has_failed(batch):
            self._arrived = None

    def _arrived_with_error(self, batch: Batch) -> None:
        if _has_failed(batch):
            self._end_worker(batch)

    def _end_worker(self, batch: Batch) -> None:
        """As torch's worker, whose pipeline has ended with an error, makes no more batches: leaves
        out those that were pulled already."""
        parts = self._parts
        assert parts is not None
        parts.end(batch.turn)
        parts.last_states = []
        kept = [one for one in self._waiting if not parts.is_of(one.turn, batch.turn)]
        if len(kept) < len(self._waiting):
            self._waiting.clear()
            self._waiting.extend(kept)
            self._is_starting = True

    def _collated(self, batch: Batch) -> Any:
        source: Any = self._source
        if not source.collates:
            return super()._collated(batch)
        try:
            images = batch.images()
            data = source.collated(
                images[0] if len(images) == 1 else torch.cat(images), batch.targets()
            )
            return self._collate.ready(data)
        except Exception:
            self._end_worker(batch)
            if self._is_starting:
                self._restart()
            raise
