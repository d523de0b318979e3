"""The files below a folder: how many, of which types, and a sample of them."""

from __future__ import annotations

import os
import random
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

# What torchvision's ImageFolder takes for an image.
SUFFIXES = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp")

# Of a sample, at most.
_SAMPLE_FILES = 400
_SAMPLE_BYTES = 128 << 20


@dataclass
class Survey:
    """The files below a folder.

    Attributes:
        files: (path, bytes) of each, in no order.
        by_type: suffix in lower case (or "no suffix") -> (number, bytes).
        unreadable: path of a file or folder -> why.
        complete: False where the time was up before all were seen.
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
    """Looks at all files below a folder, through links too, for at most so many seconds."""
    found = Survey()
    deadline = time.monotonic() + seconds
    waiting, seen = [os.fspath(folder)], set()
    while waiting:
        directory = waiting.pop()
        try:
            status = os.stat(directory)
            if (status.st_dev, status.st_ino) in seen:  # a link that leads back
                continue
            seen.add((status.st_dev, status.st_ino))
            with os.scandir(directory) as entries:
                for entry in entries:
                    if time.monotonic() > deadline:
                        found.complete = False
                        return found
                    _note(entry, found, waiting)
        except OSError as error:
            found.unreadable[directory] = error.strerror or str(error)
    return found


def _note(entry: os.DirEntry[str], found: Survey, folders: list[str]) -> None:
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
    """Paths drawn from all of them, always the same: enough for a rate, few enough for seconds."""
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
    """Such as "43.7 MB"."""
    for factor, unit in ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if n >= factor:
            return f"{n / factor:,.1f} {unit}"
    return f"{n} bytes"
