"""Packs and WebDataset tar files whose names are URLs or s3:// names."""

import io
import json
import pickle
import tarfile

import conftest  # noqa: F401  makes torchvision importable in spawned workers
import feedmill
import helpers
import pytest
import torch
from feedmill._ops import native
from feedmill.cli import cli
from feedmill.packing import objects
from feedmill.packing.index import PackError
from helpers import compose
from object_server import ObjectServer, without_settings
from torch.utils.data import DataLoader as TorchDataLoader
from torch.utils.data import Subset
from torchvision import transforms as T

pytestmark = pytest.mark.skipif(not native.libcurl_version(), reason="built without libcurl")
FIXED = compose(T.Resize((8, 9)), T.ToTensor())
CROP = compose(T.RandomResizedCrop(16, scale=(0.1, 0.3)), T.ToTensor())
INDEX = "/packs/p/index.fmp"


@pytest.fixture(autouse=True)
def clean(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with without_settings(monkeypatch, tmp_path):
        yield


@pytest.fixture(scope="module")
def packed(tmp_path_factory):
    """The folder of a pack with several shards."""
    root = tmp_path_factory.mktemp("packs")
    for i in range(24):
        helpers.save_jpeg(root / "in" / f"c{i % 3}" / f"{i}.jpg", 200 + i, 150, seed=i)
    assert cli.main(["pack", str(root / "in"), str(root / "out"), "--shard-size", "150K"]) == 0
    return root / "out"


@pytest.fixture
def served(packed):
    """(server, the pack's URL)"""
    data = {f"/packs/p/{one.name}": one.read_bytes() for one in packed.iterdir()}
    with ObjectServer(data) as server:
        server.etags = dict.fromkeys(data, '"1"')
        yield server, f"{server.url}/packs/p/"


def batches_of(loader):
    torch.manual_seed(0)  # of the order
    return [(images.clone(), labels.clone()) for images, labels in loader]


def small(image):
    """FIXED, pickled by a name in this module."""
    return FIXED(image)


def equal(one, other):
    return len(one) == len(other) and all(
        torch.equal(a, b) and torch.equal(c, d) for (a, c), (b, d) in zip(one, other)
    )


def native_loader(dataset, **options):
    loader = feedmill.DataLoader(dataset, **{
        "batch_size": 5, "native": "require", "shuffle": True, "seed": 3, **options})
    assert loader.explain().startswith("native path")
    return loader


def shards_of(server):
    return sorted(path for path in server.objects if path.endswith(".tar"))


def kinds(server, suffix):
    return [headers for path, headers in server.requests if path.endswith(suffix)]


# ---- packs ---------------------------------------------------------------------------------------


def test_a_pack_is_as_its_folder(served, packed):
    server, url = served
    assert len(shards_of(server)) > 2
    local = feedmill.Pack(packed, FIXED)
    for name in (url, url.rstrip("/"), f"{url}index.fmp", f"{url}?token=secret"):
        pack = feedmill.Pack(name, FIXED)
        assert len(pack) == len(local) and pack.classes == local.classes
        assert list(pack.samples) == list(local.samples)
        assert pack.encoded(7) == local.encoded(7)
        assert "secret" not in f"{pack!r} {pack.feedmill_name(0)}"
    assert torch.equal(pack[-1][0], local[-1][0]) and pack[-1][1] == local[-1][1]
    with pytest.raises(IndexError):
        pack[len(pack)]


def test_the_native_path_reads_ranges(served, packed):
    server, url = served
    want = [batches_of(native_loader(feedmill.Pack(packed, FIXED))) for _ in range(1)]
    loader = native_loader(feedmill.Pack(url, FIXED))
    assert f"read over the network: {server.url}" in loader.explain()
    server.requests.clear()
    assert equal(batches_of(loader), want[0])
    assert loader.stats().decode.fallback_samples == 0
    n_requests = len(server.requests)  # fewer than samples if neighbours wait at the same time
    assert 0 < n_requests <= 24 and all("range" in one for _, one in server.requests)
    assert f"{n_requests} requests (0 after a failure" in str(loader.report())
    assert not kinds(server, ".fmp")  # the index was read when the pack was opened
    # Once a shard was read, only that version of it is.
    many = Subset(feedmill.Pack(url, FIXED), 400 * [0])
    batches_of(native_loader(many, num_workers=1, prefetch_factor=1))
    assert any(one.get("if-match") == '"1"' for one in kinds(server, ".tar"))


def test_ranges_end_where_the_crop_ends(served, packed):
    server, url = served
    pack = feedmill.Pack(url, CROP)
    server.requests.clear()
    loader = native_loader(pack, batch_size=24)
    got = batches_of(loader)
    assert equal(got, batches_of(native_loader(feedmill.Pack(packed, CROP), batch_size=24)))
    fetched = sum(
        int(last) - int(first) + 1
        for first, last in (one["range"].removeprefix("bytes=").split("-")
                            for _, one in server.requests)
    )
    assert fetched < 0.9 * sum(pack.place(i).bytes for i in range(len(pack)))


@pytest.mark.parametrize("options", [
    {"native": "off"}, {"native": "off", "num_workers": 2}, {"native": "hybrid"},
    {"native": "verify"}, {"num_workers": 2}, {"cache": "ram:8MiB"},
])
def test_all_paths(served, packed, options):
    _, url = served
    loader = feedmill.DataLoader(feedmill.Pack(url, FIXED), batch_size=5, **options)
    want = batches_of(TorchDataLoader(feedmill.Pack(packed, FIXED), batch_size=5))
    assert equal(batches_of(loader), want)
    assert equal(batches_of(loader), want)
    assert "read over the network" in loader.explain()


@pytest.mark.slow
def test_spawned_workers(served, packed):
    server, url = served
    pack = feedmill.Pack(url, small)
    server.requests.clear()
    loader = TorchDataLoader(pack, 5, num_workers=2, multiprocessing_context="spawn")
    want = batches_of(TorchDataLoader(feedmill.Pack(packed, FIXED), batch_size=5))
    assert equal(batches_of(loader), want)
    assert not kinds(server, ".fmp")


def test_copies_do_not_read_the_index_again(served):
    server, url = served
    pack = feedmill.Pack(url, FIXED)
    server.requests.clear()
    copy = pickle.loads(pickle.dumps(pack))
    assert torch.equal(copy[3][0], pack[3][0])
    assert not kinds(server, ".fmp")


def test_resuming(served):
    _, url = served
    whole = batches_of(native_loader(feedmill.Pack(url, FIXED), num_workers=2))
    loader = native_loader(feedmill.Pack(url, FIXED), num_workers=2)
    torch.manual_seed(0)
    batches = iter(loader)
    for _ in range(2):
        next(batches)
    state = loader.state_dict()
    del batches
    again = native_loader(feedmill.Pack(url, FIXED), num_workers=2)
    again.load_state_dict(state)
    assert equal(batches_of(again), whole[2:])


def test_an_index_of_many_pieces(served, monkeypatch, packed):
    server, url = served
    monkeypatch.setattr(objects, "_PIECE_BYTES", 100)
    assert list(feedmill.Pack(url).samples) == list(feedmill.Pack(packed).samples)
    assert len(kinds(server, ".fmp")) > 10


# ---- faults --------------------------------------------------------------------------------------


def test_what_is_no_pack(served):
    server, url = served
    with pytest.raises(PackError, match="not a pack: there is no index.fmp.*404"):
        feedmill.Pack(f"{server.url}/packs/other/")
    server.objects[INDEX] = b"x" * 1000
    with pytest.raises(PackError, match="not the index of a pack"):
        feedmill.Pack(url)
    server.objects[INDEX] = b"x"
    with pytest.raises(PackError, match="fewer than 128 bytes"):
        feedmill.Pack(url)
    with pytest.raises(ValueError, match="feedmilltest:// is not supported"):
        feedmill.Pack("feedmilltest://container/pack/")
    server.status = lambda path: 403
    with pytest.raises(PermissionError, match="HTTP 403"):
        feedmill.Pack(url)


@pytest.mark.parametrize("native", ["require", "off"])
def test_a_missing_shard(served, native):
    server, url = served
    path = shards_of(server)[1]
    pack = feedmill.Pack(url, FIXED)
    del server.objects[path]
    loader = feedmill.DataLoader(pack, batch_size=5, native=native)
    with pytest.raises((OSError, PackError), match="HTTP 404") as caught:
        list(loader)
    assert f"{server.url}{path}" in str(caught.value)
    if native == "require":
        loader = native_loader(pack, on_error="skip")
        n_lost = sum(pack.place(i).shard == 1 for i in range(len(pack)))
        assert sum(len(images) for images, _ in loader) == len(pack) - n_lost
        assert len(loader.stats().sample_errors) == n_lost


def test_a_shard_that_changes_within_an_epoch(served):
    server, url = served
    path = shards_of(server)[0]
    for options in ({"native": "require", "num_workers": 1, "prefetch_factor": 1},
                    {"native": "off"}):
        server.etags[path] = '"1"'
        # More samples than are read ahead.
        many = Subset(feedmill.Pack(url, FIXED), 1000 * [0])
        batches = iter(feedmill.DataLoader(many, batch_size=1, **options))
        next(batches)
        server.etags[path] = '"2"'
        with pytest.raises((OSError, PackError), match="has changed since it was first read"):
            list(batches)
        # A pack that is opened later has the new version.
        assert len(batches_of(feedmill.DataLoader(feedmill.Pack(url, FIXED), **options))) == 24


def test_a_shard_that_was_replaced_by_a_larger_one(served):
    server, url = served
    pack = feedmill.Pack(url, FIXED)
    server.objects[shards_of(server)[0]] += bytes(512)
    with pytest.raises(PackError, match="replaced after it was indexed"):
        pack[0]


def test_faults_that_pass(served, packed):
    server, url = served
    want = batches_of(native_loader(feedmill.Pack(packed, FIXED)))
    seen = set()

    def once(path):
        is_new = path not in seen
        seen.add(path)
        return 503 if is_new else 200

    server.status = once
    server.cuts = dict.fromkeys(server.objects, 2)
    loader = native_loader(feedmill.Pack(url, FIXED))
    assert equal(batches_of(loader), want)
    assert loader.stats().decode.fallback_samples == 0


# ---- WebDataset ----------------------------------------------------------------------------------


def write_tar(images, extra=0):
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for i, data in enumerate(images):
            for name, content in ((f"{i}.jpg", data), (f"{i}.cls", str(i % 3).encode()),
                                  (f"{i}.bin", bytes(extra))):
                info = tarfile.TarInfo(name)
                info.size = len(content)
                tar.addfile(info, io.BytesIO(content))
    return out.getvalue()


@pytest.fixture
def tar_objects(tmp_path, packed):
    """(server, pattern of URLs, pattern of paths) of tar files; two have large members."""
    pack = feedmill.Pack(packed)
    with ObjectServer({}) as server:
        for k in range(3):
            images = [pack.encoded(i) for i in range(6 * k, 6 * k + 6)]
            data = write_tar(images, 300_000 * k)
            (tmp_path / f"{k}.tar").write_bytes(data)
            server.objects[f"/t/{k}.tar"] = data
            server.etags[f"/t/{k}.tar"] = f'"{k}"'
        yield server, f"{server.url}/t/{{0..2}}.tar", str(tmp_path / "{0..2}.tar")


def test_tar_objects_are_as_files(tar_objects):
    server, urls, paths = tar_objects
    local, mine = feedmill.WebDataset(paths, FIXED), feedmill.WebDataset(urls, FIXED)
    assert list(mine.samples) == list(local.samples) and mine.classes == local.classes
    assert "if-match" in server.requests[-1][1]
    want = batches_of(native_loader(local))
    loader = native_loader(mine)
    assert equal(batches_of(loader), want)
    assert loader.stats().decode.fallback_samples == 0
    copy = pickle.loads(pickle.dumps(mine))
    assert torch.equal(copy[17][0], local[17][0])
    loader = TorchDataLoader(mine, 5, num_workers=2)
    assert equal(batches_of(loader), batches_of(TorchDataLoader(local, 5)))


def test_large_members_are_skipped(tar_objects):
    server, urls, _ = tar_objects
    server.objects["/t/big.tar"] = write_tar([b"x" * 100] * 3, 5_000_000)
    feedmill.WebDataset(f"{server.url}/t/big.tar")
    read = 0
    for one in kinds(server, "/big.tar"):
        first, last = one["range"].removeprefix("bytes=").split("-")
        read += int(last) - int(first) + 1
    assert read < 1_000_000


def test_tar_objects_are_indexed_once(tar_objects):
    server, urls, _ = tar_objects
    first = feedmill.WebDataset(urls)
    server.requests.clear()
    assert list(feedmill.WebDataset(urls).samples) == list(first.samples)
    assert [one["range"] for _, one in server.requests] == 3 * ["bytes=0-0"]
    data = server.objects["/t/1.tar"]
    server.objects["/t/1.tar"] = write_tar([first.encoded(0)])
    server.etags["/t/1.tar"] = '"new"'
    assert len(feedmill.WebDataset(urls)) == len(first) - 5
    # Without an ETag nothing says that the object is the same.
    server.etags.clear()
    feedmill.WebDataset(urls)
    server.objects["/t/1.tar"] = data
    assert len(feedmill.WebDataset(urls)) == len(first)


def test_bad_tar_objects(tar_objects):
    server, urls, _ = tar_objects
    with pytest.raises(FileNotFoundError, match="HTTP 404"):
        feedmill.WebDataset(f"{server.url}/t/9.tar")
    data = server.objects["/t/0.tar"]
    for content, message in ((b"no tar" * 200, "not a tar file"), (data[:9000], "truncated"),
                             (b"\x1f\x8b" + data, "gzip")):
        server.objects["/t/0.tar"] = content
        server.etags["/t/0.tar"] = f'"{len(content)}"'
        with pytest.raises(PackError, match=message) as caught:
            feedmill.WebDataset(f"{server.url}/t/0.tar?secret")
        assert "secret" not in str(caught.value) and "/t/0.tar" in str(caught.value)


# ---- commands ------------------------------------------------------------------------------------


def run(capsys, *words):
    status = cli.main([*map(str, words)])
    return status, capsys.readouterr().out


def test_bench(served, tar_objects, tmp_path, capsys):
    server, url = served
    status, out = run(capsys, "bench", url, "--epochs", "2", "--json")
    found = json.loads(out)
    assert status == 0 and found["images"] == 48 and found["bad_files"] == 0
    assert found["http_requests"] - found["http_hedged"] + found["http_shared"] == 48
    gap_bytes = found["http_shared"] * (64 << 10)  # at most, between ranges that share a request
    assert 0 < found["http_bytes"] <= found["encoded_bytes"] + gap_bytes
    waits = found["storage_wait_s"]
    assert waits.pop("storage") == pytest.approx(sum(waits.values()))
    status, out = run(capsys, "bench", f"{url}?token=secret", "--epochs", "1")
    assert "secret" not in out and " requests" in out and "MB of images" in out
    assert "  storage    " in out and "what helps: " in out
    status, out = run(capsys, "bench", tar_objects[1], "--epochs", "1", "--json")
    assert json.loads(out)["images"] == 18
    server.objects["/a.jpg"] = feedmill.Pack(url).encoded(0)
    (tmp_path / "list.txt").write_text(f"{server.url}/a.jpg\n{server.url}/none.jpg\n")
    status, out = run(capsys, "bench", tmp_path / "list.txt", "--epochs", "1", "--json")
    found = json.loads(out)
    assert found["images"] == 2 and list(found["bad"]) == [f"{server.url}/none.jpg"]
    status, out = run(capsys, "bench", tmp_path / "list.txt", "--epochs", "1")
    assert status == 0 and "2 requests" in out and "MB fetched\n" in out


def test_check(served, tmp_path, capsys, packed):
    server, url = served
    status, out = run(capsys, "check", url)
    assert status == 0 and "24 images: 24 decoded natively" in out
    assert run(capsys, "check", packed) == (status, out)
    path = shards_of(server)[0]
    place = feedmill.Pack(url).place(0)
    data = bytearray(server.objects[path])
    data[place.offset : place.offset + 3] = b"xxx"
    server.objects[path] = bytes(data)
    status, out = run(capsys, "check", url, "--json")
    (name,) = json.loads(out)["damaged"]
    assert status == 1 and name.startswith("'c0/0.jpg' in http://")
    server.objects["/a.jpg"] = feedmill.Pack(url).encoded(1)
    (tmp_path / "list.txt").write_text(f"{server.url}/a.jpg\n{server.url}/none.jpg\n")
    status, out = run(capsys, "check", tmp_path / "list.txt")
    assert status == 1 and "2 images: 1 decoded natively" in out and "none.jpg: HTTP 404" in out
    with pytest.raises(SystemExit):
        cli.main(["check", f"{server.url}/nothing/"])
    assert "not a pack" in capsys.readouterr().err


def test_doctor(served, capsys, monkeypatch):
    server, url = served
    status, out = run(capsys, "doctor", f"{url}?token=secret")
    assert "secret" not in out and f"{url}index.fmp" in out and 'ETag "1"' in out
    assert "connecting took about " in out and "limits 256 requests in flight" in out
    monkeypatch.setenv("AWS_ENDPOINT_URL", server.url)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIAKEY")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hidden")
    status, out = run(capsys, "doctor", "s3://packs/p/index.fmp", "--json")
    found = json.loads(out)["object"]
    assert found["credentials"] == "AWS_ACCESS_KEY_ID in the environment" and not found["error"]
    assert found["bytes"] == len(server.objects[INDEX]) and found["endpoint"] == server.url
    assert "AKIAKEY" not in out and "hidden" not in out
    status, out = run(capsys, "doctor", "s3://packs/p/none.jpg")
    assert status == 1 and "HTTP 404" in out
    assert run(capsys, "doctor", "az://c/x")[0] == 1


def test_pack(tar_objects, served, tmp_path, capsys):
    _, urls, paths = tar_objects
    assert run(capsys, "pack", urls, tmp_path / "a")[0] == 0
    assert run(capsys, "pack", served[1], tmp_path / "b")[0] == 0
    mine, local = feedmill.Pack(tmp_path / "a", FIXED), feedmill.WebDataset(paths, FIXED)
    assert mine.targets == local.targets
    assert all(torch.equal(a, b) for (a, _), (b, _) in zip(mine, local))
    mine, first = feedmill.Pack(tmp_path / "b", FIXED), feedmill.Pack(served[1], FIXED)
    assert all(torch.equal(a, b) for (a, _), (b, _) in zip(mine, first))
    with pytest.raises(SystemExit):
        cli.main(["pack", urls, "https://host/pack"])
    assert "OUT must be a folder, or a name such as s3://" in capsys.readouterr().err
