"""Runs of `feedmill pack`, and what they write."""

import os
import shutil
import signal
import subprocess
import sys
import threading

import pytest
from nodes import LIMIT_S, wait_for

N_IMAGES = int(os.environ.get("FEEDMILL_RAY_IMAGES", "2000"))
SHARD = "400K" if N_IMAGES < 10000 else "2M"
AGAIN = "it is tried again (attempt 2 of 5)"


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


class FolderOut:
    """A folder for a pack.

    Args:
        scheme: what the command's name of the folder has before the path.
        temporary: where its unfinished files are.
    """

    def __init__(self, path, scheme="", temporary=None):
        self.path, self.scheme, self.temporary = path, scheme, temporary or path

    def __str__(self):
        return f"{self.scheme}{self.path}"

    def files(self):
        return files_of(self.path) if self.path.exists() else {}

    def n_shards(self):
        return n_shards(self.path)

    def remove(self):
        shutil.rmtree(self.path)


def n_shards(folder):
    return sum(1 for name in os.listdir(folder) if name.endswith(".tar"))


def run_until_some_are_stopped(nodes, new_out, n, total, *words):
    """A run of which n processes are stopped, each while it writes a shard: (the run, its target,
    (node, process id) of each).

    Args:
        new_out: makes the target of an attempt, by its number, such as a FolderOut.
        total: number of shards that the run writes.
    """
    for attempt in range(20):  # a run may have nothing left to write before they are found
        out, found = new_out(attempt), []
        run = Run(*words[:1], out, *words[1:])
        while len(found) < n and (one := nodes.stop_writer(out.temporary, lambda: run.is_over() or (
            found and out.n_shards() >= total - len(found)
        ))):
            found.append(one)
        if len(found) == n:
            return run, out, found
        for _, pid in found:
            os.kill(pid, signal.SIGCONT)
        assert run.end() == 0, run.text
        out.remove()
    pytest.fail("no process was seen while it wrote a shard")
