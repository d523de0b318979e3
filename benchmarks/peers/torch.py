"""torch's DataLoader with torchvision: its transforms on PIL images ("pil", the reference), and
its v2 transforms on tensors ("v2")."""

from __future__ import annotations

import torch
from torchvision_cpu import torchvision
from torchvision.transforms import v2

from .job import MEAN, STD, Job

VERSIONS = ("torch", "torchvision", "pillow")


class Files(torch.utils.data.Dataset):
    """A dataset over a list of samples that behaves like ImageFolder."""

    def __init__(self, samples, load, transform) -> None:
        self.samples, self.load, self.transform = samples, load, transform

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int):
        path, label = self.samples[index]
        return self.transform(self.load(path)), label


def load_tensor(path: str) -> torch.Tensor:
    """uint8, 3 x H x W, from torchvision's decoder or, if its build has none, from Pillow."""
    io = torchvision.io
    return io.decode_jpeg(io.read_file(path), mode=io.ImageReadMode.RGB)


def load_tensor_by_pillow(path: str) -> torch.Tensor:
    image = torchvision.datasets.folder.pil_loader(path)
    return v2.functional.pil_to_tensor(image)


def can_decode(path: str) -> bool:
    try:
        load_tensor(path)
    except (RuntimeError, AttributeError):
        return False
    return True


def note(job: Job, variant: str) -> str:
    """What the table says about this variant."""
    if variant == "pil" or can_decode(job.files()[0][0]):
        return ""
    return "decoded by Pillow, for this torchvision has no decoder"


def pil_transform(kind: str, size: int):
    T = torchvision.transforms
    ops = {
        "train": [T.RandomResizedCrop(size), T.RandomHorizontalFlip()],
        "eval": [T.Resize(256), T.CenterCrop(size)],
        "check": [T.Resize((size, size))],
    }[kind]
    return T.Compose([*ops, T.ToTensor(), T.Normalize(MEAN, STD)])


def v2_transform(kind: str, size: int):
    ops = {
        "train": [v2.RandomResizedCrop(size, antialias=True), v2.RandomHorizontalFlip()],
        "eval": [v2.Resize(256, antialias=True), v2.CenterCrop(size)],
        "check": [v2.Resize((size, size), antialias=True)],
    }[kind]
    return v2.Compose([*ops, v2.ToDtype(torch.float32, scale=True), v2.Normalize(MEAN, STD)])


def image_loader(dataset, job: Job, shuffle: bool, **options):
    """A DataLoader that yields only images. Its workers are persistent."""
    loader = torch.utils.data.DataLoader(
        dataset,
        batch_size=job.batch_size,
        shuffle=shuffle,
        num_workers=job.workers,
        persistent_workers=job.workers > 0,
        **options,
    )
    return lambda: (images for images, _ in loader)


def make_dataset(job: Job, variant: str, kind: str, samples) -> Files:
    if variant == "pil":
        load = torchvision.datasets.folder.pil_loader
        return Files(samples, load, pil_transform(kind, job.size))
    load = load_tensor if can_decode(samples[0][0]) else load_tensor_by_pillow
    return Files(samples, load, v2_transform(kind, job.size))


def open_epochs(job: Job, variant: str):
    return image_loader(make_dataset(job, variant, job.kind, job.samples()), job, shuffle=True)


def open_check(job: Job, variant: str):
    return image_loader(make_dataset(job, variant, "check", job.checked()), job, shuffle=False)
