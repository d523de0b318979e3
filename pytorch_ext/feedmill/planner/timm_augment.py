"""Translates timm's RandAugment and AutoAugment into ops.

Their AugmentOps hold the functions that apply an operation and that make its arguments from a
magnitude: each must be timm's own, of a known version (``timm_hashes``), and timm's tables of them
do not matter. Anything else about them that could change a result is checked, too.
"""

from __future__ import annotations

import functools
import hashlib
import math
import sys
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from feedmill.planner import fingerprints
from feedmill.planner.arguments import is_number
from feedmill.planner.drawing import is_blur
from feedmill.planner.generators import is_of_numpy
from feedmill.planner.plan import FILTERS, KINDS, Op, UnsupportedError, unsupported_argument
from feedmill.planner.timm_hashes import AUGMENT, UP_TO_TEN, WITHOUT_MAXIMUM, WITHOUT_UNIFORM
from feedmill.planner.timm_objects import KNOWN, MEANINGS, check_random
from feedmill.planner.untouched import is_original, shadowing_attributes, type_name

_OP = "AugmentOp"
# Each operation's functions for the image and for the arguments, and what the second one gets as
# keywords; by fm_timm_augmentation.
_LEVELS: Mapping[str, tuple[str, str, Mapping[str, float]]] = {
    "AutoContrast": ("auto_contrast", "", {}),
    "Equalize": ("equalize", "", {}),
    "Invert": ("invert", "", {}),
    "Rotate": ("rotate", "_rotate_level_to_arg", {}),
    "Posterize": ("posterize", "_posterize_level_to_arg", {}),
    "PosterizeIncreasing": ("posterize", "_posterize_increasing_level_to_arg", {}),
    "PosterizeOriginal": ("posterize", "_posterize_original_level_to_arg", {}),
    "Solarize": ("solarize", "_solarize_level_to_arg", {}),
    "SolarizeIncreasing": ("solarize", "_solarize_increasing_level_to_arg", {}),
    "SolarizeAdd": ("solarize_add", "_solarize_add_level_to_arg", {}),
    "Color": ("color", "_enhance_level_to_arg", {}),
    "ColorIncreasing": ("color", "_enhance_increasing_level_to_arg", {}),
    "Contrast": ("contrast", "_enhance_level_to_arg", {}),
    "ContrastIncreasing": ("contrast", "_enhance_increasing_level_to_arg", {}),
    "Brightness": ("brightness", "_enhance_level_to_arg", {}),
    "BrightnessIncreasing": ("brightness", "_enhance_increasing_level_to_arg", {}),
    "Sharpness": ("sharpness", "_enhance_level_to_arg", {}),
    "SharpnessIncreasing": ("sharpness", "_enhance_increasing_level_to_arg", {}),
    "ShearX": ("shear_x", "_shear_level_to_arg", {}),
    "ShearY": ("shear_y", "_shear_level_to_arg", {}),
    "TranslateX": ("translate_x_abs", "_translate_abs_level_to_arg", {}),
    "TranslateY": ("translate_y_abs", "_translate_abs_level_to_arg", {}),
    "TranslateXRel": ("translate_x_rel", "_translate_rel_level_to_arg", {}),
    "TranslateYRel": ("translate_y_rel", "_translate_rel_level_to_arg", {}),
    "Desaturate": ("desaturate", "_minmax_level_to_arg", {"min_val": 0.5, "max_val": 1.0}),
    "GaussianBlur": ("gaussian_blur", "_minmax_level_to_arg", {"min_val": 0.1, "max_val": 2.0}),
    "GaussianBlurRand": ("gaussian_blur_rand", "_minmax_level_to_arg", {}),
}
OPERATIONS = tuple(_LEVELS)
# The number of a RandAugment's value that is how many operations random numbers choose of; see
# fm_op.
N_LISTED = 40
# Those whose functions call _randomly_negate(), and those that have a filter.
GEOMETRIC = frozenset({
    "Rotate", "ShearX", "ShearY", "TranslateX", "TranslateY", "TranslateXRel", "TranslateYRel",
})
SIGNED = GEOMETRIC | {name for name in OPERATIONS if _LEVELS[name][1].startswith("_enhance_incr")}

# The policies in the order of fm_op: hashes of their operations' names, probabilities and
# magnitudes.
_POLICIES = {
    "v0": "054827ef41f4b999",
    "v0r": "e488d5372447a172",
    "original": "91812f33898cbcb5",
    "originalr": "6cca53b7e2da232f",
    "3a": "5069a97840bd1bd2",
}
# Limits of fm_op.
_MOST_OPERATIONS, _MOST_MAGNITUDE, _MOST_SHARE, _MOST_PX, _MOST_NUMBER = 5, 100, 10, 65535, 1e9
_OLD_ATTRIBUTES = frozenset({
    "aug_fn", "level_fn", "prob", "magnitude", "hparams", "kwargs", "magnitude_std",
})
_ATTRIBUTES = _OLD_ATTRIBUTES | {"name", "magnitude_max"}
# The names of the operations, by the names of their functions.
_NAMES_BY_FUNCTIONS = {levels[:2]: name for name, levels in _LEVELS.items()}
# The denominator of magnitudes is a constant of timm's module: of one of these names, by version.
_DENOMINATORS = ("_LEVEL_DENOM", "_MAX_LEVEL")
# The upper bound of magnitudes where AugmentOps have no magnitude_max.
_MOST_OF_OLD = 10.0
# fm_op's value for magnitudes from 0 to the given one.
_UNIFORM = -1.0
_ENHANCERS = ("Brightness", "Color", "Contrast", "Sharpness")


class _Shared(NamedTuple):
    """What all operations of a transform have in common, as fm_op's values 3 to 10, and its
    filter, and as value 39."""

    std: float
    most: float
    share: float
    px: float
    second_filter: float
    fill: tuple[int, ...]
    filter: int
    n_filters: int  # that random.choice() chooses of; 0: it is not called


def read_op(transform: Any, name: str, n_channels: int) -> Op:
    """The op of a RandAugment or AutoAugment. UnsupportedError if it is not supported.

    Args:
        n_channels: of the images that the transform gets, 3 or 1.
    """
    if n_channels != 3:
        raise UnsupportedError(f"timm's {name} of grayscale images is not supported natively")
    _check_surroundings()
    return _rand_augment(transform) if name == "RandAugment" else _auto_augment(transform)


def _changed(name: str, why: str) -> UnsupportedError:
    return UnsupportedError(f"timm's {name} is not as timm makes it: {why}")


def _rand_augment(transform: Any) -> Op:
    name = "RandAugment"
    n, ops, weights = transform.num_layers, transform.ops, transform.choice_weights
    if type(n) is not int or not 0 <= n <= _MOST_OPERATIONS:
        raise unsupported_argument(name, "num_layers", n, f"an int from 0 to {_MOST_OPERATIONS}")
    if type(ops) is not list or not ops:
        raise _changed(name, "it has no list of operations")
    shared = _shared_by(ops)
    first = ops[0]
    if any((op.prob, op.magnitude) != (first.prob, first.magnitude) for op in ops):
        raise _changed(name, "its operations differ in probability or magnitude")
    if first.magnitude > _MOST_NUMBER:
        raise unsupported_argument(name, "magnitude", first.magnitude, f"up to {_MOST_NUMBER:g}")
    by_operation = [0.0] * len(OPERATIONS)
    for op, weight in zip(ops, [1.0] * len(ops) if weights is None else _weights(weights, ops, n)):
        by_operation[OPERATIONS.index(name_of(op))] += weight
    listed = [OPERATIONS.index(name_of(op)) for op in ops]
    if len(listed) > len(OPERATIONS):
        listed = []  # only draws from the generators of Python and NumPy need them
    values = (n, _probability(first), first.magnitude, *shared[:5], *shared.fill,
              weights is not None, *by_operation, shared.n_filters, len(listed), *listed)
    return Op(KINDS["timm's RandAugment"], filter=shared.filter, values=values)


def _weights(weights: Any, ops: Sequence[Any], n: int) -> list[float]:
    """RandAugment's choice_weights, as numpy.random.choice() accepts them."""
    good = type(weights) is np.ndarray and weights.dtype == np.float64
    if not good or weights.shape != (len(ops),) or not bool(np.all(weights >= 0)):
        raise unsupported_argument(
            "RandAugment", "choice_weights", weights, "a NumPy array of one float for each one"
        )
    listed = [float(one) for one in weights]
    if abs(math.fsum(listed) - 1) > 1e-9 or sum(one > 0 for one in listed) < n:
        raise unsupported_argument(
            "RandAugment", "choice_weights", weights, "with the sum 1, and num_layers of them > 0"
        )
    if len(set(map(name_of, ops))) != len(ops):
        raise _changed("RandAugment", "it has weights, and one operation twice")
    return listed


def _auto_augment(transform: Any) -> Op:
    policy = transform.policy
    if type(policy) is not list or not all(type(one) is list for one in policy):
        raise _changed("AutoAugment", "its policy is not a list of lists")
    ops = [op for one in policy for op in one]
    if not ops:
        raise _changed("AutoAugment", "it has no operations")
    shared = _shared_by(ops)
    held = [[(name_of(op), float(op.prob), float(op.magnitude)) for op in one] for one in policy]
    found = hashlib.sha256(repr(held).encode()).hexdigest()[:16]
    if found not in _POLICIES.values():
        raise _changed("AutoAugment", f"its policy is none of {', '.join(_POLICIES)}")
    values = (list(_POLICIES.values()).index(found), 0, 0, *shared[:5], *shared.fill,
              *[0] * (1 + len(OPERATIONS)), shared.n_filters)
    return Op(KINDS["timm's AutoAugment"], filter=shared.filter, values=values)


# ---- AugmentOp -----------------------------------------------------------------------------------


def _shared_by(ops: Sequence[Any]) -> _Shared:
    """What all operations have in common. UnsupportedError if one is not as timm makes it."""
    kind = getattr(sys.modules.get(AUGMENT), _OP, None)
    if kind is None or kind.__mro__ != (kind, object):
        raise UnsupportedError(f"{AUGMENT}.{_OP} was replaced")
    # NumPy chooses among the objects by their methods, if they have some.
    methods = {name for name in vars(kind) if callable(vars(kind)[name])}
    if methods - {"__init__", "__call__", "__repr__"}:
        raise _changed(_OP, "it has other methods")
    call = vars(kind).get("__call__")
    _check_function(call, f"{_OP}.__call__")
    version = fingerprints.fingerprint(call.__code__)
    shared = {_read_augment_op(op, kind, version) for op in ops}
    if len(shared) != 1:
        raise _changed(_OP, "the operations of a transform differ in their parameters")
    return shared.pop()


def name_of(op: Any) -> str:
    """The name of an AugmentOp's operation; "" if its functions are those of none. Older versions
    of timm do not store it."""
    if hasattr(op, "name"):
        return op.name if type(op.name) is str else ""
    level = getattr(op.level_fn, "func", op.level_fn)
    functions = (getattr(op.aug_fn, "__name__", ""), getattr(level, "__name__", ""))
    return _NAMES_BY_FUNCTIONS.get(functions, "")


def _read_augment_op(op: Any, kind: Any, version: str) -> _Shared:
    """What an operation may have in common with others.

    Args:
        kind: timm's AugmentOp.
        version: the hash of its __call__.
    """
    if type(op) is not kind:
        raise _changed(_OP, f"one is a {type_name(type(op))}")
    is_old = version in WITHOUT_MAXIMUM
    attributes = _OLD_ATTRIBUTES if is_old else _ATTRIBUTES
    if set(vars(op)) != attributes or shadowing_attributes(op):
        raise _changed(_OP, "one has other attributes")
    name = name_of(op)
    if name not in _LEVELS:
        raise unsupported_argument(_OP, "name", getattr(op, "name", op), "one of timm's names")
    most = _MOST_OF_OLD if is_old else _most(op)
    _check_functions_of(op, name, most)
    if not is_number(op.prob) or op.prob < 0:
        raise unsupported_argument(_OP, "prob", op.prob, "a number from 0")
    if not is_number(op.magnitude) or op.magnitude < 0:
        raise unsupported_argument(_OP, "magnitude", op.magnitude, "a number from 0")
    if type(op.hparams) is not dict or type(op.kwargs) is not dict:
        raise _changed(_OP, "its parameters are no dicts")
    share = op.hparams.get("translate_pct", 0.45)
    if not is_number(share) or not 0 <= share <= _MOST_SHARE:
        raise unsupported_argument(_OP, "translate_pct", share, f"from 0 to {_MOST_SHARE}")
    default = None if name in ("TranslateX", "TranslateY") else 0
    px: Any = op.hparams.get("translate_const", default)
    if not is_number(px) or not 0 <= px <= _MOST_PX:
        raise unsupported_argument(_OP, "translate_const", px, f"from 0 to {_MOST_PX}")
    std = _std(op)
    if std == _UNIFORM and version in WITHOUT_UNIFORM:
        raise unsupported_argument(_OP, "magnitude_std", op.magnitude_std, "finite")
    filters = _filters(op)
    return _Shared(std, most, float(share), float(px),
                   filters[1] + 1.0 if filters[-1] != filters[0] else 0.0, _fill(op), filters[0],
                   len(filters) if type(op.kwargs["resample"]) in (list, tuple) else 0)


def _check_functions_of(op: Any, name: str, most: float) -> None:
    """UnsupportedError if an operation's functions are not those that timm has for its name, or
    differ from those of the newest timm for magnitudes up to ``most``."""
    function, level_name, keywords = _LEVELS[name]
    _check_function(op.aug_fn, function)
    level = op.level_fn
    if not level_name:
        if level is not None:
            raise _changed(_OP, f"{name} has another level_fn")
        return
    if keywords:
        if type(level) is not functools.partial or level.args or level.keywords != keywords:
            raise _changed(_OP, f"{name} has another level_fn")
        level = level.func
    _check_function(level, level_name)
    if most > 10 and fingerprints.fingerprint(level.__code__) in UP_TO_TEN.get(level_name, ()):
        raise unsupported_argument(_OP, "magnitude_max", most, "at most 10 with this version")


def _check_function(function: Any, name: str) -> None:
    if not fingerprints.is_known(function, f"{AUGMENT}:{name}", KNOWN, MEANINGS):
        raise UnsupportedError(
            f"{AUGMENT}.{name} is not that of a version of timm which feedmill knows"
        )


def _probability(op: Any) -> float:
    return min(float(op.prob), 1.0)


def _std(op: Any) -> float:
    std = op.magnitude_std
    if type(std) is float and std == math.inf:
        return _UNIFORM
    if not is_number(std) or std > _MOST_NUMBER:
        raise unsupported_argument(_OP, "magnitude_std", std, f"a number up to {_MOST_NUMBER:g}")
    return max(float(std), 0.0)


def _most(op: Any) -> float:
    most = op.magnitude_max
    if most is None or (type(most) in (int, float) and most == 0):
        return 10.0
    if not is_number(most) or not 0.001 <= most <= _MOST_MAGNITUDE:
        raise unsupported_argument(
            _OP, "magnitude_max", most, f"a number above 0, at most {_MOST_MAGNITUDE}"
        )
    return float(most)


def _fill(op: Any) -> tuple[int, ...]:
    fill = op.kwargs.get("fillcolor")
    good = type(fill) is tuple and len(fill) == 3 and set(op.kwargs) == {"fillcolor", "resample"}
    if not good or not all(type(one) is int and 0 <= one <= 255 for one in fill):
        raise unsupported_argument(_OP, "fillcolor", fill, "three ints from 0 to 255")
    filled: tuple[int, ...] = fill
    return filled


def filters_of(op: Any) -> list[Any]:
    """Pillow's filters, of which an AugmentOp uses one at random."""
    resample = op.kwargs.get("resample")
    return list(resample) if type(resample) in (list, tuple) else [resample]


def _filters(op: Any) -> list[int]:
    """fm_filter of these."""
    from PIL import Image

    resample = filters_of(op)
    kinds = (int, getattr(Image, "Resampling", int))
    numbers = [int(one) if type(one) in kinds else -1 for one in resample]
    if len(numbers) not in (1, 2) or not all(one in (0, 2, 3) for one in numbers):
        raise unsupported_argument(
            _OP, "interpolation", op.kwargs.get("resample"), "one or two of Pillow's NEAREST, "
            "BILINEAR and BICUBIC"
        )
    return [FILTERS[one] for one in numbers]


# ---- what timm's functions call ------------------------------------------------------------------


def _check_surroundings() -> None:
    """UnsupportedError if a value or function that timm's functions use was changed."""
    module = sys.modules[AUGMENT]
    version = getattr(module, "_PIL_VER", None)
    if type(version) is not tuple or not version >= (5, 2):
        raise UnsupportedError(f"{AUGMENT}._PIL_VER was replaced")
    denominators = [name for name in _DENOMINATORS if name in vars(module)]
    for name in denominators or _DENOMINATORS[:1]:
        denominator = vars(module).get(name)
        if type(denominator) is not float or denominator != 10:
            raise UnsupportedError(f"{AUGMENT}.{name} was replaced")
    check_random("random", "choice", "gauss", "uniform")
    if not is_of_numpy(np.random.choice, "choice"):
        raise UnsupportedError("numpy.random.choice was replaced")
    _check_enhancers()


def _check_enhancers() -> None:
    """UnsupportedError if a class of Pillow that timm's functions use was changed."""
    from PIL import ImageEnhance, ImageFilter

    place = "PIL.ImageEnhance"
    for name in _ENHANCERS:
        kind = getattr(ImageEnhance, name, None)
        of_base = vars(ImageEnhance._Enhance)
        if not (
            isinstance(kind, type)
            and kind.__mro__ == (kind, ImageEnhance._Enhance, object)
            and not {"__new__", "enhance", "__getattribute__"} & vars(kind).keys()
            and not {"__new__", "__getattribute__"} & of_base.keys()
            and is_original(vars(kind).get("__init__"), place, f"{name}.__init__")
            and is_original(of_base.get("enhance"), place, "_Enhance.enhance")
        ):
            raise UnsupportedError(f"{place}.{name} was replaced")
    if not is_blur(ImageFilter.GaussianBlur):
        raise UnsupportedError("PIL.ImageFilter.GaussianBlur was replaced")
