"""Runs the training scripts of public codebases with torch's DataLoader and under `feedmill run`.

    python tests/public_scripts/run.py [--only TEXT ...] [--hybrid] [--list]

codebases.toml lists the codebases, their commits and the commands. Each command runs once with
torch's DataLoader and once under `feedmill run`, until its loaders have given a few batches
(hook/public_scripts_hook/record.py); the batches are compared. Where loaders differ, further runs
say more:

- with torch again, for what does not repeat itself with torch alone;
- with native="verify", for what runs natively with random transforms: feedmill draws other random
  numbers than torch. Then labels and layout equal torch's, and each sample is compared with what
  the script's own dataset makes of the same draws;
- for a loader whose collate_fn draws random numbers itself: with torch and native="verify", the
  generators seeded alike for each call of it;
- with native="hybrid", for loaders that took torch's path (--hybrid).

README.md explains the table. Exit status: 0 if no batch differs and each command ran, else 1; 77 if
no repository can be had.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import data
import tomllib
import trees

HERE = Path(__file__).resolve().parent
WORK = Path(os.environ.get("FEEDMILL_PUBLIC_WORK", HERE.parents[1] / "build" / "public-scripts"))
_SKIPPED = 77


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
    """

    def __init__(self, n_batches: int, limit_s: float) -> None:
        self._n_batches = n_batches
        self._limit_s = limit_s

    def run(self, script: Script, side: str, seeds_collate: bool = False) -> Outcome:
        """Runs a script.

        Args:
            script: the script.
            side: "torch", or the value of feedmill's native= ("auto", "verify", "hybrid").
            seeds_collate: whether each call of a collate_fn begins with the same seeds.

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
                    values[name] = str(data.folder(WORK, name))
                for name, value in values.items():
                    text = text.replace(f"{{{name}}}", value)
                return text

            _prepare(script, tree, filled)
            words = shlex.split(filled(script.command))
            if side != "torch":
                native = "auto" if side == "verify" else side
                words = ["-m", "feedmill", "run", "--quiet", "--native", native, *words]
            name = f"{script.id.replace('/', '-')}-{side}{'-collate' if seeds_collate else ''}.txt"
            log = WORK / "logs" / name
            environment = self._environment(script, side, tree, out, filled)
            environment["PUBLIC_SCRIPTS_COLLATE"] = "1" if seeds_collate else ""
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


# ---- comparing -----------------------------------------------------------------------------------


@dataclass
class Result:
    """What became of one loader, or of a script that failed.

    Attributes:
        script: its id.
        loader: where the script makes the loader, and its dataset's class.
        path: "native", "torch" or "deferred": what feedmill takes by default.
        hybrid: whether native="hybrid" runs it natively; None if that was not tried.
        result: "equal"; "same draws" (labels and layout equal torch's, and with the same random
            draws each sample does); "collate draws" (the same, once the generators are seeded
            alike for each call of the collate_fn); "not repeatable" (two runs with torch differ as well);
            "no images"; "differs"; "failed".
        text: feedmill's reasons for its path, or what failed.
    """

    script: str
    loader: str = ""
    path: str = ""
    hybrid: bool | None = None
    result: str = ""
    text: str = ""

    @property
    def is_good(self) -> bool:
        return self.result in (
            "equal", "same draws", "collate draws", "not repeatable", "no images"
        )  # fmt: skip


def compare(
    runner: Runner, script: Script, with_hybrid: bool, torch_only: bool
) -> Iterator[Result]:
    """Runs a script with torch and feedmill, and compares its loaders one by one."""
    torch = runner.run(script, "torch")
    if torch.error:
        yield Result(script.id, result="failed", text=f"with torch: {torch.error}")
        return
    if torch_only:
        for one in torch.loaders:
            layouts = [batch["layout"] for batch in one["batches"]] or ["no batches"]
            text = f"{one['images']} images; {one.get('error') or layouts[0]}"
            yield Result(script.id, f"{one['place']} {one['dataset']}", "", None, "", text)
        return
    ours = runner.run(script, "auto")
    if ours.error:
        yield Result(script.id, result="failed", text=f"with feedmill: {ours.error}")
        return
    pairs = list(zip(torch.loaders, ours.loaders))
    differing = [ours for theirs, ours in pairs if not _equal(theirs, ours)]
    again = verified = hybrid = None
    seeded: tuple[Outcome | None, Outcome | None] = (None, None)
    if any(loader["path"] == "native" for loader in differing):
        verified = runner.run(script, "verify")
    if any(
        mine["path"] == "native" and not _equal(theirs, mine, "labels", "layout")
        for theirs, mine in pairs
    ):
        seeded = (
            runner.run(script, "torch", seeds_collate=True),
            runner.run(script, "verify", seeds_collate=True),
        )
    if any(loader["path"] != "native" for loader in differing):
        again = runner.run(script, "torch")
    if with_hybrid and any(
        loader["path"] in ("torch", "deferred") for loader in ours.loaders
    ):
        hybrid = runner.run(script, "hybrid")
    for i, (theirs, mine) in enumerate(pairs):
        result = _result(theirs, mine, *(_at(one, i) for one in (again, verified, *seeded)))
        yield Result(
            script.id,
            f"{mine['place']} {mine['dataset']}",
            mine["path"],
            (_at(hybrid, i) or {}).get("path") in ("native", "hybrid") if hybrid else None,
            *result,
        )
    if len(torch.loaders) != len(ours.loaders):
        text = f"{len(torch.loaders)} loaders with torch, {len(ours.loaders)} with feedmill"
        yield Result(script.id, result="failed", text=text)


def _at(outcome: Outcome | None, i: int) -> dict[str, Any] | None:
    return outcome.loaders[i] if outcome and i < len(outcome.loaders) else None


def _equal(theirs: dict[str, Any], ours: dict[str, Any], *kinds: str) -> bool:
    """Whether two loaders gave equal batches, in all or in some kinds of digests."""
    kinds = kinds or ("all", "labels", "layout")
    return theirs.get("error") == ours.get("error") and (
        [[batch[kind] for kind in kinds] for batch in theirs["batches"]]
        == [[batch[kind] for kind in kinds] for batch in ours["batches"]]
    )


def _result(
    theirs: dict[str, Any],
    ours: dict[str, Any],
    again: dict[str, Any] | None,
    verified: dict[str, Any] | None,
    seeded_theirs: dict[str, Any] | None,
    seeded_verified: dict[str, Any] | None,
) -> tuple[str, str]:
    reasons = "; ".join(ours.get("reasons", ()))
    if theirs.get("error") and theirs["error"] == ours.get("error"):
        return "failed", f"with torch and feedmill: {theirs['error']}"
    if not theirs["batches"]:
        return "failed", f"no batches with torch: {theirs.get('error', 'too few images')}"
    if not theirs["images"]:
        return "no images", reasons
    if _equal(theirs, ours):
        return "equal", reasons
    if ours["path"] == "native" and verified:
        if "error" in verified or not verified["counters"]["verified_samples"]:
            return "differs", f"verify: {verified.get('error', 'no sample was verified')}"
        if _equal(theirs, ours, "labels", "layout"):
            return "same draws", ""
        if _is_verified_alike(seeded_theirs, seeded_verified):
            return "collate draws", _difference(theirs, ours)
    if again and not _equal(theirs, again):
        return "not repeatable", reasons
    return "differs", ours.get("error") or _difference(theirs, ours)


def _is_verified_alike(theirs: dict[str, Any] | None, ours: dict[str, Any] | None) -> bool:
    """Whether batches have equal labels and layout, and feedmill verified the samples."""
    return (
        theirs is not None
        and ours is not None
        and "error" not in ours
        and ours["counters"]["verified_samples"] > 0
        and _equal(theirs, ours, "labels", "layout")
    )


def _difference(theirs: dict[str, Any], ours: dict[str, Any]) -> str:
    if len(theirs["batches"]) != len(ours["batches"]):
        return f"{len(theirs['batches'])} batches with torch, {len(ours['batches'])} with feedmill"
    for i, (one, other) in enumerate(zip(theirs["batches"], ours["batches"])):
        for kind in ("layout", "labels", "all"):
            if one[kind] != other[kind]:
                return f"batch {i}, {kind}: {one[kind]} with torch, {other[kind]} with feedmill"
    return f"{theirs.get('error')} with torch"


# ---- the report ----------------------------------------------------------------------------------


def table(results: Sequence[Result]) -> str:
    """A Markdown table of all loaders, and what it adds up to."""
    rows = ["| script | loader | path | hybrid | batches | |", "|---|---|---|---|---|---|"]
    for one in results:
        hybrid = {None: "", True: "yes", False: "no"}[one.hybrid]
        text = one.text.replace("|", "\\|").replace("\n", " ")[:160]
        cells = (one.script, one.loader, one.path, hybrid, one.result, text)
        rows.append(f"| {' | '.join(cells)} |")
    counted = [one for one in results if one.result != "no images"]
    paths = Counter(one.path or "failed" for one in counted)
    ends = Counter(one.result for one in counted)
    rows += ["", f"{len(counted)} loaders: " + _sum(paths), f"batches: {_sum(ends)}"]
    return "\n".join(rows) + "\n"


def _sum(counts: Counter[str]) -> str:
    return ", ".join(f"{n} {name}" for name, n in counts.most_common())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="+", default=[""], metavar="TEXT",
                        help="only scripts whose name contains one of these")  # fmt: skip
    parser.add_argument("--batches", type=int, default=3, metavar="N",
                        help="batches to take from each loader (default 3)")  # fmt: skip
    parser.add_argument("--limit", type=float, default=300, metavar="SECONDS",
                        help="end a script after so long (default 300)")  # fmt: skip
    parser.add_argument("--torch-only", action="store_true",
                        help="only see which scripts run with torch's DataLoader")  # fmt: skip
    parser.add_argument("--hybrid", action="store_true", help="also try native='hybrid'")
    parser.add_argument("--out", type=Path, default=WORK / "results", metavar="STEM",
                        help="write STEM.jsonl and STEM.md (default: %(default)s)")  # fmt: skip
    parser.add_argument("--list", action="store_true", help="print the scripts' names, and end")
    options = parser.parse_args()
    chosen = [one for one in scripts() if any(text in one.id for text in options.only)]
    if options.list:
        print("\n".join(one.id for one in chosen))
        return 0
    runner = Runner(options.batches, options.limit)
    results, missing = [], []
    options.out.parent.mkdir(parents=True, exist_ok=True)
    with options.out.with_suffix(".jsonl").open("w") as lines:
        for script in chosen:
            try:
                for one in compare(runner, script, options.hybrid, options.torch_only):
                    results.append(one)
                    lines.write(json.dumps(vars(one)) + "\n")
                    lines.flush()
                    print(f"{one.script:45} {one.loader:45} {one.path:8} {one.result} {one.text}"
                          [:230], flush=True)  # fmt: skip
            except trees.MissingError as error:
                missing.append(script.id)
                print(f"{script.id:45} skipped: {error}", flush=True)
    text = table(results)
    options.out.with_suffix(".md").write_text(text)
    print(text)
    if not results:
        print("skipped: no repository can be had; set FEEDMILL_PUBLIC_REPOS")
        return _SKIPPED
    return 0 if all(one.is_good for one in results) else 1


if __name__ == "__main__":
    sys.exit(main())
