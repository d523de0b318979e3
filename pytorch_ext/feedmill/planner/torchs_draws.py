"""Whether the native code draws a transform's random numbers as torch's process does, as far as its
plan and steps tell. (The numbers of images that are made are compared elsewhere.)"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator

import numpy as np
import torch

from feedmill._ops import native
from feedmill.planner import timm_objects
from feedmill.planner.drawing import STEPS
from feedmill.planner.generators import NUMPY, NUMPY_ROUNDED_ONCE
from feedmill.planner.lighting import Lighting
from feedmill.planner.picking import NUMPYS_RAND, NUMPYS_RANDINT
from feedmill.planner.plan import KINDS, OP_NAMES, Op, Plan
from feedmill.planner.random_states import seeded_states, streams_of
from feedmill.planner.steps import Step
from feedmill.planner.timm_augment import N_LISTED, OPERATIONS
from feedmill.planner.view_calls import NEVER_DRAW

_WITHOUT_DRAWS = tuple(
    KINDS[name]
    for name in ("Resize", "CenterCrop", "Pad", "Grayscale", "halving CenterCrop")
)
# Sizes of tensors for which torch is tried: numbers below 16 are drawn one by one, others in blocks
# of 16, of which the last one may overlap the one before it.
_SIZES = (*range(1, 70), 255, 256, 257, 272, 1000, 4095, 3 * 61 * 67, 3 * 224 * 224)


def reasons_against_steps(plan: Plan, steps: Iterable[Step]) -> list[str]:
    """Why the native code draws other random numbers than the steps of a plan; empty: it does not.
    """
    names: dict[str, None] = {}
    ops = {id(op): op for view in plan.views for op in view.ops}
    for op in ops.values():
        if why := _why_not_op(op):
            names[why] = None
    for step in steps:
        names |= dict.fromkeys(_unknown_steps(step))
    return [
        f"the native code does not draw the random numbers of {name} as the original does"
        for name in names
    ]


def draws_in_vain(steps: Iterable[Step]) -> bool:
    """Whether a transform whose plan is not random may draw numbers nevertheless."""
    def is_known(step: Step) -> bool:
        is_of_torchvision = step.module.startswith("torchvision.transforms.")
        return (
            is_of_torchvision
            and type(step.transform).__name__ in NEVER_DRAW
            and all(map(is_known, step.children))
        )

    return not all(map(is_known, steps))


def draws_from_numpy(plan: Plan) -> bool:
    """Whether a plan may draw from NumPy's generator."""
    return any(_draws_from_numpy(op, OP_NAMES[op.kind]) for view in plan.views for op in view.ops)


def _why_not_op(op: Op) -> str:
    name = OP_NAMES[op.kind]
    if name == "timm's RandAugment" and not op.values[N_LISTED]:
        return f"a RandAugment of more than {len(OPERATIONS)} operations, some of them equal,"
    if _draws_from_numpy(op, name):
        generator = np.random.get_state(legacy=False)["bit_generator"]
        if generator != "MT19937":
            return f"{name} with NumPy's bit generator {generator}"
    if op.kind == KINDS["RandomErasing"] and op.values[3:4] == (2.0,) and not is_as_torch():
        return (
            "RandomErasing with a random number for each pixel on this CPU, on which torch's "
            "normal_() computes other last bits,"
        )
    return ""


def _draws_from_numpy(op: Op, name: str) -> bool:
    if name == "RandomApply":
        return op.values[5:6] in ((NUMPY,), (NUMPY_ROUNDED_ONCE,))
    if name == "RandomBlur":
        return op.values[2:3] in ((NUMPY + 1,), (NUMPY_ROUNDED_ONCE + 1,))
    if name == "RandomChoice":
        return op.values[32:33] in ((NUMPYS_RANDINT,), (NUMPYS_RAND,))
    return name == "timm's RandAugment"


def _unknown_steps(step: Step) -> Iterator[str]:
    """Names of what draws in a step in an unknown way."""
    kinds = [kind for kind in step.kinds if kind not in _WITHOUT_DRAWS]
    if not kinds:
        return
    name = type(step.transform).__name__
    is_group = not step.module and (bool(step.children) or type(step.transform) is tuple)
    is_of_torchvision = step.module.startswith("torchvision.transforms.")
    if type(step.transform) in STEPS:
        if not step.draws_in_order:
            yield step.name
    elif step.module in timm_objects.NAMES or type(step.transform) is Lighting:
        pass  # its functions are of known versions, all of which draw alike
    elif not is_of_torchvision and not is_group and name not in ("Identity", "Convert"):
        yield step.name
    for child in step.children:
        yield from _unknown_steps(child)


@functools.cache
def is_as_torch() -> bool:
    """Whether the native code draws the normally distributed numbers of the installed torch on this
    CPU, bit for bit."""
    for seed, n in enumerate(_SIZES):
        generator = torch.Generator()
        generator.manual_seed(seed)
        # A number is kept for the next call or is not; some words have been drawn.
        torch.empty(seed % 9).normal_(generator=generator)
        states = generator.get_state(), *seeded_states(0)[1:]
        wanted = torch.empty(n).normal_(generator=generator)
        if native.noise_torch(streams_of(states), n) != wanted.numpy().tobytes():
            return False
    return True
