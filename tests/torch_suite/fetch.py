"""Gets PyTorch's test_dataloader.py and adapts it to the installed torch."""

from __future__ import annotations

import ast
import importlib
import re
import shutil
import subprocess
import tarfile
import urllib.request
from pathlib import Path

MEMBER = "test/test_dataloader.py"
_APT = Path("/etc/apt")


def fetch(work: Path, file: Path | None, url: str | None, suite: str | None) -> str:
    """The text of test_dataloader.py.

    Args:
        work: folder for what is downloaded, and kept for the next time.
        file: a test_dataloader.py, or an archive of PyTorch's source; nothing is downloaded.
        url: where such a file or archive lies.
        suite: Debian's or Ubuntu's name of a release, whose package is taken; None: those that
            apt is set up for.
    """
    if file is None:
        file = _download(url, work) if url else _from_apt(work, suite)
    if not tarfile.is_tarfile(file):
        return file.read_text()
    # Read one by one: the archive is large, and nearly all of it is not needed.
    with tarfile.open(file, "r|*") as archive:
        for member in archive:
            if member.name.partition("/")[2] == MEMBER:
                return archive.extractfile(member).read().decode()
    raise SystemExit(f"{file} holds no {MEMBER}")


def _download(url: str, work: Path) -> Path:
    target = work / url.rpartition("/")[2]
    if not target.exists():
        part = target.with_suffix(target.suffix + ".part")
        with urllib.request.urlopen(url, timeout=60) as answer, part.open("wb") as file:
            shutil.copyfileobj(answer, file)
        part.rename(target)
    return target


def _from_apt(work: Path, suite: str | None) -> Path:
    """The archive of the source package "pytorch", from the mirrors that apt is set up for.

    apt works on a copy of its settings in which each source of packages is one of source packages,
    with folders of its own: the machine's stay as they are, and no rights are needed.
    """
    apt = work / "apt" / (suite or "as-set-up")
    found = sorted(apt.glob("pytorch_*.orig.tar.*"))
    if found:
        return found[-1]
    if shutil.which("apt-get") is None:
        raise SystemExit("there is no apt-get here; name the file with --file or --url")
    for folder in ("sources", "lists/partial", "cache/archives/partial"):
        (apt / folder).mkdir(parents=True, exist_ok=True)
    _write_sources(apt / "sources", suite)
    options = [
        "Dir::Etc::SourceList=/dev/null",
        f"Dir::Etc::SourceParts={apt / 'sources'}",
        f"Dir::State::Lists={apt / 'lists'}",
        f"Dir::Cache={apt / 'cache'}",
    ]
    command = ["apt-get", "-q", *(word for option in options for word in ("-o", option))]
    # A source that has no source packages makes the update fail, but the others are there then.
    update = _run([*command, "update"], apt)
    source = _run([*command, "source", "--download-only", "--tar-only", "pytorch"], apt)
    found = sorted(apt.glob("pytorch_*.orig.tar.*"))
    if source.returncode != 0 or not found:
        raise SystemExit(
            "apt can't get the source package pytorch; name the file with --file or --url, or "
            f"another release with --suite. apt said:\n{update.stdout}{source.stdout}"
        )
    return found[-1]


def _run(command: list[str], folder: Path) -> subprocess.CompletedProcess:
    return subprocess.run(
        command, cwd=folder, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, text=True, timeout=300,
    )


def _write_sources(folder: Path, suite: str | None) -> None:
    for path in [_APT / "sources.list", *sorted((_APT / "sources.list.d").glob("*"))]:
        if not path.is_file() or path.suffix not in (".list", ".sources"):
            continue
        text = path.read_text()
        if path.suffix == ".list":
            text = re.sub(r"(?m)^deb(-src)?\s", "deb-src ", text)
            if suite:
                text = re.sub(r"(?m)^(deb-src\s+(?:\[.*?\]\s+)?\S+\s+)\S+", rf"\g<1>{suite}", text)
        else:
            text = re.sub(r"(?mi)^types:.*$", "Types: deb-src", text)
            if suite:
                text = re.sub(r"(?mi)^suites:.*$", f"Suites: {suite}", text)
        (folder / path.name).write_text(text)


# ---- edits ---------------------------------------------------------------------------------------


def adapt(text: str) -> tuple[str, list[str]]:
    """The text with the installed torch's imports, and what was edited.

    The file may be of another version than torch. Names that it imports at its top and that the
    installed torch lacks become objects that skip the test which uses them. Line numbers stay.
    """
    lines = text.split("\n")
    edits = []
    for node in ast.parse(text).body:
        if not isinstance(node, ast.ImportFrom):
            continue
        missing = [alias for alias in node.names if not _exists(node.module, alias.name)]
        if not missing:
            continue
        names = [alias.asname or alias.name for alias in missing]
        node.names = [alias for alias in node.names if alias not in missing]
        code = [ast.unparse(node)] if node.names else []
        code += ["from missing_in_torch import Missing"]
        code += [f"{name} = Missing({name!r})" for name in names]
        n_lines = node.end_lineno - node.lineno + 1
        lines[node.lineno - 1 : node.end_lineno] = ["; ".join(code)] + [""] * (n_lines - 1)
        edits += [f"line {node.lineno}: no {node.module}.{alias.name}" for alias in missing]
    return "\n".join(lines), edits


def _exists(module: str, name: str) -> bool:
    # Any other error, of a package that torch itself misses, is no reason for an edit.
    try:
        if hasattr(importlib.import_module(module), name):
            return True
        importlib.import_module(f"{module}.{name}")
    except ModuleNotFoundError as error:
        if error.name in (module, f"{module}.{name}"):
            return False
        raise
    return True
