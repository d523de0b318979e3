"""Imports torchvision, also where its wheel does not match a CPU build of torch.

torchvision's wheels are built against CUDA builds of torch. With a CPU build the import fails at
the registration of two detection operators that nothing here uses; declaring them first is enough
for its transforms and datasets.
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
