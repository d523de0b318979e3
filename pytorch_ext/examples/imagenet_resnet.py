"""Trains a torchvision model on ImageNet: mixed precision, gradient accumulation, many processes.

    python imagenet_resnet.py /data/imagenet --arch resnet50 --amp --accumulate 2
    torchrun --nproc-per-node 8 imagenet_resnet.py /data/imagenet --amp

The folder contains train/ and val/, each with one folder of JPEGs per class.
"""

import argparse
import contextlib
import os

import torch
import torch.distributed as dist
from feedmill import DataLoader  # the changed line; was: from torch.utils.data import DataLoader
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data.distributed import DistributedSampler
from torchvision import datasets, models, transforms


def parse_arguments():
    parser = argparse.ArgumentParser(description="ImageNet training")
    parser.add_argument("data", help="folder with train/ and val/")
    parser.add_argument("--arch", default="resnet18", help="name of a model in torchvision.models")
    parser.add_argument("--workers", type=int, default=4, help="num_workers of each loader")
    parser.add_argument("--epochs", type=int, default=90, help="in total, with those resumed")
    parser.add_argument("--batch-size", type=int, default=256, help="per process and step")
    parser.add_argument("--accumulate", type=int, default=1, help="batches per optimizer step")
    parser.add_argument("--size", type=int, default=224, help="height and width of the images")
    parser.add_argument("--lr", type=float, default=0.1)
    parser.add_argument("--momentum", type=float, default=0.9)
    parser.add_argument("--weight-decay", type=float, default=1e-4)
    parser.add_argument("--amp", action="store_true", help="automatic mixed precision")
    parser.add_argument("--print-freq", type=int, default=10, help="batches between two lines")
    parser.add_argument("--seed", type=int, help="makes runs reproducible, also resumed ones")
    parser.add_argument("--checkpoint", default="checkpoint.pth.tar", help="file to be written")
    parser.add_argument("--resume", help="checkpoint to continue from")
    return parser.parse_args()


def main():
    args = parse_arguments()
    distributed = "RANK" in os.environ  # set by torchrun
    local_rank = int(os.environ.get("LOCAL_RANK", 0))
    use_cuda = torch.cuda.is_available()
    device = torch.device("cuda", local_rank) if use_cuda else torch.device("cpu")
    if use_cuda:
        torch.cuda.set_device(device)
    if distributed:
        dist.init_process_group("nccl" if use_cuda else "gloo")
    run(args, device, distributed)
    if distributed:
        dist.destroy_process_group()


def run(args, device, distributed):
    use_cuda = device.type == "cuda"
    is_main = not distributed or dist.get_rank() == 0
    if args.seed is not None:
        torch.manual_seed(args.seed)
    model = model_without_ddp = models.get_model(args.arch, weights=None).to(device)
    if distributed:
        model = DistributedDataParallel(model, device_ids=[device] if use_cuda else None)
    criterion = nn.CrossEntropyLoss().to(device)
    optimizer = torch.optim.SGD(
        model.parameters(), args.lr, momentum=args.momentum, weight_decay=args.weight_decay
    )
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=30, gamma=0.1)
    scaler = torch.amp.GradScaler(device.type, enabled=args.amp and use_cuda)

    normalize = transforms.Normalize(mean=[0.485, 0.456, 0.406], std=[0.229, 0.224, 0.225])
    train_dataset = datasets.ImageFolder(
        os.path.join(args.data, "train"),
        transforms.Compose([
            transforms.RandomResizedCrop(args.size),
            transforms.RandomHorizontalFlip(),
            transforms.ToTensor(),
            normalize,
        ]),
    )
    val_dataset = datasets.ImageFolder(
        os.path.join(args.data, "val"),
        transforms.Compose([
            transforms.Resize(args.size * 8 // 7),
            transforms.CenterCrop(args.size),
            transforms.ToTensor(),
            normalize,
        ]),
    )
    train_sampler = DistributedSampler(train_dataset) if distributed else None
    val_sampler = DistributedSampler(val_dataset, shuffle=False) if distributed else None
    train_loader = DataLoader(
        train_dataset, batch_size=args.batch_size, shuffle=train_sampler is None,
        num_workers=args.workers, pin_memory=use_cuda, sampler=train_sampler,
    )
    val_loader = DataLoader(
        val_dataset, batch_size=args.batch_size, shuffle=False,
        num_workers=args.workers, pin_memory=use_cuda, sampler=val_sampler,
    )

    start_epoch, best_acc1 = 0, 0.0
    stateful = {
        "model": model_without_ddp, "optimizer": optimizer, "scheduler": scheduler, "scaler": scaler
    }
    if args.resume:
        checkpoint = torch.load(args.resume, map_location=device, weights_only=True)
        start_epoch, best_acc1 = checkpoint["epoch"], checkpoint["best_acc1"]
        for name, one in stateful.items():
            one.load_state_dict(checkpoint[name])

    for epoch in range(start_epoch, args.epochs):
        if args.seed is not None:
            torch.manual_seed(args.seed + epoch)  # so that a resumed run draws the same numbers
        if distributed:
            train_sampler.set_epoch(epoch)
        train(train_loader, model, criterion, optimizer, scaler, epoch, device, args)
        acc1, acc5 = validate(val_loader, model, device, args)
        scheduler.step()
        best_acc1 = max(best_acc1, acc1)
        if is_main:
            print(f"Epoch [{epoch}] Acc@1 {acc1:.3f} Acc@5 {acc5:.3f} best {best_acc1:.3f}")
            checkpoint = {name: one.state_dict() for name, one in stateful.items()}
            torch.save({"epoch": epoch + 1, "best_acc1": best_acc1, **checkpoint}, args.checkpoint)
        if distributed:
            dist.barrier()  # no process continues before the checkpoint is written

    if is_main:
        print("training done")
        print(train_loader.report())


def train(loader, model, criterion, optimizer, scaler, epoch, device, args):
    model.train()
    optimizer.zero_grad()
    for i, (images, target) in enumerate(loader):
        images = images.to(device, non_blocking=True)
        target = target.to(device, non_blocking=True)
        # The last step of an epoch uses the remaining batches.
        steps_now = (i + 1) % args.accumulate == 0 or i + 1 == len(loader)
        n_together = min(args.accumulate, len(loader) - i // args.accumulate * args.accumulate)

        # Gradients are exchanged between the processes once per step, not once per batch.
        waits = isinstance(model, DistributedDataParallel) and not steps_now
        with model.no_sync() if waits else contextlib.nullcontext():
            with torch.amp.autocast(device.type, enabled=args.amp):
                loss = criterion(model(images), target)
            scaler.scale(loss / n_together).backward()
        if steps_now:
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()

        if i % args.print_freq == 0 and (not dist.is_initialized() or dist.get_rank() == 0):
            print(f"Epoch [{epoch}][{i}/{len(loader)}] Loss {loss.item():.6f}")


@torch.no_grad()
def validate(loader, model, device, args):
    """Top-1 and top-5 accuracy, in percent."""
    model.eval()
    n_best = n_among_five = n_images = 0
    for images, target in loader:
        images = images.to(device, non_blocking=True)
        target = target.to(device, non_blocking=True)
        with torch.amp.autocast(device.type, enabled=args.amp):
            output = model(images)
        hits = output.topk(5).indices == target[:, None]
        n_best += hits[:, 0].sum()
        n_among_five += hits.sum()
        n_images += len(target)
    totals = torch.tensor([n_best, n_among_five, n_images], device=device)
    if dist.is_initialized():
        dist.all_reduce(totals)
    n_best, n_among_five, n_images = totals.tolist()
    return 100 * n_best / n_images, 100 * n_among_five / n_images


if __name__ == "__main__":
    main()
