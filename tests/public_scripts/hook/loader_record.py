"""Records the batches of a script's DataLoaders, in the script's own process.

The first time that the script iterates a DataLoader, every loader that it has made so far is
iterated for some batches, each with the same seeds, and one JSON line per loader is written. The
process ends as soon as enough loaders are recorded; until then the script goes on. Scripts stay as
they are: what they need and this machine lacks (a GPU, a package that only logs) is simulated.

The environment says what to do; see run.py:

    PUBLIC_SCRIPTS_OUT      folder for the JSON lines, one file per process
    PUBLIC_SCRIPTS_BATCHES  how many batches to take from each loader
    PUBLIC_SCRIPTS_LOADERS  how many loaders to record before the process ends
    PUBLIC_SCRIPTS_COUNT    1: count the images that are opened. Not for feedmill, which does not
                            replace functions that somebody has changed.
    PUBLIC_SCRIPTS_CUDA     "calls": calls that move something to a GPU do nothing; "available":
                            torch.cuda.is_available() is true besides
    PUBLIC_SCRIPTS_STUBS    names of modules to simulate, separated by spaces
"""

from __future__ import annotations

import collections.abc
import functools
import hashlib
import importlib.abc
import importlib.machinery
import json
import math
import mmap
import os
import random
import struct
import sys
import types
import weakref
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

_SEED = 20

# ---- at the import of torch ----------------------------------------------------------------------


class _AfterTorch(importlib.abc.MetaPathFinder):
    """Finds torch with the other finders, and calls _install() after its import."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name != "torch":
            return None
        sys.meta_path.remove(self)
        for finder in list(sys.meta_path):
            spec = finder.find_spec(name, path, target)
            if spec is not None:
                _call_after(spec.loader, _install)
                return spec
        return None


def _call_after(loader: Any, function: Callable[[], None]) -> None:
    execute = loader.exec_module

    def exec_module(module: types.ModuleType) -> None:
        execute(module)
        function()

    loader.exec_module = exec_module


def install_on_import() -> None:
    """Makes this process record its loaders, from its import of torch on."""
    if "PUBLIC_SCRIPTS_OUT" not in os.environ:
        return
    sys.meta_path.insert(0, _AfterTorch())
    if names := os.environ.get("PUBLIC_SCRIPTS_STUBS", "").split():
        sys.meta_path.insert(0, _Stubs(names))


def _install() -> None:
    _simulate_cuda(os.environ.get("PUBLIC_SCRIPTS_CUDA", ""))
    _define_torchvision_operators()
    _replace_methods()


# ---- what the machine lacks ----------------------------------------------------------------------


class _Stub(types.ModuleType):
    """A module that has each attribute: an object that accepts all, and does nothing."""

    __version__ = "0"

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Nothing()


class _Nothing:
    """Accepts calls, attributes and `with`. Leaves what it decorates as it is. A class derived from
    it is one of it, too."""

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def __call__(self, *args: Any, **options: Any) -> Any:
        return args[0] if len(args) == 1 and not options and callable(args[0]) else self

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *_: Any) -> None:
        pass


# torch._six, which torch had until 1.13.
_TORCH_SIX = {
    "inf": math.inf,
    "nan": math.nan,
    "string_classes": (str, bytes),
    "int_classes": int,
    "container_abcs": collections.abc,
}


class _Stubs(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds modules that are simulated, and their submodules."""

    def __init__(self, names: list[str]) -> None:
        self._names = names

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if not any(name == one or name.startswith(one + ".") for one in self._names):
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec: Any) -> types.ModuleType:
        if spec.name == "torchvision.transforms.functional_tensor":
            # torchvision gave it another name in 0.17.
            return importlib.import_module("torchvision.transforms._functional_tensor")
        module = _Stub(spec.name)
        if spec.name == "torch._six":
            vars(module).update(_TORCH_SIX)
        return module

    def exec_module(self, module: types.ModuleType) -> None:
        pass


def _define_torchvision_operators() -> None:
    """Declares two operators, without which a torchvision for CUDA does not import beside a torch
    for CPUs."""
    import torch

    if torch.version.cuda is None:
        library = torch.library.Library("torchvision", "DEF")
        for name in ("nms", "qnms"):
            library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        _KEPT.append(library)


_KEPT: list[Any] = []


def _simulate_cuda(how: str) -> None:
    """Makes calls that need a GPU succeed without one; the process ends before the result counts."""
    import torch
    import torch.distributed as distributed

    if how and not torch.cuda.is_available():

        def same(self: Any, *_: Any, **__: Any) -> Any:
            return self

        def nothing(*_: Any, **__: Any) -> None:
            pass

        torch.Tensor.cuda = torch.nn.Module.cuda = same  # type: ignore[method-assign]
        for name in ("set_device", "synchronize", "empty_cache", "manual_seed", "manual_seed_all"):
            setattr(torch.cuda, name, nothing)
        torch.cuda.device_count = lambda: 1
        torch.cuda.current_device = lambda: 0
        torch.cuda.get_device_name = lambda *_: "none"
        torch.cuda.max_memory_allocated = lambda *_: 0
        if how == "available":
            torch.cuda.is_available = lambda: True
    if distributed.is_available():
        init, parallel = distributed.init_process_group, torch.nn.parallel.DistributedDataParallel

        @functools.wraps(init)
        def init_process_group(backend: Any = None, *args: Any, **options: Any) -> None:
            init("gloo", *args, **{k: v for k, v in options.items() if k != "device_id"})

        class OnCpu(parallel):
            def __init__(self, module: Any, *_: Any, **options: Any) -> None:
                kept = {k: v for k, v in options.items() if k == "find_unused_parameters"}
                super().__init__(module, **kept)

        distributed.init_process_group = init_process_group
        distributed.distributed_c10d.init_process_group = init_process_group
        if how and not torch.cuda.device_count() > 1:
            OnCpu.__name__ = OnCpu.__qualname__ = parallel.__name__
            torch.nn.parallel.DistributedDataParallel = OnCpu
            torch.nn.parallel.distributed.DistributedDataParallel = OnCpu


# ---- the loaders ---------------------------------------------------------------------------------

_made: list[tuple[int, str, weakref.ref[Any]]] = []
_recorded: set[int] = set()
_busy = False


def _replace_methods() -> None:
    from torch.utils.data import DataLoader

    init, get_iterator = DataLoader.__init__, DataLoader.__iter__

    @functools.wraps(init)
    def __init__(self: Any, *args: Any, **options: Any) -> None:
        if _is_scripts_own(self):
            _made.append((len(_made), _place(), weakref.ref(self)))
        init(self, *args, **options)

    @functools.wraps(get_iterator)
    def __iter__(self: Any) -> Any:
        if not _busy and _is_scripts_own(self) and not _is_under_construction(self):
            _record_new_ones()
        return get_iterator(self)

    DataLoader.__init__ = __init__  # type: ignore[method-assign]
    DataLoader.__iter__ = __iter__  # type: ignore[method-assign]


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
        frame = frame.f_back  # type: ignore[assignment]
    return False


def _place() -> str:
    """The file and line, outside of libraries for loading, that makes a loader."""
    frame = sys._getframe(2)
    while frame.f_back is not None:
        name = frame.f_globals.get("__name__", "")
        if name.partition(".")[0] not in ("torch", "feedmill", __name__, "torchdata"):
            break
        frame = frame.f_back
    return f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"


def _record_new_ones() -> None:
    global _busy
    _busy = True
    try:
        alive = [(number, place, loader()) for number, place, loader in _made]
        for number, place, loader in alive:
            if loader is not None and number not in _recorded:
                _recorded.add(number)
                _write({"number": number, "place": place, **_record(loader)})
    finally:
        _busy = False
    if len(_recorded) >= int(os.environ["PUBLIC_SCRIPTS_LOADERS"]):
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)


def _write(line: dict[str, Any]) -> None:
    path = Path(os.environ["PUBLIC_SCRIPTS_OUT"]) / f"{os.getpid()}.jsonl"
    with path.open("a") as file:
        file.write(json.dumps(line) + "\n")


def _record(loader: Any) -> dict[str, Any]:
    """Iterates a loader for some batches, and says what came."""
    import numpy
    import torch

    found: dict[str, Any] = {
        "dataset": type(loader.dataset).__name__,
        "class": f"{type(loader).__module__}.{type(loader).__qualname__}",
        "num_workers": loader.num_workers,
        "batches": [],
    }
    random.seed(_SEED)
    numpy.random.seed(_SEED)
    torch.manual_seed(_SEED)
    images = _images_opened() if os.environ.get("PUBLIC_SCRIPTS_COUNT") else None
    before = images() if images else 0
    try:
        found["length"] = len(loader)
    except Exception:
        found["length"] = None
    try:
        iterator = iter(loader)
        for _, batch in zip(range(int(os.environ["PUBLIC_SCRIPTS_BATCHES"])), iterator):
            found["batches"].append(digests(batch))
        del iterator
    except Exception as error:
        found["error"] = f"{type(error).__name__}: {error}"[-2000:]
    if images:
        found["images"] = images() - before
    found.update(_path_of(loader))
    return found


def _path_of(loader: Any) -> dict[str, Any]:
    if "feedmill.loader" not in sys.modules:
        return {}
    kind = sys.modules["feedmill.loader"].DataLoader
    if not isinstance(loader, kind):
        return {"path": "not feedmill's"}
    try:
        stats = kind.stats(loader)
    except Exception as error:
        return {"path": f"unknown: {type(error).__name__}: {error}"}
    flat = stats.flat()
    counters = ("native_samples", "fallback_samples", "verified_samples", "torch_batches")
    return {
        "path": stats.path,
        "reasons": list(stats.reasons),
        "counters": {name: flat.get(name) for name in counters},
    }


# ---- counting images -----------------------------------------------------------------------------

_counter: Any = None
_OPENERS = (
    ("PIL.Image", "open"), ("cv2", "imread"), ("cv2", "imdecode"),
    ("torchvision.io", "decode_image"), ("torchvision.io", "decode_jpeg"),
    ("torchvision.io", "read_image"), ("imageio", "imread"), ("skimage.io", "imread"),
)  # fmt: skip


def _images_opened() -> Callable[[], int]:
    """Counts, from the first call on, images that this process and its forked workers open."""
    global _counter
    if _counter is None:
        _counter = mmap.mmap(-1, 8)
        for module, name in _OPENERS:
            if module in sys.modules or module == "PIL.Image":
                owner = importlib.import_module(module)
                if hasattr(owner, name):
                    setattr(owner, name, _counting(getattr(owner, name)))
    return lambda: struct.unpack("q", _counter[:8])[0]


def _counting(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def counted(*args: Any, **options: Any) -> Any:
        # Workers may lose counts to each other; what matters is that it is not 0.
        _counter[:8] = struct.pack("q", struct.unpack("q", _counter[:8])[0] + 1)
        return function(*args, **options)

    return counted


# ---- digests -------------------------------------------------------------------------------------


def digests(batch: Any) -> dict[str, str]:
    """Digests of a batch: of everything; of what is no image (integers, texts, and so labels); and
    its layout, which is types, keys, shapes and dtypes."""
    everything, labels = hashlib.sha256(), hashlib.sha256()
    layout = _visit(batch, everything, labels)
    return {
        "all": everything.hexdigest()[:16],
        "labels": labels.hexdigest()[:16],
        "layout": layout,
    }


def _visit(value: Any, everything: Any, labels: Any) -> str:
    import numpy
    import torch
    from PIL import Image

    def leaf(data: bytes, is_label: bool, text: str) -> str:
        for one in (everything, labels) if is_label else (everything,):
            one.update(f"{text}:{len(data)}:".encode())
            one.update(data)
        return text

    if isinstance(value, torch.Tensor):
        kind = type(value).__name__ if type(value) is not torch.Tensor else ""
        text = f"{kind}{str(value.dtype).removeprefix('torch.')}{list(value.shape)}"
        data = value.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
        is_label = not value.is_floating_point() and value.dim() < 3
        return leaf(data.numpy().tobytes(), is_label, text)
    if isinstance(value, numpy.ndarray):
        is_label = value.dtype.kind != "f" and value.ndim < 3
        return leaf(value.tobytes(), is_label, f"numpy {value.dtype}{list(value.shape)}")
    if isinstance(value, Image.Image):
        return leaf(value.tobytes(), False, f"{value.mode}{list(value.size)}")
    if isinstance(value, str | bytes | int | float | bool | numpy.generic | type(None)):
        return leaf(repr(value).encode(), True, type(value).__name__)
    if isinstance(value, Mapping):
        parts = [f"{key}: {_visit(one, everything, labels)}" for key, one in value.items()]
        return f"{type(value).__name__}({', '.join(parts)})"
    if isinstance(value, list | tuple | set | frozenset):
        parts = [_visit(one, everything, labels) for one in value]
        if len(set(parts)) == 1 and len(parts) > 2:
            parts = [f"{len(parts)} x {parts[0]}"]
        return f"{type(value).__name__}({', '.join(parts)})"
    if hasattr(value, "__dict__"):
        return f"{type(value).__name__} {_visit(vars(value), everything, labels)}"
    return leaf(repr(value).encode(), True, type(value).__name__)
