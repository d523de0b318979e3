"""Measures a script's DataLoaders in the script's own process: torch's class beside feedmill's.

For each loader two plain ones are made, a torch.utils.data.DataLoader and a feedmill.DataLoader, with
the dataset, sampler, collate_fn and other arguments that the script's own has. They deliver the same
number of batches, in turns. A turn makes the loader, iterates it and ends its workers, whose CPU time
counts.
"""

from __future__ import annotations

import contextlib
import gc
import itertools
import multiprocessing
import resource
import time
import types
from collections.abc import Callable, Iterator
from typing import Any

from public_scripts_hook.after_import import call_after_import
from public_scripts_hook.digests import digests
from public_scripts_hook.paths import path_of

# Of a turn: the fewest and the most batches.
_MIN_BATCHES, _MAX_BATCHES = 12, 2000
_FEW, _MORE = 2, 10
# At least this share of the longer trial's time is taken for that of its batches.
_LEAST_SHARE = 0.2
_N_COMPARED = 3
_MAX_END_S = 30.0
_SIDES = ("torch", "feedmill")


def measured(loader: Any, n_rounds: int, turn_s: float, seed: Callable[[], None]) -> dict[str, Any]:
    """Compares a loader's first batches, then measures it.

    Args:
        loader: the script's.
        n_rounds: how many turns each side has. The sides begin rounds alternately.
        turn_s: CPU seconds that the batches of a turn of torch's are to take, beside the start of
            workers. It sets their number.
        seed: seeds the generators.

    Returns:
        "batches": how many a turn has; "compared": see _compared(); "plain_path": the path of
        feedmill's loader; "torch" and "feedmill": [CPU seconds, wall seconds] of each turn; or
        "speed_error".
    """
    try:
        return _measured(_Turns(loader, seed), n_rounds, turn_s)
    except Exception as error:
        lines = str(error).strip().splitlines() or [""]
        return {"speed_error": f"{type(error).__name__}: {lines[-1]}"}


def _measured(turns: _Turns, n_rounds: int, turn_s: float) -> dict[str, Any]:
    compared = _compared(turns)
    few_s, more_s = (turns.take("torch", n)[0] for n in (_FEW, _MORE))
    batch_s = max((more_s - few_s) / (_MORE - _FEW), _LEAST_SHARE * more_s / _MORE)
    n_batches = min(max(round(turn_s / batch_s), _MIN_BATCHES), _MAX_BATCHES)
    spent: dict[str, list[tuple[float, float]]] = {side: [] for side in _SIDES}
    for i in range(n_rounds):
        for side in _SIDES if i % 2 == 0 else reversed(_SIDES):
            spent[side].append(turns.take(side, n_batches))
    return {"batches": n_batches, "compared": compared, "plain_path": turns.path, **spent}


def _compared(turns: _Turns) -> str:
    """How far the first batches of both sides are equal.

    Returns:
        "equal" or "differ". On the native path with feedmill's own random numbers, "labels and
        layout", or "other draws" if these differ as well.
    """
    found: dict[str, list[dict[str, str]]] = {side: [] for side in _SIDES}
    for side in _SIDES:
        turns.take(side, _N_COMPARED, lambda batch, to=found[side]: to.append(digests(batch)))
    theirs, ours = (found[side] for side in _SIDES)
    if theirs == ours:
        return "equal"
    if turns.path != "native" or not turns.asks_for_own_draws:
        return "differ"
    kinds = ("labels", "layout")
    is_alike = all(
        one[kind] == other[kind] for one, other in zip(theirs, ours, strict=True) for kind in kinds
    )
    return "labels and layout" if is_alike else "other draws"


class _Turns:
    """Makes and iterates plain loaders.

    Attributes:
        path: of feedmill's latest loader: "native", "deferred" or "torch".
        asks_for_own_draws: whether that loader asks for feedmill's own random numbers.
    """

    def __init__(self, loader: Any, seed: Callable[[], None]) -> None:
        self._loader, self._seed = loader, seed
        self._generator_state = loader.generator.get_state() if loader.generator else None
        self.path = ""
        self.asks_for_own_draws = False

    def take(
        self, side: str, n_batches: int, use: Callable[[Any], object] = lambda _: None
    ) -> tuple[float, float]:
        """Iterates a new loader; returns the CPU seconds, workers included, and the wall seconds.

        Args:
            side: "torch" or "feedmill".
            n_batches: how many batches to take.
            use: called with each.
        """
        from feedmill.loader import DataLoader, TorchDataLoader

        self._seed()
        if self._generator_state is not None:
            self._loader.generator.set_state(self._generator_state)
        gc.collect()
        others = set(multiprocessing.active_children())
        with _without_patches() if side == "torch" else contextlib.nullcontext():
            given = arguments(self._loader, n_batches)
            n_taken = 0
            began = _cpu_s(), time.perf_counter()
            plain = (TorchDataLoader if side == "torch" else DataLoader)(**given)
            for batch in itertools.islice(_epochs(plain), n_batches):
                use(batch)
                n_taken += 1
                del batch
            if side == "feedmill":
                found = path_of(plain)
                self.path = found.get("path", "")
                self.asks_for_own_draws = found.get("asks_for_own_draws", False)
            del plain
            _wait_for_end(others)
            spent = _cpu_s() - began[0], time.perf_counter() - began[1]
        if n_taken != n_batches:
            raise RuntimeError(f"{side}: {n_taken} batches in place of {n_batches}")
        return spent


def arguments(loader: Any, n_batches: int) -> dict[str, Any]:
    """The arguments with which to make a loader like another one, whose epoch has n batches."""
    from torch.utils.data import BatchSampler, IterableDataset, RandomSampler

    found: dict[str, Any] = {
        name: getattr(loader, name)
        for name in (
            "dataset", "num_workers", "collate_fn", "pin_memory", "timeout", "worker_init_fn",
            "multiprocessing_context", "generator", "prefetch_factor", "persistent_workers",
        )
    }  # fmt: skip
    found["in_order"] = getattr(loader, "in_order", True)
    if isinstance(loader.dataset, IterableDataset):
        found.update(batch_size=loader.batch_size, drop_last=loader.drop_last)
        return found
    size, sampler, batches = loader.batch_size, loader.sampler, loader.batch_sampler
    if type(batches) is BatchSampler:
        size, sampler = batches.batch_size, batches.sampler
    if size is None and batches is not None:
        return {**found, "batch_sampler": _first(batches, n_batches)}
    n = n_batches * (size or 1)
    if type(sampler) is RandomSampler and not sampler.replacement:
        again = RandomSampler(sampler.data_source, num_samples=n, generator=sampler.generator)
        return {**found, "batch_size": size, "sampler": again}
    return {**found, "batch_size": size, "sampler": _first(sampler, n)}


def _first(sampler: Any, n: int) -> list[Any]:
    """The first n elements of a sampler that begins again at its end: an epoch of a larger data
    set."""
    return list(itertools.islice(_epochs(sampler), n))


def _epochs(iterable: Any) -> Iterator[Any]:
    """All elements, again and again; ends at an epoch without any."""
    while True:
        is_empty = True
        for one in iterable:
            is_empty = False
            yield one
        if is_empty:
            return


# What feedmill leaves patched in Pillow, in a process that has deferred images itself.
_PATCHED = {"PIL.Image": ("Image", "im", "tobytes"), "PIL.JpegImagePlugin": ("JpegImageFile", "load")}
_pillows: list[tuple[type, str, Any]] = []


def keep_pillows_functions() -> None:
    """Remembers Pillow's own functions, for torch's turns. Called before Pillow is imported."""

    def keep(module: types.ModuleType) -> None:
        kind, *names = _PATCHED[module.__name__]
        owner = getattr(module, kind)
        _pillows.extend((owner, one, getattr(owner, one)) for one in names if hasattr(owner, one))

    for name in _PATCHED:
        call_after_import(name, keep)


@contextlib.contextmanager
def _without_patches() -> Iterator[None]:
    """Gives Pillow its own functions back."""
    replaced = [
        (owner, name, own, now)
        for owner, name, own in _pillows
        if (now := getattr(owner, name)) is not own
    ]
    for owner, name, own, _ in replaced:
        setattr(owner, name, own)
    try:
        yield
    finally:
        for owner, name, _, now in replaced:
            setattr(owner, name, now)


def _wait_for_end(others: set[Any]) -> None:
    """Waits until worker processes have ended and their CPU time is counted."""
    until = time.monotonic() + _MAX_END_S
    while set(multiprocessing.active_children()) - others:
        if time.monotonic() > until:
            raise RuntimeError("worker processes of a turn have not ended")
        gc.collect()  # somebody still has the loader
        time.sleep(0.001)


def _cpu_s() -> float:
    used = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(one.ru_utime + one.ru_stime for one in used)
