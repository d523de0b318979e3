"""README.md's table of what runs natively names what recognition knows, no less and no more."""

import re
from pathlib import Path

import feedmill
import feedmill.data
import torch.utils.data
import torchvision.datasets
from feedmill.planner import arrays, known

README = Path(__file__).parents[2] / "README.md"


def names_in(row):
    """The classes in the row's column of what is native."""
    (line,) = [line for line in README.read_text().splitlines() if line.startswith(f"| {row} |")]
    native = line.split("|")[2]
    return {name for name in re.findall(r"`([A-Za-z0-9]+)`", native) if name[0].isupper()}


def test_transforms():
    names = set().union(*known._KNOWN.values(), known._CONTAINERS.values())
    assert names_in("transform") == names


def test_datasets_in_memory():
    names = {name for _, group, _ in arrays._IMAGES for name in group}
    assert names_in("in memory") == names | {"TensorDataset", "NpyFile", "Subset"}


def test_datasets_exist():
    for name in names_in("tar files") | names_in("image files") | names_in("in memory"):
        homes = (torch.utils.data, torchvision.datasets, feedmill, feedmill.data)
        assert any(hasattr(home, name) for home in homes), name
