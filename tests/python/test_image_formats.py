"""PNG and WebP: the pixels of Pillow's convert("RGB"), and Pillow's result for damaged files."""

import io
import random
import struct
import sys
import zlib
from pathlib import Path

import feedmill
import helpers
import pytest
import torch
from feedmill._ops import native
from helpers import compose, native_loader
from PIL import Image
from torchvision import transforms as T
from torchvision.datasets import ImageFolder

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))

import make_png

WHOLE = compose(T.Resize((24, 24)), T.PILToTensor())
CROP = compose(T.RandomResizedCrop(16), T.RandomHorizontalFlip(), T.ToTensor())
SMOOTH = Image.linear_gradient("L").resize((53, 41))

needs_png = pytest.mark.skipif("PNG" not in native.formats(), reason="built without libspng")
needs_webp = pytest.mark.skipif("WebP" not in native.formats(), reason="built without libwebp")


def write(folder, files):
    folder.mkdir(parents=True, exist_ok=True)
    for name, data in files.items():
        (folder / name).write_bytes(data)


def webp(mode, **options):
    image = Image.merge("RGBA", [SMOOTH, SMOOTH.rotate(90), SMOOTH.rotate(180), SMOOTH])
    out = io.BytesIO()
    image.convert(mode).save(out, "WEBP", **options)
    return out.getvalue()


def check_pixels(root, transform, n_native):
    """Compares every image with torchvision's. Expects n_native of them to be decoded natively."""
    dataset = ImageFolder(str(root), transform)
    loader = native_loader(dataset, batch_size=7, threads=2, seed=5)
    index = 0
    for images, _ in loader:
        for image in images:
            wanted = helpers.reference(loader, index, 0)
            assert torch.equal(image, wanted), dataset.samples[index][0]
            index += 1
    stats = loader.stats()
    assert (stats.samples, stats.decode.native_samples) == (len(dataset), n_native)
    assert stats.decode.fallback_samples == len(dataset) - n_native
    return stats


@needs_png
@pytest.mark.parametrize("transform", [WHOLE, CROP])
def test_png_of_every_kind(tmp_path, transform):
    rng = random.Random(7)
    files = {}
    for color, (_, depths) in make_png.KINDS.items():
        for bits in depths:
            for interlaced in (False, True):
                data = make_png.make(rng, 37, 29, color, bits, interlaced, transparent=bits == 8)
                files[f"{color}_{bits}_{interlaced}.png"] = data
    write(tmp_path / "c", files)
    # 16-bit grey PNGs go through Pillow.
    stats = check_pixels(tmp_path, transform, len(files) - 2)
    assert stats.decode.fallback_kind == 2


@needs_png
def test_png_with_other_chunks(tmp_path):
    rng = random.Random(1)
    make = make_png.make
    chunk = make_png.chunk
    bomb = zlib.compress(bytes(3 << 20))
    natively = {
        "gamma": chunk(b"gAMA", struct.pack(">I", 45455)),
        "profile": chunk(b"iCCP", b"icc\0\0" + zlib.compress(rng.randbytes(3000))),
        "text": chunk(b"tEXt", b"Comment\0" + bytes(5000)),
        "private": chunk(b"prVt", bytes(300)),
    }
    for_pillow = {
        "animated": chunk(b"acTL", struct.pack(">II", 1, 0)),
        "long_text": chunk(b"zTXt", b"Comment\0\0" + zlib.compress(rng.randbytes(2000))),
    }
    files = {name: make(rng, 20, 30, 2, 8, before=data)
             for name, data in {**natively, **for_pillow}.items()}
    files["palette_lacks_colors"] = make(random.Random(3), 20, 30, 3, 8, n_palette=9)
    write(tmp_path / "good" / "c", {f"{name}.png": data for name, data in files.items()})
    check_pixels(tmp_path / "good", WHOLE, len(natively))
    # Pillow refuses a text and a profile that are too large when decompressed.
    for kind, data in ((b"zTXt", b"Comment\0\0" + bomb), (b"iCCP", b"icc\0\0" + bomb)):
        root = tmp_path / kind.decode()
        write(root / "c", {"0.png": make(rng, 20, 30, 2, 8, before=chunk(kind, data))})
        with pytest.raises(ValueError, match="MAX_TEXT_CHUNK"):
            list(native_loader(ImageFolder(str(root), WHOLE)))


@needs_webp
@pytest.mark.parametrize("transform", [WHOLE, CROP])
def test_webp_of_every_kind(tmp_path, transform):
    files = {}
    for mode in ("RGB", "RGBA", "L", "P"):
        for lossless in (False, True):
            files[f"{mode}_{lossless}.webp"] = webp(mode, lossless=lossless, quality=60)
    files["exact.webp"] = webp("RGBA", lossless=True, exact=True)
    files["extended.webp"] = webp("RGB", exif=b"Exif\0\0II*\0", icc_profile=bytes(100), xmp=b"<x/>")
    animated = webp("RGB", save_all=True, append_images=[SMOOTH.convert("RGB")])
    write(tmp_path / "c", {**files, "zz_animated.webp": animated})
    stats = check_pixels(tmp_path, transform, len(files))
    assert stats.decode.fallback_kind == 1


@needs_png
@needs_webp
def test_large_images_are_decoded_in_steps(tmp_path):
    """WebPs that libwebp is given in parts, and interlaced PNGs, which are buffered whole."""
    image = SMOOTH.resize((1900, 1300)).convert("RGB")
    image.putpixel((1899, 1299), (1, 2, 3))
    (tmp_path / "c").mkdir()
    image.save(tmp_path / "c" / "lossy.webp")
    image.save(tmp_path / "c" / "lossless.webp", lossless=True, method=0, quality=0)
    image.save(tmp_path / "c" / "plain.png", compress_level=1)
    check_pixels(tmp_path, CROP, 3)


@needs_png
@needs_webp
def test_the_content_and_not_the_name_tells_the_format(tmp_path):
    """Files with a wrong suffix are decoded by their content."""
    out = io.BytesIO()
    SMOOTH.convert("RGB").save(out, "JPEG")
    png = make_png.make(random.Random(2), 30, 20, 2, 8)
    write(tmp_path / "c", {"a.jpg": png, "b.png": webp("RGB"), "c.webp": out.getvalue()})
    check_pixels(tmp_path, WHOLE, 3)


@needs_png
@needs_webp
@pytest.mark.parametrize("suffix", ["png", "webp"])
def test_a_folder_of_png_or_webp_files_is_native(tmp_path, suffix):
    for i in range(4):
        (tmp_path / "c").mkdir(exist_ok=True)
        SMOOTH.rotate(i).convert("RGB").save(tmp_path / "c" / f"{i}.{suffix}")
    assert feedmill.DataLoader(ImageFolder(str(tmp_path), WHOLE)).explain().startswith("native")


def damaged(data, rng):
    """The data with bytes flipped, overwritten, removed or cut off."""
    out = bytearray(data)
    at = rng.randrange(len(out))
    kind = rng.randrange(4)
    if kind == 0:
        out[at] ^= 1 << rng.randrange(8)
    elif kind == 1:
        out[at] = rng.randrange(256)
    elif kind == 2:
        del out[at : at + 3]
    else:
        del out[at:]
    return bytes(out)


def outcome(make):
    try:
        return make()
    except Exception as error:
        return type(error)


class OneFile:
    """A dataset of encoded images in memory, for torch's path and for the native one."""

    def __init__(self, files):
        self.files = files
        self.transform = T.PILToTensor()

    def __len__(self):
        return len(self.files)

    def feedmill_item(self, index):
        return self.files[index], index

    def __getitem__(self, index):
        return self.transform(Image.open(io.BytesIO(self.files[index])).convert("RGB")), index


def check_outcomes(dataset):
    """Compares each sample, or its error, with torch's path. Returns the number decoded natively."""
    loader = native_loader(dataset, batch_size=None)
    iterator = iter(loader)
    for index in range(len(dataset)):
        got = outcome(lambda: next(iterator)[0])
        wanted = outcome(lambda: dataset[index][0])
        if isinstance(wanted, type):
            assert got is wanted, index
        else:
            assert torch.equal(got, wanted), index
    return loader.stats().decode.native_samples


@needs_webp
def test_flags_in_the_header_of_extended_webp():
    """The decoder interface that Pillow uses refuses some combinations."""
    whole = webp("RGBA", exif=b"Exif\0\0II*\0")
    at = whole.index(b"VP8X") + 8
    dataset = OneFile([whole[:at] + bytes([flags]) + whole[at + 1 :] for flags in range(256)])
    dataset.transform = compose(T.Resize((9, 9)), T.PILToTensor())
    assert check_outcomes(dataset) >= 16


@needs_webp
def test_sizes_in_the_header_of_extended_webp():
    """They may be larger than that of any picture."""
    whole = webp("RGBA", exif=b"Exif\0\0II*\0")
    at = whole.index(b"VP8X") + 12
    sizes = [(60, 50), (1, 1), (16383, 1), (16384, 1), (1, 16384), (65501, 1), (67112, 2), (1, 1 << 24)]
    numbers = [b"".join((side - 1).to_bytes(3, "little") for side in size) for size in sizes]
    dataset = OneFile([whole, *(whole[:at] + number + whole[at + 6 :] for number in numbers)])
    dataset.transform = compose(T.Resize((9, 9)), T.PILToTensor())
    assert check_outcomes(dataset) >= 1


@pytest.mark.parametrize(
    "kind", ["png", "interlaced", "palette", "lossy", "lossless", "alpha", "cmyk"]
)
def test_damaged_files_give_pillows_pixels_or_error(kind):
    rng = random.Random(kind)
    if kind == "cmyk":
        out = io.BytesIO()
        inks = [SMOOTH, SMOOTH.rotate(90), SMOOTH.rotate(180), SMOOTH]
        Image.merge("CMYK", inks).save(out, "JPEG")
        whole = out.getvalue()
    elif kind in ("lossy", "lossless", "alpha"):
        whole = webp("RGBA" if kind == "alpha" else "RGB", lossless=kind == "lossless")
    else:
        whole = make_png.make(rng, 53, 41, 3 if kind == "palette" else 2, 8, kind == "interlaced")
    dataset = OneFile([whole, *(damaged(whole, rng) for _ in range(120))])
    dataset.transform = compose(T.Resize((41, 53)), T.PILToTensor())
    assert check_outcomes(dataset) >= 1
