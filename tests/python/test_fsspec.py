"""Images whose names fsspec reads: on all paths, in memory, through chains of file systems, and by a
file system that is slow or fails."""

import json
import os
import re
import signal
import sys
import threading
import zipfile
from pathlib import Path

import feedmill
import fsspec
import helpers
import numpy as np
import pytest
import torch
from feedmill.cli import cli
from feedmill.data import ImageList, imread
from feedmill.remote import by_fsspec, names
from feedmill.remote.sources import open_source
from fsspec.implementations.memory import MemoryFileSystem
from helpers import compose, images_of, remote_loader
from object_server import ObjectServer
from torch.utils.data import DataLoader as TorchDataLoader
from torchvision import transforms as T
from torchvision.datasets import ImageFolder

FIXED = compose(T.Resize((8, 9)), T.ToTensor())
RANDOM = compose(T.RandomResizedCrop(8), T.RandomHorizontalFlip(), T.ToTensor())


class Watched(MemoryFileSystem):
    """Objects in memory, those of memory:// with watched:// names; before each read it calls
    ``before``, if that is set."""

    protocol = "watched"
    before = None
    n_reads = 0

    @classmethod
    def _strip_protocol(cls, path):
        return MemoryFileSystem._strip_protocol(path.replace("watched://", "memory://"))

    def cat_file(self, path, start=None, end=None, **kwargs):
        Watched.n_reads += 1
        if Watched.before is not None:
            Watched.before(path)
        return super().cat_file(path, start, end, **kwargs)


@pytest.fixture(autouse=True)
def watched(monkeypatch):
    fsspec.register_implementation("watched", Watched, clobber=True)
    monkeypatch.setattr(Watched, "before", None)
    monkeypatch.setattr(Watched, "n_reads", 0)
    return Watched


@pytest.fixture
def stored(small_images):
    """(the folder's ImageFolder, its paths, the memory:// names of copies)"""
    folder = ImageFolder(str(small_images), FIXED)
    paths = [path for path, _ in folder.samples]
    memory = fsspec.filesystem("memory")
    for path in paths:
        memory.pipe_file(path, Path(path).read_bytes())
    yield folder, paths, [f"memory:/{path}" for path in paths]
    memory.store.clear()


def watched_names(stored):
    return [name.replace("memory://", "watched://") for name in stored[2]]


class Own(ImageList):
    """A dataset of one's own with feedmill_item, whose paths feedmill can't know in advance."""


# ---- names ---------------------------------------------------------------------------------------


def test_which_paths_are_names(tmp_path, monkeypatch):
    good = ["memory://x", "hf://datasets/a/b.jpg", "simplecache::s3://b/k", "zip://a.jpg::file:///b"]
    assert all(map(names.is_fsspec_name, good))
    bad = ["s3://b/k", "HTTPS://h/a", "/a/memory://b", "a::b", "c:/x", b"memory://x", tmp_path]
    assert not any(map(names.is_fsspec_name, bad))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "hf:").mkdir()
    (tmp_path / "hf:" / "x").write_bytes(b"a file")
    assert not names.is_fsspec_name("hf://x") and names.is_fsspec_name("hf://y")
    assert open_source("hf://x").read() == b"a file"


def test_names_in_messages():
    assert names.shown("sftp://user:secret@host/a?b") == "sftp://host/a"
    assert names.shown("cached::https://u:p@h/a?b::az://c/k?sig=x") == "cached::https://h/a::az://c/k"
    assert by_fsspec.schemes_of("simplecache::s3://b/k") == "simplecache::s3://"
    name = "sftp://me:secret1@host/a.jpg?sig=secret2"
    text = "no /a.jpg?sig=secret2 at https://me:secret1@host/x?sig=secret2 for me:secret1"
    assert names.without_secrets(text, name) == "no /a.jpg... at https://host/x... for ..."


# ---- batches -------------------------------------------------------------------------------------


@pytest.mark.parametrize("transform", [FIXED, RANDOM], ids=["fixed", "random"])
@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("kind", [ImageList, Own])
def test_batches_are_those_of_files(stored, transform, num_workers, kind):
    _, paths, urls = stored
    options = {"batch_size": 7, "num_workers": num_workers, "shuffle": True}
    torch.manual_seed(1)
    expected = images_of(TorchDataLoader(ImageList(paths, transform=transform), **options))
    loader = remote_loader(kind(urls, transform=transform), **options)
    torch.manual_seed(1)
    assert torch.equal(images_of(loader), expected)
    assert loader.stats().decode.fallback_samples == 0
    assert loader.stats().io.reader.endswith("+custom")
    assert loader.stats().io.files == len(urls)


def test_explain(stored, monkeypatch):
    dataset = ImageList([*stored[2], "simplecache::memory://a.jpg"], transform=FIXED)
    text = remote_loader(dataset).explain()
    assert "network    read by fsspec (memory://, simplecache::memory://) in 16 threads" in text
    monkeypatch.setenv("FEEDMILL_FSSPEC_THREADS", "3")
    assert "in 3 threads" in remote_loader(dataset).explain()
    loader = feedmill.DataLoader(dataset, native="off")
    assert "read by fsspec (memory://, simplecache::memory://)\n" in loader.explain() + "\n"
    monkeypatch.setenv("FEEDMILL_FSSPEC_THREADS", "none")
    with pytest.raises(ValueError, match="FEEDMILL_FSSPEC_THREADS is 'none'"):
        list(feedmill.DataLoader(dataset))


def test_mixed_with_files_and_http(stored):
    folder, paths, urls = stored
    expected = images_of(TorchDataLoader(folder, batch_size=7))
    with ObjectServer({path: Path(path).read_bytes() for path in paths}) as server:
        choices = (paths, urls, [server.url + path for path in paths])
        mixed = [choices[i % 3][i] for i in range(len(paths))]
        for kind in (ImageList, Own):
            loader = remote_loader(kind(mixed, transform=FIXED))
            assert torch.equal(images_of(loader), expected)
            assert loader.stats().decode.fallback_samples == 0
    late = [*paths[:30], *urls[30:]]  # only later batches have names
    assert torch.equal(images_of(remote_loader(Own(late, transform=FIXED))), expected)


@pytest.mark.parametrize("options", [{"native": "off"}, {"native": "hybrid"}, {"native": "verify"}])
def test_other_paths(stored, options):
    folder, _, urls = stored
    expected = images_of(TorchDataLoader(folder, batch_size=7))
    loader = feedmill.DataLoader(ImageList(urls, transform=FIXED), batch_size=7, **options)
    assert torch.equal(images_of(loader), expected)


def test_chains_and_workers(stored, tmp_path):
    folder, paths, _ = stored
    expected = images_of(TorchDataLoader(folder, batch_size=7))
    with zipfile.ZipFile(tmp_path / "all.zip", "w") as archive:
        for i, path in enumerate(paths):
            archive.write(path, f"{i}.jpg")
    cached = [f"simplecache::file://{path}" for path in paths]
    zipped = [f"zip://{i}.jpg::file://{tmp_path}/all.zip" for i in range(len(paths))]
    for urls in (cached, zipped, [f"file://{path}" for path in paths]):
        dataset = ImageList(urls, transform=FIXED)
        assert torch.equal(images_of(remote_loader(dataset)), expected)
        loader = feedmill.DataLoader(dataset, batch_size=7, num_workers=2, native="off")
        assert torch.equal(images_of(loader), expected)


def test_parts_and_imread(stored):
    _, paths, urls = stored
    assert np.array_equal(imread(urls[3]), imread(paths[3]))
    whole = Path(paths[3]).read_bytes()
    fsspec.filesystem("memory").pipe_file("/shard", b"x" * 1000 + whole + b"y" * 9)

    class Parts(Own):
        def feedmill_item(self, index):
            item, target = super().feedmill_item(index)
            return ((item, 1000, len(whole) + 10 * target), target)

    loader = remote_loader(Parts(["memory://shard"] * 2, transform=FIXED), batch_size=1)
    batches = iter(loader)
    assert torch.equal(next(batches)[0][0], ImageList(paths, transform=FIXED)[3][0])
    with pytest.raises(OSError, match="ends before.*dataset index 1"):
        next(batches)
    assert by_fsspec.read("memory://shard", 1000, len(whole)) == whole
    with pytest.raises(OSError, match="ends before"):
        by_fsspec.read("memory://shard", 1000, len(whole) + 10)


def test_formats_that_pillow_decodes(tmp_path):
    helpers.Image.fromarray(helpers.pixels(30, 40)).save(tmp_path / "a.bmp")
    path = str(tmp_path / "a.bmp")
    mine = images_of(remote_loader(ImageList([f"file://{path}"], transform=FIXED)))
    assert torch.equal(mine, images_of(remote_loader(ImageList([path], transform=FIXED))))


def test_cache(stored, watched):
    loader = remote_loader(ImageList(watched_names(stored), transform=FIXED), cache="ram:8MiB")
    expected = images_of(TorchDataLoader(stored[0], batch_size=7))
    for _ in range(3):
        assert torch.equal(images_of(loader), expected)
    assert watched.n_reads == len(stored[2])


def test_commands(stored, tmp_path, capsys):
    (tmp_path / "list.txt").write_text(f"{stored[2][0]}\nmemory://none.jpg\n")
    assert cli.main(["bench", str(tmp_path / "list.txt"), "--epochs", "1", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["images"] == 2 and list(found["bad"]) == ["memory://none.jpg"]
    assert cli.main(["check", str(tmp_path / "list.txt")]) == 1
    assert "2 images: 1 decoded natively" in capsys.readouterr().out


# ---- reads at the same time, and waits -----------------------------------------------------------


def test_several_reads_at_a_time(stored, watched, monkeypatch):
    monkeypatch.setenv("FEEDMILL_FSSPEC_THREADS", "4")
    together = threading.Barrier(4)
    monkeypatch.setattr(watched, "before", lambda path: together.wait(300))
    loader = remote_loader(ImageList(watched_names(stored), transform=FIXED))
    assert torch.equal(images_of(loader), images_of(TorchDataLoader(stored[0], batch_size=7)))


def test_waits_are_for_storage(stored, watched, monkeypatch):
    pause = threading.Event()
    monkeypatch.setenv("FEEDMILL_FSSPEC_THREADS", "1")
    monkeypatch.setattr(watched, "before", lambda path: pause.wait(0.01))
    loader = remote_loader(ImageList(watched_names(stored), transform=FIXED))
    list(loader)
    assert loader.stats().waits.storage_ns > 0
    assert loader.stats().io.read_ns > 0


# ---- errors --------------------------------------------------------------------------------------


class StoreError(Exception):
    """As packages of file systems have them."""


@pytest.mark.parametrize(("raised", "kind"), [
    (FileNotFoundError("/gone?sig=secret"), FileNotFoundError),
    (PermissionError("Forbidden: https://user:secret@host/x?sig=secret"), PermissionError),
    (fsspec.exceptions.FSTimeoutError(), TimeoutError),
    (StoreError("AuthenticationFailed\nfor sig=secret"), OSError),
    (OSError(5, "Input/output error"), OSError),
    (ValueError("no such container"), OSError),
])
def test_errors_name_the_object(stored, watched, monkeypatch, raised, kind):
    urls = watched_names(stored)
    urls[9] = f"watched://user:secret@gone{urls[9].removeprefix('watched:/')}?sig=secret"

    def fail(path):
        if "gone" in path:
            raise raised

    monkeypatch.setattr(watched, "before", fail)
    for options in ({}, {"num_workers": 2}, {"native": "off"}, {"native": "hybrid"}):
        loader = feedmill.DataLoader(ImageList(urls, transform=FIXED), batch_size=7, **options)
        with pytest.raises(kind, match=f"fsspec: .*{type(raised).__name__}") as caught:
            list(loader)
        text = f"{caught.value!r} {caught.value} {loader.report()} {loader.stats()!r}"
        assert "secret" not in text and "watched://gone" in str(caught.value)
        if options.get("native") != "off":
            assert "dataset index 9" in str(caught.value)
        assert caught.value.__context__ is None and caught.value.__cause__ is None


@pytest.mark.parametrize("policy", ["skip", "zero", "replace"])
def test_on_error(stored, policy):
    urls = list(stored[2])
    urls[2] = "memory://gone.jpg"
    loader = remote_loader(ImageList(urls, transform=FIXED), on_error=policy)
    assert len(images_of(loader)) == len(urls) - (policy == "skip")
    (error,) = loader.stats().sample_errors
    assert error.index == 2 and "FileNotFoundError" in error.cause


def test_what_is_no_image(stored):
    fsspec.filesystem("memory").pipe_file("/text", b"this is no image")
    dataset = ImageList([stored[2][0], "memory://text"], transform=FIXED)
    with pytest.raises(Exception, match="cannot identify image file.*dataset index 1"):
        list(remote_loader(dataset))


def test_schemes_that_are_not_known():
    with pytest.raises(ValueError, match=r"'feedmilltest://a' can't be read: .*does not know"):
        list(remote_loader(ImageList(["feedmilltest://a?secret"], transform=FIXED)))
    loader = remote_loader(ImageList(["feedmilltest://a"], transform=FIXED))
    assert "feedmilltest:// can't be read" in loader.explain()


def test_packages_that_are_missing(monkeypatch):
    def no_package(scheme):
        raise ImportError("Install adlfs to access Azure")

    monkeypatch.setattr(fsspec, "get_filesystem_class", no_package)
    with pytest.raises(ValueError, match="'az://c/a.jpg' can't be read.*pip install adlfs"):
        list(remote_loader(ImageList(["az://c/a.jpg"], transform=FIXED)))


def test_without_fsspec(stored, monkeypatch):
    by_fsspec._why_no_scheme.cache_clear()
    monkeypatch.setitem(sys.modules, "fsspec", None)
    message = r"'hf://a.jpg' can't be read.*pip install fsspec huggingface_hub"
    with pytest.raises(ValueError, match=message):
        list(remote_loader(ImageList(["hf://a.jpg"], transform=FIXED)))
    with pytest.raises(ValueError, match=message):
        ImageList(["hf://a.jpg"])[0]


# ---- reads that hang, and processes --------------------------------------------------------------


@pytest.fixture
def hanging(stored, watched, monkeypatch):
    """(dataset whose reads hang, event: a read hangs, event: they go on)"""
    begun, may_go_on = threading.Event(), threading.Event()

    def hang(path):
        begun.set()
        assert may_go_on.wait(600)

    monkeypatch.setattr(watched, "before", hang)
    yield ImageList(watched_names(stored), transform=FIXED), begun, may_go_on
    may_go_on.set()


@pytest.mark.parametrize("num_workers", [0, 2])
def test_an_epoch_that_is_left_during_reads(stored, hanging, num_workers):
    """Neither leaving it nor the first batch waits for reads that hang."""
    dataset, begun, may_go_on = hanging
    dataset.paths[:7] = stored[1][:7]
    loader = remote_loader(dataset, num_workers=num_workers)
    iterator = iter(loader)
    next(iterator)
    assert begun.wait(600)
    del iterator
    may_go_on.set()
    assert torch.equal(images_of(loader), images_of(TorchDataLoader(stored[0], batch_size=7)))


def test_interrupt(stored, hanging):
    dataset, begun, may_go_on = hanging
    loader = remote_loader(dataset)
    interrupt = threading.Thread(
        target=lambda: (begun.wait(600), os.kill(os.getpid(), signal.SIGINT)))
    interrupt.start()
    iterator = iter(loader)
    with pytest.raises(KeyboardInterrupt):
        next(iterator)
    interrupt.join()
    may_go_on.set()
    expected = images_of(TorchDataLoader(stored[0], batch_size=7))
    assert torch.equal(torch.cat([images for images, _ in iterator]), expected)


@pytest.mark.slow
def test_a_process_ends_during_reads():
    helpers.run_script("""
import threading
import fsspec
from fsspec.implementations.memory import MemoryFileSystem
from feedmill.data import ImageList
from torchvision import transforms as T

begun = threading.Event()
class Hanging(MemoryFileSystem):
    protocol = "hanging"
    def cat_file(self, *arguments, **options):
        begun.set()
        threading.Event().wait()

fsspec.register_implementation("hanging", Hanging)
dataset = ImageList(["hanging://a.jpg"] * 8, transform=T.Compose([T.Resize((8, 8)), T.ToTensor()]))
iterator = iter(feedmill.DataLoader(dataset, num_workers=1, native="require"))
begun.wait()
""")


def test_forked_child(stored):
    loader = remote_loader(ImageList(stored[2], transform=FIXED))
    expected = images_of(loader)

    def child():
        assert torch.equal(images_of(loader), expected)

    assert helpers.in_child(child) == 0
    assert torch.equal(images_of(loader), expected)


def test_one_file_imports_fsspec():
    package = Path(feedmill.__file__).parent
    pattern = re.compile(r"^\s*(import|from) fsspec\b", re.MULTILINE)
    assert {file.name for file in package.rglob("*.py") if pattern.search(file.read_text())} == {
        "by_fsspec.py"}
