"""TurboLoader: JPEGs in a tar file, which is mapped into memory; it decodes only the crop."""

from __future__ import annotations

import itertools
import os
import tarfile
import time

import turboloader

from .job import Job

VERSIONS = ("turboloader",)


def write_tar(path, samples) -> None:
    with tarfile.open(path, "w") as tar:
        for i, (file, _) in enumerate(samples):
            tar.add(file, arcname=f"{i:06d}.jpg")


def tar_of(job: Job, samples) -> str:
    """A tar file of the samples, in order, repetitions included."""
    path = job.scratch_file("turboloader.tar", samples)
    if not path.exists():
        unfinished = path.with_suffix(".unfinished")
        write_tar(unfinished, samples)
        unfinished.rename(path)
    return str(path)


def prepare(job: Job, variant: str) -> dict:
    """Times the making of a tar file with each file of the folder once."""
    path = job.scratch_file("turboloader-timed.tar", job.files())
    start = time.perf_counter()
    write_tar(path, job.files())
    result = {"seconds": time.perf_counter() - start, "bytes": path.stat().st_size}
    path.unlink()
    return result


def make_loader(job: Job, samples, **options):
    # It has no setting for the number of threads: one per CPU that the process may use.
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: job.workers])
    return turboloader.DataLoader(
        tar_of(job, samples),
        batch_size=job.batch_size,
        image_size=job.size,
        output_format="pytorch",
        transform=turboloader.ImageNetNormalize(),
        antialias=True,
        **options,
    )


def open_epochs(job: Job, variant: str):
    loader = make_loader(job, job.samples(), shuffle=True, train_aug=True)
    numbers = itertools.count()

    def epoch():
        loader.set_epoch(next(numbers))
        for images, meta in loader:
            if meta.get("decode_failures"):
                raise RuntimeError("some images could not be decoded")
            yield images

    return epoch


def open_check(job: Job, variant: str):
    loader = make_loader(job, job.checked(), shuffle=False)
    return lambda: (images for images, _ in loader)
