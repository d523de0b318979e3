"""feedmill as a data loader of dlio_benchmark, and DLIO's own loader with its waits measured.

With this folder in PYTHONPATH, feedmill reads and decodes the files of any workload of format jpeg:

    dlio_benchmark --config-dir benchmarks/dlio workload=resnet50_jpeg \\
        ++workload.reader.data_loader_classname=feedmill_loader.Crops224 \\
        ++workload.reader.data_loader_sampler=index

Each rank writes RANK_feedmill.json to DLIO's output folder: lists with the data wait, the time
inside next() and the duration of each step, in nanoseconds. They leave out the first step of each
epoch, as DLIO does.
"""

from __future__ import annotations

import json
import math
import pathlib
from collections.abc import Iterator
from typing import Any

import feedmill
import torch
from torchvision_cpu import torchvision  # of tests/support; without it: import torchvision
from dlio_benchmark.common.enumerations import DataLoaderType, DatasetType
from dlio_benchmark.data_loader.base_data_loader import BaseDataLoader
from dlio_benchmark.data_loader.torch_data_loader import TorchDataLoader
from dlio_benchmark.reader.image_reader import ImageReader
from feedmill.data import ImageList

T = torchvision.transforms


def write_steps(loader: Any, dlio_args: Any) -> None:
    """Writes the waits and durations of the steady steps of a feedmill.DataLoader or watch()."""
    steps = loader.stats().steps_of("steady")
    values = {
        "data_wait_ns": steps["data_wait_ns"].tolist(),
        "host_wait_ns": steps["host_wait_ns"].tolist(),
        "step_ns": (steps["host_wait_ns"] + steps["compute_ns"]).tolist(),
    }
    path = pathlib.Path(dlio_args.output_folder, f"{dlio_args.my_rank}_feedmill.json")
    path.write_text(json.dumps(values))


class Feedmill(BaseDataLoader):
    """Batches of uint8 tensors and indices, in the order of DLIO's torch loader."""

    transform: Any

    def __init__(self, format_type: Any, dataset_type: Any, epoch_number: int) -> None:
        super().__init__(format_type, dataset_type, epoch_number, DataLoaderType.PYTORCH)

    def read(self) -> None:
        """Makes the loader, once for all epochs."""
        args = self._args
        is_train = self.dataset_type is DatasetType.TRAIN
        files = args.train_global_index_map if is_train else args.val_global_index_map
        n_own = math.ceil(self.num_samples / args.comm_size)
        own = range(args.my_rank * n_own, min((args.my_rank + 1) * n_own, self.num_samples))
        n_workers = max(1, args.read_threads)
        self.loader = feedmill.DataLoader(
            ImageList([files[index][0] for index in own], transform=self.transform),
            batch_size=self.batch_size,
            num_workers=n_workers,
            drop_last=True,
            prefetch_factor=math.ceil(args.prefetch_size / n_workers) or 2,  # as DLIO has it
            seed=args.seed,
            native="require",
        )

    def next(self) -> Iterator[list[torch.Tensor]]:
        yield from self.loader

    def finalize(self) -> None:
        if self.dataset_type is DatasetType.TRAIN:
            write_steps(self.loader, self._args)


class Crops224(Feedmill):
    """The training transform of ResNet-50. Decodes what the crops need."""

    transform = T.Compose(
        [T.RandomResizedCrop(224), T.RandomHorizontalFlip(), T.PILToTensor()]
    )


class Whole224(Feedmill):
    """Decodes each image in full, as DLIO's torch loader does, and resizes it to 224x224."""

    transform = T.Compose([T.Resize((224, 224)), T.PILToTensor()])


class Whole800(Feedmill):
    """Decodes each image in full and resizes it to 800x800, as MLPerf's RetinaNet does."""

    transform = T.Compose([T.Resize((800, 800)), T.PILToTensor()])


class WatchedTorch(TorchDataLoader):
    """DLIO's torch loader, whose waits feedmill.watch() measures."""

    def read(self) -> None:
        super().read()
        self._dataset = feedmill.watch(self._dataset)

    def finalize(self) -> None:
        super().finalize()
        if self.dataset_type is DatasetType.TRAIN:
            write_steps(self._dataset, self._args)


class ShortText(dict):
    """A dict that is cheap to print."""

    __repr__ = object.__repr__


class Reader(ImageReader):
    """DLIO's reader of images, without one of its costs: for each sample, that one formats the list
    of all files for a debug message, whatever the log level. This can take longer than decoding."""

    def __init__(self, dataset_type: Any, thread_index: int, epoch: int) -> None:
        super().__init__(dataset_type, thread_index, epoch)
        self.global_index_map = ShortText(self.global_index_map)
