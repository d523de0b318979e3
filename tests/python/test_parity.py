"""Pixels equal torchvision's, bit for bit, for every kind of JPEG."""

import feedmill
import helpers
import pytest
import torch
from helpers import MEAN, STD, assert_same_image, compose, make_jpeg, native_loader, save_jpeg
from torchvision import transforms as T
from torchvision.datasets import ImageFolder
from torchvision.transforms import InterpolationMode, functional

TO_FLOAT = (T.ToTensor(), T.Normalize(MEAN, STD))
RANDOM = {
    "crop_uint8": compose(T.RandomResizedCrop(32), T.RandomHorizontalFlip(), T.PILToTensor()),
    "crop_float32": compose(T.RandomResizedCrop(32), T.RandomHorizontalFlip(), *TO_FLOAT),
    # Crops are so small and narrow that they are often one pixel wide or high.
    "tiny_crops": compose(
        T.RandomResizedCrop((9, 21), scale=(1e-5, 2e-2), ratio=(0.02, 50)), T.PILToTensor()
    ),
    "large_crop": compose(T.RandomResizedCrop((150, 171), scale=(0.9, 1.0)), T.PILToTensor()),
    "flip_first": compose(T.RandomHorizontalFlip(), T.RandomResizedCrop(24), *TO_FLOAT),
    "flip_last": compose(T.RandomResizedCrop(24), *TO_FLOAT, T.RandomHorizontalFlip(0.7)),
    "two_flips": compose(
        T.RandomHorizontalFlip(), T.Resize(30), T.CenterCrop(24), T.RandomHorizontalFlip(),
        T.PILToTensor(),
    ),
}
FIXED = {
    "resize_pair": compose(T.Resize((17, 40)), T.PILToTensor()),
    "resize_crop": compose(T.Resize(36), T.CenterCrop(32), *TO_FLOAT),
    "resize_list": compose(T.Resize([33]), T.CenterCrop((20, 31)), T.PILToTensor()),
    "max_size": compose(T.Resize(30, max_size=50), T.CenterCrop(32), T.PILToTensor()),
    "crop_only": compose(T.CenterCrop(32), T.PILToTensor()),
    "crop_twice": compose(T.CenterCrop(64), T.CenterCrop(24), *TO_FLOAT),
    "crop_resize": compose(T.CenterCrop(20), T.Resize((30, 31)), T.PILToTensor()),
    "convert": compose(T.Resize((20, 20)), T.PILToTensor(), T.ConvertImageDtype(torch.float32)),
    "convert_normalize": compose(
        T.Resize((20, 20)), T.PILToTensor(), T.ConvertImageDtype(torch.float32),
        T.Normalize([0.1, 0.2, 0.3], [3.0, 0.01, 1e-3], inplace=True), T.Normalize([0.5], [2.0]),
    ),
}
ALL = {**RANDOM, **FIXED}


def pillow_kinds(root):
    """Natively decoded kinds of JPEGs that Pillow can write."""
    sizes = [(1, 1), (1, 9), (9, 1), (2, 3), (7, 5), (8, 8), (16, 16), (17, 33), (63, 64), (150, 100)]
    for i, (width, height) in enumerate(sizes):
        for subsampling in (0, 1, 2):
            name = f"size_{width}x{height}_{subsampling}.jpg"
            save_jpeg(root / name, width, height, seed=i, subsampling=subsampling)
    for quality in (10, 30, 60, 75, 90, 95, 100):
        save_jpeg(root / f"quality_{quality}.jpg", 97, 75, quality=quality)
    for subsampling in (0, 1, 2):
        save_jpeg(root / f"progressive_{subsampling}.jpg", 91, 70, progressive=True,
                  subsampling=subsampling)
        save_jpeg(root / f"optimized_{subsampling}.jpg", 90, 71, optimize=True,
                  subsampling=subsampling)
    for width, height in [(1, 1), (33, 20), (80, 81)]:
        save_jpeg(root / f"grey_{width}.jpg", width, height, mode="L")
    save_jpeg(root / "grey_progressive.jpg", 61, 52, mode="L", progressive=True)
    for orientation in range(1, 9):
        save_jpeg(root / f"exif_{orientation}.jpg", 50, 37, orientation=orientation)


def tool_kinds(root):
    """Natively decoded kinds of JPEGs that only mkjpeg can write."""
    for sampling in ("444", "422", "420", "440", "411", "410"):
        for progressive in (0, 1):
            make_jpeg(root / f"{sampling}_{progressive}.jpg", size="83x61", sampling=sampling,
                      progressive=progressive)
        for size in ("1x1", "3x40", "40x3"):
            make_jpeg(root / f"{sampling}_{size}.jpg", size=size, sampling=sampling)
    for restart in (1, 3, 7):
        make_jpeg(root / f"restart_{restart}.jpg", size="90x64", sampling="420", restart=restart)
    make_jpeg(root / "split.jpg", size="70x64", scans="split")
    make_jpeg(root / "segments.jpg", size="40x64", apps=5, orientation=6)
    make_jpeg(root / "rgb.jpg", size="41x30", space="rgb")
    make_jpeg(root / "grey.jpg", size="41x30", space="grey")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    root = tmp_path_factory.mktemp("kinds")
    pillow_kinds(root / "pillow")
    return root


def check_epoch(dataset, epochs=1, **options):
    """Compares every image of some epochs with the result of torchvision's functions."""
    loader = native_loader(dataset, batch_size=16, threads=2, **options)
    for epoch in range(epochs):
        index = 0
        for images, _ in loader:
            for image in images:
                name = dataset.samples[index][0]
                assert_same_image(image, helpers.reference(loader, index, epoch), name)
                index += 1
        assert index == len(dataset)
    return loader.stats()


@pytest.mark.parametrize("name", ALL)
def test_every_kind_that_pillow_writes(folder, name):
    dataset = ImageFolder(str(folder), ALL[name])
    stats = check_epoch(dataset, epochs=3 if name in RANDOM else 1)
    n = len(dataset) * (3 if name in RANDOM else 1)
    assert stats.samples == n
    # Only geometry that is not native (padding before a resize) may go through Pillow.
    assert stats.decode.fallback_samples == stats.decode.fallback_limit
    assert stats.decode.native_samples + stats.decode.fallback_limit == n
    if name != "crop_resize":
        assert stats.decode.fallback_limit == 0


@pytest.mark.parametrize("name", ["crop_uint8", "crop_float32", "tiny_crops", "resize_crop"])
def test_every_kind_that_the_tool_writes(tmp_path, name):
    tool_kinds(tmp_path / "tool")
    dataset = ImageFolder(str(tmp_path), ALL[name])
    stats = check_epoch(dataset, epochs=3)
    assert stats.decode.native_samples == stats.samples == 3 * len(dataset)


@pytest.mark.parametrize("name", FIXED)
def test_fixed_transforms_equal_torchs_dataloader(folder, name):
    dataset = ImageFolder(str(folder), FIXED[name])
    ours = list(native_loader(dataset, batch_size=7, num_workers=2))
    theirs = list(torch.utils.data.DataLoader(dataset, batch_size=7))
    assert len(ours) == len(theirs)
    for batch, (mine, other) in enumerate(zip(ours, theirs)):
        assert_same_image(mine[0], other[0], f"batch {batch}")
        assert_same_image(mine[1], other[1], f"targets of batch {batch}")
        assert mine[0].is_contiguous() and mine[0].stride() == other[0].stride()


@pytest.mark.parametrize("mode", InterpolationMode)
def test_every_filter(folder, mode):
    """Reduces and enlarges, with flips, from crops that are often one pixel wide or high."""
    transforms = [
        (T.RandomHorizontalFlip(), T.RandomResizedCrop(24, interpolation=mode)),
        (T.RandomResizedCrop((40, 9), (1e-5, 1), (0.02, 50), mode), T.RandomHorizontalFlip()),
        (T.Resize(36, mode), T.CenterCrop(32), T.RandomHorizontalFlip()),
        (T.Resize((3, 170), mode),),
        (T.Resize((170, 3), mode),),
    ]
    for steps in transforms:
        stats = check_epoch(ImageFolder(str(folder), compose(*steps, T.PILToTensor())))
        assert stats.decode.native_samples == stats.samples
        assert stats.decode.fallback_samples == 0


def test_torchvisions_table_of_filters_is_read(folder, monkeypatch):
    """The table from interpolation modes to Pillow's numbers is read from torchvision."""
    monkeypatch.setitem(functional.pil_modes_mapping, InterpolationMode.BOX, 1)
    dataset = ImageFolder(str(folder), compose(T.Resize((9, 9), InterpolationMode.BOX), T.ToTensor()))
    assert "Resize(9, 9) by lanczos" in feedmill.DataLoader(dataset).explain()
    check_epoch(dataset)


@pytest.mark.slow
def test_large_images(tmp_path):
    for width, height in [(4000, 2990), (4000, 10), (10, 4000)]:
        save_jpeg(tmp_path / "c" / f"{width}x{height}.jpg", width, height, subsampling=2)
    for name in ("crop_uint8", "tiny_crops", "resize_crop", "resize_pair"):
        stats = check_epoch(ImageFolder(str(tmp_path), ALL[name]))
        assert stats.decode.native_samples == 3


def test_random_sizes(tmp_path):
    random = torch.Generator().manual_seed(5)
    for i in range(60):
        width, height = torch.randint(1, 200, (2,), generator=random).tolist()
        save_jpeg(tmp_path / "c" / f"{i}.jpg", width, height, seed=i, subsampling=i % 3,
                  progressive=i % 5 == 0, quality=20 + i)
    for size in (8, 21, 64):
        transform = compose(T.RandomResizedCrop(size), T.RandomHorizontalFlip(), T.PILToTensor())
        stats = check_epoch(ImageFolder(str(tmp_path), transform), epochs=2)
        assert stats.decode.native_samples == 120


# ---- images that go through Pillow ---------------------------------------------------------------


@pytest.mark.parametrize("name", ALL)
def test_other_kinds_go_through_pillow_with_the_same_draws(tmp_path, name):
    folder = tmp_path / "c"
    helpers.save_bare_jpeg(folder / "a_bare.jpg", 60, 50)
    save_jpeg(folder / "b_plain.jpg", 60, 50)
    for i, (kind, mode) in enumerate([("TIFF", "RGB"), ("TIFF", "RGBA"), ("GIF", "P"), ("BMP", "RGB")]):
        image = helpers.Image.fromarray(helpers.pixels(64, 48, i)).convert(mode)
        image.save(folder / f"c{i}_{kind}.jpg", kind)
    dataset = ImageFolder(str(tmp_path), ALL[name])
    stats = check_epoch(dataset, epochs=2)
    assert stats.decode.fallback_samples == stats.decode.fallback_samples
    assert (stats.decode.fallback_kind, stats.decode.fallback_format) == (2, 8)
    assert stats.decode.native_samples == 2 and stats.samples == 12
    assert stats.errors == 0 and stats.decode.fallback_ns > 0


def test_cmyk_and_ycck(tmp_path):
    make_jpeg(tmp_path / "c" / "ycck.jpg", size="70x50", space="ycck")
    make_jpeg(tmp_path / "c" / "cmyk.jpg", size="70x50", space="cmyk")
    save_jpeg(tmp_path / "c" / "pillow.jpg", 71, 53, mode="CMYK")
    save_jpeg(tmp_path / "c" / "progressive.jpg", 71, 53, mode="CMYK", progressive=True)
    stats = check_epoch(ImageFolder(str(tmp_path), ALL["crop_float32"]), epochs=2)
    assert (stats.decode.native_samples, stats.decode.fallback_samples) == (8, 0)


# ---- threads, readers and batch size -------------------------------------------------------------


def all_images(dataset, **options):
    loader = native_loader(dataset, seed=11, **options)
    return torch.cat([images for images, _ in loader])


@pytest.mark.parametrize("reader", ["pread", "uring"])
def test_threads_readers_and_batch_size_do_not_matter(folder, reader):
    if reader == "uring":
        helpers.need_uring()
    dataset = ImageFolder(str(folder), ALL["crop_float32"])
    wanted = all_images(dataset, batch_size=5, threads=1, reader="pread")
    for threads in (1, 2, 7):
        for batch_size in (1, 64):
            got = all_images(dataset, batch_size=batch_size, threads=threads, reader=reader)
            assert_same_image(got, wanted, f"{threads} threads, batches of {batch_size}")


def test_fetch_returns_the_delivered_sample(folder):
    dataset = ImageFolder(str(folder), ALL["crop_float32"])
    loader = native_loader(dataset, batch_size=8, num_workers=2)
    delivered = [torch.cat([images for images, _ in loader]) for _ in range(2)]
    assert not torch.equal(*delivered)
    for epoch in range(2):
        for index in range(0, len(dataset), 7):
            image, target = loader.fetch(index, epoch)
            assert_same_image(image, delivered[epoch][index], f"sample {index}")
            assert target == dataset.samples[index][1]
