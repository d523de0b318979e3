"""``feedmill demo [DIR]`` compares torch's DataLoader and feedmill for 20 seconds: a first look.

It needs torchvision and Pillow, as the training scripts that it stands for do.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import resource
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader as TorchDataLoader
from torch.utils.data import Subset

from feedmill._ops import __version__, native
from feedmill.cli.arguments import check_readable, from_one
from feedmill.cli.bench import find_images
from feedmill.cli.made_images import make_images
from feedmill.cli.progress import progress
from feedmill.cli.survey import SUFFIXES
from feedmill.data.images import ImageList
from feedmill.loader import DataLoader

_SIZE = 224
_MEAN, _STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
_N_CLASSES, _N_EACH = 4, 48
_MOST_CHECKED = 256
_ROUNDS = 3
_ADVICE = """\
In a script, this line makes the difference; everything else stays as it is:
  -from torch.utils.data import DataLoader
  +from feedmill import DataLoader
or, without changing the script: feedmill run train.py"""


def add_demo(commands: Any) -> None:
    """Adds the command to a parser's."""
    demo = commands.add_parser(
        "demo",
        help="compare torch's DataLoader and feedmill for 20 seconds",
        description=(
            "Loads images for training (RandomResizedCrop, flip, normalize) with torch's "
            "DataLoader and with feedmill, in turn, and prints both rates. Before that it checks "
            "that the pixels are the same. The exit status is 1 if they are not."
        ),
    )
    demo.add_argument("dir", metavar="DIR", type=Path, nargs="?",
                      help="folder of images (default: some are made)")
    demo.add_argument("--seconds", type=float, default=20.0, metavar="S",
                      help="for the comparison (default %(default)s)")
    demo.add_argument("--workers", type=from_one, default=native.usable_cpus(), metavar="N",
                      help="num_workers of both (default: the usable CPUs, %(default)s)")
    demo.add_argument("--batch-size", type=from_one, default=64, metavar="N",
                      help="images a batch (default %(default)s)")
    demo.add_argument("--json", action="store_true", help="print one JSON object")
    demo.set_defaults(run=_demo)


def _demo(arguments: argparse.Namespace, parser: argparse.ArgumentParser) -> int:
    try:
        import torchvision  # noqa: F401
        from PIL import Image  # noqa: F401
    except ImportError as error:
        parser.error(
            f"the demo trains as most scripts do, with torchvision and Pillow ({error}): "
            "pip install torchvision"
        )
    if not 0 < arguments.seconds < math.inf:
        parser.error(f"argument --seconds: must be above 0: {arguments.seconds}")
    if arguments.dir is not None:
        check_readable(arguments.dir, parser)
        return _compare(arguments, parser, arguments.dir)
    with tempfile.TemporaryDirectory(prefix="feedmill-demo-") as folder:
        with progress(_N_CLASSES * _N_EACH) as update:
            make_images(Path(folder), _N_CLASSES, _N_EACH, update)
        return _compare(arguments, parser, Path(folder))


# ---- images --------------------------------------------------------------------------------------


def _dataset(folder: Path) -> Any:
    """All images below a folder, those of class folders as torchvision's ImageFolder has them."""
    from torchvision import transforms
    from torchvision.datasets import ImageFolder

    transform = transforms.Compose([
        transforms.RandomResizedCrop(_SIZE),
        transforms.RandomHorizontalFlip(),
        transforms.ToTensor(),
        transforms.Normalize(_MEAN, _STD),
    ])
    try:
        return ImageFolder(str(folder), transform)
    except FileNotFoundError:  # no class folders, or one without an image
        return ImageList(find_images(folder), transform=transform)


# ---- the comparison ------------------------------------------------------------------------------


def _compare(
    arguments: argparse.Namespace, parser: argparse.ArgumentParser, folder: Path
) -> int:
    dataset = _dataset(folder)
    if not len(dataset):
        parser.error(f"{folder} holds no image ({', '.join(SUFFIXES)})")
    options = {"batch_size": arguments.batch_size, "num_workers": arguments.workers}
    n_checked = min(len(dataset), _MOST_CHECKED)
    try:
        _check_pixels(Subset(dataset, range(n_checked)), options)
        rates, loader = _measure(dataset, options, arguments.seconds)
    except Exception as error:  # of many types: images that Pillow does not take, either
        print(f"feedmill demo: {type(error).__name__}: {error}")
        return 1
    result = {
        "versions": {"feedmill": __version__, "torch": torch.__version__},
        "images": len(dataset),
        "equal_images": n_checked,
        "workers": arguments.workers,
        "batch_size": arguments.batch_size,
        **{name: {key: statistics.median(one[key] for one in runs) for key in runs[0]}
           for name, runs in rates.items()},
        "speedup": _ratio(rates, "images_per_s"),
        "speedup_per_cpu": _ratio(rates, "images_per_cpu_s"),
    }
    if arguments.json:
        print(json.dumps(result, indent=2))
    else:
        print(_as_text(result, loader.stats().report(), arguments.dir))
    return 0


def _check_pixels(dataset: Any, options: dict[str, Any]) -> None:
    """Each image once. native="verify" raises at the first that differs from what the dataset's own
    code makes of it for the same random numbers."""
    loader = DataLoader(dataset, native="verify", **options)
    with progress(len(dataset)) as update:
        for _, targets in loader:
            update(len(targets))


def _measure(
    dataset: Any, options: dict[str, Any], seconds: float
) -> tuple[dict[str, list[dict[str, float]]], DataLoader[Any]]:
    """(rates of each round by loader, feedmill's loader). The two run in turn. The time is shared
    out equally: a short first epoch tells how many images a loader can deliver in its share."""
    makers: dict[str, Callable[..., Any]] = {"torch": TorchDataLoader, "feedmill": DataLoader}
    n_first = 2 * options["batch_size"] * options["num_workers"]
    part_s = seconds / len(makers) / (_ROUNDS + 1)
    rates: dict[str, list[dict[str, float]]] = {name: [] for name in makers}
    loaders: dict[str, Any] = {}
    with progress(len(makers) * (_ROUNDS + 1), "part") as update:
        for name, make in makers.items():
            first = _epoch(make(_repeated(dataset, n_first), **options))
            n_images = max(n_first, int(part_s * first["images_per_s"]))
            loaders[name] = make(_repeated(dataset, n_images), shuffle=True, **options)
            update(1)
        for _ in range(_ROUNDS):
            for name, loader in loaders.items():
                rates[name].append(_epoch(loader))
                update(1)
    return rates, loaders["feedmill"]


def _repeated(dataset: Any, n: int) -> Any:
    return Subset(dataset, [i % len(dataset) for i in range(n)])


def _epoch(loader: Any) -> dict[str, float]:
    """An epoch's rates, with the start and the end of its workers."""
    cpu_s, begin_s, n_images = _cpu_seconds(), time.monotonic(), 0
    for _, targets in loader:
        n_images += len(targets)
    wall_s, cpu_s = time.monotonic() - begin_s, _cpu_seconds() - cpu_s
    return {"images_per_s": n_images / wall_s, "images_per_cpu_s": n_images / max(cpu_s, 1e-9)}


def _cpu_seconds() -> float:
    """Of this process and of the workers that have ended."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)


def _ratio(rates: dict[str, list[dict[str, float]]], key: str) -> float:
    """The median of the rounds' own ratios."""
    pairs = zip(rates["feedmill"], rates["torch"])
    return statistics.median(ours[key] / theirs[key] for ours, theirs in pairs)


# ---- the result ----------------------------------------------------------------------------------


def _as_text(result: dict[str, Any], report: str, folder: Path | None) -> str:
    where = os.fspath(folder) if folder is not None else "made for this"
    versions = ", ".join(f"{name} {version}" for name, version in result["versions"].items())
    lines = [
        f"{versions}: {result['images']:,} images ({where}), batches of {result['batch_size']}, "
        f"{result['workers']} workers",
        f"pixels: {result['equal_images']:,} images looked at, all equal to torchvision's bit for "
        "bit",
        "",
        f"{'':20}{'images/s':>10}{'per CPU-second':>17}",
    ]
    for name, title in (("torch", "torch's DataLoader"), ("feedmill", "feedmill")):
        rates = result[name]
        lines.append(f"{title:20}{rates['images_per_s']:10,.0f}{rates['images_per_cpu_s']:17,.0f}")
    lines += [
        f"{'':20}{result['speedup']:9.1f}x{result['speedup_per_cpu']:16.1f}x",
        "",
        "What feedmill's last epochs waited for, with nothing to do between the batches:",
        report,
        "",
        _ADVICE,
    ]
    return "\n".join(lines)
