"""The iterator of a DataLoader whose dataset is a pipeline of webdataset or an IterableDataset of
Hugging Face, on the native path.

The dataset runs in this process, once for each of torch's workers, as it would run there, but
yields samples whose images were not decoded; see ``planner.streams``. Batches come in the order in
which torch's workers deliver them: each worker's next one in turn, without those that have ended.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch

from feedmill._internals import make_worker_info, set_worker_info
from feedmill.engine.config import Config
from feedmill.iterators.batches import Batch
from feedmill.iterators.native import NativeDataLoaderIter
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
        states: for SampleStream.note_state(): behind each item, and behind the batch. Empty: there
            are none.
    """

    turn: int
    items: list[Item]
    fail: Callable[[], Any] | None = None
    is_left_out: bool = False
    before: list[Item] | None = None
    states: Sequence[Any] = ()


class StreamBatch(Batch):
    """A batch in flight.

    Attributes:
        is_left_out, states: see Part.
    """

    __slots__ = ("is_left_out", "states")

    def __init__(self, number: int, part: Part) -> None:
        super().__init__(number)
        self.turn, self.items, self.fail, self.is_left_out, _, self.states = part


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
        if self._was_interrupted:
            raise RuntimeError(
                "the iteration was interrupted while the pipeline ran, which can't go on; begin "
                "another epoch"
            )
        while not all(self._has_ended):
            turn, self._turn = self._turn, self._turn + 1
            if not self._has_ended[turn % len(self._infos)]:
                part = self._pull(turn)
                if part is not None:
                    return part
            self.left_turns_out = True
        raise StopIteration

    def end(self, turn: int) -> None:
        """Called when a batch failed in the pipeline: its worker has no more samples."""
        self._has_ended[turn % len(self._infos)] = True

    def ahead(self) -> list[Part]:
        """Called when the epoch is left: the samples that torch's workers make beyond the batches
        that were pulled."""
        return [
            Part(number, self._made_in_vain(run.collect.ahead), None, True)
            for number, run in enumerate(self._runs)
            if run is not None and run.collect.ahead and not self._has_ended[number]
        ]

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
            in_vain = self._made_in_vain(run.collect.left) + self._made_in_vain(run.collect.ahead)
            if in_vain:
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
            states += self.states()
            return Part(turn, in_vain or items, partial(_raise, [error]), states=states)
        return Part(turn, items, None, False, before, states)

    def _items_of(self, sample: Any) -> list[Item]:
        return list(map(self._source.item_of, sample if self._source.collates else [sample]))

    def _made_in_vain(self, samples: list[Any]) -> list[Item]:
        """The items of a Collect's samples, which are then forgotten there."""
        items = list(map(self._source.item_of, samples))
        samples.clear()
        return items

    def _next(self, run: Run, info: Any) -> Any:
        """The next of a worker's samples, or list of samples; StopIteration: there is none."""
        before = set_worker_info(info)
        self._was_interrupted = True
        try:
            sample = next(run.samples)
        except Exception:
            self._was_interrupted = False
            raise
        finally:
            set_worker_info(before)
        self._was_interrupted = False
        return sample


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
        if part.before:
            self._make_in_vain(Part(part.turn, part.before, None, True))
        return StreamBatch(number, part)

    def _make_in_vain(self, part: Part) -> None:
        # An interrupt may come, and the batch behind it be asked for again.
        if self._waiting and self._waiting[-1].items is part.items:
            return
        batch = StreamBatch(-1, part)
        self._waiting.append(batch)
        self._submit(batch)

    def _drain(self) -> None:
        if self._streams is not None and self._handle is not None and self._parts is not None:
            for part in self._parts.ahead():
                self._make_in_vain(part)
            super()._drain()
            if self._parts.left_turns_out:
                self._streams.lost = (
                    "an epoch was left in which some workers had no more samples, so that how many "
                    "batches the others made depends on timing"
                )

    def _next_batch(self) -> Any:
        self._forget_left_out()
        return super()._next_batch()

    def _arrive(self) -> None:
        while self._arrived is None:
            super()._arrive()
            self._forget_left_out()

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
