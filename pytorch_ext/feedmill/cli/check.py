"""``feedmill check DIR`` reads and decodes every image of a dataset, and lists damaged files.

Each file is decoded completely: by the native decoder if that supports it, else by Pillow, as in
training. The command needs no torchvision, and Pillow only for files that the native decoder does
not support.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from feedmill._ops import native
from feedmill.cli.arguments import check_readable, positive_int
from feedmill.cli.named import HELP, Images, images_of, is_named, is_pack, read_named
from feedmill.cli.progress import progress
from feedmill.cli.survey import SUFFIXES, survey
from feedmill.packing.dataset import Pack
from feedmill.planner.plan import RESIZE, Op
from feedmill.remote.names import shown
from feedmill.remote.sources import open_source
from feedmill.system import peer_processes

# Height and width to which images are resized. The pixels are not used.
_SIDE = 8
_BATCH_SIZE = 16


@dataclass
class Findings:
    """What a check found.

    Attributes:
        files: number of files checked: those with an image's suffix.
        native, pillow: number of files decoded natively, and by Pillow.
        damaged: path -> reason, for files that can't be read, or not be decoded by Pillow.
        doubtful: path -> reason, for files that the native decoder found damaged, but that Pillow
            still decodes, with part of the pixels guessed.
    """

    files: int = 0
    native: int = 0
    pillow: int = 0
    damaged: dict[str, str] = field(default_factory=dict)
    doubtful: dict[str, str] = field(default_factory=dict)


# ---- the command ---------------------------------------------------------------------------------


def add_check(commands: Any) -> None:
    """Adds the command to an argparse parser's subparsers."""
    check = commands.add_parser(
        "check",
        help="decode every image of a folder, and list damaged files",
        description=(
            "Reads and decodes all images below DIR (files that end in "
            f"{', '.join(SUFFIXES)}) and lists those that are damaged, with the reason. Images "
            "listed as doubtful are damaged as well, but Pillow still decodes them. The exit "
            "status is 1 if there are damaged files that are not just doubtful. DIR may also be a "
            f"pack, or {HELP}."
        ),
    )
    check.add_argument("dir", metavar="DIR", help="folder of images, a pack, or names of objects")
    check.add_argument("--threads", type=positive_int, default=native.usable_cpus(), metavar="N",
                       help="decode threads (default: the usable CPUs, %(default)s)")
    check.add_argument("--json", action="store_true", help="print one JSON object")
    check.set_defaults(run=_check)


def _check(arguments: argparse.Namespace, parser: argparse.ArgumentParser) -> int:
    images, unreadable = _find(arguments.dir, parser)
    if not images.paths and not unreadable:
        parser.error(f"{shown(arguments.dir)} contains no images ({', '.join(SUFFIXES)})")
    with progress(len(images.paths)) as update:
        findings = check_images(images, arguments.threads, update)
    findings.damaged.update(unreadable)
    if arguments.json:
        print(json.dumps({"dir": shown(arguments.dir), **asdict(findings)}, indent=2))
    else:
        print("\n".join(_lines(findings)))
    return 1 if findings.damaged else 0


def _find(given: str, parser: argparse.ArgumentParser) -> tuple[Images, dict[str, str]]:
    """The images to check, and path -> reason of what can't be read."""
    try:
        if is_named(given) or is_pack(given):
            images = read_named(given) if is_named(given) else images_of(Pack(given))
            images.readers()
            return images, {}
    except (OSError, ValueError) as error:
        parser.error(str(error))
    check_readable(Path(given), parser)
    found = survey(Path(given), math.inf)
    paths = sorted(path for path, _ in found.images())
    return Images(paths, None, paths), found.unreadable


def _lines(found: Findings) -> list[str]:
    lines = [
        f"{found.files:,} images: {found.native:,} decoded natively, {found.pillow:,} by Pillow, "
        f"{len(found.damaged):,} damaged"
    ]
    for title, files in (("damaged", found.damaged), ("doubtful", found.doubtful)):
        if files:
            lines.append(f"{title}:")
            lines += [f"  {path}: {why}" for path, why in sorted(files.items())]
    return lines


# ---- the check -----------------------------------------------------------------------------------


def check_files(
    paths: Sequence[str], threads: int, update: Callable[[int], Any] = lambda n: None
) -> Findings:
    """Decodes each file once; see check_images()."""
    return check_images(Images(list(paths), None, list(paths)), threads, update)


def check_images(
    images: Images, threads: int, update: Callable[[int], Any] = lambda n: None
) -> Findings:
    """Decodes each image once.

    Args:
        images: to be checked; the findings have their names.
        threads: number of native decode threads, and also of threads that run Pillow.
        update: called repeatedly with the number of files done since the last call.
    """
    n_images = len(images.paths)
    found = Findings(files=n_images)
    if not n_images:
        return found
    loader = native.Loader(
        ops=(Op(RESIZE, _SIDE, _SIDE),),
        dtype="uint8",
        value_table=None,
        n_samples=n_images,
        batch_size=_BATCH_SIZE,
        n_threads=threads,
        prefetch_batches=max(4, 2 * threads),
        **images.readers(),
    )
    peer_processes.begin(id(loader), threads)
    try:
        with ThreadPoolExecutor(threads) as pool:
            rejected: list[tuple[str, int, str, Future[str]]] = []
            for n in _batches(loader, images, max(4, 2 * threads), rejected, pool):
                update(n)
            for path, cause, why, outcome in rejected:
                _add_rejected(found, path, cause, why, outcome.result())
                update(1)
    finally:
        peer_processes.end(id(loader))
        loader.close()
    found.native = n_images - len(rejected)
    return found


def _batches(
    loader: Any,
    images: Images,
    ahead: int,
    rejected: list[tuple[str, int, str, Future[str]]],
    pool: ThreadPoolExecutor,
) -> Iterator[int]:
    """Runs all files through the native decoder, and those that it rejects through Pillow at the
    same time. Yields the number of natively decoded files of each batch.

    Args:
        loader: the native loader.
        images: the images.
        ahead: number of batches in flight.
        rejected: gets (name, cause, reason, outcome of _pillow_error()) of each rejected file.
        pool: runs Pillow.
    """
    loader.start(0, 0)
    waiting, begin = 0, 0
    while True:
        while waiting < ahead and begin < len(images.paths):
            end = min(begin + _BATCH_SIZE, len(images.paths))
            parts = images.parts and images.parts[begin:end]
            loader.submit(list(range(begin, end)), images.paths[begin:end], parts)
            begin, waiting = end, waiting + 1
        if not waiting:
            return
        n_before = len(rejected)
        n = _next(loader, images, rejected, pool)
        waiting -= 1
        yield n - (len(rejected) - n_before)


def _next(
    loader: Any,
    images: Images,
    rejected: list[tuple[str, int, str, Future[str]]],
    pool: ThreadPoolExecutor,
) -> int:
    """Waits for a batch and returns its size. The arguments are those of _batches()."""
    n: int
    while True:
        outcome, payload, n = loader.next(-1)
        if outcome == native.OK:
            return n
        if outcome != native.FALLBACK:
            raise RuntimeError(f"the loader failed: {payload}")
        index, _, _, cause, _, _, why = loader.fallback()
        why = why.partition(f"{shown(images.paths[index])}): ")[2] or why
        rejected.append(
            (images.names[index], cause, why, pool.submit(_pillow_error, images, index))
        )
        loader.fallback_done(True)  # the pixels are not used


def _pillow_error(images: Images, number: int) -> str:
    """Why Pillow can't decode an image; "" if it can."""
    try:
        from PIL import Image
    except ImportError:
        return "the native decoder can't decode it, and Pillow is not installed"
    try:
        with open_source(images.source(number)) as file, Image.open(file) as image:
            image.convert("RGB")
    except Exception as error:  # damaged files raise errors of many types
        return f"{type(error).__name__}: {error}"
    return ""


def _add_rejected(
    found: Findings, path: str, cause: int, why: str, pillow_error: str
) -> None:
    """Adds a file that the native decoder rejected for the reason `why`."""
    if pillow_error:
        # For a file that can't be read, the system's error is the best reason.
        found.damaged[path] = why if cause == native.ERR_READ else pillow_error
        return
    found.pillow += 1
    if cause == native.ERR_DAMAGED:
        found.doubtful[path] = why
