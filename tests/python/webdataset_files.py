"""Tar files and pipelines of the package webdataset for tests, which compare these with torch's
DataLoader."""

import gzip
import io
import json
import os
import tarfile

import feedmill
import helpers
import webdataset as wds
from PIL import Image
from torchvision import transforms

CROP = transforms.Compose([
    transforms.RandomResizedCrop(16), transforms.RandomHorizontalFlip(), transforms.ToTensor(),
])
RESIZE = transforms.Compose([transforms.Resize((16, 16)), transforms.ToTensor()])
SIZES = (5, 9, 3, 8, 2)


def write_shards(root, sizes=SIZES):
    """Tar files of so many samples, which are numbered throughout: jpg, cls and json."""
    paths, number = [], 0
    for k, size in enumerate(sizes):
        paths.append(str(root / f"s-{k:03}.tar"))
        with tarfile.open(paths[-1], "w") as tar:
            for _ in range(size):
                image = io.BytesIO()
                pixels = helpers.pixels(40 + number % 7, 30 + number % 5, seed=number)
                Image.fromarray(pixels).save(image, "JPEG")
                add(tar, f"{number:04}.jpg", image.getvalue())
                add(tar, f"{number:04}.cls", str(number).encode())
                add(tar, f"{number:04}.json", json.dumps({"a": number}).encode())
                number += 1
    return paths


def add(tar, name, data):
    info = tarfile.TarInfo(name)
    info.size = len(data)
    tar.addfile(info, io.BytesIO(data))


def dataset(urls, **options):
    return wds.WebDataset(urls, **{"shardshuffle": False, "empty_check": False, **options})


def pairs(urls, transform=RESIZE, of_label=None, **options):
    decoded = dataset(urls, **options).decode("pil")
    return decoded.to_tuple("jpg;png", "cls").map_tuple(transform, of_label)


def asserting(sample, val=False):
    """As in webdataset's examples. In a test's file pytest would change the statement."""
    assert not val, "for training only"
    return {"image": CROP(sample["jpg"]), "label": sample["cls"]}


def explained(pipeline, **options):
    return feedmill.DataLoader(pipeline, **{"batch_size": 3, **options}).explain()


def changed(path, change):
    with open(path, "rb") as file:
        data = bytearray(file.read())
    with tarfile.open(path) as tar:
        members = {one.name: one for one in tar}
    with open(path, "wb") as file:
        file.write(change(data, members))


def overwritten(name, value, is_header=False):
    def change(data, members):
        one = members[name]
        begin, size = (one.offset, 512) if is_header else (one.offset_data, one.size)
        data[begin : begin + size] = (value * size)[:size]
        return data

    return lambda path: changed(path, change)


def with_members(*names):
    def change(path):
        with tarfile.open(path, "a") as tar:
            for name in names:
                add(tar, name, b"1")

    return change


DAMAGES = {
    "image": overwritten("0009.jpg", b"x"),
    "label": overwritten("0009.cls", b"q"),
    "image and label": lambda path: [overwritten(f"0009.{one}", b"q")(path)
                                     for one in ("jpg", "cls")],
    "header": overwritten("0009.jpg", b"x", is_header=True),
    "cut short": lambda path: os.truncate(path, os.path.getsize(path) // 2),
    "cut in a header": lambda path: changed(path, lambda data, all_: data[
        : all_["0009.cls"].offset + 100]),
    "without an end": lambda path: changed(path, lambda data, all_: data[
        : all_["0013.json"].offset_data + all_["0013.json"].size]),
    "empty": lambda path: os.truncate(path, 0),
    "missing": os.remove,
    "no tar file": lambda path: changed(path, lambda data, _: b"x" * len(data)),
    "compressed": lambda path: changed(path, lambda data, _: gzip.compress(data)),
    "the same name twice": with_members("z.cls", "z.cls"),
    "no image": with_members("z.cls"),
    "empty image": lambda path: changed(path, lambda data, _: data) or _empty_image(path),
}


def _empty_image(path):
    with tarfile.open(path, "a") as tar:
        add(tar, "z.jpg", b"")
        add(tar, "z.cls", b"1")
