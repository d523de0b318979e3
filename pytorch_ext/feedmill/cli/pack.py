"""``feedmill pack SRC OUT`` rewrites a dataset so that crops of its images decode fast.

JPEGs are transcoded losslessly and written, with all other files, into tar files, which the package
webdataset can read as well. Together with an index they are a ``feedmill.Pack``.
"""

from __future__ import annotations

import argparse
import os
import re
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from feedmill._ops import native
from feedmill.cli.arguments import positive_int
from feedmill.cli.progress import progress
from feedmill.packing.targets import Target, is_folder, target_of
from feedmill.remote.names import shown
from feedmill.system.requirements import missing_package

_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


def add_pack(commands: Any) -> None:
    """Adds the command to an argparse parser's subparsers."""
    pack = commands.add_parser(
        "pack",
        help="rewrite a dataset so that crops of its images decode fast",
        description=(
            "Makes a pack, for feedmill.Pack, from an image folder (SRC/class/image.jpg) or from "
            "WebDataset tar files (a folder of them, or names such as 'train-{000..146}.tar' and "
            "'s3://bucket/train-{000..146}.tar'). A "
            "pack consists of tar files of losslessly transcoded JPEGs and an index. Files that "
            "can't be transcoded losslessly are stored unchanged. If a run is interrupted, the "
            "same command continues it."
        ),
    )
    pack.add_argument("src", metavar="SRC", nargs="?", help="image folder or tar files")
    pack.add_argument("out", metavar="OUT",
                      help="folder of the pack, which is created if it does not exist; or "
                           "s3://bucket/prefix, gs://bucket/prefix, or a folder that fsspec writes "
                           "to, such as az://container/folder")
    pack.add_argument("--shard-size", type=_size, default=1 << 30, metavar="BYTES",
                      help="approximate size of each tar file (default: 1G)")
    pack.add_argument("--interval", type=_interval, default=None, metavar="N",
                      help="MCUs per restart interval of the JPEGs: smaller intervals let crops "
                           "decode faster, but take more bytes (default: auto, about 4 unless the "
                           "restart markers would take more than 0.3%% of an image)")
    pack.add_argument("--no-verify", action="store_true",
                      help="do not check that each image's pixels equal the source's")
    pack.add_argument("--workers", type=positive_int, default=None, metavar="N",
                      help="number of threads (default: the usable CPUs, "
                           f"{native.usable_cpus()}); with --ray: threads, and CPUs, of each task "
                           "(default: so many that the tasks use all CPUs of the cluster)")
    pack.add_argument("--part", type=_part, default=None, metavar="I/N",
                      help="write only part I of N, counted from 0; parts may be written on "
                           "different machines and in any order")
    pack.add_argument("--ray", nargs="?", const="", default=None, metavar="ADDRESS",
                      help="pack on the nodes of a Ray cluster, which must see SRC and OUT under "
                           "the same paths or names. ADDRESS: host:port of the cluster, or 'local' "
                           "for a new one on this machine (default: $RAY_ADDRESS, else the cluster "
                           "that this machine belongs to, else 'local')")
    pack.add_argument("--join", action="store_true",
                      help="only write the index of the parts in OUT")
    pack.set_defaults(run=_pack)


def _size(text: str) -> int:
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([KMGT]?)(?:i?B)?", text.strip(), re.IGNORECASE)
    n_bytes = int(float(match[1]) * _UNITS[match[2].upper()]) if match else 0
    if n_bytes < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a size such as 500M or 1G")
    return n_bytes


def _interval(text: str) -> int | None:
    if text == "auto":
        return None
    value = positive_int(text)
    if value > 65535:
        raise argparse.ArgumentTypeError(f"{text!r} is more than 65535")
    return value


def _part(text: str) -> tuple[int, int]:
    match = re.fullmatch(r"(\d+)/(\d+)", text)
    if not match or int(match[1]) >= int(match[2]):
        raise argparse.ArgumentTypeError(f"{text!r} is not a part such as 0/4, 1/4, 2/4 or 3/4")
    return int(match[1]), int(match[2])


def _pack(arguments: argparse.Namespace, parser: argparse.ArgumentParser) -> int:
    options = (arguments.src, arguments.part, arguments.ray)
    if arguments.join and any(one is not None for one in options):
        parser.error("--join takes only OUT: feedmill pack --join OUT")
    if arguments.ray is not None and arguments.part is not None:
        parser.error("--ray writes all parts: leave out --part")
    if arguments.ray not in (None, "", "auto", "local") and os.path.exists(arguments.ray):
        parser.error(f"--ray takes {arguments.ray} as its ADDRESS, but this is a path: write --ray "
                     "behind SRC and OUT")
    arguments.out = re.sub(r"^file://(?=/)", "", arguments.out)
    if "://" in arguments.out and is_folder(arguments.out):
        parser.error(f"{shown(arguments.out)}: OUT must be a folder, or a name such as "
                     "s3://bucket/prefix or az://container/folder")
    if not arguments.join and arguments.src is None:
        parser.error("name SRC and OUT: feedmill pack SRC OUT")
    try:
        with _exit_on_sigterm():
            return _join(target_of(arguments.out)) if arguments.join else _write(arguments)
    except (OSError, ValueError) as error:
        _say(str(error))
        return 1
    except KeyboardInterrupt:
        if not arguments.join:
            _say("interrupted; the same command continues")
        raise
    except ModuleNotFoundError as error:
        if text := missing_package(error):
            parser.error(text)
        raise


def _say(text: str) -> None:
    """Prints a message to stderr, over a progress bar if there is one."""
    start = "\r\x1b[K" if sys.stderr.isatty() else ""
    print(f"{start}feedmill pack: {text}", file=sys.stderr, flush=True)


@contextmanager
def _exit_on_sigterm() -> Iterator[None]:
    """Lets SIGTERM raise SystemExit, so that unfinished files are removed as after Ctrl-C."""
    def end(number: int, frame: Any) -> None:
        sys.exit(128 + number)

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _write(arguments: argparse.Namespace) -> int:
    from feedmill.packing.index import INDEX_NAME
    from feedmill.packing.source import read_source
    from feedmill.packing.writer import Options, write_shards

    target = target_of(arguments.out)
    if target.size(INDEX_NAME) is not None:
        raise ValueError(f"{target} is already a pack: remove it, or name another target")
    _check_apart(arguments.src, arguments.out)
    if arguments.ray is not None:
        from feedmill.packing.on_ray import write_shards_on_ray
    source = read_source(arguments.src)
    target.make()
    options = Options(
        arguments.shard_size, arguments.interval, not arguments.no_verify,
        arguments.workers or native.usable_cpus(),
    )
    part, n_parts = arguments.part or (0, 1)
    began = time.monotonic()
    with progress(len(source.samples) if n_parts == 1 else None) as update:
        if arguments.ray is not None:
            tally = write_shards_on_ray(
                source, arguments.out, options, address=arguments.ray, workers=arguments.workers,
                update=update, say=_say,
            )
        else:
            tally = write_shards(source, target, options, part, n_parts, update)
    _print(tally, time.monotonic() - began)
    if arguments.part is not None:
        print(f"part {part} of {n_parts} is written; when all parts are written, run: feedmill "
              f"pack --join {target}")
        return 0
    return _join(target)


def _check_apart(src: str, out: str) -> None:
    """Raises ValueError if OUT is inside SRC, so that it would pack itself."""
    if not is_folder(out):
        inside = out.startswith(f"{src.rstrip('/')}/")
    else:
        inside = os.path.realpath(out).startswith(os.path.join(os.path.realpath(src), ""))
    if inside:
        raise ValueError(f"{shown(out)} is inside {shown(src)}: name another target")


def _join(target: Target) -> int:
    from feedmill.packing.joining import join_shards

    index = join_shards(target)
    n_bytes = int(index.shards["bytes"].sum()) + index.n_bytes
    print(f"{target}: {index.n_samples:,} samples of {len(index.classes):,} classes in "
          f"{_shards(index.n_shards)}; with the index, {_megabytes(n_bytes)}")
    return 0


def _megabytes(n_bytes: float) -> str:
    return f"{n_bytes / 1e6:,.1f} MB"


def _shards(n: int) -> str:
    return f"{n:,} shard{'' if n == 1 else 's'}"


def _print(tally: Any, seconds: float) -> None:
    n = tally.samples
    kept = f", {tally.kept:,} of which existed already" if tally.kept else ""
    print(f"{n:,} samples in {_shards(tally.shards)}{kept}, in {seconds:,.1f} s")
    if not tally.image_bytes:
        return
    ratio = tally.packed_bytes / tally.image_bytes
    whole = tally.file_bytes / tally.image_bytes
    print(f"images: {_megabytes(tally.image_bytes)} before, {_megabytes(tally.packed_bytes)} after "
          f"({ratio:.3f} times); as tar files {_megabytes(tally.file_bytes)} ({whole:.3f} times)")
    n_as_is = sum(tally.stored_unchanged.values())
    if n_as_is:
        reasons = ", ".join(f"{many:,} {why}" for why, many in tally.stored_unchanged.most_common())
        print(f"stored unchanged: {n_as_is:,} ({reasons})")
