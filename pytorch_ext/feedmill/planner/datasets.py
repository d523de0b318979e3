"""Decides whether a dataset's samples can be read natively, strictly.

Recognised are torchvision's ImageFolder and DatasetFolder, datasets that offer ``feedmill_item``,
and torch's Subset and ConcatDataset of them, nested in any way; torch's TensorDataset and
torchvision's small sets in memory, feedmill.data.NpyFile and NpyFolder, and Subsets of them.
"""

from __future__ import annotations

import io
import sys
from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from torch.utils.data import ConcatDataset, IterableDataset, Subset, TensorDataset

from feedmill.planner.arrays import (
    ArrayNode,
    ArraySource,
    image_node,
    images_of,
    npy_node,
    subset_node,
    tensor_node,
)
from feedmill.planner.equality import native_formats, why_not_jpegs
from feedmill.planner.known import reasons_against_opening
from feedmill.planner.plan import Refusal
from feedmill.planner.raw_files import PlainPlan, PlainSource, npy_folder_node
from feedmill.planner.samples import (
    ConcatNode,
    Leaf,
    LeafNode,
    Source,
    SubsetNode,
    Support,
    unsupported,
)
from feedmill.planner.transforms import Step, TransformPlan, read_transform
from feedmill.planner.untouched import (
    is_original,
    replaced_methods,
    shadows,
    type_name,
    unreadable,
)

# By names nothing but a guess is made: what a file is, its bytes tell.
_SUFFIXES = {
    "JPEG": (".jpg", ".jpeg", ".jpe", ".jfif"),
    "PNG": (".png", ".apng"),
    "WebP": (".webp",),
}
_PROBED_SAMPLES = 10000
_MAX_DEPTH = 16
# Of images that may all be alike.
_ANY_SIZE = (4096, 4096)
_INDEX_LISTS = (list, tuple, range, np.ndarray, torch.Tensor)


def read_dataset(dataset: Any, *, calls_transforms: bool = False) -> Support:
    """A dataset's samples and their plan, as both are now; or all reasons why not.

    Draws no random number and changes nothing.

    Args:
        calls_transforms: whatever the transforms are, they will be called: there is no plan.
    """
    reading = _Reading(calls_transforms)
    node = reading.read(dataset, 0)
    if node is not None and len({leaf.plan for leaf in node.leaves}) > 1:
        reading.refuse("the datasets that are put together have transforms of different results")
    if node is not None and not len(dataset):
        reading.refuse("the dataset is empty")
    if reading.reasons or node is None:
        return unsupported(*reading.reasons)
    if isinstance(node, ArrayNode):
        return Support(ArraySource(dataset, node))
    is_plain = isinstance(node.leaves[0].plan, PlainPlan)
    return Support((PlainSource if is_plain else Source)(dataset, node))


class _Reading:
    """Reasons against the dataset found so far, and what was read so far."""

    def __init__(self, calls_transforms: bool) -> None:
        self._calls_transforms = calls_transforms
        self.reasons: list[str] = []
        # By id: one dataset or transform may be in several places.
        self._nodes: dict[int, Any] = {}
        self._transforms: dict[int, TransformPlan] = {}

    def refuse(self, reason: str) -> None:
        if reason not in self.reasons:
            self.reasons.append(reason)

    def _refuse_all(self, reasons: Iterable[str]) -> None:
        for reason in reasons:
            self.refuse(reason)

    def read(self, dataset: Any, depth: int) -> Any:
        """The node of a dataset; None: it was refused."""
        if depth > _MAX_DEPTH:
            self.refuse(f"datasets are nested more than {_MAX_DEPTH} deep")
            return None
        if id(dataset) not in self._nodes:
            try:
                self._nodes[id(dataset)] = self._read(dataset, depth)
            except Exception as error:
                self._nodes[id(dataset)] = None
                self.refuse(unreadable(f"the dataset, a {type_name(type(dataset))},", error))
        return self._nodes[id(dataset)]

    def _read(self, dataset: Any, depth: int) -> Any:
        kind = type(dataset)
        offers = _owner(kind, "feedmill_item")
        if offers is not None:
            return self._read_offered(dataset, offers)
        if kind is Subset:
            return self._read_subset(dataset, depth)
        if kind is ConcatDataset:
            return self._read_concat(dataset, depth)
        folder = sys.modules.get("torchvision.datasets.folder")
        if folder is not None and kind in (folder.ImageFolder, folder.DatasetFolder):
            return self._read_folder(dataset, folder)
        try:
            if kind is TensorDataset:
                return tensor_node(dataset) if self._is_untouched(dataset, "torch") else None
            if kind is getattr(sys.modules.get("feedmill.data.arrays"), "NpyFile", None):
                return npy_node(dataset) if self._is_untouched(dataset, "feedmill") else None
            if kind is getattr(sys.modules.get("feedmill.data.arrays"), "NpyFolder", None):
                return self._read_npy_folder(dataset)
            if (images := images_of(dataset)) is not None:
                return self._read_images(dataset, images)
        except Refusal as refusal:
            self.refuse(str(refusal))
            self._refuse_transform_of(dataset)
            return None
        self.refuse(
            f"the dataset is a {type_name(kind)}; torchvision's ImageFolder and DatasetFolder "
            "themselves, no subclass, Subset and ConcatDataset of them, torch's TensorDataset, "
            "torchvision's CIFAR10, CIFAR100, MNIST, FashionMNIST and SVHN, feedmill.data.NpyFile "
            "and NpyFolder, and datasets with a method feedmill_item are recognised"
        )
        self._refuse_transform_of(dataset)
        return None

    def _refuse_transform_of(self, dataset: Any) -> None:
        """Where a dataset is refused: what is against its transform is told as well."""
        transform = getattr(dataset, "__dict__", {}).get("transform")
        if transform is None or self._calls_transforms:
            return
        folder = sys.modules.get("torchvision.datasets.folder")
        is_folder = folder is not None and isinstance(dataset, folder.DatasetFolder)
        for reason in read_transform(transform, None if is_folder else _ANY_SIZE).reasons:
            self.refuse(reason)

    # ---- in memory -------------------------------------------------------------------------------

    def _read_images(self, dataset: Any, images: Any) -> Any:
        untouched = self._is_untouched(dataset, "torchvision")
        if hasattr(type(dataset), "__getitems__"):
            self.refuse(f"{type(dataset).__name__} was given a __getitems__")
        if dataset.target_transform is not None:
            self.refuse("the dataset has a target_transform")
        height, width, *channels = images.values.shape[1:]
        read = read_transform(dataset.transform, (height, width), *channels or (1,))
        if read.reasons:
            return self._refuse_all(read.reasons)
        leaf = Leaf(
            dataset, dataset.__getitem__, images.load, False, "transform", read.plan, read.steps
        )
        return image_node(leaf, images) if untouched else None

    def _read_npy_folder(self, dataset: Any) -> Any:
        if not self._is_untouched(dataset, "feedmill"):
            return None
        if not self._calls_transforms:
            return npy_folder_node(dataset)
        read = self._read_transform(dataset.transform)
        if read.reasons:
            return self._refuse_all(read.reasons)
        leaf = Leaf(
            dataset, dataset._find, dataset._load, False, "transform", read.plan, read.steps,
            is_image=False,
        )
        return LeafNode(leaf, "NpyFolder")

    def _leaf(self, dataset: Any, find: Any, load: Any, offered: bool, slot: str) -> Any:
        transform = getattr(dataset, slot, None)
        if id(transform) not in self._transforms:
            self._transforms[id(transform)] = self._read_transform(transform)
        read = self._transforms[id(transform)]
        if read.reasons:
            return self._refuse_all(read.reasons)
        leaf = Leaf(dataset, find, load, offered, slot, read.plan, read.steps)
        return LeafNode(leaf, type(dataset).__name__)

    def _read_transform(self, transform: Any) -> TransformPlan:
        if not self._calls_transforms:
            return read_transform(transform)
        if transform is None:
            return TransformPlan(None)
        if not callable(transform):
            reason = f"the transform, a {type_name(type(transform))}, can't be called"
            return TransformPlan(None, reasons=(reason,))
        return TransformPlan(None, (Step(transform, (), ""),))

    # ---- torch's own -----------------------------------------------------------------------------

    def _is_untouched(self, dataset: Any, library: str) -> bool:
        name = type(dataset).__name__
        n_before = len(self.reasons)
        for method in replaced_methods(type(dataset), library):
            self.refuse(f"{name}.{method} was replaced")
        own = shadows(dataset)
        if "__getitems__" in vars(dataset):
            own = sorted({*own, "__getitems__"})
        if own:
            self.refuse(f"the {name} object has its own {', '.join(own)}")
        return len(self.reasons) == n_before

    def _read_subset(self, subset: Any, depth: int) -> Any:
        is_good = self._is_untouched(subset, "torch")
        if type(subset.indices) not in _INDEX_LISTS:
            self.refuse(f"a Subset's indices are a {type_name(type(subset.indices))}, not a list")
            is_good = False
        inner = self.read(subset.dataset, depth + 1)
        if not is_good:
            return None
        if isinstance(inner, ArrayNode):
            try:
                return subset_node(subset, inner)
            except Refusal as refusal:
                return self.refuse(str(refusal))
        return inner and SubsetNode(subset, inner)

    def _read_concat(self, dataset: Any, depth: int) -> Any:
        is_good = self._is_untouched(dataset, "torch")
        parts = [self.read(part, depth + 1) for part in dataset.datasets]
        if len(dataset.datasets) != len(dataset.cumulative_sizes):
            return self.refuse("a ConcatDataset's datasets were changed after it was made")
        if not is_good:
            return None
        if any(isinstance(part, ArrayNode) for part in parts):
            return self.refuse("a ConcatDataset of datasets in memory is not supported natively")
        return None if None in parts else ConcatNode(dataset, parts)

    # ---- torchvision's folders -------------------------------------------------------------------

    def _read_folder(self, dataset: Any, folder: Any) -> Any:
        if hasattr(type(dataset), "__getitems__"):
            self.refuse(f"{type(dataset).__name__} was given a __getitems__")
        untouched = self._is_untouched(dataset, "torchvision")
        self._check_file_loader(dataset, folder)
        self._check_opening()
        if dataset.target_transform is not None:
            self.refuse("the dataset has a target_transform")
        self._check_samples(dataset.samples)
        leaf = self._leaf(dataset, dataset.samples.__getitem__, dataset.loader, False, "transform")
        return leaf if untouched else None

    def _check_file_loader(self, dataset: Any, folder: Any) -> None:
        originals = [
            getattr(folder, name)
            for name in ("default_loader", "pil_loader")
            if is_original(getattr(folder, name, None), folder.__name__, name)
        ]
        if len(originals) != 2:
            self.refuse("torchvision's default_loader or pil_loader was replaced")
        elif not any(dataset.loader is original for original in originals):
            self.refuse("the dataset's loader is not torchvision's default_loader")
        elif (backend := sys.modules["torchvision"].get_image_backend()) != "PIL":
            self.refuse(f"torchvision's image backend is {backend}, not PIL")

    def _check_opening(self) -> None:
        """Refuses where Pillow may give other pixels for an image file than the native decoder."""
        for reason in reasons_against_opening():
            self.refuse(reason)
        if reason := why_not_jpegs():
            self.refuse(reason)

    def _check_samples(self, samples: Any) -> None:
        if type(samples) not in (list, tuple):
            kind = type_name(type(samples))
            return self.refuse(f"the dataset's samples are a {kind}, not a list")
        if not samples:
            return self.refuse("the dataset is empty")
        formats = native_formats()
        suffixes = tuple(one for name in formats for one in _SUFFIXES[name])
        n_native = n_probed = 0
        for sample in samples[:: max(1, -(-len(samples) // _PROBED_SAMPLES))]:
            n_probed += 1
            try:
                n_native += str(sample[0]).lower().endswith(suffixes)
            except (TypeError, IndexError, KeyError):
                return self.refuse("the dataset's samples are not (path, target) pairs")
        if 2 * n_native < n_probed:
            self.refuse(
                f"most files are not {', '.join(formats)} by name "
                f"({n_native} of {n_probed} looked at are)"
            )

    # ---- the user's own --------------------------------------------------------------------------

    def _read_offered(self, dataset: Any, offers: type) -> Any:
        """The node of a dataset whose feedmill_item is defined by the class ``offers``."""
        kind = type(dataset)
        name = type_name(kind)
        self._check_opening()
        is_good = True
        if isinstance(dataset, IterableDataset):
            self.refuse(f"{name} is an IterableDataset; it has no indices")
            is_good = False
        elif getattr(kind, "__len__", None) is None:
            self.refuse(f"{name} offers feedmill_item, but has no length")
            is_good = False
        gets = _owner(kind, "__getitem__")
        if gets is not None and gets is not offers and issubclass(gets, offers):
            self.refuse(
                f"{type_name(gets)} has a __getitem__ of its own, but {type_name(offers)}'s "
                "feedmill_item; it must say what belongs to it"
            )
        if hasattr(dataset, "__getitems__"):
            self.refuse(f"{name} has __getitems__, for which feedmill_item does not stand")
        # The feedmill_item of our own datasets applies it itself.
        ours = [("feedmill.data.images", "ImageList"), ("feedmill.packing.shards", "ShardDataset")]
        applies = any(offers is getattr(sys.modules.get(at), name, None) for at, name in ours)
        if getattr(dataset, "target_transform", None) is not None and not applies:
            self.refuse("the dataset has a target_transform")
        folder = sys.modules.get("torchvision.datasets.folder")
        if folder is not None and isinstance(dataset, folder.DatasetFolder):
            self._check_file_loader(dataset, folder)
        slot = self._slot(dataset)
        if slot is None:
            return self._refuse_transform_of(dataset)
        leaf = self._leaf(dataset, dataset.feedmill_item, load_rgb, True, slot)
        return leaf if is_good else None

    def _slot(self, dataset: Any) -> str | None:
        """The attribute that holds the transform of images, of those that torchvision's own
        datasets have; None: refused."""
        transform = getattr(dataset, "transform", None)
        both = getattr(dataset, "transforms", None)
        if both is None:
            return "transform"
        vision = sys.modules.get("torchvision.datasets.vision")
        if vision is None or type(both) is not vision.StandardTransform:
            if transform is None:
                return "transforms"
            self.refuse("the dataset has both transform and transforms")
            return None
        if both.transform is not transform or both.target_transform is not None:
            self.refuse("the dataset's transforms are not its transform alone")
            return None
        return "transform"


def _owner(kind: type, name: str) -> type | None:
    """The class among a type's bases that defines a method."""
    return next((one for one in kind.__mro__ if name in vars(one)), None)


def load_rgb(path: Any) -> Any:
    """A file, or an image's bytes, as torchvision's pil_loader gives it: a PIL image, RGB."""
    from PIL import Image

    with open(path, "rb") if type(path) is not bytes else io.BytesIO(path) as file:
        return Image.open(file).convert("RGB")
