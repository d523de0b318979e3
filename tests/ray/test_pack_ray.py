"""`feedmill pack --ray` on several nodes: the same bytes as one process, also if a node is lost."""

import os
import signal
import subprocess
from contextlib import suppress

import helpers
import nodes as cluster_nodes
import pytest
from feedmill.cli import cli
from feedmill.packing import on_ray
from feedmill.packing.index import PackError
from feedmill.packing.source import read_source
from feedmill.packing.writer import Options
from nodes import wait_for
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


@pytest.fixture(scope="module")
def nodes():
    started = cluster_nodes.Nodes()
    yield started
    started.shutdown()


def test_a_process_and_a_node_are_lost(nodes, folder, packed, tmp_path):
    """Both are killed while they write a shard."""
    words = (folder, "--shard-size", SHARD, "--ray", nodes.address)
    run, out, found = run_until_some_are_stopped(
        nodes, lambda i: FolderOut(tmp_path / f"out{i}"), 3, n_shards(packed), *words
    )
    # Each node has one CPU, and so one process. The third one keeps the run from its end.
    (node, pid), (_, other_pid), (_, last_pid) = found
    os.kill(other_pid, signal.SIGKILL)
    run.says("process or node was lost")
    nodes.lose(node)
    run.says("was lost; 2 left")
    # Only then may the lost node's process go on: it could still hand its result over before.
    wait_for(lambda: run.text.count(AGAIN) == 2 or run.is_over(), "the lost node's shard")
    os.kill(last_pid, signal.SIGCONT)
    with suppress(ProcessLookupError):  # Ray kills it with its node
        os.kill(pid, signal.SIGCONT)
    assert run.end() == 0, run.text
    assert run.text.count(AGAIN) == 2, run.text
    assert f"{N_IMAGES:,} samples in {n_shards(packed)} shards" in run.text
    assert out.files() == files_of(packed)


def test_ctrl_c_leaves_what_another_run_continues(nodes, folder, packed, tmp_path):
    words = (folder, "--shard-size", SHARD, "--ray", nodes.address)
    run, out, [(_, pid)] = run_until_some_are_stopped(
        nodes, lambda i: FolderOut(tmp_path / f"out{i}"), 1, n_shards(packed), *words
    )
    run.process.send_signal(signal.SIGINT)
    run.says("unfinished tasks to end")
    os.kill(pid, signal.SIGCONT)
    assert run.end() == 130 and "the same command continues" in run.text, run.text
    wanted = files_of(packed)
    for name, data in out.files().items():
        assert name.endswith((".tar", ".fmp")) and name != "index.fmp", name
        assert name.endswith(".fmp") or data == wanted[name]
    assert cli.main(["pack", str(folder), str(out), "--shard-size", SHARD]) == 0
    assert out.files() == wanted


def test_tar_files(nodes, packed, tmp_path):
    """Each node reads its samples from the tar files of the source."""
    words = ["--shard-size", "2M"]
    assert cli.main(["pack", str(packed), str(tmp_path / "one"), *words]) == 0
    run = Run(packed, tmp_path / "ray", *words, "--ray", nodes.address)
    assert run.end() == 0, run.text
    assert files_of(tmp_path / "ray") == files_of(tmp_path / "one")


@pytest.mark.parametrize("damage, text", [
    (lambda path: os.truncate(path, path.stat().st_size - 100),
     "shard-.* on .*127.0.0.1.*: {0}: the file was trunc"),
    (os.unlink, "failed for good on .*No such file .*{0}"),
])
def test_a_shard_that_fails_for_good(nodes, tmp_path, damage, text):
    """The error names the file, the cause and the node. Other shards are written."""
    for i in range(20):
        helpers.save_jpeg(tmp_path / "in" / "c" / f"{i:02}.jpg", 60, 50, seed=i)
    source = read_source(str(tmp_path / "in"))
    out, path = tmp_path / "out", tmp_path / "in/c/19.jpg"  # of the last shard
    out.mkdir()
    data = path.read_bytes()
    damage(path)
    options = Options(shard_bytes=20000)
    with pytest.raises(PackError, match=text.format(path)):
        on_ray.write_shards_on_ray(source, out, options, address=nodes.address)
    assert n_shards(out)  # more than there are nodes: some ended before the last began
    assert not list(out.glob("*.partial"))
    path.write_bytes(data)
    done = on_ray.write_shards_on_ray(source, out, options, address=nodes.address)
    assert done.samples == 20


# The command runs where a tmpfs hides a folder that all other processes see. $0 is that folder.
HIDDEN = """
mount -t tmpfs none "$0" && mkdir "$0/out" "$0/in" && cp -r "$1" "$0/in/c" && shift && exec "$@"
"""


@pytest.mark.parametrize("lacking, text", [
    ("in", "does not see the source {0}/in"),
    ("out", "does not see the target folder {0}/out"),
    ("marker", "has another folder as {0}/out"),
])
def test_a_node_that_does_not_see_the_folders(nodes, folder, tmp_path, lacking, text):
    hidden = tmp_path / "hidden"
    hidden.mkdir()
    if lacking != "in":
        (hidden / "in").mkdir()
    if lacking == "marker":
        (hidden / "out").mkdir()
    unshare = ["unshare", "-m" if os.getuid() == 0 else "-rm"]
    if subprocess.run([*unshare, "mount", "-t", "tmpfs", "none", hidden], check=False).returncode:
        helpers.skip("no mount namespace can be made here")
    images = tmp_path / "images"
    helpers.save_jpeg(images / "one.jpg", 60, 50)
    before = [*unshare, "sh", "-c", HIDDEN, hidden, images]
    run = Run(hidden / "in", hidden / "out", "--ray", nodes.address, before=before)
    assert run.end() == 1
    assert f"the node {os.uname().nodename} (127.0.0.1) {text.format(hidden)}" in run.text


@pytest.mark.parametrize("address, text", [
    ("127.0.0.1:1", "can't connect to Ray at 127.0.0.1:1: .* refused"),
    ("nowhere", "the address must be host:port"),
    ("ray://127.0.0.1:10001", "Ray Client is not supported"),
])
def test_wrong_addresses(tmp_path, address, text):
    helpers.save_jpeg(tmp_path / "in" / "c" / "one.jpg", 60, 50)
    with pytest.raises(ValueError, match=text):
        on_ray.write_shards_on_ray(
            read_source(str(tmp_path / "in")), tmp_path, Options(), address=address
        )


def test_more_workers_than_a_node_has(nodes, tmp_path):
    helpers.save_jpeg(tmp_path / "in" / "c" / "one.jpg", 60, 50)
    with pytest.raises(ValueError, match="--workers 2: .* the largest has 1"):
        on_ray.write_shards_on_ray(
            read_source(str(tmp_path / "in")), tmp_path, Options(), address=nodes.address, workers=2
        )


def test_a_cluster_for_this_run_alone(folder, packed, tmp_path):
    out = tmp_path / "out"
    run = Run(folder, out, "--shard-size", SHARD, "--ray", "local")
    assert run.end() == 0, run.text
    assert files_of(out) == files_of(packed)
