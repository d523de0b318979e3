"""feedmill, from the same dataset object as torch's DataLoader.

open_check() first compares every file of the folder under the job's own transform with torchvision
and Pillow, bit for bit, and raises at the first difference.
"""

from __future__ import annotations

import bench_torch
import feedmill
from torchvision_cpu import torchvision

from .job import Job
from .torch import pil_transform

VERSIONS = ("feedmill",)


def make_dataset(job: Job, kind: str, samples):
    """An ImageFolder over these samples."""
    transform = pil_transform(kind, job.size)
    dataset = torchvision.datasets.ImageFolder(job.folder, transform)
    dataset.samples = dataset.imgs = samples
    dataset.targets = [label for _, label in samples]
    return dataset


def make_loader(dataset, job: Job, shuffle: bool):
    return feedmill.DataLoader(
        dataset,
        batch_size=job.batch_size,
        shuffle=shuffle,
        num_workers=job.workers,
        native="require",
    )


def note(job: Job, variant: str) -> str:
    """The instructions that its kernels use."""
    loader = make_loader(make_dataset(job, "check", job.files()[:1]), job, shuffle=False)
    for _ in loader:
        pass
    return f"kernels: {loader.stats().cpu}"


def open_epochs(job: Job, variant: str):
    loader = make_loader(make_dataset(job, job.kind, job.samples()), job, shuffle=True)

    def epoch():
        for images, _ in loader:
            yield images
        if loader.stats().fallback_samples:
            raise RuntimeError("some samples went through Pillow: these would not be its own rates")

    return epoch


def open_check(job: Job, variant: str):
    files = job.files()
    dataset = make_dataset(job, job.kind, files)
    if job.kind == "train":
        bench_torch.check_pixels(dataset, len(files), job.workers)
    else:
        check_deterministic(dataset, job)
    loader = make_loader(make_dataset(job, "check", job.checked()), job, shuffle=False)
    return lambda: (images for images, _ in loader)


def check_deterministic(dataset, job: Job) -> None:
    """Every image against the dataset's own, for a transform that draws nothing."""
    position = 0
    for images, _ in make_loader(dataset, job, shuffle=False):
        for image in images:
            if not image.equal(dataset[position][0]):
                path = dataset.samples[position][0]
                raise RuntimeError(f"image {position} ({path}) differs from torchvision's")
            position += 1
