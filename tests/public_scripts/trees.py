"""Gets the source trees of public codebases: from mirrors on disk, or from GitHub by https.

Mirrors are Git repositories, bare or not, in the folder FEEDMILL_PUBLIC_REPOS: OWNER+NAME,
OWNER+NAME/repo or OWNER/NAME. Without that variable, only the wanted commit is fetched by https.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path


class MissingError(Exception):
    """A repository or commit can't be had."""


def tree(work: Path, repositories: Sequence[str], commit: str, paths: Sequence[str]) -> Path:
    """Returns a folder with the files of a commit, which is kept between runs.

    Args:
        work: the folder for trees and repositories.
        repositories: "OWNER/NAME"; the later ones are other repositories that have the commit.
        commit: the commit's full hash.
        paths: the files and folders that are needed; all if empty.
    """
    key = hashlib.sha256(" ".join([commit, *paths]).encode()).hexdigest()[:10]
    target = work / "trees" / f"{repositories[0].replace('/', '+')}-{key}"
    if not target.exists():
        git_dir = _mirror(repositories, commit) or _fetched(work, repositories[0], commit)
        part = target.with_name(target.name + ".part")
        shutil.rmtree(part, ignore_errors=True)
        _extract(git_dir, commit, paths, part)
        part.rename(target)
    return target


def _mirror(repositories: Sequence[str], commit: str) -> Path | None:
    folder = os.environ.get("FEEDMILL_PUBLIC_REPOS")
    if not folder:
        return None
    for repository in repositories:
        flat = Path(folder) / repository.replace("/", "+")
        for found in (flat, flat / "repo", Path(folder) / repository):
            for git_dir in (found / ".git", found):
                if (git_dir / "HEAD").exists() and _has(git_dir, commit):
                    return git_dir
    raise MissingError(f"no mirror of {repositories[0]} with commit {commit[:10]} in {folder}")


def _fetched(work: Path, repository: str, commit: str) -> Path:
    git_dir = work / "repositories" / repository.replace("/", "+")
    if not (git_dir / "HEAD").exists():
        subprocess.run(["git", "init", "-q", "--bare", git_dir], check=True)
    if not _has(git_dir, commit):
        url = f"https://github.com/{repository}"
        fetch = ["git", "--git-dir", git_dir, "fetch", "-q", "--depth=1", url, commit]
        environment = {**os.environ, "GIT_TERMINAL_PROMPT": "0"}
        process = subprocess.run(fetch, capture_output=True, text=True, env=environment)
        if process.returncode:
            raise MissingError(f"{url} can't be fetched: {process.stderr.strip()[-300:]}")
    return git_dir


def _has(git_dir: Path, commit: str) -> bool:
    command = ["git", "--git-dir", git_dir, "cat-file", "-e", f"{commit}^{{commit}}"]
    return subprocess.run(command, capture_output=True).returncode == 0


def _extract(git_dir: Path, commit: str, paths: Sequence[str], target: Path) -> None:
    """Writes the files of a commit. Leaves out links, and files whose content the repository
    lacks: mirrors may be without large files, which `git archive` does not forgive."""
    listed = subprocess.run(
        ["git", "--git-dir", git_dir, "ls-tree", "-r", "-z", commit, *paths],
        check=True, capture_output=True,
    )
    blobs = []
    for line in listed.stdout.decode().split("\0")[:-1]:
        (mode, kind, name), path = line.partition("\t")[0].split(), line.partition("\t")[2]
        if kind == "blob" and mode != "120000":
            blobs.append((name, path))
    asked = "".join(f"{name}\n" for name, _ in blobs)
    contents = subprocess.run(
        ["git", "--git-dir", git_dir, "cat-file", "--batch"],
        check=True, capture_output=True, input=asked.encode(),
    )
    for (_, path), content in zip(blobs, _contents(contents.stdout)):
        if content is not None:
            (target / path).parent.mkdir(parents=True, exist_ok=True)
            (target / path).write_bytes(content)


def _contents(output: bytes) -> Iterator[bytes | None]:
    """The objects in the output of `git cat-file --batch`; None for one that is missing."""
    at = 0
    while at < len(output):
        end = output.index(b"\n", at)
        words = output[at:end].split()
        at = end + 1
        if words[-1] == b"missing":
            yield None
            continue
        size = int(words[2])
        yield output[at : at + size]
        at += size + 1
