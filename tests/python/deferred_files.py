"""Image files of formats other than plain JPEG, and unusual JPEGs, for the tests of deferred images.
"""

import helpers
from PIL import Image, PngImagePlugin


def save_other_formats(root):
    """Saves one file of each kind; returns their paths by name."""
    color = Image.fromarray(helpers.pixels(50, 90))
    alpha = color.convert("RGBA")
    alpha.putalpha(Image.linear_gradient("L").resize(color.size))
    palette = color.quantize(60)
    text = PngImagePlugin.PngInfo()
    text.add_text("Title", "a text before the pixels")
    text.add_itxt("Comment", "another", zip=True)
    text.add(b"tEXt", b"After\0a text after the pixels", True)
    frames = [color, color.transpose(Image.Transpose.FLIP_LEFT_RIGHT)]
    kinds = {
        "png": (color, "png", {}),
        "png with alpha": (alpha, "png", {}),
        "png of grey": (color.convert("L"), "png", {}),
        "png of grey with alpha": (alpha.convert("LA"), "png", {}),
        "png with a palette": (palette, "png", {}),
        "png with a transparent color": (palette, "png", {"transparency": 3}),
        "png with a palette of alphas": (palette, "png", {"transparency": bytes(range(60))}),
        "png with a key color": (color, "png", {"transparency": (1, 2, 3)}),
        "png of bits": (color.convert("1"), "png", {}),
        "png of 16 bits": (color.convert("I").convert("I;16"), "png", {}),
        "png with texts": (color, "png", {"pnginfo": text, "dpi": (72, 72)}),
        "animated png": (color, "png", {"save_all": True, "append_images": frames[1:]}),
        "webp": (color, "webp", {"quality": 70}),
        "webp with alpha": (alpha, "webp", {"quality": 70}),
        "lossless webp": (color, "webp", {"lossless": True}),
        "animated webp": (color, "webp", {"save_all": True, "append_images": frames[1:]}),
        "gif": (palette, "gif", {}),
        "bmp": (color, "bmp", {}),
        "tiff": (color, "tiff", {}),
        "mpo": (color, "mpo", {"save_all": True, "append_images": frames[1:]}),
        "jpeg with a thumbnail": (color, "jpg", {"exif": _exif_with_thumbnail(), "dpi": (96, 96)}),
        "jpeg in keep": (color, "jpg", {"quality": 92, "comment": b"a comment", "icc_profile": b"p"}),
    }
    paths = {}
    for number, (name, (image, extension, options)) in enumerate(kinds.items()):
        paths[name] = root / f"other{number}.{extension}"
        image.save(paths[name], **options)
    plain = paths["jpeg in keep"].read_bytes()
    paths["jpeg with bytes after its end"] = root / "tail.jpg"
    paths["jpeg with bytes after its end"].write_bytes(plain + b"\xff\xd9 and more" * 99)
    paths["YCCK"] = root / "ycck.jpg"
    paths["YCCK"].write_bytes(_with_adobe_transform(paths["jpeg in keep"].parent))
    paths["cut png"] = root / "cut.png"
    paths["cut png"].write_bytes(paths["png"].read_bytes()[:-700])
    data = paths["webp"].read_bytes()
    paths["damaged webp"] = root / "damaged.webp"
    paths["damaged webp"].write_bytes(data[: len(data) // 2] + bytes(50) + data[len(data) // 2 + 50 :])
    return paths




def _exif_with_thumbnail():
    exif = Image.Exif()
    exif[0x0112] = 1
    exif[0x010F] = "a maker"
    return exif


def _with_adobe_transform(root):
    """A JPEG of four inks whose Adobe marker says that they are stored as YCCK."""
    path = root / "inks.jpg"
    Image.fromarray(helpers.pixels(40, 60)).convert("CMYK").save(path, quality=90)
    data = bytearray(path.read_bytes())
    at = data.find(b"Adobe")
    if at >= 0:
        data[at + 11] = 2
        return bytes(data)
    marker = b"\xff\xee\x00\x0eAdobe\x00\x64\x00\x00\x00\x00\x02"
    return bytes(data[:2]) + marker + bytes(data[2:])
