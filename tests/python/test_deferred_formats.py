"""deferred_images() with other formats than plain JPEG, all kinds of file objects, and Pillow's ways
to open, close and change images: the same as from Pillow alone."""

import copy
import gzip
import io
import pickle
import socket
import tempfile
import threading
import zipfile

import deferred_files
import helpers
import numpy as np
import pytest
from feedmill import deferred_images
from feedmill.deferred import patches, resizing
from feedmill.deferred.core import DeferredCore
from PIL import Image, ImageFile, ImageOps, JpegImagePlugin
from test_deferred import assert_same, described, needs_deferral


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    root = tmp_path_factory.mktemp("formats")
    paths = deferred_files.save_other_formats(root)
    paths["usual"] = root / "usual.jpg"
    helpers.save_jpeg(paths["usual"], 97, 60, subsampling=2)
    paths["turned"] = root / "turned.jpg"
    helpers.save_jpeg(paths["turned"], 97, 60, orientation=6)
    return paths


@pytest.fixture(scope="module")
def jpeg(files):
    return files["usual"]


# ---- formats -------------------------------------------------------------------------------------


def _state(image):
    """What a file leaves behind once it is loaded."""
    names = sorted(set(vars(image)) - {"_im", "im", "png", "fp", "_fp", "_decoder"})
    text = getattr(image, "text", None)
    return (
        image.tile, image.fp is None, image._exclusive_fp, image.readonly, image.tell(), text, names,
        getattr(image, "n_frames", 1), getattr(image, "is_animated", False), image.format,
        image.get_format_mimetype(), image.custom_mimetype, image.has_transparency_data,
    )


def _seen(path):
    image = Image.open(path)
    before = dict(image.info)
    image.load()
    return before, dict(image.info), _state(image), image


def _resized(path):
    image = Image.open(path)
    return [image.resize((70, 80), filter_) for filter_ in Image.Resampling]


def _second_frame(path):
    image = Image.open(path)
    image.seek(1)
    part = image.convert("RGB").resize((40, 40), Image.Resampling.BILINEAR)
    image.seek(0)
    return part, image.convert("RGB").resize((40, 40), Image.Resampling.BILINEAR), image.tell()


def _resized_again(path):
    image = Image.open(path).convert("RGB").resize((90, 80)).resize((60, 70), Image.Resampling.BOX)
    return image, image.resize((61, 71), box=(0.5, 0.5, 50.5, 60))


def _painted(path):
    """Writing to an image does not change what was made from it before."""
    image = Image.open(path).convert("RGB")
    small = image.resize((70, 80), Image.Resampling.BILINEAR)
    image.paste((1, 2, 3), (0, 0, 30, 30))
    return small, image.resize((70, 80), Image.Resampling.BILINEAR), image


def _verified(path):
    image = Image.open(path)
    image.verify()
    return image.convert("RGB")


USES = {
    "load": _seen,
    "resize": _resized,
    "second frame": _second_frame,
    "resize again": _resized_again,
    "paint": _painted,
    "verify": _verified,
    "convert": lambda path: Image.open(path).convert("RGB"),
    "RGBA": lambda path: Image.open(path).convert("RGBA"),
    "array": lambda path: np.asarray(Image.open(path)),
    "exif": lambda path: dict(Image.open(path).getexif()),
    "transposed by EXIF": lambda path: ImageOps.exif_transpose(Image.open(path)),
    "child images": lambda path: len(Image.open(path).get_child_images()),
    "pickle": lambda path: pickle.loads(pickle.dumps(Image.open(path))),
    "equality": lambda path: (Image.open(path) == Image.open(path), Image.open(path) == 3),
    "thumbnail": lambda path: (lambda one: (one.thumbnail((44, 44)), one))(Image.open(path)),
    "fit": lambda path: ImageOps.fit(Image.open(path).convert("RGB"), (70, 66)),
    "pad": lambda path: ImageOps.pad(Image.open(path).convert("RGB"), (70, 96), color="red"),
    "cover": lambda path: ImageOps.cover(Image.open(path).convert("RGB"), (70, 96)),
    "contain": lambda path: ImageOps.contain(Image.open(path).convert("RGB"), (70, 96)),
    "expand": lambda path: ImageOps.expand(Image.open(path).convert("RGB"), 7, "blue"),
    "border": lambda path: ImageOps.crop(Image.open(path).convert("RGB"), 5),
    "rotate": lambda path: Image.open(path).convert("RGB").rotate(33, expand=True),
}


@pytest.mark.parametrize("use", USES)
@pytest.mark.filterwarnings("ignore:Palette images")
def test_formats_give_the_same(files, use):
    for path in files.values():
        assert_same(USES[use], path)


@pytest.mark.parametrize("truncated", [False, True])
@pytest.mark.filterwarnings("ignore:Palette images")
def test_files_that_are_cut_give_the_same(files, truncated, monkeypatch):
    monkeypatch.setattr(ImageFile, "LOAD_TRUNCATED_IMAGES", truncated)
    for path in files.values():
        data = path.read_bytes()
        for n in (len(data) // 3, len(data) * 2 // 3, len(data) - 30, len(data) - 1):

            def use(data=data[:n]):
                image = Image.open(io.BytesIO(data))
                converted = image.convert("RGB")
                return converted, converted.resize((80, 70), Image.Resampling.BILINEAR)

            assert_same(use)


@pytest.mark.parametrize("limit", [400, 3000, 5000])
def test_bombs_are_found_at_the_same_call(files, limit, monkeypatch):
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", limit)
    for path in files.values():
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("warnings.warn", lambda *arguments, **named: None)
            assert_same(lambda path=path: Image.open(path).convert("RGB").resize((80, 70)))


# ---- resizing ------------------------------------------------------------------------------------


@needs_deferral
def test_boxes_are_deferred(jpeg):
    with deferred_images():
        image = Image.open(jpeg).convert("RGB")
        for part in (
            image.resize((30, 20), Image.Resampling.BILINEAR, box=(1.5, 2.5, 70, 50)),
            image.resize((30, 20), box=(1, 2, 31, 22)),
            ImageOps.fit(image, (33, 44)),
            image.crop((5, 5, 60, 50)).resize((20, 20), box=(0.25, 0.25, 40, 40)),
        ):
            assert type(vars(part)[patches._SLOT]) is DeferredCore


@pytest.mark.parametrize("kind", ["usual", "png"])
def test_odd_boxes_and_sizes_give_the_same(files, kind):
    nan, inf = float("nan"), float("inf")
    for box in (
        5, "abcd", None, (), (1, 2, 3), (1, 2, 3, 4, 5), (1, 2, 1, 9), (9, 9, 1, 1), (-1, 0, 9, 9),
        (0, 0, 900, 9), (nan, 0, 9, 9), (0, 0, inf, 9), (0, 0, 1e300, 9), (1e-9, 0, 9, 9),
        (0, 0, 1e-9, 9), (3, 3, 3.0000001, 9), (0.5, 0.5, 30.5, 20.5), (0.0, 0.0, 30.0, 20.0),
        (2, 3, 32, 23), (2.0, 3, 32, 23.0), [2, 3, 32, 23], [0.1, 0.2, 30, 20], (True, 0, 31, 20),
        np.array([1.5, 1.5, 30, 20]), ("1", 2, 3, 4), (None, 0, 9, 9), (1 + 1j, 0, 9, 9),
        (2, 3, 32.000001, 23), (47.3, 38.7, 47.9, 39.9),
    ):
        for filter_ in (Image.Resampling.BICUBIC, Image.Resampling.NEAREST):
            assert_same(
                lambda box=box, filter_=filter_: Image.open(files[kind]).convert("RGB").resize(
                    (30, 20), filter_, box
                )
            )
    for size in ((30, 0), (30.5, 20), (True, 20), [90, 80], (90, 80, 1), (70000, 1), "ab", 5):
        assert_same(
            lambda size=size: Image.open(files[kind]).convert("RGB").resize(size, box=(1, 1, 30, 20))
        )


@needs_deferral
def test_thumbnails_of_more_than_half_the_size_are_deferred(jpeg):
    with deferred_images():
        image = Image.open(jpeg)
        image.thumbnail((80, 80))
        assert type(vars(image)[patches._SLOT]) is DeferredCore
        drafted = Image.open(jpeg)
        drafted.draft("L", (90, 60))
        drafted.load()
        assert type(vars(drafted)[patches._SLOT]) is not DeferredCore


@needs_deferral
def test_images_with_pixels_are_resized_by_feedmill(files, monkeypatch):
    resized = []
    original = resizing._resized

    def count(*arguments):
        result = original(*arguments)
        resized.append(result is not None)
        return result

    monkeypatch.setattr(resizing, "_resized", count)
    image = Image.open(files["png"]).convert("RGB")
    with deferred_images():
        image.resize((80, 70))
        image.resize((80, 70), Image.Resampling.NEAREST)
    image.resize((80, 70))
    has_export = resizing.exported(image.im) is not None
    assert resized in ([has_export, False], [])  # Pillow before 11 is not asked
    assert any(resized) == has_export


@needs_deferral
def test_the_alignment_of_rows_is_respected(files):
    image = Image.open(files["png"]).convert("RGB")
    before = Image.core.get_alignment()
    try:
        Image.core.set_alignment(64)
        assert_same(lambda: Image.open(files["png"]).convert("RGB").resize((77, 70)))
        assert_same(lambda: Image.open(files["usual"]).convert("RGB").resize((77, 70)))
        assert resizing.exported(image.im) is None
    finally:
        Image.core.set_alignment(before)


# ---- file objects --------------------------------------------------------------------------------


class _Least:
    """A file object with nothing but read, seek and tell."""

    def __init__(self, data):
        self._file = io.BytesIO(data)

    def read(self, n=-1):
        return self._file.read(n)

    def seek(self, offset, whence=0):
        return self._file.seek(offset, whence)

    def tell(self):
        return self._file.tell()


class _Short(io.BytesIO):
    """Reads less than is asked for, as unbuffered files may."""

    def read(self, n=-1):
        return super().read(min(n, 1000) if n is not None and n >= 0 else n)


class _Views(io.BytesIO):
    """Reads memory that is not bytes."""

    def read(self, n=-1):
        return bytearray(super().read(n))


def _from_socket(data):
    left, right = socket.socketpair()
    thread = threading.Thread(target=lambda: (right.sendall(data), right.close()))
    thread.start()
    with left.makefile("rb") as file:
        result = Image.open(file)
        result.load()
    thread.join()
    left.close()
    return result


def _from_zip(data):
    memory = io.BytesIO()
    with zipfile.ZipFile(memory, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("image", data)
    with zipfile.ZipFile(memory) as archive, archive.open("image") as file:
        return Image.open(file).convert("RGB").resize((80, 70))


def _from_gzip(data):
    with gzip.open(io.BytesIO(gzip.compress(data))) as file:
        return Image.open(file).convert("RGB").resize((80, 70)), file.tell()


def _from_temporary(data):
    with tempfile.TemporaryFile() as file:
        file.write(data)
        file.seek(0)
        return Image.open(file).convert("RGB").resize((80, 70)), file.tell()


def _from_spooled(data):
    with tempfile.SpooledTemporaryFile() as file:
        file.write(data)
        file.seek(0)
        return Image.open(file).convert("RGB").crop((3, 4, 30, 40)), file.tell()


def _from_offset(data):
    file = io.BytesIO(b"12345678" + data)
    file.seek(8)
    return Image.open(file).convert("RGB"), file.tell()


def _by(make):
    def use(data):
        file = make(data)
        image = Image.open(file)
        converted = image.convert("RGB")
        return converted, converted.resize((60, 70)), file.tell()

    return use


FILES = {
    "BytesIO": _by(io.BytesIO),
    "least": _by(_Least),
    "short reads": _by(_Short),
    "bytearrays": _by(_Views),
    "buffered": _by(lambda data: io.BufferedReader(io.BytesIO(data))),
    "socket": _from_socket,
    "zip": _from_zip,
    "gzip": _from_gzip,
    "temporary": _from_temporary,
    "spooled": _from_spooled,
    "not at the beginning": _from_offset,
}


@pytest.mark.parametrize("kind", FILES)
@pytest.mark.filterwarnings("ignore:Palette images")
def test_file_objects_give_the_same(files, kind):
    for path in files.values():
        assert_same(FILES[kind], path.read_bytes())


@pytest.mark.parametrize("kind", ["str", "bytes", "path", "raw", "unbuffered"])
def test_names_and_raw_files_give_the_same(files, kind):
    for path in files.values():

        def use(path=path):
            if kind in ("raw", "unbuffered"):
                with open(path, "rb", buffering=0 if kind == "raw" else -1) as file:
                    return Image.open(file).convert("RGB").resize((80, 70)), file.tell()
            name = {"str": str(path), "bytes": bytes(path), "path": path}[kind]
            image = Image.open(name)
            return image.filename, image.convert("RGB").resize((80, 70))

        assert_same(use)


# ---- opening and closing -------------------------------------------------------------------------


def _closed(path):
    image = Image.open(path)
    image.load()
    image.close()
    return image.load()


def _in_with(path):
    with Image.open(path) as image:
        part = image.resize((50, 50), box=(3.5, 2.5, 40, 45))
        image.load()
        file = image.fp
    return part, file, image.fp, image.convert("RGB")


def _in_with_of_file(path):
    with open(path, "rb") as file, Image.open(file) as image:
        part = image.crop((3, 3, 40, 40))
    return part, file.closed, image.size


def _copied(path):
    image = Image.open(path)
    one, two = copy.copy(image), copy.deepcopy(image)
    image.close()
    return one, two, type(one), type(two)


def _saved(path):
    file = io.BytesIO()
    Image.open(path).convert("RGB").resize((60, 60), box=(1.5, 1.5, 40, 40)).save(file, "JPEG")
    return file.getvalue()


def _kept_quality(path):
    file = io.BytesIO()
    Image.open(path).save(file, "JPEG", quality="keep")
    return file.getvalue()


def _by_bytes(path):
    image = Image.open(path).convert("RGB").resize((60, 50))
    return Image.frombytes("RGB", image.size, image.tobytes()).resize((70, 80))


WAYS = {
    "closed": _closed,
    "with": _in_with,
    "with a file": _in_with_of_file,
    "copy": _copied,
    "save": _saved,
    "save as it is": _kept_quality,
    "frombytes": _by_bytes,
    "formats": lambda path: Image.open(path, formats=("JPEG",)).convert("RGB"),
    "wrong formats": lambda path: Image.open(path, formats=("PNG",)),
    "open for writing": lambda path: Image.open(path, "w"),
    "show in a notebook": lambda path: Image.open(path)._repr_png_(),
    "equal after a resize": lambda path: (
        Image.open(path).resize((60, 60)) == Image.open(path).resize((60, 60))
    ),
}



@pytest.mark.parametrize("way", WAYS)
def test_ways_to_open_and_close_give_the_same(files, way):
    for kind in ("usual", "turned", "mpo", "YCCK", "jpeg with a thumbnail", "png", "webp"):
        assert_same(WAYS[way], files[kind])


# ---- other classes -------------------------------------------------------------------------------


class _Own(JpegImagePlugin.JpegImageFile):
    """A user's class, which sees each load."""

    def load(self):
        self.n_loads = getattr(self, "n_loads", 0) + 1
        return super().load()

    def load_end(self):
        self.info["ended"] = True


def test_subclasses_are_left_to_pillow(jpeg):
    def use():
        image = _Own(jpeg)
        part = image.convert("RGB").resize((60, 60), box=(1.5, 1.5, 40, 40))
        return image.n_loads, dict(image.info), part, image.tile

    assert_same(use)


def test_a_users_plugin_is_left_to_pillow(jpeg, monkeypatch):
    monkeypatch.setitem(Image.OPEN, "JPEG", (_Own, Image.OPEN["JPEG"][1]))

    def use():
        image = Image.open(jpeg)
        return type(image), image.convert("RGB"), dict(image.info)

    assert_same(use)


def test_described_sees_the_fourth_byte(jpeg):
    image = Image.open(jpeg).convert("RGB")
    other = image.copy()
    other.putalpha(0)
    assert described(image) != described(other)
