"""Whether image files can be decoded natively: how a dataset opens them, and their names."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from typing import Any

from feedmill.planner.equality import native_formats, why_not_jpegs
from feedmill.planner.file_loaders import JPEG_SUFFIXES, FileLoader
from feedmill.planner.folders import original_loaders
from feedmill.planner.tensor_files import UNCHANGED, TensorLoader
from feedmill.planner.untouched import is_original, type_name
from feedmill.planner.wrappers import forwards_to
from feedmill.remote.sources import open_source

# File names serve for an estimate only. Whether a file is decoded natively depends on its bytes.
_SUFFIXES = {
    "JPEG": JPEG_SUFFIXES,
    "PNG": (".png", ".apng"),
    "WebP": (".webp",),
}
_PROBED_SAMPLES = 10000
_N_MODES = 16
_ORIENTATION = 0x0112  # EXIF's tag


def load_rgb(path: Any) -> Any:
    """Loads a file, a remote object or an image's bytes like torchvision's pil_loader: a PIL image
    in RGB."""
    from PIL import Image

    with open_source(path) as file:
        return Image.open(file).convert("RGB")


def open_rgb(path: Any) -> Any:
    """Loads a file as a dataset does that calls Pillow itself, whose errors name the path."""
    from PIL import Image

    return Image.open(path).convert("RGB")


def open_file_rgb(path: Any) -> Any:
    """Loads a file as a dataset does that opens it itself, and then calls Pillow."""
    from PIL import Image

    with open(path, "rb") as file:
        return Image.open(file).convert("RGB")


def open_as_is(path: Any) -> Any:
    """Opens a file as a dataset does that does not convert it: the image has its file's mode."""
    from PIL import Image

    return Image.open(path)


def open_only_rgb(path: Any) -> Any:
    """Opens a file as a dataset does that raises an error for images of other modes than RGB."""
    from PIL import Image

    image = Image.open(path)
    if image.mode != "RGB":
        raise ValueError(f"{path}: the image's mode is {image.mode}, not RGB")
    return image


def reasons_against_opening() -> list[str]:
    """Reasons if Pillow may decode files to other pixels than the native decoder, as its decoders
    are others or a function that opens files was replaced."""
    from PIL import Image

    reasons = []
    if not forwards_to(Image.open, lambda one: is_original(one, "PIL.Image", "open")):
        by = f"{getattr(Image.open, '__module__', '?')}.{getattr(Image.open, '__qualname__', '?')}"
        reasons.append(
            f"PIL.Image.open was replaced by {by}, which may return other images than Pillow's"
        )
    for name in ("Jpeg", "Png", "WebP"):
        opens = Image.OPEN.get(name.upper())  # empty until the first image is opened
        if opens is not None and getattr(opens[0], "__module__", None) != f"PIL.{name}ImagePlugin":
            reasons.append(f"Pillow's decoder of {name.upper()} images was replaced")
        kind = getattr(sys.modules.get(f"PIL.{name}ImagePlugin"), f"{name}ImageFile", None)
        if kind is not None and vars(kind).keys() & {"convert", "mode", "__enter__", "__exit__"}:
            reasons.append(f"Pillow's class of {name.upper()} images was changed")
    for name in ("convert", "__enter__", "__exit__"):
        if not is_original(vars(Image.Image).get(name), "PIL.Image", f"Image.{name}"):
            reasons.append(f"PIL.Image.Image.{name} was replaced")
    if reason := why_not_jpegs():
        reasons.append(reason)
    return reasons


def reasons_against_loader(loader: Any) -> list[str]:
    """Reasons if a DatasetFolder's loader is not torchvision's own."""
    originals = original_loaders()
    if len(originals) != 2:
        return ["torchvision's default_loader or pil_loader was replaced"]
    if not any(loader is original for original in originals):
        return [
            "the dataset's loader is not torchvision's default_loader; the native decoder can "
            "replace only that one"
        ]
    return reasons_against_backend()


def reasons_against_backend() -> list[str]:
    """Reasons if torchvision opens images with another library than Pillow."""
    torchvision = sys.modules.get("torchvision")
    backend = "PIL" if torchvision is None else torchvision.get_image_backend()
    if backend == "PIL":
        return []
    return [
        f"torchvision's image backend is {backend}; the native decoder gives the pixels of the "
        "backend PIL"
    ]


def reasons_against_samples(samples: Any) -> list[str]:
    """Reasons against a list of pairs (path, target)."""
    if type(samples) not in (list, tuple):
        return [f"the dataset's samples are a {type_name(type(samples))}, not a list"]
    if not samples:
        return ["the dataset is empty"]
    try:
        return reasons_against_names([str(sample[0]) for sample in samples[probed(len(samples))]])
    except (TypeError, IndexError, KeyError):
        return ["the dataset's samples are not (path, target) pairs"]


def reasons_against_modes(paths: Sequence[str], advice: str) -> list[str]:
    """A reason if some of these files, which the dataset does not convert, are not of mode RGB.

    Args:
        advice: what converts them.
    """
    for path, mode, _ in _some_headers(paths):
        if mode != "RGB":
            return [
                f"{path} is an image of mode {mode}, and the dataset does not convert it to RGB, "
                f"as the native path does; {advice}"
            ]
    return []


def _some_headers(paths: Sequence[str]) -> Iterator[tuple[str, str, int]]:
    """(path, mode, a JPEG's EXIF orientation or 1) of some image files that Pillow can open."""
    from PIL import Image

    for path in paths[:: max(1, len(paths) // _N_MODES)]:
        if not os.path.isfile(path):  # a pipe would block
            continue
        try:
            with Image.open(path) as image:
                # Of other formats, Pillow may decode the image to find EXIF data.
                exif = image.getexif() if image.format == "JPEG" else {}
                found = path, image.mode, exif.get(_ORIENTATION, 1)
        except Exception:  # its error is raised at its turn
            continue
        yield found


def reasons_against_loaded(loader: FileLoader, paths: Sequence[str]) -> list[str]:
    """As reasons_against_names(), for files that another library loads."""
    if reasons := loader.reasons_against(paths):
        return reasons
    if isinstance(loader, TensorLoader) and loader.mode == UNCHANGED:
        return reasons_against_modes(paths, f"pass mode='RGB' to {loader}()")
    return _reasons_against_turned(loader, paths) if loader.turns else []


def _reasons_against_turned(loader: FileLoader, paths: Sequence[str]) -> list[str]:
    """A reason if a loader turns most files, which it would load one by one."""
    found = list(_some_headers(paths))
    n_others = sum(mode == "CMYK" or turn != 1 for _, mode, turn in found)
    if 2 * n_others <= len(found):
        return []
    return [
        f"{loader} turns most files as their EXIF data says, or they are CMYK ({n_others} of "
        f"{len(found)} sampled files), which is not done natively"
    ]


def reasons_against_names(paths: Sequence[str]) -> list[str]:
    """Reasons if most of these files are of formats that go through Pillow."""
    formats = native_formats()
    suffixes = tuple(one for name in formats for one in _SUFFIXES[name])
    n_native = sum(path.lower().endswith(suffixes) for path in paths)
    if 2 * n_native >= len(paths):
        return []
    return [
        f"most files are not {', '.join(formats)} by name ({n_native} of {len(paths)} sampled "
        "files are)"
    ]


def probed(n: int) -> slice:
    """Some of n samples, evenly spaced."""
    return slice(None, None, max(1, -(-n // _PROBED_SAMPLES)))
