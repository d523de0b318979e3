"""feedmill, from the same dataset object as torch's DataLoader, or from a pack of it ("pack").

open_check() first compares every file of the folder under the job's own transform with torchvision
and Pillow, bit for bit, and raises at the first difference. The variant "scaled" has other pixels
by intent, and is only compared as the other loaders are. "first": each epoch is a new loader's
first one, which has no seek points of images yet, with the time to open it.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time

import bench_torch
import feedmill
from torchvision_cpu import torchvision
from feedmill.planner.files import load_rgb
from torch.utils.data import Subset

from .job import Job
from .torch import pil_transform

VERSIONS = ("feedmill",)


def pack(job: Job):
    """The folder as a pack: its path, and the time and space it took."""
    path = job.scratch_file("pack", job.files())
    notes = path.with_suffix(".json")
    if not notes.exists():
        start = time.perf_counter()
        command = [sys.executable, "-m", "feedmill", "pack", job.folder, str(path)]
        subprocess.run([*command, "--workers", str(job.workers)], check=True, stdout=sys.stderr)
        seconds = time.perf_counter() - start
        n_bytes = sum(file.stat().st_size for file in path.iterdir())
        notes.write_text(json.dumps({"seconds": seconds, "bytes": n_bytes}))
    return path, json.loads(notes.read_text())


def prepare(job: Job, variant: str) -> dict | None:
    return pack(job)[1] if variant == "pack" else None


def make_dataset(job: Job, variant: str, kind: str, samples):
    """An ImageFolder of these samples, or the same number of samples of a pack."""
    transform = pil_transform(kind, job.size)
    if variant == "pack":
        numbers = {path: number for number, (path, _) in enumerate(job.files())}
        dataset = feedmill.Pack(pack(job)[0], transform)
        return Subset(dataset, [numbers[path] for path, _ in samples])
    dataset = torchvision.datasets.ImageFolder(job.folder, transform)
    dataset.samples = dataset.imgs = samples
    dataset.targets = [label for _, label in samples]
    return dataset


def make_loader(dataset, job: Job, variant: str, shuffle: bool):
    return feedmill.DataLoader(
        dataset,
        batch_size=job.batch_size,
        shuffle=shuffle,
        num_workers=job.workers,
        native="require",
        decode="scaled" if variant == "scaled" else "exact",
    )


def note(job: Job, variant: str) -> str:
    """The SIMD tier that its kernels use."""
    loader = make_loader(make_dataset(job, variant, "check", job.files()[:1]), job, variant, False)
    for _ in loader:
        pass
    return f"kernels: {loader.stats().decode.simd}"


def open_epochs(job: Job, variant: str):
    dataset = make_dataset(job, variant, job.kind, job.samples())
    kept = make_loader(dataset, job, variant, True)

    def epoch():
        loader = make_loader(dataset, job, variant, True) if variant == "first" else kept
        for images, _ in loader:
            yield images
        if loader.stats().decode.fallback_samples:
            raise RuntimeError("some samples went through Pillow: these would not be its own rates")

    return epoch


def open_check(job: Job, variant: str):
    files = job.files()
    dataset = make_dataset(job, variant, job.kind, files)
    if variant == "pack":
        check_pack(dataset, job)
    elif variant == "scaled":
        pass
    elif job.kind == "train":
        bench_torch.check_pixels(dataset, len(files), job.workers)
    else:
        check_deterministic(dataset, job)
    loader = make_loader(make_dataset(job, variant, "check", job.checked()), job, variant, False)
    if variant != "first":
        for _ in loader:  # what is compared is a later epoch, with seek points
            pass
    return lambda: (images for images, _ in loader)


def check_pack(dataset, job: Job) -> None:
    """Compares each image of the pack with its source, and the job's result with its own."""
    for number, (path, _) in enumerate(job.files()):
        image = load_rgb(dataset.dataset.encoded(number))
        wanted = torchvision.datasets.folder.pil_loader(path)
        if image.tobytes() != wanted.tobytes():
            raise RuntimeError(f"image {number} of the pack differs from {path}")
    for _ in feedmill.DataLoader(dataset, job.batch_size, native="verify"):
        pass


def check_deterministic(dataset, job: Job) -> None:
    """Compares each image with the dataset's own, for a transform without random draws."""
    position = 0
    for images, _ in make_loader(dataset, job, "-", False):
        for image in images:
            if not image.equal(dataset[position][0]):
                path = dataset.samples[position][0]
                raise RuntimeError(f"image {position} ({path}) differs from torchvision's")
            position += 1
