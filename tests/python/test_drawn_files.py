"""Datasets that choose the files of a sample by Python's random numbers, as CycleGAN's: natively
they have the numbers, and so the files, of torch's worker processes."""

import linecache
import random

import conftest  # noqa: F401  makes torchvision importable in spawned workers
import feedmill
import numpy as np
import pytest
import torch
from feedmill.planner.attributes import NotUnderstood
from feedmill.planner.own_datasets import read_own
from feedmill.planner.pasting import pastes_as_rgb
from helpers import compose, equal_batches, outcomes_of, save_jpeg, slow_but_for
from PIL import Image
from test_several_files import (
    CROPS,
    LOG,
    STILL,
    CycleGAN,
    bad_files,
    folders,  # noqa: F401  fixture
    made_of,
)
from test_views_of_datasets import LARGE, SMALL, TO_TENSOR
from torch.utils.data import ConcatDataset, Subset
from torchvision import transforms as T

MIXED = compose(T.RandomApply([T.ColorJitter(0.4, 0.4)], p=0.5), LARGE)


class Unaligned(CycleGAN):
    """PyTorch-CycleGAN's."""

    unaligned = True

    def __getitem__(self, index):
        item_A = self.first(Image.open(self.files_A[index % len(self.files_A)]))

        if self.unaligned:
            item_B = self.first(Image.open(self.files_B[random.randint(0, len(self.files_B) - 1)]))
        else:
            item_B = self.first(Image.open(self.files_B[index % len(self.files_B)]))

        return {"A": item_A, "B": item_B}


def to_rgb(image):
    rgb_image = Image.new("RGB", image.size)
    rgb_image.paste(image)
    return rgb_image


class ToRGB(CycleGAN):
    """PyTorch-GAN's."""

    def __getitem__(self, index):
        image_A = Image.open(self.files_A[index % len(self.files_A)])
        image_B = Image.open(self.files_B[random.randint(0, len(self.files_B) - 1)])

        # Convert grayscale images to rgb
        if image_A.mode != "RGB":
            image_A = to_rgb(image_A)
        if image_B.mode != "RGB":
            image_B = to_rgb(image_B)

        item_A = self.first(image_A)
        item_B = self.first(image_B)
        return {"A": item_A, "B": item_B}


class Pix2Pix(CycleGAN):
    """pytorch-CycleGAN-and-pix2pix's."""

    serial_batches = False

    def __getitem__(self, index):
        A_path = self.files_A[index % len(self.files_A)]
        if self.serial_batches:
            index_B = index % len(self.files_B)
        else:
            index_B = random.randint(0, len(self.files_B) - 1)
        B_path = self.files_B[index_B]
        A_img = Image.open(A_path).convert("RGB")
        B_img = Image.open(B_path).convert("RGB")
        A = self.first(A_img)
        B = self.second(B_img)
        return {"A": A, "B": B, "A_paths": A_path, "B_paths": B_path}


class Three(CycleGAN):
    """Draws between the transforms, in another order than it opens the files."""

    def __getitem__(self, index):
        i, j = random.randint(0, 10), random.randrange(3)
        b = self.first(Image.open(self.files_B[j]).convert("RGB"))
        k = random.randrange(2, 9)
        a = self.second(Image.open(self.files_A[i]).convert("RGB"))
        c = self.first(Image.open(self.files_A[index]).convert("RGB"))
        return b, [a, c], k, self.labels[i]


KINDS = {
    "unaligned": Unaligned,
    "to_rgb": ToRGB,
    "pix2pix": Pix2Pix,
    "three": Three,
    "never_random": lambda root: Pix2Pix(root, STILL, STILL),
    "mixed": lambda root: Pix2Pix(root, MIXED, SMALL),
    "subset": lambda root: Subset(Pix2Pix(root), [3, 1, 1, 9, 20, 3]),
    "concat": lambda root: ConcatDataset([Pix2Pix(root), Pix2Pix(root)]),
}
OPTIONS = {"batch_size": 4, "shuffle": True, "num_workers": 2}


def epochs_of(kind, dataset, n_taken=2, **options):
    """Three epochs, the first of which is left early; the script draws numbers, too."""
    torch.manual_seed(2)
    random.seed(3)
    loader = kind(dataset, **{**OPTIONS, **options})
    iterator = iter(loader)
    found = [next(iterator) for _ in range(min(n_taken, len(loader)))]
    del iterator
    found += [random.random(), list(loader), random.random(), list(loader), torch.rand(2)]
    return loader, found


def compare(dataset, **options):
    _, wanted = epochs_of(torch.utils.data.DataLoader, dataset, **options)
    for more in ({}, {"native": "verify"}):
        loader, found = epochs_of(feedmill.DataLoader, dataset, **options, **more)
        assert loader.stats().path == "native", loader.explain()
        assert equal_batches(found, wanted)


@pytest.mark.parametrize("name", slow_but_for(["pix2pix", "unaligned", "mixed"], KINDS))
def test_the_files_are_those_of_torchs_workers(folders, name):  # noqa: F811
    dataset = KINDS[name](folders)
    compare(dataset)
    compare(dataset, num_workers=1, batch_size=5)


@pytest.mark.parametrize("options", [
    {"persistent_workers": True}, {"drop_last": True}, {"batch_size": 1}, {"batch_size": 40},
    pytest.param({"multiprocessing_context": "spawn"}, marks=pytest.mark.slow),
    {"prefetch_factor": 5, "persistent_workers": True}, {"batch_size": None}, {"shuffle": False},
])
def test_other_options(folders, options):  # noqa: F811
    compare(Pix2Pix(folders), **options)


def seed_worker(worker_id):
    random.seed(torch.initial_seed() % 1000 + worker_id)
    np.random.seed(worker_id)


def test_workers_that_are_seeded(folders):  # noqa: F811
    compare(Three(folders), worker_init_fn=seed_worker)


def test_a_sampler_that_gives_iterators_of_indices(folders):  # noqa: F811
    class Batches(list):
        pass

    batches = Batches([[3, 1], (9, 2), range(4, 7)])
    options = {"batch_sampler": batches, "batch_size": 1, "shuffle": False}
    compare(Pix2Pix(folders), **options)


def test_resuming(folders):  # noqa: F811
    dataset = Three(folders)
    torch.manual_seed(1)
    wanted = list(torch.utils.data.DataLoader(dataset, **OPTIONS))
    torch.manual_seed(1)
    loader = feedmill.DataLoader(dataset, **OPTIONS)
    iterator = iter(loader)
    for _ in range(3):
        next(iterator)
    state = loader.state_dict()
    assert equal_batches(list(iterator), wanted[3:])
    other = feedmill.DataLoader(dataset, **OPTIONS)
    other.load_state_dict(state)
    assert equal_batches(list(other), wanted[3:])
    assert other.stats().path == "native"


# ---- errors --------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("kind", [Pix2Pix, pytest.param(Three, marks=pytest.mark.slow)])
def test_damaged_files(tmp_path, folders, kind):  # noqa: F811
    """A worker leaves out the rest of a batch, and what it would have drawn for that."""
    for other in bad_files(tmp_path):
        for place in (1, 2, 6):
            dataset = kind(folders, CROPS, CROPS)
            dataset.files_B[place] = dataset.files_A[place + 5] = str(other)
            for n_workers in (1, 2):
                found, wanted = (
                    outcomes_of(make, dataset, n_workers)
                    for make in (feedmill.DataLoader, torch.utils.data.DataLoader)
                )
                assert any(type(one) is tuple and type(one[0]) is str for one in wanted[0])
                assert equal_batches(found, wanted)


def test_lookups_that_fail(folders):  # noqa: F811
    """Behind these, it is not known how far the dataset had drawn."""
    dataset = Pix2Pix(folders)
    dataset.files_B[5] = None
    options = {"batch_size": 2, "num_workers": 1}
    raised = []
    for make, more in ((torch.utils.data.DataLoader, {}), (feedmill.DataLoader, {"rng": "torch"})):
        torch.manual_seed(4)
        random.seed(1)
        found = []
        iterator = iter(make(dataset, **options, **more))
        with pytest.raises((AttributeError, TypeError)) as caught:
            while True:
                found.append(next(iterator))
        last = str(caught.value).splitlines()[-1]
        raised.append((found, caught.type, last, random.random(), torch.rand(1)))
    assert equal_batches(*raised)
    with pytest.raises(RuntimeError, match="the lookup of a sample failed"):
        next(iterator)
    iterator = iter(feedmill.DataLoader(dataset, **options))
    with pytest.warns(UserWarning, match="the lookup of a sample failed"):
        for _ in range(40):
            try:
                next(iterator)
            except (AttributeError, TypeError):
                pass
            except StopIteration:
                break


def test_files_that_pillow_decodes(tmp_path, folders):  # noqa: F811
    pixels = np.arange(32 * 40 * 4, dtype=np.uint8).reshape(32, 40, 4)
    Image.fromarray(pixels[..., :3]).save(tmp_path / "7.bmp")
    Image.fromarray(pixels, "CMYK").save(tmp_path / "8.jpg")
    dataset = Pix2Pix(folders)
    dataset.files_B[1] = dataset.files_A[1] = str(tmp_path / "7.bmp")
    dataset.files_B[2] = dataset.files_A[2] = dataset.files_B[9] = str(tmp_path / "8.jpg")
    compare(dataset)


def test_grey_files_that_are_not_converted(tmp_path, folders):  # noqa: F811
    dataset = Unaligned(folders)
    dataset.files_B[:] = [str(save_jpeg(tmp_path / "grey.jpg", 40, 30, mode="L"))] * 17
    text = feedmill.DataLoader(dataset, **OPTIONS).explain()
    assert "is an image of mode L" in text


def test_images_of_all_modes_that_are_pasted(tmp_path, folders):  # noqa: F811
    dataset = ToRGB(folders)
    picture = Image.open(dataset.files_A[9])
    alpha = picture.convert("L").resize(picture.size)
    for number, mode in enumerate(("1", "L", "LA", "P", "RGBA", "I;16", "CMYK")):
        path = tmp_path / f"{number}.{'jpg' if mode == 'CMYK' else 'png'}"
        made = picture.convert("L").convert(mode) if mode == "I;16" else picture.convert(mode)
        if mode in ("LA", "RGBA"):
            made.putalpha(alpha)
        made.save(path, **({"transparency": bytes(range(256))} if mode == "P" else {}))
        dataset.files_A[number] = dataset.files_B[number + 5] = str(path)
    compare(dataset, batch_size=3)


def made_pasting(lines, head="def to_rgb(image):", **scope):
    name = f"<pasting of {abs(hash(head + lines))}>"
    text = head + "".join(f"\n    {one}" for one in lines.split("\n")) + "\n"
    linecache.cache[name] = len(text), None, text.splitlines(True), name
    scope = {"Image": Image, "LOG": LOG, **scope}
    exec(compile(text, name, "exec"), scope)
    return scope["to_rgb"]


PASTE = "made = Image.new('RGB', image.size)\nmade.paste(image)\nreturn made"


def test_functions_that_paste():
    assert pastes_as_rgb(to_rgb) and pastes_as_rgb(made_pasting(PASTE))
    for lines in (
        PASTE.replace("'RGB'", "'L'"), PASTE.replace("size)", "size, 3)"),
        PASTE.replace("paste(image)", "paste(image, (0, 0))"), PASTE.replace("return made", "return image"),
        PASTE.replace("image.size", "made.size"), PASTE.replace("paste(image)", "paste(image, None, image)"),
        PASTE.replace("return", "LOG.append(1)\nreturn"), PASTE.replace("made.", "image."),
        PASTE.replace("made", "image"), PASTE.replace("made", "Image"), "return image",
        "self.x = Image.new('RGB', image.size)\nself.x.paste(image)\nreturn self.x",
    ):
        assert not pastes_as_rgb(made_pasting(lines)), lines
    for head in (
        "def to_rgb(image, made=3):", "def to_rgb(*image):", "def to_rgb(image, **more):",
        "async def to_rgb(image):", "def to_rgb(image, /, other):", "def to_rgb(Image):",
    ):
        assert not pastes_as_rgb(made_pasting(PASTE, head)), head
    assert not pastes_as_rgb(made_pasting(PASTE, Image=object()))
    assert not pastes_as_rgb(len) and not pastes_as_rgb(None)


def test_pillows_functions_that_were_replaced(monkeypatch):
    for owner, name in ((Image, "new"), (Image.Image, "paste")):
        with monkeypatch.context() as patch:
            patch.setattr(owner, name, lambda *_: None)
            assert not pastes_as_rgb(to_rgb)


# ---- what is left to torch -----------------------------------------------------------------------


@pytest.mark.parametrize("options", [
    {"num_workers": 0}, {"seed": 3}, {"rng": "feedmill"}, {"in_order": False},
    {"worker_init": "ignore"},
])
def test_options_with_other_random_numbers(folders, options):  # noqa: F811
    text = feedmill.DataLoader(Pix2Pix(folders), **{**OPTIONS, **options}).explain()
    assert text.startswith("torch's own path") and "at random" in text, text


@pytest.mark.parametrize("transform", [
    compose(T.RandomChoice([T.Resize(9), T.Resize(12)]), T.CenterCrop(8), TO_TENSOR),
    compose(T.RandomOrder([T.CenterCrop(12), T.RandomCrop(12)]), TO_TENSOR),
    compose(T.RandomApply([T.RandomOrder([T.RandomGrayscale(), T.ColorJitter(0.3)])]), CROPS),
    compose(T.Lambda(lambda one: T.functional.hflip(one) if random.random() < 0.5 else one), CROPS),
])
def test_transforms_that_draw_from_pythons_generator_too(folders, transform):  # noqa: F811
    for first, second in ((transform, CROPS), (CROPS, transform)):
        text = feedmill.DataLoader(Pix2Pix(folders, first, second), **OPTIONS).explain()
        assert text.startswith("torch's own path"), text
    _, found = epochs_of(feedmill.DataLoader, Pix2Pix(folders, transform, transform))
    _, wanted = epochs_of(torch.utils.data.DataLoader, Pix2Pix(folders, transform, transform))
    assert equal_batches(found, wanted)


HEAD = """i = Image.open(self.files_A[index]).convert("RGB")
j = Image.open(self.files_B[{}]).convert("RGB")
return self.first(i), self.second(j)"""
OWN = random.Random(5)


def own_randint(low, high):
    return OWN.randint(low, high)


@pytest.mark.parametrize("number", [
    "random.choice(range(9))", "random.randint(0, index)", "random.randint(3, 2)",
    "random.randint(0, 2.0)", "random.randint(a=0, b=2)", "random.randint(*(0, 2))",
    "random.randint(True, 2)", "random.randrange(0)", "random.randrange(0, 9, 2)",
    "random.randrange(random.randint(1, 3))", "OWN.randint(0, 3)", "own_randint(0, 3)",
    "np.random.randint(9)", "torch.randint(0, 9, (1,)).item()", "int(random.random() * 9)",
    "self.labels[random.randint(0, 3)] and 0", "random.sample(range(9), 1)[0]",
    "random.SystemRandom().randint(0, 3)", "random.getrandbits(3)", "random.randint",
    "(random.seed(3), random.randint(0, 3))[1]", "len(LOG) or random.randint(0, 3)",
    "random.randint(0, 3) if self.labels[index] else 0",
    "random.randint(0, 3) if random.random() < 0.5 else 0",
    "[random.randint(0, 3) for _ in self.files_B][0]",
])
def test_other_numbers_are_left_to_torch(folders, number):  # noqa: F811
    dataset = made_of(folders, HEAD.format(number), OWN=OWN, own_randint=own_randint)
    state = random.getstate(), OWN.getstate()
    try:
        read = read_own(dataset)
    except NotUnderstood:
        text = feedmill.DataLoader(dataset, **OPTIONS).explain()
        assert text.startswith("torch's own path"), text
    else:
        assert "for _ in" in number and read.draws_files
        compare(dataset)
    assert "for _ in" in number or state == (random.getstate(), OWN.getstate())


@pytest.mark.slow
@pytest.mark.parametrize("number", [
    "int(random.randint(0, 9))", "[random.randrange(4), random.randint(3, 3)][0]",
    "self.labels[random.randint(0, 9)]",
])
def test_numbers_are_drawn_once(folders, number):  # noqa: F811
    dataset = made_of(folders, HEAD.format(number))
    assert len(read_own(dataset)._drawings) == number.count("random.")
    compare(dataset)


def test_the_head_of_these_is_understood(folders):  # noqa: F811
    assert read_own(made_of(folders, HEAD.format("random.randint(0, 3)"))).draws_files


def test_one_file(folders):  # noqa: F811
    dataset = made_of(folders, "image = Image.open(self.files_A[random.randint(0, 3)])\n"
                      "return self.first(image.convert('RGB')), index")
    assert feedmill.DataLoader(dataset, **OPTIONS).explain().startswith("torch's own path")


def test_replaced_functions(folders, monkeypatch):  # noqa: F811
    for owner, name in (
        (random, "randint"), (random._inst, "randrange"), (random.Random, "randint"),
        (random.Random, "_randbelow"), (random, "_inst"),
    ):
        with monkeypatch.context() as patch:
            value = random.Random(3) if name == "_inst" else lambda *_: 0
            patch.setattr(owner, name, value)
            text = feedmill.DataLoader(Pix2Pix(folders), **OPTIONS).explain()
            assert text.startswith("torch's own path"), (name, text)
