"""torch's DataLoader on LitData's StreamingRawDataset, which reads the objects of a batch at once;
the variant is the number of workers."""

from __future__ import annotations

import dataclasses

from litdata import StreamingRawDataset
from litdata.streaming import downloader
from torch.utils.data import Subset

from . import objects
from .job import Job
from .torch import image_loader, pil_transform

VERSIONS = ("litdata", "torch", "pillow")
# It reads by https alone, and has no setting for that.
downloader._OBSTORE_CLIENT_OPTIONS["allow_http"] = True


def make_loader(job: Job, variant: str, kind: str, samples, shuffle: bool):
    transform = pil_transform(kind, job.size)
    dataset = StreamingRawDataset(
        f"s3://{objects.BUCKET}/images/",
        cache_dir=str(job.scratch_file("litdata", job.files())),
        storage_options={"endpoint_url": objects.endpoint()},
        recompute_index=True,
        transform=lambda data: (transform(objects.load_rgb(data)), 0),
    )
    prefix = f"s3://{objects.BUCKET}/"
    numbers = {file.path.removeprefix(prefix): i for i, file in enumerate(dataset.files)}
    chosen = Subset(dataset, [numbers[objects.name_of(job, path)] for path, _ in samples])
    return image_loader(chosen, dataclasses.replace(job, workers=int(variant)), shuffle)


def open_epochs(job: Job, variant: str):
    return make_loader(job, variant, job.kind, job.samples(), True)


def open_check(job: Job, variant: str):
    return make_loader(job, variant, "check", job.checked(), False)
