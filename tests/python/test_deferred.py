"""deferred_images(): the same objects, pixels and errors as from Pillow alone, with less decoding."""

import copy
import io
import os
import pickle
import random
import re
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import deferred_files
import helpers
import numpy as np
import pytest
import torch
from feedmill import deferred_images
from feedmill.deferred import counters, patches, sources
from feedmill.deferred.core import DeferredCore
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from hypothesis.errors import InvalidArgument
from PIL import Image, ImageChops, ImageDraw, ImageEnhance, ImageFile, ImageFilter, ImageOps
from torchvision import transforms
from torchvision.transforms import functional, v2

# FEEDMILL_CHAINS sets how many random chains are run.
N_CHAINS = int(os.environ.get("FEEDMILL_CHAINS", "400"))

needs_deferral = pytest.mark.skipif(bool(patches.why_not()), reason=patches.why_not())


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """JPEGs by what is special about them."""
    root = tmp_path_factory.mktemp("deferred")
    kinds = {
        "usual": {"subsampling": 2},
        "4:4:4": {"subsampling": 0},
        "4:2:2": {"subsampling": 1},
        "progressive": {"progressive": True},
        "grey": {"mode": "L"},
        "CMYK": {"mode": "CMYK"},
        "turned": {"orientation": 6},
        "mirrored": {"orientation": 7},
        "restarts": {"restart_marker_rows": 1},
    }
    for number, (name, options) in enumerate(kinds.items()):
        path = root / f"{number}.jpg"
        helpers.save_jpeg(path, 97 + number, 60 + 3 * number, seed=number, **options)
        kinds[name] = path
    kinds["bare"] = helpers.save_bare_jpeg(root / "bare.jpg", 50, 40)
    kinds.update(deferred_files.save_other_formats(root))
    kinds["cut"] = root / "cut.jpg"
    kinds["cut"].write_bytes(kinds["usual"].read_bytes()[:-400])
    return kinds


@pytest.fixture(scope="module")
def jpeg(files):
    return files["usual"]


# ---- comparing -----------------------------------------------------------------------------------


def described(value):
    """A value as something that can be compared."""
    if isinstance(value, Image.Image):
        exact = value.tobytes("raw", "RGBX") if value.mode == "RGB" and 0 not in value.size else b""
        info = {name: repr(one) for name, one in value.info.items()}
        more = (value.format, value.readonly, getattr(value, "tile", None), info)
        return type(value), value.mode, value.size, np.asarray(value).tobytes(), exact, more
    if isinstance(value, torch.Tensor):
        return value.shape, value.stride(), value.dtype, value.contiguous().numpy().tobytes()
    if isinstance(value, np.ndarray):
        return value.shape, value.strides, value.dtype, value.flags.writeable, value.tobytes()
    if isinstance(value, tuple | list):
        return type(value), [described(one) for one in value]
    return value


def outcome(function, *arguments):
    try:
        return described(function(*arguments))
    except Exception as error:
        return type(error), re.sub(r" at 0x\w+", "", str(error))


def assert_same(function, *arguments):
    """Calls a function without and with deferred images and compares all that can be seen."""
    wanted = outcome(function, *arguments)
    with deferred_images():
        got = outcome(function, *arguments)
    assert got == wanted


# ---- chains of calls -----------------------------------------------------------------------------


def _box(draw, size):
    """A part of an image, sometimes one that is not within it or empty."""
    width, height = size
    left, top = draw(st.integers(0, width - 1)), draw(st.integers(0, height - 1))
    box = [left, top, draw(st.integers(left + 1, width)), draw(st.integers(top + 1, height))]
    odd = draw(st.integers(0, 19))
    if odd == 0:
        box[draw(st.integers(0, 3))] += draw(st.integers(-90, 90))
    elif odd == 1:
        box[draw(st.integers(0, 3))] += draw(st.floats(-0.9, 0.9))
    return tuple(box)


_SIDES = st.integers(1, 150)


def _floats(size):
    """Boxes of fractions of pixels; some are of whole ones, of all of the image, or not within."""
    xs, ys = (st.one_of(st.floats(0, one, width=32), st.integers(0, one)) for one in size)
    return st.one_of(
        st.tuples(xs, ys, xs, ys).map(
            lambda box: (min(box[0], box[2]), min(box[1], box[3]),
                         max(box[0], box[2]), max(box[1], box[3]))
        ),
        st.just((0, 0, *size)),
        st.tuples(xs, ys, xs, st.floats(-3, size[1] + 3)),
    )


def blurred(image, kind):
    """Pillow 10.4 crashes if it blurs an image without columns or rows."""
    return image.copy() if 0 in image.size else image.filter(kind)


def _steps():
    """By name: a function of an image and of draw(), which returns an image or another value."""
    noise = ImageFilter.GaussianBlur(1.5)
    return {
        "convert": lambda image, draw: image.convert("RGB"),
        "to grey": lambda image, draw: image.convert("L"),
        "to HSV": lambda image, draw: image.convert("RGB").convert("HSV"),
        "crop": lambda image, draw: image.crop(_box(draw, image.size)),
        "crop at the corner": lambda image, draw: image.crop(
            (0, 0, max(1, image.width // 2), max(1, image.height // 2))
        ),
        "resize": lambda image, draw: image.resize(
            (draw(_SIDES), draw(_SIDES)), draw(st.sampled_from(list(Image.Resampling)))
        ),
        "resize a box": lambda image, draw: image.resize(
            (draw(_SIDES), draw(_SIDES)), Image.Resampling.BILINEAR, box=_box(draw, image.size)
        ),
        "resize in two steps": lambda image, draw: image.resize(
            (draw(_SIDES), draw(_SIDES)), Image.Resampling.BICUBIC, reducing_gap=1.5
        ),
        "resize a box by any filter": lambda image, draw: image.resize(
            (draw(_SIDES), draw(_SIDES)), draw(st.sampled_from(list(Image.Resampling))),
            box=draw(_floats(image.size)), reducing_gap=draw(st.sampled_from((None, 1.0, 2.0, 3.0)))
        ),
        "draft": lambda image, draw: (
            image.draft(draw(st.sampled_from((None, "RGB", "L", "YCbCr"))),
                        draw(st.sampled_from((None, (10, 10), (40, 30), (90, 60))))),
            image,
        )[1],
        "thumbnail by any filter": lambda image, draw: (
            image.thumbnail((draw(_SIDES), draw(_SIDES)),
                            draw(st.sampled_from(list(Image.Resampling))),
                            draw(st.sampled_from((None, 1.0, 2.0, 3.0)))),
            image,
        )[1],
        "contain": lambda image, draw: ImageOps.contain(image, (draw(_SIDES), draw(_SIDES))),
        "scale": lambda image, draw: ImageOps.scale(image, draw(st.floats(0.1, 2.0))),
        "expand": lambda image, draw: ImageOps.expand(image, draw(st.integers(0, 5)), fill=3),
        "crop the border": lambda image, draw: ImageOps.crop(image, draw(st.integers(0, 9))),
        "fit a part": lambda image, draw: ImageOps.fit(
            image, (draw(_SIDES), draw(_SIDES)), draw(st.sampled_from(list(Image.Resampling))),
            draw(st.floats(0, 0.4)), (draw(st.floats(0, 1)), draw(st.floats(0, 1)))
        ),
        "to RGBA": lambda image, draw: image.convert("RGBA"),
        "seek": lambda image, draw: (image.seek(draw(st.integers(0, 1))), image)[1],
        "reduce": lambda image, draw: image.reduce(draw(st.integers(1, 4))),
        "transpose": lambda image, draw: image.transpose(draw(st.sampled_from(Image.Transpose))),
        "rotate": lambda image, draw: image.rotate(
            draw(st.sampled_from((0, 90, 180, 270, 33))), expand=draw(st.booleans())
        ),
        "copy": lambda image, draw: image.copy(),
        "load": lambda image, draw: (image.load(), image)[1],
        "load and use": lambda image, draw: (image.load()[0, 0], image)[1],
        "filter": lambda image, draw: blurred(image, noise),
        "paste": lambda image, draw: (image.paste(7, (1, 1, 5, 4)), image)[1],
        "thumbnail": lambda image, draw: (image.thumbnail((draw(_SIDES), draw(_SIDES))), image)[1],
        "transposed by EXIF": lambda image, draw: ImageOps.exif_transpose(image),
        "mirror": lambda image, draw: ImageOps.mirror(image),
        "fit": lambda image, draw: ImageOps.fit(image, (draw(_SIDES), draw(_SIDES))),
        "pad": lambda image, draw: ImageOps.pad(image, (draw(_SIDES), draw(_SIDES))),
        "contrast": lambda image, draw: ImageEnhance.Contrast(image).enhance(1.3),
        "deepcopy": lambda image, draw: copy.deepcopy(image),
        "torchvision crop": lambda image, draw: functional.resized_crop(
            image, draw(st.integers(-5, 40)), draw(st.integers(-5, 40)), 30, 40, [24, 24]
        ),
        "look": lambda image, draw: (described(image), image)[1],
        "array": lambda image, draw: Image.fromarray(np.array(image)),
    }


_STEPS = _steps()
# What recipes do is drawn as often as everything else.
_NAMES = st.sampled_from([*_STEPS, *(["convert", "crop", "resize", "transpose", "copy"] * 4)])


class _Replay:
    """Draws from hypothesis first, and gives the same values and errors in the same order again."""

    def __init__(self, data):
        self._data, self._values, self._next = data, [], 0

    def __call__(self, strategy):
        if self._next == len(self._values):
            try:
                self._values.append(self._data.draw(strategy))
            except InvalidArgument as error:  # a part of an image without pixels
                self._values.append(error)
        self._next += 1
        value = self._values[self._next - 1]
        if isinstance(value, InvalidArgument):
            raise value
        return value

    def again(self):
        self._next = 0


def _run_chain(path, steps, draw):
    """Every image of the chain is looked at when the chain is over, and not before."""
    images = [Image.open(path)]
    errors = []
    for name in steps:
        try:
            images.append(_STEPS[name](images[-1], draw))
        except Exception as error:
            errors.append((name, type(error), str(error)))
            break
    return [outcome(lambda one=one: one) for one in images], errors


def test_random_chains_give_the_same(files):
    @settings(max_examples=N_CHAINS, deadline=None, database=None, phases=(Phase.explicit, Phase.generate),
              suppress_health_check=list(HealthCheck))
    @given(st.data())
    def give_the_same(data):
        path = files[data.draw(st.sampled_from(sorted(files)))]
        steps = data.draw(st.lists(_NAMES, min_size=1, max_size=6))
        draw = _Replay(data)
        wanted = _run_chain(path, steps, draw)
        draw.again()
        with deferred_images():
            assert _run_chain(path, steps, draw) == wanted

    give_the_same()


# ---- the API -------------------------------------------------------------------------------------


def _opened(path):
    return Image.open(path)


def _rgb(path):
    return Image.open(path).convert("RGB")


def _drawn(path):
    image = _rgb(path)
    ImageDraw.Draw(image).rectangle((1, 1, 30, 30), fill=5)
    return image


def _set_pixel(path):
    image = _rgb(path)
    access = image.load()
    before = access[3, 4]
    access[3, 4] = (1, 2, 3)
    return before, image


def _pasted_into(path):
    image = _rgb(path)
    part = image.crop((5, 5, 50, 50))
    image.paste((9, 9, 9), (0, 0, 40, 40))
    return image, part


def _two_parts(path):
    image = _opened(path)
    first = image.crop((0, 0, 50, 50))
    return first, image.crop((10, 10, 60, 40)).resize((33, 33)), image


def _closed_early(path):
    with Image.open(path) as image:
        pass
    return image.convert("RGB")


def _used_in_with(path):
    with open(path, "rb") as file:
        return Image.open(file).convert("RGB")


def _closed_late(path):
    image = _opened(path)
    converted = image.convert("RGB")
    image.close()
    return converted


def _used_after_close(path):
    image = _rgb(path)
    image.close()
    return image.size, image.tobytes()


def _state_of_file(path):
    image = _opened(path)
    image.load()
    names = sorted(set(vars(image)) - {"_im", "im"})
    return image.fp, image.tile, image.readonly, image.format, image.filename == str(path), names


def _verified(path):
    image = _opened(path)
    image.verify()
    return _rgb(path)


def _drafted(path):
    image = _opened(path)
    return image.draft("RGB", (30, 20)), image.convert("RGB")


def _drafted_late(path):
    image = _opened(path)
    image.load()
    return image.draft("RGB", (30, 20)), image.convert("RGB")


def _saved(path):
    file = io.BytesIO()
    _rgb(path).save(file, "PNG")
    return file.getvalue()


def _alpha(path):
    image = _rgb(path)
    image.putalpha(9)
    return image


def _pad_if_needed(path):
    torch.manual_seed(1)
    return transforms.RandomCrop(130, pad_if_needed=True)(_rgb(path))


USES = {
    "open": _opened,
    "convert": _rgb,
    "draw": _drawn,
    "pixel access": _set_pixel,
    "paste": _pasted_into,
    "two parts": _two_parts,
    "file closed early": _closed_early,
    "file closed by with": _used_in_with,
    "image closed late": _closed_late,
    "image used after close": _used_after_close,
    "state of the file": _state_of_file,
    "verify": _verified,
    "draft": _drafted,
    "draft after load": _drafted_late,
    "save": _saved,
    "putalpha": _alpha,
    "types": lambda path: (type(_opened(path)), type(_rgb(path)), _rgb(path).__class__.__mro__),
    "repr": lambda path: repr(_rgb(path)).rpartition(" at ")[0],
    "equality": lambda path: (_rgb(path) == _rgb(path), _opened(path) == _rgb(path)),
    "hash": lambda path: hash(_rgb(path)),
    "names of attributes": lambda path: sorted(set(vars(_rgb(path)))),
    "copy.copy": lambda path: copy.copy(_rgb(path)),
    "deepcopy of a file": lambda path: copy.deepcopy(_opened(path)),
    "pickle": lambda path: pickle.loads(pickle.dumps(_rgb(path).crop((3, 4, 40, 30)))),
    "pickle of a file": lambda path: pickle.loads(pickle.dumps(_opened(path))),
    "__getstate__": lambda path: _rgb(path).__getstate__()[1:],
    "crop outside": lambda path: _rgb(path).crop((-5, -5, 50, 50)),
    "crop of fractions": lambda path: _rgb(path).crop((1.5, 2.5, 50.4, 40.6)),
    "crop of nothing": lambda path: _rgb(path).crop((5, 5, 5, 9)).size,
    "crop the wrong way": lambda path: _rgb(path).crop((9, 9, 1, 1)),
    "crop of text": lambda path: _rgb(path).crop("abcd"),
    "crop of the whole": lambda path: _rgb(path).crop((0, 0, *_rgb(path).size)),
    "resize to nothing": lambda path: _rgb(path).resize((0, 5)),
    "resize to less": lambda path: _rgb(path).resize((-3, 5)),
    "resize by an unknown filter": lambda path: _rgb(path).resize((3, 5), 77),
    "resize to floats": lambda path: _rgb(path).resize((30.5, 20)),
    "resize to a list": lambda path: _rgb(path).resize([30, 20]),
    "resize to an array": lambda path: _rgb(path).resize(np.array([30, 20])),
    "resize to its size": lambda path: _rgb(path).resize(_rgb(path).size),
    "resize of a box": lambda path: _rgb(path).resize((50, 40), 2, box=(3.3, 4.4, 80, 50)),
    "resize twice": lambda path: _rgb(path).resize((50, 40)).resize((20, 30)),
    "enlarge and crop": lambda path: _rgb(path).resize((900, 700)).crop((5, 5, 800, 600)),
    "transpose by an unknown method": lambda path: _rgb(path).transpose(99),
    "reduce": lambda path: _rgb(path).reduce(2),
    "thumbnail of a file": lambda path: (lambda i: (i.thumbnail((30, 30)), i))(_opened(path)),
    "load of a copy": lambda path: type(_rgb(path).load()),
    "getpixel": lambda path: _opened(path).getpixel((5, 5)),
    "getdata": lambda path: list(_rgb(path).split()[1].tobytes())[:9],
    "getbbox": lambda path: _rgb(path).getbbox(),
    "histogram": lambda path: _rgb(path).histogram(),
    "entropy": lambda path: _rgb(path).entropy(),
    "getim": lambda path: str(_rgb(path).getim())[:20],
    "im": lambda path: (type(_rgb(path).im), _rgb(path).im.size),
    "tobytes as BGR": lambda path: _rgb(path).tobytes("raw", "BGR"),
    "tobytes": lambda path: _rgb(path).tobytes(),
    "tobytes by an unknown encoder": lambda path: _rgb(path).tobytes("no such encoder"),
    "array": lambda path: np.array(_rgb(path)),
    "asarray": lambda path: np.asarray(_opened(path)),
    "array interface": lambda path: _rgb(path).__array_interface__,
    "mode YCbCr": lambda path: _opened(path).convert("YCbCr"),
    "mode P": lambda path: _rgb(path).convert("P"),
    "matrix": lambda path: _rgb(path).convert("L", (0.3, 0.5, 0.2, 0)),
    "quantize": lambda path: _rgb(path).quantize(5),
    "point": lambda path: _rgb(path).point(lambda value: 255 - value),
    "blend": lambda path: Image.blend(_rgb(path), _rgb(path), 0.5),
    "composite": lambda path: Image.composite(_rgb(path), _rgb(path).rotate(9),
                                              _rgb(path).convert("L")),
    "merge": lambda path: Image.merge("RGB", _rgb(path).split()[::-1]),
    "ImageChops": lambda path: ImageChops.invert(_rgb(path)),
    "blur": lambda path: _rgb(path).filter(ImageFilter.GaussianBlur(2)),
    "autocontrast": lambda path: ImageOps.autocontrast(_rgb(path)),
    "exif": lambda path: dict(_opened(path).getexif()),
    "exif of the transposed": lambda path: dict(ImageOps.exif_transpose(_opened(path)).getexif()),
    "to_tensor": lambda path: functional.to_tensor(_rgb(path)),
    "pil_to_tensor": lambda path: functional.pil_to_tensor(_rgb(path)),
    "v2 to_image": lambda path: torch.as_tensor(v2.functional.to_image(_rgb(path))),
    "FiveCrop": lambda path: transforms.FiveCrop(30)(_rgb(path)),
    "padded crop": _pad_if_needed,
    "jitter": lambda path: functional.adjust_hue(_rgb(path), 0.2),
}


@pytest.mark.parametrize("use", USES)
def test_uses_of_the_api_are_the_same(files, use):
    for kind in ("usual", "grey", "CMYK", "turned", "cut", "bare", "png"):
        assert_same(USES[use], files[kind])


# ---- what is put off -----------------------------------------------------------------------------


@needs_deferral
def test_recipes_decode_what_they_need(jpeg):
    account = counters.Counters()
    with counters.counted_in(account), deferred_images():
        image = _rgb(jpeg)
        image.load()
        part = image.crop((10, 10, 50, 50)).transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        small = part.resize((20, 20)).crop((2, 2, 18, 18))
        assert type(vars(small)[patches._SLOT]) is DeferredCore
        assert account["parts"] == 0
        np.asarray(small)
    assert (account["images"], account["parts"], account["whole"]) == (1, 1, 0)
    assert account["parts_ns"] > 0


@needs_deferral
def test_what_became_of_images_is_counted(files):
    account = counters.Counters()
    with counters.counted_in(account), deferred_images():
        np.asarray(_rgb(files["usual"]))
        _rgb(files["usual"]).filter(ImageFilter.SMOOTH)
        _rgb(files["usual"]).filter(ImageFilter.SMOOTH)
        _rgb(files["usual"]).crop((-9, 0, -1, 9))
        with pytest.raises(OSError, match="truncated"):
            _rgb(files["cut"])
    stats = counters.as_stats(account.values())
    assert (stats["deferred_images"], stats["deferred_whole"]) == (4, 4)
    assert stats["deferred_ordinary"] == 1 and stats["deferred_ordinary_ns"] > 0
    assert stats["deferred_endings"] == "filter 2, crop 1"


@needs_deferral
def test_images_live_on_after_the_block(jpeg):
    with deferred_images():
        image = _rgb(jpeg)
    part = image.crop((3, 4, 50, 40))
    assert type(vars(part)[patches._SLOT]) is DeferredCore
    assert described(part) == described(_rgb(jpeg).crop((3, 4, 50, 40)))


@needs_deferral
def test_images_opened_outside_of_the_block_are_ordinary(jpeg):
    def is_deferred():
        return type(vars(_rgb(jpeg))[patches._SLOT]) is DeferredCore

    with deferred_images():
        with deferred_images():
            assert is_deferred()
        assert is_deferred()
    assert not is_deferred()
    with pytest.raises(KeyError), deferred_images():
        raise KeyError
    assert not is_deferred()


@needs_deferral
def test_other_threads_see_nothing(jpeg):
    kinds = []
    with deferred_images():
        thread = threading.Thread(
            target=lambda: kinds.append(type(vars(_rgb(jpeg))[patches._SLOT]))
        )
        thread.start()
        thread.join()
        kinds.append(type(vars(_rgb(jpeg))[patches._SLOT]))
    assert kinds[0] is not DeferredCore
    assert kinds[1] is DeferredCore


def test_threads_share_an_image(jpeg):
    wanted = [np.asarray(_rgb(jpeg).crop((10, 10, 90, 55)).resize((50, 50))),
              np.asarray(_rgb(jpeg).crop((10, 10, 90, 55)).filter(ImageFilter.BLUR))]
    for _ in range(20):
        with deferred_images():
            part = _rgb(jpeg).crop((10, 10, 90, 55))

            def use(number, part=part):
                return np.asarray(part.filter(ImageFilter.BLUR) if number % 2
                                  else part.resize((50, 50)))

            with ThreadPoolExecutor(8) as pool:
                for number, got in enumerate(pool.map(use, range(16))):
                    assert np.array_equal(got, wanted[number % 2])


def test_a_child_of_a_fork_has_its_own_locks(jpeg):
    """Another thread holds the locks at the fork."""
    with deferred_images():
        part = _rgb(jpeg).crop((10, 10, 50, 40))
        holding, done = threading.Event(), threading.Event()

        def hold():
            with ExitStack() as stack:
                for one in sources._locks:
                    stack.enter_context(one)
                holding.set()
                done.wait()

        thread = threading.Thread(target=hold)
        thread.start()
        holding.wait()

        def use():
            np.asarray(part)
            with deferred_images():
                np.asarray(_rgb(jpeg))

        try:
            assert helpers.in_child(use) == 0
        finally:
            done.set()
            thread.join()


# ---- files ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("after", [b"", b"\0" * 10, b"x" * 200_000])
def test_file_objects_are_left_where_pillow_leaves_them(jpeg, after):
    data = jpeg.read_bytes()

    def position(make):
        file = make()
        file.seek(3)
        image = Image.open(file)
        image.load()
        return file.tell(), file.closed, image

    assert_same(position, lambda: io.BytesIO(data + after))


class _WithoutTell(io.BytesIO):
    def tell(self):
        raise OSError("not here")


def test_file_objects_without_tell(jpeg):
    data = jpeg.read_bytes()
    assert_same(lambda: Image.open(_WithoutTell(data)).convert("RGB"))
    assert_same(lambda: Image.open(_WithoutTell(data[:-300])).convert("RGB"))


class _Limited(io.BytesIO):
    """A file that fails after some reads."""

    n_reads = 3

    def read(self, *arguments):
        self.n_reads -= 1
        if self.n_reads < 0:
            raise OSError("the line is cut")
        return super().read(*arguments)


def test_errors_of_file_objects_are_passed_on(jpeg):
    data = jpeg.read_bytes()
    for n_reads in range(40):

        def read(n_reads=n_reads):
            file = _Limited(data)
            file.n_reads = n_reads
            return Image.open(file).convert("RGB").crop((1, 2, 30, 40))

        wanted = outcome(read)
        with deferred_images():
            got = outcome(read)
        # Pillow reads a file in pieces and needs other numbers of reads than feedmill.
        assert got == wanted or OSError in (got[0], wanted[0])


@pytest.mark.parametrize("truncated", [False, True])
def test_damaged_files_give_the_same(files, truncated, monkeypatch):
    monkeypatch.setattr(ImageFile, "LOAD_TRUNCATED_IMAGES", truncated)
    chance = random.Random(3)
    originals = [files[name].read_bytes() for name in ("usual", "progressive", "grey", "restarts")]
    for number in range(200):
        data = bytearray(originals[number % 4])
        kind = number % 3
        if kind == 0:
            del data[chance.randrange(4, len(data)) :]
        elif kind == 1:
            for _ in range(chance.choice((1, 1, 3, 20))):
                data[chance.randrange(len(data))] = chance.randrange(256)
        else:
            at = chance.randrange(len(data))
            del data[at : at + chance.randrange(1, 300)]

        def use(number=number, data=bytes(data)):
            image = Image.open(io.BytesIO(data))
            stage = "converted"
            try:
                image = image.convert("RGB")
                stage = "cropped"
                width, height = image.size
                if number % 2:
                    image = image.crop((width // 4, height // 4, width // 2 + 1, height // 2 + 1))
                image = image.resize((20, 20), Image.Resampling.BILINEAR)
                stage = "seen"
                return np.asarray(image)
            except Exception as error:
                return stage, type(error), str(error)

        assert_same(use)


def test_bombs_are_found_at_the_same_call(jpeg, monkeypatch):
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 1000)
    assert_same(lambda: _rgb(jpeg).crop((0, 0, 60, 50)))
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 400)
    assert_same(lambda: _rgb(jpeg))
