"""NVIDIA DALI on the CPU: "crop" decodes only the random crop, "full" the whole image."""

from __future__ import annotations

from nvidia.dali import fn, pipeline_def, types
from nvidia.dali.plugin.pytorch import DALIClassificationIterator, LastBatchPolicy

from .job import MEAN, STD, Job

VERSIONS = ("nvidia-dali-cuda130",)
AREA, ASPECT = (0.08, 1.0), (3 / 4, 4 / 3)


@pipeline_def
def train(samples, size: int, variant: str):
    files, labels = read(samples, shuffle=True)
    resize = dict(size=(size, size), interp_type=types.INTERP_LINEAR, antialias=True)
    if variant == "crop":
        images = fn.decoders.image_random_crop(
            files, random_area=AREA, random_aspect_ratio=ASPECT, output_type=types.RGB
        )
        images = fn.resize(images, **resize)
    else:
        images = fn.decoders.image(files, output_type=types.RGB)
        images = fn.random_resized_crop(
            images, random_area=AREA, random_aspect_ratio=ASPECT, **resize
        )
    return finish(images, mirror=fn.random.coin_flip()), labels


@pipeline_def
def whole(samples, size: int, variant: str):
    files, labels = read(samples, shuffle=False)
    if variant == "crop":
        images = fn.decoders.image_slice(
            files, [0.0, 0.0], [1.0, 1.0], axis_names="WH", output_type=types.RGB
        )
    else:
        images = fn.decoders.image(files, output_type=types.RGB)
    images = fn.resize(
        images, size=(size, size), interp_type=types.INTERP_LINEAR, antialias=True
    )
    return finish(images, mirror=0), labels


def read(samples, shuffle: bool):
    paths, labels = zip(*samples)
    return fn.readers.file(
        files=list(paths), labels=list(labels), shuffle_after_epoch=shuffle, name="files"
    )


def finish(images, mirror):
    return fn.crop_mirror_normalize(
        images,
        mirror=mirror,
        dtype=types.FLOAT,
        output_layout="CHW",
        mean=[255 * m for m in MEAN],
        std=[255 * s for s in STD],
    )


def iterate(make_pipeline, samples, job: Job, variant: str):
    pipeline = make_pipeline(
        samples, job.size, variant,
        batch_size=job.batch_size, num_threads=job.workers, device_id=None, seed=1,
    )
    loader = DALIClassificationIterator(
        pipeline, reader_name="files", auto_reset=True, last_batch_policy=LastBatchPolicy.PARTIAL
    )
    return lambda: (batch[0]["data"] for batch in loader)


def open_epochs(job: Job, variant: str):
    return iterate(train, job.samples(), job, variant)


def open_check(job: Job, variant: str):
    return iterate(whole, job.checked(), job, variant)
