"""rng="torch": native batches equal those of torch's own DataLoader with the same arguments and
seeds, augmentations included, bit for bit."""

import random
import warnings

import feedmill
import numpy as np
import pytest
import torch
from feedmill.iterators import generator_states, global_generators
from feedmill.planner import random_states
from helpers import cifar_in_memory, pixels, save_jpeg
from PIL import Image
from torch.utils.data import DataLoader, DistributedSampler
from torchvision import transforms as v1
from torchvision.datasets import ImageFolder
from torchvision.transforms import v2

N_IMAGES = 26
SIZES = ((61, 40), (32, 33), (33, 90), (120, 31), (47, 49))


@pytest.fixture(scope="module", autouse=True)
def few_cpus():
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="This DataLoader will create")
        yield


@pytest.fixture(scope="module")
def mixed(tmp_path_factory):
    """Images of several sizes: JPEGs, of which some are gray, CMYK or have no Huffman tables, and
    a PNG and a BMP, which Pillow decodes."""
    root = tmp_path_factory.mktemp("mixed")
    for i in range(N_IMAGES):
        path = root / "ab"[i % 2] / f"{i:02}.jpg"
        mode = {7: "L", 12: "CMYK"}.get(i, "RGB")
        save_jpeg(path, *SIZES[i % len(SIZES)], seed=i, mode=mode, progressive=i % 9 == 4)
        if i in (5, 16):
            path.unlink()
            kind = "png" if i == 5 else "bmp"
            Image.fromarray(pixels(*SIZES[i % len(SIZES)], seed=i)).save(path.with_suffix(f".{kind}"))
    return root


def batches_of(kind, dataset, epochs=2, seed=11, set_epochs=False, n_most=None, **options):
    """All batches of some epochs, errors included, and what torch's generator draws then."""
    torch.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed)
    found = []
    loader = kind(dataset, **options)
    for epoch in range(epochs):
        if set_epochs:
            loader.sampler.set_epoch(epoch)
        iterator = iter(loader)
        n = 0
        while n_most is None or n < n_most:
            n += 1
            assert n < 1000, found[-1]  # an error that each next() raises
            try:
                found.append(next(iterator))
            except StopIteration:
                break
            except Exception as error:
                found.append((type(error), str(error).rsplit("\n", 1)[-1].split(" [")[0]))
        del iterator
    return [*found, torch.rand(2), random.random(), np.random.rand()]


def differences(one, other):
    """Numbers of the batches that differ."""
    assert len(one) == len(other)
    return [number for number, pair in enumerate(zip(one, other)) if not is_equal(*pair)]


def is_equal(one, other):
    if isinstance(one, torch.Tensor):
        return one.dtype == other.dtype and torch.equal(one, other)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(is_equal, one, other))
    return one == other


def check(dataset, native="require", rng="torch", **options):
    options = {"batch_size": 4, "shuffle": True, **options}
    wanted = batches_of(DataLoader, dataset, **options)
    got = batches_of(feedmill.DataLoader, dataset, native=native, rng=rng, **options)
    assert differences(wanted, got) == []
    return wanted


# ---- transforms ----------------------------------------------------------------------------------


def sized(module, *steps):
    return module.Compose([*steps, module.Resize((24, 20)), v1.ToTensor()])


def tensors(module, *steps):
    return module.Compose([*steps, v1.ToTensor()])


PIPELINES = {
    "crop": lambda T: tensors(T, T.RandomResizedCrop(24), T.RandomHorizontalFlip()),
    "crop-normalize": lambda T: T.Compose([
        T.RandomResizedCrop(24, (0.3, 1)), T.RandomHorizontalFlip(), v1.ToTensor(),
        T.Normalize([0.5, 0.4, 0.3], [0.2, 0.3, 0.4])]),
    "padded-crop": lambda T: tensors(T, T.Resize((30, 26)), T.RandomCrop((24, 20), padding=4)),
    "crop-if-needed": lambda T: tensors(T, T.RandomCrop((50, 40), pad_if_needed=True)),
    "resized-crop": lambda T: tensors(T, T.Resize(26), T.RandomCrop(24), T.RandomVerticalFlip()),
    "always-flips": lambda T: tensors(T, T.RandomResizedCrop(24), T.RandomHorizontalFlip(1.0),
                                      T.RandomVerticalFlip(0.0), T.RandomHorizontalFlip()),
    "jitter": lambda T: sized(T, T.ColorJitter(0.4, 0.4, 0.4, 0.1), T.RandomGrayscale(0.3)),
    "jitter-nothing": lambda T: sized(T, T.ColorJitter(), T.RandomInvert(0.5)),
    "histograms": lambda T: sized(T, T.RandomAutocontrast(), T.RandomEqualize(), T.RandomPosterize(3),
                                  T.RandomSolarize(99), T.RandomAdjustSharpness(2)),
    "rotation": lambda T: sized(T, T.RandomRotation(30)),
    "affine": lambda T: sized(T, T.RandomAffine(20, (0.1, 0.2), (0.7, 1.2), (-5, 5, -9, 9))),
    "apply": lambda T: sized(T, T.RandomApply([T.ColorJitter(0.3), T.RandomHorizontalFlip()], 0.6),
                             T.RandomRotation(9)),
    "order": lambda T: sized(T, T.RandomOrder([T.ColorJitter(0.3, 0.2), T.RandomSolarize(9),
                                               T.RandomApply([T.RandomInvert()], 0.5)])),
    "rand-augment": lambda T: sized(T, T.RandAugment(3)),
    "trivial-augment": lambda T: sized(T, T.TrivialAugmentWide()),
    "auto-augment": lambda T: sized(T, T.AutoAugment()),
    "erasing": lambda T: T.Compose([T.RandomResizedCrop(24), T.TrivialAugmentWide(), v1.ToTensor(),
                                    T.RandomErasing(0.7)]),
    "presets": lambda T: T.Compose([
        T.RandomResizedCrop(24, antialias=True), T.RandomHorizontalFlip(),
        T.AutoAugment(T.AutoAugmentPolicy.CIFAR10), v1.ToTensor(),
        T.Normalize([0.5] * 3, [0.2] * 3), T.RandomErasing(0.5)]),
}
ONCE = {
    "choice": v1.Compose([v1.RandomChoice([v1.ColorJitter(0.4), v1.RandomRotation(20)], [0.3, 0.7]),
                          v1.Resize((24, 20)), v1.ToTensor()]),
    "v2-choice": v2.Compose([
        v2.RandomChoice([v2.ColorJitter(0.4), v2.RandomRotation(20)], [0.3, 0.7]),
        v2.RandomApply([v2.RandomOrder([v2.RandomInvert(), v2.RandomChoice([v2.RandomEqualize()])])]),
        v2.Resize((24, 20)), v1.ToTensor()]),
    "deterministic": v1.Compose([v1.Resize((24, 20)), v1.ToTensor()]),
}
CASES = [
    pytest.param(make(module), id=f"{name}-{module.__name__[-2:]}")
    for name, make in PIPELINES.items() for module in (v1, v2)
] + [pytest.param(transform, id=name) for name, transform in ONCE.items()]


# Each pipeline once, of v1 or v2 in turn; the slow tests have the others.
FEW = [one for number, one in enumerate(CASES) if number >= 36 or number % 4 in (0, 3)]


@pytest.mark.parametrize("transform", FEW)
def test_pipelines(mixed, transform):
    check(ImageFolder(mixed, transform), num_workers=3)


@pytest.mark.slow
@pytest.mark.parametrize("transform", CASES)
@pytest.mark.parametrize("n_workers", [1, 3, 8])
@pytest.mark.parametrize("persistent", [False, True])
def test_all_pipelines(mixed, transform, n_workers, persistent):
    check(ImageFolder(mixed, transform), num_workers=n_workers, persistent_workers=persistent,
          epochs=3, batch_size=3, prefetch_factor=1 + n_workers % 3)


class Twice:
    """As MoCo's."""

    def __init__(self, one, other):
        self.one, self.other = one, other

    def __call__(self, image):
        return [self.one(image), self.other(image)]


def moco(size=24):
    jitter = v1.RandomApply([v1.ColorJitter(0.4, 0.4, 0.4, 0.1)], p=0.8)
    return v1.Compose([v1.RandomResizedCrop(size, scale=(0.2, 1.0)), jitter,
                       v1.RandomGrayscale(p=0.2), v1.RandomHorizontalFlip(), v1.ToTensor()])


def test_views(mixed):
    check(ImageFolder(mixed, Twice(moco(), moco(16))), num_workers=3)


@pytest.fixture(scope="module")
def cifar():
    return cifar_in_memory(70)


@pytest.mark.parametrize("name", ["padded-crop", "crop", "rand-augment", "erasing"])
def test_images_in_memory(cifar, name):
    cifar.transform = PIPELINES[name](v1)
    check(cifar, num_workers=3, batch_size=9)


# ---- arguments -----------------------------------------------------------------------------------

CROP = PIPELINES["crop"](v1)


@pytest.mark.parametrize(
    "options",
    [
        {"num_workers": 1},
        {"num_workers": 1, "persistent_workers": True, "epochs": 3},
        {"num_workers": 3, "persistent_workers": True, "epochs": 3},
        {"num_workers": 2, "prefetch_factor": 1, "drop_last": True, "batch_size": 5},
        {"num_workers": 5, "shuffle": False, "batch_size": 2},
        {"num_workers": 2, "batch_size": None},
        {"num_workers": 2, "batch_size": 64},
    ],
    ids=str,
)
def test_arguments(mixed, options):
    check(ImageFolder(mixed, CROP), **options)


def test_generator(mixed):
    dataset = ImageFolder(mixed, CROP)
    options = {"batch_size": 4, "shuffle": True, "num_workers": 2}
    wanted, got = (
        batches_of(kind, dataset, generator=torch.Generator().manual_seed(21), **options, **more)
        for kind, more in ((DataLoader, {}), (feedmill.DataLoader, {"rng": "torch"}))
    )
    assert differences(wanted, got) == []


def test_distributed_sampler(mixed):
    dataset = ImageFolder(mixed, CROP)
    for rank in range(2):
        sampler = DistributedSampler(dataset, 2, rank)
        check(dataset, shuffle=None, sampler=sampler, num_workers=2, set_epochs=True)


@pytest.mark.parametrize("persistent", [False, True])
def test_early_break(mixed, persistent):
    check(ImageFolder(mixed, CROP), num_workers=2, n_most=2, persistent_workers=persistent,
          epochs=3, batch_size=2)


def test_split_batches(mixed):
    """A batch that is larger than the native loader's is made in parts, by the same worker."""
    dataset = ImageFolder(mixed, CROP)
    batches = [*([n, n + 1] for n in range(0, 20, 2)), list(range(13)), [1], [2, 2, 3, 4, 5], [7]]
    check(dataset, batch_size=1, shuffle=None, batch_sampler=batches, num_workers=2)
    check(dataset, batch_size=1, shuffle=None, batch_sampler=batches, num_workers=2,
          collate_fn=mix_up)


def seed_worker(worker_id):
    seed = torch.initial_seed() % 2**32
    np.random.seed(seed)
    random.seed(seed)


def seed_torch(worker_id):
    torch.manual_seed(1000 + worker_id)


@pytest.mark.parametrize("function", [seed_worker, seed_torch])
def test_worker_init_fn(mixed, function):
    dataset = ImageFolder(mixed, v1.Compose([
        v1.RandomOrder([v1.RandomInvert(), v1.RandomSolarize(99)]), CROP]))
    check(dataset, num_workers=2, worker_init_fn=function)
    check(dataset, num_workers=2, worker_init_fn=function, collate_fn=mix_up,
          persistent_workers=True)
    loader = feedmill.DataLoader(dataset, num_workers=2, worker_init_fn=function, rng="torch",
                                 worker_init="ignore")
    assert "worker_init_fn may seed" in loader.explain()


# ---- collate_fn ----------------------------------------------------------------------------------


def mix_up(samples):
    images, labels = torch.utils.data.default_collate(samples)
    share = random.betavariate(0.4, 0.4) + float(np.random.rand()) + float(torch.randn(1))
    order = torch.randperm(len(images))
    return images * share + images[order] * (1 - share), labels, labels[order]


cut_mix = v2.RandomChoice([v2.CutMix(num_classes=2), v2.MixUp(num_classes=2)])


def cut_mix_batch(samples):
    return cut_mix(*torch.utils.data.default_collate(samples))


def fails_at_times(samples):
    if torch.rand(1) < 0.4:
        raise ValueError("no batch this time")
    return torch.utils.data.default_collate(samples)


def stacked(samples):
    return torch.stack([image for image, _ in samples])


@pytest.mark.parametrize("function", [mix_up, cut_mix_batch, fails_at_times, stacked])
@pytest.mark.parametrize("options", [
    {"num_workers": 1}, {"num_workers": 3, "persistent_workers": True, "epochs": 3},
], ids=str)
def test_collate_fn(mixed, function, options):
    check(ImageFolder(mixed, CROP), collate_fn=function, **options)


def test_collate_fn_of_an_early_break(mixed):
    check(ImageFolder(mixed, CROP), collate_fn=mix_up, num_workers=2, persistent_workers=True,
          n_most=3, epochs=3, batch_size=2)


# ---- errors --------------------------------------------------------------------------------------


@pytest.fixture
def damaged(mixed, tmp_path):
    """Some files can't be loaded: empty, cut off, without a header, no image at all."""
    for i in range(30):
        path = save_jpeg(tmp_path / "a" / f"{i:02}.jpg", *SIZES[i % len(SIZES)], seed=i)
        content = path.read_bytes()
        if i in (3, 17):
            path.write_bytes(content[: len(content) // 2])
        elif i in (9, 20, 21):
            path.write_bytes({9: b"", 20: b"no image", 21: content[:30]}[i])
    return tmp_path


@pytest.mark.parametrize("options", [
    {"num_workers": 1}, {"num_workers": 3},
    {"num_workers": 2, "persistent_workers": True, "epochs": 3, "batch_size": 3},
], ids=str)
def test_damaged_files(damaged, options):
    wanted = check(ImageFolder(damaged, CROP), **options)
    n_errors = sum(isinstance(one, tuple) for one in wanted)
    assert n_errors >= 4


def test_damaged_files_with_a_collate_fn(damaged):
    check(ImageFolder(damaged, CROP), collate_fn=mix_up, num_workers=2)


def test_an_early_break_before_a_damaged_file(damaged):
    check(ImageFolder(damaged, CROP), num_workers=2, persistent_workers=True, n_most=2, epochs=4,
          batch_size=2)


@pytest.mark.parametrize("options", [
    {"num_workers": 1}, {"num_workers": 3, "batch_size": 3},
    {"num_workers": 2, "collate_fn": mix_up},
    {"num_workers": 2, "persistent_workers": True, "epochs": 2},
], ids=["one", "three", "collate_fn", "persistent"])
def test_errors_of_a_transform(mixed, options):
    """How far the worker had drawn before the error is found out by the dataset."""
    transform = v1.Compose([v1.RandomHorizontalFlip(), v1.RandomCrop(32), v1.ToTensor()])
    wanted = check(ImageFolder(mixed, transform), **options)
    n_errors = sum(isinstance(one, tuple) for one in wanted)
    assert 2 <= n_errors < len(wanted)


def test_an_error_that_is_not_repeated_ends_the_stream(mixed, monkeypatch):
    """It is then not known what torch's worker would draw: an error, not other numbers."""
    transform = v1.Compose([v1.RandomHorizontalFlip(), v1.RandomCrop(32), v1.ToTensor()])
    dataset = ImageFolder(mixed, transform)
    loader = feedmill.DataLoader(dataset, num_workers=1, rng="torch", native="require")
    iterator = iter(loader)
    monkeypatch.setattr(dataset, "transform", v1.ToTensor())
    with pytest.raises(ValueError, match="crop size"):
        for _ in iterator:
            pass
    for _ in range(2):
        with pytest.raises(RuntimeError, match="it is not known which random numbers"):
            next(iterator)
    with pytest.warns(UserWarning, match="it is not known which random numbers"):
        assert loader.state_dict()["position"] is None


def test_by_default_an_epoch_goes_on_after_such_an_error(mixed, monkeypatch):
    transform = v1.Compose([v1.RandomHorizontalFlip(), v1.RandomCrop(32), v1.ToTensor()])
    dataset = ImageFolder(mixed, transform)
    loader = feedmill.DataLoader(dataset, num_workers=1, native="require")
    iterator = iter(loader)
    monkeypatch.setattr(dataset, "transform", v1.ToTensor())
    n_batches, n_errors = 0, 0
    with pytest.warns(UserWarning, match="it is not known which random numbers"):
        while n_batches + n_errors < len(dataset):
            try:
                next(iterator)
                n_batches += 1
            except ValueError:
                n_errors += 1
    assert n_batches > n_errors >= 2
    with pytest.raises(StopIteration):
        next(iterator)


def random_options(random):
    persistent = random.random() < 0.5
    return {
        "num_workers": random.choice((1, 2, 3, 5)),
        "batch_size": random.choice((1, 2, 3, 7, 40)),
        "prefetch_factor": random.choice((None, 1, 3)),
        "persistent_workers": persistent,
        "drop_last": random.random() < 0.3,
        "collate_fn": random.choice((None, None, mix_up, fails_at_times)),
        "worker_init_fn": random.choice((None, None, seed_torch)),
        "n_most": random.choice((None, None, 1, 4)),
        "epochs": random.choice((1, 3)),
        "seed": random.randrange(1 << 20),
    }


@pytest.mark.slow
@pytest.mark.parametrize("number", range(40))
def test_random_options(mixed, damaged, number):
    options = random_options(random.Random(number))
    steps = random.Random(number).choice(list(PIPELINES.values()))(v1 if number % 2 else v2)
    check(ImageFolder(damaged if number % 3 else mixed, steps), native="auto", **options)


# ---- training ------------------------------------------------------------------------------------


def small_model():
    return torch.nn.Sequential(
        torch.nn.Conv2d(3, 8, 3, 2), torch.nn.BatchNorm2d(8), torch.nn.ReLU(),
        torch.nn.Dropout(0.3), torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(),
        torch.nn.Linear(8, 2))


def losses(kind, dataset, make_model=small_model, **options):
    """The losses of a training of two epochs."""
    torch.manual_seed(2)
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)
    loader = kind(dataset, **{"batch_size": 4, "shuffle": True, "num_workers": 2, **options})
    found = []
    for _ in range(2):
        for images, labels in loader:
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(model(images), labels)
            loss.backward()
            optimizer.step()
            found.append(loss.item())
    return found


def test_losses_are_equal(mixed):
    dataset = ImageFolder(mixed, PIPELINES["presets"](v1))
    wanted = losses(DataLoader, dataset)
    assert losses(feedmill.DataLoader, dataset, native="require", rng="torch") == wanted
    assert losses(feedmill.DataLoader, dataset, native="require", rng="feedmill") != wanted


# ---- other options -------------------------------------------------------------------------------


def test_verify(mixed, cifar):
    cifar.transform = CROP
    for dataset in (ImageFolder(mixed, CROP), ImageFolder(mixed, Twice(moco(), moco(16))), cifar):
        loader = feedmill.DataLoader(dataset, batch_size=4, num_workers=2, native="verify",
                                     rng="torch")
        n = sum(1 for _ in loader)
        assert n == len(loader) and loader.stats().decode.verified_samples == len(dataset)


def test_verify_finds_other_numbers(mixed, monkeypatch):
    original = generator_states.VirtualWorkers.of_batch

    def of_batch(self, batch):
        states = original(self, batch)
        return (torch.Generator().manual_seed(1).get_state(), *states[1:]) if batch == 2 else states

    monkeypatch.setattr(generator_states.VirtualWorkers, "of_batch", of_batch)
    loader = feedmill.DataLoader(ImageFolder(mixed, CROP), batch_size=4, num_workers=2,
                                 native="verify", rng="torch")
    with pytest.raises(feedmill.VerificationError, match="generators of torch's worker"):
        list(loader)


def test_a_trial_finds_what_the_installed_versions_draw_otherwise(mixed, monkeypatch):
    """As if a version of torchvision drew one more number."""
    original = v1.RandomHorizontalFlip.forward

    def forward(self, image):
        torch.rand(1)
        return original(self, image)

    loader = feedmill.DataLoader(ImageFolder(mixed, CROP), num_workers=2, rng="torch")
    assert loader.explain().startswith("native path")
    reasons = feedmill._dispatch.torch_random.reasons_against
    source = feedmill._dispatch.paths.look(loader).source
    monkeypatch.setattr(v1.RandomHorizontalFlip, "forward", forward)
    loader._feedmill.tried_source = None
    assert "more or fewer numbers" in reasons(loader, source)[0]


def test_explain_says_what_rng_is(mixed):
    dataset = ImageFolder(mixed, CROP)
    text = feedmill.DataLoader(dataset, num_workers=2, rng="torch").explain()
    assert "torch's: as 2 worker processes of torch draw them" in text
    text = feedmill.DataLoader(dataset, num_workers=2, rng="torch", collate_fn=mix_up).explain()
    assert "with the generators of torch's worker" in text
    assert "seed=None" in feedmill.DataLoader(dataset, num_workers=2, rng="feedmill").explain()


@pytest.mark.parametrize("options, is_torchs", [
    ({}, True),
    ({"num_workers": 0}, True),
    ({"native": "verify"}, True),
    ({"seed": 1}, False),
    ({"on_error": "replace"}, False),
    ({"native": "hybrid"}, False),
    ({"worker_init": "ignore"}, False),
    ({"in_order": False}, False),
    ({"in_order": False, "num_workers": 1}, True),
])
def test_which_numbers_are_the_default(mixed, options, is_torchs):
    def first(kind, **options):
        torch.manual_seed(2)
        return next(iter(kind(dataset, batch_size=8, **options)))[0]

    dataset = ImageFolder(mixed, CROP)
    options = {"num_workers": 2, **options}
    of_torch = first(DataLoader, num_workers=options["num_workers"])
    loader = feedmill.DataLoader(dataset, **options)
    assert ("torch's: " in loader.explain()) is is_torchs
    assert loader.explain().startswith("native path")
    assert torch.equal(first(feedmill.DataLoader, **options), of_torch) is is_torchs


def test_explain_and_the_trial_draw_nothing(mixed):
    torch.manual_seed(1)
    random.seed(1)
    np.random.seed(1)
    before = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist()
    feedmill.DataLoader(ImageFolder(mixed, CROP), num_workers=2, rng="torch").explain()
    assert torch.equal(torch.get_rng_state(), before[0]) and random.getstate() == before[1]
    assert np.random.get_state()[1].tolist() == before[2]


def test_what_changes_the_numbers_takes_torchs_path(mixed):
    dataset = ImageFolder(mixed, CROP)
    torch.set_default_dtype(torch.float64)
    try:
        text = feedmill.DataLoader(dataset, num_workers=2, rng="torch").explain()
    finally:
        torch.set_default_dtype(torch.float32)
    assert "torch's default dtype is torch.float64" in text
    text = feedmill.DataLoader(dataset, num_workers=2, rng="torch", in_order=False).explain()
    assert "in_order=False" in text
    # ColorJitter without arguments draws an order, though it changes nothing.
    dataset = ImageFolder(mixed, v1.Compose([v1.ColorJitter(), v1.Resize((9, 9)), v1.ToTensor()]))
    check(dataset, native="auto", epochs=1)
    check(dataset, native="auto", epochs=1, num_workers=2, collate_fn=mix_up)


def test_persistent_workers_do_not_see_another_transform(mixed):
    dataset = ImageFolder(mixed, CROP)
    loader = feedmill.DataLoader(dataset, num_workers=1, rng="torch", persistent_workers=True)
    next(iter(loader))
    dataset.transform = PIPELINES["jitter"](v1)
    with pytest.raises(RuntimeError, match="has changed since the first epoch"):
        iter(loader)


def test_by_default_another_transform_counts_and_is_said(mixed):
    dataset = ImageFolder(mixed, CROP)
    loader = feedmill.DataLoader(dataset, num_workers=1, persistent_workers=True, batch_size=8)
    next(iter(loader))
    loader.memory_format = torch.channels_last
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        next(iter(loader))
    dataset.transform = v1.Compose([v1.RandomCrop(9), v1.ToTensor()])
    with pytest.warns(UserWarning, match="which torch's persistent workers would not notice"):
        images, _ = next(iter(loader))
    assert images.shape[-2:] == (9, 9)


def test_a_dataset_of_which_no_sample_can_be_made(tmp_path):
    for i in range(3):
        (tmp_path / "a").mkdir(exist_ok=True)
        (tmp_path / "a" / f"{i}.jpg").write_bytes(b"no image")
    dataset = ImageFolder(tmp_path, CROP)
    text = feedmill.DataLoader(dataset, num_workers=1, rng="torch").explain()
    assert "no sample could be made" in text


def test_wrong_options(mixed):
    dataset = ImageFolder(mixed, CROP)
    with pytest.raises(ValueError, match="rng is 'numpy'; it must be one of 'auto', 'feedmill', 'torch'"):
        feedmill.DataLoader(dataset, rng="numpy")
    with pytest.raises(ValueError, match="pass only one of them"):
        feedmill.DataLoader(dataset, rng="torch", seed=1)
    with pytest.raises(ValueError, match="on_error='skip' goes on after a sample"):
        feedmill.DataLoader(dataset, rng="torch", on_error="skip")
    loader = feedmill.DataLoader(dataset, num_workers=2, rng="torch")
    with pytest.raises(RuntimeError, match="depend on all samples that its worker made"):
        list(loader)
        loader.draws(0, 0)


# ---- states --------------------------------------------------------------------------------------


def test_states_are_converted_both_ways():
    torch.manual_seed(3)
    random.seed(3)
    np.random.seed(3)
    torch.randn(1)
    random.gauss(0, 1)
    np.random.randn()
    for n in (0, 1, 300, 620, 700):
        torch.rand(n)
        np.random.rand(n)
        for _ in range(n):
            random.random()
        states = random_states.global_states()
        again = random_states.with_streams(states, random_states.streams_of(states))
        wanted = drawn_by_all()
        random_states.set_global_states(again)
        assert is_equal(wanted, drawn_by_all())


def drawn_by_all():
    numbers = np.random.rand(700).tolist(), np.random.randn(3).tolist()
    return torch.rand(700), torch.randn(3), random.random(), random.gauss(0, 1), *numbers


def test_numbers_that_are_kept_come_from_the_streams():
    seeded = random_states.seeded_states(3)
    with global_generators.drawing_from(seeded) as held:
        torch.randn(1)
        random.gauss(0, 1)
        np.random.rand(5)
    assert held.states[1][2] is not None and held.states[2]["state"]["pos"] != 624
    streams = random_states.streams_of(held.states)
    again = random_states.with_streams(seeded, streams)
    assert torch.equal(again[0], held.states[0]) and again[1] == held.states[1]
    assert random_states.streams_of(again) == streams
    back = random_states.with_streams(again, random_states.streams_of(seeded))
    assert back[1] == seeded[1] and random_states.streams_of(back) != streams


@pytest.mark.parametrize("n", [0, 1, 623, 624, 625, 1248])
def test_states_that_are_converted_both_ways_are_the_same_bytes(n):
    torch.manual_seed(3)
    random.seed(3)
    torch.rand(n)
    states = torch.get_rng_state(), random.getstate(), np.random.get_state(legacy=False)
    again = random_states.with_streams(states, random_states.streams_of(states))
    assert torch.equal(again[0], states[0]) and again[1] == states[1]
