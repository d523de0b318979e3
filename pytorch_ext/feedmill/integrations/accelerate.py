"""feedmill.DataLoader in Hugging Face Accelerate.

Accelerate does not keep a loader that it prepares. It reads torch's arguments from it and builds
another one by the name ``DataLoader`` in its module ``accelerate.data_loader``: torch's, without
the native path and without feedmill's options. ``keep_in_accelerate()`` replaces that name by a
factory while it is active, also where Accelerate would build torchdata's StatefulDataLoader
(``use_stateful_dataloader``). Otherwise a loader warns that it is about to be replaced.
"""

from __future__ import annotations

import functools
import inspect
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch.utils.data import IterableDataset

from feedmill.system.locks import renew_after_fork

_MODULE = "accelerate.data_loader"


class _Kept(threading.local):
    """Per-thread state about the loaders that Accelerate is rebuilding."""

    depth = 0  # number of active keep_in_accelerate() contexts
    source: Any = None  # the feedmill.DataLoader whose arguments were read last


class _Replaced:
    """The replacements of ``DataLoader`` and of the wrappers' constructor in Accelerate's module,
    which all threads share: in place as long as any thread has an active context.

    Attributes:
        original: the replaced class; None: it is not replaced now.
    """

    def __init__(self) -> None:
        self.original: Any = None
        self._n_contexts = 0
        self._factory: Any = None
        self._constructor: Any = None
        self._original_constructor: Any = None
        self._lock = threading.RLock()
        renew_after_fork(self, _lock=threading.RLock)

    def enter(self, module: Any) -> None:
        with self._lock:
            if self._factory is None or module.DataLoader is not self._factory:
                self.original = module.DataLoader
                module.DataLoader = self._factory = _factory(self.original)
            adapter = getattr(module, "DataLoaderAdapter", None)  # older versions have none
            if adapter is not None and adapter.__init__ is not self._constructor:
                self._original_constructor = adapter.__init__
                adapter.__init__ = self._constructor = _constructor(adapter.__init__)
            self._n_contexts += 1

    def leave(self, module: Any) -> None:
        with self._lock:
            self._n_contexts -= 1
            if self._n_contexts:
                return
            if module.DataLoader is self._factory:  # else other code has replaced it since
                module.DataLoader = self.original
            adapter = getattr(module, "DataLoaderAdapter", None)
            if adapter is not None and adapter.__init__ is self._constructor:
                adapter.__init__ = self._original_constructor
            self.original = self._factory = None
            self._constructor = self._original_constructor = None


_kept = _Kept()
_replaced = _Replaced()


def prepare(accelerator: Any, *objects: Any, device_placement: list[bool] | None = None) -> Any:
    """``accelerator.prepare(*objects)`` that keeps every feedmill.DataLoader.

    As always, a loader is returned inside Accelerate's wrapper, which shards the batches, moves
    them to the device and counts epochs. The loader inside is a new feedmill.DataLoader with
    Accelerate's sampler and with the options (native, seed, threads, ...) of the given one. The
    wrapper's ``stats()``, ``report()`` and ``explain()`` are that loader's; its ``set_epoch()``
    also sets that loader's epoch.

    Args:
        accelerator: an ``accelerate.Accelerator``.
        objects: as for ``accelerator.prepare()``; loaders of other classes are prepared as always.
        device_placement: passed on.

    Raises:
        RuntimeError: native="require", and the new loader can't run natively.
    """
    with keep_in_accelerate():
        return accelerator.prepare(*objects, device_placement=device_placement)


def skip_first_batches(loader: Any, num_batches: int = 0) -> Any:
    """``accelerate.skip_first_batches()`` that keeps a feedmill.DataLoader.

    Args:
        loader: a feedmill.DataLoader, or the wrapper that ``prepare()`` returned for it.
        num_batches: number of batches to skip at the beginning; their files are not read.
    """
    import accelerate

    with keep_in_accelerate():
        return accelerate.skip_first_batches(loader, num_batches)


@contextmanager
def keep_in_accelerate() -> Iterator[None]:
    """Context in which Accelerate rebuilds a feedmill.DataLoader as a feedmill.DataLoader.

    For code that calls Accelerate itself, such as transformers' ``Trainer.train()`` with a
    ``get_train_dataloader()`` that returns a feedmill.DataLoader. Elsewhere ``prepare()`` and
    ``skip_first_batches()`` suffice. It affects loaders of the thread that entered it; several
    threads may be inside at once.
    """
    import accelerate.data_loader as module

    _replaced.enter(module)
    _kept.depth += 1
    try:
        yield
        _warn_if_not_kept()
    finally:
        _kept.depth -= 1
        _kept.source = None
        _replaced.leave(module)


def note_read(loader: Any) -> None:
    """Called by a property of ``loader`` that Accelerate reads before it rebuilds a loader: records
    that or, outside of keep_in_accelerate(), warns. Must be called by the property itself, as it
    looks at the frame of the property's reader."""
    if sys._getframe(2).f_globals.get("__name__") != _MODULE:
        return
    if _kept.depth:
        _warn_if_not_kept()
        _kept.source = loader
    elif not _is_same_when_rebuilt(loader):
        _warn_once(
            loader,
            "Accelerate replaces this feedmill.DataLoader by a new one of its own DataLoader "
            "class: torch's, without the native path, or one without its options. To keep it, call "
            "feedmill.prepare(accelerator, ...) in place of accelerator.prepare(...), and "
            "feedmill.skip_first_batches(loader, n) in place of accelerate's, or both inside of "
            "feedmill.keep_in_accelerate()",
        )


# ---- rebuilding ----------------------------------------------------------------------------------


def _factory(otherwise: Callable[..., Any]) -> Callable[..., Any]:
    """The function that Accelerate calls in place of its DataLoader class, ``otherwise``."""

    def build(dataset: Any, *args: Any, **arguments: Any) -> Any:
        source = _kept.source
        # The source may be left over from a preparation that failed.
        if source is None or not _goes_with(dataset, source):
            return otherwise(dataset, *args, **arguments)
        _kept.source = None
        loader = source._feedmill_rebuilt(dataset, *args, **arguments)
        wrapper = sys._getframe(1).f_locals.get("self")
        if wrapper is not None and hasattr(type(wrapper), "set_epoch"):
            wrapper.set_epoch = _SetEpoch(wrapper, loader)
            wrapper.load_state_dict = _LoadState(wrapper, loader)
        return loader

    return build


def _constructor(otherwise: Callable[..., None]) -> Callable[..., None]:
    """The constructor of Accelerate's wrappers in place of its own one, ``otherwise``."""

    @functools.wraps(otherwise)
    def construct(
        self: Any, dataset: Any, use_stateful_dataloader: bool = False, *args: Any, **arguments: Any
    ) -> None:
        source = _kept.source
        # A feedmill.DataLoader has the methods of torchdata's StatefulDataLoader.
        is_kept = source is not None and _goes_with(dataset, source)
        otherwise(self, dataset, use_stateful_dataloader and not is_kept, *args, **arguments)
        if use_stateful_dataloader and is_kept:
            self.use_stateful_dataloader = True

    return construct


def _goes_with(dataset: Any, source: Any) -> bool:
    # Accelerate shards an IterableDataset by wrapping it, and leaves other datasets alone.
    return dataset is source.dataset or isinstance(dataset, IterableDataset)


class _SetEpoch:
    """``set_epoch()`` for Accelerate's wrapper, which also calls it at each iter(). The wrapper's
    own one does not reach the loader inside. A class, so that the wrapper can be pickled."""

    def __init__(self, wrapper: Any, loader: Any) -> None:
        self._wrapper = wrapper
        self._loader = loader

    def __call__(self, epoch: int) -> None:
        type(self._wrapper).set_epoch(self._wrapper, epoch)
        self._loader._feedmill.epochs.next_number = epoch


class _LoadState:
    """``load_state_dict()`` for Accelerate's wrapper, which counts epochs from 0 in each process
    and sets the loader's epoch from that at each iter()."""

    def __init__(self, wrapper: Any, loader: Any) -> None:
        self._wrapper = wrapper
        self._loader = loader

    def __call__(self, state_dict: dict[str, Any]) -> None:
        self._loader.load_state_dict(state_dict)
        self._wrapper.dl_state_dict = self._loader.state_dict()  # before the first step, too
        self._wrapper.iteration = _epoch_of(state_dict)


def _epoch_of(state: dict[str, Any]) -> int:
    """Accelerate's number of the epoch that a state begins or goes on with."""
    number = int(state.get("epoch", 0))
    # Only the native path counts epochs itself; Accelerate has marked the state at an epoch's end.
    is_uncounted = state.get("path") != "native" and state.get("position") is None
    return number + bool(is_uncounted and state.get("_iterator_finished"))


# ---- warnings ------------------------------------------------------------------------------------


def _warn_if_not_kept() -> None:
    source, _kept.source = _kept.source, None
    if source is not None:
        _warn_once(
            source,
            "Accelerate did not rebuild this feedmill.DataLoader by its own DataLoader class, so "
            "that it could not be kept: it now is a loader of another class",
        )


def _warn_once(loader: Any, text: str) -> None:
    if not loader._feedmill.loss_is_known:
        loader._feedmill.loss_is_known = True
        warnings.warn(text, UserWarning, stacklevel=_callers_level())


def _callers_level() -> int:
    """The stacklevel for warnings.warn() in the caller that points at the code which called
    Accelerate."""
    level, frame = 1, sys._getframe(1)
    while frame.f_back is not None and _is_internal(frame.f_globals.get("__name__", "")):
        level, frame = level + 1, frame.f_back
    return level


def _is_internal(module: str) -> bool:
    return module.partition(".")[0] in ("feedmill", "accelerate", "contextlib")


def _is_same_when_rebuilt(loader: Any) -> bool:
    """Whether Accelerate's DataLoader is feedmill's, as under ``feedmill run``, with defaults that
    equal the options of ``loader``."""
    # Another thread may have an active context.
    kind = _replaced.original or sys.modules[_MODULE].DataLoader
    if not isinstance(kind, type) or not hasattr(kind, "_feedmill_options"):
        return False
    constructor = kind.__init__  # type: ignore[misc]
    parameters = inspect.signature(constructor).parameters
    return all(
        name in parameters and value == parameters[name].default
        for name, value in loader._feedmill_options().values().items()
    )
