"""Fixtures of the tests with other libraries."""

import sys
from pathlib import Path

# The helpers of tests/python and tests/support are used here, too.
for _folder in ("python", "support"):
    sys.path.insert(0, str(Path(__file__).parents[1] / _folder))

import torchvision_cpu  # noqa: E402, F401  before anything else imports torchvision
import frameworks  # noqa: E402
import helpers  # noqa: E402
import pytest  # noqa: E402
import torch_iterators  # noqa: E402, F401  ends iterators that tests leave behind


@pytest.fixture(scope="session")
def images(tmp_path_factory):
    """A folder of frameworks.N_IMAGES JPEGs in three classes."""
    root = tmp_path_factory.mktemp("images")
    for i in range(frameworks.N_IMAGES):
        helpers.save_jpeg(root / f"class{i % 3}" / f"{i:03}.jpg", 24 + i, 60 - i, seed=i)
    return root


@pytest.fixture
def train_set(images):
    return frameworks.train_set(images)


@pytest.fixture
def eval_set(images):
    return frameworks.eval_set(images)
