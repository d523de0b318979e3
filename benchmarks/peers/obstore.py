"""torch's DataLoader on a dataset that reads by obstore; the variant is the number of workers."""

from __future__ import annotations

import dataclasses

import obstore
from obstore.store import S3Store

from . import objects
from .job import Job
from .torch import image_loader

VERSIONS = ("obstore", "torch", "pillow")


class Reader:
    """Reads keys; opens its store in the process that reads."""

    def __init__(self) -> None:
        self.store = None

    def __call__(self, key: str) -> bytes:
        if self.store is None:
            self.store = S3Store(objects.BUCKET, endpoint=objects.endpoint(), region="us-east-1",
                                 virtual_hosted_style_request=False,
                                 client_options={"allow_http": True})
        return bytes(obstore.get(self.store, key).bytes())


def make_loader(job: Job, variant: str, kind: str, samples, shuffle: bool):
    dataset = objects.Keys(job, kind, samples, Reader())
    return image_loader(dataset, dataclasses.replace(job, workers=int(variant)), shuffle)


def open_epochs(job: Job, variant: str):
    return make_loader(job, variant, job.kind, job.samples(), True)


def open_check(job: Job, variant: str):
    return make_loader(job, variant, "check", job.checked(), False)
