"""Counts the images that a script's processes open."""

from __future__ import annotations

import functools
import mmap
import os
import struct
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

from public_scripts_hook.after_import import call_after_import

_OPENERS = {
    "PIL.Image": ("open",),
    "cv2": ("imread", "imdecode"),
    "imageio": ("imread",),
    "skimage.io": ("imread",),
    "torchvision.io": ("decode_image", "decode_jpeg", "read_image"),
}


def _counter() -> mmap.mmap:
    """A number that all processes of the script share: it grows when one opens an image."""
    path = Path(os.environ["PUBLIC_SCRIPTS_OUT"]) / "images"
    with path.open("ab") as file:
        if file.tell() == 0:
            file.write(bytes(8))
    with path.open("r+b") as file:
        return mmap.mmap(file.fileno(), 8)


def n_images() -> int:
    return int(struct.unpack("q", _counter()[:8])[0])


def count_images() -> None:
    """Makes the functions that open images count, from the import of their modules on."""
    counter = _counter()

    def counting(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def counted(*args: Any, **options: Any) -> Any:
            # Processes may lose counts to each other; what matters is that it is not 0.
            counter[:8] = struct.pack("q", struct.unpack("q", counter[:8])[0] + 1)
            return function(*args, **options)

        return counted

    def after_import(module: types.ModuleType) -> None:
        for name in _OPENERS[module.__name__]:
            if hasattr(module, name):
                setattr(module, name, counting(getattr(module, name)))

    for name in _OPENERS:
        call_after_import(name, after_import)
