"""The part of ``feedmill run`` that runs inside each Python process, after torch is imported.

It replaces torch's DataLoader by feedmill.DataLoader (with --watch it does not), and counts the
waits of all loaders for the report at the end of the process. Options come through the environment.
"""

from __future__ import annotations

import contextlib
import functools
import os
import sys
from collections.abc import Callable
from typing import Any

from torch.utils.data import DataLoader as TorchDataLoader

from feedmill import _internals
from feedmill._dispatch.paths import LoaderState
from feedmill.loader import DataLoader
from feedmill.profiling.counting.accounts import StepCounters
from feedmill.profiling.log.recorder import Recorder
from feedmill.profiling.watching import tally
from feedmill.profiling.watching.torch_path import TorchCounters, count_steps, is_countable
from feedmill.system.callers import caller_location

_PLACE = "_feedmill_place"
_DATA = "_feedmill_data"


def install() -> None:
    """Called once per process, by _site/sitecustomize.py."""
    _observe_feedmill_loaders()
    if os.environ["FEEDMILL_RUN"] == "watch":
        _observe_torch_loaders()
        return
    _set_defaults()
    # torch has just been imported, so only torch's own modules are likely to refer to the class.
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] != "feedmill":
            members = getattr(module, "__dict__", {})
            if members.get("DataLoader") is TorchDataLoader:
                members["DataLoader"] = DataLoader


_DEFAULTS: dict[str, type] = {
    "native": str, "seed": int, "rng": str, "threads": int, "deferred": str,
}


def _set_defaults() -> None:
    """Makes the options of ``feedmill run`` the defaults of DataLoader's constructor. Arguments
    that the script passes override them, and subclasses get them as well."""
    for name, kind in _DEFAULTS.items():
        text = os.environ.get(f"FEEDMILL_RUN_{name.upper()}")
        if text:
            _defaults()[name] = kind(text)


def _defaults() -> dict[str, Any]:
    defaults = _constructor.__kwdefaults__
    assert defaults is not None
    return defaults


_constructor = DataLoader.__init__


# ---- counting ------------------------------------------------------------------------------------


def _observe_feedmill_loaders() -> None:
    get_iterator = DataLoader._get_iterator

    @functools.wraps(_constructor)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        _record_place(self)
        _constructor(self, *args, **kwargs)

    @functools.wraps(get_iterator)
    def _get_iterator(self: Any) -> Any:
        if why := _attribute_conflict(self):
            return _torch_iterator(self, why)
        iterator = get_iterator(self)
        state = self._feedmill
        _count(self, "native", state.engine_pool)
        _count(self, "torch", state.torch_counters, state.reasons)
        return iterator

    DataLoader.__init__ = __init__  # type: ignore[method-assign]
    DataLoader._get_iterator = _get_iterator  # type: ignore[method-assign]
    _observe_subclasses(DataLoader, _count_own_iterator)


def _observe_torch_loaders() -> None:
    init, get_iterator = TorchDataLoader.__init__, _internals.get_iterator
    if get_iterator is None:
        return  # feedmill does not know this version of torch

    @functools.wraps(init)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        if not isinstance(self, DataLoader):
            _record_place(self)
        init(self, *args, **kwargs)

    @functools.wraps(get_iterator)
    def _get_iterator(self: Any) -> Any:
        return _watch_own_iterator(self, get_iterator)

    TorchDataLoader.__init__ = __init__  # type: ignore[method-assign]
    TorchDataLoader._get_iterator = _get_iterator  # type: ignore[method-assign]
    _observe_subclasses(TorchDataLoader, _watch_own_iterator)


def _watch_own_iterator(loader: Any, get_iterator: Callable[[Any], Any]) -> Any:
    iterator = get_iterator(loader)
    if not isinstance(loader, DataLoader) and is_countable(iterator):
        counters = StepCounters()
        count_steps(iterator, counters, recorder=_recorder(loader, "watched", counters))
        _count(loader, "watched", counters)
    return iterator


def _record_place(loader: Any) -> None:
    with contextlib.suppress(Exception):  # a failed report must not end a training
        place = caller_location()
        vars(loader)[_PLACE] = place
        tally.count_created(place)


def _count(loader: Any, path: str, account: Any, reasons: tuple[str, ...] = ()) -> None:
    with contextlib.suppress(Exception):
        place = vars(loader).get(_PLACE) or caller_location()
        if _DATA not in vars(loader):
            vars(loader)[_DATA] = _data_of(loader)
        tally.add(place, path, account, reasons, vars(loader)[_DATA])


def _data_of(loader: Any) -> str:
    """The dataset and order of a loader, such as "ImageFolder of 1,000, shuffled". They tell
    training and validation loaders apart."""
    text = type(loader.dataset).__name__
    with contextlib.suppress(Exception):  # the dataset may have no length
        text += f" of {len(loader.dataset):,}"
    sampler = getattr(loader.batch_sampler, "sampler", loader.sampler)
    name = type(sampler).__name__
    orders = {"RandomSampler": "shuffled", "SequentialSampler": "in order"}
    return text if name == "_InfiniteConstantSampler" else f"{text}, {orders.get(name, name)}"


def _recorder(
    loader: Any, path: str, counters: StepCounters, reasons: tuple[str, ...] = ()
) -> Recorder:
    """A recorder for an iterator of torch. It writes a log if FEEDMILL_LOG is set."""
    recorder = Recorder(vars(loader).get(_PLACE), counters, counters.clock)
    recorder.path, recorder.reasons = path, reasons
    recorder.begin(None, lambda: {"batch_size": loader.batch_size})
    return recorder


# ---- loaders with iterators of their own ---------------------------------------------------------

# For example torchdata's StatefulDataLoader, which does not call its base class's constructor.


def _observe_subclasses(
    base: Any, iterator_of: Callable[[Any, Callable[[Any], Any]], Any]
) -> None:
    """Observes every class that is derived from a DataLoader class from now on and overrides
    _get_iterator().

    Args:
        base: the DataLoader class.
        iterator_of: replaces their _get_iterator; called with a loader and the method replaced.
    """

    def __init_subclass__(cls: Any, /, **options: Any) -> None:
        super(base, cls).__init_subclass__(**options)
        own = vars(cls).get("_get_iterator")
        if not callable(own) or cls.__module__.partition(".")[0] == "feedmill":
            return

        @functools.wraps(own)
        def _get_iterator(self: Any) -> Any:
            return iterator_of(self, own)

        cls._get_iterator = _get_iterator
        if "__init__" in vars(cls):
            cls.__init__ = _record_caller(cls.__init__)

    base.__init_subclass__ = classmethod(__init_subclass__)


def _record_caller(constructor: Callable[..., None]) -> Callable[..., None]:
    """Wraps a constructor so that the script's line that called it is recorded."""

    @functools.wraps(constructor)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        constructor(self, *args, **kwargs)
        if _PLACE not in vars(self):
            _record_place(self)

    return __init__


def _count_own_iterator(loader: Any, get_iterator: Callable[[Any], Any]) -> Any:
    state = loader._feedmill
    kind = type(loader)
    reason = f"{kind.__module__}.{kind.__qualname__} has an iterator of its own"
    if not isinstance(state, LoaderState):
        return get_iterator(loader)
    if state.options is None and _defaults()["native"] == "require":
        raise RuntimeError(f"native='require', but the native path can't be taken: {reason}")
    iterator = get_iterator(loader)
    # Other iterators are feedmill's own, which are already counted, or of an unknown type.
    if is_countable(iterator):
        state.clock.start()
        state.took("torch", [reason])
        log = loader._feedmill_options().log
        state.recorder.begin(log, lambda: {"batch_size": loader.batch_size})
        count_steps(iterator, state.torch_counters, recorder=state.recorder)
        _count(loader, "torch", state.torch_counters, (reason,))
    return iterator


# ---- loaders with conflicting attributes ---------------------------------------------------------

# A subclass that was written for torch's DataLoader may use the name of an attribute that feedmill
# has added. Its loaders then iterate as torch's do, without feedmill's code.


def _attribute_conflict(loader: Any) -> str:
    """Says which of feedmill's attributes a loader uses for something else; "" if none."""
    kind = type(loader)
    who = "the script" if kind is DataLoader else f"{kind.__module__}.{kind.__qualname__}"
    if not isinstance(loader._feedmill, LoaderState):
        return f"{who} uses the attribute _feedmill for something else"
    try:
        loader._feedmill_options().check()
    except ValueError as error:
        return f"{who} uses the name of one of feedmill's options for something else: {error}"
    return ""


def _torch_iterator(loader: Any, reason: str) -> Any:
    if _defaults()["native"] == "require":
        raise RuntimeError(f"native='require', but the native path can't be taken: {reason}")
    counters = TorchCounters()
    recorder = _recorder(loader, "torch", counters, (reason,))
    iterator = TorchDataLoader._get_iterator(loader)
    count_steps(iterator, counters, recorder=recorder)
    _count(loader, "torch", counters, (reason,))
    return iterator
