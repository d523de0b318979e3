"""Decides whether a dataset's samples can be read natively.

These datasets can: torchvision's ImageFolder and DatasetFolder, subclasses that read samples alike
(``folders``), timm's ImageDataset of a folder or of tar files, feedmill.data.NpyFolder, datasets
with a method ``feedmill_item``, and torch's Subset and ConcatDataset of these, nested in any way;
torch's TensorDataset, torchvision's small datasets in memory, feedmill.data.NpyFile, and Subsets of
these.
Other subclasses of them can't, unless they define ``feedmill_item``.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch.utils.data import ConcatDataset, IterableDataset, Subset, TensorDataset

from feedmill._ops import native
from feedmill.planner import (
    adm_datasets,
    files,
    huggingface,
    iterable_datasets,
    tensor_files,
    timm_objects,
    torchcodec_files,
    webdatasets,
)
from feedmill.planner.arrangements import PAIR, ArrangedSamples, described
from feedmill.planner.array_datasets import (
    ArrayNode,
    image_node,
    images_of,
    npy_node,
    subset_node,
    tensor_node,
)
from feedmill.planner.array_samples import ArraySource
from feedmill.planner.arrow_datasets import ArrowDataset, ArrowSource
from feedmill.planner.attributes import NotUnderstood, mro_of
from feedmill.planner.drawn_lookups import draw_from_python
from feedmill.planner.file_loaders import GIVEN_ANY, GIVEN_RGB, FileLoader
from feedmill.planner.folders import folder_arrangement, original_loaders
from feedmill.planner.own_datasets import OwnDataset, is_readable, read_loader, read_own
from feedmill.planner.plan import ARRAY, UnsupportedError
from feedmill.planner.raw_files import RawPlan, RawSource, npy_folder_node
from feedmill.planner.samples import (
    BaseDataset,
    BaseNode,
    ConcatNode,
    Source,
    SubsetNode,
    Support,
    unsupported,
)
from feedmill.planner.steps import Step
from feedmill.planner.timm_tars import TarSamples
from feedmill.planner.transforms import (
    TransformPlan,
    converts_first,
    read_transform,
    read_transforms,
    read_views,
)
from feedmill.planner.untouched import (
    replaced_methods,
    shadowing_attributes,
    type_name,
    unreadable,
)

_MAX_DEPTH = 16
# Stands for the unknown size of all images of a dataset that is not supported.
_ANY_SIZE = (4096, 4096)
_TARGET_TRANSFORM = (
    "the dataset has a target_transform, which the native path does not call; set it to None, and "
    "transform the dataset's targets once instead"
)
_CONVERT = 'convert it when it is opened, by .convert("RGB")'
_INDEX_LISTS = (list, tuple, range, np.ndarray, torch.Tensor)


def read_dataset(dataset: Any, *, calls_transforms: bool = False) -> Support:
    """Whether a dataset, with its transform, can be read natively as it is now.

    Draws no random number and changes nothing.

    Args:
        calls_transforms: for hybrid mode, which calls the transform: any transform is accepted, and
            the samples have no plan.
    """
    read_stream = None if calls_transforms else _stream_reader(dataset)
    if read_stream is not None:
        try:
            return Support(read_stream(dataset))
        except UnsupportedError as error:
            return unsupported(str(error))
    reader = _DatasetReader(calls_transforms)
    node = reader.read(dataset, 0)
    if node is not None and len({base.plan for base in node.base_datasets}) > 1:
        reader.add_reason("the datasets of a ConcatDataset have transforms with different results")
    if node is not None and len({base.arrangement for base in node.base_datasets}) > 1:
        reader.add_reason("the datasets of a ConcatDataset have samples of different parts")
    if node is not None and not len(dataset):
        reader.add_reason("the dataset is empty")
    if node is None and not reader.reasons:
        reader.add_reason(f"the dataset {type_name(type(dataset))} is not supported natively")
    if reader.reasons or node is None:
        return unsupported(*reader.reasons)
    if isinstance(node, ArrayNode):
        return Support(ArraySource(dataset, node))
    if any(base.is_arrow for base in node.base_datasets):
        return Support(ArrowSource(dataset, node))
    is_plain = isinstance(node.base_datasets[0].plan, RawPlan)
    return Support((RawSource if is_plain else Source)(dataset, node))


def _stream_reader(dataset: Any) -> Callable[[Any], Source] | None:
    """What reads a dataset whose own code runs on the native path; None: it is another dataset."""
    if webdatasets.is_pipeline(dataset):
        return webdatasets.read_pipeline
    if iterable_datasets.is_iterable_dataset(dataset):
        return iterable_datasets.read_iterable
    return None


class _DatasetReader:
    """Reads a tree of datasets into nodes, and collects the reasons against it.

    Args:
        calls_transforms: as read_dataset()'s.
        is_inner: the dataset is within one of the user's own, which has a transform.

    Attributes:
        reasons: found so far, each once.
    """

    def __init__(self, calls_transforms: bool, is_inner: bool = False) -> None:
        self._calls_transforms = calls_transforms
        self._is_inner = is_inner
        self.reasons: list[str] = []
        # By id, as one dataset or transform may be used in several places.
        self._nodes: dict[int, Any] = {}
        self._transforms: dict[tuple[int, str], tuple[Any, TransformPlan]] = {}

    def add_reason(self, reason: str) -> None:
        if reason not in self.reasons:
            self.reasons.append(reason)

    def add_reasons(self, reasons: Iterable[str]) -> None:
        for reason in reasons:
            self.add_reason(reason)

    def read(self, dataset: Any, depth: int) -> Any:
        """The node of a dataset. None: it is not supported, and the reasons say why."""
        if depth > _MAX_DEPTH:
            self.add_reason(f"datasets are nested more than {_MAX_DEPTH} levels deep")
            return None
        if id(dataset) not in self._nodes:
            try:
                self._nodes[id(dataset)] = self._read(dataset, depth)
            except Exception as error:
                self._nodes[id(dataset)] = None
                self.add_reason(unreadable(f"the dataset, a {type_name(type(dataset))},", error))
        return self._nodes[id(dataset)]

    def _read(self, dataset: Any, depth: int) -> Any:
        kind = type(dataset)
        owner = _owner(kind, "feedmill_item")
        if owner is not None:
            return self._read_with_feedmill_item(dataset, owner)
        if kind is Subset:
            return self._read_subset(dataset, depth)
        if kind is ConcatDataset:
            return self._read_concat(dataset, depth)
        folder = sys.modules.get("torchvision.datasets.folder")
        try:
            if folder is not None and folder.DatasetFolder in mro_of(kind):
                return self._read_folder(dataset, folder, depth)
            if timm_objects.is_image_dataset(kind):
                return self._read_image_dataset(dataset)
            if huggingface.is_dataset(kind):
                return self._read_arrow(dataset)
            if kind is TensorDataset:
                return tensor_node(dataset) if self._is_untouched(dataset, "torch") else None
            if kind is getattr(sys.modules.get("feedmill.data.arrays"), "NpyFile", None):
                return npy_node(dataset) if self._is_untouched(dataset, "feedmill") else None
            if kind is getattr(sys.modules.get("feedmill.data.arrays"), "NpyFolder", None):
                return self._read_npy_folder(dataset)
            if (images := images_of(dataset)) is not None:
                return self._read_images(dataset, images)
            if not self._calls_transforms and (node := adm_datasets.node_of(dataset)) is not None:
                return node
        except UnsupportedError as error:
            self.add_reason(str(error))
            self._add_reasons_against_transform(dataset)
            return None
        why = ""
        if self._is_inner or not self._calls_transforms:
            try:
                return self._read_own(dataset, read_own(dataset), depth)
            except NotUnderstood as error:
                why = f" ({error})" if is_readable(dataset) else ""
        self.add_reason(
            f"the dataset {type_name(kind)} is not supported natively{why}; supported are "
            "torchvision's ImageFolder, DatasetFolder, CIFAR10, CIFAR100, MNIST, FashionMNIST, "
            "KMNIST, EMNIST and SVHN, timm's ImageDataset of a folder or of tar files, torch's "
            "TensorDataset, "
            "feedmill.data.NpyFile and NpyFolder (but no subclasses, except those of the folders "
            "that read samples alike), Subset and ConcatDataset of these, and any dataset with a "
            "method feedmill_item"
        )
        self._add_reasons_against_transform(dataset)
        return None

    def _add_reasons_against_transform(self, dataset: Any) -> None:
        """For a dataset that is not supported: adds the reasons against its transform, so that
        the user sees all reasons at once."""
        transform = getattr(dataset, "__dict__", {}).get("transform")
        if transform is None or self._calls_transforms:
            return
        folder = sys.modules.get("torchvision.datasets.folder")
        is_folder = folder is not None and isinstance(dataset, folder.DatasetFolder)
        is_folder = is_folder or timm_objects.is_image_dataset(type(dataset))
        for reason in read_transform(transform, None if is_folder else _ANY_SIZE).reasons:
            self.add_reason(reason)

    # ---- the user's own ------------------------------------------------------------------------

    def _read_own(self, dataset: Any, own: OwnDataset, depth: int) -> Any:
        """The node of a dataset whose __getitem__ was understood."""
        load = own.load
        is_other = isinstance(load, FileLoader)
        if not is_other:
            self.add_reasons(files.reasons_against_opening())
        steps: tuple[Step, ...] = ()
        views: tuple[tuple[Step, ...], ...] = ()
        plan: Any = None
        converts = False
        is_arrow = own.table is not None
        paths = [] if is_arrow or own.inner is not None else own.some_paths(files.probed)
        if own.table is not None:
            self.add_reasons(own.table.reasons())
        elif is_other:
            self.add_reasons(files.reasons_against_loaded(load, paths))
        elif own.inner is None:
            self.add_reasons(files.reasons_against_backend())
            self.add_reasons(files.reasons_against_names(paths))
            views_or_one = own.views or [own.calls]
            if load is files.open_as_is and not all(map(converts_first, views_or_one)):
                for number in range(own.n_files):
                    of_file = paths[number :: own.n_files]
                    self.add_reasons(files.reasons_against_modes(of_file, _CONVERT))
        else:
            node = self._read_inner(own, depth)
            if node is None:
                return None
            own.set_inner(node)
            inner = node.base_datasets[0]
            load, plan, steps, views = inner.load, inner.plan, inner.steps, inner.views
        if own.calls or own.inner is None:
            steps = tuple(Step(one, (), "") for one in own.calls)
            if not self._calls_transforms:
                read = (
                    read_views(own.views, given=_given(load)) if own.views
                    else read_transforms(own.calls, given=_given(load))
                )
                if read.reasons:
                    return self.add_reasons(read.reasons)
                if read.converts:
                    load = files.open_rgb
                plan, steps, views = read.plan, read.steps, read.views
                converts = read.converts
        if own.retries:
            if plan is None:
                return self.add_reason(
                    "hybrid mode takes no dataset with code of its own for files that can't be "
                    "loaded or are not RGB"
                )
            plan = replace(plan, retries=True)
        if own.n_files > 1:
            if reason := _why_not_files(own, plan, views):
                return self.add_reason(reason)
            plan = replace(plan, views_have_files=True, draws_files=own.draws_files)
        base = BaseDataset(
            dataset, own.find, load, is_arrow, "transform", plan, steps,
            is_image=_is_rgb(load), arrangement=own.arrangement, with_transform=own.with_transform,
            is_turned=is_arrow or _is_turned(load), is_arrow=is_arrow, views=views,
            rejects=_rejects(load),
            keeps_mode=_keeps_mode(load, paths), converts=converts, n_files=own.n_files,
        )
        of = "" if own.inner is None else f" of {node.kind}"
        return BaseNode(base, type(dataset).__name__ + of)

    def _read_inner(self, own: OwnDataset, depth: int) -> Any:
        """The node of the dataset from which an own dataset takes samples."""
        # If the outer dataset has transforms, the inner one must have none.
        reader = _DatasetReader(True, True) if own.calls else self
        node = reader.read(own.inner, depth + 1)
        if node is None:
            return self.add_reasons(reader.reasons)
        bases = node.base_datasets
        if (own.calls or own.takes_pil) and any(base.steps or base.views for base in bases):
            return self.add_reason(
                "both a dataset and the dataset within it have a transform; natively only one of "
                "them may have one"
            )
        is_plain = not isinstance(node, ArrayNode) and all(
            base.is_image and not base.has_feedmill_item and base.arrangement == PAIR
            and not base.makes_samples
            and not isinstance(base.plan, RawPlan) and base.load is bases[0].load
            and getattr(base.plan, "gives", None) != ARRAY
            for base in bases
        )
        if not is_plain or (not own.calls and len(bases) > 1):
            return self.add_reason(
                f"{node.kind} within a dataset of your own is not supported natively; supported "
                "are ImageFolder, DatasetFolder, datasets of your own and Subsets of these"
            )
        return node

    # ---- Hugging Face's ------------------------------------------------------------------------

    def _read_arrow(self, dataset: Any) -> Any:
        """The node of a Dataset. UnsupportedError if it is not supported."""
        if self._calls_transforms:
            return self.add_reason(
                "a Dataset of Hugging Face is not supported in hybrid mode, nor within a dataset "
                "of your own that has transforms"
            )
        arrow = ArrowDataset(dataset)
        self.add_reasons(arrow.reasons())
        read = arrow.read()
        self.add_reasons(read.reasons)
        if read.reasons:
            return None
        return BaseNode(arrow.base(read), "Dataset of Hugging Face")

    # ---- in memory -------------------------------------------------------------------------------

    def _read_images(self, dataset: Any, images: Any) -> Any:
        untouched = self._is_untouched(dataset, "torchvision")
        if hasattr(type(dataset), "__getitems__"):
            self.add_reason(f"{type(dataset).__name__}.__getitems__ was added to the class")
        if dataset.target_transform is not None:
            self.add_reason(_TARGET_TRANSFORM)
        height, width, *channels = images.values.shape[1:]
        read = read_transform(dataset.transform, (height, width), *channels or (1,))
        if read.reasons:
            return self.add_reasons(read.reasons)
        if read.views:
            return self.add_reason(
                "the transform makes several images of a sample, which is supported natively for "
                "image files only"
            )
        base = BaseDataset(
            dataset, dataset.__getitem__, images.load, False, "transform", read.plan, read.steps
        )
        return image_node(base, images) if untouched else None

    def _read_npy_folder(self, dataset: Any) -> Any:
        if not self._is_untouched(dataset, "feedmill"):
            return None
        if not self._calls_transforms:
            return npy_folder_node(dataset)
        read = self._read_transform(dataset.transform)
        if read.reasons:
            return self.add_reasons(read.reasons)
        base = BaseDataset(
            dataset, dataset._find, dataset._load, False, "transform", read.plan, read.steps,
            is_image=False,
        )
        return BaseNode(base, "NpyFolder")

    def _base_node(
        self,
        dataset: Any,
        find: Any,
        load: Any,
        has_feedmill_item: bool,
        slot: str,
        arrangement: Any = PAIR,
        makes_samples: bool = False,
        with_transform: Any = None,
        with_own_files: Any = None,
        kind: str = "",
    ) -> Any:
        """The node of a dataset that holds samples itself; None: its transform is not supported.
        The arguments are BaseDataset's, and BaseNode's kind, by default the class's name."""
        transform = getattr(dataset, slot, None)
        key = id(transform), _given(load)
        if key not in self._transforms:
            # The object is kept, so that no other one gets its id.
            self._transforms[key] = transform, self._read_transform(transform, _given(load))
        _, read = self._transforms[key]
        if read.reasons:
            return self.add_reasons(read.reasons)
        if read.converts:
            load = files.open_rgb
        paths = _some_paths(dataset) if isinstance(load, FileLoader) else []
        base = BaseDataset(
            dataset, find, load, has_feedmill_item, slot, read.plan, read.steps,
            is_image=_is_rgb(load), arrangement=arrangement, with_transform=with_transform,
            makes_samples=makes_samples, with_own_files=with_own_files, is_turned=_is_turned(load),
            views=read.views,
            rejects=_rejects(load), keeps_mode=_keeps_mode(load, paths), converts=read.converts,
        )
        return BaseNode(base, kind or type(dataset).__name__)

    def _read_transform(self, transform: Any, given: str = GIVEN_RGB) -> TransformPlan:
        if not self._calls_transforms:
            return read_transform(transform, given=given)
        if transform is None:
            return TransformPlan(None)
        if not callable(transform):
            reason = f"the transform, a {type_name(type(transform))}, is not callable"
            return TransformPlan(None, reasons=(reason,))
        return TransformPlan(None, (Step(transform, (), ""),))

    # ---- torch's Subset and ConcatDataset --------------------------------------------------------

    def _is_untouched(self, dataset: Any, library: str) -> bool:
        """Whether a dataset is as its library made it; adds reasons if not."""
        name = type(dataset).__name__
        n_before = len(self.reasons)
        for method in replaced_methods(type(dataset), library):
            self.add_reason(f"{name}.{method} was replaced")
        own = shadowing_attributes(dataset)
        if "__getitems__" in vars(dataset):
            own = sorted({*own, "__getitems__"})
        if own:
            self.add_reason(
                f"the {name} object has its own {', '.join(own)}, which hides that of its class"
            )
        return len(self.reasons) == n_before

    def _read_subset(self, subset: Any, depth: int) -> Any:
        is_good = self._is_untouched(subset, "torch")
        if type(subset.indices) not in _INDEX_LISTS:
            kind = type_name(type(subset.indices))
            self.add_reason(f"a Subset's indices are a {kind}, not a list or an array")
            is_good = False
        inner = self.read(subset.dataset, depth + 1)
        if not is_good:
            return None
        if isinstance(inner, ArrayNode):
            try:
                return subset_node(subset, inner)
            except UnsupportedError as error:
                return self.add_reason(str(error))
        return inner and SubsetNode(subset, inner)

    def _read_concat(self, dataset: Any, depth: int) -> Any:
        is_good = self._is_untouched(dataset, "torch")
        parts = [self.read(part, depth + 1) for part in dataset.datasets]
        if len(dataset.datasets) != len(dataset.cumulative_sizes):
            return self.add_reason(
                "a ConcatDataset's datasets were changed after its construction; make a new one"
            )
        if not is_good:
            return None
        if any(isinstance(part, ArrayNode) for part in parts):
            return self.add_reason(
                "a ConcatDataset of datasets in memory is not supported natively; ConcatDataset is "
                "supported for datasets of files"
            )
        return None if None in parts else ConcatNode(dataset, parts)

    # ---- torchvision's folders -------------------------------------------------------------------

    def _read_folder(self, dataset: Any, folder: Any, depth: int) -> Any:
        try:
            arrangement = folder_arrangement(dataset, folder)
        except NotUnderstood as error:
            return self._read_folder_of_own(dataset, str(error), depth)
        if arrangement != PAIR and self._calls_transforms and not self._is_inner:
            self.add_reason(
                f"the dataset's samples are {described(arrangement)}; hybrid mode needs pairs of "
                "image and target"
            )
        if hasattr(type(dataset), "__getitems__"):
            self.add_reason(f"{type(dataset).__name__}.__getitems__ was added to the class")
        untouched = self._is_untouched(dataset, "torchvision")
        load = self._loader_of(dataset)
        if isinstance(load, FileLoader):
            self.add_reasons(files.reasons_against_samples(dataset.samples))
            self.add_reasons(files.reasons_against_loaded(load, _some_paths(dataset)))
        else:
            self.add_reasons(files.reasons_against_backend())
            self.add_reasons(files.reasons_against_opening())
            self.add_reasons(files.reasons_against_samples(dataset.samples))
            if load is files.open_as_is and not converts_first([dataset.transform]):
                self.add_reasons(files.reasons_against_modes(_some_paths(dataset), _CONVERT))
        if dataset.target_transform is not None:
            self.add_reason(_TARGET_TRANSFORM)
        find = dataset.samples.__getitem__
        if arrangement != PAIR:
            find = ArrangedSamples(dataset.samples, arrangement).find
        node = self._base_node(dataset, find, load, False, "transform", arrangement)
        return node if untouched else None

    def _read_folder_of_own(self, dataset: Any, why: str, depth: int) -> Any:
        """The node of a folder whose class reads samples in another way than DatasetFolder.
        UnsupportedError if that is not understood, either.

        Args:
            why: it is not DatasetFolder's way.
        """
        if self._is_inner or not self._calls_transforms:
            try:
                return self._read_own(dataset, read_own(dataset), depth)
            except NotUnderstood as error:
                why += f"; nor is it understood what else it does ({error})"
        raise UnsupportedError(
            f"the dataset {type_name(type(dataset))} is not supported natively: {why}"
        )

    def _loader_of(self, dataset: Any) -> Any:
        """How a DatasetFolder loads a file, as BaseDataset.load."""
        loader = dataset.loader
        originals = original_loaders()
        if len(originals) != 2:
            self.add_reason("torchvision's default_loader or pil_loader was replaced")
        elif not any(loader is original for original in originals):
            try:
                of_library = tensor_files.loader_of(loader) or torchcodec_files.loader_of(loader)
                return of_library or read_loader(loader)
            except NotUnderstood as error:
                self.add_reason(
                    "the dataset's loader is not torchvision's default_loader, nor understood to "
                    f"load a file as RGB ({error})"
                )
        return loader

    # ---- timm's ImageDataset ---------------------------------------------------------------------

    def _read_image_dataset(self, dataset: Any) -> Any:
        """The node of timm's ImageDataset. UnsupportedError if it is not supported."""
        timm_objects.check_image_dataset(dataset)
        reader = timm_objects.reader_of(dataset)
        if hasattr(type(dataset), "__getitems__"):
            self.add_reason(f"{type(dataset).__name__}.__getitems__ was added to the class")
        untouched = self._is_untouched(dataset, "timm")
        untouched = self._is_untouched(reader, "timm") and untouched
        self.add_reasons(files.reasons_against_opening())
        if getattr(dataset, "target_transform", None) is not None:  # older versions have none
            self.add_reason(_TARGET_TRANSFORM)
        if self._calls_transforms:
            return self.add_reason(
                "timm's ImageDataset returns the next image if one can't be read, which hybrid "
                "mode and a dataset of your own around it do not do natively"
            )
        if timm_objects.reads_tars(reader):
            tars = TarSamples(dataset)
            self.add_reasons(files.reasons_against_names(tars.some_names(files.probed)))
            node = self._base_node(
                dataset, tars.find, files.load_rgb, True, "transform", makes_samples=True,
                with_transform=tars.with_transform, with_own_files=tars.with_own_files,
                kind="ImageDataset of tar files",
            )
            return node if untouched else None
        samples = reader.samples
        self.add_reasons(files.reasons_against_samples(samples))
        node = self._base_node(
            dataset, samples.__getitem__, files.load_rgb, False, "transform", makes_samples=True
        )
        return node if untouched else None

    # ---- datasets with feedmill_item -------------------------------------------------------------

    def _read_with_feedmill_item(self, dataset: Any, owner: type) -> Any:
        """The node of a dataset whose method feedmill_item is defined by the class ``owner``."""
        kind = type(dataset)
        name = type_name(kind)
        self.add_reasons(files.reasons_against_opening())
        is_good = True
        if isinstance(dataset, IterableDataset):
            self.add_reason(
                f"{name} is an IterableDataset, which has no indices; feedmill_item needs a "
                "map-style dataset"
            )
            is_good = False
        elif getattr(kind, "__len__", None) is None:
            self.add_reason(f"{name} has feedmill_item, but no length; define __len__")
            is_good = False
        gets = _owner(kind, "__getitem__")
        if gets is not None and gets is not owner and issubclass(gets, owner):
            self.add_reason(
                f"{type_name(gets)} overrides __getitem__ but inherits feedmill_item from "
                f"{type_name(owner)}; override feedmill_item as well, so that both give the same "
                "samples"
            )
        if hasattr(dataset, "__getitems__"):
            self.add_reason(
                f"{name} has __getitems__, which torch would call instead of __getitem__; "
                "feedmill_item replaces only __getitem__"
            )
        # The feedmill_item of feedmill's own datasets applies the target_transform itself.
        ours = [("feedmill.data.images", "ImageList"), ("feedmill.packing.shards", "ShardDataset"),
                ("feedmill.indexing.dataset", "Index")]
        applies = any(owner is getattr(sys.modules.get(at), name, None) for at, name in ours)
        if getattr(dataset, "target_transform", None) is not None and not applies:
            self.add_reason(_TARGET_TRANSFORM)
        folder = sys.modules.get("torchvision.datasets.folder")
        if folder is not None and isinstance(dataset, folder.DatasetFolder):
            self.add_reasons(files.reasons_against_loader(dataset.loader))
        slot = self._slot(dataset)
        if slot is None:
            return self._add_reasons_against_transform(dataset)
        node = self._base_node(dataset, dataset.feedmill_item, files.load_rgb, True, slot)
        return node if is_good else None

    def _slot(self, dataset: Any) -> str | None:
        """The attribute that holds the images' transform: "transform" or "transforms", as in
        torchvision's datasets. None: not supported."""
        transform = getattr(dataset, "transform", None)
        both = getattr(dataset, "transforms", None)
        if both is None:
            return "transform"
        vision = sys.modules.get("torchvision.datasets.vision")
        if vision is None or type(both) is not vision.StandardTransform:
            if transform is None:
                return "transforms"
            self.add_reason("the dataset has both transform and transforms; set only one of them")
            return None
        if both.transform is not transform or both.target_transform is not None:
            self.add_reason(
                "the dataset's attribute transforms does more than its attribute transform; the "
                "native path applies a transform to images only, not to targets"
            )
            return None
        return "transform"


def _some_paths(folder: Any) -> list[str]:
    """The paths of some of a DatasetFolder's files."""
    samples = folder.samples
    try:
        return [str(sample[0]) for sample in samples[files.probed(len(samples))]]
    except Exception:  # reasons_against_samples() says why
        return []


def _given(load: Any) -> str:
    """What a dataset's transform is given, as read_transforms()' argument."""
    if isinstance(load, FileLoader):
        return load.given
    return GIVEN_ANY if load is files.open_as_is else GIVEN_RGB


def _rejects(load: Any) -> int:
    """Images that only a dataset's own load() can load."""
    if isinstance(load, FileLoader):
        return load.rejects
    # What Pillow says of a WebP image's alpha is not compared.
    is_converted = load not in (files.open_as_is, files.open_only_rgb)
    return 0 if is_converted else native.REJECT_NOT_RGB | native.FORMAT_WEBP


def _is_rgb(load: Any) -> bool:
    """Whether load() returns PIL images that it has converted to RGB by Pillow."""
    return not isinstance(load, FileLoader) and load is not files.open_as_is


def _is_turned(load: Any) -> bool:
    """As BaseDataset.is_turned."""
    return isinstance(load, FileLoader) and load.turns


def _why_not_files(own: OwnDataset, plan: Any, views: Sequence[Sequence[Step]]) -> str:
    """Why samples of several files are not native; "" if they are."""
    if plan is None:
        return "hybrid mode takes no samples of several image files"
    if own.draws_files and any(map(draw_from_python, views)):
        return (
            "the dataset draws the files of its samples from Python's generator, from which its "
            "transforms may draw, too"
        )
    return ""


def _keeps_mode(load: Any, paths: Sequence[str]) -> bool:
    """Whether images may stay other than RGB when they are loaded.

    Args:
        paths: of some of the files, if load() makes tensors.
    """
    if isinstance(load, FileLoader):
        return load.may_differ(paths)
    return load is files.open_as_is


def _owner(kind: type, name: str) -> type | None:
    """The class in a type's MRO that defines a method; None: no class does."""
    return next((one for one in kind.__mro__ if name in vars(one)), None)
