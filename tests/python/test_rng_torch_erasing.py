"""rng="torch" with torchvision's RandomErasing(value="random"): the random numbers of the erased
pixels, and all that is drawn behind them, equal those of torch's own DataLoader."""

import feedmill
import pytest
import test_rng_torch_calling_process as calling_process
import torch
from feedmill.planner import torchs_draws
from helpers import cifar_in_memory, slow_but_for
from test_rng_torch import Twice, check, damaged, few_cpus, mixed
from test_rng_torch_pack import packed
from torchvision import transforms as v1
from torchvision.datasets import ImageFolder
from torchvision.transforms import v2

__all__ = ["damaged", "few_cpus", "mixed", "packed"]  # fixtures

MODULES = pytest.mark.parametrize("module", [v1, v2], ids=["v1", "v2"])
SMALL = {"scale": (0, 0.01)}  # boxes of a few pixels or none

needs_same_normal = pytest.mark.skipif(
    not torchs_draws.is_as_torch(), reason="torch's normal_() differs on this CPU"
)


def erasing(module, *before, p=0.7, **options):
    return module.Compose([
        module.RandomResizedCrop(24), module.RandomHorizontalFlip(), *before, v1.ToTensor(),
        module.Normalize([0.5], [0.2]), module.RandomErasing(p, value="random", **options),
    ])


@needs_same_normal
@MODULES
@pytest.mark.parametrize("num_workers", slow_but_for([3], [1, 3, 8]))
@pytest.mark.parametrize("options", [{}, {"p": 1, "scale": (0.5, 1.0), "ratio": (0.1, 9)}, SMALL], ids=str)
def test_workers(mixed, module, num_workers, options):
    dataset = ImageFolder(mixed, erasing(module, **options))
    check(dataset, num_workers=num_workers, epochs=3, persistent_workers=num_workers == 3)


@needs_same_normal
@MODULES
@pytest.mark.parametrize("options", [{}, SMALL], ids=str)
def test_the_processs_own_generators(mixed, module, options):
    calling_process.check(ImageFolder(mixed, erasing(module, **options)), epochs=2)


@needs_same_normal
@MODULES
def test_one_channel(mixed, module):
    check(ImageFolder(mixed, erasing(module, module.Grayscale())), num_workers=2)


@needs_same_normal
@pytest.mark.parametrize("tail", [(), (v2.ToPureTensor(),)], ids=["image", "tensor"])
def test_images_of_v2(mixed, tail):
    steps = [v2.RandomResizedCrop(24), v2.ToImage(), v2.ToDtype(torch.float32, scale=True),
             v2.RandomErasing(0.7, value="random"), *tail]
    check(ImageFolder(mixed, v2.Compose(steps)), num_workers=2)


@needs_same_normal
def test_views(mixed):
    check(ImageFolder(mixed, Twice(erasing(v1), erasing(v2))), num_workers=3)


@needs_same_normal
@pytest.mark.parametrize("num_workers", [0, 3])
def test_damaged_files(damaged, num_workers):
    check(ImageFolder(damaged, erasing(v1, p=0.9)), num_workers=num_workers, epochs=3)


@needs_same_normal
def test_other_sources(packed):
    check(feedmill.Pack(packed, erasing(v1)), num_workers=2)
    cifar = cifar_in_memory(40)
    cifar.transform = erasing(v2)
    check(cifar, num_workers=2)


@needs_same_normal
@pytest.mark.parametrize("num_workers", [0, 2])
def test_verify(mixed, num_workers):
    check(ImageFolder(mixed, erasing(v2)), num_workers=num_workers, native="verify", epochs=1)


def check_another_layout(dataset):
    """Batches of float16 in another memory format are torch's, rounded."""
    def images(kind, **options):
        torch.manual_seed(7)
        return torch.cat([batch for batch, _ in kind(dataset, 4, num_workers=2, **options)])

    got = images(feedmill.DataLoader, native="require", dtype=torch.float16,
                 memory_format=torch.channels_last)
    assert torch.equal(got, images(torch.utils.data.DataLoader).half())


@needs_same_normal
def test_another_layout(mixed):
    check_another_layout(ImageFolder(mixed, erasing(v1, p=1)))


@needs_same_normal
def test_an_epoch_goes_on(mixed):
    def loader():
        torch.manual_seed(3)
        return feedmill.DataLoader(ImageFolder(mixed, erasing(v1)), 4, num_workers=2, shuffle=True,
                                   native="require", rng="torch")

    first = loader()
    batches = iter(first)
    for _ in range(3):
        next(batches)
    state = first.state_dict()
    second = loader()
    second.load_state_dict(state)
    wanted, got = list(batches), list(second)
    assert len(wanted) == len(got) == 4
    assert all(torch.equal(one[0], other[0]) for one, other in zip(wanted, got))


def test_another_normal_takes_torchs_path(mixed, monkeypatch):
    """As with ATEN_CPU_CAPABILITY=default, and on other kinds of CPUs."""
    dataset = ImageFolder(mixed, erasing(v1))
    monkeypatch.setattr(torchs_draws.native, "noise_torch", lambda streams, n: b"")
    torchs_draws.is_as_torch.cache_clear()
    text = feedmill.DataLoader(dataset, num_workers=2).explain()
    own = feedmill.DataLoader(dataset, num_workers=2, seed=1).explain()
    monkeypatch.undo()
    torchs_draws.is_as_torch.cache_clear()
    assert text.startswith("torch's own path") and "computes other last bits" in text
    assert own.startswith("native path")


def test_draws_gives_the_seed_of_the_numbers(mixed):
    dataset = ImageFolder(mixed, erasing(v2, p=1))
    loader = feedmill.DataLoader(dataset, seed=5, num_workers=2, native="require")
    name, drawn = loader.draws(index=2, epoch=0)[-1]
    assert name == "RandomErasing" and drawn["noise_seed"] and len(drawn["boxes"]) == 1
