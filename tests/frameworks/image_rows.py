"""Datasets of Hugging Face with encoded images, and transforms, for tests."""

import io

import datasets
import helpers
import numpy as np
import torch
from PIL import Image
from torchvision import transforms

SIZE = 16
EVALUATION = transforms.Compose([
    transforms.Resize(SIZE), transforms.CenterCrop(SIZE), transforms.ToTensor(),
    transforms.Normalize(helpers.MEAN, helpers.STD),
])
TRAINING = transforms.Compose([
    transforms.RandomResizedCrop(SIZE), transforms.RandomHorizontalFlip(), transforms.ToTensor(),
    transforms.Normalize(helpers.MEAN, helpers.STD),
])


def encoded(kind="JPEG", mode="RGB", size=(40, 30), seed=0, **options):
    """The bytes of an image file."""
    pixels = np.random.default_rng(seed).integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)
    file = io.BytesIO()
    image = Image.fromarray(pixels)
    (image.quantize(16) if mode == "P" else image.convert(mode)).save(file, kind, **options)
    return file.getvalue()


def exif(orientation):
    data = Image.Exif()
    data[0x0112] = orientation
    return data


XMP = b'<x:xmpmeta><rdf:Description tiff:Orientation="%d"/></x:xmpmeta>'


def of_images(images, image="image", label="label", **columns):
    """A Dataset of encoded images, or paths, whose labels are their rows."""
    rows = [{"bytes": one, "path": None} if type(one) is bytes else one for one in images]
    made = datasets.Dataset.from_dict({image: rows, label: list(range(len(rows))), **columns})
    return made.cast_column(image, datasets.Image())


def mixed_images():
    """Images of many formats and modes, some of them turned by their metadata."""
    images = [encoded(seed=n, size=(40 + n, 33), exif=exif(n)) for n in range(10)]
    images += [encoded(seed=n, mode=mode) for n, mode in enumerate(("L", "CMYK"))]
    for mode in ("RGB", "L", "P", "RGBA", "LA", "1", "I;16"):
        images.append(encoded("PNG", mode))
    images += [encoded("PNG", exif=exif(n)) for n in (1, 3, 8)]
    images += [encoded("WEBP", exif=exif(n)) for n in (1, 5)]
    images += [encoded("WEBP"), encoded("GIF", "P"), encoded("BMP"), encoded("TIFF")]
    images += [encoded(size=(1, 1)), encoded(size=(1, 300))]
    images += [encoded(xmp=XMP % n) for n in (1, 6)]
    images += [encoded(xmp=XMP % 6, exif=exif(n)) for n in (1, 2)]
    return images


def collate(examples):
    pixel_values = torch.stack([example["pixel_values"] for example in examples])
    labels = torch.tensor([example["label"] for example in examples])
    return {"pixel_values": pixel_values, "labels": labels}
