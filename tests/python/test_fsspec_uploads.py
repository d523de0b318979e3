"""Packs that are written by fsspec: into memory, files, and stores of the tests' own, which show an
object when its upload is complete."""

import os
import signal
import subprocess
import sys

import feedmill
import fsspec
import pytest
import torch
from feedmill.cli import cli
from feedmill.packing.targets import StoreTarget, target_of
from feedmill.remote import fsspec_uploads, uploads
from fsspec.implementations.local import LocalFileSystem
from fsspec.implementations.memory import MemoryFile, MemoryFileSystem
from fsspec.spec import AbstractBufferedFile
from helpers import compose
from small_packs import make_local, make_source, pack
from torchvision import transforms as T

FIXED = compose(T.Resize((8, 9)), T.ToTensor())
# Folders of the tests: files are copied in memory, renamed on disk, and uploaded to a store.
KINDS = ("memory", "local", "az")


class Upload(AbstractBufferedFile):
    """Like files of stores, it is sent in parts while it is written, and appears when it is closed:
    also by the destructor, with what it has."""

    n_parts = 0

    def _initiate_upload(self):
        self.parts = []

    def _upload_chunk(self, final=False):
        Upload.n_parts += 1
        self.parts.append(self.buffer.getvalue())
        if final:
            self.fs.store[self.path] = MemoryFile(self.fs, self.path, b"".join(self.parts))
        return True


class Store(MemoryFileSystem):
    protocol = ("az", "gs")
    store = {}
    pseudo_dirs = [""]

    @classmethod
    def _strip_protocol(cls, path):
        return MemoryFileSystem._strip_protocol("/" + path.partition("://")[2].lstrip("/")
                                                if "://" in path else path)

    def _open(self, path, mode="rb", **options):
        return Upload(self, path, mode, **options) if mode == "wb" else (
            super()._open(path, mode, **options))

    def pipe_file(self, path, value, **options):
        raise AssertionError("objects are written by open()")

    def makedirs(self, path, exist_ok=False):
        raise AssertionError("this would make a bucket")

    def cp_file(self, *paths, **options):
        raise AssertionError("stores need no copies")


@pytest.fixture(autouse=True)
def filesystems(monkeypatch):
    monkeypatch.setattr(Upload, "n_parts", 0)
    before = dict(fsspec.registry)
    for scheme in Store.protocol:
        fsspec.register_implementation(scheme, Store, clobber=True)
    yield
    for kind in (MemoryFileSystem, Store):
        kind.store.clear()
        kind.pseudo_dirs[:] = [""]
        kind.clear_instance_cache()
    from fsspec.registry import _registry

    for scheme in Store.protocol:
        _registry.pop(scheme, None)
        _registry.update({scheme: before[scheme]} if scheme in before else {})


@pytest.fixture(params=KINDS)
def out(request, tmp_path):
    """The name of a folder that does not exist yet."""
    return {"local": f"local://{tmp_path}/new/a [pack]"}.get(
        request.param, f"{request.param}://container/a [pack]")


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    return make_source(tmp_path_factory.mktemp("source"))


@pytest.fixture(scope="module")
def local(source, tmp_path_factory):
    """The pack in a folder."""
    return make_local(source, tmp_path_factory.mktemp("local") / "pack")


def files_of(folder):
    if "://" not in str(folder):
        return {path.name: path.read_bytes() for path in folder.iterdir()}
    filesystem, path = fsspec.core.url_to_fs(folder)
    if not filesystem.isdir(path):
        return {}
    return {one["name"].rpartition("/")[2]: filesystem.cat_file(one["name"])
            for one in filesystem.ls(path, detail=True)}


def put(folder, name, data):
    filesystem, path = fsspec.core.url_to_fs(f"{folder}/{name}")
    with filesystem.open(path, "wb") as file:
        file.write(data)


# ---- packs ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("end", ["", "/"])
def test_the_pack_is_that_of_a_folder(out, end, source, local, capsys):
    assert pack(source, out + end) == 0
    assert f"{out}: 18 samples of 2 classes in" in capsys.readouterr().out
    assert files_of(out) == files_of(local) and len(files_of(local)) > 3
    mine, other = feedmill.Pack(out + end, FIXED), feedmill.Pack(local, FIXED)
    assert mine.targets == other.targets
    assert all(torch.equal(a, b) for (a, _), (b, _) in zip(mine, other))
    images = [torch.cat([batch for batch, _ in feedmill.DataLoader(one, batch_size=4)])
              for one in (mine, other)]
    assert torch.equal(*images)
    assert cli.main(["check", out]) == 0 and "18 images" in capsys.readouterr().out
    assert pack(source, out) == 1
    assert f"{out} is already a pack" in capsys.readouterr().err


def test_parts_are_joined(out, source, local, capsys):
    for part in ("1/2", "0/2"):
        assert pack(source, out, "--part", part) == 0
        assert f"feedmill pack --join {out}" in capsys.readouterr().out
    random = "0123456789abcdef"
    for name in (f"shard-000001.tar.{random}.partial", f"nodes.{random}.partial",
                 f"nodes.{random}.partial.{random}.partial", "partial.txt"):
        put(out, name, b"left by a process that was killed")
    assert cli.main(["pack", "--join", out]) == 0
    found = files_of(out)
    assert found.pop("partial.txt") and found == files_of(local)


def test_another_pack_is_not_touched(out, source, capsys):
    assert pack(source, out, "--part", "0/2") == 0
    before = files_of(out)
    assert pack(source, out, "--interval", "3") == 1
    assert f"{out}/shard-000000.tar: the file exists, but was not made of this" in (
        capsys.readouterr().err)
    assert files_of(out) == before
    assert cli.main(["pack", "--join", out]) == 1
    assert "shards are missing: shard-0" in capsys.readouterr().err


def test_a_url_of_a_file_is_its_path(source, local, tmp_path, capsys):
    assert pack(source, f"file://{tmp_path}/pack") == 0
    assert f"\n{tmp_path}/pack: 18 samples" in capsys.readouterr().out
    assert files_of(tmp_path / "pack") == files_of(local)


def test_google_logins_are_those_of_gcsfs(source, local, monkeypatch, capsys):
    """Where there is an HMAC key, gs:// is written without it."""
    monkeypatch.setattr(uploads, "has_gs_login", lambda: True)
    assert pack(source, "gs://bucket/pack") == 0
    assert files_of("gs://bucket/pack") == files_of(local)
    monkeypatch.setattr(uploads, "has_gs_login", lambda: False)
    monkeypatch.setattr(uploads, "Prefix", lambda name, settings: settings)
    assert target_of("gs://bucket/pack")._prefix is None


def test_large_files_go_up_in_parts(monkeypatch):
    monkeypatch.setattr(fsspec_uploads, "_PART_BYTES", 1000)
    monkeypatch.setattr(fsspec_uploads, "_PIECE_BYTES", 300)
    data = os.urandom(4321)
    with target_of("az://container/pack").new_file("large") as file:
        file.write(data)
    assert Upload.n_parts > 3 and files_of("az://container/pack") == {"large": data}


# ---- what fails ----------------------------------------------------------------------------------


class Fails(Exception):
    """An error of a package."""


@pytest.mark.parametrize("raised", [Fails("no answer"), KeyboardInterrupt()])
@pytest.mark.parametrize("at", [1, 3, 5])
def test_a_pack_that_was_broken_off_goes_on(out, source, local, monkeypatch, capsys, raised, at):
    """The error comes when half a file is written."""
    n_files = 0

    def half(data, file, n_bytes):
        nonlocal n_files
        n_files += 1
        content = data.read()
        file.write(content[: len(content) // (2 if n_files == at else 1)])
        if n_files == at:
            raise raised

    monkeypatch.setattr(fsspec_uploads, "_PART_BYTES", 100)
    monkeypatch.setattr("feedmill.remote.fsspec_uploads.shutil.copyfileobj", half)
    status = pack(source, out)
    text = capsys.readouterr().err
    if isinstance(raised, Fails):
        assert status == 1 and "fsspec: Fails: no answer" in text and f"{out}/shard-" in text
    else:
        assert status == 130 and "the same command continues" in text
    whole, found = files_of(local), files_of(out)
    assert len(found) == at - 1  # the index of each shard, then the shard
    assert all(found[name] == whole[name] for name in found if name.endswith(".tar"))
    monkeypatch.undo()
    assert pack(source, out) == 0
    assert at < 3 or "of which existed already" in capsys.readouterr().out
    assert files_of(out) == whole


def test_a_copy_on_disk_is_removed(monkeypatch, tmp_path):
    """huggingface_hub writes the object into a file first, which would stay."""
    def kept(self):
        self.parts = []
        self.temp_file = open(tmp_path / "copy", "wb")

    def fail(data, file, n_bytes):
        file.write(data.read())
        raise KeyboardInterrupt

    monkeypatch.setattr(Upload, "_initiate_upload", kept)
    monkeypatch.setattr(fsspec_uploads, "_PART_BYTES", 10)
    monkeypatch.setattr("feedmill.remote.fsspec_uploads.shutil.copyfileobj", fail)
    with pytest.raises(KeyboardInterrupt):
        target_of("az://container/pack").write("x", bytes(100))
    assert not list(tmp_path.iterdir()) and not files_of("az://container/pack")


def test_a_copy_that_is_broken_off(source, local, monkeypatch, capsys):
    def half(self, path, to, **options):
        self.pipe_file(to, self.cat_file(path)[:100])
        raise KeyError("broken off")

    monkeypatch.setattr(MemoryFileSystem, "cp_file", half)
    assert pack(source, "memory://pack") == 1
    assert "fsspec: KeyError: 'broken off'" in capsys.readouterr().err
    assert not files_of("memory://pack")


def test_what_is_shorter_than_what_was_written(source, monkeypatch, capsys):
    def half(self, path, **options):
        return {"name": path, "size": 3, "type": "file"}

    monkeypatch.setattr(LocalFileSystem, "info", half)
    target = target_of("local:///tmp")
    with pytest.raises(OSError, match="5 bytes were written, but it has 3.*local:///tmp/x"):
        target.write("x", b"12345")


KILLED = """
import os, signal, sys
from feedmill.cli import cli
from feedmill.remote import fsspec_uploads as uploads

n_files = 0

def copied(data, file, n_bytes):
    global n_files
    n_files += 1
    content = data.read()
    file.write(content[: len(content) // 2])
    file.flush()
    if n_files == {at}:
        os.kill(os.getpid(), signal.SIGKILL)
    file.write(content[len(content) // 2 :])

uploads.shutil.copyfileobj = copied
cli.main(sys.argv[1:])
"""


@pytest.mark.parametrize("at", [2, 3, 6])
def test_a_killed_process_leaves_no_half_shard(source, local, tmp_path, at, capsys):
    out = f"local://{tmp_path}/pack"
    words = ["pack", str(source), out, "--shard-size", "10K"]
    process = subprocess.run([sys.executable, "-c", KILLED.format(at=at), *words], check=False)
    assert process.returncode == -signal.SIGKILL
    whole, found = files_of(local), files_of(out)
    assert sum(name.endswith(".partial") for name in found) == 1 and len(found) == at
    assert all(found[name] == whole[name] for name in found if name.endswith(".tar"))
    assert pack(source, out) == 0
    assert files_of(out) == whole


@pytest.mark.parametrize(("name", "text"), [
    ("simplecache::memory://pack", "a chain of file systems can't be written to"),
    ("zip://p::file:///x.zip", "a chain of file systems can't be written to"),
    ("az://container/x?sig=secret1", "az://container/x: a name with a query"),
    ("webdav://me:secret1@host/x#secret1", "webdav://host/x: a name with a query or a fragment"),
    ("memory://", "name a folder, such as memory://folder/pack"),
    ("feedmilltest://host/x", "does not know feedmilltest://"),
])
def test_names_that_are_refused(source, capsys, name, text):
    for words in ((source, name), ("--join", name)):
        assert pack(*words) == 1
        found = capsys.readouterr().err
        assert text in found and "secret1" not in found


def test_urls_are_refused(source, capsys):
    with pytest.raises(SystemExit):
        pack(source, "https://me:secret1@host/pack?sig=secret1")
    found = capsys.readouterr().err
    assert "https://host/pack: OUT must be a folder, or a name such as" in found
    assert "secret1" not in found


def test_inside_of_the_source(source, capsys):
    memory = fsspec.filesystem("memory")
    memory.pipe_file("/at/x.tar", b"")
    assert pack("memory://at", "memory://at/pack") == 1
    assert "memory://at/pack is inside memory://at" in capsys.readouterr().err


def test_missing_packages_are_named(source, monkeypatch, capsys):
    def no_package(scheme):
        raise ImportError("Install adlfs to access Azure")

    monkeypatch.setattr(fsspec, "get_filesystem_class", no_package)
    assert pack(source, "az://container/x") == 1
    assert "az://container/x: it can't be written: fsspec " in (text := capsys.readouterr().err)
    assert "pip install adlfs" in text
    monkeypatch.setitem(sys.modules, "fsspec", None)
    assert pack(source, "az://container/x") == 1
    assert "not installed: pip install fsspec adlfs" in capsys.readouterr().err


def test_file_systems_that_can_only_be_read(source, monkeypatch, capsys):
    def cannot(self, *arguments, **options):
        raise NotImplementedError

    monkeypatch.setattr(MemoryFileSystem, "_open", cannot)
    assert pack(source, "memory://pack") == 1
    assert "NotImplementedError: the file system can't do this: 'memory://pack/shard-" in (
        capsys.readouterr().err)


def test_zonal_buckets_are_refused(source, monkeypatch, capsys):
    """gcsfs appends to objects there, which others see at once."""
    monkeypatch.setattr(Upload, "finalize_on_close", False, raising=False)
    monkeypatch.setattr(uploads, "has_gs_login", lambda: True)
    assert pack(source, "gs://bucket/pack") == 1
    assert "objects of a zonal bucket are seen while" in capsys.readouterr().err
    assert not files_of("gs://bucket/pack")


def test_secrets_are_not_shown(source, monkeypatch, capsys):
    class Refusing(MemoryFileSystem):
        protocol = "refusing"
        refused = ()

        @classmethod
        def _strip_protocol(cls, path):
            return MemoryFileSystem._strip_protocol(path.replace("refusing://me:secret1@host", "/"))

        def _open(self, path, mode="rb", **options):
            if mode == "wb" and Refusing.refused:
                raise PermissionError(f"me:secret1 may not write refusing://me:secret1@host{path}")
            return super()._open(path, mode, **options)

    fsspec.register_implementation("refusing", Refusing, clobber=True)
    name, shown = "refusing://me:secret1@host/pack", "refusing://host/pack"
    Refusing.refused = True
    assert pack(source, name) == 1
    found = capsys.readouterr().err
    assert f"'{shown}/shard-000000.fmp'" in found and "PermissionError" in found
    assert "secret1" not in found
    Refusing.refused = False
    assert pack(source, name, "--part", "0/2") == 0
    assert pack(source, name, "--interval", "3") == 1
    assert cli.main(["pack", "--join", name]) == 1
    assert pack(source, name) == 0
    assert pack(source, name) == 1
    found = capsys.readouterr()
    text = found.out + found.err
    assert f"feedmill pack --join {shown}" in text and f"{shown} is already a pack" in text
    assert f"{shown}/shard-000000.tar: the file exists" in text and "secret1" not in text


def test_a_size_that_is_not_known_is_an_error(monkeypatch):
    monkeypatch.setattr(MemoryFileSystem, "info", lambda *_: {"size": None})
    with pytest.raises(OSError, match="does not say how large"):
        StoreTarget("memory://pack").size("x")
