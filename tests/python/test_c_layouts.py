"""The long checks of tests/prop call C by ctypes: their structures are those of the headers."""

import pathlib
import sys

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "prop"))

import check_jpeg_pillow
import check_transform_pillow
from check_jpeg_pillow import c_layout


@pytest.mark.parametrize(
    ("module", "headers"),
    [
        (check_jpeg_pillow, ["decode/jpeg.h"]),
        (check_transform_pillow, ["transform/plan.h", "transform/geometry.h"]),
    ],
    ids=["jpeg", "transform"],
)
def test_structures_have_the_layout_of_c(module, headers):
    c_layout.check(module.STRUCTURES, headers)


def test_a_missing_field_is_named():
    class Info(check_jpeg_pillow.ctypes.Structure):
        _fields_ = check_jpeg_pillow.Info._fields_[:-1]

    with pytest.raises(RuntimeError, match="size of fm_image_info"):
        c_layout.check({"fm_image_info": Info}, ["decode/jpeg.h"])
