"""Lists the files below a folder by type, and draws a sample of them."""

from __future__ import annotations

import os
import random
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

# Suffixes of files that torchvision's ImageFolder takes for images.
SUFFIXES = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp")

# Limits of a sample.
_SAMPLE_FILES = 400
_SAMPLE_BYTES = 128 << 20


@dataclass
class Survey:
    """The files below a folder.

    Attributes:
        files: (path, bytes) of each file, in no particular order.
        by_type: suffix in lower case (or "no suffix") -> (number of files, their bytes).
        unreadable: path of a file or folder -> why it can't be read.
        complete: False if the time limit was reached before all files were listed.
    """

    files: list[tuple[str, int]] = field(default_factory=list)
    unreadable: dict[str, str] = field(default_factory=dict)
    complete: bool = True

    @property
    def n_bytes(self) -> int:
        return sum(size for _, size in self.files)

    @property
    def by_type(self) -> dict[str, tuple[int, int]]:
        numbers: Counter[str] = Counter()
        sizes: Counter[str] = Counter()
        for path, size in self.files:
            suffix = os.path.splitext(path)[1].lower() or "no suffix"
            numbers[suffix] += 1
            sizes[suffix] += size
        return {suffix: (n, sizes[suffix]) for suffix, n in numbers.most_common()}

    def images(self) -> list[tuple[str, int]]:
        return [one for one in self.files if one[0].lower().endswith(SUFFIXES)]


def survey(folder: str | Path, seconds: float) -> Survey:
    """Lists all files below a folder, following links, for at most that many seconds."""
    found = Survey()
    deadline = time.monotonic() + seconds
    waiting, seen = [os.fspath(folder)], set()
    while waiting:
        directory = waiting.pop()
        try:
            status = os.stat(directory)
            if (status.st_dev, status.st_ino) in seen:  # already listed, reached through a link
                continue
            seen.add((status.st_dev, status.st_ino))
            with os.scandir(directory) as entries:
                for entry in entries:
                    if time.monotonic() > deadline:
                        found.complete = False
                        return found
                    _add_entry(entry, found, waiting)
        except OSError as error:
            found.unreadable[directory] = error.strerror or str(error)
    return found


def _add_entry(entry: os.DirEntry[str], found: Survey, folders: list[str]) -> None:
    try:
        if entry.is_dir():
            folders.append(entry.path)
            return
        status = entry.stat()
        if entry.is_file():
            found.files.append((entry.path, status.st_size))
    except OSError as error:
        found.unreadable[entry.path] = error.strerror or str(error)


def sample(files: Sequence[tuple[str, int]]) -> list[str]:
    """Draws paths at random, with a fixed seed: at most _SAMPLE_FILES files and, if there is more
    than one, _SAMPLE_BYTES bytes."""
    order = random.Random(0).sample(range(len(files)), min(len(files), _SAMPLE_FILES))
    taken: list[str] = []
    n_bytes = 0
    for index in order:
        path, size = files[index]
        if taken and n_bytes + size > _SAMPLE_BYTES:
            break
        taken.append(path)
        n_bytes += size
    return taken


def bytes_text(n: int) -> str:
    """A number of bytes with a decimal unit, such as "43.7 MB"."""
    for factor, unit in ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if n >= factor:
            return f"{n / factor:,.1f} {unit}"
    return f"{n} bytes"
