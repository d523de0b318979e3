"""Translates torchvision's augmentations into ops. ``steps`` translates the other transforms:
resizes, CenterCrop, RandomResizedCrop and RandomHorizontalFlip."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from feedmill import _internals
from feedmill._internals import FUNCTIONAL, FUNCTIONAL_PIL
from feedmill.planner import timm_augment, timm_hashes
from feedmill.planner.arguments import (
    V2,
    fill_of,
    filter_of,
    is_number,
    probability,
    range_pair,
    size_pair,
)
from feedmill.planner.plan import (
    FILTER_NAMES,
    KINDS,
    MAX_SIZE_PX,
    Op,
    UnsupportedError,
    unsupported_argument,
)

# Transforms that are applied with probability p, and the attribute with their parameter.
_WITH_PROBABILITY = {
    "RandomVerticalFlip": "",
    "RandomGrayscale": "",
    "RandomInvert": "",
    "RandomPosterize": "bits",
    "RandomSolarize": "threshold",
    "RandomAutocontrast": "",
    "RandomEqualize": "",
    "RandomAdjustSharpness": "sharpness_factor",
}
_AUTOMATIC = ("TrivialAugmentWide", "RandAugment", "AutoAugment")
RANDOM_CONTAINERS = ("RandomApply", "RandomChoice", "RandomOrder")
# Names of the classes, without automatic augmentations and containers.
NAMES = frozenset(
    {"RandomCrop", "Pad", "Grayscale", "ColorJitter", "RandomRotation", "RandomAffine"}
    | _WITH_PROBABILITY.keys()
)
AUTOMATIC = frozenset(_AUTOMATIC)

_PAD_MODES = ("constant", "edge", "reflect", "symmetric")
_MOST_CHILDREN = 16  # of a RandomChoice or RandomOrder
MOST_BOXES = 8  # of a RandomErasing, as FM_MAX_ERASED
_MAX_NUMBER = 1e9  # of parameters for which feedmill/transform.h has no narrower limit

# Functions of torchvision and Pillow that these transforms call, by module. None of them may have
# been replaced.
FUNCTIONS = {
    FUNCTIONAL: (
        "vflip", "rgb_to_grayscale", "invert", "posterize", "solarize", "autocontrast", "equalize",
        "adjust_sharpness", "adjust_brightness", "adjust_contrast", "adjust_saturation",
        "adjust_hue", "rotate", "affine", "erase",
    ),
    FUNCTIONAL_PIL: (
        "vflip", "to_grayscale", "invert", "posterize", "solarize", "autocontrast", "equalize",
        "adjust_sharpness", "adjust_brightness", "adjust_contrast", "adjust_saturation",
        "adjust_hue", "rotate", "affine",
    ),
    "torchvision.transforms.v2.functional": (
        "vertical_flip", "crop", "pad", "rgb_to_grayscale", "invert", "posterize", "solarize",
        "autocontrast", "equalize", "adjust_sharpness", "adjust_brightness", "adjust_contrast",
        "adjust_saturation", "adjust_hue", "rotate", "affine", "erase",
    ),
}
PILLOW_FUNCTIONS = {
    "PIL.Image": ("blend", "new", "merge"),
    "PIL.ImageOps": ("autocontrast", "equalize", "expand", "invert", "posterize", "solarize"),
}
PILLOW_METHODS = ("filter", "histogram", "point", "rotate", "split", "transform")


def read_op(transform: Any, name: str, module: str, n_channels: int) -> Op:
    """The op of a transform that is not a container. UnsupportedError if it is not supported.

    Args:
        name, module: of the transform's class.
        n_channels: of the images that the transform gets, 3 or 1.
    """
    if module == timm_hashes.AUGMENT:
        return timm_augment.read_op(transform, name, n_channels)
    kind = KINDS[name]
    if name in _WITH_PROBABILITY:
        attribute = _WITH_PROBABILITY[name]
        values: tuple[float, ...] = (_number(transform, name, attribute),) if attribute else ()
        if name == "RandomPosterize" and values[0] not in range(1, 9):
            raise unsupported_argument(name, "bits", int(values[0]), "from 1 to 8")
        return Op(kind, p=probability(transform, name), values=values)
    if name in AUTOMATIC:
        return _automatic(transform, name, module, n_channels)
    readers: dict[str, Callable[[Any, str, int], Op]] = {
        "RandomCrop": _random_crop,
        "Pad": _pad,
        "Grayscale": _grayscale,
        "ColorJitter": _color_jitter,
        "RandomRotation": _random_rotation,
        "RandomAffine": _random_affine,
    }
    return readers[name](transform, module, n_channels)


def read_erasing(transform: Any, module: str, n_channels: int) -> tuple[Op, list[float]]:
    """The op of a RandomErasing, without its values, and the values: one, or one for each channel.
    The caller converts the values to the image's type and adds them to the op. Where the op's value
    3 is not 0, it writes random numbers in place of them."""
    value = transform.value
    is_random = value is None or (module != V2 and type(value) is str and value == "random")
    values = list(value) if type(value) in (list, tuple) else [0.0 if is_random else value]
    if len(values) not in (1, n_channels) or not all(map(is_number, values)):
        raise unsupported_argument(
            "RandomErasing", "value", value, "one finite number, one for each channel, or 'random'"
        )
    scale = range_pair(transform.scale, "RandomErasing's scale")
    ratio = range_pair(transform.ratio, "RandomErasing's ratio")
    if scale[0] < 0 or scale[1] > 1:
        raise unsupported_argument("RandomErasing", "scale", scale, "from 0 to 1")
    if ratio[0] < 1e-30 or ratio[1] > 1e30:
        raise unsupported_argument("RandomErasing", "ratio", ratio, "from 1e-30 to 1e30")
    p = probability(transform, "RandomErasing")
    written = (0.0, 0.0, 0.0, 2.0) if is_random else ()
    op = Op(KINDS["RandomErasing"], 0, 0, 0, *scale, *ratio, p, values=written)
    return op, [float(one) for one in values]


def read_erasing_of_timm(transform: Any) -> Op:
    """The op of a timm RandomErasing. Where its value 3 is 0, it erases to black, and the caller
    converts that to the image's type and adds it to the op."""
    name = "RandomErasing"
    modes = transform.per_pixel, transform.rand_color
    if set(map(type, modes)) != {bool}:
        raise unsupported_argument(name, "mode", modes, "'const', 'rand' or 'pixel'")
    counts = transform.min_count, transform.max_count
    if set(map(type, counts)) != {int} or not 1 <= counts[0] <= counts[1] <= MOST_BOXES:
        raise unsupported_argument(name, "min_count, max_count", counts, f"from 1 to {MOST_BOXES}")
    if str(transform.device) != "cpu":
        raise unsupported_argument(name, "device", transform.device, "'cpu'")
    areas = transform.min_area, transform.max_area
    low, high = range_pair(areas, "RandomErasing's area")
    ratio = range_pair(transform.log_aspect_ratio, "RandomErasing's log_aspect_ratio")
    if low < 0 or high > 1:
        raise unsupported_argument(name, "min_area, max_area", areas, "from 0 to 1")
    if ratio[0] < -60 or ratio[1] > 60:
        raise unsupported_argument(name, "log_aspect_ratio", ratio, "from -60 to 60")
    p = transform.probability
    if not is_number(p):
        raise unsupported_argument(name, "probability", p, "a number")
    p = min(max(float(p), 0.0), 1.0)
    written = 2.0 if transform.per_pixel else 1.0 if transform.rand_color else 0.0
    return Op(KINDS[name], 0, 0, 0, low, high, math.exp(ratio[0]), math.exp(ratio[1]), p,
              values=(0.0, 0.0, 0.0, written, *map(float, counts), *ratio))


def read_container(transform: Any, name: str, parts: Sequence[Sequence[Op]]) -> list[Op]:
    """The ops of a RandomApply, RandomChoice or RandomOrder: its own, then those of its children,
    ``parts``."""
    n_within = sum(map(len, parts))
    values: tuple[float, ...] = ()
    p = 0.0
    if name == "RandomApply":
        p = probability(transform, name)
    elif not 1 <= len(parts) <= _MOST_CHILDREN:
        raise UnsupportedError(
            f"{name} of {len(parts)} transforms is not supported natively; it must have 1 to "
            f"{_MOST_CHILDREN}"
        )
    elif name == "RandomChoice":
        weights = _weights(transform, len(parts))
        values = _by_choice(weights)
    return [Op(KINDS[name], p=p, n_children=len(parts), n_within=n_within, values=values),
            *(op for part in parts for op in part)]


def group(parts: Sequence[Op], p: float = 1.0) -> list[Op]:
    """Combines ops into one child of a container: a RandomApply with this probability, which
    draws no random number if that is 1."""
    n_children, at = 0, 0
    while at < len(parts):
        at += 1 + parts[at].n_within
        n_children += 1
    values = (1.0,) if p == 1 else ()
    return [Op(KINDS["RandomApply"], p=p, n_children=n_children, n_within=len(parts),
               values=values), *parts]


def choice(parts: Sequence[Sequence[Op]], sums: Sequence[float], way: int) -> list[Op]:
    """The ops of a RandomChoice that a function of the user's own makes: its own, then those of its
    children, ``parts``.

    Args:
        sums: of the weights of each child and those before it.
        way: how it draws with torch's random numbers, as value 32 of fm_op.
    """
    weights = [most - before for most, before in zip(sums, (0.0, *sums))]
    values = (*_padded(sums), *_padded(weights), float(way))
    within = [op for part in parts for op in part]
    return [Op(KINDS["RandomChoice"], n_children=len(parts), n_within=len(within), values=values),
            *within]


def _by_choice(weights: Sequence[float]) -> tuple[float, ...]:
    """A RandomChoice's weights as values of fm_op: their running sums, then they themselves."""
    sums = [math.fsum(weights[: i + 1]) for i in range(len(weights))]
    return (*_padded(sums), *weights)


def _padded(values: Sequence[float]) -> tuple[float, ...]:
    """Values of fm_op for each child that it may have."""
    return (*values, *[0.0] * (_MOST_CHILDREN - len(values)))


def _weights(transform: Any, n: int) -> list[float]:
    """A RandomChoice's p."""
    weights = [1.0] * n if transform.p is None else transform.p
    if type(weights) not in (list, tuple) or len(weights) != n or not all(map(is_number, weights)):
        raise unsupported_argument("RandomChoice", "p", transform.p, f"{n} numbers")
    if min(weights) < 0 or not 0 < sum(weights) <= _MAX_NUMBER:
        raise unsupported_argument(
            "RandomChoice", "p", transform.p, "numbers from 0 with a positive sum"
        )
    return [float(one) for one in weights]


# ---- arguments -----------------------------------------------------------------------------------


def _number(transform: Any, name: str, attribute: str) -> float:
    value = getattr(transform, attribute)
    if not is_number(value) or abs(value) > _MAX_NUMBER:
        raise unsupported_argument(name, attribute, value, f"a number up to {_MAX_NUMBER:g}")
    if attribute == "bits" and type(value) is not int:
        raise unsupported_argument(name, attribute, value, "an int")
    return float(value)


def _padding(padding: Any, name: str, order: Sequence[int] = (0, 1, 2, 3)) -> tuple[int, ...]:
    """A transform's padding as (left, top, right, bottom).

    Args:
        padding: one number, two or four.
        order: where left, top, right and bottom are in four numbers.
    """
    values = list(padding) if type(padding) in (list, tuple) else [padding]
    if len(values) not in (1, 2, 4) or not all(
        type(value) is int and 0 <= value <= MAX_SIZE_PX for value in values
    ):
        raise unsupported_argument(
            name, "padding", padding, f"one, two or four ints from 0 to {MAX_SIZE_PX}"
        )
    values = (values * 4)[:4]
    return tuple(values[i] for i in order)


def pad_mode(mode: Any, name: str) -> int:
    """The number of a transform's padding_mode, as fm_op has it."""
    if mode not in _PAD_MODES:
        raise unsupported_argument(name, "padding_mode", mode, f"one of {', '.join(_PAD_MODES)}")
    if mode in ("reflect", "symmetric") and int(np.__version__.partition(".")[0]) < 2:
        raise UnsupportedError(
            f"{name} with padding_mode={mode!r} is supported natively only with NumPy 2 or later; "
            f"NumPy {np.__version__} is installed"
        )
    return _PAD_MODES.index(mode)


def _pad(transform: Any, module: str, n_channels: int) -> Op:
    padding = _padding(transform.padding, "Pad")
    fill = fill_of(transform, "Pad", module, n_channels)
    mode = pad_mode(transform.padding_mode, "Pad")
    return Op(KINDS["Pad"], values=(*padding, mode, 0, *fill))


def _random_crop(transform: Any, module: str, n_channels: int) -> Op:
    height, width = size_pair(transform.size, "RandomCrop")
    padding: tuple[int, ...] = (0, 0, 0, 0)
    if transform.padding is not None:
        # v2's RandomCrop stores (left, right, top, bottom).
        order = (0, 2, 1, 3) if module == V2 else (0, 1, 2, 3)
        padding = _padding(transform.padding, "RandomCrop", order)
    if type(transform.pad_if_needed) is not bool:
        raise unsupported_argument("RandomCrop", "pad_if_needed", transform.pad_if_needed, "a bool")
    mode, fill = 0, (0, 0, 0)
    if any(padding) or transform.pad_if_needed:
        mode = pad_mode(transform.padding_mode, "RandomCrop")
        fill = fill_of(transform, "RandomCrop", module, n_channels)
    values = (*padding, mode, transform.pad_if_needed, *fill, module == V2)
    return Op(KINDS["RandomCrop"], height, width, values=values)


def _grayscale(transform: Any, _module: str, _n_channels: int) -> Op:
    channels = transform.num_output_channels
    if type(channels) is not int or channels not in (1, 3):
        raise unsupported_argument("Grayscale", "num_output_channels", channels, "1 or 3")
    return Op(KINDS["Grayscale"], values=(channels,))


def _color_jitter(transform: Any, _module: str, _n_channels: int) -> Op:
    values: list[float] = []
    mask = 0
    for i, name in enumerate(("brightness", "contrast", "saturation", "hue")):
        limits = getattr(transform, name)
        if limits is None:
            values += [0.0, 0.0]
            continue
        low, high = range_pair(limits, f"ColorJitter's {name}")
        least, most = (-0.5, 0.5) if name == "hue" else (0, _MAX_NUMBER)
        if low < least or high > most:
            raise unsupported_argument("ColorJitter", name, limits, f"from {least:g} to {most:g}")
        values += [low, high]
        mask |= 1 << i
    return Op(KINDS["ColorJitter"], values=(*values, mask))


def _map_filter(transform: Any, name: str, module: str) -> int:
    number = filter_of(transform, name, module)
    if FILTER_NAMES[number] not in ("nearest", "bilinear", "bicubic"):
        raise unsupported_argument(
            name, "interpolation", transform.interpolation,
            "nearest, bilinear or bicubic, as Pillow refuses other filters here",
        )
    return number


def _degrees(values: Any, name: str) -> tuple[float, float]:
    low, high = range_pair(values, name)
    if max(-low, high) > _MAX_NUMBER:
        raise UnsupportedError(f"{name} is {values!r}; natively the limit is {_MAX_NUMBER:g}")
    return low, high


def _center(transform: Any, name: str) -> tuple[float, float, float]:
    """A transform's center as (1, x, y); (0, 0, 0) if it has none."""
    center = transform.center
    if center is None:
        return 0, 0, 0
    if type(center) not in (list, tuple) or len(center) != 2 or not all(
        is_number(one) and abs(one) <= _MAX_NUMBER for one in center
    ):
        raise unsupported_argument(name, "center", center, "a pair of numbers (x, y)")
    return 1, float(center[0]), float(center[1])


def _random_rotation(transform: Any, module: str, n_channels: int) -> Op:
    if transform.expand is not False:
        raise UnsupportedError(
            "RandomRotation with expand=True is not supported natively, as its results differ in "
            "size"
        )
    name = "RandomRotation"
    values = (
        *_degrees(transform.degrees, "RandomRotation's degrees"),
        *_center(transform, name),
        *fill_of(transform, name, module, n_channels),
    )
    return Op(KINDS[name], filter=_map_filter(transform, name, module), values=values)


def _random_affine(transform: Any, module: str, n_channels: int) -> Op:
    name = "RandomAffine"
    translate, scale, shear = transform.translate, transform.scale, transform.shear
    moves = (0.0, 0.0, 0.0)
    if translate is not None:
        if len(translate) != 2 or not all(is_number(one) and 0 <= one <= 1 for one in translate):
            raise unsupported_argument(name, "translate", translate, "two numbers from 0 to 1")
        moves = (1, float(translate[0]), float(translate[1]))
    scales = (1.0, 1.0)
    if scale is not None:
        scales = range_pair(scale, "RandomAffine's scale")
        if scales[0] <= 0 or scales[1] > _MAX_NUMBER:
            raise unsupported_argument(
                name, "scale", scale, f"above 0 and at most {_MAX_NUMBER:g}"
            )
    shears: list[float] = []
    for i in range(0, len(shear or ()), 2):
        shears += _degrees(list(shear)[i : i + 2], "RandomAffine's shear")
    if len(shears) not in (0, 2, 4):
        raise unsupported_argument(name, "shear", shear, "two or four numbers")
    values = (
        *_degrees(transform.degrees, "RandomAffine's degrees"),
        *moves,
        scale is not None,
        len(shears),
        *(shears + [0.0] * 4)[:4],
        *_center(transform, name),
        *fill_of(transform, name, module, n_channels),
    )
    return Op(KINDS[name], scale_low=scales[0], scale_high=scales[1],
              filter=_map_filter(transform, name, module), values=values)


def _automatic(transform: Any, name: str, module: str, n_channels: int) -> Op:
    _internals.check_augmenting(transform, module == V2)
    fill = fill_of(transform, name, module, n_channels)
    first: list[float] = [0, 0, 0]
    if name == "AutoAugment":
        first[0] = _policy(transform, module)
    else:
        bins = transform.num_magnitude_bins
        if type(bins) is not int or not 2 <= bins <= 65536:
            raise unsupported_argument(
                name, "num_magnitude_bins", bins, "an int from 2 to 65536"
            )
        first[0] = bins
        if name == "RandAugment":
            n_ops, magnitude = transform.num_ops, transform.magnitude
            if type(n_ops) is not int or not 0 <= n_ops <= 8:
                raise unsupported_argument(name, "num_ops", n_ops, "an int from 0 to 8")
            if type(magnitude) is not int or not 0 <= magnitude < bins:
                raise unsupported_argument(
                    name, "magnitude", magnitude, f"an int from 0 to {bins - 1}"
                )
            first = [n_ops, magnitude, bins]
    return Op(KINDS[name], filter=_map_filter(transform, name, module),
              values=(*first, *fill, module == V2))


def _policy(transform: Any, module: str) -> int:
    from torchvision.transforms.autoaugment import AutoAugmentPolicy

    policies = (AutoAugmentPolicy.IMAGENET, AutoAugmentPolicy.CIFAR10, AutoAugmentPolicy.SVHN)
    if transform.policy not in policies:
        raise unsupported_argument(
            "AutoAugment", "policy", transform.policy, "IMAGENET, CIFAR10 or SVHN"
        )
    held, made = _internals.policies(transform, module == V2)
    if held != made:
        raise UnsupportedError(
            "AutoAugment's list of operations was changed after its construction; natively only "
            "torchvision's policies are supported"
        )
    return policies.index(transform.policy)
