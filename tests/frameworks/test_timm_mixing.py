"""timm's FastCollateMixup with images mixed natively, compared with timm's own."""

import random

import feedmill
import frameworks
import numpy as np
import pytest
import torch
from feedmill.collate.mixing import with_native_mixing

frameworks.need("timm")

import timm.data  # noqa: E402
from timm.data import mixup  # noqa: E402
from timm.data.mixup import FastCollateMixup  # noqa: E402


def samples_of(seed, n, size=(17, 18)):
    generator = torch.Generator().manual_seed(seed)
    return [
        (torch.randint(0, 256, (3, *size), dtype=torch.uint8, generator=generator), i % 10)
        for i in range(n)
    ]


def seeded(seed, function, samples):
    """(the result, the samples then, the next number of NumPy's generator)"""
    np.random.seed(seed)
    result = function(samples)
    return result, samples, np.random.rand()


def check_same(one, other):
    for mine, theirs in zip(one[0], other[0], strict=True):
        assert mine.dtype == theirs.dtype and mine.stride() == theirs.stride()
        assert torch.equal(mine, theirs)
    assert all(torch.equal(a, b) for (a, _), (b, _) in zip(one[1], other[1], strict=True))
    assert one[2] == other[2]


@pytest.mark.parametrize("mode", ["batch", "elem", "pair", "half"])
def test_mixed_batches_are_timms(mode):
    choices = random.Random(3)
    n_mixed = 0
    for seed in range(100):
        collate = FastCollateMixup(
            mixup_alpha=choices.choice((0.2, 1.0)), cutmix_alpha=choices.choice((0.0, 1.0)),
            cutmix_minmax=choices.choice((None, (0.2, 0.8))), prob=choices.choice((0.5, 1.0)),
            correct_lam=choices.random() < 0.5, mode=mode, num_classes=10,
        )
        collate.mixup_enabled = choices.random() < 0.9
        n = choices.choice((2, 4, 6))
        wanted = seeded(seed, collate, samples_of(seed, n))
        check_same(seeded(seed, with_native_mixing(collate), samples_of(seed, n)), wanted)
        n_mixed += not torch.equal(wanted[0][0][0], wanted[1][0][0])
    assert n_mixed > 30


def test_an_attribute_counts_when_it_is_changed():
    collate = FastCollateMixup(mixup_alpha=1.0, num_classes=10)
    mixing = with_native_mixing(collate)
    images = torch.stack([image for image, _ in samples_of(1, 4)])
    assert not torch.equal(mixing(samples_of(1, 4))[0], images)
    collate.mixup_enabled = False
    assert torch.equal(mixing(samples_of(1, 4))[0], images)


def test_other_samples_are_timms():
    """Of several sizes, of float, not contiguous, an odd number, none."""
    collate = FastCollateMixup(mixup_alpha=1.0, num_classes=10)
    [one, two] = samples_of(1, 2)
    for samples in (
        [one, samples_of(1, 1, (16, 18))[0]], [(one[0].float(), 1), two],
        [(one[0].transpose(1, 2), 1), (two[0].transpose(1, 2), 2)], [one], [],
    ):
        found = []
        for function in (collate, with_native_mixing(collate)):
            np.random.seed(1)
            try:
                found.append([part.tolist() for part in function(samples)])
            except Exception as error:
                found.append(repr(error))
        assert found[0] == found[1]


class Subclass(FastCollateMixup):
    pass


def test_what_is_not_timms_is_called_as_it_is(monkeypatch):
    for collate in (Subclass(num_classes=10), timm.data.loader.fast_collate):
        assert with_native_mixing(collate) is collate
    collate = FastCollateMixup(num_classes=10)
    mixing = with_native_mixing(collate)
    assert mixing is not collate

    def replaced(self, output, batch):
        return 1.0

    collate._mix_batch_collate = lambda output, batch: 1.0
    assert not mixing(samples_of(1, 2))[0].any()
    del collate._mix_batch_collate
    assert mixing(samples_of(1, 2))[0].any()
    monkeypatch.setattr(FastCollateMixup, "_mix_batch_collate", replaced)
    assert not mixing(samples_of(1, 2))[0].any()
    assert with_native_mixing(collate) is collate


def test_a_replaced_function_of_timms_counts(monkeypatch):
    monkeypatch.setattr(mixup, "cutmix_bbox_and_lam", lambda shape, lam, **_: ((0, 9, 0, 9), 0.25))
    collate = FastCollateMixup(mixup_alpha=0.0, cutmix_alpha=1.0, num_classes=10)
    wanted = seeded(1, collate, samples_of(1, 4))
    check_same(seeded(1, with_native_mixing(collate), samples_of(1, 4)), wanted)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_batches_of_a_loader_are_torchs(images, num_workers):
    dataset = timm.data.create_dataset("", str(images))
    collate = FastCollateMixup(mixup_alpha=0.2, cutmix_alpha=1.0, num_classes=3)
    inner = timm.data.create_loader(
        dataset, (3, 24, 24), 4, is_training=True, num_workers=0, device=torch.device("cpu"),
        auto_augment="rand-m5-mstd0.5-inc1", re_prob=0.25, persistent_workers=False,
    ).loader
    found = []
    for kind, options in ((torch.utils.data.DataLoader, {}), (feedmill.DataLoader, {"native": "require"})):
        torch.manual_seed(5)
        random.seed(5)
        np.random.seed(5)
        loader = kind(
            inner.dataset, batch_size=4, shuffle=True, drop_last=True, collate_fn=collate,
            num_workers=num_workers, **options,
        )
        found.append(([*loader], torch.rand(1), random.random(), np.random.rand()))
    for mine, theirs in zip(*(one[0] for one in found), strict=True):
        assert torch.equal(mine[0], theirs[0]) and torch.equal(mine[1], theirs[1])
    assert found[0][1:] == found[1][1:]
