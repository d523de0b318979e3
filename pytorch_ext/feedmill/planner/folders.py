"""Subclasses of torchvision's DatasetFolder and ImageFolder, torchvision's own (ImageNet, EuroSAT,
...) and the user's: whether they read samples as DatasetFolder does."""

from __future__ import annotations

from types import GetSetDescriptorType
from typing import Any

from feedmill.planner.evaluating import NotUnderstood, dict_of, mro_of
from feedmill.planner.items import arrangement
from feedmill.planner.plan import UnsupportedError
from feedmill.planner.samples import PAIR
from feedmill.planner.untouched import type_name

# What decides about a sample, or about the copies of a dataset in worker processes. A subclass must
# not define it.
_DECIDING = frozenset({
    "__getitems__", "__getattribute__", "__getattr__", "__setattr__", "__class__", "__dict__",
    "__getstate__", "__setstate__", "__reduce__", "__reduce_ex__", "__getnewargs__",
    "__getnewargs_ex__", "__copy__", "__deepcopy__", "samples", "loader", "transform",
    "target_transform", "transforms",
})


def folder_arrangement(dataset: Any, folder: Any) -> Any:
    """The arrangement of the samples of a DatasetFolder, as BaseDataset's.

    Args:
        dataset: a DatasetFolder, or an object of a subclass.
        folder: the module torchvision.datasets.folder.

    Raises:
        UnsupportedError: its class does not read samples as DatasetFolder does.
    """
    kinds = list(mro_of(type(dataset)))
    before = kinds[: kinds.index(folder.DatasetFolder)]
    own = [one for one in before if one is not folder.ImageFolder]
    for kind in own:
        defined = dict_of(kind)
        for name in sorted(_DECIDING & defined.keys()):
            # Python itself gives classes the attribute __dict__.
            if name != "__dict__" or type(defined[name]) is not GetSetDescriptorType:
                raise _unsupported(dataset, f"{kind.__qualname__} defines {name}")
    if not any("__getitem__" in dict_of(kind) for kind in own):
        return PAIR
    try:
        return arrangement(dataset, folder.DatasetFolder)
    except NotUnderstood as error:
        raise _unsupported(dataset, str(error)) from None


def _unsupported(dataset: Any, why: str) -> UnsupportedError:
    return UnsupportedError(
        f"the dataset {type_name(type(dataset))} is not supported natively: {why}"
    )
