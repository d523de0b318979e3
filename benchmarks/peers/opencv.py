"""torch's DataLoader with OpenCV: imread, crop, resize (bilinear, not antialiased: OpenCV has no
antialiased bilinear), flip, normalize."""

from __future__ import annotations

import cv2
import numpy as np
import torch
from torchvision_cpu import torchvision

from .job import MEAN, STD, Job
from .torch import Files, image_loader

VERSIONS = ("opencv-python-headless",)
# Like torchvision, do not rotate images by their EXIF orientation.
FLAGS = cv2.IMREAD_COLOR | cv2.IMREAD_IGNORE_ORIENTATION
SCALE = (1 / (255 * np.array(STD))).astype(np.float32)
SHIFT = (-np.array(MEAN) / np.array(STD)).astype(np.float32)


def load(path: str) -> np.ndarray:
    """uint8, H x W x 3, RGB."""
    return cv2.cvtColor(cv2.imread(path, FLAGS), cv2.COLOR_BGR2RGB)


def finish(image: np.ndarray, size: int, flip: bool) -> torch.Tensor:
    """Resizes, flips and normalizes an image: float32, 3 x size x size."""
    image = cv2.resize(image, (size, size), interpolation=cv2.INTER_LINEAR)
    if flip:
        image = cv2.flip(image, 1)
    planes = np.empty((3, size, size), np.float32)
    for c in range(3):
        np.multiply(image[:, :, c], SCALE[c], out=planes[c], dtype=np.float32)
        planes[c] += SHIFT[c]
    return torch.from_numpy(planes)


class Train:
    """RandomResizedCrop with torchvision's draws, and a flip."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.draw = torchvision.transforms.RandomResizedCrop.get_params

    def __call__(self, image: np.ndarray) -> torch.Tensor:
        # get_params() only looks at the size; a tensor that shares the memory costs nothing.
        frame = torch.from_numpy(image).permute(2, 0, 1)
        top, left, height, width = self.draw(frame, (0.08, 1.0), (3 / 4, 4 / 3))
        crop = image[top : top + height, left : left + width]
        return finish(crop, self.size, bool(torch.rand(1) < 0.5))


class Whole:
    def __init__(self, size: int) -> None:
        self.size = size

    def __call__(self, image: np.ndarray) -> torch.Tensor:
        return finish(image, self.size, False)


def one_thread(_: int) -> None:
    cv2.setNumThreads(1)


def open_epochs(job: Job, variant: str):
    dataset = Files(job.samples(), load, Train(job.size))
    return image_loader(dataset, job, shuffle=True, worker_init_fn=one_thread)


def open_check(job: Job, variant: str):
    dataset = Files(job.checked(), load, Whole(job.size))
    return image_loader(dataset, job, shuffle=False, worker_init_fn=one_thread)
