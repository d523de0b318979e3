"""Pipelines of the package webdataset without decode(), whose images the script's own functions
open: natively, batches and errors equal those of torch's DataLoader."""

import io
import json
import tarfile
from io import BytesIO

import feedmill
import helpers
import pytest
from PIL import Image
from torchvision import transforms

wds = pytest.importorskip("webdataset")

from stream_outcomes import check  # noqa: E402
from webdataset_files import CROP, DAMAGES, add, dataset, explained, write_shards  # noqa: E402

CHANGE = transforms.RandomHorizontalFlip()


@pytest.fixture(scope="module")
def shards(tmp_path_factory):
    return write_shards(tmp_path_factory.mktemp("shards"))


def has_a_number(sample):
    return "jpg" in sample and json.loads(sample["json"])["a"] % 3 > 0


def opened(sample):
    """As scripts open images without decode()."""
    image = Image.open(io.BytesIO(sample["jpg"])).convert("RGB")
    label = int(sample["cls"].decode("utf-8"))
    return CROP(image), label


def opened_behind_the_label(sample, open_file=BytesIO):
    label = json.loads(sample.pop("json"))["a"] + int(sample["cls"])
    image = Image.open(open_file(sample["jpg"]))
    sample["jpg"] = CROP(CHANGE(image.convert("RGB")))
    return {**sample, "label": label}


def opened_beside(sample):
    return {**sample, "image": CROP(Image.open(BytesIO(sample["jpg"])).convert("RGB"))}


def opened_alone(sample):
    return Image.open(BytesIO(sample["jpg"])).convert("RGB"), sample["cls"]


OPENED = {
    "a tuple": lambda urls: dataset(urls).shuffle(6, seed=9).map(opened),
    "a dict": lambda urls: dataset(urls).map(opened_behind_the_label),
    "then transformed": lambda urls: dataset(urls).map(opened_alone).map_tuple(CROP, int),
    "selected": lambda urls: dataset(urls).select(has_a_number).map(opened),
    "to_tuple": lambda urls: dataset(urls).map(opened_beside).to_tuple("image", "cls"),
}


@pytest.mark.parametrize("name", OPENED)
@pytest.mark.parametrize("num_workers", [0, 2])
def test_opened_images(shards, name, num_workers):
    check(lambda: OPENED[name](shards), num_workers=num_workers, batch_size=4)
    if num_workers:
        check(lambda: OPENED[name](shards).batched(4), num_workers=2, batch_size=None)


@pytest.mark.parametrize("name", DAMAGES)
@pytest.mark.parametrize("function", [opened, opened_behind_the_label])
def test_errors_of_opened_images(tmp_path, name, function):
    shards = write_shards(tmp_path)
    DAMAGES[name](shards[1])
    check(lambda: dataset(shards).map(function), num_workers=2, batch_size=4)


@pytest.mark.parametrize("name, function, error", [
    ("image", opened, "UnidentifiedImageError"),
    ("label", opened, "ValueError"),
    ("image and label", opened, "UnidentifiedImageError"),
    ("image and label", opened_behind_the_label, "ValueError"),
])
def test_which_error_comes_first(tmp_path, name, function, error):
    shards = write_shards(tmp_path)
    DAMAGES[name](shards[1])
    loader = feedmill.DataLoader(dataset(shards[1:]).map(function), batch_size=9, num_workers=1,
                                 native="require")
    with pytest.raises(Exception, match="DataLoader worker|image file|invalid") as caught:
        next(iter(loader))
    assert error in str(caught.value) or type(caught.value).__name__ == error


def test_opened_images_of_other_formats(tmp_path):
    with tarfile.open(tmp_path / "a.tar", "w") as tar:
        for i, (form, mode) in enumerate((("PNG", "RGB"), ("PNG", "P"), ("WEBP", "RGB"),
                                          ("JPEG", "L"), ("BMP", "RGB"), ("JPEG", "CMYK"),
                                          ("PNG", "RGBA"), ("GIF", "P"))):
            data = io.BytesIO()
            Image.fromarray(helpers.pixels(30 + i, 20, seed=i)).convert(mode).save(data, form)
            add(tar, f"{i}.cls", b"%d" % i)
            add(tar, f"{i}.jpg", data.getvalue())
    check(lambda: dataset(str(tmp_path / "a.tar")).map(opened), num_workers=1, batch_size=2)


def test_other_images_stay_encoded(tmp_path, shards):
    with tarfile.open(shards[0]) as first, tarfile.open(tmp_path / "a.tar", "w") as tar:
        image = first.extractfile("0000.jpg").read()
        for number in range(6):
            for name in ("jpg", "seg.jpg", "png"):
                add(tar, f"{number}.{name}", image)
            add(tar, f"{number}.cls", b"%d" % number)
            add(tar, f"{number}.json", b'{"a": 1}')
    got = check(lambda: dataset(str(tmp_path / "a.tar")).map(opened_behind_the_label),
                num_workers=2, batch_size=2)
    assert type(got[0]["seg.jpg"][0]) is type(got[0]["png"][0]) is bytes


def opened_twice(sample):
    other = Image.open(BytesIO(sample["jpg"])).convert("RGB")
    return CROP(Image.open(BytesIO(sample["jpg"])).convert("RGB")), other


def opened_in_vain(sample):
    Image.open(BytesIO(sample["jpg"]))
    return sample


def with_image(Image):
    return lambda one: (CROP(Image.open(BytesIO(one["jpg"])).convert("RGB")), 1)


def with_file(BytesIO):
    return lambda one: (CROP(Image.open(BytesIO(one["jpg"])).convert("RGB")), 1)


class OwnBytes(BytesIO):
    pass


class OwnImages:
    @staticmethod
    def open(file):
        return Image.open(file).rotate(90)


@pytest.mark.parametrize("function", [
    opened_twice, opened_in_vain, with_image(OwnImages), with_file(OwnBytes), with_file(lambda data: io.BytesIO()),
    lambda one: (CROP(Image.open(BytesIO(one["jpg"]))), 1),
    lambda one: (CROP(Image.open(BytesIO(one["jpg"])).convert("L")), 1),
    lambda one: (CROP(Image.open(BytesIO(one["jpg"])).rotate(1).convert("RGB")), 1),
    lambda one: (CROP(Image.open(one["jpg"]).convert("RGB")), 1),
    lambda one: (CROP(Image.open(BytesIO(one["jpg"]), "r").convert("RGB")), 1),
    lambda one: (CROP(Image.open(BytesIO(one["jpg"][1:])).convert("RGB")), 1),
    lambda one: (CROP(Image.open(BytesIO(one["json"])).convert("RGB")), 1),
    lambda one: (CROP(Image.open(BytesIO(one["jpg"])).convert("RGB")), len(one["jpg"])),
    lambda one: (CROP(Image.open(BytesIO(one["jpg"])).convert("RGB")), one["jpg"]),
    lambda one: (CROP(Image.open(BytesIO(one["jpg"])).convert("RGB")), BytesIO(one["jpg"])),
    lambda one: (CROP(one["jpg"]), 1),
    lambda one: (one["jpg"], 1),
    lambda one: {**one, "cls": 1},
    lambda one: (CROP(io.StringIO(one["jpg"]).convert("RGB")), 1),
    lambda one: (CROP(Image.new(one["jpg"]).convert("RGB")), 1),
    lambda one: (CROP(Image.open(BytesIO(one.get("jpg"))).convert("RGB")), 1),
], ids=lambda one: getattr(one, "__name__", "?"))
def test_refused_functions_that_open_images(shards, function):
    text = explained(dataset(shards).map(function))
    assert text.startswith("torch's own path") and "_map" in text


@pytest.mark.parametrize("make", [
    lambda urls: dataset(urls).map(lambda one: {
        **one, "image": CROP(Image.open(BytesIO(one["jpg"])).convert("RGB"))}),
    lambda urls: dataset(urls).map(opened_beside).to_tuple("image", "jpg"),
    lambda urls: dataset(urls).map(opened_beside).rename(other="jpg"),
    lambda urls: dataset(urls).map(opened_beside).map(
        lambda one: {"image": one["image"], "n": len(one["jpg"])}),
    lambda urls: dataset(urls).map(opened_beside).map_dict(jpg=len),
    lambda urls: dataset(urls).map(opened, handler=wds.ignore_and_continue),
    lambda urls: dataset(urls).map(opened).decode("pil"),
    lambda urls: dataset(urls).map(opened_behind_the_label).map_dict(png=CROP),
    lambda urls: dataset(urls).to_tuple("jpg", "cls").map(opened),
    lambda urls: dataset(urls).decode().map(opened),
])
def test_refused_pipelines_of_opened_images(shards, make):
    assert explained(make(shards)).startswith("torch's own path")


def test_a_replaced_open(shards, monkeypatch):
    monkeypatch.setattr(Image, "open", OwnImages.open)
    assert "PIL.Image.open was replaced" in explained(dataset(shards).map(opened))
