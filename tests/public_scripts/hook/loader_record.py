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
    PUBLIC_SCRIPTS_STUBS    names of modules to simulate, separated by spaces; "numpy.float",
                            "fractions.gcd" and "torchvision.get_image_size" for names that NumPy,
                            Python and torchvision have no longer
"""

from __future__ import annotations

import collections.abc
import fractions
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


class _After(importlib.abc.MetaPathFinder):
    """Finds a module with the other finders, and calls a function after its import."""

    def __init__(self, name: str, function: Callable[[types.ModuleType], None]) -> None:
        self._name = name
        self._function = function
        self._is_finding = False

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name != self._name or self._is_finding:
            return None
        self._is_finding = True
        try:
            specs = (finder.find_spec(name, path, target) for finder in list(sys.meta_path))
            spec = next((one for one in specs if one is not None), None)
        finally:
            self._is_finding = False
        if spec is not None and spec.loader is not None:
            _call_after(spec.loader, self._function)
        return spec


def _call_after(loader: Any, function: Callable[[types.ModuleType], None]) -> None:
    execute = loader.exec_module

    def exec_module(module: types.ModuleType) -> None:
        execute(module)
        function(module)

    loader.exec_module = exec_module


def install_on_import() -> None:
    """Makes this process record its loaders, from its import of torch on."""
    if "PUBLIC_SCRIPTS_OUT" not in os.environ:
        return
    sys.meta_path.insert(0, _After("torch", _install))
    sys.meta_path.insert(0, _After("timm.models._hub", _leave_out_hub))
    names = os.environ.get("PUBLIC_SCRIPTS_STUBS", "").split()
    if os.environ.get("PUBLIC_SCRIPTS_COUNT"):
        _count_images()
    if "fractions.gcd" in names:
        fractions.gcd = math.gcd  # type: ignore[attr-defined]
    if "numpy.float" in names:
        sys.meta_path.insert(0, _After("numpy", _restore_aliases))
    if "torchvision.get_image_size" in names:
        module = "torchvision.transforms.functional"
        sys.meta_path.insert(0, _After(module, _restore_image_size))
    if names:
        sys.meta_path.insert(0, _Stubs(names))


def _install(_: types.ModuleType) -> None:
    _leave_out_downloads()
    _simulate_cuda(os.environ.get("PUBLIC_SCRIPTS_CUDA", ""))
    _use_gloo()
    _define_torchvision_operators()
    _replace_methods()
    _seed()  # datasets may draw when they are made


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


def _restore_aliases(numpy: Any) -> None:
    """Restores the names of Python's types that NumPy had until 1.23."""
    numpy.float, numpy.int, numpy.object = float, int, object


def _restore_image_size(functional: Any) -> None:
    """Restores a name that torchvision had until 0.11."""
    functional._get_image_size = functional.get_image_size


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


def _leave_out_downloads() -> None:
    """Models keep their initial weights in place of those that torch would download."""
    import torch

    load = torch.nn.Module.load_state_dict

    @functools.wraps(load)
    def load_state_dict(self: Any, state_dict: Any, *args: Any, **options: Any) -> Any:
        if not state_dict:
            return torch.nn.modules.module._IncompatibleKeys([], [])
        return load(self, state_dict, *args, **options)

    torch.nn.Module.load_state_dict = load_state_dict  # type: ignore[method-assign]
    torch.hub.load_state_dict_from_url = lambda *_, **__: {}
    torch.hub.list = lambda *_, **__: []


def _leave_out_hub(module: Any) -> None:
    module.load_state_dict_from_hf = lambda *_, **__: {}


def _simulate_cuda(how: str) -> None:
    """Makes calls that need a GPU succeed without one; the process ends before the result counts."""
    import torch

    if not how or torch.cuda.is_available():
        return
    for kind in (torch.Tensor, torch.nn.Module):
        kind.cuda = lambda self, *_, **__: self  # type: ignore[attr-defined]
        kind.to = _without_device(kind.to)  # type: ignore[attr-defined]
    for name in ("set_device", "synchronize", "empty_cache", "manual_seed", "manual_seed_all"):
        setattr(torch.cuda, name, lambda *_, **__: None)  # each its own: torch keeps a table
    torch.nn.SyncBatchNorm.convert_sync_batchnorm = staticmethod(lambda module, *_: module)
    for name in ("FloatTensor", "HalfTensor", "LongTensor", "ByteTensor"):
        setattr(torch.cuda, name, getattr(torch, name))
    torch.cuda.device_count = lambda: 1
    torch.cuda.current_device = lambda: 0
    torch.cuda.device = _Nothing  # type: ignore[misc, assignment]
    torch.cuda.get_device_name = lambda *_: "none"
    torch.cuda.max_memory_allocated = lambda *_: 0
    if how == "available":
        torch.cuda.is_available = lambda: True
    torch.nn.DataParallel = torch.nn.parallel.DataParallel = _data_parallel()  # type: ignore
    if torch.distributed.is_available():
        _replace_ddp()


def _without_device(to: Callable[..., Any]) -> Callable[..., Any]:
    """Replaces the method to(): it ignores a GPU as its first argument."""
    import torch

    def is_gpu(value: Any) -> bool:
        if isinstance(value, torch.device):
            return value.type == "cuda"
        return type(value) is int or (isinstance(value, str) and value.startswith("cuda"))

    @functools.wraps(to)
    def to_same(self: Any, *args: Any, **options: Any) -> Any:
        args = args[1:] if args and is_gpu(args[0]) else args
        options = {name: one for name, one in options.items() if not is_gpu(one)}
        return to(self, *args, **options) if args or options else self

    return to_same


def _data_parallel() -> type:
    import torch

    class DataParallel(torch.nn.Module):
        def __init__(self, module: Any, *_: Any, **__: Any) -> None:
            super().__init__()
            self.module = module

        def forward(self, *args: Any, **options: Any) -> Any:
            return self.module(*args, **options)

    return DataParallel


def _replace_ddp() -> None:
    """Makes DistributedDataParallel ignore the device that it is told."""
    import torch

    parallel = torch.nn.parallel.DistributedDataParallel

    class DistributedDataParallel(parallel):
        def __init__(self, module: Any, *_: Any, **options: Any) -> None:
            kept = {k: v for k, v in options.items() if k == "find_unused_parameters"}
            super().__init__(module, **kept)

    torch.nn.parallel.DistributedDataParallel = DistributedDataParallel  # type: ignore[misc]
    torch.nn.parallel.distributed.DistributedDataParallel = DistributedDataParallel  # type: ignore[misc]


def _use_gloo() -> None:
    """Makes the process group one for CPUs, whatever the script asks for."""
    import torch.distributed as distributed

    if not distributed.is_available():
        return
    init = distributed.init_process_group

    @functools.wraps(init)
    def init_process_group(backend: Any = None, *args: Any, **options: Any) -> None:
        init("gloo", *args, **{k: v for k, v in options.items() if k != "device_id"})

    distributed.init_process_group = init_process_group
    distributed.distributed_c10d.init_process_group = init_process_group


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

    DataLoader.__init__ = __init__  # type: ignore[method-assign]
    DataLoader.__iter__ = recording(get_iterator)  # type: ignore[method-assign]
    DataLoader.__init_subclass__ = classmethod(__init_subclass__)  # type: ignore[assignment]


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
        # Libraries may replace a loader by one of the same data set; the last one counts.
        alive = {}
        for number, place, reference in _made:
            loader = reference()
            if loader is not None and number not in _recorded:
                key = (id(loader.dataset), loader.batch_size, loader.num_workers)
                alive[key] = (number, alive.get(key, (0, place))[1], loader)
        for number, place, loader in alive.values():
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
    found: dict[str, Any] = {
        "dataset": type(loader.dataset).__name__,
        "class": f"{type(loader).__module__}.{type(loader).__qualname__}",
        "num_workers": loader.num_workers,
        "batches": [],
    }
    _seed()
    n_before = _n_images()
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
        # Of a worker's error, the last line: the others have paths and process numbers.
        lines = str(error).strip().splitlines() or [""]
        found["error"] = f"{type(error).__name__}: {lines[-1]}"
    found["images"] = _n_images() - n_before
    found.update(_path_of(loader))
    return found


def _seed() -> None:
    import numpy
    import torch

    random.seed(_SEED)
    numpy.random.seed(_SEED)
    torch.manual_seed(_SEED)


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

_OPENERS = {
    "PIL.Image": ("open",),
    "cv2": ("imread", "imdecode"),
    "imageio": ("imread",),
    "skimage.io": ("imread",),
    "torchvision.io": ("decode_image", "decode_jpeg", "read_image"),
}


def _counter() -> mmap.mmap:
    """A number that all processes of the script share: it grows when one opens an image."""
    path = Path(os.environ["PUBLIC_SCRIPTS_OUT"]) / "images"
    with path.open("ab") as file:
        if file.tell() == 0:
            file.write(bytes(8))
    with path.open("r+b") as file:
        return mmap.mmap(file.fileno(), 8)


def _n_images() -> int:
    return int(struct.unpack("q", _counter()[:8])[0])


def _count_images() -> None:
    """Makes the functions that open images count, from the import of their modules on."""
    counter = _counter()

    def counting(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def counted(*args: Any, **options: Any) -> Any:
            # Processes may lose counts to each other; what matters is that it is not 0.
            counter[:8] = struct.pack("q", struct.unpack("q", counter[:8])[0] + 1)
            return function(*args, **options)

        return counted

    def after_import(module: types.ModuleType) -> None:
        for name in _OPENERS[module.__name__]:
            if hasattr(module, name):
                setattr(module, name, counting(getattr(module, name)))

    for name in _OPENERS:
        sys.meta_path.insert(0, _After(name, after_import))


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
