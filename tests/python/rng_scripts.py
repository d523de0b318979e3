"""Random scripts for test_rng_torch_random.py: a pipeline of transforms, a loader's arguments, and
what the script does between batches. Script n is always the same, and is printed as text."""

import random
from dataclasses import dataclass, field, fields
from typing import Any

import torch
from lightings import Lighting
from test_drawing import DinoBlur, DinoSolarization, MocoBlur
from test_one_attempt import RandomResizedCrop
from test_picking import BY_PICKS
from test_rng_torch import (
    cut_mix_batch,
    fails_at_times,
    mix_up,
    seed_torch,
    seed_worker,
    stacked,
)
from test_rng_torch_own import (
    BarlowBlur,
    GrayScale,
    blur_by_difference,
    blur_drawn_before,
    by_numpy,
    by_numpys_uniform,
    by_torch,
    twice,
)
from torch.utils.data import (
    BatchSampler,
    DistributedSampler,
    RandomSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)
from torchvision import transforms as v1
from torchvision.transforms import v2

try:
    from timm.data import auto_augment, random_erasing
except ImportError:
    auto_augment = random_erasing = None


def of_timm(config):
    """timm's RandAugment or AutoAugment; without timm, another transform."""
    if auto_augment is None:
        return v1.RandomHorizontalFlip()
    kind = "rand" if config.startswith("rand") else "auto"
    return getattr(auto_augment, f"{kind}_augment_transform")(config, {"translate_const": 14})


def erasing_of_timm(p, **options):
    """timm's RandomErasing; without timm, torchvision's."""
    if random_erasing is None:
        return v1.RandomErasing(p)
    return random_erasing.RandomErasing(p, device="cpu", **options)


def times_two(image):
    return image * 2 - 1


# ---- transforms, as Python expressions; T is v1 or v2 --------------------------------------------

OF_IMAGES = [
    "T.RandomHorizontalFlip()", "T.RandomHorizontalFlip({p})", "T.RandomVerticalFlip({p})",
    "T.ColorJitter(0.4, 0.4, 0.4, 0.1)", "T.ColorJitter({p}, hue=(-0.1, 0.3))", "T.ColorJitter()",
    "T.RandomGrayscale({p})", "T.RandomInvert({p})", "T.RandomPosterize({n}, {p})",
    "T.RandomSolarize({n} * 30, {p})", "T.RandomAdjustSharpness({n}, {p})",
    "T.RandomAutocontrast({p})", "T.RandomEqualize({p})",
    "T.RandomRotation({n} * 10)", "T.RandomRotation((-20, 50), fill={n})",
    "T.RandomRotation(20, interpolation=v1.InterpolationMode.BILINEAR)",
    "T.RandomAffine(20, (0.1, 0.2), (0.7, 1.2), (-5, 5, -9, 9))", "T.RandomAffine({n} * 5)",
    "T.RandomAffine(0, ({p}, 0.3), shear={n})",
    "T.RandAugment()", "T.RandAugment({n}, 7)", "T.TrivialAugmentWide()", "T.AutoAugment()",
    "T.AutoAugment(v1.AutoAugmentPolicy.CIFAR10)", "T.AutoAugment(v1.AutoAugmentPolicy.SVHN)",
    "DinoBlur({p})", "DinoSolarization({p})", "BarlowBlur({p})", "GrayScale({p})", "MocoBlur()",
    "blur_by_difference", "twice", "by_numpy", "by_numpys_uniform",
    "by_torch", *(f"BY_PICKS[{name!r}]" for name in BY_PICKS), "of_timm('rand-m9-mstd0.5-mmax9-inc1-n{n}')",
    "of_timm('rand-m5-mstd0.3-p{p}')", "of_timm('rand-m9-mstd101-inc1-mmax9-n{n}-p{p}')",
    "of_timm('rand-m9-mstd0.3-mmax9-n{n}-tweights')", "of_timm('original')", "of_timm('originalr')",
    "of_timm('3a')",
]
# Of uint8 tensors.
OF_TENSORS = [
    "T.ColorJitter(0.4, 0.4, 0.4, 0.1)", "T.ColorJitter({p}, hue=(-0.1, 0.3))",
    "T.ColorJitter(contrast={p})", "T.RandomGrayscale({p})", "T.RandomInvert({p})",
    "T.RandomPosterize({n}, {p})", "T.RandomSolarize({n} * 30, {p})",
    "T.RandomAdjustSharpness({n}, {p})", "T.RandomAutocontrast({p})", "T.RandomEqualize({p})",
    "T.RandomHorizontalFlip({p})", "T.RandomVerticalFlip({p})",
]
TO_BYTES = {"v1.PILToTensor()": "v1.ConvertImageDtype(torch.float32)",
            "v2.PILToTensor()": "v2.ToDtype(torch.float32, scale=True)"}
# Those whose draws the native code does not make, most likely: torch's path.
RARE = [
    "T.GaussianBlur(3)", "T.RandomPerspective(0.3, {p})", "T.AugMix()",
    "blur_drawn_before",
]
# Of these each pipeline has one; afterwards all images are of one size.
SIZED = [
    "T.RandomResizedCrop({size})", "T.RandomResizedCrop({size}, ({p} / 2 + 0.1, 1), antialias=True)",
    "RandomResizedCrop(24)", "T.Resize((26, 22))", "T.Resize(26), T.RandomCrop(24)",
    "T.Resize((30, 26)), T.RandomCrop({size}, padding={n}, pad_if_needed=True)",
    "T.Resize(26), T.CenterCrop(22)", "T.RandomCrop((50, 51), pad_if_needed=True)",
    "T.Resize(40), T.RandomResizedCrop({size})", "T.Resize({n} * 10), T.RandomHorizontalFlip(), T.Resize({size})",
    "T.RandomApply([T.RandomResizedCrop(29)], {p}), T.Resize({size})",
    "T.RandomChoice([T.Resize((24, 20)), T.RandomResizedCrop((24, 20)), T.Compose([T.Resize(30), T.CenterCrop((24, 20))])])",
]
# For images that get their size later.
RESIZES = [
    "T.Resize({n} * 12)", "T.RandomResizedCrop({size})", "T.CenterCrop({n} * 15)",
    "T.RandomCrop({size}, padding={n}, pad_if_needed=True)", "T.Pad({n})",
    "T.Resize({size}, v1.InterpolationMode.NEAREST)",
]
LAST = [
    "v1.ToTensor()",
    "v1.ToTensor(), T.Normalize([0.5, 0.4, 0.3], [0.2, 0.3, 0.4])",
    "v1.ToTensor(), T.RandomErasing({p})",
    "v1.ToTensor(), Lighting({p}), T.Normalize([0.5, 0.4, 0.3], [0.2, 0.3, 0.4])",
    "v1.ToTensor(), Lighting({p}), T.RandomErasing({p}, value='random')",
    "v1.ToTensor(), T.Normalize([0.5] * 3, [0.2] * 3), T.RandomErasing({p}, value=1.5)",
    "v1.ToTensor(), T.RandomErasing({p}, (0.1, 0.5), (0.5, 1.5))",
    "v1.ToTensor(), T.RandomErasing({p}, value='random')",
    "v1.ToTensor(), erasing_of_timm({p}, max_count={n})",
    "v1.ToTensor(), T.Normalize([0.5] * 3, [0.2] * 3), erasing_of_timm({p}, mode='rand', max_count={n})",
    "v1.ToTensor(), erasing_of_timm({p}, mode='pixel', max_count={n})",
]
# Behind the conversion to a float32 tensor, in any order and several times.
OF_FLOATS = [
    "T.Normalize([0.5], [0.5])", "T.Normalize([0.5, 0.4, 0.3], [0.2, 0.3, 0.4])", "times_two",
    "T.RandomHorizontalFlip({p})", "T.RandomErasing({p}, value={n})", "Lighting({p})",
    "T.Resize({size}, antialias=True)", "T.RandomResizedCrop({size}, antialias=True)",
    "v1.ConvertImageDtype(torch.float32)", "T.RandomCrop({size})", "T.CenterCrop({size})",
]
RARE_LAST = ["v1.PILToTensor(), v1.ConvertImageDtype(torch.float16), T.RandomErasing({p}, value='random')"]
SIZES = ["24", "(24, 20)", "(17, 31)"]


def transform_text(choose):
    """The expression of a pipeline whose images are all of one size at the end."""
    size = choose.choice(SIZES)

    def filled(text):
        return text.format(p=choose.choice((0, 0.1, 0.3, 0.5, 0.8, 1)),
                           n=choose.choice((1, 2, 3, 4)), size=size)

    def step(depth, of_tensors=False, resizes=False):
        kind = choose.random()
        if depth < 2 and kind < 0.25:
            steps = ", ".join(step(depth + 1, of_tensors, resizes)
                              for _ in range(choose.choice((1, 2, 3))))
            return choose.choice((
                f"T.RandomApply([{steps}], {filled('{p}')})", f"T.RandomOrder([{steps}])",
                f"T.RandomChoice([{steps}])", f"T.Compose([{steps}])",
            ))
        if of_tensors:
            return filled(choose.choice(OF_TENSORS))
        if resizes and choose.random() < 0.3:
            return filled(choose.choice(RESIZES))
        return filled(choose.choice(RARE if kind > 0.95 else OF_IMAGES))

    is_first = choose.random() < 0.5
    steps = [step(0, resizes=not is_first) for _ in range(choose.choice((0, 1, 1, 2, 2, 3, 4)))]
    sized = filled(choose.choice(SIZED))
    steps = [sized, *steps] if is_first else [*steps, sized]
    if choose.random() < 0.2:
        of_floats = [filled(choose.choice(OF_FLOATS)) for _ in range(choose.choice((1, 1, 2, 2, 3)))]
        if choose.random() < 0.5:
            return f"T.Compose([{', '.join([*steps[:2], sized, 'v1.ToTensor()', *of_floats])}])"
        flip = filled("T.RandomHorizontalFlip({p})")
        resize = filled("T.Resize({size}, antialias=True)")
        return f"T.Compose([{', '.join([flip, 'v1.ToTensor()', resize, *of_floats])}])"
    last = filled(choose.choice(RARE_LAST if choose.random() < 0.05 else LAST))
    if choose.random() < 0.2:
        to_bytes, to_floats = choose.choice(list(TO_BYTES.items()))
        on_tensors = [step(0, of_tensors=True) for _ in range(choose.choice((1, 2, 3)))]
        return f"T.Compose([{', '.join([sized, to_bytes, *on_tensors, to_floats])}])"
    return f"T.Compose([{', '.join([*steps, last])}])"


# ---- samplers ------------------------------------------------------------------------------------


class Drawing:
    """Draws from the global generators for each index, when a loader asks for it."""

    def __init__(self, n):
        self.n = n

    def __len__(self):
        return self.n

    def __iter__(self):
        for _ in range(self.n):
            yield int(torch.randint(self.n, ())) if random.random() < 0.5 else 0


def seeded(seed):
    return torch.Generator().manual_seed(seed)


SAMPLERS = {
    "weighted": lambda n: WeightedRandomSampler([1.0 + i % 3 for i in range(n)], 13),
    "subset": lambda n: SubsetRandomSampler(range(3, n)),
    "replacement": lambda n: RandomSampler(range(n), replacement=True, num_samples=11),
    "with a generator": lambda n: RandomSampler(range(n), generator=seeded(5)),
    "distributed": lambda n: DistributedSampler(range(n), 2, 1),
    "drawing": Drawing,
    "list": lambda n: [*range(n - 1, 0, -2), 0, 0],
}
BATCH_SAMPLERS = {
    "lists": lambda n: [[0, 1], [2], list(range(3, n)), [5, 5, 6]],
    "of a drawing sampler": lambda n: BatchSampler(Drawing(n), 3, False),
}
COLLATE = {one.__name__: one for one in (mix_up, cut_mix_batch, fails_at_times, stacked)}
INIT = {one.__name__: one for one in (seed_worker, seed_torch)}


# ---- scripts -------------------------------------------------------------------------------------


@dataclass
class Script:
    number: int
    folder: str  # "good", or "bad", in which some files can't be decoded
    n_images: int
    transform: str
    options: dict = field(default_factory=dict)  # of the loader; functions and samplers by name
    epochs: int = 1
    breaks_after: Any = None  # batches
    draws_between: int = 0  # the script draws after each n-th batch; 0: never
    seed: int = 0

    def __str__(self):
        values = [f"  {one.name} = {getattr(self, one.name)!r}" for one in fields(self)]
        return "\n".join(["script", *values])

    def make_transform(self):
        scope = {"torch": torch, "T": v2 if self.number % 2 else v1, "v1": v1, "v2": v2,
                 "Lighting": Lighting, "times_two": times_two, "DinoBlur": DinoBlur,
                 "DinoSolarization": DinoSolarization, "BarlowBlur": BarlowBlur, "GrayScale": GrayScale,
                 "MocoBlur": MocoBlur, "blur_by_difference": blur_by_difference, "twice": twice,
                 "RandomResizedCrop": RandomResizedCrop, "by_numpy": by_numpy,
                 "by_numpys_uniform": by_numpys_uniform, "by_torch": by_torch, "BY_PICKS": BY_PICKS,
                 "blur_drawn_before": blur_drawn_before, "of_timm": of_timm,
                 "erasing_of_timm": erasing_of_timm}
        return eval(self.transform, scope)

    def loader_options(self):
        """New samplers and generators, as each of two loaders needs its own."""
        options = dict(self.options)
        for name, of in (("sampler", SAMPLERS), ("batch_sampler", BATCH_SAMPLERS)):
            if name in options:
                options[name] = of[options[name]](self.n_images)
        for name, of in (("collate_fn", COLLATE), ("worker_init_fn", INIT)):
            if name in options:
                options[name] = of[options[name]]
        if "generator" in options:
            options["generator"] = seeded(options["generator"])
        return options


def script(number):
    """The script of that number."""
    choose = random.Random(number)
    options = {"num_workers": 0}
    if choose.random() < 0.4:
        options["num_workers"] = choose.choice((1, 2, 2, 3))
        options["persistent_workers"] = choose.random() < 0.4
        if choose.random() < 0.5:
            options["prefetch_factor"] = choose.choice((1, 2, 3))
        if choose.random() < 0.25:
            options["worker_init_fn"] = choose.choice(list(INIT))
    order = choose.random()
    if order < 0.1:
        options["batch_sampler"] = choose.choice(list(BATCH_SAMPLERS))
    else:
        options["batch_size"] = choose.choice((1, 2, 3, 4, 4, 7, 40, None))
        if order < 0.5:
            options["sampler"] = choose.choice(list(SAMPLERS))
        else:
            options["shuffle"] = choose.random() < 0.8
        if options["batch_size"] is not None:
            options["drop_last"] = choose.random() < 0.3
    if options.get("batch_size", 1) is not None and choose.random() < 0.35:
        options["collate_fn"] = choose.choice(list(COLLATE))
    if choose.random() < 0.25:
        options["generator"] = choose.randrange(99)
    return Script(
        number=number,
        folder="bad" if choose.random() < 0.25 else "good",
        n_images=choose.randint(10, 20),
        transform=transform_text(choose),
        options=options,
        epochs=choose.choice((1, 2, 3)),
        breaks_after=choose.choice((None, None, None, 1, 3)),
        draws_between=choose.choice((0, 1, 3)),
        seed=choose.randrange(1 << 20),
    )
