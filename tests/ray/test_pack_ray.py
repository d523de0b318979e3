"""`feedmill pack --ray` on several nodes: the same bytes as one process, also if a node is lost."""

import os
import shutil
import signal
import subprocess
import sys
import threading
from contextlib import suppress

import helpers
import nodes as cluster_nodes
import pytest
from feedmill.cli import cli
from feedmill.packing import on_ray
from feedmill.packing.index import PackError
from feedmill.packing.source import read_source
from feedmill.packing.writer import Options
from nodes import LIMIT_S, wait_for

N_IMAGES = int(os.environ.get("FEEDMILL_RAY_IMAGES", "2000"))
SHARD = "400K" if N_IMAGES < 10000 else "2M"


@pytest.fixture(scope="module")
def nodes():
    started = cluster_nodes.Nodes()
    yield started
    started.shutdown()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """N_IMAGES JPEGs in three classes, all different: a comment in each has its number."""
    root = tmp_path_factory.mktemp("images")
    made = [helpers.save_jpeg(root / "made.jpg", 24 + i, 20, seed=i).read_bytes() for i in range(9)]
    (root / "made.jpg").unlink()
    for i in range(N_IMAGES):
        text = f"image {i}".encode()
        comment = b"\xff\xfe" + (len(text) + 2).to_bytes(2, "big") + text
        data = made[i % len(made)]
        path = root / f"class{i % 3}" / f"{i:06}.jpg"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(data[:2] + comment + data[2:])
    return root


@pytest.fixture(scope="module")
def packed(folder, tmp_path_factory):
    """A pack of that folder, made by one process."""
    out = tmp_path_factory.mktemp("packs") / "whole"
    assert cli.main(["pack", str(folder), str(out), "--shard-size", SHARD]) == 0
    return out


@pytest.fixture(autouse=True)
def no_run_outlives_its_test():
    yield
    for run in Run.started:
        run.process.kill()
        run.end()
    Run.started.clear()


class Run:
    """A running `feedmill pack`. Its messages are collected."""

    started: list["Run"] = []

    def __init__(self, *words, before=()):
        # A test that a shell runs in the background inherits that Ctrl-C is ignored.
        self.process = subprocess.Popen(
            ["env", "--default-signal=INT", *before, sys.executable, "-m", "feedmill", "pack",
             *map(str, words)],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )
        self.lines = []
        self._reader = threading.Thread(target=lambda: self.lines.extend(self.process.stdout))
        self._reader.start()
        self.started.append(self)

    @property
    def text(self):
        return "".join(self.lines)

    def is_over(self):
        return self.process.poll() is not None

    def says(self, text):
        wait_for(lambda: text in self.text or self.is_over(), text)
        assert text in self.text, self.text

    def end(self):
        """Waits for the end; returns the exit status."""
        self.process.wait(LIMIT_S)
        self._reader.join()
        return self.process.returncode


def files_of(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def n_shards(folder):
    return sum(1 for name in os.listdir(folder) if name.endswith(".tar"))


def run_until_some_are_stopped(nodes, tmp_path, n, total, *words):
    """A run of which n processes are stopped, each while it writes a shard: (the run, its folder,
    (node, process id) of each).

    Args:
        total: number of shards that the run writes.
    """
    for attempt in range(20):  # a run may have nothing left to write before they are found
        out, found = tmp_path / f"out{attempt}", []
        run = Run(*words[:1], out, *words[1:])
        while len(found) < n and (one := nodes.stop_writer(out, lambda: run.is_over() or (
            found and n_shards(out) >= total - len(found)
        ))):
            found.append(one)
        if len(found) == n:
            return run, out, found
        for _, pid in found:
            os.kill(pid, signal.SIGCONT)
        assert run.end() == 0, run.text
        shutil.rmtree(out)
    pytest.fail("no process was seen while it wrote a shard")


AGAIN = "it is tried again (attempt 2 of 5)"


def test_a_process_and_a_node_are_lost(nodes, folder, packed, tmp_path):
    """Both are killed while they write a shard."""
    words = (folder, "--shard-size", SHARD, "--ray", nodes.address)
    run, out, found = run_until_some_are_stopped(nodes, tmp_path, 3, n_shards(packed), *words)
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
    assert files_of(out) == files_of(packed)


def test_ctrl_c_leaves_what_another_run_continues(nodes, folder, packed, tmp_path):
    words = (folder, "--shard-size", SHARD, "--ray", nodes.address)
    run, out, [(_, pid)] = run_until_some_are_stopped(
        nodes, tmp_path, 1, n_shards(packed), *words
    )
    run.process.send_signal(signal.SIGINT)
    run.says("unfinished tasks to end")
    os.kill(pid, signal.SIGCONT)
    assert run.end() == 130 and "the same command continues" in run.text, run.text
    wanted = files_of(packed)
    for name, data in files_of(out).items():
        assert name.endswith((".tar", ".fmp")) and name != "index.fmp", name
        assert name.endswith(".fmp") or data == wanted[name]
    assert cli.main(["pack", str(folder), str(out), "--shard-size", SHARD]) == 0
    assert files_of(out) == wanted


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
