"""Checks that the installed Pillow rounds blends and interpolations as the native code does.

Pillow's compiler may contract a multiplication and an addition to one operation, which rounds once
(loader/augment/contract.h). That changes few pixels, which comparisons by random parameters may
miss; those here are of cases in which many values lie next to an integer.
"""

from __future__ import annotations

from feedmill._ops import native
from feedmill.planner.comparing import made, once, why_not
from feedmill.planner.plan import FILTERS

_FACTORS = (-0.4, -0.1, 0.3, 1.7)
_SHEARS = (0.1, 0.3, -0.3, 0.05)


def why_not_blends() -> str:
    """The reason against blends natively; "" if there is none."""
    return once("rounding of blends", lambda: why_not("rounds blends", _blends_that_differ))


def why_not_interpolation() -> str:
    """The reason against transforms by bilinear and bicubic natively; "" if there is none."""
    return once("rounding of interpolations", lambda: why_not(
        "rounds rotated and sheared images", _transforms_that_differ))


def _blends_that_differ() -> list[str]:
    from PIL import Image

    # Each pair of values.
    first, second = Image.linear_gradient("L"), Image.linear_gradient("L").transpose(
        Image.Transpose.ROTATE_90)
    base, image = (Image.merge("RGB", [one] * 3) for one in (first, second))
    return [
        f"factor {factor}" for factor in _FACTORS
        if native.operate(native.OPERATION_BLEND, image.tobytes(), *image.size, base.tobytes(), 0,
                          factor) != Image.blend(base, image, factor).tobytes()
    ]


def _transforms_that_differ() -> list[str]:
    from PIL import Image

    image = Image.fromarray(made(97, 83))
    found = []
    for resample in (Image.Resampling.BILINEAR, Image.Resampling.BICUBIC):
        for shear in _SHEARS:
            wanted = image.transform(
                image.size, Image.Transform.AFFINE, (1, 0, 0, shear, 1, 0), resample
            )
            got = native.map_pixels(
                native.MAPPING_AFFINE, image.tobytes(), image.size, image.size,
                (1.0, 0.0, 0.0, shear, 1.0, 0.0, 0.0, 0.0), FILTERS[int(resample)], (0, 0, 0),
            )
            if got != wanted.tobytes():
                found.append(f"shear {shear} by {resample.name.lower()}")
    return found
