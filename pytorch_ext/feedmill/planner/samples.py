"""Looks up samples: from a DataLoader's index to a path or bytes, as its dataset would do it."""

from __future__ import annotations

import bisect
import copy
import operator
import os
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np
import torch

from feedmill.planner.arrangements import PAIR
from feedmill.planner.buffers import Buffer
from feedmill.planner.file_loaders import FileLoader, NoImageError
from feedmill.planner.plan import Plan
from feedmill.planner.ranges import Range, Version, range_of, version_of
from feedmill.planner.steps import Step
from feedmill.remote.names import has_fsspec_names, has_names, shown
from feedmill.remote.sources import open_source

if TYPE_CHECKING:
    from feedmill.planner.arrays import Arrays

_MAX_PATH_BYTES = 4095
# Types in which feedmill_item may return an encoded image.
_BUFFERS = (bytes, bytearray, memoryview, np.ndarray)


@dataclass(frozen=True, eq=False)
class BaseDataset:
    """A dataset that holds samples itself, so not a Subset or ConcatDataset; and its transform as
    it was when iter() was called.

    Attributes:
        dataset: the user's object.
        find: index -> (path, target); raises what the dataset raises.
        load: path -> PIL image, or a FileLoader; raises what the dataset raises.
        has_feedmill_item: the dataset has the method feedmill_item. Instead of a path it may return
            an image's bytes, a byte range of a file, or an exception.
        slot: "transform" or "transforms", the dataset's attribute that holds its transform.
        plan, steps: as read_transform() returns them. In hybrid mode, which calls the transform:
            None, and one step that is the whole transform.
        is_image: load() returns a PIL image in RGB, so the native decoder may read the file for it.
        arrangement: of the sample's parts in what the dataset returns. If it is not PAIR, find()
            returns the parts other than the image in the place of the target, as a tuple.
        with_transform: (transform, copy_with): returns a copy of the dataset that calls another
            transform. If the dataset itself makes several images of one, it calls
            transform(image, view=number) for each, and the copy is good for one sample. None:
            copy_with(dataset, transform) does, as the dataset calls the value of
            its attribute ``transform`` or ``transforms``.
        makes_samples: a sample that the native code can't load is made by the dataset's own
            __getitem__, which may replace it by another one and uses -1 for a target that is None,
            as timm's ImageDataset does.
        with_own_files: returns a copy of the dataset that opens its files itself. None: the dataset
            keeps none open, whose positions threads and forked processes would share.
        is_turned: load() turns images as their metadata says, so that their size may be another
            than in the file's header.
        is_arrow: samples are rows of a Dataset of Hugging Face.
        left: keys of the dataset's samples that native samples leave out.
        views: the steps of each image, if the transform makes a list of several, or the dataset
            calls several transforms; `steps` is empty then.
        rejects: images that only load() can load, as fm_config.rejected_formats, beside those of
            formats that all datasets reject.
        keeps_mode: images that are not RGB may stay as they are, so that samples may have different
            shapes and types.
        n_files: of a sample. If these are several, find() returns a list of their paths, and each
            of `views` is made of its own.
        converts: the transform first converts images of any mode to RGB. load() does this, too, for
            `steps` and `views`, which do not.
    """

    dataset: Any
    find: Callable[[Any], Any]
    load: Callable[[Any], Any]
    has_feedmill_item: bool
    slot: str
    plan: Plan | None
    steps: tuple[Step, ...]
    is_image: bool = True
    arrangement: Any = PAIR
    with_transform: Callable[[Any, Any], Any] | None = None
    makes_samples: bool = False
    with_own_files: Callable[[], Any] | None = None
    is_turned: bool = False
    is_arrow: bool = False
    left: tuple[str, ...] = ()
    views: tuple[tuple[Step, ...], ...] = ()
    rejects: int = 0
    keeps_mode: bool = False
    converts: bool = False
    n_files: int = 1

    def identity(self) -> list[Any]:
        """The objects that determine the samples. The same objects give the same samples."""
        owner = getattr(self.find, "__self__", None)
        parts = getattr(owner, "determined_by", None)
        owners = parts if type(parts) is tuple else (owner,)
        steps = (step for view in (self.steps, *self.views) for step in view)
        # Of these loaders there is one object each.
        load = self.load if self.rejects else None
        return [self.dataset, *owners, load, *(one for step in steps for one in step.identity())]


class Unreadable(bytes):
    """Stands for an image that the dataset could not provide. The native loader sees no bytes.

    Attributes:
        error: the exception that the dataset returned in place of the image.
    """

    error: Exception

    def __new__(cls, error: Exception) -> Unreadable:
        self = super().__new__(cls)
        self.error = error
        return self


class Item(NamedTuple):
    """A sample before it is loaded.

    Attributes:
        position: index in the DataLoader's dataset, from 0; keys the sampled parameters, and seek
            points.
        path: the file's path as the dataset returns it; "" if the dataset returned bytes.
        data: the encoded image, its byte range in the file, or the version of a remote object that
            is meant; None: the whole file.
        target: as the dataset returns it.
        base_dataset: the dataset that holds the sample.
        index: the sample's index in that dataset.
        paths: of all its files, if these are several; ``path`` is the first one.
    """

    position: int
    path: Any
    data: bytes | Buffer | Range | Version | None
    target: Any
    base_dataset: BaseDataset
    index: Any
    paths: tuple[Any, ...] = ()

    def of_view(self, number: int) -> Item:
        """The sample as one of the file of which a view is made."""
        return self._replace(path=self.paths[number], paths=()) if self.paths else self

    def files(self) -> list[Item]:
        """The sample as one of each of its files."""
        return [self.of_view(number) for number in range(len(self.paths) or 1)]

    def source(self) -> Any:
        """The path, or the encoded image. Reads the image if it is a byte range of a file, or a
        certain version of an object.

        Raises:
            OSError: it can't be read.
            Exception: the one that the dataset returned in place of the image.
        """
        if self.data is None:
            return self.path
        if type(self.data) is Unreadable:
            raise _copy_to_raise(self.data.error)
        if type(self.data) is Buffer:
            return self.data.copied()
        if type(self.data) is Range or type(self.data) is Version:
            return self.data.read(self.path)
        return self.data

    def size(self) -> tuple[int, int]:
        """The image's (width, height), which Pillow reads from its header. Raises as source() and
        Image.open()."""
        from PIL import Image

        if self.base_dataset.is_turned:
            return size_of(self.load())
        with open_source(self.source()) as file, Image.open(file) as image:
            size: tuple[int, int] = image.size
            return size

    def load(self) -> Any:
        """The PIL image, or what a FileLoader gives; of several files a list of images. Raises what
        the dataset raises."""
        if self.paths:
            return [one.load() for one in self.files()]
        base = self.base_dataset
        with suppress(NoImageError):
            return base.load(self.source())
        if base.plan is None or not base.plan.retries:
            self.own_sample()  # raises the dataset's own error
        raise NoImageError(f"{base.load} did not decode the file")

    def own_sample(self) -> Any:
        """What the dataset itself returns for the sample; raises what it raises."""
        base = self.base_dataset
        dataset = base.dataset if base.with_own_files is None else base.with_own_files()
        return dataset[self.index]

    @property
    def name(self) -> str:
        """What messages call the sample: the path, without a URL's secrets, or, if the image is not
        a whole file, the dataset's feedmill_name(index), if it has that method."""
        names = getattr(self.base_dataset.dataset, "feedmill_name", None)
        if self.data is None or names is None:
            return str(shown(self.path))
        return str(names(self.index))

    def __str__(self) -> str:
        path = shown(self.path)
        if self.paths:
            return f"dataset index {self.position}, files {', '.join(map(repr, self.paths))}"
        if self.data is not None and self.name != path:
            return f"dataset index {self.position}, {self.name}"
        file = f"file {path!r}" if path else "bytes in memory"
        part = f"{self.data} of " if type(self.data) is Range else ""
        return f"dataset index {self.position}, {part}{file}"


def size_of(image: Any) -> tuple[int, int]:
    """(width, height) of a PIL image, of a tensor (channels, height, width), or of an array
    (height, width, channels)."""
    if isinstance(image, torch.Tensor):
        return image.shape[-1], image.shape[-2]
    if isinstance(image, np.ndarray):
        return image.shape[1], image.shape[0]
    size: tuple[int, int] = image.size
    return size


class NotNative(Exception):
    """A sample can't be loaded natively; the text says why.

    Attributes:
        index: the sampler's index of the sample.
        path: the sample's file; None: not known.
    """

    def __init__(self, index: Any, path: Any, why: str) -> None:
        super().__init__(why)
        self.index = index
        self.path = path


def _copy_to_raise(error: Exception) -> Exception:
    """A copy of the exception. Raising the original would make a reference cycle: its traceback
    refers to the sample, which refers to the exception."""
    try:
        return copy.copy(error)
    except Exception:  # it can't be copied; the garbage collector frees the cycle
        return error


# ---- from an index to its sample -----------------------------------------------------------------


class Node(Protocol):
    """A dataset in a tree of Subsets and ConcatDatasets. ``locate()`` returns the base dataset that
    holds a sample, and the sample's index there."""

    @property
    def base_datasets(self) -> tuple[BaseDataset, ...]: ...
    @property
    def kind(self) -> str: ...
    def locate(self, index: Any) -> tuple[BaseDataset, Any]: ...
    def identity(self) -> list[Any]: ...


class BaseNode:
    """A base dataset: the tree ends here."""

    def __init__(self, base_dataset: BaseDataset, kind: str) -> None:
        self.base_datasets = (base_dataset,)
        self.kind = kind

    def locate(self, index: Any) -> tuple[BaseDataset, Any]:
        return self.base_datasets[0], index

    def identity(self) -> list[Any]:
        return self.base_datasets[0].identity()


class SubsetNode:
    """A torch Subset."""

    def __init__(self, subset: Any, inner: Node) -> None:
        self._indices = subset.indices
        self.inner = inner
        self.base_datasets = inner.base_datasets
        self.kind = f"Subset of {inner.kind}"

    def locate(self, index: Any) -> tuple[BaseDataset, Any]:
        return self.inner.locate(self._indices[index])

    def identity(self) -> list[Any]:
        return [self._indices, *self.inner.identity()]

    def translate(self, indices: Iterable[Any]) -> list[Any]:
        return [self._indices[index] for index in indices]


def _translate(node: Any, indices: list[Any]) -> tuple[list[Any], Any]:
    """Translates indices through Subsets of Subsets. Returns the indices in the innermost Subset,
    and that Subset's node."""
    while isinstance(node, SubsetNode) and isinstance(node.inner, SubsetNode):
        indices, node = node.translate(indices), node.inner
    return indices, node


class ConcatNode:
    """A torch ConcatDataset."""

    def __init__(self, dataset: Any, parts: Sequence[Node]) -> None:
        self._ends = dataset.cumulative_sizes
        self._parts = parts
        self.base_datasets = tuple(one for part in parts for one in part.base_datasets)
        kinds = ", ".join(part.kind for part in parts[:3])
        self.kind = f"ConcatDataset of {kinds}{', ...' if len(parts) > 3 else ''}"

    def locate(self, index: Any) -> tuple[BaseDataset, Any]:
        if index < 0:
            if -index > self._ends[-1]:
                raise ValueError("absolute value of index should not exceed dataset length")
            index = self._ends[-1] + index
        part = bisect.bisect_right(self._ends, index)
        return self._parts[part].locate(index if part == 0 else index - self._ends[part - 1])

    def identity(self) -> list[Any]:
        return [one for part in self._parts for one in part.identity()]


class Source:
    """The samples of a DataLoader's dataset, as the dataset was when iter() was called.

    Attributes:
        n_samples: length of the dataset.
        plan: of the transform, which all samples share, and of the DataLoader's options. None in
            hybrid mode, which calls the transform.
        notes: sentences that explain() adds to the plan.
        kind: the dataset in words, such as "Subset of ImageFolder".
        gives_bytes: a sample may hold the encoded image in place of a path.
        names_remote: paths may be names of remote objects, such as s3://bucket/key. None: that is
            known only when they are looked up. A long list is not read completely.
        names_fsspec: likewise, of objects that fsspec reads.
        arrangement: of the parts of a sample, as BaseDataset's.
        rejects: those of the base datasets together.
        arrays: the dataset's memory, if its samples are rows of arrays; None: they are files.
        copies: samples are not images; the native loader copies them unchanged.
        has_indices: the DataLoader has a sampler; else the dataset is an IterableDataset.
    """

    arrays: Arrays | None = None
    copies: bool = False
    has_indices: bool = True
    rejects: int = 0
    names_remote: bool | None = False
    names_fsspec: bool | None = False
    arrangement: Any = PAIR
    notes: Sequence[str] = ()

    def __init__(self, dataset: Any, node: Any) -> None:
        self.n_samples = len(dataset)
        self.plan: Plan | None = node.base_datasets[0].plan
        self.kind: str = node.kind
        self.arrangement = node.base_datasets[0].arrangement
        self.gives_bytes: bool = any(one.has_feedmill_item for one in node.base_datasets)
        self.names_remote = _have(has_names, node.base_datasets)
        self.names_fsspec = _have(has_fsspec_names, node.base_datasets)
        for one in node.base_datasets:
            self.rejects |= one.rejects
        self._node = node

    @property
    def base_datasets(self) -> tuple[BaseDataset, ...]:
        """The datasets that hold the samples."""
        datasets: tuple[BaseDataset, ...] = self._node.base_datasets
        return datasets

    @property
    def native_plan(self) -> Plan:
        """The plan; only for samples on the native path, which always have one."""
        assert self.plan is not None
        return self.plan

    def why_not(self, loader: Any, is_default: bool) -> list[str]:
        """Reasons why the DataLoader's options need torch's path for these samples.

        Args:
            is_default: the DataLoader has torch's own collate function.
        """
        reasons = []
        if not is_default and self.plan is not None and self.plan.more_views:
            reasons.append(
                "the dataset's samples have several images, for which the native path needs "
                "torch's own collate_fn"
            )
        if self.plan is not None and self.plan.draws_files and (
            loader.num_workers == 0 or not loader._feedmill_draws_as_torch()
        ):
            reasons.append(
                "the dataset draws the files of its samples at random, which the native path does "
                "as torch's worker processes do; pass num_workers= above 0, and neither seed= nor "
                "rng='feedmill'"
            )
        if self.plan is not None and self.plan.retries and not _may_retry(loader):
            reasons.append(
                "the dataset has code of its own for files that can't be loaded or are not RGB, "
                "which the native path runs as torch's workers do; leave out seed=, "
                "rng='feedmill', on_error=, dtype=, memory_format=, decode= and device="
            )
        on_error = loader._feedmill_options().on_error
        if on_error != "raise" and any(one.n_files > 1 for one in self.base_datasets):
            reasons.append(
                f"the dataset's samples have several image files, of which on_error={on_error!r} "
                "would replace one; leave it out"
            )
        # Torch's own collate_fn fails for images of different shapes; others may not.
        is_stacked = is_default and loader.batch_sampler is not None and loader.batch_size != 1
        if not is_stacked and any(one.keeps_mode for one in self.base_datasets):
            reasons.append(
                "the dataset does not convert all of its images to RGB of 8 bits, so that their "
                "shapes or types may differ, for which the native path needs torch's own "
                "collate_fn and more than one sample in a batch; convert the images when they are "
                "opened"
            )
        return reasons

    def sample(self, item: Any) -> Any:
        """One sample as the DataLoader delivers it, (values, target). Only if ``copies``."""
        raise NotImplementedError

    @property
    def n_places(self) -> int:
        """How many numbers the items' positions may have, from 0 on."""
        return self.n_samples

    @property
    def size(self) -> str:
        """How many samples there are, in words."""
        return f"{self.n_samples:,} samples"

    def trial_numbers(self, n: int) -> Sequence[int]:
        """Indices of about n samples from all over the dataset."""
        return np.linspace(0, self.n_samples - 1, n).astype(int).tolist() if self.n_samples else ()

    def is_like(self, other: Source, in_any_format: bool = False) -> bool:
        """Whether both give the same samples: they are made of the same objects. A change within
        an object is not noticed, nor with ``in_any_format`` one of the DataLoader's dtype=,
        memory_format= or decode=."""
        mine, theirs = self._node.identity(), other._node.identity()
        return (
            self._has_plan_of(other, in_any_format)
            and len(mine) == len(theirs)
            and all(map(operator.is_, mine, theirs))
        )

    def _has_plan_of(self, other: Source, in_any_format: bool) -> bool:
        plan, other_plan = self.plan, other.plan
        if in_any_format and isinstance(plan, Plan) and isinstance(other_plan, Plan):
            is_one_type = plan.dtype == other_plan.dtype
            plan = plan.without_format(keeps_values=is_one_type)
            other_plan = other_plan.without_format(keeps_values=is_one_type)
        return (self.n_samples, plan, self.kind) == (other.n_samples, other_plan, other.kind)

    def gather(self, indices: Any) -> Any:
        """Looks up all samples of a batch in one step. None: use fill() and together() instead."""
        return None

    def together(self, items: list[Any]) -> Any:
        """The batch of samples that item() or fill() looked up."""
        return items

    def item(self, index: Any) -> Item:
        """Looks up the sample of an index.

        Raises:
            NotNative: only torch's path can load the sample.
            Exception: whatever the dataset raises.
        """
        return self._item(self._node, index, index)

    def fill(self, items: list[Item], indices: Iterable[Any]) -> Callable[[], Any] | None:
        """Looks up the samples of a batch in torch's order, and appends them to ``items``.

        As in torch, a Subset of a Subset translates all indices before it looks up a sample.

        Returns:
            None; or, if the lookup of a sample failed, a function that repeats the lookup, which
            raises as item(). The exception itself is not kept, as its traceback would keep all
            frames alive.
        """
        node = self._node
        pairs: Iterable[tuple[Any, Any]] = ((index, index) for index in indices)
        if isinstance(node, SubsetNode) and isinstance(node.inner, SubsetNode):
            asked = list(indices)
            try:
                inner, node = _translate(node, asked)
            except Exception:
                return partial(_translate, node, asked)
            pairs = zip(asked, inner)
        for index, inner_index in pairs:
            try:
                item = self._item(node, index, inner_index)
            except Exception:
                return partial(self._item, node, index, inner_index)
            items.append(item)
        return None

    def _item(self, node: Any, asked: Any, index: Any) -> Item:
        """Looks up a sample. ``asked`` is the sampler's index, ``index`` the one in ``node``."""
        if isinstance(index, list) and isinstance(node, SubsetNode):
            raise NotNative(asked, None, "the index is a list, which selects several samples")
        base_dataset, index = node.locate(index)
        return self._checked(asked, base_dataset, index, base_dataset.find(index))

    def _checked(self, asked: Any, base_dataset: BaseDataset, index: Any, found: Any) -> Item:
        """Makes an Item of ``found``, what find() returned. NotNative if that is not possible."""
        # This comes first: only the dataset's __getitem__() knows what a slice, for example, means.
        position = asked if type(asked) is int else _position(asked, found)
        is_pair = isinstance(found, (tuple, list)) and len(found) == 2
        if base_dataset.has_feedmill_item and not is_pair:
            raise TypeError(
                f"feedmill_item returned a {type(found).__name__} for index {index!r}; it must "
                "return a pair (path or bytes, target)"
            )
        path, target = found
        data: bytes | Buffer | Range | Version | None = None
        if base_dataset.has_feedmill_item and type(path) is tuple:
            try:
                # Range() has no empty range, as 0 bytes mean the whole file; b"" is an empty image.
                data = version_of(path) if len(path) == 2 else range_of(path) or b""
            except (TypeError, ValueError) as error:
                raise type(error)(f"feedmill_item for index {index!r}: {error}") from None
            path = path[0]
        if position < 0:
            position += self.n_samples
        if not 0 <= position < self.n_samples:
            raise NotNative(
                asked, path, f"the dataset had {self.n_samples} samples when iter() was called"
            )
        if base_dataset.has_feedmill_item and isinstance(path, Exception):
            return Item(position, "", Unreadable(path), target, base_dataset, index)
        if type(path) is Buffer:
            return Item(position, "", path, target, base_dataset, index)
        if data is None and base_dataset.has_feedmill_item and isinstance(path, _BUFFERS):
            return Item(position, "", bytes(path), target, base_dataset, index)
        paths = tuple(path) if base_dataset.n_files > 1 else ()
        for one in paths or (path,):
            why, load = why_no_path(one), base_dataset.load
            if not why and isinstance(load, FileLoader):
                why = load.why_no_path(one)
            if why:
                raise NotNative(asked, one, why)
        if target is None and base_dataset.makes_samples:
            target = -1
        path = paths[0] if paths else path
        return Item(position, path, data, target, base_dataset, index, paths)


@dataclass(frozen=True)
class Support:
    """The path that can run a DataLoader.

    Attributes:
        source: the samples, for the native path or hybrid mode; None: only torch's path can load
            them.
        reasons: all reasons against the native path; empty if it can be taken.
    """

    source: Source | None
    reasons: tuple[str, ...] = ()

    @property
    def path(self) -> str:
        """The fastest path that can be taken: "native", "hybrid" or "torch"."""
        if self.source is None:
            return "torch"
        return "hybrid" if self.reasons else "native"


def _may_retry(loader: Any) -> bool:
    """Whether a dataset itself may make some of a DataLoader's batches."""
    options = loader._feedmill_options()
    return (
        loader._feedmill_draws_as_torch()
        and (options.on_error, options.decode) == ("raise", "exact")
        and options.dtype is None and options.device is None
        and options.memory_format is torch.contiguous_format
    )


def _have(
    has: Callable[[list[Any]], bool], base_datasets: Sequence[BaseDataset]
) -> bool | None:
    """Whether has(paths) is true for one of the datasets; None: that is not known."""
    found = [_has(has, one) for one in base_datasets]
    return True if True in found else None if None in found else False


def _has(has: Callable[[list[Any]], bool], base_dataset: BaseDataset) -> bool | None:
    # Other datasets' own __getitem__ opens their paths, as those of files.
    if not base_dataset.has_feedmill_item:
        return False
    dataset = base_dataset.dataset
    # A subclass may read other paths.
    if type(dataset).__module__.startswith("feedmill."):
        return has(dataset.feedmill_sources())
    return None


def unsupported(*reasons: str) -> Support:
    """Only torch's path can be taken, for these reasons."""
    return Support(None, reasons)


def _position(index: Any, found: Any) -> int:
    """An index of any type as an int. ``found`` is what find() returned; errors name its path."""
    try:
        return operator.index(index)
    except (TypeError, ValueError) as error:
        is_pair = isinstance(found, (tuple, list)) and len(found) == 2
        path = found[0] if is_pair else None
        raise NotNative(index, path, f"the index is not an integer ({error})") from None


def why_no_path(path: Any) -> str:
    """Why the native loader can't take a path; "" if it can."""
    if type(path) is not str:
        if not isinstance(path, (str, bytes, os.PathLike)):
            return f"a path must be str, bytes or os.PathLike, not {type(path).__name__}"
        path = os.fsdecode(path)
    if not path or "\0" in path:
        return "the path is empty or contains a null byte"
    try:
        n_bytes = len(path) if path.isascii() else len(os.fsencode(path))
    except UnicodeEncodeError:
        return "the path can't be encoded for the file system"
    return f"the path is longer than {_MAX_PATH_BYTES} bytes" if n_bytes > _MAX_PATH_BYTES else ""
