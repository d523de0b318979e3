"""Every crop of a PNG or WebP that fm_decoder_* delivers equals the same part of Pillow's image.

    check_formats_pillow.py [--seconds N] [--seed N] [--crops N] [--mutants N] [--files DIR]
                            [--only png|webp]

Random files of all kinds, and with --files all files below DIR, of whatever format. Each is also
damaged N times: what is taken nevertheless must have Pillow's pixels; where Pillow raises, it must
not be taken. The decoders are compiled here, with the libraries that are found. Exit status 1 if a
byte differs, 77 if Pillow, numpy or both libraries are missing.
"""

import argparse
import io
import pathlib
import random
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent / "support")]

import check_jpeg_pillow as common  # noqa: E402
import make_png  # noqa: E402
from PIL import Image  # noqa: E402

FORMATS = {"png": ("PNG",), "webp": ("WEBP",)}


def has_library(header, library):
    test = subprocess.run(
        ["cc", "-x", "c", "-", "-o", "/dev/null", f"-l{library}"],
        input=f"#include <{header}>\nint main(void) {{ return 0; }}",
        text=True,
        capture_output=True,
    )
    return test.returncode == 0


def random_size(rng):
    largest = rng.choice((3, 9, 17, 40, 90))
    return rng.randint(1, largest), rng.randint(1, largest)


def random_png(rng):
    color = rng.choice(list(make_png.KINDS))
    bits = rng.choice(make_png.KINDS[color][1])
    options = {
        "interlaced": rng.random() < 0.4,
        "transparent": rng.random() < 0.3,
        "n_palette": rng.choice((None, None, rng.randint(1, 1 << min(bits, 8)))),
        "before": make_png.ancillary(rng) if rng.random() < 0.3 else b"",
        "after": make_png.ancillary(rng) if rng.random() < 0.2 else b"",
    }
    data = make_png.make(rng, *random_size(rng), color, bits, **options)
    told = {key: value for key, value in options.items() if not isinstance(value, bytes)}
    return data, f"png color {color} bits {bits} {told}"


def random_webp(rng):
    mode = rng.choice(("RGB", "RGB", "RGBA", "L", "P"))
    options = {
        "lossless": rng.random() < 0.5,
        "quality": rng.randint(0, 100),
        "method": rng.randrange(7),
        "exact": rng.random() < 0.5,
        "alpha_quality": rng.choice((100, 100, 30)),
    }
    if rng.random() < 0.2:
        options["exif"] = b"Exif\0\0II*\0" + rng.randbytes(40)
    if rng.random() < 0.2:
        options["icc_profile"] = rng.randbytes(100)
    images = [random_image(rng, mode) for _ in range(rng.choice((1, 1, 1, 1, 1, 3)))]
    images = [image.resize(images[0].size) for image in images]
    out = io.BytesIO()
    images[0].save(out, "WEBP", save_all=len(images) > 1, append_images=images[1:], **options)
    return out.getvalue(), f"webp {mode} x {len(images)} {options}"


def random_image(rng, mode):
    width, height = random_size(rng)
    if rng.random() < 0.3:
        width, height = width * 7, height * 7
    noise = Image.frombytes("RGBA", (width, height), rng.randbytes(4 * width * height))
    if rng.random() < 0.6:  # smooth, with some of it transparent
        noise = noise.resize((max(1, width // 9), max(1, height // 9))).resize((width, height))
    return noise.convert(mode)


def damaged(data, rng):
    """Flipped bits, overwritten, removed or doubled bytes, a lost end; in half of the PNGs with the
    checksums made right again, so that the damage comes through to the decoder."""
    out = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 5))):
        if len(out) < 9:
            break
        at = rng.randrange(8, len(out))
        kind = rng.randrange(6)
        if kind <= 2:
            out[at] ^= 1 << rng.randrange(8)
        elif kind == 3:
            out[at] = rng.choice((0, 255, rng.randrange(256)))
        elif kind == 4:
            del out[at : at + rng.choice((1, 2, 50))]
        else:
            out[at:at] = out[at : at + 40]
    if rng.random() < 0.2:
        del out[rng.randrange(1, len(out) + 1) :]
    return with_checksums(bytes(out)) if rng.random() < 0.5 else bytes(out)


def with_checksums(data):
    if not data.startswith(b"\x89PNG\r\n\x1a\n"):
        return data
    out, at = data[:8], 8
    while at + 12 <= len(data):
        length = int.from_bytes(data[at : at + 4], "big")
        if at + 12 + length > len(data):
            break
        out += make_png.chunk(data[at + 4 : at + 8], data[at + 8 : at + 8 + length])
        at += 12 + length
    return out + data[at:]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--crops", type=int, default=4)
    parser.add_argument("--mutants", type=int, default=3)
    parser.add_argument("--files", type=pathlib.Path)
    parser.add_argument("--only", choices=FORMATS)
    args = parser.parse_args()
    makers, flags = [], []
    for name, maker, header, library, macro in (
        ("png", random_png, "spng.h", "spng", "FM_HAVE_SPNG"),
        ("webp", random_webp, "webp/decode.h", "webp", "FM_HAVE_WEBP"),
    ):
        if args.only in (None, name) and has_library(header, library):
            makers.append(maker)
            flags += [f"-D{macro}=1", f"-l{library}"]
    if not makers:
        print("skipped: neither libspng nor libwebp was found")
        return 77
    rng = random.Random(args.seed)
    formats = ("PNG", "WEBP", "JPEG", "MPO")
    with tempfile.TemporaryDirectory() as folder:
        library = common.build_library(pathlib.Path(folder), *flags)
        intact, broken = (
            common.Check(common.Decoder(library, "fm_decoder"), rng, formats) for _ in range(2)
        )

        def examine(data, name):
            intact.file(data, name, args.crops)
            for k in range(args.mutants):
                broken.file(damaged(data, rng), f"{name} mutant {k}", 2)

        for path in sorted(args.files.rglob("*")) if args.files else []:
            if path.is_file():
                examine(path.read_bytes(), str(path))
        end = time.monotonic() + args.seconds
        while time.monotonic() < end:
            examine(*rng.choice(makers)(rng))
    for title, check in (("intact", intact), ("damaged", broken)):
        print(title, dict(check.counts), "failures", len(check.failures))
        for (status, message), n in check.refusals.most_common(30):
            print(f"    {n:6} {status}: {message}")
    return 1 if intact.failures or broken.failures else 0


if __name__ == "__main__":
    sys.exit(main())
