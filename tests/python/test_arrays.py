"""Native loading of datasets in memory (TensorDataset, CIFAR, MNIST, SVHN), compared with torch."""

import copy
import pickle
import traceback

import feedmill
import numpy as np
import pytest
import torch
from feedmill._ops import native
from helpers import native_loader
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch.utils.data import (
    ConcatDataset,
    DataLoader,
    Sampler,
    Subset,
    TensorDataset,
    WeightedRandomSampler,
    default_collate,
)
from torchvision import transforms
from torchvision.datasets import CIFAR10, CIFAR100, MNIST, SVHN, FashionMNIST

DTYPES = (
    torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.float16,
    torch.bfloat16, torch.float32, torch.float64, torch.complex64, torch.complex128,
)


def random_tensor(shape, dtype, seed=0):
    """A tensor of random bits; of random truth values for bool."""
    size = torch.empty(0, dtype=dtype).itemsize
    high = 2 if dtype is torch.bool else 256
    numbers = np.random.default_rng(seed).integers(0, high, (*shape, size), dtype=np.uint8)
    return torch.from_numpy(numbers).view(dtype)[..., 0]


def assert_same_batch(got, wanted):
    """Compares type, shape, strides and other visible attributes, and the values bit for bit."""
    assert type(got) is type(wanted) and len(got) == len(wanted)
    for one, other in zip(got, wanted):
        assert one.dtype is other.dtype and one.shape == other.shape
        assert one.stride() == other.stride()
        assert one.untyped_storage().nbytes() == other.untyped_storage().nbytes()
        bits = one.contiguous().reshape(-1).view(torch.uint8)
        assert torch.equal(bits, other.contiguous().reshape(-1).view(torch.uint8))


def assert_as_torch(dataset, seed=0, **options):
    """Compares one native epoch with one of torch's DataLoader. Returns the native loader."""
    torch.manual_seed(seed)
    wanted = list(DataLoader(dataset, **options))
    torch.manual_seed(seed)
    loader = native_loader(dataset, **options)
    got = list(loader)
    assert len(got) == len(wanted)
    for one, other in zip(got, wanted):
        assert_same_batch(one, other)
    assert loader.stats().path == "native"
    return loader


# ---- tensors -------------------------------------------------------------------------------------

shapes = st.lists(st.integers(1, 6), max_size=4)


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    n=st.integers(1, 60),
    rows=st.lists(st.tuples(shapes, st.sampled_from(DTYPES)), min_size=1, max_size=4),
    batch_size=st.integers(1, 70),
    shuffle=st.booleans(),
    drop_last=st.booleans(),
    seed=st.integers(0, 1000),
)
def test_random_tensor_datasets_equal_torch(n, rows, batch_size, shuffle, drop_last, seed):
    tensors = [random_tensor((n, *shape), dtype, seed + i) for i, (shape, dtype) in enumerate(rows)]
    assert_as_torch(
        TensorDataset(*tensors), seed, batch_size=batch_size, shuffle=shuffle, drop_last=drop_last
    )


def test_strided_tensors_and_subsets_equal_torch():
    wide = random_tensor((40, 7, 3), torch.float64)
    dataset = TensorDataset(wide[::2], wide[1::2, 2:5], torch.arange(20))
    assert_as_torch(dataset, batch_size=3, shuffle=True)
    assert_as_torch(Subset(Subset(dataset, [3, 1, -1, 3, 7]), range(1, 5)), batch_size=3)
    parts = torch.utils.data.random_split(dataset, [15, 5])
    assert_as_torch(parts[0], batch_size=4, shuffle=True)
    assert_as_torch(dataset, batch_size=3, sampler=WeightedRandomSampler([1.0] * 20, 50))


def test_a_memory_mapped_file_equals_torch(tmp_path):
    path = tmp_path / "rows.npy"
    np.save(path, np.random.default_rng(0).normal(size=(30, 5, 4)))
    mapped = np.load(path, mmap_mode="c")
    assert_as_torch(TensorDataset(torch.from_numpy(mapped)), batch_size=7, shuffle=True)


@pytest.mark.parametrize("num_workers", (0, 2))
def test_each_epoch_has_each_index_once(num_workers):
    dataset = TensorDataset(torch.arange(103), random_tensor((103, 9), torch.float32))
    loader = native_loader(
        dataset, batch_size=8, shuffle=True, num_workers=num_workers,
        persistent_workers=num_workers > 0,
    )
    orders = []
    for _ in range(3):
        orders.append([index for batch in loader for index in batch[0].tolist()])
        assert sorted(orders[-1]) == list(range(103))
    assert len(set(map(tuple, orders))) == 3
    stats = loader.stats()
    assert stats.samples == stats.decode.native_samples == 309
    assert len(stats.steps) == 3 * 13 and (stats.steps["n_samples"] <= 8).all()


def test_batches_larger_than_a_native_batch(monkeypatch):
    monkeypatch.setattr("feedmill.engine.config.MAX_BATCH_SIZE", 16)
    dataset = TensorDataset(torch.arange(100), random_tensor((100, 3), torch.int16))
    assert_as_torch(dataset, batch_size=50, shuffle=True)


def test_held_batches_do_not_change():
    dataset = TensorDataset(torch.arange(200))
    batches = list(native_loader(dataset, batch_size=5))
    assert torch.equal(torch.cat([batch[0] for batch in batches]), torch.arange(200))
    part = next(iter(native_loader(dataset, batch_size=5)))[0]
    assert pickle.loads(pickle.dumps(part)).tolist() == [0, 1, 2, 3, 4]


class ListSampler(Sampler):
    def __init__(self, indices):
        self.indices = indices

    def __iter__(self):
        return iter(self.indices)

    def __len__(self):
        return len(self.indices)


def test_negative_numpy_and_tensor_indices():
    dataset = TensorDataset(random_tensor((20, 3), torch.float32))
    odd = [3, -1, np.int64(4), torch.tensor(5), np.uint8(6), -20, 19]
    assert_as_torch(dataset, batch_size=2, sampler=ListSampler(odd))


@pytest.mark.parametrize("num_workers", (0, 2))
@pytest.mark.parametrize("bad", (20, -21, 1 << 70))
def test_an_index_out_of_range_raises_as_with_torch(bad, num_workers):
    dataset = TensorDataset(torch.arange(20.0))
    sampler = ListSampler([0, 1, 2, bad, 4, 5])
    options = {"batch_size": 2, "sampler": sampler, "num_workers": num_workers}

    def outcomes(loader):
        iterator, out = iter(loader), []
        for _ in range(3):
            try:
                out.append(next(iterator)[0].tolist())
            except Exception as error:
                traceback.clear_frames(error.__traceback__)  # see helpers.take()
                out.append((type(error), str(error).splitlines()[-1]))
        return out

    assert outcomes(native_loader(dataset, **options)) == outcomes(DataLoader(dataset, **options))


def test_changes_in_place_are_seen_by_the_next_batch():
    values = torch.zeros(50, 2)
    for number, (batch,) in enumerate(native_loader(TensorDataset(values), batch_size=5)):
        assert (batch == number).all()
        values += 1


def test_replaced_tensors_are_seen_by_the_next_epoch():
    values = torch.zeros(50, 2)
    dataset = TensorDataset(values)
    loader = native_loader(dataset, batch_size=5)
    for number, (batch,) in enumerate(loader):
        if number == 0:
            values.data = torch.ones(50, 2)  # the old memory stays while the epoch runs
    dataset.tensors = (torch.full((30, 3), 7.0),)
    assert [tuple(batch.shape) for (batch,) in loader] == [(5, 3)] * 6
    assert all((batch == 7).all() for (batch,) in loader)


def test_unsupported_datasets_take_torchs_path():
    def why(dataset, **options):
        loader = feedmill.DataLoader(dataset, **options)
        torch.manual_seed(1)
        got = list(loader)
        torch.manual_seed(1)
        torchs = {name: options[name] for name in options if name not in ("memory_format", "dtype")}
        assert len(got) == len(list(DataLoader(dataset, **torchs)))
        assert loader.stats().path == "torch"
        return loader.stats().reasons[0]

    rows = torch.rand(6, 3, 4, 5)
    assert "contiguous" in why(TensorDataset(rows.transpose(2, 3)))
    assert "contiguous" in why(TensorDataset(torch.rand(4).expand(6, 4)[:, :1].expand(6, 3)))
    assert "gradient" in why(TensorDataset(torch.rand(6, 2, requires_grad=True)))
    assert "Parameter" in why(TensorDataset(torch.nn.Parameter(torch.rand(3), False)))
    assert "conjugated" in why(TensorDataset(torch.rand(6, 2, dtype=torch.complex64).conj()))
    assert "no rows" in why(TensorDataset(torch.rand(6, 0)))
    assert "views" in why(TensorDataset(rows), collate_fn=wrapped_default_collate)
    assert "views" in why(TensorDataset(rows), batch_size=None)
    assert "for images" in why(TensorDataset(rows), dtype=torch.float16)
    assert "ConcatDataset" in why(ConcatDataset([TensorDataset(rows)] * 2))


def wrapped_default_collate(samples):
    return default_collate(samples)


def test_a_small_budget_means_few_slots_or_torchs_path():
    dataset = TensorDataset(random_tensor((64, 1 << 16), torch.float32))  # 256 KiB a row
    loader = native_loader(dataset, batch_size=4, memory_budget=(17 << 20))
    for got, want in zip(loader, DataLoader(dataset, batch_size=4), strict=True):
        assert_same_batch(got, want)
    assert 3 <= loader.stats().memory.n_slots <= 5
    small = feedmill.DataLoader(dataset, batch_size=32, memory_budget=(16 << 20))
    assert len(list(small)) == 2 and small.stats().path == "torch"
    assert "memory_budget" in small.stats().reasons[0]


def test_verify_draws_and_fetch():
    dataset = TensorDataset(torch.arange(20), random_tensor((20, 3), torch.float64))
    loader = native_loader(dataset, batch_size=6, native="verify", seed=3)
    assert len(list(loader)) == 4 and loader.stats().decode.verified_samples == 20
    assert loader.draws(3, 0) == []
    assert torch.equal(loader.fetch(3, 0)[1], dataset[3][1])


def test_pinned_batches_equal_torchs(monkeypatch):
    monkeypatch.setattr(
        "feedmill.iterators.native.allocate_pinned",
        lambda n: (lambda owner: (owner.data_ptr(), owner))(torch.empty(n, dtype=torch.uint8)),
    )
    monkeypatch.setattr("torch.utils.data.dataloader._BaseDataLoaderIter.__init__", pinning_init)
    for dataset in (TensorDataset(torch.arange(20), torch.rand(20, 3, 2)), cifar()):
        wanted = list(DataLoader(dataset, 6))
        for got, want in zip(native_loader(dataset, batch_size=6, pin_memory=True), wanted):
            assert all(map(torch.equal, got, want))


_torchs_init = torch.utils.data.dataloader._BaseDataLoaderIter.__init__


def pinning_init(self, loader):
    """Sets the iterator's _pin_memory as on a machine with a GPU."""
    _torchs_init(self, loader)
    self._pin_memory = loader.pin_memory


def test_native_index_conversion():
    assert np.frombuffer(native.indices([3, 0, 2], 4), np.int64).tolist() == [3, 0, 2]
    for bad in ([4], [-1], [True], [1.0], [np.int64(1)], [1 << 80]):
        assert native.indices(bad, 4) is None
    assert native.indices([], 4) == b""


# ---- images --------------------------------------------------------------------------------------

NORMAL = (
    transforms.ToTensor(),
    transforms.Normalize((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)),
)
GREY = (transforms.ToTensor(), transforms.Normalize((0.1307,), (0.3081,)))


def made(kind, data, targets, transform):
    """A torchvision dataset with this data and these targets, without files."""
    dataset = kind.__new__(kind)
    dataset.data, dataset.transform, dataset.target_transform = data, transform, None
    setattr(dataset, "labels" if kind is SVHN else "targets", targets)
    return dataset


def numbers(*shape, high=256):
    return np.random.default_rng(5).integers(0, high, shape).astype(np.uint8)


def cifar(*steps, kind=CIFAR10, n=97):
    """A CIFAR10 with channels-first memory and channels-last strides, as the class loads it."""
    data = numbers(n, 3, 32, 32).transpose(0, 2, 3, 1)
    return made(kind, data, numbers(n, high=100).tolist(), transforms.Compose(steps or NORMAL))


def mnist(*steps, kind=MNIST):
    data, targets = torch.from_numpy(numbers(97, 28, 28)), torch.from_numpy(numbers(97)).long()
    return made(kind, data, targets, transforms.Compose(steps or GREY))


def svhn(*steps):
    """An SVHN whose memory is in Fortran order, as in the dataset's MATLAB files."""
    data = np.asfortranarray(numbers(32, 32, 3, 97)).transpose(3, 2, 0, 1)
    return made(SVHN, data, numbers(97).astype(np.int64), transforms.Compose(steps or NORMAL))


@pytest.mark.parametrize("make", (cifar, mnist, svhn))
def test_images_without_random_transforms(make):
    assert_as_torch(make(), batch_size=10, shuffle=True)
    for steps in (
        [transforms.ToTensor()],
        [transforms.PILToTensor()],
        [transforms.Resize(41), transforms.ToTensor()],
        [transforms.Resize((17, 30)), transforms.CenterCrop(16), transforms.PILToTensor()],
        [transforms.CenterCrop((20, 40)), transforms.ToTensor()],
        [transforms.PILToTensor(), transforms.ConvertImageDtype(torch.float16)],
    ):
        dataset = make(*steps)
        assert_as_torch(dataset, batch_size=10, shuffle=True)
        assert_as_torch(Subset(dataset, [5, -1, 5]), batch_size=2, drop_last=True)


@pytest.mark.parametrize("make", (cifar, mnist, svhn))
def test_images_with_random_flips_and_crops(make):
    dataset = make(transforms.RandomHorizontalFlip(), transforms.CenterCrop(21), *(
        GREY if make is mnist else NORMAL
    ))
    plain = make(transforms.CenterCrop(21), *(GREY if make is mnist else NORMAL))
    loader = native_loader(dataset, batch_size=9, native="verify", seed=1)
    images = torch.cat([batch[0] for batch in loader])
    assert loader.stats().decode.verified_samples == 97
    whole = torch.cat([batch[0] for batch in native_loader(plain, batch_size=9)])
    n_same = sum(torch.equal(one, other) for one, other in zip(images, whole))
    assert 25 < n_same < 75
    image, target = loader.fetch(7, 0)
    assert torch.equal(image, images[7]) and target == int(dataset[7][1])
    assert loader.draws(7, 0)[0][0] == "RandomHorizontalFlip"
    crops = make(transforms.RandomResizedCrop(19), transforms.ToTensor())
    list(native_loader(crops, batch_size=9, native="verify", dtype=torch.bfloat16,
                       memory_format=torch.channels_last))


@pytest.mark.parametrize("make", (cifar, mnist, svhn))
def test_images_with_augmentations(make):
    steps = (transforms.RandomCrop(32, padding=4), transforms.RandomHorizontalFlip(),
             transforms.RandomRotation(15), *(GREY if make is mnist else NORMAL))
    loader = native_loader(make(*steps), batch_size=32, native="verify", seed=2)
    assert len(list(loader)) == 4 and loader.stats().decode.verified_samples == 97
    padded = make(transforms.Pad(3, fill=9), transforms.RandomVerticalFlip(), transforms.ToTensor())
    assert native_loader(padded, seed=2, native="verify").fetch(5, 0)[0].shape[1] in (34, 38)
    list(native_loader(padded, batch_size=50, native="verify"))


def test_other_dataset_classes_and_refused_changes():
    assert_as_torch(cifar(kind=CIFAR100), batch_size=7)
    assert_as_torch(mnist(kind=FashionMNIST), batch_size=7)

    def why(dataset):
        loader = feedmill.DataLoader(dataset)
        assert type(loader._get_iterator()).__name__ != "NativeDataLoaderIter"
        return loader.stats().reasons[0]

    class Mine(CIFAR10):
        pass

    assert "Mine" in why(cifar(kind=Mine))
    dataset = cifar()
    dataset.target_transform = int
    assert "target_transform" in why(dataset)
    dataset = cifar()
    dataset.targets[3] = 4.0
    assert "targets" in why(dataset)
    dataset = cifar()
    dataset.data = dataset.data[:, ::-1]
    assert "strides" in why(dataset)
    dataset = mnist(transforms.ToTensor(), transforms.Normalize((0.1, 0.2, 0.3), (1.0, 1.0, 1.0)))
    assert "mean has shape" in why(dataset)
    dataset = cifar(transforms.CenterCrop(50), transforms.Resize(20), transforms.ToTensor())
    assert "pads" in why(dataset)


def test_changed_data_is_seen_by_the_next_epoch():
    dataset = cifar()
    loader = native_loader(dataset, batch_size=97)
    (first,) = loader
    dataset.targets[0] += 1
    dataset.data = np.ascontiguousarray(255 - dataset.data)
    (second,) = loader
    assert_same_batch(second, next(iter(DataLoader(dataset, 97))))
    assert not torch.equal(first[0], second[0]) and first[1][0] + 1 == second[1][0]


def test_a_collate_fn_and_samples_without_batching():
    dataset = cifar()

    def collate(samples):
        return [image.sum() for image, _ in samples], [target for _, target in samples]

    for options in ({"collate_fn": collate, "batch_size": 8}, {"batch_size": None}):
        wanted = list(DataLoader(dataset, **options))
        for got, want in zip(native_loader(dataset, **options), wanted, strict=True):
            assert got[1] == want[1] and type(got[1]) is type(want[1])
            one, other = (got[0], want[0]) if options["batch_size"] is None else (
                torch.stack(got[0]), torch.stack(want[0])
            )
            assert torch.equal(one, other)


def test_a_seed_resumes_an_epoch():
    dataset = cifar(transforms.RandomHorizontalFlip(), transforms.ToTensor())
    options = {"batch_size": 8, "seed": 4}
    whole = list(native_loader(dataset, **options))
    loader = native_loader(dataset, sampler=ListSampler(range(40, 97)), **options)
    for got, want in zip(loader, whole[5:], strict=True):
        assert_same_batch(got, want)


def test_copies_of_a_loader():
    loader = native_loader(TensorDataset(torch.arange(20)), batch_size=4)
    assert len(list(loader)) == len(list(copy.copy(loader))) == 5
    assert len(list(pickle.loads(pickle.dumps(loader)))) == 5


def test_augmentations():
    jitter = transforms.ColorJitter(0.4, 0.4, 0.4, 0.1)
    recipes = [
        (transforms.RandomCrop(32, padding=4), transforms.RandomHorizontalFlip(),
         transforms.RandomRotation(15)),
        (transforms.RandomHorizontalFlip(), jitter, transforms.RandAugment()),
        (transforms.Resize(20), transforms.RandomCrop(18, padding=2, padding_mode="edge"), jitter),
        (transforms.RandomResizedCrop(24), transforms.TrivialAugmentWide()),
        (transforms.RandomRotation(30), transforms.RandomResizedCrop(20), jitter),
        (transforms.RandomCrop(32, padding=4),),
    ]
    for recipe in recipes:
        tail = (transforms.ToTensor(), transforms.Normalize((0.5,), (0.25,)),
                transforms.RandomErasing())
        for dataset in (cifar(*recipe, *tail), mnist(*recipe, *tail)):
            loader = native_loader(dataset, batch_size=9, native="verify", seed=4)
            for _ in range(3):
                list(loader)
    grey = cifar(transforms.RandomRotation(9), transforms.Grayscale(), transforms.ToTensor())
    loader = native_loader(grey, batch_size=9, native="verify")
    assert next(iter(loader))[0].shape == (9, 1, 32, 32)
    dataset = cifar(transforms.RandomCrop(33), transforms.ToTensor())
    text = feedmill.DataLoader(dataset).explain()
    assert "RandomCrop is larger than the images" in text
