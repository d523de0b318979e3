"""Files of many kinds, as OpenCV reads them in one way and other libraries in another."""

import random
import struct
import sys
from pathlib import Path

import helpers
from PIL import Image

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))

import make_png

KINDS = {
    "usual": {"subsampling": 2},
    "4:4:4": {"subsampling": 0},
    "4:2:2": {"subsampling": 1},
    "progressive": {"progressive": True},
    "grey": {"mode": "L"},
    "CMYK": {"mode": "CMYK"},
    "upright": {"orientation": 1},
    "turned": {"orientation": 6},
    "mirrored": {"orientation": 2},
    "restarts": {"restart_marker_rows": 1},
}


def make_jpegs(root):
    """Paths by kind."""
    paths = {}
    for number, (name, options) in enumerate(KINDS.items()):
        paths[name] = root / f"{number}.jpg"
        helpers.save_jpeg(paths[name], 97 + number, 60 + 3 * number, seed=number, **options)
    paths["bare"] = helpers.save_bare_jpeg(root / "bare.jpg", 50, 40)
    paths["one pixel"] = helpers.save_bare_jpeg(root / "one.jpg", 1, 1)
    data = paths["usual"].read_bytes()
    for name, content in {"cut": data[:-400], "tail": data + b"more" * 500}.items():
        paths[name] = root / f"{name}.jpg"
        paths[name].write_bytes(content)
    for number, (name, segments) in enumerate(_segments().items()):
        paths[name] = root / f"segments{number}.jpg"
        paths[name].write_bytes(data[:2] + b"".join(segments) + data[2:])
    return paths


def _segments():
    """By which some versions of OpenCV turn an image, and other programs do not, or the reverse."""
    turned, upright = _directory(6), _directory(1)
    exif, other, xmp = b"Exif\0\0", b"Other\0", b"http://ns.adobe.com/xap/1.0/\0<x/>"
    return {
        "no EXIF": [_segment(other + turned)],
        "no EXIF before EXIF": [_segment(other + turned), _segment(exif + upright)],
        "EXIF twice": [_segment(exif + upright), _segment(exif + turned)],
        "EXIF in capitals": [_segment(b"EXIF\0\0" + turned), _segment(exif + upright)],
        "XMP": [_segment(xmp)],
        "XMP before EXIF": [_segment(xmp), _segment(exif + turned)],
    }


def _segment(body):
    return b"\xff\xe1" + struct.pack(">H", len(body) + 2) + body


def _directory(orientation):
    entry = struct.pack("<HHIHH", 0x0112, 3, 1, orientation, 0)
    return struct.pack("<2sHIH", b"II", 42, 8, 1) + entry + bytes(4)


def make_others(root):
    """The same of other formats."""
    paths = {"PNG named as a JPEG": root / "named.jpg", "16 bits": root / "deep.png"}
    image = Image.fromarray(helpers.pixels(50, 40))
    image.save(paths["PNG named as a JPEG"], "PNG")
    paths["16 bits"].write_bytes(make_png.make(random.Random(1), 50, 40, 2, 16))
    for mode in ("RGB", "RGBA", "L", "LA", "P"):
        paths[f"PNG of {mode}"] = root / f"{mode}.png"
        image.convert(mode).save(paths[f"PNG of {mode}"])
    for suffix in ("bmp", "webp"):
        paths[suffix] = root / f"image.{suffix}"
        image.save(paths[suffix])
    return paths


def make_unreadable(root):
    """The same of files of which OpenCV makes no image."""
    usual = helpers.save_jpeg(root / "whole.jpg", 60, 50).read_bytes()
    paths = {"no such file": root / "none.jpg"}
    for name, content in {"header": usual[:200], "empty": b"", "text": b"not an image"}.items():
        paths[name] = root / f"{name}.jpg"
        paths[name].write_bytes(content)
    return paths
