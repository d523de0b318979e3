"""Makes PNGs of every kind, including those that Pillow does not write: make(rng, ...) -> bytes."""

from __future__ import annotations

import random
import struct
import zlib

# Color type: (samples per pixel, allowed bits per sample).
KINDS = {
    0: (1, (1, 2, 4, 8, 16)),
    2: (3, (8, 16)),
    3: (1, (1, 2, 4, 8)),
    4: (2, (8, 16)),
    6: (4, (8, 16)),
}
# The passes of Adam7: first column, first row, column step, row step.
PASSES = ((0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4), (1, 0, 2, 2),
          (0, 1, 1, 2))


def chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(
        ">I", zlib.crc32(kind + data)
    )


def _filtered(rng: random.Random, rows: list[bytes], pixel_bytes: int) -> bytes:
    """The rows, each with a random filter."""
    before = bytes(len(rows[0])) if rows else b""
    out = bytearray()
    for row in rows:
        kind = rng.randrange(5)
        out.append(kind)
        for i, value in enumerate(row):
            a = row[i - pixel_bytes] if i >= pixel_bytes else 0
            b = before[i]
            c = before[i - pixel_bytes] if i >= pixel_bytes else 0
            out.append((value - _predicted(kind, a, b, c)) & 255)
        before = row
    return bytes(out)


def _predicted(kind: int, a: int, b: int, c: int) -> int:
    if kind < 4:
        return (0, a, b, (a + b) // 2)[kind]
    guess = a + b - c
    return min((a, b, c), key=lambda one: abs(guess - one))


def _packed(samples: list[int], bits: int) -> bytes:
    """A row's samples as bytes, with the first sample in the upper bits."""
    if bits == 16:
        return struct.pack(f">{len(samples)}H", *samples)
    value = 0
    for one in samples:
        value = value << bits | one
    n_bits = len(samples) * bits
    return (value << (-n_bits % 8)).to_bytes((n_bits + 7) // 8, "big")


def _image(rng: random.Random, width: int, height: int, n: int, bits: int) -> list[list[int]]:
    """Rows of samples: noise, or a ramp, which compresses well."""
    most = (1 << bits) - 1
    if rng.random() < 0.5:
        return [[rng.randint(0, most) for _ in range(width * n)] for _ in range(height)]
    step = rng.randint(1, most)
    return [[(x * step + y * 7) & most for x in range(width * n)] for y in range(height)]


def make(
    rng: random.Random,
    width: int,
    height: int,
    color: int,
    bits: int,
    interlaced: bool = False,
    transparent: bool = False,
    n_palette: int | None = None,
    before: bytes = b"",
    after: bytes = b"",
) -> bytes:
    """A PNG of random pixels.

    Args:
        color, bits: color type and bit depth, as in IHDR.
        transparent: adds a tRNS chunk if the color type allows it.
        n_palette: number of colors in the palette. None: as many as the indices can name.
        before, after: chunks before the palette and after the image data.
    """
    n = KINDS[color][0]
    image = _image(rng, width, height, n, bits)
    pixel_bytes = max(1, n * bits // 8)
    raw = b""
    for left, top, dx, dy in PASSES if interlaced else ((0, 0, 1, 1),):
        rows = []
        for y in range(top, height, dy):
            row = [one for x in range(left, width, dx) for one in image[y][x * n : x * n + n]]
            if row:
                rows.append(_packed(row, bits))
        raw += _filtered(rng, rows, pixel_bytes)
    packed = zlib.compress(raw, rng.choice((0, 1, 6, 9)))
    out = b"\x89PNG\r\n\x1a\n"
    out += chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, bits, color, 0, 0, interlaced))
    out += before
    if color == 3:
        out += chunk(b"PLTE", rng.randbytes(3 * (n_palette or 1 << bits)))
    if transparent and color in (0, 2, 3):
        length = rng.randint(1, n_palette or 1 << bits) if color == 3 else (2, 0, 6)[color]
        out += chunk(b"tRNS", rng.randbytes(length))
    n_parts = rng.choice((1, 1, 2, 5))
    cuts = sorted(rng.randint(0, len(packed)) for _ in range(n_parts - 1))
    for begin, end in zip([0, *cuts], [*cuts, len(packed)]):
        out += chunk(b"IDAT", packed[begin:end])
    return out + after + chunk(b"IEND", b"")


def ancillary(rng: random.Random) -> bytes:
    """Random ancillary chunks, also invalid ones, which must not change pixels."""
    profile = zlib.compress(rng.randbytes(rng.choice((0, 200, 3000))))
    known = [
        chunk(b"gAMA", struct.pack(">I", rng.choice((45455, 100000, 0)))),
        chunk(b"cHRM", rng.randbytes(32)),
        chunk(b"sRGB", bytes([rng.randrange(6)])),
        chunk(b"pHYs", rng.randbytes(8) + bytes([rng.randrange(2)])),
        chunk(b"iCCP", b"icc\0\0" + profile),
        chunk(b"tEXt", b"Comment\0" + rng.randbytes(30)),
        chunk(b"zTXt", b"Comment\0\0" + zlib.compress(bytes(500))),
        chunk(b"iTXt", b"XML:com.adobe.xmp\0\0\0\0\0" + b"<x/>" * 40),
        chunk(b"iTXt", b"Comment\0\1\0\0\0" + zlib.compress(bytes(900))),
        chunk(b"eXIf", b"II*\0" + rng.randbytes(20)),
        chunk(b"tIME", rng.randbytes(7)),
        chunk(b"sBIT", rng.randbytes(3)),
        chunk(b"prVt", rng.randbytes(rng.choice((0, 5, 500)))),
        chunk(b"gAMA", b"\0"),
        chunk(b"zTXt", b"Comment\0\0" + zlib.compress(bytes(3 << 20))),
        chunk(b"iCCP", b"icc\0\0" + zlib.compress(bytes(3 << 20))),
        chunk(b"iCCP", b"icc\0\0" + rng.randbytes(2000)),
    ]
    return b"".join(rng.sample(known, rng.randint(0, 3)))
