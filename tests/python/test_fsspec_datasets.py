"""Indexes, packs and tar files that fsspec reads: from memory, and from a file system of the tests'
own, also in other processes."""

import contextlib
import json
import pickle
import sys
import tarfile
from pathlib import Path

import feedmill
import fsspec
import helpers
import pytest
import torch
from feedmill.cli import cli
from feedmill.data import ImageList
from feedmill.indexing.by_fsspec import root_of
from feedmill.packing import objects
from feedmill.packing.index import PackError
from fsspec.implementations.local import LocalFileSystem
from fsspec.implementations.memory import MemoryFileSystem
from helpers import compose, remote_loader
from torch.utils.data import ConcatDataset
from torch.utils.data import DataLoader as TorchDataLoader
from torchvision import transforms as T
from torchvision.datasets import ImageFolder

FIXED = compose(T.Resize((8, 9)), T.ToTensor())
CROP = compose(T.RandomResizedCrop(16, scale=(0.1, 0.3)), T.ToTensor())


class OwnFiles(LocalFileSystem):
    """Files, under a scheme that only the tests know."""

    protocol = "ownfiles"

    @classmethod
    def _strip_protocol(cls, path):
        return LocalFileSystem._strip_protocol(str(path).removeprefix("ownfiles://"))


@pytest.fixture(autouse=True)
def clean(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    fsspec.register_implementation("ownfiles", OwnFiles, clobber=True)
    yield
    MemoryFileSystem.store.clear()


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A folder with in/, an image folder; out/, its pack; and two tar files."""
    root = tmp_path_factory.mktemp("fsspec")
    for i in range(24):
        helpers.save_jpeg(root / "in" / f"c{i % 3}" / f"{i} #é.jpg", 60 + i, 50, seed=i)
    (root / "in" / "c1" / "deep").mkdir()
    (root / "in" / "c1" / "13 #é.jpg").rename(root / "in" / "c1" / "deep" / "13.jpg")
    assert cli.main(["pack", str(root / "in"), str(root / "out"), "--shard-size", "20K"]) == 0
    for number in range(2):
        with tarfile.open(root / f"t-{number}.tar", "w") as tar:
            for i in range(5):
                helpers.save_jpeg(root / "one.jpg", 40 + i, 30, seed=100 * number + i)
                tar.add(root / "one.jpg", f"{number}-{i}.jpg")
    return root


@pytest.fixture(params=["memory", "ownfiles"])
def place(request, made):
    """The name of the folder in a file system of fsspec."""
    if request.param == "ownfiles":
        return f"ownfiles://{made}"
    memory = fsspec.filesystem("memory")
    for path in made.rglob("*"):
        if path.is_file():
            memory.pipe_file(f"/at/{path.relative_to(made)}", path.read_bytes())
    return "memory://at"


def batches_of(loader, seed=0):
    torch.manual_seed(seed)
    return [(images.clone(), labels.clone()) for images, labels in loader]


def assert_equal(mine, expected):
    assert len(mine) == len(expected)
    for (images, labels), (more, others) in zip(mine, expected):
        assert torch.equal(images, more) and torch.equal(labels, others)


def index_of(place, tmp_path, transform=FIXED, *options):
    path = tmp_path / "x.index"
    assert cli.main(["index", f"{place}/in", "-o", str(path), *options]) == 0
    return feedmill.Index(path, transform)


def tars_of(place, transform=FIXED):
    return feedmill.WebDataset(f"{place}/t-{{0..1}}.tar", transform)


# ---- batches -------------------------------------------------------------------------------------


def test_an_index_is_as_its_folder(place, made, tmp_path, capsys):
    folder = ImageFolder(str(made / "in"), FIXED)
    dataset = index_of(place, tmp_path)
    assert "24 images of 3 classes" in capsys.readouterr().out
    assert dataset.classes == folder.classes and list(dataset.targets) == folder.targets
    assert dataset.root == f"{place}/in" and dataset.is_remote
    assert [name.removeprefix(dataset.root) for name, _ in dataset.samples] == [
        path.removeprefix(str(made / "in")) for path, _ in folder.samples]
    assert dataset.sizes.tolist() == [Path(path).stat().st_size for path, _ in folder.samples]
    assert set(dataset.etags) == {""}
    assert torch.equal(dataset[5][0], folder[5][0]) and dataset[5][1] == folder[5][1]


@pytest.mark.parametrize("kind", ["index", "pack", "tars"])
@pytest.mark.parametrize("transform", [FIXED, CROP], ids=["fixed", "crop"])
def test_batches_are_torchs(place, made, tmp_path, kind, transform):
    if kind == "index":
        dataset, local = index_of(place, tmp_path, transform), ImageFolder(str(made / "in"), transform)
    elif kind == "pack":
        dataset = feedmill.Pack(f"{place}/out", transform)
        local = ImageFolder(str(made / "in"), transform)
    else:
        dataset = tars_of(place, transform)
        local = feedmill.WebDataset(str(made / "t-{0..1}.tar"), transform)
    for workers in (0, 2):
        options = {"batch_size": 7, "shuffle": True, "num_workers": workers}
        loader = remote_loader(dataset, **options)
        scheme = place.partition("://")[0]
        assert f"network    read by fsspec ({scheme}://) in 16 threads" in loader.explain()
        assert_equal(batches_of(loader), batches_of(TorchDataLoader(local, **options)))
        assert loader.stats().decode.fallback_samples == 0
        assert loader.stats().io.reader.endswith("+custom")


@pytest.mark.parametrize("native", ["off", "hybrid", "verify"])
def test_other_paths_and_processes(place, made, tmp_path, native):
    expected = batches_of(TorchDataLoader(ImageFolder(str(made / "in"), FIXED), batch_size=7))
    for dataset in (index_of(place, tmp_path), feedmill.Pack(f"{place}/out/index.fmp", FIXED)):
        loader = feedmill.DataLoader(dataset, batch_size=7, num_workers=2, native=native)
        assert_equal(batches_of(loader), expected)


def test_mixed_with_files(place, made, tmp_path):
    folder = ImageFolder(str(made / "in"), FIXED)
    local = ConcatDataset([folder, feedmill.WebDataset(str(made / "t-{0..1}.tar"), FIXED)] * 2)
    mixed = ConcatDataset([index_of(place, tmp_path), tars_of(place), folder,
                           feedmill.WebDataset(str(made / "t-{0..1}.tar"), FIXED)])
    options = {"batch_size": 9, "shuffle": True, "num_workers": 2}
    loader = remote_loader(mixed, **options)
    assert_equal(batches_of(loader), batches_of(TorchDataLoader(local, **options)))
    listed = ImageList([*(path for path, _ in folder.samples[:9]),
                        *(name for name, _ in mixed.datasets[0].samples[9:])], transform=FIXED)
    images = torch.cat([one for one, _ in batches_of(remote_loader(listed))])
    assert torch.equal(images, torch.stack([image for image, _ in folder]))


def test_resumed(place, tmp_path):
    for dataset in (index_of(place, tmp_path), feedmill.Pack(f"{place}/out", FIXED), tars_of(place)):
        options = {"batch_size": 3, "shuffle": True, "num_workers": 1}
        whole = batches_of(remote_loader(dataset, **options))
        loader = remote_loader(dataset, **options)
        torch.manual_seed(0)
        batches = iter(loader)
        next(batches)
        state = loader.state_dict()
        other = remote_loader(pickle.loads(pickle.dumps(dataset)), **options)
        other.load_state_dict(state)
        assert_equal(batches_of(other), whole[1:])


@pytest.mark.slow
def test_another_process(made, tmp_path):
    """It registers the scheme itself, and opens the index and the pickled pack."""
    place = f"ownfiles://{made}"
    index_of(place, tmp_path)
    (tmp_path / "pickled").write_bytes(pickle.dumps(feedmill.Pack(f"{place}/out", FIXED)))
    helpers.run_script(f"""
import pickle, sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
import test_fsspec_datasets as tests
import fsspec, torch
from torchvision.datasets import ImageFolder
if __name__ == "__main__":
    fsspec.register_implementation("ownfiles", tests.OwnFiles)
    images = [image for image, _ in ImageFolder({str(made / "in")!r}, tests.FIXED)]
    pack = pickle.loads(open({str(tmp_path / "pickled")!r}, "rb").read())
    index = feedmill.Index({str(tmp_path / "x.index")!r}, tests.FIXED)
    for dataset in (pack, index):
        for options in ({{"native": "require"}}, {{"native": "off", "num_workers": 2}}):
            found = [one for one, _ in feedmill.DataLoader(dataset, batch_size=1, **options)]
            assert torch.equal(torch.cat(found), torch.stack(images))
""")


# ---- commands ------------------------------------------------------------------------------------


def test_pack_from_tars(place, made, tmp_path):
    out = tmp_path / "packed"
    assert cli.main(["pack", f"{place}/t-{{0..1}}.tar", str(out)]) == 0
    local = feedmill.WebDataset(str(made / "t-{0..1}.tar"), FIXED)
    assert_equal(batches_of(feedmill.DataLoader(feedmill.Pack(out, FIXED), batch_size=3)),
                 batches_of(TorchDataLoader(local, batch_size=3)))
    again = tmp_path / "again"
    assert cli.main(["pack", f"{place}/out/", str(again)]) == 0
    assert len(feedmill.Pack(again)) == 24


def test_commands(place, made, capsys):
    assert cli.main(["check", f"{place}/out/"]) == 0
    assert "24 images: 24 decoded natively" in capsys.readouterr().out
    assert cli.main(["check", f"{place}/t-{{0..1}}.tar"]) == 0
    capsys.readouterr()
    assert cli.main(["bench", f"{place}/out/", "--epochs", "1", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["images"] == 24
    size = (made / "out" / "index.fmp").stat().st_size
    cli.main(["doctor", f"{place}/out/"])
    text = capsys.readouterr().out
    assert f"read: {size:,} bytes, no strong ETag" in text and "FEEDMILL_FSSPEC_THREADS" in text
    cli.main(["doctor", f"{place}/none.jpg"])
    assert "failed: " in (text := capsys.readouterr().out) and "FileNotFoundError" in text


def test_tables(place, tmp_path, capsys):
    (tmp_path / "t.csv").write_text("key,label\nc0/0 #é.jpg,b\nc1/deep/13.jpg,a\n")
    for options in ([], ["--no-list"]):
        dataset = index_of(place, tmp_path, FIXED, "--csv", str(tmp_path / "t.csv"), *options)
        assert list(dataset.targets) == [1, 0] and len(batches_of(remote_loader(dataset))) == 1
    (tmp_path / "t.csv").write_text("key,label\nnone.jpg,b\n")
    assert cli.main(["index", f"{place}/in", "-o", str(tmp_path / "y"), "--csv",
                     str(tmp_path / "t.csv")]) == 1
    assert "'none.jpg'" in capsys.readouterr().err


def run_failing(command):
    """Runs a command that ends with an error, or that exits for it."""
    with contextlib.suppress(SystemExit):
        cli.main(command)


# ---- errors --------------------------------------------------------------------------------------


def test_missing_and_replaced_objects(made, tmp_path):
    memory = fsspec.filesystem("memory")
    for path in made.rglob("*"):
        if path.is_file():
            memory.pipe_file(f"/at/{path.relative_to(made)}", path.read_bytes())
    index, pack = index_of("memory://at", tmp_path), feedmill.Pack("memory://at/out", FIXED)
    name = index.samples[3][0]
    memory.rm(name)
    for native in ("auto", "off"):
        with pytest.raises(FileNotFoundError, match="fsspec: FileNotFoundError") as caught:
            list(feedmill.DataLoader(index, batch_size=7, native=native))
        assert name.partition("#")[0] in str(caught.value)
    loader = remote_loader(index, on_error="skip")
    assert sum(len(labels) for _, labels in loader) == 23
    shards = sorted(memory.glob("/at/out/*.tar"))
    assert len(shards) > 2
    memory.pipe_file(shards[1], memory.cat_file(shards[1]) + b"\0" * 512)
    for native in ("auto", "off"):
        dataset = feedmill.Pack("memory://at/out", FIXED)
        with pytest.raises(PackError, match="was replaced after it was indexed"):
            list(feedmill.DataLoader(dataset, batch_size=7, native=native))
    memory.rm(shards[0])
    loader = remote_loader(feedmill.Pack("memory://at/out", FIXED), batch_size=24, on_error="skip")
    n_read = sum(len(labels) for _, labels in loader)
    assert 0 < n_read < 24 and len(pack) == 24


def test_nothing_there(tmp_path, capsys):
    with pytest.raises(PackError, match=r"memory://none/: not a pack: there is no index.fmp"):
        feedmill.Pack("memory://none/")
    with pytest.raises(FileNotFoundError, match="memory://none.tar"):
        feedmill.WebDataset("memory://none.tar")
    for source, why in [("memory://none", "FileNotFoundError"),
                        ("feedmilltest://x", "does not know feedmilltest://"),
                        ("zip://a::memory://x.zip", "must be the last link of a chain")]:
        assert cli.main(["index", source, "-o", str(tmp_path / "x")]) == 1
        assert why in capsys.readouterr().err
    with pytest.raises(ValueError, match="does not know feedmilltest://"):
        feedmill.WebDataset("feedmilltest://x.tar")
    fsspec.filesystem("memory").pipe_file("/one.jpg", b"x")
    assert cli.main(["index", "memory://one.jpg", "-o", str(tmp_path / "x")]) == 1
    assert "is not a folder" in capsys.readouterr().err
    fsspec.filesystem("memory").pipe_file("/p/c/a::b.jpg", b"x")
    assert cli.main(["index", "memory://p", "-o", str(tmp_path / "x")]) == 1
    assert "has '::'" in capsys.readouterr().err


def test_a_missing_package_is_named(monkeypatch, tmp_path, capsys):
    def no_package(scheme):
        raise ImportError("Install adlfs to access Azure")

    monkeypatch.setattr(fsspec, "get_filesystem_class", no_package)
    for make in (lambda: feedmill.Pack("az://c/pack/"), lambda: feedmill.WebDataset("az://c/x.tar")):
        with pytest.raises(ValueError, match="can't be read.*pip install adlfs"):
            make()
    for command in (["index", "az://c/x", "-o", str(tmp_path / "x")], ["check", "az://c/x.tar"],
                    ["pack", "az://c/x.tar", str(tmp_path / "out")], ["doctor", "az://c/x"]):
        run_failing(command)
        found = capsys.readouterr()
        assert "pip install adlfs" in found.out + found.err, command
    monkeypatch.setitem(sys.modules, "fsspec", None)
    with pytest.raises(ValueError, match="not installed: pip install fsspec adlfs"):
        feedmill.Pack("az://c/pack/")


def test_secrets_are_not_shown(monkeypatch, tmp_path, capsys):
    class Refusing(MemoryFileSystem):
        protocol = "refusing"

        def refuse(self, path, *arguments, **options):
            raise PermissionError(f"me:secret1 may not read refusing://me:secret1@host{path}?sig=secret2")

        cat_file = info = ls = find = refuse

    fsspec.register_implementation("refusing", Refusing, clobber=True)
    name = "refusing://me:secret1@host/x?sig=secret2"
    texts = []
    for make in (feedmill.Pack, feedmill.WebDataset):
        with pytest.raises((OSError, ValueError)) as caught:
            make(name)
        texts.append(f"{caught.value!r} {caught.value}")
        assert caught.value.__context__ is None
    for command in (["index", name, "-o", str(tmp_path / "x")], ["doctor", name], ["check", name],
                    ["index", "refusing://me:secret1@host/x", "-o", str(tmp_path / "x")],
                    ["pack", f"{name}.tar", str(tmp_path / "out")]):
        run_failing(command)
        found = capsys.readouterr()
        texts.append(found.out + found.err)
    assert "refusing://host/x" in texts[0] and not [
        one for one in texts if "secret1" in one or "secret2" in one]


@pytest.mark.parametrize("name", [
    "az://me:secret@host/x", "webdav://secret@host/x", "simplecache::https://secret@host/x",
    "az://c/x?sig=secret", "webdav://host/x#t=secret",
])
def test_an_index_keeps_no_secret(name):
    with pytest.raises(ValueError, match="would keep what may be a secret") as caught:
        root_of(name)
    assert "secret@" not in str(caught.value) and "=secret" not in str(caught.value)


@pytest.mark.parametrize("name", ["abfs://c@account.dfs.core.windows.net/x", "sftp://me@host/x"])
def test_containers_and_logins_are_no_secrets(name):
    assert root_of(name) == name + "/"


# ---- listings ------------------------------------------------------------------------------------


def test_a_folder_that_cannot_be_listed_is_an_error(made, tmp_path, monkeypatch, capsys):
    def ls(self, path, *arguments, **options):
        if str(path).endswith("/deep"):
            raise TimeoutError("no answer")
        return LocalFileSystem.ls(self, path, *arguments, **options)

    monkeypatch.setattr(OwnFiles, "ls", ls, raising=False)
    assert cli.main(["index", f"ownfiles://{made}/in", "-o", str(tmp_path / "x")]) == 1
    assert "TimeoutError" in capsys.readouterr().err


def test_links_are_followed_as_in_folders(made, tmp_path, capsys):
    (tmp_path / "in" / "a").mkdir(parents=True)
    (tmp_path / "in" / "a" / "1.jpg").symlink_to(made / "one.jpg")
    (tmp_path / "in" / "b").symlink_to(made / "in" / "c0")
    (tmp_path / "in" / "gone").symlink_to(tmp_path / "nowhere")
    dataset = index_of(f"ownfiles://{tmp_path}", tmp_path)
    folder = ImageFolder(str(tmp_path / "in"), FIXED)
    assert dataset.classes == folder.classes == ["a", "b"] and list(dataset.targets) == folder.targets
    (tmp_path / "in" / "a" / "more").symlink_to(made / "in" / "c1")
    assert cli.main(["index", f"ownfiles://{tmp_path}/in", "-o", str(tmp_path / "x")]) == 1
    assert "'more' is a link to a folder" in capsys.readouterr().err


# ---- names ---------------------------------------------------------------------------------------


def test_names_in_folders():
    for folder, name in [
        ("memory://a", "memory://a/x.tar"), ("memory://", "memory://x.tar"),
        ("simplecache::memory://a/", "simplecache::memory://a/x.tar"),
        ("zip://::file:///a.zip", "zip://x.tar::file:///a.zip"),
        ("zip://p::file:///a.zip", "zip://p/x.tar::file:///a.zip"),
        ("simplecache::https://h/p?sig=a/b", "simplecache::https://h/p/x.tar?sig=a/b"),
        ("abfs://c@acc/p/?sas=x", "abfs://c@acc/p/x.tar?sas=x"),
    ]:
        assert objects.name_in(folder, "x.tar") == name
        assert objects.name_in(objects.folder_of(name), "x.tar") == name
        assert objects.last_part(name) == "x.tar"


def test_a_pack_in_a_chain(made, tmp_path):
    import zipfile

    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        for path in (made / "out").iterdir():
            archive.write(path, f"p/{path.name}")
    expected = batches_of(TorchDataLoader(ImageFolder(str(made / "in"), FIXED), batch_size=7))
    for name in (f"zip://p::file://{tmp_path}/a.zip", f"simplecache::file://{made}/out/"):
        assert_equal(batches_of(remote_loader(feedmill.Pack(name, FIXED))), expected)
