"""Imports torchvision, even if its wheel does not match a CPU build of torch.

torchvision's wheels are built for CUDA builds of torch. With a CPU build, the import fails when two
detection operators are registered, which nothing here uses. If these are declared first, its
transforms and datasets work.
"""

import torch

try:
    import torchvision
except RuntimeError as error:
    if "nms" not in str(error):
        raise
    _library = torch.library.Library("torchvision", "DEF")
    for _name in ("nms", "qnms"):
        try:
            _library.define(f"{_name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        except RuntimeError:
            pass
    import torchvision

import torchvision.datasets
import torchvision.transforms

__all__ = ["torchvision"]
