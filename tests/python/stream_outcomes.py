"""Compares what DataLoaders yield of IterableDatasets: with feedmill and with torch's DataLoader."""

import random

import feedmill
import helpers
import torch
from torch.utils.data import DataLoader


def outcomes(kind, dataset, stops=(0,), seed=3, before=None, behind=None, **options):
    """What epochs yield: batches, and the types of errors; and the generators' next numbers.

    Args:
        stops: of each epoch, after how many batches it is left; 0: never.
        before, behind: called before and behind each epoch with the dataset and the epoch's number;
            what ``behind`` returns is yielded, too.
    """
    torch.manual_seed(seed)
    random.seed(seed)
    if kind is feedmill.DataLoader:
        options = {"native": "require", **options}
    loader = kind(dataset, **options)
    found = []
    for number, stop in enumerate(stops):
        if before is not None:
            before(dataset, number)
        iterator = iter(loader)
        while not stop or len(found) % 100 < stop:
            try:
                found.append(next(iterator))
            except StopIteration:
                break
            except Exception as error:
                found.append(type(error).__name__)
        if behind is not None:
            found.append(behind(dataset, number))
        found += [None] * (100 - len(found) % 100)
    return [*found, torch.rand(1), random.random()]


def check(make, stops=(0,), **options):
    """Compares epochs with torch's. Returns them."""
    got = outcomes(feedmill.DataLoader, make(), stops, **options)
    wanted = outcomes(DataLoader, make(), stops, **options)
    assert len(got) == len(wanted)
    for one, other in zip(got, wanted):
        assert helpers.equal_batches(one, other)
    assert any(type(one) in (list, tuple, dict) for one in got)
    return got
