"""``feedmill bench DIR`` runs the native loader over a folder of images or a pack, without a
training, and prints its rate and where the time went.

It needs no torchvision, and Pillow only for files that the native decoder does not support.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from feedmill._ops import __version__, native
from feedmill.cli.arguments import positive_int
from feedmill.cli.named import HELP, Images, images_of, is_named, is_pack, read_named
from feedmill.cli.progress import progress
from feedmill.cli.survey import SUFFIXES
from feedmill.cli.value_table import imagenet_value_table
from feedmill.packing.dataset import Pack
from feedmill.planner.files import load_rgb
from feedmill.planner.formats import TORCH_DTYPES
from feedmill.planner.plan import crop_and_flip
from feedmill.profiling.counting.records import STORAGE_PARTS
from feedmill.profiling.report import terms
from feedmill.profiling.report.wording import percent
from feedmill.remote.names import shown
from feedmill.system import peer_processes

_MAX_NAMED_BAD_FILES = 20


# ---- arguments -----------------------------------------------------------------------------------


def add_bench(commands: Any) -> None:
    """Adds the command to an argparse parser's subparsers."""
    bench = commands.add_parser(
        "bench",
        help="measure how fast feedmill loads a folder of images",
        description=(
            "Reads, decodes, randomly crops, flips and batches all images below DIR (one folder "
            "per class, as for torchvision's ImageFolder, or plain files) or of a pack, in random "
            "order, and prints the rate and the time of each stage. Nothing is trained, so this is "
            "the highest rate that feedmill can deliver here. DIR may also be "
            f"{HELP}."
        ),
    )
    bench.add_argument("dir", metavar="DIR", help="folder of images, a pack, or names of objects")
    bench.add_argument("--batch-size", type=positive_int, default=64, metavar="N",
                       help="images per batch (default %(default)s)")
    bench.add_argument("--threads", type=positive_int, default=native.usable_cpus(), metavar="N",
                       help="decode threads (default: the usable CPUs, %(default)s)")
    bench.add_argument("--epochs", type=positive_int, default=3, metavar="N",
                       help="number of passes over the images (default %(default)s)")
    bench.add_argument("--size", type=positive_int, default=224, metavar="PX",
                       help="height and width of the delivered images (default %(default)s)")
    bench.add_argument("--dtype", choices=tuple(TORCH_DTYPES), default="float32",
                       help="dtype of the batches: uint8 pixels, or normalized values (default "
                            "%(default)s)")
    bench.add_argument("--reader", choices=("auto", "uring", "pread"), default="auto",
                       help="how files are read (default %(default)s: io_uring if it is available)")
    bench.add_argument("--seed", type=int, default=0, metavar="N",
                       help="seed of the order, the crops and the flips (default 0)")
    bench.add_argument("--json", action="store_true", help="print one JSON object")
    bench.set_defaults(run=_bench)


def find_images(folder: Path) -> list[str]:
    """Paths of all images: first those in class folders, in ImageFolder's order, then those in the
    folder itself."""
    paths = []
    classes = sorted(entry.name for entry in os.scandir(folder) if entry.is_dir())
    for name in classes:
        for root, _, files in sorted(os.walk(folder / name, followlinks=True)):
            paths += [os.path.join(root, file) for file in sorted(files)]
    paths += sorted(entry.path for entry in os.scandir(folder) if entry.is_file())
    return [path for path in paths if path.lower().endswith(SUFFIXES)]


def find_all(given: str) -> Images:
    """The images that the argument names. Raises OSError, ValueError."""
    if is_named(given):
        return read_named(given)
    if not os.path.isdir(given):
        raise ValueError(f"{given} is not a folder")
    if is_pack(given):
        return images_of(Pack(given))
    paths = find_images(Path(given))
    return Images(paths, None, paths)


# ---- the run -------------------------------------------------------------------------------------


@dataclass
class _Run:
    """One benchmark run: the native loader, its input, and the files that could not be decoded.

    Attributes:
        loader: the native loader.
        images: what is read.
        seed: seed of order, crops and flips.
        size: height and width of the delivered images.
        table: what imagenet_value_table() returns.
        bad: path -> reason, for files that Pillow can't decode either.
    """

    loader: Any
    images: Images
    seed: int
    size: int
    table: np.ndarray | None
    bad: dict[str, str] = field(default_factory=dict)

    def epoch(self, number: int, batch_size: int, ahead: int) -> Iterator[int]:
        """Runs one epoch and yields the size of each batch.

        Args:
            number: of the epoch, from 0.
            batch_size: images per batch.
            ahead: number of batches in flight.
        """
        order = list(range(len(self.images.paths)))
        random.Random(self.seed + number).shuffle(order)
        self.loader.start(self.seed & (2**64 - 1), number)
        waiting = 0
        batches = iter(range(0, len(order), batch_size))
        while True:
            while waiting < ahead and (first := next(batches, None)) is not None:
                indices = order[first : first + batch_size]
                paths = [self.images.paths[index] for index in indices]
                parts = self.images.parts and [self.images.parts[index] for index in indices]
                self.loader.submit(indices, paths, parts)
                waiting += 1
            if not waiting:
                return
            yield self._next(number)
            waiting -= 1

    def _next(self, epoch: int) -> int:
        n: int
        while True:
            outcome, payload, n = self.loader.next(-1)
            if outcome == native.OK:
                return n
            if outcome != native.FALLBACK:
                raise RuntimeError(f"the loader failed: {payload}")
            self._finish_sample(epoch)

    def _finish_sample(self, epoch: int) -> None:
        """Decodes with Pillow the sample that the native decoder rejected. If Pillow fails as well,
        the sample is filled with zeros and its file is added to `bad`."""
        index, occurrence, _, _, path, out, why = self.loader.fallback()
        kind = np.uint8 if self.table is None else self.table.dtype
        target = np.frombuffer(out, kind).reshape(3, self.size, self.size)
        try:
            target[...] = self._decode(self.images.source(index), epoch, index, occurrence)
        except ImportError:
            target[...] = 0
            self.bad.setdefault(path, f"{why} (Pillow is not installed)")
        except Exception as error:  # damaged files raise errors of many types
            target[...] = 0
            self.bad.setdefault(path, f"{type(error).__name__}: {error}")
        self.loader.fallback_done(True)

    def _decode(self, source: Any, epoch: int, index: int, occurrence: int) -> np.ndarray:
        from PIL import Image

        image = load_rgb(source)
        crop, flip = self.loader.draws(
            self.seed & (2**64 - 1), epoch, index, occurrence, *image.size
        )
        _, top, left, height, width, *_ = crop
        image = image.crop((left, top, left + width, top + height))
        image = image.resize((self.size, self.size), Image.Resampling.BILINEAR)
        pixels: np.ndarray = np.asarray(image).transpose(2, 0, 1)
        if flip[5]:
            pixels = pixels[:, :, ::-1]
        if self.table is None:
            return pixels
        return np.stack([self.table[channel][pixels[channel]] for channel in range(3)])


def _bench(arguments: argparse.Namespace, parser: argparse.ArgumentParser) -> int:
    try:
        images = find_all(arguments.dir)
        readers = images.readers()
    except (OSError, ValueError) as error:
        parser.error(str(error))
    n_images = len(images.paths)
    if not n_images:
        parser.error(f"{shown(arguments.dir)} contains no images ({', '.join(SUFFIXES)})")
    table = imagenet_value_table(arguments.dtype)
    ahead = max(4, 2 * arguments.threads, -(-64 // arguments.batch_size))
    try:
        loader = native.Loader(
            ops=crop_and_flip(arguments.size),
            dtype=arguments.dtype,
            value_table=None if table is None else table.tobytes(),
            n_samples=n_images,
            batch_size=arguments.batch_size,
            n_threads=arguments.threads,
            prefetch_batches=ahead,
            reader=arguments.reader,
            **readers,
        )
    except (ValueError, MemoryError, native.Error) as error:
        parser.error(str(error))
    peer_processes.begin(id(loader), arguments.threads)
    run = _Run(loader, images, arguments.seed, arguments.size, table)
    epochs = []
    with progress(arguments.epochs * n_images) as update:
        for number in range(arguments.epochs):
            wall, cpu, n_done = time.monotonic(), _cpu_seconds(), 0
            for n in run.epoch(number, arguments.batch_size, ahead):
                n_done += n
                update(n)
            epochs.append(_rates(n_done, time.monotonic() - wall, _cpu_seconds() - cpu))
    result = _summary(arguments, run, epochs)
    loader.close()
    peer_processes.end(id(loader))
    print(json.dumps(result, indent=2) if arguments.json else _as_text(result))
    return 0


def _cpu_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


# ---- the result ----------------------------------------------------------------------------------


def _rates(n_images: int, wall_s: float, cpu_s: float) -> dict[str, float]:
    return {
        "images": n_images,
        "wall_s": wall_s,
        "cpu_s": cpu_s,
        "images_per_s": n_images / wall_s,
        "images_per_cpu_s": n_images / cpu_s if cpu_s else 0.0,
    }


def _summary(
    arguments: argparse.Namespace, run: _Run, epochs: list[dict[str, float]]
) -> dict[str, Any]:
    counters = run.loader.stats()
    total = {name: sum(epoch[name] for epoch in epochs) for name in ("images", "wall_s", "cpu_s")}
    seconds = {
        name: counters[f"{name}_ns"] / 1e9
        for name in ("read", "decode", "transform", "fallback", "worker_cpu", "worker_idle",
                     "data_wait")
    }
    return {
        "feedmill": __version__,
        "dir": str(shown(arguments.dir)),
        "files": len(run.images.paths),
        "batch_size": arguments.batch_size,
        "threads": counters["n_threads"],
        "cpu": counters["cpu"],
        "size": arguments.size,
        "dtype": arguments.dtype,
        "reader": counters["reader"],
        "reader_reason": counters["reader_reason"],
        **_rates(int(total["images"]), total["wall_s"], total["cpu_s"]),
        "epochs": epochs,
        "stage_s": seconds,
        "read_files": counters["read_files"],
        "read_bytes": counters["read_bytes"],
        "http_requests": counters["http_requests"],
        "http_hedged": counters["http_hedged"],
        "http_shared": counters["http_shared"],
        "http_bytes": counters["http_bytes"],
        "storage_wait_s": {
            "storage": counters["wait_storage_ns"] / 1e9,
            **{name.removesuffix("_ns"): counters[name] / 1e9 for name in STORAGE_PARTS},
        },
        "encoded_bytes": _encoded_bytes(run.images, len(epochs)),
        "native_samples": counters["native_samples"],
        "fallback_samples": counters["fallback_samples"],
        "bad_files": len(run.bad),
        "bad": run.bad,
    }


def _encoded_bytes(images: Images, n_epochs: int) -> int | None:
    """Bytes of all the images that were decoded; None: not known, as they are whole files."""
    if images.parts is None:
        return None
    return n_epochs * sum(part.n_bytes for part in images.parts if part is not None)


def _storage_lines(waits: dict[str, float]) -> list[str]:
    """What reads did while batches waited for storage, and what helps."""
    parts = {name: waits[name.removesuffix("_ns")] for name in STORAGE_PARTS}
    total = sum(parts.values())
    if not total:
        return []
    names = sorted((name for name in parts if parts[name] > 0.01 * total),
                   key=lambda name: -parts[name])
    shares = [f"{terms.storage_part(name).label} {percent(parts[name] / total)}" for name in names]
    return [f"  storage    {total:.2f} s waited for: {', '.join(shares)}",
            f"             what helps: {terms.storage_part(names[0]).remedy}"]


def _as_text(result: dict[str, Any]) -> str:
    stage = result["stage_s"]
    n_epochs = len(result["epochs"])
    lines = [
        f"{result['images_per_s']:,.0f} images/s, {result['images_per_cpu_s']:,.0f} images per "
        f"CPU-second ({result['images']:,} images in {result['wall_s']:.2f} s, "
        f"{result['threads']} threads, {result['cpu']}, {n_epochs} "
        f"epoch{'s' if n_epochs > 1 else ''})",
        "  epochs     "
        + ", ".join(f"{epoch['images_per_s']:,.0f}" for epoch in result["epochs"])
        + " images/s",
        f"  decode     {stage['decode']:.2f} core-s",
        f"  transform  {stage['transform']:.2f} core-s",
        f"  idle       {stage['worker_idle']:.2f} s, summed over the decode threads",
        f"  reader     {result['reader']} ({result['reader_reason']}): "
        f"{result['read_files']:,} files, {result['read_bytes'] / 1e6:,.1f} MB, "
        f"{1e3 * stage['read'] / max(1, result['read_files']):.2f} ms per file",
        f"  Pillow     {result['fallback_samples']:,} samples, {stage['fallback']:.2f} s",
    ]
    if result["http_requests"]:
        of = result["encoded_bytes"]
        share = "" if of is None else (
            f" of {of / 1e6:,.1f} MB of images ({100 * result['http_bytes'] / max(1, of):.1f}%)")
        lines.insert(-1, f"  network    {result['http_requests']:,} requests, "
                         f"{result['http_bytes'] / 1e6:,.1f} MB fetched{share}")
        lines[-1:-1] = _storage_lines(result["storage_wait_s"])
    if result["bad"]:
        lines.append(f"  bad        {result['bad_files']:,} files that can't be decoded, delivered "
                     "as zeros:")
        named = list(result["bad"].items())[:_MAX_NAMED_BAD_FILES]
        lines += [f"    {path}: {why}" for path, why in named]
        if len(result["bad"]) > len(named):
            lines.append(f"    and {len(result['bad']) - len(named):,} more")
    return "\n".join(lines)
