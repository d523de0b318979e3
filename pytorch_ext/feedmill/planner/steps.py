"""Translates a single transform object into ops of the plan: a resize, a crop, a flip or an
augmentation. A RandomApply, RandomChoice or RandomOrder is a single object with the transforms in
it.

``augmentations`` reads the arguments of augmentations, this module those of the other transforms.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from feedmill._internals import v2_log_ratio
from feedmill.planner import augmentations
from feedmill.planner.arguments import (
    V1,
    V2,
    fill_of,
    filter_number,
    filter_of,
    is_number,
    is_size,
    probability,
    range_pair,
    size_pair,
)
from feedmill.planner.arithmetic import TensorCall
from feedmill.planner.augmentations import AUTOMATIC, RANDOM_CONTAINERS
from feedmill.planner.drawing import STEPS, Chance, PilCall
from feedmill.planner.efficient_crops import EfficientCrop
from feedmill.planner.halving_crops import HalvingCrop
from feedmill.planner.image_calls import Convert
from feedmill.planner.known import AUGMENTATIONS, GEOMETRY, NotRead, flatten, module_of
from feedmill.planner.lighting import Lighting
from feedmill.planner.numpy_calls import ArrayCalls
from feedmill.planner.one_attempt import is_one_attempt
from feedmill.planner.picking import Choice
from feedmill.planner.plan import (
    CENTER_CROP,
    FILTER_NAMES,
    HALVING_CENTER_CROP,
    KINDS,
    MAX_SIZE_PX,
    RANDOM_HORIZONTAL_FLIP,
    RANDOM_RESIZED_CROP,
    RESIZE,
    RESIZE_KEEP_RATIO,
    Op,
    UnsupportedError,
    unsupported_argument,
)


@dataclass(frozen=True)
class Step:
    """One of the user's transform objects, and the ops of the plan that it became.

    Attributes:
        transform: the object itself; a tuple: the transforms of a Choice's child.
        kinds: the ops' kinds, in order; empty if the object changes pixel values only.
        module: the module that defines the object's class: V1, V2, ...
        children: steps of the transforms in a container; their kinds are part of the container's.
    """

    transform: Any
    kinds: tuple[int, ...]
    module: str
    children: tuple[Step, ...] = ()

    @property
    def draws_in_order(self) -> bool:
        """Of one of STEPS: whether it is known to the last bit what it draws."""
        one = self.transform
        if type(one) in (HalvingCrop, EfficientCrop):
            return True
        if type(one) is PilCall:
            return one.draw is None or one.draw.formula is not None
        if type(one) is Choice:
            return one.pick is not None
        return one.condition is not None and one.condition.numbers() is not None

    @property
    def name(self) -> str:
        if type(self.transform) in (PilCall, TensorCall):
            return str(self.transform.name)
        if type(self.transform) is Chance:
            return "a condition on a random number"
        if type(self.transform) is Choice:
            return "a choice by a random number"
        if type(self.transform) is HalvingCrop:
            return self.transform.function.__name__
        if type(self.transform) is EfficientCrop:
            return type(self.transform.transform).__name__
        return type(self.transform).__name__

    def identity(self) -> list[Any]:
        """The user's objects that determine what the step does."""
        if type(self.transform) in (Lighting, EfficientCrop):
            return [self.transform.transform]
        if type(self.transform) in (TensorCall, ArrayCalls, tuple, *STEPS):
            return [one for child in self.children for one in child.identity()]
        return [self.transform]


# ---- augmentations -------------------------------------------------------------------------------


def augmentation_ops(transform: Any, n_channels: int, depth: int = 0) -> tuple[list[Op], Step]:
    """The ops of an augmentation, including those of the transforms in it, and its step."""
    module = module_of(transform)
    name = type(transform).__name__
    if name not in RANDOM_CONTAINERS:
        op = augmentations.read_op(transform, name, module, n_channels)
        op = op._replace(is_v2=module == V2)
        return [op], Step(transform, (op.kind,), module)
    inner = transform.transforms
    if type(inner) is torch.nn.ModuleList:
        inner = list(inner)
    if type(inner) not in (list, tuple):
        raise UnsupportedError(f"{name}.transforms is not a list or tuple")
    if depth == 8:
        raise UnsupportedError("transforms are nested more than 8 levels deep, the native limit")
    parts, steps = [], []
    for one in inner:
        ops, step = _read_child(one, name, n_channels, depth + 1)
        parts.append(ops)
        steps.append(step)
    container, *within = augmentations.read_container(transform, name, parts)
    ops = [container._replace(is_v2=module == V2), *within]
    return ops, Step(transform, tuple(op.kind for op in ops), module, tuple(steps))


def call_ops(
    call: PilCall | Chance | Choice | HalvingCrop | EfficientCrop, n_channels: int, depth: int = 0
) -> tuple[list[Op], Step]:
    """The ops of what the user's own function does with an image, and its step."""
    if isinstance(call, PilCall):
        if call.name == "RandomBlur" and n_channels != 3:
            raise UnsupportedError("GaussianBlur of grayscale images is not supported natively")
        op = Op(KINDS[call.name], p=1.0, values=_values_of(call))
        if call.name == "RandomRotation":
            op = op._replace(p=0.0, filter=FILTER_NAMES.index("nearest"))
        return [op], Step(call, (op.kind,), "")
    if isinstance(call, HalvingCrop):
        if depth or n_channels != 3:
            where = "within a condition on a random number" if depth else "of grayscale images"
            raise UnsupportedError(f"{call.function.__name__}() {where} is not supported natively")
        filters = FILTER_NAMES.index("bicubic"), FILTER_NAMES.index("box")
        op = Op(HALVING_CENTER_CROP, call.size, call.size, filter=filters[0])
        return [op._replace(values=(0.0, filters[1] + 1.0))], Step(call, (op.kind,), "")
    if isinstance(call, EfficientCrop):
        op = call.op(_filter_of_crop(call))
        return [op], Step(call, (op.kind,), "")
    if depth == 8:
        raise UnsupportedError("transforms are nested more than 8 levels deep, the native limit")
    if isinstance(call, Choice):
        return _choice_ops(call, n_channels, depth)
    what = "a condition on a random number"
    children = [_read_child(one, what, n_channels, depth + 1) for one in call.transforms]
    ops = augmentations.group([op for ops, _ in children for op in ops], call.p)
    numbers = None if call.condition is None else call.condition.numbers(call.is_negated)
    if numbers is not None:
        ops[0] = ops[0]._replace(values=(float(call.p == 1), *numbers))
    return ops, Step(call, tuple(op.kind for op in ops), "", tuple(step for _, step in children))


def _filter_of_crop(crop: EfficientCrop) -> int:
    """The fm_filter by which a crop is resized."""
    name = type(crop.transform).__name__
    resizes = [
        geometry_op(one, type(one).__name__, module_of(one)) for one in crop.resizes
        if module_of(one) in (V1, V2) and type(one).__name__ == "Resize"
    ]
    sizes = {(op.height, op.width) for op in resizes}
    if len(resizes) < len(crop.resizes) or sizes != {(crop.size, crop.size)}:
        raise UnsupportedError(
            f"{name} resizes to another size than that of its square, which is not supported "
            "natively"
        )
    filters = {op.filter for op in resizes}
    if len(filters) > 1:
        raise UnsupportedError(f"{name} resizes by two filters, which is not supported natively")
    return filters.pop()


def _choice_ops(choice: Choice, n_channels: int, depth: int) -> tuple[list[Op], Step]:
    what = "a choice by a random number"
    parts: list[Sequence[Op]] = []
    steps: list[Step] = []
    for child in choice.children:
        children = [_read_child(one, what, n_channels, depth + 1) for one in child]
        ops = augmentations.group([op for ops, _ in children for op in ops])
        parts.append(ops)
        kinds = tuple(op.kind for op in ops)
        steps.append(Step(child, kinds, "", tuple(step for _, step in children)))
    way = 0 if choice.pick is None else choice.pick.way
    ops = augmentations.choice(parts, choice.sums, way)
    return ops, Step(choice, tuple(op.kind for op in ops), "", tuple(steps))


def _values_of(call: PilCall) -> tuple[float, ...]:
    """The values of a PilCall's op, with those that draws from torch's streams need."""
    if call.name == "RandomBlur":
        if call.draw is None or call.draw.formula is None:
            return call.values
        return (*call.values, call.draw.generator + 1.0, *call.draw.formula)
    if call.name == "RandomRotation":
        return (*call.values, *call.values, *[0.0] * 6, 1.0)
    return (*(*call.values, 0.0)[:1], 1.0)


def _read_child(
    transform: Any, container: str, n_channels: int, depth: int
) -> tuple[list[Op], Step]:
    """A transform in a RandomApply, RandomChoice or RandomOrder: a resize, a crop, a flip, an
    augmentation, or a Compose of these."""
    parts = list(flatten(transform))
    if len(parts) == 1 and (parts[0] is transform or type(parts[0]) is NotRead):
        if type(transform) is Convert and transform.mode == "RGB" and n_channels == 3:
            ops = augmentations.group([])
            return ops, Step(transform, (ops[0].kind,), "")
        if type(transform) in STEPS:
            return call_ops(transform, n_channels, depth)
        transform = parts[0]
        module, name = module_of(transform), type(transform).__name__
        if name == "Identity":
            ops = augmentations.group([])
            return ops, Step(transform, (ops[0].kind,), module)
        if name in GEOMETRY:
            op = geometry_op(transform, name, module, n_channels)
            return [op], Step(transform, (op.kind,), module)
        if name == "Grayscale" and transform.num_output_channels == n_channels == 3:
            op = Op(KINDS["RandomGrayscale"], p=1.0, values=(1.0,))
            return [op], Step(transform, (op.kind,), module)
        if (name not in AUGMENTATIONS and name not in AUTOMATIC) or name == "Grayscale":
            raise UnsupportedError(f"{name} within {container} is not supported natively")
        return augmentation_ops(transform, n_channels, depth)
    children = [_read_child(one, container, n_channels, depth) for one in parts]
    ops = augmentations.group([op for ops, _ in children for op in ops])
    return ops, Step(transform, tuple(op.kind for op in ops), "", tuple(one for _, one in children))


# ---- geometry ------------------------------------------------------------------------------------


def geometry_op(transform: Any, name: str, module: str, n_channels: int = 3) -> Op:
    """The op of one of known.GEOMETRY. UnsupportedError if it is not supported.

    Args:
        name, module: of the transform's class.
        n_channels: of the images that the transform gets.
    """
    if name == "RandomHorizontalFlip":
        return Op(RANDOM_HORIZONTAL_FLIP, p=probability(transform, name))
    if name == "CenterCrop":
        height, width = size_pair(transform.size, name)
        return Op(CENTER_CROP, height, width)
    if name == "Resize":
        resampling = filter_of(transform, name, module)
        return resize_op(transform.size, transform.max_size, resampling)
    if name == "CenterCropOrPad":
        height, width = size_pair(transform.size, name)
        mode = augmentations.pad_mode(getattr(transform, "padding_mode", "constant"), name)
        fill = fill_of(transform, name, module, n_channels)
        return Op(CENTER_CROP, height, width, values=(0, 0, 0, 0, mode, 0, *fill))
    if name == "ResizeKeepRatio":
        return _resize_keep_ratio(transform)
    if name == "RandomResizedCropAndInterpolation":
        return _random_resized_crop_of_timm(transform)
    resampling = filter_of(transform, name, module)
    op = _random_resized_crop(transform, module, resampling)
    return op._replace(values=(2.0, 0.0)) if is_one_attempt(type(transform)) else op


def _random_resized_crop_of_timm(transform: Any) -> Op:
    """The op of a crop by a filter or, of two, by one of them at random."""
    first, second = _filters_of_timm(transform)
    op = _random_resized_crop(transform, V1, first)
    for what in ("scale", "ratio"):
        _check_differ(type(transform).__name__, what, *getattr(transform, what))
    return op._replace(values=(1.0, second, _n_listed(transform)))


def _filters_of_timm(transform: Any) -> tuple[int, float]:
    """The filter of a timm transform, and 1 more than its second one, 0 if it has none."""
    name = type(transform).__name__
    interpolation = transform.interpolation
    listed = interpolation if type(interpolation) in (tuple, list) else [interpolation]
    if len(listed) not in (1, 2):
        raise unsupported_argument(name, "interpolation", interpolation, "one or two filters")
    filters = [filter_number(one, name) for one in listed]
    return filters[0], filters[1] + 1.0 if filters[-1] != filters[0] else 0.0


def _n_listed(transform: Any) -> float:
    """How many filters a timm transform draws one of; 0: it has one that is not in a list."""
    listed = transform.interpolation
    return float(len(listed)) if isinstance(listed, tuple | list) else 0.0


def _resize_keep_ratio(transform: Any) -> Op:
    name = "ResizeKeepRatio"
    height, width = size_pair(transform.size, name)
    longest = transform.longest
    if not is_number(longest) or not 0 <= longest <= 1:
        raise unsupported_argument(name, "longest", longest, "from 0 to 1")
    first, second = _filters_of_timm(transform)
    values = [float(longest), second]
    for what in ("scale", "aspect"):
        share = getattr(transform, f"random_{what}_prob", 0.0)  # older versions have none
        if not is_number(share):
            raise unsupported_argument(name, f"random_{what}_prob", share, "a number")
        low, high = 1.0, 1.0
        if share > 0:
            limits = getattr(transform, f"random_{what}_range")
            low, high = range_pair(limits, f"{name}'s random_{what}_range")
            if low < 1e-6 or high > 1e6:
                raise unsupported_argument(
                    name, f"random_{what}_range", limits, "from 1e-6 to 1e6"
                )
            _check_differ(name, f"random_{what}_range", low, high)
        values += [min(max(float(share), 0.0), 1.0), low, high]
        if what == "scale":
            values.append(float(bool(getattr(transform, "random_scale_area", False))))
    values.append(_n_listed(transform))
    return Op(RESIZE_KEEP_RATIO, height, width, filter=first, values=tuple(values))


def _check_differ(name: str, what: str, low: float, high: float) -> None:
    """The native code draws in float32. With equal limits timm's result has no randomness, and the
    last bit of a double may decide about a pixel, unless they are 1."""
    if low == high != 1:
        raise unsupported_argument(name, what, (low, high), "two different numbers, or 1 and 1")


def _random_resized_crop(transform: Any, module: str, resampling: int) -> Op:
    name = type(transform).__name__
    height, width = size_pair(transform.size, name)
    scale = range_pair(transform.scale, f"{name}'s scale")
    ratio = range_pair(transform.ratio, f"{name}'s ratio")
    # The native code samples the crop in float32, where these limits must be normal numbers.
    if scale[0] < 0 or scale[1] > 1e30:
        raise unsupported_argument(name, "scale", scale, "from 0 to 1e30")
    if ratio[0] < 1e-30 or ratio[1] > 1e30:
        raise unsupported_argument(name, "ratio", ratio, "from 1e-30 to 1e30")
    if module == V2 and not torch.equal(
        v2_log_ratio(transform), torch.log(torch.tensor(transform.ratio))
    ):
        raise UnsupportedError(
            "RandomResizedCrop's attribute ratio was changed after its construction, which v2 "
            "ignores; make a new RandomResizedCrop"
        )
    return Op(RANDOM_RESIZED_CROP, height, width, 0, *scale, *ratio, filter=resampling)


def resize_op(size: Any, max_size: Any, resampling: int) -> Op:
    """The op of a Resize. If it resizes the shorter edge, the op's height is that edge's length and
    its width is 0."""
    if isinstance(size, Sequence) and len(size) == 2:
        if max_size is not None:
            raise UnsupportedError("Resize has a pair of sizes and max_size; pass only one of them")
        height, width = size_pair(size, "Resize")
        return Op(RESIZE, height, width, filter=resampling)
    short = size[0] if isinstance(size, Sequence) and len(size) == 1 else size
    if not is_size(short) or (max_size is not None and not is_size(max_size)):
        raise UnsupportedError(
            f"Resize with size={size!r} and max_size={max_size!r} is not supported natively; both "
            f"must be ints from 1 to {MAX_SIZE_PX}"
        )
    if max_size is not None and max_size <= short:
        raise unsupported_argument("Resize", "max_size", max_size, f"larger than size={short}")
    return Op(RESIZE, short, max_size=max_size or 0, filter=resampling)
