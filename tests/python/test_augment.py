"""Native augmentations give the pixels of torchvision's objects for the same random draws."""

import feedmill
import helpers
import numpy as np
import pytest
import torch
from feedmill._ops import native
from feedmill.planner.plan import CENTER_CROP, KINDS, Op
from helpers import MEAN, STD, compose, native_loader
from PIL import Image
from torchvision import transforms as T
from torchvision.datasets import ImageFolder
from torchvision.transforms import v2
from torchvision.transforms.autoaugment import AutoAugmentPolicy

N_EPOCHS = 3
MODES = {name: T.InterpolationMode(name) for name in ("nearest", "bilinear", "bicubic")}


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    """A folder of 32 JPEGs, 9 to 70 pixels wide and high; some of one colour, some grey."""
    root = tmp_path_factory.mktemp("augment")
    random = np.random.default_rng(3)
    for i in range(28):
        width, height = (int(side) for side in random.integers(9, 71, 2))
        if i % 11 == 0:
            height = width
        mode = "L" if i % 7 == 0 else "RGB"
        helpers.save_jpeg(root / "a" / f"{i:03}.jpg", width, height, seed=i, mode=mode, quality=95)
    for i, color in enumerate(((0, 0, 0), (255, 255, 255), (7, 200, 90), (255, 0, 0))):
        Image.new("RGB", (33, 40), color).save(root / "a" / f"color{i}.jpg", quality=95)
    return root


def check(root, *steps, n_epochs=N_EPOCHS, fallbacks=0):
    """Runs epochs with native="verify"; expects all but `fallbacks` samples of each natively."""
    dataset = ImageFolder(str(root), compose(*steps))
    loader = feedmill.DataLoader(dataset, batch_size=8, native="verify", seed=11)
    assert loader.explain().startswith("native path"), loader.explain()
    for _ in range(n_epochs):
        for _ in loader:
            pass
    stats = loader.stats()
    assert stats.decode.fallback_samples == fallbacks * n_epochs
    return loader


def of(module, name, *arguments, **options):
    return getattr(module, name)(*arguments, **options)


MODULES = pytest.mark.parametrize("module", [T, v2], ids=["v1", "v2"])
# Cases that alternate between torchvision.transforms and v2, which share one native implementation.
EITHER = (T, v2)


# ---- crops and paddings --------------------------------------------------------------------------


@pytest.mark.parametrize(("number", "options"), list(enumerate([
    {"size": 9},
    {"size": (8, 5)},
    {"size": 32, "padding": 4, "pad_if_needed": True},
    {"size": (40, 20), "pad_if_needed": True, "padding_mode": "edge"},
    {"size": 16, "padding": 8, "padding_mode": "reflect"},
    {"size": 14, "padding": (3, 9), "padding_mode": "symmetric"},
    {"size": (17, 25), "padding": (7, 1, 2, 9), "fill": (255, 3, 120), "pad_if_needed": True},
    {"size": 90, "padding": (2, 1), "pad_if_needed": True, "padding_mode": "reflect"},
    {"size": (21, 22), "padding": [8], "fill": 77, "pad_if_needed": True},
])))
def test_random_crop(images, number, options):
    module = EITHER[number % 2]
    check(images, module.RandomCrop(**options), module.RandomHorizontalFlip(), T.ToTensor())


@MODULES
def test_padding_and_pad_if_needed_together(images, module):
    """v2 pads once by the sum of both; v1 pads the padded image again."""
    crop = module.RandomCrop(60, padding=(2, 5), pad_if_needed=True, padding_mode="reflect")
    check(images, crop, T.PILToTensor())


@MODULES
def test_crops_larger_than_the_image_raise_torchvisions_error(images, module):
    dataset = ImageFolder(str(images), compose(module.RandomCrop(71), T.PILToTensor()))
    with pytest.raises(ValueError, match="(?i)required crop size"):
        list(native_loader(dataset, batch_size=4))


@pytest.mark.parametrize(("number", "options"), list(enumerate([
    {"padding": 3},
    {"padding": (1, 2), "fill": (9, 8, 7)},
    {"padding": [2, 0, 5, 3], "padding_mode": "edge"},
    {"padding": 6, "padding_mode": "reflect"},
    {"padding": 50, "padding_mode": "symmetric"},
])))
def test_pad(images, number, options):
    module = EITHER[number % 2]
    head = module.Resize((13, 10))
    check(images, head, module.Pad(**options), module.CenterCrop((14, 17)), T.ToTensor())
    check(images, module.Pad(**options), module.CenterCrop((20, 30)), T.PILToTensor())


@MODULES
def test_crops_after_a_resize(images, module):
    check(images, module.Resize(20), module.RandomCrop(16), module.RandomHorizontalFlip(),
          T.ToTensor())
    check(images, module.Resize(20), module.CenterCrop(16), module.RandomCrop(16, padding=3),
          module.RandomVerticalFlip(), T.ToTensor())


@MODULES
def test_resizes_after_augmentations(images, module):
    check(images, module.RandomRotation(30), module.RandomResizedCrop(20, scale=(0.2, 1)),
          module.RandomHorizontalFlip(), T.ToTensor())
    check(images, module.ColorJitter(0.5, 0.5, 0.5, 0.2), module.Resize(15),
          module.CenterCrop((17, 12)), module.RandomVerticalFlip(), T.ToTensor())
    check(images, module.Pad(4, padding_mode="edge"), module.RandomCrop(12), module.Grayscale(),
          module.Resize((20, 9), T.InterpolationMode.BICUBIC), T.ToTensor())
    check(images, module.Pad(4), module.Resize((9, 20), T.InterpolationMode.NEAREST), T.ToTensor())


# ---- colours -------------------------------------------------------------------------------------


COLOURS = [
    ("RandomVerticalFlip", ()),
    ("RandomGrayscale", (0.5,)),
    ("RandomInvert", ()),
    ("RandomPosterize", (3,)),
    ("RandomPosterize", (8, 1.0)),
    ("RandomSolarize", (100,)),
    ("RandomSolarize", (99.5, 0.7)),
    ("RandomAutocontrast", ()),
    ("RandomEqualize", ()),
    ("RandomAdjustSharpness", (2.5,)),
    ("RandomAdjustSharpness", (0.3, 1.0)),
    ("Grayscale", (3,)),
    ("ColorJitter", (0.4,)),
    ("ColorJitter", (0, 0.9)),
    ("ColorJitter", (0, 0, (0, 3.0))),
    ("ColorJitter", (0, 0, 0, 0.5)),
    ("ColorJitter", (0.4, 0.4, 0.4, 0.1)),
]


@pytest.mark.parametrize("number", range(len(COLOURS)))
def test_colours(images, number):
    module = EITHER[number % 2]
    name, arguments = COLOURS[number]
    crop = module.RandomResizedCrop(24, scale=(0.3, 1.0))
    check(images, crop, of(module, name, *arguments), T.ToTensor(), T.Normalize(MEAN, STD))


@MODULES
def test_colours_without_a_resize(images, module):
    """The first transforms work on images of different sizes."""
    check(images, module.ColorJitter(0.5, 0.5, 0.5, 0.2), module.RandomEqualize(),
          module.CenterCrop(30), T.ToTensor())


@MODULES
def test_one_channel(images, module):
    loader = check(images, module.RandomCrop(9), module.Grayscale(), module.RandomRotation(30),
                   module.RandomInvert(), module.ColorJitter(0.5, 0.5, 0.5, 0.5),
                   module.RandomAdjustSharpness(1.7), module.RandomAutocontrast(),
                   T.ToTensor(), T.Normalize([0.1307], [0.3081]))
    batch, _ = next(iter(loader))
    assert batch.shape == (8, 1, 9, 9)


# ---- affine maps ---------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(("number", "options"), list(enumerate([
    {"degrees": 15},
    {"degrees": (0, 360), "fill": 200},
    {"degrees": 180, "center": (3, 5.5), "fill": (1, 2, 3)},
    {"degrees": (90, 90)},
    {"degrees": (180, 180)},
    {"degrees": (-90, -90)},
    {"degrees": 0},
])))
def test_rotation(images, mode, number, options):
    module = EITHER[(number + len(mode)) % 2]
    rotation = module.RandomRotation(interpolation=MODES[mode], **options)
    crop = module.RandomCrop(9) if number in (3, 5) else module.CenterCrop((24, 31))
    check(images, crop, rotation, T.ToTensor(), n_epochs=2)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(("number", "options"), list(enumerate([
    {"degrees": 0, "translate": (0.2, 0.3)},
    {"degrees": 30, "translate": (0.1, 0.1), "scale": (0.5, 1.6), "shear": 10},
    {"degrees": 10, "shear": (-20, 20, -30, 30), "fill": (250, 1, 9)},
    {"degrees": (-180, 180), "scale": (0.2, 3), "center": (0, 20)},
    {"degrees": 0, "scale": (0.5, 2.0)},
])))
def test_affine(images, mode, number, options):
    module = EITHER[(number + len(mode)) % 2]
    affine = module.RandomAffine(interpolation=MODES[mode], **options)
    check(images, module.Resize((20, 27)), affine, T.ToTensor(), n_epochs=2)


# ---- automatic augmentations ---------------------------------------------------------------------


@MODULES
@pytest.mark.parametrize(("name", "options"), [
    ("TrivialAugmentWide", {}),
    ("TrivialAugmentWide", {"num_magnitude_bins": 9, "fill": 128}),
    ("RandAugment", {}),
    ("RandAugment", {"num_ops": 4, "magnitude": 14, "fill": [1, 50, 255]}),
    ("AutoAugment", {}),
    ("AutoAugment", {"policy": AutoAugmentPolicy.CIFAR10}),
    ("AutoAugment", {"policy": AutoAugmentPolicy.SVHN, "fill": (9, 9, 200)}),
])
def test_automatic_augmentations(images, module, name, options):
    mode = "bilinear" if options else "nearest"
    step = of(module, name, interpolation=MODES[mode], **options)
    crop = module.RandomResizedCrop(28, scale=(0.5, 1))
    check(images, crop, module.RandomHorizontalFlip(), step, T.ToTensor(), n_epochs=5)


@pytest.mark.parametrize("name", ["TrivialAugmentWide", "RandAugment", "AutoAugment"])
@MODULES
def test_magnitudes_come_from_torchvisions_tables(module, name):
    """Each drawn magnitude is in torchvision's own table, for any size of images."""
    step = of(module, name)
    bins = 10 if name == "AutoAugment" else 31
    values = {"TrivialAugmentWide": (31, 0, 0), "RandAugment": (2, 9, 31), "AutoAugment": (0, 0, 0)}
    op = Op(KINDS[name], filter=5, values=(*values[name], 0, 0, 0, module is v2))
    for width, height in ((224, 224), (32, 32), (641, 333), (1, 1999)):
        loader = native.Loader(ops=[Op(CENTER_CROP, height, width), op], dtype="uint8",
                               n_samples=400, batch_size=1, n_threads=1)
        seen = set()
        for index in range(400):
            drawn = loader.draws(5, 0, index, 0, width, height)[1][6]
            seen |= set(zip(drawn[::2], drawn[1::2]))
        loader.close()
        space = space_of(step, name, bins, height, width)
        for what, magnitude in seen:
            allowed = space[feedmill.planner.plan.AUGMENTATIONS[int(what)]]
            assert np.isclose(allowed, abs(magnitude), rtol=1e-6, atol=1e-9).any()
        assert len({what for what, _ in seen}) > 9


def space_of(step, name, bins, height, width):
    """torchvision's table: the magnitudes of each operation, by its name."""
    if hasattr(step, "_AUGMENTATION_SPACE"):
        made = {key: make(bins, height, width)
                for key, (make, _) in step._AUGMENTATION_SPACE.items()}
    elif name == "TrivialAugmentWide":
        made = {key: one for key, (one, _) in step._augmentation_space(bins).items()}
    else:
        space = step._augmentation_space(bins, (height, width))
        made = {key: one for key, (one, _) in space.items()}
    return {key: np.zeros(1) if one is None else np.atleast_1d(one.numpy())
            for key, one in made.items()}


# ---- transforms of transforms --------------------------------------------------------------------


@MODULES
def test_transforms_that_contain_transforms(images, module):
    jitter = module.ColorJitter(0.8, 0.8, 0.8, 0.2)
    rotation = module.RandomRotation(40)
    head = module.RandomResizedCrop(20)
    check(images, head, module.RandomApply([jitter, module.RandomGrayscale(0.3)], p=0.6),
          T.ToTensor())
    check(images, head, module.RandomApply(torch.nn.ModuleList([jitter])), T.PILToTensor())
    check(images, head, module.RandomChoice([jitter, rotation, module.RandomInvert(1.0)]),
          T.ToTensor())
    check(images, head, module.RandomChoice([jitter, compose(rotation, jitter)], p=[0.7, 0.3]),
          T.ToTensor())
    check(images, head, module.RandomOrder([jitter, rotation, module.RandomHorizontalFlip(),
                                            module.RandomSolarize(90)]), T.ToTensor())
    nested = module.RandomChoice([
        module.RandomApply([jitter]), module.RandomOrder([rotation, jitter]), torch.nn.Identity()])
    check(images, head, module.RandomApply([nested, module.RandomVerticalFlip()], p=0.9),
          module.TrivialAugmentWide(), T.ToTensor())


# ---- tensors -------------------------------------------------------------------------------------


@MODULES
@pytest.mark.parametrize("value", [0, 0.7, (0.1, 0.5, 2.0)], ids=str)
def test_random_erasing(images, module, value):
    erasing = module.RandomErasing(0.8, value=value)
    head = (module.RandomResizedCrop(23), module.RandomHorizontalFlip())
    check(images, *head, T.ToTensor(), T.Normalize(MEAN, STD), erasing)
    check(images, *head, T.ToTensor(), erasing, T.Normalize(MEAN, STD))
    check(images, *head, module.TrivialAugmentWide(), T.PILToTensor(),
          module.RandomErasing(1.0, scale=(0.3, 1), ratio=(0.1, 9), value=value))


def test_random_erasing_with_dtypes_and_layouts(images):
    steps = compose(T.Resize((12, 19)), T.ToTensor(), T.RandomErasing(1.0, value=(0.3, 0.6, 0.9)))
    dataset = ImageFolder(str(images), steps)
    for dtype in (torch.float16, torch.bfloat16, None):
        for layout in (torch.channels_last, torch.contiguous_format):
            options = {} if dtype is None else {"dtype": dtype}
            loader = feedmill.DataLoader(dataset, batch_size=8, native="verify", seed=2,
                                         memory_format=layout, **options)
            assert loader.explain().startswith("native path"), loader.explain()
            list(loader)


@MODULES
def test_random_erasing_with_random_numbers(images, module):
    erasing = module.RandomErasing(0.8, value="random")
    head = (module.RandomResizedCrop(23), module.RandomHorizontalFlip())
    check(images, *head, T.ToTensor(), T.Normalize(MEAN, STD), erasing)
    check(images, *head, module.Grayscale(), T.ToTensor(), erasing)
    check(images, *head, T.ToTensor(),
          module.RandomErasing(1.0, scale=(0, 0.002), ratio=(0.1, 9), value="random"))


def test_random_erasing_of_images(images):
    head = (v2.RandomResizedCrop(23), v2.ToImage(), v2.ToDtype(torch.float32, scale=True))
    check(images, *head, v2.RandomErasing(0.8, value="random"))
    check(images, *head, v2.RandomErasing(0.8, value="random"), v2.ToPureTensor())


def test_v2_transforms_after_to_image(images):
    check(images, v2.RandomResizedCrop(20), v2.TrivialAugmentWide(), v2.ToImage(),
          v2.RandomVerticalFlip(), v2.ToDtype(torch.float32, scale=True), v2.Normalize(MEAN, STD),
          v2.RandomErasing(), v2.ToPureTensor())


def test_to_tensor_and_back(images):
    check(images, T.Resize((16, 16)), T.ToTensor(), T.ToPILImage(), T.RandomRotation(20),
          T.ToTensor())


# ---- unsupported transforms ----------------------------------------------------------------------

HEAD = (T.Resize((8, 8)),)
LEFT = {
    "expand": ((*HEAD, T.RandomRotation(9, expand=True), T.ToTensor()), "expand=True"),
    "behind_noise": (
        (*HEAD, T.ToTensor(), T.RandomErasing(value="random"), T.Normalize(MEAN, STD)),
        "another transform follows"),
    "noise_of_bytes": (
        (*HEAD, T.PILToTensor(), T.RandomErasing(value="random")), "a tensor of torch.uint8"),
    "jitter_of_tensors": ((*HEAD, T.ToTensor(), T.ColorJitter(0.1)), "put it before"),
    "behind_erasing": (
        (*HEAD, T.ToTensor(), T.RandomErasing(), T.RandomVerticalFlip()), "follows RandomErasing"),
    "erasing_first": ((*HEAD, T.RandomErasing(), T.ToTensor()), "before the conversion"),
    "crop_within": ((*HEAD, T.RandomApply([T.RandomCrop(7)]), T.ToTensor()), "to one size"),
    "grey_within": ((*HEAD, T.RandomApply([T.Grayscale()]), T.ToTensor()), "Grayscale within"),
    "blur_within": ((*HEAD, T.RandomChoice([T.GaussianBlur(3)]), T.ToTensor()), "GaussianBlur"),
    "lambda_within": ((*HEAD, T.RandomApply([abs]), T.ToTensor()), "is not supported"),
    "fill": ((*HEAD, T.RandomRotation(9, fill=300), T.ToTensor()), "from 0 to 255"),
    "lanczos": (
        (*HEAD, T.RandomRotation(9, T.InterpolationMode.LANCZOS), T.ToTensor()), "Pillow refuses"),
    "negative_pad": ((T.Pad(-1), T.CenterCrop(8), T.ToTensor()), "padding=-1"),
    "grey_means": ((*HEAD, T.Grayscale(), T.ToTensor(), T.Normalize(MEAN, STD)), "mean has shape"),
    "pil_of_pil": ((*HEAD, T.ToPILImage(), T.ToTensor()), "a PIL image already"),
    "augmix": ((*HEAD, T.AugMix(), T.ToTensor()), "AugMix is not supported"),
}


@pytest.mark.parametrize("name", LEFT)
def test_unsupported_transforms_take_torchs_path(images, name):
    steps, words = LEFT[name]
    text = feedmill.DataLoader(ImageFolder(str(images), compose(*steps))).explain()
    assert text.startswith("torch's own path, because\n  - ") and words in text


def test_a_replaced_pillow_function_means_torchs_path(images, monkeypatch):
    from PIL import ImageOps

    monkeypatch.setattr(ImageOps, "equalize", lambda image: image)
    dataset = ImageFolder(str(images), compose(*HEAD, T.RandomEqualize(), T.ToTensor()))
    assert "PIL.ImageOps.equalize was replaced" in feedmill.DataLoader(dataset).explain()


def test_draws_name_their_values(images):
    steps = compose(T.RandomCrop(9), T.ColorJitter(0.1, hue=0.2), T.RandomAffine(5, (0.1, 0.1)),
                    T.RandAugment(), T.RandomApply([T.RandomInvert()]), T.ToTensor(),
                    T.RandomErasing(1.0))
    loader = native_loader(ImageFolder(str(images), steps), seed=3)
    draws = loader.draws(5, 0)
    assert [name for name, _ in draws] == [
        "RandomCrop", "ColorJitter", "RandomAffine", "RandAugment", "RandomApply", "RandomInvert",
        "RandomErasing"]
    values = dict(draws)
    assert sorted(values["ColorJitter"]["order"]) == ["brightness", "contrast", "hue", "saturation"]
    assert abs(values["RandomAffine"]["angle"]) <= 5 and values["RandomAffine"]["scale"] == 1
    assert len(values["RandAugment"]["done"]) == 2
    assert set(values["RandomErasing"]) == {"applied", "top", "left", "height", "width"}
