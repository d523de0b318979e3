"""Records the batches of a script's DataLoaders, in the script's own process.

The first time that the script iterates a DataLoader, every loader that it has made so far is
iterated for some batches, each with the same seeds, and one JSON line per loader is written. The
process ends as soon as enough loaders are recorded; until then the script goes on.

The environment says what to do; run.py sets it:

    PUBLIC_SCRIPTS_OUT      folder for the JSON lines, one file per process
    PUBLIC_SCRIPTS_BATCHES  how many batches to take from each loader
    PUBLIC_SCRIPTS_LOADERS  how many loaders to record before the process ends
    PUBLIC_SCRIPTS_COUNT    1: count the images that are opened. Not under feedmill, which does not
                            replace functions that somebody has changed.
    PUBLIC_SCRIPTS_VERIFY   1: iterate feedmill's loaders with native="verify". The script itself can't
                            be run with it, as it is an error for loaders that are not native.
    PUBLIC_SCRIPTS_COLLATE  1: seed the generators alike for each call of a loader's collate_fn, and
                            use one worker at most, which calls it in order
    PUBLIC_SCRIPTS_SPEED    "ROUNDS SECONDS": also measure each loader (speed.py); "": don't
    PUBLIC_SCRIPTS_MEASURED which loaders to measure: their numbers, separated by spaces; "": all
    PUBLIC_SCRIPTS_CUDA     see simulated.simulate_in_torch()
    PUBLIC_SCRIPTS_STUBS    see simulated.simulate(); names separated by spaces
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import random
import sys
import types
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from public_scripts_hook import speed
from public_scripts_hook.after_import import call_after_import
from public_scripts_hook.digests import digests
from public_scripts_hook.image_counter import count_images, n_images
from public_scripts_hook.paths import path_of
from public_scripts_hook.simulated import simulate, simulate_in_torch

_SEED = 20


def install() -> None:
    """Makes this process record its loaders, from its import of torch on."""
    if "PUBLIC_SCRIPTS_OUT" not in os.environ:
        return
    simulate(os.environ["PUBLIC_SCRIPTS_STUBS"].split())
    if os.environ["PUBLIC_SCRIPTS_COUNT"]:
        count_images()
    if os.environ["PUBLIC_SCRIPTS_SPEED"]:
        speed.keep_pillows_functions()
    call_after_import("torch", _after_torch)


def _after_torch(_: types.ModuleType) -> None:
    simulate_in_torch(os.environ["PUBLIC_SCRIPTS_CUDA"])
    _replace_methods()
    _seed()  # datasets may draw when they are made


# ---- the loaders ---------------------------------------------------------------------------------

_made: list[tuple[int, str, weakref.ref[Any]]] = []
_recorded: set[int] = set()
_busy = False


def _replace_methods() -> None:
    from torch.utils.data import DataLoader

    init, get_iterator = DataLoader.__init__, DataLoader.__iter__

    @functools.wraps(init)
    def __init__(self: Any, *args: Any, **options: Any) -> None:
        if not _busy and _is_scripts_own(self):
            _made.append((len(_made), _place(), weakref.ref(self)))
        init(self, *args, **options)

    def recording(iterate: Callable[[Any], Any]) -> Callable[[Any], Any]:
        @functools.wraps(iterate)
        def __iter__(self: Any) -> Any:
            if not _busy and _is_scripts_own(self) and not _is_under_construction(self):
                _record_new_ones()
            return iterate(self)

        return __iter__

    def __init_subclass__(cls: Any, **options: Any) -> None:
        super(DataLoader, cls).__init_subclass__(**options)
        if "__iter__" in vars(cls):
            cls.__iter__ = recording(cls.__iter__)

    DataLoader.__init__ = __init__
    DataLoader.__iter__ = recording(get_iterator)
    DataLoader.__init_subclass__ = classmethod(__init_subclass__)


def _is_scripts_own(loader: Any) -> bool:
    """False for loaders that feedmill makes to look at torch's class."""
    kind = type(loader)
    return kind.__module__ in ("feedmill", "feedmill.loader") or (
        kind.__module__.partition(".")[0] != "feedmill"
    )


def _is_under_construction(loader: Any) -> bool:
    """Whether a subclass's constructor iterates the loader, to keep the iterator."""
    frame = sys._getframe(2)
    while frame is not None:
        if frame.f_code.co_name == "__init__" and frame.f_locals.get("self") is loader:
            return True
        frame = frame.f_back
    return False


def _place() -> str:
    """The file and line, outside of libraries for loading, that makes a loader."""
    frame = sys._getframe(2)
    while frame.f_back is not None:
        name = frame.f_globals.get("__name__", "")
        if name.partition(".")[0] not in ("torch", "feedmill", "torchdata", "public_scripts_hook"):
            break
        frame = frame.f_back
    return f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"


def _record_new_ones() -> None:
    global _busy
    _busy = True
    try:
        # Libraries may replace a loader by one of the same data set; the last one counts.
        alive: dict[Any, tuple[int, str, Any]] = {}
        for number, place, reference in _made:
            loader = reference()
            if loader is not None and number not in _recorded:
                key = (id(loader.dataset), loader.batch_size, loader.num_workers)
                alive[key] = (number, alive.get(key, (0, place))[1], loader)
        for number, place, loader in alive.values():
            _recorded.add(number)
            found = {"number": number, "place": place, **_record(loader)}
            if _is_measured(number):
                n_rounds, turn_s = os.environ["PUBLIC_SCRIPTS_SPEED"].split()
                found.update(speed.measured(loader, int(n_rounds), float(turn_s), _seed))
            _write(found)
    finally:
        _busy = False
    if len(_recorded) >= int(os.environ["PUBLIC_SCRIPTS_LOADERS"]):
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)


def _is_measured(number: int) -> bool:
    numbers = os.environ["PUBLIC_SCRIPTS_MEASURED"].split()
    return bool(os.environ["PUBLIC_SCRIPTS_SPEED"]) and (not numbers or str(number) in numbers)


def _write(line: dict[str, Any]) -> None:
    path = Path(os.environ["PUBLIC_SCRIPTS_OUT"]) / f"{os.getpid()}.jsonl"
    with path.open("a") as file:
        file.write(json.dumps(line) + "\n")


def _record(loader: Any) -> dict[str, Any]:
    """Iterates a loader for some batches, and says what came."""
    found: dict[str, Any] = {
        "dataset": type(loader.dataset).__name__,
        "class": f"{type(loader).__module__}.{type(loader).__qualname__}",
        "num_workers": loader.num_workers,
        "batches": [],
    }
    _seed()
    n_before = n_images()
    try:
        found["length"] = len(loader)
    except Exception:
        found["length"] = None
    if os.environ.get("PUBLIC_SCRIPTS_VERIFY"):
        loader.native = "verify"
    if os.environ.get("PUBLIC_SCRIPTS_COLLATE"):
        loader.collate_fn = _SeededCollate(loader.collate_fn)
        loader.num_workers = min(loader.num_workers, 1)
    try:
        iterator = iter(loader)
        for _, batch in zip(range(int(os.environ["PUBLIC_SCRIPTS_BATCHES"])), iterator):
            found["batches"].append(digests(batch))
        del iterator
    except Exception as error:
        # Of a worker's error, the last line: the others have paths and process numbers.
        lines = str(error).strip().splitlines() or [""]
        found["error"] = f"{type(error).__name__}: {lines[-1]}"
    found["images"] = n_images() - n_before
    found.update(path_of(loader))
    return found


def _seed() -> None:
    import numpy
    import torch

    random.seed(_SEED)
    numpy.random.seed(_SEED)
    torch.manual_seed(_SEED)


class _SeededCollate:
    """A collate_fn whose draws are the same in each call, and change no draw of others."""

    def __init__(self, collate: Callable[[Any], Any]) -> None:
        self._collate = collate

    def __call__(self, samples: Any) -> Any:
        with _restored_generators():
            _seed()
            return self._collate(samples)


@contextlib.contextmanager
def _restored_generators() -> Iterator[None]:
    import numpy
    import torch

    states = random.getstate(), numpy.random.get_state(), torch.get_rng_state()
    try:
        yield
    finally:
        random.setstate(states[0])
        numpy.random.set_state(states[1])
        torch.set_rng_state(states[2])
