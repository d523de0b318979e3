"""A training has the losses of the same training with torch's own DataLoader, to the last bit."""

import functools

import feedmill
import pytest
import torch
from test_rng_torch import few_cpus, losses, mixed  # noqa: F401  fixtures
from torch.utils.data import DataLoader
from torchvision import models
from torchvision import transforms as v1
from torchvision.datasets import ImageFolder


@pytest.fixture
def deterministic():
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


@pytest.mark.slow
@pytest.mark.parametrize("persistent", [False, True])
def test_losses_of_a_resnet_are_equal(mixed, deterministic, persistent):  # noqa: F811
    transform = v1.Compose([
        v1.RandomResizedCrop(32), v1.RandomHorizontalFlip(), v1.TrivialAugmentWide(),
        v1.ToTensor(), v1.Normalize([0.485, 0.456, 0.406], [0.229, 0.224, 0.225]),
        v1.RandomErasing(0.3),
    ])
    dataset = ImageFolder(mixed, transform)
    options = {
        "make_model": functools.partial(models.resnet18, num_classes=2), "batch_size": 6,
        "drop_last": True, "persistent_workers": persistent,
    }
    wanted = losses(DataLoader, dataset, **options)
    assert len(wanted) == 8
    assert losses(DataLoader, dataset, **options) == wanted
    assert losses(feedmill.DataLoader, dataset, native="require", **options) == wanted
    assert losses(feedmill.DataLoader, dataset, native="require", seed=1, **options) != wanted
