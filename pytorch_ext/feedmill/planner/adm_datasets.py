"""Recognises ADM's ImageDataset, which guided-diffusion and codebases made of it have: it crops
images by ``center_crop_arr()``, may flip them, and returns arrays with values from -1 to 1 and a
dict, which holds the label if there are classes.

``__getitem__`` works on the image itself, without transforms that could be evaluated one by one. So
its source must be this one; see ``fingerprints`` for what is ignored. Files may also be opened by
Python's ``open()``.
"""

from __future__ import annotations

import ast
import builtins
import functools
import random
import sys
from dataclasses import replace
from types import FunctionType
from typing import Any
from urllib.parse import urlparse

import numpy as np
import torch
from torch.utils.data import Dataset, IterableDataset

from feedmill.planner import files, fingerprints
from feedmill.planner.attributes import NotUnderstood, attribute, attributes_of, mro_of, of_class
from feedmill.planner.drawing import Chance, Condition, Draw, PilCall
from feedmill.planner.generators import drawing_function
from feedmill.planner.halving_crops import HalvingCrop, halving_crop_of
from feedmill.planner.items import check_classes
from feedmill.planner.looked_up import the_object
from feedmill.planner.numpy_calls import (
    ArrayCall,
    array_of_image,
    function_of_array,
    method_of_array,
    operator_of_array,
)
from feedmill.planner.plan import ARRAY, UnsupportedError
from feedmill.planner.samples import BaseDataset, BaseNode
from feedmill.planner.transforms import read_transforms
from feedmill.planner.untouched import is_original, type_name

_OPENED = ('bf.BlobFile(path, "rb")', 'open(path, "rb")')
_SOURCE = """
def __getitem__(self, idx):
    path = self.local_images[idx]
    with {opened} as f:
        pil_image = Image.open(f)
        pil_image.load()
    pil_image = pil_image.convert("RGB")

    if self.random_crop:
        arr = random_crop_arr(pil_image, self.resolution)
    else:
        arr = center_crop_arr(pil_image, self.resolution)

    if self.random_flip and random.random() < 0.5:
        arr = arr[:, ::-1]

    arr = arr.astype(np.float32) / 127.5 - 1

    out_dict = {{}}
    if self.local_classes is not None:
        out_dict["y"] = np.array(self.local_classes[idx], dtype=np.int64)
    return np.transpose(arr, [2, 0, 1]), out_dict
"""
_MEANINGS = {
    "Image": "PIL.Image", "np": "numpy", "random": "random", "bf": "blobfile",
    "center_crop_arr": "*", "random_crop_arr": "*",
}
_OPEN = builtins.open  # another one is a script's replacement


@functools.lru_cache(maxsize=1)
def _hashes() -> frozenset[str]:
    sources = (_SOURCE.format(opened=one) for one in _OPENED)
    return frozenset(fingerprints.hash_of(ast.parse(one).body[0]) for one in sources)


class _AdmDataset:
    """What such a dataset holds when it is recognised.

    Attributes:
        determined_by: the objects that determine the samples, beside the plan.
    """

    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset
        self.paths: Any = attribute(dataset, "local_images")
        self._classes: Any = attribute(dataset, "local_classes")
        self.determined_by = self.paths, self._classes, the_object("ADM's ImageDataset")

    def find(self, index: Any) -> tuple[Any, dict[str, Any]]:
        """(path, the sample's dict) of an index. Raises what the dataset raises."""
        try:
            path = self.paths[index]
            fields = {}
            if self._classes is not None:
                fields["y"] = np.array(self._classes[index], dtype=np.int64)
        except Exception:
            self._dataset[index]  # raises the dataset's own error
            raise
        return path, fields

    def with_transform(self, transform: Any, copy_with: Any) -> _Transformed:
        """As BaseDataset's."""
        return _Transformed(self, transform)


class _Transformed(Dataset[Any]):
    """The dataset with another transform in the place of what it does with the loaded image."""

    def __init__(self, adm: _AdmDataset, transform: Any) -> None:
        self._adm = adm
        self._transform = transform

    def __getitem__(self, index: Any) -> tuple[Any, dict[str, Any]]:
        path, fields = self._adm.find(index)
        return self._transform(files.open_file_rgb(path)), fields


def node_of(dataset: Any) -> BaseNode | None:
    """The node of such a dataset; None: it is another one, or is not proved to be one. Calls
    nothing of the user's.

    Raises:
        UnsupportedError: it is one, and this rules out the native path.
    """
    method = of_class(type(dataset), "__getitem__")
    if type(method) is not FunctionType or not _is_adms(method):
        return None
    try:
        crop = _crop_of(dataset, method)
        adm = _AdmDataset(dataset)
        flips = attribute(dataset, "random_flip")
        if type(flips) is not bool:
            raise NotUnderstood("its random_flip is neither True nor False")
        _check_lists(dataset)
        calls = [crop, *[_flip()] * flips, *_array_calls()]
    except NotUnderstood as error:
        name = type_name(type(dataset))
        raise UnsupportedError(
            f"the dataset {name} is not supported natively, as {error}"
        ) from None
    some = adm.paths[files.probed(len(adm.paths))]
    reasons = [*files.reasons_against_opening(), *files.reasons_against_names(some)]
    read = read_transforms(calls)
    if reasons := [*reasons, *read.reasons]:
        raise UnsupportedError(reasons[0])
    assert read.plan is not None
    base = BaseDataset(
        dataset, adm.find, files.open_file_rgb, False, "transform",
        replace(read.plan, gives=ARRAY), read.steps, with_transform=adm.with_transform,
    )
    return BaseNode(base, type(dataset).__name__)


def _is_adms(method: FunctionType) -> bool:
    place = f"{method.__module__}:{method.__qualname__}"
    if not fingerprints.is_known(method, place, {place: _hashes()}, _MEANINGS):
        return False
    if getattr(method, "__builtins__", None) is not vars(builtins) or builtins.open is not _OPEN:
        return False
    return (
        drawing_function(random.random) == "random.random"
        and np.int64 is np.dtype("int64").type
        and np.float32 is np.dtype("float32").type
        and ("bf" not in method.__code__.co_names or _is_blobfile_original())
    )


def _is_blobfile_original() -> bool:
    """Whether blobfile's BlobFile() opens files as blobfile's own code does."""
    functions, contexts = (
        vars(sys.modules.get(f"blobfile.{name}", object)) for name in ("_ops", "_context")
    )
    kind = contexts.get("Context")
    context = functions.get("default_context")
    opens = getattr(sys.modules["blobfile"], "BlobFile", None)
    return (
        is_original(opens, "blobfile._ops", "BlobFile")
        and type(kind) is type
        and type(context) is kind
        and mro_of(kind) == (kind, object)
        and "BlobFile" not in attributes_of(context)
        and is_original(of_class(kind, "BlobFile"), "blobfile._context", "Context.BlobFile")
    )


def _crop_of(dataset: Any, method: FunctionType) -> HalvingCrop:
    """How the dataset crops. Raises NotUnderstood."""
    kind = type(dataset)
    if isinstance(dataset, IterableDataset):
        raise NotUnderstood("it is an IterableDataset")
    check_classes(kind)
    if any(name.startswith("__") for name in attributes_of(dataset)) or hasattr(
        kind, "__getitems__"
    ):
        raise NotUnderstood("it has methods of its own, or __getitems__")
    if attribute(dataset, "random_crop") is not False:
        raise NotUnderstood("its random_crop is not False; crops of a random size are not native")
    function = method.__globals__["center_crop_arr"]
    crop = None
    if type(function) is FunctionType:
        crop = halving_crop_of(function, attribute(dataset, "resolution"), makes_array=True)
    if crop is None:
        raise NotUnderstood("its center_crop_arr() is not ADM's, or its resolution no such size")
    return crop


def _check_lists(dataset: Any) -> None:
    """Checks the paths, which must be those of local files, and the classes."""
    paths, classes = (attribute(dataset, name) for name in ("local_images", "local_classes"))
    if type(paths) is not list or set(map(type, paths)) - {str}:
        raise NotUnderstood("its local_images is no list of str")
    # What the dataset draws before an error of its classes is not known.
    if classes is not None and not (_are_ints(classes) and len(classes) == len(paths)):
        raise NotUnderstood("its local_classes is no list of an int for each image")
    for path in paths:
        if (":" in path or "//" in path) and not _is_local(path):
            raise NotUnderstood(f"it reads {path!r}, which is no local file for blobfile")


def _are_ints(values: Any) -> bool:
    """Whether values are a list or an array of ints that fit into 64 bits."""
    if type(values) is np.ndarray:
        return bool(values.ndim == 1 and values.dtype.kind == "i")
    if type(values) is not list or not set(map(type, values)) <= {int, np.int64}:
        return False
    limits = np.iinfo(np.int64)
    return not values or (limits.min <= min(values) and max(values) <= limits.max)


def _is_local(path: str) -> bool:
    """Whether blobfile takes a path for that of a local file."""
    try:
        url = urlparse(path)
    except ValueError:
        return False
    return not url.scheme and not url.netloc


def _flip() -> Chance:
    """``if random.random() < 0.5: arr = arr[:, ::-1]``"""
    condition = Condition(0.5, Draw(0, 1, (0.0, 1.0)), "<", 0.5)
    return Chance(0.5, (PilCall("RandomHorizontalFlip"),), condition)


def _array_calls() -> list[ArrayCall]:
    """What makes values from -1 to 1 of the image. Raises NotUnderstood if a function of NumPy or
    torch was replaced."""
    calls = [
        array_of_image(np.array, (), {}),
        method_of_array("astype", (np.float32,), {}),
        operator_of_array(ast.Div(), True, 127.5),
        operator_of_array(ast.Sub(), True, 1),
        function_of_array(np.transpose, ((2, 0, 1),), {}),
        function_of_array(torch.from_numpy, (), {}),  # as default_collate makes a tensor of it
    ]
    known = [one for one in calls if one is not None]
    if len(known) < len(calls):
        raise NotUnderstood("a function of NumPy, Pillow or torch was replaced")
    return known
