"""FFCV, whose data is converted first: "jpeg" (encoded again by OpenCV, 4:2:0, quality 90) and
"raw" (pixels, the longer side at most 400, area-averaged)."""

from __future__ import annotations

import json
import time

import numpy as np
import torch
from torchvision_cpu import torchvision
from ffcv.fields import IntField, RGBImageField
from ffcv.fields.rgb_image import RandomResizedCropRGBImageDecoder, ResizedCropRGBImageDecoder
from ffcv.loader import Loader, OrderOption
from ffcv.transforms import NormalizeImage, RandomHorizontalFlip, ToTensor, ToTorchImage
from ffcv.writer import DatasetWriter

from .job import MEAN, STD, Job

VERSIONS = ("ffcv", "numba", "opencv-python-headless")
RAW_SIDE = 400
# Each prefetched batch has memory for batch_size images of the largest size.
AHEAD_BYTES = 2 << 30


class Photos(torch.utils.data.Dataset):
    def __init__(self, samples) -> None:
        self.samples = samples

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int):
        path, label = self.samples[index]
        return torchvision.datasets.folder.pil_loader(path), label


def convert(job: Job, variant: str, samples):
    """Converts the samples to FFCV's format. Returns the file and how long its making took."""
    path = job.scratch_file(f"ffcv-{variant}.beton", samples)
    notes = path.with_suffix(".json")
    if not notes.exists():
        mode = dict(jpeg=("jpg", None), raw=("raw", RAW_SIDE))[variant]
        start = time.perf_counter()
        field = RGBImageField(write_mode=mode[0], max_resolution=mode[1], jpeg_quality=90)
        writer = DatasetWriter(
            str(path), {"image": field, "label": IntField()}, num_workers=job.workers
        )
        writer.from_indexed_dataset(Photos(samples))
        result = {"seconds": time.perf_counter() - start, "bytes": path.stat().st_size}
        notes.write_text(json.dumps(result))
    return path, json.loads(notes.read_text())


def prepare(job: Job, variant: str) -> dict:
    return convert(job, variant, job.files())[1]


def whole_image(height, width, scale, ratio):
    return 0, 0, height, width


class WholeDecoder(ResizedCropRGBImageDecoder):
    """The whole image, resized. `scale` and `ratio` are what its base class passes on."""

    scale, ratio = None, 1.0

    @property
    def get_crop_generator(self):
        return whole_image


def make_loader(job: Job, variant: str, samples, decoder, order, indices):
    path, _ = convert(job, variant, samples)
    mean, std = (np.array([255 * v for v in values]) for values in (MEAN, STD))
    flip = [RandomHorizontalFlip()] if order == OrderOption.RANDOM else []
    image = [
        decoder,
        *flip,
        NormalizeImage(mean, std, np.float32),
        ToTensor(),
        ToTorchImage(channels_last=False),
    ]
    loader = Loader(
        str(path),
        batch_size=job.batch_size,
        num_workers=job.workers,
        order=order,
        indices=indices,
        os_cache=True,
        drop_last=False,
        pipelines={"image": image, "label": None},
        batches_ahead=3,
    )
    largest = int(loader.reader.metadata["f0"]["width"].max()) * int(
        loader.reader.metadata["f0"]["height"].max()
    )
    if 3 * largest * job.batch_size * loader.batches_ahead > AHEAD_BYTES:
        loader.batches_ahead = 1
    return lambda: (batch[0] for batch in loader)


def open_epochs(job: Job, variant: str):
    files = job.files()
    decoder = RandomResizedCropRGBImageDecoder((job.size, job.size))
    indices = np.arange(job.n_samples) % len(files)
    return make_loader(job, variant, files, decoder, OrderOption.RANDOM, indices)


def open_check(job: Job, variant: str):
    samples = job.checked()
    decoder = WholeDecoder((job.size, job.size))
    indices = np.arange(len(samples))
    return make_loader(job, variant, samples, decoder, OrderOption.SEQUENTIAL, indices)
