"""Trains under torchrun and goes on where it stopped: after a crash, or with other processes.

    export TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1  # a new store for each attempt
    torchrun --nproc-per-node 4 --max-restarts 3 elastic_training.py /data/imagenet/train
    torchrun --nproc-per-node 2 elastic_training.py /data/imagenet/train     # goes on with two

A checkpoint inside an epoch holds the loader's state. torchrun starts all processes again when one
of them dies, and they go on from the latest checkpoint. With --uneven no sample is padded or
dropped: processes whose samples are used up wait for the others (torch's Join).
"""

import argparse
import contextlib
import os

import torch
import torch.distributed as dist
from feedmill import DataLoader
from torch import nn
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DistributedSampler
from torchvision import datasets, models, transforms


def parse_arguments():
    parser = argparse.ArgumentParser(description="training that may stop at any step")
    parser.add_argument("data", help="folder with one folder of JPEGs per class")
    parser.add_argument("--arch", default="resnet18", help="name of a model in torchvision.models")
    parser.add_argument("--epochs", type=int, default=90)
    parser.add_argument("--batch-size", type=int, default=256, help="of all processes together")
    parser.add_argument("--size", type=int, default=224, help="height and width of the images")
    parser.add_argument("--workers", type=int, default=4, help="num_workers of each loader")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--every", type=int, default=100, help="steps between two checkpoints")
    parser.add_argument("--stop-after", type=int, help="number of steps after which to stop")
    parser.add_argument("--checkpoint", default="checkpoint.pt", help="is resumed if it exists")
    parser.add_argument("--uneven", action="store_true", help="neither pad nor drop samples")
    return parser.parse_args()


class EveryNth(torch.utils.data.Sampler):
    """As DistributedSampler, but without padding: the first processes may have a sample more."""

    def __init__(self, n_samples, seed):
        self.n_samples, self.seed, self.epoch = n_samples, seed, 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __iter__(self):
        generator = torch.Generator().manual_seed(self.seed + self.epoch)
        order = torch.randperm(self.n_samples, generator=generator).tolist()
        return iter(order[dist.get_rank() :: dist.get_world_size()])

    def __len__(self):
        return len(range(dist.get_rank(), self.n_samples, dist.get_world_size()))


def main():
    args = parse_arguments()
    use_cuda = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if use_cuda else "cpu"
    if use_cuda:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if use_cuda else "gloo")
    torch.manual_seed(args.seed)

    transform = transforms.Compose([
        transforms.RandomResizedCrop(args.size),
        transforms.RandomHorizontalFlip(),
        transforms.ToTensor(),
        transforms.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
    ])
    dataset = datasets.ImageFolder(args.data, transform)
    if args.uneven:
        sampler = EveryNth(len(dataset), args.seed)
    else:
        sampler = DistributedSampler(dataset, seed=args.seed)
    loader = DataLoader(
        dataset, batch_size=args.batch_size // dist.get_world_size(), sampler=sampler,
        num_workers=args.workers, pin_memory=use_cuda, seed=args.seed,
    )
    model = models.__dict__[args.arch](num_classes=len(dataset.classes)).to(device)
    model = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    first_epoch, n_steps = 0, 0
    if os.path.exists(args.checkpoint):
        checkpoint = torch.load(args.checkpoint, map_location=device, weights_only=True)
        model.load_state_dict(checkpoint["model"])
        optimizer.load_state_dict(checkpoint["optimizer"])
        # With DistributedSampler any process's state serves all of them, whatever their number.
        states = checkpoint["loaders"]
        loader.load_state_dict(states[dist.get_rank() if args.uneven else 0])
        first_epoch, n_steps = checkpoint["epoch"], checkpoint["n_steps"]

    def save(epoch):
        states = [None] * dist.get_world_size()
        dist.all_gather_object(states, loader.state_dict())
        if dist.get_rank() == 0:
            torch.save({
                "model": model.state_dict(), "optimizer": optimizer.state_dict(),
                "loaders": states, "epoch": epoch, "n_steps": n_steps,
            }, args.checkpoint + ".new")
            os.replace(args.checkpoint + ".new", args.checkpoint)

    for epoch in range(first_epoch, args.epochs):
        sampler.set_epoch(epoch)
        # Collective calls of processes that have no batch any more are answered by Join; saving
        # needs all of them, and so comes after the epoch.
        with Join([model]) if args.uneven else contextlib.nullcontext():
            for images, target in loader:
                images, target = images.to(device), target.to(device)
                loss = nn.functional.cross_entropy(model(images), target)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                n_steps += 1
                if not args.uneven and n_steps % args.every == 0:
                    save(epoch)
                if dist.get_rank() == 0:
                    print(f"Epoch [{epoch}] step {n_steps} Loss {loss.item():.6f}", flush=True)
                if not args.uneven and n_steps == args.stop_after:
                    save(epoch)
                    return
        save(epoch + 1)

    if dist.get_rank() == 0:
        print("training done")
        print(loader.report())


if __name__ == "__main__":
    main()
    dist.destroy_process_group()
