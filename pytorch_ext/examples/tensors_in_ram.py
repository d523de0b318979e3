"""Trains on tensors in memory that are copied to the GPU batch by batch.

    python tensors_in_ram.py --samples 20000
    python tensors_in_ram.py --smoke

The images are in a TensorDataset, so nothing is read or decoded. The loader gathers the samples of
each shuffled batch in pinned memory, while the GPU computes.
"""

import argparse
import time

import torch
from feedmill import DataLoader  # the changed line; was: from torch.utils.data import DataLoader
from torch import nn
from torch.utils.data import TensorDataset


def main():
    parser = argparse.ArgumentParser(description="training on tensors in memory")
    parser.add_argument("--samples", type=int, default=5000, help="600 KB of memory each")
    parser.add_argument("--size", type=int, default=224, help="height and width of the images")
    parser.add_argument("--classes", type=int, default=10)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--smoke", action="store_true", help="run a few steps with few samples")
    args = parser.parse_args()
    if args.smoke:
        args.samples, args.size, args.epochs, args.batch_size = 40, 32, 2, 8
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    use_cuda = device.type == "cuda"

    images = torch.randn(args.samples, 3, args.size, args.size)
    labels = torch.randint(args.classes, (args.samples,))
    loader = DataLoader(
        TensorDataset(images, labels), batch_size=args.batch_size, shuffle=True,
        pin_memory=use_cuda,
    )

    model = nn.Sequential(
        nn.Conv2d(3, 32, 3, stride=2), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
        nn.Linear(32, args.classes),
    ).to(device)
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for epoch in range(args.epochs):
        begin = time.perf_counter()
        for x, y in loader:
            # From pinned memory, the copy runs while the GPU computes the previous step.
            x, y = x.to(device, non_blocking=True), y.to(device, non_blocking=True)
            loss = criterion(model(x), y)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
        last = loss.item()  # waits for the GPU, once per epoch
        rate = args.samples / (time.perf_counter() - begin)
        print(f"epoch {epoch} loss: {last:.4f} ({rate:,.0f} samples/s)")

    print(loader.report())


if __name__ == "__main__":
    main()
