"""Crops to less than the image's size before augmentations, of images in memory."""

import feedmill
import pytest
from helpers import cifar_in_memory
from torchvision import transforms as v1

JITTER = v1.ColorJitter(0.4, 0.4, 0.4, 0.1)
PIPELINES = {
    "crop": [v1.RandomCrop(28), JITTER],
    "center": [v1.CenterCrop(9), v1.RandAugment()],
    "padding": [v1.RandomCrop(32, padding=4), v1.RandAugment()],
    "padded crop": [v1.RandomCrop(24, padding=4), v1.RandomHorizontalFlip(), JITTER],
    "pad": [v1.Pad(5), v1.RandomCrop(30), v1.TrivialAugmentWide()],
    "two crops": [v1.RandomCrop(28), v1.RandomHorizontalFlip(), v1.CenterCrop(20), JITTER],
    "late resize": [v1.RandomCrop(28), JITTER, v1.Resize((16, 24))],
    "resize": [v1.RandomResizedCrop(12), JITTER],
}


@pytest.mark.parametrize("name", PIPELINES)
def test_crops_before_augmentations(name):
    cifar = cifar_in_memory(20)
    cifar.transform = v1.Compose([*PIPELINES[name], v1.ToTensor()])
    loader = feedmill.DataLoader(cifar, batch_size=6, native="verify", num_workers=2)
    list(loader)
    assert loader.stats().decode.verified_samples == len(cifar)
