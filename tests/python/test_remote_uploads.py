"""Packs that are written into a bucket of moto's server."""

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from dataclasses import replace

import feedmill
import moto_server
import pytest
import torch
from feedmill.cli import cli
from feedmill.packing import node
from feedmill.packing.source import read_source
from feedmill.packing.targets import StoreTarget, target_of
from feedmill.packing.writer import Layout, Options
from feedmill.remote import by_fsspec
from feedmill.remote.settings import read_settings
from helpers import compose
from moto_server import client_of
from object_server import without_settings
from small_packs import make_local, make_source, pack
from torchvision import transforms as T

pytest.importorskip("boto3")

FIXED = compose(T.Resize((8, 9)), T.ToTensor())
BUCKET = "packs"
OUT = f"s3://{BUCKET}/imagenet/a pack"
OPTIONS = Options(shard_bytes=10 << 10)


@pytest.fixture(scope="module")
def moto():
    with moto_server.started() as found:
        yield found


@pytest.fixture(autouse=True)
def environment(moto, monkeypatch, tmp_path):
    with without_settings(monkeypatch, tmp_path) as patch:
        patch.setenv("AWS_ENDPOINT_URL", moto[0])
        patch.setenv("AWS_ACCESS_KEY_ID", moto[1])
        patch.setenv("AWS_SECRET_ACCESS_KEY", moto[2])
        yield patch


@pytest.fixture
def client(moto):
    """Of an empty bucket."""
    client = client_of("s3", *moto)
    client.create_bucket(Bucket=BUCKET)
    yield client
    for one in client.list_objects_v2(Bucket=BUCKET).get("Contents", ()):
        client.delete_object(Bucket=BUCKET, Key=one["Key"])
    client.delete_bucket(Bucket=BUCKET)


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    return make_source(tmp_path_factory.mktemp("source"))


@pytest.fixture(scope="module")
def local(source, tmp_path_factory):
    """The pack in a folder."""
    return make_local(source, tmp_path_factory.mktemp("local") / "pack")


def objects_of(client):
    """name -> bytes of the objects below OUT"""
    prefix = OUT.partition(f"{BUCKET}/")[2] + "/"
    listed = client.list_objects_v2(Bucket=BUCKET, Prefix=prefix).get("Contents", ())
    return {one["Key"][len(prefix):]:
            client.get_object(Bucket=BUCKET, Key=one["Key"])["Body"].read() for one in listed}


def files_of(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.parametrize("out", [OUT, f"{OUT}/"])
def test_the_pack_is_that_of_a_folder(client, source, local, capsys, out):
    assert pack(source, out) == 0
    assert f"{OUT}: 18 samples of 2 classes in" in capsys.readouterr().out
    assert objects_of(client) == files_of(local) and len(files_of(local)) > 3
    mine, other = feedmill.Pack(OUT, FIXED), feedmill.Pack(local, FIXED)
    assert mine.targets == other.targets
    assert all(torch.equal(a, b) for (a, _), (b, _) in zip(mine, other))
    assert pack(source, out) == 1
    assert f"{OUT} is already a pack" in capsys.readouterr().err


def test_parts_are_joined(client, source, local, capsys):
    for part in ("1/2", "0/2"):
        assert pack(source, OUT, "--part", part) == 0
    capsys.readouterr()
    # Of a cluster whose command was killed.
    target_of(OUT).write("nodes.0123456789abcdef.partial", b"")
    assert cli.main(["pack", "--join", OUT]) == 0
    assert objects_of(client) == files_of(local)


def test_an_unfinished_pack_goes_on(client, source, local, capsys, monkeypatch):
    """The store fails after some shards, in the middle of a shard, and when the index is written."""
    prefix = type(target_of(OUT)._prefix)
    uploads, calls = prefix.upload, Counter()

    def fails_at(n):
        def upload(self, name, data):
            calls[name] += 1
            if len(calls) == n:
                raise OSError(5, "HTTP 500 InternalError", name)
            uploads(self, name, data)
        return upload

    monkeypatch.setattr(prefix, "upload", fails_at(3))
    assert pack(source, OUT) == 1 and "HTTP 500" in capsys.readouterr().err
    assert "index.fmp" not in objects_of(client)
    monkeypatch.setattr(prefix, "upload", uploads)
    assert pack(source, OUT) == 0
    assert "2 of which existed already" in capsys.readouterr().out
    assert objects_of(client) == files_of(local)


def test_another_pack_is_not_touched(client, source, capsys):
    assert pack(source, OUT, "--part", "0/2") == 0
    before = objects_of(client)
    assert pack(source, OUT, "--interval", "3") == 1
    assert f"{OUT}/shard-000000.tar: the file exists, but was not made of this" in (
        capsys.readouterr().err)
    assert objects_of(client) == before
    assert cli.main(["pack", "--join", OUT]) == 1
    assert "shards are missing: shard-0" in capsys.readouterr().err


def test_what_the_store_refuses(client, source, environment, moto, capsys):
    for out, text in ((f"s3://{BUCKET}", "name a bucket and a prefix"),
                      ("s3://nowhere/pack", "HTTP 404 NoSuchBucket")):
        assert pack(source, out) == 1 and text in capsys.readouterr().err
    environment.setenv("AWS_SECRET_ACCESS_KEY", "a-wrong-secret")
    assert pack(source, OUT) == 1
    found = capsys.readouterr().err
    assert "HTTP 403" in found and "secret" not in found
    environment.setenv("CLOUDSDK_AUTH_ACCESS_TOKEN", "a-token")
    environment.setattr(by_fsspec, "why_unreadable", lambda name: "gcsfs is not installed")
    assert pack(source, "gs://bucket/pack") == 1
    found = capsys.readouterr().err
    assert "needs an HMAC key" in found and "pip install gcsfs" in found and "a-token" not in found
    environment.setitem(sys.modules, "boto3", None)
    assert pack(source, OUT) == 1 and "pip install boto3" in capsys.readouterr().err


def test_a_killed_process_leaves_no_half_shard(client, source, local, capsys):
    for delay_s in (0.5, 1.5, 2.5):
        process = subprocess.Popen([sys.executable, "-m", "feedmill", "pack", str(source), OUT,
                                    "--shard-size", "10K"], env=dict(os.environ))
        time.sleep(delay_s)
        process.send_signal(signal.SIGKILL)
        process.wait()
        found, whole = objects_of(client), files_of(local)
        shards = [name for name in found if name.endswith(".tar")]
        assert all(found[name] == whole[name] for name in shards)
    # The store may have taken the index, the last request, after its sender was killed.
    assert pack(source, OUT) == 0 or f"{OUT} is already a pack" in capsys.readouterr().err
    assert objects_of(client) == files_of(local)


def test_large_files_go_up_in_parts(client, tmp_path, monkeypatch):
    target = target_of(OUT)
    monkeypatch.setattr("feedmill.remote.uploads._PART_BYTES", 5 << 20)
    data = os.urandom(1 << 20) * 11
    with target.new_file("large") as file:
        file.write(data)
    assert objects_of(client) == {"large": data} and target.size("large") == len(data)
    with pytest.raises(KeyError), target.new_file("half") as file:
        file.write(data)
        raise KeyError
    assert target.size("half") is None and target.names() == ["large"]
    assert not client.list_multipart_uploads(Bucket=BUCKET).get("Uploads")


# ---- nodes of a cluster --------------------------------------------------------------------------


def run_on_node(site, job=None):
    return node.run(node.version(), node.payload_of(site, job, OPTIONS))


def test_a_node_uses_the_settings_of_the_command(client, source, local, environment, moto):
    """Only the keys are its own."""
    settings = read_settings()
    environment.delenv("AWS_ENDPOINT_URL")
    marker = "nodes.0123456789abcdef.partial"
    site = node.Site([str(source)], OUT, settings, marker)
    job = Layout(read_source(str(source)), OPTIONS).job(1)
    result = run_on_node(site, job)
    assert result.of_node and f"does not see in {OUT} what the node" in result.error
    target_of(OUT, settings).write(marker, b"")
    assert run_on_node(site) == node.Result(None)
    result = run_on_node(site, job)
    assert result.tally.samples == len(job.samples) and not result.error
    with environment.context() as stopped:  # the command ends while the node works
        stopped.setattr(StoreTarget, "check_s", 0.0)
        stopped.setattr(StoreTarget, "has", lambda self, name: name != marker)
        other = run_on_node(site, Layout(read_source(str(source)), OPTIONS).job(0))
    assert other.tally is None and "the command that started it has ended" in other.error
    assert "shard-000000.tar" not in objects_of(client)
    name = "shard-000001.tar"
    assert objects_of(client)[name] == files_of(local)[name]
    assert run_on_node(site, job).tally.kept == 1


def test_what_a_node_lacks(client, source, environment, moto):
    target_of(OUT).write("marker", b"")
    site = node.Site([], OUT, read_settings(), "marker")
    job = Layout(read_source(str(source)), OPTIONS).job(0)
    environment.setenv("FEEDMILL_REMOTE_ATTEMPTS", "1")
    gone = read_settings()._replace(endpoint_url=f"http://127.0.0.1:{moto_server.free_port()}")
    result = run_on_node(replace(site, settings=gone), job)
    assert result.may_retry and "Could not connect" in result.error
    result = run_on_node(replace(site, settings=gone))
    assert result.of_node and "can't reach the target: " in result.error
    environment.setenv("AWS_SECRET_ACCESS_KEY", "a-wrong-secret")
    result = run_on_node(site, job)
    assert result.of_node and "can't use the target: [Errno 13] HTTP 403" in result.error
    assert "secret" not in result.error
    environment.setitem(sys.modules, "boto3", None)
    result = run_on_node(site, job)
    assert result.of_node and "pip install boto3" in result.error
