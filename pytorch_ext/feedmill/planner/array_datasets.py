"""Datasets whose samples are rows of arrays in memory: TensorDataset, feedmill.data.NpyFile,
torchvision's small image datasets, and Subsets of these."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch

from feedmill.planner.arrays import DLPACK, Arrays, Spec, address_of, torch_dtype
from feedmill.planner.plan import Plan, UnsupportedError
from feedmill.planner.samples import BaseDataset

_MAX_ARRAYS = 64
_INT64 = (-(1 << 63), (1 << 63) - 1)


@dataclass(frozen=True)
class CopyPlan(Plan):
    """The plan of samples that are copied unchanged. ``text`` describes a row."""

    text: str = ""

    def describe(self) -> str:
        return f"none: rows are copied unchanged, {self.text}"


@dataclass(eq=False)
class ArrayNode:
    """A dataset in memory, or a Subset of one.

    Attributes:
        base_dataset: the dataset without Subsets; its ``load`` returns the PIL image of a row, or
            for other datasets the sample.
        kind: the dataset in words, such as "Subset of CIFAR10".
        arrays: the dataset's memory.
        tensors: the tensors of a TensorDataset.
        targets: of images, one for each row.
        rows: index -> row; None: the row is the index.
    """

    base_dataset: BaseDataset
    kind: str
    arrays: Arrays
    tensors: tuple[torch.Tensor, ...] = ()
    targets: np.ndarray | None = None
    rows: np.ndarray | None = None

    @property
    def base_datasets(self) -> tuple[BaseDataset, ...]:
        return (self.base_dataset,)


# ---- TensorDataset -------------------------------------------------------------------------------


def tensor_node(dataset: Any) -> ArrayNode:
    """The node of a torch TensorDataset. UnsupportedError if the native loader can't copy the rows
    of a tensor."""
    tensors = dataset.tensors
    if type(tensors) not in (tuple, list) or not 1 <= len(tensors) <= _MAX_ARRAYS:
        raise UnsupportedError(
            f"the TensorDataset's tensors are not supported natively; they must be a tuple of 1 to "
            f"{_MAX_ARRAYS}"
        )
    tensors = tuple(tensors)
    for number, tensor in enumerate(tensors):
        if why := _why_not_rows(tensor):
            raise UnsupportedError(f"tensor {number} of the TensorDataset {why}")
    if len({len(tensor) for tensor in tensors}) > 1:
        raise UnsupportedError("the TensorDataset's tensors have different lengths")
    # Further references to the memory: it stays valid if the user gives a tensor other memory.
    kept = tuple(tensor.detach() for tensor in tensors)
    text = ", ".join(f"{str(one.dtype)[6:]} {tuple(one.shape[1:])}" for one in tensors)
    plan = CopyPlan((), "uint8", None, 0, 1, text=text)
    dtypes = tuple(one.dtype for one in tensors)
    arrays = Arrays(tuple(map(_spec_of, kept)), None, dtypes, kept)
    base = BaseDataset(dataset, dataset.__getitem__, dataset.__getitem__, False, "", plan, ())
    return ArrayNode(base, "TensorDataset", arrays, tensors)


def _why_not_rows(tensor: Any) -> str:
    """Why the native loader can't copy a tensor's rows; "" if it can."""
    if type(tensor) is not torch.Tensor:
        return f"is a {type(tensor).__name__}; natively it must be a plain torch.Tensor"
    if tensor.device.type != "cpu" or tensor.layout is not torch.strided:
        return f"is {tensor.layout} on {tensor.device}; natively it must be dense, on the CPU"
    if tensor.requires_grad:
        return "requires a gradient; detach it"
    if tensor.dtype not in DLPACK or tensor.is_conj() or tensor.is_neg():
        conjugated = ", conjugated" if tensor.is_conj() else ""
        return f"is {tensor.dtype}{conjugated}, which is not supported natively"
    if tensor.ndim == 0 or 0 in tensor.shape:
        return f"has no rows with values: its shape is {tuple(tensor.shape)}"
    row = tensor[0]
    if not row.is_contiguous() or (len(tensor) > 1 and tensor.stride(0) < row.numel()):
        return (
            f"has rows that are not contiguous (strides {tensor.stride()}); call .contiguous()"
        )
    if 1 in row.shape and torch.stack([row, row]).stride() != _dense_strides((2, *row.shape)):
        return "has rows to which torch.stack() gives other strides; call .contiguous()"
    return ""


def _dense_strides(shape: Sequence[int]) -> tuple[int, ...]:
    return tuple(int(np.prod(shape[i + 1 :], dtype=np.int64)) for i in range(len(shape)))


def _spec_of(tensor: torch.Tensor) -> Spec:
    shape = tuple(tensor.shape[1:])
    row_bytes = tensor[0].numel() * tensor.itemsize
    stride = tensor.stride(0) * tensor.itemsize if len(tensor) > 1 else row_bytes
    return Spec(
        tensor.data_ptr(), len(tensor), row_bytes, stride, *DLPACK[tensor.dtype], shape
    )


# ---- NpyFile -------------------------------------------------------------------------------------


def npy_node(dataset: Any) -> ArrayNode:
    """The node of a feedmill.data.NpyFile. UnsupportedError if its rows can't be copied."""
    values = dataset.array
    if dataset.transform is not None and dataset.transform is not torch.from_numpy:
        raise UnsupportedError(
            "the NpyFile has a transform other than torch.from_numpy, which is not supported "
            "natively"
        )
    dtype = torch_dtype(values.dtype)
    if dtype is None or 0 in values.shape or not values.flags.c_contiguous:
        raise UnsupportedError(
            f"the NpyFile holds {values.dtype} {values.shape}; natively an array must not be "
            "empty, be in C order, and of a type that torch has"
        )
    targets = _npy_targets(dataset)
    row_bytes, shape = values[0].nbytes, values.shape[1:]
    specs = (
        Spec(address_of(values), len(values), row_bytes, row_bytes, *DLPACK[dtype], shape),
        Spec(address_of(targets), len(values), 8, 8, *DLPACK[torch.int64], ()),
    )
    plan = CopyPlan((), "uint8", None, 0, 1, text=f"{str(dtype)[6:]} {shape}")
    load = partial(_load_npy, dataset)
    base = BaseDataset(dataset, dataset.__getitem__, load, False, "transform", plan, ())
    arrays = Arrays(specs, None, (dtype, torch.int64), (values, targets))
    return ArrayNode(base, "NpyFile", arrays)


def _npy_targets(dataset: Any) -> np.ndarray:
    """The targets as int64 values. UnsupportedError unless default_collate gives int64, too."""
    targets, n = dataset.targets, len(dataset.array)
    if targets is None:
        return _same_memory(dataset, np.arange(n))
    if type(targets) is list and set(map(type, targets)) == {int}:
        targets = _same_memory(dataset, np.array(targets))
    elif type(targets) is torch.Tensor and targets.device.type == "cpu":
        targets = targets.detach().numpy()
    is_int64 = type(targets) is np.ndarray and targets.dtype == np.int64 and targets.ndim == 1
    if not is_int64 or len(targets) != n or not targets.flags.c_contiguous:
        raise UnsupportedError("the NpyFile's targets must be 64-bit ints, one for each row")
    found: np.ndarray = targets
    return found


def _load_npy(dataset: Any, row: int) -> tuple[torch.Tensor, torch.Tensor]:
    values, target = dataset[row]
    return torch.as_tensor(values), torch.as_tensor(target)


# ---- torchvision's images ------------------------------------------------------------------------

# torchvision's classes: (module, names, the attribute that holds the targets).
_IMAGES = (
    ("torchvision.datasets.cifar", ("CIFAR10", "CIFAR100"), "targets"),
    ("torchvision.datasets.mnist", ("MNIST", "FashionMNIST", "KMNIST", "EMNIST"), "targets"),
    ("torchvision.datasets.svhn", ("SVHN",), "labels"),
)


class Images(NamedTuple):
    """Images of a torchvision dataset in memory.

    Attributes:
        values: uint8 (n, height, width, channels) or, for grayscale, (n, height, width); with any
            strides.
        targets: n ints.
        load: row -> PIL image, as the dataset's __getitem__ makes it.
    """

    values: np.ndarray
    targets: np.ndarray
    load: Callable[[int], Any]


def images_of(dataset: Any) -> Images | None:
    """The images of a torchvision dataset in memory; None for any other class. UnsupportedError if
    the dataset's data is not as its class loads it."""
    kind = type(dataset)
    for module, names, slot in _IMAGES:
        if kind.__name__ in names and kind is getattr(sys.modules.get(module), kind.__name__, None):
            return _read_images(dataset, module.rpartition(".")[2], slot)
    return None


def _read_images(dataset: Any, family: str, slot: str) -> Images:
    name = type(dataset).__name__
    data = dataset.data
    values = data.detach().numpy() if family == "mnist" and type(data) is torch.Tensor else data
    n_dims = 3 if family == "mnist" else 4
    if (type(data) is torch.Tensor) != (family == "mnist") or type(values) is not np.ndarray:
        want = "torch.Tensor" if family == "mnist" else "numpy.ndarray"
        raise UnsupportedError(f"the {name}'s data is a {type(data).__name__}; it must be a {want}")
    if values.dtype != np.uint8 or values.ndim != n_dims or 0 in values.shape:
        raise UnsupportedError(
            f"the {name}'s data is {values.dtype} {values.shape}; it must be uint8 images"
        )
    if family == "svhn":
        values = values.transpose(0, 2, 3, 1)
    if n_dims == 4 and values.shape[3] != 3:
        raise UnsupportedError(f"the {name}'s images have {values.shape[3]} channels; they must "
                               "have 3")
    targets = _targets_of(dataset, getattr(dataset, slot), family)
    if len(targets) != len(values):
        raise UnsupportedError(
            f"the {name} has {len(values)} images, but {len(targets)} targets"
        )
    return Images(values, targets, partial(_load_image, dataset, family))


def _load_image(dataset: Any, family: str, row: int) -> Any:
    from PIL import Image

    image = dataset.data[row]
    if family == "mnist":
        return Image.fromarray(image.numpy())
    return Image.fromarray(np.transpose(image, (1, 2, 0)) if family == "svhn" else image)


def image_node(base_dataset: BaseDataset, images: Images) -> ArrayNode:
    """The node of a dataset of images in memory. UnsupportedError if images overlap in memory or
    have negative strides."""
    values, targets = images.values, images.targets
    stride, line, pixel, *channel = values.strides
    n, height, width, *channels = values.shape
    n_channels, channel_stride = (channels[0], channel[0]) if channels else (1, 1)
    row_bytes = (
        (height - 1) * line + (width - 1) * pixel + (n_channels - 1) * channel_stride + 1
    )
    stride = stride if n > 1 else row_bytes
    if min(line, pixel, channel_stride) < 1 or stride < row_bytes:
        raise UnsupportedError(
            f"the {type(base_dataset.dataset).__name__}'s images have the strides "
            f"{values.strides}, which are not supported natively; make the data contiguous"
        )
    row = (n_channels, height, width)
    specs = (
        Spec(address_of(values), n, row_bytes, stride, *DLPACK[torch.uint8], row),
        Spec(address_of(targets), n, 8, 8, *DLPACK[torch.int64], ()),
    )
    image = (height, width, n_channels, channel_stride, line, pixel)
    arrays = Arrays(specs, image, (torch.uint8, torch.int64), (values, targets))
    return ArrayNode(base_dataset, type(base_dataset.dataset).__name__, arrays, targets=targets)


# ---- targets -------------------------------------------------------------------------------------

# Targets that were converted to arrays, by dataset. While they do not change, every epoch uses the
# same memory.
_list_targets: weakref.WeakKeyDictionary[Any, np.ndarray] = weakref.WeakKeyDictionary()


def _targets_of(dataset: Any, targets: Any, family: str) -> np.ndarray:
    """The targets as int64 values: in the dataset's own memory if it holds int64, else a copy."""
    name = type(dataset).__name__
    if family == "mnist" and type(targets) is torch.Tensor and targets.device.type == "cpu":
        targets = targets.detach().numpy() if targets.dtype is torch.int64 else None
    elif family == "cifar" and type(targets) is list and set(map(type, targets)) == {int}:
        if min(targets) < _INT64[0] or max(targets) > _INT64[1]:
            raise UnsupportedError(f"the {name}'s targets do not fit 64-bit ints")
        return _same_memory(dataset, np.array(targets, np.int64))
    elif family != "svhn":
        targets = None
    if type(targets) is not np.ndarray or targets.ndim != 1 or targets.dtype.kind not in "iu":
        raise UnsupportedError(
            f"the {name}'s targets are not of the type that the class loads, a list or array of "
            "ints"
        )
    if targets.dtype == np.int64 and targets.flags.c_contiguous:
        return targets
    if targets.dtype == np.uint64:
        raise UnsupportedError(f"the {name}'s targets are uint64, which is not supported natively")
    return _same_memory(dataset, targets.astype(np.int64))


def _same_memory(dataset: Any, targets: np.ndarray) -> np.ndarray:
    """These targets, or the dataset's earlier array if it holds the same values."""
    known = _list_targets.get(dataset)
    if known is not None and np.array_equal(known, targets):
        return known
    _list_targets[dataset] = targets
    return targets


# ---- Subset --------------------------------------------------------------------------------------


def subset_node(subset: Any, inner: ArrayNode) -> ArrayNode:
    """The node of a Subset of a dataset in memory. UnsupportedError if an index is not valid."""
    indices = subset.indices
    if type(indices) in (list, tuple) and set(map(type, indices)) - {int}:
        raise UnsupportedError("a Subset's indices are not all ints")
    numbers = np.asarray(indices)
    n_inner = len(subset.dataset)
    if numbers.ndim != 1 or numbers.dtype.kind not in "iu":
        raise UnsupportedError(
            f"a Subset's indices are {numbers.dtype} {numbers.shape}; they must be a list of ints"
        )
    if len(numbers) and not -n_inner <= numbers.min() <= numbers.max() < n_inner:
        raise UnsupportedError(
            f"a Subset has indices outside of its dataset, which has {n_inner} samples"
        )
    numbers = numbers.astype(np.int64)
    numbers[numbers < 0] += n_inner
    rows = numbers if inner.rows is None else inner.rows[numbers]
    return ArrayNode(
        inner.base_dataset, f"Subset of {inner.kind}", inner.arrays, inner.tensors,
        inner.targets, rows,
    )
