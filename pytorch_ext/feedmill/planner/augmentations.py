"""Reads torchvision's augmentations into ops: what is no resize, central crop or flip."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from feedmill import _internals
from feedmill._internals import FUNCTIONAL, FUNCTIONAL_PIL
from feedmill.planner.arguments import (
    V1,
    V1_AUTO,
    V2,
    fill_of,
    filter_of,
    is_number,
    probability,
    range_pair,
    size_pair,
)
from feedmill.planner.plan import FILTER_NAMES, KINDS, MAX_SIZE_PX, Op, Refusal

# What is done or left as it is, and the attribute that says what.
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
HOLDERS = ("RandomApply", "RandomChoice", "RandomOrder")
# Ops by class name, but for those that hold others.
NAMES = frozenset(
    {"RandomCrop", "Pad", "Grayscale", "ColorJitter", "RandomRotation", "RandomAffine"}
    | _WITH_PROBABILITY.keys()
)
AUTOMATIC = frozenset(_AUTOMATIC)

_PAD_MODES = ("constant", "edge", "reflect", "symmetric")
_MOST = 1e9  # of numbers that feedmill.h sets no narrower limits

# torchvision's and Pillow's functions that these call, by module.
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
    """The op of a transform that holds no others. Refusal where it is not native.

    Args:
        name, module: its class.
        n_channels: of the image that it will get, 3 or 1.
    """
    kind = KINDS[name]
    if name in _WITH_PROBABILITY:
        attribute = _WITH_PROBABILITY[name]
        values: tuple[float, ...] = (_number(transform, name, attribute),) if attribute else ()
        if name == "RandomPosterize" and values[0] not in range(1, 9):
            raise Refusal(f"RandomPosterize has bits={values[0]:g}; Pillow takes 1 to 8")
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


def read_erasing(transform: Any, n_channels: int) -> tuple[Op, list[float]]:
    """The op of a RandomErasing, whose values are still missing, and the values themselves, one or
    one for each channel, as they are before they get the image's type."""
    value = transform.value
    if isinstance(value, str) or value is None:
        raise Refusal("RandomErasing with value='random' is not native")
    values = list(value) if type(value) in (list, tuple) else [value]
    if len(values) not in (1, n_channels) or not all(map(is_number, values)):
        raise Refusal(f"RandomErasing has value={value!r}")
    scale = range_pair(transform.scale, "RandomErasing's scale")
    ratio = range_pair(transform.ratio, "RandomErasing's ratio")
    if scale[0] < 0 or scale[1] > 1 or ratio[0] < 1e-30 or ratio[1] > 1e30:
        raise Refusal(f"RandomErasing has scale={scale} and ratio={ratio}")
    p = probability(transform, "RandomErasing")
    return Op(KINDS["RandomErasing"], 0, 0, 0, *scale, *ratio, p), [float(one) for one in values]


def read_holder(transform: Any, name: str, module: str, parts: Sequence[Sequence[Op]]) -> list[Op]:
    """The ops of a transform that holds others: its own, and behind it those of its ``parts``."""
    n_within = sum(map(len, parts))
    values: tuple[float, ...] = ()
    p = 0.0
    if name == "RandomApply":
        p = probability(transform, name)
    elif not 1 <= len(parts) <= 16:
        raise Refusal(f"{name} holds {len(parts)} transforms; natively 1 to 16")
    elif name == "RandomChoice":
        values = _sums(transform, len(parts))
    return [Op(KINDS[name], p=p, n_children=len(parts), n_within=n_within, values=values),
            *(op for part in parts for op in part)]


def group(parts: Sequence[Op]) -> list[Op]:
    """Ops that are one child of a holder."""
    n_children, at = 0, 0
    while at < len(parts):
        at += 1 + parts[at].n_within
        n_children += 1
    return [Op(KINDS["RandomApply"], p=1.0, n_children=n_children, n_within=len(parts)), *parts]


def _sums(transform: Any, n: int) -> tuple[float, ...]:
    weights = [1.0] * n if transform.p is None else transform.p
    if type(weights) not in (list, tuple) or len(weights) != n or not all(map(is_number, weights)):
        raise Refusal(f"RandomChoice has p={transform.p!r}")
    if min(weights) < 0 or not 0 < sum(weights) <= _MOST:
        raise Refusal(f"RandomChoice has p={transform.p!r}")
    return tuple(math.fsum(weights[: i + 1]) for i in range(n))


# ---- arguments -----------------------------------------------------------------------------------


def _number(transform: Any, name: str, attribute: str) -> float:
    value = getattr(transform, attribute)
    if not is_number(value) or abs(value) > _MOST:
        raise Refusal(f"{name} has {attribute}={value!r}")
    if attribute == "bits" and type(value) is not int:
        raise Refusal(f"{name} has {attribute}={value!r}")
    return float(value)


def _padding(padding: Any, name: str, order: Sequence[int] = (0, 1, 2, 3)) -> tuple[int, ...]:
    """Left, top, right, bottom, out of what torchvision takes."""
    values = list(padding) if type(padding) in (list, tuple) else [padding]
    if len(values) not in (1, 2, 4) or not all(
        type(value) is int and 0 <= value <= MAX_SIZE_PX for value in values
    ):
        raise Refusal(f"{name} has padding={padding!r}")
    values = (values * 4)[:4]
    return tuple(values[i] for i in order)


def _pad_mode(transform: Any, name: str) -> int:
    mode = transform.padding_mode
    if mode not in _PAD_MODES:
        raise Refusal(f"{name} has padding_mode={mode!r}")
    if mode in ("reflect", "symmetric") and int(np.__version__.partition(".")[0]) < 2:
        raise Refusal(f"{name} has padding_mode={mode!r}, which is native as of NumPy 2")
    return _PAD_MODES.index(mode)


def _pad(transform: Any, module: str, n_channels: int) -> Op:
    padding = _padding(transform.padding, "Pad")
    fill = fill_of(transform, "Pad", module, n_channels)
    mode = _pad_mode(transform, "Pad")
    return Op(KINDS["Pad"], values=(*padding, mode, 0, *fill))


def _random_crop(transform: Any, module: str, n_channels: int) -> Op:
    height, width = size_pair(transform.size, "RandomCrop")
    padding: tuple[int, ...] = (0, 0, 0, 0)
    if transform.padding is not None:
        # v2 keeps it as left, right, top, bottom.
        order = (0, 2, 1, 3) if module == V2 else (0, 1, 2, 3)
        padding = _padding(transform.padding, "RandomCrop", order)
    if type(transform.pad_if_needed) is not bool:
        raise Refusal(f"RandomCrop has pad_if_needed={transform.pad_if_needed!r}")
    mode, fill = 0, (0, 0, 0)
    if any(padding) or transform.pad_if_needed:
        mode = _pad_mode(transform, "RandomCrop")
        fill = fill_of(transform, "RandomCrop", module, n_channels)
    values = (*padding, mode, transform.pad_if_needed, *fill, module == V2)
    return Op(KINDS["RandomCrop"], height, width, values=values)


def _grayscale(transform: Any, _module: str, _n_channels: int) -> Op:
    channels = transform.num_output_channels
    if type(channels) is not int or channels not in (1, 3):
        raise Refusal(f"Grayscale has num_output_channels={channels!r}")
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
        allowed = (-0.5, 0.5) if name == "hue" else (0, _MOST)
        if low < allowed[0] or high > allowed[1]:
            raise Refusal(f"ColorJitter has {name}={limits!r}")
        values += [low, high]
        mask |= 1 << i
    return Op(KINDS["ColorJitter"], values=(*values, mask))


def _map_filter(transform: Any, name: str, module: str) -> int:
    number = filter_of(transform, name, module)
    if FILTER_NAMES[number] not in ("nearest", "bilinear", "bicubic"):
        raise Refusal(f"{name} has interpolation={transform.interpolation!r}, which Pillow refuses")
    return number


def _degrees(values: Any, name: str) -> tuple[float, float]:
    low, high = range_pair(values, name)
    if max(-low, high) > _MOST:
        raise Refusal(f"{name} is {values!r}")
    return low, high


def _center(transform: Any, name: str) -> tuple[float, float, float]:
    """Whether there is one, x, y."""
    center = transform.center
    if center is None:
        return 0, 0, 0
    if type(center) not in (list, tuple) or len(center) != 2 or not all(
        is_number(one) and abs(one) <= _MOST for one in center
    ):
        raise Refusal(f"{name} has center={center!r}")
    return 1, float(center[0]), float(center[1])


def _random_rotation(transform: Any, module: str, n_channels: int) -> Op:
    if transform.expand is not False:
        raise Refusal("RandomRotation with expand=True gives images of many sizes")
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
            raise Refusal(f"RandomAffine has translate={translate!r}")
        moves = (1, float(translate[0]), float(translate[1]))
    scales = (1.0, 1.0)
    if scale is not None:
        scales = range_pair(scale, "RandomAffine's scale")
        if scales[0] <= 0 or scales[1] > _MOST:
            raise Refusal(f"RandomAffine has scale={scale!r}")
    shears: list[float] = []
    for i in range(0, len(shear or ()), 2):
        shears += _degrees(list(shear)[i : i + 2], "RandomAffine's shear")
    if len(shears) not in (0, 2, 4):
        raise Refusal(f"RandomAffine has shear={shear!r}")
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
            raise Refusal(f"{name} has num_magnitude_bins={bins!r}")
        first[0] = bins
        if name == "RandAugment":
            n_ops, magnitude = transform.num_ops, transform.magnitude
            if type(n_ops) is not int or not 0 <= n_ops <= 8:
                raise Refusal(f"RandAugment has num_ops={n_ops!r}; natively 0 to 8")
            if type(magnitude) is not int or not 0 <= magnitude < bins:
                raise Refusal(f"RandAugment has magnitude={magnitude!r}")
            first = [n_ops, magnitude, bins]
    return Op(KINDS[name], filter=_map_filter(transform, name, module),
              values=(*first, *fill, module == V2))


def _policy(transform: Any, module: str) -> int:
    from torchvision.transforms.autoaugment import AutoAugmentPolicy

    policies = (AutoAugmentPolicy.IMAGENET, AutoAugmentPolicy.CIFAR10, AutoAugmentPolicy.SVHN)
    if transform.policy not in policies:
        raise Refusal(f"AutoAugment has policy={transform.policy!r}")
    held, made = _internals.policies(transform, module == V2)
    if held != made:
        raise Refusal("AutoAugment's policies were changed")
    return policies.index(transform.policy)


def modules_of(name: str) -> tuple[str, str]:
    """The modules whose class of this name is known."""
    return (V1_AUTO if name in AUTOMATIC else V1), V2
