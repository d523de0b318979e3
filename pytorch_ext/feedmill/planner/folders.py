"""Subclasses of torchvision's DatasetFolder and ImageFolder, torchvision's own (ImageNet, EuroSAT,
...) and the user's: whether they read samples as DatasetFolder does."""

from __future__ import annotations

import sys
from typing import Any

from feedmill.planner.items import arrangement, check_classes
from feedmill.planner.untouched import is_original

_FOLDER = "torchvision.datasets.folder"
# What DatasetFolder.__getitem__ reads. A class must not define it.
_READ = ("samples", "loader", "transform", "target_transform", "transforms")


def folder_arrangement(dataset: Any, folder: Any) -> Any:
    """The arrangement of the samples of a DatasetFolder, as BaseDataset's.

    Args:
        dataset: a DatasetFolder, or an object of a subclass.
        folder: the module torchvision.datasets.folder.

    Raises:
        NotUnderstood: its class does not read samples as DatasetFolder does.
    """
    check_classes(type(dataset), _READ)
    return arrangement(dataset, folder.DatasetFolder)


def get_image_backend() -> Any:
    """torchvision's function of this name; None: it was replaced."""
    function = getattr(sys.modules.get("torchvision"), "get_image_backend", None)
    return function if is_original(function, "torchvision", "get_image_backend") else None


def original_loaders() -> list[Any]:
    """torchvision's default_loader() and pil_loader(), which it calls, without those that were
    replaced."""
    names = "default_loader", "pil_loader"
    found = [(name, getattr(sys.modules.get(_FOLDER), name, None)) for name in names]
    return [function for name, function in found if is_original(function, _FOLDER, name)]
