"""draws_torch(): the numbers that torchvision's transforms themselves draw from the generators of
torch and Python, in the same order, and the generators' states afterwards."""

import random
import struct

import numpy as np
import pytest
import torch
from feedmill._ops import native
from feedmill.iterators import torch_pixels
from feedmill.iterators.pillow_fallback import run_steps
from feedmill.planner import torchs_draws
from feedmill.planner.transforms import read_transform
from helpers import pixels
from PIL import Image
from torchvision import transforms as v1
from torchvision.transforms import v2

SIZES = ((61, 40), (32, 32), (33, 90), (200, 31), (7, 9))
N_ROUNDS = 100


# ---- states of generators ------------------------------------------------------------------------


def streams():
    """The states of the global generators as an fm_streams (feedmill/streams.h)."""
    raw = torch.get_rng_state().numpy().tobytes()  # legacy struct CPUGeneratorImplState
    _, left, _, position = struct.unpack_from("<QiiQ", raw)
    words = np.frombuffer(raw, np.uint64, 624, 24).astype(np.uint32)
    _, torch_normal, _, has_torch_normal = struct.unpack_from("<dddi", raw, 24 + 8 * 624)
    python_words, python_normal = random.getstate()[1:]
    _, numpy_words, numpy_position, *_ = np.random.get_state()
    return b"".join([
        struct.pack("<dd", torch_normal, 0 if python_normal is None else python_normal),
        words.tobytes(), struct.pack("<I", 624 if left == 1 else position),
        np.array(python_words, np.uint32).tobytes(),
        numpy_words.tobytes(), struct.pack("<I", numpy_position),
        struct.pack("<HH", has_torch_normal, python_normal is not None),
    ])


def test_states_are_read_as_they_are():
    torch.manual_seed(5)
    loader = native.Loader(ops=[(4, 0, 0, 0, 0, 0, 0, 0, 0.5, 0, 0, 0, ()), (2, 8, 8, 0, 0, 0, 0, 0,
                           0, 0, 0, 0, ())], dtype="uint8", n_samples=1, batch_size=1, n_threads=1)
    for number in range(1300):
        random.gauss(0, 1)
        torch.empty(number % 3).normal_()
        np.random.rand(number % 5)
        before = streams()
        wanted = bool(torch.rand(1) < 0.5)
        draws, after = loader.draws_torch(before, 9, 9)
        assert draws[0][5] == wanted and after == streams()
    with pytest.raises(ValueError, match="10 bytes; it must have 7520"):
        loader.draws_torch(bytes(10), 9, 9)
    loader.close()
    with pytest.raises(ValueError, match="closed"):
        loader.draws_torch(before, 9, 9)


# ---- transforms ----------------------------------------------------------------------------------


PIPELINES = {
    "crop": lambda T: [T.RandomResizedCrop(24), T.RandomHorizontalFlip()],
    "crop-narrow": lambda T: [T.RandomResizedCrop(24, (0.9, 1.0), (0.2, 5.0)),
                              T.RandomVerticalFlip(0.7)],
    "padded-crop": lambda T: [T.RandomCrop((15, 12), padding=4), T.RandomHorizontalFlip(0.1)],
    "crop-if-needed": lambda T: [T.RandomCrop((32, 24), pad_if_needed=True)],
    "resized-crop": lambda T: [T.Resize(40), T.RandomCrop(32), T.RandomHorizontalFlip()],
    "jitter": lambda T: [T.ColorJitter(0.4, 0.4, 0.4, 0.1)],
    "jitter-some": lambda T: [T.ColorJitter(contrast=0.4, hue=0.1)],
    "grayscale": lambda T: [T.RandomGrayscale(0.2), T.RandomInvert(0.6), T.RandomPosterize(3, 0.7),
                            T.RandomSolarize(99, 0.6)],
    "histograms": lambda T: [T.RandomAutocontrast(0.6), T.RandomEqualize(0.7),
                             T.RandomAdjustSharpness(2, 0.3)],
    "rotation": lambda T: [T.RandomRotation(30)],
    "affine": lambda T: [T.RandomAffine(20, (0.1, 0.2), (0.7, 1.2), (-5, 5, -9, 9))],
    "affine-shear": lambda T: [T.RandomAffine(0, shear=10)],
    "affine-moves": lambda T: [T.RandomAffine((5, 9), (0.3, 0.0))],
    "apply": lambda T: [T.RandomApply([T.ColorJitter(0.3), T.RandomHorizontalFlip()], 0.6),
                        T.RandomRotation(9)],
    "order": lambda T: [T.RandomOrder([T.ColorJitter(0.3, 0.2), T.RandomSolarize(9),
                                       T.RandomApply([T.RandomInvert(), T.RandomGrayscale()], 0.5),
                                       T.RandomRotation(5)])],
    "nested": lambda T: [T.RandomOrder([T.RandomOrder([T.RandomInvert(), T.RandomRotation(4)]),
                                        T.Compose([T.RandomSolarize(3), T.Grayscale(3)]),
                                        T.RandomApply([T.ColorJitter(0.1)])])],
    "rand-augment": lambda T: [T.RandAugment()],
    "rand-augment-4": lambda T: [T.RandAugment(4, 5, 11)],
    "trivial-augment": lambda T: [T.TrivialAugmentWide()],
    "trivial-augment-2": lambda T: [T.TrivialAugmentWide(2)],
    "auto-augment": lambda T: [T.AutoAugment()],
    "auto-augment-cifar10": lambda T: [T.AutoAugment(T.AutoAugmentPolicy.CIFAR10)],
    "auto-augment-svhn": lambda T: [T.AutoAugment(T.AutoAugmentPolicy.SVHN)],
}
BOTH = [(name, module) for name in PIPELINES for module in (v1, v2)]


def tail(module, steps):
    """To results of one size, as tensors."""
    sized = any("Crop" in type(step).__name__ for step in steps)
    return [v1.ToTensor()] if sized else [module.Resize((24, 24)), v1.ToTensor()]


def check(transform, n_rounds=N_ROUNDS, accepted="no error"):
    """Compares each sample with what the transforms make of the drawn parameters, and the states
    of the generators behind it.

    Args:
        accepted: in the text of ValueErrors that the transforms may raise, at fewer than half of
            the samples.
    """
    plan = read_transform(transform)
    assert plan.plan is not None, plan.reasons
    loader = native.Loader(ops=plan.plan.ops, dtype="float32", n_samples=1, batch_size=1,
                           n_threads=1)
    torch.manual_seed(77)
    random.seed(78)
    np.random.seed(79)
    n_accepted = 0
    for number in range(n_rounds):
        image = Image.fromarray(pixels(*SIZES[number % len(SIZES)], seed=number))
        before = streams()
        try:
            wanted = transform(image)
        except ValueError as error:
            assert accepted in str(error)
            n_accepted += 1
            continue
        draws, after = loader.draws_torch(before, *image.size)
        draws = torch_pixels.with_pixels(loader, draws, before, *image.size)
        assert after == streams(), number
        got = run_steps(plan.steps, image, lambda width, height, draws=draws: draws)
        assert torch.equal(got, wanted), (number, image.size, draws)
    assert n_accepted < n_rounds / 2
    loader.close()


@pytest.mark.parametrize(("name", "module"), BOTH,
                         ids=[f"{name}-{module.__name__[-2:]}" for name, module in BOTH])
def test_transforms(name, module):
    steps = PIPELINES[name](module)
    check(module.Compose([*steps, *tail(module, steps)]))


@pytest.mark.parametrize("module", [v1, v2])
def test_erasing(module):
    check(module.Compose([module.Resize((24, 30)), v1.ToTensor(), module.RandomErasing(0.7)]))
    check(module.Compose([module.RandomCrop(7, padding=3), module.RandAugment(), v1.ToTensor(),
                          module.RandomErasing(0.5, (0.5, 1.0), (0.1, 9.0))]))


needs_same_normal = pytest.mark.skipif(
    not torchs_draws.is_as_torch(), reason="torch's normal_() differs on this CPU"
)


@needs_same_normal
@pytest.mark.parametrize("module", [v1, v2])
@pytest.mark.parametrize("n_channels", [1, 3])
def test_erasing_with_random_numbers(module, n_channels):
    head = (module.Resize((24, 30)), v1.Grayscale(n_channels), v1.ToTensor())
    for options in ({}, {"scale": (0.5, 1.0), "ratio": (0.1, 9.0)}, {"scale": (0, 0.01)}):
        check(module.Compose([*head, module.RandomErasing(0.7, value="random", **options)]))


@pytest.mark.parametrize("module", [v1, v2])
@pytest.mark.parametrize("p", [None, [0.2, 0.5, 1.3], [0, 1, 0]])
def test_choice(module, p):
    steps = [v1.ColorJitter(0.4), v1.RandomSolarize(9, 0.5), v1.RandomRotation(20)]
    check(v1.Compose([module.RandomChoice(steps, p), v1.Resize((24, 24)), v1.ToTensor()]))


def test_choices_in_others():
    steps = [v2.RandomOrder([v2.RandomChoice([v2.RandomInvert(), v2.RandomRotation(i)],
                                             [0.1 * (i + 1), 0.3])
                             for i in range(5)]),
             v2.RandomApply([v2.RandomChoice([v2.ColorJitter(0.1 * i) for i in range(1, 17)])], 0.7)]
    check(v2.Compose([*steps, v2.Resize((24, 24)), v1.ToTensor()]))


def test_normal_numbers():
    """Of torch on x86-64 CPUs with AVX2. On others, RandomErasing's random pixels take torch's
    path."""
    if torch.backends.cpu.get_cpu_capability() not in ("AVX2", "AVX512"):
        pytest.skip("torch computes other last bits on this CPU")
    assert torchs_draws.is_as_torch()
