"""SPDL: FFmpeg decodes, crops, resizes and flips in threads; torch normalizes each batch."""

from __future__ import annotations

import random

import spdl.io
import torch
from torchvision_cpu import torchvision
from spdl.pipeline import PipelineBuilder

from .job import MEAN, STD, Job

VERSIONS = ("spdl", "spdl-core", "spdl-io")
OFFSET = 255 * torch.tensor(MEAN).reshape(3, 1, 1)
SCALE = 255 * torch.tensor(STD).reshape(3, 1, 1)


class Decoder:
    """A path to a frame, size x size, RGB."""

    def __init__(self, size: int, train: bool) -> None:
        self.scale = f"scale={size}:{size}:flags=bilinear"
        self.train = train

    def crop(self, width: int, height: int) -> list[str]:
        # get_params() only looks at the size.
        frame = torch.empty(0, 1, 1).expand(0, height, width)
        draw = torchvision.transforms.RandomResizedCrop.get_params
        top, left, rows, columns = draw(frame, (0.08, 1.0), (3 / 4, 4 / 3))
        return [f"crop={columns}:{rows}:{left}:{top}"]

    def __call__(self, path: str):
        packets = spdl.io.demux_image(path)
        steps = self.crop(packets.width, packets.height) if self.train else []
        steps.append(self.scale)
        if self.train and random.random() < 0.5:
            steps.append("hflip")
        return spdl.io.decode_packets(packets, filter_desc=",".join([*steps, "format=rgb24"]))


def finish(frames) -> torch.Tensor:
    """Frames to a batch."""
    images = spdl.io.to_torch(spdl.io.convert_frames(frames)).permute(0, 3, 1, 2)
    batch = images.to(torch.float32, memory_format=torch.contiguous_format)
    return batch.sub_(OFFSET).div_(SCALE)


def iterate(paths: list[str], job: Job, decoder: Decoder, order: str):
    pipeline = (
        PipelineBuilder()
        .add_source(paths)
        .pipe(decoder, concurrency=job.workers, output_order=order)
        .aggregate(job.batch_size)
        .pipe(finish)
        .add_sink(2)
        .build(num_threads=job.workers, max_failures=0)
    )
    with pipeline.auto_stop():
        yield from pipeline.get_iterator()


def open_epochs(job: Job, variant: str):
    paths = [path for path, _ in job.samples()]

    def epoch():
        order = random.sample(paths, len(paths))
        return iterate(order, job, Decoder(job.size, train=True), "completion")

    return epoch


def open_check(job: Job, variant: str):
    paths = [path for path, _ in job.checked()]
    return lambda: iterate(paths, job, Decoder(job.size, train=False), "input")
