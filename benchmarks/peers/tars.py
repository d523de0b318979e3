"""The tar files that bench_remote.py serves."""

from __future__ import annotations

import pathlib
import tarfile

from .job import Job

N_TARS = 16


def make_tars(job: Job, folder: pathlib.Path) -> None:
    """Writes the job's images to tar files, and those that are compared to one of their own."""
    parts = {f"train-{i:02}.tar": job.files()[i::N_TARS] for i in range(N_TARS)}
    for name, samples in {**parts, "check.tar": job.checked()}.items():
        with tarfile.open(folder / name, "w") as tar:
            for number, (path, _) in enumerate(samples):
                tar.add(path, f"{number:06}.jpg")
