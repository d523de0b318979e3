"""The samples behind a DataLoader's indices, found as its dataset itself would."""

from __future__ import annotations

import bisect
import copy
import io
import operator
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np

from feedmill.planner.plan import Plan
from feedmill.planner.ranges import Range, range_of
from feedmill.planner.transforms import Step

if TYPE_CHECKING:
    from feedmill.planner.arrays import Arrays

_MAX_PATH_BYTES = 4095
# What feedmill_item may give as an encoded image.
_BUFFERS = (bytes, bytearray, memoryview, np.ndarray)


@dataclass(frozen=True, eq=False)
class Leaf:
    """A dataset that names files, with its transform as it was when it was looked at.

    Attributes:
        dataset: the user's object.
        find: index -> (path, target), raising what the dataset raises.
        load: path -> PIL image, raising what the dataset raises.
        offered: the dataset offers feedmill_item; instead of a path it may give an image's bytes,
            a part of a file, or why there is no image.
        is_image: what load() gives is an image, which the native decoder may take.
        slot: "transform" or "transforms", the dataset's attribute that holds its transform.
        plan, steps: what read_transform() makes of that; or no plan, and the transform itself.
    """

    dataset: Any
    find: Callable[[Any], Any]
    load: Callable[[Any], Any]
    offered: bool
    slot: str
    plan: Plan | None
    steps: tuple[Step, ...]
    is_image: bool = True

    def identity(self) -> list[Any]:
        """The objects that make it give these samples."""
        owner = getattr(self.find, "__self__", None)
        return [self.dataset, owner, *(step.transform for step in self.steps)]


class Unreadable(bytes):
    """An image that can't be had: the native loader sees one of no bytes.

    Attributes:
        error: why.
    """

    error: Exception

    def __new__(cls, error: Exception) -> Unreadable:
        self = super().__new__(cls)
        self.error = error
        return self


class Item(NamedTuple):
    """A sample before it is loaded.

    Attributes:
        position: index in the DataLoader's dataset, from 0; keys the random draws.
        path: of the file, as the dataset has it; "" where the bytes are given.
        data: the encoded image, or what part of the file it is; None: it is the whole file.
        target: as the dataset delivers it.
        leaf: the dataset that holds it, and ``index``, its index there.
    """

    position: int
    path: Any
    data: bytes | Range | None
    target: Any
    leaf: Leaf
    index: Any

    def source(self) -> Any:
        """The path, or the encoded image; reads it where it is a part of a file, and raises what
        that raises, or why there is none."""
        if self.data is None:
            return self.path
        if type(self.data) is Unreadable:
            raise _copied(self.data.error)
        return self.data.read(self.path) if type(self.data) is Range else self.data

    def size(self) -> tuple[int, int]:
        """The image's width and height; opens the file, and raises what that raises."""
        from PIL import Image

        source = self.source()
        with Image.open(source if self.data is None else io.BytesIO(source)) as image:
            size: tuple[int, int] = image.size
            return size

    def load(self) -> Any:
        """The PIL image; raises what the dataset raises."""
        return self.leaf.load(self.source())

    @property
    def name(self) -> str:
        """The path; of what is no whole file, what the dataset's feedmill_name(index) says, if it
        has such."""
        names = getattr(self.leaf.dataset, "feedmill_name", None)
        if self.data is None or names is None:
            return str(self.path)
        return str(names(self.index))

    def __str__(self) -> str:
        if self.data is not None and self.name != self.path:
            return f"dataset index {self.position}, {self.name}"
        file = f"file {self.path!r}" if self.path else "bytes in memory"
        part = f"{self.data} of " if type(self.data) is Range else ""
        return f"dataset index {self.position}, {part}{file}"


class NotNative(Exception):
    """Why a sample can be loaded on torch's path only.

    Attributes:
        index: by which it was asked for.
        path: of its file, None where it is not known.
    """

    def __init__(self, index: Any, path: Any, why: str) -> None:
        super().__init__(why)
        self.index = index
        self.path = path


def _copied(error: Exception) -> Exception:
    """A copy to be raised: its traceback will hold the sample, and a sample must not hold that."""
    try:
        return copy.copy(error)
    except Exception:  # of another kind than can be copied: the garbage collector will see to it
        return error


# ---- from an index to its sample -----------------------------------------------------------------


class Node(Protocol):
    """A dataset that holds samples of leaves; ``locate()`` gives a sample's leaf, and its index
    there."""

    @property
    def leaves(self) -> tuple[Leaf, ...]: ...
    @property
    def kind(self) -> str: ...
    def locate(self, index: Any) -> tuple[Leaf, Any]: ...
    def identity(self) -> list[Any]: ...


class LeafNode:
    """The end of the line: a dataset that names files."""

    def __init__(self, leaf: Leaf, kind: str) -> None:
        self.leaves = (leaf,)
        self.kind = kind

    def locate(self, index: Any) -> tuple[Leaf, Any]:
        return self.leaves[0], index

    def identity(self) -> list[Any]:
        return self.leaves[0].identity()


class SubsetNode:
    """torch's Subset."""

    def __init__(self, subset: Any, inner: Node) -> None:
        self._indices = subset.indices
        self.inner = inner
        self.leaves = inner.leaves
        self.kind = f"Subset of {inner.kind}"

    def locate(self, index: Any) -> tuple[Leaf, Any]:
        return self.inner.locate(self._indices[index])

    def identity(self) -> list[Any]:
        return [self._indices, *self.inner.identity()]

    def translate(self, indices: Iterable[Any]) -> list[Any]:
        return [self._indices[index] for index in indices]


def _translate(node: Any, indices: list[Any]) -> tuple[list[Any], Any]:
    """The indices in the innermost of Subsets, and that one."""
    while isinstance(node, SubsetNode) and isinstance(node.inner, SubsetNode):
        indices, node = node.translate(indices), node.inner
    return indices, node


class ConcatNode:
    """torch's ConcatDataset."""

    def __init__(self, dataset: Any, parts: Sequence[Node]) -> None:
        self._ends = dataset.cumulative_sizes
        self._parts = parts
        self.leaves = tuple(leaf for part in parts for leaf in part.leaves)
        kinds = ", ".join(part.kind for part in parts[:3])
        self.kind = f"ConcatDataset of {kinds}{', ...' if len(parts) > 3 else ''}"

    def locate(self, index: Any) -> tuple[Leaf, Any]:
        if index < 0:
            if -index > self._ends[-1]:
                raise ValueError("absolute value of index should not exceed dataset length")
            index = self._ends[-1] + index
        part = bisect.bisect_right(self._ends, index)
        return self._parts[part].locate(index if part == 0 else index - self._ends[part - 1])

    def identity(self) -> list[Any]:
        return [one for part in self._parts for one in part.identity()]


class Source:
    """The samples of a DataLoader's dataset, as they were when it was looked at.

    Attributes:
        n_samples: how many.
        plan: of their transforms, all have the same, and of the DataLoader's options. None: the
            transforms are Python's, and called as they are.
        notes: what explain() is to say beside the plan.
        kind: such as "Subset of ImageFolder".
        gives_bytes: samples may come with the encoded image in place of a path.
        arrays: what is in memory in place of files, an arrays.Arrays; None: nothing is.
        copies: samples are no images, but delivered as they are.
    """

    arrays: Arrays | None = None
    copies: bool = False
    notes: Sequence[str] = ()

    def __init__(self, dataset: Any, node: Any) -> None:
        self.n_samples = len(dataset)
        self.plan: Plan | None = node.leaves[0].plan
        self.kind: str = node.kind
        self.gives_bytes: bool = any(leaf.offered for leaf in node.leaves)
        self._node = node

    @property
    def native_plan(self) -> Plan:
        """The plan of samples that are made natively: those have one."""
        assert self.plan is not None
        return self.plan

    def why_not(self, loader: Any, is_default: bool) -> list[str]:
        """What a DataLoader asks for that only torch's path does with such samples.

        Args:
            is_default: it has torch's own collate function.
        """
        return []

    def sample(self, item: Any) -> Any:
        """Where samples are copied: one as it is delivered, (values, target)."""
        raise NotImplementedError

    def is_like(self, other: Source) -> bool:
        """Whether both give the same samples: of the same objects, as far as those are not changed
        in place."""
        mine, theirs = self._node.identity(), other._node.identity()
        return (
            (self.n_samples, self.plan, self.kind) == (other.n_samples, other.plan, other.kind)
            and len(mine) == len(theirs)
            and all(map(operator.is_, mine, theirs))
        )

    def gather(self, indices: Any) -> Any:
        """All samples of a batch at once, where that can be; None: they are looked up one by one.
        """
        return None

    def together(self, items: list[Any]) -> Any:
        """A batch of samples that were looked up one by one."""
        return items

    def item(self, index: Any) -> Item:
        """The sample of an index. Raises what the dataset raises, and NotNative where only torch's
        path can load the sample."""
        return self._item(self._node, index, index)

    def fill(self, items: list[Item], indices: Iterable[Any]) -> Callable[[], Any] | None:
        """Appends the samples of a batch, looked up in the order in which torch does it.

        A Subset of a Subset translates all indices before the first sample is touched.

        Returns:
            None, or where a sample could not be looked up what raises that again: as item(). The
            exception itself is not kept: with it would be the frames that it went through.
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
        """The sample that was asked for by one index and has another one in ``node``."""
        if isinstance(index, list) and isinstance(node, SubsetNode):
            raise NotNative(asked, None, "a list of indices asks for several samples")
        leaf, index = node.locate(index)
        return self._checked(asked, leaf, index, leaf.find(index))

    def _checked(self, asked: Any, leaf: Leaf, index: Any, found: Any) -> Item:
        """What find() gave, as far as the native loader can take it."""
        # First: for an index that is no number, such as a slice, __getitem__() has the word.
        position = asked if type(asked) is int else _position(asked, found)
        if leaf.offered and not (isinstance(found, (tuple, list)) and len(found) == 2):
            raise TypeError(
                f"feedmill_item gave a {type(found).__name__} for index {index!r}; it must give a "
                "pair (path or bytes, target)"
            )
        path, target = found
        data: bytes | Range | None = None
        if leaf.offered and type(path) is tuple:
            try:
                # No bytes are an empty image: 0 would stand for the whole file.
                data = range_of(path) or b""
            except (TypeError, ValueError) as error:
                raise type(error)(f"feedmill_item for index {index!r}: {error}") from None
            path = path[0]
        if position < 0:
            position += self.n_samples
        if not 0 <= position < self.n_samples:
            raise NotNative(
                asked, path, f"the dataset had {self.n_samples} samples when iter() was called"
            )
        if leaf.offered and isinstance(path, Exception):
            return Item(position, "", Unreadable(path), target, leaf, index)
        if data is None and leaf.offered and isinstance(path, _BUFFERS):
            return Item(position, "", bytes(path), target, leaf, index)
        if why := _why_no_path(path):
            raise NotNative(asked, path, why)
        return Item(position, path, data, target, leaf, index)


@dataclass(frozen=True)
class Support:
    """Which path can run a DataLoader, or load a dataset.

    Attributes:
        source: the samples, for the native path or for hybrid mode; None: only torch's path can
            load them.
        reasons: all reasons why the native path can't be taken; empty if it can.
    """

    source: Source | None
    reasons: tuple[str, ...] = ()

    @property
    def path(self) -> str:
        """The path that will be taken: "native", "hybrid" or "torch"."""
        if self.source is None:
            return "torch"
        return "hybrid" if self.reasons else "native"


def unsupported(*reasons: str) -> Support:
    """Only torch's path can be taken, for these reasons."""
    return Support(None, reasons)


def _position(index: Any, found: Any) -> int:
    """An index of any type as an int. ``found`` is what find() gave, whose path errors name."""
    try:
        return operator.index(index)
    except (TypeError, ValueError) as error:
        is_pair = isinstance(found, (tuple, list)) and len(found) == 2
        path = found[0] if is_pair else None
        raise NotNative(index, path, f"the index is not usable ({error})") from None


def _why_no_path(path: Any) -> str:
    """Why the native loader can't take a path; "" if it can."""
    if type(path) is not str:
        if not isinstance(path, (str, bytes, os.PathLike)):
            return f"a path must be str, bytes or os.PathLike, not {type(path).__name__}"
        path = os.fsdecode(path)
    if not path or "\0" in path:
        return "no file has such a path"
    try:
        n_bytes = len(path) if path.isascii() else len(os.fsencode(path))
    except UnicodeEncodeError:
        return "it can't be encoded for the file system"
    return f"it has more than {_MAX_PATH_BYTES} bytes" if n_bytes > _MAX_PATH_BYTES else ""
