"""Several views of a sample: transforms that return a list of images run natively, with one decode,
and give what torch's path gives for the same draws."""

import copy
import linecache
import random

import feedmill
import numpy as np
import pytest
import torch
from feedmill import VerificationError
from feedmill.cli import cli
from feedmill.planner.views import views_in
from helpers import compose, equal_batches, native_loader, save_jpeg, slow_but_for
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image, ImageFilter, ImageOps
from torch.utils.data import ConcatDataset, Dataset, Subset
from torchvision import transforms as T
from torchvision.datasets import CIFAR10, ImageFolder

CROP = T.RandomResizedCrop(16, scale=(0.2, 1))
TO_TENSOR = compose(T.ToTensor(), T.Normalize((0.4, 0.5, 0.6), (0.2, 0.3, 0.2)))


# ---- as in public code ---------------------------------------------------------------------------


class Blur:
    def __init__(self, p):
        self.p = p

    def __call__(self, image):
        if random.random() < self.p:
            return image.filter(ImageFilter.GaussianBlur(radius=random.uniform(0.1, 2.0)))
        return image


class Solarize:
    def __init__(self, p):
        self.p = p

    def __call__(self, image):
        return ImageOps.solarize(image) if random.random() < self.p else image


JITTER = compose(
    T.RandomHorizontalFlip(), T.RandomApply([T.ColorJitter(0.4, 0.4, 0.2, 0.1)], p=0.8),
    T.RandomGrayscale(p=0.2),
)


class TwoCropsTransform:
    """MoCo's and SimSiam's."""

    def __init__(self, base_transform):
        self.base_transform = base_transform

    def __call__(self, x):
        q = self.base_transform(x)
        k = self.base_transform(x)
        return [q, k]


class TwoTransforms:
    """Barlow Twins' and VICReg's."""

    def __init__(self):
        self.transform = compose(CROP, JITTER, Blur(1.0), Solarize(0.0), TO_TENSOR)
        self.transform_prime = compose(CROP, JITTER, Blur(0.1), Solarize(0.2), TO_TENSOR)

    def __call__(self, x):
        y1 = self.transform(x)
        y2 = self.transform_prime(x)
        return y1, y2


class ContrastiveLearningViewGenerator:
    """SimCLR's."""

    def __init__(self, base_transform, n_views=2):
        self.base_transform = base_transform
        self.n_views = n_views

    def __call__(self, x):
        return [self.base_transform(x) for i in range(self.n_views)]


class DataAugmentationDINO:
    def __init__(self, local_crops_number):
        bicubic = T.InterpolationMode.BICUBIC
        local = T.RandomResizedCrop(8, scale=(0.05, 0.4), interpolation=bicubic)
        self.global_transfo1 = compose(CROP, JITTER, Blur(1.0), TO_TENSOR)
        self.global_transfo2 = compose(CROP, JITTER, Blur(0.1), Solarize(0.2), TO_TENSOR)
        self.local_crops_number = local_crops_number
        self.local_transfo = compose(local, JITTER, Blur(0.5), TO_TENSOR)

    def __call__(self, image):
        crops = []
        crops.append(self.global_transfo1(image))
        crops.append(self.global_transfo2(image))
        for _ in range(self.local_crops_number):
            crops.append(self.local_transfo(image))
        return crops


class ListOfTransforms(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.transforms = [compose(CROP, TO_TENSOR), compose(T.Resize((9, 30)), TO_TENSOR)]

    def forward(self, image):
        crops = [T(image) for T in self.transforms]
        crops += [self.transforms[1](image)]
        return crops + [self.transforms[0](image)]


class NCropAugmentation:
    """solo-learn's."""

    def __init__(self, transform, num_crops):
        self.transform, self.num_crops = transform, num_crops

    def __call__(self, x):
        return [self.transform(x) for _ in range(self.num_crops)]


class FullTransformPipeline:
    def __init__(self, transforms):
        self.transforms = transforms

    def __call__(self, x):
        out = []
        for transform in self.transforms:
            out.extend(transform(x))
        return out


class Sums:
    def __init__(self, first, second):
        self.first, self.second = first, second

    def __call__(self, x):
        views = [self.second(x)]
        views += self.first(x)
        return views


def two_of(image):
    return CROP_TO_TENSOR(image), CROP_TO_TENSOR(image)


def converted_before(image):
    image = image.convert("RGB")
    first, second = JITTERED_CROP(image), JITTERED_CROP(image)
    return tuple(map(lambda one: TO_TENSOR(one), [first, second]))  # noqa: C417


JITTERED_CROP = compose(CROP, JITTER)
CROP_TO_TENSOR = compose(CROP, T.PILToTensor())
PUBLIC = {
    "moco": (TwoCropsTransform(compose(CROP, JITTER, Blur(0.5), TO_TENSOR)), 2),
    "barlow": (TwoTransforms(), 2),
    "simclr": (ContrastiveLearningViewGenerator(compose(CROP, JITTER, TO_TENSOR), 3), 3),
    "dino": (DataAugmentationDINO(8), 10),
    "module": (ListOfTransforms(), 4),
    "function": (two_of, 2),
    "converted": (converted_before, 2),
    "solo": (FullTransformPipeline([
        NCropAugmentation(compose(CROP, JITTER, TO_TENSOR), 1),  # no list by itself
        NCropAugmentation(compose(CROP, Blur(0.3), TO_TENSOR), 2),
        NCropAugmentation(compose(T.Resize((5, 6)), TO_TENSOR), 3)][1:]), 5),
    "sums": (Sums(two_of, compose(CROP, T.PILToTensor())), 3),
    "scaled": (ContrastiveLearningViewGenerator(
        compose(CROP, T.ToTensor(), T.Lambda(lambda x: x * 2 - 1))), 2),
}


@pytest.mark.parametrize("n_workers", slow_but_for([0], [0, 2]))
@pytest.mark.parametrize("name", PUBLIC)
def test_public_code_is_native(small_images, name, n_workers):
    transform, n_views = PUBLIC[name]
    dataset = ImageFolder(str(small_images), transform)
    options = {"batch_size": 7, "num_workers": n_workers}
    torchs = list(feedmill.DataLoader(dataset, native="off", **options))
    loader = feedmill.DataLoader(dataset, native="verify", **options)
    batches = list(loader)
    decode = loader.stats().decode
    assert decode.verified_samples == decode.native_samples == len(dataset)
    assert f"{n_views} views of one decode" in str(native_loader(dataset).explain())
    for ours, theirs in zip(batches, torchs, strict=True):
        assert type(ours) is type(theirs) is list and type(ours[0]) is type(theirs[0]) is list
        assert [one.shape for one in ours[0]] == [one.shape for one in theirs[0]]
        assert [one.dtype for one in ours[0]] == [one.dtype for one in theirs[0]]
        assert all(one.is_contiguous() for one in ours[0])
        assert torch.equal(ours[1], theirs[1])


def test_views_differ_and_can_be_made_again(small_images):
    dataset = ImageFolder(str(small_images), TwoCropsTransform(CROP_TO_TENSOR))
    loader = native_loader(dataset, batch_size=40, seed=5)
    [[(one, other), targets]] = list(loader)
    assert sum(torch.equal(*pair) for pair in zip(one, other)) < 3
    assert loader.draws(3, 0) == loader.draws(3, 0, view=0) != loader.draws(3, 0, view=1)
    for view in (2, -1, 1 << 32, (1 << 32) + 1, "1"):
        with pytest.raises(ValueError, match=f"no view {view!r}; the samples have 2"):
            loader.draws(3, 0, view=view)
    for index in (0, 17, 39):
        images, target = loader.fetch(index, 0)
        assert equal_batches(images, [one[index], other[index]])
        assert target == int(targets[index])
    # As many samples were decoded as with one view.
    counters = loader.stats().flat()
    assert counters["read_files"] == counters["native_samples"] == 40


def test_settings_do_not_matter(small_images):
    dataset = ImageFolder(str(small_images), DataAugmentationDINO(2))
    wanted = None
    for options in ({}, {"num_workers": 3}, {"reader": "pread"}, {"cache": "ram:16MiB"},
                    {"num_workers": 1, "persistent_workers": True}, {"threads": 3}):
        loader = native_loader(dataset, batch_size=9, seed=1, **options)
        for epoch in range(2):
            batches = list(loader)
            wanted = wanted or [batches]
            if epoch < len(wanted):
                assert equal_batches(batches, wanted[epoch])
            else:
                wanted.append(batches)
    assert not equal_batches(*wanted)


def test_large_batches_are_split(small_images):
    """A batch that does not fit into the memory budget comes in parts."""
    class Batches:
        def __iter__(self):
            yield list(range(40))
            yield [5]

        def __len__(self):
            return 2

    large = TwoCropsTransform(compose(T.RandomResizedCrop(224), TO_TENSOR))
    dataset = ImageFolder(str(small_images), large)
    options = {"batch_sampler": Batches(), "seed": 2, "threads": 1}
    wanted = list(native_loader(dataset, **options))
    small = feedmill.DataLoader(dataset, memory_budget=100 << 20, **options)
    assert equal_batches(list(small), wanted)
    assert small.stats().path == "native" and small.stats().batches > len(wanted)


@pytest.mark.parametrize("n_workers", [0, 2])
def test_single_samples(small_images, n_workers):
    dataset = ImageFolder(str(small_images), TwoTransforms())
    options = {"batch_size": None, "num_workers": n_workers}
    torchs = next(iter(feedmill.DataLoader(dataset, native="off", **options)))
    ours = list(feedmill.DataLoader(dataset, native="verify", **options))
    assert len(ours) == 40
    assert type(ours[0]) is type(torchs) and type(ours[0][0]) is type(torchs[0])
    assert [one.shape for one in ours[0][0]] == [one.shape for one in torchs[0]]
    assert ours[0][1] == torchs[1]


# ---- files and datasets --------------------------------------------------------------------------


def test_files_that_pillow_decodes(tmp_path):
    for number in range(6):
        save_jpeg(tmp_path / "a" / f"{number}.jpg", 30 + number, 40, seed=number)
    pixels = np.arange(32 * 40 * 4, dtype=np.uint8).reshape(32, 40, 4)
    Image.fromarray(pixels[..., :3]).save(tmp_path / "a" / "7.bmp")
    Image.fromarray(pixels, "CMYK").save(tmp_path / "a" / "8.jpg")
    dataset = ImageFolder(str(tmp_path), DataAugmentationDINO(2))
    for options in ({}, {"num_workers": 2}):
        loader = feedmill.DataLoader(dataset, batch_size=3, native="verify", **options)
        list(loader)
        assert loader.stats().decode.fallback_samples == 1
        assert loader.stats().decode.verified_samples == 8


def test_damaged_files(tmp_path):
    for number in range(6):
        save_jpeg(tmp_path / "a" / f"{number}.jpg", 30 + number, 40, seed=number)
    bad = tmp_path / "a" / "3.jpg"
    bad.write_bytes(bad.read_bytes()[:400])
    dataset = ImageFolder(str(tmp_path), TwoTransforms())
    with pytest.raises(OSError, match="3.jpg"):
        list(native_loader(dataset, batch_size=2))
    [[(one, other), targets]] = list(native_loader(dataset, batch_size=6, on_error="skip"))
    assert len(one) == len(other) == len(targets) == 5
    [[(one, other), _]] = list(native_loader(dataset, batch_size=6, on_error="zero"))
    assert not one[3].any() and not other[3].any() and one[4].any() and other[4].any()
    [[(one, other), _]] = list(native_loader(dataset, batch_size=6, on_error="replace"))
    assert one[3].any() and other[3].any()


class Indexed(ImageFolder):
    def __getitem__(self, index):
        images, target = super().__getitem__(index)
        return images, target, index


class ImagesOnly(ImageFolder):
    def __getitem__(self, index):
        return super().__getitem__(index)[0]


class Own(Dataset):
    def __init__(self, root, transform):
        self.files = sorted(str(one) for one in root.glob("*/*.jpg"))
        self.transform = transform

    def __len__(self):
        return len(self.files)

    def __getitem__(self, index):
        image = Image.open(self.files[index]).convert("RGB")
        return self.transform(image), index


class Dicts(Own):
    def __getitem__(self, index):
        image = Image.open(self.files[index]).convert("RGB")
        return {"views": self.transform(image), "index": index}


class Around(Dataset):
    def __init__(self, inner, transform):
        self.inner, self.transform = inner, transform

    def __len__(self):
        return len(self.inner)

    def __getitem__(self, index):
        image, target = self.inner[index]
        return self.transform(image), target


@pytest.mark.parametrize("n_workers", slow_but_for([0], [0, 2]))
def test_other_datasets(small_images, n_workers):
    transform = TwoTransforms()
    folder = ImageFolder(str(small_images), transform)
    bare = ImageFolder(str(small_images))
    for dataset in (
        Indexed(str(small_images), transform), ImagesOnly(str(small_images), transform),
        Own(small_images, transform), Dicts(small_images, transform), Around(bare, transform),
        Around(Subset(bare, [5, 3, 1, 1, 8, 9]), transform), Subset(folder, [9, 3, 9, 30, 2]),
        ConcatDataset([folder, folder]),
    ):
        options = {"batch_size": 8, "num_workers": n_workers}
        loader = feedmill.DataLoader(dataset, native="verify", **options)
        batches = list(loader)
        assert loader.stats().decode.verified_samples == len(dataset)
        torchs = next(iter(feedmill.DataLoader(dataset, native="off", **options)))
        assert type(batches[0]) is type(torchs) and len(batches[0]) == len(torchs)
        if isinstance(torchs, dict):
            assert list(torchs) == list(batches[0]) and type(batches[0]["views"]) is list
        elif len(torchs) == 3:
            assert torch.equal(batches[0][2], torchs[2])


def test_partial_reads_of_packs(small_images, tmp_path):
    """The restart index stops the read at the lowest crop of all views."""
    root = tmp_path / "large"
    for number in range(12):
        save_jpeg(root / "a" / f"{number:02}.jpg", 400, 600, seed=number)
    out = tmp_path / "pack"
    assert cli.main(["pack", str(root), str(out)]) == 0
    dataset = feedmill.Pack(out, transform=TwoTransforms())
    loader = feedmill.DataLoader(dataset, batch_size=4, native="verify", seed=3)
    list(loader)
    assert loader.stats().decode.verified_samples == 12


# ---- what is left to torch -----------------------------------------------------------------------


def reasons_of(dataset, **options):
    text = str(feedmill.DataLoader(dataset, batch_size=4, **options).explain())
    assert text.startswith("torch's own path")
    return text


def test_options_that_need_one_image(small_images):
    dataset = ImageFolder(str(small_images), TwoTransforms())
    assert "torch's own collate_fn" in reasons_of(dataset, collate_fn=list)
    assert "to which dtype= and memory_format=" in reasons_of(dataset, dtype=torch.float16)
    text = reasons_of(dataset, memory_format=torch.channels_last)
    assert "to which dtype= and memory_format=" in text


def test_images_in_memory(tmp_path):
    dataset = CIFAR10.__new__(CIFAR10)
    dataset.data = np.zeros((8, 32, 32, 3), np.uint8)
    dataset.targets = list(range(8))
    dataset.transform, dataset.target_transform = TwoTransforms(), None
    dataset.transforms = None
    assert "for image files only" in reasons_of(dataset)


@pytest.mark.parametrize(("second", "reason"), [
    (compose(CROP, T.PILToTensor()), "different types"),
    (compose(CROP, T.Lambda(lambda image: image.rotate(3)), TO_TENSOR), "rotate"),
    (compose(T.Resize(9), TO_TENSOR), "one size"),
    (compose(*[T.RandomHorizontalFlip()] * 63, CROP, TO_TENSOR), "255 steps"),
])
def test_views_that_are_not_supported(small_images, second, reason):
    views = [compose(CROP, TO_TENSOR), *[second] * 5]
    transform = ListOfTransforms()
    transform.transforms = views
    text = reasons_of(ImageFolder(str(small_images), transform))
    assert reason in text, text


def test_views_of_views(small_images):
    """torch gives a list of a list and an image: there is no batch of that form natively."""
    two = TwoCropsTransform(CROP_TO_TENSOR)
    for views in ([two, CROP_TO_TENSOR], [CROP_TO_TENSOR, two], [two, two]):
        transform = TwoTransforms()
        transform.transform, transform.transform_prime = views
        text = reasons_of(ImageFolder(str(small_images), transform))
        assert "is itself a list of images" in text


def calls_itself(image):
    return [calls_itself(image) for _ in range(4)]


def test_functions_that_call_others_often_are_read_once(small_images):
    deep = CROP_TO_TENSOR
    for _ in range(8):
        deep = ContrastiveLearningViewGenerator(deep, 16)
    for transform in (calls_itself, deep):
        reasons_of(ImageFolder(str(small_images), transform))


T1, T2 = CROP_TO_TENSOR, compose(T.RandomResizedCrop(8), T.PILToTensor())


class Counts:
    n, kept = 0, []

    def __call__(self, image):
        self.n += 1
        return [T1(image), T2(image)]


class Keeps(Counts):
    def __call__(self, image):
        self.kept.append(T1(image))
        return [T1(image), T2(image)]


class Fewer(list):
    def __iter__(self):
        return iter(self[:1])


def once(image):
    return [T1(image)]


def the_same_twice(image):
    view = T1(image)
    return [view, view]


def one_of_the_other(image):
    half = T1(image)
    return [half, T2(half)]


def unchanged_too(image):
    return [T1(image), image]


def one_is_lost(image):
    T2(image)
    return [T1(image), T2(image)]


def one_is_not_returned(image):
    lost = T2(image)  # noqa: F841
    return [T1(image), T2(image)]


def as_dict(image):
    return {"a": T1(image), "b": T2(image)}


def as_generator(image):
    return (one(image) for one in (T1, T2))


def nested(image):
    return [[T1(image), T2(image)], T1(image)]


def stacked(image):
    return torch.stack([T1(image), T1(image)])


def with_a_number(image):
    return [T1(image), T2(image), 3]


def sometimes(image):
    if random.random() < 0.5:
        return [T1(image), T2(image)]
    return [T2(image), T1(image)]


def some_of_them(image):
    return [one(image) for one in (T1, T2) if random.random() < 0.5]


def by_size(image):
    return [T1(image) for _ in range(image.width)]


def too_many(image):
    return [T1(image) for _ in range(17)]


def far_too_many(image):
    return [T1(image) for _ in range(1 << 60)]


def reversed_list(image):
    views = [T1(image), T2(image)]
    views.reverse()
    return views


def inserted(image):
    views = [T1(image)]
    views.insert(0, T2(image))
    return views


def of_a_default(image, views=[]):  # noqa: B006
    views.append(T1(image))
    views.append(T2(image))
    return views


def of_a_global(image):
    KEPT.append(T1(image))
    return [T1(image), T2(image)]


def with_one_radius(image):
    blur = ImageFilter.GaussianBlur(random.uniform(0.1, 2))
    return [T1(image.filter(blur)), T1(image.filter(blur))]


def draws_in_vain(image):
    if random.random() is None:
        return [T2(image), T1(image)]
    return [T1(image), T2(image)]


def yielding(image):
    yield T1(image)
    yield T2(image)


def in_turn(image):
    """Draws for the first image again after it has drawn for the second one."""
    first, second = T1(image), T2(image)
    return [FLIP(first), second]


def doubled(image):
    views = [T1(image)]
    for _ in range(60):
        views += views
    return views


FLIP, KEPT, FEWER = T.RandomHorizontalFlip(), [], Fewer([T1, T2])
HOSTILE = (
    Counts(), Keeps(), once, the_same_twice, one_of_the_other, unchanged_too, one_is_lost,
    one_is_not_returned, as_dict, as_generator, nested, stacked, with_a_number, sometimes,
    some_of_them, by_size, too_many, far_too_many, reversed_list, inserted, of_a_default,
    of_a_global, with_one_radius, draws_in_vain, yielding, in_turn, doubled, lambda image: [one(image) for one in FEWER],
)


@pytest.mark.parametrize("transform", HOSTILE)
def test_these_are_left_to_torch(small_images, transform):
    assert views_in(transform) is None
    reasons_of(ImageFolder(str(small_images), transform))


def test_a_range_of_the_users_own(small_images):
    scope = {"T1": T1, "range": lambda n: [1] * (n + 1)}
    text = "def views(image):\n    return [T1(image) for _ in range(2)]\n"
    linecache.cache["<own range>"] = len(text), None, text.splitlines(True), "<own range>"
    exec(compile(text, "<own range>", "exec"), scope)
    assert views_in(scope["views"]) is None


def test_changes_during_an_epoch_are_found(small_images):
    transform = TwoTransforms()
    transform.transform_prime = copy.deepcopy(transform.transform_prime)
    dataset = ImageFolder(str(small_images), transform)
    loader = native_loader(dataset, batch_size=8, native="verify")
    iterator = iter(loader)
    next(iterator)
    next(iterator)
    transform.transform_prime.transforms[-1].transforms[1].mean = (0.0, 0.0, 0.0)
    with pytest.raises(VerificationError, match="in view 2"):
        list(iterator)


# ---- random code ---------------------------------------------------------------------------------


class Noting:
    """Stands for an image, and for transforms of it."""

    def __init__(self, names=""):
        self.names = names

    def by(self, name):
        return lambda image: Noting(image.names + name)


EXPRESSIONS = (*("self.t(image)", "self.u(image)", "self.t(self.u(image))") * 4, "image", "one",
               "3", "self.t(one)")
LISTS = ("[{}, {}]", "({}, {})", "[{} for k in range(2)]", "[k(image) for k in self.both]",
         "[{} for k in self.both] + [{}]", "views + [{}]", "views", "[views, {}]")
LINES = ("views.append({})", "views += [{}, {}]", "one = {}", "views = {list}",
         "for k in self.both:\n            views.append(k(image))",
         "for _ in range(self.n):\n            views.append({})", "views = views + [{}]",
         "if self.n > 1:\n            views.append({})", "views.append(views)", "other = views",
         "if self.n:\n            one = {}")


def made_of(lines):
    name = f"<views {abs(hash(tuple(lines)))}>"
    body = "".join("        " + line + "\n" for line in lines)
    text = f"class Made:\n    def __call__(self, image):\n{body}"
    linecache.cache[name] = len(text), None, text.splitlines(True), name
    scope = {"__name__": "made"}
    exec(compile(text, name, "exec"), scope)
    own = scope["Made"]()
    own.t, own.u, own.n = Noting().by("t"), Noting().by("u"), 2
    own.both = [own.t, own.u]
    return own


def filled(template, draw):
    parts = template.split("{}")
    text = parts[0]
    for part in parts[1:]:
        text += draw(st.sampled_from(EXPRESSIONS)) + part
    return text


@st.composite
def bodies(draw):
    lines = draw(st.lists(st.sampled_from(LINES), max_size=4))
    made = ["views = []", "one = self.t(image)"][: draw(st.integers(0, 2))]
    made += [filled(one.replace("{list}", draw(st.sampled_from(LISTS))), draw) for one in lines]
    return [*made, "return " + filled(draw(st.sampled_from(LISTS)), draw)]


def test_random_code_does_what_was_understood():
    understood = []

    @settings(max_examples=600, deadline=None, derandomize=True,
              suppress_health_check=list(HealthCheck))
    @given(bodies())
    def check(lines):
        own = made_of(lines)
        views = views_in(own)
        understood.append(views is not None)
        if views is None:
            return
        made = own(Noting())
        assert type(made) in (list, tuple)
        names = {id(own.t): "t", id(own.u): "u"}
        wanted = ["".join(names[id(one)] for one in view) for view in views]
        assert [one.names for one in made] == wanted, lines
        assert len({id(one) for one in made}) == len(made)

    check()
    assert 40 < sum(understood) < len(understood)


def test_images_without_a_crop(small_images):
    """A view that shows nothing of the image, as its crop lies in the padding."""
    padded = compose(T.Resize((4, 4)), T.CenterCrop(16), T.PILToTensor())
    transform = ListOfTransforms()
    transform.transforms = [padded, compose(T.Pad(60), T.CenterCrop((8, 8)), T.PILToTensor())]
    loader = feedmill.DataLoader(
        ImageFolder(str(small_images), transform), batch_size=8, native="verify"
    )
    list(loader)
    assert loader.stats().decode.verified_samples == 40


def test_grayscale_jpegs_and_orientations(tmp_path):
    for number in range(8):
        save_jpeg(tmp_path / "a" / f"{number}.jpg", 50, 70, seed=number,
                  mode="L" if number % 2 else "RGB", orientation=number + 1)
    dataset = ImageFolder(str(tmp_path), DataAugmentationDINO(2))
    loader = native_loader(dataset, batch_size=8, native="verify")
    list(loader)
    decode = loader.stats().decode
    assert decode.verified_samples == decode.native_samples == 8
