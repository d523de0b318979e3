"""Decides for rng="torch" whether the native path can draw the random numbers of torch's
DataLoader."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

from feedmill.iterators.collating import may_draw
from feedmill.iterators.global_generators import drawing_from
from feedmill.iterators.pillow_fallback import transformed
from feedmill.iterators.torch_pixels import with_pixels
from feedmill.iterators.verify import image_of, is_same
from feedmill.planner.drawn_lookups import looking_up_with
from feedmill.planner.formats import as_planned
from feedmill.planner.plan import TENSOR, Plan
from feedmill.planner.random_states import States, seeded_states, streams_of
from feedmill.planner.samples import Item, Source, size_of
from feedmill.planner.steps import Step
from feedmill.planner.torchs_draws import draws_in_vain, reasons_against_steps
from feedmill.remote.sources import is_remote

# How many samples of the dataset a trial makes, and how many it tries to make, as some may be
# damaged.
_N_WANTED = 6
_N_TRIED = 40
_N_REPEATS = 3  # of a sample that differs
_SEED = 0x5EED


def reasons_against(loader: Any, source: Source) -> tuple[str, ...]:
    """Why the native path can't make the batches of torch's own DataLoader with rng="torch", random
    numbers included; empty: it can."""
    if not isinstance(source.plan, Plan) or source.copies:
        return ()  # nothing is transformed
    is_random = source.plan.is_random
    if not is_random:
        # What is drawn in vain, such as by a flip with p=0, only matters to a collate_fn that draws
        # and, without workers, to the script.
        is_seen = loader.num_workers == 0 or may_draw(loader, source)
        if not is_seen or not draws_in_vain(_steps_of(source)):
            return ()
    reasons: list[str] = []
    if is_random:
        reasons = _of_workers(loader) + reasons_against_steps(source.plan, _steps_of(source))
    if not reasons and (why := _of_trial(loader, source)):
        reasons = [why]
    if not reasons:
        return ()
    if loader._feedmill_options().rng == "torch":
        return tuple(f"rng='torch': {one}" for one in reasons)
    return (
        *(f"random numbers as torch draws them: {one}" for one in reasons),
        "with seed= or rng='feedmill' native batches have feedmill's own random numbers",
    )


def _of_workers(loader: Any) -> list[str]:
    reasons: list[str] = []
    if loader.num_workers == 0:  # the process's own generators
        return reasons
    if loader.num_workers > 1 and not getattr(loader, "in_order", True):
        reasons.append("with in_order=False which worker makes a batch depends on timing")
    if loader.worker_init_fn is not None and loader._feedmill_options().worker_init == "ignore":
        reasons.append("with worker_init='ignore' worker_init_fn may seed the generators")
    return reasons


def _steps_of(source: Source) -> list[Step]:
    """The steps of all views of all base datasets."""
    return [
        step for base in source.base_datasets for steps in (base.steps, *base.views)
        for step in steps
    ]


# ---- a trial -------------------------------------------------------------------------------------


def _of_trial(loader: Any, source: Source) -> str:
    """Makes some samples by the dataset itself, from known states of the generators. Returns in
    what these differ from what the native code draws; "" if in nothing, or no sample can be made.
    """
    state = loader._feedmill
    tried = state.tried_source
    if tried is not None and tried[0].is_like(source):
        return str(tried[1])
    found: list[str] = []
    engines = state.engine_pool
    with engines.diagnostic(source.native_plan, source.n_samples, source.arrays) as handle:
        for number in source.trial_numbers(_N_TRIED):
            try:
                tried = _try(handle, source, number)
                for _ in range(_N_REPEATS):
                    # Another thread may have drawn meanwhile.
                    if any(tried):
                        tried = _try(handle, source, number)
            except _Unreachable:
                return ""  # the error is raised at its batch; the next epoch tries again
            found += tried
            if any(found) or len(found) >= _N_WANTED:
                break
    why = max(found) if found else "no sample could be made to try what the transform draws"
    if source.n_samples:
        state.tried_source = source, why
    return why


class _Unreachable(Exception):
    """A server does not answer, and would not for other samples either."""


def _try(handle: Any, source: Source, number: int) -> list[str]:
    """Makes a sample by the dataset, and returns in what it differs, "" if in nothing. Returns an
    empty list if the sample can't be made, whose error is raised at its turn."""
    before = seeded_states(_SEED + number)
    generator = random.Random()
    generator.setstate(before[1])
    try:
        with looking_up_with(generator):
            item = source.item(number)
    except Exception:
        return []
    try:
        image = item.load()
    except (FileNotFoundError, PermissionError):
        return []
    except OSError as error:
        if is_remote(item.path):
            raise _Unreachable from error
        return []
    except Exception:
        return []
    try:
        with drawing_from(before) as held:
            sample = item.own_sample()
    except Exception:
        return []
    looked_up = before[0], generator.getstate(), before[2]
    return [_difference(handle, item, image, sample, looked_up, held.states)]


def _difference(
    handle: Any, item: Item, image: Any, sample: Any, before: States, after: States
) -> str:
    streams = streams_of(before)
    views: list[Sequence[Any]] = []
    for view in range(max(1, len(item.base_dataset.views))):
        width, height = size_of(image[view] if item.paths else image)
        draws, behind = handle.draws_torch(streams, width, height, view)
        views.append(with_pixels(handle, draws, streams, width, height, view))
        streams = behind
    what = (
        "the transform, as the installed torch and torchvision run it, draws {} than the native "
        "code expects"
    )
    if streams != streams_of(after) or after[2]["has_gauss"]:
        return what.format("more or fewer numbers")

    def draws_of(width: int, height: int, view: int = 0) -> Any:
        return views[view]

    wanted = image_of(item, sample)
    made = transformed(item.base_dataset, image, draws_of)
    plan = item.base_dataset.plan
    if type(wanted) in (list, tuple):
        is_equal = len(wanted) == len(made) and all(map(is_same, wanted, made))
    elif plan is not None and plan.gives != TENSOR:
        is_equal = is_same(as_planned(wanted, plan), as_planned(made, plan))
    else:
        is_equal = is_same(wanted, made)
    return "" if is_equal else what.format("other numbers")
