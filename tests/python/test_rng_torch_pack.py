"""torch's random numbers with a pack: crops are drawn before their images are read, so that bytes
below them are not read, and batches equal those of torch's own DataLoader."""

import feedmill
import helpers
import pytest
from feedmill._native import jpeg_own_huffman
from feedmill.cli import cli
from test_rng_torch import batches_of, differences, few_cpus  # noqa: F401  a fixture
from torch.utils.data import DataLoader
from torchvision import transforms as v1
from torchvision.transforms import v2

CROP = v1.Compose([v1.RandomResizedCrop(24, (0.05, 0.4)), v1.RandomHorizontalFlip(), v1.ToTensor()])
JITTERED = v2.Compose([v2.RandomRotation(9), v2.RandomCrop(24), v2.ColorJitter(0.3), v1.ToTensor()])
KINDS = ("sampling=444", "sampling=420", "space=grey", "progressive=1", "sampling=422")


def pack(folder, out):
    assert cli.main(["pack", str(folder), str(out), "--shard-size", "60K"]) == 0
    return out


@pytest.fixture(scope="module")
def packed(tmp_path_factory):
    """A pack of JPEGs and a few images without a restart index."""
    root = tmp_path_factory.mktemp("images")
    for i in range(30):
        options = dict(one.split("=") for one in KINDS[i % len(KINDS)].split())
        size = f"{60 + 9 * (i % 5)}x{110 + 17 * (i % 7)}"
        helpers.make_jpeg(root / "ab"[i % 2] / f"{i:02}.jpg", size=size, seed=i, **options)
    helpers.save_jpeg(root / "a" / "05b.jpg", 70, 90, seed=90, mode="CMYK")
    helpers.save_bare_jpeg(root / "b" / "20b.jpg", 50, 140)
    return pack(root, tmp_path_factory.mktemp("packs") / "whole")


@pytest.fixture
def damaged(packed, tmp_path):
    """A copy of the pack with damaged headers. Damage in an image that passed the pack's check is
    seen only where a crop needs it."""
    dataset = feedmill.Pack(packed)
    out = tmp_path / "damaged"
    out.mkdir()
    for path in packed.iterdir():
        (out / path.name).write_bytes(path.read_bytes())
    for number, text in {3: b"xx", 11: b"\0" * 999, 26: b"\xff\xd8\xff\xda\0\2"}.items():
        place = dataset.place(number)
        shard = out / dataset.shard_path(place.shard).rsplit("/", 1)[-1]
        data = bytearray(shard.read_bytes())
        data[place.offset : place.offset + len(text)] = text
        shard.write_bytes(data)
    return out


def check(folder, transform=CROP, **options):
    dataset = feedmill.Pack(folder, transform)
    options = {"batch_size": 4, "shuffle": True, **options}
    wanted, got = (
        ["an error" if type(one) is tuple else one for one in batches_of(kind, dataset, **more)]
        for kind, more in (
            (DataLoader, options),
            (feedmill.DataLoader, {**options, "native": "require", "rng": "torch"}),
        )
    )
    assert differences(wanted, got) == []
    return wanted


@pytest.mark.parametrize("num_workers", [0, 1, 3, 8])
def test_batches_of_a_pack(packed, num_workers):
    check(packed, epochs=3, num_workers=num_workers)
    check(packed, JITTERED, num_workers=num_workers, prefetch_factor=3 if num_workers else None)


@pytest.mark.parametrize("num_workers", [0, 1, 3, 8])
def test_a_damaged_pack(damaged, num_workers):
    """Errors come at the same batches, and what follows is drawn as torch does. (A pack's own
    errors are of another type.)"""
    wanted = check(damaged, epochs=3, num_workers=num_workers)
    assert wanted.count("an error") >= 3


def n_read(dataset, **options):
    loader = feedmill.DataLoader(dataset, 4, native="require", **options)
    for _ in range(3):
        for _ in loader:
            pass
    return loader.stats().io.bytes


def test_fewer_bytes_are_read(packed):
    if not jpeg_own_huffman():
        pytest.skip("libjpeg-turbo's own decoder reads below the crop")
    dataset = feedmill.Pack(packed, CROP)
    whole = 3 * sum(dataset.place(i).bytes for i in range(len(dataset)))
    assert n_read(dataset, rng="torch", num_workers=2) < 0.9 * whole
    assert n_read(dataset, seed=3, num_workers=2) < 0.9 * whole
