"""Pulls batches' indices from a sampler: when torch would, or earlier if the script can't notice.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

from feedmill.planner.progress import Progress
from feedmill.planner.sampling import never, pull_ahead_rule


class Puller:
    """Pulls the batches of one epoch. Not thread-safe. An interrupt (Ctrl-C) in pull() loses no
    indices.

    Args:
        sampler_iter: the sampler's iterator.
        index_sampler: the sampler. Its type decides how far ahead of torch it may be advanced.
        depth: number of batches in flight up to which batches are pulled ahead of torch.
        waiting: the batches in flight, the oldest first, each with its ``number`` in the epoch.
            pull() appends to it; the caller removes them.
        progress: of the epoch; notes what is pulled.

    Attributes:
        is_exhausted: the sampler has ended or failed.
    """

    def __init__(
        self,
        sampler_iter: Iterator[Any],
        index_sampler: Any,
        depth: int,
        waiting: deque[Any],
        progress: Progress,
    ) -> None:
        self.is_exhausted = False
        self._progress = progress
        self._may_pull_ahead = pull_ahead_rule(index_sampler, progress.n_samples)
        self._depth = depth
        self._waiting = waiting
        # _pulled holds (number, indices) of a batch from its pull until it is in _waiting. It is
        # filled and emptied by single C calls, which a Ctrl-C can't split. As torch, this calls
        # nothing but next() of the sampler's iterator, also after its end.
        self._numbered = enumerate(map(next, itertools.repeat(sampler_iter)))
        self._pulled: list[tuple[int, Any]] = []
        self._n_pulled = 0
        self._n_pulls_due = 0  # pulls that torch would have made and this object has not
        self._error: Exception | None = None

    def pull(
        self,
        n_due: int,
        n_pulls: int,
        batch_of: Callable[[int, Any], Any],
        submit: Callable[[Any], None],
    ) -> None:
        """Pulls indices and submits batches until enough are in flight.

        Args:
            n_due: number of batches torch would have in flight by now. At least these are pulled,
                even if that advances the user's generator; a sampler's error is raised.
            n_pulls: number of pulls torch would make now. Counts for samplers that must be pulled
                exactly when torch would pull them.
            batch_of: called with a batch's number and indices; returns the batch.
            submit: called with each batch, once it is in ``waiting``.
        """
        self._n_pulls_due += n_pulls
        try:
            while self._wants_more(n_due):
                if self._pulled:  # an interrupt came
                    self.note_pulled()
                if not self._pulled:
                    self._progress.order.note_draw()
                    self._pulled.extend(itertools.islice(self._numbered, 1))
                if self._pulled:
                    self._progress.note(*self._pulled[0])
                    batch = batch_of(*self._pulled[0])
                    self._waiting.append(batch)
                    self.note_pulled()
                    submit(batch)
                else:
                    self.is_exhausted = True
                self._n_pulls_due -= 1
        except Exception as error:
            self._n_pulls_due = 0
            if self._may_pull_ahead is never or len(self._waiting) < n_due:
                raise
            # torch would not have pulled this yet: raised after the batches before it.
            self._error = error
            self.is_exhausted = True

    def pull_requested(
        self, batch_of: Callable[[int, Any], Any], submit: Callable[[Any], None]
    ) -> None:
        """pull() for num_workers=0, where torch pulls a batch when it is requested."""
        n_pulls = int(not self._waiting and self._n_pulls_due <= 0)
        self.pull(1, n_pulls, batch_of, submit)

    def note_pulled(self) -> None:
        """Forgets the indices of a batch that is in ``waiting``. After an interrupt it must be
        called before that batch is removed there."""
        if self._pulled and self._waiting and self._waiting[-1].number == self._pulled[0][0]:
            self._n_pulled = self._waiting[-1].number + 1
            self._pulled.clear()

    def take_error(self) -> Exception | None:
        """The sampler's error, once; None: no error. To be raised after all batches in flight."""
        error, self._error = self._error, None
        return error

    def _wants_more(self, n_due: int) -> bool:
        if self._may_pull_ahead is never:
            return self._n_pulls_due > 0
        if self.is_exhausted:
            return False
        n_waiting = len(self._waiting)
        if n_waiting < n_due:
            return True
        if n_waiting >= self._depth:
            return False
        return self._n_pulled > 0 and self._may_pull_ahead(self._n_pulled)
