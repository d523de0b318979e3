"""Deferred images in unusual hands: replaced files and functions, images that are kept, signal
handlers, and changes in place."""

import copy
import gc
import io
import os
import pickle
import signal
import subprocess
import sys
import textwrap
import threading
import time

import conftest  # noqa: F401  makes torchvision importable
import feedmill
import helpers
import numpy as np
import pytest
from feedmill import deferred_images
from feedmill.deferred import counters, held, patches, sources
from feedmill.deferred.core import DeferredCore
from PIL import Image, ImageDraw, ImageFile, JpegImagePlugin
from test_deferred import assert_same

pytestmark = pytest.mark.skipif(bool(patches.why_not()), reason=patches.why_not())


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    root = tmp_path_factory.mktemp("unusual")
    kinds = {
        "usual": {"subsampling": 2},
        "other": {"subsampling": 2},
        "grey": {"mode": "L"},
        "CMYK": {"mode": "CMYK"},
        "progressive": {"progressive": True},
    }
    for number, (name, options) in enumerate(kinds.items()):
        kinds[name] = root / f"{number}.jpg"
        helpers.save_jpeg(kinds[name], 97, 60, seed=number, **options)
    kinds["larger"] = root / "larger.jpg"
    helpers.save_jpeg(kinds["larger"], 120, 90, seed=9)
    return kinds


def _rgb(path):
    return Image.open(path).convert("RGB")


def is_deferred(image):
    return type(vars(image)[patches._SLOT]) is DeferredCore


# ---- files ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("before", ["usual", "grey", "progressive"])
@pytest.mark.parametrize("after_load", [False, True])
def test_files_that_are_replaced(files, tmp_path, before, after_load):
    path = tmp_path / "a.jpg"

    def use(after):
        path.write_bytes(files[before].read_bytes())
        with Image.open(path) as image:
            if after_load:
                image.load()
            path.write_bytes(files[after].read_bytes())
            return image.crop((3, 4, 50, 40)), image

    for after in files:
        assert_same(use, after)


def test_files_that_are_removed_and_cut(files, tmp_path):
    path = tmp_path / "a.jpg"

    def use(change):
        path.write_bytes(files["usual"].read_bytes())
        with Image.open(path) as image:
            change()
            return image.convert("RGB").resize((20, 20))

    assert_same(use, path.unlink)
    assert_same(use, lambda: os.truncate(path, 700))
    assert_same(use, lambda: os.truncate(path, 0))


@pytest.mark.parametrize("tail", [
    b"x" * 200_000 + b"\xff\xd9" + b"y" * 100_000,
    b"\xff\xd9" * 100_000,
    b"\xff\xd8\xff\xe0\0\x04ab" + bytes(70_000) + b"\xff\xd9",
])
@pytest.mark.parametrize("kind", ["usual", "grey", "progressive"])
def test_file_objects_with_more_images_are_left_where_pillow_leaves_them(files, kind, tail):
    data = files[kind].read_bytes() + tail

    def position():
        file = io.BytesIO(data)
        image = Image.open(file)
        image.load()
        return file.tell(), image

    assert_same(position)


def test_one_file_object_for_two_images(files):
    def use():
        with open(files["usual"], "rb") as file:
            one, other = Image.open(file), Image.open(file)
            part = one.crop((1, 1, 30, 30))
            file.seek(5)
            return part, other.convert("RGB"), file.tell(), one

    assert_same(use)


# ---- what load() returns ---------------------------------------------------------------------------


def test_results_of_load_that_are_kept_are_pillows(files):
    def use(load, make):
        kept = []
        kept.extend(map(load, [make(files["usual"]), make(files["grey"])]))
        return [type(one) for one in kept], kept[0][3, 4]

    for make in (Image.open, _rgb):
        for load in (lambda image: image.load(), Image.Image.load, type(Image.open(files["usual"])).load):
            if make is Image.open or load is not JpegImagePlugin.JpegImageFile.load:
                assert_same(use, load, make)


def test_results_of_load_that_are_dropped_decode_nothing(files):
    account = counters.Counters()
    with counters.counted_in(account), deferred_images():
        image = Image.open(files["usual"])
        image.load()
        for _ in range(3):
            image.load()
        with _rgb(files["usual"]) as other:
            other.load()
    assert is_deferred(image) and account["parts"] == account["whole"] == 0


# ---- replaced functions --------------------------------------------------------------------------


def _output_of(script, *arguments):
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script), *map(str, arguments)],
        capture_output=True, text=True,
    )
    assert not done.returncode and not done.stderr, done.stderr
    return done.stdout.split()


_PRELUDE = """
        import sys
        sys.path.insert(0, {folder!r})
        import conftest, functools, feedmill
        from PIL import Image, ImageEnhance
        from torchvision.transforms import _functional_pil, functional
        calls = []
        def wrapped(original, name):
            @functools.wraps(original)
            def mine(*arguments, **named):
                calls.append(name)
                return original(*arguments, **named)
            return mine
"""
PRELUDE = _PRELUDE.format(folder=os.path.dirname(__file__))


@pytest.mark.slow
@pytest.mark.parametrize("when", ["early", "late"])
def test_wrapped_functions_are_called(files, when):
    script = PRELUDE + """
        if sys.argv[2] == "late":
            from feedmill.deferred import functions
        Image.blend = wrapped(Image.blend, "blend")
        init = ImageEnhance.Contrast.__init__
        ImageEnhance.Contrast.__init__ = wrapped(init, "contrast")
        _functional_pil.adjust_hue = wrapped(_functional_pil.adjust_hue, "hue")
        with feedmill.deferred_images():
            image = Image.open(sys.argv[1]).convert("RGB")
            calls.clear()
            Image.blend(image, image.copy(), 0.5)
            ImageEnhance.Contrast(image)
            functional.adjust_hue(image, 0.1)
        print(*calls)
    """
    assert _output_of(script, files["usual"], when) == ["blend", "contrast", "hue"]


@pytest.mark.parametrize("name, when", [
    pytest.param("tobytes", "early", marks=pytest.mark.slow), ("resize", "late"),
])
def test_a_wrapped_method_switches_it_off(files, name, when):
    script = """
        import functools, sys
        from PIL import Image
        name, when = sys.argv[2:]
        if when == "late":
            from feedmill.deferred import patches
        original = getattr(Image.Image, name)
        setattr(Image.Image, name, functools.wraps(original)(lambda *one: original(*one)))
        from feedmill.deferred import patches
        print(patches.why_not())
    """
    assert "has been replaced" in " ".join(_output_of(script, files["usual"], name, when))


@pytest.mark.parametrize("when", helpers.slow_but_for(["early"], ["early", "late"]))
def test_a_replaced_core_attribute_switches_it_off(files, when):
    script = """
        import sys
        from PIL import Image
        if sys.argv[2] == "late":
            from feedmill.deferred import patches
        original = vars(Image.Image).get("im")
        def core(image):
            return vars(image)["mine"] if original is None else original.fget(image)
        def set_core(image, core):
            vars(image)["mine"] = core
        Image.Image.im = mine = property(core, original.fset if original else set_core)
        import feedmill
        with feedmill.deferred_images():
            assert vars(Image.Image)["im"] is mine
        from feedmill.deferred import patches
        print(patches.why_not())
    """
    assert "im has been replaced" in " ".join(_output_of(script, files["usual"], when))


def test_methods_that_are_replaced_later_are_called(files, monkeypatch):
    resize, load_end = Image.Image.resize, JpegImagePlugin.JpegImageFile.load_end
    calls = []

    def mine(self, *arguments, **named):
        calls.append("resize")
        return resize(self, *arguments, **named)

    def my_end(self):
        calls.append("end")
        return load_end(self)

    with deferred_images():  # runs the self-tests, which call these methods
        small = _rgb(files["usual"]).resize((20, 20))
        assert is_deferred(small) and small.tobytes()
    monkeypatch.setattr(Image.Image, "resize", mine)
    monkeypatch.setattr(JpegImagePlugin.JpegImageFile, "load_end", my_end)
    assert_same(lambda: _rgb(files["usual"]).resize((20, 20)))
    assert calls == ["end", "resize"] * 2


class _Black(ImageFile.PyDecoder):
    _pulls_fd = False

    def decode(self, buffer):
        self.set_as_raw(bytes(3 * 97 * 60))
        return -1, 0


def test_a_users_decoder_is_used(files, monkeypatch):
    with deferred_images():
        assert is_deferred(_rgb(files["usual"]))
    monkeypatch.setitem(Image.DECODERS, "jpeg", _Black)
    assert_same(lambda: _rgb(files["usual"]))
    with deferred_images():
        assert not np.asarray(_rgb(files["usual"])).any()


def test_methods_of_one_image_are_called(files):
    def use(name):
        image = Image.open(files["usual"])
        calls = []
        own = getattr(image, name)
        setattr(image, name, lambda *arguments: (calls.append(name), own(*arguments))[1])
        return np.asarray(image).tobytes(), bool(calls)

    for name in ("load_read", "load_end", "load_prepare"):
        assert_same(use, name)


# ---- images that are kept or changed -------------------------------------------------------------


def test_kept_parts_hold_a_bounded_number_of_bytes(files, monkeypatch):
    gc.collect()
    n_bytes = files["usual"].stat().st_size
    monkeypatch.setattr(held, "_MAX_BYTES", held._n_bytes + 10 * n_bytes)
    before = held._n_bytes

    def kept():
        return [_rgb(files["usual"]).resize((8, 8)) for _ in range(30)]

    with deferred_images():
        images = kept()
        assert sum(map(is_deferred, images)) == 10
        assert held._n_bytes - before == 10 * n_bytes
    assert_same(kept)
    del images
    gc.collect()
    assert held._n_bytes == before
    with deferred_images():
        assert is_deferred(_rgb(files["usual"]))


def test_what_is_held_is_counted_to_the_end(files):
    gc.collect()
    before = held._n_bytes
    with deferred_images():
        image = _rgb(files["usual"])
        parts = [image.crop((0, 0, 30, 30 + i)) for i in range(4)]
        for part in parts:
            part.tobytes()
        blended = Image.blend(image, image.copy(), 0.3)
        blended.convert("L").tobytes()
        assert held._n_bytes - before >= files["usual"].stat().st_size + 2 * 3 * 97 * 60
        blended.load()[0, 0]
        image.putpixel((0, 0), (1, 2, 3))
    del image, part, parts, blended
    gc.collect()
    assert held._n_bytes == before


@pytest.mark.slow
def test_images_that_live_until_the_process_ends(files):
    script = PRELUDE + """
        with feedmill.deferred_images():
            images = [Image.open(sys.argv[1]).convert("RGB") for _ in range(3)]
            images[0].crop((0, 0, 9, 9)).tobytes()
        sys.modules["keeps"] = images
        Image.kept = images
        print("done")
    """
    assert _output_of(script, files["usual"]) == ["done"]


def _changed(path):
    image = _rgb(path)
    whole, part = image.copy(), image.crop((0, 0, 50, 50))
    image.putpixel((0, 0), (1, 2, 3))
    image.paste(part, (20, 5))
    ImageDraw.Draw(image).line((0, 0, 50, 50), fill=(3, 4, 5))
    layered = image.convert("RGBA")
    layered.alpha_composite(layered.copy(), (3, 3))
    part.paste((1, 1, 1), (0, 0, 5, 5))
    return image, whole, part, layered


def _part_changed(path):
    image = _rgb(path)
    small = image.resize((40, 40))
    before = small.crop((5, 5, 30, 30))
    small.putpixel((6, 6), (255, 0, 0))
    after = small.crop((5, 5, 30, 30))
    before.putpixel((0, 0), (0, 0, 0))
    return image, small, before, after


def _attributes_shared(path):
    image, other = _rgb(path), Image.new("RGB", (1, 1))
    vars(other).update(vars(image))
    other.putpixel((0, 0), (0, 0, 0))
    return image, other


def _core_moved(path):
    image, other = _rgb(path), _rgb(path).transpose(Image.Transpose.ROTATE_180)
    image.im = other.im
    other.putpixel((0, 0), (0, 0, 0))
    return image, other


def _copied_deeply(path):
    image = _rgb(path)
    copied = copy.deepcopy({"a": image, "b": [image, image.crop((1, 1, 20, 20))]})
    copied["a"].putpixel((0, 0), (9, 9, 9))
    return copied["a"], copied["b"], image


def _filled(path):
    image, grey = _rgb(path), Image.open(path).convert("L")
    image.putdata([(1, 2, 3)] * (97 * 60))
    grey.frombytes(bytes(97 * 60))
    return image, grey


@pytest.mark.parametrize("change", [
    _changed, _part_changed, _attributes_shared, _core_moved, _copied_deeply, _filled,
])
def test_changes_in_place_are_seen_where_pillow_shows_them(files, change):
    for kind in ("usual", "grey", "CMYK"):
        assert_same(change, files[kind])


def test_a_setting_that_changes_between_open_and_load(files, monkeypatch):
    data = files["usual"].read_bytes()[:-300]

    def use(before, after):
        monkeypatch.setattr(ImageFile, "LOAD_TRUNCATED_IMAGES", before)
        image = Image.open(io.BytesIO(data))
        monkeypatch.setattr(ImageFile, "LOAD_TRUNCATED_IMAGES", after)
        return image.convert("RGB")

    for before, after in ((False, True), (True, False), (True, True)):
        assert_same(use, before, after)


# ---- signals and threads -------------------------------------------------------------------------


def test_a_signal_handler_may_use_images(files):
    wanted = np.asarray(_rgb(files["usual"]).resize((8, 8)))
    n_signals = 0

    def handle(*_):
        nonlocal n_signals
        n_signals += 1
        image = _rgb(files["usual"])
        assert (np.asarray(image.resize((8, 8))) == wanted).all()

    before = signal.signal(signal.SIGALRM, handle)
    try:
        with deferred_images():
            began = time.monotonic()
            for number in range(300):
                if time.monotonic() - began > 20:
                    break
                # Once, as a handler that takes longer than a period would be interrupted itself.
                signal.setitimer(signal.ITIMER_REAL, 0.0002 * (1 + number % 7))
                image = _rgb(files["usual"])
                assert (np.asarray(image.resize((8, 8))) == wanted).all()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert n_signals


def test_a_handler_may_count_within_the_counters_block():
    account = counters.Counters()
    done = threading.Event()

    def use():
        with account._lock:  # where the signal comes
            account.add("images")
        done.set()

    threading.Thread(target=use, daemon=True).start()
    assert done.wait(30)


def test_off_everywhere_reaches_threads(files):
    seen = []
    before = patches.is_deferring()
    from feedmill.deferred import switch

    def look():
        seen.append(patches.is_deferring())

    switch._everywhere = True
    try:
        for block in (switch.off_everywhere(), switch.switched(True)):
            with block:
                thread = threading.Thread(target=look)
                thread.start()
                thread.join()
    finally:
        switch._everywhere = False
    assert seen == [False, True] and patches.is_deferring() is before


def test_the_core_is_slim():
    assert not hasattr(sources.Source(b"", "RGB", 1, 1), "__dict__")


def _replaceable():
    from PIL import ImageEnhance, ImageOps
    from torchvision.transforms import functional

    places = [(Image, "blend"), (Image.Image, "transform"), (ImageEnhance.Contrast, "__init__")]
    places += [(ImageOps, name) for name in ("equalize", "expand", "solarize")]
    places += [(functional, "to_tensor"), (functional.F_pil, "adjust_hue")]
    return [(owner, name, getattr(owner, name)) for owner, name in places]


def test_functions_are_replaced_only_within_blocks():
    """A dataset that holds one of them can be pickled, as workers that are spawned need it."""
    before = _replaceable()
    for _ in range(2):
        with feedmill.deferred_images():
            with feedmill.deferred_images():
                pass
            within = [getattr(owner, name) is not function for owner, name, function in before]
            assert all(within)
        for owner, name, function in before:
            assert getattr(owner, name) is function
            pickle.loads(pickle.dumps(function))


def test_a_function_that_somebody_replaces_within_a_block_stays(monkeypatch):
    from PIL import ImageOps

    monkeypatch.setattr(ImageOps, "equalize", ImageOps.equalize)
    with feedmill.deferred_images():
        ImageOps.equalize = mine = lambda image, mask=None: image
    assert ImageOps.equalize is mine


def test_functions_stay_replaced_until_the_last_thread_leaves():
    (owner, name, function), *_ = _replaceable()
    entered, may_leave = threading.Event(), threading.Event()

    def other():
        with feedmill.deferred_images():
            entered.set()
            may_leave.wait(60)

    thread = threading.Thread(target=other)
    thread.start()
    assert entered.wait(60)
    with feedmill.deferred_images():
        pass
    assert getattr(owner, name) is not function
    may_leave.set()
    thread.join()
    assert getattr(owner, name) is function
