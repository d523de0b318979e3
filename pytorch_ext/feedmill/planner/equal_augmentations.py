"""Checks that the installed torchvision and Pillow augment to the native code's pixels; see
``comparing``."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from feedmill._internals import FUNCTIONAL, torchvision_version
from feedmill.planner import contraction
from feedmill.planner.comparing import Run, is_known, made, natively, once, why_not
from feedmill.planner.drawing import PilCall
from feedmill.planner.plan import FILTER_NAMES, KINDS, OP_NAMES, Op

_AUTOMATIC = tuple(KINDS[name] for name in ("TrivialAugmentWide", "RandAugment", "AutoAugment"))
_OF_TIMM = (KINDS["timm's RandAugment"], KINDS["timm's AutoAugment"])
_COLORS = ("brightness", "contrast", "saturation", "hue")
# The parts that the automatic augmentations are made of.
_PARTS_OF_AUTOMATIC = (
    "RandomAffine", "RandomRotation", "brightness", "contrast", "saturation",
    "RandomAdjustSharpness", "RandomPosterize", "RandomSolarize", "RandomAutocontrast",
    "RandomEqualize", "RandomInvert",
)
_BLENDS = ("brightness", "contrast", "saturation", "RandomAdjustSharpness")
_WITH_FILTER = ("RandomAffine", "RandomRotation")
_PAD_MODES = ("constant", "edge", "reflect", "symmetric")
# Comparisons of each part, each with other sampled parameters.
_N_TRIALS = 2
# Limit of the native epochs that are run until RandomChoice has chosen each part often enough.
_MAX_EPOCHS = 100
# Limit of the children of a RandomChoice, as in fm_op.
_MAX_CHILDREN = 16

_Pair = tuple[np.ndarray, np.ndarray]
_Trial = tuple[tuple[float, ...], np.ndarray]  # sampled parameters, native result


class _Part(NamedTuple):
    """A torchvision transform, or a part of one, that is compared by itself.

    Attributes:
        name: a transform's class, a property that ColorJitter changes, or a padding mode.
        filter: fm_filter if the transform has one, else 0.
        channels: of the image, 3 or 1.
    """

    name: str
    filter: int
    channels: int


def why_not_ops(ops: Sequence[Op], channels: int) -> list[str]:
    """Compares the augmentations among ops with the installed torchvision and Pillow.

    Args:
        channels: of the image that the first op gets, 3 or 1.

    Returns:
        A reason for each augmentation that gives other pixels.
    """
    parts = list(dict.fromkeys(_parts_of(ops, channels)))
    new = [part for part in parts if not is_known(part) and part.name not in _PAD_MODES]
    found: dict[_Part, str] = {}
    for n_channels in {part.channels for part in new}:
        same = [part for part in new if part.channels == n_channels]
        for at in range(0, len(same), _MAX_CHILDREN):
            found.update(_compare(same[at : at + _MAX_CHILDREN], n_channels))
    reasons = [once(part, partial(_found_of, part, found)) for part in parts]
    if any(part.name in _BLENDS for part in parts):
        reasons.append(contraction.why_not_blends())
    if any(part.name in _WITH_FILTER and FILTER_NAMES[part.filter] != "nearest" for part in parts):
        reasons.append(contraction.why_not_interpolation())
    return [reason for reason in reasons if reason]


def _found_of(part: _Part, found: Mapping[_Part, str]) -> str:
    if part.name in _PAD_MODES:
        return _why_not_part(part, lambda: [_padding_pair(part)])
    return found[part]


def _parts_of(ops: Sequence[Op], channels: int) -> Iterator[_Part]:
    for op in ops:
        for name in () if op.arithmetic else _names_of(op):
            filters = {op.filter, *_second_filter(op)} if name in _WITH_FILTER else {0}
            for filter_number in sorted(filters):
                yield _Part(name, filter_number, channels)
        if op.kind == KINDS["Grayscale"]:
            channels = int(op.values[0])


def _second_filter(op: Op) -> Sequence[int]:
    """fm_filter that an op of timm may draw in place of its first one; empty: none."""
    return [int(op.values[7]) - 1] if op.kind in _OF_TIMM and op.values[7] else []


def _names_of(op: Op) -> Sequence[str]:
    name = OP_NAMES[op.kind]
    if op.kind in _AUTOMATIC:
        return _PARTS_OF_AUTOMATIC
    if op.kind in _OF_TIMM:
        return (*_PARTS_OF_AUTOMATIC, "RandomBlur")
    if name == "CenterCrop":  # timm's CenterCropOrPad may pad otherwise than with black
        return (_PAD_MODES[int(op.values[4])],) if any(op.values) else ()
    if name in ("Pad", "RandomCrop"):
        return (_PAD_MODES[int(op.values[4])],) if name == "Pad" or any(op.values[:6]) else ()
    if name == "ColorJitter":
        return [color for i, color in enumerate(_COLORS) if int(op.values[8]) & 1 << i]
    name = "RandomGrayscale" if name == "Grayscale" else name
    return (name,) if name in _FUNCTIONS or name in _WITH_FILTER else ()


def _why_not_part(part: _Part, pairs: Callable[[], Iterable[_Pair]]) -> str:
    """The reason against a part; "" if there is none.

    Args:
        pairs: returns (native result, torchvision's result) pairs, which must be equal.
    """

    def differs() -> list[str]:
        return [] if all(np.array_equal(*pair) for pair in pairs()) else [_KINDS[part.channels]]

    by = f" by {FILTER_NAMES[part.filter]}" if part.name in _WITH_FILTER else ""
    does = f"pads in mode {part.name}" if part.name in _PAD_MODES else f"applies {part.name}{by}"
    return why_not(f"with torchvision {torchvision_version()} {does}", differs)


_KINDS = {3: "RGB", 1: "grayscale"}


def _image(channels: int) -> np.ndarray:
    """A test image without the darkest and brightest values, which RandomAutocontrast changes."""
    return (made(26, 22, channels) * 0.7 + 25).astype(np.uint8)


def _as_pillow(image: np.ndarray) -> Any:
    from PIL import Image

    return Image.fromarray(image if image.shape[2] == 3 else image[..., 0])


def _as_array(image: Any) -> np.ndarray:
    array = np.asarray(image)
    return array if array.ndim == 3 else array[..., None]


# Each part as (torchvision.transforms.functional, PIL image, sampled parameters) -> PIL image.
_FUNCTIONS: dict[str, Callable[[Any, Any, Sequence[float]], Any]] = {
    "RandomVerticalFlip": lambda F, image, values: F.vflip(image),
    "RandomGrayscale": lambda F, image, values: F.rgb_to_grayscale(image, len(image.getbands())),
    "RandomInvert": lambda F, image, values: F.invert(image),
    "RandomPosterize": lambda F, image, values: F.posterize(image, 3),
    "RandomSolarize": lambda F, image, values: F.solarize(image, 100.0),
    "RandomAutocontrast": lambda F, image, values: F.autocontrast(image),
    "RandomEqualize": lambda F, image, values: F.equalize(image),
    "RandomAdjustSharpness": lambda F, image, values: F.adjust_sharpness(image, 1.8),
    "brightness": lambda F, image, values: F.adjust_brightness(image, values[4]),
    "contrast": lambda F, image, values: F.adjust_contrast(image, values[5]),
    "saturation": lambda F, image, values: F.adjust_saturation(image, values[6]),
    "hue": lambda F, image, values: F.adjust_hue(image, values[7]),
    "RandomBlur": lambda F, image, values: PilCall("RandomBlur")(image, values),
}
_VALUES = {"RandomPosterize": 3.0, "RandomSolarize": 100.0, "RandomAdjustSharpness": 1.8}
_FILL = (9, 120, 230)


def _child(part: _Part) -> Op:
    """The op of a part, with random parameters if the part has any."""
    name = part.name
    if name in _COLORS:
        limits = [(0.5, 1.7)] * 3 + [(-0.4, 0.4)]
        given = [limits[i] if color == name else (0.0, 0.0) for i, color in enumerate(_COLORS)]
        values = (*(limit for pair in given for limit in pair), 1 << _COLORS.index(name))
        return Op(KINDS["ColorJitter"], values=values)
    if name == "RandomRotation":
        return Op(KINDS[name], filter=part.filter, values=(-40, 40, 0, 0, 0, *_FILL))
    if name == "RandomAffine":
        values = (-20, 20, 1, 0.2, 0.2, 1, 4, -15, 15, -10, 10, 0, 0, 0, *_FILL)
        return Op(KINDS[name], scale_low=0.7, scale_high=1.4, filter=part.filter, values=values)
    if name == "RandomBlur":
        return Op(KINDS[name], p=1.0, values=(0.1, 4.0))
    given_values = (_VALUES[name],) if name in _VALUES else ()
    return Op(KINDS[name], p=1.0, values=given_values)


def _expected(part: _Part, image: Any, values: Sequence[float]) -> Any:
    """torchvision's result for a PIL image and given parameters."""
    functional = sys.modules[FUNCTIONAL]
    if part.name not in _WITH_FILTER:
        return _FUNCTIONS[part.name](functional, image, values)
    mode = functional.InterpolationMode(FILTER_NAMES[part.filter])
    fill = [float(one) for one in _FILL[: part.channels]]
    if part.name == "RandomRotation":
        return functional.rotate(image, values[0], mode, False, None, fill)
    return functional.affine(
        image, angle=values[0], translate=[int(values[1]), int(values[2])], scale=values[3],
        shear=list(values[4:6]), interpolation=mode, fill=fill,
    )


def _compare(parts: Sequence[_Part], channels: int) -> dict[_Part, str]:
    """Compares parts, which are run natively as the children of one RandomChoice. Returns the
    reason against each; "" if there is none."""
    image = _image(channels)
    try:
        trials = _run_natively(parts, image)
    except Exception as error:
        what = f"{type(error).__name__}: {error}"
        reason = f"could not check that Pillow augments images like feedmill does: {what}"
        return dict.fromkeys(parts, reason)
    return {
        part: _why_not_part(part, partial(_pairs, part, image, trials_of_part))
        for part, trials_of_part in zip(parts, trials)
    }


def _pairs(part: _Part, image: np.ndarray, trials: Sequence[_Trial]) -> Iterator[_Pair]:
    for values, got in trials:
        yield got, _as_array(_expected(part, _as_pillow(image), values))


def _run_natively(parts: Sequence[_Part], image: np.ndarray) -> list[list[_Trial]]:
    """Runs a RandomChoice of the parts until each was chosen _N_TRIALS times."""
    n = len(parts)
    trials: list[list[_Trial]] = [[] for _ in parts]
    sums = tuple(float(i + 1) for i in range(n))
    choice = Op(KINDS["RandomChoice"], n_children=n, n_within=n, values=sums)
    run = Run([choice, *map(_child, parts)], image, 2 * _N_TRIALS * n)
    try:
        for draws, result in itertools.islice(run.results(), _MAX_EPOCHS * run.n):
            number = int(draws[0][6][0])
            if len(trials[number]) < _N_TRIALS:
                trials[number].append((draws[1 + number][6], result.copy()))
            if all(len(done) == _N_TRIALS for done in trials):
                return trials
        raise RuntimeError("RandomChoice did not choose every augmentation")
    finally:
        run.close()


def _padding_pair(part: _Part) -> _Pair:
    image, mode = _image(part.channels), _PAD_MODES.index(part.name)
    got = natively([Op(KINDS["Pad"], values=(3, 2, 5, 4, mode, 0, *_FILL))], image)
    fill = _FILL[0] if part.channels == 1 else _FILL
    pad = sys.modules[FUNCTIONAL].pad
    return got, _as_array(pad(_as_pillow(image), [3, 2, 5, 4], fill, part.name))
