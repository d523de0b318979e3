"""Hashes of the functions of timm's automatic augmentations; see ``timm_objects`` and
``fingerprints``."""

from __future__ import annotations

AUGMENT = "timm.data.auto_augment"

# By name, of timm 1.0.31.
_HASHES = {
    "_interpolation": {"a94359b422dfbd5f"},
    "_check_args_tf": {"095a0c8f34ce1ece"},
    "shear_x": {"73400f6d20f7bbaa"},
    "shear_y": {"0150a67882ea3d18"},
    "translate_x_rel": {"dc86bbffd55007db"},
    "translate_y_rel": {"1b498b4c84f1741a"},
    "translate_x_abs": {"5f9f0ff50e8e9ba6"},
    "translate_y_abs": {"2f91a546c9657bca"},
    "rotate": {"65d65948947598c2"},
    "auto_contrast": {"9e120ca560b3b936"},
    "invert": {"828c30246cc68295"},
    "equalize": {"5ff202808de3825c"},
    "solarize": {"662b615388f238ac"},
    "solarize_add": {"962b9175e86617e3"},
    "posterize": {"40d820edb479d1ab"},
    "contrast": {"3ee243f137853184"},
    "color": {"e376961193f9a69e"},
    "brightness": {"6e12d6f4ac517c96"},
    "sharpness": {"f06a81c0fab408bd"},
    "gaussian_blur": {"da415378e80b1324"},
    "gaussian_blur_rand": {"cad4e497e5a0891a"},
    "desaturate": {"9d8e6296ac78cced"},
    "_randomly_negate": {"10401af4c8f6fd42"},
    "_rotate_level_to_arg": {"75845b17dec36025"},
    "_enhance_level_to_arg": {"73fa492c8c1cb594"},
    "_enhance_increasing_level_to_arg": {"c31b1821330a18a5"},
    "_minmax_level_to_arg": {"9ab9de3a357d627a"},
    "_shear_level_to_arg": {"2394df19029c8d9d"},
    "_translate_abs_level_to_arg": {"54ad31727bad6df3"},
    "_translate_rel_level_to_arg": {"6514619d3b6f6312"},
    "_posterize_level_to_arg": {"c4cbed8c3f32667f"},
    "_posterize_increasing_level_to_arg": {"bfcbb0f70767d36c"},
    "_posterize_original_level_to_arg": {"229c7799151d177c"},
    "_solarize_level_to_arg": {"a2d6553365c413a5"},
    "_solarize_increasing_level_to_arg": {"4ed24aa035de8a51"},
    "_solarize_add_level_to_arg": {"b8f1f0e097cf5bc8"},
    "AugmentOp.__call__": {"f8c104fd17aa3971"},
    "AutoAugment.__call__": {"ed40a91dc51f9acc"},
    "RandAugment.__call__": {"5515bcd77044bef9"},
}
HASHES = {f"{AUGMENT}:{name}": frozenset(found) for name, found in _HASHES.items()}

# What global names in these functions stand for, beside those in timm_objects. The numbers are
# checked by timm_augment.
MEANINGS = {
    "ImageEnhance": "PIL.ImageEnhance",
    "ImageFilter": "PIL.ImageFilter",
    "ImageOps": "PIL.ImageOps",
    "_DEFAULT_INTERPOLATION": "*",
    "_LEVEL_DENOM": "*",
    "_PIL_VER": "*",
    **{
        name: f"{AUGMENT}:{name}"
        for name in (
            "_check_args_tf", "_interpolation", "_posterize_level_to_arg", "_randomly_negate",
            "_solarize_level_to_arg",
        )
    },
}
