"""AlexNet's noise of colors, in the forms that scripts have it."""

import importlib.util
import inspect

import feedmill
import helpers
import pytest
import torch
from feedmill.planner.lighting import _BODIES
from feedmill.planner.torchs_draws import is_as_torch
from helpers import MEAN, STD, Views, compose, slow_but_for
from lightings import EIGENVALUES, EIGENVECTORS, FORMS, Lighting, OfSelfSup
from test_augment import check
from torch.utils.data import DataLoader
from torchvision import transforms as T
from torchvision.datasets import ImageFolder
from torchvision.transforms import v2

HEAD = (T.RandomResizedCrop(25), T.ColorJitter(0.4, 0.4, 0.4), T.ToTensor())
NORMALIZE = T.Normalize(MEAN, STD)


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    """A folder of 26 JPEGs, some of them grey."""
    root = tmp_path_factory.mktemp("lighting")
    for i in range(26):
        mode = "L" if i % 6 == 0 else "RGB"
        helpers.save_jpeg(root / "ab"[i % 2] / f"{i:03}.jpg", 30 + i, 55 - i, seed=i, mode=mode)
    return root


CHAINS = {
    "usual": (*HEAD, Lighting(), NORMALIZE),
    "alone": (T.Resize((20, 21)), T.ToTensor(), Lighting(0.3)),
    "scaled": (T.RandomCrop(20), T.ToTensor(), T.Normalize([0.5], [0.5]), Lighting(1), NORMALIZE),
    "erased": (*HEAD, Lighting(0.2), NORMALIZE, T.RandomErasing(0.7, value=0.3)),
    "noise": (*HEAD, Lighting(), T.RandomErasing(0.7, value="random")),
    "flipped": (T.CenterCrop(20), T.RandomHorizontalFlip(), v2.PILToTensor(),
                v2.ToDtype(torch.float32, scale=True), Lighting(), v2.Normalize(MEAN, STD)),
}


@pytest.mark.parametrize("name", CHAINS)
def test_values_are_the_originals(images, name):
    check(images, *CHAINS[name])


@pytest.mark.parametrize("channels_last", slow_but_for([False], [False, True]))
@pytest.mark.parametrize("name", CHAINS)
def test_random_numbers_are_torchs(images, name, channels_last):
    """Each image draws three of torch's numbers, which it makes in pairs."""
    if name == "noise" and not is_as_torch():
        pytest.skip("on this CPU torch's normal_() of many numbers is another")
    dataset = ImageFolder(str(images), compose(*CHAINS[name]))
    found = []
    for kind, options in ((DataLoader, {}), (feedmill.DataLoader, {"native": "require"})):
        if channels_last and options:
            options["memory_format"] = torch.channels_last
        torch.manual_seed(4)
        loader = kind(dataset, batch_size=5, shuffle=True, num_workers=2, **options)
        found.append([batch for _ in range(2) for batch in loader])
    for (image, label), (other, other_label) in zip(*found, strict=True):
        assert torch.equal(image, other) and torch.equal(label, other_label)


def test_every_known_body(images):
    """And no other one is among the known ones."""
    from feedmill.planner.fingerprints import body_fingerprint

    assert {body_fingerprint(one.__call__.__code__) for one in FORMS} == _BODIES
    for kind in FORMS:
        dataset = ImageFolder(str(images), compose(*HEAD, kind(0.2), NORMALIZE))
        torch.manual_seed(1)
        wanted = list(DataLoader(dataset, batch_size=4))
        torch.manual_seed(1)
        got = list(feedmill.DataLoader(dataset, batch_size=4, native="require", rng="torch"))
        for (image, _), (other, _) in zip(got, wanted, strict=True):
            assert torch.equal(image, other)


def test_draws_are_named(images):
    dataset = ImageFolder(str(images), compose(*HEAD, Lighting(0.5), NORMALIZE))
    loader = helpers.native_loader(dataset, seed=3)
    name, values = loader.draws(7, 0)[-1]
    assert name == "Lighting" and len(values["factors"]) == 3
    with_none = ImageFolder(str(images), compose(*HEAD, Lighting(0), NORMALIZE))
    assert "Lighting" not in feedmill.DataLoader(with_none).explain()


def test_in_views(images):
    transform = Views(compose(*HEAD, Lighting(), NORMALIZE), compose(*HEAD, NORMALIZE))
    dataset = ImageFolder(str(images), transform)
    found = []
    for kind, options in ((DataLoader, {}), (feedmill.DataLoader, {"native": "require"})):
        torch.manual_seed(4)
        found.append(list(kind(dataset, batch_size=5, num_workers=1, **options)))
    for (ours, _), (theirs, _) in zip(*found, strict=True):
        for one, other in zip(ours, theirs, strict=True):
            assert torch.equal(one, other)


def changed(tmp_path, old, new):
    """Lighting with another line, in a file of its own."""
    source = inspect.getsource(Lighting)
    assert source.count(old) == 1
    path = tmp_path / "changed.py"
    path.write_text(f"import torch\n\nEIGENVALUES = {EIGENVALUES}\nEIGENVECTORS = {EIGENVECTORS}\n\n\n"
                    + source.replace(old, new))
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.Lighting


class Changing(Lighting):
    @property
    def alphastd(self):
        return 0.1

    @alphastd.setter
    def alphastd(self, value):
        pass


def of_doubles():
    lighting = Lighting()
    lighting.eigval = lighting.eigval.double()
    return lighting


LEFT = {
    "first": ((T.CenterCrop(20), Lighting(), T.ToTensor()), "before the conversion"),
    "grey": ((T.CenterCrop(20), T.Grayscale(), T.ToTensor(), Lighting()), "with 1 channels"),
    "of_image": ((v2.CenterCrop(20), v2.ToImage(), v2.ToDtype(torch.float32, scale=True), Lighting()),
                 "natively it must be a torch.Tensor"),
    "twice": ((*HEAD, Lighting(), Lighting()), "or another Lighting"),
    "cropped": ((*HEAD, Lighting(), T.CenterCrop(20)), "CenterCrop follows Lighting"),
    "flipped": ((*HEAD, Lighting(), T.RandomHorizontalFlip()), "follows Lighting"),
    "half": ((*HEAD, Lighting(), T.ConvertImageDtype(torch.float16)), "only one Normalize"),
    "normalized_twice": ((*HEAD, Lighting(), NORMALIZE, NORMALIZE), "only one Normalize"),
    "arithmetic": ((*HEAD, Lighting(), T.Lambda(lambda image: image * 2 - 1)), "only one Normalize"),
    "resized": ((T.ToTensor(), T.Resize((9, 9), antialias=True), Lighting()), "a float tensor"),
    "within": ((*HEAD, T.RandomApply([Lighting()])), "is not supported"),
    "property": ((*HEAD, Changing()), "Changing is not supported"),
    "doubles": ((*HEAD, of_doubles()), "Lighting is not supported"),
}


@pytest.mark.parametrize("name", LEFT)
def test_what_is_left_to_torch(images, name):
    steps, words = LEFT[name]
    dataset = ImageFolder(str(images), compose(*steps))
    text = feedmill.DataLoader(dataset).explain()
    assert text.startswith("torch's own path, because\n  - ") and words in text, text


@pytest.mark.parametrize(("old", "new"), [
    (".sum(1)", ".sum(0)"),
    ("self.alphastd == 0", "self.alphastd == 1"),
    ("normal_(0, self.alphastd)", "normal_(0.1, self.alphastd)"),
    ("img.add(rgb", "img.sub(rgb"),
])
def test_look_alikes(images, tmp_path, old, new):
    kind = changed(tmp_path, old, new)
    text = feedmill.DataLoader(ImageFolder(str(images), compose(*HEAD, kind()))).explain()
    assert text.startswith("torch's own path") and "Lighting is not supported" in text, text


def test_a_replaced_method(images, monkeypatch):
    monkeypatch.setattr(torch.Tensor, "normal_", lambda tensor, *_: tensor.fill_(1))
    text = feedmill.DataLoader(ImageFolder(str(images), compose(*HEAD, Lighting()))).explain()
    assert text.startswith("torch's own path"), text


def test_a_subclass_is_known_by_its_method(images):
    class Mine(OfSelfSup):
        pass

    text = feedmill.DataLoader(ImageFolder(str(images), compose(*HEAD, Mine()))).explain()
    assert text.startswith("native path"), text
