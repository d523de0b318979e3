"""Datasets whose samples are rows of arrays in memory, in the form that the native loader takes.

Nothing is copied beforehand: the native loader reads the dataset's own memory while an epoch runs.
"""

from __future__ import annotations

import operator
import sys
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch

from feedmill._internals import version_of, why_collate_was_changed
from feedmill._ops import native
from feedmill.planner.plan import Plan, UnsupportedError
from feedmill.planner.samples import BaseDataset, Item, NotNative, Source

# DLPack's (type code, bits).
_DLPACK = {
    torch.bool: (6, 8),
    torch.uint8: (1, 8), torch.int8: (0, 8), torch.int16: (0, 16), torch.int32: (0, 32),
    torch.int64: (0, 64), torch.float16: (2, 16), torch.bfloat16: (4, 16),
    torch.float32: (2, 32), torch.float64: (2, 64),
    torch.complex64: (5, 64), torch.complex128: (5, 128),
}
_MAX_ARRAYS = 64
_INT64 = (-(1 << 63), (1 << 63) - 1)


class Spec(NamedTuple):
    """An array, as _native.Loader takes it: its memory, DLPack's type (code, bits) and the shape of
    a row."""

    address: int
    n_rows: int
    row_bytes: int
    stride_bytes: int
    code: int
    bits: int
    shape: tuple[int, ...]


@dataclass(frozen=True)
class Arrays:
    """The arrays of a dataset.

    Attributes:
        specs: one for each array.
        image: (height, width, channels, channel stride, row stride, pixel stride) of the images in
            the first array, strides in bytes; None: the array does not hold images.
        dtypes: of the arrays. Delivered images have the plan's dtype instead.
        owners: objects that own the memory. The native loader holds a reference to each while its
            threads may read the memory. Thus no other array can get the same address meanwhile.
    """

    specs: tuple[Spec, ...]
    image: tuple[int, int, int, int, int, int] | None
    dtypes: tuple[torch.dtype, ...]
    owners: tuple[Any, ...] = field(compare=False)


@dataclass(frozen=True)
class CopyPlan(Plan):
    """The plan of samples that are copied unchanged. ``text`` describes a row."""

    text: str = ""

    def describe(self) -> str:
        return f"none: rows are copied unchanged, {self.text}"


# ---- samples of a batch --------------------------------------------------------------------------


class ArrayItem(Item):
    """A sample in an array: ``index`` is its row, ``path`` is empty."""

    __slots__ = ()

    def load(self) -> Any:
        return self.leaf.load(self.index)

    def size(self) -> tuple[int, int]:
        size: tuple[int, int] = self.load().size
        return size

    def __str__(self) -> str:
        return f"dataset index {self.position}, row {self.index} of an array in memory"


class Rows(Sequence[ArrayItem]):
    """The samples of a batch, in the form that the native loader takes: int64 values as bytes.

    Attributes:
        indices: the samples' indices in the DataLoader's dataset.
        rows: the samples' rows in the arrays; None: equal to the indices.
    """

    __slots__ = ("_versions", "indices", "rows", "source")

    def __init__(self, source: ArraySource, indices: bytes) -> None:
        self.source = source
        self.indices = indices
        self.rows = source.rows_of(indices)
        self._versions = source.versions()

    def __len__(self) -> int:
        return len(self.indices) // 8

    def __getitem__(self, which: Any) -> Any:
        if isinstance(which, slice):
            return Rows(self.source, np.frombuffer(self.indices, np.int64)[which].tobytes())
        return next(iter(self[which : which + 1]))

    def __iter__(self) -> Iterator[ArrayItem]:
        numbers = self.indices if self.rows is None else self.rows
        for index, row in zip(np.frombuffer(self.indices, np.int64).tolist(), as_numbers(numbers)):
            yield self.source.array_item(index, row)

    def changed(self) -> list[torch.Tensor] | None:
        """The batch as the dataset would return it now, if a tensor was changed in place since this
        object was made; None: no tensor was, by torch's version counters."""
        if self._versions == self.source.versions():
            return None
        rows = torch.tensor(as_numbers(self.indices if self.rows is None else self.rows))
        return [tensor[rows] for tensor in self.source.tensors]


def as_numbers(data: bytes) -> list[int]:
    """int64 values, given as bytes, as a list."""
    numbers: list[int] = np.frombuffer(data, np.int64).tolist()
    return numbers


# ---- datasets ------------------------------------------------------------------------------------


@dataclass(eq=False)
class ArrayNode:
    """A dataset in memory, or a Subset of one.

    Attributes:
        leaf: the dataset without Subsets; its ``load`` returns the PIL image of a row, or
            for other datasets the sample.
        kind: the dataset in words, such as "Subset of CIFAR10".
        arrays: the dataset's memory.
        tensors: the tensors of a TensorDataset.
        targets: of images, one for each row.
        rows: index -> row; None: the row is the index.
    """

    leaf: BaseDataset
    kind: str
    arrays: Arrays
    tensors: tuple[torch.Tensor, ...] = ()
    targets: np.ndarray | None = None
    rows: np.ndarray | None = None

    @property
    def base_datasets(self) -> tuple[BaseDataset, ...]:
        return (self.leaf,)


class ArraySource(Source):
    """The samples of a dataset in memory, as the dataset was when iter() was called. Their values
    are read when a batch is made; see Rows.changed() for values that change."""

    arrays: Arrays

    def __init__(self, dataset: Any, node: ArrayNode) -> None:
        self.n_samples = len(dataset)
        self.plan = node.leaf.plan
        self.kind = node.kind
        self.gives_bytes = False
        self.arrays = node.arrays
        self.copies = node.arrays.image is None
        self.tensors = node.tensors
        self._node = node

    def why_not(self, loader: Any, is_default: bool) -> list[str]:
        if not self.copies:
            changed = why_collate_was_changed(int) if is_default else ""
            return [changed] if changed else []
        reasons = []
        if not is_default or not loader._auto_collation:
            what = "batch_size=None" if is_default else "a collate_fn"
            reasons.append(
                f"with {what}, torch's samples are views of the dataset's own memory, but native "
                "samples are copies; use batch_size and the default collate_fn"
            )
        options = loader._feedmill_options()
        if options.dtype is not None or options.memory_format is not torch.contiguous_format:
            reasons.append(
                "dtype= and memory_format= are options for images; this dataset's samples are not "
                "images"
            )
        return reasons

    def sample(self, item: Any) -> Any:
        return item.load()

    def is_like(self, other: Source) -> bool:
        if type(other) is not ArraySource:
            return False
        mine, theirs = self._node, other._node
        return (
            (self.n_samples, self.plan, self.kind) == (other.n_samples, other.plan, other.kind)
            and self.arrays == other.arrays
            and mine.leaf.dataset is theirs.leaf.dataset
            and _equal(mine.rows, theirs.rows)
        )

    def versions(self) -> tuple[int, ...] | None:
        """torch's version counters of the tensors, which count changes in place; None if a tensor
        has none."""
        if any(map(torch.is_inference, self.tensors)):
            return None
        return tuple(map(version_of, self.tensors))

    def rows_of(self, indices: bytes) -> bytes | None:
        rows = self._node.rows
        return None if rows is None else rows[np.frombuffer(indices, np.int64)].tobytes()

    def gather(self, indices: Any) -> Rows | None:
        """The batch of a list or tuple of valid ints; None for any other indices."""
        if type(indices) not in (list, tuple):
            return None
        data = native.indices(indices, self.n_samples)
        return None if data is None else Rows(self, data)

    def fill(self, items: list[Any], indices: Iterable[Any]) -> Callable[[], Any] | None:
        for index in indices:
            try:
                items.append(self.item(index))
            except Exception:
                return partial(self.item, index)
        return None

    def item(self, index: Any) -> ArrayItem:
        position = _position(index)
        if not -self.n_samples <= position < self.n_samples:
            raise NotNative(index, None, f"the dataset has {self.n_samples} samples")
        position %= self.n_samples
        rows = self._node.rows
        return self.array_item(position, position if rows is None else int(rows[position]))

    def array_item(self, position: int, row: int) -> ArrayItem:
        targets = self._node.targets
        target = None if targets is None else int(targets[row])
        return ArrayItem(position, "", b"", target, self._node.leaf, row)

    def together(self, items: list[Any]) -> Rows:
        """The batch of samples that item() or fill() looked up."""
        return Rows(self, np.array([item.position for item in items], np.int64).tobytes())


def _equal(one: np.ndarray | None, other: np.ndarray | None) -> bool:
    if one is None or other is None:
        return one is other
    return np.array_equal(one, other)


def _position(index: Any) -> int:
    """An index as an int. NotNative for types that lists and arrays do not treat as one index."""
    if type(index) is int:
        return index
    if type(index) is bool or bool(getattr(index, "ndim", 0)):
        raise NotNative(index, None, f"the index is a {type(index).__name__}; it must be an int")
    try:
        return operator.index(index)
    except (TypeError, ValueError, RuntimeError) as error:
        raise NotNative(index, None, f"the index is not an integer ({error})") from None


# ---- nodes of datasets ---------------------------------------------------------------------------


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
    if tensor.dtype not in _DLPACK or tensor.is_conj() or tensor.is_neg():
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
        tensor.data_ptr(), len(tensor), row_bytes, stride, *_DLPACK[tensor.dtype], shape
    )


def torch_dtype(dtype: np.dtype) -> torch.dtype | None:
    """The torch dtype of a NumPy dtype; None: torch has none, or not with this byte order."""
    try:
        found = torch.from_numpy(np.empty(0, dtype)).dtype
    except (TypeError, ValueError):
        return None
    return found if found in _DLPACK else None


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
        Spec(_address(values), len(values), row_bytes, row_bytes, *_DLPACK[dtype], shape),
        Spec(_address(targets), len(values), 8, 8, *_DLPACK[torch.int64], ()),
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
    is_plain = type(targets) is np.ndarray and targets.dtype == np.int64 and targets.ndim == 1
    if not is_plain or len(targets) != n or not targets.flags.c_contiguous:
        raise UnsupportedError("the NpyFile's targets must be 64-bit ints, one for each row")
    plain: np.ndarray = targets
    return plain


def _load_npy(dataset: Any, row: int) -> tuple[torch.Tensor, torch.Tensor]:
    values, target = dataset[row]
    return torch.as_tensor(values), torch.as_tensor(target)


def _address(array: np.ndarray) -> int:
    address: int = array.__array_interface__["data"][0]
    return address


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


def image_node(base: BaseDataset, images: Images) -> ArrayNode:
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
            f"the {type(base.dataset).__name__}'s images have the strides {values.strides}, which "
            "are not supported natively; make the data contiguous"
        )
    row = (n_channels, height, width)
    specs = (
        Spec(_address(values), n, row_bytes, stride, *_DLPACK[torch.uint8], row),
        Spec(_address(targets), n, 8, 8, *_DLPACK[torch.int64], ()),
    )
    image = (height, width, n_channels, channel_stride, line, pixel)
    arrays = Arrays(specs, image, (torch.uint8, torch.int64), (values, targets))
    return ArrayNode(base, type(base.dataset).__name__, arrays, targets=targets)


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
        inner.leaf, f"Subset of {inner.kind}", inner.arrays, inner.tensors,
        inner.targets, rows,
    )
