"""Runs scripts of public codebases, each in a process of its own.

codebases.toml lists the codebases, their commits and the commands.
"""

from __future__ import annotations

import hashlib
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import data
import tomllib
import trees

HERE = Path(__file__).resolve().parent
WORK = Path(os.environ.get("FEEDMILL_PUBLIC_WORK", HERE.parents[1] / "build" / "public-scripts"))


@dataclass(frozen=True)
class Script:
    """A command of a codebase. The fields are those of codebases.toml; see README.md."""

    codebase: str
    name: str
    commit: str
    command: str
    repository: str = ""
    mirrors: Sequence[str] = ()
    paths: Sequence[str] = ()
    directory: str = "."
    loaders: int = 1
    cuda: str = ""
    stubs: Sequence[str] = ()
    requires: Sequence[str] = ()
    distributed: bool = False
    env: dict[str, str] = field(default_factory=dict)
    python_path: Sequence[str] = ()
    links: dict[str, str] = field(default_factory=dict)
    files: dict[str, str] = field(default_factory=dict)
    edits: Sequence[Sequence[str]] = ()

    @property
    def id(self) -> str:
        return f"{self.codebase}/{self.name}"


def scripts() -> Iterator[Script]:
    """All commands of codebases.toml. A command's fields override those of its codebase."""
    for codebase in tomllib.loads((HERE / "codebases.toml").read_text())["codebase"]:
        common = {**codebase, "codebase": codebase["name"]}
        for run in common.pop("run"):
            yield Script(**{**common, **run})


# ---- running -------------------------------------------------------------------------------------


@dataclass
class Outcome:
    """What one run of a script gave.

    Attributes:
        loaders: a dict per loader, as record.py writes it, in the order of creation.
        error: why the script failed; "" if it did not.
    """

    loaders: list[dict[str, Any]]
    error: str = ""


class Runner:
    """Runs scripts.

    Args:
        n_batches: how many batches to take from each loader.
        limit_s: after so long a script is ended.
        rng: `feedmill run`'s --rng.
        images: see data.folder().
    """

    def __init__(
        self, n_batches: int, limit_s: float, rng: str = "auto", images: data.Given | None = None
    ) -> None:
        self._n_batches = n_batches
        self._limit_s = limit_s
        self._rng = rng
        self._images = images

    def run(
        self,
        script: Script,
        side: str,
        seeds_collate: bool = False,
        speed: str = "",
        measured: Collection[int] = (),
    ) -> Outcome:
        """Runs a script.

        Args:
            script: the script.
            side: "torch", or the value of feedmill's native= ("auto", "verify", "hybrid").
            seeds_collate: whether each call of a collate_fn begins with the same seeds.
            speed: "ROUNDS SECONDS": the loaders are measured as well.
            measured: the numbers of the loaders to measure; all if empty.

        Raises:
            trees.MissingError: its repository can't be had.
        """
        source = self._source(script)
        with tempfile.TemporaryDirectory(prefix="public-scripts-") as scratch:
            tree, out = Path(scratch) / "tree", Path(scratch) / "records"
            out.mkdir()
            shutil.copytree(source, tree) if source else tree.mkdir()
            values = {"tree": str(tree), "out": scratch}

            def filled(text: str) -> str:
                for name in data.layouts_in(text):
                    values[name] = str(data.folder(WORK, name, self._images))
                for name, value in values.items():
                    text = text.replace(f"{{{name}}}", value)
                return text

            _prepare(script, tree, filled)
            words = shlex.split(filled(script.command))
            if side != "torch":
                native = "auto" if side == "verify" else side
                options = ["--quiet", "--native", native, "--rng", self._rng]
                words = ["-m", "feedmill", "run", *options, *words]
            kind = "-collate" if seeds_collate else "-speed" if speed else ""
            log = WORK / "logs" / f"{script.id.replace('/', '-')}-{side}{kind}.txt"
            environment = self._environment(script, side, tree, out, filled)
            environment["PUBLIC_SCRIPTS_COLLATE"] = "1" if seeds_collate else ""
            environment["PUBLIC_SCRIPTS_SPEED"] = speed
            environment["PUBLIC_SCRIPTS_MEASURED"] = " ".join(map(str, measured))
            log.parent.mkdir(parents=True, exist_ok=True)
            with log.open("w") as printed:
                status = self._wait(subprocess.Popen(
                    [sys.executable, *words],
                    cwd=tree / script.directory, env=environment,
                    stdin=subprocess.DEVNULL, stdout=printed, stderr=subprocess.STDOUT,
                    start_new_session=True,
                ))  # fmt: skip
            lines = [line for file in sorted(out.glob('*.jsonl')) for line in file.open()]
        loaders = sorted(map(json.loads, lines), key=lambda loader: loader["number"])
        if len(loaders) >= script.loaders:
            return Outcome(loaders)
        why = f"{len(loaders)} of {script.loaders} loaders, {status}: {_last_words(log)}"
        return Outcome(loaders, why)

    def _wait(self, process: subprocess.Popen[bytes]) -> str:
        try:
            return f"exit status {process.wait(self._limit_s)}"
        except subprocess.TimeoutExpired:
            return f"no end after {self._limit_s:.0f} s"
        finally:
            # Also what the script has left behind. The group's number stays taken until the wait.
            try:
                os.killpg(process.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
            process.wait()

    def _source(self, script: Script) -> Path | None:
        """The files of a script's codebase; None for a command of an installed package."""
        if not script.repository:
            return None
        names = [script.repository, *script.mirrors]
        return trees.tree(WORK, names, script.commit, script.paths)

    def _environment(
        self, script: Script, side: str, tree: Path, out: Path, filled: Callable[[str], str]
    ) -> dict[str, str]:
        own = [str(Path(one).resolve()) for one in os.environ.get("PYTHONPATH", "").split(":") if one]
        packages = [str(_packages(script.requires))] if script.requires else []
        path = [str(tree / one) for one in script.python_path]
        return {
            **os.environ,
            "PYTHONPATH": ":".join([str(HERE / "hook"), *packages, *path, *own]),
            "PYTHONDONTWRITEBYTECODE": "1",
            "PYTHONHASHSEED": "0",
            "OMP_NUM_THREADS": "1",
            "CUDA_VISIBLE_DEVICES": "",
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(20000 + os.getpid() % 20000),
            "HF_HUB_OFFLINE": "1",
            "TRANSFORMERS_OFFLINE": "1",
            "HF_HOME": str(WORK / "huggingface"),
            "WANDB_MODE": "offline",
            "WANDB_DIR": str(out.parent),
            "NO_ALBUMENTATIONS_UPDATE": "1",
            "YOLO_CONFIG_DIR": str(out.parent),
            "MPLBACKEND": "agg",
            **({"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0"} if script.distributed else {}),
            **{name: filled(value) for name, value in script.env.items()},
            "PUBLIC_SCRIPTS_OUT": str(out),
            "PUBLIC_SCRIPTS_BATCHES": str(self._n_batches),
            "PUBLIC_SCRIPTS_LOADERS": str(script.loaders),
            "PUBLIC_SCRIPTS_COUNT": "1" if side == "torch" else "",
            "PUBLIC_SCRIPTS_VERIFY": "1" if side == "verify" else "",
            "PUBLIC_SCRIPTS_CUDA": script.cuda,
            "PUBLIC_SCRIPTS_STUBS": " ".join(script.stubs),
        }


def _prepare(script: Script, tree: Path, filled: Callable[[str], str]) -> None:
    """Makes the links and edits that a script needs.

    Args:
        script: the script.
        tree: a copy of its codebase.
        filled: replaces the names in braces in a text.
    """
    for name, to in script.links.items():
        link = tree / name
        link.parent.mkdir(parents=True, exist_ok=True)
        if link.is_dir():
            shutil.rmtree(link)
        link.unlink(missing_ok=True)
        link.symlink_to(filled(to))
    for name, text in script.files.items():
        (tree / name).write_text(text)
    for name, old, new in script.edits:
        text = (tree / name).read_text()
        if old not in text:
            raise ValueError(f"{script.id}: {name} has no {old!r} to replace")
        (tree / name).write_text(text.replace(old, filled(new)))


def _packages(requirements: Sequence[str]) -> Path:
    """A folder with versions of packages that a codebase needs, other than those installed."""
    name = hashlib.sha256(" ".join(requirements).encode()).hexdigest()[:10]
    target = WORK / "packages" / name
    if not target.exists():
        part = target.with_name(name + ".part")
        shutil.rmtree(part, ignore_errors=True)
        pip = [sys.executable, "-m", "pip", "install", "-q", "--disable-pip-version-check"]
        command = [*pip, "--no-deps", "--target", part, *requirements]
        process = subprocess.run(command, capture_output=True, text=True)
        if process.returncode:
            raise trees.MissingError(f"{requirements}: {process.stderr.strip()[-300:]}")
        part.rename(target)
    return target


def _last_words(log: Path) -> str:
    """The last line of an error in a log, else its last line."""
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
    errors = [line for line in lines if "Error" in line.partition(":")[0] and " " not in
              line.partition(":")[0]]  # fmt: skip
    return (errors or lines or ["nothing printed"])[-1][:300]
