"""A custom collate_fn on the native path: samples, generators and errors are as with torch."""

import functools
import io
import random
import sys
import threading
import types

import feedmill
import helpers
import numpy as np
import pytest
import torch
from helpers import MEAN, STD, compose, native_loader
from torch.utils.data import default_collate, get_worker_info
from torchvision import transforms as T
from torchvision import tv_tensors
from torchvision.datasets import ImageFolder
from torchvision.transforms import v2

FIXED = compose(T.Resize((8, 9)), T.ToTensor(), T.Normalize(MEAN, STD))


def as_they_are(samples):
    return samples


def reversed_batch(samples):
    return default_collate(samples)[::-1]


def mixed_up(samples):
    """MixUp or CutMix, as in torchvision's reference scripts."""
    return v2.RandomChoice([v2.MixUp(num_classes=40), v2.CutMix(num_classes=40)])(
        *default_collate(samples)
    )


def noisy(samples):
    images, targets = default_collate(samples)
    numbers = torch.rand(2), torch.tensor(random.random()), torch.from_numpy(np.random.rand(2))
    info = get_worker_info()
    where = (info.id, info.num_workers, info.seed, len(info.dataset)) if info else None
    return images, targets, numbers, where


def dictionary(samples):
    return {"pixel_values": torch.stack([image for image, _ in samples]),
            "labels": torch.tensor([target for _, target in samples])}


def failing(samples):
    if samples[0][1] == 8:
        raise KeyError("eight")
    return samples[0][1]


def equal(one, other):
    if isinstance(one, torch.Tensor):
        return type(one) is type(other) and one.dtype == other.dtype and torch.equal(one, other)
    if isinstance(one, dict):
        return list(one) == list(other) and all(equal(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return (type(one) is type(other) and len(one) == len(other)
                and all(equal(a, b) for a, b in zip(one, other)))
    return one == other


def run(loader, n_epochs=2):
    torch.manual_seed(3)
    random.seed(4)
    np.random.seed(5)
    batches = [batch for _ in range(n_epochs) for batch in loader]
    states = torch.get_rng_state().numpy().tobytes(), random.getstate(), np.random.get_state()[1].tolist()
    return batches, states


@pytest.fixture
def images(small_images):
    return helpers.numbered_folder(small_images, FIXED)


def noisy_sample(sample):
    return *sample, torch.rand(1), random.random()


BATCHED = [as_they_are, reversed_batch, mixed_up, noisy, dictionary]
WORKERS = [{}, {"num_workers": 2}, {"num_workers": 2, "persistent_workers": True}]


@pytest.mark.parametrize("options", WORKERS, ids=["process", "workers", "persistent"])
@pytest.mark.parametrize("collate", [*BATCHED, noisy_sample])
def test_batches_and_generator_states_equal_torchs(images, collate, options):
    """Transforms draw nothing here, so a collate_fn draws the same numbers as with torch."""
    if collate is noisy_sample:
        options = {"batch_size": None, **options}
    options = {"batch_size": 7, "shuffle": True, "collate_fn": collate, **options}
    loader = native_loader(images, **options)
    mine, states = run(loader)
    theirs, torch_states = run(torch.utils.data.DataLoader(images, **options))
    assert len(mine) == len(theirs)
    for ours, other in zip(mine, theirs):
        assert equal(ours, other)
    assert states == torch_states
    assert get_worker_info() is None
    stats = loader.stats()
    assert stats.path == "native" and "in collate_fn" in loader.report()
    if loader.num_workers:
        assert stats.decode.collate_ahead_ns > 0 and stats.decode.collate_ns == 0
        assert "collate_fn is called ahead of the batch's turn" in loader.explain()
    else:
        assert stats.decode.collate_ns > 0 and stats.decode.collate_ahead_ns == 0
        assert "collate_fn is called on the thread that asks for the batch" in loader.explain()


@pytest.mark.parametrize("num_workers", [0, 2])
def test_errors_equal_torchs(images, num_workers):
    options = {"batch_size": 4, "collate_fn": failing, "num_workers": num_workers}
    transcripts = []
    for loader in (native_loader(images, **options),
                   torch.utils.data.DataLoader(images, **options)):
        iterator, seen = iter(loader), []
        for _ in range(11):
            try:
                seen.append(next(iterator))
            except Exception as error:
                lines = str(error).splitlines() or [""]
                seen.append((type(error), lines[0], lines[-1]))
        transcripts.append(seen)
    assert transcripts[0] == transcripts[1]


def test_one_sample_can_be_pickled_alone(images):
    """Samples share the batch's memory, but pickling one does not include the others."""
    batches = list(native_loader(images, batch_size=20, collate_fn=as_they_are))
    first = batches[0][0][0]
    before = [image.clone() for batch in batches for image, _ in batch]
    assert first._base is None and first.storage_offset() == 0 and first.is_contiguous()
    assert first.untyped_storage().nbytes() == first.numel() * 4
    file = io.BytesIO()
    torch.save(first, file)
    assert len(file.getvalue()) < 3000
    first.zero_()
    after = [image for batch in batches for image, _ in batch]
    assert not after[0].any()
    assert all(torch.equal(one, other) for one, other in zip(before[1:], after[1:]))


def test_samples_are_tv_tensors_if_the_transform_makes_them(small_images):
    dataset = ImageFolder(str(small_images), v2.Compose([v2.Resize((8, 8)), v2.ToImage()]))
    (batch,) = native_loader(dataset, batch_size=40, collate_fn=as_they_are)
    assert {type(image) for image, _ in batch} == {tv_tensors.Image}
    for (image, _), (wanted, _) in zip(batch, dataset):
        assert torch.equal(image.as_subclass(torch.Tensor), wanted.as_subclass(torch.Tensor))


def test_a_new_collate_fn_takes_effect_at_the_next_epoch(images):
    loader = native_loader(images, batch_size=8, collate_fn=as_they_are)
    assert isinstance(next(iter(loader)), list)
    loader.collate_fn = dictionary
    assert isinstance(next(iter(loader)), dict)
    loader.collate_fn = default_collate
    assert isinstance(next(iter(loader))[0], torch.Tensor)


def test_an_interrupt_in_a_collate_fn_loses_no_batch(images):
    calls = []

    def interrupted(samples):
        calls.append(1)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return [target for _, target in samples]

    iterator = iter(native_loader(images, batch_size=20, collate_fn=interrupted))
    assert next(iterator) == list(range(20))
    with pytest.raises(KeyboardInterrupt):
        next(iterator)
    assert next(iterator) == list(range(20, 40))
    assert list(iterator) == []


# ---- worker_init_fn ------------------------------------------------------------------------------


def set_up(_worker):
    raise AssertionError("natively there is no worker to set up")


def seed_worker(worker, num_workers=1, rank=0):
    """transformers' seed_worker()."""
    seed = (torch.initial_seed() + rank * num_workers + worker) % 2**32
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


@pytest.mark.parametrize("persistent", [False, True])
def test_a_seeding_worker_init_fn_is_called_for_the_collate_fn(images, monkeypatch, persistent):
    library = types.ModuleType("transformers.trainer_utils")
    library.seed_worker = seed_worker
    monkeypatch.setitem(sys.modules, library.__name__, library)
    options = {"batch_size": 7, "collate_fn": noisy, "num_workers": 2,
               "persistent_workers": persistent,
               "worker_init_fn": functools.partial(seed_worker, num_workers=2, rank=1)}
    mine, states = run(native_loader(images, **options))
    theirs, torch_states = run(torch.utils.data.DataLoader(images, **options))
    assert equal(mine, theirs) and states == torch_states
    assert "it only seeds" in native_loader(images, **options).explain()
    options["worker_init_fn"] = functools.partial(seed_worker, rank=abs)  # not known to only seed
    assert "torch's own path" in feedmill.DataLoader(images, **options).explain()


def test_concurrent_iterators_do_not_disturb_each_others_generators(images):
    random.seed(1)
    np.random.seed(2)
    torch.manual_seed(3)
    loaders = [native_loader(images, batch_size=2, num_workers=1, collate_fn=noisy)
               for _ in range(3)]
    iterators = [iter(loader) for loader in loaders]  # draws a base seed each
    before = torch.get_rng_state(), random.getstate()
    got = [[] for _ in loaders]
    threads = [threading.Thread(target=lambda one=one, out=out: out.extend(one))
               for one, out in zip(iterators, got)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert get_worker_info() is None
    assert torch.equal(torch.get_rng_state(), before[0]) and random.getstate() == before[1]
    assert [len(one) for one in got] == [20] * 3


def test_numpys_bit_generator_was_replaced(images):
    old = np.random.get_bit_generator()
    np.random.set_bit_generator(np.random.PCG64(1))
    try:
        assert len(list(native_loader(images, num_workers=1, collate_fn=list))) == 40
    finally:
        np.random.set_bit_generator(old)


def test_the_option_worker_init(images):
    words = 'pass worker_init="ignore"'
    loader = feedmill.DataLoader(images, num_workers=1, worker_init_fn=set_up)
    assert words in loader.explain()
    with pytest.raises(RuntimeError, match="worker_init_fn"):
        native_loader(images, num_workers=1, worker_init_fn=set_up)
    loader = native_loader(images, worker_init_fn=set_up)  # torch does not call it either
    assert len(list(loader)) == 40
    loader = native_loader(images, num_workers=2, batch_size=20, worker_init_fn=set_up,
                           worker_init="ignore")
    assert len(list(loader)) == 2
    assert "worker_init_fn is not called, as asked" in loader.explain()
    with pytest.raises(ValueError, match="worker_init is 'never'"):
        feedmill.DataLoader(images, worker_init="never")
