"""Every crop that fm_jpeg_* delivers equals the same part of Pillow's full decode, byte for byte.

    check_jpeg_pillow.py [--seconds N] [--seed N] [--photos DIR] [--crops N]
                         [--mutants N] [--library SO] [--mkjpeg FILE]

Random files of all kinds (tests/support/mkjpeg.c) and, with --photos, all JPEGs below DIR. With
--mutants, each file is also damaged N times: a file that is taken nevertheless must give Pillow's
pixels; where Pillow raises, it must not be taken. Without --library and --mkjpeg both are compiled
here. Some crops are of the image at 1/2, 1/4 or 1/8 of its size, as Pillow's draft() makes it. Exit
status 1 if a byte differs, 77 if Pillow or numpy is missing.
"""

import argparse
import collections
import ctypes
import io
import pathlib
import random
import subprocess
import sys
import tempfile
import time
import warnings

try:
    import numpy
    from PIL import Image
except ImportError as error:
    print("skipped:", error)
    sys.exit(77)

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests/support"))

import c_layout  # noqa: E402

NAMES = {-2: "NOMEM", -3: "BUDGET", -8: "FORMAT", -9: "KIND", -10: "DAMAGED", -11: "LIMIT"}
SLACK = 64  # bytes behind a row that the contract lets the decoder write
GUARD = 0xA5


class Box(ctypes.Structure):
    _fields_ = [(name, ctypes.c_int32) for name in ("left", "top", "width", "height")]


class Info(ctypes.Structure):
    _fields_ = [
        ("width", ctypes.c_int32),
        ("height", ctypes.c_int32),
        ("n_components", ctypes.c_int32),
        ("progressive", ctypes.c_bool),
        ("n_bytes", ctypes.c_size_t),
    ]


class Limits(ctypes.Structure):
    _fields_ = [
        ("max_file_bytes", ctypes.c_uint64),
        ("max_image_pixels", ctypes.c_uint64),
        ("rejected_formats", ctypes.c_uint32),
    ]


class Error(ctypes.Structure):
    _fields_ = [
        ("status", ctypes.c_int),
        ("sys_errno", ctypes.c_int),
        ("index", ctypes.c_int64),
        ("message", ctypes.c_char * 1024),
    ]


STRUCTURES = {"fm_box": Box, "fm_image_info": Info, "fm_limits": Limits, "fm_error": Error}


class Refused(Exception):
    pass


class Decoder:
    """One fm_jpeg, or decoder of another name, for all files, as a worker has it."""

    def __init__(self, library, name="fm_jpeg"):
        c_layout.check(STRUCTURES, ["decode/jpeg.h"])
        self.lib = ctypes.CDLL(str(library))
        self.name = name
        self.call("end").restype = None
        self.error = Error()
        self.handle = ctypes.c_void_p()
        limits = Limits(1 << 30, 1 << 27, 0)
        self.check(
            self.call("open")(
                ctypes.byref(self.handle), ctypes.byref(limits), None, ctypes.byref(self.error)
            )
        )

    def call(self, verb):
        return getattr(self.lib, f"{self.name}_{verb}")

    def check(self, status):
        if status < 0:
            raise Refused(status, self.error.message.decode())
        return status

    def crop(self, data, n_bytes, box, rng):
        """Pixels of the box; `data` is a ctypes buffer with 64 spare bytes. A function `box` gets
        the image's Info, and returns a box, and a divisor of the image's size where it is not 1."""
        info, error = Info(), ctypes.byref(self.error)
        try:
            self.check(
                self.call("begin")(
                    self.handle, data, ctypes.c_size_t(n_bytes), ctypes.byref(info), error
                )
            )
            chosen = box(info) if callable(box) else box
            if isinstance(chosen, tuple):
                chosen, divisor = chosen
                self.call("set_divisor")(self.handle, ctypes.c_int32(divisor))
            return self.rows(chosen, rng)
        finally:
            self.call("end")(self.handle)

    def rows(self, box, rng):
        error = ctypes.byref(self.error)
        skip, width = ctypes.c_int32(), ctypes.c_int32()
        self.check(
            self.call("start")(
                self.handle, ctypes.byref(box), ctypes.byref(skip), ctypes.byref(width), error
            )
        )
        skip, width = skip.value, width.value
        assert 0 <= skip and skip + box.width <= width
        stride = (3 * width + SLACK + 31) // 32 * 32 + 32
        memory = numpy.full(stride * box.height + 64, GUARD, numpy.uint8)
        first = -memory.ctypes.data % 32 + 16
        rows = (ctypes.c_void_p * box.height)(
            *(memory.ctypes.data + first + stride * y for y in range(box.height))
        )
        done = 0
        while done < box.height:
            n = rng.choice((1, 2, 3, 8, 16, box.height))
            got = self.call("read")(
                self.handle, ctypes.byref(rows, 8 * done), ctypes.c_int32(n), error
            )
            assert self.check(got) == min(n, box.height - done)
            done += got
        image = memory[first : first + stride * box.height].reshape(box.height, stride)
        assert (image[:, 3 * width + SLACK :] == GUARD).all(), "wrote past the row's slack"
        return image[:, 3 * skip : 3 * (skip + box.width)].reshape(box.height, box.width, 3)


def build_library(folder, *options):
    """The decoders alone; options such as -DFM_HAVE_SPNG=1 and -lspng for more than JPEG."""
    library = folder / "libfmdecode.so"
    loader = ROOT / "loader"
    sources = [*loader.glob("base/*.c"), *loader.glob("decode/*.c")]
    sources = [one for one in sources if one.stem != "imread"]  # it needs the pipeline's defaults
    for name in ("spng", "webp"):
        if f"-l{name}" not in options:
            sources = [one for one in sources if not one.stem.startswith(name.removeprefix("s"))]
    subprocess.run(
        ["cc", "-std=c17", "-O2", f"-I{ROOT / 'include'}", f"-I{loader}", "-shared", "-fPIC"]
        + [*sources, "-o", library, *options, "-ljpeg"],
        check=True,
    )
    return library


def build(folder):
    mkjpeg = folder / "mkjpeg"
    source = ROOT / "tests/support/mkjpeg.c"
    subprocess.run(["cc", "-std=c17", "-O2", source, "-o", mkjpeg, "-ljpeg", "-lm"], check=True)
    return build_library(folder), mkjpeg


# ---- files ---------------------------------------------------------------------------------------


def random_options(rng):
    largest = rng.choice((4, 20, 70, 300, 300, 900, 2500))
    width, height = rng.randint(1, largest), rng.randint(1, largest)
    if rng.random() < 0.1:
        width, height = rng.choice(((1, height), (width, 1), (2, height), (width, 2), (5, 5)))
    factor = lambda: f"{rng.randint(1, 4)}x{rng.randint(1, 4)}"
    sampling = rng.choice(
        ["444", "422", "420", "420", "440", "411", "410", "3x1", "1x4", "1x3", "4x4", "3x3"]
        + ["2x2,2x1,1x2", "1x1,2x2,2x2", "2x2,1x2,1x2", "2x2,2x1,2x1", "4x2,2x1,2x1", "2x4"]
        + [factor(), ",".join((factor(), factor(), factor()))]
    )
    options = {
        "size": f"{width}x{height}",
        "quality": rng.choice((10, 30, 50, 75, 85, 90, 95, 98, 100, rng.randint(1, 100))),
        "seed": rng.randrange(1 << 30),
        "noise": rng.choice((0, 4, 24, 100)),
        "sampling": sampling,
        "space": rng.choice(["ycc"] * 6 + ["rgb", "grey", "grey", "cmyk", "ycck"]),
        "progressive": rng.choice((0, 0, 0, 1)),
        "restart": rng.choice((0, 0, 0, 1, 4, 7, rng.randint(1, 200))),
        "optimize": rng.randint(0, 1),
        "arithmetic": int(rng.random() < 0.02),
        "orientation": rng.choice((0, 0, 0, rng.randint(1, 8))),
        "apps": rng.choice((0, 0, 0, 1, 5)),
    }
    if rng.random() < 0.15:
        options["scans"] = "split"
    return options


def make(mkjpeg, options, path):
    """The file's bytes, or None where libjpeg can't write that kind."""
    command = [mkjpeg, *(f"{key}={value}" for key, value in options.items()), path]
    done = subprocess.run(command, capture_output=True)
    return path.read_bytes() if done.returncode == 0 else None


def mutate(data, rng):
    """Flipped bits, overwritten, removed or doubled bytes, mostly in the entropy-coded data."""
    out = bytearray(data)
    start = 0 if rng.random() < 0.2 else max(0, data.rfind(b"\xff\xda"))
    for _ in range(rng.choice((1, 1, 2, 5))):
        at = rng.randrange(start, len(out))
        kind = rng.randrange(6)
        if kind <= 2:
            out[at] ^= 1 << rng.randrange(8)
        elif kind == 3:
            out[at] = rng.choice((0, 255, rng.randrange(256)))
        elif kind == 4:
            del out[at : at + rng.choice((1, 2, 50))]
        else:
            out[at:at] = rng.choice((b"\0", b"\xff\xd3", b"\xff\x01", out[at : at + 40]))
        if len(out) <= start + 2:
            break
    if rng.random() < 0.1:
        del out[rng.randrange(1, len(out)) :]
    return bytes(out)


# ---- comparison ----------------------------------------------------------------------------------


def random_box(rng, width, height):
    def span(size):
        kind = rng.randrange(6)
        n = size if kind == 0 else 1 if kind == 1 else rng.randint(1, size)
        at = rng.choice((0, size - n, rng.randint(0, size - n), rng.randint(0, size - n)))
        return at, n

    (left, n_columns), (top, n_rows) = span(width), span(height)
    return Box(left, top, n_columns, n_rows)


def pillow(data, formats=("JPEG", "MPO"), divisor=1):
    """Pillow's pixels, or the exception with which it refuses the file."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            image = Image.open(io.BytesIO(data))
            if image.format not in formats:
                return ValueError(image.format)
            if divisor > 1:
                image.draft(None, tuple(side // divisor for side in image.size))
            return numpy.asarray(image.convert("RGB"))
    except Exception as error:
        return error


class Check:
    def __init__(self, decoder, rng, formats=("JPEG", "MPO")):
        self.decoder, self.rng, self.formats = decoder, rng, formats
        self.counts = collections.Counter()
        self.refusals = collections.Counter()
        self.failures = []

    def file(self, data, name, n_crops):
        """True if at least one crop was delivered."""
        padded = (ctypes.c_ubyte * (len(data) + 64)).from_buffer_copy(data + bytes(64))
        truths = {}
        verdicts = set()
        for _ in range(n_crops):
            box, divisor = None, 1

            def choose(info):
                nonlocal box, divisor
                if self.decoder.name == "fm_jpeg" and self.rng.random() < 0.4:
                    divisor = self.rng.choice((2, 4, 8))
                if divisor > min(info.width, info.height):
                    divisor = 1
                width, height = (-(-side // divisor) for side in (info.width, info.height))
                box = random_box(self.rng, width, height)
                return (box, divisor) if divisor > 1 else box

            try:
                pixels = self.decoder.crop(padded, len(data), choose, self.rng)
            except Refused as refusal:
                status, message = refusal.args
                verdicts.add(status)
                self.refusals[NAMES.get(status, status), message.split(" at byte")[0]] += 1
                continue
            verdicts.add(0)
            if divisor not in truths:
                truths[divisor] = pillow(data, self.formats, divisor)
            self.counts["reduced crops"] += divisor > 1
            self.compare(pixels, truths[divisor], box, f"{name} 1/{divisor}", data)
        self.counts["files"] += 1
        self.counts["files taken"] += 0 in verdicts
        return 0 in verdicts

    def compare(self, pixels, truth, box, name, data):
        self.counts["crops"] += 1
        self.counts["bytes"] += pixels.size
        where = f"{name} box {box.left},{box.top} {box.width}x{box.height}"
        if isinstance(truth, Exception):
            self.fail(f"{where}: taken, but Pillow says {truth!r}", data)
            return
        part = truth[box.top : box.top + box.height, box.left : box.left + box.width]
        if not numpy.array_equal(part, pixels):
            different = (part != pixels).any(axis=2)
            rows, columns = different.any(axis=1).nonzero()[0], different.any(axis=0).nonzero()[0]
            self.fail(
                f"{where}: {different.sum()} pixels differ, rows {rows[0]}..{rows[-1]}, "
                f"columns {columns[0]}..{columns[-1]}",
                data,
            )

    def fail(self, text, data):
        path = pathlib.Path(tempfile.gettempdir()) / f"check_{self.formats[0]}_{len(self.failures)}"
        if len(self.failures) < 20:
            path.write_bytes(data)
            print("FAIL", text, path, flush=True)
        self.failures.append(text)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--crops", type=int, default=5, help="crops of a file")
    parser.add_argument("--mutants", type=int, default=0, help="damaged variants of a file")
    parser.add_argument("--photos", type=pathlib.Path)
    parser.add_argument("--library", type=pathlib.Path)
    parser.add_argument("--mkjpeg", type=pathlib.Path)
    args = parser.parse_args()
    rng = random.Random(args.seed)
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        if not (args.library and args.mkjpeg):
            args.library, args.mkjpeg = build(folder)
        intact, damaged = (Check(Decoder(args.library), rng) for _ in range(2))

        def examine(data, name):
            intact.file(data, name, args.crops)
            for k in range(args.mutants):
                damaged.file(mutate(data, rng), f"{name} mutant {k}", 2)

        photos = sorted(args.photos.rglob("*")) if args.photos else []
        for path in photos:
            if path.suffix.lower() in (".jpg", ".jpeg"):
                examine(path.read_bytes(), path.name)
        end = time.monotonic() + args.seconds
        while time.monotonic() < end:
            options = random_options(rng)
            data = make(args.mkjpeg, options, folder / "file.jpg")
            if data is None:
                intact.counts["kinds that libjpeg does not write"] += 1
                continue
            examine(data, " ".join(f"{key}={value}" for key, value in options.items()))
    for title, check in (("intact", intact), ("damaged", damaged)):
        print(title, dict(check.counts), "failures", len(check.failures))
        for (status, message), n in check.refusals.most_common(40):
            print(f"    {n:6} {status}: {message}")
    return 1 if intact.failures or damaged.failures else 0


if __name__ == "__main__":
    sys.exit(main())
