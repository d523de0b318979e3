"""Hashes of the functions of timm's automatic augmentations; see ``timm_objects`` and
``fingerprints``."""

from __future__ import annotations

AUGMENT = "timm.data.auto_augment"

# By name, of timm 0.3.2 to 1.0.31, the newest first.
_HASHES = {
    "_interpolation": {"a94359b422dfbd5f", "934c54949930cd1c", "beac831b17582efa"},
    "_check_args_tf": {"095a0c8f34ce1ece"},
    "shear_x": {"73400f6d20f7bbaa"},
    "shear_y": {"0150a67882ea3d18"},
    "translate_x_rel": {"dc86bbffd55007db"},
    "translate_y_rel": {"1b498b4c84f1741a"},
    "translate_x_abs": {"5f9f0ff50e8e9ba6"},
    "translate_y_abs": {"2f91a546c9657bca"},
    "rotate": {"65d65948947598c2", "91f7ce1a129ca638"},
    "auto_contrast": {"9e120ca560b3b936"},
    "invert": {"828c30246cc68295"},
    "equalize": {"5ff202808de3825c"},
    "solarize": {"662b615388f238ac"},
    "solarize_add": {"962b9175e86617e3", "737c3784b8b5723c"},
    "posterize": {"40d820edb479d1ab"},
    "contrast": {"3ee243f137853184"},
    "color": {"e376961193f9a69e"},
    "brightness": {"6e12d6f4ac517c96"},
    "sharpness": {"f06a81c0fab408bd"},
    "gaussian_blur": {"da415378e80b1324"},
    "gaussian_blur_rand": {"cad4e497e5a0891a"},
    "desaturate": {"9d8e6296ac78cced"},
    "_randomly_negate": {"10401af4c8f6fd42"},
    "_rotate_level_to_arg": {"75845b17dec36025", "f3174fcd1aea2022"},
    "_enhance_level_to_arg": {"73fa492c8c1cb594", "6e1258471693c278"},
    "_enhance_increasing_level_to_arg": {"c31b1821330a18a5", "4cbadab82ccae254"},
    "_minmax_level_to_arg": {"9ab9de3a357d627a"},
    "_shear_level_to_arg": {"2394df19029c8d9d", "a95a10ed6f5ae379"},
    "_translate_abs_level_to_arg": {"54ad31727bad6df3", "fb028b623a0db31b"},
    "_translate_rel_level_to_arg": {"6514619d3b6f6312", "709ef44a0cb013e3"},
    "_posterize_level_to_arg": {"c4cbed8c3f32667f", "d90a4bbcb5ee613f"},
    "_posterize_increasing_level_to_arg": {"bfcbb0f70767d36c"},
    "_posterize_original_level_to_arg": {"229c7799151d177c", "331113d4b7a336c0"},
    "_solarize_level_to_arg": {"a2d6553365c413a5", "dedfde559e5fcab6", "522e5f24d912677f"},
    "_solarize_increasing_level_to_arg": {"4ed24aa035de8a51"},
    "_solarize_add_level_to_arg": {"b8f1f0e097cf5bc8", "6fdd1b1f96c0970d", "b1a193521d191a48"},
    "AugmentOp.__call__": {"f8c104fd17aa3971", "2b4b051e584141ef", "b97ac7521274e8c5"},
    "AutoAugment.__call__": {"ed40a91dc51f9acc"},
    "RandAugment.__call__": {"5515bcd77044bef9"},
}
# Functions of older versions that equal the newest ones up to magnitude 10 only, by name.
UP_TO_TEN = {
    "_enhance_increasing_level_to_arg": {"4cbadab82ccae254"},
    "_solarize_add_level_to_arg": {"6fdd1b1f96c0970d", "b1a193521d191a48"},
}
# Those of AugmentOp.__call__ that have no magnitude_max: 10 is the limit; and the one that draws
# from a normal distribution also if the standard deviation is infinite.
WITHOUT_MAXIMUM = {"2b4b051e584141ef", "b97ac7521274e8c5"}
WITHOUT_UNIFORM = {"b97ac7521274e8c5"}
HASHES = {f"{AUGMENT}:{name}": frozenset(found) for name, found in _HASHES.items()}

# What global names in these functions stand for, beside those in timm_objects. The numbers are
# checked by timm_augment.
MEANINGS = {
    "ImageEnhance": "PIL.ImageEnhance",
    "ImageFilter": "PIL.ImageFilter",
    "ImageOps": "PIL.ImageOps",
    "_DEFAULT_INTERPOLATION": "*",
    "_LEVEL_DENOM": "*",
    "_MAX_LEVEL": "*",
    "_PIL_VER": "*",
    **{
        name: f"{AUGMENT}:{name}"
        for name in (
            "_check_args_tf", "_interpolation", "_posterize_level_to_arg", "_randomly_negate",
            "_solarize_level_to_arg",
        )
    },
}
