"""torch's DataLoader on s3torchconnector's S3MapDataset; the variant is the number of workers."""

from __future__ import annotations

import dataclasses

import s3torchconnector

from . import objects
from .job import Job
from .torch import image_loader, pil_transform

VERSIONS = ("s3torchconnector", "torch", "pillow")


def make_loader(job: Job, variant: str, kind: str, samples, shuffle: bool):
    transform = pil_transform(kind, job.size)
    dataset = s3torchconnector.S3MapDataset.from_objects(
        [f"s3://{objects.BUCKET}/{objects.name_of(job, path)}" for path, _ in samples],
        region="us-east-1",
        endpoint=objects.endpoint(),
        transform=lambda reader: (transform(objects.load_rgb(reader.read())), 0),
        s3client_config=s3torchconnector.S3ClientConfig(force_path_style=True),
    )
    return image_loader(dataset, dataclasses.replace(job, workers=int(variant)), shuffle)


def open_epochs(job: Job, variant: str):
    return make_loader(job, variant, job.kind, job.samples(), True)


def open_check(job: Job, variant: str):
    return make_loader(job, variant, "check", job.checked(), False)
