"""native="verify": makes every sample a second time with the user's own objects, and compares."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch

from feedmill.collate.samples import samples_of
from feedmill.iterators.batches import Batch
from feedmill.iterators.dataset_copies import copy_of
from feedmill.iterators.generator_states import VirtualWorkers
from feedmill.iterators.global_generators import drawing_from
from feedmill.iterators.pillow_fallback import (
    Draw,
    DrawsOf,
    check_files,
    draws_from,
    each_step,
    run_steps,
    transformed,
)
from feedmill.iterators.single_samples import run_one
from feedmill.planner.arrangements import PAIR, Tree, described, taken_apart
from feedmill.planner.epochs import Epoch
from feedmill.planner.formats import INTEGERS, as_planned
from feedmill.planner.plan import (
    CENTER_CROP,
    MAX_OPS,
    RANDOM_HORIZONTAL_FLIP,
    TORCHS_RESIZE,
    Op,
    Plan,
    final_size,
)
from feedmill.planner.random_states import streams_of
from feedmill.planner.raw_files import RawPlan
from feedmill.planner.samples import Item, Source, size_of
from feedmill.planner.steps import Step


class VerificationError(RuntimeError):
    """A native sample differs from what the dataset and its transforms make of the same draws.

    Attributes:
        index: dataset index; -1 if not known, as when torch raises a worker's error again.
        op: the first step whose result differs: "decode", a transform's class name, "dataset"
            (its __getitem__ gives another image than feedmill_item names) or "target".
    """

    def __init__(self, message: str, index: int = -1, op: str = "") -> None:
        super().__init__(message)
        self.index = index
        self.op = op


class Verifier:
    """Verifies the batches of one epoch before they are delivered.

    Args:
        state: of the DataLoader; its native loaders help to find the step that differs.
        source: the samples.
        epoch: the epoch, with its random key.
    """

    def __init__(self, state: Any, source: Source, epoch: Epoch) -> None:
        self._engines = state.engine_pool
        self._counters = state.python_counters
        self._source = source
        self._epoch = epoch
        self.forget_uses()

    def forget_uses(self, used: bytes | None = None) -> None:
        """Called when the native loader's epoch is started, with the uses that it begins with."""
        # How often each index was submitted so far, as the native loader counts it.
        self._uses: Counter[int] = Counter()
        if used is not None:
            self._uses.update(dict(enumerate(np.frombuffer(used, np.uint32).tolist())))

    def count_uses(self, batch: Batch, items: list[Item]) -> None:
        """Records the occurrences of samples that were submitted for a batch."""
        for item in items:
            batch.occurrences.append(self._uses[item.position])
            self._uses[item.position] += 1

    def verify(
        self, handle: Any, batch: Batch, virtual: VirtualWorkers | None = None
    ) -> None:
        """Raises VerificationError at the first sample that differs from the dataset's own.

        Args:
            handle: the native loader that made the batch.
            batch: a complete batch.
            virtual: with rng="torch", the generators of the batch's worker before the batch. The
                dataset itself then draws from these.
        """
        if self._source.copies:
            self._verify_copies(batch)
            return
        if virtual is not None:
            self._verify_draws(handle, batch, virtual)
            return
        parts = batch.parts if self._source.arrays is None else [one[0] for one in batch.parts]
        views = len(self._source.native_plan.views)
        images = [image for part in parts for image in _samples_of(part, views)]
        key, word = self._epoch.key, self._epoch.word
        plan = self._source.native_plan
        for place, item in enumerate(batch.items):
            image, occurrence = images[place], batch.occurrences[place]
            if place in batch.replaced:
                item = item._replace(target=batch.replaced[place])
            draws_of = draws_from(handle, key, word, item.position, occurrence)
            verify_sample(item, image, occurrence, plan, draws_of, self._run_plan)
            self._counters.verified_samples += 1

    def _verify_draws(self, handle: Any, batch: Batch, virtual: VirtualWorkers) -> None:
        parts = batch.parts if self._source.arrays is None else [one[0] for one in batch.parts]
        views = self._source.native_plan.views
        images = [image for part in parts for image in _samples_of(part, len(views))]
        with drawing_from(virtual.of_batch(batch.turn)) as held:
            samples = [item.own_sample() for item in batch.items]
        for item, image, sample in zip(batch.items, images, samples):
            wanted = image_of(item, sample)
            if len(views) == 1:
                wanted, image = [wanted], (image,)
            for one, expected, view in zip(image, wanted, views, strict=True):
                if text := _difference(one, as_planned(expected, view)):
                    raise VerificationError(
                        f"{item}: the native result differs from what the dataset makes with the "
                        f"generators of torch's worker: {text}", item.position, "dataset"
                    )
            self._counters.verified_samples += 1
        if streams_of(held.states) != virtual.native_streams(handle, batch.turn):
            raise VerificationError(
                f"batch {batch.turn}: the dataset has drawn other random numbers than the native "
                "code"
            )

    def _verify_copies(self, batch: Batch) -> None:
        for item, sample in zip(batch.items, self._copies(batch)):
            wanted = self._source.sample(item)
            if len(wanted) != len(sample) or not all(map(is_same, sample, wanted)):
                text = f"{item}: the native sample differs from the dataset's"
                raise VerificationError(text, item.position, "dataset")
            self._counters.verified_samples += 1

    def _copies(self, batch: Batch) -> Iterable[Any]:
        if self._source.arrays is not None:
            return (sample for part in batch.parts for sample in zip(*part))
        plan = self._source.plan
        assert isinstance(plan, RawPlan)  # a source of copies without arrays reads raw files
        values = (one for part in batch.parts for one in plan.values_of(part))
        return zip(values, (item.target for item in batch.items))

    def _run_plan(self, plan: Plan, item: Item, occurrence: int) -> torch.Tensor | None:
        source = self._source
        with self._engines.diagnostic(plan, source.n_samples, source.arrays) as handle:
            key, word = self._epoch.key, self._epoch.word
            made: torch.Tensor | None = run_one(handle, key, word, source, item, occurrence)
            return made


# Runs a plan natively on one sample: (plan, item, occurrence) -> (3, height, width), or None if the
# native code does not support the sample.
RunPlan = Callable[[Plan, Item, int], torch.Tensor | None]


def verify_sample(
    item: Item,
    image: torch.Tensor | tuple[torch.Tensor, ...],
    occurrence: int,
    plan: Plan,
    draws_of: DrawsOf,
    run_plan: RunPlan,
) -> None:
    """Raises VerificationError if a native sample differs in a single bit.

    Calls the dataset's own __getitem__ with the transform that it has now, so that a change during
    an epoch is found, too. As slow as torch's path. Raises the dataset's errors.

    Args:
        item: the sample.
        image: (3, height, width), the native result, or a tuple of its views.
        occurrence: how often the index came before in this epoch.
        plan: the plan that made it.
        draws_of: its draws, by the image's size.
        run_plan: runs other plans on the sample, to find the step that differs.
    """
    wanted, target, n_calls = _by_dataset(item, draws_of)
    where = f"{item}, occurrence {occurrence}"
    arrangement = item.base_dataset.arrangement
    n_images = arrangement.n_images if isinstance(arrangement, Tree) else 1
    if n_calls != n_images:
        times = "once" if n_images == 1 else f"{n_images} times"
        raise VerificationError(
            f"{where}: the dataset's __getitem__ called its {item.base_dataset.slot} {n_calls} "
            "times; "
            f"natively it is applied {times}, to the image that feedmill_item names",
            item.position,
            "dataset",
        )
    if not is_same(target, item.target):
        raise VerificationError(
            f"{where}: the target is {item.target!r}, but the dataset's __getitem__ gives "
            f"{target!r}",
            item.position,
            "target",
        )
    if not plan.more_views:
        wanted, image = [wanted], (image,)  # type: ignore[assignment]
    if type(wanted) not in (list, tuple) or len(wanted) != len(image):
        raise VerificationError(
            f"{where}: the dataset's transform does not give a list of {len(image)} images",
            item.position,
            "dataset",
        )
    for number, (one, expected) in enumerate(zip(image, wanted)):
        _compare_view(item, number, one, expected, occurrence, plan, draws_of, run_plan, where)


def _compare_view(
    item: Item,
    number: int,
    image: torch.Tensor,
    wanted: Any,
    occurrence: int,
    plan: Plan,
    draws_of: DrawsOf,
    run_plan: RunPlan,
    where: str,
) -> None:
    """As verify_sample(), for one view of a sample, given the dataset's."""
    base_dataset = item.base_dataset
    view = plan.views[number]
    difference = _difference(image, as_planned(wanted, view))
    if not difference:
        return
    steps = base_dataset.views[number] if base_dataset.views else base_dataset.steps
    draws_of = partial(draws_of, view=number)
    file = item.of_view(number)
    by_steps = run_steps(steps, file.load(), draws_of)
    if not _difference(image, as_planned(by_steps, view)):
        op, text = "dataset", f"feedmill_item names another image than it loads; {difference}"
    else:
        before = sum(len(one.ops) for one in plan.views[:number])
        alone = replace(view, more_views=(), views_have_files=False)
        op, text = _first_difference(file, steps, before, occurrence, alone, draws_of, run_plan)
    of_view = f" in view {number + 1}" if plan.more_views else ""
    raise VerificationError(
        f"{where}: the native result differs from the dataset's{of_view}. First at {op}: "
        f"{text or difference}",
        item.position,
        op,
    )


def _by_dataset(item: Item, draws_of: DrawsOf) -> tuple[Any, Any, int]:
    """Calls __getitem__ of a copy of the dataset whose transform uses the native draws: (image,
    target, number of calls of the transform)."""
    base_dataset = item.base_dataset
    calls = []

    def transform(image: Any, *target: Any, view: int | None = None) -> Any:
        calls.append(image)
        if base_dataset.converts:
            image = image.convert("RGB")
        image = transformed(base_dataset, image, draws_of, view)
        return (image, *target) if target else image

    check_files(item)
    sample = copy_of(base_dataset, transform)[item.index]
    arrangement = base_dataset.arrangement
    apart = taken_apart(arrangement, sample)
    if apart is None:
        raise VerificationError(
            f"{item}: the dataset's __getitem__ gives a {type(sample).__name__}, not "
            f"{described(arrangement)}",
            item.position,
            "dataset",
        )
    image, rest = apart
    return image, rest[0] if arrangement == PAIR else rest, len(calls)


def image_of(item: Item, sample: Any) -> Any:
    """The image, or the images, in what the dataset's __getitem__ returned for an item; None if the
    sample is not arranged as recognised."""
    arrangement = item.base_dataset.arrangement
    if item.base_dataset.left and type(sample) is dict:
        sample = {key: sample[key] for key in sample if key not in item.base_dataset.left}
    apart = taken_apart(arrangement, sample)
    return None if apart is None else apart[0]


def _samples_of(part: Any, n_views: int) -> Iterable[Any]:
    """The images of a part of a batch or, of several views, tuples of them."""
    if n_views == 1:
        return samples_of(part, False)
    return zip(*(samples_of(view, False) for view in part))


def is_same(one: Any, other: Any) -> bool:
    """Whether two targets or samples have the same types and are equal bit for bit. Objects that
    do not define what equal means are compared by their attributes."""
    if type(one) is not type(other):
        return False
    if isinstance(one, torch.Tensor):
        return _same_kind(one, other) and _same_bytes(one, other)
    if isinstance(one, (np.ndarray, np.generic)):
        return _same_kind(one, other) and bool(one.tobytes() == other.tobytes())
    if isinstance(one, Mapping):
        return list(one) == list(other) and all(is_same(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(is_same, one, other))
    if isinstance(one, float) and one != one:
        return bool(other != other)
    equality: Any = type(one).__eq__
    if equality is object.__eq__ and hasattr(one, "__dict__"):
        return one is other or is_same(vars(one), vars(other))
    return one is other or bool(one == other)


def _same_kind(one: Any, other: Any) -> bool:
    return bool(one.dtype == other.dtype and one.shape == other.shape)


def _same_bytes(one: torch.Tensor, other: torch.Tensor) -> bool:
    if torch.equal(one, other):
        return True
    parts = [part.detach().cpu().contiguous().reshape(-1) for part in (one, other)]
    return torch.equal(*(part.view(torch.uint8) for part in parts))


def _difference(got: torch.Tensor, wanted: Any) -> str:
    """Text: how two images differ, and where first; "" if they are the same, bit for bit."""
    if not isinstance(wanted, torch.Tensor):
        return f"the dataset gives a {type(wanted).__name__}, not a tensor"
    if got.shape != wanted.shape or got.dtype != wanted.dtype:
        return (
            f"{tuple(got.shape)} of {got.dtype} natively, {tuple(wanted.shape)} of {wanted.dtype} "
            "by the dataset"
        )
    got, wanted = (one.as_subclass(torch.Tensor).contiguous() for one in (got, wanted))
    bits = INTEGERS[got.dtype.itemsize]
    wrong = (got.view(bits) != wanted.view(bits)).nonzero()
    if not len(wrong):
        return ""
    channel, row, column = wrong[0].tolist()
    return (
        f"{len(wrong)} of {got.numel()} values; at channel {channel}, row {row}, column {column} "
        f"{got[channel, row, column].item()!r} natively, "
        f"{wanted[channel, row, column].item()!r} by the dataset"
    )


# ---- the step that differs -----------------------------------------------------------------------


def _first_difference(
    item: Item,
    steps: Sequence[Step],
    n_before: int,
    occurrence: int,
    plan: Plan,
    draws_of: DrawsOf,
    run_plan: RunPlan,
) -> tuple[str, str]:
    """Runs the plan step by step: (name of the first step that differs, text: how it differs).

    Args:
        n_before: the ops of the views before this one. Random numbers depend on an op's number, so
            that as many ops without effect are put in front.
    """
    if n_before + len(plan.ops) >= MAX_OPS:
        return "the transform", ""
    unused = (Op(RANDOM_HORIZONTAL_FLIP),) * n_before
    image = item.load()
    draws = draws_of(*size_of(image))

    def compare(n_ops: int, wanted: Any) -> str:
        """Runs the first n ops alone, and compares their pixels with an image."""
        ops = plan.ops[:n_ops]
        if final_size(ops, None) is None:  # required of a plan: crop to the wanted size
            width, height = size_of(wanted)
            ops += (Op(CENTER_CROP, height, width),)
        ops = unused + ops
        uint8_plan = replace(
            plan, ops=ops, dtype="uint8", value_table=None, transform_dtype="", float_resize=None,
            resize_order=min(plan.resize_order, TORCHS_RESIZE),
        )
        got = run_plan(uint8_plan, item, occurrence)
        if got is None:
            width, height = size_of(wanted)
            return f"the dataset gives {height} x {width} pixels"
        return _difference(got, _as_tensor(wanted))

    if text := compare(0, image):
        return "decode", text
    n_ops = 0
    names = []
    for step, result in each_step(steps, image, draws_of):
        n_ops += len(step.kinds)
        if isinstance(result, torch.Tensor):
            names.append(step.name)
        elif text := compare(n_ops, result):
            return _named(step.name, draws[n_ops - len(step.kinds) : n_ops]), text
    return " -> ".join(names), ""


def _named(name: str, draws: Sequence[Draw]) -> str:
    if name in ("RandomResizedCrop", "RandomHorizontalFlip"):
        _, top, left, height, width, flip, _ = draws[0]
        box = f"flip {flip}" if name.endswith("Flip") else f"box {(top, left, height, width)}"
        return f"{name} ({box})"
    return name


def _as_tensor(image: Any) -> torch.Tensor:
    from torchvision.transforms import functional

    if isinstance(image, torch.Tensor):
        return image
    pixels: torch.Tensor = functional.pil_to_tensor(image)
    return pixels
