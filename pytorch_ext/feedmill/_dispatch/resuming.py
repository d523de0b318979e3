"""state_dict() and load_state_dict() of a DataLoader: saves the position in an epoch, and goes on
there, in this process or another one."""

from __future__ import annotations

import copy
import hashlib
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils.data import DistributedSampler, IterableDataset

from feedmill._dispatch import torch_workers
from feedmill._dispatch.options import is_int
from feedmill._dispatch.torch_workers import draws_as_torch, refusal_of
from feedmill.planner.epochs import sampler_epoch, samplers_of
from feedmill.planner.orders import (
    decoded,
    encoded,
    given_generators,
    innermost,
    is_stateful,
    load_copy,
    stateful_sampler,
)
from feedmill.planner.progress import Progress
from feedmill.planner.ranks import as_counted_here, dealt_batches, is_shared, n_ranks_of
from feedmill.planner.samples import Source, Support
from feedmill.planner.sampling import is_accelerates_shard, is_seedable
from feedmill.profiling.report.run_totals import RunTotals, carried_on
from feedmill.profiling.report.stats import sum_counters

VERSION = 1
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")
_INSIST = "load_state_dict(state, strict=False) insists"


class Position:
    """Where a DataLoader is.

    Attributes:
        loaded: the state that the next iter() begins with, and whether it is checked; None: no
            state was loaded since the latest iter().
        progress: of the latest epoch; None: there is none, or it can't be resumed.
        refusal: why the latest epoch can't be resumed; "": it can.
        support: of the latest epoch, as choose() returned it.
        fingerprints: fingerprints_of() of the latest epoch, once they were asked for.
        totals: the waits of the run before this process.
        dataset_state: what the dataset's load_state_dict() is called with when the iterator is
            made; None: it is not called.
    """

    def __init__(self, loaded: tuple[dict[str, Any], bool] | None = None) -> None:
        self.loaded = loaded
        self.progress: Progress | None = None
        self.refusal = ""
        self.support: Support | None = None
        self.fingerprints: dict[str, Any] | None = None
        self.totals = RunTotals()
        self.dataset_state: Any = None


def counters_of(loader: Any) -> dict[str, Any]:
    """The counters of this process that a state carries, among others."""
    state = loader._feedmill
    return sum_counters([state.engine_pool.counters(), state.torch_counters.counters()])


# ---- saving --------------------------------------------------------------------------------------


def state_dict(loader: Any, support: Support) -> dict[str, Any]:
    """The state of a DataLoader as JSON values.

    Args:
        support: what the loader runs, or would run at its first iter().
    """
    state = loader._feedmill
    position = state.position
    if position.loaded is not None:
        return copy.deepcopy(position.loaded[0])
    progress = position.progress
    is_inside = progress is not None and not progress.is_finished
    if position.fingerprints is None:
        position.fingerprints = fingerprints_of(loader, support)
    saved: dict[str, Any] = {
        "feedmill": VERSION,
        "epoch": progress.number if is_inside else state.epochs.next_number,
        "sampler_epoch": progress.sampler_epoch if is_inside else sampler_epoch(loader),
        "path": support.path,
        **position.fingerprints,
        "position": None,
        "run": position.totals.now(counters_of(loader)),
    }
    virtual = None if progress is None else progress.virtual
    refusal = position.refusal or (progress.refusal if is_inside else "") or refusal_of(virtual)
    if refusal:
        saved["refused"] = refusal
        _warn(f"state_dict() holds no position in the epoch: {refusal}")
        return saved
    if _saves_dataset(loader, support):
        saved["dataset_state"] = copy.deepcopy(loader.dataset.state_dict())
    if is_inside:
        saved["position"] = progress.position()
        draws_from_it = support.path == "native" and loader._feedmill_options().seed is None
        if "ranks" in saved["position"] and not draws_from_it:
            saved["position"]["seed"] = None  # each rank has its own, and does not need it
        saved["position"]["is_all"] = _is_all(loader, progress)
    # Persistent workers go on with the next epoch.
    if virtual is not None and (is_inside or loader.persistent_workers):
        saved["workers"] = torch_workers.workers_of(loader, virtual, progress.n_batches)
    if is_inside and not saved["position"]["is_all"]:
        return saved
    generators = given_generators(loader, loader._index_sampler)
    saved["generators"] = {name: encoded(one.get_state()) for name, one in generators.items()}
    sampler = stateful_sampler(loader._index_sampler)
    if sampler is not None and not is_inside:
        try:
            saved["sampler"] = copy.deepcopy(sampler.state_dict())
        except Exception as error:
            _warn(f"state_dict() holds no state of the {type(sampler).__qualname__}: {error!r}")
    return saved


def _is_all(loader: Any, progress: Progress) -> bool:
    """Whether all batches were delivered, and only the epoch's end was not asked for."""
    sampler = loader._index_sampler
    try:
        n_left = progress.n_left
        if not progress.counts_samples:
            return bool(n_left <= 0)
    except Exception:  # it need not have a length
        return False
    drops = getattr(sampler, "drop_last", False)
    return bool(n_left < getattr(sampler, "batch_size", 1) if drops else n_left <= 0)


def _saves_dataset(loader: Any, support: Support) -> bool:
    """Whether the dataset has a state of its own, in this process."""
    return support.path == "torch" and loader.num_workers == 0 and is_stateful(loader.dataset)


def _warn(text: str) -> None:
    warnings.warn(f"feedmill.DataLoader: {text}", UserWarning, stacklevel=4)


def _why_not(loader: Any, support: Support) -> str:
    """Why an epoch of this loader can't be resumed; "" if it can."""
    dataset = loader.dataset
    if isinstance(dataset, IterableDataset):
        return (
            f"the dataset {type(dataset).__qualname__} is an IterableDataset, which has no indices "
            "to go on at"
        )
    own = getattr(type(loader)._index_sampler, "fget", None)
    if getattr(own, "__module__", "") != "feedmill.loader":
        return f"{type(loader).__qualname__} has an _index_sampler of its own"
    if support.path == "torch" and loader.num_workers > 1 and not getattr(loader, "in_order", True):
        return "with in_order=False the delivered batches are not the first ones of the order"
    return ""


# ---- what a state belongs to ---------------------------------------------------------------------


def fingerprints_of(loader: Any, support: Support) -> dict[str, Any]:
    """Fingerprints of dataset, transforms and order. Reads no image."""
    source = support.source
    dataset: dict[str, Any] = {"kind": type(loader.dataset).__qualname__, "n": _length(loader)}
    order = _order_fingerprint(loader)
    found = {"dataset": dataset, "transform": "", "random": True, "order": order}
    if source is None:
        found["transform"] = _digest(_named_transform(loader.dataset))
        return found
    dataset |= {"kind": source.kind, "n": source.n_samples}
    dataset["ends"] = _digest(*(_sample_fingerprint(source, i) for i in {0, source.n_samples - 1}))
    plan = source.plan
    found["transform"] = _digest(repr(plan) if plan is not None else _named_transform(source))
    found["random"] = plan is not None and bool(getattr(plan, "is_random", False))
    found["seed"] = loader._feedmill_options().seed if found["random"] else None
    if draws_as_torch(loader, support):
        found["rng"] = "torch"
    return found


def _length(loader: Any) -> int | None:
    try:
        return len(loader.dataset)
    except TypeError:
        return None


def _sample_fingerprint(source: Source, index: int) -> str:
    """The name and target of a sample, without its folders: a dataset may move. For a dataset in
    memory its row."""
    if not 0 <= index < source.n_samples:
        return ""
    if source.arrays is not None:
        return repr([index, [tuple(one.shape[1:]) for one in getattr(source, "tensors", ())]])
    base = source._node.locate(index)[0]
    if base.has_feedmill_item and not type(base.dataset).__module__.startswith("feedmill."):
        return str(index)  # a function of the script's, which may read a file
    try:
        item = source.item(index)
    except Exception:
        return ""
    path = " ".join("/".join(str(one.path).split("/")[-2:]) for one in item.files())
    part = item.data if isinstance(item.data, tuple) else ""
    return f"{path} {part} {item.target!r}"


def _named_transform(value: Any) -> str:
    """The transform of a dataset as text, as far as it has one."""
    parts = []
    for name in ("transform", "transforms"):
        transform = getattr(value, name, None)
        known = type(transform).__module__.partition(".")[0] in ("torchvision", "torch")
        text = repr(transform) if known else type(transform).__qualname__
        parts.append(_ADDRESS.sub("", text))
    return "\n".join(parts)


def _order_fingerprint(loader: Any) -> str:
    """What the order depends on: the sampler's class, and the arguments that all ranks share."""
    sampler = innermost(loader._index_sampler)
    if (batches := dealt_batches(sampler)) is not None:
        sampler = batches.sampler  # the order that all ranks share, as of a single process
    text = type(sampler).__qualname__
    if isinstance(sampler, DistributedSampler):
        text += f"({sampler.shuffle}, {sampler.seed}, {sampler.drop_last})"
        if not is_shared(sampler):
            text += f" of {sampler.num_replicas} ranks, whose number must stay"
    elif is_accelerates_shard(sampler):
        text += f" of {sampler.num_processes} ranks, whose number must stay"
    elif is_seedable(sampler):
        text += f"(data_seed={sampler.initial_seed})"
    return text


def _digest(*texts: str) -> str:
    return hashlib.sha256("\n".join(texts).encode()).hexdigest()[:16]


# ---- loading -------------------------------------------------------------------------------------


def check(loader: Any, support: Support, saved: dict[str, Any]) -> None:
    """Raises ValueError if a state belongs to another dataset, transform or order."""
    now = fingerprints_of(loader, support)
    then, mine = saved["dataset"], now["dataset"]
    if then["n"] != mine["n"]:
        raise _other("dataset", f"it had {then['n']} samples, and has {mine['n']} now")
    same_path = saved["path"] == support.path
    if same_path and then != mine:
        raise _other(
            "dataset", f"its kind ({then['kind']}; now {mine['kind']}), or the name or target of "
            "its first or last sample, is not the same"
        )
    if same_path and saved["transform"] != now["transform"]:
        raise _other("transforms", "they, dtype= or memory_format= are not the same")
    if not same_path and saved["position"] and saved["random"] and saved["path"] == "native":
        raise _other(
            "random numbers",
            f"the epoch ran natively, and would go on on the path {support.path!r}, whose draws "
            "differ; explain() says why",
        )
    if saved["position"] and same_path and saved.get("rng") != now.get("rng"):
        raise _other(
            "random numbers",
            f"the epoch ran with rng={saved.get('rng', 'feedmill')!r}, and would go on with "
            f"rng={now.get('rng', 'feedmill')!r}",
        )
    if saved["position"] and same_path and (why := torch_workers.mismatch(loader, support, saved)):
        raise _other("random numbers", why)
    if saved["order"] != now["order"]:
        raise _other("order", f"it came from {saved['order']}, and comes from {now['order']} now")
    if same_path and saved.get("seed") != now.get("seed"):
        raise _other("random numbers", f"seed was {saved.get('seed')}, and is {now.get('seed')}")
    position = saved["position"]
    if position is not None:
        # A custom batch sampler's batches can't be split or joined.
        mine_unit = Progress(loader, 0).counts_samples
        converted = as_counted_here(position, loader._index_sampler)
        if (converted["unit"] == "samples") != mine_unit:
            raise _other("order", "only one of the two has a batch sampler of the script's own")
        _check_ranks(loader, position, now)


def _check_values(position: Any) -> None:
    """Raises ValueError if the numbers of a state's position are not those that a state has."""
    if position is None:
        return
    if not isinstance(position, dict):
        raise ValueError(f"the state is damaged: its position is {position!r}")
    numbers = {name: position.get(name) for name in ("batches", "samples", "bad")}
    if "ranks" in position:
        ranks = position["ranks"]
        if not isinstance(ranks, dict):
            raise ValueError(f"the state is damaged: its ranks are {ranks!r}")
        numbers.update({name: ranks.get(name) for name in ("ranks", "used")})
        if position.get("unit") == "batches":
            numbers["step"] = ranks.get("step")
    for name, value in numbers.items():
        if not is_int(value, 1 if name in ("ranks", "step") else 0, (1 << 62) - 1):
            raise ValueError(f"the state is damaged: {name} is {value!r}")


def _check_ranks(loader: Any, position: dict[str, Any], now: dict[str, Any]) -> None:
    """Raises ValueError if an epoch can't go on with this number of ranks."""
    then = position.get("ranks", {}).get("ranks")
    sampler = innermost(loader._index_sampler)
    if then is None and position["unit"] == "samples" and is_shared(sampler):
        raise ValueError("the state is damaged: it does not say how many ranks there were")
    mine = n_ranks_of(loader._index_sampler)
    if then is None and position["unit"] == "samples" and dealt_batches(sampler) is not None:
        then = 1
    if then in (None, mine):
        return
    is_batched = dealt_batches(sampler) is not None or (
        mine == 1 and "step" in position.get("ranks", {})
    )
    if not is_batched and not is_shared(sampler):
        raise _other("order", f"it had {then} ranks, and this {type(sampler).__name__} has numbers "
                     "of its own")
    if "seed" in now and now["random"] and now["seed"] is None:
        raise _other(
            "random numbers",
            f"it had {then} ranks, and has {mine} now; without seed= the draws are those of each "
            "rank's torch generator",
        )


def _other(what: str, why: str) -> ValueError:
    return ValueError(f"the state is of a loader with other {what}: {why}; {_INSIST}")


def _is_lightning(module: str) -> bool:
    """Whether a module is the one of Lightning that loads the states of loaders."""
    parts = module.split(".")
    return parts[0] in ("lightning", "pytorch_lightning") and parts[-1] == "combined_loader"


def load_state_dict(
    loader: Any, saved: Any, strict: bool, support: Support, caller: str = ""
) -> None:
    """Loads a state, for the next iter().

    Args:
        caller: name of the module that called the loader's method. Lightning ends an epoch without
            asking for its end, and expects the next epoch from a state taken after the last batch.
    """
    position = loader._feedmill.position
    if saved == {}:
        position.loaded = None
        return
    if not isinstance(saved, dict) or "feedmill" not in saved or "position" not in saved:
        raise ValueError(
            "not a state of feedmill.DataLoader: pass what its state_dict() returned"
        )
    if saved["feedmill"] != VERSION:
        raise ValueError(
            f"the state has version {saved['feedmill']}, and this feedmill reads {VERSION}"
        )
    _check_values(saved["position"])
    torch_workers.check_values(saved.get("workers"))
    saved = copy.deepcopy(saved)
    if saved["position"] is not None and saved["position"].get("is_all") and _is_lightning(caller):
        saved["begins_next"] = True
    if strict:
        try:
            check(loader, support, saved)
        except ValueError as error:
            if not _is_lightning(caller):
                raise
            # Its user can't insist, and with torch's loader the epoch begins at its start, too.
            _warn(f"load_state_dict(): the next epoch begins at its start: {error}")
            position.loaded = None
            return
    if saved["position"] is not None:
        saved["position"] = as_counted_here(saved["position"], loader._index_sampler)
    if refused := saved.get("refused"):
        _warn(f"load_state_dict(): the next epoch begins at its start: {refused}")
    loader._feedmill.epochs.next_number = saved["epoch"]
    loader._feedmill.sampler_epoch = None
    position.loaded = saved, strict


# ---- iter() --------------------------------------------------------------------------------------


@contextmanager
def making_iterator(loader: Any, support: Support) -> Iterator[Progress]:
    """While an iterator is made: its progress counts as the loader's, and it begins at the loaded
    state, if any."""
    position = loader._feedmill.position
    before, state_before = vars(position).copy(), torch.default_generator.get_state()
    progress = begin(loader, support)
    progress.order.global_before = state_before if progress.is_resumed else None
    if not progress.is_resumed:
        _load_dataset(loader)  # iter() then draws as at the same epoch of an unbroken run
    try:
        yield progress
    except BaseException:
        vars(position).update(before)
        raise
    if progress.order.global_before is not None:
        # What torch draws at iter() was drawn when the epoch began.
        torch.default_generator.set_state(state_before)
        progress.order.global_before = None
    # After that: it may restore torch's global generator, which its samples draw from.
    _load_dataset(loader)


def _load_dataset(loader: Any) -> None:
    """Gives the dataset its loaded state, if there is one that it does not have yet."""
    position = loader._feedmill.position
    if position.dataset_state is not None:
        state, position.dataset_state = position.dataset_state, None
        loader.dataset.load_state_dict(state)


def begin(loader: Any, support: Support) -> Progress:
    """Begins an epoch, at the loaded state if there is one."""
    state = loader._feedmill
    position = state.position
    loaded, strict = position.loaded or (None, True)
    saved = None
    if loaded is not None:
        position.totals = carried_on(loaded.get("run"), counters_of(loader))
        saved = _apply(loader, loaded, support)
    if loaded is not None and saved is not None and loaded.get("begins_next"):
        if support.path == "native":
            state.epochs.next_number += 1
        saved = None
    position.refusal = _why_not(loader, support)
    position.support, position.fingerprints = support, None
    source = support.source
    plan = source.plan if source is not None and support.path == "native" else None
    progress = Progress(
        loader,
        state.epochs.next_number,
        None if position.refusal else saved,
        is_strict=strict,
        n_samples=source.n_samples if source and getattr(plan, "is_random", False) else 0,
        records=support.path == "torch",
    )
    if loaded is not None:
        _set_workers(loader, support, loaded, progress)
    position.progress = state.progress = progress
    position.loaded = None
    return progress


def _set_workers(
    loader: Any, support: Support, loaded: dict[str, Any], progress: Progress
) -> None:
    """Makes an epoch begin with the generators of a state's workers, if it has any."""
    is_resumed = progress.is_resumed
    progress.workers = torch_workers.workers_to_go_on(loader, support, loaded, is_resumed)
    why = torch_workers.mismatch(loader, support, loaded)
    if is_resumed and why:
        _warn(f"the rest of the epoch draws other random numbers than an unbroken run: {why}")


def _apply(loader: Any, loaded: dict[str, Any], support: Support) -> dict[str, Any] | None:
    """Sets the epoch, and between epochs the generators. Returns the position inside an epoch."""
    saved: dict[str, Any] | None = loaded["position"]
    if saved is not None:
        loader._feedmill.epochs.next_number = loaded["epoch"]
        epoch = loaded["sampler_epoch"]
        for sampler in samplers_of(loader) if epoch is not None else ():
            if getattr(sampler, "epoch", epoch) != epoch and hasattr(sampler, "set_epoch"):
                sampler.set_epoch(epoch)
    sampler = stateful_sampler(loader._index_sampler)
    if sampler is not None and "sampler" in loaded:
        global_state = torch.default_generator.get_state()
        _load_at_end(sampler, loaded["sampler"])
        torch.default_generator.set_state(global_state)
    # After what the sampler may have drawn from them.
    for name, generator in given_generators(loader, loader._index_sampler).items():
        if text := loaded.get("generators", {}).get(name):
            generator.set_state(decoded(text))
    if _saves_dataset(loader, support):
        loader._feedmill.position.dataset_state = copy.deepcopy(loaded.get("dataset_state"))
    return saved


def _load_at_end(sampler: Any, state: Any) -> None:
    """Loads the state that a sampler had between two epochs. If it is that of the end of an epoch,
    the sampler gives nothing at first."""
    load_copy(sampler, state)
    for _ in iter(sampler):
        load_copy(sampler, state)  # it began another epoch
        break


def finish(iterator: Any, progress: Progress) -> None:
    """Called with torch's own iterator when it was made."""
    if progress.was_used:
        iterator._index_sampler = progress.index_sampler
        iterator._progress = progress
        progress.begin(iterator._base_seed, 0)
