"""Indexes of buckets, against moto's server and a server of made listings."""

import os
import threading
from random import Random
from urllib.parse import parse_qs, quote, urlsplit

import conftest  # noqa: F401  makes torchvision importable in spawned workers
import feedmill
import helpers
import moto_server
import pytest
import torch
from feedmill._ops import native
from feedmill.cli import cli
from feedmill.data import ImageList
from feedmill.indexing import listing
from feedmill.indexing.listing import list_all, place_of
from feedmill.remote import process
from helpers import compose
from moto_server import client_of
from object_server import ObjectServer, without_settings
from torch.utils.data import DataLoader as TorchDataLoader
from torchvision import transforms as T
from torchvision.datasets import ImageFolder

pytest.importorskip("boto3")
pytestmark = pytest.mark.skipif(not native.libcurl_version(), reason="built without libcurl")

FIXED = compose(T.Resize((8, 9)), T.ToTensor())
RANDOM = compose(T.RandomResizedCrop(16), T.RandomHorizontalFlip(), T.ToTensor())
BUCKET = "indexed"
ODD = "cat/ü+ %41&<b>'\"/日本 \x7f.jpg"


def small(image):
    """FIXED, pickled by a name in this module, which makes torchvision importable."""
    return FIXED(image)


@pytest.fixture(autouse=True)
def environment(monkeypatch, tmp_path):
    with without_settings(monkeypatch, tmp_path) as patch:
        yield patch


@pytest.fixture(scope="module")
def moto():
    with moto_server.started() as found:
        yield found


@pytest.fixture
def client(moto, environment):
    """A client of moto's server, whose keys are in the environment."""
    environment.setenv("AWS_ENDPOINT_URL", moto[0])
    environment.setenv("AWS_ACCESS_KEY_ID", moto[1])
    environment.setenv("AWS_SECRET_ACCESS_KEY", moto[2])
    return client_of("s3", *moto)


@pytest.fixture(scope="module")
def tree(tmp_path_factory):
    root = tmp_path_factory.mktemp("tree")
    for i, name in enumerate([*(f"c{i % 3}/{i:02}.jpg" for i in range(15)), ODD, "c1/x/deep.JPG"]):
        helpers.save_jpeg(root / name, 20 + i, 40 - i, seed=i)
    (root / "c0" / "notes.txt").write_text("no image")
    return root


@pytest.fixture
def bucket(client, tree):
    """The tree in a bucket, below two prefixes, between others."""
    client.create_bucket(Bucket=BUCKET)
    for folder, _, names in os.walk(tree):
        for name in names:
            path = os.path.join(folder, name)
            with open(path, "rb") as file:
                client.put_object(Bucket=BUCKET, Key=f"a b/train/{os.path.relpath(path, tree)}",
                                  Body=file.read())
    for marker in ("a b/train/", "a b/train/c1/"):  # as S3's console makes them
        client.put_object(Bucket=BUCKET, Key=marker, Body=b"")
    for other in ("a b/train-other/c9/a.jpg", "a b/train.jpg", "z/c/a.jpg"):
        client.put_object(Bucket=BUCKET, Key=other, Body=b"other")
    yield f"s3://{BUCKET}/a b/train"
    for one in client.list_objects_v2(Bucket=BUCKET)["Contents"]:
        client.delete_object(Bucket=BUCKET, Key=one["Key"])
    client.delete_bucket(Bucket=BUCKET)


def index_of(source, tmp_path, *options, transform=FIXED):
    path = tmp_path / "a.index"
    assert cli.main(["index", source, "-o", str(path), *options]) == 0
    return feedmill.Index(path, transform)


def batches_of(loader, seed=0):
    torch.manual_seed(seed)
    return [(images.clone(), labels.clone()) for images, labels in loader]


def equal(one, other):
    return len(one) == len(other) and all(
        torch.equal(a, b) and torch.equal(c, d) for (a, c), (b, d) in zip(one, other))


# ---- moto ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("slash", ["", "/"])
def test_a_bucket_is_as_its_folder(bucket, tree, tmp_path, capsys, slash):
    index, folder = index_of(bucket + slash, tmp_path), ImageFolder(str(tree))
    said = capsys.readouterr().out
    assert f"17 images of 4 classes in {bucket}/" in said
    assert "1 objects in class folders without" in said
    assert index.is_remote and index.root == bucket
    assert index.classes == folder.classes
    names = [path.replace(str(tree), bucket, 1) for path, _ in folder.samples]
    assert list(index.samples) == list(zip(names, folder.targets))
    assert index.sizes.tolist() == [os.path.getsize(path) for path, _ in folder.samples]
    assert all(len(one) == 34 and one[0] == one[-1] == '"' for one in index.etags)
    index.transform = None
    (image, label), (want, want_label) = index[3], folder[3]
    assert image.tobytes() == want.tobytes() and label == want_label


@pytest.mark.parametrize("options", [
    {"native": "require"}, {"native": "require", "num_workers": 2}, {"native": "off"},
    {"native": "off", "num_workers": 2}, {"native": "verify"}, {"native": "hybrid"},
    {"native": "require", "cache": "ram:8MiB"},
])
def test_batches_are_torchs(bucket, tree, tmp_path, options):
    transform = FIXED if options["native"] == "hybrid" else RANDOM  # whose draws are not torch's
    index = index_of(bucket, tmp_path, transform=transform)
    ours = feedmill.DataLoader(index, batch_size=5, shuffle=True, **options)
    theirs = TorchDataLoader(ImageFolder(str(tree), transform), batch_size=5, shuffle=True,
                             num_workers=options.get("num_workers", 0))
    if options["native"] == "require":
        explained = ours.explain()
        assert explained.startswith("native path")
        assert f"read over the network: s3://{BUCKET}" in explained
    for seed in range(2):
        assert equal(batches_of(ours, seed), batches_of(theirs, seed))


def test_spawned_workers(bucket, tree, tmp_path):
    index, folder = index_of(bucket, tmp_path, transform=small), ImageFolder(str(tree), small)
    ours = TorchDataLoader(index, batch_size=5, num_workers=1, multiprocessing_context="spawn")
    assert equal(batches_of(ours), batches_of(TorchDataLoader(folder, batch_size=5)))


def test_changed_objects_are_named(bucket, client, tmp_path):
    index = index_of(bucket, tmp_path)
    name = index.samples[6][0]
    key = name.removeprefix(f"s3://{BUCKET}/")
    data = helpers.save_jpeg(tmp_path / "other.jpg", 30, 30, seed=99).read_bytes()
    client.put_object(Bucket=BUCKET, Key=key, Body=data)
    for options in ({"native": "require"}, {"native": "off"}, {"native": "hybrid"},
                    {"native": "off", "num_workers": 1}):
        with pytest.raises(OSError, match="changed since it was indexed; index it again") as caught:
            list(feedmill.DataLoader(index, batch_size=4, **options))
        assert name in str(caught.value)
    loader = feedmill.DataLoader(index, batch_size=4, native="require", on_error="skip")
    assert sum(len(labels) for _, labels in loader) == len(index) - 1
    (error,) = loader.stats().sample_errors
    assert error.index == 6 and "changed since it was indexed" in error.cause
    # Without ETags it is read as it is, and a new index has the new one.
    for fresh in (index_of(bucket, tmp_path, "--no-etags"), index_of(bucket, tmp_path)):
        loader = feedmill.DataLoader(fresh, batch_size=4, native="require")
        assert sum(len(labels) for _, labels in loader) == len(index)
    assert fresh.etags[6] != index.etags[6] and fresh.etags[5] == index.etags[5]


def test_removed_objects_are_named(bucket, client, tmp_path):
    index = index_of(bucket, tmp_path)
    name = index.samples[2][0]
    client.delete_object(Bucket=BUCKET, Key=name.removeprefix(f"s3://{BUCKET}/"))
    for options in ({"native": "require"}, {"native": "off"}):
        with pytest.raises(FileNotFoundError, match="HTTP 404") as caught:
            list(feedmill.DataLoader(index, batch_size=4, **options))
        assert name in str(caught.value)


def test_tables(bucket, tmp_path, capsys):
    table = tmp_path / "labels.csv"
    table.write_text(f"key,label\nc2/02.jpg,dog\n{bucket}/c0/00.jpg,cat\n")
    listed = index_of(bucket, tmp_path, "--csv", str(table))
    assert "left out: 15 images that the table does not name" in capsys.readouterr().out
    assert listed.classes == ["cat", "dog"] and list(listed.targets) == [1, 0]
    assert all(listed.etags) and min(listed.sizes) > 0
    believed = index_of(bucket, tmp_path, "--csv", str(table), "--no-list")
    assert list(believed.samples) == list(listed.samples) and not any(believed.etags)
    for index in (listed, believed):
        loader = feedmill.DataLoader(index, batch_size=4, native="require")
        assert sum(len(labels) for _, labels in loader) == 2


def test_tables_of_urls(bucket, tree, tmp_path, capsys):
    table = tmp_path / "labels.csv"
    table.write_text("key,label\nc2/02.jpg,dog\nc0/00.jpg,cat\n")
    objects = {f"/x/{key}": (tree / key).read_bytes() for key in ("c2/02.jpg", "c0/00.jpg")}
    with ObjectServer(objects) as server:
        index = index_of(f"{server.url}/x", tmp_path, "--csv", str(table))
        assert [path for path, _ in index.samples] == [
            f"{server.url}/x/c2/02.jpg", f"{server.url}/x/c0/00.jpg"]
        loader = feedmill.DataLoader(index, batch_size=4, native="require")
        assert f"read over the network: {server.url}" in loader.explain()
        assert sum(len(labels) for _, labels in loader) == 2
    for url in ("https://me:secret@host/x", "https://host/x?secret=1", "https://host/x#secret"):
        status = cli.main(["index", url, "-o", str(tmp_path / "b.index"), "--csv", str(table)])
        said = capsys.readouterr().err
        assert status == 1 and "can't be indexed" in said and "secret=" not in said and "me:" not in said
    assert not os.path.exists(tmp_path / "b.index")


def test_listings_of_many_pages(bucket, tmp_path, monkeypatch):
    """Pages of three objects."""
    want = list(index_of(bucket, tmp_path).samples)
    names = []

    def fetch_small_pages(name):
        names.append(name)
        return process.fetch(f"{name}&max-keys=3")

    monkeypatch.setattr(listing, "fetch", fetch_small_pages)
    counts = []
    found = dict(list_all(place_of(bucket), counts.append))
    assert sum(map(len, found.values())) == sum(counts) == 20
    assert sum("continuation-token=" in name for name in names) >= 5
    flat = dict(list_all(place_of(f"{bucket}/c0"), lambda n: None))
    assert [f"c0/{one.key}" for one in flat[""]] == sorted(one.key for one in found["c0"])
    assert any("start-after=" in name for name in names)
    assert list(index_of(bucket, tmp_path).samples) == want


def test_refused_buckets(bucket, client, environment, tmp_path, capsys):
    out = ["-o", str(tmp_path / "a.index")]

    def error_of(source):
        assert cli.main(["index", source, *out]) == 1
        return capsys.readouterr().err

    assert "no bucket of this name" in error_of("s3://no-such-bucket/a")
    assert "there is nothing" in error_of(f"s3://{BUCKET}/a b/trainx")
    assert "1 folders, but no images" not in error_of(f"s3://{BUCKET}/z/c")
    assert "has no bucket" in error_of("s3:///x")
    environment.setenv("AWS_SECRET_ACCESS_KEY", "the-wrong-secret")
    said = error_of(bucket)
    assert "HTTP 403" in said and "s3:ListBucket" in said and "the-wrong-secret" not in said
    assert not os.path.exists(out[1])


# ---- made listings -------------------------------------------------------------------------------


def page(keys, folders=(), token="", space=' xmlns="http://s3.amazonaws.com/doc/2006-03-01/"'):
    entries = "".join(
        f"<Contents><Key>{quote(key)}</Key><Size>{size}</Size><ETag>{etag}</ETag></Contents>"
        for key, size, etag in keys)
    entries += "".join(f"<CommonPrefixes><Prefix>{quote(one)}</Prefix></CommonPrefixes>"
                       for one in folders)
    more = f"<NextContinuationToken>{token}</NextContinuationToken>" if token else ""
    return (f"<?xml version='1.0'?><ListBucketResult{space}><EncodingType>url</EncodingType>"
            f"<IsTruncated>{'true' if token else 'false'}</IsTruncated>{more}{entries}"
            "</ListBucketResult>").encode()


@pytest.fixture
def served(environment):
    """A server whose listings of the bucket "b" are its object "/b/"."""
    with ObjectServer({}) as server:
        environment.setenv("AWS_ENDPOINT_URL", server.url)
        environment.setenv("AWS_ACCESS_KEY_ID", "AKID")
        environment.setenv("AWS_SECRET_ACCESS_KEY", "secret")
        yield server


def parameters_of(server):
    return [{name: one for name, (one,) in parse_qs(urlsplit(path).query).items()}
            for path, _ in server.requests]


@pytest.mark.parametrize("space", ["", ' xmlns="http://s3.amazonaws.com/doc/2006-03-01/"'])
def test_what_is_requested(served, space):
    served.objects["/b/"] = page([("p/cat/a.jpg", 5, "&quot;e&quot;"), ("p/x+y.jpg", "", "W/&quot;w&quot;")],
                                 space=space)
    (found,) = [entries for _, entries in list_all(place_of("s3://b/p"), lambda n: None)]
    assert [tuple(one) for one in found] == [("cat/a.jpg", 5, "e"), ("x+y.jpg", -1, "")]
    assert parameters_of(served) == [
        {"list-type": "2", "encoding-type": "url", "prefix": "p/", "delimiter": "/"}]


def test_google_buckets(served, environment, tmp_path):
    environment.setenv("STORAGE_EMULATOR_HOST", served.url)
    data = helpers.save_jpeg(tmp_path / "a.jpg", 30, 30).read_bytes()
    served.objects["/b/"] = page([("p/cat/a.jpg", len(data), "&quot;e&quot;")], ["p/cat/"])
    served.objects["/b/p/cat/a.jpg"], served.etags["/b/p/cat/a.jpg"] = data, '"e"'
    # Both listings have the same page here.
    (found, _) = list_all(place_of("gs://b/p"), lambda n: None)
    assert found[0] == "cat" and [one.key for one in found[1]] == ["cat/a.jpg"]
    index = index_of("gs://b/p", tmp_path)
    assert [path for path, _ in index.samples] == ["gs://b/p/cat/a.jpg"]
    loader = feedmill.DataLoader(index, native="require")
    assert "read over the network: gs://b" in loader.explain() and len(list(loader)) == 1
    assert served.requests[-1][1]["if-match"] == '"e"'


def test_signatures_are_botocores(served):
    from botocore import auth
    from botocore.awsrequest import AWSRequest
    from botocore.credentials import Credentials

    served.objects["/b/"] = page([])
    list(list_all(place_of("s3://b/p ü+/&x=~"), lambda n: None))
    ((path, headers),) = served.requests
    request = AWSRequest("GET", served.url + path,
                         headers={"x-amz-content-sha256": headers["x-amz-content-sha256"]})
    request.headers["X-Amz-Date"] = request.context["timestamp"] = headers["x-amz-date"]
    signer = auth.S3SigV4Auth(Credentials("AKID", "secret"), "s3", "us-east-1")
    text = signer.string_to_sign(request, signer.canonical_request(request))
    assert headers["authorization"].endswith(f"Signature={signer.signature(text, request)}")


@pytest.mark.parametrize("body, why", [
    (b"<html>welcome</html>", "does not answer as S3 does"), (b"", "does not answer as S3 does"),
    (b"\xff\x00 no xml", "does not answer as S3 does"),
    (page([], ["c/"], token="same"), "repeats a page"),
    (b"<ListBucketResult><Contents><Key>a</Key><Size>many</Size></Contents></ListBucketResult>",
     "does not answer as S3 does"),
])
def test_other_answers(served, body, why, tmp_path, capsys):
    served.objects["/b/"] = body
    assert cli.main(["index", "s3://b/", "-o", str(tmp_path / "a.index")]) == 1
    said = capsys.readouterr().err
    assert why in said and "s3://b/" in said and "Traceback" not in said


def test_a_failed_listing_stops_the_others(served, tmp_path):
    """The first error of a thread is raised; no thread is left."""
    served.objects["/b/"] = page([], [f"c{i}/" for i in range(100)])
    served.status = lambda path: 403 if len(served.requests) > 20 else 200
    with pytest.raises(PermissionError, match="HTTP 403"):
        list(list_all(place_of("s3://b/"), lambda n: None))
    for thread in threading.enumerate():
        if thread.name.startswith("fm-listing"):
            thread.join(20)
            assert not thread.is_alive()


# ---- flat prefixes -------------------------------------------------------------------------------


def store(monkeypatch, keys, page_keys, is_ordered=True):
    """Has the listings of a made bucket answered in pages. Returns the names that are fetched."""
    names = []

    def fetch(name):
        names.append(name)
        parameters = {k: v for k, (v,) in parse_qs(urlsplit(name).query, keep_blank_values=True).items()}
        prefix, token = parameters["prefix"], parameters.get("continuation-token")
        after = token or parameters.get("start-after", "") if is_ordered else token or ""
        found = {}
        for key in sorted(keys):
            folder, slash, _ = key[len(prefix):].partition("/")
            is_folder = bool(slash) and "delimiter" in parameters
            one = prefix + folder + "/" if is_folder else key
            if key.startswith(prefix) and key > after and not (is_folder and token and one <= token):
                found[one] = is_folder
        some = list(found)[:page_keys]
        return page([(one, 1, "") for one in some if not found[one]],
                    [one for one in some if found[one]],
                    some[-1] if len(found) > len(some) else "")

    monkeypatch.setattr(listing, "fetch", fetch)
    return names


@pytest.mark.parametrize("seed", range(12))
def test_ranges_of_keys_are_exact(monkeypatch, seed):
    random = Random(seed)
    alphabet = random.choice(["0123456789", "0123456789abcdef", "aZ_.-é日", "a/b0"])
    keys = {"p/" + "".join(random.choices(alphabet, k=random.randint(1, 9))) for _ in range(600)}
    keys |= {f"p/img_{i:08}.jpg" for i in range(random.choice([0, 900]))} | {"q", "o/x"}
    keys = {key for key in keys if "//" not in key}
    store(monkeypatch, keys, random.randint(1, 40))
    counts = []
    folders = dict(list_all(place_of("s3://b/p"), counts.append))
    listed = [entry.key for entries in folders.values() for entry in entries]
    assert sorted(listed) == sorted(key[2:] for key in keys if key.startswith("p/"))
    top = [entry.key for entry in folders[""]]
    assert top == sorted(top) and sum(counts) == len(listed)


def test_a_flat_prefix_is_listed_in_ranges(monkeypatch):
    names = store(monkeypatch, {f"img_{i:08}.jpg" for i in range(3000)}, 10)
    assert len(dict(list_all(place_of("s3://b"), lambda n: None))[""]) == 3000
    ranges = sum("start-after=" in name for name in names)
    assert ranges > 32 and len(names) < 2 * 300 + 200


def test_a_server_that_ignores_ranges(monkeypatch):
    store(monkeypatch, {f"{i:04}" for i in range(500)}, 10, is_ordered=False)
    counts = []
    (found,) = [entries for _, entries in list_all(place_of("s3://b"), counts.append)]
    assert [one.key for one in found] == [f"{i:04}" for i in range(500)] and sum(counts) == 500


@pytest.mark.parametrize("seed", range(12))
def test_large_folders_are_exact(monkeypatch, seed):
    """Folders of any number and size, of which some are listed in ranges."""
    random = Random(seed)
    keys = {"p/top.jpg", "p/zz", "q/x.jpg"}
    for folder in range(random.choice([1, 3, 40])):
        name = random.choice(["c", "é日", "a b-"]) + str(folder)
        alphabet = random.choice(["0123456789", "aZ_.-é日\U0010ffff", "a/b0"])
        keys |= {f"p/{name}/" + "".join(random.choices(alphabet, k=random.randint(0, 6)))
                 for _ in range(random.choice([5, 60, 600]))}
    keys = {key for key in keys if "//" not in key}
    store(monkeypatch, keys, random.randint(1, 9))
    counts = []
    found = dict(list_all(place_of("s3://b/p"), counts.append))
    for name, entries in found.items():
        some = [one.key for one in entries]
        begin = f"p/{name}/" if name else "p/"
        want = [key[2:] for key in sorted(keys)
                if key.startswith(begin) and (name or "/" not in key[2:])]
        assert some == want
    assert sum(counts) == sum(map(len, found.values())) == len(keys) - 1


def test_a_large_folder_is_listed_in_ranges(monkeypatch):
    keys = {f"a/img_{i:08}.jpg" for i in range(3000)} | {f"b/{i}.jpg" for i in range(9)}
    names = store(monkeypatch, keys, 10)
    found = dict(list_all(place_of("s3://b"), lambda n: None))
    assert {name: len(entries) for name, entries in found.items()} == {"a": 3000, "b": 9, "": 0}
    assert sum("start-after=" in name for name in names) > 32 and len(names) < 2 * 300 + 200


def test_many_folders_are_listed_in_pages(monkeypatch):
    """Threads are busy without ranges: these would only cost requests."""
    keys = {f"{folder:02}/{i:04}.jpg" for folder in range(64) for i in range(70)}
    names = store(monkeypatch, keys, 10)
    assert len(dict(list_all(place_of("s3://b"), lambda n: None))) == 65
    assert len(names) == 64 * 7 + 7


def test_large_folders_of_a_server_that_ignores_ranges(monkeypatch):
    keys = {f"{folder}/{i:04}" for folder in "ab" for i in range(500)}
    store(monkeypatch, keys, 10, is_ordered=False)
    counts = []
    found = dict(list_all(place_of("s3://b"), counts.append))
    assert {name: len(set(entries)) for name, entries in found.items()} == {"a": 500, "b": 500, "": 0}
    assert sum(counts) == 1000


def test_a_folder_whose_first_pages_are_empty(monkeypatch):
    """A server may answer with pages of no objects, as where many were deleted."""
    store(monkeypatch, {f"a/{i:04}" for i in range(30)}, 10)
    answer = listing.fetch

    def fetch(name):
        token = parse_qs(urlsplit(name).query).get("continuation-token", [""])[0]
        if "prefix=a" in name and token in map(str, range(12)):
            return page([], [], str(int(token) + 1))
        if "prefix=a" in name and not token and "start-after" not in name:
            return page([], [], "0")
        return answer(name.replace("continuation-token=12", "x=1"))

    monkeypatch.setattr(listing, "fetch", fetch)
    found = dict(list_all(place_of("s3://b"), lambda n: None))
    assert {name: len(entries) for name, entries in found.items()} == {"a": 30, "": 0}


# ---- versions ------------------------------------------------------------------------------------


class Versions(ImageList):
    """Names with ETags, of a dataset of one's own."""

    etags = ()

    def feedmill_item(self, index):
        name, target = super().feedmill_item(index)
        return (name, self.etags[index]), target


def test_own_datasets_name_versions(served, tmp_path):
    data = helpers.save_jpeg(tmp_path / "a.jpg", 30, 30).read_bytes()
    served.objects["/b/a.jpg"], served.etags["/b/a.jpg"] = data, '"1"'
    dataset = Versions(["s3://b/a.jpg"] * 3, transform=FIXED)
    dataset.etags = ['"1"', 'W/"9"', ""]
    assert len(list(feedmill.DataLoader(dataset, native="require"))) == 3
    assert [one.get("if-match") for _, one in served.requests].count('"1"') == 1
    dataset.etags = ['"2"', "", ""]
    with pytest.raises(OSError, match="changed since it was indexed"):
        list(feedmill.DataLoader(dataset, native="require"))
    for bad, why in (("x", "is not an ETag"), ('"' * 137, "is not an ETag"), (5, "ETag")):
        dataset.etags = [bad] * 3
        with pytest.raises((TypeError, ValueError), match=f"feedmill_item for index 0.*{why}"):
            list(feedmill.DataLoader(dataset, native="require"))
    assert process.fetch("s3://b/a.jpg", etag='"1"') == data
    with pytest.raises(OSError, match="changed since it was indexed"):
        process.fetch("s3://b/a.jpg", etag='"2"')
