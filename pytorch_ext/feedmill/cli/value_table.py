"""The values that `feedmill bench`, `check` and `sweep` normalize pixels to."""

from __future__ import annotations

import numpy as np
import torch

from feedmill.planner.formats import INTEGERS, TORCH_DTYPES

_MEAN, _STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def imagenet_value_table(dtype: str) -> np.ndarray | None:
    """The output value of each pixel value: what ToTensor and Normalize with ImageNet's mean and
    standard deviation give, computed in torchvision's float32 steps and then converted to dtype.

    Returns:
        (3 channels, 256) values as integers of their bits; None for "uint8", which is not
        normalized.
    """
    if dtype == "uint8":
        return None
    values = torch.arange(256, dtype=torch.float32) / 255
    mean, std = (torch.tensor(numbers)[:, None] for numbers in (_MEAN, _STD))
    given = ((values - mean) / std).to(TORCH_DTYPES[dtype])
    return given.view(INTEGERS[given.itemsize]).numpy()
