"""A custom dataset from a list of image files in CSV, as in PyTorch's tutorial on datasets.

    python path_list.py train.csv --root /data/photos

Each line of the file is "path,label": a path relative to the root, and a class number from 0.
"""

import argparse
import csv
import os

import torch
from feedmill import DataLoader  # the changed line; was: from torch.utils.data import DataLoader
from PIL import Image
from torch import nn
from torch.utils.data import Dataset
from torchvision import transforms


class PathListDataset(Dataset):
    def __init__(self, annotations_file, root, transform=None):
        with open(annotations_file, newline="") as file:
            rows = [(os.path.join(root, name), int(label)) for name, label in csv.reader(file)]
        self.samples = rows
        self.transform = transform

    def __len__(self):
        return len(self.samples)

    def __getitem__(self, index):
        path, label = self.samples[index]
        image = Image.open(path).convert("RGB")
        if self.transform:
            image = self.transform(image)
        return image, label

    # Lets feedmill load the dataset natively: returns the file and the label of a sample. It does
    # not open the file.
    def feedmill_item(self, index):
        path, label = self.samples[index]
        return path, label


def make_model(n_classes):
    return nn.Sequential(
        nn.Conv2d(3, 16, 5, stride=2), nn.ReLU(),
        nn.Conv2d(16, 32, 3, stride=2), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(),
        nn.Linear(32, n_classes),
    )


def main():
    parser = argparse.ArgumentParser(description="training on a list of image files")
    parser.add_argument("annotations", help="CSV file with lines of path,label")
    parser.add_argument("--root", default=".", help="folder to which the paths are relative")
    parser.add_argument("--size", type=int, default=128, help="height and width of the images")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--workers", type=int, default=2)
    args = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")

    transform = transforms.Compose([
        transforms.Resize((args.size, args.size)),
        transforms.ToTensor(),
        transforms.Normalize(mean=[0.485, 0.456, 0.406], std=[0.229, 0.224, 0.225]),
    ])
    dataset = PathListDataset(args.annotations, args.root, transform)
    loader = DataLoader(
        dataset, batch_size=args.batch_size, shuffle=True, num_workers=args.workers,
        pin_memory=device.type == "cuda",
    )
    print(loader.explain())

    model = make_model(n_classes=1 + max(label for _, label in dataset.samples)).to(device)
    loss_fn = nn.CrossEntropyLoss()
    optimizer = torch.optim.Adam(model.parameters())
    for epoch in range(args.epochs):
        for batch, (images, labels) in enumerate(loader):
            images, labels = images.to(device), labels.to(device)
            loss = loss_fn(model(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            print(f"epoch {epoch} batch {batch} loss: {loss.item():.6f}")

    print(loader.report())


if __name__ == "__main__":
    main()
