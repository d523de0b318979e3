"""Random numbers and functions of Pillow in transforms of the user's own: what is understood has the
distribution of what the code does."""

import linecache
import math
import random
from collections import Counter
from types import SimpleNamespace

import feedmill
import numpy as np
import pytest
import torch
from feedmill.planner.attributes import NotUnderstood
from feedmill.planner.drawing import Chance, PilCall
from feedmill.planner.evaluating import transforms_in
from feedmill.planner.image_calls import ImageState
from helpers import compose, native_loader
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image, ImageFilter, ImageOps
from torchvision import transforms as T
from torchvision.datasets import ImageFolder
from torchvision.transforms import v2

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


class VicregBlur:
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
    "barlow": ([VicregBlur(0.4)], [Chance(0.4, (PilCall("RandomBlur", (0.1, 2.0)),))]),
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
    loader = native_loader(dataset, batch_size=8, native="verify")
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
    ["if random.random() < 0.5:", "    if random.random() < 0.2:", "        image = self.t(image)",
     "    image = self.u(image)"],
    ["if random.random() < 0.5:", "    image = self.u(self.t(image))", "else:",
     "    image = self.t(self.u(image))"],
    ["image = self.u(self.t(image)) if random.random() < 0.35 else self.t(image)"],
    ["image = self.t(self.t(image)) if random.random() < 0.25 else self.t(image)"],
    ["do = random.random() < 0.6", "if do:", "    image = self.t(image)",
     "image = self.u(image)", "if do:", "    image = self.t(image)"],
    ["if (random.random() < 0.5) is True:", "    image = self.t(image)"],
    ["if (random.random() < 0.5) is not None:", "    image = self.t(image)"],
    ["both = random.random() < 0.6 and random.random() > 0.3", "if both:",
     "    image = self.t(image)"],
    ["for one in self.both:", "    if random.random() < 0.45:", "        image = one(image)"],
    ["if random.random() < 0.3:", "    image = self.t(image)", "elif random.random() < 0.3:",
     "    image = self.u(image)"],
    ["if random.random() < 0.3:", "    return self.t(image)", "image = self.t(image)"],
    ["blur = ImageFilter.GaussianBlur(random.uniform(1, 2))", "image = image.filter(blur)",
     "image = image.filter(blur)"],
    ["blur = ImageFilter.GaussianBlur(1.5)", "image = image.filter(blur)",
     "image = image.filter(blur)"],
    ["s = random.uniform(2, 1)", "if 1 > random.random() * 4:", "    " + BLUR.format("s")],
    ["if 1 - random.random() <= 0.15:", "    " + BLUR.format("(random.random() - 3) / -2.0")],
    ["if random.uniform(3, 1) < 2:", "    image = self.t(image)"],
    ["if 1 <= random.random() * 2 - -0.5:", "    image = self.t(image)"],
    ["blurred = " + BLUR.format("0.5")[8:], "image = blurred if random.random() < 0.5 else image"],
]
NOT_UNDERSTOOD = {"\n".join(PIECES[i]) for i in (2, 10, 11, 14, 17, 20, 21, 25, 27, 33)}
# Numbers between 0 and 1 for which each of the probabilities above is exact.
GRID = [(i + 0.5) / 20 for i in range(20)]
# More make too many combinations.
MOST_NUMBERS = 3


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
        self.both = [self.t, self.u]


class Next(Exception):
    """The code draws one more number."""


def executed(own, monkeypatch):
    """How often the code does what, for all numbers that it may draw: names; and which radii each
    of its blurs, and all blurs of a call together, have."""
    counts, radii, together = Counter(), {}, {}
    pending = [()]
    with monkeypatch.context() as patch:
        def draw():
            for number in left:
                return number
            raise Next
        patch.setattr(random, "random", draw)
        patch.setattr(random, "uniform", lambda low, high: low + (high - low) * draw())
        for name in ("solarize", "posterize", "invert"):
            patch.setattr(ImageOps, name, noting(name))
        while pending:
            numbers = pending.pop()
            left = iter(numbers)
            try:
                done = own(Recorder()).done
            except Next:
                if len(numbers) == MOST_NUMBERS:
                    raise OverflowError from None
                pending += [(*numbers, one) for one in GRID]
                continue
            names = tuple(name for name, _ in done)
            counts[names] += len(GRID) ** -len(numbers)
            for at, (name, radius) in enumerate(done):
                if name == "RandomBlur":
                    radii.setdefault((names, at), set()).add(round(radius, 6))
            together.setdefault(names, set()).add(tuple(round(one or 0, 6) for _, one in done))
    return counts, radii, together


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
    """Whether the code was understood, and is compared."""
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
        counts, radii, together = executed(own, monkeypatch)
    except OverflowError:
        return False
    wanted = Counter()
    for p, done in expected(steps, own):
        names = tuple(one for one, _ in done)
        wanted[names] += p
        for at, (_, limits) in enumerate(done):
            if limits is not None and (names, at) in radii:
                low, high = limits
                assert radii[names, at] == {round(low + (high - low) * u, 6) for u in GRID}
    for names, found in together.items():  # the radii are independent
        n = [len(radii[names, at]) for at, name in enumerate(names) if name == "RandomBlur"]
        assert len(found) == math.prod(n), (lines, steps)
    assert set(counts) == set(wanted)
    for names, p in counts.items():
        assert wanted[names] == pytest.approx(p, abs=1e-9), (lines, steps)
    return True


@pytest.mark.parametrize("number", range(len(PIECES)))
def test_pieces_of_code_do_what_was_understood(monkeypatch, number):
    text = "\n".join(PIECES[number])
    assert check_body(PIECES[number], monkeypatch) is (text not in NOT_UNDERSTOOD), text


def test_random_code_does_what_was_understood(monkeypatch):
    understood = []

    @settings(max_examples=300, deadline=None, derandomize=True,
              suppress_health_check=list(HealthCheck))
    @given(st.lists(st.sampled_from(PIECES), min_size=1, max_size=3))
    def check(pieces):
        understood.append(check_body([line for piece in pieces for line in piece], monkeypatch))

    check()
    assert 60 < sum(understood) < len(understood)


# ---- what is left to torch -----------------------------------------------------------------------


class Steps:
    def __init__(self, n):
        self.n = (None,) * n

    def __call__(self, img):
        for _ in self.n:
            img = ImageOps.invert(img)
        return img


class Nested:
    """Conditions within conditions, each in a function of its own."""

    def __init__(self, depth):
        self.inner = Nested(depth - 1) if depth > 1 else Steps(1)

    def __call__(self, img):
        if random.random() < 0.95:
            img = self.inner(img)
        return img


def twice_the_same(img):
    blur = ImageFilter.GaussianBlur(1)
    return img.filter(blur).filter(blur)


INVERTED = (PilCall("RandomInvert"),)


def test_functions_like_those_below_are_understood():
    """So that these are left to torch for the one thing in which they differ."""
    assert transforms_in(less_than(0.25), RGB) == [Chance(0.25, INVERTED)]
    assert transforms_in(less_than(-1), RGB) == [Chance(0, INVERTED)]
    assert transforms_in(less_than(1), RGB) == [Chance(1, INVERTED)]
    assert transforms_in(drawn_below(4), RGB) == [Chance(0.75, INVERTED)]
    assert transforms_in(drawn_below(-1), RGB) == [Chance(1, INVERTED)]
    assert transforms_in(times(12), RGB) == [Chance(0.25, INVERTED)]
    assert transforms_in(by_threshold(99.5), RGB) == [PilCall("RandomSolarize", (99.5,))]
    assert transforms_in(twice_the_same, RGB) == [PilCall("RandomBlur", (1, 1))] * 2
    assert transforms_in(DinoBlur(0.25, 2, 1), RGB) == [
        Chance(0.25, (PilCall("RandomBlur", (2, 1)),))
    ]


@pytest.mark.parametrize("transform", [Steps(62), Nested(8)])
def test_just_within_the_limits(small_images, transform):
    dataset = ImageFolder(str(small_images), compose(HEAD, transform, TAIL))
    loader = native_loader(dataset, batch_size=8, native="verify")
    list(loader)
    assert loader.stats().decode.verified_samples == len(dataset)


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


def with_one_filter(img):
    blur = ImageFilter.GaussianBlur(random.uniform(0.1, 2))
    return img.filter(blur).filter(blur)


def calling_a_filter(img):
    return ImageFilter.GaussianBlur(1)(img)


def on_a_filters_name(img):
    return img if ImageFilter.GaussianBlur(1).name == "RandomBlur" else ImageOps.invert(img)


def on_a_numbers_attribute(img):
    number = random.random()
    return img if number.is_used else ImageOps.invert(img)


def is_true(img):
    return ImageOps.invert(img) if (random.random() < 0.5) is True else img


def is_not_false(img):
    return ImageOps.invert(img) if False is not (random.random() < 0.5) else img


def less_than(limit):
    return lambda img: ImageOps.invert(img) if random.random() < limit else img


def drawn_below(most):
    return lambda img: ImageOps.invert(img) if random.uniform(0, most) < 3 else img


def times(factor):
    return lambda img: ImageOps.invert(img) if random.random() * factor < 3 else img


def by_threshold(threshold):
    return lambda img: ImageOps.solarize(img, threshold)


def on_a_rounded_number(img):
    return ImageOps.invert(img) if random.random() + 1e15 < 1e15 + 0.5 else img


def by_torch(img):
    return ImageOps.invert(img) if torch.rand(2)[0] < 0.5 else img


def of_bernoulli(expression):
    """A function that inverts an image under a condition."""
    name = f"<condition {expression}>"
    text = f"def invert(img):\n    return ImageOps.invert(img) if {expression} else img\n"
    linecache.cache[name] = len(text), None, text.splitlines(True), name
    scope = {"torch": torch, "ImageOps": ImageOps, "__name__": "made"}
    exec(compile(text, name, "exec"), scope)
    return scope["invert"]


BERNOULLIS = [of_bernoulli(one) for one in (
    "torch.bernoulli(torch.tensor(1)) == 0", "torch.bernoulli(torch.tensor([0.5])) == 0",
    "torch.bernoulli(torch.tensor(0.5), generator=None) == 0", "torch.bernoulli(0.5) == 0",
    "torch.bernoulli(torch.tensor(0.5, dtype=torch.float64)) == 0",
    "torch.bernoulli(torch.tensor(0.5)) == 2", "torch.bernoulli(torch.tensor(0.5)) == 0.0",
    "torch.bernoulli(torch.tensor(0.5)) > 0", "torch.bernoulli(torch.tensor(1.5)) == 0",
    "torch.bernoulli(torch.tensor(0.5)) is None", "torch.rand(1) is None",
    "torch.bernoulli(torch.tensor(0.5)) + 1 == 1",
    "torch.bernoulli(torch.tensor(torch.rand(1))) == 0", "torch.bernoulli(torch.rand(1)) == 0",
    "torch.bernoulli(torch.tensor(0.5)).item() == 0", "float(torch.bernoulli(torch.tensor(0.5))) == 0",
    "torch.bernoulli(torch.tensor(0.5), 0.5) == 0", "torch.rand(1) * torch.rand(1) < 0.5",
    "torch.rand(1) / 0 < 0.5", "float('0.1') < 0.5",
)]


def by_the_system(img):
    return ImageOps.invert(img) if random.SystemRandom().random() < 0.5 else img


def by_an_array(img):
    return ImageOps.invert(img) if np.random.rand(1) < 0.5 else img


def of_two_numbers(img):
    return ImageOps.invert(img) if random.random() < random.random() else img


def chained(img):
    return ImageOps.invert(img) if 0.2 < random.random() < 0.5 else img


def on_the_size(img):
    return ImageOps.invert(img) if random.random() * 100 < img.size[0] else img


def made_before(img):
    return img.filter(MADE)


def by_a_subclass(img):
    return img.filter(SubclassedBlur(1))


def in_other_orders(img):
    if random.random() < 0.5:
        return FLIP(JITTER(img))
    return JITTER(FLIP(img))


def in_one_branch_or_the_other(img):
    do = random.random() < 0.5
    if do:
        img = FLIP(img)
    img = ImageOps.invert(img)
    if not do:
        img = FLIP(img)
    return img


def with_a_mask(img):
    return ImageOps.equalize(img, None)


def to_no_bits(img):
    return ImageOps.posterize(img, 0)


def by_an_attribute_of_unknown(img):
    return ImageOps.invert(img) if LYING.random() < 0.5 else img


def calling_an_unknown(img):
    return LYING(img)


class SubclassedBlur(ImageFilter.GaussianBlur):
    pass


class Lying:
    """An object that seems to be whatever it is asked for. Nobody may ask it."""

    def __getattr__(self, name):
        raise RuntimeError(f"asked for {name}")


class WithProperty:
    @property
    def p(self):
        raise RuntimeError("read")

    def __call__(self, img):
        return ImageOps.invert(img) if random.random() < self.p else img


class Slept(random.Random):
    """Another generator of Python's."""

    def random(self):
        return 0.25


def by_a_subclassed_generator(img):
    return ImageOps.invert(img) if SLEPT.uniform(0, 1) < 0.5 else img


MADE, LYING, SLEPT = ImageFilter.GaussianBlur(random.uniform(1, 2)), Lying(), Slept()
FLIP, JITTER = T.RandomHorizontalFlip(), T.ColorJitter(0.3)
GENERATOR, NUMPYS, SIX, LIMITS = random.Random(7), np.random.default_rng(7), (1,) * 6, {"a": 0.5}


@pytest.mark.parametrize("transform", [
    Counting(), by_gauss, by_own_generator, by_numpys_generator, used_twice, one_of_two, divided,
    truth_of_a_number, truth_of_a_filter, large, two_radii, other_filter, with_a_cutoff, of_many,
    on_the_index, DinoBlur("0.5"), DinoBlur(0.5, -1, 1), MocoBlur(sigma={0: 1, 1: 2}),
    DinoBlur(np.float64(0.5)), DinoBlur(True), DinoBlur(0.5, 1, math.nan),
    DinoBlur(0.5, 0, 10**400), with_one_filter, calling_a_filter, on_a_filters_name,
    on_a_numbers_attribute, is_true, is_not_false, less_than(math.nan), less_than(math.inf),
    less_than(10**400), less_than(1e-9), less_than(1 - 1e-9), drawn_below(math.nan),
    drawn_below(math.inf), drawn_below(10**400), drawn_below(5e-324), times(math.inf),
    times(10**400), times(1e308), times(0), by_threshold(math.nan), by_threshold(-math.inf),
    by_threshold(10**400), by_threshold(True), by_threshold("1"), on_a_rounded_number, by_torch,
    by_the_system, by_an_array, of_two_numbers, chained, on_the_size, made_before, by_a_subclass,
    in_other_orders, in_one_branch_or_the_other, with_a_mask, to_no_bits, by_an_attribute_of_unknown, calling_an_unknown, WithProperty(),
    by_a_subclassed_generator, Steps(64), Nested(9), *BERNOULLIS,
], ids=lambda one: getattr(one, "__name__", type(one).__name__))
def test_these_are_left_to_torch(small_images, transform):
    dataset = ImageFolder(str(small_images), compose(HEAD, transform, TAIL))
    state = random.getstate()
    text = feedmill.DataLoader(dataset).explain()
    assert text.startswith("torch's own path, because\n"), text
    assert random.getstate() == state


@pytest.mark.parametrize("name", ["__init__", "__new__", "filter"])
def test_replaced_methods_of_the_blur(small_images, monkeypatch, name):
    # Not Pillow's own class, from which a __new__ can't be removed again.
    kind = ImageFilter.GaussianBlur
    own = {name: vars(kind)[name] for name in ("name", "__init__", "filter")}
    monkeypatch.setattr(ImageFilter, "GaussianBlur", type(kind)("Copy", kind.__bases__, own))
    transform = compose(HEAD, MocoBlur(), TAIL)
    loader = feedmill.DataLoader(ImageFolder(str(small_images), transform))
    assert loader.explain().startswith("native path")
    setattr(ImageFilter.GaussianBlur, name, lambda *arguments: None)
    assert loader.explain().startswith("torch's own path")


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


def test_a_replaced_generator(small_images, monkeypatch):
    transform = compose(HEAD, MocoBlur(), TAIL)
    loader = feedmill.DataLoader(ImageFolder(str(small_images), transform))
    assert loader.explain().startswith("native path")
    monkeypatch.setattr(random._inst, "random", lambda: 0.5, raising=False)
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
    [TAIL, T.RandomApply([DinoSolarization(0.5)])], [T.Grayscale(1), T.RandomApply([MocoBlur()])],
    [v2.ToImage(), v2.RandomApply([DinoBlur()])], [TAIL, T.Lambda(ImageOps.invert)],
    [GrayScale(0.5), T.Lambda(lambda image: image.convert("L")), MocoBlur(), TAIL],
    [TAIL, T.RandomErasing(), DinoSolarization(0.5)],
])
def test_images_of_another_kind(small_images, transforms):
    dataset = ImageFolder(str(small_images), compose(HEAD, *transforms))
    assert feedmill.DataLoader(dataset).explain().startswith("torch's own path")
