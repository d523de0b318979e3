"""Datasets that catch the errors of images that can't be loaded, and go on with another sample, as
BEiT's: natively they have the batches, and the random numbers, of torch's workers."""

import linecache
import logging
import os
import random
import traceback
import warnings

import conftest  # noqa: F401  makes torchvision importable in spawned workers
import feedmill
import numpy as np
import pytest
import torch
from feedmill.planner.attributes import NotUnderstood
from feedmill.planner.own_datasets import read_own
from helpers import compose, equal_batches, outcomes_of, save_jpeg, slow_but_for
from PIL import Image, UnidentifiedImageError
from torch.utils.data import ConcatDataset, Dataset, Subset, default_collate
from torchvision import transforms as T

TO_TENSOR = T.PILToTensor()
CROPS = compose(T.RandomResizedCrop(12), T.RandomHorizontalFlip(), T.ToTensor())
STILL = compose(T.Resize((12, 10)), TO_TENSOR)
OF_PYTHON = compose(T.RandomChoice([T.Resize(9), T.Resize(12)]), T.RandomCrop(8), TO_TENSOR)
LOG = []
LOGGER = logging.getLogger("feedmill.tests.retries")


@pytest.fixture(scope="module")
def paths(tmp_path_factory):
    """25 files, five of which are no images."""
    root = tmp_path_factory.mktemp("retries")
    files = [
        str(save_jpeg(root / f"{n:03}.jpg", 20 + n, 60 - n, seed=n)) for n in range(25)
    ]
    for number in (3, 13):
        with open(files[number], "rb+") as file:
            file.truncate(300 if number == 3 else os.path.getsize(files[number]) - 90)
    for number in (7, 24):
        with open(files[number], "w") as file:
            file.write("no image")
    os.remove(files[17])
    return files


class Files(Dataset):
    def __init__(self, paths, transform=CROPS):
        self.samples = [(path, number % 3) for number, path in enumerate(paths)]
        self.transform = transform
        self.n_tries = 5
        self.fill = 9
        self.mutable = []

    def __len__(self):
        return len(self.samples)

    def loader(self, path):
        with open(path, "rb") as file:
            image = Image.open(file)
            return image.convert("RGB")


# ---- as in public code ---------------------------------------------------------------------------


class Beit(Files):
    """BEiT's dataset_folder."""

    target_transform = None

    def __getitem__(self, index):
        while True:
            try:
                path, target = self.samples[index]
                sample = self.loader(path)
                break
            except Exception as e:
                print(e)
                index = random.randint(0, len(self.samples) - 1)

        if self.transform is not None:
            sample = self.transform(sample)
        if self.target_transform is not None:
            target = self.target_transform(target)

        return sample, target


class Again(Files):
    """Everything in a try statement, and the next sample in the place of one that fails."""

    def __getitem__(self, idx):
        try:
            path, label = self.samples[idx]
            image = Image.open(path).convert("RGB")
            if self.transform:
                image = self.transform(image)
            return image, label
        except Exception as error:
            print(f"skipped {path}: {error}, {str(error)!r:>20}")
            return self.__getitem__((idx + 1) % len(self))


class AnyOther(Files):
    def __getitem__(self, idx):
        path, label = self.samples[idx]
        try:
            image = Image.open(path).convert("RGB")
        except (OSError, UnidentifiedImageError):
            LOGGER.debug("%s can't be loaded", path)
            return self[np.random.randint(0, len(self))]
        return {"image": self.transform(image), "label": label, "path": path}


class Filled(Files):
    """A gray image in the place of one that fails."""

    def __getitem__(self, idx):
        path, label = self.samples[idx]
        try:
            image = Image.open(path).convert("RGB")
        except:  # noqa: E722
            image = Image.new("RGB", (24, 24), (self.fill, self.fill, self.fill))
            label = -1
        else:
            label = label
        return self.transform(image), label


class GotImage(Files):
    """As re-identification code reads images."""

    def read_image(self, path):
        got_img = False
        while not got_img:
            try:
                img = Image.open(path).convert("RGB")
                got_img = True
            except OSError:
                print(f"IOError incurred when reading '{path}'. Will redo.")
                path = random.choice([self.samples[0][0], self.samples[1][0]])
        return img

    def __getitem__(self, idx):
        path, label = self.samples[idx]
        return self.transform(self.read_image(path)), label, idx


class SeveralTries(Files):
    def __getitem__(self, idx):
        for _ in range(self.n_tries):
            try:
                path, label = self.samples[idx]
                image = Image.open(path).convert("RGB")
                break
            except Exception:
                traceback.print_exc()
                warnings.warn("another one", stacklevel=1)
                if idx % 2 and len(self.samples) > 3:
                    idx = idx - 1
                    continue
                idx = random.randrange(len(self.samples))
        return self.transform(image), label


class Missing(Files):
    """None in the place of a sample, which the collate_fn leaves out."""

    def __getitem__(self, idx):
        try:
            with Image.open(self.samples[idx][0]) as image:
                return self.transform(image.convert("RGB")), self.samples[idx][1]
        except Exception:
            return None


class TwoFiles(Files):
    def __getitem__(self, idx):
        try:
            first = Image.open(self.samples[idx][0]).convert("RGB")
            second = Image.open(self.samples[idx % 11][0]).convert("RGB")
        except Exception:
            return self.__getitem__(random.randint(0, len(self) - 1))
        return self.transform(first), self.transform(second), idx


class Inner(Dataset):
    """Catches the errors of the dataset within it."""

    def __init__(self, inner):
        self.inner = inner

    def __len__(self):
        return 25

    def __getitem__(self, idx):
        try:
            image, label = self.inner[idx]
        except Exception:
            return self.inner[0]
        return image, label


class Around(Inner):
    def __getitem__(self, idx):
        image, label = self.inner[idx]
        return image, label, idx


class Plain(Files):
    def __getitem__(self, idx):
        path, label = self.samples[idx]
        return self.transform(Image.open(path).convert("RGB")), label


def without_none(samples):
    return default_collate([one for one in samples if one is not None])


KINDS = {
    "beit": Beit,
    "again": Again,
    "any other": AnyOther,
    "filled": Filled,
    "got_img": GotImage,
    "tries": SeveralTries,
    "two files": TwoFiles,
    "inner": lambda paths: Inner(Plain(paths)),
    "of python": lambda paths: Beit(paths, OF_PYTHON),
    "not random": lambda paths: Beit(paths, STILL),
    "subset": lambda paths: Subset(Beit(paths), [3, 7, 7, 1, 2, 9, 24, 0, 3]),
    "concat": lambda paths: ConcatDataset([AnyOther(paths), AnyOther(paths)]),
    "around": lambda paths: Around(Beit([None, *paths[:3], "", *paths[5:], *paths])),
    "wrapped": lambda paths: Subset(Inner(Beit(paths)), [3, 7, 7, 1, 2, 9, 24, 0, 3]),
}
OPTIONS = {"batch_size": 4, "shuffle": True, "num_workers": 2}


def epochs_of(kind, dataset, n_taken=2, **options):
    """Three epochs, the first of which is left early; the script draws numbers, too."""
    torch.manual_seed(2)
    random.seed(3)
    np.random.seed(4)
    loader = kind(dataset, **{**OPTIONS, **options})
    iterator = iter(loader)
    found = [next(iterator) for _ in range(min(n_taken, len(loader)))]
    del iterator
    found += [random.random(), list(loader), random.random(), list(loader), torch.rand(2)]
    return loader, [*found, float(np.random.rand())]


def compare(dataset, **options):
    _, wanted = epochs_of(torch.utils.data.DataLoader, dataset, **options)
    for more in ({}, {"native": "verify"}):
        loader, found = epochs_of(feedmill.DataLoader, dataset, **options, **more)
        stats = loader.stats()
        assert stats.path == "native" and stats.decode.native_samples, loader.explain()
        assert equal_batches(found, wanted)
    return loader


@pytest.mark.parametrize("n_workers", slow_but_for([0], [0, 2]))
@pytest.mark.parametrize("name", KINDS)
def test_batches_are_those_of_torch(paths, name, n_workers):
    compare(KINDS[name](paths), num_workers=n_workers)


@pytest.mark.parametrize("options", [
    {"persistent_workers": True}, {"drop_last": True}, {"batch_size": 1}, {"batch_size": 40},
    pytest.param({"multiprocessing_context": "spawn"}, marks=pytest.mark.slow),
    {"prefetch_factor": 5, "persistent_workers": True}, {"batch_size": None}, {"shuffle": False},
])
def test_other_options(paths, options):
    compare(Beit(paths), **options)
    compare(Again(paths), **options)


def seed_worker(worker_id):
    random.seed(torch.initial_seed() % 1000 + worker_id)
    np.random.seed(worker_id)


def test_workers_that_are_seeded(paths):
    compare(Beit(paths), worker_init_fn=seed_worker)


def test_a_sampler_that_gives_iterators_of_indices(paths):
    class Batches(list):
        def __iter__(self):
            return map(iter, list.__iter__(self))

    options = {"batch_sampler": Batches([[3, 1], (9, 2), range(4, 7)]), "batch_size": 1}
    compare(Beit(paths), **options, shuffle=False, num_workers=0)


def test_datasets_that_catch_errors_and_others(paths):
    dataset = ConcatDataset([Plain(paths), Beit(paths)])
    text = feedmill.DataLoader(dataset, **OPTIONS).explain()
    assert text.startswith("torch's own path"), text


def mixed(samples):
    """Draws from all generators."""
    images, labels = default_collate(samples)
    factor = random.random() + np.random.rand()
    return images * factor + torch.rand(1), labels[torch.randperm(len(labels))]


@pytest.mark.parametrize("n_workers", [0, 1, 2])
@pytest.mark.parametrize("persistent", [False, True])
def test_a_collate_fn_that_draws(paths, n_workers, persistent):
    options = {"num_workers": n_workers, "persistent_workers": persistent and n_workers > 0}
    compare(Beit(paths), collate_fn=mixed, **options)
    compare(Beit(paths, STILL), collate_fn=mixed, **options)
    compare(Missing(paths), collate_fn=without_none, drop_last=True, **options)


def test_resuming(paths):
    dataset = Beit(paths)
    torch.manual_seed(1)
    wanted = list(torch.utils.data.DataLoader(dataset, **OPTIONS))
    for n in range(1, 6):
        torch.manual_seed(1)
        loader = feedmill.DataLoader(dataset, **OPTIONS)
        iterator = iter(loader)
        for _ in range(n):
            next(iterator)
        state = loader.state_dict()
        assert equal_batches(list(iterator), wanted[n:])
        other = feedmill.DataLoader(dataset, **OPTIONS)
        other.load_state_dict(state)
        assert equal_batches(list(other), wanted[n:])
        assert other.stats().path == "native"


def test_the_report_names_the_files(paths):
    loader = compare(Beit(paths), num_workers=2, shuffle=False)
    errors = loader.stats().sample_errors
    assert {one.outcome for one in errors} == {"left to the dataset"}
    assert {3, 7, 13, 17, 24} <= {one.index for one in errors}


def test_only_batches_with_such_files_are_made_by_the_dataset(paths, monkeypatch):
    dataset, made = Beit(paths), []
    monkeypatch.setattr(Beit, "__len__", lambda self: len(self.samples))
    loader = feedmill.DataLoader(dataset, batch_size=5, num_workers=1)
    assert loader.explain().startswith("native path")

    def loads(path):
        made.append(path)
        return Files.loader(dataset, path)

    dataset.loader = loads  # after the dataset was read
    loader = feedmill.DataLoader(Beit(paths[8:13]), batch_size=5, num_workers=1)
    list(loader)
    assert not made and loader.stats().sample_errors == ()


# ---- errors --------------------------------------------------------------------------------------


class Raises(Files):
    def __getitem__(self, idx):
        path, label = self.samples[idx]
        try:
            image = Image.open(path).convert("RGB")
        except Exception as error:
            if idx % 2:
                raise RuntimeError(f"{path} is bad: {random.random()}")  # noqa: B904
            print(repr(error))
            raise
        return self.transform(image), label


ADDRESSES = r" at 0x\w+"  # of objects, in texts of errors


@pytest.mark.parametrize("n_workers", [0, 2])
def test_errors_of_the_handler(paths, n_workers):
    found, wanted = (
        outcomes_of(make, Raises(paths), n_workers, ADDRESSES)
        for make in (feedmill.DataLoader, torch.utils.data.DataLoader)
    )
    assert any(type(one) is tuple for one in wanted[0]) and equal_batches(found, wanted)


@pytest.mark.parametrize("n_workers", [0, 2])
def test_samples_that_do_not_collate(paths, n_workers):
    """The error of torch's own collate_fn."""
    found, wanted = (
        outcomes_of(make, Missing(paths), n_workers, ADDRESSES)
        for make in (feedmill.DataLoader, torch.utils.data.DataLoader)
    )
    assert any(type(one) is tuple for one in wanted[0]) and equal_batches(found, wanted)


@pytest.mark.parametrize("n_workers", [0, 2])
@pytest.mark.parametrize("path", [None, 7.5, "", "a\0b", b"x" * 5000, ["x"]])
def test_paths_that_can_not_be_opened(paths, n_workers, path):
    dataset = Beit(paths)
    dataset.samples[5] = path, 1
    dataset.samples[6] = path
    found, wanted = (
        outcomes_of(make, dataset, n_workers, ADDRESSES)
        for make in (feedmill.DataLoader, torch.utils.data.DataLoader)
    )
    assert equal_batches(found, wanted)


@pytest.mark.parametrize("n_workers", [0, 2])
def test_transforms_that_fail(paths, n_workers):
    """Of images that are too small, behind the draws of other transforms."""
    transform = compose(T.RandomHorizontalFlip(), T.RandomCrop(30), T.ToTensor())
    for kind in (Again, Beit):
        found, wanted = (
            outcomes_of(make, kind(paths, transform), n_workers, ADDRESSES)
            for make in (feedmill.DataLoader, torch.utils.data.DataLoader)
        )
        assert equal_batches(found, wanted)


def test_files_that_pillow_decodes(tmp_path, paths):
    pixels = np.arange(32 * 40 * 4, dtype=np.uint8).reshape(32, 40, 4)
    Image.fromarray(pixels[..., :3]).save(tmp_path / "7.bmp")
    Image.fromarray(pixels, "CMYK").save(tmp_path / "8.jpg")
    dataset = Beit(paths)
    dataset.samples[4:6] = [(str(tmp_path / "7.bmp"), 5), (str(tmp_path / "8.jpg"), 6)]
    compare(dataset)


# ---- what is left to torch -----------------------------------------------------------------------


@pytest.mark.parametrize("options", [
    {"seed": 3}, {"rng": "feedmill"}, {"dtype": torch.float16}, {"native": "hybrid"},
    {"memory_format": torch.channels_last}, {"decode": "scaled"},
])
def test_options_that_need_torchs_workers(paths, options):
    text = feedmill.DataLoader(Beit(paths), **{**OPTIONS, **options}).explain()
    assert text.startswith("torch's own path") and "code of its own for files" in text, text


def test_on_error(paths):
    with pytest.raises(RuntimeError, match="code of its own for files"):
        feedmill.DataLoader(Beit(paths), **OPTIONS, on_error="zero")


class Hostile:
    """Notes what is done with it."""

    def __call__(self, *_):
        LOG.append("called")
        return 0

    def __str__(self):
        LOG.append("shown")
        return ""

    def __getitem__(self, at):
        LOG.append("read")
        return at

    def append(self, _):
        LOG.append("appended")


def hostile(error):
    LOG.append(error)
    return 0


def made_of(paths, lines, kind=Files, **scope):
    name = f"<retry of {abs(hash(lines))}>"
    body = "".join(f"        {one}\n" for one in lines.split("\n"))
    text = f"class Made(Files):\n    def __getitem__(self, index):\n{body}"
    linecache.cache[name] = len(text), None, text.splitlines(True), name
    scope = {**globals(), "__name__": "made", "Files": kind, "thing": Hostile(), **scope}
    exec(compile(text, name, "exec"), scope)
    dataset = scope["Made"](paths)
    dataset.thing, dataset.things = Hostile(), [Hostile()]
    dataset.tensors = [torch.zeros(3, 8, 8)]
    return dataset


GOOD = """\
try:
    image = Image.open(self.samples[index][0]).convert('RGB')
except Exception as error:
    {}
return self.transform(image), index"""

HARMLESS = (
    "return self[0]", "return self.__getitem__(random.randint(0, 9))", "pass", "raise",
    "print(error)", "print(f'{error}', index)", "index = index + 1\n    return self[index]",
    "logging.warning('bad %s', index)", "LOGGER.info('bad')", "return None", "return",
    "image = Image.new('RGB', (8, 8))", "return torch.zeros(3, 8, 8), 0", "raise ValueError('x')", "raise error", "raise IndexError",
    "return self[len(self) - 1]", "return self[self.__len__() - 1]",
    "return self[np.random.choice(3)]", "print(self.samples[index])",
    "return self[self.samples[index][1]]", "print(self.fill, len(self.mutable))",
    "n = 3\n    n += 1\n    index += n", "print('{} is bad'.format(index))", "print(', '.join([str(error)]))",
)


@pytest.mark.parametrize("handler", HARMLESS)
def test_handlers_that_change_nothing(paths, handler):
    assert read_own(made_of(paths, GOOD.format(handler))).retries


HARMFUL = (
    "self.mutable.append(index)", "self.fill = 3", "self.samples[index] = 3", "self.fill += 1",
    "self.samples.pop(index)", "del self.samples[index]", "hostile(error)", "thing(error)",
    "self.thing(error)", "print(self.thing)", "print(thing)", "print(f'{self.thing}')",
    "return self.thing[3]", "print(self.things)", "global LOG\n    LOG = 3", "import os",
    "print(error.args)", "return self[self.loader(index)]", "LOG.append(index)",
    "[LOG.append(one) for one in range(3)]", "print(LOG.append(3))", "return (lambda: 3)()",
    "(index := 3)", "with thing: pass", "exec('LOG.append(3)')", "setattr(self, 'fill', 3)",
    "for one in range(3): print(one)", "random.seed(3)", "np.random.seed(3)", "random.shuffle(LOG)",
    "torch.manual_seed(3)", "return self.transform(index)", "print(*LOG)", "print(**self.thing)",
    "raise thing", "raise SystemExit(3)", "raise KeyboardInterrupt", "raise hostile(error)", "raise ValueError from hostile(error)",
    "os.remove(self.samples[index][0])", "print(self)", "print(len(self.thing))",
    "print(3, file=thing)", "def f(): pass", "yield 3", "assert hostile(error)",
    "self.loader = hostile", "self, index = 3, 4", "LOGGER.setLevel(3)", "LOGGER.handlers.clear()",
    "try: pass\n    finally: hostile(3)", "image = torch.zeros(3, out=self.thing)",
    "return self.__getattribute__('loader')(error)", "return super().__getitem__(index)",
    "many = self.mutable\n    many += [3]", "many = 3\n    many = self.mutable\n    many *= 2",
    "image = self.tensors[0]", "self += 1", "error += 1", "index = self.mutable\n    index += [index]",
    "for index in [LOG]:\n        index += [3]", "return self[:, hostile(3)]", "print(f'{error:{hostile(3)}}')", "return self.__len__(3)", "return self.thing.__len__()",
)


@pytest.mark.parametrize("handler", HARMFUL)
def test_handlers_that_may_change_something(paths, handler):
    with pytest.raises(NotUnderstood):
        read_own(made_of(paths, GOOD.format(handler)))
    assert not LOG


OPEN = "image = Image.open(self.samples[index][0]).convert('RGB')"
RETURN = "return self.transform(image), index"
OTHERS = (
    # Nothing is loaded within.
    f"try:\n    n = self.samples[index][1]\nexcept KeyError:\n    n = 0\n{OPEN}\n{RETURN}",
    f"{OPEN}\ntry:\n    image = self.transform(image)\nexcept ValueError:\n    pass\n"
    "return image, index",
    # More happens.
    f"try:\n    {OPEN}\nfinally:\n    self.fill = 3\n{RETURN}",
    f"try:\n    {OPEN}\nexcept hostile(3):\n    pass\n{RETURN}",
    f"try:\n    {OPEN}\nexcept self.thing:\n    pass\n{RETURN}",
    f"try:\n    self.fill = 3\n    {OPEN}\nexcept ValueError:\n    pass\n{RETURN}",
    f"try:\n    {OPEN}\n    hostile(3)\nexcept ValueError:\n    pass\n{RETURN}",
    f"try:\n    {OPEN}\nexcept ValueError:\n    pass\nelse:\n    hostile(3)\n{RETURN}",
    f"try:\n    {OPEN}\nexcept* ValueError:\n    pass\n{RETURN}",
    # Loops that go on.
    f"while True:\n    try:\n        {OPEN}\n    except ValueError:\n        pass",
    f"while True:\n    {OPEN}",
    f"while hostile(3):\n    try:\n        {OPEN}\n        break\n    except ValueError:\n"
    f"        pass\n{RETURN}",
    f"while True:\n    for one in [1, 2]:\n        break\n    try:\n        {OPEN}\n"
    f"    except ValueError:\n        pass\n{RETURN}",
    f"while True:\n    try:\n        {OPEN}\n        continue\n    except ValueError:\n"
    f"        break\n{RETURN}",
    f"while True:\n    try:\n        {OPEN}\n        break\n    except ValueError:\n        pass\n"
    f"else:\n    hostile(3)\n{RETURN}",
    f"for _ in range(3):\n    try:\n        {OPEN}\n    except ValueError:\n        pass\n{RETURN}",
    f"for _ in range(0):\n    try:\n        {OPEN}\n        break\n    except ValueError:\n"
    f"        pass\n{RETURN}",
    f"for _ in self.thing:\n    try:\n        {OPEN}\n        break\n    except ValueError:\n"
    f"        pass\n{RETURN}",
    f"for self.fill in range(3):\n    try:\n        {OPEN}\n        break\n    except ValueError:\n"
    f"        pass\n{RETURN}",
    f"for one in [1, 2]:\n    break\n{OPEN}\n{RETURN}",
)


# What is only executed when something has failed.
CATCHES = f"ok = True\ntry:\n    {OPEN}\nexcept ValueError:\n    ok = False\n    image = None\n"
RETRIES = f"for _ in range(3):\n    try:\n        {OPEN}\n        break\n    except OSError:\n        pass\n"
LATER = (
    CATCHES + "if not ok:\n    {}\n" + RETURN,
    CATCHES + "if image is None:\n    {}\n" + RETURN,
    CATCHES + "if ok:\n    pass\nelse:\n    {}\n" + RETURN,
    CATCHES + "if self.fill:\n    if not ok:\n        {}\n" + RETURN,
    CATCHES + "n = 1 if ok else {}\n" + RETURN,
    CATCHES + "n = ok or {}\n" + RETURN,
    CATCHES + "if ok or {}:\n    pass\n" + RETURN,
    RETRIES + "    {}\n" + RETURN,
    f"try:\n    {OPEN}\n    {RETURN}\nexcept OSError:\n    pass\n{{}}\nreturn None",
)


@pytest.mark.parametrize("lines", LATER)
def test_code_behind_the_handler(paths, lines):
    assert read_own(made_of(paths, lines.format("print(index)"))).retries
    for harmful in ("self.mutable.append(index)", "hostile(3)", "thing[3]", "print(self.thing)"):
        with pytest.raises(NotUnderstood):
            read_own(made_of(paths, lines.format(harmful)))
    assert not LOG


def test_arguments_that_may_be_another_ones(paths):
    """As the dataset's, they may be changed in place."""

    class Rows(Files):
        def load(self, row):
            try:
                return Image.open(row[0]).convert("RGB")
            except OSError:
                row += (3,)
                return Image.new("RGB", (8, 8))

    lines = "image = self.load(self.samples[index])\n" + RETURN
    with pytest.raises(NotUnderstood):
        read_own(made_of(paths, lines, Rows))


def test_branches_that_no_error_changes(paths):
    lines = CATCHES + "if self.fill == 8:\n    hostile(3)\n" + RETURN
    assert read_own(made_of(paths, lines)).retries
    convert = "if image.mode != 'RGB':\n    image = image.convert('RGB')\n"
    lines = CATCHES.replace(".convert('RGB')", "") + convert + RETURN
    assert read_own(made_of(paths, lines)).retries


@pytest.mark.parametrize("lines", OTHERS)
def test_other_code_around_it(paths, lines):
    with pytest.raises(NotUnderstood):
        read_own(made_of(paths, lines))
    assert not LOG


@pytest.mark.parametrize("scope", [
    {"print": hostile}, {"range": hostile}, {"len": hostile}, {"random": Hostile()},
    {"Exception": hostile}, {"logging": Hostile()}, {"Image": Hostile()},
])
def test_names_that_mean_something_else(paths, scope):
    lines = GOOD.format(
        "print(error)\n    logging.info('')\n    image = Image.new('RGB', (3, 3))\n"
        "    index = random.randint(0, len(range(3)))"
    )
    assert read_own(made_of(paths, lines)).retries
    with pytest.raises(NotUnderstood):
        read_own(made_of(paths, lines, **scope))


def test_a_length_that_is_not_understood(paths):
    class Other(Files):
        def __len__(self):
            LOG.append(3)
            return 25

    lines = GOOD.format("return self[len(self) - 1]")
    with pytest.raises(NotUnderstood):
        read_own(made_of(paths, lines, Other))
    assert not LOG


def test_a_loader_of_a_folder(tmp_path):
    """It has no dataset's code around it that could be called again."""
    from torchvision.datasets import ImageFolder

    def load(path):
        try:
            return Image.open(path).convert("RGB")
        except OSError:
            return Image.new("RGB", (8, 8))

    save_jpeg(tmp_path / "class" / "0.jpg", 30, 30)
    dataset = ImageFolder(tmp_path, CROPS, loader=load)
    assert feedmill.DataLoader(dataset).explain().startswith("torch's own path")
