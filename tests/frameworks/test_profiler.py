"""torch.profiler, whose analysis needs the range that torch's DataLoader records around next()."""

import frameworks
import torch
from torch.utils.data import DataLoader as TorchDataLoader

PREFIX = "enumerate(DataLoader)#"


def ranges(loader):
    """The loader's ranges in a profile of one epoch: {name: count}."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        for images, _ in loader:
            images.sum()
    return {one.key: one.count for one in profile.key_averages() if one.key.startswith(PREFIX)}


def test_each_step_has_torchs_range(eval_set):
    for workers in (0, 2):
        loader = frameworks.train_loader(eval_set, num_workers=workers)
        counts = ranges(loader)
        frameworks.assert_native(loader, 1)
        # One range for each batch and one for the request that finds the end, as with torch.
        (name,), (count,) = counts.keys(), counts.values()
        assert name.endswith(".__next__")
        assert [count] == list(ranges(TorchDataLoader(eval_set, 4)).values()) == [len(loader) + 1]


def test_the_range_stays_on_torchs_path(eval_set):
    loader = frameworks.train_loader(eval_set, native="off")
    assert sum(ranges(loader).values()) == len(loader) + 1


def test_the_schedule_of_a_training_loop(eval_set):
    loader = frameworks.train_loader(eval_set)
    seen = []
    schedule = torch.profiler.schedule(wait=1, warmup=1, active=3, repeat=1)
    with torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU],
        schedule=schedule,
        on_trace_ready=lambda profile: seen.extend(profile.events()),
    ) as profile:
        for images, _ in loader:
            images.sum()
            profile.step()
    assert sum(event.name.startswith(PREFIX) for event in seen) == 3
    frameworks.assert_native(loader, 1)
