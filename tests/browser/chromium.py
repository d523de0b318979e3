"""Controls a headless Chromium through its debugging pipe; needs no package but Chromium."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import select
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
_PATIENCE_S = 300


def find() -> str | None:
    """The path of Chromium: from the environment variable CHROMIUM, or the first one found."""
    named = os.environ.get("CHROMIUM")
    return named or next(filter(None, map(shutil.which, _NAMES)), None)


class Tab:
    """One browser tab. Records the errors that its page logs, and its network requests.

    Attributes:
        errors: texts of errors and warnings of scripts, console and browser.
        requests: requested addresses, including the page's own.
    """

    def __init__(self, send: int, receive: int) -> None:
        self._send, self._receive, self._rest = send, receive, b""
        self._number, self._session = 0, None
        self.errors: list[str] = []
        self.requests: list[str] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        attached = self.call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Sends a command to the browser. Returns its answer."""
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._send, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == self._number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                return answer["result"]

    def open(self, path: Path) -> None:
        """Opens a file and waits until it is loaded and drawn."""
        self.errors.clear()
        self.requests.clear()
        self.call("Page.navigate", url=path.resolve().as_uri())
        end = time.monotonic() + _PATIENCE_S
        while self.run("document.readyState") != "complete":
            assert time.monotonic() < end, f"{path} is not loaded after {_PATIENCE_S} s"
        self.settle()

    def settle(self) -> None:
        """Waits until the page is drawn."""
        self.run("new Promise(done => requestAnimationFrame(() => requestAnimationFrame("
                 "() => requestAnimationFrame(() => done(1)))))")

    def run(self, script: str) -> Any:
        """The value of a JavaScript expression, awaited if it is a promise."""
        answer = self.call("Runtime.evaluate", expression=script, awaitPromise=True,
                           returnByValue=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(f"{script}: {answer['exceptionDetails']}")
        return answer["result"].get("value")

    def look(self, width: int, height: int, dark: bool = False, phone: bool = False) -> None:
        """Sets the window's size in CSS pixels, and the value of prefers-color-scheme."""
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height,
                  deviceScaleFactor=2 if phone else 1, mobile=phone)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        self.settle()

    def mouse(self, kind: str, x: float, y: float, down: bool = False) -> None:
        """Moves, presses or releases ("Moved", "Pressed", "Released") at a point of the window."""
        self.call("Input.dispatchMouseEvent", type=f"mouse{kind}", x=x, y=y,
                  button="none" if kind == "Moved" and not down else "left",
                  buttons=int(down), clickCount=0 if kind == "Moved" else 1)

    def key(self, name: str) -> None:
        for kind in ("keyDown", "keyUp"):
            text = {"text": name} if kind == "keyDown" and len(name) == 1 else {}
            self.call("Input.dispatchKeyEvent", type=kind, key=name, **text)

    def picture(self, path: Path, whole: bool = True) -> None:
        """Saves the visible part, or the whole page, as PNG."""
        size = self.call("Page.getLayoutMetrics")["cssContentSize"]
        clip = {"clip": {**size, "scale": 1}, "captureBeyondViewport": True} if whole else {}
        data = self.call("Page.captureScreenshot", format="png", **clip)["data"]
        path.write_bytes(base64.b64decode(data))

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._rest:
            ready, _, _ = select.select([self._receive], [], [], _PATIENCE_S)
            part = os.read(self._receive, 1 << 20) if ready else b""
            if not part:
                raise RuntimeError("Chromium does not answer")
            self._rest += part
        text, _, self._rest = self._rest.partition(b"\0")
        message = json.loads(text)
        self._note(message.get("method"), message.get("params", {}))
        return message

    def _note(self, method: str | None, parameters: dict[str, Any]) -> None:
        if method == "Network.requestWillBeSent":
            self.requests.append(parameters["request"]["url"])
        elif method == "Runtime.exceptionThrown":
            self.errors.append(json.dumps(parameters["exceptionDetails"])[:2000])
        elif method == "Runtime.consoleAPICalled" and parameters["type"] != "log":
            self.errors.append(json.dumps(parameters["args"])[:2000])
        elif method == "Log.entryAdded":
            self.errors.append(json.dumps(parameters["entry"])[:2000])


@contextlib.contextmanager
def tab(program: str) -> Iterator[Tab]:
    """Starts a browser with one tab, and ends it after the block."""
    to_browser, from_browser = os.pipe(), os.pipe()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        options = ["--headless=new", "--remote-debugging-pipe", f"--user-data-dir={profile}",
                   "--no-first-run", "--disable-gpu", "--disable-background-networking",
                   "--disable-dev-shm-usage"]
        if os.geteuid() == 0:
            options.append("--no-sandbox")  # Chromium's sandbox does not work as root
        # Chromium reads commands from descriptor 3 and answers on 4.
        redirect = f'exec "$0" "$@" 3<&{to_browser[0]} 4>&{from_browser[1]}'
        process = subprocess.Popen(
            ["sh", "-c", redirect, program, *options], pass_fds=(to_browser[0], from_browser[1]),
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )
        os.close(to_browser[0])
        os.close(from_browser[1])
        try:
            yield Tab(to_browser[1], from_browser[0])
        finally:
            os.close(to_browser[1])
            os.close(from_browser[0])
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
