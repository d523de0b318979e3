"""Names of torch and torchvision that are not part of their public interface, all of them.

No other file of the package imports such a name or reads such an attribute, but for attributes that
iterators and loaders inherit from torch's classes (``_ITERATOR_ATTRIBUTES``, ``_LOADER_ATTRIBUTES``
below). Tried with the versions that ``TRIED`` names. In other versions any of these may be missing
or work otherwise: nothing here raises when it is imported, and where the native path needs what is
missing, the loader takes torch's own path, with a reason.
"""

from __future__ import annotations

import functools
import importlib
import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch.overrides import TorchFunctionMode
from torch.utils.data import DataLoader

from feedmill._ops import native

_T = TypeVar("_T")
TRIED = "torch 2.4, 2.13 and 2.15, torchvision 0.19, 0.28 and 0.29"


def _find(module: str, name: str) -> Any:
    """What a module has under that name; None where there is no such name or module."""
    try:
        return getattr(importlib.import_module(module), name, None)
    except ImportError:
        return None


class MissingNameError(AttributeError):
    """The installed version lacks a name that feedmill reads; the text says which."""


# ---- torch: what the native path can't do without ------------------------------------------------

_DATALOADER = "torch.utils.data.dataloader"
_COLLATE = "torch.utils.data._utils.collate"
_WORKER = "torch.utils.data._utils.worker"
_NEEDED = {
    f"{module}.{name}": _find(module, name)
    for module, name in (
        (_DATALOADER, "_BaseDataLoaderIter"),
        ("torch._utils", "ExceptionWrapper"),
        (_COLLATE, "default_collate_fn_map"),
        (_COLLATE, "collate_tensor_fn"),
        (_COLLATE, "collate_int_fn"),
        ("torch.utils.data._utils.pin_memory", "pin_memory"),
        ("torch.multiprocessing.reductions", "reduce_tensor"),
        (_WORKER, "WorkerInfo"),
        (_WORKER, "_generate_state"),
    )
}
# What our iterators read of the attributes that the base class's constructor sets, and call.
_ITERATOR_ATTRIBUTES = (
    "_auto_collation", "_base_seed", "_dataset", "_index_sampler", "_next_index", "_num_workers",
    "_num_yielded", "_persistent_workers", "_pin_memory", "_pin_memory_device", "_reset",
    "_sampler_iter", "_timeout",
)
# What is read of a DataLoader. It calls _get_iterator(), which ours overrides.
_LOADER_ATTRIBUTES = ("_auto_collation", "_get_iterator", "_index_sampler", "_iterator")
# torch's own, which `feedmill run` may replace later; None: this torch has no such method.
init_loader = DataLoader.__init__
get_iterator: Any = getattr(DataLoader, "_get_iterator", None)

if TYPE_CHECKING:
    import torch.utils.data.dataloader as _typed

    BaseDataLoaderIter = _typed._BaseDataLoaderIter
    ExceptionWrapper = torch._utils.ExceptionWrapper
else:
    # Placeholders, which are never used, let the modules be imported.
    BaseDataLoaderIter = _NEEDED[f"{_DATALOADER}._BaseDataLoaderIter"] or SimpleNamespace
    ExceptionWrapper = _NEEDED["torch._utils.ExceptionWrapper"] or SimpleNamespace


@functools.cache
def why_not_this_torch() -> tuple[str, ...]:
    """Reasons for which the native path can't be taken with the installed torch."""
    missing = [name for name, found in _NEEDED.items() if found is None]
    try:
        missing += _missing_attributes() if not missing else []
    except Exception as error:
        what = f"{type(error).__name__}: {error} (tried: {TRIED})"
        version = torch.__version__
        return (f"the DataLoader of torch {version} works otherwise than feedmill expects: {what}",)
    return tuple(
        f"torch {torch.__version__} has no {name}, which feedmill needs (tried: {TRIED})"
        for name in missing
    )


def _missing_attributes() -> list[str]:
    """Names of attributes that torch's iterators or loaders lack. Makes one of each and looks;
    draws from a generator of its own only."""

    class Iter(BaseDataLoaderIter):
        def _next_data(self) -> Any:
            return self._next_index()  # type: ignore[no-untyped-call]

    class Loader(DataLoader):  # type: ignore[type-arg]
        def _get_iterator(self) -> Any:
            return Iter(self)

    loader = Loader.__new__(Loader)
    dataset: Any = [0]
    init_loader(loader, dataset, generator=torch.Generator())
    missing = [f"DataLoader.{name}" for name in _LOADER_ATTRIBUTES if not hasattr(loader, name)]
    if missing:
        return missing
    iterator: Any = iter(loader)
    if type(iterator) is not Iter:
        return ["call of DataLoader._get_iterator() in DataLoader.__iter__()"]
    names = [name for name in _ITERATOR_ATTRIBUTES if not hasattr(iterator, name)]
    if not names:
        iterator._reset(loader, first_iter=True)
        if next(iterator) != [0] or iterator._num_yielded != 1:
            return ["call of _BaseDataLoaderIter._next_data() in __next__()"]
    return [f"_BaseDataLoaderIter.{name}" for name in names]


def why_collate_was_changed(*kinds: type) -> str:
    """Whether torch's default_collate was told to do something else with values of these types,
    torch.Tensor or int; "" if it does what it always did."""
    functions = _find(_COLLATE, "default_collate_fn_map")
    originals = {torch.Tensor: "collate_tensor_fn", int: "collate_int_fn"}
    for kind in kinds:
        if functions.get(kind) is not _NEEDED[f"{_COLLATE}.{originals[kind]}"]:
            return f"torch's default_collate was changed for {kind.__name__.lower()}s"
    if any(isinstance((), kind) for kind in functions):
        return "torch's default_collate was changed for tuples"
    return ""


def is_collate_untouched() -> bool:
    """Whether torch's default_collate has the handlers that torch gave it, and no others."""
    functions = _find(_COLLATE, "default_collate_fn_map")
    return all(getattr(one, "__module__", "") == _COLLATE for one in functions.values())


def reduce_tensor(tensor: torch.Tensor) -> Any:
    """How torch sends a tensor to another process."""
    return _NEEDED["torch.multiprocessing.reductions.reduce_tensor"](tensor)


def pin_memory(data: Any, device: Any) -> Any:
    """A batch in pinned memory, as torch's iterators make it."""
    return _NEEDED["torch.utils.data._utils.pin_memory.pin_memory"](data, device)


def numpy_seed_of_worker(base_seed: int, worker_id: int) -> list[int]:
    """What a worker process of torch seeds NumPy with."""
    return _NEEDED[f"{_WORKER}._generate_state"](base_seed, worker_id)  # type: ignore[no-any-return]


def make_worker_info(**values: Any) -> Any:
    """What get_worker_info() gives in a worker process of torch."""
    return _NEEDED[f"{_WORKER}.WorkerInfo"](**values)


def set_worker_info(info: Any) -> Any:
    """Has get_worker_info() give something in this process; returns what it gave before."""
    module = sys.modules[_WORKER]
    before = getattr(module, "_worker_info", None)
    module._worker_info = info  # type: ignore[attr-defined]
    return before


# ---- torch: what is used where it is there -------------------------------------------------------

# Iterators of torch's whose steps are counted; others are left as they are.
if TYPE_CHECKING:
    SingleProcessIter = _typed._SingleProcessDataLoaderIter
    MultiProcessingIter = _typed._MultiProcessingDataLoaderIter
else:
    SingleProcessIter = _find(_DATALOADER, "_SingleProcessDataLoaderIter") or SimpleNamespace
    MultiProcessingIter = _find(_DATALOADER, "_MultiProcessingDataLoaderIter") or SimpleNamespace

# Whether a profiler is at work in this thread; never, where torch does not say.
is_profiling: Callable[[], bool] = _find("torch.autograd", "_profiler_enabled") or (lambda: False)


_push_mode = _find("torch._C", "_push_on_torch_function_stack")
_pop_mode = _find("torch._C", "_pop_torch_function_stack")


def call_under(mode: TorchFunctionMode, work: Callable[[], _T]) -> _T:
    """work() with a mode for torch's functions on this thread.

    An interrupt, wherever it comes, leaves no mode behind: one that comes at either end of a
    ``with mode:`` would leave it to the rest of the thread's life.
    """
    if _push_mode is None or _pop_mode is None:
        with mode:
            return work()
    return native.call_between(functools.partial(_push_mode, mode), work, _pop_mode)


def cuda_calls_in_queue() -> list[Any]:
    """What is to be done when CUDA is initialized: the list itself."""
    queued = getattr(torch.cuda, "_queued_calls", None)
    return queued if queued is not None else []


def version_of(tensor: torch.Tensor) -> int:
    """How often torch has changed a tensor in place."""
    return tensor._version


# ---- torch.nn ------------------------------------------------------------------------------------

CONTAINER = "torch.nn.modules.container"
LINEAR = "torch.nn.modules.linear"
_MODULE = "torch.nn.modules.module"
# The instance attributes of every torch module that hide something of its class.
OWN_OF_MODULES = ("training", "_is_full_backward_hook")
# (module, qualified name) of the function that torch.nn.Module.__call__ is.
MODULE_CALL = (_MODULE, "Module._wrapped_call_impl")


def has_hooks(module: torch.nn.Module) -> bool:
    """Whether functions run around a module's forward()."""
    return any(value for key, value in vars(module).items() if key.endswith("_hooks"))


def are_hooks_global() -> bool:
    """Whether functions run around the forward() of all modules."""
    return any(
        value
        for key, value in vars(sys.modules[_MODULE]).items()
        if key.startswith("_global_") and key.endswith("_hooks")
    )


# ---- torchvision ---------------------------------------------------------------------------------

FUNCTIONAL = "torchvision.transforms.functional"
FUNCTIONAL_PIL = "torchvision.transforms._functional_pil"
PRESETS = "torchvision.transforms._presets"
# Functions behind the transforms, by module, which must be the library's own: those of all
# transforms, and those of augmentations.
FUNCTIONS = {FUNCTIONAL: ("_interpolation_modes_from_int",)}
AUGMENTING_FUNCTIONS = {
    FUNCTIONAL: ("_get_inverse_affine_matrix",),
    FUNCTIONAL_PIL: ("_parse_fill",),
    "torchvision.transforms.autoaugment": ("_apply_op",),
}
# Methods of transforms and datasets that decide about what they give.
METHODS = frozenset({
    "_transform", "_get_params", "_check_inputs", "_needs_transform_list", "_call_kernel",
})


def _attribute(owner: Any, name: str) -> Any:
    """An attribute of a transform. MissingNameError where this torchvision's has none."""
    try:
        return getattr(owner, name)
    except AttributeError:
        kind = owner if isinstance(owner, type) else type(owner)
        raise MissingNameError(
            f"{kind.__module__}.{kind.__qualname__} of torchvision {torchvision_version()} has no "
            f"{name}, which feedmill reads (tried: {TRIED})"
        ) from None


def torchvision_version() -> str:
    """Of the torchvision that is imported; "" if none is."""
    return str(getattr(sys.modules.get("torchvision"), "__version__", ""))


def mode_of_number(number: int) -> Any:
    """torchvision's InterpolationMode of Pillow's number of a filter; None: there is none."""
    convert = getattr(sys.modules[FUNCTIONAL], "_interpolation_modes_from_int", None)
    if convert is None:
        raise MissingNameError(
            f"torchvision {torchvision_version()} has no {FUNCTIONAL}._interpolation_modes_from_int"
        )
    try:
        return convert(number)
    except KeyError:
        return None


def v2_fills(transform: Any) -> Any:
    """A v2 transform's fill by type, as it was made with."""
    return _attribute(transform, "_fill")


def v2_log_ratio(transform: Any) -> Any:
    """What v2's RandomResizedCrop draws ratios from."""
    return _attribute(transform, "_log_ratio")


def policies(transform: Any, is_v2: bool) -> tuple[Any, Any]:
    """(those that an AutoAugment holds, those that it makes for its policy)."""
    held = _attribute(transform, "_policies" if is_v2 else "policies")
    return held, _attribute(transform, "_get_policies")(transform.policy)


def params_method(transform: Any) -> str:
    """The name of the method by which a v2 transform draws."""
    if hasattr(type(transform), "make_params"):
        return "make_params"
    _attribute(type(transform), "_get_params")
    return "_get_params"


def check_augmenting(transform: Any, is_v2: bool) -> None:
    """MissingNameError where augment() could not do what an automatic augmentation does."""
    if is_v2:
        v2_fills(transform)
        _attribute(type(transform), "_apply_image_or_video_transform")
    else:
        _attribute(sys.modules[type(transform).__module__], "_apply_op")


def augment(transform: Any, is_v2: bool, image: Any, name: str, magnitude: float) -> Any:
    """What an automatic augmentation makes of an image by one of its operations."""
    interpolation = transform.interpolation
    if is_v2:
        return transform._apply_image_or_video_transform(
            image, name, magnitude, interpolation=interpolation, fill=transform._fill
        )
    apply = sys.modules[type(transform).__module__]._apply_op
    return apply(image, name, magnitude, interpolation=interpolation, fill=transform.fill)
