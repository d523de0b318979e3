"""imread(): reads one image file as an array."""

from __future__ import annotations

import os

import numpy as np

from feedmill._ops import native
from feedmill.planner.equality import rejected_formats
from feedmill.planner.plan import max_image_pixels
from feedmill.remote.sources import is_remote, read_object

_MODES = ("bgr", "rgb")


def imread(path: str | os.PathLike[str] | bytes, mode: str = "bgr") -> np.ndarray:
    """Reads and decodes an image; a replacement for ``cv2.imread`` and ``Image.open``.

    Formats that the loader decodes natively are decoded natively here, too, on the calling thread
    and without the GIL, so threads can read images in parallel. In mode "bgr" these are only JPEGs,
    except CMYK. All other images go through Pillow.

    Args:
        path: of the file; or the name of an object that is read over the network, such as
            "s3://bucket/key.jpg", or by fsspec; or bytes: the encoded image.
        mode: "bgr" (default): as ``cv2.imread(path)``: blue, green, red, rotated by the file's EXIF
            orientation; bit-exact if decoded natively.
            "rgb": as ``np.array(Image.open(path).convert("RGB"))``, bit-exact; the EXIF orientation
            is ignored.

    Returns:
        uint8 (height, width, 3), writable; the caller owns it.

    Differences from cv2 in mode "bgr", all in images that go through Pillow: a file that can't be
    read or is not an image raises an error (cv2 returns None); a truncated JPEG raises an error
    (cv2 returns the rows that it has); 16-bit PNGs are clipped to 8 bits (cv2 scales them); CMYK is
    converted by Pillow's formula.

    Raises:
        ValueError: another mode.
        OSError and others: as Pillow's open() and convert().
    """
    if mode not in _MODES:
        raise ValueError(f"mode is {mode!r}; it must be one of 'bgr', 'rgb'")
    if is_remote(path):
        path = read_object(str(path))
    is_bgr = mode == "bgr"
    rejected = 0 if is_bgr else rejected_formats()
    decoded = native.imread(path, is_bgr, max_image_pixels(), rejected)
    if type(decoded) is not tuple:
        return _read_with_pillow(path, mode)
    pixels, height, width = decoded
    return np.frombuffer(pixels, np.uint8).reshape(height, width, 3)


def _read_with_pillow(path: str | os.PathLike[str] | bytes, mode: str) -> np.ndarray:
    from PIL import ImageOps

    from feedmill.data.images import open_image

    with open_image(path) as image:
        if mode == "rgb":
            return np.array(image.convert("RGB"))
        upright = ImageOps.exif_transpose(image).convert("RGB")
    return np.ascontiguousarray(np.array(upright)[:, :, ::-1])
