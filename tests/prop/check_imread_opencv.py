"""feedmill.imread(path) equals cv2.imread(path), byte for byte: JPEGs, and their EXIF data.

    check_imread_opencv.py [--photos DIR] [--mutants N] [--seed N]

All JPEGs below DIR, and N made ones whose EXIF data was damaged at random. Needs OpenCV
(opencv-python-headless) and feedmill. Exit status 1 if an image differs, 77 if OpenCV is missing.
"""

import argparse
import io
import pathlib
import random
import sys

import numpy
from PIL import Image

try:
    import cv2
except ImportError as error:
    print("skipped:", error)
    sys.exit(77)

from feedmill._ops import native

MAX_PIXELS = 89478485


def taken(source):
    """The native image, or None where the native decoder does not take it."""
    got = native.imread(source, True, MAX_PIXELS)
    if type(got) is str:
        return None
    return numpy.frombuffer(got[0], numpy.uint8).reshape(got[1], got[2], 3)


def check_photos(root):
    n_taken = n_wrong = 0
    for path in sorted(pathlib.Path(root).rglob("*.[jJ][pP]*[gG]")):
        image = taken(str(path))
        if image is None:
            continue
        n_taken += 1
        if not numpy.array_equal(image, cv2.imread(str(path))):
            n_wrong += 1
            print(f"differs: {path}")
    print(f"{n_taken} photographs, {n_wrong} differ")
    return n_wrong


def mutant(chance, image):
    """A JPEG whose EXIF data has up to three other bytes."""
    exif = Image.Exif()
    exif[0x0112] = chance.randrange(10)
    if chance.random() < 0.5:
        exif[0x010F], exif[0x011A] = "Maker of things", 1.5
    if chance.random() < 0.5:
        exif[0x0131], exif[0x0110], exif[0x0128] = "soft", "abc", 2
    out = io.BytesIO()
    image.save(out, "JPEG", exif=exif, subsampling=chance.randrange(3))
    data = bytearray(out.getvalue())
    begin = data.index(b"Exif") + 6
    for _ in range(chance.randrange(4)):
        at = begin + chance.randrange(len(exif.tobytes()) - 6)
        data[at] = chance.choice([0, 1, 2, 3, 6, 8, 0x12, 0xFF, chance.randrange(256)])
    return bytes(data)


def check_mutants(n_mutants, chance):
    pixels = numpy.random.default_rng(0).integers(0, 255, (13, 21, 3), dtype=numpy.uint8)
    image = Image.fromarray(pixels)
    n_wrong = n_turned = 0
    for _ in range(n_mutants):
        data = mutant(chance, image)
        got, wanted = taken(data), cv2.imdecode(numpy.frombuffer(data, numpy.uint8), 1)
        n_turned += got is not None and got.shape != pixels.shape
        if got is not None and not numpy.array_equal(got, wanted):
            n_wrong += 1
            print(f"differs: EXIF data {data[data.index(b'Exif') :][:120].hex(' ')}")
    print(f"{n_mutants} images with odd EXIF data, {n_turned} on their side, {n_wrong} differ")
    return n_wrong


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--photos")
    parser.add_argument("--mutants", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    n_wrong = check_mutants(args.mutants, random.Random(args.seed))
    if args.photos:
        n_wrong += check_photos(args.photos)
    return int(n_wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
