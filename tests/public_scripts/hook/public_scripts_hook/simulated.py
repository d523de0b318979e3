"""Simulates what scripts need and this machine lacks.

That is a GPU, packages that only log or show, weights that would be downloaded, and names that
newer versions of packages have no longer.

Transforms, datasets and loaders are not touched.
"""

from __future__ import annotations

import collections.abc
import fractions
import functools
import importlib
import importlib.abc
import importlib.machinery
import math
import sys
import types
from collections.abc import Callable, Sequence
from typing import Any

from public_scripts_hook.after_import import call_after_import


def simulate(stubs: Sequence[str]) -> None:
    """Called before the script's first import.

    Args:
        stubs: names of modules to simulate. "numpy.float", "fractions.gcd" and
            "torchvision.get_image_size" stand for names that these packages have no longer.
    """
    call_after_import("timm.models._hub", _leave_out_hub)
    _retry_torchvision()
    if "fractions.gcd" in stubs:
        fractions.gcd = math.gcd
    if "numpy.float" in stubs:
        call_after_import("numpy", _restore_aliases)
    if "torchvision.get_image_size" in stubs:
        call_after_import("torchvision.transforms.functional", _restore_image_size)
    if stubs:
        sys.meta_path.insert(0, _Stubs(stubs))


def simulate_in_torch(cuda: str) -> None:
    """Called right after the import of torch.

    Args:
        cuda: "calls": calls that move something to a GPU do nothing; "available":
            torch.cuda.is_available() is true besides; "": neither.
    """
    _leave_out_downloads()
    _simulate_cuda(cuda)
    _use_gloo()


# ---- modules -------------------------------------------------------------------------------------


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

    def __init__(self, names: Sequence[str]) -> None:
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


def _retry_torchvision() -> None:
    """Makes torchvision's wheel for CUDA import beside a torch for CPUs, as torchvision_cpu.py of
    tests/support does: it needs two operators to exist."""

    class _Finder(importlib.abc.MetaPathFinder):
        def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
            # Stays where it is: some libraries look for torchvision before they import it.
            if name != "torchvision":
                return None
            spec = importlib.machinery.PathFinder.find_spec(name, path, target)
            if spec is not None and spec.loader is not None:
                _define_and_retry(spec.loader)
            return spec

    sys.meta_path.insert(0, _Finder())


def _define_and_retry(loader: Any) -> None:
    execute = loader.exec_module

    def exec_module(module: types.ModuleType) -> None:
        import torch

        try:
            execute(module)
        except RuntimeError as error:
            if "nms" not in str(error):
                raise
            library = torch.library.Library("torchvision", "DEF")
            for name in ("nms", "qnms"):
                library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
            execute(module)
            module._operators = library  # it must outlive the script

    loader.exec_module = exec_module


# ---- weights -------------------------------------------------------------------------------------


def _leave_out_downloads() -> None:
    """Models keep their initial weights in place of those that torch would download."""
    import torch

    load = torch.nn.Module.load_state_dict

    @functools.wraps(load)
    def load_state_dict(self: Any, state_dict: Any, *args: Any, **options: Any) -> Any:
        if not state_dict:
            return torch.nn.modules.module._IncompatibleKeys([], [])
        return load(self, state_dict, *args, **options)

    torch.nn.Module.load_state_dict = load_state_dict
    torch.hub.load_state_dict_from_url = lambda *_, **__: {}
    torch.hub.list = lambda *_, **__: []


def _leave_out_hub(module: Any) -> None:
    module.load_state_dict_from_hf = lambda *_, **__: {}


# ---- GPUs ----------------------------------------------------------------------------------------


def _simulate_cuda(how: str) -> None:
    """Makes calls that need a GPU succeed without one. Nothing is trained."""
    import torch

    if not how or torch.cuda.is_available():
        return
    for kind in (torch.Tensor, torch.nn.Module):
        kind.cuda = lambda self, *_, **__: self
        kind.to = _without_device(kind.to)
    for name in ("set_device", "synchronize", "empty_cache", "manual_seed", "manual_seed_all"):
        setattr(torch.cuda, name, lambda *_, **__: None)  # each its own: torch keeps a table
    torch.nn.SyncBatchNorm.convert_sync_batchnorm = staticmethod(lambda module, *_: module)
    for name in ("FloatTensor", "HalfTensor", "LongTensor", "ByteTensor"):
        setattr(torch.cuda, name, getattr(torch, name))
    torch.cuda.device_count = lambda: 1
    torch.cuda.current_device = lambda: 0
    torch.cuda.device = torch.cuda.Stream = torch.cuda.stream = _Nothing
    torch.cuda.current_stream = _Nothing
    torch.cuda.get_device_name = lambda *_: "none"
    torch.cuda.max_memory_allocated = lambda *_: 0
    if how == "available":
        torch.cuda.is_available = lambda: True
    torch.nn.DataParallel = torch.nn.parallel.DataParallel = _data_parallel()
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

    torch.nn.parallel.DistributedDataParallel = DistributedDataParallel
    torch.nn.parallel.distributed.DistributedDataParallel = DistributedDataParallel


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
