"""Pillow images that are decoded only as far as somebody uses them, with Pillow's own pixels.

May import: planner, system.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def deferred_images() -> Iterator[None]:
    """Puts the decoding of JPEGs off that this thread opens with Pillow in the ``with`` block.

    An image that is opened, converted to RGB, cropped, transposed, turned and resized is decoded
    when its pixels are asked for, and only as far as these steps need it. Types, pixels and
    errors are Pillow's. If feedmill can't give the installed Pillow's pixels, nothing changes.

    Images may be used after the block, by any thread. Pillow stays patched after the block, without
    an effect on images that are opened outside of one.
    """
    if why_not():
        yield
        return
    from feedmill.deferred import patches

    with patches.deferring():
        yield


def is_needed() -> bool:
    """Whether the script has imported Pillow or OpenCV, which feedmill does not do for itself."""
    return "PIL.Image" in sys.modules or "cv2" in sys.modules


def is_switched_off() -> bool:
    """Whether the environment forbids to put decoding off."""
    return os.environ.get("FEEDMILL_DEFERRED") in ("0", "off")


def why_not() -> str:
    """The reason why decoding can't be put off in this process; "" if it can."""
    if is_switched_off():
        return "FEEDMILL_DEFERRED switches it off"
    if importlib.util.find_spec("PIL") is None:
        return "Pillow is not installed"
    from feedmill.deferred import patches

    return patches.why_not()


def compare_before_fork() -> None:
    """Makes the comparisons with the installed Pillow and torchvision that most worker processes
    need, so that those that this process forks don't make them again. Patches nothing."""
    if why_not():
        return
    from feedmill.deferred import (
        filters,
        mapping,
        operations,
        tables,
        tensors,
        tensors_of_bytes,
    )

    filters.filter_of(3)  # bicubic, beside bilinear
    if tensors.compare():  # torchvision is imported
        tensors_of_bytes.compare()
        operations.compare()
        mapping.is_equal()
        tables.is_equal()
