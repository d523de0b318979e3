"""decode="scaled": large JPEGs decoded at a reduced size, with the pixels of Pillow's draft()."""

import random

import feedmill
import numpy as np
import pytest
import torch
from feedmill.cli import cli
from helpers import Views, compose, make_jpeg, native_loader, numbered_folder, save_jpeg
from PIL import Image
from torchvision import transforms
from torchvision.transforms import InterpolationMode


def divisor_of(crop, size, most=8):
    """The largest divisor at which a crop (height, width) is not smaller than its result."""
    while most > 1 and any(most * out > one for one, out in zip(crop, size, strict=True)):
        most //= 2
    return most


def reduced(path, box, size, resample, most=8):
    """Pillow's image: a box (left, top, right, bottom) of the file, resized to (width, height)."""
    left, top, right, bottom = box
    divisor = divisor_of((bottom - top, right - left), size[::-1], most)
    image = Image.open(path)
    if divisor > 1:
        whole = image.size
        image.draft(None, (whole[0] // divisor, whole[1] // divisor))
        assert image.size == tuple(-(-one // divisor) for one in whole)
    image = image.convert("RGB")
    outer = (left // divisor, top // divisor, -(-right // divisor), -(-bottom // divisor))
    part = tuple(one / divisor - outer[i % 2] for i, one in enumerate(box))
    return image.crop(outer).resize(size, resample, box=part)


def write_images(root):
    (root / "a").mkdir()
    rng = random.Random(5)
    kinds = [
        {"sampling": sampling, "progressive": progressive, "restart": restart}
        for sampling in ("444", "422", "420", "440", "411", "410", "3x1", "1x4", "1x3")
        for progressive in (0, 1)
        for restart in (0, 3)
    ]
    kinds += [{"space": space} for space in ("grey", "cmyk", "ycck", "rgb")]
    for number, kind in enumerate(kinds):
        width, height = rng.randint(200, 900), rng.randint(200, 900)
        make_jpeg(
            root / "a" / f"{number:03}.jpg",
            **{"size": f"{width}x{height}", "seed": number, "noise": 20, "quality": 85, **kind},
        )
    return root


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    return write_images(tmp_path_factory.mktemp("scaled"))


def assert_drafted(loader, dataset, boxes_of, size, resample, flips=lambda index: False):
    """Each sample equals Pillow's; returns the divisors that occurred."""
    divisors = set()
    for index, (image, _) in enumerate(loader):
        path = dataset.samples[index][0]
        box = boxes_of(index)
        wanted = reduced(path, box, size, resample)
        wanted = np.asarray(wanted).transpose(2, 0, 1)
        if flips(index):
            wanted = wanted[:, :, ::-1]
        assert np.array_equal(image[0].numpy(), wanted), (path, box, size)
        crop = (box[3] - box[1], box[2] - box[0])
        divisors.add(divisor_of(crop, size[::-1]))
    return divisors


@pytest.mark.parametrize("size", [(24, 31), (60, 60), (111, 97), (300, 300)])
def test_a_resize_begins_with_the_reduced_image(images, size):
    steps = compose(transforms.Resize(size[::-1]), transforms.PILToTensor())
    dataset = numbered_folder(images, steps)
    loader = native_loader(dataset, decode="scaled", threads=2)

    def whole(index):
        return (0, 0, *Image.open(dataset.samples[index][0]).size)

    divisors = assert_drafted(loader, dataset, whole, size, Image.Resampling.BILINEAR)
    assert divisors & {2, 4, 8} or size == (300, 300)


@pytest.mark.parametrize(
    "mode", [InterpolationMode.BILINEAR, InterpolationMode.BICUBIC, InterpolationMode.LANCZOS]
)
@pytest.mark.parametrize("reader", ["uring", "pread"])
def test_random_crops(images, mode, reader):
    steps = [
        transforms.RandomResizedCrop((37, 45), scale=(0.005, 1.0), interpolation=mode),
        transforms.RandomHorizontalFlip(),
        transforms.PILToTensor(),
    ]
    dataset = numbered_folder(images, compose(*steps))
    loader = native_loader(dataset, decode="scaled", threads=2, seed=3)
    if reader == "pread":
        loader.reader = "pread"
    drawn = {}

    def draws(index):
        if index not in drawn:
            drawn[index] = loader.draws(index, epoch=loader_epoch)
        return drawn[index]

    resample = {"bilinear": 2, "bicubic": 3, "lanczos": 1}[mode.value]
    seen = set()
    for loader_epoch in range(3):
        drawn.clear()

        def box(index):
            one = draws(index)[0][1]
            return (
                one["left"], one["top"], one["left"] + one["width"], one["top"] + one["height"],
            )

        seen |= assert_drafted(
            loader, dataset, box, (45, 37), Image.Resampling(resample),
            lambda index: draws(index)[1][1]["flip"],
        )
    assert seen >= {1, 2, 4}


def test_views_share_a_reduced_decode(images):
    """Views are made of one decode, at the divisor that suits all of them."""
    sizes = [(20, 30), (90, 100)]
    views = [compose(transforms.Resize(size), transforms.PILToTensor()) for size in sizes]
    dataset = numbered_folder(images, Views(*views))
    for index, (made, _) in enumerate(native_loader(dataset, decode="scaled", threads=2)):
        path = dataset.samples[index][0]
        width, height = Image.open(path).size
        most = min(divisor_of((height, width), size) for size in sizes)
        for image, size in zip(made, sizes, strict=True):
            wanted = reduced(path, (0, 0, width, height), size[::-1], 2, most)
            assert np.array_equal(image[0].numpy(), np.asarray(wanted).transpose(2, 0, 1)), path


def test_packs_with_restart_intervals(images, tmp_path):
    """A pack's partial reads and skipped intervals change no pixel."""
    assert cli.main(["pack", str(images), str(tmp_path / "pack")]) == 0
    steps = [transforms.RandomResizedCrop(40, scale=(0.05, 1)), transforms.PILToTensor()]
    folder, pack = (
        native_loader(dataset, decode="scaled", threads=2, seed=11, batch_size=5)
        for dataset in (
            numbered_folder(images, compose(*steps)),
            feedmill.Pack(str(tmp_path / "pack"), compose(*steps)),
        )
    )
    for _ in range(4):
        for one, other in zip(folder, pack, strict=True):
            assert torch.equal(one[0], other[0])


def test_what_stays_exact(tmp_path):
    (tmp_path / "a").mkdir()
    save_jpeg(tmp_path / "a" / "0.jpg", 640, 480)
    Image.open(tmp_path / "a" / "0.jpg").save(tmp_path / "a" / "1.png")
    small = [transforms.Resize((48, 64)), transforms.PILToTensor()]
    exact = [image for image, _ in native_loader(numbered_folder(tmp_path, compose(*small)))]
    scaled = native_loader(numbered_folder(tmp_path, compose(*small)), decode="scaled")
    images = [image for image, _ in scaled]
    assert not torch.equal(images[0], exact[0])
    assert torch.equal(images[1], exact[1])  # a PNG
    assert torch.equal(scaled.fetch(0, epoch=0)[0], images[0][0])
    scaled.native = "verify"
    assert all(torch.equal(one, other) for (one, _), other in zip(scaled, exact, strict=True))
    for steps in (
        [transforms.Resize((48, 64), InterpolationMode.NEAREST)],  # would pick other pixels
        [transforms.Resize((250, 330))],  # less than half
        [transforms.CenterCrop(100)],
    ):
        dataset = numbered_folder(tmp_path, compose(*steps, transforms.PILToTensor()))
        batches = [list(native_loader(dataset, decode=how)) for how in ("exact", "scaled")]
        assert all(torch.equal(one[0], other[0]) for one, other in zip(*batches, strict=True))


def test_it_is_close_to_the_exact_image(tmp_path):
    (tmp_path / "a").mkdir()
    waves = np.sin(np.arange(1280) / 40) * np.cos(np.arange(960)[:, None] / 30)
    image = np.stack([128 + 100 * waves, 128 - 90 * waves, 80 + 50 * waves], 2).astype(np.uint8)
    Image.fromarray(image).save(tmp_path / "a" / "0.jpg", quality=95)
    steps = compose(transforms.Resize((120, 160)), transforms.PILToTensor())
    (exact, _), (scaled, _) = (
        next(iter(native_loader(numbered_folder(tmp_path, steps), decode=how)))
        for how in ("exact", "scaled")
    )
    assert (exact.float() - scaled.float()).square().mean() < 4


def test_explain_and_states_tell_the_modes_apart(images):
    steps = compose(transforms.RandomResizedCrop(32), transforms.PILToTensor())
    dataset = numbered_folder(images, steps)
    exact, scaled = (native_loader(dataset, decode=how, seed=1) for how in ("exact", "scaled"))
    assert "decode='scaled': large JPEGs" in str(scaled.explain())
    assert "scaled" not in str(exact.explain())
    iterator = iter(scaled)
    next(iterator)
    with pytest.raises(ValueError, match="transform"):
        exact.load_state_dict(scaled.state_dict())
    again = native_loader(dataset, decode="scaled", seed=1)
    again.load_state_dict(scaled.state_dict())
    assert all(torch.equal(a[0], b[0]) for a, b in zip(iterator, again, strict=True))
    scaled.native = "verify"
    assert "decode='scaled' has no effect" in str(scaled.explain())
    scaled.native = "off"
    assert "decode='scaled' has no effect" in str(scaled.explain())
    with pytest.raises(ValueError, match="decode is 'fast'; it must be one of 'exact', 'scaled'"):
        feedmill.DataLoader(dataset, decode="fast")
