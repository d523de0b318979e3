"""What ``feedmill run`` does inside each Python process, once torch and feedmill are imported.

It puts feedmill.DataLoader in the place of torch's DataLoader, or leaves that alone, and has both
counted for the report at the end of the process. The options come through the environment.
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
from feedmill.system.callers import place_of_caller

_PLACE = "_feedmill_place"
_DATA = "_feedmill_data"


def install() -> None:
    """Called once a process, by the sitecustomize module beside this one."""
    _observe_ours()
    if os.environ["FEEDMILL_RUN"] == "watch":
        _observe_torch()
        return
    _set_defaults()
    # At this point hardly anybody but torch itself can have got hold of its class.
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] != "feedmill":
            members = getattr(module, "__dict__", {})
            if members.get("DataLoader") is TorchDataLoader:
                members["DataLoader"] = DataLoader


_DEFAULTS: dict[str, type] = {"native": str, "seed": int, "threads": int}


def _set_defaults() -> None:
    """The user's options become the constructor's defaults: what a script gives itself still
    counts, subclasses have them, and there is one class for everybody to compare types with."""
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


def _observe_ours() -> None:
    get_iterator = DataLoader._get_iterator

    @functools.wraps(_constructor)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        _note_made(self)
        _constructor(self, *args, **kwargs)

    @functools.wraps(get_iterator)
    def _get_iterator(self: Any) -> Any:
        if why := _why_foreign(self):
            return _foreign_iterator(self, why)
        iterator = get_iterator(self)
        inside = self._feedmill
        _count(self, "native", inside.handles)
        _count(self, "torch", inside.torch_counters, inside.reasons)
        return iterator

    DataLoader.__init__ = __init__  # type: ignore[method-assign]
    DataLoader._get_iterator = _get_iterator  # type: ignore[method-assign]
    _observe_subclasses(DataLoader, _count_own_iterator)


def _observe_torch() -> None:
    init, get_iterator = TorchDataLoader.__init__, _internals.get_iterator
    if get_iterator is None:
        return  # a torch that feedmill does not know

    @functools.wraps(init)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        if not isinstance(self, DataLoader):
            _note_made(self)
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


def _note_made(loader: Any) -> None:
    with contextlib.suppress(Exception):  # a report is not worth a training
        place = place_of_caller()
        vars(loader)[_PLACE] = place
        tally.note_made(place)


def _count(loader: Any, path: str, account: Any, reasons: tuple[str, ...] = ()) -> None:
    with contextlib.suppress(Exception):
        place = vars(loader).get(_PLACE) or place_of_caller()
        if _DATA not in vars(loader):
            vars(loader)[_DATA] = _data_of(loader)
        tally.add(place, path, account, reasons, vars(loader)[_DATA])


def _data_of(loader: Any) -> str:
    """What a loader loads, in a few words that differ between training and validation."""
    text = type(loader.dataset).__name__
    with contextlib.suppress(Exception):  # it may have no length, or none yet
        text += f" of {len(loader.dataset):,}"
    sampler = getattr(loader.batch_sampler, "sampler", loader.sampler)
    name = type(sampler).__name__
    orders = {"RandomSampler": "shuffled", "SequentialSampler": "in order"}
    return text if name == "_InfiniteConstantSampler" else f"{text}, {orders.get(name, name)}"


def _recorder(
    loader: Any, path: str, counters: StepCounters, reasons: tuple[str, ...] = ()
) -> Recorder:
    """Writes the log of one iterator that torch makes, where FEEDMILL_LOG asks for it."""
    recorder = Recorder(vars(loader).get(_PLACE), counters, counters.clock)
    recorder.path, recorder.reasons = path, reasons
    recorder.begin(None, batch_size=loader.batch_size)
    return recorder


# ---- loaders that make iterators of their own ----------------------------------------------------

# Such as torchdata's StatefulDataLoader, whose constructor leaves out that of the class below it.


def _observe_subclasses(
    base: Any, iterator_of: Callable[[Any, Callable[[Any], Any]], Any]
) -> None:
    """Has the classes that are derived from a DataLoader class from now on observed, where they
    define _get_iterator().

    Args:
        iterator_of: called with a loader and its class's own _get_iterator, for the iterator.
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
            cls.__init__ = _noting(cls.__init__)

    base.__init_subclass__ = classmethod(__init_subclass__)


def _noting(constructor: Callable[..., None]) -> Callable[..., None]:
    """A constructor behind which the line that made the loader is known."""

    @functools.wraps(constructor)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        constructor(self, *args, **kwargs)
        if _PLACE not in vars(self):
            _note_made(self)

    return __init__


def _count_own_iterator(loader: Any, get_iterator: Callable[[Any], Any]) -> Any:
    inside = loader._feedmill
    kind = type(loader)
    reason = f"{kind.__module__}.{kind.__qualname__} makes its iterators itself"
    if not isinstance(inside, LoaderState):
        return get_iterator(loader)
    if inside.options is None and _defaults()["native"] == "require":
        raise RuntimeError(f"native='require', but the native path can't be taken: {reason}")
    iterator = get_iterator(loader)
    if is_countable(iterator):  # else it has called ours, or is of a kind of its own
        inside.clock.start()
        inside.took("torch", [reason])
        log = loader._feedmill_options().log
        inside.recorder.begin(log, batch_size=loader.batch_size)
        count_steps(iterator, inside.torch_counters, recorder=inside.recorder)
        _count(loader, "torch", inside.torch_counters, (reason,))
    return iterator


# ---- loaders that are not ours -------------------------------------------------------------------

# A script or library that was written for torch's DataLoader knows nothing of what ours has beside
# that. Where it holds something else, the loaders are torch's, with nothing of ours in them.


def _why_foreign(loader: Any) -> str:
    """Why a loader can't be one of ours; "" if it can."""
    kind = type(loader)
    who = "the script" if kind is DataLoader else f"{kind.__module__}.{kind.__qualname__}"
    if not isinstance(loader._feedmill, LoaderState):
        return f"{who} has a meaning of its own for the name _feedmill"
    try:
        loader._feedmill_options().check()
    except ValueError as error:
        return f"{who} has a meaning of its own for an option's name: {error}"
    return ""


def _foreign_iterator(loader: Any, reason: str) -> Any:
    if _defaults()["native"] == "require":
        raise RuntimeError(f"native='require', but the native path can't be taken: {reason}")
    counters = TorchCounters()
    recorder = _recorder(loader, "torch", counters, (reason,))
    iterator = TorchDataLoader._get_iterator(loader)
    count_steps(iterator, counters, recorder=recorder)
    _count(loader, "torch", counters, (reason,))
    return iterator
