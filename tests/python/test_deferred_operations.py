"""Operations on deferred images give the same pixels, objects and errors as Pillow's, and keep the
images deferred."""

import os
import threading

import numpy as np
import pytest
import torch
from feedmill import deferred_images
from feedmill.deferred import functions, mapping, operations, patches, sources, tables
from feedmill.deferred.core import DeferredCore
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image, ImageChops, ImageEnhance, ImageFilter, ImageOps, ImageStat
from test_deferred import (
    _STEPS,
    _Replay,
    _rgb,
    assert_same,
    blurred,
    described,
    files,
    outcome,
)
from torchvision import transforms
from torchvision.transforms import functional, v2

__all__ = ["files"]  # a fixture

# FEEDMILL_CHAINS sets how many random chains are run.
N_CHAINS = int(os.environ.get("FEEDMILL_CHAINS", "400"))

pytestmark = pytest.mark.skipif(bool(patches.why_not()), reason=patches.why_not())


@pytest.fixture(scope="module")
def jpeg(files):
    return files["usual"]


def _is_deferred(image):
    core_of_image = vars(image)[patches._SLOT]
    return type(core_of_image) is DeferredCore and not core_of_image.is_real


# ---- random chains -------------------------------------------------------------------------------

_FACTORS = st.one_of(
    st.sampled_from((0, 1, 0.0, 1.0, 0.5, 2, -0.3, 1e-50, 1e31, float("inf"))), st.floats(0, 3)
)
_RADII = st.one_of(
    st.floats(0, 2.5), st.sampled_from((0, 1, 2, 0.5, 4.9, 5.1, 9, 40)), st.just((1.5, 0)),
    st.tuples(st.floats(0, 4), st.floats(0, 4)),
)
_BYTES = st.integers(0, 255)


def _enhance(kind):
    return lambda image, draw: kind(image).enhance(draw(_FACTORS))


def _degenerate(kind):
    return lambda image, draw: kind(image).degenerate


def _use_two(function):
    """A function of an image and another part of it of the same size."""

    def use(image, draw):
        other = image.transpose(Image.Transpose.ROTATE_180)
        return function(image, other, draw)

    return use


def _table(image, draw):
    chance = np.random.RandomState(draw(_BYTES))
    n = draw(st.sampled_from((256, 768, 768, 767)))
    return image.point(chance.randint(-9 if n == 256 else 0, 256, n).tolist())


_FILTERS = st.sampled_from((0, 0, 2, 3, Image.Resampling.BICUBIC, 1))
_MODES = st.sampled_from(
    [transforms.InterpolationMode(one) for one in ("nearest", "nearest", "bilinear", "bicubic")]
)
_COLORS = st.sampled_from((None, None, (0, 0, 0), (128, 127, 126), 0, 77, 1 << 23, "red", "#123456"))


def _transform(image, draw):
    """Image.transform() with all kinds of data, also wrong ones."""
    method = draw(st.sampled_from((*Image.Transform, 0, 2)))
    few, many = st.floats(-1.6, 1.6), st.floats(-40, 60)
    data = [draw(few), draw(few), draw(many), draw(few), draw(few), draw(many)]
    if method == Image.Transform.EXTENT:
        data = [draw(many) for _ in range(4)]
    elif method in (Image.Transform.PERSPECTIVE, Image.Transform.QUAD):
        data += [draw(st.floats(-0.02, 0.02)), draw(st.floats(-0.02, 0.02))]
    elif method == Image.Transform.MESH:
        data = [((0, 0, 9, 9), data[:2] * 4)]
    odd = draw(st.integers(0, 20))
    if odd < 5:
        data = (tuple(data), data[:3], [*data, 7.5], data[:2] + [1e300] * 6, None)[odd]
    elif odd < 7 and method == Image.Transform.AFFINE:
        data = [1, 0, round(data[2]), 0, 1, round(data[5])]
    size = draw(st.sampled_from((image.size, (40, 50), [30, 20], (70, 1))))
    return image.transform(size, method, data, draw(_FILTERS), fillcolor=draw(_COLORS))


def _perspective(image, draw):
    width, height = image.size
    start = [[0, 0], [width, 0], [width, height], [0, height]]
    end = [[x + draw(st.integers(-9, 9)), y + draw(st.integers(-9, 9))] for x, y in start]
    kind = draw(st.sampled_from((functional, v2.functional)))
    return kind.perspective(image, start, end, draw(_MODES), draw(st.sampled_from((None, 0, 9))))


_OPERATIONS = {
    "brightness": _enhance(ImageEnhance.Brightness),
    "contrast": _enhance(ImageEnhance.Contrast),
    "color": _enhance(ImageEnhance.Color),
    "sharpness": _enhance(ImageEnhance.Sharpness),
    "degenerate of brightness": _degenerate(ImageEnhance.Brightness),
    "degenerate of contrast": _degenerate(ImageEnhance.Contrast),
    "degenerate of color": _degenerate(ImageEnhance.Color),
    "degenerate of sharpness": _degenerate(ImageEnhance.Sharpness),
    "blend": _use_two(lambda one, two, draw: Image.blend(one, two, draw(_FACTORS))),
    "blend with grey": _use_two(
        lambda one, two, draw: Image.blend(two.convert("L").convert("RGB"), one, draw(_FACTORS))
    ),
    "blend with an ordinary one": lambda image, draw: Image.blend(
        image, Image.new("RGB", image.size, (1, 2, 3)), draw(_FACTORS)
    ),
    "chops": _use_two(lambda one, two, draw: ImageChops.add_modulo(one, two)),
    "composite": _use_two(lambda one, two, draw: Image.composite(one, two, one.convert("L"))),
    "grey": lambda image, draw: image.convert("L"),
    "grey and back": lambda image, draw: image.convert("L").convert("RGB"),
    "grayscale": lambda image, draw: functional.to_grayscale(image, draw(st.sampled_from((1, 3)))),
    "v2 grayscale": lambda image, draw: v2.functional.rgb_to_grayscale(image, 3),
    "hue": lambda image, draw: functional.adjust_hue(image, draw(st.floats(-0.55, 0.55))),
    "v2 hue": lambda image, draw: v2.functional.adjust_hue(image, draw(st.floats(-0.5, 0.5))),
    "gaussian blur": lambda image, draw: blurred(image, ImageFilter.GaussianBlur(draw(_RADII))),
    "box blur": lambda image, draw: blurred(image, ImageFilter.BoxBlur(draw(_RADII))),
    "blur": lambda image, draw: image.filter(ImageFilter.BLUR),
    "smooth": lambda image, draw: image.filter(ImageFilter.SMOOTH),
    "median": lambda image, draw: blurred(image, ImageFilter.MedianFilter(3)),
    "invert": lambda image, draw: ImageOps.invert(image),
    "solarize": lambda image, draw: ImageOps.solarize(image, draw(st.integers(-3, 260))),
    "posterize": lambda image, draw: ImageOps.posterize(image, draw(st.integers(0, 9))),
    "autocontrast": lambda image, draw: ImageOps.autocontrast(image, draw(st.integers(0, 30))),
    "equalize": lambda image, draw: ImageOps.equalize(image),
    "masked histogram": lambda image, draw: (
        described(image.histogram(image.convert("L"))), image.convert("RGB")
    )[1],
    "table": _table,
    "function": lambda image, draw: image.point(lambda value: value * 0.7 + 9.5),
    "split and merge": lambda image, draw: Image.merge("RGB", image.split()[::-1]),
    "rotate": lambda image, draw: image.rotate(draw(st.floats(-30, 30)), draw(st.integers(0, 3))),
    "rotate and fill": lambda image, draw: image.rotate(
        draw(st.floats(-200, 400)), draw(_FILTERS), draw(st.booleans()),
        draw(st.sampled_from((None, None, (5, 7), (3.5, -20)))),
        draw(st.sampled_from((None, None, (4, -9), (1.5, 0)))), draw(_COLORS)
    ),
    "transform": _transform,
    "torchvision affine": lambda image, draw: draw(st.sampled_from((functional, v2.functional))).affine(
        image, draw(st.floats(-180, 180)), [draw(st.integers(-20, 20)), draw(st.integers(-20, 20))],
        draw(st.floats(0.3, 2)), [draw(st.floats(-40, 40)), draw(st.floats(-40, 40))],
        draw(_MODES), draw(st.sampled_from((None, 0, 9, [1, 2, 3])))
    ),
    "torchvision rotate": lambda image, draw: draw(st.sampled_from((functional, v2.functional))).rotate(
        image, draw(st.floats(-180, 180)), draw(_MODES), draw(st.booleans()),
        fill=draw(st.sampled_from((None, 0, [9], [1, 2, 3])))
    ),
    "torchvision perspective": _perspective,
    "crop outside": lambda image, draw: image.crop(
        (draw(st.integers(-40, 20)), draw(st.integers(-40, 20)),
         draw(st.integers(21, 120)), draw(st.integers(21, 120)))
    ),
    "expand": lambda image, draw: ImageOps.expand(
        image, draw(st.sampled_from((0, 3, (4, 5), (1, 2, 3, 4), (3,), [1, 2], -2, 1.5))),
        draw(_COLORS)
    ),
    "torchvision pad": lambda image, draw: draw(st.sampled_from((functional, v2.functional))).pad(
        image, draw(st.sampled_from((4, [1, 2], [3, 4, 0, 1], [-1, 2, 3, 4]))),
        draw(st.sampled_from((0, 7, (1, 2, 3)))),
        draw(st.sampled_from(("constant", "constant", "edge", "reflect")))
    ),
    "resize by nearest": lambda image, draw: image.resize((draw(st.integers(1, 99)), 40), 0),
    "paste": lambda image, draw: (image.paste(7, (1, 1, 5, 4)), image)[1],
}
_ALL = {**_STEPS, **_OPERATIONS}
# Recipes use some steps more often than others.
_NAMES = st.sampled_from(
    [*_OPERATIONS, *_OPERATIONS, *_STEPS, *(["convert", "crop", "resize", "transpose"] * 8)]
)


def _run_chain(path, steps, draw, looks):
    """A step may start from any earlier image. The images in `looks` are looked at at once, the
    others after the chain."""
    images = [_rgb(path)]
    results = []
    for number, name in enumerate(steps):
        start = images[-1] if draw(st.integers(0, 5)) else images[draw(st.integers(0, number))]
        try:
            images.append(_ALL[name](start, draw))
        except Exception as error:
            results.append((name, type(error), str(error)))
            images.append(start)
        if number in looks:
            results.append(outcome(lambda: images[-1]))
    return [outcome(lambda one=one: one) for one in images], results


def test_random_chains_give_the_same(files):
    @settings(max_examples=N_CHAINS, deadline=None, database=None,
              suppress_health_check=list(HealthCheck))
    @given(st.data())
    def give_the_same(data):
        path = files[data.draw(st.sampled_from(("usual", "usual", "4:4:4", "grey", "cut", "png")))]
        steps = data.draw(st.lists(_NAMES, min_size=1, max_size=7))
        looks = data.draw(st.sets(st.integers(0, 7), max_size=2))
        draw = _Replay(data)
        wanted = outcome(_run_chain, path, steps, draw, looks)
        draw.again()
        with deferred_images():
            assert outcome(_run_chain, path, steps, draw, looks) == wanted

    give_the_same()


# ---- what stays deferred -------------------------------------------------------------------------


def test_every_operation_equals_the_installed_pillow():
    assert functions.why_not() == ""
    assert [name for name in operations._TESTS if not operations.is_equal(name)] == []
    assert mapping.is_equal() and tables.is_equal()


STAY_DEFERRED = {
    "brightness": lambda image: ImageEnhance.Brightness(image).enhance(1.3),
    "contrast": lambda image: ImageEnhance.Contrast(image).enhance(0.3),
    "color": lambda image: ImageEnhance.Color(image).enhance(0.7),
    "sharpness": lambda image: ImageEnhance.Sharpness(image).enhance(1.9),
    "blend": lambda image: Image.blend(image, image.transpose(0), 0.4),
    "grey": lambda image: image.convert("L").convert("RGB"),
    "grayscale": lambda image: functional.rgb_to_grayscale(image, 3),
    "hue": lambda image: functional.adjust_hue(image, 0.2),
    "v2 hue": lambda image: v2.functional.adjust_hue(image, 0.2),
    "v2 saturation": lambda image: v2.functional.adjust_saturation(image, 0.2),
    "gaussian blur": lambda image: image.filter(ImageFilter.GaussianBlur(1.4)),
    "box blur": lambda image: image.filter(ImageFilter.BoxBlur(2)),
    "solarize": lambda image: ImageOps.solarize(image),
    "posterize": lambda image: ImageOps.posterize(image, 3),
    "autocontrast": lambda image: ImageOps.autocontrast(image),
    "equalize": lambda image: ImageOps.equalize(image),
    "invert": lambda image: ImageOps.invert(image),
    "rotate": lambda image: image.rotate(11, Image.Resampling.BILINEAR, fillcolor=(9, 9, 9)),
    "rotate by nearest": lambda image: image.rotate(11, fillcolor=(9, 9, 9)),
    "rotate and expand": lambda image: image.rotate(-40, Image.Resampling.BICUBIC, expand=True),
    "rotate twice": lambda image: image.rotate(11, fillcolor=(9, 9, 9)).rotate(
        5, center=(2, 3), translate=(4, 5)
    ),
    "affine": lambda image: functional.affine(image, 5, [3, 4], 1.1, [5, 6], fill=[7]),
    "v2 affine": lambda image: v2.functional.affine(image, 5, [3, 4], 1.1, [5, 6], fill=7),
    "perspective": lambda image: transforms.RandomPerspective(p=1)(image),
    "v2 perspective": lambda image: v2.RandomPerspective(p=1)(image),
    "rotation": lambda image: transforms.RandomRotation(30)(image),
    "translation as timm does it": lambda image: image.transform(
        image.size, Image.AFFINE, (1, 0, 0.3 * image.size[0], 0, 1, 0),
        resample=Image.BICUBIC, fillcolor=(124, 116, 104)
    ),
    "randaugment": lambda image: transforms.RandAugment(4)(image),
    "crop outside": lambda image: image.crop((-3, -4, 70, 40)),
    "expand": lambda image: ImageOps.expand(image, (1, 2), (3, 4, 5)),
    "random crop": lambda image: transforms.RandomCrop(40, padding=4)(image),
    "v2 random crop": lambda image: v2.RandomCrop(40, padding=4, fill=3)(image),
    "second resize": lambda image: image.resize((33, 22)).crop((1, 2, 20, 20)).resize((44, 40)),
    "jitter": lambda image: transforms.ColorJitter(0.8, 0.8, 0.8, 0.2)(image),
    "v2 jitter": lambda image: v2.ColorJitter(0.8, 0.8, 0.8, 0.2)(image),
}


@pytest.mark.parametrize("name", STAY_DEFERRED)
def test_results_stay_deferred_and_are_equal(jpeg, name):
    def use():
        torch.manual_seed(4)
        image = _rgb(jpeg).crop((5, 5, 90, 50)).resize((60, 40), Image.Resampling.BICUBIC)
        result = STAY_DEFERRED[name](image)
        return result, result.crop((1, 2, 30, 33)).resize((20, 20)), image

    with deferred_images():
        assert _is_deferred(use()[0])
    assert_same(use)


# Parts that begin at the corner of an image, but are not all of it.
AT_THE_CORNER = {
    "grey": lambda image: image.convert("L").crop((0, 0, 30, 30)),
    "grey as RGB": lambda image: image.convert("L").convert("RGB").crop((0, 0, 30, 30)),
    "grayscale": lambda image: functional.rgb_to_grayscale(image, 3).crop((0, 0, 30, 30)),
    "darkened": lambda image: ImageEnhance.Brightness(image.crop((0, 0, 30, 30))).enhance(0.5),
    "blended": lambda image: Image.blend(image.convert("L").convert("RGB"), image, 0.5).crop(
        (0, 0, 30, 30)),
    "rotated, cropped beyond": lambda image: (
        image.rotate(11).crop((0, 0, 30, 30)).crop((-3, -3, 40, 40))),
    "rotated, expanded": lambda image: ImageOps.expand(
        image.rotate(11).crop((0, 0, 30, 30)), 4),
    "rotated twice": lambda image: image.rotate(11).crop((0, 0, 30, 30)).rotate(5),
}


@pytest.mark.parametrize("name", AT_THE_CORNER)
def test_parts_at_the_corner_are_equal(jpeg, name):
    def use():
        result = AT_THE_CORNER[name](_rgb(jpeg))
        raw = "RGBX" if result.mode == "RGB" else "L"
        before = result.tobytes()
        result.load()[0, 0]
        return before, result.tobytes("raw", raw)

    assert_same(use)


def test_other_images_are_left_to_pillow(jpeg):
    image = _rgb(jpeg)
    with deferred_images():
        for name, use in STAY_DEFERRED.items():
            assert not _is_deferred(use(image)), name


class _Counting(ImageFilter.GaussianBlur):
    """A filter of a user, which must get Pillow's own core."""

    def filter(self, image):
        assert type(image) is not DeferredCore
        return super().filter(image)


def test_filters_of_users_get_real_cores(jpeg):
    assert_same(lambda: _rgb(jpeg).filter(_Counting(2)))
    assert_same(lambda: _rgb(jpeg).filter(7))
    assert_same(lambda: _rgb(jpeg).filter(ImageFilter.SMOOTH))
    assert_same(lambda: _rgb(jpeg).filter(ImageFilter.GaussianBlur))


def test_wrong_arguments_give_the_same_errors(jpeg):
    for use in (
        lambda image: Image.blend(image, image, "half"),
        lambda image: Image.blend(image, image.crop((0, 0, 9, 9)), 0.5),
        lambda image: Image.blend(image, image.convert("L"), 0.5),
        lambda image: Image.blend(image, None, 0.5),
        lambda image: image.point([1, 2, 3]),
        lambda image: image.point([300] * 768),
        lambda image: image.point([-3.5] * 768),
        lambda image: image.point("abc"),
        lambda image: image.point([1] * 768, "L"),
        lambda image: image.filter(ImageFilter.GaussianBlur("x")),
        lambda image: image.transform(),
        lambda image: image.transform((3, 4), Image.AFFINE, more=3),
        lambda image: image.transform((3, 4), Image.AFFINE),
        lambda image: image.transform((3, 4), Image.AFFINE, (1, 2, 3)),
        lambda image: image.transform((3, 4), Image.AFFINE, ("a", 2, 3, 4, 5, 6)),
        lambda image: image.transform((3, 4), 77, (1, 2, 3, 4, 5, 6)),
        lambda image: image.transform((3, 4), Image.EXTENT, (1, 2, 3)),
        lambda image: image.transform((0, 4), Image.EXTENT, (1, 2, 3, 4)),
        lambda image: image.transform((-1, 4), Image.AFFINE, (1, 2, 3, 4, 5, 6)),
        lambda image: image.rotate(9, Image.LANCZOS),
        lambda image: image.rotate(9, fillcolor="no color"),
        lambda image: image.rotate(9, fillcolor=(1, 2)),
        lambda image: image.rotate(9, fillcolor=(1.5, 2, 300)),
        lambda image: image.rotate(9, fillcolor=-1),
        lambda image: image.rotate("x"),
        lambda image: ImageOps.expand(),
        lambda image: ImageOps.expand(image, (1, 2, 3)),
        lambda image: ImageOps.expand(image, "3"),
        lambda image: ImageOps.expand(image, 1 << 40),
        lambda image: ImageOps.expand(image, 2, "no color"),
        lambda image: ImageOps.expand(image, 2, fill=(1, 2)),
        lambda image: (image.info.update(transparency=3), ImageOps.expand(image, 2))[1],
        lambda image: (image.info.update(a=3), ImageOps.expand(image, 2))[1],
        lambda image: ImageOps.invert(),
        lambda image: ImageOps.invert(image=image),
        lambda image: ImageOps.invert(image, 3),
        lambda image: ImageOps.invert("x"),
        lambda image: ImageOps.posterize(image),
        lambda image: ImageOps.posterize(image, 9),
        lambda image: ImageOps.posterize(image, 2.5),
        lambda image: ImageOps.solarize(image, "x"),
        lambda image: ImageOps.solarize(image, float("nan")),
        lambda image: ImageOps.solarize(image, threshold=7),
        lambda image: ImageOps.autocontrast(image, 3, 5),
        lambda image: ImageOps.autocontrast(image, preserve_tone=True),
        lambda image: ImageOps.equalize(image, image.convert("L")),
        lambda image: (image.info.update(a=[1]), ImageOps.invert(image).info)[1],
        lambda image: (image.info.update(a=[1]), image.rotate(9).info)[1],
        lambda image: functional.adjust_hue(image, 0.7),
        lambda image: functional.adjust_hue(image, "red"),
        lambda image: functional.to_grayscale(image, 2),
        lambda image: image.histogram(image),
        lambda image: ImageEnhance.Brightness(image).enhance(None),
        lambda image: ImageEnhance.Contrast(7),
        lambda image: sorted(vars(ImageEnhance.Contrast(image))),
        lambda image: ImageStat.Stat(image).mean,
        lambda image: (image.info.update(a=1), ImageEnhance.Color(image).enhance(2).info)[1],
    ):
        assert_same(lambda use=use: use(_rgb(jpeg).resize((30, 20))))


def test_an_image_that_changes_does_not_change_others(jpeg):
    def use():
        image = _rgb(jpeg).resize((30, 20))
        grey = image.convert("L")
        brighter, enhancer = ImageEnhance.Brightness(image).enhance(2), ImageEnhance.Color(image)
        image.paste((1, 2, 3), (3, 3, 20, 20))
        return grey, brighter, enhancer.enhance(0.3), enhancer.degenerate, image

    assert_same(use)


def test_threads_share_an_image(jpeg):
    def use(image, results, number):
        results[number] = described(ImageEnhance.Color(image).enhance(0.3 + number % 2))

    plain = _rgb(jpeg).resize((60, 40))
    wanted = [described(ImageEnhance.Color(plain).enhance(0.3 + number % 2)) for number in range(8)]
    with deferred_images():
        for _ in range(20):
            image, results = _rgb(jpeg).resize((60, 40)), [None] * 8
            threads = [threading.Thread(target=use, args=(image, results, i)) for i in range(8)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            assert results == wanted


def test_patched_functions_can_be_scripted(jpeg):
    with deferred_images():
        scripted = torch.jit.script(transforms.Grayscale(3))
    image = torch.zeros(3, 8, 8, dtype=torch.uint8)
    assert torch.equal(scripted(image), image)


def test_a_failed_self_test_leaves_an_operation_to_pillow(jpeg, monkeypatch):
    monkeypatch.setattr(operations, "is_equal", lambda name: False)
    monkeypatch.setattr(mapping, "is_equal", lambda: False)
    monkeypatch.setattr(tables, "is_equal", lambda: False)
    for name, use in STAY_DEFERRED.items():
        if name == "second resize":
            continue
        with deferred_images():
            image = _rgb(jpeg).resize((60, 40))
            assert not _is_deferred(use(image)), name
        torch.manual_seed(1)
        assert_same(lambda use=use: (torch.manual_seed(1), use(_rgb(jpeg).resize((60, 40))))[1])


def test_pixels_are_made_once(jpeg, monkeypatch):
    renders = []
    render = sources.native.render
    monkeypatch.setattr(sources.native, "render", lambda *a: (renders.append(a), render(*a))[1])
    with deferred_images():
        image = _rgb(jpeg).crop((3, 3, 80, 50)).resize((60, 40))
        for factor in (0.2, 1.4):
            image = ImageEnhance.Contrast(ImageEnhance.Color(image).enhance(factor)).enhance(1.2)
        np.asarray(image)
    assert len(renders) == 1
