"""A collate_fn that is called as in a worker process finds what it would find there: one thread, and
torch's default_collate, which does not use shared memory then."""

import multiprocessing
import random

import feedmill
import numpy as np
import pytest
import torch
from feedmill import _internals
from feedmill._internals import make_worker_info, set_worker_info
from feedmill.collate.unshared import unshared
from helpers import compose
from torch.utils.data import default_collate, get_worker_info
from torch.utils.data._utils.collate import default_collate_fn_map
from torchvision import transforms as T
from torchvision import tv_tensors
from torchvision.datasets import ImageFolder
from torchvision.transforms import v2

CROPS = {
    "float": compose(T.RandomResizedCrop(20), T.ToTensor()),
    "strided": compose(T.RandomResizedCrop(20), T.PILToTensor()),
    "images": v2.Compose([v2.RandomResizedCrop(20), v2.ToImage()]),
}


def mixed_up(samples):
    images, targets = default_collate(samples)
    info = get_worker_info()
    mix = v2.RandomChoice([v2.MixUp(num_classes=40), v2.CutMix(num_classes=40)])
    return *mix(images.float(), targets), images, info.id, info.seed


def collated(samples):
    return default_collate(samples)


@pytest.fixture
def as_worker():
    before = set_worker_info(make_worker_info(id=0, num_workers=1, seed=0, dataset=None))
    yield
    set_worker_info(before)


def batches(kind, dataset, collate, **options):
    torch.manual_seed(3)
    random.seed(4)
    np.random.seed(5)
    return list(kind(dataset, batch_size=6, shuffle=True, num_workers=2, collate_fn=collate,
                     **options))


def assert_equal(one, other):
    assert type(one) is type(other)
    if isinstance(one, torch.Tensor):
        assert one.dtype is other.dtype and one.shape == other.shape
        assert one.stride() == other.stride() and torch.equal(one, other)
        assert one.untyped_storage().nbytes() == other.untyped_storage().nbytes()
    elif isinstance(one, (list, tuple)):
        assert len(one) == len(other)
        for mine, theirs in zip(one, other):
            assert_equal(mine, theirs)
    else:
        assert one == other


@pytest.mark.parametrize("collate", [mixed_up, collated])
@pytest.mark.parametrize("crop", CROPS)
def test_batches_equal_torchs(small_images, crop, collate):
    dataset = ImageFolder(str(small_images), CROPS[crop])
    mine = batches(feedmill.DataLoader, dataset, collate, native="require")
    theirs = batches(torch.utils.data.DataLoader, dataset, collate)
    assert_equal(mine, theirs)
    assert not mine[0][0].is_shared() and theirs[0][0].is_shared()
    assert default_collate_fn_map[torch.Tensor] is _internals.collate_tensor


def values(kind):
    plain = [torch.arange(6.0).view(2, 3) + i for i in range(3)]
    return {
        "plain": plain,
        "transposed": [one.t() for one in plain],
        "images": [tv_tensors.Image(one[None].byte()) for one in plain],
        "masks": [tv_tensors.Mask(one) for one in plain],
        "parameters": [torch.nn.Parameter(one) for one in plain],
        "expanded": [one.expand(4, 2, 3) for one in plain],
        "empty": [torch.empty(0, 3)] * 2,
        "scalars": [torch.tensor(i) for i in range(3)],
        "sizes": [plain[0], plain[1].t()],
        "dtypes": [plain[0], plain[1].int()],
        "gradients": [one.clone().requires_grad_() for one in plain],
        "sparse": [one.to_sparse() for one in plain],
        "arrays": [one.numpy() for one in plain],
        "dicts": [{"image": one, "label": i} for i, one in enumerate(plain)],
    }[kind]


KINDS = ["plain", "transposed", "images", "masks", "parameters", "expanded", "empty", "scalars",
         "sizes", "dtypes", "gradients", "sparse", "arrays", "dicts"]


def result_of(samples):
    try:
        return default_collate(samples), None
    except Exception as error:
        return None, (type(error), str(error))


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_tensor(as_worker, kind):
    wanted = result_of(values(kind))
    with unshared():
        found = result_of(values(kind))
    assert found[1] == wanted[1]
    if type(found[0]) is dict:
        found, wanted = ([*one[0].values()] for one in (found, wanted))
    assert_equal(found, wanted)


def test_what_the_user_has_changed_is_used(as_worker, monkeypatch):
    def doubled(batch, *, collate_fn_map=None):
        return 2 * torch.stack(batch)

    monkeypatch.setitem(default_collate_fn_map, torch.Tensor, doubled)
    with unshared():
        assert default_collate([torch.ones(2)] * 2).sum() == 8
    assert default_collate_fn_map[torch.Tensor] is doubled


def test_what_the_function_changes_is_kept(as_worker, monkeypatch):
    monkeypatch.setitem(default_collate_fn_map, torch.Tensor, _internals.collate_tensor)
    with unshared():
        inner = default_collate_fn_map[torch.Tensor]
        wrapped = lambda batch, **options: inner(batch, **options) + 1
        default_collate_fn_map[torch.Tensor] = wrapped
    assert default_collate_fn_map[torch.Tensor] is wrapped
    assert torch.equal(default_collate([torch.zeros(2)] * 2), torch.ones(2, 2))


def test_errors_leave_torchs_function(as_worker):
    with pytest.raises(KeyError), unshared():
        raise KeyError
    assert default_collate_fn_map[torch.Tensor] is _internals.collate_tensor


def send_whether_shared(connection):
    connection.send(default_collate([torch.ones(2)] * 2).is_shared())


def test_a_worker_that_is_forked_meanwhile_shares(as_worker):
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe()
    with unshared():
        assert not default_collate([torch.ones(2)] * 2).is_shared()
        process = context.Process(target=send_whether_shared, args=(theirs,))
        process.start()
    assert ours.recv()
    process.join()


def test_torchs_function_counts_as_unchanged_meanwhile():
    with unshared():
        assert _internals.is_collate_untouched()
        assert _internals.why_collate_was_changed(torch.Tensor) == ""


def counted(samples):
    """How many threads torch computes with; sets another number for the worker's next batch."""
    n_threads = torch.get_num_threads()
    torch.set_num_threads(n_threads + 1)
    return len(samples), n_threads, get_worker_info().id


def failing(samples):
    raise KeyError


def test_threads_are_those_of_a_worker(small_images):
    dataset = ImageFolder(str(small_images), CROPS["float"])
    before = torch.get_num_threads()
    mine = batches(feedmill.DataLoader, dataset, counted, native="require")
    assert mine == batches(torch.utils.data.DataLoader, dataset, counted)
    assert [n_threads for _, n_threads, _ in mine[:4]] == [1, 1, 2, 2]
    with pytest.raises(KeyError):
        batches(feedmill.DataLoader, dataset, failing, native="require")
    assert torch.get_num_threads() == before
