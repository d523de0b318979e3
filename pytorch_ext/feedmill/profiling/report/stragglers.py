"""Finds the ranks of a distributed training that hold the others back, at which steps and why.

Each step of such a training ends in a collective operation, in which all ranks wait for the one
that comes last. Up to there a rank needs its own time: the wait for its batch, by cause, the rest
of next(), and its own part of the training loop. The rank with the longest own time delays the
step, by its difference to another rank, the reference: the median of the other ranks (the lower one
of two). The delay is divided among the parts of the own time that are longer than the reference's,
in proportion to how much longer they are.

Own times are durations on one rank's clock, so that the clocks of the hosts need not agree.

What is known of the loop's own part depends on the steps of all ranks:

- with marks of feedmill.collective(), a step's own time begins at the end of the previous block and
  ends at the begin of this one. Steps without a mark are added to the next one that has it. The
  time between two epochs, in which a script may do anything, is left out.
- without them, the loop's time can't be told from the time in which it waited for other ranks. Own
  times are the times in next() then.
- with the GPU's stalls, only these count: while the GPU has other work, a late batch delays
  nothing.

Steps of the ranks are compared by their number within the epoch, and epochs by their order.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from feedmill.profiling.counting.records import CAUSES, STEADY

# What the own time of a rank consists of. The waits in the decode threads' queue count for what
# these threads did meanwhile.
_QUEUES = {"cpu_queue_decode_ns": "decode_ns", "cpu_queue_transform_ns": "transform_ns"}
OVERHEAD, LOOP = "overhead_ns", "compute_ns"
PARTS = (*(name for name in CAUSES if name not in _QUEUES), OVERHEAD, LOOP)
_AT = {name: number for number, name in enumerate(PARTS)}

MARKS, WAITS, GPU = "marks", "waits", "gpu"

# Steps that are compared at once, which limits the memory for many ranks.
_CHUNK = 1024


@dataclass(frozen=True)
class OwnTimes:
    """The own times of one rank.

    Attributes:
        keys: (epoch, step in the epoch) of each, in order, as one number.
        parts: nanoseconds by step and part of PARTS.
    """

    keys: np.ndarray
    parts: np.ndarray


@dataclass(frozen=True)
class Delay:
    """What one rank added to a step.

    Attributes:
        rank, epoch, step: who, and where; epochs and their steps from 0.
        ns: by how much it held the others back.
        parts: nanoseconds by name of PARTS, which add up to ns. Without those that are 0.
    """

    rank: int
    epoch: int
    step: int
    ns: int
    parts: dict[str, int]


@dataclass
class Held:
    """What one rank added to all steps.

    Attributes:
        ns: the sum of the delays.
        parts: the same by name of PARTS, all of them.
        steps: (epoch, step, ns) of each delay, in order.
        longest: the longest delays, longest first.
    """

    ns: int = 0
    parts: dict[str, int] = field(default_factory=lambda: dict.fromkeys(PARTS, 0))
    steps: list[tuple[int, int, int]] = field(default_factory=list)
    longest: list[Delay] = field(default_factory=list)


@dataclass(frozen=True)
class Stragglers:
    """The ranks that held others back.

    Attributes:
        held: by rank; all ranks that were compared.
        n_steps: number of steps that were compared.
        basis: MARKS, WAITS or GPU: what own times consist of.
    """

    held: dict[int, Held]
    n_steps: int
    basis: str

    @property
    def ns(self) -> int:
        """All delays together."""
        return sum(one.ns for one in self.held.values())


def basis_of(ranks: Sequence[np.ndarray]) -> str:
    """What can be compared, from the steps of all ranks."""
    if any(steps["gpu_known"].any() for steps in ranks):
        return GPU
    with_steps = [steps for steps in ranks if len(steps)]
    if with_steps and all(steps["n_collectives"].any() for steps in with_steps):
        return MARKS
    return WAITS


def own_times(steps: np.ndarray, basis: str) -> OwnTimes:
    """The own times of a rank, from its step records (STEP_DTYPE)."""
    steps = steps[np.argsort(steps["request_ns"], kind="stable")]
    starts = np.flatnonzero(steps["phase"] != STEADY)
    # Steps before the first start are of an epoch whose start is not kept any more.
    steps, starts = steps[starts[0] if len(starts) else len(steps) :], starts - starts[:1]
    epochs = np.searchsorted(starts, np.arange(len(steps)), "right") - 1
    # Numbers, and not positions: steps may be missing in a log.
    numbers = steps["step"].astype(np.int64)
    keys = (epochs.astype(np.int64) << 32) + numbers - numbers[starts[epochs]]
    chosen, parts = _parts(steps, basis)
    unique, at = np.unique(keys[chosen], return_index=True)
    return OwnTimes(unique, parts[at])


def _parts(steps: np.ndarray, basis: str) -> tuple[np.ndarray, np.ndarray]:
    """(positions of the steps that have an own time, these times by part)."""
    parts = np.zeros((len(steps), len(PARTS)), np.int64)
    for name in (*CAUSES, OVERHEAD):
        parts[:, _AT[_QUEUES.get(name, name)]] += steps[name].astype(np.int64)
    if basis == WAITS:
        return np.arange(len(steps)), parts
    if basis == GPU:
        chosen = np.flatnonzero(steps["gpu_known"])
        return chosen, _of_gpu(steps[chosen], parts[chosen])
    return _between_marks(steps, parts)


def _of_gpu(steps: np.ndarray, parts: np.ndarray) -> np.ndarray:
    """The parts of next(), made as long as the GPU's stall. The stall's copy is the copy's part."""
    copy = steps["gpu_copy_ns"].astype(np.int64)
    late = steps["gpu_stall_ns"].astype(np.int64) - copy
    total = parts.sum(axis=1)
    parts = np.where(total[:, None] > 0, parts, np.eye(len(PARTS), dtype=np.int64)[_AT[OVERHEAD]])
    scaled = _divided(parts, late)
    scaled[:, _AT["h2d_ns"]] += copy
    return scaled


def _between_marks(steps: np.ndarray, parts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    is_marked = steps["n_collectives"] > 0
    compute, before = steps["compute_ns"].astype(np.int64), steps["before_collective_ns"]
    parts[:, _AT[LOOP]] = np.where(is_marked, before.astype(np.int64), compute)
    after = compute - parts[:, _AT[LOOP]] - steps["collective_ns"].astype(np.int64)
    chosen = np.flatnonzero(is_marked)
    if not len(chosen):
        return chosen, parts[:0]
    own = np.diff(np.cumsum(parts, axis=0)[chosen], axis=0, prepend=np.int64(0))
    own[1:, _AT[LOOP]] += np.maximum(after[chosen[:-1]], 0)
    return chosen, own


def _divided(parts: np.ndarray, totals: np.ndarray) -> np.ndarray:
    """Rows of integers in proportion to those of `parts`, not all 0, with exactly these sums."""
    sums = parts.sum(axis=1)
    scaled: np.ndarray = np.floor(parts * (totals / np.maximum(sums, 1))[:, None]).astype(np.int64)
    rows = np.arange(len(parts))
    scaled[rows, parts.argmax(axis=1)] += totals - scaled.sum(axis=1)
    return scaled


# ---- comparing -----------------------------------------------------------------------------------


def compare(ranks: Mapping[int, OwnTimes], basis: str, n_longest: int = 5) -> Stragglers:
    """Attributes the delays of all steps that at least two ranks have."""
    numbers = sorted(ranks)
    held = {rank: Held() for rank in numbers}
    keys = np.unique(np.concatenate([np.empty(0, np.int64), *(ranks[r].keys for r in numbers)]))
    n_steps = 0
    for begin in range(0, len(keys), _CHUNK):
        chunk = keys[begin : begin + _CHUNK]
        parts = np.zeros((len(chunk), len(numbers), len(PARTS)), np.int64)
        present = np.zeros((len(chunk), len(numbers)), bool)
        for column, rank in enumerate(numbers):
            own = ranks[rank]
            rows = slice(*np.searchsorted(own.keys, (chunk[0], chunk[-1] + 1)))
            at = np.searchsorted(chunk, own.keys[rows])
            parts[at, column], present[at, column] = own.parts[rows], True
        n_steps += int((present.sum(axis=1) > 1).sum())
        for delay in _delays(chunk, parts, present, numbers):
            _add(held[delay.rank], delay, n_longest)
    return Stragglers(held, n_steps, basis)


def _delays(
    keys: np.ndarray, parts: np.ndarray, present: np.ndarray, numbers: Sequence[int]
) -> Iterator[Delay]:
    own = np.where(present, parts.sum(axis=2), -1)
    order = np.argsort(own, axis=1, kind="stable")  # absent ranks first
    n_present = present.sum(axis=1)
    rows, n_ranks = np.arange(len(keys)), len(numbers)
    last = order[:, -1]
    reference = order[rows, np.clip(n_ranks - n_present + (n_present - 2) // 2, 0, n_ranks - 1)]
    totals = own[rows, last] - own[rows, reference]
    is_delayed = (n_present > 1) & (totals > 0)
    rows, last, totals = rows[is_delayed], last[is_delayed], totals[is_delayed]
    longer = np.maximum(parts[rows, last] - parts[rows, reference[is_delayed]], 0)
    for row, rank, total, divided in zip(
        rows, last, totals, _divided(longer, totals), strict=True
    ):
        epoch, step = divmod(int(keys[row]), 1 << 32)
        named = {name: int(ns) for name, ns in zip(PARTS, divided, strict=True) if ns}
        yield Delay(numbers[rank], epoch, step, int(total), named)


def _add(held: Held, delay: Delay, n_longest: int) -> None:
    held.ns += delay.ns
    for name, ns in delay.parts.items():
        held.parts[name] += ns
    held.steps.append((delay.epoch, delay.step, delay.ns))
    if len(held.longest) < n_longest or delay.ns > held.longest[-1].ns:
        held.longest = sorted([*held.longest, delay], key=lambda one: -one.ns)[:n_longest]
