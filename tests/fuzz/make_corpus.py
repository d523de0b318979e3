"""Writes a few images of each kind for the fuzzers to begin with: make_corpus.py FOLDER.

A fuzzer's input is 8 bytes that choose a crop, or options, and then the file.
"""

import io
import random
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))

import make_png
from PIL import Image


def encoded(kind, mode, **options):
    image = Image.merge("RGBA", [Image.linear_gradient("L").rotate(90 * i) for i in range(4)])
    out = io.BytesIO()
    image.resize((40, 31)).convert(mode).save(out, kind, **options)
    return out.getvalue()


def metadata():
    """Options that store EXIF of several kinds."""
    for orientation in (None, 1, 6):
        exif = Image.Exif()
        exif[0x010E] = "a description that is longer than four bytes"
        if orientation:
            exif[0x0112] = orientation
        yield {"exif": exif.tobytes()}
    yield {}
    yield {"exif": b"Exif\0\0II*\0\x08\0\0\0\1\0\x12\1\3\0\1\0\0\0\1\0\0\0\0\0\0\0"}


def main():
    rng = random.Random(1)
    images = {
        "jpeg": [encoded("JPEG", mode, progressive=progressive)
                 for mode in ("RGB", "L", "CMYK") for progressive in (False, True)],
        "jpegrows": [encoded("JPEG", mode, subsampling=subsampling, quality=quality,
                             progressive=progressive)
                     for mode in ("RGB", "L") for subsampling in (0, 1, 2) for quality in (5, 90)
                     for progressive in (False, True)],
        "jpegskip": [encoded("JPEG", mode, restart_marker_blocks=n, subsampling=subsampling)
                     for mode in ("RGB", "L", "CMYK") for n in (1, 2, 3)
                     for subsampling in (0, 2)],
        "png": [make_png.make(rng, 23, 17, color, bits, interlaced, before=make_png.ancillary(rng))
                for color, (_, depths) in make_png.KINDS.items() for bits in depths
                for interlaced in (False, True)],
        "webp": [encoded("WEBP", mode, lossless=lossless)
                 for mode in ("RGB", "RGBA") for lossless in (False, True)]
                + [encoded("WEBP", "RGB", exif=b"Exif\0\0II*\0")],
    }
    images["jpegseek"] = images["jpegrows"]
    images["transcode"] = images["jpeg"]
    images["turned"] = [encoded(kind, "RGB", **options) for kind in ("JPEG", "PNG", "WEBP")
                        for options in metadata()]
    for name, files in images.items():
        folder = Path(sys.argv[1]) / f"corpus_{name}"
        folder.mkdir(parents=True, exist_ok=True)
        for i, data in enumerate(files):
            (folder / f"begin_{i}").write_bytes(rng.randbytes(8) + data)


if __name__ == "__main__":
    main()
