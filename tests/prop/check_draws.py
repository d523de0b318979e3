#!/usr/bin/env python3
"""Verifies many random draws of each transform on the images of a folder.

    tests/prop/check_draws.py DIR [--draws 500] [--only NAME]

DIR: an ImageFolder of photographs, or of whatever there is. Each transform that runs natively comes
to them behind a RandomResizedCrop(224), as torchvision's v1, and on the images as they are (with a
CenterCrop behind it), as its v2, with native="verify": the transform objects themselves make every
sample again from the same draws, and a single differing pixel is an error. Prints a line for each;
exits 0 if nothing differs, 1 if something does or took another path.
"""

import argparse
import contextlib
import io
import pathlib
import random
import sys
import time
import warnings

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "support"))

import torchvision_cpu  # noqa: E402, F401
import feedmill  # noqa: E402
import torch  # noqa: E402
from PIL import ImageFilter, ImageOps  # noqa: E402
from torch.utils.data import RandomSampler  # noqa: E402
from torchvision import transforms as v1  # noqa: E402
from torchvision.datasets import ImageFolder  # noqa: E402
from torchvision.transforms import v2  # noqa: E402

BILINEAR, BICUBIC = v1.InterpolationMode.BILINEAR, v1.InterpolationMode.BICUBIC

# Name, arguments, options; "of" holds what RandomApply and its like contain.
STEPS = [
    ("RandomHorizontalFlip", (), {}),
    ("RandomVerticalFlip", (), {}),
    ("Grayscale", (3,), {}),
    ("RandomGrayscale", (0.5,), {}),
    ("Pad", ((3, 9, 1, 20),), {"padding_mode": "reflect"}),
    ("RandomCrop", (200,), {"padding": 24, "pad_if_needed": True}),
    ("RandomCrop", (210,), {"padding": 9, "padding_mode": "edge", "pad_if_needed": True}),
    ("RandomCrop", (190,), {"padding": 30, "padding_mode": "symmetric", "pad_if_needed": True}),
    ("ColorJitter", (0.4, 0.4, 0.4, 0.1), {}),
    ("ColorJitter", (0.9, 0.9, 0.9, 0.5), {}),
    ("RandomRotation", (15,), {}),
    ("RandomRotation", (180,), {"interpolation": BILINEAR, "fill": (9, 200, 31)}),
    ("RandomRotation", (45,), {"interpolation": BICUBIC}),
    ("RandomAffine", (30,), {"translate": (0.2, 0.1), "scale": (0.5, 1.5), "shear": 12}),
    ("RandomAffine", (90,), {"shear": (-20, 20, -9, 9), "interpolation": BILINEAR, "fill": 77}),
    ("RandomAffine", (10,), {"scale": (0.7, 2.0), "interpolation": BICUBIC}),
    ("RandomAutocontrast", (), {}),
    ("RandomEqualize", (), {}),
    ("RandomInvert", (), {}),
    ("RandomPosterize", (3,), {}),
    ("RandomSolarize", (128,), {}),
    ("RandomAdjustSharpness", (2.0,), {}),
    ("AutoAugment", (), {}),
    ("AutoAugment", (v1.AutoAugmentPolicy.CIFAR10,), {}),
    ("AutoAugment", (v1.AutoAugmentPolicy.SVHN,), {"interpolation": BILINEAR}),
    ("RandAugment", (), {}),
    ("RandAugment", (4, 14), {"interpolation": BILINEAR, "fill": [1, 50, 255]}),
    ("TrivialAugmentWide", (), {}),
    ("RandomApply", (), {"of": ["ColorJitter", "RandomRotation"], "p": 0.6}),
    ("RandomChoice", (), {"of": ["RandomEqualize", "RandomAffine", "RandomSolarize"]}),
    ("RandomOrder", (), {"of": ["ColorJitter", "RandomInvert", "RandomRotation"]}),
    ("Blur", (0.8, 0.1, 2.0), {}),
    ("Blur", (1.0, 0.0, 10.0), {}),
    ("Sometimes", (0.6,), {"of": ["ColorJitter", "Blur", "RandomRotation"]}),
    ("RandomChoice", (), {"of": ["Blur", "Solarize", "RandomEqualize"]}),
]
INSIDE = {"ColorJitter": (0.4, 0.4, 0.4, 0.1), "RandomRotation": (20,), "RandomAffine": (25,),
          "RandomSolarize": (99,), "Blur": (0.7, 0.1, 5.0), "Solarize": (0.9,)}


class Blur:
    """A transform of the user's own, as in DINO."""

    def __init__(self, p, low, high):
        self.p, self.low, self.high = p, low, high

    def __call__(self, image):
        if random.random() <= self.p:
            radius = random.uniform(self.low, self.high)
            return image.filter(ImageFilter.GaussianBlur(radius))
        return image


class Solarize:
    def __init__(self, p):
        self.p = p

    def __call__(self, image):
        return ImageOps.solarize(image) if random.random() < self.p else image


class Sometimes:
    def __init__(self, transforms, p):
        self.transforms, self.p = transforms, p

    def __call__(self, image):
        if random.random() > self.p:
            return image
        for one in self.transforms:
            image = one(image)
        return image


OWN = {"Blur": Blur, "Solarize": Solarize, "Sometimes": Sometimes}


def step_of(module, name, arguments, options):
    made = lambda one: OWN.get(one) or getattr(module, one)
    options = dict(options)
    if "of" in options:
        inner = [made(one)(*INSIDE.get(one, ())) for one in options.pop("of")]
        return made(name)(inner, *arguments, **options)
    return made(name)(*arguments, **options)


def chain(place, *what):
    """All steps with one of them in that place."""
    end = [v1.ToTensor(), v1.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))]
    if place == "as they come":
        return [step_of(v2, *what), v2.CenterCrop(180), *end]
    erased = [v1.RandomErasing(0.7)] if what[0] == "RandomGrayscale" else []  # once is enough
    return [v1.RandomResizedCrop(224), step_of(v1, *what), *end, *erased]


def verify(folder, steps, n_draws, seed):
    """Raises where a sample differs; returns how many were compared."""
    dataset = ImageFolder(folder, v1.Compose(steps))
    sampler = RandomSampler(dataset, replacement=True, num_samples=n_draws,
                            generator=torch.Generator().manual_seed(seed))
    loader = feedmill.DataLoader(dataset, batch_size=20, sampler=sampler, native="verify",
                                 seed=seed)
    with contextlib.redirect_stdout(io.StringIO()):
        explained = loader.explain()
    if not explained.startswith("native path"):
        raise RuntimeError(explained)
    n = sum(len(labels) for _, labels in loader)
    if loader.stats().decode.fallback_samples:
        raise RuntimeError(f"{loader.stats().decode.fallback_samples} samples were Pillow's")
    return n


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder")
    parser.add_argument("--draws", type=int, default=500, help="of each transform (default 500)")
    parser.add_argument("--only", help="transforms of this name")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    n_wrong = n_all = 0
    for place in ("behind a resize", "as they come"):
        for number, (name, *rest) in enumerate(STEPS):
            if options.only not in (None, name):
                continue
            begin = time.monotonic()
            try:
                n = verify(options.folder, chain(place, name, *rest), options.draws, number)
                outcome = f"{n} equal"
            except (RuntimeError, ValueError) as error:
                outcome = f"WRONG: {error}"
                n_wrong += 1
            n_all += 1
            took = time.monotonic() - begin
            print(f"{name} {rest}, {place}: {outcome} ({took:.0f} s)", flush=True)
    print(f"{n_all - n_wrong} of {n_all} as torchvision's")
    return 1 if n_wrong else 0


if __name__ == "__main__":
    sys.exit(main())
