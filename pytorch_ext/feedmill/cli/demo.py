"""``feedmill demo [DIR]``: torch's DataLoader and feedmill on the same images, for 20 seconds.

The demo needs torchvision and Pillow.
"""

from __future__ import annotations

import argparse
import json
import math
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
from feedmill.cli.arguments import check_readable, positive_int
from feedmill.cli.bench import find_images
from feedmill.cli.made_images import make_images
from feedmill.cli.progress import progress
from feedmill.cli.survey import SUFFIXES
from feedmill.data.images import ImageList
from feedmill.loader import DataLoader

_SIZE = 224
_MEAN, _STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
_N_CLASSES, _N_EACH = 4, 48  # generated images per class
_MAX_CHECKED = 256
_ROUNDS = 3
_NEXT_STEPS = """\
Nothing was trained here. A training gets faster by the time that it now waits for data. To see how
much that is with torch's DataLoader:
  feedmill run --watch train.py

To train with feedmill, change one line of the script:
  -from torch.utils.data import DataLoader
  +from feedmill import DataLoader
or run the script as it is:
  feedmill run train.py"""


def add_demo(commands: Any) -> None:
    """Adds the command to an argparse parser's subparsers."""
    demo = commands.add_parser(
        "demo",
        help="compare torch's DataLoader and feedmill for 20 seconds",
        description=(
            "Checks that feedmill and torchvision produce the same pixels, then loads images as "
            "a training does (RandomResizedCrop, flip, normalize) with torch's DataLoader and "
            "with feedmill in turn, and prints how fast each is. The exit status is 1 if pixels "
            "differ or an image can't be loaded."
        ),
    )
    demo.add_argument("dir", metavar="DIR", type=Path, nargs="?",
                      help="folder of images (default: the demo makes some, and removes them)")
    demo.add_argument("--seconds", type=float, default=20.0, metavar="S",
                      help="length of the speed comparison (default %(default)s)")
    demo.add_argument("--workers", type=positive_int, default=native.usable_cpus(), metavar="N",
                      help="num_workers of both loaders (default: the usable CPUs, %(default)s)")
    demo.add_argument("--batch-size", type=positive_int, default=64, metavar="N",
                      help="images per batch (default %(default)s)")
    demo.add_argument("--report", action="store_true",
                      help="also print what feedmill's epochs waited for")
    demo.add_argument("--json", action="store_true", help="print one JSON object")
    demo.set_defaults(run=_demo)


def _demo(arguments: argparse.Namespace, parser: argparse.ArgumentParser) -> int:
    try:
        import torchvision  # noqa: F401
        from PIL import Image  # noqa: F401
    except Exception as error:  # a torchvision for another torch raises RuntimeError
        parser.error(
            f"the demo needs torchvision and Pillow, and their import failed with "
            f"{type(error).__name__}: {error}. Install them in versions made for this torch "
            f"({torch.__version__}): pip install torchvision pillow"
        )
    if not 0 < arguments.seconds < math.inf:
        parser.error(f"argument --seconds: must be above 0 and finite, not {arguments.seconds}")
    if arguments.dir is not None:
        check_readable(arguments.dir, parser)
        return _compare(arguments, parser, arguments.dir)
    with tempfile.TemporaryDirectory(prefix="feedmill-demo-") as folder:
        with progress(_N_CLASSES * _N_EACH) as update:
            make_images(Path(folder), _N_CLASSES, _N_EACH, update)
        return _compare(arguments, parser, Path(folder))


# ---- images --------------------------------------------------------------------------------------


def _dataset(folder: Path) -> Any:
    """All images below a folder: an ImageFolder if it has class folders, else an ImageList."""
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
        parser.error(f"{folder} contains no images ({', '.join(SUFFIXES)})")
    options = {"batch_size": arguments.batch_size, "num_workers": arguments.workers}
    n_checked = min(len(dataset), _MAX_CHECKED)

    def say(text: str) -> None:
        if not arguments.json:
            print(text, flush=True)

    say(_introduction(arguments, len(dataset)))
    try:
        _check_pixels(Subset(dataset, range(n_checked)), options)
        say(f"Pixels: {n_checked:,} images compared, all equal to torchvision's bit for bit.")
        say(f"Speed: measuring for about {arguments.seconds:g} s ...\n")
        rates, loader = _measure(dataset, options, arguments.seconds)
    except Exception as error:  # of many types: an image that Pillow can't decode, for example
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
        return 0
    stats = loader.stats()
    say(_table(result))
    say(_decoders(stats.decode.native_samples, stats.decode.fallback_samples, arguments.dir) + "\n")
    if arguments.report:
        say("What feedmill's epochs waited for. The loop does nothing else, so it always waits:")
        say(stats.report() + "\n")
    say(_NEXT_STEPS)
    return 0


def _check_pixels(dataset: Any, options: dict[str, Any]) -> None:
    """Loads each image once with native="verify", which raises at the first image that differs from
    what the dataset's own code returns for the same random numbers."""
    loader = DataLoader(dataset, native="verify", **options)
    with progress(len(dataset)) as update:
        for _, targets in loader:
            update(len(targets))


def _measure(
    dataset: Any, options: dict[str, Any], seconds: float
) -> tuple[dict[str, list[dict[str, float]]], DataLoader[Any]]:
    """Measures both loaders in turn.

    Each loader gets the same share of the time. The rate of a short first epoch sets the number of
    images in the others.

    Returns:
        Each round's rates, by loader; and feedmill's loader.
    """
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
    """The rates of one epoch. Starting and stopping worker processes is included."""
    cpu_s, begin_s, n_images = _cpu_seconds(), time.monotonic(), 0
    for _, targets in loader:
        n_images += len(targets)
    wall_s, cpu_s = time.monotonic() - begin_s, _cpu_seconds() - cpu_s
    return {"images_per_s": n_images / wall_s, "images_per_cpu_s": n_images / max(cpu_s, 1e-9)}


def _cpu_seconds() -> float:
    """CPU time of this process and of its worker processes that have ended."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)


def _ratio(rates: dict[str, list[dict[str, float]]], key: str) -> float:
    """feedmill's rate divided by torch's: the median over the rounds."""
    pairs = zip(rates["feedmill"], rates["torch"])
    return statistics.median(ours[key] / theirs[key] for ours, theirs in pairs)


# ---- text ----------------------------------------------------------------------------------------


def _introduction(arguments: argparse.Namespace, n_images: int) -> str:
    if arguments.dir is None:
        images = f"{n_images:,} generated images (for your own: feedmill demo DIR)"
    else:
        images = f"{n_images:,} images of {arguments.dir}"
    return (
        f"feedmill {__version__} and torch {torch.__version__}: {images}\n"
        f"RandomResizedCrop({_SIZE}), flip, normalize; batches of {arguments.batch_size}, "
        f"{arguments.workers} workers\n"
    )


def _table(result: dict[str, Any]) -> str:
    rows = [f"{'':20}{'images/s':>12}{'images per CPU-second':>25}"]
    for name, title in (("torch", "torch's DataLoader"), ("feedmill", "feedmill")):
        rates = result[name]
        rows.append(f"{title:20}{rates['images_per_s']:12,.0f}{rates['images_per_cpu_s']:25,.0f}")
    rows += [
        f"{'feedmill / torch':20}{result['speedup']:11.1f}x{result['speedup_per_cpu']:24.1f}x",
        "",
        f"Medians of {_ROUNDS} epochs of each loader, run in turn. A CPU-second is one core busy "
        "for one second.",
    ]
    return "\n".join(rows)


def _decoders(n_native: int, n_pillow: int, folder: Path | None) -> str:
    """Which decoder the images went through."""
    if not n_pillow:
        return "feedmill decoded all images natively."
    share = 100 * n_pillow / (n_native + n_pillow)
    why = "" if folder is None else f"; feedmill doctor {folder} tells why"
    return f"{share:.1f}% of feedmill's images went through Pillow, which is slower{why}."
