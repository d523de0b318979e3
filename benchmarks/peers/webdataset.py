"""The webdataset package, from tar objects that curl reads, in torch's DataLoader; the variant is
the number of workers. Each worker draws whole tar files and shuffles 1,000 samples of them, so its
order is less random than that of the other loaders."""

from __future__ import annotations

import torch
import webdataset
from torch.utils.data import DataLoader

from . import objects
from .job import Job
from .tars import N_TARS
from .torch import pil_transform

VERSIONS = ("webdataset", "torch", "pillow")
SHUFFLED_SAMPLES = 1000


def make_loader(job: Job, variant: str, kind: str, n_samples: int, shuffle: bool):
    names = [f"train-{i:02}.tar" for i in range(N_TARS)] if shuffle else ["check.tar"]
    urls = [f"pipe:curl -sf {objects.endpoint()}/{objects.BUCKET}/tars/{name}" for name in names]
    workers = int(variant) if shuffle else 1
    transform = pil_transform(kind, job.size)
    dataset = webdataset.WebDataset(urls, resampled=shuffle, shardshuffle=False)
    if shuffle:
        dataset = dataset.shuffle(SHUFFLED_SAMPLES, initial=200)
    dataset = dataset.map(lambda sample: transform(objects.load_rgb(sample["jpg"])))
    dataset = dataset.batched(job.batch_size, collation_fn=torch.stack)
    n_batches = -(-n_samples // job.batch_size)
    if shuffle:
        dataset = dataset.with_epoch(-(-n_batches // workers))
    loader = DataLoader(dataset, batch_size=None, num_workers=workers, persistent_workers=True)

    def epoch():
        for number, images in enumerate(loader):
            if number < n_batches:
                yield images

    return epoch


def open_epochs(job: Job, variant: str):
    return make_loader(job, variant, job.kind, job.n_samples, True)


def open_check(job: Job, variant: str):
    return make_loader(job, variant, "check", len(job.checked()), False)
