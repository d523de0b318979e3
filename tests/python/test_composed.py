"""torchvision's Compose by one native call on deferred images: results, random numbers and errors
are torchvision's, and changes of a Compose are noticed."""

import colorsys
import copy
import enum
import gc
import itertools
import os
import random
import threading
import types
import weakref

import feedmill
import helpers
import numpy as np
import pytest
import rng_scripts
import torch
from feedmill.deferred import composed, counters, patches
from feedmill.deferred.watching import CantWatchError, Watch
from PIL import Image, ImageFilter, ImageOps
from torch.overrides import TorchFunctionMode
from torch.utils.data import DataLoader as TorchDataLoader
from torch.utils.data import Dataset, IterableDataset
from torchvision import transforms as v1
from torchvision.transforms import functional, v2

pytestmark = pytest.mark.skipif(bool(patches.why_not()), reason=patches.why_not())

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
LARGEST = 0.7  # a global variable of the functions below
# FEEDMILL_COMPOSES sets how many random Composes are run, FEEDMILL_RNG_SEED the first one.
N_RANDOM = int(os.environ.get("FEEDMILL_COMPOSES", "40"))
FIRST = int(os.environ.get("FEEDMILL_RNG_SEED", "0"))
N_FILES = 20
N_COMPARED = composed._N_COMPARED
N_NATIVE = N_FILES - N_COMPARED


class Blur:
    """As SimCLR's scripts have it."""

    def __init__(self, low, high):
        self.low, self.high = low, high

    def __call__(self, image):
        radius = random.uniform(self.low, self.high)
        return image.filter(ImageFilter.GaussianBlur(radius))


def solarized_sometimes(image):
    return ImageOps.solarize(image) if np.random.rand() < LARGEST else image


def drawn_in_vain(image):
    random.random()
    return image


def divided(image):
    return image.filter(ImageFilter.GaussianBlur((random.random() + 0.25) / 3))


NATIVE = {
    "training": lambda: v1.Compose([
        v1.RandomResizedCrop(24), v1.RandomHorizontalFlip(), v1.ToTensor(), v1.Normalize(MEAN, STD),
    ]),
    "evaluation": lambda: v1.Compose([v1.Resize(30), v1.CenterCrop(24), v1.ToTensor()]),
    "jitter": lambda: v1.Compose([
        v1.RandomCrop(24, 4), v1.ColorJitter(0.4, 0.4, 0.4, 0.1), v1.RandomGrayscale(0.2),
        v1.ToTensor(),
    ]),
    "bytes": lambda: v1.Compose([v1.Resize((20, 24)), v1.PILToTensor()]),
    "pixels in order": lambda: v1.Compose([
        v1.Resize((20, 24)), v1.PILToTensor(), v1.ConvertImageDtype(torch.float32),
        v1.Normalize(MEAN, STD),
    ]),
    "half": lambda: v1.Compose([
        v1.Resize((20, 24)), v1.PILToTensor(), v1.ConvertImageDtype(torch.float16),
    ]),
    "grey": lambda: v1.Compose([v1.Resize((20, 24)), v1.Grayscale(), v1.ToTensor()]),
    "erasing": lambda: v1.Compose([
        v1.RandomResizedCrop(24), v1.ToTensor(), v1.RandomErasing(0.5),
    ]),
    "randaugment": lambda: v1.Compose([
        v1.RandomResizedCrop(24), v1.RandAugment(), v1.ToTensor(),
    ]),
    "python's generator": lambda: v1.Compose([
        v1.RandomResizedCrop(24), v1.RandomApply([Blur(0.1, 2.0)], 0.5), v1.ToTensor(),
    ]),
    "NumPy's generator": lambda: v1.Compose([
        v1.RandomResizedCrop(24), solarized_sometimes, v1.ToTensor(),
    ]),
    "an order": lambda: v1.Compose([
        v1.Resize((20, 24)), v1.RandomOrder([v1.RandomHorizontalFlip(), v1.ColorJitter(0.3)]),
        v1.ToTensor(),
    ]),
    "a lambda": lambda: v1.Compose([
        v1.Lambda(lambda image: image.convert("RGB")), v1.Resize((9, 9)), v1.ToTensor(),
    ]),
    "within another": lambda: v1.Compose([
        v1.Compose([v1.Resize(30), v1.RandomCrop(24)]), v1.ToTensor(),
    ]),
    "v2": lambda: v2.Compose([
        v2.RandomResizedCrop(24), v2.RandomHorizontalFlip(), v2.ToImage(),
        v2.ToDtype(torch.float32, scale=True), v2.Normalize(MEAN, STD),
    ]),
    "v2, plain": lambda: v2.Compose([
        v2.RandomResizedCrop(24), v2.PILToTensor(), v2.ToDtype(torch.float32, scale=True),
        v2.ToPureTensor(),
    ]),
}
LEFT = {
    "of any size": lambda: v1.Compose([v1.Resize(30), v1.ToTensor()]),
    "images": lambda: v1.Compose([v1.RandomResizedCrop(24)]),
    "several": lambda: v1.Compose([
        v1.FiveCrop(20), v1.Lambda(lambda crops: torch.stack([v1.ToTensor()(one) for one in crops]))
    ]),
    "drawn in vain": lambda: v1.Compose([drawn_in_vain, v1.Resize((9, 9)), v1.ToTensor()]),
    "other numbers": lambda: v1.Compose([v1.Resize((9, 9)), divided, v1.ToTensor()]),
    "unknown": lambda: v1.Compose([
        v1.Resize((9, 9)), v1.Lambda(lambda image: image.filter(ImageFilter.FIND_EDGES)),
        v1.ToTensor(),
    ]),
}


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    root = tmp_path_factory.mktemp("composed")
    return [helpers.save_jpeg(root / f"{i}.jpg", 40 + 3 * i, 90 - 2 * i) for i in range(N_FILES)]


def seed():
    torch.manual_seed(7)
    random.seed(7)
    np.random.seed(7)


def described(result):
    """All that can be seen of a result."""
    if not isinstance(result, torch.Tensor):
        return type(result), getattr(result, "size", None), result.tobytes()
    plain = result.as_subclass(torch.Tensor)
    bits = plain.contiguous().view(torch.uint8).numpy().tobytes()
    return type(result), result.dtype, result.shape, result.stride(), result.requires_grad, bits


def states():
    of_numpy = np.random.get_state(legacy=False)
    words, place = of_numpy["state"]["key"].tobytes(), of_numpy["state"]["pos"]
    return bytes(torch.get_rng_state().tolist()), random.getstate(), words, place


def run(work, paths):
    """What work() makes of images, or the error; and the generators' states behind each."""
    seed()
    found = []
    for path in paths:
        try:
            made = described(work(Image.open(path).convert("RGB")))
        except Exception as error:
            made = type(error), str(error)
        found.append((made, states()))
    return found


def run_deferred(work, paths):
    """As run(), with deferred images, and how many were transformed natively, without those that
    went both ways. What earlier runs found out is forgotten."""
    composed.read_again()
    account = counters.Counters()
    with counters.counted_in(account), feedmill.deferred_images():
        found = run(work, paths)
    return found, account["transformed"]


def changed_later(transform, change, changed):
    """The transform, of which change(changed) changes something after ten images."""
    n_calls = itertools.count()

    def call(image):
        if next(n_calls) == 10:
            change(changed)
        return transform(image)

    return call


# ---- the same results ----------------------------------------------------------------------------


@pytest.mark.parametrize("name", NATIVE)
def test_results_and_random_numbers_are_torchvisions(files, name):
    transform = NATIVE[name]()
    wanted = run(transform, files)
    found, n = run_deferred(transform, files)
    assert found == wanted
    assert n >= N_NATIVE - 1  # the first call may find that other generators are drawn from


@pytest.mark.parametrize("name", LEFT)
def test_others_are_left_to_torchvision(files, name):
    transform = LEFT[name]()
    assert run_deferred(transform, files) == (run(transform, files), 0)


@pytest.mark.parametrize("steps", [
    lambda: [v2.ToImage(), v2.RandomResizedCrop(24, antialias=True)],
    lambda: [v1.Resize((30, 30)), v1.ToTensor(), v1.RandomCrop(30, pad_if_needed=True)],
    lambda: [v1.Resize((30, 30)), v1.PILToTensor(), v2.RandomEqualize(0.1)],
    lambda: [v1.Resize((30, 30)), v1.PILToTensor(), v1.RandomHorizontalFlip(0.1)],
])
def test_strides_that_depend_on_what_is_drawn(files, steps):
    """The first images may all have the same strides."""
    transform = v2.Compose([*steps(), v1.ConvertImageDtype(torch.float32)])
    assert run_deferred(transform, files * 3) == (run(transform, files * 3), 0)


def test_views_share_an_image(files):
    one, other = NATIVE["training"](), NATIVE["python's generator"]()

    def views(image):
        return torch.cat([one(image), other(image), one(image), v1.ToTensor()(image)[:, :24, :24]])

    found, n = run_deferred(views, files)
    assert found == run(views, files) and n >= 2 * N_NATIVE


def test_parts_and_resized_images(files):
    transform = NATIVE["training"]()

    def part(image):
        return transform(image.crop((3, 2, 33, 42)))

    def small(image):
        return transform(image.resize((50, 60)))

    def turned(image):
        return transform(image.transpose(Image.Transpose.ROTATE_90).crop((5, 5, 30, 39)))

    for work in (part, small, turned):
        found, n = run_deferred(work, files)
        assert found == run(work, files) and n >= N_NATIVE


def test_the_image_stays_as_it_is(files):
    transform = NATIVE["training"]()

    def both(image):
        transform(image)
        return image

    assert run_deferred(both, files) == (run(both, files), N_NATIVE)


@pytest.mark.parametrize("converts", [False, True])
def test_images_of_all_kinds(tmp_path, files, converts):
    color = Image.open(files[0])
    paths = []
    for i, mode in enumerate(("L", "CMYK", "RGB", "L", "RGB") * 4):
        paths.append(tmp_path / f"{i}.jpg")
        color.convert(mode).save(paths[-1])
    color.save(tmp_path / "a.png")
    color.convert("P").save(tmp_path / "b.png")
    damaged = bytearray(files[1].read_bytes())
    damaged[len(damaged) // 2 : len(damaged) * 3 // 4] = b"\xff" * 99
    (tmp_path / "damaged.jpg").write_bytes(damaged)
    (tmp_path / "cut.jpg").write_bytes(files[2].read_bytes()[:-300])
    paths += [tmp_path / name for name in ("a.png", "b.png", "damaged.jpg", "cut.jpg")] + files
    transform = NATIVE["training"]()

    def opened(path):
        seed()
        with Image.open(path) as image:
            return transform(image.convert("RGB") if converts else image)

    def all_of():
        found = []
        for path in paths:
            try:
                found.append((described(opened(path)), states()))
            except Exception as error:
                found.append((type(error), str(error)))
        return found

    wanted = all_of()
    account = counters.Counters()
    with counters.counted_in(account), feedmill.deferred_images():
        assert all_of() == wanted
    assert account["transformed"] >= N_NATIVE + 8


def test_other_calls_go_to_torchvision(files):
    v2_crop, crop = NATIVE["v2"](), NATIVE["training"]()
    tensor = functional.pil_to_tensor(Image.open(files[0]).convert("RGB"))
    to_half = v1.Compose([v1.ConvertImageDtype(torch.float16)])
    calls = [
        lambda image: v2_crop(image, 5)[0],
        lambda image: v2_crop({"image": image, "label": 3})["image"],
        lambda image: crop(img=image),
        lambda image: to_half(tensor),
        lambda image: crop(),
        lambda image: crop(image, image),
        lambda image: crop("no image"),
    ]
    for call in calls:
        assert run_deferred(call, files) == (run(call, files), 0)


def test_random_composes(files):
    n_native = 0
    for number in range(FIRST, FIRST + N_RANDOM):
        transform = rng_scripts.script(number).make_transform()
        found, n = run_deferred(transform, files)
        again, n_again = run_deferred(transform, files[:3])
        wanted, wanted_again = run(transform, files), run(transform, files[:3])
        assert (found, again) == (wanted, wanted_again), f"script {number}: {transform}"
        n_native += n > 0
    print(f"{n_native} of {N_RANDOM} ran natively")
    if N_RANDOM >= 20:  # fewer say nothing about the share
        assert 3 * n_native >= N_RANDOM


# ---- what changes --------------------------------------------------------------------------------


class Doubled(v1.Normalize):
    def forward(self, tensor):
        return super().forward(tensor) * 2


def larger(transform):
    transform.transforms[0].size = (12, 16)


def replaced(transform):
    transform.transforms[2] = v1.PILToTensor()


def longer(transform):
    transform.transforms.append(v1.Normalize((0.1, 0.1, 0.1), (0.5, 0.5, 0.5)))


def in_place(transform):
    transform.transforms[-1].mean[0] = 0.25


def in_a_tensor(transform):
    transform.transforms[-1].std.mul_(2)


def by_a_hook(transform):
    transform.transforms[-1].register_forward_hook(lambda module, args, result: result + 1)


def another_method(transform):
    transform.transforms[-1].forward = lambda tensor: tensor - 1


def another_dict(transform):
    transform.__dict__ = {"transforms": [v1.ToTensor()]}


def another_class(transform):
    transform.transforms[-1].__class__ = Doubled


@pytest.mark.parametrize("change", [
    larger, replaced, longer, in_place, in_a_tensor, by_a_hook, another_method, another_dict,
    another_class,
])
def test_changes_of_a_transform_are_noticed(files, change):
    def transform():
        return v1.Compose([
            v1.RandomResizedCrop(24), v1.RandomHorizontalFlip(), v1.ToTensor(),
            v1.Normalize(list(MEAN), torch.tensor(STD)),
        ])

    def changing():
        compose = transform()
        return changed_later(compose, change, compose)

    found, n = run_deferred(changing(), files)
    assert found == run(changing(), files) and n >= 10 - N_COMPARED


def test_changes_of_functions_and_classes_are_noticed(files, monkeypatch):
    transform = NATIVE["NumPy's generator"]()
    blurring = NATIVE["python's generator"]()
    flip = NATIVE["training"]()
    forward = v1.RandomHorizontalFlip.forward

    def changed(*places):
        with monkeypatch.context() as patch:
            patch.setattr(*places)
            for work in (transform, blurring, flip):
                found, _ = run_deferred_again(work, files)
                assert found == run(work, files)

    def run_deferred_again(work, paths):
        """Within one block, in which nothing is read again without a reason."""
        account = counters.Counters()
        with counters.counted_in(account), patches.deferring():
            found = run(work, paths)
        return found, account["transformed"]

    for work in (transform, blurring, flip):
        assert run_deferred_again(work, files)[1] >= N_NATIVE - 1
    module = __import__(__name__)
    changed(module, "LARGEST", 0.1)
    changed(module, "ImageOps", ImageFilter)  # has no solarize()
    changed(Blur, "__call__", lambda self, image: image)
    changed(v1.RandomHorizontalFlip, "forward", lambda self, image: image)
    changed(functional, "hflip", lambda image: image)
    assert v1.RandomHorizontalFlip.forward is forward
    for work in (transform, blurring, flip):
        assert run_deferred(work, files)[1] >= N_NATIVE - 1


class Often(v1.RandomHorizontalFlip):
    pass


class OfEnum(enum.Enum):
    ONE = 1


class Items(list):
    pass


class Masked(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("mask", None)

    def forward(self, image):
        return image if self.mask is None else ImageOps.mirror(image)


MODULE = types.ModuleType("a_module")
MODULE.p = 0.0
OfEnum.ONE.p = 0.0


def of_a_module(image):
    return ImageOps.mirror(image) if random.random() < MODULE.p else image


def of_an_enum(image):
    return ImageOps.mirror(image) if random.random() < OfEnum.ONE.p else image


def of_itself(image):
    return ImageOps.mirror(image) if random.random() < of_itself.p else image


of_itself.p = 0.0


def with_import(image):
    import colorsys

    return ImageOps.mirror(image) if hasattr(colorsys, "changed_by_a_test") else image


# A step that is put before Resize and ToTensor; what is changed, and how it is changed back.
HIDDEN = {
    "a module": (lambda: of_a_module, lambda step: setattr(MODULE, "p", 1.0),
                 lambda: setattr(MODULE, "p", 0.0)),
    "an enum": (lambda: of_an_enum, lambda step: setattr(OfEnum.ONE, "p", 1.0),
                lambda: setattr(OfEnum.ONE, "p", 0.0)),
    "a function's attribute": (lambda: of_itself, lambda step: setattr(of_itself, "p", 1.0),
                               lambda: setattr(of_itself, "p", 0.0)),
    "an import": (lambda: with_import, lambda step: setattr(colorsys, "changed_by_a_test", 1),
                  lambda: vars(colorsys).pop("changed_by_a_test", None)),
    "a method that a class gets": (
        Often, lambda step: setattr(Often, "forward", lambda self, image: ImageOps.flip(image)),
        lambda: delattr(Often, "forward") if "forward" in vars(Often) else None),
    "a method of v2": (
        v2.RandomHorizontalFlip,
        lambda step: setattr(v2.RandomHorizontalFlip, "forward", lambda self, image: image),
        lambda: vars(v2.RandomHorizontalFlip).get("forward") and delattr(
            v2.RandomHorizontalFlip, "forward")),
    "a buffer": (Masked, lambda step: setattr(step, "mask", torch.ones(1)), lambda: None),
    "an item of a list of one's own": (
        lambda: v1.Resize(Items([40, 40])), lambda step: step.size.__setitem__(0, 30),
        lambda: None),
    "an own method of RandAugment": (
        v1.RandAugment,
        lambda step: setattr(step, "_augmentation_space", lambda *args: {
            "Identity": (torch.tensor(0.0), False)}), lambda: None),
}


@pytest.mark.parametrize("name", HIDDEN)
def test_hidden_changes_are_noticed_or_the_transform_is_left(files, name):
    make, change, undo = HIDDEN[name]

    def changing():
        step = make()
        compose = v1.Compose([step, v1.Resize((20, 24)), v1.ToTensor()])
        return changed_later(compose, change, step)

    try:
        found, _ = run_deferred(changing(), files)
        undo()
        assert found == run(changing(), files)
    finally:
        undo()


@pytest.mark.parametrize("change", [
    lambda mean: mean.data.mul_(2), lambda mean: mean.numpy().__imul__(2),
    lambda mean: mean.requires_grad_(),
])
def test_changes_of_a_tensor_are_noticed(files, change):
    def changing():
        mean = torch.tensor(MEAN)
        compose = v1.Compose([v1.Resize((20, 24)), v1.ToTensor(), v1.Normalize(mean, STD)])
        return changed_later(lambda image: compose(image).detach(), change, mean)

    found, n = run_deferred(changing(), files)
    assert found == run(changing(), files) and n >= 10 - N_COMPARED


class Chained:
    def __init__(self, n):
        self.next = Chained(n - 1) if n else None


class WithoutDict:
    __slots__ = ()

    def __getattr__(self, name):
        raise KeyError(name)


class Proxy:
    @property
    def __class__(self):
        raise RuntimeError("there is no object behind this proxy")


def test_what_can_not_be_watched_raises_nothing(files):
    def normalize(mean):
        return v1.Compose([v1.Resize((9, 9)), v1.ToTensor(), v1.Normalize(mean, STD)])

    with torch.inference_mode():
        mean = torch.tensor(MEAN)
    transforms = [normalize(mean), normalize(torch.nn.Parameter(torch.tensor(MEAN)))]
    for held in (Chained(300), WithoutDict(), Proxy()):
        transforms.append(NATIVE["evaluation"]())
        transforms[-1].held = held
    for transform in transforms:
        def work(image, transform=transform):
            return transform(image).detach()

        assert run_deferred(work, files)[0] == run(work, files)


def test_a_method_of_one_image_is_called(files):
    transform = NATIVE["training"]()

    def work(image):
        image.crop = lambda box: Image.new("RGB", (40, 40), (9, 99, 199))
        return transform(image)

    assert run_deferred(work, files) == (run(work, files), 0)


def test_a_lower_limit_of_pixels_is_noticed(files, monkeypatch):
    transform = NATIVE["evaluation"]()
    with feedmill.deferred_images():
        image = Image.open(files[0]).convert("RGB")
        run(transform, files)
        monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 400)
        with pytest.warns(Image.DecompressionBombWarning):
            transform(image)


class Seen(TorchFunctionMode):
    def __torch_function__(self, function, types, args=(), kwargs=None):
        return function(*args, **(kwargs or {}))


def test_what_sees_torchs_functions_sees_them(files):
    transform = NATIVE["training"]()
    run_deferred(transform, files)
    with Seen():
        assert run_deferred(transform, files)[1] == 0
    hook = torch.nn.modules.module.register_module_forward_hook(lambda module, args, result: None)
    try:
        assert run_deferred(transform, files)[1] == 0
    finally:
        hook.remove()
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        assert run_deferred(transform, files) == (run(transform, files), 0)
    finally:
        torch.set_default_dtype(before)
    assert run_deferred(transform, files)[1] == N_NATIVE


def test_a_watch_notices_and_refuses():
    transform = NATIVE["python's generator"]()
    watch = Watch(transform)
    assert watch.is_unchanged(transform)
    transform.transforms[1].transforms[0].low = 0.3
    assert not watch.is_unchanged(transform)
    for held in (np.zeros(3), object(), {1, 2}, iter([])):
        transform = v1.Compose([v1.ToTensor()])
        transform.transforms[0].held = held
        with pytest.raises(CantWatchError):
            Watch(transform)


def test_transforms_are_not_kept(files):
    transform = NATIVE["training"]()
    run_deferred(transform, files)
    gone = weakref.ref(transform)
    del transform
    gc.collect()
    assert gone() is None
    assert all(one is not None for one in composed._known)


class Holder:
    """Its transform refers to it, and so to itself."""

    def __init__(self):
        self.transform = v1.Compose([
            v1.Lambda(lambda image: self.convert(image)), v1.Resize((9, 9)), v1.ToTensor(),
        ])

    def convert(self, image):
        return image.convert("RGB")


def test_what_refers_to_itself_is_not_kept(files):
    holder = Holder()
    assert run_deferred(holder.transform, files)[0] == run(holder.transform, files)
    gone = weakref.ref(holder)
    del holder
    gc.collect()
    assert gone() is None


def test_copies_are_their_own(files):
    transform = NATIVE["training"]()
    run_deferred(transform, files)
    other = copy.deepcopy(transform)
    other.transforms[0].size = (10, 10)
    assert run_deferred(other, files) == (run(other, files), N_NATIVE)
    assert run_deferred(transform, files) == (run(transform, files), N_NATIVE)


@pytest.mark.skipif(not hasattr(np.random, "set_bit_generator"), reason="NumPy before 1.24")
def test_another_generator_of_numpy(files):
    """NumPy's functions may draw from another bit generator from some image on."""
    transform = NATIVE["NumPy's generator"]()
    bit_generator = np.random.get_bit_generator()

    def all_of():
        seed()
        found = []
        try:
            for i, path in enumerate(files):
                if i == 12:
                    np.random.set_bit_generator(np.random.PCG64(3))
                found.append(described(transform(Image.open(path).convert("RGB"))))
        finally:
            np.random.set_bit_generator(bit_generator)
        return found

    wanted = all_of()
    with feedmill.deferred_images():
        assert all_of() == wanted


def test_threads(files):
    """Threads that share a Compose share torch's generator, and nothing else."""
    transform = v1.Compose([v1.Resize((40, 40)), v1.CenterCrop(32), v1.ToTensor()])
    wanted = [made for made, _ in run(transform, files)]
    found = {}

    def work(number):
        with feedmill.deferred_images():
            found[number] = [
                described(transform(Image.open(path).convert("RGB"))) for path in files * 5
            ]

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(found[number] == wanted * 5 for number in range(4))


# ---- datasets ------------------------------------------------------------------------------------


def test_threads_draw_different_numbers(files):
    """As with torchvision, no two threads draw the same numbers of torch's generator."""
    transform = v1.Compose([v1.RandomResizedCrop(24), v1.ToTensor()])
    wide = files[0].parent / "wide.jpg"
    helpers.save_jpeg(wide, 300, 400)

    def work(found):
        with feedmill.deferred_images():
            for _ in range(60):
                found.append(described(transform(Image.open(wide).convert("RGB"))))

    work([])  # the first images are compared
    results = [[] for _ in range(4)]
    threads = [threading.Thread(target=work, args=(found,)) for found in results]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({one for found in results for one in found}) == 240


class Pairs(Dataset):
    """Two files for each sample, one by random.choice(): feedmill does not read it natively."""

    def __init__(self, paths, transform):
        self.paths, self.transform = [str(one) for one in paths], transform

    def __len__(self):
        return len(self.paths)

    def __getitem__(self, index):
        other = random.choice(self.paths)
        one = self.transform(Image.open(self.paths[index]).convert("RGB"))
        return {"A": one, "B": self.transform(Image.open(other).convert("RGB"))}


class Stream(IterableDataset):
    """A shuffle buffer, as stream readers have one."""

    def __init__(self, paths, transform):
        self.pairs = Pairs(paths, transform)

    def __iter__(self):
        info = torch.utils.data.get_worker_info()
        first, step = (0, 1) if info is None else (info.id, info.num_workers)
        held = []
        for index in range(first, len(self.pairs), step):
            held.append(index)
            if len(held) > 4:
                yield self.pairs[held.pop(random.randrange(len(held)))]["A"]
        yield from (self.pairs[index]["A"] for index in held)


@pytest.mark.parametrize("name", ["training", "python's generator", "v2"])
@pytest.mark.parametrize("num_workers", [0, pytest.param(2, marks=pytest.mark.slow)])
@pytest.mark.parametrize("kind", [Pairs, Stream])
def test_datasets_that_are_not_native(files, name, num_workers, kind):
    def batches(make, **options):
        seed()
        dataset = kind(files * 5, NATIVE[name]())
        loader = make(dataset, batch_size=6, num_workers=num_workers, **options)
        return loader, [list(loader) for _ in range(2)]

    def described_all(epochs):
        return [
            [{key: described(one) for key, one in batch.items()} if kind is Pairs
             else described(batch) for batch in epoch]
            for epoch in epochs
        ]

    _, wanted = batches(TorchDataLoader)
    loader, found = batches(feedmill.DataLoader)
    assert loader.explain().startswith("torch's own path")
    # Collated batches are contiguous, whatever strides their samples have.
    assert described_all(found) == described_all(wanted)
    stats = loader.stats().deferred
    assert stats.transformed > 100 and stats.transformed_ns > 0
    assert "in one native call" in loader.report()
    if kind is Pairs:
        _, verified = batches(feedmill.DataLoader, deferred="verify")
        assert described_all(verified) == described_all(wanted)
