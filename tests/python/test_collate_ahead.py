"""A collate_fn that is called before its batch is requested: in which thread or process it runs,
the memory of its results, errors, and how threads and workers end."""

import argparse
import copy
import gc
import multiprocessing
import os
import threading
import time
from pathlib import Path

import helpers
import numpy as np
import pytest
import torch
from feedmill.collate.blocks import BlockPool
from feedmill.collate.proof import is_proved
from feedmill.iterators import native as module
from feedmill.iterators import receive
from helpers import MEAN, STD, compose, native_loader
from torch.utils.data import default_collate, get_worker_info
from torchvision import transforms as T
from torchvision.transforms import v2

FIXED = compose(T.Resize((8, 9)), T.ToTensor(), T.Normalize(MEAN, STD))
RESIZED = compose(T.Resize((8, 9)), T.PILToTensor())


def same(one, other):
    if isinstance(one, torch.Tensor):
        return one.dtype == other.dtype and torch.equal(one, other)
    return one == other


@pytest.fixture
def images(small_images):
    return helpers.numbered_folder(small_images, FIXED)


# ---- functions proved safe for a thread ----------------------------------------------------------

SIZE = 8
STATE = {"calls": 0}


def dictionary(samples):
    pixel_values = torch.stack([image for image, _ in samples])
    labels = torch.tensor([label for _, label in samples])
    return {"pixel_values": pixel_values, "labels": labels}


def float_batch(examples):
    images = torch.stack([example[0] for example in examples])
    images = images.to(memory_format=torch.contiguous_format).float()
    return images, torch.as_tensor([example[1] for example in examples], dtype=torch.long)


def of_helpers(samples):
    images, labels = default_collate(samples)
    return dictionary(list(zip(images, labels.tolist())))


def sorted_batch(samples):
    samples = sorted(samples, key=lambda sample: sample[1], reverse=True)
    if len(samples) > 3:
        return [image for image, _ in samples], None
    return {label: image.clone() for image, label in samples}


def by_closure(dtype):
    def collate(samples):
        return torch.stack([image.to(dtype) for image, _ in samples])

    return collate


PROVED = [dictionary, float_batch, of_helpers, sorted_batch, by_closure(torch.float16),
          default_collate, lambda samples: [label for _, label in samples]]


def draws(samples):
    return torch.rand(len(samples))


def draws_from_numpy(samples):
    return np.random.rand(len(samples))


def in_place(samples):
    images = torch.stack([image for image, _ in samples])
    return images.mul_(2)


def augmented_assignment(samples):
    images = torch.stack([image for image, _ in samples])
    images += 1
    return images


def item_assignment(samples):
    images = torch.stack([image for image, _ in samples])
    images[0] = 0
    return images


def reads_a_number(samples):
    return torch.stack([image for image, _ in samples])[:, :, :SIZE]


def counts(samples):
    STATE["calls"] += 1
    return len(samples)


def asks_for_the_worker(samples):
    return get_worker_info().id, len(samples)


def imports(samples):
    import random

    return random.random(), samples


def opens(samples):
    with open("/dev/null") as file:
        return file.read(), samples


def uses_torch_as_a_value(samples):
    module = torch
    return module.rand(2), samples


def calls_an_attribute(samples):
    return [image.normal_() for image, _ in samples]


def prints(samples):
    print(len(samples))
    return samples


class Collator:
    def __call__(self, samples):
        return default_collate(samples)


def held(samples, seen=[]):  # noqa: B006
    seen.append(len(samples))
    return samples


def with_a_helper_that_draws(samples):
    return draws(samples), samples


NOT_PROVED = [draws, draws_from_numpy, in_place, augmented_assignment, item_assignment,
              reads_a_number, counts, asks_for_the_worker, imports, opens, uses_torch_as_a_value,
              calls_an_attribute, prints, Collator(), held, with_a_helper_that_draws, list,
              by_closure({}), v2.MixUp(num_classes=4)]


def name_of(function):
    return getattr(function, "__name__", type(function).__name__)


@pytest.mark.parametrize("function", PROVED, ids=name_of)
def test_functions_proved_safe_for_a_thread(function):
    assert is_proved(function)


@pytest.mark.parametrize("function", NOT_PROVED, ids=name_of)
def test_functions_not_proved_safe(function):
    assert not is_proved(function)


# ---- functions that read what may be replaced, called on the calling thread ----------------------


def by_arguments(args):
    def collate(samples):
        pixel_values = torch.stack([image for image, _ in samples])
        labels = torch.tensor([label + args.add for _, label in samples])
        return {"pixel_values": pixel_values, "labels": labels}

    return collate


class Properties:
    @property
    def add(self):
        return 1


class Getting:
    def __getattr__(self, name):
        return 1


def in_place_if_jumped_to(args):
    def collate(samples):
        images = torch.stack([image for image, _ in samples])
        return (images if len(samples) else args).normal_()

    return collate


READING = [reads_a_number, by_arguments(argparse.Namespace(add=1))]
NOT_READING = [
    by_arguments(Properties()), by_arguments(Getting()), by_arguments(argparse.Namespace()),
    by_arguments(argparse.Namespace(add=torch.ones(()))), by_arguments(np),
    in_place_if_jumped_to(argparse.Namespace(normal_=1)), in_place, counts, draws,
]


@pytest.mark.parametrize("function", READING, ids=name_of)
def test_functions_proved_with_what_they_read(function):
    reads = []
    assert is_proved(function, reads) and reads and all(one.is_same() for one in reads)
    assert not is_proved(function)


@pytest.mark.parametrize("function", NOT_READING)
def test_functions_that_read_other_things_are_not_proved(function):
    assert not is_proved(function, [])


@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
def test_batches_of_the_calling_thread_need_no_copy(images, memory_format, monkeypatch):
    """Until what the function reads is replaced, as then nothing is known of it."""
    received = []

    def tensors_of(*given):
        received.append(made := receive_tensors(*given))
        return made

    receive_tensors = receive.tensors_of
    monkeypatch.setattr(receive, "tensors_of", tensors_of)
    args = argparse.Namespace(add=1)
    options = {"batch_size": 8, "collate_fn": by_arguments(args)}
    loader = native_loader(images, **options, num_workers=0, memory_format=memory_format)
    found = []
    for mine, theirs in zip(loader, torch.utils.data.DataLoader(images, **options), strict=True):
        found.append(mine["pixel_values"].data_ptr() == received.pop().data_ptr())
        assert torch.equal(mine["pixel_values"], theirs["pixel_values"])
        assert torch.equal(mine["labels"], theirs["labels"])
        if len(found) == 3:
            args.add = torch.ones((), dtype=torch.int64)
    assert found == [True, True, True, False, False]


# ---- where the function runs ---------------------------------------------------------------------


def where(_samples):
    return os.getpid(), threading.current_thread() is threading.main_thread()


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_function_not_proved_safe_runs_in_torchs_order_of_workers(images, num_workers):
    loader = native_loader(images, batch_size=8, collate_fn=where, num_workers=num_workers)
    pids = [pid for pid, is_main_thread in loader if is_main_thread]
    if num_workers == 0:
        assert set(pids) == {os.getpid()}
    else:
        assert os.getpid() not in pids and pids == [*pids[:2], *pids[:2], pids[0]]
        assert pids[0] != pids[1]


def test_a_function_proved_safe_needs_no_process_and_no_copy(images):
    loader = native_loader(images, batch_size=8, collate_fn=dictionary, num_workers=2)
    blocks = loader._feedmill.blocks
    wanted = torch.utils.data.DataLoader(images, 8, collate_fn=dictionary)
    before = set(multiprocessing.active_children())
    for mine, theirs in zip(loader, wanted, strict=True):
        assert set(multiprocessing.active_children()) <= before
        assert blocks.block_of(mine["pixel_values"])  # the batch is the native memory itself
        assert torch.equal(mine["pixel_values"], theirs["pixel_values"])
        assert torch.equal(mine["labels"], theirs["labels"])


def test_batches_are_collated_before_they_are_requested(images):
    """As many batches as torch prefetches are finished without a request."""
    loader = native_loader(images, batch_size=4, collate_fn=dictionary, num_workers=2)
    iterator = iter(loader)
    for batch in list(iterator._waiting):
        assert batch.done.wait(600)
        assert batch.data is not None and not batch.parts
    assert len(list(iterator)) == 10


def sample_and_stack(samples):
    return samples[0][0], torch.stack([image for image, _ in samples])


def two_stacks(samples):
    tensors = [image for image, _ in samples]
    return torch.stack(tensors), torch.stack(tensors)


@pytest.mark.parametrize("num_workers", [0, 1])
@pytest.mark.parametrize("function", [sample_and_stack, two_stacks])
def test_parts_of_a_result_do_not_share_memory(images, function, num_workers):
    assert is_proved(function)
    loader = native_loader(images, batch_size=5, collate_fn=function, num_workers=num_workers)
    wanted = list(torch.utils.data.DataLoader(images, 5, collate_fn=function))
    for (one, other), theirs in zip(loader, wanted, strict=True):
        assert torch.equal(one, theirs[0]) and torch.equal(other, theirs[1])
        one.zero_()
        assert torch.equal(other, theirs[1])


# ---- the memory of samples and results -----------------------------------------------------------

kept = []


def keeping(samples):
    """Keeps samples of earlier batches and returns one of them, as a memory bank does."""
    kept.append(samples[0][0])
    return kept[-min(len(kept), 3)].clone(), samples[-1][0], len(samples)


@pytest.mark.parametrize("persistent", [False, True])
def test_samples_kept_by_a_function_do_not_change(images, persistent):
    kept.clear()
    options = {"batch_size": 2, "collate_fn": keeping, "num_workers": 2,
               "persistent_workers": persistent}
    loader = native_loader(images, **options)
    theirs = torch.utils.data.DataLoader(images, **options)
    for _ in range(3):
        mine = list(loader)
        for ours, other in zip(mine, theirs, strict=True):
            assert all(map(same, ours, other))


def test_batches_that_are_held_do_not_change(images):
    """The memory of held batches is not reused; that of dropped batches is."""
    loader = native_loader(images, batch_size=4, collate_fn=as_they_are, num_workers=2)
    wanted = [image for image, _ in images]
    held = [image for _ in range(2) for batch in loader for image, _ in batch]
    for number, image in enumerate(held):
        assert torch.equal(image, wanted[number % len(wanted)])
    n_blocks = loader._feedmill.shared_blocks.n_blocks
    del held, image
    for _ in range(5):
        for batch in loader:
            del batch
    gc.collect()
    assert loader._feedmill.shared_blocks.n_blocks <= n_blocks + 2


def as_they_are(samples):
    return [sample for sample in samples if SIZE]  # reads a global variable: not proved safe


def test_blocks_are_reused():
    pool = BlockPool(shared=True)
    address, owner = pool.allocate(8192)
    owner.fill_(7)
    view = owner[10:20].view(torch.int16)
    del owner
    other, other_owner = pool.allocate(8192)
    assert other != address and pool.n_blocks == 2  # a view still exists
    assert view.tolist() == [0x0707] * 5
    del view
    again, again_owner = pool.allocate(8192)
    assert again == address and pool.n_blocks == 2
    del again_owner, other_owner
    assert pool.allocate(4096) and pool.n_blocks == 3


# ---- errors, and the end of threads and workers --------------------------------------------------


def raising(samples):
    if any(label == 9 for _, label in samples):
        raise LookupError("nine")
    return SIZE and [label for _, label in samples]


def raising_in_a_thread(samples):
    return {label: [][label - 9] for _, label in samples if label == 9} or [
        label for _, label in samples]


@pytest.mark.parametrize("function", [raising, raising_in_a_thread])
def test_an_error_is_raised_when_its_batch_is_requested(images, function):
    iterator = iter(native_loader(images, batch_size=4, collate_fn=function, num_workers=2))
    assert next(iterator) == [0, 1, 2, 3]
    assert next(iterator) == [4, 5, 6, 7]
    with pytest.raises(LookupError, match="in DataLoader worker process 0"):
        next(iterator)
    assert list(iterator)[-1] == [36, 37, 38, 39]


@pytest.mark.parametrize("function", [dictionary, keeping])
def test_a_sample_that_pillow_cannot_load(small_images, tmp_path, function):
    kept.clear()
    for i in range(8):
        helpers.save_jpeg(tmp_path / "a" / f"{i}.jpg", 12, 12, seed=i)
    (tmp_path / "a" / "5.jpg").write_bytes(b"no image")
    dataset = helpers.numbered_folder(tmp_path, RESIZED)
    loader = native_loader(dataset, batch_size=2, collate_fn=function, num_workers=2)
    iterator = iter(loader)
    assert len([next(iterator), next(iterator)]) == 2
    with pytest.raises(Exception, match=r"cannot identify image file(.|\n)*5\.jpg"):
        next(iterator)
    assert len(list(iterator)) == 1
    assert loader.stats().errors == 1


@pytest.mark.parametrize("function", [dictionary, as_they_are])
@pytest.mark.parametrize("policy, n", [("zero", 8), ("replace", 8), ("skip", 7)])
def test_on_error_with_a_collate_fn(tmp_path, function, policy, n):
    for i in range(8):
        helpers.save_jpeg(tmp_path / "a" / f"{i}.jpg", 12, 12, seed=i)
    (tmp_path / "a" / "5.jpg").write_bytes(b"no image")
    dataset = helpers.numbered_folder(tmp_path, RESIZED)
    loader = native_loader(dataset, batch_size=4, collate_fn=function, num_workers=1,
                           on_error=policy)
    counts = [len(batch["labels"]) if isinstance(batch, dict) else len(batch) for batch in loader]
    assert sum(counts) == n
    assert [one.outcome[:4] for one in loader.stats().sample_errors] == [policy[:4]]


@pytest.mark.parametrize("function", [dictionary, as_they_are])
def test_a_break_ends_threads_and_workers(images, function):
    before = set(multiprocessing.active_children())
    loader = native_loader(images, batch_size=2, collate_fn=function, num_workers=2)
    for n in range(4):
        for number, _ in enumerate(loader):
            if number == n:
                break
    gc.collect()
    assert set(multiprocessing.active_children()) <= before
    names = [thread.name for thread in threading.enumerate()]
    assert "feedmill-collate" not in names


@pytest.mark.slow
@pytest.mark.parametrize("context", ["spawn", "forkserver"])
def test_start_methods_other_than_fork(images, context, tmp_path, monkeypatch):
    # Workers import torchvision themselves, if need be with the operators that conftest defines.
    (tmp_path / "sitecustomize.py").write_text("import torchvision_cpu")
    support = Path(__file__).parent.parent / "support"
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(map(str, (tmp_path, support))))
    options = {"batch_size": 7, "shuffle": True, "num_workers": 2, "collate_fn": v2_mix,
               "multiprocessing_context": context}
    loader = native_loader(images, **options)
    note = "multiprocessing_context is used only for collate_fn's worker processes"
    assert note in loader.explain()
    torch.manual_seed(5)
    mine = list(loader)
    torch.manual_seed(5)
    theirs = list(torch.utils.data.DataLoader(images, **options))
    assert all(same(a, b) for one, two in zip(mine, theirs, strict=True)
               for a, b in zip(one, two, strict=True))


@pytest.mark.parametrize("collate", [{}, {"collate_fn": dictionary}])
def test_a_start_method_without_worker_processes(images, collate):
    loader = native_loader(images, num_workers=1, multiprocessing_context="spawn", **collate)
    assert "multiprocessing_context is not used" in loader.explain()
    assert " 1 decode thread (" in loader.explain()


def v2_mix(samples):
    return v2.MixUp(num_classes=40)(*default_collate(samples))


def dying(samples):
    if samples[0][1] == 8:
        os._exit(3)
    return SIZE


def test_a_worker_that_dies(images):
    loader = native_loader(images, batch_size=4, collate_fn=dying, num_workers=2)
    with pytest.raises(RuntimeError, match="exited unexpectedly"):
        list(loader)
    loader.collate_fn = as_they_are
    assert len(list(loader)) == 10


def test_targets_that_cannot_be_pickled(images):
    images.samples[4] = (images.samples[4][0], lambda: None)
    images.imgs = images.samples
    loader = native_loader(images, batch_size=4, collate_fn=as_they_are, num_workers=1)
    iterator = iter(loader)
    next(iterator)
    with pytest.raises(Exception, match="native='off' makes the samples there"):
        next(iterator)
    assert len(list(iterator)) == 8


def test_waits_for_the_function_are_attributed_to_python(images, tmp_path, monkeypatch):
    """The causes of a wait add up to it; the time after the native part counts as Python's."""
    asked, wait = tmp_path / "asked", module.waiting

    def held(samples):
        """Returns only after the consumer has begun to wait for it."""
        while not asked.exists():
            time.sleep(0.001)
        return samples

    def announced(call, *arguments):
        asked.touch()
        return wait(call, *arguments)

    monkeypatch.setattr(module, "waiting", announced)
    loader = native_loader(images, batch_size=4, collate_fn=held, num_workers=1)
    batches = list(loader)
    stats = loader.stats()
    assert len(batches) == len(stats.steps) == stats.batches == 10 and stats.samples == 40
    assert stats.waits.python_ns > 0 and stats.decode.collate_ahead_ns > 0


class Batches:
    """A batch sampler whose batches change."""

    def __iter__(self):
        return iter(self.batches)


class Failing:
    def __iter__(self):
        raise KeyError("no batches")
        yield


@pytest.mark.parametrize("n_workers", [1, 2])
def test_epochs_without_batches_before_others(images, n_workers):
    """Workers wait for the first batches of an epoch that never come."""
    sampler = Batches()
    loader = native_loader(
        images, batch_sampler=sampler, collate_fn=Remembers(), num_workers=n_workers,
        persistent_workers=True,
    )
    for sampler.batches in ([], [[0, 1], [2]], [], Failing(), [[3], [4], [5, 6]]):
        if isinstance(sampler.batches, Failing):
            with pytest.raises(KeyError):
                list(loader)
        else:
            assert [len(one) for one in loader] == list(map(len, sampler.batches))


def test_a_timeout_that_was_set_to_less_than_none(images):
    loader = native_loader(images, batch_size=20, collate_fn=Remembers(), num_workers=1)
    loader.timeout = -1
    assert len(list(loader)) == 2


class Remembers:
    """A function that must be called in a worker process."""

    def __init__(self):
        self.n = 0

    def __call__(self, samples):
        self.n += 1
        return samples


def test_a_copy_of_a_loader_shares_persistent_workers(images):
    """As in torch, the copy begins another epoch of the same iterator."""
    loader = native_loader(
        images, batch_size=3, collate_fn=list, num_workers=1, persistent_workers=True
    )
    wanted = [[target for _, target in batch] for batch in loader]
    iter(loader)
    copied = copy.copy(loader)
    assert [[target for _, target in batch] for batch in copied] == wanted
    assert copied._iterator is loader._iterator
