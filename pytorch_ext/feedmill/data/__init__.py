"""Datasets for feedmill's and torch's DataLoader, and imread() for a single image.

    from feedmill.data import ImageList
    dataset = ImageList(paths, labels, transform=transform)

All datasets are map-style (``len(dataset)``, ``dataset[index]``), can be pickled, and keep no file
open.

May import: planner, remote.
"""

from feedmill.data.arrays import NpyFile, NpyFolder
from feedmill.data.images import ImageList
from feedmill.data.reading import imread
from feedmill.data.tokens import Tokens

__all__ = ["ImageList", "NpyFile", "NpyFolder", "Tokens", "imread"]
