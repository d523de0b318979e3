"""feedmill, from objects of the bucket that bench_remote.py serves ("images", "pack"), or from the
same files on this machine ("files", "local-pack"); and what the other loaders of objects share.

The bucket holds the folder of the job below images/, its pack below pack/ and tar files below
tars/. AWS_ENDPOINT_URL says where it is served.
"""

from __future__ import annotations

import io
import os
import pathlib

import feedmill
from feedmill.data import ImageList
from PIL import Image
from torch.utils.data import Subset

from . import feedmill as local
from .job import Job
from .torch import pil_transform

VERSIONS = ("feedmill",)
BUCKET = "bench"


def name_of(job: Job, path: str) -> str:
    """The key of a file of the job's folder."""
    return f"images/{pathlib.Path(path).relative_to(job.folder).as_posix()}"


def endpoint() -> str:
    return os.environ["AWS_ENDPOINT_URL"]


def load_rgb(data: bytes) -> Image.Image:
    """The image as torchvision's ImageFolder loads it."""
    return Image.open(io.BytesIO(data)).convert("RGB")


class Keys:
    """A map-style dataset over keys that are read by ``read(key)``, bytes, in torch's workers."""

    def __init__(self, job: Job, kind: str, samples: list[tuple[str, int]], read) -> None:
        self.samples = [(name_of(job, path), label) for path, label in samples]
        self.transform = pil_transform(kind, job.size)
        self.read = read

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int):
        key, label = self.samples[index]
        return self.transform(load_rgb(self.read(key))), label


def make_dataset(job: Job, variant: str, kind: str, samples):
    if variant.endswith("pack"):
        folder = local.pack(job)[0] if variant == "local-pack" else f"s3://{BUCKET}/pack/"
        dataset = feedmill.Pack(folder, pil_transform(kind, job.size))
        numbers = {path: number for number, (path, _) in enumerate(job.files())}
        return Subset(dataset, [numbers[path] for path, _ in samples])
    paths = [path for path, _ in samples]
    if variant == "images":
        paths = [f"s3://{BUCKET}/{name_of(job, path)}" for path in paths]
    return ImageList(paths, [label for _, label in samples],
                              pil_transform(kind, job.size))


def open_epochs(job: Job, variant: str):
    loader = local.make_loader(make_dataset(job, variant, job.kind, job.samples()), job, variant,
                               shuffle=True)
    return lambda: (images for images, _ in loader)


def open_check(job: Job, variant: str):
    dataset = make_dataset(job, variant, "check", job.checked())
    loader = local.make_loader(dataset, job, variant, shuffle=False)
    return lambda: (images for images, _ in loader)
