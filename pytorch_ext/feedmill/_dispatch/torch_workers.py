"""The generators of torch's workers in a DataLoader's state, with rng="torch", so that the rest of
an epoch, and the following epochs of persistent workers, draw as in an unbroken run."""

from __future__ import annotations

import base64
import copy
import random
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from feedmill._dispatch.options import is_int
from feedmill.iterators.collating import seeded_as_worker
from feedmill.iterators.generator_states import State, states_of
from feedmill.planner.random_states import States, packed_torch, unpacked_torch
from feedmill.planner.ranks import n_ranks_of, rank_of
from feedmill.planner.samples import Support

_N_WORDS = 624
# What the generators of a worker depend on, beside the order.
_SETTINGS = ("num_workers", "batch_size", "ranks", "rank")


@dataclass(frozen=True)
class Workers:
    """The workers with which an iterator begins.

    Attributes:
        base_seed: with which they were started.
        states: of their generators.
    """

    base_seed: int
    states: list[States]


def draws_as_torch(loader: Any, support: Support) -> bool:
    """Whether the native path draws the random numbers of torch's DataLoader."""
    plan = support.source.plan if support.source is not None else None
    is_native = support.path == "native" and bool(getattr(plan, "is_random", False))
    return is_native and loader._feedmill_draws_as_torch()


def draws_as_workers(loader: Any, support: Support) -> bool:
    """Whether the native path draws the random numbers of torch's worker processes."""
    return loader.num_workers > 0 and draws_as_torch(loader, support)


def _settings(loader: Any) -> dict[str, int | None]:
    sampler = loader._index_sampler
    size = getattr(sampler, "batch_size", None) if loader._auto_collation else None
    return {
        "num_workers": loader.num_workers,
        "batch_size": size if is_int(size, 1, 1 << 62) else None,
        "ranks": n_ranks_of(sampler),
        "rank": rank_of(sampler),
    }


# ---- saving --------------------------------------------------------------------------------------


def refusal_of(virtual: Any) -> str:
    """Why an epoch can't be resumed: the states of its VirtualWorkers are not known. "": it can, or
    it has none (None)."""
    if virtual is None or not virtual.unknown:
        return ""
    return (
        f"{virtual.unknown}, so that it is not known which random numbers torch's worker would "
        "draw next"
    )


def workers_of(loader: Any, virtual: Any, n_batches: int) -> dict[str, Any]:
    """The generators' states as JSON values, after some batches of an epoch.

    Args:
        virtual: the VirtualWorkers.
    """
    generators = [_kept(virtual, *one) for one in enumerate(virtual.before(n_batches))]
    return {
        **_settings(loader), "base_seed": virtual.base_seed,
        "generators": copy.deepcopy(generators),
    }


def _kept(virtual: Any, number: int, state: State) -> dict[str, Any]:
    """The values of a worker's state. Kept until it changes, as Accelerate asks for a loader's
    state at each step."""
    if virtual.seeded is None:
        n_workers, base_seed = len(virtual.before(0)), virtual.base_seed
        virtual.seeded = [seeded_as_worker(base_seed, one) for one in range(n_workers)]
    if number not in virtual.saved or virtual.saved[number][0] is not state:
        values = _saved(states_of(*state), virtual.seeded[number])
        virtual.saved[number] = state, values
    kept: dict[str, Any] = virtual.saved[number][1]
    return kept


def _saved(states: States, seeded: States) -> dict[str, Any]:
    """States by generator, without those that a worker is started with: most transforms draw from
    one generator alone."""
    of_torch, of_python, of_numpy = states
    saved: dict[str, Any] = {}
    if not torch.equal(of_torch, seeded[0]):
        saved["torch"] = _text(packed_torch(of_torch))
    if of_python != seeded[1]:
        words = np.array(of_python[1], np.uint32)
        saved["python"] = [_text(words.tobytes()), of_python[2]]
    # The script may have set another bit generator, which no worker seeds.
    is_known = of_numpy["bit_generator"] == "MT19937"
    if is_known and _numpy_values(of_numpy) != _numpy_values(seeded[2]):
        pos, has_gauss, gauss = _numpy_values(of_numpy)[1:]
        saved["numpy"] = [_text(of_numpy["state"]["key"].tobytes()), pos, has_gauss, gauss]
    return saved


def _numpy_values(state: Any) -> tuple[bytes, int, int, float]:
    inner = state["state"]
    return inner["key"].tobytes(), int(inner["pos"]), int(state["has_gauss"]), float(state["gauss"])


def _text(raw: bytes) -> str:
    return base64.b64encode(raw).decode()


# ---- loading -------------------------------------------------------------------------------------


def check_values(saved: Any) -> None:
    """Raises ValueError if a state's workers are not what workers_of() returned."""
    if saved is None:
        return
    try:
        _loaded(saved)
    except Exception as error:
        raise ValueError(
            f"the state is damaged: the generators of its workers can't be read ({error!r})"
        ) from None


def mismatch(loader: Any, support: Support, loaded: dict[str, Any]) -> str:
    """Why the generators of a state can't draw for this loader; "": they can, or none are needed.
    """
    saved, is_inside = loaded.get("workers"), loaded["position"] is not None
    if not draws_as_workers(loader, support):
        if saved is None or not is_inside or not draws_as_torch(loader, support):
            return ""
    elif not is_inside and (saved is None or not loader.persistent_workers):
        return ""
    if saved is None and loaded.get("rng") != "torch":
        return "the state holds no generators of torch's workers"
    now = _settings(loader)
    then = {"num_workers": 0} if saved is None else saved
    for name in _SETTINGS if saved is not None else _SETTINGS[:1]:
        if then[name] != now[name]:
            return (
                f"the epoch ran with {name}={then[name]}, and would go on with {now[name]}: "
                "torch's random numbers of a worker follow from all batches that it made "
                "(feedmill's own, with seed= from the start, do not)"
            )
    return ""


def needs_new_iterator(loader: Any, support: Support) -> bool:
    """Whether persistent workers can't go on with another epoch: a state was loaded, with which
    they have other generators."""
    return loader._feedmill.position.loaded is not None and draws_as_workers(loader, support)


def workers_to_go_on(
    loader: Any, support: Support, loaded: dict[str, Any], is_inside: bool
) -> Workers | None:
    """The workers with which an iterator begins at a loaded state; None: new ones.

    Args:
        is_inside: it begins inside an epoch, else with a new one.
    """
    saved = loaded.get("workers")
    if saved is None or not draws_as_workers(loader, support):
        return None
    if mismatch(loader, support, loaded) or not (is_inside or loader.persistent_workers):
        return None
    return _loaded(saved)


def _loaded(saved: dict[str, Any]) -> Workers:
    n_workers, base_seed, generators = (
        saved[name] for name in ("num_workers", "base_seed", "generators")
    )
    if not is_int(n_workers, 1, 1 << 31) or len(generators) != n_workers:
        raise ValueError(f"there are {len(generators)} for {n_workers!r} workers")
    if not is_int(base_seed, -(1 << 63), (1 << 63) - 1):
        raise ValueError(f"base_seed is {base_seed!r}")
    for name in _SETTINGS[1:]:
        if saved[name] is not None and not is_int(saved[name], 0, 1 << 62):
            raise ValueError(f"{name} is {saved[name]!r}")
    states = [
        _read(one, seeded_as_worker(base_seed, number))
        for number, one in enumerate(generators)
    ]
    return Workers(base_seed, states)


def _read(saved: dict[str, Any], seeded: States) -> States:
    """The states of _saved(). Raises some exception if they are none."""
    of_torch, of_python, of_numpy = seeded
    if "torch" in saved:
        of_torch = unpacked_torch(base64.b64decode(saved["torch"], validate=True))
        torch.Generator().set_state(of_torch)
    if "python" in saved:
        text, second = saved["python"]
        of_python = (of_python[0], tuple(_words(text, _N_WORDS + 1).tolist()), second)
        random.Random().setstate(of_python)
        if second is not None and type(second) is not float:
            raise ValueError(f"gauss_next is {second!r}")
    if "numpy" in saved:
        text, position, has_gauss, gauss = saved["numpy"]
        if not is_int(position, 0, _N_WORDS) or not is_int(has_gauss, 0, 1):
            raise ValueError(f"NumPy's generator has pos={position!r}, has_gauss={has_gauss!r}")
        of_numpy = {
            "bit_generator": "MT19937",
            "state": {"key": _words(text, _N_WORDS), "pos": position},
            "has_gauss": has_gauss,
            "gauss": float(gauss),
        }
    return of_torch, of_python, of_numpy


def _words(text: str, n: int) -> Any:
    words = np.frombuffer(base64.b64decode(text, validate=True), np.uint32)
    if len(words) != n:
        raise ValueError(f"a generator has {len(words)} words in place of {n}")
    return words.copy()
