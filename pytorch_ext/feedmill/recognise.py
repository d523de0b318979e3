"""Decides whether a DataLoader can run natively, and makes the plan for it.

The check is strict: exact types, untouched classes, untouched instances. Whatever might give other
pixels than the native code is left to torch, with a reason in plain words.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.utils.data._utils import collate as torch_collate

RESIZE, CENTER_CROP, RANDOM_RESIZED_CROP, RANDOM_HORIZONTAL_FLIP = 1, 2, 3, 4
OP_NAMES = {
    RESIZE: "Resize",
    CENTER_CROP: "CenterCrop",
    RANDOM_RESIZED_CROP: "RandomResizedCrop",
    RANDOM_HORIZONTAL_FLIP: "RandomHorizontalFlip",
}
_GEOMETRY = frozenset(OP_NAMES.values())
_TO_TENSOR = frozenset({"PILToTensor", "ToTensor"})
_SUPPORTED = _GEOMETRY | _TO_TENSOR | {"ConvertImageDtype", "Normalize"}

# Limits of the native plan (fm_op and FM_MAX_OPS).
_MAX_SIZE_PX = 65535
_MAX_OPS = 16
# Where Pillow begins to warn of decompression bombs; larger images are left to Pillow.
_MAX_IMAGE_PIXELS = 89478485
_JPEG_SUFFIXES = (".jpg", ".jpeg", ".jpe", ".jfif")
_PROBED_SAMPLES = 10000

_Op = tuple[int, int, int, int, float, float, float, float, float]


@dataclass(frozen=True)
class Plan:
    """What the native loader needs to know of a transform. Equal plans give equal pixels.

    Attributes:
        ops: geometry, in order: (kind, height, width, max_size, scale0, scale1, ratio0, ratio1, p)
            as ``_native.Loader`` takes them.
        dtype: "uint8" or "float32".
        value_table: for float32: 3 x 256 float32 results by (channel, pixel value), else None.
        resize_order: order of the passes of the installed Pillow's resize, as fm_resize_order.
        max_image_pixels: larger images go through Pillow.
    """

    ops: tuple[_Op, ...]
    dtype: str
    value_table: bytes | None
    resize_order: int
    max_image_pixels: int


class _Refusal(Exception):
    """A reason why not."""


def recognise(loader: Any) -> Plan | list[str]:
    """The plan of a DataLoader as its dataset and transforms are now, or all reasons why not.

    Draws no random number and changes nothing.
    """
    reasons = _loader_reasons(loader)
    dataset = loader.dataset
    dataset_reasons = _dataset_reasons(dataset)
    reasons += dataset_reasons
    if dataset_reasons:
        return reasons
    try:
        plan = _plan_of(dataset.transform)
    except _Refusal as refusal:
        return [*reasons, str(refusal)]
    return reasons or plan


# ---- loader and dataset --------------------------------------------------------------------------


def _loader_reasons(loader: Any) -> list[str]:
    reasons = []
    auto_collation = loader.batch_sampler is not None
    collate = torch_collate.default_collate if auto_collation else torch_collate.default_convert
    if loader.collate_fn is not collate:
        reasons.append("collate_fn is not torch's default")
    elif torch_collate.default_collate_fn_map.get(torch.Tensor) is not getattr(
        torch_collate, "collate_tensor_fn", None
    ):
        reasons.append("torch's default_collate was changed for tensors")
    if loader.worker_init_fn is not None:
        reasons.append("worker_init_fn is given; there are no Python workers natively")
    return reasons


def _dataset_reasons(dataset: Any) -> list[str]:
    kind = type(dataset)
    # A dataset of torchvision's exists only where torchvision was imported.
    folder = sys.modules.get("torchvision.datasets.folder")
    if folder is None or kind is not getattr(folder, "ImageFolder", None):
        return [f"the dataset is a {_type_name(kind)}; only torchvision's ImageFolder itself, "
                "no subclass, is recognised"]
    reasons = []
    base = folder.DatasetFolder
    if not _is_original(kind.__getitem__, folder.__name__, "DatasetFolder.__getitem__"):
        reasons.append("ImageFolder.__getitem__ was replaced")
    if not _is_original(kind.__len__, folder.__name__, "DatasetFolder.__len__"):
        reasons.append("ImageFolder.__len__ was replaced")
    if hasattr(kind, "__getitems__"):
        reasons.append("ImageFolder was given a __getitems__")
    shadows = _shadows(dataset)
    if "__getitems__" in vars(dataset):
        shadows.append("__getitems__")
    if shadows:
        reasons.append(f"the dataset object has its own {', '.join(shadows)}")
    if kind.__getattribute__ is not object.__getattribute__ or hasattr(base, "__getattr__"):
        reasons.append("ImageFolder's attribute access was replaced")
    reasons += _file_loader_reasons(dataset, folder)
    if dataset.target_transform is not None:
        reasons.append("the dataset has a target_transform")
    reasons += _samples_reasons(dataset)
    return reasons


def _file_loader_reasons(dataset: Any, folder: Any) -> list[str]:
    originals = [
        getattr(folder, name)
        for name in ("default_loader", "pil_loader")
        if _is_original(getattr(folder, name, None), folder.__name__, name)
    ]
    if len(originals) != 2:
        return ["torchvision's default_loader or pil_loader was replaced"]
    if not any(dataset.loader is original for original in originals):
        return ["the dataset's loader is not torchvision's default_loader"]
    backend = sys.modules["torchvision"].get_image_backend()
    if backend != "PIL":
        return [f"torchvision's image backend is {backend}, not PIL"]
    return []


def _samples_reasons(dataset: Any) -> list[str]:
    samples = dataset.samples
    if type(samples) not in (list, tuple):
        return [f"the dataset's samples are a {_type_name(type(samples))}, not a list"]
    if not samples:
        return ["the dataset is empty"]
    n_jpeg = n_probed = 0
    for sample in samples[:: max(1, -(-len(samples) // _PROBED_SAMPLES))]:
        n_probed += 1
        try:
            n_jpeg += str(sample[0]).lower().endswith(_JPEG_SUFFIXES)
        except (TypeError, IndexError, KeyError):
            return ["the dataset's samples are not (path, target) pairs"]
    if 2 * n_jpeg < n_probed:
        return [f"most files are not JPEGs by name ({n_jpeg} of {n_probed} looked at are)"]
    return []


# ---- transforms ----------------------------------------------------------------------------------


def _plan_of(transform: Any) -> Plan:
    module = sys.modules.get("torchvision.transforms.transforms")
    if transform is None:
        raise _Refusal("the dataset has no transform; images would stay PIL images")
    if module is None or type(transform) is not module.Compose:
        raise _Refusal(
            f"the transform is a {_type_name(type(transform))}; only torchvision.transforms."
            "Compose itself is recognised"
        )
    if not _is_original(module.Compose.__call__, module.__name__, "Compose.__call__"):
        raise _Refusal("Compose.__call__ was replaced")
    if _shadows(transform):
        raise _Refusal(f"the Compose object has its own {', '.join(_shadows(transform))}")
    transforms = transform.transforms
    if type(transforms) not in (list, tuple):
        raise _Refusal("Compose.transforms is not a list")
    _check_functional()
    for one in transforms:
        _check_untouched(one, module)
    ops = _geometry_of(transforms)
    dtype, value_table = _pixels_of(transforms)
    return Plan(ops, dtype, value_table, _resize_order(), _max_image_pixels())


def _check_untouched(transform: Any, module: Any) -> None:
    """Refuses what is not exactly one of torchvision's own supported objects."""
    kind = type(transform)
    name = kind.__name__
    if name not in _SUPPORTED or kind is not getattr(module, name, None):
        raise _Refusal(f"the transform {_type_name(kind)} is not supported natively")
    if shadows := _shadows(transform):
        raise _Refusal(f"a {name} object has its own {', '.join(shadows)}")
    if not isinstance(transform, torch.nn.Module):
        if not _is_original(kind.__call__, module.__name__, f"{name}.__call__"):
            raise _Refusal(f"{name}.__call__ was replaced")
        return
    if not _is_original(kind.forward, module.__name__, f"{name}.forward"):
        raise _Refusal(f"{name}.forward was replaced")
    if name == "RandomResizedCrop" and not _is_original(
        kind.get_params, module.__name__, "RandomResizedCrop.get_params"
    ):
        raise _Refusal("RandomResizedCrop.get_params was replaced")
    if kind.__call__ is not torch.nn.Module.__call__:
        raise _Refusal(f"{name}.__call__ was replaced")
    hooks = [key for key, value in vars(transform).items() if key.endswith("_hooks") and value]
    if hooks:
        raise _Refusal(f"a {name} object has hooks")
    global_hooks = vars(torch.nn.modules.module)
    if any(
        value
        for key, value in global_hooks.items()
        if key.startswith("_global_") and key.endswith("_hooks")
    ):
        raise _Refusal("global hooks are registered for torch.nn modules")


def _check_functional() -> None:
    module = sys.modules["torchvision.transforms.functional"]
    for name in ("resize", "center_crop", "crop", "pad", "resized_crop", "hflip", "to_tensor",
                 "pil_to_tensor", "convert_image_dtype", "normalize"):
        if not _is_original(getattr(module, name, None), module.__name__, name):
            raise _Refusal(f"torchvision.transforms.functional.{name} was replaced")


def _geometry_of(transforms: Iterable[Any]) -> tuple[_Op, ...]:
    ops = []
    n_resizes = 0
    fixed_size = as_tensor = False
    for one in transforms:
        name = type(one).__name__
        as_tensor = as_tensor or name in _TO_TENSOR
        if name not in _GEOMETRY:
            continue
        if as_tensor and name != "RandomHorizontalFlip":
            # On a tensor these compute other pixels, by another kernel.
            raise _Refusal(f"{name} follows the conversion to a tensor")
        ops.append(_op_of(one, name))
        n_resizes += name in ("Resize", "RandomResizedCrop")
        if name != "RandomHorizontalFlip":
            fixed_size = name != "Resize" or ops[-1][2] > 0
    if n_resizes > 1:
        raise _Refusal("the transform resizes more than once")
    if not fixed_size:
        raise _Refusal("the transform does not lead to one size for all images")
    if len(ops) > _MAX_OPS:
        raise _Refusal(f"the transform has {len(ops)} geometric steps; {_MAX_OPS} at most")
    return tuple(ops)


def _op_of(transform: Any, name: str) -> _Op:
    if name == "RandomHorizontalFlip":
        p = transform.p
        if type(p) not in (int, float) or math.isnan(p):
            raise _Refusal(f"RandomHorizontalFlip has p={p!r}")
        return (RANDOM_HORIZONTAL_FLIP, 0, 0, 0, 0.0, 0.0, 0.0, 0.0, min(max(float(p), 0.0), 1.0))
    if name == "CenterCrop":
        height, width = _size_pair(transform.size, name)
        return (CENTER_CROP, height, width, 0, 0.0, 0.0, 0.0, 0.0, 0.0)
    modes = sys.modules["torchvision.transforms.functional"].InterpolationMode
    if transform.interpolation is not modes.BILINEAR:
        raise _Refusal(f"{name} interpolates by {transform.interpolation}; only bilinear is native")
    if name == "Resize":
        return _resize_op(transform)
    height, width = _size_pair(transform.size, name)
    scale = _range_pair(transform.scale, "RandomResizedCrop's scale")
    ratio = _range_pair(transform.ratio, "RandomResizedCrop's ratio")
    # The native draws are made in float32, where these limits must be ordinary values.
    if scale[0] < 0 or scale[1] > 1e30 or ratio[0] < 1e-30 or ratio[1] > 1e30:
        raise _Refusal(f"RandomResizedCrop has scale={scale} and ratio={ratio}")
    return (RANDOM_RESIZED_CROP, height, width, 0, *scale, *ratio, 0.0)


def _resize_op(transform: Any) -> _Op:
    size, max_size = transform.size, transform.max_size
    if isinstance(size, Sequence) and len(size) == 2:
        if max_size is not None:
            raise _Refusal("Resize has both a pair of sizes and max_size")
        height, width = _size_pair(size, "Resize")
        return (RESIZE, height, width, 0, 0.0, 0.0, 0.0, 0.0, 0.0)
    short = size[0] if isinstance(size, Sequence) and len(size) == 1 else size
    if not _is_size(short) or (max_size is not None and not _is_size(max_size)):
        raise _Refusal(f"Resize has size={size!r} and max_size={max_size!r}")
    if max_size is not None and max_size <= short:
        raise _Refusal(f"Resize has max_size={max_size}, not above size={short}")
    return (RESIZE, short, 0, max_size or 0, 0.0, 0.0, 0.0, 0.0, 0.0)


def _is_size(value: Any) -> bool:
    return type(value) is int and 1 <= value <= _MAX_SIZE_PX


def _size_pair(size: Any, name: str) -> tuple[int, int]:
    if isinstance(size, Sequence) and len(size) == 2 and all(map(_is_size, size)):
        return size[0], size[1]
    raise _Refusal(f"{name} has size={size!r}; sizes are ints from 1 to {_MAX_SIZE_PX}")


def _range_pair(values: Any, what: str) -> tuple[float, float]:
    good = (
        isinstance(values, Sequence)
        and len(values) == 2
        and all(type(value) in (int, float) and math.isfinite(value) for value in values)
        and values[0] <= values[1]
    )
    if not good:
        raise _Refusal(f"{what} is {values!r}, not a pair (low, high)")
    return float(values[0]), float(values[1])


def _pixels_of(transforms: Iterable[Any]) -> tuple[str, bytes | None]:
    """Checks the steps after the geometry and runs the user's own objects over all pixel values."""
    steps = [one for one in transforms if type(one).__name__ not in _GEOMETRY]
    dtype = None
    for one in steps:
        name = type(one).__name__
        if name in _TO_TENSOR:
            if dtype is not None:
                raise _Refusal(f"{name} follows another conversion to a tensor")
            if name == "ToTensor" and torch.get_default_dtype() is not torch.float32:
                raise _Refusal(f"torch's default dtype is {torch.get_default_dtype()}")
            dtype = "float32" if name == "ToTensor" else "uint8"
        elif dtype is None:
            raise _Refusal(f"{name} stands before the conversion to a tensor")
        elif name == "ConvertImageDtype":
            if one.dtype is not torch.float32:
                raise _Refusal(f"ConvertImageDtype converts to {one.dtype}, not torch.float32")
            dtype = "float32"
        else:
            _check_normalize(one, dtype)
    if dtype is None:
        raise _Refusal("the transform does not end in a tensor (ToTensor or PILToTensor)")
    return dtype, None if dtype == "uint8" else _value_table(steps)


def _check_normalize(transform: Any, dtype: str) -> None:
    if dtype != "float32":
        raise _Refusal("Normalize needs float pixels; put ToTensor or ConvertImageDtype before it")
    for what in ("mean", "std"):
        try:
            values = torch.as_tensor(getattr(transform, what))
        except (TypeError, ValueError, RuntimeError):
            raise _Refusal(f"Normalize's {what} is not a list of numbers") from None
        if values.ndim > 1 or values.numel() not in (1, 3):
            raise _Refusal(f"Normalize's {what} has shape {tuple(values.shape)}, not (3,)")


def _value_table(steps: Sequence[Any]) -> bytes:
    """What the steps make of each pixel value: exact by construction."""
    from PIL import Image

    ramp = np.repeat(np.arange(256, dtype=np.uint8)[None, :, None], 3, axis=2)
    image: Any = Image.fromarray(ramp)  # 256 x 1 pixels, RGB
    try:
        with torch.no_grad():
            for step in steps:
                image = step(image)
    except Exception as error:  # whatever it is, torch will raise it at the first sample
        raise _Refusal(f"the transform fails on an image: {error}") from None
    if tuple(image.shape) != (3, 1, 256) or image.dtype != torch.float32:
        raise _Refusal(f"the transform gives {tuple(image.shape)} of {image.dtype}")
    if not bool(torch.isfinite(image).all()):
        raise _Refusal("Normalize gives values that are not finite")
    return image.cpu().contiguous().numpy().tobytes()


# ---- what is installed ---------------------------------------------------------------------------


def pillow_version() -> str:
    """The installed Pillow's version."""
    import PIL

    return PIL.__version__


def _resize_order() -> int:
    """fm_resize_order of the installed Pillow: which pass its resize does first."""
    numbers = [int(part) if part.isdigit() else 0 for part in pillow_version().split(".")[:2]]
    version = tuple(numbers)
    return 1 if version >= (13, 0) else 2 if version >= (12, 2) else 0


def _max_image_pixels() -> int:
    from PIL import Image

    limit = Image.MAX_IMAGE_PIXELS
    return min(_MAX_IMAGE_PIXELS, max(1, int(limit))) if limit else _MAX_IMAGE_PIXELS


# ---- untouched objects ---------------------------------------------------------------------------


def _is_original(function: Any, module: str, qualname: str) -> bool:
    """Whether a function is the one that the library defines under that name."""
    code = getattr(function, "__code__", None)
    return (
        code is not None
        and getattr(function, "__module__", None) == module
        and getattr(function, "__qualname__", None) == qualname
        and not hasattr(function, "__wrapped__")
        and function.__globals__.get("__name__") == module
    )


def _shadows(instance: Any) -> list[str]:
    """Names of the instance's own attributes that hide something of its class."""
    of_class = set(dir(type(instance)))
    return sorted(
        name
        for name in vars(instance)
        if name in of_class or (name.startswith("__") and name.endswith("__"))
    )


def _type_name(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"
