"""rng="torch" with transforms of a script's own that draw from Python's ``random`` or from
numpy.random, and with MAE's crop: batches equal those of torch's own DataLoader."""

import random

import feedmill
import numpy as np
import pytest
import torch
from feedmill.planner.drawing import Chance, PilCall
from feedmill.planner.evaluating import transforms_in
from feedmill.planner.image_calls import ImageState
from feedmill.planner.picking import Choice
from PIL import Image, ImageFilter, ImageOps
from test_drawing import DinoBlur, DinoSolarization, MocoBlur, VicregBlur
from test_one_attempt import RandomResizedCrop
from test_picking import BY_PICKS
from test_rng_torch import check as check_loader
from test_rng_torch import few_cpus, mixed  # noqa: F401  fixtures
from test_torch_draws import check as check_draws
from torchvision import transforms as v1
from torchvision.datasets import ImageFolder
from torchvision.transforms import v2

RGB = ImageState(True, "RGB")


# ---- as in public code ---------------------------------------------------------------------------


class BarlowBlur:
    """With Python's generator in place of NumPy's."""

    def __init__(self, p):
        self.p = p

    def __call__(self, img):
        if random.random() < self.p:
            sigma = random.random() * 1.9 + 0.1
            return img.filter(ImageFilter.GaussianBlur(sigma))
        else:
            return img


class VicregSolarization:
    def __init__(self, p):
        self.p = p

    def __call__(self, img):
        if np.random.rand() < self.p:
            return ImageOps.solarize(img)
        else:
            return img


class MsnBlur:
    """As MSN's, with float() for a Pillow that takes no tensor as a radius."""

    def __init__(self, p=0.5, radius_min=0.1, radius_max=2.):
        self.prob = p
        self.radius_min = radius_min
        self.radius_max = radius_max

    def __call__(self, img):
        if torch.bernoulli(torch.tensor(self.prob)) == 0:
            return img

        radius = self.radius_min + torch.rand(1) * (self.radius_max - self.radius_min)
        return img.filter(ImageFilter.GaussianBlur(radius=float(radius)))


class TwoViews:
    """As VICReg's: the views have transforms of their own."""

    def __init__(self, one, other):
        self.one, self.other = v1.Compose(one), v1.Compose(other)

    def __call__(self, sample):
        x1 = self.one(sample)
        x2 = self.other(sample)
        return x1, x2


class GrayScale:
    def __init__(self, p=0.2):
        self.p = p
        self.transf = v1.Grayscale(3)

    def __call__(self, img):
        if random.random() < self.p:
            return self.transf(img)
        else:
            return img


def blur_and_posterize(img):
    return ImageOps.equalize(ImageOps.posterize(img.filter(ImageFilter.GaussianBlur(1.5)), 3))


def invert_outside(img):
    return ImageOps.invert(img) if 2.5 > random.uniform(4, 1) else img


def blur_by_difference(img):
    if 1 - random.random() <= 0.65:
        img = img.filter(ImageFilter.GaussianBlur(2 - random.random()))
    return img


def twice(img):
    do = random.random() > 0.4
    if do:
        img = ImageOps.invert(img)
    if random.random() >= 0.7:
        img = ImageOps.autocontrast(img)
        img = img.filter(ImageFilter.GaussianBlur(random.uniform(1, 1)))
    return img


def both(img):
    if random.random() < 0.8 and random.random() < 0.6:
        img = ImageOps.solarize(img, 99)
    return img


def picked_in_vain(img):
    if random.randint(0, 1):
        pass
    return img


def both_generators(img):
    if 1 - np.random.random() <= 0.65:
        img = ImageOps.invert(img)
    if random.random() > 0.4:
        img = img.filter(ImageFilter.GaussianBlur(2 - np.random.random_sample()))
    return img


def by_numpy(img):
    return ImageOps.invert(img) if np.random.uniform(1, 2) < 1.5 else img


def by_numpys_uniform(img):
    if np.random.uniform() < 0.7:
        img = img.filter(ImageFilter.GaussianBlur(radius=np.random.uniform(0.1, high=2.0)))
    if np.random.uniform(low=-0.3) > 0.2:
        img = ImageOps.solarize(img)
    return img.filter(ImageFilter.GaussianBlur(np.random.uniform(0, 1.3) + 0.7))


def by_torch(img):
    if torch.rand(1) < 0.7:
        img = img.filter(ImageFilter.GaussianBlur(torch.rand(1).item() * 1.9 + 0.1))
    if 0.3 <= torch.rand((1,)) and torch.rand(1).item() > 0.1:
        img = ImageOps.solarize(img)
    return img


def by_tensors(img):
    if torch.bernoulli(torch.tensor(0.3)) == 1:
        img = ImageOps.invert(img)
    if torch.bernoulli(torch.tensor(0.7)) != 1:
        img = ImageOps.solarize(img)
    if 2 - torch.rand(1) * 1 <= 1.3:
        img = ImageOps.equalize(img)
    return img.filter(ImageFilter.GaussianBlur((torch.rand(1) * 2.3).item()))


def by_differences_of_tensors(img):
    if torch.rand(1) - 0.3 > 0.1:
        img = ImageOps.invert(img)
    if torch.bernoulli(torch.tensor(1.0)) != 0:
        img = ImageOps.equalize(img)
    return img.filter(ImageFilter.GaussianBlur(float(1.7 - torch.rand(1))))


def always(img):
    return ImageOps.invert(img) if random.random() < 1.0 else img


JITTER = v1.ColorJitter(0.4, 0.4, 0.2, 0.1)
OWN = {
    "dino": [v1.RandomHorizontalFlip(), v1.RandomApply([JITTER], 0.8), v1.RandomGrayscale(0.2),
             DinoBlur(), DinoSolarization(0.2)],
    "moco": [v1.RandomApply([JITTER], 0.8), v1.RandomGrayscale(0.2),
             v1.RandomApply([MocoBlur()], 0.5), v1.RandomHorizontalFlip()],
    "moco-v2": [v2.RandomApply([MocoBlur([0.1, 2.0])], 0.5), v2.RandomHorizontalFlip()],
    "barlow": [BarlowBlur(0.6), DinoSolarization(0.4), GrayScale()],
    "vicreg": [v1.RandomApply([JITTER], 0.8), VicregBlur(0.6), VicregSolarization(0.4)],
    "both generators": [both_generators, DinoBlur(), VicregSolarization(0.5)],
    "deit": [v1.RandomChoice([GrayScale(1.0), DinoSolarization(1.0), DinoBlur(1.0)])],
    "order": [v1.RandomOrder([GrayScale(0.5), DinoBlur(), v1.RandomInvert()])],
    "picked in vain": [picked_in_vain, DinoBlur(0.7)],
    "fixed": [blur_and_posterize, v1.RandomInvert()],
    "uniform": [invert_outside, always],
    "difference": [blur_by_difference],
    "twice": [twice, both],
    "torch": [by_torch, JITTER],
    "msn": [JITTER, MsnBlur(), v1.RandomGrayscale(0.2), MsnBlur(0.1)],
    "tensors": [by_tensors, by_differences_of_tensors],
    "numpy's uniform": [by_numpys_uniform, by_numpy],
    **{name: [function] for name, function in BY_PICKS.items()},
}
HEAD, TAIL = v1.Resize((24, 20)), v1.ToTensor()


@pytest.mark.parametrize("name", OWN)
def test_draws(name):
    check_draws(v1.Compose([HEAD, *OWN[name], TAIL]))


def test_draws_of_maes_crop():
    for scale in ((0.2, 1.0), (0.9, 1.4)):
        crop = RandomResizedCrop(24, scale, interpolation=v1.InterpolationMode.BICUBIC)
        check_draws(v1.Compose([crop, v1.RandomHorizontalFlip(), TAIL]))


@pytest.mark.parametrize("name", ["dino", "moco", "vicreg", "deit", "twice", "numpy's uniform", "several picks", "torch", "msn", "tensors"])
def test_loaders(mixed, name):  # noqa: F811
    transform = v1.Compose([RandomResizedCrop(24), *OWN[name], TAIL])
    check_loader(ImageFolder(mixed, transform), num_workers=3)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_views_that_draw_from_numpy(mixed, num_workers):  # noqa: F811
    crop = v1.RandomResizedCrop(24)
    views = TwoViews([crop, VicregBlur(1.0), VicregSolarization(0.0), TAIL],
                     [crop, VicregBlur(0.1), VicregSolarization(0.2), TAIL])
    check_loader(ImageFolder(mixed, views), num_workers=num_workers)


def test_another_generator_of_numpy(mixed):  # noqa: F811
    dataset = ImageFolder(mixed, v1.Compose([HEAD, VicregSolarization(0.5), TAIL]))
    before = np.random.get_bit_generator()
    np.random.set_bit_generator(np.random.PCG64(1))
    try:
        text = feedmill.DataLoader(dataset, num_workers=0, rng="torch").explain()
    finally:
        np.random.set_bit_generator(before)
    assert "RandomApply with NumPy's bit generator PCG64" in text


@pytest.mark.slow
@pytest.mark.parametrize("name", OWN)
@pytest.mark.parametrize("n_workers", [1, 3, 8])
def test_all_loaders(mixed, name, n_workers):  # noqa: F811
    transform = v1.Compose([v1.RandomResizedCrop(24), *OWN[name], TAIL])
    check_loader(ImageFolder(mixed, transform), num_workers=n_workers, epochs=3, batch_size=3,
                 persistent_workers=n_workers == 3)


# ---- what is not drawn as the code does it -------------------------------------------------------


def blur_drawn_before(img):
    sigma = random.uniform(0.1, 2.0)
    if random.random() < 0.5:
        img = img.filter(ImageFilter.GaussianBlur(sigma))
    return img


def not_needed(img):
    random.random()
    return img


def drawn_in_vain(img):
    sigma = random.uniform(0.1, 2.0)  # noqa: F841
    if random.random() < 0.5:
        img = ImageOps.invert(img)
    return img


def decided_later(img):
    do = random.random() < 0.5
    img = img.filter(ImageFilter.GaussianBlur(random.uniform(0.1, 2.0)))
    return ImageOps.invert(img) if do else img


def divided(img):
    return img.filter(ImageFilter.GaussianBlur((random.random() + 0.25) / 3))


def scaled_twice(img):
    return img.filter(ImageFilter.GaussianBlur(random.uniform(0.1, 0.7) * 1.3))


def numpys_scaled_twice(img):
    return img.filter(ImageFilter.GaussianBlur(np.random.uniform(0.1, 0.7) * 1.3))


def tensor_and_number(img):
    return img.filter(ImageFilter.GaussianBlur((torch.rand(1) * 1.3).item() * 1.1))


def tensor_scaled_twice(img):
    return img.filter(ImageFilter.GaussianBlur(float(torch.rand(1) * 1.3 * 1.1)))


def tensor_and_large_number(img):
    return ImageOps.invert(img) if torch.rand(1) * 16777217 < 3e6 else img


def bernoulli_before(img):
    do = torch.bernoulli(torch.tensor(0.4))
    img = img.filter(ImageFilter.GaussianBlur(torch.rand(1).item()))
    return ImageOps.invert(img) if do == 1 else img


def picked_before(img):
    radius = random.uniform(0.1, 2.0)
    if random.randint(0, 1):
        img = ImageOps.invert(img)
    return img.filter(ImageFilter.GaussianBlur(radius))


OTHERS = [
    blur_drawn_before, drawn_in_vain, decided_later, divided, scaled_twice, numpys_scaled_twice,
    picked_before, tensor_and_number, tensor_scaled_twice, tensor_and_large_number, bernoulli_before,
]


@pytest.mark.parametrize("function", OTHERS)
def test_other_orders_take_torchs_path(mixed, function):  # noqa: F811
    dataset = ImageFolder(mixed, v1.Compose([HEAD, function, TAIL]))
    loader = feedmill.DataLoader(dataset, num_workers=2, rng="torch")
    text = loader.explain()
    assert text.startswith("torch's own path") and "as the original does" in text
    loader.rng = "feedmill"
    assert loader.explain().startswith("native path")
    check_loader(dataset, native="auto", num_workers=2, epochs=1)


def compared_with_none(img):
    return ImageOps.invert(img) if random.random() is None else img


def compared_in_vain(img):
    do = random.random() < 0.5  # noqa: F841
    return img


@pytest.mark.parametrize(
    "function", [not_needed, compared_with_none, compared_in_vain])
def test_draws_without_effect_are_found(mixed, function):  # noqa: F811
    dataset = ImageFolder(mixed, v1.Compose([HEAD, function, TAIL]))
    for n_workers in (0, 2):
        text = feedmill.DataLoader(dataset, num_workers=n_workers, rng="torch").explain()
        assert text.startswith("torch's own path")


def test_what_is_known_of_draws():
    (dino,) = transforms_in(DinoBlur(0.3), RGB)
    assert dino == Chance(0.3, (PilCall("RandomBlur", (0.1, 2.0)),))
    assert dino.condition.numbers(dino.is_negated) == (2.0, 0.3, 0.0, 1.0, 0.0)
    assert dino.transforms[0].draw.formula == (0.1, 2.0 - 0.1)
    (barlow,) = transforms_in(BarlowBlur(0.3), RGB)
    assert barlow.transforms[0].draw.formula == (0.1, 1.9)
    (vicreg,) = transforms_in(VicregBlur(0.3), RGB)
    assert vicreg.condition.numbers() == (1.0, 0.3, 0.0, 1.0, 1.0)
    assert vicreg.transforms[0].draw.formula == (0.1, 1.9)
    for function in OTHERS:
        assert not is_exact(transforms_in(function, RGB))


# ---- random code ---------------------------------------------------------------------------------

PIECES = [
    ["if random.random() < 0.25:", "    image = self.t(image)"],
    ["if not random.random() >= 0.3:", "    return image"],
    ["image = self.t(image) if random.random() <= 0.75 else image"],
    ["image = ImageOps.solarize(image)"],
    ["image = blur(image, random.uniform(0.5, 1.5))"],
    ["s = 0.5 + random.random() * 2", "image = blur(image, s)"],
    ["s = random.uniform(0, 1)", "if random.random() < 0.5:", "    image = blur(image, s)"],
    ["do = random.random() < 0.6", "if do:", "    image = self.t(image)"],
    ["do = random.random() < 0.6", "image = self.u(image)", "if do:", "    image = self.t(image)"],
    ["if random.random() < 0.5 and random.random() < 0.4:", "    image = self.t(image)"],
    ["if random.uniform(-1, 3) < 0.7:", "    image = self.t(image)", "    image = self.u(image)"],
    ["if random.random() < 0.5:", "    if random.random() < 0.2:", "        image = self.t(image)",
     "    image = self.u(image)"],
    ["image = self.u(self.t(image)) if random.random() < 0.35 else self.t(image)"],
    ["if random.random() < 0.3:", "    image = self.t(image)", "elif random.random() < 0.3:",
     "    image = self.u(image)"],
    ["if random.random() < 0.3:", "    return self.t(image)", "image = self.t(image)"],
    ["if random.random() < 0.4:", "    random.random()", "    image = self.t(image)"],
    ["do = random.random() < 0.4"],
    ["if 1 - random.random() <= 0.15:", "    image = blur(image, 3 - random.random() * 1)"],
    ["image = blur(image, np.random.uniform(0.1, 1.9))"],
    ["if np.random.uniform(0, 3) <= 1.1:", "    image = self.t(image)"],
    ["if torch.rand(1) < 0.3:", "    image = self.t(image)"],
    ["if 0.1 > torch.rand(1).item():", "    image = self.u(image)"],
    ["if torch.bernoulli(torch.tensor(0.3)) == 0:", "    image = self.t(image)"],
    ["image = blur(image, float(0.1 + torch.rand(1) * 1.9))"],
    ["if random.randint(0, 1):", "    image = self.t(image)"],
    ["k = np.random.randint(3)", "if k == 0:", "    image = self.t(image)", "elif k == 1:",
     "    image = self.u(image)"],
    ["image = random.choice([self.t, self.u])(image)"],
    ["t = np.random.choice((self.t, self.u), p=[0.3, 0.7])", "if random.random() < 0.5:",
     "    image = t(image)"],
    ["k = random.randrange(2)", "image = self.u(image)", "if k:", "    image = self.t(image)"],
    ["k = np.random.randint(5, 9)"],
    ["if random.randint(0, 3) < 2 and random.random() < 0.6:", "    return self.t(image)"],
    ["image = blur(image, random.choice([0.5, 1, 1.5]))"],
]


class Own:
    def __init__(self):
        self.t, self.u = v1.RandomInvert(0.7), v1.RandomSolarize(99)


def _made(lines, number):
    import linecache

    name = f"<random transform {number} {abs(hash(tuple(lines)))}>"
    body = ["        " + line.replace("blur(image, ", "image.filter(ImageFilter.GaussianBlur(")
            .rstrip() for line in lines]
    body = [line + ")" if "GaussianBlur(" in line else line for line in body]
    text = "\n".join(["class Made(Own):", "    def __call__(self, image):", *body,
                      "        return image", ""])
    linecache.cache[name] = len(text), None, text.splitlines(True), name
    scope = {"random": random, "np": np, "torch": torch, "ImageFilter": ImageFilter, "ImageOps": ImageOps, "Own": Own,
             "__name__": "made"}
    exec(compile(text, name, "exec"), scope)
    return scope["Made"]()


def is_exact(steps):
    return all(map(is_exact_step, steps))


def is_random(one):
    return type(one) in (Chance, Choice) or (type(one) is PilCall and one.draw is not None)


def is_exact_step(one):
    if type(one) is PilCall:
        return one.draw is None or one.draw.formula is not None
    if type(one) is Chance:
        return bool(one.condition and one.condition.numbers() and is_exact(one.transforms))
    return type(one) is not Choice or bool(one.pick and all(map(is_exact, one.children)))


def test_random_code(tmp_path):
    """Where the code is said to be understood to the last bit, its draws are those of the code."""
    choose = random.Random(9)
    n_exact = 0
    Image.new("RGB", (9, 9)).save(tmp_path / "any.png")
    for number in range(160):
        lines = sum(choose.choices(PIECES, k=choose.choice((1, 1, 2, 3))), [])
        own = _made(lines, number)
        try:
            steps = transforms_in(own, RGB)
        except feedmill.planner.attributes.NotUnderstood:
            continue
        if any(map(is_random, steps)) and is_exact(steps):
            n_exact += 1
            check_draws(v1.Compose([HEAD, own, TAIL]), 20)
    assert n_exact > 60
