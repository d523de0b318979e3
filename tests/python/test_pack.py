"""The command `feedmill pack`, and the dataset feedmill.Pack with the packed folder's samples."""

import errno
import io
import os
import pickle
import shutil
import signal
import subprocess
import sys
import tarfile

import feedmill
import helpers
import numpy as np
import pytest
import torch
from feedmill.cli import cli
from feedmill.packing import writer
from feedmill.packing.index import TRANSCODED, VERIFIED, Index, PackError
from feedmill.packing.tars import members
from PIL import Image
from torch.utils.data import DataLoader, Subset, WeightedRandomSampler
from torchvision import transforms
from torchvision.datasets import ImageFolder

TO_TENSOR = transforms.PILToTensor()
LONG = "long" * 40


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder of images of many formats, with unusual names."""
    root = tmp_path_factory.mktemp("images")
    kinds = ["sampling=444", "sampling=420", "sampling=411", "space=grey", "space=cmyk",
             "progressive=1 sampling=420", "scans=split", "arithmetic=1", "restart=2 apps=3",
             "orientation=6"]
    for i, kind in enumerate(kinds):
        options = dict(one.split("=") for one in kind.split())
        helpers.make_jpeg(root / f"b{i % 3}" / f"{i:02}.JPEG", size=f"{37 + 9 * i}x{41 + 5 * i}",
                          seed=i, **options)
    for i, name in enumerate(["a.b.jpg", "a%2Eb.jpg", "same.jpg", "same.jpeg", "ü.jpg",
                              f"deep/{LONG}.jpg", ".hidden.jpg", "one\nline.jpg"]):
        helpers.save_jpeg(root / "a c" / name, 30 + i, 40, seed=20 + i)
    for name in ("same.png", "x.webp", "y.bmp"):
        Image.fromarray(helpers.pixels(20, 30, seed=7)).save(root / "a c" / name)
    helpers.save_bare_jpeg(root / "b0" / "bare.jpg", 50, 40)
    helpers.save_jpeg(os.fsdecode(bytes(root) + b"/b1/not utf-8 \xff.jpg"), 60, 50, seed=40)
    return root


@pytest.fixture(scope="module")
def packed(folder, tmp_path_factory):
    """A pack of that folder with several shards, which tests only read."""
    out = tmp_path_factory.mktemp("packs") / "whole"
    assert run(folder, out, "--shard-size", "20K") == 0
    return out


def run(*words):
    return cli.main(["pack", *map(str, words)])


def members_of(folder):
    found = []
    for path in sorted(folder.glob("*.tar")):
        with tarfile.open(path) as tar:
            found += [(one.name, tar.extractfile(one).read()) for one in tar]
    return found


def files_of(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


# ---- the dataset ---------------------------------------------------------------------------------


def test_samples_equal_those_of_the_folder(folder, packed):
    wanted = ImageFolder(str(folder), TO_TENSOR)
    dataset = feedmill.Pack(packed, transform=TO_TENSOR)
    assert len(dataset) == len(wanted) == 23
    assert dataset.classes == wanted.classes and dataset.class_to_idx == wanted.class_to_idx
    assert dataset.targets == wanted.targets
    assert np.asarray(dataset.targets).tolist() == wanted.targets
    names = [(os.path.relpath(path, folder), label) for path, label in wanted.samples]
    assert dataset.samples == names and list(dataset.imgs) == names
    assert dataset.samples[-1] == names[-1] and dataset.targets[2:5] == wanted.targets[2:5]
    for i in range(len(wanted)):
        image, label = dataset[i]
        assert torch.equal(image, wanted[i][0]) and label == wanted[i][1], names[i]
    assert torch.equal(dataset[-2][0], wanted[-2][0])
    assert torch.tensor(dataset.targets).tolist() == wanted.targets
    assert np.bincount(dataset.targets).tolist() == np.bincount(wanted.targets).tolist()
    assert dataset.targets.index(2) == wanted.targets.index(2)
    for index in (23, -24):
        with pytest.raises(IndexError, match="out of range for 23 samples"):
            dataset[index]
    assert f"{len(list(packed.glob('*.tar')))} shards" in repr(dataset)


def test_the_contents_of_the_index(folder, packed):
    dataset = feedmill.Pack(packed)
    for i, (name, _) in enumerate(dataset.samples):
        place, rows = dataset.place(i), dataset.restart_index_of(i)
        data = dataset.encoded(i)
        assert len(data) == place.bytes
        part, target = dataset.feedmill_item(i)
        is_new = place.flags & TRANSCODED != 0
        assert part[:4] == (dataset.shard_path(place.shard), place.offset, place.bytes, is_new)
        assert target == dataset.targets[i]
        assert part[4] == ((place.width, place.height, place.mcu_height, *rows) if rows else None)
        with open(dataset.shard_path(place.shard), "rb") as shard:
            shard.seek(place.offset)
            assert shard.read(place.bytes) == data
        source = (folder / name).read_bytes()
        if not place.flags & TRANSCODED:
            assert data == source and rows == () and place.interval == 0
            continue
        with Image.open(io.BytesIO(data)) as image, Image.open(folder / name) as before:
            assert image.size == before.size == (place.width, place.height)
            assert image.info.get("exif") == before.info.get("exif")
        assert place.flags & VERIFIED and place.interval > 0
        scan = data.rindex(b"\xff\xda", 0, rows[0]) + 2
        assert len(rows) == 8 and rows[0] == scan + int.from_bytes(data[scan : scan + 2], "big")
        for at in rows[1:]:
            assert at == rows[0] or (data[at - 2] == 0xFF and 0xD0 <= data[at - 1] <= 0xD7)
    kept = {name for i, (name, _) in enumerate(dataset.samples) if not dataset.place(i).flags}
    assert {os.path.basename(name) for name in kept} == {
        "same.png", "x.webp", "y.bmp", "bare.jpg", "07.JPEG"
    }


@pytest.mark.parametrize("workers", [0, 2])
def test_a_pack_works_with_torchs_loader(folder, packed, workers):
    transform = helpers.compose(transforms.Resize((20, 20)), TO_TENSOR)
    dataset = feedmill.Pack(packed, transform, target_transform=lambda label: 10 * label)
    wanted = ImageFolder(str(folder), transform, target_transform=lambda label: 10 * label)
    with_lambda = DataLoader(dataset, batch_size=5, num_workers=workers)
    for (images, labels), (want, want_labels) in zip(with_lambda, DataLoader(wanted, batch_size=5)):
        assert torch.equal(images, want) and torch.equal(labels, want_labels)


def test_a_pack_runs_natively(folder, packed):
    """Equal bit for bit: shuffled, through Subset and samplers, and with a target_transform."""
    transform = helpers.compose(
        transforms.RandomResizedCrop(24), transforms.RandomHorizontalFlip(), transforms.ToTensor()
    )
    dataset, wanted = feedmill.Pack(packed, transform), ImageFolder(str(folder), transform)
    sampler = WeightedRandomSampler([1.0] * 23, 30, generator=torch.Generator().manual_seed(3))
    for options in (
        {"shuffle": True, "generator": torch.Generator().manual_seed(1)}, {}, {"sampler": sampler}
    ):
        batches = []
        for one in (dataset, wanted):
            if "generator" in options:
                options["generator"].manual_seed(1)
            sampler.generator.manual_seed(3)
            loader = helpers.native_loader(
                one, batch_size=6, num_workers=2, seed=5, **options
            ) if one is dataset else feedmill.DataLoader(
                one, batch_size=6, num_workers=2, seed=5, **options
            )
            batches.append(list(loader))
        for (images, labels), (want, want_labels) in zip(*batches, strict=True):
            assert torch.equal(images, want) and torch.equal(labels, want_labels)
    dataset.target_transform = str
    loader = helpers.native_loader(Subset(dataset, [3, 1]), batch_size=2)
    assert next(iter(loader))[1] == ("0", "0")


def test_verify_finds_no_difference(packed):
    transform = helpers.compose(transforms.RandomResizedCrop(16), transforms.ToTensor())
    dataset = feedmill.Pack(packed, transform)
    loader = feedmill.DataLoader(dataset, batch_size=8, native="verify")
    assert sum(len(labels) for _, labels in loader) == 23


def test_a_pack_is_pickled_as_its_path(packed):
    dataset = feedmill.Pack(packed / "index.fmp", TO_TENSOR)
    text = pickle.dumps(dataset)
    assert len(text) < 1000
    copy = pickle.loads(text)
    assert torch.equal(copy[4][0], dataset[4][0]) and copy.samples == list(dataset.samples)


def test_ordinary_tools_read_the_shards(folder, packed):
    wanted = ImageFolder(str(folder), TO_TENSOR)
    read = []
    for shard in sorted(packed.glob("*.tar")):
        with tarfile.open(shard) as tar, open(shard, "rb") as file:
            infos = tar.getmembers()
            read += [(one.name, tar.extractfile(one).read()) for one in infos]
            mine = members(file.fileno(), os.stat(shard).st_size, str(shard))
            assert [(one.name, one.offset, one.bytes) for one in mine] == [
                (one.name, one.offset_data, one.size) for one in infos
            ]
    assert len(read) == 2 * len(wanted)
    for i, (path, label) in enumerate(wanted.samples):
        (name, data), (label_name, text) = read[2 * i], read[2 * i + 1]
        assert label_name == name.rpartition(".")[0] + ".cls" and int(text) == label
        assert name.split("/")[0] == os.path.relpath(path, folder).split("/")[0]
        with Image.open(io.BytesIO(data)) as image:
            assert torch.equal(TO_TENSOR(image.convert("RGB")), wanted[i][0]), path


def test_the_package_webdataset_reads_the_shards(folder, packed):
    try:
        import webdataset
    except ImportError:
        helpers.skip("the package webdataset is not installed")
    urls = [str(path) for path in sorted(packed.glob("*.tar"))]
    wanted = ImageFolder(str(folder), TO_TENSOR)
    # webdataset's decoder goes by suffix, and does not support bmp.
    samples = list(webdataset.WebDataset(urls, shardshuffle=False).decode("pilrgb"))
    assert len(samples) == len(wanted)
    for i, sample in enumerate(samples):
        assert sample["cls"] == wanted[i][1]
        (image,) = (v for k, v in sample.items() if not k.startswith("__") and k != "cls")
        if isinstance(image, bytes):
            image = Image.open(io.BytesIO(image)).convert("RGB")
        assert torch.equal(TO_TENSOR(image), wanted[i][0])


# ---- making packs --------------------------------------------------------------------------------


def test_parts_make_the_same_pack(folder, packed, tmp_path, capsys):
    """Parts in any order, with any number of threads, give the same bytes as one run."""
    out = tmp_path / "parts"
    for part, workers in ((2, 1), (0, 3), (1, 2)):
        assert run(folder, out, "--shard-size", "20K", "--part", f"{part}/3", "--workers",
                   workers) == 0
        if part == 0:
            assert run("--join", out) == 1
            assert "shards are missing: shard-00000" in capsys.readouterr().err
            with pytest.raises(PackError, match="--join"):
                feedmill.Pack(out)
    assert run("--join", out) == 0
    assert files_of(out) == files_of(packed)
    assert run("--join", out) == 1 and "no shards" in capsys.readouterr().err


def test_more_parts_than_shards(folder, tmp_path):
    for part in range(3):
        assert run(folder, tmp_path / "out", "--part", f"{part}/3") == 0
    assert run("--join", tmp_path / "out") == 0
    assert len(feedmill.Pack(tmp_path / "out")) == 23


def test_the_printed_text(folder, tmp_path, capsys):
    assert run(folder, tmp_path / "out", "--interval", "2", "--no-verify") == 0
    lines = capsys.readouterr().out
    assert "23 samples in 1 shard, in " in lines and "samples of 4 classes" in lines
    assert "stored unchanged: 5 (3 not a JPEG" in lines and "1 arithmetic coding" in lines
    index = Index.open(tmp_path / "out" / "index.fmp")
    assert not np.any(index.records["flags"] & VERIFIED)
    assert set(index.records["interval"]) <= {0, 1, 2, 3}


def test_damaged_images_are_stored_as_they_are(folder, tmp_path, capsys):
    jpeg = helpers.save_jpeg(tmp_path / "in" / "c" / "whole.jpg", 90, 70).read_bytes()
    files = {"cut.jpg": jpeg[:-300], "empty.jpg": b"", "no.jpg": b"text"}
    for name, data in files.items():
        (tmp_path / "in" / "c" / name).write_bytes(data)
    assert run(tmp_path / "in", tmp_path / "out") == 0
    assert "3 (2 not a JPEG, 1 damaged or cut short)" in capsys.readouterr().out
    dataset = feedmill.Pack(tmp_path / "out", TO_TENSOR)
    for i, name in enumerate(("cut.jpg", "empty.jpg", "no.jpg")):
        assert dataset.encoded(i) == files[name]
        with pytest.raises(ValueError, match=f"'c/{name}' in .*shard-000000.tar: "):
            dataset[i]
    loader = feedmill.DataLoader(
        feedmill.Pack(tmp_path / "out", helpers.compose(transforms.Resize((8, 8)), TO_TENSOR)),
        batch_size=4, on_error="skip", max_errors=3,
    )
    assert [len(labels) for _, labels in loader] == [1]
    errors = loader.stats().sample_errors
    assert [error.index for error in errors] == [0, 1, 2]
    assert "'c/cut.jpg' in " in errors[0].path and "shard-000000.tar" in errors[0].path


def test_an_interrupted_run_is_resumed(folder, packed, tmp_path, monkeypatch, capsys):
    """Partly written files are removed. Complete shards stay and are not packed again."""
    out, made = tmp_path / "out", []
    real = writer._pack

    def fails(sample, *rest):
        made.append(sample.name)
        if len(made) > 12:
            raise OSError("no space left, say")
        return real(sample, *rest)

    monkeypatch.setattr(writer, "_pack", fails)
    words = (folder, out, "--shard-size", "20K", "--workers", "1")
    assert run(*words) == 1 and "no space left" in capsys.readouterr().err
    whole = files_of(out)
    assert whole and all(name.endswith((".tar", ".fmp")) for name in whole)
    assert {name: data for name, data in files_of(packed).items() if name in whole} == {
        name: data for name, data in whole.items() if name.endswith(".tar")
    }
    n_made, made[:] = len(made), [""] * -100
    monkeypatch.setattr(writer, "_pack", lambda *args: made.append(1) or real(*args))
    assert run(*words) == 0
    assert "of which existed already" in capsys.readouterr().out
    assert len(made) < 23 <= n_made + len(made)
    assert files_of(out) == files_of(packed)


# Packing of the 14th image waits until the run is being ended.
KILLED = """
import argparse, sys, threading
from feedmill.cli import pack
from feedmill.packing import writer
real, n, ending = writer._pack, [], threading.Event()
def held(*args):
    n.append(1)
    if len(n) == 14:
        print("ready", flush=True)
        ending.wait()
    return real(*args)
class Pool(writer.ThreadPoolExecutor):
    def shutdown(self, *args, **options):
        ending.set()
        super().shutdown(*args, **options)
writer._pack, writer.ThreadPoolExecutor = held, Pool
parser = argparse.ArgumentParser()
pack.add_pack(parser.add_subparsers())
words = ["pack", sys.argv[1], sys.argv[2], "--shard-size", "20K", "--workers", "1"]
assert "torch" not in sys.modules
arguments = parser.parse_args(words)
sys.exit(arguments.run(arguments, parser))
"""


def test_a_killed_run_leaves_no_partly_written_file(folder, packed, tmp_path):
    statuses, whole = {"TERM": 143, "INT": -2, "KILL": -9}, files_of(packed)
    processes = {
        name: subprocess.Popen([sys.executable, "-c", KILLED, folder, tmp_path / name],
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for name in statuses
    }
    for name, process in processes.items():
        assert process.stdout.readline() == "ready\n"
        process.send_signal(getattr(signal, f"SIG{name}"))
    for name, process in processes.items():
        errors = process.communicate(timeout=600)[1]
        assert process.returncode == statuses[name], errors
        left = files_of(tmp_path / name)
        assert all(whole[one] == data for one, data in left.items() if one.endswith(".tar"))
        assert "index.fmp" not in left
        if name != "KILL":
            assert all(one.endswith((".tar", ".fmp")) for one in left)
        assert run(folder, tmp_path / name, "--shard-size", "20K") == 0
        assert files_of(tmp_path / name) == whole


@pytest.mark.parametrize("end", ["both", "first fails", "after joining"])
def test_two_processes_write_the_same_shards(folder, packed, tmp_path, monkeypatch, end):
    """A process that was given up for lost writes on while its work is done again: no file is torn.
    """
    out, real, n = tmp_path / "out", writer._pack, []
    words = (folder, out, "--shard-size", "20K", "--workers", "1")

    def late(sample, *rest):
        n.append(sample)
        if len(n) == 8:  # somewhere within a shard, the other process writes all shards
            part = ["--part", "0/1"] if end != "after joining" else []
            command = [sys.executable, "-m", "feedmill", "pack", *words, *part]
            subprocess.run(command, check=True, timeout=600)
            if end == "first fails":
                raise OSError("lost")
        return real(sample, *rest)

    monkeypatch.setattr(writer, "_pack", late)
    first = run(*words, "--part", "0/1")
    assert first == (0 if end == "both" else 1)
    if end != "after joining":
        assert not list(out.glob("*.partial"))
        assert run("--join", out) == 0
    assert files_of(out) == files_of(packed)


def test_joining_removes_what_killed_processes_left(folder, packed, tmp_path):
    out = tmp_path / "out"
    out.mkdir()
    token = "0123456789abcdef"
    left = [f"shard-000001.tar.{token}.partial", f"shard-000001.fmp.{token}.partial",
            f"index.fmp.{token}.partial", f"nodes.{token}.partial", "shard-000001.tar.partial"]
    for name in [*left, "mine.partial"]:
        (out / name).write_bytes(b"left")
    assert run(folder, out, "--shard-size", "20K") == 0
    assert files_of(out) == {**files_of(packed), "mine.partial": b"left"}


def test_errors_of_reads_and_writes_name_the_file(folder, tmp_path, monkeypatch, capsys):
    def fails(*args):
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(os, "pread", fails)
        assert run(folder, tmp_path / "x") == 1
    assert f"error: '{folder}/a c/" in capsys.readouterr().err
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fails)
        assert run(folder, tmp_path / "y") == 1
    assert f"error: '{tmp_path}/y/shard-000000" in capsys.readouterr().err


def test_ray_is_missing_or_misplaced(folder, tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    for words, text in (
        ((folder, tmp_path / "out", "--ray"), "needs ray, which is not installed in this Python"),
        ((folder, tmp_path / "out", "--ray", "--part", "0/2"), "leave out --part"),
        (("--ray", folder, tmp_path / "out"), "write --ray behind SRC and OUT"),
        (("--join", tmp_path / "out", "--ray"), "--join takes only OUT"),
    ):
        with pytest.raises(SystemExit) as caught:
            run(*words)
        assert caught.value.code == 2
        assert text in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_pack_can_be_packed_again(packed, folder, tmp_path):
    """Tar files as the source: the same images, all members, and numbers as labels."""
    assert run(packed, tmp_path / "again", "--shard-size", "20K") == 0
    first, second = feedmill.Pack(packed, TO_TENSOR), feedmill.Pack(tmp_path / "again", TO_TENSOR)
    assert second.targets == list(first.targets) and second.classes == ["0", "1", "2", "3"]
    assert all(torch.equal(first[i][0], second[i][0]) for i in range(23))
    assert members_of(tmp_path / "again") == members_of(packed)


def test_bad_usage_and_wrong_folders(folder, packed, tmp_path, capsys):
    (tmp_path / "empty").mkdir()
    (tmp_path / "hollow" / "c").mkdir(parents=True)
    other = tmp_path / "other"
    other.mkdir()
    (other / "shard-000000.tar").write_bytes(b"somebody's")
    for words, text in (
        ((folder, packed), "is already a pack"),
        ((folder, folder / "b0" / "pack"), "is inside"),
        ((folder, other), "shard-000000.tar: the file exists"),
        ((tmp_path / "empty", tmp_path / "x"), "neither a folder for each class"),
        ((tmp_path / "hollow", tmp_path / "x"), "the class has no images"),
        ((tmp_path / "none.tar", tmp_path / "x"), "No such file"),
        (("feedmilltest://host/a.tar", tmp_path / "x"), "does not know feedmilltest://"),
    ):
        assert run(*words) == 1 and text in capsys.readouterr().err
    assert (other / "shard-000000.tar").read_bytes() == b"somebody's"
    for words in ((folder,), ("--join", folder, packed), (folder, "x", "--part", "3/3"),
                  (folder, "x", "--interval", "0"), (folder, "x", "--shard-size", "0")):
        with pytest.raises(SystemExit) as caught:
            run(*words)
        assert caught.value.code == 2
    capsys.readouterr()
    for path in (tmp_path / "empty", tmp_path / "nothing", folder / "b0" / "bare.jpg"):
        with pytest.raises((PackError, OSError)):
            feedmill.Pack(path)


# ---- damage --------------------------------------------------------------------------------------


@pytest.fixture
def damaged(packed, tmp_path):
    """A copy of the pack that a test may damage."""
    return shutil.copytree(packed, tmp_path / "damaged")


def test_errors_name_a_truncated_shard(damaged):
    dataset = feedmill.Pack(damaged, helpers.compose(transforms.Resize((8, 8)), TO_TENSOR))
    shard, places = dataset.shard_path(1), [dataset.place(i) for i in range(23)]
    n_left = os.stat(shard).st_size // 2
    os.truncate(shard, n_left)
    bad = [i for i in range(23)
           if places[i].shard == 1 and places[i].offset + places[i].bytes > n_left]
    assert 0 < len(bad) < 23
    name, _ = dataset.samples[bad[-1]]
    for one in (dataset, pickle.loads(pickle.dumps(dataset))):
        with pytest.raises(PackError, match=f"{name}.* in .*shard-000001.tar: .*truncated"):
            one[bad[-1]]
    loader = feedmill.DataLoader(dataset, batch_size=23, on_error="replace", native="require")
    (images, labels), = loader
    assert images.shape == (23, 3, 8, 8)
    assert sorted(error.index for error in loader.stats().sample_errors) == bad
    plain = feedmill.DataLoader(dataset, batch_size=1, sampler=[bad[-1], 0], native="require")
    iterator = iter(plain)
    with pytest.raises(Exception, match=f"{name}' in .*shard-000001.tar"):
        next(iterator)
    assert next(iterator)[1].tolist() == [0]


def test_a_missing_or_replaced_shard(damaged):
    shard = feedmill.Pack(damaged).shard_path(1)
    with open(shard, "ab") as file:
        file.write(b"more")
    dataset = feedmill.Pack(damaged, helpers.compose(transforms.Resize((8, 8)), TO_TENSOR))
    i = next(i for i in range(23) if dataset.place(i).shard == 1)
    for text in ("it was replaced", "No such file"):
        for one in (dataset, feedmill.DataLoader(dataset, sampler=[i], native="require")):
            with pytest.raises(PackError, match=f"shard-000001.tar: .*{text}"):
                one[i] if one is dataset else next(iter(one))
        # on_error= treats it like a damaged sample.
        loader = feedmill.DataLoader(dataset, 23, on_error="replace", native="require")
        (images, labels), = loader
        missing = [i for i in range(23) if dataset.place(i).shard == 1]
        assert sorted(error.index for error in loader.stats().sample_errors) == missing
        assert all(text in error.cause for error in loader.stats().sample_errors)
        zeroed, = feedmill.DataLoader(dataset, 23, on_error="zero", native="require")
        assert zeroed[1].tolist() == list(dataset.targets)
        assert [i for i, image in enumerate(zeroed[0]) if not image.any()] == missing
        if os.path.exists(shard):
            os.unlink(shard)
        dataset = pickle.loads(pickle.dumps(dataset))


def test_errors_name_a_damaged_sample(damaged):
    dataset = feedmill.Pack(damaged, helpers.compose(transforms.Resize((8, 8)), TO_TENSOR))
    i = next(i for i in range(23) if dataset.place(i).flags)
    place, (name, _) = dataset.place(i), dataset.samples[i]
    with open(dataset.shard_path(place.shard), "r+b") as shard:
        shard.seek(place.offset + 2)
        shard.write(bytes(place.bytes - 2))
    for kind in (feedmill.DataLoader, DataLoader):
        with pytest.raises(Exception, match=f"{name}' in .*shard-"):
            next(iter(kind(dataset, batch_size=1, sampler=[i])))


def test_other_errors_of_an_index(damaged):
    path = damaged / "index.fmp"
    data = bytearray(path.read_bytes())
    for at, text in ((0, "not the index"), (8, "version"), (50, "header is damaged")):
        wrong = data.copy()
        wrong[at] ^= 0xFF
        path.write_bytes(wrong)
        with pytest.raises(PackError, match=text):
            feedmill.Pack(damaged)
    path.write_bytes(data[:-1])
    with pytest.raises(PackError, match="its header says"):
        feedmill.Pack(damaged)
    path.write_bytes(b"")
    with pytest.raises(PackError, match="not the index of a pack: it has only 0 bytes"):
        feedmill.Pack(damaged)
