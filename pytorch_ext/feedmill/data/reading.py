"""One image file as an array."""

from __future__ import annotations

import os

import numpy as np

from feedmill._ops import native
from feedmill.planner.equality import rejected_formats
from feedmill.planner.plan import max_image_pixels

_MODES = ("bgr", "rgb")


def imread(path: str | os.PathLike[str] | bytes, mode: str = "bgr") -> np.ndarray:
    """Reads and decodes an image, in place of ``cv2.imread`` or ``Image.open``.

    What the loader decodes natively is so here, on the calling thread and without Python's lock:
    threads that read images run side by side. In "bgr" these are JPEGs alone, without those of four
    inks (CMYK). All else goes through Pillow.

    Args:
        path: of the file; or bytes: the encoded image itself.
        mode: "bgr" (default): as ``cv2.imread(path)``: blue, green, red, and upright as the file's
            EXIF data asks; bit for bit so where it is decoded natively.
            "rgb": as ``np.array(Image.open(path).convert("RGB"))``, bit for bit; EXIF data counts
            for nothing.

    Returns:
        uint8 (height, width, 3), the caller's own, writable.

    What differs from cv2 in "bgr", all of it through Pillow: a file that can't be read or is no
    image raises, where cv2 gives None; a JPEG that is cut short raises, where cv2 gives what there
    is; 16-bit PNGs are clipped to 8 bits, where cv2 scales; CMYK is converted by Pillow's rule.

    Raises:
        ValueError: another mode.
        OSError and others: as Pillow's open() and convert().
    """
    if mode not in _MODES:
        raise ValueError(f"mode is {mode!r}; it must be one of 'bgr', 'rgb'")
    is_bgr = mode == "bgr"
    rejected = 0 if is_bgr else rejected_formats()
    taken = native.imread(path, is_bgr, max_image_pixels(), rejected)
    if type(taken) is not tuple:
        return _by_pillow(path, mode)
    pixels, height, width = taken
    return np.frombuffer(pixels, np.uint8).reshape(height, width, 3)


def _by_pillow(path: str | os.PathLike[str] | bytes, mode: str) -> np.ndarray:
    from PIL import ImageOps

    from feedmill.data.images import open_image

    with open_image(path) as image:
        if mode == "rgb":
            return np.array(image.convert("RGB"))
        upright = ImageOps.exif_transpose(image).convert("RGB")
    return np.ascontiguousarray(np.array(upright)[:, :, ::-1])
