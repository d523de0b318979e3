"""The option cache="disk:...", which keeps objects of servers in a folder of a local disk."""

import re

import conftest  # noqa: F401  makes torchvision importable in spawned workers
import feedmill
import helpers
import pytest
import torch
from feedmill._ops import native
from feedmill.cli import cli
from feedmill.data import ImageList
from feedmill.engine.cache import Caches, Disk, parse
from helpers import compose, in_child
from object_server import ObjectServer, without_settings
from torchvision import transforms as T

pytestmark = pytest.mark.skipif(not native.libcurl_version(), reason="built without libcurl")
FIXED = compose(T.Resize((8, 9)), T.ToTensor())
GIB = 1 << 30


@pytest.fixture(autouse=True)
def clean(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    with without_settings(monkeypatch, tmp_path):
        yield


@pytest.fixture
def files(tmp_path):
    """Paths of images."""
    for i in range(20):
        helpers.save_jpeg(tmp_path / "in" / f"c{i % 2}" / f"{i:02}.jpg", 60 + i, 50, seed=i)
    return sorted((tmp_path / "in").glob("*/*.jpg"))


@pytest.fixture
def server(files):
    """A server of the same images."""
    objects = {f"/{path.name}": path.read_bytes() for path in files}
    with ObjectServer(objects) as found:
        found.etags = dict.fromkeys(objects, '"1"')
        yield found


def loader_of(paths, cache=None, **options):
    dataset = ImageList([str(path) for path in paths], list(range(len(paths))), transform=FIXED)
    return feedmill.DataLoader(dataset, **{
        "batch_size": 3, "native": "require", "shuffle": True, "seed": 1, "cache": cache,
        **options})


def epochs(loader, n=1):
    torch.manual_seed(0)  # of the order
    return [(images.clone(), labels.clone()) for _ in range(n) for images, labels in loader]


def equal(one, other):
    return len(one) == len(other) and all(
        torch.equal(a, b) and torch.equal(c, d) for (a, c), (b, d) in zip(one, other))


def names_of(server, files):
    return [f"{server.url}/{path.name}" for path in files]


def closed(loader):
    """Ends the loader's caches, so that all is stored."""
    loader.cache = None
    epochs(loader)


# ---- the option ----------------------------------------------------------------------------------


@pytest.mark.parametrize("text, wanted", [
    ("ram:8GiB", Caches(8 * GIB, None)),
    ("disk:/nvme/feedmill:200GiB", Caches(None, Disk("/nvme/feedmill", 200 * GIB))),
    ("disk:/a:1 KB", Caches(None, Disk("/a", 1000))),
    ("disk:/a:b+c:1.5GiB:lru", Caches(None, Disk("/a:b+c", 3 * GIB // 2, lru=True))),
    ("disk:/a:1GiB:first-come", Caches(None, Disk("/a", GIB))),
    ("disk:/a:1GiB:check:lru", Caches(None, Disk("/a", GIB, True, True))),
    ("ram:1GiB+disk:/a:2GiB:check", Caches(GIB, Disk("/a", 2 * GIB, check=True))),
    ("disk:8GiB", None), ("disk:a:8GiB", None), ("disk:/a", None), ("disk:/a:0B", None),
    ("disk:/a:8", None), ("disk:/a:8GiB:fast", None), ("disk:/a:8GiB:lru:first-come", None),
    ("disk:/a:8GiB:lru:lru", None), ("ram:1GiB+", None), ("ram:0B+disk:/a:1GiB", None),
    ("disk:/a:1GiB+ram:1GiB", None), ("disk:/a\0:1GiB", None), ("disk:/a:99999999TiB", None),
])
def test_values(text, wanted):
    assert parse(text) == wanted


def test_bad_values_are_refused(server, files, tmp_path):
    with pytest.raises(ValueError, match=r"cache is 'disk:8GiB'; it must be .*'disk:/path:200GiB'"):
        loader_of(files, "disk:8GiB")
    names = names_of(server, files)
    with pytest.raises(OSError, match="can't create the folder: No such file"):
        iter(loader_of(names, f"disk:{tmp_path}/none/cache:1GiB"))
    with pytest.raises(ValueError, match="has other files, and is no disk cache"):
        iter(loader_of(names, f"disk:{tmp_path}/in:1GiB"))


def test_local_files_are_not_cached(files, tmp_path):
    loader = loader_of(files, f"disk:{tmp_path}/cache:1GiB")
    assert re.search(r"cache +/.*/cache has no effect: .* these are local files", loader.explain())
    epochs(loader)
    assert not (tmp_path / "cache").exists() and loader.stats().io.disk_misses == 0


# ---- what is fetched -----------------------------------------------------------------------------


@pytest.mark.parametrize("prefix", ["", "ram:64MiB+"])
def test_later_epochs_make_no_request(server, files, tmp_path, prefix):
    option = f"{prefix}disk:{tmp_path}/cache:1GiB"
    loader = loader_of(names_of(server, files), option)
    assert "never to change under their names" in loader.explain()
    wanted = epochs(loader_of(files), 3)
    assert equal(epochs(loader, 3), wanted)
    assert len(server.requests) == 20
    io = loader.stats().io
    assert (io.disk_hits, io.disk_misses) == (0 if prefix else 40, 20)
    assert "disk cache" in str(loader.report())
    closed(loader)
    assert len(server.requests) == 40
    later = loader_of(names_of(server, files), option)  # as a later run
    assert equal(epochs(later, 3), wanted) and len(server.requests) == 40
    assert later.stats().io.disk_hits == (20 if prefix else 60)
    assert later.stats().io.disk_entries == 20


def test_check_asks_the_server(server, files, tmp_path):
    option = f"disk:{tmp_path}/cache:1GiB:check"
    loader = loader_of(names_of(server, files), option)
    assert "asks the server about each" in loader.explain()
    assert equal(epochs(loader, 2), epochs(loader_of(files), 2))
    asked = [headers.get("if-none-match") for _, headers in server.requests]
    assert asked == [None] * 20 + ['"1"'] * 20
    assert loader.stats().io.disk_hits == 20
    path = f"/{files[0].name}"
    server.objects[path] = server.objects[f"/{files[1].name}"]
    server.etags[path] = '"2"'
    del server.requests[:]
    changed = epochs(loader_of([files[1], *files[1:]]), 1)
    assert equal(epochs(loader), changed) and len(server.requests) == 20
    assert loader.stats().io.disk_misses == 21


def test_without_check_names_are_trusted(server, files, tmp_path):
    loader = loader_of(names_of(server, files), f"disk:{tmp_path}/cache:1GiB")
    first = epochs(loader)
    server.objects.clear()
    assert equal(epochs(loader), first)


def test_indexes_wish_for_a_version(server, files, tmp_path):
    """What an index names is read from the cache while it is of that version, and only then."""

    class Versions(ImageList):
        def feedmill_item(self, index):
            return (self.paths[index], f'"{version}"'), index

    def loader():
        dataset = Versions(names_of(server, files), list(range(20)), transform=FIXED)
        return feedmill.DataLoader(dataset, batch_size=3, native="require", seed=1,
                                   cache=f"disk:{tmp_path}/cache:1GiB")

    version = 1
    one = loader()
    epochs(one, 2)
    assert len(server.requests) == 20
    version = 2
    server.etags = dict.fromkeys(server.etags, '"2"')
    other = loader()
    epochs(other, 2)
    assert len(server.requests) == 40
    assert all(headers["if-match"] == '"2"' for _, headers in server.requests[20:])
    assert not any("if-none-match" in headers for _, headers in server.requests)


def test_packs_are_read_by_range(files, tmp_path):
    folder = tmp_path / "pack"
    assert cli.main(["pack", str(tmp_path / "in"), str(folder)]) == 0
    objects = {f"/p/{one.name}": one.read_bytes() for one in folder.iterdir()}
    with ObjectServer(objects) as server:
        server.etags = dict.fromkeys(objects, '"1"')

        def loader(source, cache=None):
            crop = compose(T.RandomResizedCrop(16, scale=(0.1, 0.3)), T.ToTensor())
            return feedmill.DataLoader(feedmill.Pack(source, crop), batch_size=3, shuffle=True,
                                       seed=1, native="require", cache=cache)

        wanted = epochs(loader(folder), 2)
        remote = loader(f"{server.url}/p/", f"disk:{tmp_path}/cache:1GiB")
        del server.requests[:]
        assert equal(epochs(remote), wanted[: len(wanted) // 2])
        # Neighbours that wait at the same time share a request. What is stored is not requested.
        assert 0 < len(server.requests) <= 20
        closed(remote)
        del server.requests[:]
        again = loader(f"{server.url}/p/", f"disk:{tmp_path}/cache:1GiB")
        assert equal(epochs(again, 2), wanted)
        assert not [path for path, _ in server.requests if path.endswith(".tar")]


def test_forked_children_open_their_own(server, files, tmp_path):
    loader = loader_of(names_of(server, files), f"disk:{tmp_path}/cache:1GiB")
    wanted = epochs(loader, 2)

    def child():
        assert equal(epochs(loader, 2), wanted)

    in_child(child)
    assert equal(epochs(loader, 2), wanted)


# ---- feedmill cache ------------------------------------------------------------------------------


def run(capsys, *arguments):
    status = cli.main(["cache", *map(str, arguments)])
    captured = capsys.readouterr()
    return status, captured.out + captured.err


def test_the_command(server, files, tmp_path, capsys):
    folder = tmp_path / "cache"
    status, out = run(capsys, tmp_path / "in")
    assert status == 1 and "is no disk cache of feedmill" in out
    loader = loader_of([f"{name}?secret" for name in names_of(server, files)],
                       f"disk:{folder}:1GiB")
    epochs(loader)
    closed(loader)
    status, out = run(capsys, folder)
    assert status == 0 and "20 entries" in out and "of 1.0 GiB" in out.replace("1.1 GB", "1.0 GiB")
    status, out = run(capsys, folder, "--list")
    assert f"{server.url}/{files[3].name}" in out and "secret" not in out and '"1"' in out
    entry = next(folder.glob("??/*"))
    data = bytearray(entry.read_bytes())
    data[len(data) // 2] ^= 1
    entry.write_bytes(data)
    status, out = run(capsys, folder, "--verify")
    assert status == 1 and "damaged: 1" in out and not entry.exists()
    status, out = run(capsys, folder, "--verify")
    assert status == 0 and "19 entries" in out and "damaged: 0" in out
    status, out = run(capsys, folder, "--clear", "--older-than", "1d")
    assert status == 0 and "removed: 0 entries" in out
    status, out = run(capsys, folder, "--clear")
    assert status == 0 and "removed: 19 entries" in out
    status, out = run(capsys, folder)
    assert "0 entries" in out and not list(folder.glob("??/*"))
    with pytest.raises(SystemExit):
        run(capsys, folder, "--older-than", "1d")
    with pytest.raises(SystemExit):
        run(capsys, folder, "--clear", "--older-than", "soon")
