"""Datasets whose samples hold several image files: which are native by their source, with what
torch's path gives, random numbers included, and which are left to torch."""

import linecache
import os
import pickle
import random

import conftest  # noqa: F401  makes torchvision importable in spawned workers
import feedmill
import numpy as np
import pytest
import torch
from feedmill import VerificationError
from feedmill.planner.attributes import NotUnderstood
from feedmill.planner.own_datasets import read_own
from helpers import compose, equal_batches, native_loader, outcomes_of, save_jpeg
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from test_views_of_datasets import LARGE, SMALL, TO_TENSOR, compare
from torch.utils.data import ConcatDataset, Dataset, Subset
from torchvision import transforms as T
from torchvision.datasets.folder import default_loader

STILL = compose(T.Resize((12, 10)), TO_TENSOR)
LOG = []


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Folders of 23 and of 17 images, 20 to 60 pixels wide and high."""
    root = tmp_path_factory.mktemp("several")
    for name, n in (("A", 23), ("B", 17)):
        for number in range(n):
            width, height = 20 + number, 60 - number
            save_jpeg(root / name / f"{number:03}.jpg", width, height, seed=n + number)
    return root


def files_in(root, name):
    folder = os.path.join(str(root), name)
    return [os.path.join(folder, one) for one in sorted(os.listdir(folder))]


class Files(Dataset):
    def __init__(self, root, first=LARGE, second=SMALL):
        self.files_A, self.files_B = files_in(root, "A"), files_in(root, "B")
        self.pairs = list(zip(self.files_A, self.files_B))
        self.folder_B = os.path.join(str(root), "B")
        self.labels = [number % 3 for number in range(len(self.files_A))]
        self.first, self.second = first, second

    def __len__(self):
        return len(self.pairs)


# ---- as in public code ---------------------------------------------------------------------------


class CycleGAN(Files):
    """PyTorch-GAN's, aligned."""

    def __getitem__(self, index):
        image_A = Image.open(self.files_A[index % len(self.files_A)]).convert("RGB")
        image_B = Image.open(self.files_B[index % len(self.files_B)]).convert("RGB")
        item_A = self.first(image_A)
        item_B = self.first(image_B)
        return {"A": item_A, "B": item_B}

    def __len__(self):
        return max(len(self.files_A), len(self.files_B))


class Pix2Pix(CycleGAN):
    """As pytorch-CycleGAN-and-pix2pix's unaligned dataset, with serial_batches."""

    def __getitem__(self, index):
        A_path = self.files_A[index % len(self.files_A)]
        B_path = self.files_B[index % len(self.files_B)]
        A_img = Image.open(A_path).convert("RGB")
        B_img = Image.open(B_path).convert("RGB")
        A = self.first(A_img)
        B = self.second(B_img)
        return {"A": A, "B": B, "A_paths": A_path, "B_paths": B_path}


class Reference(Files):
    """StarGAN v2's."""

    def __init__(self, root, first=LARGE, second=SMALL):
        super().__init__(root, first, second)
        self.samples, self.targets = list(zip(self.files_A[:17], self.files_B)), self.labels[:17]
        self.transform = first

    def __getitem__(self, index):
        fname, fname2 = self.samples[index]
        label = self.targets[index]
        img = Image.open(fname).convert("RGB")
        img2 = Image.open(fname2).convert("RGB")
        if self.transform is not None:
            img = self.transform(img)
            img2 = self.transform(img2)
        return img, img2, label


class OneAfterTheOther(Files):
    def __getitem__(self, index):
        with Image.open(self.files_A[index]) as image:
            a = self.first(image.convert("RGB"))
        with Image.open(self.files_B[index]) as image:
            b = self.second(image.convert("RGB"))
        return a, b


class LastFirst(Files):
    def __getitem__(self, index):
        a = default_loader(self.files_A[index])
        b = default_loader(self.files_B[index])
        b = self.second(b)
        return [{"a": (self.first(a), self.labels[index])}, b, index, "text"]


class Triplet(Files):
    def __getitem__(self, index):
        names = self.files_A[index], self.files_B[index], self.files_A[index % 5]
        images = [self.first(Image.open(one).convert("RGB")) for one in names]
        return images, self.labels[index]


class ByMethod(Files):
    def load(self, path):
        return self.first(Image.open(path).convert("RGB"))

    def __getitem__(self, index):
        low, high = self.pairs[index]
        return self.load(high), self.load(low)


class SuperResolution(Files):
    """Low and high resolution in folders of their own."""

    def __getitem__(self, index):
        name = os.path.basename(self.files_A[index])
        high = Image.open(self.files_A[index]).convert("RGB")
        low = Image.open(os.path.join(self.folder_B, name)).convert("RGB")
        return {"lr": self.second(low), "hr": self.first(high), "name": name}


class AsIs(Files):
    def __getitem__(self, index):
        a = Image.open(self.files_A[index])
        b = Image.open(self.files_B[index])
        return self.first(a), self.second(b)


NATIVE = {
    "cyclegan": CycleGAN,
    "pix2pix": Pix2Pix,
    "reference": Reference,
    "one_after_the_other": OneAfterTheOther,
    "last_first": LastFirst,
    "triplet": Triplet,
    "by_method": ByMethod,
    "super_resolution": lambda root: SuperResolution(root, STILL, LARGE),
    "never_random": lambda root: Pix2Pix(root, STILL, STILL),
    "subset": lambda root: Subset(CycleGAN(root), [3, 1, 1, 9, 20, 3]),
    "concat": lambda root: ConcatDataset([Pix2Pix(root), Pix2Pix(root)]),
    "as_is": AsIs,
}


@pytest.mark.parametrize("n_workers", [0, pytest.param(2, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", NATIVE)
def test_these_are_native(folders, name, n_workers):
    dataset = NATIVE[name](folders)
    assert "files a sample" in str(feedmill.DataLoader(dataset, batch_size=4).explain())
    compare(dataset, num_workers=n_workers)
    if name != "as_is":  # whose images may have different types
        compare(dataset, batch_size=None, num_workers=n_workers)


@pytest.mark.parametrize("options", [
    {"num_workers": 1, "persistent_workers": True}, {"drop_last": True},
    pytest.param({"num_workers": 2, "multiprocessing_context": "spawn"}, marks=pytest.mark.slow),
    {"batch_size": 1}, {"batch_size": 40},
])
def test_other_options(folders, options):
    compare(pickle.loads(pickle.dumps(LastFirst(folders))), **options)


def test_each_file_is_decoded_once(folders):
    loader = native_loader(Pix2Pix(folders), batch_size=23, seed=5)
    [batch] = list(loader)
    assert batch["A"].is_contiguous() and batch["B"].is_contiguous()
    counters = loader.stats().flat()
    assert counters["read_files"] == counters["native_samples"] == 46
    assert counters["samples"] == 23
    for index in (0, 17, 22):
        images, _ = loader.fetch(index, 0)
        assert equal_batches(images, [batch["A"][index], batch["B"][index]])
    names = [[name for name, _ in loader.draws(3, 0, view=view)] for view in (0, 1)]
    assert "RandomResizedCrop" in names[0] and "RandomGrayscale" in names[1]


def test_equal_transforms_draw_for_each_file(folders):
    dataset = CycleGAN(folders)
    dataset.files_B = list(dataset.files_A)
    [batch] = list(native_loader(dataset, batch_size=23, seed=5))
    assert sum(map(torch.equal, batch["A"], batch["B"])) < 3


def test_own_random_numbers_do_not_depend_on_threads_and_order(folders):
    batches = [
        list(native_loader(Pix2Pix(folders), batch_size=4, seed=3, num_workers=n_workers))
        for n_workers in (0, 1, 2)
    ]
    assert equal_batches(batches[0], batches[1]) and equal_batches(batches[0], batches[2])


def test_an_index_that_comes_twice_draws_twice(folders):
    dataset = Subset(Pix2Pix(folders), [4, 4, 4, 7])
    loader = native_loader(dataset, batch_size=3, seed=3, native="verify")
    one = next(iter(loader))
    assert not torch.equal(one["A"][0], one["A"][1])
    assert not torch.equal(one["B"][0], one["B"][1])
    assert len(list(loader)) == 2


def test_resuming(folders):
    dataset, options = LastFirst(folders), {"batch_size": 4, "shuffle": True, "num_workers": 2}
    torch.manual_seed(1)
    wanted = list(torch.utils.data.DataLoader(dataset, **options))
    for more in ({}, {"seed": 8}):
        torch.manual_seed(1)
        loader = feedmill.DataLoader(dataset, **options, **more)
        iterator = iter(loader)
        for _ in range(2):
            next(iterator)
        state = loader.state_dict()
        rest = list(iterator)
        other = feedmill.DataLoader(dataset, **options, **more)
        other.load_state_dict(state)
        assert equal_batches(list(other), rest)
        assert more or equal_batches(rest, wanted[2:])
        assert other.stats().path == "native"


def test_the_cache(folders):
    for cache in ("ram:64MiB", None):
        loader = native_loader(Pix2Pix(folders), batch_size=5, seed=1, cache=cache)
        first, second = list(loader), list(loader)
        hits = loader.stats().flat()["cache_hits"]
        assert hits >= 46 if cache else hits == 0
        assert len(first) == len(second) == 5


# ---- files ---------------------------------------------------------------------------------------


def bad_files(tmp_path):
    bad = save_jpeg(tmp_path / "bad.jpg", 50, 50)
    bad.write_bytes(bad.read_bytes()[:400])
    text = tmp_path / "text.jpg"
    text.write_text("no image")
    return [bad, text, tmp_path / "missing.jpg", tmp_path, save_jpeg(tmp_path / "s.jpg", 6, 7)]


CROPS = compose(T.RandomCrop(8), TO_TENSOR)


@pytest.mark.slow
@pytest.mark.parametrize("n_workers", [0, pytest.param(2, marks=pytest.mark.slow)])
@pytest.mark.parametrize("kind", [CycleGAN, OneAfterTheOther, LastFirst])
def test_damaged_files(tmp_path, folders, kind, n_workers):
    others = bad_files(tmp_path)
    for number, other in enumerate(others):
        for places in ((4,), (5,), (), (4, 6)):
            dataset = kind(folders, CROPS, CROPS)
            for place in places:
                dataset.files_B[place] = str(other)
            if len(places) != 1:
                dataset.files_A[4] = str(others[number - 1])
            loader = feedmill.DataLoader(dataset, batch_size=3, num_workers=n_workers)
            assert loader.explain().startswith("native path"), loader.explain()
            wanted = outcomes_of(torch.utils.data.DataLoader, dataset, n_workers)
            assert equal_batches(outcomes_of(feedmill.DataLoader, dataset, n_workers), wanted)


def test_errors_name_the_file(tmp_path, folders):
    dataset = CycleGAN(folders)
    dataset.files_B[2] = str(tmp_path / "missing.jpg")
    for options in ({}, {"seed": 1}, {"num_workers": 2}):
        with pytest.raises(FileNotFoundError, match=r"dataset index 2.*missing\.jpg"):
            list(feedmill.DataLoader(dataset, batch_size=4, **options))


def test_the_lookup_fails(folders):
    dataset = OneAfterTheOther(folders)
    dataset.files_A[5] = dataset.files_B[6] = None
    del dataset.files_B[9:]
    assert feedmill.DataLoader(dataset, batch_size=3).explain().startswith("native path")
    for n_workers in (0, 2):
        found, wanted = (
            outcomes_of(make, dataset, n_workers)
            for make in (feedmill.DataLoader, torch.utils.data.DataLoader)
        )
        assert [type(one) for one in found[0]] == [type(one) for one in wanted[0]]
        assert [one for one in found[0] if type(one) is tuple] == [
            one for one in wanted[0] if type(one) is tuple
        ]


@pytest.mark.slow
def test_files_that_pillow_decodes(tmp_path, folders):
    pixels = np.arange(32 * 40 * 4, dtype=np.uint8).reshape(32, 40, 4)
    Image.fromarray(pixels[..., :3]).save(tmp_path / "7.bmp")
    Image.fromarray(pixels, "CMYK").save(tmp_path / "8.jpg")
    Image.fromarray(pixels[..., 0]).save(tmp_path / "9.png")
    for places in (((4, "7.bmp"),), ((4, "8.jpg"), (5, "7.bmp"), (11, "9.png"))):
        dataset = Pix2Pix(folders)
        for place, name in places:
            dataset.files_B[place] = dataset.files_A[place + 1] = str(tmp_path / name)
        for n_workers in (0, 2):
            compare(dataset, batch_size=3, num_workers=n_workers)
    erasing = compose(LARGE, T.RandomErasing(1.0, value="random"))
    dataset = Pix2Pix(folders, erasing, erasing)
    dataset.files_A[3] = dataset.files_B[4] = str(tmp_path / "8.jpg")
    compare(dataset, batch_size=3, num_workers=2)


def test_grey_files_that_are_not_converted(tmp_path, folders):
    dataset = AsIs(folders)
    dataset.files_B[0] = str(save_jpeg(tmp_path / "grey.jpg", 40, 30, mode="L"))
    assert "is an image of mode L" in feedmill.DataLoader(dataset, batch_size=4).explain()


# ---- datasets of any shape -----------------------------------------------------------------------


def made_of(root, lines, **scope):
    name = f"<several of {abs(hash(lines))}>"
    body = "".join(f"        {one}\n" for one in lines.split("\n"))
    text = f"class Made(Files):\n    def __getitem__(self, index):\n{body}"
    linecache.cache[name] = len(text), None, text.splitlines(True), name
    scope = {"__name__": "made", "random": random, **globals(), **scope}
    exec(compile(text, name, "exec"), scope)
    dataset = scope["Made"](root)
    dataset.both, dataset.more = [LARGE, SMALL], [dataset.files_A, dataset.files_B]
    return dataset


PATHS = (
    "self.files_A[index]", "self.files_B[index % 11]", "self.pairs[index][1]",
    "self.files_A[index % len(self.files_A)]", "self.more[1][index]",
)
OPENS = ("Image.open({}).convert('RGB')", "Image.open({}).convert(mode='RGB')")
RETURNS = ("return {}", "return [{}], self.labels[index]", "return {{'x': ({}), 'n': index}}")


@pytest.mark.slow
@settings(max_examples=25, deadline=None, derandomize=True)
@given(st.data())
def test_any_order_of_opening_and_transforming(folders, data):
    n = data.draw(st.integers(2, 4))
    paths = [data.draw(st.sampled_from(PATHS)) for _ in range(n)]
    steps = []
    for number in range(n):
        opened = data.draw(st.sampled_from(OPENS)).format(paths[number])
        transform = data.draw(st.sampled_from(["self.first", "self.second", "self.both[0]"]))
        steps.append([f"i{number} = {opened}", f"v{number} = {transform}(i{number})"])
    lines = []
    while any(steps):
        lines.append(data.draw(st.sampled_from([one for one in steps if one])).pop(0))
    order = data.draw(st.permutations([f"v{number}" for number in range(n)]))
    lines.append(data.draw(st.sampled_from(RETURNS)).format(", ".join(order)))
    dataset = made_of(folders, "\n".join(lines))
    n_files = len(set(paths))
    is_native = n_files in (1, n)  # else one file of several has several views
    assert read_n_files(dataset) == (n_files if is_native else 0), "\n".join(lines)
    compare(dataset, "native" if is_native else "torch", batch_size=5)


def read_n_files(dataset):
    """Of a sample; 0: it is not understood."""
    try:
        return read_own(dataset).n_files
    except NotUnderstood:
        return 0


HEAD = """i = Image.open(self.files_A[index]).convert("RGB")
j = Image.open(self.files_B[index]).convert("RGB")
a, b = self.first(i), self.second(j)
"""
HOSTILE = (
    "return a",
    "return a, a, b",
    "return a, b, i",
    "return a, b, self.first(i)",
    "return a, b, self.second(j)",
    "return a, self.second(b), b",
    "a = self.second(a)\nreturn a, b",  # draws for the first image again
    "self.first(j)\nreturn a, b",
    "Image.open(self.files_A[0])\nreturn a, b",
    "k = Image.open(self.pairs[index][0])\nreturn a, b",
    "k = open(self.files_A[index], 'rb')\nreturn a, b",
    "c = self.first(Image.open(self.files_A[index]).convert('RGB'))\nreturn a, b, c",
    "c = self.first(Image.open(self.files_A[0]).convert('L'))\nreturn a, b, c",
    "c = self.first(Image.open(self.files_A[0]))\nreturn a, b, c",
    "c = self.first(default_loader(self.pairs[index][0]))\nreturn a, b, c",
    "c = self.first(Image.open(open(self.pairs[index][0], 'rb')).convert('RGB'))\nreturn a, b, c",
    "k = Image.open(self.pairs[index][0])\nk.load()\nreturn a, b, self.first(k.convert('RGB'))",
    "i.paste(j)\nreturn a, b",
    "i.putpixel((1, 1), 3)\nreturn a, b",
    "return (a, b) if self.labels[index] else (b, a)",
    "return (a, b) if random.random() < 0.5 else (b, a)",
    "if i.size == j.size:\n    return b, a\nreturn a, b",
    "if i is j:\n    return b, a\nreturn a, b",
    "if i == j:\n    return b, a\nreturn a, b",
    "if a.mean() > b.mean():\n    return b, a\nreturn a, b",
    "return torch.stack([a, b])",
    "return torch.cat([a, b], 0)",
    "return a + b",
    "return a - b, b",
    "return {a, b}",
    "return [a, b] * 2",
    "return a, b, Image.open(self.pairs[index][0])",
    "return a, b, np.array(i)",
    "return a, b, i.size",
    "return a, b, LOG.append(1)",
    "LOG.append(a)\nreturn a, b",
    "self.kept = a\nreturn a, b",
    "self.files_A.append(1)\nreturn a, b",
    "self.files_A[index] = 1\nreturn a, b",
    "os.remove(self.files_A[0])\nreturn a, b",
    "return a, b, LARGE(Image.open(self.pairs[index][0]).convert('RGB'))",
    "c = self.first(Image.open(self.files_A[np.random.randint(3)]).convert('RGB'))\nreturn a, b, c",
    "c = self.first(Image.open(self.files_A[len(LOG)]).rotate(3))\nreturn a, b, c",
    "c = self.first(Image.open(self.hidden[index]).convert('RGB'))\nreturn a, b, c",
    "c = [self.first(Image.open(one).convert('RGB')) for one in self.files_A[:17]]\nreturn c",
    "try:\n    c = self.first(i)\nexcept OSError:\n    c = b\nreturn a, b, c",
    "while True:\n    return a, b",
    "yield a\nyield b",
    "del i\nreturn a, b",
    "with Image.open(self.pairs[index][0]) as k:\n    pass\nreturn a, b",
    "with Image.open(self.pairs[index][0]) as k:\n    k = k\n"
    "return a, b, self.first(k.convert('RGB'))",
    "with torch.random.fork_rng():\n    return a, b",
    "torch.manual_seed(index)\nreturn a, b, self.first(Image.open(self.pairs[index][0])"
    ".convert('RGB'))",
)


class Hidden(list):
    def __getitem__(self, index):
        LOG.append(index)
        return super().__getitem__(index)


@pytest.mark.parametrize("lines", HOSTILE)
def test_these_are_left_to_torch(folders, lines):
    dataset = made_of(folders, HEAD + lines)
    dataset.hidden = Hidden(dataset.files_A)
    LOG.clear()
    with pytest.raises(NotUnderstood):
        read_own(dataset)
    text = feedmill.DataLoader(dataset, batch_size=4).explain()
    assert text.startswith("torch's own path"), text
    assert LOG == []


def test_the_head_of_these_is_understood(folders):
    assert read_own(made_of(folders, HEAD + "return a, b")).n_files == 2


def test_draws_in_another_order_than_of_one_image_after_the_other(folders):
    lines = HEAD.replace("a, b = self.first(i), self.second(j)", "a = self.first(i)\n"
                         "b = self.second(j)\na = self.{}(a)") + "return a, b"
    for name, is_native in (("still", True), ("flip", False)):
        dataset = made_of(folders, lines.format(name))
        dataset.first = T.RandomResizedCrop(16)
        dataset.still, dataset.flip = TO_TENSOR, compose(T.RandomHorizontalFlip(), TO_TENSOR)
        compare(dataset, "native" if is_native else "torch")


@pytest.mark.parametrize(("second", "reason"), [
    (compose(T.RandomCrop(9), T.PILToTensor()), "different types"),
    (compose(T.Lambda(lambda image: image.rotate(3)), SMALL), "rotate"),
    (compose(T.Resize(9), TO_TENSOR), "one size"),
    (T.RandomCrop(9), "does not end in a tensor"),
])
def test_transforms_that_are_not_supported(folders, second, reason):
    text = feedmill.DataLoader(Pix2Pix(folders, LARGE, second), batch_size=4).explain()
    assert text.startswith("torch's own path") and reason in text, text


def test_options_that_need_one_file(folders):
    dataset = Pix2Pix(folders)
    for options, reason in (
        ({"collate_fn": list}, "torch's own collate_fn"),
        ({"dtype": torch.float16}, "to which dtype= and memory_format="),
    ):
        text = feedmill.DataLoader(dataset, batch_size=4, **options).explain()
        assert text.startswith("torch's own path") and reason in text, text
    for policy in ("skip", "zero", "replace"):
        with pytest.raises(RuntimeError, match="several image files"):
            feedmill.DataLoader(dataset, batch_size=4, on_error=policy)
    hybrid = feedmill.DataLoader(dataset, batch_size=4, native="hybrid", collate_fn=list)
    assert hybrid.explain().startswith("torch's own path")


def test_a_dataset_around_one_of_several_files(folders):
    class Around(Dataset):
        def __init__(self, inner):
            self.inner = inner

        def __len__(self):
            return len(self.inner)

        def __getitem__(self, index):
            image, _ = self.inner[index]
            return image

    text = feedmill.DataLoader(Around(AsIs(folders)), batch_size=4).explain()
    assert text.startswith("torch's own path"), text


# ---- changes -------------------------------------------------------------------------------------


def test_changes_during_an_epoch_are_found(folders):
    for change, text in (
        (lambda dataset: setattr(dataset, "first", SMALL), "file 1|view 1"),
        (lambda dataset: setattr(dataset, "second", LARGE), "view 2"),
        (lambda dataset: dataset.files_B.reverse(), "the target is"),
        (lambda dataset: setattr(dataset, "first", lambda image: image), "called its transform"),
    ):
        dataset = Pix2Pix(folders)
        iterator = iter(native_loader(dataset, batch_size=4, native="verify"))
        next(iterator)
        change(dataset)
        with pytest.raises(VerificationError, match=text):
            list(iterator)


def test_changes_are_seen_at_the_next_epoch(folders):
    dataset = Pix2Pix(folders)
    loader = native_loader(dataset, batch_size=8)
    assert next(iter(loader))["B"].shape[-1] == 8
    dataset.second = LARGE
    dataset.files_B.reverse()
    batch = next(iter(loader))
    assert batch["B"].shape[-1] == 16 and batch["B_paths"] == dataset.files_B[:8]


def test_subclasses_with_other_files(folders):
    class Opens(CycleGAN):
        def __getitem__(self, index):
            LOG.append(index)
            return super().__getitem__(index)

    text = feedmill.DataLoader(Opens(folders), batch_size=4).explain()
    assert text.startswith("torch's own path")
