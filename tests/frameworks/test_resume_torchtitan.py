"""Stopping and going on as torchtitan and torchft use torchdata's StatefulDataLoader: torchtitan's
ParallelAwareDataloader over feedmill's class, saved by torch.distributed.checkpoint, and torchft's
DistributedSampler."""

import json
import os
import warnings

import feedmill
import frameworks
import killed
import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch.utils.data import DistributedSampler

N_EPOCHS = 2
KINDS = ("torchtitan", "torchft")


def torchtitans_loader(dataset, sampler, **options):
    """torchtitan's own class, whose base it imports from torchdata."""
    import torchdata.stateful_dataloader as torchdata

    theirs, torchdata.StatefulDataLoader = torchdata.StatefulDataLoader, feedmill.DataLoader
    try:
        from torchtitan.components.dataloader import ParallelAwareDataloader
    finally:
        torchdata.StatefulDataLoader = theirs
    assert issubclass(ParallelAwareDataloader, feedmill.DataLoader)
    return ParallelAwareDataloader(
        dataset, dp_rank=1, dp_world_size=2, sampler=sampler, **options
    )


class Record:
    """The samples so far, as a part of a checkpoint."""

    def __init__(self):
        self.done = []

    def state_dict(self):
        return {"done": json.dumps(self.done)}

    def load_state_dict(self, state_dict):
        self.done = json.loads(state_dict["done"])


def train(folder, options, step):
    warnings.simplefilter("ignore")
    kind = options.pop("kind")
    dataset = frameworks.train_set(options.pop("images"))
    arguments = {**frameworks.OPTIONS, "batch_size": 4, **options}
    if kind == "torchft":
        from torchft.data import DistributedSampler as TorchftsSampler

        sampler = TorchftsSampler(
            dataset, replica_rank=1, num_replica_groups=2, group_rank=0, num_replicas=1, seed=5
        )
        loader = feedmill.DataLoader(dataset, sampler=sampler, **arguments)
    else:
        sampler = DistributedSampler(dataset, 2, 1, seed=5)
        loader = torchtitans_loader(dataset, sampler, **arguments)
    record, latest = Record(), folder / "latest"
    n_epoch = frameworks.N_IMAGES // 2
    if latest.exists() and kind == "torchtitan":
        # Its loader's part is bytes under one key; the epoch's number is known from the record.
        dcp.load({"loader": loader, "record": record}, checkpoint_id=latest.resolve())
    elif latest.exists():
        saved = torch.load(latest, weights_only=True)
        loader.load_state_dict(saved["loader"])
        record.load_state_dict(saved["record"])
    while len(record.done) < N_EPOCHS * n_epoch:
        sampler.set_epoch(len(record.done) // n_epoch)
        for images, targets in loader:
            record.done += killed.sample_keys(images, targets)
            new = folder / f"{len(record.done)}-{os.getpid()}"
            if kind == "torchtitan":
                dcp.save({"loader": loader, "record": record}, checkpoint_id=new)
            else:
                torch.save({"loader": loader.state_dict(), "record": record.state_dict()}, new)
            with killed.replacing(latest) as link:
                link.symlink_to(new)
            step()
    return record.done


@pytest.mark.parametrize("kind", KINDS)
def test_a_killed_training(images, tmp_path, kind):
    frameworks.need(kind)
    if kind == "torchtitan":
        frameworks.need("torchtitan.components.dataloader")

    def options(run):
        return {"kind": kind, "images": str(images), "threads": 1 + run % 4,
                "reader": ["auto", "pread"][run % 2], "num_workers": run % 3}

    whole = killed.check(__name__, tmp_path, 6, options)
    assert len(whole) == N_EPOCHS * frameworks.N_IMAGES // 2
