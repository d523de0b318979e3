"""Trains a small network on CIFAR-10, as in PyTorch's tutorial "Training a Classifier".

    python cifar10_classifier.py --download
    python cifar10_classifier.py --smoke
"""

import argparse
import os
import tempfile

import torch
import torch.nn as nn
import torch.nn.functional as F
import torch.optim as optim
import torchvision
import torchvision.transforms as transforms
from feedmill import DataLoader  # the changed line; was: from torch.utils.data import DataLoader


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(3, 6, 5)
        self.pool = nn.MaxPool2d(2, 2)
        self.conv2 = nn.Conv2d(6, 16, 5)
        self.fc1 = nn.Linear(16 * 5 * 5, 120)
        self.fc2 = nn.Linear(120, 84)
        self.fc3 = nn.Linear(84, 10)

    def forward(self, x):
        x = self.pool(F.relu(self.conv1(x)))
        x = self.pool(F.relu(self.conv2(x)))
        x = torch.flatten(x, 1)  # all dimensions but the batch
        x = F.relu(self.fc1(x))
        x = F.relu(self.fc2(x))
        return self.fc3(x)


def main():
    parser = argparse.ArgumentParser(description="CIFAR-10 classifier")
    parser.add_argument("--data", default="./data", help="folder with cifar-10-batches-py/")
    parser.add_argument("--download", action="store_true", help="fetch the data if it is missing")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=4)
    parser.add_argument("--print-every", type=int, default=2000, help="batches between two lines")
    parser.add_argument("--save", default="./cifar_net.pth", help="file for the trained network")
    parser.add_argument("--smoke", action="store_true", help="run a few steps on generated images")
    args = parser.parse_args()
    if args.smoke:
        from made_data import make_cifar10

        with tempfile.TemporaryDirectory() as folder:
            make_cifar10(folder)
            args.data, args.epochs, args.batch_size, args.print_every = folder, 1, 32, 5
            args.save = os.path.join(folder, "net.pth")
            train(args)
    else:
        train(args)


def train(args):
    device = torch.device("cuda:0" if torch.cuda.is_available() else "cpu")

    transform = transforms.Compose(
        [transforms.ToTensor(), transforms.Normalize((0.5, 0.5, 0.5), (0.5, 0.5, 0.5))]
    )
    trainset = torchvision.datasets.CIFAR10(
        root=args.data, train=True, download=args.download, transform=transform
    )
    testset = torchvision.datasets.CIFAR10(
        root=args.data, train=False, download=args.download, transform=transform
    )
    use_cuda = device.type == "cuda"
    trainloader = DataLoader(
        trainset, batch_size=args.batch_size, shuffle=True, num_workers=2, pin_memory=use_cuda
    )
    testloader = DataLoader(
        testset, batch_size=args.batch_size, shuffle=False, num_workers=2, pin_memory=use_cuda
    )

    net = Net().to(device)
    criterion = nn.CrossEntropyLoss()
    optimizer = optim.SGD(net.parameters(), lr=0.001, momentum=0.9)

    for epoch in range(args.epochs):  # loop over the dataset multiple times
        running_loss = 0.0
        for i, data in enumerate(trainloader):
            inputs, labels = data[0].to(device), data[1].to(device)
            optimizer.zero_grad()
            outputs = net(inputs)
            loss = criterion(outputs, labels)
            loss.backward()
            optimizer.step()

            running_loss += loss.item()
            if (i + 1) % args.print_every == 0:
                print(f"[{epoch + 1}, {i + 1:5d}] loss: {running_loss / args.print_every:.6f}")
                running_loss = 0.0
    print("Finished Training")
    torch.save(net.state_dict(), args.save)

    correct_pred = dict.fromkeys(testset.classes, 0)
    total_pred = dict.fromkeys(testset.classes, 0)
    net.eval()
    with torch.no_grad():
        for data in testloader:
            images, labels = data[0].to(device), data[1].to(device)
            predictions = net(images).argmax(1)
            for label, prediction in zip(labels, predictions):
                classname = testset.classes[label]
                correct_pred[classname] += int(label == prediction)
                total_pred[classname] += 1
    accuracy = 100 * sum(correct_pred.values()) / len(testset)
    print(f"Accuracy of the network on the {len(testset)} test images: {accuracy:.1f}%")
    for classname, n_correct in correct_pred.items():
        accuracy = 100 * n_correct / total_pred[classname]
        print(f"Accuracy for class: {classname:5s} is {accuracy:.1f}%")

    print(trainloader.report())


if __name__ == "__main__":
    main()
