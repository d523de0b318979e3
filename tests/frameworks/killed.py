"""Trainings that are killed by SIGKILL at random moments, and go on from their latest checkpoint.

A training is a function in a test file:

    def train(folder, options, step):
        ...
        done = ...                  # from the checkpoint in the folder, if there is one
        for images, targets in loader:
            done += sample_keys(images, targets)
            ...                     # write a checkpoint with `done` in it
            step()
        return done

It runs in a process that a forker process made by fork(), so that the libraries are imported once
for all runs. step() waits until the next step may begin, so that kills spread over the whole run;
the signal comes a random time after that, and so inside a step or while a checkpoint is written.
"""

import contextlib
import importlib
import json
import os
import random
import signal
import subprocess
import sys
import time
import zlib
from pathlib import Path

# Kills of each training. More by `make test-kills`.
N_KILLS = int(os.environ.get("FEEDMILL_KILLS", "1"))
_LIMIT_S = 600


def sample_keys(images, targets):
    """[target, checksum of the pixels] for each sample of a batch."""
    return [
        [int(target), zlib.crc32(image.contiguous().numpy().tobytes())]
        for image, target in zip(images, targets)
    ]


@contextlib.contextmanager
def replacing(path):
    """Gives a path to write a file to, which replaces `path` at the end: a kill leaves the old or
    the new one."""
    new = Path(f"{path}.{os.getpid()}")
    yield new
    os.replace(new, path)


class Forker:
    """The process that imports a module and runs its function train() in forked processes."""

    def __init__(self, module):
        ours, theirs = os.pipe(), os.pipe()
        self._process = subprocess.Popen(
            [sys.executable, __file__, module, str(ours[1]), str(theirs[0])],
            pass_fds=(ours[1], theirs[0]), stdin=subprocess.DEVNULL, start_new_session=True,
        )
        os.close(ours[1])
        os.close(theirs[0])
        self._read = os.fdopen(ours[0])
        self._write = theirs[1]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        # Also what is left of a training; the forker is the leader of its group.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait(_LIMIT_S)
        self._read.close()
        os.close(self._write)

    def run(self, folder, options, kill_after=None, delay_s=0.0):
        """Runs train(folder, options, step).

        Args:
            kill_after: number of steps after which it is killed; None: it is not.
            delay_s: from the beginning of the next step to the signal.

        Returns:
            What it returned; None: it was killed.
        """
        self._send(json.dumps([str(folder), options]) + "\n")
        pid, n_steps = None, 0
        while True:
            line = self._read.readline()
            assert line, "the process that forks trainings has ended"
            word, _, rest = line.rstrip("\n").partition(" ")
            if word == "pid":
                pid = int(rest)
            elif word == "step":
                n_steps += 1
                self._send("g")
                if n_steps == kill_after:
                    time.sleep(delay_s)
                    # The forker has not waited for it as long as it has not said so.
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
            elif word == "done":
                result = json.loads(rest)
            else:
                assert word == "ended", line
                if int(rest) == -signal.SIGKILL:
                    return None
                assert int(rest) == 0, f"the training failed with status {rest}"
                return result

    def _send(self, text):
        os.write(self._write, text.encode())


def check(module, tmp_path, n_steps, options, n_kills=N_KILLS, seed=1, prepare=None):
    """Checks that a training which is killed again and again gets the samples of an unbroken one.

    Args:
        module: the name of the module with train().
        n_steps: of the whole training.
        options: a function: number of the run -> options for train().
        n_kills: number of kills. After each 6 of them a new training begins.
        prepare: called in a new folder for each training.

    Returns:
        [the samples of the unbroken training]
    """
    picks = random.Random(seed)
    with Forker(module) as forker:
        whole_folder = tmp_path / "whole"
        whole_folder.mkdir()
        whole = forker.run(whole_folder, options(0))
        n_done = 0
        while n_done < n_kills:
            folder = tmp_path / f"from{n_done}"
            folder.mkdir()
            got = None
            while got is None:
                kill_after = None
                if n_done < n_kills and n_done % 6 < 5:
                    kill_after = picks.randrange(1, max(2, n_steps // 3))
                elif n_done < n_kills:
                    kill_after = picks.randrange(1, n_steps)
                got = forker.run(
                    folder, options(n_done), kill_after, picks.choice((0, picks.uniform(0, 0.05)))
                )
                n_done += got is None
            assert got == whole, f"after {n_done} kills, in {folder}"
    return whole


# ---- the forker's side ---------------------------------------------------------------------------


def _read_line(fd):
    """A line with a command. Letters that a killed training did not read come before it."""
    text = b""
    while not text.endswith(b"\n"):
        byte = os.read(fd, 1)
        if not byte:
            sys.exit(0)
        if text or byte == b"[":
            text += byte
    return text


def _serve(module, to_test, from_test):
    train = importlib.import_module(module).train

    def tell(text):
        os.write(to_test, f"{text}\n".encode())

    def step():
        tell("step")
        if not os.read(from_test, 1):
            os._exit(0)

    while True:
        folder, options = json.loads(_read_line(from_test))
        pid = os.fork()
        if pid == 0:
            tell(f"pid {os.getpid()}")
            result = train(Path(folder), options, step)
            _tell_all(to_test, f"done {json.dumps(result)}\n".encode())
            sys.stdout.flush()
            os._exit(0)
        _, status = os.waitpid(pid, 0)
        tell(f"ended {os.waitstatus_to_exitcode(status)}")


def _tell_all(fd, data):
    while data:
        data = data[os.write(fd, data) :]


if __name__ == "__main__":
    import conftest  # noqa: F401  sets the path up

    _serve(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
