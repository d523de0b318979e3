"""A replacement for a common custom dataset: a list of files, cv2.imread and a cache of images.

    python opencv_dataset.py /data/photos --amp
    python opencv_dataset.py --smoke

Forum answers often have this dataset:

    class ImageDataset(Dataset):
        def __getitem__(self, index):
            image = self.cache.get(index)
            if image is None:
                image = cv2.cvtColor(cv2.imread(self.paths[index]), cv2.COLOR_BGR2RGB)
                if len(self.cache) < self.n_cached:
                    self.cache[index] = image
            return self.transform(Image.fromarray(image)), self.labels[index]

with num_workers=8, where each worker has a cache of its own. Here ImageList replaces the dataset,
so that files are read and decoded natively, and cache= replaces the cache, one for all threads.
(cv2 rotates images by their EXIF orientation; ImageList, like torchvision, does not. If your code
needs cv2's pixels in Python, call feedmill.imread(path).)
"""

import argparse
import tempfile
import time
from pathlib import Path

import torch
from feedmill import DataLoader
from feedmill.data import ImageList
from torch import nn
from torchvision import transforms


class Monitor:
    """Prints, every few steps, the speed, the share of the time spent waiting, and GPU memory."""

    def __init__(self, loader, every):
        self.loader, self.every, self.n_steps = loader, every, 0
        self.begin, self.before = time.perf_counter(), loader.stats()

    def step(self, n_samples, loss):
        self.n_steps += 1
        if self.n_steps % self.every:
            return
        now, stats = time.perf_counter(), self.loader.stats()
        seconds, part = now - self.begin, stats - self.before
        self.begin, self.before = now, stats
        line = (
            f"step {self.n_steps} loss: {loss.item():.4f} | "
            f"{self.every * n_samples / seconds:,.0f} images/s, "
            f"{1e3 * seconds / self.every:.1f} ms per step, "
            f"waited {100 * part.data_wait_share:.0f}%, "
            f"cache hits {100 * stats.io.cache_hit_rate:.0f}%"
        )
        if torch.cuda.is_available():
            line += f", {torch.cuda.max_memory_allocated() >> 20} MiB of GPU memory"
        print(line)


def main():
    parser = argparse.ArgumentParser(description="training on a list of image files")
    parser.add_argument("data", nargs="?", help="folder with one folder of images per class")
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--cache", default="ram:1GiB", help="cache for the encoded files")
    parser.add_argument("--amp", action="store_true", help="automatic mixed precision")
    parser.add_argument("--every", type=int, default=20, help="steps between two lines")
    parser.add_argument("--smoke", action="store_true", help="run a few steps on generated images")
    args = parser.parse_args()
    if args.smoke:
        from made_data import make_photos

        with tempfile.TemporaryDirectory() as folder:
            make_photos(folder)
            args.data, args.size, args.batch_size, args.epochs = folder, 32, 8, 2
            args.cache, args.every, args.amp = "ram:16MiB", 4, True
            train(args)
    elif args.data is None:
        parser.error("name a folder of images, or give --smoke")
    else:
        train(args)


def train(args):
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    use_cuda = device.type == "cuda"
    paths = sorted(path for path in Path(args.data).rglob("*.jp*g"))
    classes = sorted({path.parent.name for path in paths})
    labels = [classes.index(path.parent.name) for path in paths]
    transform = transforms.Compose([
        transforms.RandomResizedCrop(args.size),
        transforms.RandomHorizontalFlip(),
        transforms.ToTensor(),
        transforms.Normalize([0.485, 0.456, 0.406], [0.229, 0.224, 0.225]),
    ])
    loader = DataLoader(
        ImageList(paths, labels, transform), batch_size=args.batch_size, shuffle=True,
        num_workers=args.workers, pin_memory=use_cuda, drop_last=True, cache=args.cache,
    )
    print(loader.explain())

    model = nn.Sequential(
        nn.Conv2d(3, 32, 3, stride=2), nn.BatchNorm2d(32), nn.ReLU(),
        nn.Conv2d(32, 64, 3, stride=2), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, len(classes)),
    ).to(device)
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    half = torch.float16 if use_cuda else torch.bfloat16
    scaler = torch.amp.GradScaler(device.type, enabled=args.amp and use_cuda)
    monitor = Monitor(loader, args.every)
    for _ in range(args.epochs):
        for images, targets in loader:
            images = images.to(device, non_blocking=True)
            targets = targets.to(device, non_blocking=True)
            with torch.autocast(device.type, dtype=half, enabled=args.amp):
                loss = criterion(model(images), targets)
            optimizer.zero_grad(set_to_none=True)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            monitor.step(len(images), loss)

    print(loader.report())


if __name__ == "__main__":
    main()
