"""Seek points (``seek_index=``): from the second epoch on, JPEGs are decoded from where their rows
begin, with the same pixels; also those of files that change, are damaged, or give several views."""

import feedmill
import pytest
import torch
from helpers import (
    Views,
    assert_same_image,
    images_of,
    native_loader,
    numbered_folder,
    pixels,
    save_jpeg,
)
from PIL import Image
from torchvision import transforms

N_EPOCHS = 4


def random_crop():
    return transforms.Compose([
        transforms.RandomResizedCrop(48, scale=(0.05, 1.0)), transforms.RandomHorizontalFlip(),
        transforms.ToTensor(),
    ])


@pytest.fixture
def photos(tmp_path):
    """JPEGs of several samplings and qualities, some progressive, with restarts or gray; a PNG."""
    folder = tmp_path / "class"
    folder.mkdir()
    for i, options in enumerate([
        {"subsampling": 0}, {"subsampling": 1}, {"subsampling": 2}, {"quality": 100},
        {"quality": 20}, {"mode": "L"}, {"progressive": True}, {"restart_marker_rows": 1},
        {"subsampling": 2, "quality": 98}, {"optimize": True},
    ]):
        save_jpeg(folder / f"{i}.jpg", 200 + 17 * i, 260 - 9 * i, seed=i, **options)
    Image.fromarray(pixels(120, 90)).save(folder / "x.png")
    return tmp_path


def epochs_of(loader, change=None):
    """The images of some epochs; ``change(number)`` is called before each."""
    epochs = []
    for number in range(N_EPOCHS):
        if change:
            change(number)
        epochs.append(images_of(loader))
    return torch.stack(epochs)


def both(root, change=None, seek_index=None, **options):
    """The stats of a loader with seek points, whose epochs equal those of one without."""
    results = []
    for size in (seek_index, 0):
        loader = native_loader(numbered_folder(root, random_crop()), batch_size=4, seed=5,
                               seek_index=size, **options)
        results.append((epochs_of(loader, change), loader.stats()))
    (got, stats), (wanted, without) = results
    assert torch.equal(got, wanted)
    assert without.io.seek_samples == without.io.seek_images == without.io.seek_bytes == 0
    return stats


@pytest.mark.parametrize("num_workers", [0, 2])
def test_pixels_are_the_same_in_all_epochs(photos, num_workers):
    stats = both(photos, num_workers=num_workers)
    io = stats.io
    if stats.decode.simd == "scalar":  # there, libjpeg decodes all by itself
        assert io.seek_samples == 0
        return
    assert io.seek_images == 8  # not the progressive one, that with restarts, and the PNG
    assert io.seek_samples == 8 * (N_EPOCHS - 1)
    assert 0 < io.seek_bytes < 100_000


def test_a_file_that_changes_is_decoded_anew(photos):
    def change(number):
        save_jpeg(photos / "class/0.jpg", 210, 190 + number, seed=number)
        save_jpeg(photos / "class/1.jpg", 217, 251, seed=1, quality=75 + number, subsampling=1)

    both(photos, change)


def test_a_file_that_becomes_damaged(photos):
    path = photos / "class/2.jpg"
    whole = path.read_bytes()

    def change(number):
        data = bytearray(whole)
        if number == 2:
            data[len(data) // 2 : len(data) // 2 + 40] = bytes(40)
        path.write_bytes(data)

    both(photos, change, on_error="zero")


def test_views_share_the_points(photos):
    folder = numbered_folder(photos, Views(random_crop(), random_crop()))
    results = []
    for seek_index in (None, 0):
        loader = native_loader(folder, batch_size=3, seed=1, seek_index=seek_index)
        results.append([batch for _ in range(3) for batch in loader])
    for (got, _), (wanted, _) in zip(*results, strict=True):
        for one, other in zip(got, wanted, strict=True):
            assert_same_image(one, other, "a view")


def test_verify_compares_with_torchvision(photos):
    loader = native_loader(numbered_folder(photos, random_crop()), batch_size=4, native="verify")
    for _ in range(3):
        assert len(images_of(loader)) == 11


def test_a_small_index_keeps_what_fits(photos):
    for i in range(4):
        save_jpeg(photos / f"class/tall{i}.jpg", 100, 900, seed=i, subsampling=0)
    io = both(photos, seek_index=2500).io
    assert 0 < io.seek_bytes <= 2500 or io.seek_images == 0
    assert io.seek_images < 12


def test_an_index_in_a_file_is_found_again(photos, tmp_path_factory):
    path = tmp_path_factory.mktemp("index") / "seek"
    first = both(photos, seek_index=path)
    second = both(photos, seek_index=str(path))
    n = first.io.seek_images
    assert second.io.seek_images == n
    assert second.io.seek_samples == n * N_EPOCHS  # of the first epoch, too
    assert first.io.seek_samples == n * (N_EPOCHS - 1)
    save_jpeg(photos / "class/more.jpg", 50, 50)
    loader = native_loader(numbered_folder(photos, random_crop()), seek_index=path)
    with pytest.raises(ValueError, match="a dataset of 11 samples, not of 12"):
        next(iter(loader))


def test_an_index_that_can_not_be_made(photos, tmp_path):
    loader = native_loader(numbered_folder(photos, random_crop()),
                           seek_index=tmp_path / "none/seek")
    with pytest.raises(OSError, match="none/seek for seek points: No such file"):
        next(iter(loader))


def test_the_report_names_them(photos):
    loader = native_loader(numbered_folder(photos, random_crop()), batch_size=4)
    epochs_of(loader)
    stats = loader.stats()
    assert ("seek points" in str(stats.report())) == (stats.io.seek_samples > 0)


@pytest.mark.parametrize("value", [
    -1, 1.5, "", b"x", True, 1 << 64, "1GiB", "512 MB", "ram:1GiB", "4096",
])
def test_invalid_values(photos, value):
    with pytest.raises(ValueError, match="seek_index"):
        feedmill.DataLoader(numbered_folder(photos), seek_index=value)
