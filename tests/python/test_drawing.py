"""Random numbers and functions of Pillow in transforms of the user's own: what is understood has the
distribution of what the code does."""

import itertools
import linecache
import random
from collections import Counter
from types import SimpleNamespace

import feedmill
import numpy as np
import pytest
from feedmill.planner.attributes import NotUnderstood
from feedmill.planner.drawing import Chance, PilCall
from feedmill.planner.evaluating import ImageState, transforms_in
from helpers import compose, native_loader
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image, ImageFilter, ImageOps
from torchvision import transforms as T
from torchvision.datasets import ImageFolder

HEAD, TAIL = T.Resize((20, 24)), T.PILToTensor()
RGB = ImageState(True, "RGB")


# ---- as in public code ---------------------------------------------------------------------------


class DinoBlur:
    def __init__(self, p=0.5, radius_min=0.1, radius_max=2.0):
        self.prob, self.radius_min, self.radius_max = p, radius_min, radius_max

    def __call__(self, img):
        do_it = random.random() <= self.prob
        if not do_it:
            return img
        return img.filter(
            ImageFilter.GaussianBlur(
                radius=random.uniform(self.radius_min, self.radius_max)
            )
        )


class DinoSolarization:
    def __init__(self, p):
        self.p = p

    def __call__(self, img):
        if random.random() < self.p:
            return ImageOps.solarize(img)
        else:
            return img


class MocoBlur:
    def __init__(self, sigma=[0.1, 2.0]):  # noqa: B006
        self.sigma = sigma

    def __call__(self, x):
        sigma = random.uniform(self.sigma[0], self.sigma[1])
        x = x.filter(ImageFilter.GaussianBlur(radius=sigma))
        return x


class MocoSolarize:
    def __call__(self, x):
        return ImageOps.solarize(x)


class BarlowBlur:
    def __init__(self, p):
        self.p = p

    def __call__(self, img):
        if np.random.rand() < self.p:
            sigma = np.random.rand() * 1.9 + 0.1
            return img.filter(ImageFilter.GaussianBlur(sigma))
        else:
            return img


class GrayScale:
    def __init__(self, p=0.2):
        self.p = p
        self.transf = T.Grayscale(3)

    def __call__(self, img):
        if random.random() < self.p:
            return self.transf(img)
        else:
            return img


def invert_by_uniform(img):
    return ImageOps.invert(img) if 3 > np.random.uniform(2, 6) else img


def blur_of_fixed_radius(img):
    return ImageOps.equalize(ImageOps.posterize(img.filter(ImageFilter.GaussianBlur(1.5)), 3))


PUBLIC = {
    "dino": ([DinoBlur(), DinoSolarization(0.2)],
             [Chance(0.5, (PilCall("RandomBlur", (0.1, 2.0)),)),
              Chance(0.2, (PilCall("RandomSolarize", (128,)),))]),
    "moco": ([T.RandomApply([MocoBlur()], p=0.5), MocoSolarize()], None),
    "barlow": ([BarlowBlur(0.4)], [Chance(0.4, (PilCall("RandomBlur", (0.1, 2.0)),))]),
    "deit": ([T.RandomChoice([GrayScale(1.0), DinoSolarization(1.0), DinoBlur(1.0)])], None),
    "gray": ([GrayScale()], None),
    "numpy": ([invert_by_uniform], [Chance(0.25, (PilCall("RandomInvert"),))]),
    "fixed": ([blur_of_fixed_radius],
              [PilCall("RandomBlur", (1.5, 1.5)), PilCall("RandomPosterize", (3,)),
               PilCall("RandomEqualize")]),
}


@pytest.mark.parametrize("name", PUBLIC)
def test_transforms_of_public_code_are_native(small_images, name):
    transforms, understood = PUBLIC[name]
    dataset = ImageFolder(str(small_images), compose(HEAD, *transforms, TAIL))
    loader = feedmill.DataLoader(dataset, batch_size=8, native="verify")
    list(loader)
    assert loader.stats().decode.verified_samples == len(dataset)
    if understood is not None:
        found = [one for transform in transforms for one in transforms_in(transform, RGB)]
        assert found == understood


@pytest.mark.parametrize(("transform", "p", "kind"), [
    (DinoBlur(0.3), 0.3, "RandomApply"), (GrayScale(0.7), 0.7, "RandomApply"),
])
def test_how_often_they_are_applied(small_images, transform, p, kind):
    dataset = ImageFolder(str(small_images), compose(HEAD, transform, TAIL))
    loader = native_loader(dataset, batch_size=8, seed=3)
    n, n_applied, radii = 0, 0, []
    for epoch in range(20):
        for index in range(len(dataset)):
            draws = dict(loader.draws(index, epoch))
            n, n_applied = n + 1, n_applied + draws[kind]["applied"]
            radii += [one["radius"] for one in draws.values() if "radius" in one]
    assert abs(n_applied / n - p) < 4 * (p * (1 - p) / n) ** 0.5
    if radii:
        assert 0.1 <= min(radii) < 0.2 and 1.9 < max(radii) < 2.0


def test_changed_attributes_count(small_images):
    blur = DinoBlur(1.0, 0.5, 0.5)
    dataset = ImageFolder(str(small_images), compose(HEAD, blur, TAIL))
    loader = native_loader(dataset, batch_size=8)
    for radius in (0.5, 3.0, 0.0):
        blur.radius_min = blur.radius_max = radius
        for images, _ in loader:
            break
        image = Image.open(dataset.samples[0][0]).convert("RGB").resize((24, 20), 2)
        wanted = np.asarray(image.filter(ImageFilter.GaussianBlur(radius)))
        assert np.array_equal(images[0].permute(1, 2, 0).numpy(), wanted)


# ---- random code ---------------------------------------------------------------------------------

BLUR = "image = image.filter(ImageFilter.GaussianBlur({}))"
PIECES = [
    ["if random.random() < 0.25:", "    image = self.t(image)"],
    ["if not random.random() >= 0.3:", "    return image"],
    ["if self.p > random.random():", "    image = self.u(image)", "else:", "    image = self.t(image)"],
    ["image = self.t(image) if random.random() <= 0.75 else image"],
    ["image = ImageOps.solarize(image)"],
    ["image = ImageOps.posterize(image, 3)"],
    ["image = self.u(image)"],
    [BLUR.format("random.uniform(0.5, 1.5)")],
    [BLUR.format("radius=random.uniform(*self.limits)")],
    ["s = 0.5 + random.random() * 2", BLUR.format("s")],
    ["s = random.random()", "if s < 0.5:", "    " + BLUR.format("s")],  # not independent
    ["do = random.random() < 0.6", "if do:", "    image = self.t(image)", "if not do:",
     "    image = self.u(image)"],
    ["do = random.random() < 0.6", "if do and self.p:", "    image = self.t(image)",
     "image = self.u(image) if do else image"],
    ["if random.random() < 0.5 and random.random() < 0.4:", "    image = self.t(image)"],
    ["if random.random() < 0.1 or random.random() > 0.8:", "    image = ImageOps.invert(image)"],
    ["if random.uniform(-1, 3) < self.p:", "    image = self.t(image)", "    image = self.u(image)"],
]
# Numbers between 0 and 1 for which each of the probabilities above is exact.
GRID = [(i + 0.5) / 20 for i in range(20)]


class Recorder:
    """An image that notes what is done with it."""

    def __init__(self, done=()):
        self.done = done

    def filter(self, blur):
        return Recorder((*self.done, ("RandomBlur", blur.radius)))


def noting(name):
    return lambda image, *_: Recorder((*image.done, (name, None)))


class Own:
    p = 0.4

    def __init__(self):
        self.t, self.u, self.limits = noting("t"), noting("u"), [0.2, 1.2]


def executed(own, monkeypatch):
    """How often the code does what, for all numbers that it may draw: names, and the radii."""
    counts, radii = Counter(), {}
    for numbers in itertools.product(GRID, repeat=2):
        left = itertools.chain(numbers, itertools.repeat(None))
        def draw(left=left):
            number = next(left)
            if number is None:
                raise OverflowError
            return number
        with monkeypatch.context() as patch:
            patch.setattr(random, "random", draw)
            patch.setattr(random, "uniform", lambda low, high: low + (high - low) * draw())
            for name in ("solarize", "posterize", "invert"):
                patch.setattr(ImageOps, name, noting(name))
            done = own(Recorder()).done
        names = tuple(name for name, _ in done)
        counts[names] += 1
        for at, (name, radius) in enumerate(done):
            if name == "RandomBlur":
                radii.setdefault((names, at), set()).add(round(radius, 6))
    return {names: n / len(GRID) ** 2 for names, n in counts.items()}, radii


def expected(steps, own):
    """The same from what was understood: (probability, [(name, limits of the radius)])."""
    ways = [(1.0, [])]
    for step in steps:
        if isinstance(step, Chance):
            inner = expected(step.transforms, own)
            options = [(1 - step.p, []), *((step.p * p, done) for p, done in inner)]
        elif isinstance(step, PilCall):
            names = {"RandomSolarize": "solarize", "RandomPosterize": "posterize",
                     "RandomInvert": "invert"}
            limits = step.values if step.name == "RandomBlur" else None
            options = [(1.0, [(names.get(step.name, step.name), limits)])]
        else:
            options = [(1.0, [("t" if step is own.t else "u", None)])]
        ways = [(p * q, [*a, *b]) for p, a in ways for q, b in options if p * q]
    return ways


def check_body(lines, monkeypatch):
    name = f"<random transform {abs(hash(tuple(lines)))}>"
    text = "\n".join(["class Made(Own):", "    def __call__(self, image):",
                      *("        " + line for line in lines), "        return image", ""])
    linecache.cache[name] = len(text), None, text.splitlines(True), name
    scope = {"random": random, "ImageFilter": ImageFilter, "ImageOps": ImageOps, "Own": Own,
             "__name__": "made"}
    exec(compile(text, name, "exec"), scope)
    own = scope["Made"]()
    try:
        steps = transforms_in(own, RGB)
    except NotUnderstood:
        return False
    try:
        counts, radii = executed(own, monkeypatch)
    except OverflowError:  # more than two numbers: too many combinations
        return True
    wanted = Counter()
    for p, done in expected(steps, own):
        names = tuple(one for one, _ in done)
        wanted[names] += p
        for at, (_, limits) in enumerate(done):
            if limits is not None and (names, at) in radii:
                low, high = limits
                assert radii[names, at] == {round(low + (high - low) * u, 6) for u in GRID}
    assert set(counts) == set(wanted)
    for names, p in counts.items():
        assert wanted[names] == pytest.approx(p, abs=1e-9), (lines, steps)
    return True


def test_random_code_does_what_was_understood(monkeypatch):
    understood = []

    @settings(max_examples=150, deadline=None, derandomize=True,
              suppress_health_check=list(HealthCheck))
    @given(st.lists(st.sampled_from(PIECES), min_size=1, max_size=3))
    def check(pieces):
        understood.append(check_body([line for piece in pieces for line in piece], monkeypatch))

    check()
    assert 40 < sum(understood) < len(understood)


# ---- what is left to torch -----------------------------------------------------------------------


class Counting(DinoBlur):
    def __call__(self, img):
        self.n = random.random()
        return super().__call__(img)


def by_gauss(img):
    return img if random.gauss(0, 1) < 0.5 else ImageOps.invert(img)


def by_own_generator(img):
    return img if GENERATOR.random() < 0.5 else ImageOps.invert(img)


def by_numpys_generator(img):
    return img if NUMPYS.random() < 0.5 else ImageOps.invert(img)


def used_twice(img):
    number = random.random()
    return img.filter(ImageFilter.GaussianBlur(number)) if number < 0.5 else img


def one_of_two(img):
    return ImageOps.invert(img) if random.random() < 0.5 else ImageOps.solarize(img)


def divided(img):
    return img.filter(ImageFilter.GaussianBlur(1 / random.uniform(1, 2)))


def truth_of_a_number(img):
    return ImageOps.invert(img) if random.random() else img


def truth_of_a_filter(img):
    return ImageOps.invert(img) if ImageFilter.GaussianBlur(random.random()) else img


def large(img):
    return img.filter(ImageFilter.GaussianBlur(11))


def two_radii(img):
    return img.filter(ImageFilter.GaussianBlur((1, 2)))


def other_filter(img):
    return img.filter(ImageFilter.BoxBlur(1))


def with_a_cutoff(img):
    return ImageOps.autocontrast(img, 3)


def of_many(img):
    for _ in SIX:
        img = ImageOps.invert(img) if random.random() < 0.5 else img
    return img


def on_the_index(img):
    return ImageOps.invert(img) if random.random() < LIMITS["a"] else img


GENERATOR, NUMPYS, SIX, LIMITS = random.Random(7), np.random.default_rng(7), (1,) * 6, {"a": 0.5}


@pytest.mark.parametrize("transform", [
    Counting(), by_gauss, by_own_generator, by_numpys_generator, used_twice, one_of_two, divided,
    truth_of_a_number, truth_of_a_filter, large, two_radii, other_filter, with_a_cutoff, of_many,
    on_the_index, DinoBlur("0.5"), DinoBlur(0.5, -1, 1), MocoBlur(sigma={0: 1, 1: 2}),
], ids=lambda one: getattr(one, "__name__", type(one).__name__))
def test_these_are_left_to_torch(small_images, transform):
    dataset = ImageFolder(str(small_images), compose(HEAD, transform, TAIL))
    state = random.getstate()
    text = feedmill.DataLoader(dataset).explain()
    assert text.startswith("torch's own path, because\n"), text
    assert random.getstate() == state


@pytest.mark.parametrize("what", ["random", "uniform", "solarize", "blur", "filter"])
def test_replaced_functions(small_images, monkeypatch, what):
    transform = compose(HEAD, DinoBlur(), DinoSolarization(0.5), TAIL)
    loader = feedmill.DataLoader(ImageFolder(str(small_images), transform))
    assert loader.explain().startswith("native path")
    owner, name = {
        "random": (random, "random"), "uniform": (random, "uniform"),
        "solarize": (ImageOps, "solarize"), "blur": (ImageFilter, "GaussianBlur"),
        "filter": (Image.Image, "filter"),
    }[what]
    monkeypatch.setattr(owner, name, lambda *arguments, **named: None)
    assert loader.explain().startswith("torch's own path")


def test_replaced_modules(small_images, monkeypatch):
    monkeypatch.setitem(globals(), "random", SimpleNamespace(random=lambda: 0.5,
                                                             uniform=random.uniform))
    transform = compose(HEAD, DinoBlur(), TAIL)
    text = feedmill.DataLoader(ImageFolder(str(small_images), transform)).explain()
    assert text.startswith("torch's own path")


@pytest.mark.parametrize("transforms", [
    [T.Grayscale(1), DinoBlur(), TAIL], [TAIL, DinoSolarization(0.5)],
    [T.RandomApply([lambda image: image.convert("L")]), TAIL],
])
def test_images_of_another_kind(small_images, transforms):
    dataset = ImageFolder(str(small_images), compose(HEAD, *transforms))
    assert feedmill.DataLoader(dataset).explain().startswith("torch's own path")
