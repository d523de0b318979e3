"""Trains with DistributedDataParallel in the processes of torchrun; one rank is slower.

    torchrun slow_rank.py FOLDER SLOW_FOLDER WHAT RANK OUT

WHAT: "storage" (RANK reads from SLOW_FOLDER), "decode" (so does it, where the images are larger) or
"loop" (RANK sleeps before it exchanges gradients). Writes OUT/run.RANK.jsonl and, by each rank, the
report on all of them to OUT/report.RANK.
"""

import faulthandler
import sys
import time
from datetime import timedelta
from pathlib import Path

import conftest  # noqa: F401  a torchvision that can be imported
import feedmill
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DistributedSampler
from torchvision import transforms
from torchvision.datasets import ImageFolder

LOOP_S = 0.4
STUCK_S = 240


def main():
    folder, slow_folder, what, slow_rank, out = sys.argv[1:]
    # A rank that waits for ever says where.
    faulthandler.dump_traceback_later(2 * STUCK_S, exit=True)
    dist.init_process_group("gloo", timeout=timedelta(seconds=STUCK_S))
    rank = dist.get_rank()
    is_slow = rank == int(slow_rank)
    dataset = ImageFolder(
        slow_folder if is_slow else folder,
        transforms.Compose([transforms.Resize((8, 8)), transforms.ToTensor()]),
    )
    loader = feedmill.DataLoader(
        dataset, batch_size=2, num_workers=1, sampler=DistributedSampler(dataset),
        native="require", log=Path(out) / "run.{rank}.jsonl",
    )
    model = DistributedDataParallel(nn.Sequential(nn.Flatten(), nn.Linear(3 * 8 * 8, 2)))
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    for epoch in range(2):
        loader.sampler.set_epoch(epoch)
        for images, targets in loader:
            loss = nn.functional.cross_entropy(model(images), targets)
            if is_slow and what == "loop":
                time.sleep(LOOP_S)
            with feedmill.collective():
                loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    Path(out, f"report.{rank}").write_text(loader.report(all_ranks=True))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
