"""Whether the installed torchvision and Pillow augment as the native code does; see
``comparing``."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from feedmill._internals import FUNCTIONAL, torchvision_version
from feedmill.planner.comparing import Run, is_known, made, natively, once, why_not
from feedmill.planner.plan import FILTER_NAMES, KINDS, OP_NAMES, Op

_AUTOMATIC = tuple(KINDS[name] for name in ("TrivialAugmentWide", "RandAugment", "AutoAugment"))
_COLORS = ("brightness", "contrast", "saturation", "hue")
# What the automatic ones are made of.
_PARTS_OF_AUTOMATIC = (
    "RandomAffine", "RandomRotation", "brightness", "contrast", "saturation",
    "RandomAdjustSharpness", "RandomPosterize", "RandomSolarize", "RandomAutocontrast",
    "RandomEqualize", "RandomInvert",
)
_WITH_FILTER = ("RandomAffine", "RandomRotation")
_PAD_MODES = ("constant", "edge", "reflect", "symmetric")
# Times that each is looked at, with other draws if it has any; and runs until all have come up.
_LOOKS = 2
_MOST_RUNS = 100
# Children that fm_op lets a RandomChoice have.
_MOST_CHILDREN = 16

_Pair = tuple[np.ndarray, np.ndarray]
_Look = tuple[tuple[float, ...], np.ndarray]  # a draw's values, and what came out


class _Part(NamedTuple):
    """What an op needs to be equal: a transform of torchvision's, or a part of one.

    Attributes:
        name: of its class, or a color that ColorJitter changes, or a mode of padding.
        filter: fm_filter where it has one, else 0.
        channels: of the image, 3 or 1.
    """

    name: str
    filter: int
    channels: int


def why_not_ops(ops: Sequence[Op], channels: int) -> list[str]:
    """Reasons against augmentations whose native counterparts give other pixels than the installed
    Pillow with torchvision.

    Args:
        channels: of the image that the first op gets, 3 or 1.
    """
    parts = list(dict.fromkeys(_parts_of(ops, channels)))
    new = [part for part in parts if not is_known(part) and part.name not in _PAD_MODES]
    found: dict[_Part, str] = {}
    for n_channels in {part.channels for part in new}:
        alike = [part for part in new if part.channels == n_channels]
        for at in range(0, len(alike), _MOST_CHILDREN):
            found.update(_compared(alike[at : at + _MOST_CHILDREN], n_channels))
    reasons = [once(part, partial(_found_of, part, found)) for part in parts]
    return [reason for reason in reasons if reason]


def _found_of(part: _Part, found: Mapping[_Part, str]) -> str:
    if part.name in _PAD_MODES:
        return _why_not_part(part, lambda: [_padded(part)])
    return found[part]


def _parts_of(ops: Sequence[Op], channels: int) -> Iterator[_Part]:
    for op in ops:
        for name in _names_of(op):
            yield _Part(name, op.filter if name in _WITH_FILTER else 0, channels)
        if op.kind == KINDS["Grayscale"]:
            channels = int(op.values[0])


def _names_of(op: Op) -> Sequence[str]:
    name = OP_NAMES[op.kind]
    if op.kind in _AUTOMATIC:
        return _PARTS_OF_AUTOMATIC
    if name in ("Pad", "RandomCrop"):
        return (_PAD_MODES[int(op.values[4])],) if name == "Pad" or any(op.values[:6]) else ()
    if name == "ColorJitter":
        return [color for i, color in enumerate(_COLORS) if int(op.values[8]) & 1 << i]
    name = "RandomGrayscale" if name == "Grayscale" else name
    return (name,) if name in _FUNCTIONS or name in _WITH_FILTER else ()


def _why_not_part(part: _Part, pairs: Callable[[], Iterable[_Pair]]) -> str:
    """The reason against a part; "" if there is none.

    Args:
        pairs: gives arrays that must be equal.
    """

    def differs() -> list[str]:
        return [] if all(np.array_equal(*pair) for pair in pairs()) else [_KINDS[part.channels]]

    by = f" by {FILTER_NAMES[part.filter]}" if part.name in _WITH_FILTER else ""
    does = f"pads in mode {part.name}" if part.name in _PAD_MODES else f"applies {part.name}{by}"
    return why_not(f"with torchvision {torchvision_version()} {does}", differs)


_KINDS = {3: "RGB", 1: "grey"}


def _image(channels: int) -> np.ndarray:
    """Without the darkest and brightest values, so that there is contrast to be gained."""
    return (made(26, 22, channels) * 0.7 + 25).astype(np.uint8)


def _as_pillow(image: np.ndarray) -> Any:
    from PIL import Image

    return Image.fromarray(image if image.shape[2] == 3 else image[..., 0])


def _as_array(image: Any) -> np.ndarray:
    array = np.asarray(image)
    return array if array.ndim == 3 else array[..., None]


# What each does to a PIL image, with torchvision.transforms.functional and its draw's values.
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
}
_VALUES = {"RandomPosterize": 3.0, "RandomSolarize": 100.0, "RandomAdjustSharpness": 1.8}
_FILL = (9, 120, 230)


def _child(part: _Part) -> Op:
    """The op of a part, with random draws where it has any."""
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
    given_values = (_VALUES[name],) if name in _VALUES else ()
    return Op(KINDS[name], p=1.0, values=given_values)


def _wanted(part: _Part, image: Any, values: Sequence[float]) -> Any:
    """What torchvision makes of a PIL image, with a draw's values."""
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


def _compared(parts: Sequence[_Part], channels: int) -> dict[_Part, str]:
    """The reasons against parts, or "", all of them children of one RandomChoice."""
    image = _image(channels)
    try:
        looks = _looked_at(parts, image)
    except Exception as error:
        what = f"{type(error).__name__}: {error}"
        reason = f"augmentations could not be compared with Pillow's: {what}"
        return dict.fromkeys(parts, reason)
    return {
        part: _why_not_part(part, partial(_pairs, part, image, seen))
        for part, seen in zip(parts, looks)
    }


def _pairs(part: _Part, image: np.ndarray, seen: Sequence[_Look]) -> Iterator[_Pair]:
    for values, got in seen:
        yield got, _as_array(_wanted(part, _as_pillow(image), values))


def _looked_at(parts: Sequence[_Part], image: np.ndarray) -> list[list[_Look]]:
    """Runs the children natively until each has come up often enough."""
    n = len(parts)
    looks: list[list[_Look]] = [[] for _ in parts]
    sums = tuple(float(i + 1) for i in range(n))
    choice = Op(KINDS["RandomChoice"], n_children=n, n_within=n, values=sums)
    run = Run([choice, *map(_child, parts)], image, 2 * _LOOKS * n)
    try:
        for draws, result in itertools.islice(run.results(), _MOST_RUNS * run.n):
            number = int(draws[0][6][0])
            if len(looks[number]) < _LOOKS:
                looks[number].append((draws[1 + number][6], result.copy()))
            if all(len(seen) == _LOOKS for seen in looks):
                return looks
        raise RuntimeError("not all of them came up")
    finally:
        run.close()


def _padded(part: _Part) -> _Pair:
    image, mode = _image(part.channels), _PAD_MODES.index(part.name)
    got = natively([Op(KINDS["Pad"], values=(3, 2, 5, 4, mode, 0, *_FILL))], image)
    fill = _FILL[0] if part.channels == 1 else _FILL
    pad = sys.modules[FUNCTIONAL].pad
    return got, _as_array(pad(_as_pillow(image), [3, 2, 5, 4], fill, part.name))
