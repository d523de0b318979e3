"""The order of an epoch's indices: what it depends on, and how to make the same order again.

Samplers draw from generators. A RandomSampler without a generator draws a seed from torch's global
one, which is all that its order needs. Other samplers need their generators' states: those of the
generators that the script gave and, if the sampler draws from it directly, of the global one.
"""

from __future__ import annotations

import base64
import copy
import itertools
import zlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils.data import (
    BatchSampler,
    DistributedSampler,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

from feedmill.planner.sampling import is_accelerates_shard

GLOBAL = "torch"  # the name of torch's global generator
_WITHOUT_DRAWS = (SequentialSampler, DistributedSampler, list, tuple, range)
_DRAWING = (RandomSampler, SubsetRandomSampler, WeightedRandomSampler)
_INNER = ("batch_sampler", "sampler")  # attributes that hold the sampler inside a sampler
_MAX_DEPTH = 4
_OF_RANDOM_SAMPLER = "sampler.sampler.generator"  # of given_generators(), in a BatchSampler


class OrderError(ValueError):
    """A saved position does not fit the order that the sampler gives now. The text says why."""


def is_stateful(value: Any) -> bool:
    """Whether an object has torchdata's protocol: state_dict() and load_state_dict()."""
    kind = type(value)
    return callable(getattr(kind, "state_dict", None)) and callable(
        getattr(kind, "load_state_dict", None)
    )


def stateful_sampler(index_sampler: Any) -> Any:
    """The sampler whose state_dict() says where it is, so that it need not be advanced; or None."""
    if is_stateful(index_sampler):
        return index_sampler
    inner = index_sampler.sampler if type(index_sampler) is BatchSampler else None
    return inner if is_stateful(inner) else None


def load_copy(sampler: Any, state: Any) -> None:
    """Calls a sampler's load_state_dict() with a copy, which it may keep and change."""
    sampler.load_state_dict(copy.deepcopy(state))


def counts_samples(index_sampler: Any, auto_collation: bool) -> bool:
    """Whether positions count samples, so that the batch size may change; else they count batches,
    since a sampler of the script's own forms them."""
    return type(index_sampler) is BatchSampler or not auto_collation


def innermost(index_sampler: Any) -> Any:
    """The sampler that gives single indices, if torch's own BatchSampler forms the batches."""
    return index_sampler.sampler if type(index_sampler) is BatchSampler else index_sampler


def repeats_nothing(index_sampler: Any) -> bool:
    """Whether a sampler is known to give no index twice in an epoch."""
    sampler = innermost(index_sampler)
    if type(sampler) is RandomSampler:
        return not sampler.replacement and len(sampler) <= len(sampler.data_source)
    if type(sampler) is SubsetRandomSampler:
        return type(sampler.indices) is range
    return type(sampler) in (SequentialSampler, range)


# ---- generators ----------------------------------------------------------------------------------


def given_generators(loader: Any, index_sampler: Any) -> dict[str, torch.Generator]:
    """The generators that the script gave to the loader and its samplers, by a name of each."""
    found = {"loader": getattr(loader, "generator", None)}
    if is_accelerates_shard(index_sampler):
        index_sampler = index_sampler.batch_sampler  # as a single process has it
    level: list[tuple[str, Any]] = [("sampler", index_sampler)]
    for _ in range(_MAX_DEPTH):
        deeper = []
        for name, sampler in level:
            for attribute, value in list(getattr(sampler, "__dict__", {}).items()):
                if isinstance(value, torch.Generator):
                    found[f"{name}.{attribute}"] = value
                elif attribute in _INNER:
                    deeper.append((f"{name}.{attribute}", value))
        level = deeper
    by_id = {
        id(one): (name, one)
        for name, one in reversed(found.items())
        if isinstance(one, torch.Generator) and one is not torch.default_generator
    }
    return dict(sorted(by_id.values(), key=lambda pair: pair[0]))


def draws_only_a_seed(index_sampler: Any) -> bool:
    """Whether the order depends on one seed that is drawn from torch's global generator."""
    sampler = innermost(index_sampler)
    return type(sampler) is RandomSampler and sampler.generator is None


def needs_global(index_sampler: Any) -> bool:
    """Whether the sampler draws, or may draw, its indices from torch's global generator."""
    if draws_only_a_seed(index_sampler) or stateful_sampler(index_sampler) is not None:
        return False
    sampler = innermost(index_sampler)
    if type(sampler) in _DRAWING:
        return sampler.generator is None or sampler.generator is torch.default_generator
    return type(sampler) not in _WITHOUT_DRAWS


def encoded(state: torch.Tensor) -> str:
    """A generator's state as text."""
    return base64.b64encode(zlib.compress(state.numpy().tobytes(), 9)).decode()


def decoded(text: str) -> torch.Tensor:
    """The state of encoded()."""
    return torch.frombuffer(bytearray(zlib.decompress(base64.b64decode(text))), dtype=torch.uint8)


def drawn_seed(state: torch.Tensor) -> int:
    """The seed that a RandomSampler draws from torch's global generator in this state."""
    generator = torch.Generator()
    generator.set_state(state)
    return _draw_seed(generator)


def _draw_seed(generator: torch.Generator | None = None) -> int:
    return int(torch.empty((), dtype=torch.int64).random_(generator=generator).item())


class Order:
    """What the order of one epoch depends on.

    Args:
        loader: the DataLoader.
        saved: values() of an earlier process, whose order is made again. None: a new order.

    Attributes:
        is_drawn: the first index was asked for, so that generators have been drawn from.
        global_before: while an iterator is made that goes on with a saved epoch: the state of
            torch's global generator before that, to which it returns. None: at other times.
    """

    def __init__(self, loader: Any, index_sampler: Any, saved: dict[str, Any] | None) -> None:
        self._sampler = index_sampler
        self._generators = given_generators(loader, index_sampler)
        self._draws_seed = draws_only_a_seed(index_sampler)
        if self._draws_seed or needs_global(index_sampler):
            self._generators[GLOBAL] = torch.default_generator
        self._at_iter: dict[str, torch.Tensor] = {}
        self._at_draw: dict[str, torch.Tensor] = {}
        self._saved = saved
        self.is_drawn = False
        self.global_before: torch.Tensor | None = None

    def note_iter(self) -> None:
        """Called right before the sampler's iterator is made."""
        self._at_iter = self._states()

    def note_draw(self) -> None:
        """Called right before the sampler's first index is asked for. Later calls do nothing."""
        if not self.is_drawn:
            self._at_draw = self._states()
            self.is_drawn = True

    def _states(self) -> dict[str, torch.Tensor]:
        return {name: one.get_state() for name, one in self._generators.items()}

    def values(self) -> dict[str, Any]:
        """What makes the same order again, as JSON values."""
        if self._saved is not None:
            was_drawn = self._saved["is_drawn"] or self.is_drawn
            return {**copy.deepcopy(self._saved), "is_drawn": was_drawn}
        now = self._at_draw if self.is_drawn else self._states()
        values: dict[str, Any] = {"is_drawn": self.is_drawn, "draw": {}}
        for name, state in now.items():
            if name == GLOBAL and self._draws_seed:
                values["seed"] = drawn_seed(state)
            else:
                values["draw"][name] = encoded(state)
        # torch's own samplers draw nothing before the first index.
        if type(self._sampler) not in (BatchSampler, *_DRAWING, *_WITHOUT_DRAWS):
            earlier = {
                name: encoded(one) for name, one in self._at_iter.items()
                if name in now and not torch.equal(one, now[name])
            }
            if earlier:
                values["iter"] = earlier
        return values

    def again(
        self,
        skip: Callable[[Iterator[Any]], bool],
        load: Callable[[], None] | None = None,
        deal: Callable[[Any], Iterator[Any]] | None = None,
    ) -> Iterator[Any]:
        """Makes the sampler's iterator again, with the generators as they were. Torch's own
        BatchSampler is left out: the iterator gives single indices.

        The generators that the script gave end in the state that they had. torch's global one is
        left as it is now, unless the saved order was not drawn yet: then it is advanced as by that.

        Args:
            skip: called with the new iterator, to advance it; False: it did not.
            load: gives the sampler the state of its own that it had as the epoch began.
            deal: makes the iterator from the sampler that gives single indices. None: iter() does.
        """
        assert self._saved is not None
        before = self.global_before
        before = torch.default_generator.get_state() if before is None else before
        try:
            iterator = self._again(self._saved, skip, load, deal)
        finally:
            if self._saved["is_drawn"] or not self.is_drawn or "seed" in self._saved:
                torch.default_generator.set_state(before)
        if not self._saved["is_drawn"]:
            if "seed" in self._saved:
                _draw_seed()
            self.global_before = None  # what was drawn now stays drawn
        return iterator

    def _again(
        self,
        saved: dict[str, Any],
        skip: Callable[[Iterator[Any]], bool],
        load: Callable[[], None] | None,
        deal: Callable[[Any], Iterator[Any]] | None,
    ) -> Iterator[Any]:
        if load is not None:
            load()
        self._set({**saved["draw"], **saved.get("iter", {})})
        sampler: Any = innermost(self._sampler)
        if deal is not None and is_accelerates_shard(sampler):
            sampler = sampler.batch_sampler.sampler
        sampler = self._as_drawn(sampler, saved)
        iterator: Iterator[Any] = iter(sampler) if deal is None else deal(sampler)
        self._set(saved["draw"])
        if load is not None:
            first = list(itertools.islice(iterator, 1))
            if not first:
                # Its state was that of an earlier epoch's end; now it begins the next one.
                self._set({**saved["draw"], **saved.get("iter", {})})
                iterator = iter(sampler)
                self._set(saved["draw"])
            iterator = itertools.chain(first, iterator)
        if not skip(iterator):
            # A sampler draws when it is asked for its first index, which must be now.
            iterator = itertools.chain(list(itertools.islice(iterator, 1)), iterator)
        self.is_drawn = True
        return iterator

    def _as_drawn(self, sampler: Any, saved: dict[str, Any]) -> Any:
        """The sampler or, if its order does not follow from the generators as they are now, one
        that gives the saved order. Accelerate gives a RandomSampler a generator of its own if there
        are several processes."""
        if type(sampler) is not RandomSampler:
            return sampler
        generator = torch.Generator()
        if saved.get("seed") is not None:
            generator.manual_seed(saved["seed"])
        elif sampler.generator is None and _OF_RANDOM_SAMPLER in saved["draw"]:
            generator.set_state(decoded(saved["draw"][_OF_RANDOM_SAMPLER]))
        else:
            return sampler
        return RandomSampler(
            sampler.data_source, sampler.replacement, sampler.num_samples, generator
        )

    def _set(self, states: dict[str, str]) -> None:
        for name, text in states.items():
            if name in self._generators:
                self._generators[name].set_state(decoded(text))
