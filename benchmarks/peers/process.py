"""Controls a loader's process by requests and answers, which worker.py describes."""

from __future__ import annotations

import json
import os
import pathlib
import select
import signal
import subprocess


class Failed(Exception):
    """A loader gave no answer, or an error; the text says which."""


class Process:
    """Runs a command that answers requests. Between them it is stopped with all its children
    (SIGSTOP), so that it takes no CPU time while another loader runs."""

    def __init__(self, command: list[str], log: pathlib.Path, cwd: pathlib.Path,
                 environment: dict[str, str], timeout_s: float) -> None:
        self.timeout_s = timeout_s
        self.log = log
        with log.open("w") as out:
            self.process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=out, cwd=cwd,
                env={**os.environ, **environment},
                # A group in this session: should this process die, the system continues the
                # stopped ones with SIGHUP, which ends them.
                preexec_fn=os.setpgrp,
            )
        self.unread = b""
        self.answer("start")

    def ask(self, request: str) -> dict:
        """Sends a request and returns the answer. Raises Failed."""
        self.signal(signal.SIGCONT)
        try:
            self.process.stdin.write(f"{request}\n".encode())
            self.process.stdin.flush()
        except BrokenPipeError:
            raise Failed(f"its process has ended, see {self.log.name}") from None
        return self.answer(request)

    def answer(self, request: str) -> dict:
        while b"\n" not in self.unread:
            if not select.select([self.process.stdout], [], [], self.timeout_s)[0]:
                raise Failed(f"no answer to {request.split()[0]!r} within {self.timeout_s:.0f} s")
            part = os.read(self.process.stdout.fileno(), 65536)
            if not part:
                status = self.process.wait()
                raise Failed(f"its process ended with status {status}, see {self.log.name}")
            self.unread += part
        line, self.unread = self.unread.split(b"\n", 1)
        self.signal(signal.SIGSTOP)
        result = json.loads(line)
        if "error" in result:
            raise Failed(result["error"])
        return result

    def signal(self, number: int) -> None:
        try:
            os.killpg(self.process.pid, number)
        except ProcessLookupError:
            pass

    def close(self) -> None:
        self.signal(signal.SIGKILL)
        self.process.wait()
        self.process.stdin.close()
        self.process.stdout.close()
