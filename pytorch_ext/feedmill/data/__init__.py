"""Datasets that torch's own DataLoader takes as well, and a single image's decoder.

    from feedmill.data import ImageList
    dataset = ImageList(paths, labels, transform=transform)

Map-style all of them: ``len(dataset)``, ``dataset[index]``; they pickle, and hold no open file.

May import: planner.
"""

from feedmill.data.arrays import NpyFile, NpyFolder
from feedmill.data.images import ImageList
from feedmill.data.reading import imread
from feedmill.data.tokens import Tokens

__all__ = ["ImageList", "NpyFile", "NpyFolder", "Tokens", "imread"]
