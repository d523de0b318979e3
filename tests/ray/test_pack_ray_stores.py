"""`feedmill pack --ray` into a bucket, and into what fsspec writes to: no shard is seen before it is
complete, also if a node is lost."""

import os
import signal
import tarfile
from contextlib import suppress

import moto_server
import nodes as cluster_nodes
import pytest
from feedmill.cli import cli
from nodes import wait_for
from object_server import ObjectServer, without_settings
from runs import (
    AGAIN,
    N_IMAGES,
    SHARD,
    FolderOut,
    Run,
    files_of,
    n_shards,
    run_until_some_are_stopped,
)

BUCKET = "packs"


@pytest.fixture(scope="module")
def moto():
    pytest.importorskip("boto3")
    with moto_server.started() as found:
        yield found


@pytest.fixture(scope="module")
def patch(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch, without_settings(
        patch, tmp_path_factory.mktemp("home")
    ) as patched:
        yield patched


@pytest.fixture(scope="module")
def temporary(patch, tmp_path_factory):
    """The folder for temporary files, in which shards are made."""
    found = tmp_path_factory.mktemp("temporary")
    patch.setenv("TMPDIR", str(found))
    return found


@pytest.fixture(scope="module")
def nodes(patch, moto, temporary):
    """Nodes that have keys. Where the store is, only the command knows."""
    patch.setenv("AWS_ACCESS_KEY_ID", moto[1])
    patch.setenv("AWS_SECRET_ACCESS_KEY", moto[2])
    started = cluster_nodes.Nodes()
    patch.setenv("AWS_ENDPOINT_URL", moto[0])
    yield started
    started.shutdown()


@pytest.fixture(scope="module")
def client(moto):
    client = moto_server.client_of("s3", *moto)
    client.create_bucket(Bucket=BUCKET)
    return client


class BucketOut:
    """A prefix of the bucket, for a pack."""

    def __init__(self, client, prefix, temporary):
        self.client, self.prefix, self.temporary = client, f"{prefix}/", temporary

    def __str__(self):
        return f"s3://{BUCKET}/{self.prefix}"

    def _names(self):
        pages = self.client.get_paginator("list_objects_v2")
        return [one["Key"].removeprefix(self.prefix)
                for page in pages.paginate(Bucket=BUCKET, Prefix=self.prefix)
                for one in page.get("Contents", ())]

    def files(self):
        return {name: self.client.get_object(Bucket=BUCKET, Key=self.prefix + name)["Body"].read()
                for name in self._names()}

    def n_shards(self):
        return sum(1 for name in self._names() if name.endswith(".tar"))

    def remove(self):
        for name in self._names():
            self.client.delete_object(Bucket=BUCKET, Key=self.prefix + name)


@pytest.fixture(params=["s3", "fsspec"])
def new_out(request, client, temporary, tmp_path):
    if request.param == "s3":
        return lambda i: BucketOut(client, f"{tmp_path.name}/out{i}", temporary)
    return lambda i: FolderOut(tmp_path / f"out{i}", "local://", temporary)


def test_a_process_is_lost_and_ctrl_c(nodes, folder, packed, new_out):
    """A process is killed while it writes a shard, then another is stopped while the run ends."""
    words = (folder, "--shard-size", SHARD, "--ray", nodes.address)
    run, out, [(_, first), (_, last)] = run_until_some_are_stopped(
        nodes, new_out, 2, n_shards(packed), *words
    )
    whole = files_of(packed)
    os.kill(first, signal.SIGKILL)
    run.says("process or node was lost")
    run.says(AGAIN)
    run.process.send_signal(signal.SIGINT)
    run.says("unfinished tasks to end")
    os.kill(last, signal.SIGCONT)
    assert run.end() == 130 and "the same command continues" in run.text, run.text
    found = out.files()
    assert "index.fmp" not in found and not any(name.startswith("nodes") for name in found)
    assert all(data == whole[name] for name, data in found.items() if name.endswith(".tar"))
    run = Run(folder, out, *words[1:])
    assert run.end() == 0, run.text
    assert "of which existed already" in run.text
    assert out.files() == whole


def test_a_node_is_lost(nodes, folder, packed, new_out):
    words = (folder, "--shard-size", SHARD, "--ray", nodes.address)
    run, out, [(node, pid)] = run_until_some_are_stopped(
        nodes, new_out, 1, n_shards(packed), *words
    )
    nodes.lose(node)
    # Only then may the lost node's process go on: it could still hand its result over before.
    wait_for(lambda: AGAIN in run.text or run.is_over(), "the lost node's shard")
    with suppress(ProcessLookupError):  # Ray kills it with its node
        os.kill(pid, signal.SIGCONT)
    assert run.end() == 0, run.text
    assert run.text.count(AGAIN) == 1, run.text
    assert f"{N_IMAGES:,} samples in {n_shards(packed)} shards" in run.text
    assert out.files() == files_of(packed)


def test_tar_objects(nodes, packed, new_out, tmp_path):
    """Nodes read them by their names, and write them into a store."""
    path = packed / "shard-000000.tar"
    words = ["--shard-size", "100K"]
    assert cli.main(["pack", str(path), str(tmp_path / "one"), *words]) == 0
    with tarfile.open(path) as tar:
        assert len(tar.getnames()) > 20
    with ObjectServer({"/x.tar": path.read_bytes()}) as server:
        out = new_out(0)
        run = Run(f"{server.url}/x.tar", out, *words, "--ray", nodes.address)
        assert run.end() == 0, run.text
    assert out.files() == files_of(tmp_path / "one")


def test_what_only_one_process_sees(nodes, folder):
    run = Run(folder, "memory://pack", "--ray", nodes.address)
    assert run.end() == 1
    assert "(127.0.0.1) does not see in memory://pack what the node" in run.text, run.text


def test_passwords_are_not_sent_to_nodes(folder):
    run = Run(folder, "memory://me:secret1@pack", "--ray", "127.0.0.1:1")
    assert run.end() == 1
    assert "memory://pack: with --ray the name may have no password" in run.text, run.text
    assert "secret1" not in run.text


def test_keys_that_the_nodes_do_not_have(client, folder, patch, temporary):
    """A cluster of its own, whose nodes have no keys; the command has."""
    with pytest.MonkeyPatch.context() as without:
        without.delenv("AWS_ACCESS_KEY_ID")
        without.delenv("AWS_SECRET_ACCESS_KEY")
        started = cluster_nodes.Nodes()
    try:
        run = Run(folder, f"s3://{BUCKET}/none", "--ray", started.address)
        assert run.end() == 1
    finally:
        started.shutdown()
    assert "(127.0.0.1) can't use the target: [Errno 13] HTTP 403" in run.text, run.text
    assert f"s3://{BUCKET}/none/nodes." in run.text
