"""All private names of torch and torchvision that the package uses.

No other file imports such a name or reads such an attribute, except attributes that iterators and
loaders inherit from torch's classes (``_ITERATOR_ATTRIBUTES``, ``_LOADER_ATTRIBUTES`` below).
``TRIED`` lists the tested versions. In other versions any of these names may be missing or behave
differently. Importing this module never fails; if the native path needs a missing name, the loader
takes torch's own path, with a reason.
"""

from __future__ import annotations

import functools
import importlib
import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import torch
from torch.autograd import forward_ad
from torch.overrides import TorchFunctionMode
from torch.utils.data import DataLoader

from feedmill._ops import native

_T = TypeVar("_T")
TRIED = "torch 2.4, 2.13 and 2.15, torchvision 0.19, 0.28 and 0.29"


def _find(module: str, name: str) -> Any:
    """An attribute of a module; None if there is no such attribute or module."""
    try:
        return getattr(importlib.import_module(module), name, None)
    except ImportError:
        return None


class MissingNameError(AttributeError):
    """The installed torchvision lacks a name that feedmill reads; the text says which."""


# ---- torch: required by the native path ----------------------------------------------------------

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
        (_COLLATE, "collate_numpy_array_fn"),
        ("torch.utils.data._utils.pin_memory", "pin_memory"),
        ("torch.multiprocessing.reductions", "reduce_tensor"),
        (_WORKER, "WorkerInfo"),
        (_WORKER, "_generate_state"),
    )
}
# Attributes of torch's base iterator that our iterators read or call.
_ITERATOR_ATTRIBUTES = (
    "_auto_collation", "_base_seed", "_dataset", "_index_sampler", "_next_index", "_num_workers",
    "_num_yielded", "_persistent_workers", "_pin_memory", "_pin_memory_device", "_reset",
    "_sampler_iter", "_timeout",
)
# Attributes of torch's DataLoader that are read. It calls _get_iterator(), which ours overrides.
_LOADER_ATTRIBUTES = ("_auto_collation", "_get_iterator", "_index_sampler", "_iterator")
# torch's original methods, which `feedmill run` may replace later; None: not in this torch.
init_loader = DataLoader.__init__
get_iterator: Any = getattr(DataLoader, "_get_iterator", None)

if TYPE_CHECKING:
    import torch.utils.data.dataloader as _typed

    BaseDataLoaderIter = _typed._BaseDataLoaderIter
    ExceptionWrapper = torch._utils.ExceptionWrapper
else:
    # Unused placeholders, so that importing our modules does not fail.
    BaseDataLoaderIter = _NEEDED[f"{_DATALOADER}._BaseDataLoaderIter"] or SimpleNamespace
    ExceptionWrapper = _NEEDED["torch._utils.ExceptionWrapper"] or SimpleNamespace


@functools.cache
def why_not_this_torch() -> tuple[str, ...]:
    """Reasons why the native path is not possible with the installed torch."""
    missing = [name for name, found in _NEEDED.items() if found is None]
    try:
        missing += _missing_attributes() if not missing else []
    except Exception as error:
        what = f"{type(error).__name__}: {error} (tested with {TRIED})"
        version = torch.__version__
        return (f"the DataLoader of torch {version} works otherwise than feedmill expects: {what}",)
    return tuple(
        f"torch {torch.__version__} has no {name}, which feedmill needs (tested with {TRIED})"
        for name in missing
    )


def _missing_attributes() -> list[str]:
    """Names of attributes that torch's iterators or loaders lack. Makes one of each to check; draws
    only from a generator of its own."""

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
    """Text if torch's default_collate was customized for values of these types (torch.Tensor, int
    or np.ndarray); "" if not."""
    functions = _find(_COLLATE, "default_collate_fn_map")
    originals: dict[type, str] = {
        torch.Tensor: "collate_tensor_fn", int: "collate_int_fn",
        np.ndarray: "collate_numpy_array_fn",
    }
    for kind in kinds:
        if _original(functions.get(kind)) is not _NEEDED[f"{_COLLATE}.{originals[kind]}"]:
            return f"torch's default_collate was changed for {kind.__name__.lower()}s"
    if any(isinstance((), kind) for kind in functions):
        return "torch's default_collate was changed for tuples"
    return ""


def is_collate_untouched() -> bool:
    """Whether torch's default_collate has only torch's own handlers."""
    functions = _find(_COLLATE, "default_collate_fn_map")
    handlers = map(_original, functions.values())
    return all(getattr(one, "__module__", "") == _COLLATE for one in handlers)


def _original(function: Any) -> Any:
    """torch's function if this is ours in the place of it."""
    return getattr(function, "feedmill_original", function)


# With which default_collate stacks tensors.
collate_tensor: Any = _NEEDED[f"{_COLLATE}.collate_tensor_fn"]


def collate_handlers() -> dict[Any, Any]:
    """The functions of torch's default_collate, by type; the dictionary that it uses."""
    return _find(_COLLATE, "default_collate_fn_map") or {}


def reduce_tensor(tensor: torch.Tensor) -> Any:
    """Reduces a tensor for pickling to another process, as torch does."""
    return _NEEDED["torch.multiprocessing.reductions.reduce_tensor"](tensor)


def pin_memory(data: Any, device: Any) -> Any:
    """Copies a batch to pinned memory, as torch's iterators do."""
    return _NEEDED["torch.utils.data._utils.pin_memory.pin_memory"](data, device)


def numpy_seed_of_worker(base_seed: int, worker_id: int) -> list[int]:
    """The seed of NumPy in a worker process of torch."""
    return _NEEDED[f"{_WORKER}._generate_state"](base_seed, worker_id)  # type: ignore[no-any-return]


def make_worker_info(**values: Any) -> Any:
    """Makes the result of get_worker_info() in a worker process of torch."""
    return _NEEDED[f"{_WORKER}.WorkerInfo"](**values)


def set_worker_info(info: Any) -> Any:
    """Sets the result of get_worker_info() in this process; returns the previous one."""
    module = sys.modules[_WORKER]
    before = getattr(module, "_worker_info", None)
    module._worker_info = info  # type: ignore[attr-defined]
    return before


# ---- torch: optional -----------------------------------------------------------------------------

# torch's iterators, whose steps are counted.
if TYPE_CHECKING:
    SingleProcessIter = _typed._SingleProcessDataLoaderIter
    MultiProcessingIter = _typed._MultiProcessingDataLoaderIter
else:
    SingleProcessIter = _find(_DATALOADER, "_SingleProcessDataLoaderIter") or SimpleNamespace
    MultiProcessingIter = _find(_DATALOADER, "_MultiProcessingDataLoaderIter") or SimpleNamespace

# The main function of torch's worker processes; None: not in this torch.
worker_loop: Any = _find(_WORKER, "_worker_loop")
_FETCH = "torch.utils.data._utils.fetch"
# Makes the batches of a map-style dataset.
MapFetcher: Any = _find(_FETCH, "_MapDatasetFetcher") or SimpleNamespace


def set_worker_loop(function: Any) -> None:
    """Replaces the main function of the worker processes that torch's iterators start."""
    sys.modules[_WORKER]._worker_loop = function  # type: ignore[attr-defined]


def set_map_fetcher(kind: Any) -> None:
    """Replaces MapFetcher in iterators and worker processes that are started later."""
    sys.modules[_FETCH]._MapDatasetFetcher = kind  # type: ignore[attr-defined]


def fetcher_of(iterator: Any) -> Any:
    """The object that makes the batches of an iterator without workers."""
    return iterator._dataset_fetcher


def set_fetcher(iterator: Any, fetcher: Any) -> None:
    """Replaces the object that makes the batches of an iterator without workers."""
    iterator._dataset_fetcher = fetcher


# Whether a profiler is active in this thread; False if this torch does not tell.
is_profiling: Callable[[], bool] = _find("torch.autograd", "_profiler_enabled") or (lambda: False)


_N_MODES = {
    "TorchFunctionMode": _find("torch._C", "_len_torch_function_stack"),
    "TorchDispatchMode": _find("torch._C", "_len_torch_dispatch_stack"),
}


_function_modes = _find("torch.overrides", "_get_current_function_mode_stack")
_DeviceContext = _find("torch.utils._device", "DeviceContext")


def _is_cpu_by_default(mode: Any) -> bool:
    return type(mode) is _DeviceContext and mode.device == torch.device("cpu")


def active_modes() -> list[str]:
    """The kinds of modes, which see torch's functions, that are active in this thread.

    ``torch.device(...)`` as a context, and torch.set_default_device(), are such modes. Those of the
    CPU change nothing and are left out.
    """
    kinds = [kind for kind, count in _N_MODES.items() if count is not None and count() > 0]
    if kinds == ["TorchFunctionMode"] and _function_modes is not None:
        return [] if all(_is_cpu_by_default(mode) for mode in _function_modes()) else kinds
    return kinds


_push_mode = _find("torch._C", "_push_on_torch_function_stack")
_pop_mode = _find("torch._C", "_pop_torch_function_stack")


def call_under(mode: TorchFunctionMode, work: Callable[[], _T]) -> _T:
    """Calls work() with a TorchFunctionMode active on this thread.

    Unlike ``with mode:``, an interrupt at any point can't leave the mode active.
    """
    if _push_mode is None or _pop_mode is None:
        with mode:
            return work()
    return native.call_between(functools.partial(_push_mode, mode), work, _pop_mode)


def cuda_calls_in_queue() -> list[Any]:
    """The list of calls that torch makes when it initializes CUDA; changes to it take effect."""
    queued = getattr(torch.cuda, "_queued_calls", None)
    return queued if queued is not None else []


def script_as(replacement: Any, original: Any) -> None:
    """Makes torch.jit.script() compile ``original`` where it finds ``replacement``."""
    replacement.__script_if_tracing_wrapper = True
    replacement.__original_fn = original


def is_tracing() -> bool:
    """Whether torch records or changes this thread's operations: torch.jit.trace(), a
    TorchDispatchMode (as make_fx() uses one), or forward-mode differentiation."""
    return (
        torch._C._is_tracing()
        or torch._C._len_torch_dispatch_stack() > 0
        or getattr(forward_ad, "_current_level", -1) >= 0
    )


def version_of(tensor: torch.Tensor) -> int:
    """A tensor's version counter: the number of its in-place changes by torch."""
    return tensor._version


# ---- torch: tensors that processes share ---------------------------------------------------------

_REDUCTIONS = "torch.multiprocessing.reductions"
_n_owners = _find("torch._C", "_storage_Use_Count")
_id_of_fd = _find(_REDUCTIONS, "fd_id")
_rebuild_tensor = _find(_REDUCTIONS, "rebuild_tensor")
_sent_storages = _find(_REDUCTIONS, "shared_cache")
_SHARING = (_n_owners, _id_of_fd, _rebuild_tensor, _sent_storages)
_make_shared_storage: Any = getattr(torch.UntypedStorage, "_new_shared_fd_cpu", None)


def can_share_storages() -> bool:
    """Whether the functions below work with this torch."""
    return (
        None not in _SHARING
        and _make_shared_storage is not None
        and hasattr(torch.UntypedStorage, "_share_fd_cpu_")
        and isinstance(_sent_storages, dict)
    )


def uses_descriptors() -> bool:
    """Whether torch shares memory between processes by file descriptors."""
    return bool(torch.multiprocessing.get_sharing_strategy() == "file_descriptor")


def make_shared_storage(fd: int, n_bytes: int) -> torch.UntypedStorage:
    """A storage over the first bytes of shared memory, as torch makes one. Duplicates the file
    descriptor. Raises RuntimeError if the memory can't be mapped."""
    return _make_shared_storage(fd, n_bytes)  # type: ignore[no-any-return]


def fd_of_storage(storage: torch.UntypedStorage) -> int:
    """The file descriptor of a storage in shared memory; borrowed."""
    share: Any = getattr(storage, "_share_fd_cpu_")  # noqa: B009
    return int(share()[0])


def n_owners(storage: torch.UntypedStorage) -> int:
    """The number of tensors and Python objects that own a storage."""
    assert _n_owners is not None
    return int(_n_owners(storage._cdata))


def n_uses(tensor: Any) -> int:
    """How many own a tensor itself: its Python object, and what DLPack made of it."""
    return int(tensor._use_count())


def id_of_fd(fd: int) -> Any:
    """The key of shared memory in torch's table of storages that were sent to other processes."""
    assert _id_of_fd is not None
    return _id_of_fd(fd)


def was_sent(key: Any) -> bool:
    """Whether torch has sent a storage of this key to another process, or received it."""
    return key in _sent_storages


def rebuild_tensor(
    storage: torch.UntypedStorage,
    dtype: torch.dtype,
    offset: int,
    shape: tuple[int, ...],
    stride: tuple[int, ...],
) -> torch.Tensor:
    """A tensor in a storage, made as torch makes a tensor from another process."""
    assert _rebuild_tensor is not None
    typed = torch.TypedStorage(wrap_storage=storage, dtype=dtype, _internal=True)
    return _rebuild_tensor(torch.Tensor, typed, (offset, shape, stride, False))  # type: ignore[no-any-return]


def replace_tensor_collate(make: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
    """Replaces the function with which default_collate stacks tensors by make(that function). Does
    nothing if it is not torch's own any more."""
    functions = collate_handlers()
    handler = functions.get(torch.Tensor)
    if handler is not None and handler is collate_tensor:
        functions[torch.Tensor] = make(handler)


# ---- tensors -------------------------------------------------------------------------------------

# The module of the tensor methods that torch writes in Python, and the class of its functions.
TENSOR_MODULE = "torch._tensor"
TORCH_FUNCTIONS = "_VariableFunctionsClass"


def without_dynamo_guard(function: Any) -> Any:
    """The function that torch keeps torch.compile() from tracing; any other as it is."""
    inner = getattr(function, "__wrapped__", None)
    scope = getattr(function, "__globals__", {})
    cells = getattr(function, "__closure__", None) or ()
    is_guard = "torch._compile" in sys.modules and scope is vars(sys.modules["torch._compile"])
    return inner if is_guard and any(one.cell_contents is inner for one in cells) else function


# ---- torch.nn ------------------------------------------------------------------------------------

CONTAINER = "torch.nn.modules.container"
LINEAR = "torch.nn.modules.linear"
MODULE = "torch.nn.modules.module"
# Instance attributes of every torch module that hide class attributes.
OWN_OF_MODULES = ("training", "_is_full_backward_hook")
# (module, qualified name) of the function torch.nn.Module.__call__.
MODULE_CALL = (MODULE, "Module._wrapped_call_impl")
# The methods that a call of a module runs before forward(); the attribute in which a compiled
# module keeps what is called instead; and the attributes that hold what Module.__getattr__ finds,
# in its order.
MODULE_CALLS = ("_wrapped_call_impl", "_call_impl")
COMPILED = "_compiled_call_impl"
MODULE_VALUES = ("_parameters", "_buffers", "_modules")


def has_hooks(module: torch.nn.Module) -> bool:
    """Whether functions run around a module's forward()."""
    return any(value for key, value in vars(module).items() if key.endswith("_hooks"))


def are_hooks_global() -> bool:
    """Whether functions run around the forward() of all modules."""
    return any(
        value
        for key, value in vars(sys.modules[MODULE]).items()
        if key.startswith("_global_") and key.endswith("_hooks")
    )


@functools.cache
def global_hooks() -> tuple[Any, ...]:
    """The dicts of functions that run around the forward() of all modules, which torch changes in
    place: are_hooks_global() for calls that must be cheap."""
    return tuple(
        value
        for key, value in vars(sys.modules[MODULE]).items()
        if key.startswith("_global_") and key.endswith("_hooks")
    )


# ---- torchvision ---------------------------------------------------------------------------------

FUNCTIONAL = "torchvision.transforms.functional"
FUNCTIONAL_PIL = "torchvision.transforms._functional_pil"
# Where torchvision has a class Compose, and the method that a call runs.
COMPOSES = (
    ("torchvision.transforms.transforms", "__call__"),
    ("torchvision.transforms.v2._container", "forward"),
)
FUNCTIONAL_TENSOR = "torchvision.transforms._functional_tensor"
PRESETS = "torchvision.transforms._presets"
# Keeps the functions of v2 by the class of the image.
V2_KERNELS = "torchvision.transforms.v2.functional._utils"
V2_COLOR = "torchvision.transforms.v2.functional._color"
V2_GEOMETRY = "torchvision.transforms.v2.functional._geometry"
V2_MISC = "torchvision.transforms.v2.functional._misc"
V2_TYPES = "torchvision.transforms.v2.functional._type_conversion"
# Functions that transforms call, by module, which must not have been replaced: those of all
# transforms, and those of augmentations.
FUNCTIONS = {FUNCTIONAL: ("_interpolation_modes_from_int",)}
AUGMENTING_FUNCTIONS = {
    FUNCTIONAL: ("_get_inverse_affine_matrix",),
    FUNCTIONAL_PIL: ("_parse_fill",),
    "torchvision.transforms.autoaugment": ("_apply_op",),
}
# What the functions for colors of tensors call: those of v1 in FUNCTIONAL_TENSOR, and those of v2.
V1_COLOR_HELPERS = (
    "_blend", "_rgb2hsv", "_hsv2rgb", "rgb_to_grayscale", "convert_image_dtype", "invert",
    "_blurred_degenerate_image", "_scale_channel", "_equalize_single_image", "_cast_squeeze_in",
    "_cast_squeeze_out",
)
V2_COLOR_HELPERS = {
    V2_COLOR: (
        "_blend", "_rgb_to_grayscale_image", "_rgb_to_hsv", "_hsv_to_rgb", "to_dtype_image",
        "invert_image", "_num_value_bits",
    ),
}
# The same of affine transforms; and what both call in torch.
V1_WARP_HELPERS = (
    "_apply_grid_transform", "_assert_grid_transform_inputs", "_cast_squeeze_in",
    "_cast_squeeze_out", "_gen_affine_grid",
)
V2_WARP_HELPERS = (
    "_affine_grid", "_affine_parse_args", "_apply_grid_transform", "_assert_grid_transform_inputs",
    "_get_inverse_affine_matrix",
)
GRID_SAMPLE = "torch.nn.functional", "grid_sample"
# Private methods of transforms and datasets that determine their results.
METHODS = frozenset({
    "_transform", "_get_params", "_check_inputs", "_needs_transform_list", "_call_kernel",
})
# What torchvision's conversions of images to tensors call.
TENSOR_HELPERS = (
    ("torchvision.transforms._functional_pil", "get_image_num_channels"),
    ("torchvision.transforms._functional_pil", "_is_pil_image"),
    ("torchvision.transforms._functional_tensor", "convert_image_dtype"),
    (V2_MISC, "_max_value"),
)


def n_delivered(iterator: Any) -> int:
    """Number of batches that one of torch's iterators, over a sampler that counts the pulled ones,
    has returned or raised an error for."""
    received = getattr(iterator, "_rcvd_idx", None)  # of an iterator with worker processes
    return int(iterator._sampler_iter.n_pulled if received is None else received)


def _attribute(owner: Any, name: str) -> Any:
    """An attribute of a transform. Raises MissingNameError if it does not exist."""
    try:
        return getattr(owner, name)
    except AttributeError:
        kind = owner if isinstance(owner, type) else type(owner)
        raise MissingNameError(
            f"{kind.__module__}.{kind.__qualname__} of torchvision {torchvision_version()} has no "
            f"{name}, which feedmill reads (tested with {TRIED})"
        ) from None


def torchvision_version() -> str:
    """The version of the imported torchvision; "" if none is imported."""
    return str(getattr(sys.modules.get("torchvision"), "__version__", ""))


def mode_of_number(number: int) -> Any:
    """torchvision's InterpolationMode for Pillow's number of a filter; None if there is none."""
    convert = getattr(sys.modules[FUNCTIONAL], "_interpolation_modes_from_int", None)
    if convert is None:
        raise MissingNameError(
            f"torchvision {torchvision_version()} has no {FUNCTIONAL}._interpolation_modes_from_int"
        )
    try:
        return convert(number)
    except KeyError:
        return None


def v2_kernels(module: Any) -> dict[Any, dict[type, Any]]:
    """By function, the kernels of V2_KERNELS by class; empty if this torchvision has none."""
    return getattr(module, "_KERNEL_REGISTRY", {})


def is_v2_wrapper(function: Any, kernel: Any) -> bool:
    """Whether a function is the one that torchvision makes of a kernel of tensors for tv_tensors.
    """
    maker = getattr(sys.modules.get(V2_KERNELS), "_kernel_tv_tensor_wrapper", None)
    codes = getattr(getattr(maker, "__code__", None), "co_consts", ())
    code = getattr(function, "__code__", None)
    if code is None or not any(code is one for one in codes):
        return False
    return [cell.cell_contents for cell in function.__closure__ or ()] == [kernel]


def v2_fills(transform: Any) -> Any:
    """A v2 transform's fill values by type."""
    return _attribute(transform, "_fill")


def v2_log_ratio(transform: Any) -> Any:
    """The logarithms of the range from which v2's RandomResizedCrop draws aspect ratios."""
    return _attribute(transform, "_log_ratio")


def policies(transform: Any, is_v2: bool) -> tuple[Any, Any]:
    """The policies of an AutoAugment: (those it contains, those that its ``policy`` stands for)."""
    held = _attribute(transform, "_policies" if is_v2 else "policies")
    return held, _attribute(transform, "_get_policies")(transform.policy)


def params_method(transform: Any) -> str:
    """The name of the method with which a v2 transform draws its parameters."""
    if hasattr(type(transform), "make_params"):
        return "make_params"
    _attribute(type(transform), "_get_params")
    return "_get_params"


def check_augmenting(transform: Any, is_v2: bool) -> None:
    """Raises MissingNameError if augment() does not work with this torchvision."""
    if is_v2:
        v2_fills(transform)
        _attribute(type(transform), "_apply_image_or_video_transform")
    else:
        _attribute(sys.modules[type(transform).__module__], "_apply_op")


def augment(transform: Any, is_v2: bool, image: Any, name: str, magnitude: float) -> Any:
    """Applies a single operation of an automatic augmentation to an image."""
    interpolation = transform.interpolation
    if is_v2:
        return transform._apply_image_or_video_transform(
            image, name, magnitude, interpolation=interpolation, fill=transform._fill
        )
    apply = sys.modules[type(transform).__module__]._apply_op
    return apply(image, name, magnitude, interpolation=interpolation, fill=transform.fill)
